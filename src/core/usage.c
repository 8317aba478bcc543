/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots are claimed in order, the first free one by compare-and-swap of its key, and never given
 * back: a search ends at the first free slot, and the few namespaces of a root lie in front.
 */
#include "core/usage.h"

#include "core/log.h"
#include "core/sharedfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES KVC_SHAREDFILE_HEADER

/* The word of a scan, from its low bits on: folders that are counted; what follows; changes in the
 * folder that is being counted, modulo their mask; its token. */
#define DONE_MASK   UINT64_C(0x1ff)
#define STARTING    (UINT64_C(1) << 9)	/* the counts at its beginning are being noted */
#define LAST_TIME   (UINT64_C(1) << 10) /* its folder is not counted again, whatever changes */
#define TOUCH	    (UINT64_C(1) << 11)
#define TOUCH_MASK  (UINT64_C(0xfffff) << 11)
#define TOKEN_SHIFT 31u
#define OBJECT_BITS 22u

enum counted {
	COUNTED_NOT, /* the counts began at 0, and no recount has ended since */
	COUNTED,
	COUNTED_DUE,  /* somebody died: they may be off */
	COUNTED_AGAIN /* the same, and a scan has begun since */
};

/* Key 0 marks a free slot; namespace hash 0 has this one. */
#define KEY_OF_ZERO UINT64_MAX

struct slot {
	_Atomic uint64_t key;
	_Atomic int64_t bytes;
	_Atomic int64_t objects;
	_Atomic uint64_t early; /* of what came and went before its folder was counted; packed() */
};

struct usage_file {
	uint8_t header[HEADER_BYTES];
	struct slot others;	    /* key unused */
	_Atomic uint64_t recounted; /* enum counted */
	_Atomic uint64_t scan;	    /* 0: none goes on */
	_Atomic uint64_t ended;	    /* recounts */
	_Atomic uint64_t hurried;   /* that of them is waited for */
	_Atomic uint64_t settled;   /* scans that are being settled, or were */
	uint8_t spare[HEADER_BYTES - sizeof(struct slot) - 5 * sizeof(uint64_t)];
	struct slot slots[KVC_USAGE_SLOTS];
};

_Static_assert(sizeof(struct slot) == 32, "slot");
_Static_assert(sizeof(struct usage_file) == 139264, "usage file");

static const struct kvc_mapfile_kind usage_kind = {
	.magic = { 'K', 'V', 'C', 'U', 'S', 'E', '\r', '\n' },
	.major = 1,
	.minor = 0,
	.header_bytes = HEADER_BYTES,
	.file_bytes = sizeof(struct usage_file),
};

struct kvc_usage_map {
	struct kvc_sharedfile *shared;
	struct usage_file *file; /* what is mapped */
	char *loaded;		 /* where its counts were read; NULL: it counts itself */
	struct base *bases;	 /* of a scan of this process, one per slot, then the others */
	uint64_t scan;		 /* the word of that scan, as this process left it */
};

/* The counts when a scan began. */
struct base {
	uint64_t bytes; /* signed, added modulo 2^64: damaged counts may be anything */
	uint64_t objects;
};

/* ---------------------------------------------------------------- open, close, check */

int kvc_usage_open(const char *path, mode_t mode, struct kvc_usage_map **out)
{
	struct kvc_usage_map *usage = calloc(1, sizeof(*usage));

	if (!usage || kvc_sharedfile_open(&usage_kind, NULL, path, mode, &usage->shared) != 0) {
		free(usage);
		return kvc_fail(-ENOMEM, "no memory for the usage of a root");
	}
	usage->file = kvc_sharedfile_memory(usage->shared);
	*out = usage;
	return 0;
}

void kvc_usage_close(struct kvc_usage_map *usage)
{
	if (!usage)
		return;
	kvc_sharedfile_close(usage->shared);
	free(usage->loaded);
	free(usage->bases);
	free(usage);
}

/* Nobody else looks at memory that was loaded while it is loaded again, but for figures. */
static int read_counts(const char *path, struct usage_file *file)
{
	const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	uint8_t header[HEADER_BYTES];
	int rc;

	if (fd < 0)
		return -errno;
	rc = kvc_mapfile_check(fd, &usage_kind, header);
	if (rc == 0 && pread(fd, file, sizeof(*file), 0) != (ssize_t)sizeof(*file))
		rc = -EIO;
	(void)close(fd);
	return rc;
}

