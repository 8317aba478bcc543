/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate.h"

#include <inttypes.h>
#include <stdlib.h>

double sim_hit_rate(const struct sim_outcome *outcome, const struct sim_counts *counts)
{
	return (double)counts->hits / (double)outcome->trace->pages;
}

const char *sim_capacity_name(const struct sim_capacity *capacity, char buffer[CLI_FORMAT_BYTES])
{
	if (capacity->percent > 0)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%g%%", capacity->percent);
	else if (capacity->bytes > 0)
		(void)cli_format_size(buffer, capacity->bytes);
	else
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%" PRIu32, capacity->pages);
	return buffer;
}

/* ---------------------------------------------------------------- text */

static void print_trace(const struct sim_outcome *outcome)
{
	const struct sim_trace *trace = outcome->trace;
	char *path = cli_printable(outcome->path);

	printf("trace     %s\n", path ? path : "");
	printf("  %s form, %" PRIu64 " requests, %" PRIu64 " pages, %" PRIu32
	       " of them distinct: at most %.2f%% can be hits\n",
	       replay_form_name(trace->form), trace->asked, trace->pages, trace->distinct,
	       100 - 100.0 * trace->distinct / (double)trace->pages);
	if (outcome->side_by_side > 0)
		printf("  %" PRIu32 " sessions, %" PRIu32 " side by side\n", trace->sessions,
		       outcome->side_by_side);
	if (outcome->bad_lines > 0)
		printf("  %" PRIu64 " malformed lines left out\n", outcome->bad_lines);
	if (outcome->dropped > 0)
		printf("  %" PRIu64 " calls are missing in the recording\n", outcome->dropped);
	if (outcome->exact)
		printf("order     strict\n");
	else
		printf("order     as the store finds it, seed %" PRIu64 "\n", outcome->seed);
	free(path);
}

static void print_head(struct kvc_cli *cli, const struct sim_outcome *outcome, const char *title)
{
	printf("\n%s%-10s %10s", cli_bold(cli), title, "pages");
	for (size_t p = 0; p < outcome->policy_count; p++)
		printf(" %11s", outcome->policies[p].name);
	printf("%s\n", cli_plain(cli));
}

static void print_row_name(const struct sim_capacity *capacity)
{
	char name[CLI_FORMAT_BYTES];

	printf("%-10s %10" PRIu32, sim_capacity_name(capacity, name), capacity->pages);
}

void sim_print(struct kvc_cli *cli, const struct sim_outcome *outcome)
{
	print_trace(outcome);
	print_head(cli, outcome, "hit rate");
	for (size_t c = 0; c < outcome->capacity_count; c++) {
		print_row_name(&outcome->capacities[c]);
		for (size_t p = 0; p < outcome->policy_count; p++)
			printf(" %10.2f%%", 100 * sim_hit_rate(outcome, sim_point(outcome, c, p)));
		printf("\n");
	}
	print_head(cli, outcome, "recomputed");
	for (size_t c = 0; c < outcome->capacity_count; c++) {
		print_row_name(&outcome->capacities[c]);
		for (size_t p = 0; p < outcome->policy_count; p++)
			printf(" %11" PRIu64, sim_point(outcome, c, p)->recomputed);
		printf("\n");
	}
}

/* ---------------------------------------------------------------- JSON */

static json_t *json_of_point(const struct sim_outcome *outcome, size_t c, size_t p)
{
	const struct sim_capacity *capacity = &outcome->capacities[c];
	const struct sim_counts *counts = sim_point(outcome, c, p);
	const uint64_t pages = outcome->trace->pages;
	char name[CLI_FORMAT_BYTES];
	json_t *point = json_pack(
		"{s:s, s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "policy",
		outcome->policies[p].name, "capacity", sim_capacity_name(capacity, name),
		"capacity_pages", (json_int_t)capacity->pages, "hits", (json_int_t)counts->hits,
		"hit_rate", sim_hit_rate(outcome, counts), "computed",
		(json_int_t)(pages - counts->hits), "recomputed", (json_int_t)counts->recomputed,
		"stored", (json_int_t)counts->stored, "evicted", (json_int_t)counts->evicted,
		"returned", (json_int_t)counts->returned, "most_pages", (json_int_t)counts->most);

	if (point && outcome->page_bytes > 0)
		(void)json_object_set_new(
			point, "capacity_bytes",
			json_integer((json_int_t)(capacity->pages * outcome->page_bytes)));
	return point;
}

json_t *sim_json(const struct sim_outcome *outcome)
{
	const struct sim_trace *trace = outcome->trace;
	json_t *points = json_array();

	for (size_t c = 0; c < outcome->capacity_count; c++)
		for (size_t p = 0; p < outcome->policy_count; p++)
			if (json_array_append_new(points, json_of_point(outcome, c, p)) != 0)
				goto drop_points;
	return json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:o}",
			 "trace", cli_json_text(outcome->path), "form",
			 replay_form_name(trace->form), "requests", (json_int_t)trace->asked,
			 "pages", (json_int_t)trace->pages, "distinct_pages",
			 (json_int_t)trace->distinct, "sessions", (json_int_t)trace->sessions,
			 "side_by_side", (json_int_t)outcome->side_by_side, "batch",
			 (json_int_t)outcome->batch, "seed", (json_int_t)outcome->seed, "exact",
			 outcome->exact, "bad_lines", (json_int_t)outcome->bad_lines, "dropped",
			 (json_int_t)outcome->dropped, "points", points);

drop_points:
	json_decref(points);
	return NULL;
}
