/* SPDX-License-Identifier: Apache-2.0 */
/* core/workers.c: threads for started batches. */
#include "core/clock.h"
#include "core/workers.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct job {
	struct kvc_job job;
	atomic_int *ran;
	atomic_bool *gate;
	int number;
};

static int order[2000];

static void run(struct kvc_job *base)
{
	struct job *job = (struct job *)base;
	const struct timespec pause = kvc_timespec(100000);

	while (job->gate && !atomic_load(job->gate))
		(void)nanosleep(&pause, NULL);
	order[atomic_fetch_add(job->ran, 1)] = job->number;
}

struct mask_job {
	struct kvc_job job;
	sigset_t blocked;
	atomic_bool done;
};

static void read_mask(struct kvc_job *base)
{
	struct mask_job *job = (struct mask_job *)base;

	(void)pthread_sigmask(SIG_BLOCK, NULL, &job->blocked);
	atomic_store(&job->done, true);
}

/* Signals go to the program's threads; but a fault is the business of the thread it happens in, and
 * ends the process where it is blocked. */
static void signals_are_blocked_but_for_faults(void **state)
{
	const struct timespec pause = kvc_timespec(100000);
	static struct mask_job job;
	struct kvc_workers *workers;

	(void)state;
	job.job.run = read_mask;
	assert_int_equal(kvc_workers_new(1, &workers), 0);
	assert_int_equal(kvc_workers_add(workers, &job.job), 0);
	while (!atomic_load(&job.done))
		(void)nanosleep(&pause, NULL);
	kvc_workers_free(workers);
	assert_int_equal(sigismember(&job.blocked, SIGTERM), 1);
	assert_int_equal(sigismember(&job.blocked, SIGALRM), 1);
	assert_int_equal(sigismember(&job.blocked, SIGBUS), 0);
}

static void every_job_runs_once_and_in_order(void **state)
{
	static struct job jobs[1000];
	struct kvc_workers *workers;
	atomic_int ran = 0;

	(void)state;
	assert_int_equal(kvc_workers_new(1, &workers), 0);
	for (int i = 0; i < 1000; i++) {
		jobs[i] = (struct job){ .job.run = run, .ran = &ran, .number = i };
		assert_int_equal(kvc_workers_add(workers, &jobs[i].job), 0);
	}
	kvc_workers_free(workers); /* what waits is run */
	assert_int_equal(ran, 1000);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(order[i], i);
	kvc_workers_free(NULL);
}

static void too_many_waiting_jobs_are_refused(void **state)
{
	static struct job jobs[1100];
	struct kvc_workers *workers;
	atomic_bool gate = false;
	atomic_int ran = 0;
	int taken = 0;

	(void)state;
	assert_int_equal(kvc_workers_new(2, &workers), 0);
	for (int i = 0; i < 1100; i++) {
		jobs[i] = (struct job){ .job.run = run, .ran = &ran, .gate = &gate, .number = i };
		if (kvc_workers_add(workers, &jobs[i].job) == -EAGAIN)
			break;
		taken++;
	}
	assert_in_range(taken, 1024, 1026); /* the threads may have taken theirs */
	atomic_store(&gate, true);
	kvc_workers_free(workers);
	assert_int_equal(ran, taken);
}

static void without_threads_there_are_no_workers(void **state)
{
	struct kvc_workers *workers = NULL;

	(void)state;
	assert_int_equal(kvc_workers_new(0, &workers), -EINVAL);
	assert_null(workers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_job_runs_once_and_in_order),
		cmocka_unit_test(too_many_waiting_jobs_are_refused),
		cmocka_unit_test(without_threads_there_are_no_workers),
		cmocka_unit_test(signals_are_blocked_but_for_faults),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
