/* SPDX-License-Identifier: Apache-2.0 */
/* A full file system, and the capacity: R04, R36. */
#include "space.h"

#include "support/packed.h"

#include "core/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES (UINT64_C(512) * 1024)

static bool file_is_whole(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && (uint64_t)st.st_size == PAGE_BYTES + 4096;
}

static void run_full(const char *engine, const char *naming)
{
	struct setup setup = { .plugin = "posix", .engine = engine, .naming = naming };
	struct kvc_namespace_params params = namespace_params("full");
	const char *root = folder_new("full");
	struct kvc_result results[4];
	struct kvc_namespace *ns;
	struct kvc_store *store;
	struct pages pages;
	struct keys keys;
	char path[PATH_BYTES];
	size_t stored = 0;
	size_t victim = 4;

	mount_tmpfs(root, "size=1m");
	setup.roots = root;
	store = setup_must_open(&setup);
	ns = namespace_must_open(store, &params);
	pages_open_simple(&pages, ns, 4, PAGE_BYTES);
	keys_make(&keys, "full", 4);
	pages_fill_keys(&pages, keys.keys, 4);
	/* One has room. Of several at once it may be that each takes what the others lack. */
	batch(store, &pages, KVC_SET, keys.keys, 1, 0, results);
	expect_result(results[0], KVC_OK, KVC_CAUSE_NONE);
	batch_at(store, &pages, KVC_SET, keys.keys + 1, (int64_t[]){ 1, 2, 3 }, 3, 0, 0,
		 results + 1);
	for (size_t i = 0; i < 4; i++) {
		assert_true(page_path(pages.pool, keys.keys[i], 0, path));
		if (results[i].status == KVC_OK) {
			assert_true(file_is_whole(path));
			stored++;
			victim = i;
			continue;
		}
		expect_result(results[i], KVC_FULL, KVC_CAUSE_NO_SPACE);
		assert_int_equal(results[i].error, ENOSPC);
		assert_false(file_exists(path));
	}
	assert_true(stored >= 1 && stored < 4);
	assert_int_equal(folder_count(root, ".kvctmp."), 0);
	pages_wipe(&pages);
	batch(store, &pages, KVC_GET, keys.keys, 4, 0, results);
	assert_int_equal(count_status(results, 4, KVC_OK), stored);
	for (size_t i = 0; i < 4; i++)
		if (results[i].status == KVC_OK)
			assert_true(pages_match(&pages, i, key_content(keys.keys[i])));
	/* Space again: no restart is needed. */
	expect_result(do_remove(store, &pages, keys.keys[victim]), KVC_OK, -1);
	for (size_t i = 0; i < 4; i++)
		if (results[i].status != KVC_OK) {
			expect_result(do_set(store, &pages, keys.keys[i], 0), KVC_OK, -1);
			expect_result(do_get(store, &pages, keys.keys[i]), KVC_OK, -1);
			break;
		}
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
	keys_free(&keys);
}

static void test_a_full_file_system(void **state)
{
	(void)state;
	for (size_t i = 0; i < engines_count(); i++)
		run_full(engines[i], i == 2 ? "nixl" : "kvcellar");
}

/* Not even the folders fit. */
static void test_no_space_for_a_root(void **state)
{
	struct setup setup = { .plugin = "posix" };
	const char *root = folder_new("tiny");
	struct kvc_store *store = NULL;

	(void)state;
	mount_tmpfs(root, "size=4k,nr_inodes=2");
	setup.roots = root;
	if (setup_open(&setup, &store) == 0) {
		fail_msg("a root without room for a file was opened");
		return;
	}
	assert_non_null(strstr(kvc_last_error(), root));
}

static void test_the_capacity_that_was_configured(void **state)
{
	struct setup setup = { .plugin = "posix", .settings = { "capacity=100000" } };
	struct kvc_namespace_params params = namespace_params("capacity");
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct kvc_result results[20];
	struct kvc_namespace *ns;
	struct kvc_store *store;
	struct pages pages;
	struct keys keys;

	(void)state;
	setup.roots = folder_new("capacity");
	store = setup_must_open(&setup);
	ns = namespace_must_open(store, &params);
	pages_open_simple(&pages, ns, 20, 8192);
	keys_make(&keys, "capacity", 20);
	pages_fill_keys(&pages, keys.keys, 20);
	for (size_t i = 0; i < 20; i++)
		batch_at(store, &pages, KVC_SET, keys.keys + i, &(int64_t){ (int64_t)i }, 1, 0, 0,
			 results + i);
	assert_int_equal(kvc_store_usage(store, 0, &usage, 1), 1);
	assert_true(usage.own_bytes <= 100000);
	assert_true(count_status(results, 20, KVC_FULL) >= 10);
	for (size_t i = 0; i < 20; i++)
		if (results[i].status != KVC_OK)
			expect_result(results[i], KVC_FULL, KVC_CAUSE_CAPACITY);
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
	keys_free(&keys);
}

/* ---------------------------------------------------------------- packed */

