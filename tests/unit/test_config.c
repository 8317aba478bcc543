/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: formats, files, merging, order (R51). */
#include "config_helper.h"

#include <sys/stat.h>

static char folder[64];

static int make_folder(void **state)
{
	(void)state;
	forget_environment();
	(void)snprintf(folder, sizeof(folder), "/tmp/kvc-config-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	char command[128];

	(void)state;
	(void)snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

static const char *file_with(const char *name, const void *text, size_t bytes)
{
	static char path[160];

	(void)snprintf(path, sizeof(path), "%s/%s", folder, name);
	write_file(path, text, bytes);
	return path;
}

static const char toml_text[] = "# a comment\n"
				"use_direct_io = false\n"
				"l3_cleaner_high_watermark = 90.5\n"
				"get_timeout_ms = 1000\n"
				"storage_dirs = [\"/a\", \"/b\"]\n"
				"identity = \"caf\u00e9\"\n"
				"[plugin.obj]\n"
				"bucket = 'x'\n"
				"num_threads = 7\n"
				"[plugin.posix]\n"
				"use_uring = \"true\"\n"
				"active = true\n";
static const char json_text[] = "{\"use_direct_io\": false, \"l3_cleaner_high_watermark\": 90.5,"
				" \"get_timeout_ms\": 1000, \"storage_dirs\": [\"/a\", \"/b\"],"
				" \"identity\": \"caf\\u00e9\", \"plugin\": {\"obj\": {\"bucket\":"
				" \"x\", \"num_threads\": 7}, \"posix\": {\"use_uring\": \"true\","
				" \"active\": true}}}";
static const char yaml_text[] = "---\n"
				"use_direct_io: false\n"
				"l3_cleaner_high_watermark: 90.5\n"
				"get_timeout_ms: 1000\n"
				"storage_dirs:\n- /a\n- \"/b\"\n"
				"identity: \"caf\\xe9\"\n"
				"plugin:\n"
				"  obj: {bucket: x, num_threads: 7}\n"
				"  posix:\n"
				"    use_uring: 'true' # as a text\n"
				"    active: true\n";

/* The same content in three formats, from a text and from a file, gives one tree, in one order. */
static void test_formats_agree(void **state)
{
	static const struct {
		const char *name;
		const char *text;
		int format;
	} cases[] = {
		{ "a.toml", toml_text, KVC_CONFIG_TOML }, { "a.json", json_text, KVC_CONFIG_JSON },
		{ "a.yaml", yaml_text, KVC_CONFIG_YAML }, { "a.yml", yaml_text, KVC_CONFIG_YAML },
		{ "b.TOML", toml_text, KVC_CONFIG_AUTO }, { "toml", toml_text, KVC_CONFIG_AUTO },
		{ "json", json_text, KVC_CONFIG_AUTO },	  { "yaml", yaml_text, KVC_CONFIG_AUTO }
	};
	struct kvc_config *first = load(json_text, KVC_CONFIG_JSON), *config;
	char *expected = json_dumps(first->tree, JSON_COMPACT), *found;
	char at_path[200];
	const char *path;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		config = load(cases[i].text, cases[i].format);
		found = json_dumps(config->tree, JSON_COMPACT);
		assert_string_equal(found, expected);
		free(found);
		kvc_config_free(config);

		path = file_with(cases[i].name, cases[i].text, strlen(cases[i].text));
		(void)snprintf(at_path, sizeof(at_path), "@%s\n", path);
		for (int way = 0; way < 2; way++) {
			config = new_config();
			assert_int_equal(way == 0 ? kvc_config_load_file(config, path) :
						    kvc_config_load_text(config, at_path,
									 strlen(at_path),
									 KVC_CONFIG_AUTO, NULL),
					 0);
			found = json_dumps(config->tree, JSON_COMPACT);
			assert_string_equal(found, expected);
			free(found);
			kvc_config_free(config);
		}
	}
	free(expected);
	kvc_config_free(first);
}

/* toml++ sorts by key; the file's order decides which plugin is tried first. */
static void test_sections_keep_file_order(void **state)
{
	static const char *const texts[] = {
		"[plugin.posix]\nactive=true\n[plugin.gds]\nactive=true\n[plugin.3fs]\n"
		"mount_point='/m'\nactive=true\n",
		"plugin.posix.active = true\nplugin.gds.active = true\n"
		"plugin.3fs = {active = true, mount_point = '/m'}\n",
		"plugin = {posix = {active=true}, gds = {active=true},"
		" 3fs = {active=true, mount_point='/m'}}\n",
		"{\"plugin\":{\"posix\":{\"active\":1},\"gds\":{\"active\":\"yes\"},"
		"\"3fs\":{\"active\":true,\"mount_point\":\"/m\"}}}",
		"plugin:\n posix: {active: true}\n gds: {active: on}\n"
		" HF3FS: {active: true, mount_point: /m}\n",
	};
	struct kvc_settings *settings;

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		settings = settings_of(texts[i]);
		assert_candidates(settings, "posix gds 3fs");
		assert_int_equal(settings->selection, KVC_SELECTION_CONFIG);
		kvc_settings_free(settings);
	}
}

