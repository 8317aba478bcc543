/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ranges.h"

#include "core/checksum.h"
#include "core/clock.h"
#include "core/format.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/trailer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Padding of a write; nobody writes to it. */
static _Alignas(KVC_BLOCK_BYTES) const uint8_t zero_block[KVC_BLOCK_BYTES];

struct builder {
	struct kvc_slot *slot;
	const struct kvc_regions *regions;
	uint32_t alignment;
	uint32_t limit; /* ranges, less one for the trailer */
	uint32_t count;
	uint32_t tail_blocks;
	bool writing;
};

static bool aligned(const struct builder *b, const void *addr, uint64_t bytes)
{
	return (((uintptr_t)addr | bytes) & (b->alignment - 1)) == 0;
}

/* Appends memory; what follows the range before it directly becomes part of that one. */
static bool add_range(struct builder *b, void *addr, uint64_t bytes)
{
	const struct kvc_region *region = kvc_regions_find(b->regions, addr, bytes);
	const uint64_t registration = region ? region->registration : 0;
	struct kvc_range *range;

	if (bytes == 0)
		return true;
	if (b->count > 0) {
		range = &b->slot->ranges[b->count - 1];
		if ((uint8_t *)range->addr + range->bytes == (uint8_t *)addr &&
		    range->registration == registration) {
			range->bytes += bytes;
			return true;
		}
	}
	if (b->count >= b->limit)
		return false;
	range = &b->slot->ranges[b->count++];
	*range = (struct kvc_range){
		.addr = addr,
		.bytes = bytes,
		.registration = registration,
		.kind = region ? (uint16_t)region->memory.kind : (uint16_t)KVC_MEMORY_HOST,
		.device = region ? (uint16_t)region->memory.device : 0,
	};
	return true;
}

/* A block of the library that stands for the bytes of a part after its last whole block. */
static uint8_t *tail_block(struct builder *b)
{
	return b->slot->tails + (size_t)b->tail_blocks++ * KVC_BLOCK_BYTES;
}

static bool add_tail_piece(struct builder *b, uint8_t *block, uint8_t *memory, uint64_t bytes)
{
	struct kvc_slot *slot = b->slot;

	if (slot->tail_count >= sizeof(slot->tail) / sizeof(slot->tail[0]))
		return false;
	slot->tail[slot->tail_count].block = block;
	slot->tail[slot->tail_count].memory = memory;
	slot->tail[slot->tail_count].bytes = bytes;
	slot->tail_count++;
	if (b->writing)
		memcpy(block, memory, bytes);
	return true;
}

/*
 * One part: its pieces up to the last whole block directly, the rest through a tail block; where
 * alignment allows it also the rest directly, and then padding.
 */
static bool add_part(struct builder *b, const struct kvc_request *request,
		     const struct kvc_shape_part *part)
{
	const uint64_t rest = part->bytes % KVC_BLOCK_BYTES;
	const bool split = rest % b->alignment != 0;
	const uint64_t body = split ? part->bytes - rest : part->bytes;
	uint8_t *block = rest ? tail_block(b) : NULL;
	uint64_t at = 0, in_tail = 0;

	if (split && b->writing)
		memset(block, 0, KVC_BLOCK_BYTES);
	for (uint32_t s = 0; s < part->series_count; s++) {
		const struct kvc_series *series = &request->shape->series[part->first_series + s];
		uint8_t *piece = request->bases[part->first_series + s];

		if (series->piece_bytes == 0)
			continue; /* its memory may be NULL */
		for (uint32_t i = 0; i < series->piece_count; i++) {
			const uint64_t bytes = series->piece_bytes;
			const uint64_t direct = at >= body	  ? 0 :
						bytes < body - at ? bytes :
								    body - at;

			if (direct && (!aligned(b, piece, direct) || !add_range(b, piece, direct)))
				return false;
			if (direct < bytes) {
				if (!add_tail_piece(b, block + in_tail, piece + direct,
						    bytes - direct))
					return false;
				in_tail += bytes - direct;
			}
			at += bytes;
			piece += series->piece_stride_bytes;
		}
	}
	if (rest == 0)
		return true;
	if (split)
		return add_range(b, block, KVC_BLOCK_BYTES);
	return add_range(b, b->writing ? (void *)(uintptr_t)zero_block : block,
			 KVC_BLOCK_BYTES - rest);
}

