/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of running processes, from the pages that they map under roots. Readers:
 * cmd_stats.c, top_rates.c, cmd_top.c. */
#ifndef KVC_CLI_PROCESSES_H
#define KVC_CLI_PROCESSES_H

#include "cli.h"

/* An open store of a process. */
struct cli_process {
	int pid;
	struct kvc_stats stats;
};

struct cli_processes {
	struct cli_process *list;
	size_t count;
};

/* The folders to look into, the one given or those of the configuration: a new reference to an
 * array of texts, NULL after an error was told. */
json_t *cli_roots_of(struct kvc_cli *cli, const char *path, int *exit_code);

/* Whether it is a root, its housekeeping folder, or a folder of pages. What cannot be looked at
 * passes. */
bool cli_is_root(const char *path);

/* Those of now, in the place of what is in the list: 0, or the exit code after it was told. */
int cli_processes_collect(struct kvc_cli *cli, const json_t *roots,
			  struct cli_processes *processes);
void cli_processes_free(struct cli_processes *processes);

#endif
