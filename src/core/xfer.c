/* SPDX-License-Identifier: Apache-2.0 */
#include "core/xfer.h"

#include "core/checksum.h"
#include "core/clock.h"
#include "core/format.h"
#include "core/queue.h"
#include "core/ranges.h"
#include "core/stage.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/usage.h"
#include "core/verify.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define COMPLETIONS	32u
/* Begun at a time: so few that slots whose I/O is done at once (a stat) are used again while they
 * are in the CPU's cache. */
#define BEGIN_AT_ONCE	16u
#define MAX_ERRNO	4095
#define BOUNCE_BYTES	(UINT64_C(16) << 20)
/* A soft root that comes back this long after the deadline is suspect, and staged. */
#define SUSPECT_NS	(250 * UINT64_C(1000000))
#define SLICE_NS	(100 * UINT64_C(1000000))
#define SHARED_SLICE_NS (200 * UINT64_C(1000))
#define STAGED_SLICE_NS (500 * UINT64_C(1000))

/* One queue at work. */
struct session {
	struct kvc_queue *queue;
	struct kvc_request *todo; /* not begun */
	struct kvc_slot *ready;	  /* begun, not accepted by the plugin yet */
	struct kvc_slot **ready_end;
	const struct kvc_regions *regions;
	const atomic_bool *cancel;
	uint64_t deadline_ns; /* the latest of its requests */
	uint64_t room;	      /* bytes that may be written, once room_known */
	bool room_known;
	enum kvc_deadline_kind kind;
	bool cancelled;		   /* the queue was told to */
	int error;		   /* why the queue is broken */
	uint32_t hash_next;	   /* slot of the queue to look at for a checksum */
	struct kvc_packed *packed; /* the index that its requests use, entered */
	uint32_t turn;
	uint64_t late_ns; /* how long after the deadline I/O came back, at most */
	bool ended;	  /* it has been looked at after its end */
	bool waited;	  /* poll() has returned 0: event_fd may be waited on */
};

/* ---------------------------------------------------------------- results */

struct kvc_result kvc_result_of_errno(int error)
{
	switch (error) {
	case ENOENT:
		return kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0);
	case EISDIR:
	case ELOOP:
	case ENXIO: /* not a regular file */
		return kvc_result_make(KVC_MISS, KVC_CAUSE_FOREIGN, error);
	case ESTALE: /* replaced while it was read */
		return kvc_result_make(KVC_MISS, KVC_CAUSE_RECYCLED, error);
	case ENOSPC:
		return kvc_result_make(KVC_FULL, KVC_CAUSE_NO_SPACE, error);
	case EDQUOT:
		return kvc_result_make(KVC_FULL, KVC_CAUSE_QUOTA, error);
	case EACCES:
	case EPERM:
		return kvc_result_make(KVC_DENIED, KVC_CAUSE_PERMISSION, error);
	case EROFS:
		return kvc_result_make(KVC_DENIED, KVC_CAUSE_READ_ONLY, error);
	case ECANCELED:
	case ETIMEDOUT:
		return kvc_result_make(KVC_TIMEOUT, KVC_CAUSE_DEADLINE, ETIMEDOUT);
	case EMFILE:
	case ENFILE:
		return kvc_result_make(KVC_ERROR, KVC_CAUSE_DESCRIPTORS, error);
	default:
		return kvc_result_make(KVC_ERROR, KVC_CAUSE_IO, error);
	}
}

/* What an operator should hear of, once in a while. */
static void warn_result(struct kvc_root *root, const struct kvc_request *request)
{
	const struct kvc_result *result = &request->result;
	const bool get = request->op == KVC_GET;

	switch (result->status) {
	case KVC_CORRUPT:
		kvc_root_warn(root, KVC_WARN_CORRUPT, kvc_cause_name(result->cause), EBADMSG);
		break;
	case KVC_FULL:
		kvc_root_warn(root, KVC_WARN_FULL, "set",
			      result->cause == KVC_CAUSE_CAPACITY ? 0 : result->error);
		break;
	case KVC_DENIED:
		if (result->cause == KVC_CAUSE_READ_ONLY && root->told_read_only)
			break;
		kvc_root_warn(root,
			      result->cause == KVC_CAUSE_READ_ONLY ? KVC_WARN_READ_ONLY :
			      get				   ? KVC_WARN_DENIED_READ :
								     KVC_WARN_DENIED_WRITE,
			      get ? "get" : "set", result->error);
		break;
	case KVC_ERROR:
		kvc_root_warn(root, KVC_WARN_IO, get ? "get" : "set or exists", result->error);
		break;
	default:
		break;
	}
}

