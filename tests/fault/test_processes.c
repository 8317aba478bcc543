/* SPDX-License-Identifier: Apache-2.0 */
/* Several processes on one root, and processes that are killed at any step: R10, R22, R40. */
#include "support/packed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEYS	   32u
#define PART_BYTES 40000u

struct work {
	const char *root;
	const char *engine;
	const char *rules;  /* NULL: posix itself */
	const char *layout; /* NULL: files */
	unsigned number;
	unsigned rounds;
	uint32_t flags;
	int ready; /* pipe: a byte when the store is open; or -1 */
};

struct fix {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[KEYS];
};

static void fix_open(struct fix *fix, const struct work *work)
{
	struct setup setup = { .plugin = "posix", .engine = work->engine, .roots = work->root };
	struct kvc_namespace_params params = namespace_params("processes");

	if (work->rules != NULL) {
		setup.plugin = "fault";
		setup.lower = "posix";
		setup.rules = work->rules;
		setup.settings[0] = "durability=fdatasync"; /* so that every step happens */
	}
	setup.layout = work->layout;
	setup.flags = KVC_OPEN_NO_SELFTEST;
	fix->store = setup_must_open(&setup);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, KEYS, PART_BYTES);
	keys_make(&fix->keys, "processes", KEYS);
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

/* A page as writer number w has it: its number stands in front. */
static void page_write(struct fix *fix, size_t index, unsigned writer)
{
	unsigned char *page = fix->pages.part_base[0] + index * fix->pages.part_stride[0];
	uint64_t who = writer;

	bytes_fill(page, PART_BYTES, mix(key_content(fix->keys.keys[index]), writer));
	memcpy(page, &who, sizeof(who));
}

/* Whether it is one writer's page, whole. */
static bool page_is_of_one_writer(const struct fix *fix, size_t index)
{
	const unsigned char *page = fix->pages.part_base[0] + index * fix->pages.part_stride[0];
	unsigned char *copy = malloc(PART_BYTES);
	uint64_t who;
	bool same;

	assert_non_null(copy);
	memcpy(&who, page, sizeof(who));
	bytes_fill(copy, PART_BYTES, mix(key_content(fix->keys.keys[index]), who));
	memcpy(copy, &who, sizeof(who));
	same = memcmp(page, copy, PART_BYTES) == 0;
	free(copy);
	return same;
}

static size_t get_all(struct fix *fix)
{
	size_t ok = 0;

	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys, KEYS, 0, fix->results);
	for (size_t i = 0; i < KEYS; i++) {
		if (fix->results[i].status == KVC_OK) {
			assert_true(page_is_of_one_writer(fix, i));
			ok++;
		} else {
			expect_result(fix->results[i], KVC_MISS, -1);
		}
	}
	return ok;
}

/* ---------------------------------------------------------------- R10 */

static int write_the_same_keys(void *context)
{
	const struct work *work = context;
	struct chance chance = { .state = work->number * UINT64_C(1000003) };
	struct fix fix;

	fix_open(&fix, work);
	for (unsigned round = 0; round < work->rounds; round++) {
		size_t index = chance_below(&chance, KEYS);
		struct kvc_result result;

		page_write(&fix, index, work->number);
		batch_at(fix.store, &fix.pages, KVC_SET, fix.keys.keys + index,
			 &(int64_t){ (int64_t)index }, 1, round % 2 ? KVC_TRANSFER_OVERWRITE : 0, 0,
			 &result);
		expect_result(result, KVC_OK, -1);
	}
	fix_close(&fix);
	return 0;
}

static int read_the_same_keys(void *context)
{
	const struct work *work = context;
	struct fix fix;

	fix_open(&fix, work);
	for (unsigned round = 0; round < work->rounds; round++)
		(void)get_all(&fix);
	fix_close(&fix);
	return 0;
}

static void run_many_processes(const char *engine, const char *layout)
{
	const char *root = folder_new("processes");
	struct work work[10];
	pid_t pids[10];
	struct fix fix;

	for (unsigned i = 0; i < 10; i++) {
		work[i] = (struct work){
			.root = root,
			.engine = engine,
			.layout = layout,
			.number = i,
			.rounds = i < 8 ? 200 : 20,
		};
		pids[i] = child_start(i < 8 ? write_the_same_keys : read_the_same_keys, &work[i]);
	}
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(child_wait(pids[i]), 0);
	fix_open(&fix, &work[0]);
	assert_int_equal(get_all(&fix), KEYS);
	assert_int_equal(folder_count(root, ".kvctmp."), 0);
	if (layout != NULL) {
		assert_int_equal(packed_check(fix.store), KEYS);
		assert_int_equal(packed_health(fix.store).processes, 1);
	}
	fix_close(&fix);
}

