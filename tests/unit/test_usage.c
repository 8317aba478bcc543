/* SPDX-License-Identifier: Apache-2.0 */
/* core/usage.h: own bytes by namespace, shared by threads and processes. */
#include "counter_helper.h"

#include "core/crc.h"
#include "core/usage.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define FILE_BYTES   139264
#define HEADER_BYTES 4096

static struct kvc_usage_map *open_usage(const char *name)
{
	struct kvc_usage_map *usage = NULL;

	assert_int_equal(kvc_usage_open(name ? in_folder(name) : NULL, 0600, &usage), 0);
	return usage;
}

static void check_namespace(struct kvc_usage_map *usage, uint64_t ns, uint64_t bytes,
			    uint64_t objects)
{
	uint64_t got_bytes = 77, got_objects = 77;

	assert_int_equal(kvc_usage_namespace(usage, ns, &got_bytes, &got_objects), 0);
	assert_int_equal(got_bytes, bytes);
	assert_int_equal(got_objects, objects);
}

static void check_total(struct kvc_usage_map *usage, uint64_t bytes, uint64_t objects)
{
	uint64_t got_bytes = 77, got_objects = 77;

	kvc_usage_total(usage, &got_bytes, &got_objects);
	assert_int_equal(got_bytes, bytes);
	assert_int_equal(got_objects, objects);
}

/* ---------------------------------------------------------------- counting */

static void count_some(struct kvc_usage_map *usage)
{
	assert_int_equal(kvc_usage_namespace(usage, 5, NULL, NULL), -ENOENT);
	kvc_usage_add(usage, 5, 8192, 2);
	kvc_usage_add(usage, 0, 4096, 1);
	kvc_usage_add(usage, 5, -4096, -1);
	check_namespace(usage, 5, 4096, 1);
	check_namespace(usage, 0, 4096, 1);
	check_total(usage, 8192, 2);
	kvc_usage_add(usage, 5, -9000, -3);
	check_namespace(usage, 5, 0, 0);
	check_total(usage, 4096, 1); /* what is below 0 takes nothing from others */
	kvc_usage_add(usage, 5, 9000, 3);
	check_namespace(usage, 5, 4096, 1);
}

static void test_memory(void **state)
{
	struct kvc_usage_map *usage = open_usage(NULL);

	(void)state;
	assert_true(kvc_usage_is_new(usage));
	assert_false(kvc_usage_is_shared(usage));
	count_some(usage);
	assert_int_equal(kvc_usage_check(usage), 0);
	kvc_usage_close(usage);
	kvc_usage_close(NULL);
}

/* Who may not write sees what others counted, and changes nothing of it. */
static void test_loaded_counts(void **state)
{
	struct kvc_usage_map *writer = open_usage("usage"), *reader = open_usage(NULL);

	(void)state;
	assert_int_equal(kvc_usage_load(reader, in_folder("absent")), 0);
	assert_false(kvc_usage_is_loaded(reader));
	kvc_usage_reload(reader);
	check_total(reader, 0, 0);
	kvc_usage_add(writer, 5, 8192, 2);
	assert_int_equal(kvc_usage_load(reader, in_folder("usage")), 0);
	assert_true(kvc_usage_is_loaded(reader));
	assert_true(kvc_usage_is_new(reader));
	assert_false(kvc_usage_is_shared(reader));
	check_namespace(reader, 5, 8192, 2);
	kvc_usage_add(reader, 5, 100, 1);
	check_namespace(writer, 5, 8192, 2);
	(void)kvc_usage_recount(writer, (struct kvc_usage_count[]){ { 7, 4096, 1 } }, 1);
	kvc_usage_reload(reader);
	check_namespace(reader, 5, 0, 0);
	check_namespace(reader, 7, 4096, 1);
	assert_false(kvc_usage_is_new(reader));
	/* One that is gone, or damaged, changes nothing any more. */
	assert_int_equal(truncate(in_folder("usage"), 100), 0);
	kvc_usage_reload(reader);
	check_namespace(reader, 7, 4096, 1);
	kvc_usage_close(reader);
	kvc_usage_close(writer);
}

static void test_file_keeps_counts(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage"), *second;
	struct stat st;

	(void)state;
	assert_true(kvc_usage_is_new(usage));
	assert_true(kvc_usage_is_shared(usage));
	count_some(usage);
	second = open_usage("usage");
	kvc_usage_add(second, 5, 1, 1);
	check_namespace(usage, 5, 4097, 2);
	kvc_usage_close(second);
	kvc_usage_close(usage);

	usage = open_usage("usage");
	assert_true(kvc_usage_is_new(usage)); /* nobody has recounted */
	check_total(usage, 8193, 3);
	(void)kvc_usage_recount(usage, NULL, 0);
	kvc_usage_close(usage);
	usage = open_usage("usage");
	assert_false(kvc_usage_is_new(usage));
	kvc_usage_close(usage);

	assert_int_equal(stat(in_folder("usage"), &st), 0);
	assert_int_equal(st.st_size, FILE_BYTES);
	assert_true(st.st_blocks * 512 >= FILE_BYTES); /* allocated, so no SIGBUS on a full disk */
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(count_entries(folder), 1); /* no temporary file stays */
}

