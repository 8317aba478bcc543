/* SPDX-License-Identifier: Apache-2.0 */
/* connector/handle.c: namespaces, pools, clearing. */
#include "fake.h"

#include "connector/handle.h"

#include <stdio.h>

static struct fake *fake;
static _Alignas(4096) uint8_t memory[65536];

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_free(fake);
	return 0;
}

static struct kvc_pool_info info_of(struct kvc_pool *pool)
{
	struct kvc_pool_info info = { .size = sizeof(info) };

	assert_int_equal(kvc_pool_query(pool, &info), 0);
	return info;
}

static void namespaces_write_their_text_once(void **state)
{
	struct kvc_namespace *ns;
	char path[200];
	uint64_t version;

	(void)state;
	fake_open(fake, 1);
	ns = fake_namespace(fake, "org/model");
	(void)snprintf(path, sizeof(path), "%s/namespace.json", kvc_namespace_id(ns));
	assert_non_null(fake_find(fake, path));
	version = fake_find(fake, path)->version;
	assert_int_equal(kvc_namespace_close(ns), 0);
	ns = fake_namespace(fake, "org/model");
	assert_int_equal(fake_find(fake, path)->version, version);
	assert_int_equal(kvc_namespace_close(ns), 0);
	assert_string_equal(kvc_namespace_id(NULL), "");
	assert_int_equal(kvc_namespace_close(NULL), 0);
}

static uint32_t writes;

static int64_t stat_fails(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	writes += d->op == KVC_OP_WRITE;
	return d->op == KVC_OP_STAT ? -EIO : FAKE_NORMAL;
}

static void a_root_that_fails_does_not_keep_a_namespace_from_opening(void **state)
{
	struct kvc_namespace *ns;

	(void)state;
	fake_open(fake, 2);
	writes = 0;
	fake->hook = stat_fails;
	ns = fake_namespace(fake, "model");
	assert_int_equal(writes, 0); /* what does not answer is not asked again */
	assert_int_equal(kvc_namespace_close(ns), 0);
}

static void what_makes_no_sense_is_refused(void **state)
{
	struct kvc_namespace_params params = { .size = sizeof(params), .page_tokens = 1 };
	struct kvc_pool_params pool_params = { .size = sizeof(pool_params), .name = "kv" };
	struct kvc_pool_info info = { .size = sizeof(info) };
	struct kvc_clear_report report = { .size = sizeof(report) };
	struct kvc_namespace *ns = NULL, *open;
	struct kvc_pool *pool = NULL;

	(void)state;
	fake_open(fake, 1);
	assert_int_equal(kvc_namespace_open(NULL, &params, &ns), -EINVAL);
	assert_int_equal(kvc_namespace_open(&fake->store, NULL, &ns), -EINVAL);
	assert_int_equal(kvc_namespace_open(&fake->store, &params, NULL), -EINVAL);
	params.page_tokens = 0;
	assert_int_equal(kvc_namespace_open(&fake->store, &params, &ns), -EINVAL);
	params.page_tokens = 1;
	params.size--;
	assert_int_equal(kvc_namespace_open(&fake->store, &params, &ns), -EINVAL);
	assert_null(ns);
	open = fake_namespace(fake, "model");
	assert_int_equal(kvc_pool_open(NULL, &pool_params, &pool), -EINVAL);
	assert_int_equal(kvc_pool_open(open, NULL, &pool), -EINVAL);
	assert_int_equal(kvc_pool_open(open, &pool_params, NULL), -EINVAL);
	assert_int_equal(kvc_pool_open(open, &pool_params, &pool), -EINVAL); /* no parts */
	pool_params.size = 4;
	assert_int_equal(kvc_pool_open(open, &pool_params, &pool), -EINVAL);
	assert_null(pool);
	assert_int_equal(kvc_pool_query(NULL, &info), -EINVAL);
	assert_int_equal(kvc_pool_close(NULL), 0);
	assert_int_equal(kvc_namespace_usage(NULL, NULL, NULL), -EINVAL);
	assert_int_equal(kvc_namespace_clear(NULL, "x", 1, &report), -EINVAL);
	assert_int_equal(kvc_namespace_clear(&fake->store, NULL, 1, &report), -EINVAL);
	assert_int_equal(kvc_namespace_clear(&fake->store, "", 1, &report), -EINVAL);
	assert_int_equal(kvc_namespace_clear(&fake->store, "no-id", 1, &report), -EINVAL);
	assert_int_equal(kvc_namespace_clear(&fake->store, "../etc-0123456789abcdef", 1, &report),
			 -EINVAL);
	assert_int_equal(kvc_namespace_clear(&fake->store, kvc_namespace_id(open), 1, NULL),
			 -EINVAL);
	report.size = 8;
	assert_int_equal(kvc_namespace_clear(&fake->store, kvc_namespace_id(open), 1, &report),
			 -EINVAL);
	assert_int_equal(kvc_namespace_close(open), 0);
}

