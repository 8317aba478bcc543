/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every command of `kvcellar` shares. Readers: writers of cli/cmd_<name>.c.
 *
 * A command is a row of the table in main.c and a function that parses its own arguments with
 * cli_parse() and returns an exit code (enum cli_exit). Helpers that can fail have told the user
 * already, and return the exit code to pass on; 0 means go on.
 */
#ifndef KVC_CLI_H
#define KVC_CLI_H

#include <kvcellar/kvcellar.h>

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes; docs/errors.md says what each means. */
enum cli_exit {
	CLI_DONE = 0,
	CLI_WRONG = 1,
	CLI_USAGE = 2,
	CLI_MISS = 3,
	CLI_CORRUPT = 4,
	CLI_NO_SPACE = 5,
	CLI_DENIED = 6,
	CLI_TIMEOUT = 7,
	CLI_IO = 8,
	CLI_CONFIG = 9,
	CLI_INTERRUPTED = 130,
};

/* The --model ... options of a command, in the order given; read by cli_namespace_open(). */
struct cli_namespace_options {
	struct kvc_namespace_params params;
	const char *pool;	/* --pool; NULL = not given */
	const char *part_bytes; /* --part-bytes: pages of a pool; NULL = single objects */
	uint32_t byte_order;	/* --byte-order, enum kvc_byte_order */
	bool copy_mode;		/* --copy-mode */
	bool hex;		/* --hex: keys are hexadecimal */
};

/* -c, -D and -s as given, or options of a command that are like them. */
struct cli_overrides {
	struct cli_override *list;
	size_t count;
};

#define CLI_PAGE_TOKENS 64u	 /* --page-tokens when it is not given */
#define CLI_OBJECT_POOL "object" /* --pool of single objects when it is not given */

struct kvc_cli {
	const char *command; /* name of the running command */
	bool json;
	bool quiet;
	bool no_progress;
	bool color; /* stdout is a terminal that takes colours */
	int verbose;
	struct cli_overrides overrides;
	struct cli_namespace_options ns;
	struct kvc_config *config; /* after cli_parse() */
	struct kvc_store *store;   /* after cli_store_open(); closed by main */
	struct kvc_namespace *namespace_open;
};

struct cli_command {
	const char *name;
	const char *summary;
	int (*run)(struct kvc_cli *cli, int argc, char **argv);
};

