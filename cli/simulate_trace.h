/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole trace in memory for `kvcellar simulate`, small enough to be played many times: its pages
 * have numbers 0, 1, 2 ... of which few are unused, and stay runs.
 */
#ifndef KVC_CLI_SIMULATE_TRACE_H
#define KVC_CLI_SIMULATE_TRACE_H

#include "replay_trace.h"

struct sim_run {
	uint32_t first;
	uint32_t count;
};

enum sim_action {
	SIM_REQUEST = 0, /* asks for its pages, uses the leading ones, stores the rest */
	SIM_LOAD = 1,	 /* uses pages; those that are missing are computed and stored */
	SIM_REMOVE = 2,
};

struct sim_request {
	double at_ms;
	uint64_t session;
	size_t first_run;
	uint32_t run_count;
	uint32_t page_count;
	uint8_t action; /* enum sim_action */
	bool continues; /* the prefix of the request before it: a long call of a recording */
};

/*
 * struct sim_trace
 * @span      page numbers are below it
 * @distinct  how many of them there are
 * @longest   pages of the longest request
 * @pages     that requests ask for, with repetition
 */
struct sim_trace {
	struct sim_request *requests;
	size_t request_count;
	size_t request_capacity;
	struct sim_run *runs;
	size_t run_count;
	size_t run_capacity;
	uint32_t span;
	uint32_t distinct;
	uint32_t longest;
	uint32_t sessions; /* of the compact form */
	uint64_t asked;	   /* requests that ask */
	uint64_t pages;
	enum replay_form form;
};

/*
 * sim_trace_read - to the reader's end, or `limit` requests (0: all).
 * Errors: of replay_reader_next(); -EOVERFLOW: more than 2^32 page numbers; -ENOMEM.
 */
int sim_trace_read(struct replay_reader *reader, uint64_t limit, struct sim_trace *out);

/*
 * sim_trace_interleave - sessions, whose times count from their own beginning, side by side: `many`
 * of them; when one ends the next one begins. Requests come in the order of their times.
 */
int sim_trace_interleave(struct sim_trace *trace, uint32_t many);

void sim_trace_free(struct sim_trace *trace);

#endif
