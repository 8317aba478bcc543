/* SPDX-License-Identifier: Apache-2.0 */
/* Batch: transfers that the store's I/O threads run. */
#include "kvcpy.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum {
	SLICE_MS = 100
}; /* a wait looks for signals this often */

/* @run       what the I/O threads read and write, until done; the handle holds it
 * @started   they have got it
 * @done      they have ended; the results are whole */
struct kvcpy_batch {
	struct kvcpy_handle handle;
	struct kvcpy_run *run;
	bool started;
	bool done;
};

/* Cancelled if it has not ended. */
static int close_raw(void *raw, unsigned wait_ms)
{
	int rc = kvc_batch_poll(raw);

	if (rc == 0) {
		(void)kvc_batch_cancel(raw);
		rc = kvc_batch_wait(raw, wait_ms);
	}
	return rc < 0 ? rc : kvc_batch_free(raw);
}

static void run_free(void *run)
{
	kvcpy_run_release(run);
	free(run);
}

static const struct kvcpy_kind kind = { "batch", close_raw, run_free };

/* ---------------------------------------------------------------- Store.start() */

static struct kvcpy_batch *batch_new(struct kvcpy_handle *store, PyObject *transfers)
{
	struct kvcpy_run *run = calloc(1, sizeof(*run));
	struct kvcpy_batch *batch;

	if (!run)
		return (void *)PyErr_NoMemory();
	/* Before the batch: from then on others can find it. */
	if (kvcpy_run_make(store->state, transfers, run)) {
		free(run);
		return NULL;
	}
	batch = kvcpy_handle_new(store->state, store->state->batch_type, &kind, store);
	if (!batch) {
		run_free(run);
		return NULL;
	}
	batch->run = batch->handle.held = run;
	return batch;
}

static const char *const start_names[] = { "transfers" };
static const struct kvcpy_spec start_spec = { "start", start_names, 1, 1, 1 };

const char kvcpy_store_start_doc[] =
	"start($self, /, transfers)\n--\n\n"
	"The same as run() by the store's I/O threads; a Batch to wait for.\n\n"
	"The memory that the transfers name has to stay until the batch is done. Error(EAGAIN):\n"
	"too many batches are waiting.";
PyObject *kvcpy_store_start(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	struct kvcpy_handle *store = (struct kvcpy_handle *)self;
	struct kvcpy_batch *batch;
	struct kvc_batch *raw;
	PyObject *value;
	int rc;

	if (kvcpy_parse(&start_spec, args, nargs, kwnames, &value))
		return NULL;
	batch = batch_new(store, value);
	if (!batch || kvcpy_run_enter(store, batch->run)) {
		Py_XDECREF((PyObject *)batch);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_batch_start(store->raw, batch->run->transfers, batch->run->count, &raw);
	Py_END_ALLOW_THREADS
	if (rc >= 0) {
		kvcpy_handle_set(&batch->handle, raw);
		batch->started = true;
	}
	kvcpy_run_leave(store, batch->run);
	if (rc < 0) {
		Py_DECREF((PyObject *)batch);
		return kvcpy_raise(store->state, rc);
	}
	return (PyObject *)batch;
}

/* ---------------------------------------------------------------- waiting */

static void set_done(struct kvcpy_batch *batch)
{
	if (!batch->done)
		kvcpy_run_done(batch->run);
	batch->done = true;
}

/* Once the store has closed it, it has ended. */
static bool is_done(struct kvcpy_batch *batch)
{
	if (batch->started && !batch->done && !batch->handle.raw &&
	    !kvcpy_closing(&batch->handle) && batch->handle.pid == kvcpy_pid())
		set_done(batch);
	return batch->done;
}

/* 1: done, 0: not yet, -1: an exception. */
static int wait_slice(struct kvcpy_batch *batch, uint32_t timeout_ms)
{
	int rc;

	if (is_done(batch))
		return 1;
	if (kvcpy_enter(&batch->handle))
		return -1;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_batch_wait(batch->handle.raw, timeout_ms);
	Py_END_ALLOW_THREADS
	kvcpy_leave(&batch->handle);
	if (rc < 0)
		kvcpy_raise(batch->handle.state, rc);
	else if (rc)
		set_done(batch);
	return rc < 0 ? -1 : rc;
}

static int timeout_of(struct kvcpy_state *state, PyObject *object, uint64_t *out_ms)
{
	double seconds;

	*out_ms = UINT64_MAX;
	if (!object || object == Py_None)
		return 0;
	seconds = PyFloat_AsDouble(object);
	if (PyErr_Occurred())
		return -1;
	if (isnan(seconds))
		return kvcpy_refuse(state, "timeout is not a number");
	if (seconds <= 0)
		*out_ms = 0;
	else if (seconds < 1e15)
		*out_ms = (uint64_t)ceil(seconds * 1000);
	return 0;
}

static const char *const wait_names[] = { "timeout" };
static const struct kvcpy_spec wait_spec = { "wait", wait_names, 1, 1, 0 };
static const struct kvcpy_spec done_spec = { .function = "done" };
static const struct kvcpy_spec cancel_spec = { .function = "cancel" };
static const struct kvcpy_spec fileno_spec = { .function = "fileno" };

static const char batch_wait_doc[] =
	"wait($self, /, timeout=None)\n--\n\n"
	"The results, one per transfer, when it is done; None when timeout seconds went by.";
static PyObject *batch_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	struct kvcpy_batch *batch = (struct kvcpy_batch *)self;
	const uint64_t start_ms = kvcpy_now_ms();
	uint64_t limit_ms, passed_ms = 0;
	PyObject *value;
	int rc;

	if (kvcpy_parse(&wait_spec, args, nargs, kwnames, &value) ||
	    timeout_of(batch->handle.state, value, &limit_ms))
		return NULL;
	do {
		const uint64_t left_ms = limit_ms - passed_ms;

		rc = wait_slice(batch, left_ms < SLICE_MS ? (uint32_t)left_ms : SLICE_MS);
		if (rc == 0 && PyErr_CheckSignals())
			rc = -1;
		passed_ms = kvcpy_now_ms() - start_ms;
	} while (rc == 0 && passed_ms < limit_ms);
	if (rc < 0)
		return NULL;
	if (rc == 0)
		Py_RETURN_NONE;
	return PySequence_List(batch->run->results);
}

