/* SPDX-License-Identifier: Apache-2.0 */
/* A root's own test I/O: what it stores comes back. */
#ifndef KVC_CORE_SELFTEST_H
#define KVC_CORE_SELFTEST_H

struct kvc_store;

/* Writes, finds, reads, compares and removes a small object on every root. */
int kvc_selftest_roots(struct kvc_store *store);

#endif
