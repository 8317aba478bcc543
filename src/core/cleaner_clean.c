/* SPDX-License-Identifier: Apache-2.0 */
/* kvc_store_clean(): what the cleaner does, now and as far as somebody says. */
#include "core/cleaner_internal.h"

#include "core/bytes.h"
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
#include <string.h>

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

/* Of one root. */
struct goal {
	uint64_t own;
	uint64_t most;	 /* of it that may stay; UINT64_MAX: it goes by its device */
	uint64_t bytes;	 /* that are to go */
	uint64_t vain;	 /* that would have to go and are others' */
	uint64_t device; /* its number */
	uint64_t used;	 /* there */
	uint64_t allowed;
};

static int find_goal(struct kvc_root *root, const struct kvc_clean_params *params,
		     struct goal *goal)
{
	struct kvc_usage usage = { .size = sizeof(usage) };
	const double part = params->to_percent / 100.0;
	int rc = root->files && kvc_usage_is_new(root->usage) ? kvc_walk_recount(root) : 0;

	if (rc)
		return rc;
	*goal = (struct goal){ .most = UINT64_MAX };
	kvc_usage_total(root->usage, &goal->own, NULL);
	if (!root->files)
		rc = kvc_packed_held(root, &goal->own);
	if (rc)
		return rc;
	if (params->flags & KVC_CLEAN_TO_BYTES)
		goal->most = params->to_bytes;
	else if (root->capacity_bytes)
		goal->most = (uint64_t)((double)root->capacity_bytes * part);
	if (goal->most != UINT64_MAX) {
		goal->bytes = kvc_bytes_less(goal->own, goal->most);
		return 0;
	}
	rc = root->backend->module->ops.usage(root->handle, &usage);
	if (rc < 0)
		return kvc_fail(rc, "%s: how full its device is cannot be told: %s", root->location,
				strerror(-rc));
	goal->device = usage.device;
	goal->used = usage.total_bytes - usage.free_bytes;
	goal->allowed = kvc_files_watermark(params->to_percent, &usage);
	return 0;
}

/* Roots of one device share what has to go there. If it is more than they have, others have the
 * space: all that there is would go in vain. */
static void share_device(struct goal *goals, size_t count, size_t at)
{
	struct goal *goal = &goals[at];
	const uint64_t wanted = kvc_bytes_less(goal->used, goal->allowed);
	uint64_t own = 0;
	bool is_first = true;

	if (goal->most != UINT64_MAX)
		return;
	for (size_t i = 0; i < count; i++) {
		if (goals[i].most != UINT64_MAX || goals[i].device != goal->device)
			continue;
		own += goals[i].own;
		is_first &= i >= at;
	}
	if (wanted > own)
		goal->vain = is_first ? wanted : 0;
	else if (wanted)
		goal->bytes = (uint64_t)((double)wanted * (double)goal->own / (double)own) + 1;
	goal->bytes = goal->bytes < goal->own ? goal->bytes : goal->own;
}

static int clean_files(struct kvc_files *files, const struct goal *goal, bool dry,
		       struct kvc_clean_report *report)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	struct kvc_root *root = files->root;
	struct kvc_evicted evicted = { 0 };
	uint64_t own;
	int rc = kvc_cleaner_enter(cleaner, UINT64_MAX / 2);

	if (rc)
		return rc;
	if (goal->bytes && dry)
		rc = dry_run(files, goal->bytes, &evicted);
	else if (goal->bytes)
		rc = evict_bytes(files, goal->bytes, &evicted);
	kvc_cleaner_leave(cleaner);
	kvc_usage_total(root->usage, &own, NULL);
	report->groups += evicted.groups;
	report->objects += evicted.objects;
	report->bytes += evicted.bytes;
	report->failed += evicted.failed;
	/* Others may have stored more meanwhile. */
	report->missing_bytes += dry || goal->most == UINT64_MAX ?
					 kvc_bytes_less(goal->bytes, evicted.bytes) :
					 kvc_bytes_less(own, goal->most);
	report->pinned_bytes += kvc_pin_bytes(root);
	report->left_bytes += dry ? kvc_bytes_less(own, evicted.bytes) : own;
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
	const bool dry = params->flags & KVC_CLEAN_DRY_RUN;
	struct kvc_clean_report report = { .size = out->size };
	struct goal goals[KVC_ROOTS_MAX];
	int rc = check(store, params, out);

	for (size_t r = 0; r < store->root_count && !rc; r++)
		rc = find_goal(store->roots[r], params, &goals[r]);
	for (size_t r = 0; r < store->root_count && !rc; r++)
		share_device(goals, store->root_count, r);
	for (size_t r = 0; r < store->root_count && !rc; r++) {
		struct kvc_root *root = store->roots[r];

		rc = root->files ? clean_files(root->files, &goals[r], dry, &report) :
				   kvc_packed_clean(root, goals[r].bytes, dry, &report);
		report.missing_bytes += goals[r].vain;
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
