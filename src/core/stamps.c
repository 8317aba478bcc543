/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries are read and written without a lock. Two writers at one entry may leave a stamp with the
 * wrong group for as long as it takes until one of them is used again: one group of many goes
 * sooner or later than it should.
 */
#include "core/stamps.h"

#include "core/log.h"
#include "core/order.h"
#include "core/sharedfile.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENTRIES		5u
#define POINTS		64u
#define BUCKETS_MIN	128u
#define BUCKETS_MAX	(1u << 18)
#define BYTES_PER_ENTRY UINT64_C(2048) /* of what the root may hold: small objects, not all full */
#define HEADER_BYTES	KVC_SHAREDFILE_HEADER

/* Files older than the clock have times too: hundredths of a second, as many steps before it. */
#define CLOCK_BEGINS (UINT64_C(1) << 44)
#define STEP_NS	     INT64_C(10000000)

#define POINT_NS INT64_C(10000000000) /* between two points, at least */
#define JUMP_NS	 INT64_C(2000000000)

struct entry {
	_Atomic uint64_t g; /* 0: free */
	_Atomic uint64_t stamp;
	_Atomic uint64_t parent;
};

struct bucket {
	struct entry entries[ENTRIES];
	_Atomic uint64_t lost; /* the latest stamp that found no place any more */
};

struct point {
	_Atomic uint64_t clock;
	_Atomic int64_t wall_ns;
};

struct stamps_file {
	uint8_t header[HEADER_BYTES];
	_Atomic uint64_t clock; /* below CLOCK_BEGINS: to be set */
	_Atomic uint64_t point_count;
	uint64_t spare[6];
	struct point points[POINTS];
	_Atomic int64_t pending[KVC_STAMPS_SLOTS];
	uint8_t rest[4096 - 64 - POINTS * 16 - KVC_STAMPS_SLOTS * 8];
	struct bucket buckets[];
};

_Static_assert(sizeof(struct bucket) == 128, "bucket");
_Static_assert(sizeof(struct stamps_file) == 8192, "stamps file");

struct kvc_stamps {
	struct kvc_sharedfile *shared;
	struct stamps_file *file;
	uint32_t buckets; /* a power of two */
	unsigned shift;
};

static const struct kvc_mapfile_kind stamps_kind = {
	.magic = { 'K', 'V', 'C', 'S', 'T', 'M', '\r', '\n' },
	.major = 1,
	.minor = 0,
	.header_bytes = HEADER_BYTES,
};

static bool is_size(uint64_t bytes);
static void move_stamps(const void *from, uint64_t from_bytes, void *to, uint64_t to_bytes);

static const struct kvc_sharedfile_sizes stamps_sizes = { is_size, move_stamps };

#define LOAD(field)	    atomic_load_explicit(&(field), memory_order_relaxed)
#define STORE(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)

/* ---------------------------------------------------------------- open, close */

static uint64_t bytes_of(uint32_t buckets)
{
	return sizeof(struct stamps_file) + (uint64_t)buckets * sizeof(struct bucket);
}

static uint32_t buckets_for(uint64_t held_bytes)
{
	const uint64_t wanted = held_bytes / BYTES_PER_ENTRY / ENTRIES;
	uint32_t buckets = BUCKETS_MIN;

	while (buckets < BUCKETS_MAX && buckets < wanted)
		buckets *= 2;
	return buckets;
}

static bool is_size(uint64_t bytes)
{
	for (uint32_t n = BUCKETS_MIN; n <= BUCKETS_MAX; n *= 2)
		if (bytes == bytes_of(n))
			return true;
	return false;
}

/* What is mapped at `file`. */
static void set_table(struct kvc_stamps *stamps, struct stamps_file *file, uint64_t bytes)
{
	stamps->file = file;
	stamps->buckets = (uint32_t)((bytes - sizeof(*file)) / sizeof(struct bucket));
	stamps->shift = 64u - (unsigned)__builtin_ctz(stamps->buckets);
}

int kvc_stamps_open(const char *path, mode_t mode, uint64_t held_bytes, struct kvc_stamps **out)
{
	struct kvc_mapfile_kind kind = stamps_kind;
	struct kvc_stamps *stamps = calloc(1, sizeof(*stamps));
	int rc;

	if (!stamps)
		return -ENOMEM;
	kind.file_bytes = bytes_of(buckets_for(held_bytes));
	rc = kvc_sharedfile_open(&kind, &stamps_sizes, path, mode, &stamps->shared);
	if (rc) {
		free(stamps);
		return rc;
	}
	set_table(stamps, kvc_sharedfile_memory(stamps->shared),
		  kvc_sharedfile_bytes(stamps->shared));
	*out = stamps;
	return 0;
}

