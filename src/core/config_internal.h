/* SPDX-License-Identifier: Apache-2.0 */
/* What the files config*.c share: the configuration as read, and as it is in effect. */
#ifndef KVC_CORE_CONFIG_INTERNAL_H
#define KVC_CORE_CONFIG_INTERNAL_H

#include "core/config.h"
#include "core/config_tables.h"
#include "core/config_value.h"

#include <jansson.h>

/* The longest key; plugin.<section>.<table>.<key> then fits into a path. */
#define KVC_KEY_BYTES  96
#define KVC_PATH_BYTES 320

/*
 * struct kvc_config - what was given so far.
 * @tree     one table; sections under "plugin" by canonical name, in file order; the values are as
 *           read. A null stands for "not given"
 * @origins  path of each value -> the file, text or call that it came from
 */
struct kvc_config {
	json_t *tree;
	json_t *origins;
};

/*
 * struct kvc_effective - the configuration with environment and defaults.
 * @top         every top-level option -> checked value
 * @sections    section -> given option -> checked value (environment included), in file order
 * @flat        given plugin option at the top level -> value as read
 * @origins     path -> where a value came from; absent = default
 * @warnings    texts
 * @candidates  of {"plugin", "valid", "reason", "table_known", "touched",
 *              "values": option -> value}
 * @stacked     the same for every known section, without the flat keys
 */
struct kvc_effective {
	bool strict;
	enum kvc_selection selection;
	json_t *top;
	json_t *sections;
	json_t *flat;
	json_t *origins;
	json_t *warnings;
	json_t *candidates;
	json_t *stacked;
};

/* 0, -EINVAL or -ENOMEM; on failure *effective is released. config may be NULL. */
int kvc_effective_build(const struct kvc_config *config, struct kvc_effective *effective);
void kvc_effective_release(struct kvc_effective *effective);

/* The steps of kvc_effective_build(), one file each. */
int kvc_effective_read(struct kvc_effective *effective, const struct kvc_config *config);
int kvc_effective_check(struct kvc_effective *effective);
int kvc_effective_select(struct kvc_effective *effective);

/* Rules between the options of one section, its flat keys included. `values` are checked values by
 * option. 0, or -EINVAL with the text. */
/* "tenant=30%": the tenant, for free(), and its share as kvc_value_check() gives a size. -EINVAL
 * (kvc_last_error() says what is wrong) or -ENOMEM. */
int kvc_tenant_share_parse(const char *text, char **out_tenant, json_t **out_share);

int kvc_section_check(const char *section, const json_t *values);

/* NULL when a section has what it needs, else what is missing. */
const char *kvc_section_missing(const char *section, const json_t *values);

/* Any value of the configuration as the text of a setting, for a plugin whose table is not known
 * here: 0, or -EINVAL for tables and for NUL bytes. */
int kvc_free_value(const char *path, const json_t *value, json_t **out);

/* "in <origin>" of a path, or "". */
const char *kvc_origin_suffix(char buffer[KVC_PATH_BYTES], const json_t *origins, const char *path);

int kvc_warn(struct kvc_effective *effective, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Is there a kvcellar-plugin-<name>.so in the folder? */
bool kvc_plugin_file_exists(const char *plugin_dir, const char *name);

/* The environment variable of an option: KVCELLAR_<path in upper case, '.' as '_'>. */
void kvc_env_name(char buffer[KVC_PATH_BYTES], const char *path);

/* Environment. The value of an option by its path, or NULL; *variable is the variable's name. */
const char *kvc_env_option(const char *path, const struct kvc_option *option,
			   char variable[KVC_PATH_BYTES]);

/* The plugin that the environment asks for, or NULL. */
const char *kvc_env_plugin(char variable[KVC_PATH_BYTES]);

/* Adds a warning for each KVCELLAR_* variable that names nothing. */
int kvc_env_warn_unknown(struct kvc_effective *effective);

#endif
