/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/common/fsobj: names, folders, publishing, leases, listing, the O_DIRECT probe. */
#include "common/fsobj_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static char base[PATH_MAX];
static char reason[512];
static const char *kill_at; /* the step at which this process ends */
static const uint64_t any_version[2];

static void host_reason(void *context, uint64_t cookie, const char *text)
{
	(void)context;
	(void)cookie;
	(void)snprintf(reason, sizeof(reason), "%s", text);
}

static void host_step(void *context, const char *step)
{
	(void)context;
	if (kill_at != NULL && strcmp(kill_at, step) == 0)
		(void)kill(getpid(), SIGKILL);
}

static char logged[PATH_MAX + 200];

static void host_log_debug(void *context, const char *text)
{
	(void)context;
	(void)snprintf(logged, sizeof(logged), "%s", text);
}

static const struct kvc_host host = {
	.abi = KVC_PLUGIN_ABI,
	.size = sizeof(host),
	.log_debug = host_log_debug,
	.reason = host_reason,
	.step = host_step,
};

static int open_flags(const char *location, uint32_t flags, struct fsobj_root **out)
{
	const struct fsobj_params params = {
		.host = &host,
		.direct_io = true,
		.file_mode = 0600,
		.folder_mode = 0700,
	};
	const struct kvc_root_params root_params = {
		.size = sizeof(root_params),
		.location = location,
		.flags = flags,
	};

	reason[0] = '\0';
	return fsobj_root_open(&params, &root_params, out);
}

static struct fsobj_root *open_new(char location[PATH_MAX], const char *name)
{
	struct fsobj_root *root;

	(void)snprintf(location, PATH_MAX, "%.3000s/%.200s", base, name);
	assert_int_equal(open_flags(location, KVC_ROOT_CREATE, &root), 0);
	return root;
}

static int begin(struct fsobj_root *root, const char *name, size_t bytes, struct fsobj_file *file)
{
	static const char block[4096] = "block";
	int error = fsobj_create(root, name, (uint32_t)strlen(name), bytes, file);

	if (error == 0 && file->direct)
		assert_int_equal(fsobj_make_buffered(file), 0);
	for (size_t done = 0; error == 0 && done < bytes; done += sizeof(block)) {
		size_t n = bytes - done < sizeof(block) ? bytes - done : sizeof(block);

		if (pwrite(file->fd, block, n, (off_t)done) != (ssize_t)n)
			error = -errno;
	}
	return error;
}

static int put(struct fsobj_root *root, const char *name, size_t bytes, bool if_absent,
	       struct fsobj_seen *seen)
{
	struct fsobj_file file;
	int error = begin(root, name, bytes, &file);

	if (error == 0)
		error = fsobj_publish(root, &file, if_absent, seen);
	fsobj_close(root, &file);
	return error;
}

static int64_t size_of(struct fsobj_root *root, const char *name)
{
	struct fsobj_seen seen;
	int error = fsobj_stat(root, name, (uint32_t)strlen(name), &seen);

	return error != 0 ? error : (int64_t)seen.bytes;
}

/* How many files below the folder have a name that begins with prefix. */
static const char *count_prefix;
static int count_found;

static int count_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	(void)st;
	if (type == FTW_F && strncmp(path + walk->base, count_prefix, strlen(count_prefix)) == 0)
		count_found++;
	return 0;
}

static int count_files(const char *folder, const char *prefix)
{
	count_prefix = prefix;
	count_found = 0;
	assert_int_equal(nftw(folder, count_one, 16, FTW_PHYS), 0);
	return count_found;
}

static int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	(void)st;
	(void)type;
	(void)walk;
	return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

static void remove_tree(const char *path)
{
	(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static bool skipped;

static bool can_mount(int rc)
{
	if (rc == 0)
		return true;
	if (!skipped)
		printf("SKIP: mounting is refused: %s\n", strerror(errno));
	skipped = true;
	return false;
}

/* ---------------------------------------------------------------- tests */

static void names_that_leave_the_root_are_refused(void **state)
{
	static const char *const bad[] = { "",	 "/",	 "/a",	 "a/",	   "a//b", ".",
					   "..", "a/..", "../a", "a/../b", "./a" };
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "names");
	struct fsobj_seen seen;
	struct fsobj_file file;
	char longest[NAME_MAX + 2];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint32_t bytes = (uint32_t)strlen(bad[i]);

		assert_int_equal(fsobj_stat(root, bad[i], bytes, &seen), -EINVAL);
		assert_int_equal(fsobj_create(root, bad[i], bytes, 0, &file), -EINVAL);
		assert_int_equal(fsobj_open(root, bad[i], bytes, &file, &seen), -EINVAL);
		assert_int_equal(fsobj_remove(root, bad[i], bytes, any_version), -EINVAL);
	}
	assert_int_equal(fsobj_stat(root, "a\0b", 3, &seen), -EINVAL);
	memset(longest, 'x', sizeof(longest));
	longest[NAME_MAX + 1] = '\0';
	assert_int_equal(put(root, longest, 1, false, &seen), -ENAMETOOLONG);
	longest[NAME_MAX] = '\0';
	assert_int_equal(put(root, longest, 1, false, &seen), 0);
	assert_int_equal(put(root, "...", 1, false, &seen), 0);
	assert_int_equal(size_of(root, "..."), 1);
	fsobj_root_close(root);
}

