/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a root: R27, R38 (removed at run time), R28 (many objects), R41 (versions). */
#include "support/packed.h"

#include "core/crc.h"
#include "core/shape.h"
#include "core/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
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

/* Hits, or misses of that cause (-1: any), and no wrong byte. */
static size_t get_or_miss(struct fix *fix, int cause)
{
	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys, 64, 0, fix->results);
	for (size_t i = 0; i < 64; i++)
		if (fix->results[i].status == KVC_OK)
			assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
		else
			expect_result(fix->results[i], KVC_MISS, cause);
	return count_status(fix->results, 64, KVC_OK);
}

static size_t get_all(struct fix *fix)
{
	return get_or_miss(fix, KVC_CAUSE_ABSENT);
}

static size_t get_some(struct fix *fix)
{
	return get_or_miss(fix, -1);
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

static void arena_folder(struct fix *fix, char out[PATH_BYTES])
{
	text_make(out, PATH_BYTES, "%s/%s/slots-4096", fix->setup.roots, kvc_namespace_id(fix->ns));
	assert_true(file_exists(out));
}

/* what: 0 a segment, 1 all slots of a size, 2 a namespace, 3 the index of the root, 4 all of it. */
static void remove_from_packed(struct fix *fix, int what)
{
	char path[PATH_BYTES], file[PATH_BYTES];

	arena_folder(fix, path);
	if (what == 0) {
		text_make(file, sizeof(file), "%s/seg.1", path);
		assert_int_equal(unlink(file), 0);
		return;
	}
	if (what == 2)
		*strrchr(path, '/') = '\0';
	if (what == 3)
		text_make(path, sizeof(path), "%s/.kvcellar", fix->setup.roots);
	if (what == 4)
		text_make(path, sizeof(path), "%s", fix->setup.roots);
	folder_remove(path);
	assert_false(file_exists(path));
}

static void run_removed_slots(const char *engine, int what)
{
	struct fix fix = { .setup = { .layout = "packed", .engine = engine } };

	fix.setup.roots = folder_new("removed");
	fix_open(&fix);
	set_all(&fix);
	remove_from_packed(&fix, what);
	(void)get_some(&fix);
	set_all(&fix);
	(void)get_some(&fix);
	if (what >= 3) /* is noticed at once */
		assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
	/* What is there then is a root that opens, and takes pages. */
	fix_open(&fix);
	(void)get_some(&fix);
	set_all(&fix);
	assert_int_equal(get_all(&fix), 64);
	(void)packed_check(fix.store);
	fix_close(&fix);
	fix_open(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
}

static void test_removed_slots_are_made_again(void **state)
{
	(void)state;
	for (int what = 0; what < 5; what++) {
		run_removed_slots("io_uring", what);
		run_removed_slots("threads", what);
	}
}

/* ---------------------------------------------------------------- R38 */

struct churn {
	struct fix *fix;
	atomic_bool stop;
	atomic_uint wrong;
	atomic_ulong hits;
};

/* Like get_some() and so on, in a thread: cmocka's assertions belong to the main one. */
static void *churn_by(struct churn *churn, int op)
{
	struct pages_params params = { .count = 64, .part_bytes = { 4096 } };
	struct fix *fix = churn->fix;
	struct kvc_result results[64];
	int64_t indices[64];
	struct pages pages;

	for (int i = 0; i < 64; i++)
		indices[i] = i;
	pages_open(&pages, fix->ns, &params);
	while (!atomic_load(&churn->stop)) {
		struct kvc_transfer transfer = transfer_of(
			&pages, op, fix->keys.keys, 64, op == KVC_REMOVE ? NULL : indices, results);

		if (op == KVC_SET)
			pages_fill_keys(&pages, fix->keys.keys, 64);
		if (kvc_batch_run(fix->store, &transfer, 1) != 0)
			atomic_fetch_add(&churn->wrong, 1);
		for (size_t i = 0; i < 64; i++) {
			const bool ok = results[i].status == KVC_OK;

			if (!ok && results[i].status != KVC_MISS &&
			    !(op == KVC_SET && results[i].status != KVC_CORRUPT))
				atomic_fetch_add(&churn->wrong, 1);
			if (ok && op == KVC_GET) {
				atomic_fetch_add(&churn->hits, 1);
				if (!pages_match(&pages, i, key_content(fix->keys.keys[i])))
					atomic_fetch_add(&churn->wrong, 1);
			}
		}
		if (op != KVC_SET)
			sleep_ms(1);
	}
	pages_close(&pages);
	return NULL;
}

static void *churn_get(void *context)
{
	return churn_by(context, KVC_GET);
}

static void *churn_set(void *context)
{
	return churn_by(context, KVC_SET);
}

static void *churn_remove(void *context)
{
	return churn_by(context, KVC_REMOVE);
}

/* A get loop, a set loop and a delete loop while somebody takes the root away bit by bit: hits or
 * misses only; and a root in the end. */
static void run_churn(const char *layout)
{
	static void *(*const loops[])(void *) = { churn_get, churn_set, churn_remove };
	struct fix fix = { .setup = { .layout = layout } };
	struct churn churn = { .fix = &fix };
	uint64_t end = now_ms() + (support_soak() ? 30000 : 3000);
	pthread_t threads[3];

	fix.setup.roots = folder_new("churn");
	fix_open(&fix);
	set_all(&fix);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, loops[i], &churn), 0);
	for (unsigned turn = 0; now_ms() < end; turn++) {
		char path[PATH_BYTES];

		text_make(path, sizeof(path), "%s/%s", fix.setup.roots, kvc_namespace_id(fix.ns));
		if (turn % 4 == 1)
			text_make(path, sizeof(path), "%s/%s/slots-4096", fix.setup.roots,
				  kvc_namespace_id(fix.ns));
		if (turn % 4 == 3)
			text_make(path, sizeof(path), "%s", fix.setup.roots);
		folder_remove(path);
		sleep_ms(50);
	}
	atomic_store(&churn.stop, true);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&churn.wrong), 0);
	(void)printf("%lu hits\n", atomic_load(&churn.hits));
	fix_close(&fix);
	(void)mkdir(fix.setup.roots, 0700);
	fix_open(&fix);
	(void)get_some(&fix);
	set_all(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
}

