/* SPDX-License-Identifier: Apache-2.0 */
/* core/packed_file.h: folders and mapped files, below a folder and in memory. */
#include "packed_file_helper.h"

#include "core/packed_dir.h"

#include <pthread.h>

static struct kvc_packed_dir *new_memory(void)
{
	static uint8_t id;

	return open_dir(NULL, ++id, false);
}

/* ---------------------------------------------------------------- folders */

static void check_mode(const char *name, mode_t mode)
{
	struct stat st;

	assert_int_equal(lstat(in_folder(name), &st), 0);
	assert_int_equal(st.st_mode & 0777, mode);
}

static void test_folders_and_modes(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	const mode_t mask = umask(0077);
	int fd = -1;

	(void)state;
	assert_int_equal(kvc_packed_dir_file(dir, "a/b/c", O_RDWR, &fd), -ENOENT);
	assert_int_equal(kvc_packed_dir_file(dir, "a/b/c", O_RDWR | O_CREAT, &fd), 0);
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDWR);
	close(fd);
	assert_int_equal(create_file(dir, "a/mapped"), 0);
	(void)umask(mask);
	check_mode("a", 0750);
	check_mode("a/b", 0750);
	check_mode("a/b/c", 0640);
	check_mode("a/mapped", 0640);
	/* What is there keeps its mode. */
	assert_int_equal(chmod(in_folder("a/b/c"), 0600), 0);
	assert_int_equal(kvc_packed_dir_file(dir, "a/b/c", O_RDWR | O_CREAT, &fd), 0);
	close(fd);
	check_mode("a/b/c", 0600);
	assert_int_equal(kvc_packed_dir_file(dir, "a/b/c", O_RDWR | O_CREAT | O_EXCL, &fd),
			 -EEXIST);
	kvc_packed_dir_close(dir);
	kvc_packed_dir_close(NULL);
}

static void check_names(struct kvc_packed_dir *dir)
{
	const char *bad[] = { "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/." };
	char component[300];
	int fd = -1;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(kvc_packed_dir_file(dir, bad[i], O_RDWR | O_CREAT, &fd), -EINVAL);
		assert_int_equal(kvc_packed_dir_remove(dir, bad[i]), -EINVAL);
		assert_int_equal(kvc_packed_dir_remove_folder(dir, bad[i]), -EINVAL);
		assert_int_equal(create_file(dir, bad[i]), -EINVAL);
	}
	memset(component, 'n', sizeof(component));
	component[256] = '\0';
	assert_int_equal(kvc_packed_dir_file(dir, component, O_RDWR | O_CREAT, &fd), -EINVAL);
	component[255] = '\0';
	assert_int_equal(kvc_packed_dir_file(dir, component, O_RDWR, &fd), -ENOENT);
	assert_int_equal(kvc_packed_dir_file(dir, ".kvcellar/..x/...", O_RDWR | O_CREAT, &fd), 0);
	close(fd);
}

static void test_names(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false), *memory = new_memory();

	(void)state;
	check_names(dir);
	kvc_packed_dir_close(dir);
	kvc_packed_dir_close(memory);
}

static void test_nothing_but_files(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	int fd = -1;

	(void)state;
	assert_int_equal(mkdir(in_folder("real"), 0700), 0);
	put_file(in_folder("real/file"), "x", 1);
	assert_int_equal(symlink("real", in_folder("folder-link")), 0);
	assert_int_equal(symlink("real/file", in_folder("file-link")), 0);
	assert_int_equal(symlink("nowhere", in_folder("dangling")), 0);
	assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
	assert_int_equal(kvc_packed_dir_file(dir, "folder-link/file", O_RDONLY, &fd), -ENOTDIR);
	assert_int_equal(kvc_packed_dir_file(dir, "file-link", O_RDONLY, &fd), -ELOOP);
	assert_int_equal(kvc_packed_dir_file(dir, "dangling", O_RDWR | O_CREAT, &fd), -ELOOP);
	assert_int_equal(create_file(dir, "dangling"), -EEXIST);
	assert_int_equal(create_file(dir, "folder-link/new"), -ENOTDIR);
	assert_int_equal(kvc_packed_dir_remove(dir, "folder-link/file"), -ENOTDIR);
	assert_int_equal(kvc_packed_dir_file(dir, "fifo", O_RDWR, &fd), -EINVAL);
	assert_int_equal(kvc_packed_dir_file(dir, "real", O_RDONLY, &fd), -EINVAL);
	assert_int_equal(access(in_folder("nowhere"), F_OK), -1);
	kvc_packed_dir_close(dir);
}

