/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_bytes.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define STEP 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio, odd */

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ value >> 27) * 0x94d049bb133111ebull;
	return value ^ value >> 31;
}

uint64_t replay_page_seed(struct replay_page page, uint64_t salt)
{
	return mix(mix(mix(page.space + STEP) + page.id) + salt * STEP);
}

void replay_page_key(struct replay_page page, char out[REPLAY_KEY_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (unsigned word = 0; word < REPLAY_KEY_BYTES / 16; word++) {
		uint64_t value = replay_page_seed(page, ~(uint64_t)word);

		for (unsigned i = 0; i < 16; i++)
			*out++ = digits[(value >> (60 - 4 * i)) & 15];
	}
}

/* Cheap on purpose, and the compiler makes vector code of it: adding keeps words of two seeds
 * apart at every place, the shift keeps them from being an arithmetic series. */
static inline uint64_t word_at(uint64_t seed, uint64_t index)
{
	uint64_t value = seed + index * STEP;

	return value ^ value >> 29;
}

static void fill_words(uint8_t *out, uint64_t seed, uint64_t first, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t word = word_at(seed, first + i);

		memcpy(out + i * 8, &word, 8);
	}
}

static bool words_equal(const uint8_t *in, uint64_t seed, uint64_t first, uint64_t count)
{
	uint64_t difference = 0;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t word;

		memcpy(&word, in + i * 8, 8);
		difference |= word ^ word_at(seed, first + i);
	}
	return difference == 0;
}

static uint8_t byte_at(uint64_t seed, uint64_t offset)
{
	uint64_t word = word_at(seed, offset / 8);
	uint8_t bytes[8];

	memcpy(bytes, &word, 8);
	return bytes[offset % 8];
}

/* Bytes [offset, offset + bytes) of the stream of `seed`. */
static void fill_stream(uint8_t *out, uint64_t seed, uint64_t offset, uint64_t bytes)
{
	uint64_t words;

	for (; bytes > 0 && offset % 8 != 0; bytes--)
		*out++ = byte_at(seed, offset++);
	words = bytes / 8;
	fill_words(out, seed, offset / 8, words);
	for (uint64_t i = words * 8; i < bytes; i++)
		out[i] = byte_at(seed, offset + i);
}

static uint64_t wrong_in_stream(const uint8_t *in, uint64_t seed, uint64_t offset, uint64_t bytes)
{
	uint64_t wrong = 0;

	if (offset % 8 == 0 && bytes % 8 == 0 && words_equal(in, seed, offset / 8, bytes / 8))
		return 0;
	for (uint64_t i = 0; i < bytes; i++)
		wrong += in[i] != byte_at(seed, offset + i);
	return wrong;
}

/* ---------------------------------------------------------------- geometry */

/* The largest power of two up to `most` that divides value. */
static uint32_t divisor_of(uint64_t value, uint32_t most)
{
	uint32_t divisor = 1;

	while (divisor < most && value % (divisor * 2) == 0)
		divisor *= 2;
	return divisor;
}

const char *replay_geometry_shape(struct replay_geometry *geometry, uint32_t ranks)
{
	uint64_t token_bytes = geometry->part_bytes / geometry->page_tokens;

	if (geometry->layout == KVC_LAYOUT_EXPLICIT)
		return ranks > 1 ? "head groups (--tp-lcm-size) need a layout with heads, "
				   "not explicit" :
				   NULL;
	if (geometry->part_bytes % geometry->page_tokens != 0)
		return "--part-bytes is not a multiple of the tokens of a page; "
		       "take --layout explicit, or other --page-tokens";
	if (geometry->layers == 0)
		geometry->layers = divisor_of(
			token_bytes / (geometry->heads > 0 ? geometry->heads : ranks), 8);
	if (token_bytes % geometry->layers != 0)
		return "--layers does not divide the bytes of a token in a part";
	token_bytes /= geometry->layers;
	if (geometry->heads == 0)
		geometry->heads = ranks * divisor_of(token_bytes / ranks, 8);
	if (token_bytes % geometry->heads != 0)
		return "--heads does not divide the bytes of a token and layer in a part";
	if (geometry->heads % ranks != 0)
		return "--heads is not a multiple of the head groups of this rank "
		       "(tp_lcm_size / tp_size)";
	if (token_bytes / geometry->heads > UINT32_MAX)
		return "--part-bytes is too large for this layout";
	geometry->head_bytes = (uint32_t)(token_bytes / geometry->heads);
	return NULL;
}

void replay_geometry_parts(const struct replay_geometry *geometry, struct kvc_part *out)
{
	for (uint32_t j = 0; j < geometry->part_count; j++) {
		struct kvc_part part = {
			.size = sizeof(part),
			.base = geometry->memory + j * geometry->part_span_bytes,
		};

		if (geometry->layout == KVC_LAYOUT_EXPLICIT) {
			part.piece_bytes = geometry->part_bytes;
			part.piece_stride_bytes = geometry->part_bytes;
			part.page_stride_bytes = geometry->part_bytes;
			part.piece_count = 1;
		} else {
			part.token_count = geometry->page_count * geometry->page_tokens;
			part.layer_count = geometry->layers;
			part.head_count = geometry->heads;
			part.head_bytes = geometry->head_bytes;
		}
		out[j] = part;
	}
}

