/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The golden root of the packed layout (v1/packed, made by make_packed.py from the document alone):
 * with its own boot id, which makes the index be made again, and with this machine's, which lets
 * this library use the table and the counters as they are stored. And what it writes is the same.
 */
#include "connector/name.h"
#include "core/crc.h"
#include "core/host.h"
#include "core/packed_walk.h"
#include "golden.h"
#include "support/packed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SHM	    ".kvcellar/packed/root.shm"
#define SEGMENTS_AT 192u /* in root.shm: bytes of all segment files */
#define EPOCH	    5u
#define OBJECTS	    4u

static const char *golden_root(bool this_boot)
{
	const char *root = folder_new("golden-packed");
	char path[PATH_BYTES];
	unsigned char *shm;
	size_t bytes;

	folder_copy(V1 "/packed", root);
	if (!this_boot)
		return root;
	text_make(path, sizeof(path), "%s/" SHM, root);
	bytes = file_read(path, &shm);
	assert_int_equal(bytes, sizeof(struct kvc_packed_shm));
	{
		uint64_t boot_id[2];

		assert_int_equal(kvc_host_boot_id(boot_id), 0);
		memcpy(shm + 128, boot_id, sizeof(boot_id));
	}
	file_write(path, shm, bytes);
	free(shm);
	return root;
}

static struct kvc_store *golden_open(const char *root)
{
	const struct setup setup = {
		.plugin = "posix",
		.layout = "packed",
		.roots = root,
		.flags = KVC_OPEN_NO_SELFTEST,
	};

	return setup_must_open(&setup);
}

/* ---------------------------------------------------------------- the objects */

#define KV                                                                              \
	{                                                                               \
		.name = "kv", .count = 1, .part_count = 2, .part_bytes = { 4096, 4096 } \
	}
#define ODD                                                                           \
	{                                                                             \
		.name = "odd", .count = 1, .part_count = 2, .part_bytes = { 1, 4097 } \
	}

struct golden {
	const char *key;
	struct pages_params pool;
	const char *checksum; /* option of a store that writes the same */
	uint32_t tp_size;
	uint32_t tp_rank;
	uint64_t gen;
	uint64_t ref;
	uint32_t bucket; /* where its entry in the table lies: in the first or the second */
};

static const struct golden objects[OBJECTS] = {
	{ "full", KV, "full", 1, 0, 1, 1 << 16, 0 },
	{ "none", KV, "none", 1, 0, 9, 1 << 16 | 2, 1 },
	{ "ranked", ODD, "full", 8, 5, 1, 1 << 16, 0 },
	{ "ranked", ODD, "sector", 8, 2, 3, 1 << 16 | 1, 1 },
};

/* A pool for one of them. */
struct opened {
	struct kvc_namespace *ns;
	struct pages pages;
};

static void object_open(struct opened *opened, struct kvc_store *store, const struct golden *golden)
{
	struct kvc_namespace_params params = namespace_params("golden/model");

	params.tp_size = golden->tp_size;
	params.tp_rank = golden->tp_rank;
	opened->ns = namespace_must_open(store, &params);
	pages_open(&opened->pages, opened->ns, &golden->pool);
}

static void object_close(struct opened *opened)
{
	pages_close(&opened->pages);
	assert_int_equal(kvc_namespace_close(opened->ns), 0);
}

static struct kvc_result run(struct kvc_store *store, struct opened *opened, int op,
			     const struct golden *golden)
{
	struct kvc_key key = key_of(golden->key);
	struct kvc_result result;
	int64_t index = 0;
	struct kvc_transfer transfer = transfer_of(&opened->pages, op, &key, 1, &index, &result);

	golden_chain(&transfer, golden->key);
	if (strcmp(golden->key, "none") == 0)
		transfer.depth = 70000;
	assert_int_equal(kvc_batch_run(store, &transfer, 1), 0);
	transfer_check(&transfer);
	return result;
}

