/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the packed layout: what its files share. Readers: core/packed*.c and their tests. */
#ifndef KVC_CORE_PACKED_INTERNAL_H
#define KVC_CORE_PACKED_INTERNAL_H

#include "core/packed.h"
#include "core/packed_file.h"
#include "core/packed_format.h"
#include "core/root.h"
#include "core/victim.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVC_PACKED_CHUNK  1024u /* segments that a chunk of pointers holds */
#define KVC_PACKED_CHUNKS (KVC_PACKED_SEGMENTS_MAX / KVC_PACKED_CHUNK)

/* retired of hdr.<n>: being emptied; its files are gone. */
#define KVC_PACKED_RETIRED_MARKED  1u
#define KVC_PACKED_RETIRED_REMOVED 2u

/* A segment as this process has it mapped. */
struct kvc_packed_segment {
	struct kvc_packed_arena *arena;
	uint32_t number;
	uint32_t slots;
	struct kvc_packed_map map; /* of hdr.<n> */
	struct kvc_packed_hdr *hdr;
	struct kvc_packed_slot *headers;
	_Atomic uint64_t *stamps;
	_Atomic uint64_t *bitmap; /* 1: free */
	struct kvc_plugin_container *container;
	struct kvc_packed_map names_map;
	_Atomic(struct kvc_packed_name *) names; /* mapped at the first use, NULL before */
	atomic_bool broken;			 /* a page of it was lost */
	atomic_uint_fast64_t busy_until_ns;	 /* not to be retired earlier: it was tried */
	struct kvc_packed_segment *next_dropped;
	uint32_t dropped_turn;
};

/* A table as this process has it mapped. */
struct kvc_packed_table {
	struct kvc_packed_map map;
	void *own;		   /* instead, for a private index: memory of this process */
	_Atomic uint64_t *entries; /* bucket_count * KVC_PACKED_BUCKET */
	uint64_t bucket_count;
	uint32_t epoch;
	atomic_bool broken;
	struct kvc_packed_table *next_dropped;
	uint32_t dropped_turn;
};

struct kvc_packed_arena {
	struct kvc_packed *packed;
	struct kvc_packed_arena *next;
	uint32_t index; /* of the record */
	uint64_t slot_bytes;
	uint64_t ns_hash;
	struct kvc_packed_record *record;
	pthread_mutex_t lock; /* mapping of segments and tables */
	/* number -> segment; NULL: not mapped yet; KVC_PACKED_MISSING: it is gone. */
	_Atomic(_Atomic(struct kvc_packed_segment *) *) chunks[KVC_PACKED_CHUNKS];
	_Atomic(struct kvc_packed_table *) table;
	/* One thread at a time searches for room, for all that found none. */
	pthread_mutex_t room_lock;
	atomic_uint rooms_found;
	uint64_t search_after_ns; /* not earlier again: nothing was found, for this reason */
	int search_error;
	/* What is known of what goes first; by one thread at a time. */
	pthread_mutex_t evict_lock;
	struct kvc_victims victims;
	uint32_t hand_segment; /* the slot that is looked at next */
	uint32_t hand_slot;
	atomic_uint_fast64_t grow_after_ns;
	atomic_uint_fast64_t colder_after_ns; /* likewise: no other arena is asked */
	uint32_t finished_epoch;	      /* its table was seen to be finished; the keeper's */
	atomic_bool pressed; /* a set had to evict: the keeper looks for space elsewhere */
};

extern struct kvc_packed_segment kvc_packed_missing;
#define KVC_PACKED_MISSING (&kvc_packed_missing)

typedef void (*kvc_packed_step_fn)(void *context, const char *step);

struct kvc_packed {
	struct kvc_root *root;
	struct kvc_packed_dir *dir;
	struct kvc_packed_lock *lock;
	struct kvc_packed_map shm_map;
	struct kvc_packed_shm *shm;
	struct kvc_packed_map intents_map;
	struct kvc_packed_intents *intents; /* NULL: read-only */
	uint32_t entry;			    /* of this opening in shm->processes */
	bool read_only;
	bool private_index; /* read-only, and rebuilt in memory of this process */
	bool rebuilt;
	bool rebuilding;    /* nobody else is there */
	atomic_bool looked; /* for dead processes, since it was opened */
	uint64_t capacity_bytes;
	uint64_t floor_bytes; /* of the device, that stay free */
	uint64_t segment_target_bytes;
	uint64_t quarantine_ns;
	uint64_t boot_id[2];
	atomic_bool gone;
	atomic_bool broken;  /* a page of shm, or of another map that is not a segment's */
	atomic_bool damaged; /* a file of a segment or table is not what it should be */

