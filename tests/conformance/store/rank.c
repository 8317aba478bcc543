/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks, and what makes pages of one model other pages. */
#include "suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define VARIANTS 8u

/* The same key under several namespaces or ranks, each with its own content. */
struct variant {
	struct kvc_namespace *ns;
	struct pages pages;
};

static void variant_open(struct variant *variant, struct kvc_store *store,
			 const struct kvc_namespace_params *params)
{
	variant->ns = namespace_must_open(store, params);
	pages_open_simple(&variant->pages, variant->ns, 1, 4096);
}

static void variant_close(struct variant *variant)
{
	pages_close(&variant->pages);
	assert_int_equal(kvc_namespace_close(variant->ns), 0);
}

static struct kvc_result variant_set(struct kvc_store *store, struct variant *variant,
				     uint64_t content)
{
	struct kvc_key key = key_of("one-key");
	struct kvc_result result;

	pages_fill(&variant->pages, 0, content);
	batch(store, &variant->pages, KVC_SET, &key, 1, 0, &result);
	return result;
}

/* Its status; when OK the bytes must be content's. */
static int variant_get(struct kvc_store *store, struct variant *variant, uint64_t content)
{
	struct kvc_key key = key_of("one-key");
	struct kvc_result result;

	pages_wipe(&variant->pages);
	batch(store, &variant->pages, KVC_GET, &key, 1, 0, &result);
	if (result.status == KVC_OK)
		assert_true(pages_match(&variant->pages, 0, content));
	return result.status;
}

/* All variants keep their pages apart from the others'. */
static void expect_apart(const struct kvc_namespace_params *params, size_t count)
{
	struct kvc_store *store = suite_open();
	struct variant variants[VARIANTS];

	for (size_t i = 0; i < count; i++)
		variant_open(&variants[i], store, &params[i]);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(variant_get(store, &variants[i], 0), KVC_MISS);
		expect_result(variant_set(store, &variants[i], 100 + i), KVC_OK, KVC_CAUSE_NONE);
	}
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(variant_get(store, &variants[i], 100 + i), KVC_OK);
		variant_close(&variants[i]);
	}
	store_must_close(store);
}

/* Names of nixl naming do not tell weight sets apart. Neither gets the other's bytes, and neither
 * takes the other's object away; whose gets failed twice may write. */
static void test_namesakes_of_other_weights_keep_theirs(void **state)
{
	struct kvc_namespace_params params = namespace_params("weights");
	struct variant first, second;
	struct kvc_store *store;

	(void)state;
	if (!suite.nixl)
		return;
	store = suite_open();
	params.identity = "revision 1";
	variant_open(&first, store, &params);
	params.identity = "revision 2";
	variant_open(&second, store, &params);
	expect_result(variant_set(store, &first, 1), KVC_OK, KVC_CAUSE_NONE);
	expect_result(variant_set(store, &second, 2), KVC_OK, KVC_CAUSE_EXISTED);
	assert_int_equal(variant_get(store, &second, 2), KVC_MISS);
	assert_int_equal(variant_get(store, &first, 1), KVC_OK);
	assert_int_equal(variant_get(store, &second, 2), KVC_MISS);
	expect_result(variant_set(store, &second, 2), KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(variant_get(store, &second, 2), KVC_OK);
	assert_int_equal(variant_get(store, &first, 1), KVC_MISS);
	variant_close(&second);
	variant_close(&first);
	store_must_close(store);
}

/* R12 */
static void test_tp_ranks_have_their_own_pages(void **state)
{
	struct kvc_namespace_params params[4];

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		params[i] = namespace_params("tp");
		params[i].tp_size = 4;
		params[i].tp_rank = i;
	}
	expect_apart(params, 4);
}

