/* SPDX-License-Identifier: Apache-2.0 */
/* Namespace: which pages may stand for one another, and which rank this is. */
#include "kvcpy.h"

static int close_raw(void *raw, unsigned wait_ms)
{
	(void)wait_ms;
	return kvc_namespace_close(raw);
}

static const struct kvcpy_kind kind = { "namespace", close_raw, NULL };

/* ---------------------------------------------------------------- opening */

enum {
	MODEL_ID,
	IDENTITY,
	TENANT,
	DTYPE,
	IS_MLA,
	IS_WRITER,
	PAGE_TOKENS,
	NUMBERS = PAGE_TOKENS,
	ARGUMENT_COUNT = NUMBERS + 11,
};

static const char *const names[] = {
	"model_id",
	"identity",
	"tenant",
	"dtype",
	"is_mla",
	"is_writer",
	"page_tokens",
	"tp_size",
	"tp_lcm_size",
	"pp_size",
	"cp_size",
	"dcp_size",
	"logical_page_tokens",
	"tp_rank",
	"pp_rank",
	"cp_rank",
	"dcp_rank",
};
static const struct kvcpy_spec spec = { "namespace", names, ARGUMENT_COUNT, 1, 0 };

static int params_of(struct kvcpy_state *state, PyObject *const *values,
		     struct kvc_namespace_params *out)
{
	uint32_t *const numbers[] = {
		&out->page_tokens,
		&out->tp_size,
		&out->tp_lcm_size,
		&out->pp_size,
		&out->cp_size,
		&out->dcp_size,
		&out->logical_page_tokens,
		&out->tp_rank,
		&out->pp_rank,
		&out->cp_rank,
		&out->dcp_rank,
	};
	bool is_mla = false;

	if (kvcpy_text(state, values[MODEL_ID], "model_id", &out->model_id) ||
	    kvcpy_text(state, values[IDENTITY], "identity", &out->identity) ||
	    kvcpy_text(state, values[TENANT], "tenant", &out->tenant) ||
	    kvcpy_text(state, values[DTYPE], "dtype", &out->dtype) ||
	    kvcpy_flag(values[IS_MLA], "is_mla", &is_mla) ||
	    kvcpy_tristate(values[IS_WRITER], "is_writer", &out->is_writer))
		return -1;
	out->is_mla = is_mla;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (kvcpy_u32(state, values[NUMBERS + i], names[NUMBERS + i], numbers[i]))
			return -1;
	return 0;
}

const char kvcpy_store_namespace_doc[] =
	"namespace($self, /, model_id=None, *, identity=None, tenant=None, dtype=None,\n"
	"page_tokens=64, is_mla=False, tp_size=1, tp_lcm_size=0, pp_size=1, cp_size=1,\n"
	"dcp_size=1, logical_page_tokens=0, tp_rank=0, pp_rank=0, cp_rank=0, dcp_rank=0,\n"
	"is_writer=None)\n--\n\n"
	"Opens a namespace; several of the same identity may be open.\n\n"
	"model_id: served model name. identity: which weights (revision, hashes); None: the\n"
	"configuration's. tenant likewise. dtype: logical dtype of the cache. page_tokens:\n"
	"tokens per page. is_mla: KV is the same on every tp rank and stored once. tp_lcm_size:\n"
	"pages are split into that many head groups, so that other tp sizes find them. Ranks:\n"
	"this process's place. is_writer: whether this rank stores replicated pages; None:\n"
	"tp_rank == dcp_rank. ConfigError for what makes no sense.";
PyObject *kvcpy_store_namespace(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				PyObject *kwnames)
{
	struct kvcpy_handle *store = (struct kvcpy_handle *)self;
	struct kvc_namespace_params params = { .size = sizeof(params), .page_tokens = 64 };
	struct kvcpy_handle *ns;
	struct kvc_namespace *raw;
	PyObject *values[ARGUMENT_COUNT];
	int rc;

	if (kvcpy_parse(&spec, args, nargs, kwnames, values) ||
	    params_of(store->state, values, &params))
		return NULL;
	ns = kvcpy_handle_new(store->state, store->state->namespace_type, &kind, store);
	if (!ns || kvcpy_enter(store)) {
		Py_XDECREF((PyObject *)ns);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_namespace_open(store->raw, &params, &raw);
	Py_END_ALLOW_THREADS
	if (rc >= 0)
		kvcpy_handle_set(ns, raw);
	kvcpy_leave(store);
	if (rc < 0) {
		Py_DECREF((PyObject *)ns);
		return kvcpy_raise(store->state, rc);
	}
	return (PyObject *)ns;
}

/* ---------------------------------------------------------------- methods */

static PyObject *get_id(PyObject *self, void *closure)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	PyObject *id;

	(void)closure;
	if (kvcpy_enter(handle))
		return NULL;
	id = kvcpy_text_object(kvc_namespace_id(handle->raw));
	kvcpy_leave(handle);
	return id;
}

