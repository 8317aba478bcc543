/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every public call that fails has a text of its own in kvc_last_error(), which names the thing;
 * and what is said of roots and plugins that are not as one would like them.
 */
#include "support/support.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- last_error */

/* A text of another failure, which must not be taken for the cause of the next one. */
static void poison(void)
{
	assert_int_equal(kvc_config_set(NULL, NULL, NULL), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "kvc_config_set"));
}

static void expect_text(const char *call, int rc, int expected, const char *thing)
{
	const char *text = kvc_last_error();

	if (rc != expected || !*text || strstr(text, "kvc_config_set") || !strstr(text, thing))
		fail_msg("%s: %d (expected %d), \"%s\" (expected to name \"%s\")", call, rc,
			 expected, text, thing);
}

#define TELLS(call, expected, thing)                             \
	do {                                                     \
		poison();                                        \
		expect_text(#call, (call), (expected), (thing)); \
	} while (0)

static int stop_object(void *context, const struct kvc_object_info *info)
{
	(void)context;
	(void)info;
	return -ECANCELED;
}

static int stop_verify(void *context, const struct kvc_object_info *info,
		       const struct kvc_result *result, uint64_t done, uint64_t total)
{
	(void)result;
	(void)done;
	(void)total;
	return stop_object(context, info);
}

static int stop_plugin(void *context, const struct kvc_plugin_info *info)
{
	(void)context;
	(void)info;
	return -ECANCELED;
}

static int stop_page(void *context, int pid, const struct kvc_stats *stats)
{
	(void)context;
	(void)pid;
	(void)stats;
	return -ECANCELED;
}

static void configurations_tell(void **state)
{
	const char *folder = folder_new("told-config");
	char path[PATH_BYTES];
	struct kvc_config *config;
	char text[8];

	(void)state;
	assert_int_equal(kvc_config_new(&config), 0);
	TELLS(kvc_config_new(NULL), -EINVAL, "out");
	TELLS(kvc_config_load_file(config, "/nonexistent/k.toml"), -ENOENT, "/nonexistent/k.toml");
	TELLS(kvc_config_load_file(config, folder), -EISDIR, folder);
	TELLS(kvc_config_load_text(config, "{", 1, KVC_CONFIG_JSON, "given"), -EINVAL, "given");
	TELLS(kvc_config_load_text(config, "@/nonexistent/x", 15, KVC_CONFIG_AUTO, NULL), -ENOENT,
	      "/nonexistent/x");
	TELLS(kvc_config_set(config, "storage_dir", "x"), -EINVAL, "storage_dirs");
	TELLS(kvc_config_set(config, "get_timeout_ms", "x"), -EINVAL, "get_timeout_ms");
	TELLS(kvc_config_describe(config, 77, text, sizeof(text)), -EINVAL, "77");
	text_make(path, sizeof(path), "%s,%s", folder, folder);
	TELLS(kvc_config_set(config, "storage_dirs", path), -EINVAL, "storage_dirs");
	assert_int_equal(kvc_config_set(config, "plugin.posix.use_uring", "true"), 0);
	assert_int_equal(kvc_config_set(config, "plugin.posix.use_aio", "true"), 0);
	TELLS(kvc_config_check(config), -EINVAL, "use_aio");
	TELLS(kvc_config_describe(config, KVC_DESCRIBE_EFFECTIVE, text, sizeof(text)), -EINVAL,
	      "use_aio");
	kvc_config_free(config);
}

static void objects_tell(struct kvc_store *store, struct kvc_namespace *ns, struct kvc_pool *pool)
{
	const struct kvc_key key = key_of("key");
	struct kvc_object_detail detail = { .size = sizeof(detail) };
	struct kvc_clear_report report = { .size = sizeof(report) };
	const char *id = kvc_namespace_id(ns);
	unsigned char data[100] = { 0 };
	size_t bytes;

	TELLS(kvc_object_get(ns, "raw", key, data, sizeof(data), &bytes, 0, 0), -ENOENT, "key");
	TELLS(kvc_object_get(ns, "Raw!", key, data, sizeof(data), &bytes, 0, 0), -EINVAL, "Raw!");
	TELLS(kvc_object_put(ns, "Raw!", key, data, sizeof(data), 0, 0), -EINVAL, "Raw!");
	TELLS(kvc_object_exists(ns, "Raw!", key, NULL, 0), -EINVAL, "Raw!");
	TELLS(kvc_object_remove(ns, "Raw!", key, 0), -EINVAL, "Raw!");
	TELLS(kvc_object_where(ns, "Raw!", key, stop_object, NULL), -EINVAL, "Raw!");
	assert_int_equal(kvc_object_put(ns, "raw", key, data, sizeof(data), 0, 0), 0);
	TELLS(kvc_object_get(ns, "raw", key, data, 1, &bytes, 0, 0), -ENOBUFS, "key");
	TELLS(kvc_object_where(ns, "raw", key, stop_object, NULL), -ECANCELED, "key");
	TELLS(kvc_pool_where(pool, key, stop_object, NULL), -ECANCELED, "kv");
	TELLS(kvc_object_list(store, id, stop_object, NULL), -ECANCELED, id);
	TELLS(kvc_store_verify(store, id, 0, stop_verify, NULL), -ECANCELED, id);
	TELLS(kvc_object_stat(store, "/nonexistent", "x", &detail), -ENOENT, "/nonexistent");
	TELLS(kvc_object_stat(store, "/nonexistent", "../x", &detail), -EINVAL, "../x");
	TELLS(kvc_namespace_clear(store, "no id", 1, &report), -EINVAL, "no id");
	TELLS(kvc_namespace_clear(store, "x-0123456789abcdef", 0, &report), -ENOENT,
	      "x-0123456789abcdef");
}

static void stores_tell(void **state)
{
	const char *root = folder_new("told-store");
	const struct setup setup = { .plugin = "posix", .roots = root, .buffered = true };
	struct kvc_store *store = setup_must_open(&setup);
	struct kvc_namespace_params params = namespace_params("told");
	struct kvc_namespace *ns = namespace_must_open(store, &params), *other = NULL;
	struct kvc_root_usage usage[2] = { { .size = sizeof(usage[0]) } };
	struct kvc_stats stats = { .size = 8 };
	struct kvc_region *region = NULL, *second = NULL;
	static unsigned char memory[8192];
	struct kvc_memory some = { .size = sizeof(some), .addr = memory, .bytes = 8192 };
	struct kvc_batch *batch = NULL;
	struct kvc_transfer transfer = { .size = sizeof(transfer), .op = 99 };
	struct kvc_pool_params wrong = { .size = sizeof(wrong), .name = "No Pool" };
	struct kvc_pool *none = NULL;
	struct pages pages;
	char text[8];

	(void)state;
	pages_open_simple(&pages, ns, 1, 100);
	TELLS(kvc_store_close(store), -EBUSY, "open");
	TELLS(kvc_store_describe(store, 77, text, sizeof(text)), -EINVAL, "format");
	TELLS(kvc_store_usage(store, 0, &usage[1], 1), -EINVAL, "kvc_root_usage");
	TELLS(kvc_store_stats(store, &stats), -EINVAL, "kvc_stats");
	TELLS(kvc_stats_text(&stats, 0, text, sizeof(text)), -EINVAL, "kvc_stats");
	TELLS(kvc_stats_pages("/nonexistent", stop_page, NULL), -ENOENT, "/nonexistent");
	TELLS(kvc_stats_pages(root, stop_page, NULL), -ECANCELED, root);
	TELLS(kvc_plugin_list(NULL, stop_plugin, NULL), -ECANCELED, "plugins");
	TELLS(kvc_batch_run(store, &transfer, 1), -EINVAL, "transfer");
	TELLS(kvc_batch_start(store, &transfer, 1, &batch), -EINVAL, "transfer");
	TELLS(kvc_batch_wait(NULL, 0), -EINVAL, "batch");
	TELLS(kvc_batch_event_fd(NULL), -EINVAL, "batch");
	TELLS(kvc_pool_open(ns, &wrong, &none), -EINVAL, "No Pool");
	params.tp_size = 2;
	params.tp_rank = 2;
	TELLS(kvc_namespace_open(store, &params, &other), -EINVAL, "tp_rank");
	assert_int_equal(kvc_memory_register(store, &some, &region), 0);
	some.bytes = 4096;
	TELLS(kvc_memory_register(store, &some, &second), -EEXIST, "memory");
	assert_int_equal(kvc_memory_deregister(region), 0);
	TELLS(kvc_namespace_close(ns), -EBUSY, "pools");
	objects_tell(store, ns, pages.pool);
	pages_close(&pages);
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* ---------------------------------------------------------------- opening */

/* No plugin is named. */
static int open_auto(const char *dirs, const char *key, const char *value, char **out_text)
{
	struct kvc_store *store = NULL;
	struct kvc_config *config;
	int rc;

	assert_int_equal(kvc_config_new(&config), 0);
	assert_int_equal(kvc_config_set(config, "storage_dirs", dirs), 0);
	if (key)
		assert_int_equal(kvc_config_set(config, key, value), 0);
	rc = kvc_store_open(config, NULL, &store);
	kvc_config_free(config);
	if (rc == 0 && out_text)
		*out_text = store_text(store, KVC_FORMAT_TEXT);
	if (rc == 0)
		store_must_close(store);
	return rc;
}

static void the_cause_is_not_buried(void **state)
{
	static const char *const others[] = { "3fs", "gds", "obj", "mount_point" };
	char *text = NULL;

	(void)state;
	assert_int_equal(open_auto("/nonexistent/a/b", NULL, NULL, NULL), -ENOENT);
	assert_non_null(strstr(kvc_last_error(), "posix: "));
	assert_non_null(strstr(kvc_last_error(), "/nonexistent/a/b"));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_null(strstr(kvc_last_error(), others[i]));
	/* One of which something is set is the caller's business. */
	assert_int_equal(open_auto("/nonexistent/a/b", "plugin.obj.bucket", "b", NULL), -ENOENT);
	assert_non_null(strstr(kvc_last_error(), "obj: "));
	assert_non_null(strstr(kvc_last_error(), "posix: "));
	assert_null(strstr(kvc_last_error(), "3fs"));
	/* The whole list is in the description. */
	assert_int_equal(open_auto(folder_new("told-auto"), NULL, NULL, &text), 0);
	assert_non_null(strstr(text, "passed over"));
	assert_non_null(strstr(text, "3fs: "));
	free(text);
}

static void too_many_folders_make_none(void **state)
{
	const char *parent = folder_new("told-many");
	struct kvc_config *config;
	char *dirs = calloc(65, PATH_BYTES);
	size_t used = 0;

	(void)state;
	assert_non_null(dirs);
	for (int i = 0; i < 65; i++)
		used += (size_t)snprintf(dirs + used, PATH_BYTES, "%s%s/d%d", i ? "," : "", parent,
					 i);
	assert_int_equal(open_auto(dirs, NULL, NULL, NULL), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "65"));
	assert_non_null(strstr(kvc_last_error(), "64"));
	/* Not even empty, the parent could go. */
	assert_int_equal(rmdir(parent), 0);
	assert_int_equal(kvc_config_new(&config), 0);
	assert_int_equal(kvc_config_set(config, "storage_dirs", dirs), 0);
	TELLS(kvc_config_check(config), -EINVAL, "storage_dirs");
	kvc_config_free(config);
	free(dirs);
}

/* ---------------------------------------------------------------- states and limits */

static void expect_state(const char *root, uint32_t flags, const char *expected, const char *own)
{
	const struct setup setup = {
		.plugin = "posix", .roots = root, .flags = flags, .buffered = true
	};
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct kvc_store *store = setup_must_open(&setup);
	char *text = store_text(store, KVC_FORMAT_TEXT);

	assert_non_null(strstr(text, own));
	free(text);
	assert_int_equal(kvc_store_usage(store, 0, &usage, 1), 1);
	assert_string_equal(usage.state, expected);
	store_must_close(store);
}

static void opening_read_only_is_no_state_of_a_root(void **state)
{
	const char *root = folder_new("told-state");
	char usage[PATH_BYTES];

	(void)state;
	expect_state(root, 0, "ok", "0 bytes (0 B) in 0 objects\n");
	/* What others counted is known to who only reads; else nobody counts for him. */
	expect_state(root, KVC_OPEN_READ_ONLY, "ok (opened read-only)",
		     "0 bytes (0 B) in 0 objects\n");
	(void)snprintf(usage, sizeof(usage), "%s/.kvcellar/usage", root);
	assert_int_equal(unlink(usage), 0);
	expect_state(root, KVC_OPEN_READ_ONLY, "ok (opened read-only)",
		     "not counted by a read-only open");
}

static void a_read_only_mount_is_one(void **state)
{
	const char *root = folder_new("told-mount");

	(void)state;
	mounts_enter();
	expect_state(root, 0, "ok", "0 bytes (0 B) in 0 objects");
	mount_read_only(root);
	expect_state(root, 0, "read-only", "0 bytes (0 B) in 0 objects\n");
	expect_state(root, KVC_OPEN_READ_ONLY, "read-only", "0 bytes (0 B) in 0 objects\n");
	mount_end(root);
}

static void limit(const char *setting, const char *expected)
{
	const struct setup setup = { .plugin = "posix",
				     .roots = folder_new("told-limit"),
				     .buffered = true,
				     .settings = { setting } };
	const struct kvc_namespace_params params = namespace_params("limit");
	struct kvc_store *store = setup_must_open(&setup);
	struct kvc_namespace *ns = namespace_must_open(store, &params);
	static unsigned char data[100000];

	log_capture();
	TELLS(kvc_object_put(ns, "raw", key_of("big"), data, sizeof(data), 0, 0), -ENOSPC,
	      expected);
	assert_non_null(strstr(kvc_last_error(), "big"));
	assert_null(strstr(kvc_last_error(), strerror(ENOSPC)));
	assert_int_equal(log_count(KVC_LOG_WARNING, setup.roots, expected), 1);
	assert_int_equal(log_count(KVC_LOG_WARNING, strerror(ENOSPC), NULL), 0);
	log_forget();
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

static void a_limit_is_no_full_device(void **state)
{
	(void)state;
	limit("capacity=65536", "over capacity");
	limit("min_free=100%", "under min_free");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(configurations_tell),
		cmocka_unit_test(stores_tell),
		cmocka_unit_test(the_cause_is_not_buried),
		cmocka_unit_test(too_many_folders_make_none),
		cmocka_unit_test(opening_read_only_is_no_state_of_a_root),
		cmocka_unit_test(a_limit_is_no_full_device),
	};
	static const struct CMUnitTest mounts[] = {
		cmocka_unit_test(a_read_only_mount_is_one),
	};
	int failed;

	support_begin();
	failed = cmocka_run_group_tests_name("told", tests, NULL, NULL);
	/* Ends the program with a skip where mounts are not allowed. */
	return failed ? failed : cmocka_run_group_tests_name("mounts", mounts, NULL, NULL);
}
