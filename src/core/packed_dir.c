/* SPDX-License-Identifier: Apache-2.0 */
/* Each name is walked from the root's folder, component by component, so that a symlink that
 * somebody puts there leads nowhere. */
#include "core/packed_dir.h"

#include "core/log.h"
#include "core/names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_FLAGS (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define FILE_FLAGS   (O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
#define ATTEMPTS     16 /* at what somebody else may undo in between */

struct kvc_packed_dir {
	struct kvc_packed_memory *memory; /* NULL: fd */
	int fd;				  /* of local_path */
	mode_t file_mode;
	mode_t folder_mode;
	bool read_only;
};

int kvc_packed_dir_open(const struct kvc_packed_dir_params *params, struct kvc_packed_dir **out)
{
	struct kvc_packed_dir *dir = calloc(1, sizeof(*dir));
	int rc = 0;

	if (!dir)
		return kvc_fail(-ENOMEM, "no memory for the index of a root");
	dir->fd = -1;
	dir->file_mode = params->file_mode;
	dir->folder_mode = params->folder_mode;
	dir->read_only = params->read_only;
	if (params->local_path) {
		dir->fd = open(params->local_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (dir->fd < 0)
			rc = kvc_fail(-errno, "%s: %s", params->local_path, strerror(errno));
	} else {
		rc = kvc_packed_memory_find(params->uuid, &dir->memory);
		if (rc < 0)
			rc = kvc_fail(rc, "no memory for the index of a root");
	}
	if (rc < 0)
		free(dir);
	else
		*out = dir;
	return rc;
}

void kvc_packed_dir_close(struct kvc_packed_dir *dir)
{
	if (!dir)
		return;
	if (dir->fd >= 0)
		(void)close(dir->fd);
	free(dir);
}

bool kvc_packed_dir_is_memory(const struct kvc_packed_dir *dir)
{
	return dir->memory != NULL;
}

mode_t kvc_packed_dir_file_mode(const struct kvc_packed_dir *dir)
{
	return dir->file_mode;
}

/* ---------------------------------------------------------------- walking */

/* Whether each component is one; "" has none. */
static bool is_name(const char *name)
{
	while (*name) {
		const size_t bytes = strcspn(name, "/");

		if (bytes == 0 || bytes > NAME_MAX || (bytes == 1 && name[0] == '.') ||
		    (bytes == 2 && name[0] == '.' && name[1] == '.'))
			return false;
		name += bytes;
		if (*name == '/' && *++name == '\0')
			return false;
	}
	return true;
}

/* The umask may have taken something away; a group that is handed down stays handed down. Folders
 * that cannot be changed are not worth failing. */
static void set_folder_mode(const struct kvc_packed_dir *dir, int parent_fd, const char *name)
{
	const int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && (st.st_mode & 0777) != dir->folder_mode)
		(void)fchmod(fd, dir->folder_mode | (st.st_mode & S_ISGID));
	(void)close(fd);
}

static int open_component(const struct kvc_packed_dir *dir, int parent_fd, const char *name,
			  bool create, int *out)
{
	for (int i = 0; i < ATTEMPTS; i++) {
		const int fd = openat(parent_fd, name, FOLDER_FLAGS);

		if (fd >= 0) {
			*out = fd;
			return 0;
		}
		if (errno != ENOENT || !create)
			return -errno;
		if (mkdirat(parent_fd, name, dir->folder_mode) == 0)
			set_folder_mode(dir, parent_fd, name);
		else if (errno != EEXIST)
			return -errno;
	}
	return -ENOENT;
}

/* The folder that the first `bytes` of the path name, as O_PATH. */
static int open_folder(const struct kvc_packed_dir *dir, const char *path, size_t bytes,
		       bool create, int *out)
{
	char component[NAME_MAX + 1];
	int fd, child, rc = open_component(dir, dir->fd, ".", false, &fd);
	size_t at = 0;

	while (rc == 0 && at < bytes) {
		const size_t length = strcspn(path + at, "/");

		memcpy(component, path + at, length);
		component[length] = '\0';
		rc = open_component(dir, fd, component, create, &child);
		(void)close(fd);
		fd = child;
		at += length + 1;
	}
	if (rc == 0)
		*out = fd;
	return rc;
}

static const char *leaf_of(const char *name)
{
	const char *slash = strrchr(name, '/');

	return slash ? slash + 1 : name;
}

