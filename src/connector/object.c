/* SPDX-License-Identifier: Apache-2.0 */
/* Single objects by key, and where things lie: what tools use beside the pages of pools. */
#include "connector/handle.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/format.h"
#include "core/log.h"
#include "core/packed_walk.h"
#include "core/route.h"
#include "core/stats.h"
#include "core/trailer.h"
#include "core/usage.h"
#include "core/verify.h"
#include "core/walk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS 5 /* while another writer replaces the object */

/* A single object on its way: request, shape and name in one piece. */
struct single {
	struct kvc_request request;
	struct kvc_shape shape;
	struct kvc_name_rule rule;
	char name[KVC_NAME_MAX + 1];
	char path[640];
	char *long_name;
	uint64_t start_ns;
	void *bases[1];
};

static struct single *single_new(struct kvc_namespace *ns, const char *pool_name,
				 struct kvc_key key, int op, uint32_t timeout_ms, int *out_rc)
{
	struct kvc_store *store = ns->store;
	const struct kvc_settings *settings = store->settings;
	struct single *single = calloc(1, sizeof(*single));
	struct kvc_request *request;
	const unsigned mark = kvc_fail_mark();

	if (!single) {
		*out_rc = kvc_fail(-ENOMEM, "a single object of pool %s: no memory", pool_name);
		return NULL;
	}
	request = &single->request;
	*out_rc = kvc_name_rule_init_raw(&single->rule, (int)settings->naming, &ns->identity,
					 pool_name);
	if (!*out_rc)
		*out_rc = kvc_name_build(&single->rule, &key, single->name, &request->name_bytes,
					 &request->g, &request->v);
	if (*out_rc)
		goto fail;
	request->op = (uint32_t)op;
	request->folder = ns->folder;
	request->name = request->full_name = single->name;
	request->full_name_bytes = request->name_bytes;
	request->object_kind = KVC_OBJECT_SINGLE;
	request->shape = &single->shape;
	request->bases = single->bases;
	single->start_ns = kvc_now_ns();
	request->deadline_ns =
		kvc_store_deadline_ns(store, request->op, timeout_ms, single->start_ns);
	request->root = kvc_store_route(store, request->g);
	kvc_route_folder(request->g, request->hash_folder);
	single->shape.ns_hash = ns->identity.hash;
	single->shape.pool_fingerprint = kvc_name_raw_fingerprint(pool_name);
	request->mark_id = request->g ^ single->shape.pool_fingerprint;
	*out_rc = kvc_xfer_path(request->root, ns->folder, request->hash_folder, single->name,
				request->name_bytes, single->path, sizeof(single->path));
	if (*out_rc < 0)
		goto fail;
	if (strncmp(single->name, "%h-", 3) == 0) {
		const size_t bytes = kvc_name_full(&single->rule, &key, NULL, 0);

		single->long_name = malloc(bytes + 1);
		*out_rc = -ENOMEM;
		if (!single->long_name)
			goto fail;
		(void)kvc_name_full(&single->rule, &key, single->long_name, bytes + 1);
		request->full_name = single->long_name;
		request->full_name_bytes = (uint32_t)bytes;
	}
	*out_rc = 0;
	return single;

fail:
	free(single);
	(void)kvc_fail_since(mark, *out_rc, "a single object of pool %.80s", pool_name);
	return NULL;
}

static void single_free(struct single *single)
{
	free(single->long_name);
	free(single);
}

/* The one part that a single object has. */
static void single_shape(struct single *single, uint64_t payload_bytes, void *memory)
{
	struct kvc_shape *shape = &single->shape;

	shape->part_count = shape->series_count = 1;
	shape->payload_bytes = payload_bytes;
	shape->stored_bytes = kvc_block_align(payload_bytes) + KVC_TRAILER_BYTES;
	shape->parts[0] = (struct kvc_shape_part){ .bytes = payload_bytes, .series_count = 1 };
	shape->series[0] = (struct kvc_series){ .piece_bytes = payload_bytes, .piece_count = 1 };
	single->bases[0] = memory;
}

