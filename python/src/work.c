/* SPDX-License-Identifier: Apache-2.0 */
/* A transfer with everything that it needs, from the arguments of a call. */
#include "kvcpy.h"

#include <stdlib.h>

static int take_keys(struct kvcpy_state *state, struct kvcpy_work *work, struct kvc_key *keys)
{
	for (size_t i = 0; i < work->transfer.key_count; i++)
		if (kvcpy_key(state, PyTuple_GetItem(work->keys, (Py_ssize_t)i), "keys",
			      (Py_ssize_t)i, &keys[i]))
			return -1;
	work->transfer.keys = keys;
	return 0;
}

static int take_buffers(struct kvcpy_state *state, PyObject *buffers, struct kvcpy_work *work)
{
	const size_t part_count = work->pool->part_count;
	const size_t key_count = work->transfer.key_count;

	if (kvcpy_views_take(state, buffers, work->transfer.op == KVC_GET, &work->views))
		return -1;
	if (work->views.count != key_count * part_count)
		return kvcpy_refuse(state,
				    "buffers has %zu entries, %zu keys of %zu part%s need %zu",
				    work->views.count, key_count, part_count,
				    part_count == 1 ? "" : "s", key_count * part_count);
	work->transfer.buffers = work->views.buffers;
	return 0;
}

static int take_memory(struct kvcpy_state *state, const struct kvcpy_arguments *arguments,
		       struct kvcpy_work *work, int64_t *indices)
{
	const bool has_indices = arguments->indices && arguments->indices != Py_None;
	const bool has_buffers = arguments->buffers && arguments->buffers != Py_None;
	uint64_t stride = 1;

	if (has_indices && has_buffers)
		return kvcpy_refuse(state, "indices and buffers are both given");
	if ((has_indices || has_buffers) && work->transfer.op != KVC_GET &&
	    work->transfer.op != KVC_SET)
		return kvcpy_refuse(state, "%s takes no %s",
				    work->transfer.op == KVC_EXISTS ? "exists" : "remove",
				    has_indices ? "indices" : "buffers");
	if (kvcpy_u64(state, arguments->index_stride, "index_stride", &stride))
		return -1;
	if (has_buffers)
		return take_buffers(state, arguments->buffers, work);
	if (!has_indices)
		return 0;
	if (kvcpy_indices(state, arguments->indices, work->transfer.key_count, (size_t)stride,
			  indices))
		return -1;
	work->transfer.indices = indices;
	work->transfer.index_stride = 1;
	return 0;
}

static int take_options(struct kvcpy_state *state, const struct kvcpy_arguments *arguments,
			struct kvcpy_work *work)
{
	if (kvcpy_u32(state, arguments->depth, "depth", &work->transfer.depth) ||
	    kvcpy_u32(state, arguments->timeout_ms, "timeout_ms", &work->transfer.timeout_ms) ||
	    kvcpy_bits(arguments->stop_at_miss, "stop_at_miss", KVC_TRANSFER_STOP_AT_MISS,
		       &work->transfer.flags) ||
	    kvcpy_bits(arguments->overwrite, "overwrite", KVC_TRANSFER_OVERWRITE,
		       &work->transfer.flags))
		return -1;
	if (!arguments->parent || arguments->parent == Py_None)
		return 0;
	if (kvcpy_key(state, arguments->parent, "parent", -1, &work->transfer.parent))
		return -1;
	work->parent = Py_NewRef(arguments->parent);
	return 0;
}

int kvcpy_work_make(struct kvcpy_pool *pool, const struct kvcpy_arguments *arguments,
		    struct kvcpy_work *out)
{
	struct kvcpy_state *state = pool->handle.state;
	struct kvcpy_work work = {
		.transfer = { .size = sizeof(work.transfer), .op = arguments->op },
		.pool = pool,
	};
	size_t count;

	Py_INCREF((PyObject *)pool);
	work.keys = kvcpy_tuple(arguments->keys, "keys");
	if (!work.keys)
		goto release;
	count = (size_t)PyTuple_Size(work.keys);
	work.transfer.key_count = count;
	work.memory = malloc((count + 1) * (sizeof(struct kvc_key) + sizeof(int64_t)));
	if (!work.memory) {
		PyErr_NoMemory();
		goto release;
	}
	if (take_options(state, arguments, &work) || take_keys(state, &work, work.memory) ||
	    take_memory(state, arguments, &work,
			(int64_t *)((struct kvc_key *)work.memory + count + 1)))
		goto release;
	*out = work;
	return 0;

release:
	kvcpy_work_release(&work);
	return -1;
}

void kvcpy_work_release(struct kvcpy_work *work)
{
	kvcpy_views_release(&work->views);
	free(work->memory);
	work->memory = NULL;
	Py_CLEAR(work->keys);
	Py_CLEAR(work->parent);
	Py_CLEAR(work->pool);
}
