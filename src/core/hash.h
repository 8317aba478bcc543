/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hashes that names, routes and fingerprints are made of. All are BLAKE2b; a 64-bit value is
 * its 8-byte digest read as a big-endian integer. Part of the stored format: never change them.
 *
 * H(x1..xn) hashes fields so that no two lists of fields give the same input: each field is its
 * length as u32 little-endian and its bytes. A field that is absent is the length 0xFFFFFFFF with
 * no bytes, so absent and empty differ. An integer is a field of 8 bytes, u64 little-endian. The
 * number of fields is not hashed: every use has a fixed list.
 *
 * A struct kvc_hash is a plain value: copying one keeps a prefix that many hashes share.
 */
#ifndef KVC_CORE_HASH_H
#define KVC_CORE_HASH_H

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include <blake2.h>

struct kvc_hash {
	alignas(16) blake2b_state state;
};

void kvc_hash_begin(struct kvc_hash *hash);

/* One field of `bytes` bytes; longer than 0xFFFFFFFE cannot be given. */
void kvc_hash_bytes(struct kvc_hash *hash, const void *data, size_t bytes);

/* One field: the text without its NUL; NULL is absent. */
void kvc_hash_text(struct kvc_hash *hash, const char *text);

void kvc_hash_absent(struct kvc_hash *hash);
void kvc_hash_u64(struct kvc_hash *hash, uint64_t value);

/* The value. The struct is used up. */
uint64_t kvc_hash_end(struct kvc_hash *hash);

/* BLAKE2b of plain bytes, no fields; at once, or a 128-bit one piece by piece. */
uint64_t kvc_blake2b_64(const void *data, size_t bytes);
/* 64 bytes: BLAKE2b-512 of value and number, each as u64 little-endian. */
void kvc_hash_expand(uint64_t value, uint64_t number, uint8_t out[64]);

/* XXH3-64 with a secret of 192 bytes; for keys that are content hashes themselves. */
uint64_t kvc_hash_keyed(const void *data, size_t bytes, const uint8_t secret[192]);

void kvc_blake2b_128(const void *data, size_t bytes, uint8_t out[16]);
void kvc_blake2b_128_begin(struct kvc_hash *hash);
void kvc_blake2b_128_add(struct kvc_hash *hash, const void *data, size_t bytes);
void kvc_blake2b_128_end(struct kvc_hash *hash, uint8_t out[16]);

#endif
