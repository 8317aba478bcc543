/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sharedfile.h"

#include "core/log.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OPEN_ATTEMPTS 600
#define OPEN_WAIT_NS  (5 * 1000 * 1000)
#define SIZE_ATTEMPTS 200
#define SIZE_WAIT_NS  (1 * 1000 * 1000)
#define RANDOM	      ".XXXXXX" /* behind the name of a file that is being made */

struct kvc_sharedfile {
	struct kvc_mapfile_kind kind;
	const struct kvc_sharedfile_sizes *sizes;
	struct kvc_mapfile_mapping mapping; /* never moves; what lies there may change */
	atomic_bool shared;
	pthread_mutex_t lock; /* of kvc_sharedfile_check() */
	int fd;		      /* of what is mapped, -1: memory */
	mode_t mode;
	char path[];
};

/* ---------------------------------------------------------------- the file */

/* -EAGAIN: somebody has another lock. */
static int lock_file(int fd, short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET };

	if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
		return 0;
	return errno == EACCES ? -EAGAIN : -errno;
}

/* Whether a name is one of make_beside(). */
static bool is_beside(const struct kvc_sharedfile *file, const char *name)
{
	const char *leaf = strrchr(file->path, '/') + 1;
	const size_t bytes = strlen(leaf);

	return strncmp(name, leaf, bytes) == 0 && name[bytes] == '.' &&
	       strlen(name) == bytes + sizeof(RANDOM) - 1;
}

/* What others began and did not end, as they were killed: nobody has its lock. */
static void remove_left_over(const struct kvc_sharedfile *file)
{
	const size_t bytes = (size_t)(strrchr(file->path, '/') - file->path);
	char *folder = strndup(file->path, bytes);
	DIR *dir = folder ? opendir(folder) : NULL;
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)) != NULL) {
		int fd;

		if (!is_beside(file, entry->d_name))
			continue;
		fd = openat(dirfd(dir), entry->d_name,
			    O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (lock_file(fd, F_WRLCK) == 0)
			(void)unlinkat(dirfd(dir), entry->d_name, 0);
		(void)close(fd);
	}
	if (dir)
		(void)closedir(dir);
	free(folder);
}

/* A whole new file beside the path, locked while it is nobody else's; its name is the caller's to
 * free. */
static int make_beside(const struct kvc_sharedfile *file, char **out_name, int *out)
{
	const size_t name_bytes = strlen(file->path) + sizeof(RANDOM);
	uint8_t header[KVC_SHAREDFILE_HEADER] = { 0 };
	char *name = malloc(name_bytes);
	int fd, rc;

	if (!name)
		return -ENOMEM;
	remove_left_over(file);
	(void)snprintf(name, name_bytes, "%s" RANDOM, file->path);
	fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
		goto free_name;
	}
	(void)lock_file(fd, F_WRLCK);
	rc = kvc_mapfile_fill(fd, file->mode, &file->kind, header);
	if (rc < 0)
		goto remove;
	*out_name = name;
	*out = fd;
	return 0;
remove:
	(void)unlink(name);
	close(fd);
free_name:
	free(name);
	return rc;
}

/* Under the path: by link, so that it replaces nothing (-EEXIST: somebody was faster), or by
 * rename. */
static int publish(const struct kvc_sharedfile *file, const char *name, bool replace)
{
	int rc = (replace ? rename(name, file->path) : link(name, file->path)) ? -errno : 0;

	/* Somebody took it for left over before it was locked. */
	rc = rc == -ENOENT ? -EAGAIN : rc;
	if (rc < 0 || !replace)
		(void)unlink(name);
	return rc;
}

static int make_file(const struct kvc_sharedfile *file, bool replace)
{
	char *name;
	int fd, rc;

	rc = make_beside(file, &name, &fd);
	if (rc < 0)
		return rc;
	rc = publish(file, name, replace);
	close(fd);
	free(name);
	return rc;
}

