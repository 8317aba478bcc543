/* SPDX-License-Identifier: Apache-2.0 */
/* Times of plugins: CLOCK_MONOTONIC in nanoseconds. */
#ifndef KVC_PLUGINS_COMMON_CLOCK_H
#define KVC_PLUGINS_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t plugin_now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline struct timespec plugin_timespec(uint64_t ns)
{
	return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
				  .tv_nsec = (long)(ns % 1000000000u) };
}

#endif
