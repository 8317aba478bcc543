/* SPDX-License-Identifier: Apache-2.0 */
/* One descriptor's way through the plugin: what the plugin below gets, and what is made of it. */
#include "fault.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t add_saturated(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t ranges_bytes(const struct kvc_descriptor *descriptor)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < descriptor->range_count; i++)
		sum = add_saturated(sum, descriptor->ranges[i].bytes);
	return sum;
}

static int copy_ranges(struct fault_slot *slot)
{
	uint32_t count = slot->upper->range_count;

	slot->ranges = malloc((count ? count : 1) * sizeof(struct kvc_range));
	if (!slot->ranges)
		return -ENOMEM;
	if (count != 0)
		memcpy(slot->ranges, slot->upper->ranges, count * sizeof(struct kvc_range));
	slot->lower.ranges = slot->ranges;
	return 0;
}

/* The plugin below sees only the first `keep` bytes. */
static int prepare_prefix(struct fault_slot *slot, uint64_t keep)
{
	uint32_t count = 0;
	int rc;

	keep -= keep % slot->root->alignment;
	if (keep >= slot->total_bytes) {
		slot->plan.effect = FAULT_NONE;
		return 0;
	}
	/* Nothing to read, but a miss must stay a miss. */
	if (keep == 0 && slot->upper->op == KVC_OP_READ && !slot->upper->container) {
		slot->lower.op = KVC_OP_STAT;
		slot->lower.ranges = NULL;
		slot->lower.range_count = 0;
		return 0;
	}
	rc = copy_ranges(slot);
	if (rc < 0)
		return rc;
	for (; keep != 0; count++) {
		struct kvc_range *range = &slot->ranges[count];

		if (range->bytes > keep)
			range->bytes = keep;
		keep -= range->bytes;
	}
	slot->lower.range_count = count;
	return 0;
}

/* Copies between a place in a range and host memory. */
static int range_copy(struct kvc_plugin_root *root, const struct kvc_range *range, uint64_t at,
		      void *host, uint64_t bytes, bool to_range)
{
	struct kvc_memory there = { .size = sizeof(there),
				    .kind = range->kind,
				    .device = range->device,
				    .addr = range->addr,
				    .bytes = range->bytes };
	struct kvc_memory here = {
		.size = sizeof(here), .kind = KVC_MEMORY_HOST, .addr = host, .bytes = bytes
	};
	struct kvc_plugin_backend *backend = root->backend->lower_backend;
	unsigned char *place = (unsigned char *)range->addr + at;

	if (range->kind == KVC_MEMORY_CUDA && !root->lower->memory_copy)
		return -ENOTSUP;
	if (range->kind == KVC_MEMORY_CUDA && to_range)
		return root->lower->memory_copy(backend, place, &there, host, &here, bytes);
	if (range->kind == KVC_MEMORY_CUDA)
		return root->lower->memory_copy(backend, host, &here, place, &there, bytes);
	if (to_range)
		memcpy(place, host, bytes);
	else
		memcpy(host, place, bytes);
	return 0;
}

/* The plugin below writes a copy of one range, with one bit turned over. */
static int prepare_corrupt_write(struct fault_slot *slot)
{
	uint32_t count = slot->upper->range_count;
	struct kvc_range *range = NULL;
	unsigned char *copy;
	int rc = copy_ranges(slot);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < count && !range; i++) {
		uint32_t at = (uint32_t)((slot->plan.random + i) % count);

		if (slot->ranges[at].bytes != 0 && !(slot->ranges[at].flags & KVC_RANGE_LATE))
			range = &slot->ranges[at];
	}
	if (!range) {
		slot->plan.effect = FAULT_NONE;
		return 0;
	}
	rc = posix_memalign(&slot->buffer, 4096, range->bytes);
	if (rc != 0)
		return -rc;
	copy = slot->buffer;
	rc = range_copy(slot->root, range, 0, copy, range->bytes, false);
	if (rc < 0)
		return rc;
	copy[(slot->plan.random >> 3) % range->bytes] ^=
		(unsigned char)(1u << (slot->plan.random & 7));
	range->addr = copy;
	range->registration = 0;
	range->kind = KVC_MEMORY_HOST;
	range->device = 0;
	return 0;
}

