/* SPDX-License-Identifier: Apache-2.0 */
/* Namespace.pool(): parts from dicts, and opening the pool. */
#include "kvcpy.h"

#include <stdlib.h>
#include <string.h>

static int close_raw(void *raw, unsigned wait_ms)
{
	(void)wait_ms;
	return kvc_pool_close(raw);
}

static void release_owner(void *owner)
{
	Py_DECREF((PyObject *)owner);
}

static const struct kvcpy_kind kind = { "pool", close_raw, release_owner };

/* ---------------------------------------------------------------- parts */

struct parts {
	struct kvc_part *parts;
	uint32_t count;
	PyObject *dicts;
	PyObject *held; /* the names: the dicts may change */
};

/* Numbers of struct kvc_part, by their names. */
struct field {
	const char *name;
	size_t offset;
	size_t bytes;
};

#define FIELD(name)                                                                          \
	{                                                                                    \
#name, offsetof(struct kvc_part, name), sizeof(((struct kvc_part *)0)->name) \
	}
static const struct field fields[] = {
	FIELD(base),
	FIELD(piece_bytes),
	FIELD(piece_stride_bytes),
	FIELD(page_stride_bytes),
	FIELD(piece_count),
	FIELD(layer_count),
	FIELD(token_count),
	FIELD(head_count),
	FIELD(head_bytes),
	FIELD(group_stride_bytes),
};

static int set_number(struct kvcpy_state *state, PyObject *value, const char *what,
		      const struct field *field, struct kvc_part *part)
{
	char *at = (char *)part + field->offset;
	uint64_t number = 0;
	uint32_t small = 0;

	if (field->bytes == sizeof(small)) {
		if (kvcpy_u32(state, value, what, &small))
			return -1;
		memcpy(at, &small, sizeof(small));
		return 0;
	}
	if (kvcpy_u64(state, value, what, &number))
		return -1;
	memcpy(at, &number, sizeof(number));
	return 0;
}

static int set_bases(struct kvcpy_state *state, PyObject *value, const char *what,
		     struct kvc_part *part)
{
	PyObject *tuple = kvcpy_tuple(value, what);
	const Py_ssize_t count = tuple ? PyTuple_Size(tuple) : 0;
	void **bases = tuple ? calloc((size_t)count + 1, sizeof(*bases)) : NULL;
	int rc = bases ? 0 : -1;

	if (tuple && !bases)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < count && !rc; i++) {
		uint64_t address = 0;

		rc = kvcpy_u64(state, PyTuple_GetItem(tuple, i), what, &address);
		bases[i] = (void *)(uintptr_t)address;
	}
	if (!rc && part->piece_count != 0 && part->piece_count != (uint64_t)count)
		rc = kvcpy_refuse(state, "%s has %zd addresses, piece_count is %u", what, count,
				  part->piece_count);
	if (!rc)
		part->piece_count = (uint32_t)count;
	Py_XDECREF(tuple);
	if (rc) {
		free(bases);
		return -1;
	}
	part->piece_bases = bases;
	return 0;
}

static int set_name(struct kvcpy_state *state, struct parts *parts, PyObject *value,
		    const char *what, struct kvc_part *part)
{
	if (kvcpy_text(state, value, what, &part->name))
		return -1;
	return PyList_Append(parts->held, value);
}

static int set_field(struct kvcpy_state *state, struct parts *parts, uint32_t at, PyObject *key,
		     PyObject *value)
{
	struct kvc_part *part = &parts->parts[at];
	const char *name = NULL;
	char what[64];

	if (kvcpy_text(state, key, "parts: a key", &name))
		return -1;
	(void)PyOS_snprintf(what, sizeof(what), "parts[%u].%.32s", at, name ? name : "None");
	if (name && strcmp(name, "name") == 0)
		return set_name(state, parts, value, what, part);
	if (name && strcmp(name, "piece_bases") == 0)
		return 0; /* later: piece_count is compared with it */
	for (size_t i = 0; name && i < sizeof(fields) / sizeof(fields[0]); i++)
		if (strcmp(name, fields[i].name) == 0)
			return set_number(state, value, what, &fields[i], part);
	return kvcpy_refuse(state, "%s: there is no such field", what);
}

