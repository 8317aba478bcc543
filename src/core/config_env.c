/* SPDX-License-Identifier: Apache-2.0 */
/* The environment's part of the configuration; nothing else in the library reads it. */
#include "core/config_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "KVCELLAR_"

void kvc_env_name(char buffer[KVC_PATH_BYTES], const char *path)
{
	size_t used = sizeof(PREFIX) - 1;

	memcpy(buffer, PREFIX, used);
	for (; *path && used < KVC_PATH_BYTES - 1; path++)
		buffer[used++] = *path == '.' ? '_' : (char)toupper((unsigned char)*path);
	buffer[used] = '\0';
}

/* "" means "not set", except for a free text, where it may be wanted. */
static const char *read_variable(const char *name, const struct kvc_option *option)
{
	const char *value = getenv(name);
	bool free_text = strcmp(option->type, "string") == 0 && !*option->range;

	return value && (*value || free_text) ? value : NULL;
}

const char *kvc_env_option(const char *path, const struct kvc_option *option,
			   char variable[KVC_PATH_BYTES])
{
	const char *value;

	kvc_env_name(variable, path);
	value = read_variable(variable, option);
	if (!value && strcmp(path, "plugin.obj.secrete_key") == 0) {
		kvc_env_name(variable, "plugin.obj.secret_key");
		value = read_variable(variable, option);
	}
	for (size_t i = 0; !value && i < kvc_seed_variable_count; i++) {
		if (strcmp(kvc_seed_variables[i].path, path) != 0)
			continue;
		(void)snprintf(variable, KVC_PATH_BYTES, "%s", kvc_seed_variables[i].variable);
		value = read_variable(variable, option);
	}
	return value;
}

const char *kvc_env_plugin(char variable[KVC_PATH_BYTES])
{
	static const struct kvc_option plugin = {
		.name = "plugin", .type = "string", .range = "a name", .default_value = ""
	};

	return kvc_env_option("plugin", &plugin, variable);
}

static bool is_section_variable(const char *name, const struct kvc_section *section,
				const struct kvc_option *option)
{
	char path[KVC_PATH_BYTES], variable[KVC_PATH_BYTES];

	(void)snprintf(path, sizeof(path), "plugin.%s.%s", section->name, option->name);
	kvc_env_name(variable, path);
	return strcmp(variable, name) == 0;
}

static bool is_known_variable(const char *name, struct kvc_nearest *nearest,
			      char best[KVC_PATH_BYTES])
{
	/* The last is none of an option's: kvcellar/sglang in Python reads it. */
	static const char *const others[] = { PREFIX "PLUGIN", PREFIX "PLUGIN_OBJ_SECRET_KEY",
					      PREFIX "SGLANG_REDIRECT_NIXL" };
	char variable[KVC_PATH_BYTES];
	const char *before;

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		if (strcmp(name, others[i]) == 0)
			return true;
		kvc_nearest_offer(nearest, others[i]);
	}
	for (size_t i = 0; i < kvc_top_option_count; i++) {
		kvc_env_name(variable, kvc_top_options[i].name);
		if (strcmp(name, variable) == 0)
			return true;
		before = nearest->word;
		kvc_nearest_offer(nearest, variable);
		if (nearest->word == variable) {
			(void)snprintf(best, KVC_PATH_BYTES, "%s", variable);
			nearest->word = best;
		} else {
			nearest->word = before;
		}
	}
	for (size_t i = 0; i < kvc_section_count; i++) {
		if (is_section_variable(name, &kvc_sections[i], &kvc_active_option))
			return true;
		for (size_t j = 0; j < kvc_sections[i].option_count; j++)
			if (is_section_variable(name, &kvc_sections[i],
						&kvc_sections[i].options[j]))
				return true;
	}
	return false;
}

int kvc_env_warn_unknown(struct kvc_effective *effective)
{
	char name[KVC_PATH_BYTES], best[KVC_PATH_BYTES], quoted[KVC_QUOTED_BYTES];
	const char *equals;
	int rc = 0;

	for (char **entry = environ; entry && *entry && rc == 0; entry++) {
		struct kvc_nearest nearest = { .wanted = name };

		equals = strchr(*entry, '=');
		if (!equals || strncmp(*entry, PREFIX, sizeof(PREFIX) - 1) != 0 ||
		    (size_t)(equals - *entry) >= sizeof(name))
			continue;
		memcpy(name, *entry, (size_t)(equals - *entry));
		name[equals - *entry] = '\0';
		if (is_known_variable(name, &nearest, best))
			continue;
		kvc_quote(quoted, name);
		rc = kvc_warn(effective, "the environment variable %s names no option%s%s%s",
			      quoted, nearest.word ? "; did you mean " : "",
			      nearest.word ? nearest.word : "", nearest.word ? "?" : "");
	}
	return rc;
}
