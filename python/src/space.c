/* SPDX-License-Identifier: Apache-2.0 */
/* Space by namespace, pins, and room: Store.usage_namespaces(), pin(), clean(). */
#include "kvcpy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- Store.usage_namespaces() */

/* As the library told it without the GIL; it becomes Python's at the end. */
struct space {
	struct kvc_namespace_usage usage;
	char *texts[4]; /* root, id, model, tenant */
};

struct spaces {
	struct space *list;
	size_t count;
};

static int keep(void *context, const struct kvc_namespace_usage *usage)
{
	const char *const texts[4] = { usage->root_path, usage->id, usage->model, usage->tenant };
	struct spaces *spaces = context;
	struct space *grown = realloc(spaces->list, (spaces->count + 1) * sizeof(*grown));
	struct space *one;

	if (!grown)
		return -ENOMEM;
	spaces->list = grown;
	one = &grown[spaces->count++];
	*one = (struct space){ .usage = *usage };
	for (int i = 0; i < 4; i++) {
		one->texts[i] = texts[i] ? strdup(texts[i]) : NULL;
		if (texts[i] && !one->texts[i])
			return -ENOMEM;
	}
	return 0;
}

static PyObject *text_or_none(const char *text)
{
	return text ? kvcpy_text_object(text) : Py_NewRef(Py_None);
}

static PyObject *space_dict(const struct space *space)
{
	const struct kvc_namespace_usage *usage = &space->usage;
	PyObject *dict = PyDict_New();

	if (dict && (kvcpy_dict_text(dict, "root", space->texts[0]) ||
		     kvcpy_dict_text(dict, "namespace", space->texts[1]) ||
		     kvcpy_dict_add(dict, "model", text_or_none(space->texts[2])) ||
		     kvcpy_dict_add(dict, "tenant", text_or_none(space->texts[3])) ||
		     kvcpy_dict_u64(dict, "live_bytes", usage->live_bytes) ||
		     kvcpy_dict_u64(dict, "allocated_bytes", usage->allocated_bytes) ||
		     kvcpy_dict_u64(dict, "objects", usage->objects) ||
		     kvcpy_dict_u64(dict, "share_bytes", usage->share_bytes) ||
		     kvcpy_dict_add(dict, "pinned", PyBool_FromLong((long)usage->pinned))))
		Py_CLEAR(dict);
	return dict;
}

static PyObject *space_list(const struct spaces *spaces)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < spaces->count; i++) {
		PyObject *dict = space_dict(&spaces->list[i]);

		if (!dict || PyList_Append(list, dict) < 0)
			Py_CLEAR(list);
		Py_XDECREF(dict);
	}
	return list;
}

static void spaces_free(struct spaces *spaces)
{
	for (size_t i = 0; i < spaces->count; i++)
		for (int t = 0; t < 4; t++)
			free(spaces->list[i].texts[t]);
	free(spaces->list);
}

static const struct kvcpy_spec usage_spec = { .function = "usage_namespaces" };

const char kvcpy_store_usage_namespaces_doc[] =
	"usage_namespaces($self, /)\n--\n\n"
	"What each root holds of each namespace, as counted by all processes: root, namespace,\n"
	"model and tenant (None: not known, or none), live_bytes, allocated_bytes (of segment\n"
	"files), objects, pinned, and share_bytes, what its tenant may have (0: no limit). In\n"
	"nixl naming all objects of a root count as the namespace ''.";
PyObject *kvcpy_store_usage_namespaces(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				       PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct spaces spaces = { .count = 0 };
	PyObject *list = NULL;
	int rc;

	if (kvcpy_parse(&usage_spec, args, nargs, kwnames, NULL) || kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_store_usage_namespaces(handle->raw, keep, &spaces);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		kvcpy_raise(handle->state, rc);
	else
		list = space_list(&spaces);
	spaces_free(&spaces);
	return list;
}

/* ---------------------------------------------------------------- Store.pin() */

static const char *const pin_names[] = { "namespace", "on" };
static const struct kvcpy_spec pin_spec = { "pin", pin_names, 2, 1, 1 };

const char kvcpy_store_pin_doc[] =
	"pin($self, /, namespace, *, on=True)\n--\n\n"
	"Keeps a namespace from being evicted, in all processes; on=False: lets it go again.\n\n"
	"namespace: its id. Error(ENOTSUP): naming nixl, or a root without folders;\n"
	"Error(EINVAL): no id; Error(EROFS).";
PyObject *kvcpy_store_pin(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			  PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	const char *id = NULL;
	PyObject *values[2];
	bool on = true;
	int rc;

	if (kvcpy_parse(&pin_spec, args, nargs, kwnames, values) ||
	    kvcpy_name(handle->state, values[0], "namespace", &id) ||
	    kvcpy_flag(values[1], "on", &on) || kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_store_pin(handle->raw, id, on);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	return rc < 0 ? kvcpy_raise(handle->state, rc) : Py_NewRef(Py_None);
}

/* ---------------------------------------------------------------- Store.clean() */

static const char *const clean_names[] = { "to_percent", "to_bytes", "dry_run" };
static const struct kvcpy_spec clean_spec = { "clean", clean_names, 3, 0, 0 };

/* Exactly one of the two limits. */
static int clean_params(struct kvcpy_state *state, PyObject *const values[3],
			struct kvc_clean_params *out)
{
	const bool percent = values[0] && values[0] != Py_None;
	const bool bytes = values[1] && values[1] != Py_None;
	bool dry_run = false;

	if (percent == bytes) {
		PyErr_SetString(PyExc_TypeError, "clean() takes one of to_percent and to_bytes");
		return -1;
	}
	if (kvcpy_flag(values[2], "dry_run", &dry_run) ||
	    (bytes && kvcpy_u64(state, values[1], "to_bytes", &out->to_bytes)))
		return -1;
	if (percent)
		out->to_percent = PyFloat_AsDouble(values[0]);
	if (percent && PyErr_Occurred())
		return -1;
	out->flags = (dry_run ? KVC_CLEAN_DRY_RUN : 0u) | (bytes ? KVC_CLEAN_TO_BYTES : 0u);
	return 0;
}

const char kvcpy_store_clean_doc[] =
	"clean($self, /, *, to_percent=None, to_bytes=None, dry_run=False)\n--\n\n"
	"Removes what is used least until not more than that is left on each root: a percentage\n"
	"of its capacity, without one of its file system; or bytes of its objects. Returns\n"
	"groups, objects, bytes, failed, left_bytes, missing_bytes (would have to go besides, and\n"
	"cannot) and pinned_bytes (of what is left). dry_run: only tells what would go.";
PyObject *kvcpy_store_clean(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct kvc_clean_params params = { .size = sizeof(params) };
	struct kvc_clean_report report = { .size = sizeof(report) };
	PyObject *values[3];
	int rc;

	if (kvcpy_parse(&clean_spec, args, nargs, kwnames, values) ||
	    clean_params(handle->state, values, &params) || kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_store_clean(handle->raw, &params, &report);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	return Py_BuildValue("{sKsKsKsKsKsKsK}", "groups", (unsigned long long)report.groups,
			     "objects", (unsigned long long)report.objects, "bytes",
			     (unsigned long long)report.bytes, "failed",
			     (unsigned long long)report.failed, "left_bytes",
			     (unsigned long long)report.left_bytes, "missing_bytes",
			     (unsigned long long)report.missing_bytes, "pinned_bytes",
			     (unsigned long long)report.pinned_bytes);
}
