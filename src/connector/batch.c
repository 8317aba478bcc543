/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/batch.h"

#include "connector/exists.h"
#include "connector/trace.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/route.h"
#include "core/stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_REQUESTS 512u
#define ARENA_BASES    4096u
#define ARENAS_KEPT    16u
#define OBJECTS_TRACED 64u /* of a page, for which the page before is noted */

/* Memory of one run; a chunk of requests at a time. */
struct kvc_arena {
	struct kvc_arena *next;
	size_t request_count;
	size_t base_count;
	struct kvc_request requests[ARENA_REQUESTS];
	struct kvc_result *page_of[ARENA_REQUESTS]; /* whose object it is */
	struct kvc_request *missed[ARENA_REQUESTS]; /* at the first one of a transfer */
	char *long_names[ARENA_REQUESTS];
	char names[ARENA_REQUESTS][KVC_NAME_MAX + 1];
	void *bases[ARENA_BASES];
};

/* One call. */
struct run {
	struct kvc_store *store;
	struct kvc_connector *connector;
	struct kvc_arena *arena;
	const atomic_bool *cancel;
	uint64_t start_ns;
	uint64_t flushes;
	struct kvc_packed *packed[KVC_ROOTS_MAX]; /* by root; NULL: its layout is files */
	const struct kvc_transfer *stopping;	  /* `missed` is this one's, in this chunk */
	struct kvc_request **missed;
	uint64_t missed_flushes;
};

/* ---------------------------------------------------------------- arenas */

struct kvc_arena *kvc_arena_next(struct kvc_arena *arena)
{
	return arena->next;
}

void kvc_arena_free(struct kvc_arena *arena)
{
	free(arena);
}

static struct kvc_arena *arena_take(struct kvc_connector *connector)
{
	struct kvc_arena *arena;

	pthread_mutex_lock(&connector->lock);
	arena = connector->arenas;
	if (arena) {
		connector->arenas = arena->next;
		connector->arena_count--;
	}
	pthread_mutex_unlock(&connector->lock);
	if (!arena)
		arena = malloc(sizeof(*arena));
	if (arena) {
		arena->next = NULL;
		arena->request_count = 0;
		arena->base_count = 0;
	}
	return arena;
}

static void arena_give(struct kvc_connector *connector, struct kvc_arena *arena)
{
	pthread_mutex_lock(&connector->lock);
	if (connector->arena_count < ARENAS_KEPT) {
		arena->next = connector->arenas;
		connector->arenas = arena;
		connector->arena_count++;
		arena = NULL;
	}
	pthread_mutex_unlock(&connector->lock);
	kvc_arena_free(arena);
}

/* ---------------------------------------------------------------- checks */

static const char *check_transfer(const struct kvc_store *store, const struct kvc_transfer *t)
{
	if (t->op >= KVC_OPERATION_COUNT)
		return "op is none of enum kvc_operation";
	if (t->flags & ~(uint32_t)(KVC_TRANSFER_STOP_AT_MISS | KVC_TRANSFER_OVERWRITE))
		return "flags has an unknown bit";
	if ((t->flags & KVC_TRANSFER_STOP_AT_MISS) && t->op != KVC_EXISTS)
		return "only exists may stop at a miss";
	if ((t->flags & KVC_TRANSFER_OVERWRITE) && t->op != KVC_SET)
		return "only set may overwrite";
	if (!t->pool)
		return "pool is NULL";
	if (t->pool->ns->store != store)
		return "pool is of another store";
	if (t->key_count == 0)
		return NULL;
	if (!t->keys)
		return "keys is NULL";
	if (!t->results)
		return "results is NULL";
	if ((t->op == KVC_GET || t->op == KVC_SET) && t->pool->geometry.part_count > 0) {
		if (!t->indices && !t->buffers)
			return "neither indices nor buffers";
		if (t->buffers && t->pool->geometry.has_memory)
			return "buffers for a pool that has memory";
		if (!t->buffers && !t->pool->geometry.has_memory)
			return "no buffers for a pool without memory";
	}
	for (size_t i = 0; i < t->key_count; i++)
		if ((!t->keys[i].data && t->keys[i].bytes > 0) || t->keys[i].bytes >= UINT32_MAX)
			return "a key has no data, or too much of it";
	return NULL;
}

