/* SPDX-License-Identifier: Apache-2.0 */
/* core/packed_recover.c: what a process that is killed at any step leaves in a packed root. */
#include "packed.h"

#include "core/host.h"

#include <fcntl.h>

#define CAPACITY "1MiB" /* segments of 16 slots */
#define BASE	 10u	/* objects that are there before */

struct work {
	const char *root;
	struct killer killer;
};

/* ---------------------------------------------------------------- a life with everything in it */

static bool prepare(struct opened *opened)
{
	struct kvc_packed_arena *arena = arena_of(opened, true);
	bool ok = arena != NULL;

	for (uint64_t i = 0; ok && i < BASE; i++)
		ok = put_key(opened, arena, i, false) == 0;
	return ok;
}

/* New objects and segments, a second one of a name, one in the place of another, removals, a claim
 * that is given back, one that stays. */
static int live(void *context)
{
	struct work *work = context;
	struct kvc_packed_place place, more;
	struct kvc_packed_arena *arena;
	struct opened opened;
	bool ok;

	if (index_open(work->root, CAPACITY, false, &opened))
		return 1;
	killer_watch(&opened, &work->killer);
	ok = prepare(&opened);
	arena = arena_of(&opened, false);
	ok = ok && kvc_packed_claim(arena, 5, &place) == 0;
	for (uint64_t i = BASE; ok && i < 2 * BASE; i++)
		ok = put_key(&opened, arena, i, false) == 0;
	ok = ok && put_key(&opened, arena, 3, false) == 1;
	ok = ok && put_key(&opened, arena, 4, true) == 0;
	ok = ok && has_key(arena, 5, &more) && kvc_packed_remove(arena, &more);
	ok = ok && kvc_packed_claim(arena, 7, &more) == 0;
	if (ok)
		kvc_packed_abandon(arena, &place);
	ok = ok && publish_key(&opened, arena, &more, 77, false) == 0;
	ok = ok && kvc_packed_evict(arena, 2) >= 2;
	return ok && index_close(&opened) ? 0 : 1;
}

/* ---------------------------------------------------------------- what is left */

static uint32_t entries_left(struct kvc_packed *packed, uint32_t *out_waiting)
{
	uint32_t left = 0, waiting = 0;

	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++) {
		if (i == packed->entry)
			continue;
		left += atomic_load(&packed->shm->processes[i].pid) != 0;
		waiting += atomic_load(&packed->shm->processes[i].quarantined) != 0;
	}
	if (out_waiting)
		*out_waiting = waiting;
	return left;
}

/* Each live slot is what the table finds for its key: none is lost, none is there twice. former:
 * but one, whose place was taken by another when the process died that meant to end it. */
static uint64_t check_live(struct kvc_packed_arena *arena, unsigned former)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	uint64_t live = 0;

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		for (uint32_t s = 0; segment && s < segment->slots; s++) {
			struct kvc_packed_slot *slot = &segment->headers[s];
			const struct kvc_packed_key key = {
				.g = atomic_load(&slot->g),
				.v = atomic_load(&slot->v),
				.lane = kvc_packed_lane(atomic_load(&slot->created_depth)),
				.bytes = kvc_packed_len(atomic_load(&slot->len_crc)),
			};
			struct kvc_packed_place place;

			if (kvc_packed_st(atomic_load(&slot->state)) != KVC_PACKED_LIVE)
				continue;
			live++;
			assert_int_equal(kvc_packed_find(arena, &key, &place), 0);
			if (place.ref != kvc_packed_ref(n, s) && former > 0)
				former--;
			else
				assert_int_equal(place.ref, kvc_packed_ref(n, s));
		}
	}
	return live;
}

static void remove_live(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		for (uint32_t s = 0; segment && s < segment->slots; s++)
			(void)kvc_packed_slot_end(segment, s,
						  atomic_load(&segment->headers[s].state));
	}
}

