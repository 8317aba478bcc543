/* SPDX-License-Identifier: Apache-2.0 */
#include "processes.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_known(const struct cli_processes *processes, const struct cli_process *one)
{
	/* A process keeps a page per store; a store of several roots shows the same one in each. */
	for (size_t i = 0; i < processes->count; i++)
		if (processes->list[i].pid == one->pid &&
		    memcmp(&processes->list[i].stats, &one->stats, sizeof(one->stats)) == 0)
			return true;
	return false;
}

static int add_process(void *context, int pid, const struct kvc_stats *stats)
{
	struct cli_processes *processes = context;
	struct cli_process one, *grown;

	memset(&one, 0, sizeof(one));
	one.pid = pid;
	memcpy(&one.stats, stats,
	       stats->size < sizeof(one.stats) ? stats->size : sizeof(one.stats));
	one.stats.size = sizeof(one.stats);
	if (is_known(processes, &one))
		return 0;
	grown = reallocarray(processes->list, processes->count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	processes->list = grown;
	grown[processes->count++] = one;
	return 0;
}

json_t *cli_roots_of(struct kvc_cli *cli, const char *path, int *exit_code)
{
	json_t *options, *roots;

	if (path) {
		roots = json_pack("[s]", path);
		if (!roots)
			*exit_code = cli_error(cli, CLI_USAGE, "%s: the path is not UTF-8",
					       cli->command);
		return roots;
	}
	options = cli_config_options(cli, cli->config, exit_code);
	if (!options)
		return NULL;
	roots = cli_config_value(options, "storage_dirs");
	roots = json_is_array(roots) ? json_incref(roots) : json_array();
	json_decref(options);
	return roots;
}

/* A folder of namespaces, or of hashes as nixl naming has them. */
static bool is_root_folder(const char *name)
{
	const size_t bytes = strlen(name);
	const char *digits = bytes == 2 ? name : bytes >= 18 ? name + bytes - 16 : NULL;

	if (!digits || (bytes > 2 && digits[-1] != '-'))
		return false;
	for (; *digits; digits++)
		if (!isxdigit((unsigned char)*digits) || isupper((unsigned char)*digits))
			return false;
	return true;
}

/* With nixl naming housekeeping may be absent: then the folders tell. */
static bool has_root_folders(int fd)
{
	DIR *entries = fdopendir(fd);
	const struct dirent *entry;
	struct stat st;
	bool found = false;

	if (!entries) {
		(void)close(fd);
		return false;
	}
	while (!found && (entry = readdir(entries)))
		found = is_root_folder(entry->d_name) &&
			fstatat(dirfd(entries), entry->d_name, &st, 0) == 0 && S_ISDIR(st.st_mode);
	(void)closedir(entries);
	return found;
}

bool cli_is_root(const char *path)
{
	static const char *const signs[] = {
		".kvcellar", "root.json", "../root.json", "kvcellar/stats", "stats",
	};
	const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return true;
	for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
		if (faccessat(fd, signs[i], F_OK, 0) == 0 || errno == EACCES) {
			(void)close(fd);
			return true;
		}
	return has_root_folders(fd);
}

int cli_processes_collect(struct kvc_cli *cli, const json_t *roots, struct cli_processes *processes)
{
	const json_t *root;
	size_t i;
	int rc;

	processes->count = 0;
	json_array_foreach(roots, i, root)
	{
		rc = kvc_stats_pages(json_string_value(root), add_process, processes);
		if (rc < 0)
			return cli_fail_as(cli, cli_exit_of_open(rc), rc, "%s", cli->command);
	}
	return 0;
}

void cli_processes_free(struct cli_processes *processes)
{
	free(processes->list);
	*processes = (struct cli_processes){ .count = 0 };
}
