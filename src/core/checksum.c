/* SPDX-License-Identifier: Apache-2.0 */
#include "core/checksum.h"

#include "core/format.h"

#include <string.h>

/* XXH_INLINE_ALL would fix the instruction set at compile time; the dispatcher picks AVX2 or
 * AVX-512 where the CPU has it (twice as fast on hot data). Other machines: plain xxhash.h. */
#define XXH_STATIC_LINKING_ONLY /* the state lies on the stack */
#if defined(__x86_64__) || defined(__i386__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#define SECTOR_BYTES 512u
#define SAMPLE_BYTES 64u
/* Copied and hashed piece by piece, each small enough to stay in the L2 cache in between. */
#define FUSE_BYTES   (128u << 10)

/* Samples are collected: a call of the hash for each of them would cost more than the hash. */
#define COLLECT_BYTES 2048u
/* The CPU's own prefetching does not see that 7 of 8 lines are passed over. */
#define AHEAD_BYTES   (16u * SECTOR_BYTES)

struct stream {
	XXH3_state_t state;
	int kind;
	uint32_t sector_at; /* kind sector: position inside the current sector of the part */
	uint32_t collected;
	uint8_t samples[COLLECT_BYTES];
};

static void stream_begin(struct stream *stream, int kind, uint64_t seed)
{
	stream->kind = kind;
	stream->sector_at = 0;
	stream->collected = 0;
	if (kind == KVC_CHECKSUM_NONE)
		return;
	/* reset keeps the secret when the state already has this seed, and what lies on the stack
	 * may be an old state half overwritten. */
	XXH3_INITSTATE(&stream->state);
	(void)XXH3_64bits_reset_withSeed(&stream->state, seed);
}

static void samples_flush(struct stream *stream)
{
	(void)XXH3_64bits_update(&stream->state, stream->samples, stream->collected);
	stream->collected = 0;
}

/* At most SAMPLE_BYTES. */
static void sample_add(struct stream *stream, const uint8_t *data, uint32_t bytes)
{
	if (stream->collected + bytes > COLLECT_BYTES)
		samples_flush(stream);
	memcpy(stream->samples + stream->collected, data, bytes);
	stream->collected += bytes;
}

/* Whole sectors. */
static void sample_sectors(struct stream *stream, const uint8_t *data, uint64_t count)
{
	for (; count > 0; count--, data += SECTOR_BYTES) {
		if (stream->collected + SAMPLE_BYTES > COLLECT_BYTES)
			samples_flush(stream);
		if (count > AHEAD_BYTES / SECTOR_BYTES)
			__builtin_prefetch(data + AHEAD_BYTES);
		memcpy(stream->samples + stream->collected, data, SAMPLE_BYTES);
		stream->collected += SAMPLE_BYTES;
	}
}

/* Sectors are counted from the beginning of each part, across its pieces. */
static void stream_sector(struct stream *stream, const uint8_t *data, uint64_t bytes)
{
	while (bytes > 0) {
		const uint32_t at = stream->sector_at;
		const uint64_t left = SECTOR_BYTES - at;
		const uint64_t step = bytes < left ? bytes : left;

		if (at == 0 && bytes >= SECTOR_BYTES) {
			sample_sectors(stream, data, bytes / SECTOR_BYTES);
			data += bytes - bytes % SECTOR_BYTES;
			bytes %= SECTOR_BYTES;
			continue;
		}
		if (at < SAMPLE_BYTES) {
			const uint64_t want = SAMPLE_BYTES - at;

			sample_add(stream, data, (uint32_t)(want < step ? want : step));
		}
		stream->sector_at = (uint32_t)((at + step) % SECTOR_BYTES);
		data += step;
		bytes -= step;
	}
}

static void stream_add(struct stream *stream, const void *data, uint64_t bytes)
{
	if (stream->kind == KVC_CHECKSUM_FULL)
		(void)XXH3_64bits_update(&stream->state, data, bytes);
	else if (stream->kind == KVC_CHECKSUM_SECTOR)
		stream_sector(stream, data, bytes);
}

static uint64_t stream_end(struct stream *stream)
{
	if (stream->collected > 0)
		samples_flush(stream);
	return stream->kind == KVC_CHECKSUM_NONE ? 0 : XXH3_64bits_digest(&stream->state);
}

enum direction {
	HASH_ONLY,
	GATHER,
	SCATTER,
};

/* One piece: copied in steps that stay in cache until they are hashed. image is where the piece
 * lies in the object's image. */
static void fuse_piece(struct stream *stream, enum direction direction, uint8_t *memory,
		       uint8_t *image, uint64_t bytes)
{
	if (direction == HASH_ONLY) {
		stream_add(stream, memory, bytes);
		return;
	}
	while (bytes > 0) {
		const uint64_t step = bytes < FUSE_BYTES ? bytes : FUSE_BYTES;

		if (direction == GATHER)
			memcpy(image, memory, step);
		else
			memcpy(memory, image, step);
		stream_add(stream, image, step);
		memory += step;
		image += step;
		bytes -= step;
	}
}

/* gcc's AddressSanitizer places locals where 64-byte alignment is not kept (use after return). */
#define KEEPS_ALIGNMENT __attribute__((no_sanitize("address")))

KEEPS_ALIGNMENT
static uint64_t walk(int kind, uint64_t seed, const struct kvc_shape *shape, void *const *bases,
		     enum direction direction, uint8_t *image)
{
	struct stream stream;

	stream_begin(&stream, kind, seed);
	for (uint32_t p = 0; p < shape->part_count; p++) {
		const struct kvc_shape_part *part = &shape->parts[p];
		uint8_t *at = image ? image + part->stored_offset : NULL;

		stream.sector_at = 0;
		for (uint32_t s = 0; s < part->series_count; s++) {
			const struct kvc_series *series = &shape->series[part->first_series + s];
			uint8_t *piece = bases[part->first_series + s];

			if (series->piece_bytes == 0)
				continue; /* its memory may be NULL */
			for (uint32_t i = 0; i < series->piece_count; i++) {
				fuse_piece(&stream, direction, piece, at, series->piece_bytes);
				piece += series->piece_stride_bytes;
				at = at ? at + series->piece_bytes : NULL;
			}
		}
		if (direction == GATHER && at)
			memset(at, 0, kvc_block_align(part->bytes) - part->bytes);
	}
	return stream_end(&stream);
}

uint64_t kvc_checksum_memory(int kind, uint64_t seed, const struct kvc_shape *shape,
			     void *const *bases)
{
	return kind == KVC_CHECKSUM_NONE ? 0 : walk(kind, seed, shape, bases, HASH_ONLY, NULL);
}

KEEPS_ALIGNMENT
uint64_t kvc_checksum_image(int kind, uint64_t seed, const struct kvc_shape *shape,
			    const void *image)
{
	struct stream stream;

	stream_begin(&stream, kind, seed);
	for (uint32_t p = 0; p < shape->part_count; p++) {
		stream.sector_at = 0;
		stream_add(&stream, (const uint8_t *)image + shape->parts[p].stored_offset,
			   shape->parts[p].bytes);
	}
	return stream_end(&stream);
}

uint64_t kvc_checksum_gather(int kind, uint64_t seed, const struct kvc_shape *shape,
			     void *const *bases, void *image)
{
	return walk(kind, seed, shape, bases, GATHER, image);
}

uint64_t kvc_checksum_scatter(int kind, uint64_t seed, const struct kvc_shape *shape,
			      void *const *bases, const void *image)
{
	return walk(kind, seed, shape, bases, SCATTER, (uint8_t *)(uintptr_t)image);
}
