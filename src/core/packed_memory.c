/* SPDX-License-Identifier: Apache-2.0 */
/* The index of roots that have no folder: memfds by name, kept by this process. */
#include "core/packed_dir.h"

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REMOVED_MODE ((mode_t)0) /* a file that is in use has the mode of the root's files */

struct file {
	struct file *next;
	int fd;
	char name[];
};

struct kvc_packed_memory {
	struct kvc_packed_memory *next;
	uint8_t uuid[16];
	struct file *files;
};

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvc_packed_memory *memories;
static struct file *forgotten; /* of the parent; a child that was just forked frees nothing */

/* ---------------------------------------------------------------- fork */

void kvc_packed_memory_fork_prepare(void)
{
	(void)pthread_mutex_lock(&memory_lock);
}

void kvc_packed_memory_fork_parent(void)
{
	(void)pthread_mutex_unlock(&memory_lock);
}

/* The pages behind these descriptors are the parent's, which goes on changing them, while the data
 * that they tell of is a copy in the child: there the index begins empty. */
void kvc_packed_memory_fork_child(void)
{
	for (struct kvc_packed_memory *memory = memories; memory; memory = memory->next) {
		struct file **link = &memory->files;

		for (; *link; link = &(*link)->next) {
			(void)close((*link)->fd);
			(*link)->fd = -1;
		}
		*link = forgotten;
		forgotten = memory->files;
		memory->files = NULL;
	}
	(void)pthread_mutex_unlock(&memory_lock);
}

/* ---------------------------------------------------------------- files */

int kvc_packed_memory_find(const uint8_t uuid[16], struct kvc_packed_memory **out)
{
	struct kvc_packed_memory *memory;
	int rc = 0;

	(void)pthread_mutex_lock(&memory_lock);
	for (memory = memories; memory; memory = memory->next)
		if (memcmp(memory->uuid, uuid, sizeof(memory->uuid)) == 0)
			break;
	if (!memory) {
		memory = calloc(1, sizeof(*memory));
		if (memory) {
			memcpy(memory->uuid, uuid, sizeof(memory->uuid));
			memory->next = memories;
			memories = memory;
		} else {
			rc = -ENOMEM;
		}
	}
	(void)pthread_mutex_unlock(&memory_lock);
	if (rc == 0)
		*out = memory;
	return rc;
}

/* Where the pointer to the file is, or the end of the list. The lock is held. */
static struct file **find(struct kvc_packed_memory *memory, const char *name)
{
	struct file **link = &memory->files;

	while (*link && strcmp((*link)->name, name) != 0)
		link = &(*link)->next;
	return link;
}

static int duplicate(int fd, int *out)
{
	const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (copy < 0)
		return -errno;
	*out = copy;
	return 0;
}

static int make(const char *name, int *out)
{
	const char *slash = strrchr(name, '/');
	const int fd = memfd_create(slash ? slash + 1 : name, MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	*out = fd;
	return 0;
}

/* Takes the descriptor itself in, at the end of the list. The lock is held. */
static int insert(struct file **end, const char *name, int fd)
{
	const size_t name_bytes = strlen(name) + 1;
	struct file *file = malloc(sizeof(*file) + name_bytes);

	if (!file)
		return -ENOMEM;
	file->next = NULL;
	file->fd = fd;
	memcpy(file->name, name, name_bytes);
	*end = file;
	return 0;
}

static int make_named(struct file **end, const char *name, mode_t mode)
{
	int fd = -1, rc = make(name, &fd);

	if (rc < 0)
		return rc;
	rc = fchmod(fd, mode) == 0 ? insert(end, name, fd) : -errno;
	if (rc < 0)
		(void)close(fd);
	return rc;
}

int kvc_packed_memory_file(struct kvc_packed_memory *memory, const char *name, bool create,
			   bool exclusive, mode_t mode, int *out_fd)
{
	struct file **link;
	int rc = 0;

	(void)pthread_mutex_lock(&memory_lock);
	link = find(memory, name);
	if (*link)
		rc = create && exclusive ? -EEXIST : 0;
	else
		rc = create ? make_named(link, name, mode) : -ENOENT;
	if (rc == 0)
		rc = duplicate((*link)->fd, out_fd);
	(void)pthread_mutex_unlock(&memory_lock);
	return rc;
}

int kvc_packed_memory_draft(struct kvc_packed_memory *memory, const char *name, int *out_fd)
{
	bool taken;

	(void)pthread_mutex_lock(&memory_lock);
	taken = *find(memory, name) != NULL;
	(void)pthread_mutex_unlock(&memory_lock);
	return taken ? -EEXIST : make(name, out_fd);
}

int kvc_packed_memory_publish(struct kvc_packed_memory *memory, const char *name, int fd)
{
	struct file **link;
	int copy = -1, rc;

	(void)pthread_mutex_lock(&memory_lock);
	link = find(memory, name);
	rc = *link ? -EEXIST : duplicate(fd, &copy);
	if (rc == 0) {
		rc = insert(link, name, copy);
		if (rc < 0)
			(void)close(copy);
	}
	(void)pthread_mutex_unlock(&memory_lock);
	return rc;
}

int kvc_packed_memory_remove(struct kvc_packed_memory *memory, const char *name)
{
	struct file **link, *file;

	(void)pthread_mutex_lock(&memory_lock);
	link = find(memory, name);
	file = *link;
	if (file)
		*link = file->next;
	(void)pthread_mutex_unlock(&memory_lock);
	if (!file)
		return -ENOENT;
	/* The mode is the inode's: everybody who has it open sees that. */
	if (fchmod(file->fd, REMOVED_MODE) != 0)
		kvc_log(KVC_LOG_DEBUG, "%s in memory: %s", file->name, strerror(errno));
	(void)close(file->fd);
	free(file);
	return 0;
}

bool kvc_packed_memory_removed(mode_t mode)
{
	return (mode & 0777) == REMOVED_MODE;
}

int kvc_packed_memory_each(struct kvc_packed_memory *memory, const char *folder,
			   int (*fn)(void *context, const char *rest), void *context)
{
	const size_t bytes = strlen(folder);
	int rc = 0;

	(void)pthread_mutex_lock(&memory_lock);
	for (const struct file *file = memory->files; file && rc == 0; file = file->next) {
		if (bytes == 0)
			rc = fn(context, file->name);
		else if (strncmp(file->name, folder, bytes) == 0 && file->name[bytes] == '/')
			rc = fn(context, file->name + bytes + 1);
	}
	(void)pthread_mutex_unlock(&memory_lock);
	return rc;
}
