/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a slot: claimed, written, published, found, ended. docs/packed.md has the protocol;
 * the numbers in the comments are those of its steps.
 *
 * Fields of a header change only while its slot is WRITING, by the one thread that claimed it;
 * every end gives the slot a new generation. So whoever copies the fields, and finds the same LIVE
 * state before and after, has the fields of that state.
 */
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/crc.h"
#include "core/ghost.h"
#include "core/log.h"
#include "core/order.h"
#include "core/queue.h"
#include "core/shape.h"
#include "core/store.h"
#include "core/tenant.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXISTS_AT_ONCE 64u
#define CLAIM_ATTEMPTS 64
#define EVICT_AT_ONCE  8u
#define CALM_NS	       (UINT64_C(100) * 1000000) /* between two searches that found nothing */
#define IN_USE_NS      (UINT64_C(1) * 1000000)	 /* likewise, as all was in use */

static uint64_t page_align(uint64_t bytes)
{
	return kvc_block_align(bytes);
}

struct kvc_packed_hdr_layout kvc_packed_hdr_layout(uint32_t slots)
{
	struct kvc_packed_hdr_layout layout;

	layout.slots = sizeof(struct kvc_packed_hdr);
	layout.stamps = page_align(layout.slots + slots * sizeof(struct kvc_packed_slot));
	layout.bitmap = page_align(layout.stamps + slots * sizeof(uint64_t));
	layout.file_bytes = page_align(layout.bitmap + (slots + 63) / 64 * sizeof(uint64_t));
	return layout;
}

uint32_t kvc_packed_slot_crc(const struct kvc_packed_slot *slot, uint64_t state)
{
	const uint64_t fields[] = {
		kvc_packed_gen(state),
		atomic_load_explicit(&slot->g, memory_order_relaxed),
		atomic_load_explicit(&slot->v, memory_order_relaxed),
		atomic_load_explicit(&slot->checksum, memory_order_relaxed),
		atomic_load_explicit(&slot->parent_g, memory_order_relaxed),
		kvc_packed_len(atomic_load_explicit(&slot->len_crc, memory_order_relaxed)),
		atomic_load_explicit(&slot->created_depth, memory_order_relaxed),
	};

	return kvc_crc32c(fields, sizeof(fields));
}

uint64_t kvc_packed_random(struct kvc_packed *packed)
{
	return kvc_packed_mix(atomic_fetch_add_explicit(
		&packed->random, UINT64_C(0x9e3779b97f4a7c15), memory_order_relaxed));
}

uint64_t kvc_packed_stamps(struct kvc_packed *packed, uint32_t count)
{
	if (packed->read_only)
		return 0;
	return atomic_fetch_add_explicit(&packed->shm->clock, (uint64_t)count * KVC_STAMP_STEP,
					 memory_order_relaxed) +
	       (uint64_t)count * KVC_STAMP_STEP;
}

/* ---------------------------------------------------------------- finding */

/* A live slot whose fields are those of `key`. */
static bool slot_is(struct kvc_packed_segment *segment, uint32_t number,
		    const struct kvc_packed_key *key, struct kvc_packed_place *out)
{
	struct kvc_packed_fields fields;

	if (!kvc_packed_read(&segment->headers[number], &fields) || fields.g != key->g ||
	    fields.v != key->v || kvc_packed_len(fields.len_crc) != key->bytes)
		return false;
	if (out)
		*out = kvc_packed_place_of(segment, number, &fields);
	return true;
}

/* Of an entry; NULL: no such slot. With unseen nothing is mapped for it: it becomes true
 * instead. */
static struct kvc_packed_segment *segment_of(struct kvc_packed_arena *arena, uint64_t entry,
					     bool *unseen)
{
	const uint64_t ref = entry & KVC_PACKED_REF_MASK;

	if (unseen && !kvc_packed_segment_seen(arena, kvc_packed_ref_segment(ref))) {
		*unseen = true;
		return NULL;
	}
	return kvc_packed_segment_of(arena, ref);
}

