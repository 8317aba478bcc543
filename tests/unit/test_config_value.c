/* SPDX-License-Identifier: Apache-2.0 */
/* One value against one row: booleans (R49), numbers, sizes, lists, names. */
#include "config_helper.h"

#include <locale.h>

/* The value of plugin.posix.use_uring and of l3_cleaner_enabled, written in each format. */
static void check_boolean(const char *in_toml, const char *in_json, const char *in_yaml,
			  const char *expected)
{
	static const char *const forms[] = {
		"l3_cleaner_enabled = %s\n[plugin.posix]\nuse_uring = %s\n",
		"{\"l3_cleaner_enabled\": %s, \"plugin\": {\"posix\": {\"use_uring\": %s}}}",
		"l3_cleaner_enabled: %s\nplugin:\n  posix:\n    use_uring: %s\n",
	};
	const char *const words[] = { in_toml, in_json, in_yaml };
	struct kvc_settings *settings;
	char text[256];

	for (size_t i = 0; i < 3; i++) {
		if (!words[i])
			continue;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		(void)snprintf(text, sizeof(text), forms[i], words[i], words[i]);
#pragma GCC diagnostic pop
		settings = settings_of(text);
		assert_int_equal(settings->l3_cleaner_enabled, strcmp(expected, "true") == 0);
		assert_string_equal(candidate_setting(kvc_settings_section(settings, "posix"),
						      "use_uring"),
				    expected);
		kvc_settings_free(settings);
	}
}

static void test_r49_booleans_follow_one_rule(void **state)
{
	static const char *const yes[] = { "true", "True", "TRUE", "yes", "Yes", "on", "ON", "1" };
	const char *const no[] = { "false", "False", "FALSE", "no", "No", "off", "OFF", "0" };
	char quoted[16];

	(void)state;
	check_boolean("true", "true", "true", "true");
	check_boolean("false", "false", "false", "false");
	check_boolean("1", "1", "1", "true");
	check_boolean("0", "0", "0", "false");
	for (size_t i = 0; i < 8; i++) {
		(void)snprintf(quoted, sizeof(quoted), "\"%s\"", yes[i]);
		check_boolean(quoted, quoted, quoted, "true");
		check_boolean(NULL, NULL, yes[i], "true");
		(void)snprintf(quoted, sizeof(quoted), "\"%s\"", no[i]);
		check_boolean(quoted, quoted, quoted, "false");
		check_boolean(NULL, NULL, no[i], "false");
	}
}

static void test_r49_nonsense_is_refused_with_its_path(void **state)
{
	static const char *const values[] = { "\"flase\"", "2",	     "-1", "1.0",   "\"\"",
					      "\"10\"",	   "[true]", "{}", "\"t\"", "\"true \"" };
	static const char *const forms[][2] = {
		{ "[plugin.posix]\nuse_uring = %s\n", "plugin.posix.use_uring" },
		{ "{\"plugin\": {\"posix\": {\"use_uring\": %s}}}", "plugin.posix.use_uring" },
		{ "plugin: {posix: {use_uring: %s}}", "plugin.posix.use_uring" },
		{ "use_direct_io = %s\n", "use_direct_io" },
		{ "{\"use_direct_io\": %s}", "use_direct_io" },
		{ "use_direct_io: %s\n", "use_direct_io" },
	};
	const char *error;
	char text[128];

	(void)state;
	for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
		for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
			(void)snprintf(text, sizeof(text), forms[f][0], values[i]);
#pragma GCC diagnostic pop
			error = error_of(text);
			assert_contains(error, forms[f][1]);
			assert_contains(error, "boolean");
		}
	}
	assert_contains(error_of("use_direct_io: flase\n"), "\"flase\"");
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		int rc;
		int64_t bytes;
	} cases[] = {
		{ "0", 0, 0 },
		{ "1", 0, 1 },
		{ "500GiB", 0, 536870912000 },
		{ "500 GiB", 0, 536870912000 },
		{ "500gib", 0, 536870912000 },
		{ "500G", 0, 536870912000 },
		{ "500GB", 0, 500000000000 },
		{ "1e9", 0, 1000000000 },
		{ "1.5MiB", 0, 1572864 },
		{ "4k", 0, 4096 },
		{ "4kB", 0, 4000 },
		{ "2TiB", 0, 2199023255552 },
		{ "1PiB", 0, 1125899906842624 },
		{ "9B", 0, 9 },
		{ "9223372036854775807", 0, INT64_MAX },
		{ "9223372036854775808", -ERANGE, 0 },
		{ "9000000PiB", -ERANGE, 0 },
		{ "1e30", -ERANGE, 0 },
		{ "", -EINVAL, 0 },
		{ "GiB", -EINVAL, 0 },
		{ "-1", -EINVAL, 0 },
		{ "-1.5k", -EINVAL, 0 },
		{ "5 parsecs", -EINVAL, 0 },
		{ "5GiBs", -EINVAL, 0 },
		{ "0x10", -EINVAL, 0 },
		{ "inf", -EINVAL, 0 },
		{ "nan", -EINVAL, 0 },
	};
	int64_t bytes;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bytes = -1;
		if (kvc_size_parse(cases[i].text, &bytes) != cases[i].rc ||
		    bytes != (cases[i].rc ? -1 : cases[i].bytes))
			fail_msg("%s: %lld", cases[i].text, (long long)bytes);
	}
}

