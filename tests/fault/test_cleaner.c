/* SPDX-License-Identifier: Apache-2.0 */
/* Room in roots of files: capacity, watermarks, min_free, groups, others' files: R35 to R39. */
#include "space.h"

#include "support/packed.h"

#include "core/cleaner_internal.h"
#include "core/folder.h"
#include "core/pin.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/usage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB	   (UINT64_C(1) << 20)
#define PAGE_BYTES 65536u
#define STORED	   (PAGE_BYTES + 4096u)
#define BATCH	   32u
#define WAIT_MS	   20000u

static void fix_open_model(struct fix *fix, const struct setup *setup, const char *model,
			   size_t keys, uint64_t bytes)
{
	fix_open_pages(fix, setup, model, keys, BATCH, bytes);
}

static void fix_open(struct fix *fix, const struct setup *setup, size_t keys)
{
	fix_open_model(fix, setup, "cleaner", keys, PAGE_BYTES);
}

static size_t run_range(struct fix *fix, int op, size_t from, size_t to)
{
	size_t ok = 0;

	for (; from < to; from += BATCH)
		ok += run_keys(fix, op, from, to - from < BATCH ? to - from : BATCH);
	return ok;
}

static uint64_t own_bytes(struct kvc_store *store)
{
	struct kvc_root_usage usage = { .size = sizeof(usage) };

	assert_true(kvc_store_usage(store, 0, &usage, 1) >= 1);
	return usage.own_bytes;
}

static uint64_t evicted(struct kvc_store *store)
{
	return store_stats(store).evicted;
}

static void ballast(const char *root, uint64_t bytes)
{
	char path[PATH_BYTES];
	int fd;

	text_make(path, sizeof(path), "%s/ballast", root);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(posix_fallocate(fd, 0, (off_t)bytes), 0);
	assert_int_equal(close(fd), 0);
}

static double percent_used(struct kvc_store *store)
{
	struct kvc_root_usage usage = { .size = sizeof(usage) };

	assert_true(kvc_store_usage(store, 0, &usage, 1) >= 1);
	return 100.0 * (double)(usage.total_bytes - usage.free_bytes) / (double)usage.total_bytes;
}

/* Nothing goes any more. */
static void wait_settled(struct kvc_store *store)
{
	uint64_t before;

	do {
		before = evicted(store);
		sleep_ms(1200);
	} while (evicted(store) != before);
}

static bool wait_below(struct kvc_store *store, double percent)
{
	const uint64_t until = now_ms() + WAIT_MS;

	while (percent_used(store) >= percent && now_ms() < until)
		sleep_ms(20);
	return percent_used(store) < percent;
}

/* ---------------------------------------------------------------- capacity */

/* R36: a tenth of what is written fits. */
static void run_tenfold(const char *engine, const char *naming, const char *eviction)
{
	const size_t count = support_sanitized() ? 1920 : 4800;
	const uint64_t limit = count * STORED / 10;
	struct setup setup = { .plugin = "posix", .engine = engine, .naming = naming };
	char capacity[64], order[64];
	const bool lru = strcmp(eviction, "lru") == 0;
	struct fix fix;
	size_t old;

	text_make(capacity, sizeof(capacity), "capacity=%llu", (unsigned long long)limit);
	text_make(order, sizeof(order), "eviction=%s", eviction);
	setup.settings[0] = "l3_cleaner_enabled=true";
	setup.settings[1] = capacity;
	setup.settings[2] = order;
	setup.roots = folder_new("tenfold");
	mount_tmpfs(setup.roots, "size=1g");
	fix_open(&fix, &setup, count);
	for (size_t at = 0; at < count; at += BATCH) {
		assert_int_equal(run_keys(&fix, KVC_SET, at, BATCH), BATCH);
		if (lru)
			assert_int_equal(run_keys(&fix, KVC_GET, 0, BATCH), BATCH);
		assert_true(own_bytes(fix.store) <= limit);
		if (at % (BATCH * 10) == 0)
			assert_true(folder_allocated(setup.roots) <=
				    limit + MIB + 2 * BATCH * STORED);
	}
	assert_true(run_range(&fix, KVC_GET, count - count / 50, count) >= count / 50 - 2);
	old = run_range(&fix, KVC_GET, BATCH, BATCH + count / 10);
	assert_true(old < count / 100);
	assert_true(own_bytes(fix.store) >= limit / 4 * 3);
	assert_true(evicted(fix.store) >= count - count / 10 - 2 * BATCH);
	fix_close(&fix);
	/* The counts were right. */
	setup.settings[0] = "l3_cleaner_enabled=false";
	fix_open(&fix, &setup, count);
	assert_int_equal(
		kvc_store_usage(fix.store, 1,
				&(struct kvc_root_usage){ .size = sizeof(struct kvc_root_usage) },
				1),
		1);
	assert_int_equal(store_stats(fix.store).usage_drift, 0);
	fix_close(&fix);
	mount_end(setup.roots);
}

static void test_ten_times_the_capacity(void **state)
{
	(void)state;
	run_tenfold(engines[0], "kvcellar", "lru");
	run_tenfold(engines[2], "nixl", "lru");
	run_tenfold(engines[2], "kvcellar", "fifo");
	run_tenfold(engines[2], "kvcellar", "s3fifo");
}

