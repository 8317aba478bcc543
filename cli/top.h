/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `kvcellar top`: what counters of running processes did between two looks, and how it is shown.
 * Readers: cmd_top.c, top_rates.c, top_view.c.
 */
#ifndef KVC_CLI_TOP_H
#define KVC_CLI_TOP_H

#include "processes.h"

/*
 * What one store of a process did meanwhile.
 * @number      of its stores: those of a pid are told apart by their order
 * @is_new      it was not there before
 * @restarted   its counters began anew
 * @delta       what was counted since; parked_queues, host_registrations and storage_registrations
 *              as they are now
 */
struct top_row {
	int pid;
	unsigned number;
	bool is_new;
	bool restarted;
	struct kvc_stats delta;
};

struct top_rows {
	struct top_row *list;
	size_t count;
	struct kvc_stats total;
};

/* From one look to the next. 0, or -ENOMEM. */
int top_compare(const struct cli_processes *before, const struct cli_processes *now,
		struct top_rows *out);
void top_rows_free(struct top_rows *rows);

/* Of the calls that a histogram counts: microseconds below which that share lies; 0 without any. */
double top_quantile(const struct kvc_operation_stats *operation, double share);
double top_mean_us(const struct kvc_operation_stats *operation);

/* Pages that ended OK, of those that were asked for; -1: none were. */
double top_share_ok(const struct kvc_operation_stats *operation);

/* Leading pages that were there, of those that prefixes were asked for; -1: none were. */
double top_prefix_share(const struct kvc_stats *stats);

/* A cause that says why pages were not served or stored. */
bool top_is_failure(int cause);

/*
 * struct top_sample - what is shown
 * @seconds   between the looks
 * @roots     array of {"path", "state", "stored_bytes", "objects", "capacity_bytes",
 *            "total_bytes", "free_bytes"}; null where it is not known
 */
struct top_sample {
	const struct top_rows *rows;
	double seconds;
	int64_t time_ns;
	const json_t *roots;
};

/* Lines of a view, for a terminal of that size; 0: no limit. redraw: in the place of the last one.
 */
int top_print(struct kvc_cli *cli, const struct top_sample *sample, bool redraw, unsigned rows,
	      unsigned columns);

/* The document of a sample: a new reference. */
json_t *top_json(const struct top_sample *sample);

#endif
