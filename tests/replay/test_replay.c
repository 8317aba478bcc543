/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_bytes.h"
#include "replay_lru.h"
#include "replay_stats.h"
#include "replay_trace.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---------------------------------------------------------------- readers */

/* A reader of these bytes; the file is gone already. */
static struct replay_reader *reader_of(const char *data, size_t bytes, bool skip_bad)
{
	char path[] = "/tmp/kvcellar-replay-XXXXXX";
	int fd = mkstemp(path);
	struct replay_reader *reader;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
	assert_int_equal(replay_reader_open(path, skip_bad, NULL, &reader), 0);
	unlink(path);
	return reader;
}

static struct replay_reader *reader_of_text(const char *text)
{
	return reader_of(text, strlen(text), false);
}

static void expect_pages(const struct replay_request *request, const struct replay_page *pages,
			 size_t count)
{
	struct replay_page found[64];

	assert_int_equal(request->page_count, count);
	replay_request_pages(request, found);
	for (size_t i = 0; i < count; i++) {
		assert_int_equal(found[i].space, pages[i].space);
		assert_int_equal(found[i].id, pages[i].id);
	}
}

static void mooncake_requests_are_read(void **state)
{
	static const struct replay_page pages[] = { { 0, 7 }, { 0, 8 }, { 0, 3 }, { 0, 8 } };
	struct replay_reader *reader = reader_of_text(
		"\n{\"timestamp\": 27000, \"input_length\": 1, \"hash_ids\": [7, 8, 3, 8]}\r\n"
		"{\"timestamp\": 1.5, \"hash_ids\": []}");
	struct replay_request *request;

	(void)state;
	assert_int_equal(replay_reader_detect(reader), 1);
	assert_int_equal(replay_reader_form(reader), REPLAY_FORM_MOONCAKE);
	for (int pass = 0; pass < 2; pass++) {
		assert_int_equal(replay_reader_next(reader, &request), 1);
		expect_pages(request, pages, 4);
		assert_true(request->at_ms == 27000);
		assert_int_equal(request->op, REPLAY_OP_REQUEST);
		assert_int_equal(request->line, 2);
		free(request);
		assert_int_equal(replay_reader_next(reader, &request), 1);
		assert_int_equal(request->page_count, 0);
		free(request);
		assert_int_equal(replay_reader_next(reader, &request), 0);
		assert_int_equal(replay_reader_rewind(reader), 0);
	}
	replay_reader_close(reader);
}

static void compact_requests_are_read(void **state)
{
	static const struct replay_page pages[] = { { 5, 1 }, { 5, 2 }, { 5, 9 } };
	struct replay_reader *reader = reader_of_text("[5,2.5,192,10,[[1,2],[9,1]]]\n"
						      "[6,0,0,0,[]]\n");
	struct replay_request *request;

	(void)state;
	assert_int_equal(replay_reader_next(reader, &request), 1);
	assert_int_equal(replay_reader_form(reader), REPLAY_FORM_COMPACT);
	expect_pages(request, pages, 3);
	assert_true(request->at_ms == 2500);
	assert_int_equal(request->session, 5);
	free(request);
	assert_int_equal(replay_reader_next(reader, &request), 1);
	assert_int_equal(request->page_count, 0);
	free(request);
	replay_reader_close(reader);
}

static void recordings_are_read(void **state)
{
	struct replay_reader *reader = reader_of_text(
		"{\"kvcellar_trace\":1,\"started\":\"2026-01-01T00:00:00Z\"}\n"
		"{\"t_ms\":1.25,\"op\":\"get\",\"pool\":\"kv\",\"thread\":2,\"n\":2,\"ok\":1,"
		"\"keys\":[\"00000000000000ff\",\"fedcba9876543210\"]}\n"
		"{\"dropped\":3}\n"
		"{\"t_ms\":2,\"op\":\"remove\",\"pool\":\"swa\",\"n\":1,\"ok\":1,"
		"\"keys\":[\"00000000000000ff\"]}\n");
	struct replay_request *request, *other;

	(void)state;
	assert_int_equal(replay_reader_next(reader, &request), 1);
	assert_int_equal(replay_reader_form(reader), REPLAY_FORM_RECORDING);
	assert_int_equal(request->op, KVC_GET);
	assert_int_equal(request->session, 2);
	assert_int_equal(request->page_count, 2);
	assert_int_equal(request->runs[0].first.id, 0xff);
	assert_true(request->runs[1].first.id == 0xfedcba9876543210ull);
	assert_int_equal(replay_reader_next(reader, &other), 1);
	assert_int_equal(other->op, KVC_REMOVE);
	/* Pages of another pool are other pages. */
	assert_int_not_equal(other->runs[0].first.space, request->runs[0].first.space);
	assert_int_equal(replay_reader_dropped(reader), 3);
	free(other);
	free(request);
	replay_reader_close(reader);
}

