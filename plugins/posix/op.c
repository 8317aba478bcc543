/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of one operation, the same for every engine. */
#include "posix.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define IO_RETRIES_MAX 1000u
#define SECTOR_BYTES   512u

enum op_stage {
	STAGE_BEGIN,
	STAGE_MOVED,
	STAGE_SYNCED,
	STAGE_FOLDER_SYNCED,
};

void posix_op_init(struct posix_op *op, struct kvc_plugin_queue *queue,
		   const struct kvc_descriptor *descriptor)
{
	/* The list of ranges and the engine's bytes are filled when they are needed. */
	memset(op, 0, offsetof(struct posix_op, engine));
	op->queue = queue;
	op->descriptor = descriptor;
	op->completion.cookie = descriptor->cookie;
	op->file.fd = -1;
	op->file.folder.fd = -1;
	op->file.folder.slot = -1;
	op->folder_fd = -1;
	op->stage = STAGE_BEGIN;
	for (uint32_t i = 0; i < descriptor->range_count && i < POSIX_MAX_RANGES; i++)
		op->bytes += descriptor->ranges[i].bytes;
	if (descriptor->container != NULL)
		atomic_fetch_add(&descriptor->container->outstanding, 1);
}

static bool op_is_whole(const struct posix_op *op)
{
	return op->descriptor->container == NULL;
}

static struct fsobj_root *op_files(const struct posix_op *op)
{
	return op->queue->root->files;
}

static bool op_end(struct posix_op *op, int64_t result)
{
	if (op->folder_fd >= 0)
		close(op->folder_fd);
	op->folder_fd = -1;
	if (op_is_whole(op))
		fsobj_close(op_files(op), &op->file);
	else
		atomic_fetch_sub(&op->descriptor->container->outstanding, 1);
	op->completion.result = result;
	if (result >= 0 || result == -EEXIST) {
		op->completion.object_bytes = op->seen.bytes;
		op->completion.version[0] = op->seen.version[0];
		op->completion.version[1] = op->seen.version[1];
	}
	return false;
}

void posix_op_cancel(struct posix_op *op)
{
	(void)op_end(op, -ECANCELED);
}

/* The ranges from iov_next on, up to target. */
static void ranges_take(struct posix_op *op)
{
	const struct kvc_descriptor *descriptor = op->descriptor;
	for (uint32_t i = 0; i < descriptor->range_count; i++) {
		op->iov[i].iov_base = descriptor->ranges[i].addr;
		op->iov[i].iov_len = descriptor->ranges[i].bytes;
	}
	op->target = op->bytes;
	op->iov_end = descriptor->range_count;
}

/*
 * A LATE range is filled while the I/O of the operations before this one runs, and then written
 * together with the others. Measured (ext4, O_DIRECT, 128 objects of 2 parts and 4096 bytes): one
 * vectored write is 3 to 15% faster than two, and what the overlap with the own I/O would gain is
 * not to be seen from two objects on.
 */
static int begin_write(struct posix_op *op)
{
	const struct kvc_descriptor *descriptor = op->descriptor;
	const struct kvc_host *host = op->queue->root->host;
	uint32_t count = descriptor->range_count;
	int error;

	if (descriptor->offset != 0)
		return -EINVAL;
	error = fsobj_create(op_files(op), descriptor->name, descriptor->name_bytes, op->bytes,
			     &op->file);
	if (error == 0 && count > 0 && (descriptor->ranges[count - 1].flags & KVC_RANGE_LATE) != 0)
		error = host->fill(host->context, descriptor->cookie);
	return error;
}

