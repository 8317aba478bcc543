/* SPDX-License-Identifier: Apache-2.0 */
/* Driving: sessions on all roots of a call side by side, until every request has its result. */
#include "core/xfer_session.h"

#include "core/cleaner.h"
#include "core/clock.h"
#include "core/region.h"
#include "core/stage.h"
#include "core/stats.h"
#include "core/store.h"

#include <errno.h>
#include <poll.h>

#define COMPLETIONS	32u
/* A soft root that comes back this long after the deadline is suspect, and staged. */
#define SUSPECT_NS	(250 * UINT64_C(1000000))
#define SLICE_NS	(100 * UINT64_C(1000000))
#define SHARED_SLICE_NS (200 * UINT64_C(1000))
#define REFUSED_NS	(50 * UINT64_C(1000))
#define PARKED_NS	(1000 * UINT64_C(1000))
#define STAGED_SLICE_NS (500 * UINT64_C(1000))

static bool active(const struct kvc_session *s)
{
	return s->todo || s->ready || s->queue->in_flight;
}

/* At the deadline: nothing new; hard roots give up what is in flight. */
static void expire(struct kvc_session *s, uint64_t now_ns)
{
	if (now_ns < s->deadline_ns)
		return;
	kvc_session_drop_ready(s, kvc_result_make(KVC_TIMEOUT, KVC_CAUSE_DEADLINE, ETIMEDOUT));
	if (s->kind == KVC_DEADLINE_HARD && !s->cancelled && s->queue->in_flight) {
		s->cancelled = true;
		(void)s->queue->root->backend->module->ops.cancel(s->queue->handle, NULL, 0);
	}
}

/* One round: begin, submit, poll, verify. Returns the number of completions. */
static uint32_t step(struct kvc_session *s, uint64_t wait_ns)
{
	const struct kvc_plugin *ops = &s->queue->root->backend->module->ops;
	struct kvc_completion done[COMPLETIONS];
	uint64_t now_ns = kvc_now_ns();
	int count;

	if (s->queue->in_flight == 0)
		s->parked = false;
	kvc_session_begin(s, now_ns);
	expire(s, now_ns);
	kvc_session_submit(s);
	if (s->queue->in_flight == 0) {
		/* Refused although nothing is in flight: ask again in a moment. */
		const struct timespec pause = kvc_timespec(s->parked ? PARKED_NS : REFUSED_NS);

		if ((s->ready || s->parked) && wait_ns)
			(void)nanosleep(&pause, NULL);
		return 0;
	}
	if (now_ns < s->deadline_ns && wait_ns > s->deadline_ns - now_ns)
		wait_ns = s->deadline_ns - now_ns;
	/* More could be begun: only look. */
	if (s->todo && s->queue->free && !s->ready && !s->parked &&
	    s->queue->bounce_in_use < KVC_SESSION_BOUNCE_BYTES)
		wait_ns = 0;
	/* A checksum instead of waiting. */
	if (kvc_session_hash_one(s))
		wait_ns = 0;
	count = ops->poll(s->queue->handle, done, COMPLETIONS, wait_ns);
	if (count > (int)COMPLETIONS)
		count = -EPROTO;
	if (count < 0) {
		/* cancel() makes the plugin settle what it holds; until then it owns the memory. */
		const struct timespec pause = kvc_timespec(1000000);

		kvc_session_break_queue(s, -count);
		(void)nanosleep(&pause, NULL);
		return 0;
	}
	s->waited = count == 0;
	if (count > 0) {
		now_ns = kvc_now_ns();
		if (now_ns > s->deadline_ns)
			s->late_ns = now_ns - s->deadline_ns;
		/* The device gets its next work before the CPU looks at the bytes that came. */
		if ((s->todo || s->ready) && s->queue->moving > 0) {
			kvc_session_begin(s, now_ns);
			expire(s, now_ns);
			kvc_session_submit(s);
		}
	}
	for (int i = 0; i < count; i++)
		kvc_session_complete(s, &done[i]);
	return (uint32_t)count;
}