/* Marks and the counter of own bytes follow from the result. */
static void finish(struct kvc_request *request, struct kvc_result result)
{
	struct kvc_root *root = request->root;
	const uint64_t id = request->mark_id;
	const uint64_t key = kvc_root_usage_key(root, request->shape->ns_hash);

	/* Something that is no file lies there, or the folder went away: not written. */
	if (request->op == KVC_SET && result.status == KVC_MISS)
		result = kvc_result_make(KVC_ERROR, KVC_CAUSE_IO,
					 result.error ? result.error : ENOENT);
	request->result = result;
	if (request->missed && result.status != KVC_OK &&
	    (!*request->missed || request < *request->missed))
		*request->missed = request;
	if (result.status != KVC_OK && result.status != KVC_SKIPPED)
		warn_result(root, request);
	if (request->done)
		atomic_store_explicit(request->done, true, memory_order_release);
	if (request->op == KVC_SET && result.status == KVC_OK) {
		kvc_mark_clear(&root->marks, id);
		if (result.cause != KVC_CAUSE_EXISTED && !request->packed)
			kvc_usage_add(root->usage, key,
				      (int64_t)request->shape->stored_bytes -
					      (int64_t)request->previous_bytes,
				      request->replaces ? 0 : 1);
	} else if (request->op == KVC_REMOVE && result.status == KVC_OK && !request->packed) {
		kvc_usage_add(root->usage, key, -(int64_t)request->previous_bytes, -1);
	} else if (request->op == KVC_GET && !kvc_verify_is_guess(request, result) &&
		   (result.status == KVC_CORRUPT ||
		    (result.status == KVC_MISS && result.cause != KVC_CAUSE_ABSENT &&
		     result.cause != KVC_CAUSE_MARKED) ||
		    (result.status == KVC_ERROR && result.cause == KVC_CAUSE_IO))) {
		kvc_mark_failed(&root->marks, id);
	}
}

/* ---------------------------------------------------------------- slots */

static struct kvc_slot *take_slot(struct session *s)
{
	struct kvc_slot *slot = s->queue->free;

	if (slot)
		s->queue->free = slot->next;
	return slot;
}

static void give_slot(struct session *s, struct kvc_slot *slot)
{
	kvc_ranges_release(slot);
	slot->request = NULL;
	slot->next = s->queue->free;
	s->queue->free = slot;
}

static bool moves(const struct kvc_slot *slot)
{
	return slot->descriptor.op == KVC_OP_READ || slot->descriptor.op == KVC_OP_WRITE;
}

static bool is_unhashed(const struct kvc_slot *slot)
{
	return slot->request->step == KVC_STEP_SLOT_WRITE && !slot->has_checksum;
}

static void push_ready(struct session *s, struct kvc_slot *slot)
{
	slot->next = NULL;
	*s->ready_end = slot;
	s->ready_end = &slot->next;
}

/* Copies text and what separates it from the next; NULL when it does not fit. */
static char *append(char *at, const char *end, const char *text, size_t bytes, char separator)
{
	if (!at || bytes == 0)
		return at;
	if ((size_t)(end - at) < bytes + 2)
		return NULL;
	memcpy(at, text, bytes);
	at += bytes;
	if (separator)
		*at++ = separator;
	return at;
}

/* Once per object and call: no printf here. */
int kvc_xfer_path(const struct kvc_root *root, const char *folder, const char *hash_folder,
		  const char *name, size_t name_bytes, char *out, size_t out_bytes)
{
	const bool hashed = root->attributes.flags & KVC_ATTRIBUTE_FOLDERS;
	const char *end = out + out_bytes;
	char *at = append(out, end, folder, strlen(folder), '/');

	at = append(at, end, hash_folder, hashed ? 2 : 0, '/');
	at = append(at, end, name, name_bytes, '\0');
	if (!at)
		return -ENAMETOOLONG;
	*at = '\0';
	return (int)(at - out);
}

/* Takes the request's bytes from what `capacity` and `min_free` leave, asked for once per run. */
static bool has_room(struct session *s, const struct kvc_request *request)
{
	const struct kvc_root *root = request->root;
	const uint64_t bytes = request->shape->stored_bytes;

	if (root->capacity_bytes == 0 && root->min_free_bytes == 0)
		return true;
	if (!s->room_known) {
		s->room = kvc_root_room(request->root);
		s->room_known = true;
	}
	if (s->room < bytes)
		return false;
	s->room -= bytes;
	return true;
}

/* The descriptor of the request's step. */
static int prepare(struct session *s, struct kvc_slot *slot)
{
	static const uint32_t ops[] = {
		[KVC_STEP_STAT] = KVC_OP_STAT,	     [KVC_STEP_READ] = KVC_OP_READ,
		[KVC_STEP_WRITE_NEW] = KVC_OP_WRITE, [KVC_STEP_WRITE_OVER] = KVC_OP_WRITE,
		[KVC_STEP_REMOVE] = KVC_OP_REMOVE,   [KVC_STEP_REMOVE_WRONG] = KVC_OP_REMOVE,
		[KVC_STEP_SLOT_READ] = KVC_OP_READ,  [KVC_STEP_SLOT_WRITE] = KVC_OP_WRITE,
		[KVC_STEP_SLOT_SYNC] = KVC_OP_SYNC,
	};
	const struct kvc_settings *settings = s->queue->root->store->settings;
	struct kvc_request *request = slot->request;
	struct kvc_descriptor *d = &slot->descriptor;

	d->op = ops[request->step];
	d->flags = 0;
	d->container = request->packed ? request->place.container : NULL;
	d->offset = request->packed ? request->place.offset : 0;
	d->range_count = 0;
	d->deadline_ns = request->deadline_ns;
	if (request->step != KVC_STEP_REMOVE_WRONG)
		d->if_version[0] = d->if_version[1] = 0;
	if (request->packed)
		return d->op == KVC_OP_SYNC ?
			       0 :
			       kvc_ranges_build(slot, s->regions, d->op == KVC_OP_WRITE, false);
	if (d->op == KVC_OP_WRITE) {
		if (request->step == KVC_STEP_WRITE_NEW)
			d->flags |= KVC_DESCRIPTOR_IF_ABSENT;
		if (settings->durability == KVC_DURABILITY_FDATASYNC)
			d->flags |= KVC_DESCRIPTOR_DURABLE;
		return kvc_ranges_build(slot, s->regions, true, true);
	}
	if (d->op == KVC_OP_READ)
		return kvc_ranges_build(slot, s->regions, false,
					settings->verify != KVC_VERIFY_OFF);
	return 0;
}

