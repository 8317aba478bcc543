/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding what goes first without an order of everything: who has to evict goes over the objects,
 * a few for each one that goes, and keeps the first ones in order of those that it has seen. The
 * packed layout and `kvcellar simulate` ask the same functions. docs/eviction.md has what they are
 * worth.
 *
 * What an object is only the caller knows, as is whether it is still there: a candidate may have
 * gone or been used since it was seen. Not thread-safe.
 */
#ifndef KVC_CORE_VICTIM_H
#define KVC_CORE_VICTIM_H

#include "core/order.h"

#include <stdbool.h>
#include <stdint.h>

#define KVC_VICTIMS	 256u /* that are kept */
#define KVC_VICTIM_LOOKS 32u  /* objects to look at for each one that is to go */

/*
 * struct kvc_victim - @object  the caller's
 * @stamp  as it was seen; @rank  of its group as far as it is known
 */
struct kvc_victim {
	uint64_t object;
	uint64_t stamp;
	uint64_t rank;
};

struct kvc_victim_list {
	unsigned count;
	struct kvc_victim list[KVC_VICTIMS]; /* the last one goes first */
};

struct kvc_victims {
	const struct kvc_order *order;
	uint32_t seen;			 /* lately */
	uint32_t seen_new;		 /* of these: never used again */
	uint64_t looked;		 /* objects, since what was seen said nothing any more */
	uint64_t last;			 /* logical time of the last look */
	struct kvc_victim_list lists[2]; /* [1] while those never used again go */
};

void kvc_victims_init(struct kvc_victims *victims, const struct kvc_order *order);

/*
 * kvc_victims_windows - at how many windows of KVC_VICTIM_LOOKS objects in a row to look before the
 * next kvc_victims_take(), of `objects` at the logical time `now`. *out_scattered: windows anywhere
 * instead of the next ones. Neighbours were often stored together: until as much was seen as there
 * is, what lies next may be the best of all that is known, and still be hot.
 */
unsigned kvc_victims_windows(struct kvc_victims *victims, uint64_t objects, uint64_t now,
			     bool *out_scattered);

/* An object was looked at. */
void kvc_victims_see(struct kvc_victims *victims, uint64_t object, uint64_t stamp);

/*
 * kvc_victims_take - the one that goes first, which is no candidate any more. The caller looks
 * whether it is still there with this stamp, and whether all of its group has this rank:
 * kvc_victims_rank(). If it has a later one, kvc_victims_put_back() with that. False: there is
 * none; see some more.
 */
bool kvc_victims_take(struct kvc_victims *victims, struct kvc_victim *out);
void kvc_victims_put_back(struct kvc_victims *victims, struct kvc_victim victim, uint64_t rank);

/* What a stamp is in the order of now. */
uint64_t kvc_victims_rank(const struct kvc_victims *victims, uint64_t stamp);

/* How many objects are kept free ahead of need, of so many. */
uint64_t kvc_order_reserve(uint64_t objects);

#endif
