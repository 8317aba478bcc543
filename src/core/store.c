/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store.h"

#include "core/cleaner.h"
#include "core/clock.h"
#include "core/describe.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/route.h"
#include "core/selftest.h"
#include "core/sized.h"
#include "core/stats.h"
#include "core/text.h"
#include "core/trailer.h"
#include "core/usage.h"
#include "core/workers.h"
#include "core/xfer.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOUSEKEEPING_S 10
#define CLOSE_NS       UINT64_C(1000000000)

struct kvc_root *kvc_store_route(const struct kvc_store *store, uint64_t hash)
{
	if (store->root_count == 1)
		return store->roots[0];
	if (store->settings->naming == KVC_NAMING_NIXL)
		return store->roots[kvc_route_nixl(store->root_count, hash)];
	return store->roots[kvc_route_rendezvous(store->uuids, store->root_count, hash)];
}

uint64_t kvc_store_deadline_ns(const struct kvc_store *store, uint32_t op, uint32_t timeout_ms,
			       uint64_t start_ns)
{
	const struct kvc_settings *settings = store->settings;

	if (timeout_ms == 0)
		timeout_ms = op == KVC_GET    ? settings->get_timeout_ms :
			     op == KVC_EXISTS ? settings->exists_timeout_ms :
						settings->set_timeout_ms;
	return start_ns + (uint64_t)timeout_ms * 1000000;
}

void kvc_store_enter(struct kvc_store *store)
{
	atomic_fetch_add_explicit(&store->active, 1, memory_order_acquire);
}

void kvc_store_leave(struct kvc_store *store)
{
	atomic_fetch_sub_explicit(&store->active, 1, memory_order_release);
}

/* ---------------------------------------------------------------- counters */

/* The counters of a page that other processes can read, under the first root that has a folder. Not
 * on a network: writing to a mapped page there could wait for ever, outside of every deadline. */
static void move_counters(struct kvc_store *store)
{
	char path[PATH_MAX];
	const char *folder = NULL;

	for (size_t r = 0; r < store->root_count && !folder; r++)
		if (!store->roots[r]->read_only &&
		    (store->roots[r]->attributes.flags & KVC_ATTRIBUTE_LOCAL))
			folder = store->roots[r]->attributes.local_path;
	if (!folder)
		return;
	(void)snprintf(path, sizeof(path), "%s/" KVC_HOUSEKEEPING_FOLDER, folder);
	kvc_counters_move(store->counters, path, store->settings->file_mode);
}

/* ---------------------------------------------------------------- opening a candidate */

/* Closes what can be closed; those whose I/O is stuck stay in the list. */
static int close_roots(struct kvc_store *store, uint64_t deadline_ns)
{
	size_t kept = 0;
	int rc = 0;

	for (size_t r = 0; r < store->root_count; r++) {
		const int one = kvc_root_close(store->roots[r], deadline_ns);

		if (one) {
			rc = one;
			store->roots[kept++] = store->roots[r];
		}
	}
	store->root_count = kept;
	return rc;
}

static int add_root(struct kvc_store *store, const char *location)
{
	struct kvc_root *root;
	int rc;

	rc = kvc_root_open(store, store->backend, location, store->read_only, &root);
	if (rc)
		return rc;
	store->roots[store->root_count] = root;
	memcpy(store->uuids[store->root_count], root->uuid, sizeof(root->uuid));
	store->root_count++;
	for (size_t r = 0; r + 1 < store->root_count; r++)
		if (memcmp(store->uuids[r], root->uuid, sizeof(root->uuid)) == 0)
			return kvc_fail(
				-EINVAL,
				"%s and %s have the same identity (uuid %s): one is a copy of "
				"the other; remove its .kvcellar/root.json",
				store->roots[r]->location, location, root->uuid_text);
	return 0;
}

static int open_roots(struct kvc_store *store)
{
	const struct kvc_settings *settings = store->settings;
	int rc = 0;

	if (store->backend->module->ops.flags & KVC_PLUGIN_LOCATES)
		return add_root(store, "");
	for (size_t i = 0; i < settings->storage_dir_count && !rc; i++)
		rc = add_root(store, settings->storage_dirs[i]);
	return rc;
}

/* How far a candidate got: the errno of the one that got farthest is the caller's. */
enum progress {
	GOT_CONFIGURATION,
	GOT_LIBRARY,
	GOT_BACKEND,
	GOT_ROOTS,
};