/* Sends the slot's request on its way to its present step. */
static void begin_step(struct session *s, struct kvc_slot *slot)
{
	struct kvc_request *request = slot->request;
	int rc;

	if (!request->has_room &&
	    (request->step == KVC_STEP_WRITE_NEW || request->step == KVC_STEP_WRITE_OVER)) {
		request->has_room = has_room(s, request);
		if (!request->has_room) {
			finish(request, kvc_result_make(KVC_FULL, KVC_CAUSE_CAPACITY, ENOSPC));
			give_slot(s, slot);
			return;
		}
	}
	rc = prepare(s, slot);
	if (rc) {
		if (request->step == KVC_STEP_SLOT_WRITE)
			kvc_packed_abandon(request->arena, &request->place);
		finish(request, kvc_result_of_errno(-rc));
		give_slot(s, slot);
		return;
	}
	push_ready(s, slot);
}

/* Whether a request needs no I/O: its result is set then. */
static bool decided(const struct session *s, struct kvc_request *request, uint64_t now_ns)
{
	struct kvc_root *root = request->root;

	if (s->cancel && atomic_load_explicit(s->cancel, memory_order_relaxed)) {
		finish(request, kvc_result_make(KVC_SKIPPED, KVC_CAUSE_CANCELLED, 0));
		return true;
	}
	if (request->missed && *request->missed && request > *request->missed) {
		finish(request, kvc_result_make(KVC_SKIPPED, KVC_CAUSE_PREFIX_ENDED, 0));
		return true;
	}
	if (now_ns >= request->deadline_ns) {
		finish(request, kvc_result_make(KVC_TIMEOUT, KVC_CAUSE_DEADLINE, ETIMEDOUT));
		return true;
	}
	if ((request->op == KVC_SET || request->op == KVC_REMOVE) &&
	    (root->read_only || root->writes_refused)) {
		finish(request, kvc_result_make(KVC_DENIED, KVC_CAUSE_READ_ONLY, EROFS));
		return true;
	}
	if ((request->op == KVC_GET || request->op == KVC_EXISTS) &&
	    kvc_mark_active(&root->marks, request->mark_id)) {
		finish(request, kvc_result_make(KVC_MISS, KVC_CAUSE_MARKED, 0));
		return true;
	}
	return false;
}

static uint8_t first_step(const struct kvc_request *request)
{
	/* An overwrite looks first too: what it replaces is to be counted. */
	return request->op == KVC_GET ? KVC_STEP_READ : KVC_STEP_STAT;
}

/* ---------------------------------------------------------------- packed */

/* A set that does not keep what is there: told to, or it could not be read just now. */
static bool wants_over(const struct kvc_request *request)
{
	return (request->flags & KVC_TRANSFER_OVERWRITE) ||
	       kvc_mark_active(&request->root->marks, request->mark_id);
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

/* Whether the index of a packed root answers alone: what is not there, what a set finds there, and
 * removing. Else the request's place is that of the object that is to be read. */
static bool decided_by_index(struct kvc_request *request)
{
	const struct kvc_packed_key key = key_of(request);
	int rc;

	if (!request->packed)
		return false;
	rc = request->arena ? kvc_packed_find(request->arena, &key, &request->place) : -ENOENT;
	if (request->op == KVC_SET) {
		if (rc || wants_over(request))
			return false;
		kvc_packed_touch(request->arena, &request->place, request->stamp);
		finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_EXISTED, 0));
		return true;
	}
	if (rc)
		finish(request, kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0));
	else if (request->op == KVC_EXISTS)
		finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0));
	else if (request->op == KVC_REMOVE)
		finish(request, kvc_packed_remove(request->arena, &request->place) ?
					kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0) :
					kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0));
	else
		return false;
	return true;
}

/* Nothing could be claimed: who has the space? */
static struct kvc_result full(int error)
{
	if (error != -ENOSPC)
		return kvc_result_of_errno(-error);
	return kvc_result_make(KVC_FULL, KVC_CAUSE_NO_SPACE, ENOSPC);
}

