/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads per root that do whole operations with preadv and pwritev. Works everywhere, and is
 * the fastest where an I/O is a copy (tmpfs, the page cache), since several cores copy then.
 */
#include "posix.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define WORKERS_DIRECT	 8u /* enough I/O in flight to fill a device */
#define WORKERS_BUFFERED 4u /* copies: more than cores gain nothing */

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct posix_op_list waiting;
	uint32_t idle;
	uint32_t count;
	bool stop;
	pid_t owner; /* a forked child has none of the threads */
	pthread_t threads[WORKERS_DIRECT];
};

/* Of one queue: what the workers have finished. */
struct finished {
	pthread_mutex_t lock;
	pthread_cond_t some;
	struct posix_op_list list;
	bool waited_for;
	int event_fd; /* -1 until it is asked for */
};

static void event_post(int fd)
{
	uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	/* It fails only when it is readable already: it is read with every reap. */
	(void)n;
}

static void event_clear(int fd)
{
	uint64_t value;
	ssize_t n = read(fd, &value, sizeof(value));

	(void)n;
}

static void finish(struct posix_op *op)
{
	struct finished *finished = op->queue->engine_queue;

	pthread_mutex_lock(&finished->lock);
	posix_op_list_push(&finished->list, op);
	if (finished->waited_for)
		pthread_cond_signal(&finished->some);
	if (finished->event_fd >= 0)
		event_post(finished->event_fd);
	pthread_mutex_unlock(&finished->lock);
}

