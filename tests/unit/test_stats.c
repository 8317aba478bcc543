/* SPDX-License-Identifier: Apache-2.0 */
/* core/stats.h: counters, their pages, and their three texts. */
#include "counter_helper.h"

#include "core/stats.h"
#include "core/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>

#define PAGE_BYTES   8192
#define HEADER_BYTES 128

static struct kvc_counters *open_counters(const char *name)
{
	struct kvc_counters *counters = NULL;

	assert_int_equal(kvc_counters_open(name ? in_folder(name) : NULL, 0600, &counters), 0);
	return counters;
}

static struct kvc_stats read_counters(struct kvc_counters *counters)
{
	struct kvc_stats stats = { .size = sizeof(stats) };

	assert_int_equal(kvc_counters_read(counters, &stats), 0);
	return stats;
}

static void count_some(struct kvc_counters *counters)
{
	kvc_counters_pages(counters, KVC_GET, KVC_OK, KVC_CAUSE_NONE, 5, 5000);
	kvc_counters_page(counters, KVC_GET, KVC_MISS, KVC_CAUSE_ABSENT, 4096);
	kvc_counters_call(counters, KVC_GET, 100);
	kvc_counters_add(counters, KVC_COUNTER_PARKED_QUEUES, 3);
	kvc_counters_add(counters, KVC_COUNTER_PARKED_QUEUES, -1);
	kvc_counters_add(counters, KVC_COUNTER_USAGE_DRIFT, 4096);
}

static void check_some(const struct kvc_stats *stats)
{
	const struct kvc_operation_stats *const get = &stats->operations[KVC_GET];
	struct kvc_operation_stats nothing;

	memset(&nothing, 0, sizeof(nothing));
	assert_int_equal(get->calls, 1);
	assert_int_equal(get->pages, 6);
	assert_int_equal(get->bytes, 5000); /* none for a miss */
	assert_int_equal(get->statuses[KVC_OK], 5);
	assert_int_equal(get->statuses[KVC_MISS], 1);
	assert_int_equal(get->causes[KVC_CAUSE_NONE], 5);
	assert_int_equal(get->causes[KVC_CAUSE_ABSENT], 1);
	assert_int_equal(get->latency_us_sum, 100);
	assert_int_equal(get->latency_us[7], 1); /* 64 <= 100 < 128 */
	assert_int_equal(stats->parked_queues, 2);
	assert_int_equal(stats->usage_drift, 4096);
	assert_int_equal(stats->overruns, 0);
	for (int op = 0; op < 8; op++)
		if (op != KVC_GET)
			assert_memory_equal(&stats->operations[op], &nothing, sizeof(nothing));
}

/* ---------------------------------------------------------------- counting */

static void test_memory(void **state)
{
	struct kvc_counters *counters = open_counters(NULL);
	struct kvc_stats stats;

	(void)state;
	assert_string_equal(kvc_counters_path(counters), "");
	count_some(counters);
	stats = read_counters(counters);
	check_some(&stats);
	kvc_counters_check(counters);
	kvc_counters_close(counters);
	kvc_counters_close(NULL);
}

/* What is no operation, status, cause or counter hits no other counter. */
static void test_out_of_range(void **state)
{
	struct kvc_counters *counters = open_counters(NULL);
	struct kvc_stats stats, nothing;

	(void)state;
	memset(&nothing, 0, sizeof(nothing));
	nothing.size = sizeof(nothing);
	kvc_counters_page(counters, -1, KVC_OK, KVC_CAUSE_NONE, 1);
	kvc_counters_page(counters, KVC_OPERATION_COUNT, KVC_OK, KVC_CAUSE_NONE, 1);
	kvc_counters_page(counters, KVC_GET, -1, KVC_CAUSE_NONE, 1);
	kvc_counters_page(counters, KVC_GET, KVC_SKIPPED + 1, KVC_CAUSE_NONE, 1);
	kvc_counters_page(counters, KVC_GET, KVC_OK, -1, 1);
	kvc_counters_page(counters, KVC_GET, KVC_OK, KVC_CAUSE_COUNT, 1);
	kvc_counters_call(counters, KVC_OPERATION_COUNT, 1);
	kvc_counters_add(counters, KVC_COUNTER_COUNT, 1);
	stats = read_counters(counters);
	assert_memory_equal(&stats, &nothing, sizeof(stats));
	kvc_counters_close(counters);
}