static int op_begin(struct posix_op *op)
{
	const struct kvc_descriptor *descriptor = op->descriptor;
	int error = 0;

	if (descriptor->range_count > POSIX_MAX_RANGES ||
	    descriptor->offset > (uint64_t)INT64_MAX - op->bytes)
		return -EINVAL;
	ranges_take(op);
	op->io.kind = descriptor->op == KVC_OP_READ ? POSIX_IO_READ : POSIX_IO_WRITE;
	if (!op_is_whole(op)) {
		op->file.fd = descriptor->container->fd;
		op->file.direct = fsobj_root_info(op_files(op))->direct;
	} else if (descriptor->op == KVC_OP_READ) {
		error = fsobj_open(op_files(op), descriptor->name, descriptor->name_bytes,
				   &op->file, &op->seen);
		if (error == 0 && op->seen.bytes <= descriptor->offset)
			op->target = 0;
		else if (error == 0 && op->seen.bytes - descriptor->offset < op->target)
			op->target = op->seen.bytes - descriptor->offset;
	} else {
		error = begin_write(op);
	}
	return error;
}

/* The I/O for what is still to be moved. Ranges that are done were taken off. */
static void move_prepare(struct posix_op *op)
{
	while (op->iov_next < op->iov_end && op->iov[op->iov_next].iov_len == 0)
		op->iov_next++;
	op->io.kind = op->descriptor->op == KVC_OP_READ ? POSIX_IO_READ : POSIX_IO_WRITE;
	op->io.fd = op->file.fd;
	op->io.iov = op->iov + op->iov_next;
	op->io.iov_count = op->iov_end - op->iov_next;
	op->io.offset = op->descriptor->offset + op->moved;
	op->io.fixed = false;
}

static void ranges_advance(struct posix_op *op, uint64_t bytes)
{
	op->moved += bytes;
	while (bytes > 0) {
		struct iovec *iov = &op->iov[op->iov_next];
		uint64_t n = bytes < iov->iov_len ? bytes : iov->iov_len;

		iov->iov_base = (char *)iov->iov_base + n;
		iov->iov_len -= n;
		bytes -= n;
		if (iov->iov_len == 0)
			op->iov_next++;
	}
}

/* Looks at the result of one I/O. 0 = go on, else the operation's error. */
static int move_judge(struct posix_op *op)
{
	const struct fsobj_info *info = fsobj_root_info(op_files(op));
	int64_t result = op->io.result;

	if ((result == -EINTR || result == -EAGAIN) && op->retries++ < IO_RETRIES_MAX)
		return 0;
	/* The buffer has just gone, or this file system takes none. */
	if (op->io.fixed && !op->unregistered &&
	    (result == -EFAULT || result == -EINVAL || result == -EOPNOTSUPP)) {
		op->unregistered = true;
		return 0;
	}
	/* What is left after a short transfer may not suit O_DIRECT any more, and on a read-only
	 * root O_DIRECT could not be tried at open. */
	if (result == -EINVAL && op->file.direct && op_is_whole(op) &&
	    (op->moved % SECTOR_BYTES != 0 || info->read_only))
		return fsobj_make_buffered(&op->file);
	if (result < 0)
		return (int)result;
	if (result == 0) {
		/* The end of the file, earlier than its size had said. */
		if (op->descriptor->op != KVC_OP_READ)
			return -EIO;
		op->target = op->moved;
	}
	ranges_advance(op, (uint64_t)result);
	return 0;
}

static bool sync_prepare(struct posix_op *op, enum posix_io_kind kind, int fd, enum op_stage stage)
{
	op->io = (struct posix_io){ .kind = kind, .fd = fd };
	op->stage = stage;
	return true;
}

static bool op_publish(struct posix_op *op)
{
	bool if_absent = (op->descriptor->flags & KVC_DESCRIPTOR_IF_ABSENT) != 0;
	int error = fsobj_publish(op_files(op), &op->file, if_absent, &op->seen);

	if (error != 0)
		return op_end(op, error);
	if ((op->descriptor->flags & KVC_DESCRIPTOR_DURABLE) == 0)
		return op_end(op, (int64_t)op->moved);
	op->folder_fd = fsobj_folder_open(op_files(op), &op->file);
	if (op->folder_fd < 0)
		return op_end(op, op->folder_fd);
	return sync_prepare(op, POSIX_IO_SYNC, op->folder_fd, STAGE_FOLDER_SYNCED);
}