static void malformed_lines_are_named(void **state)
{
	static const struct {
		const char *text;
		const char *cause;
	} rows[] = {
		{ "hello\n", "line 1: not JSON" },
		{ "{\"a\":1}\n", "line 1: neither" },
		{ "{\"timestamp\":1,\"hash_ids\":[1]}\n{\"timestamp\":1,\"hash_ids\":[-1]}\n",
		  "line 2: \"hash_ids\" holds" },
		{ "{\"timestamp\":1,\"hash_ids\":[1]}\n[0,0,0,0,[]]\n", "line 2: no list" },
		{ "{\"timestamp\":\"x\",\"hash_ids\":[1]}\n", "line 1: \"timestamp\"" },
		{ "{\"hash_ids\":[1.5],\"timestamp\":1}\n", "line 1: \"hash_ids\"" },
		{ "[0,0,0,0]\n", "line 1: not [session" },
		{ "[0,0,0,0,[[1]]]\n", "line 1: a run is not" },
		{ "[0,0,0,0,[[1,16777216],[1,1]]]\n", "line 1: more than 16777216 pages" },
		{ "[0,0,0,0,[[1,9223372036854775807]]]\n", "line 1: more than 16777216 pages" },
		{ "[-1,0,0,0,[]]\n", "line 1: the session" },
		{ "{\"kvcellar_trace\":2}\n", "line 1: a recording of another version" },
		{ "{\"kvcellar_trace\":1}\n{\"t_ms\":1,\"op\":\"got\",\"pool\":\"kv\",\"n\":0,"
		  "\"keys\":[]}\n",
		  "line 2: \"op\"" },
		{ "{\"kvcellar_trace\":1}\n{\"t_ms\":1,\"op\":\"get\",\"pool\":\"kv\",\"n\":1,"
		  "\"keys\":[\"00000000000000FF\"]}\n",
		  "line 2: a key is not" },
		{ "{\"kvcellar_trace\":1}\n{\"t_ms\":1,\"op\":\"get\",\"pool\":\"kv\",\"n\":2,"
		  "\"keys\":[]}\n",
		  "line 2: \"n\"" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct replay_reader *reader = reader_of_text(rows[i].text);
		struct replay_request *request;
		int got;

		while ((got = replay_reader_next(reader, &request)) == 1)
			free(request);
		assert_int_equal(got, -EINVAL);
		if (strncmp(replay_reader_error(reader), rows[i].cause, strlen(rows[i].cause)) != 0)
			fail_msg("'%s' instead of '%s'", replay_reader_error(reader),
				 rows[i].cause);
		replay_reader_close(reader);
	}
}

static void bad_lines_can_be_skipped(void **state)
{
	static const char text[] = "junk\n\0{\n[1,0,0,0,[[4,1]]]\n{\"hash_ids\":[]}\n"
				   "[1,0,0,0,[[5,1]]]\n[";
	struct replay_reader *reader = reader_of(text, sizeof(text) - 1, true);
	struct replay_request *request;

	(void)state;
	for (uint64_t id = 4; id <= 5; id++) {
		assert_int_equal(replay_reader_next(reader, &request), 1);
		assert_int_equal(request->runs[0].first.id, id);
		free(request);
	}
	assert_int_equal(replay_reader_next(reader, &request), 0);
	assert_int_equal(replay_reader_bad_lines(reader), 4);
	replay_reader_close(reader);
}

static void an_endless_line_is_an_error(void **state)
{
	size_t bytes = 18u << 20;
	char *data = malloc(bytes);
	struct replay_reader *reader;
	struct replay_request *request;

	(void)state;
	assert_non_null(data);
	memset(data, '[', bytes);
	reader = reader_of(data, bytes, false);
	assert_int_equal(replay_reader_next(reader, &request), -EINVAL);
	assert_string_equal(replay_reader_error(reader), "line 1: longer than 16 MiB");
	replay_reader_close(reader);
	free(data);
}

/* ---------------------------------------------------------------- tier */

static size_t naive_find(const uint64_t *list, size_t count, uint64_t id)
{
	size_t i = 0;

	while (i < count && list[i] != id)
		i++;
	return i;
}

/* The tier against a list that is searched from the front. */
static void the_tier_forgets_the_least_recently_used(void **state)
{
	enum {
		CAPACITY = 37
	};
	struct replay_lru *lru = replay_lru_new(CAPACITY);
	uint64_t list[CAPACITY + 1], random = 12345;
	size_t count = 0;

	(void)state;
	assert_non_null(lru);
	for (int round = 0; round < 5000; round++) {
		struct replay_page pages[8];
		size_t used = 0, hits = 0;

		for (size_t i = 0; i < 8; i++) {
			random = random * 6364136223846793005ull + 1442695040888963407ull;
			pages[i] = (struct replay_page){ 0, (random >> 33) % 60 };
			used = i + 1;
		}
		while (hits < used && naive_find(list, count, pages[hits].id) < count)
			hits++;
		assert_int_equal(replay_lru_prefix(lru, pages, used), hits);
		replay_lru_touch(lru, pages, used);
		for (size_t i = used; i-- > 0;) {
			size_t at = naive_find(list, count, pages[i].id);

			if (at == count && count < CAPACITY)
				count++;
			else if (at == count)
				at = count - 1;
			memmove(list + 1, list, at * sizeof(*list));
			list[0] = pages[i].id;
		}
		assert_int_equal(replay_lru_count(lru), count);
	}
	replay_lru_free(lru);
}

/* ---------------------------------------------------------------- page bytes */

static struct replay_geometry geometry_of(uint32_t layout, uint64_t part_bytes, bool by_head)
{
	struct replay_geometry geometry = {
		.layout = layout,
		.part_count = 2,
		.part_bytes = part_bytes,
		.page_count = 5,
		.page_tokens = 16,
		.by_head = by_head,
	};

	assert_null(replay_geometry_shape(&geometry, by_head ? 2 : 1));
	assert_int_equal(replay_geometry_map(&geometry), 0);
	return geometry;
}

static void every_changed_byte_is_seen(void **state)
{
	static const uint64_t sizes[] = { 1, 7, 8, 13, 4096, 4099 };
	const struct replay_page page = { 3, 4 };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct replay_geometry geometry = geometry_of(KVC_LAYOUT_EXPLICIT, sizes[i], false);

		for (uint64_t slot = 0; slot < 5; slot++) {
			replay_page_fill(&geometry, slot, page);
			assert_int_equal(replay_page_compare(&geometry, slot, page), 0);
		}
		for (uint64_t at = 0; at < sizes[i]; at++) {
			uint8_t *byte = geometry.memory + geometry.part_span_bytes +
					2 * geometry.part_bytes + at;

			*byte ^= 0x10;
			assert_int_equal(replay_page_compare(&geometry, 2, page), 1);
			assert_int_equal(replay_page_compare(&geometry, 1, page), 0);
			assert_int_equal(replay_page_compare(&geometry, 3, page), 0);
			*byte ^= 0x10;
		}
		replay_geometry_unmap(&geometry);
	}
}

