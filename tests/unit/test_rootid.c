/* SPDX-License-Identifier: Apache-2.0 */
/* core/rootid.c: root.json as text (R41). */
#include "core/rootid.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define UUID "00112233-4455-6677-8899-aabbccddeeff"
#define GOOD                                                                            \
	"{\"format\": {\"major\": 1, \"minor\": 0, \"compat\": [], \"ro_compat\": [], " \
	"\"incompat\": []}, \"uuid\": \"" UUID                                          \
	"\", \"storage_layout\": \"files\", \"naming\": \"kvcellar\"}"

static int parse(const char *text, struct kvc_rootid *out)
{
	return kvc_rootid_parse(text, strlen(text), "/r/root.json", out);
}

static void what_is_rendered_is_parsed(void **state)
{
	struct kvc_rootid id, back, other;
	char text[1024], small[10];
	int length;

	(void)state;
	assert_int_equal(kvc_rootid_new(&id, "files", "nixl"), 0);
	assert_int_equal(kvc_rootid_new(&other, "files", "nixl"), 0);
	assert_string_not_equal(id.uuid_text, other.uuid_text);
	assert_int_equal(id.uuid[6] >> 4, 4);
	assert_int_equal(id.uuid[8] >> 6, 2);
	length = kvc_rootid_render(&id, text, sizeof(text));
	assert_int_equal(length, strlen(text));
	assert_int_equal(kvc_rootid_render(&id, small, sizeof(small)), length);
	assert_int_equal(parse(text, &back), 0);
	assert_memory_equal(back.uuid, id.uuid, 16);
	assert_string_equal(back.uuid_text, id.uuid_text);
	assert_string_equal(back.storage_layout, "files");
	assert_string_equal(back.naming, "nixl");
	assert_false(back.writes_refused);
}

static void padding_and_unknown_members_are_no_harm(void **state)
{
	char text[8192];
	struct kvc_rootid id;

	(void)state;
	(void)snprintf(text, sizeof(text), "%-4095s\n", GOOD);
	assert_int_equal(parse(text, &id), 0);
	assert_string_equal(id.uuid_text, UUID);
	assert_int_equal(
		parse("{\"new\": [1, {}], \"format\": {\"major\": 1, \"minor\": 5, \"x\": 1}, "
		      "\"uuid\": \"00112233-4455-6677-8899-AABBCCDDEEFF\", "
		      "\"storage_layout\": \"packed\", \"naming\": \"other\"}",
		      &id),
		0);
	assert_string_equal(id.uuid_text, UUID); /* one form */
	assert_string_equal(id.storage_layout, "packed");
}

static void damage_is_named_and_nothing_is_written(void **state)
{
	static const char *const texts[] = {
		"",
		" ",
		"{",
		"[]",
		"7",
		"\"x\"",
		"null",
		"{}",
		"\xff\xfe",
		GOOD "x",
		GOOD GOOD,
		"{\"format\": [], \"uuid\": \"" UUID "\"}",
		"{\"format\": {\"major\": \"1\", \"minor\": 0}}",
		"{\"format\": {\"major\": 1}}",
		"{\"format\": {\"major\": 1, \"minor\": 0}}",
		"{\"format\": {\"major\": 1, \"minor\": 0}, \"uuid\": 7}",
		"{\"format\": {\"major\": 1, \"minor\": 0}, \"uuid\": \"x\"}",
		"{\"format\": {\"major\": 1, \"minor\": 0}, \"uuid\": \"" UUID "\"}",
		"{\"format\": {\"major\": 1, \"minor\": 0}, \"uuid\": \"" UUID
		"\", \"storage_layout\": \"\", \"naming\": \"kvcellar\"}",
		"{\"format\": {\"major\": 1, \"minor\": 0}, \"uuid\": \"" UUID
		"\", \"storage_layout\": \"a-word-that-is-too-long\", \"naming\": \"kvcellar\"}",
		"{\"uuid\": \"" UUID "\", \"uuid\": \"" UUID "\"}",
	};
	struct kvc_rootid id;

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		memset(&id, 0x5a, sizeof(id));
		if (parse(texts[i], &id) != -EUCLEAN)
			fail_msg("text %zu is taken", i);
		assert_non_null(strstr(kvc_last_error(), "/r/root.json"));
		assert_int_equal(id.uuid[0], 0x5a);
	}
	/* Every prefix of a good one. */
	for (size_t n = 0; n < strlen(GOOD); n++)
		assert_int_equal(kvc_rootid_parse(GOOD, n, "/r/root.json", &id), -EUCLEAN);
}

