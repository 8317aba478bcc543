/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar config: check, options, show, sample. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_MARKDOWN = 0x200,
};

struct config_arguments {
	const char *action;
	char *file;
	bool markdown;
};

static error_t parse_config(int key, char *argument, struct argp_state *state)
{
	struct config_arguments *arguments = state->input;

	switch (key) {
	case OPTION_MARKDOWN:
		arguments->markdown = true;
		return 0;
	case ARGP_KEY_ARG:
		if (state->arg_num == 0)
			arguments->action = argument;
		else if (state->arg_num == 1)
			arguments->file = argument;
		else
			return cli_argp_error("unexpected argument '%.200s'", argument);
		return 0;
	case ARGP_KEY_NO_ARGS:
		return cli_argp_error("say what: check, options, show or sample");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option config_options[] = {
	{ "markdown", OPTION_MARKDOWN, NULL, 0, "options: as a Markdown table", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp config_argp = {
	.options = config_options,
	.parser = parse_config,
	.args_doc = "check [FILE]\nshow [FILE]\noptions\nsample",
	.doc = "check: whether a store would take the configuration, without touching storage; "
	       "also its warnings, such as variables KVCELLAR_... that name nothing.\n"
	       "show: each key that is in effect, its value, and where it came from; secrets as "
	       "***.\n"
	       "options: the table of all options.\n"
	       "sample: a configuration file with every option and its default."
	       "\v"
	       "Examples:\n"
	       "  kvcellar config check kvcellar.toml\n"
	       "  kvcellar -c kvcellar.toml config show\n"
	       "  kvcellar config sample > kvcellar.toml",
};

struct description {
	const struct kvc_config *config;
	int what; /* enum kvc_describe */
};

static int describe(void *context, char *buffer, size_t bytes)
{
	const struct description *description = context;

	return kvc_config_describe(description->config, description->what, buffer, bytes);
}

static int print_description(struct kvc_cli *cli, const struct kvc_config *config, int what)
{
	struct description description = { .config = config, .what = what };
	char *text;
	int rc = 0;

	text = cli_text(cli, "configuration", describe, &description, &rc);
	if (!text)
		return config ? CLI_CONFIG : rc;
	(void)fputs(text, stdout);
	free(text);
	return CLI_DONE;
}

static int print_sample_json(struct kvc_cli *cli)
{
	struct description description = { .config = NULL, .what = KVC_DESCRIBE_SAMPLE };
	char *text;
	int rc = 0;

	text = cli_text(cli, "configuration", describe, &description, &rc);
	if (!text)
		return rc;
	rc = cli_json_print(cli, json_pack("{s:s}", "sample", text));
	free(text);
	return rc;
}

/* The warnings of the effective configuration; NULL after it was told why not. */
static json_t *warnings_of(struct kvc_cli *cli)
{
	struct description description = { .config = cli->config,
					   .what = KVC_DESCRIBE_EFFECTIVE_JSON };
	json_t *document, *warnings;
	int rc = 0;
	char *text = cli_text(cli, "configuration", describe, &description, &rc);

	if (!text)
		return NULL;
	document = json_loads(text, 0, NULL);
	free(text);
	warnings = json_incref(json_object_get(document, "warnings"));
	json_decref(document);
	return warnings ? warnings : json_array();
}

static int check(struct kvc_cli *cli)
{
	json_t *warnings, *warning;
	int rc = kvc_config_check(cli->config);
	size_t i;

	if (rc < 0)
		return cli_fail_as(cli, CLI_CONFIG, rc, "configuration");
	warnings = warnings_of(cli);
	if (!warnings)
		return CLI_CONFIG;
	if (cli->json)
		return cli_json_print(cli, json_pack("{s:b, s:o}", "ok", 1, "warnings", warnings));
	json_array_foreach(warnings, i, warning)
		printf("warning: %s\n", json_string_value(warning));
	json_decref(warnings);
	if (!cli->quiet)
		printf("%sok%s\n", cli_green(cli), cli_plain(cli));
	return CLI_DONE;
}

/* The FILE of check and show: as -c, after the others. */
static int add_file(struct kvc_cli *cli, const struct config_arguments *arguments)
{
	int rc;

	if (!arguments->file)
		return 0;
	rc = kvc_config_load_file(cli->config, arguments->file);
	return rc < 0 ? cli_fail_as(cli, CLI_CONFIG, rc, "configuration") : 0;
}

static int run_action(struct kvc_cli *cli, const struct config_arguments *arguments)
{
	static const char *const actions[] = { "check", "show", "options", "sample" };
	const char *action = arguments->action, *nearest;
	int rc;

	if (strcmp(action, "check") == 0 || strcmp(action, "show") == 0) {
		rc = cli_config_build(cli, &cli->config);
		if (rc == 0)
			rc = add_file(cli, arguments);
		if (rc)
			return rc;
		if (action[0] == 'c')
			return check(cli);
		return print_description(cli, cli->config,
					 cli->json ? KVC_DESCRIBE_EFFECTIVE_JSON :
						     KVC_DESCRIBE_EFFECTIVE);
	}
	if (arguments->file)
		return cli_usage(cli, "unexpected argument '%.200s'", arguments->file);
	if (strcmp(action, "options") == 0)
		return print_description(cli, NULL,
					 arguments->markdown ? KVC_DESCRIBE_OPTIONS_MARKDOWN :
					 cli->json	     ? KVC_DESCRIBE_OPTIONS_JSON :
							       KVC_DESCRIBE_OPTIONS);
	if (strcmp(action, "sample") == 0)
		return cli->json ? print_sample_json(cli) :
				   print_description(cli, NULL, KVC_DESCRIBE_SAMPLE);
	nearest = cli_nearest(action, actions, 4);
	return cli_usage(cli, "config: unknown action '%.80s'%s%s%s", action,
			 nearest ? "; did you mean '" : " (check, options, show, sample)",
			 nearest ? nearest : "", nearest ? "'?" : "");
}

int kvc_cmd_config(struct kvc_cli *cli, int argc, char **argv)
{
	struct config_arguments arguments = { .action = NULL };
	int rc;

	rc = cli_parse(cli, &config_argp, CLI_WITHOUT_CONFIG, argc, argv, &arguments);
	if (rc)
		return rc;
	return run_action(cli, &arguments);
}
