/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What once broke the packed layout: overwrites that were cut short, rebuilds that did not come to
 * their end, a want of descriptors, damage with right sums, other roots, hosts and processes in the
 * way, and keys of many objects.
 */
#include "packed.h"

#include "core/crc.h"
#include "support/packed.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#define PAGE  4096u
#define BATCH 50u

struct setting {
	const char *capacity; /* NULL: 16 segments of 256 slots */
	const char *rules;    /* fault */
	const char *more;     /* one more setting */
};

struct fix {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
};

static int fix_try(struct fix *fix, const char *root, const struct setting *setting)
{
	struct kvc_namespace_params params = namespace_params("broken");
	const struct setting usual = { .capacity = NULL };
	const struct setting *how = setting ? setting : &usual;
	char capacity[64];
	const struct setup setup = {
		.plugin = how->rules ? "fault" : "posix",
		.lower = how->rules ? "posix" : NULL,
		.rules = how->rules,
		.engine = "threads",
		.roots = root,
		.buffered = true,
		.layout = "packed",
		.flags = KVC_OPEN_NO_SELFTEST,
		.settings = { "min_free=0", capacity, how->more },
	};
	int rc;

	text_make(capacity, sizeof(capacity), "capacity=%s",
		  how->capacity ? how->capacity : "16MiB");
	rc = setup_open(&setup, &fix->store);
	if (rc)
		return rc;
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, BATCH, PAGE);
	return 0;
}

static void fix_open(struct fix *fix, const char *root, const struct setting *setting)
{
	if (fix_try(fix, root, setting))
		fail_msg("%s: %s", root, kvc_last_error());
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
}

/* ---------------------------------------------------------------- many keys */

/* How many were stored, and how many found no room. */
static void set_counted(struct fix *fix, const char *label, size_t count, size_t *ok, size_t *full)
{
	struct kvc_result results[BATCH];
	struct keys keys;

	*ok = *full = 0;
	keys_make(&keys, label, count);
	for (size_t i = 0; i < count; i += BATCH) {
		pages_fill_keys(&fix->pages, keys.keys + i, BATCH);
		batch(fix->store, &fix->pages, KVC_SET, keys.keys + i, BATCH, 0, results);
		*ok += count_status(results, BATCH, KVC_OK);
		*full += count_status(results, BATCH, KVC_FULL);
	}
	keys_free(&keys);
}

/* How many were stored. */
static size_t set_many(struct fix *fix, const char *label, size_t count)
{
	size_t ok, full;

	set_counted(fix, label, count, &ok, &full);
	return ok;
}

/* How many are there; their bytes have to be right. */
static size_t get_many(struct fix *fix, const char *label, size_t count)
{
	struct kvc_result results[BATCH];
	struct keys keys;
	size_t found = 0;

	keys_make(&keys, label, count);
	for (size_t i = 0; i < count; i += BATCH) {
		pages_wipe(&fix->pages);
		batch(fix->store, &fix->pages, KVC_GET, keys.keys + i, BATCH, 0, results);
		for (size_t k = 0; k < BATCH; k++) {
			if (results[k].status != KVC_OK)
				continue;
			found++;
			assert_true(pages_match(&fix->pages, k, key_content(keys.keys[i + k])));
		}
	}
	keys_free(&keys);
	return found;
}

static const char *root_with(const char *label, const char *keys, size_t count)
{
	const char *root = folder_new(label);
	struct fix fix;

	fix_open(&fix, root, NULL);
	assert_int_equal(set_many(&fix, keys, count), count);
	fix_close(&fix);
	return root;
}

/* The next opening finds all of them, and an index that is right. */
static void expect_whole(const char *root, const char *keys, size_t count)
{
	struct fix fix;

	fix_open(&fix, root, NULL);
	assert_int_equal(packed_check(fix.store), count);
	assert_int_equal(get_many(&fix, keys, count), count);
	assert_int_equal(set_many(&fix, "after it", BATCH), BATCH);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- files of the index */

static void file_path(const char *root, const char *name, char out[PATH_BYTES])
{
	char pattern[PATH_BYTES];
	glob_t found;

	text_make(pattern, sizeof(pattern), "%s/*/slots-4096/%s", root, name);
	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 1);
	text_make(out, PATH_BYTES, "%s", found.gl_pathv[0]);
	globfree(&found);
}

