/* SPDX-License-Identifier: Apache-2.0 */
/* What a store tells about itself: counters, description, usage, trailers. */
#include "kvcpy.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- counters */

static PyObject *by_name(const uint64_t *counts, int count, const char *(*name)(int))
{
	PyObject *dict = PyDict_New();

	for (int i = 0; dict && i < count; i++)
		if (kvcpy_dict_u64(dict, name(i), counts[i]))
			Py_CLEAR(dict);
	return dict;
}

static PyObject *numbers(const uint64_t *values, size_t count)
{
	PyObject *list = PyList_New((Py_ssize_t)count);

	for (size_t i = 0; list && i < count; i++) {
		PyObject *number = PyLong_FromUnsignedLongLong(values[i]);

		if (!number)
			Py_CLEAR(list);
		else
			(void)PyList_SetItem(list, (Py_ssize_t)i, number);
	}
	return list;
}

static PyObject *operation_dict(const struct kvc_operation_stats *stats)
{
	PyObject *dict = PyDict_New();

	if (dict &&
	    (kvcpy_dict_u64(dict, "calls", stats->calls) ||
	     kvcpy_dict_u64(dict, "pages", stats->pages) ||
	     kvcpy_dict_u64(dict, "bytes", stats->bytes) ||
	     kvcpy_dict_add(dict, "statuses",
			    by_name(stats->statuses, KVCPY_STATUS_COUNT, kvc_status_name)) ||
	     kvcpy_dict_add(dict, "causes",
			    by_name(stats->causes, KVC_CAUSE_COUNT, kvc_cause_name)) ||
	     kvcpy_dict_u64(dict, "latency_us_sum", stats->latency_us_sum) ||
	     kvcpy_dict_add(dict, "latency_us", numbers(stats->latency_us, KVC_HISTOGRAM_BUCKETS))))
		Py_CLEAR(dict);
	return dict;
}

static PyObject *operations_dict(const struct kvc_stats *stats)
{
	static const char *const operation_names[KVC_OPERATION_COUNT] = { "exists", "get", "set",
									  "remove" };
	PyObject *dict = PyDict_New();

	for (int i = 0; dict && i < KVC_OPERATION_COUNT; i++)
		if (kvcpy_dict_add(dict, operation_names[i], operation_dict(&stats->operations[i])))
			Py_CLEAR(dict);
	return dict;
}

static PyObject *stats_dict(const struct kvc_stats *stats)
{
	PyObject *dict = PyDict_New();

	if (dict && (kvcpy_dict_add(dict, "operations", operations_dict(stats)) ||
		     kvcpy_dict_u64(dict, "overruns", stats->overruns) ||
		     kvcpy_dict_u64(dict, "retries", stats->retries) ||
		     kvcpy_dict_u64(dict, "bounced", stats->bounced) ||
		     kvcpy_dict_u64(dict, "fallbacks", stats->fallbacks) ||
		     kvcpy_dict_u64(dict, "reclaimed", stats->reclaimed) ||
		     kvcpy_dict_u64(dict, "removed_corrupt", stats->removed_corrupt) ||
		     kvcpy_dict_u64(dict, "parked_queues", stats->parked_queues) ||
		     kvcpy_dict_u64(dict, "host_registrations", stats->host_registrations) ||
		     kvcpy_dict_u64(dict, "storage_registrations", stats->storage_registrations) ||
		     kvcpy_dict_u64(dict, "usage_drift", stats->usage_drift) ||
		     kvcpy_dict_u64(dict, "evicted", stats->evicted) ||
		     kvcpy_dict_u64(dict, "evicted_bytes", stats->evicted_bytes) ||
		     kvcpy_dict_u64(dict, "ghost_hits", stats->ghost_hits) ||
		     kvcpy_dict_u64(dict, "prefix_calls", stats->prefix_calls) ||
		     kvcpy_dict_u64(dict, "prefix_pages_asked", stats->prefix_pages_asked) ||
		     kvcpy_dict_u64(dict, "prefix_pages_found", stats->prefix_pages_found)))
		Py_CLEAR(dict);
	return dict;
}

static int read_stats(struct kvcpy_handle *handle, struct kvc_stats *out)
{
	int rc;

	if (kvcpy_enter(handle))
		return -1;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_store_stats(handle->raw, out);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		kvcpy_raise(handle->state, rc);
	return rc < 0 ? -1 : 0;
}

static const struct kvcpy_spec stats_spec = { .function = "stats" };
static const struct kvcpy_spec metrics_spec = { .function = "metrics" };
static const char *const format_names[] = { "format" };
static const struct kvcpy_spec stats_text_spec = { "stats_text", format_names, 1, 1, 0 };
static const struct kvcpy_spec describe_spec = { "describe", format_names, 1, 1, 0 };
static const struct kvcpy_choice formats[] = {
	{ "text", KVC_FORMAT_TEXT },
	{ "json", KVC_FORMAT_JSON },
	{ "prometheus", KVC_FORMAT_PROMETHEUS },
};

