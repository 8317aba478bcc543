/* SPDX-License-Identifier: Apache-2.0 */
/* The one log callback of the library, and the calling thread's last error text. */
#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DETAIL_BYTES 1024

static _Thread_local char last_error[DETAIL_BYTES];
static _Thread_local int last_code;
static _Thread_local unsigned failures;

struct sink {
	kvc_log_fn fn;
	void *context;
	int level;
};

/* Two, so that a child that was forked while a thread set another one has either whole. */
static struct sink sinks[2];
static unsigned sink_now;
static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_INITIALIZER;
static _Thread_local unsigned sink_depth; /* how often this thread has the lock for reading */

/*
 * The child keeps the callback, and the lock as its one thread has it. fork() waits for nobody: a
 * callback may wait for what the forking thread has, such as Python's GIL.
 */
static void fork_child(void)
{
	(void)pthread_rwlock_init(&sink_lock, NULL);
	for (unsigned i = 0; i < sink_depth; i++)
		pthread_rwlock_rdlock(&sink_lock);
}

__attribute__((constructor)) static void fork_prepared(void)
{
	(void)pthread_atfork(NULL, NULL, fork_child);
}

void kvc_log_set(kvc_log_fn fn, void *context, int level)
{
	unsigned next;

	pthread_rwlock_wrlock(&sink_lock);
	next = 1 - sink_now;
	sinks[next] = (struct sink){ fn, context, level };
	__atomic_store_n(&sink_now, next, __ATOMIC_RELEASE);
	pthread_rwlock_unlock(&sink_lock);
}

const char *kvc_last_error(void)
{
	return last_error;
}

int kvc_fail(int error, const char *format, ...)
{
	char text[DETAIL_BYTES];
	va_list args;

	/* Formatted aside first: an argument may be the previous last_error itself. */
	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	memcpy(last_error, text, sizeof(text));
	last_code = error;
	failures++;
	return error;
}

unsigned kvc_fail_mark(void)
{
	return failures;
}

int kvc_fail_since(unsigned mark, int error, const char *format, ...)
{
	char text[DETAIL_BYTES];
	va_list args;

	if (error >= 0 || (failures != mark && last_code == error))
		return error;
	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return kvc_fail(error, "%s: %s", text, strerror(-error));
}

void kvc_log(int level, const char *format, ...)
{
	char text[DETAIL_BYTES];
	const struct sink *sink;
	va_list args;

	pthread_rwlock_rdlock(&sink_lock);
	sink_depth++;
	sink = &sinks[sink_now];
	if (sink->fn && level <= sink->level) {
		va_start(args, format);
		(void)vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		sink->fn(sink->context, level, text);
	}
	sink_depth--;
	pthread_rwlock_unlock(&sink_lock);
}

bool kvc_log_allowed(struct kvc_log_limit *limit, uint32_t burst, uint32_t *dropped)
{
	const int64_t window_ns = 10 * INT64_C(1000000000);
	struct timespec now;
	int64_t now_ns, start_ns;

	(void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	start_ns = __atomic_load_n(&limit->window_start_ns, __ATOMIC_RELAXED);
	*dropped = 0;
	if ((start_ns == 0 || now_ns - start_ns >= window_ns) &&
	    __atomic_compare_exchange_n(&limit->window_start_ns, &start_ns, now_ns, false,
					__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		__atomic_store_n(&limit->used, 0, __ATOMIC_RELAXED);
		*dropped = __atomic_exchange_n(&limit->dropped, 0, __ATOMIC_RELAXED);
	}
	if (__atomic_fetch_add(&limit->used, 1, __ATOMIC_RELAXED) < burst)
		return true;
	__atomic_fetch_add(&limit->dropped, 1, __ATOMIC_RELAXED);
	return false;
}
