/* SPDX-License-Identifier: Apache-2.0 */
/* core/xfer.c: one result per request, whatever the plugin does. */
#include "fake.h"

#include "core/ghost.h"
#include "core/stats.h"
#include "core/usage.h"

#include <stdio.h>

#define COUNT 100u
#define PATH  "model-0123456789abcdef/object-"
#define MS    UINT64_C(1000000)

static const struct part_of two_parts[] = { { 5000, 24, 3, 0 }, { 4096, 0, 1, 0 } };

struct pages {
	struct page pages[COUNT];
	struct kvc_request requests[COUNT];
};

static struct fake *fake;
static struct pages *pages;

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	pages = calloc(1, sizeof(*pages));
	for (uint32_t i = 0; i < COUNT; i++)
		page_make(&pages->pages[i], two_parts, 2);
	return pages ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < COUNT; i++)
		page_free(&pages->pages[i]);
	free(pages);
	fake_free(fake);
	return 0;
}

static void prepare(int op, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct kvc_root *root = fake_root(fake, i % fake->store.root_count);

		pages->requests[i] = *page_request(&pages->pages[i], root, op, i);
		pages->requests[i].name = pages->pages[i].name;
	}
}

static void run(uint32_t count)
{
	kvc_xfer_run(&fake->store, pages->requests, count, NULL);
	/* Slots are free again, nothing is in flight. */
	assert_int_equal(fake->accepted, fake->completed);
}

static void expect(uint32_t i, int status, int cause)
{
	const struct kvc_result *result = &pages->requests[i].result;

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
		page_fill(&pages->pages[i], (uint8_t)i);
	prepare(KVC_SET, count);
	run(count);
	expect_all(count, KVC_OK, KVC_CAUSE_NONE);
}

/* Gets them into wiped memory; those that are OK must have their bytes. */
static void get_all(uint32_t count)
{
	struct page want;

	page_make(&want, two_parts, 2);
	for (uint32_t i = 0; i < count; i++)
		memset(pages->pages[i].memory, 0xaa, pages->pages[i].memory_bytes);
	prepare(KVC_GET, count);
	run(count);
	for (uint32_t i = 0; i < count; i++) {
		if (pages->requests[i].result.status != KVC_OK)
			continue;
		page_fill(&want, (uint8_t)i);
		assert_memory_equal(pages->pages[i].memory, want.memory, want.memory_bytes);
	}
	page_free(&want);
}

static void check_usage(size_t root, uint64_t objects, uint64_t bytes)
{
	uint64_t got_bytes, got_objects;

	kvc_usage_total(fake_root(fake, root)->usage, &got_bytes, &got_objects);
	assert_int_equal(got_objects, objects);
	assert_int_equal(got_bytes, bytes);
}

/* ---------------------------------------------------------------- what goes well */

static void every_alignment_late_and_range_limit_round_trips(void **state)
{
	static const uint32_t alignments[] = { 1, 512, 4096 };
	static const uint32_t ranges[] = { 4, 8, 64, 1000 };

	(void)state;
	for (size_t a = 0; a < 3; a++)
		for (size_t r = 0; r < 4; r++)
			for (int late = 0; late < 2; late++) {
				if (a || r || late) {
					teardown(NULL);
					setup(NULL);
				}
				fake->attributes.alignment = alignments[a];
				fake->attributes.max_ranges = ranges[r];
				if (late)
					fake->attributes.flags |= KVC_ATTRIBUTE_LATE;
				fake_open(fake, 1);
				set_all(40);
				get_all(40);
				expect_all(40, KVC_OK, KVC_CAUSE_NONE);
				check_usage(0, 40, 40 * pages->pages[0].shape.stored_bytes);
			}
}

static void order_and_pace_of_completions_do_not_matter(void **state)
{
	(void)state;
	fake->reverse = true;
	fake->per_poll = 3;
	fake->accept = 5;
	fake_open(fake, 3);
	set_all(COUNT);
	get_all(COUNT);
	expect_all(COUNT, KVC_OK, KVC_CAUSE_NONE);
	assert_true(fake_counter(fake, KVC_COUNTER_RETRIES) > 0);
}

static void again_is_backpressure_only(void **state)
{
	(void)state;
	fake_open(fake, 1);
	fake->refuse = 50;
	set_all(10);
	fake->refuse = 50;
	get_all(10);
	expect_all(10, KVC_OK, KVC_CAUSE_NONE);
	assert_true(fake_counter(fake, KVC_COUNTER_RETRIES) >= 100);
}