/* So small that each call has to wait for pages of its own. */
static void test_a_capacity_below_a_batch(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=300000" } };
	struct fix fix;

	(void)state;
	setup.roots = folder_new("small");
	fix_open(&fix, &setup, 256);
	for (size_t at = 0; at < 256; at += BATCH) {
		assert_int_equal(run_keys(&fix, KVC_SET, at, BATCH), BATCH);
		assert_true(own_bytes(fix.store) <= 300000);
	}
	fix_close(&fix);
}

/* Without the cleaner nothing goes, and a set is told. */
static void test_the_cleaner_is_off(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=false", "capacity=1MiB" } };
	struct fix fix;
	size_t ok;

	(void)state;
	setup.roots = folder_new("off");
	fix_open(&fix, &setup, 64);
	ok = run_range(&fix, KVC_SET, 0, 64);
	assert_true(ok == MIB / STORED);
	for (size_t i = 0; i < 64; i++)
		if (fix.results[i].status != KVC_OK)
			expect_result(fix.results[i], KVC_FULL, KVC_CAUSE_CAPACITY);
	sleep_ms(1500);
	assert_int_equal(run_range(&fix, KVC_EXISTS, 0, 64), ok);
	assert_int_equal(evicted(fix.store), 0);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- watermarks */

static void test_watermarks(void **state)
{
	struct setup setup = { .plugin = "posix", .settings = { "l3_cleaner_enabled=true" } };
	struct fix fix;

	(void)state;
	setup.roots = folder_new("marks");
	mount_tmpfs(setup.roots, "size=64m");
	fix_open(&fix, &setup, 1024);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 640), 640); /* 66% */
	sleep_ms(2500);
	assert_int_equal(evicted(fix.store), 0);
	assert_int_equal(run_range(&fix, KVC_GET, 0, 64), 64);
	assert_int_equal(run_range(&fix, KVC_SET, 640, 832), 192); /* 86% */
	assert_true(wait_below(fix.store, 70));
	sleep_ms(2500);
	/* Not much below the low mark; what was read and what is new is there. */
	assert_true(percent_used(fix.store) > 69);
	assert_int_equal(run_range(&fix, KVC_GET, 0, 64), 64);
	assert_int_equal(run_range(&fix, KVC_GET, 640, 832), 192);
	/* Faster than the cleaner: sets make room. */
	for (unsigned round = 0; round < 4; round++)
		assert_int_equal(run_range(&fix, KVC_SET, 832, 1024) +
					 run_range(&fix, KVC_REMOVE, 832, 1024),
				 384);
	fix_close(&fix);
	mount_end(setup.roots);
}

/* R35: others have 90%, the cache 5%. It does not fill what they left. */
static void run_others(const char *limit, bool warns)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", limit } };
	struct fix fix;

	setup.roots = folder_new("others");
	mount_tmpfs(setup.roots, "size=64m");
	log_capture();
	log_forget();
	fix_open(&fix, &setup, 64);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 48), 48);
	ballast(setup.roots, 58 * MIB);
	sleep_ms(3500);
	assert_int_equal(run_range(&fix, KVC_GET, 0, 48), 48);
	assert_int_equal(evicted(fix.store), 0);
	assert_int_equal(log_count(KVC_LOG_WARNING, "would not help", NULL), warns);
	assert_int_equal(run_range(&fix, KVC_SET, 48, 64), warns ? 0 : 16);
	for (size_t i = 0; warns && i < 16; i++) {
		assert_int_equal(fix.results[48 + i].status, KVC_FULL);
		assert_int_equal(fix.results[48 + i].cause, KVC_CAUSE_CAPACITY);
	}
	assert_int_equal(log_count(KVC_LOG_WARNING, "set", NULL) > 0, warns);
	assert_int_equal(run_range(&fix, KVC_GET, 0, 48), 48);
	fix_close(&fix);
	mount_end(setup.roots);
}

static void test_others_fill_the_disk(void **state)
{
	(void)state;
	run_others(NULL, true);
	run_others("capacity=8MiB", false);
}

static void test_min_free(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=1GiB",
					     "min_free=32MiB" } };
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct fix fix;

	(void)state;
	setup.roots = folder_new("minfree");
	mount_tmpfs(setup.roots, "size=64m");
	fix_open(&fix, &setup, 1600);
	for (size_t at = 0; at < 1600; at += BATCH) {
		assert_int_equal(run_keys(&fix, KVC_SET, at, BATCH), BATCH);
		assert_int_equal(kvc_store_usage(fix.store, 0, &usage, 1), 1);
		assert_true(usage.free_bytes >= 32 * MIB);
	}
	assert_int_equal(run_range(&fix, KVC_GET, 1600 - 96, 1600), 96);
	fix_close(&fix);
	mount_end(setup.roots);
}

/* The device itself is full: what is least used goes for what is new. */
static void test_a_full_device(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=1GiB" } };
	struct fix fix;

	(void)state;
	setup.roots = folder_new("device");
	mount_tmpfs(setup.roots, "size=16m");
	fix_open(&fix, &setup, 640);
	for (size_t at = 0; at < 640; at += BATCH)
		assert_int_equal(run_keys(&fix, KVC_SET, at, BATCH), BATCH);
	assert_true(run_range(&fix, KVC_GET, 640 - 64, 640) >= 60);
	fix_close(&fix);
	mount_end(setup.roots);
}

/* ---------------------------------------------------------------- groups */

#define GROUP_KEYS 480u

struct rank {
	struct kvc_namespace *ns;
	struct pages kv;
	struct pages mamba;
};

