/* SPDX-License-Identifier: Apache-2.0 */
#include "core/xfer_session.h"

#include "core/cleaner.h"
#include "core/clock.h"
#include "core/folder.h"
#include "core/format.h"
#include "core/ghost.h"
#include "core/ranges.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/usage.h"
#include "core/verify.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Begun at a time: so few that slots whose I/O is done at once (a stat) are used again while they
 * are in the CPU's cache. */
#define BEGIN_AT_ONCE 16u
#define MAX_ERRNO     4095
#define PAUSES_MAX    200u /* of a millisecond, in one call */
#define SPACE_TRIES   6u

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

/* A slot that was given to another object while it was read: that it cannot be loaded is no
 * property of the object. */
static bool is_recycled(const struct kvc_request *request, struct kvc_result result)
{
	return request->packed && result.cause == KVC_CAUSE_RECYCLED;
}

/* Not there: was it, until not long ago? Of those that stop at a miss only the first counts: the
 * others were looked for before it was known. */
static void count_ghost(const struct kvc_request *request, struct kvc_result result)
{
	const struct kvc_root *root = request->root;

	if ((request->op == KVC_GET || request->op == KVC_EXISTS) && result.status == KVC_MISS &&
	    result.cause == KVC_CAUSE_ABSENT && (!request->missed || *request->missed == request) &&
	    kvc_ghost_has(root->ghosts, request->g))
		kvc_counters_add(root->store->counters, KVC_COUNTER_GHOST_HITS, 1);
}

/* Marks and the counter of own bytes follow from the result. */
void kvc_session_finish(struct kvc_request *request, struct kvc_result result)
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
	count_ghost(request, result);
	if (result.status != KVC_OK && result.status != KVC_SKIPPED)
		warn_result(root, request);
	if (request->done)
		atomic_store_explicit(request->done, true, memory_order_release);
	if (request->op == KVC_SET && result.status == KVC_OK) {
		kvc_mark_clear(&root->marks, id);
		if (result.cause != KVC_CAUSE_EXISTED && !request->packed)
			kvc_usage_change(root->usage, key, kvc_folder_number(request->hash_folder),
					 (int64_t)request->shape->stored_bytes -
						 (int64_t)request->previous_bytes,
					 request->replaces ? 0 : 1);
	} else if (request->op == KVC_REMOVE && result.status == KVC_OK && !request->packed) {
		kvc_usage_removed(root->usage, &request->before, key,
				  kvc_folder_number(request->hash_folder), request->previous_bytes);
	} else if (request->op == KVC_GET && !kvc_verify_is_guess(request, result) &&
		   (result.status == KVC_CORRUPT ||
		    (result.status == KVC_MISS && result.cause != KVC_CAUSE_ABSENT &&
		     result.cause != KVC_CAUSE_MARKED && !is_recycled(request, result)) ||
		    (result.status == KVC_ERROR && result.cause == KVC_CAUSE_IO))) {
		kvc_mark_failed(&root->marks, id);
	}
	if (request->has_room && root->files)
		kvc_files_settle(root, request->shape->stored_bytes);
	if (result.status == KVC_OK && (request->op == KVC_GET || request->op == KVC_SET))
		kvc_stamp_used(request,
			       request->op == KVC_SET && result.cause != KVC_CAUSE_EXISTED);
}

/* ---------------------------------------------------------------- slots */

static struct kvc_slot *take_slot(struct kvc_session *s)
{
	struct kvc_slot *slot = s->queue->free;

	if (slot)
		s->queue->free = slot->next;
	return slot;
}

void kvc_session_give_slot(struct kvc_session *s, struct kvc_slot *slot)
{
	kvc_ranges_release(slot);
	slot->request = NULL;
	slot->next = s->queue->free;
	s->queue->free = slot;
}

bool kvc_session_moves(const struct kvc_slot *slot)
{
	return slot->descriptor.op == KVC_OP_READ || slot->descriptor.op == KVC_OP_WRITE;
}

static bool is_unhashed(const struct kvc_slot *slot)
{
	return slot->request->step == KVC_STEP_SLOT_WRITE && !slot->has_checksum;
}

static void push_ready(struct kvc_session *s, struct kvc_slot *slot)
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

/* Without a cleaner, asked for once per run. */
static bool has_counted_room(struct kvc_session *s, const struct kvc_request *request)
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

/* Takes the request's bytes from what `capacity`, `min_free` and the watermarks leave. What the
 * device has is asked for once per run, and when that is used up. */