static void test_no_such_root(void **state)
{
	const struct kvc_packed_dir_params params = { .local_path = in_folder("missing") };
	struct kvc_packed_dir *dir = NULL;
	int fd = -1;

	(void)state;
	assert_int_equal(kvc_packed_dir_open(&params, &dir), -ENOENT);
	assert_null(dir);
	assert_int_equal(mkdir(in_folder("root"), 0700), 0);
	dir = open_dir(in_folder("root"), 0, false);
	assert_int_equal(rmdir(in_folder("root")), 0);
	assert_int_equal(kvc_packed_dir_file(dir, "a/b", O_RDWR | O_CREAT, &fd), -ENOENT);
	assert_int_equal(create_file(dir, "a/b"), -ENOENT);
	kvc_packed_dir_close(dir);
}

static void check_read_only(struct kvc_packed_dir *writer, struct kvc_packed_dir *reader)
{
	struct kvc_packed_map map = { .fd = -1 };
	int fd = -1;

	assert_int_equal(create_file(writer, "a/b"), 0);
	assert_int_equal(kvc_packed_dir_file(reader, "a/b", O_RDWR, &fd), -EROFS);
	assert_int_equal(kvc_packed_dir_file(reader, "a/c", O_RDONLY | O_CREAT, &fd), -EROFS);
	assert_int_equal(kvc_packed_dir_remove(reader, "a/b"), -EROFS);
	assert_int_equal(kvc_packed_dir_remove_folder(reader, "a"), -EROFS);
	assert_int_equal(create_file(reader, "a/c"), -EROFS);
	assert_int_equal(kvc_packed_map_open(reader, "a/b", &test_kind, NULL, 0, NULL, &map),
			 -EROFS);
	assert_int_equal(kvc_packed_map_open(reader, "a/b", &test_kind, NULL,
					     KVC_PACKED_MAP_READ_ONLY, NULL, &map),
			 0);
	assert_memory_equal((uint8_t *)map.memory + 40, "own field", 9);
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(reader);
	kvc_packed_dir_close(writer);
}

static void test_read_only(void **state)
{
	(void)state;
	check_read_only(open_dir(folder, 0, false), open_dir(folder, 0, true));
	check_read_only(open_dir(NULL, 200, false), open_dir(NULL, 200, true));
}

struct listed {
	struct kvc_packed_dir *dir;
	char names[8][16];
	int count;
};

static int remove_listed(void *context, const char *name)
{
	struct listed *const listed = context;
	char path[64];

	(void)snprintf(listed->names[listed->count++], sizeof(listed->names[0]), "%s", name);
	(void)snprintf(path, sizeof(path), "x/y/%s", name);
	return kvc_packed_dir_remove(listed->dir, path);
}

static int stop(void *context, const char *name)
{
	(void)name;
	return ++*(int *)context == 2 ? 77 : 0;
}