static void rank_open(struct rank *rank, struct kvc_store *store, uint32_t number)
{
	struct kvc_namespace_params params = namespace_params("grouped");
	const struct pages_params kv = { .count = BATCH,
					 .part_count = 2,
					 .part_bytes = { 8192, 8192 } };
	const struct pages_params mamba = {
		.name = "mamba", .count = BATCH, .part_count = 3, .part_bytes = { 4096, 4096, 4096 }
	};

	params.tp_size = 2;
	params.tp_rank = number;
	rank->ns = namespace_must_open(store, &params);
	pages_open(&rank->kv, rank->ns, &kv);
	pages_open(&rank->mamba, rank->ns, &mamba);
}

static void rank_close(struct rank *rank)
{
	pages_close(&rank->mamba);
	pages_close(&rank->kv);
	assert_int_equal(kvc_namespace_close(rank->ns), 0);
}

static unsigned objects_of(struct rank *ranks, struct kvc_key key, unsigned *out_all)
{
	char path[PATH_BYTES];
	unsigned there = 0, all = 0;

	for (unsigned r = 0; r < 2; r++) {
		for (size_t o = 0; page_path(ranks[r].kv.pool, key, o, path); o++, all++)
			there += file_exists(path);
		for (size_t o = 0; page_path(ranks[r].mamba.pool, key, o, path); o++, all++)
			there += file_exists(path);
	}
	*out_all = all;
	return there;
}

/* R37: all objects of a page go, or none. */
static void run_groups(const char *naming, unsigned roots)
{
	struct setup setup = { .plugin = "posix", .naming = naming };
	struct kvc_result results[BATCH];
	char dirs[3 * PATH_BYTES] = "";
	const char *root[2];
	struct kvc_store *store;
	struct rank ranks[2];
	struct keys keys;
	size_t whole = 0, gone = 0;

	for (unsigned r = 0; r < roots; r++) {
		const size_t used = strlen(dirs);

		root[r] = folder_new("groups");
		mount_tmpfs(root[r], "size=64m");
		text_make(dirs + used, sizeof(dirs) - used, "%s%s", r ? "," : "", root[r]);
	}
	setup.roots = dirs;
	setup.settings[0] = "l3_cleaner_enabled=true";
	setup.settings[1] = roots > 1 ? "capacity=4MiB" : "capacity=8MiB";
	store = setup_must_open(&setup);
	for (unsigned r = 0; r < 2; r++)
		rank_open(&ranks[r], store, r);
	keys_make(&keys, "grouped", GROUP_KEYS);
	for (size_t at = 0; at < GROUP_KEYS; at += BATCH)
		for (unsigned r = 0; r < 2; r++) {
			pages_fill_keys(&ranks[r].kv, keys.keys + at, BATCH);
			batch(store, &ranks[r].kv, KVC_SET, keys.keys + at, BATCH, 0, results);
			expect_all(results, BATCH, KVC_OK);
			pages_fill_keys(&ranks[r].mamba, keys.keys + at, BATCH);
			batch(store, &ranks[r].mamba, KVC_SET, keys.keys + at, BATCH, 0, results);
			expect_all(results, BATCH, KVC_OK);
		}
	wait_settled(store);
	for (size_t i = 0; i < GROUP_KEYS; i++) {
		unsigned all;
		const unsigned there = objects_of(ranks, keys.keys[i], &all);

		if (there != 0 && there != all)
			fail_msg("%s, %u roots: key %zu has %u of %u objects", naming, roots, i,
				 there, all);
		whole += there == all;
		gone += there == 0;
	}
	assert_true(whole > 40 && gone > 40);
	for (unsigned r = 0; r < 2; r++)
		rank_close(&ranks[r]);
	store_must_close(store);
	for (unsigned r = 0; r < roots; r++)
		mount_end(root[r]);
	keys_free(&keys);
}

static void test_groups_go_whole(void **state)
{
	(void)state;
	run_groups("kvcellar", 1);
	run_groups("kvcellar", 2);
	run_groups("nixl", 1);
	run_groups("nixl", 2);
}

/* ---------------------------------------------------------------- others' files */

static void put_file(const char *root, const char *folder, const char *name, char path[PATH_BYTES])
{
	char at[PATH_BYTES];

	text_make(at, sizeof(at), "%s/%s", root, folder);
	for (char *slash = at + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL;
	     *slash++ = '/') {
		*slash = '\0';
		(void)mkdir(at, 0700);
	}
	(void)mkdir(at, 0700);
	text_make(path, PATH_BYTES, "%s/%s", at, name);
	file_write(path, "others", 6);
}

/* Nothing is touched that is not an object of ours, and lies where it belongs. */
static void test_files_of_others(void **state)
{
	static const char *const places[][2] = {
		{ "", "notes" },
		{ "ab", "notes" },
		{ "cd/ef", "notes" },
		{ "other-0123456789abcdef", "namespace.json" },
		{ "other-0123456789abcdef/ab", "README" },
		{ "other-0123456789abcdef/ab", "key.kv.01234567" }, /* of another folder */
		{ "other-0123456789abcdef/ab", "%h-0123456789abcdef0123456789abcdef" },
		{ "other-0123456789abcdef/abc", "notes" },
		{ ".kvcellar", "notes" },
	};
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=1MiB" } };
	const struct kvc_clean_params params = { .size = sizeof(params), .to_percent = 0 };
	struct kvc_clean_report report = { .size = sizeof(report) };
	char paths[sizeof(places) / sizeof(places[0])][PATH_BYTES];
	struct fix fix;

	(void)state;
	setup.roots = folder_new("foreign");
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		put_file(setup.roots, places[i][0], places[i][1], paths[i]);
	fix_open(&fix, &setup, 96);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 96), 96);
	assert_int_equal(kvc_store_clean(fix.store, &params, &report), 0);
	assert_true(report.objects > 0 && report.failed == 0);
	assert_int_equal(run_range(&fix, KVC_EXISTS, 0, 96), 0);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		assert_true(file_exists(paths[i]));
	fix_close(&fix);
}