static bool find_in(struct kvc_packed_arena *arena, const struct kvc_packed_buckets *buckets,
		    const struct kvc_packed_key *key, bool *unseen, struct kvc_packed_place *out)
{
	const uint64_t tag = kvc_packed_tag(key->g, key->v);

	for (unsigned b = 0; b < 2; b++) {
		for (unsigned i = 0; i < KVC_PACKED_BUCKET; i++) {
			const uint64_t entry =
				atomic_load_explicit(&buckets->entries[b][i], memory_order_acquire);
			struct kvc_packed_segment *segment;

			if (entry == 0 || (entry & KVC_PACKED_TAG) != tag)
				continue;
			segment = segment_of(arena, entry, unseen);
			if (segment && slot_is(segment, kvc_packed_ref_slot(entry), key, out))
				return true;
		}
	}
	return false;
}

int kvc_packed_find(struct kvc_packed_arena *arena, const struct kvc_packed_key *key,
		    struct kvc_packed_place *out)
{
	struct kvc_packed_table *table = kvc_packed_table_get(arena);
	struct kvc_packed_buckets buckets;

	if (!table)
		return -ENOENT;
	buckets = kvc_packed_buckets(table, key->g, key->lane);
	return find_in(arena, &buckets, key, NULL, out) ? 0 : -ENOENT;
}

/* The header lines of the candidates in one bucket, so that they come from memory side by side.
 * False: it has none. */
static bool prefetch_slots(struct kvc_packed_arena *arena, _Atomic uint64_t *entries, uint64_t tag,
			   bool *unseen)
{
	bool found = false;

	for (unsigned i = 0; i < KVC_PACKED_BUCKET; i++) {
		const uint64_t entry = atomic_load_explicit(&entries[i], memory_order_relaxed);
		struct kvc_packed_segment *segment;

		if (entry == 0 || (entry & KVC_PACKED_TAG) != tag)
			continue;
		found = true;
		segment = segment_of(arena, entry, unseen);
		if (segment)
			__builtin_prefetch(&segment->headers[kvc_packed_ref_slot(entry)]);
	}
	return found;
}

/* At most EXISTS_AT_ONCE keys; their first buckets, then headers, or second buckets and their
 * headers, then the answers. */
static size_t exists_some(struct kvc_packed_arena *arena, const struct kvc_packed_table *table,
			  const struct kvc_packed_key *keys, size_t count, bool stop,
			  uint8_t *present, bool *unseen)
{
	struct kvc_packed_buckets buckets[EXISTS_AT_ONCE];
	size_t second[EXISTS_AT_ONCE], seconds = 0, leading = 0;

	for (size_t i = 0; i < count; i++) {
		buckets[i] = kvc_packed_buckets(table, keys[i].g, keys[i].lane);
		__builtin_prefetch((void *)buckets[i].entries[0]);
	}
	for (size_t i = 0; i < count; i++) {
		if (prefetch_slots(arena, buckets[i].entries[0],
				   kvc_packed_tag(keys[i].g, keys[i].v), unseen))
			continue;
		__builtin_prefetch((void *)buckets[i].entries[1]);
		second[seconds++] = i;
	}
	for (size_t n = 0; n < seconds; n++)
		(void)prefetch_slots(arena, buckets[second[n]].entries[1],
				     kvc_packed_tag(keys[second[n]].g, keys[second[n]].v), unseen);
	for (size_t i = 0; i < count; i++) {
		present[i] = find_in(arena, &buckets[i], &keys[i], unseen, NULL);
		leading += present[i] && leading == i;
		if (stop && !present[i]) {
			memset(present + i, 0, count - i);
			break;
		}
	}
	return leading;
}

static size_t exists_in(struct kvc_packed_arena *arena, const struct kvc_packed_table *table,
			const struct kvc_packed_key *keys, size_t count, bool stop,
			uint8_t *present, bool *unseen)
{
	size_t leading = 0;

	if (!table) {
		memset(present, 0, count);
		return 0;
	}
	for (size_t at = 0; at < count; at += EXISTS_AT_ONCE) {
		const size_t some = count - at < EXISTS_AT_ONCE ? count - at : EXISTS_AT_ONCE;
		const size_t found =
			exists_some(arena, table, keys + at, some, stop, present + at, unseen);

		leading += leading == at ? found : 0;
		if (stop && found < some) {
			memset(present + at + some, 0, count - at - some);
			break;
		}
	}
	return leading;
}

size_t kvc_packed_exists(struct kvc_packed_arena *arena, const struct kvc_packed_key *keys,
			 size_t count, bool stop, uint8_t *present)
{
	return exists_in(arena, kvc_packed_table_get(arena), keys, count, stop, present, NULL);
}