static const char batch_done_doc[] = "done($self, /)\n--\n\nWhether it has ended.";
static PyObject *batch_done(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	int rc;

	if (kvcpy_parse(&done_spec, args, nargs, kwnames, NULL))
		return NULL;
	rc = wait_slice((struct kvcpy_batch *)self, 0);
	return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static const char batch_cancel_doc[] =
	"cancel($self, /)\n--\n\n"
	"What has not been started ends skipped; it is done when wait() or done() say so.";
static PyObject *batch_cancel(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	struct kvcpy_batch *batch = (struct kvcpy_batch *)self;
	int rc;

	if (kvcpy_parse(&cancel_spec, args, nargs, kwnames, NULL))
		return NULL;
	if (is_done(batch))
		Py_RETURN_NONE;
	if (kvcpy_enter(&batch->handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_batch_cancel(batch->handle.raw);
	Py_END_ALLOW_THREADS
	kvcpy_leave(&batch->handle);
	if (rc < 0)
		return kvcpy_raise(batch->handle.state, rc);
	Py_RETURN_NONE;
}

static const char batch_fileno_doc[] =
	"fileno($self, /)\n--\n\n"
	"A descriptor, the batch's own, that is readable once it is done: for select and asyncio.";
static PyObject *batch_fileno(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	int fd;

	if (kvcpy_parse(&fileno_spec, args, nargs, kwnames, NULL) || kvcpy_enter(handle))
		return NULL;
	fd = kvc_batch_event_fd(handle->raw);
	kvcpy_leave(handle);
	if (fd < 0)
		return kvcpy_raise(handle->state, fd);
	return PyLong_FromLong(fd);
}

/* ---------------------------------------------------------------- type */

/* The I/O threads may use its memory. The library's lock is one that nobody holds for long, nor
 * while it logs; in a forked child there are no such threads. */
static bool is_in_flight(struct kvcpy_batch *batch)
{
	void *raw = batch->handle.raw;

	return raw && !batch->done && batch->handle.pid == kvcpy_pid() && kvc_batch_poll(raw) == 0;
}

/*
 * The transfers of a batch in flight are not shown to the garbage collector: it takes the
 * reference for one of somebody outside, and leaves them, the pools and the owners of their memory
 * alone, in whatever cycles they are, until the I/O threads have ended. Then the next collection
 * finds all of it.
 */
static int traverse(PyObject *self, visitproc visit, void *arg)
{
	struct kvcpy_batch *batch = (struct kvcpy_batch *)self;

	if (batch->run && !is_in_flight(batch)) {
		Py_VISIT(batch->run->objects);
		Py_VISIT(batch->run->results);
	}
	return kvcpy_handle_traverse(self, visit, arg);
}

static PyMethodDef methods[] = {
	KVCPY_ROW("wait", batch_wait),
	KVCPY_ROW("done", batch_done),
	KVCPY_ROW("cancel", batch_cancel),
	KVCPY_ROW("fileno", batch_fileno),
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Transfers that the store's I/O threads run. Made by Store.start().\n\n"
		     "Holds them and their memory. Closing the store cancels it; so does dropping "
		     "it." },
	{ Py_tp_dealloc, kvcpy_handle_dealloc },
	{ Py_tp_traverse, traverse },
	{ Py_tp_methods, methods },
	{ Py_tp_members, kvcpy_handle_members },
	{ 0, NULL },
};

PyType_Spec kvcpy_batch_spec = {
	.name = "kvcellar.Batch",
	.basicsize = sizeof(struct kvcpy_batch),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
