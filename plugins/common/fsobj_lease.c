/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Temporary names and who may remove them.
 *
 * A temporary name carries its writer's uuid. The writer holds an OFD lock on the lease file
 * .kvcellar/leases/<uuid> as long as it lives, and has it before it makes the first such name.
 * Whoever gets that lock has the proof that the writer is dead. Where locks are not shared between
 * hosts, age decides instead: a lease that was not touched for a day, and files as old.
 */
#include "common/fsobj_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define LEASE_AGE_S   (24 * 3600)
#define LEASE_TOUCH_S 3600
#define DEAD_MAX      64u

int fsobj_lease_init(struct fsobj_lease *lease)
{
	static const char digits[] = "0123456789abcdef";
	uint8_t random[FSOBJ_UUID_CHARS / 2];

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return -EIO;
	for (size_t i = 0; i < sizeof(random); i++) {
		lease->uuid[2 * i] = digits[random[i] >> 4];
		lease->uuid[2 * i + 1] = digits[random[i] & 15];
	}
	lease->uuid[FSOBJ_UUID_CHARS] = '\0';
	lease->fd = -1;
	lease->touched_s = 0;
	atomic_init(&lease->temp_count, 0);
	return -pthread_mutex_init(&lease->lock, NULL);
}

static int lease_lock(int fd)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	return fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
}

static bool lock_unknown(int error)
{
	return error == -EINVAL || error == -ENOLCK || error == -ENOSYS || error == -EOPNOTSUPP;
}

/* Locked before it has its name: nobody can take it for that of a dead writer. */
static int lease_make_locked(struct fsobj_root *root, int folder_fd)
{
	int fd = openat(folder_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, root->file_mode);
	int error;

	if (fd < 0)
		return -errno;
	error = lease_lock(fd);
	if (error == 0 || lock_unknown(error))
		error = fsobj_link(root, fd, folder_fd, root->lease.uuid);
	/* Our own, from before this folder was moved away and back. */
	if (error == -EEXIST && unlinkat(folder_fd, root->lease.uuid, 0) == 0)
		error = fsobj_link(root, fd, folder_fd, root->lease.uuid);
	if (error != 0) {
		close(fd);
		return error;
	}
	root->lease.fd = fd;
	return 0;
}

/* The same where O_TMPFILE is missing. Another process may find the lease before it is locked: it
 * then holds the lock or has removed the file, which is why this can return -EAGAIN. */
static int lease_make_named(struct fsobj_root *root, int folder_fd)
{
	int fd = openat(folder_fd, root->lease.uuid, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC,
			root->file_mode);
	struct stat st;
	int error;

	if (fd < 0)
		return -errno;
	error = lease_lock(fd);
	if ((error == 0 || lock_unknown(error)) && fstat(fd, &st) == 0 && st.st_nlink > 0) {
		root->lease.fd = fd;
		return 0;
	}
	close(fd);
	return -EAGAIN;
}

static int lease_make(struct fsobj_root *root)
{
	static const struct timespec pause = { .tv_nsec = 5000000 };
	struct fsobj_folder folder;
	int error = -EAGAIN;

	for (int attempt = 0; attempt < 200 && error == -EAGAIN; attempt++) {
		if (attempt > 0)
			(void)nanosleep(&pause, NULL);
		root->lease.generation = atomic_load(&root->folders.generation);
		error = fsobj_folder_get(root, FSOBJ_LEASES, strlen(FSOBJ_LEASES), true, &folder);
		if (error != 0)
			return error;
		if (root->lease.generation != atomic_load(&root->folders.generation)) {
			fsobj_folder_put(root, &folder);
			error = -EAGAIN;
			continue;
		}
		error = root->info.tmpfile ? lease_make_locked(root, folder.fd) :
					     lease_make_named(root, folder.fd);
		if (fsobj_folder_gone(root, &folder, error))
			error = -EAGAIN;
		fsobj_folder_put(root, &folder);
	}
	root->lease.owner = getpid();
	return error;
}

