/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of a storage plugin alone, through its vtable: writes, stats, reads back and compares N
 * objects of several parts and a trailer block.
 *
 *   bench_plugin PLUGIN.so FOLDER [-e io_engine] [-p part_KiB] [-n objects] [-q depth] [-r rounds]
 *                [-b] (buffered) [-k] (keep the files) [-w] (replace existing ones)
 *
 * One line per round: seconds and MiB/s of each verb, and the CPU time of the process.
 */
#include "common.h"

#include <kvcellar/plugin.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PARTS	     2u
#define TRAILER	     4096u
#define OBJECTS_MAX  4096u
#define POLL_AT_ONCE 64u

struct bench {
	const struct kvc_plugin *plugin;
	struct kvc_plugin_backend *backend;
	struct kvc_plugin_root *root;
	struct kvc_plugin_queue *queue;
	const char *folder;
	const char *engines;
	uint32_t objects;
	uint32_t depth;
	uint32_t rounds;
	uint64_t part_bytes;
	bool buffered;
	bool keep;
	bool same_names;
	unsigned char *from;
	unsigned char *to;
	unsigned char *scratch;
	uint32_t scratch_bytes;
	struct kvc_descriptor *descriptors;
	struct kvc_range *ranges;
	char (*names)[64];
};

static void host_reason(void *context, uint64_t cookie, const char *text)
{
	(void)context;
	(void)cookie;
	fprintf(stderr, "reason: %s\n", text);
}

static void host_log(void *context, const char *text)
{
	(void)context;
	(void)text;
}

/* Stands for the hash that is taken while the I/O runs: touches each line of the payload. */
static int host_fill(void *context, uint64_t cookie)
{
	const struct bench *bench = context;
	const struct kvc_range *ranges = bench->ranges + (cookie - 1) * (PARTS + 1);
	uint64_t sum = 0;

	for (uint32_t p = 0; p < PARTS; p++) {
		const uint64_t *words = ranges[p].addr;

		for (uint64_t i = 0; i < ranges[p].bytes / 8; i += 8)
			sum += words[i];
	}
	memcpy(ranges[PARTS].addr, &sum, sizeof(sum));
	return 0;
}

