/* SPDX-License-Identifier: Apache-2.0 */
/* What bench_scale does with an open store. */
#include "scale.h"

#include "common.h"

#include "connector/handle.h"
#include "core/checksum.h"
#include "core/order.h"
#include "core/packed.h"
#include "core/root.h"
#include "core/store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART_BYTES	 4096u
#define PAGE_TOKENS	 64u
#define SLOT_FILES_BYTES (4096u + 64u + 8u + 256u + 1u) /* of all files of a segment */
#define OVERFILL_PERCENT 103u
#define UNKNOWN		 (UINT64_C(1) << 62)
#define WARM_CALLS	 20u
#define WARM_EXISTS	 4000u /* every page of a large table is mapped then */

const char *const scale_op_names[SCALE_OPS] = { "exists_hit", "exists_miss", "get", "set_index",
						"set" };

enum scale_op {
	SCALE_EXISTS_HIT = 0,
	SCALE_EXISTS_MISS = 1,
	SCALE_GET = 2,
	SCALE_SET_INDEX = 3, /* all of a set but its bytes */
	SCALE_SET = 4,	     /* into slots that nobody has written */
};

/* An open store with one pool of one part. */
struct opened {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct kvc_pool *pool;
	struct kvc_packed *packed;
	unsigned char *memory;
	double open_s;
};

/* One call's arguments. */
struct call {
	char names[SCALE_PAGES][BENCH_KEY_BYTES];
	struct kvc_key keys[SCALE_PAGES];
	struct kvc_result results[SCALE_PAGES];
	int64_t indices[SCALE_PAGES];
};

/* ---------------------------------------------------------------- opening */

static void set(struct kvc_config *config, const char *path, const char *value)
{
	if (kvc_config_set(config, path, value) < 0)
		scale_die("%s: %s", path, kvc_last_error());
}

/* Plugins of the build that this program is of. */
static void set_plugin_dir(struct kvc_config *config)
{
	char path[PATH_MAX + 64];
	ssize_t bytes = readlink("/proc/self/exe", path, PATH_MAX - 1);
	char *slash;

	path[bytes > 0 ? bytes : 0] = '\0';
	slash = strrchr(path, '/');
	if (slash == NULL)
		scale_die("/proc/self/exe: %s", strerror(errno));
	memcpy(slash, "/../lib/kvcellar/plugins", sizeof("/../lib/kvcellar/plugins"));
	set(config, "plugin_dir", path);
}

static struct kvc_config *config_of(const struct scale *scale)
{
	struct kvc_config *config = NULL;
	char capacity[32];

	(void)snprintf(capacity, sizeof(capacity), "%llu",
		       (unsigned long long)(scale->objects * SLOT_FILES_BYTES * 101 / 100));
	if (kvc_config_new(&config) < 0)
		scale_die("%s", kvc_last_error());
	set_plugin_dir(config);
	set(config, "storage_dirs", scale->folder);
	set(config, "plugin.posix.active", "true");
	set(config, "storage_layout", "packed");
	set(config, "identity", "bench");
	set(config, "l3_cleaner_enabled", "false");
	set(config, "capacity", capacity);
	return config;
}

static void open_pool(struct opened *opened)
{
	struct kvc_namespace_params ns = {
		.size = sizeof(ns),
		.model_id = "bench/scale",
		.page_tokens = PAGE_TOKENS,
	};
	struct kvc_part part = {
		.size = sizeof(part),
		.base = opened->memory,
		.token_count = (uint64_t)SCALE_PAGES * PAGE_TOKENS,
		.layer_count = 1,
		.head_count = 1,
		.head_bytes = PART_BYTES / PAGE_TOKENS,
	};
	struct kvc_pool_params pool = {
		.size = sizeof(pool),
		.name = "kv",
		.parts = &part,
		.part_count = 1,
		.host_layout = KVC_LAYOUT_PAGE_FIRST,
		.page_count = SCALE_PAGES,
	};

	if (kvc_namespace_open(opened->store, &ns, &opened->ns) < 0 ||
	    kvc_pool_open(opened->ns, &pool, &opened->pool) < 0)
		scale_die("%s", kvc_last_error());
}

