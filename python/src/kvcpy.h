/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the extension kvcellar._kvcellar share. Readers: this folder.
 *
 * All fields of all objects are guarded by the GIL. It is released around each call of the library
 * that may do I/O, take a lock or log; what such a call uses is held by references and counted in
 * `calls`, so that no other thread can close it.
 */
#ifndef KVCPY_H
#define KVCPY_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <kvcellar/kvcellar.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	KVCPY_STATUS_COUNT = KVC_SKIPPED + 1,
	KVCPY_CLOSE_MS = 2000, /* close() waits for calls in flight */
	KVCPY_DROP_MS = 1000,  /* a handle that nobody closed waits for them */
};

/* ---------------------------------------------------------------- module */

struct kvcpy_orphan;

/* Per module object. */
struct kvcpy_state {
	PyTypeObject *store_type;
	PyTypeObject *namespace_type;
	PyTypeObject *pool_type;
	PyTypeObject *region_type;
	PyTypeObject *transfer_type;
	PyTypeObject *result_type;
	PyTypeObject *batch_type;
	PyObject *error;
	PyObject *config_error;
	PyObject *json_dumps;
	PyObject *json_loads;
	PyObject *fspath;
	PyObject *status_names[KVCPY_STATUS_COUNT];
	PyObject *cause_names[KVC_CAUSE_COUNT];
	struct kvcpy_orphan *orphans;
	bool closing_orphans;
	bool exit_registered;
};

/* The types are final, so an object's own type is the one that the module made. */
struct kvcpy_state *kvcpy_state_of(PyObject *self);

extern PyType_Spec kvcpy_store_spec;
extern PyType_Spec kvcpy_namespace_spec;
extern PyType_Spec kvcpy_pool_spec;
extern PyType_Spec kvcpy_region_spec;
extern PyType_Spec kvcpy_transfer_spec;
extern PyType_Spec kvcpy_result_spec;
extern PyType_Spec kvcpy_batch_spec;

/* A function that Python calls, and its docstring; a row of a method table. */
#define KVCPY_DECLARE(function)                                                     \
	PyObject *function(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
			   PyObject *kwnames);                                      \
	extern const char function##_doc[]
#define KVCPY_ROW(name, function)                                                             \
	{                                                                                     \
		name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS, \
			function##_doc                                                        \
	}

/* ---------------------------------------------------------------- errors (errors.c) */

int kvcpy_errors_add(struct kvcpy_state *state, PyObject *module);

/* The exception for a negative errno of the library, with the thread's kvc_last_error(). NULL. */
void *kvcpy_raise(struct kvcpy_state *state, int rc);

/* ConfigError(EINVAL) with a text of our own. Returns -1. */
int kvcpy_refuse(struct kvcpy_state *state, const char *format, ...);

/* The same with another errno; class is state->error or state->config_error. */
int kvcpy_raise_text(PyObject *class, int error, const char *format, ...);

/* ConfigError with the text of the exception that is set, after `what`. Returns -1. */
int kvcpy_refuse_again(struct kvcpy_state *state, const char *what);

/* ---------------------------------------------------------------- arguments (args.c) */

/* struct kvcpy_spec - the first `positional` names may be given without their name; the first
 * `required` must be given. */
struct kvcpy_spec {
	const char *function;
	const char *const *names;
	unsigned count;
	unsigned positional;
	unsigned required;
};

/* Values are borrowed; NULL where none was given. */
int kvcpy_parse(const struct kvcpy_spec *spec, PyObject *const *args, Py_ssize_t nargs,
		PyObject *kwnames, PyObject **out);
int kvcpy_parse_new(const struct kvcpy_spec *spec, PyObject *args, PyObject *kwargs,
		    PyObject **out);

struct kvcpy_choice {
	const char *name;
	uint32_t value;
};