static void test_mode(void **state)
{
	const mode_t before = umask(0077);
	struct kvc_usage_map *usage = NULL;
	struct stat st;

	(void)state;
	assert_int_equal(kvc_usage_open(in_folder("usage"), 0660, &usage), 0);
	(void)umask(before);
	assert_int_equal(stat(in_folder("usage"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	kvc_usage_close(usage);
}

static void test_full_table(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage");
	struct kvc_usage_count *counts = calloc(KVC_USAGE_SLOTS + 2, sizeof(*counts));
	uint64_t drift = 0;

	(void)state;
	assert_non_null(counts);
	for (uint64_t i = 1; i <= KVC_USAGE_SLOTS + 2; i++) {
		kvc_usage_add(usage, i * 1000003, 10, 1);
		counts[i - 1] = (struct kvc_usage_count){ i * 1000003, 20, 2 };
	}
	check_namespace(usage, UINT64_C(1000003) * KVC_USAGE_SLOTS, 10, 1);
	assert_int_equal(kvc_usage_namespace(usage, UINT64_C(1000003) * (KVC_USAGE_SLOTS + 1), NULL,
					     NULL),
			 -ENOENT);
	check_total(usage, 10 * (KVC_USAGE_SLOTS + 2), KVC_USAGE_SLOTS + 2);
	assert_int_equal(kvc_usage_correct(usage, UINT64_C(1000003) * (KVC_USAGE_SLOTS + 1), 5, 5,
					   &drift),
			 -ENOSPC);
	assert_int_equal(kvc_usage_recount(usage, counts, KVC_USAGE_SLOTS + 2),
			 10 * (KVC_USAGE_SLOTS + 2));
	check_total(usage, 20 * (KVC_USAGE_SLOTS + 2), 2 * (KVC_USAGE_SLOTS + 2));
	free(counts);
	kvc_usage_close(usage);
}

static void test_corrections(void **state)
{
	const struct kvc_usage_count counts[] = { { 7, 100, 1 }, { 0, 50, 1 }, { 9, 1, 1 } };
	struct kvc_usage_map *usage = open_usage("usage");
	uint64_t drift = 0;

	(void)state;
	kvc_usage_add(usage, 7, 70, 7);
	kvc_usage_add(usage, 8, 80, 8);
	kvc_usage_add(usage, 0, -5, -1);
	assert_int_equal(kvc_usage_correct(usage, 7, 60, 6, &drift), 0);
	assert_int_equal(drift, 10);
	check_namespace(usage, 7, 60, 6);
	assert_true(kvc_usage_is_new(usage));
	/* 7: 40 more; 0: from -5 to 50; 9: 1; 8: gone */
	assert_int_equal(kvc_usage_recount(usage, counts, 3), 40 + 55 + 1 + 80);
	assert_false(kvc_usage_is_new(usage));
	check_namespace(usage, 8, 0, 0);
	check_namespace(usage, 0, 50, 1);
	check_total(usage, 151, 3);
	kvc_usage_close(usage);
}

/* ---------------------------------------------------------------- at the same time */

#define THREADS	   4
#define CHILDREN   3
#define ROUNDS	   4000
#define NAMESPACES 16

static void count_rounds(struct kvc_usage_map *usage)
{
	for (uint64_t i = 0; i < ROUNDS; i++) {
		kvc_usage_add(usage, 1 + i % NAMESPACES, 3, 2);
		kvc_usage_add(usage, 1 + i % NAMESPACES, -1, -1);
	}
}

static void *count_in_thread(void *usage)
{
	count_rounds(usage);
	return NULL;
}

/* Slots are claimed by all at once: nothing is counted twice or in a second slot. */
static void test_threads(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage");
	pthread_t threads[THREADS];

	(void)state;
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_in_thread, usage), 0);
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	check_total(usage, 2 * THREADS * ROUNDS, THREADS * ROUNDS);
	for (uint64_t ns = 1; ns <= NAMESPACES; ns++)
		check_namespace(usage, ns, 2 * THREADS * ROUNDS / NAMESPACES,
				THREADS * ROUNDS / NAMESPACES);
	kvc_usage_close(usage);
}

/* Children open the file themselves, none of them first for sure: one file comes of it. */
static void test_processes(void **state)
{
	const char *path = in_folder("usage");
	struct kvc_usage_map *usage;
	pid_t children[CHILDREN];
	int start[2];
	char byte;

	(void)state;
	assert_int_equal(pipe2(start, O_CLOEXEC), 0);
	for (size_t i = 0; i < CHILDREN; i++) {
		children[i] = fork();
		assert_true(children[i] >= 0);
		if (children[i] == 0) {
			close(start[1]);
			(void)read(start[0], &byte, 1);
			if (kvc_usage_open(path, 0600, &usage) != 0 || !kvc_usage_is_shared(usage))
				_exit(1);
			count_rounds(usage);
			kvc_usage_close(usage);
			_exit(0);
		}
	}
	close(start[0]);
	close(start[1]);
	for (size_t i = 0; i < CHILDREN; i++)
		assert_int_equal(wait_child(children[i]), 0);
	usage = open_usage("usage");
	check_total(usage, 2 * CHILDREN * ROUNDS, CHILDREN * ROUNDS);
	kvc_usage_close(usage);
	assert_int_equal(count_entries(folder), 1);
}

/* ---------------------------------------------------------------- damage */

static void read_whole(uint8_t *bytes)
{
	assert_int_equal(get_file(in_folder("usage"), bytes, FILE_BYTES), FILE_BYTES);
}

/* Any byte of the header that is wrong, any length that is too short: a new file, no crash. */
static void test_damaged_is_made_anew(void **state)
{
	static const size_t lengths[] = { 0, 1, 23, 24, 4095, 4096, 8192, FILE_BYTES - 1 };
	static const size_t flips[] = { 0, 7, 8, 12, 16, 24, 2000, 4091, 4092, 4095 };
	static uint8_t sound[FILE_BYTES], bytes[FILE_BYTES];
	struct kvc_usage_map *usage = open_usage("usage");

	(void)state;
	kvc_usage_add(usage, 5, 100, 1);
	(void)kvc_usage_recount(usage, &(struct kvc_usage_count){ 5, 100, 1 }, 1);
	kvc_usage_close(usage);
	read_whole(sound);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		put_file(in_folder("usage"), sound, lengths[i]);
		usage = open_usage("usage");
		assert_true(kvc_usage_is_shared(usage) && kvc_usage_is_new(usage));
		check_total(usage, 0, 0);
		count_some(usage);
		kvc_usage_close(usage);
	}
	for (size_t i = 0; i < sizeof(flips) / sizeof(flips[0]); i++) {
		memcpy(bytes, sound, sizeof(bytes));
		bytes[flips[i]] ^= 0x40;
		put_file(in_folder("usage"), bytes, sizeof(bytes));
		usage = open_usage("usage");
		assert_true(kvc_usage_is_shared(usage) && kvc_usage_is_new(usage));
		check_total(usage, 0, 0);
		kvc_usage_close(usage);
	}
	assert_int_equal(count_entries(folder), 1);
}

