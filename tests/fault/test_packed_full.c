/* SPDX-License-Identifier: Apache-2.0 */
/* A packed root after a reboot, on a disk that others have filled meanwhile. */
#include "packed.h"

#define CAPACITY "1MiB" /* segments of 16 slots */

static void fill(const char *root, const char *name)
{
	static const char block[4096] = "full";
	char path[PATH_BYTES];
	int fd;

	text_make(path, sizeof(path), "%s/%s", root, name);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	while (write(fd, block, sizeof(block)) == sizeof(block))
		;
	assert_int_equal(errno, ENOSPC);
	assert_int_equal(close(fd), 0);
}

static uint64_t count_found(struct kvc_packed_arena *arena, uint64_t count)
{
	struct kvc_packed_place place;
	uint64_t found = 0;

	for (uint64_t i = 0; i < count; i++)
		found += has_key(arena, i, &place);
	return found;
}

/* table_lost: what is to be made again does not even find the room that it had. */
static void run(bool table_lost)
{
	const char *root = folder_new("packed-full");
	struct kvc_packed_arena *arena;
	struct slot_counts counts;
	struct opened opened;
	const uint64_t count = 5 * 16;
	char path[PATH_BYTES];

	mount_tmpfs(root, "size=2m");
	opened = must_open(root, CAPACITY);
	arena = arena_of(&opened, true);
	for (uint64_t i = 0; i < count; i++)
		assert_int_equal(put_key(&opened, arena, i, false), 0);
	must_close(&opened);
	reboot(root);
	if (table_lost) {
		for (unsigned e = 1; e < 20; e++) {
			text_make(path, sizeof(path), "%s/" NS_FOLDER "/slots-4096/table.%u", root,
				  e);
			(void)unlink(path);
		}
	}
	fill(root, "others");
	opened = must_open(root, CAPACITY);
	assert_true(opened.packed->rebuilt);
	arena = arena_of(&opened, false);
	assert_non_null(arena);
	counts = slots_count(arena);
	assert_int_equal(counts.wrong_bits, 0);
	assert_int_equal(counts.count[KVC_PACKED_LIVE], table_lost ? count - 16 : count);
	assert_int_equal(count_found(arena, count), counts.count[KVC_PACKED_LIVE]);
	assert_int_equal(atomic_load(&arena->record->live_slots), counts.count[KVC_PACKED_LIVE]);
	assert_int_equal(atomic_load(&arena->record->present), counts.slots / 16);
	assert_int_equal(atomic_load(&opened.packed->shm->segment_bytes),
			 counts.slots / 16 * kvc_packed_segment_file_bytes(arena));
	/* What is there is used again and again. */
	for (uint64_t i = count; i < 3 * count; i++)
		assert_int_equal(put_key(&opened, arena, i, false), 0);
	must_close(&opened);
	mount_end(root);
}

static void a_full_disk_keeps_its_objects(void **state)
{
	(void)state;
	run(false);
}

static void a_segment_goes_when_there_is_no_room_for_a_table(void **state)
{
	(void)state;
	run(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_full_disk_keeps_its_objects),
		cmocka_unit_test(a_segment_goes_when_there_is_no_room_for_a_table),
	};

	support_begin();
	mounts_enter();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
