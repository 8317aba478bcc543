/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays requests as a serving engine does: what the tier has is not asked for; of the rest, exists
 * tells the stored prefix, get brings it, every page is compared, and what had to be computed is
 * stored by set. One client is one thread with its own slots of the host pool.
 */
#ifndef KVC_CLI_REPLAY_PLAYER_H
#define KVC_CLI_REPLAY_PLAYER_H

#include "replay_bytes.h"
#include "replay_lru.h"
#include "replay_stats.h"
#include "replay_trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* How long at least one call of an operation was running. */
struct replay_meter {
	uint32_t running;
	uint64_t since_ns;
	uint64_t busy_ns;
	uint64_t told_ns; /* of it, in the series */
};

/* What all clients share. */
struct replay_shared {
	struct kvc_store *store;
	struct kvc_pool *pool;
	struct replay_geometry geometry;
	uint32_t batch;
	struct replay_lru *tier; /* NULL: none */
	uint64_t start_ns;
	atomic_bool stop;
	_Atomic uint64_t played; /* requests */

	pthread_mutex_t lock; /* of everything below, and the tier */
	struct replay_meter meters[KVC_OPERATION_COUNT];
	struct stats_series series;
	int error; /* first call that could not be made */
	char error_text[512];
};

/* The first page that came back wrong. */
struct replay_wrong {
	bool seen;
	uint64_t line;
	uint64_t bytes;
	char key[REPLAY_KEY_BYTES + 1];
};

struct replay_client {
	struct replay_shared *shared;
	uint64_t first_slot;
	uint64_t slot_count; /* >= shared->batch */
	uint64_t next_slot;

	/* Room for the pages of the request, grown as needed. */
	size_t capacity;
	struct replay_page *pages;
	struct kvc_key *keys;
	char *key_text;
	struct kvc_result *results;
	int64_t *indices; /* shared->batch */

	struct stats_pass pass;
	struct stats_operation operations[KVC_OPERATION_COUNT];
	uint64_t thread_cpu_ns; /* of its threads, calls and all else */
	uint64_t checked_pages;
	uint64_t wrong_pages;
	uint64_t wrong_bytes;
	struct replay_wrong wrong;
};

uint64_t replay_now_ns(void);
uint64_t replay_thread_cpu_ns(void);

/* replay_client_begin - 0 or -ENOMEM; replay_client_end frees. */
int replay_client_begin(struct replay_client *client, struct replay_shared *shared,
			uint64_t first_slot, uint64_t slot_count);
void replay_client_end(struct replay_client *client);

/* Plays one request. A failure is left in shared->error and stops all clients. */
void replay_client_play(struct replay_client *client, const struct replay_request *request);

#endif
