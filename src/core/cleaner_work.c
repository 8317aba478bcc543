/* SPDX-License-Identifier: Apache-2.0 */
/* Ahead of need, in the thread of the cleaner: roots below their capacity, devices below their
 * watermarks. The rules of the watermarks are those of SGLang's HiCacheNixl; what others have is
 * taken into account before anything goes. */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/store.h"

#include <errno.h>

#define TURN_NS	   (UINT64_C(500) * 1000000)	/* of one root, before others have theirs */
#define BURST_NS   (UINT64_C(2) * 1000000)	/* then a pause as long, when there is no hurry */
#define CORRECT_NS (UINT64_C(300) * 1000000000) /* between two counts that were wrong */
#define SHOW_NS	   (UINT64_C(10) * 1000000000)	/* for a device to show what was removed */

/* Roots on one device that are cleaned together, and what it has. */
struct device {
	struct kvc_files *files[KVC_ROOTS_MAX];
	size_t count;
	struct kvc_usage usage;
};

static uint64_t used_of(const struct device *device)
{
	return device->usage.total_bytes - device->usage.free_bytes;
}

static int evict_one(struct kvc_files *files, struct kvc_evicted *evicted)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	int rc = kvc_cleaner_enter(cleaner, UINT64_MAX / 2);

	if (rc)
		return rc;
	rc = kvc_cleaner_evict(files, 0, UINT64_MAX, evicted);
	kvc_cleaner_leave(cleaner);
	return rc;
}

/* Those who read and write have the device for half of the time, unless they would have to wait. */
static void pause_between(uint64_t *burst_ns, bool hurry)
{
	const uint64_t now_ns = kvc_now_ns();
	const struct timespec pause = kvc_timespec(BURST_NS);

	if (now_ns - *burst_ns < BURST_NS)
		return;
	if (!hurry)
		(void)nanosleep(&pause, NULL);
	*burst_ns = kvc_now_ns();
}

/* ---------------------------------------------------------------- capacity */

static bool work_capacity(struct kvc_files *files)
{
	const uint64_t end_ns = kvc_now_ns() + TURN_NS;
	struct kvc_evicted evicted = { 0 };
	uint64_t burst_ns = kvc_now_ns(), excess;

	while ((excess = kvc_files_excess(files)) > 0 && kvc_now_ns() < end_ns) {
		if (evict_one(files, &evicted))
			break;
		pause_between(&burst_ns, excess > kvc_files_ahead(files) / 2);
	}
	return evicted.groups > 0;
}

/* Counts that cannot be are made again, before anything goes by them. */
static void correct_counts(struct kvc_files *files)
{
	const struct kvc_root *root = files->root;
	struct kvc_usage usage;
	uint64_t bytes;

	if (kvc_usage_is_new(root->usage))
		return;
	kvc_usage_total(root->usage, &bytes, NULL);
	if (kvc_files_device(files, &usage) && bytes > usage.total_bytes)
		atomic_store(&files->miscounted, true);
	if (!atomic_exchange(&files->miscounted, false))
		return;
	/* Files of others in hash folders are counted, and do not go. */
	if (files->corrected_ns && kvc_now_ns() - files->corrected_ns < CORRECT_NS)
		return;
	files->corrected_ns = kvc_now_ns();
	kvc_log(KVC_LOG_WARNING,
		"%s: %llu bytes are counted, and much less is there: it is counted again",
		root->location, (unsigned long long)bytes);
	kvc_usage_drop(root->usage);
}

/* ---------------------------------------------------------------- a device */

static void tell(struct kvc_files *files, enum kvc_cleaner_told what, const struct device *device,
		 uint64_t own_bytes)
{
	const struct kvc_settings *settings = files->root->store->settings;

	if (files->told == what)
		return;
	files->told = what;
	if (what == KVC_TOLD_OTHERS)
		kvc_log(KVC_LOG_WARNING,
			"%s: its file system is at %.1f%%, over l3_cleaner_high_watermark (%g), "
			"but only %llu bytes are this cache's: removing them would not help, "
			"nothing is removed, and beyond %g%% nothing is stored; make room there, "
			"or set `capacity`",
			files->root->location,
			100.0 * (double)used_of(device) / (double)device->usage.total_bytes,
			settings->l3_cleaner_high_watermark, (unsigned long long)own_bytes,
			(settings->l3_cleaner_high_watermark + 100.0) / 2);
	else if (what == KVC_TOLD_MIN_FREE)
		kvc_log(KVC_LOG_WARNING,
			"%s: its file system has %llu bytes free, less than min_free (%llu), but "
			"only %llu bytes are this cache's: removing them would not help, nothing "
			"is removed",
			files->root->location, (unsigned long long)device->usage.free_bytes,
			(unsigned long long)files->root->min_free_bytes,
			(unsigned long long)own_bytes);
	else
		kvc_log(KVC_LOG_INFO, "%s: its file system has room for the cache again",
			files->root->location);
}

static struct kvc_files *coldest(struct device *device)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(device->files[0]);
	struct kvc_files *files;

	if (device->count == 1)
		return device->files[0];
	if (kvc_cleaner_enter(cleaner, UINT64_MAX / 2))
		return NULL;
	files = kvc_cleaner_coldest(device->files, device->count, UINT64_MAX);
	kvc_cleaner_leave(cleaner);
	return files;
}

/* Groups go until `enough` says so or as many bytes went as were to; a file system may show only
 * later what is free. */
