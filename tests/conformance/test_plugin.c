/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a plugin keep the contract of plugin.h? Arguments:
 *   mem | fault [<plugin below>] | posix <I/O engine> direct|buffered [registered]
 */
#include "conformance/plugin_harness.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static struct harness_parameters parameters;

/* ---------------------------------------------------------------- set-up */

struct fixture {
	struct harness harness;
	struct kvc_plugin_queue *queue;
};

static struct kvc_plugin_queue *queue_new(struct harness *harness, uint32_t depth)
{
	struct kvc_queue_params params = { .size = sizeof(params), .depth = depth };
	struct kvc_plugin_queue *queue = NULL;

	assert_int_equal(harness->plugin->queue_create(harness->root, &params, &queue), 0);
	assert_non_null(queue);
	return queue;
}

/* A plugin without the slot cannot end anything early. */
static int queue_cancel(struct fixture *fixture, const struct kvc_descriptor *const *descriptors,
			uint32_t count)
{
	const struct kvc_plugin *plugin = fixture->harness.plugin;

	return plugin->cancel ? plugin->cancel(fixture->queue, descriptors, count) : -EBUSY;
}

static int setup(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));

	harness_open(&fixture->harness, &parameters, NULL);
	fixture->queue = queue_new(&fixture->harness, 16);
	*state = fixture;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *fixture = *state;

	assert_int_equal(fixture->harness.plugin->queue_destroy(fixture->queue), 0);
	harness_close(&fixture->harness);
	free(fixture);
	return 0;
}

/* ---------------------------------------------------------------- attributes, opening */

static void test_attributes_make_sense(void **state)
{
	struct fixture *fixture = *state;
	const struct kvc_attributes *a = &fixture->harness.attributes;

	assert_true(a->max_ranges >= 4);
	assert_true(a->max_depth >= 1);
	assert_true(a->max_object_bytes >= 4 * MIB);
	assert_true(a->alignment >= 1 && a->alignment <= 4096);
	assert_int_equal(a->alignment & (a->alignment - 1), 0);
	assert_true(a->memory_kinds == 0 || a->memory_kinds & (1u << KVC_MEMORY_HOST));
	assert_true(a->flags & (KVC_ATTRIBUTE_WHOLE | KVC_ATTRIBUTE_IN_PLACE));
	assert_non_null(memchr(a->io_engine, '\0', sizeof(a->io_engine)));
	assert_non_null(memchr(a->file_system, '\0', sizeof(a->file_system)));
	assert_non_null(memchr(a->note, '\0', sizeof(a->note)));
	if (parameters.io_engines)
		assert_string_equal(a->io_engine, parameters.io_engines);
}

static void test_absent_root_is_refused_with_a_reason(void **state)
{
	struct fixture *fixture = *state;
	struct kvc_plugin_root *root = NULL;
	char location[256];

	harness_location(location, sizeof(location));
	fixture->harness.reason[0] = '\0';
	assert_int_equal(harness_root_open(&fixture->harness, location, 0, &root), -ENOENT);
	assert_null(root);
	assert_string_not_equal(fixture->harness.reason, "");
}

static void test_objects_outlive_the_backend(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 8191);
	char location[256];

	assert_int_equal(do_write(harness, fixture->queue, "kept", bytes, 3, 0), bytes);
	memcpy(location, harness->location, sizeof(location));
	assert_int_equal(harness->plugin->queue_destroy(fixture->queue), 0);
	harness_close(harness);
	harness_open(harness, &parameters, location);
	fixture->queue = queue_new(harness, 4);
	assert_int_equal(do_read(harness, fixture->queue, "kept", bytes, 3), bytes);
}

static void test_read_only_root_refuses_changes(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 4096);
	struct kvc_attributes attributes = { .size = sizeof(attributes) };
	struct kvc_queue_params queue_params = { .size = sizeof(queue_params), .depth = 4 };
	struct kvc_plugin_queue *queue = NULL;
	struct kvc_plugin_root *root = NULL;

	assert_int_equal(do_write(harness, fixture->queue, "present", bytes, 1, 0), bytes);
	assert_int_equal(harness_root_open(harness, harness->location, KVC_ROOT_READ_ONLY, &root),
			 0);
	assert_int_equal(harness->plugin->root_query(root, &attributes), 0);
	assert_true(attributes.flags & KVC_ATTRIBUTE_READ_ONLY);
	assert_int_equal(harness->plugin->queue_create(root, &queue_params, &queue), 0);
	assert_int_equal(do_read(harness, queue, "present", bytes, 1), bytes);
	assert_int_equal(do_write(harness, queue, "present", bytes, 2, 0), -EROFS);
	assert_int_equal(do_write(harness, queue, "other", bytes, 2, 0), -EROFS);
	assert_int_equal(do_remove(harness, queue, "present", NULL), -EROFS);
	assert_int_equal(do_read(harness, queue, "present", bytes, 1), bytes);
	assert_int_equal(do_stat(harness, queue, "other", NULL), -ENOENT);
	assert_int_equal(harness->plugin->queue_destroy(queue), 0);
	assert_int_equal(harness->plugin->root_close(root), 0);
}

/* ---------------------------------------------------------------- whole objects */

