/* SPDX-License-Identifier: Apache-2.0 */
/* What is in effect: defaults, unknown keys and selection (R50), rules between options. */
#include "config_helper.h"

#include <sys/stat.h>

static void assert_setting(const struct kvc_settings *settings, const char *plugin,
			   const char *name, const char *expected)
{
	const char *found = candidate_setting(kvc_settings_section(settings, plugin), name);

	if (!found || strcmp(found, expected) != 0)
		fail_msg("plugin.%s.%s is %s, not %s", plugin, name, found ? found : "absent",
			 expected);
}

static void test_defaults_of_the_top_level(void **state)
{
	struct kvc_settings *s = settings_of("");

	(void)state;
	assert_true(s->use_direct_io);
	assert_false(s->use_direct_io_explicit);
	assert_true(s->l3_cleaner_enabled);
	assert_true(s->l3_cleaner_high_watermark > 79.9 && s->l3_cleaner_high_watermark < 80.1);
	assert_true(s->l3_cleaner_low_watermark > 69.9 && s->l3_cleaner_low_watermark < 70.1);
	assert_int_equal(s->storage_dir_count, 1);
	assert_string_equal(s->storage_dirs[0], "/tmp/hicache_storage");
	assert_true(s->storage_dirs_default);
	assert_int_equal(s->naming, KVC_NAMING_KVCELLAR);
	assert_int_equal(s->storage_layout, KVC_STORAGE_AUTO);
	assert_int_equal(s->verify, KVC_VERIFY_REQUIRE);
	assert_int_equal(s->checksum, KVC_CHECKSUM_MODE_FULL);
	assert_int_equal(s->capacity.bytes, 0);
	assert_int_equal(s->min_free.bytes, 0);
	assert_null(s->identity);
	assert_null(s->tenant);
	assert_int_equal(s->get_timeout_ms, 5000);
	assert_int_equal(s->set_timeout_ms, 8000);
	assert_int_equal(s->exists_timeout_ms, 2000);
	assert_int_equal(s->durability, KVC_DURABILITY_NONE);
	assert_int_equal(s->io_engine_count, 4);
	assert_string_equal(s->io_engines[0], "io_uring");
	assert_string_equal(s->io_engines[1], "linux_aio");
	assert_string_equal(s->io_engines[2], "threads");
	assert_string_equal(s->io_engines[3], "posix_aio");
	assert_false(s->io_engines_explicit);
	assert_int_equal(s->io_threads, 0);
	assert_int_equal(s->file_mode, 0600);
	assert_int_equal(s->folder_mode, 0700);
	assert_string_equal(s->metrics_file, "");
	assert_string_equal(s->trace_file, "");
	assert_true(s->strict);
	assert_string_equal(s->plugin_dir, "");
	assert_int_equal(s->selection, KVC_SELECTION_AUTO);
	assert_candidates(s, "3fs posix gds_mt gds obj");
	assert_int_equal(s->warning_count, 0);
	kvc_settings_free(s);
}

/* The names and defaults of the document that is implemented. */
static void test_defaults_of_the_seed(void **state)
{
	static const char *const rows[][3] = {
		{ "posix", "use_uring", "false" },
		{ "posix", "use_aio", "false" },
		{ "posix", "use_posix_aio", "false" },
		{ "gds", "batch_pool_size", "128" },
		{ "gds", "batch_limit", "128" },
		{ "gds", "max_request_size", "16777216" },
		{ "gds_mt", "thread_count", "4" },
		{ "3fs", "mount_point", "" },
		{ "3fs", "mem_config", "dram" },
		{ "3fs", "iopool_size", "64" },
		{ "obj", "num_threads", "4" },
		{ "obj", "endpoint_override", "" },
		{ "obj", "scheme", "http" },
		{ "obj", "region", "" },
		{ "obj", "req_checksum", "required" },
		{ "obj", "ca_bundle", "" },
		{ "obj", "access_key", "" },
		{ "obj", "secrete_key", "" },
		{ "obj", "session_token", "" },
		{ "obj", "use_virtual_addressing", "auto" },
		{ "obj", "bucket", "" },
		{ "azure_blob", "account_url", "" },
		{ "azure_blob", "num_threads", "4" },
		{ "gusli", "client_name", "kvcellar" },
		{ "gusli", "max_num_simultaneous_requests", "256" },
		{ "ucx", "num_threads", "0" },
		{ "nixl", "backend", "" },
		{ "mem", "latency_us", "0" },
		{ "fault", "lower", "mem" },
	};
	struct kvc_settings *settings = settings_of("");

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_setting(settings, rows[i][0], rows[i][1], rows[i][2]);
	kvc_settings_free(settings);
}

