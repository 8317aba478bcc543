/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host layouts: tensors of tokens x layers x heads. Each element says which part, page, token,
 * layer and head it is, so a wrong order shows.
 */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS	   4u /* a page */
#define PAGES	   5u
#define LAYERS	   3u
#define HEAD_BYTES 48u

/* A pool of two tensors, K and V. first_head: number of its first head in the whole model. */
struct tensors {
	struct kvc_pool *pool;
	unsigned char *part[2];
	size_t bytes;
	uint32_t layout;
	uint32_t heads;
	uint32_t first_head;
};

static size_t place(const struct tensors *t, size_t page, size_t token, size_t layer, size_t head)
{
	size_t all_tokens = PAGES * TOKENS;
	size_t n;

	switch (t->layout) {
	case KVC_LAYOUT_PAGE_FIRST:
		n = ((page * TOKENS + token) * LAYERS + layer) * t->heads + head;
		break;
	case KVC_LAYOUT_PAGE_FIRST_DIRECT:
		n = ((page * LAYERS + layer) * TOKENS + token) * t->heads + head;
		break;
	case KVC_LAYOUT_PAGE_HEAD:
		n = ((page * t->heads + head) * TOKENS + token) * LAYERS + layer;
		break;
	default: /* layer_first */
		n = (layer * all_tokens + page * TOKENS + token) * t->heads + head;
		break;
	}
	return n * HEAD_BYTES;
}

static uint64_t element(const struct tensors *t, size_t part, uint64_t content, size_t token,
			size_t layer, size_t head)
{
	return mix(content, ((part * 100 + token) * 100 + layer) * 100 + head + t->first_head);
}

static void tensors_fill(struct tensors *t, size_t page, uint64_t content)
{
	for (size_t part = 0; part < 2; part++)
		for (size_t token = 0; token < TOKENS; token++)
			for (size_t layer = 0; layer < LAYERS; layer++)
				for (size_t head = 0; head < t->heads; head++)
					bytes_fill(t->part[part] +
							   place(t, page, token, layer, head),
						   HEAD_BYTES,
						   element(t, part, content, token, layer, head));
}

static bool tensors_match(const struct tensors *t, size_t page, uint64_t content)
{
	for (size_t part = 0; part < 2; part++)
		for (size_t token = 0; token < TOKENS; token++)
			for (size_t layer = 0; layer < LAYERS; layer++)
				for (size_t head = 0; head < t->heads; head++)
					if (!bytes_match(t->part[part] +
								 place(t, page, token, layer, head),
							 HEAD_BYTES,
							 element(t, part, content, token, layer,
								 head)))
						return false;
	return true;
}

static void tensors_wipe(struct tensors *t)
{
	for (size_t part = 0; part < 2; part++)
		memset(t->part[part], 0xAA, t->bytes);
}

static void tensors_open(struct tensors *t, struct kvc_namespace *ns, uint32_t layout,
			 uint32_t heads, uint32_t first_head)
{
	struct kvc_part parts[2];
	struct kvc_pool_params params = {
		.size = sizeof(params),
		.name = "kv",
		.parts = parts,
		.part_count = 2,
		.host_layout = layout,
		.page_count = 0,
	};
	int rc;

	*t = (struct tensors){ .layout = layout, .heads = heads, .first_head = first_head };
	t->bytes = (size_t)PAGES * TOKENS * LAYERS * heads * HEAD_BYTES;
	for (size_t i = 0; i < 2; i++) {
		t->part[i] = malloc(t->bytes);
		assert_non_null(t->part[i]);
		parts[i] = (struct kvc_part){
			.size = sizeof(parts[i]),
			.base = t->part[i],
			.token_count = (uint64_t)PAGES * TOKENS,
			.layer_count = LAYERS,
			.head_count = heads,
			.head_bytes = HEAD_BYTES,
		};
	}
	/* HiCacheNixl stores these as one object of a page. */
	if (suite.nixl && layout == KVC_LAYOUT_LAYER_FIRST)
		params.flags = KVC_POOL_COPY_MODE;
	rc = kvc_pool_open(ns, &params, &t->pool);
	if (rc != 0)
		fail_msg("pool: %s: %s", strerror(-rc), kvc_last_error());
	tensors_wipe(t);
}

static void tensors_close(struct tensors *t)
{
	assert_int_equal(kvc_pool_close(t->pool), 0);
	free(t->part[0]);
	free(t->part[1]);
}

static void tensors_run(struct kvc_store *store, struct tensors *t, int op, const struct keys *keys,
			struct kvc_result *results)
{
	struct pages pages = { .pool = t->pool };
	int64_t indices[PAGES];

	for (int i = 0; i < (int)PAGES; i++)
		indices[i] = (int)PAGES - 1 - i;
	batch_at(store, &pages, op, keys->keys, indices, PAGES, 0, 0, results);
}

static void tensors_store(struct kvc_store *store, struct tensors *t, const struct keys *keys)
{
	struct kvc_result results[PAGES];

	for (size_t i = 0; i < PAGES; i++)
		tensors_fill(t, PAGES - 1 - i, key_content(keys->keys[i]));
	tensors_run(store, t, KVC_SET, keys, results);
	expect_all(results, PAGES, KVC_OK);
}

