/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the process and the kernel: R09, R29, R30, R31. */
#include "support/packed.h"

#include "core/queue.h"
#include "core/store.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct fix {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[512];
};

static void fix_open(struct fix *fix, const struct setup *setup, size_t count, uint64_t bytes)
{
	struct kvc_namespace_params params = namespace_params("limits");

	fix->store = setup_must_open(setup);
	fix->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&fix->pages, fix->ns, count, bytes);
	keys_make(&fix->keys, "limits", count);
}

static void fix_close(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

static void set_all(struct fix *fix)
{
	pages_fill_keys(&fix->pages, fix->keys.keys, fix->keys.count);
	batch(fix->store, &fix->pages, KVC_SET, fix->keys.keys, fix->keys.count, 0, fix->results);
}

static size_t get_all(struct fix *fix)
{
	size_t ok = 0;

	pages_wipe(&fix->pages);
	batch(fix->store, &fix->pages, KVC_GET, fix->keys.keys, fix->keys.count, 0, fix->results);
	for (size_t i = 0; i < fix->keys.count; i++) {
		if (fix->results[i].status != KVC_OK)
			continue;
		assert_true(pages_match(&fix->pages, i, key_content(fix->keys.keys[i])));
		ok++;
	}
	return ok;
}

/* ---------------------------------------------------------------- R09 */

static void run_no_descriptors(const char *engine)
{
	struct setup setup = { .plugin = "posix", .engine = engine };
	struct rlimit before;
	struct rlimit limit;
	struct fix fix;

	setup.roots = folder_new("descriptors");
	fix_open(&fix, &setup, 40, 4096);
	set_all(&fix);
	expect_all(fix.results, 40, KVC_OK);
	assert_int_equal(get_all(&fix), 40);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 3; /* nothing new can be opened */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	pages_wipe(&fix.pages);
	batch(fix.store, &fix.pages, KVC_GET, fix.keys.keys, 40, 0, fix.results);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	for (size_t i = 0; i < 40; i++) {
		if (fix.results[i].status == KVC_OK) {
			assert_true(pages_match(&fix.pages, i, key_content(fix.keys.keys[i])));
			continue;
		}
		expect_result(fix.results[i], KVC_ERROR, KVC_CAUSE_DESCRIPTORS);
		assert_int_equal(fix.results[i].error, EMFILE);
	}
	assert_int_equal(count_status(fix.results, 40, KVC_OK), 0);
	assert_int_equal(get_all(&fix), 40);
	fix_close(&fix);
}

static void test_no_descriptors_left(void **state)
{
	(void)state;
	for (size_t i = 0; i < engines_count(); i++)
		run_no_descriptors(engines[i]);
}

/* The segments are open: a get needs nothing more. A set that needs a new one says why, and works
 * later. */
static void run_no_descriptors_on_packed(const char *engine)
{
	struct setup setup = { .plugin = "posix", .engine = engine, .layout = "packed" };
	struct rlimit before, limit;
	struct kvc_result result;
	struct pages_params other = { .name = "other", .count = 1, .part_bytes = { 9000 } };
	struct pages pages;
	struct fix fix;

	setup.roots = folder_new("descriptors");
	fix_open(&fix, &setup, 40, 4096);
	pages_open(&pages, fix.ns, &other);
	set_all(&fix);
	expect_all(fix.results, 40, KVC_OK);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = before;
	limit.rlim_cur = 3;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	pages_wipe(&fix.pages);
	batch(fix.store, &fix.pages, KVC_GET, fix.keys.keys, 40, 0, fix.results);
	result = do_set(fix.store, &pages, fix.keys.keys[0], 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	expect_all(fix.results, 40, KVC_OK);
	for (size_t i = 0; i < 40; i++)
		assert_true(pages_match(&fix.pages, i, key_content(fix.keys.keys[i])));
	expect_result(result, KVC_ERROR, KVC_CAUSE_DESCRIPTORS);
	sleep_ms(200); /* what failed just now is not tried at once again */
	expect_result(do_set(fix.store, &pages, fix.keys.keys[0], 0), KVC_OK, KVC_CAUSE_NONE);
	expect_result(do_get(fix.store, &pages, fix.keys.keys[0]), KVC_OK, -1);
	assert_int_equal(get_all(&fix), 40);
	assert_int_equal(packed_check(fix.store), 41);
	pages_close(&pages);
	fix_close(&fix);
}

static void test_no_descriptors_left_on_packed(void **state)
{
	(void)state;
	for (size_t i = 0; i < engines_count(); i++)
		run_no_descriptors_on_packed(engines[i]);
}

/* ---------------------------------------------------------------- R29 */

struct refusal {
	const char *root;
	int error;
};

/* io_uring_setup() fails with that errno from now on, in this process. */
static bool refuse_io_uring(int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)error & 0xffff)),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = 4, .filter = code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int without_io_uring(void *context)
{
	const struct refusal *refusal = context;
	struct setup setup = { .plugin = "posix", .roots = refusal->root };
	struct kvc_store *store = NULL;
	struct fix fix;
	char *text;

	if (!refuse_io_uring(refusal->error))
		return 77;
	log_capture();
	fix_open(&fix, &setup, 20, 4096);
	text = store_text(fix.store, KVC_FORMAT_TEXT);
	assert_non_null(strstr(text, "linux_aio"));
	free(text);
	if (log_count(KVC_LOG_WARNING, "io_uring", NULL) != 1)
		log_show();
	assert_int_equal(log_count(KVC_LOG_WARNING, "io_uring", NULL), 1);
	assert_true(store_stats(fix.store).fallbacks >= 1);
	set_all(&fix);
	expect_all(fix.results, 20, KVC_OK);
	assert_int_equal(get_all(&fix), 20);
	fix_close(&fix);
	setup.engine = "io_uring"; /* nothing else will do */
	assert_int_equal(setup_open(&setup, &store), -ENODEV);
	assert_non_null(strstr(kvc_last_error(), "io_uring"));
	assert_null(store);
	kvc_log_set(NULL, NULL, 0);
	return 0;
}

