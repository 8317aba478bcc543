/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of an object: which memory pieces make its parts, and where each part is stored.
 *
 * A shape is computed once per pool and object kind by the connector; a request adds one base
 * address per series. Core turns shape + bases into descriptor ranges. Readers: core/xfer.c.
 */
#ifndef KVC_CORE_SHAPE_H
#define KVC_CORE_SHAPE_H

#include "core/format.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_SHAPE_PARTS_MAX  64u
#define KVC_SHAPE_SERIES_MAX 256u /* K and V of 128 layers, a tensor each */

/* piece_count pieces of piece_bytes, piece_stride_bytes apart, from a base address. */
struct kvc_series {
	uint64_t piece_bytes;
	uint64_t piece_stride_bytes;
	uint32_t piece_count;
	uint32_t reserved;
};

/* A stored part: the bytes of series [first_series, first_series + series_count) in order.
 * Its first byte lies at stored_offset, a multiple of 4096. */
struct kvc_shape_part {
	uint64_t bytes;
	uint64_t stored_offset;
	uint32_t first_series;
	uint32_t series_count;
};

struct kvc_shape {
	uint32_t part_count; /* 0 for a marker */
	uint32_t series_count;
	uint64_t payload_bytes; /* sum of the parts */
	uint64_t stored_bytes;	/* padded parts and the trailer */
	uint64_t ns_hash;	/* namespace fingerprint, for the trailer */
	uint64_t pool_fingerprint;
	struct kvc_shape_part parts[KVC_SHAPE_PARTS_MAX];
	struct kvc_series series[KVC_SHAPE_SERIES_MAX];
};

/* The padded parts: what a slot holds. */
static inline uint64_t kvc_shape_image_bytes(const struct kvc_shape *shape)
{
	return shape->stored_bytes - KVC_TRAILER_BYTES;
}

#endif
