/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A packed root whose machine loses its power: the image of its file system is copied while a store
 * writes to it, or the file system is shut down without its log. What is read afterwards is right,
 * what was durable is there, and all of the capacity is of use.
 */
#include "packed.h"
#include "support/packed.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define PART_BYTES 12288u
#define BATCH	   8u
#define KEYS	   400u /* when they are to stay: they have room */
#define KEYS_CHURN 2000u
#define CAPACITY   "12MiB"

/* What ext4 and xfs have in common; the flag: nothing of the log is written any more. */
#define IOC_SHUTDOWN	_IOR('X', 125, uint32_t)
#define SHUTDOWN_NO_LOG 2u

enum cut {
	COPY,
	COPY_STOPPED,
	SHUTDOWN
};

struct shared {
	atomic_uint done; /* keys that are stored */
	atomic_uint rounds;
	atomic_uint read_ok;
	atomic_uint read_missed;
	atomic_uint read_corrupt;
};

struct trial {
	const char *file_system;
	enum cut cut;
	bool durable;
	const char *checksum;
	const char *engine;
	const char *root;
	unsigned keys;
	unsigned keep; /* keys that have to be there */
	struct shared *shared;
};

struct fix {
	struct kvc_store *store;
	struct kvc_packed *packed;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	unsigned char *copy;
};

static void fix_open(struct fix *fix, const struct trial *trial)
{
	struct kvc_namespace_params params = namespace_params("power");
	char checksum[32];
	const struct setup setup = {
		.plugin = "posix",
		.engine = trial->engine,
		.roots = trial->root,
		.buffered = strcmp(trial->engine, "threads") == 0,
		.flags = KVC_OPEN_NO_SELFTEST,
		/* What came through a power cut is verified all the same. */
		.settings = { "storage_layout=packed", "min_free=0", "capacity=" CAPACITY,
			      "verify=off", checksum,
			      trial->durable ? "durability=fdatasync" : "durability=none" },
	};

	text_make(checksum, sizeof(checksum), "checksum=%s", trial->checksum);
	packed_guard_begin(); /* mapped pages are lost with the file system */
	fix->store = setup_must_open(&setup);
	fix->packed = atomic_load(&fix->store->roots[0]->packed);
	assert_non_null(fix->packed);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, BATCH, PART_BYTES);
	keys_make(&fix->keys, "power", KEYS_CHURN);
	fix->copy = malloc(PART_BYTES);
	assert_non_null(fix->copy);
}

