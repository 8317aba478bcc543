/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar ls: namespaces with their sizes, or the objects of one. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct list_arguments {
	const char *id; /* NULL = the table of namespaces */
	bool all;
	bool longer;
};

static error_t parse_list(int key, char *argument, struct argp_state *state)
{
	struct list_arguments *arguments = state->input;

	switch (key) {
	case 'a':
		arguments->all = true;
		return 0;
	case 'l':
		arguments->longer = true;
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

static const struct argp_option list_options[] = {
	{ "all", 'a', NULL, 0, "The objects of all namespaces", 0 },
	{ "long", 'l', NULL, 0, "Also where each object lies", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp list_argp = {
	.options = list_options,
	.parser = parse_list,
	.args_doc = "[NAMESPACE]",
	.doc = "Lists the namespaces with number and size of their objects, or the objects of "
	       "one namespace: stored bytes, time, name. Exit code 3: nothing of that namespace is "
	       "there."
	       "\v"
	       "Examples:\n"
	       "  kvcellar ls\n"
	       "  kvcellar ls llama-3f2a9c0d11aa22bb\n"
	       "  kvcellar ls --all --json",
};

/* ---------------------------------------------------------------- objects */

struct object_lines {
	struct kvc_cli *cli;
	bool longer;
	uint64_t count;
};

static json_t *object_json(const struct kvc_object_info *info)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o}", "namespace",
			 cli_json_text(info->ns_id), "name", cli_json_text(info->name), "root",
			 cli_json_text(info->root_path), "path", cli_json_text(info->path),
			 "stored_bytes", (json_int_t)info->stored_bytes, "allocated_bytes",
			 (json_int_t)info->allocated_bytes, "modified_ns",
			 (json_int_t)info->modified_ns, "pool",
			 info->pool_name ? cli_json_text(info->pool_name) : json_null());
}

/* One at a time, so that a million objects need no memory. */
static int object_line_json(struct object_lines *lines, const struct kvc_object_info *info)
{
	json_t *object = object_json(info);
	int rc;

	if (!object)
		return -ENOMEM;
	rc = printf(lines->count ? ",\n  " : "\n  ");
	if (rc >= 0)
		rc = json_dumpf(object, stdout, JSON_COMPACT);
	json_decref(object);
	return rc;
}

static int object_line(void *context, const struct kvc_object_info *info)
{
	struct object_lines *lines = context;
	char size[CLI_FORMAT_BYTES], when[CLI_FORMAT_BYTES];
	char *name, *path = NULL;

	if (cli_interrupted())
		return -EINTR;
	if (ferror(stdout))
		return -EPIPE;
	if (lines->cli->json) {
		(void)object_line_json(lines, info);
		lines->count++;
		return 0;
	}
	name = cli_printable(info->name);
	if (lines->longer)
		path = cli_printable(info->path);
	printf("%10s  %s  %s", cli_format_size(size, info->stored_bytes),
	       cli_format_time(when, info->modified_ns), name ? name : "?");
	if (path)
		printf("  %s/%s", info->root_path, path);
	(void)putchar('\n');
	free(name);
	free(path);
	lines->count++;
	return 0;
}

static int list_done(struct kvc_cli *cli, int rc, const char *id)
{
	if (rc == -EINTR && cli_interrupted())
		return CLI_INTERRUPTED;
	if (rc == -EPIPE && ferror(stdout))
		return CLI_IO; /* cli_output_end() has the words */
	if (rc < 0)
		return cli_fail(cli, rc, "ls%s%.80s", id ? " " : "", id ? id : "");
	return CLI_DONE;
}

static int list_objects(struct kvc_cli *cli, const struct list_arguments *arguments)
{
	struct object_lines lines = { .cli = cli, .longer = arguments->longer };
	int rc;

	if (cli->json)
		printf("{\"objects\": [");
	rc = kvc_object_list(cli->store, arguments->id, object_line, &lines);
	if (cli->json)
		printf("%s]}\n", lines.count ? "\n" : "");
	rc = list_done(cli, rc, arguments->id);
	/* Nothing: because nothing is there, or because this is no namespace? */
	return rc == 0 && arguments->id && lines.count == 0 ?
		       cli_namespace_check(cli, arguments->id) :
		       rc;
}

/* ---------------------------------------------------------------- namespaces */

struct namespace_row {
	char *id;
	uint64_t objects;
	uint64_t bytes;
};

struct namespace_table {
	struct namespace_row *rows;
	size_t count;
	size_t last; /* objects of one namespace mostly come together */
};

static struct namespace_row *find_row(struct namespace_table *table, const char *id)
{
	struct namespace_row *grown;

	if (table->last < table->count && strcmp(table->rows[table->last].id, id) == 0)
		return &table->rows[table->last];
	for (table->last = 0; table->last < table->count; table->last++)
		if (strcmp(table->rows[table->last].id, id) == 0)
			return &table->rows[table->last];
	grown = reallocarray(table->rows, table->count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	table->rows = grown;
	memset(&grown[table->count], 0, sizeof(*grown));
	grown[table->count].id = strdup(id);
	if (!grown[table->count].id)
		return NULL;
	return &grown[table->count++];
}

static int count_object(void *context, const struct kvc_object_info *info)
{
	struct namespace_row *row;

	if (cli_interrupted())
		return -EINTR;
	row = find_row(context, info->ns_id);
	if (!row)
		return -ENOMEM;
	row->objects++;
	row->bytes += info->stored_bytes;
	return 0;
}

static int compare_rows(const void *a, const void *b)
{
	const struct namespace_row *left = a, *right = b;

	return strcmp(left->id, right->id);
}

static int print_table_json(struct kvc_cli *cli, const struct namespace_table *table)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < table->count; i++) {
		const struct namespace_row *row = &table->rows[i];

		(void)json_array_append_new(
			list, json_pack("{s:o, s:I, s:I}", "namespace", cli_json_text(row->id),
					"objects", (json_int_t)row->objects, "stored_bytes",
					(json_int_t)row->bytes));
	}
	return cli_json_print(cli, json_pack("{s:o}", "namespaces", list));
}

static int print_table(struct kvc_cli *cli, const struct namespace_table *table)
{
	char size[CLI_FORMAT_BYTES];

	if (cli->json)
		return print_table_json(cli, table);
	for (size_t i = 0; i < table->count; i++) {
		const struct namespace_row *row = &table->rows[i];
		char *id = cli_printable(row->id);

		printf("%10" PRIu64 "  %10s  %s\n", row->objects, cli_format_size(size, row->bytes),
		       id && id[0] ? id : "-");
		free(id);
	}
	return CLI_DONE;
}

static int list_namespaces(struct kvc_cli *cli)
{
	struct namespace_table table = { .count = 0 };
	int rc;

	rc = kvc_object_list(cli->store, NULL, count_object, &table);
	rc = list_done(cli, rc, NULL);
	if (rc == 0) {
		if (table.count)
			qsort(table.rows, table.count, sizeof(*table.rows), compare_rows);
		rc = print_table(cli, &table);
	}
	for (size_t i = 0; i < table.count; i++)
		free(table.rows[i].id);
	free(table.rows);
	return rc;
}

int kvc_cmd_ls(struct kvc_cli *cli, int argc, char **argv)
{
	struct list_arguments arguments = { .id = NULL };
	int rc;

	rc = cli_parse(cli, &list_argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	rc = cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc)
		return rc;
	return arguments.id || arguments.all ? list_objects(cli, &arguments) : list_namespaces(cli);
}
