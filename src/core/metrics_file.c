/* SPDX-License-Identifier: Apache-2.0 */
/* The file that a node exporter's textfile collector reads. */
#include "core/stats.h"

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_all(int fd, const char *text, size_t bytes)
{
	while (bytes > 0) {
		const ssize_t n = write(fd, text, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* The name does not end in .prom: the collector must not read it. */
static int write_beside(const char *path, const char *text, size_t bytes)
{
	static const char suffix[] = ".XXXXXX";
	const size_t name_bytes = strlen(path) + sizeof(suffix);
	char *name = malloc(name_bytes);
	int fd, rc;

	if (!name)
		return -ENOMEM;
	(void)snprintf(name, name_bytes, "%s%s", path, suffix);
	fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
		goto free_name;
	}
	rc = write_all(fd, text, bytes);
	if (rc == 0 && fchmod(fd, 0644) != 0)
		rc = -errno;
	if (close(fd) != 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && rename(name, path) != 0)
		rc = -errno;
	if (rc < 0)
		(void)unlink(name);
free_name:
	free(name);
	return rc;
}

int kvc_metrics_write(const char *path, const char *text, size_t bytes)
{
	struct stat st;
	int rc;

	/* rename() would replace a device or pipe as well. */
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
		return kvc_fail(-EINVAL, "metrics_file %s is no regular file", path);
	rc = write_beside(path, text, bytes);
	if (rc < 0)
		return kvc_fail(rc, "metrics_file %s cannot be written: %s", path, strerror(-rc));
	return 0;
}
