/* SPDX-License-Identifier: Apache-2.0 */
/* What a set may take: `capacity`, `min_free`, and how full the device may become; and making room
 * for it in the caller's thread, which is the last resort. */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/store.h"
#include "core/tenant.h"

#include <errno.h>

#define NO_HELP_NS UINT64_C(1000000000) /* a device that stays full is not cleaned for */

bool kvc_files_device(const struct kvc_files *files, struct kvc_usage *out)
{
	const struct kvc_root *root = files->root;

	*out = (struct kvc_usage){ .size = sizeof(*out) };
	return !atomic_load_explicit(&root->suspect, memory_order_relaxed) &&
	       root->backend->module->ops.usage(root->handle, out) == 0 && out->total_bytes > 0;
}

/* ---------------------------------------------------------------- capacity */

/* No process can be about to write more than there is room for: whoever says so is damaged. */
static uint64_t pending_limit(const struct kvc_files *files)
{
	return files->root->device_bytes ? files->root->device_bytes : UINT64_MAX;
}

static uint64_t pending(const struct kvc_files *files)
{
	const int64_t own = atomic_load_explicit(&files->pending, memory_order_relaxed);
	const uint64_t mine = own > 0 ? (uint64_t)own : 0;

	if (!files->stamps)
		return mine;
	return kvc_stamps_pending_sum(files->stamps, pending_limit(files)) +
	       (files->slot < 0 ? mine : 0);
}

static void reserve(struct kvc_files *files, int64_t bytes)
{
	const int64_t now = atomic_fetch_add(&files->pending, bytes) + bytes;

	if (files->stamps && files->slot >= 0)
		kvc_stamps_pending_add(files->stamps, (uint32_t)files->slot, bytes);
	if (now > 0 &&
	    (uint64_t)now > atomic_load_explicit(&files->batch_bytes, memory_order_relaxed))
		atomic_store_explicit(&files->batch_bytes, (uint64_t)now, memory_order_relaxed);
}

/* What it holds or is about to hold. */
static uint64_t held(const struct kvc_files *files)
{
	uint64_t bytes;

	kvc_usage_total(files->root->usage, &bytes, NULL);
	return bytes + pending(files);
}

uint64_t kvc_files_ahead(const struct kvc_files *files)
{
	const uint64_t capacity = files->root->capacity_bytes;
	const uint64_t batch = atomic_load_explicit(&files->batch_bytes, memory_order_relaxed);
	const uint64_t ahead = capacity / 100 > batch ? capacity / 100 : batch;

	return ahead < capacity / 4 ? ahead : capacity / 4;
}

uint64_t kvc_files_excess(struct kvc_files *files)
{
	const uint64_t capacity = files->root->capacity_bytes, ahead = kvc_files_ahead(files);
	const uint64_t bytes = held(files);

	if (capacity == 0 || kvc_usage_is_new(files->root->usage) || bytes <= capacity - ahead)
		return 0;
	return bytes - (capacity - ahead - ahead / 4);
}

/* While it is not known what the root holds: not more than the device has in use. */
static bool fits_unknown(const struct kvc_files *files)
{
	struct kvc_usage usage;

	return kvc_files_device(files, &usage) &&
	       usage.total_bytes - usage.free_bytes + pending(files) <= files->root->capacity_bytes;
}

static bool fits(const struct kvc_files *files)
{
	if (kvc_usage_is_new(files->root->usage))
		return fits_unknown(files);
	return held(files) <= files->root->capacity_bytes;
}

/* As many bytes go as come, where it is not known how many there are; else until they fit. */
static bool make_room(struct kvc_files *files, uint64_t bytes, uint64_t deadline_ns)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	struct kvc_evicted evicted = { 0 };
	bool done = false;

	if (kvc_cleaner_enter(cleaner, deadline_ns))
		return false;
	for (;;) {
		/* Somebody else may have made room meanwhile. */
		done = fits(files) ||
		       (kvc_usage_is_new(files->root->usage) && evicted.bytes >= bytes);
		if (done || kvc_cleaner_evict(files, 0, deadline_ns, &evicted))
			break;
	}
	kvc_cleaner_leave(cleaner);
	return done;
}

/* Where nothing goes there is nothing to do but to wait until the root is counted. */
static bool wait_for_count(struct kvc_files *files, uint64_t deadline_ns)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);

	if (!cleaner->runs)
		return false;
	atomic_fetch_add(&cleaner->scan_waiters, 1);
	kvc_cleaner_kick(cleaner->store);
	while (kvc_usage_is_new(files->root->usage) && kvc_now_ns() < deadline_ns) {
		const struct timespec pause = kvc_timespec(1000000);

		(void)nanosleep(&pause, NULL);
	}
	atomic_fetch_sub(&cleaner->scan_waiters, 1);
	return fits(files);
}