static int add_part(struct kvcpy_state *state, struct parts *parts, PyObject *dict)
{
	const uint32_t at = parts->count;
	PyObject *key, *value, *bases;
	Py_ssize_t place = 0;
	char what[48];
	int rc = 0;

	(void)PyOS_snprintf(what, sizeof(what), "parts[%u]", at);
	if (!PyDict_Check(dict))
		return kvcpy_wrong_type(dict, what, "a dict");
	/* Its own copy: converting a value may run Python, which may change the dict. */
	dict = PyDict_Copy(dict);
	if (!dict)
		return -1;
	parts->count++;
	parts->parts[at].size = sizeof(parts->parts[at]);
	while (!rc && PyDict_Next(dict, &place, &key, &value))
		rc = set_field(state, parts, at, key, value);
	bases = rc ? NULL : PyDict_GetItemString(dict, "piece_bases");
	if (bases && bases != Py_None) {
		(void)PyOS_snprintf(what, sizeof(what), "parts[%u].piece_bases", at);
		rc = set_bases(state, bases, what, &parts->parts[at]);
	}
	Py_DECREF(dict);
	return rc;
}

static void parts_release(struct parts *parts)
{
	for (uint32_t i = 0; i < parts->count; i++)
		free((void *)(uintptr_t)parts->parts[i].piece_bases);
	free(parts->parts);
	Py_CLEAR(parts->dicts);
	Py_CLEAR(parts->held);
}

static int parts_make(struct kvcpy_state *state, PyObject *object, struct parts *out)
{
	struct parts parts = { 0 };
	Py_ssize_t count;

	if (!object) {
		*out = parts;
		return 0;
	}
	parts.dicts = kvcpy_tuple(object, "parts");
	if (!parts.dicts)
		return -1;
	count = PyTuple_Size(parts.dicts);
	parts.held = PyList_New(0);
	parts.parts = calloc((size_t)count + 1, sizeof(*parts.parts));
	if (!parts.held || !parts.parts) {
		parts_release(&parts);
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		if (add_part(state, &parts, PyTuple_GetItem(parts.dicts, i))) {
			parts_release(&parts);
			return -1;
		}
	}
	*out = parts;
	return 0;
}

/* ---------------------------------------------------------------- the pool */

enum {
	NAME,
	PARTS,
	LAYOUT,
	BYTE_ORDER_ARGUMENT,
	DTYPE,
	PAGE_COUNT,
	PAGE_TOKENS,
	PER_RANK,
	TOKEN_INDICES,
	COPY_MODE,
	MARKER,
	OWNER,
	ARGUMENT_COUNT,
};

static const char *const names[] = {
	"name",	       "parts",	   "layout",	    "byte_order", "dtype",  "page_count",
	"page_tokens", "per_rank", "token_indices", "copy_mode",  "marker", "owner",
};
static const struct kvcpy_spec spec = { "pool", names, ARGUMENT_COUNT, 2, 0 };

static const struct kvcpy_choice layouts[] = {
	{ "explicit", KVC_LAYOUT_EXPLICIT },
	{ "page_first", KVC_LAYOUT_PAGE_FIRST },
	{ "page_first_direct", KVC_LAYOUT_PAGE_FIRST_DIRECT },
	{ "page_head", KVC_LAYOUT_PAGE_HEAD },
	{ "layer_first", KVC_LAYOUT_LAYER_FIRST },
};
static const struct kvcpy_choice orders[] = {
	{ "auto", KVC_ORDER_AUTO },
	{ "token_major", KVC_ORDER_TOKEN_MAJOR },
	{ "layer_major", KVC_ORDER_LAYER_MAJOR },
	{ "head_major", KVC_ORDER_HEAD_MAJOR },
};

