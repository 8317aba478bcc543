/* SPDX-License-Identifier: Apache-2.0 */
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
#include "core/usage_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The word of a scan, from its low bits on: folders that are counted; what follows; changes in the
 * folder that is being counted, modulo their mask; its token. */
#define DONE_MASK   UINT64_C(0x1ff)
#define STARTING    (UINT64_C(1) << 9)	/* the counts at its beginning are being noted */
#define LAST_TIME   (UINT64_C(1) << 10) /* its folder is not counted again, whatever changes */
#define TOUCH	    (UINT64_C(1) << 11)
#define TOUCH_MASK  (UINT64_C(0xfffff) << 11)
#define TOKEN_SHIFT 31u
#define OBJECT_BITS 22u

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
static bool is_early(struct kvc_usage_file *file, uint64_t seen, unsigned folder)
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
static void note_early(struct kvc_usage_file *file, struct kvc_usage_slot *slot, uint64_t seen,
		       uint64_t early)
{
	(void)atomic_fetch_add(&slot->early, early);
	if (!is_same_scan(atomic_load(&file->scan), seen))
		kvc_usage_mark_due(file);
}

void kvc_usage_change(struct kvc_usage_map *usage, uint64_t ns_hash, unsigned folder,
		      int64_t bytes_delta, int64_t objects_delta)
{
	struct kvc_usage_file *file = usage->file;
	struct kvc_usage_slot *slot = kvc_usage_slot_of(file, ns_hash);
	const uint64_t seen = atomic_load(&file->scan);

	kvc_usage_add_to(slot, bytes_delta, objects_delta);
	if (seen && is_early(file, seen, folder))
		note_early(file, slot, seen, packed(bytes_delta, objects_delta));
}

/* What went is in the counts of no folder that is counted after that. */
static void note_removed(struct kvc_usage_file *file, struct kvc_usage_slot *slot, uint64_t seen,
			 uint64_t before, unsigned folder, uint64_t early)
{
	if (!seen || (is_same_scan(seen, before) && folder < (before & DONE_MASK)))
		return;
	note_early(file, slot, seen, early);
	(void)is_early(file, seen, folder);
}

/* A scan that was settled since may have found it gone already, and knew nothing of it. */
static bool is_missed(struct kvc_usage_file *file, const struct kvc_usage_before *before,
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
	struct kvc_usage_file *file = usage->file;
	struct kvc_usage_slot *slot = kvc_usage_slot_of(file, ns_hash);
	uint64_t seen = atomic_load(&file->scan), now;

	/* What is noted while it starts may be made 0. */
	if (seen & STARTING)
		seen = 0;
	note_removed(file, slot, seen, before->scan, folder, packed(delta, -1));
	kvc_usage_add_to(slot, delta, -1);
	now = atomic_load(&file->scan);
	if (now && !is_same_scan(now, seen))
		note_removed(file, slot, now, before->scan, folder, packed(delta, -1));
	if (is_missed(file, before, folder))
		kvc_usage_mark_due(file);
}

/* Those in use one after the other, then the others; NULL: there are no more. */
static struct kvc_usage_slot *next_slot(struct kvc_usage_file *file, size_t *at)
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
	struct kvc_usage_file *file = usage->file;
	struct kvc_usage_slot *slot;

	if (!usage->bases)
		usage->bases = calloc(KVC_USAGE_SLOTS + 1, sizeof(*usage->bases));
	if (!usage->bases)
		return -ENOMEM;
	/* If it does not end, another one is due. */
	kvc_usage_turn(file, KVC_COUNTED, KVC_COUNTED_AGAIN);
	kvc_usage_turn(file, KVC_COUNTED_DUE, KVC_COUNTED_AGAIN);
	usage->scan = (token * UINT64_C(0x9e3779b97f4a7c15)) >> TOKEN_SHIFT << TOKEN_SHIFT;
	usage->scan |= UINT64_C(1) << 63 | STARTING;
	atomic_store(&file->scan, usage->scan);
	memset(usage->bases, 0, (KVC_USAGE_SLOTS + 1) * sizeof(*usage->bases));
	for (size_t i = 0; (slot = next_slot(file, &i)) != NULL; i++) {
		atomic_store(&slot->early, 0);
		usage->bases[i] = (struct kvc_usage_base){ (uint64_t)atomic_load(&slot->bytes),
							   (uint64_t)atomic_load(&slot->objects) };
	}
	(void)move_on(usage, usage->scan & ~STARTING);
	return 0;
}

/* A recount by a process that knows of no scans tells by its result. */
bool kvc_usage_scan_goes_on(const struct kvc_usage_map *usage)
{
	const struct kvc_usage_file *file = usage->file;
	const uint64_t scan = atomic_load(&file->scan);

	return usage->bases && is_same_scan(scan, usage->scan) &&
	       (scan & STARTING) == (usage->scan & STARTING) &&
	       atomic_load(&file->recounted) != KVC_COUNTED;
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
	struct kvc_usage_file *file = usage->file;

	for (size_t i = 0; i < count; i++) {
		const struct kvc_usage_slot *slot = kvc_usage_slot_of(file, counts[i].ns_hash);
		struct kvc_usage_base *base =
			&usage->bases[slot == &file->others ? KVC_USAGE_SLOTS :
							      (size_t)(slot - file->slots)];

		base->bytes -= counts[i].bytes;
		base->objects -= counts[i].objects;
	}
}

bool kvc_usage_scan_settle(struct kvc_usage_map *usage, const struct kvc_usage_count *counts,
			   size_t count, uint64_t *out_drift_bytes)
{
	struct kvc_usage_file *file = usage->file;
	const struct kvc_usage_base *bases = usage->bases;
	struct kvc_usage_slot *slot;
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

		kvc_usage_add_to(slot, (int64_t)(0 - bytes), (int64_t)(0 - objects));
		drift += bytes > INT64_MAX ? 0 - bytes : bytes;
	}
	/* Somebody may have died meanwhile in a folder that was counted: then it stays due. */
	kvc_usage_turn(file, KVC_COUNTED_NOT, KVC_COUNTED);
	kvc_usage_turn(file, KVC_COUNTED_AGAIN, KVC_COUNTED);
	(void)atomic_fetch_add(&file->ended, 1);
	kvc_usage_scan_end(usage);
	*out_drift_bytes = drift;
	return true;
}
