/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a packed root with many objects, without moving their bytes: objects are claimed and
 * published in the index by the library's own functions, and nothing is written to their slots.
 *
 *   bench_scale FOLDER [-n SMALL,LARGE] [-r CALLS] [-w] [-j] [-k]
 *     -n  objects of the two roots that are compared; default: 10000,10000000
 *     -r  calls of each operation; default: 300
 *     -w  write all slots once after filling: 4 KiB of zeros per object. Without it sets go where
 *         nobody has written, which takes a file system longer, the more so the larger the files
 *     -j  one JSON object per root      -k  leave the roots there
 *
 * FOLDER needs room for 4.5 KiB per object that nobody writes (bench/scale.sh makes a sparse one).
 * For each root: filling, opening after a clean close, making the index again as after a reboot
 * (another boot id in root.shm), its memory, and exists, set and get of 128 pages. Each opening is
 * in a process of its own. Both roots are filled over their capacity: sets recycle slots.
 */
#include "scale.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOTS 2u

static void run_child(void (*phase)(struct scale *, struct scale_result *), struct scale *scale,
		      struct scale_result *result, const char *name)
{
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		phase(scale, result);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		scale_die("%s of %llu objects failed", name, (unsigned long long)scale->objects);
	fprintf(stderr, "bench_scale: %llu objects: %s done\n", (unsigned long long)scale->objects,
		name);
}

static void run_root(struct scale *scale, struct scale_result *result)
{
	run_child(scale_fill, scale, result, "filling");
	scale_measure_files(scale, result);
	if (scale->write_slots)
		scale_write_slots(scale);
	for (uint32_t i = 0; i < SCALE_OPENS; i++)
		run_child(scale_open_clean, scale, result, "opening");
	run_child(scale_calls, scale, result, "calls");
	scale_change_boot(scale);
	run_child(scale_rebuild, scale, result, "making the index again");
	scale_change_boot(scale);
	scale_forget_pages(scale);
	run_child(scale_rebuild, scale, result, "making it again from the disk");
}

static void print_text(const struct scale_result *result)
{
	printf("%llu objects asked for, %llu live; tables and headers %.1f MiB, "
	       "%.1f bytes per object (names, cold: %.1f)\n",
	       (unsigned long long)result->objects, (unsigned long long)result->live,
	       (double)result->index_bytes / 1048576, scale_per_object(result, result->index_bytes),
	       scale_per_object(result, result->names_bytes));
	printf("  memory of the process after all was touched: %.1f MiB of its own, "
	       "%.1f MiB of files\n",
	       (double)result->anon_bytes / 1048576, (double)result->file_bytes / 1048576);
	printf("  filling %.1f s (%.2f us per object)\n", result->fill_s,
	       result->fill_s * 1e6 / (double)result->filled);
	printf("  opening after a clean close %.1f ms, and the first exists %.3f ms\n",
	       scale_median(result->open_s, SCALE_OPENS) * 1e3,
	       scale_median(result->first_s, SCALE_OPENS) * 1e3);
	printf("  after a reboot: %.2f s with the index in the page cache, %.2f s from the disk\n",
	       result->rebuild_s[0], result->rebuild_s[1]);
	for (uint32_t op = 0; op < SCALE_OPS; op++)
		printf("  %-11s %9.1f us, p95 %9.1f us\n", scale_op_names[op],
		       result->call_s[op] * 1e6, result->p95_s[op] * 1e6);
}

static void print_json(const struct scale_result *result)
{
	printf("{\"kind\":\"scale\",\"objects\":%llu,\"live\":%llu,\"index_bytes\":%llu,"
	       "\"names_bytes\":%llu,\"anon_bytes\":%llu,\"file_bytes\":%llu,\"fill_s\":%.6g,"
	       "\"open_s\":%.6g,\"first_exists_s\":%.6g,\"rebuild_cached_s\":%.6g,"
	       "\"rebuild_disk_s\":%.6g",
	       (unsigned long long)result->objects, (unsigned long long)result->live,
	       (unsigned long long)result->index_bytes, (unsigned long long)result->names_bytes,
	       (unsigned long long)result->anon_bytes, (unsigned long long)result->file_bytes,
	       result->fill_s, scale_median(result->open_s, SCALE_OPENS),
	       scale_median(result->first_s, SCALE_OPENS), result->rebuild_s[0],
	       result->rebuild_s[1]);
	for (uint32_t op = 0; op < SCALE_OPS; op++)
		printf(",\"%s_s\":%.6g,\"%s_p95_s\":%.6g", scale_op_names[op], result->call_s[op],
		       scale_op_names[op], result->p95_s[op]);
	printf("}\n");
}

static void parse(struct scale *scale, uint64_t objects[ROOTS], int argc, char **argv)
{
	unsigned long long small = 10000, large = 10000000;
	int option;

	while ((option = getopt(argc, argv, "n:r:jkw")) != -1) {
		if (option == 'n' && sscanf(optarg, "%llu,%llu", &small, &large) == 2)
			continue;
		else if (option == 'r')
			scale->calls = (uint32_t)strtoul(optarg, NULL, 10);
		else if (option == 'j')
			scale->json = true;
		else if (option == 'k')
			scale->keep = true;
		else if (option == 'w')
			scale->write_slots = true;
		else
			optind = argc;
	}
	if (optind + 1 != argc || small < 4 * SCALE_PAGES || large < small || scale->calls == 0)
		scale_die(
			"usage: bench_scale FOLDER [-n SMALL,LARGE] [-r CALLS] [-w] [-j] [-k]; at "
			"least %u objects",
			4 * SCALE_PAGES);
	objects[0] = small;
	objects[1] = large;
	scale->parent = argv[optind];
}

int main(int argc, char **argv)
{
	struct scale scale = { .calls = 300 };
	struct scale_result *results = mmap(NULL, ROOTS * sizeof(*results), PROT_READ | PROT_WRITE,
					    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t objects[ROOTS];

	if (results == MAP_FAILED)
		scale_die("no memory");
	parse(&scale, objects, argc, argv);
	for (uint32_t i = 0; i < ROOTS; i++) {
		scale_begin(&scale, objects[i]);
		run_root(&scale, &results[i]);
		if (!scale.keep)
			scale_remove(&scale);
		if (scale.json)
			print_json(&results[i]);
		else
			print_text(&results[i]);
	}
	for (uint32_t op = 0; op < SCALE_OPS && !scale.json; op++)
		printf("%-11s %.2fx\n", scale_op_names[op],
		       results[1].call_s[op] / results[0].call_s[op]);
	munmap(results, ROOTS * sizeof(*results));
	return 0;
}
