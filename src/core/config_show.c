/* SPDX-License-Identifier: Apache-2.0 */
/* The effective configuration as text, without its secrets; and kvc_config_describe(). */
#include "core/config_internal.h"
#include "core/config_text.h"
#include "core/log.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN "***"

void kvc_dump_json(struct kvc_dump *text, const json_t *value)
{
	char *dump = value ? json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;

	if (!dump) {
		text->failed = true;
		return;
	}
	kvc_dump_add(text, "%s\n", dump);
	free(dump);
}

static void toml_text(struct kvc_dump *text, const char *value)
{
	kvc_dump_add(text, "\"");
	for (; *value; value++) {
		unsigned char c = (unsigned char)*value;

		if (c == '"' || c == '\\')
			kvc_dump_add(text, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			kvc_dump_add(text, "\\u%04x", c);
		else
			kvc_dump_add(text, "%c", c);
	}
	kvc_dump_add(text, "\"");
}

void kvc_toml_value(struct kvc_dump *text, const json_t *value)
{
	json_t *element;
	char *printed;
	size_t i;

	if (json_is_array(value)) {
		kvc_dump_add(text, "[");
		json_array_foreach(value, i, element)
		{
			kvc_dump_add(text, "%s", i ? ", " : "");
			kvc_toml_value(text, element);
		}
		kvc_dump_add(text, "]");
		return;
	}
	if (json_is_string(value)) {
		toml_text(text, json_string_value(value));
		return;
	}
	printed = kvc_value_text(value);
	if (!printed)
		text->failed = true;
	else
		kvc_dump_add(text, "%s%s", printed,
			     json_is_real(value) && !strpbrk(printed, ".e") ? ".0" : "");
	free(printed);
}

/* A URL without login, query and fragment: those can be credentials. */
static json_t *plain_url(const char *url)
{
	const char *host = strstr(url, "://");
	size_t bytes, before;
	const char *at;

	host = host ? host + 3 : url;
	before = (size_t)(host - url);
	bytes = strcspn(host, "?#");
	at = memrchr(host, '@', strcspn(host, "/?#"));
	if (!at && !host[bytes])
		return json_string(url);
	if (at) {
		bytes -= (size_t)(at + 1 - host);
		host = at + 1;
	}
	return json_sprintf("%.*s%s%.*s%s", (int)before, url, at ? HIDDEN "@" : "", (int)bytes,
			    host, host[bytes] ? "?" HIDDEN : "");
}

/* What may be shown of a value; a new reference. Without a row (a plugin of others, a free table)
 * it is unknown whether it is a secret, so it is taken for one. */
static json_t *shown_value(const struct kvc_option *option, const json_t *value)
{
	const char *text = json_string_value(value);

	if (!option || option->flags & KVC_OPTION_SECRET)
		return json_string(text && !*text ? "" : HIDDEN);
	if (option->flags & KVC_OPTION_URL && text)
		return plain_url(text);
	if (option->flags & KVC_OPTION_BOOL_STRING && json_is_boolean(value))
		return json_string(json_is_true(value) ? "true" : "false");
	return json_incref((json_t *)(uintptr_t)value);
}

static const struct kvc_option *row_of(const char *plugin, const char *name)
{
	const struct kvc_section *section = plugin ? kvc_section_find(plugin) : NULL;

	if (!plugin) {
		const struct kvc_option *option = kvc_top_option_find(name);

		return option ? option :
				kvc_option_find(kvc_engine_options, kvc_engine_option_count, name);
	}
	return section ? kvc_section_option_find(section, name) : NULL;
}

/* Where a value came from. A flat key stands under its bare name. */
static const char *origin_of(const struct kvc_effective *effective, const char *plugin,
			     const char *name)
{
	char path[KVC_PATH_BYTES];
	const char *origin;

	(void)snprintf(path, sizeof(path), "%s%s%s%s", plugin ? "plugin." : "",
		       plugin ? plugin : "", plugin ? "." : "", name);
	origin = json_string_value(json_object_get(effective->origins, path));
	if (!origin && plugin && json_object_get(effective->flat, name))
		origin = json_string_value(json_object_get(effective->origins, name));
	return origin ? origin : "default";
}

/* The values of a plugin that has a place in this configuration, else NULL. */
static const json_t *shown_section(const struct kvc_effective *effective, const json_t *entry)
{
	const char *plugin = json_string_value(json_object_get(entry, "plugin"));
	json_t *candidate;
	size_t i;

	json_array_foreach(
		effective->candidates, i,
		candidate) if (strcmp(json_string_value(json_object_get(candidate, "plugin")),
				      plugin) == 0) return json_object_get(candidate, "values");
	return json_object_get(effective->sections, plugin) ? json_object_get(entry, "values") :
							      NULL;
}

static const char *selection_name(const struct kvc_effective *effective)
{
	static const char *const names[] = { "config", "environment", "auto" };

	return names[effective->selection];
}

/* ---------------------------------------------------------------- text */

static void show_value(struct kvc_dump *text, const struct kvc_effective *effective,
		       const char *plugin, const char *name, const json_t *value)
{
	json_t *shown = shown_value(row_of(plugin, name), value);
	size_t start = text->bytes;

	kvc_dump_add(text, "%s%s = ", json_is_null(value) ? "# " : "", name);
	if (!shown)
		text->failed = true;
	else if (json_is_null(shown))
		kvc_dump_add(text, "(not set)");
	else
		kvc_toml_value(text, shown);
	kvc_dump_add(text, "%*s # %s\n",
		     text->bytes - start < 48 ? (int)(48 - (text->bytes - start)) : 0, "",
		     origin_of(effective, plugin, name));
	json_decref(shown);
}

static void show_selection(struct kvc_dump *text, const struct kvc_effective *effective)
{
	const char *reason;
	json_t *entry;
	size_t i;

	kvc_dump_add(text, "# plugins, in this order (chosen by: %s)\n", selection_name(effective));
	json_array_foreach(effective->candidates, i, entry)
	{
		reason = json_string_value(json_object_get(entry, "reason"));
		kvc_dump_add(text, "#   %s%s%s\n",
			     json_string_value(json_object_get(entry, "plugin")),
			     reason ? ": left out: " : "", reason ? reason : "");
	}
	json_array_foreach(effective->warnings, i, entry)
		kvc_dump_add(text, "# warning: %s\n", json_string_value(entry));
}

void kvc_text_effective(struct kvc_dump *text, const struct kvc_effective *effective)
{
	const char *name, *plugin;
	const json_t *values;
	json_t *entry, *value;
	size_t i;

	show_selection(text, effective);
	kvc_dump_add(text, "\n");
	json_object_foreach(effective->top, name, value)
		show_value(text, effective, NULL, name, value);
	json_array_foreach(effective->stacked, i, entry)
	{
		plugin = json_string_value(json_object_get(entry, "plugin"));
		values = shown_section(effective, entry);
		if (!values)
			continue;
		kvc_dump_add(text, "\n[plugin.%s]\n", plugin);
		json_object_foreach((json_t *)(uintptr_t)values, name, value)
			show_value(text, effective, plugin, name, value);
	}
}

/* ---------------------------------------------------------------- JSON */

static json_t *values_json(const struct kvc_effective *effective, const char *plugin,
			   const json_t *values)
{
	json_t *out = json_object();
	const char *name;
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)values, name, value)
	{
		json_t *entry = json_pack("{s:o, s:s}", "value",
					  shown_value(row_of(plugin, name), value), "origin",
					  origin_of(effective, plugin, name));

		if (!entry || json_object_set_new(out, name, entry) < 0) {
			json_decref(out);
			return NULL;
		}
	}
	return out;
}