static struct kvc_result get(struct kvc_store *store, const struct golden *golden)
{
	struct opened opened;
	struct kvc_result result;

	object_open(&opened, store, golden);
	expect_result(run(store, &opened, KVC_EXISTS, golden), KVC_OK, KVC_CAUSE_NONE);
	result = run(store, &opened, KVC_GET, golden);
	if (result.status == KVC_OK)
		golden_check(&opened.pages, golden->key);
	pages_check_gaps(&opened.pages);
	object_close(&opened);
	return result;
}

/* ---------------------------------------------------------------- made again */

static void test_the_index_is_made_again(void **state)
{
	struct kvc_store *store = golden_open(golden_root(false));
	struct kvc_packed_health health = packed_health(store);
	struct kvc_packed_arena *arena;

	(void)state;
	assert_true(health.rebuilt);
	assert_int_equal(health.live_slots, OBJECTS);
	assert_int_equal(health.free_slots, 2); /* nobody writes any more */
	assert_int_equal(packed_check(store), OBJECTS);
	arena = atomic_load(&packed_of(store, 0)->arenas);
	assert_int_not_equal(atomic_load(&arena->record->epoch), EPOCH);
	store_must_close(store);
}

/* Whether the bytes of an object without a checksum came through the reboot, nobody can tell. */
static void test_pages_are_read_after_a_reboot(void **state)
{
	struct kvc_store *store = golden_open(golden_root(false));

	(void)state;
	for (size_t i = 0; i < OBJECTS; i++) {
		const bool unknown = strcmp(objects[i].checksum, "none") == 0;

		expect_result(get(store, &objects[i]), unknown ? KVC_CORRUPT : KVC_OK,
			      unknown ? KVC_CAUSE_TRAILER : KVC_CAUSE_NONE);
	}
	assert_int_equal(packed_check(store), OBJECTS - 1);
	store_must_close(store);
}

/* ---------------------------------------------------------------- as it is stored */

static void test_pages_are_read_by_the_stored_table(void **state)
{
	struct kvc_store *store = golden_open(golden_root(true));

	(void)state;
	assert_false(packed_health(store).rebuilt);
	for (size_t i = 0; i < OBJECTS; i++)
		expect_result(get(store, &objects[i]), KVC_OK, KVC_CAUSE_NONE);
	for (struct kvc_packed_arena *a = atomic_load(&packed_of(store, 0)->arenas); a; a = a->next)
		assert_int_equal(atomic_load(&a->record->epoch), EPOCH);
	store_must_close(store);
}

/* Counters as stored are those that this library counts. */
static void test_counters_are_understood(void **state)
{
	const char *root = golden_root(true);
	struct kvc_store *store = golden_open(root);
	struct kvc_packed_health health = packed_health(store);
	unsigned char *shm;
	uint64_t bytes;

	(void)state;
	assert_int_equal(health.arenas, 2);
	assert_int_equal(health.segments, 2);
	assert_int_equal(health.live_slots, OBJECTS);
	assert_int_equal(health.free_slots, 1);
	assert_int_equal(health.processes, 2); /* the dead one and this one */
	assert_int_equal(file_read(V1 "/packed/" SHM, &shm), sizeof(struct kvc_packed_shm));
	memcpy(&bytes, shm + SEGMENTS_AT, sizeof(bytes));
	assert_int_equal(health.segment_bytes, bytes);
	free(shm);
	kvc_packed_recount(packed_of(store, 0));
	assert_int_equal(packed_health(store).live_slots, OBJECTS);
	assert_int_equal(packed_health(store).free_slots, 1);
	store_must_close(store);
}