static void test_other_major_is_kept(void **state)
{
	static uint8_t before[FILE_BYTES], after[FILE_BYTES];
	struct kvc_usage_map *usage = open_usage("usage");
	uint32_t crc;

	(void)state;
	kvc_usage_close(usage);
	read_whole(before);
	before[8] = 2;
	crc = kvc_crc32c(before, HEADER_BYTES - sizeof(crc));
	memcpy(before + HEADER_BYTES - sizeof(crc), &crc, sizeof(crc));
	put_file(in_folder("usage"), before, sizeof(before));
	usage = open_usage("usage");
	assert_false(kvc_usage_is_shared(usage));
	count_some(usage);
	kvc_usage_close(usage);
	read_whole(after);
	assert_memory_equal(before, after, sizeof(before));
}

/* Counters that hold anything at all: no crash, sums that stay in their range. */
static void test_hostile_counters(void **state)
{
	static uint8_t bytes[FILE_BYTES];
	struct kvc_usage_map *usage = open_usage("usage");
	uint64_t total = 0, objects = 0;

	(void)state;
	kvc_usage_close(usage);
	read_whole(bytes);
	memset(bytes + 4096, 0x7f, sizeof(bytes) - 4096);
	put_file(in_folder("usage"), bytes, sizeof(bytes));
	usage = open_usage("usage");
	assert_true(kvc_usage_is_shared(usage));
	kvc_usage_total(usage, &total, &objects);
	assert_int_equal(total, UINT64_MAX);
	assert_int_equal(objects, UINT64_MAX);
	kvc_usage_add(usage, 5, INT64_MAX, INT64_MAX);
	(void)kvc_usage_recount(usage, &(struct kvc_usage_count){ 5, 100, 1 }, 1);
	check_total(usage, 100, 1);
	kvc_usage_close(usage);
}

