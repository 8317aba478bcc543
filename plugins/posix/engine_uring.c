/* SPDX-License-Identifier: Apache-2.0 */
/* io_uring: one ring per queue. No polling thread, and no flag that binds a ring to a thread: a
 * queue may move between threads. */
#include "posix.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The kernel does not interrupt the thread that submitted for each completion, but waits until it
 * enters the kernel, as it does all the time here; the flag in the ring tells a look that only
 * reads memory that it has to.
 */
#if defined(IORING_SETUP_COOP_TASKRUN) && defined(IORING_SETUP_TASKRUN_FLAG)
#define URING_CALM (IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
#else
#define URING_CALM 0u
#endif

struct uring {
	struct io_uring ring;
	uint32_t prepared; /* in the ring and not yet with the kernel */
};

static int uring_refuse(char *why, size_t why_bytes, const char *what, int error)
{
	(void)snprintf(why, why_bytes, "%s: %s%s", what, strerror(-error),
		       error == -EPERM ? " (see sysctl kernel.io_uring_disabled)" : "");
	return error;
}

/* Kernels before 5.19 do not know the flags. */
static int ring_open(unsigned int entries, struct io_uring *ring, struct io_uring_params *params)
{
	int error;

	*params = (struct io_uring_params){ .flags = IORING_SETUP_CLAMP | URING_CALM };
	error = io_uring_queue_init_params(entries, ring, params);
	if (error != -EINVAL)
		return error;
	*params = (struct io_uring_params){ .flags = IORING_SETUP_CLAMP };
	return io_uring_queue_init_params(entries, ring, params);
}

static int uring_probe(char *why, size_t why_bytes)
{
	static const int needed[] = { IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC };
	struct io_uring_params params;
	struct io_uring_probe *probe;
	struct io_uring ring;
	int error = ring_open(4, &ring, &params);

	if (error != 0)
		return uring_refuse(why, why_bytes, "io_uring_setup", error);
	probe = io_uring_get_probe_ring(&ring);
	if (probe == NULL)
		error = uring_refuse(why, why_bytes, "io_uring_register", -ENOSYS);
	else if ((params.features & (IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG)) !=
		 (IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG))
		error = uring_refuse(why, why_bytes, "waiting with a limit", -ENOSYS);
	for (size_t i = 0; error == 0 && i < sizeof(needed) / sizeof(needed[0]); i++) {
		if (!io_uring_opcode_supported(probe, needed[i]))
			error = uring_refuse(why, why_bytes, "an operation", -ENOSYS);
	}
	free(probe);
	io_uring_queue_exit(&ring);
	return error;
}

static int uring_queue_open(struct kvc_plugin_queue *queue)
{
	struct uring *uring = calloc(1, sizeof(*uring));
	struct io_uring_params params;
	int error;

	if (uring == NULL)
		return -ENOMEM;
	error = ring_open(queue->depth, &uring->ring, &params);
	if (error != 0) {
		free(uring);
		return error;
	}
	queue->engine_queue = uring;
	return 0;
}

static void uring_queue_close(struct kvc_plugin_queue *queue)
{
	struct uring *uring = queue->engine_queue;

	io_uring_queue_exit(&uring->ring);
	free(uring);
}

static void uring_flush(struct kvc_plugin_queue *queue)
{
	struct uring *uring = queue->engine_queue;
	int n;

	while (uring->prepared > 0) {
		n = io_uring_submit(&uring->ring);
		if (n > 0)
			uring->prepared -= (uint32_t)n;
		/* What does not go now (no memory, completions to be taken first) goes with the
		 * next poll. */
		else if (n != -EINTR)
			return;
	}
}

static int uring_issue(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	struct uring *uring = queue->engine_queue;
	const struct posix_io *io = &op->io;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

	if (sqe == NULL) {
		uring_flush(queue);
		sqe = io_uring_get_sqe(&uring->ring);
		if (sqe == NULL)
			return -EAGAIN;
	}
	switch (io->kind) {
	case POSIX_IO_READ:
		io_uring_prep_readv(sqe, io->fd, io->iov, io->iov_count, io->offset);
		break;
	case POSIX_IO_WRITE:
		io_uring_prep_writev(sqe, io->fd, io->iov, io->iov_count, io->offset);
		break;
	case POSIX_IO_DATASYNC:
		io_uring_prep_fsync(sqe, io->fd, IORING_FSYNC_DATASYNC);
		break;
	case POSIX_IO_SYNC:
		io_uring_prep_fsync(sqe, io->fd, 0);
		break;
	}
	io_uring_sqe_set_data(sqe, op);
	uring->prepared++;
	return 0;
}

static int uring_take(struct kvc_plugin_queue *queue)
{
	struct uring *uring = queue->engine_queue;
	struct io_uring_cqe *cqe;
	int count = 0;

	while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
		struct posix_op *op = io_uring_cqe_get_data(cqe);

		op->io.result = cqe->res;
		io_uring_cqe_seen(&uring->ring, cqe);
		posix_queue_io_ended(queue, op);
		count++;
	}
	return count;
}

static int uring_reap(struct kvc_plugin_queue *queue, uint64_t wait_ns)
{
	struct uring *uring = queue->engine_queue;
	struct __kernel_timespec limit;
	struct io_uring_cqe *cqe;
	int count = uring_take(queue);
	int error;

	if (count > 0 || wait_ns == 0)
		return count;
	limit.tv_sec = (long long)(wait_ns / 1000000000u);
	limit.tv_nsec = (long long)(wait_ns % 1000000000u);
	uring_flush(queue);
	error = io_uring_wait_cqe_timeout(&uring->ring, &cqe, &limit);
	if (error != 0)
		return error == -ETIME || error == -EINTR || error == -EAGAIN ? 0 : error;
	return uring_take(queue);
}

static int uring_event_fd(struct kvc_plugin_queue *queue)
{
	struct uring *uring = queue->engine_queue;

	return uring->ring.ring_fd;
}

const struct posix_engine posix_engine_uring = {
	.name = "io_uring",
	.probe = uring_probe,
	.queue_open = uring_queue_open,
	.queue_close = uring_queue_close,
	.issue = uring_issue,
	.flush = uring_flush,
	.reap = uring_reap,
	.event_fd = uring_event_fd,
};
