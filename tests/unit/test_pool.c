/* SPDX-License-Identifier: Apache-2.0 */
/* core/cleaner_pool.c: of the groups of all hash folders that are known, the first one goes. */
#include "core/cleaner_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct kvc_group *make_group(uint64_t rank, bool over)
{
	struct kvc_group *group = calloc(1, sizeof(*group) + 1);

	assert_non_null(group);
	group->rank = rank;
	group->over = over;
	return group;
}

static void put(struct kvc_pool *pool, uint32_t hash, const uint64_t *ranks, uint32_t count)
{
	struct kvc_group **groups = malloc((count + 1) * sizeof(struct kvc_group *));

	assert_non_null(groups);
	for (uint32_t i = 0; i < count; i++)
		groups[i] = make_group(ranks[i], false);
	kvc_pool_put(pool, hash, groups, count);
}

static void expect_first(struct kvc_pool *pool, uint64_t rank)
{
	struct kvc_group *group;

	assert_non_null(kvc_pool_first(pool));
	assert_int_equal(kvc_pool_first(pool)->rank, rank);
	group = kvc_pool_take(pool);
	assert_int_equal(group->rank, rank);
	free(group);
}

static void expect_none(struct kvc_pool *pool)
{
	assert_int_equal(pool->count, 0);
	assert_null(kvc_pool_first(pool));
	assert_null(kvc_pool_take(pool));
}

static void test_the_first_of_all_folders_goes(void **state)
{
	static struct kvc_pool pool;

	(void)state;
	kvc_pool_drop(&pool);
	expect_none(&pool);
	put(&pool, 0, (const uint64_t[]){ 80, 16, 48 }, 3);
	put(&pool, 255, (const uint64_t[]){ 32, 8 }, 2);
	put(&pool, 7, (const uint64_t[]){ 64 }, 1);
	put(&pool, 8, NULL, 0);
	assert_int_equal(pool.count, 6);
	expect_first(&pool, 8);
	for (uint64_t rank = 16; rank <= 80; rank += 16)
		expect_first(&pool, rank);
	expect_none(&pool);
}

/* What is known of a folder that is looked at again is what was seen now. */
static void test_a_folder_is_replaced(void **state)
{
	static struct kvc_pool pool;

	(void)state;
	kvc_pool_drop(&pool);
	put(&pool, 3, (const uint64_t[]){ 8, 24 }, 2);
	put(&pool, 4, (const uint64_t[]){ 40 }, 1);
	put(&pool, 3, (const uint64_t[]){ 56, 16 }, 2);
	assert_int_equal(pool.count, 3);
	expect_first(&pool, 16);
	kvc_pool_drop_hash(&pool, 4);
	expect_first(&pool, 56);
	expect_none(&pool);
	put(&pool, 9, (const uint64_t[]){ 8 }, 1);
	pool.credit = pool.looked = 5;
	kvc_pool_drop(&pool);
	assert_true(pool.credit == 0 && pool.looked == 0);
	expect_none(&pool);
}

/* Whose tenant has more than its share is first, in the order among these. */
static void test_who_is_over_its_share_goes_first(void **state)
{
	static struct kvc_pool pool;
	struct kvc_group **groups = malloc(2 * sizeof(struct kvc_group *));

	(void)state;
	assert_non_null(groups);
	kvc_pool_drop(&pool);
	groups[0] = make_group(UINT64_C(1) << 60, true);
	groups[1] = make_group(8, false);
	kvc_pool_put(&pool, 1, groups, 2);
	groups = malloc(sizeof(struct kvc_group *));
	assert_non_null(groups);
	groups[0] = make_group(UINT64_C(1) << 59, true);
	kvc_pool_put(&pool, 2, groups, 1);
	expect_first(&pool, UINT64_C(1) << 59);
	expect_first(&pool, UINT64_C(1) << 60);
	expect_first(&pool, 8);
	expect_none(&pool);
}

/* One that was used since then goes when its turn comes again. */
static void test_one_is_put_back(void **state)
{
	static struct kvc_pool pool;
	struct kvc_group *group;

	(void)state;
	kvc_pool_drop(&pool);
	put(&pool, 0, (const uint64_t[]){ 8, 24, 40 }, 3);
	put(&pool, 1, (const uint64_t[]){ 16, 32 }, 2);
	for (uint64_t i = 0; i < 5; i++) { /* everything moves behind everything */
		group = kvc_pool_take(&pool);
		assert_int_equal(group->rank, 8 + 8 * i);
		group->rank += 35;
		group->hash[0] = '0';
		group->hash[1] = i % 2 ? '1' : '0';
		kvc_pool_put_back(&pool, group);
		assert_int_equal(pool.count, 5);
	}
	for (uint64_t i = 0; i < 5; i++)
		expect_first(&pool, 43 + 8 * i);
	expect_none(&pool);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_first_of_all_folders_goes),
		cmocka_unit_test(test_a_folder_is_replaced),
		cmocka_unit_test(test_who_is_over_its_share_goes_first),
		cmocka_unit_test(test_one_is_put_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
