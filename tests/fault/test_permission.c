/* SPDX-License-Identifier: Apache-2.0 */
/* Read-only mounts and other users' files: R26, and folders that must not be used. */
#include "support/support.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534

struct fix {
	struct setup setup;
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[8];
};

static void fix_open(struct fix *fix)
{
	struct kvc_namespace_params params = namespace_params("permission");

	fix->setup.plugin = fix->setup.rules ? "fault" : "posix";
	fix->store = setup_must_open(&fix->setup);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, 8, 4096);
	keys_make(&fix->keys, "permission", 8);
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

static void store_four(const char *root)
{
	struct fix fix = { .setup = { .roots = root } };

	fix_open(&fix);
	pages_fill_keys(&fix.pages, fix.keys.keys, 4);
	batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys, 4, 0, fix.results);
	expect_all(fix.results, 4, KVC_OK);
	fix_close(&fix);
}

static void expect_four(struct fix *fix)
{
	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys, 8, 0, fix->results);
	expect_all(fix->results, 4, KVC_OK);
	expect_all(fix->results + 4, 4, KVC_MISS);
	for (size_t i = 0; i < 4; i++)
		assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
}

static void run_read_only_mount(uint32_t flags)
{
	const char *root = folder_new("read-only");
	struct fix fix = { .setup = { .roots = root, .flags = flags } };

	store_four(root);
	mount_read_only(root);
	log_capture();
	fix_open(&fix);
	assert_int_equal(log_count(KVC_LOG_WARNING, root, "mounted read-only"), flags ? 0 : 1);
	assert_int_equal(log_count(KVC_LOG_WARNING, NULL, "nothing will be stored there"),
			 flags ? 0 : 1);
	expect_four(&fix);
	log_forget();
	for (int i = 0; i < 3; i++) {
		pages_fill_keys(&fix.pages, fix.keys.keys, 8);
		batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys + 4, 4, 0, fix.results);
		for (size_t k = 0; k < 4; k++)
			expect_result(fix.results[k], KVC_DENIED, KVC_CAUSE_READ_ONLY);
	}
	/* Who did not ask for it was told at open; who did is told by the first set. */
	assert_int_equal(log_count(KVC_LOG_WARNING, root, NULL), flags ? 1 : 0);
	expect_four(&fix);
	fix_close(&fix);
	kvc_log_set(NULL, NULL, 0);
}

static void test_read_only_mount(void **state)
{
	(void)state;
	run_read_only_mount(KVC_OPEN_READ_ONLY);
	run_read_only_mount(0);
}

/* A file system that becomes read-only under an open store: said once. */
static void test_file_system_becomes_read_only(void **state)
{
	const char *root = folder_new("becomes");
	struct fix fix = { .setup = { .roots = root } };

	(void)state;
	store_four(root);
	fix.setup.lower = "posix";
	fix.setup.rules = "write error=EROFS name=*.kv.*";
	fix_open(&fix);
	expect_four(&fix);
	log_capture();
	for (int i = 0; i < 3; i++) {
		pages_fill_keys(&fix.pages, fix.keys.keys, 8);
		batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys + 4, 4, 0, fix.results);
		for (size_t k = 0; k < 4; k++)
			expect_result(fix.results[k], KVC_DENIED, KVC_CAUSE_READ_ONLY);
	}
	assert_int_equal(log_count(KVC_LOG_WARNING, root, NULL), 1);
	expect_four(&fix);
	fix_close(&fix);
	kvc_log_set(NULL, NULL, 0);
}

static bool become_nobody(void)
{
	return setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
}

/* Files 0444 in folders 0555 of another user. */
static int read_as_nobody(void *context)
{
	struct fix fix = { .setup = { .roots = context } };

	if (!become_nobody())
		return 77;
	fix.setup.flags = KVC_OPEN_READ_ONLY;
	fix_open(&fix);
	expect_four(&fix);
	fix_close(&fix);
	return 0;
}

static void open_to_all(const char *path, mode_t files, mode_t folders)
{
	char command[PATH_BYTES];
	const char *const arguments[] = { "sh", "-c", command, NULL };

	text_make(command, sizeof(command),
		  "find '%s' -type d -exec chmod %o {} + ; "
		  "find '%s' -type f -exec chmod %o {} +",
		  path, folders, path, files);
	assert_int_equal(run_program(arguments), 0);
}

static void test_files_of_another_user_are_read(void **state)
{
	const char *root = folder_new("others");

	(void)state;
	store_four(root);
	open_to_all(root, 0444, 0555);
	assert_int_equal(child_wait(child_start(read_as_nobody, (void *)(uintptr_t)root)), 0);
}

