/* SPDX-License-Identifier: Apache-2.0 */
/* When the groups of roots of files are used: what the data path notes, for the cleaner. */
#include "core/cleaner_internal.h"

#include "core/ghost.h"
#include "core/store.h"
#include "core/xfer.h"

#define ANCESTORS_MAX 4096u /* of one call that become as young as what hangs on them */

static struct kvc_stamps *stamps_of(const struct kvc_root *root)
{
	return root->files ? root->files->stamps : NULL;
}

static bool is_noted(const struct kvc_request *request)
{
	return (request->op == KVC_GET || request->op == KVC_SET) && !request->packed &&
	       stamps_of(request->root);
}

/*
 * Notes a use at `now` if it is worth it; *parent gets what is known to be before the group. False:
 * there was nothing to note. A group without an entry was used at a time that only its file knows:
 * the order that goes by the time of storing leaves it at that.
 */
static bool note_use(struct kvc_files *files, uint64_t g, uint64_t now, uint64_t *parent)
{
	const struct kvc_order *order = files->order;
	const uint64_t objects = atomic_load_explicit(&files->objects, memory_order_relaxed);
	struct kvc_stamp known = { 0 };
	uint64_t stamp;

	if (kvc_stamps_find(files->stamps, g, &known)) {
		*parent = *parent ? *parent : known.parent;
		if (!kvc_order_is_due(known.stamp, now, objects))
			return false;
	} else {
		known.stamp = order->stored(now - KVC_STAMP_STEP, false);
	}
	stamp = order->used(known.stamp, now);
	if (stamp == known.stamp)
		return false;
	kvc_stamps_note(files->stamps, g, (struct kvc_stamp){ stamp, *parent });
	return true;
}

/* What the first page of a call hangs on, up to the first that was used just now. */
static void note_ancestors(const struct kvc_store *store, const struct kvc_request *request)
{
	struct kvc_stamp known = { 0 };
	uint64_t g = request->parent_g;

	if (g == 0 && kvc_stamps_find(request->root->files->stamps, request->g, &known))
		g = known.parent;
	for (unsigned i = 0; g && i < ANCESTORS_MAX; i++) {
		const struct kvc_root *root = kvc_store_route(store, g);
		struct kvc_stamps *stamps = stamps_of(root);
		uint64_t parent = 0;

		/* Looked at first: taking a time is for those that get it. */
		if (!stamps ||
		    (kvc_stamps_find(stamps, g, &known) &&
		     !kvc_order_is_due(known.stamp, kvc_stamps_now(stamps) + KVC_STAMP_STEP,
				       atomic_load_explicit(&root->files->objects,
							    memory_order_relaxed))) ||
		    !note_use(root->files, g, kvc_stamps_take(stamps, 1), &parent))
			return;
		g = parent;
	}
}

void kvc_stamp_requests(struct kvc_store *store, struct kvc_request *requests, size_t count)
{
	uint64_t next[KVC_ROOTS_MAX] = { 0 }, last_g = 0;
	uint32_t counts[KVC_ROOTS_MAX] = { 0 };
	bool any = false;

	for (size_t i = 0; i < count; i++) {
		struct kvc_request *request = &requests[i];

		if (request->packed)
			continue;
		request->stamp = 0;
		if (!is_noted(request))
			continue;
		/* Objects of one page are one use of it. */
		if (!any || request->g != last_g)
			counts[kvc_store_root_index(store, request->root)]++;
		last_g = request->g;
		any = true;
	}
	if (!any)
		return;
	for (size_t r = 0; r < store->root_count; r++)
		if (counts[r])
			next[r] = kvc_stamps_take(store->roots[r]->files->stamps, counts[r]);
	any = false;
	for (size_t i = 0; i < count; i++) {
		struct kvc_request *request = &requests[i];

		if (!is_noted(request))
			continue;
		if (!any || request->g != last_g) {
			const size_t r = kvc_store_root_index(store, request->root);

			request->stamp = next[r];
			next[r] -= KVC_STAMP_STEP;
			kvc_stamps_prefetch(store->roots[r]->files->stamps, request->g);
		}
		last_g = request->g;
		any = true;
	}
	for (size_t i = 0; i < count; i++)
		if (requests[i].begins && requests[i].stamp && is_noted(&requests[i]))
			note_ancestors(store, &requests[i]);
}

void kvc_stamp_used(const struct kvc_request *request, bool is_new)
{
	const struct kvc_root *root = request->root;
	struct kvc_files *files = root->files;
	uint64_t stamp, parent = request->parent_g;

	if (!request->stamp || !is_noted(request))
		return;
	if (!is_new) {
		(void)note_use(files, request->g, request->stamp, &parent);
		return;
	}
	stamp = files->order->stored(request->stamp,
				     files->order->part && kvc_ghost_has(root->ghosts, request->g));
	kvc_stamps_note(files->stamps, request->g, (struct kvc_stamp){ stamp, parent });
}
