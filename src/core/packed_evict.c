/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slots go when there are too few, and the counts by the truth. Victims are found by drawing
 * slots at random: no list has to be kept in order by those who only read.
 */
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/stats.h"
#include "core/store.h"

#include <time.h>

#define SAMPLES	    32u
#define OLDEST	    4u /* of the samples, whose groups are looked at */
#define VICTIMS	    2u /* of one sample */
#define RESERVE_MIN 64u
#define EVICT_TRIES 8u /* without success */

#define RECOUNT_PAUSE_NS (UINT64_C(10) * 1000000)

uint64_t kvc_packed_reserve(const struct kvc_packed_arena *arena)
{
	const struct kvc_packed_record *record = arena->record;
	const uint64_t slots =
		(uint64_t)atomic_load_explicit(&record->present, memory_order_relaxed) *
		record->segment_slots;
	const uint64_t few = slots / 16 < RESERVE_MIN ? slots / 16 : RESERVE_MIN;

	return slots / 100 > few ? slots / 100 : few;
}

/* A slot that may go. */
struct victim {
	struct kvc_packed_segment *segment;
	uint32_t slot;
	uint64_t state;
	uint64_t g;
	uint64_t stamp;
};

/* What one group has in an arena: the latest use, or, when told so, the end of all of it. */
static uint32_t group_in(struct kvc_packed_arena *arena, uint64_t g, uint64_t *latest, bool end)
{
	struct kvc_packed_table *table = kvc_packed_table_get(arena);
	const uint32_t lanes = atomic_load_explicit(&arena->record->lanes, memory_order_relaxed);
	const uint64_t tag = kvc_packed_tag(g, 0) & KVC_PACKED_TAG_GROUP;
	uint32_t ended = 0;

	for (uint32_t left = table ? lanes : 0; left; left &= left - 1) {
		const struct kvc_packed_buckets buckets =
			kvc_packed_buckets(table, g, (uint32_t)__builtin_ctz(left));

		for (unsigned i = 0; i < 2 * KVC_PACKED_BUCKET; i++) {
			const uint64_t entry = atomic_load_explicit(
				&buckets.entries[i / KVC_PACKED_BUCKET][i % KVC_PACKED_BUCKET],
				memory_order_acquire);
			const uint32_t number = kvc_packed_ref_slot(entry);
			struct kvc_packed_segment *segment;
			uint64_t state, stamp;

			if (entry == 0 || (entry & KVC_PACKED_TAG_GROUP) != tag)
				continue;
			segment = kvc_packed_segment_of(arena, entry & KVC_PACKED_REF_MASK);
			if (!segment)
				continue;
			state = atomic_load_explicit(&segment->headers[number].state,
						     memory_order_acquire);
			if (kvc_packed_st(state) != KVC_PACKED_LIVE ||
			    atomic_load_explicit(&segment->headers[number].g,
						 memory_order_relaxed) != g)
				continue;
			stamp = atomic_load_explicit(&segment->stamps[number],
						     memory_order_relaxed) >>
				1;
			*latest = stamp > *latest ? stamp : *latest;
			if (end)
				ended += kvc_packed_slot_end(segment, number, state);
		}
	}
	return ended;
}

/* A group lies in all arenas of its namespace. */
static uint32_t group_all(struct kvc_packed_arena *arena, uint64_t g, uint64_t *latest, bool end)
{
	uint32_t ended = 0;

	kvc_packed_refresh(arena->packed);
	for (struct kvc_packed_arena *a =
		     atomic_load_explicit(&arena->packed->arenas, memory_order_acquire);
	     a; a = a->next)
		if (a->ns_hash == arena->ns_hash)
			ended += group_in(a, g, latest, end);
	return ended;
}

static bool add_victim(struct victim *victim, struct kvc_packed_segment *segment, uint64_t random)
{
	if (!kvc_packed_usable(segment))
		return false;
	victim->segment = segment;
	victim->slot = (uint32_t)random % segment->slots;
	__builtin_prefetch((void *)&segment->stamps[victim->slot]);
	return true;
}

/* At most SAMPLES of those that are there, each as likely as any other. */
static unsigned some_segments(struct kvc_packed_arena *arena, uint32_t segments,
			      struct kvc_packed_segment *some[SAMPLES])
{
	uint32_t seen = 0;

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);
		uint64_t at = seen;

		if (!kvc_packed_usable(segment))
			continue;
		if (seen++ >= SAMPLES)
			at = kvc_packed_random(arena->packed) % seen;
		if (at < SAMPLES)
			some[at] = segment;
	}
	return seen < SAMPLES ? seen : SAMPLES;
}

