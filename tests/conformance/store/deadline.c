/* SPDX-License-Identifier: Apache-2.0 */
/* Hard deadlines: mem can end everything at once. */
#include "suite.h"

#include "support/packed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Each request takes 300 ms; the set-up of a call gets what it needs or much less. */
static void slow_open(struct fixture *f, size_t count)
{
	struct pages_params params = { .count = count, .part_bytes = { 4096 } };

	suite.setup.settings[0] = "plugin.mem.latency_us=300000";
	suite.setup.flags = KVC_OPEN_NO_SELFTEST;
	fixture_open_on(f, suite_open(), &params);
	suite.setup.settings[0] = NULL;
	suite.setup.flags = 0;
}

static void slow_batch(struct fixture *f, int op, uint32_t timeout_ms)
{
	batch_at(f->store, &f->pages, op, f->keys.keys, NULL, f->count, 0, timeout_ms, f->results);
}

static void test_get_ends_at_the_deadline(void **state)
{
	struct fixture f;

	(void)state;
	slow_open(&f, 10);
	pages_fill_keys(&f.pages, f.keys.keys, 10);
	slow_batch(&f, KVC_SET, 60000);
	expect_all(f.results, 10, KVC_OK);
	pages_wipe(&f.pages);
	slow_batch(&f, KVC_GET, 20);
	for (size_t i = 0; i < 10; i++)
		expect_result(f.results[i], KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	/* Nothing arrives later. */
	pages_wipe(&f.pages);
	sleep_ms(700);
	for (size_t i = 0; i < 10; i++)
		assert_true(pages_untouched(&f.pages, i));
	pages_check_gaps(&f.pages);
	slow_batch(&f, KVC_GET, 60000);
	expect_all(f.results, 10, KVC_OK);
	for (size_t i = 0; i < 10; i++)
		assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
	assert_int_equal(store_stats(f.store).overruns, 0);
	fixture_close(&f);
}

static void test_set_and_exists_end_at_the_deadline(void **state)
{
	struct fixture f;

	(void)state;
	slow_open(&f, 5);
	pages_fill_keys(&f.pages, f.keys.keys, 5);
	slow_batch(&f, KVC_SET, 20);
	expect_all(f.results, 5, KVC_TIMEOUT);
	/* The memory may change now: what was not done is not done with other bytes later. */
	pages_wipe(&f.pages);
	sleep_ms(700);
	slow_batch(&f, KVC_GET, 60000);
	for (size_t i = 0; i < 5; i++)
		if (f.results[i].status == KVC_OK)
			assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
		else
			expect_result(f.results[i], KVC_MISS, KVC_CAUSE_ABSENT);
	if (suite.packed) {
		/* The index answers, with no I/O that could be late; and what was given up leaves
		 * its slot. */
		slow_batch(&f, KVC_EXISTS, 20);
		assert_int_equal(count_status(f.results, 5, KVC_TIMEOUT), 0);
		slow_batch(&f, KVC_REMOVE, 20);
		assert_int_equal(count_status(f.results, 5, KVC_TIMEOUT), 0);
		assert_int_equal(packed_check(f.store), 0);
	} else {
		slow_batch(&f, KVC_EXISTS, 20);
		expect_all(f.results, 5, KVC_TIMEOUT);
		slow_batch(&f, KVC_REMOVE, 20);
		expect_all(f.results, 5, KVC_TIMEOUT);
	}
	fixture_close(&f);
}

static void test_cancel_ends_a_started_batch(void **state)
{
	int64_t indices[20];
	struct kvc_transfer transfer;
	struct kvc_batch *started;
	struct fixture f;

	(void)state;
	slow_open(&f, 20);
	pages_fill_keys(&f.pages, f.keys.keys, 20);
	slow_batch(&f, KVC_SET, 60000);
	expect_all(f.results, 20, KVC_OK);
	pages_wipe(&f.pages);
	for (int i = 0; i < 20; i++)
		indices[i] = i;
	transfer = transfer_of(&f.pages, KVC_GET, f.keys.keys, 20, indices, f.results);
	assert_int_equal(kvc_batch_start(f.store, &transfer, 1, &started), 0);
	assert_int_equal(kvc_batch_poll(started), 0);
	assert_int_equal(kvc_batch_free(started), -EBUSY);
	assert_int_equal(kvc_batch_cancel(started), 0);
	assert_int_equal(kvc_batch_wait(started, UINT32_MAX), 1);
	assert_int_equal(kvc_batch_free(started), 0);
	transfer_check(&transfer);
	for (size_t i = 0; i < 20; i++)
		if (f.results[i].status == KVC_OK)
			assert_true(pages_match(&f.pages, i, key_content(f.keys.keys[i])));
		else
			expect_result(f.results[i], KVC_SKIPPED, -1);
	fixture_close(&f);
}

struct tests deadline_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_get_ends_at_the_deadline),
		cmocka_unit_test(test_set_and_exists_end_at_the_deadline),
		cmocka_unit_test(test_cancel_ends_a_started_batch),
	};

	return TESTS_OF(tests);
}
