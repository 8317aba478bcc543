/* SPDX-License-Identifier: Apache-2.0 */
/* Files that somebody cut, stretched, changed or swapped: docs/errors.md, line by line. */
#include "suite.h"

#include "core/trailer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A store with one page of one part of 8000 bytes: one object of 12288 bytes in both namings. */
#define PART_BYTES   8000u
#define STORED_BYTES 12288u

struct victim {
	struct fixture f;
	char path[PATH_BYTES];
};

static void victim_open(struct victim *victim, size_t count)
{
	struct pages_params params = { .count = count, .part_bytes = { PART_BYTES } };

	fixture_open_on(&victim->f, suite_open(), &params);
	fixture_store(&victim->f);
	assert_true(page_path(victim->f.pages.pool, victim->f.keys.keys[0], 0, victim->path));
}

static off_t size_of(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? st.st_size : -1;
}

static void patch(const char *path, off_t at, const void *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, data, bytes, at), (ssize_t)bytes);
	assert_int_equal(close(fd), 0);
}

static void flip(const char *path, off_t at, unsigned char bits)
{
	assert_int_equal(size_of(path), STORED_BYTES);
	file_flip(path, at, bits);
}

/* R06: cut by any amount; never OK with what was in the buffer. */
static void run_cut(off_t bytes)
{
	struct victim victim;

	victim_open(&victim, 1);
	assert_int_equal(truncate(victim.path, bytes), 0);
	expect_result(fixture_exists_first(&victim.f), KVC_MISS, -1);
	expect_result(fixture_get_first(&victim.f), KVC_MISS, KVC_CAUSE_SHORT);
	assert_int_equal(file_exists(victim.path), suite.nixl);
	fixture_expect_good_again(&victim.f);
	assert_int_equal(size_of(victim.path), STORED_BYTES);
	fixture_close(&victim.f);
}

static void test_cut_objects(void **state)
{
	(void)state;
	run_cut(0);
	run_cut(1);
	run_cut(512);
	run_cut(4096);
	run_cut(STORED_BYTES / 2);
	run_cut(8192);
	run_cut(STORED_BYTES - 512);
	run_cut(STORED_BYTES - 1);
}

/* A set replaces what is cut without a get before it. */
static void test_set_replaces_a_cut_object(void **state)
{
	struct victim victim;

	(void)state;
	victim_open(&victim, 1);
	assert_int_equal(truncate(victim.path, 4096), 0);
	fixture_expect_good_again(&victim.f);
	fixture_close(&victim.f);
}

/* R07 */
static void test_objects_that_are_too_long(void **state)
{
	static const off_t more[] = { 1, 512, 4096, 1024 * 1024 };
	struct victim victim;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		victim_open(&victim, 1);
		assert_int_equal(truncate(victim.path, (off_t)STORED_BYTES + more[i]), 0);
		expect_result(fixture_exists_first(&victim.f), KVC_MISS, -1);
		fixture_expect_good_again(&victim.f);
		assert_int_equal(size_of(victim.path), STORED_BYTES);
		assert_int_equal(truncate(victim.path, (off_t)STORED_BYTES + more[i]), 0);
		expect_result(fixture_get_first(&victim.f), KVC_MISS, KVC_CAUSE_LONG);
		assert_int_equal(file_exists(victim.path), suite.nixl);
		fixture_expect_good_again(&victim.f);
		fixture_close(&victim.f);
	}
}

/* R08: a flipped bit anywhere in the payload. */
static void test_flipped_bits(void **state)
{
	static const off_t places[] = { 0, 511, 4096, PART_BYTES - 1 };
	struct kvc_stats before;
	struct victim victim;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		victim_open(&victim, 1);
		flip(victim.path, places[i], 0x10);
		before = store_stats(victim.f.store);
		expect_result(fixture_exists_first(&victim.f), KVC_OK, -1);
		expect_result(fixture_get_first(&victim.f), KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
		assert_false(file_exists(victim.path));
		assert_int_equal(store_stats(victim.f.store).removed_corrupt,
				 before.removed_corrupt + 1);
		expect_result(fixture_get_first(&victim.f), KVC_MISS, -1);
		fixture_expect_good_again(&victim.f);
		fixture_close(&victim.f);
	}
}

/* R08: the contents of two pages exchanged. */
static void test_swapped_pages(void **state)
{
	struct victim victim;
	char second[PATH_BYTES];
	char third[2 * PATH_BYTES];

	(void)state;
	victim_open(&victim, 2);
	assert_true(page_path(victim.f.pages.pool, victim.f.keys.keys[1], 0, second));
	(void)snprintf(third, sizeof(third), "%s/away", suite.root);
	assert_int_equal(rename(victim.path, third), 0);
	assert_int_equal(rename(second, victim.path), 0);
	assert_int_equal(rename(third, second), 0);
	assert_int_equal(fixture_get(&victim.f), 0);
	expect_result(victim.f.results[0], KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT);
	expect_result(victim.f.results[1], KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT);
	assert_false(file_exists(victim.path));
	assert_false(file_exists(second));
	fixture_close(&victim.f);
}

