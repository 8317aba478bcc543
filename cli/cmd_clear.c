/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar clear: removes the objects of one namespace, after a dry run. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct clear_arguments {
	const char *id;
	bool yes;
};

static error_t parse_clear(int key, char *argument, struct argp_state *state)
{
	struct clear_arguments *arguments = state->input;

	switch (key) {
	case 'y':
		arguments->yes = true;
		return 0;
	default:
		return cli_argp_namespace(key, argument, state, &arguments->id);
	}
}

static const struct argp_option clear_options[] = {
	{ "yes", 'y', NULL, 0, "Remove them; without it they are only counted", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp clear_argp = {
	.options = clear_options,
	.parser = parse_clear,
	.args_doc = "NAMESPACE",
	.doc = "Removes the objects of one namespace, of all ranks and pools, and nothing else. "
	       "`kvcellar ls' names the namespaces; with naming = \"nixl\" it is the model's name "
	       "as it stands in the file names."
	       "\v"
	       "Examples:\n"
	       "  kvcellar clear llama-3f2a9c0d11aa22bb\n"
	       "  kvcellar clear llama-3f2a9c0d11aa22bb --yes",
};

static int print_report(struct kvc_cli *cli, const struct clear_arguments *arguments,
			const struct kvc_clear_report *report)
{
	char size[CLI_FORMAT_BYTES];

	if (cli->json)
		return cli_json_print(cli, json_pack("{s:o, s:b, s:I, s:I, s:I}", "namespace",
						     cli_json_text(arguments->id), "dry_run",
						     !arguments->yes, "objects",
						     (json_int_t)report->objects, "bytes",
						     (json_int_t)report->bytes, "failed",
						     (json_int_t)report->failed));
	printf("%s: %" PRIu64 " object%s, %s%s\n", arguments->id, report->objects,
	       report->objects == 1 ? "" : "s", cli_format_size(size, report->bytes),
	       arguments->yes ? " removed" : " would be removed");
	if (!arguments->yes)
		cli_note(cli, "Nothing was changed; --yes removes them.");
	return CLI_DONE;
}

int kvc_cmd_clear(struct kvc_cli *cli, int argc, char **argv)
{
	struct clear_arguments arguments = { .id = NULL };
	struct kvc_clear_report report = { .size = sizeof(report) };
	int rc;

	rc = cli_parse(cli, &clear_argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	/* What is not there is told before anything can be written. */
	rc = cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc == 0)
		rc = cli_namespace_check(cli, arguments.id);
	if (rc == 0 && arguments.yes)
		rc = cli_store_reopen(cli);
	if (rc)
		return rc;
	rc = kvc_namespace_clear(cli->store, arguments.id, !arguments.yes, &report);
	if (rc < 0)
		return cli_fail(cli, rc, "clear");
	return print_report(cli, &arguments, &report);
}
