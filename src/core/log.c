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

static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_INITIALIZER;
static kvc_log_fn sink;
static void *sink_context;
static int sink_level = KVC_LOG_INFO;

void kvc_log_set(kvc_log_fn fn, void *context, int level)
{
	pthread_rwlock_wrlock(&sink_lock);
	sink = fn;
	sink_context = context;
	sink_level = level;
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
	va_list args;

	pthread_rwlock_rdlock(&sink_lock);
	if (sink && level <= sink_level) {
		va_start(args, format);
		(void)vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		sink(sink_context, level, text);
	}
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
