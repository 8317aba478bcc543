/* SPDX-License-Identifier: Apache-2.0 */
/* Segments and files of an index that somebody changed, cut, stretched, swapped or took away. */
#include "suite.h"

#include "support/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One part of 8000 bytes: slots of 8192. */
#define PART_BYTES 8000u
#define SLOT_BYTES 8192u

struct victim {
	struct fixture f;
	struct packed_spot spot; /* of the first page */
};

static const struct pages_params one_part = { .count = 1, .part_bytes = { PART_BYTES } };

static void victim_open(struct victim *victim, size_t count)
{
	struct pages_params params = one_part;

	params.count = count;
	fixture_open_on(&victim->f, suite_open(), &params);
	fixture_store(&victim->f);
	assert_true(packed_spot(victim->f.store, victim->f.pages.pool, victim->f.keys.keys[0], 0,
				&victim->spot));
	assert_int_equal(victim->spot.bytes, SLOT_BYTES);
}

static bool is_there(struct victim *victim, size_t page)
{
	struct packed_spot spot;

	return packed_spot(victim->f.store, victim->f.pages.pool, victim->f.keys.keys[page], 0,
			   &spot);
}

/* Path of another file of the arena. */
static void path_beside(const struct victim *victim, const char *name, char out[PATH_BYTES])
{
	const char *path = victim->spot.path;

	text_make(out, PATH_BYTES, "%.*s/%s", (int)(strrchr(path, '/') - path), path, name);
}

/* R08: a flipped bit anywhere in the payload. */
static void test_flipped_bits_in_a_slot(void **state)
{
	static const uint64_t places[] = { 0, 511, 4096, PART_BYTES - 1 };
	struct kvc_stats before;
	struct victim victim;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		victim_open(&victim, 1);
		packed_spot_flip(&victim.spot, places[i], 0x10);
		before = store_stats(victim.f.store);
		expect_result(fixture_exists_first(&victim.f), KVC_OK, -1);
		expect_result(fixture_get_first(&victim.f), KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
		assert_false(is_there(&victim, 0));
		assert_int_equal(store_stats(victim.f.store).removed_corrupt,
				 before.removed_corrupt + 1);
		expect_result(fixture_get_first(&victim.f), KVC_MISS, -1);
		assert_int_equal(packed_check(victim.f.store), 0);
		fixture_expect_good_again(&victim.f);
		fixture_close(&victim.f);
	}
}

/* What lies behind the payload in its slot is of no interest. */
static void test_padding_is_not_looked_at(void **state)
{
	struct victim victim;

	(void)state;
	victim_open(&victim, 1);
	packed_spot_flip(&victim.spot, PART_BYTES, 0xff);
	packed_spot_flip(&victim.spot, SLOT_BYTES - 1, 0xff);
	expect_result(fixture_get_first(&victim.f), KVC_OK, KVC_CAUSE_NONE);
	fixture_close(&victim.f);
}

