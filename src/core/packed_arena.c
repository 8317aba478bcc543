/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas and their segments: mapping what is there, adding, retiring. Files come and go under the
 * lock of changes; what other processes removed is noticed by the generation of root.shm.
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
#define BUSY_NS		(UINT64_C(100) * 1000000)
#define BUSY_MAX	4 /* busy segments that one look for room may meet */
#define CHANGES_WAIT_NS (UINT64_C(5) * 1000000000)
#define AGE_SAMPLES	32u
#define NAMES_OFFSET	4096u

struct kvc_packed_segment kvc_packed_missing;

const struct kvc_mapfile_kind kvc_packed_hdr_kind = {
	.magic = { 'K', 'V', 'C', 'P', 'K', 'H', '\r', '\n' },
	.major = 1,
	.header_bytes = 128,
};

static const struct kvc_mapfile_kind names_kind = {
	.magic = { 'K', 'V', 'C', 'P', 'K', 'N', '\r', '\n' },
	.major = 1,
	.header_bytes = 128,
};

void kvc_packed_arena_path(const struct kvc_packed_arena *arena, const char *file, uint64_t number,
			   char out[256])
{
	(void)snprintf(out, 256, "%.95s/slots-%" PRIu64 "/%s.%" PRIu64, arena->record->folder,
		       arena->slot_bytes, file, number);
}

static uint64_t data_bytes(const struct kvc_packed_arena *arena)
{
	return arena->slot_bytes * arena->record->segment_slots;
}

static uint64_t names_bytes(const struct kvc_packed_arena *arena)
{
	return NAMES_OFFSET +
	       (uint64_t)arena->record->segment_slots * sizeof(struct kvc_packed_name);
}

uint64_t kvc_packed_segment_file_bytes(const struct kvc_packed_arena *arena)
{
	return data_bytes(arena) + kvc_packed_hdr_layout(arena->record->segment_slots).file_bytes +
	       names_bytes(arena);
}

/* ---------------------------------------------------------------- changes */

int kvc_packed_changes_begin(struct kvc_packed *packed)
{
	int rc;

	if (packed->read_only)
		return -EROFS;
	pthread_mutex_lock(&packed->changes_lock);
	rc = kvc_packed_lock_wait(packed->lock, KVC_PACKED_LOCK_CHANGES, true,
				  kvc_now_ns() + CHANGES_WAIT_NS);
	if (rc)
		pthread_mutex_unlock(&packed->changes_lock);
	return rc;
}

void kvc_packed_changes_end(struct kvc_packed *packed)
{
	kvc_packed_lock_release(packed->lock, KVC_PACKED_LOCK_CHANGES);
	pthread_mutex_unlock(&packed->changes_lock);
}

/* ---------------------------------------------------------------- mapping segments */

static void segment_free(struct kvc_packed_segment *segment)
{
	if (segment->names_map.memory)
		kvc_packed_map_close(&segment->names_map);
	kvc_packed_map_close(&segment->map);
	free(segment);
}

static bool header_fits(const struct kvc_packed_arena *arena, const struct kvc_packed_hdr *hdr,
			uint32_t number)
{
	return memcmp(hdr->uuid, arena->packed->shm->uuid, sizeof(hdr->uuid)) == 0 &&
	       hdr->ns_hash == arena->ns_hash && hdr->slot_bytes == arena->slot_bytes &&
	       hdr->slots == arena->record->segment_slots && hdr->segment == number;
}

static unsigned map_flags(const struct kvc_packed *packed)
{
	return packed->private_index ? KVC_PACKED_MAP_PRIVATE :
	       packed->read_only     ? KVC_PACKED_MAP_READ_ONLY :
				       0;
}

