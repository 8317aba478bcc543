/* SPDX-License-Identifier: Apache-2.0 */
/* What `kvcellar simulate` is made of: which page goes, worked out by hand, and the traces. */
#include "simulate_cache.h"
#include "simulate_trace.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SPAN 4096u

static struct sim_cache *cache_of(const char *policy_name, bool exact, uint32_t capacity)
{
	struct sim_policy policy;
	struct sim_cache *cache;

	assert_true(sim_policy_of(policy_name, exact, &policy));
	cache = sim_cache_new(&policy, capacity, SPAN, 0, 1);
	assert_non_null(cache);
	return cache;
}

static void act(struct sim_cache *cache, enum sim_action action, uint32_t first, uint32_t count)
{
	const struct sim_request request = {
		.run_count = 1,
		.page_count = count,
		.action = (uint8_t)action,
	};
	const struct sim_run run = { first, count };

	assert_int_equal(sim_cache_play(cache, &request, &run), 0);
}

static void ask(struct sim_cache *cache, uint32_t first, uint32_t count)
{
	act(cache, SIM_REQUEST, first, count);
}

/* Those of pages [0, count) that are there, as "1 3 4". */
static void expect_there(const struct sim_cache *cache, uint32_t count, const char *expected)
{
	char found[256] = "";

	for (uint32_t page = 0; page < count; page++) {
		const size_t used = strlen(found);

		if (sim_cache_has(cache, page))
			(void)snprintf(found + used, sizeof(found) - used, "%s%u", used ? " " : "",
				       page);
	}
	assert_string_equal(found, expected);
}

static void lru_lets_go_what_was_used_least_recently(void **state)
{
	struct sim_cache *cache = cache_of("lru", true, 3);

	(void)state;
	ask(cache, 1, 1);
	ask(cache, 2, 1);
	ask(cache, 3, 1);
	ask(cache, 1, 1);
	ask(cache, 4, 1);
	expect_there(cache, 10, "1 3 4");
	ask(cache, 3, 1);
	ask(cache, 2, 1);
	expect_there(cache, 10, "2 3 4");
	assert_int_equal(sim_cache_counts(cache)->hits, 2);
	assert_int_equal(sim_cache_counts(cache)->recomputed, 1);
	assert_int_equal(sim_cache_counts(cache)->stored, 5);
	assert_int_equal(sim_cache_counts(cache)->evicted, 2);
	sim_cache_free(cache);
}

static void fifo_lets_go_what_was_stored_first(void **state)
{
	struct sim_cache *cache = cache_of("fifo", true, 3);

	(void)state;
	ask(cache, 1, 1);
	ask(cache, 2, 1);
	ask(cache, 3, 1);
	ask(cache, 1, 1);
	ask(cache, 4, 1);
	expect_there(cache, 10, "2 3 4");
	sim_cache_free(cache);
}

/* 1 was used while new and stays; 2 goes; when it comes back, it is no new one. */
static void s3fifo_lets_go_what_was_not_used_again(void **state)
{
	struct sim_cache *cache = cache_of("s3fifo", true, 10);

	(void)state;
	for (uint32_t page = 1; page <= 10; page++)
		ask(cache, page, 1);
	ask(cache, 1, 1);
	ask(cache, 11, 1);
	expect_there(cache, 20, "1 3 4 5 6 7 8 9 10 11");
	ask(cache, 2, 1);
	expect_there(cache, 20, "1 2 4 5 6 7 8 9 10 11");
	assert_int_equal(sim_cache_counts(cache)->returned, 1);
	/* Eight new ones are more than a tenth: they go, 4 to 11, and not 1 and 2. */
	for (uint32_t page = 21; page <= 28; page++)
		ask(cache, page, 1);
	expect_there(cache, 30, "1 2 21 22 23 24 25 26 27 28");
	sim_cache_free(cache);
}

