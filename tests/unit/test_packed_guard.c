/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core/guard.h: a mapped file that somebody cuts, and which handler gets what else. cmocka
 * sets handlers of its own before each test and takes the library's away after it, so each test is
 * this program again, with the test's name.
 */
#include "packed_file_helper.h"

#include "core/stats.h"
#include "core/usage.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void write_pattern(const struct kvc_packed_map *map)
{
	memset((uint8_t *)map->memory + PAGE_BYTES, 0xa5, map->bytes - PAGE_BYTES);
}

static uint8_t byte_of_page(const struct kvc_packed_map *map, size_t page)
{
	return ((volatile uint8_t *)map->memory)[page * PAGE_BYTES + 17];
}

/* ---------------------------------------------------------------- cut files */

static void check_cut(struct kvc_packed_dir *dir)
{
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;

	create_map(dir, "cut", 0, &broken, &map);
	write_pattern(&map);
	assert_int_equal(byte_of_page(&map, 9), 0xa5);
	cut_file(dir, "cut", 4 * PAGE_BYTES);
	assert_false(atomic_load(&broken));
	errno = 4711;
	assert_int_equal(byte_of_page(&map, 9), 0);
	assert_int_equal(errno, 4711);
	assert_true(atomic_load(&broken));
	((volatile uint8_t *)map.memory)[12 * PAGE_BYTES] = 1;
	assert_int_equal(((volatile uint8_t *)map.memory)[12 * PAGE_BYTES], 1);
	/* Pages that are there are the file's still, others were not touched. */
	for (size_t page = 1; page < 4; page++)
		assert_int_equal(byte_of_page(&map, page), 0xa5);
	((volatile uint8_t *)map.memory)[PAGE_BYTES + 17] = 7;
	kvc_packed_map_close(&map);
	assert_int_equal(kvc_packed_map_open(dir, "cut", &test_kind, NULL, 0, NULL, &map),
			 -EBADMSG);
	cut_file(dir, "cut", (off_t)test_kind.file_bytes);
	assert_int_equal(kvc_packed_map_open(dir, "cut", &test_kind, NULL, 0, NULL, &map), 0);
	assert_int_equal(byte_of_page(&map, 1), 7);
	kvc_packed_map_close(&map);
	assert_int_equal(kvc_packed_dir_remove(dir, "cut"), 0);
	kvc_packed_dir_close(dir);
}

static void cut(void)
{
	check_cut(open_dir(folder, 0, false));
	check_cut(open_dir(NULL, 1, false));
}

static uint64_t bytes_in(struct kvc_usage_map *usage)
{
	uint64_t bytes;

	kvc_usage_total(usage, &bytes, NULL);
	return bytes;
}

/* A counter file is cut under its counters, twice: what takes its place is guarded as it was. */
static void counter_files(void)
{
	struct kvc_usage_map *usage;
	char path[PATH_MAX];

	(void)snprintf(path, sizeof(path), "%s/usage", folder);
	assert_int_equal(kvc_usage_open(path, 0600, &usage), 0);
	assert_true(kvc_usage_is_shared(usage));
	for (int i = 0; i < 2; i++) {
		kvc_usage_add(usage, 1, 100, 1);
		assert_int_equal(bytes_in(usage), 100);
		assert_int_equal(truncate(path, 0), 0);
		assert_int_equal(bytes_in(usage), 0);
		kvc_usage_add(usage, 1, 7, 1);
		assert_int_equal(bytes_in(usage), 7);
		assert_int_equal(kvc_usage_check(usage), 1);
		assert_true(kvc_usage_is_shared(usage));
		assert_int_equal(bytes_in(usage), 0);
	}
	kvc_usage_close(usage);
}

static void stats_page(void)
{
	struct kvc_stats stats = { .size = sizeof(stats) };
	struct kvc_counters *counters;

	assert_int_equal(kvc_counters_open(folder, 0600, &counters), 0);
	kvc_counters_page(counters, KVC_GET, KVC_OK, KVC_CAUSE_NONE, 4096);
	assert_int_equal(truncate(kvc_counters_path(counters), 0), 0);
	kvc_counters_page(counters, KVC_GET, KVC_OK, KVC_CAUSE_NONE, 512);
	assert_int_equal(kvc_counters_read(counters, &stats), 0);
	assert_int_equal(stats.operations[KVC_GET].bytes, 512);
	kvc_counters_close(counters);
}

