/* SPDX-License-Identifier: Apache-2.0 */
/* Writes that stop, fail or are hit by errors: R01, R02, R03, R05, R23, R25 (odd buffers). */
#include "support/packed.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

struct fix {
	struct setup setup;
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[256];
};

static void fix_open(struct fix *fix, size_t count, uint64_t bytes)
{
	struct kvc_namespace_params params = namespace_params("torn");

	fix->setup.flags = KVC_OPEN_NO_SELFTEST;
	if (fix->setup.roots == NULL)
		fix->setup.roots = folder_new("torn");
	fix->store = setup_must_open(&fix->setup);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, count, bytes);
	keys_make(&fix->keys, "torn", count);
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

static struct setup fault_over_posix(const char *engine, const char *rules)
{
	return (struct setup){
		.plugin = "fault",
		.lower = "posix",
		.engine = engine,
		.rules = rules,
	};
}

/* ---------------------------------------------------------------- R01 */

#define BIG (UINT64_C(8) * 1024 * 1024)

struct writer {
	const char *root;
	const char *engine;
	const char *rules;
	const char *layout;
};

static int write_slowly(void *context)
{
	const struct writer *writer = context;
	struct fix fix = { .setup = fault_over_posix(writer->engine, writer->rules) };

	fix.setup.roots = writer->root;
	fix.setup.layout = writer->layout;
	fix_open(&fix, 1, BIG);
	expect_result(do_set(fix.store, &fix.pages, fix.keys.keys[0], 0), KVC_OK, -1);
	fix_close(&fix);
	return 0;
}

/* Whether the writer has payload on disk in a file that it has not published. */
static bool writer_is_under_way(pid_t pid)
{
	char path[64];
	struct stat st;

	for (int fd = 3; fd < 64; fd++) {
		text_make(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
		if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_blocks > 1024 &&
		    (uint64_t)st.st_size <= BIG + 4096)
			return true;
	}
	return false;
}

/* The page of a writer that is stopped is not there; it is there when the writer has gone on. */
static void expect_nothing_until_the_end(struct fix *fix, pid_t pid)
{
	const struct kvc_key key = fix->keys.keys[0];

	for (int i = 0; i < 100; i++) {
		struct kvc_result there = do_exists(fix->store, &fix->pages, key);
		struct kvc_result got = do_get(fix->store, &fix->pages, key);

		expect_result(there, KVC_MISS, KVC_CAUSE_ABSENT);
		expect_result(got, KVC_MISS, KVC_CAUSE_ABSENT);
	}
	assert_int_equal(kill(pid, SIGCONT), 0);
	assert_int_equal(child_wait(pid), 0);
	expect_result(do_exists(fix->store, &fix->pages, key), KVC_OK, -1);
	expect_result(do_get(fix->store, &fix->pages, key), KVC_OK, -1);
}

static void run_stopped_writer(const char *engine)
{
	/* The trailer comes two seconds after the payload. */
	struct writer writer = {
		.root = folder_new("stopped"),
		.engine = engine,
		.rules = "fill delay_ms=2000",
	};
	pid_t pid = child_start(write_slowly, &writer);
	struct fix fix = { .setup = { .plugin = "posix", .engine = engine } };
	uint64_t end = now_ms() + 60000;

	fix.setup.roots = writer.root;
	fix_open(&fix, 1, BIG);
	while (!writer_is_under_way(pid) && now_ms() < end &&
	       do_exists(fix.store, &fix.pages, fix.keys.keys[0]).status == KVC_MISS)
		sleep_ms(5);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	expect_nothing_until_the_end(&fix, pid);
	fix_close(&fix);
}

static void test_stopped_writer_shows_nothing(void **state)
{
	(void)state;
	run_stopped_writer("threads");
	run_stopped_writer("io_uring");
}

static int make_root(void *context)
{
	const struct writer *writer = context;
	struct fix fix = { .setup = { .plugin = "posix" } };

	fix.setup.roots = writer->root;
	fix.setup.layout = writer->layout;
	fix_open(&fix, 1, BIG);
	fix_close(&fix);
	return 0;
}