/* Tag, bucket and reference of each object's entry, and the slot's fields. */
static void test_slots_and_entries_are_where_they_should_be(void **state)
{
	struct kvc_store *store = golden_open(golden_root(true));

	(void)state;
	for (size_t i = 0; i < OBJECTS; i++) {
		const struct golden *golden = &objects[i];
		struct kvc_packed_buckets buckets;
		struct packed_spot spot;
		struct kvc_packed_slot *slot;
		struct opened opened;
		uint64_t entry, g, v;

		object_open(&opened, store, golden);
		assert_true(packed_spot(store, opened.pages.pool, key_of(golden->key), 0, &spot));
		assert_int_equal(spot.place.ref, golden->ref);
		assert_int_equal(kvc_packed_gen(spot.place.state), golden->gen);
		slot = &spot.place.segment->headers[kvc_packed_ref_slot(golden->ref)];
		g = atomic_load(&slot->g);
		v = atomic_load(&slot->v);
		assert_int_equal(kvc_packed_slot_crc(slot, spot.place.state),
				 atomic_load(&slot->len_crc) >> 32);
		buckets = kvc_packed_buckets(kvc_packed_table_get(spot.arena), g,
					     kvc_packed_lane(atomic_load(&slot->created_depth)));
		entry = atomic_load(&buckets.entries[golden->bucket][0]);
		assert_int_equal(entry, kvc_packed_tag(g, v) | golden->ref);
		object_close(&opened);
	}
	store_must_close(store);
}

static void test_the_dead_writer_is_found(void **state)
{
	struct kvc_store *store = golden_open(golden_root(true));
	struct kvc_packed *packed = packed_of(store, 0);

	(void)state;
	/* The keeper may have been first. */
	(void)kvc_packed_recover_dead(packed);
	assert_int_equal(packed_slots(store).quarantined, 1);
	assert_int_equal(packed_slots(store).live, OBJECTS);
	assert_int_equal(packed_health(store).quarantined, 1);
	atomic_store(&packed->shm->processes[3].quarantined, 1); /* long ago */
	(void)kvc_packed_recover_dead(packed);
	assert_int_equal(packed_slots(store).free, 2);
	assert_int_equal(packed_health(store).processes, 1);
	assert_int_equal(packed_check(store), OBJECTS);
	store_must_close(store);
}

/* ---------------------------------------------------------------- for tools */

static int count_take(void *context, const struct kvc_object_info *info,
		      const struct kvc_result *result, uint64_t done, uint64_t total)
{
	size_t *count = context;

	(void)done;
	(void)total;
	golden_expect_ok(info, result);
	if (info->name[0] == '?')
		fail_msg("%s has no name", info->path);
	(*count)++;
	return 0;
}

static void test_verify_finds_no_fault(void **state)
{
	struct kvc_store *store = golden_open(golden_root(true));
	size_t count = 0;

	(void)state;
	assert_int_equal(kvc_store_verify(store, NULL, 0, count_take, &count), 0);
	assert_int_equal(count, OBJECTS);
	store_must_close(store);
}

/* What pools say of a page, the list says of the slot. */
struct expected {
	const struct golden *golden;
	struct kvc_store *store;
	char name[256];
	char path[256];
	size_t seen;
};

static int where_take(void *context, const struct kvc_object_info *info)
{
	struct expected *expected = context;

	text_make(expected->name, sizeof(expected->name), "%s", info->name);
	text_make(expected->path, sizeof(expected->path), "%s", info->path);
	return 0;
}

static int list_take(void *context, const struct kvc_object_info *info)
{
	struct expected *expected = context;
	struct kvc_object_detail detail = { .size = sizeof(detail) };

	if (strcmp(info->path, expected->path) != 0)
		return 0;
	assert_string_equal(info->name, expected->name);
	assert_string_equal(info->pool_name, expected->golden->pool.name);
	assert_int_equal(info->key.bytes, strlen(expected->golden->key));
	assert_memory_equal(info->key.data, expected->golden->key, info->key.bytes);
	assert_int_equal(kvc_object_stat(expected->store, info->root_path, info->path, &detail), 0);
	assert_int_equal(detail.created_ns, GOLDEN_CREATED_NS);
	expected->seen++;
	return 0;
}