/* Each write is tried where the page is a replaced one: it must behave as the file's did. */
static void protection_stays(void)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;
	int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	assert_int_equal(create_file(dir, "r"), 0);
	assert_int_equal(kvc_packed_map_open(dir, "r", &test_kind, NULL, KVC_PACKED_MAP_READ_ONLY,
					     &broken, &map),
			 0);
	cut_file(dir, "r", PAGE_BYTES);
	assert_int_equal(byte_of_page(&map, 3), 0);
	assert_true(atomic_load(&broken));
	assert_int_equal(read(zero, (uint8_t *)map.memory + 3 * PAGE_BYTES, 1), -1);
	assert_int_equal(errno, EFAULT);
	kvc_packed_map_close(&map);

	atomic_store(&broken, false);
	cut_file(dir, "r", (off_t)test_kind.file_bytes);
	assert_int_equal(kvc_packed_map_open(dir, "r", &test_kind, NULL, KVC_PACKED_MAP_PRIVATE,
					     &broken, &map),
			 0);
	((volatile uint8_t *)map.memory)[3 * PAGE_BYTES + 17] = 5;
	cut_file(dir, "r", PAGE_BYTES);
	/* The own copy of the page goes with the file's. */
	assert_int_equal(byte_of_page(&map, 3), 0);
	assert_true(atomic_load(&broken));
	assert_int_equal(read(zero, (uint8_t *)map.memory + 3 * PAGE_BYTES, 1), 1);
	kvc_packed_map_close(&map);
	close(zero);
	kvc_packed_dir_close(dir);
}

static void cut_is_noticed(void)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;

	create_map(dir, "c", 0, &broken, &map);
	assert_false(kvc_packed_map_removed(&map));
	assert_false(atomic_load(&broken));
	cut_file(dir, "c", PAGE_BYTES);
	assert_false(kvc_packed_map_removed(&map));
	assert_true(atomic_load(&broken));
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

/* More than one table of guards; a slot that was given back is used again. */
static void many_maps(void)
{
	enum {
		COUNT = 150
	};
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map maps[COUNT];
	atomic_bool broken[COUNT] = { false };

	assert_int_equal(create_file(dir, "whole"), 0);
	assert_int_equal(create_file(dir, "cut"), 0);
	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i < COUNT; i++) {
			atomic_store(&broken[i], false);
			assert_int_equal(kvc_packed_map_open(dir, i % 2 ? "cut" : "whole",
							     &test_kind, NULL, 0, &broken[i],
							     &maps[i]),
					 0);
		}
		cut_file(dir, "cut", PAGE_BYTES);
		for (int i = COUNT - 1; i >= 0; i -= 3)
			assert_int_equal(byte_of_page(&maps[i], 5), 0);
		for (int i = 0; i < COUNT; i++) {
			assert_int_equal(atomic_load(&broken[i]),
					 i % 2 == 1 && (COUNT - 1 - i) % 3 == 0);
			kvc_packed_map_close(&maps[i]);
		}
		cut_file(dir, "cut", (off_t)test_kind.file_bytes);
	}
	kvc_packed_dir_close(dir);
}

static void child_has_the_guards(void)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;
	pid_t pid;

	create_map(dir, "c", 0, &broken, &map);
	cut_file(dir, "c", PAGE_BYTES);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(byte_of_page(&map, 2) == 0 && atomic_load(&broken) ? 0 : 1);
	assert_int_equal(wait_child(pid), 0);
	assert_false(atomic_load(&broken));
	assert_int_equal(byte_of_page(&map, 2), 0);
	assert_true(atomic_load(&broken));
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

/* ---------------------------------------------------------------- threads */

#define THREADS 4

struct worker {
	pthread_t thread;
	struct kvc_packed_dir *dir;
	struct kvc_packed_map *map;
	atomic_int *arrived;
	int number;
	int failed;
};

static void run(struct worker *workers, int count, void *(*fn)(void *))
{
	for (int i = 0; i < count; i++) {
		workers[i].number = i;
		assert_int_equal(pthread_create(&workers[i].thread, NULL, fn, &workers[i]), 0);
	}
	for (int i = 0; i < count; i++) {
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
		assert_int_equal(workers[i].failed, 0);
	}
}

