/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cleaner of a root of files costs: CPU for each page that goes, with and without its
 * unlink, and of the ticks of a full root that have nothing to do. The objects are files without
 * blocks, which is enough for somebody who never reads them.
 */
#include "connector/name.h"
#include "core/cleaner_internal.h"
#include "core/route.h"
#include "core/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OBJECT_BYTES 65536

static double cpu_s(clockid_t clock)
{
	struct timespec now;

	(void)clock_gettime(clock, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void die(const char *what)
{
	(void)fprintf(stderr, "bench_evict: %s: %s\n", what, kvc_last_error());
	exit(1);
}

static struct kvc_store *open_store(const char *folder)
{
	struct kvc_config *config = NULL;
	struct kvc_store *store = NULL;

	if (kvc_config_new(&config) || kvc_config_set(config, "storage_dirs", folder) ||
	    kvc_config_set(config, "storage_layout", "files") ||
	    kvc_config_set(config, "plugin.posix.active", "true") ||
	    kvc_config_set(config, "capacity", "100TiB") || kvc_store_open(config, NULL, &store))
		die("open");
	kvc_config_free(config);
	return store;
}

/* One object: "<namespace>/<hash folder>/<name>". */
static void make_object(const char *folder, const struct kvc_name_rule *rule, const char *ns_id,
			struct kvc_stamps *stamps, unsigned number)
{
	char key_text[65], name[KVC_NAME_MAX + 1], path[4096], hash[3];
	struct kvc_key key = { .data = key_text, .bytes = 64 };
	uint32_t bytes;
	uint64_t g;
	int fd;

	(void)snprintf(key_text, sizeof(key_text), "%064x", number);
	if (kvc_name_build(rule, &key, name, &bytes, &g, NULL))
		die("name");
	kvc_route_folder(g, hash);
	(void)snprintf(path, sizeof(path), "%s/%s/%s/%s", folder, ns_id, hash, name);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, OBJECT_BYTES))
		die(path);
	(void)close(fd);
	if (stamps)
		kvc_stamps_note(stamps, g,
				(struct kvc_stamp){ .stamp = kvc_stamps_take(stamps, 1) });
}

static void fill(const char *folder, struct kvc_namespace *ns, struct kvc_store *store,
		 unsigned from, unsigned to, bool noted)
{
	const char *id = kvc_namespace_id(ns);
	struct kvc_namespace_identity identity = { 0 };
	struct kvc_name_rule rule;
	char path[4096];

	(void)snprintf(identity.id, sizeof(identity.id), "%s", id);
	if (kvc_name_rule_init_raw(&rule, KVC_NAMING_KVCELLAR, &identity, "kv"))
		die("rule");
	for (uint32_t h = 0; h < KVC_HASH_FOLDERS; h++) {
		char hash[3];

		kvc_route_folder(h, hash);
		(void)snprintf(path, sizeof(path), "%s/%s/%s", folder, id, hash);
		(void)mkdir(path, 0700);
	}
	for (unsigned i = from; i < to; i++)
		make_object(folder, &rule, id, noted ? store->roots[0]->files->stamps : NULL, i);
}

/* CPU of this thread for each page that goes. */
static void run_clean(struct kvc_store *store, unsigned objects, unsigned pages, const char *what)
{
	const struct kvc_clean_params params = {
		.size = sizeof(params),
		.flags = KVC_CLEAN_TO_BYTES,
		.to_bytes = (uint64_t)(objects - pages) * OBJECT_BYTES,
	};
	struct kvc_clean_report report = { .size = sizeof(report) };
	double begun;

	if (kvc_store_usage(store, 1, NULL, 0) < 0)
		die("usage");
	begun = cpu_s(CLOCK_THREAD_CPUTIME_ID);
	if (kvc_store_clean(store, &params, &report))
		die("clean");
	(void)printf("%-34s %8.2f us a page, %llu pages of %u\n", what,
		     (cpu_s(CLOCK_THREAD_CPUTIME_ID) - begun) * 1e6 / (double)report.groups,
		     (unsigned long long)report.groups, objects);
}

/* The system calls alone: stat and unlink of as many files in their folders. */
static void run_unlink(const char *folder, unsigned pages)
{
	char path[4096];
	double begun;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/plain", folder);
	(void)mkdir(path, 0700);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (unsigned i = 0; i < pages; i++) {
		(void)snprintf(path, sizeof(path), "%064x.kv.70a923ee", i);
		(void)close(openat(fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	}
	begun = cpu_s(CLOCK_THREAD_CPUTIME_ID);
	for (unsigned i = 0; i < pages; i++) {
		struct stat st;

		(void)snprintf(path, sizeof(path), "%064x.kv.70a923ee", i);
		(void)fstatat(fd, path, &st, AT_SYMLINK_NOFOLLOW);
		(void)unlinkat(fd, path, 0);
	}
	(void)printf("%-34s %8.2f us a page\n", "stat and unlink alone",
		     (cpu_s(CLOCK_THREAD_CPUTIME_ID) - begun) * 1e6 / pages);
	(void)close(fd);
}

int main(int argc, char **argv)
{
	const unsigned objects = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1000000;
	const struct kvc_namespace_params params = {
		.size = sizeof(params), .model_id = "bench", .identity = "1", .page_tokens = 64
	};
	struct kvc_namespace *ns;
	struct kvc_store *store;
	double begun;

	if (argc < 2) {
		(void)fprintf(stderr, "usage: bench_evict FOLDER [OBJECTS]\n");
		return 2;
	}
	store = open_store(argv[1]);
	if (kvc_namespace_open(store, &params, &ns))
		die("namespace");
	fill(argv[1], ns, store, 0, objects, true);
	(void)sleep(2);
	begun = cpu_s(CLOCK_PROCESS_CPUTIME_ID);
	(void)sleep(10);
	(void)printf("%-34s %8.2f ms a tick\n", "ticks with nothing to do",
		     (cpu_s(CLOCK_PROCESS_CPUTIME_ID) - begun) * 1e3 / 10);
	run_unlink(argv[1], 50000);
	run_clean(store, objects, objects / 4, "never looked at before");
	fill(argv[1], ns, store, objects, objects + objects / 4, true);
	run_clean(store, objects, objects / 4, "from then on");
	fill(argv[1], ns, store, objects + objects / 4, objects + objects / 2, false);
	run_clean(store, objects, objects / 4, "a quarter without an entry");
	(void)kvc_namespace_close(ns);
	return kvc_store_close(store) ? 1 : 0;
}
