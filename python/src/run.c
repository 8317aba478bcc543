/* SPDX-License-Identifier: Apache-2.0 */
/* Several transfers in one call of the library: Store.run(), and what Store.start() needs. */
#include "kvcpy.h"

#include <errno.h>
#include <stdlib.h>

static struct kvcpy_work *work_at(const struct kvcpy_run *run, size_t at)
{
	return &((struct kvcpy_transfer *)PyTuple_GetItem(run->objects, (Py_ssize_t)at))->work;
}

static int add_transfer(struct kvcpy_state *state, struct kvcpy_run *run, size_t at,
			PyObject *results)
{
	PyObject *object = PyTuple_GetItem(run->objects, (Py_ssize_t)at);
	struct kvcpy_result *result;
	struct kvcpy_work *work;
	int rc;

	if (Py_TYPE(object) != state->transfer_type)
		return kvcpy_wrong_type(object, "transfers", "Transfer objects");
	work = work_at(run, at);
	result = kvcpy_result_new(state, work->transfer.key_count);
	if (!result)
		return -1;
	run->transfers[at] = work->transfer;
	run->transfers[at].results = result->results;
	rc = PyList_Append(results, (PyObject *)result);
	Py_DECREF((PyObject *)result);
	return rc;
}

int kvcpy_run_make(struct kvcpy_state *state, PyObject *transfers, struct kvcpy_run *out)
{
	struct kvcpy_run run = { .objects = kvcpy_tuple(transfers, "transfers") };
	PyObject *results = NULL;

	if (!run.objects)
		return -1;
	run.count = (size_t)PyTuple_Size(run.objects);
	results = PyList_New(0);
	run.transfers = calloc(run.count + 1, sizeof(*run.transfers));
	if (!results || !run.transfers) {
		PyErr_NoMemory();
		goto release;
	}
	for (size_t i = 0; i < run.count; i++)
		if (add_transfer(state, &run, i, results))
			goto release;
	/* Not the list, which the garbage collector shows to everybody. */
	run.results = PyList_AsTuple(results);
	if (!run.results)
		goto release;
	Py_DECREF(results);
	*out = run;
	return 0;

release:
	Py_XDECREF(results);
	kvcpy_run_release(&run);
	return -1;
}

void kvcpy_run_release(struct kvcpy_run *run)
{
	Py_CLEAR(run->objects);
	Py_CLEAR(run->results);
	free(run->transfers);
	run->transfers = NULL;
	run->count = 0;
}

static void leave_pools(struct kvcpy_run *run, size_t count)
{
	for (size_t i = 0; i < count; i++)
		kvcpy_leave(&work_at(run, i)->pool->handle);
}

int kvcpy_run_enter(struct kvcpy_handle *store, struct kvcpy_run *run)
{
	if (kvcpy_enter(store))
		return -1;
	for (size_t i = 0; i < run->count; i++) {
		struct kvcpy_handle *pool = &work_at(run, i)->pool->handle;

		if (kvcpy_enter(pool)) {
			leave_pools(run, i);
			kvcpy_leave(store);
			return -1;
		}
		/* Only now it cannot be closed any more. */
		run->transfers[i].pool = pool->raw;
	}
	return 0;
}

void kvcpy_run_leave(struct kvcpy_handle *store, struct kvcpy_run *run)
{
	leave_pools(run, run->count);
	kvcpy_leave(store);
}

void kvcpy_run_done(struct kvcpy_run *run)
{
	for (size_t i = 0; i < run->count; i++) {
		struct kvcpy_result *result =
			(struct kvcpy_result *)PyTuple_GetItem(run->results, (Py_ssize_t)i);

		result->ok_count = run->transfers[i].ok_count;
		result->prefix_count = run->transfers[i].prefix_count;
	}
}

int kvcpy_batch_run(struct kvc_store *store, struct kvc_transfer *transfers, size_t count)
{
	/* Taking the GIL again can cost its switch interval. */
	int rc = kvc_batch_try(store, transfers, count);

	if (rc != -EAGAIN)
		return rc;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_batch_run(store, transfers, count);
	Py_END_ALLOW_THREADS
	return rc;
}

static const char *const names[] = { "transfers" };
static const struct kvcpy_spec spec = { "run", names, 1, 1, 1 };

const char kvcpy_store_run_doc[] =
	"run($self, /, transfers)\n--\n\n"
	"Runs Transfer objects in this thread, all in one call; a list with a Result for each.\n\n"
	"Their pools may differ, but belong to this store. The GIL is released while it works,\n"
	"but not where nothing can block, as exists on a packed root.\n"
	"ConfigError when nothing was tried; what happened to a page is in its Result.";
PyObject *kvcpy_store_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			  PyObject *kwnames)
{
	struct kvcpy_handle *store = (struct kvcpy_handle *)self;
	PyObject *value, *results = NULL;
	struct kvcpy_run run;
	int rc;

	if (kvcpy_parse(&spec, args, nargs, kwnames, &value) ||
	    kvcpy_run_make(store->state, value, &run))
		return NULL;
	if (kvcpy_run_enter(store, &run))
		goto release;
	rc = kvcpy_batch_run(store->raw, run.transfers, run.count);
	kvcpy_run_leave(store, &run);
	if (rc < 0) {
		kvcpy_raise(store->state, rc);
		goto release;
	}
	kvcpy_run_done(&run);
	results = PySequence_List(run.results);

release:
	kvcpy_run_release(&run);
	return results;
}
