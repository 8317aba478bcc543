/* SPDX-License-Identifier: Apache-2.0 */
#include "core/candidate.h"

#include <stddef.h>
#include <string.h>

#define SEEN_MAX    65536u
#define RESERVE_MIN 64u

uint64_t kvc_order_reserve(uint64_t objects)
{
	const uint64_t few = objects / 16 < RESERVE_MIN ? objects / 16 : RESERVE_MIN;

	return objects / 100 > few ? objects / 100 : few;
}

void kvc_candidates_init(struct kvc_candidates *candidates, const struct kvc_order *order)
{
	candidates->order = order;
	candidates->seen = 0;
	candidates->seen_new = 0;
	candidates->lists[0].count = 0;
	candidates->lists[1].count = 0;
}

static bool new_ones(const struct kvc_candidates *candidates)
{
	return candidates->order->part > 0 &&
	       candidates->seen_new * 100 >= candidates->seen * candidates->order->part;
}

uint64_t kvc_candidates_rank(const struct kvc_candidates *candidates, uint64_t stamp)
{
	return candidates->order->rank(stamp, new_ones(candidates));
}

/* Into its place; of too many the one that would go last is dropped. */
static void insert(struct kvc_candidate_list *list, struct kvc_candidate candidate)
{
	struct kvc_candidate *all = list->list;
	unsigned at = 0, end = list->count;

	while (at < end) {
		const unsigned middle = at + (end - at) / 2;

		if (all[middle].rank > candidate.rank)
			at = middle + 1;
		else
			end = middle;
	}
	/* It was seen before, and is as it was. */
	for (unsigned i = at; i < list->count && all[i].rank == candidate.rank; i++)
		if (all[i].object == candidate.object)
			return;
	if (list->count < KVC_CANDIDATES) {
		memmove(&all[at + 1], &all[at], (list->count - at) * sizeof(*all));
		list->count++;
	} else if (at == 0) {
		return;
	} else {
		at--;
		memmove(&all[0], &all[1], at * sizeof(*all));
	}
	all[at] = candidate;
}

void kvc_candidates_see(struct kvc_candidates *candidates, uint64_t object, uint64_t stamp)
{
	const struct kvc_order *order = candidates->order;
	struct kvc_candidate candidate = { .object = object, .stamp = stamp };

	if (order->part > 0) {
		if (candidates->seen >= SEEN_MAX) {
			candidates->seen /= 2;
			candidates->seen_new /= 2;
		}
		candidates->seen++;
		candidates->seen_new += kvc_order_new_ones(order, &stamp, 1);
	}
	candidate.rank = kvc_candidates_rank(candidates, stamp);
	insert(&candidates->lists[new_ones(candidates)], candidate);
}

bool kvc_candidates_take(struct kvc_candidates *candidates, struct kvc_candidate *out)
{
	struct kvc_candidate_list *list = &candidates->lists[new_ones(candidates)];

	if (list->count == 0)
		return false;
	*out = list->list[--list->count];
	return true;
}

void kvc_candidates_put_back(struct kvc_candidates *candidates, struct kvc_candidate candidate,
			     uint64_t rank)
{
	candidate.rank = rank;
	insert(&candidates->lists[new_ones(candidates)], candidate);
}
