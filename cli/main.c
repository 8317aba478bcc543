/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar, the command: the table of commands, and what surrounds each of them. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_command commands[] = {
	{ .name = "info",
	  .summary = "what is used and why: plugins, engines, roots, probes",
	  .run = kvc_cmd_info },
	{ .name = "doctor",
	  .summary = "what is wrong here, and what to do about it",
	  .run = kvc_cmd_doctor },
	{ .name = "selftest",
	  .summary = "write, read, compare and remove a test object on each root",
	  .run = kvc_cmd_selftest },
	{ .name = "put",
	  .summary = "store a file or standard input under a key",
	  .run = kvc_cmd_put },
	{ .name = "get", .summary = "read an object back", .run = kvc_cmd_get },
	{ .name = "exists", .summary = "which keys are there", .run = kvc_cmd_exists },
	{ .name = "rm", .summary = "remove objects by key", .run = kvc_cmd_rm },
	{ .name = "ls", .summary = "namespaces, or the objects of one", .run = kvc_cmd_ls },
	{ .name = "stat",
	  .summary = "what an object's trailer says; space of the roots",
	  .run = kvc_cmd_stat },
	{ .name = "where",
	  .summary = "name and place of a key in both namings",
	  .run = kvc_cmd_where },
	{ .name = "verify", .summary = "read every object and check it", .run = kvc_cmd_verify },
	{ .name = "usage", .summary = "space by root, namespace and tenant", .run = kvc_cmd_usage },
	{ .name = "pin", .summary = "keep a namespace from eviction", .run = kvc_cmd_pin },
	{ .name = "unpin", .summary = "let it be evicted again", .run = kvc_cmd_unpin },
	{ .name = "clean", .summary = "remove what is used least", .run = kvc_cmd_clean },
	{ .name = "clear", .summary = "remove the objects of one namespace", .run = kvc_cmd_clear },
	{ .name = "convert",
	  .summary = "objects into another storage layout, naming or folder",
	  .run = kvc_cmd_convert },
	{ .name = "config", .summary = "check, options, show, sample", .run = kvc_cmd_config },
	{ .name = "stats", .summary = "counters of running processes", .run = kvc_cmd_stats },
	{ .name = "top", .summary = "what running processes do, live", .run = kvc_cmd_top },
	{ .name = "replay",
	  .summary = "play a request trace and compare every byte",
	  .run = kvc_cmd_replay },
	{ .name = "simulate",
	  .summary = "what a capacity and a policy are worth for a trace",
	  .run = kvc_cmd_simulate },
	{ .name = "bench",
	  .summary = "how fast set, get and exists are here",
	  .run = kvc_cmd_bench },
};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static struct kvc_cli cli;
static volatile sig_atomic_t interrupted;

/* The first asks the command to end; the second does not wait for it. */
static void on_interrupt(int number)
{
	(void)number;
	if (interrupted)
		_exit(CLI_INTERRUPTED);
	interrupted = 1;
}

bool cli_interrupted(void)
{
	return interrupted != 0;
}

static void set_signals(void)
{
	struct sigaction action = { .sa_handler = on_interrupt };

	(void)sigemptyset(&action.sa_mask);
	(void)sigaction(SIGINT, &action, NULL); /* no SA_RESTART: a read of stdin ends */
	action.sa_handler = SIG_IGN;
	(void)sigaction(SIGPIPE, &action, NULL);
	(void)sigaction(SIGXFSZ, &action, NULL); /* RLIMIT_FSIZE: EFBIG instead */
}

/* A closed standard descriptor would be given to the next file that is opened, and written to. */
static void fill_standard_descriptors(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
			(void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY); /* not O_CLOEXEC */
}

void cli_help_done(void)
{
	exit(cli_output_end(&cli, CLI_DONE));
}

void cli_help_print(const struct argp *argp, const char *name)
{
	char copy[64];

	(void)snprintf(copy, sizeof(copy), "%s", name);
	argp_help(argp, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC, copy);
}

struct command_line {
	const char *command;
	int first; /* its place in argv */
};

