/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference plugin: objects in this process's memory, by location, for as long as the process
 * lives. Everything that the contract offers is here in its simplest form, so that it can serve as
 * the oracle for the other plugins. The shared object is linked with -z nodelete: what is stored
 * must survive the closing of the last store.
 */
#include "mem.h"

#include "common/setting.h"

#include <stdlib.h>
#include <string.h>

struct mem_memory {
	struct mem_memory *next;
	uint64_t registration;
	void *allocation; /* memory that was handed out, or NULL */
};

static int mem_backend_open(const struct kvc_backend_params *params,
			    struct kvc_plugin_backend **out)
{
	struct kvc_plugin_backend *backend;
	uint64_t latency_us = 0;
	uint64_t capacity = 0;
	int rc;

	rc = kvc_setting_u64(params, "latency_us", 0, &latency_us);
	if (rc < 0)
		return rc;
	if (latency_us > UINT64_C(3600000000))
		return kvc_host_refuse(params->host, -EINVAL, "latency_us is more than an hour");
	rc = kvc_setting_u64(params, "max_bytes", 0, &capacity);
	if (rc < 0)
		return rc;
	backend = calloc(1, sizeof(*backend));
	if (!backend)
		return -ENOMEM;
	backend->host = params->host;
	backend->latency_ns = latency_us * 1000;
	backend->capacity_bytes = capacity;
	(void)pthread_mutex_init(&backend->memory_lock, NULL);
	*out = backend;
	return 0;
}

static uint32_t memory_forget_all(struct kvc_plugin_backend *backend)
{
	uint32_t count = 0;

	for (; backend->memory; count++) {
		struct mem_memory *memory = backend->memory;

		backend->memory = memory->next;
		free(memory->allocation);
		free(memory);
	}
	return count;
}

static int mem_backend_close(struct kvc_plugin_backend *backend)
{
	uint32_t left;

	if (!backend)
		return 0;
	if (atomic_load(&backend->roots) != 0)
		return kvc_host_refuse(backend->host, -EBUSY, "%u roots are still open",
				       atomic_load(&backend->roots));
	left = memory_forget_all(backend);
	kvc_host_debug(backend->host,
		       "mem: closed; %llu registrations and %llu allocations made, %u left",
		       (unsigned long long)backend->registered_count,
		       (unsigned long long)backend->allocated_count, left);
	(void)pthread_mutex_destroy(&backend->memory_lock);
	free(backend);
	return 0;
}

static int mem_root_open(struct kvc_plugin_backend *backend, const struct kvc_root_params *params,
			 struct kvc_plugin_root **out)
{
	bool read_only = params->flags & KVC_ROOT_READ_ONLY;
	bool create = (params->flags & KVC_ROOT_CREATE) && !read_only;
	struct kvc_plugin_root *root = calloc(1, sizeof(*root));

	if (!root)
		return -ENOMEM;
	root->space = mem_space_find(params->location, create);
	if (!root->space) {
		free(root);
		if (create)
			return -ENOMEM;
		return kvc_host_refuse(backend->host, -ENOENT,
				       "nothing was stored at \"%s\" in this process",
				       params->location);
	}
	root->backend = backend;
	root->read_only = read_only;
	atomic_fetch_add(&backend->roots, 1);
	*out = root;
	return 0;
}

static int mem_root_close(struct kvc_plugin_root *root)
{
	if (!root)
		return 0;
	if (atomic_load(&root->queues) != 0)
		return kvc_host_refuse(root->backend->host, -EBUSY, "%u queues are still open",
				       atomic_load(&root->queues));
	atomic_fetch_sub(&root->backend->roots, 1);
	free(root);
	return 0;
}

