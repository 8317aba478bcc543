/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/namespace.h"

#include "core/format.h"
#include "core/hash.h"
#include "core/log.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rejects overlong forms, surrogates and values above U+10FFFF, as JSON readers do. */
static bool is_utf8(const char *text)
{
	const unsigned char *p = (const unsigned char *)text;

	while (*p) {
		uint32_t c = *p++, least;
		int more;

		if (c < 0x80)
			continue;
		if (c >= 0xc2 && c <= 0xdf)
			more = 1, least = 0x80, c &= 0x1f;
		else if (c >= 0xe0 && c <= 0xef)
			more = 2, least = 0x800, c &= 0x0f;
		else if (c >= 0xf0 && c <= 0xf4)
			more = 3, least = 0x10000, c &= 0x07;
		else
			return false;
		for (; more; more--) {
			if ((*p & 0xc0) != 0x80)
				return false;
			c = c << 6 | (*p++ & 0x3f);
		}
		if (c < least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
			return false;
	}
	return true;
}

static int copy_text(char **out, const char *field, const char *text)
{
	if (!text)
		return 0;
	if (strnlen(text, KVC_NAMESPACE_TEXT_MAX + 1) > KVC_NAMESPACE_TEXT_MAX)
		return kvc_fail(-EINVAL, "namespace: %s is longer than %u bytes", field,
				KVC_NAMESPACE_TEXT_MAX);
	if (!is_utf8(text))
		return kvc_fail(-EINVAL, "namespace: %s is not valid UTF-8", field);
	*out = strdup(text);
	if (!*out)
		return kvc_fail(-ENOMEM, "namespace: out of memory for %s", field);
	return 0;
}

static int check_dimension(const char *size_name, uint32_t *size, const char *rank_name,
			   uint32_t rank)
{
	if (*size == 0)
		*size = 1;
	if (*size > KVC_NAMESPACE_RANKS_MAX)
		return kvc_fail(-EINVAL, "namespace: %s = %u, the most is %u", size_name, *size,
				KVC_NAMESPACE_RANKS_MAX);
	if (rank >= *size)
		return kvc_fail(-EINVAL, "namespace: %s = %u is outside of %s = %u", rank_name,
				rank, size_name, *size);
	return 0;
}

static int check_values(const struct kvc_namespace_params *p)
{
	if (p->page_tokens == 0)
		return kvc_fail(-EINVAL, "namespace: page_tokens is 0");
	if (p->is_mla > 1)
		return kvc_fail(-EINVAL, "namespace: is_mla = %u, expected 0 or 1", p->is_mla);
	if (p->is_writer > KVC_YES)
		return kvc_fail(-EINVAL,
				"namespace: is_writer = %u, expected 0 (auto), 1 (no) or 2 (yes)",
				p->is_writer);
	if (p->reserved)
		return kvc_fail(-EINVAL, "namespace: reserved = %u, expected 0", p->reserved);
	return 0;
}

static int check_ranks(struct kvc_namespace_params *p)
{
	int rc;

	rc = check_dimension("tp_size", &p->tp_size, "tp_rank", p->tp_rank);
	if (!rc)
		rc = check_dimension("pp_size", &p->pp_size, "pp_rank", p->pp_rank);
	if (!rc)
		rc = check_dimension("cp_size", &p->cp_size, "cp_rank", p->cp_rank);
	if (!rc)
		rc = check_dimension("dcp_size", &p->dcp_size, "dcp_rank", p->dcp_rank);
	if (rc)
		return rc;
	if (p->tp_lcm_size > KVC_NAMESPACE_RANKS_MAX)
		return kvc_fail(-EINVAL, "namespace: tp_lcm_size = %u, the most is %u",
				p->tp_lcm_size, KVC_NAMESPACE_RANKS_MAX);
	if (p->tp_lcm_size % p->tp_size)
		return kvc_fail(-EINVAL,
				"namespace: tp_lcm_size = %u is no multiple of tp_size = %u",
				p->tp_lcm_size, p->tp_size);
	if (p->tp_lcm_size / p->tp_size > KVC_NAMESPACE_SPLITS_MAX)
		return kvc_fail(-EINVAL,
				"namespace: tp_lcm_size = %u is more than %u times tp_size = %u",
				p->tp_lcm_size, KVC_NAMESPACE_SPLITS_MAX, p->tp_size);
	return 0;
}

/* What an older caller does not know is 0; what a newer one knows more is not looked at. */
static int read_params(struct kvc_namespace_params *out, const struct kvc_namespace_params *params)
{
	const size_t least = offsetof(struct kvc_namespace_params, page_tokens) + sizeof(uint32_t);

	if (!params)
		return kvc_fail(-EINVAL, "namespace: params is NULL");
	if (params->size < least)
		return kvc_fail(-EINVAL,
				"namespace: params.size = %zu, expected sizeof(struct "
				"kvc_namespace_params)",
				params->size);
	memset(out, 0, sizeof(*out));
	memcpy(out, params, params->size < sizeof(*out) ? params->size : sizeof(*out));
	return 0;
}

static uint64_t hash_fields(const struct kvc_namespace_fields *f)
{
	struct kvc_hash hash;

	kvc_hash_begin(&hash);
	kvc_hash_u64(&hash, KVC_IDENTITY_VERSION);
	kvc_hash_text(&hash, f->model_id);
	kvc_hash_text(&hash, f->identity);
	kvc_hash_text(&hash, f->tenant);
	kvc_hash_text(&hash, f->dtype);
	kvc_hash_u64(&hash, f->page_tokens);
	kvc_hash_u64(&hash, f->is_mla);
	if (f->head_split)
		kvc_hash_u64(&hash, f->head_split);
	else
		kvc_hash_absent(&hash);
	kvc_hash_u64(&hash, f->pp_size);
	kvc_hash_u64(&hash, f->cp_size);
	kvc_hash_u64(&hash, f->dcp_size);
	if (f->logical_page_tokens)
		kvc_hash_u64(&hash, f->logical_page_tokens);
	else
		kvc_hash_absent(&hash);
	return kvc_hash_end(&hash);
}

static bool is_slug_byte(char c, bool first)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '-' || (c == '.' && !first);
}

