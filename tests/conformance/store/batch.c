/* SPDX-License-Identifier: Apache-2.0 */
/* Several transfers in one call, prefixes, buffers, markers, and batches that are started. */
#include "suite.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static const int64_t *numbers(void)
{
	static int64_t all[256];

	/* Once: batches that run may be reading it. */
	for (int i = 0; all[255] == 0 && i < 256; i++)
		all[i] = i;
	return all;
}

static void test_several_pools_in_one_call(void **state)
{
	struct pages_params params = { .name = "indexer", .count = 8, .part_bytes = { 700 } };
	struct kvc_result other[8];
	struct kvc_transfer transfers[3];
	struct pages indexer;
	struct fixture f;

	(void)state;
	fixture_open(&f, 8, 4096);
	pages_open(&indexer, f.ns, &params);
	pages_fill_keys(&f.pages, f.keys.keys, 8);
	pages_fill_keys(&indexer, f.keys.keys, 8);
	transfers[0] = transfer_of(&f.pages, KVC_SET, f.keys.keys, 8, numbers(), f.results);
	transfers[1] = transfer_of(&indexer, KVC_SET, f.keys.keys, 8, numbers(), other);
	assert_int_equal(kvc_batch_run(f.store, transfers, 2), 0);
	transfer_check(&transfers[0]);
	transfer_check(&transfers[1]);
	expect_all(f.results, 8, KVC_OK);
	expect_all(other, 8, KVC_OK);
	pages_wipe(&f.pages);
	pages_wipe(&indexer);
	expect_result(do_remove(f.store, &indexer, f.keys.keys[3]), KVC_OK, -1);
	transfers[0] = transfer_of(&f.pages, KVC_GET, f.keys.keys, 8, numbers(), f.results);
	transfers[1] = transfer_of(&indexer, KVC_GET, f.keys.keys, 8, numbers(), other);
	assert_int_equal(kvc_batch_run(f.store, transfers, 2), 0);
	transfer_check(&transfers[1]);
	expect_all(f.results, 8, KVC_OK);
	expect_result(other[3], KVC_MISS, KVC_CAUSE_ABSENT);
	assert_int_equal(transfers[1].ok_count, 7);
	assert_int_equal(transfers[1].prefix_count, 3);
	for (size_t i = 0; i < 8; i++) {
		assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
		assert_true(i == 3 || pages_match(&indexer, i, key_content(f.keys.keys[i])));
	}
	pages_close(&indexer);
	fixture_close(&f);
}

/* Different operations on different keys in one call. */
static void test_several_operations_in_one_call(void **state)
{
	struct kvc_result a[4];
	struct kvc_result b[4];
	struct kvc_result c[4];
	struct kvc_transfer transfers[3];
	struct fixture f;

	(void)state;
	fixture_open(&f, 12, 1000);
	pages_fill_keys(&f.pages, f.keys.keys, 12);
	batch(f.store, &f.pages, KVC_SET, f.keys.keys, 8, 0, f.results);
	expect_all(f.results, 8, KVC_OK);
	memset(f.pages.part_base[0], 0xAA, f.pages.part_bytes[0]);
	transfers[0] = transfer_of(&f.pages, KVC_GET, f.keys.keys, 4, numbers(), a);
	transfers[1] = transfer_of(&f.pages, KVC_REMOVE, f.keys.keys + 4, 4, NULL, b);
	transfers[2] = transfer_of(&f.pages, KVC_SET, f.keys.keys + 8, 4, numbers() + 8, c);
	assert_int_equal(kvc_batch_run(f.store, transfers, 3), 0);
	expect_all(a, 4, KVC_OK);
	expect_all(b, 4, KVC_OK);
	expect_all(c, 4, KVC_OK);
	for (size_t i = 0; i < 4; i++)
		assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 12, 0, f.results);
	expect_all(f.results, 4, KVC_OK);
	expect_all(f.results + 4, 4, KVC_MISS);
	expect_all(f.results + 8, 4, KVC_OK);
	fixture_close(&f);
}