int kvc_batch_check(struct kvc_store *store, const struct kvc_transfer *transfers, size_t count)
{
	if (!store || (count > 0 && !transfers))
		return kvc_fail(-EINVAL, "store or transfers is NULL");
	for (size_t i = 0; i < count; i++) {
		const struct kvc_transfer *t =
			(const struct kvc_transfer *)((const char *)transfers +
						      i * transfers->size);
		const char *problem;
		int rc;

		if (t->size != transfers->size)
			return kvc_fail(-EINVAL, "transfer %zu: its size differs from the first's",
					i);
		rc = kvc_struct_check(t, t->size, sizeof(*t), "struct kvc_transfer");
		if (rc)
			return rc;
		problem = check_transfer(store, t);
		if (problem)
			return kvc_fail(-EINVAL, "transfer %zu: %s", i, problem);
	}
	return 0;
}

/* ---------------------------------------------------------------- pages to objects */

/* A page that has no object yet. A set is "existed" until an object of it is written. */
static struct kvc_result initial_result(const struct kvc_transfer *t)
{
	return kvc_result_make(KVC_OK, t->op == KVC_SET ? KVC_CAUSE_EXISTED : KVC_CAUSE_NONE, 0);
}

/* The page is as good as the worst of its objects; the first that failed tells why. */
static void merge_result(struct kvc_result *page, const struct kvc_result *object)
{
	if (page->status != KVC_OK)
		return;
	if (object->status != KVC_OK || object->cause == KVC_CAUSE_NONE)
		*page = *object;
}

/* Runs what is in the arena. */
static void flush(struct run *run)
{
	struct kvc_arena *arena = run->arena;

	if (arena->request_count > 0)
		kvc_xfer_run(run->store, arena->requests, arena->request_count, run->cancel);
	for (size_t i = 0; i < arena->request_count; i++) {
		merge_result(arena->page_of[i], &arena->requests[i].result);
		free(arena->long_names[i]);
	}
	arena->request_count = 0;
	arena->base_count = 0;
	run->flushes++;
}

/* The trailer has the whole name, also where the file is called by a hash of it. */
static int set_full_name(struct kvc_arena *arena, size_t at, struct kvc_request *request,
			 const struct kvc_name_rule *rule, const struct kvc_key *key)
{
	size_t bytes;

	request->full_name = request->name;
	request->full_name_bytes = request->name_bytes;
	if (request->op != KVC_SET || strncmp(request->name, "%h-", 3) != 0)
		return 0;
	bytes = kvc_name_full(rule, key, NULL, 0);
	arena->long_names[at] = malloc(bytes + 1);
	if (!arena->long_names[at])
		return -ENOMEM;
	(void)kvc_name_full(rule, key, arena->long_names[at], bytes + 1);
	request->full_name = arena->long_names[at];
	request->full_name_bytes = (uint32_t)bytes;
	return 0;
}

/* Where the object's memory is. */
static int set_bases(struct kvc_arena *arena, struct kvc_request *request,
		     const struct kvc_transfer *t, size_t page, uint32_t object)
{
	const struct kvc_geometry *geometry = &t->pool->geometry;
	void **bases = &arena->bases[arena->base_count];
	int rc;

	request->bases = NULL;
	if (t->op != KVC_GET && t->op != KVC_SET)
		return 0;
	request->bases = bases;
	if (request->shape->series_count == 0)
		return 0;
	if (t->buffers)
		rc = kvc_geometry_buffers(geometry, &t->buffers[page * geometry->part_count],
					  object, bases);
	else
		rc = kvc_geometry_bases(geometry,
					t->indices[page * (t->index_stride ? t->index_stride : 1)],
					object, bases);
	arena->base_count += request->shape->series_count;
	return rc;
}

