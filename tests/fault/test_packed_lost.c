/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a packed root that are cut or emptied under a running store, and a disk that is full
 * when one of them is to be made: nothing ends the process, no wrong bytes are read, and afterwards
 * the root works as before.
 */
#include "packed.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define PART_BYTES 8192u
#define KEYS	   96u
#define BATCH	   24u
#define CAPACITY   "4MiB" /* segments of 32 slots */

struct fix {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
};

struct work {
	const char *root;
	const char *file;    /* below the root, with wildcards */
	unsigned sixteenths; /* of its size that stay */
	bool again;	     /* it gets its size back, in zeros */
	const char *verify;
};

/* NULL or the reason why it cannot be opened. */
static const char *fix_open(struct fix *fix, const char *root, const char *verify)
{
	struct kvc_namespace_params params = namespace_params("lost");
	char check[32];
	const struct setup setup = {
		.plugin = "posix",
		.engine = "threads",
		.roots = root,
		.buffered = true,
		.flags = KVC_OPEN_NO_SELFTEST,
		.settings = { "storage_layout=packed", "min_free=0", "capacity=" CAPACITY, check },
	};

	text_make(check, sizeof(check), "verify=%s", verify);
	if (setup_open(&setup, &fix->store) != 0)
		return kvc_last_error();
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, KEYS, PART_BYTES);
	keys_make(&fix->keys, "lost", KEYS);
	return NULL;
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

static size_t set_all(struct fix *fix, uint32_t flags)
{
	struct kvc_result results[KEYS];

	pages_fill_keys(&fix->pages, fix->keys.keys, KEYS);
	for (size_t at = 0; at < KEYS; at += BATCH) {
		int64_t indices[BATCH];

		for (size_t i = 0; i < BATCH; i++)
			indices[i] = (int64_t)(at + i);
		batch_at(fix->store, &fix->pages, KVC_SET, fix->keys.keys + at, indices, BATCH,
			 flags, 0, results + at);
	}
	return count_status(results, KEYS, KVC_OK);
}

/* Whatever is OK is right. */
static size_t get_all(struct fix *fix)
{
	struct kvc_result results[KEYS];

	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys, KEYS, 0, results);
	for (size_t i = 0; i < KEYS; i++)
		if (results[i].status == KVC_OK)
			assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
	return count_status(results, KEYS, KVC_OK);
}

/* ---------------------------------------------------------------- cut files */

static void cut(const struct work *work)
{
	char pattern[PATH_BYTES];
	glob_t found;

	text_make(pattern, sizeof(pattern), "%s/%s", work->root, work->file);
	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		struct stat st;

		assert_int_equal(stat(found.gl_pathv[i], &st), 0);
		assert_int_equal(truncate(found.gl_pathv[i], st.st_size / 16 * work->sixteenths),
				 0);
		if (work->again)
			assert_int_equal(truncate(found.gl_pathv[i], st.st_size), 0);
	}
	globfree(&found);
}

static int live_on(void *context)
{
	const struct work *work = context;
	struct kvc_result results[KEYS];
	struct kvc_packed_health health;
	struct fix fix;
	size_t stored, read = 0;
	const char *error;
	char *text;

	error = fix_open(&fix, work->root, work->verify);
	if (error)
		fail_msg("%s", error);
	assert_int_equal(set_all(&fix, 0), KEYS);
	assert_int_equal(get_all(&fix), KEYS);
	cut(work);
	for (unsigned round = 0; round < 3; round++) {
		read = get_all(&fix);
		stored = set_all(&fix, round ? KVC_TRANSFER_OVERWRITE : 0);
		batch(fix.store, &fix.pages, KVC_EXISTS, fix.keys.keys, KEYS, 0, results);
		read += get_all(&fix);
		batch(fix.store, &fix.pages, KVC_REMOVE, fix.keys.keys, BATCH, 0, results);
		(void)set_all(&fix, 0);
		kvc_packed_health(atomic_load(&fix.store->roots[0]->packed), &health);
	}
	text = store_text(fix.store, KVC_FORMAT_JSON);
	free(text);
	(void)printf("  %s, %u/16 left%s: at the end %zu stored, %zu read\n", work->file,
		     work->sixteenths, work->again ? ", then zeros" : "", stored, read);
	fix_close(&fix);
	return 0;
}

