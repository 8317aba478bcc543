/* SPDX-License-Identifier: Apache-2.0 */
/* Precedence: configuration > KVCELLAR_* > the seed's variables > default. */
#include "config_helper.h"

#include <ctype.h>

static struct kvc_settings *resolved(const char *text)
{
	return settings_of(text);
}

static const char *env_error(void)
{
	struct kvc_settings *settings = NULL;

	if (kvc_config_resolve(NULL, &settings) == 0) {
		kvc_settings_free(settings);
		fail_msg("accepted");
	}
	return kvc_last_error();
}

static int clear(void **state)
{
	return no_environment(state);
}

/* docs/config.md's table: each row takes the place of the next. */
static void test_precedence_table(void **state)
{
	static const struct {
		const char *text; /* the configuration */
		const char *ours; /* KVCELLAR_USE_DIRECT_IO */
		const char *seed; /* SGLANG_HICACHE_NIXL_USE_DIRECT_IO */
		bool value;
		bool is_explicit;
	} rows[] = {
		{ "", NULL, NULL, true, false },
		{ "", NULL, "0", false, true },
		{ "", NULL, "1", true, true },
		{ "", "1", "0", true, true },
		{ "", "no", "1", false, true },
		{ "use_direct_io = true\n", "0", "0", true, true },
		{ "use_direct_io = false\n", "1", "1", false, true },
		{ "{\"use_direct_io\": null}", "0", NULL, false, true },
		{ "", "", "0", false, true },
		{ "", "", "", true, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct kvc_settings *settings;

		forget_environment();
		if (rows[i].ours)
			setenv("KVCELLAR_USE_DIRECT_IO", rows[i].ours, 1);
		if (rows[i].seed)
			setenv("SGLANG_HICACHE_NIXL_USE_DIRECT_IO", rows[i].seed, 1);
		settings = resolved(rows[i].text);
		if (settings->use_direct_io != rows[i].value ||
		    settings->use_direct_io_explicit != rows[i].is_explicit)
			fail_msg("row %zu", i);
		kvc_settings_free(settings);
	}
}

/* A value that differs from the default and is valid, for any row. */
static const char *other_value(const struct kvc_option *option)
{
	if (option->flags & KVC_OPTION_BOOL_STRING || strcmp(option->type, "boolean") == 0)
		return strcmp(option->default_value, "true") == 0 ? "false" : "true";
	if (strcmp(option->name, "mode") == 0)
		return "0640";
	if (strcmp(option->name, "storage_layout") == 0)
		return "files";
	if (strcmp(option->name, "mem_config") == 0 || strcmp(option->name, "io_engines") == 0)
		return strcmp(option->type, "list") == 0 ? "threads" : "auto";
	if (*option->range && strcmp(option->type, "string") == 0)
		return strrchr(option->range, '|') + 2;
	if (strcmp(option->name, "storage_dirs") == 0)
		return "/somewhere/else";
	if (strcmp(option->name, "tenant_shares") == 0)
		return "team=25%,other=1GiB";
	if (strcmp(option->name, "metrics_listen") == 0)
		return "127.0.0.1:9464";
	if (strcmp(option->name, "l3_cleaner_high_watermark") == 0)
		return "91.5";
	if (strcmp(option->name, "l3_cleaner_low_watermark") == 0)
		return "12.5";
	return strcmp(option->type, "string") == 0 ? "text" :
	       strcmp(option->type, "float") == 0  ? "2.5" :
						     "4097";
}

/* Which of two numbers is in range for an integer. */
static const char *other_valid_value(const struct kvc_option *option)
{
	const char *value = other_value(option);
	json_t *text = json_string(value), *checked = NULL;

	if (kvc_value_check(option, "x", text, &checked) < 0)
		value = "65";
	json_decref(checked);
	json_decref(text);
	return value;
}

static json_t *shown(const char *plugin, const char *name)
{
	char *text = described(NULL, KVC_DESCRIBE_EFFECTIVE_JSON);
	json_t *document = json_loads(text, 0, NULL), *entry;

	free(text);
	entry = plugin ? json_object_get(json_object_get(json_object_get(document, "plugins"),
							 plugin),
					 name) :
			 json_object_get(json_object_get(document, "options"), name);
	json_incref(entry);
	json_decref(document);
	return entry;
}

/* Every option has its variable, and the origin says so. */
static void check_variable(const char *plugin, const struct kvc_option *option)
{
	char path[KVC_PATH_BYTES], variable[KVC_PATH_BYTES], expected[KVC_PATH_BYTES + 16];
	json_t *entry, *value;
	char *found;

	(void)snprintf(path, sizeof(path), "%s%s%s%s", plugin ? "plugin." : "",
		       plugin ? plugin : "", plugin ? "." : "", option->name);
	kvc_env_name(variable, path);
	for (const char *p = variable; *p; p++)
		assert_true(isupper((unsigned char)*p) || isdigit((unsigned char)*p) || *p == '_');
	setenv(variable, other_valid_value(option), 1);
	entry = shown(plugin, option->name);
	(void)snprintf(expected, sizeof(expected), "environment %s", variable);
	if (!entry)
		fail_msg("%s is not shown", path);
	assert_string_equal(json_string_value(json_object_get(entry, "origin")), expected);
	value = json_object_get(entry, "value");
	found = kvc_value_text(value);
	assert_string_equal(found,
			    option->flags & KVC_OPTION_SECRET ? "***" : other_valid_value(option));
	free(found);
	json_decref(entry);
	unsetenv(variable);
}

static void test_every_option_has_a_variable(void **state)
{
	(void)state;
	for (size_t i = 0; i < kvc_top_option_count; i++)
		check_variable(NULL, &kvc_top_options[i]);
	for (size_t i = 0; i < kvc_section_count; i++)
		for (size_t j = 0; j < kvc_sections[i].option_count; j++)
			check_variable(kvc_sections[i].name, &kvc_sections[i].options[j]);
}

static void test_seed_variables(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", "/a/1, /a/2", 1);
	setenv("AWS_DEFAULT_BUCKET", "pool", 1);
	setenv("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", "OBJ", 1);
	settings = resolved("");
	assert_int_equal(settings->storage_dir_count, 2);
	assert_string_equal(settings->storage_dirs[1], "/a/2");
	assert_false(settings->storage_dirs_default);
	assert_int_equal(settings->selection, KVC_SELECTION_ENV);
	assert_candidates(settings, "obj");
	assert_true(settings->candidates[0].valid);
	assert_string_equal(candidate_setting(&settings->candidates[0], "bucket"), "pool");
	kvc_settings_free(settings);

	setenv("KVCELLAR_PLUGIN_OBJ_BUCKET", "ours", 1);
	setenv("KVCELLAR_STORAGE_DIRS", "/b", 1);
	setenv("KVCELLAR_PLUGIN", "gds_MT", 1);
	settings = resolved("");
	assert_int_equal(settings->storage_dir_count, 1);
	assert_candidates(settings, "gds_mt");
	assert_string_equal(candidate_setting(kvc_settings_section(settings, "obj"), "bucket"),
			    "ours");
	kvc_settings_free(settings);

	settings = resolved("storage_dirs = '/c,/d'\n[plugin.obj]\nbucket = 'c'\n"
			    "[plugin.posix]\nactive = true\n");
	assert_int_equal(settings->storage_dir_count, 2);
	assert_candidates(settings, "posix");
	assert_string_equal(candidate_setting(kvc_settings_section(settings, "obj"), "bucket"),
			    "c");
	kvc_settings_free(settings);

	setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", "/a/1,/a//1/", 1);
	unsetenv("KVCELLAR_STORAGE_DIRS");
	assert_contains(env_error(), "the same folder");
	setenv("SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", "/a/1,", 1);
	assert_contains(env_error(), "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR");
}

static void test_plugin_by_environment(void **state)
{
	static const char *const names[][2] = {
		{ "POSIX", "posix" }, { "posix", "posix" },   { "3FS", "3fs" },
		{ "HF3FS", "3fs" },   { "GDS_MT", "gds_mt" }, { "AZURE_BLOB", "azure_blob" },
		{ "mem", "mem" }
	};
	struct kvc_settings *settings;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		setenv("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", names[i][0], 1);
		settings = resolved("");
		assert_candidates(settings, names[i][1]);
		assert_int_equal(settings->selection, KVC_SELECTION_ENV);
		kvc_settings_free(settings);
	}
	setenv("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", "Auto", 1);
	settings = resolved("");
	assert_int_equal(settings->selection, KVC_SELECTION_AUTO);
	kvc_settings_free(settings);
	setenv("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", "POSX", 1);
	assert_contains(env_error(), "\"POSX\"; did you mean \"POSIX\"?");
	assert_contains(kvc_last_error(), "SGLANG_HICACHE_NIXL_BACKEND_PLUGIN");
	setenv("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", "../x", 1);
	assert_contains(env_error(), "no plugin");

	/* the seed's inline form: the environment names the plugin, the keys are flat */
	setenv("SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", "POSIX", 1);
	settings = resolved("{\"use_direct_io\": false, \"use_uring\": \"true\"}");
	assert_candidates(settings, "posix");
	assert_string_equal(candidate_setting(&settings->candidates[0], "use_uring"), "true");
	kvc_settings_free(settings);
	settings = resolved("{\"bucket\": \"b\"}");
	assert_false(settings->candidates[0].valid);
	assert_contains(settings->candidates[0].reason, "bucket");
	kvc_settings_free(settings);
	settings = resolved("{\"bucket\": \"b\", \"strict\": false, "
			    "\"l3_cleaner_enabled\": false}");
	assert_true(settings->candidates[0].valid);
	assert_int_equal(settings->warning_count, 1);
	kvc_settings_free(settings);
}