/* Slots at random with their stamps, which come from memory side by side; few of them are free. */
static unsigned sample(struct kvc_packed_arena *arena, struct victim victims[SAMPLES])
{
	const uint32_t segments =
		atomic_load_explicit(&arena->record->segments, memory_order_acquire);
	struct kvc_packed_segment *some[SAMPLES];
	unsigned count = 0, present = 0;

	for (unsigned tries = 0; segments > 0 && count < SAMPLES && tries < 2 * SAMPLES; tries++) {
		const uint64_t random = kvc_packed_random(arena->packed);
		const uint32_t number = 1 + (uint32_t)((random >> 32) % segments);

		if (add_victim(&victims[count], kvc_packed_segment(arena, number), random))
			count++;
	}
	/* Most of the numbers are those of segments that are gone. */
	if (count < SAMPLES)
		present = some_segments(arena, segments, some);
	for (unsigned tries = 0; present > 0 && count < SAMPLES && tries < SAMPLES; tries++) {
		const uint64_t random = kvc_packed_random(arena->packed);

		if (add_victim(&victims[count], some[(random >> 32) % present], random))
			count++;
	}
	for (unsigned i = 0; i < count; i++)
		victims[i].stamp =
			atomic_load_explicit(&victims[i].segment->stamps[victims[i].slot],
					     memory_order_relaxed) >>
			1;
	return count;
}

/* The one of victims[k..count) with the earliest stamp comes to k. */
static void oldest_first(struct victim *victims, unsigned k, unsigned count)
{
	struct victim victim = victims[k];
	unsigned oldest = k;

	for (unsigned i = k + 1; i < count; i++)
		if (victims[i].stamp < victims[oldest].stamp)
			oldest = i;
	victims[k] = victims[oldest];
	victims[oldest] = victim;
}

/* Live, and still what the stamp was read of: a free slot keeps the stamp of its past, and may have
 * got the newest object of all since. */
static bool is_live(struct victim *victim)
{
	struct kvc_packed_slot *slot = &victim->segment->headers[victim->slot];

	victim->state = atomic_load_explicit(&slot->state, memory_order_acquire);
	victim->g = atomic_load_explicit(&slot->g, memory_order_relaxed);
	return kvc_packed_st(victim->state) == KVC_PACKED_LIVE &&
	       atomic_load_explicit(&victim->segment->stamps[victim->slot], memory_order_relaxed) >>
			       1 ==
		       victim->stamp;
}

/*
 * The group that was not used for the longest time, of those of the oldest slots of the sample from
 * *at on: one whose other rank was read just now stays. *at moves behind the slots that were looked
 * at. False: none is live.
 */
static bool choose(struct kvc_packed_arena *arena, struct victim *victims, unsigned count,
		   unsigned *at, struct victim *out)
{
	uint64_t best = UINT64_MAX;

	for (unsigned seen = 0; seen < OLDEST && *at < count; (*at)++) {
		uint64_t latest;

		oldest_first(victims, *at, count);
		if (!is_live(&victims[*at]))
			continue;
		latest = victims[*at].stamp;
		(void)group_all(arena, victims[*at].g, &latest, false);
		if (latest < best) {
			best = latest;
			*out = victims[*at];
		}
		seen++;
		if (latest == victims[*at].stamp) {
			(*at)++;
			break; /* all of it is as old: no other can be older */
		}
	}
	return best != UINT64_MAX;
}

uint32_t kvc_packed_evict_group(struct kvc_packed_arena *arena, uint64_t g)
{
	uint64_t latest = 0;

	return group_all(arena, g, &latest, true);
}

/* What is to go of one sample: at most VICTIMS groups. */
static uint32_t evict_some(struct kvc_packed_arena *arena, uint32_t count)
{
	struct victim victims[SAMPLES];
	const unsigned sampled = sample(arena, victims);
	uint32_t ended = 0;
	unsigned at = 0;

	for (unsigned n = 0; n < VICTIMS && ended < count; n++) {
		struct victim victim;
		uint64_t latest = 0;

		if (!choose(arena, victims, sampled, &at, &victim))
			break;
		/* It may have no entry in the table itself. */
		ended += kvc_packed_slot_end(victim.segment, victim.slot, victim.state);
		ended += group_all(arena, victim.g, &latest, true);
	}
	return ended;
}

