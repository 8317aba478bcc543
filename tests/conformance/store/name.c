/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of any bytes, where pages lie, and clearing one namespace. */
#include "suite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* R17 */
static const struct {
	const char *data;
	size_t bytes;
	bool nixl; /* can be a file name as it is */
} odd_keys[] = {
	{ "../../etc/x", 11, false },
	{ "a/b", 3, false },
	{ "a%2Fb", 5, true },
	{ "a\nb", 3, true },
	{ "", 0, true },
	{ "a\0b", 3, false },
	{ "\0", 1, false },
	{ "\xff", 1, true },
	{ "\xf0\x9f\x90\xbb", 4, true },
	{ ".", 1, true },
	{ "..", 2, true },
	{ "a.kv.12345678", 13, true },
	{ "%e", 2, true },
	{ "a b", 3, true },
	{ "A", 1, true },
	{ "a", 1, true },
	{ "key_llama-3-8b_k", 16, true },
};
#define ODD_KEYS (sizeof(odd_keys) / sizeof(odd_keys[0]))

static int name_is_tame(void *context, const struct kvc_object_info *info)
{
	(void)context;
	assert_null(strchr(info->name, '/'));
	assert_int_not_equal(info->name[0], '.');
	assert_true(strlen(info->name) <= 255);
	assert_null(strstr(info->path, "../"));
	assert_int_not_equal(info->path[0], '/');
	return 0;
}

static void odd_keys_check(struct fixture *f, const struct kvc_key *keys)
{
	batch(f->store, &f->pages, KVC_GET, keys, ODD_KEYS, 0, f->results);
	for (size_t i = 0; i < ODD_KEYS; i++) {
		if (suite.nixl && !odd_keys[i].nixl) {
			expect_result(f->results[i], KVC_ERROR, KVC_CAUSE_NAME);
			assert_int_equal(f->results[i].error, EINVAL);
			continue;
		}
		expect_result(f->results[i], KVC_OK, KVC_CAUSE_NONE);
		assert_true(pages_match(&f->pages, i, 900 + i));
		if (!suite.nixl)
			assert_int_equal(kvc_pool_where(f->pages.pool, keys[i], name_is_tame, NULL),
					 0);
	}
}

static void test_keys_of_any_bytes(void **state)
{
	struct pages_params params = { .count = ODD_KEYS, .part_bytes = { 4096 } };
	struct kvc_key keys[ODD_KEYS];
	const char *outer = folder_new("outer");
	char inner[PATH_BYTES];
	struct fixture f;

	(void)state;
	/* Two levels below a folder of our own, so that what leaves the root would be seen. */
	(void)snprintf(inner, sizeof(inner), "%s/a", outer);
	assert_int_equal(mkdir(inner, 0700), 0);
	(void)snprintf(inner, sizeof(inner), "%s/a/root", outer);
	assert_int_equal(mkdir(inner, 0700), 0);
	suite.setup.roots = inner;
	fixture_open_on(&f, suite_reopen(), &params);
	for (size_t i = 0; i < ODD_KEYS; i++) {
		keys[i] = (struct kvc_key){ .data = odd_keys[i].data, .bytes = odd_keys[i].bytes };
		pages_fill(&f.pages, i, 900 + i);
	}
	batch(f.store, &f.pages, KVC_SET, keys, ODD_KEYS, 0, f.results);
	pages_wipe(&f.pages);
	odd_keys_check(&f, keys);
	assert_int_equal(folder_count(outer, ""), folder_count(inner, ""));
	fixture_close(&f);
}

static void test_long_keys(void **state)
{
	struct pages_params params = { .count = 3, .part_bytes = { 100 } };
	char text[3][5000];
	struct kvc_key keys[3];
	struct fixture f;

	(void)state;
	fixture_open_on(&f, suite_open(), &params);
	for (size_t i = 0; i < 3; i++) {
		memset(text[i], 'k', sizeof(text[i]));
		keys[i] = (struct kvc_key){ .data = text[i], .bytes = 5000 };
	}
	text[1][4999] = 'x';
	keys[2].bytes = 4999;
	pages_fill_keys(&f.pages, keys, 3);
	batch(f.store, &f.pages, KVC_SET, keys, 3, 0, f.results);
	if (suite.nixl) {
		for (size_t i = 0; i < 3; i++)
			expect_result(f.results[i], KVC_ERROR, KVC_CAUSE_NAME);
	} else {
		expect_all(f.results, 3, KVC_OK);
		pages_wipe(&f.pages);
		batch(f.store, &f.pages, KVC_GET, keys, 3, 0, f.results);
		expect_all(f.results, 3, KVC_OK);
		for (size_t i = 0; i < 3; i++)
			assert_true(pages_match(&f.pages, i, key_content(keys[i])));
	}
	fixture_close(&f);
}

