/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last block of an object, from a disk that anybody may have written to. What is shorter than a
 * block is filled up with 0. Tried as it is, and with its CRC made right, so
 * that what comes behind the CRC is reached.
 */
#include "core/crc.h"
#include "core/trailer.h"
#include "fuzz/fuzz.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void must(bool condition)
{
	if (!condition)
		abort();
}

/* What was accepted is sound, and encoding it gives the same fields again. */
static void check(const struct kvc_trailer *trailer)
{
	uint8_t again[KVC_TRAILER_BYTES];
	struct kvc_trailer second;
	uint64_t payload = 0;

	must(trailer->part_count <= KVC_SHAPE_PARTS_MAX);
	must(trailer->name == NULL || trailer->name_bytes <= KVC_TRAILER_NAME_BYTES);
	must(memchr(trailer->writer, '\0', sizeof(trailer->writer)) != NULL);
	for (uint32_t i = 0; i < trailer->part_count; i++)
		payload += trailer->part_bytes[i];
	must(payload == trailer->payload_bytes);
	must(trailer->stored_bytes >= KVC_TRAILER_BYTES);
	must(trailer->stored_bytes >= trailer->payload_bytes);
	if (trailer->name == NULL)
		return;
	kvc_trailer_encode(trailer, again);
	must(kvc_trailer_decode(again, &second) == 0);
	must(second.g == trailer->g && second.v == trailer->v);
	must(second.checksum == trailer->checksum);
	must(second.stored_bytes == trailer->stored_bytes);
	must(second.name_bytes == trailer->name_bytes);
	must(memcmp(second.name, trailer->name, trailer->name_bytes) == 0);
}

static void try_block(const uint8_t *block)
{
	struct kvc_trailer trailer;
	int rc = kvc_trailer_decode(block, &trailer);

	must(rc == 0 || rc == -ENOMSG || rc == -EBADMSG || rc == -EPROTONOSUPPORT);
	if (rc == 0)
		check(&trailer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *block = calloc(1, KVC_TRAILER_BYTES);
	size_t bytes = size < KVC_TRAILER_BYTES ? size : KVC_TRAILER_BYTES;
	uint32_t crc;

	must(block != NULL);
	if (bytes != 0)
		memcpy(block, data, bytes);
	try_block(block);
	crc = kvc_crc32c(block, KVC_TRAILER_BYTES - 4);
	for (size_t i = 0; i < 4; i++)
		block[KVC_TRAILER_BYTES - 4 + i] = (uint8_t)(crc >> (8 * i));
	try_block(block);
	free(block);
	return 0;
}
