/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing namespaces and pools. */
#include "connector/handle.h"

#include "connector/batch.h"
#include "connector/clean.h"
#include "connector/trace.h"
#include "core/describe.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/packed_format.h"
#include "core/ranges.h"
#include "core/tenant.h"
#include "core/text.h"
#include "core/trailer.h"
#include "core/usage.h"
#include "core/walk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- per store */

static void connector_close(void *arg)
{
	struct kvc_connector *connector = arg;

	kvc_trace_close(connector->trace);
	while (connector->arenas) {
		struct kvc_arena *arena = connector->arenas;

		connector->arenas = kvc_arena_next(arena);
		kvc_arena_free(arena);
	}
	(void)pthread_mutex_destroy(&connector->lock);
	free(connector);
}

static struct kvc_connector *connector_new(const struct kvc_settings *settings)
{
	struct kvc_connector *connector = calloc(1, sizeof(*connector));

	if (!connector)
		return NULL;
	(void)pthread_mutex_init(&connector->lock, NULL);
	if (*settings->trace_file && kvc_trace_open(settings->trace_file, 0, &connector->trace))
		kvc_log(KVC_LOG_ERROR, "nothing is recorded: %s", kvc_last_error());
	return connector;
}

struct kvc_connector *kvc_connector_of(struct kvc_store *store)
{
	struct kvc_connector *connector;

	pthread_mutex_lock(&store->worker_lock);
	if (!store->connector) {
		store->connector = connector_new(store->settings);
		store->connector_close = store->connector ? connector_close : NULL;
	}
	connector = store->connector;
	pthread_mutex_unlock(&store->worker_lock);
	return connector;
}

/* ---------------------------------------------------------------- namespaces */

/* For people, and for tools that meet the folder without its configuration. A root that cannot take
 * it (full, denied) is no reason to fail: sets will tell. */
static void write_namespace_text(struct kvc_namespace *ns)
{
	struct kvc_store *store = ns->store;
	char path[128], *text;

	if (kvc_namespace_identity_render(&ns->identity, &text))
		return;
	(void)snprintf(path, sizeof(path), "%s/" KVC_NAMESPACE_FILE, ns->folder);
	for (size_t r = 0; r < store->root_count; r++) {
		struct kvc_root *root = store->roots[r];
		struct kvc_completion found;
		int rc;

		/* One that does not answer is not asked a second time. */
		if (root->read_only || root->writes_refused ||
		    kvc_root_stat(root, path, &found) != -ENOENT)
			continue;
		rc = kvc_root_write_text(root, path, text, true);
		if (rc && rc != -EEXIST)
			kvc_log(KVC_LOG_DEBUG, "%s/%s: %s", root->location, path, strerror(-rc));
	}
	free(text);
}

static void warn_identity(struct kvc_store *store, const struct kvc_namespace *ns)
{
	if (ns->identity.fields.identity ||
	    atomic_exchange_explicit(&store->identity_warned, true, memory_order_relaxed))
		return;
	kvc_log(KVC_LOG_WARNING,
		"identity is unset: other weights that are served under the same model name would "
		"find these pages; set `identity` to something that changes with the weights");
}

/* "tp0", and what else there is more than one of: "tp0_pp1". */
static void label_metrics(struct kvc_store *store, const struct kvc_namespace *ns)
{
	const struct kvc_namespace_fields *fields = &ns->identity.fields;
	const struct kvc_namespace_place *place = &ns->identity.place;
	const struct {
		const char *name;
		uint32_t count;
		uint32_t rank;
	} others[] = {
		{ "pp", fields->pp_size, place->pp_rank },
		{ "cp", fields->cp_size, place->cp_rank },
		{ "dcp", fields->dcp_size, place->dcp_rank },
	};
	char rank[64];
	struct kvc_text text;

	kvc_text_init(&text, rank, sizeof(rank));
	kvc_text_add(&text, "tp%u", place->tp_rank);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (others[i].count > 1)
			kvc_text_add(&text, "_%s%u", others[i].name, others[i].rank);
	kvc_metrics_label(store, ns->identity.id, rank);
}

int kvc_namespace_open(struct kvc_store *store, const struct kvc_namespace_params *params,
		       struct kvc_namespace **out)
{
	const struct kvc_settings *settings;
	struct kvc_namespace *ns;
	const unsigned mark = kvc_fail_mark();
	bool nixl;
	int rc;

