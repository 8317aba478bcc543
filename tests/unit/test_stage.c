/* SPDX-License-Identifier: Apache-2.0 */
/* core/stage.c: transfers that are abandoned at the deadline (R33). */
#include "fake.h"

#include "core/stage.h"
#include "core/usage.h"

#include <stdio.h>

#define COUNT 40u
#define MS    UINT64_C(1000000)

static const struct part_of three_parts[] = { { 3000, 100, 3, 8 },
					      { 0, 0, 1, 0 },
					      { 4096, 0, 1, 512 } };
static const struct part_of big_part[] = { { UINT64_C(6) << 20, 0, 1, 0 } };

static struct fake *fake;
static struct page page[COUNT];
static struct kvc_request requests[COUNT];

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	fake->attributes.flags &= ~(uint32_t)KVC_ATTRIBUTE_LOCAL; /* staged */
	for (uint32_t i = 0; i < COUNT; i++)
		page_make(&page[i], three_parts, 3);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < COUNT; i++)
		page_free(&page[i]);
	fake_free(fake);
	return 0;
}

static void prepare(int op, uint32_t count, uint64_t ms)
{
	for (uint32_t i = 0; i < count; i++) {
		requests[i] =
			*page_request(&page[i], fake_root(fake, i % fake->store.root_count), op, i);
		requests[i].name = requests[i].full_name = page[i].name;
		requests[i].deadline_ns = kvc_now_ns() + ms * MS;
	}
}

static void run(uint32_t count)
{
	kvc_xfer_run(&fake->store, requests, count, NULL);
}

static void expect(uint32_t i, int status, int cause)
{
	const struct kvc_result *result = &requests[i].result;

	if (result->status != status || result->cause != cause)
		fail_msg("request %u: %s/%s error %d, expected %s/%s", i,
			 kvc_status_name(result->status), kvc_cause_name(result->cause),
			 result->error, kvc_status_name(status), kvc_cause_name(cause));
}

static void expect_all(uint32_t count, int status, int cause)
{
	for (uint32_t i = 0; i < count; i++)
		expect(i, status, cause);
}

static void set_all(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		page_fill(&page[i], (uint8_t)(3 * i));
	prepare(KVC_SET, count, 5000);
	run(count);
	expect_all(count, KVC_OK, KVC_CAUSE_NONE);
}

static void wipe(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		memset(page[i].memory, 0xaa, page[i].memory_bytes);
}

static void check_bytes(uint32_t i, const struct part_of *parts, uint32_t part_count)
{
	struct page want;

	page_make(&want, parts, part_count);
	page_fill(&want, (uint8_t)(3 * i));
	assert_memory_equal(page[i].memory, want.memory, want.memory_bytes);
	page_free(&want);
}

static void check_untouched(uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		for (uint64_t b = 0; b < page[i].memory_bytes; b++)
			if (page[i].memory[b] != 0xaa)
				fail_msg("request %u: byte %llu was touched", i,
					 (unsigned long long)b);
}

static int64_t stall(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_READ || d->op == KVC_OP_WRITE ? FAKE_STALL : FAKE_NORMAL;
}

static void set_hook(fake_hook hook)
{
	pthread_mutex_lock(&fake->lock);
	fake->hook = hook;
	pthread_mutex_unlock(&fake->lock);
}

/* What workers did to the fake is seen from here on. */
static void sync_with_workers(void)
{
	pthread_mutex_lock(&fake->lock);
	pthread_mutex_unlock(&fake->lock);
}

/* Waits until no worker is left behind. */
static void wait_unparked(void)
{
	for (int i = 0; i < 2000 && fake_counter(fake, KVC_COUNTER_PARKED_QUEUES); i++) {
		const struct timespec pause = kvc_timespec(5 * MS);

		(void)nanosleep(&pause, NULL);
	}
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 0);
	sync_with_workers();
}

/* ---------------------------------------------------------------- going well */

static void staged_objects_round_trip(void **state)
{
	(void)state;
	fake_open(fake, 3);
	set_all(COUNT);
	prepare(KVC_EXISTS, COUNT, 5000);
	run(COUNT);
	expect_all(COUNT, KVC_OK, KVC_CAUSE_NONE);
	wipe(COUNT);
	prepare(KVC_GET, COUNT, 5000);
	run(COUNT);
	expect_all(COUNT, KVC_OK, KVC_CAUSE_NONE);
	for (uint32_t i = 0; i < COUNT; i++)
		check_bytes(i, three_parts, 3);
	prepare(KVC_REMOVE, COUNT, 5000);
	run(COUNT);
	expect_all(COUNT, KVC_OK, KVC_CAUSE_NONE);
	prepare(KVC_EXISTS, COUNT, 5000);
	run(COUNT);
	expect_all(COUNT, KVC_MISS, KVC_CAUSE_ABSENT);
}

