/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mark.h"

#include "core/clock.h"

#define MARK_MS		 5000u
#define FAILURES_TO_MARK 2u

static struct kvc_mark *place(struct kvc_marks *marks, uint64_t id)
{
	return &marks->marks[id % KVC_MARKS];
}

bool kvc_mark_active(struct kvc_marks *marks, uint64_t id)
{
	const struct kvc_mark *mark;
	uint64_t state;

	if (atomic_load_explicit(&marks->used, memory_order_relaxed) == 0)
		return false;
	mark = place(marks, id);
	if (atomic_load_explicit(&mark->id, memory_order_acquire) != id)
		return false;
	state = atomic_load_explicit(&mark->state, memory_order_relaxed);
	return (state & 0xff) >= FAILURES_TO_MARK && kvc_now_ms() - (state >> 8) < MARK_MS;
}

/*
 * Two threads that meet in one place may lose a failure or a mark: then the entry is read once more
 * than needed, or missed for 5 s by way of another id's failures. Neither gives wrong bytes.
 */
void kvc_mark_failed(struct kvc_marks *marks, uint64_t id)
{
	struct kvc_mark *mark = place(marks, id);
	const uint64_t now_ms = kvc_now_ms();
	uint64_t state = atomic_load_explicit(&mark->state, memory_order_relaxed);
	const uint64_t former = atomic_load_explicit(&mark->id, memory_order_acquire);
	uint64_t failures = 1;

	if (former == id && now_ms - (state >> 8) < MARK_MS)
		failures = (state & 0xff) < FAILURES_TO_MARK ? (state & 0xff) + 1 :
							       FAILURES_TO_MARK;
	if (former == 0)
		atomic_fetch_add_explicit(&marks->used, 1, memory_order_relaxed);
	atomic_store_explicit(&mark->state, now_ms << 8 | failures, memory_order_relaxed);
	atomic_store_explicit(&mark->id, id, memory_order_release);
}

void kvc_mark_clear(struct kvc_marks *marks, uint64_t id)
{
	struct kvc_mark *mark;
	uint_fast64_t expected = id;

	if (atomic_load_explicit(&marks->used, memory_order_relaxed) == 0)
		return;
	mark = place(marks, id);
	if (atomic_compare_exchange_strong_explicit(&mark->id, &expected, 0, memory_order_acq_rel,
						    memory_order_relaxed))
		atomic_fetch_sub_explicit(&marks->used, 1, memory_order_relaxed);
}
