/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/policy.h"

#include "core/log.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Pool i as the caller's version of the struct has it; what makes no sense restores nothing. */
static bool read_pool(const struct kvc_policy_pool *pools, size_t i, struct kvc_policy_pool *out)
{
	const size_t least = offsetof(struct kvc_policy_pool, pages) + sizeof(uint32_t);
	size_t step = pools[0].size;

	if (step < least) {
		(void)kvc_fail(-EINVAL,
			       "policy: pools[0].size = %zu, expected sizeof(struct "
			       "kvc_policy_pool)",
			       step);
		return false;
	}
	memcpy(out, (const char *)pools + i * step, sizeof(*out));
	if (out->policy > KVC_POLICY_BLOCK_GROUPS) {
		(void)kvc_fail(-EINVAL, "policy: pools[%zu].policy = %u is none of enum kvc_policy",
			       i, out->policy);
		return false;
	}
	if (out->pages == 0)
		out->pages = 1;
	return out->present != NULL;
}

static size_t leading_run(const struct kvc_policy_pool *pool, size_t limit)
{
	size_t n = 0;

	while (n < limit && pool->present[n])
		n++;
	return n;
}

/* The longest prefix of at most n pages that one pool can restore. A missing page m rules out
 * every prefix whose window reaches it, so the search goes on at m. */
static size_t longest(const struct kvc_policy_pool *pool, size_t n)
{
	size_t first, i;

	if (pool->policy != KVC_POLICY_TRAILING_PAGES) {
		n = leading_run(pool, n);
		return pool->policy == KVC_POLICY_BLOCK_GROUPS ? n - n % pool->pages : n;
	}
	for (i = n; i > 0; i--) {
		first = n > pool->pages ? n - pool->pages : 0;
		if (i <= first)
			break;
		if (!pool->present[i - 1])
			n = i - 1;
	}
	return n;
}

size_t kvc_policy_prefix(const struct kvc_policy_pool *pools, size_t pool_count, size_t page_count)
{
	size_t n = page_count, before;
	struct kvc_policy_pool pool;

	do {
		before = n;
		for (size_t i = 0; i < pool_count && n > 0; i++)
			n = read_pool(pools, i, &pool) ? longest(&pool, n) : 0;
	} while (n != before);
	return n;
}

/* Clears what one pool cannot restore. */
static void restrict_to(const struct kvc_policy_pool *pool, size_t page_count, uint8_t *out)
{
	size_t run = 0;

	for (size_t n = 1; n <= page_count; n++) {
		bool whole, fits;

		run = pool->present[n - 1] ? run + 1 : 0;
		whole = run == n;
		fits = whole || (pool->policy == KVC_POLICY_TRAILING_PAGES && run >= pool->pages);
		if (pool->policy == KVC_POLICY_BLOCK_GROUPS && n % pool->pages)
			fits = false;
		if (!fits)
			out[n] = 0;
	}
}

size_t kvc_policy_restorable(const struct kvc_policy_pool *pools, size_t pool_count,
			     size_t page_count, uint8_t *out)
{
	struct kvc_policy_pool pool;
	size_t count = 0;

	memset(out, 1, page_count + 1);
	for (size_t i = 0; i < pool_count; i++) {
		if (read_pool(pools, i, &pool))
			restrict_to(&pool, page_count, out);
		else
			memset(out + 1, 0, page_count);
	}
	for (size_t n = 0; n <= page_count; n++)
		count += out[n];
	return count;
}