int kvc_cmd_info(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_doctor(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_selftest(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_put(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_get(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_exists(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_rm(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_ls(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_stat(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_where(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_verify(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_usage(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_pin(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_unpin(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_clean(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_clear(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_convert(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_config(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_stats(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_top(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_replay(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_simulate(struct kvc_cli *cli, int argc, char **argv);
int kvc_cmd_bench(struct kvc_cli *cli, int argc, char **argv);

/* ---------------------------------------------------------------- arguments (options.c) */

enum cli_parse_flag {
	CLI_WITH_NAMESPACE = 1u << 0, /* also --model, --identity, --tp-size, ... */
	CLI_WITH_KEYS = 1u << 1,      /* also --hex, --pool */
	CLI_WITH_PAGES = 1u << 2,     /* also --part-bytes, --byte-order, --copy-mode */
	CLI_WITHOUT_CONFIG = 1u << 3, /* cli->config stays NULL; see cli_config_build() */
};

/*
 * Parses a command's arguments: its own argp, the global options, and what `flags` adds. Makes
 * cli->config. The command's parser gets `input` in state->input; it needs no case for help and
 * errors: on a bad value it returns cli_argp_error().
 * Returns 0 or CLI_USAGE, CLI_CONFIG. --help prints and ends the process.
 */
int cli_parse(struct kvc_cli *cli, const struct argp *argp, unsigned flags, int argc, char **argv,
	      void *input);

/* Ends the process after --help and --version have printed: 0, or the code of a write error. */
void cli_help_done(void) __attribute__((noreturn));

/* The --help text of an argp tree on stdout. */
void cli_help_print(const struct argp *argp, const char *name);

/* In an argp parser: remembers the text and returns EINVAL, which ends the parse with CLI_USAGE. */
error_t cli_argp_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For the parser of a command that wants one namespace: what is left after its own options. */
error_t cli_argp_namespace(int key, char *argument, const struct argp_state *state,
			   const char **out_id);

/* Values of options: 0, or EINVAL after cli_argp_error(). `name` is the option as typed. Sizes
 * take K, M, G, T (1024), KiB ..., kB ... (1000). */
error_t cli_argp_size(const char *name, const char *text, uint64_t *out);
error_t cli_argp_number(const char *name, const char *text, uint64_t least, uint64_t most,
			uint64_t *out);
error_t cli_argp_u32(const char *name, const char *text, uint32_t least, uint32_t most,
		     uint32_t *out);
error_t cli_argp_seconds(const char *name, const char *text, double least, double *out);

/* How an unknown command or a missing argument is told: CLI_USAGE, with a pointer to --help. */
int cli_usage(struct kvc_cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Frees what the options allocated. */
void cli_options_free(struct kvc_cli *cli);

/* The argp of the options that every command takes; its input is the struct kvc_cli. */
extern const struct argp cli_global_argp;

/* What a failed argp_parse() was about: cli_argp_error()'s text, or what getopt refused. */
void cli_argp_explain(const struct argp *argp, int argc, char **argv, int next);
const char *cli_argp_text(void);

/* A new configuration from -c, -D and -s, in that order: 0 or CLI_CONFIG. */
int cli_config_build(struct kvc_cli *cli, struct kvc_config **out);

/* In an argp parser: keeps the argument of an option that is like `kind`: 'c', 'D' or 's'. What may
 * hold a secret is blanked where everybody sees it. `option` is its name in messages. */
error_t cli_overrides_add(struct cli_overrides *overrides, int kind, const char *option,
			  char *argument);

/* Whether -s gives that key. */
bool cli_overrides_has(const struct cli_overrides *overrides, const char *path);

/* Brings those of a kind into a configuration, in the order given: 0 or a negative errno. */
int cli_overrides_apply(const struct cli_overrides *overrides, int kind, struct kvc_config *config);
void cli_overrides_free(struct cli_overrides *overrides);

/* The effective options of a configuration by name: a new reference, or NULL after an error. */
json_t *cli_config_options(struct kvc_cli *cli, struct kvc_config *config, int *exit_code);
json_t *cli_config_value(const json_t *options, const char *name); /* borrowed */

/* The nearest of the words, or NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *words, size_t count);

/* ---------------------------------------------------------------- store (session.c) */

/* Opens cli->config into cli->store; main closes it. flags: enum kvc_open_flag. */
int cli_store_open(struct kvc_cli *cli, unsigned flags);

/* After a look at it: opens cli->store anew, to write. */
int cli_store_reopen(struct kvc_cli *cli);

/* To change what is there: like cli_store_open(), but makes no folder that is missing. */
int cli_store_open_existing(struct kvc_cli *cli);

/* Paths of the roots of cli->store that it could not write whatever it asked for: a new reference
 * to an array of texts. */
json_t *cli_unwritable_roots(struct kvc_cli *cli);

/* A line for each root: what a recount corrected, or that the counts were right. */
void cli_print_corrected(const struct kvc_root_usage *before, const struct kvc_root_usage *now,
			 size_t count);

/* A namespace as typed: 0 when there are objects of it in cli->store; else it is told: CLI_USAGE
 * for what is no namespace id, CLI_MISS, or the code of what failed. */
int cli_namespace_check(struct kvc_cli *cli, const char *id);

/* The namespace of the options in cli->store; main closes it. */
int cli_namespace_open(struct kvc_cli *cli, struct kvc_namespace **out);

/* Also for a store of the command's own. */
int cli_namespace_open_in(struct kvc_cli *cli, struct kvc_store *store, struct kvc_namespace **out);

/* The pool of --pool and --part-bytes, without memory; the command closes it. out_sizes: NULL, or
 * its part sizes, out_count of them. */
#define CLI_PARTS_MAX 64
int cli_pool_open(struct kvc_cli *cli, struct kvc_namespace *ns, struct kvc_pool **out,
		  uint64_t out_sizes[CLI_PARTS_MAX], uint32_t *out_count);

/* --pool, or its default for single objects. */
const char *cli_pool_name(const struct kvc_cli *cli);

/* A key as typed: text, or hexadecimal with --hex. data is the command's to free. */
struct cli_key {
	struct kvc_key key;
	char *data;
};
int cli_key_make(struct kvc_cli *cli, const char *text, struct cli_key *out);
void cli_key_free(struct cli_key *key);

/* A single object into memory of its size, a multiple of the block size, for free(). capacity: what
 * it is thought to be; it may grow meanwhile. 0 or a negative errno. */
int cli_object_read(struct kvc_namespace *ns, const char *pool, struct kvc_key key,
		    uint32_t timeout_ms, size_t capacity, char **out, size_t *out_bytes);

/* Closes what is open; the exit code, or that of a close that failed. */
int cli_session_end(struct kvc_cli *cli, int exit_code);

/* ---------------------------------------------------------------- output (output.c) */

/* One line "kvcellar: <text>" on stderr, or with --json {"error": {...}}. Returns exit_code. */
int cli_error(struct kvc_cli *cli, int exit_code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The same for a failed call of the library: "kvcellar: <what>: <cause>", the cause from
 * kvc_last_error(). error: its negative errno. Returns the exit code that goes with it. */
int cli_fail(struct kvc_cli *cli, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Like cli_fail() for a call that was given a key: what is no valid key is CLI_USAGE. */
int cli_fail_key(struct kvc_cli *cli, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Like cli_fail_errno() for a file named on the command line that cannot be opened: CLI_USAGE,
 * whatever the cause is. */
int cli_fail_file(struct kvc_cli *cli, int error, const char *path);

/* Like cli_fail(), with the exit code given. */
int cli_fail_as(struct kvc_cli *cli, int exit_code, int error, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Like cli_fail(), the cause from the errno alone: for calls that are not the library's. */
int cli_fail_errno(struct kvc_cli *cli, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* "ENOENT" of either sign; "" for 0 and what is no errno. */
const char *cli_errno_name(int error);

int cli_exit_of_errno(int error);
int cli_exit_of_open(int error); /* of kvc_store_open() */
int cli_exit_of_result(const struct kvc_result *result);

/* What people read beside the result (summaries): stderr, not with -q or --json. */
void cli_note(struct kvc_cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The one JSON document of a command; takes the reference. NULL is out of memory. */
int cli_json_print(struct kvc_cli *cli, json_t *root);

/* A text value whatever its bytes are: what is not UTF-8, and control bytes, as \xNN. */
json_t *cli_json_text(const char *text);

/* Text fit for a terminal: control bytes and invalid UTF-8 as \xNN. NULL is out of memory. */
char *cli_printable(const char *text);

/* Library texts: calls get(context, buffer, bytes) as often as needed. NULL after cli_fail(). */
typedef int (*cli_text_fn)(void *context, char *buffer, size_t bytes);
char *cli_text(struct kvc_cli *cli, const char *what, cli_text_fn get, void *context,
	       int *exit_code);

#define CLI_FORMAT_BYTES 32
/* "1.5 GiB"; "123 us", "4.2 ms", "1 min 12 s"; "2026-01-01T00:00:00Z". Each returns buffer. */
const char *cli_format_size(char buffer[CLI_FORMAT_BYTES], uint64_t bytes);
const char *cli_format_seconds(char buffer[CLI_FORMAT_BYTES], double seconds);
const char *cli_format_time(char buffer[CLI_FORMAT_BYTES], int64_t ns_since_1970);

/* Escape sequences when colours are on, else "". */
const char *cli_bold(const struct kvc_cli *cli);
const char *cli_red(const struct kvc_cli *cli);
const char *cli_green(const struct kvc_cli *cli);
const char *cli_plain(const struct kvc_cli *cli);

/* Whether a descriptor is a terminal that knows escape sequences, and whether colours are wanted
 * there (NO_COLOR). */
bool cli_terminal_usable(int fd);
bool cli_color_wanted(int fd);

/* After SIGINT: the command stops soon, cleans up, and returns CLI_INTERRUPTED. */
bool cli_interrupted(void);

/* Before anything is printed: lets cli_output_end() know the cause of a failed write. */
void cli_output_begin(void);

/* Flushes stdout; a write error becomes the exit code (silently for a reader that went away). */
int cli_output_end(struct kvc_cli *cli, int exit_code);

/* Log lines of the library to stderr, by -q and -v. */
void cli_log_begin(struct kvc_cli *cli);

/* ---------------------------------------------------------------- progress (progress.c) */

enum cli_unit {
	CLI_UNIT_COUNT = 0,
	CLI_UNIT_BYTES = 1,
};

/* A bar on stderr, only where that is a terminal, and not with -q, --json or --no-progress. All
 * calls are cheap and do nothing otherwise; one thread at a time. */
struct cli_progress {
	const char *label;
	uint64_t total; /* 0 = not known */
	uint64_t done;
	int64_t begin_ns;
	int64_t shown_ns;
	enum cli_unit unit;
	bool active;
	bool color;
};

void cli_progress_begin(struct kvc_cli *cli, struct cli_progress *progress, const char *label,
			uint64_t total, enum cli_unit unit);
void cli_progress_update(struct cli_progress *progress, uint64_t done);

/* Removes the bar, so that what is printed next stands on a line of its own. */
void cli_progress_clear(struct cli_progress *progress);
void cli_progress_end(struct cli_progress *progress);

#endif
