/* SPDX-License-Identifier: Apache-2.0 */
/*
 * set_log(): the library's one log callback, as a Python function.
 *
 * The library's callback belongs to the process, so this is the extension's only global state. The
 * lock is taken without the GIL only, and the callback takes the GIL while the library has its log
 * lock for reading; so nothing may wait for either with the GIL held.
 */
#include "kvcpy.h"

#include <errno.h>
#include <pthread.h>

static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER;
static PyObject *current;
static _Thread_local bool inside;

/* fork() comes with the GIL, so it may not wait for the lock. Whoever had it in the parent keeps a
 * reference to both callbacks for ever: whichever of them the library has here is alive. */
static void fork_child(void)
{
	(void)pthread_mutex_init(&set_lock, NULL);
}

__attribute__((constructor)) static void fork_prepared(void)
{
	(void)pthread_atfork(NULL, NULL, fork_child);
}

bool kvcpy_logging(void)
{
	return inside;
}

static void call(void *context, int level, const char *text)
{
	PyObject *callback = context, *line, *answer = NULL;
	PyObject *type, *value, *traceback;
	PyGILState_STATE gil;

	/* What the callback does may make the library log: that line is lost. */
	if (inside)
		return;
	inside = true;
	gil = PyGILState_Ensure();
	PyErr_Fetch(&type, &value, &traceback);
	line = kvcpy_text_object(text);
	if (line) {
		answer = PyObject_CallFunction(callback, "iO", level, line);
		Py_DECREF(line);
	}
	if (!answer)
		PyErr_WriteUnraisable(callback);
	Py_XDECREF(answer);
	PyErr_Restore(type, value, traceback);
	PyGILState_Release(gil);
	inside = false;
}

static void replace(PyObject *callback, int level)
{
	PyObject *former;

	Py_XINCREF(callback);
	Py_BEGIN_ALLOW_THREADS
	pthread_mutex_lock(&set_lock);
	kvc_log_set(callback ? call : NULL, callback, level);
	former = current;
	current = callback;
	pthread_mutex_unlock(&set_lock);
	Py_END_ALLOW_THREADS
	Py_XDECREF(former);
}

/* Before the interpreter ends: a thread of the library that asked for the GIL then would never get
 * it. */
static int remove_at_exit(PyObject *module)
{
	PyObject *atexit = PyImport_ImportModule("atexit");
	PyObject *function = NULL, *answer = NULL;

	if (atexit)
		function = PyObject_GetAttrString(module, "set_log");
	if (function)
		answer = PyObject_CallMethod(atexit, "register", "OO", function, Py_None);
	Py_XDECREF(function);
	Py_XDECREF(atexit);
	Py_XDECREF(answer);
	return answer ? 0 : -1;
}

static const char *const names[] = { "callback", "level" };
static const struct kvcpy_spec spec = { "set_log", names, 2, 2, 1 };

const char kvcpy_set_log_doc[] =
	"set_log($module, /, callback, level=2)\n--\n\n"
	"Where the library's log lines go, for the whole process; None: nowhere (the default).\n\n"
	"callback(level, text) gets lines up to `level`: 0 error, 1 warning, 2 info, 3 debug. It\n"
	"may come from any thread, also while a call is in progress, and from several at once.\n"
	"It must not call kvcellar: Error(EDEADLK). What it raises goes to sys.unraisablehook.\n"
	"When set_log() returns, no other thread is inside the former callback. Only in the main\n"
	"interpreter. At exit the callback is removed.";
PyObject *kvcpy_set_log(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
			PyObject *kwnames)
{
	struct kvcpy_state *state = PyModule_GetState(module);
	PyObject *values[2];
	uint32_t level = KVC_LOG_INFO;

	if (kvcpy_parse(&spec, args, nargs, kwnames, values) ||
	    kvcpy_u32(state, values[1], "level", &level))
		return NULL;
	if (values[0] != Py_None && !PyCallable_Check(values[0])) {
		kvcpy_wrong_type(values[0], "callback", "a callable or None");
		return NULL;
	}
	if (level > KVC_LOG_DEBUG) {
		kvcpy_refuse(state, "level = %u: not in 0 to %d", level, KVC_LOG_DEBUG);
		return NULL;
	}
	if (inside) {
		kvcpy_raise_text(state->error, EDEADLK,
				 "the log callback may not call the library");
		return NULL;
	}
	if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
		kvcpy_raise_text(state->error, ENOTSUP,
				 "the log callback belongs to the main interpreter");
		return NULL;
	}
	if (values[0] == Py_None) {
		replace(NULL, (int)level);
		Py_RETURN_NONE;
	}
	if (!state->exit_registered && remove_at_exit(module))
		return NULL;
	state->exit_registered = true;
	replace(values[0], (int)level);
	Py_RETURN_NONE;
}
