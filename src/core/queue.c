/* SPDX-License-Identifier: Apache-2.0 */
#include "core/queue.h"

#include "core/clock.h"
#include "core/format.h"
#include "core/packed_format.h"
#include "core/stats.h"
#include "core/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QUEUES_PER_ROOT 16u

_Static_assert(QUEUES_PER_ROOT *KVC_QUEUE_SLOTS <= KVC_PACKED_INTENTS, "an intent for each slot");

static uint8_t *blocks_new(uint64_t bytes)
{
	void *memory = NULL;

	return posix_memalign(&memory, KVC_BLOCK_BYTES, bytes) ? NULL : memory;
}

int kvc_slot_tails(struct kvc_slot *slot, uint32_t blocks)
{
	uint8_t *memory;

	if (blocks <= slot->tail_blocks)
		return 0;
	memory = blocks_new((uint64_t)blocks * KVC_BLOCK_BYTES);
	if (!memory)
		return -ENOMEM;
	free(slot->tails);
	slot->tails = memory;
	slot->tail_blocks = blocks;
	return 0;
}

int kvc_slot_bounce(struct kvc_slot *slot, uint64_t bytes)
{
	uint8_t *memory;

	if (bytes <= slot->bounce_bytes)
		return 0;
	memory = blocks_new(bytes);
	if (!memory)
		return -ENOMEM;
	free(slot->bounce);
	slot->bounce = memory;
	slot->bounce_bytes = bytes;
	return 0;
}

static void queue_free(struct kvc_queue *queue)
{
	atomic_fetch_and(&queue->root->queue_numbers, ~((uint_fast32_t)1 << queue->number));
	for (uint32_t i = 0; i < KVC_QUEUE_SLOTS; i++) {
		free(queue->slots[i].tails);
		free(queue->slots[i].bounce);
	}
	free(queue->blocks);
	free(queue->scratch);
	free(queue);
}

/* One of QUEUES_PER_ROOT numbers: so many queues there are at most. */
static uint32_t number_take(struct kvc_root *root)
{
	uint_fast32_t taken = atomic_load(&root->queue_numbers);
	uint32_t number;

	do
		number = (uint32_t)__builtin_ctzl(~taken);
	while (!atomic_compare_exchange_weak(&root->queue_numbers, &taken, taken | 1u << number));
	return number;
}

static int queue_new(struct kvc_root *root, struct kvc_queue **out)
{
	const uint64_t scratch_bytes = (root->attributes.scratch_bytes + 15u) & ~15u;
	struct kvc_queue *queue = calloc(1, sizeof(*queue));
	struct kvc_queue_params params = { .size = sizeof(params) };
	int rc = -ENOMEM;

	if (!queue)
		return rc;
	queue->root = root;
	queue->number = number_take(root);
	queue->depth = root->attributes.max_depth < KVC_QUEUE_SLOTS ? root->attributes.max_depth :
								      KVC_QUEUE_SLOTS;
	queue->depth = queue->depth ? queue->depth : 1;
	queue->blocks = blocks_new((uint64_t)queue->depth * KVC_BLOCK_BYTES);
	queue->scratch = aligned_alloc(16, queue->depth * scratch_bytes + 16);
	if (!queue->blocks || !queue->scratch)
		goto free_queue;
	for (uint32_t i = queue->depth; i-- > 0;) {
		struct kvc_slot *slot = &queue->slots[i];

		slot->queue = queue;
		slot->trailer = queue->blocks + (size_t)i * KVC_BLOCK_BYTES;
		slot->descriptor.scratch = queue->scratch + i * scratch_bytes;
		slot->descriptor.cookie = (uintptr_t)slot;
		slot->descriptor.ranges = slot->ranges;
		slot->descriptor.name = slot->path;
		slot->next = queue->free;
		queue->free = slot;
	}
	params.depth = queue->depth;
	rc = root->backend->module->ops.queue_create(root->handle, &params, &queue->handle);
	if (rc) {
		rc = kvc_fail(rc, "%s: no queue: %s", root->location, strerror(-rc));
		goto free_queue;
	}
	kvc_counters_add(root->store->counters, KVC_COUNTER_STORAGE_REGISTRATIONS, 1);
	*out = queue;
	return 0;

free_queue:
	queue_free(queue);
	return rc;
}

int kvc_queue_destroy(struct kvc_queue *queue)
{
	struct kvc_root *root = queue->root;
	int rc = root->backend->module->ops.queue_destroy(queue->handle);

	if (rc)
		return rc;
	kvc_counters_add(root->store->counters, KVC_COUNTER_STORAGE_REGISTRATIONS, -1);
	queue_free(queue);
	return 0;
}

int kvc_queue_lease(struct kvc_root *root, uint64_t deadline_ns, struct kvc_queue **out)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	struct kvc_queue *queue = NULL;
	int rc = 0;

	pthread_mutex_lock(&root->queue_lock);
	while (!root->idle && root->queue_count >= QUEUES_PER_ROOT && !rc)
		rc = -pthread_cond_clockwait(&root->queue_idle, &root->queue_lock, CLOCK_MONOTONIC,
					     &until);
	if (root->idle) {
		queue = root->idle;
		root->idle = queue->next;
		queue->next = NULL;
		rc = 0;
	} else if (!rc) {
		root->queue_count++;
	}
	pthread_mutex_unlock(&root->queue_lock);
	if (queue || rc) {
		*out = queue;
		return rc;
	}
	rc = queue_new(root, out);
	if (rc) {
		pthread_mutex_lock(&root->queue_lock);
		root->queue_count--;
		pthread_cond_signal(&root->queue_idle);
		pthread_mutex_unlock(&root->queue_lock);
	}
	return rc;
}

void kvc_queue_park(struct kvc_queue *queue)
{
	struct kvc_root *root = queue->root;

	kvc_counters_add(root->store->counters, KVC_COUNTER_PARKED_QUEUES, 1);
	pthread_mutex_lock(&root->queue_lock);
	queue->next = root->parked;
	root->parked = queue;
	pthread_mutex_unlock(&root->queue_lock);
}

void kvc_queue_reap(struct kvc_root *root)
{
	const struct kvc_plugin *ops = &root->backend->module->ops;
	struct kvc_queue *queue, *next, *stuck = NULL;
	struct kvc_completion done[16];

	pthread_mutex_lock(&root->queue_lock);
	queue = root->parked;
	root->parked = NULL;
	for (; queue; queue = next) {
		next = queue->next;
		while (ops->poll(queue->handle, done, 16, 0) > 0)
			;
		if (kvc_queue_destroy(queue) == 0) {
			kvc_counters_add(root->store->counters, KVC_COUNTER_PARKED_QUEUES, -1);
			root->queue_count--;
			continue;
		}
		queue->next = stuck;
		stuck = queue;
	}
	root->parked = stuck;
	pthread_mutex_unlock(&root->queue_lock);
}

void kvc_queue_return(struct kvc_queue *queue)
{
	struct kvc_root *root = queue->root;
	const bool keep = !queue->broken;

	/* A broken queue that cannot be destroyed owns memory. */
	if (!keep && kvc_queue_destroy(queue)) {
		kvc_queue_park(queue);
		return;
	}
	pthread_mutex_lock(&root->queue_lock);
	if (keep) {
		queue->next = root->idle;
		root->idle = queue;
	} else {
		root->queue_count--;
	}
	pthread_cond_signal(&root->queue_idle);
	pthread_mutex_unlock(&root->queue_lock);
}
