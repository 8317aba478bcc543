/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and describing a root. */
#include "common/fsobj_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define REASON_BYTES 512

void fsobj_reason(const struct kvc_host *host, const char *format, ...)
{
	char text[REASON_BYTES];
	va_list args;

	if (host == NULL || host->reason == NULL)
		return;
	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	host->reason(host->context, 0, text);
}

void fsobj_step(const struct fsobj_root *root, const char *step)
{
	if (root->host != NULL && root->host->step != NULL)
		root->host->step(root->host->context, step);
}

/*
 * The last folder of the location. Those above it must be there: a mistyped path, or a disk that is
 * not mounted, would else become a tree on another disk.
 */
static int location_make(const struct fsobj_root *root)
{
	if (mkdir(root->location, root->folder_mode) == 0)
		/* The umask may have taken something away. */
		(void)fsobj_folder_mode(AT_FDCWD, root->location, root->folder_mode);
	else if (errno != EEXIST)
		return -errno;
	return 0;
}

static int owner_check(const struct fsobj_root *root, int fd)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return -errno;
	if (st.st_uid == geteuid())
		return 0;
	fsobj_reason(root->host,
		     "folder %s belongs to user %u, not to user %u who runs this: name a folder of "
		     "your own in storage_dirs",
		     root->location, (unsigned int)st.st_uid, (unsigned int)geteuid());
	return -EPERM;
}

/* Whether the folder is there that the root's would be made in. */
static bool has_place(const struct fsobj_root *root)
{
	const char *slash = strrchr(root->location, '/');
	char above[sizeof(root->location)];
	struct stat st;

	(void)snprintf(above, sizeof(above), "%.*s",
		       slash > root->location ? (int)(slash - root->location) : 1, root->location);
	return stat(above, &st) == 0 && S_ISDIR(st.st_mode);
}

/* making: it was not there, and mkdir said `error`. */
static void open_explain(const struct fsobj_root *root, int error, bool making)
{
	struct stat st;
	bool link = lstat(root->location, &st) == 0 && S_ISLNK(st.st_mode);

	if (link && (root->flags & KVC_ROOT_OWNED) != 0)
		fsobj_reason(
			root->host,
			"%s is a symbolic link, which anybody may have put there: remove it, or "
			"name the folder itself in storage_dirs",
			root->location);
	else if (error == -ENOTDIR)
		fsobj_reason(root->host, "%s is not a directory", root->location);
	else if (error == -ENOENT && (root->flags & KVC_ROOT_CREATE) == 0)
		fsobj_reason(root->host, "folder %s does not exist", root->location);
	else if (error == -ENOENT && !has_place(root))
		fsobj_reason(root->host,
			     "folder %s does not exist, nor does the one it should be made in: "
			     "mkdir -p it, if the path is right and its disk is mounted",
			     root->location);
	else
		fsobj_reason(root->host, "cannot %s folder %s: %s%s", making ? "make" : "open",
			     root->location, strerror(-error),
			     making && error == -ENOENT ? " (its file system takes none there)" :
							  "");
}

int fsobj_root_folder_open(struct fsobj_root *root, bool create, bool explain, int *out)
{
	int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
	bool making = false;
	int error = 0;
	int fd;

	if ((root->flags & KVC_ROOT_OWNED) != 0)
		flags |= O_NOFOLLOW;
	fd = open(root->location, flags);
	if (fd < 0 && errno == ENOENT && create) {
		error = location_make(root);
		making = error != 0;
		if (!making)
			fd = open(root->location, flags);
	}
	if (fd < 0) {
		error = error != 0 ? error : -errno;
		if ((root->flags & KVC_ROOT_OWNED) != 0 && (error == -ENOTDIR || error == -ELOOP)) {
			struct stat st;

			if (lstat(root->location, &st) == 0 && S_ISLNK(st.st_mode))
				error = -EPERM;
		}
		if (explain)
			open_explain(root, error, making);
		return error;
	}
	if ((root->flags & KVC_ROOT_OWNED) != 0) {
		error = owner_check(root, fd);
		if (error != 0) {
			close(fd);
			return error;
		}
	}
	*out = fd;
	return 0;
}

