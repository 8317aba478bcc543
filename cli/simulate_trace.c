/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_trace.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_SHIFT 6u /* pages of a trace that counts its pages get their numbers in blocks */
#define BLOCK_PAGES (1u << BLOCK_SHIFT)

/* ---------------------------------------------------------------- numbers of pages */

struct block {
	struct replay_page first;
	uint64_t seen; /* one bit per page */
	uint32_t number;
	uint32_t used;
};

/* Open addressing. */
struct names {
	struct block *blocks;
	size_t mask;
	uint32_t count;
	unsigned shift; /* pages of a block: 1 << shift */
};

static size_t place_of(const struct names *names, struct replay_page page)
{
	uint64_t hash = (page.id ^ (page.space * UINT64_C(0x9e3779b97f4a7c15))) + page.space;

	hash = (hash ^ (hash >> 32)) * UINT64_C(0xd6e8feb86659fd93);
	return (size_t)(hash ^ (hash >> 32)) & names->mask;
}

static struct block *find_place(const struct names *names, struct replay_page page)
{
	size_t at = place_of(names, page);

	while (names->blocks[at].used && (names->blocks[at].first.id != page.id ||
					  names->blocks[at].first.space != page.space))
		at = (at + 1) & names->mask;
	return &names->blocks[at];
}

static int grow_names(struct names *names)
{
	const size_t capacity = names->blocks ? 2 * (names->mask + 1) : 4096;
	struct names grown = *names;

	grown.blocks = calloc(capacity, sizeof(*grown.blocks));
	if (!grown.blocks)
		return -ENOMEM;
	grown.mask = capacity - 1;
	for (size_t i = 0; names->blocks && i <= names->mask; i++)
		if (names->blocks[i].used)
			*find_place(&grown, names->blocks[i].first) = names->blocks[i];
	free(names->blocks);
	*names = grown;
	return 0;
}

static int block_of(struct names *names, struct replay_page page, struct block **out)
{
	struct block *block;

	page.id >>= names->shift;
	if (!names->blocks || names->count > names->mask / 4 * 3) {
		const int rc = grow_names(names);

		if (rc)
			return rc;
	}
	block = find_place(names, page);
	if (!block->used) {
		if (names->count >= UINT32_MAX >> names->shift)
			return -EOVERFLOW;
		*block = (struct block){ .first = page, .number = names->count++, .used = 1 };
	}
	*out = block;
	return 0;
}

/* ---------------------------------------------------------------- requests */

static bool make_room(void *array_of_pointer, size_t *capacity, size_t count, size_t bytes)
{
	void **array = array_of_pointer;
	void *grown;

	if (count < *capacity)
		return true;
	grown = reallocarray(*array, 2 * *capacity + 1024, bytes);
	if (!grown)
		return false;
	*array = grown;
	*capacity = 2 * *capacity + 1024;
	return true;
}

static int add_run(struct sim_trace *trace, struct sim_request *request, uint32_t first,
		   uint32_t count)
{
	struct sim_run *last = request->run_count ? &trace->runs[trace->run_count - 1] : NULL;

	if (last && last->first + last->count == first) {
		last->count += count;
		return 0;
	}
	if (!make_room(&trace->runs, &trace->run_capacity, trace->run_count, sizeof(*trace->runs)))
		return -ENOMEM;
	trace->runs[trace->run_count++] = (struct sim_run){ first, count };
	request->run_count++;
	return 0;
}

static int add_pages(struct sim_trace *trace, struct names *names, struct sim_request *request,
		     struct replay_run run)
{
	while (run.count > 0) {
		const uint32_t in_block =
			(uint32_t)(run.first.id & (((uint64_t)1 << names->shift) - 1));
		const uint32_t rest = (1u << names->shift) - in_block;
		const uint32_t count = run.count < rest ? (uint32_t)run.count : rest;
		struct block *block;
		uint64_t bits;
		int rc = block_of(names, run.first, &block);

		if (rc)
			return rc;
		bits = (count == BLOCK_PAGES ? UINT64_MAX : ((uint64_t)1 << count) - 1) << in_block;
		trace->distinct += (uint32_t)__builtin_popcountll(bits & ~block->seen);
		block->seen |= bits;
		rc = add_run(trace, request, (block->number << names->shift) + in_block, count);
		if (rc)
			return rc;
		run.first.id += count;
		run.count -= count;
	}
	return 0;
}

