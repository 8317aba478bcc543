/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/name.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

struct made {
	char name[KVC_NAME_MAX + 1];
	uint32_t bytes;
	uint64_t g, v;
};

static struct kvc_namespace_identity make_ns(const struct kvc_namespace_params *params)
{
	struct kvc_namespace_params p = *params;
	struct kvc_namespace_identity ns;

	p.size = sizeof(p);
	p.page_tokens = p.page_tokens ? p.page_tokens : 64;
	assert_int_equal(kvc_namespace_identity_init(&ns, &p, NULL, NULL), 0);
	return ns;
}

static struct made build(const struct kvc_name_rule *rule, const void *key, size_t bytes)
{
	struct made made;

	assert_int_equal(kvc_name_build(rule, &(struct kvc_key){ key, bytes }, made.name,
					&made.bytes, &made.g, &made.v),
			 0);
	assert_int_equal(strlen(made.name), made.bytes);
	return made;
}

static struct kvc_name_rule own_rule(const struct kvc_namespace_identity *ns, bool shared)
{
	struct kvc_name_rule rule;
	struct kvc_name_params p = {
		.ns = ns,
		.pool_name = "kv",
		.pool_fingerprint = 0x0123456789abcdef,
		.vrank = ns->place.tp_rank,
		.vrank_count = ns->place.tp_size,
		.shared = shared,
	};

	assert_int_equal(kvc_name_rule_init(&rule, &p), 0);
	return rule;
}

/* ---------------------------------------------------------------- nixl naming: the vectors */

static json_t *load_vectors(void)
{
	json_error_t error;
	json_t *json = json_load_file(KVC_TEST_SOURCE_DIR "/vectors/hicachenixl.json", 0, &error);

	if (!json)
		fail_msg("hicachenixl.json: %s", error.text);
	return json;
}

static struct kvc_namespace_identity vector_ns(const json_t *row)
{
	struct kvc_namespace_params p = {
		.model_id = json_string_value(json_object_get(row, "model")),
		.is_mla = json_is_true(json_object_get(row, "is_mla_model")),
		.tp_rank = (uint32_t)json_integer_value(json_object_get(row, "tp_rank")),
		.tp_size = (uint32_t)json_integer_value(json_object_get(row, "tp_size")),
	};

	return make_ns(&p);
}

static struct made nixl_name(const struct kvc_namespace_identity *ns, const char *pool,
			     uint32_t parts, uint32_t part, bool joined, const char *key)
{
	char suffix[KVC_PART_SUFFIX_MAX + 1];
	struct kvc_name_rule rule;
	struct kvc_name_params p = {
		.ns = ns,
		.pool_name = pool,
		.part_suffix = suffix,
		.naming = KVC_NAMING_NIXL,
		.vrank = ns->place.tp_rank,
		.vrank_count = ns->place.tp_size,
		.shared = ns->fields.is_mla && strcmp(pool, "mamba") != 0,
	};

	kvc_name_nixl_suffix(pool, parts, part, NULL, joined, suffix);
	assert_int_equal(kvc_name_rule_init(&rule, &p), 0);
	return build(&rule, key, strlen(key));
}

static void check_expansion(const struct kvc_namespace_identity *ns, const char *pool, size_t parts,
			    bool joined, const json_t *keys, const json_t *expected)
{
	assert_int_equal(json_array_size(expected), json_array_size(keys) * parts);
	for (size_t i = 0; i < json_array_size(expected); i++) {
		const char *key = json_string_value(json_array_get(keys, i / parts));
		struct made made =
			nixl_name(ns, pool, (uint32_t)parts, (uint32_t)(i % parts), joined, key);

		assert_string_equal(made.name, json_string_value(json_array_get(expected, i)));
	}
}

static void nixl_names_are_those_of_the_vectors(void **state)
{
	json_t *json = load_vectors(), *row;
	size_t i;

	(void)state;
	json_array_foreach(json_object_get(json, "names"), i, row)
	{
		struct kvc_namespace_identity ns = vector_ns(row);
		const json_t *keys = json_object_get(row, "keys");
		const char *spec;
		json_t *expected;

		check_expansion(&ns, "kv", 1, true, keys, json_object_get(row, "copy_mode"));
		check_expansion(&ns, "kv", ns.fields.is_mla ? 1 : 2, false, keys,
				json_object_get(row, "zero_copy"));
		json_object_foreach(json_object_get(row, "hybrid"), spec, expected)
		{
			const char *star = strchr(spec, '*');
			char pool[KVC_POOL_NAME_MAX + 1];

			assert_non_null(star);
			(void)snprintf(pool, sizeof(pool), "%.*s", (int)(star - spec), spec);
			check_expansion(&ns, pool, strtoul(star + 1, NULL, 10), false, keys,
					expected);
		}
		kvc_namespace_identity_fini(&ns);
	}
	assert_int_equal(i, 40);
	json_decref(json);
}