/* Says of a file whether it is sound and of what size. */
static int check_file(const struct kvc_sharedfile *file, int fd, uint64_t *out_bytes)
{
	struct kvc_mapfile_kind kind = file->kind;
	uint8_t header[KVC_SHAREDFILE_HEADER];
	struct kvc_mapfile_header common;
	struct stat st;

	if (fstat(fd, &st) != 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	if (file->sizes && pread(fd, &common, sizeof(common), 0) == (ssize_t)sizeof(common) &&
	    file->sizes->is_size(le64toh(common.file_bytes)))
		kind.file_bytes = le64toh(common.file_bytes);
	*out_bytes = kind.file_bytes;
	return kvc_mapfile_check(fd, &kind, header);
}

static bool is_named(const struct kvc_sharedfile *file, int fd)
{
	struct stat opened, named;

	return fstat(fd, &opened) == 0 && lstat(file->path, &named) == 0 &&
	       opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

static int open_path(const struct kvc_sharedfile *file)
{
	const int fd = open(file->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* Of a sound file that is there: 0, and nobody makes it anew while it is open. -EAGAIN: somebody is
 * at it. -EMSGSIZE: it is of another size. */
static int take_file(const struct kvc_sharedfile *file, int fd)
{
	uint64_t bytes;
	int rc = check_file(file, fd, &bytes);

	if (rc < 0)
		return rc;
	if (bytes != file->kind.file_bytes)
		return -EMSGSIZE;
	if (!file->sizes)
		return 0;
	rc = lock_file(fd, F_RDLCK);
	return rc == -EAGAIN || !is_named(file, fd) ? -EAGAIN : 0;
}

/* Opens the file, makes it when it is not there or damaged. */
static int open_file(const struct kvc_sharedfile *file, int *out)
{
	static const struct timespec wait = { .tv_nsec = OPEN_WAIT_NS };
	int rc = -EAGAIN;

	for (int i = 0; i < OPEN_ATTEMPTS; i++) {
		int fd = open_path(file);

		if (fd < 0 && fd != -ENOENT)
			return fd;
		rc = fd;
		if (fd >= 0) {
			rc = take_file(file, fd);
			if (rc == 0) {
				*out = fd;
				return 0;
			}
			close(fd);
		}
		if (rc == -ENOMSG || rc == -EBADMSG) {
			kvc_log(KVC_LOG_INFO, "%s is damaged and made anew", file->path);
			rc = make_file(file, true);
		} else if (rc == -ENOENT) {
			rc = make_file(file, false);
		}
		/* A new one is opened as any other is. */
		if (rc == -EAGAIN)
			(void)nanosleep(&wait, NULL);
		else if (rc < 0 && rc != -EEXIST)
			return rc;
	}
	return rc < 0 ? rc : -EAGAIN;
}

/* ---------------------------------------------------------------- sizes */

/* What the file at `from` knows, into a new one of the size wanted, which takes its place. */
static int make_anew(const struct kvc_sharedfile *file, int from, uint64_t from_bytes)
{
	const uint64_t bytes = file->kind.file_bytes;
	char *name;
	void *old, *new;
	int fd, rc;

	rc = make_beside(file, &name, &fd);
	if (rc < 0)
		return rc;
	old = malloc(from_bytes);
	new = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (old && new != MAP_FAILED && pread(from, old, from_bytes, 0) == (ssize_t)from_bytes)
		file->sizes->move(old, from_bytes, new, bytes);
	else
		rc = -ENOMEM;
	if (new != MAP_FAILED)
		(void)munmap(new, bytes);
	free(old);
	if (rc == 0)
		rc = publish(file, name, true);
	else
		(void)unlink(name);
	close(fd);
	free(name);
	return rc;
}

/* Which size the file is going to have: the one wanted, or, while others have it open, its own. */
static void settle_size(struct kvc_sharedfile *file)
{
	const int fd = open_path(file);
	uint64_t bytes;

	if (fd < 0)
		return;
	if (check_file(file, fd, &bytes) == 0 && bytes != file->kind.file_bytes &&
	    (lock_file(fd, F_WRLCK) != 0 || !is_named(file, fd) || make_anew(file, fd, bytes) != 0))
		file->kind.file_bytes = bytes;
	close(fd);
}

/* Puts the file into the place of what is mapped now. */
static int attach(struct kvc_sharedfile *file)
{
	int fd, rc;

	if (!KVC_MAPFILE_POSSIBLE)
		return -ENOTSUP;
	rc = open_file(file, &fd);
	if (rc < 0)
		return rc;
	rc = kvc_mapfile_attach(fd, &file->kind, &file->mapping);
	if (rc < 0) {
		close(fd);
		return rc;
	}
	if (file->fd >= 0)
		close(file->fd);
	file->fd = fd;
	atomic_store(&file->shared, true);
	return 0;
}

/* Memory in the place of a file that was cut and cannot be made anew. */
static int detach(struct kvc_sharedfile *file)
{
	const int rc = kvc_mapfile_detach(&file->kind, &file->mapping);

	if (rc < 0)
		return rc;
	close(file->fd);
	file->fd = -1;
	atomic_store(&file->shared, false);
	return 0;
}

/* ---------------------------------------------------------------- open, close, check */

/* Memory, and the file in its place. */
static int map_file(struct kvc_sharedfile *file)
{
	int rc = kvc_mapfile_map(&file->kind, &file->mapping);

	if (rc < 0)
		return -ENOMEM;
	if (file->path[0] == '\0')
		return 0;
	rc = attach(file);
	if (rc < 0)
		kvc_log(KVC_LOG_DEBUG, "%s: %s; memory of this process in its place", file->path,
			strerror(-rc));
	return rc == -EMSGSIZE ? rc : 0;
}

int kvc_sharedfile_open(const struct kvc_mapfile_kind *kind,
			const struct kvc_sharedfile_sizes *sizes, const char *path, mode_t mode,
			struct kvc_sharedfile **out)
{
	static const struct timespec wait = { .tv_nsec = SIZE_WAIT_NS };
	const size_t path_bytes = path ? strlen(path) + 1 : 1;
	struct kvc_sharedfile *file = calloc(1, sizeof(*file) + path_bytes);
	int rc;

	if (!file)
		return -ENOMEM;
	file->sizes = sizes;
	file->fd = -1;
	file->mode = mode;
	if (path)
		memcpy(file->path, path, path_bytes);
	if (pthread_mutex_init(&file->lock, NULL) != 0) {
		free(file);
		return -ENOMEM;
	}
	for (int i = 0; i < SIZE_ATTEMPTS; i++) {
		file->kind = *kind;
		if (path && sizes)
			settle_size(file);
		rc = map_file(file);
		if (rc != -EMSGSIZE || i + 1 == SIZE_ATTEMPTS)
			break;
		/* Somebody made it anew meanwhile: whoever wants another size may do so as long as
		 * nobody has it open. */
		kvc_mapfile_unmap(&file->kind, &file->mapping);
		(void)nanosleep(&wait, NULL);
	}
	if (rc == -ENOMEM) {
		kvc_sharedfile_close(file);
		return rc;
	}
	*out = file;
	return 0;
}

void kvc_sharedfile_close(struct kvc_sharedfile *file)
{
	if (!file)
		return;
	kvc_mapfile_unmap(&file->kind, &file->mapping);
	if (file->fd >= 0)
		close(file->fd);
	(void)pthread_mutex_destroy(&file->lock);
	free(file);
}

void *kvc_sharedfile_memory(const struct kvc_sharedfile *file)
{
	return file->mapping.memory;
}

uint64_t kvc_sharedfile_bytes(const struct kvc_sharedfile *file)
{
	return file->kind.file_bytes;
}

bool kvc_sharedfile_is_shared(const struct kvc_sharedfile *file)
{
	return atomic_load(&file->shared);
}

/* Whether what is mapped was cut, and whether the path still names it. */
static void inspect(const struct kvc_sharedfile *file, bool *cut, bool *gone)
{
	struct stat mapped, named;

	*cut = false;
	*gone = false;
	if (fstat(file->fd, &mapped) != 0)
		return;
	*cut = (uint64_t)mapped.st_size < file->kind.file_bytes;
	if (lstat(file->path, &named) != 0)
		*gone = errno == ENOENT;
	else
		*gone = named.st_ino != mapped.st_ino || named.st_dev != mapped.st_dev;
}

int kvc_sharedfile_check(struct kvc_sharedfile *file)
{
	bool cut = false, gone = false;
	int changed = 0;

	if (file->path[0] == '\0')
		return 0;
	(void)pthread_mutex_lock(&file->lock);
	if (file->fd >= 0)
		inspect(file, &cut, &gone);
	if (file->fd < 0 || cut || gone) {
		const bool was_shared = file->fd >= 0;
		const int rc = attach(file);

		if (rc == 0)
			changed = was_shared ? 1 : 2;
		else if (cut)
			changed = detach(file) == 0;
		if (cut)
			kvc_log(KVC_LOG_WARNING, "%s was cut by somebody: %s", file->path,
				rc == 0 ? "made anew" : strerror(-rc));
	}
	(void)pthread_mutex_unlock(&file->lock);
	return changed;
}
