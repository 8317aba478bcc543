/* SPDX-License-Identifier: Apache-2.0 */
/* Packed roots from inside. */
#include "support/packed.h"
#include "support/support_internal.h"

#include "connector/handle.h"
#include "core/store.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOOKS	100
#define LOOK_MS 10

struct kvc_packed *packed_of(struct kvc_store *store, size_t root)
{
	struct kvc_packed *packed = atomic_load(&store->roots[root]->packed);

	if (packed == NULL)
		fail_msg("%s is not packed", store->roots[root]->location);
	return packed;
}

struct kvc_packed_health packed_health(struct kvc_store *store)
{
	struct kvc_packed_health health;

	kvc_packed_health(packed_of(store, 0), &health);
	return health;
}

/* ---------------------------------------------------------------- one object */

bool packed_spot(struct kvc_store *store, struct kvc_pool *pool, struct kvc_key key,
		 uint32_t object, struct packed_spot *out)
{
	struct kvc_packed *packed = packed_of(store, 0);
	const struct kvc_geometry_object *of = &pool->geometry.objects[object];
	struct kvc_packed_key wanted = {
		.lane = pool->rules[object].packed_lane,
		.bytes = (uint32_t)of->shape->payload_bytes,
	};
	const uint32_t turn = kvc_packed_enter(packed);
	char file[256];
	bool found;

	kvc_name_packed(&pool->rules[object], &key, &wanted.g, &wanted.v);
	out->arena = kvc_pool_arena(pool, packed, 0, object, false);
	found = out->arena != NULL && kvc_packed_find(out->arena, &wanted, &out->place) == 0;
	if (found) {
		out->bytes = out->arena->slot_bytes;
		kvc_packed_arena_path(out->arena, "seg", kvc_packed_ref_segment(out->place.ref),
				      file);
		text_make(out->path, sizeof(out->path), "%s/%s", store->roots[0]->location, file);
	}
	kvc_packed_leave(packed, turn);
	return found;
}

static int spot_open(const struct packed_spot *spot, int flags)
{
	const int fd = open(spot->path, flags | O_CLOEXEC);

	if (fd < 0)
		fail_msg("%s: %s", spot->path, strerror(errno));
	return fd;
}

void packed_spot_read(const struct packed_spot *spot, uint64_t at, void *data, size_t bytes)
{
	const int fd = spot_open(spot, O_RDONLY);

	assert_int_equal(pread(fd, data, bytes, (off_t)(spot->place.offset + at)), bytes);
	(void)close(fd);
}

void packed_spot_write(const struct packed_spot *spot, uint64_t at, const void *data, size_t bytes)
{
	const int fd = spot_open(spot, O_WRONLY);

	assert_int_equal(pwrite(fd, data, bytes, (off_t)(spot->place.offset + at)), bytes);
	(void)close(fd);
}

void packed_spot_flip(const struct packed_spot *spot, uint64_t at, unsigned char bits)
{
	unsigned char byte;

	packed_spot_read(spot, at, &byte, 1);
	byte ^= bits;
	packed_spot_write(spot, at, &byte, 1);
}

/* ---------------------------------------------------------------- all slots */

static void segment_count(struct kvc_packed_segment *segment, struct packed_slots *slots)
{
	for (uint32_t s = 0; s < segment->slots; s++) {
		switch (kvc_packed_st(atomic_load(&segment->headers[s].state))) {
		case KVC_PACKED_FREE:
			slots->free++;
			break;
		case KVC_PACKED_WRITING:
			slots->writing++;
			break;
		case KVC_PACKED_LIVE:
			slots->live++;
			break;
		case KVC_PACKED_QUAR:
			slots->quarantined++;
			break;
		}
		slots->total++;
	}
}

struct packed_slots packed_slots(struct kvc_store *store)
{
	struct kvc_packed *packed = packed_of(store, 0);
	const uint32_t turn = kvc_packed_enter(packed);
	struct packed_slots slots = { .total = 0 };

	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a != NULL; a = a->next) {
		const uint32_t segments = atomic_load(&a->record->segments);

		for (uint32_t n = 1; n <= segments; n++) {
			struct kvc_packed_segment *segment = kvc_packed_segment(a, n);

			if (segment != NULL)
				segment_count(segment, &slots);
		}
	}
	kvc_packed_leave(packed, turn);
	return slots;
}

