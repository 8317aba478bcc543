/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One object: open, create, publish, stat, remove.
 *
 * A new object is written to a file without a name (O_TMPFILE) and linked when it is whole. Where a
 * name exists already it is linked to a temporary name and renamed over it. File systems without
 * O_TMPFILE get the temporary name from the start.
 */
#include "common/fsobj_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static uint64_t timespec_ns(const struct timespec *time)
{
	return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

static void seen_fill(struct fsobj_seen *seen, const struct stat *st)
{
	seen->bytes = (uint64_t)st->st_size;
	seen->version[0] = st->st_ino;
	seen->version[1] = timespec_ns(&st->st_ctim);
	seen->written_ns = timespec_ns(&st->st_mtim);
}

static int kind_check(const struct stat *st)
{
	if (S_ISREG(st->st_mode))
		return 0;
	if (S_ISDIR(st->st_mode))
		return -EISDIR;
	return S_ISLNK(st->st_mode) ? -ELOOP : -ENXIO;
}

static const char *leaf_of(const char *name, uint32_t folder_bytes)
{
	return folder_bytes > 0 ? name + folder_bytes + 1 : name;
}

static const char *file_leaf(const struct fsobj_file *file)
{
	const char *slash = memrchr(file->name, '/', file->name_bytes);

	return slash != NULL ? slash + 1 : file->name;
}

static uint32_t file_folder_bytes(const struct fsobj_file *file)
{
	const char *slash = memrchr(file->name, '/', file->name_bytes);

	return slash != NULL ? (uint32_t)(slash - file->name) : 0;
}

static void file_init(struct fsobj_file *file, const char *name, uint32_t name_bytes)
{
	*file = (struct fsobj_file){
		.fd = -1,
		.folder = { .fd = -1, .slot = -1 },
		.name = name,
		.name_bytes = name_bytes,
	};
}

int fsobj_stat(struct fsobj_root *root, const char *name, uint32_t name_bytes,
	       struct fsobj_seen *seen)
{
	struct fsobj_folder folder;
	struct stat st;
	uint32_t folder_bytes;
	int error = fsobj_name_split(name, name_bytes, &folder_bytes);

	for (int attempt = 0; error == 0 && attempt < 3; attempt++) {
		bool gone;

		error = fsobj_folder_get(root, name, folder_bytes, false, &folder);
		if (error != 0)
			return error;
		if (fstatat(folder.fd, leaf_of(name, folder_bytes), &st, AT_SYMLINK_NOFOLLOW) != 0)
			error = -errno;
		gone = fsobj_folder_gone(root, &folder, error);
		fsobj_folder_put(root, &folder);
		if (!gone)
			break;
		error = attempt < 2 ? 0 : -ENOENT;
	}
	if (error == 0)
		error = kind_check(&st);
	if (error == 0)
		seen_fill(seen, &st);
	return error;
}

/* Opens the leaf, around the page cache where that works. */
static int leaf_open(const struct fsobj_root *root, int folder_fd, const char *leaf, int flags,
		     struct fsobj_file *file)
{
	flags |= O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	file->direct = root->info.direct;
	file->fd = openat(folder_fd, leaf, flags | (file->direct ? O_DIRECT : 0));
	if (file->fd < 0 && errno == EINVAL && file->direct) {
		file->direct = false;
		file->fd = openat(folder_fd, leaf, flags);
	}
	return file->fd >= 0 ? 0 : -errno;
}

int fsobj_open(struct fsobj_root *root, const char *name, uint32_t name_bytes,
	       struct fsobj_file *file, struct fsobj_seen *seen)
{
	struct fsobj_folder folder;
	struct stat st;
	uint32_t folder_bytes;
	int error = fsobj_name_split(name, name_bytes, &folder_bytes);

	file_init(file, name, name_bytes);
	for (int attempt = 0; error == 0 && attempt < 3; attempt++) {
		bool gone;

		error = fsobj_folder_get(root, name, folder_bytes, false, &folder);
		if (error != 0)
			return error;
		error = leaf_open(root, folder.fd, leaf_of(name, folder_bytes), O_RDONLY, file);
		gone = fsobj_folder_gone(root, &folder, error);
		fsobj_folder_put(root, &folder);
		if (!gone)
			break;
		error = attempt < 2 ? 0 : -ENOENT;
	}
	if (error != 0)
		return error;
	error = fstat(file->fd, &st) != 0 ? -errno : kind_check(&st);
	/* O_NONBLOCK was for what is no regular file. io_uring fails I/O with -EAGAIN because of it
	 * on file systems that cannot do I/O without blocking. */
	if (error == 0 && fcntl(file->fd, F_SETFL, file->direct ? O_DIRECT : 0) != 0)
		error = -errno;
	if (error != 0) {
		close(file->fd);
		file->fd = -1;
		return error;
	}
	seen_fill(seen, &st);
	return 0;
}

/* A file in the folder that nobody finds by the object's name. */
static int temp_open(struct fsobj_root *root, struct fsobj_file *file)
{
	const int flags = O_WRONLY | O_CLOEXEC;
	char temp[FSOBJ_TEMP_BYTES];
	int direct = root->info.direct ? O_DIRECT : 0;
	int error;

	file->direct = root->info.direct;
	if (root->info.tmpfile) {
		file->fd =
			openat(file->folder.fd, ".", flags | O_TMPFILE | direct, root->file_mode);
		if (file->fd < 0)
			return -errno;
	} else {
		error = fsobj_lease_hold(root);
		if (error != 0)
			return error;
		file->temp = fsobj_temp_next(root, temp);
		file->fd = openat(file->folder.fd, temp,
				  flags | O_CREAT | O_EXCL | O_NOFOLLOW | direct, root->file_mode);
		if (file->fd < 0) {
			error = -errno;
			file->temp = 0;
			return error;
		}
	}
	if (root->chmod_files && fchmod(file->fd, root->file_mode) != 0)
		return -errno;
	return 0;
}

/*
 * Blocks for the whole object: a full disk is found before anything is written, and direct writes
 * are faster (ext4 and xfs, measured). Elsewhere it gains nothing. ext4 starts a direct write
 * without blocking only where it neither allocates nor grows the file and something has changed the
 * file before; what may block, io_uring hands to kernel threads. So the size is set there too:
 * nobody can see it before the object is published.
 */
static int blocks_reserve(const struct fsobj_root *root, const struct fsobj_file *file,
			  uint64_t bytes)
{
	const int mode = root->info.presizes ? 0 : FALLOC_FL_KEEP_SIZE;

	if (!root->info.preallocates || bytes == 0)
		return 0;
	if (fallocate(file->fd, mode, 0, (off_t)bytes) == 0)
		return 0;
	return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? -errno : 0;
}

int fsobj_create(struct fsobj_root *root, const char *name, uint32_t name_bytes, uint64_t bytes,
		 struct fsobj_file *file)
{
	uint32_t folder_bytes;
	int error;

	file_init(file, name, name_bytes);
	if (root->info.read_only)
		return -EROFS;
	error = fsobj_name_split(name, name_bytes, &folder_bytes);
	for (int attempt = 0; error == 0 && attempt < 3; attempt++) {
		error = fsobj_folder_get(root, name, folder_bytes, true, &file->folder);
		if (error != 0)
			return error;
		error = temp_open(root, file);
		if (!fsobj_folder_gone(root, &file->folder, error))
			break;
		fsobj_folder_put(root, &file->folder);
		error = attempt < 2 ? 0 : -ENOENT;
	}
	if (error == 0)
		error = blocks_reserve(root, file, bytes);
	if (error != 0) {
		fsobj_close(root, file);
		return error;
	}
	fsobj_step(root, "publish.created");
	return 0;
}

int fsobj_link(struct fsobj_root *root, int fd, int folder_fd, const char *leaf)
{
	char proc[64];

	if (!atomic_load_explicit(&root->link_by_proc, memory_order_relaxed)) {
		if (linkat(fd, "", folder_fd, leaf, AT_EMPTY_PATH) == 0)
			return 0;
		if (errno != ENOENT && errno != EPERM && errno != EACCES)
			return -errno;
	}
	(void)snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, proc, folder_fd, leaf, AT_SYMLINK_FOLLOW) != 0)
		return -errno;
	atomic_store_explicit(&root->link_by_proc, true, memory_order_relaxed);
	return 0;
}