static void test_no_file_possible(void **state)
{
	struct kvc_usage_map *usage;

	(void)state;
	usage = open_usage("missing/usage");
	assert_false(kvc_usage_is_shared(usage));
	count_some(usage);
	kvc_usage_close(usage);
	assert_int_equal(mkdir(in_folder("directory"), 0700), 0);
	usage = open_usage("directory");
	assert_false(kvc_usage_is_shared(usage));
	kvc_usage_close(usage);
	assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
	usage = open_usage("pipe");
	assert_false(kvc_usage_is_shared(usage));
	kvc_usage_close(usage);
	put_file(in_folder("victim"), "precious", 8);
	assert_int_equal(symlink("victim", in_folder("link")), 0);
	usage = open_usage("link");
	assert_false(kvc_usage_is_shared(usage));
	kvc_usage_close(usage);
}

/* A file that is cut while it is mapped: the check heals both processes' views. */
static void test_cut_while_open(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage"), *second = open_usage("usage");

	(void)state;
	kvc_usage_add(usage, 5, 100, 1);
	(void)kvc_usage_recount(usage, &(struct kvc_usage_count){ 5, 100, 1 }, 1);
	assert_int_equal(kvc_usage_check(usage), 0);
	assert_int_equal(truncate(in_folder("usage"), 0), 0);
	assert_int_equal(kvc_usage_check(usage), 1);
	assert_int_equal(kvc_usage_check(second), 1);
	assert_true(kvc_usage_is_new(usage) && kvc_usage_is_new(second));
	kvc_usage_add(usage, 5, 7, 1);
	check_total(second, 7, 1);
	assert_int_equal(kvc_usage_check(usage), 0);
	kvc_usage_close(second);
	kvc_usage_close(usage);
}

static void test_removed_while_open(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage"), *second = open_usage("usage");

	(void)state;
	assert_int_equal(unlink(in_folder("usage")), 0);
	kvc_usage_add(usage, 5, 100, 1);
	assert_int_equal(kvc_usage_check(second), 1);
	assert_int_equal(kvc_usage_check(usage), 1);
	kvc_usage_add(usage, 5, 7, 1);
	check_total(second, 7, 1);
	kvc_usage_close(second);
	kvc_usage_close(usage);
}

/* Cut, and no new file can be made: memory, without SIGBUS. A file later: over to it. */
static void test_cut_and_folder_gone(void **state)
{
	struct kvc_usage_map *usage;

	(void)state;
	assert_int_equal(mkdir(in_folder("root"), 0700), 0);
	usage = open_usage("root/usage");
	(void)kvc_usage_recount(usage, NULL, 0);
	assert_int_equal(truncate(in_folder("root/usage"), 10), 0);
	assert_int_equal(rename(in_folder("root"), in_folder("away")), 0);
	assert_int_equal(kvc_usage_check(usage), 1);
	assert_false(kvc_usage_is_shared(usage));
	assert_true(kvc_usage_is_new(usage));
	count_some(usage);
	(void)kvc_usage_recount(usage, NULL, 0);
	assert_int_equal(mkdir(in_folder("root"), 0700), 0);
	assert_int_equal(kvc_usage_check(usage), 1);
	assert_true(kvc_usage_is_shared(usage));
	assert_true(kvc_usage_is_new(usage));
	kvc_usage_close(usage);
}

/* Checks that replace the mapping while threads count: no crash, and counting goes on. */
static void test_check_while_counting(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage");
	pthread_t thread;
	uint64_t bytes;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, count_in_thread, usage), 0);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(unlink(in_folder("usage")), 0);
		assert_int_equal(kvc_usage_check(usage), 1);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	(void)kvc_usage_recount(usage, NULL, 0);
	count_rounds(usage);
	kvc_usage_total(usage, &bytes, NULL);
	assert_int_equal(bytes, 2 * ROUNDS);
	kvc_usage_close(usage);
}

#define USAGE_TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

/* ---------------------------------------------------------------- counting beside others */

static void remove_now(struct kvc_usage_map *usage, uint64_t ns, unsigned number, uint64_t bytes)
{
	const struct kvc_usage_before before = kvc_usage_before(usage);

	kvc_usage_removed(usage, &before, ns, number, bytes);
}

/* Folders that nothing changes in, up to so many in all. */
static void scan_to(struct kvc_usage_map *usage, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++) {
		kvc_usage_scan_folder(usage, false);
		assert_int_equal(kvc_usage_scan_done(usage), 1);
	}
}

/* Folder 0 holds 2 objects of 100, folder 200 holds 3 of namespace 5; the counts say nothing. What
 * comes and goes meanwhile is in the result once, wherever it lies. */