static void *worker_main(void *argument)
{
	struct workers *workers = argument;
	struct posix_op *op;

	pthread_mutex_lock(&workers->lock);
	for (;;) {
		op = posix_op_list_pop(&workers->waiting);
		if (op == NULL) {
			if (workers->stop)
				break;
			workers->idle++;
			pthread_cond_wait(&workers->wake, &workers->lock);
			workers->idle--;
			continue;
		}
		pthread_mutex_unlock(&workers->lock);
		while (posix_op_step(op))
			posix_io_run(&op->io);
		finish(op);
		pthread_mutex_lock(&workers->lock);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

static void workers_stop(struct workers *workers)
{
	/* Nor can it know in which state it got the lock: what it has is left alone. */
	if (workers->owner != getpid())
		return;
	pthread_mutex_lock(&workers->lock);
	workers->stop = true;
	pthread_cond_broadcast(&workers->wake);
	pthread_mutex_unlock(&workers->lock);
	for (uint32_t i = 0; i < workers->count; i++)
		pthread_join(workers->threads[i], NULL);
	pthread_cond_destroy(&workers->wake);
	pthread_mutex_destroy(&workers->lock);
	free(workers);
}

/* The threads take no signals: those are for the program's own. */
static int workers_start(uint32_t count, struct workers **out)
{
	struct workers *workers = calloc(1, sizeof(*workers));
	sigset_t all;
	sigset_t before;
	int error = 0;

	if (workers == NULL)
		return -ENOMEM;
	workers->owner = getpid();
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->wake, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (workers->count < count && error == 0) {
		error = pthread_create(&workers->threads[workers->count], NULL, worker_main,
				       workers);
		if (error == 0)
			workers->count++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	/* Fewer than wanted are slower; none is an error. */
	if (workers->count == 0) {
		workers_stop(workers);
		return -error;
	}
	*out = workers;
	return 0;
}

static int threads_probe(char *why, size_t why_bytes)
{
	(void)why;
	(void)why_bytes;
	return 0;
}

static int threads_queue_open(struct kvc_plugin_queue *queue)
{
	struct kvc_plugin_root *root = queue->root;
	struct finished *finished;
	struct workers *workers;
	pthread_condattr_t clock;
	int error = 0;

	pthread_mutex_lock(&root->lock);
	if (root->engine_root == NULL) {
		error = workers_start(fsobj_root_info(root->files)->direct ? WORKERS_DIRECT :
									     WORKERS_BUFFERED,
				      &workers);
		if (error == 0)
			root->engine_root = workers;
	}
	pthread_mutex_unlock(&root->lock);
	if (error != 0)
		return error;
	finished = calloc(1, sizeof(*finished));
	if (finished == NULL)
		return -ENOMEM;
	finished->event_fd = -1;
	pthread_mutex_init(&finished->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&finished->some, &clock);
	pthread_condattr_destroy(&clock);
	queue->engine_queue = finished;
	return 0;
}

static void threads_queue_close(struct kvc_plugin_queue *queue)
{
	struct finished *finished = queue->engine_queue;

	/* The worker that finished last may still hold the lock it let us see its result by. */
	pthread_mutex_lock(&finished->lock);
	pthread_mutex_unlock(&finished->lock);
	if (finished->event_fd >= 0)
		close(finished->event_fd);
	pthread_cond_destroy(&finished->some);
	pthread_mutex_destroy(&finished->lock);
	free(finished);
}

static void threads_root_close(struct kvc_plugin_root *root)
{
	if (root->engine_root != NULL)
		workers_stop(root->engine_root);
	root->engine_root = NULL;
}

static void threads_start(struct kvc_plugin_queue *queue, struct posix_op *op)
{
	struct workers *workers = queue->root->engine_root;

	pthread_mutex_lock(&workers->lock);
	posix_op_list_push(&workers->waiting, op);
	if (workers->idle > 0)
		pthread_cond_signal(&workers->wake);
	pthread_mutex_unlock(&workers->lock);
}

static void threads_flush(struct kvc_plugin_queue *queue)
{
	(void)queue;
}

static void finished_wait(struct finished *finished, uint64_t wait_ns)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	wait_ns = wait_ns < UINT64_C(1) << 60 ? wait_ns : UINT64_C(1) << 60;
	until.tv_sec += (time_t)(wait_ns / 1000000000u);
	until.tv_nsec += (long)(wait_ns % 1000000000u);
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	finished->waited_for = true;
	while (finished->list.first == NULL &&
	       pthread_cond_timedwait(&finished->some, &finished->lock, &until) == 0)
		;
	finished->waited_for = false;
}

static int threads_reap(struct kvc_plugin_queue *queue, uint64_t wait_ns)
{
	struct finished *finished = queue->engine_queue;
	struct posix_op_list list;
	struct posix_op *op;
	int count = 0;

	pthread_mutex_lock(&finished->lock);
	if (finished->list.first == NULL && wait_ns > 0)
		finished_wait(finished, wait_ns);
	list = finished->list;
	finished->list.first = NULL;
	if (finished->event_fd >= 0)
		event_clear(finished->event_fd);
	pthread_mutex_unlock(&finished->lock);
	while ((op = posix_op_list_pop(&list)) != NULL) {
		posix_queue_op_ended(queue, op);
		count++;
	}
	return count;
}

static int threads_event_fd(struct kvc_plugin_queue *queue)
{
	struct finished *finished = queue->engine_queue;
	int fd = finished->event_fd;

	if (fd >= 0)
		return fd;
	fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	pthread_mutex_lock(&finished->lock);
	finished->event_fd = fd;
	if (finished->list.first != NULL)
		event_post(fd);
	pthread_mutex_unlock(&finished->lock);
	return fd;
}

static void threads_cancel(struct kvc_plugin_queue *queue)
{
	struct workers *workers = queue->root->engine_root;
	struct posix_op_list others = { NULL, NULL };
	struct posix_op_list ours = { NULL, NULL };
	struct posix_op *op;

	pthread_mutex_lock(&workers->lock);
	while ((op = posix_op_list_pop(&workers->waiting)) != NULL)
		posix_op_list_push(
			op->queue == queue && atomic_load(&op->cancelled) ? &ours : &others, op);
	workers->waiting = others;
	pthread_mutex_unlock(&workers->lock);
	while ((op = posix_op_list_pop(&ours)) != NULL) {
		posix_op_cancel(op);
		posix_queue_op_ended(queue, op);
	}
}

const struct posix_engine posix_engine_threads = {
	.name = "threads",
	.whole = true,
	.probe = threads_probe,
	.queue_open = threads_queue_open,
	.queue_close = threads_queue_close,
	.root_close = threads_root_close,
	.start = threads_start,
	.flush = threads_flush,
	.reap = threads_reap,
	.event_fd = threads_event_fd,
	.cancel = threads_cancel,
};
