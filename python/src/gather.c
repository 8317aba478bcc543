/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, indices and memory of the caller, from what Python has for them. */
#include "kvcpy.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- names for errors */

/* "keys[3]", or the label alone. */
static const char *place(const char *label, Py_ssize_t at, char buffer[48])
{
	if (at < 0)
		return label;
	(void)PyOS_snprintf(buffer, 48, "%s[%zd]", label, at);
	return buffer;
}

/* ---------------------------------------------------------------- keys */

int kvcpy_key(struct kvcpy_state *state, PyObject *object, const char *label, Py_ssize_t at,
	      struct kvc_key *out)
{
	char buffer[48];
	Py_ssize_t bytes;

	if (PyUnicode_Check(object)) {
		out->data = PyUnicode_AsUTF8AndSize(object, &bytes);
		if (!out->data) {
			if (PyErr_ExceptionMatches(PyExc_UnicodeError))
				kvcpy_refuse_again(state, place(label, at, buffer));
			return -1;
		}
		out->bytes = (size_t)bytes;
		return 0;
	}
	if (PyBytes_Check(object)) {
		out->data = PyBytes_AsString(object);
		out->bytes = (size_t)PyBytes_Size(object);
		return 0;
	}
	return kvcpy_wrong_type(object, place(label, at, buffer), "a str or bytes");
}

PyObject *kvcpy_tuple(PyObject *object, const char *label)
{
	PyObject *tuple;

	/* They are sequences of something else. */
	if (PyUnicode_Check(object) || PyBytes_Check(object) || PyByteArray_Check(object)) {
		kvcpy_wrong_type(object, label, "a sequence");
		return NULL;
	}
	tuple = PySequence_Tuple(object);
	if (!tuple && PyErr_ExceptionMatches(PyExc_TypeError)) {
		PyErr_Clear();
		kvcpy_wrong_type(object, label, "a sequence");
	}
	return tuple;
}

/* ---------------------------------------------------------------- tensors */

/* What a tensor says of itself, without knowing its library. */
struct tensor {
	uint64_t address;
	uint64_t count;
	uint64_t item_bytes;
};

/* object.name() as a number; *found is false when there is no such attribute. */
static int ask_number(PyObject *object, const char *name, bool *found, uint64_t *out)
{
	PyObject *value = NULL, *method = PyObject_GetAttrString(object, name);

	*found = method;
	if (!method) {
		if (!PyErr_ExceptionMatches(PyExc_AttributeError))
			return -1;
		PyErr_Clear();
		return 0;
	}
	value = PyObject_CallNoArgs(method);
	Py_DECREF(method);
	if (!value)
		return -1;
	*out = PyLong_AsUnsignedLongLong(value);
	Py_DECREF(value);
	return PyErr_Occurred() ? -1 : 0;
}

/* str(object.name), or NULL without an exception when there is no such attribute. */
static PyObject *ask_text(PyObject *object, const char *name)
{
	PyObject *text, *value = PyObject_GetAttrString(object, name);

	if (!value) {
		if (PyErr_ExceptionMatches(PyExc_AttributeError))
			PyErr_Clear();
		return NULL;
	}
	text = PyObject_Str(value);
	Py_DECREF(value);
	return text;
}

static int check_device(struct kvcpy_state *state, PyObject *object, const char *what)
{
	PyObject *device = ask_text(object, "device");
	PyObject *cpu;
	int rc = 0;

	if (!device)
		return PyErr_Occurred() ? -1 : 0;
	cpu = PyUnicode_FromString("cpu");
	rc = cpu ? (int)PyUnicode_Tailmatch(device, cpu, 0, 3, -1) : -1;
	if (rc == 0)
		rc = kvcpy_refuse(state, "%s is on device %U: cpu expected", what, device);
	Py_XDECREF(cpu);
	Py_DECREF(device);
	return rc < 0 ? -1 : 0;
}

static int check_contiguous(struct kvcpy_state *state, PyObject *object, const char *what)
{
	PyObject *method = PyObject_GetAttrString(object, "is_contiguous");
	PyObject *answer;
	int yes;

	if (!method) {
		if (!PyErr_ExceptionMatches(PyExc_AttributeError))
			return -1;
		PyErr_Clear();
		return 0;
	}
	answer = PyObject_CallNoArgs(method);
	Py_DECREF(method);
	if (!answer)
		return -1;
	yes = PyObject_IsTrue(answer);
	Py_DECREF(answer);
	if (yes == 0)
		return kvcpy_refuse(state, "%s is not contiguous", what);
	return yes < 0 ? -1 : 0;
}

/* 1: it is one, on the CPU and contiguous; 0: it is something else; -1: an exception. */
static int tensor_of(struct kvcpy_state *state, PyObject *object, const char *what,
		     struct tensor *out)
{
	bool is_tensor, has_count, has_bytes;

