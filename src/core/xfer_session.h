/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the transfers: one queue at work on a list of requests. core/xfer.c has the steps of an
 * object, core/xfer_packed.c those of a slot, core/xfer_run.c drives them.
 */
#ifndef KVC_CORE_XFER_SESSION_H
#define KVC_CORE_XFER_SESSION_H

#include "core/queue.h"
#include "core/xfer.h"

struct kvc_regions;

/* Copies in flight are bounded by this and what was begun together. */
#define KVC_SESSION_BOUNCE_BYTES (UINT64_C(16) << 20)

/* One queue at work. */
struct kvc_session {
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
	bool parked;	  /* the next request found no slot: something has to end first */
	uint32_t pauses;  /* that were made as nothing of this session could end */
};

/* ---------------------------------------------------------------- core/xfer.c */

/* The request's result: marks and the counter of own bytes follow from it. */
void kvc_session_finish(struct kvc_request *request, struct kvc_result result);

void kvc_session_give_slot(struct kvc_session *s, struct kvc_slot *slot);
bool kvc_session_moves(const struct kvc_slot *slot);

/* Sends the slot's request on its way to its present step. */
void kvc_session_begin_step(struct kvc_session *s, struct kvc_slot *slot);

/* Begins requests as long as there are slots. */
void kvc_session_begin(struct kvc_session *s, uint64_t now_ns);

/* Hands over what is ready, as much as the plugin takes. */
void kvc_session_submit(struct kvc_session *s);
void kvc_session_complete(struct kvc_session *s, struct kvc_completion *c);

/* Ends everything that the plugin has not accepted. */
void kvc_session_drop_ready(struct kvc_session *s, struct kvc_result result);
void kvc_session_break_queue(struct kvc_session *s, int error);

/* A set that does not keep what is there: told to, or it could not be read just now. */
bool kvc_session_wants_over(const struct kvc_request *request);

/* True: the read is on its way once more, into memory of the library. */
bool kvc_session_read_again(struct kvc_session *s, struct kvc_slot *slot, struct kvc_result result);

/* ---------------------------------------------------------------- core/xfer_packed.c */

/* The mappings of a packed root's index stay while the session runs. The requests get their logical
 * times, the first of a prefix the latest. */
void kvc_session_enter_index(struct kvc_session *s, struct kvc_request *list);

/*
 * The pages before the first one of a call, in whatever root: who reads page 100 has a use of those
 * before it, though the caller had them elsewhere, and they are not to go before it. Ends at one
 * that was used not long ago.
 */
void kvc_session_touch_chain(struct kvc_store *store, const struct kvc_request *request);

/* Whether the index of a packed root answers alone: what is not there, what a set finds there, and
 * removing. Else the request's place is that of the object that is to be read. */
bool kvc_session_decided_by_index(struct kvc_request *request);

/* A get that knows its slot, or a set that claims one. */
void kvc_session_begin_slot(struct kvc_session *s, struct kvc_slot *slot);
void kvc_session_slot_read(struct kvc_session *s, struct kvc_slot *slot,
			   const struct kvc_completion *c);
void kvc_session_slot_written(struct kvc_session *s, struct kvc_slot *slot,
			      const struct kvc_completion *c);

/* The checksum of one set whose data is on its way; false: there is none. */
bool kvc_session_hash_one(struct kvc_session *s);

#endif
