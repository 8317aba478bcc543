/* SPDX-License-Identifier: Apache-2.0 */
/* Space between arenas, and what the keeper does in each of them ahead of need. */
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/pin.h"
#include "core/store.h"
#include "core/tenant.h"
#include "core/usage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETIRED_MARKED	 KVC_PACKED_RETIRED_MARKED
#define RETIRED_REMOVED	 KVC_PACKED_RETIRED_REMOVED
#define BUSY_MAX	 4 /* segments that are to go and wait for their last users */
#define AGE_SAMPLES	 32u
#define GROUP_SAMPLES	 2048u /* what hangs on a segment may be few pages of it */
#define SEGMENTS_AT_ONCE 128u
#define COLDER_NS	 (UINT64_C(50) * 1000000) /* between two looks for colder ones */

/* ---------------------------------------------------------------- between arenas */

/* One of `samples` slots that are looked at: all, where these are not more. */
static uint32_t sample(const struct kvc_packed_segment *segment, unsigned samples, unsigned i)
{
	return segment->slots <= samples ?
		       i % segment->slots :
		       (uint32_t)(kvc_packed_random(segment->arena->packed) % segment->slots);
}

/* The latest and the earliest use among some slots of a segment; 0 slots live: as cold as can
 * be. */
static void segment_age(struct kvc_packed_segment *segment, uint64_t *latest, uint64_t *earliest)
{
	*latest = 0;
	*earliest = UINT64_MAX;
	for (unsigned i = 0; i < AGE_SAMPLES; i++) {
		const uint32_t s = sample(segment, AGE_SAMPLES, i);
		uint64_t stamp;

		if (kvc_packed_st(atomic_load(&segment->headers[s].state)) != KVC_PACKED_LIVE)
			continue;
		stamp = atomic_load_explicit(&segment->stamps[s], memory_order_relaxed) >> 1;
		*latest = stamp > *latest ? stamp : *latest;
		*earliest = stamp < *earliest ? stamp : *earliest;
	}
}

/* The latest use of the groups of some slots, which go with the segment; `limit` or more when one
 * was not used before that. */
static uint64_t groups_used(struct kvc_packed_segment *segment, uint64_t limit)
{
	const uint32_t count = segment->slots < GROUP_SAMPLES ? segment->slots : GROUP_SAMPLES;
	uint64_t latest = 0;

	for (uint32_t i = 0; i < count && latest < limit; i++) {
		struct kvc_packed_fields fields;
		uint64_t used;

		if (!kvc_packed_read(&segment->headers[sample(segment, GROUP_SAMPLES, i)], &fields))
			continue;
		used = kvc_packed_group_used(segment->arena, fields.g);
		latest = used > latest ? used : latest;
	}
	return latest;
}

/* Of very many segments a part is looked at, another one each time. */
static uint32_t step_of(const struct kvc_packed_arena *arena)
{
	return 1 + atomic_load(&arena->record->present) / SEGMENTS_AT_ONCE;
}

static uint32_t first_of(struct kvc_packed_arena *arena)
{
	return 1 + (uint32_t)(kvc_packed_random(arena->packed) % step_of(arena));
}

/* The segment of an arena that was used least lately, if that was before `limit`; NULL: it has
 * none. A segment goes by its groups, which are only looked at where it would be taken. */
static struct kvc_packed_segment *coldest_of(struct kvc_packed_arena *arena, uint64_t limit,
					     uint64_t *out_latest)
{
	const uint32_t segments = atomic_load(&arena->record->segments), step = step_of(arena);
	const uint64_t now_ns = kvc_now_ns();
	struct kvc_packed_segment *coldest = NULL;

	*out_latest = limit;
	if (kvc_pin_has(arena->packed->root, arena->ns_hash))
		return NULL;
	for (uint32_t n = first_of(arena); n <= segments; n += step) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);
		uint64_t latest, earliest, groups = 0;

		if (!segment || atomic_load(&segment->hdr->retired) == RETIRED_REMOVED ||
		    atomic_load_explicit(&segment->busy_until_ns, memory_order_relaxed) > now_ns)
			continue;
		segment_age(segment, &latest, &earliest);
		if (atomic_load(&segment->hdr->retired) == RETIRED_MARKED)
			latest = 0; /* was begun: to be finished first */
		else if (latest < *out_latest)
			groups = groups_used(segment, *out_latest);
		latest = groups > latest ? groups : latest;
		if (latest < *out_latest) {
			*out_latest = latest;
			coldest = segment;
		}
	}
	return coldest;
}

