/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slots go when there are too few, and the counts by the truth. Victims are found by drawing
 * slots at random: no list has to be kept in order by those who only read.
 */
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/ghost.h"
#include "core/pin.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/tenant.h"

#include <time.h>

#define RESERVE_MIN 64u
#define EVICT_TRIES 8u	  /* without success */
#define ROUNDS_MAX  4096u /* of those that are spared */

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
	uint64_t rank;
};

/* What is to be known of a group, or to be done to it. */
struct group {
	uint64_t g;
	bool new_ones;	/* as of a sample */
	uint64_t rank;	/* of the object of it that goes last */
	uint64_t stamp; /* of the same */
	bool end;	/* ends it */
	uint64_t ended;
	uint64_t spared; /* the stamp that it gets; 0: none */
};

static const struct kvc_order *order_of(const struct kvc_packed_arena *arena)
{
	return arena->packed->root->order;
}

/* An object of the group. */
static void group_slot(struct group *group, struct kvc_packed_segment *segment, uint32_t number,
		       uint64_t state)
{
	_Atomic uint64_t *at = &segment->stamps[number];
	uint64_t old = atomic_load_explicit(at, memory_order_relaxed);
	const uint64_t rank = order_of(segment->arena)->rank(old >> 1, group->new_ones);

	if (rank >= group->rank) {
		group->rank = rank;
		group->stamp = old >> 1;
	}
	if (group->end)
		group->ended += kvc_packed_slot_end(segment, number, state);
	else if (group->spared)
		(void)atomic_compare_exchange_strong_explicit(
			at, &old, group->spared << 1 | (old & KVC_PACKED_SUSPECT),
			memory_order_relaxed, memory_order_relaxed);
}

static void group_in(struct kvc_packed_arena *arena, struct group *group)
{
	struct kvc_packed_table *table = kvc_packed_table_get(arena);
	const uint32_t lanes = atomic_load_explicit(&arena->record->lanes, memory_order_relaxed);
	const uint64_t tag = kvc_packed_tag(group->g, 0) & KVC_PACKED_TAG_GROUP;

	for (uint32_t left = table ? lanes : 0; left; left &= left - 1) {
		const struct kvc_packed_buckets buckets =
			kvc_packed_buckets(table, group->g, (uint32_t)__builtin_ctz(left));

		for (unsigned i = 0; i < 2 * KVC_PACKED_BUCKET; i++) {
			const uint64_t entry = atomic_load_explicit(
				&buckets.entries[i / KVC_PACKED_BUCKET][i % KVC_PACKED_BUCKET],
				memory_order_acquire);
			const uint32_t number = kvc_packed_ref_slot(entry);
			struct kvc_packed_segment *segment;
			uint64_t state;

			if (entry == 0 || (entry & KVC_PACKED_TAG_GROUP) != tag)
				continue;
			segment = kvc_packed_segment_of(arena, entry & KVC_PACKED_REF_MASK);
			if (!segment)
				continue;
			state = atomic_load_explicit(&segment->headers[number].state,
						     memory_order_acquire);
			if (kvc_packed_st(state) == KVC_PACKED_LIVE &&
			    atomic_load_explicit(&segment->headers[number].g,
						 memory_order_relaxed) == group->g)
				group_slot(group, segment, number, state);
		}
	}
}

/* A group lies in all arenas of its namespace. */
static void group_all(struct kvc_packed_arena *arena, struct group *group)
{
	kvc_packed_refresh(arena->packed);
	for (struct kvc_packed_arena *a =
		     atomic_load_explicit(&arena->packed->arenas, memory_order_acquire);
	     a; a = a->next)
		if (a->ns_hash == arena->ns_hash)
			group_in(a, group);
	if (group->end)
		kvc_ghost_add(arena->packed->root->ghosts, group->g);
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

/* At most KVC_ORDER_SAMPLES of those that are there, each as likely as any other. */
static unsigned some_segments(struct kvc_packed_arena *arena, uint32_t segments,
			      struct kvc_packed_segment *some[KVC_ORDER_SAMPLES])
{
	uint32_t seen = 0;

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);
		uint64_t at = seen;

		if (!kvc_packed_usable(segment))
			continue;
		if (seen++ >= KVC_ORDER_SAMPLES)
			at = kvc_packed_random(arena->packed) % seen;
		if (at < KVC_ORDER_SAMPLES)
			some[at] = segment;
	}
	return seen < KVC_ORDER_SAMPLES ? seen : KVC_ORDER_SAMPLES;
}