void kvc_stamps_close(struct kvc_stamps *stamps)
{
	if (!stamps)
		return;
	kvc_sharedfile_close(stamps->shared);
	free(stamps);
}

int kvc_stamps_check(struct kvc_stamps *stamps)
{
	return kvc_sharedfile_check(stamps->shared);
}

uint64_t kvc_stamps_file_bytes(const struct kvc_stamps *stamps)
{
	return kvc_sharedfile_bytes(stamps->shared);
}

/* ---------------------------------------------------------------- clock */

uint64_t kvc_stamps_now(const struct kvc_stamps *stamps)
{
	const uint64_t clock = LOAD(stamps->file->clock);

	return clock < CLOCK_BEGINS ? CLOCK_BEGINS : clock;
}

uint64_t kvc_stamps_take(struct kvc_stamps *stamps, uint32_t count)
{
	const uint64_t steps = (uint64_t)count * KVC_STAMP_STEP;

	for (;;) {
		uint64_t clock = atomic_fetch_add_explicit(&stamps->file->clock, steps,
							   memory_order_relaxed);

		if (clock >= CLOCK_BEGINS)
			return clock + steps;
		/* A new file, or one whose page was lost. */
		clock = LOAD(stamps->file->clock);
		while (clock < CLOCK_BEGINS && !atomic_compare_exchange_weak_explicit(
						       &stamps->file->clock, &clock, CLOCK_BEGINS,
						       memory_order_relaxed, memory_order_relaxed))
			;
	}
}

static uint64_t count_points(const struct stamps_file *file)
{
	const uint64_t count = LOAD(file->point_count);

	return count < POINTS ? count : POINTS;
}

/* A damaged file may have any time: what is none is no farther away than others can be. */
static int64_t wall_of(const struct point *point)
{
	const int64_t wall_ns = LOAD(point->wall_ns);

	return wall_ns < 0 ? 0 : wall_ns > INT64_MAX / 2 ? INT64_MAX / 2 : wall_ns;
}

/* When there are too many, every second one of those before the last few goes. */
static void add_point(struct stamps_file *file, uint64_t clock, int64_t wall_ns)
{
	uint64_t count = count_points(file);

	if (count == POINTS) {
		uint64_t kept = 0;

		for (uint64_t i = 0; i < count; i++) {
			if (i % 2 && i < count - 8)
				continue;
			STORE(file->points[kept].clock, LOAD(file->points[i].clock));
			STORE(file->points[kept].wall_ns, LOAD(file->points[i].wall_ns));
			kept++;
		}
		count = kept;
		STORE(file->point_count, count);
	}
	STORE(file->points[count].clock, clock);
	STORE(file->points[count].wall_ns, wall_ns);
	STORE(file->point_count, count + 1);
}

void kvc_stamps_mark(struct kvc_stamps *stamps, int64_t wall_ns, int64_t expected_ns)
{
	struct stamps_file *file = stamps->file;
	const uint64_t clock = kvc_stamps_now(stamps), count = count_points(file);
	const int64_t jump_ns = expected_ns ? wall_ns - expected_ns : 0;
	int64_t last_ns;

	if (count == 0 || LOAD(file->points[count - 1].clock) > clock) {
		/* A new clock. */
		STORE(file->point_count, 0);
		add_point(file, clock, wall_ns);
		return;
	}
	last_ns = wall_of(&file->points[count - 1]);
	if (jump_ns > JUMP_NS || jump_ns < -JUMP_NS) {
		add_point(file, clock, expected_ns);
		add_point(file, clock, wall_ns);
	} else if (wall_ns < last_ns || wall_ns - last_ns >= POINT_NS) {
		add_point(file, clock, wall_ns);
	}
}

/* Point number i; behind the last one comes now. */
static void get_point(const struct kvc_stamps *stamps, uint64_t i, uint64_t count,
		      int64_t wall_now_ns, uint64_t *clock, int64_t *wall_ns)
{
	const struct point *point = &stamps->file->points[i < POINTS ? i : 0];

	*clock = i < count ? LOAD(point->clock) : kvc_stamps_now(stamps);
	*wall_ns = i < count ? wall_of(point) : wall_now_ns;
}

static uint64_t steps_before(uint64_t clock, int64_t ns)
{
	const uint64_t steps = (uint64_t)(ns / STEP_NS) * KVC_STAMP_STEP;

	return steps + KVC_STAMP_STEP < clock ? clock - steps : KVC_STAMP_STEP;
}

