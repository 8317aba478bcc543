/* SPDX-License-Identifier: Apache-2.0 */
#include "core/victim.h"

#include <stddef.h>
#include <string.h>

#define SEEN_MAX    65536u
#define FIRST	    64u /* windows, when nothing is known */
#define BEGIN	    16u /* until as much was seen as there is */
#define AGED_PART   8u	/* of as many uses as there are objects */
#define RESERVE_MIN 64u

uint64_t kvc_order_reserve(uint64_t objects)
{
	const uint64_t few = objects / 16 < RESERVE_MIN ? objects / 16 : RESERVE_MIN;

	return objects / 100 > few ? objects / 100 : few;
}

void kvc_victims_init(struct kvc_victims *victims, const struct kvc_order *order)
{
	victims->order = order;
	victims->seen = 0;
	victims->seen_new = 0;
	victims->looked = 0;
	victims->last = 0;
	victims->lists[0].count = 0;
	victims->lists[1].count = 0;
}

unsigned kvc_victims_windows(struct kvc_victims *victims, uint64_t objects, uint64_t now,
			     bool *out_scattered)
{
	unsigned windows = 1;

	if (now - victims->last > objects / AGED_PART * KVC_STAMP_STEP)
		victims->looked = 0;
	*out_scattered = victims->looked < objects;
	if (*out_scattered)
		windows = victims->looked == 0 ? FIRST : BEGIN;
	victims->last = now;
	victims->looked += windows * KVC_VICTIM_LOOKS;
	return windows;
}

static bool new_ones(const struct kvc_victims *victims)
{
	return victims->order->part > 0 &&
	       victims->seen_new * 100 >= victims->seen * victims->order->part;
}

uint64_t kvc_victims_rank(const struct kvc_victims *victims, uint64_t stamp)
{
	return victims->order->rank(stamp, new_ones(victims));
}

/* Into its place; of too many the one that would go last is dropped. */
static void insert(struct kvc_victim_list *list, struct kvc_victim victim)
{
	struct kvc_victim *all = list->list;
	unsigned at = 0, end = list->count;

	while (at < end) {
		const unsigned middle = at + (end - at) / 2;

		if (all[middle].rank > victim.rank)
			at = middle + 1;
		else
			end = middle;
	}
	/* It was seen before, and is as it was. */
	for (unsigned i = at; i < list->count && all[i].rank == victim.rank; i++)
		if (all[i].object == victim.object)
			return;
	if (list->count < KVC_VICTIMS) {
		memmove(&all[at + 1], &all[at], (list->count - at) * sizeof(*all));
		list->count++;
	} else if (at == 0) {
		return;
	} else {
		at--;
		memmove(&all[0], &all[1], at * sizeof(*all));
	}
	all[at] = victim;
}

void kvc_victims_see(struct kvc_victims *victims, uint64_t object, uint64_t stamp)
{
	const struct kvc_order *order = victims->order;
	struct kvc_victim victim = { .object = object, .stamp = stamp };

	if (order->part > 0) {
		if (victims->seen >= SEEN_MAX) {
			victims->seen /= 2;
			victims->seen_new /= 2;
		}
		victims->seen++;
		victims->seen_new += kvc_order_new_ones(order, &stamp, 1);
	}
	victim.rank = kvc_victims_rank(victims, stamp);
	insert(&victims->lists[new_ones(victims)], victim);
}

bool kvc_victims_take(struct kvc_victims *victims, struct kvc_victim *out)
{
	struct kvc_victim_list *list = &victims->lists[new_ones(victims)];

	if (list->count == 0)
		return false;
	*out = list->list[--list->count];
	return true;
}

void kvc_victims_put_back(struct kvc_victims *victims, struct kvc_victim victim, uint64_t rank)
{
	victim.rank = rank;
	insert(&victims->lists[new_ones(victims)], victim);
}
