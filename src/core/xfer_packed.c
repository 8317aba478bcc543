/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of packed roots: the steps of a set and a get in a slot. The numbers in the comments
 * are those of docs/packed.md. */
#include "core/xfer_session.h"

#include "core/checksum.h"
#include "core/format.h"
#include "core/order.h"
#include "core/ranges.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/trailer.h"
#include "core/verify.h"

#include <errno.h>

#define PAUSES_MAX 200u	  /* of a millisecond, in one call */
#define CHAIN_MAX  65535u /* pages before one */

void kvc_session_enter_index(struct kvc_session *s, struct kvc_request *list)
{
	struct kvc_packed_arena *arena = NULL;
	uint32_t count = 0;
	uint64_t stamp;

	for (struct kvc_request *r = list; r; r = r->next) {
		count += r->packed;
		arena = arena ? arena : r->arena;
	}
	if (!arena)
		return;
	s->packed = kvc_packed_of(arena);
	s->turn = kvc_packed_enter(s->packed);
	stamp = kvc_packed_stamps(s->packed, count);
	for (struct kvc_request *r = list; r; r = r->next)
		if (r->packed) {
			r->stamp = stamp;
			stamp -= KVC_STAMP_STEP;
		}
}

/* Of the page's arena in each root, as far as this process has seen it. */
static struct kvc_packed_arena *arena_in(struct kvc_root *root, const struct kvc_request *request)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	struct kvc_packed_arena *arena = NULL;

	if (!packed || !kvc_packed_arena_seen(packed, request->shape->ns_hash, request->folder,
					      kvc_shape_image_bytes(request->shape), &arena))
		return NULL;
	return arena;
}

static int touch_anywhere(struct kvc_packed_arena *const *arenas, size_t count, uint64_t g,
			  uint32_t lane, size_t *at, uint64_t *out_parent_g)
{
	for (size_t i = 0; i < count; i++) {
		const size_t r = (*at + i) % count;
		const int rc = kvc_packed_touch_group(arenas[r], g, lane, out_parent_g);

		if (rc == -ENOENT)
			continue;
		*at = r;
		return rc;
	}
	return -ENOENT;
}

void kvc_session_touch_chain(struct kvc_store *store, const struct kvc_request *request)
{
	struct kvc_packed_arena *arenas[KVC_ROOTS_MAX];
	uint32_t turns[KVC_ROOTS_MAX];
	uint64_t g = request->parent_g;
	size_t count = 0, at = 0;

	if (!request->packed || g == 0 || request->result.status != KVC_OK)
		return;
	for (size_t r = 0; r < store->root_count; r++) {
		arenas[count] = arena_in(store->roots[r], request);
		if (arenas[count])
			turns[count] = kvc_packed_enter(kvc_packed_of(arenas[count])), count++;
	}
	for (unsigned n = 0; n < CHAIN_MAX && g != 0 && count > 0; n++) {
		uint64_t parent_g = 0;

		if (touch_anywhere(arenas, count, g, request->lane, &at, &parent_g) <= 0)
			break;
		g = parent_g;
	}
	while (count-- > 0)
		kvc_packed_leave(kvc_packed_of(arenas[count]), turns[count]);
}

static struct kvc_packed_key key_of(const struct kvc_request *request)
{
	return (struct kvc_packed_key){
		.g = request->g,
		.v = request->v,
		.lane = request->lane,
		.bytes = (uint32_t)request->shape->payload_bytes,
	};
}

bool kvc_session_decided_by_index(struct kvc_request *request)
{
	const struct kvc_packed_key key = key_of(request);
	int rc;

	if (!request->packed)
		return false;
	rc = request->arena ? kvc_packed_find(request->arena, &key, &request->place) : -ENOENT;
	if (request->op == KVC_SET) {
		if (rc || kvc_session_wants_over(request))
			return false;
		kvc_packed_touch(request->arena, &request->place, request->stamp);
		kvc_session_finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_EXISTED, 0));
		return true;
	}
	if (rc)
		kvc_session_finish(request, kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0));
	else if (request->op == KVC_EXISTS)
		kvc_session_finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0));
	else if (request->op == KVC_REMOVE)
		kvc_session_finish(request, kvc_packed_remove(request->arena, &request->place) ?
						    kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0) :
						    kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0));
	else
		return false;
	return true;
}