static void test_exists_stops_at_the_first_miss(void **state)
{
	struct kvc_transfer transfer;
	struct kvc_stats stats;
	struct fixture f;

	(void)state;
	fixture_open(&f, 200, 64);
	fixture_store(&f);
	expect_result(do_remove(f.store, &f.pages, f.keys.keys[37]), KVC_OK, -1);
	expect_result(do_remove(f.store, &f.pages, f.keys.keys[90]), KVC_OK, -1);
	transfer = transfer_of(&f.pages, KVC_EXISTS, f.keys.keys, 200, NULL, f.results);
	transfer.flags = KVC_TRANSFER_STOP_AT_MISS;
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	transfer_check(&transfer);
	assert_int_equal(transfer.prefix_count, 37);
	assert_int_equal(transfer.ok_count, 37);
	stats = store_stats(f.store);
	assert_int_equal(stats.prefix_calls, 1);
	assert_int_equal(stats.prefix_pages_asked, 200);
	assert_int_equal(stats.prefix_pages_found, 37);
	expect_all(f.results, 37, KVC_OK);
	expect_result(f.results[37], KVC_MISS, KVC_CAUSE_ABSENT);
	for (size_t i = 38; i < 200; i++)
		expect_result(f.results[i], KVC_SKIPPED, KVC_CAUSE_PREFIX_ENDED);
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 200, 0, f.results);
	assert_int_equal(count_status(f.results, 200, KVC_OK), 198);
	fixture_close(&f);
}

/* The pages overwrite one another in memory, so that most checksums over it fail: what is stored is
 * good all the same, and stays. */
static void test_one_index_for_all_pages_harms_nothing(void **state)
{
	int64_t indices[16] = { 0 };
	struct kvc_transfer transfer;
	struct fixture f;

	(void)state;
	/* Two reads into one page are a race of the caller's, which ThreadSanitizer reports. */
	if (support_thread_sanitized())
		return;
	fixture_open(&f, 16, 8192);
	fixture_store(&f);
	for (int round = 0; round < 3; round++) {
		transfer = transfer_of(&f.pages, KVC_GET, f.keys.keys, 16, indices, f.results);
		assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
		expect_all(f.results, 16, KVC_OK);
	}
	assert_int_equal(fixture_get(&f), 16);
	fixture_close(&f);
}

static void buffers_of(struct kvc_buffer *buffers, unsigned char *memory, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		buffers[2 * i] = (struct kvc_buffer){ .addr = memory + i * 10000, .bytes = 3000 };
		buffers[2 * i + 1] =
			(struct kvc_buffer){ .addr = memory + i * 10000 + 5000, .bytes = 700 };
	}
}

