/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stats.h"

#include "core/log.h"
#include "core/stats_page.h"
#include "core/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct kvc_counters {
	_Atomic(struct kvc_page *) page;
	struct kvc_mapfile_mapping mapping; /* of `page` */
	struct kvc_mapfile_mapping early;   /* memory that was `page` before the file, or none */
	int fd;				    /* of the page's file, -1: memory; holds the lock */
	pid_t pid;  /* of the process that opened it: a child leaves the file alone */
	bool cut;   /* the file was, and memory took its place */
	char *path; /* NULL for memory */
};

static const size_t statuses_in_operation =
	offsetof(struct kvc_operation_stats, statuses) / sizeof(uint64_t);
static const size_t causes_in_operation =
	offsetof(struct kvc_operation_stats, causes) / sizeof(uint64_t);
static const size_t latency_in_operation =
	offsetof(struct kvc_operation_stats, latency_us) / sizeof(uint64_t);

_Static_assert(KVC_PAGE_CELLS - KVC_PAGE_OTHER_CELL == KVC_COUNTER_COUNT, "enum kvc_counter");

/* ---------------------------------------------------------------- open and close */

static int open_file(struct kvc_counters *counters, const char *housekeeping, mode_t mode,
		     struct kvc_mapfile_mapping *out)
{
	char name[KVC_PAGE_NAME_BYTES];
	int folder, fd, rc;

	if (!KVC_MAPFILE_POSSIBLE)
		return -ENOTSUP;
	folder = kvc_page_folder(housekeeping, mode);
	if (folder < 0)
		return folder;
	kvc_page_reclaim(folder);
	fd = kvc_page_create(folder, mode, name);
	if (fd < 0) {
		rc = fd;
		goto close_folder;
	}
	rc = asprintf(&counters->path, "%s/%s/%s", housekeeping, KVC_STATS_FOLDER, name);
	if (rc < 0) {
		counters->path = NULL;
		rc = -ENOMEM;
		goto remove_file;
	}
	rc = kvc_mapfile_map(&kvc_page_kind, out);
	if (rc < 0)
		goto free_path;
	rc = kvc_mapfile_attach(fd, &kvc_page_kind, out);
	if (rc < 0)
		goto unmap;
	counters->fd = fd;
	close(folder);
	return 0;

unmap:
	kvc_mapfile_unmap(&kvc_page_kind, out);
free_path:
	free(counters->path);
	counters->path = NULL;
remove_file:
	(void)unlinkat(folder, name, 0);
	close(fd);
close_folder:
	close(folder);
	return rc;
}

/* What was counted in memory, also by a thread that saw it as the page until just now. */
static void drain(struct kvc_counters *counters)
{
	struct kvc_page *page = atomic_load(&counters->page), *early = counters->early.memory;

	for (size_t i = 0; early && i < KVC_PAGE_CELLS; i++) {
		const uint64_t n =
			atomic_exchange_explicit(&early->cells[i], 0, memory_order_relaxed);

		if (n != 0)
			(void)atomic_fetch_add_explicit(&page->cells[i], n, memory_order_relaxed);
	}
}

void kvc_counters_move(struct kvc_counters *counters, const char *housekeeping, mode_t mode)
{
	struct kvc_mapfile_mapping mapping;
	int rc = counters->fd < 0 ? open_file(counters, housekeeping, mode, &mapping) : -EEXIST;

	if (rc < 0) {
		kvc_log(KVC_LOG_DEBUG, "no stats page in %s: %s; counting in memory", housekeeping,
			strerror(-rc));
		return;
	}
	counters->early = counters->mapping;
	counters->mapping = mapping;
	atomic_store(&counters->page, mapping.memory);
	drain(counters);
}

int kvc_counters_open(const char *housekeeping, mode_t mode, struct kvc_counters **out)
{
	struct kvc_counters *counters = calloc(1, sizeof(*counters));
	int rc;

	if (!counters)
		return kvc_fail(-ENOMEM, "no memory for counters");
	counters->fd = -1;
	counters->pid = getpid();
	rc = kvc_mapfile_map(&kvc_page_kind, &counters->mapping);
	if (rc < 0) {
		free(counters);
		return kvc_fail(-ENOMEM, "no memory for counters");
	}
	atomic_store(&counters->page, counters->mapping.memory);
	if (housekeeping)
		kvc_counters_move(counters, housekeeping, mode);
	*out = counters;
	return 0;
}

void kvc_counters_close(struct kvc_counters *counters)
{
	if (!counters)
		return;
	kvc_mapfile_unmap(&kvc_page_kind, &counters->mapping);
	kvc_mapfile_unmap(&kvc_page_kind, &counters->early);
	if (counters->fd >= 0) {
		if (counters->pid == getpid())
			(void)unlink(counters->path);
		close(counters->fd);
	}
	free(counters->path);
	free(counters);
}

const char *kvc_counters_path(const struct kvc_counters *counters)
{
	return counters->path ? counters->path : "";
}

void kvc_counters_check(struct kvc_counters *counters)
{
	struct stat st;

	drain(counters);
	if (counters->fd < 0 || counters->cut || fstat(counters->fd, &st) != 0 ||
	    st.st_size >= (off_t)KVC_PAGE_BYTES)
		return;
	if (kvc_mapfile_detach(&kvc_page_kind, &counters->mapping) == 0) {
		counters->cut = true;
		kvc_log(KVC_LOG_WARNING, "%s was cut by somebody; counting in memory from 0",
			counters->path);
	}
}