/* Each counter goes to the field that has its name. */
static void test_counter_fields(void **state)
{
	struct kvc_counters *counters = open_counters(NULL);
	struct kvc_stats stats;

	(void)state;
	for (int i = 0; i < KVC_COUNTER_COUNT; i++)
		kvc_counters_add(counters, (enum kvc_counter)i, i + 1);
	stats = read_counters(counters);
	assert_int_equal(stats.overruns, 1 + KVC_COUNTER_OVERRUNS);
	assert_int_equal(stats.retries, 1 + KVC_COUNTER_RETRIES);
	assert_int_equal(stats.bounced, 1 + KVC_COUNTER_BOUNCED);
	assert_int_equal(stats.fallbacks, 1 + KVC_COUNTER_FALLBACKS);
	assert_int_equal(stats.reclaimed, 1 + KVC_COUNTER_RECLAIMED);
	assert_int_equal(stats.removed_corrupt, 1 + KVC_COUNTER_REMOVED_CORRUPT);
	assert_int_equal(stats.parked_queues, 1 + KVC_COUNTER_PARKED_QUEUES);
	assert_int_equal(stats.host_registrations, 1 + KVC_COUNTER_HOST_REGISTRATIONS);
	assert_int_equal(stats.storage_registrations, 1 + KVC_COUNTER_STORAGE_REGISTRATIONS);
	assert_int_equal(stats.usage_drift, 1 + KVC_COUNTER_USAGE_DRIFT);
	assert_int_equal(stats.evicted, 1 + KVC_COUNTER_EVICTED);
	assert_int_equal(stats.evicted_bytes, 1 + KVC_COUNTER_EVICTED_BYTES);
	assert_int_equal(stats.ghost_hits, 1 + KVC_COUNTER_GHOST_HITS);
	assert_int_equal(stats.prefix_calls, 1 + KVC_COUNTER_PREFIX_CALLS);
	assert_int_equal(stats.prefix_pages_asked, 1 + KVC_COUNTER_PREFIX_PAGES_ASKED);
	assert_int_equal(stats.prefix_pages_found, 1 + KVC_COUNTER_PREFIX_PAGES_FOUND);
	kvc_counters_evicted(counters, 2, 8192);
	kvc_counters_prefix(counters, 5, 3);
	kvc_counters_prefix(counters, 7, 0);
	stats = read_counters(counters);
	assert_int_equal(stats.evicted, 3 + KVC_COUNTER_EVICTED);
	assert_int_equal(stats.evicted_bytes, 8193 + KVC_COUNTER_EVICTED_BYTES);
	assert_int_equal(stats.prefix_calls, 3 + KVC_COUNTER_PREFIX_CALLS);
	assert_int_equal(stats.prefix_pages_asked, 13 + KVC_COUNTER_PREFIX_PAGES_ASKED);
	assert_int_equal(stats.prefix_pages_found, 4 + KVC_COUNTER_PREFIX_PAGES_FOUND);
	kvc_counters_close(counters);
}

/* What was counted in memory is in the page; nobody counts on in memory. */
static void test_move(void **state)
{
	struct kvc_counters *counters = open_counters(NULL);
	struct kvc_stats stats;

	(void)state;
	kvc_counters_add(counters, KVC_COUNTER_EVICTED, 3);
	kvc_counters_page(counters, KVC_GET, KVC_OK, KVC_CAUSE_NONE, 100);
	kvc_counters_move(counters, "/proc/nowhere", 0600);
	assert_string_equal(kvc_counters_path(counters), "");
	kvc_counters_move(counters, in_folder(".kvcellar"), 0600);
	assert_string_not_equal(kvc_counters_path(counters), "");
	kvc_counters_add(counters, KVC_COUNTER_EVICTED, 4);
	kvc_counters_check(counters);
	stats = read_counters(counters);
	assert_int_equal(stats.evicted, 7);
	assert_int_equal(stats.operations[KVC_GET].bytes, 100);
	kvc_counters_close(counters);
}

static void test_latency_buckets(void **state)
{
	struct kvc_counters *counters = open_counters(NULL);
	struct kvc_stats stats;

	(void)state;
	kvc_counters_call(counters, KVC_SET, 0);
	for (int i = 0; i < 64; i++) {
		kvc_counters_call(counters, KVC_SET, UINT64_C(1) << i);
		if (i > 0)
			kvc_counters_call(counters, KVC_SET, (UINT64_C(1) << i) - 1);
	}
	stats = read_counters(counters);
	assert_int_equal(stats.operations[KVC_SET].calls, 128);
	assert_int_equal(stats.operations[KVC_SET].latency_us[0], 1);
	for (int i = 1; i < KVC_HISTOGRAM_BUCKETS - 1; i++)
		assert_int_equal(stats.operations[KVC_SET].latency_us[i], 2);
	assert_int_equal(stats.operations[KVC_SET].latency_us[31], 67);
	kvc_counters_close(counters);
}