static void children_keep_their_parents_open(void **state)
{
	struct kvc_namespace *ns;
	struct kvc_pool *pool;

	(void)state;
	fake_open(fake, 1);
	ns = fake_namespace(fake, "model");
	pool = fake_pool(ns, memory, 2, 1, 4096, 4096);
	assert_int_equal(atomic_load(&fake->store.children), 1);
	assert_int_equal(kvc_namespace_close(ns), -EBUSY);
	fake_close(ns, pool);
}

static void zero_copy_is_told_as_it_is(void **state)
{
	struct kvc_namespace *ns;
	struct kvc_pool *pool;

	(void)state;
	fake->attributes.alignment = 512;
	fake->attributes.max_ranges = 4;
	fake_open(fake, 1);
	ns = fake_namespace(fake, "model");
	pool = fake_pool(ns, memory, 4, 1, 1000, 1024);
	assert_int_equal(info_of(pool).zero_copy, 1);
	assert_string_equal(info_of(pool).reason, "");
	assert_int_equal(info_of(pool).page_bytes, 1000);
	assert_int_equal(info_of(pool).object_bytes, 8192);
	assert_int_equal(info_of(pool).objects_per_page, 1);
	assert_int_equal(kvc_pool_close(pool), 0);
	/* The first page is aligned, the second is not. */
	pool = fake_pool(ns, memory, 4, 1, 1000, 1000);
	assert_int_equal(info_of(pool).zero_copy, 0);
	assert_string_not_equal(info_of(pool).reason, "");
	assert_int_equal(kvc_pool_close(pool), 0);
	pool = fake_pool(ns, memory, 1, 1, 1000, 1000);
	assert_int_equal(info_of(pool).zero_copy, 1); /* there is no second one */
	assert_int_equal(kvc_pool_close(pool), 0);
	/* Three parts of less than a block and the trailer are four ranges, as many as it takes. */
	pool = fake_pool(ns, memory, 4, 3, 1000, 1024);
	assert_int_equal(info_of(pool).zero_copy, 1);
	assert_int_equal(kvc_pool_close(pool), 0);
	pool = fake_pool(ns, memory, 4, 4, 1000, 1024);
	assert_int_equal(info_of(pool).zero_copy, 0);
	fake_close(ns, pool);
}

static void objects_that_no_root_takes_are_refused_at_open(void **state)
{
	struct kvc_part part = { .size = sizeof(part), .piece_bytes = 8000, .piece_count = 1 };
	const struct kvc_pool_params params = {
		.size = sizeof(params), .name = "kv", .parts = &part, .part_count = 1
	};
	struct kvc_namespace *ns;
	struct kvc_pool *pool = NULL;

	(void)state;
	fake->attributes.max_object_bytes = 12287;
	fake_open(fake, 1);
	ns = fake_namespace(fake, "model");
	assert_int_equal(kvc_pool_open(ns, &params, &pool), -E2BIG);
	assert_non_null(strstr(kvc_last_error(), "12288"));
	part.piece_bytes = 4000;
	assert_int_equal(kvc_pool_open(ns, &params, &pool), 0);
	fake_close(ns, pool);
}

