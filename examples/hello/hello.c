/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores four pages of a small KV pool, forgets them, asks for six, and gets four back.
 *
 *   hello FOLDER
 *
 * The second run finds what the first one stored.
 */
#include <kvcellar/kvcellar.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES	    8u
#define PAGE_TOKENS 64u
#define LAYERS	    2u
#define HEADS	    2u
#define HEAD_BYTES  128u
#define PART_BYTES  ((size_t)PAGES * PAGE_TOKENS * LAYERS * HEADS * HEAD_BYTES)
#define STORED	    4u
#define ASKED	    6u

static const char *const names[ASKED] = {
	"page-0", "page-1", "page-2", "page-3", "page-4", "page-5"
};

struct hello {
	struct kvc_config *config;
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct kvc_pool *pool;
	unsigned char *memory; /* K, then V, each [token][layer][head][dim] */
};

static int fail(const char *what)
{
	fprintf(stderr, "hello: %s: %s\n", what, kvc_last_error());
	return 1;
}

static int open_pool(struct hello *h)
{
	const struct kvc_namespace_params ns_params = {
		.size = sizeof(ns_params),
		.model_id = "example/tiny",
		.identity = "revision-1",
		.dtype = "bfloat16",
		.page_tokens = PAGE_TOKENS,
	};
	struct kvc_part parts[2] = {
		{
			.size = sizeof(parts[0]),
			.base = h->memory,
			.token_count = PAGES * PAGE_TOKENS,
			.layer_count = LAYERS,
			.head_count = HEADS,
			.head_bytes = HEAD_BYTES,
		},
	};
	struct kvc_pool_params pool_params = {
		.size = sizeof(pool_params),
		.name = "kv",
		.parts = parts,
		.part_count = 2,
		.host_layout = KVC_LAYOUT_PAGE_FIRST,
	};
	struct kvc_pool_info info = { .size = sizeof(info) };

	parts[1] = parts[0];
	parts[1].base = h->memory + PART_BYTES;
	if (kvc_namespace_open(h->store, &ns_params, &h->ns))
		return fail("namespace");
	if (kvc_pool_open(h->ns, &pool_params, &h->pool) || kvc_pool_query(h->pool, &info))
		return fail("pool");
	printf("page: %llu bytes, %s\n", (unsigned long long)info.page_bytes,
	       info.zero_copy ? "zero copy" : info.reason);
	return 0;
}

/* One call for `count` pages; page i lies at index i of the pool. */
static int transfer(struct hello *h, uint32_t op, size_t count)
{
	static const int64_t indices[ASKED] = { 0, 1, 2, 3, 4, 5 };
	struct kvc_key keys[ASKED];
	struct kvc_result results[ASKED];
	struct kvc_transfer t = {
		.size = sizeof(t),
		.op = op,
		.pool = h->pool,
		.keys = keys,
		.key_count = count,
		.indices = indices,
		.results = results,
	};

	for (size_t i = 0; i < count; i++)
		keys[i] = (struct kvc_key){ names[i], strlen(names[i]) };
	if (kvc_batch_run(h->store, &t, 1))
		return fail("batch");
	printf("%s:", op == KVC_SET ? "set" : op == KVC_GET ? "get" : "exists");
	for (size_t i = 0; i < count; i++)
		printf(" %s/%s", kvc_status_name(results[i].status),
		       kvc_cause_name(results[i].cause));
	printf("; usable prefix %zu\n", t.prefix_count);
	return 0;
}

static int play(struct hello *h, const char *folder)
{
	const size_t page = PART_BYTES / PAGES;

	if (kvc_config_new(&h->config) || kvc_config_set(h->config, "storage_dirs", folder))
		return fail("configuration");
	if (kvc_store_open(h->config, NULL, &h->store))
		return fail("store");
	if (open_pool(h))
		return 1;
	for (size_t i = 0; i < PAGES; i++) {
		memset(h->memory + i * page, (int)('K' + i), page);
		memset(h->memory + PART_BYTES + i * page, (int)('k' + i), page);
	}
	if (transfer(h, KVC_SET, STORED))
		return 1;
	memset(h->memory, 0, 2 * PART_BYTES);
	if (transfer(h, KVC_EXISTS, ASKED) || transfer(h, KVC_GET, ASKED))
		return 1;
	for (size_t i = 0; i < STORED * page; i++)
		if (h->memory[i] != 'K' + i / page || h->memory[PART_BYTES + i] != 'k' + i / page)
			return fail("wrong bytes");
	puts("bytes: right");
	return 0;
}

int main(int argc, char **argv)
{
	struct hello h = { .memory = aligned_alloc(4096, 2 * PART_BYTES) };
	int rc = 1;

	if (argc != 2)
		fprintf(stderr, "usage: hello FOLDER\n");
	else if (h.memory)
		rc = play(&h, argv[1]);
	(void)kvc_pool_close(h.pool);
	(void)kvc_namespace_close(h.ns);
	if (kvc_store_close(h.store))
		rc = fail("close");
	kvc_config_free(h.config);
	free(h.memory);
	return rc;
}