int kvc_packed_exists_seen(struct kvc_packed_arena *arena, const struct kvc_packed_key *keys,
			   size_t count, bool stop, uint8_t *present)
{
	const uint32_t epoch = atomic_load(&arena->record->epoch);
	struct kvc_packed_table *table = atomic_load_explicit(&arena->table, memory_order_acquire);
	bool unseen = false;

	if (table ? table->epoch != epoch : epoch != 0)
		return -EAGAIN;
	(void)exists_in(arena, table, keys, count, stop, present, &unseen);
	return unseen ? -EAGAIN : 0;
}

bool kvc_packed_is_same(const struct kvc_packed_place *place)
{
	/* The bytes were read before this. */
	kvc_packed_fence(memory_order_seq_cst);
	return atomic_load(&place->segment->headers[kvc_packed_ref_slot(place->ref)].state) ==
	       place->state;
}

/* ---------------------------------------------------------------- use */

/* False: it is too soon after the last use, or there is nothing to note. */
static bool touch(struct kvc_packed_arena *arena, _Atomic uint64_t *at, uint64_t now)
{
	const struct kvc_order *order = arena->packed->root->order;
	const uint64_t live = kvc_packed_hint(&arena->record->live_slots);
	uint64_t old = atomic_load_explicit(at, memory_order_relaxed);
	uint64_t stamp;

	/* A store makes a page dirty, and can wait for its writeback: only when it tells much. */
	if (arena->packed->read_only || !kvc_order_is_due(old >> 1, now, live))
		return false;
	stamp = order->used(old >> 1, now);
	if (stamp == old >> 1)
		return false;
	(void)atomic_compare_exchange_strong_explicit(at, &old,
						      stamp << 1 | (old & KVC_PACKED_SUSPECT),
						      memory_order_relaxed, memory_order_relaxed);
	return true;
}

void kvc_packed_touch(struct kvc_packed_arena *arena, const struct kvc_packed_place *place,
		      uint64_t stamp)
{
	(void)touch(arena, &place->segment->stamps[kvc_packed_ref_slot(place->ref)], stamp);
}

void kvc_packed_each_of_group(struct kvc_packed_arena *arena, uint64_t g, uint32_t lane,
			      kvc_packed_slot_fn fn, void *context)
{
	struct kvc_packed_table *table = kvc_packed_table_get(arena);
	const uint64_t tag = kvc_packed_tag(g, 0) & KVC_PACKED_TAG_GROUP;
	struct kvc_packed_buckets buckets;

	if (!table)
		return;
	buckets = kvc_packed_buckets(table, g, lane);
	for (unsigned i = 0; i < 2 * KVC_PACKED_BUCKET; i++) {
		const uint64_t entry = atomic_load_explicit(
			&buckets.entries[i / KVC_PACKED_BUCKET][i % KVC_PACKED_BUCKET],
			memory_order_acquire);
		struct kvc_packed_segment *segment;
		struct kvc_packed_fields fields;

		if (entry == 0 || (entry & KVC_PACKED_TAG_GROUP) != tag)
			continue;
		segment = kvc_packed_segment_of(arena, entry & KVC_PACKED_REF_MASK);
		if (segment &&
		    kvc_packed_read(&segment->headers[kvc_packed_ref_slot(entry)], &fields) &&
		    fields.g == g)
			fn(context, segment, kvc_packed_ref_slot(entry), &fields);
	}
}

/* A use of a group, and what it found. */
struct use {
	uint64_t now;
	uint64_t parent_g;
	bool found;
	bool due;
};

static void touch_one(void *context, struct kvc_packed_segment *segment, uint32_t number,
		      const struct kvc_packed_fields *fields)
{
	struct use *use = context;

	use->due |= touch(segment->arena, &segment->stamps[number], use->now);
	use->parent_g = fields->parent_g;
	use->found = true;
}

int kvc_packed_touch_group(struct kvc_packed_arena *arena, uint64_t g, uint32_t lane,
			   uint64_t *out_parent_g)
{
	struct use use = { .now = kvc_packed_stamps(arena->packed, 1) };

	kvc_packed_each_of_group(arena, g, lane, touch_one, &use);
	if (!use.found)
		return -ENOENT;
	*out_parent_g = use.parent_g;
	return use.due;
}

bool kvc_packed_is_suspect(const struct kvc_packed_place *place)
{
	return place->stamp & KVC_PACKED_SUSPECT;
}

