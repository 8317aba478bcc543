/* SPDX-License-Identifier: Apache-2.0 */
/* The options that commands share, and how a command's arguments are parsed. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cli_override {
	int kind; /* 'c', 'D' or 's' */
	bool is_file;
	const char *option; /* its name in messages */
	char *text;
};

enum {
	OPTION_JSON = 0x100,
	OPTION_NO_PROGRESS,
	OPTION_MODEL,
	OPTION_IDENTITY,
	OPTION_TENANT,
	OPTION_DTYPE,
	OPTION_PAGE_TOKENS,
	OPTION_MLA,
	OPTION_TP_SIZE,
	OPTION_TP_LCM_SIZE,
	OPTION_TP_RANK,
	OPTION_PP_SIZE,
	OPTION_PP_RANK,
	OPTION_CP_SIZE,
	OPTION_CP_RANK,
	OPTION_DCP_SIZE,
	OPTION_DCP_RANK,
	OPTION_LOGICAL_PAGE_TOKENS,
	OPTION_WRITER,
	OPTION_HEX,
	OPTION_POOL,
	OPTION_PART_BYTES,
	OPTION_BYTE_ORDER,
	OPTION_COPY_MODE,
};

static const struct argp_option global_options[] = {
	{ NULL, 0, NULL, 0, "Options of every command:", 90 },
	{ "config", 'c', "FILE|TEXT", 0,
	  "Configuration: a file, @FILE, or the text itself (TOML, JSON, YAML). May be repeated; a "
	  "key given again wins",
	  0 },
	{ "dir", 'D', "DIR[,DIR...]", 0, "Storage directories (storage_dirs)", 0 },
	{ "set", 's', "PATH=VALUE", 0, "One configuration key, as plugin.posix.use_uring=true", 0 },
	{ "json", OPTION_JSON, NULL, 0, "One JSON document on stdout; errors as JSON on stderr",
	  0 },
	{ "no-progress", OPTION_NO_PROGRESS, NULL, 0, "No progress bar", 0 },
	{ "quiet", 'q', NULL, 0,
	  "No summaries and notes: only what was asked for, what is wrong, and errors", 0 },
	{ "verbose", 'v', NULL, 0, "Warnings and notes of the library; twice: everything", 0 },
	{ "help", 'h', NULL, 0, "Print this help", -1 },
	{ "version", 'V', NULL, 0, "Print the version", -1 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp_option namespace_options[] = {
	{ NULL, 0, NULL, 0, "Which namespace, and which rank of it:", 70 },
	{ "model", OPTION_MODEL, "NAME", 0, "Served model name", 0 },
	{ "identity", OPTION_IDENTITY, "TEXT", 0, "Which weights; default: the configuration's",
	  0 },
	{ "tenant", OPTION_TENANT, "TEXT", 0, "Tenant; default: the configuration's", 0 },
	{ "dtype", OPTION_DTYPE, "NAME", 0, "Logical dtype of the cache, as bfloat16", 0 },
	{ "page-tokens", OPTION_PAGE_TOKENS, "N", 0, "Tokens per page; default: 64", 0 },
	{ "mla", OPTION_MLA, NULL, 0, "The cache is the same on every tp rank", 0 },
	{ "tp-size", OPTION_TP_SIZE, "N", 0, "Tensor parallel size; default: 1", 0 },
	{ "tp-lcm-size", OPTION_TP_LCM_SIZE, "N", 0, "Head groups that a page is split into", 0 },
	{ "tp-rank", OPTION_TP_RANK, "R", 0, "Tensor parallel rank; default: 0", 0 },
	{ "pp-size", OPTION_PP_SIZE, "N", 0, "Pipeline parallel size", 0 },
	{ "pp-rank", OPTION_PP_RANK, "R", 0, "Pipeline parallel rank", 0 },
	{ "cp-size", OPTION_CP_SIZE, "N", 0, "Context parallel size", 0 },
	{ "cp-rank", OPTION_CP_RANK, "R", 0, "Context parallel rank", 0 },
	{ "dcp-size", OPTION_DCP_SIZE, "N", 0, "Decode context parallel size", 0 },
	{ "dcp-rank", OPTION_DCP_RANK, "R", 0, "Decode context parallel rank", 0 },
	{ "logical-page-tokens", OPTION_LOGICAL_PAGE_TOKENS, "N", 0, "Logical page size under dcp",
	  0 },
	{ "writer", OPTION_WRITER, "yes|no|auto", 0,
	  "Whether this rank stores replicated pages; default: auto", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp_option key_options[] = {
	{ NULL, 0, NULL, 0, "Which objects a key stands for:", 60 },
	{ "hex", OPTION_HEX, NULL, 0, "Keys are hexadecimal, two digits a byte; default: text", 0 },
	{ "pool", OPTION_POOL, "NAME", 0, "Pool name; default: object (pages: kv)", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp_option page_options[] = {
	{ NULL, 0, NULL, 0, "Pages of a pool instead of single objects:", 65 },
	{ "part-bytes", OPTION_PART_BYTES, "SIZE[,SIZE...]", 0,
	  "Keys name pages with parts of these sizes", 0 },
	{ "byte-order", OPTION_BYTE_ORDER, "token|layer|head", 0,
	  "Byte order of the pool's pages; default: token", 0 },
	{ "copy-mode", OPTION_COPY_MODE, NULL, 0,
	  "One object per page with the bare name (naming = \"nixl\")", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

/* ---------------------------------------------------------------- global options */

/* Whether the text of -c is a path: what exists as a file, or does not look like configuration. */
static bool is_path(const char *text)
{
	if (text[0] == '@' || access(text, F_OK) == 0)
		return true;
	return !strpbrk(text, "={}:\n");
}

/* The process title shows arguments to everybody: what may hold a secret is blanked. */
static void blank(char *argument)
{
	memset(argument, '*', strlen(argument));
}

bool cli_overrides_has(const struct cli_overrides *overrides, const char *path)
{
	const size_t bytes = strlen(path);

	for (size_t i = 0; i < overrides->count; i++)
		if (overrides->list[i].kind == 's' &&
		    strncmp(overrides->list[i].text, path, bytes) == 0 &&
		    overrides->list[i].text[bytes] == '=')
			return true;
	return false;
}

error_t cli_overrides_add(struct cli_overrides *overrides, int kind, const char *option,
			  char *argument)
{
	struct cli_override *grown, *one;
	char *equals;

	grown = reallocarray(overrides->list, overrides->count + 1, sizeof(*grown));
	if (!grown)
		return ENOMEM;
	overrides->list = grown;
	one = &grown[overrides->count];
	one->kind = kind;
	one->option = option;
	one->is_file = kind == 'c' && is_path(argument);
	one->text = strdup(argument);
	if (!one->text)
		return ENOMEM;
	overrides->count++;
	if (kind == 'c' && !one->is_file)
		blank(argument);
	if (kind == 's') {
		equals = strchr(argument, '=');
		blank(equals ? equals + 1 : argument);
		if (!equals || equals == argument)
			return cli_argp_error("%s: expected PATH=VALUE", option);
	}
	return 0;
}

void cli_overrides_free(struct cli_overrides *overrides)
{
	for (size_t i = 0; i < overrides->count; i++) {
		explicit_bzero(overrides->list[i].text, strlen(overrides->list[i].text));
		free(overrides->list[i].text);
	}
	free(overrides->list);
	*overrides = (struct cli_overrides){ .count = 0 };
}

static error_t parse_global(int key, char *argument, struct argp_state *state)
{
	struct kvc_cli *cli = state->input;

	switch (key) {
	case 'c':
		return cli_overrides_add(&cli->overrides, key, "-c", argument);
	case 'D':
		return cli_overrides_add(&cli->overrides, key, "-D", argument);
	case 's':
		return cli_overrides_add(&cli->overrides, key, "-s", argument);
	case OPTION_JSON:
		cli->json = true;
		return 0;
	case OPTION_NO_PROGRESS:
		cli->no_progress = true;
		return 0;
	case 'q':
		cli->quiet = true;
		return 0;
	case 'v':
		cli->verbose++;
		return 0;
	case 'h':
		cli_help_print(state->root_argp, state->name);
		cli_help_done();
	case 'V':
		printf("kvcellar %s\n", kvc_version());
		cli_help_done();
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const struct argp cli_global_argp = { .options = global_options, .parser = parse_global };

void cli_options_free(struct kvc_cli *cli)
{
	cli_overrides_free(&cli->overrides);
	kvc_config_free(cli->config);
	cli->config = NULL;
}

static int apply_override(const struct cli_override *one, struct kvc_config *config)
{
	const char *file = one->text[0] == '@' ? one->text + 1 : one->text;
	char *equals;
	int rc;

	switch (one->kind) {
	case 'c':
		return one->is_file ? kvc_config_load_file(config, file) :
				      kvc_config_load_text(config, one->text, strlen(one->text),
							   KVC_CONFIG_AUTO, one->option);
	case 'D':
		return kvc_config_set(config, "storage_dirs", one->text);
	default:
		equals = strchr(one->text, '=');
		*equals = '\0';
		rc = kvc_config_set(config, one->text, equals + 1);
		*equals = '=';
		return rc;
	}
}

int cli_overrides_apply(const struct cli_overrides *overrides, int kind, struct kvc_config *config)
{
	int rc = 0;

	for (size_t i = 0; i < overrides->count && rc >= 0; i++)
		if (overrides->list[i].kind == kind)
			rc = apply_override(&overrides->list[i], config);
	return rc < 0 ? rc : 0;
}

int cli_config_build(struct kvc_cli *cli, struct kvc_config **out)
{
	static const char order[] = "cDs";
	struct kvc_config *config = NULL;
	int rc;

	rc = kvc_config_new(&config);
	for (const char *kind = order; *kind && rc >= 0; kind++)
		rc = cli_overrides_apply(&cli->overrides, *kind, config);
	if (rc < 0) {
		kvc_config_free(config);
		/* The library's words name the file or the key. */
		return cli_fail_as(cli, CLI_CONFIG, rc, "configuration");
	}
	*out = config;
	return 0;
}

static int describe_config(void *context, char *buffer, size_t bytes)
{
	return kvc_config_describe(context, KVC_DESCRIBE_EFFECTIVE_JSON, buffer, bytes);
}

json_t *cli_config_options(struct kvc_cli *cli, struct kvc_config *config, int *exit_code)
{
	json_t *document, *options;
	char *text = cli_text(cli, "configuration", describe_config, config, exit_code);

	if (!text) {
		*exit_code = *exit_code == CLI_IO ? CLI_CONFIG : *exit_code;
		return NULL;
	}
	document = json_loads(text, 0, NULL);
	free(text);
	options = json_incref(json_object_get(document, "options"));
	json_decref(document);
	if (!options)
		*exit_code = cli_fail_errno(cli, -ENOMEM, "configuration");
	return options;
}

json_t *cli_config_value(const json_t *options, const char *name)
{
	return json_object_get(json_object_get(options, name), "value");
}

/* ---------------------------------------------------------------- namespace and key options */

static error_t parse_writer(const char *text, uint32_t *out)
{
	static const char *const words[] = { "auto", "no", "yes" }; /* enum kvc_tristate */

	for (uint32_t i = 0; i < 3; i++) {
		if (strcmp(text, words[i]) == 0) {
			*out = i;
			return 0;
		}
	}
	return cli_argp_error("--writer: '%s' is none of yes, no, auto", text);
}

static error_t parse_rank_option(int key, const char *text, struct kvc_namespace_params *params)
{
	const uint32_t most = 1u << 20;

	switch (key) {
	case OPTION_TP_SIZE:
		return cli_argp_u32("--tp-size", text, 1, most, &params->tp_size);
	case OPTION_TP_LCM_SIZE:
		return cli_argp_u32("--tp-lcm-size", text, 1, most, &params->tp_lcm_size);
	case OPTION_TP_RANK:
		return cli_argp_u32("--tp-rank", text, 0, most, &params->tp_rank);
	case OPTION_PP_SIZE:
		return cli_argp_u32("--pp-size", text, 1, most, &params->pp_size);
	case OPTION_PP_RANK:
		return cli_argp_u32("--pp-rank", text, 0, most, &params->pp_rank);
	case OPTION_CP_SIZE:
		return cli_argp_u32("--cp-size", text, 1, most, &params->cp_size);
	case OPTION_CP_RANK:
		return cli_argp_u32("--cp-rank", text, 0, most, &params->cp_rank);
	case OPTION_DCP_SIZE:
		return cli_argp_u32("--dcp-size", text, 1, most, &params->dcp_size);
	case OPTION_DCP_RANK:
		return cli_argp_u32("--dcp-rank", text, 0, most, &params->dcp_rank);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_namespace(int key, char *argument, struct argp_state *state)
{
	struct kvc_cli *cli = state->input;
	struct kvc_namespace_params *params = &cli->ns.params;

	switch (key) {
	case OPTION_MODEL:
		params->model_id = argument;
		return 0;
	case OPTION_IDENTITY:
		params->identity = argument;
		return 0;
	case OPTION_TENANT:
		params->tenant = argument;
		return 0;
	case OPTION_DTYPE:
		params->dtype = argument;
		return 0;
	case OPTION_MLA:
		params->is_mla = 1;
		return 0;
	case OPTION_PAGE_TOKENS:
		return cli_argp_u32("--page-tokens", argument, 1, 1u << 30, &params->page_tokens);
	case OPTION_LOGICAL_PAGE_TOKENS:
		return cli_argp_u32("--logical-page-tokens", argument, 1, 1u << 30,
				    &params->logical_page_tokens);
	case OPTION_WRITER:
		return parse_writer(argument, &params->is_writer);
	default:
		return parse_rank_option(key, argument, params);
	}
}

static error_t parse_byte_order(const char *text, uint32_t *out)
{
	static const char *const words[] = { "auto", "token", "layer", "head" };

	for (uint32_t i = 1; i < 4; i++) {
		if (strcmp(text, words[i]) == 0) {
			*out = i; /* enum kvc_byte_order */
			return 0;
		}
	}
	return cli_argp_error("--byte-order: '%s' is none of token, layer, head", text);
}

static error_t parse_key(int key, char *argument, struct argp_state *state)
{
	struct kvc_cli *cli = state->input;

	switch (key) {
	case OPTION_HEX:
		cli->ns.hex = true;
		return 0;
	case OPTION_POOL:
		cli->ns.pool = argument;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_page(int key, char *argument, struct argp_state *state)
{
	struct kvc_cli *cli = state->input;

	switch (key) {
	case OPTION_PART_BYTES:
		cli->ns.part_bytes = argument;
		return 0;
	case OPTION_BYTE_ORDER:
		return parse_byte_order(argument, &cli->ns.byte_order);
	case OPTION_COPY_MODE:
		cli->ns.copy_mode = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp namespace_argp = { .options = namespace_options,
					    .parser = parse_namespace };
static const struct argp key_argp = { .options = key_options, .parser = parse_key };
static const struct argp page_argp = { .options = page_options, .parser = parse_page };

/* ---------------------------------------------------------------- the parse of a command */

struct frame {
	struct kvc_cli *cli;
	void *input;
	const struct argp *root;
};

static error_t parse_root(int key, char *argument, struct argp_state *state)
{
	struct frame *frame = state->input;

	(void)argument;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = frame->input;
		for (int i = 1; frame->root->children[i].argp; i++)
			state->child_inputs[i] = frame->cli;
		return 0;
	case ARGP_KEY_ERROR:
		cli_argp_explain(frame->root, state->argc, state->argv, state->next);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int cli_parse(struct kvc_cli *cli, const struct argp *argp, unsigned flags, int argc, char **argv,
	      void *input)
{
	struct argp_child children[6] = { { argp, 0, NULL, 0 } };
	struct argp root = { .parser = parse_root, .children = children };
	struct frame frame = { .cli = cli, .input = input, .root = &root };
	char *argv0 = argv[0];
	char title[64];
	unsigned count = 1;
	error_t error;

	if (flags & CLI_WITH_KEYS)
		children[count++].argp = &key_argp;
	if (flags & CLI_WITH_PAGES)
		children[count++].argp = &page_argp;
	if (flags & CLI_WITH_NAMESPACE)
		children[count++].argp = &namespace_argp;
	children[count].argp = &cli_global_argp;
	(void)snprintf(title, sizeof(title), "kvcellar %s", cli->command);
	argv[0] = title;
	error = argp_parse(&root, argc, argv, ARGP_IN_ORDER | ARGP_NO_ERRS | ARGP_NO_HELP, NULL,
			   &frame);
	argv[0] = argv0;
	if (error == ENOMEM)
		return cli_fail_errno(cli, -ENOMEM, "arguments");
	if (error)
		return cli_usage(cli, "%s", cli_argp_text());
	cli_log_begin(cli);
	return flags & CLI_WITHOUT_CONFIG ? 0 : cli_config_build(cli, &cli->config);
}
