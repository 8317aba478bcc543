/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a pool's description to what is moved: which objects a page has on this rank, which memory
 * pieces make each of them, and the pool's fingerprint.
 *
 * A page has one object per virtual rank of this rank (tp_lcm_size / tp_size of them; one for
 * pools that are the same on every tp rank, and for per-rank pools, which are not split by heads).
 * With naming = "nixl" each part is an object of its own (layouts page_first, page_first_direct,
 * explicit), or all parts follow one another, unpadded, as the one part of one object (copy mode:
 * KVC_POOL_COPY_MODE and the other layouts).
 *
 * The stored bytes of a part run in the pool's byte order. For T tokens, L layers and the head
 * group of G heads:
 *   token_major  [T][L][G][head bytes]   page_first
 *   layer_major  [L][T][G][head bytes]   page_first_direct, layer_first
 *   head_major   [G][T][L][head bytes]   page_head
 *   explicit: the pieces in their order, of the byte order that is given
 *
 * Pool fingerprint = H(pool name, part count, the parts' bytes per virtual rank, dtype, byte order)
 * with integers as u64 fields and one field per part; a dtype that is not known is absent. Byte
 * order as in enum kvc_byte_order.
 */
#ifndef KVC_CONNECTOR_GEOMETRY_H
#define KVC_CONNECTOR_GEOMETRY_H

#include "connector/name.h"
#include "core/shape.h"

/* Where a series of page 0 begins, and how far the next page is. */
struct kvc_geometry_source {
	uintptr_t base; /* with buffers: offset into the buffer of the part */
	uint64_t page_stride_bytes;
	uint32_t part;
	uint32_t reserved;
};

/* One object of a page: shape->series_count sources. */
struct kvc_geometry_object {
	const struct kvc_shape *shape;
	const struct kvc_geometry_source *sources;
	uint32_t vrank;
	uint32_t reserved;
	char part_suffix[KVC_PART_SUFFIX_MAX + 1]; /* naming = "nixl" */
};

struct kvc_geometry {
	char pool_name[KVC_POOL_NAME_MAX + 1];
	char fingerprint_text[9];
	bool shared;	    /* the same on every tp rank: only the namespace's writer stores it */
	bool has_memory;    /* pages are addressed by index; else by buffers */
	bool token_indices; /* an index is the first token of a page */
	int naming;	    /* enum kvc_naming */
	uint32_t object_count;
	uint32_t part_count;
	uint32_t shape_count;
	uint32_t series_max; /* of all shapes: room for bases */
	uint32_t vrank_count;
	uint32_t page_tokens;
	uint64_t page_count;
	uint64_t page_bytes; /* payload of one page on this rank */
	uint64_t fingerprint;
	uint64_t part_bytes[KVC_SHAPE_PARTS_MAX]; /* on this rank: the size of its buffer */
	struct kvc_geometry_object *objects;
	struct kvc_geometry_source *sources;
	struct kvc_shape *shapes;
};

/*
 * kvc_geometry_init - checks a pool and computes its objects. Nothing of params is kept but the
 * addresses of the memory. Errors: -EINVAL (with the field); -ENOMEM.
 */
int kvc_geometry_init(struct kvc_geometry *out, const struct kvc_pool_params *params,
		      const struct kvc_namespace_identity *ns, int naming);

void kvc_geometry_fini(struct kvc_geometry *geometry);

/* kvc_geometry_rule - how the object is named. Errors: as kvc_name_rule_init(). */
int kvc_geometry_rule(const struct kvc_geometry *geometry, uint32_t object,
		      const struct kvc_namespace_identity *ns, struct kvc_name_rule *out);

/*
 * kvc_geometry_bases - the base address of each series of an object, for the page at an index.
 * Errors: -ERANGE (outside of the pool); -EINVAL (a token index that begins no page; a pool without
 * memory). bases is written only on success. A marker pool has no bases: any index is good.
 */
int kvc_geometry_bases(const struct kvc_geometry *geometry, int64_t index, uint32_t object,
		       void **bases);

/*
 * kvc_geometry_buffers - the same for a page that lies in part_count buffers, one per part: the
 * page as the layout has it; for layer_first as page_first_direct has it; for explicit its pieces
 * one after another, head group by head group.
 * Errors: -EINVAL (a buffer is NULL or not exactly the part's size; a pool with memory).
 */
int kvc_geometry_buffers(const struct kvc_geometry *geometry, const struct kvc_buffer *buffers,
			 uint32_t object, void **bases);

#endif