	if (!store || !params || !out)
		return kvc_fail(-EINVAL, "kvc_namespace_open: an argument is NULL");
	rc = kvc_struct_check(params, params->size, sizeof(*params), "struct kvc_namespace_params");
	if (rc)
		return rc;
	ns = calloc(1, sizeof(*ns));
	if (!ns || !kvc_connector_of(store)) {
		free(ns);
		return kvc_fail(-ENOMEM, "no memory for a namespace");
	}
	settings = store->settings;
	nixl = settings->naming == KVC_NAMING_NIXL;
	ns->store = store;
	rc = kvc_namespace_identity_init(&ns->identity, params, settings->identity,
					 settings->tenant);
	if (rc)
		goto free_ns;
	ns->folder = nixl ? "" : ns->identity.id;
	rc = nixl ? kvc_name_nixl_check(&ns->identity) : 0;
	if (rc)
		goto fini_identity;
	atomic_fetch_add(&store->children, 1);
	kvc_cleaner_set_names(store, &kvc_clean_names);
	warn_identity(store, ns);
	label_metrics(store, ns);
	if (!nixl)
		write_namespace_text(ns);
	for (size_t r = 0; r < store->root_count; r++)
		kvc_tenant_note(store->roots[r], ns->identity.hash, ns->identity.fields.tenant);
	*out = ns;
	return 0;

fini_identity:
	kvc_namespace_identity_fini(&ns->identity);
free_ns:
	free(ns);
	return kvc_fail_since(mark, rc, "namespace of model %.80s",
			      params->model_id ? params->model_id : "(none)");
}

int kvc_namespace_close(struct kvc_namespace *ns)
{
	if (!ns)
		return 0;
	if (atomic_load(&ns->pools) > 0)
		return kvc_fail(-EBUSY, "%s: %u pools are still open", ns->identity.id,
				atomic_load(&ns->pools));
	atomic_fetch_sub(&ns->store->children, 1);
	kvc_namespace_identity_fini(&ns->identity);
	free(ns);
	return 0;
}

const char *kvc_namespace_id(const struct kvc_namespace *ns)
{
	return ns ? ns->identity.id : "";
}

int kvc_namespace_usage(struct kvc_namespace *ns, uint64_t *out_bytes, uint64_t *out_objects)
{
	uint64_t bytes = 0, objects = 0;

	if (!ns)
		return kvc_fail(-EINVAL, "kvc_namespace_usage: ns is NULL");
	for (size_t r = 0; r < ns->store->root_count; r++) {
		const struct kvc_root *root = ns->store->roots[r];
		const uint64_t key = kvc_root_usage_key(root, ns->identity.hash);
		struct kvc_packed *packed = kvc_root_packed(ns->store->roots[r], false);
		uint64_t root_bytes, root_objects;

		if (packed) {
			kvc_packed_usage(packed, ns->identity.hash, false, &root_bytes,
					 &root_objects);
			bytes += root_bytes;
			objects += root_objects;
		}
		/* None: nothing of it was counted on that root. */
		if (kvc_usage_namespace(root->usage, key, &root_bytes, &root_objects))
			continue;
		bytes += root_bytes;
		objects += root_objects;
	}
	if (out_bytes)
		*out_bytes = bytes;
	if (out_objects)
		*out_objects = objects;
	return 0;
}

static int refuse_read_only(const struct kvc_store *store)
{
	int rc = 0;

	for (size_t r = 0; r < store->root_count && !rc; r++)
		rc = kvc_root_check_writable(store->roots[r]);
	return rc;
}

/* What else lies in a namespace's folders is not ours to remove. */
static bool is_object_name(const char *name, size_t bytes, const char *id)
{
	struct kvc_name_parts parts;

	(void)id;
	return kvc_name_parse(name, bytes, &parts) == 0;
}

int kvc_namespace_clear(struct kvc_store *store, const char *id, int dry_run,
			struct kvc_clear_report *out)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_clear_report report;
	bool nixl;
	uint64_t hash;
	int rc = 0;

	if (!store || !id || !*id || !out)
		return kvc_fail(-EINVAL, "kvc_namespace_clear: no namespace, or out is NULL");
	rc = kvc_struct_output(out, out->size, sizeof(*out), "struct kvc_clear_report");
	if (rc)
		return rc;
	nixl = store->settings->naming == KVC_NAMING_NIXL;
	if (!nixl && kvc_namespace_id_hash(id, &hash))
		return kvc_fail(-EINVAL, "\"%s\" is no namespace id (<slug>-<16 hex digits>)", id);
	if (!dry_run)
		rc = refuse_read_only(store);
	if (!rc)
		rc = kvc_walk_clear(store, id, dry_run,
				    nixl ? kvc_name_nixl_belongs : is_object_name, &report);
	if (rc)
		return kvc_fail_since(mark, rc, "clearing %.80s", id);
	report.size = out->size;
	*out = report;
	return report.failed ? -EIO : 0;
}