static void test_list_and_stat_know_the_objects(void **state)
{
	struct kvc_store *store = golden_open(golden_root(true));

	(void)state;
	for (size_t i = 0; i < OBJECTS; i++) {
		struct expected expected = { .golden = &objects[i], .store = store };
		struct opened opened;

		object_open(&opened, store, &objects[i]);
		assert_int_equal(kvc_pool_where(opened.pages.pool, key_of(objects[i].key),
						where_take, &expected),
				 0);
		assert_int_equal(kvc_object_list(store, NULL, list_take, &expected), 0);
		assert_int_equal(expected.seen, 1);
		object_close(&opened);
	}
	store_must_close(store);
}

/* ---------------------------------------------------------------- writing */

/* A root with the golden one's identity and nothing else. */
static struct kvc_store *fresh_open(const char *checksum)
{
	const char *root = folder_new("golden-fresh");
	char setting[64], to[PATH_BYTES];
	struct setup setup = {
		.plugin = "posix",
		.layout = "packed",
		.roots = root,
		.flags = KVC_OPEN_NO_SELFTEST,
		.settings = { setting },
	};
	unsigned char *text;
	size_t bytes;

	text_make(setting, sizeof(setting), "checksum=%s", checksum);
	text_make(to, sizeof(to), "%s/.kvcellar", root);
	assert_int_equal(mkdir(to, 0777), 0);
	text_make(to, sizeof(to), "%s/.kvcellar/root.json", root);
	bytes = file_read(V1 "/packed/.kvcellar/root.json", &text);
	file_write(to, text, bytes);
	free(text);
	return setup_must_open(&setup);
}

/* What of a slot's header and names record does not tell of the moment of its writing. */
struct lasting {
	uint64_t g;
	uint64_t v;
	uint64_t checksum;
	uint64_t parent_g;
	uint32_t bytes;
	uint32_t depth_flags;
	struct kvc_packed_name name;
	unsigned char data[12288];
};

static void lasting_of(struct kvc_store *store, const struct opened *opened,
		       const struct golden *golden, struct lasting *out)
{
	const struct kvc_packed_slot *slot;
	struct packed_spot spot;
	uint32_t number, crc;

	memset(out, 0, sizeof(*out));
	assert_true(packed_spot(store, opened->pages.pool, key_of(golden->key), 0, &spot));
	number = kvc_packed_ref_slot(spot.place.ref);
	slot = &spot.place.segment->headers[number];
	out->g = atomic_load(&slot->g);
	out->v = atomic_load(&slot->v);
	out->checksum = atomic_load(&slot->checksum);
	out->parent_g = atomic_load(&slot->parent_g);
	out->bytes = kvc_packed_len(atomic_load(&slot->len_crc));
	out->depth_flags = (uint32_t)(atomic_load(&slot->created_depth) >> 32);
	out->name = kvc_packed_names(spot.place.segment)[number];
	crc = out->name.crc;
	out->name.crc = 0;
	assert_int_equal(kvc_crc32c(&out->name, sizeof(out->name)), crc);
	assert_int_equal(out->name.gen, kvc_packed_gen(spot.place.state));
	out->name.gen = 0;
	packed_spot_read(&spot, 0, out->data, spot.bytes);
}

static void test_fresh_objects_are_the_same(void **state)
{
	struct kvc_store *golden_store = golden_open(golden_root(true));

	(void)state;
	for (size_t i = 0; i < OBJECTS; i++) {
		struct kvc_store *store = fresh_open(objects[i].checksum);
		struct lasting golden, fresh;
		struct opened opened;

		object_open(&opened, golden_store, &objects[i]);
		lasting_of(golden_store, &opened, &objects[i], &golden);
		object_close(&opened);
		object_open(&opened, store, &objects[i]);
		golden_fill(&opened.pages, objects[i].key);
		expect_result(run(store, &opened, KVC_SET, &objects[i]), KVC_OK, KVC_CAUSE_NONE);
		lasting_of(store, &opened, &objects[i], &fresh);
		object_close(&opened);
		assert_memory_equal(&fresh, &golden, sizeof(fresh));
		store_must_close(store);
	}
	store_must_close(golden_store);
}