/* Once at the end of a session: whether I/O of this root came back too late. */
static void note_end(struct kvc_session *s)
{
	struct kvc_root *root = s->queue->root;

	if (s->ended)
		return;
	s->ended = true;
	if (s->packed)
		kvc_packed_leave(s->packed, s->turn);
	if (s->late_ns == 0 || s->kind != KVC_DEADLINE_SOFT)
		return;
	kvc_counters_add(root->store->counters, KVC_COUNTER_OVERRUNS, 1);
	if (s->late_ns > SUSPECT_NS && kvc_root_suspect(root))
		kvc_log(KVC_LOG_WARNING,
			"%s: I/O came back %llu ms after its deadline; for now transfers go "
			"through memory of the library and are abandoned in time",
			root->location, (unsigned long long)(s->late_ns / 1000000));
}

static void session_init(struct kvc_session *s, struct kvc_queue *queue, struct kvc_request *list,
			 const struct kvc_regions *regions, const atomic_bool *cancel)
{
	*s = (struct kvc_session){
		.queue = queue,
		.todo = list,
		.regions = regions,
		.cancel = cancel,
		.kind = queue->root->attributes.flags & KVC_ATTRIBUTE_CANCELLABLE ?
				KVC_DEADLINE_HARD :
				KVC_DEADLINE_SOFT,
	};
	s->ready_end = &s->ready;
	kvc_session_enter_index(s, list);
	for (; list; list = list->next)
		if (list->deadline_ns > s->deadline_ns)
			s->deadline_ns = list->deadline_ns;
}

void kvc_xfer_drive(struct kvc_queue *queue, struct kvc_request *list,
		    const struct kvc_regions *regions, const atomic_bool *cancel)
{
	struct kvc_session s;

	session_init(&s, queue, list, regions, cancel);
	while (active(&s))
		(void)step(&s, SLICE_NS);
	note_end(&s);
}

/* Sleeps until one of several queues has something, or a moment has passed. */
static void wait_any(struct kvc_session *sessions, size_t count)
{
	struct pollfd fds[KVC_ROOTS_MAX];
	const uint64_t now_ns = kvc_now_ns();
	uint64_t wait_ns = SLICE_NS;
	struct timespec timeout;
	bool any = false;
	nfds_t n = 0;

	for (size_t i = 0; i < count; i++) {
		struct kvc_session *s = &sessions[i];
		int fd;

		if (!active(s))
			continue;
		any = true;
		fd = s->waited && !s->ready && !s->parked ?
			     s->queue->root->backend->module->ops.event_fd(s->queue->handle) :
			     -1;
		if (now_ns < s->deadline_ns && wait_ns > s->deadline_ns - now_ns)
			wait_ns = s->deadline_ns - now_ns;
		if (fd < 0)
			wait_ns = wait_ns < SHARED_SLICE_NS ? wait_ns : SHARED_SLICE_NS;
		else
			fds[n++] = (struct pollfd){ .fd = fd, .events = POLLIN };
	}
	/* An index has answered all that was left. */
	if (!any)
		return;
	timeout = kvc_timespec(wait_ns);
	(void)ppoll(fds, n, &timeout, NULL);
}

static void drive_all(struct kvc_session *sessions, size_t count)
{
	for (;;) {
		uint32_t moved = 0;
		size_t busy = 0, last = 0;

		for (size_t i = 0; i < count; i++) {
			if (!active(&sessions[i])) {
				note_end(&sessions[i]);
				continue;
			}
			busy++;
			last = i;
		}
		if (busy == 0)
			break;
		if (busy == 1) {
			(void)step(&sessions[last], SLICE_NS);
			continue;
		}
		for (size_t i = 0; i < count; i++)
			if (active(&sessions[i]))
				moved += step(&sessions[i], 0);
		if (moved == 0)
			wait_any(sessions, count);
	}
	for (size_t i = 0; i < count; i++)
		note_end(&sessions[i]);
}

static void fail_list(struct kvc_request *list, int error)
{
	for (; list; list = list->next)
		kvc_session_finish(list, kvc_result_of_errno(error));
}