static void test_miss_is_enoent(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;

	assert_int_equal(do_read(harness, fixture->queue, "absent", 4096, 0), -ENOENT);
	assert_int_equal(do_read(harness, fixture->queue, "no/such/folder", 4096, 0), -ENOENT);
	assert_int_equal(do_stat(harness, fixture->queue, "absent", NULL), -ENOENT);
	assert_int_equal(do_remove(harness, fixture->queue, "absent", NULL), -ENOENT);
}

static void test_sizes_come_back_exactly(void **state)
{
	static const uint64_t sizes[] = { 1,	511,	 512,	  513,	       4095,
					  4096, 4097,	 66048,	  131072,      MIB - 1,
					  MIB,	MIB + 8, 2 * MIB, 3 * MIB + 5, 4 * MIB };
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t bytes = harness_round(harness, sizes[i]);
		struct kvc_completion stat;
		char name[64];

		(void)snprintf(name, sizeof(name), "ns/%02zx/size%zu", i, i);
		assert_int_equal(do_write(harness, fixture->queue, name, bytes, i, 0), bytes);
		assert_int_equal(do_stat(harness, fixture->queue, name, &stat), 0);
		assert_int_equal(stat.object_bytes, bytes);
		assert_int_equal(do_read(harness, fixture->queue, name, bytes, i), bytes);
	}
}

static void test_odd_addresses_work_without_alignment(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	unsigned char *buffer = buffer_new(70000);
	struct op ops[2];

	if (harness->attributes.alignment != 1) {
		buffer_free(buffer);
		return; /* the library bounces what is not aligned */
	}
	buffer_fill(buffer + 1, 66047, 9);
	op_init(&ops[0], harness, KVC_OP_WRITE, "odd");
	op_ranges(&ops[0], harness, buffer + 1, 66047, 4);
	ops_run(harness, fixture->queue, ops, 1);
	assert_int_equal(ops[0].completion.result, 66047);
	memset(buffer, 0xaa, 70000);
	op_init(&ops[1], harness, KVC_OP_READ, "odd");
	op_ranges(&ops[1], harness, buffer + 3, 66047, 3);
	ops_run(harness, fixture->queue, ops + 1, 1);
	assert_int_equal(ops[1].completion.result, 66047);
	assert_int_equal(buffer_check(buffer + 3, 66047, 9), 66047);
	assert_int_equal(buffer[2], 0xaa);
	assert_int_equal(buffer[3 + 66047], 0xaa);
	op_free(&ops[0]);
	op_free(&ops[1]);
	buffer_free(buffer);
}

static void test_short_transfer_tells_its_bytes(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t have = harness_round(harness, 10000);
	uint64_t want = harness_round(harness, 50000);
	uint64_t offset = harness_round(harness, 4096);
	unsigned char *buffer = buffer_new(want);
	struct op op;

	assert_int_equal(do_write(harness, fixture->queue, "short", have, 4, 0), have);
	op_init(&op, harness, KVC_OP_READ, "short");
	op_ranges(&op, harness, buffer, want, 3);
	ops_run(harness, fixture->queue, &op, 1);
	assert_int_equal(op.completion.result, have);
	assert_int_equal(op.completion.object_bytes, have);
	assert_int_equal(buffer_check(buffer, have, 4), have);
	/* A direct read past the end may clear the rest of what was asked for (ext4 does). */
	for (uint64_t i = parameters.direct ? want : have; i < want + 4096; i++)
		assert_int_equal(buffer[i], 0xaa);
	op_free(&op);

	op_init(&op, harness, KVC_OP_READ, "short");
	op.descriptor.offset = offset;
	op_ranges(&op, harness, buffer, want, 2);
	ops_run(harness, fixture->queue, &op, 1);
	assert_int_equal(op.completion.result, have - offset);
	op_free(&op);

	op_init(&op, harness, KVC_OP_READ, "short");
	op.descriptor.offset = want;
	op_ranges(&op, harness, buffer, offset, 1);
	ops_run(harness, fixture->queue, &op, 1);
	assert_int_equal(op.completion.result, 0);
	op_free(&op);
	buffer_free(buffer);
}

static void test_write_replaces(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t large = harness_round(harness, 200000);
	uint64_t small = harness_round(harness, 5000);
	struct kvc_completion stat;

	assert_int_equal(do_write(harness, fixture->queue, "r", large, 1, 0), large);
	assert_int_equal(do_write(harness, fixture->queue, "r", small, 2, KVC_DESCRIPTOR_DURABLE),
			 small);
	assert_int_equal(do_stat(harness, fixture->queue, "r", &stat), 0);
	assert_int_equal(stat.object_bytes, small);
	assert_int_equal(do_read(harness, fixture->queue, "r", small, 2), small);
}