void kvc_packed_trust(struct kvc_packed_arena *arena, const struct kvc_packed_place *place)
{
	if (!arena->packed->read_only || arena->packed->private_index)
		atomic_fetch_and_explicit(&place->segment->stamps[kvc_packed_ref_slot(place->ref)],
					  ~KVC_PACKED_SUSPECT, memory_order_relaxed);
}

/* ---------------------------------------------------------------- claiming */

/* The next free bit of a segment from word `from` on, taken; the word it lay in. */
static bool take_from(struct kvc_packed_segment *segment, uint32_t from, uint32_t *out_slot)
{
	const uint32_t words = (segment->slots + 63) / 64;

	for (uint32_t w = from; w < words; w++) {
		uint64_t bits = atomic_load_explicit(&segment->bitmap[w], memory_order_relaxed);

		while (bits) {
			const uint32_t bit = (uint32_t)__builtin_ctzll(bits);
			const uint64_t mask = UINT64_C(1) << bit;

			bits = atomic_fetch_and_explicit(&segment->bitmap[w], ~mask,
							 memory_order_acquire);
			if ((bits & mask) && w * 64 + bit < segment->slots) {
				*out_slot = w * 64 + bit;
				return true;
			}
			bits &= ~mask;
		}
	}
	return false;
}

/*
 * A free bit, first in first out as far as it goes: the search goes on where the last one ended,
 * through all segments, so that a slot is used again as late as possible. cursor: segment (32) |
 * word (32); several processes may set it back a little. trust_count: of free slots, which may be
 * too low after a death.
 */
static struct kvc_packed_segment *take_bit(struct kvc_packed_arena *arena, bool trust_count,
					   uint32_t *out_slot)
{
	struct kvc_packed_record *record = arena->record;
	const uint32_t segments = atomic_load_explicit(&record->segments, memory_order_acquire);
	const uint64_t cursor = atomic_load_explicit(&record->cursor, memory_order_relaxed);
	uint32_t number = (uint32_t)(cursor >> 32), word = (uint32_t)cursor;

	if (trust_count && kvc_packed_hint(&record->free_slots) == 0)
		return NULL;
	if (number == 0 || number > segments)
		number = 1, word = 0;
	/* Once around, and the beginning of the first one again. */
	for (uint32_t n = 0; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, number);

		if (kvc_packed_usable(segment) && take_from(segment, word, out_slot)) {
			const uint64_t next = (uint64_t)number << 32 | *out_slot / 64;

			if (next != cursor)
				atomic_store_explicit(&record->cursor, next, memory_order_relaxed);
			return segment;
		}
		number = number < segments ? number + 1 : 1;
		word = 0;
	}
	return NULL;
}

/* 2: the intent first, so that a death from here on is seen. */
static bool claim_slot(struct kvc_packed_arena *arena, struct kvc_packed_segment *segment,
		       uint32_t number, uint32_t intent, struct kvc_packed_place *out)
{
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_slot *slot = &segment->headers[number];
	const uint64_t ref = kvc_packed_ref(segment->number, number);
	uint64_t state = atomic_load(&slot->state);
	uint64_t claimed;

	if (kvc_packed_st(state) != KVC_PACKED_FREE)
		return false; /* the bit was wrong */
	atomic_store(&packed->intents->intents[intent], kvc_packed_intent(arena->index, ref));
	kvc_packed_step(packed, "packed.set.intent");
	claimed = kvc_packed_state(kvc_packed_gen(state) + 1, packed->entry, KVC_PACKED_WRITING);
	if (!atomic_compare_exchange_strong(&slot->state, &state, claimed)) {
		atomic_store(&packed->intents->intents[intent], 0);
		return false;
	}
	atomic_fetch_sub_explicit(&arena->record->free_slots, 1, memory_order_relaxed);
	kvc_packed_step(packed, "packed.set.claimed");
	*out = (struct kvc_packed_place){
		.segment = segment,
		.container = segment->container,
		.offset = (uint64_t)number * arena->slot_bytes,
		.ref = ref,
		.state = claimed,
		.intent = intent,
	};
	/* Whoever retires a segment marks it and then looks at its slots: one sees the other. */
	if (atomic_load(&segment->hdr->retired) != 0 || !kvc_packed_usable(segment)) {
		kvc_packed_abandon(arena, out);
		return false;
	}
	return true;
}

