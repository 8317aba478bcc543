/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What list, verify, recount and clear say of a root that they cannot read in full, and what of
 * it they take for theirs. R18: a foreign file stays.
 */
#include "support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOBODY 65534

static bool become_nobody(void)
{
	if (geteuid() != 0)
		return true;
	return setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
}

static struct setup setup_of(const char *root, const char *naming, uint32_t flags)
{
	return (struct setup){
		.plugin = "posix", .roots = root, .naming = naming, .flags = flags, .buffered = true
	};
}

/* Objects "0".."count-1" of 3000 bytes in a model's namespace; its id. */
static void store_objects(const char *root, const char *naming, const char *model, unsigned count,
			  char id[128])
{
	const struct setup setup = setup_of(root, naming, 0);
	const struct kvc_namespace_params params = namespace_params(model);
	struct kvc_store *store = setup_must_open(&setup);
	struct kvc_namespace *ns = namespace_must_open(store, &params);
	unsigned char data[3000];

	bytes_fill(data, sizeof(data), 7);
	for (unsigned i = 0; i < count; i++) {
		char key[16];

		text_make(key, sizeof(key), "%u", i);
		assert_int_equal(kvc_object_put(ns, "raw", key_of(key), data, sizeof(data), 0, 0),
				 0);
	}
	text_make(id, 128, "%s", kvc_namespace_id(ns));
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

static void hand_to_nobody(const char *root)
{
	const char *const arguments[] = { "chown", "-R", "65534:65534", root, NULL };

	if (geteuid() == 0)
		assert_int_equal(run_program(arguments), 0);
}

static int count_listed(void *context, const struct kvc_object_info *info)
{
	(void)info;
	++*(unsigned *)context;
	return 0;
}

static int count_verified(void *context, const struct kvc_object_info *info,
			  const struct kvc_result *result, uint64_t done, uint64_t total)
{
	(void)info;
	(void)done;
	(void)total;
	assert_int_equal(result->status, KVC_OK);
	++*(unsigned *)context;
	return 0;
}

/* ---------------------------------------------------------------- what cannot be read */

struct closed {
	const char *root;
	const char *naming;
	const char *name; /* must be in the text */
	const char *id;	  /* of a namespace to ask for as well, or NULL */
	unsigned seen;	  /* objects that can be seen all the same */
};

static int ask_as_nobody(void *context)
{
	const struct closed *closed = context;
	const struct setup setup =
		setup_of(closed->root, closed->naming, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	struct kvc_clear_report report = { .size = sizeof(report) };
	struct kvc_store *store;
	unsigned seen = 0;

	if (!become_nobody())
		return 77;
	store = setup_must_open(&setup);
	assert_int_equal(kvc_object_list(store, NULL, count_listed, &seen), -EACCES);
	assert_non_null(strstr(kvc_last_error(), closed->name));
	assert_int_equal(seen, closed->seen);
	seen = 0;
	assert_int_equal(kvc_store_verify(store, NULL, 0, count_verified, &seen), -EACCES);
	assert_non_null(strstr(kvc_last_error(), closed->name));
	assert_int_equal(seen, closed->seen);
	assert_int_equal(kvc_store_usage(store, 1, &usage, 1), -EACCES);
	assert_non_null(strstr(kvc_last_error(), closed->name));
	if (closed->id) {
		assert_int_equal(kvc_object_list(store, closed->id, count_listed, &seen), -EACCES);
		assert_non_null(strstr(kvc_last_error(), closed->name));
		assert_int_equal(kvc_namespace_clear(store, closed->id, 1, &report), -EACCES);
		assert_non_null(strstr(kvc_last_error(), closed->name));
	}
	store_must_close(store);
	return 0;
}

static void expect_closed(const struct closed *closed)
{
	const int rc = child_wait(child_start(ask_as_nobody, (void *)(uintptr_t)closed));

	if (rc != 77)
		assert_int_equal(rc, 0);
}

static void a_closed_namespace_is_named(void **state)
{
	const char *root = folder_new("walk-closed");
	char a[128], b[128], path[PATH_BYTES];
	/* Without search permission the names can be read, and nothing else. */
	const mode_t modes[] = { 0, 0400, 0300 };

	(void)state;
	store_objects(root, NULL, "closed", 3, a);
	store_objects(root, NULL, "open", 4, b);
	hand_to_nobody(root);
	text_make(path, sizeof(path), "%s/%s", root, a);
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		const struct closed closed = { .root = root, .name = a, .id = a, .seen = 4 };

		assert_int_equal(chmod(path, modes[i]), 0);
		expect_closed(&closed);
	}
	assert_int_equal(chmod(path, 0700), 0);
}

static int first_hash(void *context, const struct kvc_object_info *info)
{
	text_make(context, PATH_BYTES, "%s", info->path);
	*strrchr(context, '/') = '\0';
	return 1;
}

static void close_one_hash_folder(const char *naming)
{
	const char *root = folder_new("walk-hash");
	const struct setup setup = setup_of(root, naming, KVC_OPEN_READ_ONLY);
	char id[128], folder[PATH_BYTES], path[2 * PATH_BYTES];
	struct closed closed = { .root = root, .naming = naming, .name = folder };
	struct kvc_store *store;

	store_objects(root, naming, "hash", 40, id);
	store = setup_must_open(&setup);
	assert_int_equal(kvc_object_list(store, NULL, first_hash, folder), 1);
	store_must_close(store);
	hand_to_nobody(root);
	text_make(path, sizeof(path), "%s/%s", root, folder);
	closed.seen = 40 - (unsigned)folder_count(path, "");
	assert_true(closed.seen < 40);
	assert_int_equal(chmod(path, 0), 0);
	expect_closed(&closed);
	assert_int_equal(chmod(path, 0700), 0);
}

static void a_closed_hash_folder_is_named(void **state)
{
	(void)state;
	close_one_hash_folder(NULL);
	close_one_hash_folder("nixl");
}

static int list_as_nobody(void *context)
{
	const struct setup setup = setup_of(context, NULL, KVC_OPEN_READ_ONLY);
	struct kvc_store *store;
	unsigned seen = 0;

	if (!become_nobody())
		return 77;
	store = setup_must_open(&setup);
	assert_int_equal(kvc_object_list(store, NULL, count_listed, &seen), 0);
	assert_int_equal(seen, 2);
	store_must_close(store);
	return 0;
}

/* lost+found, somebody's home: not ours, and no reason for an error. */
static void a_closed_folder_of_others_is_not_looked_at(void **state)
{
	static const char *const names[] = { "lost+found", "include", "ab", "x-0123456789abcdeg" };
	const char *root = folder_new("walk-others");
	char id[128], path[PATH_BYTES];
	int rc;

	(void)state;
	store_objects(root, NULL, "model", 2, id);
	hand_to_nobody(root);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		text_make(path, sizeof(path), "%s/%s", root, names[i]);
		assert_int_equal(mkdir(path, 0), 0);
	}
	rc = child_wait(child_start(list_as_nobody, (void *)(uintptr_t)root));
	assert_true(rc == 0 || rc == 77);
}

