/* SPDX-License-Identifier: Apache-2.0 */
/* core/packed_table.c: what is found, replaced and lost in the table of an arena. */
#include "packed.h"

#include <glob.h>

#define CAPACITY "64MiB" /* segments of 1024 slots */

static enum kvc_packed_st st_at(struct kvc_packed_arena *arena, uint64_t ref)
{
	struct kvc_packed_segment *segment = kvc_packed_segment_of(arena, ref);

	return kvc_packed_st(atomic_load(&segment->headers[kvc_packed_ref_slot(ref)].state));
}

/* ---------------------------------------------------------------- one object */

static void test_put_find_remove(void **state)
{
	struct opened opened = must_open(folder_new("table"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_place place, again;

	(void)state;
	for (uint64_t i = 0; i < 500; i++) {
		assert_false(has_key(arena, i, &place));
		assert_int_equal(put_key(&opened, arena, i, false), 0);
		assert_true(has_key(arena, i, &place));
	}
	for (uint64_t i = 0; i < 500; i++) {
		assert_true(has_key(arena, i, &place));
		assert_int_equal(place.checksum, mix(i, 3));
		if (i % 3)
			continue;
		assert_true(kvc_packed_remove(arena, &place));
		assert_false(kvc_packed_remove(arena, &place));
		assert_false(has_key(arena, i, &again));
		assert_int_equal(st_at(arena, place.ref), KVC_PACKED_FREE);
	}
	for (uint64_t i = 0; i < 500; i++)
		assert_int_equal(has_key(arena, i, &place), i % 3 != 0);
	/* Another length is another object. */
	assert_false(
		kvc_packed_find(arena,
				&(struct kvc_packed_key){
					.g = mix(0, 1), .v = mix(1, 2), .lane = 1, .bytes = 99 },
				&place) == 0);
	must_close(&opened);
}

static void test_an_overwrite_takes_the_entry(void **state)
{
	struct opened opened = must_open(folder_new("over"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_place old, new;

	(void)state;
	assert_int_equal(put_as(&opened, arena, 1, 2, 0, false), 0);
	assert_true(has_as(arena, 1, 2, 0, &old));
	assert_int_equal(put_as(&opened, arena, 1, 2, 0, true), 0);
	assert_true(has_as(arena, 1, 2, 0, &new));
	assert_int_not_equal(old.ref, new.ref);
	assert_int_equal(st_at(arena, old.ref), KVC_PACKED_FREE);
	assert_int_equal(atomic_load(&arena->record->live_slots), 1);
	must_close(&opened);
}

/* Whoever publishes last: the smaller reference stays. */
static void test_of_two_the_smaller_stays(void **state)
{
	struct opened opened = must_open(folder_new("two"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_place first, second, found;

	(void)state;
	for (unsigned turn = 0; turn < 2; turn++) {
		assert_int_equal(kvc_packed_claim(arena, 0, &first), 0);
		assert_int_equal(kvc_packed_claim(arena, 1, &second), 0);
		assert_true(first.ref < second.ref);
		assert_int_equal(publish_key(&opened, arena, turn ? &first : &second, turn, false),
				 0);
		assert_int_equal(publish_key(&opened, arena, turn ? &second : &first, turn, false),
				 turn);
		assert_true(has_key(arena, turn, &found));
		assert_int_equal(found.ref, first.ref);
		assert_int_equal(st_at(arena, second.ref), KVC_PACKED_FREE);
	}
	assert_int_equal(atomic_load(&arena->record->live_slots), 2);
	must_close(&opened);
}

/* ---------------------------------------------------------------- many */

static void test_growth_keeps_all(void **state)
{
	struct opened opened = must_open(folder_new("growth"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	const uint32_t before = atomic_load(&arena->record->epoch);
	struct kvc_packed_place place;
	uint64_t found = 0;

	(void)state;
	for (uint64_t i = 0; i < 12000; i++)
		assert_int_equal(put_key(&opened, arena, i, false), 0);
	for (uint64_t i = 0; i < 12000; i++)
		found += has_key(arena, i, &place);
	assert_true(atomic_load(&arena->record->epoch) > before + 2);
	(void)printf("%llu of 12000 found, %llu had to make room in full buckets\n",
		     (unsigned long long)found,
		     (unsigned long long)atomic_load(&opened.packed->evicted));
	assert_int_equal(found + atomic_load(&opened.packed->evicted), 12000);
	assert_int_equal(found, atomic_load(&arena->record->live_slots));
	assert_true(found > 11900);
	must_close(&opened);
}

/* Groups whose two buckets are those of group 0. */
static uint64_t next_neighbour(struct kvc_packed_arena *arena, uint64_t g)
{
	const struct kvc_packed_buckets want =
		kvc_packed_buckets(kvc_packed_table_get(arena), 0, 0);
	struct kvc_packed_buckets have;

	do {
		have = kvc_packed_buckets(kvc_packed_table_get(arena), ++g, 0);
	} while (!((have.entries[0] == want.entries[0] && have.entries[1] == want.entries[1]) ||
		   (have.entries[0] == want.entries[1] && have.entries[1] == want.entries[0])));
	return g;
}

static void test_full_buckets_lose_the_oldest_group(void **state)
{
	struct opened opened = must_open(folder_new("full"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	uint64_t groups[20];

	(void)state;
	assert_int_equal(put_key(&opened, arena, 1, false), 0); /* makes the table */
	for (unsigned i = 0; i < 20; i++)
		groups[i] = next_neighbour(arena, i ? groups[i - 1] : 1000);
	/* The first has a second object, in another lane. */
	assert_int_equal(put_as(&opened, arena, groups[0], 77, 5, false), 0);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(put_as(&opened, arena, groups[i], mix(i, 9), 0, false), 0);
	assert_true(has_as(arena, groups[0], mix(0, 9), 0, NULL));
	assert_true(has_as(arena, groups[0], 77, 5, NULL));
	for (unsigned i = 16; i < 20; i++) {
		assert_int_equal(put_as(&opened, arena, groups[i], mix(i, 9), 0, false), 0);
		for (unsigned k = 0; k <= i; k++)
			assert_int_equal(has_as(arena, groups[k], mix(k, 9), 0, NULL), k > i - 16);
	}
	assert_false(has_as(arena, groups[0], 77, 5, NULL));
	must_close(&opened);
}

/* ---------------------------------------------------------------- a maker that dies */

#define LATE_KEYS 20u

static uint64_t late_key(unsigned i)
{
	return 7000 + i;
}

/* Another process of the root, which stores in the table of before. */
static void between_steps(void *context, const char *step)
{
	struct opened *other = context;

	if (strcmp(step, "packed.table.made") == 0)
		for (unsigned i = 0; i < LATE_KEYS; i++)
			(void)put_key(other, arena_of(other, false), late_key(i), false);
	if (strcmp(step, "packed.table.published") == 0)
		(void)kill(getpid(), SIGKILL);
}

static int make_and_die(void *context)
{
	struct opened maker = must_open(context, CAPACITY), other = must_open(context, CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&maker, false);

	maker.packed->step_context = &other;
	maker.packed->step = between_steps;
	assert_int_equal(kvc_packed_changes_begin(maker.packed), 0);
	return kvc_packed_table_make(arena, 4000);
}

static size_t tables_of(const char *root)
{
	char pattern[PATH_BYTES];
	glob_t found;
	size_t count;

	text_make(pattern, sizeof(pattern), "%s/" NS_FOLDER "/slots-4096/table.*", root);
	count = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
	globfree(&found);
	return count;
}

static size_t late_keys(struct kvc_packed_arena *arena)
{
	struct kvc_packed_place place;
	size_t found = 0;

	for (unsigned i = 0; i < LATE_KEYS; i++)
		found += has_key(arena, late_key(i), &place);
	return found;
}

/* What was stored meanwhile is in neither the new table nor lost. */
static void test_a_table_that_was_not_finished(void **state)
{
	struct kvc_packed_arena *arena;
	char root[PATH_BYTES];
	struct opened opened;

	(void)state;
	text_make(root, sizeof(root), "%s", folder_new("unfinished"));
	opened = must_open(root, CAPACITY);
	arena = arena_of(&opened, true);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(put_key(&opened, arena, i, false), 0);
	must_close(&opened);
	assert_int_equal(run_child(make_and_die, root), 0);
	assert_int_equal(tables_of(root), 2);
	opened = must_open(root, CAPACITY);
	arena = arena_of(&opened, false);
	for (int turn = 0; turn < 2; turn++) {
		kvc_packed_table_finish(arena);
		assert_int_equal(late_keys(arena), LATE_KEYS);
		assert_int_equal(tables_of(root), 1);
	}
	must_close(&opened);
}

/* ---------------------------------------------------------------- a table that lies */

static uint64_t random_entry(struct chance *chance, unsigned kind)
{
	const uint64_t random = chance_next(chance);

	/* Anything; an entry of a slot that is there, with any tag; of a segment that is not. */
	if (kind == 0)
		return random;
	if (kind == 1)
		return (random & KVC_PACKED_TAG) |
		       kvc_packed_ref(1 + (uint32_t)(random % 3), (uint32_t)(random >> 8) % 1100);
	return (random & KVC_PACKED_TAG) | (random & KVC_PACKED_REF_MASK);
}

static void spoil(struct kvc_packed_arena *arena, struct chance *chance, unsigned kind)
{
	const struct kvc_packed_table *table = kvc_packed_table_get(arena);

	for (uint64_t i = 0; i < table->bucket_count * KVC_PACKED_BUCKET; i++)
		atomic_store(&table->entries[i], random_entry(chance, kind));
}

static void test_a_random_table_is_harmless(void **state)
{
	struct opened opened = must_open(folder_new("random"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct chance chance = { .state = seed_get() };
	struct kvc_packed_place place;
	uint64_t next = 0;

	(void)state;
	for (unsigned round = 0; round < 9; round++) {
		unsigned found = 0;

		for (unsigned i = 0; i < 300; i++)
			assert_int_equal(put_key(&opened, arena, next++, false), 0);
		spoil(arena, &chance, round % 3);
		for (uint64_t i = 0; i < next; i++) {
			if (!has_key(arena, i, &place))
				continue;
			found++;
			assert_int_equal(place.checksum, mix(i, 3));
		}
		assert_true(found < 300);
		/* It works on: what is stored is found, evicted and removed. */
		for (unsigned i = 0; i < 100; i++) {
			assert_int_equal(put_key(&opened, arena, next, false), 0);
			assert_true(has_key(arena, next, &place));
			assert_int_equal(place.checksum, mix(next++, 3));
		}
		assert_true(kvc_packed_remove(arena, &place));
		assert_true(kvc_packed_evict(arena, 5) >= 5);
	}
	/* What has no entry goes like the rest. */
	while (atomic_load(&arena->record->live_slots) > 0 && kvc_packed_evict(arena, 64) > 0)
		;
	assert_true(kvc_packed_arena_recount(arena));
	assert_true(atomic_load(&arena->record->live_slots) < 200);
	must_close(&opened);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_put_find_remove),
		cmocka_unit_test(test_an_overwrite_takes_the_entry),
		cmocka_unit_test(test_of_two_the_smaller_stays),
		cmocka_unit_test(test_growth_keeps_all),
		cmocka_unit_test(test_full_buckets_lose_the_oldest_group),
		cmocka_unit_test(test_a_table_that_was_not_finished),
		cmocka_unit_test(test_a_random_table_is_harmless),
	};

	support_begin();
	return cmocka_run_group_tests_name("packed_table", tests, NULL, NULL);
}