static void fix_close(struct fix *fix)
{
	free(fix->copy);
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

static unsigned char *page_of(struct fix *fix, size_t index)
{
	return fix->pages.part_base[0] + index * fix->pages.part_stride[0];
}

static void page_make(void *page, struct kvc_key key, uint64_t version)
{
	bytes_fill(page, PART_BYTES, mix(key_content(key), version));
	memcpy(page, &version, sizeof(version));
}

/* ---------------------------------------------------------------- before */

/* Stores all of its keys, again and again where they do not have to stay. */
static int store_until_the_cut(void *context)
{
	const struct trial *trial = context;
	struct kvc_result results[BATCH];
	struct fix fix;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	fix_open(&fix, trial);
	for (unsigned at = 0, round = 0;; at += BATCH) {
		if (at == trial->keys) {
			at = 0;
			atomic_store(&trial->shared->rounds, ++round);
			if (trial->durable)
				break;
		}
		for (size_t i = 0; i < BATCH; i++)
			page_make(page_of(&fix, i), fix.keys.keys[at + i], round);
		batch(fix.store, &fix.pages, KVC_SET, fix.keys.keys + at, BATCH,
		      KVC_TRANSFER_OVERWRITE, results);
		/* The file system may be gone. */
		if (count_status(results, BATCH, KVC_OK) != BATCH) {
			(void)printf("the writer ends: %s, %s, errno %d\n",
				     kvc_status_name(results[0].status),
				     kvc_cause_name(results[0].cause), results[0].error);
			(void)fflush(stdout);
			break;
		}
		if (round == 0)
			atomic_store(&trial->shared->done, at + BATCH);
	}
	while (sleep_ms(1000), true)
		;
	return 0;
}

/* What the kernel does every few seconds, all the time: some of what was written is on the disk,
 * some is not. */
static int write_back(void *context)
{
	const struct trial *trial = context;
	const int fd = open(trial->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (syncfs(fd) == 0)
		sleep_ms(20);
	while (sleep_ms(1000), true)
		;
	return 0;
}

/* ---------------------------------------------------------------- after */

static void read_all(struct fix *fix, const struct trial *trial)
{
	struct kvc_result results[BATCH];

	for (unsigned at = 0; at < trial->keys; at += BATCH) {
		pages_wipe(&fix->pages);
		batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys + at, BATCH, 0, results);
		for (size_t i = 0; i < BATCH; i++) {
			uint64_t version;

			if (at + i < trial->keep && results[i].status != KVC_OK)
				fail_msg("key %zu of %u that were durable: %s, %s", at + i,
					 trial->keep, kvc_status_name(results[i].status),
					 kvc_cause_name(results[i].cause));
			atomic_fetch_add(&trial->shared->read_missed,
					 results[i].status == KVC_MISS);
			atomic_fetch_add(&trial->shared->read_corrupt,
					 results[i].status == KVC_CORRUPT);
			if (results[i].status != KVC_OK)
				continue;
			atomic_fetch_add(&trial->shared->read_ok, 1);
			memcpy(&version, page_of(fix, i), sizeof(version));
			page_make(fix->copy, fix->keys.keys[at + i], version);
			if (memcmp(fix->copy, page_of(fix, i), PART_BYTES) != 0)
				fail_msg("wrong bytes of key %zu", at + i);
		}
	}
}

/* All slots can be used. */
static void fill_up(struct fix *fix)
{
	struct kvc_result results[BATCH];
	struct kvc_packed_arena *arena;
	struct slot_counts slots;
	struct keys keys;

	keys_make(&keys, "fill", KEYS_CHURN);
	for (unsigned at = 0; at < KEYS_CHURN; at += BATCH) {
		for (size_t i = 0; i < BATCH; i++)
			page_make(page_of(fix, i), keys.keys[at + i], 0);
		batch(fix->store, &fix->pages, KVC_SET, keys.keys + at, BATCH, 0, results);
		expect_all(results, BATCH, KVC_OK);
	}
	end_keeper(fix->packed);
	arena = atomic_load(&fix->packed->arenas);
	assert_non_null(arena);
	assert_null(arena->next);
	slots = slots_count(arena);
	assert_int_equal(slots.count[KVC_PACKED_LIVE] + slots.count[KVC_PACKED_FREE], slots.slots);
	assert_true(slots.count[KVC_PACKED_FREE] <= kvc_packed_reserve(arena) + 2 * BATCH);
	/* As many segments as the capacity has room for. */
	assert_true(atomic_load(&fix->packed->shm->segment_bytes) +
			    kvc_packed_segment_file_bytes(arena) >
		    fix->packed->capacity_bytes);
	keys_free(&keys);
}

static int check_after(void *context)
{
	const struct trial *trial = context;
	struct fix fix;

	fix_open(&fix, trial);
	read_all(&fix, trial);
	fill_up(&fix);
	fix_close(&fix);
	return 0;
}

/* ---------------------------------------------------------------- the machine */

static int run_quiet(const char *const *arguments)
{
	char command[3 * PATH_BYTES] = "";
	const char *shell[] = { "sh", "-c", command, NULL };
	size_t at = 0;

	for (size_t i = 0; arguments[i]; i++)
		at += (size_t)snprintf(command + at, sizeof(command) - at, "'%s' ", arguments[i]);
	(void)snprintf(command + at, sizeof(command) - at, ">/dev/null 2>&1");
	return run_program(shell);
}

static bool mount_image(const char *image, const char *folder, const char *file_system)
{
	const bool xfs = strcmp(file_system, "xfs") == 0;

	return run_quiet((const char *const[]){ "mount", "-t", file_system, "-o",
						xfs ? "loop,nouuid" : "loop", image, folder,
						NULL }) == 0;
}

static void make_image(const char *image, const char *file_system)
{
	char program[32];
	int fd = open(image, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	/* xfs wants that much. */
	assert_int_equal(ftruncate(fd, strcmp(file_system, "xfs") == 0 ? 320 << 20 : 96 << 20), 0);
	assert_int_equal(close(fd), 0);
	text_make(program, sizeof(program), "mkfs.%s", file_system);
	if (!have_program(program))
		support_skip("%s is not installed", program);
	if (run_quiet((const char *const[]){ program, "-q", image, NULL }) != 0)
		support_skip("%s makes no file system in a file", program);
}

/* As another boot would see it. False: the cut came before there was an index. */
static bool change_boot(const char *root)
{
	const uint64_t boot = 0xb007;
	char path[PATH_BYTES];
	int fd;

	text_make(path, sizeof(path), "%s/" KVC_PACKED_FOLDER "/root.shm", root);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	assert_int_equal(pwrite(fd, &boot, sizeof(boot), offsetof(struct kvc_packed_shm, boot_id)),
			 sizeof(boot));
	assert_int_equal(close(fd), 0);
	return true;
}

static void shut_down(const char *folder)
{
	const uint32_t flags = SHUTDOWN_NO_LOG;
	const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, IOC_SHUTDOWN, &flags), 0);
	assert_int_equal(close(fd), 0);
}

/* I/O of a process that was killed may go on for a moment. */
static void unmount(const char *folder)
{
	const uint64_t end = now_ms() + 20000;

	while (umount(folder) != 0) {
		if (errno != EBUSY || now_ms() > end)
			fail_msg("%s: umount: %s", folder, strerror(errno));
		sleep_ms(20);
	}
}