int kvc_stamps_of_time(const struct kvc_stamps *stamps, int64_t wall_ns, int64_t wall_now_ns,
		       uint64_t *out)
{
	const uint64_t count = count_points(stamps->file);
	uint64_t from, to;
	int64_t from_ns, to_ns;

	if (wall_ns > wall_now_ns)
		return -ERANGE;
	for (uint64_t i = count; i-- > 0;) {
		double part;

		get_point(stamps, i, count, wall_now_ns, &from, &from_ns);
		get_point(stamps, i + 1, count, wall_now_ns, &to, &to_ns);
		if (wall_ns < from_ns || wall_ns > to_ns || to < from)
			continue;
		part = to_ns > from_ns ? (double)(wall_ns - from_ns) / (double)(to_ns - from_ns) :
					 1.0;
		*out = (from + (uint64_t)((double)(to - from) * part)) & ~(uint64_t)KVC_STAMP_NOTES;
		return 0;
	}
	get_point(stamps, 0, count, wall_now_ns, &from, &from_ns);
	*out = steps_before(from, from_ns > wall_ns ? from_ns - wall_ns : 0);
	return 0;
}

int64_t kvc_stamps_time(const struct kvc_stamps *stamps, uint64_t stamp, int64_t wall_now_ns)
{
	const uint64_t count = count_points(stamps->file);
	uint64_t from, to;
	int64_t from_ns, to_ns;

	for (uint64_t i = count; i-- > 0;) {
		double part;

		get_point(stamps, i, count, wall_now_ns, &from, &from_ns);
		get_point(stamps, i + 1, count, wall_now_ns, &to, &to_ns);
		if (stamp < from)
			continue;
		part = to > from ? (double)(stamp - from) / (double)(to - from) : 1.0;
		part = part > 1.0 ? 1.0 : part;
		return from_ns + (int64_t)((double)(to_ns - from_ns) * part);
	}
	get_point(stamps, 0, count, wall_now_ns, &from, &from_ns);
	if (stamp >= from)
		return from_ns;
	from = (from - stamp) / KVC_STAMP_STEP;
	return from < (uint64_t)(from_ns / STEP_NS) ? from_ns - (int64_t)from * STEP_NS : 0;
}

/* ---------------------------------------------------------------- entries */

static uint64_t key_of(uint64_t g)
{
	return g ? g : 1;
}

/* By the high bits: the low ones are those of the folder. */
static struct bucket *bucket_of(const struct kvc_stamps *stamps, uint64_t g)
{
	return &stamps->file->buckets[key_of(g) >> stamps->shift];
}

void kvc_stamps_prefetch(const struct kvc_stamps *stamps, uint64_t g)
{
	const char *bucket = (const char *)bucket_of(stamps, g);

	__builtin_prefetch(bucket);
	__builtin_prefetch(bucket + 64);
}

static struct entry *find(const struct kvc_stamps *stamps, uint64_t g)
{
	struct bucket *bucket = bucket_of(stamps, g);
	const uint64_t key = key_of(g);

	for (unsigned i = 0; i < ENTRIES; i++)
		if (LOAD(bucket->entries[i].g) == key)
			return &bucket->entries[i];
	return NULL;
}

bool kvc_stamps_find(const struct kvc_stamps *stamps, uint64_t g, struct kvc_stamp *out)
{
	const struct entry *entry = find(stamps, g);

	if (!entry)
		return false;
	*out = (struct kvc_stamp){ LOAD(entry->stamp), LOAD(entry->parent) };
	return out->stamp != 0;
}

static void raise_to(_Atomic uint64_t *field, uint64_t value)
{
	uint64_t was = atomic_load_explicit(field, memory_order_relaxed);

	while (was < value &&
	       !atomic_compare_exchange_weak_explicit(field, &was, value, memory_order_relaxed,
						      memory_order_relaxed))
		;
}

/* A free entry, or the earliest one when it is earlier than the stamp. */
static struct entry *entry_for(struct bucket *bucket, uint64_t stamp)
{
	struct entry *earliest = NULL;

	for (unsigned i = 0; i < ENTRIES; i++) {
		struct entry *entry = &bucket->entries[i];

		if (LOAD(entry->g) == 0)
			return entry;
		if (!earliest || LOAD(entry->stamp) < LOAD(earliest->stamp))
			earliest = entry;
	}
	if (LOAD(earliest->stamp) > stamp) {
		raise_to(&bucket->lost, stamp);
		return NULL;
	}
	raise_to(&bucket->lost, LOAD(earliest->stamp));
	return earliest;
}