	/* One thread at a time takes segments from other arenas: what each tenant holds changes
	 * twice by it. Taken after a room_lock, before that of changes. */
	pthread_mutex_t take_lock;
	pthread_mutex_t arena_lock; /* of the list; records are made while changing */
	_Atomic(struct kvc_packed_arena *) arenas;
	/* Beside KVC_PACKED_LOCK_CHANGES, which threads share. */
	bool changing;
	pthread_mutex_t changes_lock;
	pthread_cond_t changes_ended;
	atomic_uint_fast64_t generation; /* of shm, as seen last */

	/* Batches at work, in one of two turns; what was dropped in a turn is unmapped once the
	 * batches of that turn and of the one before have left. */
	atomic_uint turn;
	atomic_uint active[2];
	pthread_mutex_t dropped_lock;
	struct kvc_packed_segment *dropped_segments;
	struct kvc_packed_table *dropped_tables;

	pthread_t keeper;
	bool keeper_runs;
	bool keeper_ended;
	uint32_t ticks;	      /* of the keeper */
	uint32_t sweep_at;    /* the tick when it sweeps next, if there is a reason */
	uint32_t sweep_pause; /* ticks; grows while others are at work */
	bool stop;
	atomic_bool kicked;
	pthread_mutex_t keeper_lock;
	pthread_cond_t keeper_wake;

	atomic_uint_fast64_t random;
	atomic_uint_fast64_t evicted;
	atomic_uint_fast64_t recovered;
	atomic_bool recovering; /* one thread of this opening looks after the dead */

	kvc_packed_step_fn step; /* NULL but in tests */
	void *step_context;
};

/* The steps where a process may be killed, or anything may happen in between. */
static inline void kvc_packed_step(const struct kvc_packed *packed, const char *step)
{
	if (__builtin_expect(packed->step != NULL, 0))
		packed->step(packed->step_context, step);
}

#ifdef __has_feature
#define KVC_HAS_FEATURE(name) __has_feature(name)
#else
#define KVC_HAS_FEATURE(name) 0
#endif

/* ThreadSanitizer knows no fences, and misses none: all that they order are atomics. */
static inline void kvc_packed_fence(memory_order order)
{
#if defined(__SANITIZE_THREAD__) || KVC_HAS_FEATURE(thread_sanitizer)
	(void)order;
#else
	atomic_thread_fence(order);
#endif
}

/* ---------------------------------------------------------------- packed_slot.c */

/* Offsets of hdr.<n> and its size. */
struct kvc_packed_hdr_layout {
	uint64_t slots;
	uint64_t stamps;
	uint64_t bitmap;
	uint64_t file_bytes;
};
struct kvc_packed_hdr_layout kvc_packed_hdr_layout(uint32_t slots);

/* Fields of a slot in the byte form of the CRC; it holds the generation of `state`. */
uint32_t kvc_packed_slot_crc(const struct kvc_packed_slot *slot, uint64_t state);

static inline uint32_t kvc_packed_len(uint64_t len_crc)
{
	return (uint32_t)len_crc;
}

static inline uint32_t kvc_packed_flags(uint64_t created_depth)
{
	return (uint32_t)(created_depth >> 48);
}

static inline uint32_t kvc_packed_lane(uint64_t created_depth)
{
	return kvc_packed_flags(created_depth) >> KVC_PACKED_LANE_SHIFT;
}

/* What a live slot's header says, all of one state. */
struct kvc_packed_fields {
	uint64_t state;
	uint64_t g;
	uint64_t v;
	uint64_t checksum;
	uint64_t parent_g;
	uint64_t len_crc;
	uint64_t created_depth;
};