static void symlinks_inside_the_root_are_not_followed(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "links");
	struct fsobj_seen seen;
	struct fsobj_file file;
	int fd = open(location, O_PATH | O_DIRECTORY);

	(void)state;
	assert_int_equal(symlinkat("/etc", fd, "out"), 0);
	assert_int_equal(symlinkat("/etc/passwd", fd, "file"), 0);
	assert_true(size_of(root, "out/passwd") < 0);
	assert_true(fsobj_create(root, "out/new", 7, 1, &file) < 0);
	assert_int_equal(size_of(root, "file"), -ELOOP);
	assert_int_equal(fsobj_open(root, "file", 4, &file, &seen), -ELOOP);
	/* A set replaces the link itself. */
	assert_int_equal(put(root, "file", 10, true, &seen), -EEXIST);
	assert_int_equal(seen.bytes, 0);
	assert_int_equal(put(root, "file", 10, false, &seen), 0);
	assert_int_equal(size_of(root, "file"), 10);
	close(fd);
	fsobj_root_close(root);
}

static void what_is_no_file_gives_an_error_and_does_not_hang(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "kinds");
	struct fsobj_seen seen;
	struct fsobj_file file;
	int fd = open(location, O_PATH | O_DIRECTORY);

	(void)state;
	assert_int_equal(mkdirat(fd, "folder", 0700), 0);
	assert_int_equal(mkfifoat(fd, "fifo", 0600), 0);
	assert_int_equal(fsobj_open(root, "folder", 6, &file, &seen), -EISDIR);
	assert_int_equal(fsobj_open(root, "fifo", 4, &file, &seen), -ENXIO);
	assert_int_equal(size_of(root, "folder"), -EISDIR);
	assert_int_equal(size_of(root, "fifo"), -ENXIO);
	assert_int_equal(put(root, "folder", 10, false, &seen), -EISDIR);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	close(fd);
	fsobj_root_close(root);
}

static void nothing_is_seen_before_publish(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "torn");
	struct fsobj_seen seen;
	struct fsobj_file file;

	(void)state;
	assert_int_equal(begin(root, "n/00/key", 4096, &file), 0);
	assert_int_equal(size_of(root, "n/00/key"), -ENOENT);
	fsobj_close(root, &file);
	assert_int_equal(size_of(root, "n/00/key"), -ENOENT);
	assert_int_equal(count_files(location, ""), 0);
	assert_int_equal(put(root, "n/00/key", 8192, true, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 8192);
	/* R07: a longer old file does not lend its tail. */
	assert_int_equal(put(root, "n/00/key", 100, false, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 100);
	assert_int_equal(put(root, "n/00/key", 300, true, &seen), -EEXIST);
	assert_int_equal(seen.bytes, 100);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	fsobj_root_close(root);
}

static void file_systems_without_tmpfile_publish_by_rename(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "rename");
	struct fsobj_seen seen;
	struct fsobj_file file;

	(void)state;
	root->info.tmpfile = false;
	for (int noreplace = 0; noreplace < 2; noreplace++) {
		atomic_store(&root->no_noreplace, noreplace == 1);
		assert_int_equal(put(root, "a/key", 100, true, &seen), 0);
		assert_int_equal(put(root, "a/key", 200, true, &seen), -EEXIST);
		assert_int_equal(seen.bytes, 100);
		assert_int_equal(put(root, "a/key", 300, false, &seen), 0);
		assert_int_equal(size_of(root, "a/key"), 300);
		assert_int_equal(fsobj_remove(root, "a/key", 5, any_version), 0);
	}
	assert_int_equal(begin(root, "a/other", 100, &file), 0);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 1);
	fsobj_close(root, &file);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	fsobj_root_close(root);
}

static void links_are_made_by_proc_without_the_capability(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "proc");
	struct fsobj_seen seen;

	(void)state;
	atomic_store(&root->link_by_proc, true);
	assert_int_equal(put(root, "a/key", 100, true, &seen), 0);
	assert_int_equal(put(root, "a/key", 200, false, &seen), 0);
	assert_int_equal(size_of(root, "a/key"), 200);
	fsobj_root_close(root);
}

