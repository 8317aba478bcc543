/* SPDX-License-Identifier: Apache-2.0 */
/* core/packed_file.h: locks on single bytes, between openings, processes and after a death. */
#include "packed_file_helper.h"

#include "core/clock.h"

#include <pthread.h>
#include <signal.h>

#define WHILE_NS UINT64_C(30000000) /* for waits that end in vain */

static struct kvc_packed_lock *open_lock(struct kvc_packed_dir *dir, bool read_only)
{
	struct kvc_packed_lock *lock = NULL;

	assert_int_equal(kvc_packed_lock_open(dir, "h/root.lock", read_only, &lock), 0);
	return lock;
}

/* ---------------------------------------------------------------- two openings */

static void check_two_openings(struct kvc_packed_dir *dir)
{
	struct kvc_packed_lock *a = open_lock(dir, false), *b = open_lock(dir, false);

	assert_int_equal(kvc_packed_lock_try(a, 0, false), 0);
	assert_int_equal(kvc_packed_lock_try(b, 0, false), 0);
	assert_int_equal(kvc_packed_lock_try(a, 0, true), -EAGAIN);
	/* What cannot be converted stays as it was. */
	assert_int_equal(kvc_packed_lock_try(b, 0, true), -EAGAIN);
	kvc_packed_lock_release(b, 0);
	assert_int_equal(kvc_packed_lock_try(a, 0, true), 0);
	assert_int_equal(kvc_packed_lock_try(a, 0, true), 0);
	assert_int_equal(kvc_packed_lock_try(b, 0, false), -EAGAIN);
	assert_int_equal(kvc_packed_lock_try(b, 0, true), -EAGAIN);
	assert_int_equal(kvc_packed_lock_try(a, 0, false), 0);
	assert_int_equal(kvc_packed_lock_try(b, 0, false), 0);
	/* Bytes have nothing to do with each other. */
	assert_int_equal(kvc_packed_lock_try(a, 16, true), 0);
	assert_int_equal(kvc_packed_lock_try(b, 15, true), 0);
	assert_int_equal(kvc_packed_lock_try(b, 17, true), 0);
	assert_int_equal(kvc_packed_lock_try(b, 255, true), 0);
	assert_int_equal(kvc_packed_lock_try(a, 255, false), -EAGAIN);
	assert_int_equal(kvc_packed_lock_try(b, 16, false), -EAGAIN);
	kvc_packed_lock_release(a, 16);
	assert_int_equal(kvc_packed_lock_try(b, 16, false), 0);
	/* Releasing what is not held is nothing. */
	kvc_packed_lock_release(a, 16);
	assert_int_equal(kvc_packed_lock_try(a, 16, true), -EAGAIN);
	/* All that an opening held ends with it. */
	kvc_packed_lock_close(b);
	assert_int_equal(kvc_packed_lock_try(a, 16, true), 0);
	assert_int_equal(kvc_packed_lock_try(a, 255, true), 0);
	kvc_packed_lock_close(a);
	kvc_packed_lock_close(NULL);
	kvc_packed_dir_close(dir);
}

static void test_two_openings(void **state)
{
	(void)state;
	check_two_openings(open_dir(folder, 0, false));
	check_two_openings(open_dir(NULL, 1, false));
}

static void check_another_file(struct kvc_packed_dir *dir, struct kvc_packed_dir *other)
{
	struct kvc_packed_lock *a = open_lock(dir, false), *b = open_lock(other, false);

	assert_int_equal(kvc_packed_lock_try(a, 3, true), 0);
	assert_int_equal(kvc_packed_lock_try(b, 3, true), 0);
	kvc_packed_lock_close(a);
	kvc_packed_lock_close(b);
	kvc_packed_dir_close(other);
	kvc_packed_dir_close(dir);
}

static void test_another_file(void **state)
{
	(void)state;
	assert_int_equal(mkdir(in_folder("x"), 0700), 0);
	check_another_file(open_dir(folder, 0, false), open_dir(in_folder("x"), 0, false));
	check_another_file(open_dir(NULL, 2, false), open_dir(NULL, 3, false));
}

