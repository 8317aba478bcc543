/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of fixed size in a root's folder of housekeeping that processes map and change in place:
 * the counts of what a root holds, the list of what was evicted. Where it cannot be had, memory of
 * this process takes its place, and what is mapped never moves. Its parts are atomics that mean
 * something on their own; nothing of it is needed to read an object.
 *
 * A file that is too short is never mapped. Of one that somebody cuts while it is mapped, this
 * process has pages of its own from then on (core/guard.h), until kvc_sharedfile_check(), which is
 * called from time to time, puts a sound file in place.
 */
#ifndef KVC_CORE_SHAREDFILE_H
#define KVC_CORE_SHAREDFILE_H

#include "core/mapfile.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define KVC_SHAREDFILE_HEADER 4096u /* header_bytes of its kind */

struct kvc_sharedfile;

/*
 * kvc_sharedfile_open
 * @kind   is copied; its header has no fields of its own
 * @path   of the file; made, whole or not at all, when it is missing, and again when it is too
 *         short, of another size or damaged. NULL: memory of this process
 * @mode   of a new file
 * A file that cannot be had (permission, read-only, full, another major version, which is left as
 * it is) is no error: the log says why at debug level. Errors: -ENOMEM.
 */
int kvc_sharedfile_open(const struct kvc_mapfile_kind *kind, const char *path, mode_t mode,
			struct kvc_sharedfile **out);
void kvc_sharedfile_close(struct kvc_sharedfile *file);

/* file_bytes, the header first. */
void *kvc_sharedfile_memory(const struct kvc_sharedfile *file);

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