/* R27 */
static void folders_removed_at_run_time_are_made_again(void **state)
{
	char location[PATH_MAX];
	char folder[PATH_MAX + 8];
	struct fsobj_root *root = open_new(location, "gone");
	struct fsobj_seen seen;
	struct fsobj_file file;

	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/n", location);
	assert_int_equal(put(root, "n/00/key", 10, false, &seen), 0);
	remove_tree(folder);
	assert_int_equal(size_of(root, "n/00/key"), -ENOENT);
	assert_int_equal(put(root, "n/00/key", 20, false, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 20);

	/* The whole root, with a lease in it. */
	assert_int_equal(put(root, "n/00/key", 30, false, &seen), 0);
	remove_tree(location);
	assert_int_equal(size_of(root, "n/00/key"), -ENOENT);
	assert_int_equal(put(root, "n/00/key", 40, false, &seen), 0);
	assert_int_equal(put(root, "n/00/key", 50, false, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 50);
	assert_int_equal(count_files(location, root->lease.uuid), 1);

	/* Nobody has looked between the removal and the set. */
	remove_tree(folder);
	assert_int_equal(put(root, "n/00/key", 50, false, &seen), 0);
	remove_tree(location);
	assert_int_equal(put(root, "n/00/key", 50, true, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 50);

	/* Between begin and publish. */
	assert_int_equal(begin(root, "n/00/late", 60, &file), 0);
	remove_tree(location);
	assert_int_equal(fsobj_publish(root, &file, true, &seen), 0);
	fsobj_close(root, &file);
	assert_int_equal(size_of(root, "n/00/late"), 60);

	/* Another process made the folder again: its objects are seen. */
	remove_tree(folder);
	(void)mkdir(folder, 0700);
	(void)snprintf(folder, sizeof(folder), "%s/n/00", location);
	assert_int_equal(mkdir(folder, 0700), 0);
	(void)snprintf(folder, sizeof(folder), "%s/n/00/k", location);
	close(open(folder, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(size_of(root, "n/00/k"), 0);
	fsobj_root_close(root);
}

static void folder_descriptors_are_bounded(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root;
	struct fsobj_seen seen;
	struct rlimit before;
	struct rlimit few;
	int descriptors = open_descriptors();

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = before;
	few.rlim_cur = 128;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	root = open_new(location, "many");
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 300; i++) {
			char name[32];

			(void)snprintf(name, sizeof(name), "n/%d/key", i);
			assert_int_equal(put(root, name, 10, false, &seen), 0);
			assert_int_equal(size_of(root, name), 10);
		}
		assert_true(open_descriptors() <= descriptors + 34);
	}
	fsobj_root_close(root);
	assert_int_equal(open_descriptors(), descriptors);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* R09 */
static void without_descriptors_the_object_stays(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "emfile");
	struct fsobj_seen seen;
	struct fsobj_file file;
	struct rlimit before;
	struct rlimit none;

	(void)state;
	assert_int_equal(put(root, "n/key", 10, false, &seen), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 3;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(fsobj_open(root, "n/key", 5, &file, &seen), -EMFILE);
	assert_int_equal(put(root, "n/new", 10, false, &seen), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(fsobj_open(root, "n/key", 5, &file, &seen), 0);
	fsobj_close(root, &file);
	assert_int_equal(put(root, "n/new", 10, false, &seen), 0);
	fsobj_root_close(root);
}

static void remove_takes_only_the_version_that_was_read(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "version");
	struct fsobj_seen old;
	struct fsobj_seen seen;

	(void)state;
	assert_int_equal(put(root, "n/key", 10, false, &seen), 0);
	assert_int_equal(fsobj_stat(root, "n/key", 5, &old), 0);
	assert_int_equal(put(root, "n/key", 20, false, &seen), 0);
	assert_int_equal(fsobj_remove(root, "n/key", 5, old.version), -ESTALE);
	assert_int_equal(size_of(root, "n/key"), 20);
	assert_int_equal(fsobj_stat(root, "n/key", 5, &old), 0);
	assert_int_equal(fsobj_remove(root, "n/key", 5, old.version), 0);
	assert_int_equal(size_of(root, "n/key"), -ENOENT);
	assert_int_equal(fsobj_remove(root, "n/key", 5, old.version), -ENOENT);
	assert_int_equal(fsobj_remove(root, "n/key", 5, any_version), -ENOENT);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	fsobj_root_close(root);
}

/* R40: a process that dies at any step of a publish leaves a whole object or none, and what it
 * leaves besides is reclaimed. */
struct death {
	const char *step;
	bool tmpfile;
	bool replaces;
	bool removes;
	int64_t bytes_after;
	int reclaimed;
};

static void die_at(const struct death *death, const char *location)
{
	struct fsobj_root *root;
	struct fsobj_seen seen;

	kill_at = death->step;
	if (open_flags(location, 0, &root) != 0)
		_exit(1);
	root->info.tmpfile = death->tmpfile;
	if (death->removes && fsobj_stat(root, "n/00/key", 8, &seen) == 0)
		(void)fsobj_remove(root, "n/00/key", 8, seen.version);
	else
		(void)put(root, "n/00/key", 12288, false, &seen);
	_exit(1);
}

static void killed_at(const struct death *death)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "killed");
	struct fsobj_seen seen;
	int status;
	pid_t child;

	if (death->replaces || death->removes)
		assert_int_equal(put(root, "n/00/key", 8192, false, &seen), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		die_at(death, location);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(size_of(root, "n/00/key"), death->bytes_after);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), death->reclaimed);
	assert_int_equal(fsobj_reclaim(root), death->reclaimed);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	assert_int_equal(size_of(root, "n/00/key"), death->bytes_after);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_int_equal(put(root, "n/00/key", 4096, false, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 4096);
	fsobj_root_close(root);
	/* Neither a lease of the dead nor one of ours. */
	assert_int_equal(count_files(location, ""), 1);
	remove_tree(location);
}

static void a_writer_killed_at_any_step_leaves_no_short_object(void **state)
{
	static const struct death deaths[] = {
		{ "publish.created", true, false, false, -ENOENT, 0 },
		{ "publish.linked", true, false, false, 12288, 0 },
		{ "publish.linked", true, true, false, 8192, 1 },
		{ "publish.renamed", true, true, false, 12288, 0 },
		{ "publish.created", false, false, false, -ENOENT, 1 },
		{ "publish.created", false, true, false, 8192, 1 },
		{ "publish.renamed", false, false, false, 12288, 0 },
		{ "publish.renamed", false, true, false, 12288, 0 },
		{ "remove.renamed", true, false, true, -ENOENT, 1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++)
		killed_at(&deaths[i]);
}

/* More dead writers than one look takes. */
static void all_the_dead_are_reclaimed(void **state)
{
	char location[PATH_MAX];
	char path[PATH_MAX + 128];
	struct fsobj_root *root = open_new(location, "many-dead");
	struct fsobj_seen seen;

	(void)state;
	assert_int_equal(put(root, "n/key", 10, false, &seen), 0);
	assert_int_equal(fsobj_lease_hold(root), 0);
	for (int i = 0; i < 150; i++) {
		(void)snprintf(path, sizeof(path), "%s/" FSOBJ_LEASES "/%032x", location, i);
		close(open(path, O_CREAT | O_WRONLY, 0600));
		(void)snprintf(path, sizeof(path), "%s/n/" FSOBJ_TEMP_PREFIX "%032x.1", location,
			       i);
		close(open(path, O_CREAT | O_WRONLY, 0600));
	}
	/* One whose lease is gone. */
	(void)snprintf(path, sizeof(path), "%s/n/" FSOBJ_TEMP_PREFIX "%032x.1", location, 200);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(fsobj_reclaim(root), 151);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	assert_int_equal(count_files(location, ""), 2);
	fsobj_root_close(root);
}

static void a_live_writer_is_not_reclaimed(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "live");
	struct fsobj_root *other;
	struct fsobj_seen seen;
	struct fsobj_file file;

	(void)state;
	root->info.tmpfile = false;
	assert_int_equal(begin(root, "n/slow", 4096, &file), 0);
	assert_int_equal(open_flags(location, 0, &other), 0);
	assert_int_equal(fsobj_reclaim(other), 0);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 1);
	assert_int_equal(fsobj_publish(root, &file, true, &seen), 0);
	fsobj_close(root, &file);
	assert_int_equal(size_of(other, "n/slow"), 4096);
	fsobj_root_close(other);
	fsobj_root_close(root);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
}

/* Where locks are not shared, only a day without a sign of life counts. */
static void without_shared_locks_age_decides(void **state)
{
	static const char uuid[] = "0123456789abcdef0123456789abcdef";
	const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	char location[PATH_MAX];
	char path[PATH_MAX + 128];
	struct fsobj_root *root = open_new(location, "age");
	struct fsobj_seen seen;
	int lease;
	int temp;

	(void)state;
	root->info.local = false;
	assert_int_equal(fsobj_lease_hold(root), 0);
	assert_int_equal(put(root, "n/key", 10, false, &seen), 0);
	(void)snprintf(path, sizeof(path), "%s/" FSOBJ_LEASES "/%s", location, uuid);
	lease = open(path, O_CREAT | O_RDWR, 0600);
	(void)snprintf(path, sizeof(path), "%s/n/" FSOBJ_TEMP_PREFIX "%s.1", location, uuid);
	temp = open(path, O_CREAT | O_RDWR, 0600);
	assert_true(lease >= 0 && temp >= 0);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_int_equal(futimens(lease, old), 0);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 1);
	assert_int_equal(futimens(temp, old), 0);
	assert_int_equal(futimens(lease, old), 0);
	assert_int_equal(fsobj_reclaim(root), 1);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	assert_int_equal(count_files(location, uuid), 0);
	close(lease);
	close(temp);
	fsobj_root_close(root);
}

