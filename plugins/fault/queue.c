/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue over a queue of the plugin below. A descriptor is in exactly one place: stalled, ready
 * (accepted here, not yet below), below, or done. What the plugin below cannot take yet stays ready
 * and is offered again by the next submit() or poll().
 */
#include "fault.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define RETRY_NS UINT64_C(1000000)
#define BATCH	 64u

struct slot_list {
	struct fault_slot *first;
	struct fault_slot **last;
};

struct kvc_plugin_queue {
	struct kvc_plugin_root *root;
	struct kvc_plugin_queue *lower;
	int epoll_fd; /* -1 until event_fd() asks for it: the queue below, and the timer */
	int timer_fd;
	uint32_t depth;
	uint32_t outstanding; /* accepted, completion not returned */
	uint32_t below;
	struct slot_list free;
	struct slot_list stalled;
	struct slot_list ready;
	struct slot_list done;
	struct fault_late *late;
	struct fault_slot slots[];
};

static void list_init(struct slot_list *list)
{
	list->first = NULL;
	list->last = &list->first;
}

static void list_append(struct slot_list *list, struct fault_slot *slot)
{
	slot->next = NULL;
	*list->last = slot;
	list->last = &slot->next;
}

/* Takes out the slot that *link points to. */
static struct fault_slot *list_take(struct slot_list *list, struct fault_slot **link)
{
	struct fault_slot *slot = *link;

	*link = slot->next;
	if (!slot->next)
		list->last = link;
	return slot;
}

/* When poll() has something to do by itself, or FAULT_FOREVER. */
static uint64_t next_due(const struct kvc_plugin_queue *queue)
{
	uint64_t due = FAULT_FOREVER;

	for (const struct fault_slot *slot = queue->stalled.first; slot; slot = slot->next)
		due = slot->due_ns < due ? slot->due_ns : due;
	for (const struct fault_slot *slot = queue->done.first; slot; slot = slot->next)
		due = slot->due_ns < due ? slot->due_ns : due;
	for (const struct fault_late *late = queue->late; late; late = late->next)
		due = late->due_ns < due ? late->due_ns : due;
	if (queue->ready.first && queue->below == 0 && due > plugin_now_ns() + RETRY_NS)
		due = plugin_now_ns() + RETRY_NS;
	return due;
}

