/* SPDX-License-Identifier: Apache-2.0 */
/* core/store.c, core/describe.c: opening, choosing, closing, and what a store says of itself. */
#include "fake.h"

#include "core/describe.h"
#include "core/stage.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int setup(void **state)
{
	(void)state;
	if (!getenv("KVCELLAR_PLUGIN_DIR")) {
		puts("SKIP: KVCELLAR_PLUGIN_DIR is not set");
		exit(77);
	}
	(void)snprintf(folder, sizeof(folder), "/tmp/kvc-store-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	(void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command);
}

static int open_with(const char *plugin, const char *dirs, uint32_t flags, struct kvc_store **out)
{
	const struct kvc_open_params params = { .size = sizeof(params), .flags = flags };
	struct kvc_config *config;
	char key[64];
	int rc;

	assert_int_equal(kvc_config_new(&config), 0);
	(void)snprintf(key, sizeof(key), "plugin.%s.active", plugin);
	assert_int_equal(kvc_config_set(config, key, "true"), 0);
	assert_int_equal(kvc_config_set(config, "l3_cleaner_enabled", "false"), 0);
	if (dirs)
		assert_int_equal(kvc_config_set(config, "storage_dirs", dirs), 0);
	rc = kvc_store_open(config, &params, out);
	kvc_config_free(config);
	return rc;
}

static struct kvc_store *must_open(const char *plugin, const char *dirs)
{
	struct kvc_store *store;

	if (open_with(plugin, dirs, 0, &store))
		fail_msg("%s: %s", plugin, kvc_last_error());
	return store;
}

static char *describe(struct kvc_store *store, int format)
{
	const int length = kvc_store_describe(store, format, NULL, 0);
	char *text = malloc((size_t)length + 1);

	assert_true(length > 0 && text);
	assert_int_equal(kvc_store_describe(store, format, text, (size_t)length + 1), length);
	return text;
}

/* ---------------------------------------------------------------- opening */

static void what_makes_no_sense_is_refused(void **state)
{
	struct {
		struct kvc_open_params params;
		uint64_t more;
	} params = { .params.size = sizeof(params), .more = 1 };
	struct kvc_store *store = NULL;
	char text[8];

	(void)state;
	assert_int_equal(kvc_store_open(NULL, NULL, NULL), -EINVAL);
	assert_int_equal(kvc_store_open(NULL, &params.params, &store), -E2BIG);
	params.params.size = 4;
	assert_int_equal(kvc_store_open(NULL, &params.params, &store), -EINVAL);
	params.params.size = sizeof(params.params);
	params.params.flags = 64;
	assert_int_equal(kvc_store_open(NULL, &params.params, &store), -EINVAL);
	assert_null(store);
	assert_int_equal(kvc_store_close(NULL), 0);
	assert_int_equal(kvc_store_selftest(NULL), -EINVAL);
	assert_int_equal(kvc_store_stats(NULL, NULL), -EINVAL);
	assert_int_equal(kvc_store_describe(NULL, 0, text, 8), -EINVAL);
	assert_int_equal(kvc_metrics_text(NULL, text, 8), -EINVAL);
	assert_int_equal(kvc_store_usage(NULL, 0, NULL, 0), -EINVAL);
	assert_int_equal(kvc_plugin_list(NULL, NULL, NULL), -EINVAL);
	store = must_open("mem", NULL);
	assert_int_equal(kvc_store_describe(store, 77, text, 8), -EINVAL);
	assert_int_equal(kvc_store_describe(store, 0, NULL, 8), -EINVAL);
	assert_int_equal(kvc_store_stats(store, NULL), -EINVAL);
	assert_int_equal(kvc_store_usage(store, 0, NULL, 1), -EINVAL);
	assert_int_equal(kvc_store_close(store), 0);
}

static void more_roots_than_there_may_be_are_refused(void **state)
{
	char dirs[65 * 16] = "";
	struct kvc_store *store = NULL;
	int rc;

	(void)state;
	for (int i = 0; i < 65; i++)
		(void)snprintf(dirs + strlen(dirs), sizeof(dirs) - strlen(dirs), "%s/m/%d",
			       i ? "," : "", i);
	rc = open_with("mem", dirs, 0, &store);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "64"));
	assert_null(store);
	*strrchr(dirs, ',') = '\0';
	store = must_open("mem", dirs);
	assert_int_equal(store->root_count, 64);
	assert_int_equal(kvc_store_close(store), 0);
}

static void a_copied_root_is_found(void **state)
{
	char dirs[200], command[400];
	struct kvc_store *store = NULL;

	(void)state;
	(void)snprintf(dirs, sizeof(dirs), "%s/a", folder);
	assert_int_equal(kvc_store_close(must_open("posix", dirs)), 0);
	(void)snprintf(command, sizeof(command), "cp -r %s/a %s/b", folder, folder);
	assert_int_equal(system(command), 0);
	(void)snprintf(dirs, sizeof(dirs), "%s/a,%s/b", folder, folder);
	assert_int_not_equal(open_with("posix", dirs, 0, &store), 0);
	assert_non_null(strstr(kvc_last_error(), "/a"));
	assert_non_null(strstr(kvc_last_error(), "same identity"));
	assert_null(store);
}

