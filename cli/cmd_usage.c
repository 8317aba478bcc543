/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar usage, pin, unpin: who has the space, and what is not to be evicted. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_RECOUNT = 0x200,
};

struct usage_arguments {
	bool recount;
};

static error_t parse_usage(int key, char *argument, struct argp_state *state)
{
	struct usage_arguments *arguments = state->input;

	switch (key) {
	case OPTION_RECOUNT:
		arguments->recount = true;
		return 0;
	case ARGP_KEY_ARG:
		return cli_argp_error("unexpected argument '%.200s'; -D names a directory",
				      argument);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option usage_options[] = {
	{ "recount", OPTION_RECOUNT, NULL, 0, "Walk the roots and correct the counters first", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp usage_argp = {
	.options = usage_options,
	.parser = parse_usage,
	.doc = "Shows who has the space: by root, by namespace and by tenant. LIVE is what the "
	       "objects have, ALLOCATED what they take (segment files of packed roots, also for "
	       "slots that are free), SHARE what the tenant may have of that root. The figures are "
	       "those that the processes keep; a root that nobody has counted yet is walked."
	       "\v"
	       "Examples:\n"
	       "  kvcellar -c kvcellar.toml usage\n"
	       "  kvcellar -D /mnt/cache usage --json",
};

/* ---------------------------------------------------------------- collecting */

static json_t *text_or_null(const char *text)
{
	return text ? cli_json_text(text) : json_null();
}

static int add_namespace(void *context, const struct kvc_namespace_usage *usage)
{
	json_t *one;

	if (cli_interrupted())
		return -EINTR;
	one = json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:b, s:o}", "root",
			cli_json_text(usage->root_path), "namespace", cli_json_text(usage->id),
			"model", text_or_null(usage->model), "tenant", text_or_null(usage->tenant),
			"live_bytes", (json_int_t)usage->live_bytes, "allocated_bytes",
			(json_int_t)usage->allocated_bytes, "objects", (json_int_t)usage->objects,
			"pinned", (int)usage->pinned, "share_bytes",
			usage->share_bytes ? json_integer((json_int_t)usage->share_bytes) :
					     json_null());
	return json_array_append_new(context, one) < 0 ? -ENOMEM : 0;
}

static json_int_t number_of(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

static const char *text_of(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : a == b;
}

/* The entry of a list whose member has that text (or null); a new one with figures of 0. */
static json_t *entry_of(json_t *list, const char *member, const json_t *value)
{
	json_t *entry;
	size_t i;

	json_array_foreach(list, i, entry)
	{
		if (same_text(text_of(entry, member), json_string_value(value)))
			return entry;
	}
	entry = json_pack("{s:O, s:I, s:I, s:I}", member, value, "live_bytes", (json_int_t)0,
			  "allocated_bytes", (json_int_t)0, "objects", (json_int_t)0);
	return json_array_append_new(list, entry) < 0 ? NULL : entry;
}

static void add_figures(json_t *to, const json_t *from)
{
	static const char *const names[] = { "live_bytes", "allocated_bytes", "objects" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		(void)json_object_set_new(
			to, names[i],
			json_integer(number_of(to, names[i]) + number_of(from, names[i])));
}

/* Of all its namespaces on all roots; its share is the sum of those that roots give it. */
static json_t *sum_tenants(const json_t *namespaces)
{
	json_t *tenants = json_array(), *seen = json_object();
	const json_t *one;
	size_t i;

	json_array_foreach(namespaces, i, one)
	{
		json_t *entry = entry_of(tenants, "tenant", json_object_get(one, "tenant"));
		const char *tenant = text_of(one, "tenant"), *root = text_of(one, "root");
		char key[8192];

		if (!entry)
			break;
		add_figures(entry, one);
		(void)snprintf(key, sizeof(key), "%s\n%s", root ? root : "", tenant ? tenant : "");
		if (!json_is_integer(json_object_get(one, "share_bytes"))) {
			if (!json_object_get(entry, "share_bytes"))
				(void)json_object_set_new(entry, "share_bytes", json_null());
		} else if (!json_object_get(seen, key)) {
			(void)json_object_set_new(seen, key, json_true());
			(void)json_object_set_new(entry, "share_bytes",
						  json_integer(number_of(entry, "share_bytes") +
							       number_of(one, "share_bytes")));
		}
	}
	json_decref(seen);
	return tenants;
}

#define ROOTS_MAX 64 /* of a store */

static json_t *root_entry(const struct kvc_root_usage *usage, const json_t *namespaces)
{
	json_t *root = json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I}", "root",
				 cli_json_text(usage->path), "state", usage->state, "live_bytes",
				 (json_int_t)usage->own_bytes, "allocated_bytes", (json_int_t)0,
				 "objects", (json_int_t)usage->own_objects, "total_bytes",
				 (json_int_t)usage->total_bytes, "free_bytes",
				 (json_int_t)usage->free_bytes);
	json_int_t allocated = 0;
	const json_t *one;
	size_t i;

	json_array_foreach(namespaces, i, one)
	{
		if (same_text(text_of(one, "root"), text_of(root, "root")))
			allocated += number_of(one, "allocated_bytes");
	}
	(void)json_object_set_new(root, "allocated_bytes", json_integer(allocated));
	return root;
}

static json_t *list_roots(struct kvc_cli *cli, const json_t *namespaces, int *exit_code)
{
	struct kvc_root_usage usage[ROOTS_MAX];
	json_t *roots;
	int count;

	memset(usage, 0, sizeof(usage));
	for (size_t i = 0; i < ROOTS_MAX; i++)
		usage[i].size = sizeof(usage[i]);
	count = kvc_store_usage(cli->store, 0, usage, ROOTS_MAX);
	if (count < 0) {
		*exit_code = cli_fail(cli, count, "usage");
		return NULL;
	}
	roots = json_array();
	for (int i = 0; i < count && i < ROOTS_MAX; i++)
		(void)json_array_append_new(roots, root_entry(&usage[i], namespaces));
	return roots;
}

/* ---------------------------------------------------------------- telling */

static const char *size_of(char buffer[CLI_FORMAT_BYTES], const json_t *entry, const char *name)
{
	const json_t *value = json_object_get(entry, name);

	if (!json_is_integer(value))
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "-");
	else
		(void)cli_format_size(buffer, (uint64_t)json_integer_value(value));
	return buffer;
}

static void print_figures(const json_t *entry)
{
	char live[CLI_FORMAT_BYTES], allocated[CLI_FORMAT_BYTES];

	printf("%10s  %10s  %10" JSON_INTEGER_FORMAT "  ", size_of(live, entry, "live_bytes"),
	       size_of(allocated, entry, "allocated_bytes"), number_of(entry, "objects"));
}

static void print_roots(struct kvc_cli *cli, const json_t *roots)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES];
	const json_t *root;
	size_t i;

	printf("%s%10s  %10s  %10s  %10s  %10s  %s%s\n", cli_bold(cli), "LIVE", "ALLOCATED",
	       "OBJECTS", "FREE", "DISK", "ROOT", cli_plain(cli));
	json_array_foreach(roots, i, root)
	{
		print_figures(root);
		printf("%10s  %10s  %s\n", size_of(a, root, "free_bytes"),
		       size_of(b, root, "total_bytes"), text_of(root, "root"));
	}
}

