/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and bytes of pages, made from their names: a page that comes back is compared byte by byte
 * with what it must be, and nothing has to be remembered.
 *
 * Word i of a part is a function of the page's name, the rank, the part and i, so bytes of another
 * page, part, rank or place are seen, too. With head groups (tp_lcm_size) it is a function of the
 * head instead of the rank, so that processes of another tp size expect the same.
 */
#ifndef KVC_CLI_REPLAY_BYTES_H
#define KVC_CLI_REPLAY_BYTES_H

#include "replay_trace.h"

#include <kvcellar/kvcellar.h>

#define REPLAY_KEY_BYTES 64u

/* A number that stands for the page; different salts, different numbers. */
uint64_t replay_page_seed(struct replay_page page, uint64_t salt);

/* The key: 64 hex digits, no NUL. */
void replay_page_key(struct replay_page page, char out[REPLAY_KEY_BYTES]);

/* How pages lie in the host pool that replay and bench use. */
struct replay_geometry {
	uint32_t layout; /* enum kvc_host_layout */
	uint32_t part_count;
	uint64_t part_bytes;
	uint64_t page_count;
	uint32_t page_tokens;
	uint32_t layers;
	uint32_t heads;
	uint32_t head_bytes;
	uint32_t first_head; /* of this rank, over all ranks */
	bool by_head;	     /* head groups: bytes depend on the head, not on the rank */
	uint64_t rank_salt;
	uint8_t *memory; /* part j begins at j * part_span_bytes */
	uint64_t part_span_bytes;
};

/*
 * replay_geometry_shape - sets layers, heads and head_bytes for part_bytes and page_tokens (0 =
 * chosen) and checks them. NULL, or what is wrong with it.
 * @ranks   heads must be a multiple of it (head groups of this rank); 1 when there are none
 */
const char *replay_geometry_shape(struct replay_geometry *geometry, uint32_t ranks);

/* The parts for kvc_pool_open(); out has part_count entries. */
void replay_geometry_parts(const struct replay_geometry *geometry, struct kvc_part *out);

/* Maps the memory: 0 or -ENOMEM. */
int replay_geometry_map(struct replay_geometry *geometry);
void replay_geometry_unmap(struct replay_geometry *geometry);
uint64_t replay_geometry_bytes(const struct replay_geometry *geometry);

/* Writes the page's bytes into slot. */
void replay_page_fill(const struct replay_geometry *geometry, uint64_t slot,
		      struct replay_page page);

/* How many bytes in slot are not the page's. */
uint64_t replay_page_compare(const struct replay_geometry *geometry, uint64_t slot,
			     struct replay_page page);

#endif