static double cpu_s(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void prepare(struct bench *bench, uint32_t op, uint32_t round)
{
	uint64_t object_bytes = PARTS * bench->part_bytes + TRAILER;

	for (uint32_t i = 0; i < bench->objects; i++) {
		unsigned char *base =
			(op == KVC_OP_READ ? bench->to : bench->from) + i * object_bytes;
		struct kvc_range *ranges = bench->ranges + i * (PARTS + 1);
		struct kvc_descriptor *descriptor = &bench->descriptors[i];

		for (uint32_t p = 0; p < PARTS; p++)
			ranges[p] = (struct kvc_range){ .addr = base + p * bench->part_bytes,
							.bytes = bench->part_bytes };
		ranges[PARTS] = (struct kvc_range){ .addr = base + PARTS * bench->part_bytes,
						    .bytes = TRAILER };
		if (op == KVC_OP_WRITE)
			ranges[PARTS].flags = KVC_RANGE_LATE;
		(void)snprintf(bench->names[i], sizeof(bench->names[i]), "bench/%02x/r%u.%u",
			       i % 256, bench->same_names ? 0 : round, i);
		*descriptor = (struct kvc_descriptor){
			.op = op,
			.name = bench->names[i],
			.name_bytes = (uint32_t)strlen(bench->names[i]),
			.ranges = ranges,
			.range_count = op == KVC_OP_READ || op == KVC_OP_WRITE ? PARTS + 1 : 0,
			.cookie = i + 1,
			.scratch = bench->scratch + (size_t)i * bench->scratch_bytes,
		};
	}
}

static double run(struct bench *bench, uint32_t op, uint32_t round, double *cpu)
{
	struct kvc_completion completions[POLL_AT_ONCE];
	const struct kvc_descriptor *list[OBJECTS_MAX];
	uint32_t submitted = 0;
	uint32_t done = 0;
	double begin;

	prepare(bench, op, round);
	for (uint32_t i = 0; i < bench->objects; i++)
		list[i] = &bench->descriptors[i];
	*cpu = cpu_s();
	begin = bench_now_s();
	while (done < bench->objects) {
		int n = 0;

		if (submitted < bench->objects)
			n = bench->plugin->submit(bench->queue, list + submitted,
						  bench->objects - submitted);
		if (n > 0)
			submitted += (uint32_t)n;
		n = bench->plugin->poll(bench->queue, completions, POLL_AT_ONCE, 1000000000u);
		for (int i = 0; i < n; i++) {
			if (completions[i].result < 0) {
				fprintf(stderr, "operation %u: %s\n", op,
					strerror((int)-completions[i].result));
				exit(1);
			}
		}
		if (n > 0)
			done += (uint32_t)n;
	}
	begin = bench_now_s() - begin;
	*cpu = cpu_s() - *cpu;
	return begin;
}

/* A store makes its folders once; that is not part of what is measured. */
static void folders_make(struct bench *bench)
{
	uint64_t part_bytes = bench->part_bytes;
	double unused;

	bench->part_bytes = 0;
	(void)run(bench, KVC_OP_WRITE, UINT32_MAX, &unused);
	(void)run(bench, KVC_OP_REMOVE, UINT32_MAX, &unused);
	bench->part_bytes = part_bytes;
}

static void rounds_run(struct bench *bench)
{
	uint64_t object_bytes = PARTS * bench->part_bytes + TRAILER;
	double mib = (double)object_bytes * bench->objects / 1048576.0;

	folders_make(bench);
	for (uint32_t round = 0; round < bench->rounds; round++) {
		double cpu[3];
		double set = run(bench, KVC_OP_WRITE, round, &cpu[0]);
		double stat = run(bench, KVC_OP_STAT, round, &cpu[1]);
		double get;
		double unused;

		memset(bench->to, 0xaa, object_bytes * bench->objects);
		get = run(bench, KVC_OP_READ, round, &cpu[2]);
		if (memcmp(bench->from, bench->to, object_bytes * bench->objects) != 0) {
			fprintf(stderr, "round %u: wrong bytes\n", round);
			exit(1);
		}
		printf("set %7.2f ms %6.0f MiB/s cpu %6.2f ms   stat %5.0f us   "
		       "get %7.2f ms %6.0f MiB/s cpu %6.2f ms\n",
		       set * 1e3, mib / set, cpu[0] * 1e3, stat * 1e6, get * 1e3, mib / get,
		       cpu[2] * 1e3);
		fflush(stdout);
		if (!bench->keep)
			(void)run(bench, KVC_OP_REMOVE, round, &unused);
	}
}

static void check(int rc, const char *what)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(-rc));
	exit(1);
}

static void *buffer_new(size_t bytes)
{
	void *buffer = NULL;

	if (posix_memalign(&buffer, 4096, bytes) != 0) {
		fprintf(stderr, "no memory\n");
		exit(1);
	}
	return buffer;
}