static bool has_room(struct kvc_session *s, struct kvc_request *request)
{
	const uint64_t bytes = request->shape->stored_bytes;

	if (!request->root->files)
		return has_counted_room(s, request);
	if (!kvc_files_admit(request->root, request->shape->ns_hash, bytes, request->deadline_ns))
		return false;
	if (s->room >= bytes && s->room_known) {
		s->room -= bytes;
		return true;
	}
	s->room_known = true;
	if (kvc_files_admit_device(request->root, bytes, request->deadline_ns, &s->room))
		return true;
	kvc_files_settle(request->root, bytes);
	return false;
}

/* Whether there may be room in a moment: what is being written can be taken away once it is
 * there. */
static bool may_have_room(struct kvc_session *s, const struct kvc_request *request)
{
	if (!request->root->files || kvc_now_ns() >= request->deadline_ns ||
	    !request->root->store->settings->l3_cleaner_enabled ||
	    (request->root->capacity_bytes &&
	     request->shape->stored_bytes > request->root->capacity_bytes) ||
	    kvc_files_is_left_to_others(request->root, request->shape->stored_bytes))
		return false;
	if (s->queue->in_flight || s->ready)
		return true;
	if (!kvc_files_is_pending(request->root) || s->pauses == PAUSES_MAX)
		return false;
	s->pauses++;
	return true;
}

/* There is no room: later, or never. */
static void put_off(struct kvc_session *s, struct kvc_slot *slot)
{
	struct kvc_request *request = slot->request;

	if (may_have_room(s, request)) {
		request->next = s->todo;
		s->todo = request;
		s->parked = true;
	} else {
		kvc_session_finish(request, kvc_result_make(KVC_FULL, KVC_CAUSE_CAPACITY, ENOSPC));
	}
	kvc_session_give_slot(s, slot);
}

/* The descriptor of the request's step. */
static int prepare(struct kvc_session *s, struct kvc_slot *slot)
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

void kvc_session_begin_step(struct kvc_session *s, struct kvc_slot *slot)
{
	struct kvc_request *request = slot->request;
	int rc;

	if (!request->has_room &&
	    (request->step == KVC_STEP_WRITE_NEW || request->step == KVC_STEP_WRITE_OVER)) {
		request->has_room = has_room(s, request);
		if (!request->has_room) {
			put_off(s, slot);
			return;
		}
	}
	if (request->step == KVC_STEP_REMOVE || request->step == KVC_STEP_REMOVE_WRONG)
		request->before = kvc_usage_before(request->root->usage);
	rc = prepare(s, slot);
	if (rc) {
		if (request->step == KVC_STEP_SLOT_WRITE)
			kvc_packed_abandon(request->arena, &request->place);
		kvc_session_finish(request, kvc_result_of_errno(-rc));
		kvc_session_give_slot(s, slot);
		return;
	}
	push_ready(s, slot);
}

/* Whether a request needs no I/O: its result is set then. */
static bool decided(const struct kvc_session *s, struct kvc_request *request, uint64_t now_ns)
{
	struct kvc_root *root = request->root;

	if (s->cancel && atomic_load_explicit(s->cancel, memory_order_relaxed)) {
		kvc_session_finish(request, kvc_result_make(KVC_SKIPPED, KVC_CAUSE_CANCELLED, 0));
		return true;
	}
	if (request->missed && *request->missed && request > *request->missed) {
		kvc_session_finish(request,
				   kvc_result_make(KVC_SKIPPED, KVC_CAUSE_PREFIX_ENDED, 0));
		return true;
	}
	if (now_ns >= request->deadline_ns) {
		kvc_session_finish(request,
				   kvc_result_make(KVC_TIMEOUT, KVC_CAUSE_DEADLINE, ETIMEDOUT));
		return true;
	}
	if ((request->op == KVC_SET || request->op == KVC_REMOVE) &&
	    (root->read_only || root->writes_refused)) {
		kvc_session_finish(request,
				   kvc_result_make(KVC_DENIED, KVC_CAUSE_READ_ONLY, EROFS));
		return true;
	}
	if ((request->op == KVC_GET || request->op == KVC_EXISTS) &&
	    kvc_mark_active(&root->marks, request->mark_id)) {
		kvc_session_finish(request, kvc_result_make(KVC_MISS, KVC_CAUSE_MARKED, 0));
		return true;
	}
	return false;
}

static uint8_t first_step(const struct kvc_request *request)
{
	/* An overwrite looks first too: what it replaces is to be counted. */
	return request->op == KVC_GET ? KVC_STEP_READ : KVC_STEP_STAT;
}

bool kvc_session_wants_over(const struct kvc_request *request)
{
	return (request->flags & KVC_TRANSFER_OVERWRITE) ||
	       kvc_mark_active(&request->root->marks, request->mark_id);
}

/*
 * The checksum was taken over the caller's memory, which others may have changed meanwhile (two
 * pages of a call at one index, an engine that reuses the page): that proves nothing of what is
 * stored. Once more, into memory of the library, decides.
 */
