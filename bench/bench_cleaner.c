/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads beside a writer that never stops: once with room for all of it, once in a root that is full
 * and evicts as much as is written. Tells how long reads take in both, the most bytes that the full
 * root held, and whether a set ever found no room.
 */
#include "common.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BATCH	    32u
#define HOT_BATCHES 16u /* that are read over and over */
#define SAMPLES_MAX 4000000u
#define ROUNDS_MAX  32u
#define PAGE_TOKENS 64u

struct options {
	const char *folder;
	const char *layout;
	const char *direct;
	uint64_t capacity_bytes;
	uint64_t page_bytes;
	double seconds;
	unsigned rounds;
};

enum phase {
	ROOM, /* nothing is evicted */
	FULL, /* as much as is written */
	PHASES
};

static const char *const phase_names[] = { [ROOM] = "with room", [FULL] = "full" };

/* One store with its pages. */
struct side {
	char folder[512];
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct kvc_pool *pool;
	char *memory;
	char (*keys)[BENCH_KEY_BYTES];
	uint64_t written; /* pages, so far; the hot ones first */
};

struct tally {
	double *read_ms;
	uint32_t reads;
	uint64_t read_misses; /* pages */
	uint64_t sets;
	uint64_t full;
	uint64_t failed;
	uint64_t most_bytes;
	double write_s;
};

static atomic_bool stop;

static void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)fputs("bench_cleaner: ", stderr);
	(void)vfprintf(stderr, format, args);
	(void)fputc('\n', stderr);
	va_end(args);
	exit(1);
}

/* ---------------------------------------------------------------- store */

static void config_set(struct kvc_config *config, const char *path, const char *value)
{
	if (kvc_config_set(config, path, value) < 0)
		die("%s = %s: %s", path, value, kvc_last_error());
}

static void store_open(struct side *side, const struct options *options, uint64_t capacity)
{
	struct kvc_config *config = NULL;
	char bytes[32];

	if (kvc_config_new(&config) < 0)
		die("%s", kvc_last_error());
	(void)snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)capacity);
	config_set(config, "storage_dirs", side->folder);
	config_set(config, "plugin.posix.active", "true");
	config_set(config, "storage_layout", options->layout);
	config_set(config, "use_direct_io", options->direct);
	config_set(config, "capacity", bytes);
	config_set(config, "l3_cleaner_high_watermark", "99");
	config_set(config, "identity", "bench");
	if (kvc_store_open(config, NULL, &side->store) < 0)
		die("%s: %s", side->folder, kvc_last_error());
	kvc_config_free(config);
}