static int errno_of(const struct kvc_request *request)
{
	const struct kvc_result *result = &request->result;
	const char *cause = kvc_cause_name(result->cause);
	const int error = result->error ? result->error : EIO;

	if (result->cause == KVC_CAUSE_CAPACITY)
		return kvc_fail(-error, "%s/%s: %s", request->root->location, request->name,
				kvc_root_limit_text(request->root));
	switch (result->status) {
	case KVC_OK:
		return 0;
	case KVC_MISS:
		return kvc_fail(-ENOENT, "%s: miss (%s)", request->name, cause);
	case KVC_CORRUPT:
		return kvc_fail(-EBADMSG, "%s: corrupt (%s)", request->name, cause);
	default:
		return kvc_fail(-error, "%s/%s: %s: %s", request->root->location, request->name,
				cause, strerror(error));
	}
}

/* A single object counts like a page. bytes: moved. */
static void count_single(struct kvc_namespace *ns, const struct single *single,
			 struct kvc_result result, uint64_t bytes)
{
	struct kvc_counters *counters = ns->store->counters;
	const int op = (int)single->request.op;

	kvc_counters_page(counters, op, result.status, result.cause, bytes);
	kvc_counters_call(counters, op, (kvc_now_ns() - single->start_ns) / 1000);
}

static void count_result(struct kvc_namespace *ns, const struct single *single)
{
	const struct kvc_result *result = &single->request.result;

	count_single(ns, single, *result,
		     result->status == KVC_OK && result->cause == KVC_CAUSE_NONE ?
			     single->shape.payload_bytes :
			     0);
}

/* Runs the request, uncounted; its errno. */
static int single_try(struct kvc_namespace *ns, struct single *single)
{
	kvc_store_enter(ns->store);
	kvc_xfer_run(ns->store, &single->request, 1, NULL);
	kvc_store_leave(ns->store);
	return errno_of(&single->request);
}

/* Runs the request; its errno. */
static int single_run(struct kvc_namespace *ns, struct single *single)
{
	const int rc = single_try(ns, single);

	count_result(ns, single);
	return rc;
}

/* Reads the trailer of what was found. 0, a negative errno as kvc_trailer_decode() has it, or
 * -ESTALE: it was replaced since. */
static int read_trailer(const struct single *single, const struct kvc_completion *found,
			struct kvc_trailer *out)
{
	const struct kvc_request *request = &single->request;
	const uint64_t object_bytes = found->object_bytes;
	struct kvc_completion now = { .result = 0 };
	uint8_t *block;
	int64_t rc;

	if (object_bytes < KVC_TRAILER_BYTES || object_bytes % KVC_BLOCK_BYTES)
		return -ENOMSG;
	block = malloc(KVC_TRAILER_BYTES);
	if (!block)
		return -ENOMEM;
	rc = kvc_root_read_until(request->root, single->path, object_bytes - KVC_TRAILER_BYTES,
				 block, KVC_TRAILER_BYTES, request->deadline_ns, &now);
	if (rc >= 0 && memcmp(now.version, found->version, sizeof(now.version)) != 0)
		rc = -ESTALE;
	else if (rc == KVC_TRAILER_BYTES)
		rc = kvc_trailer_decode(block, out);
	else if (rc >= 0)
		rc = -ENOMSG;
	out->name = NULL; /* it was in the block */
	free(block);
	return (int)rc;
}

/* What the trailer of an object of that size, or its absence, means. */
static struct kvc_result judge(const struct single *single, int rc, uint64_t object_bytes,
			       const struct kvc_trailer *trailer)
{
	const bool odd = object_bytes < KVC_TRAILER_BYTES || object_bytes % KVC_BLOCK_BYTES;

	switch (rc) {
	case 0:
		if (object_bytes == trailer->stored_bytes)
			return kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0);
		return kvc_result_make(
			KVC_MISS,
			object_bytes < trailer->stored_bytes ? KVC_CAUSE_SHORT : KVC_CAUSE_LONG, 0);
	case -ENOMSG:
		if (single->request.root->store->settings->verify == KVC_VERIFY_IF_PRESENT)
			return kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0);
		return kvc_result_make(KVC_MISS, odd ? KVC_CAUSE_SHORT : KVC_CAUSE_FOREIGN, 0);
	case -EBADMSG:
		return kvc_result_make(KVC_CORRUPT, KVC_CAUSE_TRAILER, 0);
	case -EPROTONOSUPPORT:
		return kvc_result_make(KVC_MISS, KVC_CAUSE_VERSION, 0);
	default:
		return kvc_result_of_errno(-rc);
	}
}

