/* SPDX-License-Identifier: Apache-2.0 */
/* core/text.h: bounded text that goes on counting, JSON and label escapes. */
#include "counter_helper.h"

#include "core/text.h"

static int build(char *buffer, size_t bytes)
{
	struct kvc_text text;

	kvc_text_init(&text, buffer, bytes);
	kvc_text_add(&text, "%s=%d;", "one", 1);
	kvc_text_bytes(&text, "two", 3);
	kvc_text_add(&text, "%c", '!');
	return kvc_text_finish(&text);
}

/* Every size of the buffer: the same length comes back, a prefix with NUL is written, no more. */
static void test_every_size(void **state)
{
	static const char whole[] = "one=1;two!";
	const size_t length = sizeof(whole) - 1;
	char buffer[32];

	(void)state;
	assert_int_equal(build(NULL, 0), (int)length);
	for (size_t bytes = 1; bytes <= length + 3; bytes++) {
		const size_t fits = bytes - 1 < length ? bytes - 1 : length;

		memset(buffer, '#', sizeof(buffer));
		assert_int_equal(build(buffer, bytes), (int)length);
		assert_memory_equal(buffer, whole, fits);
		assert_int_equal(buffer[fits], '\0');
		for (size_t i = bytes; i < sizeof(buffer); i++)
			assert_int_equal(buffer[i], '#');
	}
}

static void test_empty(void **state)
{
	struct kvc_text text;
	char buffer[2] = "x";

	(void)state;
	kvc_text_init(&text, buffer, sizeof(buffer));
	assert_int_equal(kvc_text_finish(&text), 0);
	assert_string_equal(buffer, "");
}

static void check_json(const char *value, const char *expected)
{
	struct kvc_text text;
	char buffer[128];

	kvc_text_init(&text, buffer, sizeof(buffer));
	kvc_text_json(&text, value);
	assert_int_equal(kvc_text_finish(&text), (int)strlen(expected));
	assert_string_equal(buffer, expected);
}

static void test_json(void **state)
{
	(void)state;
	check_json(NULL, "null");
	check_json("", "\"\"");
	check_json("a/b", "\"a/b\"");
	check_json("q\" b\\ n\n t\t", "\"q\\\" b\\\\ n\\n t\\t\"");
	check_json("\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\"");
	check_json("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
		   "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
	/* stray byte, cut sequence, overlong slash, surrogate, past U+10FFFF */
	check_json("\x80", "\"\xef\xbf\xbd\"");
	check_json("\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\"");
	check_json("\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\"");
	check_json("\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
	check_json("\xf4\x90\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
	check_json("\xe0\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

static void test_label(void **state)
{
	struct kvc_text text;
	char buffer[64];

	(void)state;
	kvc_text_init(&text, buffer, sizeof(buffer));
	kvc_text_label(&text, "/a\"b\\c\nd\xff");
	assert_int_equal(kvc_text_finish(&text), (int)strlen(buffer));
	assert_string_equal(buffer, "\"/a\\\"b\\\\c\\nd\xef\xbf\xbd\"");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_size),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_label),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