/* Names and defaults that the document does not have. */
static void test_defaults_of_our_own(void **state)
{
	struct kvc_settings *settings = settings_of("");

	(void)state;
	assert_setting(settings, "posix", "register_memory", "true");
	kvc_settings_free(settings);
	settings = settings_of("[plugin.posix]\nregister_memory = false\n");
	assert_setting(settings, "posix", "register_memory", "false");
	kvc_settings_free(settings);
	assert_contains(error_of("[plugin.posix]\nregister_memory = 2\n"),
			"plugin.posix.register_memory");
	assert_contains(error_of("[plugin.posix]\nregister_memory = \"maybe\"\n"),
			"plugin.posix.register_memory");
}

static void test_r50_misspelt_keys(void **state)
{
	static const char *const cases[][3] = {
		{ "use_direct_oi = true\n", "\"use_direct_oi\"", "\"use_direct_io\"" },
		{ "storage_dir = \"/a\"\n", "\"storage_dir\"", "\"storage_dirs\"" },
		{ "l3_cleaner_hgih_watermark = 90\n", "hgih", "\"l3_cleaner_high_watermark\"" },
		{ "[plugin.posix]\nuse_urng = true\n", "\"plugin.posix.use_urng\"",
		  "\"use_uring\"" },
		{ "{\"plugin\":{\"posix\":{\"actve\":true}}}", "\"plugin.posix.actve\"",
		  "\"active\"" },
		{ "plugin:\n  posx: {}\n", "\"plugin.posx\"", "\"posix\"" },
		{ "[plugins.posix]\n", "\"plugins\"", "\"plugin\"" },
		{ "[posix]\nuse_uring = true\n", "\"posix\"", "plugin.posix" },
		{ "[plugin.posix]\nuse_direct_io = true\n", "\"plugin.posix.use_direct_io\"",
		  "move it to the top level" },
		{ "[plugin.posix]\nthread_count = 4\n", "\"plugin.posix.thread_count\"",
		  "plugin.gds_mt" },
		{ "{\"use_urin\": true}", "\"use_urin\"", "\"use_uring\"" },
		{ "zzzzzz = 1\n", "\"zzzzzz\"", "kvcellar config options" },
	};
	const char *error;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		error = error_of(cases[i][0]);
		assert_contains(error, cases[i][1]);
		assert_contains(error, cases[i][2]);
		assert_contains(error, "inline");
	}
}

static void test_without_strict_unknown_keys_warn(void **state)
{
	struct kvc_settings *settings =
		settings_of("strict = false\nl3_cleaner_enabled = false\n"
			    "use_direct_oi = false\n[plugin.posix]\nuse_urng = 1\n"
			    "[plugin.posx]\nx = 1\n");

	(void)state;
	assert_int_equal(settings->warning_count, 3);
	assert_contains(settings->warnings[0], "use_direct_io");
	assert_contains(settings->warnings[1], "plugin.posix.use_urng");
	assert_contains(settings->warnings[2], "plugin.posx");
	assert_true(settings->use_direct_io);
	kvc_settings_free(settings);
	assert_contains(error_of("strict = false\nuse_direct_io = \"flase\"\n"), "flase");
}

static void test_sglang_keys_are_tolerated(void **state)
{
	struct kvc_settings *settings =
		settings_of("{\"l3_cleaner_enabled\": false, "
			    "\"interface_v1\": true, \"backend_name\": \"k\", \"module_path\": "
			    "\"m\", \"class_name\": \"C\", \"allocator\": {\"a\": 1}, "
			    "\"prefetch_threshold\": 256, \"hicache_storage_pass_prefix_keys\": "
			    "false, \"tp_lcm_size\": 8, \"switch_interval_us\": 500}");

	(void)state;
	assert_int_equal(settings->warning_count, 0);
	kvc_settings_free(settings);
}

