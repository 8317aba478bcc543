/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stats pages: the files `<housekeeping>/stats/<pid>-<32 hex digits>`, one per store that is open.
 * The counters in it are those of struct kvc_stats behind `size`, in the same order: "cells" of 64
 * bits. An OFD lock on the file says that its process lives; a child that was forked and did not
 * exec shares the lock, and the page.
 */
#ifndef KVC_CORE_STATS_PAGE_H
#define KVC_CORE_STATS_PAGE_H

#include "core/mapfile.h"

#include <kvcellar/kvcellar.h>

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define KVC_STATS_FOLDER      "stats"
#define KVC_PAGE_HEADER_BYTES 128u
#define KVC_PAGE_BYTES	      8192u

/* Cells before the counters that belong to no operation, and all of them. */
#define KVC_PAGE_OPERATION_CELLS (sizeof(struct kvc_operation_stats) / sizeof(uint64_t))
#define KVC_PAGE_OTHER_CELL                                                                \
	((offsetof(struct kvc_stats, overruns) - offsetof(struct kvc_stats, operations)) / \
	 sizeof(uint64_t))
#define KVC_PAGE_CELLS \
	((sizeof(struct kvc_stats) - offsetof(struct kvc_stats, operations)) / sizeof(uint64_t))

struct kvc_page_header {
	struct kvc_mapfile_header common;
	uint32_t cell_count; /* that the writer knows */
	uint32_t pid;
	int64_t started_ns; /* since 1970-01-01 UTC */
	uint8_t spare[80];
	uint32_t crc;
};

struct kvc_page {
	struct kvc_page_header header;
	_Atomic uint64_t cells[(KVC_PAGE_BYTES - KVC_PAGE_HEADER_BYTES) / sizeof(uint64_t)];
};

_Static_assert(sizeof(struct kvc_page_header) == KVC_PAGE_HEADER_BYTES, "page header");
_Static_assert(sizeof(struct kvc_page) == KVC_PAGE_BYTES, "page");
_Static_assert(sizeof(struct kvc_operation_stats) == 928, "cells of an operation are fixed");
_Static_assert(offsetof(struct kvc_stats, operations) == sizeof(uint64_t), "cells follow the size");
_Static_assert(KVC_PAGE_OTHER_CELL == 8 * KVC_PAGE_OPERATION_CELLS, "eight operations");
_Static_assert(KVC_PAGE_CELLS * sizeof(uint64_t) <= KVC_PAGE_BYTES - KVC_PAGE_HEADER_BYTES,
	       "cells fit into the page");

extern const struct kvc_mapfile_kind kvc_page_kind;

/* The folder of the pages in `housekeeping`, both made when missing: a descriptor, or an error. */
int kvc_page_folder(const char *housekeeping, mode_t mode);

/* A new page of this process, locked, in the folder: its descriptor. `name` has room for
 * KVC_PAGE_NAME_BYTES. */
#define KVC_PAGE_NAME_BYTES 48u
int kvc_page_create(int folder, mode_t mode, char *name);

/* Removes the pages of dead processes. */
void kvc_page_reclaim(int folder);

#endif