/* Where the requests of a transfer that stops at a miss tell each other of the first one. */
static struct kvc_request **missed_of(struct run *run, const struct kvc_transfer *t, size_t at)
{
	if (!(t->flags & KVC_TRANSFER_STOP_AT_MISS))
		return NULL;
	if (run->stopping != t || run->missed_flushes != run->flushes) {
		run->stopping = t;
		run->missed_flushes = run->flushes;
		run->missed = &run->arena->missed[at];
		*run->missed = NULL;
	}
	return run->missed;
}

/* g of a page as files and as the packed layout have it. */
struct group {
	uint64_t g;
	uint64_t packed_g;
};

/* In a slot: g and v of that layout, and a name only where it is stored. */
static int place_packed(struct run *run, const struct kvc_transfer *t, size_t page, uint32_t object,
			size_t root, struct kvc_request *request)
{
	struct kvc_pool *pool = t->pool;
	const struct kvc_name_rule *rule = &pool->rules[object];

	request->packed = true;
	request->lane = rule->packed_lane;
	request->arena = kvc_pool_arena(pool, run->packed[root], root, object, t->op == KVC_SET);
	kvc_name_packed(rule, &t->keys[page], &request->g, &request->v);
	if (t->op != KVC_SET)
		return 0;
	return kvc_name_build(rule, &t->keys[page], (char *)(uintptr_t)request->name,
			      &request->name_bytes, NULL, NULL);
}

/* Root, name and hashes of an object. previous: of the page before, updated. */
static int place(struct run *run, const struct kvc_transfer *t, size_t page, uint32_t object,
		 struct kvc_request *request, struct group *previous)
{
	const struct kvc_store *store = run->store;
	const struct kvc_name_rule *rule = &t->pool->rules[object];
	const bool moves = t->op == KVC_GET || t->op == KVC_SET;
	size_t root = 0;
	int rc = 0;

	request->root = store->roots[0];
	if (store->root_count > 1 || !run->packed[0] || !t->pool->is_packable) {
		rc = kvc_name_build(rule, &t->keys[page], (char *)(uintptr_t)request->name,
				    &request->name_bytes, &request->g, moves ? &request->v : NULL);
		if (rc) {
			*previous = (struct group){ 0 }; /* the next page has none before it */
			return rc;
		}
		request->parent_g = previous->g;
		previous->g = request->g;
		request->root = kvc_store_route(store, request->g);
		kvc_route_folder(request->g, request->hash_folder);
		root = kvc_store_root_index(store, request->root);
	}
	if (run->packed[root] && t->pool->is_packable) {
		rc = place_packed(run, t, page, object, root, request);
		request->parent_g = previous->packed_g;
		previous->packed_g = request->g;
	}
	request->mark_id = request->g ^ t->pool->mark_salts[object];
	return rc;
}

/* One object of one page. */
static struct kvc_result add_object(struct run *run, const struct kvc_transfer *t, size_t page,
				    uint32_t object, uint64_t deadline_ns, struct group *previous)
{
	const struct kvc_result ok = initial_result(t);
	const struct kvc_pool *pool = t->pool;
	const struct kvc_shape *shape = pool->geometry.objects[object].shape;
	struct kvc_arena *arena = run->arena;
	struct kvc_request *request;
	size_t at;
	int rc;

	if (arena->request_count == ARENA_REQUESTS ||
	    arena->base_count + shape->series_count > ARENA_BASES)
		flush(run);
	at = arena->request_count;
	request = &arena->requests[at];
	*request = (struct kvc_request){
		.op = t->op,
		.flags = t->flags,
		.folder = pool->ns->folder,
		.name = arena->names[at],
		.object_kind = pool->object_kind,
		.depth = t->depth + (uint32_t)page,
		.begins = page == 0 && (t->op == KVC_GET || t->op == KVC_SET),
		.shape = shape,
		.missed = missed_of(run, t, at),
		.deadline_ns = deadline_ns,
	};
	arena->names[at][0] = '\0';
	arena->long_names[at] = NULL;
	arena->page_of[at] = &t->results[page];
	rc = place(run, t, page, object, request, previous);
	if (rc)
		return kvc_result_make(KVC_ERROR, KVC_CAUSE_NAME, -rc);
	rc = set_bases(arena, request, t, page, object);
	if (rc)
		return kvc_result_make(KVC_ERROR, KVC_CAUSE_INDEX, -rc);
	if (set_full_name(arena, at, request, &pool->rules[object], &t->keys[page]))
		return kvc_result_of_errno(ENOMEM);
	arena->request_count++;
	return ok;
}