/* Slots at random with their stamps, which come from memory side by side; few of them are free. */
static unsigned sample(struct kvc_packed_arena *arena, struct victim victims[KVC_ORDER_SAMPLES])
{
	const uint32_t segments =
		atomic_load_explicit(&arena->record->segments, memory_order_acquire);
	struct kvc_packed_segment *some[KVC_ORDER_SAMPLES];
	unsigned count = 0, present = 0;

	for (unsigned tries = 0;
	     segments > 0 && count < KVC_ORDER_SAMPLES && tries < 2 * KVC_ORDER_SAMPLES; tries++) {
		const uint64_t random = kvc_packed_random(arena->packed);
		const uint32_t number = 1 + (uint32_t)((random >> 32) % segments);

		if (add_victim(&victims[count], kvc_packed_segment(arena, number), random))
			count++;
	}
	/* Most of the numbers are those of segments that are gone. */
	if (count < KVC_ORDER_SAMPLES)
		present = some_segments(arena, segments, some);
	for (unsigned tries = 0;
	     present > 0 && count < KVC_ORDER_SAMPLES && tries < KVC_ORDER_SAMPLES; tries++) {
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

/* The ranks of a sample. Returns whether those go that are new. */
static bool rank_all(const struct kvc_packed_arena *arena, struct victim *victims, unsigned count)
{
	uint64_t stamps[KVC_ORDER_SAMPLES] = { 0 };
	bool new_ones;

	for (unsigned i = 0; i < count; i++)
		stamps[i] = victims[i].stamp;
	new_ones = kvc_order_new_ones(order_of(arena), stamps, count);
	for (unsigned i = 0; i < count; i++)
		victims[i].rank = order_of(arena)->rank(victims[i].stamp, new_ones);
	return new_ones;
}

/* The one of victims[k..count) that is first comes to k. */
static void first_to_go(struct victim *victims, unsigned k, unsigned count)
{
	struct victim victim = victims[k];
	unsigned first = k;

	for (unsigned i = k + 1; i < count; i++)
		if (victims[i].rank < victims[first].rank)
			first = i;
	victims[k] = victims[first];
	victims[first] = victim;
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

/* What is drawn from one sample. */
struct draw {
	struct victim victims[KVC_ORDER_SAMPLES];
	unsigned count;
	unsigned at; /* those before were looked at */
	bool new_ones;
};

/*
 * The group that goes first, of those of the first slots of the sample from `at` on: one whose
 * other rank was read just now stays. `at` moves behind the slots that were looked at. False: none
 * is live.
 */
static bool choose(struct kvc_packed_arena *arena, struct draw *draw, struct victim *out,
		   struct group *out_group)
{
	bool found = false;

	for (unsigned seen = 0; seen < KVC_ORDER_OLDEST && draw->at < draw->count; draw->at++) {
		struct victim *victim = &draw->victims[draw->at];
		struct group group = { .new_ones = draw->new_ones };

		first_to_go(draw->victims, draw->at, draw->count);
		if (!is_live(victim))
			continue;
		group.g = victim->g;
		group.rank = victim->rank;
		group.stamp = victim->stamp;
		group_all(arena, &group);
		if (!found || group.rank < out_group->rank) {
			found = true;
			*out = *victim;
			*out_group = group;
		}
		seen++;
		if (group.rank == victim->rank) {
			draw->at++;
			break; /* all of it is as old: no other can be older */
		}
	}
	return found;
}

uint32_t kvc_packed_evict_group(struct kvc_packed_arena *arena, uint64_t g)
{
	struct group group = { .g = g, .end = true };

	group_all(arena, &group);
	return (uint32_t)group.ended;
}

/* It stays, as one that was used at this time. */
static void spare(struct kvc_packed_arena *arena, const struct victim *victim, uint64_t stamp)
{
	struct group group = { .g = victim->g, .spared = stamp };

	group_slot(&group, victim->segment, victim->slot, victim->state);
	group_all(arena, &group);
}

/* What is to go of one sample: at most KVC_ORDER_VICTIMS groups. *spared: some were to go, and
 * stay. */
static uint32_t evict_some(struct kvc_packed_arena *arena, uint32_t count, bool *spared)
{
	struct draw draw = { .at = 0 };
	uint32_t ended = 0;

	draw.count = sample(arena, draw.victims);
	draw.new_ones = rank_all(arena, draw.victims, draw.count);
	for (unsigned n = 0; n < KVC_ORDER_VICTIMS && ended < count; n++) {
		struct victim victim;
		struct group group;
		uint64_t stamp;

		if (!choose(arena, &draw, &victim, &group))
			break;
		stamp = order_of(arena)->spared(group.stamp,
						atomic_load_explicit(&arena->packed->shm->clock,
								     memory_order_relaxed));
		if (stamp != KVC_ORDER_GOES) {
			spare(arena, &victim, stamp);
			*spared = true;
			continue;
		}
		/* It may have no entry in the table itself. */
		ended += kvc_packed_slot_end(victim.segment, victim.slot, victim.state);
		ended += kvc_packed_evict_group(arena, victim.g);
	}
	return ended;
}

void kvc_packed_count_evicted(struct kvc_packed_arena *arena, uint32_t ended)
{
	atomic_fetch_add_explicit(&arena->packed->evicted, ended, memory_order_relaxed);
	kvc_counters_evicted(arena->packed->root->store->counters, ended,
			     ended * arena->slot_bytes);
}

uint32_t kvc_packed_evict(struct kvc_packed_arena *arena, uint32_t count)
{
	uint32_t ended = 0, tries = 0;

	if (kvc_pin_has(arena->packed->root, arena->ns_hash))
		return 0;
	for (unsigned round = 0; round < ROUNDS_MAX && ended < count && tries < count + EVICT_TRIES;
	     round++) {
		bool spared = false;

		ended += evict_some(arena, count - ended, &spared);
		tries += !spared;
	}
	kvc_packed_count_evicted(arena, ended);
	return ended;
}

/* The earliest rank of a sample; UINT64_MAX: it has none that may go. */
static uint64_t earliest(struct kvc_packed_arena *arena)
{
	struct victim victims[KVC_ORDER_SAMPLES];
	const unsigned count = sample(arena, victims);
	uint64_t first = UINT64_MAX;

	if (kvc_pin_has(arena->packed->root, arena->ns_hash))
		return UINT64_MAX;
	(void)rank_all(arena, victims, count);
	for (unsigned i = 0; i < count; i++)
		if (victims[i].rank < first && is_live(&victims[i]))
			first = victims[i].rank;
	return first;
}

uint32_t kvc_packed_evict_tenant(struct kvc_packed_arena *arena, uint32_t count)
{
	const struct kvc_packed *packed = arena->packed;
	struct kvc_packed_arena *first = NULL;
	uint64_t first_rank = UINT64_MAX;

	for (struct kvc_packed_arena *a =
		     atomic_load_explicit(&packed->arenas, memory_order_acquire);
	     a; a = a->next) {
		uint64_t rank;

		if (a->ns_hash != arena->ns_hash &&
		    !kvc_tenant_is_same(packed->root, a->ns_hash, arena->ns_hash))
			continue;
		rank = earliest(a);
		if (rank < first_rank) {
			first_rank = rank;
			first = a;
		}
	}
	return first ? kvc_packed_evict(first, count) : 0;
}

uint64_t kvc_packed_oldest_s(struct kvc_packed *packed)
{
	const uint32_t now_s = (uint32_t)((uint64_t)kvc_wall_ns() / 1000000000u);
	uint64_t oldest = 0;

	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		struct victim victims[KVC_ORDER_SAMPLES];
		const unsigned count = sample(a, victims);

		for (unsigned i = 0; i < count; i++) {
			struct kvc_packed_fields fields;
			uint32_t age_s;

			if (!kvc_packed_read(&victims[i].segment->headers[victims[i].slot],
					     &fields))
				continue;
			age_s = now_s - (uint32_t)fields.created_depth;
			/* A clock that was set back. */
			if (age_s <= INT32_MAX && age_s > oldest)
				oldest = age_s;
		}
	}
	return oldest;
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
