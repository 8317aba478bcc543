/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar verify: reads every object and checks trailer, name and checksum. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_REMOVE = 0x200,
};

struct verify_arguments {
	const char *id;
	bool remove;
};

static error_t parse_verify(int key, char *argument, struct argp_state *state)
{
	struct verify_arguments *arguments = state->input;

	switch (key) {
	case OPTION_REMOVE:
		arguments->remove = true;
		return 0;
	case ARGP_KEY_ARG:
		if (state->arg_num > 0)
			return cli_argp_error("unexpected argument '%.200s'", argument);
		arguments->id = argument;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option verify_options[] = {
	{ "remove", OPTION_REMOVE, NULL, 0, "Remove what is proven corrupt", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp verify_argp = {
	.options = verify_options,
	.parser = parse_verify,
	.args_doc = "[NAMESPACE]",
	.doc = "Reads every object, of one namespace or of all, and checks trailer, name and "
	       "checksum. Names what is not right."
	       "\v"
	       "Exit codes: 0 all right; 4 something is corrupt; else the code of the worst "
	       "failure; 3 when there are only objects that a get would miss.\n\n"
	       "Examples:\n"
	       "  kvcellar verify\n"
	       "  kvcellar verify llama-3f2a9c0d11aa22bb --remove",
};

struct verify_run {
	struct kvc_cli *cli;
	struct cli_progress progress;
	bool progress_begun;
	uint64_t objects;
	uint64_t bytes;
	uint64_t statuses[8]; /* by enum kvc_status */
	int exit_code;
	json_t *problems; /* with --json */
};

/* Corrupt is the worst; any failure is worse than a miss. */
static int severity(int exit_code)
{
	switch (exit_code) {
	case CLI_DONE:
		return 0;
	case CLI_MISS:
		return 1;
	case CLI_CORRUPT:
		return 3;
	default:
		return 2;
	}
}

static int add_problem(struct verify_run *run, const struct kvc_object_info *info,
		       const struct kvc_result *result)
{
	char *name, *path;

	if (run->cli->json) {
		json_t *problem = json_pack("{s:o, s:o, s:o, s:o, s:s, s:s, s:i}", "namespace",
					    cli_json_text(info->ns_id), "name",
					    cli_json_text(info->name), "root",
					    cli_json_text(info->root_path), "path",
					    cli_json_text(info->path), "status",
					    kvc_status_name(result->status), "cause",
					    kvc_cause_name(result->cause), "errno", result->error);

		return json_array_append_new(run->problems, problem) < 0 ? -ENOMEM : 0;
	}
	name = cli_printable(info->root_path);
	path = cli_printable(info->path);
	cli_progress_clear(&run->progress);
	printf("%s%s%s %s%s%s  %s/%s\n", cli_red(run->cli), kvc_status_name(result->status),
	       cli_plain(run->cli), kvc_cause_name(result->cause), result->error ? ": " : "",
	       result->error ? strerror(result->error) : "", name ? name : "?", path ? path : "?");
	free(name);
	free(path);
	return 0;
}

static int verified(void *context, const struct kvc_object_info *info,
		    const struct kvc_result *result, uint64_t done, uint64_t total)
{
	struct verify_run *run = context;
	int exit_code;

	if (!run->progress_begun) {
		cli_progress_begin(run->cli, &run->progress, "verify", total, CLI_UNIT_COUNT);
		run->progress_begun = true;
	}
	run->objects++;
	run->bytes += info->stored_bytes;
	run->statuses[result->status < 8 ? result->status : KVC_ERROR]++;
	exit_code = cli_exit_of_result(result);
	if (severity(exit_code) > severity(run->exit_code))
		run->exit_code = exit_code;
	if (exit_code != CLI_DONE && add_problem(run, info, result) < 0)
		return -ENOMEM;
	run->progress.total = total;
	cli_progress_update(&run->progress, done);
	return cli_interrupted() ? -EINTR : 0;
}

static int summarize(struct verify_run *run, bool complete)
{
	char size[CLI_FORMAT_BYTES];
	json_t *statuses;

	if (run->cli->quiet && !run->cli->json)
		return 0;
	if (!run->cli->json) {
		printf("%" PRIu64 " object%s, %s: %" PRIu64 " ok, %" PRIu64 " corrupt, %" PRIu64
		       " not usable, %" PRIu64 " failed%s\n",
		       run->objects, run->objects == 1 ? "" : "s",
		       cli_format_size(size, run->bytes), run->statuses[KVC_OK],
		       run->statuses[KVC_CORRUPT], run->statuses[KVC_MISS],
		       run->objects - run->statuses[KVC_OK] - run->statuses[KVC_CORRUPT] -
			       run->statuses[KVC_MISS],
		       complete		 ? "" :
		       cli_interrupted() ? " (interrupted)" :
					   " (incomplete)");
		return 0;
	}
	statuses = json_object();
	for (int i = 0; i < 8; i++)
		(void)json_object_set_new(statuses, kvc_status_name(i),
					  json_integer((json_int_t)run->statuses[i]));
	return cli_json_print(run->cli, json_pack("{s:I, s:I, s:b, s:o, s:O}", "objects",
						  (json_int_t)run->objects, "stored_bytes",
						  (json_int_t)run->bytes, "complete", complete,
						  "statuses", statuses, "problems", run->problems));
}

int kvc_cmd_verify(struct kvc_cli *cli, int argc, char **argv)
{
	struct verify_arguments arguments = { .id = NULL };
	struct verify_run run = { .cli = cli, .exit_code = CLI_DONE };
	int rc, told;

	rc = cli_parse(cli, &verify_argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	rc = cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc == 0 && arguments.remove && arguments.id)
		rc = cli_namespace_check(cli, arguments.id);
	if (rc == 0 && arguments.remove)
		rc = cli_store_reopen(cli);
	if (rc)
		return rc;
	run.problems = json_array();
	if (!run.problems)
		return cli_fail_errno(cli, -ENOMEM, "verify");
	rc = kvc_store_verify(cli->store, arguments.id, arguments.remove, verified, &run);
	cli_progress_end(&run.progress);
	if (rc < 0 && !(rc == -EINTR && cli_interrupted())) {
		/* What could be verified is told all the same. */
		(void)summarize(&run, false);
		rc = cli_fail(cli, rc, "verify%s%.80s", arguments.id ? " " : "",
			      arguments.id ? arguments.id : "");
	} else if (rc == 0 && arguments.id && run.objects == 0) {
		rc = cli_namespace_check(cli, arguments.id);
	} else {
		told = summarize(&run, rc == 0);
		rc = rc < 0 ? CLI_INTERRUPTED : told ? told : run.exit_code;
	}
	json_decref(run.problems);
	return rc;
}