/* What of a segment is not as it should be, or NULL. */
static const char *segment_fault(struct kvc_packed_segment *segment)
{
	for (uint32_t s = 0; s < segment->slots; s++) {
		struct kvc_packed_slot *slot = &segment->headers[s];
		const enum kvc_packed_st st = kvc_packed_st(atomic_load(&slot->state));
		const bool bit = atomic_load(&segment->bitmap[s / 64]) >> s % 64 & 1;
		const struct kvc_packed_key key = {
			.g = atomic_load(&slot->g),
			.v = atomic_load(&slot->v),
			.lane = kvc_packed_lane(atomic_load(&slot->created_depth)),
			.bytes = kvc_packed_len(atomic_load(&slot->len_crc)),
		};
		struct kvc_packed_place place;

		if (st == KVC_PACKED_FREE && !bit)
			return "a free slot that nobody can find";
		if (st == KVC_PACKED_WRITING || st == KVC_PACKED_QUAR)
			return "a slot that is still being written";
		if (st == KVC_PACKED_LIVE && (kvc_packed_find(segment->arena, &key, &place) != 0 ||
					      place.ref != kvc_packed_ref(segment->number, s)))
			return "a live object that is not found";
	}
	return NULL;
}

static const char *arena_fault(struct kvc_packed_arena *arena, uint64_t *live)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	struct packed_slots slots = { .total = 0 };
	const char *fault = NULL;

	for (uint32_t n = 1; n <= segments && fault == NULL; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		if (segment == NULL)
			continue;
		segment_count(segment, &slots);
		fault = segment_fault(segment);
	}
	*live += slots.live;
	if (fault == NULL && atomic_load(&arena->record->live_slots) != slots.live)
		fault = "the count of live slots";
	if (fault == NULL && atomic_load(&arena->record->free_slots) != slots.free)
		fault = "the count of free slots";
	return fault;
}

static const char *root_fault(struct kvc_packed *packed, uint64_t *live)
{
	const uint32_t turn = kvc_packed_enter(packed);
	const char *fault = NULL;

	*live = 0;
	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a && !fault; a = a->next)
		fault = arena_fault(a, live);
	kvc_packed_leave(packed, turn);
	return fault;
}

uint64_t packed_check_at(struct kvc_store *store, const char *file, int line)
{
	struct kvc_packed *packed = packed_of(store, 0);
	uint64_t live;
	const char *fault = root_fault(packed, &live);

	/* The keeper may be at work: what it is about to change back is no fault. */
	for (int look = 0; fault != NULL && look < LOOKS; look++) {
		sleep_ms(LOOK_MS);
		fault = root_fault(packed, &live);
	}
	if (fault != NULL) {
		print_error("packed root: %s\n", fault);
		_fail(file, line);
	}
	return live;
}

/* ---------------------------------------------------------------- SIGBUS */

static struct sigaction guard_of_library;
static struct sigaction guard_of_cmocka;

void packed_guard_learn(void)
{
	const struct setup setup = {
		.plugin = "posix",
		.roots = folder_new("guard"),
		.layout = "packed",
		.flags = KVC_OPEN_NO_SELFTEST,
	};

	store_must_close(setup_must_open(&setup));
	(void)sigaction(SIGBUS, NULL, &guard_of_library);
	if (guard_of_library.sa_handler == SIG_DFL)
		support_die("the library has no handler for SIGBUS");
}

void packed_guard_begin(void)
{
	(void)sigaction(SIGBUS, &guard_of_library, &guard_of_cmocka);
}

void packed_guard_end(void)
{
	(void)sigaction(SIGBUS, &guard_of_cmocka, NULL);
}

/* ---------------------------------------------------------------- the disk */

static pthread_mutex_t walk_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t walk_blocks;

static int add_blocks(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)path;
	(void)ftw;
	if (type == FTW_F)
		walk_blocks += (uint64_t)st->st_blocks;
	return 0;
}

uint64_t folder_allocated(const char *path)
{
	uint64_t bytes;

	pthread_mutex_lock(&walk_lock);
	walk_blocks = 0;
	(void)nftw(path, add_blocks, 32, FTW_PHYS);
	bytes = walk_blocks * 512;
	pthread_mutex_unlock(&walk_lock);
	return bytes;
}
