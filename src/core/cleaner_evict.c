/* SPDX-License-Identifier: Apache-2.0 */
/* Taking away what goes. */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/ghost.h"
#include "core/pin.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REFILLS_MAX KVC_HASH_FOLDERS	     /* without success */
#define BARREN_NS   (UINT64_C(20) * 1000000) /* between two looks that find nothing */

void kvc_cleaner_remove(struct kvc_files *files, int folder_fd, const char *folder,
			const char *hash, const char *name, struct kvc_evicted *out)
{
	struct kvc_root *root = files->root;
	const struct kvc_usage_before before = kvc_usage_before(root->usage);
	struct stat st;

	if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
		return;
	if (unlinkat(folder_fd, name, 0) != 0) {
		out->failed += errno != ENOENT;
		return;
	}
	out->objects++;
	out->bytes += (uint64_t)st.st_size;
	atomic_store(&files->went_modified_ns, kvc_ns_of(&st.st_mtim));
	kvc_usage_removed(root->usage, &before, kvc_folder_ns_hash(folder), kvc_folder_number(hash),
			  (uint64_t)st.st_size);
}

void kvc_cleaner_forget(struct kvc_files *files, uint64_t g)
{
	if (files->stamps)
		kvc_stamps_forget(files->stamps, g);
	kvc_ghost_add(files->root->ghosts, g);
}

/* Whether it was used, or stored again, since it was looked at; its stamp is that of now. */
static bool was_used(const struct kvc_files *files, struct kvc_group *victim)
{
	uint64_t stamp;
	const bool noted = kvc_cleaner_is_nixl(files) ?
				   kvc_nixl_stamp(files, victim->names, &stamp) :
				   kvc_files_stamp(files, victim->g, &stamp);

	if (!noted || (victim->noted && stamp <= victim->stamp))
		return false;
	victim->noted = true;
	victim->stamp = stamp;
	return true;
}

/* The same of what has no entry, by the times of its files. */
static bool was_written(const struct kvc_group *victim, int folder_fd)
{
	const char *name = victim->names;
	struct stat st;

	for (uint32_t i = 0; i < victim->count; i++) {
		if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    kvc_ns_of(&st.st_mtim) > victim->modified_ns)
			return true;
		name += strlen(name) + 1;
	}
	return false;
}

static bool is_spared(struct kvc_files *files, struct kvc_group *victim)
{
	uint64_t stamp;

	if (!files->stamps)
		return false;
	stamp = files->order->spared(victim->stamp, kvc_stamps_now(files->stamps));
	if (stamp == KVC_ORDER_GOES)
		return false;
	kvc_stamps_replace(files->stamps, victim->g, stamp);
	victim->stamp = stamp;
	return true;
}

void kvc_cleaner_close_folder(struct kvc_files *files)
{
	struct kvc_open_folders *open = &files->open;

	if (open->hash >= 0)
		(void)close(open->hash);
	if (open->space >= 0)
		(void)close(open->space);
	open->hash = open->space = -1;
}

