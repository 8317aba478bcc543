/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash table of an arena. It is a hint: an entry tells where to look, and only the slot's own
 * header says what is there. An entry that points to a slot of another object is stale; it may be
 * overwritten by anybody. An object that has no entry is a miss and will be evicted one day.
 */
#include "core/packed_internal.h"

#include "core/log.h"
#include "core/stats.h"
#include "core/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES	   (2 * KVC_PACKED_BUCKET)
#define FEW_EMPTY  2u
#define MAKE_AHEAD 32u

static const struct kvc_mapfile_kind table_kind = {
	.magic = { 'K', 'V', 'C', 'P', 'K', 'T', '\r', '\n' },
	.major = 1,
	.header_bytes = 128,
};

static _Atomic uint64_t *entry_at(const struct kvc_packed_buckets *buckets, unsigned i)
{
	return &buckets->entries[i / KVC_PACKED_BUCKET][i % KVC_PACKED_BUCKET];
}

/* ---------------------------------------------------------------- mapping */

static int table_map(struct kvc_packed_arena *arena, uint32_t epoch, struct kvc_packed_table **out)
{
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_table *table = calloc(1, sizeof(*table));
	struct kvc_packed_table_header header;
	char path[256];
	int rc;

	if (!table)
		return -ENOMEM;
	kvc_packed_arena_path(arena, "table", epoch, path);
	rc = kvc_packed_map_open(packed->dir, path, &table_kind, (uint8_t *)&header,
				 packed->read_only ? KVC_PACKED_MAP_READ_ONLY : 0, &table->broken,
				 &table->map);
	if (rc) {
		free(table);
		return rc;
	}
	kvc_packed_map_close_fd(&table->map);
	table->bucket_count = header.bucket_count;
	table->epoch = epoch;
	table->entries = (_Atomic uint64_t *)((char *)table->map.memory +
					      sizeof(struct kvc_packed_table_header));
	if (memcmp(header.uuid, packed->shm->uuid, sizeof(header.uuid)) != 0 ||
	    table->map.bytes < sizeof(struct kvc_packed_table_header) || header.bucket_count == 0 ||
	    header.bucket_count % KVC_PACKED_PAGE_BUCKETS ||
	    header.bucket_count > (table->map.bytes - sizeof(struct kvc_packed_table_header)) /
					  (KVC_PACKED_BUCKET * sizeof(uint64_t))) {
		kvc_packed_map_close(&table->map);
		free(table);
		return -EBADMSG;
	}
	*out = table;
	return 0;
}

static struct kvc_packed_table *table_remap(struct kvc_packed_arena *arena)
{
	struct kvc_packed_table *table;

	pthread_mutex_lock(&arena->lock);
	for (int attempt = 0; attempt < 8; attempt++) {
		const uint32_t epoch = atomic_load(&arena->record->epoch);
		struct kvc_packed_table *fresh;
		int rc;

		table = atomic_load_explicit(&arena->table, memory_order_acquire);
		if (epoch & KVC_PACKED_NO_TABLE) {
			atomic_store_explicit(&arena->table, NULL, memory_order_release);
			if (table)
				kvc_packed_table_drop(arena, table);
			table = NULL;
			break;
		}
		if (epoch == 0 || (table && table->epoch == epoch))
			break;
		rc = table_map(arena, epoch, &fresh);
		if (rc == -ENOENT && atomic_load(&arena->record->epoch) != epoch)
			continue; /* replaced meanwhile */
		if (rc)
			break; /* what is mapped still serves */
		atomic_store_explicit(&arena->table, fresh, memory_order_release);
		if (table)
			kvc_packed_table_drop(arena, table);
		table = fresh;
	}
	pthread_mutex_unlock(&arena->lock);
	return table;
}

int kvc_packed_table_check(struct kvc_packed_arena *arena)
{
	const uint32_t epoch = atomic_load(&arena->record->epoch);
	struct kvc_packed_table *table;
	int rc;

	if (epoch == 0 || (epoch & KVC_PACKED_NO_TABLE) || kvc_packed_table_get(arena))
		return 0;
	rc = table_map(arena, epoch, &table);
	if (rc == 0)
		kvc_packed_table_free(table);
	return rc;
}

