/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables as texts: the list, JSON, docs/config.md and the sample file. */
#include "core/config_text.h"
#include "core/config_internal.h"
#include "core/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls fn for each row, section by section; section is NULL for the top level. */
static void each_option(struct kvc_dump *text,
			void (*heading)(struct kvc_dump *text, const struct kvc_section *section),
			void (*row)(struct kvc_dump *text, const struct kvc_section *section,
				    const struct kvc_option *option))
{
	const struct kvc_section *section;

	heading(text, NULL);
	for (size_t i = 0; i < kvc_top_option_count; i++)
		row(text, NULL, &kvc_top_options[i]);
	for (size_t i = 0; i < kvc_section_count; i++) {
		section = &kvc_sections[i];
		heading(text, section);
		row(text, section, &kvc_active_option);
		for (size_t j = 0; j < section->option_count; j++)
			row(text, section, &section->options[j]);
	}
}

static const char *option_path(char buffer[KVC_PATH_BYTES], const struct kvc_section *section,
			       const struct kvc_option *option)
{
	if (section)
		(void)snprintf(buffer, KVC_PATH_BYTES, "plugin.%s.%s", section->name, option->name);
	else
		(void)snprintf(buffer, KVC_PATH_BYTES, "%s", option->name);
	return buffer;
}

static const char *seed_env_name(const struct kvc_section *section, const struct kvc_option *option)
{
	char path[KVC_PATH_BYTES];

	option_path(path, section, option);
	for (size_t i = 0; i < kvc_seed_variable_count; i++)
		if (strcmp(kvc_seed_variables[i].path, path) == 0)
			return kvc_seed_variables[i].variable;
	return NULL;
}

/* A default as TOML; "" for none. Booleans that are strings by custom keep their quotes. */
static void add_default(struct kvc_dump *text, const struct kvc_option *option)
{
	bool quoted = strcmp(option->type, "string") == 0;
	json_t *value = NULL;

	if (quoted || strcmp(option->type, "list") == 0) {
		if (!quoted && kvc_value_default(option, &value) == 0)
			kvc_toml_value(text, value);
		else
			kvc_dump_add(text, "\"%s\"", option->default_value);
	} else {
		kvc_dump_add(text, "%s", option->default_value);
	}
	json_decref(value);
}

static bool has_default(const struct kvc_option *option)
{
	return *option->default_value ||
	       (strcmp(option->type, "string") == 0 && !(option->flags & KVC_OPTION_UNSET));
}

/* ---------------------------------------------------------------- plain list */

static void list_heading(struct kvc_dump *text, const struct kvc_section *section)
{
	if (section)
		kvc_dump_add(text, "\n[plugin.%s]  %s%s%s%s\n", section->name, section->help,
			     section->alias ? " (also plugin." : "",
			     section->alias ? section->alias : "", section->alias ? ")" : "");
	else
		kvc_dump_add(text, "Top level\n");
}

static void list_row(struct kvc_dump *text, const struct kvc_section *section,
		     const struct kvc_option *option)
{
	(void)section;
	kvc_dump_add(text, "  %s  (%s%s%s", option->name, option->type, *option->unit ? ", " : "",
		     option->unit);
	if (*option->range && strcmp(option->range, "true | false") != 0)
		kvc_dump_add(text, ", %s", option->range);
	if (has_default(option)) {
		kvc_dump_add(text, "; default ");
		add_default(text, option);
	} else {
		kvc_dump_add(text, "; not set by default");
	}
	kvc_dump_add(text, "%s)\n      %s\n",
		     option->flags & KVC_OPTION_SECRET ? "; secret, never shown" : "",
		     option->help);
}

void kvc_text_options(struct kvc_dump *text)
{
	each_option(text, list_heading, list_row);
}

/* ---------------------------------------------------------------- JSON */

static json_t *option_json(const struct kvc_section *section, const struct kvc_option *option)
{
	char path[KVC_PATH_BYTES], variable[KVC_PATH_BYTES];
	json_t *value = NULL;

	kvc_env_name(variable, option_path(path, section, option));
	if (kvc_value_default(option, &value) < 0)
		return NULL;
	return json_pack("{s:s, s:s, s:s, s:o, s:s, s:s, s:b, s:s, s:s?}", "path", path, "type",
			 option->type, "unit", option->unit, "default", value, "range",
			 option->range, "help", option->help, "secret",
			 (option->flags & KVC_OPTION_SECRET) != 0, "env", variable, "seed_env",
			 seed_env_name(section, option));
}

