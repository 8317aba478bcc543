/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue is a ring of descriptors in order of submission. Nothing happens to one before it is due;
 * then poll() executes it. So cancel() always finds that no byte has moved.
 */
#include "mem.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

struct mem_entry {
	const struct kvc_descriptor *descriptor;
	uint64_t due_ns;
};

struct kvc_plugin_queue {
	struct kvc_plugin_root *root;
	int timer_fd; /* -1 until event_fd() asks for it; armed for the first entry */
	uint32_t depth;
	uint32_t first;
	uint32_t count;
	uint32_t cancelled; /* so many at the front will end in -ECANCELED */
	struct mem_entry entries[];
};

int mem_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
		     struct kvc_plugin_queue **out)
{
	struct kvc_plugin_queue *queue;
	uint32_t depth = params->depth;

	if (depth == 0)
		depth = 1;
	if (depth > MEM_MAX_DEPTH)
		depth = MEM_MAX_DEPTH;
	queue = malloc(sizeof(*queue) + depth * sizeof(struct mem_entry));
	if (!queue)
		return -ENOMEM;
	*queue = (struct kvc_plugin_queue){ .root = root, .timer_fd = -1, .depth = depth };
	atomic_fetch_add(&root->queues, 1);
	*out = queue;
	return 0;
}

int mem_queue_destroy(struct kvc_plugin_queue *queue)
{
	if (!queue)
		return 0;
	if (queue->count != 0)
		return -EBUSY;
	if (queue->timer_fd >= 0)
		(void)close(queue->timer_fd);
	atomic_fetch_sub(&queue->root->queues, 1);
	free(queue);
	return 0;
}

/* The timer is expired exactly while poll() would return something. */
static int timer_arm(struct kvc_plugin_queue *queue)
{
	struct itimerspec when = { 0 };

	if (queue->timer_fd < 0)
		return 0;
	if (queue->count != 0) {
		uint64_t due = queue->cancelled ? 1 : queue->entries[queue->first].due_ns;

		when.it_value = plugin_timespec(due);
	}
	if (timerfd_settime(queue->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) < 0)
		return -errno;
	return 0;
}

int mem_queue_submit(struct kvc_plugin_queue *queue,
		     const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	uint32_t room = queue->depth - queue->count;
	uint64_t due;

	if (count == 0)
		return 0;
	if (room == 0)
		return -EAGAIN;
	if (count > room)
		count = room;
	due = plugin_now_ns() + queue->root->backend->latency_ns;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = (queue->first + queue->count + i) % queue->depth;

		if (descriptors[i]->container)
			atomic_fetch_add(&descriptors[i]->container->outstanding, 1);
		queue->entries[at] =
			(struct mem_entry){ .descriptor = descriptors[i], .due_ns = due };
	}
	queue->count += count;
	(void)timer_arm(queue);
	return (int)count;
}

/* Waits for the first entry, at most wait_ns. True when it is due. */
static bool wait_due(const struct kvc_plugin_queue *queue, uint64_t wait_ns)
{
	uint64_t now = plugin_now_ns();
	uint64_t due = queue->entries[queue->first].due_ns;
	struct timespec until;

	if (due <= now)
		return true;
	if (wait_ns == 0)
		return false;
	until = plugin_timespec(wait_ns < due - now ? now + wait_ns : due);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
	return due <= plugin_now_ns();
}

static void take_first(struct kvc_plugin_queue *queue, struct kvc_completion *out)
{
	const struct kvc_descriptor *descriptor = queue->entries[queue->first].descriptor;

	*out = (struct kvc_completion){ .cookie = descriptor->cookie };
	if (queue->cancelled != 0) {
		queue->cancelled--;
		out->result = -ECANCELED;
	} else {
		mem_execute(queue->root, descriptor, out);
	}
	if (descriptor->container)
		atomic_fetch_sub(&descriptor->container->outstanding, 1);
	queue->first = (queue->first + 1) % queue->depth;
	queue->count--;
}

int mem_queue_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		   uint64_t wait_ns)
{
	uint32_t done = 0;

	if (queue->count == 0 || max == 0)
		return 0;
	if (queue->cancelled == 0 && !wait_due(queue, wait_ns))
		return 0;
	while (done < max && queue->count != 0 && (queue->cancelled || wait_due(queue, 0)))
		take_first(queue, &out[done++]);
	(void)timer_arm(queue);
	return (int)done;
}

int mem_queue_event_fd(struct kvc_plugin_queue *queue)
{
	int rc;

	if (queue->timer_fd >= 0)
		return queue->timer_fd;
	queue->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (queue->timer_fd < 0)
		return -errno;
	rc = timer_arm(queue);
	return rc < 0 ? rc : queue->timer_fd;
}

static struct mem_entry *entry_at(struct kvc_plugin_queue *queue, uint32_t n)
{
	return &queue->entries[(queue->first + n) % queue->depth];
}

/* Moves entry n to the end of the cancelled ones in front. */
static void cancel_entry(struct kvc_plugin_queue *queue, uint32_t n)
{
	struct mem_entry entry = *entry_at(queue, n);

	for (; n > queue->cancelled; n--)
		*entry_at(queue, n) = *entry_at(queue, n - 1);
	*entry_at(queue, queue->cancelled++) = entry;
}

int mem_queue_cancel(struct kvc_plugin_queue *queue,
		     const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	if (!descriptors)
		queue->cancelled = queue->count;
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t n = queue->cancelled; n < queue->count; n++)
			if (entry_at(queue, n)->descriptor == descriptors[i])
				cancel_entry(queue, n);
	(void)timer_arm(queue);
	return 0;
}
