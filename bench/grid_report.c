/* SPDX-License-Identifier: Apache-2.0 */
/* What bench_grid prints: a table, or one JSON object per line. */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* What is printed of a cell beside its samples. */
struct line {
	const char *who;
	const char *layout;
	const char *slots;
	const char *engine;
	const char *checksum;
	const char *state;
	bool direct;
	bool registered;
	uint64_t part_bytes;
	uint32_t batch;
	uint32_t threads;
	uint32_t depth; /* fio's */
};

static void json_series(const char *name, const struct grid_series *series)
{
	printf(",\"%s\":[", name);
	for (uint32_t i = 0; i < series->count; i++)
		printf("%s%.9g", i > 0 ? "," : "", series->values[i]);
	printf("]");
}

/* Text of ours and of the system's, without control characters. */
static void json_text(const char *name, const char *text)
{
	printf(",\"%s\":\"", name);
	for (; *text != '\0'; text++) {
		if (*text == '"' || *text == '\\')
			putchar('\\');
		if ((unsigned char)*text >= ' ')
			putchar(*text);
	}
	printf("\"");
}

static bool moves_bytes(enum grid_op op)
{
	return op == GRID_SET || op == GRID_GET || op == GRID_MIXED;
}

static double bytes_per_s(const struct line *line, const struct grid_cell *cell)
{
	double wall_s = grid_series_quantile(&cell->wall_s, 0.5);
	double bytes = (double)(line->part_bytes * GRID_PARTS * line->batch) * line->threads;

	return moves_bytes(cell->op) && wall_s > 0 ? bytes / wall_s : 0;
}

static void print_json(const struct line *line, const struct grid_cell *cell)
{
	printf("{\"kind\":\"cell\"");
	json_text("who", line->who);
	json_text("op", grid_op_names[cell->op]);
	json_text("state", line->state);
	json_text("layout", line->layout);
	json_text("slots", line->slots);
	json_text("engine", line->engine);
	json_text("checksum", line->checksum);
	printf(",\"direct\":%s,\"registered\":%s", line->direct ? "true" : "false",
	       line->registered ? "true" : "false");
	printf(",\"part_bytes\":%llu,\"batch\":%u,\"threads\":%u,\"depth\":%u",
	       (unsigned long long)line->part_bytes, line->batch, line->threads, line->depth);
	printf(",\"median_s\":%.9g,\"p95_s\":%.9g,\"bytes_per_s\":%.6g,\"cpu_us\":%.6g",
	       grid_series_quantile(&cell->call_s, 0.5), grid_series_quantile(&cell->call_s, 0.95),
	       bytes_per_s(line, cell), grid_series_quantile(&cell->cpu_us, 0.5));
	printf(",\"not_ok\":%llu", (unsigned long long)cell->not_ok);
	json_text("reason", cell->reason);
	json_series("call_s", &cell->call_s);
	json_series("wall_s", &cell->wall_s);
	json_series("cpu_us_each", &cell->cpu_us);
	printf("}\n");
}

static void print_text(const struct line *line, const struct grid_cell *cell)
{
	double median_s = grid_series_quantile(&cell->call_s, 0.5);
	double p95_s = grid_series_quantile(&cell->call_s, 0.95);
	bool moves = moves_bytes(cell->op);
	char size[24], rate[24] = "";

	if (line->part_bytes >= 1u << 20 && line->part_bytes % (1u << 20) == 0)
		(void)snprintf(size, sizeof(size), "%lluM",
			       (unsigned long long)(line->part_bytes >> 20));
	else
		(void)snprintf(size, sizeof(size), "%lluK",
			       (unsigned long long)(line->part_bytes >> 10));
	if (moves)
		(void)snprintf(rate, sizeof(rate), "%.2f", bytes_per_s(line, cell) / 1e9);
	printf("%-5s %5u %3u  %-8s %-8s %-9s %-6s %-7s %-4s %-11s %9.3f %s %9.3f %s %7s %9.2f",
	       size, line->batch, line->threads, line->layout, line->slots, line->engine,
	       line->direct ? "direct" : "cached", line->checksum, line->state,
	       grid_op_names[cell->op], median_s * (moves ? 1e3 : 1e6), moves ? "ms" : "us",
	       p95_s * (moves ? 1e3 : 1e6), moves ? "ms" : "us", rate,
	       grid_series_quantile(&cell->cpu_us, 0.5));
	if (cell->not_ok > 0)
		printf("  %llu pages not ok: %s", (unsigned long long)cell->not_ok, cell->reason);
	printf("\n");
}

void grid_report_begin(const struct grid_options *options)
{
	struct utsname system = { 0 };
	double load = 0;

	(void)uname(&system);
	(void)getloadavg(&load, 1);
	if (options->json) {
		printf("{\"kind\":\"run\"");
		json_text("version", kvc_version());
		json_text("kernel", system.release);
		printf(",\"cpus\":%ld,\"load\":%.2f,\"reps\":%u,\"mix\":%u}\n",
		       sysconf(_SC_NPROCESSORS_ONLN), load, options->reps, options->mix);
		return;
	}
	printf("kvcellar %s, kernel %s, %ld CPUs, load average %.2f; %u repetitions, %u "
	       "parts per page%s\n",
	       kvc_version(), system.release, sysconf(_SC_NPROCESSORS_ONLN), load, options->reps,
	       GRID_PARTS, options->register_memory ? ", registered memory" : "");
	printf("%-5s %5s %3s  %-8s %-8s %-9s %-6s %-7s %-4s %-11s %12s %12s %7s %9s\n", "part",
	       "batch", "thr", "layout", "slots", "engine", "io", "sum", "", "op", "median", "p95",
	       "GB/s", "CPU us");
}

void grid_report_store(const struct grid_store *store)
{
	struct line line = {
		.who = "kvcellar",
		.layout = grid_layout_names[store->layout],
		.slots = store->layout == GRID_PACKED ? grid_slot_names[store->slots] : "",
		.engine = grid_engine_names[store->engine],
		.checksum = grid_checksum_names[store->checksum],
		.direct = store->direct,
		.registered = store->options->register_memory,
		.part_bytes = store->part_bytes,
	};

	for (uint32_t i = 0; i < store->shape_count; i++) {
		const struct grid_shape *shape = &store->shapes[i];

		line.batch = shape->batch;
		line.threads = shape->threads;
		for (uint32_t k = 0; k < shape->cell_count; k++) {
			line.state = grid_state_names[shape->cells[k].state];
			if (store->options->json)
				print_json(&line, &shape->cells[k]);
			else
				print_text(&line, &shape->cells[k]);
		}
	}
}

void grid_report_fio(const struct grid_fio *fio)
{
	struct line line = {
		.who = "fio",
		.layout = fio->by_part ? "fio/part" : "fio/page",
		.slots = "recycled",
		.engine = "io_uring",
		.checksum = "none",
		.state = "warm",
		.direct = fio->direct,
		.registered = true,
		.part_bytes = fio->part_bytes,
		.batch = fio->batch,
		.threads = 1,
		.depth = fio->depth,
	};

	for (uint32_t i = 0; i < 2; i++) {
		if (fio->options->json)
			print_json(&line, &fio->cells[i]);
		else
			print_text(&line, &fio->cells[i]);
	}
}