static void set_times(const char *path, time_t seconds)
{
	const struct timespec times[2] = { { .tv_sec = seconds }, { .tv_sec = seconds } };

	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* A file's time in the future does not make it stay for ever; nor do all others go for it. */
static void test_times_in_the_future(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=4MiB" } };
	char path[PATH_BYTES];
	struct fix fix;
	size_t left = 0;

	(void)state;
	setup.roots = folder_new("future");
	fix_open(&fix, &setup, 320);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 32), 32);
	for (size_t i = 0; i < 32; i++) {
		assert_true(page_path(fix.pages.pool, fix.keys.keys[i], 0, path));
		set_times(path, 4102444800); /* 2100 */
	}
	fix_close(&fix);
	/* Nothing but the files tells. */
	text_make(path, sizeof(path), "%s/.kvcellar/stamps", setup.roots);
	assert_int_equal(unlink(path), 0);
	fix_open(&fix, &setup, 320);
	assert_int_equal(run_range(&fix, KVC_SET, 32, 320), 288);
	left = run_range(&fix, KVC_GET, 0, 32);
	assert_int_equal(left, 0);
	assert_true(run_range(&fix, KVC_GET, 288, 320) >= 31);
	fix_close(&fix);
}

/* What is left is about as old as what went last. */
static void test_the_age_of_the_oldest(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=4MiB" } };
	const uint64_t until = now_ms() + WAIT_MS;
	char path[PATH_BYTES];
	struct kvc_root *root;
	struct fix fix;

	(void)state;
	setup.roots = folder_new("oldest");
	fix_open(&fix, &setup, 96);
	root = fix.store->roots[0];
	assert_int_equal(run_range(&fix, KVC_SET, 0, 32), 32);
	assert_int_equal(atomic_load(&root->oldest_live_s), 0); /* not known */
	for (size_t i = 0; i < 32; i++) {
		assert_true(page_path(fix.pages.pool, fix.keys.keys[i], 0, path));
		set_times(path, time(NULL) - 7200);
	}
	assert_int_equal(run_range(&fix, KVC_SET, 32, 64), 32);
	while (atomic_load(&root->oldest_live_s) < 7200 && now_ms() < until)
		sleep_ms(20);
	assert_in_range(atomic_load(&root->oldest_live_s), 7200, 7300);
	fix_close(&fix);
}

/* Others remove what is there, while nobody runs: sets have room again, also beside a pin. */
static void run_emptied(const char *name, bool pinned)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=4MiB" } };
	const uint64_t until = now_ms() + WAIT_MS;
	char path[PATH_BYTES];
	struct fix fix, other;

	setup.roots = folder_new(name);
	fix_open(&fix, &setup, 256);
	if (pinned) {
		fix_open_model(&other, &setup, "pinned", 4, PAGE_BYTES);
		assert_int_equal(run_range(&other, KVC_SET, 0, 4), 4);
		assert_int_equal(kvc_pin_set(fix.store->roots[0], kvc_namespace_id(other.ns), true),
				 0);
		fix_close(&other);
	}
	assert_int_equal(run_range(&fix, KVC_SET, 0, 128), 128);
	text_make(path, sizeof(path), "%s/%s", setup.roots, kvc_namespace_id(fix.ns));
	fix_close(&fix);
	folder_remove(path);
	fix_open(&fix, &setup, 256);
	/* The first ones may have to go for the next, until it is known. */
	while ((run_range(&fix, KVC_SET, 128, 168) < 40 ||
		run_range(&fix, KVC_GET, 128, 168) < 40) &&
	       now_ms() < until)
		sleep_ms(50);
	assert_int_equal(run_range(&fix, KVC_GET, 128, 168), 40);
	fix_close(&fix);
}

static void test_others_empty_the_root(void **state)
{
	(void)state;
	run_emptied("emptied", false);
	run_emptied("emptied-pinned", true);
}

/* ---------------------------------------------------------------- order */

static size_t run_chain(struct fix *fix, int op, size_t from, size_t count)
{
	int64_t indices[BATCH] = { 0 };
	struct kvc_transfer transfer = transfer_of(&fix->pages, op, fix->keys.keys + from, count,
						   indices, fix->results + from);

	for (size_t i = 0; i < count; i++)
		indices[i] = (int64_t)i;

	transfer.depth = (uint32_t)from;
	if (from > 0)
		transfer.parent = fix->keys.keys[from - 1];
	pages_fill_keys(&fix->pages, fix->keys.keys + from, count);
	if (kvc_batch_run(fix->store, &transfer, 1) != 0)
		fail_msg("%s", kvc_last_error());
	return transfer.ok_count;
}

