/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of several objects goes first when there are too many: the policies, for both storage
 * layouts and for `kvcellar simulate`. docs/eviction.md has what they are worth.
 *
 * An object has a stamp: a logical time, in steps of KVC_STAMP_STEP, and below that bits in which a
 * policy notes what it wants to know besides. Every use takes a new time; the pages of one call get
 * theirs so that the first of the prefix is the newest: a chain goes from its end. Nothing is kept
 * in order: who has to evict looks at some objects and takes what is first among them.
 *
 * All functions are pure and thread-safe.
 */
#ifndef KVC_CORE_ORDER_H
#define KVC_CORE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#define KVC_STAMP_STEP	     8u
#define KVC_STAMP_NOTES	     (KVC_STAMP_STEP - 1)
#define KVC_ORDER_GOES	     0u	 /* no stamp */
#define KVC_ORDER_TOUCH_PART 64u /* of the objects: a use sooner after the last is not noted */

/*
 * struct kvc_order - a policy.
 * @stored   the stamp of an object stored at `now`. returned: it was evicted not long ago
 * @used     the stamp of one used at `now`; the same one: there is nothing to note
 * @rank     who goes first: the lowest. new_ones: those go that have not been used again
 * @part     the share of objects in percent from which on new_ones is true; 0: never
 * @spared   of the one that is first: KVC_ORDER_GOES, or the stamp with which it stays
 */
struct kvc_order {
	const char *name;
	uint64_t (*stored)(uint64_t now, bool returned);
	uint64_t (*used)(uint64_t stamp, uint64_t now);
	uint64_t (*rank)(uint64_t stamp, bool new_ones);
	unsigned part;
	uint64_t (*spared)(uint64_t stamp, uint64_t now);
};

extern const struct kvc_order kvc_order_lru;	/* the least recently used one */
extern const struct kvc_order kvc_order_fifo;	/* the one stored first; what HiCacheNixl does */
extern const struct kvc_order kvc_order_s3fifo; /* those never used again first, then the others */

/* By its name; NULL: there is none. */
const struct kvc_order *kvc_order_of(const char *name);

/* Whether, of a sample, those that have not been used again go first. */
bool kvc_order_new_ones(const struct kvc_order *order, const uint64_t *stamps, unsigned count);

/* Whether a use at `now` is worth noting: the last one was long ago, among so many objects. */
static inline bool kvc_order_is_due(uint64_t stamp, uint64_t now, uint64_t objects)
{
	return now > stamp + objects / KVC_ORDER_TOUCH_PART * KVC_STAMP_STEP;
}

#endif
