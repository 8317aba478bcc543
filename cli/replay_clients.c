/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_clients.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Requests that wait. In the compact form the sessions come one after the other, so that several
 * clients are busy only when the next sessions are in sight. */
#define WINDOW	4096u
#define TICK_NS 100000000ull

/* When a session began, for traces whose times count from there. */
struct session {
	uint64_t id;
	uint64_t base_ns;
};

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct replay_request *first;
	struct replay_request **last;
	uint32_t count;
	bool closed;
	uint64_t *active; /* per client: session + 1, or 0 */
	uint32_t client_count;
	bool relative;
	double speed;
	uint64_t start_ns;
	struct session *sessions;
	size_t session_count;
	size_t session_capacity;
};

struct worker {
	pthread_t thread;
	uint32_t number;
	struct queue *queue;
	struct replay_client *client;
};

static bool session_is_active(const struct queue *queue, uint64_t session)
{
	for (uint32_t i = 0; i < queue->client_count; i++)
		if (queue->active[i] == session + 1)
			return true;
	return false;
}

/* When the session began; it begins now when it is new. */
static uint64_t session_base(struct queue *queue, uint64_t id, uint64_t now_ns)
{
	for (size_t i = queue->session_count; i-- > 0;)
		if (queue->sessions[i].id == id)
			return queue->sessions[i].base_ns;
	if (queue->session_count == queue->session_capacity) {
		size_t capacity = queue->session_capacity * 2 + 64;
		struct session *grown =
			reallocarray(queue->sessions, capacity, sizeof(*queue->sessions));

		if (grown == NULL)
			return now_ns; /* played earlier than it would be, not lost */
		queue->sessions = grown;
		queue->session_capacity = capacity;
	}
	queue->sessions[queue->session_count++] = (struct session){ id, now_ns };
	return now_ns;
}

static uint64_t due_ns(struct queue *queue, const struct replay_request *request, uint64_t now_ns)
{
	uint64_t base = queue->start_ns;

	if (queue->speed <= 0)
		return 0;
	if (queue->relative)
		base = session_base(queue, request->session, now_ns);
	return base + (uint64_t)(request->at_ms * 1e6 / queue->speed);
}

/* Takes out the first request whose session is idle and whose time has come. NULL: none; *wait_ns
 * says when one is due (0: when something changes). */
static struct replay_request *take_ready(struct queue *queue, uint64_t *wake_ns)
{
	uint64_t now_ns = queue->speed > 0 ? replay_now_ns() : 0;

	*wake_ns = 0;
	for (struct replay_request **place = &queue->first; *place != NULL;
	     place = &(*place)->next) {
		struct replay_request *request = *place;
		uint64_t at_ns;

		if (session_is_active(queue, request->session))
			continue;
		at_ns = due_ns(queue, request, now_ns);
		if (at_ns <= now_ns) {
			*place = request->next;
			if (queue->last == &request->next)
				queue->last = place;
			queue->count--;
			return request;
		}
		if (*wake_ns == 0 || at_ns < *wake_ns)
			*wake_ns = at_ns;
		if (!queue->relative)
			break; /* the trace is in order of time */
	}
	return NULL;
}

static void wait_changed(struct queue *queue, uint64_t until_ns)
{
	struct timespec until = {
		.tv_sec = (time_t)(until_ns / 1000000000u),
		.tv_nsec = (long)(until_ns % 1000000000u),
	};

	if (until_ns == 0)
		pthread_cond_wait(&queue->changed, &queue->lock);
	else
		pthread_cond_timedwait(&queue->changed, &queue->lock, &until);
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument;
	struct queue *queue = worker->queue;
	struct replay_shared *shared = worker->client->shared;

	pthread_mutex_lock(&queue->lock);
	while (!atomic_load(&shared->stop)) {
		uint64_t wake_ns;
		struct replay_request *request = take_ready(queue, &wake_ns);

		if (request == NULL) {
			if (queue->closed && queue->count == 0)
				break;
			wait_changed(queue, wake_ns);
			continue;
		}
		queue->active[worker->number] = request->session + 1;
		pthread_cond_broadcast(&queue->changed);
		pthread_mutex_unlock(&queue->lock);
		replay_client_play(worker->client, request);
		free(request);
		pthread_mutex_lock(&queue->lock);
		queue->active[worker->number] = 0;
		pthread_cond_broadcast(&queue->changed);
	}
	pthread_mutex_unlock(&queue->lock);
	worker->client->thread_cpu_ns += replay_thread_cpu_ns();
	return NULL;
}