int fsobj_lease_hold(struct fsobj_root *root)
{
	struct fsobj_lease *lease = &root->lease;
	struct timespec now;
	struct stat st;
	int error = 0;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	pthread_mutex_lock(&lease->lock);
	/* Removed, or left behind in a folder that the location does not name any more. */
	if (lease->fd >= 0 && (fstat(lease->fd, &st) != 0 || st.st_nlink == 0 ||
			       lease->generation != atomic_load(&root->folders.generation))) {
		close(lease->fd);
		lease->fd = -1;
	}
	if (lease->fd < 0) {
		error = lease_make(root);
		lease->touched_s = now.tv_sec;
	} else if (now.tv_sec - lease->touched_s >= LEASE_TOUCH_S ||
		   now.tv_sec < lease->touched_s) {
		(void)futimens(lease->fd, NULL);
		lease->touched_s = now.tv_sec;
	}
	pthread_mutex_unlock(&lease->lock);
	return error;
}

void fsobj_lease_fini(struct fsobj_root *root)
{
	struct fsobj_lease *lease = &root->lease;
	struct fsobj_folder folder;
	struct stat st;

	if (lease->fd >= 0) {
		if (lease->owner == getpid() && fstat(lease->fd, &st) == 0 && st.st_nlink > 0 &&
		    fsobj_folder_get(root, FSOBJ_LEASES, strlen(FSOBJ_LEASES), false, &folder) ==
			    0) {
			(void)unlinkat(folder.fd, lease->uuid, 0);
			fsobj_folder_put(root, &folder);
		}
		close(lease->fd);
		lease->fd = -1;
	}
	pthread_mutex_destroy(&lease->lock);
}

void fsobj_temp_name(const struct fsobj_root *root, uint64_t number, char name[FSOBJ_TEMP_BYTES])
{
	(void)snprintf(name, FSOBJ_TEMP_BYTES, FSOBJ_TEMP_PREFIX "%s.%" PRIu64, root->lease.uuid,
		       number);
}

uint64_t fsobj_temp_next(struct fsobj_root *root, char name[FSOBJ_TEMP_BYTES])
{
	uint64_t number = atomic_fetch_add(&root->lease.temp_count, 1) + 1;

	fsobj_temp_name(root, number, name);
	return number;
}

/* ---------------------------------------------------------------- reclaim */

struct dead_writer {
	char uuid[FSOBJ_UUID_CHARS + 1];
	int fd; /* holds the lock */
	bool by_age;
	bool kept; /* something of its could not be removed yet */
};

struct reclaim {
	struct fsobj_root *root;
	struct dead_writer dead[DEAD_MAX];
	uint32_t dead_count;
	int leases_fd;
	int64_t removed;
	int64_t now_s;
};

static bool uuid_valid(const char *text)
{
	return strlen(text) == FSOBJ_UUID_CHARS &&
	       strspn(text, "0123456789abcdef") == FSOBJ_UUID_CHARS;
}