/* R08: the contents of two slots exchanged. */
static void test_swapped_slots(void **state)
{
	unsigned char first[SLOT_BYTES], second[SLOT_BYTES];
	struct packed_spot other;
	struct victim victim;

	(void)state;
	victim_open(&victim, 3);
	assert_true(
		packed_spot(victim.f.store, victim.f.pages.pool, victim.f.keys.keys[1], 0, &other));
	packed_spot_read(&victim.spot, 0, first, sizeof(first));
	packed_spot_read(&other, 0, second, sizeof(second));
	packed_spot_write(&victim.spot, 0, second, sizeof(second));
	packed_spot_write(&other, 0, first, sizeof(first));
	assert_int_equal(fixture_get(&victim.f), 1);
	expect_result(victim.f.results[0], KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	expect_result(victim.f.results[1], KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	assert_int_equal(packed_check(victim.f.store), 1);
	fixture_close(&victim.f);
}

/* A sector that was never written, or is that of a former page: what a power cut can leave. */
static void test_sectors_of_the_past(void **state)
{
	static const unsigned char zeros[512];
	static const char *const kinds[] = { "checksum=full", "checksum=sector" };
	unsigned char old[512];
	struct victim victim;

	(void)state;
	for (size_t k = 0; k < 2; k++) {
		for (uint64_t sector = 0; sector < PART_BYTES / 512; sector += 5) {
			suite.setup.settings[0] = kinds[k];
			victim_open(&victim, 1);
			suite.setup.settings[0] = NULL;
			bytes_fill(old, sizeof(old), 77);
			packed_spot_write(&victim.spot, sector * 512, sector % 2 ? old : zeros,
					  512);
			expect_result(fixture_get_first(&victim.f), KVC_CORRUPT,
				      KVC_CAUSE_CHECKSUM);
			fixture_expect_good_again(&victim.f);
			fixture_close(&victim.f);
		}
	}
}

static void test_checksum_kinds_of_slots(void **state)
{
	static const struct {
		const char *setting;
		uint64_t at;
		int status;
	} cases[] = {
		{ "checksum=full", 100, KVC_CORRUPT },
		{ "checksum=sector", 512, KVC_CORRUPT }, /* begin of a sector: covered */
		{ "checksum=none", 100, KVC_OK },	 /* nothing to find it with */
		{ "verify=off", 100, KVC_OK },
	};
	struct kvc_result result;
	struct victim victim;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		suite.setup.settings[0] = cases[i].setting;
		victim_open(&victim, 1);
		suite.setup.settings[0] = NULL;
		expect_result(fixture_get_first(&victim.f), KVC_OK, -1);
		packed_spot_flip(&victim.spot, cases[i].at, 4);
		pages_wipe(&victim.f.pages);
		batch(victim.f.store, &victim.f.pages, KVC_GET, victim.f.keys.keys, 1, 0, &result);
		expect_result(result, cases[i].status, -1);
		fixture_close(&victim.f);
	}
}

/* The kind stands with the object: what was stored with one is read by a store of another. */
static void test_kinds_side_by_side(void **state)
{
	static const char *const kinds[] = { "checksum=full", "checksum=sector", "checksum=none" };
	struct pages_params params = one_part;
	struct fixture f;

	(void)state;
	params.count = 30;
	suite.root = folder_new("kinds");
	suite.setup.roots = suite.root;
	for (size_t k = 0; k < 3; k++) {
		suite.setup.settings[0] = kinds[k];
		fixture_open_on(&f, suite_reopen(), &params);
		suite.setup.settings[0] = NULL;
		assert_int_equal(fixture_get(&f), 10 * k);
		pages_fill_keys(&f.pages, f.keys.keys, 10 * (k + 1));
		batch(f.store, &f.pages, KVC_SET, f.keys.keys, 10 * (k + 1), 0, f.results);
		expect_all(f.results, 10 * (k + 1), KVC_OK);
		assert_int_equal(fixture_get(&f), 10 * (k + 1));
		fixture_close(&f);
	}
}

/* R06: the segment is cut while it is open: pages behind the cut are misses, and the slots can be
 * used again. */
static void run_cut(off_t bytes)
{
	struct victim victim;
	size_t ok;

	victim_open(&victim, 64);
	assert_int_equal(truncate(victim.spot.path, (off_t)victim.spot.place.offset + bytes), 0);
	for (int turn = 0; turn < 2; turn++) {
		ok = fixture_get(&victim.f);
		assert_true(ok < 64);
		for (size_t i = 0; i < 64; i++)
			if (victim.f.results[i].status != KVC_OK)
				expect_result(victim.f.results[i], KVC_MISS, KVC_CAUSE_SHORT);
	}
	(void)fixture_get(&victim.f);
	expect_result(victim.f.results[0], KVC_MISS, KVC_CAUSE_MARKED);
	fixture_store(&victim.f);
	assert_int_equal(fixture_get(&victim.f), 64);
	fixture_close(&victim.f);
}

static void test_cut_segments(void **state)
{
	(void)state;
	run_cut(0);
	run_cut(1);
	run_cut(4096);
	run_cut(PART_BYTES - 1);
}

/* Its number may be another segment's now. */
static bool is_whole_or_gone(const char *path)
{
	struct stat st;

	return stat(path, &st) != 0 || st.st_size == (off_t)(UINT64_C(16) << 20);
}

/* A reopened root takes nothing from a file that is shorter than it should be, gives its space
 * back, and goes on. */
static void test_a_cut_segment_is_not_opened(void **state)
{
	static const char *const files[] = { "seg.1", "hdr.1", "names.1" };
	struct pages_params params = one_part;
	struct victim victim;
	char path[PATH_BYTES];

	(void)state;
	params.count = 20;
	for (size_t i = 0; i < 3; i++) {
		victim_open(&victim, 20);
		fixture_close(&victim.f);
		path_beside(&victim, files[i], path);
		assert_int_equal(truncate(path, 5000), 0);
		fixture_open_on(&victim.f, suite_reopen(), &params);
		/* Names are for tools. */
		assert_int_equal(fixture_get(&victim.f), i == 2 ? 20 : 0);
		fixture_store(&victim.f);
		assert_int_equal(fixture_get(&victim.f), 20);
		assert_int_equal(packed_check(victim.f.store), 20);
		assert_true(i == 2 || is_whole_or_gone(victim.spot.path));
		fixture_close(&victim.f);
	}
}

/* R07 */
static void test_a_segment_that_is_too_long(void **state)
{
	struct pages_params params = one_part;
	struct victim victim;
	struct stat st;

	(void)state;
	params.count = 20;
	victim_open(&victim, 20);
	assert_int_equal(stat(victim.spot.path, &st), 0);
	assert_int_equal(truncate(victim.spot.path, st.st_size + 12345), 0);
	assert_int_equal(fixture_get(&victim.f), 20);
	fixture_close(&victim.f);
	fixture_open_on(&victim.f, suite_reopen(), &params);
	assert_int_equal(fixture_get(&victim.f), 20);
	fixture_close(&victim.f);
}

/* R20: something that is no segment lies in its place. */
static void test_what_is_no_segment(void **state)
{
	struct pages_params params = one_part;
	struct victim victim;

	(void)state;
	params.count = 20;
	for (int kind = 0; kind < 4; kind++) {
		victim_open(&victim, 20);
		fixture_close(&victim.f);
		assert_int_equal(unlink(victim.spot.path), 0);
		if (kind == 1)
			assert_int_equal(mkdir(victim.spot.path, 0700), 0);
		else if (kind == 2)
			assert_int_equal(symlink("/etc/hostname", victim.spot.path), 0);
		else if (kind == 3)
			assert_int_equal(mkfifo(victim.spot.path, 0600), 0);
		fixture_open_on(&victim.f, suite_reopen(), &params);
		assert_int_equal(fixture_get(&victim.f), 0);
		fixture_store(&victim.f);
		assert_int_equal(fixture_get(&victim.f), 20);
		fixture_close(&victim.f);
	}
}

/* The files of the index are cut while they are in use: zeros from then on, no crash, no wrong
 * bytes, and sets go on. */
static void test_an_index_that_is_cut(void **state)
{
	static const char *const files[] = { "hdr.1", "table.1", "names.1" };
	struct pages_params params = one_part;
	struct victim victim;
	char path[PATH_BYTES];

	(void)state;
	packed_guard_begin();
	params.count = 20;
	for (size_t i = 0; i < 3; i++) {
		victim_open(&victim, 20);
		path_beside(&victim, files[i], path);
		assert_int_equal(truncate(path, 0), 0);
		batch(victim.f.store, &victim.f.pages, KVC_EXISTS, victim.f.keys.keys, 20, 0,
		      victim.f.results);
		(void)fixture_get(&victim.f);
		pages_fill_keys(&victim.f.pages, victim.f.keys.keys, 20);
		batch(victim.f.store, &victim.f.pages, KVC_SET, victim.f.keys.keys, 20,
		      KVC_TRANSFER_OVERWRITE, victim.f.results);
		(void)fixture_get(&victim.f);
		batch(victim.f.store, &victim.f.pages, KVC_REMOVE, victim.f.keys.keys, 5, 0,
		      victim.f.results);
		fixture_close(&victim.f);
		/* The next one begins with what is whole. */
		fixture_open_on(&victim.f, suite_reopen(), &params);
		(void)fixture_get(&victim.f);
		fixture_store(&victim.f);
		assert_int_equal(fixture_get(&victim.f), 20);
		fixture_close(&victim.f);
	}
	packed_guard_end();
}

/* verify finds what a get would, and removes it only when told to. */
static void test_verify_finds_damaged_slots(void **state)
{
	size_t counts[KVC_SKIPPED + 1] = { 0 };
	struct victim victim;

	(void)state;
	victim_open(&victim, 6);
	packed_spot_write(&victim.spot, 5, "\x99\x98\x97\x96\x95\x94\x93\x92", 8);
	assert_int_equal(kvc_store_verify(victim.f.store, NULL, 0, verify_count, counts), 0);
	assert_int_equal(counts[KVC_OK], 5);
	assert_int_equal(counts[KVC_CORRUPT], 1);
	assert_true(is_there(&victim, 0));
	assert_int_equal(kvc_store_verify(victim.f.store, NULL, 1, verify_count, counts), 0);
	assert_false(is_there(&victim, 0));
	assert_int_equal(packed_check(victim.f.store), 5);
	fixture_close(&victim.f);
}

struct tests slot_damage_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flipped_bits_in_a_slot),
		cmocka_unit_test(test_padding_is_not_looked_at),
		cmocka_unit_test(test_swapped_slots),
		cmocka_unit_test(test_sectors_of_the_past),
		cmocka_unit_test(test_checksum_kinds_of_slots),
		cmocka_unit_test(test_kinds_side_by_side),
		cmocka_unit_test(test_cut_segments),
		cmocka_unit_test(test_a_cut_segment_is_not_opened),
		cmocka_unit_test(test_a_segment_that_is_too_long),
		cmocka_unit_test(test_what_is_no_segment),
		cmocka_unit_test(test_an_index_that_is_cut),
		cmocka_unit_test(test_verify_finds_damaged_slots),
	};

	return TESTS_OF(tests);
}
