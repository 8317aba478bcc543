/* SPDX-License-Identifier: Apache-2.0 */
/* Single objects, listing, verifying, and what a trailer says. */
#include "suite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void object_round(struct kvc_namespace *ns, size_t bytes)
{
	unsigned char *data = malloc(bytes + 1);
	unsigned char *back = malloc(bytes + 1);
	struct kvc_key key;
	char text[32];
	size_t got = 0;

	assert_non_null(data);
	assert_non_null(back);
	(void)snprintf(text, sizeof(text), "object/%zu", bytes);
	if (suite.nixl)
		text[6] = '-';
	key = key_of(text);
	bytes_fill(data, bytes, bytes);
	assert_int_equal(kvc_object_exists(ns, "side", key, &got, 0), 0);
	assert_int_equal(kvc_object_get(ns, "side", key, back, bytes, &got, 0, 0), -ENOENT);
	assert_int_equal(kvc_object_put(ns, "side", key, data, bytes, 0, 0), 0);
	assert_int_equal(kvc_object_put(ns, "side", key, data, bytes, 0, 0), 1);
	assert_int_equal(kvc_object_exists(ns, "side", key, &got, 0), 1);
	assert_int_equal(got, bytes);
	memset(back, 0xAA, bytes + 1);
	got = 0;
	assert_int_equal(kvc_object_get(ns, "side", key, back, bytes, &got, 0, 0), 0);
	assert_int_equal(got, bytes);
	assert_true(bytes_match(back, bytes, bytes));
	assert_int_equal(back[bytes], 0xAA);
	if (bytes > 0) {
		got = 0;
		memset(back, 0xAA, bytes + 1);
		assert_int_equal(kvc_object_get(ns, "side", key, back, bytes - 1, &got, 0, 0),
				 -ENOBUFS);
		assert_int_equal(got, bytes);
		assert_int_equal(back[bytes - 1], 0xAA);
		data[0] ^= 1;
		assert_int_equal(kvc_object_put(ns, "side", key, data, bytes, 1, 0), 0);
		assert_int_equal(kvc_object_get(ns, "side", key, back, bytes, &got, 0, 0), 0);
		assert_memory_equal(back, data, bytes);
	}
	assert_int_equal(kvc_object_remove(ns, "side", key, 0), 1);
	assert_int_equal(kvc_object_remove(ns, "side", key, 0), 0);
	assert_int_equal(kvc_object_exists(ns, "side", key, &got, 0), 0);
	free(data);
	free(back);
}

