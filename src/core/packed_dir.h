/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of core/packed_file.h share: a file that has no name yet, files in memory, fork.
 * Readers: core/packed_dir.c, packed_memory.c, packed_map.c, packed_lock.c.
 */
#ifndef KVC_CORE_PACKED_DIR_H
#define KVC_CORE_PACKED_DIR_H

#include "core/packed_file.h"

/* Whether the files lie in memory: they have no links to count, and their locks are those of this
 * process. */
bool kvc_packed_dir_is_memory(const struct kvc_packed_dir *dir);

mode_t kvc_packed_dir_file_mode(const struct kvc_packed_dir *dir);

/* ---------------------------------------------------------------- drafts */

#define KVC_PACKED_DRAFT_PREFIX ".kvctmp."

/* A file that is being made. */
struct kvc_packed_draft {
	int fd;
	int folder_fd;	    /* of `leaf`; -1: memory */
	const char *leaf;   /* last component of the name that was given */
	char temporary[40]; /* "": it has no name */
};

/*
 * kvc_packed_dir_draft - an empty file for `name`, whose folders are made. -EEXIST: there is such a
 * file. It has no name, so that nothing of it stays when its maker is killed; or, where the file
 * system cannot do that, one that goes with the next such draft in that folder.
 * @name    must live until kvc_packed_dir_drop()
 * @named   with a name at any rate
 */
int kvc_packed_dir_draft(struct kvc_packed_dir *dir, const char *name, bool named,
			 struct kvc_packed_draft *out);

/* Gives it its name. -EEXIST: somebody was faster. -ENOENT: its folder was removed, or a file
 * without a name cannot get one here; a named one can. */
int kvc_packed_dir_publish(struct kvc_packed_dir *dir, const char *name,
			   struct kvc_packed_draft *draft);

/* Closes the draft; what was not published is gone. */
void kvc_packed_dir_drop(struct kvc_packed_draft *draft);

/* ---------------------------------------------------------------- memory */

/* One set of files per uuid, of this process: it stays until the process ends, a forked child
 * begins without. A descriptor is a duplicate, its file keeps no offset that matters. */
struct kvc_packed_memory;

int kvc_packed_memory_find(const uint8_t uuid[16], struct kvc_packed_memory **out);

/* A duplicate; -ENOENT. create: an empty one when it is not there. */
int kvc_packed_memory_file(struct kvc_packed_memory *memory, const char *name, bool create,
			   bool exclusive, mode_t mode, int *out_fd);

/* An empty file without a name; -EEXIST: the name is taken already. */
int kvc_packed_memory_draft(struct kvc_packed_memory *memory, const char *name, int *out_fd);

/* Takes a duplicate of fd in. -EEXIST. */
int kvc_packed_memory_publish(struct kvc_packed_memory *memory, const char *name, int fd);

int kvc_packed_memory_remove(struct kvc_packed_memory *memory, const char *name);

/* Whether a file was removed: what st_nlink says elsewhere. */
bool kvc_packed_memory_removed(mode_t mode);

/* Calls fn with what follows "folder/" of each name below the folder, also of deeper ones, while
 * the lock is held. */
int kvc_packed_memory_each(struct kvc_packed_memory *memory, const char *folder,
			   int (*fn)(void *context, const char *rest), void *context);

/* ---------------------------------------------------------------- fork */

/* fork() waits until nobody is in the middle of something; these take and give back the lock of the
 * process. The child: see above. */
void kvc_packed_memory_fork_prepare(void);
void kvc_packed_memory_fork_parent(void);
void kvc_packed_memory_fork_child(void);

#endif
