/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stage.h"

#include "core/checksum.h"
#include "core/clock.h"
#include "core/format.h"
#include "core/queue.h"
#include "core/stats.h"
#include "core/store.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS	      4u /* per root; as many calls may be stuck before it is left alone */
#define PORTION_BYTES (UINT64_C(16) << 20) /* of library memory that one caller holds */

struct staged {
	struct kvc_request copy;
	struct kvc_request *original;
	atomic_bool done;
	void *bases[KVC_SHAPE_PARTS_MAX];
};

/* A contiguous version of a shape, for all requests of the portion that share it. */
struct flat_shape {
	struct kvc_shape shape;
	struct flat_shape *next;
};

/* One portion of a caller's list, worked on by one worker. The last of the two frees it. */
struct portion {
	struct portion *next;
	struct staged *items;
	size_t count;
	struct flat_shape *shapes;
	uint8_t *memory;
	char *names;
	bool begun;
	bool abandoned;
	bool done;
};

struct kvc_stage {
	struct kvc_root *root;
	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_cond_t progress;
	struct portion *pending;
	struct portion **pending_end;
	uint32_t pending_count;
	uint32_t workers;
	uint32_t idle;
	uint32_t stuck; /* workers whose caller has left */
	bool stop;
};

struct kvc_stage_job {
	struct kvc_stage *stage;
	struct kvc_request *rest; /* not in a portion yet */
	struct portion *portion;
	const atomic_bool *cancel;
};

/* ---------------------------------------------------------------- portions */

static void portion_free(struct portion *portion)
{
	while (portion->shapes) {
		struct flat_shape *next = portion->shapes->next;

		free(portion->shapes);
		portion->shapes = next;
	}
	free(portion->items);
	free(portion->memory);
	free(portion->names);
	free(portion);
}

/* The shape with the same parts, each in one piece. */
static const struct kvc_shape *flatten(struct portion *portion, const struct kvc_shape *shape,
				       const struct kvc_shape *last,
				       const struct kvc_shape *last_flat)
{
	struct flat_shape *flat;

	if (shape == last)
		return last_flat;
	flat = malloc(sizeof(*flat));
	if (!flat)
		return NULL;
	flat->shape = *shape;
	flat->shape.series_count = shape->part_count;
	for (uint32_t p = 0; p < shape->part_count; p++) {
		flat->shape.parts[p].first_series = p;
		flat->shape.parts[p].series_count = 1;
		flat->shape.series[p] = (struct kvc_series){ .piece_bytes = shape->parts[p].bytes,
							     .piece_count = 1 };
	}
	flat->next = portion->shapes;
	portion->shapes = flat;
	return &flat->shape;
}

static bool moves_bytes(const struct kvc_request *request)
{
	return request->op == KVC_GET || request->op == KVC_SET;
}

static uint64_t image_bytes(const struct kvc_request *request)
{
	return moves_bytes(request) ? kvc_shape_image_bytes(request->shape) : 0;
}

/* How many requests of the list make a portion, at least one. */
static size_t portion_size(const struct kvc_request *list, uint64_t *out_bytes, size_t *out_names)
{
	size_t count = 0;

	*out_bytes = 0;
	*out_names = 0;
	for (; list; list = list->next) {
		if (count > 0 && *out_bytes + image_bytes(list) > PORTION_BYTES)
			break;
		*out_bytes += image_bytes(list);
		*out_names += strlen(list->folder) + list->name_bytes + list->full_name_bytes + 3;
		count++;
	}
	return count;
}

/* The copy must not point into what is the caller's. */
static char *copy_names(struct staged *item, const struct kvc_request *request, char *names)
{
	const size_t folder_bytes = strlen(request->folder) + 1;

	memcpy(names, request->folder, folder_bytes);
	item->copy.folder = names;
	names += folder_bytes;
	memcpy(names, request->name, request->name_bytes);
	names[request->name_bytes] = '\0';
	item->copy.name = names;
	names += request->name_bytes + 1;
	memcpy(names, request->full_name, request->full_name_bytes);
	names[request->full_name_bytes] = '\0';
	item->copy.full_name = names;
	return names + request->full_name_bytes + 1;
}