static void a_plugin_that_is_not_built_is_named(void **state)
{
	struct kvc_store *store = NULL;

	(void)state;
	assert_int_equal(open_with("gds", folder, 0, &store), -ENODEV);
	assert_non_null(strstr(kvc_last_error(), "gds"));
	assert_non_null(strstr(kvc_last_error(), "not built"));
	assert_null(store);
}

static void read_only_changes_nothing(void **state)
{
	struct kvc_store *store;
	struct kvc_namespace *ns;
	const struct kvc_namespace_params params = { .size = sizeof(params), .page_tokens = 1 };

	(void)state;
	assert_int_equal(kvc_store_close(must_open("posix", folder)), 0);
	assert_int_equal(open_with("posix", folder, KVC_OPEN_READ_ONLY, &store), 0);
	assert_int_equal(kvc_store_selftest(store), -EROFS);
	assert_int_equal(kvc_namespace_open(store, &params, &ns), 0);
	assert_int_equal(kvc_object_put(ns, "a", (struct kvc_key){ "k", 1 }, "x", 1, 0, 0), -EROFS);
	assert_int_equal(kvc_store_close(store), -EBUSY); /* a child is open */
	assert_int_equal(kvc_namespace_close(ns), 0);
	assert_int_equal(kvc_store_close(store), 0);
}

/* ---------------------------------------------------------------- closing */

static int64_t stall(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_READ ? FAKE_STALL : FAKE_NORMAL;
}

static void a_route_is_by_the_naming(void **state)
{
	struct fake *fake = fake_new();
	unsigned seen[3] = { 0 };

	(void)state;
	fake_open(fake, 3);
	for (uint64_t h = 0; h < 3000; h++) {
		const uint64_t hash = h * UINT64_C(0x9e3779b97f4a7c15);
		struct kvc_root *root = kvc_store_route(&fake->store, hash);

		assert_ptr_equal(root, kvc_store_route(&fake->store, hash));
		for (int r = 0; r < 3; r++)
			seen[r] += root == fake->store.roots[r];
	}
	for (int r = 0; r < 3; r++)
		assert_in_range(seen[r], 800, 1200);
	fake->settings.naming = KVC_NAMING_NIXL;
	assert_ptr_equal(kvc_store_route(&fake->store, UINT64_C(5) << 16), fake->store.roots[2]);
	fake->settings.naming = KVC_NAMING_KVCELLAR;
	fake_free(fake);
}

static void one_stuck_root_keeps_only_itself_open(void **state)
{
	struct fake *fake = fake_new();
	struct page page;
	const struct part_of one[] = { { 100, 0, 1, 0 } };
	struct kvc_request *request;

	(void)state;
	fake->attributes.flags &= ~(uint32_t)KVC_ATTRIBUTE_LOCAL;
	fake_open(fake, 2);
	page_make(&page, one, 1);
	request = page_request(&page, fake_root(fake, 0), KVC_SET, 1);
	kvc_xfer_run(&fake->store, request, 1, NULL);
	fake->hook = stall;
	request = page_request(&page, fake_root(fake, 0), KVC_GET, 1);
	request->deadline_ns = kvc_now_ns() + 20000000;
	kvc_xfer_run(&fake->store, request, 1, NULL);
	assert_int_equal(request->result.status, KVC_TIMEOUT);
	assert_string_equal(kvc_root_state(fake_root(fake, 0)), "suspect");
	assert_string_equal(kvc_root_state(fake_root(fake, 1)), "ok");
	assert_int_equal(kvc_root_close(fake_root(fake, 1), 0), 0);
	assert_int_equal(kvc_root_close(fake_root(fake, 0), 0), -EBUSY);
	fake->store.root_count = 1;
	page_free(&page);
	fake_free(fake);
}

/* ---------------------------------------------------------------- what it says */

static void descriptions_are_text_and_json(void **state)
{
	struct kvc_store *store = must_open("posix", folder);
	json_t *json, *root;
	char *text, cut[20];

	(void)state;
	text = describe(store, KVC_FORMAT_TEXT);
	assert_non_null(strstr(text, folder));
	assert_non_null(strstr(text, store->roots[0]->uuid_text));
	assert_int_equal(kvc_store_describe(store, KVC_FORMAT_TEXT, cut, sizeof(cut)),
			 strlen(text));
	assert_memory_equal(cut, text, sizeof(cut) - 1);
	assert_int_equal(cut[sizeof(cut) - 1], '\0');
	free(text);
	text = describe(store, KVC_FORMAT_JSON);
	json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(json);
	root = json_array_get(json_object_get(json, "roots"), 0);
	assert_string_equal(json_string_value(json_object_get(root, "path")), folder);
	assert_string_equal(json_string_value(json_object_get(root, "state")), "ok");
	json_decref(json);
	free(text);
	assert_int_equal(kvc_store_close(store), 0);
}