static void check_read_only(struct kvc_packed_dir *dir, struct kvc_packed_dir *reading)
{
	struct kvc_packed_lock *reader = NULL, *writer;

	assert_int_equal(kvc_packed_lock_open(reading, "h/root.lock", true, &reader), -ENOENT);
	assert_int_equal(kvc_packed_lock_open(reading, "h/root.lock", false, &reader), -EROFS);
	assert_null(reader);
	writer = open_lock(dir, false);
	reader = open_lock(reading, true);
	assert_int_equal(kvc_packed_lock_try(reader, 0, true), -EROFS);
	assert_int_equal(kvc_packed_lock_wait(reader, 0, true, 0), -EROFS);
	assert_int_equal(kvc_packed_lock_try(reader, 0, false), 0);
	assert_int_equal(kvc_packed_lock_try(writer, 0, true), -EAGAIN);
	kvc_packed_lock_release(reader, 0);
	assert_int_equal(kvc_packed_lock_try(writer, 0, true), 0);
	assert_int_equal(kvc_packed_lock_try(reader, 0, false), -EAGAIN);
	kvc_packed_lock_close(reader);
	kvc_packed_lock_close(writer);
	kvc_packed_dir_close(reading);
	kvc_packed_dir_close(dir);
}

static void test_read_only(void **state)
{
	(void)state;
	check_read_only(open_dir(folder, 0, false), open_dir(folder, 0, true));
	check_read_only(open_dir(NULL, 4, false), open_dir(NULL, 4, true));
}

/* ---------------------------------------------------------------- waiting */

struct waiter {
	pthread_t thread;
	struct kvc_packed_lock *lock;
	int rc;
};

static void *wait_long(void *argument)
{
	struct waiter *const waiter = argument;

	waiter->rc =
		kvc_packed_lock_wait(waiter->lock, 1, true, kvc_now_ns() + UINT64_C(60000000000));
	return NULL;
}

static void check_wait(struct kvc_packed_dir *dir)
{
	struct kvc_packed_lock *a = open_lock(dir, false), *b = open_lock(dir, false);
	struct waiter waiter = { .lock = b, .rc = 1 };
	const uint64_t deadline_ns = kvc_now_ns() + WHILE_NS;
	const struct timespec pause = kvc_timespec(WHILE_NS);

	assert_int_equal(kvc_packed_lock_wait(a, 1, true, 0), 0);
	assert_int_equal(kvc_packed_lock_wait(b, 1, true, 0), -ETIMEDOUT);
	assert_int_equal(kvc_packed_lock_wait(b, 1, true, deadline_ns), -ETIMEDOUT);
	assert_true(kvc_now_ns() >= deadline_ns);
	assert_int_equal(pthread_create(&waiter.thread, NULL, wait_long, &waiter), 0);
	(void)nanosleep(&pause, NULL);
	kvc_packed_lock_release(a, 1);
	assert_int_equal(pthread_join(waiter.thread, NULL), 0);
	assert_int_equal(waiter.rc, 0);
	assert_int_equal(kvc_packed_lock_try(a, 1, true), -EAGAIN);
	kvc_packed_lock_close(a);
	kvc_packed_lock_close(b);
	kvc_packed_dir_close(dir);
}

static void test_wait(void **state)
{
	(void)state;
	check_wait(open_dir(folder, 0, false));
	check_wait(open_dir(NULL, 5, false));
}

/* ---------------------------------------------------------------- processes */

/* A child that does what fn says, tells so, and waits for its end. */
static pid_t start_child(int (*fn)(struct kvc_packed_lock *inherited),
			 struct kvc_packed_lock *inherited)
{
	int pipe_fds[2];
	uint8_t byte = 1;
	pid_t pid;

	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		byte = (uint8_t)fn(inherited);
		if (write(pipe_fds[1], &byte, 1) != 1)
			_exit(1);
		(void)pause();
		_exit(1);
	}
	assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
	assert_int_equal(byte, 0);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	return pid;
}

