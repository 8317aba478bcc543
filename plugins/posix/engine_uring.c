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

/*
 * Measured (ext4 on a loop device in memory, O_DIRECT, CPU per operation): a request from a
 * registered buffer saves 0.6 us at 16 KiB, 1.2 at 64 KiB, 3 to 7 at 256 KiB and 15 to 40 at 1 MiB;
 * each further request of an operation costs 0.8 to 1 us, and a small one beside a large one 5 to
 * 10% of the throughput. An operation is cut up where its buffers have at least this much per
 * request.
 */
#define FIXED_BYTES_MIN	   (UINT64_C(128) << 10)
#define URING_REQUESTS_MAX 8u /* of one operation; fits below the alignment of an operation */

struct uring {
	struct io_uring ring;
	uint32_t prepared; /* in the ring and not yet with the kernel */
	int member;	   /* of the registered buffers, or -1 */
};

/* Lies in the operation. */
struct uring_op {
	uint32_t left; /* requests that have not ended */
	uint32_t count;
	int32_t results[URING_REQUESTS_MAX];
	uint64_t bytes[URING_REQUESTS_MAX];
};
_Static_assert(sizeof(struct uring_op) <= POSIX_ENGINE_BYTES, "must fit into an operation");

/* A part of an I/O: one range from a registered buffer, or ranges without. */
struct uring_part {
	struct iovec *iov;
	uint32_t iov_count;
	int buffer; /* or -1 */
	uint64_t bytes;
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
	uring->member = -1;
	queue->engine_queue = uring;
	return 0;
}

static void uring_queue_close(struct kvc_plugin_queue *queue)
{
	struct uring *uring = queue->engine_queue;

	if (uring->member >= 0)
		posix_buffers_leave(queue->root->backend->buffers, uring->member);
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

/* The buffer that has the whole of this range, or -1. */
static int range_buffer(struct uring *uring, const struct posix_op *op, const struct iovec *iov)
{
	uint64_t registration = op->descriptor->ranges[iov - op->iov].registration;

	if (registration == 0 || op->unregistered || !op->file.direct)
		return -1;
	/* The first queues that move registered memory get the buffers, as long as there is room
	 * for more. */
	if (uring->member < 0)
		uring->member =
			posix_buffers_join(op->queue->root->backend->buffers, uring->ring.ring_fd);
	if (uring->member < 0)
		return -1;
	return posix_buffer_find(registration, uring->member, iov->iov_base, iov->iov_len);
}

/* Large registered ranges alone, what lies between them together. */
static uint32_t parts_make(struct uring *uring, struct posix_op *op, struct uring_part *parts)
{
	const struct posix_io *io = &op->io;
	uint64_t fixed_bytes = 0;
	uint64_t bytes = 0;
	uint32_t count = 0;

	for (uint32_t i = 0; i < io->iov_count; i++) {
		struct iovec *iov = &io->iov[i];
		bool alone = io->iov_count == 1 || iov->iov_len >= FIXED_BYTES_MIN;
		int buffer = -1;

		if (alone && (count < URING_REQUESTS_MAX - 1 || io->iov_count == 1))
			buffer = range_buffer(uring, op, iov);
		if (buffer >= 0 || count == 0 || parts[count - 1].buffer >= 0)
			parts[count++] = (struct uring_part){ .iov = iov, .buffer = buffer };
		parts[count - 1].iov_count++;
		parts[count - 1].bytes += iov->iov_len;
		bytes += iov->iov_len;
		fixed_bytes += buffer >= 0 ? iov->iov_len : 0;
	}
	if (count > 1 && fixed_bytes < count * FIXED_BYTES_MIN) {
		parts[0] = (struct uring_part){ io->iov, io->iov_count, -1, bytes };
		count = 1;
	}
	return count;
}

static struct io_uring_sqe *sqe_get(struct kvc_plugin_queue *queue)
{
	struct uring *uring = queue->engine_queue;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

	if (sqe == NULL) {
		uring_flush(queue);
		sqe = io_uring_get_sqe(&uring->ring);
	}
	if (sqe != NULL)
		uring->prepared++;
	return sqe;
}

static void part_prepare(struct io_uring_sqe *sqe, const struct posix_io *io,
			 const struct uring_part *part, uint64_t offset)
{
	bool reads = io->kind == POSIX_IO_READ;
	struct iovec *iov = part->iov;

	if (part->buffer >= 0 && reads)
		io_uring_prep_read_fixed(sqe, io->fd, iov->iov_base, (unsigned int)iov->iov_len,
					 offset, part->buffer);
	else if (part->buffer >= 0)
		io_uring_prep_write_fixed(sqe, io->fd, iov->iov_base, (unsigned int)iov->iov_len,
					  offset, part->buffer);
	else if (reads)
		io_uring_prep_readv(sqe, io->fd, iov, part->iov_count, offset);
	else
		io_uring_prep_writev(sqe, io->fd, iov, part->iov_count, offset);
}

static int move_issue(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	struct uring_part parts[URING_REQUESTS_MAX];
	struct uring_op *requests = (struct uring_op *)(void *)op->engine;
	uint32_t count = parts_make(queue->engine_queue, op, parts);
	uint64_t offset = op->io.offset;

	requests->count = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct io_uring_sqe *sqe = sqe_get(queue);

		/* The rest goes with the next I/O of the operation, as after a short one. */
		if (sqe == NULL)
			break;
		part_prepare(sqe, &op->io, &parts[i], offset);
		io_uring_sqe_set_data64(sqe, (uintptr_t)op | i);
		op->io.fixed = op->io.fixed || parts[i].buffer >= 0;
		requests->bytes[i] = parts[i].bytes;
		requests->count++;
		offset += parts[i].bytes;
	}
	requests->left = requests->count;
	return requests->count > 0 ? 0 : -EAGAIN;
}

