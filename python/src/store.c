/* SPDX-License-Identifier: Apache-2.0 */
/* Store: opening, and the table of its methods, which are in several files. */
#include "kvcpy.h"

#include <errno.h>

static int close_raw(void *raw, unsigned wait_ms)
{
	(void)wait_ms; /* the library's own limit is 1 s */
	return kvc_store_close(raw);
}

static const struct kvcpy_kind kind = { "store", close_raw, NULL };

/* ---------------------------------------------------------------- opening */

/* options[name].value of the configuration that is in effect. */
static int read_timeout(PyObject *options, const char *name, uint32_t *out)
{
	PyObject *option = PyMapping_GetItemString(options, name);
	PyObject *value = option ? PyMapping_GetItemString(option, "value") : NULL;
	unsigned long number = value ? PyLong_AsUnsignedLong(value) : 0;

	Py_XDECREF(option);
	Py_XDECREF(value);
	if (PyErr_Occurred())
		return -1;
	*out = number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
	return 0;
}

static int describe(void *context, char *buffer, size_t bytes)
{
	return kvc_config_describe(context, KVC_DESCRIBE_EFFECTIVE_JSON, buffer, bytes);
}

/* How long a call may take: put_many() and the like are many calls of the library. */
static int read_timeouts(struct kvcpy_state *state, struct kvc_config *config,
			 uint32_t timeouts_ms[KVC_OPERATION_COUNT])
{
	PyObject *text = kvcpy_text_of(state, describe, config);
	PyObject *document = NULL, *options = NULL;
	int rc = -1;

	if (text)
		document = PyObject_CallFunctionObjArgs(state->json_loads, text, NULL);
	if (document)
		options = PyMapping_GetItemString(document, "options");
	if (options && !read_timeout(options, "exists_timeout_ms", &timeouts_ms[KVC_EXISTS]) &&
	    !read_timeout(options, "get_timeout_ms", &timeouts_ms[KVC_GET]) &&
	    !read_timeout(options, "set_timeout_ms", &timeouts_ms[KVC_SET]))
		rc = 0;
	Py_XDECREF(text);
	Py_XDECREF(document);
	Py_XDECREF(options);
	return rc;
}

static int open_store(struct kvcpy_store *store, struct kvc_config *config, uint32_t flags)
{
	const struct kvc_open_params params = { .size = sizeof(params), .flags = flags };
	struct kvc_store *raw;
	int rc;

	if (read_timeouts(store->handle.state, config, store->timeouts_ms))
		return -1;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_store_open(config, &params, &raw);
	Py_END_ALLOW_THREADS
	if (rc < 0) {
		kvcpy_raise(store->handle.state, rc);
		return -1;
	}
	kvcpy_handle_set(&store->handle, raw);
	return 0;
}

static const char *const names[] = { "config", "read_only", "selftest" };
static const struct kvcpy_spec spec = { "Store", names, 3, 1, 0 };

static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct kvcpy_state *state = PyType_GetModuleState(type);
	bool read_only = false, selftest = true;
	struct kvcpy_store *store;
	struct kvc_config *config;
	PyObject *values[3];

	if (kvcpy_parse_new(&spec, args, kwargs, values) ||
	    kvcpy_flag(values[1], "read_only", &read_only) ||
	    kvcpy_flag(values[2], "selftest", &selftest) ||
	    kvcpy_config_make(state, values[0], &config))
		return NULL;
	kvcpy_sweep(state);
	store = kvcpy_handle_new(state, type, &kind, NULL);
	if (store && open_store(store, config,
				(read_only ? KVC_OPEN_READ_ONLY : 0u) |
					(selftest ? 0u : KVC_OPEN_NO_SELFTEST)))
		Py_CLEAR(store);
	kvc_config_free(config);
	return (PyObject *)store;
}

/* ---------------------------------------------------------------- methods that are small */

static const struct kvcpy_spec selftest_spec = { .function = "selftest" };

const char kvcpy_store_selftest_doc[] =
	"selftest($self, /)\n--\n\n"
	"Writes, finds, reads, compares and removes a test object on every root. Raises the error\n"
	"of the first root that fails.";
PyObject *kvcpy_store_selftest(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			       PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	int rc;

	if (kvcpy_parse(&selftest_spec, args, nargs, kwnames, NULL) || kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_store_selftest(handle->raw);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- type */

static PyObject *represent(PyObject *self)
{
	return PyUnicode_FromFormat("<kvcellar.Store%s>",
				    ((struct kvcpy_handle *)self)->raw ? "" : ", closed");
}

static PyMethodDef methods[] = {
	KVCPY_ROW("namespace", kvcpy_store_namespace),
	KVCPY_ROW("run", kvcpy_store_run),
	KVCPY_ROW("start", kvcpy_store_start),
	KVCPY_ROW("register_memory", kvcpy_store_register_memory),
	KVCPY_ROW("stats", kvcpy_store_stats),
	KVCPY_ROW("stats_text", kvcpy_store_stats_text),
	KVCPY_ROW("describe", kvcpy_store_describe),
	KVCPY_ROW("metrics", kvcpy_store_metrics),
	KVCPY_ROW("usage", kvcpy_store_usage),
	KVCPY_ROW("usage_namespaces", kvcpy_store_usage_namespaces),
	KVCPY_ROW("pin", kvcpy_store_pin),
	KVCPY_ROW("clean", kvcpy_store_clean),
	KVCPY_ROW("list", kvcpy_store_list),
	KVCPY_ROW("verify", kvcpy_store_verify),
	KVCPY_ROW("clear", kvcpy_store_clear),
	KVCPY_ROW("object_stat", kvcpy_store_object_stat),
	KVCPY_ROW("selftest", kvcpy_store_selftest),
	KVCPY_ROW("close", kvcpy_handle_close),
	KVCPY_ROW("__enter__", kvcpy_handle_enter),
	KVCPY_ROW("__exit__", kvcpy_handle_exit),
	{ 0 },
};

static const char doc[] =
	"Store(config=None, *, read_only=False, selftest=True)\n--\n\n"
	"A store: the plugin, the roots and the counters of one configuration.\n\n"
	"config: a dict (keys as in the files); a text, TOML, JSON, YAML or '@path'; or None:\n"
	"the defaults and the environment. read_only: nothing is changed, sets end in denied.\n"
	"selftest: whether a test object is written and read on each root. ConfigError for a\n"
	"configuration that is refused, Error for storage that cannot be used. Safe for threads.\n"
	"Use it as a context manager, or close() it; one that is dropped is closed as well.";

static PyType_Slot slots[] = {
	{ Py_tp_doc, (void *)(uintptr_t)doc },
	{ Py_tp_new, create },
	{ Py_tp_dealloc, kvcpy_handle_dealloc },
	{ Py_tp_traverse, kvcpy_handle_traverse },
	{ Py_tp_repr, represent },
	{ Py_tp_methods, methods },
	{ Py_tp_getset, kvcpy_handle_properties },
	{ Py_tp_members, kvcpy_handle_members },
	{ 0, NULL },
};

PyType_Spec kvcpy_store_spec = {
	.name = "kvcellar.Store",
	.basicsize = sizeof(struct kvcpy_store),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
