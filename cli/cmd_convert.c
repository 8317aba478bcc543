/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar convert: the objects of one store into another one, between layouts and namings. */
#include "convert.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_TO_CONFIG = 0x300,
	OPTION_TO_DIR,
	OPTION_TO_SET,
	OPTION_LAYOUT,
	OPTION_NAMING,
	OPTION_MOVE,
	OPTION_DRY_RUN,
	OPTION_OVERWRITE,
	OPTION_CURSOR,
	OPTION_TIMEOUT,
};

#define TIMEOUT_S 60u

static error_t add_config(struct convert_arguments *arguments, char *argument)
{
	if (arguments->has_config)
		return cli_argp_error("--to-config is given twice");
	arguments->has_config = true;
	return cli_overrides_add(&arguments->to, 'c', "--to-config", argument);
}

static error_t parse_convert(int key, char *argument, struct argp_state *state)
{
	struct convert_arguments *arguments = state->input;

	switch (key) {
	case OPTION_TO_CONFIG:
		return add_config(arguments, argument);
	case OPTION_TO_DIR:
		arguments->to_dirs = argument;
		return 0;
	case OPTION_TO_SET:
		return cli_overrides_add(&arguments->to, 's', "--to-set", argument);
	case OPTION_LAYOUT:
		arguments->layout = argument;
		return 0;
	case OPTION_NAMING:
		arguments->naming = argument;
		return 0;
	case OPTION_MOVE:
		arguments->move = true;
		return 0;
	case OPTION_DRY_RUN:
		arguments->dry_run = true;
		return 0;
	case OPTION_OVERWRITE:
		arguments->overwrite = true;
		return 0;
	case OPTION_CURSOR:
		arguments->cursor = argument;
		return 0;
	case OPTION_TIMEOUT:
		return cli_argp_number("--timeout", argument, 1, 3600, &arguments->timeout_seconds);
	case ARGP_KEY_ARG:
		if (state->arg_num > 0)
			return cli_argp_error("unexpected argument '%.200s'", argument);
		arguments->id = argument;
		return 0;
	case ARGP_KEY_END:
		if (!arguments->has_config && !arguments->to_dirs)
			return cli_argp_error("no target: --to-config or --to-dir says where to");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option convert_options[] = {
	{ "to-config", OPTION_TO_CONFIG, "FILE|TEXT", 0, "Configuration of the target, like -c",
	  0 },
	{ "to-dir", OPTION_TO_DIR, "DIR[,DIR...]", 0,
	  "Its storage directories; without --to-config everything else is as in the source", 0 },
	{ "to-set", OPTION_TO_SET, "PATH=VALUE", 0, "One key of its configuration, like -s", 0 },
	{ "layout", OPTION_LAYOUT, "files|packed", 0, "Its storage layout (storage_layout)", 0 },
	{ "naming", OPTION_NAMING, "kvcellar|nixl", 0,
	  "Its naming. When it is another one than the source's, the namespace options and --pool, "
	  "--part-bytes say whose objects are converted",
	  0 },
	{ "move", OPTION_MOVE, NULL, 0,
	  "Remove each object from the source once it is stored, on stable storage, and compared",
	  0 },
	{ "overwrite", OPTION_OVERWRITE, NULL, 0,
	  "Write also what is in the target already with other bytes", 0 },
	{ "dry-run", OPTION_DRY_RUN, NULL, 0, "Only read and check; nothing is written", 0 },
	{ "cursor", OPTION_CURSOR, "FILE", 0,
	  "Note there what is done, so that the next run with it goes on; removed at the end", 0 },
	{ "timeout", OPTION_TIMEOUT, "SECONDS", 0, "For each transfer; default: 60", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp convert_argp = {
	.options = convert_options,
	.parser = parse_convert,
	.args_doc = "[NAMESPACE]",
	.doc = "Stores the objects of the configured store, of one namespace or of all, in another "
	       "one: in another storage layout, under another naming, in other directories. Each "
	       "is checked, stored, read back and compared; nothing is evicted for it."
	       "\v"
	       "The source and the target are different directories: a root keeps its layout and "
	       "naming. What cannot be converted stays where it is, and is told. After an "
	       "interruption the same command goes on; --cursor spares it to compare what is done "
	       "already.\n\n"
	       "Exit codes: 0 all done; 4 something is corrupt in the source; 5 the target is "
	       "full; 1 something cannot be converted; else the code of the failure.\n\n"
	       "Examples:\n"
	       "  kvcellar convert -D /fast/files --to-dir /fast/packed --layout packed \\\n"
	       "      --cursor done\n"
	       "  kvcellar convert -c old.toml --to-config new.toml --move\n"
	       "  kvcellar convert -D /hicache -s naming=nixl --to-dir /new --naming kvcellar \\\n"
	       "      --model llama --part-bytes 64K,64K",
};

/* ---------------------------------------------------------------- one object */

static int add_problem(struct convert *convert, const struct kvc_object_info *info,
		       const char *word, const char *why)
{
	char *text = cli_printable(why), *path = cli_printable(info->path);
	json_t *problem;

	if (convert->cli->json) {
		problem = json_pack("{s:s, s:o, s:o, s:o}", "problem", word, "root",
				    cli_json_text(info->root_path), "path",
				    cli_json_text(info->path), "cause", cli_json_text(why));
		(void)json_array_append_new(convert->problems, problem);
	} else {
		cli_progress_clear(&convert->progress);
		if (strstr(why, info->path))
			printf("%s%s%s  %s\n", cli_red(convert->cli), word, cli_plain(convert->cli),
			       text ? text : "?");
		else
			printf("%s%s%s  %s/%s: %s\n", cli_red(convert->cli), word,
			       cli_plain(convert->cli), info->root_path, path ? path : "?",
			       text ? text : "?");
	}
	free(path);
	free(text);
	return 0;
}

static bool is_fatal(int error)
{
	return error == -ENOSPC || error == -EDQUOT || error == -EROFS || error == -EINVAL ||
	       error == -ENOMEM;
}

/* What could not be converted stays; what ends the run is told at its end. */
static int note_failure(struct convert *convert, const struct kvc_object_info *info, int error)
{
	const char *why = *kvc_last_error() ? kvc_last_error() : strerror(-error);

	if (error == -ENOENT)
		return 0; /* somebody removed it, or it was evicted, meanwhile */
	if (is_fatal(error))
		return error;
	if (error == -EBADMSG) {
		convert->corrupt++;
		convert->exit_code = CLI_CORRUPT;
		return add_problem(convert, info, "corrupt", why);
	}
	if (error == -ENOTSUP || error == -EEXIST) {
		convert->kept++;
		if (convert->exit_code == CLI_DONE)
			convert->exit_code = CLI_WRONG;
		return add_problem(convert, info, error == -EEXIST ? "differs" : "kept", why);
	}
	convert->failed++;
	if (convert->exit_code == CLI_DONE || convert->exit_code == CLI_WRONG)
		convert->exit_code = cli_exit_of_errno(error);
	return add_problem(convert, info, "failed", why);
}

static int note_done(struct convert *convert, const struct kvc_object_info *info)
{
	int rc = 0;

	if (!convert->cursor)
		return 0;
	if (cli_cursor_is_due(convert->cursor))
		rc = cli_cursor_flush(convert->cursor, convert->to_roots);
	return rc ? rc : cli_cursor_add(convert->cursor, info);
}

static int copy_one(const struct convert *convert, const struct kvc_object_info *info)
{
	const struct convert_arguments *arguments = convert->arguments;
	const unsigned flags = (arguments->move ? KVC_COPY_REMOVE : 0u) |
			       (arguments->overwrite ? KVC_COPY_OVERWRITE : 0u) |
			       (arguments->dry_run ? KVC_COPY_DRY_RUN : 0u);

	return kvc_object_copy(convert->cli->store, info->root_path, info->path, convert->to, flags,
			       (uint32_t)arguments->timeout_seconds * 1000);
}

static int convert_one(void *context, const struct kvc_object_info *info)
{
	struct convert *convert = context;
	int rc;

	if (cli_interrupted())
		return -EINTR;
	cli_progress_update(&convert->progress, ++convert->seen);
	if (cli_cursor_has(convert->cursor, info)) {
		convert->resumed++;
		return 0;
	}
	rc = !convert->to	   ? CONVERT_COPIED :
	     convert->other_naming ? cli_naming_one(convert, info) :
				     copy_one(convert, info);
	if (rc == CONVERT_NOT_ASKED) {
		convert->passed++;
		return 0;
	}
	if (rc < 0)
		return note_failure(convert, info, rc);
	convert->copied += rc == CONVERT_COPIED;
	convert->existed += rc == CONVERT_EXISTED;
	if (rc == CONVERT_COPIED)
		convert->bytes += info->stored_bytes;
	return note_done(convert, info);
}

/* ---------------------------------------------------------------- all of them */

struct names {
	char **ids;
	size_t count;
	uint64_t objects;
};

static int note_namespace(void *context, const struct kvc_object_info *info)
{
	struct names *names = context;
	char **grown;

	if (cli_interrupted())
		return -EINTR;
	names->objects++;
	for (size_t i = names->count; i-- > 0;)
		if (strcmp(names->ids[i], info->ns_id) == 0)
			return 0;
	grown = reallocarray(names->ids, names->count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	names->ids = grown;
	grown[names->count] = strdup(info->ns_id);
	return grown[names->count++] ? 0 : -ENOMEM;
}

static int count_nothing(void *context, const struct kvc_object_info *info)
{
	(void)context;
	(void)info;
	return 1;
}

/* Folders and segments of namespaces from which everything was moved. */
static void clear_moved(struct convert *convert, const struct names *names)
{
	struct kvc_clear_report report = { .size = sizeof(report) };

	if (!convert->arguments->move || convert->arguments->dry_run || convert->other_naming)
		return;
	for (size_t i = 0; i < names->count; i++)
		if (names->ids[i][0] &&
		    kvc_object_list(convert->cli->store, names->ids[i], count_nothing, NULL) == 0)
			(void)kvc_namespace_clear(convert->cli->store, names->ids[i], 0, &report);
}

/* What is stored and compared goes from the source, whoever stored it. */
static uint64_t removed_count(const struct convert *convert)
{
	return convert->arguments->move && !convert->arguments->dry_run ?
		       convert->copied + convert->existed :
		       0;
}

static int print_summary(struct convert *convert, bool complete)
{
	char size[CLI_FORMAT_BYTES];
	const bool dry_run = convert->arguments->dry_run;

	if (convert->cli->json)
		return cli_json_print(
			convert->cli,
			json_pack("{s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:O}",
				  "complete", complete, "dry_run", dry_run, "converted",
				  (json_int_t)convert->copied, "existed",
				  (json_int_t)convert->existed, "removed",
				  (json_int_t)removed_count(convert), "resumed",
				  (json_int_t)convert->resumed, "passed_over",
				  (json_int_t)convert->passed, "corrupt",
				  (json_int_t)convert->corrupt, "kept", (json_int_t)convert->kept,
				  "failed", (json_int_t)convert->failed, "stored_bytes",
				  (json_int_t)convert->bytes, "problems", convert->problems));
	if (convert->cli->quiet)
		return 0;
	printf("%" PRIu64 " object%s, %s, %s; %" PRIu64 " were there already, %" PRIu64
	       " done by an earlier run",
	       convert->copied, convert->copied == 1 ? "" : "s",
	       cli_format_size(size, convert->bytes), dry_run ? "would be converted" : "converted",
	       convert->existed, convert->resumed);
	if (convert->passed)
		printf(", %" PRIu64 " not of the pool", convert->passed);
	if (convert->arguments->move && !dry_run)
		printf("; %" PRIu64 " removed from the source", removed_count(convert));
	printf("; %" PRIu64 " corrupt, %" PRIu64 " kept, %" PRIu64 " failed%s\n", convert->corrupt,
	       convert->kept, convert->failed,
	       complete		 ? "" :
	       cli_interrupted() ? " (interrupted)" :
				   " (incomplete)");
	return 0;
}

static void tell_how_to_go_on(const struct convert *convert)
{
	if (convert->arguments->dry_run)
		return;
	if (convert->arguments->cursor)
		cli_note(convert->cli, "The same command goes on; what '%.200s' notes is skipped.",
			 convert->arguments->cursor);
	else
		cli_note(convert->cli, "The same command goes on; what is in the target already is "
				       "compared (--cursor FILE skips it).");
}

/* The exit code; tells what ended it early. */
static int finish(struct convert *convert, int rc)
{
	char cause[600];
	bool complete;
	int flushed = 0, told;

	(void)snprintf(cause, sizeof(cause), "%s", kvc_last_error());
	cli_progress_end(&convert->progress);
	if (convert->cursor)
		flushed = cli_cursor_flush(convert->cursor, convert->to_roots);
	else if (convert->to && !convert->arguments->dry_run)
		cli_sync_roots(convert->to_roots);
	complete = rc == 0 && flushed == 0;
	cli_cursor_close(convert->cursor, complete && convert->exit_code == CLI_DONE);
	convert->cursor = NULL;
	told = print_summary(convert, complete);
	if (rc == -EINTR && cli_interrupted()) {
		tell_how_to_go_on(convert);
		return CLI_INTERRUPTED;
	}
	if (rc < 0)
		return cli_error(convert->cli, cli_exit_of_errno(rc), "convert: %s",
				 *cause ? cause : strerror(-rc));
	if (flushed)
		return cli_fail_errno(convert->cli, flushed, "cursor '%.200s'",
				      convert->arguments->cursor);
	rc = cli_convert_check_evicted(convert);
	return rc ? rc : told ? told : convert->exit_code;
}

static int convert_all(struct convert *convert)
{
	struct kvc_cli *cli = convert->cli;
	struct names names = { .count = 0 };
	int rc;

	convert->problems = json_array();
	rc = convert->problems ?
		     kvc_object_list(cli->store, convert->arguments->id, note_namespace, &names) :
		     -ENOMEM;
	if (rc == 0) {
		cli_progress_begin(cli, &convert->progress, "convert", names.objects,
				   CLI_UNIT_COUNT);
		rc = kvc_object_list(cli->store, convert->arguments->id, convert_one, convert);
	}
	if (rc == 0)
		clear_moved(convert, &names);
	for (size_t i = 0; i < names.count; i++)
		free(names.ids[i]);
	free(names.ids);
	return finish(convert, rc);
}

int kvc_cmd_convert(struct kvc_cli *cli, int argc, char **argv)
{
	struct convert_arguments arguments = { .timeout_seconds = TIMEOUT_S };
	struct convert convert = { .cli = cli, .arguments = &arguments };
	int rc;

	rc = cli_parse(cli, &convert_argp, CLI_WITH_NAMESPACE | CLI_WITH_KEYS | CLI_WITH_PAGES,
		       argc, argv, &arguments);
	if (rc == 0)
		rc = cli_convert_open(&convert);
	if (rc == 0)
		rc = convert_all(&convert);
	cli_convert_close(&convert);
	cli_overrides_free(&arguments.to);
	return rc;
}
