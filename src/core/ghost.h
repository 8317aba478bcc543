/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which groups were evicted from a root not long ago: a bounded table of their hashes, shared by
 * the processes of a host in the mapped file `<root>/.kvcellar/ghosts` (docs/on-disk-format.md).
 * What is asked for again soon after its eviction says that the capacity is too small; a policy
 * may take it back as one that was used more than once.
 *
 * It forgets the earliest of a bucket when it is full, and may lose an entry to a race. All
 * functions but open and close are thread-safe and cost one cache line.
 */
#ifndef KVC_CORE_GHOST_H
#define KVC_CORE_GHOST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct kvc_ghosts; /* of one root */

/* What kvc_ghost_entries() never exceeds. */
#define KVC_GHOST_ENTRIES_MAX 262144u

/* How many entries a device of that size is worth; 0: its size is not known. */
uint64_t kvc_ghost_entries(uint64_t device_bytes);

/* path and mode as kvc_sharedfile_open(). Errors: -ENOMEM. */
int kvc_ghost_open(const char *path, mode_t mode, uint64_t device_bytes, struct kvc_ghosts **out);
void kvc_ghost_close(struct kvc_ghosts *ghosts);

/* For a housekeeping thread, every few seconds. */
void kvc_ghost_check(struct kvc_ghosts *ghosts);

/* A group was evicted. */
void kvc_ghost_add(struct kvc_ghosts *ghosts, uint64_t g);
/* Whether it is in the list. It stays there when it is stored again: others of its group follow. */
bool kvc_ghost_has(const struct kvc_ghosts *ghosts, uint64_t g);

#endif
