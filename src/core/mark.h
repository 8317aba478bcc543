/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Negative marks: an object whose get failed twice is a miss without I/O for a few seconds, so that
 * an entry that cannot be loaded is not paid for on every request. Per process; thread-safe.
 */
#ifndef KVC_CORE_MARK_H
#define KVC_CORE_MARK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define KVC_MARKS 4096u /* at most; a new one displaces the one in its place */

struct kvc_mark {
	atomic_uint_fast64_t id;    /* object id, 0 = free */
	atomic_uint_fast64_t state; /* time of the last failure in ms << 8 | failures */
};

struct kvc_marks {
	atomic_uint_fast32_t used; /* nothing is looked up while it is 0 */
	struct kvc_mark marks[KVC_MARKS];
};

/* id: kvc_request.mark_id. */
bool kvc_mark_active(struct kvc_marks *marks, uint64_t id);
void kvc_mark_failed(struct kvc_marks *marks, uint64_t id);
void kvc_mark_clear(struct kvc_marks *marks, uint64_t id);

#endif
