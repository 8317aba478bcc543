/* SPDX-License-Identifier: Apache-2.0 */
/* What tests look at inside a packed root of an open store. */
#ifndef KVC_TESTS_SUPPORT_PACKED_H
#define KVC_TESTS_SUPPORT_PACKED_H

#include "support/support.h"

#include "core/packed_internal.h"

/* Index of root number `root`; fails the test when that is not packed. */
struct kvc_packed *packed_of(struct kvc_store *store, size_t root);
struct kvc_packed_health packed_health(struct kvc_store *store);

/* Where the object of a page lies. path is empty where there are no files of data (mem). */
struct packed_spot {
	struct kvc_packed_arena *arena;
	struct kvc_packed_place place;
	char path[PATH_BYTES]; /* of the segment */
	uint64_t bytes;	       /* of the slot */
};

/* Of object number `object` of the page, in the first root; false: it is not there. */
bool packed_spot(struct kvc_store *store, struct kvc_pool *pool, struct kvc_key key,
		 uint32_t object, struct packed_spot *out);
/* Reads or writes bytes of the slot behind the store's back. */
void packed_spot_read(const struct packed_spot *spot, uint64_t at, void *data, size_t bytes);
void packed_spot_write(const struct packed_spot *spot, uint64_t at, const void *data, size_t bytes);
/* Turns some bits of one byte over. */
void packed_spot_flip(const struct packed_spot *spot, uint64_t at, unsigned char bits);

/* States of all slots of the first root. */
struct packed_slots {
	uint64_t total;
	uint64_t free;
	uint64_t writing;
	uint64_t live;
	uint64_t quarantined;
};
struct packed_slots packed_slots(struct kvc_store *store);

/* With nothing under way in any process: each slot is free or live, the free ones can be found, the
 * counters are right, and every live one is found through the table. Returns the live ones. */
#define packed_check(store) packed_check_at((store), __FILE__, __LINE__)
uint64_t packed_check_at(struct kvc_store *store, const char *file, int line);

/* cmocka has a handler for SIGBUS of its own while a test runs, which ends the test before the
 * library can mend what was cut. learn: once, in main(); then a test may have the library's. */
void packed_guard_learn(void);
void packed_guard_begin(void);
void packed_guard_end(void);

/* Bytes that files below a folder take up on the disk. */
uint64_t folder_allocated(const char *path);

#endif