static void test_sections_by_environment(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	setenv("KVCELLAR_PLUGIN_GDS_ACTIVE", "yes", 1);
	setenv("KVCELLAR_PLUGIN_POSIX_USE_AIO", "true", 1);
	settings = resolved("[plugin.posix]\nactive = true\n");
	assert_candidates(settings, "posix gds");
	assert_string_equal(candidate_setting(&settings->candidates[0], "use_aio"), "true");
	kvc_settings_free(settings);
	setenv("KVCELLAR_IO_ENGINES", "threads", 1);
	assert_contains(env_error(), "io_engines");
	unsetenv("KVCELLAR_IO_ENGINES");
	setenv("KVCELLAR_PLUGIN_POSIX_USE_AIO", "maybe", 1);
	assert_contains(env_error(), "KVCELLAR_PLUGIN_POSIX_USE_AIO");
	/* a flat key is configuration too, and wins */
	setenv("KVCELLAR_PLUGIN_POSIX_USE_AIO", "true", 1);
	settings = resolved("use_aio = false\n[plugin.posix]\nactive = true\n");
	assert_string_equal(candidate_setting(&settings->candidates[0], "use_aio"), "false");
	kvc_settings_free(settings);
}

static void test_empty_variables(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	setenv("KVCELLAR_TENANT", "", 1);
	setenv("KVCELLAR_CAPACITY", "", 1);
	setenv("KVCELLAR_NAMING", "", 1);
	setenv("KVCELLAR_STORAGE_DIRS", "", 1);
	setenv("KVCELLAR_PLUGIN", "", 1);
	settings = resolved("");
	assert_string_equal(settings->tenant, "");
	assert_null(settings->identity);
	assert_int_equal(settings->selection, KVC_SELECTION_AUTO);
	assert_true(settings->storage_dirs_default);
	kvc_settings_free(settings);
}

