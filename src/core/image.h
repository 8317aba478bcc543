/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An object of the files layout by its path, whatever it is: its trailer tells how to read it.
 * Not for the data path. Readers: core/walk.c, connector/copy.c.
 */
#ifndef KVC_CORE_IMAGE_H
#define KVC_CORE_IMAGE_H

#include "core/root.h"
#include "core/trailer.h"

/* Reads the trailer of an object of that size into block, out->name points there. 0, what
 * kvc_trailer_decode() says, -ENOMSG (no room for one), or what the read ended with. */
int kvc_image_trailer(struct kvc_root *root, const char *path, uint64_t object_bytes,
		      uint8_t block[KVC_TRAILER_BYTES], struct kvc_trailer *out,
		      struct kvc_completion *completion);

/* Whether the trailer of an object says of itself what its place says. folder "": nixl naming. */
bool kvc_image_is_at_home(const char *folder, const char *name, const struct kvc_trailer *trailer,
			  uint64_t object_bytes);

/* The shape that a trailer tells: one series for each part. */
void kvc_image_shape(const struct kvc_trailer *trailer, struct kvc_shape *out);

/*
 * kvc_image_payload - reads everything before the trailer and checks it.
 * @of    the object as it was when its trailer was read
 * @out   for free(), or NULL: only the check
 * 0; -EBADMSG; -ESTALE (it was replaced since); -EPROTONOSUPPORT (kind of checksum); -ENOMEM; what
 * the read ended with. Without a checksum it is read only where it is asked for.
 */
int kvc_image_payload(struct kvc_root *root, const char *path, const struct kvc_trailer *trailer,
		      const struct kvc_completion *of, uint8_t **out);

#endif
