/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of the folders below a root: looked up by path, bounded, replaced when a folder was
 * removed behind our back. The root itself is the folder "". */
#include "common/fsobj_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_OPEN_FLAGS (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

int fsobj_folder_mode(int parent_fd, const char *name, mode_t mode)
{
	struct stat st;

	/* A group that is handed down by the folder above stays handed down. */
	if (fstatat(parent_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
		return -errno;
	return fchmodat(parent_fd, name, mode | (st.st_mode & S_ISGID), 0) != 0 ? -errno : 0;
}

static uint32_t folders_bound(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
	    limit.rlim_cur / 4 >= FSOBJ_FOLDERS_MAX)
		return FSOBJ_FOLDERS_MAX;
	if (limit.rlim_cur / 4 <= FSOBJ_FOLDERS_MIN)
		return FSOBJ_FOLDERS_MIN;
	return (uint32_t)(limit.rlim_cur / 4);
}

int fsobj_folders_init(struct fsobj_folders *folders)
{
	uint32_t chains = FSOBJ_FOLDERS_MIN;
	int error;

	folders->slot_count = folders_bound();
	while (chains < folders->slot_count)
		chains *= 2;
	folders->chain_mask = chains - 1;
	folders->hand = 0;
	folders->top_known = false;
	atomic_init(&folders->generation, 0);
	folders->slots = calloc(folders->slot_count, sizeof(*folders->slots));
	folders->chains = malloc(chains * sizeof(*folders->chains));
	if (folders->slots == NULL || folders->chains == NULL) {
		error = -ENOMEM;
		goto free_tables;
	}
	for (uint32_t i = 0; i < folders->slot_count; i++)
		folders->slots[i].fd = -1;
	for (uint32_t i = 0; i < chains; i++)
		folders->chains[i] = FSOBJ_NO_SLOT;
	error = -pthread_mutex_init(&folders->lock, NULL);
	if (error == 0)
		return 0;
free_tables:
	free(folders->chains);
	free(folders->slots);
	return error;
}

void fsobj_folders_fini(struct fsobj_folders *folders)
{
	for (uint32_t i = 0; i < folders->slot_count; i++) {
		if (folders->slots[i].fd >= 0)
			close(folders->slots[i].fd);
	}
	pthread_mutex_destroy(&folders->lock);
	free(folders->chains);
	free(folders->slots);
}

static uint64_t path_hash(const char *path, size_t bytes)
{
	uint64_t hash = 0x9e3779b97f4a7c15u ^ bytes;

	while (bytes > 0) {
		size_t n = bytes < 8 ? bytes : 8;
		uint64_t word = 0;

		memcpy(&word, path, n);
		hash = (hash ^ word) * 0xff51afd7ed558ccdu;
		hash ^= hash >> 32;
		path += n;
		bytes -= n;
	}
	return hash;
}

static uint32_t slot_find(const struct fsobj_folders *folders, uint64_t hash, const char *path,
			  size_t bytes)
{
	uint32_t i = folders->chains[hash & folders->chain_mask];

	while (i != FSOBJ_NO_SLOT) {
		const struct fsobj_slot *slot = &folders->slots[i];

		if (slot->hash == hash && slot->path_bytes == bytes &&
		    memcmp(slot->path, path, bytes) == 0)
			return i;
		i = slot->next;
	}
	return FSOBJ_NO_SLOT;
}

/* Takes the slot out of its chain. With the lock held. */
static void slot_unchain(struct fsobj_folders *folders, uint32_t index)
{
	uint32_t *link = &folders->chains[folders->slots[index].hash & folders->chain_mask];

	while (*link != index)
		link = &folders->slots[*link].next;
	*link = folders->slots[index].next;
}

/* A slot that may be used for another folder, or none. With the lock held. */
static uint32_t slot_take(struct fsobj_folders *folders)
{
	for (uint32_t turn = 0; turn < 2 * folders->slot_count; turn++) {
		uint32_t index = folders->hand;
		struct fsobj_slot *slot = &folders->slots[index];

		folders->hand = (index + 1) % folders->slot_count;
		if (slot->fd < 0)
			return index;
		if (slot->refs > 0)
			continue;
		if (slot->recent) {
			slot->recent = false;
			continue;
		}
		slot_unchain(folders, index);
		close(slot->fd);
		slot->fd = -1;
		return index;
	}
	return FSOBJ_NO_SLOT;
}

/* Puts fd into the table, or hands out what another thread put there first. generation: that of the
 * table when the look-up began. */
static void folder_insert(struct fsobj_folders *folders, uint64_t hash, const char *path,
			  size_t bytes, int fd, unsigned int generation, struct fsobj_folder *out)
{
	struct fsobj_slot *slot;
	uint32_t index;

	out->fd = fd;
	out->slot = -1;
	if (bytes > FSOBJ_FOLDER_PATH_BYTES)
		return;
	pthread_mutex_lock(&folders->lock);
	if (generation != atomic_load(&folders->generation))
		goto unlock;
	index = slot_find(folders, hash, path, bytes);
	if (index != FSOBJ_NO_SLOT) {
		close(fd);
	} else {
		index = slot_take(folders);
		if (index == FSOBJ_NO_SLOT)
			goto unlock;
		slot = &folders->slots[index];
		slot->fd = fd;
		slot->refs = 0;
		slot->hash = hash;
		slot->path_bytes = (uint32_t)bytes;
		slot->dead = false;
		memcpy(slot->path, path, bytes);
		slot->next = folders->chains[hash & folders->chain_mask];
		folders->chains[hash & folders->chain_mask] = index;
	}
	slot = &folders->slots[index];
	slot->refs++;
	slot->recent = true;
	out->fd = slot->fd;
	out->slot = (int)index;
unlock:
	pthread_mutex_unlock(&folders->lock);
}

void fsobj_folder_put(struct fsobj_root *root, struct fsobj_folder *folder)
{
	struct fsobj_folders *folders = &root->folders;
	struct fsobj_slot *slot;

	if (folder->fd < 0)
		return;
	if (folder->slot < 0) {
		close(folder->fd);
	} else {
		pthread_mutex_lock(&folders->lock);
		slot = &folders->slots[folder->slot];
		if (--slot->refs == 0 && slot->dead) {
			close(slot->fd);
			slot->fd = -1;
		}
		pthread_mutex_unlock(&folders->lock);
	}
	folder->fd = -1;
	folder->slot = -1;
}

bool fsobj_folder_gone(struct fsobj_root *root, const struct fsobj_folder *folder, int error)
{
	struct fsobj_folders *folders = &root->folders;
	struct fsobj_slot *slot;
	struct stat st;

	/* ext4 says EPERM to a new file in a removed folder. */
	if (error != -ENOENT && error != -ESTALE && error != -EPERM)
		return false;
	if (fstat(folder->fd, &st) == 0 && st.st_nlink > 0)
		return false;
	if (folder->slot >= 0) {
		pthread_mutex_lock(&folders->lock);
		slot = &folders->slots[folder->slot];
		if (!slot->dead) {
			slot_unchain(folders, (uint32_t)folder->slot);
			slot->dead = true;
		}
		pthread_mutex_unlock(&folders->lock);
	}
	return true;
}

/* With the lock held. What is in use is closed when it is put back. */
static void folders_forget(struct fsobj_folders *folders)
{
	for (uint32_t i = 0; i < folders->slot_count; i++) {
		struct fsobj_slot *slot = &folders->slots[i];

		if (slot->fd < 0 || slot->dead)
			continue;
		slot_unchain(folders, i);
		if (slot->refs > 0) {
			slot->dead = true;
		} else {
			close(slot->fd);
			slot->fd = -1;
		}
	}
	folders->top_known = false;
	atomic_fetch_add(&folders->generation, 1);
}

/* The root's folder was opened by path: folders below another one are forgotten. */
static void top_opened(struct fsobj_folders *folders, int fd, unsigned int *generation)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return;
	pthread_mutex_lock(&folders->lock);
	if (*generation == atomic_load(&folders->generation)) {
		if (folders->top_known &&
		    (st.st_dev != folders->top_device || st.st_ino != folders->top_inode))
			folders_forget(folders);
		folders->top_known = true;
		folders->top_device = st.st_dev;
		folders->top_inode = st.st_ino;
		*generation = atomic_load(&folders->generation);
	}
	pthread_mutex_unlock(&folders->lock);
}

