/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The packed storage layout: pages in slots of large segment files, found through an index that
 * the processes of one host share. docs/packed.md has the protocol, core/packed_format.h the stored
 * form. Readers: core/xfer.c, core/root.c, connector/batch.c.
 *
 * All functions are thread-safe. Between kvc_packed_enter() and kvc_packed_leave() no memory of the
 * index that was seen goes away.
 */
#ifndef KVC_CORE_PACKED_H
#define KVC_CORE_PACKED_H

#include <kvcellar/kvcellar.h>
#include <kvcellar/plugin.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvc_packed;	   /* the index of a root */
struct kvc_packed_arena;   /* the slots of one size of a namespace */
struct kvc_packed_segment; /* a file of them */
struct kvc_root;

/* kvc_store_clean() of one root: so many bytes, of segments; adds to the report. */
int kvc_packed_clean(struct kvc_root *root, uint64_t excess, bool dry,
		     struct kvc_clean_report *report);
/* What its segments and files take. -EIO: its index cannot be had. */
int kvc_packed_held(struct kvc_root *root, uint64_t *out);

/* ---------------------------------------------------------------- the root */

/* Whether a new root at this place can and should be packed: 0, or -ENOTSUP with the reason in
 * kvc_last_error(). */
int kvc_packed_possible(const struct kvc_root *root);

/*
 * kvc_packed_open - opens or makes the index of a root that is packed by its root.json, and starts
 * its keeper. Errors: -EBUSY (another host uses it), -EUSERS (no process entry is free), -ENOSPC,
 * -EPROTONOSUPPORT (another format), ...; the text names the file.
 */
int kvc_packed_open(struct kvc_root *root, struct kvc_packed **out);

/* Ends the keeper and gives up the process entry. No queue of the root may be at work. -EBUSY: the
 * keeper is stuck in a file system that does not answer; everything stays as it is. */
int kvc_packed_close(struct kvc_packed *packed, uint64_t deadline_ns);

/* Whether packed pays for a new root: there is room for more than a few pages. *out_too_full:
 * others have filled the disk up to l3_cleaner_high_watermark, else it would. */
bool kvc_packed_worthwhile(struct kvc_root *root, bool *out_too_full);

/* It was followed by another index: the keeper ends, everything else stays until it is closed. */
void kvc_packed_retreat(struct kvc_packed *packed);

/* Returns what kvc_packed_leave() wants. */
uint32_t kvc_packed_enter(struct kvc_packed *packed);
void kvc_packed_leave(struct kvc_packed *packed, uint32_t turn);

/* Its files were removed behind our back: nothing is found, and nothing should be stored there. */
bool kvc_packed_is_gone(struct kvc_packed *packed);
/* Without a line in the log; what is found is forgotten. */
bool kvc_packed_is_there(const struct kvc_packed *packed);

/* ---------------------------------------------------------------- arenas */

/*
 * kvc_packed_arena_get - the arena for slots of that size, or NULL: there is none (create false),
 * or none can be made (*out_rc says why: -ENOSPC no room for a record, ...). The handle lives as
 * long as the index.
 * @folder   namespace id
 */
struct kvc_packed_arena *kvc_packed_arena_get(struct kvc_packed *packed, uint64_t ns_hash,
					      const char *folder, uint64_t slot_bytes, bool create,
					      int *out_rc);
/* The same as far as this process has seen it, without a lock. False: only kvc_packed_arena_get()
 * can tell; *out is NULL where there is none. */
bool kvc_packed_arena_seen(struct kvc_packed *packed, uint64_t ns_hash, const char *folder,
			   uint64_t slot_bytes, struct kvc_packed_arena **out);
struct kvc_packed *kvc_packed_of(const struct kvc_packed_arena *arena);

/* `capacity` or `min_free`, not the disk, has no room for one segment more of the arena, which may
 * be NULL: for so many bytes. */
bool kvc_packed_is_limited(struct kvc_packed *packed, const struct kvc_packed_arena *arena,
			   uint64_t bytes);

/* ---------------------------------------------------------------- objects */

/* An object as the index knows it. lane: objects of one group with the same lane share buckets. */
struct kvc_packed_key {
	uint64_t g;
	uint64_t v;
	uint32_t lane;
	uint32_t bytes; /* payload */
};

/* A slot that was found or claimed. */
struct kvc_packed_place {
	struct kvc_packed_segment *segment;
	struct kvc_plugin_container *container;
	uint64_t offset; /* in it */
	uint64_t ref;
	uint64_t state;
	uint64_t checksum;
	uint64_t stamp; /* of a found one */
	uint32_t intent;
	uint8_t checksum_kind;
};

/* What is stored with an object. */
struct kvc_packed_meta {
	const struct kvc_packed_key *key;
	uint64_t checksum;
	uint64_t parent_g;
	uint64_t stamp;
	uint64_t pool_fingerprint;
	const struct kvc_shape *shape;
	const char *name;
	uint32_t name_bytes;
	uint32_t depth;
	uint8_t checksum_kind;
	bool overwrite; /* takes the place of what is there */
};

