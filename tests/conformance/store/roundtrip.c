/* SPDX-License-Identifier: Apache-2.0 */
/* set, exists, get, remove: what they answer, and that the counters say the same. */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

static void test_set_exists_get_remove(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, 5, 4096);
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 5, 0, f.results);
	for (size_t i = 0; i < 5; i++)
		expect_result(f.results[i], KVC_MISS, KVC_CAUSE_ABSENT);
	assert_int_equal(fixture_get(&f), 0);
	expect_result(f.results[4], KVC_MISS, KVC_CAUSE_ABSENT);
	fixture_store(&f);
	for (size_t i = 0; i < 5; i++)
		expect_result(f.results[i], KVC_OK, KVC_CAUSE_NONE);
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 5, 0, f.results);
	expect_all(f.results, 5, KVC_OK);
	assert_int_equal(fixture_get(&f), 5);
	batch(f.store, &f.pages, KVC_REMOVE, f.keys.keys, 4, 0, f.results);
	expect_all(f.results, 4, KVC_OK);
	expect_result(do_remove(f.store, &f.pages, f.keys.keys[0]), KVC_MISS, KVC_CAUSE_ABSENT);
	assert_int_equal(fixture_get(&f), 1);
	expect_result(f.results[4], KVC_OK, KVC_CAUSE_NONE);
	fixture_close(&f);
}

/* A set of what is there moves nothing, unless it is told to overwrite. */
static void test_set_again_and_overwrite(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, 3, 8192);
	fixture_store(&f);
	for (size_t i = 0; i < 3; i++)
		pages_fill(&f.pages, i, 7000 + i);
	batch(f.store, &f.pages, KVC_SET, f.keys.keys, 3, 0, f.results);
	for (size_t i = 0; i < 3; i++)
		expect_result(f.results[i], KVC_OK, KVC_CAUSE_EXISTED);
	assert_int_equal(fixture_get(&f), 3);
	for (size_t i = 0; i < 3; i++)
		pages_fill(&f.pages, i, 7000 + i);
	batch(f.store, &f.pages, KVC_SET, f.keys.keys, 3, KVC_TRANSFER_OVERWRITE, f.results);
	for (size_t i = 0; i < 3; i++)
		expect_result(f.results[i], KVC_OK, KVC_CAUSE_NONE);
	pages_wipe(&f.pages);
	batch(f.store, &f.pages, KVC_GET, f.keys.keys, 3, 0, f.results);
	expect_all(f.results, 3, KVC_OK);
	for (size_t i = 0; i < 3; i++)
		assert_true(pages_match(&f.pages, i, 7000 + i));
	fixture_close(&f);
}

/* R19 */
static void run_count(size_t count, uint64_t part_bytes)
{
	struct fixture f;

	fixture_open(&f, count, part_bytes);
	fixture_store(&f);
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, count, 0, f.results);
	expect_all(f.results, count, KVC_OK);
	assert_int_equal(fixture_get(&f), count);
	fixture_close(&f);
}

static void test_batches_of_every_size(void **state)
{
	static const size_t counts[] = { 1, 127, 128, 129, 220, 1000 };

	(void)state;
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		run_count(counts[i], 4096);
		run_count(counts[i], 1028);
	}
}

static void test_empty_batch(void **state)
{
	struct kvc_result untouched = { .status = 99, .cause = 99, .error = 99 };
	struct kvc_transfer transfer;
	struct fixture f;
	int64_t index = 0;

	(void)state;
	fixture_open(&f, 1, 4096);
	transfer = transfer_of(&f.pages, KVC_GET, f.keys.keys, 0, &index, f.results);
	transfer.results = &untouched;
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	assert_int_equal(transfer.ok_count, 0);
	assert_int_equal(transfer.prefix_count, 0);
	assert_int_equal(untouched.status, 99);
	assert_int_equal(kvc_batch_run(f.store, NULL, 0), 0);
	fixture_close(&f);
}