/* Whether the tenant of an arena has more segments than its share is, with so many bytes more. */
static bool is_over(struct kvc_packed *packed, const struct kvc_packed_arena *arena, uint64_t more)
{
	const struct kvc_root *root = packed->root;
	const uint64_t share = kvc_tenant_share(root, arena->ns_hash);
	uint64_t held = 0;

	if (share == UINT64_MAX)
		return false;
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		if (a == arena || kvc_tenant_is_same(root, a->ns_hash, arena->ns_hash))
			held += atomic_load(&a->record->present) * kvc_packed_segment_file_bytes(a);
	/* A share that is less than a segment is one. */
	return held > 0 && held + more > share;
}

/* The coldest segment that may go for one of `taker` (NULL: for the device), if it was used before
 * `limit`. A tenant that has its share takes from itself, others from tenants that have more than
 * theirs, if any have. */
static struct kvc_packed_segment *coldest_but(struct kvc_packed *packed,
					      struct kvc_packed_arena *taker, uint64_t limit)
{
	const struct kvc_root *root = packed->root;
	const bool from_itself = taker &&
				 is_over(packed, taker, kvc_packed_segment_file_bytes(taker));
	struct kvc_packed_segment *coldest = NULL;

	for (int round = root->tenants && !from_itself ? 0 : 1; round < 2 && !coldest; round++) {
		for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
			struct kvc_packed_segment *segment;
			uint64_t latest;

			if (a == taker || (round == 0 && !is_over(packed, a, 0)) ||
			    (from_itself && !kvc_tenant_is_same(root, a->ns_hash, taker->ns_hash)))
				continue;
			segment = coldest_of(a, limit, &latest);
			if (segment) {
				limit = latest;
				coldest = segment;
			}
		}
	}
	return coldest;
}

int kvc_packed_retire_coldest(struct kvc_packed *packed)
{
	struct kvc_packed_segment *segment = coldest_but(packed, NULL, UINT64_MAX);

	return segment ? kvc_packed_segment_retire(segment) : -ENOENT;
}

bool kvc_packed_arena_broken(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	struct kvc_packed_table *table = kvc_packed_table_get(arena);

	if (table && atomic_load(&table->broken))
		return true;
	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		if (segment && atomic_load(&segment->broken))
			return true;
	}
	return false;
}

/* Whether one of this arena could have its place if all others were gone. */
static bool could_fit(struct kvc_packed_arena *arena)
{
	return kvc_packed_may_add(arena->packed, kvc_packed_segment_file_bytes(arena), true);
}

/* With the lock of taking. */
static int steal(struct kvc_packed_arena *arena)
{
	struct kvc_packed *packed = arena->packed;

	/* Until there is room: segments of other arenas may be smaller. */
	for (int attempt = 0; attempt < 64; attempt++) {
		const uint32_t busy = kvc_packed_finish_retiring(packed);
		struct kvc_packed_segment *segment;
		/* What else is in the way is not mended by it: descriptors, say. */
		int rc = kvc_packed_segment_add(arena);

		if (rc != -ENOSPC)
			return rc;
		/* These will do, once they are done with; no more need to go for it. */
		if (busy >= BUSY_MAX)
			return -EBUSY;
		kvc_packed_refresh(packed);
		segment = coldest_but(packed, arena, UINT64_MAX);
		if (!segment)
			return busy ? -EBUSY : -ENOSPC;
		rc = kvc_packed_segment_retire(segment);
		if (rc && rc != -EBUSY)
			return rc;
	}
	return -ENOSPC;
}