static void run_without_io_uring(int error)
{
	struct refusal refusal = { .root = folder_new("refused"), .error = error };
	int code = child_wait(child_start(without_io_uring, &refusal));

	if (code == 77)
		support_skip_test("the kernel has no seccomp filters");
	assert_int_equal(code, 0);
}

static void test_io_uring_not_there(void **state)
{
	(void)state;
	run_without_io_uring(ENOSYS);
}

static void test_io_uring_forbidden(void **state)
{
	(void)state;
	run_without_io_uring(EPERM);
}

/* ---------------------------------------------------------------- R30 */

struct locked {
	const char *root;
	const char *layout;
	rlim_t bytes;
};

static int with_little_locked_memory(void *context)
{
	const struct locked *locked = context;
	struct setup setup = { .plugin = "posix", .roots = locked->root, .layout = locked->layout };
	struct rlimit limit = { .rlim_cur = locked->bytes, .rlim_max = locked->bytes };
	struct kvc_memory memory = { .size = sizeof(memory) };
	struct kvc_region *region = NULL;
	struct fix fix;

	if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
		return 77;
	/* Root may lock memory in any case. */
	if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
		return 77;
	fix_open(&fix, &setup, 64, 65536);
	memory.addr = fix.pages.memory;
	memory.bytes = fix.pages.memory_bytes;
	assert_int_equal(kvc_memory_register(fix.store, &memory, &region), 0);
	set_all(&fix);
	expect_all(fix.results, 64, KVC_OK);
	assert_int_equal(get_all(&fix), 64);
	assert_int_equal(kvc_memory_deregister(region), 0);
	fix_close(&fix);
	return 0;
}

static void run_locked(rlim_t bytes, const char *layout)
{
	struct locked locked = { .root = folder_new("locked"), .layout = layout, .bytes = bytes };
	int code;

	if (geteuid() == 0)
		assert_int_equal(chown(locked.root, 65534, 65534), 0);
	code = child_wait(child_start(with_little_locked_memory, &locked));
	if (code == 77)
		support_skip_test("the limit of locked memory or the user cannot be changed");
	assert_int_equal(code, 0);
}

static void test_no_locked_memory(void **state)
{
	(void)state;
	run_locked(0, NULL);
	run_locked(0, "packed");
}

static void test_little_locked_memory(void **state)
{
	(void)state;
	run_locked(65536, NULL);
	run_locked(65536, "packed");
}

/* ---------------------------------------------------------------- R31 */

static const char *const trouble =
	"read error=EIO p=0.02 name=*.kv.*; write error=EIO p=0.02 name=*.kv.*;"
	"write error=ENOSPC p=0.02 name=*.kv.*; write torn p=0.01 name=*.kv.*;"
	"read corrupt p=0.01 name=*.kv.*; write corrupt p=0.01 name=*.kv.*;"
	"read short=100 p=0.01 name=*.kv.*; stat error=EIO p=0.01 name=*.kv.*;"
	"remove error=EACCES p=0.02; submit eagain p=0.05; submit short=1 p=0.05";

/* Slots have no names; the first of each kind are those of the opening. */
static const char *const trouble_in_slots =
	"read error=EIO p=0.02 after=4; write error=EIO p=0.02 after=4;"
	"write error=ENOSPC p=0.02 after=4; read corrupt p=0.01 after=4;"
	"write corrupt p=0.01 after=4; write torn p=0.01 after=4;"
	"read short=100 p=0.01 after=4; submit eagain p=0.05; submit short=1 p=0.05";