/* R20: one page of 128 is gone. */
static void test_one_page_missing(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, 128, 4096);
	fixture_store(&f);
	expect_result(do_remove(f.store, &f.pages, f.keys.keys[100]), KVC_OK, -1);
	assert_int_equal(fixture_get(&f), 127);
	expect_result(f.results[100], KVC_MISS, KVC_CAUSE_ABSENT);
	fixture_close(&f);
}

/* R20: one page of 128 cannot be taken. */
static void test_one_page_unwritable(void **state)
{
	int64_t indices[128];
	struct fixture f;

	(void)state;
	fixture_open(&f, 128, 4096);
	pages_fill_keys(&f.pages, f.keys.keys, 128);
	for (int i = 0; i < 128; i++)
		indices[i] = i;
	indices[100] = 128;
	batch_at(f.store, &f.pages, KVC_SET, f.keys.keys, indices, 128, 0, 0, f.results);
	assert_int_equal(count_status(f.results, 128, KVC_OK), 127);
	expect_result(f.results[100], KVC_ERROR, KVC_CAUSE_INDEX);
	assert_int_equal(fixture_get(&f), 127);
	expect_result(f.results[100], KVC_MISS, KVC_CAUSE_ABSENT);
	fixture_close(&f);
}

/* R11: three calls of 128 pages, a bad page in the second. */
static void test_bad_page_harms_no_other(void **state)
{
	int64_t indices[128];
	struct fixture f;

	(void)state;
	fixture_open(&f, 384, 4096);
	fixture_store(&f);
	pages_wipe(&f.pages);
	for (size_t call = 0; call < 3; call++) {
		for (size_t i = 0; i < 128; i++)
			indices[i] = (int64_t)(call * 128 + i);
		if (call == 1)
			indices[50] = -1;
		batch_at(f.store, &f.pages, KVC_GET, f.keys.keys + call * 128, indices, 128, 0, 0,
			 f.results + call * 128);
	}
	for (size_t i = 0; i < 384; i++) {
		if (i == 178) {
			expect_result(f.results[i], KVC_ERROR, KVC_CAUSE_INDEX);
			assert_true(pages_untouched(&f.pages, i));
			continue;
		}
		expect_result(f.results[i], KVC_OK, KVC_CAUSE_NONE);
		assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
	}
	fixture_close(&f);
}

static void tally(uint64_t statuses[16], uint64_t causes[64], const struct kvc_result *results,
		  size_t count)
{
	for (size_t i = 0; i < count; i++) {
		statuses[results[i].status]++;
		causes[results[i].cause]++;
	}
}

static void check_counted(const struct kvc_operation_stats *before,
			  const struct kvc_operation_stats *after, const uint64_t statuses[16],
			  const uint64_t causes[64], uint64_t calls)
{
	uint64_t pages = 0;
	uint64_t in_histogram = 0;

	for (size_t i = 0; i < 16; i++) {
		assert_int_equal(after->statuses[i] - before->statuses[i], statuses[i]);
		pages += statuses[i];
	}
	for (size_t i = 0; i < 64; i++)
		assert_int_equal(after->causes[i] - before->causes[i], causes[i]);
	for (size_t i = 0; i < KVC_HISTOGRAM_BUCKETS; i++)
		in_histogram += after->latency_us[i] - before->latency_us[i];
	assert_int_equal(after->pages - before->pages, pages);
	assert_int_equal(after->calls - before->calls, calls);
	assert_int_equal(in_histogram, calls);
}

