/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups that go next: of each hash folder those of its groups that were first in the order when it
 * was looked at, and of all folders the one that is first of these. A folder that is looked at
 * again replaces what was known of it, and nothing else is touched: what a look costs does not
 * depend on how much is known.
 */
#include "core/cleaner_internal.h"

#include "core/folder.h"

#include <stdlib.h>
#include <string.h>

#define NOTHING UINT64_MAX

/* Whose tenant has more than its share is before all others. */
static uint64_t place_of(const struct kvc_group *group)
{
	return group->rank >> 1 | (group->over ? 0 : UINT64_C(1) << 63);
}

static int later_first(const void *a, const void *b)
{
	const uint64_t x = place_of(*(struct kvc_group *const *)a);
	const uint64_t y = place_of(*(struct kvc_group *const *)b);

	return x > y ? -1 : x < y;
}

static void set_next(struct kvc_pool *pool, uint32_t hash)
{
	const struct kvc_found *found = &pool->found[hash];

	pool->next[hash] = found->count ? place_of(found->groups[found->count - 1]) : NOTHING;
}

void kvc_pool_drop_hash(struct kvc_pool *pool, uint32_t hash)
{
	struct kvc_found *found = &pool->found[hash];

	for (uint32_t i = 0; i < found->count; i++)
		free(found->groups[i]);
	free(found->groups);
	pool->count -= found->count;
	*found = (struct kvc_found){ 0 };
	set_next(pool, hash);
}

void kvc_pool_drop(struct kvc_pool *pool)
{
	for (uint32_t h = 0; h < KVC_HASH_FOLDERS; h++)
		kvc_pool_drop_hash(pool, h);
	pool->credit = 0;
	pool->looked = 0;
}

void kvc_pool_put(struct kvc_pool *pool, uint32_t hash, struct kvc_group **groups, uint32_t count)
{
	kvc_pool_drop_hash(pool, hash);
	if (count == 0) {
		free(groups);
		return;
	}
	qsort(groups, count, sizeof(struct kvc_group *), later_first);
	pool->found[hash] = (struct kvc_found){ .groups = groups, .count = count };
	pool->count += count;
	set_next(pool, hash);
}

static uint32_t first_hash(const struct kvc_pool *pool)
{
	uint32_t first = 0;

	for (uint32_t h = 1; h < KVC_HASH_FOLDERS; h++)
		first = pool->next[h] < pool->next[first] ? h : first;
	return first;
}

const struct kvc_group *kvc_pool_first(const struct kvc_pool *pool)
{
	const struct kvc_found *found = &pool->found[first_hash(pool)];

	return found->count ? found->groups[found->count - 1] : NULL;
}

struct kvc_group *kvc_pool_take(struct kvc_pool *pool)
{
	const uint32_t hash = first_hash(pool);
	struct kvc_found *found = &pool->found[hash];
	struct kvc_group *group;

	if (found->count == 0)
		return NULL;
	group = found->groups[--found->count];
	pool->count--;
	set_next(pool, hash);
	return group;
}

void kvc_pool_put_back(struct kvc_pool *pool, struct kvc_group *group)
{
	const uint32_t hash = kvc_folder_number(group->hash);
	struct kvc_found *found = &pool->found[hash];
	uint32_t at = 0, end = found->count;

	/* There is room: it was here. */
	while (at < end) {
		const uint32_t middle = (at + end) / 2;

		if (later_first(&found->groups[middle], &group) < 0)
			at = middle + 1;
		else
			end = middle;
	}
	memmove(found->groups + at + 1, found->groups + at,
		(found->count - at) * sizeof(struct kvc_group *));
	found->groups[at] = group;
	found->count++;
	pool->count++;
	set_next(pool, hash);
}
