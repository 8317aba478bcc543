/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and files. */
#include "support/support.h"
#include "support/support_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDERS_MAX 8192u

static char *folders[FOLDERS_MAX];
static size_t folder_total;
static pid_t owner;
static pthread_mutex_t walk_lock = PTHREAD_MUTEX_INITIALIZER;

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	if (type == FTW_DP || type == FTW_D || type == FTW_DNR)
		(void)rmdir(path);
	else
		(void)unlink(path);
	return 0;
}

void folder_remove(const char *path)
{
	(void)nftw(path, remove_one, 32, FTW_DEPTH | FTW_PHYS);
}

static void folders_end(void)
{
	if (getpid() == owner)
		mounts_end_all();
	for (size_t i = 0; i < folder_total; i++) {
		if (getpid() == owner)
			folder_remove(folders[i]);
		free(folders[i]);
	}
	folder_total = 0;
}

void folders_begin(void)
{
	owner = getpid();
	(void)atexit(folders_end);
}

const char *folder_new(const char *label)
{
	const char *parent = getenv("TMPDIR");
	char *path = NULL;

	if (folder_total == FOLDERS_MAX)
		support_die("more than %u folders", FOLDERS_MAX);
	if (asprintf(&path, "%s/kvc-test-%s-XXXXXX", parent && parent[0] ? parent : "/tmp", label) <
		    0 ||
	    mkdtemp(path) == NULL)
		support_die("no folder %s: %s", label, strerror(errno));
	folders[folder_total++] = path;
	return path;
}

/* nftw() has no context. */
static struct {
	const char *prefix;
	const char *root;
	const char *to;
	size_t count;
	uint64_t digest;
} walk;

static int count_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	if (type == FTW_F && strncmp(path + ftw->base, walk.prefix, strlen(walk.prefix)) == 0)
		walk.count++;
	return 0;
}

size_t folder_count(const char *path, const char *prefix)
{
	size_t count;

	pthread_mutex_lock(&walk_lock);
	walk.prefix = prefix;
	walk.count = 0;
	(void)nftw(path, count_one, 32, FTW_PHYS);
	count = walk.count;
	pthread_mutex_unlock(&walk_lock);
	return count;
}

static uint64_t digest_bytes(uint64_t digest, const void *data, size_t bytes)
{
	const unsigned char *at = data;

	for (size_t i = 0; i < bytes; i++)
		digest = (digest ^ at[i]) * UINT64_C(0x100000001b3);
	return digest;
}

static int digest_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	uint64_t digest = UINT64_C(0xcbf29ce484222325);
	unsigned char *data;
	size_t bytes;

	(void)ftw;
	digest = digest_bytes(digest, path + strlen(walk.root), strlen(path + strlen(walk.root)));
	digest = digest_bytes(digest, &st->st_mode, sizeof(st->st_mode));
	digest = digest_bytes(digest, &st->st_ctim, sizeof(st->st_ctim));
	if (type == FTW_F) {
		bytes = file_read(path, &data);
		digest = digest_bytes(digest, &bytes, sizeof(bytes));
		digest = digest_bytes(digest, data, bytes);
		free(data);
	}
	walk.digest += digest; /* in any order */
	return 0;
}

uint64_t folder_digest(const char *path)
{
	uint64_t digest;

	pthread_mutex_lock(&walk_lock);
	walk.root = path;
	walk.digest = 0;
	(void)nftw(path, digest_one, 32, FTW_PHYS);
	digest = walk.digest;
	pthread_mutex_unlock(&walk_lock);
	return digest;
}

static int copy_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	char to[PATH_BYTES];
	unsigned char *data;
	size_t bytes;

	(void)st;
	(void)ftw;
	(void)snprintf(to, sizeof(to), "%s%s", walk.to, path + strlen(walk.root));
	if (type == FTW_D) {
		if (mkdir(to, 0700) != 0 && errno != EEXIST)
			support_die("mkdir %s: %s", to, strerror(errno));
	} else if (type == FTW_F) {
		bytes = file_read(path, &data);
		file_write(to, data, bytes);
		free(data);
	}
	return 0;
}

void folder_copy(const char *from, const char *to)
{
	pthread_mutex_lock(&walk_lock);
	walk.root = from;
	walk.to = to;
	if (nftw(from, copy_one, 32, FTW_PHYS) != 0)
		support_die("copy %s: %s", from, strerror(errno));
	pthread_mutex_unlock(&walk_lock);
}

bool file_exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

void file_write(const char *path, const void *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	size_t done = 0;

	if (fd < 0)
		support_die("open %s: %s", path, strerror(errno));
	while (done < bytes) {
		ssize_t n = write(fd, (const char *)data + done, bytes - done);

		if (n <= 0)
			support_die("write %s: %s", path, strerror(errno));
		done += (size_t)n;
	}
	(void)close(fd);
}

size_t file_read(const char *path, unsigned char **out)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	size_t done = 0;

	if (fd < 0 || fstat(fd, &st) != 0)
		support_die("open %s: %s", path, strerror(errno));
	*out = malloc((size_t)st.st_size + 1);
	if (*out == NULL)
		support_die("no memory");
	while (done < (size_t)st.st_size) {
		ssize_t n = read(fd, *out + done, (size_t)st.st_size - done);

		if (n < 0)
			support_die("read %s: %s", path, strerror(errno));
		if (n == 0)
			break;
		done += (size_t)n;
	}
	(void)close(fd);
	return done;
}

void file_flip(const char *path, off_t at, unsigned char bits)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	unsigned char byte;

	if (fd < 0 || pread(fd, &byte, 1, at) != 1)
		support_die("read %s: %s", path, strerror(errno));
	byte ^= bits;
	if (pwrite(fd, &byte, 1, at) != 1 || close(fd) != 0)
		support_die("write %s: %s", path, strerror(errno));
}
