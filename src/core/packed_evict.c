/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slots go when there are too few, and the counts by the truth. No list has to be kept in
 * order by those who only read: who evicts goes over the stamps, some for each group that goes.
 */
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/ghost.h"
#include "core/pin.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/tenant.h"

#include <time.h>

#define EVICT_TRIES 16u	  /* without success */
#define ROUNDS_MAX  4096u /* of those that are spared */

#define RECOUNT_PAUSE_NS (UINT64_C(10) * 1000000)

uint64_t kvc_packed_reserve(const struct kvc_packed_arena *arena)
{
	const struct kvc_packed_record *record = arena->record;
	const uint64_t slots =
		(uint64_t)atomic_load_explicit(&record->present, memory_order_relaxed) *
		record->segment_slots;

	return kvc_order_reserve(slots);
}

/* A slot that may go. */
struct seen {
	struct kvc_packed_segment *segment;
	uint32_t slot;
	uint64_t state;
};

/* What is to be known of a group, or to be done to it. */
struct group {
	uint64_t g;
	uint64_t stamp; /* of the object of it that goes last */
	uint64_t rank;	/* of the same, in the order of `by` */
	const struct kvc_victims *by;
	bool end; /* ends it */
	uint32_t ended;
	uint64_t spared; /* the stamp that it gets; 0: none */
};

/* An object of the group. */
static void group_slot(struct group *group, struct kvc_packed_segment *segment, uint32_t number,
		       uint64_t state)
{
	_Atomic uint64_t *at = &segment->stamps[number];
	uint64_t old = atomic_load_explicit(at, memory_order_relaxed);

	if (group->end) {
		group->ended += kvc_packed_slot_end(segment, number, state);
	} else if (group->spared) {
		(void)atomic_compare_exchange_strong_explicit(
			at, &old, group->spared << 1 | (old & KVC_PACKED_SUSPECT),
			memory_order_relaxed, memory_order_relaxed);
	} else if (kvc_victims_rank(group->by, old >> 1) > group->rank) {
		group->rank = kvc_victims_rank(group->by, old >> 1);
		group->stamp = old >> 1;
	}
}

static void group_one(void *context, struct kvc_packed_segment *segment, uint32_t number,
		      const struct kvc_packed_fields *fields)
{
	group_slot(context, segment, number, fields->state);
}