/* False: the slot is not live, or became another while it was looked at. */
static inline bool kvc_packed_read(const struct kvc_packed_slot *slot,
				   struct kvc_packed_fields *out)
{
	out->state = atomic_load_explicit(&slot->state, memory_order_acquire);
	if (kvc_packed_st(out->state) != KVC_PACKED_LIVE)
		return false;
	out->g = atomic_load_explicit(&slot->g, memory_order_relaxed);
	out->v = atomic_load_explicit(&slot->v, memory_order_relaxed);
	out->checksum = atomic_load_explicit(&slot->checksum, memory_order_relaxed);
	out->parent_g = atomic_load_explicit(&slot->parent_g, memory_order_relaxed);
	out->len_crc = atomic_load_explicit(&slot->len_crc, memory_order_relaxed);
	out->created_depth = atomic_load_explicit(&slot->created_depth, memory_order_relaxed);
	kvc_packed_fence(memory_order_acquire);
	return atomic_load_explicit(&slot->state, memory_order_relaxed) == out->state;
}

static inline struct kvc_packed_key kvc_packed_key_of(const struct kvc_packed_fields *fields)
{
	return (struct kvc_packed_key){
		.g = fields->g,
		.v = fields->v,
		.lane = kvc_packed_lane(fields->created_depth),
		.bytes = kvc_packed_len(fields->len_crc),
	};
}

static inline struct kvc_packed_place kvc_packed_place_of(struct kvc_packed_segment *segment,
							  uint32_t number,
							  const struct kvc_packed_fields *fields)
{
	return (struct kvc_packed_place){
		.segment = segment,
		.container = segment->container,
		.offset = (uint64_t)number * segment->arena->slot_bytes,
		.ref = kvc_packed_ref(segment->number, number),
		.state = fields->state,
		.checksum = fields->checksum,
		.stamp = atomic_load_explicit(&segment->stamps[number], memory_order_relaxed),
		.checksum_kind = kvc_packed_flags(fields->created_depth) & KVC_PACKED_CHECKSUM,
	};
}

/* Calls fn for each live object of a group in one lane that the table has. */
typedef void (*kvc_packed_slot_fn)(void *context, struct kvc_packed_segment *segment,
				   uint32_t number, const struct kvc_packed_fields *fields);
void kvc_packed_each_of_group(struct kvc_packed_arena *arena, uint64_t g, uint32_t lane,
			      kvc_packed_slot_fn fn, void *context);

/* A live slot that may have no entry in the table gets one, or ends where another object of its
 * name stays. Nothing happens when it is not in that state any more. */
void kvc_packed_slot_settle(struct kvc_packed_segment *segment, uint32_t slot, uint64_t state);

/* LIVE(state) -> FREE of the next generation, out of the table, into the bitmap. False: it is not
 * in that state any more. */
bool kvc_packed_slot_end(struct kvc_packed_segment *segment, uint32_t slot, uint64_t state);

/* ---------------------------------------------------------------- packed_evict.c */

/* Frees up to `count` slots of the arena, coldest groups first. Returns how many. */
uint32_t kvc_packed_evict(struct kvc_packed_arena *arena, uint32_t count);

/* The same among all arenas of the tenant whose namespace it is of. */
uint32_t kvc_packed_evict_tenant(struct kvc_packed_arena *arena, uint32_t count);

/* Ends what a group has in the arenas of its namespace, and remembers it. Returns how many slots,
 * which the caller counts as evicted. */
uint32_t kvc_packed_evict_group(struct kvc_packed_arena *arena, uint64_t g);
void kvc_packed_count_evicted(struct kvc_packed_arena *arena, uint32_t ended);

/* For how long that has been there which goes first, of all arenas the longest, in s; 0: there is
 * nothing. */
uint64_t kvc_packed_oldest_s(struct kvc_packed *packed);

/* The bitmap of the arena by the states. Returns the free slots that were found. */
uint64_t kvc_packed_sweep(struct kvc_packed_arena *arena);

/* The same, and the counts of its slots. False: they could not be counted, as others changed them
 * all the time. */
bool kvc_packed_arena_recount(struct kvc_packed_arena *arena);

/* Free slots that eviction keeps: 1% of the arena's, at least 64 where that is no more than
 * 1/16. */
uint64_t kvc_packed_reserve(const struct kvc_packed_arena *arena);

/* The most slots of the arena that become free at once for a set that finds none, its own with
 * them: those of a segment, or of some groups, the last of which may have one in each lane. */
uint64_t kvc_packed_room(const struct kvc_packed_arena *arena);

/* Time of the latest use of the objects of a group; 0: there are none. */
uint64_t kvc_packed_group_used(struct kvc_packed_arena *arena, uint64_t g);

