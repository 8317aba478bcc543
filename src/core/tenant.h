/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tenant may have of a root at most (`tenant_shares`): all its namespaces together. Which
 * namespace is whose stands in its namespace.json. Thread-safe; all but refresh without a lock or a
 * system call.
 */
#ifndef KVC_CORE_TENANT_H
#define KVC_CORE_TENANT_H

#include "core/root.h"

struct kvc_tenants; /* of one root; NULL: nobody has a share */

int kvc_tenant_open(struct kvc_root *root);
void kvc_tenant_close(struct kvc_root *root);

/* A namespace was opened. tenant NULL: it has none, and no limit. */
void kvc_tenant_note(struct kvc_root *root, uint64_t ns_hash, const char *tenant);

/* Looks for namespaces of other processes. For the opening, and a housekeeping thread. */
void kvc_tenant_look(struct kvc_root *root);

/* Bytes that the tenant of a namespace may have; UINT64_MAX: no limit. */
uint64_t kvc_tenant_share(const struct kvc_root *root, uint64_t ns_hash);

/* Whether two namespaces are of one tenant that has a share. */
bool kvc_tenant_is_same(const struct kvc_root *root, uint64_t ns_hash, uint64_t other);

/* Bytes that it may still have, or has too many. */
uint64_t kvc_tenant_room(struct kvc_root *root, uint64_t ns_hash);
uint64_t kvc_tenant_excess(struct kvc_root *root, uint64_t ns_hash);

#endif
