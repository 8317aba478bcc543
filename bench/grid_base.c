/* SPDX-License-Identifier: Apache-2.0 */
/* CPU time, samples and memory of bench_grid. */
#include "grid.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define STEP UINT64_C(0x9e3779b97f4a7c15)

void grid_die(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fputs("bench_grid: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

void *grid_alloc(size_t count, size_t bytes)
{
	void *memory = calloc(count > 0 ? count : 1, bytes);

	if (memory == NULL)
		grid_die("no memory for %zu x %zu bytes", count, bytes);
	return memory;
}

/* User and system time of all threads, those that io_uring starts for the process included. */
double grid_cpu_s(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

void grid_series_add(struct grid_series *series, double value)
{
	if (series->count == series->capacity) {
		uint32_t capacity = series->capacity > 0 ? 2 * series->capacity : 16;
		double *values = realloc(series->values, capacity * sizeof(*values));

		if (values == NULL)
			grid_die("no memory for samples");
		series->values = values;
		series->capacity = capacity;
	}
	series->values[series->count++] = value;
}

double grid_series_quantile(const struct grid_series *series, double part)
{
	double *sorted, value;

	sorted = grid_alloc(series->count, sizeof(*sorted));
	for (uint32_t i = 0; i < series->count; i++)
		sorted[i] = series->values[i];
	bench_sort(sorted, series->count);
	value = bench_quantile(sorted, series->count, part);
	free(sorted);
	return value;
}

void grid_series_free(struct grid_series *series)
{
	free(series->values);
	*series = (struct grid_series){ 0 };
}

/* Noise, so that no block is like another one, and every page is there. */
static void fill_noise(unsigned char *out, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t word = (seed + i) * STEP;

		word ^= word >> 29;
		memcpy(out + i * 8, &word, sizeof(word));
	}
}

void grid_memory_map(struct grid_memory *memory, uint64_t tensor_bytes)
{
	memory->tensor_bytes = tensor_bytes;
	for (uint32_t i = 0; i < GRID_PARTS; i++) {
		void *at = mmap(NULL, tensor_bytes, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at == MAP_FAILED)
			grid_die("no memory for a host pool of %llu MiB",
				 (unsigned long long)(tensor_bytes * GRID_PARTS >> 20));
		memory->tensors[i] = at;
		fill_noise(at, tensor_bytes, bench_mix(i + 1));
	}
}

void grid_memory_unmap(struct grid_memory *memory)
{
	for (uint32_t i = 0; i < GRID_PARTS; i++)
		if (memory->tensors[i] != NULL)
			munmap(memory->tensors[i], memory->tensor_bytes);
	*memory = (struct grid_memory){ 0 };
}