static int try_candidate(struct kvc_store *store, const struct kvc_candidate *candidate,
			 uint32_t flags, enum progress *out_progress)
{
	int rc;

	*out_progress = GOT_CONFIGURATION;
	rc = kvc_backend_open(store->settings, candidate, kvc_xfer_fill, &store->backend);
	if (rc) {
		*out_progress = candidate->valid && rc != -ENOENT ? GOT_LIBRARY : GOT_CONFIGURATION;
		return rc == -ENOENT ? -ENODEV : rc;
	}
	*out_progress = GOT_BACKEND;
	rc = open_roots(store);
	if (!rc && !store->read_only && !(flags & KVC_OPEN_NO_SELFTEST)) {
		*out_progress = GOT_ROOTS;
		rc = kvc_selftest_roots(store);
	}
	if (!rc)
		return 0;
	if (close_roots(store, kvc_now_ns() + CLOSE_NS) == 0) {
		(void)kvc_backend_close(store->backend);
		store->backend = NULL;
	}
	return rc;
}

/* Appends "plugin: reason" to a list, with what stands between two of them. */
static int add_reason(char **list, const char *between, const char *plugin, const char *reason)
{
	char *text = NULL;

	if (asprintf(&text, "%s%s%s: %s", *list ? *list : "", *list ? between : "", plugin,
		     reason) < 0)
		return -ENOMEM;
	free(*list);
	*list = text;
	return 0;
}

/*
 * Whether the caller has something to do with a candidate that was not taken: named it, set an
 * option of it, or has what it takes to get beyond configuration and files. The others are neither
 * built nor configured, and would only hide the cause.
 */
static bool is_of_interest(const struct kvc_store *store, const struct kvc_candidate *candidate,
			   enum progress progress)
{
	return store->settings->selection != KVC_SELECTION_AUTO || candidate->touched ||
	       progress > GOT_CONFIGURATION;
}

/* One-line lists of refusals. */
struct refusals {
	char *all;
	char *told; /* those that the caller has to do with */
};

static int note_refusal(struct kvc_store *store, const struct kvc_candidate *candidate,
			enum progress progress, bool last, struct refusals *refusals)
{
	/* The user named them: not being able to take one is worth a line. */
	const int level = store->settings->selection != KVC_SELECTION_AUTO && !last ?
				  KVC_LOG_WARNING :
				  KVC_LOG_DEBUG;
	const char *reason = kvc_last_error();
	int rc = add_reason(&store->passed_over, "\n", candidate->plugin, reason);

	if (!rc)
		rc = add_reason(&refusals->all, "; ", candidate->plugin, reason);
	if (!rc && is_of_interest(store, candidate, progress))
		rc = add_reason(&refusals->told, "; ", candidate->plugin, reason);
	kvc_log(level, "plugin %s is passed over: %s", candidate->plugin, reason);
	return rc;
}

static int choose(struct kvc_store *store, uint32_t flags)
{
	const struct kvc_settings *settings = store->settings;
	enum progress best = GOT_CONFIGURATION;
	struct refusals refusals = { .all = NULL };
	int rc = 0, best_rc = -ENODEV;

	for (size_t i = 0; i < settings->candidate_count && !rc; i++) {
		const struct kvc_candidate *candidate = &settings->candidates[i];
		enum progress progress;

		rc = try_candidate(store, candidate, flags, &progress);
		if (rc == 0)
			goto out;
		/* What is stuck in it cannot be left. */
		if (store->backend)
			goto out;
		if (progress > best) {
			best = progress;
			best_rc = rc;
		}
		rc = note_refusal(store, candidate, progress, i + 1 == settings->candidate_count,
				  &refusals);
	}
	if (!rc)
		rc = kvc_fail(best_rc, "no usable plugin: %s",
			      refusals.told ? refusals.told :
			      refusals.all  ? refusals.all :
					      "none is configured");
out:
	free(refusals.told);
	free(refusals.all);
	return rc;
}

/* ---------------------------------------------------------------- housekeeping */

static void reclaim(struct kvc_store *store)
{
	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_root *root = store->roots[r];
		int64_t count;

		if (root->read_only || kvc_root_deadline_kind(root) == KVC_DEADLINE_STAGED)
			continue;
		count = store->backend->module->ops.reclaim(root->handle);
		if (count > 0)
			kvc_counters_add(store->counters, KVC_COUNTER_RECLAIMED, count);
	}
}

static void look_after_roots(struct kvc_store *store)
{
	/* First: it finds out that a root was moved away, and that another folder has its place. */
	reclaim(store);
	for (size_t r = 0; r < store->root_count; r++) {
		(void)kvc_usage_check(store->roots[r]->usage);
		kvc_root_look_after(store->roots[r]);
	}
}

