/* SPDX-License-Identifier: Apache-2.0 */
/* R33: mounts and disks that stall; R25: a root that refuses O_DIRECT beside one that does not. */
#include "support/packed.h"

#include "core/store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUSE_MAGIC 0x65735546
#define KEYS	   40u

static const char *stallfs; /* path of the program */

/* A mounted stallfs. */
struct slow {
	const char *mount;
	char control[PATH_BYTES];
	pid_t pid;
};

static void slow_say(struct slow *slow, const char *words)
{
	char next[PATH_BYTES + 8];

	text_make(next, sizeof(next), "%s.next", slow->control);
	file_write(next, words, strlen(words));
	assert_int_equal(rename(next, slow->control), 0);
}

static void slow_mount(struct slow *slow)
{
	const char *source = folder_new("source");
	struct statfs fs;

	slow->mount = folder_new("mount");
	text_make(slow->control, sizeof(slow->control), "%s/control", folder_new("control"));
	file_write(slow->control, "", 0);
	slow->pid = fork();
	if (slow->pid == 0) {
		(void)execl(stallfs, "stallfs", source, slow->mount, slow->control, (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 1000; i++) {
		if (statfs(slow->mount, &fs) == 0 && fs.f_type == FUSE_MAGIC)
			return;
		if (waitpid(slow->pid, NULL, WNOHANG) != 0)
			break;
		sleep_ms(5);
	}
	support_skip("a FUSE file system cannot be mounted");
}

static void slow_end(struct slow *slow)
{
	slow_say(slow, "");
	(void)umount2(slow->mount, MNT_DETACH);
	(void)kill(slow->pid, SIGTERM);
	(void)waitpid(slow->pid, NULL, 0);
}

struct fix {
	struct setup setup;
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[KEYS];
	bool there[KEYS]; /* the page lies on the slow root */
};

static void fix_open(struct fix *fix)
{
	struct kvc_namespace_params params = namespace_params("stall");

	fix->store = setup_must_open(&fix->setup);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, KEYS, 8192);
	keys_make(&fix->keys, "stall", KEYS);
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

static size_t find_slow_pages(struct fix *fix, const struct slow *slow)
{
	char path[PATH_BYTES];
	size_t count = 0;

	for (size_t i = 0; i < KEYS; i++) {
		assert_true(page_path(fix->pages.pool, fix->keys.keys[i], 0, path));
		fix->there[i] = strncmp(path, slow->mount, strlen(slow->mount)) == 0;
		count += fix->there[i];
	}
	return count;
}

static void run(struct fix *fix, int op, uint32_t timeout_ms)
{
	if (op == KVC_SET)
		pages_fill_keys(&fix->pages, fix->keys.keys, KEYS);
	if (op == KVC_GET)
		pages_wipe(&fix->pages);
	batch_at(fix->store, &fix->pages, op, fix->keys.keys, NULL, KEYS, 0, timeout_ms,
		 fix->results);
}

static void expect_good(struct fix *fix, size_t i)
{
	expect_result(fix->results[i], KVC_OK, -1);
	assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
}

/* Gets while the slow root stalls: TIMEOUT there, OK elsewhere, and nothing comes later. */
static void stalled_gets(struct fix *fix, struct slow *slow)
{
	slow_say(slow, "read");
	for (int round = 0; round < 2; round++) {
		run(fix, KVC_GET, 400);
		for (size_t i = 0; i < KEYS; i++)
			if (fix->there[i])
				expect_result(fix->results[i], KVC_TIMEOUT, -1);
			else
				expect_good(fix, i);
	}
	/* Late bytes go nowhere. */
	pages_wipe(&fix->pages);
	slow_say(slow, "");
	sleep_ms(500);
	for (size_t i = 0; i < KEYS; i++)
		assert_true(pages_untouched(&fix->pages, i));
	pages_check_gaps(&fix->pages);
}

static void expect_recovers(struct fix *fix)
{
	for (int i = 0; i < 200; i++) {
		run(fix, KVC_GET, 5000);
		if (count_status(fix->results, KEYS, KVC_OK) == KEYS)
			break;
		sleep_ms(50);
	}
	for (size_t i = 0; i < KEYS; i++)
		expect_good(fix, i);
}

static void run_stalled_mount(const char *engine)
{
	const char *fast = folder_new("fast");
	char roots[2 * PATH_BYTES];
	struct fix fix = { .setup = { .plugin = "posix", .engine = engine, .roots = roots } };
	struct slow slow;
	size_t count;

	slow_mount(&slow);
	text_make(roots, sizeof(roots), "%s,%s", slow.mount, fast);
	fix_open(&fix);
	count = find_slow_pages(&fix, &slow);
	assert_true(count > 2 && count < KEYS - 2);
	run(&fix, KVC_SET, 0);
	expect_all(fix.results, KEYS, KVC_OK);
	expect_recovers(&fix);
	stalled_gets(&fix, &slow);
	expect_recovers(&fix);
	fix_close(&fix);
	slow_end(&slow);
}

static void test_reads_of_a_stalled_mount(void **state)
{
	(void)state;
	run_stalled_mount("io_uring");
	run_stalled_mount("threads");
}

/* Sets while writes stall. The caller's memory changes right after; what is written late are the
 * bytes of the time of the call. */
static void test_writes_to_a_stalled_mount(void **state)
{
	const char *fast = folder_new("fast");
	char roots[2 * PATH_BYTES];
	struct fix fix = { .setup = { .plugin = "posix", .engine = "io_uring", .roots = roots } };
	struct slow slow;

	(void)state;
	slow_mount(&slow);
	text_make(roots, sizeof(roots), "%s,%s", slow.mount, fast);
	fix_open(&fix);
	(void)find_slow_pages(&fix, &slow);
	slow_say(&slow, "write");
	run(&fix, KVC_SET, 400);
	for (size_t i = 0; i < KEYS; i++)
		expect_result(fix.results[i], fix.there[i] ? KVC_TIMEOUT : KVC_OK, -1);
	for (size_t i = 0; i < KEYS; i++)
		pages_fill(&fix.pages, i, 123456);
	slow_say(&slow, "");
	sleep_ms(500);
	run(&fix, KVC_GET, 5000);
	for (size_t i = 0; i < KEYS; i++)
		if (fix.results[i].status == KVC_OK)
			expect_good(&fix, i);
		else
			assert_true(fix.there[i] && (fix.results[i].status == KVC_MISS ||
						     fix.results[i].status == KVC_TIMEOUT));
	for (int i = 0; i < 200 && count_status(fix.results, KEYS, KVC_OK) != KEYS; i++) {
		sleep_ms(50);
		run(&fix, KVC_SET, 5000);
	}
	expect_recovers(&fix);
	fix_close(&fix);
	slow_end(&slow);
}

/* close() comes back although I/O hangs: the queue is parked for the life of the process. */
static int close_while_stalled(void *context)
{
	struct slow *slow = context;
	struct fix fix = { .setup = {
				   .plugin = "posix", .engine = "threads", .roots = slow->mount } };

	fix_open(&fix);
	run(&fix, KVC_SET, 0);
	expect_all(fix.results, KEYS, KVC_OK);
	slow_say(slow, "read");
	run(&fix, KVC_GET, 200);
	expect_all(fix.results, KEYS, KVC_TIMEOUT);
	assert_true(store_stats(fix.store).parked_queues > 0);
	fix_close(&fix);
	slow_say(slow, "");
	return 0;
}

static void test_close_beside_a_stalled_mount(void **state)
{
	struct slow slow;

	(void)state;
	slow_mount(&slow);
	assert_int_equal(child_wait(child_start(close_while_stalled, &slow)), 0);
	slow_end(&slow);
}

/* A local disk (soft root) that stalls: the call waits for what is in flight, is counted, and the
 * root goes by memory of the library from then on. */
static void run_local_disk(const char *rules, const char *layout)
{
	struct fix fix = { .setup = { .plugin = "fault",
				      .lower = "posix",
				      .rules = rules,
				      .layout = layout,
				      .flags = KVC_OPEN_NO_SELFTEST,
				      .settings = { "plugin.fault.cancellable=false",
						    "plugin.fault.local=true" } } };
	char *text;

	fix.setup.roots = folder_new("local");
	fix_open(&fix);
	run(&fix, KVC_SET, 0);
	expect_all(fix.results, KEYS, KVC_OK);
	assert_int_equal(store_stats(fix.store).overruns, 0);
	run(&fix, KVC_GET, 200);
	/* What came after the deadline is there whole, or said to be late. */
	for (size_t i = 0; i < KEYS; i++)
		if (fix.results[i].status == KVC_OK)
			expect_good(&fix, i);
		else
			expect_result(fix.results[i], KVC_TIMEOUT, -1);
	pages_wipe(&fix.pages);
	sleep_ms(300);
	for (size_t i = 0; i < KEYS; i++)
		assert_true(pages_untouched(&fix.pages, i));
	assert_int_equal(store_stats(fix.store).overruns, 1);
	text = store_text(fix.store, KVC_FORMAT_TEXT);
	assert_non_null(strstr(text, "suspect"));
	free(text);
	expect_recovers(&fix);
	fix_close(&fix);
}

static void test_a_local_disk_that_stalls(void **state)
{
	(void)state;
	run_local_disk("read stall_ms=1500 name=*.kv.* count=3", NULL);
	/* Slots have no names; the first read is that of root.json. */
	run_local_disk("read stall_ms=1500 after=1 count=3", "packed");
}

/* A slot whose write is late stays the writer's until it is over, and is free then: what comes late
 * never lands in another page. */
static void test_late_writes_keep_their_slots(void **state)
{
	struct fix fix = { .setup = { .plugin = "fault",
				      .lower = "mem",
				      .layout = "packed",
				      .rules = "write stall_ms=1500 after=2 count=3",
				      .flags = KVC_OPEN_NO_SELFTEST,
				      .settings = { "plugin.fault.cancellable=false",
						    "plugin.fault.local=false" } } };
	uint64_t end;

	(void)state;
	fix.setup.roots = folder_new("late");
	fix_open(&fix);
	run(&fix, KVC_SET, 300);
	assert_true(count_status(fix.results, KEYS, KVC_TIMEOUT) >= 3);
	assert_int_equal(packed_slots(fix.store).writing, 3);
	/* Other bytes meanwhile, in the caller's memory and in the same pages. */
	pages_wipe(&fix.pages);
	run(&fix, KVC_SET, 60000);
	expect_all(fix.results, KEYS, KVC_OK);
	run(&fix, KVC_GET, 60000);
	for (size_t i = 0; i < KEYS; i++)
		expect_good(&fix, i);
	end = now_ms() + 60000;
	while (packed_slots(fix.store).writing > 0 && now_ms() < end)
		sleep_ms(20);
	assert_int_equal(packed_check(fix.store), KEYS);
	run(&fix, KVC_GET, 60000);
	for (size_t i = 0; i < KEYS; i++)
		expect_good(&fix, i);
	fix_close(&fix);
}

/* Its index is memory that the processes of one host share: not on a mount like that. */
static void test_no_slots_on_a_mount(void **state)
{
	struct setup setup = { .plugin = "posix", .layout = "packed" };
	struct kvc_store *store = NULL;
	struct slow slow;

	(void)state;
	slow_mount(&slow);
	setup.roots = slow.mount;
	assert_int_equal(setup_open(&setup, &store), -ENOTSUP);
	assert_non_null(strstr(kvc_last_error(), slow.mount));
	assert_non_null(strstr(kvc_last_error(), "packed"));
	assert_null(store);
	assert_int_equal(folder_count(slow.mount, ""), 0);
	setup.layout = "";
	setup.settings[0] = "l3_cleaner_enabled=true";
	store = setup_must_open(&setup);
	assert_false(store->roots[0]->is_packed);
	store_must_close(store);
	slow_end(&slow);
}

/* A staged root whose plugin never answers again. */
static void run_never_answers(const char *rules, const char *layout)
{
	struct fix fix = { .setup = { .plugin = "fault",
				      .lower = "mem",
				      .rules = rules,
				      .layout = layout,
				      .flags = KVC_OPEN_NO_SELFTEST,
				      .settings = { "plugin.fault.cancellable=false",
						    "plugin.fault.local=false" } } };

	fix.setup.roots = folder_new("never");
	fix_open(&fix);
	run(&fix, KVC_SET, 0);
	expect_all(fix.results, KEYS, KVC_OK);
	run(&fix, KVC_GET, 300);
	assert_true(count_status(fix.results, KEYS, KVC_TIMEOUT) >= 4);
	for (size_t i = 0; i < KEYS; i++)
		if (fix.results[i].status == KVC_OK)
			expect_good(&fix, i);
		else
			expect_result(fix.results[i], KVC_TIMEOUT, -1);
	expect_recovers(&fix);
	fix_close(&fix);
}

static void test_a_plugin_that_never_answers(void **state)
{
	(void)state;
	run_never_answers("read stall name=*.kv.* after=5 count=4", NULL);
	run_never_answers("read stall after=6 count=4", "packed");
}

/* R25 */
static void test_one_root_refuses_direct_io(void **state)
{
	const char *fast = folder_new("fast");
	char roots[2 * PATH_BYTES];
	struct fix fix = { .setup = { .plugin = "posix", .roots = roots } };
	struct slow slow;

	(void)state;
	slow_mount(&slow);
	slow_say(&slow, "direct");
	text_make(roots, sizeof(roots), "%s,%s", slow.mount, fast);
	log_capture();
	fix_open(&fix);
	run(&fix, KVC_SET, 0);
	expect_all(fix.results, KEYS, KVC_OK);
	run(&fix, KVC_GET, 0);
	for (size_t i = 0; i < KEYS; i++)
		expect_good(&fix, i);
	if (log_count(KVC_LOG_WARNING, slow.mount, NULL) != 1)
		log_show();
	assert_int_equal(log_count(KVC_LOG_WARNING, slow.mount, NULL), 1);
	fix_close(&fix);
	kvc_log_set(NULL, NULL, 0);
	slow_end(&slow);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_close_beside_a_stalled_mount),
		cmocka_unit_test(test_reads_of_a_stalled_mount),
		cmocka_unit_test(test_writes_to_a_stalled_mount),
		cmocka_unit_test(test_a_local_disk_that_stalls),
		cmocka_unit_test(test_a_plugin_that_never_answers),
		cmocka_unit_test(test_late_writes_keep_their_slots),
		cmocka_unit_test(test_no_slots_on_a_mount),
		cmocka_unit_test(test_one_root_refuses_direct_io),
	};

	support_begin();
	if (argc != 2) {
		(void)fprintf(stderr, "usage: test_stall STALLFS\n");
		return 2;
	}
	stallfs = argv[1];
	if (access("/dev/fuse", R_OK | W_OK) != 0)
		support_skip("/dev/fuse cannot be used");
	mounts_enter();
	return cmocka_run_group_tests_name("stall", tests, NULL, NULL);
}
