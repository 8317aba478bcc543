/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stats_page.h"

#include "core/format.h"
#include "core/log.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define UUID_DIGITS    32u
#define PID_DIGITS_MAX 10u

/* A page that is being made has this in front of its name; a dead one of an age is removed too. */
#define MAKING	     '.'
#define MAKING_AGE_S 60

const struct kvc_mapfile_kind kvc_page_kind = {
	.magic = { 'K', 'V', 'C', 'S', 'T', 'S', '\r', '\n' },
	.major = 1,
	.minor = 0,
	.header_bytes = KVC_PAGE_HEADER_BYTES,
	.file_bytes = KVC_PAGE_BYTES,
};

/* ---------------------------------------------------------------- making */

/* mkdir and open: an x for each r, whatever the umask says, as `mode` was asked for. */
static int open_folder(int parent, const char *name, mode_t mode)
{
	const mode_t folder_mode = mode | (mode & 0444) >> 2 | 0700;
	const bool made = mkdirat(parent, name, 0700) == 0;
	int fd;

	if (!made && errno != EEXIST)
		return -errno;
	fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (made && fchmod(fd, folder_mode) != 0) {
		const int rc = -errno;

		close(fd);
		return rc;
	}
	return fd;
}

int kvc_page_folder(const char *housekeeping, mode_t mode)
{
	const int above = open_folder(AT_FDCWD, housekeeping, mode);
	int fd;

	if (above < 0)
		return above;
	fd = open_folder(above, KVC_STATS_FOLDER, mode);
	close(above);
	return fd;
}

/* The name, with MAKING in front. */
static int make_name(char *name)
{
	uint8_t uuid[UUID_DIGITS / 2];
	int length;

	if (getrandom(uuid, sizeof(uuid), 0) != (ssize_t)sizeof(uuid))
		return -EIO;
	length = snprintf(name, KVC_PAGE_NAME_BYTES, "%c%d-", MAKING, (int)getpid());
	for (size_t i = 0; i < sizeof(uuid); i++)
		length += snprintf(name + length, KVC_PAGE_NAME_BYTES - (size_t)length, "%02x",
				   uuid[i]);
	return 0;
}

static int lock_page(int fd)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
}

static int fill_page(int fd, mode_t mode)
{
	struct kvc_page_header header = {
		.cell_count = htole32((uint32_t)KVC_PAGE_CELLS),
		.pid = htole32((uint32_t)getpid()),
	};
	uint8_t block[KVC_PAGE_HEADER_BYTES];
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	header.started_ns =
		(int64_t)htole64((uint64_t)(now.tv_sec * INT64_C(1000000000) + now.tv_nsec));
	memcpy(block, &header, sizeof(block));
	return kvc_mapfile_fill(fd, mode, &kvc_page_kind, block);
}

/* Locked before it has its name: nobody takes it for a dead one. */
int kvc_page_create(int folder, mode_t mode, char *name)
{
	char making[KVC_PAGE_NAME_BYTES];
	int fd, rc;

	rc = make_name(making);
	if (rc < 0)
		return rc;
	fd = openat(folder, making, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	rc = lock_page(fd);
	if (rc == 0)
		rc = fill_page(fd, mode);
	if (rc == 0 && renameat(folder, making, folder, making + 1) != 0)
		rc = -errno;
	if (rc < 0) {
		(void)unlinkat(folder, making, 0);
		close(fd);
		return rc;
	}
	memcpy(name, making + 1, KVC_PAGE_NAME_BYTES - 1);
	return fd;
}

/* ---------------------------------------------------------------- finding */

/* `<pid>-<32 hex>`, and its pid. */
static bool parse_name(const char *name, uint32_t *pid)
{
	uint64_t value = 0;
	size_t digits;

	digits = strspn(name, "0123456789");
	if (digits == 0 || digits > PID_DIGITS_MAX || name[digits] != '-')
		return false;
	for (size_t i = 0; i < digits; i++)
		value = 10 * value + (uint64_t)(name[i] - '0');
	name += digits + 1;
	if (value == 0 || value > INT32_MAX || strspn(name, "0123456789abcdef") != UUID_DIGITS ||
	    name[UUID_DIGITS] != '\0')
		return false;
	*pid = (uint32_t)value;
	return true;
}

static int open_page(int folder, const char *name, int flags, struct stat *st)
{
	/* O_NONBLOCK: a pipe of that name must not hold us up. */
	const int fd = openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode)) {
		close(fd);
		return -ENOMSG;
	}
	return fd;
}

/* Ours by its first bytes; a crash may have left it empty, or with no byte written. */
static bool looks_ours(int fd)
{
	static const char zeros[sizeof(kvc_page_kind.magic)];
	char start[sizeof(kvc_page_kind.magic)];
	const ssize_t n = pread(fd, start, sizeof(start), 0);

	return n == 0 || (n == (ssize_t)sizeof(start) &&
			  (memcmp(start, kvc_page_kind.magic, sizeof(start)) == 0 ||
			   memcmp(start, zeros, sizeof(start)) == 0));
}

