/* SPDX-License-Identifier: Apache-2.0 */
/* What a root says of itself. */
#include "core/describe.h"

#include "core/cleaner.h"
#include "core/config.h"
#include "core/packed.h"
#include "core/pin.h"
#include "core/root.h"
#include "core/store.h"
#include "core/text.h"
#include "core/usage.h"
#include "core/walk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

/* One fact of a store or root, for both forms. */
void kvc_describe_fact(struct kvc_text *text, bool json, bool *first, const char *name,
		       const char *value)
{
	if (json) {
		kvc_text_add(text, "%s\"%s\": ", *first ? "" : ", ", name);
		kvc_text_json(text, value);
	} else {
		kvc_text_add(text, "  %-14s %s\n", name, value);
	}
	*first = false;
}

/* "12.0 KiB": beside the bytes, for people. */
static const char *human(char out[32], uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1024;
	(void)snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return out;
}

/* What is counted, and how far that can be trusted before a recount. */
static void own_fact(struct kvc_text *text, bool json, bool *first, struct kvc_root *root)
{
	const char *how = "";
	char line[200], how_far[80], size[32];
	uint64_t bytes, objects;
	uint32_t done, total;

	kvc_usage_reload(root->usage);
	if (kvc_usage_is_new(root->usage)) {
		const bool loaded = kvc_usage_is_loaded(root->usage);

		if (root->read_only && !root->is_packed && !loaded) {
			kvc_describe_fact(text, json, first, "own",
					  "not counted by a read-only open");
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
	if (json)
		(void)snprintf(line, sizeof(line), "%" PRIu64 " bytes in %" PRIu64 " object%s%s",
			       bytes, objects, objects == 1 ? "" : "s", how);
	else
		(void)snprintf(line, sizeof(line),
			       "%" PRIu64 " bytes (%s) in %" PRIu64 " object%s%s", bytes,
			       human(size, bytes), objects, objects == 1 ? "" : "s", how);
	kvc_describe_fact(text, json, first, "own", line);
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
	char line[200], a[32], b[32];
	bool first = false;

	kvc_packed_health(packed, &h);
	(void)snprintf(line, sizeof(line),
		       "%" PRIu64 " of %" PRIu64 " bytes (%s of %s) in %u segment%s%s",
		       h.segment_bytes, h.capacity_bytes, human(a, h.segment_bytes),
		       human(b, h.capacity_bytes), h.segments, h.segments == 1 ? "" : "s",
		       h.segment_bytes > h.capacity_bytes ? " (being given back)" : "");
	kvc_describe_fact(text, false, &first, "allocated", line);
	(void)snprintf(line, sizeof(line), "%" PRIu64 " live, %" PRIu64 " free, in %u arena%s",
		       h.live_slots, h.free_slots, h.arenas, h.arenas == 1 ? "" : "s");
	kvc_describe_fact(text, false, &first, "slots", line);
	(void)snprintf(line, sizeof(line), "%" PRIu64 " entries, %.0f%% used", h.table_entries,
		       h.table_entries ? 100.0 * (double)h.live_slots / (double)h.table_entries :
					 0.0);
	kvc_describe_fact(text, false, &first, "table", line);
	(void)snprintf(line, sizeof(line), "%u; %u dead one%s with slots in quarantine",
		       h.processes, h.quarantined, h.quarantined == 1 ? "" : "s");
	kvc_describe_fact(text, false, &first, "processes", line);
	(void)snprintf(line, sizeof(line),
		       "%s%s; by this process: %" PRIu64 " evicted, %" PRIu64 " recovered",
		       h.broken ? "damaged: a page of it was lost" : "ok",
		       h.rebuilt ? ", made again at this open" : "", h.evicted, h.recovered);
	kvc_describe_fact(text, false, &first, "index", line);
}

/* Of a root of files that one might have thought packed: why it would not be, now. */
static void layout_fact(struct kvc_text *text, bool json, struct kvc_root *root)
{
	const struct kvc_settings *settings = root->store->settings;
	bool first = false;
	char why[512];

	if (root->is_packed || !root->attributes.local_path ||
	    settings->storage_layout != KVC_STORAGE_AUTO ||
	    kvc_root_packed_reason(root, why, sizeof(why)) != -ENOSPC)
		return;
	kvc_describe_fact(text, json, &first, "layout_reason", why);
}

/* What may be there, and what stays in any case. */
static void limit_facts(struct kvc_text *text, bool json, struct kvc_root *root)
{
	const unsigned pins = kvc_pin_count(root);
	const uint64_t pinned = pins ? kvc_pin_bytes(root) : 0;
	bool first = false;
	char line[160], a[32];

	if (json) {
		kvc_text_add(text,
			     ", \"capacity_bytes\": %" PRIu64 ", \"pins\": %u, "
			     "\"pinned_bytes\": %" PRIu64,
			     root->capacity_bytes, pins, pinned);
		return;
	}
	if (root->capacity_bytes) {
		(void)snprintf(line, sizeof(line), "%" PRIu64 " bytes (%s)", root->capacity_bytes,
			       human(a, root->capacity_bytes));
		kvc_describe_fact(text, json, &first, "capacity", line);
	}
	if (pins) {
		(void)snprintf(line, sizeof(line), "%u namespace%s of %" PRIu64 " bytes (%s)", pins,
			       pins == 1 ? "" : "s", pinned, human(a, pinned));
		kvc_describe_fact(text, json, &first, "pinned", line);
	}
}

void kvc_describe_root(struct kvc_text *text, bool json, struct kvc_root *root)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	struct kvc_attributes now = { .size = sizeof(now) };
	struct kvc_usage usage = { .size = sizeof(usage) };
	const struct kvc_plugin *ops = &root->backend->module->ops;
	bool is_untried;
	char line[512], a[32], b[32];
	bool first = true;

	/* What holds now, as far as it can be asked without waiting. */
	if (kvc_root_deadline_kind(root) == KVC_DEADLINE_STAGED ||
	    ops->root_query(root->handle, &now) < 0)
		now = root->attributes;
	is_untried = root->read_only && now.flags & KVC_ATTRIBUTE_DIRECT;
	kvc_describe_fact(text, json, &first, "path", root->location);
	kvc_describe_fact(text, json, &first, "uuid", root->uuid_text);
	kvc_describe_fact(text, json, &first, "state", kvc_root_state(root));
	kvc_describe_fact(text, json, &first, "storage_layout",
			  root->is_packed ? "packed" : "files");
	layout_fact(text, json, root);
	kvc_describe_fact(text, json, &first, "file_system", now.file_system);
	kvc_describe_fact(text, json, &first, "io_engine", now.io_engine);
	kvc_describe_fact(text, json, &first, "direct_io",
			  now.flags & KVC_ATTRIBUTE_DIRECT ? "yes" : "no, through the page cache");
	(void)snprintf(line, sizeof(line), "%s%u%s", is_untried ? "at most " : "", now.alignment,
		       is_untried ? ", not tried by a read-only open" : "");
	kvc_describe_fact(text, json, &first, "alignment", line);
	kvc_describe_fact(text, json, &first, "deadline", deadline_word(root));
	if (now.note[0])
		kvc_describe_fact(text, json, &first, "note", now.note);
	own_fact(text, json, &first, root);
	limit_facts(text, json, root);
	if (kvc_root_deadline_kind(root) != KVC_DEADLINE_STAGED &&
	    ops->usage(root->handle, &usage) == 0) {
		if (json)
			(void)snprintf(line, sizeof(line), "%" PRIu64 " of %" PRIu64 " bytes",
				       usage.free_bytes, usage.total_bytes);
		else
			(void)snprintf(line, sizeof(line),
				       "%" PRIu64 " of %" PRIu64 " bytes (%s of %s)",
				       usage.free_bytes, usage.total_bytes,
				       human(a, usage.free_bytes), human(b, usage.total_bytes));
		kvc_describe_fact(text, json, &first, "free", line);
	}
	if (packed && json)
		index_json(text, packed);
	else if (packed)
		index_text(text, packed);
}