static void test_remove_honours_the_version(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 4096);
	struct kvc_completion first;
	struct kvc_completion second;

	assert_int_equal(do_write(harness, fixture->queue, "v", bytes, 1, 0), bytes);
	assert_int_equal(do_stat(harness, fixture->queue, "v", &first), 0);
	assert_int_equal(do_write(harness, fixture->queue, "v", bytes, 2, 0), bytes);
	assert_int_equal(do_stat(harness, fixture->queue, "v", &second), 0);
	if (first.version[0] != 0 || first.version[1] != 0) {
		assert_memory_not_equal(first.version, second.version, sizeof(first.version));
		assert_int_equal(do_remove(harness, fixture->queue, "v", first.version), -ESTALE);
		assert_int_equal(do_read(harness, fixture->queue, "v", bytes, 2), bytes);
		/* The attempt may have made it another version, but not another object. */
		assert_int_equal(do_stat(harness, fixture->queue, "v", &second), 0);
		assert_int_equal(do_remove(harness, fixture->queue, "v", second.version), 0);
	} else {
		assert_int_equal(do_remove(harness, fixture->queue, "v", NULL), 0);
	}
	assert_int_equal(do_stat(harness, fixture->queue, "v", NULL), -ENOENT);
	assert_int_equal(do_write(harness, fixture->queue, "v", bytes, 3, 0), bytes);
	assert_int_equal(do_remove(harness, fixture->queue, "v", NULL), 0);
	assert_int_equal(do_read(harness, fixture->queue, "v", bytes, 3), -ENOENT);
}

/* ---------------------------------------------------------------- LATE */

static void late_write(struct fixture *fixture, const char *name, int fill_result, struct op *op)
{
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 70000);
	uint64_t tail = harness_round(harness, 4096);
	unsigned char *buffer = buffer_new(bytes + tail);

	buffer_fill(buffer, bytes, 6);
	op_init(op, harness, KVC_OP_WRITE, name);
	op_ranges(op, harness, buffer, bytes, 2);
	op->ranges[op->descriptor.range_count++] = (struct kvc_range){ .addr = buffer + bytes,
								       .bytes = tail,
								       .flags = KVC_RANGE_LATE };
	op->fill_result = fill_result;
	ops_run(harness, fixture->queue, op, 1);
	assert_int_equal(atomic_load(&op->fills), 1);
	op_free(op);
	buffer_free(buffer);
}

static void test_late_range_is_filled_before_publishing(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 70000);
	uint64_t tail = harness_round(harness, 4096);
	unsigned char *buffer = buffer_new(bytes + tail);
	struct op op;

	if (!harness_has(harness, KVC_ATTRIBUTE_LATE)) {
		buffer_free(buffer);
		return; /* the library fills first then */
	}
	late_write(fixture, "late", 0, &op);
	assert_int_equal(op.completion.result, bytes + tail);
	op_init(&op, harness, KVC_OP_READ, "late");
	op_ranges(&op, harness, buffer, bytes + tail, 1);
	ops_run(harness, fixture->queue, &op, 1);
	assert_int_equal(op.completion.result, bytes + tail);
	assert_int_equal(buffer_check(buffer, bytes, 6), bytes);
	assert_int_equal(buffer_check(buffer + bytes, tail, 0x1a7e), tail);
	op_free(&op);

	late_write(fixture, "late2", -EUCLEAN, &op);
	assert_int_equal(op.completion.result, -EUCLEAN);
	assert_int_equal(do_stat(harness, fixture->queue, "late2", NULL), -ENOENT);
	buffer_free(buffer);
}

/* ---------------------------------------------------------------- queues */

static void mixed_batch(const struct harness *harness, struct op *ops, uint32_t count,
			unsigned char *buffer, uint64_t each)
{
	for (uint32_t i = 0; i < count; i++) {
		unsigned char *mine = buffer + i * each;
		char name[64];

		(void)snprintf(name, sizeof(name), "mixed/%u", i);
		if (i % 4 == 0) { /* fails */
			op_init(&ops[i], harness, KVC_OP_READ, "mixed/absent");
			op_ranges(&ops[i], harness, mine, each, 2);
		} else if (i % 4 == 1) { /* fails */
			op_init(&ops[i], harness, KVC_OP_REMOVE, "mixed/absent");
		} else {
			buffer_fill(mine, each, i);
			op_init(&ops[i], harness, KVC_OP_WRITE, name);
			op_ranges(&ops[i], harness, mine, each, 4);
		}
	}
}

static void test_failures_stay_with_their_descriptor(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t each = harness_round(harness, 9000);
	enum {
		COUNT = 96
	};
	unsigned char *buffer = buffer_new(COUNT * each);
	struct op *ops = calloc(COUNT, sizeof(struct op));

	mixed_batch(harness, ops, COUNT, buffer, each);
	ops_run(harness, fixture->queue, ops, COUNT);
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(ops[i].completion.result, i % 4 < 2 ? -ENOENT : (int64_t)each);
		op_free(&ops[i]);
	}
	for (uint32_t i = 0; i < COUNT; i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "mixed/%u", i);
		assert_int_equal(do_read(harness, fixture->queue, name, each, i),
				 i % 4 < 2 ? -ENOENT : (int64_t)each);
	}
	free(ops);
	buffer_free(buffer);
}

