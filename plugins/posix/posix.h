/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this plugin share. Engines see engine.h only. */
#ifndef KVC_POSIX_H
#define KVC_POSIX_H

#include "buffers.h"
#include "engine.h"

#define POSIX_ENGINES	      4u
#define POSIX_DEPTH_MAX	      1024u
#define POSIX_DEPTH_DEFAULT   256u
/* In flight per queue. It fills one NVMe device; more only waits longer. */
#define POSIX_BYTES_IN_FLIGHT (16u << 20)

struct posix_choice {
	const struct posix_engine *engine;
	int error; /* of its probe */
	char why[128];
};

struct kvc_plugin_backend {
	const struct kvc_host *host;
	struct fsobj_params files;
	struct posix_choice choices[POSIX_ENGINES]; /* in the order to try */
	uint32_t choice_count;
	bool ordered;  /* the user gave the order */
	bool demanded; /* nothing else will do */
	bool registers;
	uint32_t max_depth;
	struct posix_buffers *buffers;
	pthread_mutex_t lock;
	uint32_t root_count;
};

struct kvc_plugin_container {
	struct kvc_plugin_root *root;
	int fd;
	_Atomic uint32_t outstanding;
};

/* probe.c: the order of engines from the parameters; probes each once. */
int posix_choices_make(struct kvc_plugin_backend *backend, const struct kvc_backend_params *params);
/* The engine for a root, with a note when it is not the first one. */
void posix_engine_choose(const struct kvc_plugin_backend *backend, struct kvc_plugin_root *root);
/* True: roots get io_uring, and their I/O is direct, if their file system can do that. */
bool posix_uring_expected(const struct kvc_plugin_backend *backend);
void posix_reason(const struct kvc_host *host, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* queue.c */
int posix_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
		       struct kvc_plugin_queue **out);
int posix_queue_destroy(struct kvc_plugin_queue *queue);
int posix_queue_submit(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count);
int posix_queue_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		     uint64_t wait_ns);
int posix_queue_event_fd(struct kvc_plugin_queue *queue);
int posix_queue_cancel(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count);

#endif