/* Converters: NULL leaves *out alone. They return 0, or -1 with an exception that names `what`. */
int kvcpy_u32(struct kvcpy_state *state, PyObject *object, const char *what, uint32_t *out);
int kvcpy_u64(struct kvcpy_state *state, PyObject *object, const char *what, uint64_t *out);
int kvcpy_flag(PyObject *object, const char *what, bool *out);
int kvcpy_bits(PyObject *object, const char *what, uint32_t bit, uint32_t *out);
int kvcpy_tristate(PyObject *object, const char *what, uint32_t *out);
/* None is NULL. The text belongs to the object. */
int kvcpy_text(struct kvcpy_state *state, PyObject *object, const char *what, const char **out);
/* The same, but None is refused. */
int kvcpy_name(struct kvcpy_state *state, PyObject *object, const char *what, const char **out);
/* TypeError: "what: expected expected, not <type>". Returns -1. */
int kvcpy_wrong_type(PyObject *object, const char *what, const char *expected);
int kvcpy_choose(struct kvcpy_state *state, PyObject *object, const char *what,
		 const struct kvcpy_choice *choices, size_t count, uint32_t *out);

/* ---------------------------------------------------------------- values (values.c) */

/* Puts a value under a name and drops the reference to it; a NULL value is an error passed on. */
int kvcpy_dict_add(PyObject *dict, const char *name, PyObject *value);
int kvcpy_dict_u64(PyObject *dict, const char *name, uint64_t value);
int kvcpy_dict_text(PyObject *dict, const char *name, const char *text);
PyObject *kvcpy_text_object(const char *text);

/* A text output of the library; called without the GIL. */
typedef int (*kvcpy_text_fn)(void *context, char *buffer, size_t bytes);
PyObject *kvcpy_text_of(struct kvcpy_state *state, kvcpy_text_fn fn, void *context);

pid_t kvcpy_pid(void);
/* Monotonic milliseconds. */
uint64_t kvcpy_now_ms(void);

/* ---------------------------------------------------------------- handles (handle.c) */

/*
 * struct kvcpy_kind
 * @close    takes the library's handle away; called without the GIL; waits at most wait_ms
 * @release  of what the handle holds, once it is closed; NULL where it holds nothing
 */
struct kvcpy_kind {
	const char *name;
	int (*close)(void *raw, unsigned wait_ms);
	void (*release)(void *held);
};

/*
 * struct kvcpy_handle - what Store, Namespace, Pool, Region and Batch begin with.
 * @parent    reference; NULL for a store
 * @children  the first of those that are open and alive; not references
 * @raw       the library's handle, NULL once closed
 * @held      what the library may use as long as that is open; it outlives the object if need be
 * @calls     calls in flight in it, or in what belongs to it
 * @closers   threads that wait for those to end: no new ones begin
 * @closing   one of them is at it
 */
struct kvcpy_handle {
	PyObject_HEAD struct kvcpy_state *state;
	const struct kvcpy_kind *kind;
	struct kvcpy_handle *parent;
	struct kvcpy_handle *children;
	struct kvcpy_handle *next;
	struct kvcpy_handle *previous;
	PyObject *weak_references;
	void *raw;
	void *held;
	unsigned calls;
	unsigned closers;
	bool closing;
	pid_t pid;
};

/* A new object of the type; parent may be NULL. */
void *kvcpy_handle_new(struct kvcpy_state *state, PyTypeObject *type, const struct kvcpy_kind *kind,
		       struct kvcpy_handle *parent);
/* From now on it is open. */
void kvcpy_handle_set(struct kvcpy_handle *handle, void *raw);

/* Between these two nobody closes it, nor what it belongs to. -1: closed, closing, or opened by
 * the process that forked this one. */
int kvcpy_enter(struct kvcpy_handle *handle);
void kvcpy_leave(struct kvcpy_handle *handle);

/* Closes it and what belongs to it. Nothing happens when it is closed already. */
int kvcpy_close(struct kvcpy_handle *handle);
/* A thread is closing it, or something above with it in it. */
bool kvcpy_closing(const struct kvcpy_handle *handle);
/* Closes what nobody closed and releases what it holds: without exceptions, with a shorter wait.
 * What cannot be closed now is closed later. */
void kvcpy_drop(struct kvcpy_handle *handle);
/* Closes what could not be closed when it was dropped. */
void kvcpy_sweep(struct kvcpy_state *state);
/* For tp_traverse and tp_dealloc. */
int kvcpy_handle_traverse(PyObject *self, visitproc visit, void *arg);
void kvcpy_handle_dealloc(PyObject *self);

