/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas: their records in root.shm, the handles of this process, and what of them is used no more.
 * Files come and go under the lock of changes; what other processes removed is noticed by the
 * generation of root.shm.
 */
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/store.h"
#include "core/usage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETIRED_MARKED	KVC_PACKED_RETIRED_MARKED
#define RETIRED_REMOVED KVC_PACKED_RETIRED_REMOVED
#define CHANGES_WAIT_NS (UINT64_C(500) * 1000000)

void kvc_packed_arena_path(const struct kvc_packed_arena *arena, const char *file, uint64_t number,
			   char out[256])
{
	(void)snprintf(out, 256, "%.95s/slots-%" PRIu64 "/%s.%" PRIu64, arena->record->folder,
		       arena->slot_bytes, file, number);
}

void kvc_packed_arena_remove(struct kvc_packed_arena *arena, const char *file, uint64_t number)
{
	char path[256];

	kvc_packed_arena_path(arena, file, number, path);
	(void)kvc_packed_dir_remove(arena->packed->dir, path);
}

bool kvc_packed_arena_has(struct kvc_packed_arena *arena, const char *file, uint64_t number)
{
	char path[256];
	int fd, rc;

	kvc_packed_arena_path(arena, file, number, path);
	rc = kvc_packed_dir_file(arena->packed->dir, path, O_RDONLY, &fd);
	if (rc == 0)
		(void)close(fd);
	return rc != -ENOENT;
}

/* ---------------------------------------------------------------- changes */

/* A condition, as ThreadSanitizer of gcc 12 does not see pthread_mutex_clocklock(). */
static bool changing_begin(struct kvc_packed *packed, uint64_t deadline_ns)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	bool began;
	int rc = 0;

	pthread_mutex_lock(&packed->changes_lock);
	while (packed->changing && !rc)
		rc = pthread_cond_clockwait(&packed->changes_ended, &packed->changes_lock,
					    CLOCK_MONOTONIC, &until);
	began = !packed->changing;
	packed->changing = true;
	pthread_mutex_unlock(&packed->changes_lock);
	return began;
}

static void changing_end(struct kvc_packed *packed)
{
	pthread_mutex_lock(&packed->changes_lock);
	packed->changing = false;
	pthread_cond_signal(&packed->changes_ended);
	pthread_mutex_unlock(&packed->changes_lock);
}

int kvc_packed_changes_begin(struct kvc_packed *packed)
{
	const uint64_t deadline_ns = kvc_now_ns() + CHANGES_WAIT_NS;
	int rc;

	if (packed->read_only)
		return -EROFS;
	/* Another process may be stopped while it has the lock. */
	if (!changing_begin(packed, deadline_ns))
		return -ETIMEDOUT;
	rc = kvc_packed_lock_wait(packed->lock, KVC_PACKED_LOCK_CHANGES, true, deadline_ns);
	if (rc)
		changing_end(packed);
	return rc;
}

void kvc_packed_changes_end(struct kvc_packed *packed)
{
	kvc_packed_lock_release(packed->lock, KVC_PACKED_LOCK_CHANGES);
	changing_end(packed);
}

/* ---------------------------------------------------------------- what is used no more */

void kvc_packed_segment_drop(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_segment *seen = segment;
	_Atomic(struct kvc_packed_segment *) *cell;

	pthread_mutex_lock(&arena->lock);
	cell = kvc_packed_segment_cell(arena, segment->number);
	if (cell && atomic_compare_exchange_strong(cell, &seen, KVC_PACKED_MISSING)) {
		pthread_mutex_lock(&packed->dropped_lock);
		segment->dropped_turn = atomic_load(&packed->turn);
		segment->next_dropped = packed->dropped_segments;
		packed->dropped_segments = segment;
		pthread_mutex_unlock(&packed->dropped_lock);
	}
	pthread_mutex_unlock(&arena->lock);
}

void kvc_packed_table_drop(struct kvc_packed_arena *arena, struct kvc_packed_table *table)
{
	struct kvc_packed *packed = arena->packed;

	pthread_mutex_lock(&packed->dropped_lock);
	table->dropped_turn = atomic_load(&packed->turn);
	table->next_dropped = packed->dropped_tables;
	packed->dropped_tables = table;
	pthread_mutex_unlock(&packed->dropped_lock);
}

void kvc_packed_table_free(struct kvc_packed_table *table)
{
	kvc_packed_map_close(&table->map);
	free(table->own);
	free(table);
}

/* A turn ends when the batches of the one before have left: what was dropped two turns ago is seen
 * by nobody. */