static void timer_arm(struct kvc_plugin_queue *queue)
{
	struct itimerspec when = { 0 };
	uint64_t due;

	if (queue->timer_fd < 0)
		return;
	due = next_due(queue);
	if (due != FAULT_FOREVER)
		when.it_value = plugin_timespec(due ? due : 1);
	(void)timerfd_settime(queue->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

int fault_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
		       struct kvc_plugin_queue **out)
{
	struct kvc_plugin_queue *queue;
	uint32_t depth = params->depth;
	int rc = fault_control(root->backend, FAULT_QUEUE_CREATE, NULL);

	if (rc < 0)
		return rc;
	if (depth == 0)
		depth = 1;
	if (depth > FAULT_MAX_DEPTH)
		depth = FAULT_MAX_DEPTH;
	queue = calloc(1, sizeof(*queue) + depth * sizeof(struct fault_slot));
	if (!queue)
		return -ENOMEM;
	rc = root->lower->queue_create(root->lower_root, params, &queue->lower);
	if (rc < 0) {
		free(queue);
		return rc;
	}
	queue->root = root;
	queue->epoll_fd = -1;
	queue->timer_fd = -1;
	queue->depth = depth;
	list_init(&queue->free);
	list_init(&queue->stalled);
	list_init(&queue->ready);
	list_init(&queue->done);
	for (uint32_t i = 0; i < depth; i++)
		list_append(&queue->free, &queue->slots[i]);
	*out = queue;
	return 0;
}

int fault_queue_destroy(struct kvc_plugin_queue *queue)
{
	int rc;

	if (!queue)
		return 0;
	if (queue->outstanding != 0)
		return -EBUSY;
	rc = queue->root->lower->queue_destroy(queue->lower);
	if (rc < 0)
		return rc;
	while (queue->late) {
		struct fault_late *late = queue->late;

		queue->late = late->next;
		fault_late_free(late);
	}
	if (queue->epoll_fd >= 0)
		(void)close(queue->epoll_fd);
	if (queue->timer_fd >= 0)
		(void)close(queue->timer_fd);
	free(queue);
	return 0;
}

static void write_late(struct kvc_plugin_queue *queue, uint64_t now)
{
	struct fault_late **link = &queue->late;

	while (*link) {
		struct fault_late *late = *link;

		if (late->due_ns > now) {
			link = &late->next;
			continue;
		}
		*link = late->next;
		fault_late_write(late);
		fault_late_free(late);
	}
}

static void release_stalled(struct kvc_plugin_queue *queue, uint64_t now)
{
	struct fault_slot **link = &queue->stalled.first;

	while (*link) {
		if ((*link)->due_ns > now)
			link = &(*link)->next;
		else
			list_append(&queue->ready, list_take(&queue->stalled, link));
	}
}

/* Offers what is ready to the plugin below. */
static void flush(struct kvc_plugin_queue *queue)
{
	while (queue->ready.first) {
		const struct kvc_descriptor *batch[BATCH];
		uint32_t count = 0;
		int rc;

		for (struct fault_slot *slot = queue->ready.first; slot && count < BATCH;
		     slot = slot->next)
			batch[count++] = &slot->lower;
		rc = queue->root->lower->submit(queue->lower, batch, count);
		if (rc == -EAGAIN || rc == 0)
			return;
		if (rc < 0) {
			/* The queue below takes nothing any more: that is how each of them ends. */
			struct fault_slot *slot = list_take(&queue->ready, &queue->ready.first);

			fault_slot_end(slot, rc);
			list_append(&queue->done, slot);
			continue;
		}
		for (int i = 0; i < rc; i++)
			list_take(&queue->ready, &queue->ready.first)->below = true;
		queue->below += (uint32_t)rc;
	}
}

int fault_queue_submit(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	struct fault_plan plan;
	uint32_t accepted = 0;

	if (count == 0)
		return 0;
	fault_rules_decide(&queue->root->backend->rules, FAULT_SUBMIT, NULL, &plan);
	if (plan.effect == FAULT_ERROR)
		return plan.error;
	if (plan.effect == FAULT_SHORT && plan.bytes < count)
		count = (uint32_t)plan.bytes;
	for (; accepted < count && queue->free.first; accepted++) {
		struct fault_slot *slot = list_take(&queue->free, &queue->free.first);

		switch (fault_slot_begin(slot, queue->root, descriptors[accepted])) {
		case FAULT_SLOT_DONE:
			list_append(&queue->done, slot);
			break;
		case FAULT_SLOT_STALLED:
			list_append(&queue->stalled, slot);
			break;
		case FAULT_SLOT_READY:
			list_append(&queue->ready, slot);
			break;
		}
	}
	queue->outstanding += accepted;
	flush(queue);
	timer_arm(queue);
	return accepted != 0 ? (int)accepted : -EAGAIN;
}

/* Takes completions from the plugin below. Returns their count. */
static int collect(struct kvc_plugin_queue *queue, uint64_t wait_ns)
{
	struct kvc_completion batch[BATCH];
	int count;

	if (queue->below == 0)
		return 0;
	count = queue->root->lower->poll(queue->lower, batch, BATCH, wait_ns);
	for (int i = 0; i < count; i++) {
		struct fault_slot *slot = (struct fault_slot *)(uintptr_t)batch[i].cookie;
		struct fault_late *late;

		slot->below = false;
		fault_slot_finish(slot, &batch[i], &late);
		if (late) {
			late->next = queue->late;
			queue->late = late;
		}
		list_append(&queue->done, slot);
		queue->below--;
	}
	return count;
}

static uint32_t deliver(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
			uint64_t now)
{
	struct fault_slot **link = &queue->done.first;
	uint32_t count = 0;

	while (*link && count < max) {
		struct fault_slot *slot = *link;

		if (slot->due_ns > now) {
			link = &slot->next;
			continue;
		}
		(void)list_take(&queue->done, link);
		out[count++] = slot->completion;
		fault_slot_release(slot);
		list_append(&queue->free, slot);
	}
	queue->outstanding -= count;
	return count;
}

/* Everything that can be done without waiting. Returns the count, or what the lower poll says. */
static int advance(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		   uint64_t now)
{
	int rc;

	write_late(queue, now);
	release_stalled(queue, now);
	flush(queue);
	rc = collect(queue, 0);
	if (rc < 0)
		return rc;
	flush(queue);
	return (int)deliver(queue, out, max, plugin_now_ns());
}

/* Waits for the plugin below, or for the time when something is due here. */
static int wait_until(struct kvc_plugin_queue *queue, uint64_t now, uint64_t until)
{
	struct timespec when;
	int rc;

	if (queue->below != 0) {
		rc = collect(queue, until - now);
		return rc < 0 ? rc : 0;
	}
	when = plugin_timespec(until);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
	return 0;
}

int fault_queue_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		     uint64_t wait_ns)
{
	uint64_t now = plugin_now_ns();
	uint64_t end = wait_ns > UINT64_MAX - now ? UINT64_MAX : now + wait_ns;
	int rc;

	for (;;) {
		uint64_t due;

		rc = advance(queue, out, max, now);
		if (rc != 0 || queue->outstanding == 0 || max == 0)
			break;
		now = plugin_now_ns();
		if (now >= end)
			break;
		due = next_due(queue);
		if (due > end)
			due = end;
		if (due > now) {
			rc = wait_until(queue, now, due);
			if (rc < 0)
				break;
		}
		now = plugin_now_ns();
	}
	timer_arm(queue);
	return rc;
}

