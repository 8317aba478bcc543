/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_trace.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_BYTES_MAX (16u << 20)
#define PAGES_MAX      (1u << 24)

struct replay_reader {
	FILE *file;
	char *line;
	size_t line_bytes;
	size_t line_capacity;
	uint64_t line_number;
	uint64_t total;
	uint64_t sequence;
	uint64_t bad_lines;
	uint64_t dropped;
	struct replay_request *pending; /* read by replay_reader_detect() */
	enum replay_form form;
	bool skip_bad;
	bool (*stopped)(void);
	char error[256];
};

static int fail(struct replay_reader *reader, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The error names the line. */
static int fail(struct replay_reader *reader, int error, const char *format, ...)
{
	va_list arguments;
	int used = snprintf(reader->error, sizeof(reader->error), "line %" PRIu64 ": ",
			    reader->line_number);

	va_start(arguments, format);
	vsnprintf(reader->error + used, sizeof(reader->error) - (size_t)used, format, arguments);
	va_end(arguments);
	return error;
}

int replay_reader_open(const char *path, bool skip_bad, bool (*stopped)(void),
		       struct replay_reader **out)
{
	struct replay_reader *reader = calloc(1, sizeof(*reader));
	struct stat found;
	int error;

	if (reader == NULL)
		return -ENOMEM;
	reader->file = fopen(path, "re");
	if (reader->file == NULL) {
		error = -errno;
		goto free_reader;
	}
	if (fstat(fileno(reader->file), &found) != 0) {
		error = -errno;
		goto close_file;
	}
	if (S_ISDIR(found.st_mode)) {
		error = -EISDIR;
		goto close_file;
	}
	reader->total = S_ISREG(found.st_mode) ? (uint64_t)found.st_size : 0;
	reader->skip_bad = skip_bad;
	reader->stopped = stopped;
	*out = reader;
	return 0;

close_file:
	fclose(reader->file);
free_reader:
	free(reader);
	return error;
}

void replay_reader_close(struct replay_reader *reader)
{
	if (reader == NULL)
		return;
	fclose(reader->file);
	free(reader->pending);
	free(reader->line);
	free(reader);
}

int replay_reader_rewind(struct replay_reader *reader)
{
	if (fseeko(reader->file, 0, SEEK_SET) != 0)
		return fail(reader, -errno, "the trace cannot be read again: %s",
			    strerrordesc_np(errno));
	free(reader->pending);
	reader->pending = NULL;
	reader->line_number = 0;
	return 0;
}

static bool is_stopped(const struct replay_reader *reader)
{
	return reader->stopped != NULL && reader->stopped();
}

/* The next byte; EOF at the end, at an error and when it is stopped. */
static int next_byte(struct replay_reader *reader)
{
	int byte;

	while (!is_stopped(reader)) {
		byte = getc_unlocked(reader->file);
		if (byte != EOF || !ferror_unlocked(reader->file) || errno != EINTR)
			return byte;
		clearerr_unlocked(reader->file);
	}
	return EOF;
}

/* Drops the rest of a line that is too long, which may have no end at all. */
static void skip_line(struct replay_reader *reader)
{
	int byte;

	do {
		byte = next_byte(reader);
	} while (byte != EOF && byte != '\n');
}

/* One line without its end into reader->line: 1, 0 at the end, -EINVAL when it is too long. */
static int read_line(struct replay_reader *reader)
{
	int byte;

	reader->line_bytes = 0;
	reader->line_number++;
	while ((byte = next_byte(reader)) != EOF && byte != '\n') {
		if (reader->line_bytes == LINE_BYTES_MAX) {
			if (reader->skip_bad)
				skip_line(reader);
			return fail(reader, -EINVAL, "longer than %u MiB", LINE_BYTES_MAX >> 20);
		}
		if (reader->line_bytes == reader->line_capacity) {
			size_t capacity = reader->line_capacity * 2 + 4096;
			char *grown = realloc(reader->line, capacity);

			if (grown == NULL)
				return fail(reader, -ENOMEM, "out of memory");
			reader->line = grown;
			reader->line_capacity = capacity;
		}
		reader->line[reader->line_bytes++] = (char)byte;
	}
	if (byte == EOF) {
		if (is_stopped(reader))
			return -EINTR;
		if (ferror(reader->file))
			return fail(reader, -EIO, "%s", strerrordesc_np(errno));
		return reader->line_bytes > 0;
	}
	return 1;
}

static bool line_is_blank(const struct replay_reader *reader)
{
	for (size_t i = 0; i < reader->line_bytes; i++)
		if (strchr(" \t\r", reader->line[i]) == NULL || reader->line[i] == '\0')
			return false;
	return true;
}

/* A request with room for run_count runs. */
static struct replay_request *request_new(size_t run_count)
{
	return calloc(1, sizeof(struct replay_request) + run_count * sizeof(struct replay_run));
}

/* Adds pages, as part of the last run when they continue it. false: too many pages. */
static bool request_add(struct replay_request *request, uint64_t space, uint64_t id, uint64_t count)
{
	struct replay_run *last = request->run_count > 0 ? &request->runs[request->run_count - 1] :
							   NULL;

	if (count > PAGES_MAX - request->page_count)
		return false;
	request->page_count += (uint32_t)count;
	if (count == 0)
		return true;
	if (last != NULL && last->first.space == space && last->first.id + last->count == id) {
		last->count += count;
		return true;
	}
	request->runs[request->run_count++] =
		(struct replay_run){ .first = { space, id }, .count = count };
	return true;
}

static bool number_of(const json_t *value, double *out)
{
	if (!json_is_number(value) || json_number_value(value) < 0)
		return false;
	*out = json_number_value(value);
	return true;
}

static bool integer_of(const json_t *value, uint64_t *out)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*out = (uint64_t)json_integer_value(value);
	return true;
}

