/* SPDX-License-Identifier: Apache-2.0 */
/* Text of one format -> one tree. Every format gives the same jansson tree for the same content,
 * with the keys of each table in file order. Internal to src/core/config*. */
#ifndef KVC_CORE_CONFIG_PARSE_H
#define KVC_CORE_CONFIG_PARSE_H

#include <jansson.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_CONFIG_MAX_BYTES ((size_t)1 << 20)
#define KVC_CONFIG_MAX_DEPTH 64

/* Where and why a text is not valid. The text never holds a value from the input: it could be a
 * credential. line and column count from 1; 0 = unknown. */
struct kvc_syntax_error {
	unsigned line;
	unsigned column;
	char text[192];
};

/* Each returns 0 and a new tree, or -EINVAL with *error filled, or -ENOMEM. The text need not end
 * in NUL. A text without content gives an empty table. */
int kvc_json_parse(const char *text, size_t bytes, json_t **out, struct kvc_syntax_error *error);
int kvc_yaml_parse(const char *text, size_t bytes, json_t **out, struct kvc_syntax_error *error);
int kvc_toml_parse(const char *text, size_t bytes, json_t **out, struct kvc_syntax_error *error);

/* Fills *error and returns -EINVAL. */
int kvc_syntax_fail(struct kvc_syntax_error *error, size_t line, size_t column, const char *text);

#ifdef __cplusplus
}
#endif
#endif