uint64_t replay_geometry_bytes(const struct replay_geometry *geometry)
{
	return geometry->part_span_bytes * geometry->part_count;
}

int replay_geometry_map(struct replay_geometry *geometry)
{
	uint64_t span, bytes;
	void *memory;

	if (__builtin_mul_overflow(geometry->part_bytes, geometry->page_count, &span) ||
	    __builtin_add_overflow(span, 4095u, &span))
		return -ENOMEM;
	span &= ~4095ull;
	if (__builtin_mul_overflow(span, (uint64_t)geometry->part_count, &bytes))
		return -ENOMEM;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	(void)madvise(memory, bytes, MADV_HUGEPAGE); /* only makes it faster */
	geometry->memory = memory;
	geometry->part_span_bytes = span;
	return 0;
}

void replay_geometry_unmap(struct replay_geometry *geometry)
{
	if (geometry->memory != NULL)
		munmap(geometry->memory, replay_geometry_bytes(geometry));
	geometry->memory = NULL;
}

/* ---------------------------------------------------------------- pages in memory */

typedef uint64_t (*piece_fn)(uint8_t *at, uint64_t seed, uint64_t offset, uint64_t bytes);

static uint64_t fill_piece(uint8_t *at, uint64_t seed, uint64_t offset, uint64_t bytes)
{
	fill_stream(at, seed, offset, bytes);
	return 0;
}

static uint64_t compare_piece(uint8_t *at, uint64_t seed, uint64_t offset, uint64_t bytes)
{
	return wrong_in_stream(at, seed, offset, bytes);
}

/* Where one head of one token in one layer lies. */
static uint64_t head_offset(const struct replay_geometry *geometry, uint64_t slot, uint64_t token,
			    uint64_t layer, uint64_t head)
{
	uint64_t tokens = geometry->page_tokens, layers = geometry->layers;
	uint64_t heads = geometry->heads, index;

	switch (geometry->layout) {
	case KVC_LAYOUT_PAGE_FIRST_DIRECT:
		index = ((slot * layers + layer) * tokens + token) * heads + head;
		break;
	case KVC_LAYOUT_PAGE_HEAD:
		index = ((slot * heads + head) * tokens + token) * layers + layer;
		break;
	case KVC_LAYOUT_LAYER_FIRST:
		index = ((layer * geometry->page_count + slot) * tokens + token) * heads + head;
		break;
	default:
		index = ((slot * tokens + token) * layers + layer) * heads + head;
		break;
	}
	return index * geometry->head_bytes;
}

static uint64_t each_head(const struct replay_geometry *geometry, uint64_t slot, uint8_t *base,
			  uint64_t seed, piece_fn fn)
{
	uint64_t sum = 0;

	for (uint32_t head = 0; head < geometry->heads; head++) {
		uint64_t head_seed = mix(seed + geometry->first_head + head);

		for (uint32_t token = 0; token < geometry->page_tokens; token++) {
			for (uint32_t layer = 0; layer < geometry->layers; layer++) {
				uint64_t place = (uint64_t)token * geometry->layers + layer;

				sum += fn(base + head_offset(geometry, slot, token, layer, head),
					  head_seed, place * geometry->head_bytes,
					  geometry->head_bytes);
			}
		}
	}
	return sum;
}

/* The pieces of one part in the order in which they are stored. */
static uint64_t each_piece(const struct replay_geometry *geometry, uint64_t slot, uint8_t *base,
			   uint64_t seed, piece_fn fn)
{
	uint64_t pieces = 1, bytes = geometry->part_bytes, sum = 0;

	if (geometry->layout == KVC_LAYOUT_LAYER_FIRST) {
		pieces = geometry->layers;
		bytes /= pieces;
	}
	for (uint64_t i = 0; i < pieces; i++)
		sum += fn(base + (i * geometry->page_count + slot) * bytes, seed, i * bytes, bytes);
	return sum;
}

static uint64_t each_part(const struct replay_geometry *geometry, uint64_t slot,
			  struct replay_page page, piece_fn fn)
{
	uint64_t sum = 0;

	for (uint32_t j = 0; j < geometry->part_count; j++) {
		uint8_t *base = geometry->memory + j * geometry->part_span_bytes;
		uint64_t seed = replay_page_seed(page, mix(geometry->rank_salt + j));

		if (geometry->by_head)
			sum += each_head(geometry, slot, base, seed, fn);
		else
			sum += each_piece(geometry, slot, base, seed, fn);
	}
	return sum;
}

void replay_page_fill(const struct replay_geometry *geometry, uint64_t slot,
		      struct replay_page page)
{
	each_part(geometry, slot, page, fill_piece);
}

uint64_t replay_page_compare(const struct replay_geometry *geometry, uint64_t slot,
			     struct replay_page page)
{
	return each_part(geometry, slot, page, compare_piece);
}