static void test_eight_writers_of_the_same_keys(void **state)
{
	(void)state;
	run_many_processes("io_uring", NULL);
	run_many_processes("threads", NULL);
	run_many_processes("io_uring", "packed");
	run_many_processes("threads", "packed");
}

/* ---------------------------------------------------------------- R22 */

static int write_all_once(void *context)
{
	const struct work *work = context;
	struct fix fix;

	fix_open(&fix, work);
	for (size_t i = 0; i < KEYS; i++)
		page_write(&fix, i, work->number);
	batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys, KEYS, work->flags, fix.results);
	expect_all(fix.results, KEYS, KVC_OK);
	fix_close(&fix);
	return 0;
}

static void run_another_process(const char *layout, uint64_t object_bytes)
{
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct work work = { .root = folder_new("reopen"), .layout = layout };
	struct fix fix;

	assert_int_equal(child_wait(child_start(write_all_once, &work)), 0);
	fix_open(&fix, &work);
	batch(fix.store, &fix.pages, KVC_EXISTS, fix.keys.keys, KEYS, 0, fix.results);
	expect_all(fix.results, KEYS, KVC_OK);
	assert_int_equal(get_all(&fix), KEYS);
	assert_int_equal(kvc_store_usage(fix.store, 0, &usage, 1), 1);
	assert_int_equal(usage.own_objects, KEYS);
	assert_int_equal(usage.own_bytes, KEYS * object_bytes);
	fix_close(&fix);
}

static void test_another_process_finds_all(void **state)
{
	(void)state;
	run_another_process(NULL, 40960 + 4096);
	run_another_process("packed", 40960);
}

/* ---------------------------------------------------------------- killed writers */

struct scan {
	size_t objects;
	size_t temporary;
};

static void scan_hash_folder(const char *path, struct scan *scan)
{
	char file[PATH_BYTES];
	struct dirent *entry;
	struct stat st;
	DIR *folder = opendir(path);

	assert_non_null(folder);
	while ((entry = readdir(folder)) != NULL) {
		if (strncmp(entry->d_name, ".kvctmp.", 8) == 0) {
			scan->temporary++;
			continue;
		}
		if (entry->d_name[0] == '.' || strcmp(entry->d_name, "namespace.json") == 0)
			continue;
		text_make(file, sizeof(file), "%s/%s", path, entry->d_name);
		if (lstat(file, &st) != 0)
			continue;
		if (S_ISDIR(st.st_mode)) {
			scan_hash_folder(file, scan);
			continue;
		}
		if (st.st_size != 40960 + 4096)
			fail_msg("%s is visible with %lld bytes", file, (long long)st.st_size);
		scan->objects++;
	}
	(void)closedir(folder);
}

/* Whatever is seen under a final name is whole. */
static struct scan scan_root(const char *root)
{
	struct scan scan = { 0 };

	scan_hash_folder(root, &scan);
	return scan;
}

static int write_until_killed(void *context)
{
	const struct work *work = context;
	struct fix fix;

	fix_open(&fix, work);
	if (work->ready >= 0)
		(void)write(work->ready, "r", 1);
	for (unsigned round = 0; round < work->rounds; round++) {
		for (size_t i = 0; i < KEYS; i++)
			page_write(&fix, i, work->number + round);
		batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys, KEYS, work->flags,
		      fix.results);
		if (!(work->flags & KVC_TRANSFER_OVERWRITE))
			batch(fix.store, &fix.pages, KVC_REMOVE, fix.keys.keys, KEYS, 0,
			      fix.results);
	}
	fix_close(&fix);
	return 0;
}

static const char *const steps[] = {
	"publish.synced", "publish.created", "publish.written", "publish.linked", "publish.renamed",
};