static void test_small_queue_takes_a_large_batch(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	struct kvc_plugin_queue *queue = queue_new(harness, 2);
	uint64_t each = harness_round(harness, 3000);
	enum {
		COUNT = 60
	};
	unsigned char *buffer = buffer_new(COUNT * each);
	struct op *ops = calloc(COUNT, sizeof(struct op));
	const struct kvc_descriptor *all[COUNT];
	int accepted;
	uint32_t done = 0;

	for (uint32_t i = 0; i < COUNT; i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "batch/%u", i);
		buffer_fill(buffer + i * each, each, i);
		op_init(&ops[i], harness, KVC_OP_WRITE, name);
		op_ranges(&ops[i], harness, buffer + i * each, each, 1);
		all[i] = &ops[i].descriptor;
	}
	/* An idle queue takes something; a full one says -EAGAIN, and nothing is lost by it. */
	accepted = harness->plugin->submit(queue, all, COUNT);
	assert_true(accepted > 0);
	while (accepted < COUNT) {
		int rc = harness->plugin->submit(queue, all + accepted, COUNT - (uint32_t)accepted);

		assert_true(rc > 0 || rc == -EAGAIN);
		if (rc > 0)
			accepted += rc;
		else
			done += ops_poll(harness, queue, GUARD_NS);
	}
	while (done < COUNT) {
		uint32_t now = ops_poll(harness, queue, GUARD_NS);

		assert_true(now > 0);
		done += now;
	}
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(ops[i].completions, 1);
		assert_int_equal(ops[i].completion.result, each);
		op_free(&ops[i]);
	}
	assert_int_equal(ops_poll(harness, queue, 0), 0);
	assert_int_equal(ops_poll(harness, queue, 1000000), 0);
	assert_int_equal(harness->plugin->queue_destroy(queue), 0);
	free(ops);
	buffer_free(buffer);
}

static void test_outstanding_descriptor_keeps_things_open(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 4096);
	unsigned char *buffer = buffer_new(bytes);
	struct op op;

	buffer_fill(buffer, bytes, 8);
	op_init(&op, harness, KVC_OP_WRITE, "busy");
	op_ranges(&op, harness, buffer, bytes, 1);
	assert_int_equal(ops_submit(harness, fixture->queue, &op, 1), 1);
	assert_int_equal(harness->plugin->queue_destroy(fixture->queue), -EBUSY);
	assert_int_equal(harness->plugin->backend_close(harness->backend), -EBUSY);
	assert_int_equal(ops_poll(harness, fixture->queue, GUARD_NS), 1);
	assert_int_equal(op.completion.result, bytes);
	assert_int_equal(do_read(harness, fixture->queue, "busy", bytes, 8), bytes);
	op_free(&op);
	buffer_free(buffer);
}

static void test_cancel_ends_each_once(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t each = harness_round(harness, 300000);
	enum {
		COUNT = 8
	};
	unsigned char *buffer = buffer_new(COUNT * each);
	struct op ops[COUNT];
	uint32_t submitted;
	uint32_t done = 0;
	int rc;

	for (uint32_t i = 0; i < COUNT; i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "cancel/%u", i);
		buffer_fill(buffer + i * each, each, i);
		op_init(&ops[i], harness, KVC_OP_WRITE, name);
		op_ranges(&ops[i], harness, buffer + i * each, each, 2);
	}
	submitted = ops_submit(harness, fixture->queue, ops, COUNT);
	assert_true(submitted > 0);
	rc = queue_cancel(fixture, NULL, 0);
	assert_true(rc == 0 || rc == -EBUSY);
	if (harness_has(harness, KVC_ATTRIBUTE_CANCELLABLE))
		assert_int_equal(rc, 0);
	while (done < submitted) {
		uint32_t now = ops_poll(harness, fixture->queue, GUARD_NS);

		assert_true(now > 0);
		done += now;
	}
	for (uint32_t i = 0; i < COUNT; i++) {
		int64_t result = ops[i].completion.result;

		assert_int_equal(ops[i].completions, i < submitted ? 1 : 0);
		if (i < submitted)
			assert_true(result == (int64_t)each || result == -ECANCELED);
		/* Whole or not there. */
		result = do_read(harness, fixture->queue, ops[i].name, each, i);
		assert_true(result == (int64_t)each || result == -ENOENT);
		op_free(&ops[i]);
	}
	buffer_free(buffer);
}

static void test_cancel_of_one_spares_the_others(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t each = harness_round(harness, 100000);
	unsigned char *buffer = buffer_new(4 * each);
	const struct kvc_descriptor *chosen;
	struct op ops[4];
	uint32_t done = 0;
	int rc;

	for (uint32_t i = 0; i < 4; i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "cancel1/%u", i);
		buffer_fill(buffer + i * each, each, i);
		op_init(&ops[i], harness, KVC_OP_WRITE, name);
		op_ranges(&ops[i], harness, buffer + i * each, each, 2);
	}
	assert_int_equal(ops_submit(harness, fixture->queue, ops, 4), 4);
	chosen = &ops[2].descriptor;
	rc = queue_cancel(fixture, &chosen, 1);
	assert_true(rc == 0 || rc == -EBUSY);
	while (done < 4) {
		uint32_t now = ops_poll(harness, fixture->queue, GUARD_NS);

		assert_true(now > 0);
		done += now;
	}
	for (uint32_t i = 0; i < 4; i++) {
		int64_t result = ops[i].completion.result;

		assert_int_equal(ops[i].completions, 1);
		assert_true(result == (int64_t)each || (i == 2 && result == -ECANCELED));
		assert_int_equal(do_read(harness, fixture->queue, ops[i].name, each, i),
				 result == -ECANCELED ? -ENOENT : (int64_t)each);
		op_free(&ops[i]);
	}
	buffer_free(buffer);
}

