/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over slots. A walk is no batch: it may take hours, so it enters and leaves the index again
 * and again, and what was mapped for a few slots may be gone for the next ones.
 */
#include "core/packed_walk.h"

#include "core/clock.h"
#include "core/crc.h"
#include "core/packed_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS_AT_ONCE	64u
#define READ_BYTES	(UINT64_C(4) << 20)
#define RETIRE_ATTEMPTS 50
#define RETIRE_PAUSE_NS (UINT64_C(10) * 1000000)
#define SPARE_AT_LEAST	2u
#define SLOTS_PREFIX	"/slots-"
#define SEGMENT_PREFIX	"/seg."

/* ---------------------------------------------------------------- one object */

void kvc_packed_place_path(const struct kvc_packed_arena *arena,
			   const struct kvc_packed_place *place, char out[KVC_PACKED_PATH_BYTES])
{
	if (place)
		(void)snprintf(out, KVC_PACKED_PATH_BYTES,
			       "%.95s" SLOTS_PREFIX "%" PRIu64 SEGMENT_PREFIX "%" PRIu32
			       "@%" PRIu32,
			       arena->record->folder, arena->slot_bytes,
			       kvc_packed_ref_segment(place->ref), kvc_packed_ref_slot(place->ref));
	else
		(void)snprintf(out, KVC_PACKED_PATH_BYTES, "%.95s" SLOTS_PREFIX "%" PRIu64,
			       arena->record->folder, arena->slot_bytes);
}

/* The record may be written meanwhile, for the next object of the slot: generation and CRC tell. */
__attribute__((no_sanitize_thread)) static void copy_record(const struct kvc_packed_name *from,
							    struct kvc_packed_name *to)
{
	const volatile uint64_t *source = (const volatile uint64_t *)from;
	uint64_t words[sizeof(*to) / sizeof(uint64_t)];

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		words[i] = source[i];
	memcpy(to, words, sizeof(*to));
}

/* What the names record adds, when it is this object's. */
static void add_record(struct kvc_packed_segment *segment, uint32_t slot,
		       struct kvc_packed_item *item)
{
	const struct kvc_packed_name *names = kvc_packed_names(segment);
	struct kvc_packed_name record;
	uint32_t crc;

	if (!names)
		return;
	copy_record(&names[slot], &record);
	crc = record.crc;
	record.crc = 0;
	if (record.gen != kvc_packed_gen(item->place.state) ||
	    crc != kvc_crc32c(&record, sizeof(record)) || record.run_count > KVC_PACKED_RUNS)
		return;
	item->has_record = true;
	item->pool_fingerprint = record.pool_fingerprint;
	item->name_bytes = record.name_bytes;
	item->run_count = record.run_count;
	memcpy(item->runs, record.runs, sizeof(item->runs));
	item->is_named = record.name_bytes > 0 && record.name_bytes <= KVC_PACKED_NAME_BYTES &&
			 !memchr(record.name, '\0', record.name_bytes);
	if (item->is_named) {
		memcpy(item->name, record.name, record.name_bytes);
		item->name[record.name_bytes] = '\0';
	}
}

/* False: nothing lives in the slot. */
static bool look_at(struct kvc_packed_segment *segment, uint32_t number,
		    struct kvc_packed_item *out)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed_fields fields;
	uint64_t more;

	if (!kvc_packed_read(&segment->headers[number], &fields))
		return false;
	more = fields.created_depth;
	memset(out, 0, sizeof(*out));
	out->arena = arena;
	out->folder = arena->record->folder;
	out->ns_hash = arena->ns_hash;
	out->slot_bytes = arena->slot_bytes;
	out->g = fields.g;
	out->v = fields.v;
	out->parent_g = fields.parent_g;
	out->payload_bytes = kvc_packed_len(fields.len_crc);
	out->place = kvc_packed_place_of(segment, number, &fields);
	out->created_ns = (int64_t)(more & UINT32_MAX) * 1000000000;
	out->depth = (uint32_t)(more >> 32) & UINT16_MAX;
	out->lane = kvc_packed_lane(more);
	add_record(segment, number, out);
	if (!out->is_named)
		(void)snprintf(out->name, sizeof(out->name), "?g-%016" PRIx64 "-%016" PRIx64,
			       out->g, out->v);
	kvc_packed_place_path(arena, &out->place, out->path);
	return true;
}

/* ---------------------------------------------------------------- all of them */