/* A variable can only be a text; the list that a file would hold is read from it as well. */
static void test_lists_in_brackets(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	setenv("KVCELLAR_STORAGE_DIRS", " [\"/s\", \"/h,i\"]", 1);
	settings = resolved("");
	assert_int_equal(settings->storage_dir_count, 2);
	assert_string_equal(settings->storage_dirs[0], "/s");
	assert_string_equal(settings->storage_dirs[1], "/h,i");
	kvc_settings_free(settings);
	setenv("KVCELLAR_STORAGE_DIRS", "./[a", 1);
	settings = resolved("");
	assert_string_equal(settings->storage_dirs[0], "./[a");
	kvc_settings_free(settings);
	setenv("KVCELLAR_STORAGE_DIRS", "[]", 1);
	assert_contains(env_error(), "the list is empty");
	setenv("KVCELLAR_STORAGE_DIRS", "[\"/s\", 5]", 1);
	assert_contains(env_error(), "a list of texts");
	setenv("KVCELLAR_STORAGE_DIRS", "[/s,/h]", 1);
	assert_contains(env_error(), "KVCELLAR_STORAGE_DIRS: \"[/s,/h]\" begins as a list");
}

static void test_unknown_variables_warn(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	setenv("KVCELLAR_L3_CLEANER_ENABLED", "false", 1);
	setenv("KVCELLAR_USE_DIRECT_OI", "hush", 1);
	settings = resolved("");
	assert_int_equal(settings->warning_count, 1);
	assert_contains(settings->warnings[0], "KVCELLAR_USE_DIRECT_IO?");
	assert_lacks(settings->warnings[0], "hush");
	kvc_settings_free(settings);
	unsetenv("KVCELLAR_USE_DIRECT_OI");
	setenv("KVCELLAR_CONFIG", "/etc/kvcellar.toml", 1); /* no such variable */
	settings = resolved("");
	assert_int_equal(settings->warning_count, 1);
	kvc_settings_free(settings);
}

/* Variables that the Python package reads belong to it; misspelt ones to nobody. */
static void test_variables_of_the_adapter(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	setenv("KVCELLAR_L3_CLEANER_ENABLED", "false", 1);
	setenv("KVCELLAR_SGLANG_REDIRECT_NIXL", "1", 1);
	settings = resolved("");
	assert_int_equal(settings->warning_count, 0);
	kvc_settings_free(settings);
	setenv("KVCELLAR_SGLANG_REDIRECT_NIX", "1", 1);
	settings = resolved("");
	assert_int_equal(settings->warning_count, 1);
	assert_contains(settings->warnings[0], "KVCELLAR_SGLANG_REDIRECT_NIXL?");
	kvc_settings_free(settings);
	unsetenv("KVCELLAR_SGLANG_REDIRECT_NIX");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_precedence_table, clear),
		cmocka_unit_test_setup(test_every_option_has_a_variable, clear),
		cmocka_unit_test_setup(test_seed_variables, clear),
		cmocka_unit_test_setup(test_plugin_by_environment, clear),
		cmocka_unit_test_setup(test_sections_by_environment, clear),
		cmocka_unit_test_setup(test_empty_variables, clear),
		cmocka_unit_test_setup(test_lists_in_brackets, clear),
		cmocka_unit_test_setup(test_unknown_variables_warn, clear),
		cmocka_unit_test_setup(test_variables_of_the_adapter, clear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