static void shm_edit(const char *root, void (*fn)(struct kvc_packed_shm *shm))
{
	struct kvc_packed_shm *shm;
	char path[PATH_BYTES];
	int fd;

	text_make(path, sizeof(path), "%s/.kvcellar/packed/root.shm", root);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	shm = mmap(NULL, sizeof(*shm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(shm != MAP_FAILED);
	fn(shm);
	(void)munmap(shm, sizeof(*shm));
	(void)close(fd);
}

static void of_another_boot(struct kvc_packed_shm *shm)
{
	shm->boot_id[0] ^= 1;
}

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

/* ---------------------------------------------------------------- overwrites */

static struct kvc_result set_version(struct fix *fix, struct kvc_key key, uint64_t version,
				     uint32_t flags)
{
	struct kvc_result result;

	bytes_fill(fix->pages.part_base[0], PAGE, version);
	batch(fix->store, &fix->pages, KVC_SET, &key, 1, flags, &result);
	return result;
}

/* 0: none. */
static uint64_t get_version(struct fix *fix, struct kvc_key key)
{
	const unsigned char *page = fix->pages.part_base[0];
	unsigned char made[PAGE];
	struct kvc_result result;

	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, &key, 1, 0, &result);
	if (result.status == KVC_MISS)
		return 0;
	expect_result(result, KVC_OK, -1);
	for (uint64_t version = 1; version <= 3; version++) {
		bytes_fill(made, PAGE, version);
		if (memcmp(made, page, PAGE) == 0)
			return version;
	}
	fail_msg("a page that nobody stored");
	return 0;
}

struct overwriter {
	const char *root;
	const char *rules;
};

static int overwrite_with_2(void *context)
{
	const struct overwriter *overwriter = context;
	const struct setting setting = { .rules = overwriter->rules };
	struct fix fix;

	fix_open(&fix, overwriter->root, &setting);
	(void)set_version(&fix, key_of("the key"), 2, KVC_TRANSFER_OVERWRITE);
	return 1;
}

static void overwrite_dies_at(const char *step, bool looked_after)
{
	char rules[128];
	struct overwriter overwriter = { folder_new("overwrite"), rules };
	struct keys keys;
	struct fix fix;
	uint64_t version;

	text_make(rules, sizeof(rules), "step kill=%s", step);
	fix_open(&fix, overwriter.root, NULL);
	expect_result(set_version(&fix, key_of("the key"), 1, 0), KVC_OK, -1);
	fix_close(&fix);
	assert_int_equal(run_child(overwrite_with_2, &overwriter), 0);

	fix_open(&fix, overwriter.root, NULL);
	if (looked_after) {
		end_keeper(packed_of(fix.store, 0));
		(void)kvc_packed_recover_dead(packed_of(fix.store, 0));
	}
	version = get_version(&fix, key_of("the key"));
	(void)printf("killed at %s: version %llu is there\n", step, (unsigned long long)version);
	expect_result(set_version(&fix, key_of("the key"), 3, KVC_TRANSFER_OVERWRITE), KVC_OK, -1);
	assert_int_equal(get_version(&fix, key_of("the key")), 3);
	/* Tables are made again, from what is live. */
	keys_make(&keys, "growth", 3000);
	for (size_t i = 0; i < 3000; i += BATCH) {
		struct kvc_result results[BATCH];

		pages_fill_keys(&fix.pages, keys.keys + i, BATCH);
		batch(fix.store, &fix.pages, KVC_SET, keys.keys + i, BATCH, 0, results);
		assert_int_equal(get_version(&fix, key_of("the key")), 3);
	}
	keys_free(&keys);
	fix_close(&fix);
	shm_edit(overwriter.root, of_another_boot);
	fix_open(&fix, overwriter.root, NULL);
	assert_int_equal(get_version(&fix, key_of("the key")), 3);
	fix_close(&fix);
}

static void test_an_overwrite_cut_short_brings_nothing_back(void **state)
{
	static const char *const steps[] = { "packed.set.live", "packed.set.replaced",
					     "packed.set.inserted", "packed.set.settled" };

	(void)state;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		overwrite_dies_at(steps[i], false);
		overwrite_dies_at(steps[i], true);
	}
}

/* The header of a slot as a power cut leaves it. */
struct former {
	uint32_t segment;
	uint64_t at; /* in hdr.<segment> */
	unsigned char bytes[sizeof(struct kvc_packed_slot)];
};

static void former_note(struct fix *fix, struct kvc_key key, struct former *out)
{
	const struct kvc_packed_segment *segment;
	struct packed_spot spot;
	const void *header;

	assert_true(packed_spot(fix->store, fix->pages.pool, key, 0, &spot));
	segment = spot.place.segment;
	header = &segment->headers[kvc_packed_ref_slot(spot.place.ref)];
	out->segment = segment->number;
	out->at = (uint64_t)((const char *)header - (const char *)segment->map.memory);
	memcpy(out->bytes, header, sizeof(out->bytes));
}

