/* SPDX-License-Identifier: Apache-2.0 */
/* Walking a root: list, usage, and the search for orphans. */
#include "common/fsobj_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct walk_path {
	size_t bytes;
	uint32_t depth;
	dev_t device; /* of the folder that the walk began in */
	char text[PATH_MAX];
};

static int walk_folder(struct fsobj_walk *walk, int folder_fd, struct walk_path *path);

/* What is at the path could not be looked at. What went away, or is no folder any more, is none. */
static int walk_unread(struct fsobj_walk *walk, const struct walk_path *path, int error)
{
	if (error == -ENOENT || error == -ENOTDIR || error == -ELOOP)
		return 0;
	if (walk->unread != NULL)
		walk->unread(walk, path->text, error);
	else if (error == -EMFILE || error == -ENFILE || error == -ENOMEM)
		return error;
	return 0;
}

static int walk_enter(struct fsobj_walk *walk, int dir_fd, const char *name, struct walk_path *path)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	int error;

	if (fd < 0)
		return walk_unread(walk, path, -errno);
	error = fstat(fd, &st) != 0 ? -errno : st.st_dev != path->device ? -EXDEV : 0;
	if (error == 0)
		return walk_folder(walk, fd, path);
	close(fd);
	return walk_unread(walk, path, error);
}

static int walk_entry(struct fsobj_walk *walk, int dir_fd, const struct dirent *entry,
		      struct walk_path *path)
{
	size_t name_bytes = strlen(entry->d_name);
	size_t before = path->bytes;
	unsigned char type = entry->d_type;
	struct stat st;
	int result = 0;

	if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
	    before + 1 + name_bytes >= sizeof(path->text))
		return 0;
	if (before > 0)
		path->text[path->bytes++] = '/';
	memcpy(path->text + path->bytes, entry->d_name, name_bytes + 1);
	path->bytes += name_bytes;
	if (type == DT_UNKNOWN) {
		if (fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			result = walk_unread(walk, path, -errno);
		else
			type = S_ISDIR(st.st_mode) ? DT_DIR : S_ISREG(st.st_mode) ? DT_REG : DT_LNK;
	}
	if (type == DT_REG) {
		result = walk->entry(walk, dir_fd, entry->d_name, path->text, path->bytes);
	} else if (type == DT_DIR && path->depth < FSOBJ_DEPTH_MAX &&
		   (walk->enter == NULL || walk->enter(walk, path->text, path->bytes))) {
		result = walk_enter(walk, dir_fd, entry->d_name, path);
	}
	path->bytes = before;
	path->text[before] = '\0';
	return result;
}

/* Takes folder_fd over. */
static int walk_folder(struct fsobj_walk *walk, int folder_fd, struct walk_path *path)
{
	DIR *dir = fdopendir(folder_fd);
	struct dirent *entry;
	int result = 0;

	if (dir == NULL) {
		result = -errno;
		close(folder_fd);
		return walk_unread(walk, path, result);
	}
	path->depth++;
	while (result == 0) {
		errno = 0;
		entry = readdir(dir);
		if (entry == NULL) {
			result = errno != 0 ? walk_unread(walk, path, -errno) : 0;
			break;
		}
		result = walk_entry(walk, dirfd(dir), entry, path);
	}
	path->depth--;
	closedir(dir);
	return result;
}

/* The folder to begin with. Errors of the root itself are the walk's. A kept handle of a folder
 * that was removed, and perhaps made again, would list nothing. */