static void run_stopped_slot_writer(const char *engine)
{
	/* Everything is in the slot two seconds before its writer hears of it. */
	struct writer writer = {
		.root = folder_new("stopped"),
		.engine = engine,
		.rules = "write delay_ms=2000",
		.layout = "packed",
	};
	struct fix fix = { .setup = { .plugin = "posix", .engine = engine, .layout = "packed" } };
	uint64_t end = now_ms() + 60000;
	pid_t pid;

	assert_int_equal(child_wait(child_start(make_root, &writer)), 0);
	pid = child_start(write_slowly, &writer);
	fix.setup.roots = writer.root;
	fix_open(&fix, 1, BIG);
	while (packed_slots(fix.store).writing == 0 && now_ms() < end)
		sleep_ms(2);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(packed_slots(fix.store).writing, 1);
	expect_nothing_until_the_end(&fix, pid);
	assert_int_equal(packed_check(fix.store), 1);
	fix_close(&fix);
}

static void test_stopped_writer_of_a_slot(void **state)
{
	(void)state;
	run_stopped_slot_writer("threads");
	run_stopped_slot_writer("io_uring");
}

/* ---------------------------------------------------------------- R02 */

static void test_empty_file_under_the_final_name(void **state)
{
	struct fix fix = { .setup = { .plugin = "posix" } };
	char path[PATH_BYTES];

	(void)state;
	fix_open(&fix, 1, 66048);
	expect_result(do_set(fix.store, &fix.pages, fix.keys.keys[0], 0), KVC_OK, -1);
	assert_true(page_path(fix.pages.pool, fix.keys.keys[0], 0, path));
	assert_int_equal(unlink(path), 0);
	file_write(path, "", 0);
	expect_result(do_exists(fix.store, &fix.pages, fix.keys.keys[0]), KVC_MISS, -1);
	expect_result(do_get(fix.store, &fix.pages, fix.keys.keys[0]), KVC_MISS, KVC_CAUSE_SHORT);
	expect_result(do_set(fix.store, &fix.pages, fix.keys.keys[0], 0), KVC_OK, KVC_CAUSE_NONE);
	expect_result(do_get(fix.store, &fix.pages, fix.keys.keys[0]), KVC_OK, -1);
	fix_close(&fix);
}

/* A set that fails has counted no bytes, and there is no page. */
static void expect_refused(struct fix *fix, int error, int status)
{
	const struct kvc_key key = fix->keys.keys[0];
	struct kvc_stats before = store_stats(fix->store);
	struct kvc_result result = do_set(fix->store, &fix->pages, key, 0);
	struct kvc_stats after = store_stats(fix->store);

	expect_result(result, status, -1);
	assert_int_equal(result.error, error);
	assert_int_equal(after.operations[KVC_SET].bytes, before.operations[KVC_SET].bytes);
	expect_result(do_exists(fix->store, &fix->pages, key), KVC_MISS, KVC_CAUSE_ABSENT);
	expect_result(do_get(fix->store, &fix->pages, key), KVC_MISS, KVC_CAUSE_ABSENT);
}

static void run_refused_write(const char *lower, const char *rules, int error, int status)
{
	struct fix fix = { .setup = { .plugin = "fault", .lower = lower, .rules = rules } };

	fix_open(&fix, 1, 4096);
	expect_refused(&fix, error, status);
	assert_int_equal(folder_count(fix.setup.roots, fix.keys.text[0]), 0);
	assert_int_equal(folder_count(fix.setup.roots, ".kvctmp."), 0);
	fix_close(&fix);
}

static void test_refused_writes_leave_nothing(void **state)
{
	(void)state;
	run_refused_write("posix", "write error=EFAULT name=*torn*", EFAULT, KVC_ERROR);
	run_refused_write("posix", "write error=EINVAL name=*torn*", EINVAL, KVC_ERROR);
	run_refused_write("posix", "write error=EIO name=*torn*", EIO, KVC_ERROR);
	run_refused_write("posix", "write error=ENOSPC name=*torn*", ENOSPC, KVC_FULL);
	run_refused_write("posix", "write error=EDQUOT name=*torn*", EDQUOT, KVC_FULL);
	run_refused_write("posix", "write error=EACCES name=*torn*", EACCES, KVC_DENIED);
	run_refused_write("posix", "write error=EROFS name=*torn*", EROFS, KVC_DENIED);
	run_refused_write("mem", "write error=EIO name=*torn*", EIO, KVC_ERROR);
}

