/* SPDX-License-Identifier: Apache-2.0 */
/* From what was given to what is in effect: known and unknown keys, environment, types. */
#include "core/config_internal.h"
#include "core/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kvc_warn(struct kvc_effective *effective, const char *format, ...)
{
	va_list args;
	json_t *text;

	va_start(args, format);
	text = json_vsprintf(format, args);
	va_end(args);
	if (!text) /* an origin of a caller's need not be UTF-8 */
		text = json_string("a warning that cannot be shown: not valid UTF-8");
	return json_array_append_new(effective->warnings, text) < 0 ? -ENOMEM : 0;
}

const char *kvc_origin_suffix(char buffer[KVC_PATH_BYTES], const json_t *origins, const char *path)
{
	const char *origin = json_string_value(json_object_get(origins, path));

	buffer[0] = '\0';
	if (origin)
		(void)snprintf(buffer, KVC_PATH_BYTES, " (%s)", origin);
	return buffer;
}

static bool is_plugin_name(const char *name)
{
	return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == strlen(name);
}

bool kvc_plugin_file_exists(const char *plugin_dir, const char *name)
{
	char path[4096];
	int length;

	if (!plugin_dir || !*plugin_dir || !is_plugin_name(name))
		return false;
	length = snprintf(path, sizeof(path), "%s/kvcellar-plugin-%s.so", plugin_dir, name);
	return length > 0 && (size_t)length < sizeof(path) && access(path, R_OK) == 0;
}

/* ---------------------------------------------------------------- top level */

/* One option: given, else from the environment, else its default. */
static int read_top_option(struct kvc_effective *effective, const json_t *tree,
			   const struct kvc_option *option)
{
	char variable[KVC_PATH_BYTES];
	const json_t *given = json_object_get(tree, option->name);
	const char *text;
	json_t *value = NULL, *from_env = NULL;
	int rc;

	if (!given || json_is_null(given)) {
		(void)json_object_del(effective->origins, option->name);
		text = kvc_env_option(option->name, option, variable);
		if (text) {
			rc = kvc_json_text(variable, text, &from_env);
			if (rc < 0)
				return rc;
			given = from_env;
			if (json_object_set_new(effective->origins, option->name,
						json_sprintf("environment %s", variable)) < 0) {
				json_decref(from_env);
				return -ENOMEM;
			}
		} else {
			given = NULL;
		}
	}
	rc = given ? kvc_value_check(option, from_env ? variable : option->name, given, &value) :
		     kvc_value_default(option, &value);
	json_decref(from_env);
	if (rc < 0)
		return rc;
	return json_object_set_new(effective->top, option->name, value) < 0 ? -ENOMEM : 0;
}

/* ---------------------------------------------------------------- unknown keys */

/* Error under strict, warning without; the text is the same. */
static int unknown(struct kvc_effective *effective, const char *path, const char *advice)
{
	char suffix[KVC_PATH_BYTES], quoted[KVC_QUOTED_BYTES];

	kvc_origin_suffix(suffix, effective->origins, path);
	kvc_quote(quoted, path);
	if (!effective->strict)
		return kvc_warn(effective, "ignored: unknown key %s%s%s", quoted, suffix, advice);
	return kvc_fail(-EINVAL, "unknown key %s%s%s", quoted, suffix, advice);
}

static int unknown_nearest(struct kvc_effective *effective, const char *path,
			   const struct kvc_nearest *nearest)
{
	char advice[KVC_PATH_BYTES];

	if (nearest->word)
		(void)snprintf(advice, sizeof(advice), "; did you mean \"%s\"?", nearest->word);
	else
		(void)snprintf(advice, sizeof(advice),
			       "; `kvcellar config options` lists all keys");
	return unknown(effective, path, advice);
}

/* The section of another plugin that has this option; NULL when none has. */
static const struct kvc_section *owner_of(const char *name)
{
	for (size_t i = 0; i < kvc_section_count; i++)
		if (kvc_option_find(kvc_sections[i].options, kvc_sections[i].option_count, name))
			return &kvc_sections[i];
	return NULL;
}

static int unknown_in_section(struct kvc_effective *effective, const struct kvc_section *section,
			      const char *key)
{
	struct kvc_nearest nearest = { .wanted = key };
	const struct kvc_section *owner = owner_of(key);
	char path[KVC_PATH_BYTES], advice[KVC_PATH_BYTES];

	(void)snprintf(path, sizeof(path), "plugin.%s.%s", section->name, key);
	if (kvc_top_option_find(key))
		return unknown(effective, path,
			       "; it is a key of the top level: move it to the top level");
	if (owner) {
		(void)snprintf(advice, sizeof(advice), "; it is an option of plugin.%s",
			       owner->name);
		return unknown(effective, path, advice);
	}
	for (size_t i = 0; i < section->option_count; i++)
		kvc_nearest_offer(&nearest, section->options[i].name);
	kvc_nearest_offer(&nearest, kvc_active_option.name);
	return unknown_nearest(effective, path, &nearest);
}

