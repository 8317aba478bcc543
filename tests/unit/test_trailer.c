/* SPDX-License-Identifier: Apache-2.0 */
/* core/trailer.c: the block, byte by byte. */
#include "core/trailer.h"

#include "core/crc.h"

#include <endian.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/*
 * python3 - <<'P'
 * from struct import pack as P; from hashlib import blake2b
 * name=b"0a1b.kv.11223344_0_2"
 * def crc(d):
 *     c=0xffffffff
 *     for b in d:
 *         c^=b
 *         for _ in range(8): c=(c>>1)^(0x82F63B78 if c&1 else 0)
 *     return c^0xffffffff
 * b=bytes.fromhex("4b564354524c0d0a")+P("<HHIII",1,0,0,0,0)+P("<BBHI",1,0,2,len(name))
 * b+=P("<8Q",5001,5001//4096*4096+4096+4096+4096,0x1122334455667788,0x0102030405060708,
 *      0x1112131415161718,0x2122232425262728,0x3132333435363738,0x4142434445464748)
 * b+=P("<IIq",7,0,1767225600123456789)+blake2b(name,digest_size=16).digest()
 * b+=b"kvcellar test".ljust(32,b"\0")+bytes(96)+P("<QQ",5000,1).ljust(512,b"\0")
 * b+=name.ljust(2048,b"\0")+bytes(1276)
 * b+=P("<I",crc(b)); print(len(b),b[:160].hex(),b[4092:].hex())
 * P
 */
static const char head_hex[] = "4b564354524c0d0a010000000000000000000000000000000100020014000000"
			       "8913000000000000004000000000000088776655443322110807060504030201"
			       "1817161514131211282726252423222138373635343332314847464544434241"
			       "070000000000000015cd55f5517286186cd318c2d40b4c8691b1a10821b286fe"
			       "6b7663656c6c6172207465737400000000000000000000000000000000000000";
static const char crc_hex[] = "0a4ceecb";

static void hex_equal(const uint8_t *data, const char *hex)
{
	for (size_t i = 0; hex[2 * i]; i++) {
		const char pair[3] = { hex[2 * i], hex[2 * i + 1], '\0' };

		if (data[i] != strtoul(pair, NULL, 16))
			fail_msg("byte %zu is %02x, expected %s", i, data[i], pair);
	}
}

static struct kvc_trailer sample(void)
{
	struct kvc_trailer t = {
		.major = 1,
		.checksum_kind = KVC_CHECKSUM_FULL,
		.object_kind = KVC_OBJECT_PAGE,
		.part_count = 2,
		.depth = 7,
		.payload_bytes = 5001,
		.stored_bytes = 4 * 4096,
		.checksum = UINT64_C(0x1122334455667788),
		.g = UINT64_C(0x0102030405060708),
		.v = UINT64_C(0x1112131415161718),
		.ns_hash = UINT64_C(0x2122232425262728),
		.pool_fingerprint = UINT64_C(0x3132333435363738),
		.parent_g = UINT64_C(0x4142434445464748),
		.created_ns = INT64_C(1767225600123456789),
		.part_bytes = { 5000, 1 },
		.name = "0a1b.kv.11223344_0_2",
		.name_bytes = 20,
		.writer = "kvcellar test",
	};

	return t;
}

static void the_block_is_what_the_format_says(void **state)
{
	const struct kvc_trailer t = sample();
	uint8_t block[KVC_TRAILER_BYTES];

	(void)state;
	memset(block, 0xee, sizeof(block));
	kvc_trailer_encode(&t, block);
	hex_equal(block, head_hex);
	hex_equal(block + 4092, crc_hex);
	for (size_t i = 160; i < 256; i++)
		assert_int_equal(block[i], 0);
	hex_equal(block + 256, "88130000000000000100000000000000");
	for (size_t i = 272; i < 768; i++)
		assert_int_equal(block[i], 0);
	assert_memory_equal(block + 768, "0a1b.kv.11223344_0_2", 21);
	for (size_t i = 788; i < 4092; i++)
		assert_int_equal(block[i], 0);
}

static void what_was_encoded_is_decoded(void **state)
{
	const struct kvc_trailer t = sample();
	struct kvc_trailer back;
	uint8_t block[KVC_TRAILER_BYTES];

	(void)state;
	kvc_trailer_encode(&t, block);
	assert_int_equal(kvc_trailer_decode(block, &back), 0);
	assert_int_equal(back.checksum_kind, t.checksum_kind);
	assert_int_equal(back.part_count, 2);
	assert_int_equal(back.depth, 7);
	assert_int_equal(back.payload_bytes, t.payload_bytes);
	assert_int_equal(back.stored_bytes, t.stored_bytes);
	assert_int_equal(back.checksum, t.checksum);
	assert_int_equal(back.g, t.g);
	assert_int_equal(back.v, t.v);
	assert_int_equal(back.ns_hash, t.ns_hash);
	assert_int_equal(back.pool_fingerprint, t.pool_fingerprint);
	assert_int_equal(back.parent_g, t.parent_g);
	assert_int_equal(back.created_ns, t.created_ns);
	assert_int_equal(back.part_bytes[0], 5000);
	assert_int_equal(back.part_bytes[1], 1);
	assert_int_equal(back.name_bytes, 20);
	assert_memory_equal(back.name, t.name, 20);
	assert_string_equal(back.writer, t.writer);
}