/* Its root.json and namespace.json are the two writes before it. */
static void run_refused_slot(const char *lower, const char *name, int error, int status)
{
	struct fix fix = { .setup = { .plugin = "fault", .lower = lower, .layout = "packed" } };
	char rules[64];

	text_make(rules, sizeof(rules), "write error=%s after=2 count=2", name);
	fix.setup.rules = rules;
	fix_open(&fix, 1, 4096);
	expect_refused(&fix, error, status);
	assert_int_equal(packed_check(fix.store), 0);
	(void)do_set(fix.store, &fix.pages, fix.keys.keys[0], 0);
	expect_result(do_set(fix.store, &fix.pages, fix.keys.keys[0], 0), KVC_OK, -1);
	expect_result(do_get(fix.store, &fix.pages, fix.keys.keys[0]), KVC_OK, -1);
	fix_close(&fix);
}

static void test_refused_writes_leave_no_slot(void **state)
{
	(void)state;
	run_refused_slot("posix", "EFAULT", EFAULT, KVC_ERROR);
	run_refused_slot("posix", "EINVAL", EINVAL, KVC_ERROR);
	run_refused_slot("posix", "EIO", EIO, KVC_ERROR);
	run_refused_slot("posix", "ENOSPC", ENOSPC, KVC_FULL);
	run_refused_slot("posix", "EDQUOT", EDQUOT, KVC_FULL);
	run_refused_slot("posix", "EACCES", EACCES, KVC_DENIED);
	run_refused_slot("posix", "EROFS", EROFS, KVC_DENIED);
	run_refused_slot("mem", "EIO", EIO, KVC_ERROR);
}

/* Fewer bytes than asked for: said, and never taken for a page. */
static void test_short_write_is_no_page(void **state)
{
	struct fix fix = { .setup = { .plugin = "fault",
				      .lower = "mem",
				      .rules = "write short=4096 count=1 name=*.kv.*" } };
	struct kvc_result result;

	(void)state;
	fix_open(&fix, 1, 8192);
	result = do_set(fix.store, &fix.pages, fix.keys.keys[0], 0);
	expect_result(result, KVC_ERROR, KVC_CAUSE_IO);
	assert_int_equal(result.error, EIO);
	expect_result(do_exists(fix.store, &fix.pages, fix.keys.keys[0]), KVC_MISS, -1);
	expect_result(do_set(fix.store, &fix.pages, fix.keys.keys[0], 0), KVC_OK, KVC_CAUSE_NONE);
	expect_result(do_get(fix.store, &fix.pages, fix.keys.keys[0]), KVC_OK, -1);
	fix_close(&fix);
}

/* R25: a buffer that is refused once goes through memory of the library the second time. */
static void run_bounce(const char *rules, const char *layout)
{
	struct fix fix = { .setup = fault_over_posix(NULL, rules) };
	uint64_t before;

	fix.setup.layout = layout;
	fix_open(&fix, 1, 66048);
	before = store_stats(fix.store).bounced;
	expect_result(do_set(fix.store, &fix.pages, fix.keys.keys[0], 0), KVC_OK, KVC_CAUSE_NONE);
	expect_result(do_get(fix.store, &fix.pages, fix.keys.keys[0]), KVC_OK, KVC_CAUSE_NONE);
	assert_true(store_stats(fix.store).bounced > before);
	fix_close(&fix);
}

static void test_refused_buffers_are_bounced(void **state)
{
	(void)state;
	run_bounce("write error=EINVAL nth=1 name=*torn*.kv.*", NULL);
	run_bounce("write error=EFAULT nth=1 name=*torn*.kv.*", NULL);
	run_bounce("read error=EINVAL nth=1 name=*torn*.kv.*", NULL);
	run_bounce("read error=EFAULT nth=1 name=*torn*.kv.*", NULL);
	/* Slots have no names: after root.json and namespace.json, or after the look for
	 * root.json. */
	run_bounce("write error=EINVAL nth=3", "packed");
	run_bounce("write error=EFAULT nth=3", "packed");
	run_bounce("read error=EINVAL nth=2", "packed");
	run_bounce("read error=EFAULT nth=2", "packed");
}

/* ---------------------------------------------------------------- R03 */

#define FIVE 5u

static void set_five(struct fix *fix)
{
	pages_fill_keys(&fix->pages, fix->keys.keys, FIVE);
	batch(fix->store, &fix->pages, KVC_SET, fix->keys.keys, FIVE, 0, fix->results);
	expect_all(fix->results, FIVE, KVC_OK);
}

