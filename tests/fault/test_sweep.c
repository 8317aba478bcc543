/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each I/O of a scenario fails in turn, in each way. Whatever happens: no page is OK with wrong
 * bytes, each page has its result, nothing is lost that was not touched, and the next call works.
 */
#include "support/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT	  6u
#define SWEEP_MAX 400u /* more than the scenario has operations */
#define QUIET	  12u  /* runs in a row that met no fault: the sweep is over */

static const char *const effects[] = {
	"any error=EIO",      "any error=EINTR",   "read error=EFAULT", "write error=EINVAL",
	"write error=ENOSPC", "stat error=EACCES", "read short=100",	"read short=4096",
	"read corrupt",	      "read swap",	   "write short=4096",	"write torn",
	"write corrupt",      "fill error=EIO",	   "submit eagain",	"submit short=0",
	"submit short=1",     "any error=ENOENT",  "any error=ESTALE",	"remove error=EIO",
};

struct fix {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[COUNT];
	bool trouble; /* something ended in another way than without faults */
};

static void run_op(struct fix *fix, int op, uint32_t flags)
{
	if (op == KVC_SET)
		pages_fill_keys(&fix->pages, fix->keys.keys, COUNT);
	if (op == KVC_GET)
		pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, op, fix->keys.keys, COUNT, flags, fix->results);
	if (op != KVC_GET)
		return;
	pages_check_gaps(&fix->pages);
	for (size_t i = 0; i < COUNT; i++)
		if (fix->results[i].status == KVC_OK)
			assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
}

static void note(struct fix *fix, int expected)
{
	fix->trouble |= count_status(fix->results, COUNT, expected) != COUNT;
}

/* set, exists, get, overwrite, get, remove, get, object put and get. */
static void scenario(struct fix *fix)
{
	unsigned char data[5000];
	unsigned char back[5000];
	size_t bytes = 0;
	int rc;

	run_op(fix, KVC_SET, 0);
	note(fix, KVC_OK);
	run_op(fix, KVC_EXISTS, 0);
	note(fix, KVC_OK);
	run_op(fix, KVC_GET, 0);
	note(fix, KVC_OK);
	run_op(fix, KVC_SET, KVC_TRANSFER_OVERWRITE);
	note(fix, KVC_OK);
	run_op(fix, KVC_GET, 0);
	note(fix, KVC_OK);
	bytes_fill(data, sizeof(data), 99);
	rc = kvc_object_put(fix->ns, "side", key_of("o"), data, sizeof(data), 1, 0);
	fix->trouble |= rc != 0;
	rc = kvc_object_get(fix->ns, "side", key_of("o"), back, sizeof(back), &bytes, 0, 0);
	fix->trouble |= rc != 0;
	if (rc == 0) {
		assert_int_equal(bytes, sizeof(data));
		assert_true(bytes_match(back, bytes, 99));
	}
	run_op(fix, KVC_REMOVE, 0);
	note(fix, KVC_OK);
	run_op(fix, KVC_GET, 0);
	note(fix, KVC_MISS);
}

static bool works(struct fix *fix)
{
	static const int ops[] = { KVC_SET, KVC_GET, KVC_EXISTS, KVC_REMOVE };

	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		run_op(fix, ops[i], ops[i] == KVC_SET ? KVC_TRANSFER_OVERWRITE : 0);
		if (count_status(fix->results, COUNT, KVC_OK) != COUNT)
			return false;
	}
	return true;
}

/* The one fault may come only now; after it everything works, whatever it has left behind. */
static void expect_works(struct fix *fix)
{
	if (works(fix))
		return;
	fix->trouble = true;
	if (works(fix))
		return;
	for (size_t i = 0; i < COUNT; i++)
		expect_result(fix->results[i], KVC_OK, -1);
}

/* Whether the fault was met: the scenario or the opening went another way. */
static bool run_once(const char *lower, const char *layout, const char *effect, unsigned nth)
{
	struct pages_params pages = { .count = COUNT,
				      .part_count = 2,
				      .part_bytes = { 6000, 100 } };
	struct kvc_namespace_params params = namespace_params("sweep");
	char rules[128];
	struct setup setup = {
		.plugin = "fault",
		.lower = lower,
		.layout = layout,
		.rules = rules,
		.flags = KVC_OPEN_NO_SELFTEST,
		.settings = { "plugin.fault.seed=7" },
	};
	struct fix fix = { .trouble = false };

	setup.roots = folder_new("sweep");
	(void)snprintf(rules, sizeof(rules), "%s nth=%u", effect, nth);
	if (setup_open(&setup, &fix.store) != 0) {
		assert_true(strlen(kvc_last_error()) > 0);
		return true;
	}
	if (kvc_namespace_open(fix.store, &params, &fix.ns) != 0) {
		assert_true(strlen(kvc_last_error()) > 0);
		store_must_close(fix.store);
		return true;
	}
	pages_open(&fix.pages, fix.ns, &pages);
	keys_make(&fix.keys, "sweep", COUNT);
	scenario(&fix);
	expect_works(&fix);
	if (layout != NULL)
		(void)packed_check(fix.store);
	pages_close(&fix.pages);
	assert_int_equal(kvc_namespace_close(fix.ns), 0);
	store_must_close(fix.store);
	keys_free(&fix.keys);
	folder_remove(setup.roots);
	return fix.trouble;
}

static void sweep(const char *lower, const char *layout, unsigned stride)
{
	for (size_t e = 0; e < sizeof(effects) / sizeof(effects[0]); e++) {
		unsigned quiet = 0;
		unsigned met = 0;
		unsigned nth;

		for (nth = 1; nth <= SWEEP_MAX && quiet < QUIET + 3 * stride; nth += stride) {
			bool here = run_once(lower, layout, effects[e], nth);

			met += here;
			quiet = here ? 0 : quiet + stride;
		}
		(void)printf("%s, %s, %s: up to number %u, %u runs went another way\n", lower,
			     layout ? layout : "files", effects[e], nth - stride, met);
		assert_true(nth < SWEEP_MAX);
	}
}

static void test_each_operation_on_mem(void **state)
{
	(void)state;
	sweep("mem", NULL, support_sanitized() && !support_soak() ? 3 : 1);
}

static void test_each_operation_on_packed_mem(void **state)
{
	(void)state;
	sweep("mem", "packed", support_sanitized() && !support_soak() ? 3 : 1);
}

static void test_some_operations_on_posix(void **state)
{
	(void)state;
	sweep("posix", NULL, support_soak() ? 1 : 7);
}

static void test_some_operations_on_packed_posix(void **state)
{
	(void)state;
	sweep("posix", "packed", support_soak() ? 1 : 7);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_operation_on_mem),
		cmocka_unit_test(test_some_operations_on_posix),
		cmocka_unit_test(test_each_operation_on_packed_mem),
		cmocka_unit_test(test_some_operations_on_packed_posix),
	};

	support_begin();
	return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