static int open_parent(const struct kvc_packed_dir *dir, const char *name, bool create, int *out)
{
	const char *leaf = leaf_of(name);

	return open_folder(dir, name, leaf == name ? 0 : (size_t)(leaf - name) - 1, create, out);
}

/* ---------------------------------------------------------------- files */

/* O_NONBLOCK was for what may lie there instead of a file. */
static int check_file(int fd)
{
	const int flags = fcntl(fd, F_GETFL);
	struct stat st;

	if (flags < 0 || fstat(fd, &st) != 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	return fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0 ? -errno : 0;
}

/* Only the one who makes a file sets its mode. */
static int open_leaf(const struct kvc_packed_dir *dir, int folder_fd, const char *leaf, int flags,
		     int *out)
{
	const int common = (flags & ~(O_CREAT | O_EXCL)) | FILE_FLAGS;
	int fd = -1, rc;

	if ((flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL))
		fd = openat(folder_fd, leaf, common);
	else
		errno = ENOENT;
	if (fd < 0 && errno == ENOENT && (flags & O_CREAT)) {
		fd = openat(folder_fd, leaf, common | O_CREAT | O_EXCL, dir->file_mode);
		if (fd >= 0 && fchmod(fd, dir->file_mode) != 0) {
			rc = -errno;
			goto close;
		}
	}
	if (fd < 0)
		return -errno;
	rc = check_file(fd);
	if (rc < 0)
		goto close;
	*out = fd;
	return 0;

close:
	(void)close(fd);
	return rc;
}

int kvc_packed_dir_file(struct kvc_packed_dir *dir, const char *name, int flags, int *out_fd)
{
	const bool create = (flags & O_CREAT) != 0, exclusive = create && (flags & O_EXCL) != 0;
	int folder_fd, rc = -ENOENT;

	if (*name == '\0' || !is_name(name))
		return -EINVAL;
	if (dir->read_only && ((flags & O_ACCMODE) != O_RDONLY || create))
		return -EROFS;
	if (dir->memory)
		return kvc_packed_memory_file(dir->memory, name, create, exclusive, dir->file_mode,
					      out_fd);
	for (int i = 0; i < ATTEMPTS; i++) {
		rc = open_parent(dir, name, create, &folder_fd);
		if (rc < 0)
			return rc;
		rc = open_leaf(dir, folder_fd, leaf_of(name), flags, out_fd);
		(void)close(folder_fd);
		/* Somebody made it, or removed its folder, in between. */
		if (!create || !((rc == -EEXIST && !exclusive) || rc == -ENOENT))
			return rc;
	}
	return rc;
}

int kvc_packed_dir_sync(struct kvc_packed_dir *dir, const char *name)
{
	int fd, folder_fd, rc;

	if (dir->memory)
		return 0;
	rc = kvc_packed_dir_file(dir, name, O_RDONLY, &fd);
	if (rc < 0)
		return rc;
	rc = fsync(fd) != 0 ? -errno : open_parent(dir, name, false, &folder_fd);
	(void)close(fd);
	if (rc < 0)
		return rc;
	fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)close(folder_fd);
	if (fd < 0)
		return -errno;
	rc = fsync(fd) != 0 ? -errno : 0;
	(void)close(fd);
	return rc;
}

int kvc_packed_dir_remove(struct kvc_packed_dir *dir, const char *name)
{
	int folder_fd, rc;

	if (*name == '\0' || !is_name(name))
		return -EINVAL;
	if (dir->read_only)
		return -EROFS;
	if (dir->memory)
		return kvc_packed_memory_remove(dir->memory, name);
	rc = open_parent(dir, name, false, &folder_fd);
	if (rc < 0)
		return rc;
	rc = unlinkat(folder_fd, leaf_of(name), 0) != 0 ? -errno : 0;
	(void)close(folder_fd);
	return rc;
}

/* ---------------------------------------------------------------- folders */

static bool is_draft(const char *name)
{
	return strncmp(name, KVC_PACKED_DRAFT_PREFIX, strlen(KVC_PACKED_DRAFT_PREFIX)) == 0;
}