/* False: another object has the slot by now. */
static bool former_put_back(const char *root, const struct former *former)
{
	struct kvc_packed_slot now;
	char path[PATH_BYTES], name[32];
	bool is_free;
	int fd;

	text_make(name, sizeof(name), "hdr.%u", former->segment);
	file_path(root, name, path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &now, sizeof(now), (off_t)former->at), sizeof(now));
	is_free = kvc_packed_st(atomic_load(&now.state)) == KVC_PACKED_FREE;
	if (is_free)
		assert_int_equal(pwrite(fd, former->bytes, sizeof(former->bytes),
					(off_t)former->at),
				 sizeof(former->bytes));
	(void)close(fd);
	return is_free;
}

/* lower: the newer one gets a slot before that of the former. */
static void two_versions(bool lower)
{
	static const struct setting durable = { .more = "durability=fdatasync" };
	const char *root = folder_new("newer");
	struct former former, newer;
	struct fix fix;

	fix_open(&fix, root, &durable);
	expect_result(set_version(&fix, key_of("before it"), 3, 0), KVC_OK, -1);
	expect_result(set_version(&fix, key_of("the key"), 1, 0), KVC_OK, -1);
	if (lower)
		expect_result(do_remove(fix.store, &fix.pages, key_of("before it")), KVC_OK, -1);
	former_note(&fix, key_of("the key"), &former);
	expect_result(set_version(&fix, key_of("the key"), 2, KVC_TRANSFER_OVERWRITE), KVC_OK, -1);
	former_note(&fix, key_of("the key"), &newer);
	assert_int_equal(newer.segment, former.segment);
	assert_int_equal(newer.at < former.at, lower);
	fix_close(&fix);
	assert_true(former_put_back(root, &former));
	shm_edit(root, of_another_boot);
	fix_open(&fix, root, &durable);
	assert_int_equal(packed_check(fix.store), lower ? 1 : 2);
	assert_int_equal(get_version(&fix, key_of("the key")), 2);
	fix_close(&fix);
}

static void test_of_two_versions_after_a_power_cut_the_newer_stays(void **state)
{
	(void)state;
	two_versions(false);
	two_versions(true);
}

/* ---------------------------------------------------------------- rebuilds and descriptors */

#define WHOLE_KEYS 2000u

