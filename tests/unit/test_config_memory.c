/* SPDX-License-Identifier: Apache-2.0 */
/* An allocation of the tree fails: an error or the right result, no crash and no leak. */
#include "config_helper.h"

static long allocations_left = -1;

/* -1: without end */
static void *limited_malloc(size_t bytes)
{
	if (allocations_left == 0)
		return NULL;
	if (allocations_left > 0)
		allocations_left--;
	return malloc(bytes);
}

static const char *const texts[] = {
	("{\"use_direct_io\": 0, \"storage_dirs\": \"/a,/b\", \"capacity\": \"80%\","
	 " \"use_aio\": 1, \"plugin\": {\"posix\": {\"active\": 1},"
	 " \"nixl\": {\"params\": {\"a\": [\"b\"]}}}}"),
	("use_direct_io: no\nio_engines: [threads]\n"
	 "plugin:\n  obj: {bucket: b, secret_key: \"s\"}\n"),
	"strict = false\nunknown = 1\n[plugin.gds]\nactive = true\nbatch_limit = 2\n",
	"{\"plugin\": {\"posx\": {}}}",
};

/* 0 or the error of the first call that failed. */
static int run(const char *text)
{
	struct kvc_config *config = NULL;
	struct kvc_settings *settings = NULL;
	int rc;

	rc = kvc_config_new(&config);
	if (rc == 0)
		rc = kvc_config_load_text(config, text, strlen(text), KVC_CONFIG_AUTO, NULL);
	if (rc == 0)
		rc = kvc_config_set(config, "get_timeout_ms", "9");
	if (rc == 0)
		rc = kvc_config_resolve(config, &settings);
	if (rc == 0)
		assert_int_equal(settings->get_timeout_ms, 9);
	for (int what = KVC_DESCRIBE_EFFECTIVE; rc == 0 && what <= KVC_DESCRIBE_SAMPLE; what++) {
		rc = kvc_config_describe(config, what, NULL, 0);
		rc = rc > 0 ? 0 : rc;
	}
	kvc_settings_free(settings);
	kvc_config_free(config);
	return rc;
}

static void sweep(const char *text, int last)
{
	long limit = 0;
	int rc;

	do {
		allocations_left = limit;
		/* all of the first, then a sample: each run takes thousands */
		limit += limit < 150 ? 1 : 17;
		rc = run(text);
		if (allocations_left != 0)
			break;
		/* jansson's reader takes some failed allocations for a syntax error */
		if (rc == -EINVAL && text[0] == '{' && strstr(kvc_last_error(), "not valid JSON"))
			continue;
		if (rc != -ENOMEM && rc != last)
			fail_msg("allocation %ld: %d, %s", limit, rc, kvc_last_error());
	} while (limit < 20000);
	allocations_left = -1;
	assert_true(limit > 50 && limit < 20000);
	assert_int_equal(rc, last);
}

static void test_a_failed_allocation_is_told(void **state)
{
	(void)state;
	json_set_alloc_funcs(limited_malloc, free);
	for (size_t i = 0; i < 3; i++)
		sweep(texts[i], 0);
	sweep(texts[3], -EINVAL);
	json_set_alloc_funcs(malloc, free);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_failed_allocation_is_told),
	};

	return cmocka_run_group_tests(tests, no_environment, NULL);
}
