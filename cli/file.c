/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)1 << 20)
#define ALIGNMENT   4096

static uint64_t machine_memory(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);

	return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : UINT64_MAX;
}

/* An object is stored in one call, so it must fit into memory. */
static int too_large(struct kvc_cli *cli, const char *path)
{
	char size[CLI_FORMAT_BYTES];

	return cli_error(cli, CLI_IO,
			 "%s: larger than the %s of memory here; an object is held "
			 "in memory as a whole",
			 path, cli_format_size(size, machine_memory()));
}

static int no_memory(struct kvc_cli *cli, const char *path, size_t bytes)
{
	char size[CLI_FORMAT_BYTES];

	return cli_fail_errno(cli, -ENOMEM,
			      "%s: no %s for it; an object is held in memory as a whole", path,
			      cli_format_size(size, bytes));
}

/* Room for at least one byte more: all of the memory here only when it is used up to there. */
static int grow(struct kvc_cli *cli, const char *path, char **data, size_t used, size_t wanted,
		size_t *capacity)
{
	const uint64_t limit = machine_memory();
	char *grown;

	if (used >= limit)
		return too_large(cli, path);
	if (wanted > limit)
		wanted = limit;
	wanted = (wanted / ALIGNMENT + 1) * ALIGNMENT;
	grown = aligned_alloc(ALIGNMENT, wanted);
	if (!grown)
		return no_memory(cli, path, wanted);
	if (*data)
		memcpy(grown, *data, used);
	free(*data);
	*data = grown;
	*capacity = wanted;
	return 0;
}

static int read_all(struct kvc_cli *cli, const char *path, int fd, size_t expected, char **out_data,
		    size_t *out_bytes)
{
	char *data = NULL;
	size_t capacity = 0, used = 0;
	ssize_t got;
	int rc;

	/* A file is as long as it says, and one read more finds its end; a pipe begins small. */
	rc = grow(cli, path, &data, 0, expected ? expected : CHUNK_BYTES, &capacity);
	while (rc == 0) {
		if (cli_interrupted()) {
			rc = CLI_INTERRUPTED;
			break;
		}
		got = read(fd, data + used, capacity - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			rc = cli_fail_errno(cli, -errno, "cannot read %s", path);
			break;
		}
		if (got == 0)
			break;
		used += (size_t)got;
		if (used == capacity)
			rc = grow(cli, path, &data, used, capacity + capacity / 2, &capacity);
	}
	if (rc) {
		free(data);
		return rc;
	}
	*out_data = data;
	*out_bytes = used;
	return 0;
}

int cli_file_read(struct kvc_cli *cli, const char *path, char **out_data, size_t *out_bytes)
{
	bool standard = strcmp(path, "-") == 0;
	struct stat status;
	int fd = STDIN_FILENO, rc;

	if (!standard)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return cli_fail_file(cli, -errno, path);
	if (fstat(fd, &status) < 0)
		status.st_size = 0;
	else if (S_ISDIR(status.st_mode) && !standard) {
		(void)close(fd);
		return cli_fail_file(cli, -EISDIR, path);
	} else if (S_ISREG(status.st_mode) && (uint64_t)status.st_size > machine_memory())
		status.st_size = -1;
	if (status.st_size < 0)
		rc = too_large(cli, path);
	else
		rc = read_all(cli, standard ? "standard input" : path, fd, (size_t)status.st_size,
			      out_data, out_bytes);
	if (!standard)
		(void)close(fd);
	return rc;
}

static int write_all(int fd, const char *data, size_t bytes)
{
	while (bytes) {
		ssize_t put;

		if (cli_interrupted())
			return -EINTR;
		put = write(fd, data, bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		data += put;
		bytes -= (size_t)put;
	}
	return 0;
}

static int write_standard(struct kvc_cli *cli, const char *data, size_t bytes)
{
	int rc = write_all(STDOUT_FILENO, data, bytes);

	if (rc == 0)
		return 0;
	if (cli_interrupted())
		return CLI_INTERRUPTED;
	return rc == -EPIPE ? CLI_IO : cli_fail_errno(cli, rc, "standard output");
}

static int write_in_place(struct kvc_cli *cli, const char *path, const char *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY), rc;

	if (fd < 0)
		return cli_fail_file(cli, -errno, path);
	rc = write_all(fd, data, bytes);
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == -EINTR)
		return CLI_INTERRUPTED;
	return rc < 0 ? cli_fail_errno(cli, rc, "cannot write '%s'", path) : 0;
}

/* A new file beside the target takes its name once it is whole. */
static int write_replacing(struct kvc_cli *cli, const char *path, mode_t mode, const char *data,
			   size_t bytes)
{
	char *temporary = NULL;
	int fd, rc;

	if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
		return cli_fail_errno(cli, -ENOMEM, "%s", path);
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0) {
		rc = cli_fail_file(cli, -errno, path);
		goto free_name;
	}
	rc = fchmod(fd, mode) < 0 ? -errno : write_all(fd, data, bytes);
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && rename(temporary, path) < 0)
		rc = -errno;
	if (rc < 0) {
		(void)unlink(temporary);
		rc = cli_interrupted() ? CLI_INTERRUPTED :
					 cli_fail_errno(cli, rc, "cannot write '%s'", path);
	}
free_name:
	free(temporary);
	return rc;
}

int cli_file_write(struct kvc_cli *cli, const char *path, const char *data, size_t bytes)
{
	struct stat status;
	mode_t mask;

	if (strcmp(path, "-") == 0)
		return write_standard(cli, data, bytes);
	if (lstat(path, &status) == 0) {
		if (!S_ISREG(status.st_mode))
			return write_in_place(cli, path, data, bytes);
		return write_replacing(cli, path, status.st_mode & 0777, data, bytes);
	}
	mask = umask(0);
	(void)umask(mask);
	return write_replacing(cli, path, 0666 & ~mask, data, bytes);
}