void fsobj_folders_renew(struct fsobj_root *root)
{
	int flags = (root->flags & KVC_ROOT_OWNED) != 0 ? AT_SYMLINK_NOFOLLOW : 0;
	struct fsobj_folders *folders = &root->folders;
	char text[PATH_MAX + 100];
	bool moved = false;
	struct stat st;
	int error = 0;

	if (fstatat(AT_FDCWD, root->location, &st, flags) != 0)
		error = errno;
	/* Other errors do not say what the location names. */
	if (error != 0 && error != ENOENT && error != ENOTDIR && error != ELOOP)
		return;
	pthread_mutex_lock(&folders->lock);
	if (folders->top_known)
		moved = error != 0 || st.st_dev != folders->top_device ||
			st.st_ino != folders->top_inode;
	if (moved)
		folders_forget(folders);
	pthread_mutex_unlock(&folders->lock);
	if (!moved || root->host == NULL || root->host->log_debug == NULL)
		return;
	(void)snprintf(text, sizeof(text), "folder %s was moved or replaced: it is opened anew",
		       root->location);
	root->host->log_debug(root->host->context, text);
}

/* Opens one component below parent_fd, making it when that is asked for. */
static int component_open(const struct fsobj_root *root, int parent_fd, const char *name,
			  bool create, int *out)
{
	for (int attempt = 0; attempt < 3; attempt++) {
		int fd = openat(parent_fd, name, FOLDER_OPEN_FLAGS);

		if (fd >= 0) {
			*out = fd;
			return 0;
		}
		if (errno != ENOENT || !create)
			return -errno;
		if (mkdirat(parent_fd, name, root->folder_mode) == 0)
			/* The umask may have taken something; ours alone is not worth failing. */
			(void)fsobj_folder_mode(parent_fd, name, root->folder_mode);
		else if (errno != EEXIST)
			return -errno;
	}
	return -ENOENT;
}

