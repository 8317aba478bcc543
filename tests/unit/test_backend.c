/* SPDX-License-Identifier: Apache-2.0 */
/* core/backend.c: which files are plugins, and which are not. */
#include "core/backend.h"

#include "core/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static const char *plugins;

static int setup(void **state)
{
	(void)state;
	plugins = getenv("KVCELLAR_PLUGIN_DIR");
	if (!plugins) {
		puts("SKIP: KVCELLAR_PLUGIN_DIR is not set");
		exit(77);
	}
	(void)snprintf(folder, sizeof(folder), "/tmp/kvc-backend-XXXXXX");
	return mkdtemp(folder) ? 0 : -1;
}

static const char *path_of(const char *name)
{
	static char path[256];

	(void)snprintf(path, sizeof(path), "%s/kvcellar-plugin-%s.so", folder, name);
	return path;
}

static int teardown(void **state)
{
	static const char *const names[] = { "mem",	"other",  "junk",  "empty", "open",
					     "foreign", "folder", "lacks", NULL };

	(void)state;
	for (size_t i = 0; names[i]; i++)
		if (unlink(path_of(names[i])))
			(void)rmdir(path_of(names[i]));
	return rmdir(folder);
}

static void copy(const char *plugin, const char *as, mode_t mode)
{
	char from_path[4096];
	char block[65536];
	FILE *from, *to;
	size_t bytes;

	(void)snprintf(from_path, sizeof(from_path), "%s/kvcellar-plugin-%s.so", plugins, plugin);
	from = fopen(from_path, "re");
	to = fopen(path_of(as), "we");
	assert_true(from && to);
	while ((bytes = fread(block, 1, sizeof(block), from)) > 0)
		assert_int_equal(fwrite(block, 1, bytes, to), bytes);
	(void)fclose(from);
	assert_int_equal(fclose(to), 0);
	assert_int_equal(chmod(path_of(as), mode), 0);
}

static int load(const char *name)
{
	const struct kvc_module *module = NULL;
	const int rc = kvc_module_load(name, folder, &module);

	assert_int_equal(rc == 0, module != NULL);
	return rc;
}

static void a_plugin_is_loaded_once_and_has_no_empty_slot(void **state)
{
	const struct kvc_module *first = NULL, *second = NULL;

	(void)state;
	copy("mem", "mem", 0644);
	assert_int_equal(kvc_module_load("mem", folder, &first), 0);
	assert_int_equal(kvc_module_load("mem", folder, &second), 0);
	assert_ptr_equal(first, second);
	assert_string_equal(first->path, path_of("mem"));
	assert_true(first->ops.memory_copy && first->ops.container_open && first->ops.list &&
		    first->ops.usage && first->ops.reclaim && first->ops.event_fd &&
		    first->ops.cancel && first->ops.memory_alloc && first->ops.container_remove);
}

static void what_is_not_there_is_named(void **state)
{
	(void)state;
	assert_int_equal(load("none"), -ENOENT);
	assert_non_null(strstr(kvc_last_error(), "kvcellar-plugin-none.so"));
	assert_non_null(strstr(kvc_last_error(), "not built"));
	assert_non_null(strstr(kvc_last_error(), folder));
}

static void files_that_others_may_change_are_refused(void **state)
{
	(void)state;
	copy("mem", "open", 0664);
	assert_int_equal(load("open"), -EPERM);
	assert_non_null(strstr(kvc_last_error(), "chmod go-w"));
	copy("mem", "open", 0646);
	assert_int_equal(load("open"), -EPERM);
	assert_int_equal(mkdir(path_of("folder"), 0755), 0);
	assert_int_equal(load("folder"), -EPERM);
	/* The file is safe, but anybody could put another in its place. */
	copy("mem", "open", 0644);
	assert_int_equal(chmod(folder, 0777), 0);
	assert_int_equal(load("open"), -EPERM);
	assert_non_null(strstr(kvc_last_error(), folder));
	assert_int_equal(chmod(folder, 0700), 0);
	assert_int_not_equal(load("open"), -EPERM);
	if (geteuid() != 0)
		return;
	copy("mem", "foreign", 0644);
	assert_int_equal(chown(path_of("foreign"), 12345, 12345), 0);
	assert_int_equal(load("foreign"), -EPERM);
	assert_non_null(strstr(kvc_last_error(), "12345"));
}

static void what_is_no_plugin_is_refused(void **state)
{
	FILE *file;

	(void)state;
	file = fopen(path_of("junk"), "we");
	assert_non_null(file);
	(void)fputs("not a shared object", file);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(load("junk"), -ENOEXEC);
	file = fopen(path_of("empty"), "we");
	assert_non_null(file);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(load("empty"), -ENOEXEC);
	copy("mem", "other", 0644);
	assert_int_equal(load("other"), -ENOEXEC);
	assert_non_null(strstr(kvc_last_error(), "another name"));
}

static int take(void *context, const char *name)
{
	(void)snprintf((char *)context + strlen(context), 200, "%s ", name);
	return strcmp(name, "stop") == 0 ? 7 : 0;
}

static void a_scan_finds_names(void **state)
{
	char names[1000] = "";
	FILE *file;

	(void)state;
	copy("mem", "mem", 0644);
	file = fopen(path_of("other"), "we");
	assert_int_equal(fclose(file), 0);
	assert_int_equal(kvc_module_scan(folder, take, names), 0);
	assert_non_null(strstr(names, "mem "));
	assert_non_null(strstr(names, "other "));
	assert_int_equal(kvc_module_scan("/nonexistent", take, names), 0);
	assert_int_equal(kvc_module_scan("", take, names), 0);
	assert_int_equal(kvc_module_scan(NULL, take, names), 0);
}

static void a_reason_is_taken_once(void **state)
{
	(void)state;
	(void)kvc_backend_reason();
	assert_string_equal(kvc_backend_reason(), "");
	assert_int_equal(kvc_backend_close(NULL), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_plugin_is_loaded_once_and_has_no_empty_slot),
		TEST(what_is_not_there_is_named),
		TEST(files_that_others_may_change_are_refused),
		TEST(what_is_no_plugin_is_refused),
		TEST(a_scan_finds_names),
		TEST(a_reason_is_taken_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
