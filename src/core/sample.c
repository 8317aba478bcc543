/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sample.h"

#define RESERVE_MIN 64u

uint64_t kvc_sample_reserve(uint64_t objects)
{
	const uint64_t few = objects / 16 < RESERVE_MIN ? objects / 16 : RESERVE_MIN;

	return objects / 100 > few ? objects / 100 : few;
}

void kvc_sample_begin(struct kvc_sample *sample, const struct kvc_order *order, unsigned count)
{
	sample->order = order;
	sample->count = count;
	sample->at = 0;
	sample->new_ones = kvc_order_new_ones(order, sample->stamps, count);
	for (unsigned i = 0; i < count; i++) {
		sample->ranks[i] = order->rank(sample->stamps[i], sample->new_ones);
		sample->which[i] = (uint8_t)i;
	}
}

/* The first in order of those not looked at comes to sample->at. */
static void bring_first(struct kvc_sample *sample)
{
	const unsigned at = sample->at;
	const uint8_t moved = sample->which[at];
	unsigned first = at;

	for (unsigned k = at + 1; k < sample->count; k++)
		if (sample->ranks[sample->which[k]] < sample->ranks[sample->which[first]])
			first = k;
	sample->which[at] = sample->which[first];
	sample->which[first] = moved;
}

int kvc_sample_choose(struct kvc_sample *sample, uint64_t now, const struct kvc_sample_asked *asked,
		      void *context)
{
	const struct kvc_order *order = sample->order;
	uint64_t best = UINT64_MAX;
	int chosen = -1;

	for (unsigned seen = 0; seen < KVC_ORDER_OLDEST && sample->at < sample->count;) {
		uint64_t latest, stays, rank;
		unsigned i;

		bring_first(sample);
		i = sample->which[sample->at++];
		latest = sample->stamps[i];
		if (!asked->look(context, i, &latest))
			continue;
		rank = order->rank(latest, sample->new_ones);
		if (rank < best) {
			stays = order->spared(latest, now);
			if (stays != KVC_ORDER_GOES) {
				asked->spare(context, i, stays);
				continue;
			}
			best = rank;
			chosen = (int)i;
		}
		seen++;
		if (rank == sample->ranks[i])
			break; /* all of its group is as old: no other can be older */
	}
	return chosen;
}