/* Claims all there is, makes sure that none was in quarantine, and gives it back. */
static uint64_t claim_all(struct opened *opened, struct kvc_packed_arena *arena)
{
	struct kvc_packed_place *places = calloc(KVC_PACKED_INTENTS, sizeof(*places));
	uint32_t count = 0;

	assert_non_null(places);
	atomic_store(&arena->grow_after_ns, 0);
	arena->search_after_ns = 0;
	while (count < KVC_PACKED_INTENTS && kvc_packed_claim(arena, count, &places[count]) == 0)
		count++;
	assert_in_range(count, 1, KVC_PACKED_INTENTS - 1);
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t state = atomic_load(
			&places[i].segment->headers[kvc_packed_ref_slot(places[i].ref)].state);

		assert_int_equal(kvc_packed_st(state), KVC_PACKED_WRITING);
		assert_int_equal(kvc_packed_owner(state), opened->packed->entry);
		assert_int_equal(state, places[i].state);
	}
	for (uint32_t i = 0; i < count; i++)
		kvc_packed_abandon(arena, &places[i]);
	free(places);
	return count;
}

/* Opened after a death: in quarantine first, then whole. Returns the slots that were. */
static uint64_t check_recovery(struct opened *opened)
{
	struct kvc_packed *packed = opened->packed;
	struct kvc_packed_arena *arena = arena_of(opened, false);
	struct slot_counts counts;
	uint64_t waiting = 0, freed;
	uint32_t left, waiting_entries;

	if (!arena) {
		(void)kvc_packed_recover_dead(packed);
		assert_int_equal(entries_left(packed, NULL), 0);
		return 0;
	}
	(void)kvc_packed_recover_dead(packed);
	counts = slots_count(arena);
	waiting = counts.count[KVC_PACKED_QUAR];
	assert_int_equal(counts.other, 0);
	assert_int_equal(counts.count[KVC_PACKED_WRITING], 0);
	assert_int_equal(check_live(arena, 1), counts.count[KVC_PACKED_LIVE]);
	/* Killed at the end of a quarantine, it may have no slot in it any more. */
	left = entries_left(packed, &waiting_entries);
	assert_int_equal(left, waiting_entries);
	assert_in_range(waiting_entries, waiting > 0, 1);
	/* Looking again changes nothing, until it is time. */
	assert_int_equal(kvc_packed_recover_dead(packed), 0);
	assert_int_equal(slots_count(arena).count[KVC_PACKED_QUAR], waiting);
	remove_live(arena);
	freed = claim_all(opened, arena);
	counts = slots_count(arena);
	assert_int_equal(counts.count[KVC_PACKED_QUAR], waiting);
	assert_int_equal(freed + waiting, counts.slots);
	packed->quarantine_ns = 0;
	assert_int_equal(kvc_packed_recover_dead(packed), waiting);
	assert_int_equal(entries_left(packed, &waiting_entries), 0);
	assert_int_equal(waiting_entries, 0);
	assert_int_equal(claim_all(opened, arena), counts.slots);
	counts = slots_count(arena);
	assert_int_equal(counts.count[KVC_PACKED_FREE], counts.slots);
	assert_int_equal(counts.wrong_bits, 0);
	packed->quarantine_ns = FOREVER_NS;
	return waiting;
}

/* ---------------------------------------------------------------- deaths */

static void a_death_at_any_step_leaks_nothing(void **state)
{
	const unsigned stride = support_soak() ? 1 : support_sanitized() ? 7 : 3;
	const unsigned first = 1 + (unsigned)(seed_get() % stride);
	uint64_t waited = 0;
	unsigned deaths = 0;
	int rc = 0;

	(void)state;
	for (unsigned at = first; rc == 0; at += stride) {
		struct work work = { .root = folder_new("death"), .killer = { .at = at } };
		struct opened opened;

		rc = run_child(live, &work);
		deaths += rc == 0;
		opened = must_open(work.root, CAPACITY);
		waited += check_recovery(&opened);
		must_close(&opened);
		folder_remove(work.root);
	}
	assert_int_equal(rc, 1);
	assert_in_range(deaths, 100 / stride, 10000);
	assert_in_range(waited, 10 / stride, 10000);
}