static void test_sizes(void **state)
{
	struct kvc_counters *counters = open_counters(NULL);
	struct {
		struct kvc_stats stats;
		uint64_t later;
	} newer = { .stats.size = sizeof(newer), .later = 99 };
	struct kvc_stats small = { .size = KVC_STATS_BYTES_0_1 - 1 };

	(void)state;
	count_some(counters);
	assert_int_equal(kvc_counters_read(counters, &small), -EINVAL);
	assert_int_equal(small.operations[KVC_GET].pages, 0);
	assert_int_equal(kvc_counters_read(counters, &newer.stats), 0);
	assert_int_equal(newer.stats.size, sizeof(newer));
	assert_int_equal(newer.later, 0);
	check_some(&newer.stats);
	assert_true(kvc_stats_text(&newer.stats, KVC_FORMAT_TEXT, NULL, 0) > 0);
	newer.later = 1;
	assert_int_equal(kvc_stats_text(&newer.stats, KVC_FORMAT_TEXT, NULL, 0), -E2BIG);
	assert_int_equal(kvc_stats_text(&small, KVC_FORMAT_TEXT, NULL, 0), -EINVAL);
	assert_int_equal(kvc_stats_text(NULL, KVC_FORMAT_TEXT, NULL, 0), -EINVAL);
	newer.later = 0;
	assert_int_equal(kvc_stats_text(&newer.stats, 3, NULL, 0), -EINVAL);
	kvc_counters_close(counters);
}

#define THREADS 4
#define ROUNDS	5000

static void *count_rounds(void *counters)
{
	for (int i = 0; i < ROUNDS; i++) {
		kvc_counters_pages(counters, KVC_SET, KVC_OK, KVC_CAUSE_EXISTED, 2, 10);
		kvc_counters_call(counters, KVC_SET, 3);
		kvc_counters_add(counters, KVC_COUNTER_HOST_REGISTRATIONS, i % 2 == 0 ? 1 : -1);
	}
	return NULL;
}

static void check_rounds(struct kvc_counters *counters, uint64_t counters_of)
{
	const struct kvc_stats stats = read_counters(counters);

	assert_int_equal(stats.operations[KVC_SET].pages, 2 * ROUNDS * counters_of);
	assert_int_equal(stats.operations[KVC_SET].bytes, 10 * ROUNDS * counters_of);
	assert_int_equal(stats.operations[KVC_SET].causes[KVC_CAUSE_EXISTED],
			 2 * ROUNDS * counters_of);
	assert_int_equal(stats.operations[KVC_SET].calls, ROUNDS * counters_of);
	assert_int_equal(stats.operations[KVC_SET].latency_us[2], ROUNDS * counters_of);
	assert_int_equal(stats.host_registrations, 0);
}

static void test_threads(void **state)
{
	struct kvc_counters *counters = open_counters("h");
	pthread_t threads[THREADS];

	(void)state;
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_rounds, counters), 0);
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	check_rounds(counters, THREADS);
	kvc_counters_close(counters);
}

/* A child after fork counts in the same page, and its close leaves the page there. */
static void test_forked_child(void **state)
{
	struct kvc_counters *counters = open_counters("h");
	const pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (child == 0) {
		(void)count_rounds(counters);
		kvc_counters_close(counters);
		_exit(0);
	}
	(void)count_rounds(counters);
	assert_int_equal(wait_child(child), 0);
	check_rounds(counters, 2);
	assert_int_equal(access(kvc_counters_path(counters), F_OK), 0);
	kvc_counters_close(counters);
	assert_int_equal(count_entries(in_folder("h/stats")), 0);
}

/* ---------------------------------------------------------------- pages */

struct seen {
	int count;
	int pid;
	struct kvc_stats last;
};

static int remember(void *context, int pid, const struct kvc_stats *stats)
{
	struct seen *const seen = context;

	seen->count++;
	seen->pid = pid;
	seen->last = *stats;
	return 0;
}

static int stop(void *context, int pid, const struct kvc_stats *stats)
{
	(void)pid;
	(void)stats;
	return ++*(int *)context, 42;
}

static struct seen look(const char *name)
{
	struct seen seen;

	memset(&seen, 0, sizeof(seen));
	assert_int_equal(kvc_stats_pages(in_folder(name), remember, &seen), 0);
	return seen;
}

static void test_page_is_found(void **state)
{
	static const char *const places[] = { "", ".kvcellar", ".kvcellar/stats" };
	struct kvc_counters *counters = open_counters(".kvcellar"), *second;
	struct stat st;
	struct seen seen;
	int calls = 0;

	(void)state;
	count_some(counters);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		seen = look(places[i]);
		assert_int_equal(seen.count, 1);
		assert_int_equal(seen.pid, getpid());
		assert_int_equal(seen.last.size, sizeof(seen.last));
		check_some(&seen.last);
	}
	assert_int_equal(stat(kvc_counters_path(counters), &st), 0);
	assert_int_equal(st.st_size, PAGE_BYTES);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_true(st.st_blocks * 512 >= PAGE_BYTES);
	second = open_counters(".kvcellar");
	assert_int_equal(look("").count, 2);
	assert_int_equal(kvc_stats_pages(in_folder(""), stop, &calls), 42);
	assert_int_equal(calls, 1);
	kvc_counters_close(counters);
	assert_int_equal(look("").count, 1);
	kvc_counters_close(second);
	assert_int_equal(look("").count, 0);
	assert_int_equal(count_entries(in_folder(".kvcellar/stats")), 0);
}

