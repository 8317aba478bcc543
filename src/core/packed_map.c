/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped files of a packed root. */
#include "core/packed_dir.h"

#include "core/guard.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES_MAX 4096u

/* ---------------------------------------------------------------- create */

static int create(struct kvc_packed_dir *dir, const char *name, bool named,
		  const struct kvc_mapfile_kind *kind, uint8_t *header)
{
	struct kvc_packed_draft draft;
	int rc = kvc_packed_dir_draft(dir, name, named, &draft);

	if (rc < 0)
		return rc;
	rc = kvc_mapfile_fill(draft.fd, kvc_packed_dir_file_mode(dir), kind, header);
	if (rc == 0)
		rc = kvc_packed_dir_publish(dir, name, &draft);
	kvc_packed_dir_drop(&draft);
	return rc;
}

int kvc_packed_map_create(struct kvc_packed_dir *dir, const char *name,
			  const struct kvc_mapfile_kind *kind, uint8_t *header)
{
	int rc;

	if (kind->header_bytes > HEADER_BYTES_MAX || kind->file_bytes < kind->header_bytes)
		return -EINVAL;
	rc = create(dir, name, false, kind, header);
	return rc == -ENOENT ? create(dir, name, true, kind, header) : rc;
}

/* ---------------------------------------------------------------- open */

/* The kind with the size that the header tells; whether that is right, the check says. */
static int kind_of_file(int fd, struct kvc_mapfile_kind *kind)
{
	struct kvc_mapfile_header common;
	ssize_t n;

	if (kind->file_bytes != 0)
		return 0;
	do {
		n = pread(fd, &common, sizeof(common), 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if ((size_t)n < sizeof(common))
		return -ENOMSG;
	kind->file_bytes = le64toh(common.file_bytes);
	return 0;
}

static int map_file(int fd, uint64_t bytes, unsigned flags, bool memory_file, atomic_bool *broken,
		    struct kvc_packed_map *out)
{
	const int protection = flags & KVC_PACKED_MAP_READ_ONLY ? PROT_READ :
								  PROT_READ | PROT_WRITE;
	const int kind = flags & KVC_PACKED_MAP_PRIVATE ? MAP_PRIVATE : MAP_SHARED;
	struct kvc_guard *guard;
	void *memory;
	int rc;

	memory = mmap(NULL, bytes, protection, kind, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	rc = kvc_guard_add(memory, bytes, protection, broken, &guard);
	if (rc < 0) {
		(void)munmap(memory, bytes);
		return rc;
	}
	*out = (struct kvc_packed_map){
		.memory = memory,
		.bytes = bytes,
		.fd = fd,
		.memory_file = memory_file,
		.broken = broken,
		.guard = guard,
	};
	return 0;
}

int kvc_packed_map_open(struct kvc_packed_dir *dir, const char *name,
			const struct kvc_mapfile_kind *kind, uint8_t *header, unsigned flags,
			atomic_bool *broken, struct kvc_packed_map *out)
{
	const bool shared_writes = !(flags & (KVC_PACKED_MAP_READ_ONLY | KVC_PACKED_MAP_PRIVATE));
	struct kvc_mapfile_kind actual = *kind;
	uint8_t checked[HEADER_BYTES_MAX];
	int fd, rc;

	if (kind->header_bytes > sizeof(checked))
		return -EINVAL;
	rc = kvc_packed_dir_file(dir, name, shared_writes ? O_RDWR : O_RDONLY, &fd);
	if (rc < 0)
		return rc;
	rc = kind_of_file(fd, &actual);
	if (rc == 0)
		rc = kvc_mapfile_check(fd, &actual, checked);
	if (rc == 0 && actual.file_bytes < actual.header_bytes)
		rc = -EBADMSG;
	if (rc == 0)
		rc = map_file(fd, actual.file_bytes, flags, kvc_packed_dir_is_memory(dir), broken,
			      out);
	if (rc == -EPROTONOSUPPORT && header)
		memcpy(header, checked, sizeof(struct kvc_mapfile_header));
	if (rc < 0) {
		(void)close(fd);
		return rc;
	}
	if (header)
		memcpy(header, checked, kind->header_bytes);
	return 0;
}

int kvc_packed_map_zeros(uint64_t bytes, struct kvc_packed_map *out)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return -errno;
	*out = (struct kvc_packed_map){ .memory = memory, .bytes = bytes, .fd = -1 };
	return 0;
}

void kvc_packed_map_close_fd(struct kvc_packed_map *map)
{
	if (!map->memory || map->fd < 0)
		return;
	(void)close(map->fd);
	map->fd = -1;
}

void kvc_packed_map_close(struct kvc_packed_map *map)
{
	if (!map->memory)
		return;
	if (map->guard)
		kvc_guard_remove(map->guard);
	(void)munmap(map->memory, map->bytes);
	kvc_packed_map_close_fd(map);
	*map = (struct kvc_packed_map){ .fd = -1 };
}

bool kvc_packed_map_removed(const struct kvc_packed_map *map)
{
	struct stat st;

	if (fstat(map->fd, &st) != 0)
		return false;
	if (map->broken && (uint64_t)st.st_size < map->bytes)
		atomic_store(map->broken, true);
	return map->memory_file ? kvc_packed_memory_removed(st.st_mode) : st.st_nlink == 0;
}