/* Bytes of another page, part or rank differ in almost every place. */
static void other_pages_parts_and_ranks_differ(void **state)
{
	struct replay_geometry geometry = geometry_of(KVC_LAYOUT_PAGE_FIRST, 4096, false);
	const struct replay_page page = { 0, 1 };
	const uint64_t most = 2 * 4096, least = most * 9 / 10;

	(void)state;
	replay_page_fill(&geometry, 0, page);
	assert_true(replay_page_compare(&geometry, 0, (struct replay_page){ 0, 2 }) > least);
	assert_true(replay_page_compare(&geometry, 0, (struct replay_page){ 1, 1 }) > least);
	geometry.rank_salt = 1;
	assert_true(replay_page_compare(&geometry, 0, page) > least);
	geometry.rank_salt = 0;
	memcpy(geometry.memory + geometry.part_span_bytes, geometry.memory, 4096);
	assert_true(replay_page_compare(&geometry, 0, page) > least / 2);
	replay_geometry_unmap(&geometry);
}

static void layouts_do_not_overlap(void **state)
{
	static const uint32_t layouts[] = { KVC_LAYOUT_PAGE_FIRST, KVC_LAYOUT_PAGE_FIRST_DIRECT,
					    KVC_LAYOUT_PAGE_HEAD, KVC_LAYOUT_LAYER_FIRST };

	(void)state;
	for (size_t i = 0; i < 8; i++) {
		struct replay_geometry geometry = geometry_of(layouts[i / 2], 4096, i % 2 == 1);
		uint64_t same = 0;

		memset(geometry.memory, 0, replay_geometry_bytes(&geometry));
		for (uint64_t slot = 0; slot < 5; slot++)
			replay_page_fill(&geometry, slot, (struct replay_page){ 0, slot });
		for (uint64_t slot = 0; slot < 5; slot++)
			assert_int_equal(replay_page_compare(&geometry, slot,
							     (struct replay_page){ 0, slot }),
					 0);
		/* Nothing is left out either: zero bytes are as rare as chance has them. */
		for (uint64_t at = 0; at < 5 * 4096; at++)
			same += geometry.memory[at] == 0;
		assert_true(same < 5 * 4096 / 100);
		replay_geometry_unmap(&geometry);
	}
}