struct listing {
	char names[16][64];
	int count;
	int stop_after;
};

static int list_one(void *context, const struct kvc_list_entry *entry)
{
	struct listing *listing = context;

	assert_int_equal(strlen(entry->name), entry->name_bytes);
	assert_int_equal(entry->object_bytes, 4096);
	assert_true(entry->allocated_bytes >= 4096);
	assert_true(entry->modified_ns > 0);
	assert_true(listing->count < 16);
	(void)snprintf(listing->names[listing->count++], 64, "%s", entry->name);
	return listing->count == listing->stop_after ? 7 : 0;
}

static int list_count(struct fsobj_root *root, const char *prefix)
{
	struct listing listing = { .count = 0 };

	assert_int_equal(fsobj_list(root, prefix, list_one, &listing), 0);
	for (int i = 0; i < listing.count; i++)
		assert_int_equal(strncmp(listing.names[i], prefix, strlen(prefix)), 0);
	return listing.count;
}

static void list_finds_what_is_published_and_nothing_else(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "list");
	struct listing listing = { .stop_after = 2 };
	struct fsobj_seen seen;
	struct fsobj_file file;
	struct kvc_usage usage = { .size = sizeof(usage) };
	int fd = open(location, O_PATH | O_DIRECTORY);

	(void)state;
	assert_int_equal(put(root, "llama-1/00/a", 4096, false, &seen), 0);
	assert_int_equal(put(root, "llama-1/00/b", 4096, false, &seen), 0);
	assert_int_equal(put(root, "llama-1/01/a", 4096, false, &seen), 0);
	assert_int_equal(put(root, "llama-10/00/a", 4096, false, &seen), 0);
	assert_int_equal(put(root, "top", 4096, false, &seen), 0);
	assert_int_equal(put(root, ".kvcellar/root.json", 4096, false, &seen), 0);
	assert_int_equal(symlinkat("/etc", fd, "llama-1/out"), 0);
	root->info.tmpfile = false;
	assert_int_equal(begin(root, "llama-1/00/c", 4096, &file), 0);
	assert_int_equal(list_count(root, ""), 5);
	assert_int_equal(list_count(root, "llama-1"), 4);
	assert_int_equal(list_count(root, "llama-1/"), 3);
	assert_int_equal(list_count(root, "llama-1/00/a"), 1);
	assert_int_equal(list_count(root, "none/"), 0);
	assert_int_equal(list_count(root, ".kvcellar/root"), 1);
	assert_int_equal(fsobj_list(root, "", list_one, &listing), 7);
	assert_int_equal(listing.count, 2);
	fsobj_close(root, &file);
	assert_int_equal(fsobj_usage(root, &usage), 0);
	assert_true(usage.total_bytes > 0 && usage.free_bytes <= usage.total_bytes);
	close(fd);
	fsobj_root_close(root);
}

