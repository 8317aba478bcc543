/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that bench_grid measures: a crew of threads, each with pages of its own. */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIXED_CALLS  10u
#define EXISTS_CALLS 32u
#define STAMP_BYTES  4096u
#define UNKNOWN_PAGE (UINT64_C(1) << 62) /* numbers of pages that nobody stores */

struct crew;

/* One thread: its pages of the pool, and the keys of the next call. */
struct lane {
	struct crew *crew;
	pthread_t thread;
	uint32_t number;
	const int64_t *sources;
	const int64_t *targets;
	char (*names)[BENCH_KEY_BYTES]; /* batch, and those that mixed sets */
	struct kvc_key *keys;
	struct kvc_result *results;
	struct kvc_key *stop_keys; /* half stored ones, then unknown ones */
	char (*unknown)[BENCH_KEY_BYTES];
	struct kvc_key *unknown_keys;
	double call_s[EXISTS_CALLS];
	double begin_s;
	double end_s;
	uint32_t calls;
	uint64_t not_ok;
	char reason[160];
};

struct crew {
	struct grid_store *store;
	const struct grid_shape *shape;
	struct lane *lanes;
	pthread_barrier_t gate;
	enum grid_op op;
	uint32_t calls; /* of the operation, each */
	uint32_t gets;	/* of a mixed round */
	bool leave;
};

/* ---------------------------------------------------------------- one thread */

static void transfer_run(struct lane *lane, uint32_t op, uint32_t flags, const struct kvc_key *keys,
			 const int64_t *indices, size_t wanted)
{
	struct crew *crew = lane->crew;
	struct kvc_transfer transfer = {
		.size = sizeof(transfer),
		.op = op,
		.flags = flags,
		.pool = crew->store->pool,
		.keys = keys,
		.key_count = crew->shape->batch,
		.indices = indices,
		.results = lane->results,
	};
	const struct kvc_result *first = &lane->results[0];

	if (kvc_batch_run(crew->store->store, &transfer, 1) < 0)
		grid_die("%s: %s", grid_op_names[crew->op], kvc_last_error());
	if (transfer.ok_count == wanted)
		return;
	lane->not_ok += crew->shape->batch;
	for (size_t i = 0; i < crew->shape->batch && first->status == KVC_OK; i++)
		first = &lane->results[i];
	(void)snprintf(lane->reason, sizeof(lane->reason), "%zu of %zu pages ok; %s, %s, %s",
		       transfer.ok_count, wanted, kvc_status_name(first->status),
		       kvc_cause_name(first->cause), strerrordesc_np(first->error));
}

static void lane_call(struct lane *lane, uint32_t number)
{
	const struct crew *crew = lane->crew;
	uint32_t batch = crew->shape->batch;
	uint32_t gets = crew->gets;
	/* Gets are spread evenly over a mixed round. */
	uint32_t gets_before = number * gets / MIXED_CALLS;
	bool get = (number + 1) * gets / MIXED_CALLS > gets_before;
	uint32_t set = number - gets_before;

	switch (crew->op) {
	case GRID_SET:
		transfer_run(lane, KVC_SET, 0, lane->keys, lane->sources, batch);
		break;
	case GRID_GET:
		transfer_run(lane, KVC_GET, 0, lane->keys, lane->targets, batch);
		break;
	case GRID_EXISTS_HIT:
		transfer_run(lane, KVC_EXISTS, 0, lane->keys, NULL, batch);
		break;
	case GRID_EXISTS_MISS:
		transfer_run(lane, KVC_EXISTS, 0, lane->unknown_keys, NULL, 0);
		break;
	case GRID_EXISTS_STOP:
		transfer_run(lane, KVC_EXISTS, KVC_TRANSFER_STOP_AT_MISS, lane->stop_keys, NULL,
			     batch / 2);
		break;
	default:
		if (get)
			transfer_run(lane, KVC_GET, 0, lane->keys, lane->targets, batch);
		else
			transfer_run(lane, KVC_SET, 0, lane->keys + (size_t)(set + 1) * batch,
				     lane->sources, batch);
	}
}

static void lane_run(struct lane *lane)
{
	double before = bench_now_s();

	lane->begin_s = before;
	for (uint32_t i = 0; i < lane->crew->calls; i++) {
		double after;

		lane_call(lane, i);
		after = bench_now_s();
		lane->call_s[i] = after - before;
		before = after;
	}
	lane->end_s = before;
}

static void *lane_main(void *argument)
{
	struct lane *lane = argument;

	for (;;) {
		(void)pthread_barrier_wait(&lane->crew->gate);
		if (lane->crew->leave)
			return NULL;
		lane_run(lane);
		(void)pthread_barrier_wait(&lane->crew->gate);
	}
}

