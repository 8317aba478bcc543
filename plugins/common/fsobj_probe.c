/* SPDX-License-Identifier: Apache-2.0 */
/* What a root's file system is and what it can do, found out by doing it. Nothing is left behind:
 * the probe's file has no name where O_TMPFILE works, and is removed otherwise. */
#include "common/fsobj_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PROBE_BYTES	    8192u
#define PROBE_ALIGNMENT_MAX 4096u

/* f_type of statfs(2), with the values of linux/magic.h and the file systems' own sources. */
static const struct {
	uint32_t magic;
	bool local;
	const char *name;
} file_systems[] = {
	{ 0xef53, true, "ext4" },	  { 0x58465342, true, "xfs" },
	{ 0x9123683e, true, "btrfs" },	  { 0x01021994, true, "tmpfs" },
	{ 0xf2f52010, true, "f2fs" },	  { 0x2fc12fc1, true, "zfs" },
	{ 0xca451a4e, true, "bcachefs" }, { 0x794c7630, true, "overlay" },
	{ 0x858458f6, true, "ramfs" },	  { 0x6969, false, "nfs" },
	{ 0x65735546, false, "fuse" },	  { 0xff534d42, false, "cifs" },
	{ 0xfe534d42, false, "smb2" },	  { 0x00c36400, false, "ceph" },
	{ 0x0bd00bd0, false, "lustre" },  { 0x01021997, false, "9p" },
	{ 0x47504653, false, "gpfs" },	  { 0x19830326, false, "beegfs" },
};

void fsobj_probe_file_system(int fd, struct fsobj_info *info)
{
	struct statfs fs;

	info->local = false;
	(void)snprintf(info->file_system, sizeof(info->file_system), "unknown");
	if (fstatfs(fd, &fs) != 0)
		return;
	(void)snprintf(info->file_system, sizeof(info->file_system), "0x%x",
		       (unsigned int)fs.f_type);
	for (size_t i = 0; i < sizeof(file_systems) / sizeof(file_systems[0]); i++) {
		if (file_systems[i].magic != (uint32_t)fs.f_type)
			continue;
		info->local = file_systems[i].local;
		(void)snprintf(info->file_system, sizeof(info->file_system), "%s",
			       file_systems[i].name);
	}
}

/* Opens a file for the probe; named is set when it got a name, which then is `name`. */
static int probe_file(struct fsobj_root *root, int folder_fd, const struct fsobj_probe_calls *calls,
		      int extra, char name[FSOBJ_TEMP_BYTES])
{
	const int flags = O_RDWR | O_CLOEXEC | extra;
	int fd;
	int error;

	name[0] = '\0';
	if (root->info.tmpfile) {
		fd = calls->openat(folder_fd, ".", flags | O_TMPFILE, root->file_mode);
		return fd >= 0 ? fd : -errno;
	}
	error = fsobj_lease_hold(root);
	if (error != 0)
		return error;
	(void)fsobj_temp_next(root, name);
	fd = calls->openat(folder_fd, name, flags | O_CREAT | O_EXCL | O_NOFOLLOW, root->file_mode);
	if (fd >= 0)
		return fd;
	error = -errno;
	/* A refusal of O_DIRECT may come after the file was made. */
	(void)unlinkat(folder_fd, name, 0);
	name[0] = '\0';
	return error;
}

static void probe_file_close(int folder_fd, int fd, const char *name)
{
	close(fd);
	if (name[0] != '\0')
		(void)unlinkat(folder_fd, name, 0);
}

/* Writes and reads back at `alignment`. NULL, or which step failed, with its error in *error. */
static const char *probe_round(int fd, const struct fsobj_probe_calls *calls, uint8_t *buffer,
			       uint32_t alignment, int *error)
{
	uint8_t *from = buffer + alignment;
	uint8_t *to = buffer + PROBE_BYTES + alignment;
	ssize_t n;

	for (uint32_t i = 0; i < alignment; i++)
		from[i] = (uint8_t)(i * 7 + 1);
	memset(to, 0, alignment);
	n = calls->pwrite(fd, from, alignment, alignment);
	if (n != (ssize_t)alignment) {
		*error = n < 0 ? -errno : -EIO;
		return "write";
	}
	n = calls->pread(fd, to, alignment, alignment);
	if (n != (ssize_t)alignment || memcmp(from, to, alignment) != 0) {
		*error = n < 0 ? -errno : -EIO;
		return "read";
	}
	return NULL;
}

static uint32_t alignment_told(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx stx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
	    (stx.stx_mask & STATX_DIOALIGN) != 0 && stx.stx_dio_mem_align != 0 &&
	    stx.stx_dio_offset_align != 0)
		return stx.stx_dio_mem_align > stx.stx_dio_offset_align ? stx.stx_dio_mem_align :
									  stx.stx_dio_offset_align;
#else
	(void)fd;
#endif
	return 512;
}