static void test_a_scan(void **state)
{
	struct kvc_usage_count counts[2] = { { 5, 0, 0 }, { 6, 0, 0 } };
	struct kvc_usage_map *usage = open_usage("usage"), *other = open_usage("usage");
	uint64_t drift;

	(void)state;
	assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
	assert_true(kvc_usage_is_new(usage) && kvc_usage_scan_goes_on(usage));
	kvc_usage_scan_folder(usage, false);
	/* Removed before its folder is counted; stored in the one that is just being counted. */
	remove_now(other, 5, 200, 100);
	kvc_usage_change(other, 6, 0, 50, 1);
	assert_int_equal(kvc_usage_scan_done(usage), 0);
	kvc_usage_scan_folder(usage, false);
	counts[0] = (struct kvc_usage_count){ 5, 200, 2 };
	counts[1] = (struct kvc_usage_count){ 6, 50, 1 };
	assert_int_equal(kvc_usage_scan_done(usage), 1);
	/* Both behind it; then in the next one. */
	kvc_usage_scan_folder(usage, false);
	remove_now(other, 5, 0, 100);
	kvc_usage_change(other, 6, 0, 50, 1);
	assert_int_equal(kvc_usage_scan_done(usage), 1);
	kvc_usage_scan_folder(usage, false);
	kvc_usage_change(other, 5, 2, 1000, 1);
	assert_int_equal(kvc_usage_scan_done(usage), 0);
	counts[0].bytes += 1000 + 2 * 100;
	counts[0].objects += 1 + 2;
	scan_to(usage, 2, 256);
	remove_now(other, 6, 255, 50);
	assert_true(kvc_usage_scan_settle(usage, counts, 2, &drift));
	check_namespace(other, 5, 100 + 1000 + 200, 1 + 1 + 2);
	check_namespace(other, 6, 50, 1);
	assert_false(kvc_usage_is_new(other) || kvc_usage_is_due(other));
	assert_false(kvc_usage_scan_goes_on(usage));
	assert_int_equal(kvc_usage_recounts(other), 1);
	/* Once more: nothing is off. */
	assert_int_equal(kvc_usage_scan_begin(other, 78), 0);
	assert_true(kvc_usage_is_due(usage));
	counts[0] = (struct kvc_usage_count){ 5, 1300, 4 };
	counts[1] = (struct kvc_usage_count){ 6, 50, 1 };
	scan_to(other, 0, 256);
	assert_true(kvc_usage_scan_settle(other, counts, 2, &drift));
	assert_int_equal(drift, 0);
	check_namespace(other, 5, 1300, 4);
	kvc_usage_close(usage);
	kvc_usage_close(other);
}

/* As a process does that knows of no scans: the count, and 1 where it says so. */
static void recount_as_before(void)
{
	const uint64_t count[3] = { 5, 700, 7 }, counted = 1;
	const int fd = open(in_folder("usage"), O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, count, sizeof(count), 8192), sizeof(count));
	assert_int_equal(pwrite(fd, &counted, sizeof(counted), 4128), sizeof(counted));
	(void)close(fd);
}

/* One that a recount, a lost file or another scan has overtaken changes nothing. */
static void test_a_scan_is_void(void **state)
{
	struct kvc_usage_count count = { 5, 100, 1 };
	struct kvc_usage_map *usage = open_usage("usage"), *other = open_usage("usage");
	uint64_t drift;

	(void)state;
	for (int by = 0; by < 4; by++) {
		(void)kvc_usage_recount(usage, &count, 1);
		assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
		scan_to(usage, 0, 1);
		kvc_usage_scan_folder(usage, false);
		if (by == 0)
			(void)kvc_usage_recount(other, &count, 1);
		else if (by == 1)
			assert_int_equal(kvc_usage_scan_begin(other, 78), 0);
		else if (by == 2)
			kvc_usage_drop(other);
		else
			recount_as_before();
		assert_false(kvc_usage_scan_goes_on(usage));
		kvc_usage_scan_folder(usage, true);
		assert_int_equal(kvc_usage_scan_done(usage), -ESTALE);
		assert_false(kvc_usage_scan_settle(usage, &count, 1, &drift));
		kvc_usage_scan_end(usage);
		if (by == 1)
			assert_true(kvc_usage_scan_goes_on(other));
		kvc_usage_scan_end(other);
		assert_int_equal(kvc_usage_scan_position(usage), 0);
		/* One that was given up is due again. */
		assert_true(kvc_usage_is_due(usage) == (by == 1));
		assert_true(kvc_usage_is_new(usage) == (by == 2));
	}
	check_namespace(usage, 5, 700, 7);
	kvc_usage_close(usage);
	kvc_usage_close(other);
}