static void make_id(struct kvc_namespace_identity *identity)
{
	const char *text = identity->fields.model_id ? identity->fields.model_id : "";
	char slug[KVC_NAMESPACE_SLUG_MAX + 1];
	bool replaced = false;
	size_t n = 0;

	for (; *text && n < KVC_NAMESPACE_SLUG_MAX; text++) {
		bool keep = is_slug_byte(*text, n == 0);

		/* A folder "-x" would be an option to every command that is given it. */
		if (n == 0 && (!keep || *text == '-'))
			continue;
		if (keep)
			slug[n++] = *text;
		else if (!replaced)
			slug[n++] = '-';
		replaced = !keep;
	}
	while (n > 0 && slug[n - 1] == '-')
		n--;
	slug[n] = '\0';
	(void)snprintf(identity->id, sizeof(identity->id), "%s-%016llx", n ? slug : "none",
		       (unsigned long long)identity->hash);
}

static void finish(struct kvc_namespace_identity *identity)
{
	identity->hash = hash_fields(&identity->fields);
	make_id(identity);
}

int kvc_namespace_identity_init(struct kvc_namespace_identity *out,
				const struct kvc_namespace_params *params,
				const char *config_identity, const char *config_tenant)
{
	struct kvc_namespace_identity made = { 0 };
	struct kvc_namespace_fields *f = &made.fields;
	struct kvc_namespace_params p;
	int rc;

	rc = read_params(&p, params);
	if (!rc)
		rc = check_values(&p);
	if (!rc)
		rc = check_ranks(&p);
	if (!rc)
		rc = copy_text(&f->model_id, "model_id", p.model_id);
	if (!rc)
		rc = copy_text(&f->identity, "identity", p.identity ? p.identity : config_identity);
	if (!rc)
		rc = copy_text(&f->tenant, "tenant", p.tenant ? p.tenant : config_tenant);
	if (!rc)
		rc = copy_text(&f->dtype, "dtype", p.dtype);
	if (rc)
		goto free_texts;

	f->page_tokens = p.page_tokens;
	f->is_mla = p.is_mla;
	f->head_split = p.is_mla ? 0 : p.tp_lcm_size ? p.tp_lcm_size : p.tp_size;
	f->pp_size = p.pp_size;
	f->cp_size = p.cp_size;
	f->dcp_size = p.dcp_size;
	f->logical_page_tokens = p.logical_page_tokens;
	made.place = (struct kvc_namespace_place){
		.tp_size = p.tp_size,
		.tp_rank = p.tp_rank,
		.splits = p.is_mla || !p.tp_lcm_size ? 1 : p.tp_lcm_size / p.tp_size,
		.pp_rank = p.pp_rank,
		.cp_rank = p.cp_rank,
		.dcp_rank = p.dcp_rank,
		.is_writer = p.is_writer == KVC_YES ||
			     (p.is_writer == KVC_AUTO && p.tp_rank == p.dcp_rank),
	};
	finish(&made);
	*out = made;
	return 0;

free_texts:
	kvc_namespace_identity_fini(&made);
	return rc;
}