static void exists_set_remove_follow_what_is_there(void **state)
{
	const uint64_t stored = pages->pages[0].shape.stored_bytes;

	(void)state;
	fake_open(fake, 1);
	prepare(KVC_EXISTS, 3);
	run(3);
	expect_all(3, KVC_MISS, KVC_CAUSE_ABSENT);
	set_all(2);
	prepare(KVC_EXISTS, 3);
	run(3);
	expect_all(2, KVC_OK, KVC_CAUSE_NONE);
	expect(2, KVC_MISS, KVC_CAUSE_ABSENT);
	prepare(KVC_SET, 3);
	run(3);
	expect_all(2, KVC_OK, KVC_CAUSE_EXISTED);
	expect(2, KVC_OK, KVC_CAUSE_NONE);
	check_usage(0, 3, 3 * stored);
	prepare(KVC_REMOVE, 3);
	run(3);
	expect_all(3, KVC_OK, KVC_CAUSE_NONE);
	check_usage(0, 0, 0);
	prepare(KVC_REMOVE, 3);
	run(3);
	expect_all(3, KVC_MISS, KVC_CAUSE_ABSENT);
	check_usage(0, 0, 0);
}

/* ---------------------------------------------------------------- usage */

static uint64_t ghost_hits(void)
{
	struct kvc_stats stats = { .size = sizeof(stats) };

	assert_int_equal(kvc_counters_read(fake->store.counters, &stats), 0);
	return stats.ghost_hits;
}

/* What is asked for again after its eviction is counted, also when another was not there before. */
static void what_was_evicted_and_is_asked_for_is_counted(void **state)
{
	struct kvc_request *missed = NULL;

	(void)state;
	fake_open(fake, 1);
	prepare(KVC_GET, 6);
	run(6);
	assert_int_equal(ghost_hits(), 0);
	for (uint32_t i = 2; i < 5; i++)
		kvc_ghost_add(fake_root(fake, 0)->ghosts, pages->requests[i].g);
	prepare(KVC_GET, 6);
	run(6);
	assert_int_equal(ghost_hits(), 3);
	prepare(KVC_EXISTS, 3);
	run(3);
	assert_int_equal(ghost_hits(), 4);
	prepare(KVC_REMOVE, 3);
	run(3);
	assert_int_equal(ghost_hits(), 4);
	set_all(6);
	get_all(6);
	assert_int_equal(ghost_hits(), 4);
	/* One lookup of a prefix, in which several are found to be missing. */
	prepare(KVC_REMOVE, 6);
	run(6);
	prepare(KVC_EXISTS, 5);
	for (uint32_t i = 0; i < 5; i++)
		pages->requests[i].missed = &missed;
	run(5);
	assert_int_equal(ghost_hits(), 4);
}