/* fsobj_link(), in a folder that may have been removed since the file was begun. */
static int file_link_anywhere(struct fsobj_root *root, struct fsobj_file *file, const char *leaf)
{
	int error = fsobj_link(root, file->fd, file->folder.fd, leaf);

	for (int attempt = 0; attempt < 2; attempt++) {
		if (!fsobj_folder_gone(root, &file->folder, error))
			break;
		fsobj_folder_put(root, &file->folder);
		error = fsobj_folder_get(root, file->name, file_folder_bytes(file), true,
					 &file->folder);
		if (error != 0)
			return error;
		error = fsobj_link(root, file->fd, file->folder.fd, leaf);
	}
	return error;
}

/* The temporary name becomes the object's, when there is none yet. */
static int rename_noreplace(struct fsobj_root *root, const struct fsobj_file *file,
			    const char *temp, const char *leaf)
{
	if (!atomic_load_explicit(&root->no_noreplace, memory_order_relaxed)) {
		if (renameat2(file->folder.fd, temp, file->folder.fd, leaf, RENAME_NOREPLACE) == 0)
			return 0;
		if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
			return -errno;
		atomic_store_explicit(&root->no_noreplace, true, memory_order_relaxed);
	}
	if (linkat(file->folder.fd, temp, file->folder.fd, leaf, 0) != 0)
		return -errno;
	(void)unlinkat(file->folder.fd, temp, 0);
	return 0;
}

