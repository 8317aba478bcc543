/* SPDX-License-Identifier: Apache-2.0 */
/* connector/object.c, core/walk.c: single objects, listing, verifying, what a trailer tells. */
#include "fake.h"

#include "connector/handle.h"
#include "core/usage.h"
#include "core/walk.h"

#include <stdio.h>

static struct fake *fake;
static struct kvc_namespace *ns;
static const struct kvc_key key = { "key", 3 };

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	fake_open(fake, 1);
	ns = fake_namespace(fake, "model");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(kvc_namespace_close(ns), 0);
	fake_free(fake);
	return 0;
}

static int take_path(void *context, const struct kvc_object_info *info)
{
	(void)snprintf(context, KVC_PATH_BYTES, "%s", info->path);
	return 0;
}

static struct fake_object *object_of(const char *pool)
{
	char path[KVC_PATH_BYTES];

	assert_int_equal(kvc_object_where(ns, pool, key, take_path, path), 0);
	return fake_find(fake, path);
}

static int put(const char *text, uint32_t overwrite)
{
	return kvc_object_put(ns, "side", key, text, strlen(text), overwrite, 0);
}

static int get(char *out, size_t capacity, size_t *bytes)
{
	memset(out, 0, capacity);
	return kvc_object_get(ns, "side", key, out, capacity, bytes, 0, 0);
}

static uint64_t usage_objects(void)
{
	uint64_t objects;

	kvc_usage_total(fake_root(fake, 0)->usage, NULL, &objects);
	return objects;
}

/* ---------------------------------------------------------------- single objects */

static void objects_of_any_size_round_trip(void **state)
{
	static const size_t sizes[] = { 0, 1, 4095, 4096, 4097, 200000 };
	static uint8_t data[200000], back[200001];

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 13 + (i >> 9));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t bytes = 77;

		assert_int_equal(kvc_object_put(ns, "side", key, data, sizes[i], 1, 0), 0);
		memset(back, 0xaa, sizeof(back));
		assert_int_equal(kvc_object_get(ns, "side", key, back, sizes[i], &bytes, 0, 0), 0);
		assert_int_equal(bytes, sizes[i]);
		assert_memory_equal(back, data, sizes[i]);
		assert_int_equal(back[sizes[i]], 0xaa);
		assert_int_equal(usage_objects(), 1);
	}
	assert_int_equal(kvc_object_put(ns, "side", key, NULL, 0, 1, 0), 0);
}

static void what_is_there_is_kept_unless_its_size_differs(void **state)
{
	char text[32];
	size_t bytes;

	(void)state;
	assert_int_equal(put("abcdef", 0), 0);
	assert_int_equal(put("uvwxyz", 0), 1); /* the same size: kept */
	assert_int_equal(get(text, sizeof(text), &bytes), 0);
	assert_string_equal(text, "abcdef");
	/* Another size that takes as many blocks is another object. */
	assert_int_equal(put("abc", 0), 0);
	assert_int_equal(get(text, sizeof(text), &bytes), 0);
	assert_int_equal(bytes, 3);
	assert_string_equal(text, "abc");
	assert_int_equal(put("xyz", 1), 0);
	assert_int_equal(get(text, sizeof(text), &bytes), 0);
	assert_string_equal(text, "xyz");
	assert_int_equal(usage_objects(), 1);
}

static void a_small_buffer_is_told_the_size(void **state)
{
	char text[4];
	size_t bytes = 0;

	(void)state;
	assert_int_equal(put("abcdef", 0), 0);
	assert_int_equal(get(text, 3, &bytes), -ENOBUFS);
	assert_int_equal(bytes, 6);
	assert_int_equal(kvc_object_get(ns, "side", key, NULL, 0, &bytes, 0, 0), -ENOBUFS);
	assert_int_equal(kvc_object_exists(ns, "side", key, &bytes, 0), 1);
	assert_int_equal(bytes, 6);
	assert_int_equal(kvc_object_remove(ns, "side", key, 0), 1);
	assert_int_equal(kvc_object_remove(ns, "side", key, 0), 0);
	assert_int_equal(kvc_object_exists(ns, "side", key, &bytes, 0), 0);
	assert_int_equal(get(text, 3, &bytes), -ENOENT);
	assert_int_equal(usage_objects(), 0);
}

