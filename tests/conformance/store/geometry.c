/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, alignments, indices, and pieces of explicit pools. */
#include "suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void run_size(uint64_t bytes, uint64_t misalign)
{
	struct kvc_pool_info info = { .size = sizeof(info) };
	struct pages_params params = {
		.count = 3,
		.part_count = 2,
		.part_bytes = { bytes, bytes },
		.misalign = misalign,
	};
	struct fixture f;

	fixture_open_on(&f, suite_open(), &params);
	assert_int_equal(kvc_pool_query(f.pages.pool, &info), 0);
	assert_int_equal(info.page_bytes, 2 * bytes);
	fixture_store(&f);
	assert_int_equal(fixture_get(&f), 3);
	fixture_close(&f);
}

/* R21 */
static void test_sizes_and_alignments(void **state)
{
	static const uint64_t sizes[] = {
		1, 511, 512, 4095, 4096, 4097, 66048, 2 * 1024 * 1024 + 8
	};
	static const uint64_t misaligned[] = { 0, 1, 512 };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t k = 0; k < 3; k++)
			run_size(sizes[i], misaligned[k]);
}

/* Pages back to back: what lies behind one is the next one. */
static void test_pages_back_to_back(void **state)
{
	struct pages_params params = {
		.count = 50,
		.part_count = 2,
		.part_bytes = { 1000, 4096 },
		.packed = true,
	};
	struct fixture f;

	(void)state;
	fixture_open_on(&f, suite_open(), &params);
	fixture_store(&f);
	assert_int_equal(fixture_get(&f), 50);
	fixture_close(&f);
}

static void test_parts_of_different_sizes(void **state)
{
	struct pages_params params = {
		.count = 6,
		.part_count = 5,
		.part_bytes = { 4096, 1, 12288, 513, 100 },
	};
	struct fixture f;

	(void)state;
	fixture_open_on(&f, suite_open(), &params);
	fixture_store(&f);
	assert_int_equal(fixture_get(&f), 6);
	fixture_close(&f);
}

static void test_indices_are_checked(void **state)
{
	int64_t indices[4] = { 0, 8, -1, 7 };
	struct fixture f;

	(void)state;
	fixture_open(&f, 8, 4096);
	pages_fill_keys(&f.pages, f.keys.keys, 8);
	pages_fill(&f.pages, 7, key_content(f.keys.keys[3]));
	batch_at(f.store, &f.pages, KVC_SET, f.keys.keys, indices, 4, 0, 0, f.results);
	expect_result(f.results[0], KVC_OK, KVC_CAUSE_NONE);
	expect_result(f.results[1], KVC_ERROR, KVC_CAUSE_INDEX);
	assert_int_equal(f.results[1].error, ERANGE);
	expect_result(f.results[2], KVC_ERROR, KVC_CAUSE_INDEX);
	expect_result(f.results[3], KVC_OK, KVC_CAUSE_NONE);
	indices[1] = INT64_MAX;
	indices[2] = INT64_MIN;
	batch_at(f.store, &f.pages, KVC_GET, f.keys.keys, indices, 4, 0, 0, f.results);
	expect_result(f.results[1], KVC_ERROR, KVC_CAUSE_INDEX);
	expect_result(f.results[2], KVC_ERROR, KVC_CAUSE_INDEX);
	fixture_close(&f);
}

/* Indices that count tokens (4 a page here), with a stride. */
static void test_token_indices(void **state)
{
	struct pages_params params = {
		.count = 8,
		.part_bytes = { 4096 },
		.flags = KVC_POOL_TOKEN_INDICES,
	};
	int64_t indices[16];
	struct kvc_transfer transfer;
	struct fixture f;

	(void)state;
	fixture_open_on(&f, suite_open(), &params);
	for (int i = 0; i < 16; i++)
		indices[i] = i * 2; /* every second one is a page's first token: 0, 4, 8, ... */
	pages_fill_keys(&f.pages, f.keys.keys, 8);
	transfer = transfer_of(&f.pages, KVC_SET, f.keys.keys, 8, indices, f.results);
	transfer.index_stride = 2;
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	expect_all(f.results, 8, KVC_OK);
	pages_wipe(&f.pages);
	transfer = transfer_of(&f.pages, KVC_GET, f.keys.keys, 8, indices, f.results);
	transfer.index_stride = 2;
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	expect_all(f.results, 8, KVC_OK);
	for (size_t i = 0; i < 8; i++)
		assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
	indices[2] = 5;	 /* inside a page */
	indices[4] = 32; /* one past the end */
	transfer = transfer_of(&f.pages, KVC_GET, f.keys.keys, 3, indices, f.results);
	transfer.index_stride = 2;
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	expect_result(f.results[0], KVC_OK, KVC_CAUSE_NONE);
	expect_result(f.results[1], KVC_ERROR, KVC_CAUSE_INDEX);
	expect_result(f.results[2], KVC_ERROR, KVC_CAUSE_INDEX);
	fixture_close(&f);
}

#define PIECES	    6u
#define PIECE_BYTES 1040u
#define PIECE_PAGES 4u