/* A chain goes from its end, and what is read keeps what it hangs on. */
static void test_chains_go_from_their_end(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=16MiB" } };
	struct fix fix;
	size_t prefix = 0;

	(void)state;
	setup.roots = folder_new("chain");
	fix_open(&fix, &setup, 416);
	/* 128 pages, call by call; others push; the last part is read all the time. */
	for (size_t at = 0; at < 128; at += BATCH)
		assert_int_equal(run_chain(&fix, KVC_SET, at, BATCH), BATCH);
	for (size_t at = 128; at < 416; at += BATCH) {
		assert_int_equal(run_keys(&fix, KVC_SET, at, BATCH), BATCH);
		assert_int_equal(run_chain(&fix, KVC_GET, 96, BATCH), BATCH);
	}
	assert_int_equal(run_range(&fix, KVC_EXISTS, 0, 128), 128);
	/* And once nobody reads it: what is left of it is a prefix. */
	for (size_t at = 128; at < 288; at += BATCH)
		(void)run_keys(&fix, KVC_SET, at, BATCH);
	for (size_t at = 0; at < 128; at += BATCH)
		(void)run_keys(&fix, KVC_EXISTS, at, BATCH);
	while (prefix < 128 && fix.results[prefix].status == KVC_OK)
		prefix++;
	assert_int_equal(count_status(fix.results, 128, KVC_OK), prefix);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- pins, tenants */

static void pin(struct kvc_store *store, const char *id)
{
	char path[PATH_BYTES];

	text_make(path, sizeof(path), "%s/.kvcellar/pins", store->roots[0]->location);
	(void)mkdir(path, 0700);
	text_make(path, sizeof(path), "%s/.kvcellar/pins/%s", store->roots[0]->location, id);
	file_write(path, "", 0);
}

static void test_pins(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=8MiB" } };
	struct fix fix, other;

	(void)state;
	setup.roots = folder_new("pinned");
	fix_open_model(&fix, &setup, "pinned", 32, PAGE_BYTES);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 32), 32);
	pin(fix.store, kvc_namespace_id(fix.ns));
	fix_close(&fix);
	fix_open_model(&other, &setup, "free", 320, PAGE_BYTES);
	assert_int_equal(run_range(&other, KVC_SET, 0, 320), 320);
	fix_close(&other);
	fix_open_model(&fix, &setup, "pinned", 32, PAGE_BYTES);
	assert_int_equal(run_range(&fix, KVC_GET, 0, 32), 32);
	fix_close(&fix);
}

/* A tenant stays within its share and takes nothing from others. */
static void test_shares(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=16MiB",
					     "tenant_shares=small=2MiB", "tenant=large" } };
	uint64_t bytes, objects;
	struct fix large, small;

	(void)state;
	setup.roots = folder_new("shares");
	fix_open_model(&large, &setup, "large", 96, PAGE_BYTES);
	assert_int_equal(run_range(&large, KVC_SET, 0, 96), 96);
	setup.settings[3] = "tenant=small";
	fix_open_model(&small, &setup, "small", 320, PAGE_BYTES);
	for (size_t at = 0; at < 320; at += BATCH) {
		assert_int_equal(run_keys(&small, KVC_SET, at, BATCH), BATCH);
		assert_int_equal(kvc_namespace_usage(small.ns, &bytes, &objects), 0);
		assert_true(bytes <= 2 * MIB + BATCH * STORED);
	}
	assert_int_equal(run_range(&large, KVC_GET, 0, 96), 96);
	fix_close(&small);
	fix_close(&large);
}

/* ---------------------------------------------------------------- counting */

static void test_a_root_of_unknown_state(void **state)
{
	struct setup setup = { .plugin = "posix", .settings = { "l3_cleaner_enabled=false" } };
	char path[PATH_BYTES];
	uint64_t bytes;
	struct fix fix;

	(void)state;
	setup.roots = folder_new("unknown");
	fix_open(&fix, &setup, 320);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 128), 128);
	bytes = own_bytes(fix.store);
	assert_int_equal(bytes, 128 * STORED);
	fix_close(&fix);
	text_make(path, sizeof(path), "%s/.kvcellar/usage", setup.roots);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(unlink(path), 0);
		setup.settings[0] = round ? "l3_cleaner_enabled=true" : "l3_cleaner_enabled=false";
		setup.settings[1] = "capacity=10MiB";
		fix_open(&fix, &setup, 320);
		/* At once, while it is counted: what goes beyond ends FULL, or makes room. */
		assert_true(run_range(&fix, KVC_SET, 128, 192) ==
			    (round ? 64 : 10 * MIB / STORED - 128));
		for (int i = 0; i < 500 && kvc_usage_is_new(fix.store->roots[0]->usage); i++)
			sleep_ms(10);
		assert_false(kvc_usage_is_new(fix.store->roots[0]->usage));
		bytes = own_bytes(fix.store);
		assert_true(bytes <= 10 * MIB && bytes >= 7 * MIB);
		/* What was stored while the count began may have been counted twice. */
		assert_int_equal(kvc_store_usage(fix.store, 1, NULL, 0), 1);
		assert_true(own_bytes(fix.store) <= bytes);
		assert_true(own_bytes(fix.store) + BATCH * STORED >= bytes);
		fix_close(&fix);
	}
}

struct counted {
	const char *root;
	unsigned number;
	int go; /* there is a byte: it is to begin */
};