static void test_event_fd_becomes_readable(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 4096);
	unsigned char *buffer = buffer_new(bytes);
	struct pollfd event = { .events = POLLIN };
	struct op op;

	event.fd = harness->plugin->event_fd ? harness->plugin->event_fd(fixture->queue) : -ENOTSUP;
	if (event.fd == -ENOTSUP) {
		buffer_free(buffer);
		return;
	}
	assert_true(event.fd >= 0);
	for (int round = 0; round < 20; round++) {
		buffer_fill(buffer, bytes, (uint64_t)round);
		op_init(&op, harness, KVC_OP_WRITE, "event");
		op_ranges(&op, harness, buffer, bytes, 1);
		assert_int_equal(ops_submit(harness, fixture->queue, &op, 1), 1);
		do
			assert_int_equal(poll(&event, 1, 60000), 1);
		while (ops_poll(harness, fixture->queue, 0) == 0);
		assert_int_equal(op.completion.result, bytes);
		op_free(&op);
		/* Nothing is left to wake up for. */
		assert_int_equal(ops_poll(harness, fixture->queue, 0), 0);
	}
	assert_int_equal(poll(&event, 1, 0), 0);
	assert_int_equal(harness->plugin->event_fd(fixture->queue), event.fd);
	buffer_free(buffer);
}

static void ignore_signal(int number)
{
	(void)number;
}

static void test_signals_harm_nothing(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 20000);
	struct sigaction action = { .sa_handler = ignore_signal }; /* no SA_RESTART */
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
	struct itimerval never = { { 0, 0 }, { 0, 0 } };

	assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
	for (uint64_t i = 0; i < 300; i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "signal/%llu", (unsigned long long)i % 7);
		assert_int_equal(do_write(harness, fixture->queue, name, bytes, i, 0), bytes);
		assert_int_equal(do_read(harness, fixture->queue, name, bytes, i), bytes);
		assert_int_equal(do_read(harness, fixture->queue, "absent", bytes, 0), -ENOENT);
	}
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
}

/* ---------------------------------------------------------------- threads */

struct worker {
	pthread_t thread;
	struct harness *harness;
	pthread_barrier_t *barrier;
	uint64_t number;
	uint64_t bytes;
	int64_t result;
	uint64_t object_bytes;
};

static void workers_run(struct fixture *fixture, struct worker *workers, uint32_t count,
			void *(*body)(void *))
{
	pthread_barrier_t barrier;

	assert_int_equal(pthread_barrier_init(&barrier, NULL, count), 0);
	for (uint32_t i = 0; i < count; i++) {
		workers[i].harness = &fixture->harness;
		workers[i].barrier = &barrier;
		workers[i].number = i;
		assert_int_equal(pthread_create(&workers[i].thread, NULL, body, &workers[i]), 0);
	}
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
	assert_int_equal(pthread_barrier_destroy(&barrier), 0);
}

static void *if_absent_body(void *argument)
{
	struct worker *worker = argument;
	struct kvc_plugin_queue *queue = queue_new(worker->harness, 4);
	unsigned char *buffer = buffer_new(worker->bytes);
	struct op op;

	buffer_fill(buffer, worker->bytes, worker->number);
	op_init(&op, worker->harness, KVC_OP_WRITE, "contested");
	op.descriptor.flags = KVC_DESCRIPTOR_IF_ABSENT;
	op_ranges(&op, worker->harness, buffer, worker->bytes, 2);
	(void)pthread_barrier_wait(worker->barrier);
	ops_run(worker->harness, queue, &op, 1);
	worker->result = op.completion.result;
	worker->object_bytes = op.completion.object_bytes;
	op_free(&op);
	buffer_free(buffer);
	assert_int_equal(worker->harness->plugin->queue_destroy(queue), 0);
	return NULL;
}

static void test_if_absent_has_one_winner(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 50000);

	if (!harness_has(harness, KVC_ATTRIBUTE_IF_ABSENT))
		return;
	for (int round = 0; round < 20; round++) {
		struct worker workers[4] = { { .bytes = bytes },
					     { .bytes = bytes },
					     { .bytes = bytes },
					     { .bytes = bytes } };
		uint64_t winner = 4;

		workers_run(fixture, workers, 4, if_absent_body);
		for (uint64_t i = 0; i < 4; i++) {
			if (workers[i].result == (int64_t)bytes) {
				assert_int_equal(winner, 4);
				winner = i;
			} else {
				assert_int_equal(workers[i].result, -EEXIST);
				assert_int_equal(workers[i].object_bytes, bytes);
			}
		}
		assert_true(winner < 4);
		assert_int_equal(do_read(harness, fixture->queue, "contested", bytes, winner),
				 bytes);
		assert_int_equal(do_remove(harness, fixture->queue, "contested", NULL), 0);
	}
}

