/* SPDX-License-Identifier: Apache-2.0 */
/* core/stamps.h: access stamps by group, shared by threads and processes. */
#include "counter_helper.h"

#include "core/order.h"
#include "core/stamps.h"

#include <pthread.h>

#define SECOND INT64_C(1000000000)
#define NOW_NS (INT64_C(1700000000) * SECOND)

static struct kvc_stamps *open_stamps(const char *name, uint64_t device_bytes)
{
	struct kvc_stamps *stamps = NULL;

	assert_int_equal(
		kvc_stamps_open(name ? in_folder(name) : NULL, 0600, device_bytes, &stamps), 0);
	return stamps;
}

static uint64_t group(uint64_t i)
{
	return (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint64_t stamp_of(const struct kvc_stamps *stamps, uint64_t g)
{
	struct kvc_stamp stamp;

	return kvc_stamps_find(stamps, g, &stamp) ? stamp.stamp : 0;
}

static void note(struct kvc_stamps *stamps, uint64_t g, uint64_t stamp, uint64_t parent)
{
	kvc_stamps_note(stamps, g, (struct kvc_stamp){ stamp, parent });
}

/* ---------------------------------------------------------------- entries */

static void test_entries(void **state)
{
	struct kvc_stamps *stamps = open_stamps(NULL, 0);
	struct kvc_stamp stamp;

	(void)state;
	assert_false(kvc_stamps_find(stamps, group(1), &stamp));
	note(stamps, group(1), 800, group(0));
	assert_true(kvc_stamps_find(stamps, group(1), &stamp));
	assert_true(stamp.stamp == 800 && stamp.parent == group(0));
	note(stamps, group(1), 400, 0); /* never earlier, and the parent stays known */
	assert_true(kvc_stamps_find(stamps, group(1), &stamp));
	assert_true(stamp.stamp == 800 && stamp.parent == group(0));
	kvc_stamps_replace(stamps, group(1), 400);
	assert_int_equal(stamp_of(stamps, group(1)), 400);
	note(stamps, 0, 16, 0); /* 0 is a group as any other */
	assert_int_equal(stamp_of(stamps, 0), 16);
	kvc_stamps_forget(stamps, group(1));
	assert_int_equal(stamp_of(stamps, group(1)), 0);
	kvc_stamps_close(stamps);
}

/* What is used keeps its place, what is lost is the earliest of its bucket. */
static void test_more_than_fit(void **state)
{
	struct kvc_stamps *stamps = open_stamps(NULL, 0);
	const uint64_t count = 100000;
	uint64_t kept = 0, late = 0;

	(void)state;
	for (uint64_t i = 0; i < count; i++)
		note(stamps, group(i), (i + 1) * KVC_STAMP_STEP, 0);
	for (uint64_t i = 0; i < count; i++) {
		const uint64_t stamp = stamp_of(stamps, group(i));

		assert_true(stamp == 0 || stamp == (i + 1) * KVC_STAMP_STEP);
		kept += stamp != 0;
		late += stamp != 0 && i >= count - 400;
	}
	assert_true(kept > 500 && kept <= 128 * 5);
	assert_true(late > 320);
	kvc_stamps_close(stamps);
}

/* ---------------------------------------------------------------- times */

static uint64_t of_time(const struct kvc_stamps *stamps, int64_t wall_ns, int64_t now_ns)
{
	uint64_t stamp = 0;

	assert_int_equal(kvc_stamps_of_time(stamps, wall_ns, now_ns, &stamp), 0);
	assert_int_equal(stamp % KVC_STAMP_STEP, 0);
	return stamp;
}

static void test_times_become_stamps(void **state)
{
	struct kvc_stamps *stamps = open_stamps(NULL, 0);
	const uint64_t first = kvc_stamps_now(stamps);
	uint64_t last = 0;

	(void)state;
	for (int i = 0; i < 400; i++) {
		const int64_t now_ns = NOW_NS + i * 20 * SECOND;

		kvc_stamps_mark(stamps, now_ns, now_ns);
		(void)kvc_stamps_take(stamps, 1000);
	}
	/* Older than the clock, and then with it; older is never later. */
	for (int64_t at = NOW_NS - 10000 * SECOND; at < NOW_NS + 8000 * SECOND; at += 7 * SECOND) {
		const uint64_t stamp = of_time(stamps, at, NOW_NS + 8000 * SECOND);

		assert_true(stamp >= last);
		assert_true(at >= NOW_NS ? stamp >= first : stamp < first);
		last = stamp;
	}
	/* 4000 s of 8000 s, about: half of the uses. */
	last = of_time(stamps, NOW_NS + 4000 * SECOND, NOW_NS + 8000 * SECOND) - first;
	assert_true(last > 190000 * KVC_STAMP_STEP && last < 210000 * KVC_STAMP_STEP);
	last = (uint64_t)kvc_stamps_time(stamps, first + 200000 * KVC_STAMP_STEP,
					 NOW_NS + 8000 * SECOND);
	assert_true(last > (uint64_t)(NOW_NS + 3900 * SECOND) &&
		    last < (uint64_t)(NOW_NS + 4100 * SECOND));
	kvc_stamps_close(stamps);
}

#define YEAR (INT64_C(365) * 86400 * SECOND)

/* The clock was wrong for a while: what was written before and after is between the others. */
static void run_jump(int64_t jump_ns)
{
	struct kvc_stamps *stamps = open_stamps(NULL, 0);
	int64_t wall_ns = NOW_NS;
	uint64_t before, jumped, during, back, after;

	for (int i = 0; i < 10; i++, wall_ns += 10 * SECOND) {
		kvc_stamps_mark(stamps, wall_ns, wall_ns);
		(void)kvc_stamps_take(stamps, 100);
	}
	before = of_time(stamps, wall_ns - 30 * SECOND, wall_ns);
	jumped = kvc_stamps_now(stamps);
	kvc_stamps_mark(stamps, wall_ns + jump_ns, wall_ns);
	for (int i = 0; i < 10; i++, wall_ns += 10 * SECOND) {
		kvc_stamps_mark(stamps, wall_ns + jump_ns, wall_ns + jump_ns);
		(void)kvc_stamps_take(stamps, 100);
	}
	during = of_time(stamps, wall_ns + jump_ns - 30 * SECOND, wall_ns + jump_ns);
	assert_true(during > jumped);
	back = kvc_stamps_now(stamps);
	kvc_stamps_mark(stamps, wall_ns, wall_ns + jump_ns);
	for (int i = 0; i < 10; i++, wall_ns += 10 * SECOND) {
		kvc_stamps_mark(stamps, wall_ns, wall_ns);
		(void)kvc_stamps_take(stamps, 100);
	}
	after = of_time(stamps, wall_ns - 30 * SECOND, wall_ns);
	assert_true(after > back);
	/* Those of before are as old as they were, or have been taken for younger ones. */
	assert_true(of_time(stamps, NOW_NS + 70 * SECOND, wall_ns) >= before);
	assert_true(of_time(stamps, NOW_NS + 70 * SECOND, wall_ns) <= kvc_stamps_now(stamps));
	kvc_stamps_close(stamps);
}

static void test_jumps_of_the_clock(void **state)
{
	(void)state;
	run_jump(YEAR);
	run_jump(-YEAR);
	run_jump(3600 * SECOND);
	run_jump(-3600 * SECOND);
}

/* Nothing is immortal: it is as young as when it was met first, also when its entry is lost. */
static void test_files_from_the_future(void **state)
{
	struct kvc_stamps *stamps = open_stamps(NULL, 0);
	uint64_t first, stamp;

	(void)state;
	kvc_stamps_mark(stamps, NOW_NS, NOW_NS);
	first = kvc_stamps_take(stamps, 10);
	/* When somebody set its time is known. */
	stamp = kvc_stamps_of_file(stamps, group(1), NOW_NS + YEAR, NOW_NS - YEAR, NOW_NS);
	assert_true(stamp < first);
	assert_int_equal(stamp_of(stamps, group(1)), 0);
	stamp = kvc_stamps_of_file(stamps, group(2), NOW_NS + YEAR, NOW_NS + YEAR, NOW_NS);
	assert_true(stamp == first);
	(void)kvc_stamps_take(stamps, 1000);
	assert_true(stamp_of(stamps, group(2)) == first);
	for (uint64_t i = 10; i < 5000; i++)
		note(stamps, group(i), kvc_stamps_take(stamps, 1), 0);
	assert_int_equal(stamp_of(stamps, group(2)), 0);
	first = kvc_stamps_now(stamps);
	for (int i = 0; i < 3; i++) {
		stamp = kvc_stamps_of_file(stamps, group(2), NOW_NS + YEAR, NOW_NS + YEAR, NOW_NS);
		assert_true(stamp < first);
	}
	kvc_stamps_close(stamps);
}

/* ---------------------------------------------------------------- the file */

static void test_a_file_is_shared(void **state)
{
	struct kvc_stamps *a = open_stamps("shared", UINT64_C(1) << 30);
	struct kvc_stamps *b = open_stamps("shared", UINT64_C(1) << 20);
	uint64_t at;

	(void)state;
	assert_int_equal(kvc_stamps_file_bytes(a), kvc_stamps_file_bytes(b));
	at = kvc_stamps_take(a, 3);
	assert_int_equal(kvc_stamps_now(b), at);
	note(a, group(1), at, group(2));
	assert_int_equal(stamp_of(b, group(1)), at);
	kvc_stamps_pending_add(a, 0, 100);
	kvc_stamps_pending_add(b, 7, 20);
	kvc_stamps_pending_add(b, 8, -5); /* a count that began after what it takes back */
	assert_int_equal(kvc_stamps_pending_sum(a, UINT64_MAX), 120);
	kvc_stamps_close(a);
	kvc_stamps_close(b);
}

static uint64_t count_stamps(const struct kvc_stamps *stamps, uint64_t count)
{
	uint64_t kept = 0;

	for (uint64_t i = 0; i < count; i++) {
		const uint64_t stamp = stamp_of(stamps, group(i));

		assert_true(stamp == 0 || stamp == (i + 1) * KVC_STAMP_STEP);
		kept += stamp != 0;
	}
	return kept;
}

/* Who opens it as the only one makes it as large as he wants, and what is known stays. */
static void test_a_file_becomes_another_size(void **state)
{
	const uint64_t count = 20000;
	struct kvc_stamps *stamps = open_stamps("sizes", count * 40000);
	struct kvc_stamp stamp;
	uint64_t large, before, point;

	(void)state;
	kvc_stamps_mark(stamps, NOW_NS, NOW_NS);
	before = kvc_stamps_take(stamps, (uint32_t)count);
	point = of_time(stamps, NOW_NS + SECOND, NOW_NS + 2 * SECOND);
	for (uint64_t i = 0; i < count; i++)
		note(stamps, group(i), (i + 1) * KVC_STAMP_STEP, i);
	assert_int_equal(count_stamps(stamps, count), count);
	large = kvc_stamps_file_bytes(stamps);
	kvc_stamps_pending_add(stamps, 3, 100);
	kvc_stamps_close(stamps);

	stamps = open_stamps("sizes", count * 250); /* the latest stay */
	assert_true(kvc_stamps_file_bytes(stamps) < large);
	assert_int_equal(kvc_stamps_now(stamps), before);
	assert_int_equal(of_time(stamps, NOW_NS + SECOND, NOW_NS + 2 * SECOND), point);
	assert_int_equal(kvc_stamps_pending(stamps, 3), 100); /* of one that was killed */
	assert_true(count_stamps(stamps, count) < count);
	assert_true(stamp_of(stamps, group(count - 1)) != 0);
	/* What was lost is no later than the latest that found no place. */
	assert_true(kvc_stamps_of_file(stamps, group(0), NOW_NS + YEAR, NOW_NS + YEAR, NOW_NS) <
		    count * KVC_STAMP_STEP);
	kvc_stamps_forget(stamps, group(0));
	before = count_stamps(stamps, count);
	kvc_stamps_close(stamps);

	stamps = open_stamps("sizes", count * 40000);
	assert_int_equal(kvc_stamps_file_bytes(stamps), large);
	assert_int_equal(count_stamps(stamps, count), before);
	assert_true(kvc_stamps_find(stamps, group(count - 1), &stamp));
	assert_int_equal(stamp.parent, count - 1);
	assert_true(kvc_stamps_of_file(stamps, group(0), NOW_NS + YEAR, NOW_NS + YEAR, NOW_NS) <
		    count * KVC_STAMP_STEP);
	kvc_stamps_close(stamps);
}

/* Two that want different sizes use the same file, whoever comes first, and again after it was
 * removed. */
static void test_a_file_in_use_keeps_its_size(void **state)
{
	struct kvc_stamps *a = open_stamps("use", UINT64_C(1) << 20), *b, *c;
	const uint64_t small = kvc_stamps_file_bytes(a);

	(void)state;
	b = open_stamps("use", UINT64_C(1) << 40);
	kvc_stamps_close(a);
	assert_int_equal(kvc_stamps_file_bytes(b), small);
	c = open_stamps("use", UINT64_C(1) << 32);
	assert_int_equal(kvc_stamps_file_bytes(c), small);
	assert_int_equal(unlink(in_folder("use")), 0);
	assert_int_equal(kvc_stamps_check(c), 1);
	assert_int_equal(kvc_stamps_check(b), 1);
	assert_int_equal(kvc_stamps_check(c), 0);
	note(b, group(1), 80, 0);
	assert_int_equal(stamp_of(c, group(1)), 80);
	/* A file of another size in its place is not theirs, and is left alone. */
	assert_int_equal(unlink(in_folder("use")), 0);
	a = open_stamps("use", UINT64_C(1) << 32);
	assert_int_equal(kvc_stamps_check(b), 0);
	note(a, group(2), 80, 0);
	assert_int_equal(stamp_of(b, group(2)), 0);
	kvc_stamps_close(b);
	kvc_stamps_close(c);
	b = open_stamps("use", 0);
	assert_int_equal(kvc_stamps_file_bytes(a), kvc_stamps_file_bytes(b));
	assert_int_equal(stamp_of(b, group(2)), 80);
	kvc_stamps_close(a);
	kvc_stamps_close(b);
}

/* Processes that open and close it, each in a size of its own: the table stays whole. */
static void test_sizes_of_many_processes(void **state)
{
	struct kvc_stamps *stamps = open_stamps("many", 0);
	pid_t children[4];
	int status;

	(void)state;
	note(stamps, group(1), 80, group(2));
	kvc_stamps_close(stamps);
	for (unsigned i = 0; i < 4; i++) {
		children[i] = fork();
		assert_true(children[i] >= 0);
		for (unsigned k = 0; children[i] == 0 && k < 60; k++) {
			stamps = open_stamps("many", UINT64_C(1) << (20 + 3 * i));
			if (stamp_of(stamps, group(1)) != 80)
				_exit(1);
			kvc_stamps_close(stamps);
			if (k == 59)
				_exit(0);
		}
	}
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
}

/* What a killed process began goes with the next that is made; what another one makes stays. */
static void test_what_is_left_over(void **state)
{
	const struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	static const char *const names[] = { "left.Ab3dEf", "left.locked", "left.other-one",
					     "leftabcdefg" };
	int fds[4];

	(void)state;
	for (int i = 0; i < 4; i++) {
		fds[i] = open(in_folder(names[i]), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		assert_true(fds[i] >= 0);
	}
	assert_int_equal(fcntl(fds[1], F_OFD_SETLK, &lock), 0);
	kvc_stamps_close(open_stamps("left", 0));
	assert_int_equal(access(in_folder(names[0]), F_OK), -1);
	for (int i = 1; i < 4; i++)
		assert_int_equal(access(in_folder(names[i]), F_OK), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(close(fds[i]), 0);
	assert_int_equal(access(in_folder("left"), F_OK), 0);
}

static void test_a_file_that_was_removed(void **state)
{
	struct kvc_stamps *stamps = open_stamps("removed", 0);
	uint64_t before;

	(void)state;
	before = kvc_stamps_take(stamps, 100);
	note(stamps, group(1), before, 0);
	assert_int_equal(kvc_stamps_check(stamps), 0);
	assert_int_equal(unlink(in_folder("removed")), 0);
	assert_int_equal(kvc_stamps_check(stamps), 1);
	assert_int_equal(stamp_of(stamps, group(1)), 0);
	assert_true(kvc_stamps_take(stamps, 1) > UINT64_C(1) << 40);
	kvc_stamps_close(stamps);
}

/* ---------------------------------------------------------------- threads */

static void *take_many(void *context)
{
	struct kvc_stamps *stamps = context;

	for (unsigned i = 0; i < 20000; i++)
		note(stamps, group(i % 700), kvc_stamps_take(stamps, 1), group(i % 50));
	return NULL;
}

static void test_threads(void **state)
{
	struct kvc_stamps *stamps = open_stamps("threads", 0);
	const uint64_t before = kvc_stamps_take(stamps, 1);
	pthread_t threads[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_many, stamps), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(kvc_stamps_now(stamps), before + 80000 * KVC_STAMP_STEP);
	for (uint64_t i = 0; i < 700; i++)
		assert_true(stamp_of(stamps, group(i)) <= kvc_stamps_now(stamps));
	kvc_stamps_close(stamps);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_entries),
		cmocka_unit_test(test_more_than_fit),
		cmocka_unit_test(test_times_become_stamps),
		cmocka_unit_test(test_jumps_of_the_clock),
		cmocka_unit_test(test_files_from_the_future),
		cmocka_unit_test_setup_teardown(test_a_file_is_shared, make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(test_a_file_becomes_another_size, make_folder,
						remove_folder),
		cmocka_unit_test_setup_teardown(test_a_file_in_use_keeps_its_size, make_folder,
						remove_folder),
		cmocka_unit_test_setup_teardown(test_sizes_of_many_processes, make_folder,
						remove_folder),
		cmocka_unit_test_setup_teardown(test_what_is_left_over, make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(test_a_file_that_was_removed, make_folder,
						remove_folder),
		cmocka_unit_test_setup_teardown(test_threads, make_folder, remove_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
