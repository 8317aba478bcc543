/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged transfers: for roots whose I/O may never come back (network and FUSE mounts, local ones
 * that were found stalling). The I/O runs in threads of the root and in memory of the library; the
 * caller waits until its deadline and then leaves. Readers: core/xfer.c, core/root.c.
 */
#ifndef KVC_CORE_STAGE_H
#define KVC_CORE_STAGE_H

#include "core/xfer.h"

struct kvc_stage;
struct kvc_stage_job;

/* Starts the requests of one root; kvc_stage_finish() follows in the same thread. NULL: no memory,
 * and every request has its result. */
struct kvc_stage_job *kvc_stage_begin(struct kvc_root *root, struct kvc_request *list,
				      const atomic_bool *cancel);

/* Waits for results until until_ns, and no longer than to the deadline of the requests at work;
 * begins with the next ones. False once every request has its result. */
bool kvc_stage_advance(struct kvc_stage_job *job, uint64_t until_ns);

/* Waits for the results that are left. */
void kvc_stage_finish(struct kvc_stage_job *job);

/* Ends the threads; waits until deadline_ns. -EBUSY: one is stuck; then everything of the root has
 * to stay. */
int kvc_stage_close(struct kvc_stage *stage, uint64_t deadline_ns);

#endif
