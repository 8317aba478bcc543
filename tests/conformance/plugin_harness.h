/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugin-level conformance tests share: a host, loading a plugin by name, and operations
 * that check the contract while they run (exactly one completion each, its own cookie).
 */
#ifndef KVC_TESTS_PLUGIN_HARNESS_H
#define KVC_TESTS_PLUGIN_HARNESS_H

#include <kvcellar/plugin.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Needs those above before it. */
#include <cmocka.h>

#define GUARD_NS  UINT64_C(60000000000) /* a hang, not a limit on speed */
#define MAX_PARTS 4u

/* How the plugin under test is opened: command line arguments. */
struct harness_parameters {
	const char *plugin;
	const char *io_engines; /* or "" */
	bool direct;
	bool registered;   /* buffers lie in memory that is registered */
	const char *lower; /* of a stacked plugin, or NULL */
	const char *rules; /* fault */
	const char *seed;
	const char *cancellable;
	const char *local;
	const char *latency_us;
	const char *max_bytes;
};

struct harness {
	const struct kvc_plugin *plugin;
	struct kvc_host host;
	struct kvc_host lower_host;
	struct kvc_backend_params lower_params;
	struct kvc_plugin_backend *backend;
	struct kvc_plugin_root *root;
	struct kvc_attributes attributes;
	uint64_t registration; /* of all buffers, or 0 */
	char location[256];
	char reason[512];
	char debug[8192];
};

/* One operation. The cookie is its address. */
struct op {
	struct kvc_descriptor descriptor;
	struct kvc_range ranges[MAX_PARTS];
	struct kvc_completion completion;
	char name[200];
	_Atomic int fills;
	int fill_result;
	int completions;
};

const struct kvc_plugin *harness_load(const char *name);
int harness_backend_open(struct harness *harness, const struct harness_parameters *parameters);
/* Opens backend and root; location NULL = a new one. A missing capability ends the program with
 * the line of a skip. */
void harness_open(struct harness *harness, const struct harness_parameters *parameters,
		  const char *location);
int harness_root_open(struct harness *harness, const char *location, uint32_t flags,
		      struct kvc_plugin_root **out);
void harness_close(struct harness *harness);
/* A new name for a location, on the file system of the current folder. */
void harness_location(char *out, size_t bytes);
void harness_remove_locations(void);
__attribute__((noreturn, format(printf, 1, 2))) void harness_skip(const char *format, ...);

/* bytes rounded up to the alignment of the root. */
uint64_t harness_round(const struct harness *harness, uint64_t bytes);
bool harness_has(const struct harness *harness, uint32_t flag);

unsigned char *buffer_new(uint64_t bytes);
void buffer_free(unsigned char *buffer);
void buffer_fill(unsigned char *buffer, uint64_t bytes, uint64_t pattern);
/* The first byte that differs from the pattern, or bytes. */
uint64_t buffer_check(const unsigned char *buffer, uint64_t bytes, uint64_t pattern);

void op_init(struct op *op, const struct harness *harness, enum kvc_op what, const char *name);
/* Cuts [buffer, buffer + bytes) into `parts` ranges that keep the alignment. */
void op_ranges(struct op *op, const struct harness *harness, unsigned char *buffer, uint64_t bytes,
	       uint32_t parts);
void op_free(struct op *op);

/* Submits what a queue takes, in order; true when some were accepted. */
uint32_t ops_submit(const struct harness *harness, struct kvc_plugin_queue *queue, struct op *ops,
		    uint32_t count);
/* Polls once and credits the completions. */
uint32_t ops_poll(const struct harness *harness, struct kvc_plugin_queue *queue, uint64_t wait_ns);
/* Submits all and waits for all: each has exactly one completion then. */
void ops_run(const struct harness *harness, struct kvc_plugin_queue *queue, struct op *ops,
	     uint32_t count);

/* One operation from start to end; the result. */
int64_t do_write(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		 uint64_t bytes, uint64_t pattern, uint32_t flags);
/* Reads into a buffer of exactly `bytes`; asserts the pattern when all of it came. */
int64_t do_read(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		uint64_t bytes, uint64_t pattern);
int64_t do_stat(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		struct kvc_completion *out);
int64_t do_remove(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		  const uint64_t *if_version);

#endif