static int map_headers(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	const struct kvc_packed_hdr_layout layout = kvc_packed_hdr_layout(segment->slots);
	struct kvc_mapfile_kind kind = kvc_packed_hdr_kind;
	char path[256], *memory;
	int rc;

	kind.file_bytes = layout.file_bytes;
	kvc_packed_arena_path(arena, "hdr", segment->number, path);
	rc = kvc_packed_map_open(arena->packed->dir, path, &kind, NULL, map_flags(arena->packed),
				 &segment->broken, &segment->map);
	if (rc)
		return rc;
	kvc_packed_map_close_fd(&segment->map);
	memory = segment->map.memory;
	segment->hdr = segment->map.memory;
	segment->headers = (struct kvc_packed_slot *)(memory + layout.slots);
	segment->stamps = (_Atomic uint64_t *)(memory + layout.stamps);
	segment->bitmap = (_Atomic uint64_t *)(memory + layout.bitmap);
	if (header_fits(arena, segment->hdr, segment->number))
		return 0;
	kvc_packed_map_close(&segment->map);
	return -EBADMSG;
}

/* No file is trusted for its size. */
static int open_data(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	const struct kvc_root *root = arena->packed->root;
	const struct kvc_plugin *ops = &root->backend->module->ops;
	uint64_t bytes = 0;
	char path[256];
	int rc;

	kvc_packed_arena_path(arena, "seg", segment->number, path);
	rc = ops->container_open(root->handle, path, 0, &segment->container, &bytes);
	if (rc == 0 && bytes < data_bytes(arena)) {
		(void)ops->container_close(segment->container);
		rc = -EBADMSG;
	}
	return rc;
}

static void remove_files(struct kvc_packed_arena *arena, uint32_t number)
{
	const struct kvc_root *root = arena->packed->root;
	char path[256];

	kvc_packed_arena_path(arena, "seg", number, path);
	(void)root->backend->module->ops.container_remove(root->handle, path);
	kvc_packed_arena_path(arena, "names", number, path);
	(void)kvc_packed_dir_remove(arena->packed->dir, path);
	kvc_packed_arena_path(arena, "hdr", number, path);
	(void)kvc_packed_dir_remove(arena->packed->dir, path);
}

static int segment_open(struct kvc_packed_arena *arena, uint32_t number,
			struct kvc_packed_segment **out)
{
	struct kvc_packed_segment *segment = calloc(1, sizeof(*segment));
	int rc;

	if (!segment)
		return -ENOMEM;
	segment->arena = arena;
	segment->number = number;
	segment->slots = arena->record->segment_slots;
	segment->map.fd = -1;
	rc = map_headers(segment);
	if (rc) {
		free(segment);
		return rc;
	}
	rc = atomic_load(&segment->hdr->retired) == RETIRED_REMOVED ? -ENOENT : open_data(segment);
	if (rc == -ENOENT && !arena->packed->read_only)
		remove_files(arena, number); /* what the one that retired it had no time for */
	if (rc) {
		segment_free(segment);
		return rc;
	}
	*out = segment;
	return 0;
}

/* With the arena's lock: the cell of a number. NULL: no memory. */
static _Atomic(struct kvc_packed_segment *) *cell_of(struct kvc_packed_arena *arena,
						     uint32_t number)
{
	_Atomic(_Atomic(struct kvc_packed_segment *) *) *at =
		&arena->chunks[number / KVC_PACKED_CHUNK];
	_Atomic(struct kvc_packed_segment *) *chunk = atomic_load(at);

	if (!chunk) {
		chunk = calloc(KVC_PACKED_CHUNK, sizeof(*chunk));
		atomic_store_explicit(at, chunk, memory_order_release);
	}
	return chunk ? &chunk[number % KVC_PACKED_CHUNK] : NULL;
}

struct kvc_packed_segment *kvc_packed_segment_map(struct kvc_packed_arena *arena, uint32_t number)
{
	struct kvc_packed_segment *segment = NULL;
	_Atomic(struct kvc_packed_segment *) *cell;
	int rc;

