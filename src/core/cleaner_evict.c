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
	kvc_usage_removed(root->usage, &before, kvc_folder_ns_hash(folder), kvc_folder_number(hash),
			  (uint64_t)st.st_size);
}

void kvc_cleaner_forget(struct kvc_files *files, uint64_t g)
{
	if (files->stamps)
		kvc_stamps_forget(files->stamps, g);
	kvc_ghost_add(files->root->ghosts, g);
}

/* Whether it was used, or stored again, since it was looked at. */
static bool was_used(const struct kvc_files *files, const struct kvc_group *victim)
{
	uint64_t stamp;
	const bool noted = kvc_cleaner_is_nixl(files) ?
				   kvc_nixl_stamp(files, victim->names, &stamp) :
				   kvc_files_stamp(files, victim->g, &stamp);

	return noted && (!victim->noted || stamp > victim->stamp);
}

/* The same of what has no entry, by the times of its files. */
static bool was_written(const struct kvc_group *victim, int folder_fd)
{
	const char *name = victim->names;
	struct stat st;

	for (uint32_t i = 0; i < victim->count; i++) {
		if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec >
			    victim->modified_ns)
			return true;
		name += strlen(name) + 1;
	}
	return false;
}

static bool is_spared(struct kvc_files *files, const struct kvc_group *victim)
{
	uint64_t stamp;

	if (!files->stamps)
		return false;
	stamp = files->order->spared(victim->stamp, kvc_stamps_now(files->stamps));
	if (stamp == KVC_ORDER_GOES)
		return false;
	kvc_stamps_replace(files->stamps, victim->g, stamp);
	return true;
}

void kvc_cleaner_close_folder(struct kvc_files *files)
{
	if (files->folder_fd >= 0)
		(void)close(files->folder_fd);
	files->folder_fd = -1;
}

/* Many that go one after the other are of one folder. */
static int open_folder(struct kvc_files *files, const struct kvc_group *victim)
{
	char path[sizeof(files->folder_path)];

	(void)snprintf(path, sizeof(path), "%s/%s", victim->folder, victim->hash);
	if (files->folder_fd >= 0 && strcmp(path, files->folder_path) == 0)
		return files->folder_fd;
	kvc_cleaner_close_folder(files);
	files->folder_fd = kvc_cleaner_open_folder(files, victim->folder, victim->hash);
	memcpy(files->folder_path, path, sizeof(path));
	return files->folder_fd;
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

/* False: it stays. */
static bool evict(struct kvc_files *files, const struct kvc_group *victim, struct kvc_evicted *out)
{
	const uint64_t ns_hash = kvc_folder_ns_hash(victim->folder);
	struct kvc_root *root = files->root;
	struct kvc_evicted one = { 0 };

	if ((*victim->folder && kvc_pin_has(root, ns_hash)) ||
	    (victim->over && kvc_tenant_excess(root, ns_hash) == 0) || was_used(files, victim) ||
	    is_spared(files, victim))
		return false;
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
	kvc_counters_evicted(root->store->counters, one.objects, one.bytes);
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
		victim = pool->victims[--pool->count];
		pool->credit--;
		kvc_files_begin_removal(files);
		went = evict(files, victim, out);
		kvc_files_end_removal(files);
		free(victim);
		if (went)
			return 0;
	}
	pool->barren_ns = rc == -ENOENT ? kvc_now_ns() : 0;
	pool->barren_changes = changes;
	return rc;
}