static void *housekeeper(void *context)
{
	struct kvc_store *store = context;

	pthread_mutex_lock(&store->house_lock);
	while (!store->stop) {
		const struct timespec until =
			kvc_timespec(kvc_now_ns() + HOUSEKEEPING_S * UINT64_C(1000000000));

		(void)pthread_cond_clockwait(&store->house_wake, &store->house_lock,
					     CLOCK_MONOTONIC, &until);
		if (store->stop)
			break;
		pthread_mutex_unlock(&store->house_lock);
		kvc_counters_check(store->counters);
		look_after_roots(store);
		kvc_metrics_look_after(store);
		pthread_mutex_lock(&store->house_lock);
	}
	store->housekeeper_ended = true;
	pthread_cond_signal(&store->house_wake);
	pthread_mutex_unlock(&store->house_lock);
	return NULL;
}

static void start_housekeeper(struct kvc_store *store)
{
	sigset_t all, former;
	int rc;

	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS); /* pages of a packed index that are lost */
	(void)pthread_sigmask(SIG_SETMASK, &all, &former);
	rc = pthread_create(&store->housekeeper, NULL, housekeeper, store);
	(void)pthread_sigmask(SIG_SETMASK, &former, NULL);
	store->housekeeper_runs = rc == 0;
	if (rc)
		kvc_log(KVC_LOG_WARNING, "no housekeeping thread: %s", strerror(rc));
}

/* -EBUSY: it is stuck in a root that does not answer. */
static int stop_housekeeper(struct kvc_store *store, uint64_t deadline_ns)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	int rc = 0;

	if (!store->housekeeper_runs)
		return 0;
	pthread_mutex_lock(&store->house_lock);
	store->stop = true;
	pthread_cond_broadcast(&store->house_wake);
	while (!store->housekeeper_ended && !rc)
		rc = pthread_cond_clockwait(&store->house_wake, &store->house_lock, CLOCK_MONOTONIC,
					    &until);
	rc = store->housekeeper_ended ? 0 : -EBUSY;
	pthread_mutex_unlock(&store->house_lock);
	if (rc)
		return rc;
	(void)pthread_join(store->housekeeper, NULL);
	store->housekeeper_runs = false;
	return 0;
}

/* ---------------------------------------------------------------- public */

static struct kvc_store *store_new(struct kvc_settings *settings, uint32_t flags)
{
	static const int kinds[] = {
		[KVC_CHECKSUM_MODE_FULL] = KVC_CHECKSUM_FULL,
		[KVC_CHECKSUM_MODE_SECTOR] = KVC_CHECKSUM_SECTOR,
		[KVC_CHECKSUM_MODE_NONE] = KVC_CHECKSUM_NONE,
	};
	struct kvc_store *store = calloc(1, sizeof(*store));

	if (!store)
		return NULL;
	if (kvc_cleaner_new(store)) {
		free(store);
		return NULL;
	}
	store->settings = settings;
	store->read_only = flags & KVC_OPEN_READ_ONLY;
	store->checksum_kind = kinds[settings->checksum];
	(void)pthread_mutex_init(&store->register_lock, NULL);
	(void)pthread_mutex_init(&store->region_lock, NULL);
	(void)pthread_mutex_init(&store->worker_lock, NULL);
	(void)pthread_mutex_init(&store->house_lock, NULL);
	(void)pthread_cond_init(&store->house_wake, NULL);
	return store;
}

static void store_free(struct kvc_store *store)
{
	(void)pthread_cond_destroy(&store->house_wake);
	(void)pthread_mutex_destroy(&store->house_lock);
	(void)pthread_mutex_destroy(&store->worker_lock);
	(void)pthread_mutex_destroy(&store->region_lock);
	(void)pthread_mutex_destroy(&store->register_lock);
	kvc_cleaner_free(store);
	free(store->regions);
	free(store->passed_over);
	kvc_metrics_free(store->metrics);
	kvc_counters_close(store->counters);
	kvc_settings_free(store->settings);
	free(store);
}

static void log_warnings(const struct kvc_settings *settings)
{
	for (size_t i = 0; i < settings->warning_count; i++)
		kvc_log(KVC_LOG_WARNING, "%s", settings->warnings[i]);
}