/* What stands in the way. What is no regular file counts as 0 bytes. */
static int exists_report(struct fsobj_root *root, const struct fsobj_file *file,
			 struct fsobj_seen *seen)
{
	int error;

	*seen = (struct fsobj_seen){ .bytes = 0 };
	error = fsobj_stat(root, file->name, file->name_bytes, seen);
	return error == -ENOENT ? -EAGAIN : -EEXIST;
}

static int publish_replacing(struct fsobj_root *root, struct fsobj_file *file, const char *leaf)
{
	char temp[FSOBJ_TEMP_BYTES];
	int error;

	if (file->temp == 0) {
		error = fsobj_lease_hold(root);
		if (error != 0)
			return error;
		file->temp = fsobj_temp_next(root, temp);
		error = file_link_anywhere(root, file, temp);
		if (error != 0) {
			file->temp = 0;
			return error;
		}
		fsobj_step(root, "publish.linked");
	}
	fsobj_temp_name(root, file->temp, temp);
	if (renameat(file->folder.fd, temp, file->folder.fd, leaf) != 0)
		return -errno;
	file->temp = 0;
	fsobj_step(root, "publish.renamed");
	return 0;
}

static int publish_new(struct fsobj_root *root, struct fsobj_file *file, const char *leaf)
{
	char temp[FSOBJ_TEMP_BYTES];
	int error;

	if (file->temp == 0) {
		error = file_link_anywhere(root, file, leaf);
		if (error == 0)
			fsobj_step(root, "publish.linked");
		return error;
	}
	fsobj_temp_name(root, file->temp, temp);
	error = rename_noreplace(root, file, temp, leaf);
	if (error != 0)
		return error;
	file->temp = 0;
	fsobj_step(root, "publish.renamed");
	return 0;
}

int fsobj_publish(struct fsobj_root *root, struct fsobj_file *file, bool if_absent,
		  struct fsobj_seen *seen)
{
	const char *leaf = file_leaf(file);
	int error = -EAGAIN;

