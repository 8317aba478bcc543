/* SPDX-License-Identifier: Apache-2.0 */
/* Which hash folders namespaces have, as the cleaner knows it, and many namespaces. */
#include "support/support.h"

#include "core/cleaner_internal.h"
#include "core/folder.h"
#include "core/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB	   (UINT64_C(1) << 20)
#define PAGE_BYTES 65536u
#define BATCH	   32u
#define FOREIGN	   1500u /* namespaces of others, with a folder that is empty */

static void make_folder(const char *root, const char *path)
{
	char at[PATH_BYTES];

	text_make(at, sizeof(at), "%s/%s", root, path);
	assert_int_equal(mkdir(at, 0700), 0);
}

static void remove_folder(const char *root, const char *path)
{
	char at[PATH_BYTES];

	text_make(at, sizeof(at), "%s/%s", root, path);
	assert_int_equal(rmdir(at), 0);
}

/* As if nothing had changed in it for an hour. */
static void age_folder(const char *root, const char *path)
{
	const struct timespec times[2] = { { .tv_sec = (time_t)(now_ms() / 1000), .tv_nsec = 5 },
					   { .tv_sec = 1000000000, .tv_nsec = 5 } };
	char at[PATH_BYTES];

	text_make(at, sizeof(at), "%s/%s", root, path);
	assert_int_equal(utimensat(AT_FDCWD, at, times, 0), 0);
}

static bool has(const struct kvc_index *index, const char *name, unsigned hash)
{
	for (size_t i = 0; i < index->names.count; i++)
		if (strcmp(index->names.names[i], name) == 0)
			return kvc_index_has(index, i, hash);
	return false;
}

static void test_the_index(void **state)
{
	static const char a[] = "a-0000000000000001", b[] = "b-0000000000000002";
	const char *root = folder_new("index");
	struct setup setup = { .plugin = "posix",
			       .roots = root,
			       .settings = { "l3_cleaner_enabled=false" } };
	struct kvc_store *store = setup_must_open(&setup);
	struct kvc_files *files = store->roots[0]->files;
	const struct kvc_index *index = &files->index;

	(void)state;
	make_folder(root, b);
	make_folder(root, "b-0000000000000002/00");
	make_folder(root, "b-0000000000000002/ff");
	make_folder(root, "b-0000000000000002/0g");
	make_folder(root, "b-0000000000000002/7f7");
	assert_int_equal(kvc_index_refresh(files, 0), 0);
	assert_int_equal(index->names.count, 1);
	for (unsigned hash = 0; hash < 256; hash++)
		assert_int_equal(has(index, b, hash), hash == 0 || hash == 255);
	/* One that comes right after it was read, and a namespace before it. */
	make_folder(root, "b-0000000000000002/40");
	make_folder(root, a);
	make_folder(root, "a-0000000000000001/3f");
	assert_int_equal(kvc_index_refresh(files, UINT64_MAX), 0);
	assert_false(has(index, b, 0x40));
	assert_int_equal(kvc_index_refresh(files, 0), 0);
	assert_true(has(index, b, 0x40) && has(index, a, 0x3f));
	/* While its time stays a folder is not read again; then it is. */
	age_folder(root, b);
	assert_int_equal(kvc_index_refresh(files, 0), 0);
	remove_folder(root, "b-0000000000000002/40");
	age_folder(root, b);
	assert_int_equal(kvc_index_refresh(files, 0), 0);
	assert_true(has(index, b, 0x40));
	make_folder(root, "b-0000000000000002/41");
	assert_int_equal(kvc_index_refresh(files, 0), 0);
	assert_false(has(index, b, 0x40));
	assert_true(has(index, b, 0x41) && has(index, b, 0) && has(index, a, 0x3f));
	remove_folder(root, "a-0000000000000001/3f");
	remove_folder(root, a);
	assert_int_equal(kvc_index_refresh(files, 0), 0);
	assert_int_equal(index->names.count, 1);
	store_must_close(store);
}

