/* SPDX-License-Identifier: Apache-2.0 */
/* What is stored: spaces by location, objects by name, containers. No user data is copied here. */
#include "mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t spaces_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t containers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mem_space *spaces;

/*
 * What is stored is the process's and so the child's too. Chains of objects are whole at any time,
 * so fork() need not wait for 64 locks per space; what a thread of the parent had a reference to
 * stays in the child's memory.
 */
static void fork_prepare(void)
{
	pthread_mutex_lock(&spaces_lock);
	pthread_mutex_lock(&containers_lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&containers_lock);
	pthread_mutex_unlock(&spaces_lock);
}

static void fork_child(void)
{
	for (struct mem_space *space = spaces; space; space = space->next) {
		for (uint32_t i = 0; i < MEM_SHARDS; i++)
			(void)pthread_mutex_init(&space->shards[i].lock, NULL);
		for (struct mem_container *one = space->containers; one; one = one->next)
			(void)pthread_rwlock_init(&one->lock, NULL);
	}
	fork_parent();
}

/* The plugin is never unloaded. */
__attribute__((constructor)) static void fork_prepared(void)
{
	(void)pthread_atfork(fork_prepare, fork_parent, fork_child);
}

static int64_t now_real_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static struct mem_space *space_new(const char *location)
{
	size_t bytes = strlen(location) + 1;
	struct mem_space *space = calloc(1, sizeof(*space) + bytes);

	if (!space)
		return NULL;
	memcpy(space->location, location, bytes);
	for (uint32_t i = 0; i < MEM_SHARDS; i++)
		(void)pthread_mutex_init(&space->shards[i].lock, NULL);
	space->id = spaces ? spaces->id + 1 : 1;
	return space;
}

struct mem_space *mem_space_find(const char *location, bool create)
{
	struct mem_space *space;

	pthread_mutex_lock(&spaces_lock);
	for (space = spaces; space; space = space->next)
		if (strcmp(space->location, location) == 0)
			break;
	if (!space && create) {
		space = space_new(location);
		if (space) {
			space->next = spaces;
			spaces = space;
		}
	}
	pthread_mutex_unlock(&spaces_lock);
	return space;
}

int mem_space_reserve(struct mem_space *space, uint64_t capacity, uint64_t bytes)
{
	uint64_t used = atomic_load(&space->used_bytes);

	do {
		if (capacity != 0 && (used > capacity || bytes > capacity - used))
			return -ENOSPC;
	} while (!atomic_compare_exchange_weak(&space->used_bytes, &used, used + bytes));
	return 0;
}

void mem_space_release(struct mem_space *space, uint64_t bytes)
{
	atomic_fetch_sub(&space->used_bytes, bytes);
}

static struct mem_shard *shard_of(struct mem_space *space, const char *name, uint32_t name_bytes)
{
	uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */

