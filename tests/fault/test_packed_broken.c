/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What once broke the packed layout: rebuilds that did not come to their end, a want of
 * descriptors, damage with right sums, and other roots, hosts and processes in the way.
 */
#include "packed_store.h"

#include "core/crc.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

static void damage_table(const char *root)
{
	char path[PATH_BYTES];
	int fd;

	file_path(root, "table.*", path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "X", 1, 60), 1);
	(void)close(fd);
}

/* ---------------------------------------------------------------- rebuilds and descriptors */

#define WHOLE_KEYS 2000u

static int open_and_die(void *context)
{
	const struct opening *how = context;
	const struct setting setting = { .rules = how->rules };
	struct fix fix;

	return fix_try(&fix, how->root, &setting) ? 2 : 1;
}

static void test_a_rebuild_that_is_killed_is_done_by_the_next(void **state)
{
	static const char *const steps[] = { "packed.rebuild.records", "packed.rebuild.segment",
					     "packed.rebuild.scanned", "packed.table.published",
					     "packed.rebuild.counted" };
	const char *root = root_with("killed", "whole", WHOLE_KEYS);

	(void)state;
	for (size_t i = 0; i < 2 * sizeof(steps) / sizeof(steps[0]); i++) {
		char rules[128];
		struct opening how = { root, rules };
		struct fix fix;
		int rc;

		text_make(rules, sizeof(rules), "step kill=%s", steps[i / 2]);
		if (i % 2)
			reboot(root);
		else
			damage_table(root);
		rc = run_child(open_and_die, &how);
		(void)printf("a rebuild dies at %s: %s\n", steps[i / 2],
			     rc == 0 ? "killed" : "not met");
		if (strcmp(steps[i / 2], "packed.table.published") != 0)
			assert_int_equal(rc, 0);
		fix_open(&fix, root, NULL);
		assert_int_equal(packed_check(fix.store), WHOLE_KEYS);
		assert_int_equal(get_many(&fix, "whole", WHOLE_KEYS), WHOLE_KEYS);
		fix_close(&fix);
	}
	expect_whole(root, "whole", WHOLE_KEYS);
}

struct poor {
	const char *root;
	unsigned descriptors; /* that it may open */
	uint64_t evicted;     /* shared with the parent */
	uint64_t ok;
};