/* All bytes of this stage are moved. */
static bool op_moved(struct posix_op *op)
{
	if (op->descriptor->op == KVC_OP_READ && op_is_whole(op) &&
	    !fsobj_unchanged(&op->file, &op->seen))
		return op_end(op, -ESTALE);
	if (op->descriptor->op == KVC_OP_READ || !op_is_whole(op))
		return op_end(op, (int64_t)op->moved);
	fsobj_step(op_files(op), "publish.written");
	if ((op->descriptor->flags & KVC_DESCRIPTOR_DURABLE) != 0)
		return sync_prepare(op, POSIX_IO_DATASYNC, op->file.fd, STAGE_SYNCED);
	return op_publish(op);
}

static bool op_control(struct posix_op *op)
{
	const struct kvc_descriptor *descriptor = op->descriptor;
	int error;

	switch (descriptor->op) {
	case KVC_OP_STAT:
		error = fsobj_stat(op_files(op), descriptor->name, descriptor->name_bytes,
				   &op->seen);
		return op_end(op, error);
	case KVC_OP_REMOVE:
		error = fsobj_remove(op_files(op), descriptor->name, descriptor->name_bytes,
				     descriptor->if_version);
		return op_end(op, error);
	case KVC_OP_SYNC:
		if (op_is_whole(op))
			return op_end(op, -EINVAL);
		return sync_prepare(op, POSIX_IO_DATASYNC, descriptor->container->fd,
				    STAGE_FOLDER_SYNCED);
	default:
		return op_end(op, -ENOTSUP);
	}
}

/*
 * io_uring ends what its workers should do with -ECANCELED when the process may have no more
 * threads (RLIMIT_NPROC, pids.max), although nobody cancelled it and nothing was moved. It is
 * done here then.
 */
static void io_not_refused(struct posix_op *op)
{
	if (op->stage != STAGE_BEGIN && op->io.result == -ECANCELED && !atomic_load(&op->cancelled))
		posix_io_run(&op->io);
}

bool posix_op_step(struct posix_op *op)
{
	int error = 0;

	io_not_refused(op);
	/* What is published stays published, and says so. */
	if (op->stage != STAGE_FOLDER_SYNCED && atomic_load(&op->cancelled))
		return op_end(op, -ECANCELED);
	switch (op->stage) {
	case STAGE_BEGIN:
		if (op->descriptor->op != KVC_OP_READ && op->descriptor->op != KVC_OP_WRITE)
			return op_control(op);
		error = op_begin(op);
		break;
	case STAGE_MOVED:
		error = move_judge(op);
		break;
	case STAGE_SYNCED:
		if (op->io.result < 0)
			return op_end(op, op->io.result);
		fsobj_step(op_files(op), "publish.synced");
		return op_publish(op);
	default:
		return op_end(op, op->io.result < 0 ? op->io.result : (int64_t)op->moved);
	}
	if (error != 0)
		return op_end(op, error);
	if (op->moved >= op->target)
		return op_moved(op);
	move_prepare(op);
	op->stage = STAGE_MOVED;
	return true;
}

void posix_io_run(struct posix_io *io)
{
	ssize_t n = 0;

	switch (io->kind) {
	case POSIX_IO_READ:
		n = preadv(io->fd, io->iov, (int)io->iov_count, (off_t)io->offset);
		break;
	case POSIX_IO_WRITE:
		n = pwritev(io->fd, io->iov, (int)io->iov_count, (off_t)io->offset);
		break;
	case POSIX_IO_DATASYNC:
		n = fdatasync(io->fd);
		break;
	case POSIX_IO_SYNC:
		n = fsync(io->fd);
		break;
	}
	io->result = n < 0 ? -errno : n;
}
