/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request traces, one request at a time. docs/trace-format.md describes the three forms. The
 * request keeps its pages as runs, so that one of 14 000 pages is small while it waits.
 */
#ifndef KVC_CLI_REPLAY_TRACE_H
#define KVC_CLI_REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum replay_form {
	REPLAY_FORM_UNKNOWN = 0,
	REPLAY_FORM_MOONCAKE = 1,  /* {"timestamp":..,"hash_ids":[..]}, 512-token pages */
	REPLAY_FORM_COMPACT = 2,   /* [session,t,in,out,[[first,count],..]], 64-token pages */
	REPLAY_FORM_RECORDING = 3, /* what trace_file recorded: operations of hashed keys */
};

/* What a page is called in its trace: equal names mean equal pages. */
struct replay_page {
	uint64_t space; /* session, or the recording's pool; 0 in the Mooncake form */
	uint64_t id;
};

/* Pages first, first + 1, ... of one space. */
struct replay_run {
	struct replay_page first;
	uint64_t count;
};

#define REPLAY_OP_REQUEST 255u /* not one operation: exists, get and set as an engine would */

struct replay_request {
	struct replay_request *next; /* of the queue it waits in */
	double at_ms;
	uint64_t session; /* requests of one session stay in order */
	uint64_t line;
	uint64_t sequence; /* 0, 1, 2 ... over the whole replay */
	uint32_t op;	   /* REPLAY_OP_REQUEST, or enum kvc_operation */
	uint32_t page_count;
	size_t run_count;
	struct replay_run runs[];
};

struct replay_reader;

/* replay_reader_open - stopped: asked while lines are read, and when it says true reading ends
 * with -EINTR; NULL = never. Errors: errno of the file; -EISDIR. */
int replay_reader_open(const char *path, bool skip_bad, bool (*stopped)(void),
		       struct replay_reader **out);

/*
 * replay_reader_next - 1 and a request (freed with free()), or 0 at the end.
 * Errors: -EINVAL (a malformed line: replay_reader_error() names it); -EIO, -EINTR, -ENOMEM.
 */
int replay_reader_next(struct replay_reader *reader, struct replay_request **out);

/* Reads ahead to the first request, so that the form is known: as replay_reader_next(). */
int replay_reader_detect(struct replay_reader *reader);

/* Back to the first line. -ESPIPE: the trace is not a file. */
int replay_reader_rewind(struct replay_reader *reader);

const char *replay_reader_error(const struct replay_reader *reader);
enum replay_form replay_reader_form(const struct replay_reader *reader);

/* The trace's bytes; 0 = not known. */
uint64_t replay_reader_total(const struct replay_reader *reader);

uint64_t replay_reader_bad_lines(const struct replay_reader *reader);
/* Calls that the recorder had to leave out. */
uint64_t replay_reader_dropped(const struct replay_reader *reader);

void replay_reader_close(struct replay_reader *reader);

/* replay_lines - counts the lines of a file. Errors: errno. */
int replay_lines(const char *path, uint64_t *out);

const char *replay_form_name(enum replay_form form);
uint32_t replay_form_page_tokens(enum replay_form form);

/* Copies the request's pages into out, which has page_count entries. */
void replay_request_pages(const struct replay_request *request, struct replay_page *out);

#endif