/* layer_first holds the same stored bytes as page_first_direct, in another order. */
static void layer_first_gathers_to_page_first_direct(void **state)
{
	struct replay_geometry layers = geometry_of(KVC_LAYOUT_LAYER_FIRST, 4096, false);
	struct replay_geometry pages = geometry_of(KVC_LAYOUT_PAGE_FIRST_DIRECT, 4096, false);
	const struct replay_page page = { 9, 9 };
	uint64_t piece = 4096 / layers.layers;

	(void)state;
	assert_true(layers.layers > 1);
	replay_page_fill(&layers, 3, page);
	replay_page_fill(&pages, 1, page);
	for (uint64_t i = 0; i < layers.layers; i++)
		assert_memory_equal(layers.memory + (i * layers.page_count + 3) * piece,
				    pages.memory + 4096 + i * piece, piece);
	replay_geometry_unmap(&layers);
	replay_geometry_unmap(&pages);
}

/* With head groups, two ranks of tp 2 hold what one rank of tp 1 holds. */
static void head_groups_are_the_same_in_other_tp_sizes(void **state)
{
	struct replay_geometry whole = geometry_of(KVC_LAYOUT_PAGE_HEAD, 8192, true);
	const struct replay_page page = { 1, 2 };

	(void)state;
	assert_true(whole.heads % 2 == 0);
	replay_page_fill(&whole, 0, page);
	for (uint32_t rank = 0; rank < 2; rank++) {
		struct replay_geometry half = whole;

		half.part_bytes /= 2;
		half.heads /= 2;
		half.first_head = rank * half.heads;
		assert_int_equal(replay_geometry_map(&half), 0);
		replay_page_fill(&half, 0, page);
		assert_memory_equal(half.memory, whole.memory + rank * 4096, 4096);
		replay_geometry_unmap(&half);
	}
	replay_geometry_unmap(&whole);
}

static void impossible_shapes_are_refused(void **state)
{
	struct replay_geometry geometry = { .layout = KVC_LAYOUT_PAGE_FIRST,
					    .part_bytes = 100,
					    .page_tokens = 64 };

	(void)state;
	assert_non_null(replay_geometry_shape(&geometry, 1));
	geometry.part_bytes = 64 * 3;
	geometry.layers = 2;
	assert_non_null(replay_geometry_shape(&geometry, 1));
	geometry.layers = 0;
	assert_null(replay_geometry_shape(&geometry, 1));
	geometry.heads = 0;
	assert_non_null(replay_geometry_shape(&geometry, 2));
	geometry.layout = KVC_LAYOUT_EXPLICIT;
	assert_non_null(replay_geometry_shape(&geometry, 2));
	assert_null(replay_geometry_shape(&geometry, 1));
}