static void group_in(struct kvc_packed_arena *arena, struct group *group)
{
	const uint32_t lanes = atomic_load_explicit(&arena->record->lanes, memory_order_relaxed);

	for (uint32_t left = lanes; left; left &= left - 1)
		kvc_packed_each_of_group(arena, group->g, (uint32_t)__builtin_ctz(left), group_one,
					 group);
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

/* ---------------------------------------------------------------- what goes first */

/* The segment where the hand is, or the next one that is there; NULL: there is none. */
static struct kvc_packed_segment *segment_at_hand(struct kvc_packed_arena *arena)
{
	const uint32_t segments =
		atomic_load_explicit(&arena->record->segments, memory_order_acquire);

	for (uint32_t n = 0; n <= segments; n++) {
		struct kvc_packed_segment *segment = NULL;

		if (arena->hand_segment >= 1 && arena->hand_segment <= segments)
			segment = kvc_packed_segment(arena, arena->hand_segment);
		if (kvc_packed_usable(segment) && arena->hand_slot < segment->slots)
			return segment;
		arena->hand_segment = arena->hand_segment < segments ? arena->hand_segment + 1 : 1;
		arena->hand_slot = 0;
	}
	return NULL;
}

/* To the beginning of a window anywhere. */
static void move_hand(struct kvc_packed_arena *arena)
{
	const uint64_t random = kvc_packed_random(arena->packed);
	const uint32_t segments =
		atomic_load_explicit(&arena->record->segments, memory_order_acquire);
	const uint32_t windows = (arena->record->segment_slots - 1) / KVC_VICTIM_LOOKS + 1;

	if (segments == 0)
		return;
	arena->hand_segment = 1 + (uint32_t)((random >> 32) % segments);
	arena->hand_slot = (uint32_t)random % windows * KVC_VICTIM_LOOKS;
}

/* The next slots that are not free. */
static void look_at_window(struct kvc_packed_arena *arena)
{
	struct kvc_packed_segment *segment = segment_at_hand(arena);
	uint32_t end;

	if (!segment)
		return;
	end = arena->hand_slot + KVC_VICTIM_LOOKS;
	end = end < segment->slots ? end : segment->slots;
	for (uint32_t slot = arena->hand_slot; slot < end; slot++) {
		const uint64_t word =
			atomic_load_explicit(&segment->bitmap[slot / 64], memory_order_relaxed);
		const uint64_t stamp =
			atomic_load_explicit(&segment->stamps[slot], memory_order_relaxed);

		if (!(word & UINT64_C(1) << slot % 64))
			kvc_victims_see(&arena->victims, kvc_packed_ref(segment->number, slot),
					stamp >> 1);
	}
	arena->hand_slot = end;
}

static void look_around(struct kvc_packed_arena *arena)
{
	bool scattered;
	unsigned windows = kvc_victims_windows(
		&arena->victims, kvc_packed_hint(&arena->record->live_slots),
		atomic_load_explicit(&arena->packed->shm->clock, memory_order_relaxed), &scattered);

	while (windows-- > 0) {
		if (scattered)
			move_hand(arena);
		look_at_window(arena);
	}
}

/* Live, and not used since. */
static bool is_as_seen(struct kvc_packed_arena *arena, const struct kvc_victim *victim,
		       struct seen *out, struct group *out_group)
{
	struct kvc_packed_segment *segment = kvc_packed_segment_of(arena, victim->object);
	const uint32_t number = kvc_packed_ref_slot(victim->object);
	struct kvc_packed_fields fields;

	if (!segment || !kvc_packed_usable(segment) ||
	    !kvc_packed_read(&segment->headers[number], &fields) ||
	    atomic_load_explicit(&segment->stamps[number], memory_order_relaxed) >> 1 !=
		    victim->stamp)
		return false;
	*out = (struct seen){ segment, number, fields.state };
	*out_group = (struct group){
		.g = fields.g,
		.stamp = victim->stamp,
		.rank = kvc_victims_rank(&arena->victims, victim->stamp),
		.by = &arena->victims,
	};
	return true;
}

/*
 * The group that goes first: one of which another object, of another rank perhaps, was used later
 * goes by that. It is no candidate any more. False: none was found.
 */
static bool take_first(struct kvc_packed_arena *arena, struct kvc_victim *out,
		       struct seen *out_seen, struct group *out_group)
{
	unsigned behind = 0;

	while (kvc_victims_take(&arena->victims, out)) {
		if (!is_as_seen(arena, out, out_seen, out_group))
			continue;
		group_all(arena, out_group);
		if (out_group->rank <= out->rank || ++behind == KVC_VICTIMS)
			return true;
		kvc_victims_put_back(&arena->victims, *out, out_group->rank);
	}
	return false;
}

/* ---------------------------------------------------------------- eviction */

uint32_t kvc_packed_evict_group(struct kvc_packed_arena *arena, uint64_t g)
{
	struct group group = { .g = g, .end = true };

	group_all(arena, &group);
	return group.ended;
}

/* It stays, as one that was used at this time. */
static void spare(struct kvc_packed_arena *arena, const struct seen *seen, uint64_t g,
		  uint64_t stamp)
{
	struct group group = { .g = g, .spared = stamp };

	/* It may have no entry in the table itself. */
	group_slot(&group, seen->segment, seen->slot, seen->state);
	group_all(arena, &group);
}

/* The first group, if it goes: how many slots that gave. *spared: it stays. */
static uint32_t evict_first(struct kvc_packed_arena *arena, bool *spared)
{
	struct kvc_victim victim;
	struct seen seen;
	struct group group;
	uint64_t stamp;
	uint32_t ended;

	look_around(arena);
	if (!take_first(arena, &victim, &seen, &group))
		return 0;
	stamp = arena->packed->root->order->spared(group.stamp,
						   atomic_load_explicit(&arena->packed->shm->clock,
									memory_order_relaxed));
	*spared = stamp != KVC_ORDER_GOES;
	if (*spared) {
		spare(arena, &seen, group.g, stamp);
		return 0;
	}
	ended = kvc_packed_slot_end(seen.segment, seen.slot, seen.state);
	return ended + kvc_packed_evict_group(arena, group.g);
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
	pthread_mutex_lock(&arena->evict_lock);
	for (unsigned round = 0; round < ROUNDS_MAX && ended < count && tries < count + EVICT_TRIES;
	     round++) {
		bool spared = false;

		ended += evict_first(arena, &spared);
		tries += !spared;
	}
	pthread_mutex_unlock(&arena->evict_lock);
	kvc_packed_count_evicted(arena, ended);
	return ended;
}

/* What goes first. False: nothing was found. */
static bool look_at_first(struct kvc_packed_arena *arena, struct seen *out, struct group *group)
{
	struct kvc_victim victim;
	bool found;

	pthread_mutex_lock(&arena->evict_lock);
	look_around(arena);
	found = take_first(arena, &victim, out, group);
	if (found)
		kvc_victims_put_back(&arena->victims, victim, group->rank);
	pthread_mutex_unlock(&arena->evict_lock);
	return found;
}

uint32_t kvc_packed_evict_tenant(struct kvc_packed_arena *arena, uint32_t count)
{
	const struct kvc_packed *packed = arena->packed;
	struct kvc_packed_arena *first = NULL;
	uint64_t first_rank = UINT64_MAX;

	for (struct kvc_packed_arena *a =
		     atomic_load_explicit(&packed->arenas, memory_order_acquire);
	     a; a = a->next) {
		struct seen seen;
		struct group group;

		if ((a->ns_hash != arena->ns_hash &&
		     !kvc_tenant_is_same(packed->root, a->ns_hash, arena->ns_hash)) ||
		    kvc_pin_has(packed->root, a->ns_hash) || !look_at_first(a, &seen, &group) ||
		    group.rank >= first_rank)
			continue;
		first_rank = group.rank;
		first = a;
	}
	return first ? kvc_packed_evict(first, count) : 0;
}

uint64_t kvc_packed_oldest_s(struct kvc_packed *packed)
{
	const uint32_t now_s = (uint32_t)((uint64_t)kvc_wall_ns() / 1000000000u);
	uint64_t oldest = 0;

	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		struct seen seen;
		struct group group;
		uint32_t age_s;

		if (!look_at_first(a, &seen, &group))
			continue;
		age_s = now_s - (uint32_t)atomic_load_explicit(
					&seen.segment->headers[seen.slot].created_depth,
					memory_order_relaxed);
		/* A clock that was set back. */
		if (age_s <= INT32_MAX && age_s > oldest)
			oldest = age_s;
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
