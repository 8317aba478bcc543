/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of kvcellar convert share. */
#ifndef KVC_CLI_CONVERT_H
#define KVC_CLI_CONVERT_H

#include "cli.h"

struct cursor;

struct convert_arguments {
	const char *id;		 /* NULL: all namespaces */
	struct cli_overrides to; /* --to-config, --to-set */
	bool has_config;
	const char *to_dirs;
	const char *layout;
	const char *naming;
	const char *cursor;
	uint64_t timeout_seconds;
	bool move;
	bool overwrite;
	bool dry_run;
};

struct convert {
	struct kvc_cli *cli;
	const struct convert_arguments *arguments;
	struct kvc_config *to_config;
	struct kvc_store *to; /* NULL: dry run, and it is not there */
	json_t *from_roots;   /* as configured */
	json_t *to_roots;
	struct cursor *cursor; /* NULL: none */
	bool other_naming;

	/* Between namings: the same namespace and pool in both stores. */
	struct kvc_namespace *from_ns;
	struct kvc_namespace *to_ns;
	struct kvc_pool *from_pool; /* NULL: single objects */
	struct kvc_pool *to_pool;
	char suffix[512]; /* of the names of its first objects in the source */
	bool from_nixl;
	struct kvc_buffer buffers[CLI_PARTS_MAX];
	struct kvc_buffer others[CLI_PARTS_MAX];
	uint32_t part_count;

	struct cli_progress progress;
	uint64_t seen;
	uint64_t copied;
	uint64_t existed;
	uint64_t resumed; /* done by an earlier run, by the cursor */
	uint64_t passed;  /* not of the pool */
	uint64_t corrupt;
	uint64_t kept; /* cannot be converted, or is there with other bytes */
	uint64_t failed;
	uint64_t bytes;
	int exit_code;
	json_t *problems;
};

/* Results of one object beside negative errnos. */
enum convert_result {
	CONVERT_COPIED = 0,
	CONVERT_EXISTED = 1,
	CONVERT_NOT_ASKED = 2,
};

/* ---------------------------------------------------------------- convert_open.c */

/* Makes the target's configuration, and opens both stores and the cursor, once it is known that the
 * conversion can be done. 0 or an exit code; in both cases cli_convert_close() follows. */
int cli_convert_open(struct convert *convert);
void cli_convert_close(struct convert *convert);

/* Between namings, at the end: CLI_NO_SPACE when the target has evicted anything. */
int cli_convert_check_evicted(struct convert *convert);

/* ---------------------------------------------------------------- convert_cursor.c */

/*
 * What is done, in a file that an interrupted run finds again: a line that says between which
 * roots, and 16 bytes for each object. The end of a run that was killed is cut off; its last
 * objects are looked at again, which does no harm.
 */
int cli_cursor_open(struct kvc_cli *cli, const char *path, const char *identity,
		    struct cursor **out);
bool cli_cursor_has(const struct cursor *cursor, const struct kvc_object_info *info);
int cli_cursor_add(struct cursor *cursor, const struct kvc_object_info *info);

/* Whether what was added should be written soon. */
bool cli_cursor_is_due(const struct cursor *cursor);

/* Writes what was added, after the roots of the target are on stable storage. 0 or -errno. */
int cli_cursor_flush(struct cursor *cursor, const json_t *to_roots);

/* Closes it; done, or when it notes nothing: and removes it. */
void cli_cursor_close(struct cursor *cursor, bool done);

/* Brings the folders of these roots to stable storage. */
void cli_sync_roots(const json_t *roots);

/* ---------------------------------------------------------------- convert_naming.c */

/* Opens namespace and pool in both stores. 0 or an exit code. */
int cli_naming_begin(struct convert *convert);
int cli_naming_one(struct convert *convert, const struct kvc_object_info *info);
void cli_naming_end(struct convert *convert);

#endif
