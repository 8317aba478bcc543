/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations from Python values, and what the library tells about them. */
#include "kvcpy.h"

#include <errno.h>

/* One text of JSON, in the mapping's order; paths in it may be os.PathLike. */
static PyObject *json_of(struct kvcpy_state *state, PyObject *mapping)
{
	PyObject *dict = PyDict_New();
	PyObject *args, *kwargs, *text = NULL;

	if (!dict)
		return NULL;
	args = PyTuple_Pack(1, dict);
	kwargs = Py_BuildValue("{sOsO}", "default", state->fspath, "allow_nan", Py_False);
	if (args && kwargs && PyDict_Update(dict, mapping) == 0)
		text = PyObject_Call(state->json_dumps, args, kwargs);
	Py_XDECREF(args);
	Py_XDECREF(kwargs);
	Py_DECREF(dict);
	if (!text &&
	    (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
	     PyErr_ExceptionMatches(PyExc_RecursionError)))
		kvcpy_refuse_again(state, "config");
	return text;
}

static int load(struct kvcpy_state *state, PyObject *text, int format, struct kvc_config *config)
{
	Py_ssize_t bytes;
	const char *utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
	int rc;

	if (!utf8) {
		if (PyErr_ExceptionMatches(PyExc_UnicodeError))
			kvcpy_refuse_again(state, "config");
		return -1;
	}
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_config_load_text(config, utf8, (size_t)bytes, format, "config");
	Py_END_ALLOW_THREADS
	if (rc < 0) {
		kvcpy_raise(state, rc);
		return -1;
	}
	return 0;
}

int kvcpy_config_make(struct kvcpy_state *state, PyObject *object, struct kvc_config **out)
{
	struct kvc_config *config;
	PyObject *text;
	int rc;

	if (kvcpy_logging())
		return kvcpy_raise_text(state->error, EDEADLK,
					"the log callback may not call the library");
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_config_new(&config);
	Py_END_ALLOW_THREADS
	if (rc < 0) {
		kvcpy_raise(state, rc);
		return -1;
	}
	if (!object || object == Py_None) {
		rc = 0;
	} else if (PyUnicode_Check(object)) {
		rc = load(state, object, KVC_CONFIG_AUTO, config);
	} else if (PyDict_Check(object) || PyObject_HasAttrString(object, "keys")) {
		text = json_of(state, object);
		rc = text ? load(state, text, KVC_CONFIG_JSON, config) : -1;
		Py_XDECREF(text);
	} else {
		rc = kvcpy_wrong_type(object, "config", "a dict, a str or None");
	}
	if (rc) {
		kvc_config_free(config);
		return -1;
	}
	*out = config;
	return 0;
}

/* ---------------------------------------------------------------- functions of the module */

struct description {
	const struct kvc_config *config;
	int what;
};

static int describe(void *context, char *buffer, size_t bytes)
{
	const struct description *description = context;

	return kvc_config_describe(description->config, description->what, buffer, bytes);
}

static PyObject *describe_text(struct kvcpy_state *state, const struct kvc_config *config, int what)
{
	struct description description = { config, what };

	return kvcpy_text_of(state, describe, &description);
}

static const char *const options_names[] = { "format" };
static const struct kvcpy_spec options_spec = { "config_options", options_names, 1, 1, 0 };
static const struct kvcpy_spec sample_spec = { .function = "config_sample" };
static const char *const describe_names[] = { "config", "json" };
static const struct kvcpy_spec describe_spec = { "config_describe", describe_names, 2, 1, 0 };
static const char *const check_names[] = { "config" };
static const struct kvcpy_spec check_spec = { "config_check", check_names, 1, 1, 0 };
static const struct kvcpy_spec plugins_spec = { "plugins", check_names, 1, 1, 0 };

const char kvcpy_config_options_doc[] = "config_options($module, /, format='text')\n--\n\n"
					"The table of all options; format: text, json or markdown.";
PyObject *kvcpy_config_options(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
			       PyObject *kwnames)
{
	static const struct kvcpy_choice formats[] = {
		{ "text", KVC_DESCRIBE_OPTIONS },
		{ "json", KVC_DESCRIBE_OPTIONS_JSON },
		{ "markdown", KVC_DESCRIBE_OPTIONS_MARKDOWN },
	};
	struct kvcpy_state *state = PyModule_GetState(module);
	uint32_t what = KVC_DESCRIBE_OPTIONS;
	PyObject *value;

	if (kvcpy_parse(&options_spec, args, nargs, kwnames, &value) ||
	    kvcpy_choose(state, value, "format", formats, 3, &what))
		return NULL;
	return describe_text(state, NULL, (int)what);
}

