/* SPDX-License-Identifier: Apache-2.0 */
/* core/verify.c: the table of docs/errors.md, what is found and what is answered. */
#include "fake.h"

#include "core/ranges.h"
#include "core/verify.h"

static const struct part_of one_part[] = { { 5000, 0, 1, 0 } };
static const struct part_of two_parts[] = { { 5000, 0, 1, 0 }, { 100, 0, 1, 0 } };

static struct fake *fake;
static struct kvc_queue *queue;
static struct kvc_slot *slot;
static struct page page;

static void make(const struct part_of *parts, uint32_t count)
{
	fake = fake_new();
	fake_open(fake, 1);
	page_make(&page, parts, count);
	page_fill(&page, 3);
	assert_int_equal(kvc_queue_lease(fake_root(fake, 0), UINT64_MAX / 2, &queue), 0);
	slot = queue->free;
	slot->request = page_request(&page, fake_root(fake, 0), KVC_SET, 4);
	slot->request->object_kind = KVC_OBJECT_PAGE;
}

static int setup(void **state)
{
	(void)state;
	make(one_part, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kvc_queue_return(queue);
	page_free(&page);
	fake_free(fake);
	return 0;
}

/* Stores the object as a set does, and lets a read get it, changed by `change`. */
enum change {
	NOTHING,
	PAYLOAD,
	CRC,
	MAGIC,
	OTHER_G,
	OTHER_V,
	OTHER_NAMESPACE,
	OTHER_POOL,
	MAJOR,
	INCOMPAT,
	RO_COMPAT,
	KIND_NONE,
	KIND_SECTOR,
	KIND_CALLER,
	KIND_UNKNOWN,
};

static void change_trailer(enum change change, uint8_t *block)
{
	struct kvc_trailer t;

	assert_int_equal(kvc_trailer_decode(block, &t), 0);
	switch (change) {
	case OTHER_G:
		t.g++;
		break;
	case OTHER_V:
		t.v++;
		break;
	case OTHER_NAMESPACE:
		t.ns_hash++;
		break;
	case OTHER_POOL:
		t.pool_fingerprint++;
		break;
	case MAJOR:
		t.major = 2;
		break;
	case INCOMPAT:
		t.incompat = 1;
		break;
	case RO_COMPAT:
		t.ro_compat = 1;
		break;
	case KIND_NONE:
		t.checksum_kind = KVC_CHECKSUM_NONE;
		t.checksum = 0;
		break;
	case KIND_SECTOR:
		t.checksum_kind = KVC_CHECKSUM_SECTOR;
		t.checksum = kvc_ranges_finish_read(slot, KVC_CHECKSUM_SECTOR);
		break;
	case KIND_CALLER:
		t.checksum_kind = KVC_CHECKSUM_CALLER;
		t.checksum = 4711;
		break;
	case KIND_UNKNOWN:
		t.checksum_kind = 9;
		break;
	default:
		break;
	}
	t.name = page.name;
	kvc_trailer_encode(&t, block);
}

static struct kvc_result read_as(enum change change, int64_t result, uint64_t object_bytes)
{
	const struct kvc_completion c = { .result = result, .object_bytes = object_bytes };

	page_fill(&page, 3);
	slot->request->bounced = false;
	assert_int_equal(kvc_ranges_build(slot, NULL, true, true), 0);
	for (uint32_t i = 0; i < slot->tail_count; i++)
		memcpy(slot->tail[i].block, slot->tail[i].memory, slot->tail[i].bytes);
	change_trailer(change, slot->trailer);
	if (change == PAYLOAD)
		((uint8_t *)page.bases[0])[10] ^= 1;
	else if (change == CRC)
		slot->trailer[700] ^= 1;
	else if (change == MAGIC)
		slot->trailer[0] ^= 1;
	return kvc_verify_read(slot, &c);
}

static void check(struct kvc_result result, int status, int cause)
{
	if (result.status != status || result.cause != cause)
		fail_msg("%s/%s, expected %s/%s", kvc_status_name(result.status),
			 kvc_cause_name(result.cause), kvc_status_name(status),
			 kvc_cause_name(cause));
}

#define STORED ((int64_t)page.shape.stored_bytes)
#define SIZE   page.shape.stored_bytes

static void what_is_read_has_the_result_of_the_table(void **state)
{
	static const struct {
		enum change change;
		int status;
		int cause;
	} rows[] = {
		{ NOTHING, KVC_OK, KVC_CAUSE_NONE },
		{ PAYLOAD, KVC_CORRUPT, KVC_CAUSE_CHECKSUM },
		{ CRC, KVC_CORRUPT, KVC_CAUSE_TRAILER },
		{ MAGIC, KVC_MISS, KVC_CAUSE_FOREIGN },
		{ OTHER_G, KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT },
		{ OTHER_V, KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT },
		{ OTHER_NAMESPACE, KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT },
		{ OTHER_POOL, KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT },
		{ MAJOR, KVC_MISS, KVC_CAUSE_VERSION },
		{ INCOMPAT, KVC_MISS, KVC_CAUSE_VERSION },
		{ RO_COMPAT, KVC_MISS, KVC_CAUSE_VERSION },
		{ KIND_NONE, KVC_OK, KVC_CAUSE_NONE },
		{ KIND_SECTOR, KVC_OK, KVC_CAUSE_NONE },
		{ KIND_CALLER, KVC_MISS, KVC_CAUSE_VERSION },
		{ KIND_UNKNOWN, KVC_MISS, KVC_CAUSE_VERSION },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		check(read_as(rows[i].change, STORED, SIZE), rows[i].status, rows[i].cause);
		/* The size of the object is not known: the bytes decide. */
		check(read_as(rows[i].change, STORED, KVC_BYTES_UNKNOWN), rows[i].status,
		      rows[i].cause);
	}
}

static void r06_any_other_size_is_a_miss(void **state)
{
	static const int64_t less[] = { 1, 512, 4096, 4097, 8192 };

	(void)state;
	for (size_t i = 0; i < 5; i++) {
		const int64_t bytes = STORED - less[i];

		check(read_as(NOTHING, bytes, (uint64_t)bytes), KVC_MISS, KVC_CAUSE_SHORT);
		check(read_as(NOTHING, bytes, SIZE), KVC_MISS, KVC_CAUSE_SHORT);
		check(read_as(NOTHING, bytes, KVC_BYTES_UNKNOWN), KVC_MISS, KVC_CAUSE_SHORT);
		check(read_as(NOTHING, STORED, SIZE + (uint64_t)less[i]), KVC_MISS, KVC_CAUSE_LONG);
	}
	check(read_as(NOTHING, 0, 0), KVC_MISS, KVC_CAUSE_SHORT);
	check(read_as(NOTHING, 5000, 5000), KVC_MISS, KVC_CAUSE_SHORT); /* bare, "require" */
}

static void parts_otherwise_divided_are_another_object(void **state)
{
	struct kvc_completion c;

	(void)state;
	teardown(NULL);
	make(two_parts, 2);
	check(read_as(NOTHING, STORED, SIZE), KVC_OK, KVC_CAUSE_NONE);
	check(read_as(PAYLOAD, STORED, SIZE), KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	c = (struct kvc_completion){ .result = STORED, .object_bytes = SIZE };
	/* As many bytes, stored in as many blocks, but divided otherwise. */
	page.shape.parts[0].bytes = 4999;
	page.shape.parts[1].bytes = 101;
	page.shape.series[0].piece_bytes = 4999;
	page.shape.series[1].piece_bytes = 101;
	assert_int_equal(kvc_ranges_build(slot, NULL, true, true), 0);
	kvc_ranges_trailer(slot, 1);
	page.shape.parts[0].bytes = 5000;
	page.shape.parts[1].bytes = 100;
	check(kvc_verify_read(slot, &c), KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT);
}

static void r08_bare_files_by_the_verify_policy(void **state)
{
	(void)state;
	fake->settings.verify = KVC_VERIFY_IF_PRESENT;
	assert_true(kvc_verify_size(slot->request, 5000));
	assert_true(kvc_verify_size(slot->request, SIZE));
	assert_false(kvc_verify_size(slot->request, 4999));
	check(read_as(NOTHING, 5000, 5000), KVC_OK, KVC_CAUSE_NONE);
	check(read_as(NOTHING, 4999, 5000), KVC_MISS, KVC_CAUSE_SHORT);
	check(read_as(PAYLOAD, STORED, SIZE), KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	fake->settings.verify = KVC_VERIFY_REQUIRE;
	assert_false(kvc_verify_size(slot->request, 5000));
	teardown(NULL);
	make(two_parts, 2); /* bare files have one part */
	fake->settings.verify = KVC_VERIFY_IF_PRESENT;
	assert_false(kvc_verify_size(slot->request, 5100));
}

static void verify_off_looks_at_the_size_only(void **state)
{
	struct kvc_completion c = { .result = STORED - 4096, .object_bytes = SIZE };

	(void)state;
	fake->settings.verify = KVC_VERIFY_OFF;
	assert_int_equal(kvc_ranges_build(slot, NULL, false, false), 0);
	check(kvc_verify_read(slot, &c), KVC_OK, KVC_CAUSE_NONE);
	c.result--;
	check(kvc_verify_read(slot, &c), KVC_MISS, KVC_CAUSE_SHORT);
	c.result++;
	c.object_bytes += 4096;
	check(kvc_verify_read(slot, &c), KVC_MISS, KVC_CAUSE_LONG);
}

static void only_what_is_proven_wrong_may_go(void **state)
{
	static const struct {
		int cause;
		bool ours; /* removable in our naming, in nixl naming */
		bool nixl;
	} rows[] = {
		{ KVC_CAUSE_NONE, false, false },	 { KVC_CAUSE_ABSENT, false, false },
		{ KVC_CAUSE_SHORT, true, false },	 { KVC_CAUSE_LONG, true, false },
		{ KVC_CAUSE_FOREIGN, true, false },	 { KVC_CAUSE_OTHER_OBJECT, true, true },
		{ KVC_CAUSE_CHECKSUM, true, true },	 { KVC_CAUSE_TRAILER, true, true },
		{ KVC_CAUSE_VERSION, false, false },	 { KVC_CAUSE_RECYCLED, false, false },
		{ KVC_CAUSE_MARKED, false, false },	 { KVC_CAUSE_DEADLINE, false, false },
		{ KVC_CAUSE_NO_SPACE, false, false },	 { KVC_CAUSE_PERMISSION, false, false },
		{ KVC_CAUSE_DESCRIPTORS, false, false }, { KVC_CAUSE_IO, false, false },
	};
	const struct kvc_request *request = slot->request;
	struct kvc_root *root = fake_root(fake, 0);

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct kvc_result result = kvc_result_make(KVC_MISS, rows[i].cause, 0);

		fake->settings.naming = KVC_NAMING_KVCELLAR;
		assert_int_equal(kvc_verify_removable(request, result), rows[i].ours);
		root->read_only = true;
		assert_false(kvc_verify_removable(request, result));
		root->read_only = false;
		root->writes_refused = true;
		assert_false(kvc_verify_removable(request, result));
		root->writes_refused = false;
		fake->settings.naming = KVC_NAMING_NIXL;
		assert_int_equal(kvc_verify_removable(request, result), rows[i].nixl);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_is_read_has_the_result_of_the_table),
		TEST(r06_any_other_size_is_a_miss),
		TEST(parts_otherwise_divided_are_another_object),
		TEST(r08_bare_files_by_the_verify_policy),
		TEST(verify_off_looks_at_the_size_only),
		TEST(only_what_is_proven_wrong_may_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
