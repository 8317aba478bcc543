/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the fault plugin: rules, the backend, roots. The rules language: docs/fault-plugin.md. */
#ifndef KVC_PLUGIN_FAULT_H
#define KVC_PLUGIN_FAULT_H

#include <kvcellar/plugin.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define FAULT_MAX_RULES	  64u
#define FAULT_MAX_DEPTH	  4096u
#define FAULT_KNOWN_NAMES 64u
#define FAULT_FOREVER	  UINT64_MAX

/* What a rule is about. The data operations come first, in the order of enum kvc_op. */
enum fault_op {
	FAULT_READ,
	FAULT_WRITE,
	FAULT_STAT,
	FAULT_REMOVE,
	FAULT_SYNC,
	FAULT_ANY, /* any of those above */
	FAULT_SUBMIT,
	FAULT_FILL,
	FAULT_STEP,
	FAULT_ALLOC,
	FAULT_REGISTER,
	FAULT_ROOT_OPEN,
	FAULT_QUEUE_CREATE,
	FAULT_CONTAINER_OPEN,
	FAULT_LIST,
	FAULT_USAGE,
	FAULT_OPS
};

enum fault_effect {
	FAULT_NONE,
	FAULT_ERROR,
	FAULT_SHORT,
	FAULT_CORRUPT,
	FAULT_TORN,
	FAULT_SWAP,
	FAULT_STALL,
	FAULT_LATE,
	FAULT_KILL,
};

struct fault_rule {
	char *text;
	enum fault_op op;
	enum fault_effect effect;
	int error; /* negative errno, or 0 */
	uint64_t bytes;
	uint64_t delay_ns;
	uint64_t hold_ns; /* stall: for how long; late: how much later */
	char *step;	  /* kill: glob */
	char *name;	  /* glob, or NULL */
	uint64_t nth;
	uint64_t every;
	uint64_t after;
	uint64_t count;	 /* UINT64_MAX: no limit */
	uint64_t chance; /* of 2^32; above it: always */
	uint64_t seen;
	uint64_t applied;
};

struct fault_rules {
	pthread_mutex_t lock;
	uint64_t seed;
	uint32_t count;
	struct fault_rule rules[FAULT_MAX_RULES];
};

/* What is to happen to one operation. */
struct fault_plan {
	enum fault_effect effect;
	int error;
	uint64_t bytes;
	uint64_t delay_ns;
	uint64_t hold_ns;
	uint64_t random;
};

/* 0, or -EINVAL and why in reason[]: the rule's number and the position in the text, from 1. */
int fault_rules_parse(struct fault_rules *rules, const char *text, uint64_t seed, char *reason,
		      size_t reason_bytes);
void fault_rules_free(struct fault_rules *rules);
bool fault_rules_have(const struct fault_rules *rules, enum fault_op op);
/* Counts the operation with every rule that it matches. name is terminated, or NULL. */
void fault_rules_decide(struct fault_rules *rules, enum fault_op op, const char *name,
			struct fault_plan *out);

struct kvc_plugin_backend {
	const struct kvc_host *host;
	struct kvc_host lower_host;
	const struct kvc_plugin *lower;
	struct kvc_plugin_backend *lower_backend;
	int cancellable; /* -1 as below */
	int local;	 /* -1 as below */
	struct fault_rules rules;
};

struct kvc_plugin_root {
	struct kvc_plugin_backend *backend;
	const struct kvc_plugin *lower;
	struct kvc_plugin_root *lower_root;
	uint32_t alignment;
	bool cancellable;
	pthread_mutex_t names_lock;
	char *names[FAULT_KNOWN_NAMES]; /* objects that were seen, for swap */
	uint32_t next_name;
};

struct kvc_plugin_container {
	struct kvc_plugin_root *root;
	atomic_uint outstanding; /* descriptors */
	struct kvc_plugin_container *lower;
	char name[];
};

/* Rules for control calls: waits, and 0 or a negative errno with a reason. */
int fault_control(struct kvc_plugin_backend *backend, enum fault_op op, const char *name);
/* host->fill() for the plugin below. */
int fault_fill(void *context, uint64_t cookie);

void fault_names_add(struct kvc_plugin_root *root, const char *name);
void fault_names_remove(struct kvc_plugin_root *root, const char *name);
/* A copy of some other name that was seen, to be freed; NULL when there is none. */
char *fault_names_other(struct kvc_plugin_root *root, const char *name, uint64_t random);

/* The data path, queue.c. */
int fault_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
		       struct kvc_plugin_queue **out);
int fault_queue_destroy(struct kvc_plugin_queue *queue);
int fault_queue_submit(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count);
int fault_queue_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		     uint64_t wait_ns);
int fault_queue_event_fd(struct kvc_plugin_queue *queue);
int fault_queue_cancel(struct kvc_plugin_queue *queue,
		       const struct kvc_descriptor *const *descriptors, uint32_t count);

struct fault_slot;

/* One descriptor's way through, slot.c. */
enum fault_slot_state {
	FAULT_SLOT_STALLED, /* held back; nobody has moved a byte */
	FAULT_SLOT_READY,   /* to be given to the plugin below */
	FAULT_SLOT_DONE,    /* its completion is known */
};

struct fault_late {
	struct fault_late *next;
	struct kvc_plugin_root *root;
	uint64_t due_ns;
	uint64_t bytes;
	unsigned char *data;
	uint32_t range_count;
	struct kvc_range ranges[];
};

struct fault_slot {
	struct fault_slot *next;
	struct kvc_plugin_root *root;
	const struct kvc_descriptor *upper;
	struct kvc_descriptor lower; /* what the plugin below gets */
	struct fault_plan plan;
	struct kvc_completion completion;
	uint64_t total_bytes;
	uint64_t due_ns; /* stalled: when it goes on; done: when poll() may return it */
	struct kvc_range *ranges;
	void *buffer;
	char *other_name;
	bool filled;
	bool below; /* the plugin below has it */
};

/* Decides what happens to the descriptor, prepares the slot and says where it goes. */
enum fault_slot_state fault_slot_begin(struct fault_slot *slot, struct kvc_plugin_root *root,
				       const struct kvc_descriptor *upper);
/* The plugin below is done. *out_late is set when bytes have to be written later. */
void fault_slot_finish(struct fault_slot *slot, const struct kvc_completion *completion,
		       struct fault_late **out_late);
/* Ends it without the plugin below. */
void fault_slot_end(struct fault_slot *slot, int64_t result);
void fault_slot_release(struct fault_slot *slot);
void fault_late_write(const struct fault_late *late);
void fault_late_free(struct fault_late *late);

#endif