static void fix_open(struct fix *fix, const struct setup *setup, size_t keys, size_t pages,
		     uint64_t bytes)
{
	fix_open_pages(fix, setup, "space", keys, pages, bytes);
}

static void ballast(const char *root, size_t bytes)
{
	char path[PATH_BYTES];
	unsigned char *data = calloc(1, bytes);

	assert_non_null(data);
	text_make(path, sizeof(path), "%s/ballast", root);
	file_write(path, data, bytes);
	free(data);
}

/* The disk has no room for a segment: FULL. Once it has, sets work; and when others fill it,
 * sets go on in the slots that are there. */
static void run_full_disk(const char *engine)
{
	struct setup setup = {
		.plugin = "posix",
		.engine = engine,
		.layout = "packed",
		.settings = { "capacity=64MiB", "min_free=0" }, /* segments of 4 MiB */
	};
	const char *root = folder_new("full");
	char path[PATH_BYTES];
	struct fix fix;

	mount_tmpfs(root, "size=12m");
	setup.roots = root;
	ballast(root, 9 << 20);
	fix_open(&fix, &setup, 64, 8, PAGE_BYTES);
	assert_int_equal(run_keys(&fix, KVC_SET, 0, 4), 0);
	for (size_t i = 0; i < 4; i++)
		expect_result(fix.results[i], KVC_FULL, KVC_CAUSE_NO_SPACE);
	assert_int_equal(run_keys(&fix, KVC_GET, 0, 4), 0);
	assert_int_equal(folder_count(root, "seg."), 0); /* nothing half made stays */
	text_make(path, sizeof(path), "%s/ballast", root);
	assert_int_equal(unlink(path), 0);
	sleep_ms(200); /* what failed just now is not tried at once again */
	assert_int_equal(run_keys(&fix, KVC_SET, 0, 4), 4);
	assert_int_equal(run_keys(&fix, KVC_GET, 0, 4), 4);
	ballast(root, 3 << 20);
	for (size_t at = 4; at < 64; at += 4)
		assert_int_equal(run_keys(&fix, KVC_SET, at, 4), 4);
	assert_int_equal(run_keys(&fix, KVC_GET, 60, 4), 4);
	assert_true(run_keys(&fix, KVC_REMOVE, 60, 4) == 4);
	assert_int_equal(run_keys(&fix, KVC_SET, 56, 8), 8);
	(void)packed_check(fix.store);
	fix_close(&fix);
}

static void test_a_full_disk_below_slots(void **state)
{
	(void)state;
	for (size_t i = 0; i < engines_count(); i++)
		run_full_disk(engines[i]);
}

/* There is room on the disk, and min_free keeps it: a limit of the configuration, as `capacity` is,
 * before a segment is there and afterwards. */
static void test_min_free_is_no_full_disk(void **state)
{
	struct setup setup = {
		.plugin = "posix",
		.layout = "packed",
		.settings = { "capacity=64MiB", "min_free=20MiB" }, /* segments of 4 MiB */
	};
	const char *root = folder_new("floor");
	char path[PATH_BYTES];
	struct fix fix;

	(void)state;
	mount_tmpfs(root, "size=32m");
	setup.roots = root;
	ballast(root, 10 << 20);
	fix_open(&fix, &setup, 64, 8, PAGE_BYTES);
	assert_int_equal(run_keys(&fix, KVC_SET, 0, 4), 0);
	for (size_t i = 0; i < 4; i++)
		expect_result(fix.results[i], KVC_FULL, KVC_CAUSE_CAPACITY);
	text_make(path, sizeof(path), "%s/ballast", root);
	assert_int_equal(unlink(path), 0);
	sleep_ms(200);
	assert_int_equal(run_keys(&fix, KVC_SET, 0, 4), 4);
	(void)packed_check(fix.store);
	fix_close(&fix);
}

/* What a new root becomes when nothing is said: slots where there is room for some of them, and
 * where eviction was agreed to. */
static void run_auto(const char *options, const char *cleaner, bool packed)
{
	struct setup setup = { .plugin = "posix", .layout = "", .settings = { cleaner } };
	struct fix fix;

	setup.roots = folder_new("auto");
	if (options != NULL)
		mount_tmpfs(setup.roots, options);
	fix_open(&fix, &setup, 8, 8, 4096);
	assert_int_equal(fix.store->roots[0]->is_packed, packed);
	assert_int_equal(run_keys(&fix, KVC_SET, 0, 8), 8);
	assert_int_equal(run_keys(&fix, KVC_GET, 0, 8), 8);
	assert_int_equal(folder_count(setup.roots, "seg.") > 0, packed);
	fix_close(&fix);
}

/* Beside others that have more of the disk than the watermark allows. */
static void run_auto_full(const char *capacity, bool packed)
{
	struct setup setup = {
		.plugin = "posix",
		.layout = "",
		.settings = { "l3_cleaner_enabled=true", "l3_cleaner_high_watermark=30",
			      "l3_cleaner_low_watermark=20", capacity },
	};
	struct kvc_store *store;

	setup.roots = folder_new("auto");
	mount_tmpfs(setup.roots, "size=300m");
	ballast(setup.roots, 100 << 20);
	store = setup_must_open(&setup);
	assert_int_equal(store->roots[0]->is_packed, packed);
	store_must_close(store);
}

