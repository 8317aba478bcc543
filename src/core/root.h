/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A root: one storage directory (bucket, device) of an open store, with its identity, what it can
 * do, its queues, its marks and its deadline kind. Readers: core/xfer.c, core/store.c, core/walk.c.
 */
#ifndef KVC_CORE_ROOT_H
#define KVC_CORE_ROOT_H

#include "core/backend.h"
#include "core/config.h"
#include "core/log.h"
#include "core/mark.h"

#include <pthread.h>
#include <stdatomic.h>

struct kvc_files;
struct kvc_ghosts;
struct kvc_order;
struct kvc_packed;
struct kvc_queue;
struct kvc_stage;
struct kvc_store;
struct kvc_tenants;
struct kvc_usage_map;

/* What a deadline can do to I/O in flight (docs/data-path.md). */
enum kvc_deadline_kind {
	KVC_DEADLINE_HARD,   /* cancelled at the deadline */
	KVC_DEADLINE_SOFT,   /* nothing new after it; what is in flight is waited for */
	KVC_DEADLINE_STAGED, /* runs in memory of the library and is abandoned at the deadline */
};

enum kvc_root_warning {
	KVC_WARN_DENIED_READ,
	KVC_WARN_DENIED_WRITE,
	KVC_WARN_READ_ONLY,
	KVC_WARN_FULL,
	KVC_WARN_IO,
	KVC_WARN_CORRUPT,
	KVC_WARN_BOUNCE,
	KVC_WARN_COUNT,
};

#define KVC_PINS_MAX 64u /* namespaces of a root that are pinned */

struct kvc_root {
	struct kvc_store *store;
	struct kvc_backend *backend;
	struct kvc_plugin_root *handle;
	struct kvc_attributes attributes;
	char *location;
	uint8_t uuid[16];
	char uuid_text[37];
	bool is_packed; /* its storage layout; else files */
	bool read_only;
	bool opened_read_only;	 /* by the caller: no property of the root */
	bool writes_refused;	 /* an unknown ro_compat word in root.json */
	bool told_read_only;	 /* a warning at open said why nothing is stored */
	uint64_t capacity_bytes; /* of own objects, 0 = no limit */
	uint64_t min_free_bytes; /* of the device, 0 = no limit */
	uint64_t device_bytes;	 /* at the opening, 0 = not known */
	/* Stalled once: staged from then on. Not beside the flags above, which a compiler may test
	 * together with what lies in their word. */
	atomic_bool suspect;
	atomic_uint_fast64_t suspect_ms; /* when it stalled last */

	/* Space of the device for the metrics, as last asked; 0: not known. */
	atomic_uint_fast64_t device_total_bytes;
	atomic_uint_fast64_t device_free_bytes;

	struct kvc_marks marks;
	struct kvc_usage_map *usage;
	struct kvc_files *files; /* core/cleaner.h; NULL: there is no cleaner for it */

	atomic_uint_fast64_t oldest_live_s; /* since the earliest object was stored; 0: unknown */

	/* What goes first when there is too much, and what does not go. */
	const struct kvc_order *order;
	struct kvc_ghosts *ghosts;
	struct kvc_tenants *tenants; /* NULL: nobody has a share */
	pthread_mutex_t pin_lock;    /* of changing them */
	atomic_uint pin_count;
	_Atomic uint64_t pins[KVC_PINS_MAX]; /* namespace hashes, 0: free */

	struct kvc_log_limit warnings[KVC_WARN_COUNT];
	char told_note[KVC_ATTRIBUTE_TEXT_BYTES]; /* after the opening the housekeeper's */

	/* Idle queues, newest first; their number in all is bounded. */
	pthread_mutex_t queue_lock;
	pthread_cond_t queue_idle;
	struct kvc_queue *idle;
	struct kvc_queue *parked; /* their I/O is stuck; they count */
	uint32_t queue_count;
	atomic_uint_fast32_t queue_numbers; /* bits of those that are given out */

	/* The index of a packed root. One whose files were removed is followed by a new one, and
	 * stays until the root is closed: somebody may look at it. */
	_Atomic(struct kvc_packed *) packed;
	struct kvc_packed **former_packed;
	size_t former_packed_count;
	pthread_mutex_t packed_lock;

