/* SPDX-License-Identifier: Apache-2.0 */
/* Each rule of the fault plugin does what docs/fault-plugin.md says, and nothing else. Over mem. */
#include "conformance/plugin_harness.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES 10000u

struct fixture {
	struct harness harness;
	struct kvc_plugin_queue *queue;
};

static const struct kvc_queue_params queue_params = { .size = sizeof(queue_params), .depth = 16 };

static void open_with(struct fixture *fixture, const struct harness_parameters *given)
{
	struct harness_parameters parameters = *given;

	parameters.plugin = "fault";
	parameters.lower = "mem";
	harness_open(&fixture->harness, &parameters, NULL);
	assert_int_equal(fixture->harness.plugin->queue_create(fixture->harness.root, &queue_params,
							       &fixture->queue),
			 0);
}

static void open_rules(struct fixture *fixture, const char *rules)
{
	open_with(fixture, &(struct harness_parameters){ .rules = rules });
}

static void close_all(struct fixture *fixture)
{
	assert_int_equal(fixture->harness.plugin->queue_destroy(fixture->queue), 0);
	harness_close(&fixture->harness);
}

static int64_t put(struct fixture *fixture, const char *name, uint64_t pattern)
{
	return do_write(&fixture->harness, fixture->queue, name, BYTES, pattern, 0);
}

/* Reads BYTES into buffer, which was 0xaa before. */
static int64_t get(struct fixture *fixture, const char *name, unsigned char *buffer)
{
	struct op op;

	memset(buffer, 0xaa, BYTES);
	op_init(&op, &fixture->harness, KVC_OP_READ, name);
	op_ranges(&op, &fixture->harness, buffer, BYTES, 3);
	ops_run(&fixture->harness, fixture->queue, &op, 1);
	op_free(&op);
	return op.completion.result;
}

static uint64_t object_bytes(struct fixture *fixture, const char *name)
{
	struct kvc_completion stat;

	assert_int_equal(do_stat(&fixture->harness, fixture->queue, name, &stat), 0);
	return stat.object_bytes;
}

/* ---------------------------------------------------------------- language */