int kvc_usage_load(struct kvc_usage_map *usage, const char *path)
{
	char *copy = strdup(path);

	if (!copy)
		return kvc_fail(-ENOMEM, "no memory for the usage of a root");
	if (read_counts(path, usage->file) != 0) {
		free(copy);
		return 0;
	}
	free(usage->loaded);
	usage->loaded = copy;
	return 0;
}

void kvc_usage_reload(struct kvc_usage_map *usage)
{
	if (usage->loaded)
		(void)read_counts(usage->loaded, usage->file);
}

bool kvc_usage_is_loaded(const struct kvc_usage_map *usage)
{
	return usage->loaded != NULL;
}

bool kvc_usage_is_new(const struct kvc_usage_map *usage)
{
	return atomic_load_explicit(&usage->file->recounted, memory_order_relaxed) == COUNTED_NOT;
}

bool kvc_usage_is_due(const struct kvc_usage_map *usage)
{
	return atomic_load_explicit(&usage->file->recounted, memory_order_relaxed) >= COUNTED_DUE;
}

static void turn(struct usage_file *file, uint64_t was, uint64_t now)
{
	(void)atomic_compare_exchange_strong(&file->recounted, &was, now);
}

/* In this order: what turns from one into the other in between is a scan that has it in it. */
static void set_due(struct usage_file *file)
{
	turn(file, COUNTED_AGAIN, COUNTED_DUE);
	turn(file, COUNTED, COUNTED_DUE);
}

void kvc_usage_set_due(struct kvc_usage_map *usage, bool due)
{
	if (due)
		set_due(usage->file);
	else
		turn(usage->file, COUNTED_AGAIN, COUNTED);
}

bool kvc_usage_is_shared(const struct kvc_usage_map *usage)
{
	return kvc_sharedfile_is_shared(usage->shared);
}

int kvc_usage_check(struct kvc_usage_map *usage)
{
	const int changed = kvc_sharedfile_check(usage->shared);

	/* What was counted in memory before is in no file. */
	if (changed == 2)
		atomic_store_explicit(&usage->file->recounted, COUNTED_NOT, memory_order_relaxed);
	return changed != 0;
}

/* ---------------------------------------------------------------- slots */

/* The slot of the namespace; NULL when it has none and may not claim one, or none is left. */
static struct slot *find_slot(struct usage_file *file, uint64_t ns_hash, bool claim)
{
	const uint64_t key = ns_hash == 0 ? KEY_OF_ZERO : ns_hash;

	for (size_t i = 0; i < KVC_USAGE_SLOTS; i++) {
		struct slot *const slot = &file->slots[i];
		uint64_t found = atomic_load_explicit(&slot->key, memory_order_relaxed);

		if (found == 0) {
			if (!claim)
				return NULL;
			/* On failure `found` is the key of the one who was faster. */
			if (atomic_compare_exchange_strong_explicit(&slot->key, &found, key,
								    memory_order_relaxed,
								    memory_order_relaxed))
				return slot;
		}
		if (found == key)
			return slot;
	}
	return NULL;
}

static uint64_t clamped(const _Atomic int64_t *value)
{
	const int64_t now = atomic_load_explicit(value, memory_order_relaxed);

	return now > 0 ? (uint64_t)now : 0;
}

static uint64_t add_clamped(uint64_t sum, const _Atomic int64_t *value)
{
	const uint64_t more = clamped(value);

	return more > UINT64_MAX - sum ? UINT64_MAX : sum + more;
}

