/* SPDX-License-Identifier: Apache-2.0 */
#include "core/backend.h"

#include "core/config.h"
#include "core/log.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MODULE_PREFIX "kvcellar-plugin-"
#define MODULE_SUFFIX ".so"
#define MODULE_FOLDER "kvcellar/plugins"

static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvc_module *modules;

/* ---------------------------------------------------------------- fork */

#define FORK_WAIT_S 1

static _Thread_local bool fork_has_lock;

/*
 * A child that is forked while another thread loads a plugin has the loader's lists half changed:
 * so fork() waits for that, but not for ever, as the file may lie on a mount that does not answer.
 * The list of modules itself is whole at any time.
 */
static void fork_prepare(void)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += FORK_WAIT_S;
	fork_has_lock = !pthread_mutex_timedlock(&modules_lock, &until);
}

static void fork_parent(void)
{
	if (fork_has_lock)
		pthread_mutex_unlock(&modules_lock);
	fork_has_lock = false;
}

static void fork_child(void)
{
	if (fork_has_lock)
		pthread_mutex_unlock(&modules_lock);
	else
		(void)pthread_mutex_init(&modules_lock, NULL);
	fork_has_lock = false;
}

__attribute__((constructor)) static void fork_prepared(void)
{
	(void)pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* ---------------------------------------------------------------- host services */

static _Thread_local char thread_reason[512];
static _Thread_local char taken_reason[512];

static void host_log_debug(void *context, const char *text)
{
	(void)context;
	kvc_log(KVC_LOG_DEBUG, "%s", text);
}

static void host_reason(void *context, uint64_t cookie, const char *text)
{
	(void)context;
	if (cookie != 0) {
		kvc_log(KVC_LOG_DEBUG, "descriptor: %s", text);
		return;
	}
	(void)snprintf(thread_reason, sizeof(thread_reason), "%s", text);
}

const char *kvc_backend_reason(void)
{
	memcpy(taken_reason, thread_reason, sizeof(taken_reason));
	thread_reason[0] = '\0';
	return taken_reason;
}

/* ---------------------------------------------------------------- absent optional slots */

static int no_memory_register(struct kvc_plugin_backend *backend, const struct kvc_memory *memory,
			      uint64_t *out)
{
	(void)backend, (void)memory, (void)out;
	return -ENOTSUP;
}

static int no_memory_deregister(struct kvc_plugin_backend *backend, uint64_t registration)
{
	(void)backend, (void)registration;
	return -ENOTSUP;
}

static int no_memory_alloc(struct kvc_plugin_backend *backend, uint64_t bytes,
			   struct kvc_memory *out, uint64_t *out_registration)
{
	(void)backend, (void)bytes, (void)out, (void)out_registration;
	return -ENOTSUP;
}

static int no_memory_free(struct kvc_plugin_backend *backend, uint64_t registration)
{
	(void)backend, (void)registration;
	return -ENOTSUP;
}

static int no_memory_copy(struct kvc_plugin_backend *backend, void *to,
			  const struct kvc_memory *to_memory, const void *from,
			  const struct kvc_memory *from_memory, uint64_t bytes)
{
	(void)backend, (void)to, (void)to_memory, (void)from, (void)from_memory, (void)bytes;
	return -ENOTSUP;
}

static int no_container_open(struct kvc_plugin_root *root, const char *name, uint64_t bytes,
			     struct kvc_plugin_container **out, uint64_t *out_bytes)
{
	(void)root, (void)name, (void)bytes, (void)out, (void)out_bytes;
	return -ENOTSUP;
}

static int no_container_resize(struct kvc_plugin_container *container, uint64_t bytes)
{
	(void)container, (void)bytes;
	return -ENOTSUP;
}

static int no_container_close(struct kvc_plugin_container *container)
{
	(void)container;
	return -ENOTSUP;
}

static int no_container_remove(struct kvc_plugin_root *root, const char *name)
{
	(void)root, (void)name;
	return -ENOTSUP;
}

static int no_list(struct kvc_plugin_root *root, const char *prefix, kvc_list_fn fn, void *context)
{
	(void)root, (void)prefix, (void)fn, (void)context;
	return -ENOTSUP;
}

static int no_usage(struct kvc_plugin_root *root, struct kvc_usage *out)
{
	(void)root, (void)out;
	return -ENOTSUP;
}

static int64_t no_reclaim(struct kvc_plugin_root *root)
{
	(void)root;
	return 0;
}

static int no_event_fd(struct kvc_plugin_queue *queue)
{
	(void)queue;
	return -ENOTSUP;
}

static int no_cancel(struct kvc_plugin_queue *queue,
		     const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	(void)queue, (void)descriptors, (void)count;
	return -EBUSY;
}

static bool has_required_slots(const struct kvc_plugin *p)
{
	return p->backend_open && p->backend_close && p->root_open && p->root_close &&
	       p->root_query && p->queue_create && p->queue_destroy && p->submit && p->poll;
}

#define OPTIONAL(ops, slot) ((ops)->slot = (ops)->slot ? (ops)->slot : no_##slot)

static void fill_optional_slots(struct kvc_plugin *ops)
{
	OPTIONAL(ops, memory_register);
	OPTIONAL(ops, memory_deregister);
	OPTIONAL(ops, memory_alloc);
	OPTIONAL(ops, memory_free);
	OPTIONAL(ops, memory_copy);
	OPTIONAL(ops, container_open);
	OPTIONAL(ops, container_resize);
	OPTIONAL(ops, container_close);
	OPTIONAL(ops, container_remove);
	OPTIONAL(ops, list);
	OPTIONAL(ops, usage);
	OPTIONAL(ops, reclaim);
	OPTIONAL(ops, event_fd);
	OPTIONAL(ops, cancel);
}

/* ---------------------------------------------------------------- modules */

/* The file that this code was loaded from. */
static int own_file(char path[static PATH_MAX])
{
	Dl_info info;

	if (!dladdr((const void *)(uintptr_t)&kvc_module_load, &info) || !info.dli_fname ||
	    !realpath(info.dli_fname, path))
		return -ENOENT;
	return 0;
}

/* Cuts the last component off; false when there is none, or only the root is left. */
static bool to_parent(char *path)
{
	char *slash = strrchr(path, '/');

	if (!slash || slash == path)
		return false;
	*slash = '\0';
	return true;
}

/* The folder of plugins beside that file. */
static int own_folder(char *out, size_t bytes)
{
	char path[PATH_MAX];
	int length;

	if (own_file(path) || !to_parent(path))
		return -ENOENT;
	length = snprintf(out, bytes, "%s/" MODULE_FOLDER, path);
	return length < 0 || (size_t)length >= bytes ? -ENAMETOOLONG : 0;
}

/*
 * Beside the library, a plugin is as safe as the library when whoever may change it may change the
 * library too: so an installation of another user, or under a umask of 002, is as good as any.
 */
static bool is_as_safe_as(const struct stat *st, const char *library)
{
	const mode_t open_to = st->st_mode & (S_IWGRP | S_IWOTH);
	struct stat own;

	return library && !stat(library, &own) && st->st_uid == own.st_uid &&
	       !(open_to & ~own.st_mode) && (!(open_to & S_IWGRP) || st->st_gid == own.st_gid);
}

/* Code is run from this file: nobody but its user and root may be able to change it. */
static int check_owner(const char *path, const char *library)
{
	struct stat st;

	if (stat(path, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return kvc_fail(-EPERM, "plugin %s is not a regular file", path);
	if (is_as_safe_as(&st, library))
		return 0;
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return kvc_fail(-EPERM,
				"plugin %s belongs to user %u: it must be root's or your own", path,
				(unsigned)st.st_uid);
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return kvc_fail(-EPERM,
				"plugin %s may be changed by others (mode %04o): chmod go-w it",
				path, (unsigned)(st.st_mode & 07777));
	return 0;
}

/* Who may write to the folder may put another file in its place. */
static int check_folder(const char *path, const char *library)
{
	char folder[PATH_MAX], library_folder[PATH_MAX];
	struct stat st;

	(void)snprintf(folder, sizeof(folder), "%s", path);
	if (!to_parent(folder))
		return 0;
	if (stat(folder, &st))
		return kvc_fail(-errno, "plugin folder %s: %s", folder, strerror(errno));
	(void)snprintf(library_folder, sizeof(library_folder), "%s", library ? library : "");
	if (to_parent(library_folder) && is_as_safe_as(&st, library_folder))
		return 0;
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return kvc_fail(
			-EPERM,
			"plugin folder %s belongs to user %u: it must be root's or your own",
			folder, (unsigned)st.st_uid);
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return kvc_fail(
			-EPERM,
			"plugin folder %s may be changed by others (mode %04o): chmod go-w it",
			folder, (unsigned)(st.st_mode & 07777));
	return 0;
}

/* The plugin's option table with our row size, when it was built with another. */
static int adopt_options(struct kvc_plugin *ops)
{
	const size_t stride = ops->option_bytes;
	struct kvc_option *table;

	if (!ops->options || stride == sizeof(*table))
		return 0;
	if (stride < sizeof(*table))
		return -EINVAL;
	table = calloc(ops->option_count ? ops->option_count : 1, sizeof(*table));
	if (!table)
		return -ENOMEM;
	for (uint32_t i = 0; i < ops->option_count; i++)
		memcpy(&table[i], (const char *)ops->options + i * stride, sizeof(*table));
	/* Stays as long as the module: for the life of the process. */
	ops->options = table;
	return 0;
}

/* library: the library's own file when the plugin lies beside it, else NULL. */
static int module_from_file(const char *name, const char *path, const char *library,
			    const struct kvc_module **out)
{
	const struct kvc_plugin *(*entry)(void);
	const struct kvc_plugin *plugin;
	struct kvc_module *module;
	void *symbol, *handle;
	int rc = check_owner(path, library);

	if (!rc)
		rc = check_folder(path, library);
	if (rc)
		return rc;
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return kvc_fail(-ENOEXEC, "plugin %s: %s", path, dlerror());
	symbol = dlsym(handle, "kvc_plugin_entry");
	memcpy(&entry, &symbol, sizeof(entry));
	plugin = symbol ? entry() : NULL;
	if (!plugin || plugin->abi != KVC_PLUGIN_ABI || !plugin->name ||
	    strcasecmp(plugin->name, name) != 0) {
		rc = kvc_fail(-ENOEXEC, "plugin %s: %s", path,
			      !plugin ? "it has no kvc_plugin_entry" :
			      plugin->abi != KVC_PLUGIN_ABI ?
					"it was built for another plugin interface version" :
					"it calls itself by another name");
		goto close;
	}
	module = calloc(1, sizeof(*module));
	if (!module || !(module->path = strdup(path))) {
		free(module);
		rc = -ENOMEM;
		goto close;
	}
	memcpy(&module->ops, plugin,
	       plugin->size < sizeof(module->ops) ? plugin->size : sizeof(module->ops));
	if (!has_required_slots(&module->ops) || adopt_options(&module->ops)) {
		rc = kvc_fail(-ENOEXEC,
			      "plugin %s lacks a required function, or the size of its "
			      "option rows",
			      path);
		free(module->path);
		free(module);
		goto close;
	}
	fill_optional_slots(&module->ops);
	module->next = modules;
	__atomic_store_n(&modules, module, __ATOMIC_RELEASE);
	*out = module;
	return 0;

close:
	(void)dlclose(handle);
	return rc;
}

/* -ENOENT when the folder has no such file: the next one is asked. */
static int module_from_folder(const char *name, const char *folder, const char *library,
			      const struct kvc_module **out)
{
	char path[PATH_MAX];
	const int length =
		snprintf(path, sizeof(path), "%s/" MODULE_PREFIX "%s" MODULE_SUFFIX, folder, name);

	if (length < 0 || (size_t)length >= sizeof(path))
		return -ENAMETOOLONG;
	if (access(path, F_OK))
		return -ENOENT;
	for (struct kvc_module *m = modules; m; m = m->next) {
		if (strcmp(m->path, path) == 0) {
			*out = m;
			return 0;
		}
	}
	return module_from_file(name, path, library, out);
}

int kvc_module_load(const char *name, const char *plugin_dir, const struct kvc_module **out)
{
	char folder[PATH_MAX], library[PATH_MAX];
	int rc;

	pthread_mutex_lock(&modules_lock);
	rc = own_file(library);
	if (!rc)
		rc = own_folder(folder, sizeof(folder));
	if (!rc)
		rc = module_from_folder(name, folder, library, out);
	if (rc == -ENOENT && plugin_dir && *plugin_dir)
		rc = module_from_folder(name, plugin_dir, NULL, out);
	pthread_mutex_unlock(&modules_lock);
	if (rc == -ENOENT)
		return kvc_fail(rc,
				"not built: no " MODULE_PREFIX "%s" MODULE_SUFFIX " beside the "
				"library%s%s",
				name, plugin_dir && *plugin_dir ? " or in " : "",
				plugin_dir ? plugin_dir : "");
	return rc;
}

static int scan_folder(const char *folder, int (*fn)(void *context, const char *name),
		       void *context)
{
	const size_t prefix = strlen(MODULE_PREFIX), suffix = strlen(MODULE_SUFFIX);
	const struct dirent *entry;
	DIR *dir = opendir(folder);
	int rc = 0;

	if (!dir)
		return errno == ENOENT ? 0 : -errno;
	while (!rc && (entry = readdir(dir))) {
		const size_t length = strlen(entry->d_name);
		char name[64];

		if (length <= prefix + suffix || length - prefix - suffix >= sizeof(name) ||
		    strncmp(entry->d_name, MODULE_PREFIX, prefix) != 0 ||
		    strcmp(entry->d_name + length - suffix, MODULE_SUFFIX) != 0)
			continue;
		memcpy(name, entry->d_name + prefix, length - prefix - suffix);
		name[length - prefix - suffix] = '\0';
		rc = fn(context, name);
	}
	(void)closedir(dir);
	return rc;
}

int kvc_module_scan(const char *plugin_dir, int (*fn)(void *context, const char *name),
		    void *context)
{
	char folder[PATH_MAX];
	int rc = own_folder(folder, sizeof(folder));

	rc = rc ? 0 : scan_folder(folder, fn, context);
	if (!rc && plugin_dir && *plugin_dir)
		rc = scan_folder(plugin_dir, fn, context);
	return rc;
}

/* ---------------------------------------------------------------- backends */

static const char *setting(const struct kvc_setting *settings, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(settings[i].name, name) == 0)
			return settings[i].value;
	return "";
}

static void host_init(struct kvc_host *host, int (*fill)(void *context, uint64_t cookie))
{
	*host = (struct kvc_host){
		.abi = KVC_PLUGIN_ABI,
		.descriptor_bytes = sizeof(struct kvc_descriptor),
		.size = sizeof(*host),
		.log_debug = host_log_debug,
		.reason = host_reason,
		.fill = fill,
	};
}

/* "io_uring,threads", or "" for the plugin's own order: which it may choose root by root. */
static char *join_engines(const struct kvc_settings *settings)
{
	const size_t count = settings->io_engines_explicit ? settings->io_engine_count : 0;
	size_t bytes = 1;
	char *text, *at;

	for (size_t i = 0; i < count; i++)
		bytes += strlen(settings->io_engines[i]) + 1;
	text = calloc(1, bytes);
	at = text;
	for (size_t i = 0; text && i < count; i++)
		at += snprintf(at, bytes - (size_t)(at - text), "%s%s", i ? "," : "",
			       settings->io_engines[i]);
	return text;
}

/* A plugin with an option table of its own: what the user gave is checked against it. */
static int own_settings(const struct kvc_settings *settings, const struct kvc_candidate *candidate,
			const struct kvc_module *module, struct kvc_backend_params *params)
{
	struct kvc_setting *checked;
	size_t count;
	char section[80];
	int rc;

	params->settings = candidate->settings;
	params->setting_count = candidate->setting_count;
	if (!module->ops.options)
		return 0;
	(void)snprintf(section, sizeof(section), "plugin.%s", candidate->plugin);
	rc = kvc_options_validate(module->ops.options, module->ops.option_count, section,
				  settings->strict, candidate->settings, candidate->setting_count,
				  &checked, &count);
	if (rc)
		return rc;
	params->settings = checked;
	params->setting_count = count;
	return 0;
}

static void own_settings_free(const struct kvc_candidate *candidate,
			      struct kvc_backend_params *params)
{
	if (params->settings && params->settings != candidate->settings)
		kvc_settings_list_free((struct kvc_setting *)(uintptr_t)params->settings,
				       params->setting_count);
	params->settings = NULL;
}

/* The plugin below a stacked one, and the settings of its section. */
static int find_lower(const struct kvc_settings *settings, const char *plugin, const char *name,
		      const struct kvc_module **out, struct kvc_backend_params *params)
{
	const struct kvc_candidate *section = kvc_settings_section(settings, name);
	int rc;

	if (!section)
		return kvc_fail(-EINVAL, "plugin.%s.lower: there is no plugin \"%s\"", plugin,
				name);
	if (!section->valid)
		return kvc_fail(-EINVAL, "plugin.%s: %s", section->plugin, section->reason);
	rc = kvc_module_load(section->plugin, settings->plugin_dir, out);
	if (rc)
		return rc;
	if ((*out)->ops.flags & KVC_PLUGIN_STACKS)
		return kvc_fail(-EINVAL, "plugin.%s.lower: \"%s\" is a stacked plugin itself",
				plugin, name);
	return own_settings(settings, section, *out, params);
}

static int open_handle(struct kvc_backend *backend, const struct kvc_backend_params *params)
{
	int rc;

	(void)kvc_backend_reason();
	rc = backend->module->ops.backend_open(params, &backend->handle);
	if (rc < 0) {
		const char *reason = kvc_backend_reason();

		return kvc_fail(rc, "%s", *reason ? reason : strerror(-rc));
	}
	return 0;
}

static int backend_open(const struct kvc_settings *settings, const struct kvc_candidate *candidate,
			const char *engines, struct kvc_backend *backend)
{
	struct kvc_backend_params params = {
		.size = sizeof(params),
		.host = &backend->host,
		.io_engines = engines,
		.io_engine_demanded = settings->io_engines_explicit,
		.direct_io = settings->use_direct_io,
		.file_mode = settings->file_mode,
		.folder_mode = settings->folder_mode,
	};
	struct kvc_backend_params lower_params = params;
	const struct kvc_candidate *lower = NULL;
	const struct kvc_module *lower_module = NULL;
	int rc = own_settings(settings, candidate, backend->module, &params);

	if (rc)
		return rc;
	if (backend->module->ops.flags & KVC_PLUGIN_STACKS) {
		const char *name = setting(params.settings, params.setting_count, "lower");

		lower_params.host = &backend->lower_host;
		rc = find_lower(settings, candidate->plugin, name, &lower_module, &lower_params);
		if (rc)
			goto free_settings;
		lower = kvc_settings_section(settings, name);
		backend->host.lower = &lower_module->ops;
		backend->host.lower_params = &lower_params;
	}
	rc = open_handle(backend, &params);
	/* The parameters were for backend_open() only. */
	backend->host.lower_params = NULL;
	if (lower)
		own_settings_free(lower, &lower_params);
free_settings:
	own_settings_free(candidate, &params);
	return rc;
}

int kvc_backend_open(const struct kvc_settings *settings, const struct kvc_candidate *candidate,
		     int (*fill)(void *context, uint64_t cookie), struct kvc_backend **out)
{
	struct kvc_backend *backend;
	char *engines;
	int rc;

	if (!candidate->valid)
		return kvc_fail(-EINVAL, "%s", candidate->reason);
	backend = calloc(1, sizeof(*backend));
	engines = join_engines(settings);
	if (!backend || !engines) {
		rc = -ENOMEM;
		goto fail;
	}
	host_init(&backend->host, fill);
	host_init(&backend->lower_host, fill);
	rc = kvc_module_load(candidate->plugin, settings->plugin_dir, &backend->module);
	if (!rc)
		rc = backend_open(settings, candidate, engines, backend);
	if (rc)
		goto fail;
	free(engines);
	*out = backend;
	return 0;

fail:
	free(engines);
	free(backend);
	return rc;
}

int kvc_backend_close(struct kvc_backend *backend)
{
	int rc;

	if (!backend)
		return 0;
	rc = backend->module->ops.backend_close(backend->handle);
	if (rc)
		return rc;
	free(backend);
	return 0;
}
