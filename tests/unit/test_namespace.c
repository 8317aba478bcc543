/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/namespace.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kvc_namespace_params base_params(void)
{
	return (struct kvc_namespace_params){
		.size = sizeof(struct kvc_namespace_params),
		.model_id = "Qwen/Qwen3-8B",
		.identity = "rev-1",
		.tenant = "a",
		.dtype = "bfloat16",
		.page_tokens = 64,
		.tp_size = 4,
	};
}

static struct kvc_namespace_identity make(const struct kvc_namespace_params *params)
{
	struct kvc_namespace_identity ns;

	assert_int_equal(kvc_namespace_identity_init(&ns, params, NULL, NULL), 0);
	return ns;
}

static uint64_t hash_of(const struct kvc_namespace_params *params)
{
	struct kvc_namespace_identity ns = make(params);
	uint64_t hash = ns.hash;

	kvc_namespace_identity_fini(&ns);
	return hash;
}

/*
 * python3 -c '
 * from hashlib import blake2b as B; from struct import pack as P
 * F=lambda f:b"\xff"*4 if f is None else P("<I",len(f))+f
 * H=lambda*x:B(b"".join(map(F,x)),digest_size=8).hexdigest()
 * Q=lambda n:P("<Q",n)
 * print(H(Q(1),b"Qwen/Qwen3-8B",b"rev-1",b"a",b"bfloat16",Q(64),Q(0),Q(4),Q(1),Q(1),Q(1),None))
 * print(H(Q(1),None,b"",None,None,Q(1),Q(1),None,Q(2),Q(3),Q(4),Q(128)))'
 */
static void hash_and_id_are_as_documented(void **state)
{
	struct kvc_namespace_params p = base_params();
	struct kvc_namespace_identity ns = make(&p);

	(void)state;
	assert_int_equal(ns.hash, UINT64_C(0x0679bd5e825baa40));
	assert_string_equal(ns.id, "Qwen-Qwen3-8B-0679bd5e825baa40");
	kvc_namespace_identity_fini(&ns);
	p = (struct kvc_namespace_params){ .size = sizeof(p),
					   .identity = "",
					   .page_tokens = 1,
					   .is_mla = 1,
					   .tp_size = 8,
					   .tp_lcm_size = 16,
					   .pp_size = 2,
					   .cp_size = 3,
					   .dcp_size = 4,
					   .logical_page_tokens = 128 };
	ns = make(&p);
	assert_int_equal(ns.hash, UINT64_C(0x557208d90691640a));
	assert_string_equal(ns.id, "none-557208d90691640a");
	kvc_namespace_identity_fini(&ns);
}

/* R14 */
static void each_field_makes_another_namespace(void **state)
{
	enum {
		VARIANTS = 13
	};
	struct kvc_namespace_params p[VARIANTS];
	uint64_t hashes[VARIANTS];

	(void)state;
	for (size_t i = 0; i < VARIANTS; i++)
		p[i] = base_params();
	p[1].model_id = "Qwen-Qwen3-8B";
	p[2].identity = "rev-2";
	p[3].identity = NULL;
	p[4].dtype = "fp8_e4m3";
	p[5].dtype = "fp8_e5m2";
	p[6].page_tokens = 32;
	p[7].is_mla = 1;
	p[8].tp_size = 8;
	p[9].pp_size = 2;
	p[10].cp_size = 2;
	p[11].dcp_size = 2;
	p[12].logical_page_tokens = 128;
	for (size_t i = 0; i < VARIANTS; i++) {
		hashes[i] = hash_of(&p[i]);
		for (size_t j = 0; j < i; j++)
			assert_int_not_equal(hashes[i], hashes[j]);
	}
}

static void ranks_and_splitting_do_not_count(void **state)
{
	struct kvc_namespace_params p = base_params(), q = base_params();

	(void)state;
	p.tp_lcm_size = 8;
	q.tp_size = 8;
	assert_int_equal(hash_of(&p), hash_of(&q));
	p = q = base_params();
	p.tp_rank = 3;
	p.is_writer = KVC_YES;
	assert_int_equal(hash_of(&p), hash_of(&q));
	p.pp_size = q.pp_size = p.cp_size = q.cp_size = p.dcp_size = q.dcp_size = 2;
	p.pp_rank = p.cp_rank = p.dcp_rank = 1;
	assert_int_equal(hash_of(&p), hash_of(&q));
	p = q = base_params();
	p.is_mla = q.is_mla = 1;
	p.tp_size = 8;
	assert_int_equal(hash_of(&p), hash_of(&q));
}

