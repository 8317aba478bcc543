/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the mem plugin: spaces (what is stored at a location), backends and queues. */
#ifndef KVC_PLUGIN_MEM_H
#define KVC_PLUGIN_MEM_H

#include <kvcellar/plugin.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define MEM_SHARDS	64u
#define MEM_MAX_RANGES	1024u
#define MEM_MAX_DEPTH	1024u
#define MEM_MAX_OBJECT	(UINT64_C(1) << 40)
#define MEM_FILE_SYSTEM "memory"

/* A stored object. Its bytes never change, so readers copy them without a lock. */
struct mem_object {
	struct mem_object *next;
	struct mem_space *space;
	atomic_uint references;
	_Atomic int64_t accessed_ns;
	int64_t modified_ns;
	uint64_t version;
	uint64_t bytes;
	unsigned char *data;
	uint32_t name_bytes;
	char name[];
};

struct mem_shard {
	pthread_mutex_t lock;
	struct mem_object *objects;
};

/* What is stored at one location, for the life of the process. */
struct mem_space {
	struct mem_space *next;
	struct mem_shard shards[MEM_SHARDS];
	struct mem_container *containers; /* under the one lock of all spaces */
	_Atomic uint64_t used_bytes;
	_Atomic uint64_t last_version;
	uint64_t id;
	char location[];
};

/* A container belongs to its space and outlives its handles; a removed one lives as they do. */
struct mem_container {
	struct mem_container *next;
	uint32_t references;   /* under the lock of containers */
	pthread_rwlock_t lock; /* read: reads; write: writes and resize */
	unsigned char *data;
	uint64_t bytes;
	char name[];
};

/* Finds the space of a location; with `create` makes it. NULL: absent, or no memory. */
struct mem_space *mem_space_find(const char *location, bool create);

/* 0, or -ENOSPC. capacity 0 = no limit. */
int mem_space_reserve(struct mem_space *space, uint64_t capacity, uint64_t bytes);
void mem_space_release(struct mem_space *space, uint64_t bytes);

/* An object that nobody sees yet, with one reference and room for its bytes. */
int mem_object_new(struct mem_space *space, uint64_t capacity, const char *name,
		   uint32_t name_bytes, uint64_t bytes, struct mem_object **out);
/* Publishes it and takes a reference of its own. With if_absent a present one wins: -EEXIST and its
 * size. */
int mem_object_publish(struct mem_object *object, bool if_absent, uint64_t *out_bytes);
/* A reference to the object of that name, or NULL. */
struct mem_object *mem_object_get(struct mem_space *space, const char *name, uint32_t name_bytes);
void mem_object_put(struct mem_object *object);
/* 0, -ENOENT, or -ESTALE when if_version is neither {0, 0} nor the object's. */
int mem_object_remove(struct mem_space *space, const char *name, uint32_t name_bytes,
		      const uint64_t if_version[2]);
int mem_space_list(struct mem_space *space, const char *prefix, kvc_list_fn fn, void *context);

/* With a reference. bytes 0: it has to exist (-ENOENT); another size: -EEXIST. */
int mem_container_find(struct mem_space *space, uint64_t capacity, const char *name, uint64_t bytes,
		       struct mem_container **out);
void mem_container_put(struct mem_space *space, struct mem_container *container);
int mem_container_forget(struct mem_space *space, const char *name);
int mem_container_resize(struct mem_space *space, uint64_t capacity,
			 struct mem_container *container, uint64_t bytes);

struct kvc_plugin_backend {
	const struct kvc_host *host;
	uint64_t latency_ns;
	uint64_t capacity_bytes;
	atomic_uint roots;
	pthread_mutex_t memory_lock;
	struct mem_memory *memory; /* registrations and allocations that live */
	uint64_t last_registration;
	uint64_t registered_count; /* ever */
	uint64_t allocated_count;  /* ever */
};

struct kvc_plugin_root {
	struct kvc_plugin_backend *backend;
	struct mem_space *space;
	bool read_only;
	atomic_uint queues;
};

struct kvc_plugin_container {
	struct kvc_plugin_root *root;
	struct mem_container *store;
	atomic_uint outstanding; /* descriptors */
};

/* The data path, queue.c. */
int mem_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
		     struct kvc_plugin_queue **out);
int mem_queue_destroy(struct kvc_plugin_queue *queue);
int mem_queue_submit(struct kvc_plugin_queue *queue,
		     const struct kvc_descriptor *const *descriptors, uint32_t count);
int mem_queue_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		   uint64_t wait_ns);
int mem_queue_event_fd(struct kvc_plugin_queue *queue);
int mem_queue_cancel(struct kvc_plugin_queue *queue,
		     const struct kvc_descriptor *const *descriptors, uint32_t count);

/* What a descriptor does, execute.c. Writes the completion but for its cookie. */
void mem_execute(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
		 struct kvc_completion *out);

#endif
