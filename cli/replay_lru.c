/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_lru.h"

#include "replay_bytes.h"

#include <stdlib.h>

#define NONE UINT32_MAX

struct entry {
	struct replay_page page;
	uint32_t newer;
	uint32_t older;
	uint32_t chain; /* next entry of the same hash chain */
	uint32_t reserved;
};

struct replay_lru {
	struct entry *entries;
	uint32_t *heads; /* of the hash chains */
	uint32_t head_mask;
	uint32_t capacity;
	uint32_t count;
	uint32_t newest;
	uint32_t oldest;
};

struct replay_lru *replay_lru_new(uint64_t capacity)
{
	struct replay_lru *lru = calloc(1, sizeof(*lru));
	uint32_t heads = 16;

	if (lru == NULL)
		return NULL;
	while (heads < capacity)
		heads *= 2;
	lru->entries = calloc(capacity, sizeof(*lru->entries));
	lru->heads = malloc(heads * sizeof(*lru->heads));
	if (lru->entries == NULL || lru->heads == NULL) {
		replay_lru_free(lru);
		return NULL;
	}
	for (uint32_t i = 0; i < heads; i++)
		lru->heads[i] = NONE;
	lru->head_mask = heads - 1;
	lru->capacity = (uint32_t)capacity;
	lru->newest = NONE;
	lru->oldest = NONE;
	return lru;
}

void replay_lru_free(struct replay_lru *lru)
{
	if (lru == NULL)
		return;
	free(lru->heads);
	free(lru->entries);
	free(lru);
}

static uint32_t *head_of(const struct replay_lru *lru, struct replay_page page)
{
	return &lru->heads[replay_page_seed(page, 0) & lru->head_mask];
}

static uint32_t find(const struct replay_lru *lru, struct replay_page page)
{
	uint32_t index = *head_of(lru, page);

	while (index != NONE && (lru->entries[index].page.id != page.id ||
				 lru->entries[index].page.space != page.space))
		index = lru->entries[index].chain;
	return index;
}

static void unlink_entry(struct replay_lru *lru, uint32_t index)
{
	struct entry *entry = &lru->entries[index];

	if (entry->newer != NONE)
		lru->entries[entry->newer].older = entry->older;
	else
		lru->newest = entry->older;
	if (entry->older != NONE)
		lru->entries[entry->older].newer = entry->newer;
	else
		lru->oldest = entry->newer;
}

static void link_newest(struct replay_lru *lru, uint32_t index)
{
	struct entry *entry = &lru->entries[index];

	entry->newer = NONE;
	entry->older = lru->newest;
	if (lru->newest != NONE)
		lru->entries[lru->newest].newer = index;
	else
		lru->oldest = index;
	lru->newest = index;
}

/* Takes the oldest page out; its entry is free. */
static uint32_t evict(struct replay_lru *lru)
{
	uint32_t index = lru->oldest;
	uint32_t *place = head_of(lru, lru->entries[index].page);

	while (*place != index)
		place = &lru->entries[*place].chain;
	*place = lru->entries[index].chain;
	unlink_entry(lru, index);
	return index;
}

static void touch(struct replay_lru *lru, struct replay_page page)
{
	uint32_t index = find(lru, page);
	uint32_t *head;

	if (index != NONE) {
		unlink_entry(lru, index);
		link_newest(lru, index);
		return;
	}
	index = lru->count < lru->capacity ? lru->count++ : evict(lru);
	head = head_of(lru, page);
	lru->entries[index].page = page;
	lru->entries[index].chain = *head;
	*head = index;
	link_newest(lru, index);
}

size_t replay_lru_prefix(const struct replay_lru *lru, const struct replay_page *pages,
			 size_t count)
{
	size_t i = 0;

	while (i < count && find(lru, pages[i]) != NONE)
		i++;
	return i;
}

void replay_lru_touch(struct replay_lru *lru, const struct replay_page *pages, size_t count)
{
	while (count > 0)
		touch(lru, pages[--count]);
}

uint64_t replay_lru_count(const struct replay_lru *lru)
{
	return lru->count;
}
