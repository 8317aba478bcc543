/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, closing, reopening, memory, and the texts about a store. */
#include "suite.h"

#include "core/root.h"
#include "core/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* R22 within a process; tests/fault has it over processes. */
static void test_reopen(void **state)
{
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct pages_params params = {
		.count = 30,
		.part_count = 2,
		.part_bytes = { 5000, 5000 },
	};
	char uuid[37];
	struct fixture f;

	(void)state;
	fixture_open(&f, 30, 5000);
	fixture_store(&f);
	assert_int_equal(kvc_store_usage(f.store, 0, &usage, 1), 1);
	memcpy(uuid, usage.uuid, sizeof(uuid));
	fixture_close(&f);
	fixture_open_on(&f, suite_reopen(), &params);
	batch(f.store, &f.pages, KVC_EXISTS, f.keys.keys, 30, 0, f.results);
	expect_all(f.results, 30, KVC_OK);
	assert_int_equal(fixture_get(&f), 30);
	usage.size = sizeof(usage);
	assert_int_equal(kvc_store_usage(f.store, 1, &usage, 1), 1);
	assert_int_equal(usage.own_objects, suite.nixl ? 60 : 30);
	if (suite.folder)
		assert_string_equal(usage.uuid, uuid);
	fixture_close(&f);
}

/* A second store on the same root sees the same pages. */
static void test_two_stores_on_one_root(void **state)
{
	struct pages_params params = {
		.count = 10,
		.part_count = 2,
		.part_bytes = { 4096, 4096 },
	};
	struct fixture a;
	struct fixture b;

	(void)state;
	fixture_open(&a, 10, 4096);
	fixture_open_on(&b, suite_reopen(), &params);
	fixture_store(&a);
	assert_int_equal(fixture_get(&b), 10);
	batch(b.store, &b.pages, KVC_REMOVE, b.keys.keys, 5, 0, b.results);
	assert_int_equal(fixture_get(&a), 5);
	fixture_close(&b);
	fixture_close(&a);
}

static void test_several_roots(void **state)
{
	const char *first = folder_new("root-a");
	const char *second = folder_new("root-b");
	const char *third = folder_new("root-c");
	struct kvc_root_usage usage[3] = {
		{ .size = sizeof(usage[0]) },
		{ .size = sizeof(usage[0]) },
		{ .size = sizeof(usage[0]) },
	};
	struct pages_params params = { .count = 90, .part_bytes = { 4096 } };
	char roots[3 * PATH_BYTES];
	struct fixture f;

	(void)state;
	(void)snprintf(roots, sizeof(roots), "%s,%s,%s", first, second, third);
	suite.setup.roots = roots;
	fixture_open_on(&f, suite_reopen(), &params);
	fixture_store(&f);
	assert_int_equal(fixture_get(&f), 90);
	assert_int_equal(kvc_store_usage(f.store, 0, usage, 3), 3);
	for (size_t i = 0; i < 3; i++)
		assert_true(usage[i].own_objects > 5); /* each has its share */
	assert_int_equal(usage[0].own_objects + usage[1].own_objects + usage[2].own_objects, 90);
	fixture_close(&f);
	if (suite.nixl)
		return; /* routes by the order of the directories */
	(void)snprintf(roots, sizeof(roots), "%s,%s,%s", third, first, second);
	fixture_open_on(&f, suite_reopen(), &params);
	if (suite.folder)
		assert_int_equal(fixture_get(&f), 90);
	fixture_close(&f);
}

static void test_close_with_children(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, 2, 4096);
	assert_int_equal(kvc_store_close(f.store), -EBUSY);
	assert_int_equal(kvc_namespace_close(f.ns), -EBUSY);
	fixture_store(&f);
	assert_int_equal(fixture_get(&f), 2);
	fixture_close(&f);
	assert_int_equal(kvc_store_close(NULL), 0);
	assert_int_equal(kvc_namespace_close(NULL), 0);
	assert_int_equal(kvc_pool_close(NULL), 0);
	assert_int_equal(kvc_memory_deregister(NULL), 0);
	kvc_config_free(NULL);
}

