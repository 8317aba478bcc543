/* SPDX-License-Identifier: Apache-2.0 */
/* Single objects, many at a time: one call from Python, one release of the GIL. */
#include "kvcpy.h"

#include <errno.h>
#include <stdlib.h>

/* struct many - @limit_ms  of the whole call; @codes  0 or a positive errno for each key */
struct many {
	struct kvcpy_handle *handle;
	const char *pool_name;
	PyObject *keys;
	struct kvc_key *key_array;
	size_t count;
	struct kvcpy_views views;
	uint32_t flags;
	uint32_t limit_ms;
	int *codes;
};

static void many_release(struct many *many)
{
	kvcpy_views_release(&many->views);
	free(many->key_array);
	free(many->codes);
	Py_CLEAR(many->keys);
}

static uint32_t limit_of(const struct many *many, uint32_t timeout_ms, int op)
{
	const struct kvcpy_store *store = (struct kvcpy_store *)many->handle->parent;

	return timeout_ms ? timeout_ms : store->timeouts_ms[op];
}

static int take_keys(struct kvcpy_state *state, PyObject *keys, struct many *many)
{
	many->keys = kvcpy_tuple(keys, "keys");
	if (!many->keys)
		return -1;
	many->count = (size_t)PyTuple_Size(many->keys);
	many->key_array = calloc(many->count + 1, sizeof(*many->key_array));
	many->codes = calloc(many->count + 1, sizeof(*many->codes));
	if (!many->key_array || !many->codes) {
		PyErr_NoMemory();
		return -1;
	}
	for (size_t i = 0; i < many->count; i++)
		if (kvcpy_key(state, PyTuple_GetItem(many->keys, (Py_ssize_t)i), "keys",
			      (Py_ssize_t)i, &many->key_array[i]))
			return -1;
	return 0;
}

/* buffers: NULL for exists. */
static int many_make(struct kvcpy_handle *handle, PyObject *pool_name, PyObject *keys,
		     PyObject *buffers, PyObject *timeout_ms, int op, struct many *out)
{
	struct kvcpy_state *state = handle->state;
	struct many many = { .handle = handle };
	uint32_t limit_ms = 0;

	if (kvcpy_name(state, pool_name, "pool_name", &many.pool_name) ||
	    kvcpy_u32(state, timeout_ms, "timeout_ms", &limit_ms) ||
	    take_keys(state, keys, &many) ||
	    (buffers && kvcpy_views_take(state, buffers, op == KVC_GET, &many.views)))
		goto release;
	if (buffers && many.views.count != many.count) {
		kvcpy_refuse(state, "buffers has %zu entries, keys has %zu", many.views.count,
			     many.count);
		goto release;
	}
	many.limit_ms = limit_of(&many, limit_ms, op);
	*out = many;
	return 0;

release:
	many_release(&many);
	return -1;
}

static int put_one(const struct many *many, size_t at, uint32_t timeout_ms)
{
	const struct kvc_buffer *buffer = &many->views.buffers[at];
	const int rc = kvc_object_put(many->handle->raw, many->pool_name, many->key_array[at],
				      buffer->addr, (size_t)buffer->bytes, many->flags, timeout_ms);

	return rc < 0 ? -rc : 0;
}

static int get_one(const struct many *many, size_t at, uint32_t timeout_ms)
{
	const struct kvc_buffer *buffer = &many->views.buffers[at];
	size_t bytes = 0;
	const int rc = kvc_object_get(many->handle->raw, many->pool_name, many->key_array[at],
				      buffer->addr, (size_t)buffer->bytes, &bytes, 0, timeout_ms);

	if (rc < 0)
		return -rc;
	return bytes == buffer->bytes ? 0 : EMSGSIZE;
}

static int look_for_one(const struct many *many, size_t at, uint32_t timeout_ms)
{
	const int rc = kvc_object_exists(many->handle->raw, many->pool_name, many->key_array[at],
					 NULL, timeout_ms);

	return rc > 0 ? 0 : rc < 0 ? -rc : ENOENT;
}

typedef int (*one_fn)(const struct many *many, size_t at, uint32_t timeout_ms);

/* Without the GIL. The limit is the whole call's: what it does not reach has timed out. */
static void run_each(struct many *many, one_fn one)
{
	const uint64_t start_ms = kvcpy_now_ms();
	uint64_t passed_ms = 0;

	for (size_t i = 0; i < many->count; i++) {
		if (passed_ms >= many->limit_ms) {
			many->codes[i] = ETIMEDOUT;
			continue;
		}
		many->codes[i] = one(many, i, (uint32_t)(many->limit_ms - passed_ms));
		passed_ms = kvcpy_now_ms() - start_ms;
	}
}