static void keys_are_64_different_hex_digits(void **state)
{
	char first[REPLAY_KEY_BYTES], second[REPLAY_KEY_BYTES];

	(void)state;
	replay_page_key((struct replay_page){ 0, 0 }, first);
	for (unsigned i = 0; i < REPLAY_KEY_BYTES; i++)
		assert_non_null(strchr("0123456789abcdef", first[i]));
	replay_page_key((struct replay_page){ 0, 1 }, second);
	assert_memory_not_equal(first, second, 16);
	assert_memory_not_equal(first + 48, second + 48, 16);
	replay_page_key((struct replay_page){ 0, 0 }, second);
	assert_memory_equal(first, second, REPLAY_KEY_BYTES);
}

/* ---------------------------------------------------------------- statistics */

static void quantiles_are_right_within_a_bucket(void **state)
{
	struct stats_latency *latency = calloc(2, sizeof(*latency));

	(void)state;
	assert_non_null(latency);
	assert_true(stats_latency_quantile(latency, 0.5) == 0);
	for (uint64_t ns = 1; ns <= 100000; ns++)
		stats_latency_add(&latency[ns % 2], ns * 10);
	stats_latency_merge(&latency[0], &latency[1]);
	assert_int_equal(latency[0].total, 100000);
	for (double fraction = 0.01; fraction < 1; fraction += 0.01) {
		double value = stats_latency_quantile(&latency[0], fraction);

		assert_true(fabs(value / (fraction * 1e6) - 1) < 0.035);
	}
	assert_true(stats_latency_quantile(&latency[0], 1) == 1e6);
	stats_latency_add(&latency[0], UINT64_MAX);
	assert_int_equal(latency[0].max_ns, UINT64_MAX);
	free(latency);
}

static void buckets_join_without_gaps(void **state)
{
	(void)state;
	for (size_t i = 0; i + 1 < STATS_LATENCY_BUCKETS; i++) {
		assert_true(stats_latency_upper(i) == stats_latency_lower(i + 1));
		assert_true(stats_latency_lower(i) < stats_latency_upper(i));
	}
}

static void a_long_series_loses_nothing(void **state)
{
	struct stats_series *series = calloc(1, sizeof(*series));
	uint64_t sum = 0;

	(void)state;
	assert_non_null(series);
	stats_series_begin(series);
	for (uint64_t i = 0; i < 100000; i++) {
		struct stats_pass one = { .requests = 1, .pages = i };

		stats_series_add(series, (double)i * 0.01, &one);
	}
	assert_true(series->count <= STATS_SERIES_LENGTH);
	assert_true(series->interval_s * STATS_SERIES_LENGTH >= 1000);
	assert_true(series->interval_s * STATS_SERIES_LENGTH < 2000 * 1.3);
	for (size_t i = 0; i < series->count; i++)
		sum += series->intervals[i].requests;
	assert_int_equal(sum, 100000);
	free(series);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mooncake_requests_are_read),
		cmocka_unit_test(compact_requests_are_read),
		cmocka_unit_test(recordings_are_read),
		cmocka_unit_test(malformed_lines_are_named),
		cmocka_unit_test(bad_lines_can_be_skipped),
		cmocka_unit_test(an_endless_line_is_an_error),
		cmocka_unit_test(the_tier_forgets_the_least_recently_used),
		cmocka_unit_test(every_changed_byte_is_seen),
		cmocka_unit_test(other_pages_parts_and_ranks_differ),
		cmocka_unit_test(layouts_do_not_overlap),
		cmocka_unit_test(layer_first_gathers_to_page_first_direct),
		cmocka_unit_test(head_groups_are_the_same_in_other_tp_sizes),
		cmocka_unit_test(impossible_shapes_are_refused),
		cmocka_unit_test(keys_are_64_different_hex_digits),
		cmocka_unit_test(quantiles_are_right_within_a_bucket),
		cmocka_unit_test(buckets_join_without_gaps),
		cmocka_unit_test(a_long_series_loses_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