/* The payload of one object under the trailer of another. */
static void test_payload_of_another_object(void **state)
{
	unsigned char *data;
	char second[PATH_BYTES];
	struct victim victim;

	(void)state;
	victim_open(&victim, 2);
	assert_true(page_path(victim.f.pages.pool, victim.f.keys.keys[1], 0, second));
	assert_int_equal(file_read(second, &data), STORED_BYTES);
	patch(victim.path, 0, data, 8192);
	free(data);
	expect_result(fixture_get_first(&victim.f), KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	fixture_close(&victim.f);
}

static void test_damaged_trailer(void **state)
{
	static const off_t places[] = { 8, 48, 56, 300, 1000, 3000, 4092 };
	struct victim victim;

	(void)state;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		off_t at = STORED_BYTES - 4096 + places[i];

		victim_open(&victim, 1);
		flip(victim.path, at, 0x01);
		expect_result(fixture_exists_first(&victim.f), KVC_OK, -1);
		expect_result(fixture_get_first(&victim.f), KVC_CORRUPT, KVC_CAUSE_TRAILER);
		assert_false(file_exists(victim.path));
		fixture_close(&victim.f);
	}
}

/* The right size and no trailer at all: some other program's file. */
static void test_foreign_file(void **state)
{
	static const unsigned char zeros[4096];
	struct victim victim;

	(void)state;
	victim_open(&victim, 1);
	patch(victim.path, STORED_BYTES - 4096, zeros, sizeof(zeros));
	expect_result(fixture_exists_first(&victim.f), KVC_OK, -1);
	expect_result(fixture_set_first(&victim.f), KVC_OK, KVC_CAUSE_EXISTED);
	expect_result(fixture_get_first(&victim.f), KVC_MISS, KVC_CAUSE_FOREIGN);
	assert_int_equal(file_exists(victim.path), suite.nixl);
	fixture_close(&victim.f);
}

/* A trailer of a later format: a miss, and kept. */
static void run_version(uint16_t major, uint32_t incompat)
{
	uint8_t block[KVC_TRAILER_BYTES];
	struct kvc_trailer trailer;
	unsigned char *data;
	struct victim victim;

	victim_open(&victim, 1);
	assert_int_equal(file_read(victim.path, &data), STORED_BYTES);
	assert_int_equal(kvc_trailer_decode(data + STORED_BYTES - 4096, &trailer), 0);
	trailer.major = major;
	trailer.incompat = incompat;
	kvc_trailer_encode(&trailer, block);
	free(data);
	patch(victim.path, STORED_BYTES - 4096, block, sizeof(block));
	expect_result(fixture_exists_first(&victim.f), KVC_OK, -1);
	expect_result(fixture_get_first(&victim.f), KVC_MISS, KVC_CAUSE_VERSION);
	assert_int_equal(size_of(victim.path), STORED_BYTES);
	fixture_close(&victim.f);
}

static void test_trailer_of_another_version(void **state)
{
	(void)state;
	run_version(2, 0);
	run_version(1, 0x80);
}

static void test_what_is_no_file(void **state)
{
	struct victim victim;

	(void)state;
	for (int kind = 0; kind < 3; kind++) {
		struct kvc_result result;

		victim_open(&victim, 1);
		assert_int_equal(unlink(victim.path), 0);
		if (kind == 0)
			assert_int_equal(mkdir(victim.path, 0700), 0);
		else if (kind == 1)
			assert_int_equal(symlink("/etc/hostname", victim.path), 0);
		else
			assert_int_equal(mkfifo(victim.path, 0600), 0);
		expect_result(fixture_exists_first(&victim.f), KVC_MISS, -1);
		expect_result(fixture_get_first(&victim.f), KVC_MISS, KVC_CAUSE_FOREIGN);
		assert_true(file_exists(victim.path));
		result = fixture_set_first(&victim.f);
		assert_int_equal(result.status, KVC_ERROR);
		assert_true(file_exists(victim.path));
		fixture_close(&victim.f);
	}
}

