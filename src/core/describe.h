/* SPDX-License-Identifier: Apache-2.0 */
/* What a store says of itself: kvc_store_describe, kvc_metrics_text, kvc_store_usage,
 * kvc_plugin_list. The public functions are in kvcellar.h; this adds what the connector shows. */
#ifndef KVC_CORE_DESCRIBE_H
#define KVC_CORE_DESCRIBE_H

struct kvc_root;

/* "ok", "suspect", "read-only", ... */
const char *kvc_root_state(const struct kvc_root *root);

/* 0, or -EROFS and why the root is not written to. */
int kvc_root_check_writable(const struct kvc_root *root);

#endif