/* Tries O_DIRECT. Sets direct and alignment, or the note that says why not. */
static int probe_direct(struct fsobj_root *root, int folder_fd,
			const struct fsobj_probe_calls *calls, uint8_t *buffer)
{
	struct fsobj_info *info = &root->info;
	char name[FSOBJ_TEMP_BYTES];
	const char *step = "open";
	uint32_t alignment;
	int error = 0;
	int fd = probe_file(root, folder_fd, calls, O_DIRECT, name);

	if (fd >= 0) {
		alignment = alignment_told(fd);
		if (alignment < 512)
			alignment = 512;
		for (; alignment <= PROBE_ALIGNMENT_MAX; alignment *= 2) {
			step = probe_round(fd, calls, buffer, alignment, &error);
			if (step == NULL || error != -EINVAL)
				break;
		}
		probe_file_close(folder_fd, fd, name);
		if (step == NULL) {
			info->direct = true;
			info->alignment = alignment;
			return 0;
		}
	} else {
		error = fd;
	}
	/* Full is not unable: the probe has told nothing, use what such a file system can do. */
	if (error == -ENOSPC || error == -EDQUOT) {
		info->direct = true;
		info->alignment = PROBE_ALIGNMENT_MAX;
		return 0;
	}
	if (error == -EACCES || error == -EPERM || error == -EROFS || error == -EMFILE ||
	    error == -ENFILE || error == -ENOMEM)
		return error;
	(void)snprintf(info->note, sizeof(info->note),
		       "O_DIRECT refused by %s (%s: %s): I/O goes through the page cache",
		       info->file_system, step, strerror(-error));
	return 0;
}

/* Can a file without a name be given one? Nearly always: by /proc. Only without it a link is tried,
 * because that needs a lease and so leaves a folder in the root. */
static int probe_link(struct fsobj_root *root, int folder_fd, int fd)
{
	char name[FSOBJ_TEMP_BYTES];
	char proc[64];
	int error;

	root->info.tmpfile = true;
	(void)snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	if (access(proc, F_OK) == 0)
		return 0;
	error = fsobj_lease_hold(root);
	/* On a full file system no name can be tried: the common case is taken for granted. */
	if (error == -ENOSPC || error == -EDQUOT)
		return 0;
	if (error != 0)
		return error;
	(void)fsobj_temp_next(root, name);
	root->info.tmpfile = linkat(fd, "", folder_fd, name, AT_EMPTY_PATH) == 0;
	if (root->info.tmpfile)
		(void)unlinkat(folder_fd, name, 0);
	return 0;
}

/* Does O_TMPFILE work? */
static int probe_tmpfile(struct fsobj_root *root, int folder_fd,
			 const struct fsobj_probe_calls *calls)
{
	struct stat st;
	int error;
	int fd = calls->openat(folder_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, root->file_mode);

	if (fd < 0) {
		error = -errno;
		/* What is no refusal of O_TMPFILE itself would stop every other file, too. */
		if (error == -EACCES || error == -EPERM || error == -EROFS || error == -EMFILE ||
		    error == -ENFILE)
			return error;
		root->info.tmpfile = error == -ENOSPC || error == -EDQUOT;
		return 0;
	}
	root->chmod_files = fstat(fd, &st) == 0 && (st.st_mode & 07777) != root->file_mode;
	error = probe_link(root, folder_fd, fd);
	close(fd);
	return error;
}

/* A root that may not be written: nothing is made, and direct I/O is tried file by file. */
static void assume_read_only(struct fsobj_root *root)
{
	bool tmpfs = strcmp(root->info.file_system, "tmpfs") == 0;

	root->info.direct = root->direct_io && !tmpfs;
	root->info.alignment = root->info.direct ? PROBE_ALIGNMENT_MAX : 1;
}

int fsobj_probe_io(struct fsobj_root *root, int folder_fd, const struct fsobj_probe_calls *calls)
{
	void *buffer;
	int error;

	root->info.direct = false;
	root->info.alignment = 1;
	if (root->info.read_only) {
		assume_read_only(root);
		return 0;
	}
	error = probe_tmpfile(root, folder_fd, calls);
	if (error != 0 || !root->direct_io)
		return error;
	if (strcmp(root->info.file_system, "tmpfs") == 0 ||
	    strcmp(root->info.file_system, "ramfs") == 0)
		return 0; /* memory already: O_DIRECT opens there and gains nothing */
	if (posix_memalign(&buffer, PROBE_BYTES, 2 * PROBE_BYTES) != 0)
		return -ENOMEM;
	error = probe_direct(root, folder_fd, calls, buffer);
	root->info.presizes = root->info.direct && strcmp(root->info.file_system, "ext4") == 0;
	root->info.preallocates = root->info.presizes;
	if (root->info.direct && strcmp(root->info.file_system, "xfs") == 0)
		root->info.preallocates = true;
	free(buffer);
	return error;
}