static void test_registered_memory(void **state)
{
	struct kvc_region *region = NULL;
	struct kvc_region *again = NULL;
	struct kvc_region *other = NULL;
	struct kvc_memory memory = { .size = sizeof(memory), .kind = KVC_MEMORY_HOST };
	struct kvc_stats before;
	struct fixture f;
	int rc;

	(void)state;
	fixture_open(&f, 40, 8192);
	before = store_stats(f.store);
	memory.addr = f.pages.memory;
	memory.bytes = f.pages.memory_bytes;
	rc = kvc_memory_register(f.store, &memory, &region);
	if (rc != 0)
		fail_msg("register: %s", kvc_last_error());
	assert_int_equal(store_stats(f.store).host_registrations, before.host_registrations + 1);
	assert_int_equal(kvc_memory_register(f.store, &memory, &again), 0);
	memory.addr = f.pages.memory + 4096;
	assert_int_equal(kvc_memory_register(f.store, &memory, &other), -EEXIST);
	memory.bytes = 0;
	assert_int_equal(kvc_memory_register(f.store, &memory, &other), -EINVAL);
	assert_null(other);
	fixture_store(&f);
	assert_int_equal(fixture_get(&f), 40);
	assert_int_equal(kvc_store_close(f.store), -EBUSY);
	assert_int_equal(kvc_memory_deregister(again), 0);
	assert_int_equal(kvc_memory_deregister(region), 0);
	assert_int_equal(store_stats(f.store).host_registrations, before.host_registrations);
	assert_int_equal(fixture_get(&f), 40);
	fixture_close(&f);
}

static void test_read_only_store(void **state)
{
	struct pages_params params = {
		.count = 4,
		.part_count = 2,
		.part_bytes = { 4096, 4096 },
	};
	uint64_t digest;
	struct fixture f;

	(void)state;
	fixture_open(&f, 4, 4096);
	fixture_store(&f);
	expect_result(do_remove(f.store, &f.pages, f.keys.keys[3]), KVC_OK, -1);
	fixture_close(&f);
	digest = folder_digest(suite.root);
	suite.setup.flags = KVC_OPEN_READ_ONLY;
	fixture_open_on(&f, suite_reopen(), &params);
	suite.setup.flags = 0;
	assert_int_equal(fixture_get(&f), 3);
	batch(f.store, &f.pages, KVC_SET, f.keys.keys + 3, 1, 0, f.results);
	expect_result(f.results[0], KVC_DENIED, KVC_CAUSE_READ_ONLY);
	batch(f.store, &f.pages, KVC_SET, f.keys.keys, 1, KVC_TRANSFER_OVERWRITE, f.results);
	expect_result(f.results[0], KVC_DENIED, KVC_CAUSE_READ_ONLY);
	expect_result(do_remove(f.store, &f.pages, f.keys.keys[0]), KVC_DENIED,
		      KVC_CAUSE_READ_ONLY);
	assert_int_equal(fixture_get(&f), 3);
	fixture_close(&f);
	assert_true(folder_digest(suite.root) == digest);
}

static void test_texts_about_a_store(void **state)
{
	char cut[16];
	struct fixture f;
	char *text;
	int bytes;

	(void)state;
	fixture_open(&f, 3, 4096);
	fixture_store(&f);
	text = store_text(f.store, KVC_FORMAT_TEXT);
	assert_non_null(strstr(text, suite.setup.plugin));
	assert_non_null(strstr(text, suite.root));
	if (suite.setup.engine != NULL)
		assert_non_null(strstr(text, suite.setup.engine));
	free(text);
	text = store_text(f.store, KVC_FORMAT_JSON);
	assert_int_equal(text[0], '{');
	free(text);
	bytes = kvc_metrics_text(f.store, NULL, 0);
	assert_true(bytes > 100);
	assert_int_equal(kvc_metrics_text(f.store, cut, sizeof(cut)), bytes);
	assert_int_equal(strlen(cut), sizeof(cut) - 1);
	text = malloc((size_t)bytes + 1);
	assert_non_null(text);
	assert_int_equal(kvc_metrics_text(f.store, text, (size_t)bytes + 1), bytes);
	assert_non_null(strstr(text, "# TYPE kvcellar_"));
	free(text);
	assert_int_equal(kvc_store_selftest(f.store), 0);
	fixture_close(&f);
}

struct page_seen {
	uint64_t set_pages;
	size_t mine;
};

static int stats_take(void *context, int pid, const struct kvc_stats *stats)
{
	struct page_seen *seen = context;

	if (pid != getpid())
		return 0;
	seen->mine++;
	seen->set_pages = stats->operations[KVC_SET].pages;
	return 0;
}

/* The counters of a running process, as another one sees them. */
static void test_stats_pages(void **state)
{
	struct page_seen seen = { .mine = 0 };
	struct fixture f;

	(void)state;
	if (!suite.folder)
		return;
	fixture_open(&f, 7, 4096);
	fixture_store(&f);
	assert_int_equal(kvc_stats_pages(suite.root, stats_take, &seen), 0);
	assert_int_equal(seen.mine, 1);
	assert_int_equal(seen.set_pages, 7);
	fixture_close(&f);
	seen.mine = 0;
	assert_int_equal(kvc_stats_pages(suite.root, stats_take, &seen), 0);
	assert_int_equal(seen.mine, 0);
	assert_int_equal(kvc_stats_pages("/no/such/root", stats_take, &seen), -ENOENT);
}

