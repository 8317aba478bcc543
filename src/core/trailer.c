/* SPDX-License-Identifier: Apache-2.0 */
#include "core/trailer.h"

#include "core/crc.h"
#include "core/hash.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

static const uint8_t magic[8] = { 0x4b, 0x56, 0x43, 0x54, 0x52, 0x4c, 0x0d, 0x0a };

enum trailer_offset {
	AT_MAGIC = 0,
	AT_MAJOR = 8,
	AT_MINOR = 10,
	AT_COMPAT = 12,
	AT_RO_COMPAT = 16,
	AT_INCOMPAT = 20,
	AT_CHECKSUM_KIND = 24,
	AT_OBJECT_KIND = 25,
	AT_PART_COUNT = 26,
	AT_NAME_BYTES = 28,
	AT_PAYLOAD_BYTES = 32,
	AT_STORED_BYTES = 40,
	AT_CHECKSUM = 48,
	AT_G = 56,
	AT_V = 64,
	AT_NS_HASH = 72,
	AT_POOL_FINGERPRINT = 80,
	AT_PARENT_G = 88,
	AT_DEPTH = 96,
	AT_CREATED_NS = 104,
	AT_NAME_HASH = 112,
	AT_WRITER = 128,
	AT_PART_BYTES = 256,
	AT_NAME = 768,
	AT_CRC = 4092,
};

static void put16(uint8_t *block, size_t at, uint16_t value)
{
	const uint16_t le = htole16(value);

	memcpy(block + at, &le, sizeof(le));
}

static void put32(uint8_t *block, size_t at, uint32_t value)
{
	const uint32_t le = htole32(value);

	memcpy(block + at, &le, sizeof(le));
}

static void put64(uint8_t *block, size_t at, uint64_t value)
{
	const uint64_t le = htole64(value);

	memcpy(block + at, &le, sizeof(le));
}

static uint16_t get16(const uint8_t *block, size_t at)
{
	uint16_t le;

	memcpy(&le, block + at, sizeof(le));
	return le16toh(le);
}

static uint32_t get32(const uint8_t *block, size_t at)
{
	uint32_t le;

	memcpy(&le, block + at, sizeof(le));
	return le32toh(le);
}

static uint64_t get64(const uint8_t *block, size_t at)
{
	uint64_t le;

	memcpy(&le, block + at, sizeof(le));
	return le64toh(le);
}

void kvc_trailer_encode(const struct kvc_trailer *trailer, uint8_t block[KVC_TRAILER_BYTES])
{
	uint8_t name_hash[16];

	memset(block, 0, KVC_TRAILER_BYTES);
	memcpy(block + AT_MAGIC, magic, sizeof(magic));
	put16(block, AT_MAJOR, trailer->major);
	put16(block, AT_MINOR, trailer->minor);
	put32(block, AT_COMPAT, trailer->compat);
	put32(block, AT_RO_COMPAT, trailer->ro_compat);
	put32(block, AT_INCOMPAT, trailer->incompat);
	block[AT_CHECKSUM_KIND] = trailer->checksum_kind;
	block[AT_OBJECT_KIND] = trailer->object_kind;
	put16(block, AT_PART_COUNT, trailer->part_count);
	put32(block, AT_NAME_BYTES, trailer->name_bytes);
	put64(block, AT_PAYLOAD_BYTES, trailer->payload_bytes);
	put64(block, AT_STORED_BYTES, trailer->stored_bytes);
	put64(block, AT_CHECKSUM, trailer->checksum);
	put64(block, AT_G, trailer->g);
	put64(block, AT_V, trailer->v);
	put64(block, AT_NS_HASH, trailer->ns_hash);
	put64(block, AT_POOL_FINGERPRINT, trailer->pool_fingerprint);
	put64(block, AT_PARENT_G, trailer->parent_g);
	put32(block, AT_DEPTH, trailer->depth);
	put64(block, AT_CREATED_NS, (uint64_t)trailer->created_ns);
	kvc_blake2b_128(trailer->name, trailer->name_bytes, name_hash);
	memcpy(block + AT_NAME_HASH, name_hash, sizeof(name_hash));
	memcpy(block + AT_WRITER, trailer->writer,
	       strnlen(trailer->writer, KVC_TRAILER_WRITER_BYTES));
	for (uint32_t i = 0; i < trailer->part_count && i < KVC_SHAPE_PARTS_MAX; i++)
		put64(block, AT_PART_BYTES + 8 * (size_t)i, trailer->part_bytes[i]);
	if (trailer->name_bytes <= KVC_TRAILER_NAME_BYTES)
		memcpy(block + AT_NAME, trailer->name, trailer->name_bytes);
	put32(block, AT_CRC, kvc_crc32c(block, AT_CRC));
}