/* What dead processes left, a sweep, a segment of another arena. */
static int search(struct kvc_packed_arena *arena)
{
	if (kvc_packed_recover_dead(arena->packed) > 0 || kvc_packed_sweep(arena) > 0)
		return 0;
	return kvc_packed_steal(arena);
}

/* With its lock: what nobody searched for since. */
static int search_now(struct kvc_packed_arena *arena)
{
	int rc;

	if (kvc_now_ns() < arena->search_after_ns)
		return arena->search_error;
	rc = search(arena);
	if (rc == 0) {
		atomic_fetch_add(&arena->rooms_found, 1);
		return 0;
	}
	arena->search_error = rc;
	arena->search_after_ns = kvc_now_ns() + (rc == -EBUSY	  ? IN_USE_NS :
						 rc == -ETIMEDOUT ? KVC_PACKED_STUCK_NS :
								    CALM_NS);
	return rc;
}

/* Others wait for the one that searches, and try again with what it found. */
static int search_for_all(struct kvc_packed_arena *arena)
{
	const unsigned seen = atomic_load(&arena->rooms_found);
	int rc = 0;

	pthread_mutex_lock(&arena->room_lock);
	if (atomic_load(&arena->rooms_found) == seen)
		rc = search_now(arena);
	pthread_mutex_unlock(&arena->room_lock);
	return rc;
}

/* No bit was found: a new segment, an eviction, or what a search brings, in the order of what they
 * cost. */
static int make_room(struct kvc_packed_arena *arena)
{
	int rc;

	/* Others wait for the one that adds it. */
	if (kvc_now_ns() >= atomic_load_explicit(&arena->grow_after_ns, memory_order_relaxed)) {
		rc = kvc_packed_segment_add(arena);
		if (rc == 0)
			return 0;
		/* Not again soon when another process does not let go of its lock. */
		atomic_store_explicit(&arena->grow_after_ns,
				      kvc_now_ns() +
					      (rc == -ETIMEDOUT ? KVC_PACKED_STUCK_NS : CALM_NS),
				      memory_order_relaxed);
	}
	if (kvc_packed_take_colder(arena))
		return 0;
	if (kvc_packed_evict(arena, EVICT_AT_ONCE) > 0) {
		atomic_store_explicit(&arena->pressed, true, memory_order_relaxed);
		kvc_packed_kick(arena->packed);
		return 0;
	}
	return search_for_all(arena);
}

/* Once, before the first set: it would else store anew what a dead process has published and not
 * made findable. */
static void look_for_dead(struct kvc_packed *packed)
{
	if (!atomic_load_explicit(&packed->looked, memory_order_relaxed) &&
	    !atomic_exchange(&packed->looked, true))
		(void)kvc_packed_recover_dead(packed);
}

/* A tenant that has its share makes room among what it has. */
static int keep_share(struct kvc_packed_arena *arena)
{
	struct kvc_root *root = arena->packed->root;

	if (!root->tenants || kvc_tenant_room(root, arena->ns_hash) >= arena->slot_bytes)
		return 0;
	return kvc_packed_evict_tenant(arena, EVICT_AT_ONCE) > 0 ? 0 : -EDQUOT;
}

int kvc_packed_claim(struct kvc_packed_arena *arena, uint32_t intent, struct kvc_packed_place *out)
{
	int rc = keep_share(arena);

	if (rc)
		return rc;
	look_for_dead(arena->packed);
	for (int attempt = 0; attempt < CLAIM_ATTEMPTS; attempt++) {
		uint32_t number = 0;
		struct kvc_packed_segment *segment = take_bit(arena, attempt == 0, &number);

		if (!segment) {
			rc = make_room(arena);
			if (rc)
				return rc;
			continue;
		}
		if (!claim_slot(arena, segment, number, intent, out))
			continue;
		if (kvc_packed_hint(&arena->record->free_slots) < kvc_packed_reserve(arena) / 2)
			kvc_packed_kick(arena->packed);
		return 0;
	}
	return -ENOSPC;
}

void kvc_packed_abandon(struct kvc_packed_arena *arena, const struct kvc_packed_place *place)
{
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_segment *segment = place->segment;
	const uint32_t number = kvc_packed_ref_slot(place->ref);
	uint64_t state = place->state;

	if (atomic_compare_exchange_strong(&segment->headers[number].state, &state,
					   kvc_packed_freed(state))) {
		(void)kvc_packed_give_bit(segment, number);
		atomic_fetch_add_explicit(&arena->record->free_slots, 1, memory_order_relaxed);
	}
	kvc_packed_step(packed, "packed.set.abandoned");
	atomic_store(&packed->intents->intents[place->intent], 0);
}