	for (int attempt = 0; attempt < 3 && error == -EAGAIN; attempt++) {
		error = publish_new(root, file, leaf);
		if (error != -EEXIST)
			break;
		if (if_absent)
			error = exists_report(root, file, seen);
		else
			error = publish_replacing(root, file, leaf);
	}
	/* It came and went each time we looked. */
	return error == -EAGAIN ? -EEXIST : error;
}

int fsobj_folder_open(struct fsobj_root *root, const struct fsobj_file *file)
{
	int fd = openat(file->folder.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)root;
	return fd >= 0 ? fd : -errno;
}

void fsobj_close(struct fsobj_root *root, struct fsobj_file *file)
{
	char temp[FSOBJ_TEMP_BYTES];

	if (file->temp != 0) {
		fsobj_temp_name(root, file->temp, temp);
		(void)unlinkat(file->folder.fd, temp, 0);
		file->temp = 0;
	}
	if (file->fd >= 0)
		close(file->fd);
	file->fd = -1;
	fsobj_folder_put(root, &file->folder);
}

bool fsobj_unchanged(const struct fsobj_file *file, const struct fsobj_seen *seen)
{
	struct stat st;

	/* Not ctime: that changes when the name is taken away or goes to another file. */
	return fstat(file->fd, &st) == 0 && (uint64_t)st.st_size == seen->bytes &&
	       timespec_ns(&st.st_mtim) == seen->written_ns;
}

int fsobj_make_buffered(struct fsobj_file *file)
{
	if (fcntl(file->fd, F_SETFL, 0) != 0)
		return -errno;
	file->direct = false;
	return 0;
}

static bool same_version(const struct stat *st, const uint64_t version[2])
{
	struct fsobj_seen seen;

	seen_fill(&seen, st);
	return seen.version[0] == version[0] && seen.version[1] == version[1];
}

/* The same file as before a rename, which changes ctime on some file systems. */
static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Takes the object away under a temporary name, looks at what it got, and puts back what is not
 * the version meant: nothing can come between the look and the removal. */
static int remove_version(struct fsobj_root *root, int folder_fd, const char *leaf,
			  const uint64_t version[2])
{
	char temp[FSOBJ_TEMP_BYTES];
	struct stat before;
	struct stat after;
	int error;

	if (fstatat(folder_fd, leaf, &before, AT_SYMLINK_NOFOLLOW) != 0)
		return -errno;
	if (!same_version(&before, version))
		return -ESTALE;
	error = fsobj_lease_hold(root);
	if (error != 0)
		return error;
	(void)fsobj_temp_next(root, temp);
	if (renameat(folder_fd, leaf, folder_fd, temp) != 0)
		return -errno;
	fsobj_step(root, "remove.renamed");
	if (fstatat(folder_fd, temp, &after, AT_SYMLINK_NOFOLLOW) == 0 &&
	    !same_file(&before, &after)) {
		/* A newer one was published meanwhile: then that one stays instead. */
		(void)linkat(folder_fd, temp, folder_fd, leaf, 0);
		error = -ESTALE;
	}
	(void)unlinkat(folder_fd, temp, 0);
	return error;
}

int fsobj_remove(struct fsobj_root *root, const char *name, uint32_t name_bytes,
		 const uint64_t if_version[2])
{
	struct fsobj_folder folder;
	uint32_t folder_bytes;
	int error = fsobj_name_split(name, name_bytes, &folder_bytes);

	if (error == 0 && root->info.read_only)
		error = -EROFS;
	for (int attempt = 0; error == 0 && attempt < 3; attempt++) {
		const char *leaf = leaf_of(name, folder_bytes);
		bool gone;

		error = fsobj_folder_get(root, name, folder_bytes, false, &folder);
		if (error != 0)
			return error;
		if (if_version[0] != 0 || if_version[1] != 0)
			error = remove_version(root, folder.fd, leaf, if_version);
		else if (unlinkat(folder.fd, leaf, 0) != 0)
			error = -errno;
		gone = fsobj_folder_gone(root, &folder, error);
		fsobj_folder_put(root, &folder);
		if (!gone)
			break;
		error = attempt < 2 ? 0 : -ENOENT;
	}
	return error;
}