static int mem_root_query(struct kvc_plugin_root *root, struct kvc_attributes *out)
{
	struct kvc_attributes attributes = {
		.size = out->size < sizeof(attributes) ? out->size : sizeof(attributes),
		.max_object_bytes = MEM_MAX_OBJECT,
		.max_ranges = MEM_MAX_RANGES,
		.max_depth = MEM_MAX_DEPTH,
		.alignment = 1,
		.memory_kinds = (1u << KVC_MEMORY_HOST) | (1u << KVC_MEMORY_PLUGIN),
		.flags = KVC_ATTRIBUTE_WHOLE | KVC_ATTRIBUTE_IN_PLACE | KVC_ATTRIBUTE_CANCELLABLE |
			 KVC_ATTRIBUTE_LISTS | KVC_ATTRIBUTE_LOCAL | KVC_ATTRIBUTE_IF_ABSENT |
			 KVC_ATTRIBUTE_LATE | KVC_ATTRIBUTE_REMOVES | KVC_ATTRIBUTE_SIZES,
		.file_system = MEM_FILE_SYSTEM,
	};

	if (root->read_only)
		attributes.flags |= KVC_ATTRIBUTE_READ_ONLY;
	memcpy(out, &attributes, attributes.size);
	return 0;
}

static int memory_remember(struct kvc_plugin_backend *backend, void *allocation,
			   uint64_t *out_registration)
{
	struct mem_memory *memory = malloc(sizeof(*memory));

	if (!memory)
		return -ENOMEM;
	pthread_mutex_lock(&backend->memory_lock);
	memory->registration = ++backend->last_registration;
	memory->allocation = allocation;
	memory->next = backend->memory;
	backend->memory = memory;
	if (allocation)
		backend->allocated_count++;
	else
		backend->registered_count++;
	*out_registration = memory->registration;
	pthread_mutex_unlock(&backend->memory_lock);
	return 0;
}

static int memory_forget(struct kvc_plugin_backend *backend, uint64_t registration, bool allocated)
{
	struct mem_memory **link = &backend->memory;
	struct mem_memory *memory;

	pthread_mutex_lock(&backend->memory_lock);
	while (*link && ((*link)->registration != registration ||
			 ((*link)->allocation != NULL) != allocated))
		link = &(*link)->next;
	memory = *link;
	if (memory)
		*link = memory->next;
	pthread_mutex_unlock(&backend->memory_lock);
	if (!memory)
		return kvc_host_refuse(backend->host, -EINVAL, "there is no %s %llu",
				       allocated ? "allocation" : "registration",
				       (unsigned long long)registration);
	free(memory->allocation);
	free(memory);
	kvc_host_debug(backend->host, "mem: %s %llu", allocated ? "freed" : "deregistered",
		       (unsigned long long)registration);
	return 0;
}

static int mem_memory_register(struct kvc_plugin_backend *backend, const struct kvc_memory *memory,
			       uint64_t *out_registration)
{
	int rc;

	if (memory->kind == KVC_MEMORY_CUDA)
		return kvc_host_refuse(backend->host, -ENOTSUP, "mem cannot reach device memory");
	rc = memory_remember(backend, NULL, out_registration);
	if (rc < 0)
		return rc;
	kvc_host_debug(backend->host, "mem: registered %llu bytes as %llu",
		       (unsigned long long)memory->bytes, (unsigned long long)*out_registration);
	return 0;
}

static int mem_memory_deregister(struct kvc_plugin_backend *backend, uint64_t registration)
{
	return memory_forget(backend, registration, false);
}

static int mem_memory_alloc(struct kvc_plugin_backend *backend, uint64_t bytes,
			    struct kvc_memory *out, uint64_t *out_registration)
{
	void *addr;
	int rc;

	if (bytes == 0)
		return kvc_host_refuse(backend->host, -EINVAL, "no bytes were asked for");
	rc = posix_memalign(&addr, 4096, bytes);
	if (rc != 0)
		return -rc;
	rc = memory_remember(backend, addr, out_registration);
	if (rc < 0) {
		free(addr);
		return rc;
	}
	out->kind = KVC_MEMORY_PLUGIN;
	out->device = 0;
	out->addr = addr;
	out->bytes = bytes;
	out->fd = 0;
	out->flags = 0;
	out->fd_offset = 0;
	kvc_host_debug(backend->host, "mem: allocated %llu bytes as %llu",
		       (unsigned long long)bytes, (unsigned long long)*out_registration);
	return 0;
}

static int mem_memory_free(struct kvc_plugin_backend *backend, uint64_t registration)
{
	return memory_forget(backend, registration, true);
}

