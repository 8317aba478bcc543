/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Store, Namespace, Pool, Region and Batch have in common: who belongs to whom, calls in
 * flight, closing, and what happens to a handle that nobody closed.
 *
 * A child has a reference to its parent, a parent a list of its open children without references.
 * Closing goes from the leaves to the root, each handle once: the thread that closes one has
 * `closing` set in it, counts as a call of everything above it, and waits while something above it
 * is being closed by another thread.
 *
 * A handle that dies leaves the list before anything else can run: nobody else may find an object
 * without references. It counts as a call of its parent until it is closed.
 */
#include "kvcpy.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* A handle whose object died inside the log callback, where the library may not be called, or while
 * a transfer was using it, with what it holds. */
struct kvcpy_orphan {
	struct kvcpy_orphan *next;
	const struct kvcpy_kind *kind;
	void *raw;
	void *held;
	pid_t pid;
};

/* ---------------------------------------------------------------- the tree */

static void link_child(struct kvcpy_handle *handle)
{
	struct kvcpy_handle *parent = handle->parent;

	if (!parent)
		return;
	handle->previous = NULL;
	handle->next = parent->children;
	if (handle->next)
		handle->next->previous = handle;
	parent->children = handle;
}

static void unlink_child(struct kvcpy_handle *handle)
{
	struct kvcpy_handle *parent = handle->parent;

	if (!parent || (parent->children != handle && !handle->previous))
		return;
	if (handle->previous)
		handle->previous->next = handle->next;
	else
		parent->children = handle->next;
	if (handle->next)
		handle->next->previous = handle->previous;
	handle->next = handle->previous = NULL;
}

void *kvcpy_handle_new(struct kvcpy_state *state, PyTypeObject *type, const struct kvcpy_kind *kind,
		       struct kvcpy_handle *parent)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)PyType_GenericAlloc(type, 0);

	if (!handle)
		return NULL;
	handle->state = state;
	handle->kind = kind;
	handle->parent = parent;
	Py_XINCREF((PyObject *)parent);
	handle->pid = kvcpy_pid();
	return handle;
}

void kvcpy_handle_set(struct kvcpy_handle *handle, void *raw)
{
	handle->raw = raw;
	link_child(handle);
}

/* ---------------------------------------------------------------- calls */

static void count_call(struct kvcpy_handle *handle)
{
	for (; handle; handle = handle->parent)
		handle->calls++;
}

void kvcpy_leave(struct kvcpy_handle *handle)
{
	for (; handle; handle = handle->parent)
		handle->calls--;
}

static int refuse_logging(struct kvcpy_state *state)
{
	return kvcpy_raise_text(state->error, EDEADLK, "the log callback may not call the library");
}

static void append_orphan(struct kvcpy_state *state, struct kvcpy_orphan *orphan)
{
	struct kvcpy_orphan **last = &state->orphans;

	while (*last)
		last = &(*last)->next;
	orphan->next = NULL;
	*last = orphan;
}

static void release_held(const struct kvcpy_kind *kind, void *held)
{
	if (held)
		kind->release(held);
}

/* Oldest first: children died before their parents. One thread at a time does it. What is still in
 * use stays for the next time. */
void kvcpy_sweep(struct kvcpy_state *state)
{
	struct kvcpy_orphan *all = state->orphans;

	if (!all || state->closing_orphans || kvcpy_logging())
		return;
	state->closing_orphans = true;
	state->orphans = NULL;
	while (all) {
		struct kvcpy_orphan *orphan = all;
		int rc = 0;

		all = orphan->next;
		Py_BEGIN_ALLOW_THREADS
		if (orphan->pid == kvcpy_pid())
			rc = orphan->kind->close(orphan->raw, 0);
		Py_END_ALLOW_THREADS
		if (rc < 0) {
			append_orphan(state, orphan);
			continue;
		}
		release_held(orphan->kind, orphan->held);
		free(orphan);
	}
	state->closing_orphans = false;
}

static void add_orphan(const struct kvcpy_handle *handle, void *raw, void *held)
{
	struct kvcpy_orphan *orphan = malloc(sizeof(*orphan));

	if (!orphan)
		return; /* open until the process ends */
	*orphan = (struct kvcpy_orphan){ NULL, handle->kind, raw, held, handle->pid };
	append_orphan(handle->state, orphan);
}

