/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of everything that a caller says of a pool, and the series of its parts. */
#include "connector/geometry_plan.h"

#include "core/log.h"

#include <errno.h>
#include <string.h>

/* No page comes near it, and sums of a few of them do not overflow. */
#define BYTES_MAX (UINT64_C(1) << 56)

struct part_context {
	struct kvc_plan *plan;
	struct kvc_plan_part *out;
	struct kvc_part part;
	uint32_t number;
};

#define PART_FAIL(c, format, ...)                                                             \
	kvc_fail(-EINVAL, "pool %s: parts[%u]: " format, (c)->plan->params.name, (c)->number, \
		 ##__VA_ARGS__)

/* *out = a * b, at most BYTES_MAX; `what` names the product. */
static int multiply(const struct part_context *c, const char *what, uint64_t a, uint64_t b,
		    uint64_t *out)
{
	if (__builtin_mul_overflow(a, b, out) || *out > BYTES_MAX)
		return PART_FAIL(c, "%s overflows", what);
	return 0;
}

static int add_series(struct part_context *c, uintptr_t base, uint64_t piece_bytes,
		      uint64_t stride_bytes, uint64_t count)
{
	struct kvc_plan *plan = c->plan;
	struct kvc_plan_series *s;

	if (count > 1 && stride_bytes < piece_bytes)
		return PART_FAIL(c, "pieces of %llu bytes overlap, they lie %llu bytes apart",
				 (unsigned long long)piece_bytes, (unsigned long long)stride_bytes);
	if (count > 1 && stride_bytes == piece_bytes) {
		piece_bytes *= count;
		count = 1;
	}
	if (count > UINT32_MAX)
		return PART_FAIL(c, "has more than %u pieces", UINT32_MAX);
	if (plan->series_count == KVC_SHAPE_SERIES_MAX)
		return kvc_fail(-EINVAL,
				"pool %s: its parts lie in more than %u places without a constant "
				"stride; use a layout whose pages are contiguous",
				plan->params.name, KVC_SHAPE_SERIES_MAX);
	s = &plan->series[plan->series_count++];
	s->base = base;
	s->series.piece_bytes = piece_bytes;
	s->series.piece_stride_bytes = count > 1 ? stride_bytes : piece_bytes;
	s->series.piece_count = (uint32_t)count;
	c->out->series_count++;
	return 0;
}

/* The last byte of the last page must have an address. */
static int check_addresses(const struct part_context *c)
{
	const struct kvc_plan *plan = c->plan;
	uint64_t pages, groups, end;

	if (!plan->has_memory)
		return 0;
	if (plan->page_count > 1 && c->out->page_stride_bytes == 0)
		return PART_FAIL(c, "page_stride_bytes is 0, the pool has %llu pages",
				 (unsigned long long)plan->page_count);
	if (__builtin_mul_overflow(plan->page_count - 1, c->out->page_stride_bytes, &pages) ||
	    __builtin_mul_overflow(plan->splits - 1, c->out->group_stride_bytes, &groups) ||
	    __builtin_add_overflow(pages, groups, &pages))
		return PART_FAIL(c, "page_count = %llu reaches beyond the address space",
				 (unsigned long long)plan->page_count);
	for (uint32_t i = 0; i < c->out->series_count; i++) {
		const struct kvc_plan_series *s = &plan->series[c->out->first_series + i];

		if (__builtin_mul_overflow(s->series.piece_count - 1, s->series.piece_stride_bytes,
					   &end) ||
		    __builtin_add_overflow(end, s->series.piece_bytes, &end) ||
		    __builtin_add_overflow(end, pages, &end) ||
		    __builtin_add_overflow(end, (uint64_t)s->base, &end) || end > UINTPTR_MAX)
			return PART_FAIL(c, "page_count = %llu reaches beyond the address space",
					 (unsigned long long)plan->page_count);
	}
	return 0;
}

static int check_explicit(const struct part_context *c)
{
	const struct kvc_part *p = &c->part;

	if (p->piece_bytes == 0)
		return PART_FAIL(c, "piece_bytes is 0");
	if (p->piece_count == 0)
		return PART_FAIL(c, "piece_count is 0");
	if (p->base && p->piece_bases)
		return PART_FAIL(c, "base and piece_bases are both given");
	if (c->plan->splits > 1 && c->plan->has_memory && p->group_stride_bytes < p->piece_bytes)
		return PART_FAIL(
			c,
			"group_stride_bytes = %llu is less than piece_bytes = %llu: tp_lcm_size "
			"needs %u head groups",
			(unsigned long long)p->group_stride_bytes,
			(unsigned long long)p->piece_bytes, c->plan->splits);
	return 0;
}

static int plan_explicit(struct part_context *c)
{
	const struct kvc_part *p = &c->part;
	int rc = check_explicit(c);

	if (!rc)
		rc = multiply(c, "piece_bytes * piece_count", p->piece_bytes, p->piece_count,
			      &c->out->bytes);
	if (rc)
		return rc;
	c->out->page_stride_bytes = p->page_stride_bytes;
	c->out->group_stride_bytes = p->group_stride_bytes;
	if (!c->plan->has_memory) {
		c->out->group_stride_bytes = c->out->bytes;
		return add_series(c, 0, c->out->bytes, c->out->bytes, 1);
	}
	if (!p->piece_bases)
		return add_series(c, (uintptr_t)p->base, p->piece_bytes, p->piece_stride_bytes,
				  p->piece_count);
	for (uint32_t i = 0; i < p->piece_count && !rc; i++) {
		if (!p->piece_bases[i])
			return PART_FAIL(c, "piece_bases[%u] is NULL", i);
		rc = add_series(c, (uintptr_t)p->piece_bases[i], p->piece_bytes, p->piece_bytes, 1);
	}
	return rc;
}

static int check_tensor(const struct part_context *c)
{
	const struct kvc_part *p = &c->part;
	uint32_t page_tokens = c->plan->page_tokens;

	if (p->layer_count == 0 || p->head_count == 0 || p->head_bytes == 0)
		return PART_FAIL(c, "%s is 0",
				 p->layer_count == 0 ? "layer_count" :
				 p->head_count == 0  ? "head_count" :
						       "head_bytes");
	if (p->piece_bases)
		return PART_FAIL(c, "piece_bases are for the explicit layout");
	if (p->head_count % c->plan->splits)
		return PART_FAIL(
			c, "head_count = %u cannot be split into %u head groups (tp_lcm_size)",
			p->head_count, c->plan->splits);
	if (c->plan->has_memory && p->token_count == 0)
		return PART_FAIL(c, "token_count is 0");
	if (p->token_count % page_tokens)
		return PART_FAIL(c, "token_count = %llu is no multiple of page_tokens = %u",
				 (unsigned long long)p->token_count, page_tokens);
	if (p->token_count && c->plan->page_count > p->token_count / page_tokens)
		return PART_FAIL(c, "page_count = %llu is more than token_count = %llu has",
				 (unsigned long long)c->plan->page_count,
				 (unsigned long long)p->token_count);
	return 0;
}

/* A layer lies token_count tokens behind the one before it. */
static int plan_layer_first(struct part_context *c, uint64_t token_bytes, uint64_t group_bytes)
{
	const struct kvc_part *p = &c->part;
	uint64_t layer_bytes, page_bytes, extent;
	int rc;

	rc = multiply(c, "token_count * head_count * head_bytes", p->token_count, token_bytes,
		      &layer_bytes);
	if (!rc)
		rc = multiply(c, "the tensor's size", layer_bytes, p->layer_count, &extent);
	if (!rc && __builtin_add_overflow((uintptr_t)p->base, extent, &extent))
		rc = PART_FAIL(c, "the tensor reaches beyond the address space");
	if (!rc)
		rc = multiply(c, "page_tokens * head_count * head_bytes", c->plan->page_tokens,
			      token_bytes, &page_bytes);
	if (rc)
		return rc;
	c->out->page_stride_bytes = page_bytes;
	c->out->group_stride_bytes = group_bytes;
	if (group_bytes == token_bytes)
		return add_series(c, (uintptr_t)p->base, page_bytes, layer_bytes, p->layer_count);
	for (uint32_t layer = 0; layer < p->layer_count && !rc; layer++)
		rc = add_series(c, (uintptr_t)p->base + layer * layer_bytes, group_bytes,
				token_bytes, c->plan->page_tokens);
	return rc;
}

static int plan_tensor(struct part_context *c)
{
	const struct kvc_part *p = &c->part;
	uint64_t token_bytes, group_bytes, rows, page_bytes;
	int rc = check_tensor(c);

	if (!rc)
		rc = multiply(c, "head_count * head_bytes", p->head_count, p->head_bytes,
			      &token_bytes);
	if (!rc)
		rc = multiply(c, "page_tokens * layer_count", c->plan->page_tokens, p->layer_count,
			      &rows);
	if (!rc)
		rc = multiply(c, "page_tokens * layer_count * head_count * head_bytes", rows,
			      token_bytes, &page_bytes);
	if (rc)
		return rc;
	group_bytes = token_bytes / c->plan->splits;
	c->out->bytes = page_bytes / c->plan->splits;
	if (c->plan->params.host_layout == KVC_LAYOUT_LAYER_FIRST && c->plan->has_memory)
		return plan_layer_first(c, token_bytes, group_bytes);
	c->out->page_stride_bytes = page_bytes;
	if (c->plan->params.host_layout == KVC_LAYOUT_PAGE_HEAD) {
		c->out->group_stride_bytes = c->out->bytes;
		return add_series(c, (uintptr_t)p->base, c->out->bytes, c->out->bytes, 1);
	}
	c->out->group_stride_bytes = group_bytes;
	return add_series(c, (uintptr_t)p->base, group_bytes, token_bytes, rows);
}

static int copy_part_name(struct part_context *c)
{
	const char *name = c->part.name;
	size_t bytes;

	if (!name)
		return 0;
	bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
	if (bytes == 0 || bytes > KVC_PART_NAME_MAX || name[bytes])
		return PART_FAIL(c, "name \"%.64s\" is not [a-z0-9_]{1,%u}", name,
				 KVC_PART_NAME_MAX);
	for (uint32_t i = 0; i < c->number; i++)
		if (strcmp(c->plan->parts[i].name, name) == 0)
			return PART_FAIL(c, "name \"%s\" is also that of parts[%u]", name, i);
	memcpy(c->out->name, name, bytes + 1);
	return 0;
}

static int plan_part(struct kvc_plan *plan, uint32_t number, const struct kvc_part *part)
{
	struct part_context c = { .plan = plan, .number = number, .out = &plan->parts[number] };
	uint64_t rank_bytes;
	int rc;

	c.part = *part;
	if (plan->has_memory != (part->base || part->piece_bases))
		return PART_FAIL(&c, "all parts of a pool have a base, or none");
	c.out->first_series = plan->series_count;
	rc = copy_part_name(&c);
	if (!rc)
		rc = plan->params.host_layout == KVC_LAYOUT_EXPLICIT ? plan_explicit(&c) :
								       plan_tensor(&c);
	if (!rc)
		rc = multiply(&c, "piece_bytes * piece_count * head groups", c.out->bytes,
			      plan->splits, &rank_bytes);
	if (!rc)
		rc = check_addresses(&c);
	return rc;
}

/* Part i as the caller's version of the struct has it. */
static int read_part(const struct kvc_plan *plan, uint32_t i, struct kvc_part *out)
{
	const size_t least = offsetof(struct kvc_part, piece_bases);
	const char *first = (const char *)plan->params.parts;
	size_t step = plan->params.parts[0].size;
	size_t size;

	if (step < least)
		return kvc_fail(-EINVAL,
				"pool %s: parts[0].size = %zu, expected sizeof(struct kvc_part)",
				plan->params.name, step);
	memcpy(&size, first + i * step, sizeof(size));
	if (size != step)
		return kvc_fail(-EINVAL, "pool %s: parts[%u].size = %zu, parts[0] has %zu",
				plan->params.name, i, size, step);
	memset(out, 0, sizeof(*out));
	memcpy(out, first + i * step, size < sizeof(*out) ? size : sizeof(*out));
	return 0;
}

static int check_order(struct kvc_plan *plan)
{
	static const char *const layouts[] = { "explicit", "page_first", "page_first_direct",
					       "page_head", "layer_first" };
	static const char *const orders[] = { "auto", "token_major", "layer_major", "head_major" };
	static const uint8_t order_of[] = { KVC_ORDER_TOKEN_MAJOR, KVC_ORDER_TOKEN_MAJOR,
					    KVC_ORDER_LAYER_MAJOR, KVC_ORDER_HEAD_MAJOR,
					    KVC_ORDER_LAYER_MAJOR };
	const struct kvc_pool_params *p = &plan->params;

	if (p->host_layout > KVC_LAYOUT_LAYER_FIRST)
		return kvc_fail(-EINVAL,
				"pool %s: host_layout = %u is none of enum kvc_host_layout",
				p->name, p->host_layout);
	if (p->byte_order > KVC_ORDER_HEAD_MAJOR)
		return kvc_fail(-EINVAL, "pool %s: byte_order = %u is none of enum kvc_byte_order",
				p->name, p->byte_order);
	plan->byte_order = p->byte_order ? p->byte_order : order_of[p->host_layout];
	if (p->host_layout != KVC_LAYOUT_EXPLICIT && plan->byte_order != order_of[p->host_layout])
		return kvc_fail(-EINVAL, "pool %s: byte_order = %s, but host_layout = %s stores %s",
				p->name, orders[plan->byte_order], layouts[p->host_layout],
				orders[order_of[p->host_layout]]);
	return 0;
}

static int check_parts(const struct kvc_plan *plan)
{
	const struct kvc_pool_params *p = &plan->params;
	const uint32_t known = KVC_POOL_TOKEN_INDICES | KVC_POOL_COPY_MODE | KVC_POOL_MARKER;

	if (p->flags & ~known)
		return kvc_fail(-EINVAL, "pool %s: flags = 0x%x has bits that are unknown", p->name,
				p->flags);
	if (p->per_rank > KVC_YES)
		return kvc_fail(-EINVAL,
				"pool %s: per_rank = %u, expected 0 (auto), 1 (no) or 2 (yes)",
				p->name, p->per_rank);
	if ((p->flags & KVC_POOL_MARKER) && p->part_count)
		return kvc_fail(-EINVAL, "pool %s: part_count = %u, a marker pool has no parts",
				p->name, p->part_count);
	if (!(p->flags & KVC_POOL_MARKER) &&
	    (p->part_count == 0 || p->part_count > KVC_SHAPE_PARTS_MAX))
		return kvc_fail(-EINVAL, "pool %s: part_count = %u, expected 1 to %u", p->name,
				p->part_count, KVC_SHAPE_PARTS_MAX);
	if (p->part_count && !p->parts)
		return kvc_fail(-EINVAL, "pool %s: parts is NULL", p->name);
	return 0;
}

static int read_params(struct kvc_plan *plan, const struct kvc_pool_params *params)
{
	const size_t least = offsetof(struct kvc_pool_params, page_count);
	struct kvc_pool_params *p = &plan->params;

	if (!params)
		return kvc_fail(-EINVAL, "pool: params is NULL");
	if (params->size < least)
		return kvc_fail(-EINVAL,
				"pool: params.size = %zu, expected sizeof(struct kvc_pool_params)",
				params->size);
	memset(p, 0, sizeof(*p));
	memcpy(p, params, params->size < sizeof(*p) ? params->size : sizeof(*p));
	return kvc_name_check_pool(p->name);
}

/* Pages by the params, or by the first part's tensor. */
static int count_pages(struct kvc_plan *plan, const struct kvc_part *first)
{
	plan->page_count = plan->params.page_count;
	if (!plan->page_count && plan->has_memory)
		plan->page_count = first->token_count / plan->page_tokens;
	if (!plan->page_count && plan->has_memory)
		return kvc_fail(-EINVAL,
				"pool %s: page_count is 0 and token_count tells of no page",
				plan->params.name);
	return 0;
}

int kvc_plan_make(struct kvc_plan *plan, const struct kvc_pool_params *params,
		  const struct kvc_namespace_identity *ns)
{
	struct kvc_part part;
	int rc;

	memset(plan, 0, sizeof(*plan));
	plan->ns = ns;
	rc = read_params(plan, params);
	if (!rc)
		rc = check_parts(plan);
	if (!rc)
		rc = check_order(plan);
	if (rc)
		return rc;
	plan->dtype = plan->params.dtype ? plan->params.dtype : ns->fields.dtype;
	plan->page_tokens = plan->params.page_tokens ? plan->params.page_tokens :
						       ns->fields.page_tokens;
	plan->per_rank =
		plan->params.per_rank == KVC_YES ||
		(plan->params.per_rank == KVC_AUTO && strcmp(plan->params.name, "mamba") == 0);
	plan->splits = plan->per_rank ? 1 : ns->place.splits;
	for (uint32_t i = 0; i < plan->params.part_count && !rc; i++) {
		rc = read_part(plan, i, &part);
		if (!rc && i == 0) {
			plan->has_memory = part.base || part.piece_bases;
			rc = count_pages(plan, &part);
		}
		if (!rc)
			rc = plan_part(plan, i, &part);
	}
	return rc;
}