/* Pages 0 to BATCH of the pool are written from, those behind them read into. */
static void side_open(struct side *side, const struct options *options, uint64_t capacity)
{
	const uint64_t pages = 2 * BATCH;
	struct kvc_namespace_params ns = {
		.size = sizeof(ns),
		.model_id = "bench/cleaner",
		.dtype = "bfloat16",
		.page_tokens = PAGE_TOKENS,
	};
	struct kvc_part part = {
		.size = sizeof(part),
		.token_count = pages * PAGE_TOKENS,
		.layer_count = 1,
		.head_count = 1,
		.head_bytes = (uint32_t)(options->page_bytes / PAGE_TOKENS),
	};
	struct kvc_pool_params pool = {
		.size = sizeof(pool),
		.name = "kv",
		.parts = &part,
		.part_count = 1,
		.host_layout = KVC_LAYOUT_PAGE_FIRST,
		.page_count = pages,
	};

	if (mkdir(side->folder, 0700) != 0)
		die("%s: %s", side->folder, strerror(errno));
	side->memory = aligned_alloc(4096, pages * options->page_bytes);
	side->keys = calloc(2 * BATCH, sizeof(*side->keys));
	if (!side->memory || !side->keys)
		die("no memory");
	memset(side->memory, 0x5a, pages * options->page_bytes);
	part.base = side->memory;
	store_open(side, options, capacity);
	if (kvc_namespace_open(side->store, &ns, &side->ns) < 0 ||
	    kvc_pool_open(side->ns, &pool, &side->pool) < 0)
		die("%s", kvc_last_error());
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static void side_close(struct side *side)
{
	(void)kvc_pool_close(side->pool);
	(void)kvc_namespace_close(side->ns);
	(void)kvc_store_close(side->store);
	free(side->keys);
	free(side->memory);
	(void)nftw(side->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Pages [first, first + BATCH), from or to the pool's pages from `at` on. */
static void move(struct side *side, uint32_t op, uint64_t first, uint32_t at,
		 struct kvc_result results[BATCH])
{
	struct kvc_key keys[BATCH];
	int64_t indices[BATCH];
	struct kvc_transfer transfer = {
		.size = sizeof(transfer),
		.op = op,
		.pool = side->pool,
		.keys = keys,
		.key_count = BATCH,
		.indices = indices,
		.results = results,
	};

	for (uint32_t i = 0; i < BATCH; i++) {
		bench_key(first + i, side->keys[at + i]);
		keys[i] = (struct kvc_key){ .data = side->keys[at + i], .bytes = BENCH_KEY_BYTES };
		indices[i] = at + i;
	}
	if (kvc_batch_run(side->store, &transfer, 1) < 0)
		die("%s", kvc_last_error());
}

/* ---------------------------------------------------------------- threads */

struct work {
	struct side *side;
	struct tally *tally;
};

static void *write_on(void *context)
{
	const struct work *work = context;
	struct kvc_result results[BATCH];
	const double begin = bench_now_s();

	while (!atomic_load(&stop)) {
		move(work->side, KVC_SET, work->side->written, 0, results);
		work->side->written += BATCH;
		for (uint32_t i = 0; i < BATCH; i++) {
			work->tally->sets += results[i].status == KVC_OK;
			work->tally->full += results[i].status == KVC_FULL;
			work->tally->failed += results[i].status != KVC_OK &&
					       results[i].status != KVC_FULL;
		}
	}
	work->tally->write_s += bench_now_s() - begin;
	return NULL;
}

static void *read_on(void *context)
{
	const struct work *work = context;
	struct kvc_result results[BATCH];

	for (uint64_t n = 0; !atomic_load(&stop); n++) {
		const double begin = bench_now_s();

		move(work->side, KVC_GET, n % HOT_BATCHES * BATCH, BATCH, results);
		if (work->tally->reads < SAMPLES_MAX)
			work->tally->read_ms[work->tally->reads++] = 1e3 * (bench_now_s() - begin);
		for (uint32_t i = 0; i < BATCH; i++)
			work->tally->read_misses += results[i].status != KVC_OK;
	}
	return NULL;
}

static void watch(struct side *side, struct tally *tally, double seconds)
{
	const double end = bench_now_s() + seconds;
	const struct timespec pause = { .tv_nsec = 2000000 };

	while (bench_now_s() < end) {
		struct kvc_root_usage usage = { .size = sizeof(usage) };

		if (kvc_store_usage(side->store, 0, &usage, 1) >= 0 &&
		    usage.own_bytes > tally->most_bytes)
			tally->most_bytes = usage.own_bytes;
		(void)nanosleep(&pause, NULL);
	}
}

static void run(struct side *side, struct tally *tally, double seconds)
{
	struct work work = { .side = side, .tally = tally };
	pthread_t writer, reader;

	atomic_store(&stop, false);
	if (pthread_create(&writer, NULL, write_on, &work) != 0 ||
	    pthread_create(&reader, NULL, read_on, &work) != 0)
		die("no thread");
	watch(side, tally, seconds);
	atomic_store(&stop, true);
	(void)pthread_join(writer, NULL);
	(void)pthread_join(reader, NULL);
}

/* ---------------------------------------------------------------- one phase */

static double cpu_s(void)
{
	struct rusage usage;

	(void)getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* A root of its own each time; the full one is filled before it is measured. */
static void measure(const struct options *options, enum phase phase, unsigned round,
		    struct tally *tally)
{
	struct kvc_stats before = { .size = sizeof(before) }, after = { .size = sizeof(after) };
	struct side side = { .written = 0 };
	struct kvc_result results[BATCH];
	double cpu;

	if (snprintf(side.folder, sizeof(side.folder), "%s/cleaner-%d-%u", options->folder, phase,
		     round) >= (int)sizeof(side.folder))
		die("the name of the folder is too long");
	side_open(&side, options, phase == FULL ? options->capacity_bytes : UINT64_C(1) << 50);
	for (; side.written < HOT_BATCHES * BATCH; side.written += BATCH)
		move(&side, KVC_SET, side.written, 0, results);
	while (phase == FULL &&
	       side.written * options->page_bytes < options->capacity_bytes * 5 / 4) {
		move(&side, KVC_SET, side.written, 0, results);
		move(&side, KVC_GET, side.written / BATCH % HOT_BATCHES * BATCH, BATCH, results);
		side.written += BATCH;
	}
	(void)kvc_store_stats(side.store, &before);
	cpu = cpu_s();
	run(&side, tally, options->seconds);
	cpu = cpu_s() - cpu;
	(void)kvc_store_stats(side.store, &after);
	(void)printf("round %u, %-9s: %8.0f pages written/s, evicted %9llu, CPU %5.1f s\n", round,
		     phase_names[phase], (double)tally->sets / tally->write_s,
		     (unsigned long long)(after.evicted - before.evicted), cpu);
	(void)fflush(stdout);
	side_close(&side);
}

static void report(const struct options *options, struct tally tallies[PHASES])
{
	double p99[PHASES];

	for (int phase = 0; phase < PHASES; phase++) {
		struct tally *tally = &tallies[phase];

		bench_sort(tally->read_ms, tally->reads);
		p99[phase] = bench_quantile(tally->read_ms, tally->reads, 0.99);
		(void)printf("%-9s: reads of %u pages: median %.2f ms, p99 %.2f ms, %u calls, "
			     "%llu pages missed\n",
			     phase_names[phase], BATCH,
			     bench_quantile(tally->read_ms, tally->reads, 0.5), p99[phase],
			     tally->reads, (unsigned long long)tally->read_misses);
	}
	(void)printf("p99 when full %.2fx of p99 with room\n", p99[FULL] / p99[ROOM]);
	(void)printf("full: most bytes %.3f of capacity (capacity + one batch: %.3f), sets that "
		     "found no room %llu, that failed otherwise %llu\n",
		     (double)tallies[FULL].most_bytes / (double)options->capacity_bytes,
		     1 + (double)(BATCH * options->page_bytes) / (double)options->capacity_bytes,
		     (unsigned long long)tallies[FULL].full,
		     (unsigned long long)tallies[FULL].failed);
}

static void usage(FILE *to)
{
	(void)fputs(
		"Usage: bench_cleaner FOLDER [-l files|packed] [-c CAPACITY_MIB] [-p PAGE_KIB]\n"
		"                     [-s SECONDS] [-r ROUNDS] [-b]\n"
		"  FOLDER  room for the capacity, and for what is written in -s seconds\n"
		"  -b      through the page cache\n",
		to);
}

static double number(const char *text, double least, double most)
{
	char *end = NULL;
	const double value = strtod(text, &end);

	if (*end || end == text || !(value >= least) || !(value <= most))
		die("%s is no number from %g to %g", text, least, most);
	return value;
}

int main(int argc, char **argv)
{
	struct options options = {
		.layout = "packed",
		.direct = "true",
		.capacity_bytes = UINT64_C(512) << 20,
		.page_bytes = UINT64_C(128) << 10,
		.seconds = 5,
		.rounds = 3,
	};
	struct tally tallies[PHASES] = { { .reads = 0 } };
	int option;

	while ((option = getopt(argc, argv, "l:c:p:s:r:bh")) != -1) {
		switch (option) {
		case 'l':
			options.layout = optarg;
			break;
		case 'c':
			options.capacity_bytes = (uint64_t)number(optarg, 64, 1 << 24) << 20;
			break;
		case 'p':
			options.page_bytes = (uint64_t)number(optarg, 4, 8192) << 10;
			break;
		case 's':
			options.seconds = number(optarg, 0.1, 3600);
			break;
		case 'r':
			options.rounds = (unsigned)number(optarg, 1, ROUNDS_MAX);
			break;
		case 'b':
			options.direct = "false";
			break;
		default:
			usage(option == 'h' ? stdout : stderr);
			return option == 'h' ? 0 : 2;
		}
	}
	if (optind + 1 != argc) {
		usage(stderr);
		return 2;
	}
	options.folder = argv[optind];
	for (int phase = 0; phase < PHASES; phase++) {
		tallies[phase].read_ms = calloc(SAMPLES_MAX, sizeof(double));
		if (!tallies[phase].read_ms)
			die("no memory");
	}
	for (unsigned round = 1; round <= options.rounds; round++)
		for (int phase = 0; phase < PHASES; phase++)
			measure(&options, (enum phase)phase, round, &tallies[phase]);
	report(&options, tallies);
	for (int phase = 0; phase < PHASES; phase++)
		free(tallies[phase].read_ms);
	return 0;
}
