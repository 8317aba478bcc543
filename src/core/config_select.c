/* SPDX-License-Identifier: Apache-2.0 */
/* Which plugins may be taken, in which order, each with its settings. */
#include "core/config_internal.h"
#include "core/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A plugin's values while they are put together; reason is NULL as long as it is valid. */
struct draft {
	const char *plugin;
	const struct kvc_section *section; /* NULL: a plugin from plugin_dir */
	json_t *values;
	char *reason;
	bool touched; /* something of it was given */
};

static int set_reason(struct draft *draft, char *reason)
{
	if (!reason)
		return -ENOMEM;
	free(draft->reason);
	draft->reason = reason;
	return 0;
}

/* A flat key that this plugin does not have rules it out. */
static int reject_flat(struct kvc_effective *effective, struct draft *draft, const char *key)
{
	char quoted[KVC_QUOTED_BYTES];
	char *reason = NULL;

	if (!effective->strict && effective->selection != KVC_SELECTION_AUTO)
		return kvc_warn(effective, "ignored: %s is not an option of plugin.%s",
				kvc_quote(quoted, key), draft->plugin);
	if (asprintf(&reason, "the key %s at the top level is not one of its options",
		     kvc_quote(quoted, key)) < 0)
		reason = NULL;
	return set_reason(draft, reason);
}

static int add_flat_key(struct kvc_effective *effective, struct draft *draft, const char *key,
			const json_t *given)
{
	const struct kvc_option *option =
		draft->section ? kvc_section_option_find(draft->section, key) : NULL;
	json_t *value = NULL;
	int rc;

	if (draft->section && !option)
		return reject_flat(effective, draft, key);
	rc = option ? kvc_value_check(option, key, given, &value) :
		      kvc_free_value(key, given, &value);
	if (rc < 0)
		return rc;
	if (json_object_get(draft->values, key) &&
	    !json_equal(json_object_get(draft->values, key), value)) {
		json_decref(value);
		return kvc_fail(-EINVAL,
				"%s stands at the top level and, with another value, in "
				"plugin.%s; keep one of them",
				key, draft->plugin);
	}
	return json_object_set_new(draft->values, key, value) < 0 ? -ENOMEM : 0;
}

static int add_flat(struct kvc_effective *effective, struct draft *draft)
{
	const char *key;
	json_t *value;
	int rc = 0;

	json_object_foreach(effective->flat, key, value)
	{
		rc = add_flat_key(effective, draft, key, value);
		if (rc < 0 || draft->reason)
			break;
	}
	return rc;
}

/* Every option of the section, in its order, then what has no row. */
static int add_defaults(struct draft *draft)
{
	const struct kvc_option *option;
	json_t *all = json_object();
	json_t *value;
	int rc;

	if (!all)
		return -ENOMEM;
	for (size_t i = 0; draft->section && i < draft->section->option_count; i++) {
		option = &draft->section->options[i];
		value = json_incref(json_object_get(draft->values, option->name));
		rc = value ? 0 : kvc_value_default(option, &value);
		if (rc < 0 || json_object_set_new(all, option->name, value) < 0) {
			json_decref(all);
			return rc < 0 ? rc : -ENOMEM;
		}
	}
	if (json_object_update_missing(all, draft->values) < 0) {
		json_decref(all);
		return -ENOMEM;
	}
	(void)json_object_del(all, kvc_active_option.name);
	json_decref(draft->values);
	draft->values = all;
	return 0;
}

static int finish(struct draft *draft, json_t *list)
{
	json_t *entry;

	entry = json_pack("{s:s, s:b, s:b, s:b, s:s?, s:O}", "plugin", draft->plugin, "valid",
			  draft->reason == NULL, "table_known", draft->section != NULL, "touched",
			  draft->touched, "reason", draft->reason, "values", draft->values);
	return json_array_append_new(list, entry) < 0 ? -ENOMEM : 0;
}