static const struct kvcpy_spec usage_spec = { .function = "usage" };

static const char namespace_usage_doc[] =
	"usage($self, /)\n--\n\n"
	"(bytes, objects) of the namespace on all roots, as counted.";
static PyObject *namespace_usage(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				 PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	uint64_t bytes = 0, objects = 0;
	int rc;

	if (kvcpy_parse(&usage_spec, args, nargs, kwnames, NULL) || kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_namespace_usage(handle->raw, &bytes, &objects);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	return Py_BuildValue("(KK)", (unsigned long long)bytes, (unsigned long long)objects);
}

static const char *const clear_names[] = { "dry_run" };
static const struct kvcpy_spec clear_spec = { "clear", clear_names, 1, 0, 0 };

static const char namespace_clear_doc[] =
	"clear($self, /, *, dry_run=False)\n--\n\n"
	"Removes the namespace's objects, of all ranks and pools: Store.clear(id). With naming\n"
	"nixl, whose files know no namespace: Store.clear() with the model's part of the names.";
static PyObject *namespace_clear(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				 PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	PyObject *value, *report;
	bool dry_run = false;

	if (kvcpy_parse(&clear_spec, args, nargs, kwnames, &value) ||
	    kvcpy_flag(value, "dry_run", &dry_run) || kvcpy_enter(handle))
		return NULL;
	report = kvcpy_clear(handle->parent, kvc_namespace_id(handle->raw), dry_run);
	kvcpy_leave(handle);
	return report;
}

/* ---------------------------------------------------------------- type */

static PyObject *represent(PyObject *self)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;

	if (!handle->raw)
		return PyUnicode_FromString("<kvcellar.Namespace, closed>");
	return PyUnicode_FromFormat("<kvcellar.Namespace '%s'>", kvc_namespace_id(handle->raw));
}

static PyMethodDef methods[] = {
	KVCPY_ROW("pool", kvcpy_namespace_pool),
	KVCPY_ROW("usage", namespace_usage),
	KVCPY_ROW("clear", namespace_clear),
	KVCPY_ROW("put", kvcpy_object_put),
	KVCPY_ROW("get", kvcpy_object_get),
	KVCPY_ROW("get_into", kvcpy_object_get_into),
	KVCPY_ROW("exists", kvcpy_object_exists),
	KVCPY_ROW("remove", kvcpy_object_remove),
	KVCPY_ROW("put_many", kvcpy_object_put_many),
	KVCPY_ROW("get_many", kvcpy_object_get_many),
	KVCPY_ROW("exists_many", kvcpy_object_exists_many),
	KVCPY_ROW("where", kvcpy_object_where),
	KVCPY_ROW("close", kvcpy_handle_close),
	KVCPY_ROW("__enter__", kvcpy_handle_enter),
	KVCPY_ROW("__exit__", kvcpy_handle_exit),
	{ 0 },
};

static PyGetSetDef properties[] = {
	{ "id", get_id, NULL, "Its folder name, '<slug>-<16 hex>'.", NULL },
	KVCPY_HANDLE_CLOSED,
	{ 0 },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc,
	  "Pages that may stand for one another: same model, weights, dtype, page size.\n"
	  "Made by Store.namespace(). Safe for threads.\n\n"
	  "put(), get() and so on are for single objects of any size, outside of pools;\n"
	  "they have names of their own beside a pool's pages." },
	{ Py_tp_dealloc, kvcpy_handle_dealloc },
	{ Py_tp_traverse, kvcpy_handle_traverse },
	{ Py_tp_repr, represent },
	{ Py_tp_methods, methods },
	{ Py_tp_getset, properties },
	{ Py_tp_members, kvcpy_handle_members },
	{ 0, NULL },
};

PyType_Spec kvcpy_namespace_spec = {
	.name = "kvcellar.Namespace",
	.basicsize = sizeof(struct kvcpy_handle),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
		 Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};
