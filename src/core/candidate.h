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
#ifndef KVC_CORE_CANDIDATE_H
#define KVC_CORE_CANDIDATE_H

#include "core/order.h"

#include <stdbool.h>
#include <stdint.h>

#define KVC_CANDIDATES	    256u /* that are kept */
#define KVC_CANDIDATE_LOOKS 32u	 /* objects to look at for each one that is to go */

/*
 * struct kvc_candidate - @object  the caller's
 * @stamp  as it was seen; @rank  of its group as far as it is known
 */
struct kvc_candidate {
	uint64_t object;
	uint64_t stamp;
	uint64_t rank;
};

struct kvc_candidate_list {
	unsigned count;
	struct kvc_candidate list[KVC_CANDIDATES]; /* the last one goes first */
};

struct kvc_candidates {
	const struct kvc_order *order;
	uint32_t seen;			    /* lately */
	uint32_t seen_new;		    /* of these: never used again */
	struct kvc_candidate_list lists[2]; /* [1] while those never used again go */
};

void kvc_candidates_init(struct kvc_candidates *candidates, const struct kvc_order *order);

/* An object was looked at. */
void kvc_candidates_see(struct kvc_candidates *candidates, uint64_t object, uint64_t stamp);

/*
 * kvc_candidates_take - the one that goes first, which is no candidate any more. The caller looks
 * whether it is still there with this stamp, and whether all of its group has this rank:
 * kvc_candidates_rank(). If it has a later one, kvc_candidates_put_back() with that. False: there
 * is none; see some more.
 */
bool kvc_candidates_take(struct kvc_candidates *candidates, struct kvc_candidate *out);
void kvc_candidates_put_back(struct kvc_candidates *candidates, struct kvc_candidate candidate,
			     uint64_t rank);

/* What a stamp is in the order of now. */
uint64_t kvc_candidates_rank(const struct kvc_candidates *candidates, uint64_t stamp);

/* How many objects are kept free ahead of need, of so many. */
uint64_t kvc_order_reserve(uint64_t objects);

#endif