/* Sets and removes, in a root that is at its capacity. */
static int churn(void *context)
{
	const struct counted *work = context;
	struct setup setup = { .plugin = "posix",
			       .roots = work->root,
			       .settings = { "l3_cleaner_enabled=true", "capacity=8MiB" } };
	const uint64_t until = now_ms() + (support_sanitized() ? 4000 : 2000);
	char model[32];
	struct fix fix;

	text_make(model, sizeof(model), "churn-%u", work->number);
	fix_open_model(&fix, &setup, model, 96, PAGE_BYTES);
	while (now_ms() < until) {
		(void)run_range(&fix, KVC_SET, 0, 96);
		(void)run_range(&fix, KVC_REMOVE, 0, 64);
	}
	fix_close(&fix);
	return 0;
}

static void wait_counted(struct kvc_store *store)
{
	struct kvc_usage_map *usage = store->roots[0]->usage;

	for (int i = 0; i < 1000 && (kvc_usage_is_new(usage) || kvc_usage_is_due(usage)); i++)
		sleep_ms(10);
	assert_false(kvc_usage_is_new(usage) || kvc_usage_is_due(usage));
}

/* The counts are lost while three processes store, remove and make room; it is counted in the
 * background and by hand all the time. */
static void test_counting_beside_writers(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=8MiB" } };
	struct counted work[3];
	uint64_t bytes;
	bool is_due;
	char path[PATH_BYTES];
	struct fix fix;
	pid_t pids[3];

	(void)state;
	setup.roots = folder_new("beside");
	fix_open(&fix, &setup, 128);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 128), 128);
	fix_close(&fix);
	text_make(path, sizeof(path), "%s/.kvcellar/usage", setup.roots);
	assert_int_equal(unlink(path), 0);
	for (unsigned i = 0; i < 3; i++) {
		work[i] = (struct counted){ .root = setup.roots, .number = i };
		pids[i] = child_start(churn, &work[i]);
	}
	fix_open(&fix, &setup, 128);
	for (int i = 0; i < 8; i++) {
		sleep_ms(100);
		assert_int_equal(kvc_store_usage(fix.store, 1, NULL, 0), 1);
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(child_wait(pids[i]), 0);
	/* Too much by what was under way at the moment that its folder was counted, at most; too
	 * little only where that is known. */
	bytes = own_bytes(fix.store);
	is_due = kvc_usage_is_due(fix.store->roots[0]->usage);
	assert_int_equal(kvc_store_usage(fix.store, 1, NULL, 0), 1);
	assert_true(is_due || bytes >= own_bytes(fix.store));
	assert_true(bytes <= own_bytes(fix.store) + 3 * BATCH * STORED);
	fix_close(&fix);
}

static int die_writing(void *context)
{
	const struct counted *work = context;
	struct setup setup = { .plugin = "posix",
			       .roots = work->root,
			       .settings = { "l3_cleaner_enabled=true", "capacity=8MiB" } };
	struct fix fix;
	char byte;

	assert_int_equal(read(work->go, &byte, 1), 1);
	fix_open_model(&fix, &setup, "dying", 16, PAGE_BYTES);
	(void)run_range(&fix, KVC_SET, 0, 16);
	/* As if the last ones had been stored, and not been counted. */
	assert_true(kvc_files_admit(fix.store->roots[0], 0, 16 * STORED, UINT64_MAX / 2));
	kvc_usage_add(fix.store->roots[0]->usage, kvc_folder_ns_hash(kvc_namespace_id(fix.ns)),
		      -(int64_t)(16 * STORED), -16);
	(void)raise(SIGKILL);
	return 1;
}

static uint64_t die(uint64_t stamp, uint64_t now)
{
	(void)stamp;
	(void)now;
	(void)raise(SIGKILL);
	return KVC_ORDER_GOES;
}

/* The same of one that is about to evict. */
static int die_evicting(void *context)
{
	const struct counted *work = context;
	struct setup setup = { .plugin = "posix",
			       .roots = work->root,
			       .settings = { "l3_cleaner_enabled=true", "capacity=8MiB" } };
	struct kvc_clean_params params = { .size = sizeof(params), .flags = KVC_CLEAN_TO_BYTES };
	struct kvc_clean_report report = { .size = sizeof(report) };
	struct kvc_order order = kvc_order_lru;
	struct fix fix;
	char byte;

	assert_int_equal(read(work->go, &byte, 1), 1);
	fix_open_model(&fix, &setup, "dying", 16, PAGE_BYTES);
	(void)run_range(&fix, KVC_SET, 0, 16);
	order.spared = die;
	fix.store->roots[0]->files->order = &order;
	kvc_usage_add(fix.store->roots[0]->usage, kvc_folder_ns_hash(kvc_namespace_id(fix.ns)),
		      STORED, 1);
	(void)kvc_store_clean(fix.store, &params, &report);
	return 1;
}