/* ---------------------------------------------------------------- who stops */

static int stop(void *context, const struct kvc_object_info *info)
{
	(void)info;
	return *(int *)context;
}

static void a_callback_that_stops_is_told_apart(void **state)
{
	const char *root = folder_new("walk-stop");
	const struct setup setup = setup_of(root, NULL, KVC_OPEN_READ_ONLY);
	char id[128];
	struct kvc_store *store;
	int code = 42;

	(void)state;
	store_objects(root, NULL, "stop", 3, id);
	store = setup_must_open(&setup);
	assert_int_equal(kvc_object_list(store, id, stop, &code), 42);
	/* An older text is not taken for the cause. */
	assert_int_equal(kvc_namespace_clear(store, "poison", 1, NULL), -EINVAL);
	code = -EINTR;
	assert_int_equal(kvc_object_list(store, id, stop, &code), -EINTR);
	assert_non_null(strstr(kvc_last_error(), id));
	assert_non_null(strstr(kvc_last_error(), strerror(EINTR)));
	store_must_close(store);
}

/* ---------------------------------------------------------------- clear */

static uint64_t clear(const char *root, const char *id, int dry_run, int expected)
{
	const struct setup setup = setup_of(root, NULL, 0);
	struct kvc_clear_report report = { .size = sizeof(report) };
	struct kvc_store *store = setup_must_open(&setup);

	assert_int_equal(kvc_namespace_clear(store, id, dry_run, &report), expected);
	store_must_close(store);
	return report.objects;
}

static void clear_leaves_no_folder_behind(void **state)
{
	const char *root = folder_new("walk-clear");
	char id[128], path[PATH_BYTES];

	(void)state;
	store_objects(root, NULL, "clear", 5, id);
	text_make(path, sizeof(path), "%s/%s", root, id);
	assert_int_equal(clear(root, id, 1, 0), 5);
	assert_true(file_exists(path));
	assert_int_equal(clear(root, id, 0, 0), 5);
	assert_false(file_exists(path));
	assert_int_equal(clear(root, id, 0, -ENOENT), 0);
	assert_non_null(strstr(kvc_last_error(), id));
	/* One that never had an object goes as well. */
	store_objects(root, NULL, "clear", 0, id);
	assert_true(file_exists(path));
	assert_int_equal(clear(root, id, 0, 0), 0);
	assert_false(file_exists(path));
}

