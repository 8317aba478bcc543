/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of a key in a packed root: of an overwrite that is cut short, and after a power cut. */
#include "packed_store.h"

static struct kvc_result set_version(struct fix *fix, struct kvc_key key, uint64_t version,
				     uint32_t flags)
{
	struct kvc_result result;

	bytes_fill(fix->pages.part_base[0], PAGE, version);
	batch(fix->store, &fix->pages, KVC_SET, &key, 1, flags, &result);
	return result;
}

/* 0: none. */
static uint64_t get_version(struct fix *fix, struct kvc_key key)
{
	const unsigned char *page = fix->pages.part_base[0];
	unsigned char made[PAGE];
	struct kvc_result result;

	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, &key, 1, 0, &result);
	if (result.status == KVC_MISS)
		return 0;
	expect_result(result, KVC_OK, -1);
	for (uint64_t version = 1; version <= 3; version++) {
		bytes_fill(made, PAGE, version);
		if (memcmp(made, page, PAGE) == 0)
			return version;
	}
	fail_msg("a page that nobody stored");
	return 0;
}

static int overwrite_with_2(void *context)
{
	const struct opening *opening = context;
	const struct setting setting = { .rules = opening->rules };
	struct fix fix;

	fix_open(&fix, opening->root, &setting);
	(void)set_version(&fix, key_of("the key"), 2, KVC_TRANSFER_OVERWRITE);
	return 1;
}

static void overwrite_dies_at(const char *step, bool looked_after)
{
	char rules[128];
	struct opening opening = { folder_new("overwrite"), rules };
	struct keys keys;
	struct fix fix;
	uint64_t version;

	text_make(rules, sizeof(rules), "step kill=%s", step);
	fix_open(&fix, opening.root, NULL);
	expect_result(set_version(&fix, key_of("the key"), 1, 0), KVC_OK, -1);
	fix_close(&fix);
	assert_int_equal(run_child(overwrite_with_2, &opening), 0);

	fix_open(&fix, opening.root, NULL);
	if (looked_after) {
		end_keeper(packed_of(fix.store, 0));
		(void)kvc_packed_recover_dead(packed_of(fix.store, 0));
	}
	version = get_version(&fix, key_of("the key"));
	(void)printf("killed at %s: version %llu is there\n", step, (unsigned long long)version);
	expect_result(set_version(&fix, key_of("the key"), 3, KVC_TRANSFER_OVERWRITE), KVC_OK, -1);
	assert_int_equal(get_version(&fix, key_of("the key")), 3);
	/* Tables are made again, from what is live. */
	keys_make(&keys, "growth", 3000);
	for (size_t i = 0; i < 3000; i += BATCH) {
		struct kvc_result results[BATCH];

		pages_fill_keys(&fix.pages, keys.keys + i, BATCH);
		batch(fix.store, &fix.pages, KVC_SET, keys.keys + i, BATCH, 0, results);
		assert_int_equal(get_version(&fix, key_of("the key")), 3);
	}
	keys_free(&keys);
	fix_close(&fix);
	reboot(opening.root);
	fix_open(&fix, opening.root, NULL);
	assert_int_equal(get_version(&fix, key_of("the key")), 3);
	fix_close(&fix);
}

static void test_an_overwrite_cut_short_brings_nothing_back(void **state)
{
	static const char *const steps[] = { "packed.set.live", "packed.set.replaced",
					     "packed.set.inserted", "packed.set.settled" };

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		overwrite_dies_at(steps[i], false);
		overwrite_dies_at(steps[i], true);
	}
}

/* The header of a slot as a power cut leaves it. */
struct former {
	uint32_t segment;
	uint64_t at; /* in hdr.<segment> */
	unsigned char bytes[sizeof(struct kvc_packed_slot)];
};

static void former_note(struct fix *fix, struct kvc_key key, struct former *out)
{
	const struct kvc_packed_segment *segment;
	struct packed_spot spot;
	const void *header;

	assert_true(packed_spot(fix->store, fix->pages.pool, key, 0, &spot));
	segment = spot.place.segment;
	header = &segment->headers[kvc_packed_ref_slot(spot.place.ref)];
	out->segment = segment->number;
	out->at = (uint64_t)((const char *)header - (const char *)segment->map.memory);
	memcpy(out->bytes, header, sizeof(out->bytes));
}

/* False: another object has the slot by now. */
static bool former_put_back(const char *root, const struct former *former)
{
	struct kvc_packed_slot now;
	char path[PATH_BYTES], name[32];
	bool is_free;
	int fd;

	text_make(name, sizeof(name), "hdr.%u", former->segment);
	file_path(root, name, path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &now, sizeof(now), (off_t)former->at), sizeof(now));
	is_free = kvc_packed_st(atomic_load(&now.state)) == KVC_PACKED_FREE;
	if (is_free)
		assert_int_equal(pwrite(fd, former->bytes, sizeof(former->bytes),
					(off_t)former->at),
				 sizeof(former->bytes));
	(void)close(fd);
	return is_free;
}

/* lower: the newer one gets a slot before that of the former. */
static void two_versions(bool lower)
{
	static const struct setting durable = { .more = "durability=fdatasync" };
	const char *root = folder_new("newer");
	struct former former, newer;
	struct fix fix;

	fix_open(&fix, root, &durable);
	expect_result(set_version(&fix, key_of("before it"), 3, 0), KVC_OK, -1);
	expect_result(set_version(&fix, key_of("the key"), 1, 0), KVC_OK, -1);
	if (lower)
		expect_result(do_remove(fix.store, &fix.pages, key_of("before it")), KVC_OK, -1);
	former_note(&fix, key_of("the key"), &former);
	expect_result(set_version(&fix, key_of("the key"), 2, KVC_TRANSFER_OVERWRITE), KVC_OK, -1);
	former_note(&fix, key_of("the key"), &newer);
	assert_int_equal(newer.segment, former.segment);
	assert_int_equal(newer.at < former.at, lower);
	fix_close(&fix);
	assert_true(former_put_back(root, &former));
	reboot(root);
	fix_open(&fix, root, &durable);
	assert_int_equal(packed_check(fix.store), lower ? 1 : 2);
	assert_int_equal(get_version(&fix, key_of("the key")), 2);
	fix_close(&fix);
}

static void test_of_two_versions_after_a_power_cut_the_newer_stays(void **state)
{
	(void)state;
	two_versions(false);
	two_versions(true);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_overwrite_cut_short_brings_nothing_back),
		cmocka_unit_test(test_of_two_versions_after_a_power_cut_the_newer_stays),
	};

	support_begin();
	return cmocka_run_group_tests_name("packed_overwrite", tests, NULL, NULL);
}
