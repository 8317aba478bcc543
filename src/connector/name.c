/* SPDX-License-Identifier: Apache-2.0 */
/* Rules and names; taking names apart again is in name_parse.c. */
#include "connector/name.h"

#include "connector/name_bytes.h"
#include "core/log.h"
#include "core/packed_format.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int kvc_name_check_pool(const char *pool_name)
{
	size_t bytes;

	if (!pool_name)
		return kvc_fail(-EINVAL, "pool: name is NULL");
	bytes = strspn(pool_name, "abcdefghijklmnopqrstuvwxyz0123456789_-");
	if (bytes == 0 || bytes > KVC_POOL_NAME_MAX || pool_name[bytes])
		return kvc_fail(-EINVAL, "pool: name \"%.64s\" is not [a-z0-9_-]{1,%u}", pool_name,
				KVC_POOL_NAME_MAX);
	return 0;
}

uint64_t kvc_name_raw_fingerprint(const char *pool_name)
{
	struct kvc_hash hash;

	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, "raw");
	kvc_hash_text(&hash, pool_name);
	return kvc_hash_end(&hash);
}

size_t kvc_name_nixl_model(const char *model_id, char *out, size_t capacity)
{
	size_t n = model_id ? strlen(model_id) : 0;

	for (size_t i = 0; i < n && i + 1 < capacity; i++)
		out[i] = model_id[i] == '/' ? '-' : model_id[i];
	if (capacity)
		out[n < capacity ? n : capacity - 1] = '\0';
	return n;
}

static void make_part(const char *pool_name, uint32_t part_count, uint32_t part,
		      const char *part_name, char out[KVC_PART_NAME_MAX + 1])
{
	const size_t capacity = KVC_PART_NAME_MAX + 1;

	if (part_name)
		(void)snprintf(out, capacity, "%s", part_name);
	else if (strcmp(pool_name, "mamba") == 0 && part == 0)
		(void)snprintf(out, capacity, "temporal");
	else if (strcmp(pool_name, "mamba") == 0)
		(void)snprintf(out, capacity, "conv_%u", part - 1);
	else if (part_count <= 2)
		(void)snprintf(out, capacity, "%s", part ? "v" : "k");
	else
		(void)snprintf(out, capacity, "%u", part);
}

void kvc_name_nixl_suffix(const char *pool_name, uint32_t part_count, uint32_t part,
			  const char *part_name, bool joined, char out[KVC_PART_SUFFIX_MAX + 1])
{
	bool is_kv = strcmp(pool_name, "kv") == 0;
	char text[KVC_PART_NAME_MAX + 1];

	make_part(pool_name, part_count, part, part_name, text);
	if (joined || (part_count <= 1 && !is_kv))
		(void)snprintf(out, KVC_PART_SUFFIX_MAX + 1, "%s%s", is_kv ? "" : "_",
			       is_kv ? "" : pool_name);
	else if (is_kv)
		(void)snprintf(out, KVC_PART_SUFFIX_MAX + 1, "_%s", text);
	else
		(void)snprintf(out, KVC_PART_SUFFIX_MAX + 1, "_%s_%s", pool_name, text);
}