const char kvcpy_store_stats_doc[] =
	"stats($self, /)\n--\n\n"
	"The counters since the store was opened, all roots together, by the names of struct\n"
	"kvc_stats. operations: exists, get, set and remove, with calls, pages, bytes, statuses\n"
	"and causes by name, latency_us_sum, and latency_us, the histogram: bucket i counts\n"
	"calls of 2^(i-1) up to less than 2^i microseconds.";
PyObject *kvcpy_store_stats(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	struct kvc_stats stats = { .size = sizeof(stats) };

	if (kvcpy_parse(&stats_spec, args, nargs, kwnames, NULL) ||
	    read_stats((struct kvcpy_handle *)self, &stats))
		return NULL;
	return stats_dict(&stats);
}

/* ---------------------------------------------------------------- texts */

struct text_call {
	struct kvc_store *store;
	struct kvc_stats stats;
	int format;
};

static int write_stats(void *context, char *buffer, size_t bytes)
{
	const struct text_call *call = context;

	return kvc_stats_text(&call->stats, call->format, buffer, bytes);
}

static int write_description(void *context, char *buffer, size_t bytes)
{
	const struct text_call *call = context;

	return kvc_store_describe(call->store, call->format, buffer, bytes);
}

static int write_metrics(void *context, char *buffer, size_t bytes)
{
	const struct text_call *call = context;

	return kvc_metrics_text(call->store, buffer, bytes);
}

static PyObject *text_of_store(struct kvcpy_handle *handle, kvcpy_text_fn fn, uint32_t format)
{
	struct text_call call = { .format = (int)format };
	PyObject *text;

	if (kvcpy_enter(handle))
		return NULL;
	call.store = handle->raw;
	text = kvcpy_text_of(handle->state, fn, &call);
	kvcpy_leave(handle);
	return text;
}

const char kvcpy_store_stats_text_doc[] =
	"stats_text($self, /, format='text')\n--\n\n"
	"The counters as text for people, as JSON, or as Prometheus text; format: text, json or\n"
	"prometheus.";
PyObject *kvcpy_store_stats_text(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				 PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct text_call call = { .stats.size = sizeof(call.stats) };
	uint32_t format = KVC_FORMAT_TEXT;
	PyObject *value;

	if (kvcpy_parse(&stats_text_spec, args, nargs, kwnames, &value) ||
	    kvcpy_choose(handle->state, value, "format", formats, 3, &format) ||
	    read_stats(handle, &call.stats))
		return NULL;
	call.format = (int)format;
	return kvcpy_text_of(handle->state, write_stats, &call);
}

const char kvcpy_store_describe_doc[] =
	"describe($self, /, format='text')\n--\n\n"
	"What `kvcellar info` shows: version, plugin and why others were not taken, I/O engine,\n"
	"roots with uuid, file system, probes and state. format: text or json.";
PyObject *kvcpy_store_describe(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			       PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	uint32_t format = KVC_FORMAT_TEXT;
	PyObject *value;

	if (kvcpy_parse(&describe_spec, args, nargs, kwnames, &value) ||
	    kvcpy_choose(handle->state, value, "format", formats, 2, &format))
		return NULL;
	return text_of_store(handle, write_description, format);
}

const char kvcpy_store_metrics_doc[] = "metrics($self, /)\n--\n\n"
				       "The counters as Prometheus text exposition 0.0.4.";
PyObject *kvcpy_store_metrics(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	if (kvcpy_parse(&metrics_spec, args, nargs, kwnames, NULL))
		return NULL;
	return text_of_store((struct kvcpy_handle *)self, write_metrics, 0);
}

/* ---------------------------------------------------------------- usage */

static PyObject *usage_dict(const struct kvc_root_usage *usage)
{
	PyObject *dict = PyDict_New();

	if (dict && (kvcpy_dict_text(dict, "path", usage->path) ||
		     kvcpy_dict_text(dict, "uuid", usage->uuid) ||
		     kvcpy_dict_text(dict, "state", usage->state) ||
		     kvcpy_dict_u64(dict, "own_bytes", usage->own_bytes) ||
		     kvcpy_dict_u64(dict, "own_objects", usage->own_objects) ||
		     kvcpy_dict_u64(dict, "total_bytes", usage->total_bytes) ||
		     kvcpy_dict_u64(dict, "free_bytes", usage->free_bytes)))
		Py_CLEAR(dict);
	return dict;
}

static PyObject *usage_list(const struct kvc_root_usage *usage, size_t count)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < count; i++) {
		PyObject *dict = usage_dict(&usage[i]);

		if (!dict || PyList_Append(list, dict) < 0)
			Py_CLEAR(list);
		Py_XDECREF(dict);
	}
	return list;
}

static const char *const usage_names[] = { "recount" };
static const struct kvcpy_spec usage_spec = { "usage", usage_names, 1, 0, 0 };

