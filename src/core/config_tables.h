/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables: the one place where an option's name, type, default, range and help stand.
 * The checks, `config options`, the sample file and docs/config.md are made from them. */
#ifndef KVC_CORE_CONFIG_TABLES_H
#define KVC_CORE_CONFIG_TABLES_H

#include <kvcellar/plugin.h>

#include <stdbool.h>
#include <stddef.h>

#define KVC_DEFAULT_ROOT "/tmp/hicache_storage"

/* One [plugin.<name>] section. */
struct kvc_section {
	const char *name;  /* canonical, lower case */
	const char *alias; /* another accepted name, or NULL */
	const char *title; /* as people write it */
	const char *help;
	const struct kvc_option *options; /* without `active`, which every section has */
	size_t option_count;
	const char *free_table; /* name of a key that holds a table of texts, or NULL */
};

extern const struct kvc_option kvc_top_options[];
extern const size_t kvc_top_option_count;
extern const struct kvc_section kvc_sections[];
extern const size_t kvc_section_count;

/* The `active` row of every section. */
extern const struct kvc_option kvc_active_option;

/* The order of `auto`, best first; ends in NULL. */
extern const char *const kvc_auto_order[];

/* The environment variables that the implemented document names, by option path. */
struct kvc_seed_variable {
	const char *variable;
	const char *path;
};

extern const struct kvc_seed_variable kvc_seed_variables[];
extern const size_t kvc_seed_variable_count;

/* By canonical name or alias, in any case; NULL when there is none. */
const struct kvc_section *kvc_section_find(const char *name);

const struct kvc_option *kvc_top_option_find(const char *name);

/* A section's row, `active` included. */
const struct kvc_option *kvc_section_option_find(const struct kvc_section *section,
						 const char *name);

/* The name under which a section keeps `name`: "secret_key" is "secrete_key". */
const char *kvc_option_canonical(const char *name);

/* Keys that SGLang and its adapter put into the same table and that mean nothing here. */
extern const struct kvc_option kvc_engine_options[];
extern const size_t kvc_engine_option_count;

/* One of those, another that begins as SGLang's do, or `allocator`, which has no type. */
bool kvc_key_is_tolerated(const char *name);

#endif