/* A get that knows its slot, or a set that claims one. */
static void begin_slot(struct session *s, struct kvc_slot *slot)
{
	struct kvc_request *request = slot->request;
	const uint32_t intent =
		s->queue->number * KVC_QUEUE_SLOTS + (uint32_t)(slot - s->queue->slots);
	int rc = 0;

	request->step = request->op == KVC_GET ? KVC_STEP_SLOT_READ : KVC_STEP_SLOT_WRITE;
	if (request->op == KVC_SET)
		rc = request->arena ? kvc_packed_claim(request->arena, intent, &request->place) :
				      -ENOSPC;
	if (rc) {
		finish(request, full(rc));
		give_slot(s, slot);
		return;
	}
	begin_step(s, slot);
}

/*
 * The checksum was taken over the caller's memory, which others may have changed meanwhile (two
 * pages of a call at one index, an engine that reuses the page): that proves nothing of what is
 * stored. Once more, into memory of the library, decides.
 */
static bool read_again(struct session *s, struct kvc_slot *slot, struct kvc_result result)
{
	struct kvc_request *request = slot->request;

	if (result.cause != KVC_CAUSE_CHECKSUM || request->bounced ||
	    kvc_now_ns() >= request->deadline_ns)
		return false;
	request->bounced = true;
	begin_step(s, slot);
	return true;
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
	if ((uint64_t)c->result < request->shape->stored_bytes - KVC_TRAILER_BYTES)
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

static void slot_read_done(struct session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	struct kvc_result result;

	if (c->result < 0) {
		finish(request, kvc_result_of_errno((int)-c->result));
		give_slot(s, slot);
		return;
	}
	result = judge_slot(slot, c);
	if (read_again(s, slot, result))
		return;
	finish(request, result);
	if (result.status == KVC_OK) {
		kvc_packed_touch(request->arena, &request->place, request->stamp);
		if (kvc_packed_is_suspect(&request->place))
			kvc_packed_trust(request->arena, &request->place);
	} else if (result.status == KVC_CORRUPT && kvc_verify_removable(request, result) &&
		   kvc_packed_remove(request->arena, &request->place)) {
		kvc_counters_add(request->root->store->counters, KVC_COUNTER_REMOVED_CORRUPT, 1);
	}
	give_slot(s, slot);
}

/* SET 4 to 6. */
static void publish_slot(struct session *s, struct kvc_slot *slot)
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
		.overwrite = wants_over(request),
	};
	const int rc = kvc_packed_publish(request->arena, &request->place, &meta);

	finish(request,
	       rc < 0 ? kvc_result_of_errno(-rc) :
			kvc_result_make(KVC_OK, rc ? KVC_CAUSE_EXISTED : KVC_CAUSE_NONE, 0));
	give_slot(s, slot);
}

static void slot_write_done(struct session *s, struct kvc_slot *slot,
			    const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	const struct kvc_settings *settings = request->root->store->settings;
	const uint64_t want = request->shape->stored_bytes - KVC_TRAILER_BYTES;

	if (c->result < 0 ||
	    (request->step == KVC_STEP_SLOT_WRITE && (uint64_t)c->result != want)) {
		kvc_packed_abandon(request->arena, &request->place);
		finish(request, kvc_result_of_errno(c->result < 0 ? (int)-c->result : EIO));
		give_slot(s, slot);
		return;
	}
	if (!slot->has_checksum)
		kvc_ranges_checksum(slot);
	if (request->step == KVC_STEP_SLOT_WRITE &&
	    settings->durability == KVC_DURABILITY_FDATASYNC) {
		request->step = KVC_STEP_SLOT_SYNC;
		begin_step(s, slot);
		return;
	}
	publish_slot(s, slot);
}

/* The checksum of one set whose data is on its way. */
static bool hash_one(struct session *s)
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

static void begin(struct session *s, uint64_t now_ns)
{
	for (uint32_t begun = 0; s->todo && begun < BEGIN_AT_ONCE;) {
		struct kvc_request *request = s->todo;
		struct kvc_slot *slot;
		int length;

		if (decided(s, request, now_ns) || decided_by_index(request)) {
			s->todo = request->next;
			continue;
		}
		/* Copies in flight are bounded by this and what was begun together. Slots are used
		 * last in, first out, so that few of them ever hold an image. */
		if (s->queue->bounce_in_use >= BOUNCE_BYTES)
			return;
		slot = take_slot(s);
		if (!slot)
			return;
		s->todo = request->next;
		slot->request = request;
		if (request->packed) {
			begin_slot(s, slot);
			begun++;
			continue;
		}
		request->step = first_step(request);
		length = kvc_xfer_path(request->root, request->folder, request->hash_folder,
				       request->name, request->name_bytes, slot->path,
				       sizeof(slot->path));
		if (length < 0) {
			finish(request, kvc_result_make(KVC_ERROR, KVC_CAUSE_NAME, ENAMETOOLONG));
			give_slot(s, slot);
			continue;
		}
		slot->descriptor.name_bytes = (uint32_t)length;
		begin_step(s, slot);
		begun++;
	}
}