/* R15 */
static void tenants_stay_apart(void **state)
{
	static const char *const pairs[][2] = {
		{ "a", "bc" }, { "ab", "c" }, { NULL, "c" }, { "", "c" }
	};
	uint64_t hashes[4];

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		struct kvc_namespace_params p = base_params();

		p.tenant = pairs[i][0];
		p.dtype = pairs[i][1];
		hashes[i] = hash_of(&p);
		for (size_t j = 0; j < i; j++)
			assert_int_not_equal(hashes[i], hashes[j]);
	}
}

static void configuration_fills_what_is_absent(void **state)
{
	struct kvc_namespace_params p = base_params();
	struct kvc_namespace_identity ns;

	(void)state;
	p.identity = NULL;
	p.tenant = "";
	assert_int_equal(kvc_namespace_identity_init(&ns, &p, "from config", "other"), 0);
	assert_string_equal(ns.fields.identity, "from config");
	assert_string_equal(ns.fields.tenant, "");
	kvc_namespace_identity_fini(&ns);
	assert_int_equal(kvc_namespace_identity_init(&ns, &p, NULL, NULL), 0);
	assert_null(ns.fields.identity);
	kvc_namespace_identity_fini(&ns);
}

/* R16 */
static void ids_are_safe_file_names(void **state)
{
	static const char *const models[][2] = {
		{ "", "none-" },
		{ "..", "none-" },
		{ "../../etc/x", "etc-x-" },
		{ "/models/my/local path", "models-my-local-path-" },
		{ "/models/x", "models-x-" },
		{ "./models/x/", "models-x-" },
		{ "/.cache/x.", "cache-x.-" },
		{ "--help", "help-" },
		{ "-", "none-" },
		{ "/", "none-" },
		{ "x--", "x-" },
		{ "a--b/-c", "a--b--c-" },
		{ "Llama-3.1_8B", "Llama-3.1_8B-" },
		{ "\xe6\xa8\xa1\xe5\x9e\x8b", "none-" },
		{ "a\n\tb%", "a-b-" },
		{ "0123456789012345678901234567890123456789xyz",
		  "0123456789012345678901234567890123456789-" },
		{ "/0123456789012345678901234567890123456789xyz",
		  "0123456789012345678901234567890123456789-" },
		{ "012345678901234567890123456789012345678/yz",
		  "012345678901234567890123456789012345678-" },
	};
	static const size_t lengths[] = { 250, 1000, 4096, KVC_NAMESPACE_TEXT_MAX };
	char *model = malloc(KVC_NAMESPACE_TEXT_MAX + 2);
	struct kvc_namespace_params p = base_params();
	struct kvc_namespace_identity ns;
	uint64_t hash;

	(void)state;
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		p.model_id = models[i][0];
		ns = make(&p);
		assert_int_equal(strlen(ns.id), strlen(models[i][1]) + 16);
		assert_memory_equal(ns.id, models[i][1], strlen(models[i][1]));
		assert_true(ns.id[0] != '-' && ns.id[0] != '.');
		assert_int_equal(kvc_namespace_id_hash(ns.id, &hash), 0);
		assert_int_equal(hash, ns.hash);
		kvc_namespace_identity_fini(&ns);
	}
	p.model_id = model;
	for (size_t i = 0; i < 4; i++) {
		memset(model, 'm', lengths[i]);
		model[lengths[i]] = '\0';
		ns = make(&p);
		assert_int_equal(strlen(ns.id), 57);
		kvc_namespace_identity_fini(&ns);
	}
	model[KVC_NAMESPACE_TEXT_MAX] = 'm';
	model[KVC_NAMESPACE_TEXT_MAX + 1] = '\0';
	assert_int_equal(kvc_namespace_identity_init(&ns, &p, NULL, NULL), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "model_id"));
	free(model);
}

static void other_texts_are_no_ids(void **state)
{
	static const char *const bad[] = {
		"",
		"x",
		"0123456789abcdef",
		"-0123456789abcdef",
		"x-0123456789abcdeF",
		"x-0123456789abcde",
		"x0123456789abcdef0",
		".x-0123456789abcdef",
		"a/b-0123456789abcdef",
		".kvcellar",
		"a0",
		"01234567890123456789012345678901234567890-0123456789abcdef",
	};
	uint64_t hash = 5;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (kvc_namespace_id_hash(bad[i], &hash) != -EINVAL)
			fail_msg("\"%s\" was taken", bad[i]);
	assert_int_equal(hash, 5);
	assert_int_equal(kvc_namespace_id_hash("x-0123456789abcdef", &hash), 0);
	assert_int_equal(hash, UINT64_C(0x0123456789abcdef));
	/* Made by nobody, and yet a folder of a namespace: ls and clear take it. */
	assert_int_equal(kvc_namespace_id_hash("-models-x-0123456789abcdef", &hash), 0);
}