struct kvc_packed_table *kvc_packed_table_get(struct kvc_packed_arena *arena)
{
	struct kvc_packed_table *table = atomic_load_explicit(&arena->table, memory_order_acquire);

	if (__builtin_expect(table != NULL, 1) &&
	    table->epoch == atomic_load(&arena->record->epoch))
		return table;
	return table_remap(arena);
}

/* ---------------------------------------------------------------- entries */

/* What an entry points to. */
enum entry_kind {
	ENTRY_STALE,
	ENTRY_OTHER, /* a live object, another one */
	ENTRY_SAME,  /* live, with this g and v */
};

struct entry_look {
	struct kvc_packed_segment *segment;
	uint32_t slot;
	uint64_t state;
};

static enum entry_kind look_at(struct kvc_packed_arena *arena, uint64_t entry, uint64_t g,
			       uint64_t v, struct entry_look *out)
{
	struct kvc_packed_segment *segment =
		kvc_packed_segment_of(arena, entry & KVC_PACKED_REF_MASK);
	struct kvc_packed_fields fields;

	if (!segment)
		return ENTRY_STALE;
	out->segment = segment;
	out->slot = kvc_packed_ref_slot(entry);
	if (!kvc_packed_read(&segment->headers[out->slot], &fields) ||
	    kvc_packed_tag(fields.g, fields.v) != (entry & KVC_PACKED_TAG))
		return ENTRY_STALE;
	out->state = fields.state;
	return fields.g == g && fields.v == v ? ENTRY_SAME : ENTRY_OTHER;
}

static bool is_in(const struct kvc_packed_buckets *buckets, uint64_t entry)
{
	for (unsigned i = 0; i < ENTRIES; i++)
		if (atomic_load_explicit(entry_at(buckets, i), memory_order_relaxed) == entry)
			return true;
	return false;
}

/* Into the first bucket, when it gets full into the emptier of the two, or over a stale entry.
 * False: both are full. */
static bool place(struct kvc_packed_arena *arena, const struct kvc_packed_buckets *buckets,
		  uint64_t entry)
{
	struct entry_look look;
	unsigned empty[2] = { 0, 0 };
	unsigned first;

	for (unsigned i = 0; i < ENTRIES; i++)
		empty[i / KVC_PACKED_BUCKET] +=
			atomic_load_explicit(entry_at(buckets, i), memory_order_relaxed) == 0;
	/* Most lie in the first then, and are found there; two choices only where it is getting
	 * full. */
	first = empty[0] <= FEW_EMPTY && empty[1] > empty[0] ? KVC_PACKED_BUCKET : 0;
	for (unsigned n = 0; n < ENTRIES; n++) {
		_Atomic uint64_t *at = entry_at(buckets, (first + n) % ENTRIES);
		uint64_t none = 0;

		if (atomic_load_explicit(at, memory_order_relaxed) == 0 &&
		    atomic_compare_exchange_strong(at, &none, entry))
			return true;
	}
	for (unsigned i = 0; i < ENTRIES; i++) {
		_Atomic uint64_t *at = entry_at(buckets, i);
		uint64_t seen = atomic_load_explicit(at, memory_order_relaxed);

		if (look_at(arena, seen, 0, 0, &look) == ENTRY_STALE &&
		    atomic_compare_exchange_strong(at, &seen, entry))
			return true;
	}
	return false;
}

