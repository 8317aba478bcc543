/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folders of a root that are ours by their names: "<slug>-<16 hex>" for a namespace, two hex
 * digits below it (or, in nixl naming, in the root). Whatever else lies in a root is nobody's
 * business. Reader: core/walk.c.
 */
#ifndef KVC_CORE_FOLDER_H
#define KVC_CORE_FOLDER_H

#include "core/root.h"

/* A namespace's folder name, as kvc_namespace_id() makes it. */
bool kvc_folder_is_namespace(const char *name);
/* The namespace's hash, which is the end of its id; 0: it is none. */
uint64_t kvc_folder_ns_hash(const char *name);
/* Two lower-case hex digits; the text may go on. */
bool kvc_folder_is_hash(const char *name);
/* The number of a hash folder; 0 of what is none. */
unsigned kvc_folder_number(const char *name);
/* The same of the folder that an object's path tells. */
unsigned kvc_folder_of_path(const char *path);

/* Whether a path that comes from outside stays inside of the root: plugins rely on it. */
bool kvc_folder_is_inside(const char *path);

/*
 * kvc_folder_each - calls fn for each folder right below the root whose name is_ours accepts.
 * Only for roots with a local_path. A folder that cannot be read is an error, whose text names it.
 * Non-zero from fn stops and is returned.
 */
int kvc_folder_each(const struct kvc_root *root, bool (*is_ours)(const char *name),
		    int (*fn)(void *context, const char *name), void *context);

/* Removes the empty hash folders of a namespace, and its folder once it is empty. Roots without a
 * local_path have none. */
void kvc_folder_prune(const struct kvc_root *root, const char *id);

#endif