uint32_t kvc_packed_evict(struct kvc_packed_arena *arena, uint32_t count)
{
	uint32_t ended = 0;

	for (uint32_t tries = 0; ended < count && tries < count + EVICT_TRIES; tries++)
		ended += evict_some(arena, count - ended);
	atomic_fetch_add_explicit(&arena->packed->evicted, ended, memory_order_relaxed);
	kvc_counters_evicted(arena->packed->root->store->counters, ended,
			     ended * arena->slot_bytes);
	return ended;
}

/* ---------------------------------------------------------------- sweep */

/* The slots of an arena by what they are. */
struct tally {
	uint64_t free_slots; /* usable ones */
	uint64_t of_no_use;  /* free in segments that are to go: they count until these are gone */
	uint64_t live;
	uint64_t states; /* a sum that changes with every slot */
};

/* One segment: a bit for each slot that is FREE and has none. A slot whose bit was taken just now
 * gets it back too: its claim then finds the bit again, or two find it and one of them wins. */
static void tally_segment(struct kvc_packed_segment *segment, bool mend, struct tally *tally)
{
	uint64_t free_slots = 0;

	for (uint32_t s = 0; s < segment->slots; s++) {
		const uint64_t state =
			atomic_load_explicit(&segment->headers[s].state, memory_order_relaxed);

		tally->states += state * (2 * (uint64_t)s + 1);
		if (kvc_packed_st(state) == KVC_PACKED_LIVE)
			tally->live++;
		if (kvc_packed_st(state) != KVC_PACKED_FREE)
			continue;
		free_slots++;
		if (mend && !(atomic_load_explicit(&segment->bitmap[s / 64], memory_order_relaxed) &
			      UINT64_C(1) << s % 64))
			(void)kvc_packed_give_bit(segment, s);
	}
	if (kvc_packed_usable(segment))
		tally->free_slots += free_slots;
	else
		tally->of_no_use += free_slots;
}

static struct tally tally_all(struct kvc_packed_arena *arena, bool mend)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	struct tally tally = { .free_slots = 0 };

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		if (segment && !atomic_load(&segment->broken) &&
		    atomic_load(&segment->hdr->retired) != KVC_PACKED_RETIRED_REMOVED)
			tally_segment(segment, mend, &tally);
	}
	return tally;
}

uint64_t kvc_packed_sweep(struct kvc_packed_arena *arena)
{
	return tally_all(arena, true).free_slots;
}

/* The counts of the record, and how far they are off. */
struct drift {
	uint64_t free_count;
	uint64_t live_count;
	uint64_t free_slots;
	uint64_t live;
};

/* False: others claim and end slots just now, which spoils it. */
static bool measure(struct kvc_packed_arena *arena, struct drift *out)
{
	const struct kvc_packed_record *record = arena->record;
	const uint64_t free_slots = atomic_load(&record->free_slots);
	const uint64_t live = atomic_load(&record->live_slots);
	const struct tally tally = tally_all(arena, true);

	*out = (struct drift){
		.free_count = free_slots,
		.live_count = live,
		.free_slots = free_slots - tally.free_slots - tally.of_no_use,
		.live = live - tally.live,
	};
	return tally_all(arena, false).states == tally.states &&
	       atomic_load(&record->free_slots) == free_slots &&
	       atomic_load(&record->live_slots) == live;
}

/* Twice: somebody may be between a state and its count. */
bool kvc_packed_arena_recount(struct kvc_packed_arena *arena)
{
	const struct timespec pause = kvc_timespec(RECOUNT_PAUSE_NS);
	struct drift first, second;

	if (!measure(arena, &first))
		return false;
	if (first.free_slots == 0 && first.live == 0)
		return true;
	(void)nanosleep(&pause, NULL);
	if (!measure(arena, &second) || first.free_slots != second.free_slots ||
	    first.live != second.live)
		return false;
	/* Another process may be at the same. */
	return atomic_compare_exchange_strong(&arena->record->free_slots, &second.free_count,
					      second.free_count - second.free_slots) &&
	       atomic_compare_exchange_strong(&arena->record->live_slots, &second.live_count,
					      second.live_count - second.live);
}