/* ---------------------------------------------------------------- counting */

static void add(_Atomic uint64_t *cell, uint64_t n)
{
	if (n != 0)
		(void)atomic_fetch_add_explicit(cell, n, memory_order_relaxed);
}

static _Atomic uint64_t *cells_of(struct kvc_counters *counters)
{
	return atomic_load_explicit(&counters->page, memory_order_acquire)->cells;
}

static _Atomic uint64_t *operation_cells(struct kvc_counters *counters, int op)
{
	if (op < 0 || op >= KVC_OPERATION_COUNT)
		return NULL;
	return cells_of(counters) + (size_t)op * KVC_PAGE_OPERATION_CELLS;
}

void kvc_counters_pages(struct kvc_counters *counters, int op, int status, int cause, uint64_t n,
			uint64_t bytes)
{
	_Atomic uint64_t *const cells = operation_cells(counters, op);

	if (!cells || status < 0 || status > KVC_SKIPPED || cause < 0 || cause >= KVC_CAUSE_COUNT)
		return;
	add(cells + offsetof(struct kvc_operation_stats, pages) / sizeof(uint64_t), n);
	add(cells + statuses_in_operation + (size_t)status, n);
	add(cells + causes_in_operation + (size_t)cause, n);
	if (status == KVC_OK)
		add(cells + offsetof(struct kvc_operation_stats, bytes) / sizeof(uint64_t), bytes);
}

void kvc_counters_page(struct kvc_counters *counters, int op, int status, int cause, uint64_t bytes)
{
	kvc_counters_pages(counters, op, status, cause, 1, bytes);
}

/* Bucket i has what is below 2^i and not below 2^(i-1); the last one all that is longer. */
static size_t latency_bucket(uint64_t latency_us)
{
	const size_t bits = latency_us == 0 ? 0 : 64 - (size_t)__builtin_clzll(latency_us);

	return bits < KVC_HISTOGRAM_BUCKETS ? bits : KVC_HISTOGRAM_BUCKETS - 1;
}

void kvc_counters_call(struct kvc_counters *counters, int op, uint64_t latency_us)
{
	_Atomic uint64_t *const cells = operation_cells(counters, op);

	if (!cells)
		return;
	add(cells + offsetof(struct kvc_operation_stats, calls) / sizeof(uint64_t), 1);
	add(cells + offsetof(struct kvc_operation_stats, latency_us_sum) / sizeof(uint64_t),
	    latency_us);
	add(cells + latency_in_operation + latency_bucket(latency_us), 1);
}

void kvc_counters_add(struct kvc_counters *counters, enum kvc_counter counter, int64_t n)
{
	if ((unsigned int)counter < KVC_COUNTER_COUNT)
		add(cells_of(counters) + KVC_PAGE_OTHER_CELL + counter, (uint64_t)n);
}

void kvc_counters_evicted(struct kvc_counters *counters, uint64_t objects, uint64_t bytes)
{
	kvc_counters_add(counters, KVC_COUNTER_EVICTED, (int64_t)objects);
	kvc_counters_add(counters, KVC_COUNTER_EVICTED_BYTES, (int64_t)bytes);
}

void kvc_counters_prefix(struct kvc_counters *counters, uint64_t asked, uint64_t found)
{
	kvc_counters_add(counters, KVC_COUNTER_PREFIX_CALLS, 1);
	kvc_counters_add(counters, KVC_COUNTER_PREFIX_PAGES_ASKED, (int64_t)asked);
	kvc_counters_add(counters, KVC_COUNTER_PREFIX_PAGES_FOUND, (int64_t)found);
}

/* ---------------------------------------------------------------- reading */

static void read_all(struct kvc_counters *counters, struct kvc_stats *out)
{
	const _Atomic uint64_t *from = cells_of(counters);
	uint64_t cells[KVC_PAGE_CELLS];

	for (size_t i = 0; i < KVC_PAGE_CELLS; i++)
		cells[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
	memset(out, 0, sizeof(*out));
	out->size = sizeof(*out);
	memcpy((char *)out + offsetof(struct kvc_stats, operations), cells, sizeof(cells));
}

int kvc_counters_read(struct kvc_counters *counters, struct kvc_stats *out)
{
	struct kvc_stats stats;
	const size_t size = out->size;

	if (size < KVC_STATS_BYTES_0_1)
		return kvc_fail(-EINVAL, "kvc_stats.size is %zu, version 0.1 has %zu", size,
				(size_t)KVC_STATS_BYTES_0_1);
	read_all(counters, &stats);
	memcpy(out, &stats, size < sizeof(stats) ? size : sizeof(stats));
	if (size > sizeof(stats))
		memset((char *)out + sizeof(stats), 0, size - sizeof(stats));
	out->size = size;
	return 0;
}

int kvc_counters_text(struct kvc_counters *counters, int format, const char *labels, char *buffer,
		      size_t bytes)
{
	struct kvc_stats stats;
	struct kvc_text text;
	int rc;

	read_all(counters, &stats);
	kvc_text_init(&text, buffer, bytes);
	rc = kvc_stats_add_text(&stats, format, labels, &text);
	return rc < 0 ? rc : kvc_text_finish(&text);
}