	if (number > atomic_load_explicit(&arena->record->segments, memory_order_acquire))
		return NULL; /* not given out */
	pthread_mutex_lock(&arena->lock);
	cell = cell_of(arena, number);
	segment = cell ? atomic_load(cell) : NULL;
	if (!cell || segment)
		goto unlock;
	rc = segment_open(arena, number, &segment);
	if (rc == -ENOENT || rc == -EBADMSG || rc == -ENOMSG || rc == -EPROTONOSUPPORT) {
		if (rc != -ENOENT)
			kvc_log(KVC_LOG_WARNING,
				"%s: segment %u of %s, slots of %" PRIu64
				" bytes, is damaged and is not used (%s)",
				arena->packed->root->location, number, arena->record->folder,
				arena->slot_bytes, strerror(-rc));
		if (rc == -EBADMSG || rc == -ENOMSG)
			atomic_store(&arena->packed->damaged, true);
		segment = KVC_PACKED_MISSING;
	} else if (rc) {
		kvc_log(KVC_LOG_DEBUG, "%s: segment %u cannot be mapped: %s",
			arena->packed->root->location, number, strerror(-rc));
		segment = NULL; /* once more the next time */
	}
	if (segment)
		atomic_store_explicit(cell, segment, memory_order_release);
unlock:
	pthread_mutex_unlock(&arena->lock);
	return segment == KVC_PACKED_MISSING ? NULL : segment;
}

struct kvc_packed_name *kvc_packed_names(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed_name *names = atomic_load_explicit(&segment->names, memory_order_acquire);
	struct kvc_mapfile_kind kind = names_kind;
	char path[256];

	if (names)
		return names;
	pthread_mutex_lock(&arena->lock);
	names = atomic_load(&segment->names);
	kind.file_bytes = names_bytes(arena);
	kvc_packed_arena_path(arena, "names", segment->number, path);
	if (!names &&
	    kvc_packed_map_open(arena->packed->dir, path, &kind, NULL, map_flags(arena->packed),
				NULL, &segment->names_map) == 0) {
		kvc_packed_map_close_fd(&segment->names_map);
		names = (struct kvc_packed_name *)((char *)segment->names_map.memory +
						   NAMES_OFFSET);
		atomic_store_explicit(&segment->names, names, memory_order_release);
	}
	pthread_mutex_unlock(&arena->lock);
	return names;
}

/* ---------------------------------------------------------------- what is used no more */