static void one_batch(struct fix *fix, struct chance *chance)
{
	static const int ops[] = { KVC_EXISTS, KVC_GET, KVC_GET, KVC_SET, KVC_SET, KVC_REMOVE };
	int op = ops[chance_below(chance, 6)];
	size_t first = chance_below(chance, fix->keys.count - 8);
	size_t count = chance_below(chance, 8);
	uint32_t flags = op == KVC_SET && chance_below(chance, 2) ? KVC_TRANSFER_OVERWRITE : 0;
	struct kvc_result results[8];
	int64_t indices[8];

	for (size_t i = 0; i < count; i++) {
		indices[i] = (int64_t)(first + i);
		if (op == KVC_SET)
			pages_fill(&fix->pages, first + i, key_content(fix->keys.keys[first + i]));
	}
	if (count > 0 && chance_below(chance, 20) == 0)
		indices[0] = -5;
	batch_at(fix->store, &fix->pages, op, fix->keys.keys + first, indices, count, flags, 0,
		 results);
	for (size_t i = 0; op == KVC_GET && i < count; i++)
		if (results[i].status == KVC_OK)
			assert_true(pages_match(&fix->pages, first + i,
						key_content(fix->keys.keys[first + i])));
}

static void clean(struct fix *fix)
{
	/* Rules make removing fail at times. */
	for (int i = 0; i < 20; i++)
		batch(fix->store, &fix->pages, KVC_REMOVE, fix->keys.keys, fix->keys.count, 0,
		      fix->results);
}

/* The housekeeper, and the keeper of a packed root, have a file open for a moment now and then:
 * also when `most` was counted. */
static void expect_descriptors(size_t most)
{
	for (int i = 0; i < 500 && descriptor_count() > most; i++)
		sleep_ms(2);
	assert_in_range(descriptor_count(), 1, most);
}

/* Housekeeping, every 10 s, takes a queue of its own when it comes while a batch is at work: with a
 * descriptor and memory that stay. No other thread does, so there are never more than two. */
static void make_second_queue(struct kvc_store *store)
{
	struct kvc_queue *queues[2];

	for (size_t i = 0; i < 2; i++)
		assert_int_equal(kvc_queue_lease(store->roots[0], UINT64_MAX, &queues[i]), 0);
	for (size_t i = 0; i < 2; i++)
		kvc_queue_return(queues[i]);
}

static void run_many_batches(const struct setup *given, size_t count)
{
	struct chance chance = { .state = 31 };
	struct setup setup = *given;
	size_t aio_threads = 0;
	size_t descriptors;
	size_t threads;
	size_t memory;
	char seed[64];
	struct fix fix;

	(void)snprintf(seed, sizeof(seed), "plugin.fault.seed=%llu",
		       (unsigned long long)(seed_get() % 1000000 + 1));
	setup.plugin = "fault";
	setup.rules = setup.layout ? trouble_in_slots : trouble;
	setup.roots = folder_new("many");
	setup.flags = KVC_OPEN_NO_SELFTEST;
	setup.settings[0] = seed;
	fix_open(&fix, &setup, 64, 1500);
	make_second_queue(fix.store);
	/* Until what is kept for later is there: folders, the lease, memory of slots. */
	for (size_t i = 0; i < 2000; i++)
		one_batch(&fix, &chance);
	clean(&fix);
	if (setup.engine != NULL && strcmp(setup.engine, "posix_aio") == 0)
		aio_threads = 20; /* the C library's own, which come and go */
	descriptors = descriptor_count();
	threads = thread_count();
	memory = mallinfo2().uordblks;
	for (size_t i = 0; i < count; i++)
		one_batch(&fix, &chance);
	clean(&fix);
	assert_in_range(store_stats(fix.store).storage_registrations, 1, 2);
	expect_descriptors(descriptors);
	if (setup.layout != NULL)
		(void)packed_check(fix.store);
	assert_true(thread_count() <= threads + aio_threads);
	/* Slots keep the two blocks of an image that a page of theirs once needed, 16 are begun at
	 * a time. A leak of one allocation per failed page would be above this. */
	if (!support_sanitized() && mallinfo2().uordblks > memory + 16 * 8192)
		fail_msg("%zu bytes in use after %zu more batches, %zu before",
			 (size_t)mallinfo2().uordblks, count, memory);
	fix_close(&fix);
}

static void test_ten_thousand_batches_on_mem(void **state)
{
	struct setup setup = { .lower = "mem" };

	(void)state;
	run_many_batches(&setup, 10000);
}

static void test_ten_thousand_batches_on_posix(void **state)
{
	struct setup setup = { .lower = "posix" };

	(void)state;
	for (size_t i = 0; i < engines_count(); i++) {
		setup.engine = engines[i];
		run_many_batches(&setup, 2500);
	}
}

static void test_ten_thousand_batches_on_packed(void **state)
{
	struct setup setup = { .lower = "mem", .layout = "packed" };

	(void)state;
	run_many_batches(&setup, 3000);
	setup.lower = "posix";
	for (size_t i = 0; i < engines_count(); i++) {
		setup.engine = engines[i];
		run_many_batches(&setup, 1000);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_descriptors_left),
		cmocka_unit_test(test_no_descriptors_left_on_packed),
		cmocka_unit_test(test_io_uring_not_there),
		cmocka_unit_test(test_io_uring_forbidden),
		cmocka_unit_test(test_no_locked_memory),
		cmocka_unit_test(test_little_locked_memory),
		cmocka_unit_test(test_ten_thousand_batches_on_mem),
		cmocka_unit_test(test_ten_thousand_batches_on_posix),
		cmocka_unit_test(test_ten_thousand_batches_on_packed),
	};

	support_begin();
	return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