static void get_five(struct fix *fix)
{
	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys, FIVE, 0, fix->results);
}

/* What five gets answer: page 2 was damaged, page 3 cannot be read. */
struct answers {
	int damaged; /* status */
	int cause;
	int unreadable; /* status */
	int error;
};

static void reopen_with_a_fault(struct fix *fix, const char *rules, const struct answers *answers)
{
	fix->setup.plugin = "fault";
	fix->setup.lower = "posix";
	fix->setup.rules = rules;
	fix_open(fix, FIVE, 8192);
	get_five(fix);
	for (size_t i = 0; i < FIVE; i++) {
		if (i == 2) {
			expect_result(fix->results[i], answers->damaged, answers->cause);
		} else if (i == 3) {
			expect_result(fix->results[i], answers->unreadable, -1);
			assert_int_equal(fix->results[i].error, answers->error);
		} else {
			expect_result(fix->results[i], KVC_OK, -1);
			assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
		}
	}
}

/* So many pages are whole; a set makes all of them whole, and the fault is over by then. */
static void expect_whole_again(struct fix *fix, size_t whole)
{
	get_five(fix);
	assert_int_equal(count_status(fix->results, FIVE, KVC_OK), whole);
	set_five(fix);
	get_five(fix);
	expect_all(fix->results, FIVE, KVC_OK);
}

static void run_half_and_unreadable(int error, const char *name, int status)
{
	const struct answers answers = { KVC_MISS, KVC_CAUSE_SHORT, status, error };
	struct fix fix = { .setup = { .plugin = "posix" } };
	char path[PATH_BYTES];
	char rules[256];

	fix_open(&fix, FIVE, 8192);
	set_five(&fix);
	assert_true(page_path(fix.pages.pool, fix.keys.keys[2], 0, path));
	assert_int_equal(truncate(path, 6144), 0);
	text_make(rules, sizeof(rules), "read error=%s name=*%s* count=2", name, fix.keys.text[3]);
	fix_close(&fix);

	reopen_with_a_fault(&fix, rules, &answers);
	assert_true(page_path(fix.pages.pool, fix.keys.keys[3], 0, path));
	assert_true(file_exists(path)); /* no errno removes anything */
	/* The second failure marks page 3; a set ends the mark. */
	expect_whole_again(&fix, 3);
	fix_close(&fix);
}

static void test_half_and_unreadable_pages(void **state)
{
	(void)state;
	run_half_and_unreadable(EIO, "EIO", KVC_ERROR);
	run_half_and_unreadable(EACCES, "EACCES", KVC_DENIED);
}

/* The same in slots: a page that was changed on the disk, one that the disk does not give. The
 * first read of an opening is that of root.json. */
static void run_wrong_and_unreadable(int error, const char *name, int status)
{
	const struct answers answers = { KVC_CORRUPT, KVC_CAUSE_CHECKSUM, status, error };
	struct fix fix = { .setup = { .plugin = "posix", .layout = "packed" } };
	struct packed_spot spot;
	char rules[64];

	fix_open(&fix, FIVE, 8192);
	set_five(&fix);
	assert_true(packed_spot(fix.store, fix.pages.pool, fix.keys.keys[2], 0, &spot));
	packed_spot_flip(&spot, 6000, 1);
	fix_close(&fix);

	text_make(rules, sizeof(rules), "read error=%s nth=5", name);
	reopen_with_a_fault(&fix, rules, &answers);
	/* No errno removes anything; and the fault is over. */
	assert_int_equal(packed_check(fix.store), 4);
	expect_whole_again(&fix, 4);
	fix_close(&fix);
}

static void test_wrong_and_unreadable_slots(void **state)
{
	(void)state;
	run_wrong_and_unreadable(EIO, "EIO", KVC_ERROR);
	run_wrong_and_unreadable(EACCES, "EACCES", KVC_DENIED);
}