	for (uint32_t i = 0; i < name_bytes; i++)
		hash = (hash ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
	return &space->shards[(hash ^ (hash >> 32)) % MEM_SHARDS];
}

/* Where the pointer to the object of that name is, or the end of the chain. The lock is held. */
static struct mem_object **shard_find(struct mem_shard *shard, const char *name,
				      uint32_t name_bytes)
{
	struct mem_object **link = &shard->objects;

	while (*link &&
	       ((*link)->name_bytes != name_bytes || memcmp((*link)->name, name, name_bytes) != 0))
		link = &(*link)->next;
	return link;
}

int mem_object_new(struct mem_space *space, uint64_t capacity, const char *name,
		   uint32_t name_bytes, uint64_t bytes, struct mem_object **out)
{
	struct mem_object *object;
	int rc = mem_space_reserve(space, capacity, bytes);

	if (rc < 0)
		return rc;
	object = malloc(sizeof(*object) + name_bytes + 1);
	if (!object)
		goto release;
	object->data = malloc(bytes ? bytes : 1);
	if (!object->data)
		goto free_object;
	object->next = NULL;
	object->space = space;
	atomic_init(&object->references, 1);
	atomic_init(&object->accessed_ns, 0);
	object->modified_ns = 0;
	object->version = 0;
	object->bytes = bytes;
	object->name_bytes = name_bytes;
	memcpy(object->name, name, name_bytes);
	object->name[name_bytes] = '\0';
	*out = object;
	return 0;

free_object:
	free(object);
release:
	mem_space_release(space, bytes);
	return -ENOMEM;
}

void mem_object_put(struct mem_object *object)
{
	if (!object || atomic_fetch_sub(&object->references, 1) != 1)
		return;
	mem_space_release(object->space, object->bytes);
	free(object->data);
	free(object);
}

int mem_object_publish(struct mem_object *object, bool if_absent, uint64_t *out_bytes)
{
	struct mem_space *space = object->space;
	struct mem_shard *shard = shard_of(space, object->name, object->name_bytes);
	struct mem_object *old;
	struct mem_object **link;
	int rc = 0;

	object->modified_ns = now_real_ns();
	atomic_store(&object->accessed_ns, object->modified_ns);
	object->version = atomic_fetch_add(&space->last_version, 1) + 1;
	pthread_mutex_lock(&shard->lock);
	link = shard_find(shard, object->name, object->name_bytes);
	old = *link;
	if (old && if_absent) {
		*out_bytes = old->bytes;
		old = NULL;
		rc = -EEXIST;
	} else {
		atomic_fetch_add(&object->references, 1);
		object->next = old ? old->next : NULL;
		__atomic_store_n(link, object, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&shard->lock);
	mem_object_put(old);
	return rc;
}

struct mem_object *mem_object_get(struct mem_space *space, const char *name, uint32_t name_bytes)
{
	struct mem_shard *shard = shard_of(space, name, name_bytes);
	struct mem_object *object;

	pthread_mutex_lock(&shard->lock);
	object = *shard_find(shard, name, name_bytes);
	if (object)
		atomic_fetch_add(&object->references, 1);
	pthread_mutex_unlock(&shard->lock);
	if (object)
		atomic_store(&object->accessed_ns, now_real_ns());
	return object;
}

int mem_object_remove(struct mem_space *space, const char *name, uint32_t name_bytes,
		      const uint64_t if_version[2])
{
	struct mem_shard *shard = shard_of(space, name, name_bytes);
	bool any = if_version[0] == 0 && if_version[1] == 0;
	struct mem_object *object;
	struct mem_object **link;
	int rc = 0;

	pthread_mutex_lock(&shard->lock);
	link = shard_find(shard, name, name_bytes);
	object = *link;
	if (!object) {
		rc = -ENOENT;
	} else if (!any && (object->version != if_version[0] || space->id != if_version[1])) {
		object = NULL;
		rc = -ESTALE;
	} else {
		*link = object->next;
	}
	pthread_mutex_unlock(&shard->lock);
	mem_object_put(object);
	return rc;
}

/* References to the shard's objects whose name begins with prefix; *out is NULL when none do. */
static int shard_snapshot(struct mem_shard *shard, const char *prefix, struct mem_object ***out,
			  size_t *out_count)
{
	size_t prefix_bytes = strlen(prefix);
	struct mem_object **all = NULL;
	size_t count = 0;
	int rc = 0;

	pthread_mutex_lock(&shard->lock);
	for (struct mem_object *object = shard->objects; object; object = object->next)
		count++;
	if (count != 0)
		all = malloc(count * sizeof(struct mem_object *));
	if (count != 0 && !all)
		rc = -ENOMEM;
	count = 0;
	for (struct mem_object *object = shard->objects; object && all; object = object->next) {
		if (strncmp(object->name, prefix, prefix_bytes) != 0)
			continue;
		atomic_fetch_add(&object->references, 1);
		all[count++] = object;
	}
	pthread_mutex_unlock(&shard->lock);
	*out = all;
	*out_count = count;
	return rc;
}

static int list_one(struct mem_object *object, kvc_list_fn fn, void *context)
{
	struct kvc_list_entry entry = {
		.size = sizeof(entry),
		.name = object->name,
		.name_bytes = object->name_bytes,
		.object_bytes = object->bytes,
		.allocated_bytes = object->bytes,
		.modified_ns = object->modified_ns,
		.accessed_ns = atomic_load(&object->accessed_ns),
		.version = { object->version, object->space->id },
	};

	return fn(context, &entry);
}

int mem_space_list(struct mem_space *space, const char *prefix, kvc_list_fn fn, void *context)
{
	int rc = 0;

	for (uint32_t i = 0; i < MEM_SHARDS && rc == 0; i++) {
		struct mem_object **all;
		size_t count;

		rc = shard_snapshot(&space->shards[i], prefix, &all, &count);
		/* No lock is held here: fn may remove what it is shown. */
		for (size_t n = 0; n < count; n++) {
			if (rc == 0)
				rc = list_one(all[n], fn, context);
			mem_object_put(all[n]);
		}
		free(all);
	}
	return rc;
}

static int container_new(struct mem_space *space, uint64_t capacity, const char *name,
			 uint64_t bytes, struct mem_container **out)
{
	size_t name_bytes = strlen(name) + 1;
	struct mem_container *container;
	int rc = mem_space_reserve(space, capacity, bytes);

	if (rc < 0)
		return rc;
	rc = -ENOMEM;
	container = malloc(sizeof(*container) + name_bytes);
	if (!container)
		goto release;
	container->data = calloc(1, bytes);
	if (!container->data)
		goto free_container;
	memcpy(container->name, name, name_bytes);
	container->bytes = bytes;
	container->references = 1;
	(void)pthread_rwlock_init(&container->lock, NULL);
	container->next = space->containers;
	space->containers = container;
	*out = container;
	return 0;

free_container:
	free(container);
release:
	mem_space_release(space, bytes);
	return rc;
}

int mem_container_find(struct mem_space *space, uint64_t capacity, const char *name, uint64_t bytes,
		       struct mem_container **out)
{
	struct mem_container *container;
	int rc = 0;

	pthread_mutex_lock(&containers_lock);
	for (container = space->containers; container; container = container->next)
		if (strcmp(container->name, name) == 0)
			break;
	if (!container)
		rc = bytes == 0 ? -ENOENT : container_new(space, capacity, name, bytes, out);
	else if (bytes != 0 && container->bytes != bytes)
		rc = -EEXIST;
	else
		*out = container;
	if (rc == 0)
		(*out)->references++;
	pthread_mutex_unlock(&containers_lock);
	return rc;
}

/* The containers_lock is held. */
static void container_unref(struct mem_space *space, struct mem_container *container)
{
	if (--container->references != 0)
		return;
	mem_space_release(space, container->bytes);
	(void)pthread_rwlock_destroy(&container->lock);
	free(container->data);
	free(container);
}

void mem_container_put(struct mem_space *space, struct mem_container *container)
{
	pthread_mutex_lock(&containers_lock);
	container_unref(space, container);
	pthread_mutex_unlock(&containers_lock);
}

int mem_container_forget(struct mem_space *space, const char *name)
{
	struct mem_container **link = &space->containers;
	struct mem_container *container;

	pthread_mutex_lock(&containers_lock);
	while (*link && strcmp((*link)->name, name) != 0)
		link = &(*link)->next;
	container = *link;
	if (container) {
		*link = container->next;
		container_unref(space, container);
	}
	pthread_mutex_unlock(&containers_lock);
	return container ? 0 : -ENOENT;
}

int mem_container_resize(struct mem_space *space, uint64_t capacity,
			 struct mem_container *container, uint64_t bytes)
{
	unsigned char *data;
	int rc = 0;

	pthread_mutex_lock(&containers_lock);
	pthread_rwlock_wrlock(&container->lock);
	if (bytes > container->bytes)
		rc = mem_space_reserve(space, capacity, bytes - container->bytes);
	if (rc < 0)
		goto unlock;
	data = realloc(container->data, bytes);
	if (!data) {
		if (bytes > container->bytes)
			mem_space_release(space, bytes - container->bytes);
		rc = -ENOMEM;
		goto unlock;
	}
	if (bytes > container->bytes)
		memset(data + container->bytes, 0, bytes - container->bytes);
	else
		mem_space_release(space, container->bytes - bytes);
	container->data = data;
	container->bytes = bytes;

unlock:
	pthread_rwlock_unlock(&container->lock);
	pthread_mutex_unlock(&containers_lock);
	return rc;
}
