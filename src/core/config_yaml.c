/* SPDX-License-Identifier: Apache-2.0 */
/* YAML -> tree, over libyaml's events. Plain scalars are typed by the YAML 1.2 core schema
 * (https://yaml.org/spec/1.2.2/#103-core-schema), so `off` is a text and not a boolean. Anchors and
 * aliases are refused: a configuration does not need them, and they can blow up. */
#include "core/config_parse.h"
#include "core/config_value.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define TAG_PREFIX "tag:yaml.org,2002:"

/* One open collection. */
struct level {
	json_t *node;
	char *key; /* the key that waits for its value, mappings only */
	size_t key_bytes;
};

struct reader {
	struct kvc_syntax_error *error;
	struct level levels[KVC_CONFIG_MAX_DEPTH + 1];
	size_t depth; /* open collections */
	json_t *root;
	unsigned documents;
};

static int fail_at(struct reader *reader, const yaml_event_t *event, const char *text)
{
	return kvc_syntax_fail(reader->error, event->start_mark.line + 1,
			       event->start_mark.column + 1, text);
}

static bool is_one_of(const char *text, const char *const *words)
{
	for (; *words; words++)
		if (strcmp(text, *words) == 0)
			return true;
	return false;
}

static bool is_null_text(const char *text)
{
	static const char *const words[] = { "", "~", "null", "Null", "NULL", NULL };

	return is_one_of(text, words);
}

static bool is_bool_text(const char *text, bool *value)
{
	static const char *const yes[] = { "true", "True", "TRUE", NULL };
	static const char *const no[] = { "false", "False", "FALSE", NULL };

	*value = is_one_of(text, yes);
	return *value || is_one_of(text, no);
}

/* 1: an integer; 0: none; -ERANGE: one that needs more than 64 bits. */
static int read_integer(const char *text, json_int_t *value)
{
	const char *digits = text;
	char *end;
	int base = 10;
	long long number;

	if (strncmp(text, "0o", 2) == 0 || strncmp(text, "0x", 2) == 0) {
		base = text[1] == 'o' ? 8 : 16;
		digits = text + 2;
		if (strspn(digits, base == 8 ? "01234567" : "0123456789abcdefABCDEF") !=
			    strlen(digits) ||
		    !*digits)
			return 0;
	} else {
		if (*digits == '-' || *digits == '+')
			digits++;
		if (!*digits || strspn(digits, "0123456789") != strlen(digits))
			return 0;
		digits = text;
	}
	errno = 0;
	number = strtoll(digits, &end, base);
	if (errno == ERANGE)
		return -ERANGE;
	*value = number;
	return 1;
}

/* [-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )? */
static bool is_float_text(const char *text)
{
	const char *p = text + (*text == '-' || *text == '+');
	size_t before, after = 0, exponent;

	before = strspn(p, "0123456789");
	p += before;
	if (*p == '.') {
		p++;
		after = strspn(p, "0123456789");
		p += after;
	}
	if (before == 0 && after == 0)
		return false;
	if (*p == 'e' || *p == 'E') {
		p++;
		p += *p == '-' || *p == '+';
		exponent = strspn(p, "0123456789");
		if (exponent == 0)
			return false;
		p += exponent;
	}
	return *p == '\0';
}

/* Types a plain scalar. Not-a-number and the infinities stay texts: no option takes them. */
static int type_plain(struct reader *reader, const yaml_event_t *event, const char *text,
		      size_t bytes, json_t **out)
{
	json_int_t integer = 0;
	double number;
	bool flag;
	int rc;

	if (strlen(text) != bytes) {
		*out = json_stringn(text, bytes);
		return 0;
	}
	if (is_null_text(text)) {
		*out = json_null();
		return 0;
	}
	if (is_bool_text(text, &flag)) {
		*out = json_boolean(flag);
		return 0;
	}
	rc = read_integer(text, &integer);
	if (rc == -ERANGE)
		return fail_at(reader, event, "integer does not fit in 64 bits");
	if (rc == 1) {
		*out = json_integer(integer);
		return 0;
	}
	if (is_float_text(text)) {
		if (kvc_number_parse(text, &number) < 0)
			return fail_at(reader, event, "number out of range");
		*out = json_real(number);
		return 0;
	}
	*out = json_stringn(text, bytes);
	return 0;
}

static bool tag_fits(const char *type, const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_NULL:
		return strcmp(type, "null") == 0;
	case JSON_TRUE:
	case JSON_FALSE:
		return strcmp(type, "bool") == 0;
	case JSON_INTEGER:
		return strcmp(type, "int") == 0 || strcmp(type, "float") == 0;
	case JSON_REAL:
		return strcmp(type, "float") == 0;
	default:
		return false;
	}
}

static int type_scalar(struct reader *reader, const yaml_event_t *event, json_t **out)
{
	const char *text = (const char *)event->data.scalar.value;
	const char *tag = (const char *)event->data.scalar.tag;
	size_t bytes = event->data.scalar.length;
	bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	json_t *value = NULL;
	int rc = 0;

	if (tag && strcmp(tag, "!") != 0 && strcmp(tag, TAG_PREFIX "str") != 0) {
		if (strncmp(tag, TAG_PREFIX, strlen(TAG_PREFIX)) != 0)
			return fail_at(reader, event,
				       "tags other than YAML's own are not accepted");
		rc = type_plain(reader, event, text, bytes, &value);
		if (rc == 0 && value && !tag_fits(tag + strlen(TAG_PREFIX), value)) {
			json_decref(value);
			return fail_at(reader, event, "the value does not fit its tag");
		}
	} else if (!tag && plain) {
		rc = type_plain(reader, event, text, bytes, &value);
	} else {
		value = json_stringn(text, bytes);
	}
	if (rc < 0)
		return rc;
	if (!value)
		return -ENOMEM; /* libyaml has checked the UTF-8 */
	*out = value;
	return 0;
}