/* R23: what failed twice is not tried again at once; a set ends that. */
static void run_marked(const char *rules, const char *layout)
{
	struct fix fix = {
		.setup = { .plugin = "fault", .lower = "mem", .rules = rules, .layout = layout }
	};
	struct kvc_key key;

	fix_open(&fix, 1, 4096);
	key = fix.keys.keys[0];
	expect_result(do_set(fix.store, &fix.pages, key, 0), KVC_OK, -1);
	expect_result(do_get(fix.store, &fix.pages, key), KVC_ERROR, KVC_CAUSE_IO);
	expect_result(do_get(fix.store, &fix.pages, key), KVC_ERROR, KVC_CAUSE_IO);
	expect_result(do_get(fix.store, &fix.pages, key), KVC_MISS, KVC_CAUSE_MARKED);
	expect_result(do_get(fix.store, &fix.pages, key), KVC_MISS, KVC_CAUSE_MARKED);
	expect_result(do_set(fix.store, &fix.pages, key, 0), KVC_OK, -1);
	expect_result(do_get(fix.store, &fix.pages, key), KVC_ERROR, KVC_CAUSE_IO);
	expect_result(do_get(fix.store, &fix.pages, key), KVC_OK, -1); /* the rule is used up */
	fix_close(&fix);
}

static void test_what_fails_twice_is_marked(void **state)
{
	(void)state;
	run_marked("read error=EIO name=*.kv.* count=3", NULL);
	run_marked("read error=EIO after=1 count=3", "packed");
}

/* ---------------------------------------------------------------- R05 */

static void on_alarm(int number)
{
	(void)number;
}

static void alarms(long interval_us)
{
	struct itimerval timer = { .it_interval = { .tv_usec = interval_us },
				   .it_value = { .tv_usec = interval_us } };
	struct sigaction action = { .sa_handler = on_alarm }; /* no SA_RESTART */

	(void)sigaction(SIGALRM, &action, NULL);
	(void)setitimer(ITIMER_REAL, &timer, NULL);
}

/* One -EIO, then 1000 operations on the same queue under 1000 signals a second. */
static void run_alarms(const char *engine, const char *rules, const char *layout)
{
	struct fix fix = { .setup = fault_over_posix(engine, rules) };
	size_t failed = 0;

	fix.setup.layout = layout;

	fix_open(&fix, 125, 4096);
	alarms(1000);
	for (int round = 0; round < 8; round++) {
		for (size_t i = 0; i < 125; i++) {
			struct kvc_result result;

			pages_fill(&fix.pages, i, (uint64_t)round * 1000 + i);
			batch_at(fix.store, &fix.pages, KVC_SET, fix.keys.keys + i,
				 &(int64_t){ (int64_t)i }, 1, KVC_TRANSFER_OVERWRITE, 0, &result);
			if (result.status != KVC_OK) {
				expect_result(result, KVC_ERROR, KVC_CAUSE_IO);
				assert_int_equal(result.error, EIO);
				failed++;
			}
		}
		pages_wipe(&fix.pages);
		batch(fix.store, &fix.pages, KVC_GET, fix.keys.keys, 125, 0, fix.results);
		for (size_t i = 0; i < 125; i++) {
			if (fix.results[i].status == KVC_OK)
				assert_true(pages_match(&fix.pages, i, (uint64_t)round * 1000 + i));
			else
				assert_true(round == 0 && i == 2);
		}
	}
	alarms(0);
	assert_int_equal(failed, 1);
	fix_close(&fix);
}

static void test_an_error_and_a_thousand_good_ones(void **state)
{
	(void)state;
	for (size_t i = 0; i < engines_count(); i++) {
		run_alarms(engines[i], "write error=EIO nth=3 name=*.kv.*", NULL);
		run_alarms(engines[i], "write error=EIO nth=5", "packed");
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stopped_writer_shows_nothing),
		cmocka_unit_test(test_stopped_writer_of_a_slot),
		cmocka_unit_test(test_empty_file_under_the_final_name),
		cmocka_unit_test(test_refused_writes_leave_nothing),
		cmocka_unit_test(test_refused_writes_leave_no_slot),
		cmocka_unit_test(test_short_write_is_no_page),
		cmocka_unit_test(test_refused_buffers_are_bounced),
		cmocka_unit_test(test_half_and_unreadable_pages),
		cmocka_unit_test(test_wrong_and_unreadable_slots),
		cmocka_unit_test(test_what_fails_twice_is_marked),
		cmocka_unit_test(test_an_error_and_a_thousand_good_ones),
	};

	support_begin();
	return cmocka_run_group_tests_name("torn", tests, NULL, NULL);
}