/* A tensor per layer, at addresses without a common stride. */
static void test_pieces_at_any_address(void **state)
{
	struct kvc_namespace_params ns_params = namespace_params("pieces");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = namespace_must_open(store, &ns_params);
	unsigned char *memory = calloc(PIECES * 2, PIECE_PAGES * PIECE_BYTES);
	static const unsigned place[PIECES] = { 7, 2, 11, 0, 5, 9 };
	void *bases[PIECES];
	struct kvc_part part = {
		.size = sizeof(part),
		.piece_bases = bases,
		.piece_bytes = PIECE_BYTES,
		.piece_count = PIECES,
		.page_stride_bytes = PIECE_BYTES,
	};
	struct kvc_pool_params params = {
		.size = sizeof(params),
		.name = "kv",
		.parts = &part,
		.part_count = 1,
		.page_count = PIECE_PAGES,
	};
	int64_t indices[PIECE_PAGES] = { 3, 2, 1, 0 };
	struct kvc_result results[PIECE_PAGES];
	struct kvc_transfer transfer;
	struct pages pages = { .count = PIECE_PAGES };
	struct keys keys;

	(void)state;
	assert_non_null(memory);
	for (unsigned j = 0; j < PIECES; j++)
		bases[j] = memory + (size_t)place[j] * PIECE_PAGES * PIECE_BYTES;
	assert_int_equal(kvc_pool_open(ns, &params, &pages.pool), 0);
	keys_make(&keys, "pieces", PIECE_PAGES);
	for (unsigned j = 0; j < PIECES; j++)
		for (unsigned p = 0; p < PIECE_PAGES; p++)
			bytes_fill((unsigned char *)bases[j] + p * PIECE_BYTES, PIECE_BYTES,
				   p * 100 + j);
	transfer = transfer_of(&pages, KVC_SET, keys.keys, PIECE_PAGES, indices, results);
	bases[0] = NULL; /* was copied */
	assert_int_equal(kvc_batch_run(store, &transfer, 1), 0);
	expect_all(results, PIECE_PAGES, KVC_OK);
	memset(memory, 0xAA, (size_t)PIECES * 2 * PIECE_PAGES * PIECE_BYTES);
	transfer = transfer_of(&pages, KVC_GET, keys.keys, PIECE_PAGES, indices, results);
	assert_int_equal(kvc_batch_run(store, &transfer, 1), 0);
	expect_all(results, PIECE_PAGES, KVC_OK);
	for (unsigned j = 0; j < PIECES; j++)
		for (unsigned p = 0; p < PIECE_PAGES; p++)
			assert_true(bytes_match(memory + ((size_t)place[j] * PIECE_PAGES + p) *
								 PIECE_BYTES,
						PIECE_BYTES, p * 100 + j));
	assert_int_equal(kvc_pool_close(pages.pool), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
	keys_free(&keys);
	free(memory);
}

static void expect_refused(struct kvc_namespace *ns, const struct kvc_pool_params *params)
{
	struct kvc_pool *pool = (struct kvc_pool *)(uintptr_t)1;

	assert_int_equal(kvc_pool_open(ns, params, &pool), -EINVAL);
	assert_true(strlen(kvc_last_error()) > 0);
	assert_int_equal((uintptr_t)pool, 1);
}

static void test_bad_pools_are_refused(void **state)
{
	struct kvc_namespace_params ns_params = namespace_params("bad pools");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = namespace_must_open(store, &ns_params);
	unsigned char memory[64];
	struct kvc_part part = {
		.size = sizeof(part),
		.base = memory,
		.piece_bytes = 16,
		.piece_count = 1,
		.page_stride_bytes = 16,
	};
	struct kvc_pool_params good = {
		.size = sizeof(good),
		.name = "kv",
		.parts = &part,
		.part_count = 1,
		.page_count = 4,
	};
	struct kvc_pool_params bad;
	struct kvc_pool *pool;

	(void)state;
	bad = good;
	bad.name = "KV.1";
	expect_refused(ns, &bad);
	bad = good;
	bad.name = "";
	expect_refused(ns, &bad);
	bad = good;
	bad.part_count = 65;
	expect_refused(ns, &bad);
	bad = good;
	bad.part_count = 0;
	expect_refused(ns, &bad);
	bad = good;
	bad.host_layout = 77;
	expect_refused(ns, &bad);
	bad = good;
	bad.size = 4;
	expect_refused(ns, &bad);
	part.piece_bytes = 0;
	expect_refused(ns, &good);
	part.piece_bytes = 16;
	part.name = "no spaces";
	expect_refused(ns, &good);
	part.name = NULL;
	assert_int_equal(kvc_pool_open(ns, &good, &pool), 0);
	assert_int_equal(kvc_pool_close(pool), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

struct tests geometry_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes_and_alignments),
		cmocka_unit_test(test_pages_back_to_back),
		cmocka_unit_test(test_parts_of_different_sizes),
		cmocka_unit_test(test_indices_are_checked),
		cmocka_unit_test(test_token_indices),
		cmocka_unit_test(test_pieces_at_any_address),
		cmocka_unit_test(test_bad_pools_are_refused),
	};

	return TESTS_OF(tests);
}
