/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/trace.h"
#include "core/hash.h"
#include "core/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

struct folder {
	char path[64];
	char file[96];
	char old[96];
};

static int make_folder(void **state)
{
	struct folder *folder = calloc(1, sizeof(*folder));

	if (folder == NULL)
		return -1;
	snprintf(folder->path, sizeof(folder->path), "/tmp/kvcellar-trace-XXXXXX");
	if (mkdtemp(folder->path) == NULL)
		return -1;
	snprintf(folder->file, sizeof(folder->file), "%s/t", folder->path);
	snprintf(folder->old, sizeof(folder->old), "%s/t.1", folder->path);
	*state = folder;
	return 0;
}

static int remove_folder(void **state)
{
	struct folder *folder = *state;
	char name[112];

	for (int i = 1; i < 4; i++) {
		snprintf(name, sizeof(name), "%s-%d", folder->file, i);
		unlink(name);
		snprintf(name, sizeof(name), "%s-%d.1", folder->file, i);
		unlink(name);
	}
	unlink(folder->file);
	unlink(folder->old);
	rmdir(folder->path);
	free(folder);
	return 0;
}

/* Every line of a file as JSON. */
static json_t *read_lines(const char *path)
{
	FILE *file = fopen(path, "re");
	json_t *lines = json_array();
	char *line = NULL;
	size_t capacity = 0;
	ssize_t length;

	assert_non_null(file);
	while ((length = getline(&line, &capacity, file)) > 0) {
		json_t *one = json_loadb(line, (size_t)length, 0, NULL);

		assert_int_equal(line[length - 1], '\n');
		assert_non_null(one);
		json_array_append_new(lines, one);
	}
	free(line);
	fclose(file);
	return lines;
}

static int64_t number(const json_t *line, const char *name)
{
	assert_true(json_is_integer(json_object_get(line, name)));
	return json_integer_value(json_object_get(line, name));
}

static void a_transfer_is_one_line_of_hashed_keys(void **state)
{
	struct folder *folder = *state;
	struct kvc_key keys[] = { { "alpha", 5 }, { "\0\xff", 2 }, { "", 0 } };
	struct kvc_trace *trace;
	struct stat found;
	json_t *lines, *line;

	assert_int_equal(kvc_trace_open(folder->file, 0, &trace), 0);
	kvc_trace_record(trace, KVC_GET, "kv", keys, 3, 2);
	kvc_trace_record(trace, KVC_EXISTS, "mamba", keys, 1, 0);
	kvc_trace_close(trace);

	assert_int_equal(stat(folder->file, &found), 0);
	assert_int_equal(found.st_mode & 0777, 0600);
	lines = read_lines(folder->file);
	assert_int_equal(json_array_size(lines), 3);
	assert_int_equal(number(json_array_get(lines, 0), "kvcellar_trace"), 1);
	line = json_array_get(lines, 1);
	assert_string_equal(json_string_value(json_object_get(line, "op")), "get");
	assert_string_equal(json_string_value(json_object_get(line, "pool")), "kv");
	assert_int_equal(number(line, "n"), 3);
	assert_int_equal(number(line, "ok"), 2);
	for (size_t i = 0; i < 3; i++) {
		char hex[17];

		snprintf(hex, sizeof(hex), "%016" PRIx64,
			 kvc_blake2b_64(keys[i].data, keys[i].bytes));
		assert_string_equal(
			json_string_value(json_array_get(json_object_get(line, "keys"), i)), hex);
	}
	line = json_array_get(lines, 2);
	assert_string_equal(json_string_value(json_object_get(line, "op")), "exists");
	assert_string_equal(json_string_value(json_object_get(line, "pool")), "mamba");
	json_decref(lines);
}

static void a_long_call_is_several_lines(void **state)
{
	struct folder *folder = *state;
	struct kvc_key keys[600];
	struct kvc_trace *trace;
	json_t *lines;
	int64_t keys_seen = 0, ok_seen = 0;

	for (size_t i = 0; i < 600; i++)
		keys[i] = (struct kvc_key){ "same", 4 };
	assert_int_equal(kvc_trace_open(folder->file, 0, &trace), 0);
	kvc_trace_record(trace, KVC_SET, "kv", keys, 600, 300);
	kvc_trace_record(trace, KVC_SET, "kv", keys, 0, 0);
	kvc_trace_close(trace);
	lines = read_lines(folder->file);
	assert_int_equal(json_array_size(lines), 4);
	for (size_t i = 1; i < 4; i++) {
		const json_t *line = json_array_get(lines, i);

		assert_true(number(line, "n") <= 256);
		assert_int_equal(json_array_size(json_object_get(line, "keys")), number(line, "n"));
		keys_seen += number(line, "n");
		ok_seen += number(line, "ok");
	}
	assert_int_equal(keys_seen, 600);
	assert_int_equal(ok_seen, 300);
	json_decref(lines);
}

static void both_files_stay_within_the_limit(void **state)
{
	struct folder *folder = *state;
	struct kvc_key keys[100];
	struct kvc_trace *trace;
	struct stat newer, older;
	json_t *lines;

	for (size_t i = 0; i < 100; i++)
		keys[i] = (struct kvc_key){ "k", 1 };
	assert_int_equal(kvc_trace_open(folder->file, 64 << 10, &trace), 0);
	for (int i = 0; i < 200; i++)
		kvc_trace_record(trace, KVC_GET, "kv", keys, 100, 100);
	kvc_trace_close(trace);
	assert_int_equal(stat(folder->file, &newer), 0);
	assert_int_equal(stat(folder->old, &older), 0);
	assert_true(newer.st_size + older.st_size <= 64 << 10);
	assert_true(older.st_size > 16 << 10);
	lines = read_lines(folder->old);
	assert_int_equal(number(json_array_get(lines, 0), "kvcellar_trace"), 1);
	json_decref(lines);
	lines = read_lines(folder->file);
	assert_int_equal(number(json_array_get(lines, 0), "kvcellar_trace"), 1);
	json_decref(lines);
}

