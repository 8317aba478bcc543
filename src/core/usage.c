/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots are claimed in order, the first free one by compare-and-swap of its key, and never given
 * back: a search ends at the first free slot, and the few namespaces of a root lie in front.
 */
#include "core/usage_internal.h"

#include "core/host.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_BYTES KVC_SHAREDFILE_HEADER

static const struct kvc_mapfile_kind usage_kind = {
	.magic = { 'K', 'V', 'C', 'U', 'S', 'E', '\r', '\n' },
	.major = 1,
	.minor = 0,
	.header_bytes = HEADER_BYTES,
	.file_bytes = sizeof(struct kvc_usage_file),
};

/* ---------------------------------------------------------------- open, close, check */

/* What was mapped when the power went may have reached the disk, or not: who comes first after a
 * start of the system has it counted again. */
static void check_boot(struct kvc_usage_file *file)
{
	const uint64_t one = atomic_load(&file->boot_id[0]), two = atomic_load(&file->boot_id[1]);
	uint64_t boot_id[2];

	if (kvc_host_boot_id(boot_id) || (one == boot_id[0] && two == boot_id[1]))
		return;
	if (one || two)
		kvc_usage_mark_due(file);
	atomic_store(&file->boot_id[0], boot_id[0]);
	atomic_store(&file->boot_id[1], boot_id[1]);
}

int kvc_usage_open(const char *path, mode_t mode, struct kvc_usage_map **out)
{
	struct kvc_usage_map *usage = calloc(1, sizeof(*usage));

	if (!usage || kvc_sharedfile_open(&usage_kind, NULL, path, mode, &usage->shared) != 0) {
		free(usage);
		return kvc_fail(-ENOMEM, "no memory for the usage of a root");
	}
	usage->file = kvc_sharedfile_memory(usage->shared);
	check_boot(usage->file);
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
static int read_counts(const char *path, struct kvc_usage_file *file)
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
	return atomic_load_explicit(&usage->file->recounted, memory_order_relaxed) ==
	       KVC_COUNTED_NOT;
}

bool kvc_usage_is_due(const struct kvc_usage_map *usage)
{
	return atomic_load_explicit(&usage->file->recounted, memory_order_relaxed) >=
	       KVC_COUNTED_DUE;
}

void kvc_usage_turn(struct kvc_usage_file *file, uint64_t was, uint64_t now)
{
	(void)atomic_compare_exchange_strong(&file->recounted, &was, now);
}

/* In this order: what turns from one into the other in between is a scan that has it in it. */
void kvc_usage_mark_due(struct kvc_usage_file *file)
{
	kvc_usage_turn(file, KVC_COUNTED_AGAIN, KVC_COUNTED_DUE);
	kvc_usage_turn(file, KVC_COUNTED, KVC_COUNTED_DUE);
}

void kvc_usage_set_due(struct kvc_usage_map *usage, bool due)
{
	if (due)
		kvc_usage_mark_due(usage->file);
	else
		kvc_usage_turn(usage->file, KVC_COUNTED_AGAIN, KVC_COUNTED);
}

bool kvc_usage_is_shared(const struct kvc_usage_map *usage)
{
	return kvc_sharedfile_is_shared(usage->shared);
}

int kvc_usage_check(struct kvc_usage_map *usage)
{
	const int changed = kvc_sharedfile_check(usage->shared);

	/* What was counted in the file that is gone is not in this one, nor in a scan of it. */
	if (changed) {
		check_boot(usage->file);
		atomic_store(&usage->file->scan, 0);
		kvc_usage_mark_due(usage->file);
	}
	/* What was counted in memory before is in no file. */
	if (changed == 2)
		atomic_store_explicit(&usage->file->recounted, KVC_COUNTED_NOT,
				      memory_order_relaxed);
	return changed != 0;
}

/* ---------------------------------------------------------------- slots */