static int mem_memory_copy(struct kvc_plugin_backend *backend, void *to,
			   const struct kvc_memory *to_memory, const void *from,
			   const struct kvc_memory *from_memory, uint64_t bytes)
{
	(void)backend;
	(void)to_memory; /* host memory, all of it */
	(void)from_memory;
	memcpy(to, from, bytes);
	return 0;
}

static int mem_container_open(struct kvc_plugin_root *root, const char *name, uint64_t bytes,
			      struct kvc_plugin_container **out, uint64_t *out_bytes)
{
	struct kvc_plugin_container *container = malloc(sizeof(*container));
	int rc;

	if (!container)
		return -ENOMEM;
	container->root = root;
	atomic_init(&container->outstanding, 0);
	rc = mem_container_find(root->space, root->backend->capacity_bytes, name,
				root->read_only ? 0 : bytes, &container->store);
	if (rc < 0) {
		free(container);
		return kvc_host_refuse(root->backend->host, rc, "container \"%s\": %s", name,
				       rc == -EEXIST ? "exists with another size" :
						       strerrordesc_np(-rc));
	}
	*out = container;
	*out_bytes = container->store->bytes;
	return 0;
}

static int mem_container_set_size(struct kvc_plugin_container *container, uint64_t bytes)
{
	struct kvc_plugin_root *root = container->root;

	if (root->read_only)
		return -EROFS;
	if (bytes == 0)
		return kvc_host_refuse(root->backend->host, -EINVAL,
				       "a container has at least one byte");
	return mem_container_resize(root->space, root->backend->capacity_bytes, container->store,
				    bytes);
}

static int mem_container_close(struct kvc_plugin_container *container)
{
	if (!container)
		return 0;
	if (atomic_load(&container->outstanding) != 0)
		return -EBUSY;
	mem_container_put(container->root->space, container->store);
	free(container);
	return 0;
}

static int mem_container_remove(struct kvc_plugin_root *root, const char *name)
{
	return root->read_only ? -EROFS : mem_container_forget(root->space, name);
}

static int mem_list(struct kvc_plugin_root *root, const char *prefix, kvc_list_fn fn, void *context)
{
	return mem_space_list(root->space, prefix, fn, context);
}

static int mem_usage(struct kvc_plugin_root *root, struct kvc_usage *out)
{
	uint64_t capacity = root->backend->capacity_bytes;
	uint64_t used = atomic_load(&root->space->used_bytes);
	struct kvc_usage usage = {
		.size = out->size < sizeof(usage) ? out->size : sizeof(usage),
		.total_bytes = capacity,
		.free_bytes = capacity > used ? capacity - used : 0,
		.device = root->space->id,
	};

	memcpy(out, &usage, usage.size);
	return 0;
}

static int64_t mem_reclaim(struct kvc_plugin_root *root)
{
	(void)root; /* a writer of this process cannot die alone */
	return 0;
}

static const struct kvc_plugin mem_plugin = {
	.abi = KVC_PLUGIN_ABI,
	.size = sizeof(struct kvc_plugin),
	.name = "mem",
	.version = KVC_MEM_VERSION,
	.summary = "objects in the memory of this process, for tests and as the reference",
	.backend_open = mem_backend_open,
	.backend_close = mem_backend_close,
	.root_open = mem_root_open,
	.root_close = mem_root_close,
	.root_query = mem_root_query,
	.memory_register = mem_memory_register,
	.memory_deregister = mem_memory_deregister,
	.memory_alloc = mem_memory_alloc,
	.memory_free = mem_memory_free,
	.memory_copy = mem_memory_copy,
	.container_open = mem_container_open,
	.container_resize = mem_container_set_size,
	.container_close = mem_container_close,
	.container_remove = mem_container_remove,
	.list = mem_list,
	.usage = mem_usage,
	.reclaim = mem_reclaim,
	.queue_create = mem_queue_create,
	.queue_destroy = mem_queue_destroy,
	.submit = mem_queue_submit,
	.poll = mem_queue_poll,
	.event_fd = mem_queue_event_fd,
	.cancel = mem_queue_cancel,
};

const struct kvc_plugin *kvc_plugin_entry(void)
{
	return &mem_plugin;
}