static void test_pp_and_cp_ranks_have_their_own_pages(void **state)
{
	struct kvc_namespace_params params[8];

	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		params[i] = namespace_params("pp cp");
		params[i].pp_size = 2;
		params[i].pp_rank = i & 1;
		params[i].cp_size = 2;
		params[i].cp_rank = (i >> 1) & 1;
		params[i].tp_size = 2;
		params[i].tp_rank = i >> 2;
	}
	expect_apart(params, 8);
}

static void test_dcp_ranks_have_their_own_pages(void **state)
{
	struct kvc_namespace_params params[2];

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		params[i] = namespace_params("dcp");
		params[i].is_mla = 1;
		params[i].tp_size = 2;
		params[i].tp_rank = i;
		params[i].dcp_size = 2;
		params[i].dcp_rank = i;
		params[i].logical_page_tokens = 8;
	}
	expect_apart(params, 2);
}

static struct kvc_namespace_params mla(uint32_t tp_rank, uint32_t pp_rank)
{
	struct kvc_namespace_params params = namespace_params("mla");

	params.is_mla = 1;
	params.tp_size = 4;
	params.tp_rank = tp_rank;
	params.pp_size = 2;
	params.pp_rank = pp_rank;
	return params;
}

/* R12, R13: MLA pages are shared over tp, not over pp; rank 0 writes them. */
static void test_mla_is_written_by_one_rank(void **state)
{
	struct kvc_namespace_params params[3] = { mla(0, 0), mla(1, 0), mla(0, 1) };
	struct kvc_store *store = suite_open();
	struct variant v[3];
	struct kvc_key key = key_of("one-key");
	const int64_t index = 0;
	struct kvc_transfer transfer;
	struct kvc_result result;
	struct kvc_stats before;
	struct kvc_stats after;

	(void)state;
	for (size_t i = 0; i < 3; i++)
		variant_open(&v[i], store, &params[i]);
	before = store_stats(store);
	expect_result(variant_set(store, &v[1], 11), KVC_OK, KVC_CAUSE_NOT_WRITER);
	after = store_stats(store);
	assert_int_equal(after.operations[KVC_SET].bytes, before.operations[KVC_SET].bytes);
	transfer = transfer_of(&v[1].pages, KVC_SET, &key, 1, &index, &result);
	assert_int_equal(kvc_batch_try(store, &transfer, 1), 0);
	transfer_check(&transfer);
	expect_result(result, KVC_OK, KVC_CAUSE_NOT_WRITER);
	assert_int_equal(variant_get(store, &v[1], 0), KVC_MISS);
	expect_result(variant_set(store, &v[0], 10), KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(variant_get(store, &v[1], 10), KVC_OK);
	assert_int_equal(variant_get(store, &v[2], 0), KVC_MISS);
	expect_result(variant_set(store, &v[2], 12), KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(variant_get(store, &v[0], 10), KVC_OK);
	assert_int_equal(variant_get(store, &v[2], 12), KVC_OK);
	for (size_t i = 0; i < 3; i++)
		variant_close(&v[i]);
	store_must_close(store);
}

static void test_who_writes_mla_can_be_said(void **state)
{
	struct kvc_namespace_params params[2] = { mla(0, 0), mla(3, 0) };
	struct kvc_store *store = suite_open();
	struct variant v[2];

	(void)state;
	params[0].is_writer = KVC_NO;
	params[1].is_writer = KVC_YES;
	for (size_t i = 0; i < 2; i++)
		variant_open(&v[i], store, &params[i]);
	expect_result(variant_set(store, &v[0], 1), KVC_OK, KVC_CAUSE_NOT_WRITER);
	expect_result(variant_set(store, &v[1], 2), KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(variant_get(store, &v[0], 2), KVC_OK);
	for (size_t i = 0; i < 2; i++)
		variant_close(&v[i]);
	store_must_close(store);
}

/* Pools named mamba differ between ranks even in an MLA model. */
static void test_mamba_pools_are_per_rank(void **state)
{
	struct pages_params pool = {
		.name = "mamba",
		.count = 1,
		.part_count = 2,
		.part_bytes = { 512, 100 },
	};
	struct kvc_namespace_params params[2] = { mla(0, 0), mla(1, 0) };
	struct kvc_store *store = suite_open();
	struct kvc_key key = key_of("mamba-key");
	struct kvc_namespace *ns[2];
	struct kvc_result result;
	struct pages pages[2];

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		ns[i] = namespace_must_open(store, &params[i]);
		pages_open(&pages[i], ns[i], &pool);
		pages_fill(&pages[i], 0, 40 + i);
		batch(store, &pages[i], KVC_SET, &key, 1, 0, &result);
		expect_result(result, KVC_OK, KVC_CAUSE_NONE);
	}
	for (size_t i = 0; i < 2; i++) {
		pages_wipe(&pages[i]);
		batch(store, &pages[i], KVC_GET, &key, 1, 0, &result);
		expect_result(result, KVC_OK, KVC_CAUSE_NONE);
		assert_true(pages_match(&pages[i], 0, 40 + i));
		pages_close(&pages[i]);
		assert_int_equal(kvc_namespace_close(ns[i]), 0);
	}
	store_must_close(store);
}

/* R14: what is not the same cache does not meet. nixl's names know only the model. */
static void test_other_weights_and_types_are_apart(void **state)
{
	struct kvc_namespace_params params[6];

	(void)state;
	if (suite.nixl)
		return;
	for (size_t i = 0; i < 6; i++)
		params[i] = namespace_params("same name");
	params[1].identity = "rev-2";
	params[2].dtype = "fp8_e4m3";
	params[3].dtype = "fp8_e5m2";
	params[4].page_tokens = 8;
	params[5].identity = "";
	expect_apart(params, 6);
}

/* R14: of equal size, but in another order of bytes. */
static void test_other_byte_orders_are_apart(void **state)
{
	struct kvc_namespace_params params = namespace_params("orders");
	unsigned char memory[2][1024];
	struct kvc_key key = key_of("order-key");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = namespace_must_open(store, &params);
	struct pages pages[2] = { { .count = 1 }, { .count = 1 } };
	struct kvc_result result;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct kvc_part part = {
			.size = sizeof(part),
			.base = memory[i],
			.piece_bytes = 1024,
			.piece_count = 1,
			.page_stride_bytes = 1024,
		};
		struct kvc_pool_params pool = {
			.size = sizeof(pool),
			.name = "kv",
			.parts = &part,
			.part_count = 1,
			.page_count = 1,
			.byte_order = i ? KVC_ORDER_HEAD_MAJOR : KVC_ORDER_TOKEN_MAJOR,
		};

		assert_int_equal(kvc_pool_open(ns, &pool, &pages[i].pool), 0);
		memset(memory[i], (int)i + 1, 1024);
	}
	batch(store, &pages[0], KVC_SET, &key, 1, 0, &result);
	expect_result(result, KVC_OK, KVC_CAUSE_NONE);
	batch(store, &pages[1], KVC_EXISTS, &key, 1, 0, &result);
	if (!suite.nixl)
		expect_result(result, KVC_MISS, KVC_CAUSE_ABSENT);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(kvc_pool_close(pages[i].pool), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* R14: with no identity at all, one warning. */
static void test_unset_identity_is_said(void **state)
{
	struct kvc_namespace_params params = namespace_params("who knows");
	struct kvc_store *store;
	struct kvc_namespace *ns;

	(void)state;
	log_capture();
	store = suite_open();
	params.identity = NULL;
	ns = namespace_must_open(store, &params);
	assert_int_equal(kvc_namespace_close(ns), 0);
	ns = namespace_must_open(store, &params);
	assert_int_equal(log_count(KVC_LOG_WARNING, "identity", NULL), 1);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
	kvc_log_set(NULL, NULL, 0);
}

/* R15 */
static void test_tenants_are_apart(void **state)
{
	struct kvc_namespace_params params[5];

	(void)state;
	if (suite.nixl)
		return;
	for (size_t i = 0; i < 5; i++)
		params[i] = namespace_params("bc");
	params[0].tenant = "a";
	params[1].model_id = "c";
	params[1].tenant = "ab";
	params[2].tenant = "";
	params[3].tenant = NULL;
	params[4].model_id = "b/c";
	expect_apart(params, 5);
}

/* R16 */
static void run_model(const char *model)
{
	struct kvc_namespace_params params = namespace_params(model);
	struct kvc_store *store = suite_open();
	struct variant variant;
	int rc;

	rc = kvc_namespace_open(store, &params, &variant.ns);
	if (rc == 0) {
		pages_open_simple(&variant.pages, variant.ns, 1, 4096);
		expect_result(variant_set(store, &variant, 5), KVC_OK, KVC_CAUSE_NONE);
		assert_int_equal(variant_get(store, &variant, 5), KVC_OK);
		variant_close(&variant);
	} else {
		/* Refused once, at open, and only where names cannot carry it. */
		assert_true(suite.nixl);
		assert_true(rc == -ENAMETOOLONG || rc == -EINVAL);
		assert_true(strlen(kvc_last_error()) > 0);
	}
	store_must_close(store);
}

static void test_long_and_foreign_model_names(void **state)
{
	static const size_t lengths[] = { 150, 250, 1000, 4096 };
	char model[4097];

	(void)state;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		memset(model, 'm', lengths[i]);
		model[lengths[i]] = '\0';
		run_model(model);
	}
	run_model("\xe6\xa8\xa1\xe5\x9e\x8b/\xf0\x9f\x90\xbb");
	run_model("../../etc");
	run_model("with space and \n newline");
	run_model("");
	run_model(NULL);
}

static void test_bad_namespaces_are_refused(void **state)
{
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = NULL;
	struct kvc_namespace_params bad = namespace_params("bad");

	(void)state;
	bad.page_tokens = 0;
	assert_int_equal(kvc_namespace_open(store, &bad, &ns), -EINVAL);
	bad = namespace_params("bad");
	bad.tp_size = 2;
	bad.tp_rank = 2;
	assert_int_equal(kvc_namespace_open(store, &bad, &ns), -EINVAL);
	bad = namespace_params("bad");
	bad.tp_size = 2;
	bad.tp_lcm_size = 3;
	assert_int_equal(kvc_namespace_open(store, &bad, &ns), -EINVAL);
	bad = namespace_params("bad");
	bad.is_writer = 9;
	assert_int_equal(kvc_namespace_open(store, &bad, &ns), -EINVAL);
	bad = namespace_params("bad");
	bad.size = 3;
	assert_int_equal(kvc_namespace_open(store, &bad, &ns), -EINVAL);
	assert_null(ns);
	store_must_close(store);
}

struct tests rank_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tp_ranks_have_their_own_pages),
		cmocka_unit_test(test_pp_and_cp_ranks_have_their_own_pages),
		cmocka_unit_test(test_dcp_ranks_have_their_own_pages),
		cmocka_unit_test(test_mla_is_written_by_one_rank),
		cmocka_unit_test(test_who_writes_mla_can_be_said),
		cmocka_unit_test(test_mamba_pools_are_per_rank),
		cmocka_unit_test(test_other_weights_and_types_are_apart),
		cmocka_unit_test(test_other_byte_orders_are_apart),
		cmocka_unit_test(test_namesakes_of_other_weights_keep_theirs),
		cmocka_unit_test(test_unset_identity_is_said),
		cmocka_unit_test(test_tenants_are_apart),
		cmocka_unit_test(test_long_and_foreign_model_names),
		cmocka_unit_test(test_bad_namespaces_are_refused),
	};

	return TESTS_OF(tests);
}
