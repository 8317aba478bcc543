/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle: a tensor is filled so that each byte tells its (part, token, layer, head, byte of the
 * head); what the pieces of an object gather is compared with the documented order of a stored
 * part, computed by its formula.
 */
#include "connector/geometry.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	TOKENS = 12,
	PAGE = 4,
	LAYERS = 3,
	HEADS = 4,
	HEAD_BYTES = 6,
	PARTS = 2
};
#define PAGES	   (TOKENS / PAGE)
#define PART_BYTES (TOKENS * LAYERS * HEADS * HEAD_BYTES)

struct rank {
	uint32_t tp_size, tp_rank, lcm, is_mla;
	uint32_t heads; /* of this rank */
	uint32_t layout;
};

static uint8_t value(uint32_t part, uint32_t token, uint32_t layer, uint32_t head, uint32_t byte)
{
	uint64_t x =
		((((uint64_t)part * TOKENS + token) * LAYERS + layer) * HEADS + head) * HEAD_BYTES +
		byte;

	return (uint8_t)(x * UINT64_C(0x9e3779b97f4a7c15) >> 40);
}

/* Where the layout puts a byte: the tensor shapes of enum kvc_host_layout. */
static size_t position(const struct rank *r, uint32_t token, uint32_t layer, uint32_t head,
		       uint32_t byte)
{
	uint32_t page = token / PAGE, t = token % PAGE;
	size_t at;

	switch (r->layout) {
	case KVC_LAYOUT_PAGE_FIRST:
		at = ((size_t)token * LAYERS + layer) * r->heads + head;
		break;
	case KVC_LAYOUT_PAGE_FIRST_DIRECT:
		at = (((size_t)page * LAYERS + layer) * PAGE + t) * r->heads + head;
		break;
	case KVC_LAYOUT_PAGE_HEAD:
		at = (((size_t)page * r->heads + head) * PAGE + t) * LAYERS + layer;
		break;
	default:
		at = ((size_t)layer * TOKENS + token) * r->heads + head;
		break;
	}
	return at * HEAD_BYTES + byte;
}

/* Head h of this rank is head first + h of the model. */
static uint32_t first_head(const struct rank *r)
{
	return r->heads == HEADS ? 0 : r->tp_rank * r->heads;
}

static void fill(const struct rank *r, uint8_t *part_memory, uint32_t part)
{
	for (uint32_t token = 0; token < TOKENS; token++)
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (uint32_t head = 0; head < r->heads; head++)
				for (uint32_t b = 0; b < HEAD_BYTES; b++)
					part_memory[position(r, token, layer, head, b)] =
						value(part, token, layer, first_head(r) + head, b);
}

/* One stored part of model heads [head, head + group) in the documented order. */
static size_t expect_part(uint8_t *out, uint32_t layout, uint32_t part, uint32_t page,
			  uint32_t head, uint32_t group)
{
	bool layer_major = layout == KVC_LAYOUT_PAGE_FIRST_DIRECT ||
			   layout == KVC_LAYOUT_LAYER_FIRST;
	const uint32_t a_count = layer_major			? LAYERS :
				 layout == KVC_LAYOUT_PAGE_HEAD ? group :
								  PAGE;
	const uint32_t b_count = layer_major || layout == KVC_LAYOUT_PAGE_HEAD ? PAGE : LAYERS;
	const uint32_t c_count = layout == KVC_LAYOUT_PAGE_HEAD ? LAYERS : group;
	size_t n = 0;

	for (uint32_t a = 0; a < a_count; a++) {
		for (uint32_t b = 0; b < b_count; b++) {
			for (uint32_t c = 0; c < c_count; c++) {
				uint32_t layer = layer_major			? a :
						 layout == KVC_LAYOUT_PAGE_HEAD ? c :
										  b;
				uint32_t t = layout == KVC_LAYOUT_PAGE_FIRST ? a : b;
				uint32_t h = layout == KVC_LAYOUT_PAGE_HEAD ? a : c;

				for (uint32_t i = 0; i < HEAD_BYTES; i++)
					out[n++] = value(part, page * PAGE + t, layer, head + h, i);
			}
		}
	}
	return n;
}

static struct kvc_namespace_identity make_ns(const struct rank *r)
{
	struct kvc_namespace_params p = {
		.size = sizeof(p),
		.model_id = "m",
		.dtype = "bfloat16",
		.page_tokens = PAGE,
		.is_mla = r->is_mla,
		.tp_size = r->tp_size,
		.tp_rank = r->tp_rank,
		.tp_lcm_size = r->lcm,
	};
	struct kvc_namespace_identity ns;