static void test_a_root_that_goes_bit_by_bit(void **state)
{
	(void)state;
	run_churn(NULL);
	run_churn("packed");
}

/* ---------------------------------------------------------------- R28 */

static const char *program; /* argv[0] */

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
		support_skip_test("strace is not installed");
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

/* 200000 objects in the index, whose data nobody reads. */
static void many_slots(struct fix *fix)
{
	static const char name[] = "many";
	static struct kvc_shape shape = { .part_count = 1, .parts = { { .bytes = 4096 } } };
	struct kvc_packed_arena *arena;
	struct packed_spot spot;

	set_all(fix);
	assert_true(packed_spot(fix->store, fix->pages.pool, fix->keys.keys[0], 0, &spot));
	arena = spot.arena;
	for (uint64_t i = 0; i < MANY; i++) {
		const struct kvc_packed_key key = { .g = mix(i, 1), .v = mix(i, 2), .bytes = 4096 };
		const struct kvc_packed_meta meta = {
			.key = &key,
			.shape = &shape,
			.stamp = i,
			.name = name,
			.name_bytes = sizeof(name) - 1,
			.checksum_kind = 1,
		};
		const uint32_t turn = kvc_packed_enter(packed_of(fix->store, 0));
		struct kvc_packed_place place;

		assert_int_equal(kvc_packed_claim(arena, 1000, &place), 0);
		assert_int_equal(kvc_packed_publish(arena, &place, &meta), 0);
		kvc_packed_leave(packed_of(fix->store, 0), turn);
	}
}

/* Between the marks it asks; before, each of its queues and maps is made. */
static int exists_child(const char *root)
{
	struct fix fix = { .setup = { .roots = root, .layout = "packed" } };
	struct kvc_transfer transfer;

	fix.setup.settings[0] = "capacity=2GiB";
	fix_open(&fix);
	set_all(&fix);
	batch(fix.store, &fix.pages, KVC_EXISTS, fix.keys.keys, 64, 0, fix.results);
	expect_all(fix.results, 64, KVC_OK);
	transfer = transfer_of(&fix.pages, KVC_EXISTS, fix.keys.keys, 64, NULL, fix.results);
	mark();
	for (int i = 0; i < 5; i++)
		(void)kvc_batch_run(fix.store, &transfer, 1);
	mark();
	expect_all(fix.results, 64, KVC_OK);
	fix_close(&fix);
	return 0;
}

/* System calls of the asking thread between the marks, but for the looks whether the root is
 * there. */
