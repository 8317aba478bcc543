/* SPDX-License-Identifier: Apache-2.0 */
/* JSON -> tree, by jansson: exact 64-bit integers, duplicate keys refused. */
#include "core/config_parse.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int kvc_syntax_fail(struct kvc_syntax_error *error, size_t line, size_t column, const char *text)
{
	error->line = (unsigned)line;
	error->column = (unsigned)column;
	(void)snprintf(error->text, sizeof(error->text), "%s", text);
	return -EINVAL;
}

/* jansson chooses its hash seed at the first object; a child that another thread's first object was
 * forked in would wait for that thread for ever. */
__attribute__((constructor)) static void seed_chosen(void)
{
	json_object_seed(0);
}

/* jansson goes down to 2048 levels and tells no line for it, so the brackets are counted first. */
static int check_depth(const char *text, size_t bytes, struct kvc_syntax_error *error)
{
	size_t line = 1, line_start = 0, depth = 0;
	bool in_string = false;

	for (size_t i = 0; i < bytes; i++) {
		char c = text[i];

		if (c == '\n') {
			line++;
			line_start = i + 1;
		}
		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				in_string = false;
			continue;
		}
		if (c == '"')
			in_string = true;
		else if (c == '[' || c == '{')
			depth++;
		else if ((c == ']' || c == '}') && depth > 0)
			depth--;
		if (depth > KVC_CONFIG_MAX_DEPTH)
			return kvc_syntax_fail(error, line, i - line_start + 1,
					       "nested deeper than 64 levels");
	}
	return 0;
}

static bool is_blank(const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (!memchr(" \t\r\n", text[i], 4))
			return false;
	return true;
}

int kvc_json_parse(const char *text, size_t bytes, json_t **out, struct kvc_syntax_error *error)
{
	json_error_t details;
	json_t *tree;
	char *near;
	int rc;

	if (is_blank(text, bytes)) {
		*out = json_object();
		return *out ? 0 : -ENOMEM;
	}
	rc = check_depth(text, bytes, error);
	if (rc < 0)
		return rc;
	tree = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &details);
	if (!tree) {
		/* jansson says nothing about most failed allocations */
		if (json_error_code(&details) == json_error_out_of_memory || !details.text[0])
			return -ENOMEM;
		/* jansson quotes the input behind "near"; that could be a credential. */
		near = strstr(details.text, " near ");
		if (near)
			*near = '\0';
		return kvc_syntax_fail(error, details.line > 0 ? (size_t)details.line : 0,
				       details.column > 0 ? (size_t)details.column : 0,
				       details.text);
	}
	*out = tree;
	return 0;
}
