/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process entries of a packed root, and what a process leaves behind that dies: slots in the middle
 * of a set. docs/packed.md has the protocol.
 *
 * Whoever holds the lock of an entry's byte is its owner, or looks after what its owner left. Each
 * step can be taken twice, and a look that ends anywhere is gone on with by the next one: the
 * intents are cleared one by one, and the entry is given back last.
 */
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/host.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct kvc_mapfile_kind intents_kind = {
	.magic = { 'K', 'V', 'C', 'P', 'K', 'I', '\r', '\n' },
	.major = 1,
	.header_bytes = offsetof(struct kvc_packed_intents, header_crc) + sizeof(uint32_t),
	.file_bytes = sizeof(struct kvc_packed_intents),
};

/* Goes on while the machine sleeps, as disks may. */
static uint64_t boot_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------- intents */

static void intents_name(uint32_t entry, char out[64])
{
	(void)snprintf(out, 64, KVC_PACKED_FOLDER "/intents.%u", entry);
}

/* -EBADMSG: it is damaged, or of another root. */
static int intents_open(struct kvc_packed *packed, uint32_t entry, atomic_bool *broken,
			struct kvc_packed_map *out)
{
	uint8_t header[offsetof(struct kvc_packed_intents, intents)] = { 0 };
	struct kvc_packed_map map;
	uint32_t found;
	char name[64];
	int rc;

	intents_name(entry, name);
	rc = kvc_packed_map_open(packed->dir, name, &intents_kind, header, 0, broken, &map);
	if (rc == -ENOMSG || rc == -EPROTONOSUPPORT || rc == -EIO)
		return -EBADMSG;
	if (rc)
		return rc;
	kvc_packed_map_close_fd(&map);
	memcpy(&found, header + offsetof(struct kvc_packed_intents, entry), sizeof(found));
	if (found != entry || memcmp(header + offsetof(struct kvc_packed_intents, uuid),
				     packed->shm->uuid, sizeof(packed->shm->uuid)) != 0) {
		kvc_packed_map_close(&map);
		return -EBADMSG;
	}
	*out = map;
	return 0;
}

static int intents_create(struct kvc_packed *packed, uint32_t entry)
{
	uint8_t header[offsetof(struct kvc_packed_intents, intents)] = { 0 };
	char name[64];

	intents_name(entry, name);
	memcpy(header + offsetof(struct kvc_packed_intents, uuid), packed->shm->uuid,
	       sizeof(packed->shm->uuid));
	memcpy(header + offsetof(struct kvc_packed_intents, entry), &entry, sizeof(entry));
	return kvc_packed_map_create(packed->dir, name, &intents_kind, header);
}

/* The intents of an entry whose lock is held and that has none to be looked after. */
static int intents_obtain(struct kvc_packed *packed, uint32_t entry, struct kvc_packed_map *out)
{
	int rc = intents_open(packed, entry, &packed->broken, out);
	char name[64];

	if (rc != -ENOENT && rc != -EBADMSG)
		return rc;
	intents_name(entry, name);
	if (rc == -EBADMSG)
		(void)kvc_packed_dir_remove(packed->dir, name);
	rc = intents_create(packed, entry);
	return rc ? rc : intents_open(packed, entry, &packed->broken, out);
}

static bool intents_are_clear(struct kvc_packed_intents *intents)
{
	for (uint32_t i = 0; i < KVC_PACKED_INTENTS; i++)
		if (atomic_load(&intents->intents[i]) != 0)
			return false;
	return true;
}

int kvc_packed_intents_clear(struct kvc_packed *packed, uint32_t entry)
{
	struct kvc_packed_intents *intents;
	atomic_bool broken = false;
	struct kvc_packed_map map;
	int rc = intents_open(packed, entry, &broken, &map);

	if (rc)
		return rc;
	intents = map.memory;
	for (uint32_t i = 0; i < KVC_PACKED_INTENTS; i++)
		atomic_store(&intents->intents[i], 0);
	kvc_packed_map_close(&map);
	return atomic_load(&broken) ? -EBADMSG : 0;
}

/* ---------------------------------------------------------------- a dead owner's slots */

/* A look at one entry. */
struct look {
	struct kvc_packed *packed;
	uint32_t entry;
	bool over;	  /* the quarantine: slots in it become free */
	uint32_t waiting; /* slots in quarantine */
	uint32_t unclear; /* intents whose slots could not be looked at now */
	uint32_t freed;
};

