/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar convert: the objects of one store into another one, between layouts and namings. */
#include "convert.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* ---------------------------------------------------------------- configurations */

/* Roots and naming that a configuration has. */
static int read_config(struct kvc_cli *cli, struct kvc_config *config, json_t **out_roots,
		       bool *out_nixl)
{
	int rc = 0;
	json_t *options = cli_config_options(cli, config, &rc);
	const char *naming = json_string_value(cli_config_value(options, "naming"));

	if (!options)
		return rc;
	*out_nixl = naming && strcmp(naming, "nixl") == 0;
	*out_roots = json_incref(cli_config_value(options, "storage_dirs"));
	json_decref(options);
	return json_is_array(*out_roots) && json_array_size(*out_roots) ?
		       0 :
		       cli_error(cli, CLI_CONFIG, "convert: the configuration names no roots");
}

static int set_option(struct kvc_config *config, const char *path, const char *value)
{
	return value ? kvc_config_set(config, path, value) : 0;
}

/* The source's with other directories, or one of its own. */
static int make_target_config(struct convert *convert)
{
	const struct convert_arguments *arguments = convert->arguments;
	struct kvc_cli *cli = convert->cli;
	int rc = 0;

	if (!arguments->has_config)
		rc = cli_config_build(cli, &convert->to_config);
	else if (kvc_config_new(&convert->to_config) < 0)
		rc = cli_fail_errno(cli, -ENOMEM, "convert");
	if (rc)
		return rc;
	rc = cli_overrides_apply(&arguments->to, 'c', convert->to_config);
	if (!rc && !arguments->has_config)
		rc = set_option(convert->to_config, "storage_layout", "auto");
	if (!rc)
		rc = set_option(convert->to_config, "storage_dirs", arguments->to_dirs);
	if (!rc)
		rc = set_option(convert->to_config, "storage_layout", arguments->layout);
	if (!rc)
		rc = set_option(convert->to_config, "naming", arguments->naming);
	/* What is removed from the source has to be on stable storage. */
	if (!rc && arguments->move)
		rc = set_option(convert->to_config, "durability", "fdatasync");
	if (!rc)
		rc = cli_overrides_apply(&arguments->to, 's', convert->to_config);
	/* A root that is not made yet has no layout. */
	if (!rc && arguments->dry_run)
		rc = set_option(convert->to_config, "storage_layout", "auto");
	return rc < 0 ? cli_fail_as(cli, CLI_CONFIG, rc, "the target's configuration") : 0;
}

/* ---------------------------------------------------------------- opening */

static int open_target(struct convert *convert)
{
	const bool dry_run = convert->arguments->dry_run;
	struct kvc_open_params params = {
		.size = sizeof(params),
		.flags = dry_run ? KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST : 0,
	};
	int rc = kvc_store_open(convert->to_config, &params, &convert->to);

	if (rc == -ENOENT && dry_run) {
		cli_note(convert->cli, "The target is not there yet: objects are only counted.");
		return 0;
	}
	return rc < 0 ? cli_fail_as(convert->cli, cli_exit_of_open(rc), rc,
				    "cannot open the target") :
			0;
}

/* A packed target that evicts loses what was moved into it; between namings a copy does not see to
 * that. */
static int check_move(struct convert *convert);

/* What tells one conversion from another. */
static char *identity_text(const struct convert *convert)
{
	const struct cli_namespace_options *ns = &convert->cli->ns;
	json_t *document = json_pack("{s:O, s:O, s:b, s:s*, s:s*, s:s*, s:i}", "from",
				     convert->from_roots, "to", convert->to_roots, "other_naming",
				     convert->other_naming, "pool", ns->pool, "parts",
				     ns->part_bytes, "model", ns->params.model_id, "rank",
				     (int)ns->params.tp_rank);
	char *text = document ? json_dumps(document, JSON_COMPACT | JSON_SORT_KEYS) : NULL;

	json_decref(document);
	return text;
}

static int open_cursor(struct convert *convert)
{
	char *identity;
	int rc;

	if (!convert->arguments->cursor || convert->arguments->dry_run)
		return 0;
	identity = identity_text(convert);
	rc = identity ? cli_cursor_open(convert->cli, convert->arguments->cursor, identity,
					&convert->cursor) :
			cli_fail_errno(convert->cli, -ENOMEM, "convert");
	free(identity);
	return rc;
}