static int64_t limited(uint64_t value)
{
	return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

/* Sets a slot; how far its bytes were off. */
static uint64_t set_slot(struct slot *slot, uint64_t bytes, uint64_t objects)
{
	const int64_t now = limited(bytes);
	const int64_t was = atomic_exchange_explicit(&slot->bytes, now, memory_order_relaxed);

	atomic_store_explicit(&slot->objects, limited(objects), memory_order_relaxed);
	return was > now ? (uint64_t)was - (uint64_t)now : (uint64_t)now - (uint64_t)was;
}

/* The slot that counts a namespace. */
static struct slot *slot_of(struct usage_file *file, uint64_t ns_hash)
{
	struct slot *slot = find_slot(file, ns_hash, true);

	return slot ? slot : &file->others;
}

/* In one order with the word of a scan, which is looked at next. */
static void add(struct slot *slot, int64_t bytes, int64_t objects)
{
	(void)atomic_fetch_add(&slot->bytes, bytes);
	(void)atomic_fetch_add(&slot->objects, objects);
}

void kvc_usage_add(struct kvc_usage_map *usage, uint64_t ns_hash, int64_t bytes_delta,
		   int64_t objects_delta)
{
	add(slot_of(usage->file, ns_hash), bytes_delta, objects_delta);
}

void kvc_usage_total(struct kvc_usage_map *usage, uint64_t *out_bytes, uint64_t *out_objects)
{
	const struct slot *slot = &usage->file->others;
	uint64_t bytes = clamped(&slot->bytes), objects = clamped(&slot->objects);

	for (size_t i = 0; i < KVC_USAGE_SLOTS; i++) {
		slot = &usage->file->slots[i];
		if (atomic_load_explicit(&slot->key, memory_order_relaxed) == 0)
			break;
		bytes = add_clamped(bytes, &slot->bytes);
		objects = add_clamped(objects, &slot->objects);
	}
	if (out_bytes)
		*out_bytes = bytes;
	if (out_objects)
		*out_objects = objects;
}

int kvc_usage_namespace(struct kvc_usage_map *usage, uint64_t ns_hash, uint64_t *out_bytes,
			uint64_t *out_objects)
{
	const struct slot *const slot = find_slot(usage->file, ns_hash, false);

	if (!slot)
		return -ENOENT;
	if (out_bytes)
		*out_bytes = clamped(&slot->bytes);
	if (out_objects)
		*out_objects = clamped(&slot->objects);
	return 0;
}

/* ---------------------------------------------------------------- recounts */

int kvc_usage_correct(struct kvc_usage_map *usage, uint64_t ns_hash, uint64_t bytes,
		      uint64_t objects, uint64_t *out_drift_bytes)
{
	struct slot *const slot = find_slot(usage->file, ns_hash, true);
	uint64_t drift;

	if (!slot)
		return kvc_fail(-ENOSPC, "namespace %016llx has no count of its own",
				(unsigned long long)ns_hash);
	drift = set_slot(slot, bytes, objects);
	if (out_drift_bytes)
		*out_drift_bytes = drift;
	return 0;
}

uint64_t kvc_usage_recounts(const struct kvc_usage_map *usage)
{
	return atomic_load_explicit(&usage->file->ended, memory_order_acquire);
}

void kvc_usage_hurry(struct kvc_usage_map *usage)
{
	atomic_store_explicit(&usage->file->hurried, kvc_usage_recounts(usage) + 1,
			      memory_order_relaxed);
}

bool kvc_usage_is_hurried(const struct kvc_usage_map *usage)
{
	return atomic_load_explicit(&usage->file->hurried, memory_order_relaxed) ==
	       kvc_usage_recounts(usage) + 1;
}

static bool is_counted(uint64_t key, const struct kvc_usage_count *counts, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if ((counts[i].ns_hash == 0 ? KEY_OF_ZERO : counts[i].ns_hash) == key)
			return true;
	return false;
}

uint64_t kvc_usage_recount(struct kvc_usage_map *usage, const struct kvc_usage_count *counts,
			   size_t count)
{
	uint64_t drift = 0, other_bytes = 0, other_objects = 0;

	/* Whoever counts beside others sees that, and begins again if need be. */
	atomic_store_explicit(&usage->file->scan, 0, memory_order_relaxed);
	for (size_t i = 0; i < KVC_USAGE_SLOTS; i++) {
		struct slot *const slot = &usage->file->slots[i];
		const uint64_t key = atomic_load_explicit(&slot->key, memory_order_relaxed);

		if (key == 0)
			break;
		if (!is_counted(key, counts, count))
			drift += set_slot(slot, 0, 0);
	}
	for (size_t i = 0; i < count; i++) {
		struct slot *const slot = find_slot(usage->file, counts[i].ns_hash, true);

		if (slot) {
			drift += set_slot(slot, counts[i].bytes, counts[i].objects);
		} else {
			other_bytes += counts[i].bytes;
			other_objects += counts[i].objects;
		}
	}
	drift += set_slot(&usage->file->others, other_bytes, other_objects);
	atomic_store(&usage->file->recounted, COUNTED);
	(void)atomic_fetch_add(&usage->file->ended, 1);
	return drift;
}

bool kvc_usage_is_untouched(const struct kvc_usage_map *usage)
{
	const struct usage_file *file = usage->file;

	return atomic_load(&file->slots[0].key) == 0 && atomic_load(&file->others.objects) == 0 &&
	       atomic_load(&file->others.bytes) == 0;
}

void kvc_usage_confirm(struct kvc_usage_map *usage)
{
	turn(usage->file, COUNTED_NOT, COUNTED);
}

void kvc_usage_drop(struct kvc_usage_map *usage)
{
	struct usage_file *file = usage->file;

	atomic_store_explicit(&file->scan, 0, memory_order_relaxed);
	atomic_store_explicit(&file->recounted, COUNTED_NOT, memory_order_relaxed);
	for (size_t i = 0; i < KVC_USAGE_SLOTS; i++)
		(void)set_slot(&file->slots[i], 0, 0);
	(void)set_slot(&file->others, 0, 0);
}

/* ---------------------------------------------------------------- counting beside others */

/*
 * The counts take everything that comes and goes, all the time. What does so in a folder before it
 * is counted is noted beside them (early), as the count of the folder has it in it. At the end a
 * count is
 *	what lay in the folders + what came and went in each after it was counted
 *	= what lay there + (the count now - the count at the beginning - early).
 * Where it cannot be told on which side of the count of its folder, or of the beginning, a change
 * was, the result may be too high, never too low: what came is noted only when it was on the early
 * side for sure, what went always when it may have been. A thread that had to wait for its turn
 * until the scan had ended finds that, and another one is due.
 */

/* Two numbers in one, as they are added together: 2 TiB and 2 million objects more or less, of one
 * namespace during one scan. */
static uint64_t packed(int64_t bytes, int64_t objects)
{
	return ((uint64_t)bytes << OBJECT_BITS) + (uint64_t)objects;
}

static int64_t objects_in(uint64_t early)
{
	const uint64_t half = UINT64_C(1) << (OBJECT_BITS - 1);

	return (int64_t)((early + half) & (2 * half - 1)) - (int64_t)half;
}

static int64_t bytes_in(uint64_t early)
{
	return (int64_t)(early - (uint64_t)objects_in(early)) / (INT64_C(1) << OBJECT_BITS);
}

static bool is_same_scan(uint64_t a, uint64_t b)
{
	return a && b && a >> TOKEN_SHIFT == b >> TOKEN_SHIFT;
}

/* Whether the folder's count is still to be made, or made again for this change: the scan that was
 * seen has noted the counts of its beginning, and goes on. */
static bool is_early(struct usage_file *file, uint64_t seen, unsigned folder)
{
	uint64_t scan = atomic_load(&file->scan);

	if (seen & STARTING)
		return false;
	while (is_same_scan(scan, seen)) {
		const uint64_t touched = (scan & ~TOUCH_MASK) | ((scan + TOUCH) & TOUCH_MASK);

		if (folder != (scan & DONE_MASK))
			return folder > (scan & DONE_MASK);
		if (scan & LAST_TIME)
			return false;
		if (atomic_compare_exchange_weak(&file->scan, &scan, touched))
			return true;
	}
	return false;
}

/* A scan that was settled meanwhile may lack it. */
static void note_early(struct usage_file *file, struct slot *slot, uint64_t seen, uint64_t early)
{
	(void)atomic_fetch_add(&slot->early, early);
	if (!is_same_scan(atomic_load(&file->scan), seen))
		set_due(file);
}

void kvc_usage_change(struct kvc_usage_map *usage, uint64_t ns_hash, unsigned folder,
		      int64_t bytes_delta, int64_t objects_delta)
{
	struct usage_file *file = usage->file;
	struct slot *slot = slot_of(file, ns_hash);
	const uint64_t seen = atomic_load(&file->scan);

	add(slot, bytes_delta, objects_delta);
	if (seen && is_early(file, seen, folder))
		note_early(file, slot, seen, packed(bytes_delta, objects_delta));
}

/* What went is in the counts of no folder that is counted after that. */
static void note_removed(struct usage_file *file, struct slot *slot, uint64_t seen, uint64_t before,
			 unsigned folder, uint64_t early)
{
	if (!seen || (is_same_scan(seen, before) && folder < (before & DONE_MASK)))
		return;
	note_early(file, slot, seen, early);
	(void)is_early(file, seen, folder);
}

/* A scan that was settled since may have found it gone already, and knew nothing of it. */
static bool is_missed(struct usage_file *file, const struct kvc_usage_before *before,
		      unsigned folder)
{
	const uint64_t settled = atomic_load(&file->settled) - before->settled;

	return settled > 1 || (settled == 1 && folder >= (before->scan & DONE_MASK));
}

/* It is noted first: with a scan that ends in between its count becomes right by what follows. */
void kvc_usage_removed(struct kvc_usage_map *usage, const struct kvc_usage_before *before,
		       uint64_t ns_hash, unsigned folder, uint64_t bytes)
{
	/* A size that is not known counts as none. */
	const int64_t delta = bytes > INT64_MAX ? 0 : -(int64_t)bytes;
	struct usage_file *file = usage->file;
	struct slot *slot = slot_of(file, ns_hash);
	uint64_t seen = atomic_load(&file->scan), now;

	/* What is noted while it starts may be made 0. */
	if (seen & STARTING)
		seen = 0;
	note_removed(file, slot, seen, before->scan, folder, packed(delta, -1));
	add(slot, delta, -1);
	now = atomic_load(&file->scan);
	if (now && !is_same_scan(now, seen))
		note_removed(file, slot, now, before->scan, folder, packed(delta, -1));
	if (is_missed(file, before, folder))
		set_due(file);
}

/* Those in use one after the other, then the others; NULL: there are no more. */
static struct slot *next_slot(struct usage_file *file, size_t *at)
{
	if (*at < KVC_USAGE_SLOTS && atomic_load(&file->slots[*at].key) == 0)
		*at = KVC_USAGE_SLOTS;
	return *at < KVC_USAGE_SLOTS  ? &file->slots[*at] :
	       *at == KVC_USAGE_SLOTS ? &file->others :
					NULL;
}

/* What is no more as this process left it changes nothing. */
static bool move_on(struct kvc_usage_map *usage, uint64_t now)
{
	uint64_t was = usage->scan;

	if (!atomic_compare_exchange_strong(&usage->file->scan, &was, now))
		return false;
	usage->scan = now;
	return true;
}

int kvc_usage_scan_begin(struct kvc_usage_map *usage, uint64_t token)
{
	struct usage_file *file = usage->file;
	struct slot *slot;

	if (!usage->bases)
		usage->bases = calloc(KVC_USAGE_SLOTS + 1, sizeof(*usage->bases));
	if (!usage->bases)
		return -ENOMEM;
	/* If it does not end, another one is due. */
	turn(file, COUNTED, COUNTED_AGAIN);
	turn(file, COUNTED_DUE, COUNTED_AGAIN);
	usage->scan = (token * UINT64_C(0x9e3779b97f4a7c15)) >> TOKEN_SHIFT << TOKEN_SHIFT;
	usage->scan |= UINT64_C(1) << 63 | STARTING;
	atomic_store(&file->scan, usage->scan);
	memset(usage->bases, 0, (KVC_USAGE_SLOTS + 1) * sizeof(*usage->bases));
	for (size_t i = 0; (slot = next_slot(file, &i)) != NULL; i++) {
		atomic_store(&slot->early, 0);
		usage->bases[i] = (struct base){ (uint64_t)atomic_load(&slot->bytes),
						 (uint64_t)atomic_load(&slot->objects) };
	}
	(void)move_on(usage, usage->scan & ~STARTING);
	return 0;
}

/* A recount by a process that knows of no scans tells by its result. */
bool kvc_usage_scan_goes_on(const struct kvc_usage_map *usage)
{
	const struct usage_file *file = usage->file;
	const uint64_t scan = atomic_load(&file->scan);

	return usage->bases && is_same_scan(scan, usage->scan) &&
	       (scan & STARTING) == (usage->scan & STARTING) &&
	       atomic_load(&file->recounted) != COUNTED;
}

struct kvc_usage_before kvc_usage_before(const struct kvc_usage_map *usage)
{
	const uint64_t settled = atomic_load(&usage->file->settled);

	return (struct kvc_usage_before){ .settled = settled,
					  .scan = atomic_load(&usage->file->scan) };
}

uint64_t kvc_usage_scan_position(const struct kvc_usage_map *usage)
{
	return atomic_load(&usage->file->scan) & ~TOUCH_MASK;
}

void kvc_usage_scan_folder(struct kvc_usage_map *usage, bool last_time)
{
	const uint64_t scan = atomic_load(&usage->file->scan);

	if (!kvc_usage_scan_goes_on(usage))
		return;
	usage->scan = scan;
	while (last_time && !(usage->scan & LAST_TIME) &&
	       !move_on(usage, usage->scan | LAST_TIME)) {
		if (!kvc_usage_scan_goes_on(usage))
			return;
		usage->scan = atomic_load(&usage->file->scan);
	}
}

int kvc_usage_scan_done(struct kvc_usage_map *usage)
{
	if (!kvc_usage_scan_goes_on(usage))
		return -ESTALE;
	if (move_on(usage, (usage->scan & ~(LAST_TIME | TOUCH_MASK)) + 1))
		return 1;
	return kvc_usage_scan_goes_on(usage) ? 0 : -ESTALE;
}

void kvc_usage_scan_end(struct kvc_usage_map *usage)
{
	uint64_t scan = atomic_load(&usage->file->scan);

	while (usage->bases && is_same_scan(scan, usage->scan) &&
	       !atomic_compare_exchange_weak(&usage->file->scan, &scan, 0))
		;
	free(usage->bases);
	usage->bases = NULL;
}

/* What the counts were, less what was found and is in them. */
static void take_found(struct kvc_usage_map *usage, const struct kvc_usage_count *counts,
		       size_t count)
{
	struct usage_file *file = usage->file;

	for (size_t i = 0; i < count; i++) {
		const struct slot *slot = slot_of(file, counts[i].ns_hash);
		struct base *base =
			&usage->bases[slot == &file->others ? KVC_USAGE_SLOTS :
							      (size_t)(slot - file->slots)];

		base->bytes -= counts[i].bytes;
		base->objects -= counts[i].objects;
	}
}

bool kvc_usage_scan_settle(struct kvc_usage_map *usage, const struct kvc_usage_count *counts,
			   size_t count, uint64_t *out_drift_bytes)
{
	struct usage_file *file = usage->file;
	const struct base *bases = usage->bases;
	struct slot *slot;
	uint64_t drift = 0;

	if (!kvc_usage_scan_goes_on(usage) || (usage->scan & DONE_MASK) != KVC_USAGE_FOLDERS)
		return false;
	(void)atomic_fetch_add(&file->settled, 1);
	/* From now on nobody notes anything beside the counts. */
	if (!move_on(usage, 0))
		return false;
	take_found(usage, counts, count);
	for (size_t i = 0; (slot = next_slot(file, &i)) != NULL; i++) {
		const uint64_t early = atomic_exchange(&slot->early, 0);
		const uint64_t bytes = bases[i].bytes + (uint64_t)bytes_in(early);
		const uint64_t objects = bases[i].objects + (uint64_t)objects_in(early);

		add(slot, (int64_t)(0 - bytes), (int64_t)(0 - objects));
		drift += bytes > INT64_MAX ? 0 - bytes : bytes;
	}
	/* Somebody may have died meanwhile in a folder that was counted: then it stays due. */
	turn(file, COUNTED_NOT, COUNTED);
	turn(file, COUNTED_AGAIN, COUNTED);
	(void)atomic_fetch_add(&file->ended, 1);
	kvc_usage_scan_end(usage);
	*out_drift_bytes = drift;
	return true;
}