/* WRITING by the dead becomes QUAR: nothing uses the slot while the dead one's I/O may go on. */
static uint64_t quarantine(const struct look *look, struct kvc_packed_slot *header, uint64_t state)
{
	const uint64_t quar = kvc_packed_state(kvc_packed_gen(state), look->entry, KVC_PACKED_QUAR);

	if (kvc_packed_st(state) != KVC_PACKED_WRITING || kvc_packed_owner(state) != look->entry)
		return state;
	kvc_packed_step(look->packed, "packed.recover.writing");
	if (!atomic_compare_exchange_strong(&header->state, &state, quar))
		return state;
	kvc_packed_step(look->packed, "packed.recover.quarantined");
	return quar;
}

static bool release(struct look *look, struct kvc_packed_segment *segment, uint32_t slot,
		    uint64_t state)
{
	if (!atomic_compare_exchange_strong(&segment->headers[slot].state, &state,
					    kvc_packed_freed(state)))
		return true;
	kvc_packed_step(look->packed, "packed.recover.freed");
	(void)kvc_packed_give_bit(segment, slot);
	atomic_fetch_add_explicit(&segment->arena->record->free_slots, 1, memory_order_relaxed);
	look->freed++;
	return true;
}

/* True: nothing is left to be done for this slot. */
static bool look_at_slot(struct look *look, struct kvc_packed_segment *segment, uint32_t slot)
{
	struct kvc_packed_slot *header = &segment->headers[slot];
	const uint64_t before = atomic_load(&header->state);
	const uint64_t state = quarantine(look, header, before);

	switch (kvc_packed_st(state)) {
	case KVC_PACKED_FREE: /* its bit may have been taken, or not been given back yet */
		look->freed += kvc_packed_give_bit(segment, slot);
		return true;
	case KVC_PACKED_LIVE:
		/* It died between LIVE and the end of its publishing: the object is whole. */
		kvc_packed_step(look->packed, "packed.recover.live");
		kvc_packed_slot_settle(segment, slot, state);
		return true;
	case KVC_PACKED_QUAR:
		if (kvc_packed_owner(state) != look->entry)
			return true;
		if (look->over && state == before)
			return release(look, segment, slot, state);
		look->waiting++;
		return false;
	case KVC_PACKED_WRITING:
		return true; /* another's: the intent is an old one */
	}
	return true; /* no state there is: a rebuild makes it free */
}

/* ---------------------------------------------------------------- a dead owner's intents */

static struct kvc_packed_arena *arena_of(struct kvc_packed *packed, uint64_t index)
{
	struct kvc_packed_arena *arena =
		atomic_load_explicit(&packed->arenas, memory_order_acquire);

	while (arena && arena->index != index)
		arena = arena->next;
	return arena;
}

bool kvc_packed_segment_is_gone(struct kvc_packed_arena *arena, uint32_t number)
{
	_Atomic(struct kvc_packed_segment *) *chunk;

	if (number == 0 || number > atomic_load(&arena->record->segments) ||
	    number >= KVC_PACKED_SEGMENTS_MAX)
		return true;
	chunk = atomic_load_explicit(&arena->chunks[number / KVC_PACKED_CHUNK],
				     memory_order_acquire);
	return chunk && atomic_load_explicit(&chunk[number % KVC_PACKED_CHUNK],
					     memory_order_acquire) == KVC_PACKED_MISSING;
}

/* True: it can be cleared. */
static bool look_at_intent(struct look *look, uint64_t intent)
{
	const uint64_t index = intent >> KVC_PACKED_REF_BITS, ref = intent & KVC_PACKED_REF_MASK;
	struct kvc_packed_arena *arena = arena_of(look->packed, index);
	const uint32_t number = kvc_packed_ref_segment(ref);
	struct kvc_packed_segment *segment;

	if (!arena) {
		/* No handle for lack of memory? */
		if (index < KVC_PACKED_ARENAS &&
		    atomic_load(&look->packed->shm->arenas[index].state) == 1) {
			look->unclear++;
			return false;
		}
		return true;
	}
	segment = kvc_packed_segment(arena, number);
	if (!segment && !kvc_packed_segment_is_gone(arena, number)) {
		look->unclear++;
		return false;
	}
	if (!segment || kvc_packed_ref_slot(ref) >= segment->slots)
		return true;
	return look_at_slot(look, segment, kvc_packed_ref_slot(ref));
}