/* The part sizes, and that they add up to what the block says of payload and object. */
static int decode_parts(const uint8_t *block, struct kvc_trailer *out)
{
	uint64_t payload = 0, stored = KVC_TRAILER_BYTES;

	if (out->part_count > KVC_SHAPE_PARTS_MAX)
		return -EBADMSG;
	for (uint32_t i = 0; i < out->part_count; i++) {
		const uint64_t bytes = get64(block, AT_PART_BYTES + 8 * (size_t)i);

		if (stored > UINT64_MAX / 2 || bytes > UINT64_MAX / 2 - stored)
			return -EBADMSG;
		out->part_bytes[i] = bytes;
		payload += bytes;
		stored += kvc_block_align(bytes);
	}
	return payload == out->payload_bytes && stored == out->stored_bytes ? 0 : -EBADMSG;
}

int kvc_trailer_decode(const uint8_t block[KVC_TRAILER_BYTES], struct kvc_trailer *out)
{
	if (memcmp(block + AT_MAGIC, magic, sizeof(magic)) != 0)
		return -ENOMSG;
	if (get32(block, AT_CRC) != kvc_crc32c(block, AT_CRC))
		return -EBADMSG;
	memset(out, 0, sizeof(*out));
	out->major = get16(block, AT_MAJOR);
	out->minor = get16(block, AT_MINOR);
	out->compat = get32(block, AT_COMPAT);
	out->ro_compat = get32(block, AT_RO_COMPAT);
	out->incompat = get32(block, AT_INCOMPAT);
	/* Format 1 is the first: there is no earlier major to read. */
	if (out->major != KVC_FORMAT_MAJOR || out->incompat != 0 || out->ro_compat != 0)
		return -EPROTONOSUPPORT;
	out->checksum_kind = block[AT_CHECKSUM_KIND];
	out->object_kind = block[AT_OBJECT_KIND];
	out->part_count = get16(block, AT_PART_COUNT);
	out->name_bytes = get32(block, AT_NAME_BYTES);
	out->payload_bytes = get64(block, AT_PAYLOAD_BYTES);
	out->stored_bytes = get64(block, AT_STORED_BYTES);
	out->checksum = get64(block, AT_CHECKSUM);
	out->g = get64(block, AT_G);
	out->v = get64(block, AT_V);
	out->ns_hash = get64(block, AT_NS_HASH);
	out->pool_fingerprint = get64(block, AT_POOL_FINGERPRINT);
	out->parent_g = get64(block, AT_PARENT_G);
	out->depth = get32(block, AT_DEPTH);
	out->created_ns = (int64_t)get64(block, AT_CREATED_NS);
	memcpy(out->name_hash, block + AT_NAME_HASH, sizeof(out->name_hash));
	memcpy(out->writer, block + AT_WRITER, KVC_TRAILER_WRITER_BYTES);
	if (out->name_bytes <= KVC_TRAILER_NAME_BYTES)
		out->name = (const char *)block + AT_NAME;
	return decode_parts(block, out);
}
