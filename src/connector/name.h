/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of objects, their group hash g and object hash v. Part of the stored format.
 *
 * naming = "kvcellar"
 *   full name  <key>.<pool>.<fp>[_<vrank>_<n>][_pp<r>_<n>][_cp<r>_<n>][_dcp<r>_<n>]
 *              <key>: bytes outside of [A-Za-z0-9_@=+-] as %XX (upper case); the empty key is "%e"
 *              <fp>: high 32 bits of the pool fingerprint, 8 hex digits
 *              a bracket is left out when its n is 1; the vrank also for pools that are the same
 *              on every tp rank (MLA)
 *   name       the full name, or "%h-<BLAKE2b-128 of the full name in hex>" when it is longer
 *              than 255 bytes. No name contains '/' or NUL, or begins with '.'
 *   g          H(namespace id as text, key)
 *   v          H(pool fingerprint as u64, vrank and n as 2 x u32-LE in one field (absent where the
 *              name never has one), pp, cp and dcp rank as 3 x u32-LE in one field, key)
 * Objects of kvc_object_*: <key>.<pool>.<fp> without ranks, fingerprint H("raw", pool name), both
 * rank fields of v absent.
 *
 * naming = "nixl": as sglang 0.5.23's HiCacheNixl names its files (observed)
 *   name       <key>_<model>[_<rank>_<n>][suffix]; '/' of the model becomes '-', none is ''
 *              rank: not for MLA, but always for pools named mamba
 *              suffix: kv in zero copy _<part>; other pools _<pool>, or _<pool>_<part> with
 *              several parts; copy mode has none or _<pool>
 *              where those names collide, sglang's file backend adds after the rank:
 *              _<pp size>_<pp rank>, _cp<r>_<n>, _tp<tp size>_dcp<r>_<n>_page<page tokens>
 *              nothing is encoded: a key with '/' or NUL, or a name > 255 bytes, is refused
 *   g          BLAKE2b-64 of the name, which also routes
 *   v          H(name)
 *
 * The packed layout has its own g and v (kvc_name_packed()): secret = BLAKE2b-512(u64 p, u64 i) for
 * i = 0, 1, 2, one after the other, p = what H gives for the fields before the key; XXH3-64 of the
 * key with it. g from the group's fields, v from the object's. All numbers little-endian.
 * The lane, which spreads the objects of a group over the table:
 * (pool fingerprint + vrank + n * (pp rank + pp size * (cp rank + cp size * dcp rank))) modulo 32.
 *
 * Everything here is pure and thread-safe; what is called per key allocates nothing.
 */
#ifndef KVC_CONNECTOR_NAME_H
#define KVC_CONNECTOR_NAME_H

#include "connector/namespace.h"
#include "core/format.h"
#include "core/hash.h"

#define KVC_NAME_MAX	      255u
#define KVC_NAME_KEY_BYTES    64u /* of sglang's keys; nixl naming must have room for them */
#define KVC_POOL_NAME_MAX     32u
#define KVC_PART_NAME_MAX     16u
#define KVC_NAME_SECRET_BYTES 192u
#define KVC_PART_SUFFIX_MAX   (KVC_POOL_NAME_MAX + KVC_PART_NAME_MAX + 2)

/*
 * @pool_fingerprint   kvcellar naming
 * @shared             the pages are the same on every tp rank: no rank
 * @vrank, @vrank_count   this object's; not used when shared
 * @part_suffix        nixl naming: kvc_name_nixl_suffix()
 */
struct kvc_name_params {
	const struct kvc_namespace_identity *ns;
	const char *pool_name;
	const char *part_suffix;
	uint64_t pool_fingerprint;
	int naming; /* enum kvc_naming */
	uint32_t vrank;
	uint32_t vrank_count;
	bool shared;
};

/* Made once per pool and object of a page; a plain value. */
struct kvc_name_rule {
	struct kvc_hash group;	/* H up to the key */
	struct kvc_hash object; /* H up to the key */
	/* Of the packed layout's g and v. */
	uint8_t packed_group[KVC_NAME_SECRET_BYTES];
	uint8_t packed_object[KVC_NAME_SECRET_BYTES];
	uint32_t packed_lane; /* by pool and ranks */
	uint32_t suffix_bytes;
	int naming;
	char suffix[KVC_NAME_MAX + 1]; /* all that follows the key */
};

