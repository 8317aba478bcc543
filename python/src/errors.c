/* SPDX-License-Identifier: Apache-2.0 */
/* Error and ConfigError, and how they are raised. */
#include "kvcpy.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

int kvcpy_errors_add(struct kvcpy_state *state, PyObject *module)
{
	PyObject *bases;

	state->error = PyErr_NewExceptionWithDoc(
		"kvcellar.Error",
		"A call that failed: errno, and the library's text in strerror, which names the "
		"thing and\nthe cause.",
		PyExc_OSError, NULL);
	if (!state->error)
		return -1;
	bases = PyTuple_Pack(2, state->error, PyExc_ValueError);
	if (!bases)
		return -1;
	state->config_error = PyErr_NewExceptionWithDoc(
		"kvcellar.ConfigError",
		"The configuration or an argument is refused (EINVAL), or the object is closed "
		"(EBADF).",
		bases, NULL);
	Py_DECREF(bases);
	if (!state->config_error || PyModule_AddObjectRef(module, "Error", state->error) < 0)
		return -1;
	return PyModule_AddObjectRef(module, "ConfigError", state->config_error);
}

/* Takes the reference of text, which may be NULL with an exception set. */
static void raise_object(PyObject *class, int error, PyObject *text)
{
	PyObject *exception;

	if (!text)
		return;
	/* At the end of the interpreter the module's classes may be gone. */
	if (!class)
		class = PyExc_OSError;
	exception = PyObject_CallFunction(class, "iO", error, text);
	if (exception) {
		PyErr_SetObject(class, exception);
		Py_DECREF(exception);
	}
	Py_DECREF(text);
}

void *kvcpy_raise(struct kvcpy_state *state, int rc)
{
	const char *text = kvc_last_error();

	if (text[0] == '\0')
		text = strerror(-rc);
	raise_object(rc == -EINVAL ? state->config_error : state->error, -rc,
		     kvcpy_text_object(text));
	return NULL;
}

int kvcpy_raise_text(PyObject *class, int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	raise_object(class, error, PyUnicode_FromFormatV(format, args));
	va_end(args);
	return -1;
}

int kvcpy_refuse(struct kvcpy_state *state, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	raise_object(state->config_error, EINVAL, PyUnicode_FromFormatV(format, args));
	va_end(args);
	return -1;
}

int kvcpy_refuse_again(struct kvcpy_state *state, const char *what)
{
	PyObject *type, *value, *traceback, *text;

	PyErr_Fetch(&type, &value, &traceback);
	text = value ? PyObject_Str(value) : PyObject_Str(type);
	if (text) {
		kvcpy_refuse(state, "%s: %U", what, text);
		Py_DECREF(text);
	}
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return -1;
}
