/* SPDX-License-Identifier: Apache-2.0 */
/* core/packed_rebuild.c: a packed root after a reboot, and with damaged files. */
#include "packed.h"

#include "core/host.h"

#include <sys/stat.h>

#define CAPACITY "1MiB" /* segments of 16 slots */
#define OBJECTS	 40u
#define FOLDER	 NS_FOLDER "/slots-4096"
#define SHM	 KVC_PACKED_FOLDER "/root.shm"

/* ---------------------------------------------------------------- files of a closed root */

struct mapped {
	void *memory;
	size_t bytes;
};

static struct mapped file_map(const char *root, const char *name)
{
	struct mapped mapped;
	char path[PATH_BYTES];
	struct stat st;
	int fd;

	text_make(path, sizeof(path), "%s/%s", root, name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fail_msg("%s: %s", path, strerror(errno));
	assert_int_equal(fstat(fd, &st), 0);
	mapped.bytes = (size_t)st.st_size;
	mapped.memory = mmap(NULL, mapped.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(mapped.memory != MAP_FAILED);
	assert_int_equal(close(fd), 0);
	return mapped;
}

static void file_unmap(struct mapped mapped)
{
	assert_int_equal(munmap(mapped.memory, mapped.bytes), 0);
}

static bool is_there(const char *root, const char *name)
{
	char path[PATH_BYTES];

	text_make(path, sizeof(path), "%s/%s", root, name);
	return file_exists(path);
}

static void put_file(const char *root, const char *name)
{
	char path[PATH_BYTES];

	text_make(path, sizeof(path), "%s/%s", root, name);
	file_write(path, "something", 9);
}

/* ---------------------------------------------------------------- a root with objects */

/* Key i is in slot i % 16 of segment 1 + i / 16. */
static const char *root_new(const char *label)
{
	const char *root = folder_new(label);
	struct opened opened = must_open(root, CAPACITY);
	struct kvc_packed_arena *arena = arena_of(&opened, true);
	struct kvc_packed_place place;

	assert_non_null(arena);
	for (uint64_t i = 0; i < OBJECTS; i++) {
		assert_int_equal(put_key(&opened, arena, i, false), 0);
		assert_true(has_key(arena, i, &place));
		assert_int_equal(place.ref, kvc_packed_ref(1 + (uint32_t)i / 16, (uint32_t)i % 16));
	}
	must_close(&opened);
	return root;
}

static struct kvc_packed_slot *slot_of(struct mapped hdr, uint32_t slot)
{
	return (struct kvc_packed_slot *)((char *)hdr.memory + kvc_packed_hdr_layout(16).slots) +
	       slot;
}

static _Atomic uint64_t *stamp_of(struct mapped hdr, uint32_t slot)
{
	return (_Atomic uint64_t *)((char *)hdr.memory + kvc_packed_hdr_layout(16).stamps) + slot;
}

static void seal(struct kvc_packed_slot *slot)
{
	const uint32_t crc = kvc_packed_slot_crc(slot, slot->state);

	slot->len_crc = kvc_packed_len(slot->len_crc) | (uint64_t)crc << 32;
}

/* ---------------------------------------------------------------- what a rebuilt root is like */

static void check_found(struct kvc_packed_arena *arena, uint64_t i)
{
	struct kvc_packed_place place;

	if (!has_key(arena, i, &place))
		fail_msg("object %llu is lost", (unsigned long long)i);
	assert_true(kvc_packed_is_suspect(&place));
	assert_int_equal(place.checksum, mix(i, 3));
	assert_int_equal(place.checksum_kind, 1);
}

/* lost: a bit per object. */
static void check_rebuilt(struct opened *opened, uint64_t lost)
{
	struct kvc_packed *packed = opened->packed;
	struct kvc_packed_arena *arena = arena_of(opened, false);
	const uint64_t live = OBJECTS - (uint64_t)__builtin_popcountll(lost);
	struct kvc_packed_place place;
	struct slot_counts counts;
	uint64_t boot[2];

	assert_true(packed->rebuilt);
	assert_non_null(arena);
	assert_null(arena->next);
	for (uint64_t i = 0; i < OBJECTS; i++) {
		if (lost >> i & 1)
			assert_false(has_key(arena, i, &place));
		else
			check_found(arena, i);
	}
	counts = slots_count(arena);
	assert_int_equal(counts.wrong_bits, 0);
	assert_int_equal(counts.count[KVC_PACKED_LIVE], live);
	assert_int_equal(counts.count[KVC_PACKED_FREE], counts.slots - live);
	assert_int_equal(atomic_load(&arena->record->live_slots), live);
	assert_int_equal(atomic_load(&arena->record->free_slots), counts.slots - live);
	assert_int_equal(atomic_load(&arena->record->present), counts.slots / 16);
	assert_int_equal(atomic_load(&arena->record->lanes), 3); /* 0 and 1 */
	assert_int_equal(atomic_load(&packed->shm->segment_bytes),
			 counts.slots / 16 * kvc_packed_segment_file_bytes(arena));
	assert_true(atomic_load(&packed->shm->clock) > OBJECTS);
	assert_int_equal(kvc_host_boot_id(boot), 0);
	assert_int_equal(atomic_load(&packed->shm->boot_id[0]), boot[0]);
	assert_int_equal(atomic_load(&packed->shm->boot_id[1]), boot[1]);
	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++)
		assert_int_equal(atomic_load(&packed->shm->processes[i].pid) != 0,
				 i == packed->entry);
}

/* It works as before, all of it, and the next open finds nothing to do. */
static void check_usable(struct opened *opened, const char *root)
{
	struct kvc_packed_arena *arena = arena_of(opened, false);
	struct kvc_packed_place place;

	for (uint64_t i = 1000; i < 1000 + 2 * OBJECTS; i++) {
		assert_int_equal(put_key(opened, arena, i, false), 0);
		assert_true(has_key(arena, i, &place));
		assert_false(kvc_packed_is_suspect(&place));
	}
	must_close(opened);
	*opened = must_open(root, CAPACITY);
	assert_false(opened->packed->rebuilt);
	arena = arena_of(opened, false);
	for (uint64_t i = 1000; i < 1000 + 2 * OBJECTS; i++)
		assert_true(has_key(arena, i, &place));
	must_close(opened);
}

static void check_whole(const char *root, uint64_t lost)
{
	struct opened opened = must_open(root, CAPACITY);

	check_rebuilt(&opened, lost);
	check_usable(&opened, root);
	folder_remove(root);
}

/* ---------------------------------------------------------------- reboots */

static void a_reboot_keeps_what_is_whole(void **state)
{
	const char *root = root_new("reboot");

	(void)state;
	reboot(root);
	check_whole(root, 0);
}

static void the_same_boot_keeps_its_index(void **state)
{
	const char *root = root_new("same");
	struct opened opened = must_open(root, CAPACITY);
	struct kvc_packed_place place;

	(void)state;
	assert_false(opened.packed->rebuilt);
	for (uint64_t i = 0; i < OBJECTS; i++) {
		assert_true(has_key(arena_of(&opened, false), i, &place));
		assert_false(kvc_packed_is_suspect(&place));
	}
	must_close(&opened);
}

/* Objects 0 to 15, each damaged in its own way; those of odd number are whole. */
static void damaged_slots_are_freed(void **state)
{
	const char *root = root_new("slots");
	const struct mapped hdr = file_map(root, FOLDER "/hdr.1");
	const uint64_t lost = 0x5555;
	struct opened opened;
	uint64_t newest = 7;

	(void)state;
	reboot(root);
	slot_of(hdr, 0)->g ^= 1;
	slot_of(hdr, 2)->checksum ^= UINT64_C(1) << 63;
	slot_of(hdr, 4)->state += 1 << 20; /* another generation than the one of its fields */
	memset((char *)slot_of(hdr, 6) + 32, 0, 32); /* half of it was written */
	memset((char *)slot_of(hdr, 8), 0xff, 64);
	slot_of(hdr, 10)->len_crc = SLOT_BYTES + 1;
	seal(slot_of(hdr, 10));
	slot_of(hdr, 12)->created_depth |= UINT64_C(3) << 48;
	seal(slot_of(hdr, 12));
	slot_of(hdr, 14)->state = kvc_packed_state(newest, 3, KVC_PACKED_WRITING);
	/* What is no truth is made again. */
	slot_of(hdr, 1)->state = kvc_packed_state(newest, 0, KVC_PACKED_LIVE);
	seal(slot_of(hdr, 1));
	memset((char *)hdr.memory + kvc_packed_hdr_layout(16).bitmap, 0x5a, 8);
	*stamp_of(hdr, 3) = UINT64_MAX;
	*stamp_of(hdr, 5) = UINT64_C(123456) << 1;
	file_unmap(hdr);
	opened = must_open(root, CAPACITY);
	check_rebuilt(&opened, lost);
	assert_int_equal(atomic_load(&opened.packed->shm->clock), 123457);
	for (uint32_t s = 0; s < 16; s += 2) {
		const struct kvc_packed_segment *segment =
			kvc_packed_segment(arena_of(&opened, false), 1);
		const uint64_t now = atomic_load(&segment->headers[s].state);

		assert_int_equal(now, kvc_packed_state(newest + 1, 0, KVC_PACKED_FREE));
	}
	check_usable(&opened, root);
	folder_remove(root);
}

/* Slots that were full of random bytes are free, whatever they say; the others are untouched. */
static void random_headers_are_never_believed(void **state)
{
	struct chance chance = { seed_get() };

	(void)state;
	for (int round = 0; round < 20; round++) {
		const char *root = root_new("random");
		const struct mapped hdr = file_map(root, FOLDER "/hdr.2");
		uint64_t lost = 0;

		reboot(root);
		for (uint32_t s = 0; s < 16; s++) {
			const uint64_t from = chance_below(&chance, 8),
				       to = chance_below(&chance, 9);

			for (uint64_t w = from; w < to && w < 7; w++) {
				((_Atomic uint64_t *)slot_of(hdr, s))[w] = chance_next(&chance);
				lost |= UINT64_C(1) << (16 + s);
			}
		}
		file_unmap(hdr);
		check_whole(root, lost);
	}
}

static void the_rest_of_dead_processes_goes_with_the_boot(void **state)
{
	const char *root = root_new("dead");
	const struct mapped shm = file_map(root, SHM), hdr = file_map(root, FOLDER "/hdr.3");
	struct kvc_packed_shm *index = shm.memory;
	struct opened opened;

	(void)state;
	for (uint32_t i = 0; i < 100; i++) {
		index->processes[i].pid = 100 + i;
		index->processes[i].quarantined = i % 2 ? 1 : 0;
	}
	slot_of(hdr, 14)->state = kvc_packed_state(3, 50, KVC_PACKED_QUAR);
	slot_of(hdr, 15)->state = kvc_packed_state(3, 51, KVC_PACKED_WRITING);
	file_unmap(shm);
	file_unmap(hdr);
	put_file(root, KVC_PACKED_FOLDER "/intents.51");
	put_file(root, KVC_PACKED_FOLDER "/intents.0");
	reboot(root);
	opened = must_open(root, CAPACITY);
	check_rebuilt(&opened, 0);
	assert_true(opened.packed->entry == 51 || !is_there(root, KVC_PACKED_FOLDER "/intents.51"));
	check_usable(&opened, root);
	folder_remove(root);
}

/* A writer was killed before it found that its object is the second of its name. */
static void of_two_of_a_name_one_stays(void **state)
{
	const char *root = root_new("two");
	const struct mapped first = file_map(root, FOLDER "/hdr.1");
	const struct mapped third = file_map(root, FOLDER "/hdr.3");
	struct kvc_packed_place place;
	struct opened opened;

	(void)state;
	/* Object 7, twice: in its place, and in a slot that was free. */
	memcpy(slot_of(third, 12), slot_of(first, 7), sizeof(struct kvc_packed_slot));
	file_unmap(first);
	file_unmap(third);
	reboot(root);
	opened = must_open(root, CAPACITY);
	check_rebuilt(&opened, 0);
	assert_true(has_key(arena_of(&opened, false), 7, &place));
	assert_true(kvc_packed_remove(arena_of(&opened, false), &place));
	assert_false(has_key(arena_of(&opened, false), 7, &place));
	check_usable(&opened, root);
	folder_remove(root);
}

/* ---------------------------------------------------------------- damaged segments */

static void damage(const char *root, const char *name, int way)
{
	struct mapped mapped;
	char path[PATH_BYTES];

	text_make(path, sizeof(path), "%s/%s", root, name);
	switch (way) {
	case 0: /* never written */
		mapped = file_map(root, name);
		memset(mapped.memory, 0, 128);
		file_unmap(mapped);
		return;
	case 1: /* a bit */
		mapped = file_map(root, name);
		((uint8_t *)mapped.memory)[60] ^= 4;
		file_unmap(mapped);
		return;
	case 2: /* the version, with a sum that says that it is damage */
		mapped = file_map(root, name);
		((uint8_t *)mapped.memory)[8] ^= 0x40;
		file_unmap(mapped);
		return;
	case 3:
		assert_int_equal(truncate(path, 0), 0);
		return;
	case 4:
		assert_int_equal(truncate(path, 5000), 0);
		return;
	default:
		assert_int_equal(unlink(path), 0);
	}
}

static void a_damaged_segment_takes_no_other_with_it(void **state)
{
	static const char *const files[] = { FOLDER "/hdr.2", FOLDER "/seg.2" };

	(void)state;
	for (size_t f = 0; f < 2; f++) {
		for (int way = f == 0 ? 0 : 3; way < 6; way++) {
			const char *root = root_new("segment");
			struct opened opened;

			reboot(root);
			damage(root, files[f], way);
			opened = must_open(root, CAPACITY);
			check_rebuilt(&opened, UINT64_C(0xffff) << 16);
			assert_false(is_there(root, FOLDER "/hdr.2"));
			assert_false(is_there(root, FOLDER "/seg.2"));
			assert_false(is_there(root, FOLDER "/names.2"));
			check_usable(&opened, root);
			folder_remove(root);
		}
	}
}

static void what_belongs_to_nothing_is_removed(void **state)
{
	static const char *const strays[] = { FOLDER "/seg.9", FOLDER "/names.9",
					      FOLDER "/table.77" };
	static const char *const others[] = { FOLDER "/seg.x", FOLDER "/hdr.01", FOLDER "/notes",
					      NS_FOLDER "/slots-5000/hdr.1", NS_FOLDER "/slots-x" };
	const char *root = root_new("stray");
	char path[PATH_BYTES];
	struct opened opened;

	(void)state;
	text_make(path, sizeof(path), "%s/" NS_FOLDER "/slots-5000", root);
	assert_int_equal(mkdir(path, 0755), 0);
	for (size_t i = 0; i < sizeof(strays) / sizeof(*strays); i++)
		put_file(root, strays[i]);
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		put_file(root, others[i]);
	reboot(root);
	opened = must_open(root, CAPACITY);
	check_rebuilt(&opened, 0);
	for (size_t i = 0; i < sizeof(strays) / sizeof(*strays); i++)
		assert_false(is_there(root, strays[i]));
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		assert_true(is_there(root, others[i]));
	assert_int_equal(folder_count(root, "table."), 1);
	check_usable(&opened, root);
	folder_remove(root);
}

static void a_segment_on_its_way_out_goes(void **state)
{
	(void)state;
	for (uint32_t retired = 1; retired <= 2; retired++) {
		const char *root = root_new("retired");
		const struct mapped hdr = file_map(root, FOLDER "/hdr.1");
		struct opened opened;

		((struct kvc_packed_hdr *)hdr.memory)->retired = retired;
		file_unmap(hdr);
		reboot(root);
		opened = must_open(root, CAPACITY);
		check_rebuilt(&opened, 0xffff);
		assert_false(is_there(root, FOLDER "/hdr.1"));
		assert_false(is_there(root, FOLDER "/seg.1"));
		check_usable(&opened, root);
		folder_remove(root);
	}
}

/* ---------------------------------------------------------------- damaged root.shm */

static void arenas_are_found_without_their_records(void **state)
{
	(void)state;
	for (int way = 0; way < 6; way++) {
		const char *root = root_new("shm");

		damage(root, SHM, way);
		check_whole(root, 0);
	}
}

/* Records have no CRC: whatever they say, the folders are right. */
static void records_that_lie_are_not_believed(void **state)
{
	struct chance chance = { seed_get() };

	(void)state;
	for (int round = 0; round < 10; round++) {
		const char *root = root_new("records");
		const struct mapped shm = file_map(root, SHM);
		struct kvc_packed_shm *index = shm.memory;
		uint64_t *words = (void *)index->arenas;

		for (size_t i = 0; i < sizeof(index->arenas) / 8; i++)
			if (round > 0 || i < 64)
				words[i] = chance_below(&chance, 3) ? chance_next(&chance) : 1;
		index->segment_bytes = chance_next(&chance);
		index->clock = round % 2 ? 0 : UINT64_MAX - 5;
		file_unmap(shm);
		reboot(root);
		check_whole(root, 0);
	}
}

static void older_records_than_segments_are_brought_up(void **state)
{
	const char *root = root_new("older");
	const struct mapped shm = file_map(root, SHM);
	struct kvc_packed_shm *index = shm.memory;

	(void)state;
	index->arenas[0].segments = 1;
	index->arenas[0].live_slots = 3;
	index->clock = 2;
	file_unmap(shm);
	reboot(root);
	check_whole(root, 0);
}

static void segments_of_another_root_are_not_taken(void **state)
{
	const char *root = root_new("one"), *other = root_new("other");
	char from[PATH_BYTES], to[PATH_BYTES];

	(void)state;
	text_make(from, sizeof(from), "%s/" FOLDER "/hdr.1", other);
	text_make(to, sizeof(to), "%s/" FOLDER "/hdr.1", root);
	assert_int_equal(rename(from, to), 0);
	reboot(root);
	check_whole(root, 0xffff);
}

/* ---------------------------------------------------------------- interrupted, and for readers */

struct work {
	const char *root;
	struct killer killer;
};

/* The index by hand, so that the steps of its rebuild are seen. */
static int rebuild_watched(void *context)
{
	struct work *work = context;
	struct kvc_packed *packed;
	struct opened opened;
	int rc;

	if (index_open(work->root, CAPACITY, false, &opened))
		return 1;
	packed = opened.packed;
	atomic_store(&packed->shm->boot_id[0], EARLIER_BOOT);
	killer_watch(&opened, &work->killer);
	kvc_packed_entry_give(packed);
	kvc_packed_arenas_free(packed);
	if (kvc_packed_lock_try(packed->lock, KVC_PACKED_LOCK_USERS, true))
		return 2;
	rc = kvc_packed_rebuild(packed);
	return rc || !index_close(&opened) ? 3 : 0;
}

static void a_rebuild_that_is_killed_is_done_again(void **state)
{
	unsigned deaths = 0;
	int rc = 0;

	(void)state;
	for (unsigned at = 1; rc == 0; at++) {
		struct work work = { .root = root_new("again"), .killer = { .at = at } };
		const struct mapped hdr = file_map(work.root, FOLDER "/hdr.1");

		slot_of(hdr, 3)->v ^= 1;
		file_unmap(hdr);
		put_file(work.root, FOLDER "/seg.9");
		damage(work.root, FOLDER "/hdr.2", 1);
		rc = run_child(rebuild_watched, &work);
		deaths += rc == 0;
		if (rc == 0)
			check_whole(work.root, UINT64_C(0xffff) << 16 | 8);
	}
	assert_int_equal(rc, 1);
	assert_in_range(deaths, 6, 100);
}

/* It keeps what it made for itself. */
static void a_reader_changes_nothing(void **state)
{
	const char *root = root_new("reader");
	struct opened opened;
	uint64_t before;

	(void)state;
	reboot(root);
	put_file(root, FOLDER "/seg.9");
	damage(root, FOLDER "/hdr.2", 1);
	before = folder_digest(root);
	if (index_open(root, CAPACITY, true, &opened))
		fail_msg("%s", kvc_last_error());
	assert_true(opened.packed->rebuilt);
	for (uint64_t i = 0; i < 16; i++)
		check_found(arena_of(&opened, false), i);
	for (uint64_t i = 32; i < OBJECTS; i++)
		check_found(arena_of(&opened, false), i);
	assert_int_equal(slots_count(arena_of(&opened, false)).count[KVC_PACKED_LIVE],
			 OBJECTS - 16);
	must_close(&opened);
	assert_true(folder_digest(root) == before);
	check_whole(root, UINT64_C(0xffff) << 16);
}

/* Its maker was killed before it had made the index, or the files were removed. */
static void a_reader_does_without_an_index(void **state)
{
	static const char *const lost[] = { SHM, KVC_PACKED_FOLDER "/root.lock" };
	const char *root = root_new("no-index");
	uint64_t before;

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct opened opened;
		char path[PATH_BYTES];

		text_make(path, sizeof(path), "%s/%s", root, lost[i]);
		assert_int_equal(unlink(path), 0);
		before = folder_digest(root);
		if (index_open(root, CAPACITY, true, &opened))
			fail_msg("%s", kvc_last_error());
		assert_true(opened.packed->rebuilt);
		for (uint64_t k = 0; k < OBJECTS; k++)
			check_found(arena_of(&opened, false), k);
		assert_int_equal(slots_count(arena_of(&opened, false)).count[KVC_PACKED_LIVE],
				 OBJECTS);
		must_close(&opened);
		assert_true(folder_digest(root) == before);
	}
	check_whole(root, 0);
}