	assert_int_equal(kvc_namespace_identity_init(&ns, &p, NULL, NULL), 0);
	return ns;
}

static void tensor_parts(const struct rank *r, uint8_t *memory, struct kvc_part parts[PARTS])
{
	for (uint32_t i = 0; i < PARTS; i++)
		parts[i] = (struct kvc_part){
			.size = sizeof(parts[i]),
			.base = memory ? memory + (size_t)i * PART_BYTES : NULL,
			.token_count = TOKENS,
			.layer_count = LAYERS,
			.head_count = r->heads,
			.head_bytes = HEAD_BYTES,
		};
}

static struct kvc_pool_params pool_of(const struct kvc_part *parts, uint32_t layout)
{
	return (struct kvc_pool_params){ .size = sizeof(struct kvc_pool_params),
					 .name = "kv",
					 .parts = parts,
					 .part_count = PARTS,
					 .host_layout = layout };
}

/* The bytes of one stored part, gathered from its pieces. */
static size_t gather(const struct kvc_shape *shape, uint32_t part, void *const *bases, uint8_t *out)
{
	const struct kvc_shape_part *p = &shape->parts[part];
	size_t n = 0;

	for (uint32_t i = p->first_series; i < p->first_series + p->series_count; i++) {
		const struct kvc_series *s = &shape->series[i];

		for (uint32_t j = 0; j < s->piece_count; j++) {
			memcpy(out + n, (uint8_t *)bases[i] + j * s->piece_stride_bytes,
			       s->piece_bytes);
			n += s->piece_bytes;
		}
	}
	assert_int_equal(n, p->bytes);
	return n;
}

static void check_stored(const struct kvc_shape *shape)
{
	uint64_t at = 0, payload = 0;

	for (uint32_t i = 0; i < shape->part_count; i++) {
		assert_int_equal(shape->parts[i].stored_offset, at);
		at += (shape->parts[i].bytes + 4095) / 4096 * 4096;
		payload += shape->parts[i].bytes;
	}
	assert_int_equal(shape->payload_bytes, payload);
	assert_int_equal(shape->stored_bytes, at + 4096);
}

static void check_page(const struct rank *r, const struct kvc_geometry *g, uint32_t page,
		       void **bases, uint32_t object)
{
	uint32_t group = r->heads / g->object_count;
	uint8_t got[PART_BYTES], expected[PART_BYTES];

	for (uint32_t part = 0; part < PARTS; part++) {
		size_t n = expect_part(expected, r->layout, part, page,
				       first_head(r) + object * group, group);

		assert_int_equal(gather(g->objects[object].shape, part, bases, got), n);
		assert_memory_equal(got, expected, n);
	}
}

static void check_rank(const struct rank *r)
{
	uint8_t *memory = malloc(PARTS * PART_BYTES);
	struct kvc_namespace_identity ns = make_ns(r);
	struct kvc_part parts[PARTS];
	struct kvc_pool_params params = pool_of(parts, r->layout);
	struct kvc_geometry g;
	void *bases[KVC_SHAPE_SERIES_MAX];

	tensor_parts(r, memory, parts);
	for (uint32_t i = 0; i < PARTS; i++)
		fill(r, memory + (size_t)i * PART_BYTES, i);
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
	assert_int_equal(g.page_count, PAGES);
	assert_int_equal(g.page_bytes, PARTS * PAGE * LAYERS * r->heads * HEAD_BYTES);
	for (uint32_t object = 0; object < g.object_count; object++) {
		check_stored(g.objects[object].shape);
		assert_true(g.objects[object].shape->series_count <= g.series_max);
		for (uint32_t page = 0; page < PAGES; page++) {
			assert_int_equal(kvc_geometry_bases(&g, page, object, bases), 0);
			check_page(r, &g, page, bases, object);
		}
	}
	kvc_geometry_fini(&g);
	kvc_namespace_identity_fini(&ns);
	free(memory);
}

static void every_layout_stores_its_documented_order(void **state)
{
	(void)state;
	for (uint32_t layout = KVC_LAYOUT_PAGE_FIRST; layout <= KVC_LAYOUT_LAYER_FIRST; layout++) {
		check_rank(&(struct rank){ 1, 0, 0, 0, HEADS, layout });
		check_rank(&(struct rank){ 1, 0, 0, 1, HEADS, layout });
		check_rank(&(struct rank){ 2, 1, 0, 0, HEADS / 2, layout });
	}
}

