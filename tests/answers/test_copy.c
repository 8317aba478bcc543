/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvc_object_copy(): pages of every kind of pool go from files into slots and back, and are found
 * by the pools that stored them, byte for byte; and what it says when that cannot be.
 */
#include "support/support.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 12u

static struct kvc_store *open_root(const char *roots, const char *layout, const char *capacity,
				   uint32_t flags)
{
	struct setup setup = { .plugin = "posix",
			       .roots = roots,
			       .layout = layout,
			       .buffered = true,
			       .flags = flags,
			       .settings = { capacity } };

	return setup_must_open(&setup);
}

/* ---------------------------------------------------------------- pools of every kind */

struct kind {
	const char *model;
	const char *pool;
	uint64_t part_bytes[3];
	uint32_t part_count;
	uint32_t is_mla;
	uint32_t tp_size, tp_rank;
	uint32_t pp_size, pp_rank;
	uint32_t cp_size, cp_rank;
	uint32_t dcp_size, dcp_rank;
	uint32_t per_rank;
	uint32_t flags;
};

static const struct kind kinds[] = {
	{ .model = "plain", .pool = "kv", .part_bytes = { 4096, 5000 }, .part_count = 2 },
	{ .model = "mla", .pool = "kv", .part_bytes = { 4608 }, .part_count = 1, .is_mla = 1 },
	{ .model = "mla",
	  .pool = "state",
	  .part_bytes = { 100, 8192, 1 },
	  .part_count = 3,
	  .is_mla = 1,
	  .tp_size = 2,
	  .tp_rank = 1,
	  .per_rank = KVC_YES },
	{ .model = "tp",
	  .pool = "kv",
	  .part_bytes = { 8192, 8192 },
	  .part_count = 2,
	  .tp_size = 8,
	  .tp_rank = 5 },
	{ .model = "all",
	  .pool = "kv",
	  .part_bytes = { 12345 },
	  .part_count = 1,
	  .tp_size = 2,
	  .pp_size = 3,
	  .pp_rank = 2,
	  .cp_size = 2,
	  .cp_rank = 1,
	  .dcp_size = 2,
	  .dcp_rank = 1 },
	{ .model = "plain", .pool = "marks", .flags = KVC_POOL_MARKER },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct kvc_namespace *open_namespace(struct kvc_store *store, const struct kind *kind)
{
	struct kvc_namespace_params params = namespace_params(kind->model);

	params.is_mla = kind->is_mla;
	params.tp_size = kind->tp_size ? kind->tp_size : 1;
	params.tp_rank = kind->tp_rank;
	params.pp_size = kind->pp_size;
	params.pp_rank = kind->pp_rank;
	params.cp_size = kind->cp_size;
	params.cp_rank = kind->cp_rank;
	params.dcp_size = kind->dcp_size;
	params.dcp_rank = kind->dcp_rank;
	params.is_writer = KVC_YES;
	return namespace_must_open(store, &params);
}

/* Sets or gets the pages of one kind; every one has to be OK, and to have the key's bytes. */
static void pages_of_kind(struct kvc_store *store, const struct kind *kind, int op)
{
	struct kvc_namespace *ns = open_namespace(store, kind);
	struct pages_params params = { .name = kind->pool,
				       .count = PAGES,
				       .part_count = kind->part_count,
				       .flags = kind->flags,
				       .per_rank = kind->per_rank };
	struct kvc_result results[PAGES];
	struct pages pages;
	struct keys keys;

	memcpy(params.part_bytes, kind->part_bytes, sizeof(kind->part_bytes));
	keys_make(&keys, kind->pool, PAGES);
	pages_open(&pages, ns, &params);
	if (op == KVC_SET)
		pages_fill_keys(&pages, keys.keys, PAGES);
	else
		pages_wipe(&pages);
	batch(store, &pages, op, keys.keys, PAGES, 0, results);
	expect_all(results, PAGES, KVC_OK);
	for (size_t i = 0; i < PAGES && op == KVC_GET && kind->part_count > 0; i++)
		assert_true(pages_match(&pages, i, key_content(keys.keys[i])));
	pages_close(&pages);
	keys_free(&keys);
	assert_int_equal(kvc_namespace_close(ns), 0);
}

static void all_kinds(struct kvc_store *store, int op)
{
	for (size_t k = 0; k < KINDS; k++)
		pages_of_kind(store, &kinds[k], op);
}

#define SINGLE_BYTES 9000u

static void put_single(struct kvc_store *store)
{
	struct kvc_namespace *ns = open_namespace(store, &kinds[0]);
	unsigned char data[SINGLE_BYTES];

	bytes_fill(data, sizeof(data), 3);
	assert_int_equal(kvc_object_put(ns, "notes", key_of("a note"), data, sizeof(data), 0, 0),
			 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
}

static void check_single(struct kvc_store *store)
{
	struct kvc_namespace *ns = open_namespace(store, &kinds[0]);
	unsigned char data[SINGLE_BYTES];
	size_t bytes = 0;

	assert_int_equal(
		kvc_object_get(ns, "notes", key_of("a note"), data, sizeof(data), &bytes, 0, 0), 0);
	assert_int_equal(bytes, sizeof(data));
	assert_true(bytes_match(data, sizeof(data), 3));
	assert_int_equal(kvc_namespace_close(ns), 0);
}

/* ---------------------------------------------------------------- copying all */

struct copying {
	struct kvc_store *from;
	struct kvc_store *to;
	uint32_t flags;
	unsigned copied;
	unsigned existed;
	unsigned failed;
	int error; /* of the last that failed */
};

static int copy_one(void *context, const struct kvc_object_info *info)
{
	struct copying *copying = context;
	const int rc = kvc_object_copy(copying->from, info->root_path, info->path, copying->to,
				       copying->flags, 0);

	copying->copied += rc == 0;
	copying->existed += rc == 1;
	if (rc < 0) {
		assert_non_null(strstr(kvc_last_error(), info->path));
		copying->failed++;
		copying->error = rc;
	}
	return 0;
}

static struct copying copy_all(struct kvc_store *from, struct kvc_store *to, uint32_t flags)
{
	struct copying copying = { .from = from, .to = to, .flags = flags };

	assert_int_equal(kvc_object_list(from, NULL, copy_one, &copying), 0);
	return copying;
}

struct count {
	unsigned objects;
	unsigned slots;
};

static int count_one(void *context, const struct kvc_object_info *info)
{
	struct count *count = context;

	count->objects++;
	count->slots += strstr(info->path, "/slots-") != NULL;
	return 0;
}

static struct count count_all(struct kvc_store *store)
{
	struct count count = { 0 };

	assert_int_equal(kvc_object_list(store, NULL, count_one, &count), 0);
	return count;
}

static int check_verified(void *context, const struct kvc_object_info *info,
			  const struct kvc_result *result, uint64_t done, uint64_t total)
{
	(void)info;
	(void)done;
	(void)total;
	expect_result(*result, KVC_OK, KVC_CAUSE_NONE);
	++*(unsigned *)context;
	return 0;
}

static void check_all(struct kvc_store *store, unsigned count)
{
	unsigned verified = 0;

	assert_int_equal(count_all(store).objects, count);
	assert_int_equal(kvc_store_verify(store, NULL, 0, check_verified, &verified), 0);
	assert_int_equal(verified, count);
	all_kinds(store, KVC_GET);
	check_single(store);
}

/* Files of two roots into slots of two, of one, and back into files. */
static void test_there_and_back(void **state)
{
	static const char *const layouts[] = { "packed", "packed", "files" };
	const unsigned count = (unsigned)KINDS * PAGES + 1;
	char roots[3 * PATH_BYTES];
	struct kvc_store *from, *to;

	(void)state;
	text_make(roots, sizeof(roots), "%s,%s", folder_new("from1"), folder_new("from2"));
	from = open_root(roots, "files", NULL, 0);
	all_kinds(from, KVC_SET);
	put_single(from);
	for (size_t i = 0; i < 3; i++) {
		struct copying copying;

		if (i == 0)
			text_make(roots, sizeof(roots), "%s,%s", folder_new("to1"),
				  folder_new("to2"));
		else
			text_make(roots, sizeof(roots), "%s", folder_new("to"));
		to = open_root(roots, layouts[i], i < 2 ? "capacity=64MiB" : NULL, 0);
		copying = copy_all(from, to, KVC_COPY_DRY_RUN);
		assert_int_equal(copying.copied, count);
		assert_int_equal(count_all(to).objects, 0);
		copying = copy_all(from, to, 0);
		assert_int_equal(copying.copied, count);
		check_all(to, count);
		/* Markers and the single object are files in either layout. */
		assert_int_equal(count_all(to).slots, i < 2 ? count - PAGES - 1 : 0);
		copying = copy_all(from, to, KVC_COPY_REMOVE);
		assert_int_equal(copying.existed, count);
		assert_int_equal(count_all(from).objects, 0);
		check_all(to, count);
		store_must_close(from);
		from = to;
	}
	store_must_close(from);
}

/* ---------------------------------------------------------------- what cannot be */

/* A store of files with the pages of the first kind. */
static struct kvc_store *open_source(const char *root)
{
	struct kvc_store *store = open_root(root, "files", NULL, 0);

	pages_of_kind(store, &kinds[0], KVC_SET);
	return store;
}

static int note_path(void *context, const struct kvc_object_info *info)
{
	text_make(context, PATH_BYTES, "%s/%s", info->root_path, info->path);
	return 1;
}

static void test_corrupt_stays(void **state)
{
	struct kvc_store *from = open_source(folder_new("from"));
	struct kvc_store *to = open_root(folder_new("to"), "packed", "capacity=16MiB", 0);
	char path[PATH_BYTES];
	struct copying copying;

	(void)state;
	assert_int_equal(kvc_object_list(from, NULL, note_path, path), 1);
	file_flip(path, 4100, 1);
	copying = copy_all(from, to, KVC_COPY_REMOVE);
	assert_int_equal(copying.copied, PAGES - 1);
	assert_int_equal(copying.failed, 1);
	assert_int_equal(copying.error, -EBADMSG);
	assert_int_equal(count_all(from).objects, 1);
	assert_int_equal(count_all(to).objects, PAGES - 1);
	assert_true(file_exists(path));
	file_flip(path, 4100, 1);
	copying = copy_all(from, to, KVC_COPY_REMOVE);
	assert_int_equal(copying.copied, 1);
	pages_of_kind(to, &kinds[0], KVC_GET);
	store_must_close(from);
	store_must_close(to);
}

/* What is there with other bytes is kept, on both sides; a wrong one is replaced. */
static void test_other_bytes(void **state)
{
	static const char *const layouts[] = { "files", "packed" };

	(void)state;
	for (size_t l = 0; l < 2; l++) {
		struct kvc_store *from = open_source(folder_new("from"));
		struct kvc_store *to = open_root(folder_new("to"), layouts[l], "capacity=16MiB", 0);
		struct kvc_namespace *ns = open_namespace(to, &kinds[0]);
		const struct pages_params params = { .count = 1,
						     .part_count = 2,
						     .part_bytes = { 4096, 5000 } };
		struct kvc_result result;
		struct copying copying;
		struct pages pages;
		struct keys keys;

		keys_make(&keys, "kv", PAGES);
		pages_open(&pages, ns, &params);
		pages_fill(&pages, 0, 77);
		batch(to, &pages, KVC_SET, keys.keys, 1, 0, &result);
		expect_result(result, KVC_OK, KVC_CAUSE_NONE);
		copying = copy_all(from, to, KVC_COPY_REMOVE);
		assert_int_equal(copying.copied, PAGES - 1);
		assert_int_equal(copying.error, -EEXIST);
		assert_int_equal(count_all(from).objects, 1);
		batch(to, &pages, KVC_GET, keys.keys, 1, 0, &result);
		assert_true(pages_match(&pages, 0, 77));
		copying = copy_all(from, to, KVC_COPY_REMOVE | KVC_COPY_OVERWRITE);
		assert_int_equal(copying.copied, 1);
		pages_of_kind(to, &kinds[0], KVC_GET);
		pages_close(&pages);
		keys_free(&keys);
		assert_int_equal(kvc_namespace_close(ns), 0);
		store_must_close(from);
		store_must_close(to);
	}
}

/* A key that is too long for a name goes into a file, not into a slot. */
static void test_hashed_names(void **state)
{
	struct kvc_store *from = open_root(folder_new("from"), "files", NULL, 0);
	struct kvc_store *packed = open_root(folder_new("packed"), "packed", "capacity=16MiB", 0);
	struct kvc_store *files = open_root(folder_new("files"), "files", NULL, 0);
	struct kvc_namespace *ns = open_namespace(from, &kinds[0]), *other;
	struct copying copying;
	struct pages pages;
	char text[300];
	const struct kvc_key key = { text, sizeof(text) };

	(void)state;
	memset(text, 'k', sizeof(text));
	pages_open_simple(&pages, ns, 1, 4096);
	expect_result(do_set(from, &pages, key, 0), KVC_OK, KVC_CAUSE_NONE);
	pages_close(&pages);
	copying = copy_all(from, packed, KVC_COPY_REMOVE);
	assert_int_equal(copying.error, -ENOTSUP);
	copying = copy_all(from, files, KVC_COPY_REMOVE);
	assert_int_equal(copying.copied, 1);
	other = open_namespace(files, &kinds[0]);
	pages_open_simple(&pages, other, 1, 4096);
	expect_result(do_get(files, &pages, key), KVC_OK, KVC_CAUSE_NONE);
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	assert_int_equal(kvc_namespace_close(other), 0);
	store_must_close(from);
	store_must_close(packed);
	store_must_close(files);
}

/* Nothing that was copied before is evicted, and nothing is lost. */
static void test_full(void **state)
{
	const struct kind large = {
		.model = "large", .pool = "kv", .part_bytes = { 256 << 10 }, .part_count = 1
	};
	struct kvc_store *from = open_root(folder_new("from"), "files", NULL, 0), *to;
	struct kvc_namespace *ns;
	struct copying copying;
	struct pages pages;
	struct keys keys;

	(void)state;
	to = open_root(folder_new("to"), "packed", "capacity=8MiB", 0);
	ns = open_namespace(from, &large);
	keys_make(&keys, "large", 64);
	pages_open_simple(&pages, ns, 1, 256 << 10);
	for (size_t i = 0; i < keys.count; i++)
		expect_result(do_set(from, &pages, keys.keys[i], 0), KVC_OK, KVC_CAUSE_NONE);
	pages_close(&pages);
	copying = copy_all(from, to, KVC_COPY_REMOVE);
	assert_int_equal(copying.error, -ENOSPC);
	assert_true(copying.copied > 8);
	assert_int_equal(copying.copied + copying.failed, 64);
	sleep_ms(1500); /* the keeper has had its turn */
	assert_int_equal(count_all(to).objects, copying.copied);
	assert_int_equal(count_all(from).objects, copying.failed);
	keys_free(&keys);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(from);
	store_must_close(to);
}

static void test_refused(void **state)
{
	const char *root = folder_new("root");
	const struct setup nixl = {
		.plugin = "posix", .roots = folder_new("nixl"), .naming = "nixl", .buffered = true
	};
	struct kvc_store *store = open_source(root);
	struct kvc_store *same = open_root(root, "files", NULL, 0);
	struct kvc_store *to = open_root(folder_new("to"), "packed", "capacity=16MiB", 0);
	struct kvc_store *other = setup_must_open(&nixl);

	(void)state;
	assert_int_equal(kvc_object_copy(store, root, "x-0123456789abcdef/00/a", same, 0, 0),
			 -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "one root"));
	assert_int_equal(kvc_object_copy(store, root, "x-0123456789abcdef/00/a", other, 0, 0),
			 -EINVAL);
	assert_int_equal(kvc_object_copy(store, root, "x-0123456789abcdef/00/a", to, 0, 0),
			 -ENOENT);
	assert_int_equal(kvc_object_copy(store, root, "../a", to, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_copy(store, root, "x-0123456789abcdef/slots-4096/seg.1@0", to,
					 0, 0),
			 -ENOENT);
	assert_int_equal(kvc_object_copy(store, "/nowhere", "a", to, 0, 0), -ENOENT);
	assert_int_equal(kvc_object_copy(store, root, "a", to, 8, 0), -EINVAL);
	assert_int_equal(kvc_object_copy(NULL, root, "a", to, 0, 0), -EINVAL);
	store_must_close(store);
	store_must_close(same);
	store_must_close(to);
	store_must_close(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_corrupt_stays),
		cmocka_unit_test(test_other_bytes),    cmocka_unit_test(test_hashed_names),
		cmocka_unit_test(test_full),	       cmocka_unit_test(test_refused),
	};

	support_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