int kvc_packed_steal(struct kvc_packed_arena *arena)
{
	struct kvc_packed *packed = arena->packed;
	int rc;

	if (!could_fit(arena))
		return -ENOSPC;
	pthread_mutex_lock(&packed->take_lock);
	rc = steal(arena);
	pthread_mutex_unlock(&packed->take_lock);
	return rc;
}

/* ---------------------------------------------------------------- giving back */

/* A segment, and how late it was used as far as some of its slots tell. */
struct cold {
	struct kvc_packed_segment *segment;
	uint64_t used;
};

static int by_use(const void *one, const void *two)
{
	const struct cold *a = one, *b = two;

	return a->used < b->used ? -1 : a->used > b->used;
}

/* The mean of the live among some slots: few hot pages do not keep many cold ones. */
static uint64_t mean_use(struct kvc_packed_segment *segment)
{
	uint64_t sum = 0, count = 0;

	for (unsigned i = 0; i < AGE_SAMPLES; i++) {
		const uint32_t s = sample(segment, AGE_SAMPLES, i);

		if (kvc_packed_st(atomic_load(&segment->headers[s].state)) != KVC_PACKED_LIVE)
			continue;
		sum += atomic_load_explicit(&segment->stamps[s], memory_order_relaxed) >> 1;
		count++;
	}
	return count ? sum / count : 0;
}

/* Those that may go, coldest first; NULL without memory. */
static struct cold *list_cold(struct kvc_packed *packed, size_t *out_count)
{
	struct cold *list;
	size_t room = 1, count = 0;

	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		room += atomic_load(&a->record->segments);
	list = calloc(room, sizeof(*list));
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); list && a; a = a->next) {
		const uint32_t segments = atomic_load(&a->record->segments);

		for (uint32_t n = 1; n <= segments && count < room; n++) {
			struct kvc_packed_segment *segment = kvc_packed_segment(a, n);

			if (!segment || kvc_pin_has(packed->root, a->ns_hash) ||
			    atomic_load(&segment->hdr->retired) == RETIRED_REMOVED)
				continue;
			list[count++] = (struct cold){ segment, mean_use(segment) };
		}
	}
	if (list)
		qsort(list, count, sizeof(*list), by_use);
	*out_count = count;
	return list;
}

static uint64_t live_in(const struct kvc_packed_segment *segment)
{
	uint64_t live = 0;

	for (uint32_t s = 0; s < segment->slots; s++)
		live += kvc_packed_st(atomic_load(&segment->headers[s].state)) == KVC_PACKED_LIVE;
	return live;
}

int kvc_packed_give_back(struct kvc_packed *packed, uint64_t to_bytes, bool dry_run,
			 uint64_t *out_objects, uint64_t *out_bytes)
{
	const uint32_t turn = kvc_packed_enter(packed);
	uint64_t own, objects = 0, bytes = 0;
	struct cold *list;
	size_t count = 0;
	int rc = 0;

	kvc_packed_refresh(packed);
	own = kvc_packed_hint(&packed->shm->segment_bytes);
	list = list_cold(packed, &count);
	if (!list)
		rc = -ENOMEM;
	for (size_t i = 0; i < count && own > to_bytes + bytes; i++) {
		struct kvc_packed_segment *segment = list[i].segment;
		const uint64_t live = live_in(segment);
		const int one = dry_run ? 0 : kvc_packed_segment_retire(segment);

		if (one) {
			rc = one;
			if (one != -EBUSY)
				break;
			continue;
		}
		objects += live;
		bytes += kvc_packed_segment_file_bytes(segment->arena);
	}
	free(list);
	kvc_packed_leave(packed, turn);
	kvc_packed_reap(packed, false);
	*out_objects = objects;
	*out_bytes = bytes;
	return own <= to_bytes + bytes ? 0 : rc;
}

/* ---------------------------------------------------------------- keeping */