/* ---------------------------------------------------------------- submit */

/* Ends everything that the plugin has not accepted. */
static void drop_ready(struct session *s, struct kvc_result result)
{
	struct kvc_slot *slot = s->ready;

	while (slot) {
		struct kvc_slot *next = slot->next;

		if (slot->request->step == KVC_STEP_SLOT_WRITE ||
		    slot->request->step == KVC_STEP_SLOT_SYNC)
			kvc_packed_abandon(slot->request->arena, &slot->request->place);
		if (slot->request->step != KVC_STEP_REMOVE_WRONG)
			finish(slot->request, result);
		give_slot(s, slot);
		slot = next;
	}
	s->ready = NULL;
	s->ready_end = &s->ready;
}

static void break_queue(struct session *s, int error)
{
	const struct kvc_result result = kvc_result_of_errno(error);

	s->queue->broken = true;
	s->error = error;
	drop_ready(s, result);
	for (; s->todo; s->todo = s->todo->next)
		finish(s->todo, result);
	(void)s->queue->root->backend->module->ops.cancel(s->queue->handle, NULL, 0);
}

/* Hands over what is ready, as much as the plugin takes. */
static void submit(struct session *s)
{
	const struct kvc_plugin *ops = &s->queue->root->backend->module->ops;
	const struct kvc_descriptor *batch[KVC_QUEUE_SLOTS];
	uint32_t count = 0;
	int accepted;

	for (struct kvc_slot *slot = s->ready; slot; slot = slot->next)
		batch[count++] = &slot->descriptor;
	if (count == 0)
		return;
	accepted = ops->submit(s->queue->handle, batch, count);
	if (accepted < 0 && accepted != -EAGAIN) {
		break_queue(s, -accepted);
		return;
	}
	if (accepted > (int)count)
		accepted = (int)count;
	if (accepted < (int)count)
		kvc_counters_add(s->queue->root->store->counters, KVC_COUNTER_RETRIES, 1);
	for (int i = 0; i < accepted; i++) {
		struct kvc_slot *slot = s->ready;

		s->ready = slot->next;
		slot->in_flight = true;
		s->queue->in_flight++;
		s->queue->moving += moves(slot);
		s->queue->unhashed += is_unhashed(slot);
	}
	if (!s->ready)
		s->ready_end = &s->ready;
}

/* ---------------------------------------------------------------- completions */

/* What an object that goes takes with it; a size that the plugin cannot tell counts as none. */
static void note_previous(struct kvc_request *request, const struct kvc_completion *c)
{
	request->replaces = c->result >= 0 || c->result == -EEXIST;
	request->previous_bytes =
		!request->replaces || c->object_bytes == KVC_BYTES_UNKNOWN ? 0 : c->object_bytes;
}

static bool has_version(const struct kvc_completion *completion)
{
	return completion->version[0] || completion->version[1];
}

/* The object was proven wrong: away with this version of it, if nobody has replaced it. */
static bool remove_wrong(struct session *s, struct kvc_slot *slot,
			 const struct kvc_completion *completion)
{
	struct kvc_request *request = slot->request;

	/* Past the deadline nothing was read again: a checksum alone is no proof then. */
	if (!kvc_verify_removable(request, request->result) ||
	    kvc_verify_is_guess(request, request->result) || !has_version(completion) ||
	    kvc_now_ns() >= request->deadline_ns)
		return false;
	request->step = KVC_STEP_REMOVE_WRONG;
	note_previous(request, completion);
	slot->descriptor.if_version[0] = completion->version[0];
	slot->descriptor.if_version[1] = completion->version[1];
	begin_step(s, slot);
	return true;
}

static void read_done(struct session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;

	if (c->result >= 0) {
		const struct kvc_result result = kvc_verify_read(slot, c);

		if (read_again(s, slot, result))
			return;
		finish(request, result);
		if (remove_wrong(s, slot, c))
			return;
	} else {
		finish(request, kvc_result_of_errno((int)-c->result));
	}
	give_slot(s, slot);
}

static void stat_done(struct session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	/* Where sizes are not known, a get finds out whether it is whole. */
	const bool there = c->result >= 0 && (c->object_bytes == KVC_BYTES_UNKNOWN ||
					      kvc_verify_size(request, c->object_bytes));

	if (c->result < 0 && c->result != -ENOENT) {
		finish(request, kvc_result_of_errno((int)-c->result));
	} else if (request->op == KVC_SET && (!there || wants_over(request))) {
		request->step = c->result < 0 ? KVC_STEP_WRITE_NEW : KVC_STEP_WRITE_OVER;
		note_previous(request, c);
		begin_step(s, slot);
		return;
	} else if (request->op == KVC_REMOVE && c->result >= 0) {
		request->step = KVC_STEP_REMOVE;
		note_previous(request, c);
		begin_step(s, slot);
		return;
	} else if (there) {
		finish(request,
		       kvc_result_make(KVC_OK,
				       request->op == KVC_SET ? KVC_CAUSE_EXISTED : KVC_CAUSE_NONE,
				       0));
	} else if (c->result < 0) {
		finish(request, kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0));
	} else {
		finish(request, kvc_result_make(KVC_MISS,
						c->object_bytes < request->shape->stored_bytes ?
							KVC_CAUSE_SHORT :
							KVC_CAUSE_LONG,
						0));
	}
	give_slot(s, slot);
}

