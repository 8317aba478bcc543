/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration as the store sees it: everything checked, defaults and environment filled in.
 * How it is read, from files, texts and calls, is the public kvc_config_* part of kvcellar.h. */
#ifndef KVC_CORE_CONFIG_H
#define KVC_CORE_CONFIG_H

#include "core/format.h"

#include <kvcellar/kvcellar.h>
#include <kvcellar/plugin.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvc_storage_layout {
	KVC_STORAGE_AUTO,
	KVC_STORAGE_FILES,
	KVC_STORAGE_PACKED
};

enum kvc_verify_mode {
	KVC_VERIFY_REQUIRE,
	KVC_VERIFY_IF_PRESENT,
	KVC_VERIFY_OFF
};

enum kvc_checksum_mode {
	KVC_CHECKSUM_MODE_FULL,
	KVC_CHECKSUM_MODE_SECTOR,
	KVC_CHECKSUM_MODE_NONE
};

enum kvc_durability {
	KVC_DURABILITY_NONE,
	KVC_DURABILITY_FDATASYNC
};

/* In the order of the option's range. */
enum kvc_eviction {
	KVC_EVICTION_LRU,
	KVC_EVICTION_FIFO,
	KVC_EVICTION_S3FIFO
};

/* Directories of one store. */
#define KVC_ROOTS_MAX 64u

/* What chose the candidates: active sections, the environment, or nothing. */
enum kvc_selection {
	KVC_SELECTION_CONFIG,
	KVC_SELECTION_ENV,
	KVC_SELECTION_AUTO
};

/*
 * struct kvc_candidate - a plugin that may be taken, with its settings.
 * @plugin    canonical name, lower case
 * @reason    why it is not valid; NULL when it is. Never holds a secret
 * @settings  every option of the plugin, defaults filled in; booleans "true" or "false"; a list
 *            with commas. For a plugin from plugin_dir: what was given, unchecked, to be run
 *            through kvc_options_validate() with the plugin's own table
 * @table_known  false for a plugin from plugin_dir
 * @touched      an option of it was given, in whatever way
 */
struct kvc_candidate {
	char *plugin;
	bool valid;
	bool table_known;
	bool touched;
	char *reason;
	struct kvc_setting *settings;
	size_t setting_count;
};

/* A size that is either bytes or a percentage of the file system. Both 0: not set. */
struct kvc_share {
	uint64_t bytes;
	double percent;
};

/* What a tenant may have at most of each root's capacity. */
struct kvc_tenant_share {
	char *tenant;
	struct kvc_share share;
};

struct kvc_settings {
	bool use_direct_io;
	bool use_direct_io_explicit;
	bool l3_cleaner_enabled;
	double l3_cleaner_high_watermark;
	double l3_cleaner_low_watermark;
	char **storage_dirs;
	size_t storage_dir_count;
	bool storage_dirs_default;
	enum kvc_naming naming;
	enum kvc_storage_layout storage_layout;
	enum kvc_verify_mode verify;
	enum kvc_checksum_mode checksum;
	struct kvc_share capacity; /* per root */
	struct kvc_share min_free;
	struct kvc_tenant_share *tenant_shares;
	size_t tenant_share_count;
	enum kvc_eviction eviction;
	char *identity; /* NULL = absent, which differs from "" */
	char *tenant;	/* NULL = absent, which differs from "" */
	uint32_t get_timeout_ms;
	uint32_t set_timeout_ms;
	uint32_t exists_timeout_ms;
	enum kvc_durability durability;
	char **io_engines; /* in the order to try */
	size_t io_engine_count;
	bool io_engines_explicit;
	uint32_t io_threads; /* 0 = one per root */
	char *mode;	     /* as given, octal */
	uint32_t file_mode;
	uint32_t folder_mode;
	bool mode_explicit;
	char *metrics_file;   /* "" = none */
	char *metrics_listen; /* "" = none */
	char *trace_file;     /* "" = none */
	bool strict;
	char *plugin_dir; /* "" = none */

	/* In the order of selection: the first valid one that loads and passes its self-test. */
	struct kvc_candidate *candidates;
	size_t candidate_count;
	enum kvc_selection selection;

	/* Every known plugin with its own section's settings, for what a stacked one names. */
	struct kvc_candidate *sections;
	size_t section_count;

	char **warnings;
	size_t warning_count;
};

/* kvc_config_resolve - the whole check. config may be NULL: defaults and environment.
 * 0, -EINVAL (kvc_last_error() has the key's path and the cause) or -ENOMEM. */
int kvc_config_resolve(const struct kvc_config *config, struct kvc_settings **out);
void kvc_settings_free(struct kvc_settings *settings);

/* The section of a plugin by its canonical name; NULL when it is not known. */
const struct kvc_candidate *kvc_settings_section(const struct kvc_settings *settings,
						 const char *plugin);

/*
 * kvc_options_validate - checks texts against a table and fills in defaults.
 * @section  for the error texts: "plugin.<name>"
 * @strict   an unknown name is an error; else it is left out
 * *out holds one setting per row of the table, in its order; free with kvc_settings_list_free().
 * 0, -EINVAL (kvc_last_error() names the option) or -ENOMEM.
 */
int kvc_options_validate(const struct kvc_option *table, size_t count, const char *section,
			 bool strict, const struct kvc_setting *given, size_t given_count,
			 struct kvc_setting **out, size_t *out_count);
void kvc_settings_list_free(struct kvc_setting *settings, size_t count);

#endif