struct seen {
	size_t count;
	uint64_t bytes;
	char path[4][PATH_BYTES];
};

static int where_take(void *context, const struct kvc_object_info *info)
{
	struct seen *seen = context;

	assert_true(info->size >= sizeof(*info));
	assert_true(seen->count < 4);
	(void)snprintf(seen->path[seen->count++], PATH_BYTES, "%s/%s", info->root_path, info->path);
	seen->bytes += info->stored_bytes;
	return 0;
}

/* "<segment>@<slot>" -> the file. */
static void expect_segment(const char *path)
{
	char file[PATH_BYTES];
	struct stat st;

	(void)snprintf(file, sizeof(file), "%s", path);
	assert_non_null(strchr(file, '@'));
	*strchr(file, '@') = '\0';
	assert_int_equal(stat(file, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_true(st.st_size >= 8192 && st.st_size % 8192 == 0);
}

static void expect_file(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, suite.nixl ? 8192 : 12288);
}

static void test_where_pages_lie(void **state)
{
	struct seen before = { .count = 0 };
	struct seen after = { .count = 0 };
	struct fixture f;

	(void)state;
	fixture_open(&f, 1, 4096);
	assert_int_equal(kvc_pool_where(f.pages.pool, f.keys.keys[0], where_take, &before), 0);
	assert_int_equal(before.count, suite.nixl ? 2 : 1);
	assert_int_equal(before.bytes, suite.nixl ? 16384 : suite.packed ? 8192 : 12288);
	fixture_store(&f);
	assert_int_equal(kvc_pool_where(f.pages.pool, f.keys.keys[0], where_take, &after), 0);
	assert_int_equal(after.count, before.count);
	assert_int_equal(after.bytes, before.bytes);
	for (size_t i = 0; i < after.count; i++) {
		/* Which slot it gets is not known before. */
		if (!suite.packed)
			assert_string_equal(before.path[i], after.path[i]);
		if (suite.files)
			expect_file(after.path[i]);
		else if (suite.folder)
			expect_segment(after.path[i]);
	}
	fixture_close(&f);
}

/* HiCacheNixl finds its files: <key>_<model>_<rank>_<size>_k in a folder by the name's hash. */
static void test_names_of_nixl(void **state)
{
	char name[PATH_BYTES];
	struct seen seen = { .count = 0 };
	unsigned char *data;
	struct fixture f;

	(void)state;
	if (!suite.nixl)
		return;
	fixture_open(&f, 1, 5000);
	fixture_store(&f);
	assert_int_equal(kvc_pool_where(f.pages.pool, f.keys.keys[0], where_take, &seen), 0);
	(void)snprintf(name, sizeof(name), "/%s_llama-3-8b_0_1_k", f.keys.text[0]);
	assert_non_null(strstr(seen.path[0], name));
	name[strlen(name) - 1] = 'v';
	assert_non_null(strstr(seen.path[1], name));
	if (suite.files) {
		assert_true(file_read(seen.path[0], &data) >= 5000);
		assert_true(bytes_match(data, 5000, mix(key_content(f.keys.keys[0]), 0)));
		free(data);
	}
	fixture_close(&f);
}

/* ---------------------------------------------------------------- clear */

struct cleared {
	struct kvc_clear_report dry;
	struct kvc_clear_report real;
	char id[256];
};

static void clear(struct kvc_store *store, const char *id, struct cleared *out)
{
	out->dry.size = sizeof(out->dry);
	out->real.size = sizeof(out->real);
	assert_int_equal(kvc_namespace_clear(store, id, 1, &out->dry), 0);
	assert_int_equal(kvc_namespace_clear(store, id, 0, &out->real), 0);
	assert_int_equal(out->dry.objects, out->real.objects);
	assert_int_equal(out->dry.bytes, out->real.bytes);
	assert_int_equal(out->real.failed, 0);
}

/* R18 */
static void test_clear_takes_one_namespace(void **state)
{
	struct kvc_namespace_params params[3] = {
		namespace_params("llama"),
		namespace_params("llama"),
		namespace_params("llama-2"),
	};
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns[3];
	struct kvc_result results[4];
	struct cleared cleared;
	char foreign[PATH_BYTES];
	struct pages pages[3];
	struct keys keys;

	(void)state;
	params[0].tp_size = params[1].tp_size = params[2].tp_size = 2;
	params[1].tp_rank = 1;
	keys_make(&keys, "clear", 4);
	for (size_t i = 0; i < 3; i++) {
		ns[i] = namespace_must_open(store, &params[i]);
		pages_open_simple(&pages[i], ns[i], 4, 4096);
		pages_fill_keys(&pages[i], keys.keys, 4);
		batch(store, &pages[i], KVC_SET, keys.keys, 4, 0, results);
		expect_all(results, 4, KVC_OK);
	}
	(void)snprintf(foreign, sizeof(foreign), "%s/foreign.txt", suite.root);
	if (suite.folder)
		file_write(foreign, "mine", 4);
	(void)snprintf(cleared.id, sizeof(cleared.id), "%s",
		       suite.nixl ? "llama" : kvc_namespace_id(ns[0]));
	clear(store, cleared.id, &cleared);
	assert_int_equal(cleared.real.objects, 8);
	assert_int_equal(cleared.real.bytes, 8 * (suite.packed ? 4096 : 8192));
	for (size_t i = 0; i < 3; i++) {
		batch(store, &pages[i], KVC_EXISTS, keys.keys, 4, 0, results);
		expect_all(results, 4, i == 2 ? KVC_OK : KVC_MISS);
	}
	assert_true(!suite.folder || file_exists(foreign));
	/* It is usable at once again. */
	batch(store, &pages[0], KVC_SET, keys.keys, 4, 0, results);
	expect_all(results, 4, KVC_OK);
	for (size_t i = 0; i < 3; i++) {
		pages_close(&pages[i]);
		assert_int_equal(kvc_namespace_close(ns[i]), 0);
	}
	store_must_close(store);
	keys_free(&keys);
}

/* The first clear takes the namespace's folder away, and what is stored then makes it again. */
static void test_clear_again(void **state)
{
	struct kvc_namespace_params params = namespace_params("llama");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = namespace_must_open(store, &params);
	struct kvc_result results[4];
	struct cleared cleared;
	struct pages pages;
	struct keys keys;

	(void)state;
	keys_make(&keys, "again", 4);
	pages_open_simple(&pages, ns, 4, 4096);
	pages_fill_keys(&pages, keys.keys, 4);
	(void)snprintf(cleared.id, sizeof(cleared.id), "%s",
		       suite.nixl ? "llama" : kvc_namespace_id(ns));
	for (int turn = 0; turn < 3; turn++) {
		batch(store, &pages, KVC_SET, keys.keys, 4, 0, results);
		expect_all(results, 4, KVC_OK);
		clear(store, cleared.id, &cleared);
		assert_int_equal(cleared.real.objects, 4);
		batch(store, &pages, KVC_EXISTS, keys.keys, 4, 0, results);
		expect_all(results, 4, KVC_MISS);
	}
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
	keys_free(&keys);
}

static void test_clear_of_what_is_not_there(void **state)
{
	struct kvc_clear_report report = { .size = sizeof(report) };
	struct kvc_store *store = suite_open();

	(void)state;
	assert_int_equal(kvc_namespace_clear(store, "none-0123456789abcdef", 0, &report), -ENOENT);
	assert_true(kvc_namespace_clear(store, "../x", 0, &report) < 0);
	store_must_close(store);
}

struct tests name_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys_of_any_bytes),
		cmocka_unit_test(test_long_keys),
		cmocka_unit_test(test_where_pages_lie),
		cmocka_unit_test(test_names_of_nixl),
		cmocka_unit_test(test_clear_takes_one_namespace),
		cmocka_unit_test(test_clear_again),
		cmocka_unit_test(test_clear_of_what_is_not_there),
	};

	return TESTS_OF(tests);
}