/* Whether other arenas hold something, and it would help. */
static bool may_take(struct kvc_packed_arena *arena)
{
	bool others = false;

	for (struct kvc_packed_arena *a = atomic_load(&arena->packed->arenas); a; a = a->next)
		others |= a != arena && atomic_load(&a->record->present) > 0;
	return others && could_fit(arena);
}

/* The earliest use of what an arena holds, as far as some slots tell; UINT64_MAX: it has none. */
static uint64_t oldest_of(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments), step = step_of(arena);
	uint64_t oldest = UINT64_MAX;

	for (uint32_t n = first_of(arena); n <= segments; n += step) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);
		uint64_t latest, earliest;

		if (!segment)
			continue;
		segment_age(segment, &latest, &earliest);
		oldest = earliest < oldest ? earliest : oldest;
	}
	return oldest;
}

/* With the lock of taking. */
static int take_coldest(struct kvc_packed_arena *arena)
{
	const uint64_t oldest = may_take(arena) ? oldest_of(arena) : UINT64_MAX;
	struct kvc_packed_segment *segment = NULL;
	int rc;

	if (oldest != UINT64_MAX)
		segment = coldest_but(arena->packed, arena, oldest);
	if (!segment)
		return -ENOENT;
	rc = kvc_packed_segment_retire(segment);
	return rc ? rc : kvc_packed_segment_add(arena);
}

static bool is_too_early(struct kvc_packed_arena *arena)
{
	return kvc_now_ns() < atomic_load_explicit(&arena->colder_after_ns, memory_order_relaxed);
}

/* With the lock of taking. When nothing was found, it is not looked for again for a while. */
static bool take_colder(struct kvc_packed_arena *arena)
{
	const int rc = take_coldest(arena);

	if (rc == 0)
		atomic_fetch_add(&arena->rooms_found, 1);
	else
		atomic_store_explicit(&arena->colder_after_ns,
				      kvc_now_ns() +
					      (rc == -ETIMEDOUT ? KVC_PACKED_STUCK_NS : COLDER_NS),
				      memory_order_relaxed);
	return rc == 0;
}

/* A segment of an arena whose groups are colder than everything that this one, which has to evict,
 * holds. Others wait for the one that takes it: what they would evict here is less cold. */
bool kvc_packed_take_colder(struct kvc_packed_arena *arena)
{
	struct kvc_packed *packed = arena->packed;
	const unsigned seen = atomic_load(&arena->rooms_found);
	bool taken;

	if (is_too_early(arena))
		return false;
	pthread_mutex_lock(&packed->take_lock);
	taken = atomic_load(&arena->rooms_found) != seen ||
		(!is_too_early(arena) && take_colder(arena));
	pthread_mutex_unlock(&packed->take_lock);
	return taken;
}

void kvc_packed_arena_keep(struct kvc_packed_arena *arena)
{
	const struct kvc_packed_record *record = arena->record;
	const uint64_t reserve = kvc_packed_reserve(arena);
	const uint64_t ahead = record->segment_slots / 8 > reserve ? record->segment_slots / 8 :
								     reserve;
	/* A set that was faster than the keeper has made room by itself. */
	const bool pressed = atomic_exchange_explicit(&arena->pressed, false, memory_order_relaxed);
	uint64_t free_slots = kvc_packed_hint(&record->free_slots);
	bool full;
	int rc;

	if (atomic_load(&record->present) == 0)
		return;
	if (!kvc_packed_table_get(arena))
		kvc_packed_table_mend(arena);
	if (free_slots >= ahead && !pressed)
		return;
	rc = kvc_packed_segment_add(arena);
	if (rc == 0 || (free_slots >= reserve && !pressed))
		return;
	full = rc == -ENOSPC || rc == -EDQUOT;
	/* No descriptors, say, or a lock that is held: there may be before a set needs room. */
	if (!full && !pressed)
		return;
	if (full && kvc_packed_take_colder(arena))
		return;
	while (free_slots < reserve) {
		if (kvc_packed_evict(arena, (uint32_t)(reserve - free_slots)) == 0)
			break;
		free_slots = kvc_packed_hint(&record->free_slots);
	}
}