static void r07_a_replaced_object_is_counted_once(void **state)
{
	const uint64_t stored = pages->pages[0].shape.stored_bytes;
	static uint8_t junk[3 * 65536];

	(void)state;
	fake_open(fake, 1);
	set_all(1);
	prepare(KVC_SET, 1);
	pages->requests[0].flags = KVC_TRANSFER_OVERWRITE;
	run(1);
	expect(0, KVC_OK, KVC_CAUSE_NONE);
	check_usage(0, 1, stored);
	/* Longer than it should be: counted by whoever made it, then replaced. */
	fake_put(fake, PATH "1", junk, sizeof(junk));
	kvc_usage_add(fake_root(fake, 0)->usage, 0x1111, sizeof(junk), 1);
	set_all(0);
	prepare(KVC_SET, 2);
	run(2);
	expect(0, KVC_OK, KVC_CAUSE_EXISTED);
	expect(1, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(fake_find(fake, PATH "1")->bytes, stored);
	check_usage(0, 2, 2 * stored);
	/* One of 0 bytes is an object too. */
	fake_put(fake, PATH "2", junk, 0);
	kvc_usage_add(fake_root(fake, 0)->usage, 0x1111, 0, 1);
	prepare(KVC_SET, 3);
	run(3);
	expect(2, KVC_OK, KVC_CAUSE_NONE);
	check_usage(0, 3, 3 * stored);
}

static void sizes_that_are_not_known_spoil_no_count(void **state)
{
	const uint64_t stored = pages->pages[0].shape.stored_bytes;

	(void)state;
	fake->unknown_sizes = true;
	fake_open(fake, 1);
	set_all(2);
	prepare(KVC_SET, 2);
	run(2);
	expect_all(2, KVC_OK, KVC_CAUSE_EXISTED);
	prepare(KVC_EXISTS, 2);
	run(2);
	expect_all(2, KVC_OK, KVC_CAUSE_NONE);
	check_usage(0, 2, 2 * stored);
	get_all(2);
	expect_all(2, KVC_OK, KVC_CAUSE_NONE);
}

static int64_t stat_misses(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_STAT ? -ENOENT : FAKE_NORMAL;
}

static void a_set_that_loses_the_race_has_existed(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(1);
	fake->hook = stat_misses;
	prepare(KVC_SET, 1);
	run(1);
	expect(0, KVC_OK, KVC_CAUSE_EXISTED);
	fake_find(fake, PATH "0")->bytes = 512; /* the other writer's is short */
	prepare(KVC_SET, 1);
	run(1);
	expect(0, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(fake_find(fake, PATH "0")->bytes, pages->pages[0].shape.stored_bytes);
}

static void nixl_naming_counts_all_as_one(void **state)
{
	uint64_t bytes, objects;

	(void)state;
	fake->settings.naming = KVC_NAMING_NIXL;
	fake_open(fake, 1);
	set_all(2);
	assert_int_equal(kvc_usage_namespace(fake_root(fake, 0)->usage, 0, &bytes, &objects), 0);
	assert_int_equal(objects, 2);
	assert_int_equal(kvc_usage_namespace(fake_root(fake, 0)->usage, 0x1111, &bytes, &objects),
			 -ENOENT);
}

/* ---------------------------------------------------------------- what goes wrong */

static int64_t einval_once(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)c;
	if (d->op != KVC_OP_WRITE && d->op != KVC_OP_READ)
		return FAKE_NORMAL;
	/* Only the library's own memory will do: it is aligned to whole blocks. */
	return f->hook_count % 2 && d->range_count > 2 ? -EINVAL : FAKE_NORMAL;
}

static int64_t einval_ever(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_STAT ? FAKE_NORMAL : -EINVAL;
}

static void r25_refused_memory_is_bounced_once(void **state)
{
	(void)state;
	fake->attributes.alignment = 1;
	fake_open(fake, 1);
	fake->hook = einval_once;
	set_all(20);
	get_all(20);
	expect_all(20, KVC_OK, KVC_CAUSE_NONE);
	fake->hook = einval_ever;
	fake->hook_count = 0;
	get_all(4);
	expect_all(4, KVC_ERROR, KVC_CAUSE_IO);
	assert_int_equal(pages->requests[0].result.error, EINVAL);
	assert_int_equal(fake->hook_count, 8);
}

static int64_t errno_by_number(struct fake *f, const struct kvc_descriptor *d,
			       struct kvc_completion *c)
{
	static const int errors[] = { 0,     ENOENT, EIO,    ENOSPC, EDQUOT, EACCES, EPERM,
				      EROFS, EMFILE, ENFILE, EISDIR, ELOOP,  ESTALE, ECANCELED };
	const unsigned number = (unsigned)strtoul(strrchr(d->name, '-') + 1, NULL, 10);

	(void)c, (void)f;
	return number == 0 || number >= 14 ? FAKE_NORMAL : -errors[number];
}

static void each_errno_has_its_result_for_a_get(void **state)
{
	static const int want[][2] = {
		{ KVC_OK, KVC_CAUSE_NONE },	      { KVC_MISS, KVC_CAUSE_ABSENT },
		{ KVC_ERROR, KVC_CAUSE_IO },	      { KVC_FULL, KVC_CAUSE_NO_SPACE },
		{ KVC_FULL, KVC_CAUSE_QUOTA },	      { KVC_DENIED, KVC_CAUSE_PERMISSION },
		{ KVC_DENIED, KVC_CAUSE_PERMISSION }, { KVC_DENIED, KVC_CAUSE_READ_ONLY },
		{ KVC_ERROR, KVC_CAUSE_DESCRIPTORS }, { KVC_ERROR, KVC_CAUSE_DESCRIPTORS },
		{ KVC_MISS, KVC_CAUSE_FOREIGN },      { KVC_MISS, KVC_CAUSE_FOREIGN },
		{ KVC_MISS, KVC_CAUSE_RECYCLED },     { KVC_TIMEOUT, KVC_CAUSE_DEADLINE },
	};

	(void)state;
	fake_open(fake, 1);
	set_all(15);
	fake->hook = errno_by_number;
	get_all(15);
	for (uint32_t i = 0; i < 14; i++)
		expect(i, want[i][0], want[i][1]);
	expect(14, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(fake->removes, 0); /* no errno removes anything */
	fake->hook = NULL;
	get_all(15);
	expect_all(15, KVC_OK, KVC_CAUSE_NONE); /* R03: the same call works later */
}

static int64_t errno_of_set(struct fake *f, const struct kvc_descriptor *d,
			    struct kvc_completion *c)
{
	return d->op == KVC_OP_WRITE ? errno_by_number(f, d, c) : FAKE_NORMAL;
}

static int64_t errno_of_stat(struct fake *f, const struct kvc_descriptor *d,
			     struct kvc_completion *c)
{
	return d->op == KVC_OP_STAT ? errno_by_number(f, d, c) : FAKE_NORMAL;
}

static void a_set_never_ends_as_a_miss(void **state)
{
	(void)state;
	fake_open(fake, 1);
	fake->hook = errno_of_set;
	prepare(KVC_SET, 15);
	run(15);
	for (uint32_t i = 0; i < 15; i++)
		assert_int_not_equal(pages->requests[i].result.status, KVC_MISS);
	expect(1, KVC_ERROR, KVC_CAUSE_IO);
	expect(10, KVC_ERROR, KVC_CAUSE_IO);
	assert_int_equal(pages->requests[10].result.error, EISDIR);
	check_usage(0, 2, 2 * pages->pages[0].shape.stored_bytes);
	fake->hook = errno_of_stat;
	prepare(KVC_SET, 15);
	run(15);
	expect(0, KVC_OK, KVC_CAUSE_EXISTED);
	for (uint32_t i = 2; i < 14; i++)
		assert_int_not_equal(pages->requests[i].result.status, KVC_MISS);
}

static int64_t short_writes(struct fake *f, const struct kvc_descriptor *d,
			    struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_WRITE ? 4096 : FAKE_NORMAL;
}

static void r02_a_short_write_is_an_error(void **state)
{
	(void)state;
	fake_open(fake, 1);
	fake->hook = short_writes;
	prepare(KVC_SET, 3);
	run(3);
	expect_all(3, KVC_ERROR, KVC_CAUSE_IO);
	assert_int_equal(pages->requests[0].result.error, EIO);
	check_usage(0, 0, 0);
}

/* R05 without a signal: the one failure is nobody else's. */
static void r05_one_failure_harms_no_other(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(COUNT);
	for (uint32_t n = 0; n < 3; n++) {
		fake->hook = errno_by_number;
		get_all(COUNT);
		fake->hook = NULL;
	}
	for (uint32_t i = 14; i < COUNT; i++)
		expect(i, KVC_OK, KVC_CAUSE_NONE);
}

static void a_queue_that_refuses_is_not_used_again(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(4);
	fake->submit_errors = 1;
	get_all(4);
	expect_all(4, KVC_ERROR, KVC_CAUSE_IO);
	assert_int_equal(fake->queues, 0);
	get_all(4);
	expect_all(4, KVC_OK, KVC_CAUSE_NONE);
}

static void a_queue_that_cannot_poll_is_settled(void **state)
{
	(void)state;
	fake->attributes.flags |= KVC_ATTRIBUTE_CANCELLABLE;
	fake_open(fake, 1);
	set_all(40);
	fake->poll_errors = 3;
	get_all(40);
	for (uint32_t i = 0; i < 40; i++)
		expect(i, KVC_ERROR, KVC_CAUSE_IO); /* not a timeout: nothing was late */
	assert_true(fake->cancels > 0);
	assert_int_equal(fake->queues, 0);
	get_all(40);
	expect_all(40, KVC_OK, KVC_CAUSE_NONE);
}

static void a_queue_that_cannot_be_destroyed_keeps_the_root_open(void **state)
{
	(void)state;
	fake_open(fake, 1);
	fake->submit_errors = 1;
	fake->destroy_error = -EBUSY;
	prepare(KVC_GET, 1);
	run(1);
	expect(0, KVC_ERROR, KVC_CAUSE_IO);
	assert_int_equal(fake->queues, 1);
	assert_int_equal(kvc_root_close(fake_root(fake, 0), 0), -EBUSY);
	assert_int_equal(fake->broken, 0);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 1);
	fake->destroy_error = 0; /* at the end it can be closed */
}

/* ---------------------------------------------------------------- marks */

static int64_t reads_fail(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_READ ? -EIO : FAKE_NORMAL;
}

static void r23_what_fails_twice_is_not_asked_again(void **state)
{
	uint32_t submits;

	(void)state;
	fake_open(fake, 1);
	set_all(2);
	fake->hook = reads_fail;
	get_all(1);
	expect(0, KVC_ERROR, KVC_CAUSE_IO);
	get_all(1);
	expect(0, KVC_ERROR, KVC_CAUSE_IO);
	submits = fake->submits;
	get_all(1);
	expect(0, KVC_MISS, KVC_CAUSE_MARKED);
	prepare(KVC_EXISTS, 1);
	run(1);
	expect(0, KVC_MISS, KVC_CAUSE_MARKED);
	assert_int_equal(fake->submits, submits);
	fake->hook = NULL;
	/* The set writes although something of the right size is there, and ends the mark. */
	page_fill(&pages->pages[0], 0);
	prepare(KVC_SET, 1);
	run(1);
	expect(0, KVC_OK, KVC_CAUSE_NONE);
	check_usage(0, 2, 2 * pages->pages[0].shape.stored_bytes);
	get_all(2);
	expect_all(2, KVC_OK, KVC_CAUSE_NONE);
}

static void misses_and_denials_leave_no_mark(void **state)
{
	(void)state;
	fake_open(fake, 1);
	for (int i = 0; i < 4; i++) {
		get_all(2);
		expect_all(2, KVC_MISS, KVC_CAUSE_ABSENT);
	}
}

/* ---------------------------------------------------------------- damage */

static void r08_the_proven_wrong_are_removed_and_counted(void **state)
{
	const uint64_t stored = pages->pages[0].shape.stored_bytes;
	struct fake_object *first, *second;
	uint8_t *swap;

	(void)state;
	fake_open(fake, 1);
	set_all(6);
	fake_find(fake, PATH "0")->data[7] ^= 1;
	fake_find(fake, PATH "1")->data[stored - 1] ^= 1;
	fake_find(fake, PATH "2")->bytes -= 1;
	first = fake_find(fake, PATH "3");
	second = fake_find(fake, PATH "4");
	swap = first->data;
	first->data = second->data;
	second->data = swap;
	get_all(6);
	expect(0, KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	expect(1, KVC_CORRUPT, KVC_CAUSE_TRAILER);
	expect(2, KVC_MISS, KVC_CAUSE_SHORT);
	expect(3, KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT);
	expect(4, KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT);
	expect(5, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(fake->removes, 5);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_REMOVED_CORRUPT), 5);
	check_usage(0, 1, stored + 1); /* the byte that was cut was counted */
	get_all(6);
	for (uint32_t i = 0; i < 5; i++)
		expect(i, KVC_MISS, KVC_CAUSE_ABSENT);
}

static int64_t replaced_meanwhile(struct fake *f, const struct kvc_descriptor *d,
				  struct kvc_completion *c)
{
	(void)c;
	if (d->op == KVC_OP_REMOVE)
		fake_find(f, d->name)->version++;
	return FAKE_NORMAL;
}

static void what_was_replaced_meanwhile_stays(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(1);
	fake_find(fake, PATH "0")->data[0] ^= 1;
	fake->hook = replaced_meanwhile;
	get_all(1);
	expect(0, KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	assert_int_equal(fake->removes, 0);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_REMOVED_CORRUPT), 0);
	check_usage(0, 1, pages->pages[0].shape.stored_bytes);
}