/* What an engine does with it. A recording tells which operations were called, at a capacity of its
 * own: what it looked for is what it needed, whether or not it was there. */
static uint8_t action_of(uint32_t op)
{
	if (op == REPLAY_OP_REQUEST || op == KVC_EXISTS)
		return SIM_REQUEST;
	return op == KVC_REMOVE ? SIM_REMOVE : SIM_LOAD;
}

/* A recorded call of more keys than a line has goes on in the next line. */
static bool goes_on(const struct sim_trace *trace, const struct replay_request *request)
{
	const struct sim_request *last =
		trace->request_count ? &trace->requests[trace->request_count - 1] : NULL;

	return last && request->op != REPLAY_OP_REQUEST && last->action == SIM_REQUEST &&
	       request->op == KVC_EXISTS && last->session == request->session &&
	       last->at_ms == request->at_ms && last->page_count == 256;
}

static int add_request(struct sim_trace *trace, struct names *names,
		       const struct replay_request *from)
{
	struct sim_request request = {
		.at_ms = from->at_ms,
		.session = from->session,
		.first_run = trace->run_count,
		.page_count = from->page_count,
		.action = action_of(from->op),
		.continues = goes_on(trace, from),
	};

	for (size_t i = 0; i < from->run_count; i++) {
		const int rc = add_pages(trace, names, &request, from->runs[i]);

		if (rc)
			return rc;
	}
	if (!make_room(&trace->requests, &trace->request_capacity, trace->request_count,
		       sizeof(*trace->requests)))
		return -ENOMEM;
	trace->requests[trace->request_count++] = request;
	trace->longest = from->page_count > trace->longest ? from->page_count : trace->longest;
	if (request.action == SIM_REQUEST) {
		trace->asked += !request.continues;
		trace->pages += request.page_count;
	}
	return 0;
}

/* A recording of engines that get without looking before. */
static void ask_by_loads(struct sim_trace *trace, const bool *was_get)
{
	for (size_t i = 0; i < trace->request_count; i++) {
		struct sim_request *request = &trace->requests[i];

		if (request->action != SIM_LOAD || !was_get[i])
			continue;
		request->action = SIM_REQUEST;
		trace->asked++;
		trace->pages += request->page_count;
	}
}

int sim_trace_read(struct replay_reader *reader, uint64_t limit, struct sim_trace *out)
{
	struct sim_trace trace = { .form = replay_reader_form(reader) };
	struct names names = {
		.shift = trace.form == REPLAY_FORM_RECORDING ? 0 : BLOCK_SHIFT,
	};
	size_t get_capacity = 0, read = 0;
	bool *was_get = NULL;
	int rc = 0;

	while (limit == 0 || read < limit) {
		struct replay_request *request;

		rc = replay_reader_next(reader, &request);
		if (rc <= 0)
			break;
		rc = make_room(&was_get, &get_capacity, read, sizeof(*was_get)) ? 0 : -ENOMEM;
		if (!rc) {
			was_get[read++] = request->op == KVC_GET;
			rc = add_request(&trace, &names, request);
		}
		free(request);
		if (rc)
			break;
	}
	if (!rc) {
		if (trace.asked == 0)
			ask_by_loads(&trace, was_get);
		trace.span = names.count << names.shift;
		*out = trace;
	} else {
		sim_trace_free(&trace);
	}
	free(was_get);
	free(names.blocks);
	return rc;
}

/* ---------------------------------------------------------------- sessions */

/* The requests of one session, in order. */
struct line_up {
	uint64_t session;
	size_t *requests;
	size_t count;
};

