/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ghost.h"

#include "core/sharedfile.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#define WAYS		8u /* of a bucket: a cache line */
#define ENTRIES_MIN	512u
#define BYTES_PER_ENTRY (UINT64_C(64) << 10) /* of the device: small pages */

struct kvc_ghosts {
	struct kvc_sharedfile *shared;
	_Atomic uint64_t *entries; /* group hashes, 0: none; the latest of a bucket first */
	uint64_t buckets;	   /* a power of two */
};

uint64_t kvc_ghost_entries(uint64_t device_bytes)
{
	uint64_t entries = ENTRIES_MIN;

	while (entries < KVC_GHOST_ENTRIES_MAX && entries * BYTES_PER_ENTRY < device_bytes)
		entries *= 2;
	return entries;
}

int kvc_ghost_open(const char *path, mode_t mode, uint64_t device_bytes, struct kvc_ghosts **out)
{
	const uint64_t entries = kvc_ghost_entries(device_bytes);
	const struct kvc_mapfile_kind kind = {
		.magic = { 'K', 'V', 'C', 'G', 'H', 'O', '\r', '\n' },
		.major = 1,
		.header_bytes = KVC_SHAREDFILE_HEADER,
		.file_bytes = KVC_SHAREDFILE_HEADER + entries * sizeof(uint64_t),
	};
	struct kvc_ghosts *ghosts = calloc(1, sizeof(*ghosts));

	if (!ghosts || kvc_sharedfile_open(&kind, path, mode, &ghosts->shared) != 0) {
		free(ghosts);
		return -ENOMEM;
	}
	ghosts->entries = (_Atomic uint64_t *)((char *)kvc_sharedfile_memory(ghosts->shared) +
					       KVC_SHAREDFILE_HEADER);
	ghosts->buckets = entries / WAYS;
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