static void bench_open(struct bench *bench, const char *path, struct kvc_host *host)
{
	const struct kvc_plugin *(*entry)(void) = NULL;
	struct kvc_backend_params params = {
		.size = sizeof(params),
		.host = host,
		.io_engines = bench->engines,
		.io_engine_demanded = bench->engines[0] != '\0',
		.direct_io = !bench->buffered,
		.file_mode = 0600,
		.folder_mode = 0700,
	};
	struct kvc_root_params root_params = {
		.size = sizeof(root_params),
		.location = bench->folder,
		.flags = KVC_ROOT_CREATE,
	};
	struct kvc_queue_params queue_params = { .size = sizeof(queue_params) };
	struct kvc_attributes attributes = { .size = sizeof(attributes) };
	uint64_t bytes = (PARTS * bench->part_bytes + TRAILER) * bench->objects;
	void *handle = dlopen(path, RTLD_NOW);
	void *symbol = handle != NULL ? dlsym(handle, "kvc_plugin_entry") : NULL;

	if (symbol == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	memcpy(&entry, &symbol, sizeof(entry));
	bench->plugin = entry();
	check(bench->plugin->backend_open(&params, &bench->backend), "backend_open");
	check(bench->plugin->root_open(bench->backend, &root_params, &bench->root), "root_open");
	check(bench->plugin->root_query(bench->root, &attributes), "root_query");
	queue_params.depth = bench->depth < attributes.max_depth ? bench->depth :
								   attributes.max_depth;
	check(bench->plugin->queue_create(bench->root, &queue_params, &bench->queue),
	      "queue_create");
	printf("%s on %s, alignment %u, %s; %u objects of %u x %llu + %u bytes %s\n",
	       attributes.io_engine, attributes.file_system, attributes.alignment,
	       (attributes.flags & KVC_ATTRIBUTE_DIRECT) != 0 ? "direct" : "buffered",
	       bench->objects, PARTS, (unsigned long long)bench->part_bytes, TRAILER,
	       attributes.note);
	bench->scratch_bytes = attributes.scratch_bytes;
	bench->from = buffer_new(bytes);
	bench->to = buffer_new(bytes);
	bench->scratch = buffer_new((size_t)bench->objects * bench->scratch_bytes);
	bench->descriptors = buffer_new(bench->objects * sizeof(*bench->descriptors));
	bench->ranges = buffer_new(bench->objects * (PARTS + 1) * sizeof(*bench->ranges));
	bench->names = buffer_new(bench->objects * sizeof(*bench->names));
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t word = i * UINT64_C(0x9e3779b97f4a7c15);

		memcpy(bench->from + i * 8, &word, sizeof(word));
	}
}

int main(int argc, char **argv)
{
	struct bench bench = {
		.engines = "",
		.objects = 128,
		.depth = 256,
		.rounds = 5,
		.part_bytes = 256 * 1024,
	};
	struct kvc_host host = {
		.abi = KVC_PLUGIN_ABI,
		.descriptor_bytes = sizeof(struct kvc_descriptor),
		.size = sizeof(host),
		.context = &bench,
		.log_debug = host_log,
		.reason = host_reason,
		.fill = host_fill,
	};
	int option;

	while ((option = getopt(argc, argv, "e:p:n:q:r:bkw")) != -1) {
		switch (option) {
		case 'e':
			bench.engines = optarg;
			break;
		case 'p':
			bench.part_bytes = strtoull(optarg, NULL, 10) * 1024;
			break;
		case 'n':
			bench.objects = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'q':
			bench.depth = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'r':
			bench.rounds = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		case 'b':
			bench.buffered = true;
			break;
		case 'k':
			bench.keep = true;
			break;
		case 'w':
			bench.same_names = true;
			break;
		default:
			return 2;
		}
	}
	if (optind + 2 != argc || bench.objects == 0 || bench.objects > OBJECTS_MAX) {
		fprintf(stderr,
			"usage: %s PLUGIN.so FOLDER [-e engine] [-p part_KiB] [-n objects] "
			"[-q depth] [-r rounds] [-b] [-k] [-w]\n",
			argv[0]);
		return 2;
	}
	bench.folder = argv[optind + 1];
	bench_open(&bench, argv[optind], &host);
	rounds_run(&bench);
	check(bench.plugin->queue_destroy(bench.queue), "queue_destroy");
	check(bench.plugin->root_close(bench.root), "root_close");
	check(bench.plugin->backend_close(bench.backend), "backend_close");
	free(bench.names);
	free(bench.ranges);
	free(bench.descriptors);
	free(bench.scratch);
	free(bench.to);
	free(bench.from);
	return 0;
}