/* Some slots of a segment, from *at on. False: there are no more. */
static bool walk_some(struct kvc_packed_arena *arena, uint32_t number, uint32_t *at,
		      kvc_packed_item_fn fn, void *context, int *rc)
{
	struct kvc_packed *packed = arena->packed;
	const uint32_t turn = kvc_packed_enter(packed);
	struct kvc_packed_segment *segment = kvc_packed_segment(arena, number);
	struct kvc_packed_item item;
	bool more = false;

	for (uint32_t n = 0; segment && *at < segment->slots && n < SLOTS_AT_ONCE && !*rc;
	     n++, (*at)++)
		if (look_at(segment, *at, &item))
			*rc = fn(context, &item);
	more = segment && *at < segment->slots && !*rc;
	kvc_packed_leave(packed, turn);
	return more;
}

int kvc_packed_walk(struct kvc_packed *packed, const char *folder, kvc_packed_item_fn fn,
		    void *context)
{
	int rc = 0;

	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a && !rc; a = a->next) {
		const uint32_t segments = atomic_load(&a->record->segments);

		if (folder && strcmp(a->record->folder, folder) != 0)
			continue;
		for (uint32_t n = 1; n <= segments && !rc; n++) {
			uint32_t at = 0;

			while (walk_some(a, n, &at, fn, context, &rc))
				;
		}
	}
	return rc;
}

/* ---------------------------------------------------------------- by path */

/* Digits without a sign or leading zeros. */
static bool read_number(const char **at, uint64_t most, uint64_t *out)
{
	char *end;

	if (**at < '0' || **at > '9' || (**at == '0' && (*at)[1] >= '0' && (*at)[1] <= '9'))
		return false;
	errno = 0;
	*out = strtoull(*at, &end, 10);
	*at = end;
	return errno == 0 && *out <= most;
}

struct parsed_path {
	char folder[96];
	uint64_t slot_bytes;
	uint64_t segment;
	uint64_t slot;
};

static bool parse_path(const char *path, struct parsed_path *out)
{
	const char *at = strchr(path, '/');
	const size_t length = at ? (size_t)(at - path) : 0;

	if (length == 0 || length >= sizeof(out->folder) ||
	    strncmp(at, SLOTS_PREFIX, strlen(SLOTS_PREFIX)) != 0)
		return false;
	memcpy(out->folder, path, length);
	out->folder[length] = '\0';
	at += strlen(SLOTS_PREFIX);
	if (!read_number(&at, UINT64_MAX, &out->slot_bytes) ||
	    strncmp(at, SEGMENT_PREFIX, strlen(SEGMENT_PREFIX)) != 0)
		return false;
	at += strlen(SEGMENT_PREFIX);
	if (!read_number(&at, KVC_PACKED_SEGMENTS_MAX, &out->segment) || *at++ != '@')
		return false;
	return read_number(&at, KVC_PACKED_SLOTS_MAX, &out->slot) && !*at;
}

bool kvc_packed_is_path(const char *path)
{
	const char *at = strchr(path, '/');
	uint64_t bytes;

	if (!at || strncmp(at, SLOTS_PREFIX, strlen(SLOTS_PREFIX)) != 0)
		return false;
	at += strlen(SLOTS_PREFIX);
	return read_number(&at, UINT64_MAX, &bytes) && (!*at || *at == '/');
}

int kvc_packed_look(struct kvc_packed *packed, const char *path, struct kvc_packed_item *out)
{
	struct kvc_packed_segment *segment;
	struct parsed_path parsed;

	if (!parse_path(path, &parsed))
		return -ENOENT;
	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		if (a->slot_bytes != parsed.slot_bytes ||
		    strcmp(a->record->folder, parsed.folder) != 0)
			continue;
		segment = kvc_packed_segment(a, (uint32_t)parsed.segment);
		if (!segment || parsed.slot >= segment->slots)
			return -ENOENT;
		return look_at(segment, (uint32_t)parsed.slot, out) ? 0 : -ENOENT;
	}
	return -ENOENT;
}

/* ---------------------------------------------------------------- reading */

static void add_part(struct kvc_shape *shape, uint64_t bytes, uint64_t *offset)
{
	const uint32_t p = shape->part_count++;

	shape->parts[p] = (struct kvc_shape_part){
		.bytes = bytes, .stored_offset = *offset, .first_series = p, .series_count = 1
	};
	shape->series[p] = (struct kvc_series){ .piece_bytes = bytes, .piece_count = 1 };
	*offset += kvc_block_align(bytes);
}

/* Parts that fill their blocks are hashed as one is that has all their bytes. */
static bool guess_shape(const struct kvc_packed_item *item, struct kvc_shape *out)
{
	uint64_t offset = 0;

	if (item->payload_bytes != item->slot_bytes)
		return false;
	add_part(out, item->payload_bytes, &offset);
	out->series_count = 1;
	return true;
}

