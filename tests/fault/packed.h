/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a packed root, opened beside a store without the thread that keeps it, so that a
 * test decides when something happens to it. Used by test_packed_*.c.
 */
#ifndef KVC_TESTS_FAULT_PACKED_H
#define KVC_TESTS_FAULT_PACKED_H

#include "support/support.h"

#include "core/packed_internal.h"
#include "core/shape.h"
#include "core/store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOT_BYTES 4096u
#define NS_HASH	   UINT64_C(0x1122334455667788)
#define NS_FOLDER  "packed-1122334455667788"
#define FOREVER_NS (UINT64_C(3600) * 1000000000)

struct opened {
	struct kvc_store *store;
	struct kvc_packed *packed;
};

/* Its first turn comes a second after the open. */
static inline void end_keeper(struct kvc_packed *packed)
{
	if (!packed->keeper_runs)
		return;
	(void)pthread_mutex_lock(&packed->keeper_lock);
	packed->stop = true;
	(void)pthread_cond_broadcast(&packed->keeper_wake);
	(void)pthread_mutex_unlock(&packed->keeper_lock);
	(void)pthread_join(packed->keeper, NULL);
	packed->keeper_runs = false;
}

/* 16 segments fit into the capacity. */
static inline int index_open(const char *root, const char *capacity, bool read_only,
			     struct opened *out)
{
	char setting[64];
	const struct setup setup = {
		.plugin = "posix",
		.engine = "threads",
		.roots = root,
		.buffered = true,
		.flags = KVC_OPEN_NO_SELFTEST | (read_only ? KVC_OPEN_READ_ONLY : 0),
		.settings = { "storage_layout=files", "min_free=0", setting },
	};
	int rc;

	text_make(setting, sizeof(setting), "capacity=%s", capacity);
	rc = setup_open(&setup, &out->store);
	if (rc)
		return rc;
	rc = kvc_packed_open(out->store->roots[0], &out->packed);
	if (rc) {
		(void)kvc_store_close(out->store);
		return rc;
	}
	end_keeper(out->packed);
	out->packed->quarantine_ns = FOREVER_NS;
	return 0;
}

static inline bool index_close(struct opened *opened)
{
	const bool ok = kvc_packed_close(opened->packed, now_ms() * 1000000 + FOREVER_NS) == 0;

	return kvc_store_close(opened->store) == 0 && ok;
}

/* Of the tests' own process: what fails there fails the test. */
static inline struct opened must_open(const char *root, const char *capacity)
{
	struct opened opened;

	if (index_open(root, capacity, false, &opened))
		fail_msg("%s: %s", root, kvc_last_error());
	return opened;
}

static inline void must_close(struct opened *opened)
{
	assert_true(index_close(opened));
}

static inline struct kvc_packed_arena *arena_of(struct opened *opened, bool create)
{
	return kvc_packed_arena_get(opened->packed, NS_HASH, NS_FOLDER, SLOT_BYTES, create, NULL);
}

static inline struct kvc_packed_key key_number(uint64_t i)
{
	return (struct kvc_packed_key){
		.g = mix(i / 2, 1),
		.v = mix(i, 2),
		.lane = (uint32_t)(i % 2),
		.bytes = 100 + (uint32_t)(i % 3000),
	};
}

static inline int publish_key(struct opened *opened, struct kvc_packed_arena *arena,
			      struct kvc_packed_place *place, uint64_t i, bool overwrite)
{
	const struct kvc_packed_key key = key_number(i);
	static const char name[] = "a name";
	static struct kvc_shape shape = { .part_count = 1, .parts = { { .bytes = 64 } } };
	const struct kvc_packed_meta meta = {
		.key = &key,
		.checksum = mix(i, 3),
		.parent_g = mix(i, 4),
		.stamp = kvc_packed_stamps(opened->packed, 1),
		.shape = &shape,
		.name = name,
		.name_bytes = sizeof(name) - 1,
		.checksum_kind = 1,
		.overwrite = overwrite,
	};

	return kvc_packed_publish(arena, place, &meta);
}

/* Index only: the data are of no interest here. */
static inline int put_key(struct opened *opened, struct kvc_packed_arena *arena, uint64_t i,
			  bool overwrite)
{
	struct kvc_packed_place place;
	int rc = kvc_packed_claim(arena, 0, &place);

	return rc ? rc : publish_key(opened, arena, &place, i, overwrite);
}