/* Groups go in the order of all, from folder to folder; most of them of one namespace. */
static int open_folder(struct kvc_files *files, const struct kvc_group *victim)
{
	struct kvc_open_folders *open = &files->open;
	int fd;

	if (open->space < 0 || strcmp(open->space_name, victim->folder) != 0) {
		kvc_cleaner_close_folder(files);
		fd = kvc_cleaner_open_space(files, victim->folder);
		if (fd < 0)
			return fd;
		open->space = fd;
		memcpy(open->space_name, victim->folder, strlen(victim->folder) + 1);
	}
	if (open->hash >= 0 && memcmp(open->hash_name, victim->hash, sizeof(victim->hash)) == 0)
		return open->hash;
	fd = openat(open->space, victim->hash, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (open->hash >= 0)
		(void)close(open->hash);
	open->hash = fd;
	memcpy(open->hash_name, victim->hash, sizeof(victim->hash));
	return fd;
}

static void remove_here(struct kvc_files *files, const struct kvc_group *victim,
			struct kvc_evicted *out)
{
	const int fd = open_folder(files, victim);
	const char *name = victim->names;
	const bool stays = fd >= 0 && !victim->noted && was_written(victim, fd);

	if (fd < 0)
		return;
	for (uint32_t i = 0; i < victim->count && !stays; i++) {
		kvc_cleaner_remove(files, fd, victim->folder, victim->hash, name, out);
		name += strlen(name) + 1;
	}
	if (!stays)
		kvc_cleaner_forget(files, victim->g);
}

/* Whether its turn has come; if it has another place in the order now, it is put back there. */
static bool is_due(struct kvc_files *files, struct kvc_pool *pool, struct kvc_group **victim)
{
	struct kvc_group *group = *victim;
	const uint64_t ns_hash = kvc_folder_ns_hash(group->folder);
	struct kvc_root *root = files->root;
	bool moved = false;

	if (*group->folder && kvc_pin_has(root, ns_hash))
		return false;
	if (group->over && kvc_tenant_excess(root, ns_hash) == 0) {
		group->over = false;
		moved = true;
	}
	if (!moved && !was_used(files, group) && !is_spared(files, group))
		return true;
	group->rank = files->order->rank(group->stamp, pool->only_new);
	kvc_pool_put_back(pool, group);
	*victim = NULL;
	return false;
}

/* False: it stays. */
static bool evict(struct kvc_files *files, const struct kvc_group *victim, struct kvc_evicted *out)
{
	struct kvc_evicted one = { 0 };

	if (kvc_cleaner_is_nixl(files) && !victim->noted &&
	    kvc_nixl_modified_ns(files, victim->names) > victim->modified_ns)
		return false;
	if (kvc_cleaner_is_nixl(files))
		kvc_nixl_remove(files, victim, &one);
	else
		remove_here(files, victim, &one);
	out->failed += one.failed;
	if (one.objects == 0)
		return false;
	out->groups++;
	out->objects += one.objects;
	out->bytes += one.bytes;
	kvc_counters_evicted(files->root->store->counters, one.objects, one.bytes);
	return true;
}

static struct kvc_pool *pool_of(struct kvc_files *files, uint64_t ns_hash)
{
	struct kvc_pool *pool = &files->tenant_pool;

	if (ns_hash == 0)
		return &files->pool;
	if (pool->ns_hash != ns_hash && !kvc_tenant_is_same(files->root, pool->ns_hash, ns_hash)) {
		kvc_pool_drop(pool);
		pool->barren_ns = 0;
	}
	pool->ns_hash = ns_hash;
	return pool;
}

int kvc_cleaner_evict(struct kvc_files *files, uint64_t ns_hash, uint64_t deadline_ns,
		      struct kvc_evicted *out)
{
	struct kvc_pool *pool = pool_of(files, ns_hash);
	const uint64_t changes = atomic_load(&files->changes);
	unsigned refills = 0;
	int rc = 0;

	if (pool->barren_ns && pool->barren_changes == changes &&
	    kvc_now_ns() - pool->barren_ns < BARREN_NS)
		return -ENOENT;
	for (;;) {
		struct kvc_group *victim;
		bool went;

		if (pool->count == 0 || pool->credit == 0) {
			kvc_cleaner_close_folder(files);
			if (refills++ == REFILLS_MAX)
				rc = -ENOENT;
			if (!rc)
				rc = kvc_cleaner_refill(files, pool, deadline_ns);
			if (!rc && kvc_now_ns() >= deadline_ns)
				rc = -ETIMEDOUT;
			if (rc)
				break;
			continue;
		}
		victim = kvc_pool_take(pool);
		pool->credit--;
		kvc_files_begin_removal(files);
		went = is_due(files, pool, &victim) && evict(files, victim, out);
		kvc_files_end_removal(files);
		free(victim);
		if (went)
			return 0;
	}
	pool->barren_ns = rc == -ENOENT ? kvc_now_ns() : 0;
	pool->barren_changes = changes;
	return rc;
}
