/* SPDX-License-Identifier: Apache-2.0 */
/* The thread: who is the cleaner, ticks, counting. */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/store.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define TICK_NS	   UINT64_C(1000000000)
#define ACTIVE_NS  (UINT64_C(20) * 1000000) /* after a tick that took something away */
#define SCAN_SHARE 4u			    /* of the time a count pauses */
#define LOOK_NS	   UINT64_C(10000000000)
#define BATCH_AGES 16u

/* ---------------------------------------------------------------- one at a time */

int kvc_cleaner_enter(struct kvc_cleaner *cleaner, uint64_t deadline_ns)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	int rc = 0;

	pthread_mutex_lock(&cleaner->lock);
	while (cleaner->busy && !kvc_cleaner_is_stopped(cleaner) && !rc)
		rc = pthread_cond_clockwait(&cleaner->idle, &cleaner->lock, CLOCK_MONOTONIC,
					    &until);
	rc = kvc_cleaner_is_stopped(cleaner) ? -ECANCELED : cleaner->busy ? -ETIMEDOUT : 0;
	if (rc == 0)
		cleaner->busy = true;
	pthread_mutex_unlock(&cleaner->lock);
	return rc;
}

void kvc_cleaner_leave(struct kvc_cleaner *cleaner)
{
	pthread_mutex_lock(&cleaner->lock);
	cleaner->busy = false;
	pthread_cond_signal(&cleaner->idle);
	pthread_mutex_unlock(&cleaner->lock);
}

/* ---------------------------------------------------------------- ticks */

/* The uses between two times are told apart from jumps of the wall clock. */
static void mark_times(struct kvc_cleaner *cleaner)
{
	const struct kvc_store *store = cleaner->store;
	const int64_t wall_ns = kvc_wall_ns();
	const uint64_t mono_ns = kvc_now_ns();
	const int64_t expected_ns =
		cleaner->mono_ns ? cleaner->wall_ns + (int64_t)(mono_ns - cleaner->mono_ns) : 0;

	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_files *files = store->roots[r]->files;

		if (files && files->stamps && atomic_load(&files->is_cleaner))
			kvc_stamps_mark(files->stamps, wall_ns, expected_ns);
	}
	cleaner->wall_ns = wall_ns;
	cleaner->mono_ns = mono_ns;
}

static void renew(struct kvc_files *files)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);

	if (kvc_cleaner_enter(cleaner, UINT64_MAX / 2))
		return;
	kvc_files_renew(files);
	/* Once, so that no set has to wait for it. */
	if (kvc_files_may_evict(files))
		(void)kvc_index_refresh(files, UINT64_MAX);
	kvc_cleaner_leave(cleaner);
}

static void look_after(struct kvc_files *files, bool thoroughly)
{
	const uint64_t batch = atomic_load(&files->batch_bytes);
	uint64_t objects;

	if (thoroughly)
		renew(files);
	if (atomic_load(&files->is_cleaner))
		kvc_files_bury(files);
	kvc_usage_total(files->root->usage, NULL, &objects);
	atomic_store(&files->objects, objects);
	atomic_store(&files->batch_bytes, batch - batch / BATCH_AGES);
}

/* The roots in an order that is the same in every process. */
static size_t sort_roots(const struct kvc_store *store, struct kvc_files *out[KVC_ROOTS_MAX])
{
	size_t count = 0;

	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_files *files = store->roots[r]->files;
		size_t at = count;

		if (!files || atomic_load(&store->roots[r]->suspect))
			continue;
		while (at > 0 && memcmp(files->root->uuid, out[at - 1]->root->uuid, 16) < 0) {
			out[at] = out[at - 1];
			at--;
		}
		out[at] = files;
		count++;
	}
	return count;
}

static void elect(struct kvc_files **all, size_t count)
{
	uint64_t devices[KVC_ROOTS_MAX];

	for (size_t i = 0; i < count; i++) {
		struct kvc_usage usage;
		bool is_behind = false;

		devices[i] = kvc_files_device(all[i], &usage) ? usage.device : UINT64_MAX;
		if (!kvc_files_may_evict(all[i]) || devices[i] == UINT64_MAX)
			continue;
		for (size_t j = 0; j < i; j++)
			is_behind |= devices[j] == devices[i] && !atomic_load(&all[j]->is_cleaner);
		(void)kvc_files_elect(all[i], is_behind);
	}
}

/* True: something went, there may be more to do soon. */
static bool tick(struct kvc_cleaner *cleaner)
{
	struct kvc_files *all[KVC_ROOTS_MAX];
	const size_t count = sort_roots(cleaner->store, all);
	const uint64_t now_ns = kvc_now_ns();
	const bool thoroughly = now_ns - cleaner->looked_ns >= LOOK_NS;

	if (thoroughly)
		cleaner->looked_ns = now_ns;
	for (size_t i = 0; i < count; i++)
		look_after(all[i], thoroughly);
	elect(all, count);
	mark_times(cleaner);
	return atomic_load(&cleaner->names) && kvc_cleaner_work(cleaner, all, count);
}

/* ---------------------------------------------------------------- counting */

/* Some folders of each root whose counts are new, or due. True: there is more. */
static bool count_some(struct kvc_cleaner *cleaner, bool *out_hurry)
{
	struct kvc_files *all[KVC_ROOTS_MAX];
	const size_t count = sort_roots(cleaner->store, all);
	bool more = false;

	for (size_t i = 0; i < count; i++) {
		if (!kvc_scan_is_wanted(all[i]) && !atomic_load(&all[i]->scan.active))
			continue;
		if (kvc_cleaner_enter(cleaner, UINT64_MAX / 2))
			return false;
		more |= kvc_scan_step(all[i], false) > 0;
		*out_hurry |= kvc_usage_is_hurried(all[i]->root->usage);
		kvc_cleaner_leave(cleaner);
	}
	return more;
}