/* A reader goes on while writers die at each step; afterwards nothing of them is left. */
static void run_kills_at(const char *step, const char *engine, uint32_t flags)
{
	const char *root = folder_new("step");
	struct work reader = { .root = root };
	char rules[128];
	unsigned killed = 0;
	uint64_t reclaimed = 0;
	size_t left = 0;
	struct fix fix;

	reader.rounds = 0;
	assert_int_equal(child_wait(child_start(write_all_once, &reader)), 0);
	for (unsigned nth = 1; nth <= 4; nth++) {
		struct work work = {
			.root = root,
			.engine = engine,
			.rules = rules,
			.number = nth * 100,
			.rounds = 2,
			.flags = flags,
			.ready = -1,
		};
		pid_t pid;
		int code;

		text_make(rules, sizeof(rules), "step kill=%s nth=%u", step, nth * 7);
		pid = child_start(write_until_killed, &work);
		fix_open(&fix, &reader);
		reclaimed += store_stats(fix.store).reclaimed;
		for (int i = 0; i < 5; i++) {
			(void)get_all(&fix);
			(void)scan_root(root);
		}
		code = child_wait(pid);
		assert_true(code == 0 || code == 256 + SIGKILL);
		killed += code != 0;
		(void)get_all(&fix);
		left = scan_root(root).temporary;
		fix_close(&fix);
	}
	if (strcmp(step, "publish.created") == 0 || strcmp(step, "publish.written") == 0 ||
	    strcmp(step, "publish.synced") == 0)
		assert_int_equal(killed, 4);
	/* An overwrite has a temporary name between these two. */
	if (strcmp(step, "publish.linked") == 0 && (flags & KVC_TRANSFER_OVERWRITE))
		assert_true(killed == 4 && left + reclaimed > 0);
	/* Opening reclaims what the dead left. */
	fix_open(&fix, &reader);
	assert_int_equal(scan_root(root).temporary, 0);
	assert_int_equal(store_stats(fix.store).reclaimed, left);
	(void)printf("%s: %u killed, %zu left at the end and reclaimed\n", step, killed, left);
	(void)get_all(&fix);
	fix_close(&fix);
}

static void test_killed_at_each_step(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		run_kills_at(steps[i], "threads", KVC_TRANSFER_OVERWRITE);
		run_kills_at(steps[i], "io_uring", 0);
	}
}

static int read_until_killed(void *context)
{
	struct fix fix;

	fix_open(&fix, context);
	(void)get_all(&fix);
	fix_close(&fix);
	return 0;
}

/* A reader that dies while it takes away an object that it has proven wrong. */
static void test_killed_while_removing(void **state)
{
	struct work work = { .root = folder_new("removing") };
	struct work reader = { .root = work.root, .rules = "step kill=remove.renamed nth=1" };
	char path[PATH_BYTES];
	struct fix fix;
	int fd;

	(void)state;
	assert_int_equal(child_wait(child_start(write_all_once, &work)), 0);
	fix_open(&fix, &work);
	assert_true(page_path(fix.pages.pool, fix.keys.keys[0], 0, path));
	fix_close(&fix);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "\x01\x02\x03", 3, 1000), 3);
	(void)close(fd);
	assert_int_equal(child_wait(child_start(read_until_killed, &reader)), 256 + SIGKILL);
	assert_false(file_exists(path));
	assert_int_equal(scan_root(work.root).temporary, 1);
	fix_open(&fix, &work);
	assert_int_equal(store_stats(fix.store).reclaimed, 1);
	assert_int_equal(scan_root(work.root).temporary, 0);
	assert_int_equal(get_all(&fix), KEYS - 1);
	fix_close(&fix);
}

/* One writer, killed after some time; the store of the reader is opened after the fork. */
static size_t kill_one(const struct work *work, unsigned milliseconds)
{
	const struct work reader = { .root = work->root, .layout = work->layout };
	struct work child = *work;
	size_t temporary;
	struct fix fix;
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	child.ready = ready[1];
	pid = child_start(write_until_killed, &child);
	(void)close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	(void)close(ready[0]);
	fix_open(&fix, &reader);
	sleep_ms(milliseconds);
	(void)get_all(&fix);
	if (work->layout == NULL)
		(void)scan_root(work->root);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(child_wait(pid), 256 + SIGKILL);
	(void)get_all(&fix);
	temporary = work->layout == NULL ? scan_root(work->root).temporary : 0;
	fix_close(&fix);
	return temporary;
}

/* Writer number i of many: engines and overwrites by turns. */
static void work_vary(struct work *work, unsigned i)
{
	work->engine = engines[i % engines_count()];
	work->number = i * 1000;
	work->flags = i % 3 ? KVC_TRANSFER_OVERWRITE : 0;
}

