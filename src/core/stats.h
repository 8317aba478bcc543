/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The live counters of one store. They lie in a stats page, a file that the process maps, so that
 * `kvcellar stats` can read them while it runs; where no such file can be made, in plain memory.
 * Adding is one relaxed atomic per counter that changes and never fails: counts exactly, whatever
 * threads (or children after fork) do at the same time, but promises no order between counters.
 *
 * docs/on-disk-format.md has the form of the page.
 */
#ifndef KVC_CORE_STATS_H
#define KVC_CORE_STATS_H

#include <kvcellar/kvcellar.h>

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kvc_counters;
struct kvc_text;

/* The counters of struct kvc_stats that belong to no operation, in its order. */
enum kvc_counter {
	KVC_COUNTER_OVERRUNS = 0,
	KVC_COUNTER_RETRIES = 1,
	KVC_COUNTER_BOUNCED = 2,
	KVC_COUNTER_FALLBACKS = 3,
	KVC_COUNTER_RECLAIMED = 4,
	KVC_COUNTER_REMOVED_CORRUPT = 5,
	KVC_COUNTER_PARKED_QUEUES = 6,	       /* goes up and down */
	KVC_COUNTER_HOST_REGISTRATIONS = 7,    /* goes up and down */
	KVC_COUNTER_STORAGE_REGISTRATIONS = 8, /* goes up and down */
	KVC_COUNTER_USAGE_DRIFT = 9,
	KVC_COUNTER_EVICTED = 10,
	KVC_COUNTER_EVICTED_BYTES = 11,
	KVC_COUNTER_GHOST_HITS = 12,
	KVC_COUNTER_PREFIX_CALLS = 13,
	KVC_COUNTER_PREFIX_PAGES_ASKED = 14,
	KVC_COUNTER_PREFIX_PAGES_FOUND = 15,
	KVC_COUNTER_COUNT = 16,
};

/* The struct of version 0.1: not less may be given. */
#define KVC_STATS_BYTES_0_1 (offsetof(struct kvc_stats, usage_drift) + sizeof(uint64_t))

/*
 * kvc_counters_open - counters at 0.
 * @housekeeping   folder in which stats/<pid>-<uuid> is made: "<root>/.kvcellar", or for object
 *                 stores "$XDG_RUNTIME_DIR/kvcellar". It and stats/ are made when missing (its
 *                 parent is not). NULL: plain memory
 * @mode           of the file (0600); folders get an x for each r
 * Pages of dead processes found there are removed. A folder that cannot be written (permission,
 * read-only, full) is no error: the counters lie in memory, and the log says so at debug level.
 * Errors: -ENOMEM.
 */
int kvc_counters_open(const char *housekeeping, mode_t mode, struct kvc_counters **out);

/*
 * kvc_counters_move - counters in memory go on in a page of that folder, while threads may count;
 * where none can be made they stay where they are, as with kvc_counters_open().
 */
void kvc_counters_move(struct kvc_counters *counters, const char *housekeeping, mode_t mode);

/* Removes the page. NULL does nothing. */
void kvc_counters_close(struct kvc_counters *counters);

/* Path of the stats page, or "" when the counters lie in memory. */
const char *kvc_counters_path(const struct kvc_counters *counters);

/*
 * kvc_counters_check - for a housekeeping thread, every few seconds: when somebody cut the page's
 * file, memory takes the place of all of it (the counts are lost).
 */
void kvc_counters_check(struct kvc_counters *counters);

/* One page of operation `op` (enum kvc_operation) ended so; bytes: payload moved, if it ended OK.
 * Values that are no operation, status or cause are not counted. */
void kvc_counters_page(struct kvc_counters *counters, int op, int status, int cause,
		       uint64_t bytes);

/* n pages that ended alike; bytes of them together. */
void kvc_counters_pages(struct kvc_counters *counters, int op, int status, int cause, uint64_t n,
			uint64_t bytes);

/* One batch call of operation `op`, and how long it took. */
void kvc_counters_call(struct kvc_counters *counters, int op, uint64_t latency_us);

/* n may be negative for the counters that go up and down. */
void kvc_counters_add(struct kvc_counters *counters, enum kvc_counter counter, int64_t n);

/* Objects that made room for others, and the space that they had. */
void kvc_counters_evicted(struct kvc_counters *counters, uint64_t objects, uint64_t bytes);

/* One lookup of a prefix: pages asked for, pages in front of the first miss. */
void kvc_counters_prefix(struct kvc_counters *counters, uint64_t asked, uint64_t found);

/*
 * kvc_counters_read - the counters as they are; out->size says how much of the struct the caller
 * has: not less is needed than the struct of version 0.1, and bytes past ours are set to 0.
 * Errors: -EINVAL.
 */
int kvc_counters_read(struct kvc_counters *counters, struct kvc_stats *out);

/*
 * kvc_counters_text - as kvc_stats_text(), with constant labels for the Prometheus form.
 * @labels   `name="value",...` made with kvc_text_label(), or NULL. Unused by text and JSON
 */
int kvc_counters_text(struct kvc_counters *counters, int format, const char *labels, char *buffer,
		      size_t bytes);

/*
 * kvc_stats_add_text - the same into a text that goes on, for example with gauges of roots.
 * kvc_metrics_gauge - one gauge: its HELP and TYPE lines (only with help: several samples of one
 * name follow each other, the first with help, the others with NULL) and a sample.
 * @name     without the prefix "kvcellar_"
 */
int kvc_stats_add_text(const struct kvc_stats *stats, int format, const char *labels,
		       struct kvc_text *text);
void kvc_metrics_gauge(struct kvc_text *text, const char *name, const char *help,
		       const char *labels, uint64_t value);

/*
 * kvc_stats_quantile_us - estimate of the latency below which `percent` of the calls ended, from
 * the histogram: within its bucket, between the bounds by share. 0 without calls.
 */
uint64_t kvc_stats_quantile_us(const struct kvc_operation_stats *operation, unsigned int percent);

/*
 * kvc_metrics_write - replaces the file `path` (mode 0644, for a node exporter's textfile
 * collector) as a whole by way of a temporary file beside it.
 * Errors: of open, write and rename, with the path in kvc_last_error().
 */
int kvc_metrics_write(const char *path, const char *text, size_t bytes);

#endif