/* A root of our own whose namespace folders are somebody else's. */
static int write_as_nobody(void *context)
{
	struct fix fix = { .setup = { .roots = context } };

	if (!become_nobody())
		return 77;
	log_capture();
	fix_open(&fix);
	expect_four(&fix);
	log_forget();
	for (int i = 0; i < 3; i++) {
		pages_fill_keys(&fix.pages, fix.keys.keys, 8);
		batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys + 4, 4, 0, fix.results);
		for (size_t k = 0; k < 4; k++) {
			expect_result(fix.results[k], KVC_DENIED, KVC_CAUSE_PERMISSION);
			assert_int_equal(fix.results[k].error, EACCES);
		}
	}
	assert_int_equal(log_count(KVC_LOG_WARNING, context, NULL), 1);
	expect_four(&fix);
	fix_close(&fix);
	kvc_log_set(NULL, NULL, 0);
	return 0;
}

static void test_sets_without_permission_are_denied(void **state)
{
	const char *root = folder_new("denied");
	char command[PATH_BYTES];
	const char *const arguments[] = { "sh", "-c", command, NULL };

	(void)state;
	store_four(root);
	open_to_all(root, 0444, 0555);
	text_make(command, sizeof(command),
		  "chmod 0700 '%s' '%s/.kvcellar' && chown -R %d:%d '%s' && "
		  "chown -R 0:0 '%s'/permission-*",
		  root, root, NOBODY, NOBODY, root, root);
	assert_int_equal(run_program(arguments), 0);
	assert_int_equal(child_wait(child_start(write_as_nobody, (void *)(uintptr_t)root)), 0);
}

/* A folder that cannot be written, and no read-only open. */
static int open_as_nobody(void *context)
{
	struct setup setup = { .plugin = "posix", .roots = context };
	struct kvc_store *store = NULL;
	int rc;

	if (!become_nobody())
		return 77;
	rc = setup_open(&setup, &store);
	assert_true(rc == -EACCES || rc == -EPERM);
	assert_non_null(strstr(kvc_last_error(), context));
	assert_null(store);
	return 0;
}

static void test_root_of_another_user_is_refused(void **state)
{
	const char *root = folder_new("closed");

	(void)state;
	assert_int_equal(chmod(root, 0755), 0);
	assert_int_equal(child_wait(child_start(open_as_nobody, (void *)(uintptr_t)root)), 0);
	store_four(root);
	assert_int_equal(child_wait(child_start(open_as_nobody, (void *)(uintptr_t)root)), 0);
}

/* The build may lie below /tmp, which is about to be another one. */
static void plugins_elsewhere(void)
{
	const char *from = getenv("KVCELLAR_PLUGIN_DIR");

	if (from == NULL)
		return;
	mount_bind(from, "/mnt");
	assert_int_equal(setenv("KVCELLAR_PLUGIN_DIR", "/mnt", 1), 0);
}

/* The folder that nobody named: neither a symlink nor another user's. */
static void test_default_folder_is_guarded(void **state)
{
	struct setup setup = { .plugin = "posix" };
	const char *away = folder_new("away");
	struct kvc_store *store = NULL;

	(void)state;
	/* A /tmp of our own, in our mount namespace. */
	plugins_elsewhere();
	mount_tmpfs("/tmp", "size=8m,mode=1777");
	assert_int_equal(symlink(away, "/tmp/hicache_storage"), 0);
	assert_int_equal(setup_open(&setup, &store), -EPERM);
	assert_non_null(strstr(kvc_last_error(), "/tmp/hicache_storage"));
	assert_int_equal(unlink("/tmp/hicache_storage"), 0);
	assert_int_equal(mkdir("/tmp/hicache_storage", 0777), 0);
	assert_int_equal(chown("/tmp/hicache_storage", NOBODY, NOBODY), 0);
	assert_int_equal(setup_open(&setup, &store), -EPERM);
	assert_non_null(strstr(kvc_last_error(), "/tmp/hicache_storage"));
	assert_int_equal(rmdir("/tmp/hicache_storage"), 0);
	store = setup_must_open(&setup);
	store_must_close(store);
	mount_end("/tmp");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read_only_mount),
		cmocka_unit_test(test_file_system_becomes_read_only),
		cmocka_unit_test(test_files_of_another_user_are_read),
		cmocka_unit_test(test_sets_without_permission_are_denied),
		cmocka_unit_test(test_root_of_another_user_is_refused),
		cmocka_unit_test(test_default_folder_is_guarded),
	};

	support_begin();
	mounts_enter();
	return cmocka_run_group_tests_name("permission", tests, NULL, NULL);
}
