/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the public API over a grid: part size x batch x threads x layout x slots x I/O engine x
 * direct x checksum, operations set, exists, get and mixed, warm and cold. bench_grid --help.
 *
 * All stores are open at the same time and take turns in each repetition, in an order that moves
 * on from one to the next; fio takes its turns among them.
 */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct grid {
	struct grid_options options;
	struct grid_memory memory;
	struct grid_store *stores;
	uint32_t store_count;
	struct grid_fio *fio;
	uint32_t fio_count;
};

static void make_cells(const struct grid_options *options, struct grid_shape *shape)
{
	shape->cells = grid_alloc((size_t)options->states.count * options->ops.count,
				  sizeof(*shape->cells));
	for (uint32_t i = 0; i < options->states.count; i++) {
		/* In the order of enum grid_op: what is read has been written. */
		for (uint32_t op = 0; op < GRID_OP_COUNT; op++) {
			bool wanted = false;

			for (uint32_t k = 0; k < options->ops.count; k++)
				wanted = wanted || options->ops.values[k] == op;
			if (wanted)
				shape->cells[shape->cell_count++] = (struct grid_cell){
					.op = op,
					.state = (enum grid_state)options->states.values[i],
				};
		}
	}
}

static void make_shapes(const struct grid_options *options, struct grid_store *store)
{
	store->shapes = grid_alloc((size_t)options->batches.count * options->threads.count,
				   sizeof(*store->shapes));
	for (uint32_t i = 0; i < options->batches.count; i++) {
		for (uint32_t k = 0; k < options->threads.count; k++) {
			struct grid_shape *shape = &store->shapes[store->shape_count++];

			shape->batch = (uint32_t)options->batches.values[i];
			shape->threads = (uint32_t)options->threads.values[k];
			make_cells(options, shape);
		}
	}
}

/* The value of the next dimension of a mixed-radix number. */
static uint64_t pick(const struct grid_list *list, uint32_t *number)
{
	uint64_t value = list->values[*number % list->count];

	*number /= list->count;
	return value;
}

static void make_stores(struct grid *grid)
{
	const struct grid_options *options = &grid->options;
	uint32_t count = options->part_bytes.count * options->layouts.count * options->slots.count *
			 options->engines.count * options->directs.count * options->checksums.count;

	grid->stores = grid_alloc(count, sizeof(*grid->stores));
	for (uint32_t i = 0; i < count; i++) {
		struct grid_store *store = &grid->stores[grid->store_count];
		uint32_t number = i;

		*store = (struct grid_store){ .options = options, .memory = &grid->memory };
		store->checksum = pick(&options->checksums, &number);
		store->direct = pick(&options->directs, &number) != 0;
		store->engine = pick(&options->engines, &number);
		store->slots = (enum grid_slots)pick(&options->slots, &number);
		store->layout = (enum grid_layout)pick(&options->layouts, &number);
		store->part_bytes = pick(&options->part_bytes, &number);
		/* Files know no slots: one store of them is enough. */
		if (store->layout == GRID_FILES && store->slots != options->slots.values[0])
			continue;
		make_shapes(options, store);
		grid_store_plan(store, grid->store_count);
		grid->store_count++;
	}
}

static void make_fio(struct grid *grid)
{
	const struct grid_options *options = &grid->options;
	uint32_t count = options->part_bytes.count * options->batches.count *
			 options->directs.count * options->fio.count * 2;

	if (options->fio_script == NULL)
		return;
	grid->fio = grid_alloc(count, sizeof(*grid->fio));
	for (uint32_t i = 0; i < count; i++) {
		struct grid_fio *fio = &grid->fio[grid->fio_count++];
		uint32_t number = i;

		*fio = (struct grid_fio){ .options = options, .by_part = number % 2 != 0 };
		number /= 2;
		fio->depth = (uint32_t)pick(&options->fio, &number);
		fio->direct = pick(&options->directs, &number) != 0;
		fio->batch = (uint32_t)pick(&options->batches, &number);
		fio->part_bytes = pick(&options->part_bytes, &number);
		fio->cells[0].op = GRID_SET;
		fio->cells[1].op = GRID_GET;
		/* One file for all of them: fio.sh writes it anew where it is too small. */
		if (snprintf(fio->folder, sizeof(fio->folder), "%s/fio", options->folder) >=
		    (int)sizeof(fio->folder))
			grid_die("--folder: too long");
	}
}

