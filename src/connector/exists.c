/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/exists.h"

#include "connector/batch.h"
#include "core/clock.h"
#include "core/ghost.h"
#include "core/log.h"
#include "core/stats.h"

#include <errno.h>

#define EXISTS_KEYS 128u /* looked up at a time */

/* An object of some pages: which of them are there. */
static int look_up(struct kvc_packed_arena *arena, const struct kvc_transfer *t, size_t from,
		   size_t count, uint32_t o, bool seen, struct kvc_packed_key *keys,
		   uint8_t *present)
{
	const bool stop = t->flags & KVC_TRANSFER_STOP_AT_MISS;

	for (size_t i = 0; i < count; i++)
		keys[i] = kvc_pool_packed_key(t->pool, o, &t->keys[from + i]);
	if (seen)
		return kvc_packed_exists_seen(arena, keys, count, stop, present);
	(void)kvc_packed_exists(arena, keys, count, stop, present);
	return 0;
}

/* Of pages that are not there those that were, until not long ago; when the call stops at a miss,
 * at most the first. */
static void count_ghosts(const struct kvc_transfer *t, size_t from, size_t count,
			 const struct kvc_packed_key *keys)
{
	const struct kvc_store *store = t->pool->ns->store;
	int64_t ghosts = 0;

	for (size_t i = 0; i < count; i++) {
		if (t->results[from + i].cause != KVC_CAUSE_ABSENT)
			continue;
		ghosts += kvc_ghost_has(store->roots[0]->ghosts, keys[i].g);
		if (t->flags & KVC_TRANSFER_STOP_AT_MISS)
			break;
	}
	kvc_counters_add(store->counters, KVC_COUNTER_GHOST_HITS, ghosts);
}

/* Some pages of a pool whose objects all lie in one arena. 1: go on; 0: the rest needs no look. */
static int exists_some(struct kvc_packed_arena *arena, const struct kvc_transfer *t, size_t from,
		       size_t count, bool seen)
{
	const struct kvc_geometry *geometry = &t->pool->geometry;
	struct kvc_marks *marks = &t->pool->ns->store->roots[0]->marks;
	const bool marked = atomic_load_explicit(&marks->used, memory_order_relaxed) > 0;
	struct kvc_packed_key keys[EXISTS_KEYS];
	uint8_t present[EXISTS_KEYS];
	bool whole = true;

	for (uint32_t o = 0; o < geometry->object_count; o++) {
		const int rc = look_up(arena, t, from, count, o, seen, keys, present);

		if (rc)
			return rc;
		for (size_t i = 0; i < count; i++) {
			struct kvc_result *result = &t->results[from + i];

			if (o == 0)
				*result = kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0);
			if (!present[i] && result->status == KVC_OK)
				*result = kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0);
			else if (marked && result->status == KVC_OK &&
				 kvc_mark_active(marks, keys[i].g ^ t->pool->mark_salts[o]))
				*result = kvc_result_make(KVC_MISS, KVC_CAUSE_MARKED, 0);
			whole &= result->status == KVC_OK;
		}
	}
	if (!whole)
		count_ghosts(t, from, count, keys);
	return whole || !(t->flags & KVC_TRANSFER_STOP_AT_MISS);
}

bool kvc_exists_is_indexed(const struct kvc_store *store, const struct kvc_packed *packed,
			   const struct kvc_transfer *t)
{
	return t->op == KVC_EXISTS && store->root_count == 1 && packed && t->pool->is_packable &&
	       t->pool->geometry.shape_count == 1 && t->pool->geometry.object_count > 0;
}

int kvc_exists_by_index(struct kvc_packed *packed, const struct kvc_transfer *t, bool seen)
{
	struct kvc_packed_arena *arena;
	uint32_t turn;
	int more = 1;

	if (seen && !kvc_pool_arena_seen(t->pool, packed, 0, 0, &arena))
		return -EAGAIN;
	if (!seen)
		arena = kvc_pool_arena(t->pool, packed, 0, 0, false);
	turn = kvc_packed_enter(packed);
	for (size_t at = 0; at < t->key_count && more >= 0; at += EXISTS_KEYS) {
		const size_t left = t->key_count - at;
		const size_t some = left < EXISTS_KEYS ? left : EXISTS_KEYS;

		for (size_t i = at; i < at + some && !(arena && more); i++)
			t->results[i] =
				more ? kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0) :
				       kvc_result_make(KVC_SKIPPED, KVC_CAUSE_PREFIX_ENDED, 0);
		if (arena && more)
			more = exists_some(arena, t, at, some, seen);
	}
	kvc_packed_leave(packed, turn);
	return more < 0 ? more : 0;
}

/* ---------------------------------------------------------------- without waiting */

static int try_one(struct kvc_store *store, struct kvc_packed *packed, const struct kvc_transfer *t)
{
	if (t->key_count == 0 || kvc_batch_skips(t))
		return 0;
	if (!kvc_exists_is_indexed(store, packed, t))
		return -EAGAIN;
	return kvc_exists_by_index(packed, t, true);
}

int kvc_batch_try(struct kvc_store *store, struct kvc_transfer *transfers, size_t count)
{
	const uint64_t start_ns = kvc_now_ns();
	const struct kvc_connector *connector;
	struct kvc_packed *packed;
	int rc = kvc_batch_check(store, transfers, count);

	if (rc || count == 0)
		return rc;
	connector = store->connector; /* there is one, as there is a pool */
	if (connector->trace)	      /* it has a lock */
		return kvc_fail(-EAGAIN, "a request trace is recorded");
	kvc_store_enter(store);
	packed = atomic_load_explicit(&store->roots[0]->packed, memory_order_acquire);
	if (packed && !kvc_packed_is_there(packed))
		packed = NULL;
	for (size_t i = 0; i < count && !rc; i++)
		rc = try_one(store, packed, kvc_transfer_at(transfers, i));
	for (size_t i = 0; i < count && !rc; i++)
		kvc_batch_finish(store, kvc_transfer_at(transfers, i),
				 (kvc_now_ns() - start_ns) / 1000);
	kvc_store_leave(store);
	return rc ? kvc_fail(rc, "not to be told from memory") : 0;
}