static void append_option(struct kvc_dump *text, json_t *list, const struct kvc_section *section,
			  const struct kvc_option *option)
{
	if (json_array_append_new(list, option_json(section, option)) < 0)
		text->failed = true;
}

void kvc_text_options_json(struct kvc_dump *text)
{
	json_t *list = json_array();
	const struct kvc_section *section;

	for (size_t i = 0; i < kvc_top_option_count; i++)
		append_option(text, list, NULL, &kvc_top_options[i]);
	for (size_t i = 0; i < kvc_section_count; i++) {
		section = &kvc_sections[i];
		append_option(text, list, section, &kvc_active_option);
		for (size_t j = 0; j < section->option_count; j++)
			append_option(text, list, section, &section->options[j]);
	}
	kvc_dump_json(text, list);
	json_decref(list);
}

/* ---------------------------------------------------------------- Markdown */

static void markdown_heading(struct kvc_dump *text, const struct kvc_section *section)
{
	if (section) {
		kvc_dump_add(text, "\n### `[plugin.%s]`\n\n%s", section->name, section->help);
		if (section->alias)
			kvc_dump_add(text, " Also written `[plugin.%s]`.", section->alias);
	} else {
		kvc_dump_add(text, "### Top level");
	}
	kvc_dump_add(text, "\n\n| key | type | default | allowed | what it does |\n"
			   "| --- | --- | --- | --- | --- |\n");
}

/* A cell: '|' would end it. */
static void add_cell(struct kvc_dump *text, const char *cell)
{
	for (; *cell; cell++)
		kvc_dump_add(text, *cell == '|' ? "\\|" : "%c", *cell);
}

static void markdown_row(struct kvc_dump *text, const struct kvc_section *section,
			 const struct kvc_option *option)
{
	(void)section;
	kvc_dump_add(text, "| `%s` | %s%s%s | ", option->name, option->type,
		     *option->unit ? ", " : "", option->unit);
	if (has_default(option)) {
		kvc_dump_add(text, "`");
		add_default(text, option);
		kvc_dump_add(text, "`");
	} else {
		kvc_dump_add(text, "not set");
	}
	kvc_dump_add(text, " | ");
	add_cell(text, option->range);
	kvc_dump_add(text, " | ");
	add_cell(text, option->help);
	kvc_dump_add(text, "%s |\n", option->flags & KVC_OPTION_SECRET ? " Secret." : "");
}

void kvc_text_options_markdown(struct kvc_dump *text)
{
	each_option(text, markdown_heading, markdown_row);
}

/* ---------------------------------------------------------------- sample */

static void sample_heading(struct kvc_dump *text, const struct kvc_section *section)
{
	if (!section)
		return;
	kvc_dump_add(text, "\n# %s\n[plugin.%s]\n", section->help, section->name);
	if (section->free_table)
		kvc_dump_add(text, "# %s = { }\n", section->free_table);
}

static void sample_row(struct kvc_dump *text, const struct kvc_section *section,
		       const struct kvc_option *option)
{
	(void)section;
	kvc_dump_add(text, "\n# %s\n", option->help);
	if (*option->range && strcmp(option->range, "true | false") != 0)
		kvc_dump_add(text, "# Allowed: %s\n", option->range);
	if (!has_default(option)) {
		kvc_dump_add(text, "# Not set by default.\n# %s = %s\n", option->name,
			     strcmp(option->type, "size") == 0	  ? "\"500GiB\"" :
			     strcmp(option->type, "list") == 0	  ? "[\"team=30%\"]" :
			     strcmp(option->type, "boolean") == 0 ? "true" :
								    "\"\"");
		return;
	}
	kvc_dump_add(text, "# %s = ", option->name);
	add_default(text, option);
	kvc_dump_add(text, "\n");
}

void kvc_text_sample(struct kvc_dump *text)
{
	kvc_dump_add(text,
		     "# kvcellar.toml - every key, each with its default as a comment.\n"
		     "# Made from the option tables by `kvcellar config sample`; do not edit "
		     "the copy in\n"
		     "# the source tree. Load it with --config FILE, or as \"@FILE\" where an "
		     "inline text is\n"
		     "# expected. docs/config.md explains the forms and the order of "
		     "precedence.\n"
		     "#\n"
		     "# The first section with active = true whose plugin is usable is taken; "
		     "without one\n"
		     "# the environment decides, then: 3FS, POSIX, GDS_MT, GDS, OBJ.\n");
	each_option(text, sample_heading, sample_row);
}