static struct portion *portion_new(struct kvc_request **list)
{
	const struct kvc_shape *last = NULL, *last_flat = NULL;
	struct portion *portion = calloc(1, sizeof(*portion));
	struct kvc_request *request = *list;
	size_t names_bytes;
	uint64_t bytes;
	void *memory = NULL;
	uint8_t *at;
	char *names;

	if (!portion)
		return NULL;
	portion->count = portion_size(request, &bytes, &names_bytes);
	portion->items = calloc(portion->count, sizeof(*portion->items));
	portion->names = malloc(names_bytes);
	if (!portion->items || !portion->names ||
	    posix_memalign(&memory, KVC_BLOCK_BYTES, bytes ? bytes : 1))
		goto fail;
	portion->memory = at = memory;
	names = portion->names;
	for (size_t i = 0; i < portion->count; i++, request = request->next) {
		struct staged *item = &portion->items[i];

		item->original = request;
		item->copy = *request;
		item->copy.next = i + 1 < portion->count ? &portion->items[i + 1].copy : NULL;
		item->copy.done = &item->done;
		names = copy_names(item, request, names);
		item->copy.shape = flatten(portion, request->shape, last, last_flat);
		if (!item->copy.shape)
			goto fail;
		last = request->shape;
		last_flat = item->copy.shape;
		item->copy.bases = NULL;
		item->copy.missed = NULL; /* others may be gone, or on other threads */
		if (!moves_bytes(request))
			continue;
		for (uint32_t p = 0; p < request->shape->part_count; p++)
			item->bases[p] = at + request->shape->parts[p].stored_offset;
		item->copy.bases = item->bases;
		if (request->op == KVC_SET)
			(void)kvc_checksum_gather(KVC_CHECKSUM_NONE, 0, request->shape,
						  request->bases, at);
		at += image_bytes(request);
	}
	*list = request;
	return portion;

fail:
	free(memory);
	portion->memory = NULL;
	portion_free(portion);
	return NULL;
}

/* ---------------------------------------------------------------- workers */

static void run_portion(struct kvc_stage *stage, struct portion *portion)
{
	struct kvc_queue *queue;
	uint64_t deadline_ns = 0;
	int rc;

	for (size_t i = 0; i < portion->count; i++)
		if (portion->items[i].copy.deadline_ns > deadline_ns)
			deadline_ns = portion->items[i].copy.deadline_ns;
	rc = kvc_queue_lease(stage->root, deadline_ns, &queue);
	if (rc) {
		for (size_t i = 0; i < portion->count; i++) {
			portion->items[i].copy.result = kvc_result_of_errno(-rc);
			atomic_store_explicit(&portion->items[i].done, true, memory_order_release);
		}
		return;
	}
	kvc_xfer_drive(queue, &portion->items[0].copy, NULL, NULL);
	kvc_queue_return(queue);
}

static void *worker(void *context)
{
	struct kvc_stage *stage = context;

	pthread_mutex_lock(&stage->lock);
	for (;;) {
		struct portion *portion;

		stage->idle++;
		while (!stage->pending && !stage->stop)
			pthread_cond_wait(&stage->work, &stage->lock);
		stage->idle--;
		portion = stage->pending;
		if (!portion)
			break;
		stage->pending = portion->next;
		if (!stage->pending)
			stage->pending_end = &stage->pending;
		stage->pending_count--;
		portion->begun = true;
		pthread_mutex_unlock(&stage->lock);
		run_portion(stage, portion);
		pthread_mutex_lock(&stage->lock);
		portion->done = true;
		if (portion->abandoned) {
			stage->stuck--;
			kvc_counters_add(stage->root->store->counters, KVC_COUNTER_PARKED_QUEUES,
					 -1);
			portion_free(portion);
		}
		pthread_cond_broadcast(&stage->progress);
	}
	stage->workers--;
	pthread_cond_broadcast(&stage->progress);
	pthread_mutex_unlock(&stage->lock);
	return NULL;
}