/* ---------------------------------------------------------------- publishing */

/* Parts of one size are a run; more runs than there is room for are refused at pool_open. */
static void fill_runs(const struct kvc_shape *shape, struct kvc_packed_name *name)
{
	name->run_count = 0;
	for (uint32_t p = 0; p < shape->part_count; p++) {
		const uint32_t bytes = (uint32_t)shape->parts[p].bytes;
		struct kvc_packed_run *run = &name->runs[name->run_count];

		if (name->run_count > 0 && run[-1].bytes == bytes) {
			run[-1].count++;
		} else if (name->run_count < KVC_PACKED_RUNS) {
			*run = (struct kvc_packed_run){ .count = 1, .bytes = bytes };
			name->run_count++;
		}
	}
}

static void write_name(struct kvc_packed_segment *segment, const struct kvc_packed_place *place,
		       const struct kvc_packed_meta *meta)
{
	struct kvc_packed_name *names = kvc_packed_names(segment);
	struct kvc_packed_name name = {
		.gen = kvc_packed_gen(place->state),
		.pool_fingerprint = meta->pool_fingerprint,
		.name_bytes = (uint16_t)meta->name_bytes,
	};

	if (!names)
		return; /* tools will not know it */
	fill_runs(meta->shape, &name);
	memcpy(name.name, meta->name,
	       meta->name_bytes < KVC_PACKED_NAME_BYTES ? meta->name_bytes : KVC_PACKED_NAME_BYTES);
	name.crc = kvc_crc32c(&name, sizeof(name));
	memcpy(&names[kvc_packed_ref_slot(place->ref)], &name, sizeof(name));
}

static uint64_t stored_stamp(const struct kvc_packed_arena *arena, uint64_t g, uint64_t now)
{
	const struct kvc_root *root = arena->packed->root;

	return root->order->stored(now, root->order->part && kvc_ghost_has(root->ghosts, g));
}

/* 4, 5: header and LIVE. */
static bool go_live(struct kvc_packed_arena *arena, struct kvc_packed_place *place,
		    const struct kvc_packed_meta *meta)
{
	const struct kvc_packed_key *key = meta->key;
	const uint32_t number = kvc_packed_ref_slot(place->ref);
	struct kvc_packed_slot *slot = &place->segment->headers[number];
	const uint32_t flags = meta->checksum_kind | key->lane << KVC_PACKED_LANE_SHIFT;
	const uint32_t depth = meta->depth < UINT16_MAX ? meta->depth : UINT16_MAX;
	const uint64_t created = (uint64_t)kvc_wall_ns() / 1000000000u;
	const uint64_t live = kvc_packed_state(kvc_packed_gen(place->state), 0, KVC_PACKED_LIVE);
	uint64_t state = place->state;

	/* Who sees one of these fields sees that the state is another. */
	kvc_packed_fence(memory_order_release);
	atomic_store_explicit(&slot->g, key->g, memory_order_relaxed);
	atomic_store_explicit(&slot->v, key->v, memory_order_relaxed);
	atomic_store_explicit(&slot->checksum, meta->checksum, memory_order_relaxed);
	atomic_store_explicit(&slot->parent_g, meta->parent_g, memory_order_relaxed);
	atomic_store_explicit(&slot->len_crc, key->bytes, memory_order_relaxed);
	atomic_store_explicit(&slot->created_depth,
			      (created & UINT32_MAX) | (uint64_t)depth << 32 |
				      (uint64_t)flags << 48,
			      memory_order_relaxed);
	atomic_store_explicit(&slot->len_crc,
			      key->bytes | (uint64_t)kvc_packed_slot_crc(slot, live) << 32,
			      memory_order_relaxed);
	atomic_store_explicit(&place->segment->stamps[number],
			      stored_stamp(arena, key->g, meta->stamp) << 1, memory_order_relaxed);
	kvc_packed_step(arena->packed, "packed.set.filled");
	if (!atomic_compare_exchange_strong(&slot->state, &state, live))
		return false;
	place->state = live;
	return true;
}