bool kvc_session_read_again(struct kvc_session *s, struct kvc_slot *slot, struct kvc_result result)
{
	struct kvc_request *request = slot->request;

	if (result.cause != KVC_CAUSE_CHECKSUM || request->bounced ||
	    kvc_now_ns() >= request->deadline_ns)
		return false;
	request->bounced = true;
	kvc_session_begin_step(s, slot);
	return true;
}

void kvc_session_begin(struct kvc_session *s, uint64_t now_ns)
{
	for (uint32_t begun = 0; s->todo && !s->parked && begun < BEGIN_AT_ONCE;) {
		struct kvc_request *request = s->todo;
		struct kvc_slot *slot;
		int length;

		if (decided(s, request, now_ns) || kvc_session_decided_by_index(request)) {
			s->todo = request->next;
			continue;
		}
		/* Copies in flight are bounded by this and what was begun together. Slots are used
		 * last in, first out, so that few of them ever hold an image. */
		if (s->queue->bounce_in_use >= KVC_SESSION_BOUNCE_BYTES)
			return;
		slot = take_slot(s);
		if (!slot)
			return;
		s->todo = request->next;
		slot->request = request;
		if (request->packed) {
			kvc_session_begin_slot(s, slot);
			begun++;
			continue;
		}
		request->step = first_step(request);
		length = kvc_xfer_path(request->root, request->folder, request->hash_folder,
				       request->name, request->name_bytes, slot->path,
				       sizeof(slot->path));
		if (length < 0) {
			kvc_session_finish(request, kvc_result_make(KVC_ERROR, KVC_CAUSE_NAME,
								    ENAMETOOLONG));
			kvc_session_give_slot(s, slot);
			continue;
		}
		slot->descriptor.name_bytes = (uint32_t)length;
		kvc_session_begin_step(s, slot);
		begun++;
	}
}

/* ---------------------------------------------------------------- submit */

void kvc_session_drop_ready(struct kvc_session *s, struct kvc_result result)
{
	struct kvc_slot *slot = s->ready;

	while (slot) {
		struct kvc_slot *next = slot->next;

		if (slot->request->step == KVC_STEP_SLOT_WRITE ||
		    slot->request->step == KVC_STEP_SLOT_SYNC)
			kvc_packed_abandon(slot->request->arena, &slot->request->place);
		if (slot->request->step != KVC_STEP_REMOVE_WRONG)
			kvc_session_finish(slot->request, result);
		kvc_session_give_slot(s, slot);
		slot = next;
	}
	s->ready = NULL;
	s->ready_end = &s->ready;
}

void kvc_session_break_queue(struct kvc_session *s, int error)
{
	const struct kvc_result result = kvc_result_of_errno(error);

	s->queue->broken = true;
	s->error = error;
	kvc_session_drop_ready(s, result);
	for (; s->todo; s->todo = s->todo->next)
		kvc_session_finish(s->todo, result);
	(void)s->queue->root->backend->module->ops.cancel(s->queue->handle, NULL, 0);
}

void kvc_session_submit(struct kvc_session *s)
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
		kvc_session_break_queue(s, -accepted);
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
		s->queue->moving += kvc_session_moves(slot);
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
static bool remove_wrong(struct kvc_session *s, struct kvc_slot *slot,
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
	kvc_session_begin_step(s, slot);
	return true;
}

static void read_done(struct kvc_session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;

	if (c->result >= 0) {
		const struct kvc_result result = kvc_verify_read(slot, c);

		if (kvc_session_read_again(s, slot, result))
			return;
		kvc_session_finish(request, result);
		if (remove_wrong(s, slot, c))
			return;
	} else {
		kvc_session_finish(request, kvc_result_of_errno((int)-c->result));
	}
	kvc_session_give_slot(s, slot);
}

static void stat_done(struct kvc_session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	/* Where sizes are not known, a get finds out whether it is whole. */
	const bool there = c->result >= 0 && (c->object_bytes == KVC_BYTES_UNKNOWN ||
					      kvc_verify_size(request, c->object_bytes));

	if (c->result < 0 && c->result != -ENOENT) {
		kvc_session_finish(request, kvc_result_of_errno((int)-c->result));
	} else if (request->op == KVC_SET && (!there || kvc_session_wants_over(request))) {
		request->step = c->result < 0 ? KVC_STEP_WRITE_NEW : KVC_STEP_WRITE_OVER;
		note_previous(request, c);
		kvc_session_begin_step(s, slot);
		return;
	} else if (request->op == KVC_REMOVE && c->result >= 0) {
		request->step = KVC_STEP_REMOVE;
		note_previous(request, c);
		kvc_session_begin_step(s, slot);
		return;
	} else if (there) {
		kvc_session_finish(request,
				   kvc_result_make(KVC_OK,
						   request->op == KVC_SET ? KVC_CAUSE_EXISTED :
									    KVC_CAUSE_NONE,
						   0));
	} else if (c->result < 0) {
		kvc_session_finish(request, kvc_result_make(KVC_MISS, KVC_CAUSE_ABSENT, 0));
	} else {
		kvc_session_finish(request,
				   kvc_result_make(KVC_MISS,
						   c->object_bytes < request->shape->stored_bytes ?
							   KVC_CAUSE_SHORT :
							   KVC_CAUSE_LONG,
						   0));
	}
	kvc_session_give_slot(s, slot);
}

