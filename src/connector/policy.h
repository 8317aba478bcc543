/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hit policies: which prefixes of a request can be restored, given what each pool has stored.
 * kvc_policy_prefix() and kvc_policy_restorable() are declared in kvcellar.h.
 *
 * A prefix of n pages can be restored from one pool when
 *   ALL_PAGES       pages [0, n) are there
 *   TRAILING_PAGES  pages [max(0, n - pages), n) are there
 *   BLOCK_GROUPS    n is a multiple of `pages`, and pages [0, n) are there
 * and from several when it can be from each. n = 0 always can.
 *
 * sglang's file backend (HiCacheFile.batch_exists_v2) asks each side pool alone, with kv as
 * ALL_PAGES, and takes the least of the answers: one call of kvc_policy_prefix() per side pool
 * with {kv, side pool} and the minimum give its numbers. Where several side pools have holes that
 * minimum may be a prefix that one of them cannot restore; asked for all at once,
 * kvc_policy_prefix() never says such a one.
 */
#ifndef KVC_CONNECTOR_POLICY_H
#define KVC_CONNECTOR_POLICY_H

#include <kvcellar/kvcellar.h>

#endif
