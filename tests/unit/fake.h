/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend whose every misbehaviour is scripted, and what core needs around it: a store made by
 * hand, shapes and requests. Objects lie in memory. What the library does against the plugin
 * contract (unaligned ranges, a descriptor that changes in flight, ...) is counted in `broken`.
 */
#ifndef KVC_TESTS_FAKE_H
#define KVC_TESTS_FAKE_H

#include "core/clock.h"
#include "core/config.h"
#include "core/format.h"
#include "core/queue.h"
#include "core/root.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/trailer.h"
#include "core/xfer.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FAKE_OBJECTS 512u
#define FAKE_NORMAL  INT64_MIN	     /* a hook's answer: do what the descriptor says */
#define FAKE_STALL   (INT64_MIN + 1) /* it does not come back before fake_release() */

struct fake_object {
	char name[KVC_PATH_BYTES];
	uint8_t *data;
	uint64_t bytes;
	uint64_t version;
};

struct fake;
typedef int64_t (*fake_hook)(struct fake *fake, const struct kvc_descriptor *descriptor,
			     struct kvc_completion *completion);

/* Set before the store is made: attributes. At any time: the rest. */
struct fake {
	struct kvc_attributes attributes;
	fake_hook hook; /* NULL: all is normal */
	uint32_t hook_count;
	uint32_t accept;	/* at most so many per submit(); 0 = all */
	uint32_t refuse;	/* so many times -EAGAIN */
	uint32_t submit_errors; /* so many times -EIO */
	uint32_t poll_errors;	/* so many times -EIO */
	uint32_t per_poll;	/* completions per poll(); 0 = all */
	bool reverse;		/* the last one first */
	bool unknown_sizes;	/* object_bytes of STAT and -EEXIST are not known */
	bool no_late_fill;	/* a LATE range is not filled: a plugin that fails before it */
	int destroy_error;
	int root_error;
	int usage_error;
	uint64_t total_bytes, free_bytes;
	uint32_t registered;
	int register_error;

	/* What happened. */
	uint32_t broken;
	uint32_t submits, polls, cancels, queues, roots, removes, lists;
	uint32_t accepted, completed;
	uint32_t most_ranges;

	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool released;
	uint64_t versions;
	struct fake_object objects[FAKE_OBJECTS];
	size_t object_count;

	/* The store around it. */
	struct kvc_module module;
	struct kvc_backend backend;
	struct kvc_settings settings;
	struct kvc_store store;
};

/* WHOLE, alignment 512, LOCAL (soft), IF_ABSENT, LISTS, REMOVES, SIZES; no files. */
struct fake *fake_new(void);
/* Opens that many roots "fake0", ... of the store. */
void fake_open(struct fake *fake, size_t roots);
/* Fails the test when the contract was broken, or something is still open. */
void fake_free(struct fake *fake);

struct kvc_root *fake_root(struct fake *fake, size_t number);
uint64_t fake_counter(struct fake *fake, enum kvc_counter counter);
/* Lets what has stalled come back. */
void fake_release(struct fake *fake);
struct fake_object *fake_find(struct fake *fake, const char *name);
void fake_put(struct fake *fake, const char *name, const void *data, uint64_t bytes);

/* ---------------------------------------------------------------- the connector on it */

struct kvc_namespace *fake_namespace(struct fake *fake, const char *model);

/* Pool kv of explicit pages: part p of page i lies at memory + (i * part_count + p) * stride. */
struct kvc_pool *fake_pool(struct kvc_namespace *ns, uint8_t *memory, uint64_t page_count,
			   uint32_t part_count, uint64_t part_bytes, uint64_t stride);
/* Closes both. */
void fake_close(struct kvc_namespace *ns, struct kvc_pool *pool);

/* ---------------------------------------------------------------- shapes and requests */

struct part_of {
	uint64_t piece_bytes;
	uint64_t gap_bytes; /* between pieces */
	uint32_t pieces;
	uint64_t offset; /* of the memory's first byte from a page of the machine */
};

/* An object of some parts, one series each, with memory of its own. */
struct page {
	struct kvc_shape shape;
	void *bases[KVC_SHAPE_SERIES_MAX];
	uint8_t *memory;
	uint64_t memory_bytes;
	char name[64];
	struct kvc_request request;
};

void shape_make(struct kvc_shape *shape, const struct part_of *parts, uint32_t count);
void page_make(struct page *page, const struct part_of *parts, uint32_t count);
void page_free(struct page *page);
void page_fill(struct page *page, uint8_t seed);
/* The parts' bytes one after another, as one text; for free(). */
uint8_t *page_payload(const struct page *page);

/* The request of a page for one operation, 5 s from now. number: its name, g and v. */
struct kvc_request *page_request(struct page *page, struct kvc_root *root, int op, uint32_t number);

#endif
