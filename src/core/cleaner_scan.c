/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting what a root holds whose counts are new, beside those who use it: all counts begin at 0,
 * what changes from then on is counted as it does, and what was there before is found folder by
 * folder and added at the end. A count whose process dies leaves the counts new: the next begins
 * again.
 */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCAN_BYTE 1u /* of the lock: one process counts */

void kvc_scan_end(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;

	if (scan->active && files->lock)
		kvc_packed_lock_release(files->lock, SCAN_BYTE);
	kvc_names_free(&scan->folders);
	free(scan->counts);
	scan->counts = NULL;
	scan->active = false;
	atomic_store(&scan->total, 0);
}

/* -EAGAIN: another process counts. */
static int begin(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;
	int rc = files->lock ? kvc_packed_lock_try(files->lock, SCAN_BYTE, true) : 0;

	if (rc == -EAGAIN || rc == -ESTALE)
		return rc;
	/* Whoever had it may have ended just now. */
	if (!kvc_usage_is_new(files->root->usage)) {
		if (files->lock)
			kvc_packed_lock_release(files->lock, SCAN_BYTE);
		return -EAGAIN;
	}
	scan->active = true;
	scan->folder = 0;
	scan->hash = 0;
	kvc_usage_begin(files->root->usage);
	/* The times of files lag behind this clock a little: what is stored just now may be counted
	 * twice, but nothing is left out. */
	scan->begun_ns = kvc_wall_ns();
	rc = kvc_cleaner_folders(files, &scan->folders);
	if (!rc) {
		scan->counts = calloc(scan->folders.count + 1, sizeof(*scan->counts));
		rc = scan->counts ? 0 : -ENOMEM;
	}
	if (rc) {
		kvc_scan_end(files);
		return rc;
	}
	for (size_t i = 0; i < scan->folders.count; i++)
		scan->counts[i].ns_hash = kvc_folder_ns_hash(scan->folders.names[i]);
	atomic_store(&scan->done, 0);
	atomic_store(&scan->total, (uint32_t)scan->folders.count * KVC_HASH_FOLDERS);
	return 0;
}

static void count_folder(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;
	struct kvc_usage_count *count = &scan->counts[scan->folder];
	const struct dirent *entry;
	struct stat st;
	char hash[3];
	DIR *dir;
	int fd;

	kvc_cleaner_hash(scan->hash, hash);
	fd = kvc_cleaner_open_folder(files, scan->folders.names[scan->folder], hash);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		if (fd >= 0)
			(void)close(fd);
		return;
	}
	while ((entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.' ||
		    fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
		    !S_ISREG(st.st_mode) ||
		    (int64_t)st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec > scan->begun_ns)
			continue;
		count->bytes += (uint64_t)st.st_size;
		count->objects++;
	}
	(void)closedir(dir);
}

bool kvc_scan_step(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;

	if (!kvc_usage_is_new(files->root->usage)) {
		/* Somebody has walked the root at once. */
		if (scan->active)
			kvc_scan_end(files);
		return false;
	}
	if (!scan->active && begin(files))
		return false;
	if (scan->folder < scan->folders.count) {
		count_folder(files);
		atomic_fetch_add(&scan->done, 1);
		if (++scan->hash == KVC_HASH_FOLDERS) {
			scan->hash = 0;
			scan->folder++;
		}
		return true;
	}
	kvc_usage_settle(files->root->usage, scan->counts, scan->folders.count);
	kvc_scan_end(files);
	return false;
}

bool kvc_scan_counted(const struct kvc_files *files, const char *folder, uint32_t hash)
{
	const struct kvc_scan *scan = &files->scan;

	if (!scan->active)
		return true;
	for (size_t i = 0; i < scan->folders.count; i++)
		if (strcmp(scan->folders.names[i], folder) == 0)
			return i < scan->folder || (i == scan->folder && hash < scan->hash);
	return true; /* a namespace that came since */
}

bool kvc_files_progress(const struct kvc_root *root, uint32_t *out_done, uint32_t *out_total)
{
	if (!root->files || atomic_load(&root->files->scan.total) == 0)
		return false;
	*out_total = atomic_load(&root->files->scan.total);
	*out_done = atomic_load(&root->files->scan.done);
	return true;
}
