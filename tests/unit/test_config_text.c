/* SPDX-License-Identifier: Apache-2.0 */
/* Texts made from the tables: the sample file, docs/config.md, the option list. With
 * KVC_UPDATE_GENERATED set, the copies in the source tree are written anew first. */
#include "config_helper.h"

#define SAMPLE_PATH KVC_TEST_SOURCE_DIR "/../kvcellar.toml.sample"
#define DOC_PATH    KVC_TEST_SOURCE_DIR "/../docs/config.md"
#define BEGIN_MARK  "<!-- generated from the option tables: begin -->\n"
#define END_MARK    "<!-- generated from the option tables: end -->\n"

static void test_sample_is_up_to_date(void **state)
{
	char *expected = described(NULL, KVC_DESCRIBE_SAMPLE), *found;

	(void)state;
	if (getenv("KVC_UPDATE_GENERATED"))
		write_file(SAMPLE_PATH, expected, strlen(expected));
	found = read_whole(SAMPLE_PATH);
	if (strcmp(found, expected) != 0)
		fail_msg("kvcellar.toml.sample is not what `kvcellar config sample` prints");
	free(found);
	free(expected);
}

static void test_sample_loads(void **state)
{
	struct kvc_config *config = new_config();
	struct kvc_settings *settings = NULL;

	(void)state;
	assert_int_equal(kvc_config_load_file(config, SAMPLE_PATH), 0);
	assert_int_equal(kvc_config_resolve(config, &settings), 0);
	assert_int_equal(settings->warning_count, 0);
	assert_int_equal(settings->selection, KVC_SELECTION_AUTO);
	kvc_settings_free(settings);
	kvc_config_free(config);
}

/* Each commented line on its own is a valid line of a file: key and value are right. */
static void test_each_line_of_the_sample_is_valid(void **state)
{
	char *sample = described(NULL, KVC_DESCRIBE_SAMPLE), *rest = sample, *line, *key;
	char section[128] = "", text[1024];
	unsigned keys = 0;

	(void)state;
	while ((line = strsep(&rest, "\n")) != NULL) {
		if (line[0] == '[') {
			(void)snprintf(section, sizeof(section), "%s", line);
			continue;
		}
		if (strncmp(line, "# ", 2) != 0)
			continue;
		key = line + 2;
		if (strncmp(key + strspn(key, "abcdefghijklmnopqrstuvwxyzCML_0123456789"), " = ",
			    3))
			continue;
		(void)snprintf(text, sizeof(text), "%s\n%s\n", section, key);
		kvc_settings_free(settings_of(text));
		keys++;
	}
	for (size_t i = 0; i < kvc_section_count; i++)
		keys -= (unsigned)kvc_sections[i].option_count + 1;
	/* nixl's params is a table and has no row */
	assert_int_equal(keys, kvc_top_option_count + 1);
	free(sample);
}

static void test_document_is_up_to_date(void **state)
{
	char *table = described(NULL, KVC_DESCRIBE_OPTIONS_MARKDOWN);
	char *document = read_whole(DOC_PATH), *begin, *end;
	FILE *file;

	(void)state;
	begin = strstr(document, BEGIN_MARK);
	end = strstr(document, END_MARK);
	assert_non_null(begin);
	assert_non_null(end);
	begin += strlen(BEGIN_MARK);
	if (getenv("KVC_UPDATE_GENERATED")) {
		file = fopen(DOC_PATH, "wb");
		assert_non_null(file);
		(void)fprintf(file, "%.*s%s%s", (int)(begin - document), document, table, end);
		(void)fclose(file);
	} else if ((size_t)(end - begin) != strlen(table) ||
		   memcmp(begin, table, strlen(table)) != 0) {
		fail_msg("docs/config.md is not what `kvcellar config options --markdown` prints");
	}
	free(document);
	free(table);
}

static void test_document_names_each_seed_variable(void **state)
{
	char *document = read_whole(DOC_PATH);

	(void)state;
	for (size_t i = 0; i < kvc_seed_variable_count; i++) {
		assert_contains(document, kvc_seed_variables[i].variable);
		assert_contains(document, kvc_seed_variables[i].path);
	}
	free(document);
}

static void test_options_json(void **state)
{
	char *text = described(NULL, KVC_DESCRIBE_OPTIONS_JSON);
	json_t *list = json_loads(text, 0, NULL), *entry;
	size_t expected = kvc_top_option_count, i, secrets = 0;

	(void)state;
	assert_true(json_is_array(list));
	for (i = 0; i < kvc_section_count; i++)
		expected += kvc_sections[i].option_count + 1;
	assert_int_equal(json_array_size(list), expected);
	json_array_foreach(list, i, entry)
	{
		assert_true(json_is_string(json_object_get(entry, "path")));
		assert_true(json_string_length(json_object_get(entry, "help")) > 10);
		assert_true(json_is_string(json_object_get(entry, "env")));
		secrets += json_is_true(json_object_get(entry, "secret"));
	}
	assert_int_equal(secrets, 6);
	json_decref(list);
	free(text);
}

