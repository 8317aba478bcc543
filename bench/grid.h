/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid: speed of the public API over a grid of configurations and calls.
 *
 * A store is one configuration (part size, layout, engine, ...) with a folder of its own; a shape
 * is how it is called (pages per call, threads); a cell is a store, a shape, a state and an
 * operation, with its samples. Everything that goes wrong ends the program with a message.
 */
#ifndef KVC_BENCH_GRID_H
#define KVC_BENCH_GRID_H

#include "common.h"

#include <kvcellar/kvcellar.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRID_PARTS	 2u /* K and V of a page, a tensor each */
#define GRID_LIST_MAX	 16u
#define GRID_LAYER_BYTES 4096u /* of a page's part: parts are multiples of it */

enum grid_op {
	GRID_SET = 0,
	GRID_EXISTS_HIT = 1,
	GRID_EXISTS_MISS = 2,
	GRID_EXISTS_STOP = 3, /* half hits, then misses, with KVC_TRANSFER_STOP_AT_MISS */
	GRID_GET = 4,
	GRID_MIXED = 5, /* several calls, gets and sets by --mix */
	GRID_OP_COUNT = 6,
};

enum grid_state {
	GRID_WARM = 0,
	GRID_COLD = 1, /* the first call after the store was opened */
};

enum grid_layout {
	GRID_FILES = 0,
	GRID_PACKED = 1,
};

enum grid_slots {
	GRID_RECYCLED = 0, /* packed at capacity: each set takes the slot of an older object */
	GRID_FRESH = 1,	   /* what was never written before */
};

/* Values of one option: numbers, or positions in its table of names. */
struct grid_list {
	uint64_t values[GRID_LIST_MAX];
	uint32_t count;
};

struct grid_options {
	const char *folder;
	struct grid_list part_bytes;
	struct grid_list batches;
	struct grid_list threads;
	struct grid_list layouts;
	struct grid_list engines;
	struct grid_list directs;
	struct grid_list checksums;
	struct grid_list slots;
	struct grid_list states;
	struct grid_list ops;
	struct grid_list fio; /* depths; empty without --fio */
	const char *fio_script;
	const char *settings[GRID_LIST_MAX]; /* further KEY=VALUE of the configuration */
	uint32_t setting_count;
	uint32_t reps;
	uint32_t mix; /* percent of gets */
	uint32_t capacity_batches;
	uint64_t memory_bytes;
	uint64_t space_bytes;
	bool register_memory;
	bool json;
	bool keep;
};

extern const char *const grid_engine_names[];
extern const char *const grid_layout_names[];
extern const char *const grid_checksum_names[];
extern const char *const grid_slot_names[];
extern const char *const grid_state_names[];
extern const char *const grid_op_names[];

/* grid_options_parse - from the command line; leaves on an error, and after --help. */
void grid_options_parse(struct grid_options *options, int argc, char **argv);

/* Samples of one measure, in the order they came. */
struct grid_series {
	double *values;
	uint32_t count;
	uint32_t capacity;
};

void grid_series_add(struct grid_series *series, double value);
/* bench_quantile() of them. */
double grid_series_quantile(const struct grid_series *series, double part);
void grid_series_free(struct grid_series *series);

/* The host pool that all stores use in turn: K of all pages, V of all pages. */
struct grid_memory {
	unsigned char *tensors[GRID_PARTS];
	uint64_t tensor_bytes;
};

void grid_memory_map(struct grid_memory *memory, uint64_t tensor_bytes);
void grid_memory_unmap(struct grid_memory *memory);

struct grid_cell {
	enum grid_op op;
	enum grid_state state;
	struct grid_series call_s; /* time of a call, of each thread */
	struct grid_series wall_s; /* all threads together, per call */
	struct grid_series cpu_us; /* of the process, per part; exists: per page */
	uint64_t not_ok;
	char reason[160]; /* of the first page that did not end OK */
};

struct grid_shape {
	uint32_t batch;
	uint32_t threads;
	struct grid_cell *cells;
	uint32_t cell_count;
};

/* One configuration. */
struct grid_store {
	const struct grid_options *options;
	struct grid_memory *memory;
	uint64_t part_bytes;
	enum grid_layout layout;
	enum grid_slots slots;
	bool direct;
	uint64_t engine;   /* in grid_engine_names */
	uint64_t checksum; /* in grid_checksum_names */
	struct grid_shape *shapes;
	uint32_t shape_count;
	uint32_t pages_max; /* of all shapes: batch * threads */
	char folder[4096];
	char left_out[256]; /* why it is not measured, or "" */
	uint64_t next_page;
	uint64_t written_bytes; /* since the folder was made */
	int64_t *places;	/* pages of the pool in random order: sources, then targets */
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct kvc_pool *pool;
	struct kvc_region *regions[GRID_PARTS];
};

/* grid_store_plan - fills in folder, pages_max, places and whether it is left out. */
void grid_store_plan(struct grid_store *store, uint32_t number);
/* Bytes of an object on the disk, about. */
uint64_t grid_store_object_bytes(const struct grid_store *store);
uint64_t grid_store_capacity(const struct grid_store *store);
/* Makes the folder, opens the store, fills a recycled one. A layout, engine or mode that is not to
 * be had sets left_out. */
void grid_store_begin(struct grid_store *store);
void grid_store_reopen(struct grid_store *store);
/* What was written is on the disk before something else is measured. */
void grid_store_sync(const struct grid_store *store);
/* Starts with an empty folder when a fresh store has written --space bytes. */
void grid_store_make_room(struct grid_store *store);
void grid_store_end(struct grid_store *store);

/* grid_shape_run - every cell of a shape once; samples are kept when record is set. */
void grid_shape_run(struct grid_store *store, struct grid_shape *shape, bool record);

/* fio doing the same I/O. */
struct grid_fio {
	const struct grid_options *options;
	uint64_t part_bytes;
	uint32_t batch;
	uint32_t depth;
	bool direct;
	bool by_part; /* an I/O per part; else one per page */
	char folder[4096];
	struct grid_cell cells[2]; /* set, get */
};

void grid_fio_run(struct grid_fio *fio, bool record);

/* Lines of a cell, and what comes before them. */
void grid_report_begin(const struct grid_options *options);
void grid_report_store(const struct grid_store *store);
void grid_report_fio(const struct grid_fio *fio);

double grid_cpu_s(void);
/* Prints "bench_grid: ..." and leaves. */
void grid_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *grid_alloc(size_t count, size_t bytes);

#endif