static void states_of_a_root_have_names(void **state)
{
	struct kvc_root root = { .writes_refused = false };

	(void)state;
	assert_string_equal(kvc_root_state(&root), "ok");
	root.writes_refused = true;
	assert_string_equal(kvc_root_state(&root), "reads only");
	root.read_only = true;
	assert_string_equal(kvc_root_state(&root), "read-only");
	root.suspect = true;
	assert_string_equal(kvc_root_state(&root), "suspect");
}

static void usage_of_each_root(void **state)
{
	char dirs[200];
	struct kvc_root_usage usage[3] = { { .size = 4 } };
	struct kvc_store *store;

	(void)state;
	(void)snprintf(dirs, sizeof(dirs), "%s/a,%s/b", folder, folder);
	store = must_open("posix", dirs);
	assert_int_equal(kvc_store_usage(store, 0, NULL, 0), 2);
	assert_int_equal(kvc_store_usage(store, 0, usage, 3), -EINVAL);
	usage[0].size = sizeof(usage[0]);
	assert_int_equal(kvc_store_usage(store, 0, usage, 3), -EINVAL); /* the second's size */
	usage[1].size = sizeof(usage[1]);
	assert_int_equal(kvc_store_usage(store, 1, usage, 3), 2);
	assert_string_equal(usage[0].uuid, store->roots[0]->uuid_text);
	assert_string_equal(usage[1].path, store->roots[1]->location);
	assert_string_equal(usage[1].state, "ok");
	assert_true(usage[0].total_bytes > 0);
	assert_int_equal(usage[0].own_objects, 0);
	assert_int_equal(kvc_store_close(store), 0);
}

/* Each line is a comment, or has a value after a name and whole labels. */
static void metrics_stay_whole_with_long_paths(void **state)
{
	char path[1024];
	struct kvc_store *store;
	int length;
	char *text;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s", folder);
	for (int i = 0; i < 4; i++) {
		(void)snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%0200d\\\"x", i);
		assert_int_equal(mkdir(path, 0700), 0);
	}
	store = must_open("posix", path);
	length = kvc_metrics_text(store, NULL, 0);
	assert_true(length > 0);
	text = malloc((size_t)length + 4096);
	assert_non_null(text);
	length = kvc_metrics_text(store, text, (size_t)length + 4096);
	assert_non_null(strstr(text, "kvcellar_root_own_bytes{root=\""));
	for (char *line = text; line < text + length; line = strchr(line, '\n') + 1) {
		const size_t bytes = strcspn(line, "\n");
		const char *open = memchr(line, '{', bytes);

		assert_int_equal(line[bytes], '\n');
		if (line[0] != '#' && open)
			assert_non_null(memmem(line, bytes, "\"} ", 3));
	}
	free(text);
	assert_int_equal(kvc_store_close(store), 0);
}

struct seen {
	int status[4];
	int gds;
};

static int look(void *context, const struct kvc_plugin_info *info)
{
	static const char *const names[] = { "mem", "posix", "fault", "none" };
	struct seen *seen = context;

	for (int i = 0; i < 4; i++)
		if (strcmp(info->name, names[i]) == 0)
			seen->status[i] += 1 + info->status;
	if (strcmp(info->name, "gds") == 0) {
		seen->gds = info->status;
		assert_non_null(strstr(info->reason, "not built"));
	}
	return 0;
}

static int stop(void *context, const struct kvc_plugin_info *info)
{
	(void)context, (void)info;
	return 42;
}

static void each_plugin_is_listed_once(void **state)
{
	struct seen seen = { .gds = 0 };

	(void)state;
	assert_int_equal(kvc_plugin_list(NULL, look, &seen), 0);
	assert_int_equal(seen.status[0], 1);
	assert_int_equal(seen.status[1], 1);
	assert_int_equal(seen.status[2], 1);
	assert_int_equal(seen.status[3], 0);
	assert_int_equal(seen.gds, -ENOENT);
	assert_int_equal(kvc_plugin_list(NULL, stop, NULL), 42);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_makes_no_sense_is_refused),
		TEST(more_roots_than_there_may_be_are_refused),
		TEST(a_copied_root_is_found),
		TEST(a_plugin_that_is_not_built_is_named),
		TEST(read_only_changes_nothing),
		TEST(a_route_is_by_the_naming),
		TEST(one_stuck_root_keeps_only_itself_open),
		TEST(descriptions_are_text_and_json),
		TEST(states_of_a_root_have_names),
		TEST(usage_of_each_root),
		TEST(metrics_stay_whole_with_long_paths),
		TEST(each_plugin_is_listed_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
