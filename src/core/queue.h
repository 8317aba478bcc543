/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue of the library: a plugin queue with the slots whose descriptors it carries. One thread
 * uses it at a time: it is leased from its root and given back. Readers: core/xfer.c, core/stage.c.
 */
#ifndef KVC_CORE_QUEUE_H
#define KVC_CORE_QUEUE_H

#include "core/root.h"

#define KVC_QUEUE_SLOTS 64u
#define KVC_SLOT_RANGES 160u /* more pieces than this go through contiguous memory */
#define KVC_PATH_BYTES	640u /* namespace, hash folder, name */

struct kvc_request;

/* One descriptor on its way, with everything that it points to. */
struct kvc_slot {
	struct kvc_descriptor descriptor;
	struct kvc_slot *next;
	struct kvc_queue *queue;
	struct kvc_request *request;
	uint8_t *trailer; /* one block */
	uint8_t *tails;	  /* blocks for what does not fill one; grows, kept */
	uint32_t tail_blocks;
	uint8_t *bounce; /* contiguous image of the object; grows, kept */
	uint64_t bounce_bytes;
	bool uses_bounce;
	bool has_trailer; /* the trailer takes part */
	bool in_flight;
	bool has_checksum; /* of a packed set: taken while its I/O is under way */
	uint64_t checksum;
	char path[KVC_PATH_BYTES];
	struct kvc_range ranges[KVC_SLOT_RANGES];
	/* Range r of the descriptor is a tail block of which tail_bytes belong at tail_to. */
	struct {
		uint8_t *block;
		uint8_t *memory;
		uint64_t bytes;
	} tail[64];
	uint32_t tail_count;
};

struct kvc_queue {
	struct kvc_root *root;
	struct kvc_plugin_queue *handle;
	struct kvc_queue *next; /* in the root's list of idle or of parked ones */
	struct kvc_slot *free;
	uint32_t number; /* of its root, while it is open: others have other ones */
	uint32_t depth;
	uint32_t in_flight;
	uint32_t unhashed;	/* of them, packed sets without a checksum */
	uint32_t moving;	/* of them, those that move bytes */
	uint64_t bounce_in_use; /* bytes of images on their way */
	bool broken;		/* the plugin said so; not leased again */
	uint8_t *blocks;
	uint8_t *scratch;
	struct kvc_slot slots[KVC_QUEUE_SLOTS];
};

/* Takes an idle queue or makes one; waits for one until the deadline. -ETIMEDOUT. */
int kvc_queue_lease(struct kvc_root *root, uint64_t deadline_ns, struct kvc_queue **out);
void kvc_queue_return(struct kvc_queue *queue);

/* Gives up a leased queue whose I/O does not come back: it and its memory are the plugin's from now
 * on. kvc_queue_reap() destroys those of a root that can be destroyed by now. */
void kvc_queue_park(struct kvc_queue *queue);
void kvc_queue_reap(struct kvc_root *root);

/* Destroys a queue that is not in the idle list. -EBUSY while the plugin holds descriptors. */
int kvc_queue_destroy(struct kvc_queue *queue);

/* Grow a slot's own memory; -ENOMEM. */
int kvc_slot_tails(struct kvc_slot *slot, uint32_t blocks);
int kvc_slot_bounce(struct kvc_slot *slot, uint64_t bytes);

#endif