/* The plugin below reads into a buffer of ours. */
static int prepare_late(struct fault_slot *slot)
{
	int rc;

	slot->ranges = calloc(1, sizeof(struct kvc_range));
	if (!slot->ranges)
		return -ENOMEM;
	rc = posix_memalign(&slot->buffer, 4096, slot->total_bytes ? slot->total_bytes : 1);
	if (rc != 0)
		return -rc;
	slot->ranges[0].addr = slot->buffer;
	slot->ranges[0].bytes = slot->total_bytes;
	slot->lower.ranges = slot->ranges;
	slot->lower.range_count = 1;
	return 0;
}

static void prepare_swap(struct fault_slot *slot)
{
	if (!slot->upper->container)
		slot->other_name =
			fault_names_other(slot->root, slot->upper->name, slot->plan.random);
	if (!slot->other_name) {
		slot->plan.effect = FAULT_NONE;
		return;
	}
	slot->lower.name = slot->other_name;
	slot->lower.name_bytes = (uint32_t)strlen(slot->other_name);
}

static int prepare(struct fault_slot *slot)
{
	switch (slot->plan.effect) {
	case FAULT_SHORT:
		return prepare_prefix(slot, slot->plan.bytes);
	case FAULT_TORN:
		return prepare_prefix(slot, slot->total_bytes / 2);
	case FAULT_CORRUPT:
		return slot->upper->op == KVC_OP_WRITE ? prepare_corrupt_write(slot) : 0;
	case FAULT_LATE:
		return prepare_late(slot);
	case FAULT_SWAP:
		prepare_swap(slot);
		return 0;
	default:
		return 0;
	}
}

static void descriptor_copy(struct fault_slot *slot)
{
	size_t bytes = slot->root->backend->host->descriptor_bytes;

	if (bytes == 0 || bytes > sizeof(slot->lower))
		bytes = sizeof(slot->lower);
	memcpy(&slot->lower, slot->upper, bytes);
	slot->lower.cookie = (uint64_t)(uintptr_t)slot;
	if (slot->upper->container)
		slot->lower.container = slot->upper->container->lower;
}

enum fault_slot_state fault_slot_begin(struct fault_slot *slot, struct kvc_plugin_root *root,
				       const struct kvc_descriptor *upper)
{
	int rc;

	*slot = (struct fault_slot){ .root = root, .upper = upper };
	descriptor_copy(slot);
	slot->total_bytes = ranges_bytes(upper);
	if (upper->container)
		atomic_fetch_add(&upper->container->outstanding, 1);
	if (upper->op >= KVC_OP_READ && upper->op <= KVC_OP_SYNC)
		fault_rules_decide(&root->backend->rules, (enum fault_op)(upper->op - KVC_OP_READ),
				   upper->container ? upper->container->name : upper->name,
				   &slot->plan);
	rc = slot->plan.effect == FAULT_ERROR ? slot->plan.error : prepare(slot);
	if (rc < 0) {
		fault_slot_end(slot, rc);
		return FAULT_SLOT_DONE;
	}
	if (slot->plan.effect != FAULT_STALL)
		return FAULT_SLOT_READY;
	slot->due_ns = add_saturated(plugin_now_ns(), slot->plan.hold_ns);
	return FAULT_SLOT_STALLED;
}

void fault_slot_end(struct fault_slot *slot, int64_t result)
{
	slot->completion =
		(struct kvc_completion){ .cookie = slot->upper->cookie, .result = result };
	slot->due_ns = slot->plan.delay_ns ? plugin_now_ns() + slot->plan.delay_ns : 0;
}

