/* SPDX-License-Identifier: Apache-2.0 */
/* core/order.h: who goes first; core/ghost.h: who went not long ago. */
#include "counter_helper.h"

#include "core/ghost.h"
#include "core/order.h"

#define STEP KVC_STAMP_STEP

static uint64_t at(uint64_t time)
{
	return time * STEP;
}

static void test_names(void **state)
{
	(void)state;
	assert_ptr_equal(kvc_order_of("lru"), &kvc_order_lru);
	assert_ptr_equal(kvc_order_of("fifo"), &kvc_order_fifo);
	assert_ptr_equal(kvc_order_of("s3fifo"), &kvc_order_s3fifo);
	assert_null(kvc_order_of("lfu"));
}

static void test_lru_goes_by_the_last_use(void **state)
{
	const struct kvc_order *lru = &kvc_order_lru;
	const uint64_t old = lru->stored(at(1), false), young = lru->stored(at(2), true);

	(void)state;
	assert_true(lru->rank(old, false) < lru->rank(young, false));
	assert_true(lru->rank(lru->used(old, at(3)), false) > lru->rank(young, false));
}

static void test_fifo_goes_by_the_time_of_storing(void **state)
{
	const struct kvc_order *fifo = &kvc_order_fifo;
	const uint64_t old = fifo->stored(at(1), false), young = fifo->stored(at(2), false);

	(void)state;
	assert_int_equal(fifo->used(old, at(3)), old);
	assert_true(fifo->rank(old, false) < fifo->rank(young, false));
	assert_int_equal(fifo->spared(old, at(9)), KVC_ORDER_GOES);
	assert_false(kvc_order_new_ones(fifo, &old, 1));
}

/* One after the other, as a queue would have them. */
static void test_s3fifo(void **state)
{
	const struct kvc_order *order = &kvc_order_s3fifo;
	uint64_t once = order->stored(at(1), false), used = order->stored(at(2), false);
	const uint64_t back = order->stored(at(3), true);
	uint64_t sample[20];

	(void)state;
	used = order->used(used, at(4));
	/* What is new goes before what is older and in the main queue, and never was used. */
	assert_true(order->rank(once, true) < order->rank(back, true));
	assert_true(order->rank(used, true) < order->rank(back, true));
	assert_true(order->rank(back, false) < order->rank(once, false));
	assert_int_equal(order->spared(once, at(5)), KVC_ORDER_GOES);
	/* A use takes it to the main queue, where it has none left. */
	used = order->spared(used, at(5));
	assert_true(order->rank(used, false) > order->rank(back, false));
	assert_int_equal(order->spared(used, at(6)), KVC_ORDER_GOES);
	/* There each use is worth one more round, three at most. */
	for (unsigned i = 0; i < 5; i++)
		used = order->used(used, at(7));
	for (unsigned i = 0; i < 3; i++) {
		used = order->spared(used, at(8 + i));
		assert_int_not_equal(used, KVC_ORDER_GOES);
		assert_int_equal(order->rank(used, false) / STEP, 8 + i);
	}
	assert_int_equal(order->spared(used, at(11)), KVC_ORDER_GOES);

	for (unsigned i = 0; i < 20; i++)
		sample[i] = back;
	sample[0] = once;
	assert_false(kvc_order_new_ones(order, sample, 20)); /* 5 % */
	sample[1] = once;
	assert_true(kvc_order_new_ones(order, sample, 20)); /* 10 % */
}

static void test_a_use_soon_after_the_last_is_not_noted(void **state)
{
	(void)state;
	assert_false(kvc_order_is_due(at(100), at(100), 0));
	assert_true(kvc_order_is_due(at(100), at(101), 0));
	assert_false(kvc_order_is_due(at(100), at(110), 640));
	assert_true(kvc_order_is_due(at(100), at(111), 640));
	/* A clock behind it (another process's, an old stamp) does nothing. */
	assert_false(kvc_order_is_due(at(100), at(5), 640));
}

/* ---------------------------------------------------------------- ghosts */

static struct kvc_ghosts *ghosts_of(const char *name, uint64_t device_bytes)
{
	struct kvc_ghosts *ghosts = NULL;

	assert_int_equal(kvc_ghost_open(name ? in_folder(name) : NULL, 0600, device_bytes, &ghosts),
			 0);
	return ghosts;
}

static void test_ghosts_stay(void **state)
{
	struct kvc_ghosts *ghosts = ghosts_of(NULL, 0);

	(void)state;
	assert_false(kvc_ghost_has(ghosts, 0));
	assert_false(kvc_ghost_has(ghosts, 42));
	kvc_ghost_add(ghosts, 42);
	kvc_ghost_add(ghosts, 42);
	assert_true(kvc_ghost_has(ghosts, 42));
	assert_false(kvc_ghost_has(ghosts, 43));
	kvc_ghost_add(ghosts, 43);
	assert_true(kvc_ghost_has(ghosts, 42));
	assert_true(kvc_ghost_has(ghosts, 43));
	kvc_ghost_close(ghosts);
}

/* The 8 latest of a bucket stay. */
static void test_the_earliest_ghost_of_a_bucket_is_forgotten(void **state)
{
	struct kvc_ghosts *ghosts = ghosts_of(NULL, 0);
	const uint64_t step = kvc_ghost_entries(0) << 8;

	(void)state;
	for (uint64_t i = 1; i <= 9; i++)
		kvc_ghost_add(ghosts, i * step);
	assert_false(kvc_ghost_has(ghosts, step));
	for (uint64_t i = 2; i <= 9; i++)
		assert_true(kvc_ghost_has(ghosts, i * step));
	kvc_ghost_close(ghosts);
}

static void test_ghosts_are_shared_and_stay(void **state)
{
	struct kvc_ghosts *one = ghosts_of("ghosts", 1 << 30), *two = ghosts_of("ghosts", 1 << 30);

	(void)state;
	kvc_ghost_add(one, 7);
	assert_true(kvc_ghost_has(two, 7));
	kvc_ghost_close(one);
	kvc_ghost_close(two);
	one = ghosts_of("ghosts", 1 << 30);
	assert_true(kvc_ghost_has(one, 7));
	kvc_ghost_close(one);
}

static void test_the_list_is_as_large_as_the_device_is_worth(void **state)
{
	(void)state;
	assert_int_equal(kvc_ghost_entries(0), 512);
	assert_int_equal(kvc_ghost_entries(UINT64_C(1) << 30), 16384);
	assert_int_equal(kvc_ghost_entries(UINT64_MAX), KVC_GHOST_ENTRIES_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_lru_goes_by_the_last_use),
		cmocka_unit_test(test_fifo_goes_by_the_time_of_storing),
		cmocka_unit_test(test_s3fifo),
		cmocka_unit_test(test_a_use_soon_after_the_last_is_not_noted),
		cmocka_unit_test(test_ghosts_stay),
		cmocka_unit_test(test_the_earliest_ghost_of_a_bucket_is_forgotten),
		cmocka_unit_test_setup_teardown(test_ghosts_are_shared_and_stay, make_folder,
						remove_folder),
		cmocka_unit_test(test_the_list_is_as_large_as_the_device_is_worth),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