static void open_all(const struct scale *scale, struct opened *opened)
{
	struct kvc_config *config = config_of(scale);
	double begin;

	opened->memory = mmap(NULL, (size_t)SCALE_PAGES * PART_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (opened->memory == MAP_FAILED)
		scale_die("no memory");
	begin = bench_now_s();
	if (kvc_store_open(config, NULL, &opened->store) < 0)
		scale_die("%s", kvc_last_error());
	opened->open_s = bench_now_s() - begin;
	kvc_config_free(config);
	open_pool(opened);
	opened->packed = kvc_root_packed(opened->store->roots[0], true);
	if (opened->packed == NULL)
		scale_die("%s: the root is not packed", scale->folder);
}

static void close_all(struct opened *opened)
{
	if (kvc_pool_close(opened->pool) < 0 || kvc_namespace_close(opened->ns) < 0 ||
	    kvc_store_close(opened->store) < 0)
		scale_die("closing: %s", kvc_last_error());
	munmap(opened->memory, (size_t)SCALE_PAGES * PART_BYTES);
}

/* ---------------------------------------------------------------- filling */

/* SET of the protocol but for the data: a slot that nobody has written reads as zeros, like the
 * memory that the checksum is taken of. */
static void publish_one(struct kvc_packed_arena *arena, const struct opened *opened,
			uint64_t number, uint64_t stamp)
{
	const struct kvc_shape *shape = opened->pool->geometry.objects[0].shape;
	struct kvc_packed_place place;
	struct kvc_packed_key packed_key;
	char text[BENCH_KEY_BYTES], name[KVC_NAME_MAX + 1];
	struct kvc_key key = { text, BENCH_KEY_BYTES };
	uint32_t name_bytes;
	struct kvc_packed_meta meta = {
		.key = &packed_key,
		.stamp = stamp,
		.pool_fingerprint = shape->pool_fingerprint,
		.shape = shape,
		.name = name,
		.checksum_kind = KVC_CHECKSUM_FULL,
	};
	void *const bases = opened->memory;
	int rc;

	bench_key(number, text);
	rc = kvc_name_build(&opened->pool->rules[0], &key, name, &name_bytes, NULL, NULL);
	meta.name_bytes = name_bytes;
	packed_key = kvc_pool_packed_key(opened->pool, 0, &key);
	meta.checksum =
		kvc_checksum_memory(KVC_CHECKSUM_FULL, packed_key.g ^ packed_key.v, shape, &bases);
	if (rc == 0)
		rc = kvc_packed_claim(arena, 0, &place);
	if (rc == 0)
		rc = kvc_packed_publish(arena, &place, &meta);
	if (rc != 0)
		scale_die("object %llu: %s", (unsigned long long)number, strerror(abs(rc)));
}

static void run_op(const struct opened *opened, struct call *call, uint32_t op, size_t wanted)
{
	struct kvc_transfer transfer = {
		.size = sizeof(transfer),
		.op = op,
		.pool = opened->pool,
		.keys = call->keys,
		.key_count = SCALE_PAGES,
		.indices = op == KVC_EXISTS ? NULL : call->indices,
		.results = call->results,
	};

	if (kvc_batch_run(opened->store, &transfer, 1) < 0)
		scale_die("operation %u: %s", op, kvc_last_error());
	if (transfer.ok_count != wanted)
		scale_die(
			"operation %u: %zu of %zu pages: %s, %s", op, transfer.ok_count, wanted,
			kvc_status_name(call->results[transfer.prefix_count % SCALE_PAGES].status),
			kvc_cause_name(call->results[transfer.prefix_count % SCALE_PAGES].cause));
}

static void prepare(struct call *call, uint64_t first)
{
	for (uint32_t i = 0; i < SCALE_PAGES; i++) {
		bench_key(first + i, call->names[i]);
		call->keys[i] = (struct kvc_key){ call->names[i], BENCH_KEY_BYTES };
		call->indices[i] = i;
	}
}

static uint64_t filled_of(const struct scale *scale)
{
	return scale->objects * OVERFILL_PERCENT / 100 / SCALE_PAGES * SCALE_PAGES;
}

static void publish_pages(const struct opened *opened, struct kvc_packed_arena *arena,
			  uint64_t first)
{
	uint32_t turn = kvc_packed_enter(opened->packed);
	uint64_t stamp = kvc_packed_stamps(opened->packed, SCALE_PAGES);

	for (uint32_t i = 0; i < SCALE_PAGES; i++)
		publish_one(arena, opened, first + i, stamp - i * KVC_STAMP_STEP);
	kvc_packed_leave(opened->packed, turn);
}

static struct kvc_packed_arena *arena_of(const struct opened *opened)
{
	struct kvc_packed_arena *arena = kvc_pool_arena(opened->pool, opened->packed, 0, 0, true);

	if (arena == NULL)
		scale_die("no slots: %s", kvc_last_error());
	return arena;
}

void scale_fill(struct scale *scale, struct scale_result *result)
{
	struct opened opened = { 0 };
	struct kvc_packed_health health;
	struct kvc_packed_arena *arena;
	double begin;

	open_all(scale, &opened);
	arena = arena_of(&opened);
	begin = bench_now_s();
	for (uint64_t at = 0; at < filled_of(scale); at += SCALE_PAGES)
		publish_pages(&opened, arena, at);
	result->fill_s = bench_now_s() - begin;
	kvc_packed_health(opened.packed, &health);
	result->objects = scale->objects;
	result->filled = filled_of(scale);
	result->live = health.live_slots;
	close_all(&opened);
}

/* ---------------------------------------------------------------- opening and calls */

/* 128 pages in a row, stored in the newer half of the filling: those are not evicted. */
static uint64_t some_prefix(const struct scale *scale, uint64_t turn)
{
	uint64_t half = filled_of(scale) / SCALE_PAGES / 2;

	return (half + bench_mix(turn) % half) * SCALE_PAGES;
}

void scale_open_clean(struct scale *scale, struct scale_result *result)
{
	struct opened opened = { 0 };
	struct kvc_packed_health health;
	struct call *call = calloc(1, sizeof(*call));
	double begin;

	if (call == NULL)
		scale_die("no memory");
	open_all(scale, &opened);
	prepare(call, some_prefix(scale, result->opens));
	begin = bench_now_s();
	run_op(&opened, call, KVC_EXISTS, SCALE_PAGES);
	result->first_s[result->opens] = bench_now_s() - begin;
	result->open_s[result->opens++] = opened.open_s;
	kvc_packed_health(opened.packed, &health);
	if (health.rebuilt)
		scale_die("the index was made again, though it was closed cleanly");
	close_all(&opened);
	free(call);
}

void scale_rebuild(struct scale *scale, struct scale_result *result)
{
	struct opened opened = { 0 };
	struct kvc_packed_health health;

	open_all(scale, &opened);
	kvc_packed_health(opened.packed, &health);
	if (!health.rebuilt)
		scale_die("the index was not made again, though the boot id is another one");
	result->rebuild_s[result->rebuilds++] = opened.open_s;
	close_all(&opened);
}

/* The pages of a call: known ones for what reads, else new ones. */
static uint64_t pages_of(const struct scale *scale, enum scale_op op, uint32_t turn)
{
	if (op == SCALE_EXISTS_HIT || op == SCALE_GET)
		return some_prefix(scale, turn + 1000000u * op);
	return UNKNOWN + ((uint64_t)op << 40) + (uint64_t)turn * SCALE_PAGES;
}

static double call_once(const struct opened *opened, struct kvc_packed_arena *arena,
			struct call *call, enum scale_op op, uint64_t first)
{
	double begin;

	prepare(call, first);
	begin = bench_now_s();
	if (op == SCALE_SET_INDEX)
		publish_pages(opened, arena, first);
	else if (op == SCALE_EXISTS_MISS)
		run_op(opened, call, KVC_EXISTS, 0);
	else
		run_op(opened, call,
		       op == SCALE_EXISTS_HIT ? KVC_EXISTS :
		       op == SCALE_GET	      ? KVC_GET :
						KVC_SET,
		       SCALE_PAGES);
	return bench_now_s() - begin;
}

/* A small root has few slots that were never written: no more sets than for half of them. */
static uint32_t calls_of(const struct scale *scale, enum scale_op op)
{
	uint64_t most = scale->objects / SCALE_PAGES / 2;

	return op == SCALE_SET && most < scale->calls ? (uint32_t)most : scale->calls;
}

static void measure_op(const struct scale *scale, const struct opened *opened, enum scale_op op,
		       struct scale_result *result)
{
	uint32_t calls = calls_of(scale, op);
	uint32_t warm = op == SCALE_SET ? 1 : op == SCALE_EXISTS_HIT ? WARM_EXISTS : WARM_CALLS;
	double *values = calloc(calls, sizeof(*values));
	struct call *call = calloc(1, sizeof(*call));
	struct kvc_packed_arena *arena = arena_of(opened);

	if (values == NULL || call == NULL)
		scale_die("no memory");
	for (uint32_t i = 0; i < warm; i++)
		(void)call_once(opened, arena, call, op, pages_of(scale, op, i));
	for (uint32_t i = 0; i < calls; i++)
		values[i] = call_once(opened, arena, call, op, pages_of(scale, op, warm + i));
	bench_sort(values, calls);
	result->call_s[op] = bench_quantile(values, calls, 0.5);
	result->p95_s[op] = bench_quantile(values, calls, 0.95);
	free(call);
	free(values);
}

static uint64_t status_bytes(const char *name)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[256];
	unsigned long long kib = 0;

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (strncmp(line, name, strlen(name)) == 0)
			(void)sscanf(line + strlen(name), " %llu", &kib);
	if (file != NULL)
		fclose(file);
	return (uint64_t)kib << 10;
}

void scale_calls(struct scale *scale, struct scale_result *result)
{
	struct opened opened = { 0 };

	open_all(scale, &opened);
	/* Sets are last: they evict. */
	for (uint32_t op = 0; op < SCALE_OPS; op++)
		measure_op(scale, &opened, (enum scale_op)op, result);
	result->anon_bytes = status_bytes("RssAnon:");
	result->file_bytes = status_bytes("RssFile:");
	close_all(&opened);
}