/* Appends to the rule's suffix; what does not fit makes suffix_bytes larger than the room. */
static void add(struct kvc_name_rule *rule, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void add(struct kvc_name_rule *rule, const char *format, ...)
{
	size_t used = rule->suffix_bytes < KVC_NAME_MAX ? rule->suffix_bytes : KVC_NAME_MAX;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(rule->suffix + used, sizeof(rule->suffix) - used, format, args);
	va_end(args);
	rule->suffix_bytes += n > 0 ? (uint32_t)n : 0;
}

static void add_kvcellar(struct kvc_name_rule *rule, const struct kvc_name_params *p, bool raw)
{
	const struct kvc_namespace_fields *f = &p->ns->fields;
	const struct kvc_namespace_place *at = &p->ns->place;

	add(rule, ".%s.%08x", p->pool_name, (unsigned)(p->pool_fingerprint >> 32));
	if (raw)
		return;
	if (!p->shared && p->vrank_count > 1)
		add(rule, "_%u_%u", p->vrank, p->vrank_count);
	if (f->pp_size > 1)
		add(rule, "_pp%u_%u", at->pp_rank, f->pp_size);
	if (f->cp_size > 1)
		add(rule, "_cp%u_%u", at->cp_rank, f->cp_size);
	if (f->dcp_size > 1)
		add(rule, "_dcp%u_%u", at->dcp_rank, f->dcp_size);
}

static void add_nixl(struct kvc_name_rule *rule, const struct kvc_name_params *p)
{
	const struct kvc_namespace_fields *f = &p->ns->fields;
	const struct kvc_namespace_place *at = &p->ns->place;
	char model[KVC_NAME_MAX + 1];
	size_t model_bytes = kvc_name_nixl_model(f->model_id, model, sizeof(model));

	add(rule, "_%s", model);
	if (model_bytes >= sizeof(model))
		rule->suffix_bytes = KVC_NAME_MAX + 1;
	if (!p->shared)
		add(rule, "_%u_%u", p->vrank, p->vrank_count);
	if (f->pp_size > 1)
		add(rule, "_%u_%u", f->pp_size, at->pp_rank);
	if (f->cp_size > 1)
		add(rule, "_cp%u_%u", at->cp_rank, f->cp_size);
	if (f->dcp_size > 1)
		add(rule, "_tp%u_dcp%u_%u_page%u", at->tp_size, at->dcp_rank, f->dcp_size,
		    f->logical_page_tokens ? f->logical_page_tokens : f->page_tokens);
	add(rule, "%s", p->part_suffix ? p->part_suffix : "");
}

static void put_u32(uint8_t *out, uint32_t value)
{
	for (size_t i = 0; i < 4; i++)
		out[i] = (uint8_t)(value >> (8 * i));
}

static void begin_hashes(struct kvc_name_rule *rule, const struct kvc_name_params *p, bool raw)
{
	const struct kvc_namespace_place *at = &p->ns->place;
	uint8_t ranks[12];

	kvc_hash_begin(&rule->group);
	kvc_hash_text(&rule->group, p->ns->id);
	kvc_hash_begin(&rule->object);
	kvc_hash_u64(&rule->object, p->pool_fingerprint);
	if (raw || p->shared) {
		kvc_hash_absent(&rule->object);
	} else {
		put_u32(ranks, p->vrank);
		put_u32(ranks + 4, p->vrank_count);
		kvc_hash_bytes(&rule->object, ranks, 8);
	}
	if (raw) {
		kvc_hash_absent(&rule->object);
	} else {
		put_u32(ranks, at->pp_rank);
		put_u32(ranks + 4, at->cp_rank);
		put_u32(ranks + 8, at->dcp_rank);
		kvc_hash_bytes(&rule->object, ranks, 12);
	}
}

/* The ranks of a pool one after the other, from a beginning that the pool gives: objects of one key
 * seldom share a lane. */
static uint32_t lane_of(const struct kvc_name_params *p)
{
	const struct kvc_namespace_place *at = &p->ns->place;
	const struct kvc_namespace_fields *fields = &p->ns->fields;
	const uint64_t vranks = p->shared ? 1 : p->vrank_count;
	const uint64_t others =
		at->pp_rank +
		fields->pp_size * (at->cp_rank + (uint64_t)fields->cp_size * at->dcp_rank);

	return (uint32_t)((p->pool_fingerprint + (p->shared ? 0 : p->vrank) + vranks * others) %
			  KVC_PACKED_LANES);
}

/* 192 bytes of no pattern from the hash of a prefix. */
static void make_secret(const struct kvc_hash *prefix, uint8_t out[KVC_NAME_SECRET_BYTES])
{
	struct kvc_hash hash = *prefix;
	const uint64_t value = kvc_hash_end(&hash);

	for (uint32_t i = 0; i < KVC_NAME_SECRET_BYTES / 64; i++)
		kvc_hash_expand(value, i, out + i * 64);
}

static int init_rule(struct kvc_name_rule *out, const struct kvc_name_params *p, bool raw)
{
	struct kvc_name_rule rule = { .naming = p->naming };
	int rc = kvc_name_check_pool(p->pool_name);

	if (rc)
		return rc;
	if (p->naming == KVC_NAMING_NIXL)
		add_nixl(&rule, p);
	else
		add_kvcellar(&rule, p, raw);
	if (p->naming == KVC_NAMING_NIXL && rule.suffix_bytes + KVC_NAME_KEY_BYTES > KVC_NAME_MAX)
		return kvc_fail(
			-ENAMETOOLONG,
			"naming = \"nixl\": a key of %u bytes and a model id of %zu bytes make a "
			"file name longer than %u bytes",
			KVC_NAME_KEY_BYTES, strlen(p->ns->fields.model_id), KVC_NAME_MAX);
	begin_hashes(&rule, p, raw);
	make_secret(&rule.group, rule.packed_group);
	make_secret(&rule.object, rule.packed_object);
	rule.packed_lane = lane_of(p);
	*out = rule;
	return 0;
}

int kvc_name_rule_init(struct kvc_name_rule *out, const struct kvc_name_params *params)
{
	return init_rule(out, params, false);
}

int kvc_name_rule_init_raw(struct kvc_name_rule *out, int naming,
			   const struct kvc_namespace_identity *ns, const char *pool_name)
{
	char part_suffix[KVC_PART_SUFFIX_MAX + 1];
	struct kvc_name_params p = {
		.ns = ns,
		.pool_name = pool_name,
		.part_suffix = part_suffix,
		.naming = naming,
		.vrank = ns->place.tp_rank,
		.vrank_count = ns->place.tp_size,
	};
	int rc = kvc_name_check_pool(pool_name);

	if (rc)
		return rc;
	p.shared = ns->fields.is_mla && strcmp(pool_name, "mamba") != 0;
	p.pool_fingerprint = kvc_name_raw_fingerprint(pool_name);
	kvc_name_nixl_suffix(pool_name, 1, 0, NULL, true, part_suffix);
	return init_rule(out, &p, true);
}

int kvc_name_nixl_check(const struct kvc_namespace_identity *ns)
{
	struct kvc_name_rule rule;

	return kvc_name_rule_init_raw(&rule, KVC_NAMING_NIXL, ns, "kv");
}

uint64_t kvc_name_group_hash(const char *ns_id, const void *key, size_t key_bytes)
{
	struct kvc_hash hash;

	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, ns_id);
	kvc_hash_bytes(&hash, key, key_bytes);
	return kvc_hash_end(&hash);
}

