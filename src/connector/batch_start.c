/* SPDX-License-Identifier: Apache-2.0 */
/* Started batches: the same work in the store's I/O threads. */
#include "connector/batch.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/workers.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct kvc_batch {
	struct kvc_job job; /* first: the job is the batch */
	struct kvc_store *store;
	struct kvc_transfer *transfers;
	size_t count;
	atomic_bool cancel;
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	bool done;
	int event_fd;
};

static void mark_pools(const struct kvc_batch *batch, bool busy)
{
	for (size_t i = 0; i < batch->count; i++) {
		struct kvc_pool *pool = kvc_transfer_at(batch->transfers, i)->pool;

		if (busy)
			atomic_fetch_add(&pool->batches, 1);
		else
			atomic_fetch_sub(&pool->batches, 1);
	}
}

static void run_batch(struct kvc_job *job)
{
	struct kvc_batch *batch = (struct kvc_batch *)job;
	struct kvc_store *store = batch->store;
	const uint64_t one = 1;

	kvc_batch_execute(store, batch->transfers, batch->count, &batch->cancel);
	mark_pools(batch, false);
	kvc_store_leave(store);
	/* From `done` on the caller may free the batch: nothing is touched after the unlock. */
	pthread_mutex_lock(&batch->lock);
	batch->done = true;
	(void)!write(batch->event_fd, &one, sizeof(one));
	pthread_cond_broadcast(&batch->done_cond);
	pthread_mutex_unlock(&batch->lock);
}

static int workers_of(struct kvc_store *store, struct kvc_workers **out)
{
	uint32_t threads = store->settings->io_threads;
	int rc = 0;

	if (threads == 0)
		threads = (uint32_t)store->root_count;
	pthread_mutex_lock(&store->worker_lock);
	if (!store->workers)
		rc = kvc_workers_new(threads, &store->workers);
	*out = store->workers;
	pthread_mutex_unlock(&store->worker_lock);
	return rc;
}

static void batch_destroy(struct kvc_batch *batch)
{
	(void)pthread_cond_destroy(&batch->done_cond);
	(void)pthread_mutex_destroy(&batch->lock);
	(void)close(batch->event_fd);
	free(batch);
}

int kvc_batch_start(struct kvc_store *store, struct kvc_transfer *transfers, size_t count,
		    struct kvc_batch **out)
{
	struct kvc_workers *workers;
	struct kvc_batch *batch;
	int rc = kvc_batch_check(store, transfers, count);

	if (rc)
		return rc;
	if (!out)
		return kvc_fail(-EINVAL, "kvc_batch_start: out is NULL");
	rc = workers_of(store, &workers);
	if (rc)
		return kvc_fail(rc, "no I/O thread could be started");
	batch = calloc(1, sizeof(*batch));
	if (!batch)
		return kvc_fail(-ENOMEM, "no memory for a batch of %zu transfers", count);
	batch->job.run = run_batch;
	batch->store = store;
	batch->transfers = transfers;
	batch->count = count;
	batch->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (batch->event_fd < 0) {
		rc = kvc_fail(-errno, "no event descriptor for a batch");
		free(batch);
		return rc;
	}
	(void)pthread_mutex_init(&batch->lock, NULL);
	(void)pthread_cond_init(&batch->done_cond, NULL);
	kvc_store_enter(store);
	mark_pools(batch, true);
	rc = kvc_workers_add(workers, &batch->job);
	if (rc) {
		mark_pools(batch, false);
		kvc_store_leave(store);
		batch_destroy(batch);
		return kvc_fail(rc, "too many batches are waiting for an I/O thread");
	}
	*out = batch;
	return 0;
}

int kvc_batch_wait(struct kvc_batch *batch, uint32_t timeout_ms)
{
	const struct timespec until =
		kvc_timespec(kvc_now_ns() + (uint64_t)timeout_ms * UINT64_C(1000000));
	int rc = 0;
	bool done;

	if (!batch)
		return kvc_fail(-EINVAL, "kvc_batch_wait: batch is NULL");
	pthread_mutex_lock(&batch->lock);
	while (!batch->done && !rc && timeout_ms > 0) {
		if (timeout_ms == UINT32_MAX)
			(void)pthread_cond_wait(&batch->done_cond, &batch->lock);
		else
			rc = pthread_cond_clockwait(&batch->done_cond, &batch->lock,
						    CLOCK_MONOTONIC, &until);
	}
	done = batch->done;
	pthread_mutex_unlock(&batch->lock);
	return done;
}

int kvc_batch_poll(struct kvc_batch *batch)
{
	return kvc_batch_wait(batch, 0);
}

int kvc_batch_cancel(struct kvc_batch *batch)
{
	if (!batch)
		return kvc_fail(-EINVAL, "kvc_batch_cancel: batch is NULL");
	atomic_store_explicit(&batch->cancel, true, memory_order_relaxed);
	return 0;
}

int kvc_batch_event_fd(struct kvc_batch *batch)
{
	return batch ? batch->event_fd : kvc_fail(-EINVAL, "kvc_batch_event_fd: batch is NULL");
}

int kvc_batch_free(struct kvc_batch *batch)
{
	if (!batch)
		return 0;
	if (kvc_batch_wait(batch, 0) == 0)
		return kvc_fail(-EBUSY, "the batch is still at work");
	batch_destroy(batch);
	return 0;
}