/* ---------------------------------------------------------------- the crew */

static void lane_begin(struct crew *crew, uint32_t number)
{
	struct lane *lane = &crew->lanes[number];
	uint32_t batch = crew->shape->batch;
	size_t keys = (size_t)batch * (1 + MIXED_CALLS - crew->gets);

	lane->crew = crew;
	lane->number = number;
	lane->sources = crew->store->places + (size_t)number * batch;
	lane->targets = lane->sources + crew->store->pages_max;
	lane->names = grid_alloc(keys, sizeof(*lane->names));
	lane->keys = grid_alloc(keys, sizeof(*lane->keys));
	lane->results = grid_alloc(batch, sizeof(*lane->results));
	lane->stop_keys = grid_alloc(batch, sizeof(*lane->stop_keys));
	lane->unknown = grid_alloc(batch, sizeof(*lane->unknown));
	lane->unknown_keys = grid_alloc(batch, sizeof(*lane->unknown_keys));
	for (size_t i = 0; i < keys; i++) {
		bench_key(crew->store->next_page++, lane->names[i]);
		lane->keys[i] = (struct kvc_key){ lane->names[i], BENCH_KEY_BYTES };
	}
	for (uint32_t i = 0; i < batch; i++) {
		bench_key(UNKNOWN_PAGE + crew->store->next_page + i, lane->unknown[i]);
		lane->unknown_keys[i] = (struct kvc_key){ lane->unknown[i], BENCH_KEY_BYTES };
		lane->stop_keys[i] = i < batch / 2 ? lane->keys[i] : lane->unknown_keys[i];
	}
}

static void lane_end(struct lane *lane)
{
	free(lane->unknown_keys);
	free(lane->unknown);
	free(lane->stop_keys);
	free(lane->results);
	free(lane->keys);
	free(lane->names);
}

static void crew_begin(struct crew *crew)
{
	uint32_t threads = crew->shape->threads;

	crew->gets = (crew->store->options->mix * MIXED_CALLS + 50) / 100;
	crew->lanes = grid_alloc(threads, sizeof(*crew->lanes));
	if (pthread_barrier_init(&crew->gate, NULL, threads) != 0)
		grid_die("no barrier for %u threads", threads);
	for (uint32_t i = 0; i < threads; i++) {
		lane_begin(crew, i);
		if (i > 0 &&
		    pthread_create(&crew->lanes[i].thread, NULL, lane_main, &crew->lanes[i]) != 0)
			grid_die("only %u of %u threads can be started", i, threads);
	}
}

static void crew_end(struct crew *crew)
{
	crew->leave = true;
	(void)pthread_barrier_wait(&crew->gate);
	for (uint32_t i = 0; i < crew->shape->threads; i++) {
		if (i > 0)
			(void)pthread_join(crew->lanes[i].thread, NULL);
		lane_end(&crew->lanes[i]);
	}
	(void)pthread_barrier_destroy(&crew->gate);
	free(crew->lanes);
}

static unsigned char *page_at(const struct crew *crew, int64_t page, uint32_t part)
{
	uint64_t bytes = crew->store->part_bytes;

	return crew->store->memory->tensors[part] + (uint64_t)page * bytes;
}

/* Before a set: each block of each source page changes. */
static void change_sources(const struct crew *crew)
{
	uint32_t pages = crew->shape->batch * crew->shape->threads;

	for (uint32_t i = 0; i < pages; i++) {
		for (uint32_t part = 0; part < GRID_PARTS; part++) {
			unsigned char *page = page_at(crew, crew->store->places[i], part);

			for (uint64_t at = 0; at < crew->store->part_bytes; at += STAMP_BYTES) {
				uint64_t word;

				memcpy(&word, page + at, sizeof(word));
				word = word * 3 + i + 1;
				memcpy(page + at, &word, sizeof(word));
			}
		}
	}
}

/* Before a get (clear) and after it (compare): the target pages. */
static void visit_targets(const struct crew *crew, bool compare)
{
	const struct grid_store *store = crew->store;
	uint32_t pages = crew->shape->batch * crew->shape->threads;

	for (uint32_t i = 0; i < pages * GRID_PARTS; i++) {
		uint32_t page = i / GRID_PARTS, part = i % GRID_PARTS;
		unsigned char *target = page_at(crew, store->places[store->pages_max + page], part);

		if (!compare)
			memset(target, 0xaa, store->part_bytes);
		else if (memcmp(target, page_at(crew, store->places[page], part),
				store->part_bytes) != 0)
			grid_die("%s: %s brought wrong bytes of page %u", store->folder,
				 grid_op_names[crew->op], page);
	}
}