/* Leaves an entry with: 0 to 2 WRITING, 3 FREE with a bit that is gone, 4 LIVE and in no table. */
static int die_with_all_kinds(void *context)
{
	struct work *work = context;
	struct killer killer = { .name = "packed.set.live" };
	struct kvc_packed_place place;
	struct kvc_packed_arena *arena;
	struct opened opened;

	if (index_open(work->root, CAPACITY, false, &opened) || !prepare(&opened))
		return 1;
	arena = arena_of(&opened, false);
	for (uint32_t i = 0; i < 3; i++)
		if (kvc_packed_claim(arena, i, &place))
			return 1;
	if (kvc_packed_claim(arena, 3, &place))
		return 1;
	atomic_store(&place.segment->headers[kvc_packed_ref_slot(place.ref)].state,
		     kvc_packed_freed(place.state));
	if (kvc_packed_claim(arena, 4, &place))
		return 1;
	killer_watch(&opened, &killer);
	(void)publish_key(&opened, arena, &place, 99, false);
	return 1;
}

static void each_kind_of_slot_is_looked_after(void **state)
{
	struct work work = { .root = folder_new("kinds") };
	struct kvc_packed_place place;
	struct kvc_packed_arena *arena;
	struct slot_counts counts;
	struct opened opened;

	(void)state;
	assert_int_equal(run_child(die_with_all_kinds, &work), 0);
	opened = must_open(work.root, CAPACITY);
	arena = arena_of(&opened, false);
	assert_false(has_key(arena, 99, &place));
	assert_int_equal(kvc_packed_recover_dead(opened.packed), 1); /* the bit */
	counts = slots_count(arena);
	assert_int_equal(counts.count[KVC_PACKED_QUAR], 3);
	assert_int_equal(counts.count[KVC_PACKED_LIVE], BASE + 1);
	assert_int_equal(counts.wrong_bits, 0);
	assert_true(has_key(arena, 99, &place));
	for (uint64_t i = 0; i < BASE; i++)
		assert_true(has_key(arena, i, &place));
	assert_int_equal(check_recovery(&opened), 3);
	assert_int_equal(atomic_load(&opened.packed->recovered), 1 + 3);
	must_close(&opened);
}

/* Looks after the dead, and is killed at it; with no quarantine, so that all steps are taken. */
static int recover(void *context)
{
	struct work *work = context;
	struct opened opened;

	if (index_open(work->root, CAPACITY, false, &opened))
		return 1;
	opened.packed->quarantine_ns = 0;
	killer_watch(&opened, &work->killer);
	for (int i = 0; i < 3; i++)
		(void)kvc_packed_recover_dead(opened.packed);
	return index_close(&opened) ? 0 : 1;
}

static void recovery_that_is_killed_is_gone_on_with(void **state)
{
	unsigned deaths = 0;
	int rc = 0;

	(void)state;
	for (unsigned at = 1; rc == 0; at++) {
		struct work work = { .root = folder_new("twice"), .killer = { .at = at } };
		struct kvc_packed_place place;
		struct opened opened;

		assert_int_equal(run_child(die_with_all_kinds, &work), 0);
		rc = run_child(recover, &work);
		deaths += rc == 0;
		opened = must_open(work.root, CAPACITY);
		(void)kvc_packed_recover_dead(opened.packed);
		for (uint64_t i = 0; i < BASE; i++)
			assert_true(has_key(arena_of(&opened, false), i, &place));
		assert_true(has_key(arena_of(&opened, false), 99, &place));
		(void)check_recovery(&opened);
		must_close(&opened);
		folder_remove(work.root);
	}
	assert_int_equal(rc, 1);
	assert_in_range(deaths, 20, 1000);
}

