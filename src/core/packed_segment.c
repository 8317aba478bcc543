/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: mapping them, adding and retiring them. */
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
#define BUSY_NS		(UINT64_C(100) * 1000000) /* until it is looked at for its age again */
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

/* ---------------------------------------------------------------- mapping segments */

void kvc_packed_segment_free(struct kvc_packed_segment *segment)
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

void kvc_packed_segment_remove(struct kvc_packed_arena *arena, uint32_t number)
{
	const struct kvc_root *root = arena->packed->root;
	char path[256];

	kvc_packed_arena_path(arena, "seg", number, path);
	(void)root->backend->module->ops.container_remove(root->handle, path);
	kvc_packed_arena_remove(arena, "names", number);
	kvc_packed_step(arena->packed, "packed.segment.removing");
	kvc_packed_arena_remove(arena, "hdr", number);
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
	/* What the one that retired it had no time for. */
	if (rc == -ENOENT && !arena->packed->read_only)
		kvc_packed_segment_remove(arena, number);
	if (rc) {
		kvc_packed_segment_free(segment);
		return rc;
	}
	*out = segment;
	return 0;
}

_Atomic(struct kvc_packed_segment *) *kvc_packed_segment_cell(struct kvc_packed_arena *arena,
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

/* There is no such segment, and will not be. */
static bool is_lost(int rc)
{
	return rc == -ENOENT || rc == -EBADMSG || rc == -ENOMSG || rc == -EPROTONOSUPPORT;
}

/* Where no lock is held: who gets the line may have locks of its own. */
static void tell_unmapped(struct kvc_packed_arena *arena, uint32_t number, int rc)
{
	struct kvc_packed *packed = arena->packed;

	if (rc == -ENOENT)
		return;
	if (!is_lost(rc)) {
		kvc_log(KVC_LOG_DEBUG, "%s: segment %u cannot be mapped: %s",
			packed->root->location, number, strerror(-rc));
		return;
	}
	kvc_log(KVC_LOG_WARNING,
		"%s: segment %u of %s, slots of %" PRIu64 " bytes, is damaged and is not used (%s)",
		packed->root->location, number, arena->record->folder, arena->slot_bytes,
		strerror(-rc));
	if (rc != -EPROTONOSUPPORT)
		atomic_store(&packed->damaged, true);
}

struct kvc_packed_segment *kvc_packed_segment_map(struct kvc_packed_arena *arena, uint32_t number)
{
	struct kvc_packed_segment *segment = NULL;
	_Atomic(struct kvc_packed_segment *) *cell;
	int rc = 0;

	if (number > atomic_load_explicit(&arena->record->segments, memory_order_acquire))
		return NULL; /* not given out */
	pthread_mutex_lock(&arena->lock);
	cell = kvc_packed_segment_cell(arena, number);
	segment = cell ? atomic_load(cell) : NULL;
	if (!cell || segment)
		goto unlock;
	rc = segment_open(arena, number, &segment);
	if (is_lost(rc))
		segment = KVC_PACKED_MISSING;
	else if (rc)
		segment = NULL; /* once more the next time */
	if (segment)
		atomic_store_explicit(cell, segment, memory_order_release);
unlock:
	pthread_mutex_unlock(&arena->lock);
	if (rc)
		tell_unmapped(arena, number, rc);
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

/* ---------------------------------------------------------------- adding */

bool kvc_packed_may_add(struct kvc_packed *packed, uint64_t bytes)
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
	kvc_packed_segment_remove(arena, number);
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
		kvc_packed_segment_remove(arena, number);
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
	if (!table || slots > table->bucket_count * KVC_PACKED_BUCKET_SLOTS) {
		rc = kvc_packed_table_make(arena, table ? 2 * slots : slots);
		if (rc)
			goto close;
	}
	kvc_packed_step(arena->packed, "packed.segment.made");
	pthread_mutex_lock(&arena->lock);
	cell = kvc_packed_segment_cell(arena, number);
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
	kvc_packed_segment_free(segment);
remove:
	kvc_packed_segment_remove(arena, number);
	return rc;
}

bool kvc_packed_is_limited(struct kvc_packed *packed, const struct kvc_packed_arena *arena,
			   uint64_t bytes)
{
	const struct kvc_root *root = packed->root;
	struct kvc_usage usage = { .size = sizeof(usage) };
	uint64_t files_bytes = 0;

	bytes = arena ? kvc_packed_segment_file_bytes(arena) : bytes;
	kvc_usage_total(root->usage, &files_bytes, NULL);
	if (root->capacity_bytes &&
	    kvc_packed_hint(&packed->shm->segment_bytes) + files_bytes + bytes >
		    packed->capacity_bytes)
		return true;
	return root->min_free_bytes &&
	       root->backend->module->ops.usage(root->handle, &usage) == 0 && usage.total_bytes &&
	       usage.free_bytes < root->min_free_bytes + bytes;
}

int kvc_packed_segment_add(struct kvc_packed_arena *arena)
{
	struct kvc_packed *packed = arena->packed;
	const uint32_t seen = atomic_load(&arena->record->segments);
	int rc;

	if (packed->read_only || atomic_load(&packed->gone) ||
	    !kvc_packed_may_add(packed, kvc_packed_segment_file_bytes(arena)))
		return -ENOSPC;
	rc = kvc_packed_changes_begin(packed);
	if (rc)
		return rc;
	/* Several that found nothing free: one adds for all. */
	if (atomic_load(&arena->record->segments) == seen) {
		rc = kvc_packed_may_add(packed, kvc_packed_segment_file_bytes(arena)) ?
			     add_locked(arena) :
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
	uint32_t left = 0, ended = 0;

	for (uint32_t s = 0; s < segment->slots; s++) {
		const uint64_t state = atomic_load(&segment->headers[s].state);
		const uint64_t g =
			atomic_load_explicit(&segment->headers[s].g, memory_order_relaxed);

		if (kvc_packed_st(state) != KVC_PACKED_LIVE ||
		    !kvc_packed_slot_end(segment, s, state))
			continue;
		/* What a page has elsewhere is of no use without it. */
		ended += 1 + kvc_packed_evict_group(segment->arena, g);
	}
	kvc_packed_count_evicted(segment->arena, ended);
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

/* The files go, and what was counted with them. Everybody drops it at the next look. */
static void give_up(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed_shm *shm = arena->packed->shm;

	atomic_store(&segment->hdr->retired, RETIRED_REMOVED);
	atomic_fetch_sub(&arena->record->present, 1);
	atomic_fetch_sub(&arena->record->free_slots, segment->slots);
	atomic_fetch_sub(&shm->segment_bytes, kvc_packed_segment_file_bytes(arena));
	kvc_packed_segment_remove(arena, segment->number);
	kvc_packed_step(arena->packed, "packed.retire.removed");
	atomic_fetch_add(&shm->generation, 1);
}

static int retire_locked(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;
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
	give_up(segment);
	return 0;
}

/* Its files were removed by others: what is written there would be lost. */
static void forget_lost(struct kvc_packed_segment *segment)
{
	struct kvc_packed_arena *arena = segment->arena;

	if (kvc_packed_changes_begin(arena->packed))
		return;
	if (atomic_exchange(&segment->hdr->retired, RETIRED_REMOVED) != RETIRED_REMOVED) {
		kvc_log(KVC_LOG_WARNING, "%s: segment %u of %s was removed by others",
			arena->packed->root->location, segment->number, arena->record->folder);
		(void)empty_segment(segment);
		give_up(segment);
	}
	kvc_packed_changes_end(arena->packed);
	kvc_packed_segment_drop(segment);
}

void kvc_packed_arena_check(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		if (segment && atomic_load(&segment->hdr->retired) != RETIRED_REMOVED &&
		    (!kvc_packed_arena_has(arena, "hdr", n) ||
		     (arena->packed->root->attributes.local_path &&
		      !kvc_packed_arena_has(arena, "seg", n))))
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

/* -ETIMEDOUT: another process does not let go of its lock. */
static int finish_in(struct kvc_packed_arena *arena, uint32_t *left)
{
	const uint32_t segments = atomic_load(&arena->record->segments);

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);
		int rc;

		if (!segment || atomic_load(&segment->hdr->retired) != RETIRED_MARKED)
			continue;
		rc = kvc_packed_segment_retire(segment);
		if (rc == -ETIMEDOUT)
			return rc;
		*left += rc == -EBUSY;
	}
	return 0;
}

uint32_t kvc_packed_finish_retiring(struct kvc_packed *packed)
{
	uint32_t left = 0;

	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		if (finish_in(a, &left))
			break; /* the lock is waited for once, not for each segment */
	return left;
}