/* Counters are exactly the results. */
static void test_counters_match_results(void **state)
{
	uint64_t statuses[KVC_OPERATION_COUNT][16] = { { 0 } };
	uint64_t causes[KVC_OPERATION_COUNT][64] = { { 0 } };
	uint64_t calls[KVC_OPERATION_COUNT] = { 0 };
	static const int script[] = { KVC_EXISTS, KVC_GET,    KVC_SET,	  KVC_SET,
				      KVC_GET,	  KVC_EXISTS, KVC_REMOVE, KVC_REMOVE };
	struct kvc_stats before;
	struct kvc_stats after;
	uint64_t set_bytes = 0;
	struct fixture f;

	(void)state;
	fixture_open(&f, 20, 5000);
	before = store_stats(f.store);
	for (size_t i = 0; i < sizeof(script) / sizeof(script[0]); i++) {
		size_t count = 20 - i;

		pages_fill_keys(&f.pages, f.keys.keys, 20);
		batch(f.store, &f.pages, script[i], f.keys.keys, count, 0, f.results);
		tally(statuses[script[i]], causes[script[i]], f.results, count);
		calls[script[i]]++;
		for (size_t k = 0; script[i] == KVC_SET && k < count; k++)
			if (f.results[k].cause == KVC_CAUSE_NONE)
				set_bytes += 10000;
	}
	after = store_stats(f.store);
	for (int op = 0; op < KVC_OPERATION_COUNT; op++)
		check_counted(&before.operations[op], &after.operations[op], statuses[op],
			      causes[op], calls[op]);
	assert_int_equal(after.operations[KVC_SET].bytes - before.operations[KVC_SET].bytes,
			 set_bytes);
	assert_int_equal(after.operations[KVC_GET].bytes - before.operations[KVC_GET].bytes,
			 statuses[KVC_GET][KVC_OK] * 10000);
	fixture_close(&f);
}

static void test_usage_counts_own_bytes(void **state)
{
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct kvc_pool_info info = { .size = sizeof(info) };
	uint64_t bytes;
	struct fixture f;

	(void)state;
	fixture_open(&f, 10, 4096);
	assert_int_equal(kvc_pool_query(f.pages.pool, &info), 0);
	assert_int_equal(info.page_bytes, 8192);
	assert_int_equal(info.objects_per_page, suite.nixl ? 2 : 1);
	assert_int_equal(info.object_bytes, suite.nixl ? 8192 : 12288);
	bytes = info.object_bytes * info.objects_per_page;
	if (suite.packed)
		bytes -= 4096; /* no trailer in a slot */
	fixture_store(&f);
	assert_int_equal(kvc_store_usage(f.store, 0, &usage, 1), 1);
	assert_int_equal(usage.own_objects, 10 * info.objects_per_page);
	assert_int_equal(usage.own_bytes, 10 * bytes);
	fixture_store(&f); /* counts nothing twice */
	batch(f.store, &f.pages, KVC_SET, f.keys.keys, 10, KVC_TRANSFER_OVERWRITE, f.results);
	expect_all(f.results, 10, KVC_OK);
	assert_int_equal(kvc_store_usage(f.store, 0, &usage, 1), 1);
	assert_int_equal(usage.own_objects, 10 * info.objects_per_page);
	batch(f.store, &f.pages, KVC_REMOVE, f.keys.keys, 3, 0, f.results);
	expect_all(f.results, 3, KVC_OK);
	usage.size = sizeof(usage);
	assert_int_equal(kvc_store_usage(f.store, 0, &usage, 1), 1);
	assert_int_equal(usage.own_objects, 7 * info.objects_per_page);
	assert_int_equal(usage.own_bytes, 7 * bytes);
	assert_int_equal(kvc_store_usage(f.store, 1, &usage, 1), 1);
	assert_int_equal(usage.own_objects, 7 * info.objects_per_page);
	assert_int_equal(usage.own_bytes, 7 * bytes);
	assert_int_equal(store_stats(f.store).usage_drift, 0);
	fixture_close(&f);
}

struct tests roundtrip_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_set_exists_get_remove),
		cmocka_unit_test(test_set_again_and_overwrite),
		cmocka_unit_test(test_batches_of_every_size),
		cmocka_unit_test(test_empty_batch),
		cmocka_unit_test(test_one_page_missing),
		cmocka_unit_test(test_one_page_unwritable),
		cmocka_unit_test(test_bad_page_harms_no_other),
		cmocka_unit_test(test_counters_match_results),
		cmocka_unit_test(test_usage_counts_own_bytes),
	};

	return TESTS_OF(tests);
}