static uint32_t calls_of(enum grid_op op, enum grid_state state)
{
	if (op == GRID_MIXED)
		return MIXED_CALLS;
	return op == GRID_SET || op == GRID_GET || state == GRID_COLD ? 1 : EXISTS_CALLS;
}

/* Returns the CPU seconds of the process. */
static double crew_run(struct crew *crew)
{
	double cpu_s = grid_cpu_s();

	(void)pthread_barrier_wait(&crew->gate);
	lane_run(&crew->lanes[0]);
	(void)pthread_barrier_wait(&crew->gate);
	return grid_cpu_s() - cpu_s;
}

static void cell_record(struct crew *crew, struct grid_cell *cell, double cpu_s, bool record)
{
	uint32_t threads = crew->shape->threads;
	uint64_t calls = (uint64_t)threads * crew->calls;
	bool moves = cell->op == GRID_SET || cell->op == GRID_GET || cell->op == GRID_MIXED;
	double begin_s = crew->lanes[0].begin_s, end_s = crew->lanes[0].end_s;

	for (uint32_t i = 0; i < threads; i++) {
		struct lane *lane = &crew->lanes[i];

		begin_s = lane->begin_s < begin_s ? lane->begin_s : begin_s;
		end_s = lane->end_s > end_s ? lane->end_s : end_s;
		if (lane->not_ok > 0)
			memcpy(cell->reason, lane->reason, sizeof(cell->reason));
		cell->not_ok += lane->not_ok;
		lane->not_ok = 0;
		for (uint32_t k = 0; record && cell->op != GRID_MIXED && k < crew->calls; k++)
			grid_series_add(&cell->call_s, lane->call_s[k]);
		if (record && cell->op == GRID_MIXED)
			grid_series_add(&cell->call_s, (lane->end_s - lane->begin_s) / crew->calls);
	}
	if (!record)
		return;
	grid_series_add(&cell->wall_s, (end_s - begin_s) / crew->calls);
	grid_series_add(&cell->cpu_us, cpu_s * 1e6 / (double)(calls * crew->shape->batch) /
					       (moves ? GRID_PARTS : 1));
}

static void cell_run(struct crew *crew, struct grid_cell *cell, bool record)
{
	struct grid_store *store = crew->store;
	uint64_t pages = (uint64_t)crew->shape->batch * crew->shape->threads;
	bool gets = cell->op == GRID_GET || (cell->op == GRID_MIXED && crew->gets > 0);
	double cpu_s;

	crew->op = cell->op;
	crew->calls = calls_of(cell->op, cell->state);
	if (cell->state == GRID_COLD)
		grid_store_reopen(store);
	if (gets)
		visit_targets(crew, false);
	cpu_s = crew_run(crew);
	cell_record(crew, cell, cpu_s, record);
	if (gets && cell->not_ok == 0)
		visit_targets(crew, true);
	if (cell->op == GRID_SET)
		store->written_bytes += pages * grid_store_object_bytes(store);
	if (cell->op == GRID_MIXED)
		store->written_bytes +=
			pages * grid_store_object_bytes(store) * (MIXED_CALLS - crew->gets);
}

/* Whether the cells of this state store the pages themselves: sets come first in a state. */
static bool sets_first(const struct grid_shape *shape, enum grid_state state)
{
	for (uint32_t i = 0; i < shape->cell_count; i++)
		if (shape->cells[i].state == state)
			return shape->cells[i].op == GRID_SET;
	return false;
}

static void state_run(struct grid_store *store, struct grid_shape *shape, enum grid_state state,
		      bool record)
{
	struct crew crew = { .store = store, .shape = shape };
	struct grid_cell unseen = { .op = GRID_SET, .state = GRID_WARM };

	grid_store_make_room(store);
	crew_begin(&crew);
	change_sources(&crew);
	if (!sets_first(shape, state))
		cell_run(&crew, &unseen, false);
	if (unseen.not_ok > 0)
		grid_die("%s: %s", store->folder, unseen.reason);
	for (uint32_t i = 0; i < shape->cell_count; i++) {
		if (shape->cells[i].state != state)
			continue;
		cell_run(&crew, &shape->cells[i], record);
		if (shape->cells[i].op == GRID_SET || shape->cells[i].op == GRID_MIXED)
			grid_store_sync(store);
	}
	crew_end(&crew);
}

void grid_shape_run(struct grid_store *store, struct grid_shape *shape, bool record)
{
	bool states[2] = { false };

	for (uint32_t i = 0; i < shape->cell_count; i++)
		states[shape->cells[i].state] = true;
	for (enum grid_state state = GRID_WARM; state <= GRID_COLD; state++)
		if (states[state])
			state_run(store, shape, state, record);
}