static void opening_says_what_is_wrong(void **state)
{
	char location[PATH_MAX];
	char link[PATH_MAX];
	struct fsobj_root *root;
	int fd;

	(void)state;
	(void)snprintf(location, sizeof(location), "%.3000s/absent/folder", base);
	assert_int_equal(open_flags(location, 0, &root), -ENOENT);
	assert_non_null(strstr(reason, "does not exist"));
	assert_int_equal(open_flags(location, KVC_ROOT_CREATE, &root), -ENOENT);
	assert_non_null(strstr(reason, "nor does the one it should be made in"));
	/* The folder above is there, and takes none. */
	assert_int_equal(open_flags("/proc/kvcellar", KVC_ROOT_CREATE, &root), -ENOENT);
	assert_non_null(strstr(reason, "cannot make folder /proc/kvcellar: No such file"));
	assert_null(strstr(reason, "nor does"));
	(void)snprintf(location, sizeof(location), "%.3000s/file", base);
	fd = open(location, O_CREAT | O_WRONLY, 0600);
	close(fd);
	assert_int_equal(open_flags(location, KVC_ROOT_CREATE, &root), -ENOTDIR);
	assert_non_null(strstr(reason, "not a directory"));
	assert_int_equal(open_flags("", KVC_ROOT_CREATE, &root), -EINVAL);

	(void)snprintf(location, sizeof(location), "%.3000s/owned", base);
	(void)snprintf(link, sizeof(link), "%.3000s/owned-link", base);
	assert_int_equal(open_flags(location, KVC_ROOT_CREATE | KVC_ROOT_OWNED, &root), 0);
	fsobj_root_close(root);
	assert_int_equal(symlink(location, link), 0);
	assert_int_equal(open_flags(link, KVC_ROOT_OWNED, &root), -EPERM);
	assert_non_null(strstr(reason, "symbolic link"));
	assert_non_null(strstr(reason, "storage_dirs"));
	assert_int_equal(open_flags(link, 0, &root), 0);
	fsobj_root_close(root);
	if (geteuid() == 0) {
		assert_int_equal(chown(location, 12345, 12345), 0);
		assert_int_equal(open_flags(location, KVC_ROOT_OWNED, &root), -EPERM);
		assert_non_null(strstr(reason, "user 12345"));
	}
}