/* Parts without a base: each call brings the memory. */
static void test_buffers_instead_of_indices(void **state)
{
	struct kvc_part parts[2] = {
		{ .size = sizeof(parts[0]), .piece_bytes = 3000, .piece_count = 1 },
		{ .size = sizeof(parts[0]), .piece_bytes = 700, .piece_count = 1 },
	};
	struct kvc_pool_params params = {
		.size = sizeof(params),
		.name = "kv",
		.parts = parts,
		.part_count = 2,
	};
	struct kvc_namespace_params ns_params = namespace_params("buffers");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = namespace_must_open(store, &ns_params);
	unsigned char *memory = malloc(60000);
	struct kvc_buffer buffers[10];
	struct kvc_result results[5];
	struct kvc_transfer transfer;
	struct pages pages = { .count = 5 };
	struct keys keys;

	(void)state;
	assert_non_null(memory);
	assert_int_equal(kvc_pool_open(ns, &params, &pages.pool), 0);
	keys_make(&keys, "buffers", 5);
	buffers_of(buffers, memory, 5);
	for (size_t i = 0; i < 10; i++)
		bytes_fill(buffers[i].addr, buffers[i].bytes, 500 + i);
	transfer = transfer_of(&pages, KVC_SET, keys.keys, 5, NULL, results);
	transfer.buffers = buffers;
	assert_int_equal(kvc_batch_run(store, &transfer, 1), 0);
	expect_all(results, 5, KVC_OK);
	memset(memory, 0xAA, 60000);
	transfer = transfer_of(&pages, KVC_GET, keys.keys, 5, NULL, results);
	transfer.buffers = buffers;
	assert_int_equal(kvc_batch_run(store, &transfer, 1), 0);
	expect_all(results, 5, KVC_OK);
	for (size_t i = 0; i < 10; i++) {
		unsigned char *end = (unsigned char *)buffers[i].addr + buffers[i].bytes;

		assert_true(bytes_match(buffers[i].addr, buffers[i].bytes, 500 + i));
		assert_int_equal(*end, 0xAA);
	}
	buffers[3].bytes--; /* not exactly the part's size */
	transfer = transfer_of(&pages, KVC_GET, keys.keys, 5, NULL, results);
	transfer.buffers = buffers;
	assert_int_equal(kvc_batch_run(store, &transfer, 1), 0);
	transfer_check(&transfer);
	assert_int_equal(transfer.ok_count, 4);
	expect_result(results[1], KVC_ERROR, -1);
	assert_int_equal(results[1].error, EINVAL);
	assert_int_equal(kvc_pool_close(pages.pool), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
	keys_free(&keys);
	free(memory);
}

static void test_markers(void **state)
{
	struct pages_params params = { .name = "anchor", .count = 4, .flags = KVC_POOL_MARKER };
	struct kvc_result results[4];
	struct kvc_transfer transfer;
	struct pages anchor;
	struct fixture f;

	(void)state;
	fixture_open(&f, 4, 4096);
	pages_open(&anchor, f.ns, &params);
	transfer = transfer_of(&anchor, KVC_SET, f.keys.keys, 3, NULL, results);
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	transfer_check(&transfer);
	expect_all(results, 3, KVC_OK);
	batch(f.store, &anchor, KVC_EXISTS, f.keys.keys, 4, 0, results);
	expect_all(results, 3, KVC_OK);
	expect_result(results[3], KVC_MISS, KVC_CAUSE_ABSENT);
	transfer = transfer_of(&anchor, KVC_GET, f.keys.keys, 4, NULL, results);
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	assert_int_equal(transfer.prefix_count, 3);
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 4, 0, f.results);
	expect_all(f.results, 4, KVC_MISS);
	batch(f.store, &anchor, KVC_REMOVE, f.keys.keys, 3, 0, results);
	expect_all(results, 3, KVC_OK);
	pages_close(&anchor);
	fixture_close(&f);
}

/* ---------------------------------------------------------------- started batches */

static void test_started_batch_by_wait(void **state)
{
	struct kvc_transfer transfer;
	struct kvc_batch *started;
	struct fixture f;

	(void)state;
	fixture_open(&f, 200, 4096);
	pages_fill_keys(&f.pages, f.keys.keys, 200);
	transfer = transfer_of(&f.pages, KVC_SET, f.keys.keys, 200, numbers(), f.results);
	assert_int_equal(kvc_batch_start(f.store, &transfer, 1, &started), 0);
	assert_int_equal(kvc_batch_wait(started, UINT32_MAX), 1);
	assert_int_equal(kvc_batch_poll(started), 1);
	assert_int_equal(kvc_batch_wait(started, 0), 1);
	transfer_check(&transfer);
	expect_all(f.results, 200, KVC_OK);
	assert_int_equal(kvc_batch_free(started), 0);
	assert_int_equal(kvc_batch_free(NULL), 0);
	assert_int_equal(fixture_get(&f), 200);
	fixture_close(&f);
}

static void test_started_batch_by_event(void **state)
{
	struct kvc_transfer transfer;
	struct kvc_batch *started;
	struct pollfd event = { .events = POLLIN };
	struct fixture f;

	(void)state;
	fixture_open(&f, 64, 4096);
	fixture_store(&f);
	pages_wipe(&f.pages);
	transfer = transfer_of(&f.pages, KVC_GET, f.keys.keys, 64, numbers(), f.results);
	assert_int_equal(kvc_batch_start(f.store, &transfer, 1, &started), 0);
	event.fd = kvc_batch_event_fd(started);
	assert_true(event.fd >= 0);
	assert_int_equal(poll(&event, 1, 60000), 1);
	assert_int_equal(kvc_batch_poll(started), 1);
	assert_int_equal(kvc_batch_free(started), 0);
	transfer_check(&transfer);
	expect_all(f.results, 64, KVC_OK);
	for (size_t i = 0; i < 64; i++)
		assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
	fixture_close(&f);
}