static void head_groups_are_the_same_for_every_tp_size(void **state)
{
	(void)state;
	for (uint32_t layout = KVC_LAYOUT_PAGE_FIRST; layout <= KVC_LAYOUT_LAYER_FIRST; layout++) {
		uint64_t fingerprint = 0;
		char names[4][KVC_NAME_MAX + 1] = { "" };

		for (uint32_t tp = 1; tp <= 4; tp *= 2) {
			for (uint32_t tp_rank = 0; tp_rank < tp; tp_rank++) {
				struct rank r = { tp, tp_rank, 4, 0, HEADS / tp, layout };
				struct kvc_namespace_identity ns = make_ns(&r);
				struct kvc_part parts[PARTS];
				struct kvc_pool_params params = pool_of(parts, layout);
				struct kvc_geometry g;

				check_rank(&r);
				tensor_parts(&r, NULL, parts);
				assert_int_equal(kvc_geometry_init(&g, &params, &ns,
								   KVC_NAMING_KVCELLAR),
						 0);
				assert_int_equal(g.object_count, 4 / tp);
				assert_true(!fingerprint || g.fingerprint == fingerprint);
				fingerprint = g.fingerprint;
				for (uint32_t i = 0; i < g.object_count; i++) {
					struct kvc_name_rule rule;
					char name[KVC_NAME_MAX + 1];
					uint32_t bytes, vrank = g.objects[i].vrank;

					assert_int_equal(vrank, tp_rank * (4 / tp) + i);
					assert_int_equal(kvc_geometry_rule(&g, i, &ns, &rule), 0);
					assert_int_equal(kvc_name_build(&rule,
									&(struct kvc_key){ "K", 1 },
									name, &bytes, NULL, NULL),
							 0);
					if (names[vrank][0])
						assert_string_equal(name, names[vrank]);
					memcpy(names[vrank], name, sizeof(name));
				}
				kvc_geometry_fini(&g);
				kvc_namespace_identity_fini(&ns);
			}
		}
	}
}

/* Pages in buffers: the layout's page, or page_first_direct's for layer_first. */
static void buffers_hold_whole_pages(void **state)
{
	static const uint32_t layouts[][2] = {
		{ KVC_LAYOUT_PAGE_FIRST, KVC_LAYOUT_PAGE_FIRST },
		{ KVC_LAYOUT_PAGE_FIRST_DIRECT, KVC_LAYOUT_PAGE_FIRST_DIRECT },
		{ KVC_LAYOUT_PAGE_HEAD, KVC_LAYOUT_PAGE_HEAD },
		{ KVC_LAYOUT_LAYER_FIRST, KVC_LAYOUT_PAGE_FIRST_DIRECT },
	};
	uint8_t *memory = malloc(PARTS * PART_BYTES);
	const size_t page_bytes = PART_BYTES / PAGES;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		struct rank r = { 1, 0, 2, 0, HEADS, layouts[i][1] };
		struct kvc_namespace_identity ns = make_ns(&r);
		struct kvc_part parts[PARTS];
		struct kvc_pool_params params = pool_of(parts, layouts[i][0]);
		struct kvc_geometry g;
		void *bases[KVC_SHAPE_SERIES_MAX];

		tensor_parts(&r, NULL, parts);
		for (uint32_t j = 0; j < PARTS; j++)
			fill(&r, memory + (size_t)j * PART_BYTES, j);
		assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
		assert_false(g.has_memory);
		assert_int_equal(kvc_geometry_bases(&g, 0, 0, bases), -EINVAL);
		for (uint32_t page = 0; page < PAGES; page++) {
			struct kvc_buffer buffers[PARTS] = {
				{ memory + page * page_bytes, page_bytes },
				{ memory + PART_BYTES + page * page_bytes, page_bytes },
			};

			for (uint32_t object = 0; object < g.object_count; object++) {
				assert_int_equal(kvc_geometry_buffers(&g, buffers, object, bases),
						 0);
				check_page(&r, &g, page, bases, object);
			}
			buffers[1].bytes++;
			assert_int_equal(kvc_geometry_buffers(&g, buffers, 0, bases), -EINVAL);
			buffers[1].bytes--;
			buffers[0].addr = NULL;
			assert_int_equal(kvc_geometry_buffers(&g, buffers, 0, bases), -EINVAL);
		}
		kvc_geometry_fini(&g);
		kvc_namespace_identity_fini(&ns);
	}
	free(memory);
}