/* Not all folders were counted: it is no result. */
static void test_a_scan_settles_at_its_end(void **state)
{
	const struct kvc_usage_count count = { 5, 100, 1 };
	struct kvc_usage_map *usage = open_usage(NULL);
	uint64_t drift;

	(void)state;
	assert_false(kvc_usage_scan_settle(usage, &count, 1, &drift));
	assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
	scan_to(usage, 0, 255);
	assert_false(kvc_usage_scan_settle(usage, &count, 1, &drift));
	scan_to(usage, 255, 256);
	assert_true(kvc_usage_scan_settle(usage, &count, 1, &drift));
	check_total(usage, 100, 1);
	kvc_usage_close(usage);
}

/* Who dies while a scan goes on may have been at a folder that was counted already. */
static void test_due_while_scanned(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage"), *other = open_usage("usage");
	uint64_t drift;

	(void)state;
	(void)kvc_usage_recount(usage, NULL, 0);
	kvc_usage_set_due(usage, false);
	assert_false(kvc_usage_is_due(usage));
	for (int dies = 1; dies >= 0; dies--) {
		kvc_usage_set_due(usage, true);
		assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
		scan_to(usage, 0, 100);
		if (dies)
			kvc_usage_set_due(other, true);
		scan_to(usage, 100, 256);
		assert_true(kvc_usage_scan_settle(usage, NULL, 0, &drift));
		assert_true(kvc_usage_is_due(other) == dies);
	}
	/* One that could not be made is not tried again, unless somebody died meanwhile. */
	for (int dies = 1; dies >= 0; dies--) {
		assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
		if (dies)
			kvc_usage_set_due(other, true);
		kvc_usage_scan_end(usage);
		kvc_usage_set_due(usage, false);
		assert_true(kvc_usage_is_due(other) == dies);
	}
	kvc_usage_close(usage);
	kvc_usage_close(other);
}

/* What is on its way out when a scan is settled may be missed by it, or not. */
static void test_removed_at_the_end(void **state)
{
	static const struct {
		unsigned before, folder;
		bool due;
	} all[] = { { 100, 99, false }, { 100, 100, true }, { 256, 255, false } };
	struct kvc_usage_map *usage = open_usage(NULL);
	struct kvc_usage_before before;
	uint64_t drift;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		(void)kvc_usage_recount(usage, NULL, 0);
		assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
		scan_to(usage, 0, all[i].before);
		before = kvc_usage_before(usage);
		scan_to(usage, all[i].before, 256);
		assert_true(kvc_usage_scan_settle(usage, NULL, 0, &drift));
		kvc_usage_removed(usage, &before, 5, all[i].folder, 100);
		assert_true(kvc_usage_is_due(usage) == all[i].due);
	}
	/* All of a scan. */
	(void)kvc_usage_recount(usage, NULL, 0);
	before = kvc_usage_before(usage);
	assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
	scan_to(usage, 0, 256);
	assert_true(kvc_usage_scan_settle(usage, NULL, 0, &drift));
	kvc_usage_removed(usage, &before, 5, 0, 100);
	assert_true(kvc_usage_is_due(usage));
	kvc_usage_close(usage);
}

/* What goes while its folder is counted may be in the count: that is not taken for granted. */
static void test_removed_meanwhile(void **state)
{
	const struct kvc_usage_count count = { 5, 300, 3 };
	struct kvc_usage_map *usage = open_usage(NULL);
	struct kvc_usage_before before;
	uint64_t drift;

	(void)state;
	before = kvc_usage_before(usage);
	kvc_usage_removed(usage, &before, 5, 0, 100);
	assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
	kvc_usage_scan_folder(usage, false);
	kvc_usage_removed(usage, &before, 5, 0, 100); /* begun before the scan */
	assert_int_equal(kvc_usage_scan_done(usage), 0);
	before = kvc_usage_before(usage);
	scan_to(usage, 0, 1);
	kvc_usage_scan_folder(usage, false);
	kvc_usage_removed(usage, &before, 5, 0, 100);
	remove_now(usage, 5, 0, 100);
	remove_now(usage, 5, 0, UINT64_MAX);
	assert_int_equal(kvc_usage_scan_done(usage), 1);
	scan_to(usage, 2, 256);
	assert_true(kvc_usage_scan_settle(usage, &count, 1, &drift));
	check_namespace(usage, 5, 200, 1);
	kvc_usage_close(usage);
}