static void test_killed_at_random(void **state)
{
	struct work work = { .root = folder_new("random"), .rounds = 100000 };
	struct chance chance = { .state = 40 };
	size_t temporary = 0;
	struct fix fix;

	(void)state;
	assert_int_equal(child_wait(child_start(write_all_once, &work)), 0);
	for (unsigned i = 0; i < 200; i++) {
		work_vary(&work, i);
		temporary += kill_one(&work, (unsigned)chance_below(&chance, 12));
	}
	(void)printf("temporary files left behind, in all: %zu\n", temporary);
	work.engine = NULL;
	fix_open(&fix, &work);
	assert_int_equal(scan_root(work.root).temporary, 0);
	(void)get_all(&fix);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- leases */

#define DEAD  "11111111222243338444555555555555"
#define ALIVE "aaaaaaaabbbb4ccc8dddeeeeeeeeeeee"
#define GONE  "99999999888847778666555555555555"

static void temp_make(const char *root, const char *uuid, char out[PATH_BYTES])
{
	text_make(out, PATH_BYTES, "%s/x-0123456789abcdef", root);
	(void)mkdir(out, 0700);
	text_make(out, PATH_BYTES, "%s/x-0123456789abcdef/0a", root);
	(void)mkdir(out, 0700);
	text_make(out, PATH_BYTES, "%s/x-0123456789abcdef/0a/.kvctmp.%s.1", root, uuid);
	file_write(out, "half an object", 14);
}

static int lease_make(const char *root, const char *uuid, bool hold)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char path[PATH_BYTES];
	int fd;

	text_make(path, sizeof(path), "%s/.kvcellar/leases", root);
	(void)mkdir(path, 0700);
	text_make(path, sizeof(path), "%s/.kvcellar/leases/%s", root, uuid);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	if (hold)
		assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	return fd;
}

/* As docs/on-disk-format.md has it: a temporary file is an orphan once the lease of its writer can
 * be locked or is gone. */
static void test_orphans_go_and_the_living_stay(void **state)
{
	struct work work = { .root = folder_new("leases") };
	char alive[PATH_BYTES];
	char dead[PATH_BYTES];
	char gone[PATH_BYTES];
	struct fix fix;
	int dead_fd;
	int fd;

	(void)state;
	fix_open(&fix, &work);
	fix_close(&fix);
	temp_make(work.root, ALIVE, alive);
	temp_make(work.root, DEAD, dead);
	temp_make(work.root, GONE, gone);
	fd = lease_make(work.root, ALIVE, true);
	dead_fd = lease_make(work.root, DEAD, false);
	(void)close(dead_fd);
	fix_open(&fix, &work);
	assert_int_equal(store_stats(fix.store).reclaimed, 2);
	assert_true(file_exists(alive));
	assert_false(file_exists(dead));
	assert_false(file_exists(gone));
	fix_close(&fix);
	(void)close(fd);
	fix_open(&fix, &work);
	assert_int_equal(store_stats(fix.store).reclaimed, 1);
	assert_false(file_exists(alive));
	fix_close(&fix);
}

/* R40: killed twenty times beside a live slow writer, which then finishes. */
static int write_slowly(void *context)
{
	const struct work *work = context;
	struct fix fix;

	fix_open(&fix, work);
	(void)write(work->ready, "r", 1);
	for (unsigned round = 0; round < work->rounds; round++) {
		for (size_t i = 0; i < KEYS; i++)
			page_write(&fix, i, work->number + round);
		batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys, KEYS, KVC_TRANSFER_OVERWRITE,
		      fix.results);
		expect_all(fix.results, KEYS, KVC_OK);
	}
	fix_close(&fix);
	return 0;
}

/* A writer that is killed some time after it was ready. */
static void kill_soon(struct work *work, const int ready[2], unsigned milliseconds)
{
	char byte;
	pid_t pid;

	work->ready = ready[1];
	pid = child_start(write_until_killed, work);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	sleep_ms(milliseconds);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(child_wait(pid), 256 + SIGKILL);
}

