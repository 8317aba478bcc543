/* SPDX-License-Identifier: Apache-2.0 */
/* Pool: pages of one kind, and the four operations on them. */
#include "kvcpy.h"

/* ---------------------------------------------------------------- operations */

/* One call of the library, the GIL released around it at most once. */
static PyObject *run(struct kvcpy_pool *pool, const struct kvcpy_arguments *arguments)
{
	struct kvcpy_handle *store = pool->handle.parent->parent;
	struct kvcpy_result *result = NULL;
	struct kvcpy_work work;
	int rc;

	if (kvcpy_work_make(pool, arguments, &work))
		return NULL;
	if (kvcpy_enter(&pool->handle))
		goto release;
	result = kvcpy_result_new(pool->handle.state, work.transfer.key_count);
	if (!result) {
		kvcpy_leave(&pool->handle);
		goto release;
	}
	work.transfer.pool = pool->handle.raw;
	work.transfer.results = result->results;
	rc = kvcpy_batch_run(store->raw, &work.transfer, 1);
	kvcpy_leave(&pool->handle);
	result->ok_count = work.transfer.ok_count;
	result->prefix_count = work.transfer.prefix_count;
	if (rc < 0) {
		kvcpy_raise(pool->handle.state, rc);
		Py_CLEAR(result);
	}

release:
	kvcpy_work_release(&work);
	return (PyObject *)result;
}

static const char *const exists_names[] = { "keys", "stop_at_miss", "timeout_ms" };
static const struct kvcpy_spec exists_spec = { "exists", exists_names, 3, 1, 1 };
static const char *const get_names[] = { "keys", "indices", "index_stride", "buffers",
					 "timeout_ms" };
static const struct kvcpy_spec get_spec = { "get", get_names, 5, 2, 1 };
static const char *const set_names[] = { "keys",   "indices", "index_stride", "buffers",
					 "parent", "depth",   "overwrite",    "timeout_ms" };
static const struct kvcpy_spec set_spec = { "set", set_names, 8, 2, 1 };
static const char *const remove_names[] = { "keys", "timeout_ms" };
static const struct kvcpy_spec remove_spec = { "remove", remove_names, 2, 1, 1 };

static const char pool_exists_doc[] =
	"exists($self, /, keys, *, stop_at_miss=False, timeout_ms=0)\n--\n\n"
	"Which pages are stored. stop_at_miss: pages after the first miss are skipped.\n\n"
	"The GIL is released while it works, but not where the index of one packed root tells.";
static PyObject *pool_exists(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames)
{
	PyObject *values[3];

	if (kvcpy_parse(&exists_spec, args, nargs, kwnames, values))
		return NULL;
	return run((struct kvcpy_pool *)self, &(struct kvcpy_arguments){
						      .op = KVC_EXISTS,
						      .keys = values[0],
						      .stop_at_miss = values[1],
						      .timeout_ms = values[2],
					      });
}

static const char pool_get_doc[] =
	"get($self, /, keys, indices=None, *, index_stride=1, buffers=None, timeout_ms=0)\n--\n\n"
	"Reads pages into the pool's memory, or into buffers.\n\n"
	"Keys, indices and buffers as for Transfer. Pages without status ok have undefined bytes.\n"
	"The GIL is released while it works. ConfigError when nothing was tried.";
static PyObject *pool_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			  PyObject *kwnames)
{
	PyObject *values[5];

	if (kvcpy_parse(&get_spec, args, nargs, kwnames, values))
		return NULL;
	return run((struct kvcpy_pool *)self, &(struct kvcpy_arguments){
						      .op = KVC_GET,
						      .keys = values[0],
						      .indices = values[1],
						      .index_stride = values[2],
						      .buffers = values[3],
						      .timeout_ms = values[4],
					      });
}

static const char pool_set_doc[] =
	"set($self, /, keys, indices=None, *, index_stride=1, buffers=None, parent=None, depth=0,\n"
	"    overwrite=False, timeout_ms=0)\n--\n\n"
	"Stores pages from the pool's memory, or from buffers.\n\n"
	"Arguments as for Transfer. A page that is there already is ok with cause existed, unless\n"
	"overwrite. Where another rank writes the page (MLA) it is ok with cause not-writer, and\n"
	"nothing is done.";
static PyObject *pool_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			  PyObject *kwnames)
{
	PyObject *values[8];

	if (kvcpy_parse(&set_spec, args, nargs, kwnames, values))
		return NULL;
	return run((struct kvcpy_pool *)self, &(struct kvcpy_arguments){
						      .op = KVC_SET,
						      .keys = values[0],
						      .indices = values[1],
						      .index_stride = values[2],
						      .buffers = values[3],
						      .parent = values[4],
						      .depth = values[5],
						      .overwrite = values[6],
						      .timeout_ms = values[7],
					      });
}

static const char pool_remove_doc[] = "remove($self, /, keys, *, timeout_ms=0)\n--\n\n"
				      "Removes pages; one that was not there is a miss.";
