/* SPDX-License-Identifier: Apache-2.0 */
#include "core/workers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#define JOBS_WAITING 1024u

struct kvc_workers {
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct kvc_job *first;
	struct kvc_job **last;
	uint32_t waiting;
	bool stop;
	uint32_t thread_count;
	pthread_t threads[];
};

static void *run(void *context)
{
	struct kvc_workers *workers = context;

	pthread_mutex_lock(&workers->lock);
	for (;;) {
		struct kvc_job *job;

		while (!workers->first && !workers->stop)
			pthread_cond_wait(&workers->work, &workers->lock);
		job = workers->first;
		if (!job)
			break;
		workers->first = job->next;
		if (!workers->first)
			workers->last = &workers->first;
		workers->waiting--;
		pthread_mutex_unlock(&workers->lock);
		job->run(job);
		pthread_mutex_lock(&workers->lock);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

int kvc_workers_new(uint32_t threads, struct kvc_workers **out)
{
	struct kvc_workers *workers;
	sigset_t all, former;
	int rc = 0;

	if (threads == 0)
		return -EINVAL;
	workers = calloc(1, sizeof(*workers) + threads * sizeof(workers->threads[0]));
	if (!workers)
		return -ENOMEM;
	workers->last = &workers->first;
	(void)pthread_mutex_init(&workers->lock, NULL);
	(void)pthread_cond_init(&workers->work, NULL);
	/* Signals are the application's. */
	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS); /* pages of a packed index that are lost */
	(void)pthread_sigmask(SIG_SETMASK, &all, &former);
	while (workers->thread_count < threads && !rc) {
		rc = pthread_create(&workers->threads[workers->thread_count], NULL, run, workers);
		workers->thread_count += !rc;
	}
	(void)pthread_sigmask(SIG_SETMASK, &former, NULL);
	if (workers->thread_count == 0) {
		kvc_workers_free(workers);
		return -rc;
	}
	*out = workers;
	return 0;
}

void kvc_workers_free(struct kvc_workers *workers)
{
	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	workers->stop = true;
	pthread_cond_broadcast(&workers->work);
	pthread_mutex_unlock(&workers->lock);
	for (uint32_t i = 0; i < workers->thread_count; i++)
		(void)pthread_join(workers->threads[i], NULL);
	(void)pthread_cond_destroy(&workers->work);
	(void)pthread_mutex_destroy(&workers->lock);
	free(workers);
}

int kvc_workers_add(struct kvc_workers *workers, struct kvc_job *job)
{
	int rc = 0;

	pthread_mutex_lock(&workers->lock);
	if (workers->waiting >= JOBS_WAITING) {
		rc = -EAGAIN;
	} else {
		job->next = NULL;
		*workers->last = job;
		workers->last = &job->next;
		workers->waiting++;
		pthread_cond_signal(&workers->work);
	}
	pthread_mutex_unlock(&workers->lock);
	return rc;
}
