/* SPDX-License-Identifier: Apache-2.0 */
/* Single objects of a namespace: put, get, get_into, exists, remove, where. */
#include "kvcpy.h"

#include <errno.h>
#include <stdlib.h>

enum {
	SMALL_BYTES = 64 * 1024,
	READ_ATTEMPTS = 4
};

/* What all of them have. */
struct target {
	const char *pool_name;
	struct kvc_key key;
	uint32_t timeout_ms;
};

static int target_of(struct kvcpy_state *state, PyObject *pool_name, PyObject *key,
		     PyObject *timeout_ms, struct target *out)
{
	*out = (struct target){ 0 };
	if (kvcpy_name(state, pool_name, "pool_name", &out->pool_name) ||
	    kvcpy_key(state, key, "key", -1, &out->key) ||
	    kvcpy_u32(state, timeout_ms, "timeout_ms", &out->timeout_ms))
		return -1;
	return 0;
}

/* ---------------------------------------------------------------- put */

static const char *const put_names[] = { "pool_name", "key", "data", "overwrite", "timeout_ms" };
static const struct kvcpy_spec put_spec = { "put", put_names, 5, 3, 3 };

const char kvcpy_object_put_doc[] =
	"put($self, /, pool_name, key, data, *, overwrite=False, timeout_ms=0)\n--\n\n"
	"Stores one object of any size. False: one of that size was there and was kept.\n\n"
	"data: a buffer object, a CPU tensor or an (address, bytes) pair. Error(ENOSPC),\n"
	"(EACCES), (EROFS), (ETIMEDOUT), ...";
PyObject *kvcpy_object_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			   PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct kvc_buffer data;
	struct target target;
	PyObject *values[5];
	uint32_t flags = 0;
	Py_buffer view;
	int rc;

	if (kvcpy_parse(&put_spec, args, nargs, kwnames, values) ||
	    target_of(handle->state, values[0], values[1], values[4], &target) ||
	    kvcpy_bits(values[3], "overwrite", KVC_OBJECT_OVERWRITE, &flags) ||
	    kvcpy_view(handle->state, values[2], "data", -1, false, &view, &data))
		return NULL;
	if (kvcpy_enter(handle)) {
		PyBuffer_Release(&view);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_object_put(handle->raw, target.pool_name, target.key, data.addr,
			    (size_t)data.bytes, flags, target.timeout_ms);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		kvcpy_raise(handle->state, rc);
	PyBuffer_Release(&view);
	return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

/* ---------------------------------------------------------------- get */

static const char *const get_names[] = { "pool_name", "key", "timeout_ms" };
static const struct kvcpy_spec get_spec = { "get", get_names, 3, 2, 2 };

/* An exception for anything but a miss and an object that is too large. */
static int read_into(struct kvcpy_handle *handle, const struct target *target, void *memory,
		     size_t capacity, size_t *out_bytes)
{
	int rc;

	Py_BEGIN_ALLOW_THREADS
	rc = kvc_object_get(handle->raw, target->pool_name, target->key, memory, capacity,
			    out_bytes, 0, target->timeout_ms);
	Py_END_ALLOW_THREADS
	if (rc < 0 && rc != -ENOBUFS && rc != -ENOENT)
		kvcpy_raise(handle->state, rc);
	return rc;
}

static int read_small(struct kvcpy_handle *handle, const struct target *target, PyObject **out,
		      size_t *out_bytes)
{
	char *memory = malloc(SMALL_BYTES);
	int rc;

	if (!memory) {
		PyErr_NoMemory();
		return -ENOMEM;
	}
	rc = read_into(handle, target, memory, SMALL_BYTES, out_bytes);
	if (rc >= 0)
		*out = PyBytes_FromStringAndSize(memory, (Py_ssize_t)*out_bytes);
	free(memory);
	return rc;
}

/* Its size is known, unless it was replaced just now. */
static int read_large(struct kvcpy_handle *handle, const struct target *target, PyObject **out,
		      size_t *bytes)
{
	const size_t capacity = *bytes;
	PyObject *object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)capacity);
	int rc;

	if (!object)
		return -ENOMEM;
	rc = read_into(handle, target, PyBytes_AsString(object), capacity, bytes);
	if (rc >= 0)
		*out = *bytes == capacity ? Py_NewRef(object) :
					    PyBytes_FromStringAndSize(PyBytes_AsString(object),
								      (Py_ssize_t)*bytes);
	Py_DECREF(object);
	return rc;
}

const char kvcpy_object_get_doc[] =
	"get($self, /, pool_name, key, *, timeout_ms=0)\n--\n\n"
	"The object's bytes, or None for a miss. Error(EBADMSG) when it was damaged; it is gone.";
