/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies in the slots of a packed root, one after the other: for tools, not on the data path.
 * Readers: core/walk.c, connector/copy.c.
 */
#ifndef KVC_CORE_PACKED_WALK_H
#define KVC_CORE_PACKED_WALK_H

#include "core/packed.h"
#include "core/packed_format.h"
#include "core/shape.h"

#define KVC_PACKED_PATH_BYTES 256u

/*
 * struct kvc_packed_item - a live object, as it was at that moment.
 * @place       what kvc_packed_is_same() and kvc_packed_remove() want
 * @has_record  the names record is of this object; else pool and runs are not known
 * @is_named    and it has the whole name; else name is the stand-in "?g-<g>-<v>"
 * @name_bytes  of the whole name, 0 when it is not known
 * @path        "<namespace>/slots-<bytes>/seg.<n>@<slot>"
 */
struct kvc_packed_item {
	struct kvc_packed_arena *arena;
	struct kvc_packed_place place;
	const char *folder; /* namespace id */
	uint64_t ns_hash;
	uint64_t slot_bytes;
	uint64_t g;
	uint64_t v;
	uint64_t parent_g;
	uint64_t pool_fingerprint;
	int64_t created_ns;
	uint32_t payload_bytes;
	uint32_t lane;
	uint32_t depth;
	uint32_t name_bytes;
	uint32_t run_count;
	bool has_record;
	bool is_named;
	struct kvc_packed_run runs[KVC_PACKED_RUNS];
	char name[KVC_PACKED_NAME_BYTES + 1];
	char path[KVC_PACKED_PATH_BYTES];
};
typedef int (*kvc_packed_item_fn)(void *context, const struct kvc_packed_item *item);

/* Each live object of a namespace (folder NULL: all). Non-zero from fn stops and is returned. An
 * object that ends or comes meanwhile may be seen or not; one that stays is seen once. The item's
 * place is good during the call of fn. */
int kvc_packed_walk(struct kvc_packed *packed, const char *folder, kvc_packed_item_fn fn,
		    void *context);

/* Whether a path is, or would be, of something in an arena's folder, and so of no file's object. */
bool kvc_packed_is_path(const char *path);

/* The object at a path; -ENOENT. Between kvc_packed_enter() and kvc_packed_leave(). */
int kvc_packed_look(struct kvc_packed *packed, const char *path, struct kvc_packed_item *out);

/* The path of a place, or with place NULL the folder of the arena. */
void kvc_packed_place_path(const struct kvc_packed_arena *arena,
			   const struct kvc_packed_place *place, char out[KVC_PACKED_PATH_BYTES]);

/* The parts of an object, for core/checksum.h, and one series each. False: not known. */
bool kvc_packed_item_shape(const struct kvc_packed_item *item, struct kvc_shape *out);

/* Reads the slot: slot_bytes bytes into image. 0; -ENOENT: the object ended meanwhile; else what
 * the read ended with (-EIO: it was short). */
int kvc_packed_item_read(const struct kvc_packed_item *item, void *image);

/* Removes the segments of a namespace, and the folders of its arenas as far as they become empty.
 * What others store there meanwhile goes, too, or finds a new segment. Returns the bytes of files
 * that were removed. */
uint64_t kvc_packed_release(struct kvc_packed *packed, const char *folder);

/* Counts of live and free slots by what is there. Nothing when it is opened read-only. */
void kvc_packed_recount(struct kvc_packed *packed);

/* Room for one more object, where nothing has to be evicted for it now or soon: 0; -ENOSPC. */
int kvc_packed_spare(struct kvc_packed_arena *arena);

#endif
