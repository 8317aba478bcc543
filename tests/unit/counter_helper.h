/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and children for tests/unit/test_{stats,stats_full,usage,text}.c. */
#ifndef KVC_TESTS_COUNTER_HELPER_H
#define KVC_TESTS_COUNTER_HELPER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[128]; /* of the running test */

static inline int make_folder(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/kvc-counters-XXXXXX", tmp ? tmp : "/tmp");
	return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static inline int remove_folder(void **state)
{
	(void)state;
	return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* folder/name; the text is good until the eighth call after. */
static inline const char *in_folder(const char *name)
{
	static char paths[8][512];
	static unsigned int next;
	char *const path = paths[next++ % 8];

	(void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static inline void put_file(const char *path, const void *data, size_t bytes)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
	close(fd);
}

static inline size_t get_file(const char *path, void *data, size_t capacity)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	assert_true(fd >= 0);
	n = read(fd, data, capacity);
	assert_true(n >= 0);
	close(fd);
	return (size_t)n;
}

static inline size_t count_entries(const char *path)
{
	DIR *const entries = opendir(path);
	const struct dirent *entry;
	size_t count = 0;

	assert_non_null(entries);
	while ((entry = readdir(entries)))
		count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	closedir(entries);
	return count;
}

/* The child's exit code; -1 when a signal ended it. */
static inline int wait_child(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
