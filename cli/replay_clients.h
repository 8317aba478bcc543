/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hands the requests of a trace to client threads: in the order of the trace, those of one session
 * one after the other, at their time when the trace is not played as fast as possible.
 */
#ifndef KVC_CLI_REPLAY_CLIENTS_H
#define KVC_CLI_REPLAY_CLIENTS_H

#include "replay_player.h"

/* struct replay_plan - @limit  requests, 0 = all; @speed  0 = as fast as possible, 2 = twice as
 * fast as recorded; @tick  called by the thread of replay_clients_run() about ten times a second */
struct replay_plan {
	struct replay_client *clients;
	uint32_t client_count;
	uint64_t limit;
	double speed;
	void (*tick)(void *context);
	void *context;
};

/*
 * replay_clients_run - one pass from where the reader is to its end, the limit, or shared->stop.
 * Errors: of the reader; -EAGAIN (threads). Calls that failed are in shared->error.
 */
int replay_clients_run(struct replay_shared *shared, const struct replay_plan *plan,
		       struct replay_reader *reader);

#endif
