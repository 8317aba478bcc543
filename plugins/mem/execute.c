/* SPDX-License-Identifier: Apache-2.0 */
/* What one descriptor does. Runs in the thread that polls its queue. */
#include "mem.h"

#include <errno.h>
#include <string.h>

/* Relative, no empty, "." or ".." component, no NUL: the rules of plugin.h. */
static bool name_is_valid(const char *name, uint32_t name_bytes)
{
	const char *end = name + name_bytes;

	if (name_bytes == 0 || memchr(name, '\0', name_bytes))
		return false;
	while (name <= end) {
		const char *slash = memchr(name, '/', (size_t)(end - name));
		size_t bytes = (size_t)((slash ? slash : end) - name);

		if (bytes == 0 || (bytes == 1 && name[0] == '.') ||
		    (bytes == 2 && name[0] == '.' && name[1] == '.'))
			return false;
		name += bytes + 1;
	}
	return true;
}

/* Sum of the ranges, or UINT64_MAX when it is too much for an object. */
static uint64_t ranges_bytes(const struct kvc_descriptor *descriptor)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < descriptor->range_count; i++) {
		if (descriptor->ranges[i].bytes > MEM_MAX_OBJECT - sum)
			return UINT64_MAX;
		sum += descriptor->ranges[i].bytes;
	}
	return sum;
}

/* Fills the ranges in order; returns how many bytes there were. */
static uint64_t scatter(const struct kvc_descriptor *descriptor, const unsigned char *from,
			uint64_t available)
{
	uint64_t done = 0;

	for (uint32_t i = 0; i < descriptor->range_count && done < available; i++) {
		const struct kvc_range *range = &descriptor->ranges[i];
		uint64_t bytes = range->bytes < available - done ? range->bytes : available - done;

		if (bytes != 0)
			memcpy(range->addr, from + done, bytes);
		done += bytes;
	}
	return done;
}

static int64_t object_read(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
			   struct kvc_completion *out)
{
	struct mem_object *object =
		mem_object_get(root->space, descriptor->name, descriptor->name_bytes);
	int64_t result = 0;

	if (!object)
		return -ENOENT;
	if (descriptor->offset < object->bytes)
		result = (int64_t)scatter(descriptor, object->data + descriptor->offset,
					  object->bytes - descriptor->offset);
	out->object_bytes = object->bytes;
	out->version[0] = object->version;
	out->version[1] = root->space->id;
	mem_object_put(object);
	return result;
}

/* Gathers the ranges into the object, the LATE one after fill() has made it valid. */
static int gather(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
		  unsigned char *to)
{
	for (uint32_t i = 0; i < descriptor->range_count; i++) {
		const struct kvc_range *range = &descriptor->ranges[i];

		if (range->flags & KVC_RANGE_LATE) {
			const struct kvc_host *host = root->backend->host;
			int rc = host->fill(host->context, descriptor->cookie);

			if (rc < 0)
				return rc;
		}
		if (range->bytes != 0)
			memcpy(to, range->addr, range->bytes);
		to += range->bytes;
	}
	return 0;
}

static int64_t object_write(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
			    struct kvc_completion *out)
{
	const struct kvc_host *host = root->backend->host;
	uint64_t bytes = ranges_bytes(descriptor);
	struct mem_object *object;
	int64_t result;

	if (descriptor->offset != 0)
		return -EINVAL;
	if (bytes == UINT64_MAX)
		return -EFBIG;
	result = mem_object_new(root->space, root->backend->capacity_bytes, descriptor->name,
				descriptor->name_bytes, bytes, &object);
	if (result < 0)
		return result;
	result = gather(root, descriptor, object->data);
	if (result < 0)
		goto put;
	if (host->step)
		host->step(host->context, "publish.written");
	result = mem_object_publish(object, descriptor->flags & KVC_DESCRIPTOR_IF_ABSENT,
				    &out->object_bytes);
	if (result < 0)
		goto put;
	if (host->step)
		host->step(host->context, "publish.linked");
	out->version[0] = object->version;
	out->version[1] = root->space->id;
	result = (int64_t)bytes;
put:
	mem_object_put(object);
	return result;
}

static int64_t object_stat(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
			   struct kvc_completion *out)
{
	struct mem_object *object =
		mem_object_get(root->space, descriptor->name, descriptor->name_bytes);

	if (!object)
		return -ENOENT;
	out->object_bytes = object->bytes;
	out->version[0] = object->version;
	out->version[1] = root->space->id;
	mem_object_put(object);
	return 0;
}

static int64_t container_read(struct mem_container *container,
			      const struct kvc_descriptor *descriptor, struct kvc_completion *out)
{
	int64_t result = 0;

	pthread_rwlock_rdlock(&container->lock);
	if (descriptor->offset < container->bytes)
		result = (int64_t)scatter(descriptor, container->data + descriptor->offset,
					  container->bytes - descriptor->offset);
	out->object_bytes = container->bytes;
	pthread_rwlock_unlock(&container->lock);
	return result;
}

static int64_t container_write(struct kvc_plugin_root *root, struct mem_container *container,
			       const struct kvc_descriptor *descriptor)
{
	uint64_t bytes = ranges_bytes(descriptor);
	int64_t result;

	pthread_rwlock_wrlock(&container->lock);
	if (descriptor->offset > container->bytes || bytes > container->bytes - descriptor->offset)
		result = -EINVAL;
	else
		result = gather(root, descriptor, container->data + descriptor->offset);
	pthread_rwlock_unlock(&container->lock);
	return result < 0 ? result : (int64_t)bytes;
}

static int64_t container_execute(struct kvc_plugin_root *root,
				 const struct kvc_descriptor *descriptor,
				 struct kvc_completion *out)
{
	struct mem_container *container = descriptor->container->store;

	switch (descriptor->op) {
	case KVC_OP_READ:
		return container_read(container, descriptor, out);
	case KVC_OP_WRITE:
		return root->read_only ? -EROFS : container_write(root, container, descriptor);
	case KVC_OP_SYNC:
		return 0;
	default:
		return -ENOTSUP;
	}
}

static int64_t object_execute(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
			      struct kvc_completion *out)
{
	if (!name_is_valid(descriptor->name, descriptor->name_bytes))
		return -EINVAL;
	switch (descriptor->op) {
	case KVC_OP_READ:
		return object_read(root, descriptor, out);
	case KVC_OP_WRITE:
		return root->read_only ? -EROFS : object_write(root, descriptor, out);
	case KVC_OP_STAT:
		return object_stat(root, descriptor, out);
	case KVC_OP_REMOVE:
		if (root->read_only)
			return -EROFS;
		return mem_object_remove(root->space, descriptor->name, descriptor->name_bytes,
					 descriptor->if_version);
	default:
		return -ENOTSUP;
	}
}

void mem_execute(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
		 struct kvc_completion *out)
{
	if (descriptor->range_count > MEM_MAX_RANGES)
		out->result = -EINVAL;
	else if (descriptor->container)
		out->result = container_execute(root, descriptor, out);
	else
		out->result = object_execute(root, descriptor, out);
}