/* A tenant that has its share makes room among what is its own. */
static bool admit_tenant(struct kvc_files *files, uint64_t ns_hash, uint64_t bytes,
			 uint64_t deadline_ns)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	struct kvc_root *root = files->root;
	struct kvc_evicted evicted = { 0 };
	int rc = 0;

	if (!root->tenants || kvc_usage_is_new(root->usage) ||
	    kvc_tenant_room(root, ns_hash) >= bytes)
		return true;
	if (bytes > kvc_tenant_share(root, ns_hash) || !kvc_files_may_evict(files) ||
	    kvc_cleaner_enter(cleaner, deadline_ns))
		return false;
	while (kvc_tenant_room(root, ns_hash) < bytes && !rc)
		rc = kvc_cleaner_evict(files, ns_hash, deadline_ns, &evicted);
	kvc_cleaner_leave(cleaner);
	return rc == 0;
}

bool kvc_files_admit(struct kvc_root *root, uint64_t ns_hash, uint64_t bytes, uint64_t deadline_ns)
{
	struct kvc_files *files = root->files;

	if (!admit_tenant(files, ns_hash, bytes, deadline_ns))
		return false;
	reserve(files, (int64_t)bytes);
	if (root->capacity_bytes == 0)
		return true;
	if (bytes <= root->capacity_bytes) {
		if (fits(files))
			return true;
		if (kvc_files_may_evict(files)) {
			kvc_cleaner_kick(root->store);
			if (make_room(files, bytes, deadline_ns))
				return true;
		}
		if (kvc_usage_is_new(root->usage) && wait_for_count(files, deadline_ns))
			return true;
	}
	reserve(files, -(int64_t)bytes);
	return false;
}

void kvc_files_settle(struct kvc_root *root, uint64_t bytes)
{
	struct kvc_files *files = root->files;

	/* There may be something to take away again. */
	atomic_fetch_add(&files->changes, 1);
	reserve(files, -(int64_t)bytes);
}

void kvc_files_begin_removal(struct kvc_files *files)
{
	reserve(files, 1);
}

void kvc_files_end_removal(struct kvc_files *files)
{
	reserve(files, -1);
}

bool kvc_files_is_pending(const struct kvc_root *root)
{
	return root->files && pending(root->files) > 0;
}

/* ---------------------------------------------------------------- the device */

uint64_t kvc_files_watermark(double percent, const struct kvc_usage *usage)
{
	return (uint64_t)((double)usage->total_bytes * percent / 100.0);
}

/* The watermarks are for roots without a capacity. */
bool kvc_files_has_watermarks(const struct kvc_files *files)
{
	return files->root->capacity_bytes == 0 && kvc_files_may_evict(files);
}

/* Of the store, on the device. */
static size_t with_watermarks_on(const struct kvc_store *store, uint64_t device,
				 struct kvc_files **out)
{
	size_t count = 0;

	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_files *files = store->roots[r]->files;
		struct kvc_usage usage;

		if (files && kvc_files_has_watermarks(files) && kvc_files_device(files, &usage) &&
		    usage.device == device)
			out[count++] = files;
	}
	return count;
}

uint64_t kvc_files_own_on(const struct kvc_store *store, uint64_t device)
{
	struct kvc_files *all[KVC_ROOTS_MAX];
	const size_t count = with_watermarks_on(store, device, all);
	uint64_t sum = 0, bytes;

	for (size_t i = 0; i < count; i++) {
		kvc_usage_total(all[i]->root->usage, &bytes, NULL);
		sum += bytes;
	}
	return sum;
}

/* Beyond the half of what the high watermark leaves, a set does not wait for the cleaner. */
static uint64_t soft_room(const struct kvc_files *files, const struct kvc_usage *usage)
{
	const double high = files->root->store->settings->l3_cleaner_high_watermark;
	const uint64_t limit = kvc_files_watermark((high + 100.0) / 2, usage);
	const uint64_t used = usage->total_bytes - usage->free_bytes;

	if (!kvc_files_has_watermarks(files))
		return UINT64_MAX;
	return used < limit ? limit - used : 0;
}

/* What is being written is not on the device yet, or only a part of it. */
static bool has_min_free(const struct kvc_files *files, const struct kvc_usage *usage)
{
	const uint64_t min_free = files->root->min_free_bytes;

	return min_free == 0 || usage->free_bytes >= min_free + pending(files);
}

/* Others alone have the device above the high mark. */
static bool is_of_others(const struct kvc_files *files, const struct kvc_usage *usage)
{
	const struct kvc_store *store = files->root->store;
	const uint64_t high =
		kvc_files_watermark(store->settings->l3_cleaner_high_watermark, usage);
	const uint64_t used = usage->total_bytes - usage->free_bytes;
	const uint64_t own = kvc_files_own_on(store, usage->device);

	return used >= own && used - own >= high;
}

/* Whether anything comes of it. */
static bool can_help(const struct kvc_files *files, const struct kvc_usage *usage)
{
	return !has_min_free(files, usage) || !is_of_others(files, usage);
}

