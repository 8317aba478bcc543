/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_cache.h"

#include "simulate_heap.h"

#include "core/victim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EVICT_AT_ONCE  8u  /* by a set that finds nothing free, as the packed layout does */
#define REFERENCE_STEP 50u /* pages of HiCacheNixl's cleaner between two looks at the usage */
#define REFERENCE_LOW  70u
#define REFERENCE_HIGH 80u
#define NO_PAGE	       UINT32_MAX

struct sim_cache {
	struct sim_policy policy;
	uint32_t capacity;
	uint32_t batch;
	uint32_t live;
	uint32_t free_count;
	uint64_t reserve;
	uint64_t clock;
	uint64_t new_count;  /* exact: of those never used again */
	uint64_t *stamps;    /* of slots; a free one keeps the one of its past */
	uint32_t *pages;     /* of slots, or NO_PAGE */
	uint64_t *free_bits; /* of slots */
	uint32_t cursor;     /* the word of the last one taken */
	uint32_t *slots;     /* of pages: slot + 1, or 0 */
	uint8_t *seen;	     /* of pages, one bit each: computed before */
	uint32_t *ghosts;
	uint32_t ghost_mask;
	struct sim_heap heaps[2]; /* exact: [1] while those never used again go first */
	struct kvc_victims victims;
	uint32_t hand; /* the slot that is looked at next */
	uint64_t random;
	struct sim_counts counts;
	bool prefix_broken;
	bool out_of_memory;
	uint32_t *request; /* its pages */
	size_t request_capacity;
};

bool sim_policy_of(const char *name, bool exact, struct sim_policy *out)
{
	const struct kvc_order *order = kvc_order_of(name);

	if (strcmp(name, SIM_REFERENCE) == 0)
		*out = (struct sim_policy){ SIM_REFERENCE, &kvc_order_fifo, true, true };
	else if (order)
		*out = (struct sim_policy){ order->name, order, exact, false };
	return order || strcmp(name, SIM_REFERENCE) == 0;
}

struct sim_cache *sim_cache_new(const struct sim_policy *policy, uint32_t capacity, uint32_t span,
				uint32_t batch, uint64_t seed)
{
	struct sim_cache *cache = calloc(1, sizeof(*cache));
	uint32_t ghosts = 16;

	if (!cache)
		return NULL;
	while (ghosts < capacity)
		ghosts *= 2;
	cache->policy = *policy;
	cache->capacity = capacity;
	cache->batch = batch ? batch : UINT32_MAX;
	cache->free_count = capacity;
	cache->reserve = policy->exact ? 0 : kvc_order_reserve(capacity);
	kvc_victims_init(&cache->victims, policy->order);
	cache->random = seed;
	cache->stamps = calloc(capacity, sizeof(*cache->stamps));
	cache->pages = malloc(capacity * sizeof(*cache->pages));
	cache->free_bits = calloc(capacity / 64 + 1, sizeof(*cache->free_bits));
	cache->slots = calloc((size_t)span + 1, sizeof(*cache->slots));
	cache->seen = calloc((size_t)span / 8 + 1, 1);
	cache->ghosts = malloc(ghosts * sizeof(*cache->ghosts));
	if (!cache->stamps || !cache->pages || !cache->free_bits || !cache->slots || !cache->seen ||
	    !cache->ghosts) {
		sim_cache_free(cache);
		return NULL;
	}
	for (uint32_t i = 0; i < capacity; i++) {
		cache->pages[i] = NO_PAGE;
		cache->free_bits[i / 64] |= UINT64_C(1) << i % 64;
	}
	memset(cache->ghosts, 0xff, ghosts * sizeof(*cache->ghosts));
	cache->ghost_mask = ghosts - 1;
	return cache;
}

void sim_cache_free(struct sim_cache *cache)
{
	if (!cache)
		return;
	sim_heap_free(&cache->heaps[0]);
	sim_heap_free(&cache->heaps[1]);
	free(cache->request);
	free(cache->ghosts);
	free(cache->seen);
	free(cache->slots);
	free(cache->free_bits);
	free(cache->pages);
	free(cache->stamps);
	free(cache);
}

bool sim_cache_has(const struct sim_cache *cache, uint32_t page)
{
	return cache->slots[page] != 0;
}