/* With the lock held: somebody will work on what is pending. */
static int need_worker(struct kvc_stage *stage)
{
	sigset_t all, former;
	pthread_t thread;
	int rc;

	/* An idle one that has been woken up is still counted as idle: what waits is its work. */
	if (stage->idle > stage->pending_count || stage->workers >= WORKERS)
		return 0;
	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS); /* pages of a packed index that are lost */
	(void)pthread_sigmask(SIG_SETMASK, &all, &former);
	rc = pthread_create(&thread, NULL, worker, stage);
	(void)pthread_sigmask(SIG_SETMASK, &former, NULL);
	if (rc)
		return stage->workers ? 0 : -rc;
	(void)pthread_detach(thread);
	stage->workers++;
	return 0;
}

static struct kvc_stage *stage_new(struct kvc_root *root)
{
	struct kvc_stage *stage = calloc(1, sizeof(*stage));

	if (!stage)
		return NULL;
	stage->root = root;
	stage->pending_end = &stage->pending;
	(void)pthread_mutex_init(&stage->lock, NULL);
	(void)pthread_cond_init(&stage->work, NULL);
	(void)pthread_cond_init(&stage->progress, NULL);
	return stage;
}

static struct kvc_stage *stage_of(struct kvc_root *root)
{
	struct kvc_stage *stage;

	pthread_mutex_lock(&root->queue_lock);
	if (!root->stage)
		root->stage = stage_new(root);
	stage = root->stage;
	pthread_mutex_unlock(&root->queue_lock);
	return stage;
}

int kvc_stage_close(struct kvc_stage *stage, uint64_t deadline_ns)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	int rc = 0;

	if (!stage)
		return 0;
	pthread_mutex_lock(&stage->lock);
	stage->stop = true;
	pthread_cond_broadcast(&stage->work);
	while (stage->workers && !rc)
		rc = pthread_cond_clockwait(&stage->progress, &stage->lock, CLOCK_MONOTONIC,
					    &until);
	rc = stage->workers ? -EBUSY : 0;
	pthread_mutex_unlock(&stage->lock);
	if (rc)
		return rc;
	(void)pthread_cond_destroy(&stage->progress);
	(void)pthread_cond_destroy(&stage->work);
	(void)pthread_mutex_destroy(&stage->lock);
	free(stage);
	return 0;
}

/* ---------------------------------------------------------------- callers */

static void fail_rest(struct kvc_request *list, struct kvc_result result)
{
	for (; list; list = list->next)
		list->result = result;
}

/* Whether a request needs no I/O: cancelled, or nobody could work on it. */
static bool refused(struct kvc_stage_job *job)
{
	struct kvc_stage *stage = job->stage;
	bool stuck;

	if (job->cancel && atomic_load_explicit(job->cancel, memory_order_relaxed)) {
		fail_rest(job->rest, kvc_result_make(KVC_SKIPPED, KVC_CAUSE_CANCELLED, 0));
		return true;
	}
	pthread_mutex_lock(&stage->lock);
	stuck = stage->stuck >= WORKERS;
	pthread_mutex_unlock(&stage->lock);
	if (stuck)
		fail_rest(job->rest,
			  kvc_result_make(KVC_TIMEOUT, KVC_CAUSE_SUSPECT_ROOT, ETIMEDOUT));
	return stuck;
}

/* Makes the next portion and hands it over. False: nothing is left to wait for. */
static bool start_portion(struct kvc_stage_job *job)
{
	struct kvc_stage *stage = job->stage;
	int rc = 0;

	if (!job->rest || refused(job)) {
		job->rest = NULL;
		return false;
	}
	job->portion = portion_new(&job->rest);
	if (job->portion) {
		pthread_mutex_lock(&stage->lock);
		rc = need_worker(stage);
		if (!rc) {
			*stage->pending_end = job->portion;
			stage->pending_end = &job->portion->next;
			stage->pending_count++;
			pthread_cond_signal(&stage->work);
		}
		pthread_mutex_unlock(&stage->lock);
	}
	if (!job->portion || rc) {
		if (job->portion) {
			for (size_t i = 0; i < job->portion->count; i++)
				job->portion->items[i].original->result = kvc_result_of_errno(-rc);
			portion_free(job->portion);
			job->portion = NULL;
		}
		fail_rest(job->rest, kvc_result_of_errno(rc ? -rc : ENOMEM));
		job->rest = NULL;
		return false;
	}
	return true;
}