static void check_list(struct kvc_packed_dir *dir)
{
	struct listed listed = { .dir = dir };
	int count = 0;

	assert_int_equal(kvc_packed_dir_list(dir, "x/y", count_name, &count), -ENOENT);
	assert_int_equal(create_file(dir, "x/y/1"), 0);
	assert_int_equal(create_file(dir, "x/y/22"), 0);
	assert_int_equal(create_file(dir, "x/y/3"), 0);
	assert_int_equal(create_file(dir, "x/y/deeper/4"), 0);
	assert_int_equal(create_file(dir, "x/yy"), 0);
	assert_int_equal(create_file(dir, "top"), 0);
	assert_int_equal(kvc_packed_dir_list(dir, "", count_name, &count), 0);
	assert_int_equal(count, 1);
	count = 0;
	assert_int_equal(kvc_packed_dir_list(dir, "x/y", stop, &count), 77);
	assert_int_equal(count, 2);
	assert_int_equal(kvc_packed_dir_remove_folder(dir, "x/y"), -ENOTEMPTY);
	assert_int_equal(kvc_packed_dir_list(dir, "x/y", remove_listed, &listed), 0);
	assert_int_equal(listed.count, 3);
	for (int i = 0; i < 3; i++)
		assert_true(strcmp(listed.names[i], "1") == 0 ||
			    strcmp(listed.names[i], "22") == 0 ||
			    strcmp(listed.names[i], "3") == 0);
	assert_int_equal(kvc_packed_dir_remove(dir, "x/y/1"), -ENOENT);
	assert_int_equal(kvc_packed_dir_remove(dir, "x/y/deeper/4"), 0);
	/* x/y goes too; x has a file. */
	assert_int_equal(kvc_packed_dir_remove_folder(dir, "x/y/deeper"), 0);
	count = 0;
	assert_int_equal(kvc_packed_dir_list(dir, "x", count_name, &count), 0);
	assert_int_equal(count, 1);
	assert_int_equal(kvc_packed_dir_list(dir, "x/y", count_name, &count), -ENOENT);
	kvc_packed_dir_close(dir);
}

static void test_list(void **state)
{
	(void)state;
	check_list(open_dir(folder, 0, false));
	assert_int_equal(access(in_folder("x/y"), F_OK), -1);
	assert_int_equal(access(in_folder("x"), F_OK), 0);
	check_list(new_memory());
}

/* ---------------------------------------------------------------- create and open */

