/* SPDX-License-Identifier: Apache-2.0 */
#include "core/region.h"

#include "core/log.h"
#include "core/sized.h"
#include "core/stats.h"
#include "core/store.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct kvc_regions *kvc_regions_acquire(struct kvc_store *store)
{
	struct kvc_regions *regions;

	pthread_mutex_lock(&store->region_lock);
	regions = store->regions;
	if (regions) {
		atomic_fetch_add_explicit(&regions->references, 1, memory_order_relaxed);
		for (size_t i = 0; i < regions->count; i++)
			atomic_fetch_add_explicit(&regions->entries[i]->uses, 1,
						  memory_order_relaxed);
	}
	pthread_mutex_unlock(&store->region_lock);
	return regions;
}

static void drop(struct kvc_regions *regions)
{
	if (regions &&
	    atomic_fetch_sub_explicit(&regions->references, 1, memory_order_acq_rel) == 1)
		free(regions);
}

void kvc_regions_release(struct kvc_regions *regions)
{
	if (!regions)
		return;
	for (size_t i = 0; i < regions->count; i++)
		atomic_fetch_sub_explicit(&regions->entries[i]->uses, 1, memory_order_release);
	drop(regions);
}

const struct kvc_region *kvc_regions_find(const struct kvc_regions *regions, const void *addr,
					  uint64_t bytes)
{
	const uintptr_t from = (uintptr_t)addr;

	if (!regions)
		return NULL;
	for (size_t i = 0; i < regions->count; i++) {
		const struct kvc_memory *memory = &regions->entries[i]->memory;
		const uintptr_t base = (uintptr_t)memory->addr;

		if (from >= base && bytes <= memory->bytes && from - base <= memory->bytes - bytes)
			return regions->entries[i];
	}
	return NULL;
}

/* With register_lock held: a snapshot with `add`, without `without`, for the runs that begin from
 * here on. */
static int publish(struct kvc_store *store, struct kvc_region *add,
		   const struct kvc_region *without)
{
	struct kvc_regions *old = store->regions;
	const size_t count = old ? old->count : 0;
	struct kvc_regions *fresh =
		malloc(sizeof(*fresh) + (count + 1) * sizeof(fresh->entries[0]));

	if (!fresh)
		return -ENOMEM;
	atomic_init(&fresh->references, 1);
	fresh->count = 0;
	for (size_t i = 0; i < count; i++)
		if (old->entries[i] != without)
			fresh->entries[fresh->count++] = old->entries[i];
	if (add)
		fresh->entries[fresh->count++] = add;
	pthread_mutex_lock(&store->region_lock);
	store->regions = fresh;
	pthread_mutex_unlock(&store->region_lock);
	drop(old);
	return 0;
}

static bool overlaps(const struct kvc_memory *a, const struct kvc_memory *b)
{
	const uintptr_t from_a = (uintptr_t)a->addr, from_b = (uintptr_t)b->addr;

	return from_a < from_b + b->bytes && from_b < from_a + a->bytes;
}

static int check_memory(const struct kvc_store *store, const struct kvc_memory *memory)
{
	uint32_t kinds, flags;

	int rc;

	if (!memory)
		return kvc_fail(-EINVAL, "kvc_memory_register: memory is NULL");
	rc = kvc_struct_check(memory, memory->size, sizeof(*memory), "struct kvc_memory");
	if (rc)
		return rc;
	if (!memory->addr || memory->bytes == 0 ||
	    (uintptr_t)memory->addr + memory->bytes < (uintptr_t)memory->addr)
		return kvc_fail(-EINVAL, "memory: no address or no bytes");
	if (memory->flags & ~(uint32_t)KVC_MEMORY_DISCARD)
		return kvc_fail(-EINVAL, "memory: flags has an unknown bit");
	for (size_t r = 0; r < store->root_count; r++) {
		kinds = store->roots[r]->attributes.memory_kinds;
		flags = store->roots[r]->attributes.flags;
		kinds = kinds ? kinds : 1u << KVC_MEMORY_HOST;
		if (memory->kind >= 32 || !(kinds & (1u << memory->kind)))
			return kvc_fail(-ENOTSUP, "%s: plugin %s cannot move memory of kind %u",
					store->roots[r]->location, store->backend->module->ops.name,
					memory->kind);
		if ((flags & KVC_ATTRIBUTE_REGISTER_DESTROYS) &&
		    !(memory->flags & KVC_MEMORY_DISCARD))
			return kvc_fail(-EPERM,
					"plugin %s loses the content of memory that it registers: "
					"KVC_MEMORY_DISCARD is not given",
					store->backend->module->ops.name);
	}
	return 0;
}

/* *out is set when region is the same memory. */
static int compare(struct kvc_region *region, const struct kvc_memory *memory,
		   struct kvc_region **out)
{
	if (!overlaps(&region->memory, memory))
		return 0;
	if (region->memory.addr != memory->addr || region->memory.bytes != memory->bytes)
		return kvc_fail(-EEXIST, "memory overlaps a region that is registered");
	*out = region;
	return 0;
}

