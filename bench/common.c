/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

double bench_now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

uint64_t bench_mix(uint64_t value)
{
	value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
	return value ^ value >> 31;
}

void bench_key(uint64_t number, char out[BENCH_KEY_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (unsigned i = 0; i < BENCH_KEY_BYTES; i += 16) {
		uint64_t word = bench_mix(number * UINT64_C(0x9e3779b97f4a7c15) + i);

		for (unsigned k = 0; k < 16; k++)
			out[i + k] = digits[word >> (4 * k) & 15];
	}
}

static int compare_doubles(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

void bench_sort(double *values, uint32_t count)
{
	qsort(values, count, sizeof(*values), compare_doubles);
}

double bench_quantile(const double *sorted, uint32_t count, double part)
{
	double at, below;
	uint32_t first, second;

	if (count == 0)
		return 0;
	at = part * (double)(count - 1);
	below = floor(at);
	first = (uint32_t)below;
	second = first + 1 < count ? first + 1 : first;
	return sorted[first] + (sorted[second] - sorted[first]) * (at - below);
}