/* Payload size, as its trailer (or, for a bare file, its size) tells; does not prove the payload.
 * The request gets its result. */
static int find_single(struct single *single, struct kvc_completion *found, uint64_t *out_bytes)
{
	struct kvc_request *request = &single->request;
	struct kvc_trailer trailer = { .payload_bytes = 0 };
	int rc = -ESTALE;

	for (int attempt = 0; rc == -ESTALE && attempt < ATTEMPTS; attempt++) {
		rc = kvc_root_stat_until(request->root, single->path, request->deadline_ns, found);
		if (rc) {
			request->result = kvc_result_of_errno(-rc);
			return errno_of(request);
		}
		rc = read_trailer(single, found, &trailer);
	}
	request->result = judge(single, rc, found->object_bytes, &trailer);
	if (request->result.status == KVC_OK)
		*out_bytes = rc ? found->object_bytes : trailer.payload_bytes;
	return errno_of(request);
}

/* Whether it may be stored over what is there: something of another size that takes as many blocks
 * looks the same to a set. */
static bool has_other_size(struct kvc_namespace *ns, struct single *single, size_t bytes)
{
	struct kvc_completion found;
	uint64_t have = bytes;

	kvc_store_enter(ns->store);
	(void)find_single(single, &found, &have);
	kvc_store_leave(ns->store);
	return have != bytes;
}