static void nixl_groups_are_those_of_the_vectors(void **state)
{
	json_t *json = load_vectors(), *row;
	size_t i;

	(void)state;
	json_array_foreach(json_object_get(json, "cleaner_groups"), i, row)
	{
		const char *name = json_string_value(json_array_get(row, 0));
		const char *group = json_string_value(json_array_get(row, 1));
		size_t n = kvc_name_nixl_group(name, strlen(name));
		char *model = strchr(group, '_');

		assert_int_equal(n, strlen(group));
		assert_memory_equal(name, group, n);
		assert_true(kvc_name_nixl_belongs(name, strlen(name), model + 1));
	}
	assert_int_equal(i, 744);
	json_decref(json);
}

static void nixl_group_joins_all_ranks_and_dimensions(void **state)
{
	static const char *const names[] = {
		"key_m_3_4_2_1_cp0_2_tp4_dcp1_2_page128_k",
		"key_m_3_4_2_1_cp0_2_v",
		"key_m_2_1",
		"key_m_cp1_2_draft_swa_k",
		"key_m_tp4_dcp0_2_page64_mamba_conv_11",
		"key_m_0_8_deepseek_v4_c4_indexer_state",
		"key_m_deepseek_v4_c128_7",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		assert_int_equal(kvc_name_nixl_group(names[i], strlen(names[i])), strlen("key_m"));
		assert_true(kvc_name_nixl_belongs(names[i], strlen(names[i]), "m"));
	}
	assert_int_equal(kvc_name_nixl_group("_k", 2), 2);
	assert_int_equal(kvc_name_nixl_group("x", 1), 1);
	assert_int_equal(kvc_name_nixl_group("", 0), 0);
	assert_int_equal(kvc_name_nixl_group("a_page1", 7), 7);
	assert_int_equal(kvc_name_nixl_group("a_dcp0_2_page1", 14), 14);
}

/* R18 */
static void nixl_belongs_tells_models_apart(void **state)
{
	static const char *const others[] = {
		"k1_llama-2_0_1",  "k1_llama-2_0_1_k",
		"k1_my_llama_0_1", "k1_llama2",
		"llama_0_1",	   "k1",
		"k1_xllama",	   "k1_llama_0_1.tmp",
		"README",	   "",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_false(kvc_name_nixl_belongs(others[i], strlen(others[i]), "llama"));
	assert_true(kvc_name_nixl_belongs("k1_llama", 8, "llama"));
	assert_true(kvc_name_nixl_belongs("k1_llama_5_8_mamba_conv_0", 25, "llama"));
	assert_true(kvc_name_nixl_belongs("k1__0_1", 7, ""));
	assert_false(kvc_name_nixl_belongs("k1_llama_0_1", 12, ""));
}

static void nixl_adds_suffixes_where_names_collide(void **state)
{
	struct kvc_namespace_params p = {
		.model_id = "a/b",
		.tp_size = 4,
		.tp_rank = 3,
		.pp_size = 2,
		.pp_rank = 1,
		.cp_size = 2,
		.cp_rank = 1,
		.dcp_size = 2,
		.dcp_rank = 1,
		.logical_page_tokens = 128,
	};
	struct kvc_namespace_identity ns = make_ns(&p);

	(void)state;
	assert_string_equal(nixl_name(&ns, "kv", 2, 1, false, "K").name,
			    "K_a-b_3_4_2_1_cp1_2_tp4_dcp1_2_page128_v");
	kvc_namespace_identity_fini(&ns);
	p.is_mla = 1;
	ns = make_ns(&p);
	assert_string_equal(nixl_name(&ns, "kv", 1, 0, false, "K").name,
			    "K_a-b_2_1_cp1_2_tp4_dcp1_2_page128_k");
	kvc_namespace_identity_fini(&ns);
}

static void nixl_refuses_what_cannot_be_a_file_name(void **state)
{
	struct kvc_namespace_identity ns =
		make_ns(&(struct kvc_namespace_params){ .model_id = "m" });
	struct kvc_name_rule rule;
	char key[300], out[KVC_NAME_MAX + 1] = "before";
	uint32_t bytes = 77;
	uint64_t g = 7, v = 8;

	(void)state;
	memset(key, 'x', sizeof(key));
	assert_int_equal(kvc_name_rule_init_raw(&rule, KVC_NAMING_NIXL, &ns, "kv"), 0);
	/* "_m_0_1" takes 6 */
	assert_int_equal(kvc_name_build(&rule, &(struct kvc_key){ key, 249 }, out, &bytes, &g, &v),
			 0);
	assert_int_equal(bytes, 255);
	bytes = 77;
	assert_int_equal(kvc_name_build(&rule, &(struct kvc_key){ key, 250 }, out, &bytes, &g, &v),
			 -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "250 bytes"));
	assert_int_equal(kvc_name_build(&rule, &(struct kvc_key){ "a/b", 3 }, out, &bytes, &g, &v),
			 -EINVAL);
	assert_int_equal(kvc_name_build(&rule, &(struct kvc_key){ "a\0b", 3 }, out, &bytes, &g, &v),
			 -EINVAL);
	assert_int_equal(bytes, 77);
	kvc_namespace_identity_fini(&ns);
}

