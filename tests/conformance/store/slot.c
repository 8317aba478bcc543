/* SPDX-License-Identifier: Apache-2.0 */
/* What is particular to pages in slots: eviction instead of FULL, what a set leaves when it
 * fails. */
#include "suite.h"

#include "support/packed.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITY (UINT64_C(4) << 20)

static void small_open(struct fixture *f, const struct pages_params *params)
{
	suite.setup.settings[0] = "capacity=4MiB";
	fixture_open_on(f, suite_open(), params);
	suite.setup.settings[0] = NULL;
}

static void store_range(struct fixture *f, size_t from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		pages_fill(&f->pages, i, key_content(f->keys.keys[from + i]));
	batch_at(f->store, &f->pages, KVC_SET, f->keys.keys + from, NULL, count, 0, 0,
		 f->results + from);
	expect_all(f->results + from, count, KVC_OK);
}

/* Gets a range into pages 0..; what is OK has the right bytes. */
static size_t get_range(struct fixture *f, size_t from, size_t count)
{
	size_t ok = 0;

	pages_wipe(&f->pages);
	batch_at(f->store, &f->pages, KVC_GET, f->keys.keys + from, NULL, count, 0, 0,
		 f->results + from);
	for (size_t i = 0; i < count; i++) {
		if (f->results[from + i].status != KVC_OK) {
			expect_result(f->results[from + i], KVC_MISS, -1);
			continue;
		}
		assert_true(pages_match(&f->pages, i, key_content(f->keys.keys[from + i])));
		ok++;
	}
	return ok;
}

/* Eight times the capacity: each set is OK, the newest pages stay, and so do those that are read
 * again and again. */
static void test_a_full_root_evicts(void **state)
{
	struct pages_params params = { .count = 2048, .part_bytes = { 16384 } };
	struct kvc_packed_health health;
	struct kvc_stats stats;
	struct fixture f;

	(void)state;
	small_open(&f, &params);
	for (size_t at = 0; at < 2048; at += 16) {
		store_range(&f, at, 16);
		assert_int_equal(get_range(&f, at, 16), 16);
		assert_int_equal(get_range(&f, 0, 16), 16);
		health = packed_health(f.store);
		assert_true(health.segment_bytes <= CAPACITY);
	}
	assert_true(health.evicted >= 2048 - CAPACITY / 16384);
	stats = store_stats(f.store);
	assert_true(stats.evicted >= 2048 - CAPACITY / 16384);
	assert_int_equal(stats.evicted_bytes, stats.evicted * 16384);
	assert_true(get_range(&f, 2048 - 64, 64) == 64);
	assert_int_equal(store_stats(f.store).ghost_hits, 0);
	assert_true(get_range(&f, 16, 256) < 256);
	assert_true(packed_check(f.store) <= CAPACITY / 16384);
	fixture_close(&f);
}

/* Whoever asks for what was evicted not long ago says that the capacity is too small; asking for
 * what never was says nothing. */
static void test_asking_for_what_was_evicted_is_counted(void **state)
{
	struct pages_params params = { .count = 1024, .part_bytes = { 16384 } };
	struct kvc_transfer transfer;
	struct fixture f;
	uint64_t misses, hits, more;

	(void)state;
	small_open(&f, &params);
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 64, 0, f.results);
	assert_int_equal(store_stats(f.store).ghost_hits, 0);
	for (size_t at = 0; at < 1024; at += 16)
		store_range(&f, at, 16);
	misses = 64 - get_range(&f, 256, 64);
	assert_true(misses > 32);
	/* Where the size of the device is not known the list is short. */
	hits = store_stats(f.store).ghost_hits;
	assert_true(hits > 0 && hits <= misses);
	/* Found through the index alone. */
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys + 256, 64, 0, f.results);
	more = store_stats(f.store).ghost_hits;
	/* The keeper may have evicted one or the other meanwhile. */
	assert_true(more > hits && more <= hits + 64);
	/* A lookup of a prefix asks up to the first miss. */
	transfer = transfer_of(&f.pages, KVC_EXISTS, f.keys.keys + 256, 64, NULL, f.results);
	transfer.flags = KVC_TRANSFER_STOP_AT_MISS;
	assert_int_equal(kvc_batch_run(f.store, &transfer, 1), 0);
	assert_true(store_stats(f.store).ghost_hits <= more + 1);
	fixture_close(&f);
}

