/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier in front of the store, as a serving engine's host memory is: which of the last pages,
 * `capacity` of them, are there. It holds names only, since page bytes are made from them. Not
 * thread-safe.
 */
#ifndef KVC_CLI_REPLAY_LRU_H
#define KVC_CLI_REPLAY_LRU_H

#include "replay_trace.h"

struct replay_lru;

/* replay_lru_new - capacity in pages, 1 .. 2^30. NULL: out of memory. */
struct replay_lru *replay_lru_new(uint64_t capacity);
void replay_lru_free(struct replay_lru *lru);

/* How many leading pages are in the tier. Changes nothing. */
size_t replay_lru_prefix(const struct replay_lru *lru, const struct replay_page *pages,
			 size_t count);

/* Makes the pages the most recently used, the last page first, so that of one request the tail
 * leaves before the head. What is too much leaves, the least recently used first. */
void replay_lru_touch(struct replay_lru *lru, const struct replay_page *pages, size_t count);

uint64_t replay_lru_count(const struct replay_lru *lru);

#endif