static json_t *sections_json(const struct kvc_effective *effective)
{
	json_t *out = json_object();
	const json_t *values;
	const char *plugin;
	json_t *entry;
	size_t i;

	json_array_foreach(effective->stacked, i, entry)
	{
		plugin = json_string_value(json_object_get(entry, "plugin"));
		values = shown_section(effective, entry);
		if (values &&
		    json_object_set_new(out, plugin, values_json(effective, plugin, values)) < 0) {
			json_decref(out);
			return NULL;
		}
	}
	return out;
}

static json_t *candidates_json(const struct kvc_effective *effective)
{
	json_t *out = json_array();
	json_t *entry;
	size_t i;

	json_array_foreach(effective->candidates, i, entry)
	{
		json_t *copy = json_copy(entry);

		(void)json_object_del(copy, "values");
		(void)json_object_del(copy, "table_known");
		(void)json_object_del(copy, "touched");
		if (json_array_append_new(out, copy) < 0) {
			json_decref(out);
			return NULL;
		}
	}
	return out;
}

void kvc_text_effective_json(struct kvc_dump *text, const struct kvc_effective *effective)
{
	json_t *document = json_pack("{s:s, s:o, s:o, s:o, s:O}", "selection",
				     selection_name(effective), "candidates",
				     candidates_json(effective), "options",
				     values_json(effective, NULL, effective->top), "plugins",
				     sections_json(effective), "warnings", effective->warnings);

	kvc_dump_json(text, document);
	json_decref(document);
}

/* ---------------------------------------------------------------- describe */

static int describe_effective(const struct kvc_config *config, int what, struct kvc_dump *text)
{
	struct kvc_effective effective;
	int rc = kvc_effective_build(config, &effective);

	if (rc < 0)
		return rc;
	if (what == KVC_DESCRIBE_EFFECTIVE)
		kvc_text_effective(text, &effective);
	else
		kvc_text_effective_json(text, &effective);
	kvc_effective_release(&effective);
	return 0;
}

int kvc_config_describe(const struct kvc_config *config, int what, char *buffer, size_t bytes)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_dump text = { 0 };
	size_t copied;
	int rc = 0;

	if (!buffer && bytes)
		return kvc_fail(-EINVAL, "kvc_config_describe: buffer is NULL");
	switch (what) {
	case KVC_DESCRIBE_EFFECTIVE:
	case KVC_DESCRIBE_EFFECTIVE_JSON:
		rc = describe_effective(config, what, &text);
		break;
	case KVC_DESCRIBE_OPTIONS:
		kvc_text_options(&text);
		break;
	case KVC_DESCRIBE_OPTIONS_JSON:
		kvc_text_options_json(&text);
		break;
	case KVC_DESCRIBE_OPTIONS_MARKDOWN:
		kvc_text_options_markdown(&text);
		break;
	case KVC_DESCRIBE_SAMPLE:
		kvc_text_sample(&text);
		break;
	default:
		return kvc_fail(-EINVAL, "kvc_config_describe: there is no text of kind %d", what);
	}
	if (rc == 0 && (text.failed || !text.data || text.bytes > INT_MAX))
		rc = -ENOMEM;
	if (rc == 0) {
		copied = text.bytes < bytes ? text.bytes : bytes ? bytes - 1 : 0;
		if (bytes) {
			memcpy(buffer, text.data, copied);
			buffer[copied] = '\0';
		}
		rc = (int)text.bytes;
	}
	free(text.data);
	return kvc_fail_since(mark, rc, "describing the configuration");
}
