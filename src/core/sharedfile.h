/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file in a root's folder of housekeeping that processes map and change in place: the counts of
 * what a root holds, the list of what was evicted. Where it cannot be had, memory of this process
 * takes its place, and what is mapped never moves. Its parts are atomics that mean something on
 * their own; nothing of it is needed to read an object.
 *
 * A file that is too short is never mapped. Of one that somebody cuts while it is mapped, this
 * process has pages of its own from then on (core/guard.h), until kvc_sharedfile_check(), which is
 * called from time to time, puts a sound file in place.
 *
 * Some kinds come in sizes. A file keeps the size it has for as long as a process has it open, and
 * all use it as it is; who opens it as the only one makes it anew in the size that he wants, with
 * what it knew. Each process holds a read lock (F_OFD_SETLK) on the whole file: who gets the write
 * lock is the only one. Where there are no such locks a file keeps its size for good.
 */
#ifndef KVC_CORE_SHAREDFILE_H
#define KVC_CORE_SHAREDFILE_H

#include "core/mapfile.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define KVC_SHAREDFILE_HEADER 4096u /* header_bytes of its kind */

struct kvc_sharedfile;

/* Of a kind that comes in sizes. */
struct kvc_sharedfile_sizes {
	/* Whether a file of the kind can be of this size. */
	bool (*is_size)(uint64_t file_bytes);
	/* What one file knows goes into a new one, but for the header; nobody else uses them. */
	void (*move)(const void *from, uint64_t from_bytes, void *to, uint64_t to_bytes);
};

/*
 * kvc_sharedfile_open
 * @kind    is copied; its header has no fields of its own, its file_bytes is the size wanted
 * @sizes   stays the caller's and valid. NULL: all files of the kind are of one size
 * @path    of the file; made, whole or not at all, when it is missing, and again when it is too
 *          short or damaged. NULL: memory of this process
 * @mode    of a new file
 * A file that cannot be had (permission, read-only, full, another major version, which is left as
 * it is) is no error: the log says why at debug level. Errors: -ENOMEM.
 */
int kvc_sharedfile_open(const struct kvc_mapfile_kind *kind,
			const struct kvc_sharedfile_sizes *sizes, const char *path, mode_t mode,
			struct kvc_sharedfile **out);
void kvc_sharedfile_close(struct kvc_sharedfile *file);

/* The header first; its size, which stays as it is until the file is closed. */
void *kvc_sharedfile_memory(const struct kvc_sharedfile *file);
uint64_t kvc_sharedfile_bytes(const struct kvc_sharedfile *file);

/* What is mapped is the file: other processes see it. */
bool kvc_sharedfile_is_shared(const struct kvc_sharedfile *file);

/*
 * kvc_sharedfile_check - for a housekeeping thread: when the file was cut, removed or replaced,
 * goes over to the file that is there now (or a new one), while other threads go on.
 * 1: it did, and what lies there may be anything its kind allows; 2: the same, after memory of this
 * process; else 0.
 */
int kvc_sharedfile_check(struct kvc_sharedfile *file);

#endif
