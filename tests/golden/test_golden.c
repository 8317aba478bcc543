/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The golden files of format 1.0 (v1/, made by make_golden.py from the document alone): this
 * library reads them byte for byte, and what it writes is the same but for times and versions.
 */
#include "connector/namespace.h"
#include "core/trailer.h"
#include "golden.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OBJECT_MAX 65536u

static char long_key[301];
static char longer_key[3001];

static struct kvc_store *golden_open(const char *naming, bool only_identity)
{
	struct setup setup = { .plugin = "posix", .naming = naming, .flags = KVC_OPEN_NO_SELFTEST };
	const char *root = folder_new("golden");
	char from[PATH_BYTES];
	char to[PATH_BYTES];

	text_make(from, sizeof(from), V1 "/%s%s", naming, only_identity ? "/.kvcellar" : "");
	text_make(to, sizeof(to), "%s%s", root, only_identity ? "/.kvcellar" : "");
	folder_copy(from, to);
	setup.roots = root;
	return setup_must_open(&setup);
}

static struct kvc_namespace *golden_namespace(struct kvc_store *store)
{
	struct kvc_namespace_params params = namespace_params("golden/model");

	return namespace_must_open(store, &params);
}

/* The pages of the kvcellar root. */
static const struct {
	const char *key;
	struct pages_params pool;
	bool ours;     /* a default store writes the same */
	bool reserved; /* of a checksum kind that this version does not know */
} golden_pages[] = {
	{ "full", { .name = "kv", .part_count = 2, .part_bytes = { 100, 4096 } }, true, false },
	{ "sector", { .name = "kv", .part_count = 2, .part_bytes = { 100, 4096 } }, false, false },
	{ "none", { .name = "kv", .part_count = 2, .part_bytes = { 100, 4096 } }, false, false },
	{ "caller", { .name = "kv", .part_count = 2, .part_bytes = { 100, 4096 } }, false, true },
	{ "odd", { .name = "odd", .part_count = 3, .part_bytes = { 1, 4097, 511 } }, true, false },
	{ "marker", { .name = "anchor", .flags = KVC_POOL_MARKER }, true, false },
	{ "a/b c", { .name = "kv", .part_count = 2, .part_bytes = { 100, 4096 } }, true, false },
	{ long_key, { .name = "kv", .part_count = 2, .part_bytes = { 100, 4096 } }, true, false },
	{ longer_key, { .name = "kv", .part_count = 2, .part_bytes = { 100, 4096 } }, true, false },
};
#define GOLDEN_PAGES (sizeof(golden_pages) / sizeof(golden_pages[0]))

static void run_page(struct kvc_store *store, struct pages *pages, int op, const char *name,
		     int status)
{
	struct kvc_key key = key_of(name);
	struct kvc_result result;
	int64_t index = 0;
	struct kvc_transfer transfer = transfer_of(pages, op, &key, 1, &index, &result);

	golden_chain(&transfer, name);
	assert_int_equal(kvc_batch_run(store, &transfer, 1), 0);
	transfer_check(&transfer);
	expect_result(result, status, -1);
}

static void pool_open(struct pages *pages, struct kvc_namespace *ns, size_t which)
{
	struct pages_params params = golden_pages[which].pool;

	params.count = 1;
	pages_open(pages, ns, &params);
}