uint64_t kvc_packed_random(struct kvc_packed *packed);

/* ---------------------------------------------------------------- packed_table.c */

/* Two buckets of a group and lane, in one page of the table: what is far is the page, whose address
 * has to be translated, more than the second line in it. */
struct kvc_packed_buckets {
	_Atomic uint64_t *entries[2];
};

/* Slots that a table is made for, per bucket of 8 entries: with 6 of them one object in 2000 found
 * both of its buckets full. */
#define KVC_PACKED_BUCKET_SLOTS 5u
#define KVC_PACKED_PAGE_BUCKETS 64u /* of 4096 bytes; a table has whole pages */

static inline uint64_t kvc_packed_mix(uint64_t x)
{
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	x ^= x >> 32;
	x *= UINT64_C(0xd6e8feb86659fd93);
	x ^= x >> 32;
	return x;
}

static inline uint64_t kvc_packed_scale(uint64_t hash, uint64_t count)
{
	return (uint64_t)(((unsigned __int128)hash * count) >> 64);
}

static inline struct kvc_packed_buckets kvc_packed_buckets(const struct kvc_packed_table *table,
							   uint64_t g, uint32_t lane)
{
	const uint64_t hash = kvc_packed_mix(g + lane * UINT64_C(0x9e3779b97f4a7c15));
	const uint64_t page = kvc_packed_scale(hash, table->bucket_count / KVC_PACKED_PAGE_BUCKETS);
	const uint32_t first = hash % KVC_PACKED_PAGE_BUCKETS;
	const uint32_t step =
		1 + (uint32_t)(hash / KVC_PACKED_PAGE_BUCKETS % (KVC_PACKED_PAGE_BUCKETS - 1));
	const uint32_t second = (first + step) % KVC_PACKED_PAGE_BUCKETS;
	_Atomic uint64_t *entries =
		table->entries + page * KVC_PACKED_PAGE_BUCKETS * KVC_PACKED_BUCKET;

	return (struct kvc_packed_buckets){ {
		entries + first * KVC_PACKED_BUCKET,
		entries + second * KVC_PACKED_BUCKET,
	} };
}

/* Upper 24 bits of an entry: 8 of g, by which a group is found without a look at each header,
 * and 16 of v. */
#define KVC_PACKED_TAG_GROUP (UINT64_C(0xff) << 56)
#define KVC_PACKED_TAG	     (UINT64_MAX << KVC_PACKED_REF_BITS)

static inline uint64_t kvc_packed_tag(uint64_t g, uint64_t v)
{
	return (g & KVC_PACKED_TAG_GROUP) | v >> 48 << KVC_PACKED_REF_BITS;
}

#define KVC_PACKED_REF_MASK ((UINT64_C(1) << KVC_PACKED_REF_BITS) - 1)

/* The table as it is now, or NULL: the arena has none. */
struct kvc_packed_table *kvc_packed_table_get(struct kvc_packed_arena *arena);

/* Why there is none although there should be one; 0: there is, or need not be. */
int kvc_packed_table_check(struct kvc_packed_arena *arena);

/* SET 6. The object gets an entry, unless it has one. 0; 1: a LIVE object of the same (g, v) with a
 * smaller reference stays and ours is to go. */
int kvc_packed_table_insert(struct kvc_packed_arena *arena, const struct kvc_packed_key *key,
			    uint64_t ref);
void kvc_packed_table_remove(struct kvc_packed_arena *arena, const struct kvc_packed_key *key,
			     uint64_t ref);

/* Makes a table for at least `slots` slots from the headers and puts it in force; with the lock of
 * changes held. */
int kvc_packed_table_make(struct kvc_packed_arena *arena, uint64_t slots);

/* One for an arena that has segments and none; without it nothing is found there. */
void kvc_packed_table_mend(struct kvc_packed_arena *arena);

/* What a maker left that died after its table was put in force: looks at all headers once more, and
 * removes the former table. By the keeper only. */
void kvc_packed_table_finish(struct kvc_packed_arena *arena);

/* ---------------------------------------------------------------- packed_arena.c */

/* The segment with that number, mapped when need be; NULL: it is gone, or cannot be mapped. */
struct kvc_packed_segment *kvc_packed_segment_map(struct kvc_packed_arena *arena, uint32_t number);