static int uring_issue(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	struct uring_op *requests = (struct uring_op *)(void *)op->engine;
	const struct posix_io *io = &op->io;
	struct io_uring_sqe *sqe;

	if (io->kind == POSIX_IO_READ || io->kind == POSIX_IO_WRITE)
		return move_issue(queue, op);
	sqe = sqe_get(queue);
	if (sqe == NULL)
		return -EAGAIN;
	io_uring_prep_fsync(sqe, io->fd, io->kind == POSIX_IO_DATASYNC ? IORING_FSYNC_DATASYNC : 0);
	io_uring_sqe_set_data64(sqe, (uintptr_t)op);
	requests->count = 1;
	requests->left = 1;
	requests->bytes[0] = 0;
	return 0;
}

/* What was moved from the front without a gap; the error of the first request when that is
 * nothing. Whatever came after a gap is moved once more. */
static int64_t result_join(const struct uring_op *requests)
{
	int64_t moved = 0;

	for (uint32_t i = 0; i < requests->count; i++) {
		int64_t result = requests->results[i];

		if (result < 0)
			return moved > 0 ? moved : result;
		moved += result;
		if ((uint64_t)result < requests->bytes[i])
			break;
	}
	return moved;
}

static void request_ended(struct kvc_plugin_queue *queue, uint64_t data, int32_t result)
{
	struct posix_op *op =
		(struct posix_op *)(uintptr_t)(data & ~(uint64_t)(URING_REQUESTS_MAX - 1));
	struct uring_op *requests = (struct uring_op *)(void *)op->engine;

	requests->results[data & (URING_REQUESTS_MAX - 1)] = result;
	if (--requests->left > 0)
		return;
	op->io.result = result_join(requests);
	posix_queue_io_ended(queue, op);
}

static int uring_take(struct kvc_plugin_queue *queue)
{
	struct uring *uring = queue->engine_queue;
	struct io_uring_cqe *cqe;
	int count = 0;

	while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
		uint64_t data = cqe->user_data;
		int32_t result = cqe->res;

		io_uring_cqe_seen(&uring->ring, cqe);
		request_ended(queue, data, result);
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