static uint64_t latest_deadline(const struct kvc_request *list)
{
	uint64_t latest = 0;

	for (; list; list = list->next)
		latest = list->deadline_ns > latest ? list->deadline_ns : latest;
	return latest;
}

/* Sorts the requests by root, each list in the order given. */
static void split_by_root(const struct kvc_store *store, struct kvc_request *requests, size_t count,
			  struct kvc_request **lists)
{
	struct kvc_request **ends[KVC_ROOTS_MAX];

	for (size_t r = 0; r < store->root_count; r++) {
		lists[r] = NULL;
		ends[r] = &lists[r];
	}
	for (size_t i = 0; i < count; i++) {
		struct kvc_request *request = &requests[i];
		const size_t r = kvc_store_root_index(store, request->root);

		request->next = NULL;
		*ends[r] = request;
		ends[r] = &request->next;
	}
}

/* A session on each root whose list is left, on a free queue, or when told so on the first that is
 * given back in time. Lists that have one, or that failed, are taken out. */
static size_t open_sessions(const struct kvc_store *store, struct kvc_request **lists,
			    const struct kvc_regions *regions, const atomic_bool *cancel, bool wait,
			    struct kvc_session *sessions)
{
	size_t count = 0;

	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_request *list = lists[r];
		struct kvc_queue *queue;
		int rc;

		if (!list)
			continue;
		rc = kvc_queue_lease(store->roots[r], wait ? latest_deadline(list) : 0, &queue);
		if (rc == -ETIMEDOUT && !wait)
			continue;
		lists[r] = NULL;
		if (rc)
			fail_list(list, -rc);
		else
			session_init(&sessions[count++], queue, list, regions, cancel);
	}
	return count;
}

/* All staged roots side by side: one that stalls does not keep the next part of another back. */
static void finish_jobs(struct kvc_stage_job **jobs, size_t count)
{
	for (;;) {
		struct kvc_stage_job *waited = NULL;
		size_t left = 0;

		for (size_t r = 0; r < count; r++) {
			if (jobs[r] && !kvc_stage_advance(jobs[r], 0)) {
				kvc_stage_finish(jobs[r]);
				jobs[r] = NULL;
			}
			if (jobs[r]) {
				waited = jobs[r];
				left++;
			}
		}
		if (left == 0)
			return;
		(void)kvc_stage_advance(waited,
					left == 1 ? UINT64_MAX : kvc_now_ns() + STAGED_SLICE_NS);
	}
}

void kvc_xfer_run(struct kvc_store *store, struct kvc_request *requests, size_t count,
		  const atomic_bool *cancel)
{
	struct kvc_regions *regions = kvc_regions_acquire(store);
	struct kvc_request *lists[KVC_ROOTS_MAX];
	struct kvc_stage_job *jobs[KVC_ROOTS_MAX];
	struct kvc_session sessions[KVC_ROOTS_MAX];

	kvc_stamp_requests(store, requests, count);
	split_by_root(store, requests, count, lists);
	for (size_t r = 0; r < store->root_count; r++) {
		jobs[r] = NULL;
		if (!lists[r] || kvc_root_deadline_kind(store->roots[r]) != KVC_DEADLINE_STAGED)
			continue;
		/* NULL: every request has its result. */
		jobs[r] = kvc_stage_begin(store->roots[r], lists[r], cancel);
		lists[r] = NULL;
	}
	/* First the roots with a free queue: one that is busy or stalls holds up no other. */
	for (int wait = 0; wait < 2; wait++) {
		const size_t opened = open_sessions(store, lists, regions, cancel, wait, sessions);

		drive_all(sessions, opened);
		for (size_t i = 0; i < opened; i++)
			kvc_queue_return(sessions[i].queue);
	}
	finish_jobs(jobs, store->root_count);
	kvc_regions_release(regions);
	for (size_t i = 0; i < count; i++)
		if (requests[i].begins)
			kvc_session_touch_chain(store, &requests[i]);
}