/* Nothing could be claimed: does a limit that somebody set hold, or is the device full? */
static struct kvc_result full(const struct kvc_request *request, int error)
{
	struct kvc_packed *packed = kvc_root_packed(request->root, false);
	const uint64_t bytes = kvc_shape_image_bytes(request->shape);

	if (error == -EDQUOT)
		return kvc_result_make(KVC_FULL, KVC_CAUSE_CAPACITY, ENOSPC);
	if (error != -ENOSPC && error != -EBUSY)
		return kvc_result_of_errno(-error);
	return kvc_result_make(KVC_FULL,
			       packed && kvc_packed_is_limited(packed, request->arena, bytes) ?
				       KVC_CAUSE_CAPACITY :
				       KVC_CAUSE_NO_SPACE,
			       ENOSPC);
}

/* Whether there may be a slot in a moment: when the sets of this call that are under way are done,
 * their pages can be evicted for the next; so can those of other threads. */
static bool may_wait(struct kvc_session *s, int error)
{
	if (error != -ENOSPC && error != -EBUSY && error != -EDQUOT)
		return false;
	if (s->queue->in_flight || s->ready)
		return true;
	if (error != -EBUSY || s->pauses == PAUSES_MAX)
		return false;
	s->pauses++;
	return true;
}

void kvc_session_begin_slot(struct kvc_session *s, struct kvc_slot *slot)
{
	struct kvc_request *request = slot->request;
	const uint32_t intent =
		s->queue->number * KVC_QUEUE_SLOTS + (uint32_t)(slot - s->queue->slots);
	int rc = 0;

	request->step = request->op == KVC_GET ? KVC_STEP_SLOT_READ : KVC_STEP_SLOT_WRITE;
	if (request->op == KVC_SET)
		rc = request->arena ? kvc_packed_claim(request->arena, intent, &request->place) :
				      -ENOSPC;
	if (rc && !may_wait(s, rc)) {
		kvc_session_finish(request, full(request, rc));
		kvc_session_give_slot(s, slot);
	} else if (rc) {
		kvc_session_give_slot(s, slot);
		request->next = s->todo;
		s->todo = request;
		s->parked = true;
	} else {
		kvc_session_begin_step(s, slot);
	}
}

/* GET 4 and 5. */
static struct kvc_result judge_slot(struct kvc_slot *slot, const struct kvc_completion *c)
{
	const struct kvc_request *request = slot->request;
	const struct kvc_packed_place *place = &request->place;
	const bool off = request->root->store->settings->verify == KVC_VERIFY_OFF &&
			 !kvc_packed_is_suspect(place);
	uint64_t checksum;

	if (!kvc_packed_is_same(place))
		return kvc_result_make(KVC_MISS, KVC_CAUSE_RECYCLED, 0);
	if ((uint64_t)c->result < kvc_shape_image_bytes(request->shape))
		return kvc_result_make(KVC_MISS, KVC_CAUSE_SHORT, 0);
	if (place->checksum_kind >= KVC_CHECKSUM_CALLER)
		return kvc_result_make(KVC_MISS, KVC_CAUSE_VERSION, 0);
	/* Nobody can tell whether its bytes came through the reboot. */
	if (kvc_packed_is_suspect(place) && place->checksum_kind == KVC_CHECKSUM_NONE)
		return kvc_result_make(KVC_CORRUPT, KVC_CAUSE_TRAILER, 0);
	checksum = kvc_ranges_finish_read(slot, off ? KVC_CHECKSUM_NONE : place->checksum_kind);
	if (off || checksum == place->checksum)
		return kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0);
	/* Recycled while it was hashed? */
	if (!kvc_packed_is_same(place))
		return kvc_result_make(KVC_MISS, KVC_CAUSE_RECYCLED, 0);
	return kvc_result_make(KVC_CORRUPT, KVC_CAUSE_CHECKSUM, 0);
}

