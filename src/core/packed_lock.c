/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OFD locks belong to an opening of the file: they are gone when its last descriptor is, that is
 * with the process, unless a forked child has one. So a child closes them, which takes nothing from
 * the parent. Files in memory are this process's alone, and so are their locks.
 */
#include "core/packed_dir.h"

#include "core/clock.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAUSE_MIN_NS UINT64_C(50000)
#define PAUSE_MAX_NS UINT64_C(5000000)
#define MEMORY_BYTES 256u /* bytes of a file in memory that can be locked */

enum held {
	HELD_NOT,
	HELD_SHARED,
	HELD_EXCLUSIVE,
};

struct kvc_packed_lock {
	struct kvc_packed_lock *next;
	int fd; /* -1: in a forked child */
	bool read_only;
	bool memory;
	dev_t device; /* of the file */
	ino_t inode;
	uint8_t held[MEMORY_BYTES]; /* enum held; memory only */
};

static pthread_mutex_t locks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvc_packed_lock *locks; /* all that are open */

/* ---------------------------------------------------------------- fork */

#define FORK_WAIT_S 1

static _Thread_local bool fork_has_lock;

/* fork() waits while another thread opens a file of locks, but not for ever, as it may lie on a
 * mount that does not answer. The list itself is whole at any time. */
static void fork_prepare(void)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += FORK_WAIT_S;
	fork_has_lock = pthread_mutex_timedlock(&locks_lock, &until) == 0;
	kvc_packed_memory_fork_prepare();
	kvc_guard_fork_prepare();
}

static void fork_parent(void)
{
	kvc_guard_fork_done();
	kvc_packed_memory_fork_parent();
	if (fork_has_lock)
		(void)pthread_mutex_unlock(&locks_lock);
	fork_has_lock = false;
}

static void fork_child(void)
{
	for (struct kvc_packed_lock *lock = locks; lock; lock = lock->next) {
		if (lock->fd >= 0)
			(void)close(lock->fd);
		lock->fd = -1;
	}
	kvc_guard_fork_done();
	kvc_packed_memory_fork_child();
	if (fork_has_lock)
		(void)pthread_mutex_unlock(&locks_lock);
	else
		(void)pthread_mutex_init(&locks_lock, NULL);
	fork_has_lock = false;
}

__attribute__((constructor)) static void fork_prepared(void)
{
	(void)pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* ---------------------------------------------------------------- open, close */

int kvc_packed_lock_open(struct kvc_packed_dir *dir, const char *name, bool read_only,
			 struct kvc_packed_lock **out)
{
	struct kvc_packed_lock *lock = calloc(1, sizeof(*lock));
	struct stat st;
	int rc;

	if (!lock)
		return -ENOMEM;
	lock->read_only = read_only;
	lock->memory = kvc_packed_dir_is_memory(dir);
	/* No child may be forked that has the descriptor and does not know of it. */
	(void)pthread_mutex_lock(&locks_lock);
	rc = kvc_packed_dir_file(dir, name, read_only ? O_RDONLY : O_RDWR | O_CREAT, &lock->fd);
	if (rc == 0 && fstat(lock->fd, &st) != 0) {
		rc = -errno;
		(void)close(lock->fd);
	}
	if (rc == 0) {
		lock->device = st.st_dev;
		lock->inode = st.st_ino;
		lock->next = locks;
		locks = lock;
	}
	(void)pthread_mutex_unlock(&locks_lock);
	if (rc == 0)
		*out = lock;
	else
		free(lock);
	return rc;
}

void kvc_packed_lock_close(struct kvc_packed_lock *lock)
{
	struct kvc_packed_lock **link = &locks;

	if (!lock)
		return;
	(void)pthread_mutex_lock(&locks_lock);
	while (*link != lock)
		link = &(*link)->next;
	*link = lock->next;
	if (lock->fd >= 0)
		(void)close(lock->fd);
	(void)pthread_mutex_unlock(&locks_lock);
	free(lock);
}

/* ---------------------------------------------------------------- locks */

static int set_memory(struct kvc_packed_lock *lock, uint32_t byte, enum held held)
{
	int rc = 0;

	if (byte >= MEMORY_BYTES)
		return -EINVAL;
	(void)pthread_mutex_lock(&locks_lock);
	for (const struct kvc_packed_lock *other = locks; other && rc == 0; other = other->next) {
		if (other == lock || !other->memory || other->device != lock->device ||
		    other->inode != lock->inode)
			continue;
		if (held != HELD_NOT && (other->held[byte] == HELD_EXCLUSIVE ||
					 (held == HELD_EXCLUSIVE && other->held[byte] != HELD_NOT)))
			rc = -EAGAIN;
	}
	if (rc == 0)
		lock->held[byte] = (uint8_t)held;
	(void)pthread_mutex_unlock(&locks_lock);
	return rc;
}

static int set_file(const struct kvc_packed_lock *lock, uint32_t byte, enum held held)
{
	static const short types[] = {
		[HELD_NOT] = F_UNLCK,
		[HELD_SHARED] = F_RDLCK,
		[HELD_EXCLUSIVE] = F_WRLCK,
	};
	struct flock flock = {
		.l_type = types[held],
		.l_whence = SEEK_SET,
		.l_start = (off_t)byte,
		.l_len = 1,
	};

	while (fcntl(lock->fd, F_OFD_SETLK, &flock) != 0) {
		if (errno == EACCES)
			return -EAGAIN;
		if (errno != EINTR)
			return -errno;
	}
	return 0;
}

static int set(struct kvc_packed_lock *lock, uint32_t byte, enum held held)
{
	return lock->memory ? set_memory(lock, byte, held) : set_file(lock, byte, held);
}

int kvc_packed_lock_try(struct kvc_packed_lock *lock, uint32_t byte, bool exclusive)
{
	if (lock->fd < 0)
		return kvc_fail(-ESTALE, "a lock of the process that this one was forked from");
	if (exclusive && lock->read_only)
		return kvc_fail(-EROFS, "an exclusive lock by somebody who only reads");
	return set(lock, byte, exclusive ? HELD_EXCLUSIVE : HELD_SHARED);
}

int kvc_packed_lock_wait(struct kvc_packed_lock *lock, uint32_t byte, bool exclusive,
			 uint64_t deadline_ns)
{
	uint64_t pause_ns = PAUSE_MIN_NS;

	for (;;) {
		const int rc = kvc_packed_lock_try(lock, byte, exclusive);
		const uint64_t now_ns = kvc_now_ns();
		struct timespec pause;

		if (rc != -EAGAIN)
			return rc;
		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		if (pause_ns > deadline_ns - now_ns)
			pause_ns = deadline_ns - now_ns;
		pause = kvc_timespec(pause_ns);
		(void)nanosleep(&pause, NULL);
		pause_ns = 2 * pause_ns < PAUSE_MAX_NS ? 2 * pause_ns : PAUSE_MAX_NS;
	}
}

void kvc_packed_lock_release(struct kvc_packed_lock *lock, uint32_t byte)
{
	if (lock->fd >= 0)
		(void)set(lock, byte, HELD_NOT);
}

void kvc_packed_lock_touch(struct kvc_packed_lock *lock)
{
	if (lock->fd >= 0)
		(void)futimens(lock->fd, NULL);
}
