/* SPDX-License-Identifier: Apache-2.0 */
/* BLAKE2b by libb2. Its calls fail only for sizes outside of 1..64, which are constants here. */
#include "core/hash.h"

#include <string.h>

#define XXH_INLINE_ALL /* keys are short: nothing to dispatch */
#include <xxhash.h>

#define DIGEST_BYTES 8

static void put_le(uint8_t *out, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t from_be(const uint8_t digest[DIGEST_BYTES])
{
	uint64_t value = 0;

	for (size_t i = 0; i < DIGEST_BYTES; i++)
		value = value << 8 | digest[i];
	return value;
}

void kvc_hash_begin(struct kvc_hash *hash)
{
	(void)blake2b_init(&hash->state, DIGEST_BYTES);
}

void kvc_hash_bytes(struct kvc_hash *hash, const void *data, size_t bytes)
{
	uint8_t length[4];

	put_le(length, bytes, sizeof(length));
	(void)blake2b_update(&hash->state, length, sizeof(length));
	if (bytes)
		(void)blake2b_update(&hash->state, data, bytes);
}

void kvc_hash_text(struct kvc_hash *hash, const char *text)
{
	if (text)
		kvc_hash_bytes(hash, text, strlen(text));
	else
		kvc_hash_absent(hash);
}

void kvc_hash_absent(struct kvc_hash *hash)
{
	static const uint8_t length[4] = { 0xff, 0xff, 0xff, 0xff };

	(void)blake2b_update(&hash->state, length, sizeof(length));
}

void kvc_hash_u64(struct kvc_hash *hash, uint64_t value)
{
	uint8_t field[12];

	put_le(field, 8, 4);
	put_le(field + 4, value, 8);
	(void)blake2b_update(&hash->state, field, sizeof(field));
}

uint64_t kvc_hash_end(struct kvc_hash *hash)
{
	uint8_t digest[DIGEST_BYTES];

	(void)blake2b_final(&hash->state, digest, sizeof(digest));
	return from_be(digest);
}

uint64_t kvc_blake2b_64(const void *data, size_t bytes)
{
	uint8_t digest[DIGEST_BYTES];

	(void)blake2b(digest, bytes ? data : "", NULL, sizeof(digest), bytes, 0);
	return from_be(digest);
}

void kvc_hash_expand(uint64_t value, uint64_t number, uint8_t out[64])
{
	uint8_t input[16];

	put_le(input, value, 8);
	put_le(input + 8, number, 8);
	(void)blake2b(out, input, NULL, 64, sizeof(input), 0);
}

uint64_t kvc_hash_keyed(const void *data, size_t bytes, const uint8_t secret[192])
{
	return XXH3_64bits_withSecret(data, bytes, secret, 192);
}

void kvc_blake2b_128(const void *data, size_t bytes, uint8_t out[16])
{
	(void)blake2b(out, bytes ? data : "", NULL, 16, bytes, 0);
}

void kvc_blake2b_128_begin(struct kvc_hash *hash)
{
	(void)blake2b_init(&hash->state, 16);
}

void kvc_blake2b_128_add(struct kvc_hash *hash, const void *data, size_t bytes)
{
	if (bytes)
		(void)blake2b_update(&hash->state, data, bytes);
}

void kvc_blake2b_128_end(struct kvc_hash *hash, uint8_t out[16])
{
	(void)blake2b_final(&hash->state, out, 16);
}