/* Which request of a running session comes next, and when. */
struct turn {
	double at_ms;
	double begun_ms;
	size_t session;
	size_t next;
};

static bool earlier(const struct turn *a, const struct turn *b)
{
	return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->session < b->session);
}

static int by_session(const void *left, const void *right, void *context)
{
	const struct sim_request *requests = context;
	const size_t a = *(const size_t *)left, b = *(const size_t *)right;

	if (requests[a].session != requests[b].session)
		return requests[a].session < requests[b].session ? -1 : 1;
	return a < b ? -1 : a > b;
}

static int by_first_request(const void *left, const void *right)
{
	const struct line_up *a = left, *b = right;

	return a->requests[0] < b->requests[0] ? -1 : a->requests[0] > b->requests[0];
}

/* Splits the sorted requests into sessions, in the order in which they begin. */
static size_t line_up(const struct sim_trace *trace, size_t *sorted, struct line_up *sessions)
{
	size_t count = 0;

	for (size_t i = 0; i < trace->request_count; i++) {
		const uint64_t session = trace->requests[sorted[i]].session;

		if (count == 0 || sessions[count - 1].session != session)
			sessions[count++] =
				(struct line_up){ .session = session, .requests = &sorted[i] };
		sessions[count - 1].count++;
	}
	qsort(sessions, count, sizeof(*sessions), by_first_request);
	return count;
}

static struct turn first_turn(const struct sim_trace *trace, const struct line_up *session,
			      size_t number, double now_ms)
{
	return (struct turn){
		.at_ms = now_ms + trace->requests[session->requests[0]].at_ms,
		.begun_ms = now_ms,
		.session = number,
	};
}

/* All requests in the order of their turns; `running` has room for `many`. */
static void take_turns(const struct sim_trace *trace, const struct line_up *sessions, size_t count,
		       struct turn *running, size_t many, struct sim_request *out)
{
	size_t begun = 0, active = 0, written = 0;

	for (; begun < many && begun < count; begun++)
		running[active++] = first_turn(trace, &sessions[begun], begun, 0);
	while (active > 0) {
		const struct line_up *session;
		struct turn *turn = running;

		for (size_t i = 1; i < active; i++)
			if (earlier(&running[i], turn))
				turn = &running[i];
		session = &sessions[turn->session];

		out[written++] = trace->requests[session->requests[turn->next++]];
		if (turn->next < session->count) {
			turn->at_ms = turn->begun_ms +
				      trace->requests[session->requests[turn->next]].at_ms;
		} else if (begun < count) {
			*turn = first_turn(trace, &sessions[begun], begun, turn->at_ms);
			begun++;
		} else {
			*turn = running[--active];
		}
	}
}

int sim_trace_interleave(struct sim_trace *trace, uint32_t many)
{
	const size_t count = trace->request_count;
	struct line_up *sessions = calloc(count + 1, sizeof(*sessions));
	struct turn *running = calloc(many, sizeof(*running));
	struct sim_request *requests = calloc(count + 1, sizeof(*requests));
	size_t *sorted = calloc(count + 1, sizeof(*sorted));
	int rc = -ENOMEM;

	if (!sessions || !running || !requests || !sorted)
		goto free_all;
	for (size_t i = 0; i < count; i++)
		sorted[i] = i;
	qsort_r(sorted, count, sizeof(*sorted), by_session, trace->requests);
	trace->sessions = (uint32_t)line_up(trace, sorted, sessions);
	take_turns(trace, sessions, trace->sessions, running, many, requests);
	free(trace->requests);
	trace->requests = requests;
	trace->request_capacity = count + 1;
	requests = NULL;
	rc = 0;

free_all:
	free(sorted);
	free(requests);
	free(running);
	free(sessions);
	return rc;
}

void sim_trace_free(struct sim_trace *trace)
{
	free(trace->requests);
	free(trace->runs);
	*trace = (struct sim_trace){ .requests = NULL };
}