/* With one root its name says nothing. */
static void print_namespaces(struct kvc_cli *cli, const json_t *namespaces, bool with_root)
{
	char share[CLI_FORMAT_BYTES];
	const json_t *one;
	size_t i;

	printf("\n%s%10s  %10s  %10s  %10s  %-6s  %-16s  %s%s%s\n", cli_bold(cli), "LIVE",
	       "ALLOCATED", "OBJECTS", "SHARE", "PINNED", "TENANT", "NAMESPACE",
	       with_root ? "  ROOT" : "", cli_plain(cli));
	json_array_foreach(namespaces, i, one)
	{
		const char *tenant = text_of(one, "tenant"), *id = text_of(one, "namespace");

		print_figures(one);
		printf("%10s  %-6s  %-16s  %s%s%s\n", size_of(share, one, "share_bytes"),
		       json_is_true(json_object_get(one, "pinned")) ? "yes" : "-",
		       tenant ? tenant : "-", id[0] ? id : "-", with_root ? "  " : "",
		       with_root ? text_of(one, "root") : "");
	}
}

static void print_tenants(struct kvc_cli *cli, const json_t *tenants)
{
	char share[CLI_FORMAT_BYTES];
	const json_t *one;
	size_t i;

	printf("\n%s%10s  %10s  %10s  %10s  %s%s\n", cli_bold(cli), "LIVE", "ALLOCATED", "OBJECTS",
	       "SHARE", "TENANT", cli_plain(cli));
	json_array_foreach(tenants, i, one)
	{
		const char *tenant = text_of(one, "tenant");

		print_figures(one);
		printf("%10s  %s\n", size_of(share, one, "share_bytes"), tenant ? tenant : "-");
	}
}

static int show_usage(struct kvc_cli *cli, json_t *namespaces)
{
	json_t *roots, *tenants;
	int rc = 0;

	roots = list_roots(cli, namespaces, &rc);
	if (!roots)
		return rc;
	tenants = sum_tenants(namespaces);
	if (cli->json) {
		rc = cli_json_print(cli, json_pack("{s:O, s:O, s:O}", "roots", roots, "namespaces",
						   namespaces, "tenants", tenants));
	} else {
		print_roots(cli, roots);
		if (json_array_size(namespaces))
			print_namespaces(cli, namespaces, json_array_size(roots) > 1);
		if (json_array_size(tenants))
			print_tenants(cli, tenants);
	}
	json_decref(tenants);
	json_decref(roots);
	return rc;
}