static void a_read_only_root_removes_and_writes_nothing(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(2);
	fake_find(fake, PATH "0")->data[0] ^= 1;
	fake_root(fake, 0)->writes_refused = true;
	get_all(2);
	expect(0, KVC_CORRUPT, KVC_CAUSE_CHECKSUM);
	expect(1, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(fake->removes, 0);
	prepare(KVC_SET, 2);
	run(2);
	expect_all(2, KVC_DENIED, KVC_CAUSE_READ_ONLY);
	prepare(KVC_REMOVE, 2);
	run(2);
	expect_all(2, KVC_DENIED, KVC_CAUSE_READ_ONLY);
}

/* ---------------------------------------------------------------- deadlines, cancelling */

static int64_t stall_reads(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_READ ? FAKE_STALL : FAKE_NORMAL;
}

static void set_deadline(uint32_t count, uint64_t ms)
{
	for (uint32_t i = 0; i < count; i++)
		pages->requests[i].deadline_ns = kvc_now_ns() + ms * MS;
}

static void r33_a_hard_root_is_cancelled_at_the_deadline(void **state)
{
	(void)state;
	fake->attributes.flags |= KVC_ATTRIBUTE_CANCELLABLE;
	fake_open(fake, 2);
	set_all(COUNT);
	fake->hook = stall_reads;
	prepare(KVC_GET, COUNT);
	set_deadline(COUNT, 60);
	run(COUNT);
	expect_all(COUNT, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	assert_true(fake->cancels >= 2);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_OVERRUNS), 0);
	fake->hook = NULL;
	get_all(COUNT);
	expect_all(COUNT, KVC_OK, KVC_CAUSE_NONE); /* the queue serves on */
}