const struct sim_counts *sim_cache_counts(const struct sim_cache *cache)
{
	return &cache->counts;
}

/* SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). */
static uint64_t next_random(struct sim_cache *cache)
{
	uint64_t x = cache->random += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* ---------------------------------------------------------------- those that left lately */

static uint32_t *ghost_of(struct sim_cache *cache, uint32_t page)
{
	return &cache->ghosts[(page * UINT32_C(0x9e3779b1)) >> 7 & cache->ghost_mask];
}

static bool take_ghost(struct sim_cache *cache, uint32_t page)
{
	uint32_t *ghost = ghost_of(cache, page);

	if (*ghost != page)
		return false;
	*ghost = NO_PAGE;
	cache->counts.returned++;
	return true;
}

/* ---------------------------------------------------------------- leaving */

static void let_go(struct sim_cache *cache, uint32_t slot)
{
	const uint32_t page = cache->pages[slot];

	cache->slots[page] = 0;
	cache->pages[slot] = NO_PAGE;
	cache->free_bits[slot / 64] |= UINT64_C(1) << slot % 64;
	cache->free_count++;
	cache->live--;
}

static void evict_slot(struct sim_cache *cache, uint32_t slot)
{
	*ghost_of(cache, cache->pages[slot]) = cache->pages[slot];
	cache->counts.evicted++;
	let_go(cache, slot);
}

/* The next slots that are not free. */
static void look_at_window(struct sim_cache *cache)
{
	uint32_t end;

	if (cache->hand >= cache->capacity)
		cache->hand = 0;
	end = cache->capacity - cache->hand < KVC_VICTIM_LOOKS ? cache->capacity :
								 cache->hand + KVC_VICTIM_LOOKS;
	for (uint32_t slot = cache->hand; slot < end; slot++)
		if (cache->pages[slot] != NO_PAGE)
			kvc_victims_see(&cache->victims, slot, cache->stamps[slot]);
	cache->hand = end;
}

static void look_around(struct sim_cache *cache)
{
	const uint32_t all = (cache->capacity - 1) / KVC_VICTIM_LOOKS + 1;
	bool scattered;
	unsigned windows =
		kvc_victims_windows(&cache->victims, cache->live, cache->clock, &scattered);

	while (windows-- > 0) {
		if (scattered)
			cache->hand = (uint32_t)(next_random(cache) % all) * KVC_VICTIM_LOOKS;
		look_at_window(cache);
	}
}

/* The first one in order of those that were seen. False: none of them is as it was, or it stays. */
static bool evict_first(struct sim_cache *cache)
{
	struct kvc_victim first;

	while (kvc_victims_take(&cache->victims, &first)) {
		const uint32_t slot = (uint32_t)first.object;
		uint64_t stays;

		if (cache->pages[slot] == NO_PAGE || cache->stamps[slot] != first.stamp)
			continue;
		stays = cache->policy.order->spared(first.stamp, cache->clock);
		if (stays == KVC_ORDER_GOES) {
			evict_slot(cache, slot);
			return true;
		}
		cache->stamps[slot] = stays;
		return false;
	}
	return false;
}

/* ---------------------------------------------------------------- strictly in order */

static bool is_new(const struct sim_cache *cache, uint64_t stamp)
{
	return kvc_order_new_ones(cache->policy.order, &stamp, 1);
}

static void line_up(struct sim_cache *cache, uint32_t slot)
{
	const struct kvc_order *order = cache->policy.order;

	for (unsigned new_ones = 0; new_ones <= (order->part > 0); new_ones++) {
		const struct sim_ranked entry = {
			.rank = order->rank(cache->stamps[slot], new_ones),
			.slot = slot,
			.page = cache->pages[slot],
		};

		if (!sim_heap_add(&cache->heaps[new_ones], entry))
			cache->out_of_memory = true;
	}
}

/* Only what is true now. */
static void line_up_anew(struct sim_cache *cache)
{
	cache->heaps[0].count = 0;
	cache->heaps[1].count = 0;
	for (uint32_t slot = 0; slot < cache->capacity; slot++)
		if (cache->pages[slot] != NO_PAGE)
			line_up(cache, slot);
}

/* The first one in order goes, or stays with another stamp. */
static void look_at_first(struct sim_cache *cache)
{
	const struct kvc_order *order = cache->policy.order;
	const bool new_ones = order->part > 0 &&
			      cache->new_count * 100 >= (uint64_t)cache->live * order->part;
	struct sim_heap *heap = &cache->heaps[new_ones];
	const struct sim_ranked first = sim_heap_first(heap);
	const uint64_t stamp = cache->stamps[first.slot];
	const uint64_t rank = order->rank(stamp, new_ones);
	uint64_t stays;

	if (cache->pages[first.slot] == first.page && rank > first.rank) {
		sim_heap_raise_first(heap, rank);
		return;
	}
	sim_heap_drop_first(heap);
	if (cache->pages[first.slot] != first.page || rank != first.rank)
		return;
	stays = order->spared(stamp, cache->clock);
	cache->new_count -= is_new(cache, stamp);
	if (stays == KVC_ORDER_GOES) {
		evict_slot(cache, first.slot);
		return;
	}
	cache->stamps[first.slot] = stays;
	cache->new_count += is_new(cache, stays);
	line_up(cache, first.slot);
}

static void evict_in_order(struct sim_cache *cache, uint32_t count)
{
	const uint64_t until = cache->counts.evicted + count;

	while (cache->counts.evicted < until && cache->live > 0 && !cache->out_of_memory) {
		/* Every page is in the heap once, and those that are not true any more are too. */
		if (cache->heaps[0].count > 4 * (size_t)cache->capacity + 1024 ||
		    cache->heaps[1].count > 4 * (size_t)cache->capacity + 1024)
			line_up_anew(cache);
		look_at_first(cache);
	}
}

/* ---------------------------------------------------------------- room */

static void evict(struct sim_cache *cache, uint32_t count)
{
	if (cache->policy.exact) {
		evict_in_order(cache, count);
		return;
	}
	for (uint32_t ended = 0; ended < count && cache->live > 0;) {
		look_around(cache);
		ended += evict_first(cache);
	}
}

static void evict_as_reference(struct sim_cache *cache)
{
	const uint64_t low = (uint64_t)cache->capacity * REFERENCE_LOW;

	do {
		evict_in_order(cache, REFERENCE_STEP);
	} while (cache->live > 0 && (uint64_t)cache->live * REFERENCE_HIGH >= low);
}

static void make_room(struct sim_cache *cache)
{
	if (cache->free_count > 0)
		return;
	if (cache->policy.reference)
		evict_as_reference(cache);
	else
		evict(cache, cache->policy.exact ? 1 : EVICT_AT_ONCE);
}

/* ---------------------------------------------------------------- coming and being used */

/* The next one from where the last one was, as the packed layout takes slots. */
static uint32_t take_free(struct sim_cache *cache)
{
	const uint32_t words = cache->capacity / 64 + 1;
	uint64_t *word;
	uint32_t bit;

	while (cache->free_bits[cache->cursor] == 0)
		cache->cursor = (cache->cursor + 1) % words;
	word = &cache->free_bits[cache->cursor];
	bit = (uint32_t)__builtin_ctzll(*word);
	*word &= *word - 1;
	cache->free_count--;
	return cache->cursor * 64 + bit;
}

static void store(struct sim_cache *cache, uint32_t page, uint64_t now)
{
	const struct kvc_order *order = cache->policy.order;
	const bool returned = take_ghost(cache, page);
	uint32_t slot;

	make_room(cache);
	if (cache->free_count == 0)
		return;
	slot = take_free(cache);
	cache->pages[slot] = page;
	cache->slots[page] = slot + 1;
	cache->stamps[slot] = order->stored(now, returned);
	cache->counts.stored++;
	cache->live++;
	if (cache->live > cache->counts.most)
		cache->counts.most = cache->live;
	if (cache->policy.exact) {
		cache->new_count += is_new(cache, cache->stamps[slot]);
		line_up(cache, slot);
	}
	if (cache->free_count < cache->reserve / 2)
		evict(cache, (uint32_t)(cache->reserve - cache->free_count));
}

/* False: it is too soon after the last use, or there is nothing to note. */
static bool use(struct sim_cache *cache, uint32_t slot, uint64_t now)
{
	const uint64_t stamp = cache->stamps[slot];

	if (!cache->policy.exact && !kvc_order_is_due(stamp, now, cache->live))
		return false;
	/* Ranks do not get lower by a use: what is in the heaps need not be told. */
	cache->stamps[slot] = cache->policy.order->used(stamp, now);
	return cache->stamps[slot] != stamp;
}

/* The pages before those of a call, until one was used not long ago: none goes before them. */
static void use_chain(struct sim_cache *cache, const uint32_t *pages, uint32_t count)
{
	while (count-- > 0) {
		const uint32_t slot = cache->slots[pages[count]];

		if (slot == 0)
			return;
		cache->clock += KVC_STAMP_STEP;
		if (!use(cache, slot - 1, cache->clock))
			return;
	}
}

/* One call with pages of a request: the first of them is the newest. */
static void play_call(struct sim_cache *cache, const uint32_t *pages, uint32_t count)
{
	uint64_t now = cache->clock + KVC_STAMP_STEP;

	cache->clock += (uint64_t)count * KVC_STAMP_STEP;
	if (!cache->policy.reference)
		now = cache->clock;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t slot = cache->slots[pages[i]];

		if (slot > 0)
			(void)use(cache, slot - 1, now);
		else
			store(cache, pages[i], now);
		now += cache->policy.reference ? KVC_STAMP_STEP : -(uint64_t)KVC_STAMP_STEP;
	}
}