/* What a process had no time to count is found, by who opens next and by who is there. */
static void test_killed_writers_are_counted(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=8MiB" } };
	struct counted work = { .number = 0 };
	struct fix fix;
	int pipes[2];
	pid_t pid;

	(void)state;
	for (int i = 0; i < 4; i++) {
		const bool alive = i % 2;

		work.root = setup.roots = folder_new(alive ? "alive" : "killed");
		assert_int_equal(pipe(pipes), 0);
		work.go = pipes[0];
		pid = child_start(i < 2 ? die_writing : die_evicting, &work);
		if (alive)
			fix_open(&fix, &setup, 32);
		assert_int_equal(write(pipes[1], "x", 1), 1);
		assert_int_equal(child_wait(pid), 256 + SIGKILL);
		assert_int_equal(close(pipes[0]), 0);
		assert_int_equal(close(pipes[1]), 0);
		if (!alive)
			fix_open(&fix, &setup, 32);
		for (int wait = 0; wait < 1000 && own_bytes(fix.store) != 16 * STORED; wait++)
			sleep_ms(10);
		wait_counted(fix.store);
		assert_int_equal(own_bytes(fix.store), 16 * STORED);
		fix_close(&fix);
	}
}

/* ---------------------------------------------------------------- kvc_store_clean() */

static void test_clean(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=false", "capacity=16MiB" } };
	struct kvc_clean_params params = { .size = sizeof(params),
					   .flags = KVC_CLEAN_DRY_RUN,
					   .to_percent = 25 };
	struct kvc_clean_report dry = { .size = sizeof(dry) }, report = { .size = sizeof(report) };
	struct fix fix;

	(void)state;
	setup.roots = folder_new("clean");
	fix_open(&fix, &setup, 192);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 192), 192);
	assert_int_equal(kvc_store_clean(fix.store, &params, &dry), 0);
	assert_int_equal(run_range(&fix, KVC_EXISTS, 0, 192), 192);
	params.flags = 0;
	assert_int_equal(kvc_store_clean(fix.store, &params, &report), 0);
	assert_memory_equal(&dry, &report, sizeof(dry));
	assert_true(report.left_bytes <= 4 * MIB && report.left_bytes > 4 * MIB - STORED);
	assert_int_equal(report.left_bytes, own_bytes(fix.store));
	assert_int_equal(run_range(&fix, KVC_EXISTS, 0, 192), 192 - report.groups);
	params.flags = KVC_CLEAN_TO_BYTES;
	params.to_bytes = 0;
	assert_int_equal(kvc_store_clean(fix.store, &params, &report), 0);
	assert_int_equal(report.left_bytes, 0);
	assert_int_equal(run_range(&fix, KVC_EXISTS, 0, 192), 0);
	params.flags = 64;
	assert_int_equal(kvc_store_clean(fix.store, &params, &report), -EINVAL);
	params.flags = 0;
	params.to_percent = 101;
	assert_int_equal(kvc_store_clean(fix.store, &params, &report), -EINVAL);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- everything at once */

struct torture {
	struct fix *fix;
	const char *root;
	atomic_bool stop;
};

static void *remove_all(void *context)
{
	struct torture *torture = context;
	char path[PATH_BYTES];

	while (!atomic_load(&torture->stop)) {
		text_make(path, sizeof(path), "%s/%s", torture->root,
			  kvc_namespace_id(torture->fix->ns));
		folder_remove(path);
		sleep_ms(200);
	}
	return NULL;
}

/* R38: reads beside sets that make room, and beside somebody who removes the folders: hits and
 * misses only, and never other bytes. */