KVCPY_DECLARE(kvcpy_handle_close);
KVCPY_DECLARE(kvcpy_handle_enter);
KVCPY_DECLARE(kvcpy_handle_exit);
PyObject *kvcpy_handle_closed(PyObject *self, void *closure);
extern const char kvcpy_handle_closed_doc[];
/* A row of a type's properties; kvcpy_handle_properties is for types that have no others. */
#define KVCPY_HANDLE_CLOSED                                                        \
	{                                                                          \
		"closed", kvcpy_handle_closed, NULL, kvcpy_handle_closed_doc, NULL \
	}
extern PyGetSetDef kvcpy_handle_properties[];
extern PyMemberDef kvcpy_handle_members[];

/* ---------------------------------------------------------------- log (log.c) */

KVCPY_DECLARE(kvcpy_set_log);
/* This thread runs the log callback: the library may not be called. */
bool kvcpy_logging(void);

/* ---------------------------------------------------------------- configuration (config.c) */

/* From None, a text or a mapping. */
int kvcpy_config_make(struct kvcpy_state *state, PyObject *object, struct kvc_config **out);
KVCPY_DECLARE(kvcpy_config_options);
KVCPY_DECLARE(kvcpy_config_sample);
KVCPY_DECLARE(kvcpy_config_describe);
KVCPY_DECLARE(kvcpy_config_check);
KVCPY_DECLARE(kvcpy_plugins);

/* ---------------------------------------------------------------- keys and memory (gather.c) */

/* The key lives as long as the object. label and at make "keys[3]"; at < 0: the label alone. */
int kvcpy_key(struct kvcpy_state *state, PyObject *object, const char *label, Py_ssize_t at,
	      struct kvc_key *out);

/* A tuple of its own, of a list that another thread may change. */
PyObject *kvcpy_tuple(PyObject *object, const char *label);

/*
 * struct kvcpy_views - memory of the caller, held until released.
 * @objects   tuple of the objects
 * @buffers   address and size of each
 */
struct kvcpy_views {
	PyObject *objects;
	Py_buffer *views;
	struct kvc_buffer *buffers;
	size_t count;
};
int kvcpy_views_take(struct kvcpy_state *state, PyObject *object, bool writable,
		     struct kvcpy_views *out);
void kvcpy_views_release(struct kvcpy_views *views);

/* One piece of memory: a buffer, a tensor, or an (address, bytes) pair. view->obj is NULL where
 * none is held. */
int kvcpy_view(struct kvcpy_state *state, PyObject *object, const char *label, Py_ssize_t at,
	       bool writable, Py_buffer *view, struct kvc_buffer *out);

/* Copies `count` indices, every stride-th; checks that there are enough. */
int kvcpy_indices(struct kvcpy_state *state, PyObject *object, size_t count, size_t stride,
		  int64_t *out);

/* ---------------------------------------------------------------- work (work.c) */

struct kvcpy_pool;

/* What a transfer is made of: the arguments as they come. */
struct kvcpy_arguments {
	uint32_t op;
	PyObject *keys;
	PyObject *indices;
	PyObject *index_stride;
	PyObject *buffers;
	PyObject *parent;
	PyObject *depth;
	PyObject *timeout_ms;
	PyObject *stop_at_miss;
	PyObject *overwrite;
};

/*
 * struct kvcpy_work - a transfer with all it needs.
 * @transfer  without results
 * @memory    keys and indices of the transfer
 */
struct kvcpy_work {
	struct kvc_transfer transfer;
	struct kvcpy_pool *pool;
	PyObject *keys;
	PyObject *parent;
	void *memory;
	struct kvcpy_views views;
};
int kvcpy_work_make(struct kvcpy_pool *pool, const struct kvcpy_arguments *arguments,
		    struct kvcpy_work *out);
void kvcpy_work_release(struct kvcpy_work *work);

/*
 * struct kvcpy_run - transfers that go to the library in one call (run.c).
 * @objects    tuple of Transfer
 * @transfers  of the library
 * @results    tuple of Result
 */
