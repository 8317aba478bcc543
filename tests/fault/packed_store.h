/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store on a packed root of pages of 4096 bytes, and keys that are set and got in batches; its
 * keeper runs. Used by test_packed_*.c.
 */
#ifndef KVC_TESTS_FAULT_PACKED_STORE_H
#define KVC_TESTS_FAULT_PACKED_STORE_H

#include "packed.h"

#include "support/packed.h"

#include <glob.h>

#define PAGE  4096u
#define BATCH 50u

struct setting {
	const char *capacity; /* NULL: 16 segments of 256 slots */
	const char *rules;    /* fault */
	const char *more;     /* one more setting */
};

/* What a child process opens. */
struct opening {
	const char *root;
	const char *rules;
};

struct fix {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
};

static inline int root_open(const char *root, const struct setting *setting, struct kvc_store **out)
{
	const struct setting usual = { .capacity = NULL };
	const struct setting *how = setting ? setting : &usual;
	char capacity[64];
	const struct setup setup = {
		.plugin = how->rules ? "fault" : "posix",
		.lower = how->rules ? "posix" : NULL,
		.rules = how->rules,
		.engine = "threads",
		.roots = root,
		.buffered = true,
		.layout = "packed",
		.flags = KVC_OPEN_NO_SELFTEST,
		.settings = { "min_free=0", capacity, how->more },
	};

	text_make(capacity, sizeof(capacity), "capacity=%s",
		  how->capacity ? how->capacity : "16MiB");
	return setup_open(&setup, out);
}

static inline int fix_try(struct fix *fix, const char *root, const struct setting *setting)
{
	struct kvc_namespace_params params = namespace_params("broken");
	int rc = root_open(root, setting, &fix->store);

	if (rc)
		return rc;
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, BATCH, PAGE);
	return 0;
}

static inline void fix_open(struct fix *fix, const char *root, const struct setting *setting)
{
	if (fix_try(fix, root, setting))
		fail_msg("%s: %s", root, kvc_last_error());
}

static inline void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
}

/* ---------------------------------------------------------------- many keys */

/* How many were stored, and how many found no room. */
static inline void set_counted(struct fix *fix, const char *label, size_t count, size_t *ok,
			       size_t *full)
{
	struct kvc_result results[BATCH];
	struct keys keys;

	*ok = *full = 0;
	keys_make(&keys, label, count);
	for (size_t i = 0; i < count; i += BATCH) {
		pages_fill_keys(&fix->pages, keys.keys + i, BATCH);
		batch(fix->store, &fix->pages, KVC_SET, keys.keys + i, BATCH, 0, results);
		*ok += count_status(results, BATCH, KVC_OK);
		*full += count_status(results, BATCH, KVC_FULL);
	}
	keys_free(&keys);
}

/* How many were stored. */
static inline size_t set_many(struct fix *fix, const char *label, size_t count)
{
	size_t ok, full;

	set_counted(fix, label, count, &ok, &full);
	return ok;
}

/* How many are there; their bytes have to be right. */
static inline size_t get_many(struct fix *fix, const char *label, size_t count)
{
	struct kvc_result results[BATCH];
	struct keys keys;
	size_t found = 0;

	keys_make(&keys, label, count);
	for (size_t i = 0; i < count; i += BATCH) {
		pages_wipe(&fix->pages);
		batch(fix->store, &fix->pages, KVC_GET, keys.keys + i, BATCH, 0, results);
		for (size_t k = 0; k < BATCH; k++) {
			if (results[k].status != KVC_OK)
				continue;
			found++;
			assert_true(pages_match(&fix->pages, k, key_content(keys.keys[i + k])));
		}
	}
	keys_free(&keys);
	return found;
}

static inline const char *root_with(const char *label, const char *keys, size_t count)
{
	const char *root = folder_new(label);
	struct fix fix;

	fix_open(&fix, root, NULL);
	assert_int_equal(set_many(&fix, keys, count), count);
	fix_close(&fix);
	return root;
}

/* The next opening finds all of them, and an index that is right. */
static inline void expect_whole(const char *root, const char *keys, size_t count)
{
	struct fix fix;

	fix_open(&fix, root, NULL);
	assert_int_equal(packed_check(fix.store), count);
	assert_int_equal(get_many(&fix, keys, count), count);
	assert_int_equal(set_many(&fix, "after it", BATCH), BATCH);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- files of the index */

static inline void file_path(const char *root, const char *name, char out[PATH_BYTES])
{
	char pattern[PATH_BYTES];
	glob_t found;

	text_make(pattern, sizeof(pattern), "%s/*/slots-4096/%s", root, name);
	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 1);
	text_make(out, PATH_BYTES, "%s", found.gl_pathv[0]);
	globfree(&found);
}

#endif
