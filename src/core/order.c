/* SPDX-License-Identifier: Apache-2.0 */
#include "core/order.h"

#include <stddef.h>
#include <string.h>

static uint64_t time_of(uint64_t stamp)
{
	return stamp & ~(uint64_t)KVC_STAMP_NOTES;
}

static uint64_t stored_now(uint64_t now, bool returned)
{
	(void)returned;
	return time_of(now);
}

static uint64_t by_time(uint64_t stamp, bool new_ones)
{
	(void)new_ones;
	return time_of(stamp);
}

static uint64_t goes(uint64_t stamp, uint64_t now)
{
	(void)stamp;
	(void)now;
	return KVC_ORDER_GOES;
}

/* ---------------------------------------------------------------- lru, fifo */

static uint64_t used_now(uint64_t stamp, uint64_t now)
{
	return time_of(now) | (stamp & KVC_STAMP_NOTES);
}

static uint64_t stays(uint64_t stamp, uint64_t now)
{
	(void)now;
	return stamp;
}

const struct kvc_order kvc_order_lru = {
	.name = "lru",
	.stored = stored_now,
	.used = used_now,
	.rank = by_time,
	.spared = goes,
};

const struct kvc_order kvc_order_fifo = {
	.name = "fifo",
	.stored = stored_now,
	.used = stays,
	.rank = by_time,
	.spared = goes,
};

/* ---------------------------------------------------------------- s3fifo */

/*
 * S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction",
 * SOSP '23): a small queue for what is new, a main queue for what was used while in the small one,
 * a list of those that left the small one. Here the queue and the uses are notes of the stamp, the
 * order of a queue is by time, and the list is core/ghost.h.
 */
#define USES	    3u /* at most counted */
#define IN_MAIN	    4u
#define SMALL_SHARE 10u /* percent */

static uint64_t s3fifo_stored(uint64_t now, bool returned)
{
	return time_of(now) | (returned ? IN_MAIN : 0);
}

static uint64_t s3fifo_used(uint64_t stamp, uint64_t now)
{
	(void)now;
	return (stamp & USES) == USES ? stamp : stamp + 1;
}

static uint64_t s3fifo_rank(uint64_t stamp, bool new_ones)
{
	const bool is_new = !(stamp & IN_MAIN);

	/* The others only when there are none of these. */
	return time_of(stamp) | (is_new == new_ones ? 0 : UINT64_C(1) << 63);
}

static uint64_t s3fifo_spared(uint64_t stamp, uint64_t now)
{
	const uint64_t uses = stamp & USES;

	if (uses == 0)
		return KVC_ORDER_GOES;
	return time_of(now) | IN_MAIN | (stamp & IN_MAIN ? uses - 1 : 0);
}

const struct kvc_order kvc_order_s3fifo = {
	.name = "s3fifo",
	.stored = s3fifo_stored,
	.used = s3fifo_used,
	.rank = s3fifo_rank,
	.part = SMALL_SHARE,
	.spared = s3fifo_spared,
};

/* ---------------------------------------------------------------- */

const struct kvc_order *kvc_order_of(const char *name)
{
	static const struct kvc_order *const all[] = { &kvc_order_lru, &kvc_order_fifo,
						       &kvc_order_s3fifo };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(all[i]->name, name) == 0)
			return all[i];
	return NULL;
}

bool kvc_order_new_ones(const struct kvc_order *order, const uint64_t *stamps, unsigned count)
{
	unsigned new_ones = 0;

	if (order->part == 0)
		return false;
	for (unsigned i = 0; i < count; i++)
		new_ones += !(stamps[i] & IN_MAIN);
	return new_ones * 100 >= count * order->part;
}
