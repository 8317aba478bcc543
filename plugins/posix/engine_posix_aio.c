/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX AIO, which glibc does with threads of its own, one request per file at a time. It has no
 * vectors: each request moves one range, and what is left looks like a short transfer, which the
 * operation's stages continue.
 */
#include "posix.h"

#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TICK_NS 1000000 /* how often the event descriptor says "look" while requests are out */

struct posix_aio {
	uint32_t running_count;
	struct posix_op **running;    /* depth of them */
	const struct aiocb **waitfor; /* the same, as aio_suspend wants it */
	int timer_fd;		      /* -1 until event_fd() is asked for */
	bool ticking;
};

_Static_assert(sizeof(struct aiocb) <= POSIX_ENGINE_BYTES, "an aiocb must fit into an operation");

/* glibc keeps its AIO threads on its books across fork(), though the child has none of them: a
 * request of the child then waits for ever. */
static _Atomic pid_t user_pid;

static int posix_aio_probe(char *why, size_t why_bytes)
{
	pid_t user = atomic_load(&user_pid);

#ifdef __SANITIZE_THREAD__
	(void)snprintf(why, why_bytes, "ThreadSanitizer crashes in the threads that glibc makes");
	return -ENOTSUP;
#endif
	if (user == 0 || user == getpid())
		return 0;
	(void)snprintf(why, why_bytes,
		       "used before fork(), which glibc's POSIX AIO does not survive");
	return -ENOTSUP;
}

static int posix_aio_queue_open(struct kvc_plugin_queue *queue)
{
	struct posix_aio *aio = calloc(1, sizeof(*aio));

	if (aio == NULL)
		return -ENOMEM;
	aio->timer_fd = -1;
	aio->running = calloc(queue->depth, sizeof(*aio->running));
	aio->waitfor = calloc(queue->depth, sizeof(*aio->waitfor));
	if (aio->running == NULL || aio->waitfor == NULL) {
		free(aio->waitfor);
		free(aio->running);
		free(aio);
		return -ENOMEM;
	}
	atomic_store(&user_pid, getpid());
	queue->engine_queue = aio;
	return 0;
}

static void posix_aio_queue_close(struct kvc_plugin_queue *queue)
{
	struct posix_aio *aio = queue->engine_queue;

	if (aio->timer_fd >= 0)
		close(aio->timer_fd);
	free(aio->waitfor);
	free(aio->running);
	free(aio);
}

static int posix_aio_issue(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	struct posix_aio *aio = queue->engine_queue;
	struct aiocb *aiocb = (struct aiocb *)op->engine;
	const struct posix_io *io = &op->io;
	int rc = -1;

	memset(aiocb, 0, sizeof(*aiocb));
	aiocb->aio_fildes = io->fd;
	aiocb->aio_sigevent.sigev_notify = SIGEV_NONE;
	if (io->iov_count > 0) {
		aiocb->aio_buf = io->iov[0].iov_base;
		aiocb->aio_nbytes = io->iov[0].iov_len;
		aiocb->aio_offset = (off_t)io->offset;
	}
	switch (io->kind) {
	case POSIX_IO_READ:
		rc = aio_read(aiocb);
		break;
	case POSIX_IO_WRITE:
		rc = aio_write(aiocb);
		break;
	case POSIX_IO_DATASYNC:
		rc = aio_fsync(O_DSYNC, aiocb);
		break;
	case POSIX_IO_SYNC:
		rc = aio_fsync(O_SYNC, aiocb);
		break;
	}
	if (rc != 0)
		return -errno;
	aio->running[aio->running_count] = op;
	aio->waitfor[aio->running_count] = aiocb;
	aio->running_count++;
	return 0;
}

static void tick(struct posix_aio *aio)
{
	struct itimerspec every = {
		.it_value.tv_nsec = TICK_NS,
		.it_interval.tv_nsec = TICK_NS,
	};
	bool wanted = aio->running_count > 0;

	if (aio->timer_fd < 0 || aio->ticking == wanted)
		return;
	if (!wanted)
		every = (struct itimerspec){ 0 };
	if (timerfd_settime(aio->timer_fd, 0, &every, NULL) == 0)
		aio->ticking = wanted;
}

static void posix_aio_flush(struct kvc_plugin_queue *queue)
{
	tick(queue->engine_queue);
}

static int posix_aio_take(struct kvc_plugin_queue *queue)
{
	struct posix_aio *aio = queue->engine_queue;
	int count = 0;
	uint32_t i = 0;

	while (i < aio->running_count) {
		struct posix_op *op = aio->running[i];
		struct aiocb *aiocb = (struct aiocb *)op->engine;
		int error = aio_error(aiocb);

		if (error == EINPROGRESS) {
			i++;
			continue;
		}
		op->io.result = aio_return(aiocb);
		if (error != 0)
			op->io.result = -error;
		aio->running_count--;
		aio->running[i] = aio->running[aio->running_count];
		aio->waitfor[i] = aio->waitfor[aio->running_count];
		posix_queue_io_ended(queue, op); /* may issue, which appends */
		count++;
	}
	return count;
}

static int posix_aio_reap(struct kvc_plugin_queue *queue, uint64_t wait_ns)
{
	struct posix_aio *aio = queue->engine_queue;
	struct timespec limit = {
		.tv_sec = (time_t)(wait_ns / 1000000000u),
		.tv_nsec = (long)(wait_ns % 1000000000u),
	};
	uint64_t value;
	int count = posix_aio_take(queue);

	if (aio->timer_fd >= 0 && read(aio->timer_fd, &value, sizeof(value)) < 0)
		value = 0; /* no tick since the last time */
	if (count > 0 || wait_ns == 0 || aio->running_count == 0)
		return count;
	if (aio_suspend(aio->waitfor, (int)aio->running_count, &limit) != 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	return posix_aio_take(queue);
}

static int posix_aio_event_fd(struct kvc_plugin_queue *queue)
{
	struct posix_aio *aio = queue->engine_queue;

	if (aio->timer_fd < 0) {
		aio->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
		if (aio->timer_fd < 0)
			return -errno;
		tick(aio);
	}
	return aio->timer_fd;
}

const struct posix_engine posix_engine_posix_aio = {
	.name = "posix_aio",
	.probe = posix_aio_probe,
	.queue_open = posix_aio_queue_open,
	.queue_close = posix_aio_queue_close,
	.issue = posix_aio_issue,
	.flush = posix_aio_flush,
	.reap = posix_aio_reap,
	.event_fd = posix_aio_event_fd,
};
