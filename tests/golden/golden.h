/* SPDX-License-Identifier: Apache-2.0 */
/* What the golden roots of both layouts have in common: see make_golden.py and make_packed.py. */
#ifndef KVC_TESTS_GOLDEN_H
#define KVC_TESTS_GOLDEN_H

#include "support/support.h"

#include <string.h>

#define V1 KVC_TEST_SOURCE_DIR "/golden/v1"

/* When all of it was written. */
#define GOLDEN_CREATED_NS (INT64_C(1767225600) * 1000000000)

static inline unsigned char golden_byte(const char *key, uint32_t part, size_t i)
{
	return (unsigned char)((unsigned char)key[0] + 7 * part + i * 31);
}

static inline void golden_fill(struct pages *pages, const char *key)
{
	for (uint32_t j = 0; j < pages->part_count; j++)
		for (size_t i = 0; i < pages->part_bytes[j]; i++)
			pages->part_base[j][i] = golden_byte(key, j, i);
}

static inline void golden_check(const struct pages *pages, const char *key)
{
	for (uint32_t j = 0; j < pages->part_count; j++)
		for (size_t i = 0; i < pages->part_bytes[j]; i++)
			if (pages->part_base[j][i] != golden_byte(key, j, i))
				fail_msg("%.20s: part %u differs at %zu", key, j, i);
}

/* What a set says of the page before. */
static inline void golden_chain(struct kvc_transfer *transfer, const char *key)
{
	if (strcmp(key, "full") != 0)
		return;
	transfer->parent = key_of("the page before");
	transfer->depth = 3;
}

static inline void golden_expect_ok(const struct kvc_object_info *info,
				    const struct kvc_result *result)
{
	if (result->status != KVC_OK)
		fail_msg("%s: %s/%s", info->path, kvc_status_name(result->status),
			 kvc_cause_name(result->cause));
}

#endif