/* Encodes key[*at..) until it ends or fewer than 3 bytes of out are free; *at moves on. */
static size_t encode(const struct kvc_key *key, size_t *at, char *out, size_t capacity)
{
	static const char digits[] = "0123456789ABCDEF";
	const uint8_t *data = key->data;
	size_t n = 0;

	if (key->bytes == 0) {
		memcpy(out, "%e", 2);
		return 2;
	}
	for (; *at < key->bytes && n + 3 <= capacity; (*at)++) {
		uint8_t byte = data[*at];

		if (kvc_name_byte_is_plain(byte)) {
			out[n++] = (char)byte;
		} else {
			out[n++] = '%';
			out[n++] = digits[byte >> 4];
			out[n++] = digits[byte & 15];
		}
	}
	return n;
}

/* "%h-" and the hash of the full name, of which out holds the first n bytes of the key's form. */
static uint32_t build_hashed(const struct kvc_name_rule *rule, const struct kvc_key *key, size_t at,
			     size_t n, char out[KVC_NAME_MAX + 1])
{
	static const char digits[] = "0123456789abcdef";
	struct kvc_hash hash;
	char chunk[256];
	uint8_t digest[16];

	kvc_blake2b_128_begin(&hash);
	kvc_blake2b_128_add(&hash, out, n);
	while (at < key->bytes) {
		n = encode(key, &at, chunk, sizeof(chunk));
		kvc_blake2b_128_add(&hash, chunk, n);
	}
	kvc_blake2b_128_add(&hash, rule->suffix, rule->suffix_bytes);
	kvc_blake2b_128_end(&hash, digest);
	memcpy(out, "%h-", 3);
	for (size_t i = 0; i < sizeof(digest); i++) {
		out[3 + 2 * i] = digits[digest[i] >> 4];
		out[4 + 2 * i] = digits[digest[i] & 15];
	}
	out[35] = '\0';
	return 35;
}