static int unknown_section(struct kvc_effective *effective, const char *name)
{
	struct kvc_nearest nearest = { .wanted = name };
	char path[KVC_PATH_BYTES];

	(void)snprintf(path, sizeof(path), "plugin.%s", name);
	for (size_t i = 0; i < kvc_section_count; i++)
		kvc_nearest_offer(&nearest, kvc_sections[i].name);
	return unknown_nearest(effective, path, &nearest);
}

static int unknown_top(struct kvc_effective *effective, const char *key, const json_t *value)
{
	struct kvc_nearest nearest = { .wanted = key };
	const struct kvc_section *section = kvc_section_find(key);
	char advice[KVC_PATH_BYTES];

	if (section && json_is_object(value)) {
		(void)snprintf(advice, sizeof(advice), "; did you mean the section plugin.%s?",
			       section->name);
		return unknown(effective, key, advice);
	}
	kvc_nearest_offer(&nearest, "plugin");
	for (size_t i = 0; i < kvc_top_option_count; i++)
		kvc_nearest_offer(&nearest, kvc_top_options[i].name);
	for (size_t i = 0; i < kvc_section_count; i++)
		for (size_t j = 0; j < kvc_sections[i].option_count; j++)
			kvc_nearest_offer(&nearest, kvc_sections[i].options[j].name);
	return unknown_nearest(effective, key, &nearest);
}

/* ---------------------------------------------------------------- sections */

int kvc_free_value(const char *path, const json_t *value, json_t **out)
{
	static const struct kvc_option list = { .type = "list",
						.range = "",
						.unit = "",
						.default_value = "",
						.flags = KVC_OPTION_SECRET };
	const char *text = json_string_value(value);

	if (json_is_object(value))
		return kvc_fail(-EINVAL, "%s: expected a value, found a table", path);
	if (json_is_array(value))
		return kvc_value_check(&list, path, value, out);
	if (text && strlen(text) != json_string_length(value))
		return kvc_fail(-EINVAL, "%s: a NUL byte inside the text", path);
	*out = json_deep_copy(value);
	return *out ? 0 : -ENOMEM;
}