static void test_single_objects(void **state)
{
	static const size_t sizes[] = { 0, 1, 511, 4096, 4097, 66048, 3 * 1024 * 1024 + 5 };
	struct kvc_namespace_params params = namespace_params("objects");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = namespace_must_open(store, &params);

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		object_round(ns, sizes[i]);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* A single object that grows or shrinks is replaced whole. */
static void test_single_object_changes_its_size(void **state)
{
	struct kvc_namespace_params params = namespace_params("objects");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns = namespace_must_open(store, &params);
	static unsigned char data[50000];
	static unsigned char back[50000];
	static const size_t sizes[] = { 50000, 10, 9000, 0, 4096 };
	size_t got;

	(void)state;
	for (size_t i = 0; i < 5; i++) {
		bytes_fill(data, sizes[i], i);
		assert_int_equal(kvc_object_put(ns, "side", key_of("grow"), data, sizes[i], 1, 0),
				 0);
		assert_int_equal(kvc_object_get(ns, "side", key_of("grow"), back, sizeof(back),
						&got, 0, 0),
				 0);
		assert_int_equal(got, sizes[i]);
		assert_true(bytes_match(back, got, i));
	}
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

struct listed {
	const char *ns_id;
	size_t count;
	size_t stop_after;
	size_t with_pool;
	uint64_t bytes;
};

static int list_take(void *context, const struct kvc_object_info *info)
{
	struct listed *listed = context;

	assert_true(info->size >= sizeof(*info));
	assert_non_null(info->name);
	assert_non_null(info->root_path);
	assert_non_null(info->path);
	if (listed->ns_id != NULL)
		assert_string_equal(info->ns_id, suite.nixl ? "" : listed->ns_id);
	if (info->pool_name != NULL) {
		assert_string_equal(info->pool_name, "kv");
		assert_int_equal(info->key.bytes, 64);
		listed->with_pool++;
	}
	listed->bytes += info->stored_bytes;
	listed->count++;
	return listed->count == listed->stop_after ? 42 : 0;
}

static void test_list(void **state)
{
	struct listed listed = { .count = 0 };
	size_t per_page = suite.nixl ? 2 : 1;
	struct fixture f;

	(void)state;
	fixture_open(&f, 12, 4096);
	fixture_store(&f);
	if (!suite.nixl)
		listed.ns_id = kvc_namespace_id(f.ns);
	assert_int_equal(kvc_object_list(f.store, listed.ns_id, list_take, &listed), 0);
	assert_int_equal(listed.count, 12 * per_page);
	assert_int_equal(listed.bytes, suite.nixl ? 24 * 8192 : 12 * (suite.packed ? 8192 : 12288));
	if (!suite.nixl)
		assert_int_equal(listed.with_pool, 12);
	listed = (struct listed){ .count = 0 };
	assert_int_equal(kvc_object_list(f.store, NULL, list_take, &listed), 0);
	assert_int_equal(listed.count, 12 * per_page);
	listed = (struct listed){ .stop_after = 5 };
	assert_int_equal(kvc_object_list(f.store, NULL, list_take, &listed), 42);
	assert_int_equal(listed.count, 5);
	fixture_close(&f);
}

struct verified {
	size_t count;
	size_t ok;
	uint64_t total;
};

static int verify_take(void *context, const struct kvc_object_info *info,
		       const struct kvc_result *result, uint64_t done, uint64_t total)
{
	struct verified *verified = context;

	assert_non_null(info->name);
	assert_true(done <= total || total == 0);
	verified->count++;
	verified->ok += result->status == KVC_OK;
	verified->total = total;
	return 0;
}

static void test_verify(void **state)
{
	struct verified verified = { .count = 0 };
	size_t objects = suite.nixl ? 2 * 9 : 9;
	struct fixture f;

	(void)state;
	fixture_open(&f, 9, 3000);
	fixture_store(&f);
	assert_int_equal(kvc_object_put(f.ns, "side", key_of("one"), "abc", 3, 0, 0), 0);
	assert_int_equal(kvc_store_verify(f.store, NULL, 0, verify_take, &verified), 0);
	assert_int_equal(verified.count, objects + 1);
	assert_int_equal(verified.ok, objects + 1);
	fixture_close(&f);
}

struct stat_wanted {
	struct kvc_store *store;
	const char *model_key;
	size_t count;
};

static int stat_take(void *context, const struct kvc_object_info *info)
{
	struct kvc_object_detail detail = { .size = sizeof(detail) };
	struct stat_wanted *wanted = context;

	assert_int_equal(kvc_object_stat(wanted->store, info->root_path, info->path, &detail), 0);
	assert_int_equal(detail.stored_bytes, suite.nixl || suite.packed ? 8192 : 12288);
	assert_int_equal(detail.payload_bytes, suite.nixl ? 3000 : 6000);
	assert_int_equal(detail.part_count, suite.nixl ? 1 : 2);
	assert_int_equal(detail.part_bytes[0], 3000);
	assert_int_equal(detail.format_major, 1);
	assert_int_equal(detail.depth, 7);
	assert_true(detail.parent_hash != 0);
	assert_string_equal(detail.checksum_kind, "full");
	assert_string_equal(detail.name, info->name);
	assert_true(detail.created_ns > INT64_C(1600000000000000000));
	/* A slot has no room for who wrote it. */
	if (!suite.packed)
		assert_non_null(strstr(detail.writer, "kvcellar"));
	wanted->count++;
	return 0;
}

/* What a set says of parent and depth stands in the trailer. */
static void test_stat_tells_the_trailer(void **state)
{
	struct kvc_object_detail detail = { .size = sizeof(detail) };
	struct stat_wanted wanted = { .count = 0 };
	int64_t index = 0;
	struct kvc_transfer transfer;
	struct fixture f;

	(void)state;
	fixture_open(&f, 1, 3000);
	wanted.store = f.store;
	transfer = transfer_of(&f.pages, KVC_SET, f.keys.keys, 1, &index, f.results);
	transfer.parent = key_of("the page before");
	if (suite.nixl)
		transfer.parent = key_of("page-before");
	transfer.depth = 7;
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	expect_all(f.results, 1, KVC_OK);
	assert_int_equal(kvc_object_list(f.store, NULL, stat_take, &wanted), 0);
	assert_int_equal(wanted.count, suite.nixl ? 2 : 1);
	assert_int_equal(kvc_object_stat(f.store, suite.root, "no/such/object", &detail), -ENOENT);
	fixture_close(&f);
}

/* ---------------------------------------------------------------- space by namespace */

struct space {
	const char *id;	    /* of the one that is looked for */
	const char *tenant; /* that it has to have */
	uint64_t live_bytes;
	uint64_t allocated_bytes;
	uint64_t objects;
	uint32_t pinned;
	size_t found;
	size_t others;
	size_t stop_after;
};

static int space_take(void *context, const struct kvc_namespace_usage *usage)
{
	struct space *space = context;

	assert_true(usage->size >= sizeof(*usage));
	assert_non_null(usage->root_path);
	assert_true(usage->allocated_bytes >= usage->live_bytes);
	assert_int_equal(usage->share_bytes, 0);
	assert_int_equal(usage->reserved, 0);
	if (strcmp(usage->id, space->id) != 0) {
		space->others++;
	} else {
		space->found++;
		space->live_bytes = usage->live_bytes;
		space->allocated_bytes = usage->allocated_bytes;
		space->objects = usage->objects;
		space->pinned = usage->pinned;
		if (!suite.nixl) {
			assert_string_equal(usage->model, "with a tenant");
			assert_string_equal(usage->tenant, space->tenant);
		}
	}
	return space->found + space->others == space->stop_after ? 42 : 0;
}

static void space_look(struct kvc_store *store, struct space *space)
{
	*space = (struct space){ .id = space->id, .tenant = space->tenant };
	assert_int_equal(kvc_store_usage_namespaces(store, space_take, space), 0);
}

static void put_some(struct kvc_namespace *ns, int count)
{
	static const unsigned char data[5000];
	char text[32];

	for (int i = 0; i < count; i++) {
		(void)snprintf(text, sizeof(text), "some-%d", i);
		assert_int_equal(kvc_object_put(ns, "side", key_of(text), data, sizeof(data), 0, 0),
				 0);
	}
}

/* Each object counts once, under its namespace; in nixl naming there is one for all. */
static void test_space_by_namespace(void **state)
{
	struct kvc_namespace_params params = namespace_params("with a tenant");
	struct kvc_store *store = suite_open();
	struct kvc_namespace *ns, *other;
	struct space space = { .tenant = "team" };
	char id[128];

	(void)state;
	params.model_id = suite.nixl ? "model" : "with a tenant";
	params.tenant = "team";
	ns = namespace_must_open(store, &params);
	params.model_id = "other";
	other = namespace_must_open(store, &params);
	put_some(ns, 3);
	put_some(other, 2);
	(void)snprintf(id, sizeof(id), "%s", suite.nixl ? "" : kvc_namespace_id(ns));
	space.id = id;
	space_look(store, &space);
	assert_int_equal(space.found, 1);
	assert_int_equal(space.others, suite.nixl ? 0 : 1);
	assert_int_equal(space.objects, suite.nixl ? 5 : 3);
	assert_int_equal(space.live_bytes, space.objects * 12288);
	assert_int_equal(space.allocated_bytes, space.live_bytes);
	space = (struct space){ .id = id, .tenant = "team", .stop_after = 1 };
	assert_int_equal(kvc_store_usage_namespaces(store, space_take, &space), 42);
	assert_int_equal(space.found + space.others, 1);
	assert_int_equal(kvc_object_remove(ns, "side", key_of("some-0"), 0), 1);
	space_look(store, &space);
	assert_int_equal(space.objects, suite.nixl ? 4 : 2);
	assert_int_equal(kvc_namespace_close(other), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* A pin is seen at once by who sets it, and by a store that is opened later. */
static void test_pins(void **state)
{
	struct kvc_namespace_params params = namespace_params("with a tenant");
	struct kvc_store *store = suite_open();
	struct space space = { .tenant = "team" };
	struct kvc_namespace *ns;
	char id[128];

	(void)state;
	params.model_id = suite.nixl ? "model" : "with a tenant";
	params.tenant = "team";
	ns = namespace_must_open(store, &params);
	put_some(ns, 1);
	(void)snprintf(id, sizeof(id), "%s", kvc_namespace_id(ns));
	space.id = id;
	assert_int_equal(kvc_namespace_close(ns), 0);
	if (suite.nixl || !suite.folder) {
		assert_int_equal(kvc_store_pin(store, id, 1), -ENOTSUP);
		store_must_close(store);
		return;
	}
	assert_int_equal(kvc_store_pin(store, "no id", 1), -EINVAL);
	assert_int_equal(kvc_store_pin(store, id, 1), 0);
	assert_int_equal(kvc_store_pin(store, id, 1), 0);
	space_look(store, &space);
	assert_int_equal(space.pinned, 1);
	store_must_close(store);
	store = suite_reopen();
	space_look(store, &space);
	assert_int_equal(space.pinned, 1);
	assert_int_equal(kvc_store_pin(store, id, 0), 0);
	assert_int_equal(kvc_store_pin(store, id, 0), 0);
	space_look(store, &space);
	assert_int_equal(space.pinned, 0);
	store_must_close(store);
}

static void test_space_and_pins_refuse(void **state)
{
	struct kvc_store *store = suite_open();

	(void)state;
	assert_int_equal(kvc_store_usage_namespaces(NULL, space_take, NULL), -EINVAL);
	assert_int_equal(kvc_store_usage_namespaces(store, NULL, NULL), -EINVAL);
	assert_int_equal(kvc_store_pin(NULL, "x-0000000000000000", 1), -EINVAL);
	assert_int_equal(kvc_store_pin(store, NULL, 1), -EINVAL);
	store_must_close(store);
}

struct tests object_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_single_objects),
		cmocka_unit_test(test_single_object_changes_its_size),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_verify),
		cmocka_unit_test(test_stat_tells_the_trailer),
		cmocka_unit_test(test_space_by_namespace),
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_space_and_pins_refuse),
	};

	return TESTS_OF(tests);
}