/* Workers 0 and 1 replace the object; the others see one whole object of either. */
static void *replace_body(void *argument)
{
	struct worker *worker = argument;
	struct harness *harness = worker->harness;
	struct kvc_plugin_queue *queue = queue_new(harness, 4);
	unsigned char *buffer = buffer_new(2 * worker->bytes);

	(void)pthread_barrier_wait(worker->barrier);
	for (int round = 0; round < 100; round++) {
		struct op op;
		uint64_t got;

		if (worker->number < 2) {
			uint64_t bytes = (worker->number + 1) * worker->bytes;

			assert_int_equal(do_write(harness, queue, "shared", bytes, worker->number,
						  0),
					 bytes);
			continue;
		}
		op_init(&op, harness, KVC_OP_READ, "shared");
		op_ranges(&op, harness, buffer, 2 * worker->bytes, 3);
		ops_run(harness, queue, &op, 1);
		op_free(&op);
		if (op.completion.result == -ENOENT)
			continue;
		got = (uint64_t)op.completion.result;
		assert_true(got == worker->bytes || got == 2 * worker->bytes);
		assert_int_equal(op.completion.object_bytes, got);
		assert_int_equal(buffer_check(buffer, got, got == worker->bytes ? 0 : 1), got);
	}
	buffer_free(buffer);
	assert_int_equal(harness->plugin->queue_destroy(queue), 0);
	return NULL;
}

static void test_readers_see_one_whole_object(void **state)
{
	struct fixture *fixture = *state;
	uint64_t bytes = harness_round(&fixture->harness, 70000);
	struct worker workers[4] = {
		{ .bytes = bytes }, { .bytes = bytes }, { .bytes = bytes }, { .bytes = bytes }
	};

	workers_run(fixture, workers, 4, replace_body);
}

/* Random operations on names of one's own, compared with a model. */
static void *model_body(void *argument)
{
	struct worker *worker = argument;
	struct harness *harness = worker->harness;
	struct kvc_plugin_queue *queue = queue_new(harness, 8);
	unsigned int seed = (unsigned int)worker->number + 20;
	uint64_t bytes[10] = { 0 };
	uint64_t pattern[10] = { 0 };

	(void)pthread_barrier_wait(worker->barrier);
	for (uint64_t round = 0; round < 250; round++) {
		unsigned int at = (unsigned int)rand_r(&seed) % 10;
		unsigned int what = (unsigned int)rand_r(&seed) % 5;
		int64_t expected = bytes[at] ? (int64_t)bytes[at] : -ENOENT;
		struct kvc_completion stat;
		char name[64];

		(void)snprintf(name, sizeof(name), "w%llu/%u", (unsigned long long)worker->number,
			       at);
		if (what < 2) {
			bytes[at] = harness_round(harness, 1 + (uint64_t)rand_r(&seed) % 100000);
			pattern[at] = round;
			assert_int_equal(do_write(harness, queue, name, bytes[at], round, 0),
					 bytes[at]);
		} else if (what == 2) {
			assert_int_equal(do_remove(harness, queue, name, NULL),
					 bytes[at] ? 0 : -ENOENT);
			bytes[at] = 0;
		} else if (what == 3) {
			assert_int_equal(do_stat(harness, queue, name, &stat),
					 bytes[at] ? 0 : -ENOENT);
			if (bytes[at])
				assert_int_equal(stat.object_bytes, bytes[at]);
		} else {
			assert_int_equal(do_read(harness, queue, name, bytes[at] ? bytes[at] : 4096,
						 pattern[at]),
					 expected);
		}
	}
	assert_int_equal(harness->plugin->queue_destroy(queue), 0);
	return NULL;
}

static void test_random_operations_agree_with_a_model(void **state)
{
	struct worker workers[4] = { { .bytes = 0 } };

	workers_run(*state, workers, 4, model_body);
}

/* ---------------------------------------------------------------- listing, containers, memory */

struct listing {
	uint32_t count;
	uint64_t bytes;
	uint32_t stop_after;
};

static int list_one(void *context, const struct kvc_list_entry *entry)
{
	struct listing *listing = context;

	assert_true(entry->size >= sizeof(*entry));
	assert_int_equal(strlen(entry->name), entry->name_bytes);
	listing->count++;
	listing->bytes += entry->object_bytes;
	return listing->stop_after != 0 && listing->count == listing->stop_after ? 42 : 0;
}

static void test_list_shows_published_objects(void **state)
{
	static const char *const names[] = { "a/0", "a/1", "a/2", "ab/0", "b/deep/er/0" };
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	uint64_t bytes = harness_round(harness, 4096);
	struct listing all = { 0 };
	struct listing some = { 0 };
	struct listing none = { 0 };
	struct listing first = { .stop_after = 2 };

	if (!harness_has(harness, KVC_ATTRIBUTE_LISTS))
		return;
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(do_write(harness, fixture->queue, names[i], bytes, i, 0), bytes);
	assert_int_equal(harness->plugin->list(harness->root, "", list_one, &all), 0);
	assert_int_equal(all.count, 5);
	assert_int_equal(all.bytes, 5 * bytes);
	assert_int_equal(harness->plugin->list(harness->root, "a/", list_one, &some), 0);
	assert_int_equal(some.count, 3);
	assert_int_equal(harness->plugin->list(harness->root, "zz", list_one, &none), 0);
	assert_int_equal(none.count, 0);
	assert_int_equal(harness->plugin->list(harness->root, "", list_one, &first), 42);
	assert_int_equal(first.count, 2);
}

