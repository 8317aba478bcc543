/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	PAGES_MAX = 40,
	POOLS_MAX = 4,
	ROUNDS = 20000
};

static uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static bool range_present(const struct kvc_policy_pool *pool, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		if (!pool->present[i])
			return false;
	return true;
}

/* The definition, word by word. */
static bool can_restore(const struct kvc_policy_pool *pool, size_t n)
{
	size_t pages = pool->pages ? pool->pages : 1;

	switch (pool->policy) {
	case KVC_POLICY_TRAILING_PAGES:
		return range_present(pool, n > pages ? n - pages : 0, n);
	case KVC_POLICY_BLOCK_GROUPS:
		return n % pages == 0 && range_present(pool, 0, n);
	default:
		return range_present(pool, 0, n);
	}
}

struct world {
	struct kvc_policy_pool pools[POOLS_MAX];
	uint8_t present[POOLS_MAX][PAGES_MAX];
	size_t pool_count, page_count;
};

static void make_world(struct world *w, uint64_t *seed, uint32_t policies)
{
	w->pool_count = next_random(seed) % (POOLS_MAX + 1);
	w->page_count = next_random(seed) % (PAGES_MAX + 1);
	for (size_t i = 0; i < w->pool_count; i++) {
		uint64_t holes = 1 + next_random(seed) % 20;

		for (size_t j = 0; j < w->page_count; j++)
			w->present[i][j] = next_random(seed) % holes != 0 || holes == 1;
		w->pools[i] = (struct kvc_policy_pool){
			.size = sizeof(w->pools[i]),
			.present = w->present[i],
			.policy = (uint32_t)(next_random(seed) % policies),
			.pages = (uint32_t)(next_random(seed) % 6),
		};
	}
}

static void answers_are_those_of_the_definition(void **state)
{
	uint64_t seed = 4711;

	(void)state;
	for (size_t round = 0; round < ROUNDS; round++) {
		size_t best = 0, count = 0, got;
		uint8_t out[PAGES_MAX + 2];
		struct world w;

		make_world(&w, &seed, 3);
		memset(out, 0x5a, sizeof(out));
		got = kvc_policy_restorable(w.pools, w.pool_count, w.page_count, out);
		for (size_t n = 0; n <= w.page_count; n++) {
			bool all = true;

			for (size_t i = 0; i < w.pool_count; i++)
				all = all && can_restore(&w.pools[i], n);
			if (out[n] != all)
				fail_msg("seed 4711, round %zu, n %zu", round, n);
			count += all;
			best = all ? n : best;
		}
		assert_int_equal(got, count);
		assert_int_equal(out[w.page_count + 1], 0x5a);
		if (kvc_policy_prefix(w.pools, w.pool_count, w.page_count) != best)
			fail_msg("seed 4711, round %zu: not %zu", round, best);
	}
}

/* R24: what sglang's file backend counts, by its rules: kv is a leading run; a side pool's boundary
 * is its leading run (all_pages), or the longest prefix that ends in `pages` pages which are there
 * (trailing_pages), within kv's; the hit is the least boundary. */
static size_t sglang_boundary(const struct kvc_policy_pool *pool, size_t kv_pages)
{
	size_t trailing = pool->pages > 1 ? pool->pages : 1;

	if (pool->policy == KVC_POLICY_ALL_PAGES) {
		for (size_t i = 0; i < kv_pages; i++)
			if (!pool->present[i])
				return i;
		return kv_pages;
	}
	for (size_t length = kv_pages; length > 0; length--)
		if (range_present(pool, length > trailing ? length - trailing : 0, length))
			return length;
	return 0;
}

static void side_pools_count_as_in_sglang(void **state)
{
	uint64_t seed = 815;

	(void)state;
	for (size_t round = 0; round < ROUNDS; round++) {
		size_t kv_pages, least, ours, joint;
		struct world w;

		make_world(&w, &seed, 2);
		if (w.pool_count == 0)
			continue;
		w.pools[0].policy = KVC_POLICY_ALL_PAGES;
		kv_pages = sglang_boundary(&w.pools[0], w.page_count);
		assert_int_equal(kvc_policy_prefix(w.pools, 1, w.page_count), kv_pages);
		least = ours = kv_pages;
		for (size_t i = 1; i < w.pool_count; i++) {
			const struct kvc_policy_pool pair[2] = { w.pools[0], w.pools[i] };
			size_t theirs = sglang_boundary(&w.pools[i], kv_pages);
			size_t one = kvc_policy_prefix(pair, 2, w.page_count);

			assert_int_equal(one, theirs);
			least = theirs < least ? theirs : least;
			ours = one < ours ? one : ours;
		}
		assert_int_equal(ours, least);
		joint = kvc_policy_prefix(w.pools, w.pool_count, w.page_count);
		assert_true(joint <= least);
		if (w.pool_count == 2)
			assert_int_equal(joint, least);
	}
}

static void joint_prefix_can_be_restored_where_the_least_cannot(void **state)
{
	static const uint8_t kv[6] = { 1, 1, 1, 1, 1, 1 }, a[6] = { 0, 1, 0, 0, 0, 1 },
			     b[6] = { 1, 1, 1, 1, 0, 0 };
	const struct kvc_policy_pool pools[] = {
		{ sizeof(pools[0]), kv, KVC_POLICY_ALL_PAGES, 0 },
		{ sizeof(pools[0]), a, KVC_POLICY_TRAILING_PAGES, 1 },
		{ sizeof(pools[0]), b, KVC_POLICY_ALL_PAGES, 0 },
	};
	uint8_t out[7];

	(void)state;
	assert_int_equal(kvc_policy_prefix(pools, 2, 6), 6);
	assert_int_equal(kvc_policy_prefix(pools, 3, 6), 2);
	assert_int_equal(kvc_policy_restorable(pools, 3, 6, out), 2);
	assert_true(out[0] && out[2]);
}

static void odd_input_restores_nothing(void **state)
{
	static const uint8_t there[2] = { 1, 1 };
	struct kvc_policy_pool pool = { sizeof(pool), NULL, KVC_POLICY_ALL_PAGES, 0 };
	uint8_t out[3];

	(void)state;
	assert_int_equal(kvc_policy_prefix(&pool, 1, 2), 0);
	assert_int_equal(kvc_policy_restorable(&pool, 1, 2, out), 1);
	pool.present = there;
	pool.policy = 3;
	assert_int_equal(kvc_policy_prefix(&pool, 1, 2), 0);
	assert_non_null(strstr(kvc_last_error(), "pools[0].policy = 3"));
	pool.policy = KVC_POLICY_ALL_PAGES;
	pool.size = 4;
	assert_int_equal(kvc_policy_prefix(&pool, 1, 2), 0);
	assert_non_null(strstr(kvc_last_error(), "size = 4"));
	assert_int_equal(kvc_policy_prefix(NULL, 0, 5), 5);
	assert_int_equal(kvc_policy_restorable(NULL, 0, 2, out), 3);
	assert_int_equal(kvc_policy_prefix(NULL, 0, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_are_those_of_the_definition),
		cmocka_unit_test(side_pools_count_as_in_sglang),
		cmocka_unit_test(joint_prefix_can_be_restored_where_the_least_cannot),
		cmocka_unit_test(odd_input_restores_nothing),
	};

	return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
