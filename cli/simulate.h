/* SPDX-License-Identifier: Apache-2.0 */
/* What `kvcellar simulate` found out, and how it is told. */
#ifndef KVC_CLI_SIMULATE_H
#define KVC_CLI_SIMULATE_H

#include "cli.h"
#include "simulate_cache.h"
#include "simulate_trace.h"

#define SIM_POLICIES_MAX   4u
#define SIM_CAPACITIES_MAX 64u

/* A capacity as given, and what it is for this trace. */
struct sim_capacity {
	double percent; /* of the distinct pages; 0: pages were given */
	uint64_t bytes; /* of --page-bytes; 0: not given in bytes */
	uint32_t pages;
};

/*
 * struct sim_outcome
 * @points  of policy p at capacity c: [c * policy_count + p]
 */
struct sim_outcome {
	const char *path;
	struct sim_trace *trace;
	uint64_t bad_lines;
	uint64_t dropped;
	uint64_t seed;
	uint64_t page_bytes; /* 0: not known */
	uint32_t batch;
	uint32_t side_by_side; /* sessions; 0: the trace has none */
	bool exact;
	struct sim_policy policies[SIM_POLICIES_MAX];
	size_t policy_count;
	struct sim_capacity capacities[SIM_CAPACITIES_MAX];
	size_t capacity_count;
	struct sim_counts points[SIM_CAPACITIES_MAX * SIM_POLICIES_MAX];
};

static inline const struct sim_counts *sim_point(const struct sim_outcome *outcome, size_t capacity,
						 size_t policy)
{
	return &outcome->points[capacity * outcome->policy_count + policy];
}

double sim_hit_rate(const struct sim_outcome *outcome, const struct sim_counts *counts);

/* The capacity's name in tables: "5%", "2000 pages", "64 GiB". Returns buffer. */
const char *sim_capacity_name(const struct sim_capacity *capacity, char buffer[CLI_FORMAT_BYTES]);

void sim_print(struct kvc_cli *cli, const struct sim_outcome *outcome);
json_t *sim_json(const struct sim_outcome *outcome);

/* A chart as a file of its own: 0 or a negative errno. */
int sim_write_svg(FILE *file, const struct sim_outcome *outcome);
int sim_write_png(FILE *file, const struct sim_outcome *outcome);
bool sim_has_png(void); /* whether this build can */

#endif