void kvc_packed_segment_drop(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_segment *seen = segment;
	_Atomic(struct kvc_packed_segment *) *cell;

	pthread_mutex_lock(&arena->lock);
	cell = cell_of(arena, segment->number);
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

static void table_free(struct kvc_packed_table *table)
{
	kvc_packed_map_close(&table->map);
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
		segment_free(s);
	}
	while (*table) {
		struct kvc_packed_table *t = *table;

		if (!all && (int)(turn - t->dropped_turn) < 2) {
			table = &t->next_dropped;
			continue;
		}
		*table = t->next_dropped;
		table_free(t);
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

/* A handle for a record that has none. */
static void refresh_arena(struct kvc_packed *packed, uint32_t index)
{
	if (kvc_packed_record_is_sane(&packed->shm->arenas[index]))
		(void)arena_add(packed, index);
	else if (!atomic_exchange(&packed->damaged, true))
		kvc_log(KVC_LOG_WARNING, "%s/" KVC_PACKED_FOLDER "/root.shm: a record is damaged",
			packed->root->location);
}

void kvc_packed_refresh(struct kvc_packed *packed)
{
	const uint64_t generation = atomic_load(&packed->shm->generation);
	uint32_t turn;

	if (atomic_load_explicit(&packed->generation, memory_order_relaxed) == generation)
		return;
	turn = kvc_packed_enter(packed);
	pthread_mutex_lock(&packed->arena_lock);
	for (uint32_t i = 0; i < KVC_PACKED_ARENAS; i++)
		if (atomic_load(&packed->shm->arenas[i].state) == 1 && !has_handle(packed, i))
			refresh_arena(packed, i);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		drop_removed(a);
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
		(void)pthread_mutex_destroy(&arena->lock);
		free(arena);
		arena = next;
	}
	atomic_store(&packed->arenas, NULL);
}

/* ---------------------------------------------------------------- adding */

static bool may_add(struct kvc_packed *packed, uint64_t bytes)
{
	const struct kvc_root *root = packed->root;
	struct kvc_usage usage = { .size = sizeof(usage) };
	uint64_t files_bytes = 0;

	kvc_usage_total(root->usage, &files_bytes, NULL);
	if (kvc_packed_hint(&packed->shm->segment_bytes) + files_bytes + bytes >
	    packed->capacity_bytes)
		return false;
	if (packed->floor_bytes == 0 ||
	    root->backend->module->ops.usage(root->handle, &usage) < 0 || usage.total_bytes == 0)
		return true;
	return usage.free_bytes >= bytes && usage.free_bytes - bytes >= packed->floor_bytes;
}

static int create_mapped(struct kvc_packed_arena *arena, const struct kvc_mapfile_kind *like,
			 const char *file, uint64_t bytes, uint32_t number)
{
	struct kvc_packed_hdr header = {
		.ns_hash = arena->ns_hash,
		.slot_bytes = arena->slot_bytes,
		.slots = arena->record->segment_slots,
		.segment = number,
	};
	struct kvc_mapfile_kind kind = *like;
	char path[256];

	memcpy(header.uuid, arena->packed->shm->uuid, sizeof(header.uuid));
	kind.file_bytes = bytes;
	kvc_packed_arena_path(arena, file, number, path);
	return kvc_packed_map_create(arena->packed->dir, path, &kind, (uint8_t *)&header);
}

static int create_files(struct kvc_packed_arena *arena, uint32_t number)
{
	const struct kvc_root *root = arena->packed->root;
	const struct kvc_plugin *ops = &root->backend->module->ops;
	const struct kvc_packed_hdr_layout layout =
		kvc_packed_hdr_layout(arena->record->segment_slots);
	struct kvc_plugin_container *container;
	uint64_t bytes = data_bytes(arena);
	char path[256];
	int rc;

	/* What a process left that died here. */
	remove_files(arena, number);
	kvc_packed_arena_path(arena, "seg", number, path);
	rc = ops->container_open(root->handle, path, bytes, &container, &bytes);
	if (rc)
		return rc;
	(void)ops->container_close(container);
	kvc_packed_step(arena->packed, "packed.segment.data");
	rc = create_mapped(arena, &names_kind, "names", names_bytes(arena), number);
	if (!rc)
		rc = create_mapped(arena, &kvc_packed_hdr_kind, "hdr", layout.file_bytes, number);
	/* A set makes its slot durable; the file and the folder that it lies in are, once. */
	if (!rc && root->store->settings->durability == KVC_DURABILITY_FDATASYNC) {
		kvc_packed_arena_path(arena, "hdr", number, path);
		rc = kvc_packed_dir_sync(arena->packed->dir, path);
	}
	if (rc)
		remove_files(arena, number);
	return rc;
}

/* The bitmap of a new segment: all free. */
static void fill_bitmap(struct kvc_packed_segment *segment)
{
	for (uint32_t s = 0; s < segment->slots; s += 64) {
		const uint32_t left = segment->slots - s;

		atomic_store_explicit(&segment->bitmap[s / 64],
				      left >= 64 ? UINT64_MAX : (UINT64_C(1) << left) - 1,
				      memory_order_release);
	}
}

/* With the lock of changes: files, table, and then the number is given out. */
static int add_locked(struct kvc_packed_arena *arena)
{
	struct kvc_packed_record *record = arena->record;
	struct kvc_packed_shm *shm = arena->packed->shm;
	const uint32_t number = atomic_load(&record->segments) + 1;
	const uint64_t slots =
		((uint64_t)atomic_load(&record->present) + 1) * record->segment_slots;
	struct kvc_packed_table *table = kvc_packed_table_get(arena);
	struct kvc_packed_segment *segment;
	_Atomic(struct kvc_packed_segment *) *cell;
	int rc;

	if (number >= KVC_PACKED_SEGMENTS_MAX)
		return -ENOSPC;
	rc = create_files(arena, number);
	if (rc)
		return rc;
	rc = segment_open(arena, number, &segment);
	if (rc)
		goto remove;
	fill_bitmap(segment);
	if (!table || slots > table->bucket_count * 6) {
		rc = kvc_packed_table_make(arena, table ? 2 * slots : slots);
		if (rc)
			goto close;
	}
	kvc_packed_step(arena->packed, "packed.segment.made");
	pthread_mutex_lock(&arena->lock);
	cell = cell_of(arena, number);
	if (cell)
		atomic_store_explicit(cell, segment, memory_order_release);
	pthread_mutex_unlock(&arena->lock);
	rc = cell ? 0 : -ENOMEM;
	if (rc)
		goto close;
	atomic_store_explicit(&record->segments, number, memory_order_release);
	atomic_fetch_add(&record->present, 1);
	atomic_fetch_add(&record->free_slots, record->segment_slots);
	atomic_fetch_add(&shm->segment_bytes, kvc_packed_segment_file_bytes(arena));
	return 0;

close:
	(void)arena->packed->root->backend->module->ops.container_close(segment->container);
	segment_free(segment);
remove:
	remove_files(arena, number);
	return rc;
}

int kvc_packed_segment_add(struct kvc_packed_arena *arena)
{
	struct kvc_packed *packed = arena->packed;
	const uint32_t seen = atomic_load(&arena->record->segments);
	int rc;

	if (packed->read_only || atomic_load(&packed->gone) ||
	    !may_add(packed, kvc_packed_segment_file_bytes(arena)))
		return -ENOSPC;
	rc = kvc_packed_changes_begin(packed);
	if (rc)
		return rc;
	/* Several that found nothing free: one adds for all. */
	if (atomic_load(&arena->record->segments) == seen) {
		rc = may_add(packed, kvc_packed_segment_file_bytes(arena)) ? add_locked(arena) :
									     -ENOSPC;
		if (rc && rc != -ENOSPC)
			kvc_log(KVC_LOG_WARNING, "%s: no new segment of %" PRIu64 " bytes: %s",
				packed->root->location, data_bytes(arena), strerror(-rc));
	}
	kvc_packed_changes_end(packed);
	return rc;
}

/* ---------------------------------------------------------------- retiring */

/* Ends the live slots; returns those that are still being written, or in quarantine. */
static uint32_t empty_segment(struct kvc_packed_segment *segment)
{
	uint32_t left = 0;

	for (uint32_t s = 0; s < segment->slots; s++) {
		const uint64_t state = atomic_load(&segment->headers[s].state);

		if (kvc_packed_st(state) == KVC_PACKED_LIVE)
			(void)kvc_packed_slot_end(segment, s, state);
	}
	for (uint32_t s = 0; s < segment->slots; s++)
		left += kvc_packed_st(atomic_load(&segment->headers[s].state)) != KVC_PACKED_FREE;
	return left;
}

/* Such a slot may stay for a minute: the segment is of more use with its other slots. */
static bool has_quarantined(const struct kvc_packed_segment *segment)
{
	for (uint32_t s = 0; s < segment->slots; s++)
		if (kvc_packed_st(atomic_load_explicit(&segment->headers[s].state,
						       memory_order_relaxed)) == KVC_PACKED_QUAR)
			return true;
	return false;
}

static int retire_locked(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed_shm *shm = arena->packed->shm;
	uint32_t none = 0;

	if (atomic_load(&segment->hdr->retired) == 0 && has_quarantined(segment))
		return -EBUSY;
	if (!atomic_compare_exchange_strong(&segment->hdr->retired, &none, RETIRED_MARKED) &&
	    none == RETIRED_REMOVED)
		return 0;
	kvc_packed_step(arena->packed, "packed.retire.marked");
	if (empty_segment(segment) > 0)
		return -EBUSY;
	kvc_packed_step(arena->packed, "packed.retire.emptied");
	atomic_store(&segment->hdr->retired, RETIRED_REMOVED);
	atomic_fetch_sub(&arena->record->present, 1);
	atomic_fetch_sub(&arena->record->free_slots, segment->slots);
	atomic_fetch_sub(&shm->segment_bytes, kvc_packed_segment_file_bytes(arena));
	remove_files(arena, segment->number);
	kvc_packed_step(arena->packed, "packed.retire.removed");
	atomic_fetch_add(&shm->generation, 1);
	return 0;
}

/* Its files were removed by others: what is written there would be lost. */
static void forget_lost(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed_shm *shm = arena->packed->shm;

	if (kvc_packed_changes_begin(arena->packed))
		return;
	if (atomic_exchange(&segment->hdr->retired, RETIRED_REMOVED) != RETIRED_REMOVED) {
		kvc_log(KVC_LOG_WARNING, "%s: segment %u of %s was removed by others",
			arena->packed->root->location, segment->number, arena->record->folder);
		(void)empty_segment(segment);
		atomic_fetch_sub(&arena->record->present, 1);
		atomic_fetch_sub(&arena->record->free_slots, segment->slots);
		atomic_fetch_sub(&shm->segment_bytes, kvc_packed_segment_file_bytes(arena));
		remove_files(arena, segment->number);
		atomic_fetch_add(&shm->generation, 1);
	}
	kvc_packed_changes_end(arena->packed);
	kvc_packed_segment_drop(segment);
}

static bool has_file(struct kvc_packed_segment *segment, const char *file)
{
	char path[256];
	int fd, rc;

	kvc_packed_arena_path(segment->arena, file, segment->number, path);
	rc = kvc_packed_dir_file(segment->arena->packed->dir, path, O_RDONLY, &fd);
	if (rc == 0)
		(void)close(fd);
	return rc != -ENOENT;
}

void kvc_packed_arena_check(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		if (segment && atomic_load(&segment->hdr->retired) != RETIRED_REMOVED &&
		    (!has_file(segment, "hdr") ||
		     (arena->packed->root->attributes.local_path && !has_file(segment, "seg"))))
			forget_lost(segment);
	}
}