static void r18_clear_keeps_what_is_no_object(void **state)
{
	static const char *const names[] = { "notes.txt", "k.raw", ".kvctmp.x", "namespace.json" };
	const char *root = folder_new("walk-foreign");
	const struct setup setup = setup_of(root, NULL, KVC_OPEN_READ_ONLY);
	char id[128], hash[PATH_BYTES], path[2 * PATH_BYTES];
	struct kvc_store *store;

	(void)state;
	store_objects(root, NULL, "foreign", 5, id);
	store = setup_must_open(&setup);
	assert_int_equal(kvc_object_list(store, id, first_hash, hash), 1);
	store_must_close(store);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		text_make(path, sizeof(path), "%s/%s/%s", root, hash, names[i]);
		file_write(path, "mine", 4);
	}
	text_make(path, sizeof(path), "%s/%s/notes.txt", root, id);
	file_write(path, "mine", 4);
	assert_int_equal(clear(root, id, 1, 0), 5);
	assert_int_equal(clear(root, id, 0, 0), 5);
	assert_true(file_exists(path));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		text_make(path, sizeof(path), "%s/%s/%s", root, hash, names[i]);
		assert_true(file_exists(path));
	}
}

/* A writer that is at work while its namespace is cleared goes on. */
static void sets_go_on_after_a_clear(void **state)
{
	const char *root = folder_new("walk-again");
	const struct setup setup = setup_of(root, NULL, 0);
	const struct kvc_namespace_params params = namespace_params("again");
	struct kvc_store *store = setup_must_open(&setup);
	struct kvc_namespace *ns = namespace_must_open(store, &params);
	unsigned char data[100] = { 1 };

	(void)state;
	for (int turn = 0; turn < 3; turn++) {
		assert_int_equal(kvc_object_put(ns, "raw", key_of("k"), data, sizeof(data), 0, 0),
				 0);
		assert_int_equal(kvc_object_exists(ns, "raw", key_of("k"), NULL, 0), 1);
		assert_int_equal(clear(root, kvc_namespace_id(ns), 0, 0), 1);
		assert_int_equal(kvc_object_exists(ns, "raw", key_of("k"), NULL, 0), 0);
	}
	assert_int_equal(kvc_namespace_close(ns), 0);
	store_must_close(store);
}

/* ---------------------------------------------------------------- other file systems */

static void a_mount_in_a_namespace_is_named(void **state)
{
	const char *root = folder_new("walk-mount");
	const struct setup setup = setup_of(root, NULL, KVC_OPEN_READ_ONLY);
	char id[128], path[PATH_BYTES];
	struct kvc_store *store;
	unsigned seen = 0;

	(void)state;
	mounts_enter();
	store_objects(root, NULL, "mount", 3, id);
	text_make(path, sizeof(path), "%s/other", root);
	assert_int_equal(mkdir(path, 0700), 0);
	mount_tmpfs(path, "size=1m");
	store = setup_must_open(&setup);
	assert_int_equal(kvc_object_list(store, NULL, count_listed, &seen), 0);
	assert_int_equal(seen, 3);
	mount_end(path);
	text_make(path, sizeof(path), "%s/%s/zz", root, id);
	assert_int_equal(mkdir(path, 0700), 0);
	mount_tmpfs(path, "size=1m");
	seen = 0;
	assert_int_equal(kvc_object_list(store, NULL, count_listed, &seen), -EXDEV);
	assert_int_equal(seen, 3);
	assert_non_null(strstr(kvc_last_error(), "zz"));
	store_must_close(store);
	mount_end(path);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_closed_namespace_is_named),
		cmocka_unit_test(a_closed_hash_folder_is_named),
		cmocka_unit_test(a_closed_folder_of_others_is_not_looked_at),
		cmocka_unit_test(a_callback_that_stops_is_told_apart),
		cmocka_unit_test(clear_leaves_no_folder_behind),
		cmocka_unit_test(r18_clear_keeps_what_is_no_object),
		cmocka_unit_test(sets_go_on_after_a_clear),
	};
	static const struct CMUnitTest mounts[] = {
		cmocka_unit_test(a_mount_in_a_namespace_is_named),
	};
	int failed;

	support_begin();
	failed = cmocka_run_group_tests_name("walk", tests, NULL, NULL);
	/* Ends the program with a skip where mounts are not allowed. */
	return failed ? failed : cmocka_run_group_tests_name("mounts", mounts, NULL, NULL);
}