/* page_first_direct said piece by piece, with a stride and with an address per layer. */
static void explicit_pieces_gather_in_order(void **state)
{
	struct rank r = { 1, 0, 2, 0, HEADS, KVC_LAYOUT_LAYER_FIRST };
	const size_t token_bytes = HEADS * HEAD_BYTES, layer_bytes = TOKENS * token_bytes;
	uint8_t *memory = malloc(PARTS * PART_BYTES);
	struct kvc_namespace_identity ns;
	struct kvc_geometry g;
	void *bases[KVC_SHAPE_SERIES_MAX], *layers[PARTS][LAYERS];

	(void)state;
	for (uint32_t bases_given = 0; bases_given <= 1; bases_given++) {
		struct kvc_part parts[PARTS];
		struct kvc_pool_params params = pool_of(parts, KVC_LAYOUT_EXPLICIT);

		r.lcm = 0;
		ns = make_ns(&r);
		params.page_count = PAGES;
		params.byte_order = KVC_ORDER_LAYER_MAJOR;
		for (uint32_t i = 0; i < PARTS; i++) {
			uint8_t *base = memory + (size_t)i * PART_BYTES;

			fill(&r, base, i);
			for (uint32_t layer = 0; layer < LAYERS; layer++)
				layers[i][layer] = base + layer * layer_bytes;
			parts[i] = (struct kvc_part){
				.size = sizeof(parts[i]),
				.base = bases_given ? NULL : base,
				.piece_bases = bases_given ? layers[i] : NULL,
				.piece_bytes = PAGE * token_bytes,
				.piece_stride_bytes = layer_bytes,
				.page_stride_bytes = PAGE * token_bytes,
				.piece_count = LAYERS,
			};
		}
		assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
		assert_int_equal(g.objects[0].shape->series_count,
				 PARTS * (bases_given ? LAYERS : 1));
		for (uint32_t page = 0; page < PAGES; page++) {
			assert_int_equal(kvc_geometry_bases(&g, page, 0, bases), 0);
			check_page(&r, &g, page, bases, 0);
		}
		kvc_geometry_fini(&g);
		kvc_namespace_identity_fini(&ns);
	}
	free(memory);
}

static void explicit_head_groups_lie_a_stride_apart(void **state)
{
	struct rank r = { 2, 1, 4, 0, HEADS / 2, KVC_LAYOUT_PAGE_FIRST };
	uint8_t *memory = malloc(PARTS * PART_BYTES);
	struct kvc_namespace_identity ns = make_ns(&r);
	struct kvc_part parts[PARTS];
	struct kvc_pool_params params = pool_of(parts, KVC_LAYOUT_EXPLICIT);
	struct kvc_geometry g;
	void *bases[KVC_SHAPE_SERIES_MAX];

	(void)state;
	params.page_count = PAGES;
	for (uint32_t i = 0; i < PARTS; i++) {
		fill(&r, memory + (size_t)i * PART_BYTES, i);
		parts[i] = (struct kvc_part){
			.size = sizeof(parts[i]),
			.base = memory + (size_t)i * PART_BYTES,
			.piece_bytes = HEAD_BYTES,
			.piece_stride_bytes = 2 * HEAD_BYTES,
			.group_stride_bytes = HEAD_BYTES,
			.page_stride_bytes = PAGE * LAYERS * 2 * HEAD_BYTES,
			.piece_count = PAGE * LAYERS,
		};
	}
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
	assert_int_equal(g.object_count, 2);
	for (uint32_t object = 0; object < 2; object++) {
		for (uint32_t page = 0; page < PAGES; page++) {
			assert_int_equal(kvc_geometry_bases(&g, page, object, bases), 0);
			check_page(&r, &g, page, bases, object);
		}
	}
	kvc_geometry_fini(&g);
	parts[1].group_stride_bytes = 0;
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "group_stride_bytes"));
	params.per_rank = KVC_YES;
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
	assert_int_equal(g.object_count, 1);
	assert_int_equal(g.vrank_count, 2);
	assert_int_equal(g.objects[0].vrank, 1);
	kvc_geometry_fini(&g);
	kvc_namespace_identity_fini(&ns);
	free(memory);
}

