/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text.h"

#include "core/log.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void kvc_text_init(struct kvc_text *text, char *buffer, size_t bytes)
{
	*text = (struct kvc_text){ .buffer = buffer, .bytes = buffer ? bytes : 0 };
	if (text->bytes > 0)
		buffer[0] = '\0';
}

void kvc_text_add_list(struct kvc_text *text, const char *format, va_list args)
{
	const size_t used = text->length < text->bytes ? text->length : text->bytes;
	char *const at = text->bytes > 0 ? text->buffer + used : NULL;
	const int length = vsnprintf(at, text->bytes - used, format, args);

	if (length < 0)
		text->failed = true;
	else
		text->length += (size_t)length;
}

void kvc_text_add(struct kvc_text *text, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	kvc_text_add_list(text, format, args);
	va_end(args);
}

void kvc_text_bytes(struct kvc_text *text, const char *data, size_t bytes)
{
	if (text->length + 1 < text->bytes) {
		const size_t room = text->bytes - 1 - text->length;
		const size_t fits = bytes < room ? bytes : room;

		memcpy(text->buffer + text->length, data, fits);
		text->buffer[text->length + fits] = '\0';
	}
	text->length += bytes;
}

/* Length of the valid UTF-8 sequence at `at` (no surrogates, nothing overlong), or 0. A NUL ends
 * every check of a following byte, so nothing past it is read. */
static size_t utf8_sequence(const unsigned char *at)
{
	static const uint32_t smallest[5] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint32_t code;
	size_t bytes;

	if (at[0] < 0x80)
		return 1;
	if (at[0] >= 0xc2 && at[0] <= 0xdf) {
		bytes = 2;
		code = at[0] & 0x1fu;
	} else if (at[0] >= 0xe0 && at[0] <= 0xef) {
		bytes = 3;
		code = at[0] & 0x0fu;
	} else if (at[0] >= 0xf0 && at[0] <= 0xf4) {
		bytes = 4;
		code = at[0] & 0x07u;
	} else {
		return 0;
	}
	for (size_t i = 1; i < bytes; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (at[i] & 0x3fu);
	}
	if (code < smallest[bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	return bytes;
}

static void json_control(struct kvc_text *text, unsigned char value)
{
	if (value == '\n')
		kvc_text_bytes(text, "\\n", 2);
	else if (value == '\t')
		kvc_text_bytes(text, "\\t", 2);
	else
		kvc_text_add(text, "\\u%04x", value);
}

void kvc_text_json(struct kvc_text *text, const char *value)
{
	const unsigned char *at = (const unsigned char *)value;

	if (!value) {
		kvc_text_bytes(text, "null", 4);
		return;
	}
	kvc_text_bytes(text, "\"", 1);
	while (*at != '\0') {
		const size_t bytes = utf8_sequence(at);

		if (bytes == 0) {
			kvc_text_bytes(text, "\xef\xbf\xbd", 3);
			at++;
			continue;
		}
		if (*at < 0x20 || *at == 0x7f) {
			json_control(text, *at);
		} else {
			if (*at == '"' || *at == '\\')
				kvc_text_bytes(text, "\\", 1);
			kvc_text_bytes(text, (const char *)at, bytes);
		}
		at += bytes;
	}
	kvc_text_bytes(text, "\"", 1);
}

void kvc_text_label(struct kvc_text *text, const char *value)
{
	const unsigned char *at = (const unsigned char *)value;

	kvc_text_bytes(text, "\"", 1);
	while (*at != '\0') {
		const size_t bytes = utf8_sequence(at);

		if (bytes == 0) {
			kvc_text_bytes(text, "\xef\xbf\xbd", 3);
			at++;
			continue;
		}
		if (*at == '\n') {
			kvc_text_bytes(text, "\\n", 2);
		} else {
			if (*at == '"' || *at == '\\')
				kvc_text_bytes(text, "\\", 1);
			kvc_text_bytes(text, (const char *)at, bytes);
		}
		at += bytes;
	}
	kvc_text_bytes(text, "\"", 1);
}

int kvc_text_finish(const struct kvc_text *text)
{
	if (text->failed || text->length > INT_MAX)
		return kvc_fail(-EOVERFLOW, "a text of %zu bytes cannot be given", text->length);
	return (int)text->length;
}