static size_t other_calls(const char *trace, size_t *looks)
{
	unsigned char *text;
	size_t bytes = file_read(trace, &text);
	size_t marks = 0, count = 0;
	char *save = NULL;
	long asking = 0;

	text[bytes] = '\0';
	*looks = 0;
	for (char *line = strtok_r((char *)text, "\n", &save); line != NULL;
	     line = strtok_r(NULL, "\n", &save)) {
		if (strstr(line, "getpgid(424242") != NULL) {
			asking = strtol(line, NULL, 10);
			marks++;
		} else if (marks == 1 && strtol(line, NULL, 10) == asking &&
			   strstr(line, " resumed>") == NULL) {
			const bool look = strstr(line, "fstat") != NULL;

			*looks += look;
			count += !look;
			if (!look)
				(void)printf("%s\n", line);
		}
	}
	free(text);
	assert_int_equal(marks, 2);
	return count;
}

static void test_exists_asks_no_disk(void **state)
{
	const char *root = folder_new("slots");
	char trace[PATH_BYTES];
	const char *const arguments[] = { "strace",    "-f",	"-qq",	    "-o", trace, "-e",
					  "trace=all", program, "--exists", root, NULL };
	struct fix fix = { .setup = { .roots = root, .layout = "packed" } };
	size_t looks;

	(void)state;
	if (!have_program("strace"))
		support_skip_test("strace is not installed");
	fix.setup.settings[0] = "capacity=2GiB";
	fix_open(&fix);
	many_slots(&fix);
	fix_close(&fix);
	text_make(trace, sizeof(trace), "%s/trace", folder_new("trace"));
	/* LeakSanitizer cannot run below strace. */
	(void)setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
	assert_int_equal(run_program(arguments), 0);
	assert_int_equal(other_calls(trace, &looks), 0);
	assert_true(looks <= 5);
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

/* One field of a mapped file's header, and its checksum put right. */
static void set_major(const char *path, uint16_t major)
{
	const size_t header = 128;
	unsigned char *data;
	size_t bytes = file_read(path, &data);
	uint32_t crc;
	int fd;

	assert_true(bytes >= header);
	memcpy(data + 8, &major, sizeof(major));
	crc = kvc_crc32c(data, header - sizeof(crc));
	memcpy(data + header - sizeof(crc), &crc, sizeof(crc));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, data, header, 0), header);
	(void)close(fd);
	free(data);
}

