/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text put together piece by piece in a buffer of the caller, for functions that work like
 * snprintf: what fits is written, always with NUL, and counting goes on past the end.
 *
 *	struct kvc_text text;
 *
 *	kvc_text_init(&text, buffer, bytes);
 *	kvc_text_add(&text, "root %s\n", path);
 *	return kvc_text_finish(&text);
 */
#ifndef KVC_CORE_TEXT_H
#define KVC_CORE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct kvc_text {
	char *buffer;
	size_t bytes;  /* of the buffer */
	size_t length; /* of the whole text so far, without NUL */
	bool failed;   /* a piece could not be formatted */
};

/* buffer may be NULL when bytes is 0: the text is only measured. */
void kvc_text_init(struct kvc_text *text, char *buffer, size_t bytes);

void kvc_text_add(struct kvc_text *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void kvc_text_add_list(struct kvc_text *text, const char *format, va_list args)
	__attribute__((format(printf, 2, 0)));

/* Plain bytes, as they are. */
void kvc_text_bytes(struct kvc_text *text, const char *data, size_t bytes);

/* A JSON string with its quotes, or null for NULL. Bytes that are not valid UTF-8 become U+FFFD, so
 * that the document stays valid whatever a path or name holds. */
void kvc_text_json(struct kvc_text *text, const char *value);

/* A value of a Prometheus label with its quotes: '\', '"' and newline are escaped. */
void kvc_text_label(struct kvc_text *text, const char *value);

/* The length of the whole text without NUL. -EOVERFLOW when an int cannot tell it. */
int kvc_text_finish(const struct kvc_text *text);

#endif
