/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformance_store PLUGIN [ENGINE direct|buffered] NAMING
 * PLUGIN: mem, posix, fault (over mem), fault-posix (fault over posix). NAMING: kvcellar or nixl,
 * with objects as files, or packed. KVC_TEST_FILTER: only the tests that the glob names.
 */
#include "suite.h"

#include "support/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TESTS_MAX 200u

struct suite suite;

struct kvc_store *suite_open(void)
{
	suite.root = folder_new("store");
	suite.setup.roots = suite.root;
	return suite_reopen();
}

struct kvc_store *suite_reopen(void)
{
	return setup_must_open(&suite.setup);
}

void fixture_open_on(struct fixture *fixture, struct kvc_store *store,
		     const struct pages_params *params)
{
	struct kvc_namespace_params ns = namespace_params("llama/3-8b");

	*fixture = (struct fixture){ .store = store, .count = params->count };
	fixture->ns = namespace_must_open(store, &ns);
	pages_open(&fixture->pages, fixture->ns, params);
	keys_make(&fixture->keys, "fixture", params->count);
	fixture->results = calloc(params->count + 1, sizeof(*fixture->results));
	assert_non_null(fixture->results);
}

void fixture_open(struct fixture *fixture, size_t count, uint64_t part_bytes)
{
	struct pages_params params = {
		.count = count,
		.part_count = 2,
		.part_bytes = { part_bytes, part_bytes },
	};

	fixture_open_on(fixture, suite_open(), &params);
}

void fixture_close_pool(struct fixture *fixture)
{
	pages_close(&fixture->pages);
	assert_int_equal(kvc_namespace_close(fixture->ns), 0);
	keys_free(&fixture->keys);
	free(fixture->results);
}

void fixture_close(struct fixture *fixture)
{
	fixture_close_pool(fixture);
	store_must_close(fixture->store);
}

void fixture_store(struct fixture *fixture)
{
	pages_fill_keys(&fixture->pages, fixture->keys.keys, fixture->count);
	batch(fixture->store, &fixture->pages, KVC_SET, fixture->keys.keys, fixture->count, 0,
	      fixture->results);
	expect_all(fixture->results, fixture->count, KVC_OK);
}

size_t fixture_get(struct fixture *fixture)
{
	size_t ok = 0;

	pages_wipe(&fixture->pages);
	batch(fixture->store, &fixture->pages, KVC_GET, fixture->keys.keys, fixture->count, 0,
	      fixture->results);
	pages_check_gaps(&fixture->pages);
	for (size_t i = 0; i < fixture->count; i++) {
		if (fixture->results[i].status != KVC_OK)
			continue;
		assert_true(pages_match(&fixture->pages, i, key_content(fixture->keys.keys[i])));
		ok++;
	}
	return ok;
}

struct kvc_result fixture_set_first(struct fixture *fixture)
{
	return do_set(fixture->store, &fixture->pages, fixture->keys.keys[0], 0);
}

struct kvc_result fixture_get_first(struct fixture *fixture)
{
	return do_get(fixture->store, &fixture->pages, fixture->keys.keys[0]);
}

struct kvc_result fixture_exists_first(struct fixture *fixture)
{
	return do_exists(fixture->store, &fixture->pages, fixture->keys.keys[0]);
}

void fixture_expect_good_again(struct fixture *fixture)
{
	expect_result(fixture_set_first(fixture), KVC_OK, KVC_CAUSE_NONE);
	expect_result(fixture_exists_first(fixture), KVC_OK, -1);
	expect_result(fixture_get_first(fixture), KVC_OK, KVC_CAUSE_NONE);
}

int verify_count(void *context, const struct kvc_object_info *info, const struct kvc_result *result,
		 uint64_t done, uint64_t total)
{
	size_t *counts = context;

	(void)info;
	(void)done;
	(void)total;
	counts[result->status]++;
	return 0;
}

static void usage(void)
{
	(void)fprintf(stderr, "usage: conformance_store mem|fault|fault-posix|posix "
			      "[ENGINE direct|buffered] kvcellar|nixl|packed\n");
	exit(2);
}

static void plugin_read(const char *plugin)
{
	suite.setup.plugin = strncmp(plugin, "fault", 5) == 0 ? "fault" : plugin;
	suite.mem = strcmp(plugin, "mem") == 0;
	suite.folder = strcmp(plugin, "posix") == 0;
	if (strcmp(plugin, "fault") == 0)
		suite.setup.lower = "mem";
	if (strcmp(plugin, "fault-posix") == 0) {
		suite.setup.lower = "posix";
		suite.folder = true;
	}
}

static void parameters_read(int argc, char **argv)
{
	if (argc < 3)
		usage();
	plugin_read(argv[1]);
	suite.packed = strcmp(argv[argc - 1], "packed") == 0;
	suite.nixl = strcmp(argv[argc - 1], "nixl") == 0;
	suite.setup.layout = suite.packed ? "packed" : NULL;
	suite.setup.naming = suite.nixl ? "nixl" : "kvcellar";
	suite.files = suite.folder && !suite.packed;
	if (strcmp(argv[1], "posix") != 0)
		return;
	if (argc != 5)
		usage();
	suite.setup.engine = argv[2];
	if (strcmp(argv[2], engines[3]) == 0 && engines_count() == 3)
		support_skip("ThreadSanitizer cannot follow the threads of POSIX AIO");
	suite.setup.buffered = strcmp(argv[3], "buffered") == 0;
}

static size_t tests_add(struct CMUnitTest *all, size_t count, struct tests tests)
{
	if (count + tests.count > TESTS_MAX)
		fail_msg("more than %u tests", TESTS_MAX);
	memcpy(all + count, tests.tests, tests.count * sizeof(*all));
	return count + tests.count;
}

int main(int argc, char **argv)
{
	static struct CMUnitTest all[TESTS_MAX];
	size_t count = 0;

	support_begin();
	parameters_read(argc, argv);
	if (suite.packed && suite.folder)
		packed_guard_learn();
	if (getenv("KVC_TEST_FILTER") != NULL)
		cmocka_set_test_filter(getenv("KVC_TEST_FILTER"));
	count = tests_add(all, count, roundtrip_tests());
	count = tests_add(all, count, batch_tests());
	count = tests_add(all, count, geometry_tests());
	count = tests_add(all, count, layout_tests());
	count = tests_add(all, count, rank_tests());
	count = tests_add(all, count, name_tests());
	count = tests_add(all, count, object_tests());
	count = tests_add(all, count, lifetime_tests());
	if (suite.files)
		count = tests_add(all, count, damage_tests());
	if (suite.packed)
		count = tests_add(all, count, slot_tests());
	if (suite.packed && suite.folder)
		count = tests_add(all, count, slot_damage_tests());
	if (suite.mem)
		count = tests_add(all, count, deadline_tests());
	return _cmocka_run_group_tests("store", all, count, NULL, NULL);
}
