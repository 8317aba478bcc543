/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that run started batches. A job is the caller's memory until its function returns. */
#ifndef KVC_CORE_WORKERS_H
#define KVC_CORE_WORKERS_H

#include <stdint.h>

struct kvc_workers;

struct kvc_job {
	struct kvc_job *next;
	void (*run)(struct kvc_job *job);
};

int kvc_workers_new(uint32_t threads, struct kvc_workers **out);
/* Runs what is queued to its end, then ends the threads. */
void kvc_workers_free(struct kvc_workers *workers);

/* -EAGAIN: too many jobs are waiting. */
int kvc_workers_add(struct kvc_workers *workers, struct kvc_job *job);

#endif