static void test_shares_of_tenants(void **state)
{
	struct kvc_settings *settings = settings_of("tenant_shares = [\"a=b=30%\", \"=2GiB\"]\n");

	(void)state;
	assert_int_equal(settings->tenant_share_count, 2);
	assert_string_equal(settings->tenant_shares[0].tenant, "a=b");
	assert_true(settings->tenant_shares[0].share.percent > 29.9 &&
		    settings->tenant_shares[0].share.percent < 30.1);
	assert_string_equal(settings->tenant_shares[1].tenant, "");
	assert_int_equal(settings->tenant_shares[1].share.bytes, UINT64_C(2) << 30);
	kvc_settings_free(settings);
	settings = settings_of("");
	assert_int_equal(settings->tenant_share_count, 0);
	kvc_settings_free(settings);
	assert_contains(error_of("tenant_shares = \"a\"\n"), "\"a\" is not tenant=share");
	assert_contains(error_of("tenant_shares = \"a=0\"\n"), "outside >= 1");
	assert_contains(error_of("tenant_shares = \"a=101%\"\n"), "up to 100");
	assert_contains(error_of("tenant_shares = \"a=much\"\n"), "expected a size");
	assert_contains(error_of("tenant_shares = [\"a=1%\", \"b=2%\", \"a=3%\"]\n"),
			"\"a\" has two shares");
	assert_contains(error_of("naming = \"nixl\"\ntenant_shares = \"a=1%\"\n"),
			"does not tell tenants apart");
}

static void test_metrics_are_served_on_the_loopback_only(void **state)
{
	static const char *const good[] = { "127.0.0.1:9464", "127.9.9.9:0", "[::1]:65535",
					    "localhost:80" };
	static const char *const bad[] = { "127.0.0.1",
					   "127.0.0.1:",
					   "127.0.0.1:65536",
					   "127.0.0.1:9x",
					   "127.0.0.1:-1",
					   "9464",
					   ":",
					   "[::1]" };
	static const char *const outside[] = { "0.0.0.0:80",	 ":80",
					       "10.0.0.1:80",	 "[::]:80",
					       "example.org:80", "128.0.0.1:80",
					       "127.0.0:80" };
	char text[96];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		(void)snprintf(text, sizeof(text), "metrics_listen = \"%s\"\n", good[i]);
		kvc_settings_free(settings_of(text));
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		(void)snprintf(text, sizeof(text), "metrics_listen = \"%s\"\n", bad[i]);
		assert_contains(error_of(text), "is no address and port");
	}
	for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
		(void)snprintf(text, sizeof(text), "metrics_listen = \"%s\"\n", outside[i]);
		assert_contains(error_of(text), "not on the loopback");
	}
}

