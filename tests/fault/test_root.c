/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a root: R27 (removed at run time), R28 (many objects), R41 (other versions). */
#include "support/support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct fix {
	struct setup setup;
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[64];
};

static void fix_open(struct fix *fix)
{
	struct kvc_namespace_params params = namespace_params("roots");

	fix->setup.plugin = "posix";
	fix->store = setup_must_open(&fix->setup);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, 64, 4096);
	keys_make(&fix->keys, "roots", 64);
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

static void set_all(struct fix *fix)
{
	pages_fill_keys(&fix->pages, fix->keys.keys, 64);
	batch(fix->store, &fix->pages, KVC_SET, fix->keys.keys, 64, 0, fix->results);
	expect_all(fix->results, 64, KVC_OK);
}

static size_t get_all(struct fix *fix)
{
	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys, 64, 0, fix->results);
	for (size_t i = 0; i < 64; i++)
		if (fix->results[i].status == KVC_OK)
			assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
		else
			expect_result(fix->results[i], KVC_MISS, KVC_CAUSE_ABSENT);
	return count_status(fix->results, 64, KVC_OK);
}

/* ---------------------------------------------------------------- R27 */

static void run_removed(const char *naming, const char *engine, int what)
{
	struct fix fix = { .setup = { .naming = naming, .engine = engine } };
	char path[PATH_BYTES];
	size_t left;

	fix.setup.roots = folder_new("removed");
	fix_open(&fix);
	set_all(&fix);
	assert_true(page_path(fix.pages.pool, fix.keys.keys[0], 0, path));
	if (what == 0) { /* the hash folder of one page */
		*strrchr(path, '/') = '\0';
		folder_remove(path);
	} else if (what == 1) { /* the namespace, or in nixl naming all that is in the root */
		*strrchr(path, '/') = '\0';
		*strrchr(path, '/') = '\0';
		folder_remove(path);
		(void)mkdir(path, 0700);
	} else {
		folder_remove(fix.setup.roots);
		assert_false(file_exists(fix.setup.roots));
	}
	left = get_all(&fix);
	assert_true(what == 0 ? left < 64 : left == 0);
	set_all(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
	/* What was made again is a root that opens. */
	fix_open(&fix);
	if (strcmp(naming, "nixl") == 0 || what != 2)
		assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
}

static void test_removed_folders_are_made_again(void **state)
{
	(void)state;
	for (int what = 0; what < 3; what++) {
		run_removed("kvcellar", "io_uring", what);
		run_removed("kvcellar", "threads", what);
		run_removed("nixl", "linux_aio", what);
	}
}

/* ---------------------------------------------------------------- R28 */

#define MANY	   200000u
#define MARK_PID   424242 /* getpgid() of it shows in the trace where a phase begins */
#define OBJECT_END 8192

/* Files of the right size in all 256 folders; nobody reads them. */
static void many_objects(const char *folder)
{
	char path[PATH_BYTES];

	for (unsigned i = 0; i < 256; i++) {
		int dir;

		text_make(path, sizeof(path), "%s/%02x", folder, i);
		(void)mkdir(path, 0700);
		dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(dir >= 0);
		for (unsigned k = 0; k < MANY / 256; k++) {
			char name[64];
			int fd;

			text_make(name, sizeof(name), "%08x%08x.kv.00000000", i, k);
			fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
			assert_true(fd >= 0);
			(void)ftruncate(fd, OBJECT_END);
			(void)close(fd);
		}
		(void)close(dir);
	}
}

static void mark(void)
{
	(void)syscall(SYS_getpgid, MARK_PID);
}

/* The traced program: between marks it asks and stores. */
static int many_child(const char *root)
{
	struct fix fix = { .setup = { .roots = root } };

	fix_open(&fix);
	set_all(&fix);
	mark();
	for (int i = 0; i < 5; i++) {
		batch(fix.store, &fix.pages, KVC_EXISTS, fix.keys.keys, 64, 0, fix.results);
		pages_fill_keys(&fix.pages, fix.keys.keys, 64);
		batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys, 64,
		      i == 4 ? KVC_TRANSFER_OVERWRITE : 0, fix.results);
		expect_all(fix.results, 64, KVC_OK);
		batch(fix.store, &fix.pages, KVC_REMOVE, fix.keys.keys, 64, 0, fix.results);
	}
	mark();
	fix_close(&fix);
	return 0;
}