static void test_runtime_folder(void **state)
{
	struct kvc_counters *counters = open_counters("kvcellar");

	(void)state;
	assert_int_equal(look("").count, 1);
	kvc_counters_close(counters);
}

static void test_mode(void **state)
{
	const mode_t before = umask(0077);
	struct kvc_counters *counters = NULL;
	struct stat st;

	(void)state;
	assert_int_equal(kvc_counters_open(in_folder("h"), 0640, &counters), 0);
	(void)umask(before);
	assert_int_equal(stat(kvc_counters_path(counters), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(stat(in_folder("h/stats"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0750);
	kvc_counters_close(counters);
}

/* A process that was killed leaves its page: nobody sees it, the next opener removes it. */
static void test_dead_page(void **state)
{
	const char *path = in_folder("h");
	struct kvc_counters *counters;
	int ready[2];
	pid_t child;
	char byte;

	(void)state;
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		if (kvc_counters_open(path, 0600, &counters) != 0)
			_exit(1);
		count_some(counters);
		(void)write(ready[1], "r", 1);
		for (;;)
			(void)pause();
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	assert_int_equal(look("h").count, 1);
	assert_int_equal(look("h").pid, child);
	/* While it lives nobody removes it. */
	counters = open_counters("h");
	assert_int_equal(look("h").count, 2);
	kvc_counters_close(counters);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(wait_child(child), -1);
	assert_int_equal(count_entries(in_folder("h/stats")), 1);
	assert_int_equal(look("h").count, 0);
	counters = open_counters("h");
	assert_int_equal(count_entries(in_folder("h/stats")), 1);
	assert_int_equal(look("h").pid, getpid());
	kvc_counters_close(counters);
}

static void test_missing_folder(void **state)
{
	struct seen seen;

	(void)state;
	memset(&seen, 0, sizeof(seen));
	assert_int_equal(kvc_stats_pages(in_folder("none"), remember, &seen), -ENOENT);
	assert_non_null(strstr(kvc_last_error(), "/none"));
	assert_int_equal(kvc_stats_pages(NULL, remember, &seen), -EINVAL);
	assert_int_equal(kvc_stats_pages(folder, NULL, &seen), -EINVAL);
	assert_int_equal(seen.count, 0);
}

static void lock_file(int fd)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
}

/* Puts a page of that content under a name of a page, locked as if its process lived. */
static int put_page(const char *name, const uint8_t *bytes, size_t length)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "stats/%s", name);
	put_file(in_folder(path), bytes, length);
	fd = open(in_folder(path), O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	lock_file(fd);
	return fd;
}

/* A sound page of pid 77, and the name it needs. */
#define NAME_77 "77-00112233445566778899aabbccddeeff"

static void copy_page(uint8_t bytes[PAGE_BYTES], pid_t *pid)
{
	struct kvc_counters *counters = open_counters("made");

	count_some(counters);
	assert_int_equal(get_file(kvc_counters_path(counters), bytes, PAGE_BYTES), PAGE_BYTES);
	*pid = getpid();
	kvc_counters_close(counters);
	assert_int_equal(mkdir(in_folder("stats"), 0700), 0);
}

static void test_hostile_pages(void **state)
{
	static const size_t lengths[] = { 0, 1, 23, 24, 127, 128, 4096, PAGE_BYTES - 1 };
	uint8_t sound[PAGE_BYTES], bytes[PAGE_BYTES];
	char name[64];
	struct seen seen;
	pid_t pid;
	int fd;

	(void)state;
	copy_page(sound, &pid);
	(void)snprintf(name, sizeof(name), "%d-00112233445566778899aabbccddeeff", (int)pid);
	fd = put_page(name, sound, sizeof(sound));
	seen = look("");
	assert_int_equal(seen.count, 1);
	check_some(&seen.last);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		assert_int_equal(ftruncate(fd, 0), 0);
		assert_int_equal(pwrite(fd, sound, lengths[i], 0), (ssize_t)lengths[i]);
		assert_int_equal(look("").count, 0);
	}
	/* Every bit of the header counts; the counters may be anything. */
	for (size_t i = 0; i < HEADER_BYTES; i++) {
		memcpy(bytes, sound, sizeof(bytes));
		bytes[i] ^= (uint8_t)(1u << i % 8);
		assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), PAGE_BYTES);
		assert_int_equal(look("").count, 0);
	}
	memset(bytes + HEADER_BYTES, 0xff, sizeof(bytes) - HEADER_BYTES);
	memcpy(bytes, sound, HEADER_BYTES);
	assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 0), PAGE_BYTES);
	seen = look("");
	assert_int_equal(seen.count, 1);
	for (int format = 0; format <= KVC_FORMAT_PROMETHEUS; format++)
		assert_true(kvc_stats_text(&seen.last, format, NULL, 0) > 0);
	close(fd);
	/* Nobody holds it any more. */
	assert_int_equal(look("").count, 0);
	/* A page whose header says another pid than its name. */
	fd = put_page(NAME_77, sound, sizeof(sound));
	assert_int_equal(look("").count, 0);
	close(fd);
}