static void test_capacity_is_bytes_or_a_percentage(void **state)
{
	struct kvc_settings *settings;

	(void)state;
	settings = settings_of("capacity = \"500GiB\"\nmin_free = \"2.5%\"\n");
	assert_int_equal(settings->capacity.bytes, 536870912000);
	assert_true(settings->capacity.percent < 0.001);
	assert_true(settings->min_free.percent > 2.49 && settings->min_free.percent < 2.51);
	assert_int_equal(settings->min_free.bytes, 0);
	kvc_settings_free(settings);
	settings = settings_of("{\"capacity\": 1e9, \"min_free\": 4096}");
	assert_int_equal(settings->capacity.bytes, 1000000000);
	assert_int_equal(settings->min_free.bytes, 4096);
	kvc_settings_free(settings);
	assert_contains(error_of("capacity = \"101%\"\n"), "up to 100");
	assert_contains(error_of("capacity = \"x%\"\n"), "capacity: expected a size");
	assert_contains(error_of("capacity = \"%\"\n"), "capacity: expected a size");
	assert_contains(error_of("capacity = \"lots\"\n"), "\"lots\"");
	assert_contains(error_of("min_free = \"101%\"\n"), "between 0 and 100");
	assert_contains(error_of("capacity = 0\n"), "outside >= 1");
	assert_contains(error_of("capacity = \"0%\"\n"), "above 0");
	assert_contains(error_of("capacity = -1\n"), "negative");
	assert_contains(error_of("capacity = 1.5\n"), "whole number");
	assert_contains(error_of("capacity = true\n"), "found true");
	assert_contains(error_of("[plugin.mem]\nmax_bytes = \"50%\"\n"), "plugin.mem.max_bytes");
}

static void test_numbers_do_not_follow_the_locale(void **state)
{
	struct kvc_settings *settings;
	double number = 0;

	(void)state;
	/* where the locale is installed it writes a comma; the result is the same without it */
	(void)setlocale(LC_ALL, "de_DE.UTF-8");
	assert_int_equal(kvc_number_parse("1.5", &number), 0);
	assert_true(number > 1.49 && number < 1.51);
	assert_int_equal(kvc_number_parse("1,5", &number), -EINVAL);
	settings = settings_of("l3_cleaner_high_watermark = \"85.5\"\n");
	assert_true(settings->l3_cleaner_high_watermark > 85.4);
	kvc_settings_free(settings);
	(void)setlocale(LC_ALL, "C");
}

static void test_types_and_ranges(void **state)
{
	static const struct {
		const char *text;
		const char *pieces[2];
	} cases[] = {
		{ "[plugin.gds_mt]\nthread_count = 0\n",
		  { "plugin.gds_mt.thread_count", "[1, 1024]" } },
		{ "[plugin.gds_mt]\nthread_count = \"four\"\n", { "thread_count", "an integer" } },
		{ "[plugin.gds_mt]\nthread_count = 4.0\n", { "thread_count", "an integer" } },
		{ "[plugin.3fs]\niopool_size = 63\n", { "plugin.3fs.iopool_size", "1048576" } },
		{ "[plugin.3fs]\niopool_size = 1048577\n",
		  { "plugin.3fs.iopool_size", "outside" } },
		{ "[plugin.hf3fs]\nmem_config = \"dam\"\n",
		  { "plugin.3fs.mem_config", "dram | dram_zc | auto" } },
		{ "[plugin.obj]\nreq_checksum = \"never\"\n", { "req_checksum", "supported" } },
		{ "[plugin.obj]\nbucket = 5\n", { "plugin.obj.bucket", "quotes" } },
		{ "[plugin.obj]\nbucket = true\n", { "plugin.obj.bucket", "a text" } },
		{ "[plugin.obj]\nbucket = \"a\\u0000b\"\n", { "plugin.obj.bucket", "NUL" } },
		{ "l3_cleaner_high_watermark = 101\n", { "l3_cleaner_high_watermark", "outside" } },
		{ "l3_cleaner_high_watermark = nan\n",
		  { "l3_cleaner_high_watermark", "a number" } },
		{ "l3_cleaner_low_watermark = inf\n", { "l3_cleaner_low_watermark", "a number" } },
		{ "l3_cleaner_low_watermark: .nan\n", { "l3_cleaner_low_watermark", "a number" } },
		{ "get_timeout_ms = 0\n", { "get_timeout_ms", "outside" } },
		{ "io_engines = [\"io_urng\"]\n", { "io_engines", "io_uring | linux_aio" } },
		{ "io_engines = \"[threads\"\n", { "io_engines", "begins as a list" } },
		{ "io_engines = \"threads, threads\"\n", { "io_engines", "twice" } },
		{ "naming = \"NIXL\"\n", { "naming", "kvcellar | nixl" } },
		{ "plugin = 5\n", { "plugin", "table of sections" } },
		{ "[plugin]\nposix = true\n", { "plugin.posix", "a table" } },
		{ "mode = 600\n", { "mode", "quotes" } },
		{ "mode = \"0999\"\n", { "mode", "octal" } },
		{ "mode = \"0602\"\n", { "mode", "others" } },
		{ "mode = \"0400\"\n", { "mode", "owner" } },
		{ "[plugin.nixl]\nparams = 1\n", { "plugin.nixl.params", "a table" } },
		{ "[plugin.nixl.params]\na = {b = 1}\n", { "plugin.nixl.params.a", "a table" } },
	};
	const char *error;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		error = error_of(cases[i].text);
		assert_contains(error, cases[i].pieces[0]);
		assert_contains(error, cases[i].pieces[1]);
	}
}

