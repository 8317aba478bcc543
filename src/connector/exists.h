/* SPDX-License-Identifier: Apache-2.0 */
/* exists of pages whose objects the index of one packed root knows: from memory. */
#ifndef KVC_CONNECTOR_EXISTS_H
#define KVC_CONNECTOR_EXISTS_H

#include "connector/handle.h"
#include "core/packed.h"

/* Whether the index of the only root answers the transfer. packed: of that root, or NULL. */
bool kvc_exists_is_indexed(const struct kvc_store *store, const struct kvc_packed *packed,
			   const struct kvc_transfer *t);

/*
 * kvc_exists_by_index - writes the results of such a transfer. Nothing blocks in it but the mapping
 * of what this process has not seen yet; with `seen` that is -EAGAIN, and results are undefined.
 */
int kvc_exists_by_index(struct kvc_packed *packed, const struct kvc_transfer *t, bool seen);

#endif