/* What the disk has at that moment becomes `after`; the writer is dead then. */
static void cut_power(struct trial *trial, pid_t writer, pid_t syncer, const char *folder,
		      const char *before, const char *after)
{
	if (trial->cut == COPY_STOPPED) {
		assert_int_equal(kill(writer, SIGSTOP), 0);
		assert_true(syncer == 0 || kill(syncer, SIGSTOP) == 0);
	}
	trial->keep = trial->durable ? atomic_load(&trial->shared->done) : 0;
	if (trial->cut == SHUTDOWN)
		shut_down(folder);
	else
		assert_int_equal(run_quiet((const char *const[]){ "cp", "--sparse=always", before,
								  after, NULL }),
				 0);
	assert_int_equal(kill(writer, SIGKILL), 0);
	assert_int_equal(child_wait(writer), 256 + SIGKILL);
	if (syncer) {
		assert_int_equal(kill(syncer, SIGKILL), 0);
		assert_int_equal(child_wait(syncer), 256 + SIGKILL);
	}
	unmount(folder);
	if (trial->cut == SHUTDOWN)
		assert_int_equal(rename(before, after), 0);
}

static void wait_for(const struct trial *trial, unsigned milliseconds)
{
	const uint64_t end = now_ms() + 60000;

	/* Where slots are to be used again, until they are. */
	while (trial->durable ? atomic_load(&trial->shared->done) == 0 :
				atomic_load(&trial->shared->rounds) < 1) {
		if (now_ms() > end)
			fail_msg("nothing is stored");
		sleep_ms(1);
	}
	sleep_ms(milliseconds);
}

static void run_trial(struct trial *trial, unsigned milliseconds)
{
	static const char *const cuts[] = { "copied", "copied at rest", "shut down" };
	const char *folder = folder_new("power"), *images = folder_new("images");
	char before[PATH_BYTES], after[PATH_BYTES];
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bool mounted;
	pid_t writer, syncer = 0;

	assert_true(shared != MAP_FAILED);
	trial->root = folder;
	trial->shared = shared;
	trial->keys = trial->durable ? KEYS : KEYS_CHURN;
	text_make(before, sizeof(before), "%s/before", images);
	text_make(after, sizeof(after), "%s/after", images);
	make_image(before, trial->file_system);
	if (!mount_image(before, folder, trial->file_system))
		support_skip("no loop device, or no %s", trial->file_system);
	writer = child_start(store_until_the_cut, trial);
	/* What is durable is so without. */
	if (!trial->durable)
		syncer = child_start(write_back, trial);
	wait_for(trial, milliseconds);
	cut_power(trial, writer, syncer, folder, before, after);
	mounted = mount_image(after, folder, trial->file_system);
	if (mounted) {
		(void)change_boot(folder);
		assert_int_equal(child_wait(child_start(check_after, trial)), 0);
		unmount(folder);
	}
	(void)printf("%s %s, %s, checksum %s: %s%u had to be there, %u read, %u missed, %u found "
		     "wrong and not given out\n",
		     trial->file_system, cuts[trial->cut],
		     trial->durable ? "durable" : "not durable", trial->checksum,
		     mounted ? "" : "cannot be mounted; ", trial->keep,
		     atomic_load(&shared->read_ok), atomic_load(&shared->read_missed),
		     atomic_load(&shared->read_corrupt));
	/* A copy that was made while it changed is no state that a disk ever had. */
	assert_true(mounted || trial->cut == COPY);
	folder_remove(images);
	assert_int_equal(munmap(shared, sizeof(*shared)), 0);
}

static void run_file_system(const char *file_system)
{
	struct chance chance = { .state = seed_get() };
	const unsigned times = support_soak() ? 10 : 1;

	for (unsigned n = 0; n < times; n++)
		for (unsigned cut = COPY; cut <= SHUTDOWN; cut++)
			/* Of a copy that is of no one moment nothing follows. */
			for (unsigned durable = 0; durable < (cut == COPY ? 1 : 2); durable++) {
				struct trial trial = {
					.file_system = file_system,
					.cut = (enum cut)cut,
					.durable = durable,
					.checksum = chance_below(&chance, 2) ? "full" : "sector",
					.engine = chance_below(&chance, 2) ? "io_uring" : "threads",
				};

				run_trial(&trial, (unsigned)chance_below(&chance, 400));
			}
}

static void test_ext4(void **state)
{
	(void)state;
	run_file_system("ext4");
}

static void test_xfs(void **state)
{
	(void)state;
	run_file_system("xfs");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ext4),
		cmocka_unit_test(test_xfs),
	};

	support_begin();
	packed_guard_learn();
	mounts_enter();
	return cmocka_run_group_tests_name("packed_power", tests, NULL, NULL);
}
