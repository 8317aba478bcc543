/* SPDX-License-Identifier: Apache-2.0 */
/* Containers: files of a fixed size, fully allocated, written in place. */
#include "common/fsobj_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static int container_existing(struct fsobj_root *root, int folder_fd, const char *leaf,
			      uint64_t bytes, int *out_fd, uint64_t *out_bytes)
{
	int flags = (root->info.read_only ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK |
		    O_CLOEXEC;
	int direct = root->info.direct ? O_DIRECT : 0;
	struct stat st;
	int error = 0;
	int fd = openat(folder_fd, leaf, flags | direct);

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) != 0 || fcntl(fd, F_SETFL, direct) != 0)
		error = -errno;
	else if (!S_ISREG(st.st_mode))
		error = -ENXIO;
	else if (bytes != 0 && (uint64_t)st.st_size != bytes) {
		fsobj_reason(root->host, "container %s has %llu bytes, not %llu", leaf,
			     (unsigned long long)st.st_size, (unsigned long long)bytes);
		error = -EEXIST;
	}
	if (error != 0) {
		close(fd);
		return error;
	}
	*out_fd = fd;
	*out_bytes = (uint64_t)st.st_size;
	return 0;
}

/* Allocates, so that a later write cannot run out of space. */
static int allocate(const struct fsobj_root *root, int fd, uint64_t bytes)
{
	int error;

	do
		error = posix_fallocate(fd, 0, (off_t)bytes);
	while (error == EINTR);
	if (error != 0)
		fsobj_reason(root->host, "cannot allocate %llu bytes in %s: %s",
			     (unsigned long long)bytes, root->location, strerror(error));
	return -error;
}

int fsobj_container_open(struct fsobj_root *root, const char *name, uint64_t bytes, int *out_fd,
			 uint64_t *out_bytes)
{
	uint32_t name_bytes = (uint32_t)strnlen(name, PATH_MAX);
	struct fsobj_folder folder;
	struct fsobj_file file;
	struct fsobj_seen seen;
	uint32_t folder_bytes;
	const char *leaf;
	int error = fsobj_name_split(name, name_bytes, &folder_bytes);

	if (error != 0)
		return error;
	leaf = folder_bytes > 0 ? name + folder_bytes + 1 : name;
	for (int attempt = 0; attempt < 3; attempt++) {
		bool gone;

		error = fsobj_folder_get(root, name, folder_bytes, bytes != 0, &folder);
		if (error != 0)
			return error;
		error = container_existing(root, folder.fd, leaf, bytes, out_fd, out_bytes);
		/* The folder that we know may have been removed and made again. */
		gone = fsobj_folder_gone(root, &folder, error);
		fsobj_folder_put(root, &folder);
		if (gone)
			continue;
		if (error != -ENOENT || bytes == 0)
			return error;
		/* Made whole first and then published, so that nobody opens a short one. */
		error = fsobj_create(root, name, name_bytes, bytes, &file);
		if (error == 0)
			error = allocate(root, file.fd, bytes);
		if (error == 0)
			error = fsobj_publish(root, &file, true, &seen);
		fsobj_close(root, &file);
		if (error != 0 && error != -EEXIST)
			return error;
	}
	return error != 0 ? error : -EAGAIN;
}

int fsobj_container_remove(struct fsobj_root *root, const char *name)
{
	static const uint64_t any_version[2];
	uint64_t bytes;
	int error, fd;

	if (fsobj_container_open(root, name, 0, &fd, &bytes) != 0)
		fd = -1;
	error = fsobj_remove(root, name, (uint32_t)strnlen(name, PATH_MAX), any_version);
	/* Processes that have it open would keep its blocks until they look. Where a file system
	 * cannot punch, they do. */
	if (fd >= 0 && error == 0)
		(void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
	if (fd >= 0)
		(void)close(fd);
	return error;
}

int fsobj_container_resize(struct fsobj_root *root, int fd, uint64_t bytes)
{
	struct stat st;

	if (bytes == 0)
		return -EINVAL;
	if (fstat(fd, &st) != 0)
		return -errno;
	if ((uint64_t)st.st_size > bytes && ftruncate(fd, (off_t)bytes) != 0)
		return -errno;
	return allocate(root, fd, bytes);
}