/* root.shm of another version: nothing of the root is touched. */
static void test_an_index_of_another_version_is_refused(void **state)
{
	struct fix fix = { .setup = { .roots = folder_new("index"), .layout = "packed" } };
	struct setup setup = { .plugin = "posix", .roots = fix.setup.roots, .layout = "packed" };
	struct kvc_store *store = NULL;
	char path[PATH_BYTES];
	uint64_t digest;

	(void)state;
	fix_open(&fix);
	set_all(&fix);
	fix_close(&fix);
	text_make(path, sizeof(path), "%s/.kvcellar/packed/root.shm", fix.setup.roots);
	set_major(path, 2);
	digest = folder_digest(fix.setup.roots);
	for (int read_only = 0; read_only < 2; read_only++) {
		setup.flags = read_only ? KVC_OPEN_READ_ONLY : 0;
		assert_int_equal(setup_open(&setup, &store), -EPROTONOSUPPORT);
		assert_null(store);
		assert_non_null(strstr(kvc_last_error(), path));
		assert_non_null(strstr(kvc_last_error(), "version 2"));
		assert_true(folder_digest(fix.setup.roots) == digest);
	}
	set_major(path, 1);
	fix_open(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
}

/* 64 pages in one segment, whose folder it is. */
static void fill_packed(struct fix *fix, char folder[PATH_BYTES])
{
	fix_open(fix);
	set_all(fix);
	arena_folder(fix, folder);
	fix_close(fix);
}

/* A segment of another version is passed over and left as it is. */
static void test_segments_of_another_version_are_left_alone(void **state)
{
	struct fix fix = { .setup = { .roots = folder_new("segment"), .layout = "packed" } };
	char folder[PATH_BYTES], hdr[PATH_BYTES], seg[PATH_BYTES];

	(void)state;
	fill_packed(&fix, folder);
	text_make(hdr, sizeof(hdr), "%s/hdr.1", folder);
	text_make(seg, sizeof(seg), "%s/seg.1", folder);
	set_major(hdr, 2);
	fix_open(&fix);
	assert_int_equal(get_all(&fix), 0);
	set_all(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
	assert_true(file_exists(hdr) && file_exists(seg));
	set_major(hdr, 1);
	fix_open(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
}

/* After a reboot every header counts: one of another version is not taken for damage. */
static void test_a_rebuild_refuses_segments_of_another_version(void **state)
{
	struct fix fix = { .setup = { .roots = folder_new("reboot"), .layout = "packed" } };
	struct setup setup = { .plugin = "posix", .roots = fix.setup.roots, .layout = "packed" };
	char folder[PATH_BYTES], hdr[PATH_BYTES], shm[PATH_BYTES];
	struct kvc_store *store = NULL;
	uint64_t digest;

	(void)state;
	fill_packed(&fix, folder);
	text_make(hdr, sizeof(hdr), "%s/hdr.1", folder);
	text_make(shm, sizeof(shm), "%s/.kvcellar/packed/root.shm", fix.setup.roots);
	set_major(hdr, 2);
	digest = folder_digest(folder);
	for (int read_only = 0; read_only < 2; read_only++) {
		file_flip(shm, offsetof(struct kvc_packed_shm, boot_id), 0xff);
		setup.flags = read_only ? KVC_OPEN_READ_ONLY : 0;
		assert_int_equal(setup_open(&setup, &store), -EPROTONOSUPPORT);
		assert_null(store);
		assert_non_null(strstr(kvc_last_error(), hdr));
		assert_non_null(strstr(kvc_last_error(), "version 2"));
		assert_true(folder_digest(folder) == digest);
	}
	set_major(hdr, 1);
	fix_open(&fix);
	assert_int_equal(get_all(&fix), 64);
	fix_close(&fix);
}

static void put_in_place(const char *path, const char *what)
{
	if (strcmp(what, "fifo") == 0) {
		assert_int_equal(unlink(path), 0);
		assert_int_equal(mkfifo(path, 0600), 0);
	} else if (strcmp(what, "symlink") == 0) {
		assert_int_equal(unlink(path), 0);
		assert_int_equal(symlink("/etc/hostname", path), 0);
	} else {
		file_flip(path, 60, 1);
	}
}

/* The error names the file of the index, and what is the matter with it. */
static void test_what_is_no_index_is_named(void **state)
{
	static const struct {
		const char *file;
		const char *what;
		uint32_t flags;
		const char *text;
	} cases[] = {
		{ "root.lock", "fifo", 0, "no regular file" },
		{ "root.lock", "symlink", 0, "symlink" },
		{ "root.shm", "fifo", 0, "no regular file" },
		{ "root.shm", "symlink", 0, "symlink" },
		{ "root.shm", "damage", KVC_OPEN_READ_ONLY, "damaged" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fix fix = { .setup = { .roots = folder_new("odd"), .layout = "packed" } };
		struct setup setup = { .plugin = "posix", .layout = "packed" };
		char folder[PATH_BYTES], path[PATH_BYTES];
		struct kvc_store *store = NULL;

		fill_packed(&fix, folder);
		text_make(path, sizeof(path), "%s/.kvcellar/packed/%s", fix.setup.roots,
			  cases[i].file);
		put_in_place(path, cases[i].what);
		setup.roots = fix.setup.roots;
		setup.flags = cases[i].flags;
		assert_true(setup_open(&setup, &store) < 0);
		assert_null(store);
		assert_non_null(strstr(kvc_last_error(), path));
		assert_non_null(strstr(kvc_last_error(), cases[i].text));
	}
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
		cmocka_unit_test(test_removed_slots_are_made_again),
		cmocka_unit_test(test_a_root_that_goes_bit_by_bit),
		cmocka_unit_test(test_no_folder_is_listed),
		cmocka_unit_test(test_exists_asks_no_disk),
		cmocka_unit_test(test_roots_of_other_versions_are_refused),
		cmocka_unit_test(test_damaged_root_json_is_refused),
		cmocka_unit_test(test_roots_that_can_be_read),
		cmocka_unit_test(test_an_index_of_another_version_is_refused),
		cmocka_unit_test(test_segments_of_another_version_are_left_alone),
		cmocka_unit_test(test_a_rebuild_refuses_segments_of_another_version),
		cmocka_unit_test(test_what_is_no_index_is_named),
		cmocka_unit_test(test_roots_with_one_uuid_are_refused),
		cmocka_unit_test(test_nixl_needs_no_housekeeping),
	};

	support_begin();
	program = argv[0];
	if (argc == 3 && strcmp(argv[1], "--many") == 0)
		return many_child(argv[2]);
	if (argc == 3 && strcmp(argv[1], "--exists") == 0)
		return exists_child(argv[2]);
	return cmocka_run_group_tests_name("root", tests, NULL, NULL);
}