/* Roots are compared as folders: one may be written in two ways. */
static int check_folders(struct convert *convert)
{
	json_t *from, *to;
	size_t f, t;

	json_array_foreach(convert->from_roots, f, from)
	{
		json_array_foreach(convert->to_roots, t, to)
		{
			const char *one = json_string_value(from), *other = json_string_value(to);
			struct stat a, b;

			if (one && other &&
			    (strcmp(one, other) == 0 ||
			     (stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
			      a.st_ino == b.st_ino)))
				return cli_error(
					convert->cli, CLI_USAGE,
					"convert: source and target are one folder: %.200s", other);
		}
	}
	return 0;
}

/* Before anything is copied: what cannot be removed would be there twice. */
static int check_removable(struct convert *convert)
{
	json_t *roots;
	int rc = 0;

	if (!convert->arguments->move || convert->arguments->dry_run)
		return 0;
	roots = cli_unwritable_roots(convert->cli);
	if (json_array_size(roots))
		rc = cli_error(
			convert->cli, CLI_DENIED,
			"convert: --move cannot remove anything from %.200s: it is read-only",
			json_string_value(json_array_get(roots, 0)));
	json_decref(roots);
	return rc;
}

static int open_all(struct convert *convert)
{
	struct kvc_cli *cli = convert->cli;
	bool to_nixl = false;
	int rc;

	rc = read_config(cli, cli->config, &convert->from_roots, &convert->from_nixl);
	if (rc == 0)
		rc = make_target_config(convert);
	if (rc == 0)
		rc = read_config(cli, convert->to_config, &convert->to_roots, &to_nixl);
	convert->other_naming = convert->from_nixl != to_nixl;
	if (rc == 0)
		rc = check_folders(convert);
	if (rc == 0)
		rc = convert->arguments->move && !convert->arguments->dry_run ?
			     cli_store_open_existing(cli) :
			     cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc == 0 && convert->arguments->id)
		rc = cli_namespace_check(cli, convert->arguments->id);
	if (rc == 0)
		rc = check_removable(convert);
	/* A cursor of something else is told before the target is made. */
	if (rc == 0)
		rc = open_cursor(convert);
	if (rc == 0)
		rc = open_target(convert);
	if (rc == 0 && convert->other_naming)
		rc = check_move(convert);
	if (rc == 0 && convert->other_naming && convert->to)
		rc = cli_naming_begin(convert);
	return rc;
}

static void close_all(struct convert *convert)
{
	cli_cursor_close(convert->cursor, false);
	cli_naming_end(convert);
	(void)kvc_store_close(convert->to);
	kvc_config_free(convert->to_config);
	json_decref(convert->from_roots);
	json_decref(convert->to_roots);
	json_decref(convert->problems);
}

/* ---------------------------------------------------------------- the target's index */

static int describe_store(void *context, char *buffer, size_t bytes)
{
	return kvc_store_describe(context, KVC_FORMAT_JSON, buffer, bytes);
}

/* Objects that this process evicted there; is_packed: whether any root is packed. */
static uint64_t evicted(struct convert *convert, bool *is_packed)
{
	json_t *document, *root;
	uint64_t count = 0;
	size_t i;
	int rc = 0;
	char *text = cli_text(convert->cli, "convert", describe_store, convert->to, &rc);

	*is_packed = false;
	document = text ? json_loads(text, 0, NULL) : NULL;
	free(text);
	json_array_foreach(json_object_get(document, "roots"), i, root)
	{
		json_t *index = json_object_get(root, "index");

		*is_packed |= index != NULL;
		count += (uint64_t)json_integer_value(json_object_get(index, "evicted"));
	}
	json_decref(document);
	return count;
}

static int check_move(struct convert *convert)
{
	bool is_packed;

	if (!convert->arguments->move || !convert->to)
		return 0;
	(void)evicted(convert, &is_packed);
	return is_packed ? cli_error(convert->cli, CLI_USAGE,
				     "convert: --move between namings needs a target of the files "
				     "layout: a packed one may evict what was moved") :
			   0;
}

static int check_evicted(struct convert *convert)
{
	bool is_packed;
	uint64_t count;

	if (!convert->to || !convert->other_naming || convert->arguments->dry_run)
		return 0;
	count = evicted(convert, &is_packed);
	return count ? cli_error(convert->cli, CLI_NO_SPACE,
				 "convert: the target is full: it has evicted %" PRIu64 " object%s",
				 count, count == 1 ? "" : "s") :
		       0;
}

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
	rc = check_evicted(convert);
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
		rc = open_all(&convert);
	if (rc == 0)
		rc = convert_all(&convert);
	close_all(&convert);
	cli_overrides_free(&arguments.to);
	return rc;
}
