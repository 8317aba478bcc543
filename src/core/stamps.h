/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the groups of a root of files were used last, by all processes of the host together, in the
 * mapped file `<root>/.kvcellar/stamps` (core/sharedfile.h; docs/on-disk-format.md has its form):
 * a lossy table of (group, stamp, parent), a logical clock, pairs of clock and wall time by which
 * the time of a file becomes a stamp, and what each process is about to write.
 *
 * Stamps are those of core/order.h. A bucket that is full loses its earliest one; what has no entry
 * is as old as its file says. Nothing here is exact, and nothing is needed to read an object. All
 * functions but open and close are thread-safe.
 */
#ifndef KVC_CORE_STAMPS_H
#define KVC_CORE_STAMPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVC_STAMPS_SLOTS 128u /* processes that tell what they are about to write */

struct kvc_stamps; /* of one root */

/*
 * kvc_stamps_open
 * @path         "<root>/.kvcellar/stamps", or NULL: memory of this process
 * @held_bytes   what the root may hold: how many entries there are, unless other processes have a
 *               file of another size open. 0: not known
 * Errors: -ENOMEM.
 */
int kvc_stamps_open(const char *path, mode_t mode, uint64_t held_bytes, struct kvc_stamps **out);
void kvc_stamps_close(struct kvc_stamps *stamps);

/* As kvc_sharedfile_check(). */
int kvc_stamps_check(struct kvc_stamps *stamps);
uint64_t kvc_stamps_file_bytes(const struct kvc_stamps *stamps);

/* ---------------------------------------------------------------- clock */

/* The logical time; `count` new ones, of which the latest is returned. */
uint64_t kvc_stamps_now(const struct kvc_stamps *stamps);
uint64_t kvc_stamps_take(struct kvc_stamps *stamps, uint32_t count);

/* Notes which wall time (ns since the epoch) belongs to the logical time of now; for one process at
 * a time, every second or so. expected_ns: what it would be had it not been set since the last
 * call; 0: not known. */
void kvc_stamps_mark(struct kvc_stamps *stamps, int64_t wall_ns, int64_t expected_ns);

/* Between the two. A wall time that came twice is taken for the later of the two. -ERANGE: it is
 * after wall_now_ns. */
int kvc_stamps_of_time(const struct kvc_stamps *stamps, int64_t wall_ns, int64_t wall_now_ns,
		       uint64_t *out);
int64_t kvc_stamps_time(const struct kvc_stamps *stamps, uint64_t stamp, int64_t wall_now_ns);

/* ---------------------------------------------------------------- entries */

struct kvc_stamp {
	uint64_t stamp;
	uint64_t parent; /* group of the page before; 0: not known */
};

bool kvc_stamps_find(const struct kvc_stamps *stamps, uint64_t g, struct kvc_stamp *out);
void kvc_stamps_prefetch(const struct kvc_stamps *stamps, uint64_t g);

/* Makes an entry, or makes it later; never earlier. parent 0: what is known stays. */
void kvc_stamps_note(struct kvc_stamps *stamps, uint64_t g, struct kvc_stamp stamp);
/* The entry that there is becomes this stamp, also an earlier one. */
void kvc_stamps_replace(struct kvc_stamps *stamps, uint64_t g, uint64_t stamp);
void kvc_stamps_forget(struct kvc_stamps *stamps, uint64_t g);

/*
 * kvc_stamps_of_file - the stamp of a group without an entry, by the times of its file. One from
 * the future gets an entry of now when it is met first, and ages from then on.
 */
uint64_t kvc_stamps_of_file(struct kvc_stamps *stamps, uint64_t g, int64_t modified_ns,
			    int64_t changed_ns, int64_t wall_now_ns);

/* ---------------------------------------------------------------- what is about to be written */

/* Bytes that process number `slot` has begun to write. Of whoever dies somebody else makes 0. */
void kvc_stamps_pending_add(struct kvc_stamps *stamps, uint32_t slot, int64_t bytes);
void kvc_stamps_pending_set(struct kvc_stamps *stamps, uint32_t slot, int64_t bytes);
int64_t kvc_stamps_pending(const struct kvc_stamps *stamps, uint32_t slot);
uint64_t kvc_stamps_pending_sum(const struct kvc_stamps *stamps, uint64_t limit);

#endif