/* ---------------------------------------------------------------- pools */

/* Whether the page at this index moves without a copy on every root. */
static bool page_zero_copy(struct kvc_pool *pool, uint32_t object, uint64_t page)
{
	const struct kvc_geometry *geometry = &pool->geometry;
	const struct kvc_store *store = pool->ns->store;
	const uint64_t index = geometry->token_indices ? page * geometry->page_tokens : page;
	bool zero_copy = true;
	void *bases[KVC_SHAPE_SERIES_MAX];

	if (!geometry->has_memory || page >= geometry->page_count ||
	    kvc_geometry_bases(geometry, (int64_t)index, object, bases))
		return true;
	for (size_t r = 0; r < store->root_count && zero_copy; r++) {
		const struct kvc_attributes *attributes = &store->roots[r]->attributes;

		zero_copy = kvc_ranges_zero_copy(geometry->objects[object].shape, bases,
						 attributes->alignment, attributes->max_ranges,
						 &pool->copy_reason);
	}
	return zero_copy;
}

/* Whether its pages move without a copy, and the largest object. */
static int look_at_objects(struct kvc_pool *pool)
{
	const struct kvc_geometry *geometry = &pool->geometry;
	const struct kvc_store *store = pool->ns->store;

	pool->zero_copy = true;
	pool->copy_reason = "";
	for (uint32_t o = 0; o < geometry->object_count; o++) {
		const struct kvc_shape *shape = geometry->objects[o].shape;

		if (shape->stored_bytes > pool->object_bytes_max)
			pool->object_bytes_max = shape->stored_bytes;
		/* The second page tells whether all others are aligned, too. */
		if (pool->zero_copy)
			pool->zero_copy = page_zero_copy(pool, o, 0) && page_zero_copy(pool, o, 1);
	}
	for (size_t r = 0; r < store->root_count; r++) {
		const uint64_t limit = store->roots[r]->attributes.max_object_bytes;

		if (limit && pool->object_bytes_max > limit)
			return kvc_fail(-E2BIG,
					"pool %s: an object has %llu bytes, %s takes at most %llu",
					geometry->pool_name,
					(unsigned long long)pool->object_bytes_max,
					store->roots[r]->location, (unsigned long long)limit);
	}
	return 0;
}

static int make_rules(struct kvc_pool *pool)
{
	const uint32_t count = pool->geometry.object_count;
	int rc = 0;

	pool->rules = calloc(count ? count : 1, sizeof(*pool->rules));
	pool->mark_salts = calloc(count ? count : 1, sizeof(*pool->mark_salts));
	if (!pool->rules || !pool->mark_salts)
		return -ENOMEM;
	for (uint32_t o = 0; o < count && !rc; o++) {
		const struct kvc_name_rule *rule = &pool->rules[o];

		rc = kvc_geometry_rule(&pool->geometry, o, &pool->ns->identity, &pool->rules[o]);
		/* Pool, fingerprint and ranks, or the part: what g leaves out. */
		pool->mark_salts[o] = kvc_blake2b_64(rule->suffix, rule->suffix_bytes);
	}
	return rc;
}

bool kvc_shape_fits_slot(const struct kvc_shape *shape)
{
	uint32_t runs = 0; /* of parts of one size */

	for (uint32_t p = 0; p < shape->part_count; p++)
		runs += p == 0 || shape->parts[p].bytes != shape->parts[p - 1].bytes;
	return shape->payload_bytes > 0 && shape->stored_bytes <= UINT32_MAX &&
	       runs <= KVC_PACKED_RUNS;
}

static bool is_packable(const struct kvc_pool *pool)
{
	const struct kvc_geometry *geometry = &pool->geometry;

	if (geometry->naming != KVC_NAMING_KVCELLAR || pool->object_kind != KVC_OBJECT_PAGE)
		return false;
	for (uint32_t o = 0; o < geometry->object_count; o++)
		if (!kvc_shape_fits_slot(geometry->objects[o].shape))
			return false;
	return true;
}

static int prepare_packed(struct kvc_pool *pool)
{
	const size_t count = pool->ns->store->root_count * pool->geometry.object_count;

	pool->is_packable = is_packable(pool);
	pool->arenas = calloc(count ? count : 1, sizeof(*pool->arenas));
	return pool->arenas ? 0 : -ENOMEM;
}

