/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of pages become requests for objects, and their results the pages' results. */
#ifndef KVC_CONNECTOR_BATCH_H
#define KVC_CONNECTOR_BATCH_H

#include "connector/handle.h"

struct kvc_arena *kvc_arena_next(struct kvc_arena *arena);

/* kvc_batch_run() with a flag that ends it early; the transfers have been checked. */
void kvc_batch_execute(struct kvc_store *store, struct kvc_transfer *transfers, size_t count,
		       const atomic_bool *cancel);

/* What kvc_batch_run() and kvc_batch_start() refuse. */
int kvc_batch_check(struct kvc_store *store, const struct kvc_transfer *transfers, size_t count);

/* A set that another rank does: its results are written, and there is nothing more to do. */
bool kvc_batch_skips(const struct kvc_transfer *t);

/* Once all pages have their results: what was not looked at is skipped, and they are counted. */
void kvc_batch_finish(struct kvc_store *store, struct kvc_transfer *t, uint64_t elapsed_us);

static inline struct kvc_transfer *kvc_transfer_at(struct kvc_transfer *transfers, size_t i)
{
	return (struct kvc_transfer *)((char *)transfers + i * transfers->size);
}

#endif
