/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hash.h"
#include "core/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

enum {
	ROOTS_MAX = 9,
	GROUPS = 20000
};

static uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static void make_uuids(uint8_t (*out)[16], size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < 16; j++)
			out[i][j] = (uint8_t)next_random(&seed);
}

static void nixl_routes_are_those_of_the_vectors(void **state)
{
	json_error_t error;
	json_t *json = json_load_file(KVC_TEST_SOURCE_DIR "/vectors/hicachenixl.json", 0, &error);
	json_t *row;
	size_t i;

	(void)state;
	assert_non_null(json);
	json_array_foreach(json_object_get(json, "routing"), i, row)
	{
		const char *name = json_string_value(json_object_get(row, "name"));
		const char *hash = json_string_value(json_object_get(row, "hash64"));
		size_t disks = (size_t)json_integer_value(json_object_get(row, "disks"));
		uint64_t h = kvc_blake2b_64(name, strlen(name));
		char folder[3];

		assert_int_equal(h, strtoull(hash, NULL, 16));
		assert_int_equal(kvc_route_nixl(disks, h),
				 json_integer_value(json_object_get(row, "disk")));
		kvc_route_folder(h, folder);
		assert_string_equal(folder, json_string_value(json_object_get(row, "bucket")));
	}
	assert_int_equal(i, 240);
	json_decref(json);
}

/*
 * python3 -c '
 * from hashlib import blake2b as B; from struct import pack as P
 * u=[bytes([i])*16 for i in range(5)]
 * S=lambda i,g:int.from_bytes(B(u[i]+P("<Q",g),digest_size=8).digest(),"big")
 * G=0,1,2,3,255,1<<63,2**64-1,0x0123456789abcdef
 * print([max(range(5),key=lambda i:(S(i,g),u[i])) for g in G])'
 */
static void rendezvous_takes_the_highest_score(void **state)
{
	static const uint64_t groups[] = {
		0, 1, 2, 3, 255, UINT64_C(1) << 63, UINT64_MAX, UINT64_C(0x0123456789abcdef)
	};
	static const size_t expected[] = { 4, 1, 3, 1, 2, 2, 1, 1 };
	uint8_t uuids[5][16];

	(void)state;
	for (size_t i = 0; i < 5; i++)
		memset(uuids[i], (int)i, 16);
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
		assert_int_equal(kvc_route_rendezvous(uuids, 5, groups[i]), expected[i]);
}

static void order_of_roots_moves_nothing(void **state)
{
	uint8_t uuids[ROOTS_MAX][16], shuffled[ROOTS_MAX][16];
	uint64_t seed = 99;

	(void)state;
	make_uuids(uuids, ROOTS_MAX, 7);
	for (size_t round = 0; round < 2000; round++) {
		uint64_t g = next_random(&seed);
		size_t a, b;

		memcpy(shuffled, uuids, sizeof(uuids));
		for (size_t i = ROOTS_MAX - 1; i > 0; i--) {
			size_t j = next_random(&seed) % (i + 1);
			uint8_t tmp[16];

			memcpy(tmp, shuffled[i], 16);
			memcpy(shuffled[i], shuffled[j], 16);
			memcpy(shuffled[j], tmp, 16);
		}
		a = kvc_route_rendezvous(uuids, ROOTS_MAX, g);
		b = kvc_route_rendezvous(shuffled, ROOTS_MAX, g);
		assert_memory_equal(uuids[a], shuffled[b], 16);
	}
}

/* What moves goes to the new root, and it is about 1/n (5 standard deviations). */
static void adding_a_root_moves_its_share_only(void **state)
{
	uint8_t uuids[ROOTS_MAX][16];

	(void)state;
	make_uuids(uuids, ROOTS_MAX, 1234);
	for (size_t n = 2; n <= ROOTS_MAX; n++) {
		uint64_t seed = 5;
		double moved = 0, mean = (double)GROUPS / (double)n;
		double variance = mean * (1 - 1 / (double)n);

		for (size_t i = 0; i < GROUPS; i++) {
			uint64_t g = next_random(&seed);
			size_t before = kvc_route_rendezvous(uuids, n - 1, g);
			size_t after = kvc_route_rendezvous(uuids, n, g);

			assert_true(after == before || after == n - 1);
			moved += after != before;
		}
		assert_true((moved - mean) * (moved - mean) < 25 * variance);
	}
}

static void a_single_root_takes_all(void **state)
{
	static const uint8_t uuid[1][16] = { { 0 } };
	char folder[3];

	(void)state;
	assert_int_equal(kvc_route_rendezvous(uuid, 1, 42), 0);
	assert_int_equal(kvc_route_nixl(1, UINT64_MAX), 0);
	assert_int_equal(kvc_route_nixl(0, UINT64_MAX), 0);
	kvc_route_folder(UINT64_C(0x12345678000000a0), folder);
	assert_string_equal(folder, "a0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nixl_routes_are_those_of_the_vectors),
		cmocka_unit_test(rendezvous_takes_the_highest_score),
		cmocka_unit_test(order_of_roots_moves_nothing),
		cmocka_unit_test(adding_a_root_moves_its_share_only),
		cmocka_unit_test(a_single_root_takes_all),
	};

	return cmocka_run_group_tests_name("route", tests, NULL, NULL);
}
