/* SPDX-License-Identifier: Apache-2.0 */
/* A queue: accepts descriptors, drives them through their stages, hands out completions. */
#include "posix.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Writes are handed to the kernel when there is this much to do: one call for a few small objects,
 * and the device does not wait for long. */
#define FLUSH_BYTES (UINT64_C(512) << 10)

int posix_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
		       struct kvc_plugin_queue **out)
{
	struct kvc_plugin_queue *queue = calloc(1, sizeof(*queue));
	int error;

	if (queue == NULL)
		return -ENOMEM;
	queue->root = root;
	queue->engine = root->engine;
	queue->depth = params->depth < root->backend->max_depth ? params->depth :
								  root->backend->max_depth;
	if (queue->depth == 0)
		queue->depth = 1;
	queue->epoll_fd = -1;
	queue->ready_fd = -1;
	error = queue->engine->queue_open(queue);
	if (error != 0) {
		free(queue);
		return error;
	}
	*out = queue;
	return 0;
}

int posix_queue_destroy(struct kvc_plugin_queue *queue)
{
	if (queue == NULL)
		return 0;
	if (queue->outstanding > 0)
		return -EBUSY;
	if (queue->epoll_fd >= 0) {
		close(queue->epoll_fd);
		close(queue->ready_fd);
	}
	queue->engine->queue_close(queue);
	free(queue);
	return 0;
}

/* Keeps what event_fd() gave out readable as long as something is ready. */
static void ready_signal(struct kvc_plugin_queue *queue)
{
	bool ready = queue->ready.first != NULL;
	uint64_t value = 1;
	ssize_t n;

	if (queue->epoll_fd < 0 || ready == queue->ready_set)
		return;
	if (ready)
		n = write(queue->ready_fd, &value, sizeof(value));
	else
		n = read(queue->ready_fd, &value, sizeof(value));
	if (n == (ssize_t)sizeof(value))
		queue->ready_set = ready;
}

void posix_queue_op_ended(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	queue->moving--;
	posix_op_list_push(&queue->ready, op);
}

/* Does the stages of an operation until its next I/O has been issued or it has ended. */
static void op_drive(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	while (posix_op_step(op)) {
		int error = queue->engine->issue(queue, op);

		if (error == 0)
			return;
		op->io.result = error;
	}
	posix_queue_op_ended(queue, op);
}

void posix_queue_io_ended(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	op_drive(queue, op);
}

static void outstanding_add(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	op->older = queue->newest;
	op->newer = NULL;
	if (queue->newest != NULL)
		queue->newest->newer = op;
	queue->newest = op;
}

static void outstanding_remove(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	if (op->newer != NULL)
		op->newer->older = op->older;
	else
		queue->newest = op->older;
	if (op->older != NULL)
		op->older->newer = op->newer;
}

static bool queue_has_room(const struct kvc_plugin_queue *queue, uint64_t bytes)
{
	if (queue->outstanding == 0)
		return true;
	return queue->outstanding < queue->depth &&
	       (queue->bytes_in_flight == 0 ||
		queue->bytes_in_flight + bytes <= POSIX_BYTES_IN_FLIGHT);
}

static uint64_t descriptor_bytes(const struct kvc_descriptor *descriptor)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < descriptor->range_count && i < POSIX_MAX_RANGES; i++)
		bytes += descriptor->ranges[i].bytes;
	return bytes;
}