static void *release_later(void *context)
{
	const struct timespec pause = kvc_timespec(2500 * MS);

	(void)nanosleep(&pause, NULL);
	fake_release(context);
	return NULL;
}

static int64_t stall_reads_of_root_0(struct fake *f, const struct kvc_descriptor *d,
				     struct kvc_completion *c)
{
	const unsigned number = (unsigned)strtoul(strrchr(d->name, '-') + 1, NULL, 10);

	(void)f, (void)c;
	return d->op == KVC_OP_READ && number % 2 == 0 ? FAKE_STALL : FAKE_NORMAL;
}

static void r33_a_soft_root_is_waited_for_and_then_suspect(void **state)
{
	pthread_t thread;
	uint32_t accepted;

	(void)state;
	fake_open(fake, 2);
	set_all(COUNT);
	fake->hook = stall_reads_of_root_0;
	prepare(KVC_GET, COUNT);
	set_deadline(COUNT, 2000); /* for the other root, however slow this machine is */
	accepted = fake->accepted;
	assert_int_equal(pthread_create(&thread, NULL, release_later, fake), 0);
	run(COUNT);
	assert_int_equal(pthread_join(thread, NULL), 0);
	/* What was in flight came back, late; nothing new was begun after the deadline. */
	for (uint32_t i = 0; i < COUNT; i += 2)
		expect(i, i < 64 ? KVC_OK : KVC_TIMEOUT,
		       i < 64 ? KVC_CAUSE_NONE : KVC_CAUSE_DEADLINE);
	for (uint32_t i = 1; i < COUNT; i += 2)
		expect(i, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(fake->accepted - accepted, 32 + COUNT / 2);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_OVERRUNS), 1);
	assert_true(fake_root(fake, 0)->suspect);
	assert_false(fake_root(fake, 1)->suspect); /* it was in time */
	assert_int_equal(kvc_root_deadline_kind(fake_root(fake, 0)), KVC_DEADLINE_STAGED);
	fake->hook = NULL;
	get_all(COUNT);
	expect_all(COUNT, KVC_OK, KVC_CAUSE_NONE);
}