static int parse_mooncake(struct replay_reader *reader, const json_t *root,
			  struct replay_request **out)
{
	const json_t *ids = json_object_get(root, "hash_ids");
	struct replay_request *request;
	const char *problem;

	if (!json_is_array(ids))
		return fail(reader, -EINVAL, "no list \"hash_ids\"");
	request = request_new(json_array_size(ids));
	if (request == NULL)
		return fail(reader, -ENOMEM, "out of memory");
	problem = "\"timestamp\" is not a number of milliseconds";
	if (!number_of(json_object_get(root, "timestamp"), &request->at_ms))
		goto bad;
	for (size_t i = 0; i < json_array_size(ids); i++) {
		uint64_t id;

		problem = "\"hash_ids\" holds something else than numbers >= 0";
		if (!integer_of(json_array_get(ids, i), &id))
			goto bad;
		problem = "more than 16777216 pages";
		if (!request_add(request, 0, id, 1))
			goto bad;
	}
	request->op = REPLAY_OP_REQUEST;
	request->session = reader->line_number;
	*out = request;
	return 0;

bad:
	free(request);
	return fail(reader, -EINVAL, "%s", problem);
}

static int parse_compact(struct replay_reader *reader, const json_t *root,
			 struct replay_request **out)
{
	const json_t *runs = json_array_get(root, 4);
	struct replay_request *request;
	double seconds, tokens;
	const char *problem;

	if (!json_is_array(runs) || json_array_size(root) != 5)
		return fail(reader, -EINVAL,
			    "not [session, seconds, in, out, [[first, count], ...]]");
	request = request_new(json_array_size(runs));
	if (request == NULL)
		return fail(reader, -ENOMEM, "out of memory");
	problem = "the session, times or token counts are not numbers >= 0";
	if (!integer_of(json_array_get(root, 0), &request->session) ||
	    !number_of(json_array_get(root, 1), &seconds) ||
	    !number_of(json_array_get(root, 2), &tokens) ||
	    !number_of(json_array_get(root, 3), &tokens))
		goto bad;
	for (size_t i = 0; i < json_array_size(runs); i++) {
		const json_t *run = json_array_get(runs, i);
		uint64_t first, count;

		problem = "a run is not [first_id, count]";
		if (json_array_size(run) != 2 || !integer_of(json_array_get(run, 0), &first) ||
		    !integer_of(json_array_get(run, 1), &count))
			goto bad;
		problem = "more than 16777216 pages";
		if (!request_add(request, request->session, first, count))
			goto bad;
	}
	request->at_ms = seconds * 1000;
	request->op = REPLAY_OP_REQUEST;
	*out = request;
	return 0;

bad:
	free(request);
	return fail(reader, -EINVAL, "%s", problem);
}