/* R16 */
static void nixl_refuses_a_long_model_once_at_open(void **state)
{
	static const size_t lengths[] = { 186, 187, 250, 1000, 4096 };
	char model[4097];

	(void)state;
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct kvc_namespace_identity ns;
		struct kvc_name_rule rule;

		memset(model, 'm', lengths[i]);
		model[lengths[i]] = '\0';
		ns = make_ns(&(struct kvc_namespace_params){ .model_id = model });
		assert_int_equal(kvc_name_nixl_check(&ns), lengths[i] > 186 ? -ENAMETOOLONG : 0);
		assert_int_equal(kvc_name_rule_init_raw(&rule, KVC_NAMING_KVCELLAR, &ns, "kv"), 0);
		kvc_namespace_identity_fini(&ns);
	}
}

static void nixl_hashes_come_from_the_name(void **state)
{
	struct kvc_namespace_identity ns =
		make_ns(&(struct kvc_namespace_params){ .model_id = "m" });
	struct made made = nixl_name(&ns, "kv", 2, 0, false, "key");
	struct kvc_hash hash;

	(void)state;
	assert_string_equal(made.name, "key_m_0_1_k");
	assert_int_equal(made.g, kvc_blake2b_64("key_m_0_1_k", 11));
	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, "key_m_0_1_k");
	assert_int_equal(made.v, kvc_hash_end(&hash));
	kvc_namespace_identity_fini(&ns);
}

/* ---------------------------------------------------------------- kvcellar naming */

/*
 * python3 -c '
 * from hashlib import blake2b as B; from struct import pack as P
 * F=lambda f:b"\xff"*4 if f is None else P("<I",len(f))+f
 * H=lambda*x:B(b"".join(map(F,x)),digest_size=8).hexdigest()
 * Q=lambda n:P("<Q",n)
 * ns=H(Q(1),b"m",None,None,None,Q(64),Q(0),Q(4),Q(2),Q(1),Q(2),Q(128)); print(ns)
 * print(H(("m-"+ns).encode(),b"a.b"))
 * print(H(Q(0x0123456789abcdef),P("<II",3,4),P("<III",1,0,1),b"a.b"))'
 */
static void own_names_and_hashes_are_as_documented(void **state)
{
	struct kvc_namespace_params p = {
		.model_id = "m",
		.tp_size = 4,
		.tp_rank = 3,
		.pp_size = 2,
		.pp_rank = 1,
		.dcp_size = 2,
		.dcp_rank = 1,
		.logical_page_tokens = 128,
	};
	struct kvc_namespace_identity ns = make_ns(&p);
	struct kvc_name_rule rule = own_rule(&ns, false);
	struct made made = build(&rule, "a.b", 3);

	(void)state;
	assert_string_equal(made.name, "a%2Eb.kv.01234567_3_4_pp1_2_dcp1_2");
	assert_int_equal(ns.hash, UINT64_C(0x67557951944c43e6));
	assert_int_equal(made.g, UINT64_C(0xf33d95ffbaf32126));
	assert_int_equal(made.v, UINT64_C(0x7d7fa4e03e1787d7));
	assert_int_equal(made.g, kvc_name_group_hash(ns.id, "a.b", 3));
	kvc_namespace_identity_fini(&ns);
}