/* R26 */
static void a_read_only_root_is_read_and_left_alone(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "ro");
	struct fsobj_seen seen;
	struct fsobj_file file;

	(void)state;
	assert_int_equal(put(root, "n/key", 4096, false, &seen), 0);
	fsobj_root_close(root);
	remove_tree(FSOBJ_HOUSEKEEPING);
	assert_int_equal(open_flags(location, KVC_ROOT_READ_ONLY, &root), 0);
	assert_true(fsobj_root_info(root)->read_only);
	assert_int_equal(put(root, "n/new", 4096, false, &seen), -EROFS);
	assert_int_equal(fsobj_remove(root, "n/key", 5, any_version), -EROFS);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_int_equal(fsobj_open(root, "n/key", 5, &file, &seen), 0);
	assert_int_equal(seen.bytes, 4096);
	fsobj_close(root, &file);
	assert_int_equal(count_files(location, ""), 1);
	fsobj_root_close(root);
}

static void a_read_only_mount_is_found_out(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "ro-mount");
	struct fsobj_seen seen;
	int error;

	(void)state;
	assert_int_equal(put(root, "n/key", 4096, false, &seen), 0);
	fsobj_root_close(root);
	if (!can_mount(mount(location, location, NULL, MS_BIND, NULL)))
		return;
	error = mount(NULL, location, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL);
	if (error == 0) {
		error = open_flags(location, 0, &root);
		if (error == 0) {
			error = !fsobj_root_info(root)->read_only || size_of(root, "n/key") != 4096;
			fsobj_root_close(root);
		}
	}
	(void)umount(location);
	assert_int_equal(error, 0);
}

/* R25 */
static int refuse_open; /* what the probe's calls refuse */
static int refuse_write;
static int refuse_read;
static size_t refuse_below; /* transfers smaller than this, when a refusal is on */

static int fake_openat(int folder_fd, const char *name, int flags, ...)
{
	if (refuse_open != 0 && (flags & O_DIRECT) != 0) {
		errno = refuse_open;
		return -1;
	}
	/* Refusals are what is tested, not the device: it may have no direct I/O at all. */
	return openat(folder_fd, name, flags & ~O_DIRECT, 0600);
}

static ssize_t fake_pwrite(int fd, const void *buf, size_t bytes, off_t offset)
{
	if (refuse_write != 0 && bytes < refuse_below) {
		errno = refuse_write;
		return -1;
	}
	return pwrite(fd, buf, bytes, offset);
}

static ssize_t fake_pread(int fd, void *buf, size_t bytes, off_t offset)
{
	if (refuse_read != 0 && bytes < refuse_below) {
		errno = refuse_read;
		return -1;
	}
	return pread(fd, buf, bytes, offset);
}

static int probe_with(struct fsobj_root *root, int fd, int on_open, int on_write, int on_read,
		      size_t below)
{
	static const struct fsobj_probe_calls calls = {
		.openat = fake_openat,
		.pwrite = fake_pwrite,
		.pread = fake_pread,
	};

	refuse_open = on_open;
	refuse_write = on_write;
	refuse_read = on_read;
	refuse_below = below;
	root->info.note[0] = '\0';
	(void)snprintf(root->info.file_system, sizeof(root->info.file_system), "testfs");
	return fsobj_probe_io(root, fd, &calls);
}

static void direct_io_is_used_only_where_it_works(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "probe");
	int fd = open(location, O_PATH | O_DIRECTORY);

	(void)state;
	assert_int_equal(probe_with(root, fd, 0, 0, 0, 0), 0);
	assert_true(root->info.direct);
	assert_string_equal(root->info.note, "");
	assert_int_equal(probe_with(root, fd, EINVAL, 0, 0, 0), 0);
	assert_false(root->info.direct);
	assert_int_equal(root->info.alignment, 1);
	assert_non_null(strstr(root->info.note, "open"));
	assert_int_equal(probe_with(root, fd, 0, EINVAL, 0, SIZE_MAX), 0);
	assert_false(root->info.direct);
	assert_non_null(strstr(root->info.note, "write"));
	assert_int_equal(probe_with(root, fd, 0, 0, EINVAL, SIZE_MAX), 0);
	assert_false(root->info.direct);
	assert_non_null(strstr(root->info.note, "read"));
	/* Devices with 4096-byte sectors. */
	assert_int_equal(probe_with(root, fd, 0, EINVAL, 0, 4096), 0);
	assert_true(root->info.direct);
	assert_int_equal(root->info.alignment, 4096);
	/* A full disk tells nothing about O_DIRECT. */
	assert_int_equal(probe_with(root, fd, 0, ENOSPC, 0, SIZE_MAX), 0);
	assert_true(root->info.direct);
	assert_int_equal(count_files(location, ""), 0);
	root->direct_io = false;
	assert_int_equal(probe_with(root, fd, 0, 0, 0, 0), 0);
	assert_false(root->info.direct);
	assert_string_equal(root->info.note, "");
	close(fd);
	fsobj_root_close(root);
}

