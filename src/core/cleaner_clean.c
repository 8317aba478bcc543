/* SPDX-License-Identifier: Apache-2.0 */
/* kvc_store_clean(): what the cleaner does, now and as far as somebody says. */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/describe.h"
#include "core/log.h"
#include "core/packed.h"
#include "core/pin.h"
#include "core/sized.h"
#include "core/store.h"
#include "core/walk.h"

#include <errno.h>
#include <stdlib.h>

/* What a dry run finds. */
struct plan {
	struct planned {
		uint64_t rank;
		uint64_t bytes;
		uint32_t count;
	} * groups;
	size_t count;
	size_t room;
	struct kvc_files *files;
	bool failed; /* no memory */
};

static void plan_group(void *context, const struct kvc_group *victim, uint64_t bytes)
{
	struct plan *plan = context;

	if (plan->count == plan->room) {
		const size_t room = 2 * plan->room + 1024;
		struct planned *more = realloc(plan->groups, room * sizeof(*more));

		plan->failed |= !more;
		if (!more)
			return;
		plan->groups = more;
		plan->room = room;
	}
	plan->groups[plan->count++] = (struct planned){
		.rank = plan->files->order->rank(victim->stamp, false),
		.bytes = bytes,
		.count = victim->count,
	};
}

static int by_rank(const void *a, const void *b)
{
	const struct planned *x = a, *y = b;

	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int dry_run(struct kvc_files *files, uint64_t bytes, struct kvc_evicted *out)
{
	struct plan plan = { .files = files };
	int rc = kvc_index_refresh(files, 0);

	for (uint32_t h = 0; h < KVC_HASH_FOLDERS && !rc; h++)
		rc = kvc_cleaner_each(files, h, true, plan_group, &plan);
	if (!rc && plan.failed)
		rc = -ENOMEM;
	if (!rc && plan.count > 1)
		qsort(plan.groups, plan.count, sizeof(*plan.groups), by_rank);
	for (size_t i = 0; i < plan.count && !rc && out->bytes < bytes; i++) {
		out->groups++;
		out->objects += plan.groups[i].count;
		out->bytes += plan.groups[i].bytes;
	}
	free(plan.groups);
	return rc;
}

/* Until so many bytes went, or nothing more can. */
static int evict_bytes(struct kvc_files *files, uint64_t bytes, struct kvc_evicted *out)
{
	int rc = 0;

	files->pool.barren_ns = 0;
	while (out->bytes < bytes && !rc)
		rc = kvc_cleaner_evict(files, 0, UINT64_MAX, out);
	return rc == -ENOENT ? 0 : rc;
}

/* Bytes that have to go. */
static uint64_t target(const struct kvc_files *files, const struct kvc_clean_params *params,
		       uint64_t own)
{
	const struct kvc_root *root = files->root;
	struct kvc_usage usage;
	uint64_t most, used;

	if (params->flags & KVC_CLEAN_TO_BYTES)
		return own > params->to_bytes ? own - params->to_bytes : 0;
	if (root->capacity_bytes) {
		most = (uint64_t)((double)root->capacity_bytes * params->to_percent / 100.0);
		return own > most ? own - most : 0;
	}
	if (!kvc_files_device(files, &usage))
		return 0;
	most = kvc_files_watermark(params->to_percent, &usage);
	used = usage.total_bytes - usage.free_bytes;
	return used > most ? used - most : 0;
}

static int clean_files(struct kvc_files *files, const struct kvc_clean_params *params,
		       struct kvc_clean_report *report)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	struct kvc_root *root = files->root;
	const bool dry = params->flags & KVC_CLEAN_DRY_RUN;
	struct kvc_evicted evicted = { 0 };
	uint64_t own, bytes;
	bool helps;
	int rc;

	if (kvc_usage_is_new(root->usage)) {
		rc = kvc_walk_recount(root);
		if (rc)
			return rc;
	}
	rc = kvc_cleaner_enter(cleaner, UINT64_MAX / 2);
	if (rc)
		return rc;
	kvc_usage_total(root->usage, &own, NULL);
	bytes = target(files, params, own);
	/* Others have the space: all that there is would go in vain. */
	helps = bytes <= own || (params->flags & KVC_CLEAN_TO_BYTES);
	if (bytes && helps && dry)
		rc = dry_run(files, bytes, &evicted);
	else if (bytes && helps)
		rc = evict_bytes(files, bytes, &evicted);
	kvc_cleaner_leave(cleaner);
	kvc_usage_total(root->usage, &own, NULL);
	report->groups += evicted.groups;
	report->objects += evicted.objects;
	report->bytes += evicted.bytes;
	report->failed += evicted.failed;
	report->missing_bytes += bytes > evicted.bytes ? bytes - evicted.bytes : 0;
	report->pinned_bytes += kvc_pin_bytes(root);
	report->left_bytes += dry && own >= evicted.bytes ? own - evicted.bytes : own;
	return rc;
}

static int check(const struct kvc_store *store, const struct kvc_clean_params *params,
		 const struct kvc_clean_report *out)
{
	int rc = kvc_struct_check(params, params->size, sizeof(*params), "struct kvc_clean_params");

	if (!rc)
		rc = kvc_struct_output((void *)(uintptr_t)out, out->size, sizeof(*out),
				       "struct kvc_clean_report");
	if (rc)
		return rc;
	if (params->flags & ~(uint32_t)(KVC_CLEAN_DRY_RUN | KVC_CLEAN_TO_BYTES))
		return kvc_fail(-EINVAL, "kvc_store_clean: flags has an unknown bit");
	if (!(params->flags & KVC_CLEAN_TO_BYTES) &&
	    !(params->to_percent >= 0 && params->to_percent <= 100))
		return kvc_fail(-EINVAL, "kvc_store_clean: to_percent is not between 0 and 100");
	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_root *root = store->roots[r];

		rc = kvc_root_check_writable(root);
		if (rc)
			return rc;
		if (!root->files && !root->is_packed)
			return kvc_fail(-ENOTSUP, "%s: plugin %s has no folders to clean",
					root->location, root->backend->module->ops.name);
	}
	return 0;
}

int kvc_cleaner_clean(struct kvc_store *store, const struct kvc_clean_params *params,
		      struct kvc_clean_report *out)
{
	struct kvc_clean_report report = { .size = out->size };
	int rc = check(store, params, out);

	for (size_t r = 0; r < store->root_count && !rc; r++) {
		struct kvc_root *root = store->roots[r];

		rc = root->files ? clean_files(root->files, params, &report) :
				   kvc_packed_clean(root, params, &report);
	}
	if (rc)
		return rc;
	out->groups = report.groups;
	out->objects = report.objects;
	out->bytes = report.bytes;
	out->failed = report.failed;
	out->left_bytes = report.left_bytes;
	out->missing_bytes = report.missing_bytes;
	out->pinned_bytes = report.pinned_bytes;
	return 0;
}