/* R12: who sees whose pages. */
static void own_names_differ_by_rank_unless_shared(void **state)
{
	(void)state;
	for (uint32_t mla = 0; mla <= 1; mla++) {
		struct made seen[16];
		size_t n = 0;

		for (uint32_t tp = 0; tp < 4; tp++) {
			for (uint32_t pp = 0; pp < 2; pp++) {
				for (uint32_t cp = 0; cp < 2; cp++) {
					struct kvc_namespace_identity ns = make_ns(
						&(struct kvc_namespace_params){ .is_mla = mla,
										.tp_size = 4,
										.tp_rank = tp,
										.pp_size = 2,
										.pp_rank = pp,
										.cp_size = 2,
										.cp_rank = cp });
					struct kvc_name_rule rule = own_rule(&ns, mla);

					seen[n++] = build(&rule, "K", 1);
					kvc_namespace_identity_fini(&ns);
				}
			}
		}
		for (size_t i = 0; i < n; i++) {
			for (size_t j = 0; j < i; j++) {
				bool same = mla && i % 4 == j % 4;

				assert_int_equal(strcmp(seen[i].name, seen[j].name) == 0, same);
				assert_int_equal(seen[i].v == seen[j].v, same);
				assert_int_equal(seen[i].g, seen[j].g);
			}
		}
	}
}

static void long_names_are_hashed(void **state)
{
	struct kvc_namespace_identity ns = make_ns(&(struct kvc_namespace_params){ 0 });
	struct kvc_name_rule rule = own_rule(&ns, true);
	char key[1000], full[4096], expected[36];
	uint8_t digest[16];

	(void)state;
	memset(key, '/', sizeof(key));
	/* ".kv.01234567" takes 12 of 255 */
	assert_int_equal(build(&rule, memset(key, 'x', 243), 243).bytes, 255);
	for (size_t bytes = 244; bytes <= sizeof(key); bytes += 63) {
		struct made made = build(&rule, key, bytes);
		struct kvc_name_parts parts;
		size_t n =
			kvc_name_full(&rule, &(struct kvc_key){ key, bytes }, full, sizeof(full));

		assert_true(n > 255 && n < sizeof(full));
		assert_int_equal(strlen(full), n);
		kvc_blake2b_128(full, n, digest);
		(void)memcpy(expected, "%h-", 4);
		for (size_t i = 0; i < 16; i++)
			(void)snprintf(expected + 3 + 2 * i, 3, "%02x", digest[i]);
		assert_string_equal(made.name, expected);
		assert_int_equal(kvc_name_parse(made.name, made.bytes, &parts), 0);
		assert_true(parts.hashed);
	}
	kvc_namespace_identity_fini(&ns);
}

static void full_name_works_like_snprintf(void **state)
{
	struct kvc_namespace_identity ns = make_ns(&(struct kvc_namespace_params){ 0 });
	struct kvc_name_rule rule = own_rule(&ns, true);
	struct kvc_key key = { "a/b", 3 };
	const char *whole = "a%2Fb.kv.01234567";
	char out[32];

	(void)state;
	assert_int_equal(kvc_name_full(&rule, &key, NULL, 0), strlen(whole));
	for (size_t capacity = 1; capacity < sizeof(out); capacity++) {
		memset(out, '#', sizeof(out));
		assert_int_equal(kvc_name_full(&rule, &key, out, capacity), strlen(whole));
		assert_int_equal(strlen(out),
				 capacity <= strlen(whole) ? capacity - 1 : strlen(whole));
		assert_memory_equal(out, whole, strlen(out));
		for (size_t i = strlen(out) + 1; i < sizeof(out); i++)
			assert_int_equal(out[i], '#');
	}
	kvc_namespace_identity_fini(&ns);
}

static uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Keys that differ in few bytes, out of bytes that encodings trip over. */
static size_t random_key(uint64_t *seed, uint8_t *out, size_t capacity)
{
	static const uint8_t nasty[] = { '.', '/', '%', '2', 'F',  'f', 'h',
					 '-', 'e', '_', 0,   0xff, '\n' };
	size_t n = next_random(seed) % (next_random(seed) % 8 ? 6 : capacity);

	for (size_t i = 0; i < n; i++)
		out[i] = nasty[next_random(seed) % sizeof(nasty)];
	return n;
}

