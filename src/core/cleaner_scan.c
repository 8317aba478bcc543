/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting what a root holds beside those who use it, when its counts are new or somebody was
 * killed: one hash folder of all namespaces after the other (kvc_usage_scan_begin() has the rules).
 * A count whose process dies leaves another one due.
 */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/log.h"
#include "core/route.h"
#include "core/stats.h"
#include "core/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCAN_BYTE  1u				/* of the lock: one process counts */
#define STEP_NS	   UINT64_C(200000)		/* then others have their turn */
#define DUE_NS	   (UINT64_C(300) * 1000000000) /* between two that were due */
#define TRIES_MAX  8u				/* of a folder that changes all the time */
#define STUCK_NS   (UINT64_C(10) * 1000000000)	/* who counts does not go on */
#define WAIT_NS	   UINT64_C(2000000)
#define SETTLED_NS INT64_C(2000000000) /* older times of folders change with the folder */

static void drop_part(struct kvc_scan *scan)
{
	kvc_names_free(&scan->folders);
	free(scan->part);
	scan->part = NULL;
}

void kvc_scan_end(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;

	if (!atomic_load(&scan->active))
		return;
	if (scan->has_lock)
		kvc_packed_lock_release(files->lock, SCAN_BYTE);
	kvc_usage_scan_end(files->root->usage);
	drop_part(scan);
	free(scan->counts);
	scan->counts = NULL;
	scan->count = scan->room = 0;
	if (scan->root_fd >= 0)
		(void)close(scan->root_fd);
	scan->has_lock = false;
	atomic_store(&scan->active, false);
	atomic_store(&scan->total, 0);
}

bool kvc_scan_is_wanted(const struct kvc_files *files)
{
	const struct kvc_usage_map *usage = files->root->usage;
	const uint64_t due_ns = atomic_load(&files->scan.due_ns);

	if (kvc_usage_is_new(usage))
		return files->root->capacity_bytes || kvc_files_may_evict(files);
	return kvc_usage_is_due(usage) && atomic_load(&files->is_cleaner) &&
	       (due_ns == 0 || kvc_now_ns() - due_ns >= DUE_NS);
}

/* When a namespace came or went last; 0: not known, or so short ago that the time may stay the same
 * for the next. */
static int64_t changed_ns(const struct kvc_scan *scan)
{
	struct stat st;
	int64_t modified_ns;

	if (fstat(scan->root_fd, &st) != 0)
		return 0;
	modified_ns = kvc_ns_of(&st.st_mtim);
	return modified_ns < kvc_wall_ns() - SETTLED_NS ? modified_ns : 0;
}

/* The namespaces as they are now: one that came since has objects that are not in the counts. */
static int begin_folder(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;
	int64_t now_ns;
	int rc;

	scan->folder = 0;
	kvc_usage_scan_folder(files->root->usage, scan->tries + 1 >= TRIES_MAX);
	now_ns = changed_ns(scan);
	if (scan->part && now_ns && now_ns == scan->listed_ns) {
		memset(scan->part, 0, scan->folders.count * sizeof(*scan->part));
		return 0;
	}
	drop_part(scan);
	scan->listed_ns = now_ns;
	rc = kvc_cleaner_folders(files, &scan->folders);
	if (rc)
		return rc;
	scan->part = calloc(scan->folders.count + 1, sizeof(*scan->part));
	return scan->part ? 0 : -ENOMEM;
}