/* Pages of another size take the place of those that nobody wants any more. */
static void test_sizes_share_the_capacity(void **state)
{
	struct pages_params params = { .count = 512, .part_bytes = { 16384 } };
	struct pages_params other = { .name = "other", .count = 64, .part_bytes = { 40000 } };
	struct kvc_result results[64];
	struct pages pages;
	struct fixture f;

	(void)state;
	small_open(&f, &params);
	for (size_t at = 0; at < 512; at += 64)
		store_range(&f, at, 64);
	pages_open(&pages, f.ns, &other);
	for (int turn = 0; turn < 4; turn++) {
		pages_fill_keys(&pages, f.keys.keys, 64);
		batch(f.store, &pages, KVC_SET, f.keys.keys, 64, KVC_TRANSFER_OVERWRITE, results);
		expect_all(results, 64, KVC_OK);
		assert_true(packed_health(f.store).segment_bytes <= CAPACITY);
	}
	pages_wipe(&pages);
	batch(f.store, &pages, KVC_GET, f.keys.keys, 64, 0, results);
	for (size_t i = 0; i < 64; i++)
		if (results[i].status == KVC_OK)
			assert_true(pages_match(&pages, i, key_content(f.keys.keys[i])));
	/* It got more than one segment. */
	assert_true(count_status(results, 64, KVC_OK) > CAPACITY / 16 / 40960);
	(void)get_range(&f, 448, 64);
	(void)packed_check(f.store);
	pages_close(&pages);
	fixture_close(&f);
}

/* More pages in one call than the root can hold: those that are stored make room for the rest. */
static void test_one_call_larger_than_the_root(void **state)
{
	struct pages_params params = { .count = 256, .part_bytes = { 65536 } };
	struct fixture f;

	(void)state;
	small_open(&f, &params);
	for (int turn = 0; turn < 3; turn++) {
		pages_fill_keys(&f.pages, f.keys.keys, 256);
		batch(f.store, &f.pages, KVC_SET, f.keys.keys, 256, KVC_TRANSFER_OVERWRITE,
		      f.results);
		expect_all(f.results, 256, KVC_OK);
		assert_true(packed_health(f.store).segment_bytes <= CAPACITY);
	}
	assert_in_range(fixture_get(&f), 1, CAPACITY / 65536);
	(void)packed_check(f.store);
	fixture_close(&f);
}

/* One of several threads that fill a root with pages of a size of their own. */
struct filler {
	struct fixture *f;
	struct pages pages;
	struct kvc_result *results;
	size_t full;
	size_t failed;
};

#define FILLER_PAGES  48u
#define FILLER_ROUNDS 30

static void *fill(void *context)
{
	struct filler *filler = context;
	struct fixture *f = filler->f;

	for (size_t round = 0; round < FILLER_ROUNDS; round++) {
		const struct kvc_key *keys = f->keys.keys + round % 8 * FILLER_PAGES;

		pages_fill_keys(&filler->pages, keys, FILLER_PAGES);
		batch(f->store, &filler->pages, KVC_SET, keys, FILLER_PAGES, 0, filler->results);
		filler->full += count_status(filler->results, FILLER_PAGES, KVC_FULL);
		filler->failed +=
			FILLER_PAGES - count_status(filler->results, FILLER_PAGES, KVC_OK);
	}
	return NULL;
}

/* Each has to take segments of the others, which are being written just then. */
static void test_sizes_at_the_same_time(void **state)
{
	static const uint64_t sizes[] = { 16384, 40000, 24576 };
	struct pages_params params = { .count = 8 * FILLER_PAGES, .part_bytes = { 4096 } };
	struct filler fillers[3];
	pthread_t threads[3];
	struct fixture f;

	(void)state;
	small_open(&f, &params);
	for (size_t i = 0; i < 3; i++) {
		struct pages_params own = { .count = FILLER_PAGES, .part_bytes = { sizes[i] } };
		char name[16];

		text_make(name, sizeof(name), "filler-%zu", i);
		own.name = name;
		fillers[i] = (struct filler){ .f = &f };
		fillers[i].results = calloc(FILLER_PAGES, sizeof(struct kvc_result));
		assert_non_null(fillers[i].results);
		pages_open(&fillers[i].pages, f.ns, &own);
	}
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, fill, &fillers[i]), 0);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(fillers[i].full, 0);
		assert_int_equal(fillers[i].failed, 0);
		pages_close(&fillers[i].pages);
		free(fillers[i].results);
	}
	assert_true(packed_health(f.store).segment_bytes <= CAPACITY);
	(void)packed_check(f.store);
	fixture_close(&f);
}

