/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of objects, verify and clear.
 *
 * The library tells objects one by one, without the GIL. They are kept in C and become Python's at
 * the end, so that a walk over many files does not ask for the GIL as many times; now and then it
 * does, for the sake of ^C.
 */
#include "kvcpy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	SIGNALS_EVERY = 256
};

/* ---------------------------------------------------------------- one object */

static PyObject *key_object(const struct kvc_object_info *info)
{
	if (!info->key.data)
		return Py_NewRef(Py_None);
	return PyBytes_FromStringAndSize(info->key.data, (Py_ssize_t)info->key.bytes);
}

PyObject *kvcpy_object_info(const struct kvc_object_info *info)
{
	PyObject *dict = PyDict_New();

	if (dict && (kvcpy_dict_text(dict, "namespace", info->ns_id ? info->ns_id : "") ||
		     kvcpy_dict_text(dict, "name", info->name ? info->name : "") ||
		     kvcpy_dict_text(dict, "root", info->root_path ? info->root_path : "") ||
		     kvcpy_dict_text(dict, "path", info->path ? info->path : "") ||
		     kvcpy_dict_u64(dict, "stored_bytes", info->stored_bytes) ||
		     kvcpy_dict_u64(dict, "allocated_bytes", info->allocated_bytes) ||
		     kvcpy_dict_add(dict, "modified_ns", PyLong_FromLongLong(info->modified_ns)) ||
		     kvcpy_dict_add(dict, "key", key_object(info)) ||
		     kvcpy_dict_add(dict, "pool",
				    info->pool_name ? kvcpy_text_object(info->pool_name) :
						      Py_NewRef(Py_None))))
		Py_CLEAR(dict);
	return dict;
}

/* ---------------------------------------------------------------- collecting */

struct entry {
	struct entry *next;
	struct kvc_object_info info;
	char texts[];
};

struct collection {
	PyThreadState *thread;
	struct entry *first;
	struct entry **last;
	size_t count;
	bool failed; /* with an exception */
};

static const char *keep(char **at, const char *text)
{
	const size_t bytes = text ? strlen(text) + 1 : 0;
	char *to = *at;

	if (!text)
		return NULL;
	memcpy(to, text, bytes);
	*at += bytes;
	return to;
}

