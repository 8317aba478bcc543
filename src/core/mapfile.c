/* SPDX-License-Identifier: Apache-2.0 */
#include "core/mapfile.h"

#include "core/crc.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		const ssize_t n = pwrite(fd, data + done, bytes - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return 0;
}

/* Bytes read, fewer than asked for at the end of the file. */
static ssize_t read_all(int fd, uint8_t *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		const ssize_t n = pread(fd, data + done, bytes - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

int kvc_mapfile_fill(int fd, mode_t mode, const struct kvc_mapfile_kind *kind, uint8_t *header)
{
	const size_t crc_at = kind->header_bytes - sizeof(uint32_t);
	struct kvc_mapfile_header common = {
		.major = htole16(kind->major),
		.minor = htole16(kind->minor),
		.header_bytes = htole32(kind->header_bytes),
		.file_bytes = htole64(kind->file_bytes),
	};
	uint32_t crc;
	int rc;

	memcpy(common.magic, kind->magic, sizeof(common.magic));
	memcpy(header, &common, sizeof(common));
	crc = htole32(kvc_crc32c(header, crc_at));
	memcpy(header + crc_at, &crc, sizeof(crc));
	if (fchmod(fd, mode) != 0)
		return -errno;
	do {
		rc = posix_fallocate(fd, 0, (off_t)kind->file_bytes);
	} while (rc == EINTR);
	if (rc != 0)
		return -rc;
	return write_all(fd, header, kind->header_bytes);
}

int kvc_mapfile_check(int fd, const struct kvc_mapfile_kind *kind, uint8_t *header)
{
	const size_t crc_at = kind->header_bytes - sizeof(uint32_t);
	struct kvc_mapfile_header common;
	struct stat st;
	uint32_t crc;
	ssize_t n;

	if (fstat(fd, &st) != 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOMSG;
	n = read_all(fd, header, kind->header_bytes);
	if (n < 0)
		return (int)n;
	if ((size_t)n < sizeof(common))
		return -ENOMSG;
	memcpy(&common, header, sizeof(common));
	if (memcmp(common.magic, kind->magic, sizeof(common.magic)) != 0)
		return -ENOMSG;
	if ((size_t)n < kind->header_bytes)
		return -EBADMSG;
	memcpy(&crc, header + crc_at, sizeof(crc));
	if (le32toh(crc) != kvc_crc32c(header, crc_at))
		return -EBADMSG;
	/* The sum is where it is in every major: damage is not taken for another one. */
	if (le16toh(common.major) != kind->major)
		return -EPROTONOSUPPORT;
	if (le32toh(common.header_bytes) != kind->header_bytes)
		return -EBADMSG;
	if (le64toh(common.file_bytes) != kind->file_bytes ||
	    (uint64_t)st.st_size < kind->file_bytes)
		return -EBADMSG;
	return 0;
}

/* fd -1: memory. */
static int map(int fd, const struct kvc_mapfile_kind *kind, void *at, void **out)
{
	const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *memory = mmap(at, kind->file_bytes, PROT_READ | PROT_WRITE,
			    flags | (at ? MAP_FIXED : 0), fd, 0);

	if (memory == MAP_FAILED)
		return -errno;
	*out = memory;
	return 0;
}

int kvc_mapfile_map(const struct kvc_mapfile_kind *kind, struct kvc_mapfile_mapping *mapping)
{
	mapping->guard = NULL;
	return map(-1, kind, NULL, &mapping->memory);
}

int kvc_mapfile_attach(int fd, const struct kvc_mapfile_kind *kind,
		       struct kvc_mapfile_mapping *mapping)
{
	int rc = 0;

	if (!mapping->guard)
		rc = kvc_guard_add(mapping->memory, kind->file_bytes, PROT_READ | PROT_WRITE, NULL,
				   &mapping->guard);
	if (rc == 0)
		rc = map(fd, kind, mapping->memory, &mapping->memory);
	if (rc == 0)
		kvc_guard_renew(mapping->guard);
	return rc;
}

int kvc_mapfile_detach(const struct kvc_mapfile_kind *kind, struct kvc_mapfile_mapping *mapping)
{
	return map(-1, kind, mapping->memory, &mapping->memory);
}

void kvc_mapfile_unmap(const struct kvc_mapfile_kind *kind, struct kvc_mapfile_mapping *mapping)
{
	if (!mapping->memory)
		return;
	if (mapping->guard)
		kvc_guard_remove(mapping->guard);
	(void)munmap(mapping->memory, kind->file_bytes);
	*mapping = (struct kvc_mapfile_mapping){ 0 };
}