static bool is_folder(int folder_fd, const struct dirent *entry)
{
	struct stat st;

	if (entry->d_type != DT_UNKNOWN)
		return entry->d_type == DT_DIR;
	return fstatat(folder_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISDIR(st.st_mode);
}

/* Names of files, drafts or others, that lie in the folder. */
static int read_names(int folder_fd, bool drafts, struct kvc_names *out)
{
	const int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const struct dirent *entry;
	DIR *stream;
	int rc = 0;

	if (fd < 0)
		return -errno;
	stream = fdopendir(fd);
	if (!stream) {
		rc = -errno;
		(void)close(fd);
		return rc;
	}
	while (rc == 0) {
		errno = 0;
		entry = readdir(stream);
		if (!entry) {
			rc = -errno;
			break;
		}
		if (is_draft(entry->d_name) == drafts && !is_folder(folder_fd, entry))
			rc = kvc_names_add(out, entry->d_name);
	}
	(void)closedir(stream);
	return rc;
}

static int memory_name(void *context, const char *rest)
{
	return strchr(rest, '/') ? 0 : kvc_names_add(context, rest);
}

int kvc_packed_dir_list(struct kvc_packed_dir *dir, const char *folder,
			int (*fn)(void *context, const char *name), void *context)
{
	struct kvc_names names = { .count = 0 };
	int folder_fd, rc;

	if (!is_name(folder))
		return -EINVAL;
	if (dir->memory) {
		rc = kvc_packed_memory_each(dir->memory, folder, memory_name, &names);
		if (rc == 0 && names.count == 0)
			rc = -ENOENT;
	} else {
		rc = open_folder(dir, folder, strlen(folder), false, &folder_fd);
		if (rc < 0)
			return rc;
		rc = read_names(folder_fd, false, &names);
		(void)close(folder_fd);
	}
	/* All were read before the first one may be removed. */
	for (size_t i = 0; i < names.count && rc == 0; i++)
		rc = fn(context, names.names[i]);
	kvc_names_free(&names);
	return rc;
}

/* Removes what a killed process left: a draft whose lock nobody holds. */
static void remove_dead_drafts(int folder_fd)
{
	struct kvc_names names = { .count = 0 };

	if (read_names(folder_fd, true, &names) < 0)
		goto free;
	for (size_t i = 0; i < names.count; i++) {
		const int fd = openat(folder_fd, names.names[i], O_RDWR | FILE_FLAGS);
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };

		if (fd < 0)
			continue;
		if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
			(void)unlinkat(folder_fd, names.names[i], 0);
		(void)close(fd);
	}
free:
	kvc_names_free(&names);
}

static int some_name(void *context, const char *rest)
{
	(void)context;
	(void)rest;
	return -ENOTEMPTY;
}

/* Length of the folder above, 0: the root. */
static size_t above(const char *path, size_t bytes)
{
	while (bytes > 0 && path[bytes - 1] != '/')
		bytes--;
	return bytes > 0 ? bytes - 1 : 0;
}

static int remove_one(struct kvc_packed_dir *dir, const char *path, size_t bytes)
{
	const size_t parent = above(path, bytes), begin = parent ? parent + 1 : 0;
	char leaf[NAME_MAX + 1];
	int parent_fd, fd, rc;

	memcpy(leaf, path + begin, bytes - begin);
	leaf[bytes - begin] = '\0';
	rc = open_folder(dir, path, parent, false, &parent_fd);
	if (rc < 0)
		return rc;
	rc = unlinkat(parent_fd, leaf, AT_REMOVEDIR) != 0 ? -errno : 0;
	if ((rc == -ENOTEMPTY || rc == -EEXIST) &&
	    open_component(dir, parent_fd, leaf, false, &fd) == 0) {
		remove_dead_drafts(fd);
		(void)close(fd);
		rc = unlinkat(parent_fd, leaf, AT_REMOVEDIR) != 0 ? -errno : 0;
	}
	(void)close(parent_fd);
	return rc == -EEXIST ? -ENOTEMPTY : rc;
}

int kvc_packed_dir_remove_folder(struct kvc_packed_dir *dir, const char *folder)
{
	size_t bytes = strlen(folder);
	int rc;

	if (bytes == 0 || !is_name(folder))
		return -EINVAL;
	if (dir->read_only)
		return -EROFS;
	if (dir->memory)
		return kvc_packed_memory_each(dir->memory, folder, some_name, NULL);
	rc = remove_one(dir, folder, bytes);
	if (rc < 0)
		return rc;
	do {
		bytes = above(folder, bytes);
	} while (bytes > 0 && remove_one(dir, folder, bytes) == 0);
	return 0;
}

/* ---------------------------------------------------------------- drafts */