int kvcpy_enter(struct kvcpy_handle *handle)
{
	struct kvcpy_state *state = handle->state;

	if (kvcpy_logging())
		return refuse_logging(state);
	kvcpy_sweep(state);
	for (const struct kvcpy_handle *h = handle; h; h = h->parent)
		if (!h->raw || h->closers > 0)
			return kvcpy_raise_text(state->config_error, EBADF, "the %s is %s",
						h->kind->name, h->raw ? "being closed" : "closed");
	if (handle->pid != kvcpy_pid())
		return kvcpy_raise_text(state->error, EPERM,
					"the %s was opened by process %d, which forked this one: a "
					"child opens a store of its own",
					handle->kind->name, (int)handle->pid);
	count_call(handle);
	return 0;
}

/* ---------------------------------------------------------------- closing */

static size_t count_tree(const struct kvcpy_handle *handle)
{
	size_t count = 1;

	for (const struct kvcpy_handle *child = handle->children; child; child = child->next)
		count += count_tree(child);
	return count;
}

static struct kvcpy_handle **add_tree(struct kvcpy_handle *handle, struct kvcpy_handle **at)
{
	/* Batches use pools, and all may use regions. */
	static const char order[] = "bnpr";

	for (const char *kind = order; *kind; kind++)
		for (struct kvcpy_handle *child = handle->children; child; child = child->next)
			if (child->kind->name[0] == *kind)
				at = add_tree(child, at);
	Py_INCREF((PyObject *)handle);
	*at = handle;
	return at + 1;
}

/* Takes the library's handle away and closes it. 0, or the library's error: then it is back. */
static int close_one(struct kvcpy_handle *handle, unsigned wait_ms)
{
	void *raw = handle->raw;
	int rc;

	handle->raw = NULL;
	unlink_child(handle);
	count_call(handle->parent);
	Py_BEGIN_ALLOW_THREADS
	rc = handle->kind->close(raw, wait_ms);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle->parent);
	if (rc < 0)
		kvcpy_handle_set(handle, raw);
	return rc < 0 ? rc : 0;
}

static int close_tree(struct kvcpy_handle *handle, uint64_t deadline_ms)
{
	const size_t count = count_tree(handle);
	struct kvcpy_handle **all = malloc(count * sizeof(*all));
	int rc = 0;

	if (!all) {
		PyErr_NoMemory();
		return -1;
	}
	(void)add_tree(handle, all);
	for (size_t i = 0; i < count && !rc; i++) {
		const uint64_t now_ms = kvcpy_now_ms();

		if (all[i]->raw)
			rc = close_one(all[i],
				       now_ms < deadline_ms ? (unsigned)(deadline_ms - now_ms) : 0);
		if (rc)
			kvcpy_raise(handle->state, rc);
	}
	for (size_t i = 0; i < count; i++)
		Py_DECREF((PyObject *)all[i]);
	free(all);
	return rc ? -1 : 0;
}

bool kvcpy_closing(const struct kvcpy_handle *handle)
{
	for (; handle; handle = handle->parent)
		if (handle->closing)
			return true;
	return false;
}

static int pause_ms(void)
{
	const struct timespec pause = { .tv_nsec = 1000000 };

	Py_BEGIN_ALLOW_THREADS(void)
	nanosleep(&pause, NULL);
	Py_END_ALLOW_THREADS
	return PyErr_CheckSignals();
}

static int close_waiting(struct kvcpy_handle *handle)
{
	const uint64_t deadline_ms = kvcpy_now_ms() + KVCPY_CLOSE_MS;
	int rc = 0;

	while (handle->raw && (handle->calls > 0 || kvcpy_closing(handle))) {
		if (kvcpy_now_ms() > deadline_ms)
			return kvcpy_raise_text(handle->state->error, EBUSY,
						"the %s stays open: %u call%s still at work on it",
						handle->kind->name, handle->calls,
						handle->calls == 1 ? " is" : "s are");
		if (pause_ms())
			return -1;
	}
	if (handle->raw) {
		handle->closing = true;
		rc = close_tree(handle, deadline_ms);
		handle->closing = false;
	}
	return rc;
}

/* In a forked child: nothing of the library is touched. */
static void forget_tree(struct kvcpy_handle *handle)
{
	while (handle->children)
		forget_tree(handle->children);
	handle->raw = NULL;
	unlink_child(handle);
}