	if (ask_number(object, "data_ptr", &is_tensor, &out->address))
		return -1;
	if (!is_tensor)
		return 0;
	if (ask_number(object, "numel", &has_count, &out->count) ||
	    ask_number(object, "element_size", &has_bytes, &out->item_bytes) ||
	    check_device(state, object, what) || check_contiguous(state, object, what))
		return -1;
	if (!has_count || !has_bytes)
		return kvcpy_refuse(state, "%s has data_ptr(), but no numel() and element_size()",
				    what);
	if (out->item_bytes > 0 && out->count > UINT64_MAX / out->item_bytes)
		return kvcpy_refuse(state, "%s has more bytes than there can be", what);
	if (out->address == 0 && out->count > 0 && out->item_bytes > 0)
		return kvcpy_refuse(state, "%s: address 0, its memory has been given up", what);
	return 1;
}

/* ---------------------------------------------------------------- indices */

static int check_count(struct kvcpy_state *state, uint64_t has, size_t count, size_t stride)
{
	const size_t needed = (count - 1) * stride + 1;

	if (has >= needed)
		return 0;
	return kvcpy_refuse(state,
			    "indices has %llu entries, %zu keys with index_stride %zu need %zu",
			    (unsigned long long)has, count, stride, needed);
}

static void copy_indices(const void *from, size_t count, size_t stride, int64_t *out)
{
	const char *at = from;

	/* A tensor's memory may change meanwhile, and an array need not be aligned. */
	for (size_t i = 0; i < count; i++, at += stride * sizeof(*out))
		memcpy(&out[i], at, sizeof(*out));
}

static int tensor_indices(struct kvcpy_state *state, PyObject *object, const struct tensor *tensor,
			  size_t count, size_t stride, int64_t *out)
{
	PyObject *dtype = ask_text(object, "dtype");
	int rc = 0;

	if (!dtype && PyErr_Occurred())
		return -1;
	if (tensor->item_bytes != sizeof(int64_t) ||
	    (dtype && PyUnicode_CompareWithASCIIString(dtype, "torch.int64") != 0 &&
	     PyUnicode_CompareWithASCIIString(dtype, "int64") != 0))
		rc = dtype ? kvcpy_refuse(state, "indices has dtype %U: int64 expected", dtype) :
			     kvcpy_refuse(state,
					  "indices has entries of %llu bytes: int64 expected",
					  (unsigned long long)tensor->item_bytes);
	Py_XDECREF(dtype);
	if (!rc)
		rc = check_count(state, tensor->count, count, stride);
	if (!rc)
		copy_indices((const void *)(uintptr_t)tensor->address, count, stride, out);
	return rc;
}

/* 'l' and 'q' of the machine's own byte order. */
static bool is_int64(const Py_buffer *view)
{
	const char *format = view->format;

	if (!format || view->itemsize != (Py_ssize_t)sizeof(int64_t))
		return false;
	if (strchr("@=<", format[0]) && format[0] != '\0')
		format++;
	return (format[0] == 'l' || format[0] == 'q') && format[1] == '\0';
}

static int buffer_indices(struct kvcpy_state *state, PyObject *object, size_t count, size_t stride,
			  int64_t *out)
{
	Py_buffer view;
	int rc;

	if (PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_ND)) {
		if (!PyErr_ExceptionMatches(PyExc_BufferError) &&
		    !PyErr_ExceptionMatches(PyExc_ValueError))
			return -1;
		return kvcpy_refuse_again(state, "indices");
	}
	if (!is_int64(&view))
		rc = kvcpy_refuse(state,
				  "indices has entries of format '%s', %zd bytes: int64 expected",
				  view.format ? view.format : "B", view.itemsize);
	else
		rc = check_count(state, (uint64_t)(view.len / view.itemsize), count, stride);
	if (!rc)
		copy_indices(view.buf, count, stride, out);
	PyBuffer_Release(&view);
	return rc;
}

static int one_index(struct kvcpy_state *state, PyObject *item, size_t at, int64_t *out)
{
	char buffer[48];

	*out = PyLong_AsLongLong(item);
	if (*out != -1 || !PyErr_Occurred())
		return 0;
	if (PyErr_ExceptionMatches(PyExc_OverflowError))
		return kvcpy_refuse_again(state, place("indices", (Py_ssize_t)at, buffer));
	if (!PyErr_ExceptionMatches(PyExc_TypeError))
		return -1;
	PyErr_Clear();
	return kvcpy_wrong_type(item, place("indices", (Py_ssize_t)at, buffer), "an int");
}