static void limits_of_name_writer_and_parts(void **state)
{
	static char name[2049];
	struct kvc_trailer t = sample(), back;
	uint8_t block[KVC_TRAILER_BYTES];

	(void)state;
	memset(name, 'n', sizeof(name));
	memset(t.writer, 'w', KVC_TRAILER_WRITER_BYTES);
	t.name = name;
	t.name_bytes = 2048;
	t.part_count = 64;
	t.payload_bytes = 64;
	t.stored_bytes = 65 * 4096;
	for (int i = 0; i < 64; i++)
		t.part_bytes[i] = 1;
	kvc_trailer_encode(&t, block);
	assert_int_equal(kvc_trailer_decode(block, &back), 0);
	assert_memory_equal(back.name, name, 2048);
	assert_int_equal(strlen(back.writer), 32);
	assert_int_equal(back.part_bytes[63], 1);
	t.name_bytes = 2049; /* the text is left out, its length and hash stay */
	kvc_trailer_encode(&t, block);
	assert_int_equal(block[768], 0);
	assert_int_equal(kvc_trailer_decode(block, &back), 0);
	assert_null(back.name);
	assert_int_equal(back.name_bytes, 2049);
	t = sample();
	t.part_count = 0; /* a marker */
	t.payload_bytes = 0;
	t.stored_bytes = 4096;
	kvc_trailer_encode(&t, block);
	assert_int_equal(kvc_trailer_decode(block, &back), 0);
}

/* Changes a field and makes the CRC right again. */
static int decode_with(size_t at, uint64_t value, size_t bytes)
{
	const struct kvc_trailer t = sample();
	struct kvc_trailer back;
	uint8_t block[KVC_TRAILER_BYTES];
	uint32_t crc;

	kvc_trailer_encode(&t, block);
	value = htole64(value);
	memcpy(block + at, &value, bytes);
	crc = htole32(kvc_crc32c(block, 4092));
	memcpy(block + 4092, &crc, 4);
	return kvc_trailer_decode(block, &back);
}

static void what_this_version_cannot_read_is_told(void **state)
{
	(void)state;
	assert_int_equal(decode_with(8, 1, 2), 0);
	assert_int_equal(decode_with(10, 77, 2), 0);		   /* a minor */
	assert_int_equal(decode_with(12, UINT32_MAX, 4), 0);	   /* compat */
	assert_int_equal(decode_with(16, 1, 4), -EPROTONOSUPPORT); /* ro_compat */
	assert_int_equal(decode_with(20, 1, 4), -EPROTONOSUPPORT);
	assert_int_equal(decode_with(8, 0, 2), -EPROTONOSUPPORT);
	assert_int_equal(decode_with(8, 2, 2), -EPROTONOSUPPORT);
	assert_int_equal(decode_with(100, 77, 4), 0); /* unnamed bytes are ignored */
	assert_int_equal(decode_with(3000, 77, 8), 0);
}

static void impossible_fields_are_damage(void **state)
{
	(void)state;
	assert_int_equal(decode_with(0, 0, 1), -ENOMSG);
	assert_int_equal(decode_with(26, 65, 2), -EBADMSG);
	assert_int_equal(decode_with(26, 1, 2), -EBADMSG);
	assert_int_equal(decode_with(32, 5002, 8), -EBADMSG);
	assert_int_equal(decode_with(40, 3 * 4096, 8), -EBADMSG);
	assert_int_equal(decode_with(256, UINT64_MAX, 8), -EBADMSG);
	assert_int_equal(decode_with(256, UINT64_MAX - 4095, 8), -EBADMSG);
	assert_int_equal(decode_with(264, UINT64_MAX / 2, 8), -EBADMSG);
}

static void r08_every_single_flipped_bit_is_found(void **state)
{
	const struct kvc_trailer t = sample();
	struct kvc_trailer back;
	uint8_t block[KVC_TRAILER_BYTES];

	(void)state;
	kvc_trailer_encode(&t, block);
	for (size_t bit = 0; bit < 8 * sizeof(block); bit++) {
		int rc;

		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
		rc = kvc_trailer_decode(block, &back);
		assert_int_equal(rc, bit < 64 ? -ENOMSG : -EBADMSG);
		block[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	assert_int_equal(kvc_trailer_decode(block, &back), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_block_is_what_the_format_says),
		cmocka_unit_test(what_was_encoded_is_decoded),
		cmocka_unit_test(limits_of_name_writer_and_parts),
		cmocka_unit_test(what_this_version_cannot_read_is_told),
		cmocka_unit_test(impossible_fields_are_damage),
		cmocka_unit_test(r08_every_single_flipped_bit_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