static int event_add(int epoll_fd, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int fault_queue_event_fd(struct kvc_plugin_queue *queue)
{
	const struct kvc_plugin *lower = queue->root->lower;
	int lower_fd;
	int rc;

	if (queue->epoll_fd >= 0)
		return queue->epoll_fd;
	lower_fd = lower->event_fd ? lower->event_fd(queue->lower) : -ENOTSUP;
	if (lower_fd < 0)
		return lower_fd;
	queue->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (queue->timer_fd < 0)
		return -errno;
	queue->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (queue->epoll_fd < 0) {
		rc = -errno;
		goto close_timer;
	}
	rc = event_add(queue->epoll_fd, lower_fd);
	if (rc == 0)
		rc = event_add(queue->epoll_fd, queue->timer_fd);
	if (rc < 0)
		goto close_epoll;
	timer_arm(queue);
	return queue->epoll_fd;

close_epoll:
	(void)close(queue->epoll_fd);
	queue->epoll_fd = -1;
close_timer:
	(void)close(queue->timer_fd);
	queue->timer_fd = -1;
	return rc;
}

static bool is_chosen(const struct fault_slot *slot,
		      const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	if (!descriptors)
		return true;
	for (uint32_t i = 0; i < count; i++)
		if (descriptors[i] == slot->upper)
			return true;
	return false;
}

/* Ends the chosen slots of a list that the plugin below does not have. */
static void cancel_list(struct kvc_plugin_queue *queue, struct slot_list *list,
			const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	struct fault_slot **link = &list->first;

	while (*link) {
		struct fault_slot *slot;

		if (!is_chosen(*link, descriptors, count)) {
			link = &(*link)->next;
			continue;
		}
		slot = list_take(list, link);
		slot->plan.delay_ns = 0;
		fault_slot_end(slot, -ECANCELED);
		list_append(&queue->done, slot);
	}
}

/* True when some of the chosen ones that the plugin below has stay for an unknown time. */
static bool cancel_below(struct kvc_plugin_queue *queue,
			 const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	const struct kvc_plugin *lower = queue->root->lower;
	bool ask = queue->root->backend->cancellable != 0;
	bool busy = false;

	for (uint32_t i = 0; i < queue->depth; i++) {
		struct fault_slot *slot = &queue->slots[i];
		const struct kvc_descriptor *descriptor = &slot->lower;

		if (!slot->below || !is_chosen(slot, descriptors, count))
			continue;
		if (queue->root->cancellable)
			slot->plan.delay_ns = 0;
		if (!ask || (descriptors && lower->cancel(queue->lower, &descriptor, 1) < 0))
			busy = true;
	}
	if (ask && !descriptors && lower->cancel(queue->lower, NULL, 0) < 0)
		busy = true;
	return busy;
}

/*
 * What is ready has moved no byte and always ends. A stalled descriptor stands for I/O stuck
 * in a device: it ends only on a root that is CANCELLABLE, else it goes on owning its memory. The
 * plugin below is asked only if this root does not pretend to be one that cannot cancel.
 */
int fault_queue_cancel(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	bool cancellable = queue->root->cancellable;
	bool busy = false;

	cancel_list(queue, &queue->ready, descriptors, count);
	if (cancellable)
		cancel_list(queue, &queue->stalled, descriptors, count);
	for (struct fault_slot *slot = queue->stalled.first; slot; slot = slot->next)
		busy |= is_chosen(slot, descriptors, count);
	for (struct fault_slot *slot = queue->done.first; slot; slot = slot->next) {
		if (!is_chosen(slot, descriptors, count))
			continue;
		if (cancellable)
			slot->due_ns = 0;
		else if (slot->due_ns > plugin_now_ns())
			busy = true;
	}
	busy |= cancel_below(queue, descriptors, count);
	timer_arm(queue);
	return busy ? -EBUSY : 0;
}