PyObject *kvcpy_object_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			   PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	PyObject *values[3], *object = NULL;
	struct target target;
	size_t bytes = 0;
	int rc;

	if (kvcpy_parse(&get_spec, args, nargs, kwnames, values) ||
	    target_of(handle->state, values[0], values[1], values[2], &target) ||
	    kvcpy_enter(handle))
		return NULL;
	rc = read_small(handle, &target, &object, &bytes);
	/* It may be replaced by a larger one meanwhile. */
	for (int i = 0; i < READ_ATTEMPTS && rc == -ENOBUFS; i++)
		rc = read_large(handle, &target, &object, &bytes);
	if (rc == -ENOBUFS)
		kvcpy_raise(handle->state, rc);
	kvcpy_leave(handle);
	if (rc == -ENOENT)
		Py_RETURN_NONE;
	return object;
}

static const char *const into_names[] = { "pool_name", "key", "buffer", "timeout_ms" };
static const struct kvcpy_spec into_spec = { "get_into", into_names, 4, 3, 3 };

const char kvcpy_object_get_into_doc[] =
	"get_into($self, /, pool_name, key, buffer, *, timeout_ms=0)\n--\n\n"
	"Reads into writable memory; the payload's size, or None for a miss.\n\n"
	"buffer: a buffer object, a CPU tensor or an (address, bytes) pair. Error(ENOBUFS) when\n"
	"the object is larger, Error(EBADMSG) when it was damaged. After an error the buffer has\n"
	"undefined bytes.";
PyObject *kvcpy_object_get_into(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct kvc_buffer buffer;
	struct target target;
	PyObject *values[4];
	size_t bytes = 0;
	Py_buffer view;
	int rc;

	if (kvcpy_parse(&into_spec, args, nargs, kwnames, values) ||
	    target_of(handle->state, values[0], values[1], values[3], &target) ||
	    kvcpy_view(handle->state, values[2], "buffer", -1, true, &view, &buffer))
		return NULL;
	if (kvcpy_enter(handle)) {
		PyBuffer_Release(&view);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_object_get(handle->raw, target.pool_name, target.key, buffer.addr,
			    (size_t)buffer.bytes, &bytes, 0, target.timeout_ms);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0 && rc != -ENOENT)
		kvcpy_raise(handle->state, rc);
	PyBuffer_Release(&view);
	if (rc == -ENOENT)
		Py_RETURN_NONE;
	return rc < 0 ? NULL : PyLong_FromSize_t(bytes);
}

/* ---------------------------------------------------------------- exists, remove, where */

static const struct kvcpy_spec exists_spec = { "exists", get_names, 3, 2, 2 };

const char kvcpy_object_exists_doc[] =
	"exists($self, /, pool_name, key, *, timeout_ms=0)\n--\n\n"
	"The payload's size, or None. Error(EBADMSG) when no size can be told.";
PyObject *kvcpy_object_exists(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct target target;
	PyObject *values[3];
	size_t bytes = 0;
	int rc;

	if (kvcpy_parse(&exists_spec, args, nargs, kwnames, values) ||
	    target_of(handle->state, values[0], values[1], values[2], &target) ||
	    kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_object_exists(handle->raw, target.pool_name, target.key, &bytes,
			       target.timeout_ms);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	if (rc == 0)
		Py_RETURN_NONE;
	return PyLong_FromSize_t(bytes);
}

static const struct kvcpy_spec remove_spec = { "remove", get_names, 3, 2, 2 };

const char kvcpy_object_remove_doc[] =
	"remove($self, /, pool_name, key, *, timeout_ms=0)\n--\n\nWhether it was there.";
PyObject *kvcpy_object_remove(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct target target;
	PyObject *values[3];
	int rc;

	if (kvcpy_parse(&remove_spec, args, nargs, kwnames, values) ||
	    target_of(handle->state, values[0], values[1], values[2], &target) ||
	    kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_object_remove(handle->raw, target.pool_name, target.key, target.timeout_ms);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	return PyBool_FromLong(rc);
}

struct where {
	struct kvc_namespace *ns;
	const struct target *target;
};

static int walk_where(void *context, kvc_object_fn fn, void *fn_context)
{
	const struct where *where = context;

	return kvc_object_where(where->ns, where->target->pool_name, where->target->key, fn,
				fn_context);
}

static const char *const where_names[] = { "pool_name", "key" };
static const struct kvcpy_spec where_spec = { "where", where_names, 2, 2, 2 };

const char kvcpy_object_where_doc[] =
	"where($self, /, pool_name, key)\n--\n\n"
	"Name and place of a single object, whether it exists or not: dicts as of Store.list().";
PyObject *kvcpy_object_where(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	PyObject *values[2], *list;
	struct target target;
	struct where where;

	if (kvcpy_parse(&where_spec, args, nargs, kwnames, values) ||
	    target_of(handle->state, values[0], values[1], NULL, &target) || kvcpy_enter(handle))
		return NULL;
	where = (struct where){ handle->raw, &target };
	list = kvcpy_walk(handle->state, walk_where, &where);
	kvcpy_leave(handle);
	return list;
}