/* The slot of the namespace; NULL when it has none and may not claim one, or none is left. */
static struct kvc_usage_slot *find_slot(struct kvc_usage_file *file, uint64_t ns_hash, bool claim)
{
	const uint64_t key = ns_hash == 0 ? KVC_USAGE_KEY_OF_ZERO : ns_hash;

	for (size_t i = 0; i < KVC_USAGE_SLOTS; i++) {
		struct kvc_usage_slot *const slot = &file->slots[i];
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
static uint64_t set_slot(struct kvc_usage_slot *slot, uint64_t bytes, uint64_t objects)
{
	const int64_t now = limited(bytes);
	const int64_t was = atomic_exchange_explicit(&slot->bytes, now, memory_order_relaxed);

	atomic_store_explicit(&slot->objects, limited(objects), memory_order_relaxed);
	return was > now ? (uint64_t)was - (uint64_t)now : (uint64_t)now - (uint64_t)was;
}

struct kvc_usage_slot *kvc_usage_slot_of(struct kvc_usage_file *file, uint64_t ns_hash)
{
	struct kvc_usage_slot *slot = find_slot(file, ns_hash, true);

	return slot ? slot : &file->others;
}

void kvc_usage_add_to(struct kvc_usage_slot *slot, int64_t bytes, int64_t objects)
{
	(void)atomic_fetch_add(&slot->bytes, bytes);
	(void)atomic_fetch_add(&slot->objects, objects);
}

void kvc_usage_add(struct kvc_usage_map *usage, uint64_t ns_hash, int64_t bytes_delta,
		   int64_t objects_delta)
{
	kvc_usage_add_to(kvc_usage_slot_of(usage->file, ns_hash), bytes_delta, objects_delta);
}

void kvc_usage_total(struct kvc_usage_map *usage, uint64_t *out_bytes, uint64_t *out_objects)
{
	const struct kvc_usage_slot *slot = &usage->file->others;
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
	const struct kvc_usage_slot *const slot = find_slot(usage->file, ns_hash, false);

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
	struct kvc_usage_slot *const slot = find_slot(usage->file, ns_hash, true);
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
		if ((counts[i].ns_hash == 0 ? KVC_USAGE_KEY_OF_ZERO : counts[i].ns_hash) == key)
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
		struct kvc_usage_slot *const slot = &usage->file->slots[i];
		const uint64_t key = atomic_load_explicit(&slot->key, memory_order_relaxed);

		if (key == 0)
			break;
		if (!is_counted(key, counts, count))
			drift += set_slot(slot, 0, 0);
	}
	for (size_t i = 0; i < count; i++) {
		struct kvc_usage_slot *const slot = find_slot(usage->file, counts[i].ns_hash, true);

		if (slot) {
			drift += set_slot(slot, counts[i].bytes, counts[i].objects);
		} else {
			other_bytes += counts[i].bytes;
			other_objects += counts[i].objects;
		}
	}
	drift += set_slot(&usage->file->others, other_bytes, other_objects);
	atomic_store(&usage->file->recounted, KVC_COUNTED);
	(void)atomic_fetch_add(&usage->file->ended, 1);
	return drift;
}

bool kvc_usage_is_untouched(const struct kvc_usage_map *usage)
{
	const struct kvc_usage_file *file = usage->file;

	return atomic_load(&file->slots[0].key) == 0 && atomic_load(&file->others.objects) == 0 &&
	       atomic_load(&file->others.bytes) == 0;
}

void kvc_usage_confirm(struct kvc_usage_map *usage)
{
	kvc_usage_turn(usage->file, KVC_COUNTED_NOT, KVC_COUNTED);
}

void kvc_usage_drop(struct kvc_usage_map *usage)
{
	struct kvc_usage_file *file = usage->file;

	atomic_store_explicit(&file->scan, 0, memory_order_relaxed);
	atomic_store_explicit(&file->recounted, KVC_COUNTED_NOT, memory_order_relaxed);
	for (size_t i = 0; i < KVC_USAGE_SLOTS; i++)
		(void)set_slot(&file->slots[i], 0, 0);
	(void)set_slot(&file->others, 0, 0);
}
