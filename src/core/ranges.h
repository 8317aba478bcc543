/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a request's memory to the ranges of its descriptor: zero copy where alignment and number of
 * pieces allow it, else through one contiguous image. Readers: core/xfer.c.
 */
#ifndef KVC_CORE_RANGES_H
#define KVC_CORE_RANGES_H

#include "core/queue.h"
#include "core/region.h"
#include "core/xfer.h"

/*
 * Fills slot->ranges for a READ or WRITE of the request's object.
 * @trailer   the trailer block takes part; for a WRITE it is made valid here, unless the root takes
 *            it late
 * -ENOMEM.
 */
int kvc_ranges_build(struct kvc_slot *slot, const struct kvc_regions *regions, bool writing,
		     bool trailer);

/* Takes the checksum of the slot's request over the caller's memory. */
void kvc_ranges_checksum(struct kvc_slot *slot);

/* The slot's image, if it has one, is no longer on its way. */
void kvc_ranges_release(struct kvc_slot *slot);

/* After a READ: the payload's checksum of this kind, and copies what came through memory of the
 * library to where it belongs. */
uint64_t kvc_ranges_finish_read(struct kvc_slot *slot, int checksum_kind);

/* Writes the trailer of the slot's request with this checksum. */
void kvc_ranges_trailer(struct kvc_slot *slot, uint64_t checksum);

/* Whether the shape can be moved without a copy at this alignment, with so many ranges at most,
 * from memory like bases. */
bool kvc_ranges_zero_copy(const struct kvc_shape *shape, void *const *bases, uint32_t alignment,
			  uint32_t max_ranges, const char **out_reason);

#endif