/* A name of its own, with a lock as the sign of life: for file systems without O_TMPFILE. */
static int named_draft(const struct kvc_packed_dir *dir, struct kvc_packed_draft *draft)
{
	static _Atomic uint32_t last;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	struct stat st;

	remove_dead_drafts(draft->folder_fd);
	for (int i = 0; i < ATTEMPTS; i++) {
		(void)snprintf(draft->temporary, sizeof(draft->temporary),
			       KVC_PACKED_DRAFT_PREFIX "%ld.%u", (long)getpid(),
			       atomic_fetch_add(&last, 1));
		draft->fd = openat(draft->folder_fd, draft->temporary,
				   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
				   dir->file_mode);
		if (draft->fd < 0 && errno == EEXIST)
			continue;
		if (draft->fd < 0)
			return -errno;
		/* Somebody may have taken it for a dead one, before it was locked. */
		if (fcntl(draft->fd, F_OFD_SETLK, &lock) == 0 && fstat(draft->fd, &st) == 0 &&
		    st.st_nlink > 0)
			return 0;
		(void)close(draft->fd);
	}
	return -EAGAIN;
}

static bool lacks_tmpfile(int error)
{
	return error == EOPNOTSUPP || error == EISDIR || error == EINVAL || error == ENOSYS;
}

int kvc_packed_dir_draft(struct kvc_packed_dir *dir, const char *name, bool named,
			 struct kvc_packed_draft *out)
{
	struct kvc_packed_draft draft = { .fd = -1, .folder_fd = -1, .leaf = leaf_of(name) };
	struct stat st;
	int rc;

	if (*name == '\0' || !is_name(name))
		return -EINVAL;
	if (dir->read_only)
		return -EROFS;
	if (dir->memory) {
		rc = kvc_packed_memory_draft(dir->memory, name, &draft.fd);
		goto done;
	}
	rc = open_parent(dir, name, true, &draft.folder_fd);
	if (rc < 0)
		return rc;
	if (fstatat(draft.folder_fd, draft.leaf, &st, AT_SYMLINK_NOFOLLOW) == 0) {
		rc = -EEXIST;
		goto done;
	}
	if (!named) {
		draft.fd = openat(draft.folder_fd, ".", O_RDWR | O_TMPFILE | O_CLOEXEC,
				  dir->file_mode);
		rc = draft.fd < 0 ? -errno : 0;
		named = lacks_tmpfile(-rc);
	}
	if (named)
		rc = named_draft(dir, &draft);
done:
	if (rc == 0)
		*out = draft;
	else if (draft.folder_fd >= 0)
		(void)close(draft.folder_fd);
	return rc;
}

/* Links a file without a name; what either way needs may be missing: a capability, or /proc. */
static int link_draft(const struct kvc_packed_draft *draft)
{
	char path[40];

	if (linkat(draft->fd, "", draft->folder_fd, draft->leaf, AT_EMPTY_PATH) == 0)
		return 0;
	if (errno == EEXIST)
		return -EEXIST;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", draft->fd);
	if (linkat(AT_FDCWD, path, draft->folder_fd, draft->leaf, AT_SYMLINK_FOLLOW) == 0)
		return 0;
	return -errno;
}

int kvc_packed_dir_publish(struct kvc_packed_dir *dir, const char *name,
			   struct kvc_packed_draft *draft)
{
	int rc = 0;

	if (dir->memory)
		return kvc_packed_memory_publish(dir->memory, name, draft->fd);
	if (draft->temporary[0] == '\0')
		return link_draft(draft);
	/* Where rename cannot refuse to replace something, link does. */
	if (renameat2(draft->folder_fd, draft->temporary, draft->folder_fd, draft->leaf,
		      RENAME_NOREPLACE) != 0) {
		if (errno != EINVAL && errno != ENOSYS)
			return -errno;
		if (linkat(draft->folder_fd, draft->temporary, draft->folder_fd, draft->leaf, 0) !=
		    0)
			rc = -errno;
		(void)unlinkat(draft->folder_fd, draft->temporary, 0);
	}
	draft->temporary[0] = '\0';
	return rc;
}

void kvc_packed_dir_drop(struct kvc_packed_draft *draft)
{
	if (draft->temporary[0] != '\0')
		(void)unlinkat(draft->folder_fd, draft->temporary, 0);
	(void)close(draft->fd);
	if (draft->folder_fd >= 0)
		(void)close(draft->folder_fd);
}
