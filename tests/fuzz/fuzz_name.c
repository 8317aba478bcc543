/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and names. The first byte picks what the rest is: '0' a key of kvcellar naming, '1' a key
 * of nixl naming, '2' a name of kvcellar naming, '3' a nixl file name, '4' a namespace.json, '5' an
 * id.
 */
#include "connector/name.h"
#include "fuzz/fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void must(bool condition)
{
	if (!condition)
		abort();
}

static struct kvc_namespace_identity make_ns(void)
{
	const struct kvc_namespace_params params = {
		.size = sizeof(params),
		.model_id = "org/model-1_2",
		.page_tokens = 64,
		.tp_size = 4,
		.tp_rank = 3,
		.pp_size = 2,
	};
	struct kvc_namespace_identity ns;

	must(kvc_namespace_identity_init(&ns, &params, NULL, NULL) == 0);
	return ns;
}

static void make_rule(struct kvc_name_rule *rule, int naming)
{
	struct kvc_namespace_identity ns = make_ns();
	const struct kvc_name_params params = { .ns = &ns,
						.pool_name = "kv",
						.part_suffix = "_k",
						.pool_fingerprint = 1,
						.naming = naming,
						.vrank = 3,
						.vrank_count = 4 };

	must(kvc_name_rule_init(rule, &params) == 0);
	kvc_namespace_identity_fini(&ns);
}

static void check_length(const char *name, uint32_t bytes)
{
	must(bytes > 0 && bytes <= KVC_NAME_MAX && strlen(name) == bytes && !strchr(name, '/'));
}

static void own_key(const struct kvc_key *key)
{
	char name[KVC_NAME_MAX + 1], full[KVC_NAME_MAX + 1];
	struct kvc_name_parts parts;
	struct kvc_name_rule rule;
	size_t full_bytes;
	uint64_t g, v;
	uint32_t bytes;

	make_rule(&rule, KVC_NAMING_KVCELLAR);
	must(kvc_name_build(&rule, key, name, &bytes, &g, &v) == 0);
	check_length(name, bytes);
	must(name[0] != '.');
	must(kvc_name_parse(name, bytes, &parts) == 0);
	full_bytes = kvc_name_full(&rule, key, full, sizeof(full));
	must(parts.hashed == (full_bytes > KVC_NAME_MAX));
	if (parts.hashed)
		return;
	must(strcmp(full, name) == 0);
	must(parts.key_bytes == key->bytes &&
	     (key->bytes == 0 || memcmp(parts.key, key->data, key->bytes) == 0));
	must(parts.vrank == 3 && parts.vrank_count == 4 && parts.pp_size == 2);
}

static void nixl_key(const struct kvc_key *key)
{
	char name[KVC_NAME_MAX + 1];
	struct kvc_name_rule rule;
	uint32_t bytes;
	size_t group;
	int rc;

	make_rule(&rule, KVC_NAMING_NIXL);
	rc = kvc_name_build(&rule, key, name, &bytes, NULL, NULL);
	must(rc == 0 || rc == -EINVAL);
	if (rc)
		return;
	check_length(name, bytes);
	group = kvc_name_nixl_group(name, bytes);
	must(group > 0 && group <= bytes);
	if (key->bytes && !memchr(key->data, '_', key->bytes))
		must(kvc_name_nixl_belongs(name, bytes, "org-model-1_2"));
}

/* What is taken apart is the one encoding of its key. */
static void own_name(const char *name, size_t bytes)
{
	struct kvc_name_parts parts;
	struct kvc_name_rule rule;
	char full[4096];
	const char *dot;

	if (kvc_name_parse(name, bytes, &parts) || parts.hashed)
		return;
	make_rule(&rule, KVC_NAMING_KVCELLAR);
	must(kvc_name_full(&rule, &(struct kvc_key){ parts.key, parts.key_bytes }, full,
			   sizeof(full)) < sizeof(full));
	dot = memchr(name, '.', bytes);
	must(dot && memcmp(full, name, (size_t)(dot - name) + 1) == 0);
}

static void nixl_name(const char *name, size_t bytes)
{
	size_t group = kvc_name_nixl_group(name, bytes);

	must(group <= bytes && (group > 0 || bytes == 0));
	if (kvc_name_nixl_belongs(name, bytes, "m"))
		must(memchr(name, '_', bytes) != NULL);
	(void)kvc_name_nixl_belongs(name, bytes, "");
}

static void namespace_json(const char *text, size_t bytes)
{
	struct kvc_namespace_identity ns, again;
	char *rendered;

	if (kvc_namespace_identity_parse(&ns, text, bytes))
		return;
	must(kvc_namespace_identity_render(&ns, &rendered) == 0);
	must(kvc_namespace_identity_parse(&again, rendered, strlen(rendered)) == 0);
	must(kvc_namespace_identity_equal(&ns, &again) && ns.hash == again.hash);
	free(rendered);
	kvc_namespace_identity_fini(&again);
	kvc_namespace_identity_fini(&ns);
}

static void namespace_id(const char *text, size_t bytes)
{
	char *id = malloc(bytes + 1);
	uint64_t hash;

	must(id != NULL);
	memcpy(id, text, bytes);
	id[bytes] = '\0';
	if (kvc_namespace_id_hash(id, &hash) == 0)
		must(!strchr(id, '/') && id[0] != '.' && strlen(id) < KVC_NAMESPACE_ID_BYTES);
	free(id);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	const char *rest = (const char *)data + 1;
	const struct kvc_key key = { rest, bytes ? bytes - 1 : 0 };

	if (bytes == 0)
		return 0;
	switch (data[0]) {
	case '0':
		own_key(&key);
		break;
	case '1':
		nixl_key(&key);
		break;
	case '2':
		own_name(rest, key.bytes);
		break;
	case '3':
		nixl_name(rest, key.bytes);
		break;
	case '4':
		namespace_json(rest, key.bytes);
		break;
	default:
		namespace_id(rest, key.bytes);
		break;
	}
	return 0;
}
