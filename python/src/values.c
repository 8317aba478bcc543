/* SPDX-License-Identifier: Apache-2.0 */
/* Dicts and texts that go back to Python. */
#include "kvcpy.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int kvcpy_dict_add(PyObject *dict, const char *name, PyObject *value)
{
	int rc;

	if (!value)
		return -1;
	rc = PyDict_SetItemString(dict, name, value);
	Py_DECREF(value);
	return rc;
}

int kvcpy_dict_u64(PyObject *dict, const char *name, uint64_t value)
{
	return kvcpy_dict_add(dict, name, PyLong_FromUnsignedLongLong(value));
}

int kvcpy_dict_text(PyObject *dict, const char *name, const char *text)
{
	return kvcpy_dict_add(dict, name, kvcpy_text_object(text));
}

/* Paths and keys need not be UTF-8. */
PyObject *kvcpy_text_object(const char *text)
{
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
}

PyObject *kvcpy_text_of(struct kvcpy_state *state, kvcpy_text_fn fn, void *context)
{
	size_t bytes = 8192;
	char *buffer = NULL;
	PyObject *text;
	int rc;

	/* The text may have grown between two calls. */
	for (;;) {
		char *larger = realloc(buffer, bytes);

		if (!larger) {
			free(buffer);
			return PyErr_NoMemory();
		}
		buffer = larger;
		Py_BEGIN_ALLOW_THREADS
		rc = fn(context, buffer, bytes);
		Py_END_ALLOW_THREADS
		if (rc < 0) {
			free(buffer);
			return kvcpy_raise(state, rc);
		}
		if ((size_t)rc < bytes)
			break;
		bytes = (size_t)rc + 256;
	}
	text = kvcpy_text_object(buffer);
	free(buffer);
	return text;
}

uint64_t kvcpy_now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

pid_t kvcpy_pid(void)
{
	return getpid();
}
