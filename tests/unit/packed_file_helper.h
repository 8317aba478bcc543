/* SPDX-License-Identifier: Apache-2.0 */
/* Roots, mapped files and locks for tests/unit/test_packed_{file,full,guard,lock}.c. */
#ifndef KVC_TESTS_PACKED_FILE_HELPER_H
#define KVC_TESTS_PACKED_FILE_HELPER_H

#include "counter_helper.h"

#include "core/packed_file.h"

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define UNDER_ADDRESS_SANITIZER true
#else
#define UNDER_ADDRESS_SANITIZER false
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER true
#else
#define UNDER_THREAD_SANITIZER false
#endif

#define FILE_PAGES  16u
#define PAGE_BYTES  4096u
#define TEST_HEADER 128u

static const struct kvc_mapfile_kind test_kind = {
	.magic = { 'K', 'V', 'C', 'T', 'S', 'T', '\r', '\n' },
	.major = 3,
	.minor = 1,
	.header_bytes = TEST_HEADER,
	.file_bytes = FILE_PAGES * PAGE_BYTES,
};

/* path NULL: memory. */
static inline struct kvc_packed_dir *open_dir(const char *path, uint8_t id, bool read_only)
{
	const struct kvc_packed_dir_params params = {
		.local_path = path,
		.uuid = { id, 1, 2 },
		.file_mode = 0640,
		.folder_mode = 0750,
		.read_only = read_only,
	};
	struct kvc_packed_dir *dir = NULL;

	assert_int_equal(kvc_packed_dir_open(&params, &dir), 0);
	assert_non_null(dir);
	return dir;
}

static inline int create_file(struct kvc_packed_dir *dir, const char *name)
{
	uint8_t header[TEST_HEADER] = { 0 };

	memcpy(header + 40, "own field", 9);
	return kvc_packed_map_create(dir, name, &test_kind, header);
}

/* Makes the file, and maps it. */
static inline void create_map(struct kvc_packed_dir *dir, const char *name, unsigned flags,
			      atomic_bool *broken, struct kvc_packed_map *out)
{
	assert_int_equal(create_file(dir, name), 0);
	assert_int_equal(kvc_packed_map_open(dir, name, &test_kind, NULL, flags, broken, out), 0);
	assert_int_equal(out->bytes, test_kind.file_bytes);
}

/* What anybody may do to a file that others have mapped. */
static inline void cut_file(struct kvc_packed_dir *dir, const char *name, off_t bytes)
{
	int fd = -1;

	assert_int_equal(kvc_packed_dir_file(dir, name, O_RDWR, &fd), 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	close(fd);
}

static inline int count_name(void *context, const char *name)
{
	(void)name;
	(*(int *)context)++;
	return 0;
}

#endif
