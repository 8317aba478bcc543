/* SPDX-License-Identifier: Apache-2.0 */
/* connector/batch_start.c: batches in the store's I/O threads. */
#include "fake.h"

#include "connector/handle.h"

#include <poll.h>
#include <stdio.h>

#define PAGES 64u
#define BYTES 512u

static struct fake *fake;
static struct kvc_namespace *ns;
static struct kvc_pool *pool;
static uint8_t memory[PAGES * BYTES];
static struct kvc_key keys[PAGES];
static char texts[PAGES][16];
static int64_t indices[PAGES];

struct call {
	struct kvc_transfer transfer;
	struct kvc_result results[PAGES];
	struct kvc_batch *batch;
};

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	fake->attributes.alignment = 1;
	fake_open(fake, 2);
	ns = fake_namespace(fake, "model");
	pool = fake_pool(ns, memory, PAGES, 1, BYTES, BYTES);
	for (uint32_t i = 0; i < PAGES; i++) {
		(void)snprintf(texts[i], sizeof(texts[i]), "k%u", i);
		keys[i] = (struct kvc_key){ .data = texts[i], .bytes = strlen(texts[i]) };
		indices[i] = i;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_close(ns, pool);
	fake_free(fake);
	return 0;
}

static void start(struct call *call, uint32_t op, size_t count)
{
	call->transfer = (struct kvc_transfer){ .size = sizeof(call->transfer),
						.op = op,
						.pool = pool,
						.keys = keys,
						.key_count = count,
						.indices = indices,
						.results = call->results };
	assert_int_equal(kvc_batch_start(&fake->store, &call->transfer, 1, &call->batch), 0);
}

static void finish(struct call *call)
{
	assert_int_equal(kvc_batch_wait(call->batch, UINT32_MAX), 1);
	assert_int_equal(kvc_batch_poll(call->batch), 1);
	assert_int_equal(kvc_batch_free(call->batch), 0);
}

static void started_batches_do_what_run_does(void **state)
{
	struct call call;
	struct pollfd fd = { .events = POLLIN };

	(void)state;
	start(&call, KVC_SET, PAGES);
	fd.fd = kvc_batch_event_fd(call.batch);
	assert_int_equal(poll(&fd, 1, 20000), 1);
	assert_int_equal(kvc_batch_wait(call.batch, 0), 1);
	assert_int_equal(poll(&fd, 1, 0), 1); /* it stays readable */
	finish(&call);
	assert_int_equal(call.transfer.ok_count, PAGES);
	start(&call, KVC_GET, PAGES);
	finish(&call);
	assert_int_equal(call.transfer.ok_count, PAGES);
}

static void an_empty_batch_ends_too(void **state)
{
	struct kvc_batch *batch;

	(void)state;
	assert_int_equal(kvc_batch_start(&fake->store, NULL, 0, &batch), 0);
	assert_int_equal(kvc_batch_wait(batch, UINT32_MAX), 1);
	assert_int_equal(kvc_batch_free(batch), 0);
}

static int64_t stall(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_READ || d->op == KVC_OP_STAT ? FAKE_STALL : FAKE_NORMAL;
}

static void what_is_at_work_cannot_be_freed(void **state)
{
	struct call call;

	(void)state;
	start(&call, KVC_SET, 4);
	finish(&call);
	fake->hook = stall;
	start(&call, KVC_GET, 4);
	assert_int_equal(kvc_batch_wait(call.batch, 20), 0);
	assert_int_equal(kvc_batch_poll(call.batch), 0);
	assert_int_equal(kvc_batch_free(call.batch), -EBUSY);
	assert_int_equal(kvc_pool_close(pool), -EBUSY);
	assert_int_equal(kvc_namespace_close(ns), -EBUSY);
	fake_release(fake);
	finish(&call);
	assert_int_equal(call.transfer.ok_count, 4);
}

static void cancelling_skips_what_was_not_begun(void **state)
{
	struct call busy[2], waiting;

	(void)state;
	start(&busy[0], KVC_SET, 4);
	finish(&busy[0]);
	fake->hook = stall;
	/* Two roots, two threads: both are at work. */
	start(&busy[0], KVC_EXISTS, 4);
	start(&busy[1], KVC_EXISTS, 4);
	start(&waiting, KVC_SET, PAGES);
	assert_int_equal(kvc_batch_cancel(waiting.batch), 0);
	assert_int_equal(kvc_batch_poll(waiting.batch), 0); /* done when wait says so */
	fake_release(fake);
	finish(&busy[0]);
	finish(&busy[1]);
	finish(&waiting);
	for (size_t i = 0; i < PAGES; i++) {
		assert_int_equal(waiting.results[i].status, KVC_SKIPPED);
		assert_int_equal(waiting.results[i].cause, KVC_CAUSE_CANCELLED);
	}
	assert_int_equal(waiting.transfer.ok_count, 0);
}

static void too_many_batches_are_refused(void **state)
{
	static struct call calls[1100];
	size_t count = 0;
	int rc = 0;

	(void)state;
	start(&calls[0], KVC_SET, 1);
	finish(&calls[0]);
	fake->hook = stall;
	for (; count < 1100; count++) {
		struct call *call = &calls[count];

		call->transfer = (struct kvc_transfer){ .size = sizeof(call->transfer),
							.op = KVC_EXISTS,
							.pool = pool,
							.keys = keys,
							.key_count = 1,
							.indices = indices,
							.timeout_ms = 60000,
							.results = call->results };
		rc = kvc_batch_start(&fake->store, &call->transfer, 1, &call->batch);
		if (rc)
			break;
	}
	assert_int_equal(rc, -EAGAIN);
	assert_true(count >= 1024);
	fake_release(fake);
	for (size_t i = 0; i < count; i++)
		finish(&calls[i]);
}

static void nothing_is_refused_with_a_crash(void **state)
{
	struct kvc_batch *batch = NULL;
	struct kvc_transfer transfer = { .size = sizeof(transfer), .pool = pool };

	(void)state;
	assert_int_equal(kvc_batch_start(NULL, &transfer, 1, &batch), -EINVAL);
	assert_int_equal(kvc_batch_start(&fake->store, NULL, 1, &batch), -EINVAL);
	assert_int_equal(kvc_batch_start(&fake->store, &transfer, 1, NULL), -EINVAL);
	assert_null(batch);
	assert_int_equal(kvc_batch_wait(NULL, 0), -EINVAL);
	assert_int_equal(kvc_batch_poll(NULL), -EINVAL);
	assert_int_equal(kvc_batch_cancel(NULL), -EINVAL);
	assert_int_equal(kvc_batch_event_fd(NULL), -EINVAL);
	assert_int_equal(kvc_batch_free(NULL), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(started_batches_do_what_run_does), TEST(an_empty_batch_ends_too),
		TEST(what_is_at_work_cannot_be_freed),	TEST(cancelling_skips_what_was_not_begun),
		TEST(too_many_batches_are_refused),	TEST(nothing_is_refused_with_a_crash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