static void a_root_that_was_not_asked_is_not_suspect(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(3);
	prepare(KVC_GET, 3);
	for (uint32_t i = 0; i < 3; i++)
		pages->requests[i].deadline_ns = kvc_now_ns() - 2000 * MS;
	run(3);
	expect_all(3, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_OVERRUNS), 0);
	assert_false(fake_root(fake, 0)->suspect);
}

static void refusal_for_ever_ends_at_the_deadline(void **state)
{
	(void)state;
	fake_open(fake, 1);
	set_all(3);
	fake->refuse = UINT32_MAX;
	prepare(KVC_GET, 3);
	set_deadline(3, 50);
	run(3);
	expect_all(3, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
	fake->refuse = 0;
	get_all(3);
	expect_all(3, KVC_OK, KVC_CAUSE_NONE);
}

static void what_was_not_begun_can_be_cancelled(void **state)
{
	atomic_bool cancel = true;

	(void)state;
	fake_open(fake, 1);
	prepare(KVC_SET, 50);
	kvc_xfer_run(&fake->store, pages->requests, 50, &cancel);
	expect_all(50, KVC_SKIPPED, KVC_CAUSE_CANCELLED);
	assert_int_equal(fake_find(fake, PATH "0") == NULL, 1);
}

static void *hold_queues(void *context)
{
	struct kvc_queue **queues = context;
	const struct timespec pause = kvc_timespec(150 * MS);

	(void)nanosleep(&pause, NULL);
	kvc_queue_return(queues[0]);
	return NULL;
}

static void a_root_without_a_free_queue_holds_up_no_other(void **state)
{
	struct kvc_queue *queues[16];
	pthread_t thread;

	(void)state;
	fake_open(fake, 2);
	set_all(20);
	for (int i = 0; i < 16; i++)
		assert_int_equal(kvc_queue_lease(fake_root(fake, 0), UINT64_MAX / 2, &queues[i]),
				 0);
	prepare(KVC_GET, 20);
	set_deadline(20, 50);
	run(20);
	for (uint32_t i = 0; i < 20; i += 2) {
		expect(i, KVC_TIMEOUT, KVC_CAUSE_DEADLINE);
		expect(i + 1, KVC_OK, KVC_CAUSE_NONE);
	}
	/* One comes back in time: all is well. */
	assert_int_equal(pthread_create(&thread, NULL, hold_queues, queues), 0);
	get_all(20);
	expect_all(20, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (int i = 1; i < 16; i++)
		kvc_queue_return(queues[i]);
}

static void names_too_long_are_refused_one_by_one(void **state)
{
	char folder[KVC_PATH_BYTES];

	(void)state;
	fake_open(fake, 1);
	set_all(2);
	memset(folder, 'f', sizeof(folder) - 1);
	folder[sizeof(folder) - 1] = '\0';
	prepare(KVC_GET, 2);
	pages->requests[0].folder = folder;
	run(2);
	expect(0, KVC_ERROR, KVC_CAUSE_NAME);
	expect(1, KVC_OK, KVC_CAUSE_NONE);
}

static void registered_memory_is_told_to_the_plugin(void **state)
{
	const struct kvc_memory memory = { .size = sizeof(memory),
					   .addr = pages->pages[0].memory,
					   .bytes = pages->pages[0].memory_bytes };
	struct kvc_region *region;

	(void)state;
	fake_open(fake, 1);
	assert_int_equal(kvc_memory_register(&fake->store, &memory, &region), 0);
	set_all(2);
	get_all(2);
	expect_all(2, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(kvc_memory_deregister(region), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(every_alignment_late_and_range_limit_round_trips),
		TEST(order_and_pace_of_completions_do_not_matter),
		TEST(again_is_backpressure_only),
		TEST(exists_set_remove_follow_what_is_there),
		TEST(what_was_evicted_and_is_asked_for_is_counted),
		TEST(r07_a_replaced_object_is_counted_once),
		TEST(sizes_that_are_not_known_spoil_no_count),
		TEST(a_set_that_loses_the_race_has_existed),
		TEST(nixl_naming_counts_all_as_one),
		TEST(r25_refused_memory_is_bounced_once),
		TEST(each_errno_has_its_result_for_a_get),
		TEST(a_set_never_ends_as_a_miss),
		TEST(r02_a_short_write_is_an_error),
		TEST(r05_one_failure_harms_no_other),
		TEST(a_queue_that_refuses_is_not_used_again),
		TEST(a_queue_that_cannot_poll_is_settled),
		TEST(r23_what_fails_twice_is_not_asked_again),
		TEST(misses_and_denials_leave_no_mark),
		TEST(r08_the_proven_wrong_are_removed_and_counted),
		TEST(what_was_replaced_meanwhile_stays),
		TEST(a_read_only_root_removes_and_writes_nothing),
		TEST(r33_a_hard_root_is_cancelled_at_the_deadline),
		TEST(r33_a_soft_root_is_waited_for_and_then_suspect),
		TEST(a_root_that_was_not_asked_is_not_suspect),
		TEST(refusal_for_ever_ends_at_the_deadline),
		TEST(what_was_not_begun_can_be_cancelled),
		TEST(a_root_without_a_free_queue_holds_up_no_other),
		TEST(names_too_long_are_refused_one_by_one),
		TEST(registered_memory_is_told_to_the_plugin),
		TEST(a_queue_that_cannot_be_destroyed_keeps_the_root_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