static size_t bytes_of(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static struct entry *entry_new(const struct kvc_object_info *info)
{
	const size_t bytes = bytes_of(info->ns_id) + bytes_of(info->name) +
			     bytes_of(info->root_path) + bytes_of(info->path) +
			     bytes_of(info->pool_name) + info->key.bytes;
	struct entry *entry = malloc(sizeof(*entry) + bytes);
	char *at;

	if (!entry)
		return NULL;
	at = entry->texts;
	entry->next = NULL;
	entry->info = *info;
	entry->info.ns_id = keep(&at, info->ns_id);
	entry->info.name = keep(&at, info->name);
	entry->info.root_path = keep(&at, info->root_path);
	entry->info.path = keep(&at, info->path);
	entry->info.pool_name = keep(&at, info->pool_name);
	if (info->key.data) {
		memcpy(at, info->key.data, info->key.bytes);
		entry->info.key.data = at;
	}
	return entry;
}

static int collect(void *context, const struct kvc_object_info *info)
{
	struct collection *collection = context;
	struct entry *entry = entry_new(info);

	if (!entry)
		return -ENOMEM;
	*collection->last = entry;
	collection->last = &entry->next;
	if (++collection->count % SIGNALS_EVERY == 0) {
		PyEval_RestoreThread(collection->thread);
		collection->failed = PyErr_CheckSignals() < 0;
		collection->thread = PyEval_SaveThread();
	}
	return collection->failed ? -ECANCELED : 0;
}

/* Frees the entries as it goes; list may be NULL. */
static PyObject *list_of(struct collection *collection, PyObject *list)
{
	while (collection->first) {
		struct entry *entry = collection->first;
		PyObject *dict = list ? kvcpy_object_info(&entry->info) : NULL;

		if (list && (!dict || PyList_Append(list, dict) < 0))
			Py_CLEAR(list);
		Py_XDECREF(dict);
		collection->first = entry->next;
		free(entry);
	}
	return list;
}

PyObject *kvcpy_walk(struct kvcpy_state *state, kvcpy_walk_fn walk, void *context)
{
	struct collection collection = { .first = NULL };
	int rc;

	collection.last = &collection.first;
	collection.thread = PyEval_SaveThread();
	rc = walk(context, collect, &collection);
	PyEval_RestoreThread(collection.thread);
	if (!collection.failed && rc == 0)
		return list_of(&collection, PyList_New(0));
	if (!collection.failed)
		kvcpy_raise(state, rc);
	return list_of(&collection, NULL);
}

/* ---------------------------------------------------------------- Store.list() */

struct list_call {
	struct kvc_store *store;
	const char *id;
};

static int walk_list(void *context, kvc_object_fn fn, void *fn_context)
{
	const struct list_call *call = context;

	return kvc_object_list(call->store, call->id, fn, fn_context);
}

static const char *const list_names[] = { "namespace" };
static const struct kvcpy_spec list_spec = { "list", list_names, 1, 1, 0 };

const char kvcpy_store_list_doc[] =
	"list($self, /, namespace=None)\n--\n\n"
	"Every object of a namespace (its id), or of all, from every root: dicts with namespace,\n"
	"name, root, path, stored_bytes, allocated_bytes, modified_ns, key and pool (None where\n"
	"the name does not tell).";
PyObject *kvcpy_store_list(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			   PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct list_call call = { 0 };
	PyObject *value, *list;

	if (kvcpy_parse(&list_spec, args, nargs, kwnames, &value) ||
	    kvcpy_text(handle->state, value, "namespace", &call.id) || kvcpy_enter(handle))
		return NULL;
	call.store = handle->raw;
	list = kvcpy_walk(handle->state, walk_list, &call);
	kvcpy_leave(handle);
	return list;
}

/* ---------------------------------------------------------------- Store.verify() */

struct verification {
	PyThreadState *thread;
	struct kvcpy_state *state;
	PyObject *callback; /* or NULL */
	uint64_t objects;
	uint64_t counts[KVCPY_STATUS_COUNT];
	bool failed; /* with an exception */
};

static bool tell(struct verification *verification, const struct kvc_object_info *info,
		 const struct kvc_result *result, uint64_t done, uint64_t total)
{
	PyObject *answer = NULL, *object = kvcpy_object_info(info);
	PyObject *status = kvcpy_status_name(verification->state, result->status);
	PyObject *cause = kvcpy_cause_name(verification->state, result->cause);

	if (object && status && cause)
		answer = PyObject_CallFunction(verification->callback, "OOOKK", object, status,
					       cause, (unsigned long long)done,
					       (unsigned long long)total);
	Py_XDECREF(object);
	Py_XDECREF(status);
	Py_XDECREF(cause);
	Py_XDECREF(answer);
	return answer;
}

static int verified(void *context, const struct kvc_object_info *info,
		    const struct kvc_result *result, uint64_t done, uint64_t total)
{
	struct verification *verification = context;

	verification->objects++;
	if (result->status < KVCPY_STATUS_COUNT)
		verification->counts[result->status]++;
	if (!verification->callback && verification->objects % SIGNALS_EVERY != 0)
		return 0;
	PyEval_RestoreThread(verification->thread);
	if (verification->callback)
		verification->failed = !tell(verification, info, result, done, total);
	else
		verification->failed = PyErr_CheckSignals() < 0;
	verification->thread = PyEval_SaveThread();
	return verification->failed ? -ECANCELED : 0;
}

static PyObject *verification_dict(const struct verification *verification)
{
	PyObject *dict = PyDict_New();

	if (dict && kvcpy_dict_u64(dict, "objects", verification->objects))
		Py_CLEAR(dict);
	for (int i = 0; dict && i < KVCPY_STATUS_COUNT; i++)
		if (kvcpy_dict_u64(dict, kvc_status_name(i), verification->counts[i]))
			Py_CLEAR(dict);
	return dict;
}

static const char *const verify_names[] = { "namespace", "remove", "callback" };
static const struct kvcpy_spec verify_spec = { "verify", verify_names, 3, 1, 0 };

const char kvcpy_store_verify_doc[] =
	"verify($self, /, namespace=None, *, remove=False, callback=None)\n--\n\n"
	"Reads every object of a namespace (None: all) and checks trailer, name and checksum.\n\n"
	"Numbers of objects, in all and by status. remove: proven-corrupt ones are removed.\n"
	"callback(object, status, cause, done, total) gets each one; what it raises ends the walk\n"
	"and is passed on.";
PyObject *kvcpy_store_verify(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct verification verification = { .state = handle->state };
	const char *id = NULL;
	bool remove = false;
	PyObject *values[3];
	int rc;

	if (kvcpy_parse(&verify_spec, args, nargs, kwnames, values) ||
	    kvcpy_text(handle->state, values[0], "namespace", &id) ||
	    kvcpy_flag(values[1], "remove", &remove))
		return NULL;
	if (values[2] && values[2] != Py_None) {
		if (!PyCallable_Check(values[2])) {
			kvcpy_wrong_type(values[2], "callback", "a callable or None");
			return NULL;
		}
		verification.callback = values[2];
	}
	if (kvcpy_enter(handle))
		return NULL;
	verification.thread = PyEval_SaveThread();
	rc = kvc_store_verify(handle->raw, id, remove, verified, &verification);
	PyEval_RestoreThread(verification.thread);
	kvcpy_leave(handle);
	if (verification.failed)
		return NULL;
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	return verification_dict(&verification);
}

/* ---------------------------------------------------------------- Store.clear() */

/* The exception says what was done, too: some may have been removed. */
static void add_report(PyObject *report)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	PyErr_NormalizeException(&type, &value, &traceback);
	if (value && PyObject_SetAttrString(value, "report", report) < 0)
		PyErr_Clear();
	PyErr_Restore(type, value, traceback);
}

