/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: which addresses a backend knows, as a snapshot that a run holds on to. */
#ifndef KVC_CORE_REGION_H
#define KVC_CORE_REGION_H

#include <kvcellar/memory.h>

#include <stdatomic.h>
#include <stdbool.h>

struct kvc_store;

struct kvc_region {
	struct kvc_store *store;
	struct kvc_memory memory;
	uint64_t registration; /* 0: the plugin did not take it */
	atomic_uint uses;      /* runs that may touch it */
	uint32_t users;	       /* kvc_memory_register() calls; under the store's register_lock */
	bool is_withdrawn;     /* from the snapshot: no new run sees it; under register_lock */
	struct kvc_region *next;
};

/* Immutable but for its reference count. */
struct kvc_regions {
	atomic_size_t references;
	size_t count;
	struct kvc_region *entries[];
};

/* The current snapshot with a reference, or NULL when nothing is registered. */
struct kvc_regions *kvc_regions_acquire(struct kvc_store *store);
void kvc_regions_release(struct kvc_regions *regions);

/* The region that holds [addr, addr + bytes) whole, or NULL. */
const struct kvc_region *kvc_regions_find(const struct kvc_regions *regions, const void *addr,
					  uint64_t bytes);

#endif
