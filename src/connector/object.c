/* SPDX-License-Identifier: Apache-2.0 */
/* Single objects by key, and where things lie: what tools use beside the pages of pools. */
#include "connector/handle.h"

#include "core/clock.h"
#include "core/format.h"
#include "core/log.h"
#include "core/route.h"
#include "core/stats.h"
#include "core/trailer.h"
#include "core/verify.h"
#include "core/walk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

	*out_rc = -ENOMEM;
	if (!single)
		return NULL;
	if (timeout_ms == 0)
		timeout_ms = op == KVC_GET    ? settings->get_timeout_ms :
			     op == KVC_EXISTS ? settings->exists_timeout_ms :
						settings->set_timeout_ms;
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
	request->deadline_ns = single->start_ns + (uint64_t)timeout_ms * 1000000;
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

	switch (result->status) {
	case KVC_OK:
		return 0;
	case KVC_MISS:
		return kvc_fail(-ENOENT, "%s: miss (%s)", request->name, cause);
	case KVC_CORRUPT:
		return kvc_fail(-EBADMSG, "%s: corrupt (%s)", request->name, cause);
	default:
		return kvc_fail(result->error ? -result->error : -EIO, "%s/%s: %s: %s",
				request->root->location, request->name, cause,
				strerror(result->error ? result->error : EIO));
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

/* Of a find that moved nothing. */
static void count_find(struct kvc_namespace *ns, const struct single *single, int rc)
{
	count_single(ns, single,
		     rc == 0	    ? kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0) :
		     rc == -EBADMSG ? kvc_result_make(KVC_CORRUPT, KVC_CAUSE_TRAILER, 0) :
				      kvc_result_of_errno(-rc),
		     0);
}

/* Runs the request; its errno. */
static int single_run(struct kvc_namespace *ns, struct single *single)
{
	const struct kvc_result *result;

	kvc_store_enter(ns->store);
	kvc_xfer_run(ns->store, &single->request, 1, NULL);
	kvc_store_leave(ns->store);
	result = &single->request.result;
	count_single(ns, single, *result,
		     result->status == KVC_OK && result->cause == KVC_CAUSE_NONE ?
			     single->shape.payload_bytes :
			     0);
	return errno_of(&single->request);
}

int kvc_object_put(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		   const void *data, size_t bytes, int overwrite, uint32_t timeout_ms)
{
	struct single *single;
	int rc;

	if (!ns || !pool_name || (!data && bytes > 0) || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_put: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_SET, timeout_ms, &rc);
	if (!single)
		return rc;
	if (single->request.root->attributes.max_object_bytes &&
	    bytes + KVC_TRAILER_BYTES + KVC_BLOCK_BYTES >
		    single->request.root->attributes.max_object_bytes) {
		rc = kvc_fail(-EFBIG, "%s: %zu bytes are more than %s takes", single->name, bytes,
			      single->request.root->location);
		goto out;
	}
	single_shape(single, bytes, (void *)(uintptr_t)data);
	single->request.flags = overwrite ? KVC_TRANSFER_OVERWRITE : 0;
	rc = single_run(ns, single);
	if (rc == 0 && single->request.result.cause == KVC_CAUSE_EXISTED)
		rc = 1;
out:
	single_free(single);
	return rc;
}