static int location_copy(struct fsobj_root *root, const char *location)
{
	size_t bytes = location != NULL ? strlen(location) : 0;

	if (bytes == 0 || bytes >= sizeof(root->location)) {
		fsobj_reason(root->host,
			     "the name of the root folder has %zu bytes, 1 to %zu are possible",
			     bytes, sizeof(root->location) - 1);
		return bytes == 0 ? -EINVAL : -ENAMETOOLONG;
	}
	/* A relative location must not move with the working directory. */
	if (location[0] != '/') {
		size_t used;

		if (getcwd(root->location, sizeof(root->location)) == NULL)
			return -errno;
		used = strlen(root->location);
		if (used + 1 + bytes >= sizeof(root->location))
			return -ENAMETOOLONG;
		root->location[used] = '/';
		memcpy(root->location + used + 1, location, bytes + 1);
		return 0;
	}
	memcpy(root->location, location, bytes + 1);
	while (bytes > 1 && root->location[bytes - 1] == '/')
		root->location[--bytes] = '\0';
	return 0;
}

static int root_examine(struct fsobj_root *root)
{
	static const struct fsobj_probe_calls calls = {
		.openat = openat,
		.pwrite = pwrite,
		.pread = pread,
	};
	struct fsobj_folder top;
	struct statvfs fs;
	int error;
	int fd;

	error = fsobj_root_folder_open(root,
				       (root->flags & KVC_ROOT_CREATE) != 0 &&
					       (root->flags & KVC_ROOT_READ_ONLY) == 0,
				       true, &fd);
	if (error != 0)
		return error;
	close(fd);
	error = fsobj_folder_get(root, "", 0, false, &top);
	if (error != 0) {
		fsobj_reason(root->host, "cannot open folder %s: %s", root->location,
			     strerror(-error));
		return error;
	}
	fsobj_probe_file_system(top.fd, &root->info);
	root->info.read_only = (root->flags & KVC_ROOT_READ_ONLY) != 0;
	if (fstatvfs(top.fd, &fs) == 0 && (fs.f_flag & ST_RDONLY) != 0)
		root->info.read_only = true;
	error = fsobj_probe_io(root, top.fd, &calls);
	if (error != 0)
		fsobj_reason(root->host, "cannot write to folder %s: %s", root->location,
			     strerror(-error));
	fsobj_folder_put(root, &top);
	return error;
}

int fsobj_root_open(const struct fsobj_params *params, const struct kvc_root_params *root_params,
		    struct fsobj_root **out)
{
	struct fsobj_root *root = calloc(1, sizeof(*root));
	int error;

	if (root == NULL)
		return -ENOMEM;
	root->host = params->host;
	root->flags = root_params->flags;
	root->direct_io = params->direct_io;
	root->file_mode = params->file_mode;
	root->folder_mode = params->folder_mode;
	error = location_copy(root, root_params->location);
	if (error != 0)
		goto free_root;
	error = fsobj_folders_init(&root->folders);
	if (error != 0)
		goto free_root;
	error = fsobj_lease_init(&root->lease);
	if (error != 0)
		goto fini_folders;
	error = root_examine(root);
	if (error != 0)
		goto fini_lease;
	*out = root;
	return 0;

fini_lease:
	fsobj_lease_fini(root);
fini_folders:
	fsobj_folders_fini(&root->folders);
free_root:
	free(root);
	return error;
}

void fsobj_root_close(struct fsobj_root *root)
{
	if (root == NULL)
		return;
	fsobj_lease_fini(root);
	fsobj_folders_fini(&root->folders);
	free(root);
}

const struct fsobj_info *fsobj_root_info(const struct fsobj_root *root)
{
	return &root->info;
}

void fsobj_root_query(const struct fsobj_root *root, struct kvc_attributes *out)
{
	out->max_object_bytes = UINT64_C(1) << 42;
	out->alignment = root->info.alignment;
	out->memory_kinds = 1u << KVC_MEMORY_HOST | 1u << KVC_MEMORY_PLUGIN;
	out->flags = KVC_ATTRIBUTE_WHOLE | KVC_ATTRIBUTE_IN_PLACE | KVC_ATTRIBUTE_LISTS |
		     KVC_ATTRIBUTE_IF_ABSENT | KVC_ATTRIBUTE_LATE | KVC_ATTRIBUTE_FOLDERS |
		     KVC_ATTRIBUTE_REMOVES | KVC_ATTRIBUTE_SIZES;
	if (root->info.local)
		out->flags |= KVC_ATTRIBUTE_LOCAL;
	if (root->info.read_only)
		out->flags |= KVC_ATTRIBUTE_READ_ONLY;
	if (root->info.direct)
		out->flags |= KVC_ATTRIBUTE_DIRECT;
	(void)snprintf(out->file_system, sizeof(out->file_system), "%s", root->info.file_system);
	(void)snprintf(out->note, sizeof(out->note), "%s", root->info.note);
	out->local_path = root->location;
}