static void test_pages_are_read(void **state)
{
	struct kvc_store *store = golden_open("kvcellar", false);
	struct kvc_namespace *ns = golden_namespace(store);
	struct pages pages;

	(void)state;
	for (size_t i = 0; i < GOLDEN_PAGES; i++) {
		pool_open(&pages, ns, i);
		run_page(store, &pages, KVC_EXISTS, golden_pages[i].key, KVC_OK);
		run_page(store, &pages, KVC_GET, golden_pages[i].key,
			 golden_pages[i].reserved ? KVC_MISS : KVC_OK);
		if (!golden_pages[i].reserved)
			golden_check(&pages, golden_pages[i].key);
		pages_check_gaps(&pages);
		pages_close(&pages);
	}
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

static void test_single_objects_are_read(void **state)
{
	struct kvc_store *store = golden_open("kvcellar", false);
	struct kvc_namespace *ns = golden_namespace(store);
	unsigned char data[64];
	size_t bytes = 0;

	(void)state;
	assert_int_equal(
		kvc_object_get(ns, "side", key_of("single"), data, sizeof(data), &bytes, 0, 0), 0);
	assert_int_equal(bytes, 11);
	for (size_t i = 0; i < bytes; i++)
		assert_int_equal(data[i], golden_byte("single", 0, i));
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

static int verify_take(void *context, const struct kvc_object_info *info,
		       const struct kvc_result *result, uint64_t done, uint64_t total)
{
	size_t *count = context;

	(void)done;
	(void)total;
	if (strstr(info->path, "/caller.") != NULL)
		expect_result(*result, KVC_MISS, KVC_CAUSE_VERSION);
	else
		golden_expect_ok(info, result);
	(*count)++;
	return 0;
}

static void test_verify_finds_no_fault(void **state)
{
	struct kvc_store *store = golden_open("kvcellar", false);
	size_t count = 0;

	(void)state;
	assert_int_equal(kvc_store_verify(store, NULL, 0, verify_take, &count), 0);
	assert_int_equal(count, GOLDEN_PAGES + 1);
	store_must_close(store);
	store = golden_open("nixl", false);
	count = 0;
	assert_int_equal(kvc_store_verify(store, NULL, 0, verify_take, &count), 0);
	assert_int_equal(count, 2);
	store_must_close(store);
}

static void nixl_pages_open(struct pages *pages, struct kvc_namespace *ns)
{
	struct pages_params params = { .count = 1, .part_count = 2, .part_bytes = { 100, 4096 } };

	pages_open(pages, ns, &params);
}

static void test_nixl_pages_are_read(void **state)
{
	struct kvc_store *store = golden_open("nixl", false);
	struct kvc_namespace *ns = golden_namespace(store);
	struct pages pages;

	(void)state;
	nixl_pages_open(&pages, ns);
	run_page(store, &pages, KVC_GET, "full", KVC_OK);
	golden_check(&pages, "full");
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* ---------------------------------------------------------------- writing */

struct file {
	unsigned char *data;
	size_t bytes;
};

static struct file object_file(const char *path)
{
	struct file file;

	file.bytes = file_read(path, &file.data);
	assert_true(file.bytes >= KVC_TRAILER_BYTES && file.bytes <= OBJECT_MAX);
	return file;
}

/* A fresh object with the golden one's time and writer must be the golden one. */
static void expect_same_but_for_time(const char *golden_path, const char *path)
{
	struct file golden = object_file(golden_path);
	struct file fresh = object_file(path);
	uint8_t *block = fresh.data + fresh.bytes - KVC_TRAILER_BYTES;
	struct kvc_trailer a;
	struct kvc_trailer b;

	assert_int_equal(fresh.bytes, golden.bytes);
	assert_int_equal(kvc_trailer_decode(golden.data + golden.bytes - KVC_TRAILER_BYTES, &a), 0);
	assert_int_equal(kvc_trailer_decode(block, &b), 0);
	assert_true(b.created_ns > a.created_ns);
	b.created_ns = a.created_ns;
	memcpy(b.writer, a.writer, sizeof(b.writer));
	/* The long name is not in the block; encoding needs it for its hash. */
	if (b.name != NULL) {
		uint8_t again[KVC_TRAILER_BYTES];

		kvc_trailer_encode(&b, again);
		assert_memory_equal(again, golden.data + golden.bytes - KVC_TRAILER_BYTES,
				    KVC_TRAILER_BYTES);
	}
	for (size_t i = 0; i < golden.bytes; i++) {
		size_t at = i + KVC_TRAILER_BYTES - golden.bytes; /* in the trailer */
		bool varies = i + KVC_TRAILER_BYTES >= golden.bytes &&
			      ((at >= 104 && at < 112) || (at >= 128 && at < 160) || at >= 4092);

		if (!varies && golden.data[i] != fresh.data[i])
			fail_msg("%s differs from %s at %zu", path, golden_path, i);
	}
	free(golden.data);
	free(fresh.data);
}

static int same_take(void *context, const struct kvc_object_info *info)
{
	const char *golden = context;
	char golden_path[PATH_BYTES];
	char path[PATH_BYTES];

	text_make(golden_path, sizeof(golden_path), "%s/%s", golden, info->path);
	text_make(path, sizeof(path), "%s/%s", info->root_path, info->path);
	expect_same_but_for_time(golden_path, path);
	return 0;
}

static void test_fresh_objects_are_the_same(void **state)
{
	struct kvc_store *store = golden_open("kvcellar", true);
	struct kvc_namespace *ns = golden_namespace(store);
	char golden[] = V1 "/kvcellar";
	unsigned char data[11];
	struct pages pages;

	(void)state;
	for (size_t i = 0; i < GOLDEN_PAGES; i++) {
		if (!golden_pages[i].ours)
			continue;
		pool_open(&pages, ns, i);
		golden_fill(&pages, golden_pages[i].key);
		run_page(store, &pages, KVC_SET, golden_pages[i].key, KVC_OK);
		assert_int_equal(kvc_pool_where(pages.pool, key_of(golden_pages[i].key), same_take,
						golden),
				 0);
		pages_close(&pages);
	}
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = golden_byte("single", 0, i);
	assert_int_equal(kvc_object_put(ns, "side", key_of("single"), data, sizeof(data), 0, 0), 0);
	assert_int_equal(kvc_object_where(ns, "side", key_of("single"), same_take, golden), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

static void test_fresh_nixl_objects_are_the_same(void **state)
{
	struct kvc_store *store = golden_open("nixl", true);
	struct kvc_namespace *ns = golden_namespace(store);
	char golden[] = V1 "/nixl";
	struct pages pages;

	(void)state;
	nixl_pages_open(&pages, ns);
	golden_fill(&pages, "full");
	run_page(store, &pages, KVC_SET, "nothing", KVC_OK); /* no parent, no depth */
	{
		struct kvc_key key = key_of("full");
		struct kvc_result result;

		batch(store, &pages, KVC_SET, &key, 1, 0, &result);
		expect_result(result, KVC_OK, KVC_CAUSE_NONE);
	}
	assert_int_equal(kvc_pool_where(pages.pool, key_of("full"), same_take, golden), 0);
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* ---------------------------------------------------------------- trailers and texts */

static size_t trailers_seen;

static int trailer_take(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	struct kvc_trailer trailer;
	uint8_t again[KVC_TRAILER_BYTES];
	struct file file;
	const uint8_t *block;

	(void)st;
	if (type != FTW_F || strstr(path + ftw->base, ".json") != NULL)
		return 0;
	file = object_file(path);
	block = file.data + file.bytes - KVC_TRAILER_BYTES;
	assert_int_equal(kvc_trailer_decode(block, &trailer), 0);
	assert_int_equal(trailer.stored_bytes, file.bytes);
	assert_int_equal(trailer.created_ns, GOLDEN_CREATED_NS);
	assert_string_equal(trailer.writer, "kvcellar 0.1.0");
	if (trailer.name != NULL) {
		kvc_trailer_encode(&trailer, again);
		assert_memory_equal(again, block, KVC_TRAILER_BYTES);
	}
	free(file.data);
	trailers_seen++;
	return 0;
}

/* Decoding and encoding gives the very block again. */
static void test_trailers_are_encoded_the_same(void **state)
{
	(void)state;
	trailers_seen = 0;
	assert_int_equal(nftw(V1 "/kvcellar", trailer_take, 16, FTW_PHYS), 0);
	assert_int_equal(nftw(V1 "/nixl", trailer_take, 16, FTW_PHYS), 0);
	assert_int_equal(trailers_seen, GOLDEN_PAGES + 1 + 2);
}

static void test_namespace_json_is_understood(void **state)
{
	struct kvc_store *store = golden_open("kvcellar", false);
	struct kvc_namespace *ns = golden_namespace(store);
	struct kvc_namespace_identity identity;
	char path[PATH_BYTES];
	unsigned char *text;
	size_t bytes;

	(void)state;
	text_make(path, sizeof(path), V1 "/kvcellar/%s/namespace.json", kvc_namespace_id(ns));
	bytes = file_read(path, &text);
	assert_int_equal(kvc_namespace_identity_parse(&identity, (char *)text, bytes), 0);
	assert_string_equal(identity.id, kvc_namespace_id(ns));
	kvc_namespace_identity_fini(&identity);
	free(text);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* ---------------------------------------------------------------- R41: the next format */

static void test_objects_of_the_next_format_are_kept(void **state)
{
	struct kvc_store *store = golden_open("kvcellar", false);
	struct kvc_namespace *ns = golden_namespace(store);
	struct kvc_trailer trailer;
	uint8_t block[KVC_TRAILER_BYTES];
	char path[PATH_BYTES];
	struct pages pages;
	struct file file;

	(void)state;
	pool_open(&pages, ns, 0);
	assert_true(page_path(pages.pool, key_of("full"), 0, path));
	file = object_file(path);
	assert_int_equal(kvc_trailer_decode(file.data + file.bytes - KVC_TRAILER_BYTES, &trailer),
			 0);
	trailer.major++;
	kvc_trailer_encode(&trailer, block);
	memcpy(file.data + file.bytes - KVC_TRAILER_BYTES, block, sizeof(block));
	file_write(path, file.data, file.bytes);
	free(file.data);
	run_page(store, &pages, KVC_GET, "full", KVC_MISS);
	run_page(store, &pages, KVC_EXISTS, "full", KVC_OK);
	assert_true(file_exists(path));
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages_are_read),
		cmocka_unit_test(test_single_objects_are_read),
		cmocka_unit_test(test_verify_finds_no_fault),
		cmocka_unit_test(test_nixl_pages_are_read),
		cmocka_unit_test(test_fresh_objects_are_the_same),
		cmocka_unit_test(test_fresh_nixl_objects_are_the_same),
		cmocka_unit_test(test_trailers_are_encoded_the_same),
		cmocka_unit_test(test_namespace_json_is_understood),
		cmocka_unit_test(test_objects_of_the_next_format_are_kept),
	};

	support_begin();
	memset(long_key, 'l', sizeof(long_key) - 1);
	memset(longer_key, 'L', sizeof(longer_key) - 1);
	return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
