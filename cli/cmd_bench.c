/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar bench: speed of set, exists and get of whole batches, cases interleaved. */
#include "cli.h"
#include "replay_bytes.h"
#include "replay_player.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>

#define SIZES_MAX  16u
#define WARM_PAGES 4u
#define OPS	   4u /* KVC_EXISTS, KVC_GET, KVC_SET, EXISTS_FIRST */

/* The first exists after a set, when nothing of it is in the CPU's caches. The figure of exists is
 * that of the calls after it, as a serving engine makes them. */
#define EXISTS_FIRST KVC_REMOVE
#define EXISTS_CALLS 8u

struct bench_options {
	uint64_t part_bytes[SIZES_MAX];
	uint32_t size_count;
	uint32_t parts;
	uint32_t pages;
	uint32_t reps;
	uint32_t threads;
	unsigned ops; /* bit per enum kvc_operation */
	bool warm;
	bool keep;
};

/* One part size: its pool and what was measured with it. */
struct bench_case {
	struct replay_geometry geometry;
	struct kvc_region *region;
	struct kvc_pool *pool;
	uint64_t objects_per_page;
	double *seconds[OPS];
	double *cpu_us[OPS]; /* per object */
};

struct bench {
	struct kvc_cli *cli;
	struct bench_options options;
	struct kvc_namespace *ns;
	struct bench_case cases[SIZES_MAX];
	struct bench_lane *lanes;
	uint32_t pages; /* per call at this moment: few while it warms up */
	uint64_t salt;	/* fresh keys in each run */
};

/* Where threads wait until all are there. */
enum gate_state {
	GATE_WAIT = 0,
	GATE_OPEN = 1,
	GATE_SHUT = 2, /* go home */
};

struct bench_gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum gate_state state;
};

/* What one thread does: the same pages of the host pool in each repetition. */
struct bench_lane {
	pthread_t thread;
	struct bench *bench;
	struct bench_case *one;
	struct bench_gate *gate; /* NULL: the main thread */
	uint32_t op;
	uint32_t number;
	uint64_t begin_ns;
	uint64_t end_ns;
	int error;
	char error_text[256];
	struct replay_page *pages;
	char *key_text;
	struct kvc_key *keys;
	int64_t *indices;
	struct kvc_result *results;
};

enum {
	OPTION_PART_BYTES = 0x200,
	OPTION_PARTS,
	OPTION_PAGES,
	OPTION_REPS,
	OPTION_THREADS,
	OPTION_OPS,
	OPTION_WARM,
	OPTION_KEEP,
};

