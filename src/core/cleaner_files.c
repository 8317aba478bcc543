/* SPDX-License-Identifier: Apache-2.0 */
/* What a root of files has for its order and its limits, and who else uses it. */
#include "core/cleaner_internal.h"

#include "core/folder.h"
#include "core/format.h"
#include "core/log.h"
#include "core/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCK_NAME  KVC_HOUSEKEEPING_FOLDER "/cleaner.lock"
#define STAMP_NAME KVC_HOUSEKEEPING_FOLDER "/stamps"

/*
 * Shared with other processes on local file systems, as the counters of own bytes are. Without the
 * cleaner none is made, but one that others keep is used: kvc_store_clean() goes by it, and what
 * this process reads counts.
 */
static int open_stamps(struct kvc_files *files)
{
	const struct kvc_root *root = files->root;
	const struct kvc_settings *settings = root->store->settings;
	const bool local = root->attributes.flags & KVC_ATTRIBUTE_LOCAL;
	char path[PATH_MAX];
	int length = snprintf(path, sizeof(path), "%s/" STAMP_NAME, root->attributes.local_path);
	const bool shared = local && length > 0 && (size_t)length < sizeof(path);

	if (!settings->l3_cleaner_enabled && !(shared && access(path, F_OK) == 0))
		return 0;
	return kvc_stamps_open(shared ? path : NULL, settings->file_mode, kvc_root_held_bytes(root),
			       &files->stamps);
}

/* Whoever had the place may have stored or removed what it did not count. False: while the root is
 * counted for the first time that has to wait. */
static bool note_dead(struct kvc_files *files, uint32_t slot)
{
	if (kvc_stamps_pending(files->stamps, slot) == 0)
		return true;
	if (kvc_usage_is_new(files->root->usage))
		return false;
	kvc_usage_set_due(files->root->usage, true);
	return true;
}

/* A place to tell others what is about to be written; without one they do not know. */
static void take_slot(struct kvc_files *files)
{
	files->slot = -1;
	for (uint32_t i = 0; files->lock && files->stamps && i < KVC_STAMPS_SLOTS; i++)
		if (kvc_packed_lock_try(files->lock, KVC_STAMPS_SLOTS + i, true) == 0) {
			if (!note_dead(files, i)) {
				kvc_packed_lock_release(files->lock, KVC_STAMPS_SLOTS + i);
				continue;
			}
			files->slot = (int)i;
			kvc_stamps_pending_set(files->stamps, i, atomic_load(&files->pending));
			return;
		}
}

/* Where locks cannot be had, each process is the cleaner of its own. */
static void open_lock(struct kvc_files *files)
{
	const struct kvc_settings *settings = files->root->store->settings;
	const struct kvc_packed_dir_params params = {
		.local_path = files->root->attributes.local_path,
		.file_mode = settings->file_mode,
		.folder_mode = settings->folder_mode,
	};

	if (kvc_packed_dir_open(&params, &files->dir))
		return;
	if (kvc_packed_lock_open(files->dir, LOCK_NAME, false, &files->lock)) {
		kvc_packed_dir_close(files->dir);
		files->dir = NULL;
	}
	take_slot(files);
}

static bool is_hash_folder(const char *name)
{
	return kvc_folder_is_hash(name) && name[2] == '\0';
}

static int found_one(void *context, const char *name)
{
	(void)context;
	(void)name;
	return 1;
}

/* Of a root without folders of ours it is known at once what it holds. */
static int count_nothing(struct kvc_files *files)
{
	struct kvc_usage_map *usage = files->root->usage;
	const bool untouched = kvc_usage_is_untouched(usage);
	int rc;

	if (!kvc_usage_is_new(usage))
		return 0;
	rc = kvc_folder_each(files->root,
			     kvc_cleaner_is_nixl(files) ? is_hash_folder : kvc_folder_is_namespace,
			     found_one, NULL);
	/* Others that have opened it as well may store meanwhile. */
	if (rc == 0 && untouched)
		kvc_usage_confirm(usage);
	else if (rc == 0)
		(void)kvc_usage_recount(usage, NULL, 0);
	return rc < 0 ? rc : 0;
}

