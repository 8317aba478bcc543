/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of the packed layout's index: folders, mappings that survive what happens to their file,
 * locks. Readers: core/packed*.c.
 */
#ifndef KVC_CORE_PACKED_FILE_H
#define KVC_CORE_PACKED_FILE_H

#include "core/mapfile.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---------------------------------------------------------------- folders */

/* Where the files of a root's index lie: below a folder, or, for roots that have none, in memory
 * of this process (one set of files per uuid, which stays until the process ends). A forked
 * child has none of the files in memory: the data that they tell of is a copy in the child, they
 * would not be. Functions are thread-safe. */
struct kvc_packed_dir;

struct kvc_packed_dir_params {
	const char *local_path; /* NULL: memory */
	uint8_t uuid[16];
	mode_t file_mode;
	mode_t folder_mode;
	bool read_only;
};

int kvc_packed_dir_open(const struct kvc_packed_dir_params *params, struct kvc_packed_dir **out);
void kvc_packed_dir_close(struct kvc_packed_dir *dir); /* NULL: nothing */

/* A descriptor of file `name` ("folder/folder/name", no '.' components, symlinks are not followed).
 * flags: O_RDONLY or O_RDWR, with O_CREAT also its folders are made; O_EXCL. -EROFS: the dir is
 * read_only; -EINVAL: no such name may be, or no file lies there; -ELOOP, -ENOTDIR: a symlink. In
 * memory it is a duplicate of the only descriptor: use pread() and pwrite(). */
int kvc_packed_dir_file(struct kvc_packed_dir *dir, const char *name, int flags, int *out_fd);

/* Content and name of a file are on stable storage. */
int kvc_packed_dir_sync(struct kvc_packed_dir *dir, const char *name);

/* -ENOENT when it is not there. remove_folder: an empty folder, and those above it below the root
 * as far as they are empty. */
int kvc_packed_dir_remove(struct kvc_packed_dir *dir, const char *name);
int kvc_packed_dir_remove_folder(struct kvc_packed_dir *dir, const char *folder);

/* Calls fn for each file (not folder, nor one that is being made) of a folder; fn may remove it.
 * Non-zero stops and is returned. -ENOENT. */
int kvc_packed_dir_list(struct kvc_packed_dir *dir, const char *folder,
			int (*fn)(void *context, const char *name), void *context);

/* ---------------------------------------------------------------- mappings */

/* A mapped file, guarded (core/guard.h): when it is cut, or its device fails, the page that was
 * touched becomes zeros of this process and *broken is set. */
struct kvc_packed_map {
	void *memory;
	uint64_t bytes;
	int fd;		  /* of the file, -1 after kvc_packed_map_close_fd(), or: none */
	bool memory_file; /* of a root in memory */
	atomic_bool *broken;
	struct kvc_guard *guard;
};

enum kvc_packed_map_flag {
	KVC_PACKED_MAP_READ_ONLY = 1u << 0,
	KVC_PACKED_MAP_PRIVATE = 1u << 1, /* writes stay in this process */
};

/*
 * kvc_packed_map_create - makes the file whole (blocks allocated, header written) under a temporary
 * name and then gives it its name. -EEXIST: it is there already (and untouched). -ENOSPC. Nothing
 * is synchronised: after a power loss it may be a file of zeros.
 * @header   kind->header_bytes, with the kind's own fields set
 */
int kvc_packed_map_create(struct kvc_packed_dir *dir, const char *name,
			  const struct kvc_mapfile_kind *kind, uint8_t *header);

/*
 * kvc_packed_map_open - checks header and size and maps it.
 * @kind     file_bytes 0: as the header says (at least as long must the file be)
 * @header   NULL, or gets the header as checked; with -EPROTONOSUPPORT its common part
 * @broken   NULL, or is set when a page is lost; lives as long as the mapping
 * Errors: -ENOENT, and as kvc_mapfile_check().
 */
int kvc_packed_map_open(struct kvc_packed_dir *dir, const char *name,
			const struct kvc_mapfile_kind *kind, uint8_t *header, unsigned flags,
			atomic_bool *broken, struct kvc_packed_map *out);

/* Zeroed memory of this process, with no file. -ENOMEM. */
int kvc_packed_map_zeros(uint64_t bytes, struct kvc_packed_map *out);

/* Closes the descriptor, keeps the memory. close: both; nothing of it may be in use. */
void kvc_packed_map_close_fd(struct kvc_packed_map *map);
void kvc_packed_map_close(struct kvc_packed_map *map);

/* Whether the mapped file has no name any more (needs fd). One fstat(), so it also sets *broken
 * when the file is shorter than the mapping. */
bool kvc_packed_map_removed(const struct kvc_packed_map *map);

/* ---------------------------------------------------------------- locks */

/* Locks on single bytes of a file (below 256), held by this opening of it: OFD locks, which end
 * with the process. In a forked child the file is closed, which takes nothing from the parent;
 * the locks cannot be used there (-ESTALE), but closed. Thread-safe. */
struct kvc_packed_lock;

int kvc_packed_lock_open(struct kvc_packed_dir *dir, const char *name, bool read_only,
			 struct kvc_packed_lock **out);
void kvc_packed_lock_close(struct kvc_packed_lock *lock); /* NULL: nothing */

/* try: -EAGAIN when others hold it; -EROFS: exclusive, and opened read_only. wait: -ETIMEDOUT at
 * deadline_ns (CLOCK_MONOTONIC). Taking a byte that is held in the other mode converts it. The
 * threads of one opening do not exclude each other: a mutex does. */
int kvc_packed_lock_try(struct kvc_packed_lock *lock, uint32_t byte, bool exclusive);
int kvc_packed_lock_wait(struct kvc_packed_lock *lock, uint32_t byte, bool exclusive,
			 uint64_t deadline_ns);
/* For those who remove files that nobody has written for long. */
void kvc_packed_lock_touch(struct kvc_packed_lock *lock);

void kvc_packed_lock_release(struct kvc_packed_lock *lock, uint32_t byte);

#endif