/* R14 */
static void layouts_of_one_order_share_and_others_do_not(void **state)
{
	struct rank r = { 1, 0, 0, 0, HEADS, 0 };
	struct kvc_namespace_identity ns = make_ns(&r);
	uint64_t fingerprints[5], dtype;
	struct kvc_part parts[PARTS];
	struct kvc_pool_params params;
	struct kvc_geometry g;

	(void)state;
	tensor_parts(&r, NULL, parts);
	for (uint32_t layout = 1; layout <= KVC_LAYOUT_LAYER_FIRST; layout++) {
		params = pool_of(parts, layout);
		assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
		fingerprints[layout] = g.fingerprint;
		kvc_geometry_fini(&g);
	}
	assert_int_equal(fingerprints[KVC_LAYOUT_PAGE_FIRST_DIRECT],
			 fingerprints[KVC_LAYOUT_LAYER_FIRST]);
	assert_int_not_equal(fingerprints[KVC_LAYOUT_PAGE_FIRST],
			     fingerprints[KVC_LAYOUT_PAGE_FIRST_DIRECT]);
	assert_int_not_equal(fingerprints[KVC_LAYOUT_PAGE_HEAD],
			     fingerprints[KVC_LAYOUT_PAGE_FIRST_DIRECT]);
	assert_int_not_equal(fingerprints[KVC_LAYOUT_PAGE_HEAD],
			     fingerprints[KVC_LAYOUT_PAGE_FIRST]);
	params = pool_of(parts, KVC_LAYOUT_PAGE_FIRST);
	params.dtype = "float16";
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
	dtype = g.fingerprint;
	kvc_geometry_fini(&g);
	assert_int_not_equal(dtype, fingerprints[KVC_LAYOUT_PAGE_FIRST]);
	kvc_namespace_identity_fini(&ns);
}

/*
 * python3 -c '
 * from hashlib import blake2b as B; from struct import pack as P
 * F=lambda f:b"\xff"*4 if f is None else P("<I",len(f))+f
 * H=lambda*x:B(b"".join(map(F,x)),digest_size=8).hexdigest()
 * Q=lambda n:P("<Q",n)
 * print(H(b"kv",Q(2),Q(288),Q(288),b"bfloat16",Q(1)))'
 */
static void fingerprint_is_as_documented(void **state)
{
	struct rank r = { 1, 0, 0, 0, HEADS, 0 };
	struct kvc_namespace_identity ns = make_ns(&r);
	struct kvc_part parts[PARTS];
	struct kvc_pool_params params = pool_of(parts, KVC_LAYOUT_PAGE_FIRST);
	struct kvc_geometry g;

	(void)state;
	tensor_parts(&r, NULL, parts);
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
	assert_int_equal(g.fingerprint, UINT64_C(0x7d9346c7ece6c9cd));
	assert_string_equal(g.fingerprint_text, "7d9346c7");
	assert_int_equal(g.objects[0].shape->pool_fingerprint, g.fingerprint);
	assert_int_equal(g.objects[0].shape->ns_hash, ns.hash);
	kvc_geometry_fini(&g);
	kvc_namespace_identity_fini(&ns);
}