static void containers_are_whole_from_the_start(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root = open_new(location, "containers");
	uint64_t bytes = 0;
	struct stat st;
	int again;
	int fd;

	(void)state;
	assert_int_equal(fsobj_container_open(root, "seg/0", 0, &fd, &bytes), -ENOENT);
	assert_int_equal(fsobj_container_open(root, "seg/0", 1 << 20, &fd, &bytes), 0);
	assert_int_equal(bytes, 1 << 20);
	assert_int_equal(fstat(fd, &st), 0);
	assert_true(st.st_blocks * 512 >= 1 << 20);
	assert_int_equal(fsobj_container_open(root, "seg/0", 4096, &again, &bytes), -EEXIST);
	assert_int_equal(fsobj_container_resize(root, fd, 2 << 20), 0);
	assert_int_equal(fsobj_container_open(root, "seg/0", 0, &again, &bytes), 0);
	assert_int_equal(bytes, 2 << 20);
	close(again);
	assert_int_equal(fsobj_container_resize(root, fd, 4096), 0);
	assert_int_equal(fsobj_container_remove(root, "seg/0"), 0);
	assert_int_equal(size_of(root, "seg/0"), -ENOENT);
	/* Whoever has it open keeps no space with it. */
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 4096);
	assert_int_equal(st.st_blocks, 0);
	close(fd);
	fsobj_root_close(root);
}

/* R04 */
static void a_full_file_system_keeps_nothing_half(void **state)
{
	char location[PATH_MAX];
	struct fsobj_root *root;
	struct fsobj_seen seen;
	char name[16];
	int stored = 0;
	int error = 0;

	(void)state;
	(void)snprintf(location, sizeof(location), "%.3000s/full", base);
	assert_int_equal(mkdir(location, 0700), 0);
	if (!can_mount(mount("tmpfs", location, "tmpfs", 0, "size=1m")))
		return;
	assert_int_equal(open_flags(location, 0, &root), 0);
	for (int i = 0; i < 4 && error == 0; i++) {
		(void)snprintf(name, sizeof(name), "k%d", i);
		error = put(root, name, 400 * 1024, false, &seen);
		stored += error == 0;
	}
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(size_of(root, name), -ENOENT);
	assert_int_equal(count_files(location, "k"), stored);
	assert_int_equal(count_files(location, FSOBJ_TEMP_PREFIX), 0);
	assert_int_equal(fsobj_remove(root, "k0", 2, any_version), 0);
	assert_int_equal(put(root, name, 400 * 1024, false, &seen), 0);
	fsobj_root_close(root);
	assert_int_equal(umount(location), 0);
}

static void modes_do_not_depend_on_the_umask(void **state)
{
	const struct fsobj_params params = { .host = &host,
					     .file_mode = 0660,
					     .folder_mode = 0770 };
	struct kvc_root_params root_params = { .size = sizeof(root_params),
					       .flags = KVC_ROOT_CREATE };
	char location[PATH_MAX];
	struct fsobj_root *root;
	struct fsobj_seen seen;
	struct stat st;
	int fd;

	(void)state;
	(void)snprintf(location, sizeof(location), "%.3000s/modes", base);
	root_params.location = location;
	(void)umask(0077);
	assert_int_equal(fsobj_root_open(&params, &root_params, &root), 0);
	assert_int_equal(put(root, "n/key", 10, false, &seen), 0);
	(void)umask(0022);
	fd = open(location, O_PATH | O_DIRECTORY);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0770);
	assert_int_equal(fstatat(fd, "n", &st, 0), 0);
	assert_int_equal(st.st_mode & 0777, 0770);
	assert_int_equal(fstatat(fd, "n/key", &st, 0), 0);
	assert_int_equal(st.st_mode & 0777, 0660);
	close(fd);
	fsobj_root_close(root);
}

static void moved_away(char to[PATH_MAX], const char *location)
{
	(void)snprintf(to, PATH_MAX, "%.4000s.moved", location);
	assert_int_equal(rename(location, to), 0);
}