/* Gets all pages: OK with the right element at every place, or all MISS. */
static void tensors_expect(struct kvc_store *store, struct tensors *t, const struct keys *keys,
			   int status)
{
	struct kvc_result results[PAGES];

	tensors_wipe(t);
	tensors_run(store, t, KVC_GET, keys, results);
	expect_all(results, PAGES, status);
	for (size_t i = 0; status == KVC_OK && i < PAGES; i++)
		assert_true(tensors_match(t, PAGES - 1 - i, key_content(keys->keys[i])));
}

static const uint32_t layouts[] = {
	KVC_LAYOUT_PAGE_FIRST,
	KVC_LAYOUT_PAGE_FIRST_DIRECT,
	KVC_LAYOUT_PAGE_HEAD,
	KVC_LAYOUT_LAYER_FIRST,
};

static void test_every_layout(void **state)
{
	struct kvc_namespace_params params = namespace_params("layouts");
	struct keys keys;

	(void)state;
	keys_make(&keys, "layouts", PAGES);
	for (size_t i = 0; i < 4; i++) {
		struct kvc_store *store = suite_open();
		struct kvc_namespace *ns = namespace_must_open(store, &params);
		struct kvc_pool_info info = { .size = sizeof(info) };
		struct tensors t;

		tensors_open(&t, ns, layouts[i], 2, 0);
		assert_int_equal(kvc_pool_query(t.pool, &info), 0);
		assert_int_equal(info.page_bytes, 2 * TOKENS * LAYERS * 2 * HEAD_BYTES);
		tensors_store(store, &t, &keys);
		tensors_expect(store, &t, &keys, KVC_OK);
		tensors_close(&t);
		assert_int_equal(kvc_namespace_close(ns), 0);
		store_must_close(store);
	}
	keys_free(&keys);
}

/* layer_first gathers to the very bytes of page_first_direct: both find the same objects. The
 * other orders are other objects, so that nobody takes one for the other. */
static void test_orders_that_share_objects(void **state)
{
	struct kvc_namespace_params params = namespace_params("orders");
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct tensors t[4];
	struct keys keys;

	(void)state;
	if (suite.nixl)
		return; /* its names do not tell the order */
	store = suite_open();
	ns = namespace_must_open(store, &params);
	keys_make(&keys, "orders", PAGES);
	for (size_t i = 0; i < 4; i++)
		tensors_open(&t[i], ns, layouts[i], 2, 0);
	tensors_store(store, &t[3], &keys);
	tensors_expect(store, &t[0], &keys, KVC_MISS);
	tensors_expect(store, &t[1], &keys, KVC_OK);
	tensors_expect(store, &t[2], &keys, KVC_MISS);
	tensors_expect(store, &t[3], &keys, KVC_OK);
	tensors_store(store, &t[0], &keys);
	tensors_store(store, &t[2], &keys);
	for (size_t i = 0; i < 4; i++)
		tensors_expect(store, &t[i], &keys, KVC_OK);
	for (size_t i = 0; i < 4; i++)
		tensors_close(&t[i]);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
	keys_free(&keys);
}

struct rank {
	struct kvc_namespace *ns;
	struct tensors tensors;
};

static void rank_open(struct rank *rank, struct kvc_store *store, uint32_t tp_size,
		      uint32_t tp_rank)
{
	struct kvc_namespace_params params = namespace_params("head groups");
	uint32_t heads = 8 / tp_size;

	params.tp_size = tp_size;
	params.tp_rank = tp_rank;
	params.tp_lcm_size = 4;
	rank->ns = namespace_must_open(store, &params);
	tensors_open(&rank->tensors, rank->ns, KVC_LAYOUT_PAGE_HEAD, heads, tp_rank * heads);
}

static void rank_close(struct rank *rank)
{
	tensors_close(&rank->tensors);
	assert_int_equal(kvc_namespace_close(rank->ns), 0);
}

/* Written by tp 2 as four head groups; read by tp 4, tp 1 and tp 2 (R12). */
static void test_head_groups_are_read_by_other_tp_sizes(void **state)
{
	struct kvc_store *store;
	struct keys keys;
	struct rank rank;

	(void)state;
	if (suite.nixl)
		return; /* its names have no head groups */
	store = suite_open();
	keys_make(&keys, "groups", PAGES);
	rank_open(&rank, store, 2, 0);
	tensors_store(store, &rank.tensors, &keys);
	tensors_expect(store, &rank.tensors, &keys, KVC_OK);
	rank_close(&rank);
	/* Half of the groups are there: a rank that needs all of them misses. */
	rank_open(&rank, store, 1, 0);
	tensors_expect(store, &rank.tensors, &keys, KVC_MISS);
	rank_close(&rank);
	rank_open(&rank, store, 2, 1);
	tensors_expect(store, &rank.tensors, &keys, KVC_MISS);
	tensors_store(store, &rank.tensors, &keys);
	rank_close(&rank);
	for (uint32_t tp_size = 1; tp_size <= 4; tp_size *= 2) {
		for (uint32_t r = 0; r < tp_size; r++) {
			rank_open(&rank, store, tp_size, r);
			tensors_expect(store, &rank.tensors, &keys, KVC_OK);
			rank_close(&rank);
		}
	}
	store_must_close(store);
	keys_free(&keys);
}

struct tests layout_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_layout),
		cmocka_unit_test(test_orders_that_share_objects),
		cmocka_unit_test(test_head_groups_are_read_by_other_tp_sizes),
	};

	return TESTS_OF(tests);
}