static bool build_direct(struct builder *b, const struct kvc_request *request)
{
	b->count = 0;
	b->tail_blocks = 0;
	b->slot->tail_count = 0;
	for (uint32_t p = 0; p < request->shape->part_count; p++)
		if (!add_part(b, request, &request->shape->parts[p]))
			return false;
	return true;
}

/* Everything in one image; for a write it is filled, and its checksum taken. */
static int build_bounce(struct builder *b, const struct kvc_request *request, int checksum_kind)
{
	const uint64_t bytes = kvc_shape_image_bytes(request->shape);
	struct kvc_slot *slot = b->slot;
	const int rc = kvc_slot_bounce(slot, bytes);

	if (rc)
		return rc;
	b->count = 0;
	slot->tail_count = 0;
	slot->uses_bounce = true;
	slot->queue->bounce_in_use += bytes;
	b->regions = NULL;
	if (b->writing) {
		slot->checksum = kvc_checksum_gather(checksum_kind, request->g ^ request->v,
						     request->shape, request->bases, slot->bounce);
		slot->has_checksum = true;
	}
	(void)add_range(b, slot->bounce, bytes);
	kvc_counters_add(slot->queue->root->store->counters, KVC_COUNTER_BOUNCED, 1);
	return 0;
}

void kvc_ranges_release(struct kvc_slot *slot)
{
	if (slot->uses_bounce)
		slot->queue->bounce_in_use -= kvc_shape_image_bytes(slot->request->shape);
	slot->uses_bounce = false;
}

static void add_trailer(struct builder *b, bool late)
{
	/* Never merged: a range that is late stands alone. */
	b->slot->ranges[b->count++] = (struct kvc_range){
		.addr = b->slot->trailer,
		.bytes = KVC_TRAILER_BYTES,
		.flags = late ? KVC_RANGE_LATE : 0,
		.kind = KVC_MEMORY_HOST,
	};
}

int kvc_ranges_build(struct kvc_slot *slot, const struct kvc_regions *regions, bool writing,
		     bool trailer)
{
	const struct kvc_root *root = slot->queue->root;
	const struct kvc_attributes *attributes = &root->attributes;
	struct kvc_request *request = slot->request;
	const int kind = root->store->checksum_kind;
	struct builder b = {
		.slot = slot,
		.regions = regions,
		.alignment = attributes->alignment,
		.limit = (attributes->max_ranges < KVC_SLOT_RANGES ? attributes->max_ranges :
								     KVC_SLOT_RANGES) -
			 1,
		.writing = writing,
	};
	const bool late = attributes->flags & KVC_ATTRIBUTE_LATE;
	int rc = kvc_slot_tails(slot, request->shape->part_count);

	if (rc)
		return rc;
	kvc_ranges_release(slot);
	slot->has_checksum = false;
	if (request->bounced || !build_direct(&b, request)) {
		request->bounced = true;
		rc = build_bounce(&b, request, kind);
		if (rc)
			return rc;
	} else if (writing && trailer && !late) {
		kvc_ranges_checksum(slot);
	}
	if (writing && trailer && slot->has_checksum)
		kvc_ranges_trailer(slot, slot->checksum);
	if (trailer)
		add_trailer(&b, writing && late && !slot->uses_bounce);
	slot->has_trailer = trailer;
	slot->descriptor.range_count = b.count;
	return 0;
}