static void test_many_started_batches(void **state)
{
	struct kvc_transfer transfers[8];
	struct kvc_batch *started[8];
	struct fixture f;

	(void)state;
	fixture_open(&f, 128, 2000);
	pages_fill_keys(&f.pages, f.keys.keys, 128);
	for (size_t i = 0; i < 8; i++) {
		transfers[i] = transfer_of(&f.pages, KVC_SET, f.keys.keys + 16 * i, 16,
					   numbers() + 16 * i, f.results + 16 * i);
		assert_int_equal(kvc_batch_start(f.store, &transfers[i], 1, &started[i]), 0);
	}
	assert_int_equal(kvc_pool_close(f.pages.pool), -EBUSY);
	for (size_t i = 8; i > 0; i--) {
		assert_int_equal(kvc_batch_wait(started[i - 1], UINT32_MAX), 1);
		transfer_check(&transfers[i - 1]);
		assert_int_equal(kvc_batch_free(started[i - 1]), 0);
	}
	expect_all(f.results, 128, KVC_OK);
	assert_int_equal(fixture_get(&f), 128);
	fixture_close(&f);
}

/* Whatever the cancel meets, each page has a result, and what is not OK was not stored. */
static void test_cancelled_batch(void **state)
{
	struct kvc_transfer transfer;
	struct kvc_batch *started;
	struct fixture f;
	size_t done;

	(void)state;
	fixture_open(&f, 256, 16384);
	pages_fill_keys(&f.pages, f.keys.keys, 256);
	transfer = transfer_of(&f.pages, KVC_SET, f.keys.keys, 256, numbers(), f.results);
	assert_int_equal(kvc_batch_start(f.store, &transfer, 1, &started), 0);
	assert_int_equal(kvc_batch_cancel(started), 0);
	assert_int_equal(kvc_batch_wait(started, UINT32_MAX), 1);
	assert_int_equal(kvc_batch_free(started), 0);
	transfer_check(&transfer);
	done = count_status(f.results, 256, KVC_OK);
	assert_int_equal(done + count_status(f.results, 256, KVC_SKIPPED), 256);
	for (size_t i = 0; i < 256; i++)
		if (f.results[i].status == KVC_SKIPPED)
			expect_result(f.results[i], KVC_SKIPPED, KVC_CAUSE_CANCELLED);
	assert_true(fixture_get(&f) >= done);
	fixture_close(&f);
}

static void test_bad_transfers_are_refused(void **state)
{
	struct kvc_transfer good;
	struct kvc_transfer bad;
	struct fixture f;

	(void)state;
	fixture_open(&f, 2, 512);
	good = transfer_of(&f.pages, KVC_SET, f.keys.keys, 2, numbers(), f.results);
	bad = good;
	bad.size = 8;
	assert_int_equal(kvc_batch_run(f.store, &bad, 1), -EINVAL);
	assert_true(strlen(kvc_last_error()) > 0);
	bad = good;
	bad.op = 17;
	assert_int_equal(kvc_batch_run(f.store, &bad, 1), -EINVAL);
	bad = good;
	bad.flags = 1u << 20;
	assert_int_equal(kvc_batch_run(f.store, &bad, 1), -EINVAL);
	bad = good;
	bad.pool = NULL;
	assert_int_equal(kvc_batch_run(f.store, &bad, 1), -EINVAL);
	bad = good;
	bad.keys = NULL;
	assert_int_equal(kvc_batch_run(f.store, &bad, 1), -EINVAL);
	bad = good;
	bad.results = NULL;
	assert_int_equal(kvc_batch_run(f.store, &bad, 1), -EINVAL);
	bad = good;
	bad.indices = NULL;
	assert_int_equal(kvc_batch_run(f.store, &bad, 1), -EINVAL);
	assert_int_equal(f.results[0].status, 0xffff);
	assert_int_equal(kvc_batch_run(f.store, &good, 1), 0);
	expect_all(f.results, 2, KVC_OK);
	fixture_close(&f);
}

