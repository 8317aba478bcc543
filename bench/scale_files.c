/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a packed root, looked at from outside: sizes, page cache, boot id. */
#include "scale.h"

#include "common.h"

#include "core/packed_format.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDERS_OPEN 64
#define WRITE_BYTES  (4 << 20)

void scale_die(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fputs("bench_scale: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

double scale_median(const double *values, uint32_t count)
{
	double sorted[SCALE_OPENS] = { 0 };

	memcpy(sorted, values, count * sizeof(*sorted));
	bench_sort(sorted, count);
	return bench_quantile(sorted, count, 0.5);
}

double scale_per_object(const struct scale_result *result, uint64_t bytes)
{
	return result->live > 0 ? (double)bytes / (double)result->live : 0;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	(void)status;
	(void)kind;
	(void)at;
	return remove(path);
}

void scale_remove(const struct scale *scale)
{
	if (nftw(scale->folder, remove_entry, FOLDERS_OPEN, FTW_DEPTH | FTW_PHYS) != 0 &&
	    errno != ENOENT)
		scale_die("%s: %s", scale->folder, strerror(errno));
}

void scale_begin(struct scale *scale, uint64_t objects)
{
	scale->objects = objects;
	if (snprintf(scale->folder, sizeof(scale->folder), "%s/scale-%llu", scale->parent,
		     (unsigned long long)objects) >= (int)sizeof(scale->folder))
		scale_die("'%s': too long", scale->parent);
	scale_remove(scale);
	if (mkdir(scale->folder, 0700) != 0)
		scale_die("%s: %s", scale->folder, strerror(errno));
}

/* nftw() takes no context. */
static struct scale_result *files_result;

static int add_size(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	const char *name = path + at->base;

	if (kind != FTW_F)
		return 0;
	if (strncmp(name, "hdr.", 4) == 0 || strncmp(name, "table.", 6) == 0)
		files_result->index_bytes += (uint64_t)status->st_size;
	if (strncmp(name, "names.", 6) == 0)
		files_result->names_bytes += (uint64_t)status->st_size;
	return 0;
}

void scale_measure_files(const struct scale *scale, struct scale_result *result)
{
	files_result = result;
	if (nftw(scale->folder, add_size, FOLDERS_OPEN, FTW_PHYS) != 0)
		scale_die("%s: %s", scale->folder, strerror(errno));
}

static int forget(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	int fd;

	(void)status;
	(void)at;
	if (kind != FTW_F)
		return 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fdatasync(fd) != 0 ||
	    (errno = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) != 0)
		scale_die("%s: %s", path, strerror(errno));
	close(fd);
	return 0;
}

/* Nothing of the root is in the page cache any more. */
void scale_forget_pages(const struct scale *scale)
{
	sync();
	if (nftw(scale->folder, forget, FOLDERS_OPEN, FTW_PHYS) != 0)
		scale_die("%s: %s", scale->folder, strerror(errno));
}

static int write_zeros(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	static _Alignas(4096) unsigned char zeros[WRITE_BYTES];
	int fd;

	if (kind != FTW_F || strncmp(path + at->base, "seg.", 4) != 0)
		return 0;
	fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		scale_die("%s: %s", path, strerror(errno));
	for (off_t done = 0; done < status->st_size;) {
		off_t left = status->st_size - done;
		ssize_t got =
			pwrite(fd, zeros, left < WRITE_BYTES ? (size_t)left : WRITE_BYTES, done);

		if (got <= 0)
			scale_die("%s: %s", path, got < 0 ? strerror(errno) : "nothing written");
		done += got;
	}
	close(fd);
	return 0;
}

/* What the slots read as is written to them: a file system takes longer for the first write. */
void scale_write_slots(const struct scale *scale)
{
	if (nftw(scale->folder, write_zeros, FOLDERS_OPEN, FTW_PHYS) != 0)
		scale_die("%s: %s", scale->folder, strerror(errno));
	sync();
}

/* The root was used last before the machine started: by another boot id. */
void scale_change_boot(const struct scale *scale)
{
	uint64_t other[2] = { 1, 2 };
	char path[sizeof(scale->folder) + 64];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/" KVC_PACKED_FOLDER "/root.shm", scale->folder);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || pwrite(fd, other, sizeof(other), offsetof(struct kvc_packed_shm, boot_id)) !=
			      sizeof(other))
		scale_die("%s: %s", path, strerror(errno));
	close(fd);
}