/* Neither read nor removed: what has no name of a page, is no file, or holds something else. */
static void test_foreign_entries(void **state)
{
	static const char *const names[] = {
		"README",
		"77",
		"77-",
		"77-0011",
		"-00112233445566778899aabbccddeeff",
		"0-00112233445566778899aabbccddeeff",
		"77-00112233445566778899AABBCCDDEEFF",
		"99999999999-00112233445566778899aabbccddeeff",
		NAME_77 "0",
	};
	const size_t count = sizeof(names) / sizeof(names[0]);
	struct kvc_counters *counters;
	uint8_t sound[PAGE_BYTES];
	pid_t pid;
	int fd;

	(void)state;
	copy_page(sound, &pid);
	for (size_t i = 0; i < count; i++) {
		fd = put_page(names[i], sound, sizeof(sound));
		assert_int_equal(look("").count, 0);
		close(fd);
	}
	assert_int_equal(mkdir(in_folder("stats/78-00112233445566778899aabbccddeeff"), 0700), 0);
	assert_int_equal(mkfifo(in_folder("stats/79-00112233445566778899aabbccddeeff"), 0600), 0);
	assert_int_equal(symlink("README", in_folder("stats/80-00112233445566778899aabbccddeeff")),
			 0);
	put_file(in_folder("stats/81-00112233445566778899aabbccddeeff"), "not a page", 10);
	assert_int_equal(look("").count, 0);
	assert_int_equal(kvc_counters_open(folder, 0600, &counters), 0);
	assert_int_equal(count_entries(in_folder("stats")), count + 4 + 1);
	assert_int_equal(look("").count, 1);
	kvc_counters_close(counters);
	assert_int_equal(count_entries(in_folder("stats")), count + 4);
}