/* plugin.nixl.params: handed on as "params.<key>". */
static int read_free_table(json_t *values, const char *section, const char *table,
			   const json_t *given)
{
	char path[KVC_PATH_BYTES];
	const char *key;
	json_t *value, *copy;
	int rc;

	if (!json_is_object(given))
		return kvc_fail(-EINVAL, "plugin.%s.%s: expected a table", section, table);
	json_object_foreach((json_t *)(uintptr_t)given, key, value)
	{
		(void)snprintf(path, sizeof(path), "plugin.%s.%s.%s", section, table, key);
		rc = kvc_free_value(path, value, &copy);
		if (rc < 0)
			return rc;
		(void)snprintf(path, sizeof(path), "%s.%s", table, key);
		if (json_object_set_new(values, path, copy) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int read_section_key(struct kvc_effective *effective, const struct kvc_section *section,
			    const char *key, const json_t *given, json_t *values)
{
	const struct kvc_option *option = kvc_section_option_find(section, key);
	char path[KVC_PATH_BYTES], shown[2 * KVC_PATH_BYTES], suffix[KVC_PATH_BYTES];
	json_t *value;
	int rc;

	if (json_is_null(given))
		return 0;
	if (section->free_table && strcmp(key, section->free_table) == 0)
		return read_free_table(values, section->name, key, given);
	if (!option)
		return unknown_in_section(effective, section, key);
	(void)snprintf(path, sizeof(path), "plugin.%s.%s", section->name, key);
	(void)snprintf(shown, sizeof(shown), "%s%s", path,
		       kvc_origin_suffix(suffix, effective->origins, path));
	rc = kvc_value_check(option, shown, given, &value);
	if (rc < 0)
		return rc;
	return json_object_set_new(values, key, value) < 0 ? -ENOMEM : 0;
}

static int read_foreign_section(const char *name, const json_t *given, json_t *values)
{
	char path[KVC_PATH_BYTES];
	const char *key;
	json_t *value, *copy;
	int rc;

	json_object_foreach((json_t *)(uintptr_t)given, key, value)
	{
		if (json_is_null(value))
			continue;
		(void)snprintf(path, sizeof(path), "plugin.%s.%s", name, key);
		rc = strcmp(key, kvc_active_option.name) == 0 ?
			     kvc_value_check(&kvc_active_option, path, value, &copy) :
			     kvc_free_value(path, value, &copy);
		if (rc < 0)
			return rc;
		if (json_object_set_new(values, key, copy) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int read_section(struct kvc_effective *effective, const char *name, const json_t *given)
{
	const struct kvc_section *section = kvc_section_find(name);
	const char *plugin_dir = json_string_value(json_object_get(effective->top, "plugin_dir"));
	const char *key;
	json_t *value, *values;
	int rc = 0;

	if (!section && !kvc_plugin_file_exists(plugin_dir, name))
		return unknown_section(effective, name);
	if (!json_is_object(given) && !json_is_null(given))
		return kvc_fail(-EINVAL, "plugin.%s: expected a table", name);
	values = json_object();
	if (!values || json_object_set_new(effective->sections, name, values) < 0)
		return -ENOMEM;
	if (json_is_null(given))
		return 0;
	if (!section)
		return read_foreign_section(name, given, values);
	json_object_foreach((json_t *)(uintptr_t)given, key, value)
	{
		rc = read_section_key(effective, section, key, value, values);
		if (rc < 0)
			break;
	}
	return rc;
}

static int read_sections(struct kvc_effective *effective, const json_t *given)
{
	const char *name;
	json_t *value;
	int rc = 0;

	if (!given || json_is_null(given))
		return 0;
	if (!json_is_object(given))
		return kvc_fail(-EINVAL, "plugin: expected a table of sections; to choose a plugin "
					 "write active = true into [plugin.<name>]");
	json_object_foreach((json_t *)(uintptr_t)given, name, value)
	{
		rc = read_section(effective, name, value);
		if (rc < 0)
			break;
	}
	return rc;
}

/* Adds what the environment says about an option that was not given. */
static int read_env_option(struct kvc_effective *effective, const struct kvc_section *section,
			   const struct kvc_option *option)
{
	json_t *values = json_object_get(effective->sections, section->name);
	char path[KVC_PATH_BYTES], variable[KVC_PATH_BYTES];
	const char *text;
	json_t *given, *value;
	int rc;

	(void)snprintf(path, sizeof(path), "plugin.%s.%s", section->name, option->name);
	if (json_object_get(values, option->name) || json_object_get(effective->flat, option->name))
		return 0;
	text = kvc_env_option(path, option, variable);
	if (!text)
		return 0;
	if (!values) {
		values = json_object();
		if (!values || json_object_set_new(effective->sections, section->name, values) < 0)
			return -ENOMEM;
	}
	rc = kvc_json_text(variable, text, &given);
	if (rc < 0)
		return rc;
	rc = kvc_value_check(option, variable, given, &value);
	json_decref(given);
	if (rc < 0)
		return rc;
	if (json_object_set_new(values, option->name, value) < 0 ||
	    json_object_set_new(effective->origins, path,
				json_sprintf("environment %s", variable)) < 0)
		return -ENOMEM;
	return 0;
}

static int read_environment(struct kvc_effective *effective)
{
	int rc = 0;

	for (size_t i = 0; i < kvc_section_count && rc == 0; i++) {
		rc = read_env_option(effective, &kvc_sections[i], &kvc_active_option);
		for (size_t j = 0; j < kvc_sections[i].option_count && rc == 0; j++)
			rc = read_env_option(effective, &kvc_sections[i],
					     &kvc_sections[i].options[j]);
	}
	return rc == 0 ? kvc_env_warn_unknown(effective) : rc;
}

/* SGLang takes no text for a number, nor a number for its boolean; the adapter's own key may be
 * either. */
static bool is_of_type(const struct kvc_option *option, const json_t *value)
{
	if (strcmp(option->name, "switch_interval_us") == 0 || strcmp(option->type, "string") == 0)
		return true;
	if (strcmp(option->name, "hicache_storage_pass_prefix_keys") == 0)
		return json_is_boolean(value);
	return !json_is_string(value);
}

/* A key of SGLang's or of its adapter. One that is not known is told, not refused: SGLang may have
 * got it since. */
static int read_engine_key(struct kvc_effective *effective, const char *key, const json_t *value)
{
	const struct kvc_option *option =
		kvc_option_find(kvc_engine_options, kvc_engine_option_count, key);
	char suffix[KVC_PATH_BYTES], shown[2 * KVC_PATH_BYTES], quoted[KVC_QUOTED_BYTES];
	struct kvc_nearest nearest = { .wanted = key };
	json_t *checked;
	int rc;

	kvc_origin_suffix(suffix, effective->origins, key);
	if (option) {
		(void)snprintf(shown, sizeof(shown), "%s%s", key, suffix);
		/* A single key (-s) has no other form than text. */
		if (!is_of_type(option, value) && !strstr(suffix, "kvc_config_set"))
			return kvc_fail(-EINVAL, "%s: SGLang needs the type %s here", shown,
					strcmp(option->type, "float") == 0 ? "number" :
									     option->type);
		rc = kvc_value_check(option, shown, value, &checked);
		if (rc < 0)
			return rc;
		return json_object_set_new(effective->top, key, checked) < 0 ? -ENOMEM : 0;
	}
	if (strcmp(key, "allocator") == 0)
		return 0;
	for (size_t i = 0; i < kvc_engine_option_count; i++)
		kvc_nearest_offer(&nearest, kvc_engine_options[i].name);
	return kvc_warn(effective, "%s%s is no key of SGLang's that is known here%s%s%s",
			kvc_quote(quoted, key), suffix, nearest.word ? "; did you mean " : "",
			nearest.word ? nearest.word : "", nearest.word ? "?" : "");
}

/* A key of the top level that no top-level option has: a flat plugin option, one that belongs to
 * SGLang, or unknown. Beside a plugin from plugin_dir, whose table is not known here, it is
 * flat. */
static int read_other_key(struct kvc_effective *effective, const char *key, const json_t *value)
{
	const char *plugin_dir = json_string_value(json_object_get(effective->top, "plugin_dir"));
	char variable[KVC_PATH_BYTES];
	const char *wanted;
	char name[KVC_PATH_BYTES];

	if (json_is_null(value))
		return 0;
	if (kvc_key_is_tolerated(key))
		return read_engine_key(effective, key, value);
	if (!owner_of(key) && strcmp(key, kvc_active_option.name) != 0) {
		wanted = kvc_env_plugin(variable);
		(void)snprintf(name, sizeof(name), "%s", wanted ? wanted : "");
		for (char *p = name; *p; p++)
			*p = (char)tolower((unsigned char)*p);
		if (kvc_section_find(name) || !kvc_plugin_file_exists(plugin_dir, name))
			return unknown_top(effective, key, value);
	}
	return json_object_set(effective->flat, key, (json_t *)(uintptr_t)value) < 0 ? -ENOMEM : 0;
}

int kvc_effective_read(struct kvc_effective *effective, const struct kvc_config *config)
{
	const json_t *tree = config ? config->tree : NULL;
	const char *key;
	json_t *value;
	int rc = 0;

	for (size_t i = 0; i < kvc_top_option_count && rc == 0; i++)
		rc = read_top_option(effective, tree, &kvc_top_options[i]);
	if (rc < 0)
		return rc;
	effective->strict = json_is_true(json_object_get(effective->top, "strict"));
	json_object_foreach((json_t *)(uintptr_t)tree, key, value)
	{
		if (kvc_top_option_find(key))
			continue;
		rc = strcmp(key, "plugin") == 0 ? read_sections(effective, value) :
						  read_other_key(effective, key, value);
		if (rc < 0)
			return rc;
	}
	return read_environment(effective);
}

void kvc_effective_release(struct kvc_effective *effective)
{
	json_decref(effective->top);
	json_decref(effective->sections);
	json_decref(effective->flat);
	json_decref(effective->origins);
	json_decref(effective->warnings);
	json_decref(effective->candidates);
	json_decref(effective->stacked);
	memset(effective, 0, sizeof(*effective));
}

int kvc_effective_build(const struct kvc_config *config, struct kvc_effective *effective)
{
	int rc;

	memset(effective, 0, sizeof(*effective));
	effective->top = json_object();
	effective->sections = json_object();
	effective->flat = json_object();
	effective->origins = config ? json_deep_copy(config->origins) : json_object();
	effective->warnings = json_array();
	effective->candidates = json_array();
	effective->stacked = json_array();
	if (!effective->top || !effective->sections || !effective->flat || !effective->origins ||
	    !effective->warnings || !effective->candidates || !effective->stacked)
		rc = -ENOMEM;
	else
		rc = kvc_effective_read(effective, config);
	if (rc == 0)
		rc = kvc_effective_check(effective);
	if (rc == 0)
		rc = kvc_effective_select(effective);
	if (rc < 0)
		kvc_effective_release(effective);
	return rc;
}
