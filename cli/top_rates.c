/* SPDX-License-Identifier: Apache-2.0 */
#include "top.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Which of the stores of its process it is. */
static unsigned number_of(const struct cli_processes *processes, size_t index)
{
	unsigned number = 0;

	for (size_t i = 0; i < index; i++)
		number += processes->list[i].pid == processes->list[index].pid;
	return number;
}

static const struct kvc_stats *find(const struct cli_processes *processes, int pid, unsigned number)
{
	for (size_t i = 0; i < processes->count; i++)
		if (processes->list[i].pid == pid && number-- == 0)
			return &processes->list[i].stats;
	return NULL;
}

/* Counters only grow, but for a page that was made anew (another process of that number, or one
 * whose page was cut). */
static bool is_behind(const struct kvc_stats *before, const struct kvc_stats *now)
{
	for (int op = 0; op < KVC_OPERATION_COUNT; op++)
		if (now->operations[op].calls < before->operations[op].calls ||
		    now->operations[op].pages < before->operations[op].pages)
			return true;
	return false;
}

/* Every field behind `size` is a counter of 8 bytes. */
#define CELLS ((sizeof(struct kvc_stats) - offsetof(struct kvc_stats, operations)) / 8)

static uint64_t *cells_of(struct kvc_stats *stats)
{
	return (uint64_t *)(void *)stats->operations;
}

static void subtract(struct kvc_stats *from, const struct kvc_stats *what)
{
	const uint64_t *before = (const uint64_t *)(const void *)what->operations;
	const struct kvc_stats now = *from;
	uint64_t *cells = cells_of(from);

	for (size_t i = 0; i < CELLS; i++)
		cells[i] = cells[i] > before[i] ? cells[i] - before[i] : 0;
	/* How many there are now, not how many came. */
	from->parked_queues = now.parked_queues;
	from->host_registrations = now.host_registrations;
	from->storage_registrations = now.storage_registrations;
}

static void add(struct kvc_stats *to, const struct kvc_stats *what)
{
	const uint64_t *more = (const uint64_t *)(const void *)what->operations;
	uint64_t *cells = cells_of(to);

	for (size_t i = 0; i < CELLS; i++)
		cells[i] += more[i];
}

int top_compare(const struct cli_processes *before, const struct cli_processes *now,
		struct top_rows *out)
{
	struct top_rows rows = { .count = now->count };

	rows.list = calloc(now->count + 1, sizeof(*rows.list));
	if (!rows.list)
		return -ENOMEM;
	rows.total.size = sizeof(rows.total);
	for (size_t i = 0; i < now->count; i++) {
		struct top_row *row = &rows.list[i];
		const struct kvc_stats *was;

		row->pid = now->list[i].pid;
		row->number = number_of(now, i);
		row->delta = now->list[i].stats;
		was = find(before, row->pid, row->number);
		row->is_new = !was;
		row->restarted = was && is_behind(was, &row->delta);
		if (was && !row->restarted)
			subtract(&row->delta, was);
		add(&rows.total, &row->delta);
	}
	*out = rows;
	return 0;
}

void top_rows_free(struct top_rows *rows)
{
	free(rows->list);
	*rows = (struct top_rows){ .count = 0 };
}

/* Bucket i has [2^(i-1), 2^i) microseconds: within it they are taken as spread evenly. */
double top_quantile(const struct kvc_operation_stats *operation, double share)
{
	double rank, below = 0;
	uint64_t calls = 0;

	for (int i = 0; i < KVC_HISTOGRAM_BUCKETS; i++)
		calls += operation->latency_us[i];
	rank = share * (double)calls;
	for (int i = 0; i < KVC_HISTOGRAM_BUCKETS; i++) {
		const double in = (double)operation->latency_us[i];
		const double low = i ? ldexp(1, i - 1) : 0, high = ldexp(1, i);

		if (in > 0 && below + in >= rank)
			return low + (high - low) * (rank - below) / in;
		below += in;
	}
	return 0;
}

double top_mean_us(const struct kvc_operation_stats *operation)
{
	return operation->calls ? (double)operation->latency_us_sum / (double)operation->calls : 0;
}

double top_share_ok(const struct kvc_operation_stats *operation)
{
	return operation->pages ? (double)operation->statuses[KVC_OK] / (double)operation->pages :
				  -1;
}

double top_prefix_share(const struct kvc_stats *stats)
{
	return stats->prefix_pages_asked ?
		       (double)stats->prefix_pages_found / (double)stats->prefix_pages_asked :
		       -1;
}

bool top_is_failure(int cause)
{
	return cause != KVC_CAUSE_NONE && cause != KVC_CAUSE_EXISTED &&
	       cause != KVC_CAUSE_NOT_WRITER && cause != KVC_CAUSE_PREFIX_ENDED;
}