static void write_done(struct session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;

	if (c->result == -EEXIST && request->step == KVC_STEP_WRITE_NEW) {
		/* Another writer was first: its object is as good, when it is whole. Where only a
		 * STAT tells the size, that is asked. */
		if (kvc_verify_size(request, c->object_bytes) && !wants_over(request)) {
			finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_EXISTED, 0));
		} else {
			request->step = c->object_bytes == KVC_BYTES_UNKNOWN ? KVC_STEP_STAT :
									       KVC_STEP_WRITE_OVER;
			note_previous(request, c);
			begin_step(s, slot);
			return;
		}
	} else if (c->result < 0) {
		finish(request, c->result == -ENOENT ?
					kvc_result_make(KVC_ERROR, KVC_CAUSE_IO, ENOENT) :
					kvc_result_of_errno((int)-c->result));
	} else if ((uint64_t)c->result != request->shape->stored_bytes) {
		finish(request, kvc_result_make(KVC_ERROR, KVC_CAUSE_IO, EIO));
	} else {
		finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0));
	}
	give_slot(s, slot);
}

static void remove_done(struct session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	struct kvc_root *root = request->root;

	if (request->step == KVC_STEP_REMOVE_WRONG) {
		/* The result stands since the read. */
		if (c->result >= 0) {
			kvc_usage_add(root->usage,
				      kvc_root_usage_key(root, request->shape->ns_hash),
				      -(int64_t)request->previous_bytes, -1);
			kvc_counters_add(root->store->counters, KVC_COUNTER_REMOVED_CORRUPT, 1);
		}
	} else if (c->result < 0) {
		finish(request, kvc_result_of_errno((int)-c->result));
	} else {
		finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0));
	}
	give_slot(s, slot);
}

/* Some host memory cannot take part in direct I/O: that object goes by the library's memory. */
static bool bounce_again(struct session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;

	if ((c->result != -EINVAL && c->result != -EFAULT) || request->bounced ||
	    (slot->descriptor.op != KVC_OP_READ && slot->descriptor.op != KVC_OP_WRITE))
		return false;
	request->bounced = true;
	kvc_root_warn(request->root, KVC_WARN_BOUNCE,
		      "memory cannot take part in its I/O and is copied instead", (int)-c->result);
	begin_step(s, slot);
	return true;
}

static void complete(struct session *s, struct kvc_completion *c)
{
	struct kvc_slot *slot = (struct kvc_slot *)(uintptr_t)c->cookie;
	const uintptr_t first = (uintptr_t)s->queue->slots, at = (uintptr_t)slot;

	/* A second completion, or one of nobody, would be credited to another object. */
	if (at < first || at >= (uintptr_t)(s->queue->slots + KVC_QUEUE_SLOTS) ||
	    (at - first) % sizeof(*slot) || !slot->in_flight) {
		kvc_root_warn(s->queue->root, KVC_WARN_IO, "plugin: completion of nothing", EPROTO);
		return;
	}
	slot->in_flight = false;
	s->queue->in_flight--;
	s->queue->moving -= moves(slot);
	s->queue->unhashed -= is_unhashed(slot);
	/* Nothing that a plugin may say is an errno beyond the usual. */
	if (c->result < -MAX_ERRNO)
		c->result = -EPROTO;
	if (c->result == -ECANCELED && s->error)
		c->result = -s->error;
	if (bounce_again(s, slot, c))
		return;
	switch (slot->request->step) {
	case KVC_STEP_STAT:
		stat_done(s, slot, c);
		break;
	case KVC_STEP_READ:
		read_done(s, slot, c);
		break;
	case KVC_STEP_WRITE_NEW:
	case KVC_STEP_WRITE_OVER:
		write_done(s, slot, c);
		break;
	case KVC_STEP_SLOT_READ:
		slot_read_done(s, slot, c);
		break;
	case KVC_STEP_SLOT_WRITE:
	case KVC_STEP_SLOT_SYNC:
		slot_write_done(s, slot, c);
		break;
	default:
		remove_done(s, slot, c);
		break;
	}
}

/* ---------------------------------------------------------------- driving */

static bool active(const struct session *s)
{
	return s->todo || s->ready || s->queue->in_flight;
}

/* At the deadline: nothing new; hard roots give up what is in flight. */
static void expire(struct session *s, uint64_t now_ns)
{
	if (now_ns < s->deadline_ns)
		return;
	drop_ready(s, kvc_result_make(KVC_TIMEOUT, KVC_CAUSE_DEADLINE, ETIMEDOUT));
	if (s->kind == KVC_DEADLINE_HARD && !s->cancelled && s->queue->in_flight) {
		s->cancelled = true;
		(void)s->queue->root->backend->module->ops.cancel(s->queue->handle, NULL, 0);
	}
}

