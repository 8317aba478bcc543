/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar clean: makes room now, as the cleaner would. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_TO = 0x200,
	OPTION_DRY_RUN,
	OPTION_ROOT,
};

struct clean_arguments {
	struct kvc_clean_params params;
	const char *to; /* as typed */
	const char *root;
};

/* "70%" or a size. */
static error_t parse_to(const char *text, struct kvc_clean_params *params)
{
	const size_t bytes = strlen(text);
	char *end;

	if (bytes == 0 || text[bytes - 1] != '%') {
		const error_t error = cli_argp_size("--to", text, &params->to_bytes);

		params->flags |= KVC_CLEAN_TO_BYTES;
		/* A percentage without its sign would remove all there is. */
		if (!error && params->to_bytes > 0 && params->to_bytes <= 100 &&
		    isdigit((unsigned char)text[bytes - 1]))
			return cli_argp_error("--to: '%.40s': %.40s%% or %.40sB?", text, text,
					      text);
		return error;
	}
	params->flags &= ~(uint32_t)KVC_CLEAN_TO_BYTES;
	params->to_percent = strtod(text, &end);
	if (!isdigit((unsigned char)text[0]) || strchr(text, 'x') || end[0] != '%' || end[1])
		return cli_argp_error("--to: '%.40s' is neither a size nor a percentage", text);
	if (!(params->to_percent <= 100))
		return cli_argp_error("--to: %.40s is more than 100%%", text);
	return 0;
}

