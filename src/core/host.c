/* SPDX-License-Identifier: Apache-2.0 */
#include "core/host.h"

#include "core/log.h"
#include "core/rootid.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define UUID_CHARS    36u
#define MACHINE_CHARS 32u

/* The first `chars` characters of a file that has at least that many. */
static int read_chars(const char *path, char *out, size_t chars)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t done = 0;
	int rc = 0;

	if (fd < 0)
		return -errno;
	while (!rc && done < chars) {
		const ssize_t n = read(fd, out + done, chars - done);

		if (n > 0)
			done += (size_t)n;
		else if (n == 0)
			rc = -ENODATA;
		else if (errno != EINTR)
			rc = -errno;
	}
	(void)close(fd);
	return rc;
}

int kvc_host_boot_id(uint64_t out[2])
{
	static const char path[] = "/proc/sys/kernel/random/boot_id";
	char text[UUID_CHARS + 1] = "";
	uint8_t uuid[16];
	int rc = read_chars(path, text, UUID_CHARS);

	if (!rc)
		rc = kvc_uuid_parse(text, uuid);
	if (rc)
		return kvc_fail(rc, "%s: %s", path, strerror(-rc));
	memcpy(out, uuid, sizeof(uuid));
	return 0;
}

void kvc_host_machine_id(uint8_t out[32])
{
	char text[MACHINE_CHARS];

	_Static_assert(sizeof(text) == 32, "machine id");
	if (read_chars("/etc/machine-id", text, sizeof(text)) != 0)
		memset(text, 0, sizeof(text));
	memcpy(out, text, sizeof(text));
}
