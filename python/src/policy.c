/* SPDX-License-Identifier: Apache-2.0 */
/* Hit policies: which prefix every pool can restore. */
#include "kvcpy.h"

#include <stdlib.h>
#include <string.h>

enum {
	PAGES_MAX = 1 << 24,
	PAGES_SLICE = 1 << 16, /* with as many, other threads get the GIL meanwhile */
};

/* struct policies - @held  the bytes objects */
struct policies {
	struct kvc_policy_pool *pools;
	size_t count;
	size_t page_count;
	PyObject *tuples;
	PyObject *held;
};

static const struct kvcpy_choice choices[] = {
	{ "all_pages", KVC_POLICY_ALL_PAGES },
	{ "trailing_pages", KVC_POLICY_TRAILING_PAGES },
	{ "block_groups", KVC_POLICY_BLOCK_GROUPS },
};

static void policies_release(struct policies *policies)
{
	free(policies->pools);
	Py_CLEAR(policies->tuples);
	Py_CLEAR(policies->held);
}

static int add_pool(struct kvcpy_state *state, struct policies *policies, size_t at,
		    PyObject *tuple)
{
	struct kvc_policy_pool *pool = &policies->pools[at];
	PyObject *present;
	char what[48];

	(void)PyOS_snprintf(what, sizeof(what), "pools[%zu]", at);
	if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != 3)
		return kvcpy_refuse(state, "%s: (present, policy, pages) expected", what);
	present = PyTuple_GetItem(tuple, 0);
	pool->size = sizeof(*pool);
	if (!PyBytes_Check(present))
		return kvcpy_wrong_type(present, what, "bytes, one per page,");
	if ((size_t)PyBytes_Size(present) < policies->page_count)
		return kvcpy_refuse(state, "%s has %zd pages, page_count is %zu", what,
				    PyBytes_Size(present), policies->page_count);
	pool->present = (const uint8_t *)PyBytes_AsString(present);
	return kvcpy_choose(state, PyTuple_GetItem(tuple, 1), what, choices, 3, &pool->policy) ||
			       kvcpy_u32(state, PyTuple_GetItem(tuple, 2), what, &pool->pages) ||
			       PyList_Append(policies->held, tuple) < 0 ?
		       -1 :
		       0;
}

static int policies_make(struct kvcpy_state *state, PyObject *const *values, struct policies *out)
{
	struct policies policies = { 0 };
	uint64_t page_count = 0;

	if (kvcpy_u64(state, values[1], "page_count", &page_count))
		return -1;
	if (page_count > PAGES_MAX)
		return kvcpy_refuse(state, "page_count = %llu: at most %d",
				    (unsigned long long)page_count, PAGES_MAX);
	policies.page_count = (size_t)page_count;
	policies.tuples = kvcpy_tuple(values[0], "pools");
	if (!policies.tuples)
		return -1;
	policies.count = (size_t)PyTuple_Size(policies.tuples);
	policies.held = PyList_New(0);
	policies.pools = calloc(policies.count + 1, sizeof(*policies.pools));
	if (!policies.held || !policies.pools) {
		PyErr_NoMemory();
		goto release;
	}
	for (size_t i = 0; i < policies.count; i++)
		if (add_pool(state, &policies, i, PyTuple_GetItem(policies.tuples, (Py_ssize_t)i)))
			goto release;
	*out = policies;
	return 0;

release:
	policies_release(&policies);
	return -1;
}

static const char *const names[] = { "pools", "page_count" };
static const struct kvcpy_spec prefix_spec = { "policy_prefix", names, 2, 2, 2 };
static const struct kvcpy_spec restorable_spec = { "policy_restorable", names, 2, 2, 2 };

const char kvcpy_policy_prefix_doc[] =
	"policy_prefix($module, /, pools, page_count)\n--\n\n"
	"The longest prefix that every pool can restore, in pages.\n\n"
	"pools: (present, policy, pages) each. present: bytes, 1 for each page that the pool\n"
	"has, page_count of them. policy: all_pages; trailing_pages, only the last `pages` pages\n"
	"of the prefix are needed; or block_groups, whole groups of `pages` pages. pages 0 is 1.";
PyObject *kvcpy_policy_prefix(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	struct policies policies;
	PyObject *values[2];
	size_t pages;

	if (kvcpy_parse(&prefix_spec, args, nargs, kwnames, values) ||
	    policies_make(PyModule_GetState(module), values, &policies))
		return NULL;
	if (policies.page_count >= PAGES_SLICE) {
		Py_BEGIN_ALLOW_THREADS
		pages = kvc_policy_prefix(policies.pools, policies.count, policies.page_count);
		Py_END_ALLOW_THREADS
	} else {
		pages = kvc_policy_prefix(policies.pools, policies.count, policies.page_count);
	}
	policies_release(&policies);
	return PyLong_FromSize_t(pages);
}

static int let_others(void)
{
	Py_BEGIN_ALLOW_THREADS
	Py_END_ALLOW_THREADS
	return PyErr_CheckSignals();
}

static PyObject *numbers_of(const uint8_t *restorable, size_t page_count)
{
	PyObject *list = PyList_New(0);

	for (size_t n = 1; list && n <= page_count; n++) {
		PyObject *number = restorable[n] ? PyLong_FromSize_t(n) : NULL;

		if (restorable[n] && (!number || PyList_Append(list, number) < 0))
			Py_CLEAR(list);
		Py_XDECREF(number);
		if (list && n % PAGES_SLICE == 0 && let_others())
			Py_CLEAR(list);
	}
	return list;
}

const char kvcpy_policy_restorable_doc[] =
	"policy_restorable($module, /, pools, page_count)\n--\n\n"
	"The prefix lengths, 1 to page_count ascending, that every pool can restore.\n\n"
	"pools: as for policy_prefix(). page_count: at most 2**24.";
PyObject *kvcpy_policy_restorable(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
				  PyObject *kwnames)
{
	struct policies policies;
	PyObject *values[2], *list;
	uint8_t *restorable;

	if (kvcpy_parse(&restorable_spec, args, nargs, kwnames, values) ||
	    policies_make(PyModule_GetState(module), values, &policies))
		return NULL;
	restorable = calloc(policies.page_count + 1, 1);
	if (!restorable) {
		policies_release(&policies);
		return PyErr_NoMemory();
	}
	if (policies.page_count >= PAGES_SLICE) {
		Py_BEGIN_ALLOW_THREADS(void)
		kvc_policy_restorable(policies.pools, policies.count, policies.page_count,
				      restorable);
		Py_END_ALLOW_THREADS
	} else {
		(void)kvc_policy_restorable(policies.pools, policies.count, policies.page_count,
					    restorable);
	}
	list = numbers_of(restorable, policies.page_count);
	free(restorable);
	policies_release(&policies);
	return list;
}