static void empty_objects_need_no_memory(void **state)
{
	static const struct part_of nothing[] = { { 0, 0, 1, 0 } };

	(void)state;
	fake_open(fake, 1);
	page_free(&page[0]);
	page_make(&page[0], nothing, 1);
	page_free(&page[1]);
	page_make(&page[1], nothing, 0);
	page[0].bases[0] = NULL;
	set_all(2);
	prepare(KVC_GET, 2, 5000);
	run(2);
	expect_all(2, KVC_OK, KVC_CAUSE_NONE);
}

/* 12 objects of 6 MiB: more than one portion. */
static void long_lists_go_in_portions(void **state)
{
	(void)state;
	fake_open(fake, 2);
	for (uint32_t i = 0; i < 12; i++) {
		page_free(&page[i]);
		page_make(&page[i], big_part, 1);
	}
	set_all(12);
	wipe(12);
	prepare(KVC_GET, 12, 5000);
	run(12);
	expect_all(12, KVC_OK, KVC_CAUSE_NONE);
	for (uint32_t i = 0; i < 12; i++)
		check_bytes(i, big_part, 1);
}

static void a_damaged_object_is_told_as_ever(void **state)
{
	struct fake_object *object;

	(void)state;
	fake_open(fake, 1);
	set_all(2);
	object = fake_find(fake, "model-0123456789abcdef/object-0");
	object->data[5] ^= 1;
	wipe(2);
	prepare(KVC_GET, 2, 5000);
	run(2);
	expect(0, KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	expect(1, KVC_OK, KVC_CAUSE_NONE);
	check_bytes(1, three_parts, 3);
	assert_int_equal(fake->removes, 1);
}

/* ---------------------------------------------------------------- stalling */

static void r33_a_late_read_touches_no_caller(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(4);
	wipe(4);
	set_hook(stall);
	prepare(KVC_GET, 4, 40);
	run(4);
	expect_all(4, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 1);
	/* The caller's arena, names and shape may go now. */
	memset(requests, 0xee, sizeof(requests));
	for (uint32_t i = 0; i < 4; i++) {
		memset(page[i].name, 0xee, sizeof(page[i].name));
		memset(&page[i].shape, 0xee, sizeof(page[i].shape));
	}
	fake_release(fake);
	wait_unparked();
	check_untouched(4);
}

static void r33_a_late_write_publishes_what_was_given(void **state)
{
	const struct fake_object *object;
	uint64_t bytes, objects;

	(void)state;
	fake_open(fake, 1);
	set_hook(stall);
	page_fill(&page[0], 0);
	prepare(KVC_SET, 1, 40);
	run(1);
	expect(0, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	page_fill(&page[0], 77); /* the caller uses its memory for another page */
	fake_release(fake);
	wait_unparked();
	object = fake_find(fake, "model-0123456789abcdef/object-0");
	assert_non_null(object);
	set_hook(NULL);
	wipe(1);
	prepare(KVC_GET, 1, 5000);
	run(1);
	expect(0, KVC_OK, KVC_CAUSE_NONE);
	check_bytes(0, three_parts, 3);
	kvc_usage_total(fake_root(fake, 0)->usage, &bytes, &objects);
	assert_int_equal(objects, 1);
	assert_int_equal(bytes, object->bytes);
}

static int64_t stall_odd(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	const unsigned number = (unsigned)strtoul(strrchr(d->name, '-') + 1, NULL, 10);

	return number % 2 ? stall(f, d, c) : FAKE_NORMAL;
}

static void what_is_done_by_the_deadline_counts(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(10);
	wipe(10);
	set_hook(stall_odd);
	prepare(KVC_GET, 10, 60);
	run(10);
	for (uint32_t i = 0; i < 10; i += 2) {
		expect(i, KVC_OK, KVC_CAUSE_NONE);
		check_bytes(i, three_parts, 3);
		expect(i + 1, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	}
}

static void r33_a_stalled_root_blocks_no_other(void **state)
{
	(void)state;
	fake_open(fake, 2);
	for (uint32_t i = 0; i < 12; i++) {
		page_free(&page[i]);
		page_make(&page[i], big_part, 1);
	}
	set_all(12);
	/* Root 1 has the odd ones and stalls; root 0 needs two portions. */
	set_hook(stall_odd);
	prepare(KVC_GET, 12, 2000);
	for (uint32_t i = 1; i < 12; i += 2)
		requests[i].deadline_ns = kvc_now_ns() + 50 * MS;
	run(12);
	for (uint32_t i = 0; i < 12; i += 2) {
		expect(i, KVC_OK, KVC_CAUSE_NONE);
		assert_int_equal(requests[i + 1].result.status, KVC_TIMEOUT);
	}
	fake_release(fake);
	wait_unparked();
	/* The other way round: the first root is the one that stalls. */
	fake->released = false;
	for (uint32_t i = 0; i < 12; i++) {
		requests[i] = *page_request(&page[i], fake_root(fake, 1 - i % 2), KVC_GET, i);
		requests[i].name = requests[i].full_name = page[i].name;
		requests[i].deadline_ns = kvc_now_ns() + 1000 * MS;
	}
	run(12);
	for (uint32_t i = 0; i < 12; i += 2) {
		expect(i, KVC_OK, KVC_CAUSE_NONE);
		assert_int_equal(requests[i + 1].result.status, KVC_TIMEOUT);
	}
}

static void r33_four_stuck_workers_end_it(void **state)
{
	uint32_t submits;

	(void)state;
	fake_open(fake, 1);
	set_all(5);
	wipe(5);
	set_hook(stall);
	for (int i = 0; i < 4; i++) {
		prepare(KVC_GET, 1, 30);
		run(1);
		expect(0, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	}
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 4);
	sync_with_workers();
	submits = fake->submits;
	prepare(KVC_GET, 5, 60000); /* no second of it is waited for */
	run(5);
	expect_all(5, KVC_TIMEOUT, KVC_CAUSE_SUSPECT_ROOT);
	assert_int_equal(fake->submits, submits);
	assert_int_equal(kvc_root_close(fake_root(fake, 0), kvc_now_ns() + 20 * MS), -EBUSY);
	assert_int_equal(fake->roots, 1);
	check_untouched(5);
	fake_release(fake);
	wait_unparked();
	check_untouched(5);
}

static void it_goes_on_when_the_root_is_back(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(5);
	set_hook(stall);
	for (int i = 0; i < 4; i++) {
		prepare(KVC_GET, 1, 30);
		run(1);
	}
	fake_release(fake);
	wait_unparked();
	set_hook(NULL);
	prepare(KVC_GET, 5, 5000);
	run(5);
	expect_all(5, KVC_OK, KVC_CAUSE_NONE);
}

static void what_is_cancelled_is_not_begun(void **state)
{
	atomic_bool cancel = true;

	(void)state;
	fake_open(fake, 1);
	prepare(KVC_SET, 3, 5000);
	kvc_xfer_run(&fake->store, requests, 3, &cancel);
	expect_all(3, KVC_SKIPPED, KVC_CAUSE_CANCELLED);
}

/* ---------------------------------------------------------------- many callers */

struct caller {
	struct fake *fake;
	struct page page;
	uint32_t number;
	struct kvc_result result;
};

static void *call(void *context)
{
	struct caller *caller = context;
	struct kvc_request *request =
		page_request(&caller->page, fake_root(caller->fake, 0), KVC_SET, caller->number);

	kvc_xfer_run(&caller->fake->store, request, 1, NULL);
	caller->result = request->result;
	request = page_request(&caller->page, fake_root(caller->fake, 0), KVC_GET, caller->number);
	kvc_xfer_run(&caller->fake->store, request, 1, NULL);
	if (request->result.status != KVC_OK)
		caller->result = request->result;
	return NULL;
}

static void callers_share_the_workers(void **state)
{
	static struct caller callers[16];
	pthread_t threads[16];

	(void)state;
	fake_open(fake, 1);
	for (uint32_t i = 0; i < 16; i++) {
		callers[i] = (struct caller){ .fake = fake, .number = 500 + i };
		page_make(&callers[i].page, three_parts, 3);
		page_fill(&callers[i].page, (uint8_t)i);
	}
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
	for (uint32_t i = 0; i < 16; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(callers[i].result.status, KVC_OK);
		page_free(&callers[i].page);
	}
}

/* A worker that is free must not be counted on twice: the second caller gets one of its own. */
static int64_t stall_first(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	return strstr(d->name, "object-500") ? stall(f, d, c) : FAKE_NORMAL;
}

static void one_stuck_caller_holds_up_no_other(void **state)
{
	static struct caller callers[4];
	pthread_t threads[4];

	(void)state;
	fake_open(fake, 1);
	set_all(1); /* one worker is idle now */
	set_hook(stall_first);
	for (uint32_t i = 0; i < 4; i++) {
		callers[i] = (struct caller){ .fake = fake, .number = 500 + i };
		page_make(&callers[i].page, three_parts, 3);
		assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
	}
	for (uint32_t i = 1; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(callers[i].result.status, KVC_OK);
	}
	fake_release(fake);
	assert_int_equal(pthread_join(threads[0], NULL), 0);
	for (uint32_t i = 0; i < 4; i++)
		page_free(&callers[i].page);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(staged_objects_round_trip),
		TEST(empty_objects_need_no_memory),
		TEST(long_lists_go_in_portions),
		TEST(a_damaged_object_is_told_as_ever),
		TEST(r33_a_late_read_touches_no_caller),
		TEST(r33_a_late_write_publishes_what_was_given),
		TEST(what_is_done_by_the_deadline_counts),
		TEST(r33_a_stalled_root_blocks_no_other),
		TEST(r33_four_stuck_workers_end_it),
		TEST(it_goes_on_when_the_root_is_back),
		TEST(what_is_cancelled_is_not_begun),
		TEST(callers_share_the_workers),
		TEST(one_stuck_caller_holds_up_no_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
