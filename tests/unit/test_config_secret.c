/* SPDX-License-Identifier: Apache-2.0 */
/* R52: a credential reaches no output, whatever goes wrong. */
#include "config_helper.h"

#include "core/log.h"

#define SECRET "hushhush"

static char logged[65536];

static void keep_line(void *context, int level, const char *text)
{
	size_t used = strlen(logged);

	(void)context;
	(void)level;
	(void)snprintf(logged + used, sizeof(logged) - used, "%s\n", text);
}

static const char *const secret_paths[] = {
	"plugin.obj.access_key",
	"plugin.obj.secrete_key",
	"plugin.obj.secret_key",
	"plugin.obj.session_token",
	"plugin.azure_blob.account_key",
	"plugin.azure_blob.sas_token",
	"plugin.azure_blob.connection_string",
};

static void assert_silent(const struct kvc_config *config)
{
	struct kvc_settings *settings = NULL;
	char *text;

	for (int what = KVC_DESCRIBE_EFFECTIVE; what <= KVC_DESCRIBE_SAMPLE; what++) {
		if (kvc_config_describe(config, what, NULL, 0) < 0)
			continue;
		text = described(config, what);
		assert_lacks(text, SECRET);
		free(text);
	}
	if (kvc_config_resolve(config, &settings) == 0) {
		for (size_t i = 0; i < settings->warning_count; i++)
			assert_lacks(settings->warnings[i], SECRET);
		for (size_t i = 0; i < settings->candidate_count; i++)
			if (settings->candidates[i].reason)
				assert_lacks(settings->candidates[i].reason, SECRET);
		kvc_settings_free(settings);
	}
	assert_lacks(kvc_last_error(), SECRET);
	assert_lacks(logged, SECRET);
}

static void test_r52_effective_shows_stars(void **state)
{
	struct kvc_config *config = new_config();
	char *text;

	(void)state;
	for (size_t i = 0; i < sizeof(secret_paths) / sizeof(secret_paths[0]); i++)
		assert_int_equal(kvc_config_set(config, secret_paths[i], SECRET), 0);
	assert_silent(config);
	text = described(config, KVC_DESCRIBE_EFFECTIVE);
	assert_contains(text, "secrete_key = \"***\"");
	assert_contains(text, "connection_string = \"***\"");
	free(text);
	kvc_config_free(config);
}

/* The value of the right key in a wrong type, a wrong key, a broken file: no echo of it. */
static void test_r52_errors_echo_nothing(void **state)
{
	static const char *const texts[] = {
		"[plugin.obj]\nsecrete_key = [\"" SECRET "\"]\n",
		"[plugin.obj]\nsecrete_key = {x = \"" SECRET "\"}\n",
		"[plugin.obj]\nsecrete_keys = \"" SECRET "\"\n",
		"[plugin.obj]\nsecrete_key = " SECRET "\n",
		"[plugin.obj]\nsecrete_key = \"" SECRET "\n",
		"[plugin.obj]\nsecrete_key = '" SECRET "' '" SECRET "'\n",
		"[plugin.obj]\nsecrete_key = 'a'\nsecret_key = '" SECRET "'\n",
		"[plugin.obj]\nsession_token = \"" SECRET "\\u0000\"\n",
		"{\"plugin\": {\"obj\": {\"secrete_key\": \"" SECRET "\" \"x\"}}}",
		"{\"plugin\": {\"obj\": {\"secrete_key\": " SECRET "}}}",
		"{\"plugin\": {\"obj\": {\"secrete_key\": \"" SECRET "}}}",
		"{\"secrete_key\": [\"" SECRET "\"]}",
		"plugin:\n  obj:\n    secrete_key: " SECRET ": x\n",
		"plugin:\n  obj:\n    secrete_key: [" SECRET "\n",
		"plugin:\n  obj:\n    secrete_key: &" SECRET " x\n",
		"plugin:\n  obj:\n    secrete_key: *" SECRET "\n",
		"plugin:\n  obj:\n    secrete_key: !" SECRET " x\n",
		"plugin:\n  obj:\n    secrete_key: \"" SECRET "\n",
		"[plugin.obj]\nuse_virtual_addressing = true\n"
		"endpoint_override = \"http://u:" SECRET "@h:1\"\n",
		"[plugin.objx]\nsecrete_key = '" SECRET "'\n",
		"[plugin.azure_blob]\nsas = \"" SECRET "\"\n",
		"[plugin.nixl.params]\nsecret_key = {a = \"" SECRET "\"}\n",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		assert_lacks(error_of(texts[i]), SECRET);
		assert_lacks(logged, SECRET);
	}
}

static void test_r52_numbers_as_secrets(void **state)
{
	(void)state;
	assert_lacks(error_of("[plugin.obj]\nsecrete_key = 123454321\n"), "123454321");
	assert_lacks(error_of("[plugin.azure_blob]\naccount_key = 123454321.5\n"), "123454321");
	assert_lacks(error_of("[plugin.obj]\nsecrete_key = 123454321123454321123454321\n"),
		     "123454321");
}

static void test_r52_warnings_and_addresses(void **state)
{
	static const char *const texts[] = {
		"strict = false\nsecrete_keys = \"" SECRET "\"\n[plugin.obj]\nsecrets = '" SECRET
		"'\n",
		"[plugin.obj]\nactive = true\nbucket = 'b'\n"
		"endpoint_override = \"https://u:" SECRET "@h.example/p?sig=" SECRET "\"\n",
		"[plugin.obj]\nactive = true\nendpoint_override = \"u:" SECRET "@h.example\"\n",
		"[plugin.azure_blob]\nactive = true\ncontainer_name = 'c'\n"
		"account_url = \"https://h.example/?sig=" SECRET "#" SECRET "\"\n",
		"[plugin.nixl]\nactive = true\n[plugin.nixl.params]\nanything = \"" SECRET "\"\n",
		"{\"secret_key\": \"" SECRET "\", \"bucket\": \"b\"}",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct kvc_config *config = load(texts[i], KVC_CONFIG_AUTO);

		assert_int_equal(kvc_config_check(config), 0);
		assert_silent(config);
		kvc_config_free(config);
	}
}

static void test_r52_environment(void **state)
{
	struct kvc_config *config = new_config();

	(void)state;
	setenv("KVCELLAR_PLUGIN_OBJ_SECRET_KEY", SECRET, 1);
	setenv("KVCELLAR_PLUGIN_OBJ_ACCESS_KEY", SECRET, 1);
	setenv("KVCELLAR_PLUGIN_AZURE_BLOB_ACCOUNT_KEYS", SECRET, 1);
	assert_silent(config);
	setenv("KVCELLAR_PLUGIN_OBJ_SESSION_TOKEN", SECRET "\xff", 1);
	assert_int_equal(kvc_config_check(config), -EINVAL);
	assert_silent(config);
	forget_environment();
	kvc_config_free(config);
}

static int listen(void **state)
{
	kvc_log_set(keep_line, NULL, KVC_LOG_DEBUG);
	return no_environment(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_r52_effective_shows_stars),
		cmocka_unit_test(test_r52_errors_echo_nothing),
		cmocka_unit_test(test_r52_numbers_as_secrets),
		cmocka_unit_test(test_r52_warnings_and_addresses),
		cmocka_unit_test(test_r52_environment),
	};

	return cmocka_run_group_tests(tests, listen, NULL);
}
