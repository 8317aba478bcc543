/* SPDX-License-Identifier: Apache-2.0 */
/* R32: setters, getters and one who asks, on one store: seconds, or a minute in a soak run. */
#include "support/packed.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS  96u
#define BATCH 12u

struct shared {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct keys keys;
	atomic_bool stop;
	atomic_uint wrong; /* cmocka's assertions belong to the main thread */
	atomic_ulong calls;
	atomic_ulong hits;
};

struct worker {
	pthread_t thread;
	struct shared *shared;
	struct pages pages;
	unsigned number;
	int op;
	bool started; /* goes by kvc_batch_start() */
};

static int run_batch(struct worker *worker, struct kvc_transfer *transfer)
{
	struct kvc_batch *started;

	if (!worker->started)
		return kvc_batch_run(worker->shared->store, transfer, 1);
	if (kvc_batch_start(worker->shared->store, transfer, 1, &started) != 0)
		return -1;
	if (kvc_batch_wait(started, UINT32_MAX) != 1)
		return -1;
	return kvc_batch_free(started);
}

static bool results_are_sound(struct worker *worker, const struct kvc_transfer *transfer,
			      size_t first)
{
	for (size_t i = 0; i < transfer->key_count; i++) {
		const struct kvc_result *result = &transfer->results[i];
		uint64_t content = key_content(worker->shared->keys.keys[first + i]);

		if (transfer->op == KVC_SET && result->status != KVC_OK)
			return false;
		if (result->status != KVC_OK && result->status != KVC_MISS)
			return false;
		if (transfer->op == KVC_GET && result->status == KVC_OK) {
			atomic_fetch_add(&worker->shared->hits, 1);
			if (!pages_match(&worker->pages, i, content))
				return false;
		}
	}
	return true;
}

/* One single object that a writer replaces by other sizes while others read it. */
struct single_race {
	struct kvc_namespace *ns;
	atomic_bool stop;
	atomic_uint wrong;
	atomic_ulong gets;
};

static const size_t race_sizes[] = { 5000, 100000, 4999, 0, 70000 };

static void *read_single(void *context)
{
	struct single_race *race = context;
	const struct kvc_key key = { .data = "race", .bytes = 4 };
	unsigned char *buffer = malloc(100000);

	while (buffer && !atomic_load(&race->stop)) {
		size_t bytes = 0;
		const int rc =
			kvc_object_get(race->ns, "side", key, buffer, 100000, &bytes, 0, 60000);
		bool known = false;

		for (size_t i = 0; i < sizeof(race_sizes) / sizeof(race_sizes[0]); i++)
			known = known || bytes == race_sizes[i];
		/* All bytes of one put are alike; never absent, and never another's size. A writer
		 * that is faster than five looks is a miss. */
		if (rc == 0 && (!known || (bytes > 0 && buffer[0] != buffer[bytes - 1])))
			atomic_fetch_add(&race->wrong, 1);
		if (rc != 0 && rc != -ENOENT)
			atomic_fetch_add(&race->wrong, 1);
		atomic_fetch_add(&race->gets, 1);
	}
	free(buffer);
	return NULL;
}

static void test_a_single_object_that_is_replaced_is_never_removed(void **state)
{
	const struct kvc_key key = { .data = "race", .bytes = 4 };
	struct setup setup = { .plugin = "posix", .roots = folder_new("single") };
	struct kvc_namespace_params params = namespace_params("race");
	struct kvc_store *store = setup_must_open(&setup);
	struct single_race race = { .ns = namespace_must_open(store, &params) };
	struct kvc_stats stats = { .size = sizeof(stats) };
	unsigned char *data = malloc(100000);
	pthread_t readers[2];
	size_t bytes;

	(void)state;
	assert_non_null(data);
	memset(data, 0, 100000);
	assert_int_equal(kvc_object_put(race.ns, "side", key, data, 5000, 1, 60000), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&readers[i], NULL, read_single, &race), 0);
	for (unsigned i = 0; i < 400; i++) {
		const size_t size = race_sizes[i % (sizeof(race_sizes) / sizeof(race_sizes[0]))];

		memset(data, (int)(i & 0xff), size);
		assert_int_equal(kvc_object_put(race.ns, "side", key, data, size, 1, 60000), 0);
		assert_int_equal(kvc_object_exists(race.ns, "side", key, &bytes, 0), 1);
		assert_int_equal(bytes, size);
	}
	atomic_store(&race.stop, true);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_join(readers[i], NULL), 0);
	assert_int_equal(kvc_store_stats(store, &stats), 0);
	assert_int_equal(stats.removed_corrupt, 0);
	assert_int_equal(atomic_load(&race.wrong), 0);
	assert_true(atomic_load(&race.gets) > 0);
	free(data);
	assert_int_equal(kvc_namespace_close(race.ns), 0);
	store_must_close(store);
	folder_remove(setup.roots);
}