static void reclaim_one(int folder, const char *name)
{
	const bool making = name[0] == MAKING;
	struct stat st;
	uint32_t pid;
	int fd;

	if (!parse_name(making ? name + 1 : name, &pid))
		return;
	fd = open_page(folder, name, O_RDWR, &st);
	if (fd < 0)
		return;
	if ((!making || time(NULL) - st.st_mtime >= MAKING_AGE_S) && lock_page(fd) == 0 &&
	    looks_ours(fd) && unlinkat(folder, name, 0) == 0)
		kvc_log(KVC_LOG_DEBUG, "stats page %s of a dead process: removed", name);
	close(fd);
}

void kvc_page_reclaim(int folder)
{
	const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *const entries = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!entries) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(entries)))
		reclaim_one(folder, entry->d_name);
	closedir(entries);
}

/* ---------------------------------------------------------------- reading */

static bool page_lives(int fd)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Read, not mapped: whatever happens to the file meanwhile is a short read. */
static int read_page(int fd, uint32_t pid, struct kvc_stats *out)
{
	uint8_t block[KVC_PAGE_BYTES];
	struct kvc_page_header header;
	uint64_t cells[KVC_PAGE_CELLS];
	size_t count;
	int rc;

	rc = kvc_mapfile_check(fd, &kvc_page_kind, block);
	if (rc < 0)
		return rc;
	memcpy(&header, block, sizeof(header));
	if (le32toh(header.pid) != pid)
		return -EBADMSG;
	if (pread(fd, block, sizeof(block), 0) != (ssize_t)sizeof(block))
		return -EBADMSG;
	count = le32toh(header.cell_count);
	if (count > KVC_PAGE_CELLS)
		count = KVC_PAGE_CELLS;
	memcpy(cells, block + sizeof(header), sizeof(cells));
	for (size_t i = 0; i < KVC_PAGE_CELLS; i++)
		cells[i] = i < count ? le64toh(cells[i]) : 0;
	memset(out, 0, sizeof(*out));
	out->size = sizeof(*out);
	memcpy((char *)out + offsetof(struct kvc_stats, operations), cells, sizeof(cells));
	return 0;
}

static int visit_page(int folder, const char *name, kvc_stats_page_fn fn, void *context)
{
	struct kvc_stats stats;
	struct stat st;
	uint32_t pid;
	int fd, rc;

	if (!parse_name(name, &pid))
		return 0;
	fd = open_page(folder, name, O_RDONLY, &st);
	if (fd < 0) {
		kvc_log(KVC_LOG_DEBUG, "stats page %s: %s", name, strerror(-fd));
		return 0;
	}
	rc = page_lives(fd) ? read_page(fd, pid, &stats) : -ESRCH;
	close(fd);
	if (rc < 0) {
		kvc_log(KVC_LOG_DEBUG, "stats page %s left out: %s", name, strerror(-rc));
		return 0;
	}
	return fn(context, (int)pid, &stats);
}

/* The folder of pages that `path` means: in the root, in $XDG_RUNTIME_DIR, in the housekeeping
 * folder, or itself. */
static int find_folder(const char *path)
{
	static const char *const below[] = {
		(KVC_HOUSEKEEPING_FOLDER "/" KVC_STATS_FOLDER),
		("kvcellar/" KVC_STATS_FOLDER),
		KVC_STATS_FOLDER,
	};
	const int top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (top < 0)
		return -errno;
	for (size_t i = 0; i < sizeof(below) / sizeof(below[0]); i++) {
		const int fd =
			openat(top, below[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		const int error = fd < 0 ? -errno : 0;

		if (fd >= 0 || error == -EACCES || error == -EMFILE || error == -ENFILE) {
			close(top);
			return fd >= 0 ? fd : error;
		}
	}
	return top;
}

int kvc_stats_pages(const char *path, kvc_stats_page_fn fn, void *context)
{
	const struct dirent *entry;
	DIR *entries;
	unsigned mark;
	int fd, rc = 0;

	if (!path || !fn)
		return kvc_fail(-EINVAL, "kvc_stats_pages: path and fn must be given");
	fd = find_folder(path);
	if (fd < 0)
		return kvc_fail(fd, "%s: its stats pages cannot be read: %s", path, strerror(-fd));
	entries = fdopendir(fd);
	if (!entries) {
		close(fd);
		return kvc_fail(-ENOMEM, "%s: its stats pages cannot be read", path);
	}
	mark = kvc_fail_mark();
	while (rc == 0 && (entry = readdir(entries)))
		rc = visit_page(fd, entry->d_name, fn, context);
	closedir(entries);
	return kvc_fail_since(mark, rc, "%s: reading its stats pages", path);
}