/* Payload size, as its trailer (or, for a bare file, its size) tells. Does not prove the payload. */
static int find_single(struct single *single, uint64_t *out_bytes)
{
	const struct kvc_request *request = &single->request;
	struct kvc_root *root = request->root;
	struct kvc_completion found;
	struct kvc_trailer trailer;
	uint8_t *block;
	int64_t rc = kvc_root_stat(root, single->path, &found);

	if (rc)
		return rc == -ENOENT ? kvc_fail(-ENOENT, "%s: miss (absent)", single->name) :
				       kvc_fail((int)rc, "%s/%s: %s", root->location, single->path,
						strerror((int)-rc));
	block = malloc(KVC_TRAILER_BYTES);
	if (!block)
		return -ENOMEM;
	rc = -ENOMSG;
	if (found.object_bytes >= KVC_TRAILER_BYTES && found.object_bytes % KVC_BLOCK_BYTES == 0) {
		rc = kvc_root_read(root, single->path, found.object_bytes - KVC_TRAILER_BYTES,
				   block, KVC_TRAILER_BYTES, NULL);
		if (rc == KVC_TRAILER_BYTES)
			rc = kvc_trailer_decode(block, &trailer);
		else if (rc >= 0)
			rc = -ENOMSG;
	}
	if (rc == 0) {
		*out_bytes = trailer.payload_bytes;
	} else if (rc == -ENOMSG && root->store->settings->verify == KVC_VERIFY_IF_PRESENT) {
		*out_bytes = found.object_bytes;
		rc = 0;
	} else if (rc == -ENOMSG) {
		rc = kvc_fail(-ENOENT, "%s: miss (foreign: no trailer)", single->name);
	} else if (rc == -EBADMSG) {
		rc = kvc_fail(-EBADMSG, "%s: corrupt (trailer)", single->name);
	} else if (rc == -EPROTONOSUPPORT) {
		rc = kvc_fail(-ENOENT, "%s: miss (version: format %u.%u)", single->name,
			      trailer.major, trailer.minor);
	} else {
		rc = kvc_fail((int)rc, "%s/%s: %s", root->location, single->path,
			      strerror((int)-rc));
	}
	free(block);
	return (int)rc;
}

int kvc_object_get(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		   void *buffer, size_t capacity, size_t *out_bytes, uint32_t timeout_ms)
{
	struct single *single;
	uint64_t bytes;
	int rc;

	if (!ns || !pool_name || (!buffer && capacity > 0) || !out_bytes ||
	    (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_get: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_GET, timeout_ms, &rc);
	if (!single)
		return rc;
	kvc_store_enter(ns->store);
	rc = find_single(single, &bytes);
	kvc_store_leave(ns->store);
	if (rc) {
		count_find(ns, single, rc);
		goto out;
	}
	if (bytes > capacity) {
		*out_bytes = bytes;
		rc = kvc_fail(-ENOBUFS, "%s: %llu bytes, the buffer has %zu", single->name,
			      (unsigned long long)bytes, capacity);
		goto out;
	}
	single_shape(single, bytes, buffer);
	rc = single_run(ns, single);
	if (rc == 0)
		*out_bytes = bytes;
out:
	single_free(single);
	return rc;
}

int kvc_object_exists(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
		      size_t *out_bytes)
{
	struct single *single;
	uint64_t bytes = 0;
	int rc;

	if (!ns || !pool_name || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_exists: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_EXISTS, 0, &rc);
	if (!single)
		return rc;
	kvc_store_enter(ns->store);
	rc = find_single(single, &bytes);
	kvc_store_leave(ns->store);
	count_find(ns, single, rc);
	single_free(single);
	if (rc == 0 && out_bytes)
		*out_bytes = bytes;
	return rc == 0 ? 1 : rc == -ENOENT ? 0 : rc;
}

int kvc_object_remove(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key)
{
	struct single *single;
	int rc;

	if (!ns || !pool_name || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_remove: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_REMOVE, 0, &rc);
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
	struct list list = { .fn = fn, .context = context };

	if (!store || !fn)
		return kvc_fail(-EINVAL, "kvc_object_list: an argument is NULL");
	list.nixl = store->settings->naming == KVC_NAMING_NIXL;
	return kvc_walk_list(store, id, list_object, &list);
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
	int rc;

	if (!ns || !pool_name || !fn || (!key.data && key.bytes > 0))
		return kvc_fail(-EINVAL, "kvc_object_where: an argument is NULL");
	single = single_new(ns, pool_name, key, KVC_EXISTS, 0, &rc);
	if (!single)
		return rc;
	rc = tell_where(&single->request, single->path, pool_name, key, fn, context);
	single_free(single);
	return rc;
}

int kvc_pool_where(struct kvc_pool *pool, struct kvc_key key, kvc_object_fn fn, void *context)
{
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
		rc = kvc_xfer_path(request.root, request.folder, request.hash_folder, name,
				   request.name_bytes, path, sizeof(path));
		if (rc >= 0)
			rc = tell_where(&request, path, geometry->pool_name, key, fn, context);
	}
	return rc;
}