static void *work(void *context)
{
	struct worker *worker = context;
	struct shared *shared = worker->shared;
	struct chance chance = { .state = (uint64_t)worker->number << 40 };
	struct kvc_result results[BATCH];
	int64_t indices[BATCH];

	for (int i = 0; i < (int)BATCH; i++)
		indices[i] = i;
	while (!atomic_load(&shared->stop) && atomic_load(&shared->wrong) == 0) {
		size_t first = chance_below(&chance, KEYS - BATCH);
		bool removes = worker->op == KVC_EXISTS && chance_below(&chance, 4) == 0;
		struct kvc_transfer transfer =
			transfer_of(&worker->pages, removes ? KVC_REMOVE : worker->op,
				    shared->keys.keys + first, BATCH, indices, results);

		if (worker->op == KVC_SET)
			pages_fill_keys(&worker->pages, shared->keys.keys + first, BATCH);
		if (worker->op == KVC_SET && chance_below(&chance, 2))
			transfer.flags = KVC_TRANSFER_OVERWRITE;
		if (run_batch(worker, &transfer) != 0 ||
		    !results_are_sound(worker, &transfer, first)) {
			(void)printf("worker %u: %s, first result %s/%s\n", worker->number,
				     kvc_last_error(), kvc_status_name(results[0].status),
				     kvc_cause_name(results[0].cause));
			atomic_fetch_add(&shared->wrong, 1);
		}
		atomic_fetch_add(&shared->calls, 1);
	}
	return NULL;
}

/* Looks at the store from outside while it works. */
static void watch(struct shared *shared, unsigned milliseconds)
{
	uint64_t end = now_ms() + milliseconds;

	while (now_ms() < end && atomic_load(&shared->wrong) == 0) {
		struct kvc_root_usage usage = { .size = sizeof(usage) };

		free(store_text(shared->store, KVC_FORMAT_TEXT));
		(void)store_stats(shared->store);
		assert_true(kvc_metrics_text(shared->store, NULL, 0) > 0);
		assert_int_equal(kvc_store_usage(shared->store, 0, &usage, 1), 1);
		sleep_ms(20);
	}
}

static void run_workers(const struct setup *given, unsigned milliseconds)
{
	static const int ops[] = { KVC_SET, KVC_SET, KVC_GET, KVC_GET, KVC_EXISTS };
	struct kvc_namespace_params params = namespace_params("threads");
	struct pages_params pages = {
		.count = BATCH,
		.part_count = 2,
		.part_bytes = { 4096, 3000 },
	};
	struct setup setup = *given;
	struct shared shared = { .wrong = 0 };
	struct worker workers[5];

	setup.roots = folder_new("threads");
	shared.store = setup_must_open(&setup);
	shared.ns = namespace_must_open(shared.store, &params);
	keys_make(&shared.keys, "threads", KEYS);
	for (unsigned i = 0; i < 5; i++) {
		workers[i] = (struct worker){
			.shared = &shared,
			.number = i,
			.op = ops[i],
			.started = i % 2,
		};
		pages_open(&workers[i].pages, shared.ns, &pages);
	}
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	watch(&shared, milliseconds);
	atomic_store(&shared.stop, true);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
	assert_int_equal(atomic_load(&shared.wrong), 0);
	(void)printf("%lu calls, %lu hits\n", atomic_load(&shared.calls),
		     atomic_load(&shared.hits));
	assert_true(atomic_load(&shared.hits) > 0);
	if (setup.layout != NULL)
		(void)packed_check(shared.store);
	for (unsigned i = 0; i < 5; i++)
		pages_close(&workers[i].pages);
	assert_int_equal(kvc_namespace_close(shared.ns), 0);
	store_must_close(shared.store);
	keys_free(&shared.keys);
}

static unsigned share_of(unsigned total)
{
	return (support_soak() ? 60000 : 8000) / total;
}

static void test_on_posix(void **state)
{
	struct setup setup = { .plugin = "posix" };

	(void)state;
	run_workers(&setup, share_of(2));
}

static void test_on_posix_by_threads(void **state)
{
	struct setup setup = { .plugin = "posix", .engine = "threads", .naming = "nixl" };

	(void)state;
	run_workers(&setup, share_of(4));
}

static void test_on_mem(void **state)
{
	struct setup setup = { .plugin = "mem" };

	(void)state;
	run_workers(&setup, share_of(4));
}

static void test_on_packed_posix(void **state)
{
	struct setup setup = { .plugin = "posix", .layout = "packed" };

	(void)state;
	run_workers(&setup, share_of(2));
}

/* So little room that each set takes the slot of another page. */
static void test_on_a_full_packed_root(void **state)
{
	struct setup setup = {
		.plugin = "posix",
		.engine = "threads",
		.layout = "packed",
		.settings = { "capacity=600KiB" },
	};

	(void)state;
	run_workers(&setup, share_of(2));
}

static void test_on_packed_mem(void **state)
{
	struct setup setup = { .plugin = "mem", .layout = "packed" };

	(void)state;
	run_workers(&setup, share_of(4));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_on_posix),
		cmocka_unit_test(test_on_posix_by_threads),
		cmocka_unit_test(test_on_mem),
		cmocka_unit_test(test_on_packed_posix),
		cmocka_unit_test(test_on_a_full_packed_root),
		cmocka_unit_test(test_on_packed_mem),
		cmocka_unit_test(test_a_single_object_that_is_replaced_is_never_removed),
	};

	support_begin();
	return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