static void nixl_has_an_object_per_part_or_one_joined(void **state)
{
	struct rank r = { 2, 1, 0, 0, HEADS / 2, KVC_LAYOUT_PAGE_FIRST };
	uint8_t *memory = malloc(PARTS * PART_BYTES), got[PART_BYTES], expected[PART_BYTES];
	struct kvc_namespace_identity ns = make_ns(&r);
	struct kvc_part parts[PARTS];
	struct kvc_pool_params params = pool_of(parts, r.layout);
	struct kvc_geometry g;
	void *bases[KVC_SHAPE_SERIES_MAX];

	(void)state;
	tensor_parts(&r, memory, parts);
	for (uint32_t i = 0; i < PARTS; i++)
		fill(&r, memory + (size_t)i * PART_BYTES, i);
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_NIXL), 0);
	assert_int_equal(g.object_count, 2);
	for (uint32_t i = 0; i < 2; i++) {
		size_t n = expect_part(expected, r.layout, i, 2, first_head(&r), r.heads);

		assert_string_equal(g.objects[i].part_suffix, i ? "_v" : "_k");
		assert_int_equal(kvc_geometry_bases(&g, 2, i, bases), 0);
		assert_int_equal(g.objects[i].shape->part_count, 1);
		check_stored(g.objects[i].shape);
		assert_int_equal(gather(g.objects[i].shape, 0, bases, got), n);
		assert_memory_equal(got, expected, n);
	}
	kvc_geometry_fini(&g);
	for (uint32_t layout = KVC_LAYOUT_PAGE_FIRST; layout <= KVC_LAYOUT_LAYER_FIRST; layout++) {
		size_t n;

		r.layout = layout;
		params.host_layout = layout;
		params.flags = layout < KVC_LAYOUT_PAGE_HEAD ? KVC_POOL_COPY_MODE : 0;
		for (uint32_t i = 0; i < PARTS; i++)
			fill(&r, memory + (size_t)i * PART_BYTES, i);
		assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_NIXL), 0);
		assert_int_equal(g.object_count, 1);
		assert_string_equal(g.objects[0].part_suffix, "");
		assert_int_equal(g.objects[0].shape->part_count, 1);
		check_stored(g.objects[0].shape);
		assert_int_equal(kvc_geometry_bases(&g, 1, 0, bases), 0);
		n = expect_part(expected, layout, 0, 1, first_head(&r), r.heads);
		n += expect_part(expected + n, layout, 1, 1, first_head(&r), r.heads);
		assert_int_equal(gather(g.objects[0].shape, 0, bases, got), n);
		assert_memory_equal(got, expected, n);
		kvc_geometry_fini(&g);
	}
	kvc_namespace_identity_fini(&ns);
	free(memory);
}

static void markers_have_no_parts(void **state)
{
	struct rank r = { 1, 0, 0, 0, HEADS, 0 };
	struct kvc_namespace_identity ns = make_ns(&r);
	struct kvc_pool_params params = { .size = sizeof(params),
					  .name = "kv",
					  .flags = KVC_POOL_MARKER };
	struct kvc_geometry g;

	(void)state;
	for (int naming = KVC_NAMING_KVCELLAR; naming <= KVC_NAMING_NIXL; naming++) {
		assert_int_equal(kvc_geometry_init(&g, &params, &ns, naming), 0);
		assert_int_equal(g.object_count, 1);
		assert_int_equal(g.objects[0].shape->part_count, 0);
		assert_int_equal(g.objects[0].shape->payload_bytes, 0);
		assert_int_equal(g.objects[0].shape->stored_bytes, 4096);
		assert_string_equal(g.objects[0].part_suffix, "");
		assert_int_equal(kvc_geometry_buffers(&g, NULL, 0, NULL), 0);
		assert_int_equal(kvc_geometry_bases(&g, 7, 0, NULL), 0);
		kvc_geometry_fini(&g);
	}
	kvc_namespace_identity_fini(&ns);
}

static void indices_are_checked(void **state)
{
	struct rank r = { 1, 0, 0, 0, HEADS, KVC_LAYOUT_PAGE_FIRST };
	uint8_t *memory = malloc(PARTS * PART_BYTES);
	struct kvc_namespace_identity ns = make_ns(&r);
	struct kvc_part parts[PARTS];
	struct kvc_pool_params params = pool_of(parts, r.layout);
	void *bases[KVC_SHAPE_SERIES_MAX], *before = memory;
	struct kvc_geometry g;

	(void)state;
	tensor_parts(&r, memory, parts);
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
	bases[0] = before;
	assert_int_equal(kvc_geometry_bases(&g, PAGES, 0, bases), -ERANGE);
	assert_int_equal(kvc_geometry_bases(&g, -1, 0, bases), -ERANGE);
	assert_int_equal(kvc_geometry_bases(&g, INT64_MIN, 0, bases), -ERANGE);
	assert_int_equal(kvc_geometry_bases(&g, INT64_MAX, 0, bases), -ERANGE);
	assert_ptr_equal(bases[0], before);
	assert_int_equal(kvc_geometry_buffers(&g, NULL, 0, bases), -EINVAL);
	kvc_geometry_fini(&g);
	params.flags = KVC_POOL_TOKEN_INDICES;
	params.page_count = 2;
	assert_int_equal(kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR), 0);
	assert_int_equal(kvc_geometry_bases(&g, 1, 0, bases), -EINVAL);
	assert_int_equal(kvc_geometry_bases(&g, PAGE, 0, bases), 0);
	assert_ptr_equal(bases[0], memory + PART_BYTES / PAGES);
	assert_int_equal(kvc_geometry_bases(&g, 2 * PAGE, 0, bases), -ERANGE);
	kvc_geometry_fini(&g);
	kvc_namespace_identity_fini(&ns);
	free(memory);
}