static void test_bad_rules_are_named(void **state)
{
	static const struct {
		const char *rules;
		const char *where;
		const char *why;
	} bad[] = {
		{ "raed error=EIO", "rule 1, position 1, \"raed\"", "no operation" },
		{ "read", "rule 1, position 1, \"read\"", "without an effect" },
		{ "read error=EIO nht=3", "rule 1, position 16, \"nht=3\"", "neither" },
		{ "read error=EIO;  write nth=2 errno=EIO", "rule 2, position 30", "neither" },
		{ "read error=EOOPS", "rule 1, position 6", "no errno name" },
		{ "read error=0", "rule 1, position 6", "no errno number" },
		{ "read error", "rule 1, position 6", "needs" },
		{ "read short=many", "rule 1, position 6", "non-negative integer" },
		{ "read short=-1", "rule 1, position 6", "non-negative integer" },
		{ "read corrupt p=1.5", "rule 1, position 14", "probability" },
		{ "read corrupt p=", "rule 1, position 14", "probability" },
		{ "read corrupt nth=0", "rule 1, position 14", "from 1" },
		{ "read corrupt=3", "rule 1, position 6", "takes no value" },
		{ "read torn", "rule 1, position 6", "does not apply to read" },
		{ "step error=EIO", "rule 1, position 6", "does not apply to step" },
		{ "stat late", "rule 1, position 6", "does not apply to stat" },
		{ "read corrupt swap", "rule 1, position 14", "second effect" },
		{ "read stall name=", "rule 1, position 12", "needs =<pattern>" },
		{ "read delay_ms=4000000", "rule 1, position 6", "more than an hour" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const struct harness_parameters parameters = { .plugin = "fault",
							       .lower = "mem",
							       .rules = bad[i].rules };
		struct harness harness;

		assert_int_equal(harness_backend_open(&harness, &parameters), -EINVAL);
		if (!strstr(harness.reason, bad[i].where) || !strstr(harness.reason, bad[i].why))
			fail_msg("\"%s\": %s", bad[i].rules, harness.reason);
	}
}

static void test_conditions_choose(void **state)
{
	struct fixture fixture;

	(void)state;
	open_rules(&fixture, "write error=EIO nth=3;write error=5 every=2 after=4 count=1 ;; "
			     "write error=ENOSPC name=b/*;");
	/* 1 to 8: the third by the first rule, the sixth by the second. */
	for (int i = 1; i <= 8; i++)
		assert_int_equal(put(&fixture, "a/x", 1), i == 3 || i == 6 ? -EIO : (int)BYTES);
	assert_int_equal(put(&fixture, "b/x", 1), -ENOSPC);
	assert_int_equal(do_stat(&fixture.harness, fixture.queue, "b/x", NULL), -ENOENT);
	assert_int_equal(object_bytes(&fixture, "a/x"), BYTES);
	close_all(&fixture);
	assert_non_null(strstr(fixture.harness.debug, "fault: seed = 1, 3 rules, over mem"));
	assert_non_null(strstr(fixture.harness.debug,
			       "rule 1 \"write error=EIO nth=3\": matched 9, applied 1"));
}

static void chances(const char *seed, const char *rules, char out[101])
{
	struct fixture fixture;

	open_with(&fixture, &(struct harness_parameters){ .rules = rules, .seed = seed });
	for (int i = 0; i < 100; i++)
		out[i] = do_stat(&fixture.harness, fixture.queue, "x", NULL) == -EIO ? 'x' : '.';
	out[100] = '\0';
	close_all(&fixture);
}

static void test_a_seed_repeats_a_run(void **state)
{
	char first[101];
	char again[101];
	char other[101];
	uint32_t hits = 0;

	(void)state;
	chances("7", "stat error=EIO p=0.25", first);
	/* A rule before it does not disturb it, but has another sequence of its own. */
	chances("7", "stat error=EIO p=0.25; write error=EIO p=0.5", again);
	chances("8", "stat error=EIO p=0.25", other);
	assert_string_equal(first, again);
	assert_string_not_equal(first, other);
	for (int i = 0; i < 100; i++)
		hits += first[i] == 'x';
	assert_in_range(hits, 5, 60);
	chances("7", "stat error=EIO p=0", first);
	assert_null(strchr(first, 'x'));
	chances("7", "stat error=EIO p=1", first);
	assert_null(strchr(first, '.'));
}

/* ---------------------------------------------------------------- bytes */

static void test_short_read_leaves_the_rest(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct fixture fixture;

	(void)state;
	open_rules(&fixture, "read short=4096 nth=1; read short=0 nth=2");
	assert_int_equal(put(&fixture, "s", 2), BYTES);
	assert_int_equal(get(&fixture, "s", buffer), 4096);
	assert_int_equal(buffer_check(buffer, BYTES, 2), 4096);
	for (uint32_t i = 4096; i < BYTES; i++)
		assert_int_equal(buffer[i], 0xaa);
	assert_int_equal(get(&fixture, "s", buffer), 0);
	assert_int_equal(buffer[0], 0xaa);
	assert_int_equal(get(&fixture, "s", buffer), BYTES);
	assert_int_equal(get(&fixture, "absent", buffer), -ENOENT);
	close_all(&fixture);
	buffer_free(buffer);
}

static uint32_t bits_wrong(const unsigned char *buffer, uint64_t pattern)
{
	unsigned char *right = buffer_new(BYTES);
	uint32_t bits = 0;

	buffer_fill(right, BYTES, pattern);
	for (uint32_t i = 0; i < BYTES; i++)
		bits += (uint32_t)__builtin_popcount((unsigned int)(buffer[i] ^ right[i]));
	free(right);
	return bits;
}

static void test_corrupt_turns_one_bit(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct fixture fixture;

	(void)state;
	open_rules(&fixture, "read corrupt nth=1; write corrupt name=w");
	assert_int_equal(put(&fixture, "r", 3), BYTES);
	assert_int_equal(get(&fixture, "r", buffer), BYTES);
	assert_int_equal(bits_wrong(buffer, 3), 1);
	assert_int_equal(get(&fixture, "r", buffer), BYTES);
	assert_int_equal(bits_wrong(buffer, 3), 0);
	assert_int_equal(put(&fixture, "w", 4), BYTES);
	assert_int_equal(get(&fixture, "w", buffer), BYTES);
	assert_int_equal(bits_wrong(buffer, 4), 1);
	close_all(&fixture);
	buffer_free(buffer);
}

static void test_torn_and_short_write_store_a_prefix(void **state)
{
	struct fixture fixture;

	(void)state;
	open_rules(&fixture, "write torn nth=1; write short=77 nth=2");
	assert_int_equal(put(&fixture, "torn", 5), BYTES);
	assert_int_equal(object_bytes(&fixture, "torn"), BYTES / 2);
	assert_int_equal(put(&fixture, "short", 5), 77);
	assert_int_equal(object_bytes(&fixture, "short"), 77);
	close_all(&fixture);
}

static void test_torn_write_still_fills_the_late_range(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct fixture fixture;
	struct op op;

	(void)state;
	open_rules(&fixture, "write torn nth=1; fill error=EUCLEAN nth=2");
	for (int round = 0; round < 2; round++) {
		op_init(&op, &fixture.harness, KVC_OP_WRITE, round ? "b" : "a");
		op_ranges(&op, &fixture.harness, buffer, BYTES, 2);
		op.ranges[1].flags = KVC_RANGE_LATE;
		ops_run(&fixture.harness, fixture.queue, &op, 1);
		assert_int_equal(op.completion.result, round ? -EUCLEAN : (int)BYTES);
		assert_int_equal(atomic_load(&op.fills), round ? 0 : 1);
		op_free(&op);
	}
	close_all(&fixture);
	buffer_free(buffer);
}

static void test_swap_gives_the_bytes_of_another_object(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct fixture fixture;

	(void)state;
	open_rules(&fixture, "read swap");
	assert_int_equal(put(&fixture, "one", 1), BYTES);
	assert_int_equal(get(&fixture, "one", buffer), BYTES); /* no other one yet */
	assert_int_equal(buffer_check(buffer, BYTES, 1), BYTES);
	assert_int_equal(put(&fixture, "two", 2), BYTES);
	assert_int_equal(get(&fixture, "one", buffer), BYTES);
	assert_int_equal(buffer_check(buffer, BYTES, 2), BYTES);
	assert_int_equal(get(&fixture, "two", buffer), BYTES);
	assert_int_equal(buffer_check(buffer, BYTES, 1), BYTES);
	close_all(&fixture);
	buffer_free(buffer);
}

/* ---------------------------------------------------------------- time */

static void start_read(struct fixture *fixture, struct op *op, unsigned char *buffer)
{
	memset(buffer, 0xaa, BYTES);
	op_init(op, &fixture->harness, KVC_OP_READ, "held");
	op_ranges(op, &fixture->harness, buffer, BYTES, 2);
	assert_int_equal(ops_submit(&fixture->harness, fixture->queue, op, 1), 1);
}

static void test_stall_ends_with_cancel(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct fixture fixture;
	struct op op;

	(void)state;
	open_rules(&fixture, "read stall");
	assert_int_equal(put(&fixture, "held", 6), BYTES);
	start_read(&fixture, &op, buffer);
	assert_int_equal(ops_poll(&fixture.harness, fixture.queue, 20000000), 0);
	assert_int_equal(fixture.harness.plugin->queue_destroy(fixture.queue), -EBUSY);
	assert_int_equal(fixture.harness.plugin->cancel(fixture.queue, NULL, 0), 0);
	assert_int_equal(ops_poll(&fixture.harness, fixture.queue, 0), 1);
	assert_int_equal(op.completion.result, -ECANCELED);
	assert_int_equal(buffer[0], 0xaa);
	op_free(&op);
	close_all(&fixture);
	buffer_free(buffer);
}

/* What stands for a device that cannot cancel: the bytes come, however late. */
static void test_stall_that_cannot_be_cancelled(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct fixture fixture;
	struct op op;

	(void)state;
	open_with(&fixture, &(struct harness_parameters){ .rules = "read stall_ms=300",
							  .cancellable = "false",
							  .local = "false" });
	assert_false(harness_has(&fixture.harness, KVC_ATTRIBUTE_CANCELLABLE));
	assert_false(harness_has(&fixture.harness, KVC_ATTRIBUTE_LOCAL));
	assert_int_equal(put(&fixture, "held", 6), BYTES);
	start_read(&fixture, &op, buffer);
	assert_int_equal(fixture.harness.plugin->cancel(fixture.queue, NULL, 0), -EBUSY);
	assert_int_equal(ops_poll(&fixture.harness, fixture.queue, 0), 0);
	assert_int_equal(buffer[0], 0xaa);
	assert_int_equal(ops_poll(&fixture.harness, fixture.queue, GUARD_NS), 1);
	assert_int_equal(op.completion.result, BYTES);
	assert_int_equal(buffer_check(buffer, BYTES, 6), BYTES);
	op_free(&op);
	close_all(&fixture);
	buffer_free(buffer);
}

static void test_late_writes_after_the_completion(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct timespec pause = { .tv_nsec = 30000000 };
	struct fixture fixture;

	(void)state;
	open_rules(&fixture, "read late_ms=20 error=ETIMEDOUT");
	assert_int_equal(put(&fixture, "l", 7), BYTES);
	assert_int_equal(get(&fixture, "l", buffer), -ETIMEDOUT);
	assert_int_equal(get(&fixture, "absent", buffer), -ENOENT);
	memset(buffer, 0xaa, BYTES);
	(void)nanosleep(&pause, NULL);
	assert_int_equal(ops_poll(&fixture.harness, fixture.queue, 0), 0);
	assert_int_equal(buffer_check(buffer, BYTES, 7), BYTES);
	close_all(&fixture);
	buffer_free(buffer);
}

static void test_delay_holds_the_completion(void **state)
{
	unsigned char *buffer = buffer_new(BYTES);
	struct fixture fixture;
	struct op op;

	(void)state;
	open_rules(&fixture, "read delay_ms=3000");
	assert_int_equal(put(&fixture, "held", 8), BYTES);
	start_read(&fixture, &op, buffer);
	assert_int_equal(ops_poll(&fixture.harness, fixture.queue, 1000000), 0);
	/* The bytes have moved; on a root that can cancel the completion then comes at once. */
	assert_int_equal(buffer_check(buffer, BYTES, 8), BYTES);
	assert_int_equal(fixture.harness.plugin->cancel(fixture.queue, NULL, 0), 0);
	assert_int_equal(ops_poll(&fixture.harness, fixture.queue, 0), 1);
	assert_int_equal(op.completion.result, BYTES);
	op_free(&op);
	close_all(&fixture);
	buffer_free(buffer);
}

/* ---------------------------------------------------------------- calls */

static void test_submit_and_control_calls_fail(void **state)
{
	struct fixture fixture;
	struct harness *harness = &fixture.harness;
	struct kvc_plugin_queue *queue = NULL;
	struct kvc_plugin_root *root = NULL;
	struct kvc_memory memory = { .size = sizeof(memory) };
	uint64_t registration = 0;
	char location[256];
	struct op ops[3];

	(void)state;
	open_rules(&fixture, "submit eagain nth=1; submit short=1 nth=2; "
			     "queue_create error=EMFILE after=1; root_open error=EACCES after=1; "
			     "alloc error=ENOMEM; usage error=EIO; list error=EIO");
	for (int i = 0; i < 3; i++)
		op_init(&ops[i], harness, KVC_OP_STAT, "x");
	assert_int_equal(ops_submit(harness, fixture.queue, ops, 3), 0);
	assert_int_equal(ops_submit(harness, fixture.queue, ops, 3), 1);
	assert_int_equal(ops_poll(harness, fixture.queue, GUARD_NS), 1);
	ops_run(harness, fixture.queue, ops + 1, 2);
	for (int i = 0; i < 3; i++)
		op_free(&ops[i]);
	assert_int_equal(harness->plugin->queue_create(harness->root, &queue_params, &queue),
			 -EMFILE);
	harness_location(location, sizeof(location));
	assert_int_equal(harness_root_open(harness, location, KVC_ROOT_CREATE, &root), -EACCES);
	assert_non_null(strstr(harness->reason, "a rule of the fault plugin"));
	assert_int_equal(harness->plugin->memory_alloc(harness->backend, BYTES, &memory,
						       &registration),
			 -ENOMEM);
	assert_int_equal(harness->plugin->list(harness->root, "", NULL, NULL), -EIO);
	close_all(&fixture);
}

static void test_kill_ends_the_process_at_the_step(void **state)
{
	struct fixture fixture;
	int status = 0;
	pid_t child;

	(void)state;
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		open_rules(&fixture, "step kill=publish.linked nth=2");
		if (put(&fixture, "a", 1) != BYTES)
			_exit(1);
		(void)put(&fixture, "b", 1);
		_exit(2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void test_cancellable_over_one_that_is_not_is_refused(void **state)
{
	const struct harness_parameters parameters = { .plugin = "fault",
						       .lower = "posix",
						       .cancellable = "true" };
	struct kvc_plugin_root *root = NULL;
	struct harness harness;
	char location[256];
	int rc;

	(void)state;
	assert_int_equal(harness_backend_open(&harness, &parameters), 0);
	harness_location(location, sizeof(location));
	rc = harness_root_open(&harness, location, KVC_ROOT_CREATE, &root);
	if (rc == 0)
		assert_int_equal(harness.plugin->root_close(root), 0);
	else
		assert_non_null(strstr(harness.reason, "posix cannot cancel"));
	harness.root = NULL;
	harness_close(&harness);
}

static void test_a_storm_loses_no_completion(void **state)
{
	enum {
		COUNT = 64
	};
	unsigned char *buffer = buffer_new(COUNT * (uint64_t)BYTES);
	struct op *ops = calloc(COUNT, sizeof(struct op));
	struct fixture fixture;

	(void)state;
	open_rules(&fixture, "any error=EIO p=0.1; any delay_ms=1 every=7; read short=100 p=0.1; "
			     "read corrupt p=0.1; write torn p=0.1; read swap p=0.1; "
			     "any stall_ms=2 p=0.05; submit eagain p=0.2; submit short=2 p=0.3");
	for (int round = 0; round < 20; round++) {
		for (uint32_t i = 0; i < COUNT; i++) {
			char name[16];

			(void)snprintf(name, sizeof(name), "o%u", i % 9);
			op_init(&ops[i], &fixture.harness, i % 2 ? KVC_OP_READ : KVC_OP_WRITE,
				name);
			op_ranges(&ops[i], &fixture.harness, buffer + (uint64_t)i * BYTES, BYTES,
				  3);
		}
		ops_run(&fixture.harness, fixture.queue, ops, COUNT);
		for (uint32_t i = 0; i < COUNT; i++)
			op_free(&ops[i]);
	}
	close_all(&fixture);
	free(ops);
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
		cmocka_unit_test(test_bad_rules_are_named),
		cmocka_unit_test(test_conditions_choose),
		cmocka_unit_test(test_a_seed_repeats_a_run),
		cmocka_unit_test(test_short_read_leaves_the_rest),
		cmocka_unit_test(test_corrupt_turns_one_bit),
		cmocka_unit_test(test_torn_and_short_write_store_a_prefix),
		cmocka_unit_test(test_torn_write_still_fills_the_late_range),
		cmocka_unit_test(test_swap_gives_the_bytes_of_another_object),
		cmocka_unit_test(test_stall_ends_with_cancel),
		cmocka_unit_test(test_stall_that_cannot_be_cancelled),
		cmocka_unit_test(test_late_writes_after_the_completion),
		cmocka_unit_test(test_delay_holds_the_completion),
		cmocka_unit_test(test_submit_and_control_calls_fail),
		cmocka_unit_test(test_kill_ends_the_process_at_the_step),
		cmocka_unit_test(test_cancellable_over_one_that_is_not_is_refused),
		cmocka_unit_test(test_a_storm_loses_no_completion),
	};

	return cmocka_run_group_tests(tests, NULL, remove_locations);
}