static uint64_t finish_hash(const struct kvc_hash *prefix, const struct kvc_key *key)
{
	struct kvc_hash hash = *prefix;

	kvc_hash_bytes(&hash, key->data, key->bytes);
	return kvc_hash_end(&hash);
}

static int build_nixl(const struct kvc_name_rule *rule, const struct kvc_key *key,
		      char out[KVC_NAME_MAX + 1], uint32_t *bytes)
{
	if (key->bytes > KVC_NAME_MAX - rule->suffix_bytes)
		return kvc_fail(
			-EINVAL,
			"key of %zu bytes: with naming = \"nixl\" its file name is longer than %u "
			"bytes",
			key->bytes, KVC_NAME_MAX);
	if (key->bytes && (memchr(key->data, '/', key->bytes) || memchr(key->data, 0, key->bytes)))
		return kvc_fail(
			-EINVAL,
			"key of %zu bytes: contains '/' or NUL, which naming = \"nixl\" cannot "
			"store",
			key->bytes);
	if (key->bytes)
		memcpy(out, key->data, key->bytes);
	memcpy(out + key->bytes, rule->suffix, rule->suffix_bytes + 1);
	*bytes = (uint32_t)key->bytes + rule->suffix_bytes;
	return 0;
}

int kvc_name_build(const struct kvc_name_rule *rule, const struct kvc_key *key,
		   char out[KVC_NAME_MAX + 1], uint32_t *bytes, uint64_t *g, uint64_t *v)
{
	size_t at = 0, n;
	int rc;

	if (rule->naming == KVC_NAMING_NIXL) {
		struct kvc_hash hash;

		rc = build_nixl(rule, key, out, bytes);
		if (rc)
			return rc;
		if (g)
			*g = kvc_blake2b_64(out, *bytes);
		if (v) {
			kvc_hash_begin(&hash);
			kvc_hash_bytes(&hash, out, *bytes);
			*v = kvc_hash_end(&hash);
		}
		return 0;
	}
	n = encode(key, &at, out, KVC_NAME_MAX);
	if (at == key->bytes && n + rule->suffix_bytes <= KVC_NAME_MAX) {
		memcpy(out + n, rule->suffix, rule->suffix_bytes + 1);
		*bytes = (uint32_t)n + rule->suffix_bytes;
	} else {
		*bytes = build_hashed(rule, key, at, n, out);
	}
	if (g)
		*g = finish_hash(&rule->group, key);
	if (v)
		*v = finish_hash(&rule->object, key);
	return 0;
}

void kvc_name_packed(const struct kvc_name_rule *rule, const struct kvc_key *key, uint64_t *g,
		     uint64_t *v)
{
	const void *data = key->bytes ? key->data : "";

	*g = kvc_hash_keyed(data, key->bytes, rule->packed_group);
	*v = kvc_hash_keyed(data, key->bytes, rule->packed_object);
}

/* Copies what fits of `bytes` bytes to position `length` of a text with room for `capacity`. */
static void put(char *out, size_t capacity, size_t length, const char *data, size_t bytes)
{
	if (length + 1 >= capacity)
		return;
	if (bytes > capacity - 1 - length)
		bytes = capacity - 1 - length;
	memcpy(out + length, data, bytes);
}

size_t kvc_name_full(const struct kvc_name_rule *rule, const struct kvc_key *key, char *out,
		     size_t capacity)
{
	size_t at = 0, length = 0;
	char chunk[256];

	if (rule->naming == KVC_NAMING_NIXL) {
		if (key->bytes)
			put(out, capacity, 0, key->data, key->bytes);
		length = key->bytes;
	} else {
		do {
			size_t n = encode(key, &at, chunk, sizeof(chunk));

			put(out, capacity, length, chunk, n);
			length += n;
		} while (at < key->bytes);
	}
	put(out, capacity, length, rule->suffix, rule->suffix_bytes);
	length += rule->suffix_bytes;
	if (capacity)
		out[length < capacity ? length : capacity - 1] = '\0';
	return length;
}
