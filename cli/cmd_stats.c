/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar stats: counters of running processes, from the pages that they map under a root. */
#include "cli.h"
#include "processes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	OPTION_PROMETHEUS = 0x200,
	OPTION_WATCH,
};

struct stats_arguments {
	const char *path;
	bool prometheus;
	double watch_seconds;
};

static error_t parse_stats(int key, char *argument, struct argp_state *state)
{
	struct stats_arguments *arguments = state->input;

	switch (key) {
	case OPTION_PROMETHEUS:
		arguments->prometheus = true;
		return 0;
	case OPTION_WATCH:
		return cli_argp_seconds("--watch", argument, 0.1, &arguments->watch_seconds);
	case ARGP_KEY_ARG:
		if (state->arg_num > 0)
			return cli_argp_error("unexpected argument '%.200s'", argument);
		arguments->path = argument;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option stats_options[] = {
	{ "prometheus", OPTION_PROMETHEUS, NULL, 0, "The sum of all processes as Prometheus text",
	  0 },
	{ "watch", OPTION_WATCH, "SECONDS", 0,
	  "Again and again, until interrupted; with --json one document a line", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp stats_argp = {
	.options = stats_options,
	.parser = parse_stats,
	.args_doc = "[ROOT]",
	.doc = "Shows the counters of the running processes that use a root: the folder given, "
	       "else each storage directory of the configuration. Reads the pages that the "
	       "processes keep there; they need not answer. A process keeps one page per store, "
	       "under the first of its local roots that it can write: with several roots name "
	       "that one, or give the configuration. Who can write to none keeps no page."
	       "\v"
	       "Examples:\n"
	       "  kvcellar stats /mnt/cache\n"
	       "  kvcellar -c kvcellar.toml stats --watch 2\n"
	       "  kvcellar stats /mnt/cache --prometheus > kvcellar.prom",
};

/* ---------------------------------------------------------------- telling */

static void add_operation(struct kvc_operation_stats *sum, const struct kvc_operation_stats *one)
{
	uint64_t *to = &sum->calls;
	const uint64_t *from = &one->calls;

	/* Every field is a counter. */
	_Static_assert(sizeof(*sum) % sizeof(uint64_t) == 0, "counters only");
	for (size_t i = 0; i < sizeof(*sum) / sizeof(uint64_t); i++)
		to[i] += from[i];
}

static void add_stats(struct kvc_stats *sum, const struct kvc_stats *one)
{
	const size_t operations = sizeof(sum->operations) / sizeof(sum->operations[0]);
	const size_t first = offsetof(struct kvc_stats, overruns) / sizeof(uint64_t);
	uint64_t *to = (uint64_t *)sum;
	const uint64_t *from = (const uint64_t *)one;

	for (size_t i = 0; i < operations; i++)
		add_operation(&sum->operations[i], &one->operations[i]);
	for (size_t i = first; i < sizeof(*sum) / sizeof(uint64_t); i++)
		to[i] += from[i];
}

enum {
	FORMAT_PROMETHEUS = 2,
};

struct stats_text {
	const struct kvc_stats *stats;
	int format;
};

static int format_stats(void *context, char *buffer, size_t bytes)
{
	const struct stats_text *text = context;

	return kvc_stats_text(text->stats, text->format, buffer, bytes);
}

static char *stats_text(struct kvc_cli *cli, const struct kvc_stats *stats, int format,
			int *exit_code)
{
	struct stats_text text = { .stats = stats, .format = format };

	return cli_text(cli, "stats", format_stats, &text, exit_code);
}

static struct kvc_stats sum_of(const struct cli_processes *processes)
{
	struct kvc_stats sum;

	memset(&sum, 0, sizeof(sum));
	for (size_t i = 0; i < processes->count; i++)
		add_stats(&sum, &processes->list[i].stats);
	sum.size = sizeof(sum);
	return sum;
}

static json_t *stats_json(struct kvc_cli *cli, const struct kvc_stats *stats, int *exit_code)
{
	char *text = stats_text(cli, stats, KVC_FORMAT_JSON, exit_code);
	json_t *document = text ? json_loads(text, 0, NULL) : NULL;

	if (text && !document)
		*exit_code = cli_error(cli, CLI_IO, "stats: the counters are no JSON");
	free(text);
	return document;
}

static int tell_json(struct kvc_cli *cli, const struct cli_processes *processes, bool lines)
{
	struct kvc_stats sum = sum_of(processes);
	json_t *list = json_array(), *root, *total;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < processes->count; i++) {
		json_t *one = stats_json(cli, &processes->list[i].stats, &rc);

		if (one)
			(void)json_array_append_new(list, json_pack("{s:i, s:o}", "pid",
								    processes->list[i].pid, "stats",
								    one));
	}
	total = rc == 0 ? stats_json(cli, &sum, &rc) : NULL;
	if (rc) {
		json_decref(list);
		return rc;
	}
	root = json_pack("{s:o, s:o}", "processes", list, "total", total);
	if (!lines)
		return cli_json_print(cli, root);
	(void)json_dumpf(root, stdout, JSON_COMPACT);
	(void)putchar('\n');
	json_decref(root);
	return 0;
}

static int tell_prometheus(struct kvc_cli *cli, const struct cli_processes *processes)
{
	struct kvc_stats sum = sum_of(processes);
	char *text;
	int rc = 0;

	text = stats_text(cli, &sum, FORMAT_PROMETHEUS, &rc);
	if (text)
		(void)fputs(text, stdout);
	free(text);
	return rc;
}

/* Not that nobody uses it: the page may lie under another root, or there may be none. */
static void tell_none(struct kvc_cli *cli, const char *path)
{
	cli_note(cli,
		 "no page of counters of a running process lies under %s: a process keeps it under "
		 "the first of its local roots that it can write",
		 path ? path : "the configured roots");
}

static int tell_text(struct kvc_cli *cli, const struct cli_processes *processes, const char *path)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < processes->count; i++) {
		char *text = stats_text(cli, &processes->list[i].stats, KVC_FORMAT_TEXT, &rc);

		if (text)
			printf("%sprocess %d%s\n%s%s", cli_bold(cli), processes->list[i].pid,
			       cli_plain(cli), text,
			       text[0] && text[strlen(text) - 1] == '\n' ? "" : "\n");
		free(text);
	}
	if (processes->count == 0)
		tell_none(cli, path);
	return rc;
}

/* 0, or CLI_INTERRUPTED. */
static int wait_for(double seconds)
{
	struct timespec span = { .tv_sec = (time_t)seconds };

	span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
	while (!cli_interrupted() && nanosleep(&span, &span) < 0 && errno == EINTR)
		continue;
	return cli_interrupted() ? CLI_INTERRUPTED : 0;
}

static int show(struct kvc_cli *cli, const struct stats_arguments *arguments, const json_t *roots)
{
	struct cli_processes processes = { .count = 0 };
	bool watch = arguments->watch_seconds > 0;
	int rc;

	do {
		rc = cli_processes_collect(cli, roots, &processes);
		if (rc == 0 && processes.count == 0 && arguments->path &&
		    !cli_is_root(arguments->path))
			rc = cli_error(cli, CLI_CONFIG,
				       "stats: %.200s is no root of a store: it has neither "
				       "a folder .kvcellar nor one of objects",
				       arguments->path);
		if (rc == 0 && watch && !cli->json && cli_terminal_usable(STDOUT_FILENO))
			printf("\033[H\033[2J");
		if (rc == 0)
			rc = cli->json		   ? tell_json(cli, &processes, watch) :
			     arguments->prometheus ? tell_prometheus(cli, &processes) :
						     tell_text(cli, &processes, arguments->path);
		if (rc == 0 && watch)
			rc = fflush(stdout) != 0 ? CLI_IO : wait_for(arguments->watch_seconds);
	} while (rc == 0 && watch);
	cli_processes_free(&processes);
	return rc;
}

int kvc_cmd_stats(struct kvc_cli *cli, int argc, char **argv)
{
	struct stats_arguments arguments = { .path = NULL };
	json_t *roots;
	int rc;

	rc = cli_parse(cli, &stats_argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	if (cli->json && arguments.prometheus)
		return cli_usage(cli, "--json and --prometheus exclude each other");
	roots = cli_roots_of(cli, arguments.path, &rc);
	if (!roots)
		return rc;
	rc = show(cli, &arguments, roots);
	json_decref(roots);
	return rc;
}