static error_t parse_clean(int key, char *argument, struct argp_state *state)
{
	struct clean_arguments *arguments = state->input;

	switch (key) {
	case OPTION_TO:
		arguments->to = argument;
		return parse_to(argument, &arguments->params);
	case OPTION_DRY_RUN:
		arguments->params.flags |= KVC_CLEAN_DRY_RUN;
		return 0;
	case OPTION_ROOT:
		arguments->root = argument;
		return 0;
	case ARGP_KEY_ARG:
		return cli_argp_error("unexpected argument '%.200s'", argument);
	case ARGP_KEY_END:
		if (!arguments->to)
			return cli_argp_error("--to is not given: how much may stay, as 70%% or "
					      "500GiB");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option clean_options[] = {
	{ "dry-run", OPTION_DRY_RUN, NULL, 0, "Only tell what would go", 0 },
	{ "root", OPTION_ROOT, "DIR", 0, "Only this one of the storage directories", 0 },
	{ "to", OPTION_TO, "PERCENT|SIZE", 0,
	  "What may stay of each root: a percentage of its capacity, without one of its file "
	  "system; or bytes of its objects",
	  0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp clean_argp = {
	.options = clean_options,
	.parser = parse_clean,
	.doc = "Makes room now: removes what is used least, by the order of `eviction', whole "
	       "groups at a time, until not more than that is left, or nothing more can go. Files "
	       "of others and pinned namespaces stay; when that much cannot go, it says `goal not "
	       "reached' and how much is missing. Nothing goes where a file system would be fuller "
	       "than PERCENT by the files of others alone."
	       "\v"
	       "Examples:\n"
	       "  kvcellar -c kvcellar.toml clean --to 70% --dry-run\n"
	       "  kvcellar -D /mnt/a,/mnt/b clean --to 500GiB --root /mnt/a",
};

/* ---------------------------------------------------------------- which roots */

static bool same_folder(const char *a, const char *b)
{
	size_t a_bytes = strlen(a), b_bytes = strlen(b);

	while (a_bytes > 1 && a[a_bytes - 1] == '/')
		a_bytes--;
	while (b_bytes > 1 && b[b_bytes - 1] == '/')
		b_bytes--;
	return a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
}

/* The one of storage_dirs, as it is written there. */
static int find_root(struct kvc_cli *cli, const json_t *dirs, const char *root, const char **out)
{
	const json_t *dir;
	size_t i;

	json_array_foreach(dirs, i, dir)
	{
		if (same_folder(json_string_value(dir), root)) {
			*out = json_string_value(dir);
			return 0;
		}
	}
	return cli_usage(cli, "--root: %.200s is none of the storage directories", root);
}

static int set_members(struct kvc_cli *cli, json_t *members)
{
	char *text = members ? json_dumps(members, JSON_COMPACT) : NULL;
	int rc = text ? kvc_config_load_text(cli->config, text, strlen(text), KVC_CONFIG_JSON,
					     "clean") :
			-ENOMEM;

	free(text);
	json_decref(members);
	return rc < 0 ? cli_fail_as(cli, CLI_CONFIG, rc, "clean") : 0;
}

/*
 * Nothing but what was asked for is removed: no cleaner of this process works beside it. Where the
 * configuration needs one, the roots are packed ones, which have none.
 */
static int prepare(struct kvc_cli *cli, const struct clean_arguments *arguments)
{
	json_t *options;
	const char *root = NULL;
	bool enabled;
	int rc = 0;

	options = cli_config_options(cli, cli->config, &rc);
	if (!options)
		return rc;
	enabled = json_is_true(cli_config_value(options, "l3_cleaner_enabled"));
	if (arguments->root)
		rc = find_root(cli, cli_config_value(options, "storage_dirs"), arguments->root,
			       &root);
	if (rc == 0 && arguments->root)
		rc = set_members(cli, json_pack("{s:[s]}", "storage_dirs", root));
	if (rc == 0)
		rc = set_members(cli, json_pack("{s:b}", "l3_cleaner_enabled", 0));
	if (rc == 0 && enabled && kvc_config_check(cli->config) < 0)
		rc = set_members(cli, json_pack("{s:b}", "l3_cleaner_enabled", 1));
	json_decref(options);
	return rc;
}

/* ---------------------------------------------------------------- telling */

static json_t *report_json(const struct clean_arguments *arguments,
			   const struct kvc_clean_report *report)
{
	return json_pack("{s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "to", arguments->to,
			 "dry_run", (int)(arguments->params.flags & KVC_CLEAN_DRY_RUN), "reached",
			 report->missing_bytes == 0, "groups", (json_int_t)report->groups,
			 "objects", (json_int_t)report->objects, "bytes", (json_int_t)report->bytes,
			 "failed", (json_int_t)report->failed, "left_bytes",
			 (json_int_t)report->left_bytes, "missing_bytes",
			 (json_int_t)report->missing_bytes, "pinned_bytes",
			 (json_int_t)report->pinned_bytes);
}

/* Nothing failed: what is left may not go, or not just now. */
static void print_missing(const struct kvc_clean_report *report, bool dry)
{
	char missing[CLI_FORMAT_BYTES], pinned[CLI_FORMAT_BYTES];

	if (report->groups == 0 && report->missing_bytes > report->left_bytes) {
		printf("goal not reached: %s would have to go, and others have that: nothing %s. "
		       "--to SIZE goes by the cache alone.\n",
		       cli_format_size(missing, report->missing_bytes),
		       dry ? "would be removed" : "was removed");
		return;
	}
	printf("goal not reached: %s more would have to go%s; ",
	       cli_format_size(missing, report->missing_bytes), dry ? " then" : "");
	if (report->pinned_bytes)
		printf("%s are of pinned namespaces%s\n",
		       cli_format_size(pinned, report->pinned_bytes),
		       report->pinned_bytes < report->missing_bytes ?
			       ", the rest is in use just now, or others'" :
			       "");
	else
		printf("nothing is pinned: the rest is in use just now, or others'\n");
}

static int print_report(struct kvc_cli *cli, const struct clean_arguments *arguments,
			const struct kvc_clean_report *report)
{
	const bool dry = arguments->params.flags & KVC_CLEAN_DRY_RUN;
	char size[CLI_FORMAT_BYTES], left[CLI_FORMAT_BYTES];

	if (cli->json)
		return cli_json_print(cli, report_json(arguments, report));
	printf("%" PRIu64 " object%s in %" PRIu64 " group%s, %s%s; %s left\n", report->objects,
	       report->objects == 1 ? "" : "s", report->groups, report->groups == 1 ? "" : "s",
	       cli_format_size(size, report->bytes), dry ? ", would be removed" : ", removed",
	       cli_format_size(left, report->left_bytes));
	if (report->missing_bytes)
		print_missing(report, dry);
	if (dry)
		cli_note(cli, "Nothing was changed.");
	return CLI_DONE;
}

int kvc_cmd_clean(struct kvc_cli *cli, int argc, char **argv)
{
	struct clean_arguments arguments = { .params = { .size = sizeof(arguments.params) } };
	struct kvc_clean_report report = { .size = sizeof(report) };
	int rc;

	rc = cli_parse(cli, &clean_argp, 0, argc, argv, &arguments);
	if (rc == 0)
		rc = prepare(cli, &arguments);
	if (rc == 0)
		rc = cli_store_open_existing(cli);
	if (rc)
		return rc;
	rc = kvc_store_clean(cli->store, &arguments.params, &report);
	if (rc == -ENOTSUP)
		return cli_fail_as(cli, CLI_CONFIG, rc, "clean");
	if (rc < 0)
		return cli_fail(cli, rc, "clean");
	rc = print_report(cli, &arguments, &report);
	if (rc == 0 && report.failed)
		rc = cli_error(cli, CLI_IO, "clean: %" PRIu64 " objects could not be removed",
			       report.failed);
	return rc;
}
