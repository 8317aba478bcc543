/* SPDX-License-Identifier: Apache-2.0 */
/* The module kvcellar._kvcellar: its state, types and functions. */
#include "kvcpy.h"

static PyMethodDef functions[] = {
	KVCPY_ROW("policy_prefix", kvcpy_policy_prefix),
	KVCPY_ROW("policy_restorable", kvcpy_policy_restorable),
	KVCPY_ROW("config_options", kvcpy_config_options),
	KVCPY_ROW("config_sample", kvcpy_config_sample),
	KVCPY_ROW("config_describe", kvcpy_config_describe),
	KVCPY_ROW("config_check", kvcpy_config_check),
	KVCPY_ROW("plugins", kvcpy_plugins),
	KVCPY_ROW("set_log", kvcpy_set_log),
	{ 0 },
};

struct kvcpy_state *kvcpy_state_of(PyObject *self)
{
	return PyType_GetModuleState(Py_TYPE(self));
}

/* ---------------------------------------------------------------- making it */

static int add_types(PyObject *module, struct kvcpy_state *state)
{
	const struct {
		PyType_Spec *spec;
		PyTypeObject **at;
	} types[] = {
		{ &kvcpy_store_spec, &state->store_type },
		{ &kvcpy_namespace_spec, &state->namespace_type },
		{ &kvcpy_pool_spec, &state->pool_type },
		{ &kvcpy_region_spec, &state->region_type },
		{ &kvcpy_transfer_spec, &state->transfer_type },
		{ &kvcpy_result_spec, &state->result_type },
		{ &kvcpy_batch_spec, &state->batch_type },
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		PyObject *type = PyType_FromModuleAndSpec(module, types[i].spec, NULL);

		if (!type)
			return -1;
		*types[i].at = (PyTypeObject *)type;
		if (PyModule_AddType(module, (PyTypeObject *)type) < 0)
			return -1;
	}
	return 0;
}

static int add_names(PyObject **names, int count, const char *(*name)(int))
{
	for (int i = 0; i < count; i++) {
		names[i] = PyUnicode_InternFromString(name(i));
		if (!names[i])
			return -1;
	}
	return 0;
}

static PyObject *function_of(const char *module_name, const char *name)
{
	PyObject *module = PyImport_ImportModule(module_name);
	PyObject *function = module ? PyObject_GetAttrString(module, name) : NULL;

	Py_XDECREF(module);
	return function;
}

static int execute(PyObject *module)
{
	struct kvcpy_state *state = PyModule_GetState(module);

	if (kvcpy_errors_add(state, module) || add_types(module, state) ||
	    add_names(state->status_names, KVCPY_STATUS_COUNT, kvc_status_name) ||
	    add_names(state->cause_names, KVC_CAUSE_COUNT, kvc_cause_name) ||
	    PyModule_AddStringConstant(module, "__version__", kvc_version()) < 0)
		return -1;
	state->json_dumps = function_of("json", "dumps");
	state->json_loads = function_of("json", "loads");
	state->fspath = function_of("os", "fspath");
	return state->json_dumps && state->json_loads && state->fspath ? 0 : -1;
}

/* ---------------------------------------------------------------- its end */

static int traverse(PyObject *module, visitproc visit, void *arg)
{
	struct kvcpy_state *state = PyModule_GetState(module);

	Py_VISIT(state->store_type);
	Py_VISIT(state->namespace_type);
	Py_VISIT(state->pool_type);
	Py_VISIT(state->region_type);
	Py_VISIT(state->transfer_type);
	Py_VISIT(state->result_type);
	Py_VISIT(state->batch_type);
	Py_VISIT(state->error);
	Py_VISIT(state->config_error);
	Py_VISIT(state->json_dumps);
	Py_VISIT(state->json_loads);
	Py_VISIT(state->fspath);
	return 0;
}

static int clear(PyObject *module)
{
	struct kvcpy_state *state = PyModule_GetState(module);

	Py_CLEAR(state->store_type);
	Py_CLEAR(state->namespace_type);
	Py_CLEAR(state->pool_type);
	Py_CLEAR(state->region_type);
	Py_CLEAR(state->transfer_type);
	Py_CLEAR(state->result_type);
	Py_CLEAR(state->batch_type);
	Py_CLEAR(state->error);
	Py_CLEAR(state->config_error);
	Py_CLEAR(state->json_dumps);
	Py_CLEAR(state->json_loads);
	Py_CLEAR(state->fspath);
	for (int i = 0; i < KVCPY_STATUS_COUNT; i++)
		Py_CLEAR(state->status_names[i]);
	for (int i = 0; i < KVC_CAUSE_COUNT; i++)
		Py_CLEAR(state->cause_names[i]);
	return 0;
}

static void release(void *module)
{
	(void)clear(module);
}

static PyModuleDef_Slot slots[] = {
	{ Py_mod_exec, execute },
	{ 0, NULL },
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "kvcellar._kvcellar",
	.m_doc = "The C extension of kvcellar. Import its names from kvcellar.",
	.m_size = sizeof(struct kvcpy_state),
	.m_methods = functions,
	.m_slots = slots,
	.m_traverse = traverse,
	.m_clear = clear,
	.m_free = release,
};

PyMODINIT_FUNC PyInit__kvcellar(void);
PyMODINIT_FUNC PyInit__kvcellar(void)
{
	return PyModuleDef_Init(&definition);
}