/* ---------------------------------------------------------------- several at once */

#define HELD 60u

static int die_with_many(void *context)
{
	struct work *work = context;
	struct kvc_packed_place place;
	struct opened opened;

	if (index_open(work->root, CAPACITY, false, &opened))
		return 1;
	if (!arena_of(&opened, false) && !prepare(&opened))
		return 1;
	for (uint32_t i = 0; i < HELD; i++)
		if (kvc_packed_claim(arena_of(&opened, false), i * 13 % KVC_PACKED_INTENTS, &place))
			return 1;
	(void)kill(getpid(), SIGKILL);
	return 1;
}

static void *recover_often(void *context)
{
	struct kvc_packed *packed = context;
	uintptr_t freed = 0;

	for (int i = 0; i < 200; i++)
		freed += kvc_packed_recover_dead(packed);
	return (void *)freed;
}

static void each_slot_is_freed_once(void **state)
{
	struct work work = { .root = folder_new("once") };
	struct opened opened[2];
	pthread_t threads[6];
	uint64_t freed = 0;

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(run_child(die_with_many, &work), 0);
	for (int i = 0; i < 2; i++) {
		opened[i] = must_open(work.root, CAPACITY);
		opened[i].packed->quarantine_ns = 0;
		assert_non_null(arena_of(&opened[i], false));
	}
	assert_int_not_equal(opened[0].packed->entry, opened[1].packed->entry);
	for (int i = 0; i < 6; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, recover_often, opened[i % 2].packed), 0);
	for (int i = 0; i < 6; i++) {
		void *result;

		assert_int_equal(pthread_join(threads[i], &result), 0);
		freed += (uintptr_t)result;
	}
	assert_int_equal(freed, 2 * HELD);
	assert_int_equal(slots_count(arena_of(&opened[0], false)).wrong_bits, 0);
	/* Those who were at it are alive, and have kept their own. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(
			atomic_load(&opened[0].packed->shm->processes[opened[i].packed->entry].pid),
			getpid());
	assert_int_equal(entries_left(opened[0].packed, NULL), 1);
	must_close(&opened[0]);
	must_close(&opened[1]);
}

/* ---------------------------------------------------------------- entries */

static void a_living_owner_is_left_alone(void **state)
{
	const char *root = folder_new("alive");
	struct opened opened = must_open(root, CAPACITY), other = must_open(root, CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_place place;

	(void)state;
	other.packed->quarantine_ns = 0;
	assert_int_equal(kvc_packed_claim(arena, 9, &place), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kvc_packed_recover_dead(other.packed), 0);
	assert_int_equal(publish_key(&opened, arena, &place, 1, false), 0);
	assert_true(has_key(arena_of(&other, false), 1, &place));
	/* It goes with a claim that nobody ends: as a dead one. */
	assert_int_equal(kvc_packed_claim(arena, 9, &place), 0);
	must_close(&opened);
	assert_int_equal(kvc_packed_recover_dead(other.packed), 0);
	assert_int_equal(kvc_packed_recover_dead(other.packed), 1);
	assert_int_equal(entries_left(other.packed, NULL), 0);
	must_close(&other);
}

static void an_entry_in_quarantine_is_nobodys(void **state)
{
	struct work work = { .root = folder_new("entry") };
	struct opened opened;
	uint32_t dead;

	(void)state;
	assert_int_equal(run_child(die_with_many, &work), 0);
	opened = must_open(work.root, CAPACITY);
	for (dead = 0; dead < KVC_PACKED_PROCESSES; dead++)
		if (dead != opened.packed->entry &&
		    atomic_load(&opened.packed->shm->processes[dead].pid))
			break;
	assert_in_range(dead, 0, KVC_PACKED_PROCESSES - 1);
	/* Taken by everybody but for the dead one's. */
	for (uint32_t round = 0; round < 2; round++) {
		struct kvc_packed_lock *lock;
		struct opened other;

		assert_int_equal(kvc_packed_lock_open(opened.packed->dir,
						      KVC_PACKED_FOLDER "/root.lock", false, &lock),
				 0);
		for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++)
			if (i != dead && i != opened.packed->entry)
				assert_int_equal(kvc_packed_lock_try(
							 lock, KVC_PACKED_LOCK_PROCESS + i, true),
						 0);
		if (round == 0) {
			assert_int_equal(index_open(work.root, CAPACITY, false, &other), -EUSERS);
			assert_non_null(strstr(kvc_last_error(), "240"));
			assert_non_null(strstr(kvc_last_error(), work.root));
			assert_int_equal(
				slots_count(arena_of(&opened, false)).count[KVC_PACKED_QUAR], HELD);
			opened.packed->quarantine_ns = 0;
			assert_int_equal(kvc_packed_recover_dead(opened.packed), HELD);
		} else {
			other = must_open(work.root, CAPACITY);
			assert_int_equal(other.packed->entry, dead);
			must_close(&other);
		}
		kvc_packed_lock_close(lock);
	}
	must_close(&opened);
}