static void test_a_live_slow_writer_is_left_alone(void **state)
{
	const char *root = folder_new("slow");
	int ready[2];
	struct work slow = {
		.root = root,
		.rules = "fill delay_ms=60",
		.number = 5000000,
		.rounds = 1,
	};
	struct work work = { .root = root };
	struct fix fix;
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	slow.ready = ready[1];
	pid = child_start(write_slowly, &slow);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	for (unsigned i = 0; i < 20; i++) {
		struct work killed = {
			.root = root,
			.number = i * 1000,
			.rounds = 100000,
			.flags = KVC_TRANSFER_OVERWRITE,
		};

		kill_soon(&killed, ready, 5);
	}
	assert_int_equal(child_wait(pid), 0);
	(void)close(ready[0]);
	(void)close(ready[1]);
	fix_open(&fix, &work);
	assert_int_equal(scan_root(root).temporary, 0);
	assert_int_equal(get_all(&fix), KEYS);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- killed beside the living,
 * packed */

/* Until the slots of the dead are free again: their quarantine is over at once here. */
static void expect_no_slot_lost(struct fix *fix)
{
	const uint64_t end = now_ms() + 60000;
	struct packed_slots slots;

	packed_of(fix->store, 0)->quarantine_ns = 1;
	for (;;) {
		slots = packed_slots(fix->store);
		if ((slots.writing + slots.quarantined == 0 &&
		     packed_health(fix->store).quarantined == 0) ||
		    now_ms() > end)
			break;
		sleep_ms(20);
	}
	assert_int_equal(slots.writing + slots.quarantined, 0);
	assert_int_equal(packed_health(fix->store).processes, 1);
	(void)packed_check(fix->store);
}

/* Each page can be stored anew, as often as there are slots: all of them are there. */
static void fill_again(struct fix *fix)
{
	for (unsigned round = 0; round < 20; round++) {
		for (size_t i = 0; i < KEYS; i++)
			page_write(fix, i, 900000 + round);
		batch(fix->store, &fix->pages, KVC_SET, fix->keys.keys, KEYS,
		      KVC_TRANSFER_OVERWRITE, fix->results);
		expect_all(fix->results, KEYS, KVC_OK);
	}
	assert_int_equal(packed_check(fix->store), KEYS);
	assert_int_equal(get_all(fix), KEYS);
}

static void expect_all_slots(const struct work *work)
{
	struct fix fix;

	fix_open(&fix, work);
	(void)get_all(&fix);
	expect_no_slot_lost(&fix);
	fill_again(&fix);
	fix_close(&fix);
}

/* R40: killed twenty times beside a live writer whose I/O takes its time. */
static void test_killed_beside_a_slow_slot_writer(void **state)
{
	const char *root = folder_new("slots");
	struct work slow = {
		.root = root,
		.layout = "packed",
		.rules = "write delay_ms=60 after=4",
		.number = 5000000,
		.rounds = 8,
	};
	struct work work = { .root = root, .layout = "packed" };
	struct work killed = { .root = root, .layout = "packed", .rounds = 100000 };
	int ready[2];
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(child_wait(child_start(write_all_once, &work)), 0);
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	slow.ready = ready[1];
	pid = child_start(write_slowly, &slow);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	for (unsigned i = 0; i < 20; i++) {
		work_vary(&killed, i);
		kill_soon(&killed, ready, 5 + i);
	}
	assert_int_equal(child_wait(pid), 0);
	(void)close(ready[0]);
	(void)close(ready[1]);
	expect_all_slots(&work);
}

/* A reader of the same root stays open while writers die: it never sees but whole pages. */
static void test_slot_writers_killed_at_random(void **state)
{
	struct work work = { .root = folder_new("random"), .rounds = 100000, .layout = "packed" };
	struct chance chance = { .state = 41 };

	(void)state;
	assert_int_equal(child_wait(child_start(write_all_once, &work)), 0);
	for (unsigned i = 0; i < 60; i++) {
		work_vary(&work, i);
		(void)kill_one(&work, (unsigned)chance_below(&chance, 12));
	}
	work.engine = NULL;
	expect_all_slots(&work);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_eight_writers_of_the_same_keys),
		cmocka_unit_test(test_another_process_finds_all),
		cmocka_unit_test(test_killed_at_each_step),
		cmocka_unit_test(test_killed_while_removing),
		cmocka_unit_test(test_killed_at_random),
		cmocka_unit_test(test_orphans_go_and_the_living_stay),
		cmocka_unit_test(test_a_live_slow_writer_is_left_alone),
		cmocka_unit_test(test_killed_beside_a_slow_slot_writer),
		cmocka_unit_test(test_slot_writers_killed_at_random),
	};

	support_begin();
	return cmocka_run_group_tests_name("processes", tests, NULL, NULL);
}