/* R20: a page that cannot be written, since a folder is in its place; R08 of a whole batch. */
static void test_one_bad_name_in_a_batch(void **state)
{
	struct victim victim;
	char path[PATH_BYTES];

	(void)state;
	victim_open(&victim, 128);
	assert_true(page_path(victim.f.pages.pool, victim.f.keys.keys[100], 0, path));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	pages_fill_keys(&victim.f.pages, victim.f.keys.keys, 128);
	batch(victim.f.store, &victim.f.pages, KVC_SET, victim.f.keys.keys, 128,
	      KVC_TRANSFER_OVERWRITE, victim.f.results);
	assert_int_equal(count_status(victim.f.results, 128, KVC_OK), 127);
	expect_result(victim.f.results[100], KVC_ERROR, -1);
	assert_int_equal(fixture_get(&victim.f), 127);
	expect_result(victim.f.results[100], KVC_MISS, KVC_CAUSE_FOREIGN);
	fixture_close(&victim.f);
}

/* A file of HiCacheNixl: the payload and nothing else. */
static void test_bare_files(void **state)
{
	static const char *const policies[] = { "verify=require", "verify=if-present",
						"verify=off" };
	struct victim victim;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		suite.setup.settings[0] = policies[i];
		victim_open(&victim, 1);
		assert_int_equal(truncate(victim.path, PART_BYTES), 0);
		if (i == 1) {
			expect_result(fixture_exists_first(&victim.f), KVC_OK, -1);
			expect_result(fixture_get_first(&victim.f), KVC_OK, -1);
			expect_result(fixture_set_first(&victim.f), KVC_OK, KVC_CAUSE_EXISTED);
			assert_int_equal(size_of(victim.path), PART_BYTES);
		} else {
			expect_result(fixture_exists_first(&victim.f), KVC_MISS, -1);
			expect_result(fixture_set_first(&victim.f), KVC_OK, KVC_CAUSE_NONE);
			assert_int_equal(size_of(victim.path), STORED_BYTES);
		}
		fixture_close(&victim.f);
	}
	suite.setup.settings[0] = NULL;
}

/* if-present still refuses what a trailer proves wrong. */
static void test_if_present_checks_what_is_there(void **state)
{
	struct victim victim;

	(void)state;
	suite.setup.settings[0] = "verify=if-present";
	victim_open(&victim, 1);
	flip(victim.path, 77, 2);
	expect_result(fixture_get_first(&victim.f), KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	fixture_close(&victim.f);
	suite.setup.settings[0] = NULL;
}

static void test_checksum_kinds(void **state)
{
	static const struct {
		const char *setting;
		off_t at;
		int status;
	} cases[] = {
		{ "checksum=full", 100, KVC_CORRUPT },
		{ "checksum=sector", 512, KVC_CORRUPT }, /* begin of a sector: covered */
		{ "checksum=none", 100, KVC_OK },	 /* nothing to find it with */
	};
	struct victim victim;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct kvc_result result;

		suite.setup.settings[0] = cases[i].setting;
		victim_open(&victim, 1);
		expect_result(fixture_get_first(&victim.f), KVC_OK, -1);
		flip(victim.path, cases[i].at, 4);
		pages_wipe(&victim.f.pages);
		batch(victim.f.store, &victim.f.pages, KVC_GET, victim.f.keys.keys, 1, 0, &result);
		expect_result(result, cases[i].status, -1);
		fixture_close(&victim.f);
	}
	suite.setup.settings[0] = NULL;
}

/* verify finds what a get would, and removes it only when told to. */
static void test_verify_finds_damage(void **state)
{
	size_t counts[KVC_SKIPPED + 1] = { 0 };
	struct victim victim;

	(void)state;
	victim_open(&victim, 6);
	patch(victim.path, 5, "\x99\x98\x97\x96\x95\x94\x93\x92", 8);
	assert_int_equal(kvc_store_verify(victim.f.store, NULL, 0, verify_count, counts), 0);
	assert_int_equal(counts[KVC_OK], 5);
	assert_int_equal(counts[KVC_CORRUPT], 1);
	assert_true(file_exists(victim.path));
	assert_int_equal(kvc_store_verify(victim.f.store, NULL, 1, verify_count, counts), 0);
	assert_false(file_exists(victim.path));
	fixture_close(&victim.f);
}

struct tests damage_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut_objects),
		cmocka_unit_test(test_set_replaces_a_cut_object),
		cmocka_unit_test(test_objects_that_are_too_long),
		cmocka_unit_test(test_flipped_bits),
		cmocka_unit_test(test_swapped_pages),
		cmocka_unit_test(test_payload_of_another_object),
		cmocka_unit_test(test_damaged_trailer),
		cmocka_unit_test(test_foreign_file),
		cmocka_unit_test(test_trailer_of_another_version),
		cmocka_unit_test(test_what_is_no_file),
		cmocka_unit_test(test_one_bad_name_in_a_batch),
		cmocka_unit_test(test_bare_files),
		cmocka_unit_test(test_if_present_checks_what_is_there),
		cmocka_unit_test(test_checksum_kinds),
		cmocka_unit_test(test_verify_finds_damage),
	};

	return TESTS_OF(tests);
}