static void a_replaced_root_is_opened_anew(void **state)
{
	char location[PATH_MAX], moved[PATH_MAX], lease[PATH_MAX];
	struct fsobj_root *root = open_new(location, "replaced");
	struct fsobj_seen seen;
	struct fsobj_file file;

	(void)state;
	assert_int_equal(put(root, "n/00/key", 9, false, &seen), 0);
	assert_int_equal(put(root, "n/00/key", 10, false, &seen), 0);
	logged[0] = '\0';
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_string_equal(logged, "");
	assert_int_equal(begin(root, "n/00/late", 4096, &file), 0);
	moved_away(moved, location);
	assert_int_equal(mkdir(location, 0700), 0);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_non_null(strstr(logged, location));
	assert_int_equal(size_of(root, "n/00/key"), -ENOENT);
	/* What was begun ends where it began. */
	assert_int_equal(fsobj_publish(root, &file, false, &seen), 0);
	fsobj_close(root, &file);
	assert_int_equal(count_files(moved, "late"), 1);
	assert_int_equal(put(root, "n/00/key", 20, false, &seen), 0);
	assert_int_equal(put(root, "n/00/key", 25, false, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 25);
	assert_int_equal(count_files(location, "key"), 1);
	/* A lease is here too: temporary names are not those of a dead writer. */
	assert_int_equal(count_files(location, root->lease.uuid), 1);
	logged[0] = '\0';
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_string_equal(logged, "");
	/* And back again, where a lease of ours still lies. */
	(void)snprintf(lease, sizeof(lease), "%.3000s/.kvcellar/leases/%s", moved,
		       root->lease.uuid);
	assert_int_equal(access(lease, F_OK), 0);
	remove_tree(location);
	assert_int_equal(rename(moved, location), 0);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_int_equal(size_of(root, "n/00/key"), 10);
	assert_int_equal(put(root, "n/00/key", 30, false, &seen), 0);
	assert_int_equal(size_of(root, "n/00/key"), 30);
	fsobj_root_close(root);
	assert_int_equal(count_files(location, ""), 2);
}

static void a_replaced_root_is_checked_again(void **state)
{
	char location[PATH_MAX], moved[PATH_MAX];
	struct fsobj_root *root;
	struct fsobj_seen seen;

	(void)state;
	(void)snprintf(location, sizeof(location), "%.3000s/checked", base);
	assert_int_equal(open_flags(location, KVC_ROOT_CREATE | KVC_ROOT_OWNED, &root), 0);
	assert_int_equal(put(root, "n/key", 10, false, &seen), 0);
	moved_away(moved, location);
	assert_int_equal(symlink(moved, location), 0);
	assert_int_equal(fsobj_reclaim(root), -EPERM);
	assert_int_equal(put(root, "n/key", 20, false, &seen), -EPERM);
	assert_int_equal(size_of(root, "n/key"), -EPERM);
	assert_int_equal(unlink(location), 0);
	assert_int_equal(put(root, "n/key", 30, false, &seen), 0);
	assert_int_equal(count_files(location, "key"), 1);
	fsobj_root_close(root);

	/* Roots that are only read see it too. */
	assert_int_equal(open_flags(location, KVC_ROOT_READ_ONLY, &root), 0);
	assert_int_equal(size_of(root, "n/key"), 30);
	remove_tree(location);
	assert_int_equal(rename(moved, location), 0);
	assert_int_equal(fsobj_reclaim(root), 0);
	assert_int_equal(size_of(root, "n/key"), 10);
	fsobj_root_close(root);
}

static int make_base(void **state)
{
	char folder[PATH_MAX];

	(void)state;
	if (getcwd(folder, sizeof(folder)) == NULL)
		return -1;
	(void)snprintf(base, sizeof(base), "%.4000s/test-fsobj-XXXXXX", folder);
	return mkdtemp(base) != NULL ? 0 : -1;
}

static int drop_base(void **state)
{
	(void)state;
	remove_tree(base);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_that_leave_the_root_are_refused),
		cmocka_unit_test(symlinks_inside_the_root_are_not_followed),
		cmocka_unit_test(what_is_no_file_gives_an_error_and_does_not_hang),
		cmocka_unit_test(nothing_is_seen_before_publish),
		cmocka_unit_test(file_systems_without_tmpfile_publish_by_rename),
		cmocka_unit_test(links_are_made_by_proc_without_the_capability),
		cmocka_unit_test(folders_removed_at_run_time_are_made_again),
		cmocka_unit_test(folder_descriptors_are_bounded),
		cmocka_unit_test(without_descriptors_the_object_stays),
		cmocka_unit_test(remove_takes_only_the_version_that_was_read),
		cmocka_unit_test(a_writer_killed_at_any_step_leaves_no_short_object),
		cmocka_unit_test(all_the_dead_are_reclaimed),
		cmocka_unit_test(a_live_writer_is_not_reclaimed),
		cmocka_unit_test(without_shared_locks_age_decides),
		cmocka_unit_test(list_finds_what_is_published_and_nothing_else),
		cmocka_unit_test(opening_says_what_is_wrong),
		cmocka_unit_test(a_read_only_root_is_read_and_left_alone),
		cmocka_unit_test(a_read_only_mount_is_found_out),
		cmocka_unit_test(direct_io_is_used_only_where_it_works),
		cmocka_unit_test(containers_are_whole_from_the_start),
		cmocka_unit_test(a_full_file_system_keeps_nothing_half),
		cmocka_unit_test(modes_do_not_depend_on_the_umask),
		cmocka_unit_test(a_replaced_root_is_opened_anew),
		cmocka_unit_test(a_replaced_root_is_checked_again),
	};

	int failed = cmocka_run_group_tests(tests, make_base, drop_base);

	if (failed != 0)
		return failed;
	return skipped ? 77 : 0;
}
