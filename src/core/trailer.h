/* SPDX-License-Identifier: Apache-2.0 */
/* The 4096-byte trailer of an object: fields, encoding, decoding (docs/on-disk-format.md, 3). */
#ifndef KVC_CORE_TRAILER_H
#define KVC_CORE_TRAILER_H

#include "core/format.h"
#include "core/shape.h"

#define KVC_TRAILER_NAME_BYTES	 2048u
#define KVC_TRAILER_WRITER_BYTES 32u

enum kvc_checksum_kind {
	KVC_CHECKSUM_NONE = 0,
	KVC_CHECKSUM_FULL = 1,
	KVC_CHECKSUM_SECTOR = 2,
	KVC_CHECKSUM_CALLER = 3, /* reserved; this and above: another version's */
};

enum kvc_object_kind {
	KVC_OBJECT_PAGE = 0,
	KVC_OBJECT_MARKER = 1,
	KVC_OBJECT_SINGLE = 2,
};

struct kvc_trailer {
	uint16_t major;
	uint16_t minor;
	uint32_t compat;
	uint32_t ro_compat;
	uint32_t incompat;
	uint8_t checksum_kind;
	uint8_t object_kind;
	uint16_t part_count;
	uint32_t depth;
	uint64_t payload_bytes;
	uint64_t stored_bytes;
	uint64_t checksum;
	uint64_t g;
	uint64_t v;
	uint64_t ns_hash;
	uint64_t pool_fingerprint;
	uint64_t parent_g;
	int64_t created_ns;
	uint8_t name_hash[16];
	uint64_t part_bytes[KVC_SHAPE_PARTS_MAX];
	const char *name;    /* encode: the object's name; decode: into the block, or NULL */
	uint32_t name_bytes; /* the whole name's length, also when the text is left out */
	char writer[KVC_TRAILER_WRITER_BYTES + 1];
};

/* Writes the block. name_hash is computed here from the name. */
void kvc_trailer_encode(const struct kvc_trailer *trailer, uint8_t block[KVC_TRAILER_BYTES]);

/*
 * Reads the block. 0; -ENOMSG: no trailer (magic); -EBADMSG: damaged (CRC, impossible field);
 * -EPROTONOSUPPORT: a format that this library cannot read (out is filled with the versions).
 * out->name points into block.
 */
int kvc_trailer_decode(const uint8_t block[KVC_TRAILER_BYTES], struct kvc_trailer *out);

#endif