/* ---------------------------------------------------------------- g and v */

/* A line of packed-names.txt. */
struct vector {
	uint32_t rank[4]; /* tp, pp, cp, dcp */
	uint32_t size[4];
	uint32_t is_mla;
	uint32_t key_bytes;
	uint64_t fingerprint;
	uint64_t g;
	uint64_t v;
};

static bool vector_read(FILE *file, struct vector *out)
{
	const int n = fscanf(file,
			     "%" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32
			     " %" SCNu32 " %" SCNu32 " mla %" SCNu32 " pool %" SCNx64
			     " key %" SCNu32 " g %" SCNx64 " v %" SCNx64 "\n",
			     &out->rank[0], &out->size[0], &out->rank[1], &out->size[1],
			     &out->rank[2], &out->size[2], &out->rank[3], &out->size[3],
			     &out->is_mla, &out->fingerprint, &out->key_bytes, &out->g, &out->v);

	if (n != 13 && n != EOF)
		fail_msg("a line of packed-names.txt has only %d numbers", n);
	return n == 13;
}

static void vector_check(const struct vector *vector, size_t line)
{
	struct kvc_namespace_params params = namespace_params("golden/model");
	struct kvc_namespace_identity ns;
	struct kvc_name_params name = {
		.ns = &ns,
		.pool_name = "kv",
		.naming = KVC_NAMING_KVCELLAR,
		.pool_fingerprint = vector->fingerprint,
		.vrank = vector->rank[0],
		.vrank_count = vector->size[0],
		.shared = vector->is_mla,
	};
	struct kvc_name_rule rule;
	unsigned char data[2048];
	const struct kvc_key key = { data, vector->key_bytes };
	uint64_t g, v;

	params.tp_rank = vector->rank[0], params.tp_size = vector->size[0];
	params.pp_rank = vector->rank[1], params.pp_size = vector->size[1];
	params.cp_rank = vector->rank[2], params.cp_size = vector->size[2];
	params.dcp_rank = vector->rank[3], params.dcp_size = vector->size[3];
	params.is_mla = vector->is_mla;
	assert_true(vector->key_bytes <= sizeof(data));
	for (size_t i = 0; i < vector->key_bytes; i++)
		data[i] = golden_byte("k", (uint32_t)line, i);
	assert_int_equal(kvc_namespace_identity_init(&ns, &params, NULL, NULL), 0);
	assert_int_equal(kvc_name_rule_init(&rule, &name), 0);
	kvc_name_packed(&rule, &key, &g, &v);
	if (g != vector->g || v != vector->v)
		fail_msg("line %zu: g %016" PRIx64 " v %016" PRIx64, line, g, v);
	kvc_namespace_identity_fini(&ns);
}

static void test_names_are_hashed_as_documented(void **state)
{
	FILE *file = fopen(V1 "/packed-names.txt", "r");
	struct vector vector;
	size_t lines = 0;

	(void)state;
	assert_non_null(file);
	while (vector_read(file, &vector))
		vector_check(&vector, lines++);
	assert_int_equal(lines, 16);
	(void)fclose(file);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_index_is_made_again),
		cmocka_unit_test(test_pages_are_read_after_a_reboot),
		cmocka_unit_test(test_pages_are_read_by_the_stored_table),
		cmocka_unit_test(test_counters_are_understood),
		cmocka_unit_test(test_slots_and_entries_are_where_they_should_be),
		cmocka_unit_test(test_the_dead_writer_is_found),
		cmocka_unit_test(test_verify_finds_no_fault),
		cmocka_unit_test(test_list_and_stat_know_the_objects),
		cmocka_unit_test(test_fresh_objects_are_the_same),
		cmocka_unit_test(test_names_are_hashed_as_documented),
	};

	support_begin();
	return cmocka_run_group_tests_name("golden-packed", tests, NULL, NULL);
}
