/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An I/O engine: how the bytes of one operation are moved. One file each, ending in its table.
 *
 * An operation is a series of single I/Os (op->io) with work between them; posix_op_step() does
 * that work. There are two kinds of engine:
 *  - asynchronous: issue() starts op->io and reap() reports that it has ended. The steps are done
 *    by the queue's thread.
 *  - whole: start() hands over the operation; the engine's threads do its steps and its I/O.
 */
#ifndef KVC_POSIX_ENGINE_H
#define KVC_POSIX_ENGINE_H

#include "common/fsobj.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#define POSIX_MAX_RANGES   160u
#define POSIX_ENGINE_BYTES 192u

enum posix_io_kind {
	POSIX_IO_READ,
	POSIX_IO_WRITE,
	POSIX_IO_DATASYNC,
	POSIX_IO_SYNC,
};

struct posix_io {
	enum posix_io_kind kind;
	int fd;
	struct iovec *iov;
	uint32_t iov_count;
	uint64_t offset;
	int64_t result; /* bytes, 0, or a negative errno; set by the engine */
	bool fixed;	/* some of it went through registered buffers; set by the engine */
};

/* Lies in the descriptor's scratch. */
struct posix_op {
	struct posix_op *next;	/* in the one list it is in */
	struct posix_op *older; /* in the queue's list of what is outstanding */
	struct posix_op *newer;
	struct kvc_plugin_queue *queue;
	const struct kvc_descriptor *descriptor;
	struct posix_io io;
	struct fsobj_file file;
	struct fsobj_seen seen;
	struct kvc_completion completion;
	uint64_t bytes; /* of all ranges */
	uint64_t moved;
	uint64_t target; /* to be moved before the next stage */
	uint32_t stage;
	uint32_t iov_next;
	uint32_t iov_end;
	uint32_t retries;
	_Atomic bool cancelled; /* no further stage is begun */
	bool unregistered;	/* registered buffers are not used any more */
	int folder_fd;
	_Alignas(16) unsigned char engine[POSIX_ENGINE_BYTES];
	struct iovec iov[POSIX_MAX_RANGES];
};

struct posix_op_list {
	struct posix_op *first;
	struct posix_op *last;
};

struct posix_engine;

struct kvc_plugin_root {
	struct kvc_plugin_backend *backend;
	const struct kvc_host *host;
	struct fsobj_root *files;
	const struct posix_engine *engine;
	pthread_mutex_t lock;
	void *engine_root; /* the engine's own, shared by the queues of the root */
	char note[KVC_ATTRIBUTE_TEXT_BYTES];
};

struct kvc_plugin_queue {
	struct kvc_plugin_root *root;
	const struct posix_engine *engine;
	void *engine_queue; /* the engine's own */
	uint32_t depth;
	uint32_t outstanding; /* accepted and not yet returned by poll */
	uint32_t moving;      /* of these: not in ready */
	uint64_t bytes_in_flight;
	struct posix_op *newest;
	struct posix_op_list ready;
	int epoll_fd; /* -1 until event_fd() is asked for */
	int ready_fd;
	bool ready_set;
};

struct posix_engine {
	const char *name;
	bool whole;
	/* 0, or a negative errno and the cause. */
	int (*probe)(char *why, size_t why_bytes);
	int (*queue_open)(struct kvc_plugin_queue *queue);
	void (*queue_close)(struct kvc_plugin_queue *queue);
	/* No queue is open. Only engines that use root->engine_root have it. */
	void (*root_close)(struct kvc_plugin_root *root);
	/* whole: takes the operation. */
	void (*start)(struct kvc_plugin_queue *queue, struct posix_op *op);
	/* asynchronous: takes op->io. A negative errno: it was not started. */
	int (*issue)(struct kvc_plugin_queue *queue, struct posix_op *op);
	/* What was issued or started reaches the kernel or the threads now. */
	void (*flush)(struct kvc_plugin_queue *queue);
	/* Calls posix_queue_io_ended() (asynchronous) or posix_queue_op_ended() (whole) for what
	 * has ended; waits up to wait_ns for the first. Returns how many, or a negative errno. */
	int (*reap)(struct kvc_plugin_queue *queue, uint64_t wait_ns);
	/* Readable when reap() would find something. */
	int (*event_fd)(struct kvc_plugin_queue *queue);
	/* whole: takes back what is cancelled and not begun, by posix_queue_op_ended(). */
	void (*cancel)(struct kvc_plugin_queue *queue);
};

extern const struct posix_engine posix_engine_threads;
extern const struct posix_engine posix_engine_uring;
extern const struct posix_engine posix_engine_linux_aio;
extern const struct posix_engine posix_engine_posix_aio;

/* op.c. True: op->io is to be done, its result put there, and step called again.
 * False: the operation has ended and op->completion is filled. */
bool posix_op_step(struct posix_op *op);
void posix_op_init(struct posix_op *op, struct kvc_plugin_queue *queue,
		   const struct kvc_descriptor *descriptor);
void posix_op_cancel(struct posix_op *op);
/* Does op->io now, in this thread. */
void posix_io_run(struct posix_io *io);

static inline void posix_op_list_push(struct posix_op_list *list, struct posix_op *op)
{
	op->next = NULL;
	if (list->first == NULL)
		list->first = op;
	else
		list->last->next = op;
	list->last = op;
}

static inline struct posix_op *posix_op_list_pop(struct posix_op_list *list)
{
	struct posix_op *op = list->first;

	if (op != NULL)
		list->first = op->next;
	return op;
}

/* queue.c, called by reap(). */
void posix_queue_io_ended(struct kvc_plugin_queue *queue, struct posix_op *op);
void posix_queue_op_ended(struct kvc_plugin_queue *queue, struct posix_op *op);

#endif