/* Maps come and go in all threads while each one faults in its own. */
static void *come_and_go(void *argument)
{
	struct worker *const worker = argument;
	char name[32];

	(void)snprintf(name, sizeof(name), "file-%d", worker->number);
	for (int i = 0; i < 200; i++) {
		struct kvc_packed_map map = { .fd = -1 }, other = { .fd = -1 };
		atomic_bool broken = false, other_broken = false;

		create_map(worker->dir, name, 0, &broken, &map);
		write_pattern(&map);
		assert_int_equal(kvc_packed_map_open(worker->dir, "common", &test_kind, NULL, 0,
						     &other_broken, &other),
				 0);
		cut_file(worker->dir, name, 2 * PAGE_BYTES);
		worker->failed += byte_of_page(&map, 1) != 0xa5;
		worker->failed += byte_of_page(&map, 2 + (size_t)i % 14) != 0;
		worker->failed += !atomic_load(&broken);
		worker->failed += byte_of_page(&other, 2) != 0 || atomic_load(&other_broken);
		kvc_packed_map_close(i % 2 ? &map : &other);
		kvc_packed_map_close(i % 2 ? &other : &map);
		worker->failed += kvc_packed_dir_remove(worker->dir, name) != 0;
	}
	return NULL;
}

static void maps_come_and_go(void)
{
	struct worker workers[THREADS] = { 0 };
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);

	assert_int_equal(create_file(dir, "common"), 0);
	for (int i = 0; i < THREADS; i++)
		workers[i].dir = dir;
	run(workers, THREADS, come_and_go);
	kvc_packed_dir_close(dir);
}

/* All fault in the same page at once: nothing that one of them wrote there is lost. They wait
 * for each other by spinning, so that they come out of it within a few instructions. */
static void *fault_together(void *argument)
{
	struct worker *const worker = argument;

	for (size_t page = 1; page < FILE_PAGES; page++) {
		_Atomic uint8_t *const at =
			(_Atomic uint8_t *)worker->map->memory + page * PAGE_BYTES + worker->number;

		(void)atomic_fetch_add(worker->arrived, 1);
		for (int i = 0; atomic_load(worker->arrived) < (int)page * 2; i++)
			if (i % 1000 == 999)
				(void)sched_yield();
		atomic_store(at, 1);
		worker->failed += atomic_load(at) != 1;
	}
	return NULL;
}

static void one_page_many_threads(void)
{
	struct worker workers[2] = { 0 };
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);

	for (int turn = 0; turn < 100; turn++) {
		struct kvc_packed_map map = { .fd = -1 };
		atomic_bool broken = false;
		atomic_int arrived = 0;

		create_map(dir, "m", 0, &broken, &map);
		cut_file(dir, "m", PAGE_BYTES);
		for (int i = 0; i < 2; i++) {
			workers[i].map = &map;
			workers[i].arrived = &arrived;
		}
		run(workers, 2, fault_together);
		for (size_t page = 1; page < FILE_PAGES; page++)
			for (size_t i = 0; i < 2; i++)
				assert_int_equal(((uint8_t *)map.memory)[page * PAGE_BYTES + i], 1);
		kvc_packed_map_close(&map);
		assert_int_equal(kvc_packed_dir_remove(dir, "m"), 0);
	}
	kvc_packed_dir_close(dir);
}

/* ---------------------------------------------------------------- other faults */

static sigjmp_buf back;
static volatile sig_atomic_t calls;
static void *volatile fault_address;

static void on_own(int signal_number, siginfo_t *info, void *context)
{
	(void)signal_number;
	calls++;
	fault_address = context ? info->si_addr : NULL;
	siglongjmp(back, 1);
}

static void on_plain(int signal_number)
{
	(void)signal_number;
	calls++;
	siglongjmp(back, 1);
}

static void on_count(int signal_number)
{
	(void)signal_number;
	calls++;
}

static void set_handler(void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler };

	assert_int_equal(sigaction(SIGBUS, &action, NULL), 0);
}

static void set_own_handler(void)
{
	struct sigaction action = { .sa_sigaction = on_own, .sa_flags = SA_SIGINFO };

	assert_int_equal(sigaction(SIGBUS, &action, NULL), 0);
}

/* A mapping of somebody else, cut. */
static uint8_t *others_mapping(void *at)
{
	const int fd = open(in_folder("others"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *memory;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4 * PAGE_BYTES), 0);
	memory = mmap(at, 4 * PAGE_BYTES, PROT_READ | PROT_WRITE,
		      MAP_SHARED | (at ? MAP_FIXED_NOREPLACE : 0), fd, 0);
	assert_true(memory != MAP_FAILED && (!at || memory == at));
	assert_int_equal(ftruncate(fd, 0), 0);
	close(fd);
	return memory;
}

static void touch(const uint8_t *at)
{
	(void)*(const volatile uint8_t *)at;
}

