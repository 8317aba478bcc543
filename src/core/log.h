/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_CORE_LOG_H
#define KVC_CORE_LOG_H

#include <kvcellar/kvcellar.h>

#include <stdbool.h>
#include <stdint.h>

/* Records the calling thread's detail text, which kvc_last_error() returns, and returns `error`
 * unchanged, so that `return kvc_fail(-EINVAL, ...)` is one line. The function that first decides
 * an error calls it; callers pass the code on. */
int kvc_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * For public functions, whose failures always have a text of their own:
 *	const unsigned mark = kvc_fail_mark();
 *	...
 *	return kvc_fail_since(mark, rc, "listing %s", id);
 * When nothing below has told of this error since the mark (no memory, a callback that stopped),
 * the text is what was being done and the errno. Returns error; does nothing when it is none.
 */
unsigned kvc_fail_mark(void);
int kvc_fail_since(unsigned mark, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* One line to the log callback. Nothing is printed when no callback is set. */
void kvc_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A place that logs often: at most `burst` lines per 10 s, then a count of what was left out. */
struct kvc_log_limit {
	int64_t window_start_ns;
	uint32_t used;
	uint32_t dropped;
};

bool kvc_log_allowed(struct kvc_log_limit *limit, uint32_t burst, uint32_t *dropped);

#endif