/* With register_lock held: the same region again, or one that it overlaps. */
static int find_existing(struct kvc_store *store, const struct kvc_memory *memory,
			 struct kvc_region **out)
{
	struct kvc_regions *regions = store->regions;
	int rc = 0;

	*out = NULL;
	for (size_t i = 0; !rc && regions && i < regions->count; i++)
		rc = compare(regions->entries[i], memory, out);
	for (struct kvc_region *region = store->withdrawn; !rc && region; region = region->next)
		rc = compare(region, memory, out);
	return rc;
}

/*
 * With register_lock held. A run uses all regions of the snapshot that it began with, so a region
 * is taken out of the snapshot first, and deregistered when the last run that knew it has ended:
 * runs that begin meanwhile cannot keep it busy for ever.
 */
static int withdraw(struct kvc_store *store, struct kvc_region *region)
{
	int rc;

	if (region->is_withdrawn)
		return 0;
	rc = publish(store, NULL, region);
	if (rc)
		return rc;
	region->is_withdrawn = true;
	region->next = store->withdrawn;
	store->withdrawn = region;
	return 0;
}

static void unlink_withdrawn(struct kvc_store *store, struct kvc_region *region)
{
	struct kvc_region **at = &store->withdrawn;

	while (*at != region)
		at = &(*at)->next;
	*at = region->next;
	region->is_withdrawn = false;
}

/* With register_lock held: one more user; a region that was being deregistered comes back. */
static int use_again(struct kvc_store *store, struct kvc_region *region)
{
	if (region->is_withdrawn) {
		int rc = publish(store, region, NULL);

		if (rc)
			return rc;
		unlink_withdrawn(store, region);
	}
	region->users++;
	return 0;
}

/* A plugin that cannot is no failure: transfers work without, a little slower. */
static void region_register(struct kvc_store *store, struct kvc_region *region)
{
	const struct kvc_plugin *ops = &store->backend->module->ops;
	const char *reason;
	int rc;

	(void)kvc_backend_reason();
	rc = ops->memory_register(store->backend->handle, &region->memory, &region->registration);
	if (rc >= 0)
		return;
	region->registration = 0;
	if (rc == -ENOTSUP)
		return;
	reason = kvc_backend_reason();
	kvc_log(KVC_LOG_WARNING,
		"plugin %s did not register %llu bytes of memory (%s): transfers go on without",
		ops->name, (unsigned long long)region->memory.bytes,
		reason[0] ? reason : strerror(-rc));
}

int kvc_memory_register(struct kvc_store *store, const struct kvc_memory *memory,
			struct kvc_region **out)
{
	const struct kvc_plugin *ops;
	const unsigned mark = kvc_fail_mark();
	struct kvc_region *region;
	int rc;

	if (!store || !out)
		return kvc_fail(-EINVAL, "kvc_memory_register: an argument is NULL");
	rc = check_memory(store, memory);
	if (rc)
		return rc;
	ops = &store->backend->module->ops;
	pthread_mutex_lock(&store->register_lock);
	rc = find_existing(store, memory, &region);
	if (rc)
		goto unlock;
	if (region) {
		rc = use_again(store, region);
		if (!rc)
			*out = region;
		goto unlock;
	}
	region = calloc(1, sizeof(*region));
	if (!region) {
		rc = -ENOMEM;
		goto unlock;
	}
	region->store = store;
	region->memory = *memory;
	region->users = 1;
	region_register(store, region);
	rc = publish(store, region, NULL);
	if (rc) {
		if (region->registration)
			(void)ops->memory_deregister(store->backend->handle, region->registration);
		free(region);
		goto unlock;
	}
	atomic_fetch_add(&store->children, 1);
	kvc_counters_add(store->counters, KVC_COUNTER_HOST_REGISTRATIONS, 1);
	*out = region;
unlock:
	pthread_mutex_unlock(&store->register_lock);
	return kvc_fail_since(mark, rc, "registering %llu bytes of memory",
			      (unsigned long long)memory->bytes);
}

int kvc_memory_deregister(struct kvc_region *region)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_store *store;
	int rc = 0;

	if (!region)
		return 0;
	store = region->store;
	pthread_mutex_lock(&store->register_lock);
	if (region->users > 1) {
		region->users--;
		goto unlock;
	}
	rc = withdraw(store, region);
	if (!rc && atomic_load_explicit(&region->uses, memory_order_acquire) > 0)
		rc = kvc_fail(-EBUSY, "memory is in use by a transfer");
	if (rc)
		goto unlock;
	unlink_withdrawn(store, region);
	if (region->registration)
		(void)store->backend->module->ops.memory_deregister(store->backend->handle,
								    region->registration);
	kvc_counters_add(store->counters, KVC_COUNTER_HOST_REGISTRATIONS, -1);
	atomic_fetch_sub(&store->children, 1);
	free(region);
unlock:
	pthread_mutex_unlock(&store->register_lock);
	return kvc_fail_since(mark, rc, "deregistering memory");
}