static void a_reader_of_a_root_that_is_just_begun(void **state)
{
	const char *root = folder_new("begun");
	const struct setup setup = { .plugin = "posix",
				     .engine = "threads",
				     .roots = root,
				     .buffered = true,
				     .flags = KVC_OPEN_NO_SELFTEST,
				     .settings = { "storage_layout=files", "min_free=0" } };
	struct opened opened;

	(void)state;
	store_must_close(setup_must_open(&setup));
	if (index_open(root, CAPACITY, true, &opened))
		fail_msg("%s", kvc_last_error());
	assert_null(arena_of(&opened, false));
	must_close(&opened);
	assert_false(is_there(root, KVC_PACKED_FOLDER));
	folder_remove(root);
}

struct writer {
	const char *root;
	struct opened opened;
	int rc;
};

static void *open_to_write(void *context)
{
	struct writer *writer = context;

	writer->rc = index_open(writer->root, CAPACITY, false, &writer->opened);
	return NULL;
}

/* What a reader has made for itself is of no use to a writer, who has to wait for it. */
static void a_writer_waits_for_readers_of_an_earlier_boot(void **state)
{
	struct writer writer = { .root = root_new("waits") };
	struct opened opened;
	pthread_t thread;

	(void)state;
	reboot(writer.root);
	if (index_open(writer.root, CAPACITY, true, &opened))
		fail_msg("%s", kvc_last_error());
	assert_int_equal(pthread_create(&thread, NULL, open_to_write, &writer), 0);
	sleep_ms(100);
	must_close(&opened);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(writer.rc, 0);
	check_rebuilt(&writer.opened, 0);
	check_usable(&writer.opened, writer.root);
	folder_remove(writer.root);
}