struct kvc_packed_arena *kvc_pool_arena(struct kvc_pool *pool, struct kvc_packed *packed,
					size_t root, uint32_t object, bool create)
{
	const struct kvc_geometry *geometry = &pool->geometry;
	_Atomic(struct kvc_packed_arena *) *at =
		&pool->arenas[root * geometry->object_count + object];
	struct kvc_packed_arena *arena = atomic_load_explicit(at, memory_order_acquire);

	if (arena && kvc_packed_of(arena) == packed)
		return arena;
	arena = kvc_packed_arena_get(packed, pool->ns->identity.hash, pool->ns->identity.id,
				     kvc_shape_image_bytes(geometry->objects[object].shape), create,
				     NULL);
	if (arena)
		atomic_store_explicit(at, arena, memory_order_release);
	return arena;
}

bool kvc_pool_arena_seen(struct kvc_pool *pool, struct kvc_packed *packed, size_t root,
			 uint32_t object, struct kvc_packed_arena **out)
{
	const struct kvc_geometry *geometry = &pool->geometry;

	*out = atomic_load_explicit(&pool->arenas[root * geometry->object_count + object],
				    memory_order_acquire);
	if (*out && kvc_packed_of(*out) == packed)
		return true;
	return kvc_packed_arena_seen(packed, pool->ns->identity.hash, pool->ns->identity.id,
				     kvc_shape_image_bytes(geometry->objects[object].shape), out);
}

int kvc_pool_open(struct kvc_namespace *ns, const struct kvc_pool_params *params,
		  struct kvc_pool **out)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_pool *pool;
	int rc;

	if (!ns || !params || !out)
		return kvc_fail(-EINVAL, "kvc_pool_open: an argument is NULL");
	rc = kvc_struct_check(params, params->size, sizeof(*params), "struct kvc_pool_params");
	if (rc)
		return rc;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return kvc_fail(-ENOMEM, "no memory for a pool");
	pool->ns = ns;
	pool->object_kind = params->flags & KVC_POOL_MARKER ? KVC_OBJECT_MARKER : KVC_OBJECT_PAGE;
	rc = kvc_geometry_init(&pool->geometry, params, &ns->identity,
			       (int)ns->store->settings->naming);
	if (rc)
		goto free_pool;
	rc = make_rules(pool);
	if (!rc)
		rc = look_at_objects(pool);
	if (!rc)
		rc = prepare_packed(pool);
	if (rc)
		goto fini_geometry;
	if (!pool->zero_copy)
		kvc_log(KVC_LOG_WARNING, "pool %s: pages are copied on their way: %s",
			pool->geometry.pool_name, pool->copy_reason);
	atomic_fetch_add(&ns->pools, 1);
	*out = pool;
	return 0;

fini_geometry:
	free((void *)pool->arenas);
	free(pool->mark_salts);
	free(pool->rules);
	kvc_geometry_fini(&pool->geometry);
free_pool:
	free(pool);
	return kvc_fail_since(mark, rc, "pool %.80s", params->name ? params->name : "(none)");
}

int kvc_pool_close(struct kvc_pool *pool)
{
	if (!pool)
		return 0;
	if (atomic_load(&pool->batches) > 0)
		return kvc_fail(-EBUSY, "pool %s: a started batch uses it",
				pool->geometry.pool_name);
	atomic_fetch_sub(&pool->ns->pools, 1);
	free((void *)pool->arenas);
	free(pool->mark_salts);
	free(pool->rules);
	kvc_geometry_fini(&pool->geometry);
	free(pool);
	return 0;
}

int kvc_pool_query(const struct kvc_pool *pool, struct kvc_pool_info *out)
{
	const struct kvc_geometry *geometry;

	int rc;

	if (!pool || !out)
		return kvc_fail(-EINVAL, "kvc_pool_query: an argument is NULL");
	rc = kvc_struct_output(out, out->size, sizeof(*out), "struct kvc_pool_info");
	if (rc)
		return rc;
	geometry = &pool->geometry;
	out->page_bytes = geometry->page_bytes;
	out->object_bytes = geometry->object_count ? geometry->objects[0].shape->stored_bytes : 0;
	out->objects_per_page = geometry->object_count;
	out->zero_copy = pool->zero_copy;
	memcpy(out->fingerprint, geometry->fingerprint_text, sizeof(out->fingerprint));
	(void)snprintf(out->reason, sizeof(out->reason), "%s", pool->copy_reason);
	return 0;
}