static void look_at_intents(struct look *look, struct kvc_packed_intents *intents)
{
	for (uint32_t i = 0; i < KVC_PACKED_INTENTS; i++) {
		const uint64_t intent = atomic_load(&intents->intents[i]);

		if (intent == 0 || !look_at_intent(look, intent))
			continue;
		kvc_packed_step(look->packed, "packed.recover.done");
		atomic_store(&intents->intents[i], 0);
		kvc_packed_step(look->packed, "packed.recover.cleared");
	}
}

/* The intents are lost: its slots are those that name it. */
static void look_everywhere(struct look *look)
{
	for (struct kvc_packed_arena *arena =
		     atomic_load_explicit(&look->packed->arenas, memory_order_acquire);
	     arena; arena = arena->next) {
		const uint32_t segments = atomic_load(&arena->record->segments);

		for (uint32_t n = 1; n <= segments; n++) {
			struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

			look->unclear += !segment && !kvc_packed_segment_is_gone(arena, n);
			for (uint32_t s = 0; segment && s < segment->slots; s++) {
				const uint64_t state = atomic_load(&segment->headers[s].state);
				const enum kvc_packed_st st = kvc_packed_st(state);

				if (kvc_packed_owner(state) == look->entry &&
				    (st == KVC_PACKED_WRITING || st == KVC_PACKED_QUAR))
					(void)look_at_slot(look, segment, s);
			}
		}
	}
}

/* ---------------------------------------------------------------- a dead owner */

/* pid goes first when an owner gives its entry back, last when it is recovered. */
static bool is_left(struct kvc_packed_entry *entry)
{
	return atomic_load(&entry->pid) != 0 || atomic_load(&entry->quarantined) != 0;
}

static void end_look(const struct look *look, struct kvc_packed_entry *entry)
{
	if (look->waiting > 0) {
		if (look->over || atomic_load(&entry->quarantined) == 0)
			atomic_store(&entry->quarantined, boot_ns());
		kvc_packed_step(look->packed, "packed.recover.noted");
		return;
	}
	if (look->unclear > 0)
		return;
	kvc_packed_step(look->packed, "packed.recover.empty");
	atomic_fetch_add(&look->packed->shm->deaths, 1);
	atomic_store(&entry->quarantined, 0);
	kvc_packed_step(look->packed, "packed.recover.released");
	atomic_store(&entry->pid, 0);
}

/* With the entry's byte held. Returns the slots that became free. */
static uint32_t recover_entry(struct kvc_packed *packed, uint32_t number)
{
	struct kvc_packed_entry *entry = &packed->shm->processes[number];
	const uint64_t since_ns = atomic_load(&entry->quarantined), now_ns = boot_ns();
	struct look look = { .packed = packed, .entry = number };
	atomic_bool broken = false;
	struct kvc_packed_map map;
	int rc;

	if (since_ns > now_ns) {
		atomic_store(&entry->quarantined, now_ns);
		return 0;
	}
	look.over = since_ns != 0 && now_ns - since_ns >= packed->quarantine_ns;
	if (since_ns != 0 && !look.over)
		return 0;
	kvc_packed_refresh(packed);
	rc = intents_open(packed, number, &broken, &map);
	if (!rc) {
		look_at_intents(&look, map.memory);
		kvc_packed_map_close(&map);
	}
	if (rc == -ENOENT || rc == -EBADMSG || atomic_load(&broken)) {
		look_everywhere(&look);
	} else if (rc) {
		kvc_log(KVC_LOG_DEBUG, "%s: the intents of a dead process cannot be read: %s",
			packed->root->location, strerror(-rc));
		return 0;
	}
	end_look(&look, entry);
	atomic_fetch_add_explicit(&packed->recovered, look.freed, memory_order_relaxed);
	return look.freed;
}