static void kill_child(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static int take_own(struct kvc_packed_lock *inherited)
{
	struct kvc_packed_lock *own = open_lock(open_dir(folder, 0, false), false);

	(void)inherited;
	return kvc_packed_lock_try(own, 20, true) | kvc_packed_lock_try(own, 0, false);
}

static void test_dead_process(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_lock *lock = open_lock(dir, false);
	const pid_t pid = start_child(take_own, lock);

	(void)state;
	assert_int_equal(kvc_packed_lock_try(lock, 20, true), -EAGAIN);
	assert_int_equal(kvc_packed_lock_try(lock, 0, true), -EAGAIN);
	assert_int_equal(kvc_packed_lock_try(lock, 21, true), 0);
	kill_child(pid);
	assert_int_equal(kvc_packed_lock_try(lock, 20, true), 0);
	assert_int_equal(kvc_packed_lock_try(lock, 0, true), 0);
	kvc_packed_lock_close(lock);
	kvc_packed_dir_close(dir);
}

static int use_inherited(struct kvc_packed_lock *inherited)
{
	if (kvc_packed_lock_try(inherited, 20, false) != -ESTALE ||
	    kvc_packed_lock_wait(inherited, 20, true, 0) != -ESTALE)
		return 1;
	kvc_packed_lock_release(inherited, 20);
	return 0;
}

static int close_inherited(struct kvc_packed_lock *inherited)
{
	kvc_packed_lock_close(inherited);
	return 0;
}

/* Whatever a child does, and when it ends: the parent's lock stays the parent's. */
static void test_child_takes_nothing(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_lock *lock = open_lock(dir, false), *other = open_lock(dir, false);

	(void)state;
	assert_int_equal(kvc_packed_lock_try(lock, 20, true), 0);
	for (int i = 0; i < 2; i++) {
		const pid_t pid = start_child(i == 0 ? use_inherited : close_inherited, lock);

		assert_int_equal(kvc_packed_lock_try(other, 20, false), -EAGAIN);
		kill_child(pid);
		assert_int_equal(kvc_packed_lock_try(other, 20, false), -EAGAIN);
	}
	kvc_packed_lock_close(lock);
	assert_int_equal(kvc_packed_lock_try(other, 20, true), 0);
	kvc_packed_lock_close(other);
	kvc_packed_dir_close(dir);
}

static int nothing(struct kvc_packed_lock *inherited)
{
	(void)inherited;
	return 0;
}

/* A child that lives on does not hold what its parent held. */
static void test_child_keeps_nothing(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_lock *lock = open_lock(dir, false), *other = open_lock(dir, false);
	pid_t pid;

	(void)state;
	assert_int_equal(kvc_packed_lock_try(lock, 20, true), 0);
	pid = start_child(nothing, lock);
	assert_int_equal(kvc_packed_lock_try(other, 20, true), -EAGAIN);
	kvc_packed_lock_close(lock);
	assert_int_equal(kvc_packed_lock_try(other, 20, true), 0);
	kill_child(pid);
	kvc_packed_lock_close(other);
	kvc_packed_dir_close(dir);
}

/* The parent dies by kill -9 while its child lives. */
static void test_child_outlives(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_lock *lock = open_lock(dir, false);
	int to_us[2];
	pid_t parent, child = -1;

	(void)state;
	assert_int_equal(pipe2(to_us, O_CLOEXEC), 0);
	parent = fork();
	assert_true(parent >= 0);
	if (parent == 0) {
		struct kvc_packed_lock *own = open_lock(open_dir(folder, 0, false), false);

		if (kvc_packed_lock_try(own, 20, true) != 0)
			_exit(1);
		child = start_child(nothing, own);
		if (write(to_us[1], &child, sizeof(child)) != sizeof(child))
			_exit(1);
		(void)pause();
		_exit(1);
	}
	assert_int_equal(read(to_us[0], &child, sizeof(child)), sizeof(child));
	assert_int_equal(kvc_packed_lock_try(lock, 20, true), -EAGAIN);
	kill_child(parent);
	assert_int_equal(kill(child, 0), 0);
	assert_int_equal(kvc_packed_lock_try(lock, 20, true), 0);
	assert_int_equal(kill(child, SIGKILL), 0);
	close(to_us[0]);
	close(to_us[1]);
	kvc_packed_lock_close(lock);
	kvc_packed_dir_close(dir);
}

/* ---------------------------------------------------------------- fork beside threads */

#define OPENERS 3
#define FORKS	60

static atomic_bool stop;

static void *open_and_close(void *argument)
{
	struct kvc_packed_dir *dir = argument;
	int failed = 0;

	while (!atomic_load(&stop)) {
		struct kvc_packed_lock *lock = NULL;
		struct kvc_packed_map map = { .fd = -1 };

		failed += kvc_packed_lock_open(dir, "h/root.lock", false, &lock) != 0;
		failed += kvc_packed_lock_try(lock, 30, false) != 0;
		failed += kvc_packed_map_open(dir, "map", &test_kind, NULL, 0, NULL, &map) != 0;
		kvc_packed_map_close(&map);
		kvc_packed_lock_close(lock);
	}
	return (void *)(intptr_t)failed;
}

/* Whether a descriptor of this process is one of the file. */
static bool has_open(const char *path)
{
	struct stat wanted, st;

	if (stat(path, &wanted) != 0)
		return true;
	for (int fd = 0; fd < 200; fd++)
		if (fstat(fd, &st) == 0 && st.st_dev == wanted.st_dev && st.st_ino == wanted.st_ino)
			return true;
	return false;
}

/* No lock of the process is held for ever in the child, and no descriptor of the locks is left.
 * AddressSanitizer's allocator may have been in the middle of something. */
static int in_child(const char *path, struct kvc_packed_lock *lock, struct kvc_packed_map *map)
{
	struct kvc_packed_dir *own;

	if (has_open(path))
		return 1;
	if (kvc_packed_lock_try(lock, 20, true) != -ESTALE)
		return 2;
	if (UNDER_ADDRESS_SANITIZER)
		return 0;
	kvc_packed_map_close(map);
	own = open_dir(folder, 0, false);
	if (kvc_packed_map_open(own, "map", &test_kind, NULL, 0, NULL, map) != 0)
		return 3;
	kvc_packed_lock_close(lock);
	lock = open_lock(own, false);
	return kvc_packed_lock_try(lock, 20, true) == -EAGAIN ? 0 : 4;
}

static void check_fork_beside_threads(struct kvc_packed_dir *dir, const char *path)
{
	struct kvc_packed_lock *lock = open_lock(dir, false);
	struct kvc_packed_map map = { .fd = -1 };
	pthread_t threads[OPENERS];

	assert_int_equal(kvc_packed_lock_try(lock, 20, true), 0);
	create_map(dir, "map", 0, NULL, &map);
	atomic_store(&stop, false);
	for (int i = 0; i < OPENERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, dir), 0);
	for (int i = 0; i < FORKS; i++) {
		const pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0)
			_exit(in_child(path, lock, &map));
		assert_int_equal(wait_child(pid), 0);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < OPENERS; i++) {
		void *failed = NULL;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	kvc_packed_map_close(&map);
	kvc_packed_lock_close(lock);
	kvc_packed_dir_close(dir);
}

static void test_fork_beside_threads(void **state)
{
	(void)state;
	check_fork_beside_threads(open_dir(folder, 0, false), in_folder("h/root.lock"));
}

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FOLDER_TEST(test_two_openings),	       FOLDER_TEST(test_another_file),
		FOLDER_TEST(test_read_only),	       FOLDER_TEST(test_wait),
		FOLDER_TEST(test_dead_process),	       FOLDER_TEST(test_child_takes_nothing),
		FOLDER_TEST(test_child_keeps_nothing), FOLDER_TEST(test_child_outlives),
		FOLDER_TEST(test_fork_beside_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