void kvc_stamps_note(struct kvc_stamps *stamps, uint64_t g, struct kvc_stamp stamp)
{
	struct entry *entry = find(stamps, g);

	if (entry) {
		raise_to(&entry->stamp, stamp.stamp);
		if (stamp.parent)
			STORE(entry->parent, stamp.parent);
		return;
	}
	entry = entry_for(bucket_of(stamps, g), stamp.stamp);
	if (!entry)
		return;
	STORE(entry->stamp, stamp.stamp);
	STORE(entry->parent, stamp.parent);
	STORE(entry->g, key_of(g));
}

void kvc_stamps_replace(struct kvc_stamps *stamps, uint64_t g, uint64_t stamp)
{
	struct entry *entry = find(stamps, g);

	if (entry)
		STORE(entry->stamp, stamp);
	else
		kvc_stamps_note(stamps, g, (struct kvc_stamp){ .stamp = stamp });
}

void kvc_stamps_forget(struct kvc_stamps *stamps, uint64_t g)
{
	struct entry *entry = find(stamps, g);

	if (entry)
		STORE(entry->g, 0);
}

/* Nobody else uses either. What is about to be written is so by processes that were killed. */
static void move_stamps(const void *from, uint64_t from_bytes, void *to, uint64_t to_bytes)
{
	const struct stamps_file *file = from;
	struct kvc_stamps old, new;
	uint64_t most;

	set_table(&old, (struct stamps_file *)(uintptr_t)from, from_bytes);
	set_table(&new, to, to_bytes);
	most = old.buckets > new.buckets ? old.buckets : new.buckets;
	STORE(new.file->clock, LOAD(file->clock));
	STORE(new.file->point_count, count_points(file));
	for (unsigned i = 0; i < POINTS; i++) {
		STORE(new.file->points[i].clock, LOAD(file->points[i].clock));
		STORE(new.file->points[i].wall_ns, LOAD(file->points[i].wall_ns));
	}
	for (unsigned i = 0; i < KVC_STAMPS_SLOTS; i++)
		STORE(new.file->pending[i], LOAD(file->pending[i]));
	for (uint32_t b = 0; b < old.buckets; b++) {
		const struct bucket *bucket = &file->buckets[b];

		for (unsigned i = 0; i < ENTRIES; i++) {
			const struct entry *entry = &bucket->entries[i];

			if (LOAD(entry->g) != 0)
				kvc_stamps_note(&new, LOAD(entry->g),
						(struct kvc_stamp){ LOAD(entry->stamp),
								    LOAD(entry->parent) });
		}
	}
	/* A bucket is of a range of groups: one becomes several, or several become one. */
	for (uint64_t b = 0; b < most; b++)
		raise_to(&new.file->buckets[b * new.buckets / most].lost,
			 LOAD(file->buckets[b * old.buckets / most].lost));
}

uint64_t kvc_stamps_of_file(struct kvc_stamps *stamps, uint64_t g, int64_t modified_ns,
			    int64_t changed_ns, int64_t wall_now_ns)
{
	uint64_t stamp;

	if (kvc_stamps_of_time(stamps, modified_ns, wall_now_ns, &stamp) == 0)
		return stamp;
	/* Somebody set it; when he did so is known. */
	if (kvc_stamps_of_time(stamps, changed_ns, wall_now_ns, &stamp) == 0)
		return stamp;
	/* It may have had an entry: if so, none later than the latest that was lost. */
	stamp = LOAD(bucket_of(stamps, g)->lost);
	if (stamp == 0)
		stamp = kvc_stamps_now(stamps);
	kvc_stamps_note(stamps, g, (struct kvc_stamp){ .stamp = stamp });
	return stamp;
}

/* ---------------------------------------------------------------- what is about to be written */

void kvc_stamps_pending_add(struct kvc_stamps *stamps, uint32_t slot, int64_t bytes)
{
	(void)atomic_fetch_add_explicit(&stamps->file->pending[slot], bytes, memory_order_relaxed);
}

void kvc_stamps_pending_set(struct kvc_stamps *stamps, uint32_t slot, int64_t bytes)
{
	STORE(stamps->file->pending[slot], bytes);
}

int64_t kvc_stamps_pending(const struct kvc_stamps *stamps, uint32_t slot)
{
	return LOAD(stamps->file->pending[slot]);
}

uint64_t kvc_stamps_pending_sum(const struct kvc_stamps *stamps, uint64_t limit)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < KVC_STAMPS_SLOTS; i++) {
		const int64_t bytes = kvc_stamps_pending(stamps, i);

		sum += bytes > 0 && (uint64_t)bytes <= limit ? (uint64_t)bytes : 0;
	}
	return sum;
}
