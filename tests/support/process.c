/* SPDX-License-Identifier: Apache-2.0 */
/* Processes and mounts. */
#include "support/support.h"
#include "support/support_internal.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOUNTS_MAX 64u

extern char **environ;

static char *mounts[MOUNTS_MAX];
static size_t mount_total;

static size_t entries_of(const char *path)
{
	DIR *folder = opendir(path);
	size_t count = 0;

	if (folder == NULL)
		support_die("%s: %s", path, strerror(errno));
	while (readdir(folder) != NULL)
		count++;
	(void)closedir(folder);
	return count - 2;
}

size_t descriptor_count(void)
{
	return entries_of("/proc/self/fd") - 1;
}

/* The kernel's workers of an io_uring come and go as it pleases. */
static bool is_kernel_worker(const char *task)
{
	char path[64 + NAME_MAX];
	char name[32] = "";
	FILE *file;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task);
	file = fopen(path, "re");
	if (file == NULL)
		return true; /* it has just ended */
	if (fgets(name, sizeof(name), file) == NULL)
		name[0] = '\0';
	(void)fclose(file);
	return strncmp(name, "iou-", 4) == 0;
}

size_t thread_count(void)
{
	DIR *tasks = opendir("/proc/self/task");
	const struct dirent *entry;
	size_t count = 0;

	assert_non_null(tasks);
	while ((entry = readdir(tasks)) != NULL)
		count += entry->d_name[0] != '.' && !is_kernel_worker(entry->d_name);
	(void)closedir(tasks);
	return count;
}

struct child {
	int (*fn)(void *context);
	void *context;
	int code;
};

static void child_run(void **state)
{
	struct child *child = *state;

	child->code = child->fn(child->context);
}

/* A test of its own: what fails must not jump into the tests of the parent. */
static int child_main(struct child *child)
{
	const struct CMUnitTest test = cmocka_unit_test_prestate(child_run, child);

	child->code = 98;
	if (_cmocka_run_group_tests("child", &test, 1, NULL, NULL) != 0)
		return 97;
	return child->code;
}

pid_t child_start(int (*fn)(void *context), void *context)
{
	pid_t pid;

	(void)fflush(NULL);
	pid = fork();
	if (pid < 0)
		support_die("fork: %s", strerror(errno));
	if (pid == 0) {
		struct child child = { .fn = fn, .context = context };
		int code = child_main(&child);

		(void)fflush(NULL);
		_exit(code);
	}
	return pid;
}

int child_wait(pid_t pid)
{
	uint64_t end = now_ms() + 120000;
	int status;

	for (;;) {
		pid_t done = waitpid(pid, &status, WNOHANG);

		if (done == pid)
			break;
		if (done < 0 && errno != EINTR)
			fail_msg("waitpid: %s", strerror(errno));
		if (now_ms() > end) {
			(void)kill(pid, SIGKILL);
			fail_msg("a child process hangs");
		}
		sleep_ms(2);
	}
	return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

int run_program(const char *const *arguments)
{
	pid_t pid;
	int error = posix_spawnp(&pid, arguments[0], NULL, NULL, (char *const *)arguments, environ);

	if (error != 0)
		return -error;
	return child_wait(pid);
}

bool have_program(const char *name)
{
	const char *path = getenv("PATH");
	char full[PATH_BYTES];

	while (path != NULL && *path != '\0') {
		size_t bytes = strcspn(path, ":");

		(void)snprintf(full, sizeof(full), "%.*s/%s", (int)bytes, path, name);
		if (access(full, X_OK) == 0)
			return true;
		path += bytes + (path[bytes] == ':');
	}
	return false;
}

void mounts_enter(void)
{
	if (geteuid() != 0)
		support_skip("mounts need root");
	if (unshare(CLONE_NEWNS) != 0)
		support_skip("no mount namespace: %s", strerror(errno));
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		support_skip("mounts cannot be made private: %s", strerror(errno));
}

static void mount_remember(const char *path)
{
	if (mount_total == MOUNTS_MAX)
		support_die("more than %u mounts", MOUNTS_MAX);
	mounts[mount_total] = strdup(path);
	if (mounts[mount_total] == NULL)
		support_die("no memory");
	mount_total++;
}

void mount_tmpfs(const char *path, const char *options)
{
	if (mount("kvc-test", path, "tmpfs", 0, options) != 0)
		support_skip("tmpfs cannot be mounted: %s", strerror(errno));
	mount_remember(path);
}

void mount_read_only(const char *path)
{
	if (mount(path, path, NULL, MS_BIND, NULL) != 0 ||
	    mount("none", path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) != 0)
		support_skip("no read-only bind mount: %s", strerror(errno));
	mount_remember(path);
}

void mount_bind(const char *from, const char *to)
{
	if (mount(from, to, NULL, MS_BIND, NULL) != 0)
		support_skip("no bind mount: %s", strerror(errno));
	mount_remember(to);
}

void mount_end(const char *path)
{
	if (umount2(path, MNT_DETACH) != 0)
		support_die("umount %s: %s", path, strerror(errno));
}

void mounts_end_all(void)
{
	for (size_t i = mount_total; i > 0; i--) {
		(void)umount2(mounts[i - 1], MNT_DETACH);
		free(mounts[i - 1]);
	}
	mount_total = 0;
}