int kvc_packed_segment_retire(struct kvc_packed_segment *segment)
{
	struct kvc_packed *packed = segment->arena->packed;
	int rc = kvc_packed_changes_begin(packed);

	if (rc)
		return rc;
	rc = retire_locked(segment);
	kvc_packed_changes_end(packed);
	if (rc == -EBUSY)
		atomic_store_explicit(&segment->busy_until_ns, kvc_now_ns() + BUSY_NS,
				      memory_order_relaxed);
	if (rc == 0)
		kvc_packed_segment_drop(segment);
	return rc;
}

void kvc_packed_arena_finish(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		if (segment && atomic_load(&segment->hdr->retired) == RETIRED_MARKED)
			(void)kvc_packed_segment_retire(segment);
	}
}

/* ---------------------------------------------------------------- between arenas */

/* The latest and the earliest use among some slots of a segment; 0 slots live: as cold as can be. */
static void segment_age(struct kvc_packed_segment *segment, uint64_t *latest, uint64_t *earliest)
{
	*latest = 0;
	*earliest = UINT64_MAX;
	for (unsigned i = 0; i < AGE_SAMPLES; i++) {
		const uint32_t s =
			(uint32_t)(kvc_packed_random(segment->arena->packed) % segment->slots);
		uint64_t stamp;

		if (kvc_packed_st(atomic_load(&segment->headers[s].state)) != KVC_PACKED_LIVE)
			continue;
		stamp = atomic_load_explicit(&segment->stamps[s], memory_order_relaxed) >> 1;
		*latest = stamp > *latest ? stamp : *latest;
		*earliest = stamp < *earliest ? stamp : *earliest;
	}
}

