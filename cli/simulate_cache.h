/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store without bytes: which of its pages are there, which go. Policies, stamps, samples and what
 * is kept free are those of the packed layout (core/order.h, core/sample.h); a group is one page.
 * Not thread-safe.
 */
#ifndef KVC_CLI_SIMULATE_CACHE_H
#define KVC_CLI_SIMULATE_CACHE_H

#include "simulate_trace.h"

#include "core/order.h"

#define SIM_REFERENCE "reference"

/*
 * struct sim_policy - what decides.
 * @order      NULL: there is none; see sim_policy_of()
 * @exact      strictly in order, every use noted, nothing kept free ahead
 * @reference  as HiCacheNixl: by the time of writing, the first page of a call first; at `capacity`
 *             down to below 70/80 of it, 50 pages at a time
 */
struct sim_policy {
	const char *name;
	const struct kvc_order *order;
	bool exact;
	bool reference;
};

/* false: there is none of this name. */
bool sim_policy_of(const char *name, bool exact, struct sim_policy *out);

/* What became of the pages that requests asked for. */
struct sim_counts {
	uint64_t hits;	     /* leading ones that were there */
	uint64_t recomputed; /* had been stored, but were not usable */
	uint64_t stored;
	uint64_t evicted;
	uint64_t returned; /* stored again not long after */
	uint32_t most;	   /* there at once */
};

struct sim_cache;

/*
 * sim_cache_new - capacity in pages, at least 1; batch: pages of one call, 0: all of a request.
 * NULL: out of memory.
 */
struct sim_cache *sim_cache_new(const struct sim_policy *policy, uint32_t capacity, uint32_t span,
				uint32_t batch, uint64_t seed);
void sim_cache_free(struct sim_cache *cache);

/* Plays one request, whose runs begin at `runs`. 0 or -ENOMEM. */
int sim_cache_play(struct sim_cache *cache, const struct sim_request *request,
		   const struct sim_run *runs);

bool sim_cache_has(const struct sim_cache *cache, uint32_t page);
const struct sim_counts *sim_cache_counts(const struct sim_cache *cache);

#endif
