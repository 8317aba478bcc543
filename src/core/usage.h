/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many bytes and objects of ours a root holds, by namespace: counted as they change, by all
 * processes of the host together, in the mapped file `<root>/.kvcellar/usage` (local file systems;
 * docs/on-disk-format.md has its form). Where that file cannot be had, in this process's memory.
 *
 * The counts may drift (a process that dies between publishing and counting): a recount repairs
 * them. A count below 0 reads as 0. All functions but open and close are thread-safe.
 */
#ifndef KVC_CORE_USAGE_H
#define KVC_CORE_USAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVC_USAGE_SLOTS	  4096u /* namespaces counted one by one; later ones share "others" */
#define KVC_USAGE_FOLDERS 256u	/* hash folders */

struct kvc_usage_map; /* of one root */

struct kvc_usage_count {
	uint64_t ns_hash;
	uint64_t bytes;
	uint64_t objects;
};

/*
 * kvc_usage_open
 * @path   the file, "<root>/.kvcellar/usage"; made, whole or not at all, when it is missing, and
 *         again when it is too short or its header is damaged. NULL: memory of this process
 * @mode   of a new file
 * A file that cannot be had (permission, read-only, full, another major version, which is left as
 * it is) is no error: memory takes its place, and the log says why at debug level.
 * Errors: -ENOMEM.
 */
int kvc_usage_open(const char *path, mode_t mode, struct kvc_usage_map **out);
void kvc_usage_close(struct kvc_usage_map *usage);

/*
 * kvc_usage_load - for who may not write: the counts as they stand in the file at `path`, into
 * memory of this process. kvc_usage_reload() does it again. Without such a file nothing changes.
 */
int kvc_usage_load(struct kvc_usage_map *usage, const char *path);
void kvc_usage_reload(struct kvc_usage_map *usage);
bool kvc_usage_is_loaded(const struct kvc_usage_map *usage);

/* The counts began at 0, whatever the root holds, and no recount has ended since, in whatever
 * process: one is due. kvc_usage_recount() ends that. */
bool kvc_usage_is_new(const struct kvc_usage_map *usage);

/* The counts may be off, somebody was killed who had something to count: a recount is due, and ends
 * that. Counts that are new are not due. */
bool kvc_usage_is_due(const struct kvc_usage_map *usage);
void kvc_usage_set_due(struct kvc_usage_map *usage, bool due);

/* The counts are shared with other processes: they lie in the file. */
bool kvc_usage_is_shared(const struct kvc_usage_map *usage);

/*
 * kvc_usage_check - for a housekeeping thread: when the file was cut, removed or replaced, goes
 * over to the file that is there now (or a new one), while other threads go on counting.
 * Returns 1 when it did: ask kvc_usage_is_new() again; else 0.
 */
int kvc_usage_check(struct kvc_usage_map *usage);

/* ns_hash 0 is allowed: roots without namespaces. For objects that lie in no hash folder. */
void kvc_usage_add(struct kvc_usage_map *usage, uint64_t ns_hash, int64_t bytes_delta,
		   int64_t objects_delta);

/* The same in hash folder number `folder`: after something was stored there. */
void kvc_usage_change(struct kvc_usage_map *usage, uint64_t ns_hash, unsigned folder,
		      int64_t bytes_delta, int64_t objects_delta);

/*
 * kvc_usage_removed - one object went.
 * @before   kvc_usage_before() it was to go. Whether a folder that was counted in between has it in
 *           its count is not known: too much is counted rather than too little
 */
struct kvc_usage_before {
	uint64_t scan;
	uint64_t settled;
};
struct kvc_usage_before kvc_usage_before(const struct kvc_usage_map *usage);
void kvc_usage_removed(struct kvc_usage_map *usage, const struct kvc_usage_before *before,
		       uint64_t ns_hash, unsigned folder, uint64_t bytes);

/* Of all namespaces. Either output may be NULL. */
void kvc_usage_total(struct kvc_usage_map *usage, uint64_t *out_bytes, uint64_t *out_objects);

/* Of one. -ENOENT: it has no count of its own (nothing was counted, or it is among the others). */
int kvc_usage_namespace(struct kvc_usage_map *usage, uint64_t ns_hash, uint64_t *out_bytes,
			uint64_t *out_objects);

/*
 * kvc_usage_correct - the count of one namespace as a walk found it. What other threads counted
 * during the walk is lost to the result: a drift that the next recount finds.
 * @out_drift_bytes   absolute difference to what was counted; may be NULL
 * Errors: -ENOSPC: it is among the others, which only kvc_usage_recount() can correct.
 */
int kvc_usage_correct(struct kvc_usage_map *usage, uint64_t ns_hash, uint64_t bytes,
		      uint64_t objects, uint64_t *out_drift_bytes);

/*
 * kvc_usage_recount - the same for a whole root: namespaces that counts[] lacks become 0, each is
 * in it once. Returns the drift in bytes, absolute, of all namespaces together.
 */
uint64_t kvc_usage_recount(struct kvc_usage_map *usage, const struct kvc_usage_count *counts,
			   size_t count);

/* How many recounts have ended; and the next to end is waited for: it is not to take its time. */
uint64_t kvc_usage_recounts(const struct kvc_usage_map *usage);
void kvc_usage_hurry(struct kvc_usage_map *usage);
bool kvc_usage_is_hurried(const struct kvc_usage_map *usage);

/*
 * Counts that are new of a root that holds nothing. kvc_usage_is_untouched() before a look at the
 * root: nothing was ever counted. If nothing lies there kvc_usage_confirm() says that the counts
 * are right, whatever others have counted since.
 */
bool kvc_usage_is_untouched(const struct kvc_usage_map *usage);
void kvc_usage_confirm(struct kvc_usage_map *usage);

/* The counts cannot be: all begin at 0 again, and are new. */
void kvc_usage_drop(struct kvc_usage_map *usage);

/*
 * A recount beside all who go on, in whatever process (kvc_usage_change() minds it): hash folder
 * after hash folder, each in all namespaces. One thread of one process at a time. The counts stay
 * what they were until it is settled.
 *
 * kvc_usage_scan_begin     @token: other than those of other scans. -ENOMEM
 * kvc_usage_scan_goes_on   false: another recount has begun or ended since; the scan is void
 * kvc_usage_scan_position  another number when one goes on, of whatever process
 * kvc_usage_scan_folder    the next folder, or the last one again, is about to be counted.
 *                          last_time: it is done then, whatever changes; the result may be too
 *                          high by that
 * kvc_usage_scan_done      it is counted. 1; 0: not right, as something has changed in it; -ESTALE:
 *                          the scan is void
 * kvc_usage_scan_settle    after all of them: counts[] is what lay in all folders when they were
 *                          counted. Returns false when it is void
 * kvc_usage_scan_end       gives it up. Its recount stays due
 */
int kvc_usage_scan_begin(struct kvc_usage_map *usage, uint64_t token);
bool kvc_usage_scan_goes_on(const struct kvc_usage_map *usage);
uint64_t kvc_usage_scan_position(const struct kvc_usage_map *usage);
void kvc_usage_scan_folder(struct kvc_usage_map *usage, bool last_time);
int kvc_usage_scan_done(struct kvc_usage_map *usage);
bool kvc_usage_scan_settle(struct kvc_usage_map *usage, const struct kvc_usage_count *counts,
			   size_t count, uint64_t *out_drift_bytes);
void kvc_usage_scan_end(struct kvc_usage_map *usage);

#endif