void kvc_packed_reap(struct kvc_packed *packed, bool all)
{
	const struct kvc_plugin *ops = &packed->root->backend->module->ops;
	struct kvc_packed_segment **segment = &packed->dropped_segments;
	struct kvc_packed_table **table = &packed->dropped_tables;
	unsigned turn;

	pthread_mutex_lock(&packed->dropped_lock);
	turn = atomic_load(&packed->turn);
	if (atomic_load(&packed->active[(turn + 1) & 1]) == 0)
		atomic_store(&packed->turn, ++turn);
	while (*segment) {
		struct kvc_packed_segment *s = *segment;

		if ((!all && (int)(turn - s->dropped_turn) < 2) ||
		    ops->container_close(s->container)) {
			segment = &s->next_dropped;
			continue;
		}
		*segment = s->next_dropped;
		kvc_packed_segment_free(s);
	}
	while (*table) {
		struct kvc_packed_table *t = *table;

		if (!all && (int)(turn - t->dropped_turn) < 2) {
			table = &t->next_dropped;
			continue;
		}
		*table = t->next_dropped;
		kvc_packed_table_free(t);
	}
	pthread_mutex_unlock(&packed->dropped_lock);
}

/* ---------------------------------------------------------------- arenas */

static struct kvc_packed_arena *arena_find(struct kvc_packed *packed, uint64_t ns_hash,
					   const char *folder, uint64_t slot_bytes)
{
	struct kvc_packed_arena *arena =
		atomic_load_explicit(&packed->arenas, memory_order_acquire);

	while (arena && (arena->ns_hash != ns_hash || arena->slot_bytes != slot_bytes ||
			 strcmp(arena->record->folder, folder) != 0))
		arena = arena->next;
	return arena;
}

/* With arena_lock. */
static int arena_add(struct kvc_packed *packed, uint32_t index)
{
	struct kvc_packed_record *record = &packed->shm->arenas[index];
	struct kvc_packed_arena *arena = calloc(1, sizeof(*arena));

	if (!arena)
		return -ENOMEM;
	arena->packed = packed;
	arena->index = index;
	arena->record = record;
	arena->slot_bytes = record->slot_bytes;
	arena->ns_hash = record->ns_hash;
	(void)pthread_mutex_init(&arena->lock, NULL);
	(void)pthread_mutex_init(&arena->room_lock, NULL);
	(void)pthread_mutex_init(&arena->evict_lock, NULL);
	kvc_victims_init(&arena->victims, packed->root->order);
	arena->next = atomic_load(&packed->arenas);
	atomic_store_explicit(&packed->arenas, arena, memory_order_release);
	return 0;
}

static bool has_handle(struct kvc_packed *packed, uint32_t index)
{
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		if (a->index == index)
			return true;
	return false;
}

static void drop_removed(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);

	for (uint32_t n = 1; n <= segments; n++) {
		_Atomic(struct kvc_packed_segment *) *chunk =
			atomic_load(&arena->chunks[n / KVC_PACKED_CHUNK]);
		struct kvc_packed_segment *segment =
			chunk ? atomic_load(&chunk[n % KVC_PACKED_CHUNK]) : NULL;

		if (segment && segment != KVC_PACKED_MISSING &&
		    atomic_load(&segment->hdr->retired) == RETIRED_REMOVED)
			kvc_packed_segment_drop(segment);
	}
}

/* A handle for a record that has none. False: no memory. */
static bool refresh_arena(struct kvc_packed *packed, uint32_t index)
{
	if (kvc_packed_record_is_sane(&packed->shm->arenas[index]))
		return arena_add(packed, index) == 0;
	if (!atomic_exchange(&packed->damaged, true))
		kvc_log(KVC_LOG_WARNING, "%s/" KVC_PACKED_FOLDER "/root.shm: a record is damaged",
			packed->root->location);
	return true;
}

void kvc_packed_refresh(struct kvc_packed *packed)
{
	const uint64_t generation = atomic_load(&packed->shm->generation);
	bool whole = true;
	uint32_t turn;

	if (atomic_load_explicit(&packed->generation, memory_order_relaxed) == generation)
		return;
	turn = kvc_packed_enter(packed);
	pthread_mutex_lock(&packed->arena_lock);
	for (uint32_t i = 0; i < KVC_PACKED_ARENAS; i++)
		if (atomic_load(&packed->shm->arenas[i].state) == 1 && !has_handle(packed, i))
			whole &= refresh_arena(packed, i);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		drop_removed(a);
	if (whole)
		atomic_store_explicit(&packed->generation, generation, memory_order_relaxed);
	pthread_mutex_unlock(&packed->arena_lock);
	kvc_packed_leave(packed, turn);
}