int kvc_object_put(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		   const void *data, size_t bytes, uint32_t flags, uint32_t timeout_ms)
{
	struct single *single;
	uint64_t limit;
	int rc;

	if (!ns || !pool_name || (!data && bytes > 0) || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_put: an argument is NULL");
	if (flags & ~(uint32_t)KVC_OBJECT_OVERWRITE)
		return kvc_fail(-EINVAL, "kvc_object_put: flags has an unknown bit");
	single = single_new(ns, pool_name, key, KVC_SET, timeout_ms, &rc);
	if (!single)
		return rc;
	limit = single->request.root->attributes.max_object_bytes;
	limit = limit && limit < INT64_MAX ? limit : INT64_MAX;
	if (limit < KVC_TRAILER_BYTES || kvc_block_align(bytes) < bytes ||
	    kvc_block_align(bytes) > limit - KVC_TRAILER_BYTES) {
		rc = kvc_fail(-EFBIG, "%s: %zu bytes are more than %s takes", single->name, bytes,
			      single->request.root->location);
		goto out;
	}
	if ((flags & KVC_OBJECT_OVERWRITE) || has_other_size(ns, single, bytes))
		single->request.flags = KVC_TRANSFER_OVERWRITE;
	single_shape(single, bytes, (void *)(uintptr_t)data);
	rc = single_run(ns, single);
	if (rc == 0 && single->request.result.cause == KVC_CAUSE_EXISTED)
		rc = 1;
out:
	single_free(single);
	return rc;
}

/* A get that proved it wrong removes it (docs/errors.md), if it still is what was found. */
static void remove_wrong(struct kvc_namespace *ns, const struct single *single,
			 const struct kvc_completion *found)
{
	const struct kvc_request *request = &single->request;
	struct kvc_root *root = request->root;
	const struct kvc_usage_before before = kvc_usage_before(root->usage);

	if (!kvc_verify_removable(request, request->result) ||
	    !(found->version[0] || found->version[1]) ||
	    kvc_root_remove(root, single->path, found->version))
		return;
	kvc_usage_removed(root->usage, &before, kvc_root_usage_key(root, ns->identity.hash),
			  kvc_folder_number(request->hash_folder), found->object_bytes);
	kvc_counters_add(ns->store->counters, KVC_COUNTER_REMOVED_CORRUPT, 1);
}

int kvc_object_get(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		   void *buffer, size_t capacity, size_t *out_bytes, uint32_t flags,
		   uint32_t timeout_ms)
{
	struct kvc_completion found = { .result = 0 };
	struct single *single;
	uint64_t bytes = 0;
	int rc;

	if (!ns || !pool_name || (!buffer && capacity > 0) || !out_bytes ||
	    (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_get: an argument is NULL");
	if (flags)
		return kvc_fail(-EINVAL, "kvc_object_get: flags has an unknown bit");
	single = single_new(ns, pool_name, key, KVC_GET, timeout_ms, &rc);
	if (!single)
		return rc;
	/* Another writer may replace it between the look and the read: then both again. */
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		kvc_store_enter(ns->store);
		rc = find_single(single, &found, &bytes);
		if (rc)
			remove_wrong(ns, single, &found);
		kvc_store_leave(ns->store);
		if (rc)
			break;
		if (bytes > capacity) {
			*out_bytes = bytes;
			rc = kvc_fail(-ENOBUFS, "%s: %llu bytes, the buffer has %zu", single->name,
				      (unsigned long long)bytes, capacity);
			goto out;
		}
		single_shape(single, bytes, buffer);
		single->request.bounced = false;
		rc = single_try(ns, single);
		if (!kvc_verify_is_guess(&single->request, single->request.result))
			break;
	}
	count_result(ns, single);
	if (rc == 0)
		*out_bytes = bytes;
out:
	single_free(single);
	return rc;
}

int kvc_object_exists(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		      size_t *out_bytes, uint32_t timeout_ms)
{
	struct kvc_completion found;
	struct single *single;
	uint64_t bytes = 0;
	int rc;

	if (!ns || !pool_name || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_exists: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_EXISTS, timeout_ms, &rc);
	if (!single)
		return rc;
	kvc_store_enter(ns->store);
	rc = find_single(single, &found, &bytes);
	kvc_store_leave(ns->store);
	count_single(ns, single, single->request.result, 0);
	single_free(single);
	if (rc == 0 && out_bytes)
		*out_bytes = bytes;
	return rc == 0 ? 1 : rc == -ENOENT ? 0 : rc;
}

int kvc_object_remove(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		      uint32_t timeout_ms)
{
	struct single *single;
	int rc;

	if (!ns || !pool_name || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_remove: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_REMOVE, timeout_ms, &rc);
	if (!single)
		return rc;
	single_shape(single, 0, NULL);
	rc = single_run(ns, single);
	single_free(single);
	return rc == 0 ? 1 : rc == -ENOENT ? 0 : rc;
}

/* ---------------------------------------------------------------- list, where */

struct list {
	kvc_object_fn fn;
	void *context;
	bool nixl;
	struct kvc_name_parts parts;
};

/* Adds key and pool, as far as the name tells them. */
static int list_object(void *context, const struct kvc_object_info *info)
{
	struct list *list = context;
	struct kvc_object_info more = *info;

	if (!list->nixl && kvc_name_parse(info->name, strlen(info->name), &list->parts) == 0 &&
	    !list->parts.hashed) {
		more.key.data = list->parts.key;
		more.key.bytes = list->parts.key_bytes;
		more.pool_name = list->parts.pool_name;
	}
	return list->fn(list->context, &more);
}

int kvc_object_list(struct kvc_store *store, const char *id, kvc_object_fn fn, void *context)
{
	const unsigned mark = kvc_fail_mark();
	struct list list = { .fn = fn, .context = context };
	int rc;

	if (!store || !fn)
		return kvc_fail(-EINVAL, "kvc_object_list: an argument is NULL");
	list.nixl = store->settings->naming == KVC_NAMING_NIXL;
	rc = kvc_walk_list(store, id, list.nixl ? kvc_name_nixl_belongs : NULL, list_object, &list);
	return kvc_fail_since(mark, rc, "listing %s", id ? id : "objects");
}

int kvc_store_verify(struct kvc_store *store, const char *id, int remove, kvc_verify_fn fn,
		     void *context)
{
	const unsigned mark = kvc_fail_mark();
	int rc;

	if (!store || !fn)
		return kvc_fail(-EINVAL, "kvc_store_verify: an argument is NULL");
	rc = kvc_walk_verify(store, id,
			     store->settings->naming == KVC_NAMING_NIXL ? kvc_name_nixl_belongs :
									  NULL,
			     remove != 0, fn, context);
	return kvc_fail_since(mark, rc, "verifying %s", id ? id : "objects");
}

static int tell_where(const struct kvc_request *request, const char *path, const char *pool_name,
		      struct kvc_key key, kvc_object_fn fn, void *context)
{
	const struct kvc_object_info info = {
		.size = sizeof(info),
		.ns_id = request->folder,
		.name = request->name,
		.root_path = request->root->location,
		.path = path,
		.stored_bytes = request->shape->stored_bytes,
		.key = key,
		.pool_name = pool_name,
	};

	return fn(context, &info);
}

int kvc_object_where(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		     kvc_object_fn fn, void *context)
{
	struct single *single;
	unsigned mark;
	int rc;

	if (!ns || !pool_name || !fn || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_where: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_EXISTS, 0, &rc);
	if (!single)
		return rc;
	mark = kvc_fail_mark();
	rc = kvc_fail_since(mark,
			    tell_where(&single->request, single->path, pool_name, key, fn, context),
			    "telling where %s is", single->name);
	single_free(single);
	return rc;
}

/* The slot that has the object, or, when none has, the folder of the segments where one would. */
static int tell_slot(struct kvc_pool *pool, struct kvc_key key, uint32_t object,
		     struct kvc_request *request, kvc_object_fn fn, void *context)
{
	struct kvc_packed *packed = kvc_root_packed(request->root, false);
	const uint64_t slot_bytes = kvc_shape_image_bytes(request->shape);
	struct kvc_object_info info = {
		.size = sizeof(info),
		.ns_id = request->folder,
		.name = request->name,
		.root_path = request->root->location,
		.stored_bytes = slot_bytes,
		.key = key,
		.pool_name = pool->geometry.pool_name,
	};
	const struct kvc_packed_key slot_key = kvc_pool_packed_key(pool, object, &key);
	struct kvc_packed_place place;
	struct kvc_packed_arena *arena;
	char path[KVC_PACKED_PATH_BYTES];
	uint32_t turn;

	(void)snprintf(path, sizeof(path), "%.80s/slots-%llu", request->folder,
		       (unsigned long long)slot_bytes);
	turn = kvc_packed_enter(packed);
	arena = kvc_pool_arena(pool, packed, kvc_store_root_index(pool->ns->store, request->root),
			       object, false);
	if (arena && kvc_packed_find(arena, &slot_key, &place) == 0) {
		kvc_packed_place_path(arena, &place, path);
		info.allocated_bytes = slot_bytes;
	}
	kvc_packed_leave(packed, turn);
	info.path = path;
	return fn(context, &info);
}

int kvc_pool_where(struct kvc_pool *pool, struct kvc_key key, kvc_object_fn fn, void *context)
{
	const unsigned mark = kvc_fail_mark();
	const struct kvc_geometry *geometry;
	int rc = 0;

	if (!pool || !fn || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_pool_where: an argument is NULL");
	geometry = &pool->geometry;
	for (uint32_t o = 0; o < geometry->object_count && !rc; o++) {
		char name[KVC_NAME_MAX + 1], path[640];
		struct kvc_request request = {
			.folder = pool->ns->folder,
			.name = name,
			.shape = geometry->objects[o].shape,
		};

		rc = kvc_name_build(&pool->rules[o], &key, name, &request.name_bytes, &request.g,
				    &request.v);
		if (rc)
			break;
		request.root = kvc_store_route(pool->ns->store, request.g);
		kvc_route_folder(request.g, request.hash_folder);
		if (pool->is_packable && kvc_root_packed(request.root, false)) {
			rc = tell_slot(pool, key, o, &request, fn, context);
			continue;
		}
		rc = kvc_xfer_path(request.root, request.folder, request.hash_folder, name,
				   request.name_bytes, path, sizeof(path));
		if (rc >= 0)
			rc = tell_where(&request, path, geometry->pool_name, key, fn, context);
	}
	return kvc_fail_since(mark, rc, "telling where a page of pool %s is", geometry->pool_name);
}