/* Adds the writer of the lease when it is proven dead (or old, where that is all we can know). */
static void lease_judge(struct reclaim *reclaim, int folder_fd, const char *uuid)
{
	struct dead_writer *dead = &reclaim->dead[reclaim->dead_count];
	struct stat st;
	int error;
	int fd;

	fd = openat(folder_fd, uuid, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return;
	dead->by_age = !reclaim->root->info.local;
	dead->kept = false;
	error = lease_lock(fd);
	if (lock_unknown(error)) {
		dead->by_age = true;
		error = 0;
	}
	if (error != 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink == 0 ||
	    (dead->by_age && reclaim->now_s - st.st_mtim.tv_sec < LEASE_AGE_S)) {
		close(fd);
		return;
	}
	dead->fd = fd;
	memcpy(dead->uuid, uuid, sizeof(dead->uuid));
	reclaim->dead_count++;
}

static void leases_judge(struct reclaim *reclaim, int folder_fd)
{
	struct dirent *entry;
	int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

	if (dir == NULL) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while (reclaim->dead_count < DEAD_MAX && (entry = readdir(dir)) != NULL) {
		if (uuid_valid(entry->d_name) &&
		    strcmp(entry->d_name, reclaim->root->lease.uuid) != 0)
			lease_judge(reclaim, folder_fd, entry->d_name);
	}
	closedir(dir);
}

static bool temp_is_old(const struct reclaim *reclaim, int folder_fd, const char *leaf)
{
	struct stat st;

	return fstatat(folder_fd, leaf, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       reclaim->now_s - st.st_mtim.tv_sec >= LEASE_AGE_S;
}

/* A writer whose lease is gone is dead as well. Where locks are not shared, age decides again. */
static bool temp_is_abandoned(const struct reclaim *reclaim, int folder_fd, const char *leaf,
			      const char *uuid)
{
	char lease[FSOBJ_UUID_CHARS + 1];

	memcpy(lease, uuid, FSOBJ_UUID_CHARS);
	lease[FSOBJ_UUID_CHARS] = '\0';
	if (!uuid_valid(lease) || strcmp(lease, reclaim->root->lease.uuid) == 0 ||
	    faccessat(reclaim->leases_fd, lease, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
		return false;
	return reclaim->root->info.local || temp_is_old(reclaim, folder_fd, leaf);
}

static int reclaim_entry(struct fsobj_walk *walk, int folder_fd, const char *leaf, const char *path,
			 size_t path_bytes)
{
	struct reclaim *reclaim = walk->context;
	const char *uuid = leaf + strlen(FSOBJ_TEMP_PREFIX);
	struct dead_writer *dead = NULL;

	(void)path;
	(void)path_bytes;
	if (strncmp(leaf, FSOBJ_TEMP_PREFIX, strlen(FSOBJ_TEMP_PREFIX)) != 0 ||
	    strlen(uuid) <= FSOBJ_UUID_CHARS || uuid[FSOBJ_UUID_CHARS] != '.')
		return 0;
	for (uint32_t i = 0; i < reclaim->dead_count && dead == NULL; i++) {
		if (memcmp(reclaim->dead[i].uuid, uuid, FSOBJ_UUID_CHARS) == 0)
			dead = &reclaim->dead[i];
	}
	if (dead == NULL && !temp_is_abandoned(reclaim, folder_fd, leaf, uuid))
		return 0;
	if (dead != NULL && dead->by_age && !temp_is_old(reclaim, folder_fd, leaf))
		dead->kept = true;
	else if (unlinkat(folder_fd, leaf, 0) == 0)
		reclaim->removed++;
	else if (errno != ENOENT && dead != NULL)
		dead->kept = true;
	return 0;
}

/* One round, for DEAD_MAX writers at most. Returns how many of them are done with. */
static int reclaim_round(struct reclaim *reclaim, int folder_fd)
{
	struct fsobj_walk walk = { .entry = reclaim_entry, .context = reclaim };
	int error = 0;
	int done = 0;

	reclaim->dead_count = 0;
	leases_judge(reclaim, folder_fd);
	/* Without a dead writer there is nothing to look for, and no folder is listed. */
	if (reclaim->dead_count > 0)
		error = fsobj_walk_run(reclaim->root, &walk, "", 0);
	for (uint32_t i = 0; i < reclaim->dead_count; i++) {
		if (error == 0 && !reclaim->dead[i].kept &&
		    unlinkat(folder_fd, reclaim->dead[i].uuid, 0) == 0)
			done++;
		close(reclaim->dead[i].fd);
	}
	return error != 0 ? error : done;
}

int64_t fsobj_reclaim(struct fsobj_root *root)
{
	struct reclaim reclaim = { .root = root };
	struct fsobj_folder folder;
	struct timespec now;
	int done;

	fsobj_folders_renew(root);
	if (root->info.read_only)
		return 0;
	done = fsobj_folder_get(root, FSOBJ_LEASES, strlen(FSOBJ_LEASES), false, &folder);
	if (done != 0)
		return done == -ENOENT ? 0 : done;
	(void)clock_gettime(CLOCK_REALTIME, &now);
	reclaim.now_s = now.tv_sec;
	reclaim.leases_fd = folder.fd;
	do
		done = reclaim_round(&reclaim, folder.fd);
	while (done > 0 && reclaim.dead_count == DEAD_MAX);
	fsobj_folder_put(root, &folder);
	return done >= 0 ? reclaim.removed : done;
}