/* Puts a finished or just opened node into the innermost collection; takes the reference. */
static int attach(struct reader *reader, const yaml_event_t *event, json_t *node)
{
	struct level *level;
	int rc;

	if (reader->depth == 0) {
		reader->root = node;
		return 0;
	}
	level = &reader->levels[reader->depth - 1];
	if (json_is_array(level->node))
		return json_array_append_new(level->node, node) < 0 ? -ENOMEM : 0;
	if (!level->key) {
		json_decref(node);
		return fail_at(reader, event, "a key must be a plain or quoted text");
	}
	rc = json_object_setn_new(level->node, level->key, level->key_bytes, node);
	free(level->key);
	level->key = NULL;
	return rc < 0 ? -ENOMEM : 0;
}

static int take_key(struct reader *reader, const yaml_event_t *event)
{
	struct level *level = &reader->levels[reader->depth - 1];
	const char *text = (const char *)event->data.scalar.value;
	size_t bytes = event->data.scalar.length;

	if (json_object_getn(level->node, text, bytes))
		return fail_at(reader, event, "duplicate key");
	level->key = malloc(bytes + 1);
	if (!level->key)
		return -ENOMEM;
	memcpy(level->key, text, bytes);
	level->key[bytes] = '\0';
	level->key_bytes = bytes;
	return 0;
}

static int take_scalar(struct reader *reader, const yaml_event_t *event)
{
	struct level *level = reader->depth ? &reader->levels[reader->depth - 1] : NULL;
	json_t *value = NULL;
	int rc;

	if (event->data.scalar.anchor)
		return fail_at(reader, event, "anchors are not accepted");
	if (level && json_is_object(level->node) && !level->key)
		return take_key(reader, event);
	rc = type_scalar(reader, event, &value);
	return rc < 0 ? rc : attach(reader, event, value);
}

static int open_collection(struct reader *reader, const yaml_event_t *event)
{
	bool mapping = event->type == YAML_MAPPING_START_EVENT;
	const yaml_char_t *anchor = mapping ? event->data.mapping_start.anchor :
					      event->data.sequence_start.anchor;
	const char *tag = (const char *)(mapping ? event->data.mapping_start.tag :
						   event->data.sequence_start.tag);
	json_t *node;
	int rc;

	if (anchor)
		return fail_at(reader, event, "anchors are not accepted");
	if (tag && strcmp(tag, "!") != 0 &&
	    strcmp(tag, mapping ? TAG_PREFIX "map" : TAG_PREFIX "seq") != 0)
		return fail_at(reader, event, "this tag is not accepted");
	if (reader->depth >= KVC_CONFIG_MAX_DEPTH)
		return fail_at(reader, event, "nested deeper than 64 levels");
	node = mapping ? json_object() : json_array();
	if (!node)
		return -ENOMEM;
	rc = attach(reader, event, node);
	if (rc < 0)
		return rc;
	reader->levels[reader->depth].node = node; /* borrowed: its parent holds it */
	reader->levels[reader->depth].key = NULL;
	reader->depth++;
	return 0;
}

static int take_event(struct reader *reader, const yaml_event_t *event)
{
	switch (event->type) {
	case YAML_DOCUMENT_START_EVENT:
		if (++reader->documents > 1)
			return fail_at(reader, event, "a second document begins here");
		return 0;
	case YAML_ALIAS_EVENT:
		return fail_at(reader, event, "aliases are not accepted");
	case YAML_SCALAR_EVENT:
		return take_scalar(reader, event);
	case YAML_MAPPING_START_EVENT:
	case YAML_SEQUENCE_START_EVENT:
		return open_collection(reader, event);
	case YAML_MAPPING_END_EVENT:
	case YAML_SEQUENCE_END_EVENT:
		reader->depth--;
		return 0;
	default:
		return 0;
	}
}

static int read_events(struct reader *reader, yaml_parser_t *parser)
{
	yaml_event_t event;
	bool done = false;
	int rc = 0;

	while (rc == 0 && !done) {
		if (!yaml_parser_parse(parser, &event)) {
			if (parser->error == YAML_MEMORY_ERROR)
				return -ENOMEM;
			/* problem is one of libyaml's constants, never a piece of the input */
			return kvc_syntax_fail(reader->error, parser->problem_mark.line + 1,
					       parser->problem_mark.column + 1,
					       parser->problem ? parser->problem : "not YAML");
		}
		done = event.type == YAML_STREAM_END_EVENT;
		rc = take_event(reader, &event);
		yaml_event_delete(&event);
	}
	return rc;
}

int kvc_yaml_parse(const char *text, size_t bytes, json_t **out, struct kvc_syntax_error *error)
{
	struct reader reader = { .error = error };
	yaml_parser_t parser;
	int rc;

	if (!yaml_parser_initialize(&parser))
		return -ENOMEM;
	yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
	rc = read_events(&reader, &parser);
	if (rc == 0 && (!reader.root || json_is_null(reader.root))) {
		json_decref(reader.root);
		reader.root = json_object();
		if (!reader.root)
			rc = -ENOMEM;
	}
	if (rc == 0) {
		*out = reader.root;
		reader.root = NULL;
	}
	for (size_t i = 0; i < reader.depth; i++)
		free(reader.levels[i].key);
	json_decref(reader.root);
	yaml_parser_delete(&parser);
	return rc;
}
