/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What replay and bench measure: latency distributions, counts per operation, and how a replay went
 * over time. All of it has a fixed size, however long the replay is.
 */
#ifndef KVC_CLI_REPLAY_STATS_H
#define KVC_CLI_REPLAY_STATS_H

#include <kvcellar/kvcellar.h>

#include <stddef.h>
#include <stdint.h>

/* 32 buckets per power of two of nanoseconds: a quantile is right within 3%. */
#define STATS_LATENCY_BUCKETS (40u * 32u)

struct stats_latency {
	uint64_t counts[STATS_LATENCY_BUCKETS];
	uint64_t total;
	uint64_t sum_ns;
	uint64_t max_ns;
};

void stats_latency_add(struct stats_latency *latency, uint64_t ns);
void stats_latency_merge(struct stats_latency *into, const struct stats_latency *from);

/* The latency that `fraction` of the calls did not exceed, in ns; 0 when there were none. */
double stats_latency_quantile(const struct stats_latency *latency, double fraction);

/* Bounds of a bucket in ns: [lower, upper). */
double stats_latency_lower(size_t bucket);
double stats_latency_upper(size_t bucket);

struct stats_operation {
	uint64_t calls;
	uint64_t pages;
	uint64_t bytes;	 /* of pages that ended OK and were moved */
	uint64_t cpu_ns; /* of the calling threads, during the calls */
	uint64_t statuses[8];
	uint64_t causes[KVC_CAUSE_COUNT];
	struct stats_latency latency;
};

/* One pass over the trace, or what one client did. */
struct stats_pass {
	uint64_t requests;
	uint64_t pages; /* that the requests needed */
	uint64_t tier_hits;
	uint64_t store_hits;
	uint64_t get_bytes;
	uint64_t set_bytes;
	double get_busy_s; /* while at least one get was running; in a series only */
	double set_busy_s;
	double seconds;
};

void stats_pass_add(struct stats_pass *into, const struct stats_pass *from);

/* Pages that did not have to be computed, of all; 0 when there were none. */
double stats_hit_rate(const struct stats_pass *pass);

#define STATS_SERIES_LENGTH 240u

/* What happened over time. When it is full, two intervals become one and the interval doubles. */
struct stats_series {
	double interval_s;
	size_t count;
	struct stats_pass intervals[STATS_SERIES_LENGTH];
};

void stats_series_begin(struct stats_series *series);
void stats_series_add(struct stats_series *series, double at_s, const struct stats_pass *what);

#endif