static void r08_damage_is_told_and_removed(void **state)
{
	char text[32];
	size_t bytes = 77;

	(void)state;
	assert_int_equal(put("abcdef", 0), 0);
	object_of("side")->data[0] ^= 1;
	assert_int_equal(get(text, sizeof(text), &bytes), -EBADMSG);
	assert_null(object_of("side"));
	assert_int_equal(put("abcdef", 0), 0);
	object_of("side")->data[4096 + 700] ^= 1; /* in the trailer */
	assert_int_equal(kvc_object_exists(ns, "side", key, NULL, 0), -EBADMSG);
	assert_int_equal(get(text, sizeof(text), &bytes), -EBADMSG);
	assert_null(object_of("side"));
	assert_int_equal(put("abcdef", 0), 0);
	object_of("side")->bytes -= 5; /* short: a miss */
	assert_int_equal(kvc_object_exists(ns, "side", key, NULL, 0), 0);
	assert_int_equal(get(text, sizeof(text), &bytes), -ENOENT);
	assert_null(object_of("side"));
	assert_int_equal(bytes, 77);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_REMOVED_CORRUPT), 3);
	assert_int_equal(usage_objects(), 0);
}

static void a_trailer_behind_more_bytes_is_no_whole_object(void **state)
{
	uint8_t longer[3 * 4096] = { 0 };
	struct fake_object *object;
	char path[KVC_PATH_BYTES];

	(void)state;
	assert_int_equal(put("abcdef", 0), 0);
	object = object_of("side");
	memcpy(longer + 2 * 4096, object->data + 4096, 4096);
	(void)snprintf(path, sizeof(path), "%s", object->name);
	fake_put(fake, path, longer, sizeof(longer));
	assert_int_equal(kvc_object_exists(ns, "side", key, NULL, 0), 0);
}

static uint64_t asked_until_ns;

static int64_t stall(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	asked_until_ns = d->deadline_ns;
	return FAKE_STALL;
}

static void r33_finding_keeps_the_callers_deadline(void **state)
{
	const uint64_t start_ns = kvc_now_ns();
	char text[8];
	size_t bytes;

	(void)state;
	assert_int_equal(put("abc", 0), 0);
	fake->hook = stall;
	assert_int_equal(kvc_object_get(ns, "side", key, text, sizeof(text), &bytes, 0, 30),
			 -ETIMEDOUT);
	/* Not what housekeeping may take (5 s and the cancel). */
	assert_true(asked_until_ns - start_ns < UINT64_C(4000000000));
	fake->hook = NULL;
	fake_release(fake);
}

static int64_t denied(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c, (void)d;
	return -EACCES;
}

static void errors_are_those_of_the_header(void **state)
{
	static char text[4097];
	size_t bytes;

	(void)state;
	fake->hook = denied;
	assert_int_equal(put("abc", 0), -EACCES);
	assert_int_equal(get(text, 8, &bytes), -EACCES);
	fake->hook = NULL;
	fake_root(fake, 0)->read_only = true;
	assert_int_equal(put("abc", 0), -EROFS);
	fake_root(fake, 0)->read_only = false;
	fake_root(fake, 0)->attributes.max_object_bytes = 8192;
	assert_int_equal(kvc_object_put(ns, "side", key, text, 4096, 0, 0), 0);
	assert_int_equal(kvc_object_put(ns, "side", key, text, 4097, 0, 0), -EFBIG);
	fake_root(fake, 0)->attributes.max_object_bytes = 0;
	assert_int_equal(kvc_object_put(ns, "side", key, text, SIZE_MAX, 0, 0), -EFBIG);
	assert_int_equal(kvc_object_put(ns, "side", key, text, SIZE_MAX - 5000, 0, 0), -EFBIG);
}