/* A folder that changes all the time is done once; the result is too high then, not too low. */
static void test_a_folder_for_the_last_time(void **state)
{
	const struct kvc_usage_count count = { 5, 300, 3 };
	struct kvc_usage_map *usage = open_usage(NULL);
	struct kvc_usage_before before;
	uint64_t drift;

	(void)state;
	assert_int_equal(kvc_usage_scan_begin(usage, 77), 0);
	kvc_usage_scan_folder(usage, false);
	kvc_usage_change(usage, 5, 0, 100, 1);
	assert_int_equal(kvc_usage_scan_done(usage), 0);
	before = kvc_usage_before(usage);
	kvc_usage_scan_folder(usage, true);
	kvc_usage_change(usage, 5, 0, 100, 1);
	kvc_usage_removed(usage, &before, 5, 0, 100);
	assert_int_equal(kvc_usage_scan_done(usage), 1);
	scan_to(usage, 1, 256);
	assert_true(kvc_usage_scan_settle(usage, &count, 1, &drift));
	check_namespace(usage, 5, 400, 4);
	kvc_usage_close(usage);
}

/* Each delta on its own, and both signs of both numbers. */
static void test_early_numbers(void **state)
{
	static const int64_t bytes[] = { 0, 1, -1, 4096, INT64_C(1) << 40, -(INT64_C(1) << 40) };
	static const int64_t objects[] = { 0, 1, -1, 1 << 20, -(1 << 20) };
	struct kvc_usage_map *usage = open_usage(NULL);
	uint64_t drift;

	(void)state;
	for (size_t b = 0; b < 6; b++)
		for (size_t o = 0; o < 5; o++) {
			struct kvc_usage_count count = { 5, UINT64_C(1) << 41, UINT64_C(1) << 21 };

			assert_int_equal(kvc_usage_scan_begin(usage, 1 + b * 8 + o), 0);
			kvc_usage_change(usage, 5, 255, bytes[b], objects[o]);
			scan_to(usage, 0, 256);
			assert_true(kvc_usage_scan_settle(usage, &count, 1, &drift));
			check_namespace(usage, 5, count.bytes, count.objects);
		}
	kvc_usage_close(usage);
}

#define LIVE_THREADS 3
#define LIVE_FOLDERS 4 /* spread over all, so that each is counted while something changes in it */

/* What lies in a root that threads store in and remove from. */
struct live {
	struct kvc_usage_map *usage;
	atomic_uint there[LIVE_THREADS][LIVE_FOLDERS];
	atomic_bool stop;
	atomic_uint number;
};

/* Its number. */
static unsigned live_folder(unsigned i)
{
	return i * 255 / (LIVE_FOLDERS - 1);
}

static void *live_thread(void *context)
{
	struct live *live = context;
	const unsigned number = atomic_fetch_add(&live->number, 1);
	uint64_t random = number + 1;

	while (!atomic_load(&live->stop)) {
		const unsigned i = (random >> 33) % LIVE_FOLDERS;
		atomic_uint *there = &live->there[number][i];

		random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		if (atomic_load(there) == 0 || random >> 63) {
			atomic_fetch_add(there, 1);
			kvc_usage_change(live->usage, 5, live_folder(i), 100, 1);
		} else {
			const struct kvc_usage_before before = kvc_usage_before(live->usage);

			atomic_fetch_sub(there, 1);
			kvc_usage_removed(live->usage, &before, 5, live_folder(i), 100);
		}
	}
	return NULL;
}

static uint64_t live_objects(struct live *live, unsigned i)
{
	uint64_t objects = 0;

	for (unsigned t = 0; t < LIVE_THREADS; t++)
		objects += atomic_load(&live->there[t][i]);
	return objects;
}

static void live_scan(struct live *live, uint64_t token, bool gives_up)
{
	struct kvc_usage_count count = { .ns_hash = 5 };
	unsigned next = 0;
	uint64_t drift;

	assert_int_equal(kvc_usage_scan_begin(live->usage, token), 0);
	for (unsigned i = 0; i < 256; i++) {
		const bool has = next < LIVE_FOLDERS && i == live_folder(next);
		uint64_t objects = 0;
		int rc = 0;

		for (unsigned tries = 1; rc == 0; tries++) {
			kvc_usage_scan_folder(live->usage, gives_up && tries == 4);
			objects = has ? live_objects(live, next) : 0;
			rc = kvc_usage_scan_done(live->usage);
		}
		assert_int_equal(rc, 1);
		next += has;
		count.objects += objects;
	}
	count.bytes = 100 * count.objects;
	assert_true(kvc_usage_scan_settle(live->usage, &count, 1, &drift));
}

/* Each scan beside threads that change what it counts is right but for what is under way when a
 * folder of theirs is counted (unless a thread has to wait for its turn just then), and in one that
 * is counted for the last time; and never too low. */
