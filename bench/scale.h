/* SPDX-License-Identifier: Apache-2.0 */
/* bench_scale: one packed root, its phases, and what they measured. */
#ifndef KVC_BENCH_SCALE_H
#define KVC_BENCH_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#define SCALE_PAGES 128u /* of a call */
#define SCALE_OPENS 5u
#define SCALE_OPS   5u

struct scale {
	const char *parent;
	char folder[4096];
	uint64_t objects;
	uint32_t calls;
	bool json;
	bool keep;
	bool write_slots;
};

/* In memory that the phases' processes share. */
struct scale_result {
	uint64_t objects;
	uint64_t filled;
	uint64_t live;
	uint64_t index_bytes; /* of hdr.* and table.*: what exists, set and get touch */
	uint64_t names_bytes; /* of names.*: what tools read */
	uint64_t anon_bytes;
	uint64_t file_bytes;
	double fill_s;
	double open_s[SCALE_OPENS];
	double first_s[SCALE_OPENS];
	uint32_t opens;
	double rebuild_s[2];
	uint32_t rebuilds;
	double call_s[SCALE_OPS]; /* medians */
	double p95_s[SCALE_OPS];
};

extern const char *const scale_op_names[SCALE_OPS];

void scale_begin(struct scale *scale, uint64_t objects);
void scale_remove(const struct scale *scale);

/* Phases, each in a process of its own. */
void scale_fill(struct scale *scale, struct scale_result *result);
void scale_open_clean(struct scale *scale, struct scale_result *result);
void scale_rebuild(struct scale *scale, struct scale_result *result);
void scale_calls(struct scale *scale, struct scale_result *result);

/* Between phases. */
void scale_measure_files(const struct scale *scale, struct scale_result *result);
void scale_write_slots(const struct scale *scale);
void scale_change_boot(const struct scale *scale);
void scale_forget_pages(const struct scale *scale);

double scale_median(const double *values, uint32_t count);
double scale_per_object(const struct scale_result *result, uint64_t bytes);
void scale_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