/* ---------------------------------------------------------------- the thread */

static void sleep_until(struct kvc_cleaner *cleaner, uint64_t until_ns)
{
	const struct timespec until = kvc_timespec(until_ns);
	int rc = 0;

	pthread_mutex_lock(&cleaner->lock);
	while (!kvc_cleaner_is_stopped(cleaner) && !cleaner->kicked && !rc)
		rc = pthread_cond_clockwait(&cleaner->wake, &cleaner->lock, CLOCK_MONOTONIC,
					    &until);
	cleaner->kicked = false;
	pthread_mutex_unlock(&cleaner->lock);
}

static void *run(void *context)
{
	struct kvc_cleaner *cleaner = context;
	uint64_t next_tick_ns = 0;

	while (!kvc_cleaner_is_stopped(cleaner)) {
		uint64_t now_ns = kvc_now_ns(), wake_ns;
		bool more, hurry = atomic_load(&cleaner->scan_waiters);

		more = count_some(cleaner, &hurry);
		wake_ns = kvc_now_ns();
		wake_ns = hurry ? wake_ns : wake_ns + SCAN_SHARE * (wake_ns - now_ns);
		now_ns = kvc_now_ns();
		if (now_ns >= next_tick_ns || !more)
			next_tick_ns = kvc_now_ns() + (tick(cleaner) ? ACTIVE_NS : TICK_NS);
		sleep_until(cleaner, more && wake_ns < next_tick_ns ? wake_ns : next_tick_ns);
	}
	pthread_mutex_lock(&cleaner->lock);
	cleaner->ended = true;
	pthread_cond_broadcast(&cleaner->wake);
	pthread_mutex_unlock(&cleaner->lock);
	return NULL;
}

static bool needs_thread(const struct kvc_store *store)
{
	for (size_t r = 0; r < store->root_count; r++) {
		const struct kvc_files *files = store->roots[r]->files;

		if (files && (kvc_files_may_evict(files) || kvc_scan_is_wanted(files)))
			return true;
	}
	return false;
}

int kvc_cleaner_new(struct kvc_store *store)
{
	struct kvc_cleaner *cleaner = calloc(1, sizeof(*cleaner));

	if (!cleaner)
		return -ENOMEM;
	cleaner->store = store;
	(void)pthread_mutex_init(&cleaner->lock, NULL);
	(void)pthread_cond_init(&cleaner->idle, NULL);
	(void)pthread_cond_init(&cleaner->wake, NULL);
	store->cleaner = cleaner;
	return 0;
}

void kvc_cleaner_free(struct kvc_store *store)
{
	struct kvc_cleaner *cleaner = store->cleaner;

	if (!cleaner)
		return;
	(void)pthread_cond_destroy(&cleaner->wake);
	(void)pthread_cond_destroy(&cleaner->idle);
	(void)pthread_mutex_destroy(&cleaner->lock);
	kvc_names_free(&cleaner->suffixes);
	free(cleaner);
	store->cleaner = NULL;
}

void kvc_cleaner_start(struct kvc_store *store)
{
	struct kvc_cleaner *cleaner = store->cleaner;
	sigset_t all, former;
	int rc;

	if (!needs_thread(store))
		return;
	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS); /* pages of a table that are lost */
	(void)pthread_sigmask(SIG_SETMASK, &all, &former);
	rc = pthread_create(&cleaner->thread, NULL, run, cleaner);
	(void)pthread_sigmask(SIG_SETMASK, &former, NULL);
	cleaner->runs = rc == 0;
	if (rc)
		kvc_log(KVC_LOG_WARNING, "no thread for the cleaner: %s; sets make room themselves",
			strerror(rc));
}

int kvc_cleaner_stop(struct kvc_store *store, uint64_t deadline_ns)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	struct kvc_cleaner *cleaner = store->cleaner;
	int rc = 0;

	pthread_mutex_lock(&cleaner->lock);
	atomic_store(&cleaner->stop, true);
	pthread_cond_broadcast(&cleaner->wake);
	pthread_cond_broadcast(&cleaner->idle);
	while (cleaner->runs && !cleaner->ended && !rc)
		rc = pthread_cond_clockwait(&cleaner->wake, &cleaner->lock, CLOCK_MONOTONIC,
					    &until);
	rc = cleaner->runs && !cleaner->ended ? -EBUSY : 0;
	pthread_mutex_unlock(&cleaner->lock);
	if (rc == 0 && cleaner->runs)
		(void)pthread_join(cleaner->thread, NULL);
	cleaner->runs = cleaner->runs && rc;
	return rc;
}

void kvc_cleaner_kick(struct kvc_store *store)
{
	struct kvc_cleaner *cleaner = store->cleaner;

	if (!cleaner->runs)
		return;
	pthread_mutex_lock(&cleaner->lock);
	cleaner->kicked = true;
	pthread_cond_broadcast(&cleaner->wake);
	pthread_mutex_unlock(&cleaner->lock);
}

void kvc_cleaner_set_names(struct kvc_store *store, const struct kvc_cleaner_names *names)
{
	if (store->cleaner)
		atomic_store(&store->cleaner->names, names);
}
