/* SPDX-License-Identifier: Apache-2.0 */
/* Result: what happened to each page of one transfer. */
#include "kvcpy.h"

#include <stdlib.h>

struct kvcpy_result *kvcpy_result_new(struct kvcpy_state *state, size_t count)
{
	struct kvcpy_result *result =
		(struct kvcpy_result *)PyType_GenericAlloc(state->result_type, 0);

	if (!result)
		return NULL;
	result->results = calloc(count ? count : 1, sizeof(*result->results));
	if (!result->results) {
		Py_DECREF((PyObject *)result);
		PyErr_NoMemory();
		return NULL;
	}
	result->count = count;
	return result;
}

static void dealloc(PyObject *self)
{
	struct kvcpy_result *result = (struct kvcpy_result *)self;
	PyTypeObject *type = Py_TYPE(self);

	free(result->results);
	Py_CLEAR(result->ok);
	PyObject_Free(self);
	Py_DECREF((PyObject *)type);
}

static PyObject *name_of(PyObject *const *names, int count, int value, const char *name)
{
	if (value >= 0 && value < count)
		return Py_NewRef(names[value]);
	return PyUnicode_FromString(name);
}

PyObject *kvcpy_status_name(struct kvcpy_state *state, int status)
{
	return name_of(state->status_names, KVCPY_STATUS_COUNT, status, kvc_status_name(status));
}

PyObject *kvcpy_cause_name(struct kvcpy_state *state, int cause)
{
	return name_of(state->cause_names, KVC_CAUSE_COUNT, cause, kvc_cause_name(cause));
}

/* ---------------------------------------------------------------- properties */

static PyObject *get_ok(PyObject *self, void *closure)
{
	struct kvcpy_result *result = (struct kvcpy_result *)self;

	(void)closure;
	if (!result->ok) {
		PyObject *list = PyList_New((Py_ssize_t)result->count);

		for (size_t i = 0; list && i < result->count; i++)
			(void)PyList_SetItem(list, (Py_ssize_t)i,
					     PyBool_FromLong(result->results[i].status == KVC_OK));
		result->ok = list;
	}
	Py_XINCREF(result->ok);
	return result->ok;
}

static PyObject *get_ok_count(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromSize_t(((struct kvcpy_result *)self)->ok_count);
}

static PyObject *get_prefix_count(PyObject *self, void *closure)
{
	(void)closure;
	return PyLong_FromSize_t(((struct kvcpy_result *)self)->prefix_count);
}

static PyObject *status_at(PyObject *self, size_t at)
{
	return kvcpy_status_name(kvcpy_state_of(self),
				 ((struct kvcpy_result *)self)->results[at].status);
}

static PyObject *cause_at(PyObject *self, size_t at)
{
	return kvcpy_cause_name(kvcpy_state_of(self),
				((struct kvcpy_result *)self)->results[at].cause);
}

static PyObject *error_at(PyObject *self, size_t at)
{
	return PyLong_FromLong(((struct kvcpy_result *)self)->results[at].error);
}

static PyObject *list_of(PyObject *self, PyObject *(*item_at)(PyObject *self, size_t at))
{
	const size_t count = ((struct kvcpy_result *)self)->count;
	PyObject *list = PyList_New((Py_ssize_t)count);

	for (size_t i = 0; list && i < count; i++) {
		PyObject *item = item_at(self, i);

		if (!item)
			Py_CLEAR(list);
		else
			(void)PyList_SetItem(list, (Py_ssize_t)i, item);
	}
	return list;
}

static PyObject *get_statuses(PyObject *self, void *closure)
{
	(void)closure;
	return list_of(self, status_at);
}

static PyObject *get_causes(PyObject *self, void *closure)
{
	(void)closure;
	return list_of(self, cause_at);
}

static PyObject *get_errors(PyObject *self, void *closure)
{
	(void)closure;
	return list_of(self, error_at);
}

static PyObject *get_present(PyObject *self, void *closure)
{
	const struct kvcpy_result *result = (struct kvcpy_result *)self;
	PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)result->count);

	(void)closure;
	if (bytes) {
		char *present = PyBytes_AsString(bytes);

		for (size_t i = 0; i < result->count; i++)
			present[i] = result->results[i].status == KVC_OK;
	}
	return bytes;
}

static Py_ssize_t length(PyObject *self)
{
	return (Py_ssize_t)((struct kvcpy_result *)self)->count;
}

static int is_true(PyObject *self)
{
	const struct kvcpy_result *result = (struct kvcpy_result *)self;

	return result->ok_count == result->count;
}

static PyObject *item(PyObject *self, Py_ssize_t at)
{
	if (at < 0 || at >= length(self)) {
		PyErr_SetString(PyExc_IndexError, "no page with this number");
		return NULL;
	}
	return status_at(self, (size_t)at);
}

static PyObject *represent(PyObject *self)
{
	const struct kvcpy_result *result = (struct kvcpy_result *)self;

	return PyUnicode_FromFormat("<kvcellar.Result: %zu of %zu pages ok>", result->ok_count,
				    result->count);
}

static PyGetSetDef properties[] = {
	{ "ok", get_ok, NULL, "Whether each page is OK: one list of bools, made once and kept.",
	  NULL },
	{ "ok_count", get_ok_count, NULL, "Number of pages that are OK.", NULL },
	{ "prefix_count", get_prefix_count, NULL, "Number of leading pages that are OK.", NULL },
	{ "statuses", get_statuses, NULL,
	  "ok, miss, corrupt, timeout, full, denied, error or skipped, per page.", NULL },
	{ "causes", get_causes, NULL, "Why, per page: absent, checksum, existed, ...; or none.",
	  NULL },
	{ "errors", get_errors, NULL, "Positive errno or 0, per page.", NULL },
	{ "present", get_present, NULL,
	  "One byte per page, 1 = OK: what policy_prefix() and policy_restorable() take.", NULL },
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "What happened to each page of one transfer: a sequence of statuses.\n\n"
		     "Immutable. True when every page is OK." },
	{ Py_tp_dealloc, dealloc },
	{ Py_tp_repr, represent },
	{ Py_tp_getset, properties },
	{ Py_sq_length, length },
	{ Py_sq_item, item },
	{ Py_nb_bool, is_true },
	{ 0, NULL },
};

PyType_Spec kvcpy_result_spec = {
	.name = "kvcellar.Result",
	.basicsize = sizeof(struct kvcpy_result),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