static void test_sglang_keys_have_types(void **state)
{
	static const char *const wrong[][2] = {
		{ "{\"prefetch_threshold\": \"256\"}", "prefetch_threshold" },
		{ "{\"prefetch_threshold\": 1.5}", "prefetch_threshold" },
		{ "{\"prefetch_timeout_base\": \"x\"}", "prefetch_timeout_base" },
		{ "{\"prefetch_timeout_per_ki_token\": []}", "prefetch_timeout_per_ki_token" },
		{ "{\"hicache_storage_pass_prefix_keys\": 1}", "hicache_storage_pass_prefix" },
		{ "{\"tp_lcm_size\": 0}", "tp_lcm_size" },
		{ "{\"interface_v1\": \"false\"}", "interface_v1" },
		{ "{\"backend_name\": 5}", "backend_name" },
		{ "{\"switch_interval_us\": 0}", "switch_interval_us" },
		{ "{\"switch_interval_us\": \"soon\"}", "switch_interval_us" },
	};
	struct kvc_settings *settings;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_contains(error_of(wrong[i][0]), wrong[i][1]);
	settings = settings_of("{\"l3_cleaner_enabled\": false, \"prefetch_treshold\": 5}");
	assert_int_equal(settings->warning_count, 1);
	assert_contains(settings->warnings[0], "did you mean prefetch_threshold?");
	kvc_settings_free(settings);
}

static void test_r50_selection(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	settings = settings_of("[plugin.obj]\nbucket = \"b\"\nactive = true\n"
			       "[plugin.posix]\nactive = \"yes\"\n[plugin.gds]\nactive = false\n");
	assert_int_equal(settings->selection, KVC_SELECTION_CONFIG);
	assert_candidates(settings, "obj posix");
	kvc_settings_free(settings);

	settings = settings_of("[plugin.gds]\nbatch_limit = 3\n[plugin.posix]\nactive = false\n");
	assert_int_equal(settings->selection, KVC_SELECTION_AUTO);
	assert_candidates(settings, "3fs posix gds_mt gds obj");
	assert_false(candidate_of(settings, "3fs")->valid);
	assert_contains(candidate_of(settings, "3fs")->reason, "mount_point");
	assert_contains(candidate_of(settings, "posix")->reason, "active = false");
	assert_true(candidate_of(settings, "gds")->valid);
	assert_null(candidate_of(settings, "gds")->reason);
	assert_contains(candidate_of(settings, "obj")->reason, "AWS_DEFAULT_BUCKET");
	assert_setting(settings, "gds", "batch_limit", "3");
	kvc_settings_free(settings);

	settings = settings_of("[plugin.3fs]\nactive = true\n[plugin.azure_blob]\nactive = true\n");
	assert_candidates(settings, "3fs azure_blob");
	assert_false(settings->candidates[0].valid);
	assert_false(settings->candidates[1].valid);
	kvc_settings_free(settings);
}

static void test_r50_the_seeds_sample_file_loads(void **state)
{
	struct kvc_config *config = new_config();
	struct kvc_settings *settings = NULL;

	(void)state;
	assert_int_equal(kvc_config_load_file(config,
					      KVC_TEST_SOURCE_DIR "/data/config/seed-sample.toml"),
			 0);
	assert_int_equal(kvc_config_resolve(config, &settings), 0);
	assert_candidates(settings, "posix");
	assert_true(settings->candidates[0].valid);
	assert_setting(settings, "posix", "use_uring", "true");
	assert_setting(settings, "obj", "secrete_key", "example-secret");
	assert_setting(settings, "3fs", "mount_point", "/mnt/3fs/stage");
	kvc_settings_free(settings);
	kvc_config_free(config);
}