struct kvcpy_run {
	PyObject *objects;
	PyObject *results;
	struct kvc_transfer *transfers;
	size_t count;
};
int kvcpy_run_make(struct kvcpy_state *state, PyObject *transfers, struct kvcpy_run *out);
void kvcpy_run_release(struct kvcpy_run *run);
/* As kvcpy_enter(), for the store and every pool. */
int kvcpy_run_enter(struct kvcpy_handle *store, struct kvcpy_run *run);
void kvcpy_run_leave(struct kvcpy_handle *store, struct kvcpy_run *run);
/* kvc_batch_run(), with the GIL released where it may block. */
int kvcpy_batch_run(struct kvc_store *store, struct kvc_transfer *transfers, size_t count);
/* The library has written the results. */
void kvcpy_run_done(struct kvcpy_run *run);

/* ---------------------------------------------------------------- results (result.c) */

struct kvcpy_result {
	PyObject_HEAD struct kvc_result *results;
	size_t count;
	size_t ok_count;
	size_t prefix_count;
	PyObject *ok;
};
struct kvcpy_result *kvcpy_result_new(struct kvcpy_state *state, size_t count);
/* Names of any value, also of a newer library's. */
PyObject *kvcpy_status_name(struct kvcpy_state *state, int status);
PyObject *kvcpy_cause_name(struct kvcpy_state *state, int cause);

/* ---------------------------------------------------------------- objects of the types */

/* @timeouts_ms   the configuration's, by enum kvc_operation */
struct kvcpy_store {
	struct kvcpy_handle handle;
	uint32_t timeouts_ms[KVC_OPERATION_COUNT];
};

struct kvcpy_pool {
	struct kvcpy_handle handle;
	PyObject *name;
	uint32_t part_count;
};

struct kvcpy_transfer {
	PyObject_HEAD struct kvcpy_work work;
};

/* Methods of Store, by file: store.c, work.c and batch.c, report.c, walk.c */
KVCPY_DECLARE(kvcpy_store_namespace);
KVCPY_DECLARE(kvcpy_store_register_memory);
KVCPY_DECLARE(kvcpy_store_selftest);
KVCPY_DECLARE(kvcpy_store_run);
KVCPY_DECLARE(kvcpy_store_start);
KVCPY_DECLARE(kvcpy_store_stats);
KVCPY_DECLARE(kvcpy_store_stats_text);
KVCPY_DECLARE(kvcpy_store_describe);
KVCPY_DECLARE(kvcpy_store_metrics);
KVCPY_DECLARE(kvcpy_store_usage);
KVCPY_DECLARE(kvcpy_store_usage_namespaces);
KVCPY_DECLARE(kvcpy_store_pin);
KVCPY_DECLARE(kvcpy_store_clean);
KVCPY_DECLARE(kvcpy_store_list);
KVCPY_DECLARE(kvcpy_store_verify);
KVCPY_DECLARE(kvcpy_store_clear);
KVCPY_DECLARE(kvcpy_store_object_stat);

/* Methods of Namespace: namespace.c and pool_open.c, object.c, object_many.c */
KVCPY_DECLARE(kvcpy_namespace_pool);
KVCPY_DECLARE(kvcpy_object_put);
KVCPY_DECLARE(kvcpy_object_get);
KVCPY_DECLARE(kvcpy_object_get_into);
KVCPY_DECLARE(kvcpy_object_exists);
KVCPY_DECLARE(kvcpy_object_remove);
KVCPY_DECLARE(kvcpy_object_put_many);
KVCPY_DECLARE(kvcpy_object_get_many);
KVCPY_DECLARE(kvcpy_object_exists_many);
KVCPY_DECLARE(kvcpy_object_where);

/* policy.c */
KVCPY_DECLARE(kvcpy_policy_prefix);
KVCPY_DECLARE(kvcpy_policy_restorable);

/* ---------------------------------------------------------------- walks (walk.c) */

PyObject *kvcpy_object_info(const struct kvc_object_info *info);
/* Collects what kvc_*_where() tells; both are called without the GIL. */
typedef int (*kvcpy_walk_fn)(void *context, kvc_object_fn fn, void *fn_context);
PyObject *kvcpy_walk(struct kvcpy_state *state, kvcpy_walk_fn walk, void *context);
PyObject *kvcpy_clear(struct kvcpy_handle *store, const char *id, bool dry_run);

#endif