static void what_was_there_before_is_kept_once(void **state)
{
	struct folder *folder = *state;
	struct kvc_key key = { "k", 1 };
	struct kvc_trace *trace;
	json_t *lines;

	for (int run = 1; run <= 2; run++) {
		assert_int_equal(kvc_trace_open(folder->file, 0, &trace), 0);
		for (int i = 0; i < run; i++)
			kvc_trace_record(trace, KVC_GET, "kv", &key, 1, 1);
		kvc_trace_close(trace);
	}
	lines = read_lines(folder->old);
	assert_int_equal(json_array_size(lines), 2);
	json_decref(lines);
	lines = read_lines(folder->file);
	assert_int_equal(json_array_size(lines), 3);
	json_decref(lines);
}

static void two_recordings_do_not_share_a_file(void **state)
{
	struct folder *folder = *state;
	struct kvc_trace *first, *second;
	char name[112];

	snprintf(name, sizeof(name), "%s-2", folder->file);
	assert_int_equal(kvc_trace_open(folder->file, 0, &first), 0);
	assert_int_equal(kvc_trace_open(folder->file, 0, &second), 0);
	assert_int_equal(access(name, F_OK), 0);
	assert_int_not_equal(access(folder->old, F_OK), 0);
	kvc_trace_close(second);
	kvc_trace_close(first);
}

static void *record_many(void *trace)
{
	struct kvc_key keys[3] = { { "a", 1 }, { "b", 1 }, { "c", 1 } };

	for (int i = 0; i < 500; i++)
		kvc_trace_record(trace, KVC_SET, "kv", keys, 3, 3);
	return NULL;
}

static void threads_have_numbers_and_nothing_is_lost_unsaid(void **state)
{
	struct folder *folder = *state;
	struct kvc_trace *trace;
	pthread_t threads[4];
	int64_t recorded = 0, seen[4] = { 0 };
	size_t different = 0;
	json_t *lines;

	assert_int_equal(kvc_trace_open(folder->file, 0, &trace), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, record_many, trace), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	kvc_trace_close(trace);
	lines = read_lines(folder->file);
	for (size_t i = 1; i < json_array_size(lines); i++) {
		const json_t *line = json_array_get(lines, i);
		size_t known = 0;

		if (json_object_get(line, "dropped") != NULL) {
			recorded += number(line, "dropped");
			continue;
		}
		recorded++;
		while (known < different && seen[known] != number(line, "thread"))
			known++;
		if (known == different) {
			assert_true(different < 4);
			seen[different++] = number(line, "thread");
		}
	}
	assert_int_equal(recorded, 2000);
	assert_int_equal(different, 4);
	json_decref(lines);
}

static void a_bad_path_is_refused(void **state)
{
	struct folder *folder = *state;
	struct kvc_trace *trace = NULL;
	char missing[112];

	snprintf(missing, sizeof(missing), "%s/no/t", folder->path);
	assert_int_equal(kvc_trace_open(missing, 0, &trace), -ENOENT);
	assert_non_null(strstr(kvc_last_error(), missing));
	assert_int_equal(kvc_trace_open("", 0, &trace), -EINVAL);
	assert_int_equal(kvc_trace_open(folder->file, 1000, &trace), -EINVAL);
	assert_int_equal(symlink("target", folder->file), 0);
	assert_int_equal(kvc_trace_open(folder->file, 0, &trace), -ELOOP);
	assert_int_equal(unlink(folder->file), 0);
	assert_int_equal(mkfifo(folder->file, 0600), 0);
	assert_true(kvc_trace_open(folder->file, 0, &trace) < 0);
	assert_null(trace);
}

static int errors;

static void count_errors(void *context, int level, const char *text)
{
	(void)context;
	if (level == KVC_LOG_ERROR && strstr(text, "trace_file") != NULL)
		errors++;
}

/* The rename of a rotation fails when the folder is gone; recording ends with one error. */
static void a_failing_file_is_told_once(void **state)
{
	struct folder *folder = *state;
	struct kvc_key keys[100];
	struct kvc_trace *trace;

	for (size_t i = 0; i < 100; i++)
		keys[i] = (struct kvc_key){ "k", 1 };
	errors = 0;
	kvc_log_set(count_errors, NULL, KVC_LOG_WARNING);
	assert_int_equal(kvc_trace_open(folder->file, 64 << 10, &trace), 0);
	assert_int_equal(unlink(folder->file), 0);
	for (int i = 0; i < 100; i++)
		kvc_trace_record(trace, KVC_GET, "kv", keys, 100, 100);
	kvc_trace_close(trace);
	kvc_log_set(NULL, NULL, 0);
	assert_int_equal(errors, 1);
}

static void without_a_trace_nothing_happens(void **state)
{
	struct kvc_key key = { "k", 1 };

	(void)state;
	kvc_trace_record(NULL, KVC_GET, "kv", &key, 1, 1);
	kvc_trace_close(NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
	const struct CMUnitTest tests[] = {
		TEST(a_transfer_is_one_line_of_hashed_keys),
		TEST(a_long_call_is_several_lines),
		TEST(both_files_stay_within_the_limit),
		TEST(what_was_there_before_is_kept_once),
		TEST(two_recordings_do_not_share_a_file),
		TEST(threads_have_numbers_and_nothing_is_lost_unsaid),
		TEST(a_bad_path_is_refused),
		TEST(a_failing_file_is_told_once),
		cmocka_unit_test(without_a_trace_nothing_happens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
