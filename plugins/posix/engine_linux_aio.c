/* SPDX-License-Identifier: Apache-2.0 */
/* Linux AIO. io_submit blocks where a write makes a file grow, so writes of new objects are done
 * one after the other; reads are asynchronous on most file systems. */
#include "posix.h"

#include <errno.h>
#include <libaio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_AT_ONCE 32

struct linux_aio {
	io_context_t context;
	int event_fd;
	uint32_t prepared_count;
	struct iocb **prepared; /* depth of them */
};

_Static_assert(sizeof(struct iocb) <= POSIX_ENGINE_BYTES, "an iocb must fit into an operation");

static int linux_aio_probe(char *why, size_t why_bytes)
{
	io_context_t context = NULL;
	int error = io_setup(1, &context);

	if (error != 0) {
		(void)snprintf(why, why_bytes, "io_setup: %s%s", strerror(-error),
			       error == -EAGAIN ? " (see sysctl fs.aio-max-nr)" : "");
		return error;
	}
	(void)io_destroy(context);
	return 0;
}

static int linux_aio_queue_open(struct kvc_plugin_queue *queue)
{
	struct linux_aio *aio = calloc(1, sizeof(*aio));
	int error;

	if (aio == NULL)
		return -ENOMEM;
	aio->prepared = calloc(queue->depth, sizeof(*aio->prepared));
	if (aio->prepared == NULL) {
		error = -ENOMEM;
		goto free_aio;
	}
	aio->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (aio->event_fd < 0) {
		error = -errno;
		goto free_prepared;
	}
	error = io_setup((int)queue->depth, &aio->context);
	if (error != 0)
		goto close_event;
	queue->engine_queue = aio;
	return 0;

close_event:
	close(aio->event_fd);
free_prepared:
	free(aio->prepared);
free_aio:
	free(aio);
	return error;
}

static void linux_aio_queue_close(struct kvc_plugin_queue *queue)
{
	struct linux_aio *aio = queue->engine_queue;

	(void)io_destroy(aio->context);
	close(aio->event_fd);
	free(aio->prepared);
	free(aio);
}

/* One that io_submit refuses is at the front: the refusal is its result, the others go on. */
static void linux_aio_flush(struct kvc_plugin_queue *queue)
{
	struct linux_aio *aio = queue->engine_queue;
	uint32_t done = 0;

	while (done < aio->prepared_count) {
		int n = io_submit(aio->context, (long)(aio->prepared_count - done),
				  aio->prepared + done);
		struct posix_op *op;

		if (n > 0) {
			done += (uint32_t)n;
			continue;
		}
		if (n == -EINTR)
			continue;
		if (n == 0 || n == -EAGAIN)
			break; /* no room in the kernel: with the next poll */
		op = aio->prepared[done]->data;
		done++;
		memmove(aio->prepared, aio->prepared + done,
			(aio->prepared_count - done) * sizeof(*aio->prepared));
		aio->prepared_count -= done;
		done = 0;
		op->io.result = n;
		posix_queue_io_ended(queue, op); /* may issue, which appends */
	}
	memmove(aio->prepared, aio->prepared + done,
		(aio->prepared_count - done) * sizeof(*aio->prepared));
	aio->prepared_count -= done;
}

static int linux_aio_issue(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	struct linux_aio *aio = queue->engine_queue;
	struct iocb *iocb = (struct iocb *)op->engine;
	const struct posix_io *io = &op->io;

	switch (io->kind) {
	case POSIX_IO_READ:
		io_prep_preadv(iocb, io->fd, io->iov, (int)io->iov_count, (long long)io->offset);
		break;
	case POSIX_IO_WRITE:
		io_prep_pwritev(iocb, io->fd, io->iov, (int)io->iov_count, (long long)io->offset);
		break;
	case POSIX_IO_DATASYNC:
		io_prep_fdsync(iocb, io->fd);
		break;
	case POSIX_IO_SYNC:
		io_prep_fsync(iocb, io->fd);
		break;
	}
	io_set_eventfd(iocb, aio->event_fd);
	iocb->data = op;
	aio->prepared[aio->prepared_count++] = iocb;
	return 0;
}

static int linux_aio_reap(struct kvc_plugin_queue *queue, uint64_t wait_ns)
{
	struct linux_aio *aio = queue->engine_queue;
	struct io_event events[EVENTS_AT_ONCE];
	struct timespec limit = {
		.tv_sec = (time_t)(wait_ns / 1000000000u),
		.tv_nsec = (long)(wait_ns % 1000000000u),
	};
	uint32_t moving = queue->moving;
	uint64_t value;
	int total = 0;
	int n;

	linux_aio_flush(queue);
	/* Refused ones have ended in the flush. */
	if (queue->moving < moving)
		limit = (struct timespec){ 0 };
	if (read(aio->event_fd, &value, sizeof(value)) < 0)
		value = 0; /* nothing since the last time */
	do {
		n = io_getevents(aio->context,
				 total == 0 && (limit.tv_sec > 0 || limit.tv_nsec > 0),
				 EVENTS_AT_ONCE, events, &limit);
		if (n < 0)
			return n == -EINTR ? total : n;
		for (int i = 0; i < n; i++) {
			struct posix_op *op = events[i].data;

			op->io.result = (int64_t)events[i].res;
			posix_queue_io_ended(queue, op);
		}
		total += n;
		limit = (struct timespec){ 0 };
	} while (n == EVENTS_AT_ONCE);
	return total;
}

static int linux_aio_event_fd(struct kvc_plugin_queue *queue)
{
	const struct linux_aio *aio = queue->engine_queue;

	return aio->event_fd;
}

const struct posix_engine posix_engine_linux_aio = {
	.name = "linux_aio",
	.probe = linux_aio_probe,
	.queue_open = linux_aio_queue_open,
	.queue_close = linux_aio_queue_close,
	.issue = linux_aio_issue,
	.flush = linux_aio_flush,
	.reap = linux_aio_reap,
	.event_fd = linux_aio_event_fd,
};