/* Ends the object of the two buckets that was not used for the longest time, and its group. */
static void evict_from(struct kvc_packed_arena *arena, const struct kvc_packed_buckets *buckets)
{
	struct entry_look look, oldest = { .segment = NULL };
	uint64_t oldest_stamp = UINT64_MAX, g;
	uint32_t ended;

	for (unsigned i = 0; i < ENTRIES; i++) {
		const uint64_t entry =
			atomic_load_explicit(entry_at(buckets, i), memory_order_relaxed);
		uint64_t stamp;

		if (look_at(arena, entry, 0, 0, &look) == ENTRY_STALE)
			continue;
		stamp = atomic_load_explicit(&look.segment->stamps[look.slot],
					     memory_order_relaxed);
		if (stamp < oldest_stamp) {
			oldest_stamp = stamp;
			oldest = look;
		}
	}
	if (!oldest.segment)
		return;
	g = atomic_load_explicit(&oldest.segment->headers[oldest.slot].g, memory_order_relaxed);
	if (!kvc_packed_slot_end(oldest.segment, oldest.slot, oldest.state))
		return;
	ended = 1 + kvc_packed_evict_group(arena, g);
	kvc_packed_count_evicted(arena, ended);
}

/* Whether the other of two live objects of a name stays. Processes side by side can agree on the
 * smaller reference only; who is alone, after a reboot, keeps the one that was used last. */
static bool stays(struct kvc_packed_arena *arena, const struct entry_look *other, uint64_t ref)
{
	const uint64_t other_ref = kvc_packed_ref(other->segment->number, other->slot);
	struct kvc_packed_segment *segment =
		arena->packed->rebuilding ? kvc_packed_segment_of(arena, ref) : NULL;
	uint64_t ours, theirs;

	if (!segment)
		return other_ref < ref;
	ours = atomic_load_explicit(&segment->stamps[kvc_packed_ref_slot(ref)],
				    memory_order_relaxed);
	theirs = atomic_load_explicit(&other->segment->stamps[other->slot], memory_order_relaxed);
	return theirs != ours ? theirs > ours : other_ref < ref;
}

/* Of two live objects of one name that with the smaller reference stays, in every process. 1: ours
 * goes. */
static int settle(struct kvc_packed_arena *arena, const struct kvc_packed_buckets *buckets,
		  const struct kvc_packed_key *key, uint64_t ref)
{
	struct entry_look look;

	for (unsigned i = 0; i < ENTRIES; i++) {
		const uint64_t entry = atomic_load(entry_at(buckets, i));
		const uint64_t other = entry & KVC_PACKED_REF_MASK;

		if (entry == 0 || other == ref ||
		    (entry & KVC_PACKED_TAG) != kvc_packed_tag(key->g, key->v) ||
		    look_at(arena, entry, key->g, key->v, &look) != ENTRY_SAME)
			continue;
		if (stays(arena, &look, ref))
			return 1;
		(void)kvc_packed_slot_end(look.segment, look.slot, look.state);
	}
	return 0;
}

int kvc_packed_table_insert(struct kvc_packed_arena *arena, const struct kvc_packed_key *key,
			    uint64_t ref)
{
	const uint64_t entry = kvc_packed_tag(key->g, key->v) | ref;

	for (;;) {
		struct kvc_packed_table *table = kvc_packed_table_get(arena);
		struct kvc_packed_buckets buckets;

		if (!table)
			return -EIO;
		buckets = kvc_packed_buckets(table, key->g, key->lane);
		for (int attempt = 0; !is_in(&buckets, entry) && !place(arena, &buckets, entry);
		     attempt++) {
			if (attempt == 64)
				return -EIO;
			evict_from(arena, &buckets);
		}
		kvc_packed_step(arena->packed, "packed.set.inserted");
		/* Whoever makes a new table looks at all headers once more after it is in force:
		 * either it saw this object or this sees the new table. One that cannot be mapped
		 * here, or whose epoch was lost with a page of root.shm, is not waited for. */
		if (kvc_packed_table_get(arena) == table)
			return settle(arena, &buckets, key, ref);
	}
}

void kvc_packed_table_remove(struct kvc_packed_arena *arena, const struct kvc_packed_key *key,
			     uint64_t ref)
{
	struct kvc_packed_table *table = kvc_packed_table_get(arena);
	struct kvc_packed_buckets buckets;

	if (!table)
		return;
	buckets = kvc_packed_buckets(table, key->g, key->lane);
	for (unsigned i = 0; i < ENTRIES; i++) {
		uint64_t seen = kvc_packed_tag(key->g, key->v) | ref;

		(void)atomic_compare_exchange_strong(entry_at(&buckets, i), &seen, 0);
	}
}