/* Who does without the cleaner should know where that is no word. */
static void tell_of_no_cleaner(const struct kvc_store *store)
{
	for (size_t r = 0; r < store->root_count && !store->settings->l3_cleaner_enabled; r++)
		if (store->roots[r]->is_packed && !store->roots[r]->read_only)
			kvc_log(KVC_LOG_INFO,
				"%s: l3_cleaner_enabled = false: nothing is removed for the disk's "
				"sake, but a packed root goes on using its slots again within its "
				"capacity",
				store->roots[r]->location);
}

int kvc_store_open(const struct kvc_config *config, const struct kvc_open_params *params,
		   struct kvc_store **out)
{
	const uint32_t flags = params ? params->flags : 0;
	const unsigned mark = kvc_fail_mark();
	struct kvc_settings *settings;
	struct kvc_store *store;
	int rc;

	if (!out)
		return kvc_fail(-EINVAL, "kvc_store_open: out is NULL");
	rc = params ? kvc_struct_check(params, params->size, sizeof(*params),
				       "struct kvc_open_params") :
		      0;
	if (rc)
		return rc;
	if (flags & ~(uint32_t)(KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST))
		return kvc_fail(-EINVAL, "kvc_store_open: flags has an unknown bit");
	rc = kvc_config_resolve(config, &settings);
	if (rc)
		return kvc_fail_since(mark, rc, "reading the configuration");
	store = store_new(settings, flags);
	if (!store) {
		kvc_settings_free(settings);
		return kvc_fail(-ENOMEM, "no memory for a store");
	}
	rc = kvc_counters_open(NULL, 0, &store->counters);
	if (rc)
		goto free_store;
	log_warnings(settings);
	rc = kvc_metrics_open(store);
	if (!rc)
		rc = choose(store, flags);
	if (rc)
		goto free_store;
	tell_of_no_cleaner(store);
	move_counters(store);
	kvc_metrics_start(store);
	start_housekeeper(store);
	kvc_cleaner_start(store);
	*out = store;
	return 0;

free_store:
	kvc_metrics_free(store->metrics);
	store->metrics = NULL;
	/* Stuck I/O of a root still refers to the store. */
	if (store->root_count == 0)
		store_free(store);
	return kvc_fail_since(mark, rc, "opening a store");
}

int kvc_store_close(struct kvc_store *store)
{
	const uint64_t deadline_ns = kvc_now_ns() + CLOSE_NS;
	int rc;

	if (!store)
		return 0;
	if (atomic_load(&store->children) > 0)
		return kvc_fail(-EBUSY, "%u namespaces or memory regions are still open",
				atomic_load(&store->children));
	while (atomic_load_explicit(&store->active, memory_order_acquire) > 0) {
		const struct timespec pause = kvc_timespec(1000000);

		if (kvc_now_ns() > deadline_ns)
			return kvc_fail(-EBUSY, "a call is still at work on the store");
		(void)nanosleep(&pause, NULL);
	}
	kvc_workers_free(store->workers);
	store->workers = NULL;
	if (store->connector_close)
		store->connector_close(store->connector);
	store->connector_close = NULL;
	rc = stop_housekeeper(store, deadline_ns);
	if (rc == 0)
		rc = kvc_cleaner_stop(store, deadline_ns);
	if (rc == 0)
		rc = kvc_metrics_stop(store, deadline_ns);
	if (rc == 0)
		rc = close_roots(store, deadline_ns);
	if (rc == 0)
		rc = kvc_backend_close(store->backend);
	if (rc) {
		/* Storage that never answers: what it may still write to stays until the end of
		 * the process. None of it is the caller's. */
		kvc_log(KVC_LOG_WARNING, "%s: I/O is stuck in it; its queues are left as they are",
			store->root_count ? store->roots[store->root_count - 1]->location :
					    "plugin");
		return 0;
	}
	store_free(store);
	return 0;
}

int kvc_store_selftest(struct kvc_store *store)
{
	const unsigned mark = kvc_fail_mark();
	int rc;

	if (!store)
		return kvc_fail(-EINVAL, "kvc_store_selftest: store is NULL");
	kvc_store_enter(store);
	rc = store->read_only ? kvc_fail(-EROFS, "a self-test writes: the store is read-only") :
				kvc_selftest_roots(store);
	kvc_store_leave(store);
	return kvc_fail_since(mark, rc, "the self-test of %s",
			      store->root_count ? store->roots[0]->location : "no root");
}

int kvc_store_stats(struct kvc_store *store, struct kvc_stats *out)
{
	if (!store || !out)
		return kvc_fail(-EINVAL, "kvc_store_stats: an argument is NULL");
	return kvc_counters_read(store->counters, out);
}