/* One round: begin, submit, poll, verify. Returns the number of completions. */
static uint32_t step(struct session *s, uint64_t wait_ns)
{
	const struct kvc_plugin *ops = &s->queue->root->backend->module->ops;
	struct kvc_completion done[COMPLETIONS];
	uint64_t now_ns = kvc_now_ns();
	int count;

	begin(s, now_ns);
	expire(s, now_ns);
	submit(s);
	if (s->queue->in_flight == 0) {
		if (s->ready && wait_ns) {
			/* Refused although nothing is in flight: ask again in a moment. */
			const struct timespec pause = kvc_timespec(50000);

			(void)nanosleep(&pause, NULL);
		}
		return 0;
	}
	if (now_ns < s->deadline_ns && wait_ns > s->deadline_ns - now_ns)
		wait_ns = s->deadline_ns - now_ns;
	/* More could be begun: only look. */
	if (s->todo && s->queue->free && !s->ready && s->queue->bounce_in_use < BOUNCE_BYTES)
		wait_ns = 0;
	/* A checksum instead of waiting. */
	if (hash_one(s))
		wait_ns = 0;
	count = ops->poll(s->queue->handle, done, COMPLETIONS, wait_ns);
	if (count > (int)COMPLETIONS)
		count = -EPROTO;
	if (count < 0) {
		/* cancel() makes the plugin settle what it holds; until then it owns the memory. */
		const struct timespec pause = kvc_timespec(1000000);

		break_queue(s, -count);
		(void)nanosleep(&pause, NULL);
		return 0;
	}
	s->waited = count == 0;
	if (count > 0) {
		now_ns = kvc_now_ns();
		if (now_ns > s->deadline_ns)
			s->late_ns = now_ns - s->deadline_ns;
		/* The device gets its next work before the CPU looks at the bytes that came. */
		if ((s->todo || s->ready) && s->queue->moving > 0) {
			begin(s, now_ns);
			expire(s, now_ns);
			submit(s);
		}
	}
	for (int i = 0; i < count; i++)
		complete(s, &done[i]);
	return (uint32_t)count;
}

/* Once at the end of a session: whether I/O of this root came back too late. */
static void note_end(struct session *s)
{
	struct kvc_root *root = s->queue->root;

	if (s->ended)
		return;
	s->ended = true;
	if (s->packed)
		kvc_packed_leave(s->packed, s->turn);
	if (s->late_ns == 0 || s->kind != KVC_DEADLINE_SOFT)
		return;
	kvc_counters_add(root->store->counters, KVC_COUNTER_OVERRUNS, 1);
	if (s->late_ns > SUSPECT_NS && kvc_root_suspect(root))
		kvc_log(KVC_LOG_WARNING,
			"%s: I/O came back %llu ms after its deadline; for now transfers go "
			"through memory of the library and are abandoned in time",
			root->location, (unsigned long long)(s->late_ns / 1000000));
}

/* The mappings of a packed root's index stay while the session runs. The requests get their logical
 * times, the first of a prefix the latest. */
static void enter_index(struct session *s, struct kvc_request *list)
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
		if (r->packed)
			r->stamp = stamp--;
}

static void session_init(struct session *s, struct kvc_queue *queue, struct kvc_request *list,
			 const struct kvc_regions *regions, const atomic_bool *cancel)
{
	*s = (struct session){
		.queue = queue,
		.todo = list,
		.regions = regions,
		.cancel = cancel,
		.kind = queue->root->attributes.flags & KVC_ATTRIBUTE_CANCELLABLE ?
				KVC_DEADLINE_HARD :
				KVC_DEADLINE_SOFT,
	};
	s->ready_end = &s->ready;
	enter_index(s, list);
	for (; list; list = list->next)
		if (list->deadline_ns > s->deadline_ns)
			s->deadline_ns = list->deadline_ns;
}

void kvc_xfer_drive(struct kvc_queue *queue, struct kvc_request *list,
		    const struct kvc_regions *regions, const atomic_bool *cancel)
{
	struct session s;

	session_init(&s, queue, list, regions, cancel);
	while (active(&s))
		(void)step(&s, SLICE_NS);
	note_end(&s);
}

/* Sleeps until one of several queues has something, or a moment has passed. */
static void wait_any(struct session *sessions, size_t count)
{
	struct pollfd fds[KVC_ROOTS_MAX];
	const uint64_t now_ns = kvc_now_ns();
	uint64_t wait_ns = SLICE_NS;
	struct timespec timeout;
	nfds_t n = 0;

	for (size_t i = 0; i < count; i++) {
		struct session *s = &sessions[i];
		int fd;

		if (!active(s))
			continue;
		fd = s->waited && !s->ready ?
			     s->queue->root->backend->module->ops.event_fd(s->queue->handle) :
			     -1;
		if (now_ns < s->deadline_ns && wait_ns > s->deadline_ns - now_ns)
			wait_ns = s->deadline_ns - now_ns;
		if (fd < 0)
			wait_ns = wait_ns < SHARED_SLICE_NS ? wait_ns : SHARED_SLICE_NS;
		else
			fds[n++] = (struct pollfd){ .fd = fd, .events = POLLIN };
	}
	timeout = kvc_timespec(wait_ns);
	(void)ppoll(fds, n, &timeout, NULL);
}