static bool operation_of(const json_t *value, uint32_t *out)
{
	static const char *const names[KVC_OPERATION_COUNT] = { "exists", "get", "set", "remove" };
	const char *text = json_string_value(value);

	for (uint32_t op = 0; text != NULL && op < KVC_OPERATION_COUNT; op++) {
		if (strcmp(text, names[op]) == 0) {
			*out = op;
			return true;
		}
	}
	return false;
}

static bool hex64_of(const json_t *value, uint64_t *out)
{
	const char *text = json_string_value(value);
	uint64_t hash = 0;

	if (text == NULL || json_string_length(value) != 16)
		return false;
	for (int i = 0; i < 16; i++) {
		static const char digits[] = "0123456789abcdef";
		const char *digit = strchr(digits, text[i]);

		if (digit == NULL || *digit == '\0')
			return false;
		hash = hash << 4 | (uint64_t)(digit - digits);
	}
	*out = hash;
	return true;
}

/* FNV-1a: pools of one recording have pages of their own. */
static uint64_t space_of(const char *pool)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (; *pool != '\0'; pool++)
		hash = (hash ^ (uint8_t)*pool) * 0x100000001b3ull;
	return hash;
}

static int parse_recording(struct replay_reader *reader, const json_t *root,
			   struct replay_request **out)
{
	const json_t *keys = json_object_get(root, "keys");
	const json_t *thread = json_object_get(root, "thread");
	const char *pool = json_string_value(json_object_get(root, "pool"));
	struct replay_request *request;
	const char *problem;
	uint64_t count;

	if (json_object_get(root, "kvcellar_trace") != NULL) {
		if (json_integer_value(json_object_get(root, "kvcellar_trace")) == 1)
			return 0;
		return fail(reader, -EINVAL, "a recording of another version than 1");
	}
	if (integer_of(json_object_get(root, "dropped"), &count)) {
		reader->dropped += count;
		return 0;
	}
	if (!json_is_array(keys))
		return fail(reader, -EINVAL, "no list \"keys\"");
	if (pool == NULL)
		return fail(reader, -EINVAL, "no text \"pool\"");
	request = request_new(json_array_size(keys));
	if (request == NULL)
		return fail(reader, -ENOMEM, "out of memory");
	problem = "\"t_ms\" is not a number of milliseconds";
	if (!number_of(json_object_get(root, "t_ms"), &request->at_ms))
		goto bad;
	problem = "\"op\" is not exists, get, set or remove";
	if (!operation_of(json_object_get(root, "op"), &request->op))
		goto bad;
	problem = "\"n\" is not the number of keys";
	if (!integer_of(json_object_get(root, "n"), &count) || count != json_array_size(keys))
		goto bad;
	problem = "\"thread\" is not a number >= 0";
	if (thread != NULL && !integer_of(thread, &request->session))
		goto bad;
	for (size_t i = 0; i < json_array_size(keys); i++) {
		uint64_t hash;

		problem = "a key is not 16 lower-case hex digits";
		if (!hex64_of(json_array_get(keys, i), &hash))
			goto bad;
		problem = "more than 16777216 pages";
		if (!request_add(request, space_of(pool), hash, 1))
			goto bad;
	}
	*out = request;
	return 0;

bad:
	free(request);
	return fail(reader, -EINVAL, "%s", problem);
}

static enum replay_form form_of(const json_t *root)
{
	if (json_is_array(root))
		return REPLAY_FORM_COMPACT;
	if (json_object_get(root, "kvcellar_trace") != NULL)
		return REPLAY_FORM_RECORDING;
	if (json_object_get(root, "hash_ids") != NULL)
		return REPLAY_FORM_MOONCAKE;
	return REPLAY_FORM_UNKNOWN;
}