static void test_option_list_names_everything(void **state)
{
	char *text = described(NULL, KVC_DESCRIBE_OPTIONS);

	(void)state;
	for (size_t i = 0; i < kvc_section_count; i++)
		for (size_t j = 0; j < kvc_sections[i].option_count; j++)
			assert_contains(text, kvc_sections[i].options[j].name);
	for (size_t i = 0; i < kvc_top_option_count; i++)
		assert_contains(text, kvc_top_options[i].help);
	free(text);
}

static json_t *options_of(const struct kvc_config *config)
{
	char *text = described(config, KVC_DESCRIBE_EFFECTIVE_JSON);
	json_t *document = json_loads(text, 0, NULL);
	json_t *options = json_incref(json_object_get(document, "options")), *entry;
	const char *name;

	json_object_foreach(options, name, entry)(void) json_object_del(entry, "origin");
	json_decref(document);
	free(text);
	return options;
}

/* What is shown, given back as a configuration, has the same effect. */
static void test_effective_text_reads_back(void **state)
{
	struct kvc_config *first = load("use_direct_io = false\ncapacity = \"80.5%\"\n"
					"identity = \"a\\\"\\\\\\n\u00e9\"\nmin_free = 4096\n"
					"l3_cleaner_low_watermark = 70.1\n[plugin.gds]\n"
					"batch_limit = 9\n",
					KVC_CONFIG_TOML);
	char *shown = described(first, KVC_DESCRIBE_EFFECTIVE);
	struct kvc_config *second = load(shown, KVC_CONFIG_TOML);
	json_t *expected = options_of(first), *found;

	(void)state;
	/* both are shown with their values, and cannot be given together */
	assert_int_equal(kvc_config_set(second, "io_engines", NULL), 0);
	found = options_of(second);
	assert_true(json_equal(expected, found));
	json_decref(expected);
	json_decref(found);
	kvc_config_free(first);
	kvc_config_free(second);
	free(shown);
}

static void test_effective_tells_origins(void **state)
{
	struct kvc_config *config = load("use_direct_io = false\nuse_uring = true\n"
					 "[plugin.posix]\nactive = true\n",
					 KVC_CONFIG_TOML);
	char *text;

	(void)state;
	assert_int_equal(
		kvc_config_load_text(config, "io_threads: 2", 13, KVC_CONFIG_YAML, "--extra"), 0);
	assert_int_equal(kvc_config_set(config, "tenant", "t"), 0);
	setenv("KVCELLAR_GET_TIMEOUT_MS", "9", 1);
	text = described(config, KVC_DESCRIBE_EFFECTIVE);
	forget_environment();
	assert_contains(text, "use_direct_io = false                            # inline\n");
	assert_contains(text, "io_threads = 2                                   # --extra\n");
	assert_contains(text,
			"tenant = \"t\"                                     # kvc_config_set");
	assert_contains(text, "# environment KVCELLAR_GET_TIMEOUT_MS\n");
	assert_contains(text, "set_timeout_ms = 8000                            # default\n");
	assert_contains(text, "use_uring = \"true\"                               # inline\n");
	assert_contains(text, "# identity = (not set)");
	free(text);
	kvc_config_free(config);
}

static void test_describe_is_like_snprintf(void **state)
{
	char buffer[16];
	int bytes = kvc_config_describe(NULL, KVC_DESCRIBE_SAMPLE, NULL, 0);

	(void)state;
	assert_true(bytes > 1000);
	memset(buffer, 'x', sizeof(buffer));
	assert_int_equal(kvc_config_describe(NULL, KVC_DESCRIBE_SAMPLE, buffer, 8), bytes);
	assert_string_equal(buffer, "# kvcel");
	assert_int_equal(buffer[8], 'x');
	assert_int_equal(kvc_config_describe(NULL, KVC_DESCRIBE_SAMPLE, NULL, 8), -EINVAL);
	assert_int_equal(kvc_config_describe(NULL, 99, NULL, 0), -EINVAL);
	assert_int_equal(kvc_config_describe(NULL, -1, NULL, 0), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sample_is_up_to_date),
		cmocka_unit_test(test_sample_loads),
		cmocka_unit_test(test_each_line_of_the_sample_is_valid),
		cmocka_unit_test(test_document_is_up_to_date),
		cmocka_unit_test(test_document_names_each_seed_variable),
		cmocka_unit_test(test_options_json),
		cmocka_unit_test(test_option_list_names_everything),
		cmocka_unit_test(test_effective_text_reads_back),
		cmocka_unit_test(test_effective_tells_origins),
		cmocka_unit_test(test_describe_is_like_snprintf),
	};

	return cmocka_run_group_tests(tests, no_environment, NULL);
}