static void bad_params_are_refused_by_name(void **state)
{
	enum {
		CASES = 15
	};
	struct kvc_namespace_params p[CASES];
	static const char *const names[CASES] = {
		"size",	       "page_tokens", "is_mla",	  "is_writer", "tp_rank",
		"pp_rank",     "cp_rank",     "dcp_rank", "tp_size",   "tp_lcm_size = 6",
		"tp_lcm_size", "reserved",    "tenant",	  "model_id",  "1024 times",
	};
	struct kvc_namespace_identity ns;

	(void)state;
	for (size_t i = 0; i < CASES; i++)
		p[i] = base_params();
	p[0].size = 8;
	p[1].page_tokens = 0;
	p[2].is_mla = 2;
	p[3].is_writer = 3;
	p[4].tp_rank = 4;
	p[5].pp_rank = 1;
	p[6].cp_size = p[6].cp_rank = 2;
	p[7].dcp_rank = UINT32_MAX;
	p[8].tp_size = KVC_NAMESPACE_RANKS_MAX + 1;
	p[9].tp_lcm_size = 6;
	p[10].tp_lcm_size = UINT32_MAX - 3;
	p[11].reserved = 1;
	p[12].tenant = "\xc0\x80";
	p[13].model_id = "\xed\xa0\x80";
	p[14].tp_size = 1;
	p[14].tp_lcm_size = 1025;
	for (size_t i = 0; i < CASES; i++) {
		if (kvc_namespace_identity_init(&ns, &p[i], NULL, NULL) != -EINVAL)
			fail_msg("case %zu (%s) was taken", i, names[i]);
		assert_non_null(strstr(kvc_last_error(), names[i]));
	}
	assert_int_equal(kvc_namespace_identity_init(&ns, NULL, NULL, NULL), -EINVAL);
	kvc_namespace_identity_fini(NULL);
}

static void utf8_is_what_json_takes(void **state)
{
	static const char *const good[] = { "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf",
					    "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf" };
	static const char *const bad[] = { "\x80",
					   "\xc1\xbf",
					   "\xe0\x9f\xbf",
					   "\xed\xa0\x80",
					   "\xf0\x8f\xbf\xbf",
					   "\xf4\x90\x80\x80",
					   "\xf5\x80\x80\x80",
					   "\xc3",
					   "\xe2\x82",
					   "\xff" };
	struct kvc_namespace_params p = base_params();
	struct kvc_namespace_identity ns;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		char *text;

		p.model_id = good[i];
		ns = make(&p);
		assert_int_equal(kvc_namespace_identity_render(&ns, &text), 0);
		free(text);
		kvc_namespace_identity_fini(&ns);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		p.model_id = bad[i];
		assert_int_equal(kvc_namespace_identity_init(&ns, &p, NULL, NULL), -EINVAL);
	}
}

static void places_are_taken_over(void **state)
{
	struct kvc_namespace_params p = base_params();
	struct kvc_namespace_identity ns;

	(void)state;
	p.tp_rank = 2;
	p.tp_lcm_size = 8;
	ns = make(&p);
	assert_int_equal(ns.place.splits, 2);
	assert_int_equal(ns.place.tp_rank, 2);
	assert_int_equal(ns.place.tp_size, 4);
	assert_false(ns.place.is_writer);
	kvc_namespace_identity_fini(&ns);
	p.dcp_size = 4;
	p.dcp_rank = 2;
	ns = make(&p);
	assert_true(ns.place.is_writer);
	kvc_namespace_identity_fini(&ns);
	p.is_writer = KVC_NO;
	p.is_mla = 1;
	ns = make(&p);
	assert_false(ns.place.is_writer);
	assert_int_equal(ns.place.splits, 1);
	kvc_namespace_identity_fini(&ns);
	p = (struct kvc_namespace_params){ .size = offsetof(struct kvc_namespace_params, is_mla),
					   .page_tokens = 1,
					   .tp_size = 77 };
	ns = make(&p);
	assert_int_equal(ns.place.tp_size, 1);
	assert_true(ns.place.is_writer);
	kvc_namespace_identity_fini(&ns);
}

