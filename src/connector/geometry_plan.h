/* SPDX-License-Identifier: Apache-2.0 */
/* The checked parts of a pool as series, before they become objects. Reader: geometry.c. */
#ifndef KVC_CONNECTOR_GEOMETRY_PLAN_H
#define KVC_CONNECTOR_GEOMETRY_PLAN_H

#include "connector/geometry.h"

struct kvc_plan_series {
	struct kvc_series series;
	uintptr_t base; /* of page 0, group 0 */
};

struct kvc_plan_part {
	uint64_t bytes; /* of one virtual rank */
	uint64_t page_stride_bytes;
	uint64_t group_stride_bytes;
	uint32_t first_series;
	uint32_t series_count;
	char name[KVC_PART_NAME_MAX + 1]; /* "" = none was given */
};

struct kvc_plan {
	struct kvc_pool_params params; /* as far as the caller knows them */
	const struct kvc_namespace_identity *ns;
	const char *dtype;
	uint32_t splits; /* virtual ranks of this rank */
	uint32_t page_tokens;
	uint32_t byte_order;
	bool per_rank;
	bool has_memory;
	uint64_t page_count;
	uint32_t series_count;
	struct kvc_plan_part parts[KVC_SHAPE_PARTS_MAX];
	struct kvc_plan_series series[KVC_SHAPE_SERIES_MAX];
};

/* kvc_plan_make - checks params and fills plan. -EINVAL with the field. */
int kvc_plan_make(struct kvc_plan *plan, const struct kvc_pool_params *params,
		  const struct kvc_namespace_identity *ns);

#endif