struct refusal {
	const char *text; /* in the error */
	void (*change)(struct kvc_pool_params *params, struct kvc_part *parts);
};

#define CHANGE(name, ...)                                               \
	static void name(struct kvc_pool_params *p, struct kvc_part *q) \
	{                                                               \
		(void)p;                                                \
		(void)q;                                                \
		__VA_ARGS__;                                            \
	}

static void *one_null_base[1];

CHANGE(no_name, p->name = NULL)
CHANGE(bad_name, p->name = "K.V")
CHANGE(bad_size, p->size = 8)
CHANGE(bad_part_size, q[0].size = q[1].size = 8)
CHANGE(uneven_part_size, q[1].size = 16)
CHANGE(no_parts, p->part_count = 0)
CHANGE(many_parts, p->part_count = 65)
CHANGE(null_parts, p->parts = NULL)
CHANGE(marker_parts, p->flags = KVC_POOL_MARKER)
CHANGE(bad_flags, p->flags = 8)
CHANGE(bad_layout, p->host_layout = 5)
CHANGE(bad_order, p->byte_order = 4)
CHANGE(other_order, p->byte_order = KVC_ORDER_HEAD_MAJOR)
CHANGE(bad_tristate, p->per_rank = 3)
CHANGE(half_memory, q[1].base = NULL)
CHANGE(bad_part_name, q[1].name = "K")
CHANGE(long_part_name, q[1].name = "a1234567890123456")
CHANGE(same_part_name, q[0].name = q[1].name = "k")
CHANGE(no_layers, q[1].layer_count = 0)
CHANGE(no_heads, q[1].head_count = 0)
CHANGE(no_head_bytes, q[1].head_bytes = 0)
CHANGE(no_tokens, q[1].token_count = 0)
CHANGE(no_pages, q[0].token_count = 0)
CHANGE(odd_tokens, q[1].token_count = TOKENS + 1)
CHANGE(many_pages, p->page_count = PAGES + 1)
CHANGE(odd_heads, q[1].head_count = 3)
CHANGE(large_heads, q[1].head_count = UINT32_MAX - 1; q[1].head_bytes = UINT32_MAX)
CHANGE(large_layers, q[1].layer_count = UINT32_MAX; q[1].head_bytes = UINT32_MAX)
CHANGE(large_page, p->page_tokens = UINT32_MAX; q[0].token_count = q[1].token_count = UINT32_MAX;
       q[0].layer_count = UINT32_MAX)
CHANGE(large_tensor, p->host_layout = KVC_LAYOUT_LAYER_FIRST; q[0].token_count = UINT64_C(1) << 60)
CHANGE(far_tensor, q[0].token_count = UINT64_C(1) << 62)
CHANGE(stray_bases, q[1].base = NULL; q[1].piece_bases = one_null_base)
CHANGE(no_piece_bytes, p->host_layout = 0; q[0].piece_bytes = 0)
CHANGE(no_pieces, p->host_layout = 0; q[0].piece_bytes = 8)
CHANGE(overlap, p->host_layout = 0; q[0].piece_bytes = 8; q[0].piece_count = 2;
       q[0].piece_stride_bytes = 7; q[0].page_stride_bytes = 16)
CHANGE(no_stride, p->host_layout = 0; q[0].piece_bytes = 8; q[0].piece_count = 1;
       q[0].group_stride_bytes = 8)
CHANGE(large_pieces, p->host_layout = 0; q[0].group_stride_bytes = q[0].piece_bytes = UINT64_MAX;
       q[0].piece_count = 2)
CHANGE(far_stride, p->host_layout = 0; q[0].piece_bytes = 8; q[0].piece_count = 1;
       q[0].group_stride_bytes = 8; q[0].page_stride_bytes = UINT64_MAX / 2)
CHANGE(far_pieces, p->host_layout = 0; q[0].piece_bytes = 8; q[0].piece_count = 3;
       q[0].piece_stride_bytes = UINT64_MAX / 2; q[0].group_stride_bytes = 8;
       q[0].page_stride_bytes = 8)
CHANGE(two_bases, p->host_layout = 0; q[0].piece_bytes = 8; q[0].piece_count = 1;
       q[0].piece_bases = one_null_base)