/* What has to be on stable storage before the object may be relied on. */
static void sync_header(struct kvc_packed_arena *arena, const struct kvc_packed_place *place)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const uintptr_t at = (uintptr_t)&place->segment->headers[kvc_packed_ref_slot(place->ref)];

	if (arena->packed->root->store->settings->durability == KVC_DURABILITY_FDATASYNC)
		(void)msync((void *)(at & ~(page - 1)), page, MS_SYNC);
}

int kvc_packed_publish(struct kvc_packed_arena *arena, struct kvc_packed_place *place,
		       const struct kvc_packed_meta *meta)
{
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_segment *segment = place->segment;
	struct kvc_packed_record *record = arena->record;
	struct kvc_packed_place former;
	const bool replaces = meta->overwrite && kvc_packed_find(arena, meta->key, &former) == 0;
	const uint32_t lane = 1u << meta->key->lane % KVC_PACKED_LANES;
	int rc;

	if (!(atomic_load_explicit(&record->lanes, memory_order_relaxed) & lane))
		atomic_fetch_or(&record->lanes, lane);
	write_name(segment, place, meta);
	if (!go_live(arena, place, meta)) {
		atomic_store(&packed->intents->intents[place->intent], 0);
		return -EIO; /* somebody took us for dead */
	}
	sync_header(arena, place);
	kvc_packed_step(packed, "packed.set.live");
	atomic_fetch_add_explicit(&record->live_slots, 1, memory_order_relaxed);
	/* The former goes before ours can be found: of two live ones nobody could tell later
	 * which is the newer. Who dies in between leaves ours in its intents. Its slot may be
	 * another's by now, with the same object in it: its entry is not ours to take. */
	if (replaces) {
		(void)kvc_packed_slot_end(former.segment, kvc_packed_ref_slot(former.ref),
					  former.state);
		sync_header(arena, &former);
		kvc_packed_step(packed, "packed.set.replaced");
	}
	rc = kvc_packed_table_insert(arena, meta->key, place->ref);
	if (rc)
		(void)kvc_packed_slot_end(segment, kvc_packed_ref_slot(place->ref), place->state);
	kvc_packed_step(packed, "packed.set.settled");
	atomic_store(&packed->intents->intents[place->intent], 0);
	return rc;
}

/* ---------------------------------------------------------------- ending */

void kvc_packed_slot_settle(struct kvc_packed_segment *segment, uint32_t number, uint64_t state)
{
	struct kvc_packed_fields fields;
	struct kvc_packed_key key;

	if (!kvc_packed_read(&segment->headers[number], &fields) || fields.state != state)
		return;
	key = kvc_packed_key_of(&fields);
	if (kvc_packed_table_insert(segment->arena, &key, kvc_packed_ref(segment->number, number)))
		(void)kvc_packed_slot_end(segment, number, state);
}

bool kvc_packed_slot_end(struct kvc_packed_segment *segment, uint32_t number, uint64_t state)
{
	struct kvc_packed_arena *arena = segment->arena;
	struct kvc_packed_slot *slot = &segment->headers[number];
	struct kvc_packed_fields fields;
	struct kvc_packed_key key;
	uint64_t now;

	if (!kvc_packed_read(slot, &fields) || fields.state != state ||
	    !atomic_compare_exchange_strong(&slot->state, &state, kvc_packed_freed(state)))
		return false;
	key = kvc_packed_key_of(&fields);
	kvc_packed_step(arena->packed, "packed.end.freed");
	kvc_packed_table_remove(arena, &key, kvc_packed_ref(segment->number, number));
	kvc_packed_step(arena->packed, "packed.end.removed");
	/* A sweep may have given the slot out meanwhile, and a set may have put the same object
	 * there: its entry looks as the one that was taken out. */
	now = atomic_load(&slot->state);
	if (__builtin_expect(kvc_packed_st(now) == KVC_PACKED_LIVE, 0))
		kvc_packed_slot_settle(segment, number, now);
	atomic_fetch_sub_explicit(&arena->record->live_slots, 1, memory_order_relaxed);
	(void)kvc_packed_give_bit(segment, number);
	atomic_fetch_add_explicit(&arena->record->free_slots, 1, memory_order_relaxed);
	return true;
}

bool kvc_packed_remove(struct kvc_packed_arena *arena, const struct kvc_packed_place *place)
{
	if (arena->packed->read_only)
		return false;
	return kvc_packed_slot_end(place->segment, kvc_packed_ref_slot(place->ref), place->state);
}