bool kvc_packed_item_shape(const struct kvc_packed_item *item, struct kvc_shape *out)
{
	uint64_t offset = 0, payload = 0;

	memset(out, 0, sizeof(*out));
	out->payload_bytes = item->payload_bytes;
	out->stored_bytes = item->slot_bytes + KVC_TRAILER_BYTES;
	out->ns_hash = item->ns_hash;
	out->pool_fingerprint = item->pool_fingerprint;
	for (uint32_t r = 0; item->has_record && r < item->run_count; r++) {
		for (uint32_t i = 0; i < item->runs[r].count; i++) {
			if (out->part_count == KVC_SHAPE_PARTS_MAX || item->runs[r].bytes == 0)
				return false;
			payload += item->runs[r].bytes;
			add_part(out, item->runs[r].bytes, &offset);
		}
	}
	if (out->part_count == 0)
		return guess_shape(item, out);
	out->series_count = out->part_count;
	return payload == item->payload_bytes && offset == item->slot_bytes;
}

int kvc_packed_item_read(const struct kvc_packed_item *item, void *image)
{
	struct kvc_root *root = item->arena->packed->root;
	uint8_t *to = image;

	for (uint64_t at = 0; at < item->slot_bytes;) {
		const uint64_t left = item->slot_bytes - at;
		const uint64_t step = left < READ_BYTES ? left : READ_BYTES;
		const int64_t rc = kvc_root_read_container(root, item->place.container,
							   item->place.offset + at, to + at, step);

		if (!kvc_packed_is_same(&item->place))
			return -ENOENT;
		if (rc < 0 || (uint64_t)rc < step)
			return rc < 0 ? (int)rc : -EIO;
		at += step;
	}
	return 0;
}

/* ---------------------------------------------------------------- clearing */

static void pause_ns(uint64_t ns)
{
	const struct timespec pause = kvc_timespec(ns);

	(void)nanosleep(&pause, NULL);
}

/* What is being written there now is waited for a little. */
static uint64_t retire_one(struct kvc_packed_arena *arena, uint32_t number)
{
	const uint64_t bytes = kvc_packed_segment_file_bytes(arena);

	for (int attempt = 0; attempt < RETIRE_ATTEMPTS; attempt++) {
		const uint32_t turn = kvc_packed_enter(arena->packed);
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, number);
		const int rc = segment ? kvc_packed_segment_retire(segment) : -ENOENT;

		kvc_packed_leave(arena->packed, turn);
		kvc_packed_reap(arena->packed, false);
		if (rc != -EBUSY)
			return rc == 0 ? bytes : 0;
		pause_ns(RETIRE_PAUSE_NS);
	}
	return 0; /* it is marked, and goes before any other */
}

/* Table and folder of an arena that has no segment. Its record stays: other processes may have it
 * at hand. A set adds a segment and a table again. */
static void remove_folder(struct kvc_packed_arena *arena)
{
	struct kvc_packed *packed = arena->packed;
	char path[KVC_PACKED_PATH_BYTES];
	uint32_t epoch;

	if (kvc_packed_changes_begin(packed))
		return;
	epoch = atomic_load(&arena->record->epoch);
	if (atomic_load(&arena->record->present) == 0) {
		if (epoch && !(epoch & KVC_PACKED_NO_TABLE)) {
			atomic_store(&arena->record->epoch, epoch | KVC_PACKED_NO_TABLE);
			kvc_packed_step(packed, "packed.release.table");
			kvc_packed_arena_path(arena, "table", epoch, path);
			(void)kvc_packed_dir_remove(packed->dir, path);
		}
		kvc_packed_place_path(arena, NULL, path);
		(void)kvc_packed_dir_remove_folder(packed->dir, path);
	}
	kvc_packed_changes_end(packed);
}

uint64_t kvc_packed_release(struct kvc_packed *packed, const char *folder)
{
	uint64_t bytes = 0;

	if (packed->read_only)
		return 0;
	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const uint32_t segments = atomic_load(&a->record->segments);

		if (strcmp(a->record->folder, folder) != 0)
			continue;
		for (uint32_t n = 1; n <= segments; n++)
			bytes += retire_one(a, n);
		remove_folder(a);
	}
	return bytes;
}

/* ---------------------------------------------------------------- counts */

void kvc_packed_recount(struct kvc_packed *packed)
{
	if (packed->read_only)
		return;
	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const uint32_t turn = kvc_packed_enter(packed);

		(void)kvc_packed_arena_recount(a);
		kvc_packed_leave(packed, turn);
	}
}

int kvc_packed_spare(struct kvc_packed_arena *arena)
{
	const struct kvc_packed_record *record = arena->record;
	int rc = 0;

	/* The keeper evicts when fewer than the reserve are free. */
	while (rc == 0 &&
	       kvc_packed_hint(&record->free_slots) < kvc_packed_reserve(arena) + SPARE_AT_LEAST)
		rc = kvc_packed_segment_add(arena);
	return rc;
}
