/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: objects between memory and roots. A request goes in, exactly one result comes out.
 *
 * batch -> submit -> poll -> verify -> result (docs/data-path.md). Readers: connector/batch.c.
 */
#ifndef KVC_CORE_XFER_H
#define KVC_CORE_XFER_H

#include "core/packed.h"
#include "core/shape.h"
#include "core/usage.h"

#include <kvcellar/kvcellar.h>

#include <stdatomic.h>
#include <stdbool.h>

struct kvc_queue;
struct kvc_regions;
struct kvc_root;
struct kvc_slot;
struct kvc_store;

/* Where a request is on its way. */
enum kvc_stage_step {
	KVC_STEP_STAT = 0,     /* is it there? (exists, and before a set or a remove) */
	KVC_STEP_READ,	       /* the object into memory */
	KVC_STEP_WRITE_NEW,    /* publish if absent */
	KVC_STEP_WRITE_OVER,   /* publish in any case */
	KVC_STEP_REMOVE,       /* the caller's remove */
	KVC_STEP_REMOVE_WRONG, /* after a read that proved it wrong; the result stands already */
	KVC_STEP_SLOT_READ,    /* packed: the slot that was found, into memory */
	KVC_STEP_SLOT_WRITE,   /* packed: memory into the slot that was claimed */
	KVC_STEP_SLOT_SYNC,    /* packed: the same, on stable storage */
};

/*
 * struct kvc_request - one object.
 * @next        list of the root; used by the library
 * @folder      namespace folder, "" in nixl naming
 * @full_name   what the trailer says: the name, or its long form where `name` is a hash of it
 * @g, @v       group hash and object hash; g ^ v seeds the checksum. v is not needed (0) where no
 *              bytes move
 * @mark_id     tells the object from others among the negative marks, not 0
 * @bases       shape->series_count addresses; NULL for exists and remove
 * @begins      the page before is of no request: it may have been used through another tier
 * @packed      it lies in a slot: g, v are those of the packed layout, name is needed by set only
 * @arena       of a packed one; NULL: there is none, so nothing is found
 * @lane        likewise, of struct kvc_packed_key
 * @missed      NULL, or where the requests of one array that stop at a miss share the first of them
 *              that was not OK: those after it need no I/O
 * @deadline_ns CLOCK_MONOTONIC
 * Out: result; previous_bytes (size that a set replaced or a remove removed)
 */
struct kvc_request {
	struct kvc_request *next;
	struct kvc_root *root;
	uint32_t op;	/* enum kvc_operation */
	uint32_t flags; /* enum kvc_transfer_flag */
	const char *folder;
	const char *name;
	const char *full_name;
	uint32_t name_bytes;
	uint32_t full_name_bytes;
	char hash_folder[3];
	uint8_t object_kind; /* enum kvc_object_kind */
	uint64_t g;
	uint64_t v;
	uint64_t mark_id;
	uint64_t parent_g;
	uint32_t depth;
	uint8_t step; /* enum kvc_stage_step */
	bool bounced;
	bool has_room;	     /* its bytes are taken from the root's limits */
	uint8_t space_tries; /* something was taken away for it, as the device was full */
	bool replaces;	     /* an object was there: previous_bytes is its size */
	bool begins;
	bool packed;
	uint32_t lane;
	struct kvc_packed_arena *arena;
	struct kvc_packed_place place;
	uint64_t stamp;			/* logical time of its use */
	struct kvc_usage_before before; /* its remove began */
	const struct kvc_shape *shape;
	void *const *bases;
	struct kvc_request **missed;
	uint64_t deadline_ns;
	uint64_t previous_bytes;
	struct kvc_result result;
	atomic_bool *done; /* NULL, or set once the result stands */
};

/*
 * Runs the requests, all roots at once, in the calling thread (staged roots: in threads of the
 * root, into memory of the library). Every request has its result on return.
 * cancel: NULL, or a flag that another thread sets to end it early.
 */
void kvc_xfer_run(struct kvc_store *store, struct kvc_request *requests, size_t count,
		  const atomic_bool *cancel);

/* The same for requests of one root that are linked already, on a leased queue. */
void kvc_xfer_drive(struct kvc_queue *queue, struct kvc_request *list,
		    const struct kvc_regions *regions, const atomic_bool *cancel);

/* Host service: makes the trailer of a slot (its cookie) valid. */
int kvc_xfer_fill(void *context, uint64_t cookie);

/* "<folder>/<hash folder>/<name>" as the root wants it. -ENAMETOOLONG. Returns the length. */
int kvc_xfer_path(const struct kvc_root *root, const char *folder, const char *hash_folder,
		  const char *name, size_t name_bytes, char *out, size_t out_bytes);

/* What an errno means for a page. error is positive. */
struct kvc_result kvc_result_of_errno(int error);

static inline struct kvc_result kvc_result_make(int status, int cause, int error)
{
	return (struct kvc_result){ (uint16_t)status, (uint16_t)cause, error };
}

#endif
