/* SPDX-License-Identifier: Apache-2.0 */
/* Region: memory that is registered with a store. */
#include "kvcpy.h"

#include <errno.h>
#include <time.h>

/* Transfers that began before are waited for; ones that begin now do not use it any more. */
static int close_raw(void *raw, unsigned wait_ms)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	const uint64_t deadline_ms = kvcpy_now_ms() + wait_ms;
	int rc;

	while ((rc = kvc_memory_deregister(raw)) == -EBUSY && kvcpy_now_ms() < deadline_ms)
		(void)nanosleep(&pause, NULL);
	return rc;
}

static const struct kvcpy_kind kind = { "region", close_raw, NULL };

static const char *const names[] = { "addr", "nbytes", "kind", "device" };
static const struct kvcpy_spec spec = { "register_memory", names, 4, 2, 2 };
static const struct kvcpy_choice kinds[] = {
	{ "host", KVC_MEMORY_HOST },
	{ "cuda", KVC_MEMORY_CUDA },
};

const char kvcpy_store_register_memory_doc[] =
	"register_memory($self, /, addr, nbytes, *, kind='host', device=0)\n--\n\n"
	"Registers memory that pools will use, once for all of them; until Region.close().\n\n"
	"Not needed: transfers work from any host memory. addr: an int, data_ptr(). The memory\n"
	"has to stay mapped as long as it is registered. Error(EEXIST) when it overlaps another\n"
	"region, Error(ENOTSUP) when no root can move this kind of memory.";
PyObject *kvcpy_store_register_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				      PyObject *kwnames)
{
	struct kvcpy_handle *store = (struct kvcpy_handle *)self;
	struct kvc_memory memory = { .size = sizeof(memory) };
	struct kvcpy_handle *region;
	struct kvc_region *raw;
	uint64_t addr = 0;
	uint32_t device = 0;
	PyObject *values[4];
	int rc;

	if (kvcpy_parse(&spec, args, nargs, kwnames, values) ||
	    kvcpy_u64(store->state, values[0], "addr", &addr) ||
	    kvcpy_u64(store->state, values[1], "nbytes", &memory.bytes) ||
	    kvcpy_choose(store->state, values[2], "kind", kinds, 2, &memory.kind) ||
	    kvcpy_u32(store->state, values[3], "device", &device))
		return NULL;
	if (device > INT32_MAX) {
		kvcpy_refuse(store->state, "device = %u: too large", device);
		return NULL;
	}
	memory.addr = (void *)(uintptr_t)addr;
	memory.device = (int32_t)device;
	memory.fd = -1;
	region = kvcpy_handle_new(store->state, store->state->region_type, &kind, store);
	if (!region || kvcpy_enter(store)) {
		Py_XDECREF((PyObject *)region);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_memory_register(store->raw, &memory, &raw);
	Py_END_ALLOW_THREADS
	if (rc >= 0)
		kvcpy_handle_set(region, raw);
	kvcpy_leave(store);
	if (rc < 0) {
		Py_DECREF((PyObject *)region);
		return kvcpy_raise(store->state, rc);
	}
	return (PyObject *)region;
}

static PyMethodDef methods[] = {
	KVCPY_ROW("close", kvcpy_handle_close),
	KVCPY_ROW("__enter__", kvcpy_handle_enter),
	KVCPY_ROW("__exit__", kvcpy_handle_exit),
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Memory that is registered with a store. Made by Store.register_memory()." },
	{ Py_tp_dealloc, kvcpy_handle_dealloc },
	{ Py_tp_traverse, kvcpy_handle_traverse },
	{ Py_tp_methods, methods },
	{ Py_tp_getset, kvcpy_handle_properties },
	{ Py_tp_members, kvcpy_handle_members },
	{ 0, NULL },
};

PyType_Spec kvcpy_region_spec = {
	.name = "kvcellar.Region",
	.basicsize = sizeof(struct kvcpy_handle),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
