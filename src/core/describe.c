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

static const char *deadline_word(const struct kvc_root *root)
{
	switch (kvc_root_deadline_kind(root)) {
	case KVC_DEADLINE_HARD:
		return "hard";
	case KVC_DEADLINE_SOFT:
		return "soft";
	default:
		return "staged";
	}
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

/* One fact of a store or root, for both forms. */
static void fact(struct kvc_text *text, bool json, bool *first, const char *name, const char *value)
{
	if (json) {
		kvc_text_add(text, "%s\"%s\": ", *first ? "" : ", ", name);
		kvc_text_json(text, value);
	} else {
		kvc_text_add(text, "  %-14s %s\n", name, value);
	}
	*first = false;
}

/* What is counted, and how far that can be trusted before a recount. */
static void own_fact(struct kvc_text *text, bool json, bool *first, struct kvc_root *root)
{
	const char *how = "";
	char line[200], how_far[80];
	uint64_t bytes, objects;
	uint32_t done, total;

	kvc_usage_reload(root->usage);
	if (kvc_usage_is_new(root->usage)) {
		const bool loaded = kvc_usage_is_loaded(root->usage);

		if (root->read_only && !root->is_packed && !loaded) {
			fact(text, json, first, "own", "not counted by a read-only open");
			return;
		}
		how = loaded			       ? ", as counted by all processes so far" :
		      root->read_only		       ? ", not counting files beside the slots" :
		      kvc_usage_is_shared(root->usage) ? ", as counted by all processes so far" :
							 ", as counted by this process";
		if (kvc_files_progress(root, &done, &total)) {
			(void)snprintf(how_far, sizeof(how_far),
				       ", being counted: %u of %u folders", done, total);
			how = how_far;
		}
	}
	kvc_walk_usage(root, &bytes, &objects);
	(void)snprintf(line, sizeof(line), "%" PRIu64 " bytes in %" PRIu64 " object%s%s", bytes,
		       objects, objects == 1 ? "" : "s", how);
	fact(text, json, first, "own", line);
}

/* ---------------------------------------------------------------- the index of a packed root */

void kvc_index_figures(struct kvc_packed *packed, struct kvc_index_figure out[KVC_INDEX_FIGURES])
{
	struct kvc_packed_health health;

	kvc_packed_health(packed, &health);
	const struct kvc_index_figure figures[KVC_INDEX_FIGURES] = {
		{ "capacity_bytes", "Bytes that segments may take.", health.capacity_bytes },
		{ "segment_bytes", "Bytes that segments take, free slots too.",
		  health.segment_bytes },
		{ "live_bytes", "Bytes of the slots in use.", health.live_bytes },
		{ "live_slots", "Objects in slots.", health.live_slots },
		{ "free_slots", "Slots that are ready for use.", health.free_slots },
		{ "table_entries", "Entries that the hash tables have room for.",
		  health.table_entries },
		{ "arenas", "Namespaces and slot sizes.", health.arenas },
		{ "segments", "Segment files.", health.segments },
		{ "processes", "Process entries in use.", health.processes },
		{ "quarantined", "Dead processes whose slots wait.", health.quarantined },
		{ "evicted", "Objects evicted by this process.", health.evicted },
		{ "recovered", "Slots of dead processes freed by this process.", health.recovered },
		{ "broken", "1 when a page of the index was lost.", health.broken },
		{ "rebuilt", "1 when this open made the index again.", health.rebuilt },
	};

	memcpy(out, figures, sizeof(figures));
}

static void index_json(struct kvc_text *text, struct kvc_packed *packed)
{
	struct kvc_index_figure figures[KVC_INDEX_FIGURES];

	kvc_index_figures(packed, figures);
	kvc_text_add(text, ", \"index\": {");
	for (size_t i = 0; i < KVC_INDEX_FIGURES; i++)
		kvc_text_add(text, "%s\"%s\": %" PRIu64, i ? ", " : "", figures[i].name,
			     figures[i].value);
	kvc_text_add(text, "}");
}

static void index_text(struct kvc_text *text, struct kvc_packed *packed)
{
	struct kvc_packed_health h;
	bool first = false;
	char line[200];

	kvc_packed_health(packed, &h);
	(void)snprintf(line, sizeof(line), "%" PRIu64 " of %" PRIu64 " bytes in %u segment%s%s",
		       h.segment_bytes, h.capacity_bytes, h.segments, h.segments == 1 ? "" : "s",
		       h.segment_bytes > h.capacity_bytes ? " (being given back)" : "");
	fact(text, false, &first, "allocated", line);
	(void)snprintf(line, sizeof(line), "%" PRIu64 " live, %" PRIu64 " free, in %u arena%s",
		       h.live_slots, h.free_slots, h.arenas, h.arenas == 1 ? "" : "s");
	fact(text, false, &first, "slots", line);
	(void)snprintf(line, sizeof(line), "%" PRIu64 " entries, %.0f%% used", h.table_entries,
		       h.table_entries ? 100.0 * (double)h.live_slots / (double)h.table_entries :
					 0.0);
	fact(text, false, &first, "table", line);
	(void)snprintf(line, sizeof(line), "%u; %u dead one%s with slots in quarantine",
		       h.processes, h.quarantined, h.quarantined == 1 ? "" : "s");
	fact(text, false, &first, "processes", line);
	(void)snprintf(line, sizeof(line),
		       "%s%s; by this process: %" PRIu64 " evicted, %" PRIu64 " recovered",
		       h.broken ? "damaged: a page of it was lost" : "ok",
		       h.rebuilt ? ", made again at this open" : "", h.evicted, h.recovered);
	fact(text, false, &first, "index", line);
}

static void root_facts(struct kvc_text *text, bool json, struct kvc_root *root)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	struct kvc_attributes now = { .size = sizeof(now) };
	struct kvc_usage usage = { .size = sizeof(usage) };
	const struct kvc_plugin *ops = &root->backend->module->ops;
	char line[160];
	bool first = true;

	/* What holds now, as far as it can be asked without waiting. */
	if (kvc_root_deadline_kind(root) == KVC_DEADLINE_STAGED ||
	    ops->root_query(root->handle, &now) < 0)
		now = root->attributes;
	fact(text, json, &first, "path", root->location);
	fact(text, json, &first, "uuid", root->uuid_text);
	fact(text, json, &first, "state", kvc_root_state(root));
	fact(text, json, &first, "storage_layout", root->is_packed ? "packed" : "files");
	fact(text, json, &first, "file_system", now.file_system);
	fact(text, json, &first, "io_engine", now.io_engine);
	fact(text, json, &first, "direct_io",
	     now.flags & KVC_ATTRIBUTE_DIRECT ? "yes" : "no, through the page cache");
	(void)snprintf(line, sizeof(line), "%u", now.alignment);
	fact(text, json, &first, "alignment", line);
	fact(text, json, &first, "deadline", deadline_word(root));
	if (now.note[0])
		fact(text, json, &first, "note", now.note);
	own_fact(text, json, &first, root);
	if (kvc_root_deadline_kind(root) != KVC_DEADLINE_STAGED &&
	    ops->usage(root->handle, &usage) == 0) {
		(void)snprintf(line, sizeof(line), "%" PRIu64 " of %" PRIu64 " bytes",
			       usage.free_bytes, usage.total_bytes);
		fact(text, json, &first, "free", line);
	}
	if (packed && json)
		index_json(text, packed);
	else if (packed)
		index_text(text, packed);
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

	fact(text, json, &first, "version", kvc_version());
	fact(text, json, &first, "plugin", store->backend->module->ops.name);
	fact(text, json, &first, "chosen_by", selection_word(settings));
	fact(text, json, &first, "naming",
	     settings->naming == KVC_NAMING_NIXL ? "nixl" : "kvcellar");
	/* As text each root has its own line of it. */
	if (json)
		fact(text, json, &first, "storage_layout", layout_word(store));
	fact(text, json, &first, "verify", verify_word(settings));
	fact(text, json, &first, "identity",
	     settings->identity ? settings->identity :
	     json		? "unset" :
				  "unset in the configuration (an engine may give its own)");
	fact(text, json, &first, "tenant", settings->tenant ? settings->tenant : "unset");
	(void)snprintf(line, sizeof(line), "get %u ms, set %u ms, exists %u ms",
		       settings->get_timeout_ms, settings->set_timeout_ms,
		       settings->exists_timeout_ms);
	fact(text, json, &first, "timeouts", line);
	(void)snprintf(line, sizeof(line), "%s; %s",
		       settings->l3_cleaner_enabled ? "enabled" : "off", eviction_word(store));
	fact(text, json, &first, "cleaner", line);
	fact(text, json, &first, "stats_page", kvc_counters_path(store->counters));
	kvc_metrics_where(store, line, sizeof(line));
	if (json || line[0])
		fact(text, json, &first, "metrics", line);
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
		root_facts(&text, json, store->roots[r]);
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