void kvc_namespace_identity_fini(struct kvc_namespace_identity *identity)
{
	if (!identity)
		return;
	free(identity->fields.model_id);
	free(identity->fields.identity);
	free(identity->fields.tenant);
	free(identity->fields.dtype);
	memset(identity, 0, sizeof(*identity));
}

int kvc_namespace_identity_render(const struct kvc_namespace_identity *identity, char **out)
{
	const struct kvc_namespace_fields *f = &identity->fields;
	json_t *json;
	char *text;

	json = json_pack(
		"{s:s, s:i, s:s, s:s?, s:s?, s:s?, s:s?, s:I, s:b, s:I, s:I, s:I, s:I, s:I}",
		"kind", "kvcellar namespace", "format_major", (int)KVC_FORMAT_MAJOR, "id",
		identity->id, "model_id", f->model_id, "identity", f->identity, "tenant", f->tenant,
		"dtype", f->dtype, "page_tokens", (json_int_t)f->page_tokens, "is_mla",
		(int)f->is_mla, "head_split", (json_int_t)f->head_split, "pp_size",
		(json_int_t)f->pp_size, "cp_size", (json_int_t)f->cp_size, "dcp_size",
		(json_int_t)f->dcp_size, "logical_page_tokens", (json_int_t)f->logical_page_tokens);
	text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
	json_decref(json);
	if (!text)
		return kvc_fail(-ENOMEM, "namespace %s: out of memory for namespace.json",
				identity->id);
	*out = text;
	return 0;
}

static int parse_text(const json_t *json, const char *key, char **out)
{
	const json_t *value = json_object_get(json, key);

	if (json_is_null(value))
		return 0;
	if (!json_is_string(value))
		return kvc_fail(-EINVAL, "namespace.json: \"%s\" is not a text or null", key);
	return copy_text(out, key, json_string_value(value));
}

static int parse_u32(const json_t *json, const char *key, uint32_t least, uint32_t *out)
{
	const json_t *value = json_object_get(json, key);
	json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;

	if (number < (json_int_t)least || number > UINT32_MAX)
		return kvc_fail(-EINVAL, "namespace.json: \"%s\" is not an integer of at least %u",
				key, least);
	*out = (uint32_t)number;
	return 0;
}