static uint64_t round_of(struct device *device, uint64_t bytes,
			 bool (*enough)(const struct device *device))
{
	const uint64_t end_ns = kvc_now_ns() + TURN_NS;
	struct kvc_evicted evicted = { 0 };
	uint64_t burst_ns = kvc_now_ns();

	while (evicted.bytes < bytes && kvc_now_ns() < end_ns) {
		struct kvc_files *files = coldest(device);

		if (!files || !kvc_files_device(files, &device->usage) || enough(device) ||
		    evict_one(files, &evicted))
			break;
		pause_between(&burst_ns, false);
	}
	return evicted.bytes;
}

static bool is_below_low(const struct device *device)
{
	const struct kvc_settings *settings = device->files[0]->root->store->settings;
	const uint64_t high =
		kvc_files_watermark(settings->l3_cleaner_high_watermark, &device->usage);
	const uint64_t own = kvc_files_own_on(device->files[0]->root->store, device->usage.device);

	/* Or others have filled it meanwhile, so that nothing comes of it any more. */
	return used_of(device) <
		       kvc_files_watermark(settings->l3_cleaner_low_watermark, &device->usage) ||
	       (used_of(device) >= own && used_of(device) - own >= high);
}

/* What was removed is not shown yet. */
static bool is_waited_for(const struct kvc_files *files, uint64_t used)
{
	return kvc_now_ns() < files->hot_until_ns &&
	       used + files->hot_removed / 2 > files->hot_used;
}

static bool work_watermarks(struct device *device)
{
	struct kvc_files *first = device->files[0];
	const struct kvc_settings *settings = first->root->store->settings;
	const uint64_t high =
		kvc_files_watermark(settings->l3_cleaner_high_watermark, &device->usage);
	const uint64_t low =
		kvc_files_watermark(settings->l3_cleaner_low_watermark, &device->usage);
	const uint64_t used = used_of(device);
	const uint64_t own = kvc_files_own_on(first->root->store, device->usage.device);

	if (used >= high)
		first->hot = true;
	if (used < low)
		first->hot = false;
	if (!first->hot) {
		tell(first, KVC_TOLD_NOTHING, device, own);
		return false;
	}
	if (used >= own && used - own >= high) {
		tell(first, KVC_TOLD_OTHERS, device, own);
		return false;
	}
	tell(first, KVC_TOLD_NOTHING, device, own);
	if (is_waited_for(first, used))
		return false;
	first->hot_used = used;
	first->hot_removed = round_of(device, used - low + 1, is_below_low);
	first->hot_until_ns = kvc_now_ns() + SHOW_NS;
	return first->hot_removed > 0;
}

/* ---------------------------------------------------------------- min_free */

static uint64_t free_wanted(const struct device *device)
{
	const struct kvc_files *files = device->files[0];
	const uint64_t min_free = files->root->min_free_bytes;
	const uint64_t batch = atomic_load(&files->batch_bytes);
	const uint64_t part = min_free / 16;

	return min_free + (batch > part && batch < min_free ? batch : part);
}

static bool has_enough_free(const struct device *device)
{
	return device->usage.free_bytes >=
	       free_wanted(device) + device->files[0]->root->min_free_bytes / 64;
}

static bool work_min_free(struct device *device)
{
	struct kvc_files *files = device->files[0];
	const uint64_t wanted = free_wanted(device), have = device->usage.free_bytes;
	uint64_t own;

	if (have >= wanted) {
		if (files->told == KVC_TOLD_MIN_FREE)
			tell(files, KVC_TOLD_NOTHING, device, 0);
		return false;
	}
	kvc_usage_total(files->root->usage, &own, NULL);
	if (have < files->root->min_free_bytes && have + own < files->root->min_free_bytes) {
		tell(files, KVC_TOLD_MIN_FREE, device, own);
		return false;
	}
	return round_of(device, wanted - have + files->root->min_free_bytes / 64, has_enough_free) >
	       0;
}

/* ---------------------------------------------------------------- */

/* What is left was stored no earlier than what went last, as a rule. */
static void tell_oldest(struct kvc_files *files)
{
	const int64_t went_ns = atomic_load(&files->went_modified_ns);
	const int64_t age_ns = kvc_wall_ns() - went_ns;

	if (went_ns && age_ns >= 0)
		atomic_store_explicit(&files->root->oldest_live_s, (uint64_t)age_ns / 1000000000u,
				      memory_order_relaxed);
}

/* The roots with watermarks on the device of all[at], if it is the first of them. */
static bool collect(struct kvc_files **all, size_t count, size_t at, struct device *out)
{
	struct kvc_usage usage;

	*out = (struct device){ .count = 0 };
	if (!kvc_files_device(all[at], &out->usage))
		return false;
	for (size_t i = 0; i < count; i++) {
		if (!kvc_files_has_watermarks(all[i]) || !atomic_load(&all[i]->is_cleaner) ||
		    !kvc_files_device(all[i], &usage) || usage.device != out->usage.device)
			continue;
		if (i < at)
			return false;
		/* What is there is to be known first. */
		if (kvc_usage_is_new(all[i]->root->usage))
			return false;
		out->files[out->count++] = all[i];
	}
	return out->count > 0;
}

bool kvc_cleaner_work(struct kvc_cleaner *cleaner, struct kvc_files **all, size_t count)
{
	struct device device;
	bool any = false;

	for (size_t i = 0; i < count && !kvc_cleaner_is_stopped(cleaner); i++) {
		if (!kvc_files_may_evict(all[i]) || !atomic_load(&all[i]->is_cleaner))
			continue;
		correct_counts(all[i]);
		if (all[i]->root->capacity_bytes)
			any |= work_capacity(all[i]);
		else if (collect(all, count, i, &device))
			any |= work_watermarks(&device);
		device.files[0] = all[i];
		device.count = 1;
		if (all[i]->root->min_free_bytes && kvc_files_device(all[i], &device.usage))
			any |= work_min_free(&device);
		tell_oldest(all[i]);
	}
	return any;
}
