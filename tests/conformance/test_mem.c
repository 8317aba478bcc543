/* SPDX-License-Identifier: Apache-2.0 */
/* What mem has besides the contract: latency, a limit, and counts that tests can see. */
#include "conformance/plugin_harness.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static struct kvc_plugin_queue *queue_new(struct harness *harness)
{
	const struct kvc_queue_params params = { .size = sizeof(params), .depth = 8 };
	struct kvc_plugin_queue *queue = NULL;

	assert_int_equal(harness->plugin->queue_create(harness->root, &params, &queue), 0);
	return queue;
}

static void test_cancelled_before_its_time_moves_nothing(void **state)
{
	const struct harness_parameters slow = { .plugin = "mem", .latency_us = "60000000" };
	const struct harness_parameters fast = { .plugin = "mem" };
	struct kvc_plugin_queue *slow_queue;
	struct kvc_plugin_queue *queue;
	struct harness slow_harness;
	struct harness harness;
	unsigned char *buffer = buffer_new(5000);
	struct pollfd event = { .events = POLLIN };
	struct op ops[2];

	(void)state;
	harness_open(&harness, &fast, NULL);
	queue = queue_new(&harness);
	assert_int_equal(do_write(&harness, queue, "there", 5000, 1, 0), 5000);
	/* Another backend at the same location has the same objects. */
	harness_open(&slow_harness, &slow, harness.location);
	slow_queue = queue_new(&slow_harness);
	event.fd = slow_harness.plugin->event_fd(slow_queue);
	op_init(&ops[0], &slow_harness, KVC_OP_READ, "there");
	op_ranges(&ops[0], &slow_harness, buffer, 5000, 1);
	op_init(&ops[1], &slow_harness, KVC_OP_REMOVE, "there");
	assert_int_equal(ops_submit(&slow_harness, slow_queue, ops, 2), 2);
	assert_int_equal(ops_poll(&slow_harness, slow_queue, 1000000), 0);
	assert_int_equal(poll(&event, 1, 0), 0);
	assert_int_equal(slow_harness.plugin->cancel(slow_queue, NULL, 0), 0);
	assert_int_equal(poll(&event, 1, 0), 1);
	assert_int_equal(ops_poll(&slow_harness, slow_queue, 0), 2);
	assert_int_equal(poll(&event, 1, 0), 0);
	assert_int_equal(ops[0].completion.result, -ECANCELED);
	assert_int_equal(ops[1].completion.result, -ECANCELED);
	assert_int_equal(buffer[0], 0xaa);
	assert_int_equal(do_read(&harness, queue, "there", 5000, 1), 5000);
	assert_int_equal(slow_harness.plugin->queue_destroy(slow_queue), 0);
	assert_int_equal(harness.plugin->queue_destroy(queue), 0);
	harness_close(&slow_harness);
	harness_close(&harness);
	op_free(&ops[0]);
	op_free(&ops[1]);
	buffer_free(buffer);
}

static void test_full_is_enospc_and_ends_with_a_removal(void **state)
{
	const struct harness_parameters parameters = { .plugin = "mem", .max_bytes = "10000" };
	struct kvc_usage usage = { .size = sizeof(usage) };
	struct kvc_plugin_queue *queue;
	struct harness harness;

	(void)state;
	harness_open(&harness, &parameters, NULL);
	queue = queue_new(&harness);
	assert_int_equal(do_write(&harness, queue, "a", 6000, 1, 0), 6000);
	assert_int_equal(do_write(&harness, queue, "b", 4001, 1, 0), -ENOSPC);
	assert_int_equal(do_write(&harness, queue, "b", 4000, 1, 0), 4000);
	assert_int_equal(harness.plugin->usage(harness.root, &usage), 0);
	assert_int_equal(usage.total_bytes, 10000);
	assert_int_equal(usage.free_bytes, 0);
	assert_int_equal(do_write(&harness, queue, "c", 1, 1, 0), -ENOSPC);
	assert_int_equal(do_read(&harness, queue, "a", 6000, 1), 6000);
	assert_int_equal(do_remove(&harness, queue, "a", NULL), 0);
	assert_int_equal(do_write(&harness, queue, "c", 6000, 2, 0), 6000);
	assert_int_equal(do_read(&harness, queue, "c", 6000, 2), 6000);
	assert_int_equal(harness.plugin->queue_destroy(queue), 0);
	harness_close(&harness);
}

static void test_bad_settings_are_named(void **state)
{
	const struct harness_parameters latency = { .plugin = "mem", .latency_us = "soon" };
	const struct harness_parameters limit = { .plugin = "mem", .max_bytes = "-1" };
	struct harness harness;

	(void)state;
	assert_int_equal(harness_backend_open(&harness, &latency), -EINVAL);
	assert_non_null(strstr(harness.reason, "latency_us = \"soon\""));
	assert_int_equal(harness_backend_open(&harness, &limit), -EINVAL);
	assert_non_null(strstr(harness.reason, "max_bytes = \"-1\""));
}

static void test_registrations_are_counted(void **state)
{
	const struct harness_parameters parameters = { .plugin = "mem" };
	unsigned char *buffer = buffer_new(4096);
	struct kvc_memory memory = { .size = sizeof(memory), .addr = buffer, .bytes = 4096 };
	struct kvc_memory own = { .size = sizeof(own) };
	struct harness harness;
	uint64_t first;
	uint64_t second;
	uint64_t third;

	(void)state;
	harness_open(&harness, &parameters, NULL);
	assert_int_equal(harness.plugin->memory_register(harness.backend, &memory, &first), 0);
	assert_int_equal(harness.plugin->memory_register(harness.backend, &memory, &second), 0);
	assert_int_not_equal(first, second);
	assert_int_equal(harness.plugin->memory_alloc(harness.backend, 100, &own, &third), 0);
	assert_int_equal(harness.plugin->memory_deregister(harness.backend, first), 0);
	assert_int_equal(harness.plugin->memory_deregister(harness.backend, first), -EINVAL);
	assert_int_equal(harness.plugin->memory_deregister(harness.backend, third), -EINVAL);
	assert_int_equal(harness.plugin->memory_free(harness.backend, third), 0);
	harness_close(&harness);
	assert_non_null(strstr(harness.debug, "2 registrations and 1 allocations made, 1 left"));
	buffer_free(buffer);
}

static int remove_locations(void **state)
{
	(void)state;
	harness_remove_locations();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cancelled_before_its_time_moves_nothing),
		cmocka_unit_test(test_full_is_enospc_and_ends_with_a_removal),
		cmocka_unit_test(test_bad_settings_are_named),
		cmocka_unit_test(test_registrations_are_counted),
	};

	return cmocka_run_group_tests(tests, NULL, remove_locations);
}