static int queue_begin(struct queue *queue, const struct replay_plan *plan, bool relative)
{
	pthread_condattr_t attributes;

	memset(queue, 0, sizeof(*queue));
	queue->active = calloc(plan->client_count, sizeof(*queue->active));
	if (queue->active == NULL)
		return -ENOMEM;
	queue->last = &queue->first;
	queue->client_count = plan->client_count;
	queue->relative = relative;
	queue->speed = plan->speed;
	queue->start_ns = replay_now_ns();
	pthread_mutex_init(&queue->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&queue->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	return 0;
}

static void queue_end(struct queue *queue)
{
	while (queue->first != NULL) {
		struct replay_request *request = queue->first;

		queue->first = request->next;
		free(request);
	}
	pthread_cond_destroy(&queue->changed);
	pthread_mutex_destroy(&queue->lock);
	free(queue->sessions);
	free(queue->active);
}

/* Reads the trace into the queue until its end, the limit or a stop. */
static int feed(struct queue *queue, struct replay_shared *shared, const struct replay_plan *plan,
		struct replay_reader *reader)
{
	uint64_t fed = 0, ticked_ns = replay_now_ns();

	while (!atomic_load(&shared->stop) && (plan->limit == 0 || fed < plan->limit)) {
		struct replay_request *request;
		int got = replay_reader_next(reader, &request);

		if (got <= 0)
			return got;
		fed++;
		if (replay_now_ns() - ticked_ns > TICK_NS) {
			plan->tick(plan->context);
			ticked_ns = replay_now_ns();
		}
		pthread_mutex_lock(&queue->lock);
		while (queue->count >= WINDOW && !atomic_load(&shared->stop)) {
			wait_changed(queue, replay_now_ns() + TICK_NS);
			pthread_mutex_unlock(&queue->lock);
			plan->tick(plan->context);
			pthread_mutex_lock(&queue->lock);
		}
		*queue->last = request;
		queue->last = &request->next;
		queue->count++;
		pthread_cond_broadcast(&queue->changed);
		pthread_mutex_unlock(&queue->lock);
	}
	return 0;
}

static bool all_played(const struct queue *queue)
{
	if (queue->count > 0)
		return false;
	for (uint32_t i = 0; i < queue->client_count; i++)
		if (queue->active[i] != 0)
			return false;
	return true;
}

/* Until all is played, ticking. */
static void finish(struct queue *queue, struct replay_shared *shared,
		   const struct replay_plan *plan)
{
	pthread_mutex_lock(&queue->lock);
	queue->closed = true;
	pthread_cond_broadcast(&queue->changed);
	while (!all_played(queue) && !atomic_load(&shared->stop)) {
		wait_changed(queue, replay_now_ns() + TICK_NS);
		pthread_mutex_unlock(&queue->lock);
		plan->tick(plan->context);
		pthread_mutex_lock(&queue->lock);
	}
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

int replay_clients_run(struct replay_shared *shared, const struct replay_plan *plan,
		       struct replay_reader *reader)
{
	struct worker *workers = calloc(plan->client_count, sizeof(*workers));
	struct queue queue;
	uint32_t started = 0;
	int error;

	if (workers == NULL)
		return -ENOMEM;
	error = queue_begin(&queue, plan, replay_reader_form(reader) == REPLAY_FORM_COMPACT);
	if (error != 0)
		goto free_workers;
	for (; started < plan->client_count; started++) {
		struct worker *worker = &workers[started];

		worker->number = started;
		worker->queue = &queue;
		worker->client = &plan->clients[started];
		if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
			atomic_store(&shared->stop, true);
			error = -EAGAIN;
			break;
		}
	}
	if (error == 0)
		error = feed(&queue, shared, plan, reader);
	finish(&queue, shared, plan);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(workers[i].thread, NULL);
	queue_end(&queue);

free_workers:
	free(workers);
	return error;
}
