/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, samples, memory and keys of bench_grid. */
#include "grid.h"

#include <math.h>
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

static double clock_s(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double grid_now_s(void)
{
	return clock_s(CLOCK_MONOTONIC);
}

/* User and system time of all threads, those that io_uring starts for the process included. */
double grid_cpu_s(void)
{
	return clock_s(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t grid_mix(uint64_t value)
{
	value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
	return value ^ value >> 31;
}

void grid_key(uint64_t number, char out[GRID_KEY_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (unsigned i = 0; i < GRID_KEY_BYTES; i += 16) {
		uint64_t word = grid_mix(number * STEP + i);

		for (unsigned k = 0; k < 16; k++)
			out[i + k] = digits[word >> (4 * k) & 15];
	}
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

static int compare_doubles(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

double grid_series_quantile(const struct grid_series *series, double part)
{
	double *sorted, at, below, value;
	uint32_t first, second;

	if (series->count == 0)
		return 0;
	sorted = grid_alloc(series->count, sizeof(*sorted));
	memcpy(sorted, series->values, series->count * sizeof(*sorted));
	qsort(sorted, series->count, sizeof(*sorted), compare_doubles);
	at = part * (double)(series->count - 1);
	below = floor(at);
	first = (uint32_t)below;
	second = first + 1 < series->count ? first + 1 : first;
	value = sorted[first] + (sorted[second] - sorted[first]) * (at - below);
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
		fill_noise(at, tensor_bytes, grid_mix(i + 1));
	}
}

void grid_memory_unmap(struct grid_memory *memory)
{
	for (uint32_t i = 0; i < GRID_PARTS; i++)
		if (memory->tensors[i] != NULL)
			munmap(memory->tensors[i], memory->tensor_bytes);
	*memory = (struct grid_memory){ 0 };
}