static int run(struct many *many, one_fn one)
{
	if (kvcpy_enter(many->handle))
		return -1;
	if (many->count > 0) {
		Py_BEGIN_ALLOW_THREADS
		run_each(many, one);
		Py_END_ALLOW_THREADS
	}
	kvcpy_leave(many->handle);
	return 0;
}

static PyObject *answers(const struct many *many, bool as_flags)
{
	PyObject *list = PyList_New((Py_ssize_t)many->count);

	for (size_t i = 0; list && i < many->count; i++) {
		PyObject *item = as_flags ? PyBool_FromLong(many->codes[i] == 0) :
					    PyLong_FromLong(many->codes[i]);

		if (!item)
			Py_CLEAR(list);
		else
			(void)PyList_SetItem(list, (Py_ssize_t)i, item);
	}
	return list;
}

/* ---------------------------------------------------------------- methods */

static const char *const put_names[] = { "pool_name", "keys", "buffers", "overwrite",
					 "timeout_ms" };
static const struct kvcpy_spec put_spec = { "put_many", put_names, 5, 3, 3 };
static const char *const get_names[] = { "pool_name", "keys", "buffers", "timeout_ms" };
static const struct kvcpy_spec get_spec = { "get_many", get_names, 4, 3, 3 };
static const char *const exists_names[] = { "pool_name", "keys", "timeout_ms" };
static const struct kvcpy_spec exists_spec = { "exists_many", exists_names, 3, 2, 2 };

const char kvcpy_object_put_many_doc[] =
	"put_many($self, /, pool_name, keys, buffers, *, overwrite=False, timeout_ms=0)\n--\n\n"
	"put() for each key and its buffer: one call, one release of the GIL. 0 or a positive\n"
	"errno per key.\n\n"
	"buffers: buffer objects, CPU tensors (contiguous) or (address, bytes) pairs. timeout_ms,\n"
	"0: the configuration's, is the whole call's: what it does not reach has ETIMEDOUT.";
PyObject *kvcpy_object_put_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				PyObject *kwnames)
{
	PyObject *values[5], *list = NULL;
	uint32_t flags = 0;
	struct many many;

	if (kvcpy_parse(&put_spec, args, nargs, kwnames, values) ||
	    kvcpy_bits(values[3], "overwrite", KVC_OBJECT_OVERWRITE, &flags) ||
	    many_make((struct kvcpy_handle *)self, values[0], values[1], values[2], values[4],
		      KVC_SET, &many))
		return NULL;
	many.flags = flags;
	if (!run(&many, put_one))
		list = answers(&many, false);
	many_release(&many);
	return list;
}

const char kvcpy_object_get_many_doc[] =
	"get_many($self, /, pool_name, keys, buffers, *, timeout_ms=0)\n--\n\n"
	"get_into() for each key: one call, one release of the GIL.\n\n"
	"0 when exactly the buffer's size was stored and is in it; else a positive errno: ENOENT\n"
	"for a miss, ENOBUFS and EMSGSIZE when more and when fewer bytes were stored, EBADMSG\n"
	"when it was damaged. buffers and timeout_ms as in put_many().";
PyObject *kvcpy_object_get_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				PyObject *kwnames)
{
	PyObject *values[4], *list = NULL;
	struct many many;

	if (kvcpy_parse(&get_spec, args, nargs, kwnames, values) ||
	    many_make((struct kvcpy_handle *)self, values[0], values[1], values[2], values[3],
		      KVC_GET, &many))
		return NULL;
	if (!run(&many, get_one))
		list = answers(&many, false);
	many_release(&many);
	return list;
}

const char kvcpy_object_exists_many_doc[] =
	"exists_many($self, /, pool_name, keys, *, timeout_ms=0)\n--\n\n"
	"Whether each object exists: one call, one release of the GIL. An error is False.";
PyObject *kvcpy_object_exists_many(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				   PyObject *kwnames)
{
	PyObject *values[3], *list = NULL;
	struct many many;

	if (kvcpy_parse(&exists_spec, args, nargs, kwnames, values) ||
	    many_make((struct kvcpy_handle *)self, values[0], values[1], NULL, values[2],
		      KVC_EXISTS, &many))
		return NULL;
	if (!run(&many, look_for_one))
		list = answers(&many, true);
	many_release(&many);
	return list;
}