PyObject *kvcpy_clear(struct kvcpy_handle *store, const char *id, bool dry_run)
{
	struct kvc_clear_report report = { .size = sizeof(report) };
	PyObject *dict;
	int rc;

	Py_BEGIN_ALLOW_THREADS
	rc = kvc_namespace_clear(store->raw, id, dry_run, &report);
	Py_END_ALLOW_THREADS
	if (rc < 0)
		kvcpy_raise(store->state, rc);
	if (rc < 0 && rc != -EIO)
		return NULL;
	if (rc == 0)
		return Py_BuildValue("{sKsKsK}", "objects", (unsigned long long)report.objects,
				     "bytes", (unsigned long long)report.bytes, "failed",
				     (unsigned long long)report.failed);
	dict = Py_BuildValue("{sKsKsK}", "objects", (unsigned long long)report.objects, "bytes",
			     (unsigned long long)report.bytes, "failed",
			     (unsigned long long)report.failed);
	if (dict)
		add_report(dict);
	Py_XDECREF(dict);
	return NULL;
}

static const char *const clear_names[] = { "namespace", "dry_run" };
static const struct kvcpy_spec clear_spec = { "clear", clear_names, 2, 1, 1 };

const char kvcpy_store_clear_doc[] =
	"clear($self, /, namespace, *, dry_run=False)\n--\n\n"
	"Removes the objects of one namespace, of all ranks and pools, and nothing else.\n\n"
	"namespace: its id. objects, bytes and failed; dry_run: only counts. Error(ENOENT) when\n"
	"no root has it; Error(EIO), with the numbers in its attribute report, when some could\n"
	"not be removed.";
PyObject *kvcpy_store_clear(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	PyObject *values[2], *report;
	const char *id = NULL;
	bool dry_run = false;

	if (kvcpy_parse(&clear_spec, args, nargs, kwnames, values) ||
	    kvcpy_name(handle->state, values[0], "namespace", &id) ||
	    kvcpy_flag(values[1], "dry_run", &dry_run) || kvcpy_enter(handle))
		return NULL;
	report = kvcpy_clear(handle, id, dry_run);
	kvcpy_leave(handle);
	return report;
}