CHANGE(null_base, p->host_layout = 0; q[0].base = NULL; q[0].piece_bytes = 8; q[0].piece_count = 1;
       q[0].group_stride_bytes = 8; q[0].page_stride_bytes = 16; q[0].piece_bases = one_null_base)
CHANGE(many_series, p->host_layout = KVC_LAYOUT_LAYER_FIRST; q[0].layer_count = 300)

static void bad_pools_are_refused_by_name(void **state)
{
	static const struct refusal refusals[] = {
		{ "name", no_name },
		{ "name \"K.V\"", bad_name },
		{ "params.size", bad_size },
		{ "parts[0].size", bad_part_size },
		{ "parts[1].size", uneven_part_size },
		{ "part_count = 0", no_parts },
		{ "part_count = 65", many_parts },
		{ "parts is NULL", null_parts },
		{ "marker", marker_parts },
		{ "flags", bad_flags },
		{ "host_layout", bad_layout },
		{ "byte_order = 4", bad_order },
		{ "host_layout = page_first stores token_major", other_order },
		{ "per_rank", bad_tristate },
		{ "parts[1]: all parts", half_memory },
		{ "parts[1]: name", bad_part_name },
		{ "parts[1]: name", long_part_name },
		{ "also that of parts[0]", same_part_name },
		{ "layer_count", no_layers },
		{ "head_count", no_heads },
		{ "head_bytes", no_head_bytes },
		{ "parts[1]: token_count", no_tokens },
		{ "page_count", no_pages },
		{ "token_count = 13", odd_tokens },
		{ "page_count = 4", many_pages },
		{ "head_count = 3", odd_heads },
		{ "overflows", large_heads },
		{ "overflows", large_layers },
		{ "overflows", large_page },
		{ "overflows", large_tensor },
		{ "address space", far_tensor },
		{ "piece_bases", stray_bases },
		{ "piece_bytes", no_piece_bytes },
		{ "piece_count", no_pieces },
		{ "overlap", overlap },
		{ "page_stride_bytes", no_stride },
		{ "overflows", large_pieces },
		{ "address space", far_stride },
		{ "address space", far_pieces },
		{ "base and piece_bases", two_bases },
		{ "piece_bases[0]", null_base },
		{ "more than 256 places", many_series },
	};
	struct rank r = { 1, 0, 2, 0, HEADS, KVC_LAYOUT_PAGE_FIRST };
	uint8_t *memory = malloc(PARTS * PART_BYTES);
	struct kvc_namespace_identity ns = make_ns(&r);
	struct kvc_geometry g;

	(void)state;
	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		struct kvc_part parts[PARTS];
		struct kvc_pool_params params = pool_of(parts, r.layout);

		tensor_parts(&r, memory, parts);
		for (uint32_t j = 0; j < PARTS; j++)
			parts[j].group_stride_bytes = 4096;
		refusals[i].change(&params, parts);
		if (kvc_geometry_init(&g, &params, &ns, KVC_NAMING_KVCELLAR) != -EINVAL)
			fail_msg("refusal %zu (%s) was taken", i, refusals[i].text);
		if (!strstr(kvc_last_error(), refusals[i].text))
			fail_msg("refusal %zu: \"%s\" has no \"%s\"", i, kvc_last_error(),
				 refusals[i].text);
	}
	assert_int_equal(kvc_geometry_init(&g, NULL, &ns, KVC_NAMING_KVCELLAR), -EINVAL);
	kvc_geometry_fini(NULL);
	kvc_namespace_identity_fini(&ns);
	free(memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_layout_stores_its_documented_order),
		cmocka_unit_test(head_groups_are_the_same_for_every_tp_size),
		cmocka_unit_test(buffers_hold_whole_pages),
		cmocka_unit_test(explicit_pieces_gather_in_order),
		cmocka_unit_test(explicit_head_groups_lie_a_stride_apart),
		cmocka_unit_test(layouts_of_one_order_share_and_others_do_not),
		cmocka_unit_test(fingerprint_is_as_documented),
		cmocka_unit_test(nixl_has_an_object_per_part_or_one_joined),
		cmocka_unit_test(markers_have_no_parts),
		cmocka_unit_test(indices_are_checked),
		cmocka_unit_test(bad_pools_are_refused_by_name),
	};

	return cmocka_run_group_tests_name("geometry", tests, NULL, NULL);
}