/* The segment of an arena that was used least lately; NULL: it has none. */
static struct kvc_packed_segment *coldest_of(struct kvc_packed_arena *arena, uint64_t *out_latest)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	const uint64_t now_ns = kvc_now_ns();
	struct kvc_packed_segment *coldest = NULL;

	*out_latest = UINT64_MAX;
	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);
		uint64_t latest, earliest;

		if (!segment || atomic_load(&segment->hdr->retired) == RETIRED_REMOVED ||
		    atomic_load_explicit(&segment->busy_until_ns, memory_order_relaxed) > now_ns)
			continue;
		segment_age(segment, &latest, &earliest);
		if (atomic_load(&segment->hdr->retired) == RETIRED_MARKED)
			latest = 0; /* was begun: to be finished first */
		if (latest < *out_latest) {
			*out_latest = latest;
			coldest = segment;
		}
	}
	return coldest;
}

/* The coldest segment of all arenas but one (NULL: of all), if it was used before `limit`. */
static struct kvc_packed_segment *coldest_but(struct kvc_packed *packed,
					      const struct kvc_packed_arena *but, uint64_t limit)
{
	struct kvc_packed_segment *coldest = NULL;

	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		struct kvc_packed_segment *segment;
		uint64_t latest;

		if (a == but)
			continue;
		segment = coldest_of(a, &latest);
		if (segment && latest < limit) {
			limit = latest;
			coldest = segment;
		}
	}
	return coldest;
}