static void check_create(struct kvc_packed_dir *dir)
{
	struct kvc_mapfile_kind any = test_kind, other = test_kind;
	uint8_t header[TEST_HEADER] = { 0 };
	struct kvc_packed_map map = { .fd = -1 }, second = { .fd = -1 };
	struct stat st;

	assert_int_equal(kvc_packed_map_open(dir, "a/map", &test_kind, NULL, 0, NULL, &map),
			 -ENOENT);
	create_map(dir, "a/map", 0, NULL, &map);
	assert_int_equal(fstat(map.fd, &st), 0);
	assert_int_equal(st.st_size, test_kind.file_bytes);
	assert_true((uint64_t)st.st_blocks * 512 >= test_kind.file_bytes);
	assert_int_equal(create_file(dir, "a/map"), -EEXIST);
	any.file_bytes = 0;
	assert_int_equal(kvc_packed_map_open(dir, "a/map", &any, header, 0, NULL, &second), 0);
	assert_memory_equal(header, test_kind.magic, 8);
	assert_memory_equal(header + 40, "own field", 9);
	assert_int_equal(second.bytes, test_kind.file_bytes);
	((uint8_t *)map.memory)[9000] = 123;
	assert_int_equal(((uint8_t *)second.memory)[9000], 123);
	kvc_packed_map_close_fd(&second);
	assert_int_equal(second.fd, -1);
	kvc_packed_map_close_fd(&second);
	((uint8_t *)second.memory)[9001] = 124;
	assert_int_equal(((uint8_t *)map.memory)[9001], 124);
	kvc_packed_map_close(&second);
	assert_null(second.memory);
	kvc_packed_map_close(&second);
	other.file_bytes += PAGE_BYTES;
	assert_int_equal(kvc_packed_map_open(dir, "a/map", &other, NULL, 0, NULL, &second),
			 -EBADMSG);
	other = test_kind;
	other.major++;
	assert_int_equal(kvc_packed_map_open(dir, "a/map", &other, NULL, 0, NULL, &second),
			 -EPROTONOSUPPORT);
	other = test_kind;
	other.magic[0] = 'X';
	assert_int_equal(kvc_packed_map_open(dir, "a/map", &other, NULL, 0, NULL, &second),
			 -ENOMSG);
	assert_null(second.memory);
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

static void test_create(void **state)
{
	(void)state;
	check_create(open_dir(folder, 0, false));
	assert_int_equal(count_entries(in_folder("a")), 1);
	check_create(new_memory());
}

static void check_damage(struct kvc_packed_dir *dir)
{
	struct kvc_mapfile_kind any = test_kind;
	struct kvc_packed_map map = { .fd = -1 };
	int fd = -1;

	any.file_bytes = 0;
	assert_int_equal(create_file(dir, "cut"), 0);
	cut_file(dir, "cut", (off_t)test_kind.file_bytes - 1);
	assert_int_equal(kvc_packed_map_open(dir, "cut", &test_kind, NULL, 0, NULL, &map),
			 -EBADMSG);
	assert_int_equal(kvc_packed_map_open(dir, "cut", &any, NULL, 0, NULL, &map), -EBADMSG);
	cut_file(dir, "cut", 100);
	assert_int_equal(kvc_packed_map_open(dir, "cut", &any, NULL, 0, NULL, &map), -EBADMSG);
	cut_file(dir, "cut", 8);
	assert_int_equal(kvc_packed_map_open(dir, "cut", &any, NULL, 0, NULL, &map), -ENOMSG);
	cut_file(dir, "cut", 0);
	assert_int_equal(kvc_packed_map_open(dir, "cut", &any, NULL, 0, NULL, &map), -ENOMSG);

	assert_int_equal(create_file(dir, "damaged"), 0);
	assert_int_equal(kvc_packed_dir_file(dir, "damaged", O_RDWR, &fd), 0);
	for (off_t at = 8; at < (off_t)TEST_HEADER; at++) {
		uint8_t byte, changed;

		assert_int_equal(pread(fd, &byte, 1, at), 1);
		changed = byte ^ 0x41;
		assert_int_equal(pwrite(fd, &changed, 1, at), 1);
		/* The major too: the sum tells damage from another version. */
		assert_int_equal(kvc_packed_map_open(dir, "damaged", &any, NULL, 0, NULL, &map),
				 -EBADMSG);
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	}
	close(fd);
	/* Longer is no damage. */
	cut_file(dir, "damaged", (off_t)test_kind.file_bytes + 5);
	assert_int_equal(kvc_packed_map_open(dir, "damaged", &test_kind, NULL, 0, NULL, &map), 0);
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

static void test_damage(void **state)
{
	(void)state;
	check_damage(open_dir(folder, 0, false));
	check_damage(new_memory());
}

static void test_impossible_kinds(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_mapfile_kind kind = test_kind;
	uint8_t header[8192] = { 0 };
	struct kvc_packed_map map;

	(void)state;
	kind.header_bytes = 8192;
	assert_int_equal(kvc_packed_map_create(dir, "a", &kind, header), -EINVAL);
	assert_int_equal(kvc_packed_map_open(dir, "a", &kind, NULL, 0, NULL, &map), -EINVAL);
	kind = test_kind;
	kind.file_bytes = kind.header_bytes - 1;
	assert_int_equal(kvc_packed_map_create(dir, "a", &kind, header), -EINVAL);
	assert_int_equal(count_entries(folder), 0);
	kvc_packed_dir_close(dir);
}

static void check_private(struct kvc_packed_dir *dir)
{
	struct kvc_packed_map shared = { .fd = -1 }, own = { .fd = -1 };

	create_map(dir, "p", 0, NULL, &shared);
	assert_int_equal(kvc_packed_map_open(dir, "p", &test_kind, NULL, KVC_PACKED_MAP_PRIVATE,
					     NULL, &own),
			 0);
	((uint8_t *)own.memory)[5000] = 9;
	assert_int_equal(((uint8_t *)shared.memory)[5000], 0);
	((uint8_t *)shared.memory)[9000] = 8;
	assert_int_equal(((uint8_t *)own.memory)[9000], 8);
	kvc_packed_map_close(&own);
	kvc_packed_map_close(&shared);
	kvc_packed_dir_close(dir);
}

static void test_private(void **state)
{
	(void)state;
	check_private(open_dir(folder, 0, false));
	check_private(new_memory());
}

static void check_removed(struct kvc_packed_dir *dir)
{
	struct kvc_packed_map map = { .fd = -1 }, next = { .fd = -1 };
	atomic_bool broken = false;

	create_map(dir, "f/r", 0, &broken, &map);
	assert_false(kvc_packed_map_removed(&map));
	assert_int_equal(kvc_packed_dir_remove(dir, "f/r"), 0);
	assert_true(kvc_packed_map_removed(&map));
	assert_false(atomic_load(&broken));
	/* Its memory stays, and a new file of that name is another one. */
	create_map(dir, "f/r", 0, NULL, &next);
	assert_false(kvc_packed_map_removed(&next));
	((uint8_t *)map.memory)[6000] = 1;
	assert_int_equal(((uint8_t *)next.memory)[6000], 0);
	kvc_packed_map_close(&next);
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

static void test_removed(void **state)
{
	(void)state;
	check_removed(open_dir(folder, 0, false));
	check_removed(new_memory());
}

static void test_memory_is_shared(void **state)
{
	struct kvc_packed_dir *first = open_dir(NULL, 100, false), *second, *other;
	struct kvc_packed_map map = { .fd = -1 }, same = { .fd = -1 };

	(void)state;
	create_map(first, "a/b", 0, NULL, &map);
	((uint8_t *)map.memory)[7777] = 42;
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(first);
	second = open_dir(NULL, 100, false);
	other = open_dir(NULL, 101, false);
	assert_int_equal(kvc_packed_map_open(second, "a/b", &test_kind, NULL, 0, NULL, &same), 0);
	assert_int_equal(((uint8_t *)same.memory)[7777], 42);
	assert_int_equal(create_file(other, "a/b"), 0);
	kvc_packed_map_close(&same);
	kvc_packed_dir_close(other);
	kvc_packed_dir_close(second);
}

/* A child has none of the files: what it makes is its own. */
static void test_memory_after_fork(void **state)
{
	struct kvc_packed_dir *dir = open_dir(NULL, 102, false);
	struct kvc_packed_map map = { .fd = -1 };
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(create_file(dir, "a"), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct kvc_packed_dir *own = open_dir(NULL, 102, false);

		if (kvc_packed_map_open(own, "a", &test_kind, NULL, 0, NULL, &map) != -ENOENT)
			_exit(1);
		if (create_file(own, "a") != 0 ||
		    kvc_packed_map_open(own, "a", &test_kind, NULL, 0, NULL, &map) != 0)
			_exit(2);
		((uint8_t *)map.memory)[5000] = 1;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(kvc_packed_map_open(dir, "a", &test_kind, NULL, 0, NULL, &map), 0);
	assert_int_equal(((uint8_t *)map.memory)[5000], 0);
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

/* ---------------------------------------------------------------- drafts */

static void check_draft(struct kvc_packed_dir *dir, bool named)
{
	struct kvc_packed_draft draft;
	int count = 0;

	assert_int_equal(kvc_packed_dir_draft(dir, "d/one", named, &draft), 0);
	assert_int_equal(kvc_packed_dir_list(dir, "d", count_name, &count), 0);
	assert_int_equal(count, 0);
	assert_int_equal(write(draft.fd, "abc", 3), 3);
	assert_int_equal(kvc_packed_dir_publish(dir, "d/one", &draft), 0);
	kvc_packed_dir_drop(&draft);
	assert_int_equal(kvc_packed_dir_draft(dir, "d/one", named, &draft), -EEXIST);
	/* Somebody is faster. */
	assert_int_equal(kvc_packed_dir_draft(dir, "d/two", named, &draft), 0);
	put_file(in_folder("d/two"), "x", 1);
	assert_int_equal(kvc_packed_dir_publish(dir, "d/two", &draft), -EEXIST);
	kvc_packed_dir_drop(&draft);
	/* Given up. */
	assert_int_equal(kvc_packed_dir_draft(dir, "d/three", named, &draft), 0);
	kvc_packed_dir_drop(&draft);
	assert_int_equal(count_entries(in_folder("d")), 2);
	assert_int_equal(unlink(in_folder("d/one")), 0);
	assert_int_equal(unlink(in_folder("d/two")), 0);
}

static void test_drafts(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);

	(void)state;
	check_draft(dir, false);
	check_draft(dir, true);
	kvc_packed_dir_close(dir);
}

/* Killed while it makes a file: the next one that makes one there removes what is left, but not
 * what another one is making now. */
static void test_draft_of_a_dead_process(void **state)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_draft draft, mine;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(kvc_packed_dir_draft(dir, "d/mine", true, &mine), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (kvc_packed_dir_draft(dir, "d/one", true, &draft) == 0)
			(void)raise(SIGKILL);
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(count_entries(in_folder("d")), 2);
	assert_int_equal(kvc_packed_dir_draft(dir, "d/two", true, &draft), 0);
	assert_int_equal(count_entries(in_folder("d")), 2);
	kvc_packed_dir_drop(&draft);
	assert_int_equal(kvc_packed_dir_publish(dir, "d/mine", &mine), 0);
	kvc_packed_dir_drop(&mine);
	assert_int_equal(kvc_packed_dir_remove(dir, "d/mine"), 0);
	/* So does the one that removes the folder. */
	put_file(in_folder("d/" KVC_PACKED_DRAFT_PREFIX "1.1"), "x", 1);
	assert_int_equal(kvc_packed_dir_remove_folder(dir, "d"), 0);
	assert_int_equal(count_entries(folder), 0);
	kvc_packed_dir_close(dir);
}

/* ---------------------------------------------------------------- threads */

#define THREADS 4
#define ROUNDS	60

struct racer {
	pthread_t thread;
	struct kvc_packed_dir *dir;
	pthread_barrier_t *barrier;
	int made[ROUNDS];
	int failed;
};

static void *race(void *argument)
{
	struct racer *const racer = argument;

	for (int i = 0; i < ROUNDS; i++) {
		struct kvc_packed_map map = { .fd = -1 };
		char name[32];
		int rc;

		(void)snprintf(name, sizeof(name), "race/%d/file", i);
		(void)pthread_barrier_wait(racer->barrier);
		rc = create_file(racer->dir, name);
		racer->made[i] = rc == 0;
		/* Whoever made it: it is whole at once. */
		if ((rc != 0 && rc != -EEXIST) ||
		    kvc_packed_map_open(racer->dir, name, &test_kind, NULL, 0, NULL, &map) != 0)
			racer->failed++;
		kvc_packed_map_close(&map);
	}
	return NULL;
}

static void check_race(struct kvc_packed_dir *dir)
{
	struct racer racers[THREADS] = { 0 };
	pthread_barrier_t barrier;

	assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
	for (int i = 0; i < THREADS; i++) {
		racers[i].dir = dir;
		racers[i].barrier = &barrier;
		assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
	for (int round = 0; round < ROUNDS; round++) {
		int made = 0;

		for (int i = 0; i < THREADS; i++)
			made += racers[i].made[round];
		assert_int_equal(made, 1);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(racers[i].failed, 0);
	(void)pthread_barrier_destroy(&barrier);
	kvc_packed_dir_close(dir);
}

static void test_one_makes_it(void **state)
{
	(void)state;
	check_race(open_dir(folder, 0, false));
	check_race(new_memory());
}

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		FOLDER_TEST(test_folders_and_modes),
		FOLDER_TEST(test_names),
		FOLDER_TEST(test_nothing_but_files),
		FOLDER_TEST(test_no_such_root),
		FOLDER_TEST(test_read_only),
		FOLDER_TEST(test_list),
		FOLDER_TEST(test_create),
		FOLDER_TEST(test_damage),
		FOLDER_TEST(test_impossible_kinds),
		FOLDER_TEST(test_private),
		FOLDER_TEST(test_removed),
		cmocka_unit_test(test_memory_is_shared),
		cmocka_unit_test(test_memory_after_fork),
		FOLDER_TEST(test_drafts),
		FOLDER_TEST(test_draft_of_a_dead_process),
		FOLDER_TEST(test_one_makes_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