/* As it is mapped here: NULL, not yet. */
static inline struct kvc_packed_segment *kvc_packed_segment_seen(struct kvc_packed_arena *arena,
								 uint32_t number)
{
	_Atomic(struct kvc_packed_segment *) *chunk;

	if (number == 0 || number >= KVC_PACKED_SEGMENTS_MAX)
		return KVC_PACKED_MISSING;
	chunk = atomic_load_explicit(&arena->chunks[number / KVC_PACKED_CHUNK],
				     memory_order_acquire);
	return chunk ? atomic_load_explicit(&chunk[number % KVC_PACKED_CHUNK],
					    memory_order_acquire) :
		       NULL;
}

static inline struct kvc_packed_segment *kvc_packed_segment(struct kvc_packed_arena *arena,
							    uint32_t number)
{
	struct kvc_packed_segment *segment = kvc_packed_segment_seen(arena, number);

	if (__builtin_expect(segment == NULL, 0))
		return kvc_packed_segment_map(arena, number);
	return segment == KVC_PACKED_MISSING ? NULL : segment;
}

/* Segment and slot number of a reference; NULL: no such slot. */
static inline struct kvc_packed_segment *kvc_packed_segment_of(struct kvc_packed_arena *arena,
							       uint64_t ref)
{
	struct kvc_packed_segment *segment = kvc_packed_segment(arena, kvc_packed_ref_segment(ref));

	return segment && kvc_packed_ref_slot(ref) < segment->slots ? segment : NULL;
}

/* The slot is free: true when its bit did not say so. */
static inline bool kvc_packed_give_bit(struct kvc_packed_segment *segment, uint32_t slot)
{
	const uint64_t bit = UINT64_C(1) << slot % 64;

	return !(atomic_fetch_or_explicit(&segment->bitmap[slot / 64], bit, memory_order_release) &
		 bit);
}

/* Whether slots of it may be given out. */
static inline bool kvc_packed_usable(const struct kvc_packed_segment *segment)
{
	return segment && !atomic_load_explicit(&segment->broken, memory_order_relaxed) &&
	       atomic_load_explicit(&segment->hdr->retired, memory_order_relaxed) == 0;
}

/* Record in mapped memory; NULL: not mapped. The names of a segment are mapped at the first use. */
struct kvc_packed_name *kvc_packed_names(struct kvc_packed_segment *segment);

/* One segment more; -ENOSPC: `capacity`, min_free or the disk does not allow it. */
int kvc_packed_segment_add(struct kvc_packed_arena *arena);

/* Evicts a segment's slots and removes its files. -EBUSY: some slots are being written: again later
 * (it is marked, and used no more). */
int kvc_packed_segment_retire(struct kvc_packed_segment *segment);

/* With the arena's lock: where the segment of a number stands. NULL: no memory. */
_Atomic(struct kvc_packed_segment *) *kvc_packed_segment_cell(struct kvc_packed_arena *arena,
							      uint32_t number);

/* Whether files of so many bytes may be added; or might, if all segments of now were given back. */
bool kvc_packed_may_add(struct kvc_packed *packed, uint64_t bytes, bool instead_of_all);

/* Unmaps one whose data is closed. */
void kvc_packed_segment_free(struct kvc_packed_segment *segment);

/* This process forgets a segment whose files are gone. */
void kvc_packed_segment_drop(struct kvc_packed_segment *segment);
void kvc_packed_table_free(struct kvc_packed_table *table);
void kvc_packed_table_drop(struct kvc_packed_arena *arena, struct kvc_packed_table *table);

/* Unmaps what was dropped and is used by no batch any more; all: whatever it is. */
void kvc_packed_reap(struct kvc_packed *packed, bool all);

/* Handles for records that other processes made meanwhile, and the end of segments that they
 * removed. Costs a load when nothing has changed. */
void kvc_packed_refresh(struct kvc_packed *packed);

/* The coldest segment of all arenas; -ENOENT: there is none, -EBUSY as above. */
int kvc_packed_retire_coldest(struct kvc_packed *packed);

/* A page of a segment or of the table was lost. */
bool kvc_packed_arena_broken(struct kvc_packed_arena *arena);

/* Takes a segment of another arena of which every group was used before all that this one holds:
 * true when `arena` has one more. Asks seldom when there is none. */
