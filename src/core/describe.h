/* SPDX-License-Identifier: Apache-2.0 */
/* What a store says of itself: kvc_store_describe, kvc_store_usage, kvc_plugin_list. The public
 * functions are in kvcellar.h; this adds what the connector and the metrics show. */
#ifndef KVC_CORE_DESCRIBE_H
#define KVC_CORE_DESCRIBE_H

#include <stdbool.h>
#include <stdint.h>

struct kvc_packed;
struct kvc_root;
struct kvc_text;

/* "ok", "suspect", "read-only", ... */
const char *kvc_root_state(const struct kvc_root *root);

/* 0, or -EROFS and why the root is not written to. */
int kvc_root_check_writable(const struct kvc_root *root);

/* One fact of a store or root, for both forms. *first: whether it is the first of its object. */
void kvc_describe_fact(struct kvc_text *text, bool json, bool *first, const char *name,
		       const char *value);

/* All facts of a root, without the braces of JSON. */
void kvc_describe_root(struct kvc_text *text, bool json, struct kvc_root *root);

/* The figures of a packed root's index, under the names that they have in JSON; as metrics with
 * "packed_" before them. */
struct kvc_index_figure {
	const char *name;
	const char *help;
	uint64_t value;
};

#define KVC_INDEX_FIGURES 14

void kvc_index_figures(struct kvc_packed *packed, struct kvc_index_figure out[KVC_INDEX_FIGURES]);

#endif
