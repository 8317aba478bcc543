/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of many objects, of ranks and pools, in a packed root that is nearly full. */
#include "packed_store.h"

#define RANKS_MAX 8u
#define POOLS_MAX 2u
#define CAPACITY  (UINT64_C(128) * 1024 * 1024)

struct model {
	const char *name;
	uint32_t tp;
	uint32_t pp;
	uint32_t pools;
};

struct parts {
	struct kvc_store *store;
	struct kvc_namespace *ns[RANKS_MAX];
	struct pages pages[RANKS_MAX][POOLS_MAX];
	unsigned ranks;
	unsigned pools;
};

static void parts_open(struct parts *parts, const char *root, const struct model *model)
{
	static const struct setting setting = { .capacity = "128MiB", .more = "checksum=none" };

	if (root_open(root, &setting, &parts->store))
		fail_msg("%s: %s", root, kvc_last_error());
	parts->ranks = model->tp * model->pp;
	parts->pools = model->pools;
	for (uint32_t r = 0; r < parts->ranks; r++) {
		struct kvc_namespace_params params = namespace_params("parts");

		params.tp_size = model->tp;
		params.tp_rank = r % model->tp;
		params.pp_size = model->pp;
		params.pp_rank = r / model->tp;
		parts->ns[r] = namespace_must_open(parts->store, &params);
		for (uint32_t p = 0; p < parts->pools; p++) {
			const struct pages_params pages = {
				.name = p ? "second" : "first",
				.count = BATCH,
				.part_bytes = { PAGE },
			};

			pages_open(&parts->pages[r][p], parts->ns[r], &pages);
		}
	}
}

static void parts_close(struct parts *parts)
{
	for (unsigned r = 0; r < parts->ranks; r++) {
		for (unsigned p = 0; p < parts->pools; p++)
			pages_close(&parts->pages[r][p]);
		assert_int_equal(kvc_namespace_close(parts->ns[r]), 0);
	}
	store_must_close(parts->store);
}

/* How many keys did not get all of their objects the answer OK. */
static size_t parts_run(struct parts *parts, int op, const struct kvc_key *keys, size_t count)
{
	struct kvc_result results[BATCH];
	size_t bad = 0;

	for (size_t i = 0; i < count; i += BATCH) {
		bool whole[BATCH];

		memset(whole, true, sizeof(whole));
		for (unsigned r = 0; r < parts->ranks; r++) {
			for (unsigned p = 0; p < parts->pools; p++) {
				batch(parts->store, &parts->pages[r][p], op, keys + i, BATCH, 0,
				      results);
				for (size_t k = 0; k < BATCH; k++)
					whole[k] &= results[k].status == KVC_OK;
			}
		}
		for (size_t k = 0; k < BATCH; k++)
			bad += !whole[k];
	}
	return bad;
}

/* Slots of all segments that fit: their headers and names take a part of the capacity. */
static size_t parts_slots(struct parts *parts)
{
	struct kvc_packed_arena *arena;
	struct kvc_result result = do_set(parts->store, &parts->pages[0][0], key_of("first"), 0);

	expect_result(result, KVC_OK, -1);
	arena = atomic_load(&packed_of(parts->store, 0)->arenas);
	assert_non_null(arena);
	return CAPACITY / kvc_packed_segment_file_bytes(arena) * arena->record->segment_slots;
}

static void test_keys_of_many_objects_stay_whole_below_the_capacity(void **state)
{
	static const struct model models[] = {
		{ "tp 4", 4, 1, 1 },
		{ "tp 8", 8, 1, 1 },
		{ "tp 8, two pools", 8, 1, 2 },
		{ "pp 8", 1, 8, 1 },
	};
	unsigned too_many = 0;

	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		const char *root = folder_new("parts");
		static struct parts parts;
		size_t objects, all, done = 0;
		struct keys keys;

		parts_open(&parts, root, &models[m]);
		objects = parts.ranks * parts.pools;
		all = parts_slots(&parts) / objects;
		keys_make(&keys, "parts", all);
		for (unsigned percent = 50; percent <= 90; percent += 40) {
			const size_t until = all * percent / 100 / BATCH * BATCH;
			size_t bad;

			(void)parts_run(&parts, KVC_SET, keys.keys + done, until - done);
			done = until;
			bad = parts_run(&parts, KVC_EXISTS, keys.keys, done);
			(void)printf("%s, %u%% of the capacity: %zu of %zu keys are not whole, "
				     "%llu objects were evicted\n",
				     models[m].name, percent, bad, done,
				     (unsigned long long)packed_health(parts.store).evicted);
			too_many += bad * 1000 > done;
		}
		parts_close(&parts);
		keys_free(&keys);
		folder_remove(root);
	}
	assert_int_equal(too_many, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys_of_many_objects_stay_whole_below_the_capacity),
	};

	support_begin();
	return cmocka_run_group_tests_name("packed_parts", tests, NULL, NULL);
}
