/* SPDX-License-Identifier: Apache-2.0 */
/* The POSIX plugin: objects are files, moved by one of four I/O engines. */
#include "posix.h"

#include "common/setting.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int posix_backend_open(const struct kvc_backend_params *params,
			      struct kvc_plugin_backend **out)
{
	struct kvc_plugin_backend *backend = calloc(1, sizeof(*backend));
	int registers;
	int error;

	if (backend == NULL)
		return -ENOMEM;
	error = kvc_setting_bool(params, "register_memory", &registers);
	if (error != 0)
		goto free_backend;
	backend->registers = registers != 0;
	backend->host = params->host;
	backend->files.host = params->host;
	backend->files.direct_io = params->direct_io != 0;
	backend->files.file_mode = (mode_t)(params->file_mode & 07777);
	backend->files.folder_mode = (mode_t)(params->folder_mode & 07777);
	error = posix_choices_make(backend, params);
	if (error != 0)
		goto free_backend;
	error = posix_buffers_create(params->host, &backend->buffers);
	if (error != 0)
		goto free_backend;
	error = -pthread_mutex_init(&backend->lock, NULL);
	if (error != 0)
		goto destroy_buffers;
	*out = backend;
	return 0;

destroy_buffers:
	posix_buffers_destroy(backend->buffers);
free_backend:
	free(backend);
	return error;
}

static int posix_backend_close(struct kvc_plugin_backend *backend)
{
	bool busy;

	if (backend == NULL)
		return 0;
	pthread_mutex_lock(&backend->lock);
	busy = backend->root_count > 0;
	pthread_mutex_unlock(&backend->lock);
	if (busy)
		return -EBUSY;
	posix_buffers_destroy(backend->buffers);
	pthread_mutex_destroy(&backend->lock);
	free(backend);
	return 0;
}

static int posix_root_open(struct kvc_plugin_backend *backend, const struct kvc_root_params *params,
			   struct kvc_plugin_root **out)
{
	struct kvc_plugin_root *root = calloc(1, sizeof(*root));
	int error;

	if (root == NULL)
		return -ENOMEM;
	root->backend = backend;
	root->host = backend->host;
	error = fsobj_root_open(&backend->files, params, &root->files);
	if (error != 0)
		goto free_root;
	posix_engine_choose(backend, root);
	error = -pthread_mutex_init(&root->lock, NULL);
	if (error != 0)
		goto close_files;
	pthread_mutex_lock(&backend->lock);
	backend->root_count++;
	pthread_mutex_unlock(&backend->lock);
	*out = root;
	return 0;

close_files:
	fsobj_root_close(root->files);
free_root:
	free(root);
	return error;
}

static int posix_root_close(struct kvc_plugin_root *root)
{
	struct kvc_plugin_backend *backend;

	if (root == NULL)
		return 0;
	backend = root->backend;
	if (root->engine->root_close != NULL)
		root->engine->root_close(root);
	fsobj_root_close(root->files);
	pthread_mutex_destroy(&root->lock);
	free(root);
	pthread_mutex_lock(&backend->lock);
	backend->root_count--;
	pthread_mutex_unlock(&backend->lock);
	return 0;
}

static void note_add(struct kvc_attributes *out, const char *note)
{
	size_t used = strlen(out->note);

	if (note[0] != '\0')
		(void)snprintf(out->note + used, sizeof(out->note) - used, "%s%s",
			       used > 0 ? "; " : "", note);
}

static int posix_root_query(struct kvc_plugin_root *root, struct kvc_attributes *out)
{
	char note[KVC_ATTRIBUTE_TEXT_BYTES];

	fsobj_root_query(root->files, out);
	out->max_ranges = POSIX_MAX_RANGES;
	out->max_depth = root->backend->max_depth;
	out->scratch_bytes = (sizeof(struct posix_op) + 15) & ~(uint32_t)15;
	(void)snprintf(out->io_engine, sizeof(out->io_engine), "%s", root->engine->name);
	note_add(out, root->note);
	posix_buffers_note(root->backend->buffers, note, sizeof(note));
	note_add(out, note);
	return 0;
}

static int posix_memory_register(struct kvc_plugin_backend *backend,
				 const struct kvc_memory *memory, uint64_t *out_registration)
{
	/* Other engines, and copies, gain nothing. */
	if (!backend->registers || !posix_uring_expected(backend))
		return -ENOTSUP;
	return posix_buffers_register(backend->buffers, memory, out_registration);
}

static int posix_memory_deregister(struct kvc_plugin_backend *backend, uint64_t registration)
{
	return posix_buffers_deregister(backend->buffers, registration);
}

static int posix_container_open(struct kvc_plugin_root *root, const char *name, uint64_t bytes,
				struct kvc_plugin_container **out, uint64_t *out_bytes)
{
	struct kvc_plugin_container *container = malloc(sizeof(*container));
	int error;

	if (container == NULL)
		return -ENOMEM;
	container->root = root;
	atomic_init(&container->outstanding, 0);
	error = fsobj_container_open(root->files, name, bytes, &container->fd, out_bytes);
	if (error != 0) {
		free(container);
		return error;
	}
	*out = container;
	return 0;
}

static int posix_container_resize(struct kvc_plugin_container *container, uint64_t bytes)
{
	return fsobj_container_resize(container->root->files, container->fd, bytes);
}

static int posix_container_close(struct kvc_plugin_container *container)
{
	if (container == NULL)
		return 0;
	if (atomic_load(&container->outstanding) > 0)
		return -EBUSY;
	close(container->fd);
	free(container);
	return 0;
}

static int posix_container_remove(struct kvc_plugin_root *root, const char *name)
{
	return fsobj_container_remove(root->files, name);
}

static int posix_list(struct kvc_plugin_root *root, const char *prefix, kvc_list_fn fn,
		      void *context)
{
	return fsobj_list(root->files, prefix, fn, context);
}

static int posix_usage(struct kvc_plugin_root *root, struct kvc_usage *out)
{
	return fsobj_usage(root->files, out);
}

static int64_t posix_reclaim(struct kvc_plugin_root *root)
{
	return fsobj_reclaim(root->files);
}

static const struct kvc_plugin plugin = {
	.abi = KVC_PLUGIN_ABI,
	.size = sizeof(struct kvc_plugin),
	.name = "posix",
	.version = KVC_POSIX_VERSION,
	.summary = "files in local or mounted folders",
	.option_bytes = sizeof(struct kvc_option),
	.backend_open = posix_backend_open,
	.backend_close = posix_backend_close,
	.root_open = posix_root_open,
	.root_close = posix_root_close,
	.root_query = posix_root_query,
	.memory_register = posix_memory_register,
	.memory_deregister = posix_memory_deregister,
	.container_open = posix_container_open,
	.container_resize = posix_container_resize,
	.container_close = posix_container_close,
	.container_remove = posix_container_remove,
	.list = posix_list,
	.usage = posix_usage,
	.reclaim = posix_reclaim,
	.queue_create = posix_queue_create,
	.queue_destroy = posix_queue_destroy,
	.submit = posix_queue_submit,
	.poll = posix_queue_poll,
	.event_fd = posix_queue_event_fd,
	.cancel = posix_queue_cancel,
};

const struct kvc_plugin *kvc_plugin_entry(void)
{
	return &plugin;
}