uint32_t kvc_packed_recover_dead(struct kvc_packed *packed)
{
	uint32_t freed = 0, turn;

	/* The threads of an opening have its locks in common: one of them is enough. */
	if (packed->read_only || atomic_exchange(&packed->recovering, true))
		return 0;
	turn = kvc_packed_enter(packed);
	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++) {
		struct kvc_packed_entry *entry = &packed->shm->processes[i];

		/* Our own lock would be ours to take, and to release. */
		if ((packed->intents && i == packed->entry) || !is_left(entry) ||
		    kvc_packed_lock_try(packed->lock, KVC_PACKED_LOCK_PROCESS + i, true) != 0)
			continue;
		if (is_left(entry))
			freed += recover_entry(packed, i);
		kvc_packed_lock_release(packed->lock, KVC_PACKED_LOCK_PROCESS + i);
	}
	kvc_packed_leave(packed, turn);
	atomic_store(&packed->recovering, false);
	return freed;
}

/* ---------------------------------------------------------------- an entry of our own */

/* With the entry's byte held, and nothing in it that is left of another. */
static int occupy(struct kvc_packed *packed, uint32_t number)
{
	struct kvc_packed_entry *entry = &packed->shm->processes[number];
	struct kvc_packed_map map;
	int rc = intents_obtain(packed, number, &map);

	if (rc)
		return rc;
	if (!intents_are_clear(map.memory)) {
		kvc_packed_map_close(&map);
		(void)recover_entry(packed, number);
		return -EAGAIN;
	}
	packed->intents_map = map;
	packed->intents = map.memory;
	packed->entry = number;
	atomic_store(&entry->started, (uint64_t)kvc_wall_ns() / UINT64_C(1000000000));
	kvc_packed_step(packed, "packed.entry.ready");
	atomic_store(&entry->pid, (uint64_t)getpid());
	kvc_packed_step(packed, "packed.entry.taken");
	return 0;
}

/* -EAGAIN: its owner is alive, or what is left in it has to wait. */
static int try_entry(struct kvc_packed *packed, uint32_t number)
{
	struct kvc_packed_entry *entry = &packed->shm->processes[number];
	int rc = kvc_packed_lock_try(packed->lock, KVC_PACKED_LOCK_PROCESS + number, true);

	if (rc)
		return rc;
	if (is_left(entry))
		(void)recover_entry(packed, number);
	rc = is_left(entry) ? -EAGAIN : occupy(packed, number);
	if (rc)
		kvc_packed_lock_release(packed->lock, KVC_PACKED_LOCK_PROCESS + number);
	return rc;
}

static int no_entry(struct kvc_packed *packed)
{
	uint32_t waiting = 0;

	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++)
		waiting += atomic_load(&packed->shm->processes[i].quarantined) != 0;
	return kvc_fail(-EUSERS,
			"%s: all %u places for processes are taken, %u of them by dead ones whose "
			"writes may still be under way: try again in %llu s, or close other "
			"processes that use this root",
			packed->root->location, KVC_PACKED_PROCESSES, waiting,
			(unsigned long long)(packed->quarantine_ns / UINT64_C(1000000000) + 1));
}

int kvc_packed_entry_take(struct kvc_packed *packed)
{
	const uint32_t first = (uint32_t)getpid() % KVC_PACKED_PROCESSES;
	int failed = 0;

	for (uint32_t n = 0; n < KVC_PACKED_PROCESSES; n++) {
		const uint32_t number = (first + n) % KVC_PACKED_PROCESSES;
		const int rc = try_entry(packed, number);

		if (!rc)
			return 0;
		/* No room for its intents, say: another one has its file already. */
		if (rc != -EAGAIN && !failed)
			failed = rc;
	}
	if (failed)
		return kvc_fail(failed, "%s/" KVC_PACKED_FOLDER ": no place for this process: %s",
				packed->root->location, strerror(-failed));
	return no_entry(packed);
}

void kvc_packed_entry_give(struct kvc_packed *packed)
{
	struct kvc_packed_entry *entry;

	if (!packed->intents)
		return;
	entry = &packed->shm->processes[packed->entry];
	/* A forked child has no entry: its parent's is none of its business. */
	if (atomic_load(&entry->pid) == (uint64_t)getpid()) {
		/* Else the next one who looks finds a dead owner, which is what it takes. */
		if (intents_are_clear(packed->intents))
			atomic_store(&entry->pid, 0);
		kvc_packed_step(packed, "packed.entry.given");
		kvc_packed_lock_release(packed->lock, KVC_PACKED_LOCK_PROCESS + packed->entry);
	}
	packed->intents = NULL;
	kvc_packed_map_close(&packed->intents_map);
}
