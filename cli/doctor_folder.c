/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: the folder of a root as the system sees it. */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SHM_SMALL (UINT64_C(1) << 30)

/* What is not there. The first process that stores makes the last folder, and no other. */
void doctor_check_missing(struct doctor *doctor, const char *path, int error)
{
	const char *slash = strrchr(path, '/');
	char *above = !slash ? strdup(".") :
			       strndup(path, slash > path ? (size_t)(slash - path) : 1);
	const bool has_place = above && error == ENOENT && access(above, W_OK | X_OK) == 0;

	if (has_place)
		doctor_add(doctor, DOCTOR_WARNING, "folder",
			   "nothing, when it is a new store: the first process that stores makes "
			   "it; else correct storage_dirs, or mount its disk",
			   "does not exist");
	else
		doctor_add(doctor, DOCTOR_PROBLEM, "folder",
			   error == ENOENT ? "mkdir -p it, if the path is right and its disk is "
					     "mounted" :
			   error == EACCES ? "give the user of the server search permission to the "
					     "folders above it" :
			   error == ENOTDIR ? "correct storage_dirs: something in the path is no "
					      "folder" :
					      "look at the disk, and at the log of the kernel",
			   "%s", strerror(error));
	free(above);
}

void doctor_check_link(struct doctor *doctor, const char *path)
{
	const char *origin = json_string_value(json_object_get(
		json_object_get(json_object_get(doctor->effective, "options"), "storage_dirs"),
		"origin"));
	const bool by_default = origin && strcmp(origin, "default") == 0;
	char target[PATH_MAX];
	ssize_t n = readlink(path, target, sizeof(target) - 1);

	if (n < 0)
		return;
	target[n] = '\0';
	if (by_default)
		doctor_add(
			doctor, DOCTOR_PROBLEM, "symlink",
			"remove it, or name the folder itself in storage_dirs",
			"the default folder is a symlink to %s, which anybody may have put there",
			target);
	else
		doctor_add(doctor, DOCTOR_OK, "symlink", NULL, "to %s", target);
}

static void check_owner(struct doctor *doctor, const struct stat *st)
{
	const mode_t mode = st->st_mode & 07777;

	if (mode & S_IWOTH)
		doctor_add(doctor, DOCTOR_WARNING, "mode", "chmod o-w it",
			   "%04o: everybody may put pages there, and remove them", mode);
	else if (st->st_uid != geteuid() && st->st_gid != getegid())
		doctor_add(doctor, DOCTOR_WARNING, "owner",
			   "run the server as that user, or share the folder by its primary group "
			   "with mode = \"0660\"",
			   "belongs to user %u, group %u; this is user %u, group %u",
			   (unsigned)st->st_uid, (unsigned)st->st_gid, (unsigned)geteuid(),
			   (unsigned)getegid());
	else
		doctor_add(doctor, DOCTOR_OK, "mode", NULL, "%04o, user %u, group %u", mode,
			   (unsigned)st->st_uid, (unsigned)st->st_gid);
}

static void check_access(struct doctor *doctor, int fd, const struct statvfs *fs)
{
	const enum doctor_status bad = doctor->read_only ? DOCTOR_OK : DOCTOR_PROBLEM;
	char self[32];

	(void)snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	if (fs->f_flag & ST_RDONLY)
		doctor_add(doctor, bad, "access",
			   doctor->read_only ?
				   NULL :
				   "mount it for writing; doctor --read-only when it is only to be "
				   "read",
			   "the file system is mounted read-only: nothing is stored there");
	else if (faccessat(AT_FDCWD, self, R_OK | W_OK | X_OK, AT_EACCESS) == 0)
		doctor_add(doctor, DOCTOR_OK, "access", NULL, "can be read and written");
	else if (faccessat(AT_FDCWD, self, R_OK | X_OK, AT_EACCESS) == 0)
		doctor_add(doctor, bad, "access",
			   doctor->read_only ? NULL :
					       "give user or group of the server write permission",
			   "cannot be written: %s", strerror(errno));
	else
		doctor_add(doctor, DOCTOR_PROBLEM, "access",
			   "give user or group of the server all permissions to it",
			   "cannot be read: %s", strerror(errno));
}

static const char *file_system_name(long type)
{
	static const struct {
		long type;
		const char *name;
	} known[] = {
		{ EXT4_SUPER_MAGIC, "ext4" },	{ 0x58465342, "xfs" },
		{ BTRFS_SUPER_MAGIC, "btrfs" }, { TMPFS_MAGIC, "tmpfs" },
		{ RAMFS_MAGIC, "ramfs" },	{ OVERLAYFS_SUPER_MAGIC, "overlayfs" },
		{ NFS_SUPER_MAGIC, "nfs" },	{ 0xFF534D42, "cifs" },
		{ 0xFE534D42, "smb" },		{ 0x65735546, "fuse" },
		{ 0x00C36400, "ceph" },		{ 0x0BD00BD0, "lustre" },
		{ 0x47504653, "gpfs" },		{ 0x2FC12FC1, "zfs" },
		{ F2FS_SUPER_MAGIC, "f2fs" },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].type == type)
			return known[i].name;
	return NULL;
}

static bool is_of_network(const char *name)
{
	static const char *const names[] = {
		"nfs", "cifs", "smb", "fuse", "ceph", "lustre", "gpfs"
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

static void check_file_system(struct doctor *doctor, int fd, const struct statvfs *fs)
{
	const uint64_t total = (uint64_t)fs->f_blocks * fs->f_frsize;
	char size[CLI_FORMAT_BYTES];
	struct statfs kind;
	const char *name;

	if (fstatfs(fd, &kind) != 0)
		return;
	name = file_system_name((long)kind.f_type & 0xFFFFFFFFL);
	if (!name)
		doctor_add(doctor, DOCTOR_OK, "file_system", NULL, "type %#lx",
			   (unsigned long)kind.f_type);
	else if (strcmp(name, "overlayfs") == 0)
		doctor_add(doctor, DOCTOR_WARNING, "file_system", "mount a volume there",
			   "overlayfs: the layer of a container, which goes with it and has no "
			   "direct I/O");
	else if (strcmp(name, "ramfs") == 0)
		doctor_add(doctor, DOCTOR_PROBLEM, "file_system",
			   "use tmpfs with a size, or a disk",
			   "ramfs has no limit: it takes all memory");
	else if (strcmp(name, "tmpfs") == 0)
		doctor_add(doctor, DOCTOR_WARNING, "file_system",
			   total < SHM_SMALL ?
				   "give it more (mount -o size=, --shm-size), or use a "
				   "disk" :
				   "use a disk, when pages are to outlive a reboot",
			   "tmpfs of %s: it takes memory, and a reboot empties it",
			   cli_format_size(size, total));
	else if (is_of_network(name))
		doctor_add(doctor, DOCTOR_OK, "file_system", NULL,
			   "%s: files layout only, deadlines by staging", name);
	else
		doctor_add(doctor, DOCTOR_OK, "file_system", NULL, "%s", name);
}

void doctor_check_folder(struct doctor *doctor, int fd, const struct stat *st,
			 const struct statvfs *fs)
{
	check_owner(doctor, st);
	check_access(doctor, fd, fs);
	check_file_system(doctor, fd, fs);
}