/* One hash folder of a namespace: in one go, as most of many namespaces have none. */
static int open_folder(const struct kvc_scan *scan, const char *folder, const char *hash)
{
	char path[KVC_CLEANER_FOLDER + 4];
	int fd;

	if (scan->root_fd < 0)
		return -ENOENT;
	(void)snprintf(path, sizeof(path), "%s%s%s", folder, *folder ? "/" : "", hash);
	fd = openat(scan->root_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* A root that was taken away has no folders. */
static int open_root(struct kvc_files *files)
{
	const struct kvc_root *root = files->root;
	const int fd = open(root->attributes.local_path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	files->scan.root_fd = fd;
	return fd >= 0 || errno == ENOENT ?
		       0 :
		       kvc_fail(-errno, "%s: %s", root->location, strerror(errno));
}

/* -EAGAIN: another process counts, or has done so just now. */
static int begin(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;
	const uint64_t before = kvc_usage_recounts(files->root->usage);
	uint64_t token;
	int rc = files->lock ? kvc_packed_lock_try(files->lock, SCAN_BYTE, true) : 0;

	if (rc == -EAGAIN || rc == -ESTALE)
		return -EAGAIN;
	atomic_store(&scan->active, true);
	scan->has_lock = files->lock && rc == 0;
	scan->hash = 0;
	scan->tries = 0;
	rc = open_root(files);
	if (kvc_usage_is_due(files->root->usage))
		atomic_store(&scan->due_ns, kvc_now_ns());
	token = kvc_now_ns() ^ (uint64_t)getpid() << 40;
	if (!rc && kvc_usage_recounts(files->root->usage) != before)
		rc = -EAGAIN;
	if (!rc)
		rc = kvc_usage_scan_begin(files->root->usage, token);
	if (!rc)
		rc = begin_folder(files);
	if (rc) {
		kvc_scan_end(files);
		return rc;
	}
	atomic_store(&scan->done, 0);
	atomic_store(&scan->total, KVC_HASH_FOLDERS);
	return 0;
}

/* What one namespace has in the hash folder. */
static int count_folder(struct kvc_files *files)
{
	struct kvc_scan *scan = &files->scan;
	const char *folder = scan->folders.names[scan->folder];
	struct kvc_usage_count *count = &scan->part[scan->folder];
	const struct dirent *entry;
	struct stat st;
	char hash[3];
	DIR *dir;
	int fd;

	kvc_route_folder(scan->hash, hash);
	fd = open_folder(scan, folder, hash);
	if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
		return 0;
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		if (fd >= 0)
			(void)close(fd);
		return kvc_fail(fd < 0 ? fd : -ENOMEM, "%s/%s%s%s: %s", files->root->location,
				folder, *folder ? "/" : "", hash, strerror(fd < 0 ? -fd : ENOMEM));
	}
	count->ns_hash = kvc_folder_ns_hash(folder);
	while ((entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.' ||
		    fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		count->bytes += (uint64_t)st.st_size;
		count->objects++;
	}
	(void)closedir(dir);
	return 0;
}

/* Where the namespace is among the counts, or would be. */
static size_t place_of(const struct kvc_scan *scan, uint64_t ns_hash)
{
	size_t from = 0, to = scan->count;

	while (from < to) {
		const size_t middle = from + (to - from) / 2;

		if (scan->counts[middle].ns_hash < ns_hash)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

static int keep_count(struct kvc_scan *scan, const struct kvc_usage_count *part)
{
	const size_t at = place_of(scan, part->ns_hash);

	if (at == scan->count || scan->counts[at].ns_hash != part->ns_hash) {
		if (scan->count == scan->room) {
			const size_t room = 2 * scan->room + 16;
			struct kvc_usage_count *more = realloc(scan->counts, room * sizeof(*more));

			if (!more)
				return -ENOMEM;
			scan->counts = more;
			scan->room = room;
		}
		memmove(&scan->counts[at + 1], &scan->counts[at],
			(scan->count - at) * sizeof(*scan->counts));
		scan->counts[at] = (struct kvc_usage_count){ .ns_hash = part->ns_hash };
		scan->count++;
	}
	scan->counts[at].bytes += part->bytes;
	scan->counts[at].objects += part->objects;
	return 0;
}

/* All namespaces are counted in this hash folder. 0; -ESTALE: all of it is void. */
static int end_folder(struct kvc_files *files)
{
	struct kvc_usage_map *usage = files->root->usage;
	struct kvc_scan *scan = &files->scan;
	int rc = kvc_usage_scan_done(usage);

	if (rc < 0)
		return rc;
	if (rc == 0) {
		scan->tries++;
		return begin_folder(files);
	}
	rc = 0;
	for (size_t i = 0; i < scan->folders.count && !rc; i++)
		if (scan->part[i].objects)
			rc = keep_count(scan, &scan->part[i]);
	scan->tries = 0;
	scan->hash++;
	atomic_store(&scan->done, scan->hash);
	return rc || scan->hash == KVC_HASH_FOLDERS ? rc : begin_folder(files);
}

static int settle(struct kvc_files *files)
{
	struct kvc_root *root = files->root;
	const bool is_new = kvc_usage_is_new(root->usage);
	uint64_t drift;

	if (!kvc_usage_scan_settle(root->usage, files->scan.counts, files->scan.count, &drift))
		return -ESTALE;
	if (!is_new)
		kvc_counters_add(root->store->counters, KVC_COUNTER_USAGE_DRIFT, (int64_t)drift);
	return 0;
}

/* 1: there is more. */
static int go_on(struct kvc_files *files, bool strict)
{
	const uint64_t end_ns = kvc_now_ns() + STEP_NS;
	struct kvc_scan *scan = &files->scan;
	int rc = 0;

	while (!rc && scan->hash < KVC_HASH_FOLDERS) {
		if (scan->folder < scan->folders.count) {
			rc = count_folder(files);
			/* Of one whose counts are new most is better than nothing. */
			if (!strict && kvc_usage_is_new(files->root->usage))
				rc = 0;
			scan->folder++;
		} else {
			rc = end_folder(files);
		}
		if (!rc && kvc_now_ns() >= end_ns)
			return 1;
	}
	return rc ? rc : settle(files);
}

int kvc_scan_step(struct kvc_files *files, bool strict)
{
	struct kvc_scan *scan = &files->scan;
	int rc = atomic_load(&scan->active) ? 0 : begin(files);

	if (rc)
		return rc == -EAGAIN ? 0 : rc;
	rc = kvc_usage_scan_goes_on(files->root->usage) ? go_on(files, strict) : -ESTALE;
	if (rc > 0)
		return rc;
	kvc_scan_end(files);
	/* What cannot be read today is looked for when somebody is killed again. */
	if (rc < 0 && rc != -ESTALE)
		kvc_usage_set_due(files->root->usage, false);
	return rc == -ESTALE ? 0 : rc;
}

/* Another process counts: until it has done so, as fast as it can. -ETIMEDOUT: it is stuck. */
static int wait_for_others(struct kvc_files *files, uint64_t *seen, uint64_t *since_ns)
{
	const struct timespec pause = kvc_timespec(WAIT_NS);
	const uint64_t now = kvc_usage_scan_position(files->root->usage);

	if (now != *seen) {
		*seen = now;
		*since_ns = kvc_now_ns();
	}
	kvc_usage_hurry(files->root->usage);
	(void)nanosleep(&pause, NULL);
	return kvc_now_ns() - *since_ns < STUCK_NS ? 0 : -ETIMEDOUT;
}

int kvc_files_recount(struct kvc_root *root)
{
	struct kvc_files *files = root->files;
	const uint64_t before = kvc_usage_recounts(root->usage);
	uint64_t seen = 0, since_ns = kvc_now_ns();
	int rc = 0;

	while (rc >= 0 && kvc_usage_recounts(root->usage) == before) {
		rc = kvc_cleaner_enter(kvc_cleaner_of(files), UINT64_MAX / 2);
		if (rc)
			break;
		rc = kvc_scan_step(files, true);
		kvc_cleaner_leave(kvc_cleaner_of(files));
		if (rc == 0 && kvc_usage_recounts(root->usage) == before)
			rc = wait_for_others(files, &seen, &since_ns);
	}
	if (rc == -ETIMEDOUT)
		return kvc_fail(rc, "%s: another process counts it, and does not go on",
				root->location);
	return rc < 0 ? rc : 0;
}

bool kvc_files_progress(const struct kvc_root *root, uint32_t *out_done, uint32_t *out_total)
{
	if (!root->files || atomic_load(&root->files->scan.total) == 0)
		return false;
	*out_total = atomic_load(&root->files->scan.total);
	*out_done = atomic_load(&root->files->scan.done);
	return true;
}