static int parse_fields(const json_t *json, struct kvc_namespace_fields *f)
{
	const json_t *is_mla = json_object_get(json, "is_mla");
	int rc;

	if (!json_is_boolean(is_mla))
		return kvc_fail(-EINVAL, "namespace.json: \"is_mla\" is not true or false");
	f->is_mla = json_is_true(is_mla);
	rc = parse_text(json, "model_id", &f->model_id);
	if (!rc)
		rc = parse_text(json, "identity", &f->identity);
	if (!rc)
		rc = parse_text(json, "tenant", &f->tenant);
	if (!rc)
		rc = parse_text(json, "dtype", &f->dtype);
	if (!rc)
		rc = parse_u32(json, "page_tokens", 1, &f->page_tokens);
	if (!rc)
		rc = parse_u32(json, "head_split", f->is_mla ? 0 : 1, &f->head_split);
	if (!rc)
		rc = parse_u32(json, "pp_size", 1, &f->pp_size);
	if (!rc)
		rc = parse_u32(json, "cp_size", 1, &f->cp_size);
	if (!rc)
		rc = parse_u32(json, "dcp_size", 1, &f->dcp_size);
	if (!rc)
		rc = parse_u32(json, "logical_page_tokens", 0, &f->logical_page_tokens);
	return rc;
}

int kvc_namespace_identity_parse(struct kvc_namespace_identity *out, const char *text, size_t bytes)
{
	struct kvc_namespace_identity made = { .place = { .tp_size = 1, .splits = 1 } };
	const char *kind, *id;
	uint32_t major;
	json_t *json;
	json_error_t error;
	int rc;

	json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!json)
		return kvc_fail(-EINVAL, "namespace.json: line %d: %s", error.line, error.text);
	kind = json_string_value(json_object_get(json, "kind"));
	id = json_string_value(json_object_get(json, "id"));
	if (!kind || strcmp(kind, "kvcellar namespace") != 0 || !id) {
		rc = kvc_fail(-EINVAL, "namespace.json: does not describe a kvcellar namespace");
		goto free_json;
	}
	rc = parse_u32(json, "format_major", 1, &major);
	if (!rc && major != KVC_FORMAT_MAJOR)
		rc = kvc_fail(-EPROTONOSUPPORT,
			      "namespace.json: format version %u, this library reads %u", major,
			      KVC_FORMAT_MAJOR);
	if (!rc)
		rc = parse_fields(json, &made.fields);
	if (rc)
		goto free_texts;
	finish(&made);
	if (strcmp(id, made.id) != 0) {
		rc = kvc_fail(-EINVAL, "namespace.json: its id is \"%s\", its fields make \"%s\"",
			      id, made.id);
		goto free_texts;
	}
	json_decref(json);
	*out = made;
	return 0;

free_texts:
	kvc_namespace_identity_fini(&made);
free_json:
	json_decref(json);
	return rc;
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

bool kvc_namespace_identity_equal(const struct kvc_namespace_identity *a,
				  const struct kvc_namespace_identity *b)
{
	const struct kvc_namespace_fields *x = &a->fields, *y = &b->fields;

	return same_text(x->model_id, y->model_id) && same_text(x->identity, y->identity) &&
	       same_text(x->tenant, y->tenant) && same_text(x->dtype, y->dtype) &&
	       x->page_tokens == y->page_tokens && x->is_mla == y->is_mla &&
	       x->head_split == y->head_split && x->pp_size == y->pp_size &&
	       x->cp_size == y->cp_size && x->dcp_size == y->dcp_size &&
	       x->logical_page_tokens == y->logical_page_tokens;
}

int kvc_namespace_id_hash(const char *id, uint64_t *out)
{
	size_t bytes = strnlen(id, KVC_NAMESPACE_ID_BYTES);
	uint64_t hash = 0;

	if (bytes < 18 || bytes > KVC_NAMESPACE_SLUG_MAX + 17 || id[bytes - 17] != '-' ||
	    id[0] == '.')
		return -EINVAL;
	for (size_t i = 0; i < bytes - 17; i++)
		if (!is_slug_byte(id[i], false))
			return -EINVAL;
	for (size_t i = bytes - 16; i < bytes; i++) {
		unsigned digit;

		if (id[i] >= '0' && id[i] <= '9')
			digit = (unsigned)(id[i] - '0');
		else if (id[i] >= 'a' && id[i] <= 'f')
			digit = (unsigned)(id[i] - 'a') + 10;
		else
			return -EINVAL;
		hash = hash << 4 | digit;
	}
	*out = hash;
	return 0;
}