void kvc_session_slot_read(struct kvc_session *s, struct kvc_slot *slot,
			   const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	struct kvc_result result;

	if (c->result < 0) {
		kvc_session_finish(request, kvc_result_of_errno((int)-c->result));
		kvc_session_give_slot(s, slot);
		return;
	}
	result = judge_slot(slot, c);
	if (kvc_session_read_again(s, slot, result))
		return;
	kvc_session_finish(request, result);
	if (result.status == KVC_OK) {
		kvc_packed_touch(request->arena, &request->place, request->stamp);
		if (kvc_packed_is_suspect(&request->place))
			kvc_packed_trust(request->arena, &request->place);
	} else if (result.status == KVC_CORRUPT && kvc_verify_removable(request, result) &&
		   kvc_packed_remove(request->arena, &request->place)) {
		kvc_counters_add(request->root->store->counters, KVC_COUNTER_REMOVED_CORRUPT, 1);
	}
	kvc_session_give_slot(s, slot);
}

/* SET 4 to 6. */
static void publish_slot(struct kvc_session *s, struct kvc_slot *slot)
{
	struct kvc_request *request = slot->request;
	const struct kvc_packed_key key = key_of(request);
	const struct kvc_packed_meta meta = {
		.key = &key,
		.checksum = slot->checksum,
		.parent_g = request->parent_g,
		.stamp = request->stamp,
		.pool_fingerprint = request->shape->pool_fingerprint,
		.shape = request->shape,
		.name = request->name,
		.name_bytes = request->name_bytes,
		.depth = request->depth,
		.checksum_kind = (uint8_t)request->root->store->checksum_kind,
		.overwrite = kvc_session_wants_over(request),
	};
	const int rc = kvc_packed_publish(request->arena, &request->place, &meta);

	kvc_session_finish(request,
			   rc < 0 ? kvc_result_of_errno(-rc) :
				    kvc_result_make(KVC_OK, rc ? KVC_CAUSE_EXISTED : KVC_CAUSE_NONE,
						    0));
	kvc_session_give_slot(s, slot);
}

void kvc_session_slot_written(struct kvc_session *s, struct kvc_slot *slot,
			      const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	const struct kvc_settings *settings = request->root->store->settings;
	const uint64_t want = kvc_shape_image_bytes(request->shape);

	if (c->result < 0 ||
	    (request->step == KVC_STEP_SLOT_WRITE && (uint64_t)c->result != want)) {
		kvc_packed_abandon(request->arena, &request->place);
		kvc_session_finish(request,
				   kvc_result_of_errno(c->result < 0 ? (int)-c->result : EIO));
		kvc_session_give_slot(s, slot);
		return;
	}
	if (!slot->has_checksum)
		kvc_ranges_checksum(slot);
	if (request->step == KVC_STEP_SLOT_WRITE &&
	    settings->durability == KVC_DURABILITY_FDATASYNC) {
		request->step = KVC_STEP_SLOT_SYNC;
		kvc_session_begin_step(s, slot);
		return;
	}
	publish_slot(s, slot);
}

bool kvc_session_hash_one(struct kvc_session *s)
{
	struct kvc_queue *queue = s->queue;

	for (uint32_t i = 0; queue->unhashed > 0 && i < queue->depth; i++) {
		struct kvc_slot *slot = &queue->slots[(s->hash_next + i) % queue->depth];

		if (!slot->in_flight || slot->has_checksum ||
		    slot->request->step != KVC_STEP_SLOT_WRITE)
			continue;
		kvc_ranges_checksum(slot);
		queue->unhashed--;
		s->hash_next = (s->hash_next + i + 1) % queue->depth;
		return true;
	}
	return false;
}