static void test_what_a_new_root_becomes(void **state)
{
	(void)state;
	run_auto("size=200m", "l3_cleaner_enabled=true", true);
	run_auto("size=32m", "l3_cleaner_enabled=true", false);
	run_auto("size=200m", "l3_cleaner_enabled=false", false);
	/* The watermark leaves nothing, but a capacity was given. */
	run_auto_full(NULL, false);
	run_auto_full("capacity=80MiB", true);
}

/* Once the keeper has come to rest. */
static uint64_t live_settled(struct kvc_store *store)
{
	uint64_t before, live = packed_health(store).live_slots;

	do {
		before = live;
		sleep_ms(1200);
		live = packed_health(store).live_slots;
	} while (live != before);
	return live;
}

/* Whoever opens the root without a capacity on a disk that others have filled takes nothing away; a
 * lower capacity that somebody gives does. */
static void test_a_capacity_that_nobody_gave(void **state)
{
	struct setup setup = {
		.plugin = "posix",
		.layout = "packed",
		.settings = { "capacity=100MiB" },
	};
	struct setup other = { .plugin = "posix", .layout = "" };
	struct kvc_store *store;
	uint64_t live;
	struct fix fix;

	(void)state;
	other.roots = setup.roots = folder_new("nobody");
	mount_tmpfs(setup.roots, "size=200m");
	fix_open(&fix, &setup, 128, 32, PAGE_BYTES);
	for (size_t at = 0; at < 128; at += 32)
		assert_int_equal(run_keys(&fix, KVC_SET, at, 32), 32);
	live = live_settled(fix.store);
	assert_true(live > 100);
	ballast(setup.roots, 90 << 20);
	store = setup_must_open(&other);
	sleep_ms(2500); /* the keeper has looked twice */
	assert_int_equal(packed_health(store).live_slots, live);
	store_must_close(store);
	other.settings[0] = "capacity=50MiB";
	store = setup_must_open(&other);
	for (int i = 0; i < 300 && packed_health(store).segment_bytes > 50 * (1 << 20); i++)
		sleep_ms(100);
	assert_true(packed_health(store).segment_bytes <= 50 * (1 << 20));
	store_must_close(store);
	(void)packed_check(fix.store);
	fix_close(&fix);
}

#define MIB (UINT64_C(1) << 20)

/* R36: a tenth of what is written fits. At no time is there more than that on the disk; what is
 * read all the time and what is newest stay, the oldest that nobody reads goes. */
static void test_ten_times_the_capacity(void **state)
{
	const size_t count = support_sanitized() ? 4000 : 16000;
	struct setup setup = { .plugin = "posix", .layout = "packed" };
	char capacity[64];
	const uint64_t limit = count * 65536 / 10;
	size_t old = 0;
	struct fix fix;

	(void)state;
	text_make(capacity, sizeof(capacity), "capacity=%llu", (unsigned long long)limit);
	setup.settings[0] = capacity;
	setup.roots = folder_new("tenfold");
	fix_open(&fix, &setup, count, 32, 65536);
	for (size_t at = 0; at < count; at += 32) {
		assert_int_equal(run_keys(&fix, KVC_SET, at, 32), 32);
		assert_int_equal(run_keys(&fix, KVC_GET, 0, 32), 32);
		assert_true(packed_health(fix.store).segment_bytes <= limit);
		/* The index of the root, its tables and the list of what was evicted (2 MiB on a
		 * large device) are no data. */
		if (at % 320 == 0)
			assert_true(folder_allocated(setup.roots) <= limit + 4 * MIB);
	}
	/* Sampling has no strict order: of the newest hundredth all but a few. */
	for (size_t at = count - 96; at < count; at += 32)
		assert_true(run_keys(&fix, KVC_GET, at, 32) >= 31);
	for (size_t at = 32; at < 32 + count / 10; at += 32)
		old += run_keys(&fix, KVC_GET, at, 32);
	assert_true(old < count / 100);
	(void)packed_check(fix.store);
	assert_true(packed_health(fix.store).live_bytes >= limit / 4 * 3);
	fix_close(&fix);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_full_file_system),
		cmocka_unit_test(test_no_space_for_a_root),
		cmocka_unit_test(test_the_capacity_that_was_configured),
		cmocka_unit_test(test_a_full_disk_below_slots),
		cmocka_unit_test(test_min_free_is_no_full_disk),
		cmocka_unit_test(test_what_a_new_root_becomes),
		cmocka_unit_test(test_a_capacity_that_nobody_gave),
		cmocka_unit_test(test_ten_times_the_capacity),
	};

	support_begin();
	mounts_enter();
	return cmocka_run_group_tests_name("space", tests, NULL, NULL);
}