/* With the lock of changes. */
static int record_make(struct kvc_packed *packed, uint64_t ns_hash, const char *folder,
		       uint64_t slot_bytes)
{
	uint64_t slots = packed->segment_target_bytes / slot_bytes;
	struct kvc_packed_record *record = NULL;

	for (uint32_t i = 0; i < KVC_PACKED_ARENAS && !record; i++)
		if (atomic_load(&packed->shm->arenas[i].state) == 0)
			record = &packed->shm->arenas[i];
	if (!record)
		return kvc_fail(-ENOSPC,
				"%s: %u arenas, one for each namespace and slot size, "
				"are as many as a root can have",
				packed->root->location, KVC_PACKED_ARENAS);
	slots = slots < 1 ? 1 : slots > KVC_PACKED_SLOTS_MAX ? KVC_PACKED_SLOTS_MAX : slots;
	memset((void *)record, 0, sizeof(*record));
	record->ns_hash = ns_hash;
	record->slot_bytes = slot_bytes;
	record->segment_slots = (uint32_t)slots;
	(void)snprintf(record->folder, sizeof(record->folder), "%s", folder);
	kvc_packed_step(packed, "packed.arena.filled");
	atomic_store(&record->state, 1);
	atomic_fetch_add(&packed->shm->generation, 1);
	return 0;
}

struct kvc_packed_arena *kvc_packed_arena_get(struct kvc_packed *packed, uint64_t ns_hash,
					      const char *folder, uint64_t slot_bytes, bool create,
					      int *out_rc)
{
	struct kvc_packed_arena *arena = arena_find(packed, ns_hash, folder, slot_bytes);
	int rc = 0;

	if (!arena) {
		kvc_packed_refresh(packed);
		arena = arena_find(packed, ns_hash, folder, slot_bytes);
	}
	if (arena || !create)
		return arena;
	rc = strlen(folder) < sizeof(packed->shm->arenas[0].folder) ? 0 : -ENAMETOOLONG;
	if (!rc)
		rc = kvc_packed_changes_begin(packed);
	if (!rc) {
		/* Another process may have been first. */
		kvc_packed_refresh(packed);
		arena = arena_find(packed, ns_hash, folder, slot_bytes);
		if (!arena)
			rc = record_make(packed, ns_hash, folder, slot_bytes);
		kvc_packed_changes_end(packed);
	}
	if (!rc && !arena) {
		kvc_packed_refresh(packed);
		arena = arena_find(packed, ns_hash, folder, slot_bytes);
		rc = arena ? 0 : -ENOMEM;
	}
	if (!arena && out_rc)
		*out_rc = rc;
	return arena;
}

bool kvc_packed_arena_seen(struct kvc_packed *packed, uint64_t ns_hash, const char *folder,
			   uint64_t slot_bytes, struct kvc_packed_arena **out)
{
	*out = arena_find(packed, ns_hash, folder, slot_bytes);
	return *out || atomic_load_explicit(&packed->generation, memory_order_relaxed) ==
			       atomic_load(&packed->shm->generation);
}

struct kvc_packed *kvc_packed_of(const struct kvc_packed_arena *arena)
{
	return arena->packed;
}

void kvc_packed_arenas_free(struct kvc_packed *packed)
{
	struct kvc_packed_arena *arena = atomic_load(&packed->arenas);

	while (arena) {
		struct kvc_packed_arena *next = arena->next;
		struct kvc_packed_table *table = atomic_load(&arena->table);

		for (uint32_t c = 0; c < KVC_PACKED_CHUNKS; c++) {
			_Atomic(struct kvc_packed_segment *) *chunk =
				atomic_load(&arena->chunks[c]);

			for (uint32_t i = 0; chunk && i < KVC_PACKED_CHUNK; i++) {
				struct kvc_packed_segment *segment = atomic_load(&chunk[i]);

				if (segment && segment != KVC_PACKED_MISSING)
					kvc_packed_segment_drop(segment);
			}
		}
		if (table)
			kvc_packed_table_drop(arena, table);
		arena = next;
	}
	kvc_packed_reap(packed, true);
	arena = atomic_load(&packed->arenas);
	while (arena) {
		struct kvc_packed_arena *next = arena->next;

		for (uint32_t c = 0; c < KVC_PACKED_CHUNKS; c++)
			free((void *)atomic_load(&arena->chunks[c]));
		(void)pthread_mutex_destroy(&arena->evict_lock);
		(void)pthread_mutex_destroy(&arena->room_lock);
		(void)pthread_mutex_destroy(&arena->lock);
		free(arena);
		arena = next;
	}
	atomic_store(&packed->arenas, NULL);
}