static int open_and_die(void *context)
{
	const struct overwriter *how = context;
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
		struct overwriter how = { root, rules };
		struct fix fix;
		int rc;

		text_make(rules, sizeof(rules), "step kill=%s", steps[i / 2]);
		if (i % 2)
			shm_edit(root, of_another_boot);
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

/* 0: refused. */
static int open_poor(void *context)
{
	const struct poor *poor = context;
	struct fix fix;

	descriptors_limit(poor->descriptors);
	if (fix_try(&fix, poor->root, NULL)) {
		assert_true(strlen(kvc_last_error()) > 0);
		return 0;
	}
	(void)kvc_store_close(fix.store);
	return 1;
}

static void open_with_few(bool reboot)
{
	const char *root = root_with("few", "whole", WHOLE_KEYS);
	unsigned refused = 0, opened = 0;

	for (unsigned more = 4; more < 64; more += more < 40 ? 2 : 5) {
		struct poor poor = { .root = root, .descriptors = more };
		struct fix fix;
		int code;

		if (reboot)
			shm_edit(root, of_another_boot);
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
	for (unsigned more = 0; more < 14; more++) {
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
		batch_at(ours.store, &ours.pages, KVC_SET, keys.keys, NULL, BATCH, 0, 100, results);
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

/* ---------------------------------------------------------------- many objects of a key */

#define RANKS_MAX 8u
#define POOLS_MAX 2u
#define CAPACITY  (UINT64_C(128) * 1024 * 1024)

struct model {
	const char *name;
	uint32_t tp;
	uint32_t pp;
	uint32_t pools;
};

struct parts {
	struct kvc_store *store;
	struct kvc_namespace *ns[RANKS_MAX];
	struct pages pages[RANKS_MAX][POOLS_MAX];
	unsigned ranks;
	unsigned pools;
};

static void parts_open(struct parts *parts, const char *root, const struct model *model)
{
	const struct setup setup = {
		.plugin = "posix",
		.engine = "threads",
		.roots = root,
		.buffered = true,
		.layout = "packed",
		.flags = KVC_OPEN_NO_SELFTEST,
		.settings = { "min_free=0", "capacity=128MiB", "checksum=none" },
	};

	parts->store = setup_must_open(&setup);
	parts->ranks = model->tp * model->pp;
	parts->pools = model->pools;
	for (uint32_t r = 0; r < parts->ranks; r++) {
		struct kvc_namespace_params params = namespace_params("parts");

		params.tp_size = model->tp;
		params.tp_rank = r % model->tp;
		params.pp_size = model->pp;
		params.pp_rank = r / model->tp;
		parts->ns[r] = namespace_must_open(parts->store, &params);
		for (uint32_t p = 0; p < parts->pools; p++) {
			const struct pages_params pages = {
				.name = p ? "second" : "first",
				.count = BATCH,
				.part_bytes = { PAGE },
			};

			pages_open(&parts->pages[r][p], parts->ns[r], &pages);
		}
	}
}

static void parts_close(struct parts *parts)
{
	for (unsigned r = 0; r < parts->ranks; r++) {
		for (unsigned p = 0; p < parts->pools; p++)
			pages_close(&parts->pages[r][p]);
		assert_int_equal(kvc_namespace_close(parts->ns[r]), 0);
	}
	store_must_close(parts->store);
}

/* How many keys did not get all of their objects the answer OK. */
static size_t parts_run(struct parts *parts, int op, const struct kvc_key *keys, size_t count)
{
	struct kvc_result results[BATCH];
	size_t bad = 0;

	for (size_t i = 0; i < count; i += BATCH) {
		bool whole[BATCH];

		memset(whole, true, sizeof(whole));
		for (unsigned r = 0; r < parts->ranks; r++) {
			for (unsigned p = 0; p < parts->pools; p++) {
				batch(parts->store, &parts->pages[r][p], op, keys + i, BATCH, 0,
				      results);
				for (size_t k = 0; k < BATCH; k++)
					whole[k] &= results[k].status == KVC_OK;
			}
		}
		for (size_t k = 0; k < BATCH; k++)
			bad += !whole[k];
	}
	return bad;
}

/* Slots of all segments that fit: their headers and names take a part of the capacity. */
static size_t parts_slots(struct parts *parts)
{
	struct kvc_packed_arena *arena;
	struct kvc_result result = do_set(parts->store, &parts->pages[0][0], key_of("first"), 0);

	expect_result(result, KVC_OK, -1);
	arena = atomic_load(&packed_of(parts->store, 0)->arenas);
	assert_non_null(arena);
	return CAPACITY / kvc_packed_segment_file_bytes(arena) * arena->record->segment_slots;
}

static void test_keys_of_many_objects_stay_whole_below_the_capacity(void **state)
{
	static const struct model models[] = {
		{ "tp 4", 4, 1, 1 },
		{ "tp 8", 8, 1, 1 },
		{ "tp 8, two pools", 8, 1, 2 },
		{ "pp 8", 1, 8, 1 },
	};
	unsigned too_many = 0;

	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		const char *root = folder_new("parts");
		static struct parts parts;
		size_t objects, all, done = 0;
		struct keys keys;

		parts_open(&parts, root, &models[m]);
		objects = parts.ranks * parts.pools;
		all = parts_slots(&parts) / objects;
		keys_make(&keys, "parts", all);
		for (unsigned percent = 50; percent <= 90; percent += 40) {
			const size_t until = all * percent / 100 / BATCH * BATCH;
			size_t bad;

			(void)parts_run(&parts, KVC_SET, keys.keys + done, until - done);
			done = until;
			bad = parts_run(&parts, KVC_EXISTS, keys.keys, done);
			(void)printf("%s, %u%% of the capacity: %zu of %zu keys are not whole, "
				     "%llu objects were evicted\n",
				     models[m].name, percent, bad, done,
				     (unsigned long long)packed_health(parts.store).evicted);
			too_many += bad * 1000 > done;
		}
		parts_close(&parts);
		keys_free(&keys);
		folder_remove(root);
	}
	assert_int_equal(too_many, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_overwrite_cut_short_brings_nothing_back),
		cmocka_unit_test(test_of_two_versions_after_a_power_cut_the_newer_stays),
		cmocka_unit_test(test_a_rebuild_that_is_killed_is_done_by_the_next),
		cmocka_unit_test(test_a_rebuild_without_descriptors_loses_nothing),
		cmocka_unit_test(test_an_opening_without_descriptors_loses_nothing),
		cmocka_unit_test(test_a_table_made_without_descriptors_loses_nothing),
		cmocka_unit_test(test_a_short_table_with_a_right_sum_is_made_again),
		cmocka_unit_test(test_another_root_in_the_place_is_left_alone),
		cmocka_unit_test(test_a_held_lock_of_changes_fails_no_set),
		cmocka_unit_test(test_another_host_is_seen_by_a_clock_that_is_ahead),
		cmocka_unit_test(test_keys_of_many_objects_stay_whole_below_the_capacity),
	};

	support_begin();
	return cmocka_run_group_tests_name("packed_broken", tests, NULL, NULL);
}