static void test_r50_secrete_key_and_secret_key(void **state)
{
	struct kvc_config *config = load("[plugin.obj]\nsecrete_key = \"old\"\n", KVC_CONFIG_TOML);
	struct kvc_settings *settings = NULL;

	(void)state;
	assert_int_equal(kvc_config_set(config, "plugin.obj.secret_key", "new"), 0);
	assert_int_equal(kvc_config_resolve(config, &settings), 0);
	assert_setting(settings, "obj", "secrete_key", "new");
	kvc_settings_free(settings);
	kvc_config_free(config);
	settings = settings_of("[plugin.obj]\nsecrete_key = \"s\"\nsecret_key = \"s\"\n");
	assert_setting(settings, "obj", "secrete_key", "s");
	kvc_settings_free(settings);
	assert_contains(error_of("[plugin.obj]\nsecrete_key = \"s1\"\nsecret_key = \"s2\"\n"),
			"plugin.obj");
	assert_contains(kvc_last_error(), "secret_key");
	assert_contains(error_of("{\"secret_key\": \"s1\", \"secrete_key\": \"s2\"}"), "top level");
}

static void test_flat_keys_belong_to_the_selected_plugin(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	settings = settings_of("{\"use_uring\": \"true\"}");
	assert_int_equal(settings->selection, KVC_SELECTION_AUTO);
	assert_true(candidate_of(settings, "posix")->valid);
	assert_string_equal(candidate_setting(candidate_of(settings, "posix"), "use_uring"),
			    "true");
	assert_false(candidate_of(settings, "gds")->valid);
	assert_contains(candidate_of(settings, "gds")->reason, "use_uring");
	kvc_settings_free(settings);

	settings = settings_of("{\"bucket\": \"b\", \"secret_key\": \"s\"}");
	assert_false(candidate_of(settings, "posix")->valid);
	assert_true(candidate_of(settings, "obj")->valid);
	assert_string_equal(candidate_setting(candidate_of(settings, "obj"), "secrete_key"), "s");
	kvc_settings_free(settings);

	settings = settings_of("use_aio = true\n[plugin.posix]\nactive = true\n"
			       "[plugin.gds]\nactive = true\n");
	assert_candidates(settings, "posix gds");
	assert_true(settings->candidates[0].valid);
	assert_false(settings->candidates[1].valid);
	kvc_settings_free(settings);

	assert_contains(error_of("{\"use_uring\": \"flase\"}"), "use_uring");
	assert_contains(error_of("{\"use_uring\": 1, \"use_aio\": 1}"), "at most one");
	assert_contains(error_of("use_uring = true\n[plugin.posix]\nuse_uring = false\n"
				 "active = true\n"),
			"keep one of them");
}

static void test_one_engine_at_most(void **state)
{
	struct kvc_settings *settings =
		settings_of("[plugin.posix]\nuse_uring = \"false\"\nuse_posix_aio = \"true\"\n");

	(void)state;
	kvc_settings_free(settings);
	assert_contains(error_of("[plugin.posix]\nuse_uring=true\nuse_posix_aio=true\n"),
			"plugin.posix: use_uring and use_posix_aio");
	assert_contains(error_of("io_engines = \"threads\"\n[plugin.posix]\nuse_uring = true\n"),
			"io_engines");
	assert_contains(error_of("{\"io_engines\": [\"threads\"], \"use_uring\": 1}"), "use_uring");
	assert_contains(error_of("{\"io_engines\": [\"threads\"], \"use_aio\": \"true\"}"),
			"use_aio");
	/* false is the default: it demands nothing, in every form that it can be given in */
	settings = settings_of("io_engines = \"threads\"\n[plugin.posix]\nuse_uring = false\n");
	assert_true(settings->io_engines_explicit);
	kvc_settings_free(settings);
	settings = settings_of("{\"io_engines\": [\"threads\"], \"use_uring\": \"no\", "
			       "\"use_aio\": 0, \"use_posix_aio\": false}");
	kvc_settings_free(settings);
	settings = settings_of("io_engines = \"threads, io_uring\"\n");
	assert_true(settings->io_engines_explicit);
	assert_int_equal(settings->io_engine_count, 2);
	assert_string_equal(settings->io_engines[1], "io_uring");
	kvc_settings_free(settings);
}

static void test_watermarks(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	assert_contains(error_of("l3_cleaner_high_watermark = 70\n"), "must be lower");
	assert_contains(error_of("l3_cleaner_low_watermark = 95\n"), "(95)");
	assert_contains(error_of("l3_cleaner_high_watermark = 0.8\n"), "percent");
	settings = settings_of("l3_cleaner_high_watermark = 0.8\nl3_cleaner_low_watermark = 0.7\n"
			       "l3_cleaner_enabled = false\n");
	assert_int_equal(settings->warning_count, 2);
	assert_contains(settings->warnings[0], "write 80");
	assert_contains(settings->warnings[1], "write 70");
	kvc_settings_free(settings);
}