static int path_open(const struct fsobj_root *root, int root_fd, const char *path, size_t bytes,
		     bool create, int *out)
{
	char component[NAME_MAX + 1];
	size_t begin = 0;
	int fd = root_fd;
	int error = -EINVAL;

	while (begin < bytes) {
		const char *slash = memchr(path + begin, '/', bytes - begin);
		size_t end = slash != NULL ? (size_t)(slash - path) : bytes;
		int child = -1;

		if (end - begin > NAME_MAX)
			error = -ENAMETOOLONG;
		else {
			memcpy(component, path + begin, end - begin);
			component[end - begin] = '\0';
			error = component_open(root, fd, component, create, &child);
		}
		if (fd != root_fd)
			close(fd);
		if (error != 0)
			return error;
		fd = child;
		begin = end + 1;
	}
	*out = fd;
	return error;
}

static int folder_lookup(struct fsobj_root *root, const char *path, size_t bytes, bool create,
			 struct fsobj_folder *out)
{
	struct fsobj_folders *folders = &root->folders;
	uint64_t hash = path_hash(path, bytes);
	struct fsobj_folder top;
	unsigned int generation;
	uint32_t index;
	int fd;
	int error;

	pthread_mutex_lock(&folders->lock);
	generation = atomic_load(&folders->generation);
	index = bytes <= FSOBJ_FOLDER_PATH_BYTES ? slot_find(folders, hash, path, bytes) :
						   FSOBJ_NO_SLOT;
	if (index != FSOBJ_NO_SLOT) {
		struct fsobj_slot *slot = &folders->slots[index];

		slot->refs++;
		slot->recent = true;
		out->fd = slot->fd;
		out->slot = (int)index;
	}
	pthread_mutex_unlock(&folders->lock);
	if (index != FSOBJ_NO_SLOT)
		return 0;
	if (bytes == 0) {
		error = fsobj_root_folder_open(root, create, false, &fd);
		if (error != 0)
			return error;
		top_opened(folders, fd, &generation);
	} else {
		error = fsobj_folder_get(root, "", 0, create, &top);
		if (error != 0)
			return error;
		error = path_open(root, top.fd, path, bytes, create, &fd);
		if (fsobj_folder_gone(root, &top, error))
			error = -ESTALE;
		fsobj_folder_put(root, &top);
		if (error != 0)
			return error;
	}
	folder_insert(folders, hash, path, bytes, fd, generation, out);
	return 0;
}

int fsobj_folder_get(struct fsobj_root *root, const char *path, size_t bytes, bool create,
		     struct fsobj_folder *out)
{
	int error = -ESTALE;

	/* -ESTALE: the root was removed; it is looked up again, and made again when writing. */
	for (int attempt = 0; attempt < 3 && error == -ESTALE; attempt++)
		error = folder_lookup(root, path, bytes, create, out);
	return error == -ESTALE ? -ENOENT : error;
}

/* What one component of a name may be. */
static int component_check(const char *component, uint32_t bytes)
{
	if (bytes == 0 || (bytes == 1 && component[0] == '.') ||
	    (bytes == 2 && component[0] == '.' && component[1] == '.'))
		return -EINVAL;
	return bytes > NAME_MAX ? -ENAMETOOLONG : 0;
}

int fsobj_name_split(const char *name, uint32_t name_bytes, uint32_t *folder_bytes)
{
	const char *end = name + name_bytes;
	const char *component = name;
	uint32_t depth = 0;

	*folder_bytes = 0;
	if (name_bytes == 0 || name_bytes >= PATH_MAX)
		return name_bytes == 0 ? -EINVAL : -ENAMETOOLONG;
	if (memchr(name, '\0', name_bytes) != NULL || *end != '\0')
		return -EINVAL;
	for (;;) {
		const char *slash = memchr(component, '/', (size_t)(end - component));
		const char *stop = slash != NULL ? slash : end;
		int error = component_check(component, (uint32_t)(stop - component));

		if (error != 0 || slash == NULL)
			return error;
		if (++depth >= FSOBJ_DEPTH_MAX)
			return -ENAMETOOLONG;
		*folder_bytes = (uint32_t)(slash - name);
		component = slash + 1;
	}
}