	struct kvc_stage *stage; /* made at the first staged transfer; under queue_lock */
};

/* Opens the root at location, checks or makes its identity. The text of a failure names it. */
int kvc_root_open(struct kvc_store *store, struct kvc_backend *backend, const char *location,
		  bool read_only, struct kvc_root **out);

/* Closes queues and the root; waits for its threads until deadline_ns. -EBUSY: I/O is stuck in it;
 * then everything of it stays as it is. */
int kvc_root_close(struct kvc_root *root, uint64_t deadline_ns);

enum kvc_deadline_kind kvc_root_deadline_kind(const struct kvc_root *root);

/* Its I/O was found stalling: transfers are staged from now on. True when that is news. */
bool kvc_root_suspect(struct kvc_root *root);

/* The index of a packed root; NULL: its layout is files. for_write: one whose files were removed is
 * made again. */
struct kvc_packed *kvc_root_packed(struct kvc_root *root, bool for_write);

/* For a housekeeping thread, every few seconds: ends the suspicion after a quiet time, warns when
 * the plugin has something new to note, and writes root.json again when somebody removed it, so
 * that the root keeps its place in the routing. */
void kvc_root_look_after(struct kvc_root *root);

/* Under what the own bytes of a namespace are counted. In nixl naming a walk cannot tell namespaces
 * apart: all are counted as one. */
uint64_t kvc_root_usage_key(const struct kvc_root *root, uint64_t ns_hash);

/* A share of a file system of that size, in bytes. */
uint64_t kvc_share_bytes(const struct kvc_share *share, uint64_t total_bytes);

/* Bytes that may still be written, by `capacity` and `min_free`; UINT64_MAX without a limit. */
uint64_t kvc_root_room(struct kvc_root *root);

/* What KVC_CAUSE_CAPACITY means there: no errno says that it is a limit of the configuration. */
const char *kvc_root_limit_text(const struct kvc_root *root);

#define KVC_ROOT_TOO_FULL                                                                      \
	"the file system is fuller than l3_cleaner_high_watermark allows; with `capacity` it " \
	"would be packed"

/* Whether a root that is made here now would be packed: 0, or a negative errno and in out why not.
 * -ENOSPC: KVC_ROOT_TOO_FULL. */
int kvc_root_packed_reason(struct kvc_root *root, char *out, size_t bytes);

/* Whole small objects of housekeeping (root.json, namespace.json), in the calling thread.
 * read: the bytes, at most `capacity`; write: -EEXIST when if_absent and it is there. The content
 * is padded with spaces to whole blocks. */
int64_t kvc_root_read_text(struct kvc_root *root, const char *name, char *buffer, size_t capacity);
int kvc_root_write_text(struct kvc_root *root, const char *name, const char *text, bool if_absent);

/* Reads [offset, offset + bytes) of an object; both multiples of a block. The completion's size. */
int64_t kvc_root_read(struct kvc_root *root, const char *name, uint64_t offset, void *buffer,
		      uint64_t bytes, struct kvc_completion *out);
int kvc_root_stat(struct kvc_root *root, const char *name, struct kvc_completion *out);

/* The same, at the longest until deadline_ns (CLOCK_MONOTONIC) and what a cancel takes; 0: as long
 * as housekeeping may take. */
int64_t kvc_root_read_until(struct kvc_root *root, const char *name, uint64_t offset, void *buffer,
			    uint64_t bytes, uint64_t deadline_ns, struct kvc_completion *out);
int kvc_root_stat_until(struct kvc_root *root, const char *name, uint64_t deadline_ns,
			struct kvc_completion *out);
int kvc_root_remove(struct kvc_root *root, const char *name, const uint64_t version[2]);

/* Reads [offset, offset + bytes) of a container; both multiples of a block. */
int64_t kvc_root_read_container(struct kvc_root *root, struct kvc_plugin_container *container,
				uint64_t offset, void *buffer, uint64_t bytes);

/* Logs once per 10 s and root what kind of thing goes wrong. error 0: kvc_root_limit_text(). */
void kvc_root_warn(struct kvc_root *root, enum kvc_root_warning kind, const char *what, int error);

#endif