/* ---------------------------------------------------------------- making one */

struct pending {
	struct kvc_packed_segment *segment;
	struct kvc_packed_buckets buckets;
	struct kvc_packed_key key;
	uint64_t entry;
	uint64_t state;
};

/* Live slots on their way into a table: their buckets are fetched from memory meanwhile. */
struct maker {
	struct kvc_packed_arena *arena;
	struct kvc_packed_table *table;
	bool look; /* some may be in it already */
	unsigned count;
	struct pending ahead[MAKE_AHEAD];
};

static void maker_flush(struct maker *maker)
{
	for (unsigned i = 0; i < maker->count; i++) {
		const struct pending *pending = &maker->ahead[i];
		const uint64_t ref = pending->entry & KVC_PACKED_REF_MASK;

		if (maker->look && is_in(&pending->buckets, pending->entry))
			continue;
		/* Its publisher died before it settled which of two of a name stays, or settled
		 * it in the table before. As there the entry comes first: of two that are looked
		 * for at the same time one sees the other. */
		if (!place(maker->arena, &pending->buckets, pending->entry) ||
		    settle(maker->arena, &pending->buckets, &pending->key, ref) != 0)
			(void)kvc_packed_slot_end(pending->segment, kvc_packed_ref_slot(ref),
						  pending->state);
	}
	maker->count = 0;
}

static void maker_add(struct maker *maker, struct kvc_packed_segment *segment, uint32_t number)
{
	struct pending *pending = &maker->ahead[maker->count];
	struct kvc_packed_fields fields;

	/* Who changes it just now looks after its entry. */
	if (!kvc_packed_read(&segment->headers[number], &fields))
		return;
	pending->segment = segment;
	pending->key = kvc_packed_key_of(&fields);
	pending->buckets = kvc_packed_buckets(maker->table, pending->key.g, pending->key.lane);
	pending->entry = kvc_packed_tag(pending->key.g, pending->key.v) |
			 kvc_packed_ref(segment->number, number);
	pending->state = fields.state;
	__builtin_prefetch((void *)pending->buckets.entries[0], 1);
	__builtin_prefetch((void *)pending->buckets.entries[1], 1);
	if (++maker->count == MAKE_AHEAD)
		maker_flush(maker);
}

static int make_from_headers(struct kvc_packed_arena *arena, struct kvc_packed_table *table,
			     bool look)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	struct maker maker = { .arena = arena, .table = table, .look = look };

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		/* Without descriptors or memory: its objects would be lost to everybody. */
		if (!segment && !kvc_packed_segment_is_gone(arena, n))
			return -EMFILE;
		for (uint32_t s = 0; segment && s < segment->slots; s++)
			maker_add(&maker, segment, s);
	}
	maker_flush(&maker);
	return 0;
}

static int table_create(struct kvc_packed_arena *arena, uint32_t epoch, uint64_t bucket_count)
{
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_table_header header = {
		.ns_hash = arena->ns_hash,
		.slot_bytes = arena->slot_bytes,
		.bucket_count = bucket_count,
		.epoch = epoch,
	};
	struct kvc_mapfile_kind kind = table_kind;
	char path[256];

	memcpy(header.uuid, packed->shm->uuid, sizeof(header.uuid));
	kind.file_bytes = sizeof(header) + bucket_count * KVC_PACKED_BUCKET * sizeof(uint64_t);
	/* One that was begun and never came into force. */
	kvc_packed_arena_remove(arena, "table", epoch);
	kvc_packed_arena_path(arena, "table", epoch, path);
	return kvc_packed_map_create(packed->dir, path, &kind, (uint8_t *)&header);
}

/* One that no file has. */
static int table_own(uint32_t epoch, uint64_t bucket_count, struct kvc_packed_table **out)
{
	const size_t bucket_bytes = KVC_PACKED_BUCKET * sizeof(uint64_t);
	struct kvc_packed_table *table = calloc(1, sizeof(*table));

	if (!table)
		return -ENOMEM;
	table->map.fd = -1;
	table->own = calloc(bucket_count + 1, bucket_bytes);
	if (!table->own) {
		free(table);
		return -ENOMEM;
	}
	table->bucket_count = bucket_count;
	table->epoch = epoch;
	/* A bucket is a cache line. */
	table->entries = (_Atomic uint64_t *)(((uintptr_t)table->own + bucket_bytes - 1) &
					      ~(uintptr_t)(bucket_bytes - 1));
	*out = table;
	return 0;
}