/* Says what it corrected, above the table. */
static int recount(struct kvc_cli *cli)
{
	struct kvc_root_usage before[ROOTS_MAX], now[ROOTS_MAX];
	int rc;

	memset(before, 0, sizeof(before));
	memset(now, 0, sizeof(now));
	for (size_t i = 0; i < ROOTS_MAX; i++)
		before[i].size = now[i].size = sizeof(now[i]);
	rc = kvc_store_usage(cli->store, 0, before, ROOTS_MAX);
	if (rc >= 0)
		rc = kvc_store_usage(cli->store, 1, now, ROOTS_MAX);
	if (rc > 0 && !cli->json)
		cli_print_corrected(before, now, (size_t)rc);
	return rc;
}

int kvc_cmd_usage(struct kvc_cli *cli, int argc, char **argv)
{
	struct usage_arguments arguments = { .recount = false };
	json_t *namespaces;
	int rc;

	rc = cli_parse(cli, &usage_argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	/* Counters are corrected by who may write them. */
	rc = cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc == 0 && arguments.recount)
		rc = cli_store_reopen(cli);
	if (rc)
		return rc;
	if (arguments.recount) {
		rc = recount(cli);
		if (rc < 0)
			return cli_fail(cli, rc, "usage");
	}
	namespaces = json_array();
	rc = namespaces ? kvc_store_usage_namespaces(cli->store, add_namespace, namespaces) :
			  -ENOMEM;
	if (rc < 0)
		rc = cli_fail(cli, rc, "usage");
	else
		rc = show_usage(cli, namespaces);
	json_decref(namespaces);
	return rc;
}

/* ---------------------------------------------------------------- pin, unpin */

struct pin_arguments {
	const char *id;
};

static error_t parse_pin(int key, char *argument, struct argp_state *state)
{
	struct pin_arguments *arguments = state->input;

	return cli_argp_namespace(key, argument, state, &arguments->id);
}

static const struct argp pin_argp = {
	.parser = parse_pin,
	.args_doc = "NAMESPACE",
	.doc = "Keeps a namespace from being evicted, on all roots, by all processes, until it is "
	       "unpinned. What is pinned counts against the capacity like everything else: when "
	       "nothing else is left, sets end FULL. `kvcellar usage' names the namespaces, and "
	       "says which are pinned."
	       "\v"
	       "Examples:\n"
	       "  kvcellar pin llama-3f2a9c0d11aa22bb\n"
	       "  kvcellar unpin llama-3f2a9c0d11aa22bb",
};

static const struct argp unpin_argp = {
	.parser = parse_pin,
	.args_doc = "NAMESPACE",
	.doc = "Lets a namespace be evicted again that was pinned."
	       "\v"
	       "Example:\n"
	       "  kvcellar unpin llama-3f2a9c0d11aa22bb",
};

static int set_pin(struct kvc_cli *cli, const struct argp *argp, int argc, char **argv, bool on)
{
	struct pin_arguments arguments = { .id = NULL };
	int rc;

	rc = cli_parse(cli, argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	/* A namespace that was cleared may still be pinned. */
	rc = cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc)
		return rc;
	rc = kvc_store_pin(cli->store, arguments.id, on);
	if (rc == -EINVAL)
		return cli_fail_as(cli, CLI_USAGE, rc, "%s", cli->command);
	if (rc == -ENOTSUP)
		return cli_fail_as(cli, CLI_CONFIG, rc, "%s", cli->command);
	rc = on ? cli_namespace_check(cli, arguments.id) : 0;
	if (rc == 0)
		rc = cli_store_reopen(cli);
	if (rc)
		return rc;
	rc = kvc_store_pin(cli->store, arguments.id, on);
	if (rc < 0)
		return cli_fail(cli, rc, "%s", cli->command);
	if (cli->json)
		return cli_json_print(cli,
				      json_pack("{s:o, s:b}", "namespace",
						cli_json_text(arguments.id), "pinned", (int)on));
	cli_note(cli, "%s is %s", arguments.id, on ? "pinned" : "not pinned");
	return CLI_DONE;
}

int kvc_cmd_pin(struct kvc_cli *cli, int argc, char **argv)
{
	return set_pin(cli, &pin_argp, argc, argv, true);
}

int kvc_cmd_unpin(struct kvc_cli *cli, int argc, char **argv)
{
	return set_pin(cli, &unpin_argp, argc, argv, false);
}
