/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and usage on a full or read-only file system: memory takes the place of the file, and
 * nothing of a file stays. Mounts a small tmpfs, so it needs root; skipped otherwise. */
#include "counter_helper.h"

#include "core/stats.h"
#include "core/usage.h"

#include <sched.h>
#include <sys/mount.h>

/* In a mount namespace of its own: it is gone with the process, however that ends. */
static int mount_small(void **state)
{
	if (make_folder(state) != 0)
		return -1;
	return mount("tmpfs", folder, "tmpfs", 0, "size=64k,mode=0700");
}

static int unmount_small(void **state)
{
	(void)state;
	if (umount2(folder, MNT_DETACH) != 0)
		return -1;
	return rmdir(folder);
}

static void fill_disk(void)
{
	static const char zeros[4096];
	const int fd = open(in_folder("filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	while (write(fd, zeros, sizeof(zeros)) == (ssize_t)sizeof(zeros))
		;
	assert_int_equal(errno, ENOSPC);
	close(fd);
}

static void check_memory(void)
{
	struct kvc_stats stats = { .size = sizeof(stats) };
	struct kvc_counters *counters = NULL;
	struct kvc_usage_map *usage = NULL;
	uint64_t bytes = 0;

	assert_int_equal(kvc_counters_open(in_folder("h"), 0600, &counters), 0);
	assert_string_equal(kvc_counters_path(counters), "");
	for (int op = 0; op < KVC_OPERATION_COUNT; op++)
		kvc_counters_call(counters, op, 1);
	assert_int_equal(kvc_counters_read(counters, &stats), 0);
	assert_int_equal(stats.operations[KVC_REMOVE].calls, 1);
	kvc_counters_close(counters);

	assert_int_equal(kvc_usage_open(in_folder("h/usage"), 0600, &usage), 0);
	assert_false(kvc_usage_is_shared(usage));
	for (uint64_t ns = 1; ns <= KVC_USAGE_SLOTS; ns++)
		kvc_usage_add(usage, ns, 1, 1);
	kvc_usage_total(usage, &bytes, NULL);
	assert_int_equal(bytes, KVC_USAGE_SLOTS);
	kvc_usage_close(usage);
}

static void test_full(void **state)
{
	(void)state;
	assert_int_equal(mkdir(in_folder("h"), 0700), 0);
	assert_int_equal(mkdir(in_folder("h/stats"), 0700), 0);
	fill_disk();
	check_memory();
	assert_int_equal(count_entries(in_folder("h")), 1);
	assert_int_equal(count_entries(in_folder("h/stats")), 0);
}

/* Room for the first block of the usage file, not for all of it. */
static void test_nearly_full(void **state)
{
	struct kvc_usage_map *usage = NULL;

	(void)state;
	assert_int_equal(mkdir(in_folder("h"), 0700), 0);
	assert_int_equal(kvc_usage_open(in_folder("h/usage"), 0600, &usage), 0);
	assert_false(kvc_usage_is_shared(usage));
	assert_int_equal(count_entries(in_folder("h")), 0);
	/* Later there is room. */
	assert_int_equal(mount(NULL, folder, NULL, MS_REMOUNT, "size=1m"), 0);
	assert_int_equal(kvc_usage_check(usage), 1);
	assert_true(kvc_usage_is_shared(usage));
	kvc_usage_close(usage);
}

static void test_read_only(void **state)
{
	(void)state;
	assert_int_equal(mkdir(in_folder("h"), 0700), 0);
	assert_int_equal(mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, "size=64k"), 0);
	check_memory();
	assert_int_equal(mount(NULL, folder, NULL, MS_REMOUNT, "size=64k"), 0);
}

/* Filled after the files are mapped: their blocks are there, each counter can be written. */
static void test_full_later(void **state)
{
	struct kvc_stats stats = { .size = sizeof(stats) };
	struct kvc_counters *counters = NULL;
	struct kvc_usage_map *usage = NULL;
	uint64_t bytes = 0;

	(void)state;
	assert_int_equal(mount(NULL, folder, NULL, MS_REMOUNT, "size=256k"), 0);
	assert_int_equal(mkdir(in_folder("h"), 0700), 0);
	assert_int_equal(kvc_counters_open(in_folder("h"), 0600, &counters), 0);
	assert_string_not_equal(kvc_counters_path(counters), "");
	assert_int_equal(kvc_usage_open(in_folder("h/usage"), 0600, &usage), 0);
	assert_true(kvc_usage_is_shared(usage));
	fill_disk();
	kvc_counters_add(counters, KVC_COUNTER_USAGE_DRIFT, 5);
	assert_int_equal(kvc_counters_read(counters, &stats), 0);
	assert_int_equal(stats.usage_drift, 5);
	for (uint64_t ns = 1; ns <= KVC_USAGE_SLOTS + 1; ns++)
		kvc_usage_add(usage, ns, 1, 1);
	kvc_usage_total(usage, &bytes, NULL);
	assert_int_equal(bytes, KVC_USAGE_SLOTS + 1);
	kvc_usage_close(usage);
	kvc_counters_close(counters);
}

#define FULL_TEST(name) cmocka_unit_test_setup_teardown(name, mount_small, unmount_small)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FULL_TEST(test_full),
		FULL_TEST(test_nearly_full),
		FULL_TEST(test_read_only),
		FULL_TEST(test_full_later),
	};

	if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
		printf("SKIP: a tmpfs cannot be mounted: %s\n", strerror(errno));
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