static void check_safe(const struct made *made)
{
	assert_true(made->bytes > 0 && made->bytes <= KVC_NAME_MAX);
	assert_true(made->name[0] != '.');
	for (uint32_t i = 0; i < made->bytes; i++) {
		char c = made->name[i];

		assert_true((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
			    (c >= 'A' && c <= 'Z') || (c && strchr("_@=+-.%", c)));
	}
}

/* R17 */
static void hostile_keys_stay_apart_and_come_back(void **state)
{
	static const struct kvc_key fixed[] = {
		{ "../../etc/x", 11 },
		{ "a/b", 3 },
		{ "a%2Fb", 5 },
		{ "\n", 1 },
		{ "", 0 },
		{ "\0", 1 },
		{ "\xff", 1 },
		{ "\xf0\x9f\x98\x80", 4 },
		{ "%e", 2 },
		{ "%h-", 3 },
		{ ".", 1 },
		{ "..", 2 },
	};
	struct kvc_namespace_identity ns = make_ns(&(struct kvc_namespace_params){ .tp_size = 2 });
	struct kvc_name_rule rule = own_rule(&ns, false);
	struct made made[2];
	uint8_t key[2][400];
	uint64_t seed = 20240229;

	(void)state;
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
		made[0] = build(&rule, fixed[i].data, fixed[i].bytes);
		check_safe(&made[0]);
		for (size_t j = 0; j < i; j++) {
			made[1] = build(&rule, fixed[j].data, fixed[j].bytes);
			assert_string_not_equal(made[0].name, made[1].name);
		}
	}
	for (size_t round = 0; round < 100000; round++) {
		size_t bytes[2];
		bool same;

		for (size_t i = 0; i < 2; i++) {
			struct kvc_name_parts parts;

			bytes[i] = random_key(&seed, key[i], sizeof(key[i]));
			made[i] = build(&rule, key[i], bytes[i]);
			check_safe(&made[i]);
			assert_int_equal(kvc_name_parse(made[i].name, made[i].bytes, &parts), 0);
			if (parts.hashed)
				continue;
			assert_int_equal(parts.key_bytes, bytes[i]);
			assert_memory_equal(parts.key, key[i], bytes[i]);
		}
		same = bytes[0] == bytes[1] && memcmp(key[0], key[1], bytes[0]) == 0;
		if (same != (strcmp(made[0].name, made[1].name) == 0))
			fail_msg("seed 20240229, round %zu: %s, %s", round, made[0].name,
				 made[1].name);
		assert_int_equal(made[0].g == made[1].g, same);
		assert_int_equal(made[0].v == made[1].v, same);
	}
	kvc_namespace_identity_fini(&ns);
}

static void parse_reads_all_dimensions(void **state)
{
	static const char name[] = "K%2F.side-pool_1.89abcdef_3_8_pp1_2_cp0_4_dcp1_2";
	struct kvc_name_parts parts;

	(void)state;
	assert_int_equal(kvc_name_parse(name, sizeof(name) - 1, &parts), 0);
	assert_int_equal(parts.key_bytes, 2);
	assert_memory_equal(parts.key, "K/", 2);
	assert_string_equal(parts.pool_name, "side-pool_1");
	assert_int_equal(parts.pool_fingerprint, 0x89abcdef);
	assert_int_equal(parts.vrank, 3);
	assert_int_equal(parts.vrank_count, 8);
	assert_int_equal(parts.pp_rank, 1);
	assert_int_equal(parts.pp_size, 2);
	assert_int_equal(parts.cp_rank, 0);
	assert_int_equal(parts.cp_size, 4);
	assert_int_equal(parts.dcp_rank, 1);
	assert_int_equal(parts.dcp_size, 2);
	assert_int_equal(kvc_name_parse("K.kv.00000000", 13, &parts), 0);
	assert_int_equal(parts.vrank_count, 0);
	assert_int_equal(parts.pp_size, 1);
	assert_int_equal(kvc_name_parse("%e.kv.00000000", 14, &parts), 0);
	assert_int_equal(parts.key_bytes, 0);
}

