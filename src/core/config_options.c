/* SPDX-License-Identifier: Apache-2.0 */
/* Option tables at work: look-up, the nearest name, and the check of a whole section. */
#include "core/config_value.h"
#include "core/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvc_dump_add(struct kvc_dump *text, const char *format, ...)
{
	size_t capacity;
	va_list args;
	int needed;
	char *data;

	if (text->failed)
		return;
	va_start(args, format);
	needed = vsnprintf(NULL, 0, format, args);
	va_end(args);
	if (needed < 0) {
		text->failed = true;
		return;
	}
	if (text->bytes + (size_t)needed + 1 > text->capacity) {
		capacity = 2 * text->capacity + (size_t)needed + 64;
		data = realloc(text->data, capacity);
		if (!data) {
			text->failed = true;
			return;
		}
		text->data = data;
		text->capacity = capacity;
	}
	va_start(args, format);
	(void)vsnprintf(text->data + text->bytes, text->capacity - text->bytes, format, args);
	va_end(args);
	text->bytes += (size_t)needed;
}

int kvc_json_text(const char *path, const char *text, json_t **out)
{
	json_t *unchecked;

	*out = json_string(text);
	if (*out)
		return 0;
	unchecked = json_string_nocheck(text);
	if (!unchecked)
		return -ENOMEM;
	json_decref(unchecked);
	return kvc_fail(-EINVAL, "%s: not valid UTF-8", path);
}

const struct kvc_option *kvc_option_find(const struct kvc_option *table, size_t count,
					 const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

#define DISTANCE_MAX_BYTES 63

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Optimal string alignment, three rows of the matrix at a time. */
size_t kvc_edit_distance(const char *a, const char *b)
{
	size_t rows[3][DISTANCE_MAX_BYTES + 1];
	size_t a_bytes = strlen(a), b_bytes = strlen(b);
	size_t *before = rows[0], *above = rows[1], *row = rows[2], *free_row;

	if (a_bytes > DISTANCE_MAX_BYTES || b_bytes > DISTANCE_MAX_BYTES)
		return a_bytes > b_bytes ? a_bytes : b_bytes;
	memset(rows, 0, sizeof(rows));
	for (size_t j = 0; j <= b_bytes; j++)
		above[j] = j;
	for (size_t i = 1; i <= a_bytes; i++) {
		row[0] = i;
		for (size_t j = 1; j <= b_bytes; j++) {
			int x = tolower((unsigned char)a[i - 1]);
			int y = tolower((unsigned char)b[j - 1]);

			row[j] =
				least(least(above[j] + 1, row[j - 1] + 1), above[j - 1] + (x != y));
			if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
			    y == tolower((unsigned char)a[i - 2]))
				row[j] = least(row[j], before[j - 2] + 1);
		}
		free_row = before;
		before = above;
		above = row;
		row = free_row;
	}
	return above[b_bytes];
}

void kvc_nearest_offer(struct kvc_nearest *nearest, const char *word)
{
	size_t distance = kvc_edit_distance(nearest->wanted, word);
	size_t limit = strlen(nearest->wanted) / 3 + 1;

	if (distance > limit || (nearest->word && distance >= nearest->distance))
		return;
	nearest->word = word;
	nearest->distance = distance;
}

int kvc_option_unknown(const struct kvc_option *table, size_t count, const char *section,
		       const char *name)
{
	struct kvc_nearest nearest = { .wanted = name };
	char quoted[KVC_QUOTED_BYTES];

	for (size_t i = 0; i < count; i++)
		kvc_nearest_offer(&nearest, table[i].name);
	kvc_quote(quoted, name);
	if (!nearest.word)
		return kvc_fail(-EINVAL, "%s: unknown key %s", section, quoted);
	return kvc_fail(-EINVAL, "%s: unknown key %s; did you mean \"%s\"?", section, quoted,
			nearest.word);
}

static const char *given_value(const struct kvc_setting *given, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(given[i].name, name) == 0)
			return given[i].value;
	return NULL;
}

/* One row of the table: what was given, checked, or its default. */
static int make_setting(const struct kvc_option *option, const char *section, const char *value,
			struct kvc_setting *out)
{
	json_t *given = NULL, *checked = NULL;
	char path[160];
	int rc;

	if (value) {
		(void)snprintf(path, sizeof(path), "%s.%s", section, option->name);
		rc = kvc_json_text(path, value, &given);
		if (rc == 0)
			rc = kvc_value_check(option, path, given, &checked);
		json_decref(given);
	} else {
		rc = kvc_value_default(option, &checked);
	}
	if (rc < 0)
		return rc;
	out->name = strdup(option->name);
	out->value = kvc_value_text(checked);
	json_decref(checked);
	return out->name && out->value ? 0 : -ENOMEM;
}

int kvc_options_validate(const struct kvc_option *table, size_t count, const char *section,
			 bool strict, const struct kvc_setting *given, size_t given_count,
			 struct kvc_setting **out, size_t *out_count)
{
	struct kvc_setting *settings;
	int rc = 0;

	for (size_t i = 0; i < given_count && strict; i++)
		if (!kvc_option_find(table, count, given[i].name))
			return kvc_option_unknown(table, count, section, given[i].name);
	settings = calloc(count + 1, sizeof(*settings));
	if (!settings)
		return -ENOMEM;
	for (size_t i = 0; i < count && rc == 0; i++)
		rc = make_setting(&table[i], section,
				  given_value(given, given_count, table[i].name), &settings[i]);
	if (rc < 0) {
		kvc_settings_list_free(settings, count);
		return rc;
	}
	*out = settings;
	*out_count = count;
	return 0;
}

void kvc_settings_list_free(struct kvc_setting *settings, size_t count)
{
	if (!settings)
		return;
	for (size_t i = 0; i < count; i++) {
		free((char *)(uintptr_t)settings[i].name);
		free((char *)(uintptr_t)settings[i].value);
	}
	free(settings);
}