static PyObject *pool_remove(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames)
{
	PyObject *values[2];

	if (kvcpy_parse(&remove_spec, args, nargs, kwnames, values))
		return NULL;
	return run((struct kvcpy_pool *)self, &(struct kvcpy_arguments){
						      .op = KVC_REMOVE,
						      .keys = values[0],
						      .timeout_ms = values[1],
					      });
}

/* ---------------------------------------------------------------- what it is */

static const struct kvcpy_spec info_spec = { .function = "info" };
static const char *const where_names[] = { "key" };
static const struct kvcpy_spec where_spec = { "where", where_names, 1, 1, 1 };

static const char pool_info_doc[] =
	"info($self, /)\n--\n\n"
	"page_bytes (payload of one page on this rank), object_bytes (stored size of the first\n"
	"object), objects_per_page, zero_copy (no byte is copied), fingerprint, and reason (why\n"
	"not zero copy, or '').";
static PyObject *pool_info(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			   PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct kvc_pool_info info = { .size = sizeof(info) };
	int rc;

	if (kvcpy_parse(&info_spec, args, nargs, kwnames, NULL) || kvcpy_enter(handle))
		return NULL;
	rc = kvc_pool_query(handle->raw, &info);
	kvcpy_leave(handle);
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	return Py_BuildValue("{sKsKsIsNssss}", "page_bytes", (unsigned long long)info.page_bytes,
			     "object_bytes", (unsigned long long)info.object_bytes,
			     "objects_per_page", info.objects_per_page, "zero_copy",
			     PyBool_FromLong(info.zero_copy != 0), "fingerprint", info.fingerprint,
			     "reason", info.reason);
}

struct where {
	struct kvc_pool *pool;
	struct kvc_key key;
};

static int walk_where(void *context, kvc_object_fn fn, void *fn_context)
{
	const struct where *where = context;

	return kvc_pool_where(where->pool, where->key, fn, fn_context);
}

static const char pool_where_doc[] =
	"where($self, /, key)\n--\n\n"
	"Name and place of the objects of a page, whether they exist or not: dicts as of "
	"Store.list().";
static PyObject *pool_where(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct where where;
	PyObject *key, *list;

	if (kvcpy_parse(&where_spec, args, nargs, kwnames, &key) ||
	    kvcpy_key(handle->state, key, "key", -1, &where.key) || kvcpy_enter(handle))
		return NULL;
	where.pool = handle->raw;
	list = kvcpy_walk(handle->state, walk_where, &where);
	kvcpy_leave(handle);
	return list;
}

static PyObject *get_name(PyObject *self, void *closure)
{
	(void)closure;
	return Py_NewRef(((struct kvcpy_pool *)self)->name);
}

static PyObject *get_part_count(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLong(((struct kvcpy_pool *)self)->part_count);
}

/* ---------------------------------------------------------------- type */

static int traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT((PyObject *)((struct kvcpy_handle *)self)->held);
	return kvcpy_handle_traverse(self, visit, arg);
}

/* The memory goes with the owner: the pool is closed first. */
static int clear(PyObject *self)
{
	kvcpy_drop((struct kvcpy_handle *)self);
	return 0;
}

static void dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	Py_CLEAR(((struct kvcpy_pool *)self)->name);
	kvcpy_handle_dealloc(self);
}

static PyObject *represent(PyObject *self)
{
	const struct kvcpy_pool *pool = (struct kvcpy_pool *)self;

	return PyUnicode_FromFormat("<kvcellar.Pool %R%s>", pool->name,
				    pool->handle.raw ? "" : ", closed");
}

static PyMethodDef methods[] = {
	KVCPY_ROW("exists", pool_exists),
	KVCPY_ROW("get", pool_get),
	KVCPY_ROW("set", pool_set),
	KVCPY_ROW("remove", pool_remove),
	KVCPY_ROW("info", pool_info),
	KVCPY_ROW("where", pool_where),
	KVCPY_ROW("close", kvcpy_handle_close),
	KVCPY_ROW("__enter__", kvcpy_handle_enter),
	KVCPY_ROW("__exit__", kvcpy_handle_exit),
	{ 0 },
};

static PyGetSetDef properties[] = {
	{ "name", get_name, NULL, "kv, mamba, swa, indexer, ...", NULL },
	{ "part_count", get_part_count, NULL, "Number of parts of a page.", NULL },
	KVCPY_HANDLE_CLOSED,
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "The pages of one kind (kv, mamba, ...) of a namespace, with their place in\n"
		     "memory. Made by Namespace.pool(). Safe for threads." },
	{ Py_tp_dealloc, dealloc },
	{ Py_tp_traverse, traverse },
	{ Py_tp_clear, clear },
	{ Py_tp_repr, represent },
	{ Py_tp_methods, methods },
	{ Py_tp_getset, properties },
	{ Py_tp_members, kvcpy_handle_members },
	{ 0, NULL },
};

PyType_Spec kvcpy_pool_spec = {
	.name = "kvcellar.Pool",
	.basicsize = sizeof(struct kvcpy_pool),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