static void play_calls(struct sim_cache *cache, uint32_t first, uint32_t end)
{
	const bool exact = cache->policy.exact;

	while (first < end) {
		const uint32_t count = end - first < cache->batch ? end - first : cache->batch;

		play_call(cache, cache->request + first, count);
		/* Strictly, all uses are noted: once is enough. */
		if (!cache->policy.reference && (!exact || first + count == end))
			use_chain(cache, cache->request, first);
		first += count;
	}
}

/* ---------------------------------------------------------------- requests */

static bool unfold(struct sim_cache *cache, const struct sim_request *request,
		   const struct sim_run *runs)
{
	uint32_t *out;

	if (request->page_count > cache->request_capacity) {
		out = reallocarray(cache->request, request->page_count, sizeof(*out));
		if (!out)
			return false;
		cache->request = out;
		cache->request_capacity = request->page_count;
	}
	out = cache->request;
	for (uint32_t i = 0; i < request->run_count; i++)
		for (uint32_t k = 0; k < runs[i].count; k++)
			*out++ = runs[i].first + k;
	return true;
}

static uint32_t find_prefix(const struct sim_cache *cache, uint32_t count)
{
	uint32_t found = 0;

	while (found < count && cache->slots[cache->request[found]] > 0)
		found++;
	return found;
}

