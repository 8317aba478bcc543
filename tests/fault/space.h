/* SPDX-License-Identifier: Apache-2.0 */
/* A store with keys that are moved page by page, for the tests of space and of the cleaner. */
#ifndef KVC_TESTS_FAULT_SPACE_H
#define KVC_TESTS_FAULT_SPACE_H

#include "support/support.h"

#include <stdlib.h>

struct fix {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result *results;
};

static inline void fix_open_pages(struct fix *fix, const struct setup *setup, const char *model,
				  size_t keys, size_t pages, uint64_t bytes)
{
	struct kvc_namespace_params params = namespace_params(model);

	fix->store = setup_must_open(setup);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, pages, bytes);
	keys_make(&fix->keys, model, keys);
	fix->results = calloc(keys, sizeof(*fix->results));
	assert_non_null(fix->results);
}

static inline void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
	free(fix->results);
}

/* Keys [from, from + count) on pages 0..; every OK page is right. */
static inline size_t run_keys(struct fix *fix, int op, size_t from, size_t count)
{
	struct kvc_result *results = fix->results + from;
	const struct kvc_key *keys = fix->keys.keys + from;

	if (op == KVC_SET)
		pages_fill_keys(&fix->pages, keys, count);
	if (op == KVC_GET)
		pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, op, keys, count, 0, results);
	for (size_t i = 0; op == KVC_GET && i < count; i++)
		if (results[i].status == KVC_OK)
			assert_true(pages_match(&fix->pages, i, key_content(keys[i])));
		else
			expect_result(results[i], KVC_MISS, -1);
	return count_status(results, count, KVC_OK);
}

#endif