static void drive_all(struct session *sessions, size_t count)
{
	for (;;) {
		uint32_t moved = 0;
		size_t busy = 0, last = 0;

		for (size_t i = 0; i < count; i++) {
			if (!active(&sessions[i])) {
				note_end(&sessions[i]);
				continue;
			}
			busy++;
			last = i;
		}
		if (busy == 0)
			break;
		if (busy == 1) {
			(void)step(&sessions[last], SLICE_NS);
			continue;
		}
		for (size_t i = 0; i < count; i++)
			if (active(&sessions[i]))
				moved += step(&sessions[i], 0);
		if (moved == 0)
			wait_any(sessions, count);
	}
	for (size_t i = 0; i < count; i++)
		note_end(&sessions[i]);
}

int kvc_xfer_fill(void *context, uint64_t cookie)
{
	struct kvc_slot *slot = (struct kvc_slot *)(uintptr_t)cookie;

	(void)context;
	kvc_ranges_checksum(slot);
	kvc_ranges_trailer(slot, slot->checksum);
	return 0;
}

static void fail_list(struct kvc_request *list, int error)
{
	for (; list; list = list->next)
		finish(list, kvc_result_of_errno(error));
}

static uint64_t latest_deadline(const struct kvc_request *list)
{
	uint64_t latest = 0;

	for (; list; list = list->next)
		latest = list->deadline_ns > latest ? list->deadline_ns : latest;
	return latest;
}

/* Sorts the requests by root, each list in the order given. */
static void split_by_root(const struct kvc_store *store, struct kvc_request *requests, size_t count,
			  struct kvc_request **lists)
{
	struct kvc_request **ends[KVC_ROOTS_MAX];

	for (size_t r = 0; r < store->root_count; r++) {
		lists[r] = NULL;
		ends[r] = &lists[r];
	}
	for (size_t i = 0; i < count; i++) {
		struct kvc_request *request = &requests[i];
		size_t r = 0;

		while (store->roots[r] != request->root)
			r++;
		request->next = NULL;
		*ends[r] = request;
		ends[r] = &request->next;
	}
}

/* A session on each root whose list is left, on a free queue, or when told so on the first that is
 * given back in time. Lists that have one, or that failed, are taken out. */
static size_t open_sessions(const struct kvc_store *store, struct kvc_request **lists,
			    const struct kvc_regions *regions, const atomic_bool *cancel, bool wait,
			    struct session *sessions)
{
	size_t count = 0;

	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_request *list = lists[r];
		struct kvc_queue *queue;
		int rc;

		if (!list)
			continue;
		rc = kvc_queue_lease(store->roots[r], wait ? latest_deadline(list) : 0, &queue);
		if (rc == -ETIMEDOUT && !wait)
			continue;
		lists[r] = NULL;
		if (rc)
			fail_list(list, -rc);
		else
			session_init(&sessions[count++], queue, list, regions, cancel);
	}
	return count;
}

/* All staged roots side by side: one that stalls does not keep the next part of another back. */
static void finish_jobs(struct kvc_stage_job **jobs, size_t count)
{
	for (;;) {
		struct kvc_stage_job *waited = NULL;
		size_t left = 0;

		for (size_t r = 0; r < count; r++) {
			if (jobs[r] && !kvc_stage_advance(jobs[r], 0)) {
				kvc_stage_finish(jobs[r]);
				jobs[r] = NULL;
			}
			if (jobs[r]) {
				waited = jobs[r];
				left++;
			}
		}
		if (left == 0)
			return;
		(void)kvc_stage_advance(waited,
					left == 1 ? UINT64_MAX : kvc_now_ns() + STAGED_SLICE_NS);
	}
}

void kvc_xfer_run(struct kvc_store *store, struct kvc_request *requests, size_t count,
		  const atomic_bool *cancel)
{
	struct kvc_regions *regions = kvc_regions_acquire(store);
	struct kvc_request *lists[KVC_ROOTS_MAX];
	struct kvc_stage_job *jobs[KVC_ROOTS_MAX];
	struct session sessions[KVC_ROOTS_MAX];

	split_by_root(store, requests, count, lists);
	for (size_t r = 0; r < store->root_count; r++) {
		jobs[r] = NULL;
		if (!lists[r] || kvc_root_deadline_kind(store->roots[r]) != KVC_DEADLINE_STAGED)
			continue;
		/* NULL: every request has its result. */
		jobs[r] = kvc_stage_begin(store->roots[r], lists[r], cancel);
		lists[r] = NULL;
	}
	/* First the roots with a free queue: one that is busy or stalls holds up no other. */
	for (int wait = 0; wait < 2; wait++) {
		const size_t opened = open_sessions(store, lists, regions, cancel, wait, sessions);

		drive_all(sessions, opened);
		for (size_t i = 0; i < opened; i++)
			kvc_queue_return(sessions[i].queue);
	}
	finish_jobs(jobs, store->root_count);
	kvc_regions_release(regions);
}