static void test_storage_layout(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	assert_contains(error_of("storage_layout = \"packed\"\nnaming = \"nixl\"\n"), "naming");
	assert_contains(error_of("storage_layout = \"packed\"\nl3_cleaner_enabled = false\n"),
			"needs capacity");
	assert_contains(error_of("storage_layout = \"shelves\"\n"), "storage_layout");
	settings = settings_of("storage_layout = \"packed\"\n");
	assert_int_equal(settings->storage_layout, KVC_STORAGE_PACKED);
	kvc_settings_free(settings);
	settings = settings_of("storage_layout = \"packed\"\nl3_cleaner_enabled = false\n"
			       "capacity = \"1GiB\"\n");
	assert_int_equal(settings->storage_layout, KVC_STORAGE_PACKED);
	assert_int_equal(settings->capacity.bytes, UINT64_C(1) << 30);
	kvc_settings_free(settings);
	settings = settings_of("");
	assert_int_equal(settings->storage_layout, KVC_STORAGE_AUTO);
	kvc_settings_free(settings);
	settings = settings_of("storage_layout = \"files\"\nnaming = \"nixl\"\n");
	assert_int_equal(settings->warning_count, 0);
	kvc_settings_free(settings);
	settings = settings_of("storage_layout = \"files\"\nl3_cleaner_enabled = false\n");
	assert_int_equal(settings->warning_count, 0);
	kvc_settings_free(settings);
}

static void test_virtual_addressing(void **state)
{
	static const char *const plain[] = {
		"http://127.0.0.1",	     "10.0.0.1", "localhost:9000",
		"http://u:p@h.example:80/x", "[::1]",	 "http://[::1]:9"
	};
	static const char *const named[] = { "s3.example", "https://s3.example/path:1", "" };
	struct kvc_settings *settings;
	char text[200];

	(void)state;
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		(void)snprintf(text, sizeof(text),
			       "[plugin.obj]\nuse_virtual_addressing = \"true\"\n"
			       "endpoint_override = \"%s\"\n",
			       plain[i]);
		assert_contains(error_of(text), "use_virtual_addressing");
		assert_lacks(kvc_last_error(), "u:p");
		(void)snprintf(text, sizeof(text), "[plugin.obj]\nendpoint_override = \"%s\"\n",
			       plain[i]);
		settings = settings_of(text);
		assert_setting(settings, "obj", "use_virtual_addressing", "auto");
		kvc_settings_free(settings);
	}
	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
		(void)snprintf(text, sizeof(text),
			       "[plugin.obj]\nuse_virtual_addressing = \"true\"\n"
			       "endpoint_override = \"%s\"\n",
			       named[i]);
		settings = settings_of(text);
		assert_setting(settings, "obj", "use_virtual_addressing", "true");
		kvc_settings_free(settings);
	}
}

static void test_storage_dirs(void **state)
{
	char folder[] = "/tmp/kvc-dirs-XXXXXX", text[512];
	struct kvc_settings *settings;

	(void)state;
	settings = settings_of("storage_dirs = \"/a, /b ,/c\"\n");
	assert_int_equal(settings->storage_dir_count, 3);
	assert_string_equal(settings->storage_dirs[1], "/b");
	assert_false(settings->storage_dirs_default);
	kvc_settings_free(settings);
	settings = settings_of("storage_dirs = [\"/a,b\", \"/c\"]\n");
	assert_int_equal(settings->storage_dir_count, 2);
	assert_string_equal(settings->storage_dirs[0], "/a,b");
	kvc_settings_free(settings);
	assert_contains(error_of("storage_dirs = \"/a,,/b\"\n"), "empty entry");
	assert_contains(error_of("storage_dirs = \"\"\n"), "empty entry");
	assert_contains(error_of("storage_dirs = [\"/a\", \"\"]\n"), "empty entry");
	assert_contains(error_of("storage_dirs = []\n"), "empty");
	assert_contains(error_of("storage_dirs = [1]\n"), "storage_dirs");
	assert_contains(error_of("storage_dirs = 5\n"), "storage_dirs");
	assert_contains(error_of("storage_dirs = \"/a,/a\"\n"), "twice");
	assert_contains(error_of("storage_dirs = \"/nowhere/a,/nowhere//x/../a/.\"\n"),
			"the same folder");
	assert_non_null(mkdtemp(folder));
	(void)snprintf(text, sizeof(text), "%s/real", folder);
	assert_int_equal(mkdir(text, 0700), 0);
	(void)snprintf(text, sizeof(text), "%s/link", folder);
	assert_int_equal(symlink("real", text), 0);
	(void)snprintf(text, sizeof(text), "storage_dirs = \"%s/real,%s/link\"\n", folder, folder);
	assert_contains(error_of(text), "the same folder");
	(void)snprintf(text, sizeof(text), "storage_dirs = \"%s/real/new,%s/link/new/\"\n", folder,
		       folder);
	assert_contains(error_of(text), "the same folder");
	(void)snprintf(text, sizeof(text), "storage_dirs = \"%s/real/new,%s/link/newer\"\n", folder,
		       folder);
	kvc_settings_free(settings_of(text));
	(void)snprintf(text, sizeof(text), "rm -rf %s", folder);
	assert_int_equal(system(text), 0);
}