static void test_numbers_in_texts_are_numbers(void **state)
{
	struct kvc_settings *settings =
		settings_of("{\"get_timeout_ms\": \"77\", \"plugin\": {\"gds_mt\": "
			    "{\"thread_count\": \"8\"}, \"obj\": {\"throughput_target_gbps\": 12,"
			    " \"crtMinLimit\": 5}}}");

	(void)state;
	assert_int_equal(settings->get_timeout_ms, 77);
	assert_string_equal(
		candidate_setting(kvc_settings_section(settings, "gds_mt"), "thread_count"), "8");
	assert_string_equal(candidate_setting(kvc_settings_section(settings, "obj"),
					      "throughput_target_gbps"),
			    "12");
	kvc_settings_free(settings);
}

static void test_quotes_are_short_and_valid_utf8(void **state)
{
	char buffer[KVC_QUOTED_BYTES], text[200], expected[8];
	json_t *string;

	(void)state;
	for (size_t shift = 0; shift < 8; shift++) {
		memset(text, 'a', shift);
		for (size_t i = shift; i + 3 < sizeof(text); i += 3)
			memcpy(text + i, "\xe2\x82\xac", 4);
		kvc_quote(buffer, text);
		assert_true(strlen(buffer) < KVC_QUOTED_BYTES);
		assert_string_equal(buffer + strlen(buffer) - 4, "...\"");
		string = json_string(buffer);
		assert_non_null(string);
		json_decref(string);
	}
	for (unsigned c = 1; c < 256; c++) {
		text[0] = (char)c;
		text[1] = '\0';
		kvc_quote(buffer, text);
		if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
			(void)snprintf(expected, sizeof(expected), "\"\\x%02x\"", c);
		else
			(void)snprintf(expected, sizeof(expected), "\"%c\"", (char)c);
		assert_string_equal(buffer, expected);
	}
}

static void test_edit_distance(void **state)
{
	(void)state;
	assert_int_equal(kvc_edit_distance("", ""), 0);
	assert_int_equal(kvc_edit_distance("abc", ""), 3);
	assert_int_equal(kvc_edit_distance("use_uring", "use_uring"), 0);
	assert_int_equal(kvc_edit_distance("use_urign", "use_uring"), 1);
	assert_int_equal(kvc_edit_distance("USE_uring", "use_uring"), 0);
	assert_int_equal(kvc_edit_distance("use_ring", "use_uring"), 1);
	assert_int_equal(kvc_edit_distance("kitten", "sitting"), 3);
}

