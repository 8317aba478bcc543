/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/geometry.h"

#include "connector/geometry_plan.h"
#include "core/hash.h"
#include "core/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 4096u

static uint64_t pad(uint64_t bytes)
{
	return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

static uint64_t make_fingerprint(const struct kvc_plan *plan)
{
	struct kvc_hash hash;

	kvc_hash_begin(&hash);
	kvc_hash_text(&hash, plan->params.name);
	kvc_hash_u64(&hash, plan->params.part_count);
	for (uint32_t i = 0; i < plan->params.part_count; i++)
		kvc_hash_u64(&hash, plan->parts[i].bytes);
	kvc_hash_text(&hash, plan->dtype);
	kvc_hash_u64(&hash, plan->byte_order);
	return kvc_hash_end(&hash);
}

/* The shape of parts [first, first + count); joined: as one stored part. */
static void make_shape(struct kvc_shape *shape, const struct kvc_plan *plan, uint64_t fingerprint,
		       uint32_t first, uint32_t count, bool joined)
{
	struct kvc_shape_part *stored = NULL;

	memset(shape, 0, sizeof(*shape));
	shape->ns_hash = plan->ns->hash;
	shape->pool_fingerprint = fingerprint;
	for (uint32_t i = first; i < first + count; i++) {
		const struct kvc_plan_part *part = &plan->parts[i];

		if (!stored || !joined) {
			stored = &shape->parts[shape->part_count++];
			stored->first_series = shape->series_count;
			stored->stored_offset = shape->stored_bytes;
		}
		for (uint32_t j = 0; j < part->series_count; j++)
			shape->series[shape->series_count++] =
				plan->series[part->first_series + j].series;
		stored->series_count += part->series_count;
		stored->bytes += part->bytes;
		shape->payload_bytes += part->bytes;
		shape->stored_bytes = stored->stored_offset + pad(stored->bytes);
	}
	shape->stored_bytes += BLOCK_BYTES;
}

static size_t fill_sources(struct kvc_geometry_source *out, const struct kvc_plan *plan,
			   uint32_t first, uint32_t count, uint32_t split)
{
	size_t n = 0;

	for (uint32_t i = first; i < first + count; i++) {
		const struct kvc_plan_part *part = &plan->parts[i];

		for (uint32_t j = 0; j < part->series_count; j++)
			out[n++] = (struct kvc_geometry_source){
				.base = plan->series[part->first_series + j].base +
					(uintptr_t)(split * part->group_stride_bytes),
				.page_stride_bytes = part->page_stride_bytes,
				.part = i,
			};
	}
	return n;
}

/* Pools whose parts are single objects in the peer's naming; it copies pages of other layouts. */
static bool is_joined(const struct kvc_plan *plan, int naming)
{
	uint32_t layout = plan->params.host_layout;

	return naming == KVC_NAMING_NIXL &&
	       ((plan->params.flags & (KVC_POOL_COPY_MODE | KVC_POOL_MARKER)) ||
		layout == KVC_LAYOUT_PAGE_HEAD || layout == KVC_LAYOUT_LAYER_FIRST);
}

static void fill_objects(struct kvc_geometry *g, const struct kvc_plan *plan, bool joined,
			 uint32_t units)
{
	struct kvc_geometry_source *sources = g->sources;
	uint32_t parts = units > 1 ? 1 : g->part_count;
	const struct kvc_namespace_place *at = &plan->ns->place;

	for (uint32_t unit = 0; unit < units; unit++)
		make_shape(&g->shapes[unit], plan, g->fingerprint, unit, parts, joined);
	for (uint32_t i = 0; i < g->object_count; i++) {
		struct kvc_geometry_object *object = &g->objects[i];
		uint32_t split = i / units, unit = i % units;
		const char *part_name = plan->parts[unit].name;

		object->shape = &g->shapes[unit];
		object->sources = sources;
		if (object->shape->series_count > g->series_max)
			g->series_max = object->shape->series_count;
		sources += fill_sources(sources, plan, unit, parts, split);
		if (!g->shared)
			object->vrank = at->tp_rank * plan->splits + split;
		if (g->naming == KVC_NAMING_NIXL)
			kvc_name_nixl_suffix(g->pool_name, g->part_count, unit,
					     part_name[0] ? part_name : NULL, joined,
					     object->part_suffix);
	}
}

static void fill_numbers(struct kvc_geometry *g, const struct kvc_plan *plan)
{
	(void)snprintf(g->pool_name, sizeof(g->pool_name), "%s", plan->params.name);
	g->shared = plan->ns->fields.is_mla && !plan->per_rank;
	g->has_memory = plan->has_memory;
	g->token_indices = plan->params.flags & KVC_POOL_TOKEN_INDICES;
	g->part_count = plan->params.part_count;
	g->vrank_count = g->shared ? 1 : plan->ns->place.tp_size * plan->splits;
	g->page_tokens = plan->page_tokens;
	g->page_count = plan->page_count;
	g->fingerprint = make_fingerprint(plan);
	(void)snprintf(g->fingerprint_text, sizeof(g->fingerprint_text), "%08x",
		       (unsigned)(g->fingerprint >> 32));
	for (uint32_t i = 0; i < g->part_count; i++) {
		g->part_bytes[i] = plan->parts[i].bytes * plan->splits;
		g->page_bytes += g->part_bytes[i];
	}
}

int kvc_geometry_init(struct kvc_geometry *out, const struct kvc_pool_params *params,
		      const struct kvc_namespace_identity *ns, int naming)
{
	struct kvc_geometry g = { .naming = naming };
	struct kvc_plan *plan;
	uint32_t units;
	bool joined;
	int rc;

	plan = malloc(sizeof(*plan));
	if (!plan)
		return kvc_fail(-ENOMEM, "pool: out of memory");
	rc = kvc_plan_make(plan, params, ns);
	if (rc)
		goto free_plan;
	fill_numbers(&g, plan);
	joined = is_joined(plan, naming);
	units = naming == KVC_NAMING_NIXL && !joined ? g.part_count : 1;
	g.object_count = plan->splits * units;
	g.shape_count = units;
	g.objects = calloc(g.object_count, sizeof(*g.objects));
	g.shapes = calloc(g.shape_count, sizeof(*g.shapes));
	g.sources = calloc((size_t)plan->splits * plan->series_count + 1, sizeof(*g.sources));
	if (!g.objects || !g.shapes || !g.sources) {
		rc = kvc_fail(-ENOMEM, "pool %s: out of memory for %u objects a page", g.pool_name,
			      g.object_count);
		goto free_geometry;
	}
	fill_objects(&g, plan, joined, units);
	*out = g;
	free(plan);
	return 0;

free_geometry:
	kvc_geometry_fini(&g);
free_plan:
	free(plan);
	return rc;
}

void kvc_geometry_fini(struct kvc_geometry *geometry)
{
	if (!geometry)
		return;
	free(geometry->objects);
	free(geometry->shapes);
	free(geometry->sources);
	memset(geometry, 0, sizeof(*geometry));
}

int kvc_geometry_rule(const struct kvc_geometry *geometry, uint32_t object,
		      const struct kvc_namespace_identity *ns, struct kvc_name_rule *out)
{
	const struct kvc_name_params params = {
		.ns = ns,
		.pool_name = geometry->pool_name,
		.part_suffix = geometry->objects[object].part_suffix,
		.pool_fingerprint = geometry->fingerprint,
		.naming = geometry->naming,
		.vrank = geometry->objects[object].vrank,
		.vrank_count = geometry->vrank_count,
		.shared = geometry->shared,
	};

	return kvc_name_rule_init(out, &params);
}

int kvc_geometry_bases(const struct kvc_geometry *geometry, int64_t index, uint32_t object,
		       void **bases)
{
	const struct kvc_geometry_object *o = &geometry->objects[object];
	uint64_t page = (uint64_t)index;

	if (geometry->part_count == 0)
		return 0;
	if (!geometry->has_memory)
		return -EINVAL;
	if (index < 0)
		return -ERANGE;
	if (geometry->token_indices) {
		if (page % geometry->page_tokens)
			return -EINVAL;
		page /= geometry->page_tokens;
	}
	if (page >= geometry->page_count)
		return -ERANGE;
	for (uint32_t i = 0; i < o->shape->series_count; i++)
		bases[i] = (void *)(o->sources[i].base +
				    (uintptr_t)(page * o->sources[i].page_stride_bytes));
	return 0;
}

int kvc_geometry_buffers(const struct kvc_geometry *geometry, const struct kvc_buffer *buffers,
			 uint32_t object, void **bases)
{
	const struct kvc_geometry_object *o = &geometry->objects[object];

	if (geometry->has_memory)
		return -EINVAL;
	for (uint32_t i = 0; i < geometry->part_count; i++)
		if (!buffers[i].addr || buffers[i].bytes != geometry->part_bytes[i])
			return -EINVAL;
	for (uint32_t i = 0; i < o->shape->series_count; i++)
		bases[i] = (char *)buffers[o->sources[i].part].addr + o->sources[i].base;
	return 0;
}
