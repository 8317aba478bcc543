/* SPDX-License-Identifier: Apache-2.0 */
/* Children that are forked while other threads open and use stores: each opens its own. */
#include "support/support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KEYS	4u
#define THREADS 3u

struct work {
	const char *plugin;
	const char *root;
};

static atomic_bool stopping;

/* Opens a store, stores and reads; false when anything is not as it should be. */
static bool use_a_store(const struct work *work, const char *label)
{
	const struct setup setup = { .plugin = work->plugin,
				     .engine = strcmp(work->plugin, "posix") ? NULL : "threads",
				     .roots = work->root,
				     .flags = KVC_OPEN_NO_SELFTEST };
	const struct kvc_namespace_params params = namespace_params("fork");
	struct kvc_result results[KEYS];
	struct kvc_namespace *ns;
	struct kvc_store *store;
	struct pages pages;
	struct keys keys;
	bool ok;

	if (setup_open(&setup, &store)) {
		(void)fprintf(stderr, "%s: %s\n", label, kvc_last_error());
		return false;
	}
	ns = namespace_must_open(store, &params);
	pages_open_simple(&pages, ns, KEYS, 8192);
	keys_make(&keys, label, KEYS);
	pages_fill_keys(&pages, keys.keys, KEYS);
	batch(store, &pages, KVC_SET, keys.keys, KEYS, KVC_TRANSFER_OVERWRITE, results);
	ok = count_status(results, KEYS, KVC_OK) == KEYS;
	pages_wipe(&pages);
	batch(store, &pages, KVC_GET, keys.keys, KEYS, 0, results);
	ok = ok && count_status(results, KEYS, KVC_OK) == KEYS;
	for (size_t i = 0; i < KEYS; i++)
		ok = ok && pages_match(&pages, i, key_content(keys.keys[i]));
	keys_free(&keys);
	pages_close(&pages);
	ok = !kvc_namespace_close(ns) && ok;
	return !kvc_store_close(store) && ok;
}

static void *open_again_and_again(void *context)
{
	const struct work *work = context;
	intptr_t wrong = 0;

	while (!atomic_load(&stopping))
		wrong += !use_a_store(work, "parent");
	return (void *)wrong;
}

static int child(void *context)
{
	const struct work *work = context;

	(void)alarm(20); /* ends it when it hangs */
	return use_a_store(work, "child") ? 0 : 1;
}

/*
 * The sanitizers' allocators and threads do not outlive the fork of a program with several threads:
 * under them it is the parent's side that is looked at.
 */
static pid_t child_begin(struct work *work)
{
	pid_t pid;

	if (!support_sanitized())
		return child_start(child, work);
	pid = fork();
	if (pid == 0)
		_exit(0);
	assert_true(pid > 0);
	return pid;
}

static void run(const char *plugin, unsigned rounds)
{
	struct work work = { .plugin = plugin, .root = folder_new("fork") };
	pthread_t threads[THREADS];
	unsigned bad = 0;

	atomic_store(&stopping, false);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_again_and_again, &work), 0);
	for (unsigned i = 0; i < rounds && bad == 0; i++)
		bad = (unsigned)child_wait(child_begin(&work));
	atomic_store(&stopping, true);
	for (unsigned i = 0; i < THREADS; i++) {
		void *wrong;

		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		assert_null(wrong);
	}
	assert_int_equal(bad, 0);
}

static void children_open_stores_in_memory(void **state)
{
	(void)state;
	run("mem", support_sanitized() ? 100 : 400);
}

static void children_open_stores_on_disk(void **state)
{
	(void)state;
	run("posix", support_sanitized() ? 50 : 150);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(children_open_stores_in_memory),
		cmocka_unit_test(children_open_stores_on_disk),
	};

	support_begin();
	return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