static const struct kvc_option outside_table[] = {
	{ .name = "depth",
	  .type = "integer",
	  .unit = "",
	  .default_value = "8",
	  .range = "[1, 64]",
	  .help = "x" },
	{ .name = "token",
	  .type = "string",
	  .unit = "",
	  .default_value = "",
	  .range = "",
	  .help = "x",
	  .flags = KVC_OPTION_SECRET },
	{ .name = "fast",
	  .type = "string",
	  .unit = "",
	  .default_value = "false",
	  .range = "",
	  .help = "x",
	  .flags = KVC_OPTION_BOOL_STRING },
};

static void test_options_of_a_plugin_from_outside(void **state)
{
	const struct kvc_setting good[] = { { "fast", "YES" }, { "depth", "9" } };
	const struct kvc_setting bad[] = { { "depth", "99" } };
	const struct kvc_setting strange[] = { { "detph", "9" } };
	struct kvc_setting *out = NULL;
	size_t count = 0;

	(void)state;
	assert_int_equal(
		kvc_options_validate(outside_table, 3, "plugin.x", true, good, 2, &out, &count), 0);
	assert_int_equal(count, 3);
	assert_string_equal(out[0].name, "depth");
	assert_string_equal(out[0].value, "9");
	assert_string_equal(out[1].value, "");
	assert_string_equal(out[2].value, "true");
	kvc_settings_list_free(out, count);
	out = NULL;
	assert_int_equal(kvc_options_validate(outside_table, 3, "plugin.x", true, bad, 1, &out,
					      &count),
			 -EINVAL);
	assert_contains(kvc_last_error(), "plugin.x.depth");
	assert_int_equal(kvc_options_validate(outside_table, 3, "plugin.x", true, strange, 1, &out,
					      &count),
			 -EINVAL);
	assert_contains(kvc_last_error(), "\"depth\"");
	assert_null(out);
	assert_int_equal(kvc_options_validate(outside_table, 3, "plugin.x", false, strange, 1, &out,
					      &count),
			 0);
	assert_string_equal(out[0].value, "8");
	kvc_settings_list_free(out, count);
	kvc_settings_list_free(NULL, 0);
}

static void test_tables_hold_together(void **state)
{
	json_t *value;

	(void)state;
	for (size_t i = 0; i < kvc_top_option_count; i++) {
		assert_int_equal(kvc_value_default(&kvc_top_options[i], &value), 0);
		json_decref(value);
		assert_ptr_equal(kvc_top_option_find(kvc_top_options[i].name), &kvc_top_options[i]);
	}
	for (size_t i = 0; i < kvc_section_count; i++) {
		const struct kvc_section *section = &kvc_sections[i];

		for (size_t j = 0; j < section->option_count; j++) {
			const struct kvc_option *option = &section->options[j];

			if (kvc_top_option_find(option->name))
				fail_msg("%s is also a top-level key", option->name);
			if (kvc_section_option_find(section, option->name) != option)
				fail_msg("plugin.%s.%s stands twice", section->name, option->name);
			if (kvc_value_default(option, &value) < 0)
				fail_msg("plugin.%s.%s: %s", section->name, option->name,
					 kvc_last_error());
			json_decref(value);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_r49_booleans_follow_one_rule),
		cmocka_unit_test(test_r49_nonsense_is_refused_with_its_path),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_capacity_is_bytes_or_a_percentage),
		cmocka_unit_test(test_numbers_do_not_follow_the_locale),
		cmocka_unit_test(test_types_and_ranges),
		cmocka_unit_test(test_numbers_in_texts_are_numbers),
		cmocka_unit_test(test_quotes_are_short_and_valid_utf8),
		cmocka_unit_test(test_shares_of_tenants),
		cmocka_unit_test(test_metrics_are_served_on_the_loopback_only),
		cmocka_unit_test(test_edit_distance),
		cmocka_unit_test(test_options_of_a_plugin_from_outside),
		cmocka_unit_test(test_tables_hold_together),
	};

	return cmocka_run_group_tests(tests, no_environment, NULL);
}
