/* SPDX-License-Identifier: Apache-2.0 */
/* The strict order of objects: the one of the lowest rank first. A rank in the heap may be too low;
 * who takes one looks at what it is now. Not thread-safe. */
#ifndef KVC_CLI_SIMULATE_HEAP_H
#define KVC_CLI_SIMULATE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_ranked {
	uint64_t rank;
	uint32_t slot;
	uint32_t page;
};

struct sim_heap {
	struct sim_ranked *entries;
	size_t count;
	size_t capacity;
};

/* false: out of memory */
bool sim_heap_add(struct sim_heap *heap, struct sim_ranked entry);

/* The first one, which stays; the heap is not empty. */
static inline struct sim_ranked sim_heap_first(const struct sim_heap *heap)
{
	return heap->entries[0];
}

void sim_heap_drop_first(struct sim_heap *heap);

/* A higher rank for the first one, which may be another then. */
void sim_heap_raise_first(struct sim_heap *heap, uint64_t rank);

void sim_heap_free(struct sim_heap *heap);

#endif