static void test_r51_bom_and_line_ends(void **state)
{
	static const char *const texts[] = {
		"\xef\xbb\xbfuse_direct_io = false\r\n[plugin.posix]\r\nuse_aio = true\r\n",
		("\xef\xbb\xbf{\"use_direct_io\":\r\n false, \"plugin\": {\"posix\":\r\n"
		 "{\"use_aio\": true}}}\r\n"),
		"\xef\xbb\xbfuse_direct_io: false\r\nplugin:\r\n  posix:\r\n    use_aio: true\r\n",
	};
	struct kvc_settings *settings;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		settings = settings_of(texts[i]);
		assert_false(settings->use_direct_io);
		assert_string_equal(candidate_setting(candidate_of(settings, "posix"), "use_aio"),
				    "true");
		kvc_settings_free(settings);
	}
	assert_contains(error_of_format("\xff\xfe{\0}\0", 6, KVC_CONFIG_AUTO), "UTF-16");
}

static void test_r51_empty_texts(void **state)
{
	static const char *const texts[] = { "",	"\n", "# only a comment\n",
					     "---\n",	"{}", "\xef\xbb\xbf",
					     " \r\n\t", "~" };
	struct kvc_config *config;
	const char *path;

	(void)state;
	for (int format = KVC_CONFIG_AUTO; format <= KVC_CONFIG_YAML; format++) {
		config = load("", format);
		assert_int_equal(kvc_config_check(config), 0);
		kvc_config_free(config);
	}
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		config = load(texts[i], i == 7 ? KVC_CONFIG_YAML : KVC_CONFIG_AUTO);
		assert_int_equal(json_object_size(config->tree), 0);
		kvc_config_free(config);
	}
	path = file_with("empty.toml", "", 0);
	config = new_config();
	assert_int_equal(kvc_config_load_file(config, path), 0);
	kvc_config_free(config);
}

static void test_r51_files_that_cannot_be_read(void **state)
{
	struct kvc_config *config = new_config();
	char path[160];
	char *big;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/absent.toml", folder);
	assert_int_equal(kvc_config_load_file(config, path), -ENOENT);
	assert_contains(kvc_last_error(), path);
	assert_int_equal(kvc_config_load_file(config, folder), -EISDIR);
	assert_contains(kvc_last_error(), folder);
	assert_int_equal(kvc_config_load_text(config, "@", 1, KVC_CONFIG_AUTO, NULL), -ENOENT);
	big = calloc(1, (1 << 20) + 1);
	memset(big, '\n', (1 << 20) + 1);
	assert_int_equal(kvc_config_load_file(config, file_with("big.toml", big, (1 << 20) + 1)),
			 -EFBIG);
	assert_contains(kvc_last_error(), "big.toml");
	assert_int_equal(kvc_config_load_file(config, file_with("full.toml", big, 1 << 20)), 0);
	free(big);
	assert_int_equal(kvc_config_load_file(config, "/dev/zero"), -EFBIG);
	kvc_config_free(config);
}