int kvc_packed_retire_coldest(struct kvc_packed *packed)
{
	struct kvc_packed_segment *segment = coldest_but(packed, NULL, UINT64_MAX);

	return segment ? kvc_packed_segment_retire(segment) : -ENOENT;
}

bool kvc_packed_arena_broken(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	struct kvc_packed_table *table = kvc_packed_table_get(arena);

	if (table && atomic_load(&table->broken))
		return true;
	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		if (segment && atomic_load(&segment->broken))
			return true;
	}
	return false;
}

/* Whether one of this arena could have its place if all others were gone. */
static bool could_fit(struct kvc_packed_arena *arena)
{
	const struct kvc_packed *packed = arena->packed;
	const struct kvc_root *root = packed->root;
	const uint64_t bytes = kvc_packed_segment_file_bytes(arena);
	struct kvc_usage usage = { .size = sizeof(usage) };
	uint64_t files_bytes = 0;

	kvc_usage_total(root->usage, &files_bytes, NULL);
	if (files_bytes + bytes > packed->capacity_bytes)
		return false;
	if (packed->floor_bytes == 0 ||
	    root->backend->module->ops.usage(root->handle, &usage) < 0 || usage.total_bytes == 0)
		return true;
	return usage.free_bytes + kvc_packed_hint(&packed->shm->segment_bytes) >=
	       packed->floor_bytes + bytes;
}

int kvc_packed_steal(struct kvc_packed_arena *arena)
{
	struct kvc_packed *packed = arena->packed;
	int busy = 0;

	if (!could_fit(arena))
		return -ENOSPC;

	/* Until there is room: segments of other arenas may be smaller. */
	for (int attempt = 0; attempt < 64; attempt++) {
		struct kvc_packed_segment *segment;
		/* What else is in the way is not mended by it: descriptors, say. */
		int rc = kvc_packed_segment_add(arena);

		if (rc != -ENOSPC)
			return rc;
		kvc_packed_refresh(packed);
		segment = coldest_but(packed, arena, UINT64_MAX);
		if (!segment)
			return -ENOSPC;
		rc = kvc_packed_segment_retire(segment);
		if (rc == -EBUSY && ++busy < BUSY_MAX)
			continue; /* another one, then */
		if (rc)
			return rc == -EBUSY ? -ENOSPC : rc;
	}
	return -ENOSPC;
}

/* ---------------------------------------------------------------- keeping */

/* A segment of an arena that is colder than everything that this one, which has to evict, holds. */
static bool take_colder(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	uint64_t oldest = UINT64_MAX;
	struct kvc_packed_segment *segment;

	for (uint32_t n = 1; n <= segments; n++) {
		uint64_t latest, earliest;

		segment = kvc_packed_segment(arena, n);
		if (!segment)
			continue;
		segment_age(segment, &latest, &earliest);
		oldest = earliest < oldest ? earliest : oldest;
	}
	if (oldest == UINT64_MAX)
		return false;
	segment = coldest_but(arena->packed, arena, oldest);
	return segment && kvc_packed_segment_retire(segment) == 0 &&
	       kvc_packed_segment_add(arena) == 0;
}

void kvc_packed_arena_keep(struct kvc_packed_arena *arena)
{
	const struct kvc_packed_record *record = arena->record;
	const uint64_t reserve = kvc_packed_reserve(arena);
	const uint64_t ahead = record->segment_slots / 8 > reserve ? record->segment_slots / 8 :
								     reserve;
	uint64_t free_slots = kvc_packed_hint(&record->free_slots);
	int rc;

	if (atomic_load(&record->present) == 0 || free_slots >= ahead)
		return;
	rc = kvc_packed_segment_add(arena);
	if (rc == 0 || free_slots >= reserve)
		return;
	if (rc == -ENOSPC && could_fit(arena) && take_colder(arena))
		return;
	while (free_slots < reserve) {
		if (kvc_packed_evict(arena, (uint32_t)(reserve - free_slots)) == 0)
			break;
		free_slots = kvc_packed_hint(&record->free_slots);
	}
}