static int walk_begin(struct fsobj_root *root, struct fsobj_walk *walk, struct walk_path *path)
{
	struct fsobj_folder top;
	struct stat st;
	bool gone = true;
	int error = 0;

	for (int attempt = 0; gone && attempt < 3; attempt++) {
		int fd;

		error = fsobj_folder_get(root, path->text, path->bytes, false, &top);
		if (error != 0)
			return path->bytes > 0 ? walk_unread(walk, path, error) : error;
		fd = openat(top.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		error = fd < 0 || fstat(fd, &st) != 0 ? -errno : st.st_nlink == 0 ? -ENOENT : 0;
		if (error == 0) {
			path->device = st.st_dev;
			error = walk_folder(walk, fd, path);
			fsobj_folder_put(root, &top);
			return error;
		}
		if (fd >= 0)
			close(fd);
		gone = fsobj_folder_gone(root, &top, error);
		fsobj_folder_put(root, &top);
	}
	if (gone)
		return 0;
	return path->bytes > 0 ? walk_unread(walk, path, error) : error;
}

int fsobj_walk_run(struct fsobj_root *root, struct fsobj_walk *walk, const char *folder,
		   size_t folder_bytes)
{
	struct walk_path path = { .bytes = folder_bytes };

	if (folder_bytes >= sizeof(path.text))
		return -ENAMETOOLONG;
	memcpy(path.text, folder, folder_bytes);
	return walk_begin(root, walk, &path);
}

struct list {
	struct fsobj_root *root;
	kvc_list_fn fn;
	void *context;
	const char *prefix;
	size_t prefix_bytes;
	bool housekeeping; /* the prefix asks for it */
	int error;	   /* of the first that could not be looked at */
};

/* Can anything below the folder begin with the prefix? */
static bool list_enter(struct fsobj_walk *walk, const char *path, size_t path_bytes)
{
	const struct list *list = walk->context;
	size_t n = path_bytes < list->prefix_bytes ? path_bytes : list->prefix_bytes;

	if (!list->housekeeping && strcmp(path, FSOBJ_HOUSEKEEPING) == 0)
		return false;
	if (memcmp(path, list->prefix, n) != 0)
		return false;
	return path_bytes >= list->prefix_bytes || list->prefix[path_bytes] == '/';
}

/* The rest is listed all the same; a list that lacks something may not look like a whole one. */
static void list_unread(struct fsobj_walk *walk, const char *path, int error)
{
	struct list *list = walk->context;

	if (list->error != 0)
		return;
	list->error = error;
	fsobj_reason(list->root->host, "%s%s%s could not be looked at: %s", list->root->location,
		     *path ? "/" : "", path,
		     error == -EXDEV ? "it is on another file system" : strerror(-error));
}

static int64_t timespec_ns(const struct timespec *time)
{
	return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static int list_entry(struct fsobj_walk *walk, int folder_fd, const char *leaf, const char *path,
		      size_t path_bytes)
{
	const struct list *list = walk->context;
	struct kvc_list_entry entry = {
		.size = sizeof(entry),
		.name = path,
		.name_bytes = (uint32_t)path_bytes,
	};
	struct stat st;

	if (path_bytes < list->prefix_bytes ||
	    memcmp(path, list->prefix, list->prefix_bytes) != 0 ||
	    strncmp(leaf, FSOBJ_TEMP_PREFIX, strlen(FSOBJ_TEMP_PREFIX)) == 0)
		return 0;
	if (fstatat(folder_fd, leaf, &st, AT_SYMLINK_NOFOLLOW) != 0) {
		if (errno != ENOENT)
			list_unread(walk, path, -errno);
		return 0;
	}
	if (!S_ISREG(st.st_mode))
		return 0;
	entry.object_bytes = (uint64_t)st.st_size;
	entry.allocated_bytes = (uint64_t)st.st_blocks * 512;
	entry.modified_ns = timespec_ns(&st.st_mtim);
	entry.accessed_ns = timespec_ns(&st.st_atim);
	entry.version[0] = st.st_ino;
	entry.version[1] = (uint64_t)timespec_ns(&st.st_ctim);
	return list->fn(list->context, &entry);
}

/* The folder that everything with this prefix lies in; 0 bytes: the root. */
static int list_begin(const struct list *list, size_t *out_bytes)
{
	const char *slash = strrchr(list->prefix, '/');
	char name[PATH_MAX];
	uint32_t folder_bytes;
	int length;

	*out_bytes = 0;
	if (slash == NULL)
		return 0;
	length = snprintf(name, sizeof(name), "%.*s/x", (int)(slash - list->prefix), list->prefix);
	if (length < 0 || (size_t)length >= sizeof(name))
		return -ENAMETOOLONG;
	*out_bytes = (size_t)(slash - list->prefix);
	return fsobj_name_split(name, (uint32_t)length, &folder_bytes);
}

int fsobj_list(struct fsobj_root *root, const char *prefix, kvc_list_fn fn, void *context)
{
	struct list list = {
		.root = root,
		.fn = fn,
		.context = context,
		.prefix = prefix != NULL ? prefix : "",
	};
	struct fsobj_walk walk = {
		.entry = list_entry,
		.enter = list_enter,
		.unread = list_unread,
		.context = &list,
	};
	size_t begin_bytes;
	int result;

	list.prefix_bytes = strlen(list.prefix);
	list.housekeeping = strncmp(list.prefix, FSOBJ_HOUSEKEEPING, strlen(FSOBJ_HOUSEKEEPING)) ==
			    0;
	/* No object has such a name. */
	if (list_begin(&list, &begin_bytes) != 0)
		return 0;
	result = fsobj_walk_run(root, &walk, list.prefix, begin_bytes);
	return result != 0 ? result : list.error;
}

int fsobj_usage(struct fsobj_root *root, struct kvc_usage *out)
{
	struct fsobj_folder top;
	struct statvfs fs;
	struct stat st;
	int error = fsobj_folder_get(root, "", 0, false, &top);

	if (error != 0)
		return error;
	if (fstatvfs(top.fd, &fs) != 0 || fstat(top.fd, &st) != 0) {
		error = -errno;
	} else {
		out->total_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
		out->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
		out->device = st.st_dev;
	}
	fsobj_folder_put(root, &top);
	return error;
}