int kvc_files_open(struct kvc_root *root)
{
	struct kvc_files *files;
	int rc;

	if (root->is_packed || root->read_only || root->writes_refused ||
	    !root->attributes.local_path || !(root->attributes.flags & KVC_ATTRIBUTE_FOLDERS))
		return 0;
	files = calloc(1, sizeof(*files));
	if (!files)
		return -ENOMEM;
	files->root = root;
	files->order = root->order;
	files->slot = -1;
	files->open.hash = files->open.space = -1;
	kvc_pool_drop(&files->pool);
	kvc_pool_drop(&files->tenant_pool);
	rc = open_stamps(files);
	if (rc) {
		free(files);
		return rc;
	}
	open_lock(files);
	root->files = files;
	return count_nothing(files);
}

void kvc_files_close(struct kvc_root *root)
{
	struct kvc_files *files = root->files;

	if (!files)
		return;
	kvc_cleaner_close_folder(files);
	kvc_pool_drop(&files->pool);
	kvc_pool_drop(&files->tenant_pool);
	kvc_scan_end(files);
	kvc_index_drop(&files->index);
	if (files->slot >= 0)
		kvc_stamps_pending_set(files->stamps, (uint32_t)files->slot, 0);
	kvc_packed_lock_close(files->lock);
	kvc_packed_dir_close(files->dir);
	kvc_stamps_close(files->stamps);
	free(files);
	root->files = NULL;
}

void kvc_files_renew(struct kvc_files *files)
{
	const int changed = files->stamps ? kvc_stamps_check(files->stamps) : 0;

	if (!changed)
		return;
	kvc_scan_end(files);
	kvc_packed_lock_close(files->lock);
	kvc_packed_dir_close(files->dir);
	files->lock = NULL;
	files->dir = NULL;
	atomic_store(&files->is_cleaner, false);
	open_lock(files);
}

/* ---------------------------------------------------------------- who is the cleaner */

/*
 * The cleaner of a root has the first byte of its lock. Roots of one device go together where they
 * can: who does not get one takes the next only when it was free twice, so that the cleaner of the
 * first has had the time to take it.
 */
bool kvc_files_elect(struct kvc_files *files, bool is_behind)
{
	int rc;

	if (atomic_load(&files->is_cleaner))
		return true;
	if (!files->lock) {
		atomic_store(&files->is_cleaner, true);
		return true;
	}
	rc = kvc_packed_lock_try(files->lock, 0, true);
	if (rc == 0 && is_behind && !files->seen_free) {
		kvc_packed_lock_release(files->lock, 0);
		files->seen_free = true;
		return false;
	}
	files->seen_free = false;
	/* Locks that cannot be had at all are held by nobody. */
	if (rc && rc != -EAGAIN && rc != -ESTALE)
		rc = 0;
	atomic_store(&files->is_cleaner, rc == 0);
	return rc == 0;
}

/* What a dead process was about to write is nobody's any more. */
void kvc_files_bury(struct kvc_files *files)
{
	for (uint32_t i = 0; files->lock && files->stamps && i < KVC_STAMPS_SLOTS; i++) {
		const int64_t bytes = kvc_stamps_pending(files->stamps, i);
		const bool same = bytes == files->dead_pending[i];

		files->dead_pending[i] = bytes;
		if (bytes == 0 || !same || (int)i == files->slot ||
		    kvc_packed_lock_try(files->lock, KVC_STAMPS_SLOTS + i, true))
			continue;
		if (note_dead(files, i))
			kvc_stamps_pending_set(files->stamps, i, 0);
		kvc_packed_lock_release(files->lock, KVC_STAMPS_SLOTS + i);
	}
}

bool kvc_files_is_cleaner(const struct kvc_root *root)
{
	return root->files && atomic_load(&root->files->is_cleaner);
}

bool kvc_files_may_evict(const struct kvc_files *files)
{
	const struct kvc_root *root = files->root;

	return root->store->settings->l3_cleaner_enabled && !root->read_only &&
	       !root->writes_refused;
}

bool kvc_files_stamp(const struct kvc_files *files, uint64_t g, uint64_t *out)
{
	struct kvc_stamp stamp;

	if (!files->stamps || !kvc_stamps_find(files->stamps, g, &stamp))
		return false;
	*out = stamp.stamp;
	return true;
}