/* A later boot's clock, or damage. */
static void a_time_that_is_to_come_begins_anew(void **state)
{
	struct work work = { .root = folder_new("time") };
	struct opened opened;
	uint32_t waiting;

	(void)state;
	assert_int_equal(run_child(die_with_many, &work), 0);
	opened = must_open(work.root, CAPACITY);
	(void)kvc_packed_recover_dead(opened.packed);
	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++)
		if (atomic_load(&opened.packed->shm->processes[i].quarantined))
			atomic_store(&opened.packed->shm->processes[i].quarantined, UINT64_MAX);
	opened.packed->quarantine_ns = 0;
	assert_int_equal(kvc_packed_recover_dead(opened.packed), 0);
	assert_int_equal(entries_left(opened.packed, &waiting), 1);
	assert_int_equal(waiting, 1);
	assert_int_equal(kvc_packed_recover_dead(opened.packed), HELD);
	must_close(&opened);
}

/* ---------------------------------------------------------------- damage */

static void spoil(const char *path, int way)
{
	static const char garbage[] = "this is no list of intents";
	int fd;

	switch (way) {
	case 0:
		assert_int_equal(unlink(path), 0);
		return;
	case 1:
		assert_int_equal(truncate(path, 0), 0);
		return;
	default:
		fd = open(path, O_WRONLY | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(pwrite(fd, garbage, sizeof(garbage), way == 2 ? 0 : 30),
				 sizeof(garbage));
		assert_int_equal(close(fd), 0);
	}
}

static void lost_intents_are_looked_for_everywhere(void **state)
{
	(void)state;
	for (int way = 0; way < 4; way++) {
		struct work work = { .root = folder_new("intents") };
		struct kvc_packed_place place;
		struct opened opened;
		char path[PATH_BYTES];

		assert_int_equal(run_child(die_with_many, &work), 0);
		opened = must_open(work.root, CAPACITY);
		for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++) {
			if (i == opened.packed->entry ||
			    atomic_load(&opened.packed->shm->processes[i].pid) == 0)
				continue;
			text_make(path, sizeof(path), "%s/" KVC_PACKED_FOLDER "/intents.%u",
				  work.root, i);
			spoil(path, way);
		}
		assert_int_equal(kvc_packed_recover_dead(opened.packed), 0);
		for (uint64_t i = 0; i < BASE; i++)
			assert_true(has_key(arena_of(&opened, false), i, &place));
		assert_int_equal(check_recovery(&opened), HELD);
		must_close(&opened);
		folder_remove(work.root);
	}
}