/* Lines of the trace between the marks that list a folder. */
static size_t listings(const char *trace)
{
	unsigned char *text;
	size_t bytes = file_read(trace, &text);
	size_t marks = 0;
	size_t count = 0;
	char *save = NULL;

	text[bytes] = '\0';
	for (char *line = strtok_r((char *)text, "\n", &save); line != NULL;
	     line = strtok_r(NULL, "\n", &save)) {
		if (strstr(line, "getpgid(424242") != NULL)
			marks++;
		else if (marks == 1 && strstr(line, "getdents") != NULL)
			count++;
	}
	free(text);
	assert_int_equal(marks, 2);
	return count;
}

/* In memory where there is such a place: so many files take a minute on a disk. */
static const char *many_folder(void)
{
	char *parent = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
	const char *root;

	if (access("/dev/shm", W_OK) == 0)
		(void)setenv("TMPDIR", "/dev/shm", 1);
	root = folder_new("many");
	if (parent != NULL)
		(void)setenv("TMPDIR", parent, 1);
	else
		(void)unsetenv("TMPDIR");
	free(parent);
	return root;
}

static const char *program; /* argv[0] */

static void test_no_folder_is_listed(void **state)
{
	const char *root = many_folder();
	char trace[PATH_BYTES];
	char path[PATH_BYTES];
	const char *const arguments[] = {
		"strace", "-f",	    "-qq", "-o", trace, "-e", "trace=getdents64,getdents,getpgid",
		program,  "--many", root,  NULL
	};
	struct fix fix = { .setup = { .roots = root } };

	(void)state;
	if (!have_program("strace"))
		skip();
	fix_open(&fix);
	text_make(path, sizeof(path), "%s/%s", root, kvc_namespace_id(fix.ns));
	fix_close(&fix);
	many_objects(path);
	text_make(trace, sizeof(trace), "%s/trace", folder_new("trace"));
	/* LeakSanitizer cannot run below strace. */
	(void)setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
	assert_int_equal(run_program(arguments), 0);
	assert_int_equal(listings(trace), 0);
}

/* ---------------------------------------------------------------- R41 */

static void root_json_write(const char *root, const char *text)
{
	char path[PATH_BYTES];

	text_make(path, sizeof(path), "%s/.kvcellar", root);
	(void)mkdir(path, 0700);
	text_make(path, sizeof(path), "%s/.kvcellar/root.json", root);
	file_write(path, text, strlen(text));
}

#define REST                                                                                 \
	"\"uuid\": \"01234567-89ab-4cde-8f01-23456789abcd\", \"storage_layout\": \"files\"," \
	"\"naming\": \"kvcellar\", \"created_by\": \"kvcellar 9.9.9\","                      \
	"\"created\": \"2026-01-01T00:00:00Z\"}\n"

static void expect_refused(const char *root_json, int error, const char *a, const char *b)
{
	struct setup setup = { .plugin = "posix", .roots = folder_new("version") };
	struct kvc_store *store = NULL;
	uint64_t digest;

	root_json_write(setup.roots, root_json);
	digest = folder_digest(setup.roots);
	for (int read_only = 0; read_only < 2; read_only++) {
		setup.flags = read_only ? KVC_OPEN_READ_ONLY : 0;
		assert_int_equal(setup_open(&setup, &store), error);
		assert_null(store);
		assert_non_null(strstr(kvc_last_error(), setup.roots));
		assert_non_null(strstr(kvc_last_error(), a));
		assert_non_null(strstr(kvc_last_error(), b));
		assert_true(folder_digest(setup.roots) == digest);
	}
}

static void test_roots_of_other_versions_are_refused(void **state)
{
	(void)state;
	expect_refused("{\"format\": {\"major\": 2, \"minor\": 3, \"compat\": [], "
		       "\"ro_compat\": [], \"incompat\": []}, " REST,
		       -EPROTONOSUPPORT, "2.3", "1.");
	/* Format 1 is the first one: there was no 0. */
	expect_refused("{\"format\": {\"major\": 0, \"minor\": 4, \"compat\": [], "
		       "\"ro_compat\": [], \"incompat\": []}, " REST,
		       -EPROTONOSUPPORT, "0.4", "1.");
	expect_refused("{\"format\": {\"major\": 1, \"minor\": 7, \"compat\": [], "
		       "\"ro_compat\": [], \"incompat\": [\"striped\"]}, " REST,
		       -EPROTONOSUPPORT, "striped", "1.7");
}

