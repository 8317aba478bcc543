/* SPDX-License-Identifier: Apache-2.0 */
/* core/packed_slot.c, packed_evict.c: claims, what is evicted, what a sweep puts right. */
#include "packed.h"

#include <pthread.h>

#define CAPACITY "16MiB" /* segments of 256 slots */

static enum kvc_packed_st st_of(const struct kvc_packed_place *place)
{
	return kvc_packed_st(
		atomic_load(&place->segment->headers[kvc_packed_ref_slot(place->ref)].state));
}

/* ---------------------------------------------------------------- claims */

static void test_a_slot_that_was_recycled_is_another(void **state)
{
	struct opened opened = must_open(folder_new("recycled"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_place old, new;

	(void)state;
	assert_int_equal(put_key(&opened, arena, 1, false), 0);
	assert_true(has_key(arena, 1, &old));
	assert_true(kvc_packed_is_same(&old));
	assert_true(kvc_packed_remove(arena, &old));
	assert_false(kvc_packed_is_same(&old));
	/* The same key in the same slot again. */
	do {
		assert_int_equal(kvc_packed_claim(arena, 0, &new), 0);
		assert_false(kvc_packed_is_same(&old));
		if (new.ref != old.ref)
			kvc_packed_abandon(arena, &new);
	} while (new.ref != old.ref);
	assert_int_equal(publish_key(&opened, arena, &new, 1, false), 0);
	assert_false(kvc_packed_is_same(&old));
	assert_false(kvc_packed_remove(arena, &old));
	assert_true(has_key(arena, 1, &new));
	assert_int_equal(new.ref, old.ref);
	assert_true(kvc_packed_gen(new.state) > kvc_packed_gen(old.state));
	must_close(&opened);
}

struct first {
	struct kvc_packed_arena *arena;
	uint32_t intent;
	int rc;
	pthread_barrier_t *barrier;
};

static void *claim_first(void *context)
{
	struct first *first = context;
	struct kvc_packed_place place;

	(void)pthread_barrier_wait(first->barrier);
	first->rc = kvc_packed_claim(first->arena, first->intent, &place);
	return NULL;
}

/* None is refused because another is making it. */
static void test_threads_wait_for_the_first_segment(void **state)
{
	struct opened opened = must_open(folder_new("first"), CAPACITY);
	struct first firsts[8];
	pthread_barrier_t barrier;
	pthread_t threads[8];

	(void)state;
	assert_int_equal(pthread_barrier_init(&barrier, NULL, 8), 0);
	for (uint32_t i = 0; i < 8; i++) {
		firsts[i] = (struct first){ arena_of(&opened, true), i, 1, &barrier };
		assert_int_equal(pthread_create(&threads[i], NULL, claim_first, &firsts[i]), 0);
	}
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(firsts[i].rc, 0);
	}
	assert_int_equal(atomic_load(&firsts[0].arena->record->segments), 1);
	assert_int_equal(atomic_load(&firsts[0].arena->record->free_slots), 248);
	(void)pthread_barrier_destroy(&barrier);
	must_close(&opened);
}

static void test_a_marked_segment_gives_no_slot(void **state)
{
	struct opened opened = must_open(folder_new("marked"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_segment *segment;
	struct kvc_packed_place place, other;

	(void)state;
	assert_int_equal(kvc_packed_claim(arena, 0, &place), 0);
	segment = place.segment;
	assert_int_equal(put_key(&opened, arena, 1, false), 0);
	assert_int_equal(kvc_packed_segment_retire(segment), -EBUSY);
	assert_false(has_key(arena, 1, &other));
	assert_int_equal(kvc_packed_claim(arena, 1, &other), 0);
	assert_ptr_not_equal(other.segment, segment);
	kvc_packed_abandon(arena, &other);
	/* The set that is under way ends as if nothing was; then the segment can go. */
	kvc_packed_abandon(arena, &place);
	(void)kvc_packed_finish_retiring(opened.packed);
	assert_null(kvc_packed_segment(arena, 1));
	assert_int_equal(atomic_load(&arena->record->present), 1);
	assert_int_equal(atomic_load(&arena->record->free_slots), 256);
	must_close(&opened);
}

/* One slot that may not be used for a minute does not cost the others. */
static void test_a_quarantine_keeps_its_segment(void **state)
{
	struct opened opened = must_open(folder_new("quarantine"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_place place, found;
	struct kvc_packed_slot *slot;
	uint64_t before;

	(void)state;
	assert_int_equal(kvc_packed_claim(arena, 0, &place), 0);
	slot = &place.segment->headers[kvc_packed_ref_slot(place.ref)];
	before = atomic_load(&slot->state);
	atomic_store(&slot->state, kvc_packed_state(kvc_packed_gen(before), 200, KVC_PACKED_QUAR));
	assert_int_equal(put_key(&opened, arena, 1, false), 0);
	assert_int_equal(kvc_packed_segment_retire(place.segment), -EBUSY);
	assert_true(has_key(arena, 1, &found));
	assert_int_equal(atomic_load(&place.segment->hdr->retired), 0);
	/* Nobody may claim, publish or free it. */
	assert_int_not_equal(publish_key(&opened, arena, &place, 2, false), 0);
	assert_int_equal(st_of(&place), KVC_PACKED_QUAR);
	atomic_store(&slot->state, before);
	kvc_packed_abandon(arena, &place);
	must_close(&opened);
}

/* ---------------------------------------------------------------- eviction */

static int put_in(struct opened *opened, struct kvc_packed_arena *arena, uint64_t g, uint32_t lane)
{
	return put_as(opened, arena, g, mix(g, lane), lane, false);
}

static bool is_in(struct kvc_packed_arena *arena, uint64_t g, uint32_t lane,
		  struct kvc_packed_place *out)
{
	return has_as(arena, g, mix(g, lane), lane, out);
}

/* R37: a page of several ranks and pools, in two arenas. */
static void test_a_group_goes_as_a_whole(void **state)
{
	struct opened opened = must_open(folder_new("group"), CAPACITY);
	struct kvc_packed_arena *small = arena_of(&opened, true);
	struct kvc_packed_arena *large =
		kvc_packed_arena_get(opened.packed, NS_HASH, NS_FOLDER, 2 * SLOT_BYTES, true, NULL);
	struct kvc_packed_arena *other = kvc_packed_arena_get(
		opened.packed, NS_HASH + 1, "other-1122334455667789", SLOT_BYTES, true, NULL);
	struct kvc_packed_place place;
	unsigned gone = 0, kept = 0;

	(void)state;
	for (uint64_t g = 1; g <= 100; g++) {
		for (uint32_t lane = 0; lane < 4; lane++) {
			assert_int_equal(put_in(&opened, small, g, lane), 0);
			assert_int_equal(put_in(&opened, large, g, lane), 0);
		}
		assert_int_equal(put_in(&opened, other, g, 0), 0);
	}
	/* One part of the oldest groups was used just now. */
	for (uint64_t g = 1; g <= 20; g++) {
		assert_true(is_in(large, g, 3, &place));
		atomic_store(&place.segment->stamps[kvc_packed_ref_slot(place.ref)],
			     kvc_packed_stamps(opened.packed, 1) << 1);
	}
	assert_true(kvc_packed_evict(small, 100) >= 100);
	for (uint64_t g = 1; g <= 100; g++) {
		unsigned there = 0;

		for (uint32_t lane = 0; lane < 4; lane++)
			there += is_in(small, g, lane, &place) + is_in(large, g, lane, &place);
		assert_true(there == 0 || there == 8);
		gone += there == 0;
		kept += g <= 20 && there == 8;
		assert_true(is_in(other, g, 0, &place));
	}
	(void)printf("%u groups went, %u of 20 that look old in one arena alone stayed\n", gone,
		     kept);
	assert_true(gone >= 12);
	assert_int_equal(kept, 20);
	must_close(&opened);
}

/* Arenas that gave segments away find victims in those that they have. */
static void test_few_segments_of_many_numbers(void **state)
{
	struct opened opened = must_open(folder_new("numbers"), "1MiB");
	struct kvc_packed_arena *arena = arena_of(&opened, true);

	(void)state;
	for (unsigned i = 0; i < 400; i++) {
		assert_int_equal(kvc_packed_segment_add(arena), 0);
		if (i < 399)
			assert_int_equal(kvc_packed_retire_coldest(opened.packed), 0);
	}
	assert_int_equal(atomic_load(&arena->record->present), 1);
	for (uint64_t i = 0; i < 16; i++)
		assert_int_equal(put_key(&opened, arena, i, false), 0);
	for (unsigned i = 0; i < 8; i++)
		assert_true(kvc_packed_evict(arena, 1) > 0);
	must_close(&opened);
}

/* ---------------------------------------------------------------- eviction and a trace */

#define IDS_MAX 40000u

struct trace {
	uint32_t *ids;
	size_t count;
};

/* The numbers of all "hash_ids" arrays, in their order. */
static struct trace trace_read(void)
{
	struct trace trace = { .ids = calloc(IDS_MAX, sizeof(*trace.ids)) };
	unsigned char *text;
	const size_t bytes = file_read(
		KVC_TEST_SOURCE_DIR "/../traces/mooncake_conversation_sample.jsonl", &text);
	char *copy = malloc(bytes + 1), *at;

	assert_non_null(trace.ids);
	assert_non_null(copy);
	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	for (at = strstr(copy, "\"hash_ids\": ["); at; at = strstr(at, "\"hash_ids\": [")) {
		at += strlen("\"hash_ids\": [") - 1;
		while (*at != ']' && trace.count < IDS_MAX)
			trace.ids[trace.count++] = (uint32_t)strtoul(at + 1, &at, 10);
	}
	free(copy);
	free(text);
	return trace;
}

/* Exact LRU of that many objects. */
static unsigned lru_hits(const struct trace *trace, size_t room)
{
	size_t *last = calloc(IDS_MAX, sizeof(*last)), live = 0;
	unsigned hits = 0;

	assert_non_null(last);
	for (size_t i = 0; i < trace->count; i++) {
		size_t oldest = 0;

		assert_true(trace->ids[i] < IDS_MAX);
		if (last[trace->ids[i]]) {
			hits++;
		} else if (live < room) {
			live++;
		} else {
			for (size_t k = 1; k < IDS_MAX; k++)
				if (last[k] && (!last[oldest] || last[k] < last[oldest]))
					oldest = k;
			last[oldest] = 0;
		}
		last[trace->ids[i]] = i + 1;
	}
	free(last);
	return hits;
}

static unsigned packed_hits(const struct trace *trace, struct opened *opened)
{
	struct kvc_packed_arena *arena = arena_of(opened, true);
	struct kvc_packed_place place;
	unsigned hits = 0;

	for (size_t i = 0; i < trace->count; i++) {
		if (is_in(arena, trace->ids[i] + 1, 0, &place)) {
			hits++;
			kvc_packed_touch(arena, &place, kvc_packed_stamps(opened->packed, 1));
		} else {
			assert_int_equal(put_in(opened, arena, trace->ids[i] + 1, 0), 0);
		}
	}
	return hits;
}

static void test_sampling_is_nearly_lru(void **state)
{
	struct opened opened = must_open(folder_new("lru"), CAPACITY);
	const struct trace trace = trace_read();
	const unsigned hits = packed_hits(&trace, &opened);
	const struct slot_counts slots = slots_count(arena_of(&opened, false));
	const unsigned lru = lru_hits(&trace, slots.slots);

	(void)state;
	(void)printf("%zu pages of a trace, %llu slots: %u hits by sampling, %u by exact LRU\n",
		     trace.count, (unsigned long long)slots.slots, hits, lru);
	assert_true(lru > 1000);
	assert_true(hits >= lru * 95 / 100);
	free(trace.ids);
	must_close(&opened);
}

/* ---------------------------------------------------------------- sweep, reserve */

static void test_a_sweep_puts_bits_and_counts_right(void **state)
{
	struct opened opened = must_open(folder_new("sweep"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct chance chance = { .state = seed_get() };
	struct kvc_packed_place place;
	struct slot_counts counts;

	(void)state;
	for (uint64_t i = 0; i < 300; i++)
		assert_int_equal(put_key(&opened, arena, i, false), 0);
	assert_int_equal(kvc_packed_claim(arena, 3, &place), 0);
	for (uint32_t n = 1; n <= 2; n++)
		for (unsigned w = 0; w < 4; w++)
			atomic_store(&kvc_packed_segment(arena, n)->bitmap[w],
				     chance_next(&chance));
	atomic_store(&arena->record->free_slots, UINT64_MAX - 5);
	atomic_store(&arena->record->live_slots, 12345);
	assert_int_equal(kvc_packed_hint(&arena->record->free_slots), 0);
	assert_int_equal(kvc_packed_sweep(arena), 512 - 301);
	assert_true(kvc_packed_arena_recount(arena));
	assert_int_equal(atomic_load(&arena->record->free_slots), 512 - 301);
	assert_int_equal(atomic_load(&arena->record->live_slots), 300);
	counts = slots_count(arena);
	assert_int_equal(counts.count[KVC_PACKED_LIVE], 300);
	/* A bit too many is dropped by whoever takes it. */
	for (uint64_t i = 1000; i < 1000 + 211; i++)
		assert_int_equal(put_key(&opened, arena, i, false), 0);
	assert_int_equal(atomic_load(&arena->record->segments), 2);
	for (uint64_t i = 1000; i < 1000 + 211; i++)
		assert_true(has_key(arena, i, &place));
	must_close(&opened);
}

static void test_reserve(void **state)
{
	struct opened opened = must_open(folder_new("reserve"), CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	static const struct {
		uint32_t segments;
		uint64_t slots;
	} cases[] = { { 0, 0 },	  { 1, 16 },  { 2, 32 },    { 4, 64 },
		      { 20, 64 }, { 30, 76 }, { 400, 1024 } };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		atomic_store(&arena->record->present, cases[i].segments);
		assert_int_equal(kvc_packed_reserve(arena), cases[i].slots);
	}
	atomic_store(&arena->record->present, 0);
	must_close(&opened);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_slot_that_was_recycled_is_another),
		cmocka_unit_test(test_threads_wait_for_the_first_segment),
		cmocka_unit_test(test_a_marked_segment_gives_no_slot),
		cmocka_unit_test(test_a_quarantine_keeps_its_segment),
		cmocka_unit_test(test_a_group_goes_as_a_whole),
		cmocka_unit_test(test_few_segments_of_many_numbers),
		cmocka_unit_test(test_sampling_is_nearly_lru),
		cmocka_unit_test(test_a_sweep_puts_bits_and_counts_right),
		cmocka_unit_test(test_reserve),
	};

	support_begin();
	return cmocka_run_group_tests_name("packed_slot", tests, NULL, NULL);
}
