/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar put, get: one object by key. */
#include "cli.h"
#include "file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	OPTION_OVERWRITE = 0x200,
	OPTION_TIMEOUT,
};

struct object_arguments {
	const char *key;
	const char *file;
	bool overwrite;
	double timeout_seconds;
};

static uint32_t timeout_ms(const struct object_arguments *arguments)
{
	double ms = arguments->timeout_seconds * 1000;

	if (ms <= 0)
		return 0; /* the configuration's */
	return ms < 1 ? 1 : ms > 3600000 ? 3600000 : (uint32_t)ms;
}

static error_t parse_object(int key, char *argument, struct argp_state *state)
{
	struct object_arguments *arguments = state->input;

	switch (key) {
	case 'o':
		arguments->file = argument;
		return 0;
	case OPTION_OVERWRITE:
		arguments->overwrite = true;
		return 0;
	case OPTION_TIMEOUT:
		return cli_argp_seconds("--timeout", argument, 0.001, &arguments->timeout_seconds);
	case ARGP_KEY_NO_ARGS:
		return cli_argp_error("no key given");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* ---------------------------------------------------------------- put */

static error_t parse_put(int key, char *argument, struct argp_state *state)
{
	struct object_arguments *arguments = state->input;

	if (key != ARGP_KEY_ARG)
		return parse_object(key, argument, state);
	if (state->arg_num == 0)
		arguments->key = argument;
	else if (state->arg_num == 1)
		arguments->file = argument;
	else
		return cli_argp_error("unexpected argument '%.200s'", argument);
	return 0;
}

static const struct argp_option put_options[] = {
	{ "overwrite", OPTION_OVERWRITE, NULL, 0, "Write it also when it is there already", 0 },
	{ "timeout", OPTION_TIMEOUT, "SECONDS", 0, "Default: set_timeout_ms", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp put_argp = {
	.options = put_options,
	.parser = parse_put,
	.args_doc = "KEY [FILE|-]",
	.doc = "Stores a file, or standard input, under a key. What is there already in the same "
	       "size is kept."
	       "\v"
	       "Keys are text; with --hex they are hexadecimal. After `--' a key may begin with "
	       "a dash.\n\n"
	       "Examples:\n"
	       "  kvcellar put greeting hello.txt\n"
	       "  tar c folder | kvcellar put backup\n"
	       "  kvcellar put --hex 00ff10 page.bin --model llama",
};

static int put_object(struct kvc_cli *cli, struct kvc_namespace *ns,
		      const struct object_arguments *arguments, const struct cli_key *key,
		      const char *data, size_t bytes)
{
	char size[CLI_FORMAT_BYTES];
	int rc;

	if (cli_interrupted())
		return CLI_INTERRUPTED;
	rc = kvc_object_put(ns, cli_pool_name(cli), key->key, data, bytes, arguments->overwrite,
			    timeout_ms(arguments));
	if (rc < 0)
		return cli_fail_key(cli, rc, "put '%.80s'", arguments->key);
	if (cli->json)
		return cli_json_print(cli, json_pack("{s:o, s:s, s:I, s:b}", "key",
						     cli_json_text(arguments->key), "namespace",
						     kvc_namespace_id(ns), "bytes",
						     (json_int_t)bytes, "existed", rc == 1));
	cli_note(cli, rc == 1 ? "was there already (%s)" : "stored %s",
		 cli_format_size(size, bytes));
	return CLI_DONE;
}

int kvc_cmd_put(struct kvc_cli *cli, int argc, char **argv)
{
	struct object_arguments arguments = { .file = "-" };
	struct cli_key key = { .data = NULL };
	struct kvc_namespace *ns;
	char *data = NULL;
	size_t bytes = 0;
	int rc;

	rc = cli_parse(cli, &put_argp, CLI_WITH_NAMESPACE | CLI_WITH_KEYS, argc, argv, &arguments);
	if (rc == 0)
		rc = cli_key_make(cli, arguments.key, &key);
	if (rc == 0)
		rc = cli_store_open(cli, KVC_OPEN_NO_SELFTEST);
	if (rc == 0)
		rc = cli_namespace_open(cli, &ns);
	if (rc == 0)
		rc = cli_file_read(cli, arguments.file, &data, &bytes);
	if (rc == 0)
		rc = put_object(cli, ns, &arguments, &key, data, bytes);
	free(data);
	cli_key_free(&key);
	return rc;
}

/* ---------------------------------------------------------------- get */

static error_t parse_get(int key, char *argument, struct argp_state *state)
{
	struct object_arguments *arguments = state->input;

	if (key != ARGP_KEY_ARG)
		return parse_object(key, argument, state);
	if (state->arg_num == 0)
		arguments->key = argument;
	else if (state->arg_num == 1 && strcmp(arguments->file, "-") == 0)
		arguments->file = argument;
	else
		return cli_argp_error("unexpected argument '%.200s'", argument);
	return 0;
}

static const struct argp_option get_options[] = {
	{ "output", 'o', "FILE", 0,
	  "The same as FILE: written whole or not at all; default: stdout", 0 },
	{ "timeout", OPTION_TIMEOUT, "SECONDS", 0, "Default: get_timeout_ms", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp get_argp = {
	.options = get_options,
	.parser = parse_get,
	.args_doc = "KEY [FILE|-]",
	.doc = "Reads an object, checks it, and writes its bytes to standard output or a file. "
	       "Nothing is written unless all bytes are right. With --json and without -o the "
	       "document has them in base64."
	       "\v"
	       "Exit codes: 3 not there, 4 corrupt, 6 denied, 7 timed out.\n\n"
	       "Examples:\n"
	       "  kvcellar get greeting\n"
	       "  kvcellar get greeting hello.txt\n"
	       "  kvcellar get backup | tar x\n"
	       "  kvcellar get --hex 00ff10 --model llama -o page.bin",
};

static bool is_text(const char *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (((unsigned char)data[i] < 0x20 && !strchr("\n\t\r", data[i])) ||
		    data[i] == 0x7f || !data[i])
			return false;
	return true;
}

static int get_bytes(struct kvc_cli *cli, struct kvc_namespace *ns,
		     const struct object_arguments *arguments, const struct cli_key *key,
		     char **out_data, size_t *out_bytes)
{
	const char *pool = cli_pool_name(cli);
	size_t capacity = 0;
	int rc;

	if (kvc_object_exists(ns, pool, key->key, &capacity, 0) <= 0)
		capacity = 0; /* get has the cause */
	rc = cli_object_read(ns, pool, key->key, timeout_ms(arguments), capacity, out_data,
			     out_bytes);
	if (rc == -ENOMEM)
		return cli_fail_errno(cli, rc, "get '%.80s'", arguments->key);
	return rc < 0 ? cli_fail_key(cli, rc, "get '%.80s'", arguments->key) : 0;
}

/* Base64 of RFC 4648; NULL without memory. */
static char *base64(const char *data, size_t bytes)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *in = (const unsigned char *)data;
	char *text = malloc(bytes / 3 * 4 + 5), *out = text;

	for (size_t i = 0; text && i < bytes; i += 3) {
		size_t left = bytes - i;
		uint32_t group = (uint32_t)in[i] << 16;

		group |= left > 1 ? (uint32_t)in[i + 1] << 8 : 0;
		group |= left > 2 ? (uint32_t)in[i + 2] : 0;
		*out++ = digits[group >> 18];
		*out++ = digits[group >> 12 & 63];
		*out++ = digits[group >> 6 & 63];
		*out++ = digits[group & 63];
		if (left < 3)
			memcpy(out - (3 - left), "==", 3 - left);
	}
	if (out)
		*out = '\0';
	return text;
}

static int write_json(struct kvc_cli *cli, const struct object_arguments *arguments,
		      const char *data, size_t bytes, bool standard)
{
	char *encoded = standard ? base64(data, bytes) : NULL;
	json_t *root;

	root = json_pack("{s:o, s:I}", "key", cli_json_text(arguments->key), "bytes",
			 (json_int_t)bytes);
	if (root && standard)
		(void)json_object_set_new(root, "base64", json_string(encoded));
	else if (root)
		(void)json_object_set_new(root, "file", cli_json_text(arguments->file));
	free(encoded);
	return cli_json_print(cli, root);
}

static int write_bytes(struct kvc_cli *cli, const struct object_arguments *arguments,
		       const char *data, size_t bytes)
{
	bool standard = strcmp(arguments->file, "-") == 0;
	char size[CLI_FORMAT_BYTES];
	int rc;

	if (standard && cli->json)
		return write_json(cli, arguments, data, bytes, standard);
	if (standard && isatty(STDOUT_FILENO) && !is_text(data, bytes))
		return cli_error(cli, CLI_USAGE,
				 "get '%.80s': binary bytes are not written to a terminal; use "
				 "-o FILE or a pipe",
				 arguments->key);
	rc = cli_file_write(cli, arguments->file, data, bytes);
	if (rc || standard)
		return rc;
	if (cli->json)
		return write_json(cli, arguments, data, bytes, standard);
	cli_note(cli, "%s to %s", cli_format_size(size, bytes), arguments->file);
	return CLI_DONE;
}

int kvc_cmd_get(struct kvc_cli *cli, int argc, char **argv)
{
	struct object_arguments arguments = { .file = "-" };
	struct cli_key key = { .data = NULL };
	struct kvc_namespace *ns;
	char *data = NULL;
	size_t bytes = 0;
	int rc;

	rc = cli_parse(cli, &get_argp, CLI_WITH_NAMESPACE | CLI_WITH_KEYS, argc, argv, &arguments);
	if (rc == 0)
		rc = cli_key_make(cli, arguments.key, &key);
	if (rc == 0)
		rc = cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc == 0)
		rc = cli_namespace_open(cli, &ns);
	if (rc == 0)
		rc = get_bytes(cli, ns, &arguments, &key, &data, &bytes);
	if (rc == 0)
		rc = write_bytes(cli, &arguments, data, bytes);
	free(data);
	cli_key_free(&key);
	return rc;
}
