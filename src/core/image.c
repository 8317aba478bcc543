/* SPDX-License-Identifier: Apache-2.0 */
#include "core/image.h"

#include "core/checksum.h"
#include "core/folder.h"
#include "core/format.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES (UINT64_C(4) << 20)

int kvc_image_trailer(struct kvc_root *root, const char *path, uint64_t object_bytes,
		      uint8_t block[KVC_TRAILER_BYTES], struct kvc_trailer *out,
		      struct kvc_completion *completion)
{
	int64_t rc;

	if (object_bytes < KVC_TRAILER_BYTES || object_bytes % KVC_BLOCK_BYTES)
		return -ENOMSG;
	rc = kvc_root_read(root, path, object_bytes - KVC_TRAILER_BYTES, block, KVC_TRAILER_BYTES,
			   completion);
	if (rc < 0)
		return (int)rc;
	if (rc < (int64_t)KVC_TRAILER_BYTES)
		return -ENOMSG;
	return kvc_trailer_decode(block, out);
}

/* "%h-<32 hex of the long name's hash>" */
static bool is_hash_of(const char *name, const struct kvc_trailer *trailer)
{
	char text[3 + 2 * sizeof(trailer->name_hash) + 1] = "%h-";

	for (size_t i = 0; i < sizeof(trailer->name_hash); i++)
		(void)snprintf(text + 3 + 2 * i, 3, "%02x", trailer->name_hash[i]);
	return strcmp(name, text) == 0;
}

bool kvc_image_is_at_home(const char *folder, const char *name, const struct kvc_trailer *trailer,
			  uint64_t object_bytes)
{
	const size_t length = strlen(name);

	if (trailer->stored_bytes != object_bytes)
		return false;
	if (*folder && trailer->ns_hash != kvc_folder_ns_hash(folder))
		return false;
	if (trailer->name && trailer->name_bytes == length &&
	    memcmp(trailer->name, name, length) == 0)
		return true;
	return *folder && is_hash_of(name, trailer);
}

void kvc_image_shape(const struct kvc_trailer *trailer, struct kvc_shape *out)
{
	uint64_t offset = 0;

	memset(out, 0, sizeof(*out));
	out->part_count = out->series_count = trailer->part_count;
	out->payload_bytes = trailer->payload_bytes;
	out->stored_bytes = trailer->stored_bytes;
	out->ns_hash = trailer->ns_hash;
	out->pool_fingerprint = trailer->pool_fingerprint;
	for (uint32_t p = 0; p < trailer->part_count; p++) {
		out->parts[p] = (struct kvc_shape_part){
			.bytes = trailer->part_bytes[p],
			.stored_offset = offset,
			.first_series = p,
			.series_count = 1,
		};
		out->series[p] = (struct kvc_series){
			.piece_bytes = trailer->part_bytes[p],
			.piece_count = 1,
		};
		offset += kvc_block_align(trailer->part_bytes[p]);
	}
}

static bool same_version(const struct kvc_completion *a, const struct kvc_completion *b)
{
	return a->version[0] == b->version[0] && a->version[1] == b->version[1];
}

static int read_all(struct kvc_root *root, const char *path, uint64_t bytes, uint8_t *image,
		    const struct kvc_completion *of)
{
	struct kvc_completion now = *of;

	for (uint64_t at = 0; at < bytes;) {
		const uint64_t step = bytes - at < READ_BYTES ? bytes - at : READ_BYTES;
		const int64_t rc = kvc_root_read(root, path, at, image + at, step, &now);

		if (rc < 0)
			return (int)rc;
		if (!same_version(&now, of))
			return -ESTALE;
		if ((uint64_t)rc < step)
			return -EBADMSG;
		at += step;
	}
	return 0;
}

static int check(const struct kvc_trailer *trailer, const uint8_t *image)
{
	struct kvc_shape *shape;
	uint64_t checksum;

	if (trailer->checksum_kind == KVC_CHECKSUM_NONE)
		return 0;
	shape = malloc(sizeof(*shape));
	if (!shape)
		return -ENOMEM;
	kvc_image_shape(trailer, shape);
	checksum =
		kvc_checksum_image(trailer->checksum_kind, trailer->g ^ trailer->v, shape, image);
	free(shape);
	return checksum == trailer->checksum ? 0 : -EBADMSG;
}

int kvc_image_payload(struct kvc_root *root, const char *path, const struct kvc_trailer *trailer,
		      const struct kvc_completion *of, uint8_t **out)
{
	const uint64_t bytes = trailer->stored_bytes - KVC_TRAILER_BYTES;
	uint8_t *image;
	int rc;

	if (trailer->checksum_kind >= KVC_CHECKSUM_CALLER)
		return -EPROTONOSUPPORT;
	if (!out && (trailer->checksum_kind == KVC_CHECKSUM_NONE || bytes == 0))
		return 0;
	image = malloc(bytes ? bytes : 1);
	if (!image)
		return -ENOMEM;
	rc = read_all(root, path, bytes, image, of);
	if (!rc && bytes > 0)
		rc = check(trailer, image);
	if (!rc && out)
		*out = image;
	else
		free(image);
	return rc;
}