/* They would replace root.json, or a counter page. */
static void test_files_in_the_folder_of_a_root(void **state)
{
	static const char *const keys[] = { "metrics_file", "trace_file" };
	static const char *const bad[] = { "/nowhere/.kvcellar/root.json",
					   "/nowhere/.kvcellar/stats/x", "/nowhere/.kvcellar",
					   ".kvcellar/x", "/nowhere/a/..//.kvcellar/./x" };
	static const char *const good[] = { "/nowhere/.kvcellar.txt", "/nowhere/x.kvcellar/f",
					    "/nowhere/.kvcellar/../f", "kvcellar/f", "f" };
	char folder[] = "/tmp/kvc-own-files-XXXXXX";
	char text[256];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		for (size_t j = 0; j < sizeof(bad) / sizeof(bad[0]); j++) {
			(void)snprintf(text, sizeof(text), "%s = '%s'\n", keys[i], bad[j]);
			assert_contains(error_of(text), keys[i]);
			assert_contains(kvc_last_error(), ".kvcellar, where a root");
		}
		for (size_t j = 0; j < sizeof(good) / sizeof(good[0]); j++) {
			(void)snprintf(text, sizeof(text), "%s = '%s'\n", keys[i], good[j]);
			kvc_settings_free(settings_of(text));
		}
	}
	assert_non_null(mkdtemp(folder));
	(void)snprintf(text, sizeof(text), "%s/.kvcellar", folder);
	assert_int_equal(mkdir(text, 0700), 0);
	(void)snprintf(text, sizeof(text), "%s/link", folder);
	assert_int_equal(symlink(".kvcellar", text), 0);
	(void)snprintf(text, sizeof(text), "metrics_file = '%s/link/root.json'\n", folder);
	assert_contains(error_of(text), "metrics_file");
	(void)snprintf(text, sizeof(text), "rm -rf %s", folder);
	assert_int_equal(system(text), 0);
}

static void test_fault_on_fault(void **state)
{
	(void)state;
	assert_contains(error_of("[plugin.fault]\nactive = true\nlower = 'fault'\n"),
			"plugin.fault.lower");
	kvc_settings_free(settings_of("[plugin.fault]\nactive = true\nlower = 'posix'\n"));
}

static void test_absent_and_empty_differ(void **state)
{
	struct kvc_settings *settings = settings_of("identity = \"\"\n");

	(void)state;
	assert_string_equal(settings->identity, "");
	assert_null(settings->tenant);
	kvc_settings_free(settings);
	settings = settings_of("{\"identity\": null, \"tenant\": \"t\"}");
	assert_null(settings->identity);
	assert_string_equal(settings->tenant, "t");
	kvc_settings_free(settings);
}

static void test_mode(void **state)
{
	struct kvc_settings *settings = settings_of("mode = \"0640\"\n");

	(void)state;
	assert_int_equal(settings->file_mode, 0640);
	assert_int_equal(settings->folder_mode, 0750);
	assert_true(settings->mode_explicit);
	kvc_settings_free(settings);
	settings = settings_of("mode = \"660\"\n");
	assert_int_equal(settings->file_mode, 0660);
	assert_int_equal(settings->folder_mode, 0770);
	kvc_settings_free(settings);
}

