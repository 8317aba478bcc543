/* SPDX-License-Identifier: Apache-2.0 */
#include "core/describe.h"

#include "core/cleaner.h"
#include "core/config.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/packed.h"
#include "core/sized.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/text.h"
#include "core/usage.h"
#include "core/walk.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kvc_root_state(const struct kvc_root *root)
{
	if (atomic_load_explicit(&root->suspect, memory_order_relaxed))
		return "suspect";
	if (root->read_only && !root->opened_read_only)
		return "read-only";
	if (root->writes_refused)
		return "reads only";
	return root->opened_read_only ? "ok (opened read-only)" : "ok";
}

int kvc_root_check_writable(const struct kvc_root *root)
{
	if (!root->read_only && !root->writes_refused)
		return 0;
	return kvc_fail(-EROFS, "%s: %s", root->location,
			root->read_only && root->opened_read_only ? "opened read-only" :
			root->read_only ? "read-only: its file system is mounted so" :
					  "this version only reads what is stored there");
}

static const char *selection_word(const struct kvc_settings *settings)
{
	switch (settings->selection) {
	case KVC_SELECTION_CONFIG:
		return "configuration";
	case KVC_SELECTION_ENV:
		return "environment";
	default:
		return "auto";
	}
}

static const char *verify_word(const struct kvc_settings *settings)
{
	static const char *const words[] = {
		[KVC_VERIFY_REQUIRE] = "require",
		[KVC_VERIFY_IF_PRESENT] = "if-present",
		[KVC_VERIFY_OFF] = "off",
	};

	return words[settings->verify];
}

/* Of all roots, or "mixed". */
static const char *layout_word(const struct kvc_store *store)
{
	size_t packed = 0;

	for (size_t r = 0; r < store->root_count; r++)
		packed += store->roots[r]->is_packed;
	return packed == 0 ? "files" : packed == store->root_count ? "packed" : "mixed";
}

/* What makes room in roots of these layouts. */
static const char *eviction_word(const struct kvc_store *store)
{
	const char *layout = layout_word(store);

	if (strcmp(layout, "packed") == 0)
		return "packed roots evict by capacity";
	if (!store->settings->l3_cleaner_enabled)
		return strcmp(layout, "files") == 0 ? "nothing is removed from roots of files" :
						      "packed roots evict by capacity, nothing is "
						      "removed from roots of files";
	return strcmp(layout, "files") == 0 ? "roots of files are cleaned" :
					      "packed roots evict by capacity, roots of files are "
					      "cleaned";
}

static void store_facts(struct kvc_text *text, bool json, struct kvc_store *store)
{
	const struct kvc_settings *settings = store->settings;
	bool first = true;
	char line[160];

	kvc_describe_fact(text, json, &first, "version", kvc_version());
	kvc_describe_fact(text, json, &first, "plugin", store->backend->module->ops.name);
	kvc_describe_fact(text, json, &first, "chosen_by", selection_word(settings));
	kvc_describe_fact(text, json, &first, "naming",
			  settings->naming == KVC_NAMING_NIXL ? "nixl" : "kvcellar");
	/* As text each root has its own line of it. */
	if (json)
		kvc_describe_fact(text, json, &first, "storage_layout", layout_word(store));
	kvc_describe_fact(text, json, &first, "verify", verify_word(settings));
	kvc_describe_fact(text, json, &first, "identity",
			  settings->identity ? settings->identity :
			  json		     ? "unset" :
				 "unset in the configuration (an engine may give its own)");
	kvc_describe_fact(text, json, &first, "tenant",
			  settings->tenant ? settings->tenant : "unset");
	(void)snprintf(line, sizeof(line), "get %u ms, set %u ms, exists %u ms",
		       settings->get_timeout_ms, settings->set_timeout_ms,
		       settings->exists_timeout_ms);
	kvc_describe_fact(text, json, &first, "timeouts", line);
	(void)snprintf(line, sizeof(line), "%s; %s",
		       settings->l3_cleaner_enabled ? "enabled" : "off", eviction_word(store));
	kvc_describe_fact(text, json, &first, "cleaner", line);
	kvc_describe_fact(text, json, &first, "stats_page", kvc_counters_path(store->counters));
	kvc_metrics_where(store, line, sizeof(line));
	if (json || line[0])
		kvc_describe_fact(text, json, &first, "metrics", line);
}

/* The lines of "plugin: reason". */
static void passed_over(struct kvc_text *text, bool json, const struct kvc_store *store)
{
	const char *at = store->passed_over;
	bool first = true;

	while (at && *at) {
		const char *end = strchrnul(at, '\n');
		char line[1024];

		(void)snprintf(line, sizeof(line), "%.*s", (int)(end - at), at);
		if (json) {
			kvc_text_add(text, "%s", first ? "" : ", ");
			kvc_text_json(text, line);
		} else {
			kvc_text_add(text, "  %-14s %s\n", "passed over", line);
		}
		first = false;
		at = *end ? end + 1 : end;
	}
}

