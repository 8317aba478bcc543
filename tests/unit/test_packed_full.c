/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped files on a full or read-only file system: an error, nothing is left over, and what is
 * mapped already can be written. Mounts a small tmpfs, so it needs root; skipped otherwise. */
#include "packed_file_helper.h"

#include "core/packed_dir.h"

#include <sched.h>
#include <sys/mount.h>

/* In a mount namespace of its own: it is gone with the process, however that ends. */
static int mount_small(void **state)
{
	if (make_folder(state) != 0)
		return -1;
	return mount("tmpfs", folder, "tmpfs", 0, "size=160k,mode=0700");
}

static int unmount_small(void **state)
{
	(void)state;
	if (umount2(folder, MNT_DETACH) != 0)
		return -1;
	return rmdir(folder);
}

/* Leaves less than this many bytes. */
static void fill_disk(size_t left)
{
	static const char zeros[4096];
	const int fd = open(in_folder("filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	struct stat st;

	assert_true(fd >= 0);
	while (write(fd, zeros, sizeof(zeros)) == (ssize_t)sizeof(zeros))
		;
	assert_int_equal(errno, ENOSPC);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(ftruncate(fd, st.st_size - (off_t)left), 0);
	close(fd);
}

/* From no room at all to one page less than needed. */
static void test_no_room(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;

	(void)state;
	for (size_t left = 0; left < test_kind.file_bytes; left += PAGE_BYTES) {
		fill_disk(left);
		assert_int_equal(create_file(dir, "a/map"), -ENOSPC);
		assert_int_equal(count_entries(in_folder("a")), 0);
		assert_int_equal(kvc_packed_map_open(dir, "a/map", &test_kind, NULL, 0, NULL, &map),
				 -ENOENT);
	}
	fill_disk(test_kind.file_bytes);
	create_map(dir, "a/map", 0, &broken, &map);
	/* Not a block is free now: each byte has its own all the same. */
	assert_int_equal(create_file(dir, "a/next"), -ENOSPC);
	memset((uint8_t *)map.memory + TEST_HEADER, 1, map.bytes - TEST_HEADER);
	assert_false(atomic_load(&broken));
	kvc_packed_map_close(&map);
	assert_int_equal(kvc_packed_map_open(dir, "a/map", &test_kind, NULL, 0, &broken, &map), 0);
	for (size_t i = TEST_HEADER; i < map.bytes; i++)
		assert_int_equal(((uint8_t *)map.memory)[i], 1);
	assert_false(atomic_load(&broken));
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

/* Where each file has a name from the beginning. */
static void test_no_room_named(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	uint8_t header[TEST_HEADER] = { 0 };
	struct kvc_packed_draft draft;

	(void)state;
	fill_disk(4 * PAGE_BYTES);
	assert_int_equal(kvc_packed_dir_draft(dir, "a/map", true, &draft), 0);
	assert_int_equal(kvc_mapfile_fill(draft.fd, 0600, &test_kind, header), -ENOSPC);
	assert_int_equal(count_entries(in_folder("a")), 1);
	kvc_packed_dir_drop(&draft);
	assert_int_equal(count_entries(in_folder("a")), 0);
	kvc_packed_dir_close(dir);
}

static void test_read_only(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	struct kvc_packed_lock *lock = NULL;

	(void)state;
	assert_int_equal(create_file(dir, "a/map"), 0);
	assert_int_equal(mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, "size=160k"), 0);
	assert_int_equal(create_file(dir, "a/next"), -EROFS);
	assert_int_equal(create_file(dir, "b/next"), -EROFS);
	assert_int_equal(kvc_packed_map_open(dir, "a/map", &test_kind, NULL, 0, NULL, &map),
			 -EROFS);
	assert_int_equal(kvc_packed_lock_open(dir, "a/lock", false, &lock), -EROFS);
	assert_int_equal(kvc_packed_map_open(dir, "a/map", &test_kind, NULL,
					     KVC_PACKED_MAP_READ_ONLY, NULL, &map),
			 0);
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

#define FULL_TEST(name) cmocka_unit_test_setup_teardown(name, mount_small, unmount_small)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FULL_TEST(test_no_room),
		FULL_TEST(test_no_room_named),
		FULL_TEST(test_read_only),
	};

	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
		printf("SKIP: a tmpfs cannot be mounted: %s\n", strerror(errno));
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
