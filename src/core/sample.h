/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of some objects, drawn at random, have to go: the packed layout and `kvcellar simulate` ask
 * the same functions. What an object is, and whether others belong to its group, only the caller
 * knows.
 *
 * Not thread-safe; a sample belongs to one caller.
 */
#ifndef KVC_CORE_SAMPLE_H
#define KVC_CORE_SAMPLE_H

#include "core/order.h"

#include <stdbool.h>
#include <stdint.h>

/* How many objects are kept free ahead of need, of so many. */
uint64_t kvc_sample_reserve(uint64_t objects);

/*
 * struct kvc_sample - the caller fills stamps[0..count), then kvc_sample_begin().
 * @which  what was drawn first is 0, and so on: the order of the ranks
 */
struct kvc_sample {
	const struct kvc_order *order;
	uint64_t stamps[KVC_ORDER_SAMPLES];
	uint64_t ranks[KVC_ORDER_SAMPLES];
	uint8_t which[KVC_ORDER_SAMPLES];
	unsigned count;
	unsigned at; /* those before it have been looked at */
	bool new_ones;
};

/*
 * struct kvc_sample_asked - what choosing asks about drawn object number i.
 * @look   false: it is not there any more, or is not what its stamp was read of. Else *latest, which
 *         holds its stamp, becomes the one of its group that stays longest
 * @spare  its group stays, with this stamp
 */
struct kvc_sample_asked {
	bool (*look)(void *context, unsigned i, uint64_t *latest);
	void (*spare)(void *context, unsigned i, uint64_t stamp);
};

void kvc_sample_begin(struct kvc_sample *sample, const struct kvc_order *order, unsigned count);

/* The number of the drawn object whose group goes next, or -1: none of the rest does. */
int kvc_sample_choose(struct kvc_sample *sample, uint64_t now, const struct kvc_sample_asked *asked,
		      void *context);

#endif
