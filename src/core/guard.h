/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mapped file that is cut, or whose device fails, raises SIGBUS where its memory is touched. Of a
 * mapping that is guarded, the page becomes zeros of this process instead, by a SIGBUS handler that
 * looks at these mappings only and hands everything else to the handler before it. It is installed
 * with the first guard and stays; who installs another one later should call it for what is not
 * theirs, else a cut file ends the process. System calls on such a page fail with EFAULT instead,
 * and do not mend it.
 */
#ifndef KVC_CORE_GUARD_H
#define KVC_CORE_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct kvc_guard; /* of one mapping */

/*
 * kvc_guard_add - guards a mapping that begins at a page.
 * @protection   of the mapping, and of what takes the place of a page
 * @broken       NULL, or is set when a page is lost; lives as long as the guard
 * Errors: -ENOMEM, of sigaction. Thread-safe, as all of these.
 */
int kvc_guard_add(void *memory, uint64_t bytes, int protection, atomic_bool *broken,
		  struct kvc_guard **out);

/* Another file, or memory, was just mapped in the place of what is guarded. */
void kvc_guard_renew(struct kvc_guard *guard);

/* Before the mapping ends; nothing of it may be in use. */
void kvc_guard_remove(struct kvc_guard *guard);

/* For the fork handlers of packed_lock.c: nobody is in the middle of changing the guards. */
void kvc_guard_fork_prepare(void);
void kvc_guard_fork_done(void);

#endif
