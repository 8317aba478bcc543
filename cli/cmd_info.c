/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar info, kvcellar selftest. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct info_arguments {
	bool read_only;
};

enum {
	OPTION_READ_ONLY = 0x200,
};

static error_t parse_info(int key, char *argument, struct argp_state *state)
{
	struct info_arguments *arguments = state->input;

	switch (key) {
	case OPTION_READ_ONLY:
		arguments->read_only = true;
		return 0;
	case ARGP_KEY_ARG:
		return cli_argp_error("unexpected argument '%.200s'", argument);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option info_options[] = {
	{ "read-only", OPTION_READ_ONLY, NULL, 0, "Change nothing: no folder made, no test object",
	  0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp info_argp = {
	.options = info_options,
	.parser = parse_info,
	.doc = "Opens the store and shows what is used and why: plugins with the reasons of those "
	       "that were not taken, the I/O engine, roots with their probes and state, identity."
	       "\v"
	       "Examples:\n"
	       "  kvcellar info\n"
	       "  kvcellar -D /mnt/a,/mnt/b info --json",
};

/* ---------------------------------------------------------------- plugins */

/* Texts may be NULL. */
static json_t *text_or_null(const char *text)
{
	return text ? cli_json_text(text) : json_null();
}

static int add_plugin(void *context, const struct kvc_plugin_info *info)
{
	json_t *plugin = json_pack("{s:o, s:o, s:o, s:o, s:b, s:o}", "name",
				   text_or_null(info->name), "version", text_or_null(info->version),
				   "summary", text_or_null(info->summary), "path",
				   text_or_null(info->path), "loads", info->status == 0, "reason",
				   text_or_null(info->reason));

	return json_array_append_new(context, plugin) < 0 ? -ENOMEM : 0;
}

static const char *string_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

static void print_plugins(struct kvc_cli *cli, const json_t *plugins)
{
	size_t i;
	json_t *plugin;

	printf("%splugins%s\n", cli_bold(cli), cli_plain(cli));
	json_array_foreach(plugins, i, plugin)
	{
		bool loads = json_is_true(json_object_get(plugin, "loads"));

		printf("  %-12s %s%-4s%s %s\n", string_of(plugin, "name"),
		       loads ? cli_green(cli) : "", loads ? "yes" : "no", cli_plain(cli),
		       string_of(plugin, loads ? "summary" : "reason"));
	}
}

/* ---------------------------------------------------------------- store */

static int describe_text(void *context, char *buffer, size_t bytes)
{
	return kvc_store_describe(context, KVC_FORMAT_TEXT, buffer, bytes);
}

static int describe_json(void *context, char *buffer, size_t bytes)
{
	return kvc_store_describe(context, KVC_FORMAT_JSON, buffer, bytes);
}

/* Adds the library's JSON text as `store`. */
static int add_store(struct kvc_cli *cli, json_t *root)
{
	json_error_t error;
	json_t *store;
	char *text;
	int rc = 0;

	text = cli_text(cli, "info", describe_json, cli->store, &rc);
	if (!text)
		return rc;
	store = json_loads(text, 0, &error);
	free(text);
	if (!store)
		return cli_error(cli, CLI_IO, "info: the description is no JSON: %s", error.text);
	return json_object_set_new(root, "store", store) < 0 ?
		       cli_fail_errno(cli, -ENOMEM, "info") :
		       0;
}

static int show_json(struct kvc_cli *cli, json_t *plugins, int open_rc)
{
	json_t *root =
		json_pack("{s:s, s:O, s:n}", "version", kvc_version(), "plugins", plugins, "store");
	int rc = 0;

	if (root && open_rc == 0)
		rc = add_store(cli, root);
	if (rc) {
		json_decref(root);
		return rc;
	}
	rc = cli_json_print(cli, root);
	return open_rc ? open_rc : rc;
}

static int show_text(struct kvc_cli *cli, const json_t *plugins, int open_rc)
{
	char *text;
	int rc = 0;

	if (open_rc == 0) {
		text = cli_text(cli, "info", describe_text, cli->store, &rc);
		if (!text)
			return rc;
		(void)fputs(text, stdout);
		if (text[0] && text[strlen(text) - 1] != '\n')
			(void)putchar('\n');
		free(text);
	}
	print_plugins(cli, plugins);
	return open_rc;
}

int kvc_cmd_info(struct kvc_cli *cli, int argc, char **argv)
{
	struct info_arguments arguments = { .read_only = false };
	json_t *plugins;
	unsigned flags = 0;
	int rc;

	rc = cli_parse(cli, &info_argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	plugins = json_array();
	if (!plugins)
		return cli_fail_errno(cli, -ENOMEM, "info");
	rc = kvc_plugin_list(cli->config, add_plugin, plugins);
	if (rc < 0) {
		rc = cli_fail_as(cli, cli_exit_of_open(rc), rc, "cannot open the store");
		goto out;
	}
	if (arguments.read_only)
		flags = KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST;
	rc = cli_store_open(cli, flags);
	rc = cli->json ? show_json(cli, plugins, rc) : show_text(cli, plugins, rc);
out:
	json_decref(plugins);
	return rc;
}

/* ---------------------------------------------------------------- selftest */

static error_t parse_selftest(int key, char *argument, struct argp_state *state)
{
	(void)state;
	if (key == ARGP_KEY_ARG)
		return cli_argp_error("unexpected argument '%.200s'", argument);
	return ARGP_ERR_UNKNOWN;
}

static const struct argp selftest_argp = {
	.parser = parse_selftest,
	.doc = "Writes, finds, reads, compares and removes a test object on every root that can be "
	       "written, and names the others. Exit code 1: bytes came back wrong."
	       "\v"
	       "Example:\n"
	       "  kvcellar -D /mnt/cache selftest",
};

static int selftest_exit(int error)
{
	int exit_code = cli_exit_of_errno(error);

	/* A test object that was just written and is missing or different is proven wrong. */
	return exit_code == CLI_CORRUPT || exit_code == CLI_MISS ? CLI_WRONG : exit_code;
}

int kvc_cmd_selftest(struct kvc_cli *cli, int argc, char **argv)
{
	char text[CLI_FORMAT_BYTES];
	struct timespec begin, end;
	json_t *roots, *root;
	double seconds;
	size_t i;
	int rc;

	rc = cli_parse(cli, &selftest_argp, 0, argc, argv, NULL);
	if (rc)
		return rc;
	rc = cli_store_open(cli, KVC_OPEN_NO_SELFTEST);
	if (rc)
		return rc;
	(void)clock_gettime(CLOCK_MONOTONIC, &begin);
	rc = kvc_store_selftest(cli->store);
	(void)clock_gettime(CLOCK_MONOTONIC, &end);
	if (rc < 0)
		return cli_fail_as(cli, selftest_exit(rc), rc, "selftest");
	seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
	roots = cli_unwritable_roots(cli);
	if (cli->json)
		return cli_json_print(cli, json_pack("{s:b, s:f, s:o}", "ok", 1, "seconds", seconds,
						     "read_only", roots));
	printf("%sok%s (%s)\n", cli_green(cli), cli_plain(cli), cli_format_seconds(text, seconds));
	json_array_foreach(roots, i, root)
	{
		printf("%s is read-only: nothing was written there, and nothing tested\n",
		       json_string_value(root));
	}
	json_decref(roots);
	return CLI_DONE;
}
