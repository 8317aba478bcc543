/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ghost.h"

#include "core/sharedfile.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#define WAYS		8u /* of a bucket: a cache line */
#define ENTRIES_MIN	512u
#define BYTES_PER_ENTRY (UINT64_C(64) << 10) /* of what the root may hold: small pages */

struct kvc_ghosts {
	struct kvc_sharedfile *shared;
	_Atomic uint64_t *entries; /* group hashes, 0: none; the latest of a bucket first */
	uint64_t buckets;	   /* a power of two */
};

static uint64_t bytes_of(uint64_t entries)
{
	return KVC_SHAREDFILE_HEADER + entries * sizeof(uint64_t);
}

uint64_t kvc_ghost_entries(uint64_t held_bytes)
{
	uint64_t entries = ENTRIES_MIN;

	while (entries < KVC_GHOST_ENTRIES_MAX && entries * BYTES_PER_ENTRY < held_bytes)
		entries *= 2;
	return entries;
}

static bool is_size(uint64_t bytes)
{
	for (uint64_t n = ENTRIES_MIN; n <= KVC_GHOST_ENTRIES_MAX; n *= 2)
		if (bytes == bytes_of(n))
			return true;
	return false;
}

static void set_list(struct kvc_ghosts *ghosts, void *memory, uint64_t bytes)
{
	ghosts->entries = (_Atomic uint64_t *)((char *)memory + KVC_SHAREDFILE_HEADER);
	ghosts->buckets = (bytes - KVC_SHAREDFILE_HEADER) / sizeof(uint64_t) / WAYS;
}

/* The earliest of each bucket first. */
static void move_list(const void *from, uint64_t from_bytes, void *to, uint64_t to_bytes)
{
	struct kvc_ghosts old, new;

	set_list(&old, (void *)(uintptr_t)from, from_bytes);
	set_list(&new, to, to_bytes);
	for (uint64_t b = 0; b < old.buckets; b++)
		for (unsigned i = WAYS; i-- > 0;) {
			const uint64_t g = atomic_load_explicit(&old.entries[b * WAYS + i],
								memory_order_relaxed);

			if (g != 0)
				kvc_ghost_add(&new, g);
		}
}

static const struct kvc_sharedfile_sizes ghost_sizes = { is_size, move_list };

int kvc_ghost_open(const char *path, mode_t mode, uint64_t held_bytes, struct kvc_ghosts **out)
{
	const struct kvc_mapfile_kind kind = {
		.magic = { 'K', 'V', 'C', 'G', 'H', 'O', '\r', '\n' },
		.major = 1,
		.header_bytes = KVC_SHAREDFILE_HEADER,
		.file_bytes = bytes_of(kvc_ghost_entries(held_bytes)),
	};
	struct kvc_ghosts *ghosts = calloc(1, sizeof(*ghosts));

	if (!ghosts || kvc_sharedfile_open(&kind, &ghost_sizes, path, mode, &ghosts->shared) != 0) {
		free(ghosts);
		return -ENOMEM;
	}
	set_list(ghosts, kvc_sharedfile_memory(ghosts->shared),
		 kvc_sharedfile_bytes(ghosts->shared));
	*out = ghosts;
	return 0;
}

void kvc_ghost_close(struct kvc_ghosts *ghosts)
{
	if (!ghosts)
		return;
	kvc_sharedfile_close(ghosts->shared);
	free(ghosts);
}

void kvc_ghost_check(struct kvc_ghosts *ghosts)
{
	(void)kvc_sharedfile_check(ghosts->shared);
}

static _Atomic uint64_t *bucket_of(const struct kvc_ghosts *ghosts, uint64_t g)
{
	/* The low byte of a group hash is its hash folder, which a root of few folders repeats. */
	return ghosts->entries + (g >> 8 & (ghosts->buckets - 1)) * WAYS;
}

void kvc_ghost_add(struct kvc_ghosts *ghosts, uint64_t g)
{
	_Atomic uint64_t *bucket = bucket_of(ghosts, g);
	uint64_t moved = g;

	/* One place down, as far as the first free one. */
	for (unsigned i = 0; i < WAYS && moved != 0; i++) {
		moved = atomic_exchange_explicit(&bucket[i], moved, memory_order_relaxed);
		if (moved == g)
			break;
	}
}

bool kvc_ghost_has(const struct kvc_ghosts *ghosts, uint64_t g)
{
	_Atomic uint64_t *bucket = bucket_of(ghosts, g);

	for (unsigned i = 0; i < WAYS; i++)
		if (atomic_load_explicit(&bucket[i], memory_order_relaxed) == g)
			return g != 0;
	return false;
}