/* Where nothing may go for it, the cache does not fill the device to its end. */
static bool is_left_to_others(const struct kvc_files *files, const struct kvc_usage *usage,
			      uint64_t bytes)
{
	const struct kvc_store *store = files->root->store;

	if (!kvc_files_has_watermarks(files) || soft_room(files, usage) >= bytes)
		return false;
	/* It has to be known whose it is. */
	for (size_t r = 0; r < store->root_count; r++)
		if (store->roots[r]->files && kvc_usage_is_new(store->roots[r]->usage))
			return false;
	return is_of_others(files, usage);
}

/* Whether an object has room on the device at all, if all of the cache made room for it. */
static bool can_fit(const struct kvc_files *files, const struct kvc_usage *usage, uint64_t bytes)
{
	uint64_t own;

	kvc_usage_total(files->root->usage, &own, NULL);
	return usage->free_bytes + own > files->root->min_free_bytes + bytes;
}

/* What is missing for a set of so many bytes. */
static uint64_t missing_for(const struct kvc_files *files, const struct kvc_usage *usage,
			    uint64_t bytes)
{
	const uint64_t wanted =
		files->root->min_free_bytes ? files->root->min_free_bytes + pending(files) : 0;
	const uint64_t soft = soft_room(files, usage);
	const uint64_t of_free = usage->free_bytes < wanted ? wanted - usage->free_bytes : 0;
	const uint64_t of_room = soft < bytes ? bytes - soft : 0;

	return of_free > of_room ? of_free : of_room;
}

/* The next group of all roots on the device. */
static int evict_coldest(struct kvc_files *files, struct kvc_files *const *peers, size_t count,
			 uint64_t deadline_ns, struct kvc_evicted *out)
{
	struct kvc_files *coldest = count > 1 ? kvc_cleaner_coldest(peers, count, deadline_ns) :
						files;

	return coldest ? kvc_cleaner_evict(coldest, 0, deadline_ns, out) : -ENOENT;
}

bool kvc_files_admit_device(struct kvc_root *root, uint64_t bytes, uint64_t deadline_ns,
			    uint64_t *out_room)
{
	struct kvc_files *files = root->files;
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	struct kvc_evicted evicted = { 0 };
	struct kvc_usage usage;
	bool tight, has_room;

	*out_room = UINT64_MAX;
	if ((root->min_free_bytes == 0 && !kvc_files_has_watermarks(files)) ||
	    !kvc_files_device(files, &usage))
		return true;
	tight = (!has_min_free(files, &usage) || soft_room(files, &usage) < bytes) &&
		can_fit(files, &usage, bytes);
	if (tight && kvc_files_may_evict(files) && can_help(files, &usage) &&
	    kvc_cleaner_enter(cleaner, deadline_ns) == 0) {
		struct kvc_files *peers[KVC_ROOTS_MAX];
		const size_t count = kvc_files_has_watermarks(files) ?
					     with_watermarks_on(root->store, usage.device, peers) :
					     0;
		const uint64_t most = missing_for(files, &usage, bytes) + 2 * bytes;

		kvc_cleaner_kick(root->store);
		/* File systems may free what was removed a little later. */
		while (kvc_files_device(files, &usage) && evicted.bytes < most &&
		       (!has_min_free(files, &usage) || soft_room(files, &usage) < bytes))
			if (evict_coldest(files, peers, count, deadline_ns, &evicted))
				break;
		kvc_cleaner_leave(cleaner);
	}
	/* After something went the device is looked at again for each object: a file system that
	 * frees late, or writers that are faster, do not get the rest of the call unseen. */
	has_room = has_min_free(files, &usage) && !is_left_to_others(files, &usage, bytes);
	if (!has_room || root->min_free_bytes || evicted.objects)
		*out_room = 0;
	else if (soft_room(files, &usage) >= bytes)
		*out_room = soft_room(files, &usage);
	return has_room;
}

bool kvc_files_is_left_to_others(const struct kvc_root *root, uint64_t bytes)
{
	const struct kvc_files *files = root->files;
	struct kvc_usage usage;

	return files && kvc_files_has_watermarks(files) && kvc_files_device(files, &usage) &&
	       is_left_to_others(files, &usage, bytes);
}

bool kvc_files_no_space(struct kvc_root *root, uint64_t bytes, bool again, uint64_t deadline_ns)
{
	struct kvc_files *files = root->files;
	struct kvc_evicted evicted = { 0 };
	struct kvc_cleaner *cleaner;
	struct kvc_usage usage;

	if (!files || !kvc_files_may_evict(files))
		return false;
	/* Others take what is made free. */
	if (again)
		atomic_store(&files->no_help_ns, kvc_now_ns() + NO_HELP_NS);
	if (again || kvc_now_ns() < atomic_load(&files->no_help_ns) ||
	    !kvc_files_device(files, &usage) || !can_fit(files, &usage, bytes))
		return false;
	cleaner = kvc_cleaner_of(files);
	kvc_cleaner_kick(root->store);
	if (kvc_cleaner_enter(cleaner, deadline_ns))
		return false;
	while (evicted.bytes < bytes && kvc_cleaner_evict(files, 0, deadline_ns, &evicted) == 0)
		;
	kvc_cleaner_leave(cleaner);
	return evicted.bytes > 0;
}
