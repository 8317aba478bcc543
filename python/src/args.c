/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments: finding them by place and name, and turning them into C values. */
#include "kvcpy.h"

#include <string.h>

static int name_at(const struct kvcpy_spec *spec, PyObject *name)
{
	for (unsigned i = 0; i < spec->count; i++)
		if (PyUnicode_CompareWithASCIIString(name, spec->names[i]) == 0)
			return (int)i;
	PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
		     spec->function, name);
	return -1;
}

static int check_positional(const struct kvcpy_spec *spec, Py_ssize_t nargs)
{
	if (nargs <= (Py_ssize_t)spec->positional)
		return 0;
	PyErr_Format(PyExc_TypeError, "%s() takes at most %u positional argument%s (%zd given)",
		     spec->function, spec->positional, spec->positional == 1 ? "" : "s", nargs);
	return -1;
}

static int put_named(const struct kvcpy_spec *spec, PyObject *name, PyObject *value, PyObject **out)
{
	const int at = name_at(spec, name);

	if (at < 0)
		return -1;
	if (out[at]) {
		PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'",
			     spec->function, spec->names[at]);
		return -1;
	}
	out[at] = value;
	return 0;
}

static int check_required(const struct kvcpy_spec *spec, PyObject *const *out)
{
	for (unsigned i = 0; i < spec->required; i++) {
		if (out[i])
			continue;
		PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", spec->function,
			     spec->names[i]);
		return -1;
	}
	return 0;
}

int kvcpy_parse(const struct kvcpy_spec *spec, PyObject *const *args, Py_ssize_t nargs,
		PyObject *kwnames, PyObject **out)
{
	const Py_ssize_t named = kwnames ? PyTuple_Size(kwnames) : 0;

	if (check_positional(spec, nargs))
		return -1;
	for (unsigned i = 0; i < spec->count; i++)
		out[i] = (Py_ssize_t)i < nargs ? args[i] : NULL;
	for (Py_ssize_t i = 0; i < named; i++)
		if (put_named(spec, PyTuple_GetItem(kwnames, i), args[nargs + i], out))
			return -1;
	return check_required(spec, out);
}

int kvcpy_parse_new(const struct kvcpy_spec *spec, PyObject *args, PyObject *kwargs, PyObject **out)
{
	const Py_ssize_t nargs = PyTuple_Size(args);
	PyObject *name, *value;
	Py_ssize_t at = 0;

	if (check_positional(spec, nargs))
		return -1;
	for (unsigned i = 0; i < spec->count; i++)
		out[i] = (Py_ssize_t)i < nargs ? PyTuple_GetItem(args, (Py_ssize_t)i) : NULL;
	while (kwargs && PyDict_Next(kwargs, &at, &name, &value))
		if (put_named(spec, name, value, out))
			return -1;
	return check_required(spec, out);
}

/* ---------------------------------------------------------------- values */

int kvcpy_wrong_type(PyObject *object, const char *what, const char *expected)
{
	PyObject *name = PyType_GetName(Py_TYPE(object));

	if (name) {
		PyErr_Format(PyExc_TypeError, "%s: %s expected, not %U", what, expected, name);
		Py_DECREF(name);
	}
	return -1;
}

static int whole_number(struct kvcpy_state *state, PyObject *object, const char *what,
			uint64_t most, uint64_t *out)
{
	PyObject *number = PyNumber_Index(object);
	unsigned long long value;

	if (!number) {
		if (!PyErr_ExceptionMatches(PyExc_TypeError))
			return -1;
		PyErr_Clear();
		return kvcpy_wrong_type(object, what, "an int");
	}
	value = PyLong_AsUnsignedLongLong(number);
	if ((value == (unsigned long long)-1 && PyErr_Occurred()) || value > most) {
		PyErr_Clear();
		kvcpy_refuse(state, "%s = %S: not in 0 to %llu", what, number,
			     (unsigned long long)most);
		Py_DECREF(number);
		return -1;
	}
	Py_DECREF(number);
	*out = value;
	return 0;
}

int kvcpy_u64(struct kvcpy_state *state, PyObject *object, const char *what, uint64_t *out)
{
	return object ? whole_number(state, object, what, UINT64_MAX, out) : 0;
}

int kvcpy_u32(struct kvcpy_state *state, PyObject *object, const char *what, uint32_t *out)
{
	uint64_t value;

	if (!object)
		return 0;
	if (whole_number(state, object, what, UINT32_MAX, &value))
		return -1;
	*out = (uint32_t)value;
	return 0;
}

int kvcpy_flag(PyObject *object, const char *what, bool *out)
{
	if (!object)
		return 0;
	if (!PyBool_Check(object))
		return kvcpy_wrong_type(object, what, "a bool");
	*out = object == Py_True;
	return 0;
}

int kvcpy_bits(PyObject *object, const char *what, uint32_t bit, uint32_t *out)
{
	bool set = false;

	if (kvcpy_flag(object, what, &set))
		return -1;
	if (set)
		*out |= bit;
	return 0;
}

int kvcpy_tristate(PyObject *object, const char *what, uint32_t *out)
{
	bool set = false;

	if (!object || object == Py_None)
		return 0;
	if (!PyBool_Check(object))
		return kvcpy_wrong_type(object, what, "a bool or None");
	(void)kvcpy_flag(object, what, &set);
	*out = set ? KVC_YES : KVC_NO;
	return 0;
}

int kvcpy_text(struct kvcpy_state *state, PyObject *object, const char *what, const char **out)
{
	const char *text;
	Py_ssize_t bytes;

	if (!object)
		return 0;
	if (object == Py_None) {
		*out = NULL;
		return 0;
	}
	if (!PyUnicode_Check(object))
		return kvcpy_wrong_type(object, what, "a str");
	text = PyUnicode_AsUTF8AndSize(object, &bytes);
	if (!text) {
		if (!PyErr_ExceptionMatches(PyExc_UnicodeError))
			return -1;
		return kvcpy_refuse_again(state, what);
	}
	if (strlen(text) != (size_t)bytes)
		return kvcpy_refuse(state, "%s has a NUL character", what);
	*out = text;
	return 0;
}

int kvcpy_name(struct kvcpy_state *state, PyObject *object, const char *what, const char **out)
{
	if (object == Py_None)
		return kvcpy_wrong_type(object, what, "a str");
	return kvcpy_text(state, object, what, out);
}

int kvcpy_choose(struct kvcpy_state *state, PyObject *object, const char *what,
		 const struct kvcpy_choice *choices, size_t count, uint32_t *out)
{
	PyObject *all, *more;

	if (!object)
		return 0;
	if (!PyUnicode_Check(object))
		return kvcpy_wrong_type(object, what, "a str");
	for (size_t i = 0; i < count; i++) {
		if (PyUnicode_CompareWithASCIIString(object, choices[i].name) == 0) {
			*out = choices[i].value;
			return 0;
		}
	}
	all = PyUnicode_FromString(choices[0].name);
	for (size_t i = 1; all && i < count; i++) {
		more = PyUnicode_FromFormat("%U, %s", all, choices[i].name);
		Py_DECREF(all);
		all = more;
	}
	if (all) {
		kvcpy_refuse(state, "%s = %R: one of %U expected", what, object, all);
		Py_DECREF(all);
	}
	return -1;
}