const char kvcpy_store_usage_doc[] =
	"usage($self, /, *, recount=False)\n--\n\n"
	"Space of each root: path, uuid, state, own_bytes and own_objects (of all namespaces),\n"
	"total_bytes and free_bytes of its device (0: not known). recount: walk the roots and\n"
	"correct the counters first.";
PyObject *kvcpy_store_usage(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct kvc_root_usage *usage = NULL;
	PyObject *value, *list = NULL;
	bool recount = false;
	size_t room;
	int count;

	if (kvcpy_parse(&usage_spec, args, nargs, kwnames, &value) ||
	    kvcpy_flag(value, "recount", &recount) || kvcpy_enter(handle))
		return NULL;
	/* The number of roots does not change while the store is open. */
	count = kvc_store_usage(handle->raw, 0, NULL, 0);
	room = count > 0 ? (size_t)count : 0;
	usage = calloc(room + 1, sizeof(*usage));
	for (size_t i = 0; usage && i < room; i++)
		usage[i].size = sizeof(usage[i]);
	if (usage && count >= 0) {
		Py_BEGIN_ALLOW_THREADS
		count = kvc_store_usage(handle->raw, recount, usage, room);
		Py_END_ALLOW_THREADS
	}
	/* Paths are the store's: they end with it. */
	if (!usage)
		PyErr_NoMemory();
	else if (count < 0)
		kvcpy_raise(handle->state, count);
	else
		list = usage_list(usage, room);
	kvcpy_leave(handle);
	free(usage);
	return list;
}

/* ---------------------------------------------------------------- one object's trailer */

static PyObject *detail_dict(const struct kvc_object_detail *detail)
{
	static const char *const kinds[] = { "page", "marker", "object" };
	const size_t part_count = detail->part_count <= 64 ? detail->part_count : 64;
	PyObject *dict = PyDict_New();

	if (dict && (kvcpy_dict_text(dict, "name", detail->name) ||
		     kvcpy_dict_u64(dict, "name_bytes", detail->name_bytes) ||
		     kvcpy_dict_text(dict, "kind",
				     detail->object_kind < 3 ? kinds[detail->object_kind] : "?") ||
		     kvcpy_dict_u64(dict, "stored_bytes", detail->stored_bytes) ||
		     kvcpy_dict_u64(dict, "payload_bytes", detail->payload_bytes) ||
		     kvcpy_dict_add(dict, "part_bytes", numbers(detail->part_bytes, part_count)) ||
		     kvcpy_dict_u64(dict, "depth", detail->depth) ||
		     kvcpy_dict_u64(dict, "group_hash", detail->group_hash) ||
		     kvcpy_dict_u64(dict, "object_hash", detail->object_hash) ||
		     kvcpy_dict_u64(dict, "parent_hash", detail->parent_hash) ||
		     kvcpy_dict_u64(dict, "namespace_hash", detail->namespace_hash) ||
		     kvcpy_dict_u64(dict, "pool_fingerprint", detail->pool_fingerprint) ||
		     kvcpy_dict_u64(dict, "checksum", detail->checksum) ||
		     kvcpy_dict_text(dict, "checksum_kind", detail->checksum_kind) ||
		     kvcpy_dict_add(dict, "created_ns", PyLong_FromLongLong(detail->created_ns)) ||
		     kvcpy_dict_text(dict, "writer", detail->writer) ||
		     kvcpy_dict_u64(dict, "format_major", detail->format_major) ||
		     kvcpy_dict_u64(dict, "format_minor", detail->format_minor) ||
		     kvcpy_dict_u64(dict, "compat", detail->compat) ||
		     kvcpy_dict_u64(dict, "ro_compat", detail->ro_compat) ||
		     kvcpy_dict_u64(dict, "incompat", detail->incompat)))
		Py_CLEAR(dict);
	return dict;
}

static const char *const stat_names[] = { "root", "path" };
static const struct kvcpy_spec stat_spec = { "object_stat", stat_names, 2, 2, 2 };

const char kvcpy_store_object_stat_doc[] =
	"object_stat($self, /, root, path)\n--\n\n"
	"What the trailer of an object says: by the names of struct kvc_object_detail.\n\n"
	"root, path: as of list() or where(). Error(ENOENT); Error(EBADMSG): no valid trailer;\n"
	"Error(EPROTONOSUPPORT): of a format that this library cannot read.";
PyObject *kvcpy_store_object_stat(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
				  PyObject *kwnames)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	struct kvc_object_detail detail = { .size = sizeof(detail) };
	const char *root = NULL, *path = NULL;
	PyObject *values[2];
	int rc;

	if (kvcpy_parse(&stat_spec, args, nargs, kwnames, values) ||
	    kvcpy_name(handle->state, values[0], "root", &root) ||
	    kvcpy_name(handle->state, values[1], "path", &path) || kvcpy_enter(handle))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_object_stat(handle->raw, root, path, &detail);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle);
	if (rc < 0)
		return kvcpy_raise(handle->state, rc);
	return detail_dict(&detail);
}
