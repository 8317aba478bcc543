/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/*
 * python3 -c '
 * from hashlib import blake2b as B
 * for d in (b"", b"abc", b"model@00@kv@abcdef", bytes(range(256))*2):
 *     print(B(d, digest_size=8).hexdigest(), B(d, digest_size=16).hexdigest())'
 */
static void plain_hashes_are_blake2b(void **state)
{
	static const struct {
		const char *data;
		size_t bytes;
		uint64_t h64;
		const char *h128;
	} rows[] = {
		{ "", 0, UINT64_C(0xe4a6a0577479b2b4),
		  "\xca\xe6\x69\x41\xd9\xef\xbd\x40\x4e\x4d\x88\x75\x8e\xa6\x76\x70" },
		{ "abc", 3, UINT64_C(0xd8bb14d833d59559),
		  "\xcf\x4a\xb7\x91\xc6\x2b\x8d\x2b\x21\x09\xc9\x02\x75\x28\x78\x16" },
		{ "model@00@kv@abcdef", 18, UINT64_C(0x3da253a0cf9d66be),
		  "\xda\xee\x43\x6c\x6b\x12\xec\x42\x66\x95\x93\x14\xd2\x96\x0e\x36" },
		{ NULL, 512, UINT64_C(0xe4ac345f5aeb2a0e),
		  "\x43\xd6\xc8\xc9\xd7\x1d\x2b\xf4\x82\xbc\x9f\xdc\xb3\x5a\x54\x96" },
	};
	uint8_t long_data[512], out[16], pieces[16];
	struct kvc_hash hash;

	(void)state;
	for (size_t i = 0; i < sizeof(long_data); i++)
		long_data[i] = (uint8_t)i;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const void *data = rows[i].data ? (const void *)rows[i].data : long_data;

		assert_int_equal(kvc_blake2b_64(data, rows[i].bytes), rows[i].h64);
		kvc_blake2b_128(data, rows[i].bytes, out);
		assert_memory_equal(out, rows[i].h128, 16);
		kvc_blake2b_128_begin(&hash);
		kvc_blake2b_128_add(&hash, data, rows[i].bytes / 3);
		kvc_blake2b_128_add(&hash, NULL, 0);
		kvc_blake2b_128_add(&hash, (const char *)data + rows[i].bytes / 3,
				    rows[i].bytes - rows[i].bytes / 3);
		kvc_blake2b_128_end(&hash, pieces);
		assert_memory_equal(pieces, out, 16);
	}
	assert_int_equal(kvc_blake2b_64(NULL, 0), rows[0].h64);
}

/*
 * python3 -c '
 * from hashlib import blake2b as B; from struct import pack as P
 * F=lambda f:b"\xff"*4 if f is None else P("<I",len(f))+f
 * H=lambda*x:B(b"".join(map(F,x)),digest_size=8).hexdigest()
 * Q=lambda n:P("<Q",n)
 * print(H()); print(H(b"")); print(H(None)); print(H(b"a",b"bc")); print(H(b"ab",b"c"))
 * print(H(Q(0),Q(2**64-1),b"text",None,b"\0\1"))'
 */
static void fields_are_hashed_as_documented(void **state)
{
	struct kvc_hash hash;

	(void)state;
	kvc_hash_begin(&hash);
	assert_int_equal(kvc_hash_end(&hash), UINT64_C(0xe4a6a0577479b2b4));
	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, "");
	assert_int_equal(kvc_hash_end(&hash), UINT64_C(0x4e842f2f50cc089e));
	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, NULL);
	assert_int_equal(kvc_hash_end(&hash), UINT64_C(0xf6185c2de47d747b));
	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, "a");
	kvc_hash_text(&hash, "bc");
	assert_int_equal(kvc_hash_end(&hash), UINT64_C(0xc3a2f01bc934ef3d));
	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, "ab");
	kvc_hash_text(&hash, "c");
	assert_int_equal(kvc_hash_end(&hash), UINT64_C(0xf798052e5fb10633));
	kvc_hash_begin(&hash);
	kvc_hash_u64(&hash, 0);
	kvc_hash_u64(&hash, UINT64_MAX);
	kvc_hash_text(&hash, "text");
	kvc_hash_absent(&hash);
	kvc_hash_bytes(&hash, "\0\1", 2);
	assert_int_equal(kvc_hash_end(&hash), UINT64_C(0x479a9b81db18c909));
}

static void a_copied_prefix_goes_on_by_itself(void **state)
{
	struct kvc_hash prefix, whole;

	(void)state;
	kvc_hash_begin(&prefix);
	kvc_hash_text(&prefix, "namespace");
	for (int i = 0; i < 3; i++) {
		struct kvc_hash copy = prefix;

		kvc_hash_bytes(&copy, &i, sizeof(i));
		kvc_hash_begin(&whole);
		kvc_hash_text(&whole, "namespace");
		kvc_hash_bytes(&whole, &i, sizeof(i));
		assert_int_equal(kvc_hash_end(&copy), kvc_hash_end(&whole));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_hashes_are_blake2b),
		cmocka_unit_test(fields_are_hashed_as_documented),
		cmocka_unit_test(a_copied_prefix_goes_on_by_itself),
	};

	return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