/* Whatever stands in the intents of a dead process: only its own slots are touched. */
static void senseless_intents_are_harmless(void **state)
{
	struct chance chance = { seed_get() };
	struct work work = { .root = folder_new("senseless") };
	struct kvc_packed_place place, mine;
	struct kvc_packed_arena *arena;
	struct slot_counts counts;
	struct opened opened;

	(void)state;
	assert_int_equal(run_child(die_with_many, &work), 0);
	opened = must_open(work.root, CAPACITY);
	arena = arena_of(&opened, false);
	assert_int_equal(kvc_packed_claim(arena, 0, &mine), 0);
	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++) {
		struct kvc_packed_map map;
		char name[64];
		static const struct kvc_mapfile_kind kind = {
			.magic = { 'K', 'V', 'C', 'P', 'K', 'I', '\r', '\n' },
			.major = 1,
			.header_bytes = 128,
			.file_bytes = sizeof(struct kvc_packed_intents),
		};

		if (i == opened.packed->entry ||
		    atomic_load(&opened.packed->shm->processes[i].pid) == 0)
			continue;
		text_make(name, sizeof(name), KVC_PACKED_FOLDER "/intents.%u", i);
		assert_int_equal(kvc_packed_map_open(opened.packed->dir, name, &kind, NULL, 0, NULL,
						     &map),
				 0);
		for (uint32_t k = 0; k < KVC_PACKED_INTENTS; k++) {
			struct kvc_packed_intents *intents = map.memory;
			const uint64_t random =
				chance_below(&chance, 2) ?
					chance_next(&chance) :
					kvc_packed_intent(
						(uint32_t)chance_below(&chance, 2),
						kvc_packed_ref((uint32_t)chance_below(&chance, 12),
							       (uint32_t)chance_below(&chance,
										      20)));

			if (atomic_load(&intents->intents[k]) == 0)
				atomic_store(&intents->intents[k], random);
		}
		kvc_packed_map_close(&map);
	}
	(void)kvc_packed_recover_dead(opened.packed);
	counts = slots_count(arena);
	assert_int_equal(counts.count[KVC_PACKED_QUAR], HELD);
	assert_int_equal(counts.count[KVC_PACKED_WRITING], 1);
	assert_int_equal(check_live(arena, 0), BASE);
	assert_true(atomic_load(&mine.segment->headers[kvc_packed_ref_slot(mine.ref)].state) ==
		    mine.state);
	for (uint64_t i = 0; i < BASE; i++)
		assert_true(has_key(arena, i, &place));
	kvc_packed_abandon(arena, &mine);
	assert_int_equal(check_recovery(&opened), HELD);
	must_close(&opened);
}

static void this_machine_is_known(void **state)
{
	uint64_t boot[2] = { 0, 0 }, again[2] = { 0, 0 };
	uint8_t machine[32], machine_again[32];

	(void)state;
	assert_int_equal(kvc_host_boot_id(boot), 0);
	assert_int_equal(kvc_host_boot_id(again), 0);
	assert_memory_equal(boot, again, sizeof(boot));
	assert_true(boot[0] != 0 && boot[1] != 0);
	kvc_host_machine_id(machine);
	memset(machine_again, 0xff, sizeof(machine_again));
	kvc_host_machine_id(machine_again);
	assert_memory_equal(machine, machine_again, sizeof(machine));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(this_machine_is_known),
		cmocka_unit_test(each_kind_of_slot_is_looked_after),
		cmocka_unit_test(a_death_at_any_step_leaks_nothing),
		cmocka_unit_test(recovery_that_is_killed_is_gone_on_with),
		cmocka_unit_test(each_slot_is_freed_once),
		cmocka_unit_test(a_living_owner_is_left_alone),
		cmocka_unit_test(an_entry_in_quarantine_is_nobodys),
		cmocka_unit_test(a_time_that_is_to_come_begins_anew),
		cmocka_unit_test(lost_intents_are_looked_for_everywhere),
		cmocka_unit_test(senseless_intents_are_harmless),
	};

	support_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
