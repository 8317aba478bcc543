/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_heap.h"

#include <stdlib.h>

bool sim_heap_add(struct sim_heap *heap, struct sim_ranked entry)
{
	size_t at = heap->count;

	if (heap->count == heap->capacity) {
		const size_t capacity = 2 * heap->capacity + 1024;
		struct sim_ranked *grown =
			reallocarray(heap->entries, capacity, sizeof(*heap->entries));

		if (!grown)
			return false;
		heap->entries = grown;
		heap->capacity = capacity;
	}
	heap->count++;
	for (; at > 0 && heap->entries[(at - 1) / 2].rank > entry.rank; at = (at - 1) / 2)
		heap->entries[at] = heap->entries[(at - 1) / 2];
	heap->entries[at] = entry;
	return true;
}

/* `entry` takes the place of the first one, or one below it. */
static void sink(struct sim_heap *heap, struct sim_ranked entry)
{
	size_t at = 0;

	for (;;) {
		size_t child = 2 * at + 1;

		if (child >= heap->count)
			break;
		if (child + 1 < heap->count &&
		    heap->entries[child + 1].rank < heap->entries[child].rank)
			child++;
		if (heap->entries[child].rank >= entry.rank)
			break;
		heap->entries[at] = heap->entries[child];
		at = child;
	}
	heap->entries[at] = entry;
}

void sim_heap_drop_first(struct sim_heap *heap)
{
	if (--heap->count > 0)
		sink(heap, heap->entries[heap->count]);
}

void sim_heap_raise_first(struct sim_heap *heap, uint64_t rank)
{
	struct sim_ranked entry = heap->entries[0];

	entry.rank = rank;
	sink(heap, entry);
}

void sim_heap_free(struct sim_heap *heap)
{
	free(heap->entries);
	*heap = (struct sim_heap){ .entries = NULL };
}