int kvc_packed_table_make(struct kvc_packed_arena *arena, uint64_t slots)
{
	struct kvc_packed *packed = arena->packed;
	struct kvc_packed_table *old = atomic_load_explicit(&arena->table, memory_order_acquire);
	const uint32_t former = atomic_load(&arena->record->epoch) & ~KVC_PACKED_NO_TABLE;
	const uint64_t pages = slots / KVC_PACKED_BUCKET_SLOTS / KVC_PACKED_PAGE_BUCKETS + 1;
	const uint64_t bucket_count = pages * KVC_PACKED_PAGE_BUCKETS;
	struct kvc_packed_table *table = NULL;
	int rc;

	if (packed->private_index)
		rc = table_own(former + 1, bucket_count, &table);
	else
		rc = table_create(arena, former + 1, bucket_count);
	if (!rc && !packed->private_index)
		rc = table_map(arena, former + 1, &table);
	if (rc)
		return rc;
	rc = make_from_headers(arena, table, false);
	if (rc) {
		kvc_packed_table_free(table);
		kvc_packed_arena_remove(arena, "table", former + 1);
		return rc;
	}
	kvc_packed_step(packed, "packed.table.made");
	pthread_mutex_lock(&arena->lock);
	atomic_store_explicit(&arena->table, table, memory_order_release);
	atomic_store(&arena->record->epoch, former + 1);
	if (old)
		kvc_packed_table_drop(arena, old);
	pthread_mutex_unlock(&arena->lock);
	kvc_packed_step(packed, "packed.table.published");
	(void)make_from_headers(arena, table, true); /* all are mapped by now */
	/* The former one goes last: it tells that this was not done yet. One before that was left
	 * by a maker that died here. */
	if (former > 1)
		kvc_packed_arena_remove(arena, "table", former - 1);
	if (former)
		kvc_packed_arena_remove(arena, "table", former);
	return 0;
}

/* With the lock of changes: its maker is dead, or was done meanwhile. */
static int finish_locked(struct kvc_packed_arena *arena, uint32_t epoch)
{
	struct kvc_packed_table *table = kvc_packed_table_get(arena);
	int rc;

	if (!table || table->epoch != epoch)
		return -EAGAIN;
	if (!kvc_packed_arena_has(arena, "table", epoch - 1))
		return 0;
	rc = make_from_headers(arena, table, true);
	if (!rc)
		kvc_packed_arena_remove(arena, "table", epoch - 1);
	return rc;
}

void kvc_packed_table_finish(struct kvc_packed_arena *arena)
{
	const uint32_t epoch = atomic_load(&arena->record->epoch);
	int rc = 0;

	if (epoch < 2 || (epoch & KVC_PACKED_NO_TABLE) || arena->finished_epoch == epoch)
		return;
	if (kvc_packed_arena_has(arena, "table", epoch - 1)) {
		rc = kvc_packed_changes_begin(arena->packed);
		if (rc)
			return;
		rc = finish_locked(arena, epoch);
		kvc_packed_changes_end(arena->packed);
	}
	if (!rc)
		arena->finished_epoch = epoch;
}

void kvc_packed_table_mend(struct kvc_packed_arena *arena)
{
	const uint32_t epoch = atomic_load(&arena->record->epoch);

	if ((epoch != 0 && !(epoch & KVC_PACKED_NO_TABLE)) ||
	    kvc_packed_changes_begin(arena->packed))
		return;
	if (atomic_load(&arena->record->epoch) == epoch)
		(void)kvc_packed_table_make(arena, (uint64_t)atomic_load(&arena->record->present) *
							   arena->record->segment_slots);
	kvc_packed_changes_end(arena->packed);
}