/* The line's request; *out stays NULL for a line that holds none. */
static int parse_line(struct replay_reader *reader, struct replay_request **out)
{
	json_error_t cause;
	json_t *root = json_loadb(reader->line, reader->line_bytes, JSON_REJECT_DUPLICATES, &cause);
	enum replay_form form = reader->form;
	int error;

	if (root == NULL)
		return fail(reader, -EINVAL, "not JSON: %s (column %d)", cause.text, cause.column);
	if (form == REPLAY_FORM_UNKNOWN)
		form = form_of(root);
	if (form == REPLAY_FORM_MOONCAKE)
		error = parse_mooncake(reader, root, out);
	else if (form == REPLAY_FORM_COMPACT)
		error = parse_compact(reader, root, out);
	else if (form == REPLAY_FORM_RECORDING)
		error = parse_recording(reader, root, out);
	else
		error = fail(reader, -EINVAL,
			     "neither a Mooncake request, nor the compact form, nor the first line "
			     "of a recording (docs/trace-format.md)");
	if (error == 0)
		reader->form = form;
	json_decref(root);
	return error;
}

int replay_reader_next(struct replay_reader *reader, struct replay_request **out)
{
	if (reader->pending != NULL) {
		*out = reader->pending;
		reader->pending = NULL;
		return 1;
	}
	for (;;) {
		struct replay_request *request = NULL;
		int error = read_line(reader);

		if (error == 0)
			return 0;
		if (error > 0) {
			if (line_is_blank(reader))
				continue;
			error = parse_line(reader, &request);
		}
		if (error == -EINVAL && reader->skip_bad) {
			reader->bad_lines++;
			continue;
		}
		if (error < 0)
			return error;
		if (request == NULL)
			continue;
		request->line = reader->line_number;
		request->sequence = reader->sequence++;
		*out = request;
		return 1;
	}
}

int replay_reader_detect(struct replay_reader *reader)
{
	return reader->pending != NULL ? 1 : replay_reader_next(reader, &reader->pending);
}

const char *replay_reader_error(const struct replay_reader *reader)
{
	return reader->error;
}

enum replay_form replay_reader_form(const struct replay_reader *reader)
{
	return reader->form;
}

uint64_t replay_reader_total(const struct replay_reader *reader)
{
	return reader->total;
}

uint64_t replay_reader_bad_lines(const struct replay_reader *reader)
{
	return reader->bad_lines;
}

uint64_t replay_reader_dropped(const struct replay_reader *reader)
{
	return reader->dropped;
}

int replay_lines(const char *path, uint64_t *out)
{
	FILE *file = fopen(path, "re");
	char buffer[16384], last = '\n';
	uint64_t lines = 0;
	size_t got;
	int error = 0;

	if (file == NULL)
		return -errno;
	while ((got = fread(buffer, 1, sizeof(buffer), file)) > 0) {
		for (size_t i = 0; i < got; i++)
			lines += buffer[i] == '\n';
		last = buffer[got - 1];
	}
	if (ferror(file))
		error = -EIO;
	fclose(file);
	if (error == 0)
		*out = lines + (last != '\n');
	return error;
}

const char *replay_form_name(enum replay_form form)
{
	switch (form) {
	case REPLAY_FORM_MOONCAKE:
		return "mooncake";
	case REPLAY_FORM_COMPACT:
		return "compact";
	case REPLAY_FORM_RECORDING:
		return "recording";
	case REPLAY_FORM_UNKNOWN:
		break;
	}
	return "unknown";
}

uint32_t replay_form_page_tokens(enum replay_form form)
{
	return form == REPLAY_FORM_MOONCAKE ? 512 : 64;
}

void replay_request_pages(const struct replay_request *request, struct replay_page *out)
{
	for (size_t i = 0; i < request->run_count; i++) {
		const struct replay_run *run = &request->runs[i];

		for (uint64_t k = 0; k < run->count; k++)
			*out++ = (struct replay_page){ run->first.space, run->first.id + k };
	}
}