/* A chain goes from its end. */
static void the_end_of_a_prefix_goes_first(void **state)
{
	static const char *const names[] = { "lru", "fifo", "s3fifo" };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct sim_cache *cache = cache_of(names[i], true, 5);

		ask(cache, 1, 5);
		ask(cache, 9, 2);
		expect_there(cache, 20, "1 2 3 9 10");
		ask(cache, 1, 5);
		assert_int_equal(sim_cache_counts(cache)->hits, 3);
		sim_cache_free(cache);
	}
}

/* HiCacheNixl: nothing below the capacity; at it down to below 70/80, which are 350 of 400, by 50
 * pages at a time; the first page of a call is the oldest one; reads do not count. */
static void the_reference_goes_by_the_time_of_writing(void **state)
{
	struct sim_cache *cache = cache_of(SIM_REFERENCE, false, 400);

	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		ask(cache, 100 * i, 100);
	assert_int_equal(sim_cache_counts(cache)->evicted, 0);
	ask(cache, 0, 100);
	assert_int_equal(sim_cache_counts(cache)->hits, 100);
	ask(cache, 1000, 1);
	assert_int_equal(sim_cache_counts(cache)->evicted, 100);
	for (uint32_t page = 0; page < 400; page++)
		assert_int_equal(sim_cache_has(cache, page), page >= 100);
	assert_int_equal(sim_cache_counts(cache)->most, 400);
	sim_cache_free(cache);
}

static void only_the_leading_pages_are_hits(void **state)
{
	struct sim_cache *cache = cache_of("lru", true, 100);

	(void)state;
	ask(cache, 10, 5);
	act(cache, SIM_REMOVE, 12, 1);
	assert_false(sim_cache_has(cache, 12));
	ask(cache, 10, 5);
	assert_int_equal(sim_cache_counts(cache)->hits, 2);
	assert_int_equal(sim_cache_counts(cache)->recomputed, 3);
	assert_true(sim_cache_has(cache, 12));
	sim_cache_free(cache);
}

/* With the same capacity there are never more pages than that, and a reserve is kept free. */
static void candidates_keep_within_the_capacity(void **state)
{
	static const char *const names[] = { "lru", "fifo", "s3fifo" };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		struct sim_cache *cache = cache_of(names[i], false, 200);
		const struct sim_counts *counts = sim_cache_counts(cache);

		for (uint32_t n = 0; n < 2000; n++)
			ask(cache, n * 7 % 3000, 1 + n % 20);
		assert_in_range(counts->most, 180, 200);
		assert_true(counts->evicted > 1000);
		assert_in_range(counts->stored - counts->evicted, 180, 200);
		sim_cache_free(cache);
	}
}

/* ---------------------------------------------------------------- traces */

static void read_text(const char *text, struct sim_trace *out)
{
	char path[] = "/tmp/kvcellar-simulate-XXXXXX";
	const int fd = mkstemp(path);
	struct replay_reader *reader;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	assert_int_equal(replay_reader_open(path, false, NULL, &reader), 0);
	unlink(path);
	assert_int_equal(replay_reader_detect(reader), 1);
	assert_int_equal(sim_trace_read(reader, 0, out), 0);
	replay_reader_close(reader);
}

static void pages_of_sessions_are_others(void **state)
{
	struct sim_trace trace;

	(void)state;
	read_text("[1,0,0,0,[[60,10],[60,10]]]\n[2,0,0,0,[[60,10]]]\n[1,1,0,0,[[65,1]]]\n", &trace);
	assert_int_equal(trace.distinct, 20);
	assert_int_equal(trace.pages, 31);
	assert_int_equal(trace.asked, 3);
	/* 65 lies in the second block of its session. */
	assert_int_equal(trace.runs[trace.requests[2].first_run].first,
			 trace.runs[trace.requests[0].first_run].first + 5);
	sim_trace_free(&trace);
}