static const struct argp_option bench_options[] = {
	{ "part-bytes", OPTION_PART_BYTES, "SIZE[,SIZE...]", 0,
	  "Bytes of a part, one case each; default: 256K,1M", 0 },
	{ "parts", OPTION_PARTS, "N", 0, "Parts of a page; default: 2", 0 },
	{ "pages", OPTION_PAGES, "N", 0, "Pages per call; default: 128", 0 },
	{ "reps", OPTION_REPS, "N", 0, "Repetitions of each case; default: 9", 0 },
	{ "threads", OPTION_THREADS, "N", 0, "Threads that call at the same time; default: 1", 0 },
	{ "ops", OPTION_OPS, "LIST", 0, "Which of set,exists,get are shown; default: all", 0 },
	{ "warm", OPTION_WARM, NULL, 0, "First a small repetition of each case that is not counted",
	  0 },
	{ "keep", OPTION_KEEP, NULL, 0, "Do not remove the objects at the end", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static error_t parse_sizes(const char *text, struct bench_options *options)
{
	char *copy = strdup(text), *rest = copy, *one;
	error_t error = copy != NULL ? 0 : ENOMEM;

	options->size_count = 0;
	while (error == 0 && (one = strsep(&rest, ",")) != NULL) {
		uint64_t bytes;

		if (options->size_count == SIZES_MAX) {
			error = cli_argp_error("--part-bytes: more than %u sizes", SIZES_MAX);
			break;
		}
		error = cli_argp_size("--part-bytes", one, &bytes);
		if (error == 0 && (bytes == 0 || bytes > 1ull << 40))
			error = cli_argp_error("--part-bytes: '%s' is not between 1 byte and 1 TiB",
					       one);
		if (error == 0)
			options->part_bytes[options->size_count++] = bytes;
	}
	free(copy);
	return error;
}

static error_t parse_ops(const char *text, unsigned *out)
{
	enum {
		NAMED = 3
	};
	static const char *const names[NAMED] = { "exists", "get", "set" };
	char *copy = strdup(text), *rest = copy, *one;
	error_t error = copy != NULL ? 0 : ENOMEM;
	unsigned ops = 0;

	while (error == 0 && (one = strsep(&rest, ",")) != NULL) {
		unsigned op = 0;

		while (op < NAMED && strcmp(one, names[op]) != 0)
			op++;
		if (op == NAMED)
			error = cli_argp_error("--ops: '%s' is none of set, exists, get", one);
		else
			ops |= 1u << op;
	}
	free(copy);
	if (error == 0)
		*out = ops;
	return error;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
	struct bench_options *options = state->input;

	switch (key) {
	case OPTION_PART_BYTES:
		return parse_sizes(text, options);
	case OPTION_PARTS:
		return cli_argp_u32("--parts", text, 1, 64, &options->parts);
	case OPTION_PAGES:
		return cli_argp_u32("--pages", text, 1, 1u << 20, &options->pages);
	case OPTION_REPS:
		return cli_argp_u32("--reps", text, 1, 10000, &options->reps);
	case OPTION_THREADS:
		return cli_argp_u32("--threads", text, 1, 1024, &options->threads);
	case OPTION_OPS:
		return parse_ops(text, &options->ops);
	case OPTION_WARM:
		options->warm = true;
		return 0;
	case OPTION_KEEP:
		options->keep = true;
		return 0;
	case ARGP_KEY_ARG:
		return cli_argp_error("unexpected argument '%s'", text);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp bench_argp = {
	.options = bench_options,
	.parser = parse_option,
	.doc = "Measures set, exists and get of batches of pages with fresh keys in the configured "
	       "store. Cases are interleaved; each repetition writes new objects, finds them, "
	       "reads them back and compares every byte; all are removed at the end.\v"
	       "Shown are the median, the median absolute deviation, 10^9 bytes per second, and "
	       "CPU time of the whole process per object. exists_first is the call that follows "
	       "the set, with cold caches; exists the median of 8 more. bench/run.sh compares "
	       "with fio.",
};

/* ---------------------------------------------------------------- one operation of all lanes */

static void prepare_lane(struct bench_lane *lane, struct bench_case *one, uint64_t round)
{
	const struct bench *bench = lane->bench;
	uint32_t pages = bench->options.pages;

	lane->one = one;
	for (uint32_t i = 0; i < bench->pages; i++) {
		uint64_t number = (round * bench->options.threads + lane->number) * pages + i;
		char *text = lane->key_text + (size_t)i * REPLAY_KEY_BYTES;

		lane->pages[i].space = bench->salt + (uint64_t)(one - bench->cases);
		lane->pages[i].id = number;
		lane->indices[i] = (int64_t)lane->number * pages + i;
		replay_page_key(lane->pages[i], text);
		lane->keys[i] = (struct kvc_key){ .data = text, .bytes = REPLAY_KEY_BYTES };
	}
}

/* Every page must end OK: the error text otherwise. */
static void check_results(struct bench_lane *lane)
{
	for (uint32_t i = 0; i < lane->bench->pages && lane->error == 0; i++) {
		const struct kvc_result *result = &lane->results[i];

		if (result->status == KVC_OK)
			continue;
		lane->error = -cli_exit_of_result(result);
		snprintf(lane->error_text, sizeof(lane->error_text), "page %.*s: %s/%s%s%s",
			 (int)REPLAY_KEY_BYTES, (const char *)lane->keys[i].data,
			 kvc_status_name(result->status), kvc_cause_name(result->cause),
			 result->error != 0 ? ": " : "",
			 result->error != 0 ? strerrordesc_np(result->error) : "");
	}
}

static bool wait_gate(struct bench_gate *gate)
{
	bool open;

	pthread_mutex_lock(&gate->lock);
	while (gate->state == GATE_WAIT)
		pthread_cond_wait(&gate->changed, &gate->lock);
	open = gate->state == GATE_OPEN;
	pthread_mutex_unlock(&gate->lock);
	return open;
}

/* lane->error is the negative exit code. */
static void run_lane(struct bench_lane *lane)
{
	bool moves = lane->op == KVC_GET || lane->op == KVC_SET;
	struct kvc_transfer transfer = {
		.size = sizeof(transfer),
		.op = lane->op,
		.flags = lane->op == KVC_EXISTS ? KVC_TRANSFER_STOP_AT_MISS : 0,
		.pool = lane->one->pool,
		.keys = lane->keys,
		.key_count = lane->bench->pages,
		.indices = moves ? lane->indices : NULL,
		.results = lane->results,
	};
	int error;

	if (lane->gate != NULL && !wait_gate(lane->gate))
		return;
	lane->begin_ns = replay_now_ns();
	error = kvc_batch_run(lane->bench->cli->store, &transfer, 1);
	lane->end_ns = replay_now_ns();
	lane->error = 0;
	if (error < 0) {
		lane->error = -cli_exit_of_errno(error);
		snprintf(lane->error_text, sizeof(lane->error_text), "%s", kvc_last_error());
	}
}

static void *lane_main(void *argument)
{
	run_lane(argument);
	return NULL;
}

static double process_cpu_us(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Starts the other lanes and lets them go: 0 or an exit code. When a thread cannot be started, the
 * waiting ones end without having called. */
static int start_lanes(struct bench *bench, struct bench_gate *gate)
{
	uint32_t started = 1, threads = bench->options.threads;

	while (started < threads) {
		struct bench_lane *lane = &bench->lanes[started];

		lane->gate = gate;
		if (pthread_create(&lane->thread, NULL, lane_main, lane) != 0)
			break;
		started++;
	}
	pthread_mutex_lock(&gate->lock);
	gate->state = started == threads ? GATE_OPEN : GATE_SHUT;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
	if (started == threads)
		return 0;
	for (uint32_t i = 1; i < started; i++)
		pthread_join(bench->lanes[i].thread, NULL);
	return cli_error(bench->cli, CLI_IO, "bench: only %u of %u threads could be started",
			 started, threads);
}

/* Runs op in every lane at the same time: 0 or an exit code. seconds: first start to last end. */
static int run_op(struct bench *bench, uint32_t op, double *seconds, double *cpu_us)
{
	uint32_t threads = bench->options.threads;
	struct bench_gate gate = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
	};
	uint64_t begin_ns = UINT64_MAX, end_ns = 0;
	int rc;

	for (uint32_t i = 0; i < threads; i++)
		bench->lanes[i].op = op;
	*cpu_us = process_cpu_us();
	rc = start_lanes(bench, &gate);
	if (rc != 0)
		return rc;
	run_lane(&bench->lanes[0]);
	for (uint32_t i = 1; i < threads; i++)
		pthread_join(bench->lanes[i].thread, NULL);
	*cpu_us = process_cpu_us() - *cpu_us;
	for (uint32_t i = 0; i < threads; i++) {
		struct bench_lane *lane = &bench->lanes[i];

		begin_ns = lane->begin_ns < begin_ns ? lane->begin_ns : begin_ns;
		end_ns = lane->end_ns > end_ns ? lane->end_ns : end_ns;
		if (lane->error == 0 && op != KVC_REMOVE)
			check_results(lane);
		if (lane->error != 0 && rc == 0)
			rc = cli_error(bench->cli, -lane->error, "bench: %s", lane->error_text);
	}
	*seconds = (double)(end_ns - begin_ns) / 1e9;
	return rc;
}

static int compare_doubles(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return a < b ? -1 : a > b;
}

/* Sorts the values. */
static double median_of(double *values, uint32_t count)
{
	qsort(values, count, sizeof(*values), compare_doubles);
	return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* ---------------------------------------------------------------- repetitions */

static void fill_lanes(struct bench *bench, struct bench_case *one)
{
	for (uint32_t i = 0; i < bench->options.threads; i++)
		for (uint32_t k = 0; k < bench->pages; k++)
			replay_page_fill(&one->geometry, (uint64_t)bench->lanes[i].indices[k],
					 bench->lanes[i].pages[k]);
}

static int compare_lanes(struct bench *bench, struct bench_case *one)
{
	uint64_t wrong = 0;

	for (uint32_t i = 0; i < bench->options.threads; i++)
		for (uint32_t k = 0; k < bench->pages; k++)
			wrong += replay_page_compare(&one->geometry,
						     (uint64_t)bench->lanes[i].indices[k],
						     bench->lanes[i].pages[k]);
	if (wrong == 0)
		return 0;
	return cli_error(bench->cli, CLI_WRONG, "bench: get brought %" PRIu64 " wrong bytes",
			 wrong);
}

/* Medians of several calls. */
static int repeat_exists(struct bench *bench, double *seconds, double *cpu_us)
{
	double all_seconds[EXISTS_CALLS], all_cpu_us[EXISTS_CALLS];

	for (uint32_t i = 0; i < EXISTS_CALLS; i++) {
		const int rc = run_op(bench, KVC_EXISTS, &all_seconds[i], &all_cpu_us[i]);

		if (rc != 0)
			return rc;
	}
	*seconds = median_of(all_seconds, EXISTS_CALLS);
	*cpu_us = median_of(all_cpu_us, EXISTS_CALLS);
	return 0;
}

/* One repetition of one case; rep < 0: not counted. */
static int run_rep(struct bench *bench, struct bench_case *one, int rep)
{
	static const uint32_t order[] = { KVC_SET, KVC_EXISTS, KVC_GET };
	uint64_t objects = one->objects_per_page * bench->options.pages * bench->options.threads;

	bench->pages = bench->options.pages;
	if (rep < 0 && bench->pages > WARM_PAGES)
		bench->pages = WARM_PAGES;
	for (uint32_t i = 0; i < bench->options.threads; i++)
		prepare_lane(&bench->lanes[i], one, (uint64_t)(rep + 1));
	fill_lanes(bench, one);
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		uint32_t op = order[i];
		double seconds, cpu_us;
		int rc;

		if (op != KVC_SET && (bench->options.ops & 1u << op) == 0)
			continue;
		if (op == KVC_GET)
			memset(one->geometry.memory, 0xaa,
			       (size_t)replay_geometry_bytes(&one->geometry));
		rc = run_op(bench, op, &seconds, &cpu_us);
		if (rc == 0 && op == KVC_EXISTS && rep >= 0) {
			one->seconds[EXISTS_FIRST][rep] = seconds;
			one->cpu_us[EXISTS_FIRST][rep] = cpu_us / (double)objects;
			rc = repeat_exists(bench, &seconds, &cpu_us);
		}
		if (rc == 0 && op == KVC_GET)
			rc = compare_lanes(bench, one);
		if (rc != 0)
			return rc;
		if (rep < 0)
			continue;
		one->seconds[op][rep] = seconds;
		one->cpu_us[op][rep] = cpu_us / (double)objects;
	}
	return 0;
}

static int run_all(struct bench *bench)
{
	struct cli_progress progress;
	int first = bench->options.warm ? -1 : 0, rc = 0;

	cli_progress_begin(bench->cli, &progress, "bench",
			   (uint64_t)bench->options.reps * bench->options.size_count,
			   CLI_UNIT_COUNT);
	for (int rep = first; rep < (int)bench->options.reps && rc == 0; rep++) {
		for (uint32_t i = 0; i < bench->options.size_count && rc == 0; i++) {
			rc = cli_interrupted() ? CLI_INTERRUPTED :
						 run_rep(bench, &bench->cases[i], rep);
			if (rep >= 0)
				cli_progress_update(&progress,
						    (uint64_t)rep * bench->options.size_count + i +
							    1);
		}
	}
	cli_progress_end(&progress);
	return rc;
}

/* Removes whatever the repetitions stored, as far as it goes. */
static void remove_all(struct bench *bench)
{
	bench->pages = bench->options.pages;
	for (uint32_t i = 0; i < bench->options.size_count; i++) {
		for (uint64_t round = 0; round <= bench->options.reps; round++) {
			double seconds, cpu_us;

			for (uint32_t k = 0; k < bench->options.threads; k++)
				prepare_lane(&bench->lanes[k], &bench->cases[i], round);
			if (run_op(bench, KVC_REMOVE, &seconds, &cpu_us) != 0)
				return;
		}
	}
}

/* ---------------------------------------------------------------- set-up */

static int open_case(struct bench *bench, struct bench_case *one, uint64_t part_bytes)
{
	const struct bench_options *options = &bench->options;
	struct kvc_cli *cli = bench->cli;
	struct replay_geometry *geometry = &one->geometry;
	struct kvc_part parts[64];
	struct kvc_pool_params params = {
		.size = sizeof(params),
		.name = "bench",
		.parts = parts,
		.part_count = options->parts,
		.host_layout = KVC_LAYOUT_EXPLICIT,
		.page_count = (uint64_t)options->pages * options->threads,
	};
	struct kvc_memory memory = { .size = sizeof(memory), .kind = KVC_MEMORY_HOST };
	struct kvc_pool_info info = { .size = sizeof(info) };
	int error;

	geometry->layout = KVC_LAYOUT_EXPLICIT;
	geometry->part_count = options->parts;
	geometry->part_bytes = part_bytes;
	geometry->page_count = params.page_count;
	geometry->page_tokens = 1;
	if (replay_geometry_map(geometry) != 0)
		return cli_fail_errno(cli, -ENOMEM, "host pool of %" PRIu64 " pages",
				      params.page_count);
	memory.addr = geometry->memory;
	memory.bytes = replay_geometry_bytes(geometry);
	error = kvc_memory_register(cli->store, &memory, &one->region);
	if (error < 0)
		return cli_fail(cli, error, "memory of the host pool");
	replay_geometry_parts(geometry, parts);
	error = kvc_pool_open(bench->ns, &params, &one->pool);
	if (error == 0)
		error = kvc_pool_query(one->pool, &info);
	if (error < 0)
		return cli_fail(cli, error, "pool");
	one->objects_per_page = info.objects_per_page;
	for (unsigned op = 0; op < OPS; op++) {
		one->seconds[op] = calloc(options->reps, sizeof(double));
		one->cpu_us[op] = calloc(options->reps, sizeof(double));
		if (one->seconds[op] == NULL || one->cpu_us[op] == NULL)
			return cli_fail_errno(cli, -ENOMEM, "bench");
	}
	return 0;
}

static int open_lanes(struct bench *bench)
{
	uint32_t pages = bench->options.pages;

	bench->lanes = calloc(bench->options.threads, sizeof(*bench->lanes));
	if (bench->lanes == NULL)
		return cli_fail_errno(bench->cli, -ENOMEM, "bench");
	for (uint32_t i = 0; i < bench->options.threads; i++) {
		struct bench_lane *lane = &bench->lanes[i];

		lane->bench = bench;
		lane->number = i;
		lane->pages = calloc(pages, sizeof(*lane->pages));
		lane->key_text = calloc(pages, REPLAY_KEY_BYTES);
		lane->keys = calloc(pages, sizeof(*lane->keys));
		lane->indices = calloc(pages, sizeof(*lane->indices));
		lane->results = calloc(pages, sizeof(*lane->results));
		if (lane->pages == NULL || lane->key_text == NULL || lane->keys == NULL ||
		    lane->indices == NULL || lane->results == NULL)
			return cli_fail_errno(bench->cli, -ENOMEM, "bench");
	}
	return 0;
}

static int set_up(struct bench *bench)
{
	struct kvc_cli *cli = bench->cli;
	int rc = cli_store_open(cli, 0);

	if (rc != 0)
		return rc;
	rc = cli_namespace_open(cli, &bench->ns);
	if (rc != 0)
		return rc;
	if (getrandom(&bench->salt, sizeof(bench->salt), 0) != (ssize_t)sizeof(bench->salt))
		return cli_fail_errno(cli, -errno, "random numbers");
	rc = open_lanes(bench);
	for (uint32_t i = 0; i < bench->options.size_count && rc == 0; i++)
		rc = open_case(bench, &bench->cases[i], bench->options.part_bytes[i]);
	return rc;
}

static void tear_down(struct bench *bench)
{
	for (uint32_t i = 0; i < bench->options.size_count; i++) {
		struct bench_case *one = &bench->cases[i];

		(void)kvc_pool_close(one->pool);
		(void)kvc_memory_deregister(one->region);
		replay_geometry_unmap(&one->geometry);
		for (unsigned op = 0; op < OPS; op++) {
			free(one->seconds[op]);
			free(one->cpu_us[op]);
		}
	}
	for (uint32_t i = 0; bench->lanes != NULL && i < bench->options.threads; i++) {
		struct bench_lane *lane = &bench->lanes[i];

		free(lane->results);
		free(lane->indices);
		free(lane->keys);
		free(lane->key_text);
		free(lane->pages);
	}
	free(bench->lanes);
}

/* ---------------------------------------------------------------- results */

/* Median absolute deviation of values in place. */
static double deviation_of(double *values, uint32_t count, double median)
{
	for (uint32_t i = 0; i < count; i++)
		values[i] = fabs(values[i] - median);
	return median_of(values, count);
}

static json_t *samples_json(const double *values, uint32_t count)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < count; i++)
		json_array_append_new(list, json_real(values[i]));
	return list;
}

/* One line, or one entry of the JSON list. */
static void show_case(struct bench *bench, struct bench_case *one, unsigned op, json_t *list)
{
	static const char *const names[OPS] = { "exists", "get", "set", "exists_first" };
	uint32_t reps = bench->options.reps;
	json_t *samples = list != NULL ? samples_json(one->seconds[op], reps) : NULL;
	double seconds = median_of(one->seconds[op], reps);
	double deviation = deviation_of(one->seconds[op], reps, seconds);
	double cpu_us = median_of(one->cpu_us[op], reps);
	double rate = 0;
	char size[CLI_FORMAT_BYTES], rate_text[32] = "";

	if (op != KVC_EXISTS && op != EXISTS_FIRST) {
		rate = (double)(one->geometry.part_bytes * one->geometry.part_count *
				one->geometry.page_count) /
		       seconds / 1e9;
		snprintf(rate_text, sizeof(rate_text), "%.2f", rate);
	}
	if (list != NULL) {
		json_array_append_new(
			list,
			json_pack("{s:s,s:I,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:o}", "op", names[op],
				  "part_bytes", (json_int_t)one->geometry.part_bytes, "parts",
				  (int)bench->options.parts, "pages", (int)bench->options.pages,
				  "threads", (int)bench->options.threads, "median_us",
				  seconds * 1e6, "mad_us", deviation * 1e6, "gb_per_s", rate,
				  "cpu_us_per_object", cpu_us, "seconds", samples));
		return;
	}
	printf("%-12s %11s x %-2u %12.1f %10.1f %8s %14.1f\n", names[op],
	       cli_format_size(size, one->geometry.part_bytes), bench->options.parts, seconds * 1e6,
	       deviation * 1e6, rate_text, cpu_us);
}

static int show(struct bench *bench)
{
	static const uint32_t order[] = { KVC_SET, EXISTS_FIRST, KVC_EXISTS, KVC_GET };
	struct kvc_cli *cli = bench->cli;
	json_t *list = cli->json ? json_array() : NULL;

	if (list == NULL)
		printf("%s%u pages a call, %u threads, %u repetitions%s\n%-12s %16s %12s %10s %8s "
		       "%14s\n",
		       cli_bold(cli), bench->options.pages, bench->options.threads,
		       bench->options.reps, cli_plain(cli), "", "parts", "median us", "MAD us",
		       "GB/s", "CPU us/object");
	for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++)
		for (uint32_t i = 0; i < bench->options.size_count; i++)
			if ((bench->options.ops &
			     1u << (order[k] == EXISTS_FIRST ? KVC_EXISTS : order[k])) != 0)
				show_case(bench, &bench->cases[i], order[k], list);
	return list != NULL ? cli_json_print(cli, json_pack("{s:o}", "cases", list)) : 0;
}

int kvc_cmd_bench(struct kvc_cli *cli, int argc, char **argv)
{
	struct bench *bench = calloc(1, sizeof(*bench));
	int rc;

	if (bench == NULL)
		return cli_fail_errno(cli, -ENOMEM, "bench");
	bench->cli = cli;
	bench->options = (struct bench_options){
		.part_bytes = { 256u << 10, 1u << 20 },
		.size_count = 2,
		.parts = 2,
		.pages = 128,
		.reps = 9,
		.threads = 1,
		.ops = 1u << KVC_SET | 1u << KVC_EXISTS | 1u << KVC_GET,
	};
	rc = cli_parse(cli, &bench_argp, CLI_WITH_NAMESPACE, argc, argv, &bench->options);
	if (rc == 0)
		rc = set_up(bench);
	if (rc == 0) {
		rc = run_all(bench);
		if (!bench->options.keep)
			remove_all(bench);
		if (rc == 0)
			rc = show(bench);
	}
	tear_down(bench);
	free(bench);
	return rc;
}