static void test_usage_and_reclaim(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	struct kvc_usage usage = { .size = sizeof(usage) };
	int rc = harness->plugin->usage ? harness->plugin->usage(harness->root, &usage) : -ENOTSUP;

	assert_true(rc == 0 || rc == -ENOTSUP);
	assert_true(usage.free_bytes <= usage.total_bytes);
	if (harness->plugin->reclaim)
		assert_int_equal(harness->plugin->reclaim(harness->root), 0);
}

static int64_t container_move(struct fixture *fixture, struct kvc_plugin_container *container,
			      enum kvc_op what, unsigned char *buffer, uint64_t bytes,
			      uint64_t offset)
{
	struct op op;

	op_init(&op, &fixture->harness, what, "");
	op.descriptor.container = container;
	op.descriptor.offset = offset;
	op_ranges(&op, &fixture->harness, buffer, bytes, 2);
	ops_run(&fixture->harness, fixture->queue, &op, 1);
	op_free(&op);
	return op.completion.result;
}

static void test_containers_are_written_in_place(void **state)
{
	struct fixture *fixture = *state;
	const struct kvc_plugin *plugin = fixture->harness.plugin;
	struct kvc_plugin_root *root = fixture->harness.root;
	struct kvc_plugin_container *container = NULL;
	struct kvc_plugin_container *again = NULL;
	unsigned char *buffer = buffer_new(65536);
	uint64_t bytes = 0;

	if (!harness_has(&fixture->harness, KVC_ATTRIBUTE_IN_PLACE)) {
		buffer_free(buffer);
		return;
	}
	assert_int_equal(plugin->container_open(root, "segment", 0, &container, &bytes), -ENOENT);
	assert_null(container);
	assert_int_equal(plugin->container_open(root, "segment", MIB, &container, &bytes), 0);
	assert_int_equal(bytes, MIB);
	assert_int_equal(plugin->container_open(root, "segment", 2 * MIB, &again, &bytes), -EEXIST);
	assert_int_equal(plugin->container_open(root, "segment", 0, &again, &bytes), 0);
	assert_int_equal(bytes, MIB);

	buffer_fill(buffer, 65536, 5);
	assert_int_equal(container_move(fixture, container, KVC_OP_WRITE, buffer, 65536, 8192),
			 65536);
	assert_int_equal(container_move(fixture, container, KVC_OP_SYNC, buffer, 0, 0), 0);
	memset(buffer, 0xaa, 65536);
	assert_int_equal(container_move(fixture, again, KVC_OP_READ, buffer, 65536, 8192), 65536);
	assert_int_equal(buffer_check(buffer, 65536, 5), 65536);
	assert_int_equal(container_move(fixture, again, KVC_OP_READ, buffer, 65536, MIB - 4096),
			 4096);

	assert_int_equal(plugin->container_resize(container, 2 * MIB), 0);
	assert_int_equal(container_move(fixture, container, KVC_OP_READ, buffer, 65536, 8192),
			 65536);
	assert_int_equal(buffer_check(buffer, 65536, 5), 65536);
	assert_int_equal(container_move(fixture, container, KVC_OP_WRITE, buffer, 4096,
					2 * MIB - 4096),
			 4096);
	assert_int_equal(plugin->container_close(again), 0);
	assert_int_equal(plugin->container_close(container), 0);
	assert_int_equal(plugin->container_open(root, "segment", 2 * MIB, &container, &bytes), 0);
	assert_int_equal(bytes, 2 * MIB);
	assert_int_equal(plugin->container_close(container), 0);
	if (plugin->container_remove) {
		assert_int_equal(plugin->container_remove(root, "segment"), 0);
		assert_int_equal(plugin->container_remove(root, "segment"), -ENOENT);
		assert_int_equal(plugin->container_open(root, "segment", 0, &container, &bytes),
				 -ENOENT);
	}
	buffer_free(buffer);
}

static void test_registered_and_own_memory(void **state)
{
	struct fixture *fixture = *state;
	struct harness *harness = &fixture->harness;
	const struct kvc_plugin *plugin = harness->plugin;
	uint64_t bytes = harness_round(harness, 100000);
	struct kvc_memory memory = { .size = sizeof(memory) };
	unsigned char *mine = NULL;
	uint64_t registration = 0;
	struct op ops[2];
	int rc;

	rc = plugin->memory_alloc ?
		     plugin->memory_alloc(harness->backend, bytes, &memory, &registration) :
		     -ENOTSUP;
	if (rc == 0) {
		assert_int_equal(memory.kind, KVC_MEMORY_PLUGIN);
		assert_true(memory.bytes >= bytes);
	} else {
		mine = buffer_new(bytes);
		memory.kind = KVC_MEMORY_HOST;
		memory.addr = mine;
		memory.bytes = bytes;
		if (!plugin->memory_register ||
		    plugin->memory_register(harness->backend, &memory, &registration) < 0)
			registration = 0;
	}
	buffer_fill(memory.addr, bytes, 12);
	op_init(&ops[0], harness, KVC_OP_WRITE, "registered");
	op_ranges(&ops[0], harness, memory.addr, bytes, 1);
	ops[0].ranges[0].registration = registration;
	ops[0].ranges[0].kind = (uint16_t)memory.kind;
	ops_run(harness, fixture->queue, ops, 1);
	assert_int_equal(ops[0].completion.result, bytes);
	memset(memory.addr, 0xaa, bytes);
	op_init(&ops[1], harness, KVC_OP_READ, "registered");
	op_ranges(&ops[1], harness, memory.addr, bytes, 1);
	ops[1].ranges[0].registration = registration;
	ops[1].ranges[0].kind = (uint16_t)memory.kind;
	ops_run(harness, fixture->queue, ops + 1, 1);
	assert_int_equal(ops[1].completion.result, bytes);
	assert_int_equal(buffer_check(memory.addr, bytes, 12), bytes);
	op_free(&ops[0]);
	op_free(&ops[1]);
	if (mine && registration != 0)
		assert_int_equal(plugin->memory_deregister(harness->backend, registration), 0);
	if (!mine)
		assert_int_equal(plugin->memory_free(harness->backend, registration), 0);
	buffer_free(mine);
}