/* What a crash leaves of a page that was being made goes once it is old; an empty page at once. */
static void test_leftovers(void **state)
{
	const struct timespec old[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	struct kvc_counters *counters;

	(void)state;
	assert_int_equal(mkdir(in_folder("stats"), 0700), 0);
	put_file(in_folder("stats/." NAME_77), "", 0);
	put_file(in_folder("stats/" NAME_77), "", 0);
	assert_int_equal(kvc_counters_open(folder, 0600, &counters), 0);
	assert_int_equal(count_entries(in_folder("stats")), 2);
	kvc_counters_close(counters);
	assert_int_equal(utimensat(AT_FDCWD, in_folder("stats/." NAME_77), old, 0), 0);
	assert_int_equal(kvc_counters_open(folder, 0600, &counters), 0);
	assert_int_equal(count_entries(in_folder("stats")), 1);
	kvc_counters_close(counters);
}

/* A folder that cannot be: memory, no error. */
static void test_no_folder_possible(void **state)
{
	struct kvc_counters *counters;
	struct kvc_stats stats;

	(void)state;
	counters = open_counters("missing/h");
	assert_string_equal(kvc_counters_path(counters), "");
	count_some(counters);
	stats = read_counters(counters);
	check_some(&stats);
	kvc_counters_close(counters);
	put_file(in_folder("file"), "x", 1);
	counters = open_counters("file");
	assert_string_equal(kvc_counters_path(counters), "");
	kvc_counters_close(counters);
	assert_int_equal(mkdir(in_folder("h"), 0700), 0);
	assert_int_equal(mkdir(in_folder("elsewhere"), 0700), 0);
	assert_int_equal(symlink("../elsewhere", in_folder("h/stats")), 0);
	counters = open_counters("h");
	assert_string_equal(kvc_counters_path(counters), "");
	assert_int_equal(count_entries(in_folder("elsewhere")), 0);
	kvc_counters_close(counters);
}

static void test_cut_while_open(void **state)
{
	struct kvc_counters *counters = open_counters("h");
	struct kvc_stats stats;

	(void)state;
	kvc_counters_check(counters);
	kvc_counters_page(counters, KVC_SET, KVC_OK, KVC_CAUSE_NONE, 1);
	assert_int_equal(truncate(kvc_counters_path(counters), 0), 0);
	kvc_counters_check(counters);
	count_some(counters);
	kvc_counters_check(counters);
	stats = read_counters(counters);
	check_some(&stats);
	kvc_counters_close(counters);
	assert_int_equal(count_entries(in_folder("h/stats")), 0);
}

/* ---------------------------------------------------------------- quantiles and names */

static void test_quantiles(void **state)
{
	struct kvc_operation_stats operation;

	(void)state;
	memset(&operation, 0, sizeof(operation));
	assert_int_equal(kvc_stats_quantile_us(&operation, 50), 0);
	/* All of 100 calls in [64, 128): by share. */
	operation.latency_us[7] = 100;
	assert_int_equal(kvc_stats_quantile_us(&operation, 0), 64);
	assert_int_equal(kvc_stats_quantile_us(&operation, 25), 64 + 16);
	assert_int_equal(kvc_stats_quantile_us(&operation, 50), 64 + 32);
	assert_int_equal(kvc_stats_quantile_us(&operation, 100), 128);
	/* 900 below 1 us, 90 in [512, 1024), 10 in [2048, 4096). */
	operation.latency_us[7] = 0;
	operation.latency_us[0] = 900;
	operation.latency_us[10] = 90;
	operation.latency_us[12] = 10;
	assert_int_equal(kvc_stats_quantile_us(&operation, 50), 0);
	assert_int_equal(kvc_stats_quantile_us(&operation, 95), 512 + 512 * 50 / 90);
	assert_int_equal(kvc_stats_quantile_us(&operation, 99), 1024);
	assert_int_equal(kvc_stats_quantile_us(&operation, 100), 4096);
	/* The last bucket has no upper bound. */
	operation.latency_us[31] = 1000000;
	assert_int_equal(kvc_stats_quantile_us(&operation, 99), 1 << 30);
	/* Sums past 64 bits. */
	operation.latency_us[31] = UINT64_MAX;
	operation.latency_us[7] = UINT64_MAX;
	assert_in_range(kvc_stats_quantile_us(&operation, 49), 64, 128);
}

static void test_names(void **state)
{
	(void)state;
	assert_string_equal(kvc_status_name(KVC_OK), "ok");
	assert_string_equal(kvc_status_name(KVC_SKIPPED), "skipped");
	assert_string_equal(kvc_status_name(KVC_SKIPPED + 1), "?");
	assert_string_equal(kvc_status_name(-1), "?");
	assert_string_equal(kvc_cause_name(KVC_CAUSE_OTHER_OBJECT), "other-object");
	assert_string_equal(kvc_cause_name(KVC_CAUSE_NO_SPACE), "no-space");
	assert_string_equal(kvc_cause_name(KVC_CAUSE_SUSPECT_ROOT), "suspect-root");
	assert_string_equal(kvc_cause_name(KVC_CAUSE_COUNT), "?");
	assert_string_equal(kvc_cause_name(-1), "?");
	for (int i = 0; i < KVC_CAUSE_COUNT; i++) {
		assert_string_not_equal(kvc_cause_name(i), "?");
		for (int j = 0; j < i; j++)
			assert_string_not_equal(kvc_cause_name(i), kvc_cause_name(j));
	}
}

/* ---------------------------------------------------------------- texts */

static char *text_of(const struct kvc_stats *stats, int format)
{
	const int length = kvc_stats_text(stats, format, NULL, 0);
	char *text;

	assert_true(length > 0);
	text = malloc((size_t)length + 1);
	assert_non_null(text);
	assert_int_equal(kvc_stats_text(stats, format, text, (size_t)length + 1), length);
	assert_int_equal(strlen(text), length);
	return text;
}

static struct kvc_stats some_stats(void)
{
	struct kvc_counters *counters = open_counters(NULL);
	struct kvc_stats stats;

	count_some(counters);
	stats = read_counters(counters);
	kvc_counters_close(counters);
	return stats;
}

static void test_text_for_people(void **state)
{
	const struct kvc_stats stats = some_stats();
	char *text = text_of(&stats, KVC_FORMAT_TEXT), cut[16];

	(void)state;
	assert_non_null(strstr(text, "get\n  calls 1 pages 6 bytes 5000 p50_us 96 p99_us 127\n"));
	assert_non_null(strstr(text, " ok 5, miss 1\n"));
	assert_non_null(strstr(text, " none 5, absent 1\n"));
	assert_non_null(strstr(text, "parked_queues         2\n"));
	assert_int_equal(kvc_stats_text(&stats, KVC_FORMAT_TEXT, cut, sizeof(cut)), strlen(text));
	assert_int_equal(strlen(cut), sizeof(cut) - 1);
	assert_memory_equal(cut, text, sizeof(cut) - 1);
	free(text);
}

static json_int_t number(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	assert_true(json_is_integer(value));
	return json_integer_value(value);
}

static void test_json(void **state)
{
	const struct kvc_stats stats = some_stats();
	char *text = text_of(&stats, KVC_FORMAT_JSON);
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *get, *part;

	(void)state;
	assert_non_null(root);
	assert_int_equal(json_object_size(json_object_get(root, "operations")),
			 KVC_OPERATION_COUNT);
	get = json_object_get(json_object_get(root, "operations"), "get");
	assert_int_equal(number(get, "calls"), 1);
	assert_int_equal(number(get, "pages"), 6);
	assert_int_equal(number(get, "bytes"), 5000);
	part = json_object_get(get, "statuses");
	assert_int_equal(json_object_size(part), KVC_SKIPPED + 1);
	assert_int_equal(number(part, "ok"), 5);
	part = json_object_get(get, "causes");
	assert_int_equal(json_object_size(part), KVC_CAUSE_COUNT);
	assert_int_equal(number(part, "absent"), 1);
	part = json_object_get(get, "latency_us");
	assert_int_equal(number(part, "sum"), 100);
	assert_int_equal(number(part, "p50"), 96);
	assert_int_equal(number(part, "p99"), 127);
	assert_int_equal(json_array_size(json_object_get(part, "buckets")), KVC_HISTOGRAM_BUCKETS);
	assert_int_equal(number(root, "parked_queues"), 2);
	assert_int_equal(number(root, "usage_drift"), 4096);
	assert_int_equal(json_object_size(root), 1 + KVC_COUNTER_COUNT);
	json_decref(root);
	free(text);
}

/* A small reader of text exposition 0.0.4: fails on what a scraper would refuse. */
struct family {
	char name[64];
	char type[16];
};

static size_t name_length(const char *at)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789";
	const size_t length = strspn(at, letters);

	assert_true(length > 0 && !(*at >= '0' && *at <= '9'));
	return length;
}