static void descriptors_limit(unsigned more)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = descriptor_count() + more;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void keep_once(struct kvc_store *store)
{
	struct kvc_packed *packed = packed_of(store, 0);

	end_keeper(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		kvc_packed_arena_keep(a);
}

/* 0: refused. A turn of the keeper takes nothing away either, with few slots free. */
static int open_poor(void *context)
{
	const struct poor *poor = context;
	struct fix fix;

	descriptors_limit(poor->descriptors);
	if (fix_try(&fix, poor->root, NULL)) {
		assert_true(strlen(kvc_last_error()) > 0);
		return 0;
	}
	keep_once(fix.store);
	(void)kvc_store_close(fix.store);
	return 1;
}

static void open_with_few(bool rebooted)
{
	const char *root = root_with("few", "whole", WHOLE_KEYS);
	const unsigned stride = support_sanitized() ? 7 : 2;
	unsigned refused = 0, opened = 0;

	for (unsigned more = 4; more < 64; more += more < 40 ? stride : 7) {
		struct poor poor = { .root = root, .descriptors = more };
		struct fix fix;
		int code;

		if (rebooted)
			reboot(root);
		code = run_child(open_poor, &poor);
		assert_in_range(code, 1, 2);
		refused += code == 1;
		opened += code == 2;
		fix_open(&fix, root, NULL);
		if (packed_health(fix.store).live_slots != WHOLE_KEYS)
			fail_msg("with %u descriptors (%s) %llu of %u are left", more,
				 code == 2 ? "opened" : "refused",
				 (unsigned long long)packed_health(fix.store).live_slots,
				 WHOLE_KEYS);
		fix_close(&fix);
	}
	(void)printf("%u openings were refused for want of descriptors, %u were not\n", refused,
		     opened);
	assert_true(refused > 0 && opened > 0);
	expect_whole(root, "whole", WHOLE_KEYS);
}

static void test_a_rebuild_without_descriptors_loses_nothing(void **state)
{
	(void)state;
	open_with_few(true);
}

static void test_an_opening_without_descriptors_loses_nothing(void **state)
{
	(void)state;
	open_with_few(false);
}

#define GROWTH_KEYS 900u
#define MORE_KEYS   600u

static int grow_poor(void *context)
{
	struct poor *poor = context;
	struct fix fix;

	fix_open(&fix, poor->root, NULL);
	end_keeper(packed_of(fix.store, 0));
	(void)raise(SIGSTOP); /* until the other one has filled it */
	descriptors_limit(poor->descriptors);
	poor->ok = set_many(&fix, "more", MORE_KEYS);
	poor->evicted = packed_health(fix.store).evicted;
	return 0;
}

static void grow_with_few(struct poor *poor)
{
	struct fix fix;
	size_t found;
	int status;
	pid_t pid;

	fix_open(&fix, poor->root, NULL);
	fix_close(&fix);
	(void)fflush(NULL);
	pid = child_start(grow_poor, poor);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	fix_open(&fix, poor->root, NULL);
	assert_int_equal(set_many(&fix, "growth", GROWTH_KEYS), GROWTH_KEYS);
	(void)kill(pid, SIGCONT);
	assert_int_equal(child_wait(pid), 0);
	found = get_many(&fix, "growth", GROWTH_KEYS) + get_many(&fix, "more", MORE_KEYS);
	(void)printf("%u descriptors: %llu more were stored, %llu evicted, %zu are there\n",
		     poor->descriptors, (unsigned long long)poor->ok,
		     (unsigned long long)poor->evicted, found);
	assert_true(found + poor->evicted >= GROWTH_KEYS + poor->ok);
	fix_close(&fix);
}

static void test_a_table_made_without_descriptors_loses_nothing(void **state)
{
	struct poor *poor = mmap(NULL, sizeof(*poor), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_true(poor != MAP_FAILED);
	for (unsigned more = 0; more < 14; more += support_sanitized() ? 4 : 1) {
		*poor = (struct poor){ .root = folder_new("growth"), .descriptors = more };
		grow_with_few(poor);
		folder_remove(poor->root);
	}
	(void)munmap(poor, sizeof(*poor));
}

/* ---------------------------------------------------------------- damage */

static void test_a_short_table_with_a_right_sum_is_made_again(void **state)
{
	const char *root = root_with("short", "whole", WHOLE_KEYS);
	struct kvc_packed_table_header header;
	char path[PATH_BYTES];

	(void)state;
	for (off_t bytes = 128; bytes <= 4096; bytes += 1984) {
		int fd;

		file_path(root, "table.*", path);
		fd = open(path, O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(pread(fd, &header, sizeof(header), 0), sizeof(header));
		header.header.file_bytes = (uint64_t)bytes;
		header.bucket_count = 64 * 1000;
		header.header_crc =
			kvc_crc32c(&header, offsetof(struct kvc_packed_table_header, header_crc));
		assert_int_equal(pwrite(fd, &header, 128, 0), 128);
		assert_int_equal(ftruncate(fd, bytes), 0);
		(void)close(fd);
		{
			struct fix fix;

			fix_open(&fix, root, NULL);
			assert_int_equal(packed_check(fix.store), WHOLE_KEYS);
			fix_close(&fix);
		}
	}
	expect_whole(root, "whole", WHOLE_KEYS);
}

/* ---------------------------------------------------------------- others in the way */

/* A root is moved away under an open store, and another one is made in its place. */
static void place_is_taken(bool other_stays)
{
	const char *root = folder_new("place"), *away = folder_new("away");
	struct fix ours, other;
	struct kvc_result results[BATCH];
	struct keys keys;
	uint64_t before = 0;

	keys_make(&keys, "late", BATCH);
	fix_open(&ours, root, NULL);
	assert_int_equal(set_many(&ours, "ours", 100), 100);
	assert_int_equal(rmdir(away), 0);
	assert_int_equal(rename(root, away), 0);
	assert_int_equal(mkdir(root, 0700), 0);
	fix_open(&other, root, NULL);
	assert_int_equal(set_many(&other, "other", 500), 500);
	/* The keeper notices within seconds. */
	end_keeper(packed_of(ours.store, 0));
	atomic_store(&packed_of(ours.store, 0)->gone, true);
	if (!other_stays) {
		fix_close(&other);
		before = folder_digest(root);
	}
	for (unsigned round = 0; round < 3; round++) {
		pages_fill_keys(&ours.pages, keys.keys, BATCH);
		batch_at(ours.store, &ours.pages, KVC_SET, keys.keys, NULL, BATCH, 0, 5000,
			 results);
		assert_int_equal(count_status(results, BATCH, KVC_TIMEOUT), 0);
		(void)printf("a set while another root has the place: %s, %s, errno %d\n",
			     kvc_status_name(results[0].status), kvc_cause_name(results[0].cause),
			     results[0].error);
	}
	pages_close(&ours.pages);
	assert_int_equal(kvc_namespace_close(ours.ns), 0);
	assert_int_equal(kvc_store_close(ours.store), 0);
	if (!other_stays) {
		assert_true(folder_digest(root) == before);
		fix_open(&other, root, NULL);
	}
	assert_int_equal(packed_check(other.store), 500);
	assert_int_equal(get_many(&other, "other", 500), 500);
	assert_int_equal(get_many(&other, "late", BATCH), 0);
	fix_close(&other);
	/* What was moved is whole as well. */
	fix_open(&ours, away, NULL);
	assert_int_equal(get_many(&ours, "ours", 100), 100);
	fix_close(&ours);
	keys_free(&keys);
}

static void test_another_root_in_the_place_is_left_alone(void **state)
{
	(void)state;
	place_is_taken(false);
	place_is_taken(true);
}

static void test_a_held_lock_of_changes_fails_no_set(void **state)
{
	const char *root = root_with("held", "before", BATCH);
	struct flock flock = {
		.l_type = F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = KVC_PACKED_LOCK_CHANGES,
		.l_len = 1,
	};
	char path[PATH_BYTES];
	struct fix fix;
	size_t ok, full;
	int fd;

	(void)state;
	text_make(path, sizeof(path), "%s/.kvcellar/packed/root.lock", root);
	fix_open(&fix, root, NULL);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	while (fcntl(fd, F_OFD_SETLK, &flock) != 0) /* the keeper may have it */
		sleep_ms(1);
	set_counted(&fix, "held", 1500, &ok, &full);
	(void)printf("a lock that is held: %zu sets OK, %zu full\n", ok, full);
	assert_int_equal(ok + full, 1500);
	assert_true(ok >= 100);
	(void)close(fd);
	fix_close(&fix);
	fix_open(&fix, root, NULL);
	assert_int_equal(set_many(&fix, "held and free", 1000), 1000);
	assert_int_equal(get_many(&fix, "held and free", 1000), 1000);
	(void)packed_check(fix.store);
	fix_close(&fix);
}

static void of_another_host(struct kvc_packed_shm *shm, int64_t ahead_s)
{
	shm->boot_id[0] ^= 1;
	shm->machine_id[0] ^= 1;
	atomic_store(&shm->heartbeat_s, (uint64_t)((int64_t)time(NULL) + ahead_s));
}

static void ahead(struct kvc_packed_shm *shm)
{
	of_another_host(shm, 5);
}

static void behind(struct kvc_packed_shm *shm)
{
	of_another_host(shm, -5);
}

static void long_gone(struct kvc_packed_shm *shm)
{
	of_another_host(shm, -3600);
}

static void test_another_host_is_seen_by_a_clock_that_is_ahead(void **state)
{
	const struct {
		void (*edit)(struct kvc_packed_shm *shm);
		int rc;
	} cases[] = { { ahead, -EBUSY }, { behind, -EBUSY }, { long_gone, 0 } };

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *root = root_with("host", "whole", 100);
		struct fix fix;

		shm_edit(root, cases[i].edit);
		assert_int_equal(fix_try(&fix, root, NULL), cases[i].rc);
		if (cases[i].rc) {
			assert_non_null(strstr(kvc_last_error(), "another host"));
			continue;
		}
		assert_int_equal(get_many(&fix, "whole", 100), 100);
		fix_close(&fix);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_rebuild_that_is_killed_is_done_by_the_next),
		cmocka_unit_test(test_a_rebuild_without_descriptors_loses_nothing),
		cmocka_unit_test(test_an_opening_without_descriptors_loses_nothing),
		cmocka_unit_test(test_a_table_made_without_descriptors_loses_nothing),
		cmocka_unit_test(test_a_short_table_with_a_right_sum_is_made_again),
		cmocka_unit_test(test_another_root_in_the_place_is_left_alone),
		cmocka_unit_test(test_a_held_lock_of_changes_fails_no_set),
		cmocka_unit_test(test_another_host_is_seen_by_a_clock_that_is_ahead),
	};

	support_begin();
	return cmocka_run_group_tests_name("packed_broken", tests, NULL, NULL);
}