/* ---------------------------------------------------------------- leaks */

static uint32_t entries_of(const char *folder)
{
	DIR *stream = opendir(folder);
	uint32_t count = 0;

	assert_non_null(stream);
	while (readdir(stream))
		count++;
	(void)closedir(stream);
	return count;
}

/* One life of a backend, with work on several queues. */
static void whole_life(void)
{
	struct kvc_plugin_queue *queues[3];
	struct harness harness;

	harness_open(&harness, &parameters, NULL);
	for (int i = 0; i < 3; i++) {
		uint64_t bytes = harness_round(&harness, 30000);

		queues[i] = queue_new(&harness, 8);
		if (harness.plugin->event_fd)
			(void)harness.plugin->event_fd(queues[i]);
		assert_int_equal(do_write(&harness, queues[i], "x/life", bytes, 1, 0), bytes);
		assert_int_equal(do_read(&harness, queues[i], "x/life", bytes, 1), bytes);
		assert_int_equal(do_read(&harness, queues[i], "x/none", bytes, 1), -ENOENT);
	}
	for (int i = 0; i < 3; i++)
		assert_int_equal(harness.plugin->queue_destroy(queues[i]), 0);
	harness_close(&harness);
}

static void test_closing_leaves_no_descriptor_and_no_thread(void **state)
{
	uint32_t descriptors;
	uint32_t threads;

	(void)state;
	whole_life(); /* what is made once per process is made now */
	descriptors = entries_of("/proc/self/fd");
	threads = entries_of("/proc/self/task");
	for (int i = 0; i < 5; i++)
		whole_life();
	assert_int_equal(entries_of("/proc/self/fd"), descriptors);
	/* A joined thread, and the kernel's own ones, may be listed a moment longer. */
	for (int i = 0; i < 1000 && entries_of("/proc/self/task") > threads; i++) {
		struct timespec pause = { .tv_nsec = 10000000 };

		(void)nanosleep(&pause, NULL);
	}
	assert_true(entries_of("/proc/self/task") <= threads);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static int remove_locations(void **state)
{
	(void)state;
	harness_remove_locations();
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(test_attributes_make_sense),
		TEST(test_absent_root_is_refused_with_a_reason),
		TEST(test_objects_outlive_the_backend),
		TEST(test_read_only_root_refuses_changes),
		TEST(test_miss_is_enoent),
		TEST(test_sizes_come_back_exactly),
		TEST(test_odd_addresses_work_without_alignment),
		TEST(test_short_transfer_tells_its_bytes),
		TEST(test_write_replaces),
		TEST(test_remove_honours_the_version),
		TEST(test_late_range_is_filled_before_publishing),
		TEST(test_failures_stay_with_their_descriptor),
		TEST(test_small_queue_takes_a_large_batch),
		TEST(test_outstanding_descriptor_keeps_things_open),
		TEST(test_cancel_ends_each_once),
		TEST(test_cancel_of_one_spares_the_others),
		TEST(test_event_fd_becomes_readable),
		TEST(test_signals_harm_nothing),
		TEST(test_if_absent_has_one_winner),
		TEST(test_readers_see_one_whole_object),
		TEST(test_random_operations_agree_with_a_model),
		TEST(test_list_shows_published_objects),
		TEST(test_usage_and_reclaim),
		TEST(test_containers_are_written_in_place),
		TEST(test_registered_and_own_memory),
		cmocka_unit_test(test_closing_leaves_no_descriptor_and_no_thread),
	};

	if (argc < 2) {
		fprintf(stderr,
			"usage: %s PLUGIN [I/O-ENGINE|LOWER] [direct|buffered] [registered]\n",
			argv[0]);
		return 2;
	}
	parameters.plugin = argv[1];
	if (strcmp(argv[1], "fault") == 0)
		parameters.lower = argc > 2 ? argv[2] : "mem";
	else if (argc > 2)
		parameters.io_engines = argv[2];
	parameters.direct = argc > 3 && strcmp(argv[3], "direct") == 0;
	parameters.registered = argc > 4 && strcmp(argv[4], "registered") == 0;
	return cmocka_run_group_tests(tests, NULL, remove_locations);
}