int kvcpy_close(struct kvcpy_handle *handle)
{
	int rc;

	if (!handle->raw && handle->closers == 0)
		return 0;
	if (handle->pid != kvcpy_pid()) {
		forget_tree(handle);
		return 0;
	}
	if (kvcpy_logging())
		return refuse_logging(handle->state);
	kvcpy_sweep(handle->state);
	handle->closers++;
	rc = close_waiting(handle);
	handle->closers--;
	return rc;
}

static int drop_raw(struct kvcpy_handle *handle, void *raw)
{
	int rc;

	if (kvcpy_logging())
		return -EDEADLK;
	count_call(handle->parent);
	Py_BEGIN_ALLOW_THREADS
	rc = handle->kind->close(raw, KVCPY_DROP_MS);
	Py_END_ALLOW_THREADS
	kvcpy_leave(handle->parent);
	return rc;
}

void kvcpy_drop(struct kvcpy_handle *handle)
{
	void *raw = handle->raw, *held = handle->held;

	handle->raw = NULL;
	handle->held = NULL;
	unlink_child(handle);
	if (raw && handle->pid == kvcpy_pid() && drop_raw(handle, raw) < 0)
		add_orphan(handle, raw, held); /* its parent could never be closed otherwise */
	else
		release_held(handle->kind, held);
}

/* ---------------------------------------------------------------- slots */

int kvcpy_handle_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;

	Py_VISIT((PyObject *)handle->parent);
	Py_VISIT(Py_TYPE(self));
	return 0;
}

void kvcpy_handle_dealloc(PyObject *self)
{
	struct kvcpy_handle *handle = (struct kvcpy_handle *)self;
	PyTypeObject *type = Py_TYPE(self);

	PyObject_GC_UnTrack(self);
	/* First of all: what a weak reference calls may close the parent. */
	kvcpy_drop(handle);
	if (handle->weak_references)
		PyObject_ClearWeakRefs(self);
	Py_CLEAR(handle->parent);
	PyObject_GC_Del(self);
	Py_DECREF((PyObject *)type);
}

static const struct kvcpy_spec close_spec = { .function = "close" };
static const struct kvcpy_spec enter_spec = { .function = "__enter__" };
static const char *const exit_names[] = { "kind", "value", "traceback" };
static const struct kvcpy_spec exit_spec = { "__exit__", exit_names, 3, 3, 0 };

const char kvcpy_handle_close_doc[] =
	"close($self, /)\n--\n\n"
	"Closes it, with everything that is open in it; a second close does nothing.\n\n"
	"New calls are refused from here on, those in flight are waited for, at most 2 s:\n"
	"Error(EBUSY) after that, and it stays open. In a child that was forked the handle is\n"
	"only forgotten.";
PyObject *kvcpy_handle_close(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames)
{
	if (kvcpy_parse(&close_spec, args, nargs, kwnames, NULL) ||
	    kvcpy_close((struct kvcpy_handle *)self))
		return NULL;
	Py_RETURN_NONE;
}

const char kvcpy_handle_enter_doc[] = "__enter__($self, /)\n--\n\nThe object itself.";
PyObject *kvcpy_handle_enter(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames)
{
	if (kvcpy_parse(&enter_spec, args, nargs, kwnames, NULL))
		return NULL;
	return Py_NewRef(self);
}

const char kvcpy_handle_exit_doc[] =
	"__exit__($self, /, kind=None, value=None, traceback=None)\n--\n\nCloses it.";
PyObject *kvcpy_handle_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
			    PyObject *kwnames)
{
	PyObject *values[3];

	if (kvcpy_parse(&exit_spec, args, nargs, kwnames, values) ||
	    kvcpy_close((struct kvcpy_handle *)self))
		return NULL;
	Py_RETURN_NONE;
}

const char kvcpy_handle_closed_doc[] = "True once it is closed.";
PyObject *kvcpy_handle_closed(PyObject *self, void *closure)
{
	(void)closure;
	for (const struct kvcpy_handle *h = (struct kvcpy_handle *)self; h; h = h->parent)
		if (!h->raw)
			Py_RETURN_TRUE;
	Py_RETURN_FALSE;
}

PyGetSetDef kvcpy_handle_properties[] = {
	KVCPY_HANDLE_CLOSED,
	{ 0 },
};

PyMemberDef kvcpy_handle_members[] = {
	{ "__weaklistoffset__", T_PYSSIZET, offsetof(struct kvcpy_handle, weak_references),
	  READONLY, NULL },
	{ 0 },
};
