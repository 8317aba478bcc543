/* SPDX-License-Identifier: Apache-2.0 */
/* The effective configuration as the struct that the store uses. */
#include "core/config_internal.h"
#include "core/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const json_t *top_value(const struct kvc_effective *effective, const char *name)
{
	return json_object_get(effective->top, name);
}

/* The place of a word in "a | b | c": the enums of config.h have the order of the tables. */
static int word_index(const struct kvc_effective *effective, const char *name)
{
	const char *range = kvc_top_option_find(name)->range;
	const char *word = json_string_value(top_value(effective, name));
	size_t bytes = strlen(word);

	for (int i = 0;; i++) {
		if (strncmp(range, word, bytes) == 0 && (!range[bytes] || range[bytes] == ' '))
			return i;
		range = strstr(range, " | ");
		if (!range)
			return 0;
		range += 3;
	}
}

/* Of a value as it was checked. */
static struct kvc_share share_of(const json_t *value)
{
	struct kvc_share share = { 0 };
	const char *text = json_string_value(value);
	char number[32] = "";

	if (json_is_integer(value))
		share.bytes = (uint64_t)json_integer_value(value);
	if (text) {
		(void)memccpy(number, text, '%', sizeof(number) - 1);
		number[strcspn(number, "%")] = '\0';
		(void)kvc_number_parse(number, &share.percent);
	}
	return share;
}

static uint32_t number_of(const struct kvc_effective *effective, const char *name)
{
	return (uint32_t)json_integer_value(top_value(effective, name));
}

static int copy_text(const struct kvc_effective *effective, const char *name, char **out)
{
	const char *text = json_string_value(top_value(effective, name));

	if (!text)
		return 0; /* absent */
	*out = strdup(text);
	return *out ? 0 : -ENOMEM;
}

static int copy_list(const json_t *list, char ***out, size_t *out_count)
{
	size_t count = json_array_size(list);
	char **texts = calloc(count + 1, sizeof(*texts));

	if (!texts)
		return -ENOMEM;
	*out = texts;
	for (size_t i = 0; i < count; i++) {
		texts[i] = strdup(json_string_value(json_array_get(list, i)));
		if (!texts[i])
			return -ENOMEM;
		*out_count = i + 1;
	}
	return 0;
}

static int copy_tenant_shares(const struct kvc_effective *effective, struct kvc_settings *settings)
{
	const json_t *list = top_value(effective, "tenant_shares");
	const size_t count = json_array_size(list);

	settings->tenant_shares = calloc(count + 1, sizeof(*settings->tenant_shares));
	if (!settings->tenant_shares)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		struct kvc_tenant_share *one = &settings->tenant_shares[i];
		json_t *share = NULL;
		int rc = kvc_tenant_share_parse(json_string_value(json_array_get(list, i)),
						&one->tenant, &share);

		settings->tenant_share_count = i + 1;
		if (rc)
			return rc;
		one->share = share_of(share);
		json_decref(share);
	}
	return 0;
}

static void copy_scalars(const struct kvc_effective *effective, struct kvc_settings *settings)
{
	settings->use_direct_io = json_is_true(top_value(effective, "use_direct_io"));
	settings->use_direct_io_explicit = json_object_get(effective->origins, "use_direct_io") !=
					   NULL;
	settings->l3_cleaner_enabled = json_is_true(top_value(effective, "l3_cleaner_enabled"));
	settings->l3_cleaner_high_watermark =
		json_real_value(top_value(effective, "l3_cleaner_high_watermark"));
	settings->l3_cleaner_low_watermark =
		json_real_value(top_value(effective, "l3_cleaner_low_watermark"));
	settings->storage_dirs_default = json_object_get(effective->origins, "storage_dirs") ==
					 NULL;
	settings->naming = (enum kvc_naming)word_index(effective, "naming");
	settings->storage_layout = (enum kvc_storage_layout)word_index(effective, "storage_layout");
	settings->verify = (enum kvc_verify_mode)word_index(effective, "verify");
	settings->checksum = (enum kvc_checksum_mode)word_index(effective, "checksum");
	settings->eviction = (enum kvc_eviction)word_index(effective, "eviction");
	settings->durability = (enum kvc_durability)word_index(effective, "durability");
	settings->capacity = share_of(top_value(effective, "capacity"));
	settings->min_free = share_of(top_value(effective, "min_free"));
	settings->get_timeout_ms = number_of(effective, "get_timeout_ms");
	settings->set_timeout_ms = number_of(effective, "set_timeout_ms");
	settings->exists_timeout_ms = number_of(effective, "exists_timeout_ms");
	settings->io_threads = number_of(effective, "io_threads");
	settings->io_engines_explicit = json_object_get(effective->origins, "io_engines") != NULL;
	settings->mode_explicit = json_object_get(effective->origins, "mode") != NULL;
	settings->strict = effective->strict;
	settings->selection = effective->selection;
}

/* Who may read a folder may also search it. */
static void copy_mode(struct kvc_settings *settings)
{
	settings->file_mode = (uint32_t)strtoul(settings->mode, NULL, 8);
	settings->folder_mode = settings->file_mode | (settings->file_mode & 0444) >> 2;
}