/* Turns over one bit of the `bytes` that were read. */
static void corrupt_read(const struct fault_slot *slot, uint64_t bytes)
{
	uint64_t at = (slot->plan.random >> 3) % bytes;

	for (uint32_t i = 0; i < slot->upper->range_count; i++) {
		const struct kvc_range *range = &slot->upper->ranges[i];

		if (at < range->bytes) {
			unsigned char byte;

			if (range_copy(slot->root, range, at, &byte, 1, false) < 0)
				return;
			byte ^= (unsigned char)(1u << (slot->plan.random & 7));
			(void)range_copy(slot->root, range, at, &byte, 1, true);
			return;
		}
		at -= range->bytes;
	}
}

/* Reports an error now and keeps the bytes for later. */
static int64_t make_late(struct fault_slot *slot, int64_t result, struct fault_late **out)
{
	uint32_t count = slot->upper->range_count;
	struct fault_late *late = malloc(sizeof(*late) + count * sizeof(struct kvc_range));

	if (!late)
		return -ENOMEM;
	late->next = NULL;
	late->root = slot->root;
	late->due_ns = add_saturated(plugin_now_ns(), slot->plan.hold_ns);
	late->bytes = (uint64_t)result;
	late->data = slot->buffer;
	slot->buffer = NULL;
	late->range_count = count;
	memcpy(late->ranges, slot->upper->ranges, count * sizeof(struct kvc_range));
	*out = late;
	return slot->plan.error;
}

void fault_late_write(const struct fault_late *late)
{
	uint64_t done = 0;

	for (uint32_t i = 0; i < late->range_count && done < late->bytes; i++) {
		const struct kvc_range *range = &late->ranges[i];
		uint64_t bytes = range->bytes < late->bytes - done ? range->bytes :
								     late->bytes - done;

		(void)range_copy(late->root, range, 0, late->data + done, bytes, true);
		done += bytes;
	}
}

void fault_late_free(struct fault_late *late)
{
	if (!late)
		return;
	free(late->data);
	free(late);
}

/* A LATE range that the plugin below never saw is filled all the same: callers count on it. */
static int fill_what_was_cut(struct fault_slot *slot)
{
	uint32_t count = slot->upper->range_count;

	if (slot->filled || slot->upper->op != KVC_OP_WRITE || count == 0 ||
	    !(slot->upper->ranges[count - 1].flags & KVC_RANGE_LATE))
		return 0;
	return fault_fill(slot->root->backend, slot->lower.cookie);
}

void fault_slot_finish(struct fault_slot *slot, const struct kvc_completion *completion,
		       struct fault_late **out_late)
{
	int64_t result = completion->result;
	int filled = result >= 0 ? fill_what_was_cut(slot) : 0;

	*out_late = NULL;
	if (result >= 0 && filled < 0)
		result = filled;
	if (result > 0 && slot->plan.effect == FAULT_CORRUPT && slot->upper->op == KVC_OP_READ)
		corrupt_read(slot, (uint64_t)result);
	if (result >= 0 && slot->plan.effect == FAULT_TORN)
		result = (int64_t)slot->total_bytes;
	if (result > 0 && slot->plan.effect == FAULT_LATE)
		result = make_late(slot, result, out_late);
	if (result >= 0 && !slot->upper->container) {
		if (slot->upper->op == KVC_OP_REMOVE)
			fault_names_remove(slot->root, slot->upper->name);
		else
			fault_names_add(slot->root, slot->upper->name);
	}
	fault_slot_end(slot, result);
	slot->completion.object_bytes = completion->object_bytes;
	slot->completion.version[0] = completion->version[0];
	slot->completion.version[1] = completion->version[1];
}

void fault_slot_release(struct fault_slot *slot)
{
	if (slot->upper->container)
		atomic_fetch_sub(&slot->upper->container->outstanding, 1);
	free(slot->ranges);
	free(slot->buffer);
	free(slot->other_name);
	slot->ranges = NULL;
	slot->buffer = NULL;
	slot->other_name = NULL;
}