static void json_comes_back(void **state)
{
	struct kvc_namespace_params p = base_params();
	struct kvc_namespace_identity a, b;
	char *text;

	(void)state;
	for (int round = 0; round < 2; round++) {
		if (round == 1) {
			p.identity = NULL;
			p.tenant = "";
			p.is_mla = 1;
			p.logical_page_tokens = 128;
			p.model_id = "\xe6\xa8\xa1 \"quoted\" \\ \n";
		}
		a = make(&p);
		assert_int_equal(kvc_namespace_identity_render(&a, &text), 0);
		assert_int_equal(kvc_namespace_identity_parse(&b, text, strlen(text)), 0);
		assert_true(kvc_namespace_identity_equal(&a, &b));
		assert_int_equal(a.hash, b.hash);
		assert_string_equal(a.id, b.id);
		assert_int_equal(b.place.tp_size, 1);
		free(text);
		kvc_namespace_identity_fini(&b);
		b = a;
		b.fields.page_tokens++;
		assert_false(kvc_namespace_identity_equal(&a, &b));
		b = a;
		b.fields.tenant = NULL;
		assert_false(kvc_namespace_identity_equal(&a, &b));
		kvc_namespace_identity_fini(&a);
	}
}

/* Replaces `from` by `to` in namespace.json; NULL in `to` cuts the text there. */
static int parse_changed(const char *text, const char *from, const char *to)
{
	struct kvc_namespace_identity ns;
	const char *at = strstr(text, from);
	char changed[4096];

	assert_non_null(at);
	if (to)
		(void)snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to,
			       at + strlen(from));
	else
		(void)snprintf(changed, sizeof(changed), "%.*s", (int)(at - text), text);
	return kvc_namespace_identity_parse(&ns, changed, strlen(changed));
}

static void damaged_json_is_refused(void **state)
{
	struct kvc_namespace_params p = base_params();
	struct kvc_namespace_identity ns = make(&p), out;
	char *text;

	(void)state;
	assert_int_equal(kvc_namespace_identity_render(&ns, &text), 0);
	assert_int_equal(parse_changed(text, "\"pp_size\"", NULL), -EINVAL);
	assert_int_equal(parse_changed(text, "\"rev-1\"", "\"rev-2\""), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "its id is"));
	assert_int_equal(parse_changed(text, "\"rev-1\"", "7"), -EINVAL);
	assert_int_equal(parse_changed(text, "\"page_tokens\": 64", "\"page_tokens\": 0"), -EINVAL);
	assert_int_equal(parse_changed(text, "\"page_tokens\": 64", "\"page_tokens\": 4294967296"),
			 -EINVAL);
	assert_int_equal(parse_changed(text, "\"head_split\": 4", "\"head_split\": 0"), -EINVAL);
	assert_int_equal(parse_changed(text, "\"is_mla\": false", "\"is_mla\": 0"), -EINVAL);
	assert_int_equal(parse_changed(text, "kvcellar namespace", "other"), -EINVAL);
	assert_int_equal(parse_changed(text, "\"id\"", "\"ID\""), -EINVAL);
	assert_int_equal(parse_changed(text, "\"pp_size\"", "\"cp_size\""), -EINVAL);
	assert_int_equal(parse_changed(text, "\"format_major\": 1", "\"format_major\": 2"),
			 -EPROTONOSUPPORT);
	assert_non_null(strstr(kvc_last_error(), "version 2, this library reads 1"));
	assert_int_equal(kvc_namespace_identity_parse(&out, "[]", 2), -EINVAL);
	assert_int_equal(kvc_namespace_identity_parse(&out, "", 0), -EINVAL);
	free(text);
	kvc_namespace_identity_fini(&ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hash_and_id_are_as_documented),
		cmocka_unit_test(each_field_makes_another_namespace),
		cmocka_unit_test(ranks_and_splitting_do_not_count),
		cmocka_unit_test(tenants_stay_apart),
		cmocka_unit_test(configuration_fills_what_is_absent),
		cmocka_unit_test(ids_are_safe_file_names),
		cmocka_unit_test(other_texts_are_no_ids),
		cmocka_unit_test(bad_params_are_refused_by_name),
		cmocka_unit_test(utf8_is_what_json_takes),
		cmocka_unit_test(places_are_taken_over),
		cmocka_unit_test(json_comes_back),
		cmocka_unit_test(damaged_json_is_refused),
	};

	return cmocka_run_group_tests_name("namespace", tests, NULL, NULL);
}
