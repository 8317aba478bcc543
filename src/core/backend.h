/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plugins: finding, checking and loading them, and a configured plugin (backend) with the host
 * services that it gets. Readers: core/store.c, core/root.c.
 */
#ifndef KVC_CORE_BACKEND_H
#define KVC_CORE_BACKEND_H

#include <kvcellar/plugin.h>

#include <stdbool.h>

struct kvc_candidate;
struct kvc_settings;

/* A loaded shared object. Loaded once per process and never unloaded: a plugin may have threads. */
struct kvc_module {
	struct kvc_plugin ops; /* no slot is NULL */
	char *path;
	struct kvc_module *next;
};

struct kvc_backend {
	const struct kvc_module *module;
	struct kvc_plugin_backend *handle;
	struct kvc_host host;
	struct kvc_host lower_host; /* what a stacked plugin's lower one is given */
};

/*
 * Loads plugin `name` from beside the library, else from plugin_dir (may be NULL).
 * -ENOENT: in neither; -EPERM: its owner or mode lets others change it; -ENOEXEC: not loadable, or
 * of another ABI. The text is in kvc_last_error().
 */
int kvc_module_load(const char *name, const char *plugin_dir, const struct kvc_module **out);

/* Calls fn for each plugin file in the folders that kvc_module_load() looks into. */
int kvc_module_scan(const char *plugin_dir, int (*fn)(void *context, const char *name),
		    void *context);

/*
 * Opens the candidate's plugin. fill is the host service of that name. On failure the reason is in
 * kvc_last_error().
 */
int kvc_backend_open(const struct kvc_settings *settings, const struct kvc_candidate *candidate,
		     int (*fill)(void *context, uint64_t cookie), struct kvc_backend **out);

/* -EBUSY: descriptors are outstanding; the backend stays open. */
int kvc_backend_close(struct kvc_backend *backend);

/* What the plugin said on this thread when it refused last, or "". Cleared by the call. */
const char *kvc_backend_reason(void);

#endif