/* R18 */
static void r18_clear_takes_what_is_its_own(void **state)
{
	struct kvc_clear_report report = { .size = sizeof(report) };
	struct kvc_namespace *llama, *llama2;
	const struct kvc_key key = { "k", 1 };
	uint64_t bytes, objects;
	char foreign[200];

	(void)state;
	fake_open(fake, 2);
	llama = fake_namespace(fake, "llama");
	llama2 = fake_namespace(fake, "llama-2");
	for (int i = 0; i < 2; i++) {
		struct kvc_namespace *ns = i ? llama2 : llama;

		assert_int_equal(kvc_object_put(ns, "a", key, "x", 1, 0, 0), 0);
		assert_int_equal(kvc_object_put(ns, "b", key, "x", 1, 0, 0), 0);
	}
	fake_put(fake, "foreign", "x", 1);
	(void)snprintf(foreign, sizeof(foreign), "not-a-namespace/object");
	fake_put(fake, foreign, "x", 1);
	/* The heap of the fake is one for both roots: each object is listed twice. */
	assert_int_equal(kvc_namespace_clear(&fake->store, kvc_namespace_id(llama), 1, &report), 0);
	assert_int_equal(report.objects, 4);
	assert_int_equal(report.bytes, 4 * 8192);
	assert_int_equal(kvc_namespace_clear(&fake->store, kvc_namespace_id(llama), 0, &report), 0);
	assert_int_equal(report.failed, 0);
	assert_int_equal(kvc_namespace_clear(&fake->store, kvc_namespace_id(llama), 0, &report),
			 -ENOENT);
	assert_int_equal(kvc_object_exists(llama, "a", key, NULL, 0), 0);
	assert_int_equal(kvc_object_exists(llama2, "a", key, NULL, 0), 1);
	assert_non_null(fake_find(fake, "foreign"));
	assert_non_null(fake_find(fake, foreign));
	assert_int_equal(kvc_namespace_usage(llama2, &bytes, &objects), 0);
	assert_int_equal(objects, 2);
	fake_root(fake, 1)->read_only = true;
	assert_int_equal(kvc_namespace_clear(&fake->store, kvc_namespace_id(llama2), 0, &report),
			 -EROFS);
	fake_root(fake, 1)->read_only = false;
	assert_int_equal(kvc_namespace_close(llama), 0);
	assert_int_equal(kvc_namespace_close(llama2), 0);
}

/* R16 */
static void r16_long_model_names_in_both_namings(void **state)
{
	static char model[4097];
	struct kvc_namespace_params params = { .size = sizeof(params),
					       .model_id = model,
					       .page_tokens = 1 };
	struct kvc_namespace *ns = NULL;

	(void)state;
	fake_open(fake, 1);
	memset(model, 'm', sizeof(model) - 1);
	assert_int_equal(kvc_namespace_open(&fake->store, &params, &ns), 0);
	assert_true(strlen(kvc_namespace_id(ns)) <= 57);
	assert_int_equal(kvc_object_put(ns, "kv", (struct kvc_key){ "k", 1 }, "x", 1, 0, 0), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
	fake->settings.naming = KVC_NAMING_NIXL;
	ns = NULL;
	assert_int_equal(kvc_namespace_open(&fake->store, &params, &ns), -ENAMETOOLONG);
	assert_null(ns);
	fake->settings.naming = KVC_NAMING_KVCELLAR;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(namespaces_write_their_text_once),
		TEST(a_root_that_fails_does_not_keep_a_namespace_from_opening),
		TEST(what_makes_no_sense_is_refused),
		TEST(children_keep_their_parents_open),
		TEST(zero_copy_is_told_as_it_is),
		TEST(objects_that_no_root_takes_are_refused_at_open),
		TEST(r18_clear_takes_what_is_its_own),
		TEST(r16_long_model_names_in_both_namings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
