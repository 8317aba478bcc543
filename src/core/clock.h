/* SPDX-License-Identifier: Apache-2.0 */
/* Times: deadlines and intervals by CLOCK_MONOTONIC, creation times by the wall clock. */
#ifndef KVC_CORE_CLOCK_H
#define KVC_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t kvc_now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline uint64_t kvc_now_ms(void)
{
	return kvc_now_ns() / 1000000;
}

/* Of the wall clock: since the epoch, as the times of files are; as far as that goes, some hundred
 * years. */
static inline int64_t kvc_ns_of(const struct timespec *time)
{
	if (time->tv_sec < 0 || time->tv_sec > INT64_C(4000000000))
		return time->tv_sec < 0 ? 0 : INT64_C(4000000000) * INT64_C(1000000000);
	return (int64_t)time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

static inline int64_t kvc_wall_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return kvc_ns_of(&now);
}

static inline struct timespec kvc_timespec(uint64_t ns)
{
	return (struct timespec){
		.tv_sec = (time_t)(ns / UINT64_C(1000000000)),
		.tv_nsec = (long)(ns % UINT64_C(1000000000)),
	};
}

#endif