static void nothing_is_refused_with_a_crash(void **state)
{
	const struct kvc_key bad = { NULL, 3 };
	struct kvc_object_detail detail = { .size = sizeof(detail) };
	size_t bytes;
	char text[8];

	(void)state;
	assert_int_equal(kvc_object_put(NULL, "a", key, "x", 1, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_put(ns, NULL, key, "x", 1, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_put(ns, "a", bad, "x", 1, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_put(ns, "a", key, NULL, 1, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_put(ns, "A.b", key, "x", 1, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_get(NULL, "a", key, text, 1, &bytes, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_get(ns, "a", key, NULL, 1, &bytes, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_get(ns, "a", key, text, 1, NULL, 0, 0), -EINVAL);
	assert_int_equal(kvc_object_exists(NULL, "a", key, NULL, 0), -EINVAL);
	assert_int_equal(kvc_object_exists(ns, "a", bad, NULL, 0), -EINVAL);
	assert_int_equal(kvc_object_remove(ns, NULL, key, 0), -EINVAL);
	assert_int_equal(kvc_object_where(ns, "a", key, NULL, NULL), -EINVAL);
	assert_int_equal(kvc_pool_where(NULL, key, take_path, text), -EINVAL);
	assert_int_equal(kvc_object_list(NULL, NULL, take_path, text), -EINVAL);
	assert_int_equal(kvc_object_list(&fake->store, NULL, NULL, text), -EINVAL);
	assert_int_equal(kvc_store_verify(&fake->store, NULL, 0, NULL, NULL), -EINVAL);
	assert_int_equal(kvc_object_stat(&fake->store, NULL, "x", &detail), -EINVAL);
	assert_int_equal(kvc_object_stat(&fake->store, "fake0", NULL, &detail), -EINVAL);
	detail.size = 4;
	assert_int_equal(kvc_object_stat(&fake->store, "fake0", "x", &detail), -EINVAL);
}

/* ---------------------------------------------------------------- stat, list, verify */

static void a_path_stays_inside_of_its_root(void **state)
{
	static const char *const paths[] = { "",	  "/",	  "/etc/passwd", "../x",
					     "a/../../x", "a//b", "a/",		 "./a",
					     "a/.",	  "..",	  "a/b/../../.." };
	struct kvc_object_detail detail = { .size = sizeof(detail) };

	(void)state;
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		assert_int_equal(kvc_object_stat(&fake->store, "fake0", paths[i], &detail),
				 -EINVAL);
	assert_int_equal(kvc_object_stat(&fake->store, "fake0", "a/..b/.c", &detail), -ENOENT);
	assert_int_equal(kvc_object_stat(&fake->store, "other", "a", &detail), -ENOENT);
}

static void the_detail_is_what_the_trailer_says(void **state)
{
	struct {
		struct kvc_object_detail detail;
		uint64_t more;
	} out = { .detail.size = sizeof(out), .more = 7 };
	char path[KVC_PATH_BYTES];

	(void)state;
	assert_int_equal(put("abcdef", 0), 0);
	assert_int_equal(kvc_object_where(ns, "side", key, take_path, path), 0);
	assert_int_equal(kvc_object_stat(&fake->store, "fake0", path, &out.detail), 0);
	assert_int_equal(out.detail.payload_bytes, 6);
	assert_int_equal(out.detail.stored_bytes, 8192);
	assert_int_equal(out.detail.part_count, 1);
	assert_int_equal(out.detail.part_bytes[0], 6);
	assert_string_equal(out.detail.checksum_kind, "full");
	assert_non_null(strstr(path, out.detail.name));
	assert_int_equal(out.more, 0); /* what the library does not know */
	fake_put(fake, "x", "abc", 3);
	assert_int_equal(kvc_object_stat(&fake->store, "fake0", "x", &out.detail), -EBADMSG);
}

struct tally {
	unsigned objects;
	unsigned statuses[8];
	unsigned causes[KVC_CAUSE_COUNT];
	int stop_after;
};

static int count_listed(void *context, const struct kvc_object_info *info)
{
	struct tally *tally = context;

	assert_true(*info->name && *info->path);
	tally->objects++;
	return tally->stop_after && (int)tally->objects == tally->stop_after ? 42 : 0;
}

static int count_verified(void *context, const struct kvc_object_info *info,
			  const struct kvc_result *result, uint64_t done, uint64_t total)
{
	struct tally *tally = context;

	assert_true(done <= total);
	assert_int_equal(done, tally->objects + 1);
	tally->statuses[result->status]++;
	tally->causes[result->cause]++;
	return count_listed(context, info);
}

static void lists_hold_objects_and_nothing_else(void **state)
{
	struct tally tally = { 0 };
	char other[300];

	(void)state;
	assert_int_equal(put("a", 0), 0);
	assert_int_equal(kvc_object_put(ns, "b", key, "x", 1, 0, 0), 0);
	fake_put(fake, "loose", "x", 1);
	fake_put(fake, "lost+found/x", "x", 1);
	fake_put(fake, "data-0123456789ABCDEF/x", "x", 1);
	(void)snprintf(other, sizeof(other), "%s/sub/x", kvc_namespace_id(ns));
	fake_put(fake, other, "x", 1);
	assert_int_equal(kvc_object_list(&fake->store, NULL, count_listed, &tally), 0);
	assert_int_equal(tally.objects, 2);
	tally = (struct tally){ .stop_after = 1 };
	assert_int_equal(kvc_object_list(&fake->store, NULL, count_listed, &tally), 42);
	tally = (struct tally){ 0 };
	assert_int_equal(kvc_object_list(&fake->store, kvc_namespace_id(ns), count_listed, &tally),
			 0);
	assert_int_equal(tally.objects, 2);
	/* Ids that are none, and one that is longer than any. */
	memset(other, 'm', sizeof(other) - 1);
	other[sizeof(other) - 1] = '\0';
	tally = (struct tally){ 0 };
	assert_int_equal(kvc_object_list(&fake->store, other, count_listed, &tally), 0);
	assert_int_equal(kvc_object_list(&fake->store, "", count_listed, &tally), 0);
	assert_int_equal(kvc_object_list(&fake->store, "model", count_listed, &tally), 0);
	assert_int_equal(tally.objects, 0);
	/* Own bytes are those of objects. */
	assert_int_equal(kvc_walk_recount(fake_root(fake, 0)), 0);
	assert_int_equal(usage_objects(), 2);
}

static void swap_data(struct fake_object *a, struct fake_object *b)
{
	uint8_t *data = a->data;

	a->data = b->data;
	b->data = data;
}

static void r08_verify_finds_and_removes(void **state)
{
	static const char *const pools[] = { "good", "flip", "crc", "swap-a", "swap-b", "nomagic" };
	struct tally tally = { 0 };

	(void)state;
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(kvc_object_put(ns, pools[i], key, "abcdef", 6, 0, 0), 0);
	object_of("flip")->data[2] ^= 1;
	object_of("crc")->data[8000] ^= 1;
	swap_data(object_of("swap-a"), object_of("swap-b"));
	object_of("nomagic")->data[4096] ^= 1;
	assert_int_equal(kvc_store_verify(&fake->store, NULL, 0, count_verified, &tally), 0);
	assert_int_equal(tally.objects, 6);
	assert_int_equal(tally.statuses[KVC_OK], 1);
	assert_int_equal(tally.causes[KVC_CAUSE_CHECKSUM], 1);
	assert_int_equal(tally.causes[KVC_CAUSE_TRAILER], 1);
	assert_int_equal(tally.causes[KVC_CAUSE_OTHER_OBJECT], 2);
	assert_int_equal(tally.causes[KVC_CAUSE_FOREIGN], 1);
	assert_int_equal(fake->removes, 0);
	fake_root(fake, 0)->writes_refused = true;
	tally = (struct tally){ 0 };
	assert_int_equal(kvc_store_verify(&fake->store, NULL, 1, count_verified, &tally), 0);
	assert_int_equal(fake->removes, 0);
	fake_root(fake, 0)->writes_refused = false;
	tally = (struct tally){ 0 };
	assert_int_equal(
		kvc_store_verify(&fake->store, kvc_namespace_id(ns), 1, count_verified, &tally), 0);
	assert_int_equal(fake->removes, 4);
	assert_int_equal(usage_objects(), 2);
}

static void objects_with_long_names_are_told_apart(void **state)
{
	static char longer[2][3000];
	struct fake_object *objects[2];
	struct tally tally = { 0 };

	(void)state;
	for (int i = 0; i < 2; i++) {
		const struct kvc_key long_key = { longer[i], 1000 + 1500 * (size_t)i };
		char path[KVC_PATH_BYTES];

		memset(longer[i], 'a' + i, sizeof(longer[i]));
		assert_int_equal(kvc_object_put(ns, "side", long_key, "abc", 3, 0, 0), 0);
		assert_int_equal(kvc_object_where(ns, "side", long_key, take_path, path), 0);
		objects[i] = fake_find(fake, path);
	}
	assert_int_equal(kvc_store_verify(&fake->store, NULL, 0, count_verified, &tally), 0);
	assert_int_equal(tally.statuses[KVC_OK], 2);
	swap_data(objects[0], objects[1]);
	tally = (struct tally){ 0 };
	assert_int_equal(kvc_store_verify(&fake->store, NULL, 0, count_verified, &tally), 0);
	assert_int_equal(tally.causes[KVC_CAUSE_OTHER_OBJECT], 2);
}

/* In nixl naming all models share the folders. */
static void nixl_lists_are_by_model(void **state)
{
	struct tally tally = { 0 };

	(void)state;
	teardown(NULL);
	fake = fake_new();
	fake->settings.naming = KVC_NAMING_NIXL;
	fake_open(fake, 1);
	ns = fake_namespace(fake, "llama");
	fake_put(fake, "aa_llama_k", "x", 1);
	fake_put(fake, "aa_llama-2_k", "x", 1);
	fake_put(fake, "whatever", "x", 1);
	assert_int_equal(kvc_object_list(&fake->store, "llama", count_listed, &tally), 0);
	assert_int_equal(tally.objects, 1);
	tally = (struct tally){ 0 };
	assert_int_equal(kvc_store_verify(&fake->store, "llama-2", 0, count_verified, &tally), 0);
	assert_int_equal(tally.objects, 1);
	tally = (struct tally){ 0 };
	assert_int_equal(kvc_object_list(&fake->store, NULL, count_listed, &tally), 0);
	assert_int_equal(tally.objects, 3);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(objects_of_any_size_round_trip),
		TEST(what_is_there_is_kept_unless_its_size_differs),
		TEST(a_small_buffer_is_told_the_size),
		TEST(r08_damage_is_told_and_removed),
		TEST(a_trailer_behind_more_bytes_is_no_whole_object),
		TEST(r33_finding_keeps_the_callers_deadline),
		TEST(errors_are_those_of_the_header),
		TEST(nothing_is_refused_with_a_crash),
		TEST(a_path_stays_inside_of_its_root),
		TEST(the_detail_is_what_the_trailer_says),
		TEST(lists_hold_objects_and_nothing_else),
		TEST(r08_verify_finds_and_removes),
		TEST(objects_with_long_names_are_told_apart),
		TEST(nixl_lists_are_by_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
