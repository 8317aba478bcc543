/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of an object's parts: one XXH3-64 streamed over them, seeded with its name. */
#ifndef KVC_CORE_CHECKSUM_H
#define KVC_CORE_CHECKSUM_H

#include "core/shape.h"
#include "core/trailer.h"

#include <stdbool.h>

/* Over memory: series s of the shape begins at bases[s]. kind: none, full or sector. */
uint64_t kvc_checksum_memory(int kind, uint64_t seed, const struct kvc_shape *shape,
			     void *const *bases);

/* Over one contiguous image of the object as stored (parts at their stored offsets). */
uint64_t kvc_checksum_image(int kind, uint64_t seed, const struct kvc_shape *shape,
			    const void *image);

/* Copies memory into the image (gather) or back (scatter), and takes the checksum of the bytes
 * while they are in the CPU's cache. Gather also zeroes the padding. */
uint64_t kvc_checksum_gather(int kind, uint64_t seed, const struct kvc_shape *shape,
			     void *const *bases, void *image);
uint64_t kvc_checksum_scatter(int kind, uint64_t seed, const struct kvc_shape *shape,
			      void *const *bases, const void *image);

#endif
