/* SPDX-License-Identifier: Apache-2.0 */
/* Transfer: one operation on pages of one pool, for Store.run() and Store.start(). */
#include "kvcpy.h"

enum {
	OP,
	POOL,
	KEYS,
	INDICES,
	INDEX_STRIDE,
	BUFFERS,
	PARENT,
	DEPTH,
	TIMEOUT_MS,
	STOP_AT_MISS,
	OVERWRITE,
	ARGUMENT_COUNT,
};

static const char *const names[] = {
	"op",	  "pool",  "keys",	 "indices",	 "index_stride", "buffers",
	"parent", "depth", "timeout_ms", "stop_at_miss", "overwrite",
};
static const struct kvcpy_spec spec = { "Transfer", names, ARGUMENT_COUNT, 4, 3 };
static const struct kvcpy_choice operations[] = {
	{ "exists", KVC_EXISTS },
	{ "get", KVC_GET },
	{ "set", KVC_SET },
	{ "remove", KVC_REMOVE },
};

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct kvcpy_state *state = PyType_GetModuleState(type);
	struct kvcpy_arguments arguments = { 0 };
	struct kvcpy_transfer *transfer;
	struct kvcpy_work work;
	PyObject *values[ARGUMENT_COUNT];

	if (kvcpy_parse_new(&spec, args, kwargs, values) ||
	    kvcpy_choose(state, values[OP], "op", operations, 4, &arguments.op))
		return NULL;
	if (Py_TYPE(values[POOL]) != state->pool_type) {
		kvcpy_wrong_type(values[POOL], "pool", "a Pool");
		return NULL;
	}
	arguments.keys = values[KEYS];
	arguments.indices = values[INDICES];
	arguments.index_stride = values[INDEX_STRIDE];
	arguments.buffers = values[BUFFERS];
	arguments.parent = values[PARENT];
	arguments.depth = values[DEPTH];
	arguments.timeout_ms = values[TIMEOUT_MS];
	arguments.stop_at_miss = values[STOP_AT_MISS];
	arguments.overwrite = values[OVERWRITE];
	/* Before the object: the garbage collector shows that to everybody as soon as it exists. */
	if (kvcpy_work_make((struct kvcpy_pool *)values[POOL], &arguments, &work))
		return NULL;
	transfer = (struct kvcpy_transfer *)PyType_GenericAlloc(type, 0);
	if (!transfer) {
		kvcpy_work_release(&work);
		return NULL;
	}
	transfer->work = work;
	return (PyObject *)transfer;
}

/* No tp_clear: a transfer never changes. A cycle through it ends where a Pool drops its owner. */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
	const struct kvcpy_work *work = &((struct kvcpy_transfer *)self)->work;

	Py_VISIT((PyObject *)work->pool);
	Py_VISIT(work->keys);
	Py_VISIT(work->parent);
	Py_VISIT(work->views.objects);
	Py_VISIT(Py_TYPE(self));
	return 0;
}

static void dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	PyObject_GC_UnTrack(self);
	kvcpy_work_release(&((struct kvcpy_transfer *)self)->work);
	PyObject_GC_Del(self);
	Py_DECREF((PyObject *)type);
}

static Py_ssize_t length(PyObject *self)
{
	return (Py_ssize_t)((struct kvcpy_transfer *)self)->work.transfer.key_count;
}

static PyObject *represent(PyObject *self)
{
	const struct kvcpy_work *work = &((struct kvcpy_transfer *)self)->work;

	return PyUnicode_FromFormat("<kvcellar.Transfer: %s of %zu pages of pool %R>",
				    operations[work->transfer.op].name, work->transfer.key_count,
				    work->pool->name);
}

static const char doc[] =
	"Transfer(op, pool, keys, indices=None, *, index_stride=1, buffers=None, parent=None,\n"
	"         depth=0, timeout_ms=0, stop_at_miss=False, overwrite=False)\n--\n\n"
	"One operation on pages of one pool, for Store.run() and Store.start().\n\n"
	"op: exists, get, set or remove. keys: str (as UTF-8) or bytes, in prefix order.\n"
	"indices: page i is number indices[i * index_stride] of the pool, or begins at that\n"
	"token with token_indices; int64, as buffer (array, numpy), contiguous CPU tensor, or\n"
	"sequence of ints. They are copied here. buffers instead, for pools whose parts have no\n"
	"base: part j of page i is buffers[i * part_count + j]; buffer objects, CPU tensors or\n"
	"(address, bytes) pairs, held as long as the Transfer. parent: key of the page before\n"
	"keys[0]; depth: number of pages before it. timeout_ms 0: the configuration's. It may be\n"
	"run any number of times.";

static PyType_Slot slots[] = {
	{ Py_tp_doc, (void *)(uintptr_t)doc },
	{ Py_tp_new, create },
	{ Py_tp_dealloc, dealloc },
	{ Py_tp_traverse, traverse },
	{ Py_tp_repr, represent },
	{ Py_sq_length, length },
	{ 0, NULL },
};

PyType_Spec kvcpy_transfer_spec = {
	.name = "kvcellar.Transfer",
	.basicsize = sizeof(struct kvcpy_transfer),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