/* Nothing that could be evicted would make room for it, so nothing is. */
static void test_what_never_fits_is_full(void **state)
{
	struct pages_params params = { .count = 64, .part_bytes = { 16384 } };
	struct pages_params large = { .name = "large", .count = 1, .part_bytes = { 5 << 20 } };
	struct pages pages;
	struct fixture f;

	(void)state;
	small_open(&f, &params);
	store_range(&f, 0, 64);
	pages_open(&pages, f.ns, &large);
	for (int turn = 0; turn < 3; turn++) {
		expect_result(do_set(f.store, &pages, f.keys.keys[0], 0), KVC_FULL, -1);
		expect_result(do_exists(f.store, &pages, f.keys.keys[0]), KVC_MISS,
			      KVC_CAUSE_ABSENT);
		expect_result(do_get(f.store, &pages, f.keys.keys[0]), KVC_MISS, KVC_CAUSE_ABSENT);
		assert_true(packed_health(f.store).segment_bytes <= CAPACITY);
		sleep_ms(120); /* it is not tried again and again */
	}
	assert_int_equal(get_range(&f, 0, 64), 64);
	pages_close(&pages);
	fixture_close(&f);
}

/* Overwriting and removing give back what they took. */
static void test_no_slot_is_lost(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, 100, 3000);
	for (int turn = 0; turn < 20; turn++) {
		pages_fill_keys(&f.pages, f.keys.keys, 100);
		batch(f.store, &f.pages, KVC_SET, f.keys.keys, 100,
		      turn % 2 ? KVC_TRANSFER_OVERWRITE : 0, f.results);
		expect_all(f.results, 100, KVC_OK);
		assert_int_equal(packed_check(f.store), 100);
		batch(f.store, &f.pages, KVC_REMOVE, f.keys.keys, 50, 0, f.results);
		expect_all(f.results, 50, KVC_OK);
		assert_int_equal(packed_check(f.store), 50);
		assert_int_equal(fixture_get(&f), 50);
	}
	fixture_close(&f);
}

/* One call that stores a page twice keeps one of the two. */
static void test_a_page_twice_in_one_call(void **state)
{
	struct kvc_key keys[32];
	struct fixture f;

	(void)state;
	fixture_open(&f, 32, 3000);
	for (size_t i = 0; i < 32; i++)
		keys[i] = f.keys.keys[i % 4];
	pages_fill_keys(&f.pages, keys, 32);
	for (int turn = 0; turn < 10; turn++) {
		batch(f.store, &f.pages, KVC_SET, keys, 32, turn % 2 ? KVC_TRANSFER_OVERWRITE : 0,
		      f.results);
		expect_all(f.results, 32, KVC_OK);
		assert_int_equal(packed_check(f.store), 4);
	}
	assert_int_equal(fixture_get(&f), 4);
	fixture_close(&f);
}

/* A set that is refused gives its slot back, whatever it was refused with. */
static void test_a_failed_set_leaves_no_slot(void **state)
{
	static const char *const rules[] = {
		"write error=EIO after=2 every=3",
		"write error=ENOSPC after=2 every=3",
		"write error=EFAULT after=2",
		"write short=4096 after=2 every=2",
		"submit eagain every=2; write error=EDQUOT after=2 every=2",
	};
	struct fixture f;

	(void)state;
	if (strcmp(suite.setup.plugin, "fault") != 0)
		return;
	for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++) {
		size_t ok;

		suite.setup.rules = rules[r];
		suite.setup.flags = KVC_OPEN_NO_SELFTEST;
		fixture_open(&f, 60, 5000);
		suite.setup.rules = NULL;
		suite.setup.flags = 0;
		pages_fill_keys(&f.pages, f.keys.keys, 60);
		batch(f.store, &f.pages, KVC_SET, f.keys.keys, 60, 0, f.results);
		ok = count_status(f.results, 60, KVC_OK);
		assert_true(ok < 60);
		assert_int_equal(packed_check(f.store), ok);
		batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 60, 0, f.results);
		assert_int_equal(count_status(f.results, 60, KVC_OK), ok);
		assert_int_equal(fixture_get(&f), ok);
		fixture_close(&f);
	}
}