static void count_computed(struct sim_cache *cache, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++) {
		const uint32_t page = cache->request[i];
		const uint8_t bit = (uint8_t)(1u << page % 8);

		cache->counts.recomputed += (cache->seen[page / 8] & bit) != 0;
		cache->seen[page / 8] |= bit;
	}
}

static void play_request(struct sim_cache *cache, const struct sim_request *request)
{
	const uint32_t count = request->page_count;
	uint32_t found = 0;

	/* Asking takes times, too. */
	cache->clock += (uint64_t)count * KVC_STAMP_STEP;
	if (!request->continues || !cache->prefix_broken)
		found = find_prefix(cache, count);
	cache->prefix_broken = found < count;
	cache->counts.hits += found;
	count_computed(cache, found, count);
	play_calls(cache, 0, found);
	play_calls(cache, found, count);
}

static void remove_pages(struct sim_cache *cache, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t slot = cache->slots[cache->request[i]];

		if (slot == 0)
			continue;
		if (cache->policy.exact)
			cache->new_count -= is_new(cache, cache->stamps[slot - 1]);
		let_go(cache, slot - 1);
	}
}

int sim_cache_play(struct sim_cache *cache, const struct sim_request *request,
		   const struct sim_run *runs)
{
	if (!unfold(cache, request, runs))
		return -ENOMEM;
	switch (request->action) {
	case SIM_REQUEST:
		play_request(cache, request);
		break;
	case SIM_REMOVE:
		remove_pages(cache, request->page_count);
		break;
	default:
		play_calls(cache, 0, request->page_count);
		break;
	}
	return cache->out_of_memory ? -ENOMEM : 0;
}
