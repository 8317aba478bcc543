/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar exists, rm: several keys, of single objects or of a pool's pages. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct keys_arguments {
	char **texts;
	size_t count;
	bool force; /* rm: what is not there is no failure */
};

/* What became of one key. */
struct outcome {
	struct kvc_result result;
	uint64_t bytes;
	bool bytes_known;
};

static error_t parse_keys(int key, char *argument, struct argp_state *state)
{
	struct keys_arguments *arguments = state->input;
	char **grown;

	switch (key) {
	case 'f':
		arguments->force = true;
		return 0;
	case ARGP_KEY_ARG:
		grown = reallocarray(arguments->texts, arguments->count + 1, sizeof(*grown));
		if (!grown)
			return ENOMEM;
		arguments->texts = grown;
		arguments->texts[arguments->count++] = argument;
		return 0;
	case ARGP_KEY_NO_ARGS:
		return cli_argp_error("no key given");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp exists_argp = {
	.parser = parse_keys,
	.args_doc = "KEY...",
	.doc = "Says which keys are there. Exit code 0: all of them; 3: not all."
	       "\v"
	       "Examples:\n"
	       "  kvcellar exists greeting backup\n"
	       "  kvcellar exists --hex 00ff10 --model llama --part-bytes 64K,64K",
};

static const struct argp_option rm_options[] = {
	{ "force", 'f', NULL, 0, "What is not there is no failure", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp rm_argp = {
	.options = rm_options,
	.parser = parse_keys,
	.args_doc = "KEY...",
	.doc = "Removes objects by key. Exit code 3: some were not there."
	       "\v"
	       "Example:\n"
	       "  kvcellar rm greeting",
};

/* ---------------------------------------------------------------- asking */

static void outcome_of_errno(struct outcome *outcome, int error)
{
	outcome->result.status = KVC_ERROR;
	outcome->result.cause = KVC_CAUSE_IO;
	if (error == -ETIMEDOUT) {
		outcome->result.status = KVC_TIMEOUT;
		outcome->result.cause = KVC_CAUSE_DEADLINE;
	} else if (error == -EACCES || error == -EPERM) {
		outcome->result.status = KVC_DENIED;
		outcome->result.cause = KVC_CAUSE_PERMISSION;
	} else if (error == -EROFS) {
		outcome->result.status = KVC_DENIED;
		outcome->result.cause = KVC_CAUSE_READ_ONLY;
	} else if (error == -EINVAL || error == -ENAMETOOLONG) {
		outcome->result.cause = KVC_CAUSE_NAME;
	}
	outcome->result.error = -error;
}

static void ask_object(struct kvc_cli *cli, struct kvc_namespace *ns, int op, struct kvc_key key,
		       struct outcome *outcome)
{
	size_t bytes = 0;
	int rc;

	if (op == KVC_EXISTS)
		rc = kvc_object_exists(ns, cli_pool_name(cli), key, &bytes, 0);
	else
		rc = kvc_object_remove(ns, cli_pool_name(cli), key, 0);
	if (rc < 0) {
		outcome_of_errno(outcome, rc);
	} else {
		outcome->result.status = rc ? KVC_OK : KVC_MISS;
		outcome->result.cause = rc ? KVC_CAUSE_NONE : KVC_CAUSE_ABSENT;
	}
	outcome->bytes = bytes;
	outcome->bytes_known = op == KVC_EXISTS && rc > 0;
}

static int ask_pages(struct kvc_cli *cli, struct kvc_namespace *ns, int op,
		     const struct kvc_key *keys, size_t count, struct outcome *outcomes)
{
	struct kvc_transfer transfer = { .size = sizeof(transfer), .op = (uint32_t)op };
	struct kvc_result *results;
	struct kvc_pool *pool = NULL;
	int rc;

	results = calloc(count, sizeof(*results));
	if (!results)
		return cli_fail_errno(cli, -ENOMEM, "%s", cli->command);
	rc = cli_pool_open(cli, ns, &pool, NULL, NULL);
	if (rc == 0) {
		transfer.pool = pool;
		transfer.keys = keys;
		transfer.key_count = count;
		transfer.results = results;
		rc = kvc_batch_run(cli->store, &transfer, 1);
		if (rc < 0)
			rc = cli_fail(cli, rc, "%s", cli->command);
	}
	for (size_t i = 0; rc == 0 && i < count; i++)
		outcomes[i].result = results[i];
	(void)kvc_pool_close(pool);
	free(results);
	return rc;
}

static int ask(struct kvc_cli *cli, struct kvc_namespace *ns, int op,
	       const struct keys_arguments *arguments, struct outcome *outcomes)
{
	struct cli_key *keys = calloc(arguments->count, sizeof(*keys));
	struct kvc_key *plain = calloc(arguments->count, sizeof(*plain));
	int rc = keys && plain ? 0 : cli_fail_errno(cli, -ENOMEM, "%s", cli->command);

	for (size_t i = 0; rc == 0 && i < arguments->count; i++) {
		rc = cli_key_make(cli, arguments->texts[i], &keys[i]);
		if (rc == 0)
			plain[i] = keys[i].key;
	}
	if (rc == 0 && cli->ns.part_bytes)
		rc = ask_pages(cli, ns, op, plain, arguments->count, outcomes);
	else
		for (size_t i = 0; rc == 0 && i < arguments->count; i++) {
			ask_object(cli, ns, op, plain[i], &outcomes[i]);
			rc = cli_interrupted() && i + 1 < arguments->count ? CLI_INTERRUPTED : 0;
		}
	for (size_t i = 0; keys && i < arguments->count; i++)
		cli_key_free(&keys[i]);
	free(plain);
	free(keys);
	return rc;
}

/* ---------------------------------------------------------------- telling */

static json_t *outcome_json(const char *text, const struct outcome *outcome)
{
	json_t *item = json_pack("{s:o, s:s, s:s, s:s}", "key", cli_json_text(text), "status",
				 kvc_status_name(outcome->result.status), "cause",
				 kvc_cause_name(outcome->result.cause), "errno",
				 cli_errno_name(outcome->result.error));

	if (item && outcome->bytes_known)
		(void)json_object_set_new(item, "bytes", json_integer((json_int_t)outcome->bytes));
	return item;
}

static void outcome_text(struct kvc_cli *cli, const char *text, const struct outcome *outcome)
{
	const struct kvc_result *result = &outcome->result;
	char *printable = cli_printable(text);
	char size[CLI_FORMAT_BYTES];

	printf("%s%-8s%s %s", result->status == KVC_OK ? cli_green(cli) : cli_red(cli),
	       kvc_status_name(result->status), cli_plain(cli), printable ? printable : "?");
	if (outcome->bytes_known)
		printf("  %s", cli_format_size(size, outcome->bytes));
	if (result->status > KVC_MISS)
		printf("  %s%s%s", kvc_cause_name(result->cause), result->error ? ": " : "",
		       result->error ? strerror(result->error) : "");
	(void)putchar('\n');
	free(printable);
}

/* Failures count more than misses, the first failure most. */
static int worst_exit(const struct keys_arguments *arguments, const struct outcome *outcomes)
{
	int worst = CLI_DONE;

	for (size_t i = 0; i < arguments->count; i++) {
		int exit_code = outcomes[i].result.cause == KVC_CAUSE_NAME ?
					CLI_USAGE :
					cli_exit_of_result(&outcomes[i].result);

		if (exit_code == CLI_MISS && arguments->force)
			continue;
		if (worst == CLI_DONE || (worst == CLI_MISS && exit_code != CLI_DONE))
			worst = exit_code;
	}
	return worst;
}

static int tell(struct kvc_cli *cli, const struct keys_arguments *arguments,
		const struct outcome *outcomes)
{
	json_t *list;
	int rc = 0;

	if (!cli->json) {
		for (size_t i = 0; i < arguments->count && !cli->quiet; i++)
			outcome_text(cli, arguments->texts[i], &outcomes[i]);
		return worst_exit(arguments, outcomes);
	}
	list = json_array();
	for (size_t i = 0; list && i < arguments->count; i++)
		(void)json_array_append_new(list, outcome_json(arguments->texts[i], &outcomes[i]));
	rc = cli_json_print(cli, json_pack("{s:o}", "keys", list));
	return rc ? rc : worst_exit(arguments, outcomes);
}

static int run_keys(struct kvc_cli *cli, const struct argp *argp, int op, int argc, char **argv)
{
	struct keys_arguments arguments = { .count = 0 };
	struct outcome *outcomes = NULL;
	struct kvc_namespace *ns;
	int rc;

	rc = cli_parse(cli, argp, CLI_WITH_NAMESPACE | CLI_WITH_KEYS | CLI_WITH_PAGES, argc, argv,
		       &arguments);
	if (rc == 0)
		rc = op == KVC_REMOVE ?
			     cli_store_open_existing(cli) :
			     cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc == 0)
		rc = cli_namespace_open(cli, &ns);
	if (rc == 0) {
		outcomes = calloc(arguments.count, sizeof(*outcomes));
		rc = outcomes ? ask(cli, ns, op, &arguments, outcomes) :
				cli_fail_errno(cli, -ENOMEM, "%s", cli->command);
	}
	if (rc == 0)
		rc = tell(cli, &arguments, outcomes);
	free(outcomes);
	free(arguments.texts);
	return rc;
}

int kvc_cmd_exists(struct kvc_cli *cli, int argc, char **argv)
{
	return run_keys(cli, &exists_argp, KVC_EXISTS, argc, argv);
}

int kvc_cmd_rm(struct kvc_cli *cli, int argc, char **argv)
{
	return run_keys(cli, &rm_argp, KVC_REMOVE, argc, argv);
}