/* Of the page before the first one, per object of a page. */
static void parent_hashes(const struct kvc_transfer *t, struct group hashes[OBJECTS_TRACED])
{
	const struct kvc_pool *pool = t->pool;
	char name[KVC_NAME_MAX + 1];
	uint32_t bytes;

	memset(hashes, 0, OBJECTS_TRACED * sizeof(hashes[0]));
	if ((t->op != KVC_SET && t->op != KVC_GET) || !t->parent.data || t->parent.bytes == 0)
		return;
	for (uint32_t o = 0; o < pool->geometry.object_count && o < OBJECTS_TRACED; o++) {
		uint64_t v;

		if (kvc_name_build(&pool->rules[o], &t->parent, name, &bytes, &hashes[o].g, NULL))
			continue;
		if (pool->is_packable)
			kvc_name_packed(&pool->rules[o], &t->parent, &hashes[o].packed_g, &v);
	}
}

static void skip_from(const struct kvc_transfer *t, size_t page)
{
	for (; page < t->key_count; page++)
		t->results[page] = kvc_result_make(KVC_SKIPPED, KVC_CAUSE_PREFIX_ENDED, 0);
}

/* First page of [from, to) that is not OK, or to. */
static size_t first_miss(const struct kvc_transfer *t, size_t from, size_t to)
{
	while (from < to && t->results[from].status == KVC_OK)
		from++;
	return from;
}

bool kvc_batch_skips(const struct kvc_transfer *t)
{
	if (t->op != KVC_SET || !t->pool->geometry.shared || t->pool->ns->identity.place.is_writer)
		return false;
	for (size_t i = 0; i < t->key_count; i++)
		t->results[i] = kvc_result_make(KVC_OK, KVC_CAUSE_NOT_WRITER, 0);
	return true;
}

static void add_transfer(struct run *run, const struct kvc_transfer *t)
{
	const struct kvc_geometry *geometry = &t->pool->geometry;
	const bool stop = t->op == KVC_EXISTS && (t->flags & KVC_TRANSFER_STOP_AT_MISS);
	const uint64_t deadline_ns =
		kvc_store_deadline_ns(run->store, t->op, t->timeout_ms, run->start_ns);
	struct group previous[OBJECTS_TRACED];
	uint64_t flushes = run->flushes;

	if (kvc_batch_skips(t))
		return;
	if (kvc_exists_is_indexed(run->store, run->packed[0], t)) {
		(void)kvc_exists_by_index(run->packed[0], t, false);
		return;
	}
	parent_hashes(t, previous);
	for (size_t i = 0; i < t->key_count; i++) {
		t->results[i] = initial_result(t);
		for (uint32_t o = 0; o < geometry->object_count; o++) {
			struct group none = { 0 };
			const struct kvc_result refused =
				add_object(run, t, i, o, deadline_ns,
					   o < OBJECTS_TRACED ? &previous[o] : &none);

			merge_result(&t->results[i], &refused);
			if (refused.status != KVC_OK)
				break;
		}
		/* After each chunk all pages before this one have their results: is the prefix
		 * still whole? */
		if (stop && run->flushes != flushes) {
			flushes = run->flushes;
			if (first_miss(t, 0, i) < i) {
				skip_from(t, i + 1);
				return;
			}
		}
	}
}