static int copy_texts(const struct kvc_effective *effective, struct kvc_settings *settings)
{
	const struct {
		const char *name;
		char **out;
	} texts[] = {
		{ "identity", &settings->identity },
		{ "tenant", &settings->tenant },
		{ "mode", &settings->mode },
		{ "metrics_file", &settings->metrics_file },
		{ "metrics_listen", &settings->metrics_listen },
		{ "trace_file", &settings->trace_file },
		{ "plugin_dir", &settings->plugin_dir },
	};
	int rc = 0;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && rc == 0; i++)
		rc = copy_text(effective, texts[i].name, texts[i].out);
	if (rc == 0)
		rc = copy_list(top_value(effective, "storage_dirs"), &settings->storage_dirs,
			       &settings->storage_dir_count);
	if (rc == 0)
		rc = copy_list(top_value(effective, "io_engines"), &settings->io_engines,
			       &settings->io_engine_count);
	if (rc == 0)
		rc = copy_tenant_shares(effective, settings);
	if (rc == 0)
		rc = copy_list(effective->warnings, &settings->warnings, &settings->warning_count);
	return rc;
}

static int copy_settings(const json_t *values, struct kvc_candidate *out)
{
	struct kvc_setting *setting;
	const char *name;
	json_t *value;

	out->settings = calloc(json_object_size(values) + 1, sizeof(*out->settings));
	if (!out->settings)
		return -ENOMEM;
	json_object_foreach((json_t *)(uintptr_t)values, name, value)
	{
		setting = &out->settings[out->setting_count++];
		setting->name = strdup(name);
		setting->value = kvc_value_text(value);
		if (!setting->name || !setting->value)
			return -ENOMEM;
	}
	return 0;
}

static int copy_candidates(const json_t *list, struct kvc_candidate **out, size_t *out_count)
{
	struct kvc_candidate *candidates = calloc(json_array_size(list) + 1, sizeof(*candidates));
	const char *reason;
	json_t *entry;
	size_t i;
	int rc;

	if (!candidates)
		return -ENOMEM;
	*out = candidates;
	json_array_foreach(list, i, entry)
	{
		*out_count = i + 1;
		reason = json_string_value(json_object_get(entry, "reason"));
		candidates[i].valid = json_is_true(json_object_get(entry, "valid"));
		candidates[i].table_known = json_is_true(json_object_get(entry, "table_known"));
		candidates[i].touched = json_is_true(json_object_get(entry, "touched"));
		candidates[i].plugin = strdup(json_string_value(json_object_get(entry, "plugin")));
		candidates[i].reason = reason ? strdup(reason) : NULL;
		if (!candidates[i].plugin || (reason && !candidates[i].reason))
			return -ENOMEM;
		rc = copy_settings(json_object_get(entry, "values"), &candidates[i]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int kvc_config_resolve(const struct kvc_config *config, struct kvc_settings **out)
{
	struct kvc_effective effective;
	struct kvc_settings *settings;
	int rc;

	rc = kvc_effective_build(config, &effective);
	if (rc < 0)
		return rc;
	settings = calloc(1, sizeof(*settings));
	rc = settings ? copy_texts(&effective, settings) : -ENOMEM;
	if (rc == 0) {
		copy_scalars(&effective, settings);
		copy_mode(settings);
		rc = copy_candidates(effective.candidates, &settings->candidates,
				     &settings->candidate_count);
	}
	if (rc == 0)
		rc = copy_candidates(effective.stacked, &settings->sections,
				     &settings->section_count);
	kvc_effective_release(&effective);
	if (rc < 0) {
		kvc_settings_free(settings);
		return kvc_fail(rc, "out of memory while reading the configuration");
	}
	*out = settings;
	return 0;
}

static void free_texts(char **texts, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(texts[i]);
	free(texts);
}

static void free_candidates(struct kvc_candidate *candidates, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		kvc_settings_list_free(candidates[i].settings, candidates[i].setting_count);
		free(candidates[i].plugin);
		free(candidates[i].reason);
	}
	free(candidates);
}

void kvc_settings_free(struct kvc_settings *settings)
{
	if (!settings)
		return;
	free_texts(settings->storage_dirs, settings->storage_dir_count);
	free_texts(settings->io_engines, settings->io_engine_count);
	free_texts(settings->warnings, settings->warning_count);
	for (size_t i = 0; i < settings->tenant_share_count; i++)
		free(settings->tenant_shares[i].tenant);
	free(settings->tenant_shares);
	free_candidates(settings->candidates, settings->candidate_count);
	free_candidates(settings->sections, settings->section_count);
	free(settings->identity);
	free(settings->tenant);
	free(settings->mode);
	free(settings->metrics_file);
	free(settings->metrics_listen);
	free(settings->trace_file);
	free(settings->plugin_dir);
	free(settings);
}

const struct kvc_candidate *kvc_settings_section(const struct kvc_settings *settings,
						 const char *plugin)
{
	for (size_t i = 0; i < settings->section_count; i++)
		if (strcmp(settings->sections[i].plugin, plugin) == 0)
			return &settings->sections[i];
	return NULL;
}