/* Settings that change how, not what. */
static void test_other_settings(void **state)
{
	static const char *const settings[] = {
		"durability=fdatasync", "checksum=sector", "checksum=none", "verify=off",
		"verify=if-present",	"io_threads=3",	   "mode=0640",
	};
	char path[PATH_BYTES];
	struct fixture f;

	(void)state;
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		struct stat st;

		suite.setup.settings[0] = settings[i];
		fixture_open(&f, 20, 5000);
		fixture_store(&f);
		assert_int_equal(fixture_get(&f), 20);
		if (suite.folder && strcmp(settings[i], "mode=0640") == 0) {
			assert_true(page_path(f.pages.pool, f.keys.keys[0], 0, path));
			if (suite.packed)
				*strrchr(path, '@') = '\0';
			assert_int_equal(stat(path, &st), 0);
			assert_int_equal(st.st_mode & 07777, 0640);
			*strrchr(path, '/') = '\0';
			assert_int_equal(stat(path, &st), 0);
			assert_int_equal(st.st_mode & 07777, 0750);
		}
		fixture_close(&f);
	}
	suite.setup.settings[0] = NULL;
}

/* What open needs is checked before anything is touched. */
static void test_open_refuses(void **state)
{
	struct kvc_open_params params = { .size = 2 };
	struct setup setup = suite.setup;
	struct kvc_store *store = NULL;
	struct kvc_config *config;
	char roots[2 * PATH_BYTES];
	const char *root = folder_new("twice");

	(void)state;
	assert_int_equal(kvc_config_new(&config), 0);
	assert_int_equal(kvc_store_open(config, &params, &store), -EINVAL);
	kvc_config_free(config);
	(void)snprintf(roots, sizeof(roots), "%s,%s/.", root, root);
	setup.roots = roots;
	assert_int_equal(setup_open(&setup, &store), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), root));
	if (suite.folder) {
		setup.roots = "/proc/no/such/folder";
		assert_true(setup_open(&setup, &store) < 0);
		assert_non_null(strstr(kvc_last_error(), "/proc/no/such/folder"));
	}
	assert_null(store);
}

/* A root keeps its naming. */
static void test_root_keeps_its_naming(void **state)
{
	struct setup setup;
	struct kvc_store *store;

	(void)state;
	if (!suite.folder)
		return;
	store = suite_open();
	store_must_close(store);
	setup = suite.setup;
	setup.layout = "";
	setup.naming = suite.nixl ? "kvcellar" : "nixl";
	store = NULL;
	assert_int_equal(setup_open(&setup, &store), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "nixl"));
	assert_non_null(strstr(kvc_last_error(), "kvcellar"));
	assert_null(store);
}

/* And its layout, whatever is asked for; "auto" takes what is there. */
static void test_root_keeps_its_layout(void **state)
{
	struct setup setup;
	struct kvc_store *store;
	uint64_t digest;

	(void)state;
	if (!suite.folder)
		return;
	store = suite_open();
	store_must_close(store);
	setup = suite.setup;
	setup.layout = suite.packed ? "files" : "packed";
	setup.naming = "kvcellar";
	store = NULL;
	digest = folder_digest(suite.root);
	assert_int_equal(setup_open(&setup, &store), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "packed"));
	assert_non_null(strstr(kvc_last_error(), "files"));
	assert_non_null(strstr(kvc_last_error(), "convert"));
	assert_null(store);
	assert_int_equal(folder_digest(suite.root), digest);
	setup.layout = "";
	setup.naming = suite.setup.naming;
	setup.settings[0] = "l3_cleaner_enabled=true";
	store = setup_must_open(&setup);
	assert_int_equal(store->roots[0]->is_packed, suite.packed);
	store_must_close(store);
}

struct tests lifetime_tests(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reopen),
		cmocka_unit_test(test_two_stores_on_one_root),
		cmocka_unit_test(test_several_roots),
		cmocka_unit_test(test_close_with_children),
		cmocka_unit_test(test_registered_memory),
		cmocka_unit_test(test_read_only_store),
		cmocka_unit_test(test_texts_about_a_store),
		cmocka_unit_test(test_stats_pages),
		cmocka_unit_test(test_other_settings),
		cmocka_unit_test(test_open_refuses),
		cmocka_unit_test(test_root_keeps_its_naming),
		cmocka_unit_test(test_root_keeps_its_layout),
	};

	return TESTS_OF(tests);
}
