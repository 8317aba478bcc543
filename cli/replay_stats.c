/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_stats.h"

#include <string.h>

#define SUB_BITS 5u
#define SUB	 (1u << SUB_BITS)

static size_t bucket_of(uint64_t ns)
{
	unsigned exponent;
	size_t bucket;

	if (ns < SUB)
		return (size_t)ns;
	exponent = 63u - (unsigned)__builtin_clzll(ns);
	bucket = (exponent - SUB_BITS + 1) * SUB + ((ns >> (exponent - SUB_BITS)) & (SUB - 1));
	return bucket < STATS_LATENCY_BUCKETS ? bucket : STATS_LATENCY_BUCKETS - 1;
}

double stats_latency_lower(size_t bucket)
{
	size_t octave = bucket / SUB;

	if (octave == 0)
		return (double)bucket;
	return (double)(SUB + bucket % SUB) * (double)(1ull << (octave - 1));
}

double stats_latency_upper(size_t bucket)
{
	return stats_latency_lower(bucket + 1);
}

void stats_latency_add(struct stats_latency *latency, uint64_t ns)
{
	latency->counts[bucket_of(ns)]++;
	latency->total++;
	latency->sum_ns += ns;
	if (ns > latency->max_ns)
		latency->max_ns = ns;
}

void stats_latency_merge(struct stats_latency *into, const struct stats_latency *from)
{
	for (size_t i = 0; i < STATS_LATENCY_BUCKETS; i++)
		into->counts[i] += from->counts[i];
	into->total += from->total;
	into->sum_ns += from->sum_ns;
	if (from->max_ns > into->max_ns)
		into->max_ns = from->max_ns;
}

double stats_latency_quantile(const struct stats_latency *latency, double fraction)
{
	double wanted = fraction * (double)latency->total;
	uint64_t below = 0;

	for (size_t i = 0; i < STATS_LATENCY_BUCKETS; i++) {
		uint64_t here = latency->counts[i];

		if (here > 0 && (double)(below + here) >= wanted) {
			double lower = stats_latency_lower(i), upper = stats_latency_upper(i);
			double value =
				lower + (upper - lower) * (wanted - (double)below) / (double)here;

			return value < (double)latency->max_ns ? value : (double)latency->max_ns;
		}
		below += here;
	}
	return (double)latency->max_ns;
}

void stats_pass_add(struct stats_pass *into, const struct stats_pass *from)
{
	into->requests += from->requests;
	into->pages += from->pages;
	into->tier_hits += from->tier_hits;
	into->store_hits += from->store_hits;
	into->get_bytes += from->get_bytes;
	into->set_bytes += from->set_bytes;
	into->get_busy_s += from->get_busy_s;
	into->set_busy_s += from->set_busy_s;
	into->seconds += from->seconds;
}

double stats_hit_rate(const struct stats_pass *pass)
{
	if (pass->pages == 0)
		return 0;
	return (double)(pass->tier_hits + pass->store_hits) / (double)pass->pages;
}

void stats_series_begin(struct stats_series *series)
{
	memset(series, 0, sizeof(*series));
	series->interval_s = 0.02;
}

void stats_series_add(struct stats_series *series, double at_s, const struct stats_pass *what)
{
	size_t index;

	while (at_s >= series->interval_s * STATS_SERIES_LENGTH) {
		for (size_t i = 0; i < STATS_SERIES_LENGTH / 2; i++) {
			series->intervals[i] = series->intervals[2 * i];
			stats_pass_add(&series->intervals[i], &series->intervals[2 * i + 1]);
		}
		memset(series->intervals + STATS_SERIES_LENGTH / 2, 0,
		       sizeof(series->intervals) / 2);
		series->count = (series->count + 1) / 2;
		series->interval_s *= 2;
	}
	index = at_s > 0 ? (size_t)(at_s / series->interval_s) : 0;
	if (index >= STATS_SERIES_LENGTH)
		index = STATS_SERIES_LENGTH - 1;
	if (index >= series->count)
		series->count = index + 1;
	stats_pass_add(&series->intervals[index], what);
}