/* A cut map of ours: the handler is installed, and works. */
static void check_ours(void)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;
	const int before = calls;

	create_map(dir, "ours", 0, &broken, &map);
	cut_file(dir, "ours", PAGE_BYTES);
	assert_int_equal(byte_of_page(&map, 1), 0);
	assert_true(atomic_load(&broken));
	assert_int_equal(calls, before);
	kvc_packed_map_close(&map);
	assert_int_equal(kvc_packed_dir_remove(dir, "ours"), 0);
	kvc_packed_dir_close(dir);
}

static void check_handler_is_called(bool with_info)
{
	uint8_t *others;

	check_ours();
	others = others_mapping(NULL);
	for (int i = 1; i <= 3; i++) {
		if (sigsetjmp(back, 1) == 0)
			touch(others + 5000);
		assert_int_equal(calls, i);
		if (with_info)
			assert_ptr_equal(fault_address, others + 5000);
		check_ours();
	}
}

static void handler(void)
{
	set_own_handler();
	check_handler_is_called(true);
}

/* A handler that faults itself, as it said it might; and what it wants blocked is blocked. */
static uint8_t *volatile nested_address;
static volatile sig_atomic_t usr1_blocked;

static void on_nested(int signal_number, siginfo_t *info, void *context)
{
	sigset_t blocked;

	(void)signal_number;
	(void)info;
	(void)context;
	(void)pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	usr1_blocked += sigismember(&blocked, SIGUSR1);
	/* ThreadSanitizer's own handler stands before all others and blocks all signals. */
	if (++calls == 1 && !UNDER_THREAD_SANITIZER)
		touch(nested_address);
	siglongjmp(back, 1);
}

static void handler_nodefer(void)
{
	struct sigaction action = { .sa_sigaction = on_nested,
				    .sa_flags = SA_SIGINFO | SA_NODEFER };

	(void)sigaddset(&action.sa_mask, SIGUSR1);
	assert_int_equal(sigaction(SIGBUS, &action, NULL), 0);
	check_ours();
	nested_address = others_mapping(NULL) + 5000;
	if (sigsetjmp(back, 1) == 0)
		touch(nested_address);
	assert_int_equal(calls, UNDER_THREAD_SANITIZER ? 1 : 2);
	assert_int_equal(usr1_blocked, calls);
	check_ours();
}

static void plain_handler(void)
{
	set_handler(on_plain);
	check_handler_is_called(false);
}

/* One that was installed later, and calls the one before it: both get what is theirs. */
static struct sigaction before_mine;

static void on_later(int signal_number, siginfo_t *info, void *context)
{
	before_mine.sa_sigaction(signal_number, info, context);
}

static void later_handler(void)
{
	struct sigaction action = { .sa_sigaction = on_later, .sa_flags = SA_SIGINFO };

	set_own_handler();
	check_ours();
	assert_int_equal(sigaction(SIGBUS, &action, &before_mine), 0);
	check_handler_is_called(true);
}

/* After the map is closed, its addresses are nobody's. */
static void closed(void)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	uint8_t *at;

	set_own_handler();
	create_map(dir, "m", 0, NULL, &map);
	at = map.memory;
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
	at = others_mapping(at);
	if (sigsetjmp(back, 1) == 0)
		touch(at + 4096);
	assert_int_equal(calls, 1);
}

static void sent(void)
{
	set_handler(on_count);
	check_ours();
	assert_int_equal(raise(SIGBUS), 0);
	assert_int_equal(calls, 1);
	check_ours();
}

