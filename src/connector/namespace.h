/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes a namespace: the fields that its hash covers, its id (the folder name) and the text
 * of namespace.json; and beside them this process's place among the ranks, which is not hashed.
 *
 * hash = H(format major, model id, identity, tenant, logical dtype, page tokens, is_mla,
 *          head split, pp size, cp size, dcp size, logical page tokens)
 * with integers as u64 fields, texts as text fields; absent are: a text that is NULL, the head
 * split of an MLA model, logical page tokens of 0. Head split = tp_lcm_size, or tp_size without.
 * id = "<slug>-<hash as 16 hex digits>"; slug = the model id, each run of bytes outside of
 * [A-Za-z0-9._-] as one '-', without '-' and '.' in front, cut to 40 bytes, without '-' at its end;
 * "none" when nothing is left or there is none.
 */
#ifndef KVC_CONNECTOR_NAMESPACE_H
#define KVC_CONNECTOR_NAMESPACE_H

#include <kvcellar/kvcellar.h>

#include <stdbool.h>
#include <stdint.h>

#define KVC_NAMESPACE_ID_BYTES	 64u
#define KVC_NAMESPACE_SLUG_MAX	 40u
#define KVC_NAMESPACE_TEXT_MAX	 65536u /* bytes of one text field */
#define KVC_NAMESPACE_RANKS_MAX	 65536u /* of each parallel dimension */
#define KVC_NAMESPACE_SPLITS_MAX 1024u	/* tp_lcm_size / tp_size */

/* Hashed. Texts are owned, NULL = absent; sizes are >= 1. */
struct kvc_namespace_fields {
	char *model_id;
	char *identity;
	char *tenant;
	char *dtype;
	uint32_t page_tokens;
	uint32_t head_split; /* 0 = none (MLA) */
	uint32_t pp_size;
	uint32_t cp_size;
	uint32_t dcp_size;
	uint32_t logical_page_tokens; /* 0 = none */
	bool is_mla;
};

/* Not hashed. A rank holds the virtual ranks [tp_rank * splits, (tp_rank + 1) * splits). */
struct kvc_namespace_place {
	uint32_t tp_size;
	uint32_t tp_rank;
	uint32_t splits; /* tp_lcm_size / tp_size, or 1 */
	uint32_t pp_rank;
	uint32_t cp_rank;
	uint32_t dcp_rank;
	bool is_writer; /* of pages that are the same on every tp rank */
};

struct kvc_namespace_identity {
	struct kvc_namespace_fields fields;
	struct kvc_namespace_place place;
	uint64_t hash;
	char id[KVC_NAMESPACE_ID_BYTES];
};

/*
 * kvc_namespace_identity_init - checks and copies params.
 * @config_identity, @config_tenant   taken when params has NULL; may be NULL
 * Errors: -EINVAL (with the field), -ENOMEM.
 */
int kvc_namespace_identity_init(struct kvc_namespace_identity *out,
				const struct kvc_namespace_params *params,
				const char *config_identity, const char *config_tenant);

void kvc_namespace_identity_fini(struct kvc_namespace_identity *identity);

/* kvc_namespace_identity_render - namespace.json, NUL-terminated; *out is for free(). */
int kvc_namespace_identity_render(const struct kvc_namespace_identity *identity, char **out);

/*
 * kvc_namespace_identity_parse - the identity that a namespace.json tells; its place is that of
 * rank 0. Errors: -EINVAL (not such a text, or its id is not the one of its fields);
 * -EPROTONOSUPPORT (another format major); -ENOMEM.
 */
int kvc_namespace_identity_parse(struct kvc_namespace_identity *out, const char *text,
				 size_t bytes);

/* kvc_namespace_identity_equal - whether two identities are the same namespace, field by field. */
bool kvc_namespace_identity_equal(const struct kvc_namespace_identity *a,
				  const struct kvc_namespace_identity *b);

/* kvc_namespace_id_hash - the hash that an id ends in. -EINVAL: text is no id. */
int kvc_namespace_id_hash(const char *id, uint64_t *out);

#endif
