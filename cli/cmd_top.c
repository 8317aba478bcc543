/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar top: what the running processes of a store do, again and again. */
#include "top.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum {
	OPTION_INTERVAL = 0x200,
	OPTION_COUNT,
	OPTION_ONCE,
};

struct top_arguments {
	const char *path;
	double interval;
	uint64_t count; /* 0: until interrupted */
	bool once;
};

static error_t parse_top(int key, char *argument, struct argp_state *state)
{
	struct top_arguments *arguments = state->input;

	switch (key) {
	case OPTION_INTERVAL:
		return cli_argp_seconds("--interval", argument, 0.1, &arguments->interval);
	case OPTION_COUNT:
		return cli_argp_number("--count", argument, 1, UINT32_MAX, &arguments->count);
	case OPTION_ONCE:
		arguments->once = true;
		return 0;
	case ARGP_KEY_ARG:
		if (state->arg_num > 0)
			return cli_argp_error("unexpected argument '%.200s'", argument);
		arguments->path = argument;
		return 0;
	case ARGP_KEY_END:
		if (arguments->once && arguments->count > 1)
			return cli_argp_error("--once and --count exclude each other");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option top_options[] = {
	{ "count", OPTION_COUNT, "N", 0, "Only N samples; default: until interrupted", 0 },
	{ "interval", OPTION_INTERVAL, "SECONDS", 0, "Between two samples; default: 2", 0 },
	{ "once", OPTION_ONCE, NULL, 0, "One sample, as plain lines", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp top_argp = {
	.options = top_options,
	.parser = parse_top,
	.args_doc = "[ROOT]",
	.doc = "Shows what the running processes do that use a root: the folder given, else each "
	       "storage directory of the configuration. Rates are of the time between two looks at "
	       "their counters; OK, FOUND and HIT are shares of the pages asked for; the latency "
	       "is that of calls, P99 from a histogram by powers of two. On a terminal each sample "
	       "takes the place of the last; elsewhere they follow one another, and with --json "
	       "each is a document on a line."
	       "\v"
	       "Examples:\n"
	       "  kvcellar -c kvcellar.toml top\n"
	       "  kvcellar top /mnt/cache --interval 10 --json >> top.jsonl",
};

/* ---------------------------------------------------------------- space */

static void add_number(json_t *to, const char *name, const char *text)
{
	char *end;
	uint64_t value = text ? strtoull(text, &end, 10) : 0;

	(void)json_object_set_new(
		to, name, text && end != text ? json_integer((json_int_t)value) : json_null());
}

static const char *text_of(const json_t *facts, const char *name)
{
	return json_string_value(json_object_get(facts, name));
}

/* Of the facts that the store has of a root: "N bytes in M objects", "F of T bytes". */
static json_t *root_json(const json_t *facts, const json_t *capacity)
{
	const char *own = text_of(facts, "own"), *free_text = text_of(facts, "free");
	const char *objects = own ? strstr(own, " in ") : NULL;
	const char *total = free_text ? strstr(free_text, " of ") : NULL;
	const char *limit = json_string_value(capacity);
	json_t *index = json_object_get(facts, "index");
	json_t *root = json_pack("{s:O, s:O}", "path", json_object_get(facts, "path"), "state",
				 json_object_get(facts, "state"));

	add_number(root, "stored_bytes", own);
	add_number(root, "objects", objects ? objects + 4 : NULL);
	add_number(root, "free_bytes", free_text);
	add_number(root, "total_bytes", total ? total + 4 : NULL);
	if (index)
		(void)json_object_set(root, "capacity_bytes",
				      json_object_get(index, "capacity_bytes"));
	else if (limit && total)
		(void)json_object_set_new(root, "capacity_bytes",
					  json_integer((json_int_t)(strtod(limit, NULL) / 100 *
								    strtod(total + 4, NULL))));
	else
		(void)json_object_set_new(root, "capacity_bytes",
					  json_is_integer(capacity) ?
						  json_incref((json_t *)(uintptr_t)capacity) :
						  json_null());
	return root;
}

/* A state that is only ours is none of the root's. */
static void correct_state(json_t *root)
{
	const char *state = text_of(root, "state");

	if (state && strcmp(state, "ok (opened read-only)") == 0)
		(void)json_object_set_new(root, "state", json_string("ok"));
}

static int describe(void *context, char *buffer, size_t bytes)
{
	return kvc_store_describe(context, KVC_FORMAT_JSON, buffer, bytes);
}

static json_t *description_of(const struct kvc_config *config)
{
	const struct kvc_open_params params = {
		.size = sizeof(params), .flags = KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST
	};
	struct kvc_store *store = NULL;
	json_t *description = NULL;
	char *text = NULL;
	int bytes = 0;

	if (kvc_store_open(config, &params, &store) == 0)
		bytes = kvc_store_describe(store, KVC_FORMAT_JSON, NULL, 0) + 4096;
	if (bytes > 0)
		text = malloc((size_t)bytes);
	if (text && describe(store, text, (size_t)bytes) < bytes)
		description = json_loads(text, 0, NULL);
	free(text);
	(void)kvc_store_close(store);
	return description;
}

/* Opened anew each time: others may have made, removed or filled it meanwhile. What cannot be
 * opened has counters all the same. */
static json_t *roots_json(const struct kvc_config *config, const json_t *capacity,
			  const json_t *paths)
{
	json_t *description = description_of(config), *list = json_array();
	const json_t *facts, *path;
	size_t i;

	json_array_foreach(json_object_get(description, "roots"), i, facts)
	{
		json_t *root = root_json(facts, capacity);

		correct_state(root);
		(void)json_array_append_new(list, root);
	}
	if (!description) {
		json_array_foreach(paths, i, path)
		{
			(void)json_array_append_new(
				list, json_pack("{s:O, s:s, s:n, s:n, s:n, s:n, s:n}", "path", path,
						"state", "does not open", "stored_bytes", "objects",
						"capacity_bytes", "total_bytes", "free_bytes"));
		}
	}
	json_decref(description);
	return list;
}

/* ---------------------------------------------------------------- samples */

struct top {
	struct kvc_cli *cli;
	const json_t *paths;
	json_t *capacity;
	struct cli_processes before;
	struct cli_processes now;
	int64_t before_ns;
	bool redraw;
	bool first;
};

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	(void)clock_gettime(clock, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* 0, or CLI_INTERRUPTED. */
static int wait_for(double seconds)
{
	struct timespec left = { .tv_sec = (time_t)seconds };

	left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
	while (!cli_interrupted() && nanosleep(&left, &left) < 0 && errno == EINTR)
		continue;
	return cli_interrupted() ? CLI_INTERRUPTED : 0;
}

static void window(unsigned *rows, unsigned *columns)
{
	struct winsize size;

	*rows = *columns = 0;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
		return;
	/* The cursor stays on a line of its own. */
	*rows = size.ws_row > 1 ? size.ws_row - 1u : 0;
	*columns = size.ws_col;
}

static int print_sample(struct top *top, const struct top_sample *sample)
{
	unsigned rows = 0, columns = 0;
	json_t *document;

	if (top->cli->json) {
		document = top_json(sample);
		if (!document)
			return -ENOMEM;
		(void)json_dumpf(document, stdout, JSON_COMPACT);
		(void)putchar('\n');
		json_decref(document);
		return 0;
	}
	if (top->redraw)
		window(&rows, &columns);
	if (top->redraw && top->first)
		printf("\033[2J");
	else if (!top->first && !top->redraw)
		(void)putchar('\n');
	return top_print(top->cli, sample, top->redraw, rows, columns);
}

/* A look, and what has been since the last one. */
static int take_sample(struct top *top)
{
	struct top_rows rows = { .count = 0 };
	struct cli_processes former;
	struct top_sample sample = { .rows = &rows };
	json_t *roots;
	int64_t now_ns;
	int rc;

	rc = cli_processes_collect(top->cli, top->paths, &top->now);
	if (rc)
		return rc;
	now_ns = clock_ns(CLOCK_MONOTONIC);
	sample.seconds = (double)(now_ns - top->before_ns) / 1e9;
	sample.time_ns = clock_ns(CLOCK_REALTIME);
	roots = roots_json(top->cli->config, top->capacity, top->paths);
	sample.roots = roots;
	rc = top_compare(&top->before, &top->now, &rows);
	if (rc == 0)
		rc = print_sample(top, &sample);
	top_rows_free(&rows);
	json_decref(roots);
	former = top->before;
	top->before = top->now;
	top->now = former;
	top->before_ns = now_ns;
	top->first = false;
	if (rc)
		return cli_fail_errno(top->cli, rc, "top");
	return fflush(stdout) != 0 ? CLI_IO : 0;
}

static int run(struct top *top, const struct top_arguments *arguments)
{
	int rc = cli_processes_collect(top->cli, top->paths, &top->before);

	if (rc == 0 && top->before.count == 0 && arguments->path && !cli_is_root(arguments->path))
		return cli_error(top->cli, CLI_CONFIG,
				 "top: %.200s is no root of a store: it has neither a folder "
				 ".kvcellar nor one of objects",
				 arguments->path);
	top->before_ns = clock_ns(CLOCK_MONOTONIC);
	for (uint64_t i = 0; rc == 0 && (!arguments->count || i < arguments->count); i++) {
		rc = wait_for(arguments->interval);
		if (rc == 0)
			rc = take_sample(top);
	}
	/* It goes on until somebody ends it: that is its end, and nothing was left undone. */
	return rc == CLI_INTERRUPTED && !arguments->count ? CLI_DONE : rc;
}

/* A process that only looks writes no metrics and no trace in the place of those who work. */
static int prepare(struct kvc_cli *cli, const json_t *paths)
{
	json_t *members = json_pack("{s:s, s:s, s:s, s:O}", "metrics_file", "", "metrics_listen",
				    "", "trace_file", "", "storage_dirs", paths);
	char *text = members ? json_dumps(members, JSON_COMPACT) : NULL;
	int rc = text ? kvc_config_load_text(cli->config, text, strlen(text), KVC_CONFIG_JSON,
					     "top") :
			-ENOMEM;

	free(text);
	json_decref(members);
	return rc < 0 ? cli_fail_as(cli, CLI_CONFIG, rc, "top") : 0;
}

int kvc_cmd_top(struct kvc_cli *cli, int argc, char **argv)
{
	struct top_arguments arguments = { .interval = 2 };
	struct top top = { .cli = cli, .first = true };
	json_t *options, *paths;
	int rc;

	rc = cli_parse(cli, &top_argp, 0, argc, argv, &arguments);
	if (rc)
		return rc;
	arguments.count = arguments.once ? 1 : arguments.count;
	paths = cli_roots_of(cli, arguments.path, &rc);
	if (!paths)
		return rc;
	rc = prepare(cli, paths);
	options = rc == 0 ? cli_config_options(cli, cli->config, &rc) : NULL;
	if (options) {
		top.paths = paths;
		top.capacity = json_incref(cli_config_value(options, "capacity"));
		top.redraw = !cli->json && !arguments.once && cli_terminal_usable(STDOUT_FILENO);
		rc = run(&top, &arguments);
	}
	cli_processes_free(&top.before);
	cli_processes_free(&top.now);
	json_decref(top.capacity);
	json_decref(options);
	json_decref(paths);
	return rc;
}