static int judge(struct kvc_effective *effective, struct draft *draft, bool with_flat)
{
	const char *missing;
	int rc = with_flat ? add_flat(effective, draft) : 0;

	if (rc == 0 && !draft->reason)
		rc = kvc_section_check(draft->plugin, draft->values);
	if (rc < 0 || draft->reason)
		return rc;
	missing = kvc_section_missing(draft->plugin, draft->values);
	if (with_flat && json_is_false(json_object_get(draft->values, kvc_active_option.name)))
		missing = "active = false";
	return missing ? set_reason(draft, strdup(missing)) : 0;
}

static int add_candidate(struct kvc_effective *effective, const char *plugin, bool with_flat,
			 json_t *list)
{
	json_t *values = json_object_get(effective->sections, plugin);
	struct draft draft = { .plugin = plugin, .section = kvc_section_find(plugin) };
	int rc;

	draft.values = values ? json_copy(values) : json_object();
	rc = draft.values ? judge(effective, &draft, with_flat) : -ENOMEM;
	draft.touched = json_object_size(draft.values) > 0;
	if (rc == 0)
		rc = add_defaults(&draft);
	if (rc == 0)
		rc = finish(&draft, list);
	json_decref(draft.values);
	free(draft.reason);
	return rc;
}

static int select_active(struct kvc_effective *effective)
{
	const char *name;
	json_t *values;
	int rc = 0;

	effective->selection = KVC_SELECTION_CONFIG;
	json_object_foreach(effective->sections, name, values)
	{
		if (!json_is_true(json_object_get(values, kvc_active_option.name)))
			continue;
		rc = add_candidate(effective, name, true, effective->candidates);
		if (rc < 0)
			break;
	}
	return rc;
}

static int fail_plugin(const char *variable, const char *wanted)
{
	struct kvc_nearest nearest = { .wanted = wanted };
	char quoted[KVC_QUOTED_BYTES];

	for (size_t i = 0; i < kvc_section_count; i++)
		kvc_nearest_offer(&nearest, kvc_sections[i].title);
	kvc_nearest_offer(&nearest, "auto");
	return kvc_fail(-EINVAL, "%s: there is no plugin %s%s%s%s", variable,
			kvc_quote(quoted, wanted), nearest.word ? "; did you mean \"" : "",
			nearest.word ? nearest.word : "", nearest.word ? "\"?" : "");
}

static int select_env(struct kvc_effective *effective, const char *variable, const char *wanted)
{
	const char *plugin_dir = json_string_value(json_object_get(effective->top, "plugin_dir"));
	const struct kvc_section *section = kvc_section_find(wanted);
	char name[KVC_PATH_BYTES];

	(void)snprintf(name, sizeof(name), "%s", section ? section->name : wanted);
	for (char *p = name; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	if (!section && !kvc_plugin_file_exists(plugin_dir, name))
		return fail_plugin(variable, wanted);
	effective->selection = KVC_SELECTION_ENV;
	return add_candidate(effective, name, true, effective->candidates);
}

int kvc_effective_select(struct kvc_effective *effective)
{
	char variable[KVC_PATH_BYTES];
	const char *wanted;
	const char *name;
	json_t *values;
	int rc;

	for (size_t i = 0; i < kvc_section_count; i++) {
		rc = add_candidate(effective, kvc_sections[i].name, false, effective->stacked);
		if (rc < 0)
			return rc;
	}
	json_object_foreach(effective->sections, name, values)
	{
		if (kvc_section_find(name))
			continue;
		rc = add_candidate(effective, name, false, effective->stacked);
		if (rc < 0)
			return rc;
	}
	rc = select_active(effective);
	if (rc < 0 || json_array_size(effective->candidates) > 0)
		return rc;
	wanted = kvc_env_plugin(variable);
	if (wanted && strcasecmp(wanted, "auto") != 0)
		return select_env(effective, variable, wanted);
	effective->selection = KVC_SELECTION_AUTO;
	for (size_t i = 0; kvc_auto_order[i]; i++) {
		rc = add_candidate(effective, kvc_auto_order[i], true, effective->candidates);
		if (rc < 0)
			return rc;
	}
	return 0;
}