/* The next open finds what is damaged: all is of use. */
static int live_again(void *context)
{
	const struct work *work = context;
	struct kvc_packed *packed;
	const char *error;
	struct fix fix;

	error = fix_open(&fix, work->root, work->verify);
	if (error)
		fail_msg("%s: not opened again: %s", work->file, error);
	(void)get_all(&fix);
	assert_int_equal(set_all(&fix, KVC_TRANSFER_OVERWRITE), KEYS);
	assert_int_equal(get_all(&fix), KEYS);
	packed = atomic_load(&fix.store->roots[0]->packed);
	assert_non_null(packed);
	end_keeper(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const struct slot_counts counts = slots_count(a);

		assert_int_equal(counts.count[KVC_PACKED_LIVE] + counts.count[KVC_PACKED_FREE],
				 counts.slots);
		/* Zeros in the place of what it was look like a file that was never used. */
		if (!work->again)
			assert_int_equal(counts.wrong_bits, 0);
		assert_false(kvc_packed_arena_broken(a));
	}
	fix_close(&fix);
	return 0;
}

static void run_cut(const char *file, const char *verify)
{
	static const unsigned left[] = { 0, 6, 15 };

	for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++)
		for (unsigned again = 0; again < 2; again++) {
			struct work work = {
				.root = folder_new("lost"),
				.file = file,
				.sixteenths = left[i],
				.again = again,
				.verify = verify,
			};

			assert_int_equal(child_wait(child_start(live_on, &work)), 0);
			assert_int_equal(child_wait(child_start(live_again, &work)), 0);
			folder_remove(work.root);
		}
}

static void test_headers(void **state)
{
	(void)state;
	run_cut("*/slots-*/hdr.1", "off");
	run_cut("*/slots-*/hdr.*", "off");
}

static void test_tables(void **state)
{
	(void)state;
	run_cut("*/slots-*/table.*", "off");
}

static void test_names(void **state)
{
	(void)state;
	run_cut("*/slots-*/names.*", "off");
}

static void test_data(void **state)
{
	(void)state;
	run_cut("*/slots-*/seg.1", "require");
	run_cut("*/slots-*/seg.*", "require");
}

static void test_root(void **state)
{
	(void)state;
	run_cut(".kvcellar/packed/root.shm", "off");
}

static void test_intents(void **state)
{
	(void)state;
	run_cut(".kvcellar/packed/intents.*", "off");
}

/* ---------------------------------------------------------------- a full disk */

struct full {
	const char *root;
	size_t opened;
	size_t stored;
};

static int live_on_little(void *context)
{
	struct full *full = context;
	const char *error;
	char options[32];
	struct fix fix;
	size_t stored;

	error = fix_open(&fix, full->root, "require");
	if (error && !strstr(error, "space"))
		fail_msg("%s", error);
	if (error)
		return 10;
	stored = set_all(&fix, 0);
	assert_true(get_all(&fix) <= stored);
	text_make(options, sizeof(options), "size=%s", "16m");
	assert_int_equal(mount("none", full->root, NULL, MS_REMOUNT, options), 0);
	sleep_ms(120); /* it does not ask a full disk all the time */
	assert_int_equal(set_all(&fix, 0), KEYS);
	assert_int_equal(get_all(&fix), KEYS);
	fix_close(&fix);
	return stored == KEYS ? 12 : 11;
}

/* One page more each time, so that each file is once the one that has no room. */
static void test_a_full_disk(void **state)
{
	const char *root = folder_new("full");
	unsigned codes[3] = { 0, 0, 0 };

	(void)state;
	if (geteuid() != 0)
		support_skip_test("mounts need root");
	for (unsigned kib = 16; kib <= 2400; kib += kib < 1000 ? 16 : 100) {
		struct full full = { .root = root };
		char options[32];
		int code;

		text_make(options, sizeof(options), "size=%uk", kib);
		if (mount("kvc-test", root, "tmpfs", 0, options) != 0)
			support_skip("tmpfs cannot be mounted: %s", strerror(errno));
		code = child_wait(child_start(live_on_little, &full));
		assert_in_range(code, 10, 12);
		codes[code - 10]++;
		assert_int_equal(umount(root), 0);
	}
	(void)printf("%u sizes too small for a store, %u for all pages, %u enough\n", codes[0],
		     codes[1], codes[2]);
	assert_true(codes[0] > 0 && codes[1] > 0 && codes[2] > 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_headers),	    cmocka_unit_test(test_tables),
		cmocka_unit_test(test_names),	    cmocka_unit_test(test_data),
		cmocka_unit_test(test_root),	    cmocka_unit_test(test_intents),
		cmocka_unit_test(test_a_full_disk),
	};

	support_begin();
	if (geteuid() == 0)
		mounts_enter();
	return cmocka_run_group_tests_name("packed_lost", tests, NULL, NULL);
}