/* Logical times for `count` uses: the caller counts down from the value returned in steps of
 * KVC_STAMP_STEP, so that the first of a prefix is the newest. */
uint64_t kvc_packed_stamps(struct kvc_packed *packed, uint32_t count);

/* SET 1, GET 1 and 2: 0 and where it is, or -ENOENT. */
int kvc_packed_find(struct kvc_packed_arena *arena, const struct kvc_packed_key *key,
		    struct kvc_packed_place *out);

/* Notes a use, if the last one was long ago. */
void kvc_packed_touch(struct kvc_packed_arena *arena, const struct kvc_packed_place *place,
		      uint64_t stamp);

/* The same for a group, by its objects of one lane: 1; 0: the last use was not long ago; -ENOENT.
 * *out_parent_g: of the page before. */
int kvc_packed_touch_group(struct kvc_packed_arena *arena, uint64_t g, uint32_t lane,
			   uint64_t *out_parent_g);

/*
 * kvc_packed_exists - present[i] = 1 or 0 for each key; stop: looks no further than the first that
 * is absent. Returns the number of leading ones.
 */
size_t kvc_packed_exists(struct kvc_packed_arena *arena, const struct kvc_packed_key *keys,
			 size_t count, bool stop, uint8_t *present);
/* The same without a lock, a system call or a line in the log: 0, or -EAGAIN where something has to
 * be mapped for it. */
int kvc_packed_exists_seen(struct kvc_packed_arena *arena, const struct kvc_packed_key *keys,
			   size_t count, bool stop, uint8_t *present);

/* SET 2: a slot of our own, evicting when there is none left. intent: < KVC_PACKED_INTENTS, used by
 * nobody else meanwhile. -ENOSPC: nothing free, nothing to evict; -EDQUOT: the tenant has its
 * share, and nothing of it can go; -EBUSY: not at the moment: what could go is in use; -EIO: the
 * index is damaged. */
int kvc_packed_claim(struct kvc_packed_arena *arena, uint32_t intent, struct kvc_packed_place *out);

/* SET 4 to 6: the data is there. 0; 1: another writer's object was there first and stays. */
int kvc_packed_publish(struct kvc_packed_arena *arena, struct kvc_packed_place *place,
		       const struct kvc_packed_meta *meta);

/* SET 7: gives a claimed slot back; no I/O to it is under way. */
void kvc_packed_abandon(struct kvc_packed_arena *arena, const struct kvc_packed_place *place);

/* GET 4: whether what was read is of the object that was found. */
bool kvc_packed_is_same(const struct kvc_packed_place *place);

/* It was verified after a reboot. */
void kvc_packed_trust(struct kvc_packed_arena *arena, const struct kvc_packed_place *place);
bool kvc_packed_is_suspect(const struct kvc_packed_place *place);

/* EVICT, REMOVE: true when it was this call that ended it. */
bool kvc_packed_remove(struct kvc_packed_arena *arena, const struct kvc_packed_place *place);

/* ---------------------------------------------------------------- figures */

/* Bytes that all segments together may have. */
uint64_t kvc_packed_capacity(const struct kvc_packed *packed);

struct kvc_packed_health {
	uint64_t capacity_bytes;
	uint64_t segment_bytes; /* allocated */
	uint64_t live_bytes;	/* slots in use */
	uint64_t live_slots;
	uint64_t free_slots;
	uint64_t table_entries;
	uint32_t arenas;
	uint32_t segments;
	uint32_t processes;
	uint32_t quarantined; /* process entries whose slots wait */
	uint64_t evicted;     /* by this process */
	uint64_t recovered;   /* slots of dead processes, likewise */
	bool broken;	      /* a page of the index was lost */
	bool rebuilt;	      /* at this open */
};

void kvc_packed_health(struct kvc_packed *packed, struct kvc_packed_health *out);

/*
 * kvc_packed_give_back - gives the disk back what the coldest segments hold, whole ones, until all
 * together have no more than to_bytes. A slot cannot move: what else lies in them goes with it.
 * @dry_run   only tells
 * Pinned namespaces keep theirs. Returns 0, or what kept it from going on (-EBUSY: slots are being
 * written); what was done so far is in the outputs in any case.
 */
int kvc_packed_give_back(struct kvc_packed *packed, uint64_t to_bytes, bool dry_run,
			 uint64_t *out_objects, uint64_t *out_bytes);

/* Live bytes and objects of one namespace (ns_hash), or of all (all true). */
void kvc_packed_usage(struct kvc_packed *packed, uint64_t ns_hash, bool all, uint64_t *out_bytes,
		      uint64_t *out_objects);

/* Bytes of the segment files of a namespace. */
uint64_t kvc_packed_allocated(struct kvc_packed *packed, uint64_t ns_hash);

#endif