static uint64_t calls_of(struct kvc_store *store, int op)
{
	return store_stats(store).operations[op].calls;
}

/* What it answers is what kvc_batch_run() does; where it does not, nothing has happened. */
static void expect_try_exists(struct fixture *f, uint32_t flags)
{
	const uint64_t calls = calls_of(f->store, KVC_EXISTS);
	struct kvc_result results[8];
	struct kvc_transfer tried =
		transfer_of(&f->pages, KVC_EXISTS, f->keys.keys, 8, NULL, results);
	struct kvc_transfer run =
		transfer_of(&f->pages, KVC_EXISTS, f->keys.keys, 8, NULL, f->results);
	int rc;

	tried.flags = run.flags = flags;
	rc = kvc_batch_try(f->store, &tried, 1);
	if (rc) {
		assert_int_equal(rc, -EAGAIN);
		assert_int_equal(calls_of(f->store, KVC_EXISTS), calls);
		return;
	}
	assert_int_equal(calls_of(f->store, KVC_EXISTS), calls + 1);
	transfer_check(&tried);
	assert_int_equal(kvc_batch_run(f->store, &run, 1), 0);
	assert_memory_equal(results, f->results, sizeof(results));
	assert_int_equal(tried.ok_count, run.ok_count);
	assert_int_equal(tried.prefix_count, run.prefix_count);
}

static void test_what_cannot_block_is_tried(void **state)
{
	struct kvc_transfer transfers[2];
	struct fixture f;

	(void)state;
	fixture_open(&f, 8, 4096);
	expect_try_exists(&f, 0);
	pages_fill_keys(&f.pages, f.keys.keys, 8);
	for (int op = KVC_GET; op <= KVC_REMOVE; op++) {
		transfers[0] = transfer_of(&f.pages, op, f.keys.keys, 8, numbers(), f.results);
		assert_int_equal(kvc_batch_try(f.store, transfers, 1), -EAGAIN);
		assert_int_equal(calls_of(f.store, op), 0);
	}
	batch(f.store, &f.pages, KVC_SET, f.keys.keys, 8, 0, f.results);
	expect_all(f.results, 8, KVC_OK);
	expect_result(do_remove(f.store, &f.pages, f.keys.keys[3]), KVC_OK, -1);
	expect_try_exists(&f, 0);
	expect_try_exists(&f, KVC_TRANSFER_STOP_AT_MISS);
	/* All of a call or nothing of it. */
	transfers[0] = transfer_of(&f.pages, KVC_EXISTS, f.keys.keys, 8, NULL, f.results);
	transfers[1] = transfer_of(&f.pages, KVC_GET, f.keys.keys, 1, numbers(), f.results);
	assert_int_equal(kvc_batch_try(f.store, transfers, 2), -EAGAIN);
	transfers[1].op = 99;
	assert_int_equal(kvc_batch_try(f.store, transfers, 2), -EINVAL);
	assert_int_equal(kvc_batch_try(f.store, NULL, 0), 0);
	assert_int_equal(kvc_batch_try(NULL, transfers, 1), -EINVAL);
	fixture_close(&f);
}

struct tests batch_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_several_pools_in_one_call),
		cmocka_unit_test(test_several_operations_in_one_call),
		cmocka_unit_test(test_exists_stops_at_the_first_miss),
		cmocka_unit_test(test_one_index_for_all_pages_harms_nothing),
		cmocka_unit_test(test_buffers_instead_of_indices),
		cmocka_unit_test(test_markers),
		cmocka_unit_test(test_started_batch_by_wait),
		cmocka_unit_test(test_started_batch_by_event),
		cmocka_unit_test(test_many_started_batches),
		cmocka_unit_test(test_cancelled_batch),
		cmocka_unit_test(test_bad_transfers_are_refused),
		cmocka_unit_test(test_what_cannot_block_is_tried),
	};

	return TESTS_OF(tests);
}