static void test_reads_beside_all_of_it(void **state)
{
	const uint64_t for_ms = support_soak() ? 60000 : 3000;
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=4MiB" } };
	struct torture torture = { .stop = false };
	uint64_t until, hits = 0;
	pthread_t thread;
	struct fix fix, other;

	(void)state;
	torture.root = setup.roots = folder_new("torture");
	fix_open(&fix, &setup, 512);
	fix_open(&other, &setup, 512);
	torture.fix = &fix;
	assert_int_equal(pthread_create(&thread, NULL, remove_all, &torture), 0);
	until = now_ms() + for_ms;
	for (size_t at = 0; now_ms() < until; at = (at + BATCH) % 512) {
		(void)run_keys(&fix, KVC_SET, at, BATCH);
		hits += run_keys(&other, KVC_GET, at, BATCH);
		hits += run_keys(&other, KVC_GET, (at + 480) % 512, BATCH);
	}
	atomic_store(&torture.stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(hits > 0);
	fix_close(&other);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- several processes */

struct work {
	const char *root;
	unsigned number;
	unsigned rounds;
	const char *layout;
	uint64_t for_ms;
	int ready; /* a byte when the store is open */
	int go;
};

/* Sets of its own keys; each has to end OK. */
static int write_all(void *context)
{
	const struct work *work = context;
	struct setup setup = { .plugin = "posix",
			       .roots = work->root,
			       .settings = { "l3_cleaner_enabled=true", "capacity=16MiB",
					     work->layout } };
	const uint64_t until = now_ms() + work->for_ms;
	char model[32];
	struct fix fix;
	int full = 0;

	text_make(model, sizeof(model), "writer-%u", work->number);
	fix_open_model(&fix, &setup, model, BATCH * work->rounds, PAGE_BYTES);
	for (unsigned r = 0; r < work->rounds || now_ms() < until; r++) {
		full += run_keys(&fix, KVC_SET, r % work->rounds * BATCH, BATCH) != BATCH;
		full += own_bytes(fix.store) > 16 * MIB;
	}
	fix_close(&fix);
	return full ? 1 : 0;
}

static bool has_ended(pid_t pid)
{
	siginfo_t info = { .si_pid = 0 };

	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
	return info.si_pid == pid;
}

/* At full speed, each in a process of its own: what lies there is at no time more than the capacity
 * and what is being written, and no set ends without room. R36. */
static void run_writers(const char *layout)
{
	const unsigned rounds = support_sanitized() ? 12 : 60;
	const char *root = folder_new("writers");
	struct work work[4];
	struct statvfs fs;
	pid_t pids[4];
	uint64_t most = 0;
	unsigned ended;

	mount_tmpfs(root, "size=64m");
	for (unsigned i = 0; i < 4; i++) {
		work[i] = (struct work){ .root = root,
					 .number = i,
					 .rounds = rounds,
					 .layout = layout,
					 .for_ms = support_soak() ? 60000 : 1000 };
		pids[i] = child_start(write_all, &work[i]);
	}
	do {
		assert_int_equal(statvfs(root, &fs), 0);
		if ((fs.f_blocks - fs.f_bfree) * fs.f_frsize > most)
			most = (fs.f_blocks - fs.f_bfree) * fs.f_frsize;
		sleep_ms(10);
		ended = 0;
		for (unsigned i = 0; i < 4; i++)
			ended += has_ended(pids[i]);
	} while (ended < 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(child_wait(pids[i]), 0);
	/* Of all files at one moment; 2 MiB is for those in .kvcellar. */
	(void)printf("%s: %.2f MiB at most\n", layout, (double)most / (double)MIB);
	assert_true(most <= 16 * MIB + BATCH * STORED + 2 * MIB);
	mount_end(root);
}

static void test_writers_hold_to_the_capacity(void **state)
{
	(void)state;
	run_writers("storage_layout=files");
	run_writers("storage_layout=packed");
}

static int be_cleaner(void *context)
{
	const struct work *work = context;
	struct setup setup = { .plugin = "posix",
			       .roots = work->root,
			       .settings = { "l3_cleaner_enabled=true" } };
	struct kvc_namespace_params params = namespace_params("cleaner");
	struct kvc_store *store = setup_must_open(&setup);

	(void)namespace_must_open(store, &params);
	while (!kvc_files_is_cleaner(store->roots[0]))
		sleep_ms(5);
	while (evicted(store) < work->rounds)
		sleep_ms(1);
	(void)write(work->ready, "x", 1);
	if (work->rounds)
		(void)raise(SIGKILL);
	sleep_ms(100000); /* until it is killed */
	return 1;
}

/* R39: one is the cleaner; it is killed in the middle, and another one goes on, not too far. */
static void test_the_cleaner_is_killed(void **state)
{
	const char *root = folder_new("killed");
	struct setup setup = { .plugin = "posix",
			       .roots = root,
			       .settings = { "l3_cleaner_enabled=false" } };
	struct work work[2] = { { .root = root, .rounds = 0 }, { .root = root, .rounds = 5 } };
	pid_t first, second;
	int pipes[2], status;
	struct fix fix;
	char byte;

	(void)state;
	mount_tmpfs(root, "size=64m");
	assert_int_equal(pipe(pipes), 0);
	work[0].ready = work[1].ready = pipes[1];
	first = child_start(be_cleaner, &work[0]);
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	/* It holds the lock: this one waits for it, and is killed in the middle of cleaning. */
	second = child_start(be_cleaner, &work[1]);
	assert_int_equal(close(pipes[1]), 0); /* so that a read ends when they do */
	sleep_ms(1500);
	assert_int_equal(kill(first, SIGKILL), 0);
	assert_int_equal(child_wait(first), 256 + SIGKILL);
	fix_open(&fix, &setup, 864);
	assert_int_equal(run_range(&fix, KVC_SET, 0, 800), 800); /* 83% */
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	status = child_wait(second);
	assert_int_equal(status, 256 + SIGKILL);
	fix_close(&fix);
	setup.settings[0] = "l3_cleaner_enabled=true";
	fix_open(&fix, &setup, 864);
	/* It may have been done before it was killed: again above the high mark. */
	if (percent_used(fix.store) < 80)
		(void)run_range(&fix, KVC_SET, 0, 800);
	assert_true(wait_below(fix.store, 70));
	sleep_ms(1500);
	assert_true(percent_used(fix.store) > 68.5);
	assert_true(kvc_files_is_cleaner(fix.store->roots[0]));
	fix_close(&fix);
	assert_int_equal(close(pipes[0]), 0);
	mount_end(root);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ten_times_the_capacity),
		cmocka_unit_test(test_a_capacity_below_a_batch),
		cmocka_unit_test(test_the_cleaner_is_off),
		cmocka_unit_test(test_watermarks),
		cmocka_unit_test(test_others_fill_the_disk),
		cmocka_unit_test(test_min_free),
		cmocka_unit_test(test_a_full_device),
		cmocka_unit_test(test_groups_go_whole),
		cmocka_unit_test(test_files_of_others),
		cmocka_unit_test(test_times_in_the_future),
		cmocka_unit_test(test_the_age_of_the_oldest),
		cmocka_unit_test(test_others_empty_the_root),
		cmocka_unit_test(test_chains_go_from_their_end),
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_a_root_of_unknown_state),
		cmocka_unit_test(test_counting_beside_writers),
		cmocka_unit_test(test_killed_writers_are_counted),
		cmocka_unit_test(test_clean),
		cmocka_unit_test(test_reads_beside_all_of_it),
		cmocka_unit_test(test_writers_hold_to_the_capacity),
		cmocka_unit_test(test_the_cleaner_is_killed),
	};

	support_begin();
	mounts_enter();
	return cmocka_run_group_tests_name("cleaner", tests, NULL, NULL);
}
