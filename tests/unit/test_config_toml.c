/* SPDX-License-Identifier: Apache-2.0 */
/* The toml-test corpus (Debian: golang-github-burntsushi-toml-dev): what is valid gives the tree of
 * its answer file, what is invalid is refused. */
#include "config_helper.h"

#include "core/config_parse.h"

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

#define CORPUS "/usr/share/gocode/src/github.com/BurntSushi/toml/internal/toml-test/tests"

/* Valid files that toml++ refuses: the escape \e is of TOML 1.1. */
static const char *const refused[] = { "string/escape-esc.toml" };

static unsigned files, wrong;

static bool same_number(const char *expected, const json_t *found)
{
	const char *text = json_string_value(found);
	double value = 0;

	if (text) /* the infinities and not-a-number are texts in our tree */
		return strcmp(expected + (*expected == '+'), text) == 0;
	if (!json_is_real(found) || kvc_number_parse(expected, &value) < 0)
		return false;
	return fabs(value - json_real_value(found)) <= fabs(value) * 1e-15;
}

/* Dates as texts; digits after the seconds may end in zeros. */
static bool same_date(const char *expected, const char *found)
{
	size_t common = 0, zeros;

	if (!found)
		return false;
	while (expected[common] && expected[common] == found[common])
		common++;
	if (!strchr(expected, '.') && !strchr(found, '.'))
		return !expected[common] && !found[common];
	zeros = strspn(expected + common, "0");
	expected += common + zeros;
	found += common + strspn(found + common, "0");
	return strcmp(expected, found) == 0;
}

static bool same_scalar(const char *type, const json_t *value, const json_t *found)
{
	const char *text = json_string_value(value);

	if (strcmp(type, "string") == 0)
		return json_equal(value, found);
	if (strcmp(type, "integer") == 0)
		return json_is_integer(found) &&
		       json_integer_value(found) == strtoll(text, NULL, 10);
	if (strcmp(type, "float") == 0)
		return same_number(text, found);
	if (strcmp(type, "bool") == 0)
		return json_is_boolean(found) && json_is_true(found) == (strcmp(text, "true") == 0);
	return same_date(text, json_string_value(found));
}

static bool same(const json_t *expected, const json_t *found)
{
	const char *type = json_string_value(json_object_get(expected, "type"));
	const json_t *value = json_object_get(expected, "value");
	const char *key;
	json_t *element;
	size_t i;

	if (type && json_is_string(value) && json_object_size(expected) == 2)
		return same_scalar(type, value, found);
	if (json_typeof(expected) != json_typeof(found))
		return false;
	if (json_is_array(expected)) {
		if (json_array_size(expected) != json_array_size(found))
			return false;
		json_array_foreach(expected, i,
				   element) if (!same(element,
						      json_array_get(found, i))) return false;
		return true;
	}
	if (json_object_size(expected) != json_object_size(found))
		return false;
	json_object_foreach((json_t *)(uintptr_t)expected, key,
			    element) if (!json_object_get(found, key) ||
					 !same(element, json_object_get(found, key))) return false;
	return true;
}

static size_t size_of(const char *path)
{
	struct stat status;

	assert_int_equal(stat(path, &status), 0);
	return (size_t)status.st_size;
}

static void check_valid(const char *path)
{
	struct kvc_syntax_error error = { 0 };
	char answer[600], *text = read_whole(path);
	json_t *expected, *found = NULL;
	int rc = kvc_toml_parse(text, size_of(path), &found, &error);

	(void)snprintf(answer, sizeof(answer), "%.*s.json", (int)(strlen(path) - 5), path);
	expected = json_load_file(answer, JSON_ALLOW_NUL, NULL);
	if (!expected)
		fail_msg("%s cannot be read", answer);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		if (strstr(path, refused[i]) && rc == -EINVAL)
			rc = 1;
	if (rc < 0 || (rc == 0 && !same(expected, found))) {
		print_error("%s: %s\n", path, rc < 0 ? error.text : "another tree");
		wrong++;
	}
	json_decref(expected);
	json_decref(found);
	free(text);
}

static void check_invalid(const char *path)
{
	struct kvc_syntax_error error = { 0 };
	char *text = read_whole(path);
	json_t *found = NULL;
	int rc = kvc_toml_parse(text, size_of(path), &found, &error);

	if (rc != -EINVAL || found || !error.text[0]) {
		print_error("%s: %d\n", path, rc);
		wrong++;
	}
	json_decref(found);
	free(text);
}

static void walk(const char *folder, void (*check)(const char *path))
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	char path[512];
	size_t bytes;

	assert_non_null(dir);
	while ((entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof(path), "%.250s/%.250s", folder, entry->d_name);
		bytes = strlen(path);
		if (bytes > 5 && strcmp(path + bytes - 5, ".toml") == 0) {
			files++;
			check(path);
		} else if (entry->d_type == DT_DIR) {
			walk(path, check);
		}
	}
	(void)closedir(dir);
}

static void test_valid_files(void **state)
{
	(void)state;
	files = wrong = 0;
	walk(CORPUS "/valid", check_valid);
	assert_true(files >= 100);
	assert_int_equal(wrong, 0);
}

static void test_invalid_files(void **state)
{
	(void)state;
	files = wrong = 0;
	walk(CORPUS "/invalid", check_invalid);
	assert_true(files >= 200);
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_valid_files),
		cmocka_unit_test(test_invalid_files),
	};

	if (access(CORPUS, R_OK) < 0) {
		printf("SKIP: the toml-test corpus is not installed "
		       "(golang-github-burntsushi-toml-dev)\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