bool kvc_packed_take_colder(struct kvc_packed_arena *arena);

/* Makes room for a segment of `arena` from another arena that is colder. -ENOSPC: there is none;
 * -EBUSY: not at the moment, as all that could go are being written or read. */
int kvc_packed_steal(struct kvc_packed_arena *arena);

/* Files of an arena: "hdr", "names", "table", and "seg" where there are folders. */
void kvc_packed_arena_path(const struct kvc_packed_arena *arena, const char *file, uint64_t number,
			   char out[256]);
void kvc_packed_arena_remove(struct kvc_packed_arena *arena, const char *file, uint64_t number);
/* False: it is certain that it is not there. */
bool kvc_packed_arena_has(struct kvc_packed_arena *arena, const char *file, uint64_t number);

/* Removes the files of a segment, whose data go first: one without a header is nothing, one without
 * data has a header still. */
void kvc_packed_segment_remove(struct kvc_packed_arena *arena, uint32_t number);

void kvc_packed_arenas_free(struct kvc_packed *packed);

/* Files of all segments of that many slots. */
uint64_t kvc_packed_segment_file_bytes(const struct kvc_packed_arena *arena);

/* Of hdr.<n>; file_bytes is to be set. */
extern const struct kvc_mapfile_kind kvc_packed_hdr_kind;

/* Evicts and adds ahead of need; one turn of the keeper. */
void kvc_packed_arena_keep(struct kvc_packed_arena *arena);

/* Goes on with segments that were marked when slots of theirs were busy, or by one that died.
 * Returns how many are busy still. */
uint32_t kvc_packed_finish_retiring(struct kvc_packed *packed);

/* Notices segments whose files were removed by others. */
void kvc_packed_arena_check(struct kvc_packed_arena *arena);

/* The keeper is to look now, not in its own time. */
void kvc_packed_kick(struct kvc_packed *packed);

/* A counter that others may have taken below 0. */
static inline uint64_t kvc_packed_hint(const _Atomic uint64_t *at)
{
	const uint64_t value = atomic_load_explicit(at, memory_order_relaxed);

	return value >> 62 ? 0 : value;
}

/* Says which version a file is of, that `header` was read from. Returns -EPROTONOSUPPORT. */
int kvc_packed_refuse_version(const struct kvc_packed *packed, const char *path,
			      const struct kvc_mapfile_kind *kind, const void *header);

/* How long nothing is tried that needs the lock of changes, when another process did not let go of
 * it. */
#define KVC_PACKED_STUCK_NS (UINT64_C(10) * 1000000000)

/* Held: changes of arenas, segments and tables are ours alone. */
int kvc_packed_changes_begin(struct kvc_packed *packed);
void kvc_packed_changes_end(struct kvc_packed *packed);

/* ---------------------------------------------------------------- packed_recover.c */

/* Whether there is no such segment, as opposed to one that cannot be mapped now. */
bool kvc_packed_segment_is_gone(struct kvc_packed_arena *arena, uint32_t number);

/* Looks for process entries whose owner is dead, and at those whose quarantine is over. Returns
 * the number of slots that became free. Idempotent, in any process at the same time. */
uint32_t kvc_packed_recover_dead(struct kvc_packed *packed);

/* An entry for this opening: its lock is held, its intents are mapped. -EUSERS. */
int kvc_packed_entry_take(struct kvc_packed *packed);
void kvc_packed_entry_give(struct kvc_packed *packed);

/* For a rebuild: nobody has any. -EBADMSG: the file is damaged. */
int kvc_packed_intents_clear(struct kvc_packed *packed, uint32_t entry);

/* ---------------------------------------------------------------- packed_rebuild.c */

/*
 * kvc_packed_rebuild - after a reboot or damage, with KVC_PACKED_LOCK_USERS exclusive and before
 * any arena has a handle: finds the arenas, keeps what is whole as suspect, frees everything else,
 * makes the tables, counts, and stores packed->boot_id. With read_only or private_index no file is
 * removed. -EPROTONOSUPPORT: a segment is of another format version; nothing of any was touched.
 */
int kvc_packed_rebuild(struct kvc_packed *packed);

/* Whether the fields of a record that is in use make sense: it has no CRC. */
bool kvc_packed_record_is_sane(const struct kvc_packed_record *record);

#endif