int posix_queue_submit(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	uint64_t waiting_bytes = 0;
	uint32_t accepted = 0;

	while (accepted < count) {
		const struct kvc_descriptor *descriptor = descriptors[accepted];
		struct posix_op *op = descriptor->scratch;

		if (!queue_has_room(queue, descriptor_bytes(descriptor)))
			break;
		posix_op_init(op, queue, descriptor);
		queue->outstanding++;
		queue->moving++;
		outstanding_add(queue, op);
		queue->bytes_in_flight += op->bytes;
		accepted++;
		/* A look at an inode is shorter than the way to a thread. */
		if (queue->engine->whole && descriptor->op != KVC_OP_STAT)
			queue->engine->start(queue, op);
		else
			op_drive(queue, op);
		if (descriptor->op != KVC_OP_WRITE)
			continue;
		/* What is issued runs while the next objects are begun and their last range is
		 * made. */
		waiting_bytes += op->bytes;
		if (waiting_bytes >= FLUSH_BYTES) {
			queue->engine->flush(queue);
			waiting_bytes = 0;
		}
	}
	if (accepted > 0)
		queue->engine->flush(queue);
	ready_signal(queue);
	return accepted > 0 || count == 0 ? (int)accepted : -EAGAIN;
}

static uint32_t ready_take(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max)
{
	uint32_t count = 0;
	struct posix_op *op;

	while (count < max && (op = posix_op_list_pop(&queue->ready)) != NULL) {
		queue->outstanding--;
		queue->bytes_in_flight -= op->bytes;
		outstanding_remove(queue, op);
		/* The last look at op: with its completion the scratch is the library's again. */
		out[count++] = op->completion;
	}
	return count;
}

int posix_queue_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		     uint64_t wait_ns)
{
	uint64_t end_ns = 0;
	uint64_t left_ns = 0;
	uint32_t count;

	for (;;) {
		if (queue->moving > 0) {
			int error = queue->engine->reap(queue, left_ns);

			if (error < 0 && error != -EINTR)
				return error;
			queue->engine->flush(queue);
		}
		count = ready_take(queue, out, max);
		if (count > 0 || max == 0 || wait_ns == 0)
			break;
		if (end_ns == 0) {
			end_ns = plugin_now_ns() + wait_ns;
			if (end_ns < wait_ns)
				end_ns = UINT64_MAX;
			left_ns = wait_ns;
		} else {
			uint64_t now = plugin_now_ns();

			if (now >= end_ns)
				break;
			left_ns = end_ns - now;
		}
		if (queue->moving == 0) {
			struct timespec left = { .tv_sec = (time_t)(left_ns / 1000000000u),
						 .tv_nsec = (long)(left_ns % 1000000000u) };

			/* Nothing can come; the contract is to wait all the same. */
			(void)nanosleep(&left, NULL);
			break;
		}
	}
	ready_signal(queue);
	return (int)count;
}

static int event_add(int epoll_fd, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int posix_queue_event_fd(struct kvc_plugin_queue *queue)
{
	int engine_fd;
	int error;

	if (queue->epoll_fd >= 0)
		return queue->epoll_fd;
	engine_fd = queue->engine->event_fd(queue);
	if (engine_fd < 0)
		return engine_fd;
	queue->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (queue->ready_fd < 0)
		return -errno;
	queue->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (queue->epoll_fd < 0) {
		error = -errno;
		goto close_ready;
	}
	error = event_add(queue->epoll_fd, engine_fd);
	if (error == 0)
		error = event_add(queue->epoll_fd, queue->ready_fd);
	if (error != 0)
		goto close_epoll;
	queue->ready_set = false;
	ready_signal(queue);
	return queue->epoll_fd;

close_epoll:
	close(queue->epoll_fd);
close_ready:
	close(queue->ready_fd);
	queue->epoll_fd = -1;
	queue->ready_fd = -1;
	return error;
}

int posix_queue_cancel(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	/* Stages that are still to come end with -ECANCELED; an I/O that the kernel has is waited
	 * for, since it owns the memory until it ends. */
	if (descriptors == NULL) {
		for (struct posix_op *op = queue->newest; op != NULL; op = op->older)
			atomic_store(&op->cancelled, true);
	}
	for (uint32_t i = 0; descriptors != NULL && i < count; i++) {
		struct posix_op *op = descriptors[i]->scratch;

		atomic_store(&op->cancelled, true);
	}
	if (queue->engine->cancel != NULL)
		queue->engine->cancel(queue);
	ready_signal(queue);
	return queue->moving > 0 ? -EBUSY : 0;
}