static void test_damaged_root_json_is_refused(void **state)
{
	(void)state;
	expect_refused("{\"format\": {\"major\": 1", -EUCLEAN, "root.json", "root.json");
	expect_refused("[]", -EUCLEAN, "root.json", "root.json");
	expect_refused("", -EUCLEAN, "root.json", "root.json");
	expect_refused("{\"format\": {\"major\": 1, \"minor\": 0, \"compat\": [], "
		       "\"ro_compat\": [], \"incompat\": []}, \"uuid\": \"none\","
		       "\"storage_layout\": \"files\", \"naming\": \"kvcellar\"}",
		       -EUCLEAN, "root.json", "uuid");
}

/* An unknown ro_compat word: read, never written. Unknown compat words and members are ignored. */
static void run_tolerated(const char *root_json, bool writable)
{
	struct fix fix = { .setup = { .roots = folder_new("tolerated") } };

	root_json_write(fix.setup.roots, root_json);
	fix_open(&fix);
	pages_fill_keys(&fix.pages, fix.keys.keys, 64);
	batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys, 64, 0, fix.results);
	expect_all(fix.results, 64, writable ? KVC_OK : KVC_DENIED);
	assert_int_equal(get_all(&fix), writable ? 64 : 0);
	batch(fix.store, &fix.pages, KVC_REMOVE, fix.keys.keys, 1, 0, fix.results);
	expect_result(fix.results[0], writable ? KVC_OK : KVC_DENIED, -1);
	fix_close(&fix);
}

static void test_roots_that_can_be_read(void **state)
{
	(void)state;
	run_tolerated("{\"format\": {\"major\": 1, \"minor\": 9, \"compat\": [\"new\"], "
		      "\"ro_compat\": [], \"incompat\": []}, \"more\": {\"a\": [1, 2]}, " REST,
		      true);
	run_tolerated("{\"format\": {\"major\": 1, \"minor\": 0, \"compat\": [], "
		      "\"ro_compat\": [\"tagged\"], \"incompat\": []}, " REST,
		      false);
}

static void test_roots_with_one_uuid_are_refused(void **state)
{
	const char *a = folder_new("twin-a");
	const char *b = folder_new("twin-b");
	struct setup setup = { .plugin = "posix", .roots = a };
	struct kvc_store *store = NULL;
	char roots[2 * PATH_BYTES];

	(void)state;
	store_must_close(setup_must_open(&setup));
	folder_copy(a, b);
	text_make(roots, sizeof(roots), "%s,%s", a, b);
	setup.roots = roots;
	assert_int_equal(setup_open(&setup, &store), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), a));
	assert_non_null(strstr(kvc_last_error(), b));
	assert_null(store);
}

/* naming = "nixl": housekeeping may be lost at any time. */
static void test_nixl_needs_no_housekeeping(void **state)
{
	struct fix fix = { .setup = { .naming = "nixl" } };
	char path[PATH_BYTES];

	(void)state;
	fix.setup.roots = folder_new("nixl");
	fix_open(&fix);
	set_all(&fix);
	fix_close(&fix);
	text_make(path, sizeof(path), "%s/.kvcellar", fix.setup.roots);
	folder_remove(path);
	fix_open(&fix);
	assert_int_equal(get_all(&fix), 64);
	folder_remove(path);
	set_all(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_removed_folders_are_made_again),
		cmocka_unit_test(test_no_folder_is_listed),
		cmocka_unit_test(test_roots_of_other_versions_are_refused),
		cmocka_unit_test(test_damaged_root_json_is_refused),
		cmocka_unit_test(test_roots_that_can_be_read),
		cmocka_unit_test(test_roots_with_one_uuid_are_refused),
		cmocka_unit_test(test_nixl_needs_no_housekeeping),
	};

	support_begin();
	program = argv[0];
	if (argc == 3 && strcmp(argv[1], "--many") == 0)
		return many_child(argv[2]);
	return cmocka_run_group_tests_name("root", tests, NULL, NULL);
}