const char kvcpy_config_sample_doc[] =
	"config_sample($module, /)\n--\n\nkvcellar.toml.sample: every option with its default.";
PyObject *kvcpy_config_sample(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
			      PyObject *kwnames)
{
	if (kvcpy_parse(&sample_spec, args, nargs, kwnames, NULL))
		return NULL;
	return describe_text(PyModule_GetState(module), NULL, KVC_DESCRIBE_SAMPLE);
}

const char kvcpy_config_describe_doc[] =
	"config_describe($module, /, config=None, *, json=False)\n--\n\n"
	"Each option that is in effect, its value and where it came from; secrets are '***'.\n\n"
	"config: as for Store.";
PyObject *kvcpy_config_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
				PyObject *kwnames)
{
	struct kvcpy_state *state = PyModule_GetState(module);
	struct kvc_config *config;
	PyObject *values[2], *text;
	bool json = false;

	if (kvcpy_parse(&describe_spec, args, nargs, kwnames, values) ||
	    kvcpy_flag(values[1], "json", &json) || kvcpy_config_make(state, values[0], &config))
		return NULL;
	text = describe_text(state, config,
			     json ? KVC_DESCRIBE_EFFECTIVE_JSON : KVC_DESCRIBE_EFFECTIVE);
	kvc_config_free(config);
	return text;
}

const char kvcpy_config_check_doc[] =
	"config_check($module, /, config=None)\n--\n\n"
	"Raises what Store(config) would, as far as that can be told without touching storage.";
PyObject *kvcpy_config_check(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
			     PyObject *kwnames)
{
	struct kvcpy_state *state = PyModule_GetState(module);
	struct kvc_config *config;
	PyObject *value;
	int rc;

	if (kvcpy_parse(&check_spec, args, nargs, kwnames, &value) ||
	    kvcpy_config_make(state, value, &config))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = kvc_config_check(config);
	Py_END_ALLOW_THREADS
	if (rc < 0)
		kvcpy_raise(state, rc);
	kvc_config_free(config);
	return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---------------------------------------------------------------- plugins */

struct plugin_list {
	PyThreadState *thread;
	PyObject *list;
	bool failed;
};

static PyObject *plugin_dict(const struct kvc_plugin_info *info)
{
	PyObject *dict = PyDict_New();

	if (!dict)
		return NULL;
	if (kvcpy_dict_text(dict, "name", info->name ? info->name : "") ||
	    kvcpy_dict_text(dict, "version", info->version ? info->version : "") ||
	    kvcpy_dict_text(dict, "summary", info->summary ? info->summary : "") ||
	    kvcpy_dict_text(dict, "path", info->path ? info->path : "") ||
	    kvcpy_dict_text(dict, "reason", info->reason ? info->reason : "") ||
	    kvcpy_dict_add(dict, "status", PyLong_FromLong(-info->status)))
		Py_CLEAR(dict);
	return dict;
}

/* In the calling thread. */
static int add_plugin(void *context, const struct kvc_plugin_info *info)
{
	struct plugin_list *plugins = context;
	PyObject *dict;

	PyEval_RestoreThread(plugins->thread);
	dict = plugin_dict(info);
	plugins->failed = !dict || PyList_Append(plugins->list, dict) < 0;
	Py_XDECREF(dict);
	plugins->thread = PyEval_SaveThread();
	return plugins->failed;
}

const char kvcpy_plugins_doc[] =
	"plugins($module, /, config=None)\n--\n\n"
	"The plugins that are found beside the library and in plugin_dir of the configuration: a\n"
	"dict each with name, version, summary, path, status (0: loads; else an errno) and reason.";
PyObject *kvcpy_plugins(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
			PyObject *kwnames)
{
	struct kvcpy_state *state = PyModule_GetState(module);
	struct plugin_list plugins = { 0 };
	struct kvc_config *config;
	PyObject *value;
	int rc;

	if (kvcpy_parse(&plugins_spec, args, nargs, kwnames, &value))
		return NULL;
	if (kvcpy_config_make(state, value, &config))
		return NULL;
	plugins.list = PyList_New(0);
	if (!plugins.list) {
		kvc_config_free(config);
		return NULL;
	}
	plugins.thread = PyEval_SaveThread();
	rc = kvc_plugin_list(config, add_plugin, &plugins);
	kvc_config_free(config);
	PyEval_RestoreThread(plugins.thread);
	if (plugins.failed || rc < 0) {
		if (!plugins.failed)
			kvcpy_raise(state, rc);
		Py_DECREF(plugins.list);
		return NULL;
	}
	return plugins.list;
}