/* kvc_name_rule_init - Errors: -EINVAL (pool name); -ENAMETOOLONG (nixl: the model leaves no room
 * for a key of 64 bytes). kvc_name_rule_init_raw - for kvc_object_*. */
int kvc_name_rule_init(struct kvc_name_rule *out, const struct kvc_name_params *params);
int kvc_name_rule_init_raw(struct kvc_name_rule *out, int naming,
			   const struct kvc_namespace_identity *ns, const char *pool_name);

/* kvc_name_raw_fingerprint - H("raw", pool name). */
uint64_t kvc_name_raw_fingerprint(const char *pool_name);

/* kvc_name_check_pool - -EINVAL when pool_name is not [a-z0-9_-]{1,32}. */
int kvc_name_check_pool(const char *pool_name);

/* kvc_name_nixl_check - what kvc_namespace_open() refuses in nixl naming: -ENAMETOOLONG. */
int kvc_name_nixl_check(const struct kvc_namespace_identity *ns);

/* kvc_name_nixl_model - the model's part of a file name, as snprintf. */
size_t kvc_name_nixl_model(const char *model_id, char *out, size_t capacity);

/*
 * kvc_name_nixl_suffix - what follows model and ranks.
 * @part_count, @part, @part_name   of a page's parts this one; part_name NULL = by the rule: k, v
 *           for one or two parts; temporal, conv_0, ... for mamba; else the number
 * @joined   copy mode: one object holds all parts
 */
void kvc_name_nixl_suffix(const char *pool_name, uint32_t part_count, uint32_t part,
			  const char *part_name, bool joined, char out[KVC_PART_SUFFIX_MAX + 1]);

/*
 * kvc_name_build - name, g and v of one key.
 * @out     NUL-terminated; out[0..*bytes). @g, @v may be NULL
 * Errors: -EINVAL (nixl: key with '/' or NUL, or name too long).
 */
int kvc_name_build(const struct kvc_name_rule *rule, const struct kvc_key *key,
		   char out[KVC_NAME_MAX + 1], uint32_t *bytes, uint64_t *g, uint64_t *v);

/*
 * kvc_name_packed - g and v of a key in the packed layout: XXH3-64 with a secret that BLAKE2b makes
 * of what H hashes before the key. 128 bits that tell objects of one store apart at a twentieth of
 * BLAKE2b's price; no protection from somebody who chooses keys to collide, which content hashes do
 * not let anybody do. naming = "kvcellar" only.
 */
void kvc_name_packed(const struct kvc_name_rule *rule, const struct kvc_key *key, uint64_t *g,
		     uint64_t *v);

/* kvc_name_full - the full name, as snprintf: returns its length, however long. */
size_t kvc_name_full(const struct kvc_name_rule *rule, const struct kvc_key *key, char *out,
		     size_t capacity);

/* kvc_name_group_hash - g of kvcellar naming, for tools that have the id and a decoded key. */
uint64_t kvc_name_group_hash(const char *ns_id, const void *key, size_t key_bytes);

/* A dimension that the name leaves out has rank 0 of 1; vrank_count 0 = no vrank in the name. */
struct kvc_name_parts {
	size_t key_bytes;
	uint32_t pool_fingerprint; /* high 32 bits */
	uint32_t vrank;
	uint32_t vrank_count;
	uint32_t pp_rank;
	uint32_t pp_size;
	uint32_t cp_rank;
	uint32_t cp_size;
	uint32_t dcp_rank;
	uint32_t dcp_size;
	bool hashed; /* "%h-...": nothing else is known */
	char pool_name[KVC_POOL_NAME_MAX + 1];
	uint8_t key[KVC_NAME_MAX];
};

/* kvc_name_parse - takes a name of kvcellar naming apart. -EINVAL: not one that
 * kvc_name_build() could have made. */
int kvc_name_parse(const char *name, size_t bytes, struct kvc_name_parts *out);

/*
 * kvc_name_nixl_group - length of the prefix of a file name that all objects of one key and model
 * share: what is left without part, pool and rank suffixes. Never 0 for a name that is not empty.
 * kvc_name_nixl_belongs - whether name is <key>_<model> with nothing but such suffixes after it,
 * for a key without '_'. model: as kvc_name_nixl_model() writes it.
 */
size_t kvc_name_nixl_group(const char *name, size_t bytes);
bool kvc_name_nixl_belongs(const char *name, size_t bytes, const char *model);

#endif