static void test_scans_beside_threads(void **state)
{
	unsigned off = 0;

	(void)state;
	for (unsigned round = 0; round < 400; round++) {
		struct live live = { .usage = open_usage(NULL) };
		const bool gives_up = round % 2;
		pthread_t threads[LIVE_THREADS];
		uint64_t bytes, objects, there = 0;

		(void)kvc_usage_recount(live.usage, NULL, 0);
		for (unsigned t = 0; t < LIVE_THREADS; t++)
			assert_int_equal(pthread_create(&threads[t], NULL, live_thread, &live), 0);
		for (unsigned scan = 0; scan < 4; scan++)
			live_scan(&live, round * 4 + scan + 1, gives_up);
		atomic_store(&live.stop, true);
		for (unsigned t = 0; t < LIVE_THREADS; t++)
			assert_int_equal(pthread_join(threads[t], NULL), 0);
		for (unsigned i = 0; i < LIVE_FOLDERS; i++)
			there += live_objects(&live, i);
		kvc_usage_total(live.usage, &bytes, &objects);
		/* Otherwise a thread has told that it had to wait too long. */
		if (!kvc_usage_is_due(live.usage))
			assert_true(bytes >= 100 * there && objects >= there);
		off += !gives_up && objects > there + LIVE_THREADS * (LIVE_FOLDERS + 1);
		kvc_usage_close(live.usage);
	}
	assert_in_range(off, 0, 100);
}

/* A root that is opened by several at once: what one stores between the look and the confirmation
 * of another stays counted. */
static void test_confirm(void **state)
{
	struct kvc_usage_map *usage = open_usage("usage"), *other = open_usage("usage");

	(void)state;
	assert_true(kvc_usage_is_untouched(usage) && kvc_usage_is_new(usage));
	kvc_usage_confirm(other);
	kvc_usage_change(other, 5, 0, 100, 1);
	kvc_usage_confirm(usage);
	assert_false(kvc_usage_is_untouched(usage) || kvc_usage_is_new(usage));
	check_total(usage, 100, 1);
	kvc_usage_set_due(usage, true);
	kvc_usage_confirm(usage);
	assert_true(kvc_usage_is_due(usage));
	kvc_usage_close(usage);
	kvc_usage_close(other);
}

/* After a start of the system the counts are due, once. */
static void test_another_boot(void **state)
{
	const struct kvc_usage_count count = { 5, 4096, 1 };
	struct kvc_usage_map *usage = open_usage("boot");
	uint64_t words[2];
	int fd;

	(void)state;
	kvc_usage_add(usage, 5, 4096, 1);
	(void)kvc_usage_recount(usage, &count, 1);
	kvc_usage_close(usage);
	usage = open_usage("boot");
	assert_false(kvc_usage_is_due(usage));
	kvc_usage_close(usage);
	fd = open(in_folder("boot"), O_RDWR | O_CLOEXEC);
	assert_int_equal(pread(fd, words, sizeof(words), 4168), sizeof(words));
	assert_true(words[0] != 0 || words[1] != 0);
	words[1] ^= 1;
	assert_int_equal(pwrite(fd, words, sizeof(words), 4168), sizeof(words));
	assert_int_equal(close(fd), 0);
	usage = open_usage("boot");
	assert_true(kvc_usage_is_due(usage));
	assert_false(kvc_usage_is_new(usage));
	check_namespace(usage, 5, 4096, 1);
	(void)kvc_usage_recount(usage, &count, 1);
	kvc_usage_close(usage);
	usage = open_usage("boot");
	assert_false(kvc_usage_is_due(usage));
	kvc_usage_close(usage);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		USAGE_TEST(test_memory),
		USAGE_TEST(test_loaded_counts),
		USAGE_TEST(test_file_keeps_counts),
		USAGE_TEST(test_mode),
		USAGE_TEST(test_full_table),
		USAGE_TEST(test_corrections),
		USAGE_TEST(test_threads),
		USAGE_TEST(test_processes),
		USAGE_TEST(test_damaged_is_made_anew),
		USAGE_TEST(test_other_major_is_kept),
		USAGE_TEST(test_hostile_counters),
		USAGE_TEST(test_no_file_possible),
		USAGE_TEST(test_cut_while_open),
		USAGE_TEST(test_removed_while_open),
		USAGE_TEST(test_cut_and_folder_gone),
		USAGE_TEST(test_check_while_counting),
		USAGE_TEST(test_a_scan),
		USAGE_TEST(test_a_scan_is_void),
		USAGE_TEST(test_removed_meanwhile),
		USAGE_TEST(test_removed_at_the_end),
		USAGE_TEST(test_early_numbers),
		USAGE_TEST(test_a_scan_settles_at_its_end),
		USAGE_TEST(test_due_while_scanned),
		USAGE_TEST(test_another_boot),
		USAGE_TEST(test_a_folder_for_the_last_time),
		USAGE_TEST(test_scans_beside_threads),
		USAGE_TEST(test_confirm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