/* The device is full: something goes for the object, which is then written once more. */
static bool makes_space(struct kvc_request *request, int error)
{
	if ((error != ENOSPC && error != EDQUOT) || kvc_now_ns() >= request->deadline_ns)
		return false;
	request->space_tries++;
	/* Others that are written at the same time want room too: more each time. */
	return kvc_files_no_space(request->root,
				  request->space_tries * request->shape->stored_bytes,
				  request->space_tries > SPACE_TRIES, request->deadline_ns);
}

static void write_done(struct kvc_session *s, struct kvc_slot *slot, const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;

	if (c->result == -EEXIST && request->step == KVC_STEP_WRITE_NEW) {
		/* Another writer was first: its object is as good, when it is whole. Where only a
		 * STAT tells the size, that is asked. */
		if (kvc_verify_size(request, c->object_bytes) && !kvc_session_wants_over(request)) {
			kvc_session_finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_EXISTED, 0));
		} else {
			request->step = c->object_bytes == KVC_BYTES_UNKNOWN ? KVC_STEP_STAT :
									       KVC_STEP_WRITE_OVER;
			note_previous(request, c);
			kvc_session_begin_step(s, slot);
			return;
		}
	} else if (makes_space(request, (int)-c->result)) {
		kvc_session_begin_step(s, slot);
		return;
	} else if (c->result < 0) {
		kvc_session_finish(request,
				   c->result == -ENOENT ?
					   kvc_result_make(KVC_ERROR, KVC_CAUSE_IO, ENOENT) :
					   kvc_result_of_errno((int)-c->result));
	} else if ((uint64_t)c->result != request->shape->stored_bytes) {
		kvc_session_finish(request, kvc_result_make(KVC_ERROR, KVC_CAUSE_IO, EIO));
	} else {
		kvc_session_finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0));
	}
	kvc_session_give_slot(s, slot);
}

static void remove_done(struct kvc_session *s, struct kvc_slot *slot,
			const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;
	struct kvc_root *root = request->root;

	if (request->step == KVC_STEP_REMOVE_WRONG) {
		/* The result stands since the read. */
		if (c->result >= 0) {
			kvc_usage_removed(root->usage, &request->before,
					  kvc_root_usage_key(root, request->shape->ns_hash),
					  kvc_folder_number(request->hash_folder),
					  request->previous_bytes);
			kvc_counters_add(root->store->counters, KVC_COUNTER_REMOVED_CORRUPT, 1);
		}
	} else if (c->result < 0) {
		kvc_session_finish(request, kvc_result_of_errno((int)-c->result));
	} else {
		kvc_session_finish(request, kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0));
	}
	kvc_session_give_slot(s, slot);
}

/* Some host memory cannot take part in direct I/O: that object goes by the library's memory. */
static bool bounce_again(struct kvc_session *s, struct kvc_slot *slot,
			 const struct kvc_completion *c)
{
	struct kvc_request *request = slot->request;

	if ((c->result != -EINVAL && c->result != -EFAULT) || request->bounced ||
	    (slot->descriptor.op != KVC_OP_READ && slot->descriptor.op != KVC_OP_WRITE))
		return false;
	request->bounced = true;
	kvc_root_warn(request->root, KVC_WARN_BOUNCE,
		      "memory cannot take part in its I/O and is copied instead", (int)-c->result);
	kvc_session_begin_step(s, slot);
	return true;
}

void kvc_session_complete(struct kvc_session *s, struct kvc_completion *c)
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
	s->parked = false;
	s->queue->in_flight--;
	s->queue->moving -= kvc_session_moves(slot);
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
		kvc_session_slot_read(s, slot, c);
		break;
	case KVC_STEP_SLOT_WRITE:
	case KVC_STEP_SLOT_SYNC:
		kvc_session_slot_written(s, slot, c);
		break;
	default:
		remove_done(s, slot, c);
		break;
	}
}

int kvc_xfer_fill(void *context, uint64_t cookie)
{
	struct kvc_slot *slot = (struct kvc_slot *)(uintptr_t)cookie;

	(void)context;
	kvc_ranges_checksum(slot);
	kvc_ranges_trailer(slot, slot->checksum);
	return 0;
}
