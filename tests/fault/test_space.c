/* SPDX-License-Identifier: Apache-2.0 */
/* A full file system: R04. */
#include "support/support.h"

#include <errno.h>
#include <stdio.h>
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

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_full_file_system),
		cmocka_unit_test(test_no_space_for_a_root),
		cmocka_unit_test(test_the_capacity_that_was_configured),
	};

	support_begin();
	mounts_enter();
	return cmocka_run_group_tests_name("space", tests, NULL, NULL);
}
