/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of this folder share: a clock, keys of pages, statistics of samples. */
#ifndef KVC_BENCH_COMMON_H
#define KVC_BENCH_COMMON_H

#include <stdint.h>

#define BENCH_KEY_BYTES 64u

double bench_now_s(void);

/* Other numbers, spread over 64 bits, for other numbers. */
uint64_t bench_mix(uint64_t value);
/* 64 hex digits, no NUL. */
void bench_key(uint64_t number, char out[BENCH_KEY_BYTES]);

void bench_sort(double *values, uint32_t count);
/* The value that `part` (0 to 1) of sorted samples do not exceed, interpolated; 0 of none. */
double bench_quantile(const double *sorted, uint32_t count, double part);

#endif
