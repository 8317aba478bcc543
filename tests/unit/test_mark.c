/* SPDX-License-Identifier: Apache-2.0 */
/* core/mark.c: what failed twice is a miss for 5 s (R23). */
#include "core/mark.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct kvc_marks *marks;

static int setup(void **state)
{
	(void)state;
	marks = calloc(1, sizeof(*marks));
	return marks ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	free(marks);
	return 0;
}

/* Makes the mark that much older. */
static void age(uint64_t id, uint64_t ms)
{
	struct kvc_mark *mark = &marks->marks[id % KVC_MARKS];

	atomic_fetch_sub(&mark->state, ms << 8);
}

static void r23_two_failures_make_a_mark_and_a_set_ends_it(void **state)
{
	(void)state;
	assert_false(kvc_mark_active(marks, 7));
	kvc_mark_failed(marks, 7);
	assert_false(kvc_mark_active(marks, 7));
	kvc_mark_failed(marks, 7);
	assert_true(kvc_mark_active(marks, 7));
	kvc_mark_failed(marks, 7);
	assert_true(kvc_mark_active(marks, 7));
	assert_false(kvc_mark_active(marks, 8));
	kvc_mark_clear(marks, 8);
	assert_true(kvc_mark_active(marks, 7));
	kvc_mark_clear(marks, 7);
	assert_false(kvc_mark_active(marks, 7));
	assert_int_equal(marks->used, 0);
	kvc_mark_clear(marks, 7);
	assert_int_equal(marks->used, 0);
	kvc_mark_failed(marks, 7);
	assert_false(kvc_mark_active(marks, 7)); /* it counts from the beginning */
}

static void a_mark_ends_by_itself(void **state)
{
	(void)state;
	kvc_mark_failed(marks, 7);
	kvc_mark_failed(marks, 7);
	age(7, 4000);
	assert_true(kvc_mark_active(marks, 7));
	age(7, 1001);
	assert_false(kvc_mark_active(marks, 7));
	kvc_mark_failed(marks, 7); /* the first of a new two */
	assert_false(kvc_mark_active(marks, 7));
	kvc_mark_failed(marks, 7);
	assert_true(kvc_mark_active(marks, 7));
}

static void failures_far_apart_make_no_mark(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++) {
		kvc_mark_failed(marks, 7);
		assert_false(kvc_mark_active(marks, 7));
		age(7, 5001);
	}
}

static void ids_that_meet_displace_each_other(void **state)
{
	const uint64_t other = 7 + KVC_MARKS;

	(void)state;
	kvc_mark_failed(marks, 7);
	kvc_mark_failed(marks, 7);
	kvc_mark_failed(marks, other);
	assert_false(kvc_mark_active(marks, 7));
	assert_false(kvc_mark_active(marks, other)); /* 7's failures are not its own */
	kvc_mark_failed(marks, other);
	assert_true(kvc_mark_active(marks, other));
	assert_int_equal(marks->used, 1);
}

static void *hammer(void *context)
{
	const uint64_t first = (uint64_t)(uintptr_t)context;

	for (uint64_t i = 0; i < 20000; i++) {
		const uint64_t id = 1 + first % 3 + i % 5 * KVC_MARKS;

		kvc_mark_failed(marks, id);
		(void)kvc_mark_active(marks, id);
		kvc_mark_clear(marks, id);
	}
	return NULL;
}

static void threads_may_meet(void **state)
{
	pthread_t threads[4];

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, hammer, (void *)i), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	kvc_mark_failed(marks, 100);
	kvc_mark_failed(marks, 100);
	assert_true(kvc_mark_active(marks, 100));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(r23_two_failures_make_a_mark_and_a_set_ends_it),
		TEST(a_mark_ends_by_itself),
		TEST(failures_far_apart_make_no_mark),
		TEST(ids_that_meet_displace_each_other),
		TEST(threads_may_meet),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