/* `{name="value",...}`, if it is there. */
static const char *skip_labels(const char *at)
{
	if (*at != '{')
		return at;
	do {
		at++;
		at += name_length(at);
		assert_memory_equal(at, "=\"", 2);
		for (at += 2; *at != '"'; at++) {
			assert_true(*at != '\0' && *at != '\n');
			if (*at == '\\') {
				at++;
				assert_true(*at == '\\' || *at == '"' || *at == 'n');
			}
		}
		at++;
	} while (*at == ',');
	assert_int_equal(*at, '}');
	return at + 1;
}

static void check_head(const char *line, struct family *family, char families[][64], size_t *count)
{
	char name[64], type[16];

	if (strncmp(line, "# HELP ", 7) == 0) {
		assert_int_equal(sscanf(line + 7, "%63s", name), 1);
		for (size_t i = 0; i < *count; i++)
			assert_string_not_equal(families[i], name); /* one group per name */
		memcpy(families[(*count)++], name, sizeof(name));
		memcpy(family->name, name, sizeof(name));
		family->type[0] = '\0';
		assert_non_null(strchr(line + 7, ' '));
		return;
	}
	assert_int_equal(sscanf(line, "# TYPE %63s %15s", name, type), 2);
	assert_string_equal(name, family->name);
	assert_true(strcmp(type, "counter") == 0 || strcmp(type, "gauge") == 0 ||
		    strcmp(type, "histogram") == 0);
	memcpy(family->type, type, sizeof(type));
}

static void check_sample(const char *line, const struct family *family)
{
	const size_t length = name_length(line), known = strlen(family->name);
	const char *at = skip_labels(line + length), *suffix = line + known;
	char *end;

	assert_true(length >= known && strncmp(line, family->name, known) == 0);
	assert_string_not_equal(family->type, "");
	if (strcmp(family->type, "histogram") == 0)
		assert_true(strncmp(suffix, "_bucket{", 8) == 0 ||
			    strncmp(suffix, "_sum", 4) == 0 || strncmp(suffix, "_count", 6) == 0);
	else
		assert_int_equal(length, known);
	if (strcmp(family->type, "counter") == 0)
		assert_string_equal(family->name + known - 6, "_total");
	assert_int_equal(*at, ' ');
	(void)strtod(at + 1, &end);
	assert_true(end != at + 1 && *end == '\0');
}

/* Returns the number of samples. */
static size_t check_exposition(const char *text)
{
	char families[32][64];
	struct family family = { "", "" };
	char *copy = strdup(text), *line, *rest;
	size_t samples = 0, count = 0;

	assert_non_null(copy);
	assert_int_equal(copy[strlen(copy) - 1], '\n');
	for (line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		if (line[0] == '#') {
			assert_true(count < 32);
			check_head(line, &family, families, &count);
		} else {
			assert_memory_equal(line, "kvcellar_", 9);
			check_sample(line, &family);
			samples++;
		}
	}
	free(copy);
	return samples;
}

static void test_prometheus(void **state)
{
	const size_t per_operation =
		3 + KVC_SKIPPED + 1 + KVC_CAUSE_COUNT + KVC_HISTOGRAM_BUCKETS + 2;
	const struct kvc_stats stats = some_stats();
	char *text = text_of(&stats, KVC_FORMAT_PROMETHEUS);

	(void)state;
	assert_int_equal(check_exposition(text),
			 KVC_OPERATION_COUNT * per_operation + KVC_COUNTER_COUNT);
	assert_non_null(strstr(text, "\nkvcellar_pages_total{operation=\"get\"} 6\n"));
	assert_non_null(strstr(
		text, "\nkvcellar_pages_by_cause_total{operation=\"get\",cause=\"absent\"} 1\n"));
	assert_non_null(strstr(text, "\nkvcellar_call_duration_seconds_bucket{operation=\"get\","
				     "le=\"0.000064\"} 0\n"));
	assert_non_null(strstr(text, "\nkvcellar_call_duration_seconds_bucket{operation=\"get\","
				     "le=\"0.000128\"} 1\n"));
	assert_non_null(strstr(text, "\nkvcellar_call_duration_seconds_bucket{operation=\"get\","
				     "le=\"1073.741824\"} 1\n"));
	assert_non_null(strstr(text, "\nkvcellar_call_duration_seconds_bucket{operation=\"get\","
				     "le=\"+Inf\"} 1\n"));
	assert_non_null(
		strstr(text, "\nkvcellar_call_duration_seconds_sum{operation=\"get\"} 0.000100\n"));
	assert_non_null(strstr(text, "\nkvcellar_parked_queues 2\n"));
	assert_non_null(strstr(text, "\nkvcellar_usage_drift_total 4096\n"));
	free(text);
}