static void parse_refuses_other_names(void **state)
{
	static const char *const bad[] = {
		"",
		".",
		"K",
		"K.kv",
		"K.kv.0000000",
		"K.kv.0000000G",
		"K.kv.0000000A",
		".kv.00000000",
		"K.KV.00000000",
		"K..00000000",
		"K.kv.00000000_",
		"K.kv.00000000_1",
		"K.kv.00000000_0_1",
		"K.kv.00000000_2_2",
		"K.kv.00000000_01_2",
		"K.kv.00000000_0_2_",
		"K.kv.00000000_0_2x",
		"K.kv.00000000_0_4294967296",
		"K.kv.00000000_cp0_2_pp0_2",
		"K.kv.00000000_pp0_1",
		"%41.kv.00000000",
		"%2f.kv.00000000",
		"%2.kv.00000000",
		"%.kv.00000000",
		"a/b.kv.00000000",
		"K.kv.00000000.tmp",
		"%h-0123",
		"%h-0123456789ABCDEF0123456789abcdef",
		"%E.kv.00000000",
		"x%e.kv.00000000",
		"K.012345678901234567890123456789012.00000000",
	};
	struct kvc_name_parts parts;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (kvc_name_parse(bad[i], strlen(bad[i]), &parts) != -EINVAL)
			fail_msg("\"%s\" was taken", bad[i]);
}

static void pool_names_are_checked(void **state)
{
	static const char *const bad[] = { "",	  "KV",	 "a.b",
					   "a/b", "a b", "012345678901234567890123456789012" };

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(kvc_name_check_pool(bad[i]), -EINVAL);
		assert_non_null(strstr(kvc_last_error(), bad[i]));
	}
	assert_int_equal(kvc_name_check_pool(NULL), -EINVAL);
	assert_int_equal(kvc_name_check_pool("01234567890123456789012345678901"), 0);
	assert_int_equal(kvc_name_check_pool("deepseek_v4_c4-x"), 0);
}

/* python3 -c 'from hashlib import blake2b as B
 * print(B(b"\3\0\0\0raw\2\0\0\0kv",digest_size=8).hexdigest())' */
static void raw_objects_have_names_of_their_own(void **state)
{
	struct kvc_namespace_identity ns = make_ns(&(struct kvc_namespace_params){
		.model_id = "x", .tp_size = 2, .tp_rank = 1, .pp_size = 2 });
	struct kvc_name_rule rule;

	(void)state;
	assert_int_equal(kvc_name_raw_fingerprint("kv"), UINT64_C(0x24f698a37042a250));
	assert_int_equal(kvc_name_rule_init_raw(&rule, KVC_NAMING_KVCELLAR, &ns, "kv"), 0);
	assert_string_equal(build(&rule, "K", 1).name, "K.kv.24f698a3");
	assert_int_equal(kvc_name_rule_init_raw(&rule, KVC_NAMING_NIXL, &ns, "kv"), 0);
	assert_string_equal(build(&rule, "K", 1).name, "K_x_1_2_2_0");
	assert_int_equal(kvc_name_rule_init_raw(&rule, KVC_NAMING_NIXL, &ns, "meta"), 0);
	assert_string_equal(build(&rule, "K", 1).name, "K_x_1_2_2_0_meta");
	assert_int_equal(kvc_name_rule_init_raw(&rule, KVC_NAMING_NIXL, &ns, "A"), -EINVAL);
	kvc_namespace_identity_fini(&ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nixl_names_are_those_of_the_vectors),
		cmocka_unit_test(nixl_groups_are_those_of_the_vectors),
		cmocka_unit_test(nixl_group_joins_all_ranks_and_dimensions),
		cmocka_unit_test(nixl_belongs_tells_models_apart),
		cmocka_unit_test(nixl_adds_suffixes_where_names_collide),
		cmocka_unit_test(nixl_refuses_what_cannot_be_a_file_name),
		cmocka_unit_test(nixl_refuses_a_long_model_once_at_open),
		cmocka_unit_test(nixl_hashes_come_from_the_name),
		cmocka_unit_test(own_names_and_hashes_are_as_documented),
		cmocka_unit_test(own_names_differ_by_rank_unless_shared),
		cmocka_unit_test(long_names_are_hashed),
		cmocka_unit_test(full_name_works_like_snprintf),
		cmocka_unit_test(hostile_keys_stay_apart_and_come_back),
		cmocka_unit_test(parse_reads_all_dimensions),
		cmocka_unit_test(parse_refuses_other_names),
		cmocka_unit_test(pool_names_are_checked),
		cmocka_unit_test(raw_objects_have_names_of_their_own),
	};

	return cmocka_run_group_tests_name("name", tests, NULL, NULL);
}
