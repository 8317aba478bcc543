/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stallfs SOURCE MOUNTPOINT CONTROL - a file system that shows the folder SOURCE, and does what the
 * words in the file CONTROL say at that moment:
 *   read, write   such calls do not return until the word is gone
 *   direct        open with O_DIRECT is refused with EINVAL
 *   eio           reads fail with EIO
 * CONTROL lies outside of the mount. Runs in the foreground until it is unmounted.
 */
#define FUSE_USE_VERSION 312
#include <fuse.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int source_fd;
static const char *control;

static bool told(const char *word)
{
	char text[256];
	ssize_t bytes;
	int fd = open(control, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	bytes = read(fd, text, sizeof(text) - 1);
	(void)close(fd);
	text[bytes > 0 ? bytes : 0] = '\0';
	return strstr(text, word) != NULL;
}

static void stall_while(const char *word)
{
	const struct timespec moment = { .tv_nsec = 5000000 };

	while (told(word))
		(void)nanosleep(&moment, NULL);
}

/* Paths come with a leading '/'. */
static const char *below(const char *path)
{
	return path[1] == '\0' ? "." : path + 1;
}

static int rc_of(int rc)
{
	return rc < 0 ? -errno : 0;
}

static void *fs_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
	(void)connection;
	config->kernel_cache = 0;
	config->entry_timeout = 0;
	config->attr_timeout = 0;
	config->negative_timeout = 0;
	return NULL;
}

static int fs_getattr(const char *path, struct stat *st, struct fuse_file_info *info)
{
	(void)info;
	return rc_of(fstatat(source_fd, below(path), st, AT_SYMLINK_NOFOLLOW));
}

static int fs_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
		      struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
	int fd = openat(source_fd, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *entry;

	(void)offset;
	(void)info;
	(void)flags;
	if (folder == NULL)
		return -errno;
	while ((entry = readdir(folder)) != NULL)
		(void)fill(buffer, entry->d_name, NULL, 0, 0);
	(void)closedir(folder);
	return 0;
}

static int fs_mkdir(const char *path, mode_t mode)
{
	return rc_of(mkdirat(source_fd, below(path), mode));
}

static int fs_unlink(const char *path)
{
	return rc_of(unlinkat(source_fd, below(path), 0));
}

static int fs_rmdir(const char *path)
{
	return rc_of(unlinkat(source_fd, below(path), AT_REMOVEDIR));
}

static int fs_rename(const char *from, const char *to, unsigned int flags)
{
	return rc_of(renameat2(source_fd, below(from), source_fd, below(to), flags));
}

static int fs_link(const char *from, const char *to)
{
	return rc_of(linkat(source_fd, below(from), source_fd, below(to), 0));
}

static int fs_chmod(const char *path, mode_t mode, struct fuse_file_info *info)
{
	if (info != NULL)
		return rc_of(fchmod((int)info->fh, mode));
	return rc_of(fchmodat(source_fd, below(path), mode, 0));
}

static int fs_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
	int fd;
	int rc;

	if (info != NULL)
		return rc_of(ftruncate((int)info->fh, size));
	fd = openat(source_fd, below(path), O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = rc_of(ftruncate(fd, size));
	(void)close(fd);
	return rc;
}

static int file_open(const char *path, int flags, mode_t mode, struct fuse_file_info *info)
{
	int fd;

	if ((info->flags & O_DIRECT) != 0 && told("direct"))
		return -EINVAL;
	fd = openat(source_fd, below(path), (flags & ~(O_DIRECT | O_NOFOLLOW)) | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	info->fh = (uint64_t)fd;
	info->direct_io = 1;
	return 0;
}

static int fs_open(const char *path, struct fuse_file_info *info)
{
	return file_open(path, info->flags, 0, info);
}

static int fs_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
	return file_open(path, info->flags | O_CREAT, mode, info);
}

static int fs_read(const char *path, char *buffer, size_t bytes, off_t offset,
		   struct fuse_file_info *info)
{
	ssize_t n;

	(void)path;
	stall_while("read");
	if (told("eio"))
		return -EIO;
	n = pread((int)info->fh, buffer, bytes, offset);
	return n < 0 ? -errno : (int)n;
}

static int fs_write(const char *path, const char *buffer, size_t bytes, off_t offset,
		    struct fuse_file_info *info)
{
	ssize_t n;

	(void)path;
	stall_while("write");
	n = pwrite((int)info->fh, buffer, bytes, offset);
	return n < 0 ? -errno : (int)n;
}

static int fs_release(const char *path, struct fuse_file_info *info)
{
	(void)path;
	return rc_of(close((int)info->fh));
}

static int fs_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
	(void)path;
	(void)data_only;
	return rc_of(fdatasync((int)info->fh));
}

static int fs_statfs(const char *path, struct statvfs *out)
{
	(void)path;
	return rc_of(fstatvfs(source_fd, out));
}

static const struct fuse_operations operations = {
	.init = fs_init,
	.getattr = fs_getattr,
	.readdir = fs_readdir,
	.mkdir = fs_mkdir,
	.unlink = fs_unlink,
	.rmdir = fs_rmdir,
	.rename = fs_rename,
	.link = fs_link,
	.chmod = fs_chmod,
	.truncate = fs_truncate,
	.open = fs_open,
	.create = fs_create,
	.read = fs_read,
	.write = fs_write,
	.release = fs_release,
	.fsync = fs_fsync,
	.statfs = fs_statfs,
};

int main(int argc, char **argv)
{
	char *arguments[] = { argv[0], (char *)(uintptr_t) "-f", NULL, NULL };

	if (argc != 4) {
		(void)fprintf(stderr, "usage: stallfs SOURCE MOUNTPOINT CONTROL\n");
		return 2;
	}
	source_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (source_fd < 0) {
		(void)fprintf(stderr, "stallfs: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	(void)umask(0);
	arguments[2] = argv[2];
	control = argv[3];
	return fuse_main(3, arguments, &operations, NULL);
}