/* A look that cannot be had leaves what is known, and does not say that nothing is there. */
static void test_no_descriptors(void **state)
{
	static const char b[] = "b-0000000000000002";
	struct setup setup = { .plugin = "posix", .settings = { "l3_cleaner_enabled=false" } };
	struct rlimit limit, low;
	struct kvc_store *store;
	struct kvc_files *files;

	(void)state;
	setup.roots = folder_new("descriptors");
	store = setup_must_open(&setup);
	files = store->roots[0]->files;
	make_folder(setup.roots, b);
	make_folder(setup.roots, "b-0000000000000002/7f");
	assert_int_equal(kvc_index_refresh(files, 0), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	/* One for the root, none for the namespace; then none at all. */
	for (int left = 1; left >= 0; left--) {
		const int next = dup(0);

		assert_true(next >= 0);
		(void)close(next);
		low.rlim_cur = (rlim_t)(next + left);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		assert_int_equal(kvc_index_refresh(files, 0), -EMFILE);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
		assert_true(has(&files->index, b, 0x7f));
	}
	store_must_close(store);
}

static size_t set_all(struct kvc_store *store, struct pages *pages, const struct keys *keys, int op)
{
	struct kvc_result results[BATCH];
	size_t ok = 0;

	for (size_t at = 0; at < keys->count; at += BATCH) {
		if (op == KVC_SET)
			pages_fill_keys(pages, keys->keys + at, BATCH);
		batch(store, pages, op, keys->keys + at, BATCH, 0, results);
		ok += count_status(results, BATCH, KVC_OK);
	}
	return ok;
}

/* What is stored in namespaces that come while the index is young goes in its turn; and all of it
 * goes when it is told to. */
static void test_many_namespaces(void **state)
{
	struct setup setup = { .plugin = "posix",
			       .settings = { "l3_cleaner_enabled=true", "capacity=8MiB" } };
	struct kvc_clean_params params = { .size = sizeof(params), .flags = KVC_CLEAN_TO_BYTES };
	struct kvc_clean_report report = { .size = sizeof(report) };
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct kvc_store *store;
	char path[64], model[32];

	(void)state;
	setup.roots = folder_new("many");
	for (unsigned i = 0; i < FOREIGN; i++) {
		text_make(path, sizeof(path), "x-%016x", i * 7919 + 1);
		make_folder(setup.roots, path);
		text_make(path, sizeof(path), "x-%016x/%02x", i * 7919 + 1, i % 256);
		make_folder(setup.roots, path);
	}
	store = setup_must_open(&setup);
	for (unsigned n = 0; n < 4; n++) {
		struct kvc_namespace_params of;
		struct kvc_namespace *ns;
		struct pages pages;
		struct keys keys;

		text_make(model, sizeof(model), "model-%u", n);
		of = namespace_params(model);
		ns = namespace_must_open(store, &of);
		pages_open_simple(&pages, ns, BATCH, PAGE_BYTES);
		keys_make(&keys, model, 192);
		assert_int_equal(set_all(store, &pages, &keys, KVC_SET), 192);
		assert_true(set_all(store, &pages, &keys, KVC_EXISTS) >= 48);
		assert_int_equal(kvc_store_usage(store, n % 2, &usage, 1), 1);
		assert_true(usage.own_bytes <= 8 * MIB);
		keys_free(&keys);
		pages_close(&pages);
		assert_int_equal(kvc_namespace_close(ns), 0);
	}
	assert_int_equal(kvc_store_clean(store, &params, &report), 0);
	assert_int_equal(report.left_bytes, 0);
	assert_int_equal(kvc_store_usage(store, 1, &usage, 1), 1);
	assert_int_equal(usage.own_bytes, 0);
	store_must_close(store);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_index),
		cmocka_unit_test(test_no_descriptors),
		cmocka_unit_test(test_many_namespaces),
	};

	support_begin();
	return cmocka_run_group_tests_name("cleaner_index", tests, NULL, NULL);
}