static void test_nixl_params_go_through(void **state)
{
	struct kvc_settings *settings =
		settings_of("[plugin.nixl]\nactive = true\n[plugin.nixl.params]\na = 1\nb = true\n"
			    "c = \"x\"\n");

	(void)state;
	assert_setting(settings, "nixl", "params.a", "1");
	assert_setting(settings, "nixl", "params.b", "true");
	assert_setting(settings, "nixl", "params.c", "x");
	kvc_settings_free(settings);
}

/* A section of a plugin that plugin_dir holds is passed on; another one is an error. */
static void test_plugins_of_others(void **state)
{
	char folder[] = "/tmp/kvc-plugins-XXXXXX", text[512];
	struct kvc_settings *settings;

	(void)state;
	assert_non_null(mkdtemp(folder));
	(void)snprintf(text, sizeof(text), "%s/kvcellar-plugin-tape.so", folder);
	write_file(text, "", 0);
	(void)snprintf(
		text, sizeof(text),
		"plugin_dir = \"%s\"\n[plugin.Tape]\nactive = true\nreels = 3\nfast = true\n",
		folder);
	settings = settings_of(text);
	assert_candidates(settings, "tape");
	assert_false(settings->candidates[0].table_known);
	assert_true(settings->candidates[0].valid);
	assert_int_equal(settings->candidates[0].setting_count, 2);
	assert_string_equal(candidate_setting(&settings->candidates[0], "reels"), "3");
	assert_string_equal(candidate_setting(&settings->candidates[0], "fast"), "true");
	kvc_settings_free(settings);
	setenv("KVCELLAR_PLUGIN", "TAPE", 1);
	(void)snprintf(text, sizeof(text), "plugin_dir = \"%s\"\nreels = 4\n", folder);
	settings = settings_of(text);
	assert_int_equal(settings->selection, KVC_SELECTION_ENV);
	assert_candidates(settings, "tape");
	assert_string_equal(candidate_setting(&settings->candidates[0], "reels"), "4");
	kvc_settings_free(settings);
	forget_environment();
	assert_contains(error_of(text), "\"reels\"");
	(void)snprintf(text, sizeof(text), "plugin_dir = \"%s\"\n[plugin.tap]\nreels = 3\n",
		       folder);
	assert_contains(error_of(text), "\"plugin.tap\"");
	(void)snprintf(text, sizeof(text), "plugin_dir = \"%s\"\n[plugin.\"../tape\"]\n", folder);
	assert_contains(error_of(text), "unknown key");
	(void)snprintf(text, sizeof(text), "rm -rf %s", folder);
	assert_int_equal(system(text), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults_of_the_top_level),
		cmocka_unit_test(test_defaults_of_the_seed),
		cmocka_unit_test(test_defaults_of_our_own),
		cmocka_unit_test(test_r50_misspelt_keys),
		cmocka_unit_test(test_without_strict_unknown_keys_warn),
		cmocka_unit_test(test_sglang_keys_are_tolerated),
		cmocka_unit_test(test_sglang_keys_have_types),
		cmocka_unit_test(test_r50_selection),
		cmocka_unit_test(test_r50_the_seeds_sample_file_loads),
		cmocka_unit_test(test_r50_secrete_key_and_secret_key),
		cmocka_unit_test(test_flat_keys_belong_to_the_selected_plugin),
		cmocka_unit_test(test_one_engine_at_most),
		cmocka_unit_test(test_watermarks),
		cmocka_unit_test(test_storage_layout),
		cmocka_unit_test(test_virtual_addressing),
		cmocka_unit_test(test_storage_dirs),
		cmocka_unit_test(test_files_in_the_folder_of_a_root),
		cmocka_unit_test(test_fault_on_fault),
		cmocka_unit_test(test_absent_and_empty_differ),
		cmocka_unit_test(test_mode),
		cmocka_unit_test(test_nixl_params_go_through),
		cmocka_unit_test(test_plugins_of_others),
	};

	return cmocka_run_group_tests(tests, no_environment, NULL);
}