/* A process may send whatever address it likes, and one that is not aligned misses no page. */
static void sent_address(void)
{
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;
	siginfo_t info = { .si_signo = SIGBUS };
	const int codes[] = { SI_QUEUE, BUS_ADRALN };

	set_handler(on_count);
	create_map(dir, "m", 0, &broken, &map);
	write_pattern(&map);
	info.si_addr = (uint8_t *)map.memory + 2 * PAGE_BYTES;
	for (int i = 0; i < 2; i++) {
		info.si_code = codes[i];
		assert_int_equal(syscall(SYS_rt_sigqueueinfo, getpid(), SIGBUS, &info), 0);
		assert_int_equal(calls, i + 1);
		assert_int_equal(byte_of_page(&map, 2), 0xa5);
		assert_false(atomic_load(&broken));
	}
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

static void sent_ignored(void)
{
	set_handler(SIG_IGN);
	check_ours();
	assert_int_equal(raise(SIGBUS), 0);
	assert_int_equal(kill(getpid(), SIGBUS), 0);
	check_ours();
}

static void dies_of_fault(void (*disposition)(int))
{
	set_handler(disposition);
	check_ours();
	touch(others_mapping(NULL) + 4096);
}

static void default_dies(void)
{
	dies_of_fault(SIG_DFL);
}

static void ignored_dies(void)
{
	dies_of_fault(SIG_IGN);
}

static void sent_dies(void)
{
	set_handler(SIG_DFL);
	check_ours();
	(void)raise(SIGBUS);
}

/* A process that has all the mappings it may have: no page can be split off any more. */
static void no_mapping_left(void)
{
	const size_t pages = 80000;
	struct kvc_packed_dir *dir = open_dir(folder, 0, false);
	struct kvc_packed_map map = { .fd = -1 };
	atomic_bool broken = false;
	size_t page = 0;
	uint8_t *many;

	create_map(dir, "m", 0, &broken, &map);
	write_pattern(&map);
	cut_file(dir, "m", 3 * PAGE_BYTES);
	many = mmap(NULL, pages * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(many != MAP_FAILED);
	while (page < pages && mprotect(many + page * PAGE_BYTES, PAGE_BYTES, PROT_READ) == 0)
		page += 2;
	if (page < pages) {
		errno = 4711;
		touch((uint8_t *)map.memory + 9 * PAGE_BYTES);
		assert_int_equal(errno, 4711);
		/* All of it was replaced. */
		(void)munmap(many, pages * PAGE_BYTES);
		assert_int_equal(byte_of_page(&map, 2), 0);
	} else {
		printf("the limit of mappings is above %zu: not reached\n", pages / 2);
		(void)munmap(many, pages * PAGE_BYTES);
	}
	assert_int_equal(byte_of_page(&map, 9), 0);
	assert_true(atomic_load(&broken));
	kvc_packed_map_close(&map);
	kvc_packed_dir_close(dir);
}

static const struct test {
	const char *name;
	void (*run)(void);
	bool dies;
} all_tests[] = {
	{ "cut", cut, false },
	{ "counter_files", counter_files, false },
	{ "stats_page", stats_page, false },
	{ "protection_stays", protection_stays, false },
	{ "cut_is_noticed", cut_is_noticed, false },
	{ "many_maps", many_maps, false },
	{ "child_has_the_guards", child_has_the_guards, false },
	{ "maps_come_and_go", maps_come_and_go, false },
	{ "one_page_many_threads", one_page_many_threads, false },
	{ "handler", handler, false },
	{ "handler_nodefer", handler_nodefer, false },
	{ "plain_handler", plain_handler, false },
	{ "later_handler", later_handler, false },
	{ "closed", closed, false },
	{ "sent", sent, false },
	{ "sent_address", sent_address, false },
	{ "sent_ignored", sent_ignored, false },
	{ "default_dies", default_dies, true },
	{ "ignored_dies", ignored_dies, true },
	{ "sent_dies", sent_dies, true },
	{ "no_mapping_left", no_mapping_left, false },
};

#define TESTS (sizeof(all_tests) / sizeof(all_tests[0]))

static void start_test(void **state)
{
	const struct test *const test = *state;
	int status;
	pid_t pid;

	assert_int_equal(make_folder(NULL), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)execl("/proc/self/exe", "test_packed_guard", test->name, folder,
			    (char *)NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(remove_folder(NULL), 0);
	if (test->dies)
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	else
		assert_int_equal(status, 0);
}

static void run_one(void **state)
{
	const struct test *const test = *state;

	test->run();
}

/* In the process of one test. */
static int run_named(const char *name, const char *path)
{
	const struct rlimit no_core = { 0, 0 };

	(void)setrlimit(RLIMIT_CORE, &no_core);
	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	(void)snprintf(folder, sizeof(folder), "%s", path);
	for (size_t i = 0; i < TESTS; i++) {
		const struct CMUnitTest tests[] = { {
			.name = all_tests[i].name,
			.test_func = run_one,
			.initial_state = (void *)(uintptr_t)&all_tests[i],
		} };

		if (strcmp(all_tests[i].name, name) == 0)
			return cmocka_run_group_tests_name(name, tests, NULL, NULL);
	}
	return 126;
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[TESTS];

	if (argc == 3)
		return run_named(argv[1], argv[2]);
	for (size_t i = 0; i < TESTS; i++)
		tests[i] = (struct CMUnitTest){
			.name = all_tests[i].name,
			.test_func = start_test,
			.initial_state = (void *)(uintptr_t)&all_tests[i],
		};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
