/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over stored objects: list, verify, clear, recount, and the trailer of one object. None of
 * it is on the data path. Readers: core/describe.c, connector/object.c.
 */
#ifndef KVC_CORE_WALK_H
#define KVC_CORE_WALK_H

#include "core/root.h"

#include <kvcellar/kvcellar.h>

struct kvc_packed_item;

/* An object's path taken apart: "<folder>/<hash folder>/<name>" or what the root has of it. In a
 * slot of a packed root (slot, else NULL) it is that of core/packed_walk.h. */
struct kvc_walk_entry {
	struct kvc_root *root;
	const struct kvc_packed_item *slot;
	const struct kvc_list_entry *entry;
	char folder[80]; /* namespace id, or "" in nixl naming */
	const char *name;
};
typedef int (*kvc_walk_fn)(void *context, const struct kvc_walk_entry *entry);

/* Each object of namespace `id` (NULL: all) of one root; housekeeping and folders that are not ours
 * are left out. A folder of ours that cannot be read is an error, which names it, after everything
 * else was walked. */
int kvc_walk_root(struct kvc_root *root, const char *id, kvc_walk_fn fn, void *context);

/* Whether a file name is of the model or namespace; NULL: whatever lies in its folder. */
typedef bool (*kvc_walk_belongs_fn)(const char *name, size_t bytes, const char *model);

/* kvc_object_list(), kvc_store_verify() and kvc_namespace_clear() without the connector's part. */
int kvc_walk_list(struct kvc_store *store, const char *id, kvc_walk_belongs_fn belongs,
		  kvc_object_fn fn, void *context);
int kvc_walk_verify(struct kvc_store *store, const char *id, kvc_walk_belongs_fn belongs,
		    bool remove, kvc_verify_fn fn, void *context);
int kvc_walk_clear(struct kvc_store *store, const char *id, bool dry_run,
		   kvc_walk_belongs_fn belongs, struct kvc_clear_report *out);

/* Corrects the usage counters, and the counts of a packed root's index, by what is there. */
int kvc_walk_recount(struct kvc_root *root);

/* What a root holds, as it is counted: files and slots. */
void kvc_walk_usage(struct kvc_root *root, uint64_t *out_bytes, uint64_t *out_objects);

#endif