struct kvc_stage_job *kvc_stage_begin(struct kvc_root *root, struct kvc_request *list,
				      const atomic_bool *cancel)
{
	struct kvc_stage *stage = stage_of(root);
	struct kvc_stage_job *job = stage ? calloc(1, sizeof(*job)) : NULL;

	if (!job) {
		fail_rest(list, kvc_result_of_errno(ENOMEM));
		return NULL;
	}
	job->stage = stage;
	job->rest = list;
	job->cancel = cancel;
	(void)start_portion(job);
	return job;
}

static uint64_t portion_deadline(const struct portion *portion)
{
	uint64_t latest = 0;

	for (size_t i = 0; i < portion->count; i++)
		if (portion->items[i].original->deadline_ns > latest)
			latest = portion->items[i].original->deadline_ns;
	return latest;
}

/* With the lock held: takes a portion that nobody has begun out of the list. */
static void withdraw(struct kvc_stage *stage, struct portion *portion)
{
	struct portion **at = &stage->pending;

	while (*at != portion)
		at = &(*at)->next;
	*at = portion->next;
	stage->pending_count--;
	if (stage->pending_end == &portion->next)
		stage->pending_end = at;
}

/* What is done by now reaches the caller; the rest has run out of time. */
static void collect(struct portion *portion, int late_cause)
{
	for (size_t i = 0; i < portion->count; i++) {
		const struct staged *item = &portion->items[i];
		struct kvc_request *request = item->original;

		if (!atomic_load_explicit(&item->done, memory_order_acquire)) {
			request->result = kvc_result_make(KVC_TIMEOUT, late_cause, ETIMEDOUT);
			continue;
		}
		request->result = item->copy.result;
		if (request->op == KVC_GET && request->result.status == KVC_OK &&
		    request->shape->part_count > 0)
			(void)kvc_checksum_scatter(
				KVC_CHECKSUM_NONE, 0, request->shape, request->bases,
				(uint8_t *)item->bases[0] - request->shape->parts[0].stored_offset);
	}
}

/* False: it is still at work, and has time to be. */
static bool finish_portion(struct kvc_stage *stage, struct portion *portion, uint64_t until_ns)
{
	const uint64_t deadline_ns = portion_deadline(portion);
	const struct timespec until = kvc_timespec(until_ns < deadline_ns ? until_ns : deadline_ns);
	int late_cause = KVC_CAUSE_DEADLINE;
	int rc = 0;

	pthread_mutex_lock(&stage->lock);
	while (!portion->done && !rc)
		rc = pthread_cond_clockwait(&stage->progress, &stage->lock, CLOCK_MONOTONIC,
					    &until);
	if (!portion->done && kvc_now_ns() < deadline_ns) {
		pthread_mutex_unlock(&stage->lock);
		return false;
	}
	if (!portion->done && !portion->begun) {
		withdraw(stage, portion);
		late_cause = KVC_CAUSE_SUSPECT_ROOT;
	} else if (!portion->done) {
		/* The worker frees it, whenever its I/O comes back. */
		portion->abandoned = true;
		(void)kvc_root_suspect(stage->root);
		stage->stuck++;
		kvc_counters_add(stage->root->store->counters, KVC_COUNTER_PARKED_QUEUES, 1);
		/* Under the lock: the worker may free it as soon as it is let go. */
		collect(portion, late_cause);
		pthread_mutex_unlock(&stage->lock);
		return true;
	}
	pthread_mutex_unlock(&stage->lock);
	collect(portion, late_cause);
	portion_free(portion);
	return true;
}

bool kvc_stage_advance(struct kvc_stage_job *job, uint64_t until_ns)
{
	if (!job->portion)
		return false;
	if (!finish_portion(job->stage, job->portion, until_ns))
		return true;
	job->portion = NULL;
	return start_portion(job);
}

void kvc_stage_finish(struct kvc_stage_job *job)
{
	while (kvc_stage_advance(job, UINT64_MAX))
		;
	free(job);
}