static int params_of(struct kvcpy_state *state, PyObject *const *values,
		     struct kvc_pool_params *out)
{
	if (kvcpy_name(state, values[NAME], "name", &out->name) ||
	    kvcpy_choose(state, values[LAYOUT], "layout", layouts, 5, &out->host_layout) ||
	    kvcpy_choose(state, values[BYTE_ORDER_ARGUMENT], "byte_order", orders, 4,
			 &out->byte_order) ||
	    kvcpy_text(state, values[DTYPE], "dtype", &out->dtype) ||
	    kvcpy_u64(state, values[PAGE_COUNT], "page_count", &out->page_count) ||
	    kvcpy_u32(state, values[PAGE_TOKENS], "page_tokens", &out->page_tokens) ||
	    kvcpy_tristate(values[PER_RANK], "per_rank", &out->per_rank) ||
	    kvcpy_bits(values[TOKEN_INDICES], "token_indices", KVC_POOL_TOKEN_INDICES,
		       &out->flags) ||
	    kvcpy_bits(values[COPY_MODE], "copy_mode", KVC_POOL_COPY_MODE, &out->flags) ||
	    kvcpy_bits(values[MARKER], "marker", KVC_POOL_MARKER, &out->flags))
		return -1;
	return 0;
}

static struct kvcpy_pool *open_pool(struct kvcpy_handle *ns, const struct kvc_pool_params *params)
{
	struct kvcpy_pool *pool = kvcpy_handle_new(ns->state, ns->state->pool_type, &kind, ns);
	struct kvc_pool *raw;
	int rc;

	if (!pool)
		return NULL;
	pool->name = PyUnicode_FromString(params->name);
	pool->part_count = params->part_count;
	if (!pool->name || kvcpy_enter(ns)) {
		Py_DECREF((PyObject *)pool);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_pool_open(ns->raw, params, &raw);
	Py_END_ALLOW_THREADS
	if (rc >= 0)
		kvcpy_handle_set(&pool->handle, raw);
	kvcpy_leave(ns);
	if (rc < 0) {
		Py_DECREF((PyObject *)pool);
		return kvcpy_raise(ns->state, rc);
	}
	return pool;
}

const char kvcpy_namespace_pool_doc[] =
	"pool($self, /, name='kv', parts=(), *, layout='explicit', byte_order='auto', dtype=None,\n"
	"     page_count=0, page_tokens=0, per_rank=None, token_indices=False, copy_mode=False,\n"
	"     marker=False, owner=None)\n--\n\n"
	"Opens a pool.\n\n"
	"name: kv, mamba, swa, indexer, ... parts: a dict per part of a page, with the fields of\n"
	"struct kvc_part; addresses are ints. layout: how pages lie in memory; with explicit the\n"
	"parts say it (piece_bytes, ...), else they have the tensor's shape (token_count,\n"
	"layer_count, head_count, head_bytes). page_count: pages that the memory holds; 0: from\n"
	"token_count. page_tokens 0: the namespace's. per_rank: pages differ between tp ranks\n"
	"though the namespace is MLA; None: only for mamba. token_indices: indices count tokens.\n"
	"copy_mode: one object per page with a bare name (naming nixl). marker: keys without\n"
	"bytes. owner: kept alive as long as the pool, such as the tensors whose memory it\n"
	"names. ConfigError for what makes no sense.";
PyObject *kvcpy_namespace_pool(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			       PyObject *kwnames)
{
	struct kvcpy_handle *ns = (struct kvcpy_handle *)self;
	struct kvc_pool_params params = { .size = sizeof(params), .name = "kv" };
	PyObject *values[ARGUMENT_COUNT];
	struct kvcpy_pool *pool;
	struct parts parts;

	if (kvcpy_parse(&spec, args, nargs, kwnames, values) ||
	    params_of(ns->state, values, &params) || parts_make(ns->state, values[PARTS], &parts))
		return NULL;
	params.parts = parts.parts;
	params.part_count = parts.count;
	pool = open_pool(ns, &params);
	if (pool && values[OWNER] && values[OWNER] != Py_None)
		pool->handle.held = Py_NewRef(values[OWNER]);
	parts_release(&parts);
	return (PyObject *)pool;
}
