/* SPDX-License-Identifier: Apache-2.0 */
/* fio between the stores of bench_grid, in the same repetitions. */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGUMENTS_MAX 8
#define NUMBER_BYTES  32

/* In the child: the script writes to the pipe, with the environment that there is. */
static void become(char *const arguments[], const int ends[2])
{
	if (dup2(ends[1], STDOUT_FILENO) >= 0) {
		close(ends[0]);
		close(ends[1]);
		(void)execv(arguments[0], arguments);
	}
	_exit(127);
}

/* Runs the script and reads the one line it prints into text. */
static void run_script(char *const arguments[], char *text, size_t bytes)
{
	size_t used = 0;
	ssize_t got;
	int ends[2], status;
	pid_t child;

	if (pipe(ends) != 0 || (child = fork()) < 0)
		grid_die("'%s' cannot be run", arguments[0]);
	if (child == 0)
		become(arguments, ends);
	close(ends[1]);
	while (used + 1 < bytes && (got = read(ends[0], text + used, bytes - 1 - used)) > 0)
		used += (size_t)got;
	text[used] = '\0';
	close(ends[0]);
	if (waitpid(child, &status, 0) != child || status != 0)
		grid_die("'%s' failed", arguments[0]);
}

static void run_verb(struct grid_fio *fio, const char *verb, struct grid_cell *cell, bool record)
{
	uint32_t ios = fio->by_part ? GRID_PARTS : 1; /* of a page */
	uint32_t depth = fio->batch * ios < fio->depth ? fio->batch * ios : fio->depth;
	char numbers[4][NUMBER_BYTES], line[128];
	char *arguments[ARGUMENTS_MAX] = { NULL };
	double seconds, cpu_us;

	(void)snprintf(numbers[0], NUMBER_BYTES, "%llu",
		       (unsigned long long)(fio->part_bytes * GRID_PARTS / ios));
	(void)snprintf(numbers[1], NUMBER_BYTES, "%u", fio->batch * ios);
	(void)snprintf(numbers[2], NUMBER_BYTES, "%u", depth);
	(void)snprintf(numbers[3], NUMBER_BYTES, "%d", fio->direct);
	arguments[0] = strdup(fio->options->fio_script);
	arguments[1] = strdup(verb);
	arguments[2] = fio->folder;
	for (int i = 0; i < 4; i++)
		arguments[3 + i] = numbers[i];
	if (arguments[0] == NULL || arguments[1] == NULL)
		grid_die("no memory");
	run_script(arguments, line, sizeof(line));
	free(arguments[0]);
	free(arguments[1]);
	if (sscanf(line, "%lf %lf", &seconds, &cpu_us) != 2)
		grid_die("'%s' printed '%s'", fio->options->fio_script, line);
	if (!record)
		return;
	grid_series_add(&cell->call_s, seconds);
	grid_series_add(&cell->wall_s, seconds);
	grid_series_add(&cell->cpu_us, cpu_us * ios / GRID_PARTS);
}

void grid_fio_run(struct grid_fio *fio, bool record)
{
	(void)mkdir(fio->folder, 0700);
	run_verb(fio, "rewrite", &fio->cells[0], record);
	run_verb(fio, "reread", &fio->cells[1], record);
}