static void test_r51_syntax_errors_tell_the_line(void **state)
{
	static const struct {
		const char *text;
		int format;
		const char *pieces[2];
	} cases[] = {
		{ "a = 1\nb = \n", KVC_CONFIG_TOML, { "line 2", "TOML" } },
		{ "a = 1\nb = 2\na = 3\n", KVC_CONFIG_TOML, { "line 3", "redefine" } },
		{ "[plugin.posix]\n[plugin.posix]\n", KVC_CONFIG_TOML, { "line 2", "redefine" } },
		{ "{\"a\": 1,\n\"b\" 2}", KVC_CONFIG_JSON, { "line 2", "JSON" } },
		{ "{\"a\": 1,\n\"a\": 2}", KVC_CONFIG_JSON, { "line 2", "duplicate" } },
		{ "{\"a\": 1} x", KVC_CONFIG_JSON, { "line 1", "JSON" } },
		{ "{\"a\": 9223372036854775808}", KVC_CONFIG_JSON, { "line 1", "big" } },
		{ "a: 1\nb: [\n", KVC_CONFIG_YAML, { "line 3", "YAML" } },
		{ "a: 1\nb: 2\na: 3\n", KVC_CONFIG_YAML, { "line 3", "duplicate" } },
		{ "a: &x 1\nb: *x\n", KVC_CONFIG_YAML, { "line 1", "anchors" } },
		{ "b: *x\n", KVC_CONFIG_YAML, { "line 1", "aliases" } },
		{ "a: 1\n---\nb: 1\n", KVC_CONFIG_YAML, { "line 2", "second document" } },
		{ "? [a]\n: 1\n", KVC_CONFIG_YAML, { "line 1", "key" } },
		{ "a: !!python/object 1\n", KVC_CONFIG_YAML, { "line 1", "tag" } },
		{ "a: !x 1\n", KVC_CONFIG_YAML, { "line 1", "tags" } },
		{ "a: 99999999999999999999\n", KVC_CONFIG_YAML, { "line 1", "64 bits" } },
		{ "[1]", KVC_CONFIG_JSON, { "outermost", "table" } },
		{ "- a\n", KVC_CONFIG_AUTO, { "outermost", "table" } },
		{ "\"a\"", KVC_CONFIG_YAML, { "outermost", "table" } },
		{ "\"a\\u0000b\" = 1\n", KVC_CONFIG_TOML, { "key", "NUL" } },
		{ "a1234567890123456789012345678901234567890123456789012345678901234567890123456789"
		  "01234567890123456: 1\n",
		  KVC_CONFIG_YAML,
		  { "key", "longer than 96" } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *error =
			error_of_format(cases[i].text, strlen(cases[i].text), cases[i].format);

		assert_contains(error, cases[i].pieces[0]);
		assert_contains(error, cases[i].pieces[1]);
	}
}

/* 64 levels are read, 100 are an error with a line, 100000 are no crash and take no time. */
static void test_r51_deep_nesting(void **state)
{
	static const size_t depths[] = { 100, 300, 3000, 100000 };
	char *text = malloc(700000);

	(void)state;
	for (int format = KVC_CONFIG_TOML; format <= KVC_CONFIG_YAML; format++) {
		const char *start = format == KVC_CONFIG_TOML ? "\na = " :
				    format == KVC_CONFIG_JSON ? "\n{\"a\": " :
								"\na: ";
		size_t used = strlen(start);

		for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
			memcpy(text, start, used);
			memset(text + used, '[', depths[i]);
			memset(text + used + depths[i], ']', depths[i]);
			text[used + 2 * depths[i]] = '}';
			assert_contains(
				error_of_format(text,
						used + 2 * depths[i] + (format == KVC_CONFIG_JSON),
						format),
				"line 2");
		}
		memset(text + used, '[', 63);
		memset(text + used + 63, ']', 63);
		text[used + 126] = '}';
		assert_contains(error_of_format(text, used + 126 + (format == KVC_CONFIG_JSON),
						format),
				"unknown key \"a\"");
	}
	free(text);
}

static void test_later_keys_win(void **state)
{
	struct kvc_config *config = load("use_direct_io = false\nget_timeout_ms = 1\n"
					 "[plugin.posix]\nuse_uring = true\nios_pool_size = 5\n",
					 KVC_CONFIG_TOML);
	static const char second[] = "{\"get_timeout_ms\": 2, \"plugin\": {\"POSIX\": "
				     "{\"use_uring\": null, \"kernel_queue_size\": 6}}}";
	struct kvc_settings *settings = NULL;
	const struct kvc_candidate *posix;

	(void)state;
	assert_int_equal(
		kvc_config_load_text(config, second, strlen(second), KVC_CONFIG_JSON, "second"), 0);
	assert_int_equal(kvc_config_set(config, "set_timeout_ms", "3"), 0);
	assert_int_equal(kvc_config_set(config, "plugin.Posix.ios_pool_size", "7"), 0);
	assert_int_equal(kvc_config_set(config, "exists_timeout_ms", "9"), 0);
	assert_int_equal(kvc_config_set(config, "exists_timeout_ms", NULL), 0);
	assert_int_equal(kvc_config_resolve(config, &settings), 0);
	assert_false(settings->use_direct_io);
	assert_int_equal(settings->get_timeout_ms, 2);
	assert_int_equal(settings->set_timeout_ms, 3);
	assert_int_equal(settings->exists_timeout_ms, 2000);
	posix = candidate_of(settings, "posix");
	assert_string_equal(candidate_setting(posix, "use_uring"), "false");
	assert_string_equal(candidate_setting(posix, "ios_pool_size"), "7");
	assert_string_equal(candidate_setting(posix, "kernel_queue_size"), "6");
	kvc_settings_free(settings);
	kvc_config_free(config);
}

static void test_failed_load_changes_nothing(void **state)
{
	struct kvc_config *config = load("get_timeout_ms = 5\n", KVC_CONFIG_TOML);
	static const char bad[] = "get_timeout_ms = 6\n[plugin.posix]\n[plugin.POSIX]\n";
	char *before = json_dumps(config->tree, 0), *after;

	(void)state;
	assert_int_equal(kvc_config_load_text(config, bad, strlen(bad), KVC_CONFIG_TOML, "x"),
			 -EINVAL);
	assert_contains(kvc_last_error(), "plugin.posix is given twice");
	assert_int_equal(kvc_config_set(config, "get_timeout_ms", "soon"), -EINVAL);
	assert_contains(kvc_last_error(), "get_timeout_ms");
	after = json_dumps(config->tree, 0);
	assert_string_equal(before, after);
	free(before);
	free(after);
	kvc_config_free(config);
}