int kvc_store_describe(struct kvc_store *store, int format, char *buffer, size_t bytes)
{
	const bool json = format == KVC_FORMAT_JSON;
	struct kvc_text text;

	if (!store || (!buffer && bytes > 0) ||
	    (format != KVC_FORMAT_TEXT && format != KVC_FORMAT_JSON))
		return kvc_fail(-EINVAL,
				"kvc_store_describe: store or buffer is NULL, or no such format");
	kvc_store_enter(store);
	kvc_text_init(&text, buffer, bytes);
	kvc_text_add(&text, json ? "{\"store\": {" : "store\n");
	store_facts(&text, json, store);
	kvc_text_add(&text, json ? "}, \"passed_over\": [" : "");
	passed_over(&text, json, store);
	kvc_text_add(&text, json ? "], \"roots\": [" : "");
	for (size_t r = 0; r < store->root_count; r++) {
		kvc_text_add(&text, json ? (r ? ", {" : "{") : "root %zu\n", r);
		kvc_describe_root(&text, json, store->roots[r]);
		kvc_text_add(&text, json ? "}" : "");
	}
	kvc_text_add(&text, json ? "]}\n" : "");
	kvc_store_leave(store);
	return kvc_text_finish(&text);
}

/* ---------------------------------------------------------------- usage */

/* What one root holds, and its device has. A device that stalled once is not asked again. */
static void fill_usage(struct kvc_root *root, struct kvc_root_usage *out)
{
	struct kvc_usage usage = { .size = sizeof(usage) };

	out->path = root->location;
	(void)snprintf(out->uuid, sizeof(out->uuid), "%s", root->uuid_text);
	(void)snprintf(out->state, sizeof(out->state), "%s", kvc_root_state(root));
	kvc_walk_usage(root, &out->own_bytes, &out->own_objects);
	if (!atomic_load_explicit(&root->suspect, memory_order_relaxed))
		(void)root->backend->module->ops.usage(root->handle, &usage);
	out->total_bytes = usage.total_bytes;
	out->free_bytes = usage.free_bytes;
}

static int check_usage_array(struct kvc_root_usage *out, size_t count, size_t stride)
{
	int rc = 0;

	for (size_t i = 0; i < count && !rc; i++) {
		struct kvc_root_usage *one = (struct kvc_root_usage *)((char *)out + i * stride);

		if (one->size != stride)
			return kvc_fail(-EINVAL,
					"kvc_store_usage: out[%zu].size differs from the first's",
					i);
		rc = kvc_struct_output(one, stride, sizeof(*one), "struct kvc_root_usage");
	}
	return rc;
}

int kvc_store_usage(struct kvc_store *store, int recount, struct kvc_root_usage *out, size_t count)
{
	const unsigned mark = kvc_fail_mark();
	size_t stride;
	int rc;

	if (!store || (count > 0 && !out))
		return kvc_fail(-EINVAL, "kvc_store_usage: store or out is NULL");
	count = count < store->root_count ? count : store->root_count;
	stride = count ? out->size : 0;
	rc = check_usage_array(out, count, stride);
	if (rc)
		return rc;
	kvc_store_enter(store);
	for (size_t r = 0; r < store->root_count; r++)
		kvc_usage_reload(store->roots[r]->usage);
	for (size_t r = 0; r < store->root_count && !rc; r++)
		if (recount || kvc_usage_is_new(store->roots[r]->usage))
			rc = kvc_walk_recount(store->roots[r]);
	for (size_t r = 0; r < count && !rc; r++)
		fill_usage(store->roots[r], (struct kvc_root_usage *)((char *)out + r * stride));
	kvc_store_leave(store);
	return rc ? kvc_fail_since(mark, rc, "counting what the roots hold") :
		    (int)store->root_count;
}

/* ---------------------------------------------------------------- plugins */

struct plugin_list {
	const struct kvc_settings *settings;
	kvc_plugin_fn fn;
	void *context;
	char seen[64][64];
	size_t seen_count;
};

static int list_plugin(void *context, const char *name)
{
	struct plugin_list *list = context;
	const struct kvc_module *module = NULL;
	struct kvc_plugin_info info = { .size = sizeof(info), .name = name };

	for (size_t i = 0; i < list->seen_count; i++)
		if (strcmp(list->seen[i], name) == 0)
			return 0;
	if (list->seen_count < sizeof(list->seen) / sizeof(list->seen[0]))
		(void)snprintf(list->seen[list->seen_count++], sizeof(list->seen[0]), "%s", name);
	info.status = kvc_module_load(name, list->settings->plugin_dir, &module);
	info.version = module ? module->ops.version : "";
	info.summary = module ? module->ops.summary : "";
	info.path = module ? module->path : "";
	info.reason = info.status ? kvc_last_error() : "";
	return list->fn(list->context, &info);
}

int kvc_plugin_list(const struct kvc_config *config, kvc_plugin_fn fn, void *context)
{
	struct kvc_settings *settings;
	const unsigned mark = kvc_fail_mark();
	struct plugin_list *list;
	int rc;

	if (!fn)
		return kvc_fail(-EINVAL, "kvc_plugin_list: fn is NULL");
	rc = kvc_config_resolve(config, &settings);
	if (rc)
		return rc;
	list = calloc(1, sizeof(*list));
	if (!list) {
		kvc_settings_free(settings);
		return kvc_fail(-ENOMEM, "no memory for a list of plugins");
	}
	*list = (struct plugin_list){ .settings = settings, .fn = fn, .context = context };
	for (size_t i = 0; i < settings->section_count && !rc; i++)
		rc = list_plugin(list, settings->sections[i].plugin);
	if (!rc)
		rc = kvc_module_scan(settings->plugin_dir, list_plugin, list);
	rc = kvc_fail_since(mark, rc, "listing plugins%s%s", *settings->plugin_dir ? " of " : "",
			    settings->plugin_dir);
	free(list);
	kvc_settings_free(settings);
	return rc;
}