static error_t parse_main(int key, char *argument, struct argp_state *state)
{
	struct command_line *line = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &cli;
		return 0;
	case ARGP_KEY_ARG:
		line->command = argument;
		line->first = state->next - 1;
		state->next = state->argc; /* the rest is the command's */
		return 0;
	case ARGP_KEY_ERROR:
		cli_argp_explain(state->root_argp, state->argc, state->argv, state->next);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const char help_head[] = "Looks after a kvcellar store: a cache of KV pages for LLM "
				"inference.\n\nCommands:\n";
static const char help_tail[] =
	"\v`kvcellar COMMAND --help' tells more.\n\n"
	"Examples:\n"
	"  kvcellar -D /mnt/cache info\n"
	"  echo hello | kvcellar -D /mnt/cache put greeting\n"
	"  kvcellar -D /mnt/cache get greeting\n"
	"  kvcellar -c kvcellar.toml verify\n\n"
	"Exit codes: 0 done, 1 wrong, 2 usage, 3 not found, 4 corrupt, 5 no space, 6 denied, "
	"7 timed out, 8 I/O error, 9 configuration, 130 interrupted.";

/* The doc text of the whole program, with the table of commands. */
static char *make_help(void)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	if (!out)
		return NULL;
	(void)fputs(help_head, out);
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		(void)fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
	(void)fputs(help_tail, out);
	if (fclose(out) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

static const struct cli_command *find_command(const char *name)
{
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int unknown_command(const char *name)
{
	const char *words[COMMAND_COUNT];
	const char *nearest;

	for (size_t i = 0; i < COMMAND_COUNT; i++)
		words[i] = commands[i].name;
	nearest = cli_nearest(name, words, COMMAND_COUNT);
	if (nearest)
		return cli_usage(&cli, "unknown command '%.80s'; did you mean '%s'?", name,
				 nearest);
	return cli_usage(&cli, "unknown command '%.80s'", name);
}

/* --json holds for errors too, also for those in front of it. */
static bool has_json(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strcmp(argv[i], "--json") == 0)
			return true;
	return false;
}

static int run(int argc, char **argv, const struct argp *argp)
{
	struct command_line line = { .command = NULL };
	const struct cli_command *command;
	static char help_option[] = "--help";
	static char *help_argv[] = { NULL, help_option, NULL };

	if (argp_parse(argp, argc, argv, ARGP_IN_ORDER | ARGP_NO_ERRS | ARGP_NO_HELP, NULL, &line))
		return cli_usage(&cli, "%s", cli_argp_text());
	if (!line.command)
		return cli_usage(&cli, "no command given");
	if (strcmp(line.command, "help") == 0) {
		if (line.first + 1 >= argc) {
			cli_help_print(argp, "kvcellar");
			return CLI_DONE;
		}
		command = find_command(argv[line.first + 1]);
		if (!command)
			return unknown_command(argv[line.first + 1]);
		cli.command = command->name;
		return command->run(&cli, 2, help_argv);
	}
	command = find_command(line.command);
	if (!command)
		return unknown_command(line.command);
	cli.command = command->name;
	return command->run(&cli, argc - line.first, argv + line.first);
}

int main(int argc, char **argv)
{
	static char name[] = "kvcellar";
	const struct argp_child children[] = { { &cli_global_argp, 0, NULL, 0 }, { 0 } };
	struct argp argp = { .parser = parse_main,
			     .args_doc = "COMMAND [ARGUMENT...]",
			     .children = children };
	char *help;
	int rc;

	fill_standard_descriptors();
	cli_output_begin();
	set_signals();
	help = make_help();
	argp.doc = help;
	cli.json = has_json(argc, argv);
	cli.color = cli_color_wanted(STDOUT_FILENO);
	if (argc > 0)
		argv[0] = name;
	rc = argc > 0 ? run(argc, argv, &argp) : cli_usage(&cli, "no command given");
	rc = cli_session_end(&cli, rc);
	cli_options_free(&cli);
	free(help);
	return cli_output_end(&cli, rc);
}