static void an_index_in_use_is_not_rebuilt(void **state)
{
	const char *root = root_new("use");
	struct opened opened = must_open(root, CAPACITY);

	(void)state;
	assert_non_null(arena_of(&opened, false));
	assert_int_equal(kvc_packed_rebuild(opened.packed), -EBUSY);
	must_close(&opened);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reboot_keeps_what_is_whole),
		cmocka_unit_test(the_same_boot_keeps_its_index),
		cmocka_unit_test(damaged_slots_are_freed),
		cmocka_unit_test(random_headers_are_never_believed),
		cmocka_unit_test(the_rest_of_dead_processes_goes_with_the_boot),
		cmocka_unit_test(of_two_of_a_name_one_stays),
		cmocka_unit_test(a_damaged_segment_takes_no_other_with_it),
		cmocka_unit_test(what_belongs_to_nothing_is_removed),
		cmocka_unit_test(a_segment_on_its_way_out_goes),
		cmocka_unit_test(arenas_are_found_without_their_records),
		cmocka_unit_test(records_that_lie_are_not_believed),
		cmocka_unit_test(older_records_than_segments_are_brought_up),
		cmocka_unit_test(segments_of_another_root_are_not_taken),
		cmocka_unit_test(a_rebuild_that_is_killed_is_done_again),
		cmocka_unit_test(a_reader_changes_nothing),
		cmocka_unit_test(a_reader_does_without_an_index),
		cmocka_unit_test(a_reader_of_a_root_that_is_just_begun),
		cmocka_unit_test(a_writer_waits_for_readers_of_an_earlier_boot),
		cmocka_unit_test(an_index_in_use_is_not_rebuilt),
	};

	support_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