void kvc_ranges_checksum(struct kvc_slot *slot)
{
	const struct kvc_request *request = slot->request;

	slot->checksum = kvc_checksum_memory(slot->queue->root->store->checksum_kind,
					     request->g ^ request->v, request->shape,
					     request->bases);
	slot->has_checksum = true;
}

uint64_t kvc_ranges_finish_read(struct kvc_slot *slot, int checksum_kind)
{
	const struct kvc_request *request = slot->request;
	const uint64_t seed = request->g ^ request->v;

	if (slot->uses_bounce)
		return kvc_checksum_scatter(checksum_kind, seed, request->shape, request->bases,
					    slot->bounce);
	for (uint32_t i = 0; i < slot->tail_count; i++)
		memcpy(slot->tail[i].memory, slot->tail[i].block, slot->tail[i].bytes);
	return kvc_checksum_memory(checksum_kind, seed, request->shape, request->bases);
}

void kvc_ranges_trailer(struct kvc_slot *slot, uint64_t checksum)
{
	const struct kvc_request *request = slot->request;
	const struct kvc_shape *shape = request->shape;
	const struct kvc_store *store = slot->queue->root->store;
	struct kvc_trailer trailer = {
		.major = KVC_FORMAT_MAJOR,
		.minor = KVC_FORMAT_MINOR,
		.checksum_kind = (uint8_t)store->checksum_kind,
		.object_kind = request->object_kind,
		.part_count = (uint16_t)shape->part_count,
		.depth = request->depth,
		.payload_bytes = shape->payload_bytes,
		.stored_bytes = shape->stored_bytes,
		.checksum = checksum,
		.g = request->g,
		.v = request->v,
		.ns_hash = shape->ns_hash,
		.pool_fingerprint = shape->pool_fingerprint,
		.parent_g = request->parent_g,
		.created_ns = kvc_wall_ns(),
		.name = request->full_name,
		.name_bytes = request->full_name_bytes,
	};

	for (uint32_t p = 0; p < shape->part_count; p++)
		trailer.part_bytes[p] = shape->parts[p].bytes;
	(void)snprintf(trailer.writer, sizeof(trailer.writer), "kvcellar %s", kvc_version());
	kvc_trailer_encode(&trailer, slot->trailer);
}

/* Ranges of a series: pieces without a gap between them are one. */
static uint64_t series_ranges(const struct kvc_series *series)
{
	return series->piece_stride_bytes == series->piece_bytes ? 1 : series->piece_count;
}

bool kvc_ranges_zero_copy(const struct kvc_shape *shape, void *const *bases, uint32_t alignment,
			  uint32_t max_ranges, const char **out_reason)
{
	uint64_t ranges = 1; /* the trailer */

	*out_reason = "";
	for (uint32_t p = 0; p < shape->part_count; p++) {
		const struct kvc_shape_part *part = &shape->parts[p];
		const uint64_t rest = part->bytes % KVC_BLOCK_BYTES;
		const bool in_tail = rest % alignment != 0 && part->bytes == rest;

		for (uint32_t s = 0; s < part->series_count; s++) {
			const struct kvc_series *series = &shape->series[part->first_series + s];
			const bool alone = series->piece_count == 1 && part->series_count == 1;
			const uint64_t bits =
				(uintptr_t)bases[part->first_series + s] |
				(alone ? 0 : series->piece_bytes) |
				(series->piece_count > 1 ? series->piece_stride_bytes : 0);

			if (bits & (alignment - 1)) {
				*out_reason = "its memory is not aligned as the root needs it";
				return false;
			}
			ranges += in_tail ? 0 : series_ranges(series);
		}
		ranges += rest != 0; /* padding, or the last block */
	}
	if (ranges > (max_ranges < KVC_SLOT_RANGES ? max_ranges : KVC_SLOT_RANGES)) {
		*out_reason = "its pages lie in too many pieces";
		return false;
	}
	return true;
}
