/* SPDX-License-Identifier: Apache-2.0 */
/* An open store: the configuration, the backend that was chosen, its roots, counters, threads.
 * Readers: the rest of core, and the connector for routing and its children's bookkeeping. */
#ifndef KVC_CORE_STORE_H
#define KVC_CORE_STORE_H

#include "core/backend.h"
#include "core/config.h"
#include "core/region.h"
#include "core/root.h"

#include <pthread.h>
#include <stdatomic.h>

struct kvc_cleaner;
struct kvc_counters;
struct kvc_metrics;
struct kvc_workers;

struct kvc_store {
	struct kvc_settings *settings;
	struct kvc_backend *backend;
	struct kvc_root *roots[KVC_ROOTS_MAX];
	uint8_t uuids[KVC_ROOTS_MAX][16];
	size_t root_count;
	struct kvc_counters *counters;
	struct kvc_metrics *metrics;
	int checksum_kind; /* enum kvc_checksum_kind */
	bool read_only;
	char *passed_over; /* one line per candidate that was not taken, and why */

	atomic_uint children; /* namespaces and regions */
	atomic_uint active;   /* calls at work */
	atomic_bool identity_warned;

	pthread_mutex_t register_lock; /* of registering; taken before region_lock */
	pthread_mutex_t region_lock;   /* of the snapshot; nobody waits under it */
	struct kvc_regions *regions;
	struct kvc_region *withdrawn; /* being deregistered while runs use them; register_lock */

	struct kvc_workers *workers; /* for started batches; made at the first */
	pthread_mutex_t worker_lock;

	pthread_t housekeeper;
	bool housekeeper_runs;
	bool housekeeper_ended;
	bool stop;
	pthread_mutex_t house_lock;
	pthread_cond_t house_wake;

	struct kvc_cleaner *cleaner; /* core/cleaner.h */

	void *connector;		    /* the recorder of the connector, if any */
	void (*connector_close)(void *arg); /* ends it */
};

/* The root that has the object: by group hash g, or by h in nixl naming. */
struct kvc_root *kvc_store_route(const struct kvc_store *store, uint64_t hash);

/* Its place among the store's roots; it is one of them. */
static inline size_t kvc_store_root_index(const struct kvc_store *store,
					  const struct kvc_root *root)
{
	size_t r = 0;

	while (store->roots[r] != root)
		r++;
	return r;
}

/* When an operation (enum kvc_operation) that began at start_ns has to be done; timeout_ms 0 = the
 * configuration's. */
uint64_t kvc_store_deadline_ns(const struct kvc_store *store, uint32_t op, uint32_t timeout_ms,
			       uint64_t start_ns);

/* Between them the store cannot be closed. */
void kvc_store_enter(struct kvc_store *store);
void kvc_store_leave(struct kvc_store *store);

#endif