static void test_set_refuses_what_is_no_path(void **state)
{
	static const char *const paths[] = { "", ".", "a.", ".a", "a..b", "a.b.c.d.e", "\xff" };
	struct kvc_config *config = new_config();

	(void)state;
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		assert_int_equal(kvc_config_set(config, paths[i], "1"), -EINVAL);
	assert_int_equal(kvc_config_set(config, NULL, "1"), -EINVAL);
	assert_int_equal(kvc_config_set(NULL, "a", "1"), -EINVAL);
	assert_int_equal(kvc_config_set(config, "tenant", "\xff"), -EINVAL);
	assert_int_equal(json_object_size(config->tree), 0);
	kvc_config_free(config);
}

static void test_set_refuses_an_unknown_key(void **state)
{
	struct kvc_config *config = new_config();

	(void)state;
	assert_int_equal(kvc_config_set(config, "plugin.posix.use_urign", "true"), -EINVAL);
	assert_contains(kvc_last_error(), "use_uring");
	assert_int_equal(kvc_config_set(config, "get_timeout", "1"), -EINVAL);
	assert_contains(kvc_last_error(), "get_timeout_ms");
	assert_int_equal(kvc_config_check(config), 0);
	kvc_config_free(config);
}

static void test_yaml_core_schema(void **state)
{
	struct kvc_config *config = load("a: [off, No, 0o17, 0x1F, -5, +5, .5, 1e3, .inf, \"1\", "
					 "!!str 1, ~, null, True, 010, 1_000, 12:30]\n"
					 "b: !!float 1\nc: |\n  x\n  y\n",
					 KVC_CONFIG_YAML);
	char *found = json_dumps(config->tree, JSON_COMPACT);

	(void)state;
	assert_string_equal(found, "{\"a\":[\"off\",\"No\",15,31,-5,5,0.5,1000.0,\".inf\",\"1\","
				   "\"1\",null,null,true,10,\"1_000\",\"12:30\"],\"b\":1,"
				   "\"c\":\"x\\ny\\n\"}");
	free(found);
	kvc_config_free(config);
}

static void test_formats_are_told_apart(void **state)
{
	static const struct {
		const char *text;
		const char *tree;
	} cases[] = {
		{ "identity = \"a: b\"", "{\"identity\":\"a: b\"}" },
		{ "identity: a = b", "{\"identity\":\"a = b\"}" },
		{ "# x = 1\nidentity: b", "{\"identity\":\"b\"}" },
		{ "# x: 1\n  identity = 'b'", "{\"identity\":\"b\"}" },
		{ "\n\n  {\"identity\": \"b\"}", "{\"identity\":\"b\"}" },
		{ "[plugin.posix]", "{\"plugin\":{\"posix\":{}}}" },
		{ "\"identity\": 'b'", "{\"identity\":\"b\"}" },
		{ "\"identity\" = 'b'", "{\"identity\":\"b\"}" },
		{ "%YAML 1.1\n---\nidentity: b\n", "{\"identity\":\"b\"}" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kvc_config *config = load(cases[i].text, KVC_CONFIG_AUTO);
		char *found = json_dumps(config->tree, JSON_COMPACT);

		assert_string_equal(found, cases[i].tree);
		free(found);
		kvc_config_free(config);
	}
}

static void test_free_takes_null(void **state)
{
	(void)state;
	kvc_config_free(NULL);
	kvc_settings_free(NULL);
	assert_int_equal(kvc_config_new(NULL), -EINVAL);
	assert_int_equal(kvc_config_check(NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_formats_agree),
		cmocka_unit_test(test_sections_keep_file_order),
		cmocka_unit_test(test_r51_bom_and_line_ends),
		cmocka_unit_test(test_r51_empty_texts),
		cmocka_unit_test(test_r51_files_that_cannot_be_read),
		cmocka_unit_test(test_r51_syntax_errors_tell_the_line),
		cmocka_unit_test(test_r51_deep_nesting),
		cmocka_unit_test(test_later_keys_win),
		cmocka_unit_test(test_failed_load_changes_nothing),
		cmocka_unit_test(test_set_refuses_what_is_no_path),
		cmocka_unit_test(test_set_refuses_an_unknown_key),
		cmocka_unit_test(test_yaml_core_schema),
		cmocka_unit_test(test_formats_are_told_apart),
		cmocka_unit_test(test_free_takes_null),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