/* What a read brings that is not what was stored is never OK. */
static void test_reads_that_lie(void **state)
{
	static const struct {
		const char *rule;
		int status;
		int cause;
	} cases[] = {
		{ "read corrupt after=1", KVC_CORRUPT, KVC_CAUSE_CHECKSUM },
		{ "read short=4096 after=1", KVC_MISS, KVC_CAUSE_SHORT },
		{ "read error=EIO after=1", KVC_ERROR, KVC_CAUSE_IO },
		{ "read error=EACCES after=1", KVC_DENIED, KVC_CAUSE_PERMISSION },
		{ "read error=ENOENT after=1", KVC_MISS, -1 },
	};
	struct fixture f;

	(void)state;
	if (strcmp(suite.setup.plugin, "fault") != 0)
		return;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		suite.setup.rules = cases[c].rule;
		suite.setup.flags = KVC_OPEN_NO_SELFTEST;
		fixture_open(&f, 10, 4096); /* no padding, where a wrong bit would not matter */
		suite.setup.rules = NULL;
		suite.setup.flags = 0;
		fixture_store(&f);
		assert_true(fixture_get(&f) <= 1);
		for (size_t i = 1; i < 10; i++)
			expect_result(f.results[i], cases[c].status, cases[c].cause);
		/* Only what is proven wrong goes. */
		assert_true(packed_check(f.store) == 10 || cases[c].status == KVC_CORRUPT);
		assert_true(packed_check(f.store) <= 1 || cases[c].status != KVC_CORRUPT);
		fixture_close(&f);
	}
}

/* Single objects and markers lie beside the slots, in files: the capacity is that of both. */
static void test_files_beside_the_slots(void **state)
{
	struct pages_params params = { .count = 256, .part_bytes = { 16384 } };
	static unsigned char data[50000];
	uint64_t end;
	struct fixture f;

	(void)state;
	small_open(&f, &params);
	for (size_t at = 0; at < 256; at += 64)
		store_range(&f, at, 64);
	for (unsigned i = 0; i < 4; i++) {
		char name[16];

		text_make(name, sizeof(name), "side-%u", i);
		bytes_fill(data, sizeof(data), i);
		assert_int_equal(
			kvc_object_put(f.ns, "side", key_of(name), data, sizeof(data), 0, 0), 0);
	}
	/* Segments go for it. */
	end = now_ms() + 20000;
	while (packed_health(f.store).segment_bytes + 4 * 57344 > CAPACITY && now_ms() < end)
		sleep_ms(20);
	assert_true(packed_health(f.store).segment_bytes + 4 * 57344 <= CAPACITY);
	for (size_t at = 0; at < 256; at += 64)
		store_range(&f, at, 64);
	assert_true(packed_health(f.store).segment_bytes + 4 * 57344 <= CAPACITY);
	(void)packed_check(f.store);
	fixture_close(&f);
}

/* Many namespaces: each has its own slots, and none finds those of another. */
static void test_namespaces_have_their_own_slots(void **state)
{
	struct kvc_store *store = suite_open();
	struct kvc_result results[3];
	struct keys keys;

	(void)state;
	keys_make(&keys, "shared", 3);
	for (int turn = 0; turn < 2; turn++) {
		for (unsigned i = 0; i < 12; i++) {
			struct kvc_namespace_params params = namespace_params("slots");
			struct kvc_namespace *ns;
			struct pages pages;
			char tenant[16];

			text_make(tenant, sizeof(tenant), "tenant-%u", i);
			params.tenant = tenant;
			ns = namespace_must_open(store, &params);
			pages_open_simple(&pages, ns, 3, 4000);
			for (size_t p = 0; p < 3; p++)
				pages_fill(&pages, p, 1000 * i + p);
			if (turn == 0) {
				batch(store, &pages, KVC_EXISTS, keys.keys, 3, 0, results);
				expect_all(results, 3, KVC_MISS);
				batch(store, &pages, KVC_SET, keys.keys, 3, 0, results);
				expect_all(results, 3, KVC_OK);
			}
			pages_wipe(&pages);
			batch(store, &pages, KVC_GET, keys.keys, 3, 0, results);
			expect_all(results, 3, KVC_OK);
			for (size_t p = 0; p < 3; p++)
				assert_true(pages_match(&pages, p, 1000 * i + p));
			pages_close(&pages);
			assert_int_equal(kvc_namespace_close(ns), 0);
		}
	}
	assert_int_equal(packed_check(store), 36);
	store_must_close(store);
	keys_free(&keys);
}

struct tests slot_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_full_root_evicts),
		cmocka_unit_test(test_asking_for_what_was_evicted_is_counted),
		cmocka_unit_test(test_sizes_share_the_capacity),
		cmocka_unit_test(test_one_call_larger_than_the_root),
		cmocka_unit_test(test_sizes_at_the_same_time),
		cmocka_unit_test(test_what_never_fits_is_full),
		cmocka_unit_test(test_no_slot_is_lost),
		cmocka_unit_test(test_a_page_twice_in_one_call),
		cmocka_unit_test(test_a_failed_set_leaves_no_slot),
		cmocka_unit_test(test_reads_that_lie),
		cmocka_unit_test(test_files_beside_the_slots),
		cmocka_unit_test(test_namespaces_have_their_own_slots),
	};

	return TESTS_OF(tests);
}
