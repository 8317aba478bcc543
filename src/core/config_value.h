/* SPDX-License-Identifier: Apache-2.0 */
/* One value against one row of an option table. Internal to src/core/config*. */
#ifndef KVC_CORE_CONFIG_VALUE_H
#define KVC_CORE_CONFIG_VALUE_H

#include "core/config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Flags of the library's own tables, above those of plugin.h. */
#define KVC_OPTION_UNSET (1u << 16) /* without a value it is absent, which is not "" */
#define KVC_OPTION_URL	 (1u << 17) /* may carry a login or a signature: shown without them */

/* A growing text. After a failed allocation `failed` stays set and nothing is added. */
struct kvc_dump {
	char *data;
	size_t bytes;
	size_t capacity;
	bool failed;
};

void kvc_dump_add(struct kvc_dump *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#define KVC_QUOTED_BYTES 80

/* A key or value fit for an error text: in double quotes, control bytes as \xNN, cut when long. */
const char *kvc_quote(char buffer[KVC_QUOTED_BYTES], const char *text);

/* A text as a JSON value: 0, -ENOMEM, or -EINVAL when it is not UTF-8 (kvc_last_error() names
 * `path`). */
int kvc_json_text(const char *path, const char *text, json_t **out);

/* A decimal number in the C locale, whatever the process has set: 0, or -EINVAL (also for the
 * infinities, not-a-number, hexadecimal, and anything behind the number). */
int kvc_number_parse(const char *text, double *out);

/* "8", "1e9", "500GiB", "1.5 MB" to bytes: 0, -EINVAL or -ERANGE. K, M, G, T, P alone are powers
 * of 1024, as are KiB ...; kB, MB ... are powers of 1000. */
int kvc_size_parse(const char *text, int64_t *out);

/* true/false, yes/no, on/off, 1/0, in any case: 0 or -EINVAL. */
int kvc_boolean_parse(const char *text, bool *out);

/*
 * Checks `value`, whose place in the configuration is `path`, against `option`.
 * *out: boolean, integer, real, text, array of texts, or for a size an integer or a text "80%".
 * A failure leaves its sentence, with the path, in kvc_last_error(). A secret is never in it.
 */
int kvc_value_check(const struct kvc_option *option, const char *path, const json_t *value,
		    json_t **out);

/* The default of an option in the form that kvc_value_check() gives; null when it has none. */
int kvc_value_default(const struct kvc_option *option, json_t **out);

/* A checked value as the text of a kvc_setting (lists with commas); NULL for NULL and without
 * memory. */
char *kvc_value_text(const json_t *value);

/* The row called `name`, or NULL. */
const struct kvc_option *kvc_option_find(const struct kvc_option *table, size_t count,
					 const char *name);

/* Records that `section` has no such key, with the nearest one; returns -EINVAL. */
int kvc_option_unknown(const struct kvc_option *table, size_t count, const char *section,
		       const char *name);

/* Edit distance that counts a swap of neighbours as one, letters of any case as equal. */
size_t kvc_edit_distance(const char *a, const char *b);

/* Keeps the nearest of the words offered to it; nothing when all are far off. */
struct kvc_nearest {
	const char *wanted;
	const char *word;
	size_t distance;
};

void kvc_nearest_offer(struct kvc_nearest *nearest, const char *word);

#endif