static inline bool has_key(struct kvc_packed_arena *arena, uint64_t i, struct kvc_packed_place *out)
{
	const struct kvc_packed_key key = key_number(i);

	return kvc_packed_find(arena, &key, out) == 0;
}

/* A key of group g of which nothing else is there. */
static inline int put_as(struct opened *opened, struct kvc_packed_arena *arena, uint64_t g,
			 uint64_t v, uint32_t lane, bool overwrite)
{
	static const struct kvc_shape shape = { .part_count = 1, .parts = { { .bytes = 64 } } };
	const struct kvc_packed_key key = { .g = g, .v = v, .lane = lane, .bytes = 64 };
	const struct kvc_packed_meta meta = {
		.key = &key,
		.stamp = kvc_packed_stamps(opened->packed, 1),
		.shape = &shape,
		.name = "n",
		.name_bytes = 1,
		.checksum_kind = 1,
		.overwrite = overwrite,
	};
	struct kvc_packed_place place;
	int rc = kvc_packed_claim(arena, 0, &place);

	return rc ? rc : kvc_packed_publish(arena, &place, &meta);
}

static inline bool has_as(struct kvc_packed_arena *arena, uint64_t g, uint64_t v, uint32_t lane,
			  struct kvc_packed_place *out)
{
	const struct kvc_packed_key key = { .g = g, .v = v, .lane = lane, .bytes = 64 };
	struct kvc_packed_place place;

	return kvc_packed_find(arena, &key, out ? out : &place) == 0;
}

/* ---------------------------------------------------------------- a closed root */

#define EARLIER_BOOT UINT64_C(0xb007)

static inline void shm_edit(const char *root, void (*edit)(struct kvc_packed_shm *shm))
{
	struct kvc_packed_shm *shm;
	char path[PATH_BYTES];
	int fd;

	text_make(path, sizeof(path), "%s/" KVC_PACKED_FOLDER "/root.shm", root);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	shm = mmap(NULL, sizeof(*shm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(shm != MAP_FAILED);
	edit(shm);
	assert_int_equal(munmap(shm, sizeof(*shm)), 0);
	assert_int_equal(close(fd), 0);
}

static inline void boot_edit(struct kvc_packed_shm *shm)
{
	shm->boot_id[0] = EARLIER_BOOT;
}

/* As if all that follows had been written by an earlier boot. */
static inline void reboot(const char *root)
{
	shm_edit(root, boot_edit);
}

/* ---------------------------------------------------------------- slots */

struct slot_counts {
	uint64_t slots;
	uint64_t count[4]; /* enum kvc_packed_st */
	uint64_t other;
	uint64_t bits;
	uint64_t wrong_bits;
};

static inline struct slot_counts slots_count(struct kvc_packed_arena *arena)
{
	const uint32_t segments = atomic_load(&arena->record->segments);
	struct slot_counts counts = { .slots = 0 };

	for (uint32_t n = 1; n <= segments; n++) {
		struct kvc_packed_segment *segment = kvc_packed_segment(arena, n);

		for (uint32_t s = 0; segment && s < segment->slots; s++) {
			const enum kvc_packed_st st =
				kvc_packed_st(atomic_load(&segment->headers[s].state));
			const bool bit = atomic_load(&segment->bitmap[s / 64]) >> (s % 64) & 1;

			counts.slots++;
			counts.bits += bit;
			counts.wrong_bits += bit != (st == KVC_PACKED_FREE);
			if (st <= KVC_PACKED_QUAR)
				counts.count[st]++;
			else
				counts.other++;
		}
	}
	return counts;
}

/* ---------------------------------------------------------------- processes that are killed */

/* SIGKILL at the step with that number, counted from 1; 0: never. */
struct killer {
	unsigned at;
	unsigned seen;
	const char *name; /* or at the first step of that name */
};

static inline void killer_step(void *context, const char *step)
{
	struct killer *killer = context;

	if (++killer->seen == killer->at || (killer->name && strcmp(killer->name, step) == 0))
		(void)kill(getpid(), SIGKILL);
}

static inline void killer_watch(struct opened *opened, struct killer *killer)
{
	opened->packed->step_context = killer;
	opened->packed->step = killer_step;
}

/* 0 when it was killed, else 1 + what fn returned. */
static inline int run_child(int (*fn)(void *context), void *context)
{
	pid_t pid;
	int code;

	(void)fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(fn(context));
	assert_true(pid > 0);
	code = child_wait(pid);
	if (code == 256 + SIGKILL)
		return 0;
	assert_in_range(code, 0, 255);
	return 1 + code;
}

#endif
