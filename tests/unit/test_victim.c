/* SPDX-License-Identifier: Apache-2.0 */
/* core/victim.h: what is kept of the objects that were seen, and in which order it goes. */
#include "core/victim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define IN_MAIN 4u /* of s3fifo's stamps: stored again soon after it was evicted */

static uint64_t stamp_of(uint64_t time)
{
	return time * KVC_STAMP_STEP;
}

static void expect_next(struct kvc_victims *victims, uint64_t object)
{
	struct kvc_victim first;

	assert_true(kvc_victims_take(victims, &first));
	assert_int_equal(first.object, object);
}

static void the_earliest_goes_first(void **state)
{
	static const uint64_t times[] = { 50, 20, 90, 10, 70 };
	struct kvc_victims victims;
	struct kvc_victim first;

	(void)state;
	kvc_victims_init(&victims, &kvc_order_lru);
	assert_false(kvc_victims_take(&victims, &first));
	for (uint64_t i = 0; i < 5; i++)
		kvc_victims_see(&victims, i, stamp_of(times[i]));
	expect_next(&victims, 3);
	expect_next(&victims, 1);
	kvc_victims_see(&victims, 5, stamp_of(60));
	expect_next(&victims, 0);
	expect_next(&victims, 5);
	expect_next(&victims, 4);
	expect_next(&victims, 2);
	assert_false(kvc_victims_take(&victims, &first));
}

static void the_same_object_is_kept_once(void **state)
{
	struct kvc_victims victims;
	struct kvc_victim first;

	(void)state;
	kvc_victims_init(&victims, &kvc_order_lru);
	for (int i = 0; i < 3; i++) {
		kvc_victims_see(&victims, 1, stamp_of(5));
		kvc_victims_see(&victims, 2, stamp_of(5));
	}
	assert_true(kvc_victims_take(&victims, &first));
	assert_true(kvc_victims_take(&victims, &first));
	assert_false(kvc_victims_take(&victims, &first));
}

/* Of three times as many as are kept, in an order that jumps about, the earliest stay. */
static void of_too_many_the_earliest_are_kept(void **state)
{
	const uint64_t count = 3 * KVC_VICTIMS;
	struct kvc_victims victims;
	struct kvc_victim first;

	(void)state;
	kvc_victims_init(&victims, &kvc_order_fifo);
	for (uint64_t i = 0; i < count; i++)
		kvc_victims_see(&victims, i, stamp_of((i * 101) % count));
	for (uint64_t i = 0; i < KVC_VICTIMS; i++) {
		assert_true(kvc_victims_take(&victims, &first));
		assert_int_equal(first.stamp, stamp_of(i));
	}
	assert_false(kvc_victims_take(&victims, &first));
}

/* The group of the first one was used by another rank. */
static void one_that_is_put_back_goes_by_its_later_rank(void **state)
{
	struct kvc_victims victims;
	struct kvc_victim first;

	(void)state;
	kvc_victims_init(&victims, &kvc_order_lru);
	for (uint64_t i = 1; i <= 3; i++)
		kvc_victims_see(&victims, i, stamp_of(10 * i));
	assert_true(kvc_victims_take(&victims, &first));
	assert_int_equal(first.object, 1);
	kvc_victims_put_back(&victims, first, kvc_victims_rank(&victims, stamp_of(25)));
	expect_next(&victims, 2);
	assert_true(kvc_victims_take(&victims, &first));
	assert_int_equal(first.object, 1);
	assert_int_equal(first.stamp, stamp_of(10));
	assert_int_equal(first.rank, kvc_victims_rank(&victims, stamp_of(25)));
	expect_next(&victims, 3);
}

/* s3fifo: those never used again go while they are a tenth of all, then the others. */
static void new_ones_go_while_they_are_many(void **state)
{
	struct kvc_victims victims;
	struct kvc_victim first;

	(void)state;
	kvc_victims_init(&victims, &kvc_order_s3fifo);
	kvc_victims_see(&victims, 1, stamp_of(90));
	kvc_victims_see(&victims, 2, stamp_of(10) | IN_MAIN);
	kvc_victims_see(&victims, 3, stamp_of(80));
	expect_next(&victims, 3);
	for (uint64_t i = 0; i < 100; i++)
		kvc_victims_see(&victims, 100 + i, stamp_of(20 + i) | IN_MAIN);
	/* Too few now: the earliest of the others that were seen since. */
	assert_true(kvc_victims_take(&victims, &first));
	assert_true(first.stamp & IN_MAIN);
	for (uint64_t i = 0; i < 100; i++)
		kvc_victims_see(&victims, 300 + i, stamp_of(200 + i));
	assert_true(kvc_victims_take(&victims, &first));
	assert_false(first.stamp & IN_MAIN);
}

static void little_is_kept_free(void **state)
{
	(void)state;
	assert_int_equal(kvc_order_reserve(0), 0);
	assert_int_equal(kvc_order_reserve(15), 0);
	assert_int_equal(kvc_order_reserve(160), 10);
	assert_int_equal(kvc_order_reserve(6400), 64);
	assert_int_equal(kvc_order_reserve(1000000), 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_earliest_goes_first),
		cmocka_unit_test(the_same_object_is_kept_once),
		cmocka_unit_test(of_too_many_the_earliest_are_kept),
		cmocka_unit_test(one_that_is_put_back_goes_by_its_later_rank),
		cmocka_unit_test(new_ones_go_while_they_are_many),
		cmocka_unit_test(little_is_kept_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