/* ---------------------------------------------------------------- results */

static void count_results(struct kvc_store *store, struct kvc_transfer *t, uint64_t elapsed_us)
{
	const struct kvc_connector *connector = store->connector;
	struct kvc_counters *counters = store->counters;
	uint32_t counts[16][KVC_CAUSE_COUNT] = { { 0 } };

	t->ok_count = 0;
	for (size_t i = 0; i < t->key_count; i++) {
		const struct kvc_result *result = &t->results[i];

		counts[result->status & 15][result->cause]++;
		t->ok_count += result->status == KVC_OK;
	}
	t->prefix_count = first_miss(t, 0, t->key_count);
	for (int s = 0; s < 8; s++)
		for (int c = 0; c < KVC_CAUSE_COUNT; c++)
			if (counts[s][c])
				kvc_counters_pages(
					counters, (int)t->op, s, c, counts[s][c],
					s == KVC_OK && c == KVC_CAUSE_NONE &&
							(t->op == KVC_GET || t->op == KVC_SET) ?
						counts[s][c] * t->pool->geometry.page_bytes :
						0);
	if (t->flags & KVC_TRANSFER_STOP_AT_MISS)
		kvc_counters_prefix(counters, t->key_count, t->prefix_count);
	kvc_counters_call(counters, (int)t->op, elapsed_us);
	kvc_trace_record(connector->trace, t->op, t->pool->geometry.pool_name, t->keys,
			 t->key_count, t->ok_count);
}

void kvc_batch_finish(struct kvc_store *store, struct kvc_transfer *t, uint64_t elapsed_us)
{
	if (t->op == KVC_EXISTS && (t->flags & KVC_TRANSFER_STOP_AT_MISS)) {
		const size_t miss = first_miss(t, 0, t->key_count);

		skip_from(t, miss < t->key_count ? miss + 1 : miss);
	}
	count_results(store, t, elapsed_us);
}

/* No arena: nothing could be tried. */
static void fail_all(struct kvc_transfer *transfers, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct kvc_transfer *t = kvc_transfer_at(transfers, i);

		t->ok_count = t->prefix_count = 0;
		for (size_t k = 0; k < t->key_count; k++)
			t->results[k] = kvc_result_of_errno(ENOMEM);
	}
}

/* The indexes of packed roots; once per call it is looked whether they are still there. */
static void find_indexes(struct run *run, struct kvc_transfer *transfers, size_t count)
{
	bool writes = false;

	for (size_t i = 0; i < count; i++)
		writes |= kvc_transfer_at(transfers, i)->op == KVC_SET;
	for (size_t r = 0; r < run->store->root_count; r++)
		run->packed[r] = kvc_root_packed(run->store->roots[r], writes);
}

void kvc_batch_execute(struct kvc_store *store, struct kvc_transfer *transfers, size_t count,
		       const atomic_bool *cancel)
{
	struct run run = {
		.store = store,
		.connector = kvc_connector_of(store),
		.cancel = cancel,
		.start_ns = kvc_now_ns(),
	};
	uint64_t elapsed_us;

	find_indexes(&run, transfers, count);
	run.arena = arena_take(run.connector);
	if (!run.arena) {
		fail_all(transfers, count);
		return;
	}
	for (size_t i = 0; i < count; i++)
		add_transfer(&run, kvc_transfer_at(transfers, i));
	flush(&run);
	arena_give(run.connector, run.arena);
	elapsed_us = (kvc_now_ns() - run.start_ns) / 1000;
	for (size_t i = 0; i < count; i++)
		kvc_batch_finish(store, kvc_transfer_at(transfers, i), elapsed_us);
}

int kvc_batch_run(struct kvc_store *store, struct kvc_transfer *transfers, size_t count)
{
	const int rc = kvc_batch_check(store, transfers, count);

	if (rc || count == 0)
		return rc;
	kvc_store_enter(store);
	kvc_batch_execute(store, transfers, count, NULL);
	kvc_store_leave(store);
	return 0;
}