static void test_prometheus_labels(void **state)
{
	static char buffer[65536];
	char labels[128];
	struct kvc_counters *counters = open_counters(NULL);
	const struct kvc_stats stats = some_stats();
	struct kvc_text text;

	(void)state;
	kvc_text_init(&text, labels, sizeof(labels));
	kvc_text_add(&text, "root=");
	kvc_text_label(&text, "/a \"b\"\n\\{},=");
	assert_true(kvc_text_finish(&text) < (int)sizeof(labels));

	kvc_text_init(&text, buffer, sizeof(buffer));
	assert_int_equal(kvc_stats_add_text(&stats, KVC_FORMAT_PROMETHEUS, labels, &text), 0);
	kvc_metrics_gauge(&text, "root_own_bytes", "Bytes of our objects.", labels, 4096);
	kvc_metrics_gauge(&text, "root_own_bytes", NULL, "root=\"/b\"", 1);
	assert_true(kvc_text_finish(&text) < (int)sizeof(buffer));
	(void)check_exposition(buffer);
	assert_non_null(strstr(buffer, "\nkvcellar_calls_total{root=\"/a \\\"b\\\"\\n\\\\{},=\","
				       "operation=\"get\"} 1\n"));
	assert_non_null(strstr(buffer, "\nkvcellar_root_own_bytes{root=\"/b\"} 1\n"));

	assert_true(kvc_counters_text(counters, KVC_FORMAT_PROMETHEUS, "a=\"b\"", buffer,
				      sizeof(buffer)) < (int)sizeof(buffer));
	(void)check_exposition(buffer);
	assert_non_null(strstr(buffer, "\nkvcellar_overruns_total{a=\"b\"} 0\n"));
	kvc_counters_close(counters);
}

static void test_metrics_file(void **state)
{
	char buffer[64];
	struct stat st;

	(void)state;
	assert_int_equal(kvc_metrics_write(in_folder("a.prom"), "one\n", 4), 0);
	assert_int_equal(kvc_metrics_write(in_folder("a.prom"), "two!\n", 5), 0);
	assert_int_equal(get_file(in_folder("a.prom"), buffer, sizeof(buffer)), 5);
	assert_memory_equal(buffer, "two!\n", 5);
	assert_int_equal(stat(in_folder("a.prom"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	assert_int_equal(count_entries(folder), 1);

	assert_int_equal(kvc_metrics_write(in_folder("none/a.prom"), "x", 1), -ENOENT);
	assert_non_null(strstr(kvc_last_error(), "none/a.prom"));
	assert_int_equal(mkdir(in_folder("d.prom"), 0700), 0);
	assert_int_equal(kvc_metrics_write(in_folder("d.prom"), "x", 1), -EINVAL);
	assert_int_equal(mkfifo(in_folder("p.prom"), 0600), 0);
	assert_int_equal(kvc_metrics_write(in_folder("p.prom"), "x", 1), -EINVAL);
	assert_int_equal(count_entries(folder), 3);
}

#define STATS_TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STATS_TEST(test_memory),
		STATS_TEST(test_out_of_range),
		STATS_TEST(test_counter_fields),
		STATS_TEST(test_move),
		STATS_TEST(test_latency_buckets),
		STATS_TEST(test_sizes),
		STATS_TEST(test_threads),
		STATS_TEST(test_forked_child),
		STATS_TEST(test_page_is_found),
		STATS_TEST(test_runtime_folder),
		STATS_TEST(test_mode),
		STATS_TEST(test_dead_page),
		STATS_TEST(test_missing_folder),
		STATS_TEST(test_hostile_pages),
		STATS_TEST(test_foreign_entries),
		STATS_TEST(test_leftovers),
		STATS_TEST(test_no_folder_possible),
		STATS_TEST(test_cut_while_open),
		STATS_TEST(test_quantiles),
		STATS_TEST(test_names),
		STATS_TEST(test_text_for_people),
		STATS_TEST(test_json),
		STATS_TEST(test_prometheus),
		STATS_TEST(test_prometheus_labels),
		STATS_TEST(test_metrics_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
