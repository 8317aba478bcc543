/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sharedfile.h"

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_ATTEMPTS 8

struct kvc_sharedfile {
	struct kvc_mapfile_kind kind;
	struct kvc_mapfile_mapping mapping; /* never moves; what lies there may change */
	atomic_bool shared;
	pthread_mutex_t lock; /* of kvc_sharedfile_check() */
	int fd;		      /* of what is mapped, -1: memory */
	mode_t mode;
	char path[];
};

/* ---------------------------------------------------------------- the file */

/* A whole new file beside the path, then under it: by link, so that it replaces nothing, or by
 * rename over a damaged one. -EEXIST: somebody was faster. */
static int make_file(const struct kvc_sharedfile *file, bool replace, int *out)
{
	static const char suffix[] = ".XXXXXX";
	const size_t name_bytes = strlen(file->path) + sizeof(suffix);
	uint8_t header[KVC_SHAREDFILE_HEADER] = { 0 };
	char *name = malloc(name_bytes);
	int fd, rc;

	if (!name)
		return -ENOMEM;
	(void)snprintf(name, name_bytes, "%s%s", file->path, suffix);
	fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
		goto free_name;
	}
	rc = kvc_mapfile_fill(fd, file->mode, &file->kind, header);
	if (rc == 0 && (replace ? rename(name, file->path) : link(name, file->path)) != 0)
		rc = -errno;
	if (rc < 0 || !replace)
		(void)unlink(name);
	if (rc < 0)
		close(fd);
	else
		*out = fd;
free_name:
	free(name);
	return rc;
}

/* Opens the file, makes it when it is not there or damaged. */
static int open_file(const struct kvc_sharedfile *file, int *out)
{
	uint8_t header[KVC_SHAREDFILE_HEADER];
	int fd, rc = -EAGAIN;

	for (int i = 0; i < OPEN_ATTEMPTS; i++) {
		fd = open(file->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0 && errno != ENOENT)
			return -errno;
		if (fd >= 0) {
			struct stat st;

			rc = kvc_mapfile_check(fd, &file->kind, header);
			if (rc == 0) {
				*out = fd;
				return 0;
			}
			if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
				rc = -EINVAL;
			close(fd);
			if (rc != -ENOMSG && rc != -EBADMSG)
				return rc;
			kvc_log(KVC_LOG_INFO, "%s is damaged and made anew", file->path);
			rc = make_file(file, true, out);
		} else {
			rc = make_file(file, false, out);
		}
		if (rc != -EEXIST)
			return rc;
	}
	return rc;
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

int kvc_sharedfile_open(const struct kvc_mapfile_kind *kind, const char *path, mode_t mode,
			struct kvc_sharedfile **out)
{
	const size_t path_bytes = path ? strlen(path) + 1 : 1;
	struct kvc_sharedfile *file = calloc(1, sizeof(*file) + path_bytes);
	int rc;

	if (!file)
		return -ENOMEM;
	file->kind = *kind;
	file->fd = -1;
	file->mode = mode;
	if (path)
		memcpy(file->path, path, path_bytes);
	rc = kvc_mapfile_map(&file->kind, &file->mapping);
	if (rc == 0)
		rc = -pthread_mutex_init(&file->lock, NULL);
	if (rc < 0) {
		kvc_mapfile_unmap(&file->kind, &file->mapping);
		free(file);
		return -ENOMEM;
	}
	if (path) {
		rc = attach(file);
		if (rc < 0)
			kvc_log(KVC_LOG_DEBUG, "%s: %s; memory of this process in its place", path,
				strerror(-rc));
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