static void r41_versions_and_words(void **state)
{
	static const struct {
		const char *format;
		int rc;
		bool writes_refused;
	} rows[] = {
		{ "\"major\": 1, \"minor\": 99", 0, false },
		{ "\"major\": 2, \"minor\": 0", -EPROTONOSUPPORT, false },
		{ "\"major\": 0, \"minor\": 0", -EPROTONOSUPPORT, false },
		{ "\"major\": -1, \"minor\": 0", -EPROTONOSUPPORT, false },
		{ "\"major\": 1, \"minor\": 0, \"compat\": [\"a\"]", 0, false },
		{ "\"major\": 1, \"minor\": 0, \"ro_compat\": [\"a\"]", 0, true },
		{ "\"major\": 1, \"minor\": 0, \"ro_compat\": 2", 0, true },
		{ "\"major\": 1, \"minor\": 0, \"ro_compat\": 0", 0, false },
		{ "\"major\": 1, \"minor\": 0, \"incompat\": [\"a\"]", -EPROTONOSUPPORT, false },
		{ "\"major\": 1, \"minor\": 0, \"incompat\": [3]", -EPROTONOSUPPORT, false },
		{ "\"major\": 1, \"minor\": 0, \"incompat\": 1", -EPROTONOSUPPORT, false },
		{ "\"major\": 1, \"minor\": 0, \"incompat\": 0", 0, false },
		{ "\"major\": 1, \"minor\": 0, \"incompat\": \"a\"", -EPROTONOSUPPORT, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct kvc_rootid id;
		char text[512];

		(void)snprintf(text, sizeof(text),
			       "{\"format\": {%s}, \"uuid\": \"" UUID
			       "\", \"storage_layout\": \"files\", \"naming\": \"kvcellar\"}",
			       rows[i].format);
		assert_int_equal(parse(text, &id), rows[i].rc);
		if (rows[i].rc == 0)
			assert_int_equal(id.writes_refused, rows[i].writes_refused);
		else
			assert_non_null(strstr(kvc_last_error(), "nothing was touched"));
	}
}

static void uuids_have_one_form(void **state)
{
	static const char *const bad[] = {
		"",
		"0",
		UUID "0",
		"00112233-4455-6677-8899-aabbccddeef",
		"00112233-4455-6677-8899",
		"001122334-455-6677-8899-aabbccddeeff",
		"00112233-4455-6677-8899-aabbccddeefg",
		"{0112233-4455-6677-8899-aabbccddeeff",
		" 0112233-4455-6677-8899-aabbccddeeff",
	};
	uint8_t uuid[16], back[16];
	char text[37];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(kvc_uuid_parse(bad[i], uuid), -EINVAL);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(kvc_uuid_random(uuid), 0);
		kvc_uuid_format(uuid, text);
		assert_int_equal(strlen(text), 36);
		assert_int_equal(kvc_uuid_parse(text, back), 0);
		assert_memory_equal(back, uuid, 16);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_rendered_is_parsed),
		cmocka_unit_test(padding_and_unknown_members_are_no_harm),
		cmocka_unit_test(damage_is_named_and_nothing_is_written),
		cmocka_unit_test(r41_versions_and_words),
		cmocka_unit_test(uuids_have_one_form),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