static void map_memory(struct grid *grid)
{
	uint64_t tensor_bytes = 0;

	for (uint32_t i = 0; i < grid->store_count; i++) {
		const struct grid_store *store = &grid->stores[i];
		uint64_t bytes = 2 * store->pages_max * store->part_bytes;

		if (store->left_out[0] == '\0' && bytes > tensor_bytes)
			tensor_bytes = bytes;
	}
	if (tensor_bytes == 0)
		grid_die("nothing is left to measure (--memory)");
	grid_memory_map(&grid->memory, tensor_bytes);
}

static void begin_store(struct grid_store *store)
{
	if (store->left_out[0] == '\0')
		grid_store_begin(store);
	if (store->left_out[0] != '\0')
		fprintf(stderr, "bench_grid: %s, %s, %s, %s, %llu KiB: left out: %s\n",
			grid_layout_names[store->layout], grid_engine_names[store->engine],
			store->direct ? "direct" : "cached", grid_checksum_names[store->checksum],
			(unsigned long long)(store->part_bytes >> 10), store->left_out);
}

static void run_turn(struct grid *grid, uint32_t turn, bool record)
{
	if (turn >= grid->store_count) {
		grid_fio_run(&grid->fio[turn - grid->store_count], record);
		return;
	}
	if (grid->stores[turn].left_out[0] != '\0')
		return;
	for (uint32_t i = 0; i < grid->stores[turn].shape_count; i++)
		grid_shape_run(&grid->stores[turn], &grid->stores[turn].shapes[i], record);
}

/* Repetition -1 is not recorded. The order runs backwards every second time. */
static void run_all(struct grid *grid)
{
	uint32_t count = grid->store_count + grid->fio_count;

	for (int64_t rep = -1; rep < (int64_t)grid->options.reps; rep++) {
		for (uint32_t i = 0; i < count; i++) {
			uint32_t at = (uint32_t)((i + (uint64_t)(rep + 1)) % count);

			run_turn(grid, rep % 2 == 0 ? count - 1 - at : at, rep >= 0);
		}
		fprintf(stderr, "bench_grid: repetition %lld of %u\n", (long long)rep + 1,
			grid->options.reps);
	}
}

/* Returns how many cells had pages that did not end as they must. */
static uint32_t report_all(struct grid *grid)
{
	uint32_t bad = 0;

	grid_report_begin(&grid->options);
	for (uint32_t i = 0; i < grid->store_count; i++) {
		const struct grid_store *store = &grid->stores[i];

		if (store->left_out[0] != '\0')
			continue;
		grid_report_store(store);
		for (uint32_t k = 0; k < store->shape_count; k++)
			for (uint32_t m = 0; m < store->shapes[k].cell_count; m++)
				bad += store->shapes[k].cells[m].not_ok > 0;
	}
	for (uint32_t i = 0; i < grid->fio_count; i++)
		grid_report_fio(&grid->fio[i]);
	return bad;
}

static void free_cells(struct grid_cell *cells, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		grid_series_free(&cells[i].call_s);
		grid_series_free(&cells[i].wall_s);
		grid_series_free(&cells[i].cpu_us);
	}
}

static void free_all(struct grid *grid)
{
	for (uint32_t i = 0; i < grid->store_count; i++) {
		struct grid_store *store = &grid->stores[i];

		for (uint32_t k = 0; k < store->shape_count; k++) {
			free_cells(store->shapes[k].cells, store->shapes[k].cell_count);
			free(store->shapes[k].cells);
		}
		free(store->shapes);
	}
	for (uint32_t i = 0; i < grid->fio_count; i++)
		free_cells(grid->fio[i].cells, 2);
	free(grid->fio);
	free(grid->stores);
	grid_memory_unmap(&grid->memory);
}

int main(int argc, char **argv)
{
	struct grid grid = { 0 };
	uint32_t bad;

	grid_options_parse(&grid.options, argc, argv);
	(void)mkdir(grid.options.folder, 0700);
	make_stores(&grid);
	make_fio(&grid);
	map_memory(&grid);
	for (uint32_t i = 0; i < grid.store_count; i++)
		begin_store(&grid.stores[i]);
	run_all(&grid);
	bad = report_all(&grid);
	fflush(stdout);
	for (uint32_t i = 0; i < grid.store_count; i++)
		grid_store_end(&grid.stores[i]);
	free_all(&grid);
	if (bad > 0)
		fprintf(stderr, "bench_grid: %u cells have pages that are not ok\n", bad);
	return bad > 0 ? 1 : 0;
}