static int sequence_indices(struct kvcpy_state *state, PyObject *object, size_t count,
			    size_t stride, int64_t *out)
{
	const Py_ssize_t has = PySequence_Size(object);

	if (has < 0) {
		if (!PyErr_ExceptionMatches(PyExc_TypeError))
			return -1;
		PyErr_Clear();
		return kvcpy_wrong_type(object, "indices",
					"an int64 array, a tensor or a sequence of ints");
	}
	if (check_count(state, (uint64_t)has, count, stride))
		return -1;
	for (size_t i = 0; i < count; i++) {
		PyObject *item = PySequence_GetItem(object, (Py_ssize_t)(i * stride));
		int rc;

		if (!item)
			return -1;
		rc = one_index(state, item, i * stride, &out[i]);
		Py_DECREF(item);
		if (rc)
			return -1;
	}
	return 0;
}

int kvcpy_indices(struct kvcpy_state *state, PyObject *object, size_t count, size_t stride,
		  int64_t *out)
{
	struct tensor tensor;
	int rc;

	if (count == 0)
		return 0;
	if (stride == 0 || stride > (SIZE_MAX / 8 - 1) / count)
		return kvcpy_refuse(state, "index_stride = %zu: too large, or 0", stride);
	if (PyList_Check(object) || PyTuple_Check(object))
		return sequence_indices(state, object, count, stride, out);
	if (PyObject_CheckBuffer(object))
		return buffer_indices(state, object, count, stride, out);
	rc = tensor_of(state, object, "indices", &tensor);
	if (rc < 0)
		return -1;
	return rc ? tensor_indices(state, object, &tensor, count, stride, out) :
		    sequence_indices(state, object, count, stride, out);
}

/* ---------------------------------------------------------------- memory */

static int pair_of(struct kvcpy_state *state, PyObject *pair, const char *what,
		   struct kvc_buffer *out)
{
	uint64_t address = 0;

	if (PyTuple_Size(pair) != 2)
		return kvcpy_refuse(state, "%s: a pair (address, bytes) expected, not %zd values",
				    what, PyTuple_Size(pair));
	if (kvcpy_u64(state, PyTuple_GetItem(pair, 0), what, &address) ||
	    kvcpy_u64(state, PyTuple_GetItem(pair, 1), what, &out->bytes))
		return -1;
	if (address == 0 && out->bytes > 0)
		return kvcpy_refuse(state, "%s: address 0", what);
	out->addr = (void *)(uintptr_t)address;
	return 0;
}

int kvcpy_view(struct kvcpy_state *state, PyObject *object, const char *label, Py_ssize_t at,
	       bool writable, Py_buffer *view, struct kvc_buffer *out)
{
	struct tensor tensor;
	char buffer[48];
	const char *what = place(label, at, buffer);
	int rc;

	view->obj = NULL;
	if (PyTuple_Check(object))
		return pair_of(state, object, what, out);
	if (PyObject_CheckBuffer(object)) {
		if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) {
			view->obj = NULL;
			if (!PyErr_ExceptionMatches(PyExc_BufferError) &&
			    !PyErr_ExceptionMatches(PyExc_ValueError))
				return -1;
			return kvcpy_refuse_again(state, what);
		}
		out->addr = view->buf;
		out->bytes = (uint64_t)view->len;
		return 0;
	}
	rc = tensor_of(state, object, what, &tensor);
	if (rc < 0)
		return -1;
	if (rc == 0)
		return kvcpy_wrong_type(object, what,
					"a buffer, a CPU tensor or a pair (address, bytes)");
	out->addr = (void *)(uintptr_t)tensor.address;
	out->bytes = tensor.count * tensor.item_bytes;
	return 0;
}

int kvcpy_views_take(struct kvcpy_state *state, PyObject *object, bool writable,
		     struct kvcpy_views *out)
{
	struct kvcpy_views views = { .objects = kvcpy_tuple(object, "buffers") };
	size_t count;

	if (!views.objects)
		return -1;
	count = (size_t)PyTuple_Size(views.objects);
	views.views = calloc(count + 1, sizeof(*views.views));
	views.buffers = calloc(count + 1, sizeof(*views.buffers));
	if (!views.views || !views.buffers) {
		kvcpy_views_release(&views);
		PyErr_NoMemory();
		return -1;
	}
	for (; views.count < count; views.count++) {
		PyObject *item = PyTuple_GetItem(views.objects, (Py_ssize_t)views.count);

		if (kvcpy_view(state, item, "buffers", (Py_ssize_t)views.count, writable,
			       &views.views[views.count], &views.buffers[views.count])) {
			kvcpy_views_release(&views);
			return -1;
		}
	}
	*out = views;
	return 0;
}

/* An exception that is set stays. */
void kvcpy_views_release(struct kvcpy_views *views)
{
	for (size_t i = 0; i < views->count; i++)
		if (views->views[i].obj)
			PyBuffer_Release(&views->views[i]);
	free(views->views);
	free(views->buffers);
	Py_CLEAR(views->objects);
	views->views = NULL;
	views->buffers = NULL;
	views->count = 0;
}