static void expect_order(const struct sim_trace *trace, const char *expected)
{
	char found[128] = "";

	for (size_t i = 0; i < trace->request_count; i++) {
		const size_t used = strlen(found);

		(void)snprintf(found + used, sizeof(found) - used, "%s%u@%g", used ? " " : "",
			       (unsigned)trace->requests[i].session,
			       trace->requests[i].at_ms / 1000);
	}
	assert_string_equal(found, expected);
}

/* Times are those in the session; the third begins when one of the first two has ended. */
static void sessions_run_side_by_side(void **state)
{
	static const char text[] = "[7,0,0,0,[[1,1]]]\n[7,10,0,0,[[1,1]]]\n[7,20,0,0,[[1,1]]]\n"
				   "[5,0,0,0,[[1,1]]]\n[5,4,0,0,[[1,1]]]\n"
				   "[6,0,0,0,[[1,1]]]\n[6,3,0,0,[[1,1]]]\n";
	struct sim_trace trace;

	(void)state;
	read_text(text, &trace);
	assert_int_equal(sim_trace_interleave(&trace, 2), 0);
	assert_int_equal(trace.sessions, 3);
	expect_order(&trace, "7@0 5@0 5@4 6@0 6@3 7@10 7@20");
	sim_trace_free(&trace);
	read_text(text, &trace);
	assert_int_equal(sim_trace_interleave(&trace, 1), 0);
	expect_order(&trace, "7@0 7@10 7@20 5@0 5@4 6@0 6@3");
	sim_trace_free(&trace);
}

#define HEAD \
	"{\"kvcellar_trace\":1,\"started\":\"2026-01-31T12:00:00Z\",\"key_hash\":\"blake2b-64\"}\n"

/* What was looked for counts, whether or not it was there then. */
static void a_recording_asks_by_exists(void **state)
{
	struct sim_trace trace;

	(void)state;
	read_text(HEAD "{\"t_ms\":1,\"op\":\"exists\",\"pool\":\"kv\",\"n\":2,\"ok\":0,"
		       "\"keys\":[\"0000000000000001\",\"0000000000000002\"]}\n"
		       "{\"t_ms\":2,\"op\":\"set\",\"pool\":\"kv\",\"n\":1,\"ok\":1,"
		       "\"keys\":[\"0000000000000001\"]}\n",
		  &trace);
	assert_int_equal(trace.asked, 1);
	assert_int_equal(trace.pages, 2);
	assert_int_equal(trace.distinct, 2);
	assert_int_equal(trace.requests[1].action, SIM_LOAD);
	sim_trace_free(&trace);
}

static void a_recording_without_exists_asks_by_gets(void **state)
{
	struct sim_trace trace;

	(void)state;
	read_text(HEAD "{\"t_ms\":2,\"op\":\"set\",\"pool\":\"kv\",\"n\":1,\"ok\":1,"
		       "\"keys\":[\"0000000000000001\"]}\n"
		       "{\"t_ms\":3,\"op\":\"get\",\"pool\":\"kv\",\"n\":1,\"ok\":1,"
		       "\"keys\":[\"0000000000000001\"]}\n",
		  &trace);
	assert_int_equal(trace.asked, 1);
	assert_int_equal(trace.requests[0].action, SIM_LOAD);
	assert_int_equal(trace.requests[1].action, SIM_REQUEST);
	sim_trace_free(&trace);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lru_lets_go_what_was_used_least_recently),
		cmocka_unit_test(fifo_lets_go_what_was_stored_first),
		cmocka_unit_test(s3fifo_lets_go_what_was_not_used_again),
		cmocka_unit_test(the_end_of_a_prefix_goes_first),
		cmocka_unit_test(the_reference_goes_by_the_time_of_writing),
		cmocka_unit_test(only_the_leading_pages_are_hits),
		cmocka_unit_test(candidates_keep_within_the_capacity),
		cmocka_unit_test(pages_of_sessions_are_others),
		cmocka_unit_test(sessions_run_side_by_side),
		cmocka_unit_test(a_recording_asks_by_exists),
		cmocka_unit_test(a_recording_without_exists_asks_by_gets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
