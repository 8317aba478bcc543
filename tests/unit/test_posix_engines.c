/* SPDX-License-Identifier: Apache-2.0 */
/* The POSIX plugin through its vtable: each I/O engine, direct and buffered. */
#include <kvcellar/plugin.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define GUARD_NS UINT64_C(60000000000) /* a hang, not a limit on speed */
#define RANGES	 4u

/* Which engine a test is run with. */
struct mode {
	const char *engine;
	bool direct;
};

struct rig {
	struct kvc_plugin_backend *backend;
	struct kvc_plugin_root *root;
	struct kvc_plugin_queue *queue;
	struct kvc_attributes attributes;
	uint64_t alignment;
};

struct op {
	struct kvc_descriptor descriptor;
	struct kvc_range ranges[RANGES];
	struct kvc_completion completion;
	char name[64];
	int completions;
};

static const struct kvc_plugin *plugin;
static char location[512];
static char reason[512];
static const char *kill_at;
static char skipped[512];     /* why an engine cannot be had here */
static unsigned char *memory; /* 8 MiB, aligned */
#define MEMORY_BYTES (8u << 20)

static void host_reason(void *context, uint64_t cookie, const char *text)
{
	(void)context;
	(void)cookie;
	(void)snprintf(reason, sizeof(reason), "%s", text);
}

static int host_fill(void *context, uint64_t cookie)
{
	struct op *op = (struct op *)(uintptr_t)cookie;
	struct kvc_range *last = &op->ranges[op->descriptor.range_count - 1];

	(void)context;
	memset(last->addr, 0x7e, last->bytes);
	return 0;
}

static void host_step(void *context, const char *step)
{
	(void)context;
	if (kill_at != NULL && strcmp(step, kill_at) == 0)
		(void)kill(getpid(), SIGKILL);
}

static const struct kvc_host host = {
	.abi = KVC_PLUGIN_ABI,
	.descriptor_bytes = sizeof(struct kvc_descriptor),
	.size = sizeof(host),
	.reason = host_reason,
	.fill = host_fill,
	.step = host_step,
};

static int backend_open(const char *engines, bool demanded, bool direct, const char *setting,
			struct kvc_plugin_backend **out)
{
	struct kvc_setting settings[] = {
		{ "use_uring", "false" },     { "use_aio", "false" },
		{ "use_posix_aio", "false" }, { "ios_pool_size", "0" },
		{ "kernel_queue_size", "0" }, { "register_memory", "true" },
	};
	struct kvc_backend_params params = {
		.size = sizeof(params),
		.host = &host,
		.settings = settings,
		.setting_count = sizeof(settings) / sizeof(settings[0]),
		.io_engines = engines,
		.io_engine_demanded = demanded,
		.direct_io = direct,
		.file_mode = 0600,
		.folder_mode = 0700,
	};

	for (size_t i = 0; setting != NULL && i < params.setting_count; i++) {
		if (strcmp(settings[i].name, setting) == 0)
			settings[i].value = "true";
	}
	reason[0] = '\0';
	return plugin->backend_open(&params, out);
}

static int root_open(struct rig *rig)
{
	const struct kvc_root_params params = {
		.size = sizeof(params),
		.location = location,
		.flags = KVC_ROOT_CREATE,
	};

	return plugin->root_open(rig->backend, &params, &rig->root);
}

static void queue_open(struct rig *rig, uint32_t depth)
{
	const struct kvc_queue_params params = { .size = sizeof(params), .depth = depth };

	assert_int_equal(plugin->queue_create(rig->root, &params, &rig->queue), 0);
}

/* False: the engine or direct I/O cannot be had here. */
static bool rig_open(struct rig *rig, const struct mode *mode)
{
	memset(rig, 0, sizeof(*rig));
	if (backend_open(mode->engine, true, mode->direct, NULL, &rig->backend) != 0) {
		if (strstr(reason, mode->engine) == NULL)
			fail_msg("%s: refused for \"%s\"", mode->engine, reason);
		(void)snprintf(skipped, sizeof(skipped), "%s", reason);
		return false;
	}
	assert_int_equal(root_open(rig), 0);
	rig->attributes.size = sizeof(rig->attributes);
	assert_int_equal(plugin->root_query(rig->root, &rig->attributes), 0);
	assert_string_equal(rig->attributes.io_engine, mode->engine);
	rig->alignment = rig->attributes.alignment;
	queue_open(rig, 32);
	return true;
}

static void rig_close(struct rig *rig)
{
	assert_int_equal(plugin->queue_destroy(rig->queue), 0);
	assert_int_equal(plugin->root_close(rig->root), 0);
	assert_int_equal(plugin->backend_close(rig->backend), 0);
}

static void op_make(struct op *op, const struct rig *rig, uint32_t what, const char *name)
{
	memset(op, 0, sizeof(*op));
	(void)snprintf(op->name, sizeof(op->name), "%s", name);
	op->descriptor = (struct kvc_descriptor){
		.op = what,
		.name = op->name,
		.name_bytes = (uint32_t)strlen(op->name),
		.ranges = op->ranges,
		.cookie = (uint64_t)(uintptr_t)op,
	};
	assert_int_equal(posix_memalign(&op->descriptor.scratch, 16, rig->attributes.scratch_bytes),
			 0);
	memset(op->descriptor.scratch, 0xa5, rig->attributes.scratch_bytes);
}

static void op_range(struct op *op, void *addr, uint64_t bytes)
{
	assert_true(op->descriptor.range_count < RANGES);
	op->ranges[op->descriptor.range_count++] =
		(struct kvc_range){ .addr = addr, .bytes = bytes };
}

static int poll_some(struct rig *rig, uint64_t wait_ns)
{
	struct kvc_completion completions[3];
	int n = plugin->poll(rig->queue, completions, 3, wait_ns);

	assert_in_range(n, 0, 3);
	for (int i = 0; i < n; i++) {
		struct op *op = (struct op *)(uintptr_t)completions[i].cookie;

		op->completion = completions[i];
		op->completions++;
		assert_int_equal(op->completions, 1);
	}
	return n;
}

static void ops_run(struct rig *rig, struct op **ops, uint32_t count)
{
	const struct kvc_descriptor *list[64];
	uint32_t submitted = 0;
	uint32_t done = 0;

	assert_true(count <= 64);
	for (uint32_t i = 0; i < count; i++)
		list[i] = &ops[i]->descriptor;
	while (done < count) {
		int n = -EAGAIN;

		if (submitted < count)
			n = plugin->submit(rig->queue, list + submitted, count - submitted);
		assert_true(n > 0 || n == -EAGAIN);
		if (n > 0)
			submitted += (uint32_t)n;
		n = poll_some(rig, GUARD_NS);
		/* A signal may end the wait early; the guard is for hangs only. */
		done += (uint32_t)n;
	}
}

static int64_t op_run(struct rig *rig, struct op *op)
{
	ops_run(rig, &op, 1);
	free(op->descriptor.scratch);
	op->descriptor.scratch = NULL;
	return op->completion.result;
}

static int64_t put(struct rig *rig, const char *name, void *addr, uint64_t bytes, uint32_t flags)
{
	struct op op;

	op_make(&op, rig, KVC_OP_WRITE, name);
	op.descriptor.flags = flags;
	op_range(&op, addr, bytes);
	return op_run(rig, &op);
}

static int64_t get(struct rig *rig, const char *name, void *addr, uint64_t bytes,
		   struct kvc_completion *out)
{
	struct op op;
	int64_t result;

	op_make(&op, rig, KVC_OP_READ, name);
	op_range(&op, addr, bytes);
	result = op_run(rig, &op);
	if (out != NULL)
		*out = op.completion;
	return result;
}

static int64_t stat_of(struct rig *rig, const char *name)
{
	struct op op;
	int64_t result;

	op_make(&op, rig, KVC_OP_STAT, name);
	result = op_run(rig, &op);
	return result < 0 ? result : (int64_t)op.completion.object_bytes;
}

static void fill(unsigned char *to, uint64_t bytes, unsigned int seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = (unsigned char)((i * 131 + (i >> 12) * 7 + seed) >> 2);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	(void)st;
	(void)type;
	(void)walk;
	return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

static int temp_files;

static int count_temp(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	(void)st;
	if (type == FTW_F && strncmp(path + walk->base, ".kvctmp.", 8) == 0)
		temp_files++;
	return 0;
}

static int temp_count(void)
{
	temp_files = 0;
	(void)nftw(location, count_temp, 16, FTW_PHYS);
	return temp_files;
}

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

/* ---------------------------------------------------------------- tests, once per mode */

/* R21: sizes that the alignment allows, in one, two and four ranges of it. */
static void every_size_comes_back_exactly(void **state)
{
	static const uint64_t sizes[] = { 0,	1,    511,   512,     4095,
					  4096, 4097, 66048, 1048576, (2u << 20) + 8 };
	unsigned char *to = memory + MEMORY_BYTES / 2;
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t bytes = sizes[i] / rig.alignment * rig.alignment;
		uint64_t half = bytes / 2 / rig.alignment * rig.alignment;
		struct op op;

		fill(memory, bytes, (unsigned int)i);
		memset(to, 0xaa, bytes + 4096);
		op_make(&op, &rig, KVC_OP_WRITE, "n/0/size");
		op_range(&op, memory, half);
		op_range(&op, memory + half, bytes - half);
		assert_int_equal(op_run(&rig, &op), bytes);
		assert_int_equal(stat_of(&rig, "n/0/size"), bytes);
		op_make(&op, &rig, KVC_OP_READ, "n/0/size");
		op_range(&op, to, half);
		op_range(&op, to + half, bytes - half);
		op_range(&op, to + bytes, 4096);
		assert_int_equal(op_run(&rig, &op), bytes);
		assert_int_equal(op.completion.object_bytes, bytes);
		assert_memory_equal(memory, to, bytes);
		/* Direct reads fill the block in which the object ends. */
		if ((rig.attributes.flags & KVC_ATTRIBUTE_DIRECT) == 0)
			assert_int_equal(to[bytes], 0xaa);
	}
	rig_close(&rig);
}

/* Objects whose size the writer did not align (another program's) are read to their last byte. */
static void odd_files_of_others_are_read_whole(void **state)
{
	static const uint64_t sizes[] = { 1, 511, 513, 4097, 65537 };
	unsigned char *to = memory + MEMORY_BYTES / 2;
	struct kvc_completion completion;
	char path[600];
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int fd;

		fill(memory, sizes[i], 3);
		(void)snprintf(path, sizeof(path), "%s/odd", location);
		fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
		assert_int_equal(write(fd, memory, sizes[i]), (ssize_t)sizes[i]);
		close(fd);
		memset(to, 0xaa, 128 * 1024);
		assert_int_equal(get(&rig, "odd", to, 128 * 1024, &completion), sizes[i]);
		assert_int_equal(completion.object_bytes, sizes[i]);
		assert_memory_equal(memory, to, sizes[i]);
	}
	rig_close(&rig);
}

/* R06: what is missing at the end is seen in the count. */
static void short_objects_have_a_short_count(void **state)
{
	const uint64_t whole = 131072;
	unsigned char *to = memory + MEMORY_BYTES / 2;
	struct kvc_completion completion;
	char path[600];
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	fill(memory, whole, 9);
	(void)snprintf(path, sizeof(path), "%s/short", location);
	for (int cut = 0; cut < 4; cut++) {
		const uint64_t sizes[] = { whole - 1, whole - 512, whole / 2, 0 };

		assert_int_equal(put(&rig, "short", memory, whole, 0), whole);
		assert_int_equal(truncate(path, (off_t)sizes[cut]), 0);
		memset(to, 0xaa, whole);
		assert_int_equal(get(&rig, "short", to, whole, &completion), sizes[cut]);
		assert_int_equal(completion.object_bytes, sizes[cut]);
		assert_memory_equal(memory, to, sizes[cut]);
		assert_int_equal(get(&rig, "none", to, whole, NULL), -ENOENT);
	}
	rig_close(&rig);
}

/* R02: the errno of a write from memory that is not there, no file, and the queue goes on. */
static void bad_memory_leaves_no_file(void **state)
{
	void *hole = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	for (int i = 0; i < 20; i++) {
		int64_t result = put(&rig, "n/0/bad", hole, 65536, 0);

		assert_true(result == -EFAULT || result == -EINVAL);
		assert_int_equal(stat_of(&rig, "n/0/bad"), -ENOENT);
		assert_int_equal(put(&rig, "n/0/good", memory, 65536, 0), 65536);
		result = get(&rig, "n/0/good", hole, 65536, NULL);
		assert_true(result == -EFAULT || result == -EINVAL);
	}
	assert_int_equal(temp_count(), 0);
	munmap(hole, 65536);
	rig_close(&rig);
}

static void late_ranges_are_filled_and_written(void **state)
{
	unsigned char *to = memory + MEMORY_BYTES / 2;
	struct rig rig;
	struct op ops[16];
	struct op *list[16];

	if (!rig_open(&rig, *state))
		return;
	for (unsigned int i = 0; i < 16; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "n/%u/late", i);
		fill(memory + i * 73728, 65536, i);
		memset(memory + i * 73728 + 65536, 0, 4096);
		op_make(&ops[i], &rig, KVC_OP_WRITE, name);
		op_range(&ops[i], memory + i * 73728, 65536);
		op_range(&ops[i], memory + i * 73728 + 65536, 4096);
		ops[i].ranges[1].flags = KVC_RANGE_LATE;
		ops[i].descriptor.flags = i % 2 ? KVC_DESCRIPTOR_DURABLE : 0;
		list[i] = &ops[i];
	}
	ops_run(&rig, list, 16);
	for (unsigned int i = 0; i < 16; i++) {
		assert_int_equal(ops[i].completion.result, 65536 + 4096);
		free(ops[i].descriptor.scratch);
		assert_int_equal(get(&rig, ops[i].name, to, 65536 + 4096, NULL), 65536 + 4096);
		assert_memory_equal(to, memory + i * 73728, 65536 + 4096);
		assert_int_equal(to[65536], 0x7e);
	}
	rig_close(&rig);
}

static void on_alarm(int signal_number)
{
	(void)signal_number;
}

/* R05: an error, then operations under a rain of signals: each gets its own result. */
static void signals_disturb_nothing(void **state)
{
	const struct sigaction act = { .sa_handler = on_alarm };
	const struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
	const struct itimerval never = { { 0, 0 }, { 0, 0 } };
	unsigned char *to = memory + MEMORY_BYTES / 2;
	struct sigaction before;
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	assert_int_equal(sigaction(SIGALRM, &act, &before), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
	assert_int_equal(put(&rig, "../out", memory, 4096, 0), -EINVAL);
	for (unsigned int i = 0; i < 500; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "n/0/%u", i % 50);
		fill(memory, 16384, i);
		assert_int_equal(put(&rig, name, memory, 16384, 0), 16384);
		assert_int_equal(get(&rig, name, to, 16384, NULL), 16384);
		assert_memory_equal(memory, to, 16384);
	}
	assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
	rig_close(&rig);
}

/* More bytes than a queue takes at once, more descriptors than its depth, one larger than all. */
static void backpressure_is_eagain_and_ends(void **state)
{
	const struct kvc_descriptor *list[64];
	struct rig rig;
	struct op ops[64];
	uint32_t accepted = 0;
	uint32_t done = 0;

	if (!rig_open(&rig, *state))
		return;
	for (unsigned int i = 0; i < 64; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "n/0/%u", i);
		op_make(&ops[i], &rig, KVC_OP_WRITE, name);
		op_range(&ops[i], memory, i == 40 ? MEMORY_BYTES : 1 << 20);
		list[i] = &ops[i].descriptor;
	}
	ops[40].ranges[0].bytes = MEMORY_BYTES;
	op_range(&ops[40], memory, MEMORY_BYTES);
	op_range(&ops[40], memory, MEMORY_BYTES);
	while (done < 64) {
		int n = 0;

		while (accepted < 64 && n != -EAGAIN) {
			n = plugin->submit(rig.queue, list + accepted, 64 - accepted);
			assert_true(n > 0 || n == -EAGAIN);
			accepted += n > 0 ? (uint32_t)n : 0;
			assert_true(accepted - done <= 32);
		}
		if (accepted > done)
			assert_int_equal(plugin->queue_destroy(rig.queue), -EBUSY);
		done += (uint32_t)poll_some(&rig, GUARD_NS);
	}
	for (unsigned int i = 0; i < 64; i++) {
		assert_int_equal(ops[i].completion.result,
				 i == 40 ? 3 * (int64_t)MEMORY_BYTES : 1 << 20);
		free(ops[i].descriptor.scratch);
	}
	rig_close(&rig);
}

/* The event descriptor alone tells when to poll. */
static void the_event_descriptor_tells_when_to_poll(void **state)
{
	struct pollfd waiting = { .events = POLLIN };
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	waiting.fd = plugin->event_fd(rig.queue);
	assert_true(waiting.fd >= 0);
	assert_int_equal(plugin->event_fd(rig.queue), waiting.fd);
	assert_int_equal(poll(&waiting, 1, 0), 0);
	for (unsigned int i = 0; i < 60; i++) {
		const struct kvc_descriptor *one;
		struct op op;

		op_make(&op, &rig,
			i % 3 == 0 ? KVC_OP_WRITE :
			i % 3 == 1 ? KVC_OP_READ :
				     KVC_OP_STAT,
			"n/0/event");
		if (i % 3 != 2)
			op_range(&op, memory, 262144);
		op.descriptor.flags = i % 2 ? 0 : KVC_DESCRIPTOR_DURABLE;
		one = &op.descriptor;
		assert_int_equal(plugin->submit(rig.queue, &one, 1), 1);
		while (poll_some(&rig, 0) == 0)
			assert_int_equal(poll(&waiting, 1, (int)(GUARD_NS / 1000000)), 1);
		assert_true(op.completion.result >= 0);
		free(op.descriptor.scratch);
	}
	/* Quiet again, at the latest after one more look. */
	assert_int_equal(poll_some(&rig, 0), 0);
	assert_int_equal(poll(&waiting, 1, 0), 0);
	rig_close(&rig);
}

static void cancelled_operations_end_once(void **state)
{
	const struct kvc_descriptor *list[32];
	struct rig rig;
	struct op ops[32];
	int accepted;
	int done = 0;

	if (!rig_open(&rig, *state))
		return;
	for (int round = 0; round < 2; round++) {
		for (unsigned int i = 0; i < 32; i++) {
			char name[32];

			(void)snprintf(name, sizeof(name), "n/0/c%d.%u", round, i);
			op_make(&ops[i], &rig, KVC_OP_WRITE, name);
			op_range(&ops[i], memory, 262144);
			list[i] = &ops[i].descriptor;
		}
		accepted = plugin->submit(rig.queue, list, 32);
		assert_true(accepted > 4);
		if (round == 0)
			(void)plugin->cancel(rig.queue, NULL, 0);
		else
			(void)plugin->cancel(rig.queue, list + 2, 2);
		for (done = 0; done < accepted;)
			done += poll_some(&rig, GUARD_NS);
		for (int i = 0; i < 32; i++) {
			int64_t result = ops[i].completion.result;

			free(ops[i].descriptor.scratch);
			if (i >= accepted)
				continue;
			assert_true(result == 262144 || result == -ECANCELED);
			if (round == 1 && i != 2 && i != 3)
				assert_int_equal(result, 262144);
			assert_int_equal(stat_of(&rig, ops[i].name),
					 result == 262144 ? 262144 : -ENOENT);
		}
	}
	assert_int_equal(temp_count(), 0);
	rig_close(&rig);
}

static void containers_are_written_in_place(void **state)
{
	unsigned char *to = memory + MEMORY_BYTES / 2;
	struct kvc_plugin_container *container;
	uint64_t bytes;
	struct rig rig;
	struct op op;

	if (!rig_open(&rig, *state))
		return;
	assert_int_equal(plugin->container_open(rig.root, "seg/0", 1 << 20, &container, &bytes), 0);
	for (unsigned int i = 0; i < 16; i++) {
		fill(memory, 65536, i);
		op_make(&op, &rig, KVC_OP_WRITE, "");
		op.descriptor.container = container;
		op.descriptor.offset = i * 65536u;
		op_range(&op, memory, 65536);
		assert_int_equal(op_run(&rig, &op), 65536);
	}
	op_make(&op, &rig, KVC_OP_SYNC, "");
	op.descriptor.container = container;
	assert_int_equal(op_run(&rig, &op), 0);
	for (unsigned int i = 0; i < 16; i++) {
		fill(memory, 65536, i);
		op_make(&op, &rig, KVC_OP_READ, "");
		op.descriptor.container = container;
		op.descriptor.offset = i * 65536u;
		op_range(&op, to, 65536);
		assert_int_equal(op_run(&rig, &op), 65536);
		assert_memory_equal(memory, to, 65536);
	}
	op_make(&op, &rig, KVC_OP_READ, "");
	op.descriptor.container = container;
	op.descriptor.offset = (1 << 20) - 4096;
	op_range(&op, to, 65536);
	assert_int_equal(op_run(&rig, &op), 4096);
	assert_int_equal(plugin->container_close(container), 0);
	assert_int_equal(plugin->container_remove(rig.root, "seg/0"), 0);
	rig_close(&rig);
}

/* R31: descriptors and threads after many operations, failures among them, are those of before. */
static void nothing_is_left_over(void **state)
{
	int descriptors = 0;
	int threads = 0;
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	for (int round = 0; round < 300; round++) {
		struct op op;

		(void)put(&rig, "n/0/a", memory, 8192, KVC_DESCRIPTOR_IF_ABSENT);
		(void)put(&rig, "n/0/b", memory, 8192, 0);
		assert_int_equal(get(&rig, "n/0/a", memory, 16384, NULL), 8192);
		assert_int_equal(get(&rig, "n/0/none", memory, 8192, NULL), -ENOENT);
		assert_int_equal(put(&rig, "n/0/b/c", memory, 8192, 0), -ENOTDIR);
		assert_int_equal(get(&rig, "n/0", memory, 8192, NULL), -EISDIR);
		op_make(&op, &rig, KVC_OP_REMOVE, "n/0/b");
		assert_int_equal(op_run(&rig, &op), 0);
		if (round == 20) {
			descriptors = entries("/proc/self/fd");
			threads = entries("/proc/self/task");
		}
	}
	assert_int_equal(entries("/proc/self/fd"), descriptors);
	/* The kernel and the C library end idle helpers when they like. */
	assert_true(entries("/proc/self/task") <= threads + 8);
	assert_int_equal(temp_count(), 0);
	rig_close(&rig);
}

/* R09 */
static void without_descriptors_the_file_stays(void **state)
{
	struct rlimit before;
	struct rlimit none;
	struct rig rig;

	if (!rig_open(&rig, *state))
		return;
	assert_int_equal(put(&rig, "n/0/key", memory, 8192, 0), 8192);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 3;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(get(&rig, "n/0/key", memory, 8192, NULL), -EMFILE);
	assert_int_equal(put(&rig, "n/0/new", memory, 8192, 0), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(get(&rig, "n/0/key", memory, 8192, NULL), 8192);
	assert_int_equal(stat_of(&rig, "n/0/new"), -ENOENT);
	rig_close(&rig);
}

/* Several processes write the same names; every read is of one writer. */
static int contend(const struct mode *mode, unsigned int writer)
{
	unsigned char *to = memory + MEMORY_BYTES / 2;
	struct rig rig;

	if (!rig_open(&rig, mode))
		return 0;
	for (unsigned int i = 0; i < 200; i++) {
		char name[32];
		int64_t result;

		(void)snprintf(name, sizeof(name), "n/%u/key", (i * 7 + writer) % 32);
		memset(memory, (int)(writer * 16 + i % 16), 16384);
		result = put(&rig, name, memory, 16384, i % 3 ? 0 : KVC_DESCRIPTOR_IF_ABSENT);
		if (result != 16384 && !(i % 3 == 0 && result == -EEXIST))
			return 2;
		result = get(&rig, name, to, 16384, NULL);
		if (result != 16384)
			return 3;
		for (unsigned int b = 1; b < 16384; b++) {
			if (to[b] != to[0])
				return 4;
		}
	}
	rig_close(&rig);
	return 0;
}

struct sharer {
	pthread_t thread;
	struct rig rig; /* its own queue, the root of all */
	unsigned int number;
	int wrong;
};

/* One operation without assertions, which belong to the main thread. */
static int64_t op_wait(struct sharer *sharer, struct op *op)
{
	const struct kvc_descriptor *one = &op->descriptor;
	struct kvc_completion completion = { .result = -EIO };

	if (plugin->submit(sharer->rig.queue, &one, 1) != 1)
		return -EAGAIN;
	while (plugin->poll(sharer->rig.queue, &completion, 1, GUARD_NS) == 0)
		;
	return completion.result;
}

static void *share(void *argument)
{
	struct sharer *sharer = argument;
	unsigned char *area = memory + sharer->number * (MEMORY_BYTES / 4);
	struct kvc_plugin_queue *queue = sharer->rig.queue;
	void *scratch = NULL;

	if (posix_memalign(&scratch, 16, sharer->rig.attributes.scratch_bytes) != 0)
		return NULL;
	for (unsigned int i = 0; i < 400 && queue != NULL; i++) {
		static const uint32_t kinds[] = { KVC_OP_WRITE, KVC_OP_READ, KVC_OP_STAT,
						  KVC_OP_REMOVE };
		struct op op = { .descriptor = { .op = kinds[(i + i / 7) % 4] } };
		int64_t result;

		op.descriptor.name_bytes =
			(uint32_t)snprintf(op.name, sizeof(op.name), "n/%u/key", i % 5);
		op.descriptor.name = op.name;
		op.descriptor.ranges = op.ranges;
		op.descriptor.cookie = 1;
		op.descriptor.scratch = scratch;
		op.ranges[0] = (struct kvc_range){ .addr = area, .bytes = 16384 };
		op.descriptor.range_count = op.descriptor.op <= KVC_OP_WRITE ? 1 : 0;
		if (op.descriptor.op == KVC_OP_WRITE)
			memset(area, (int)(sharer->number * 16 + i % 16), 16384);
		result = op_wait(sharer, &op);
		if (result < 0 ? result != -ENOENT : op.descriptor.range_count * 16384 != result)
			sharer->wrong++;
		for (unsigned int b = 1; result == 16384 && b < 16384; b++)
			sharer->wrong += area[b] != area[0];
	}
	free(scratch);
	return NULL;
}

static int list_nothing(void *context, const struct kvc_list_entry *entry)
{
	int *count = context;

	*count += entry->object_bytes == 16384;
	return 0;
}

/* R32, and R27 meanwhile: queues of four threads on one root whose folders are taken away. */
static void queues_share_a_root(void **state)
{
	struct sharer sharers[4] = { { .wrong = 0 } };
	char folder[600];
	struct rig rig;
	int count = 0;

	if (!rig_open(&rig, *state))
		return;
	(void)snprintf(folder, sizeof(folder), "%s/n", location);
	for (unsigned int i = 0; i < 4; i++) {
		sharers[i].number = i;
		sharers[i].rig = rig;
		queue_open(&sharers[i].rig, 4);
		assert_int_equal(pthread_create(&sharers[i].thread, NULL, share, &sharers[i]), 0);
	}
	for (unsigned int i = 0; i < 20; i++) {
		assert_int_equal(plugin->list(rig.root, "n/", list_nothing, &count), 0);
		assert_int_equal(plugin->reclaim(rig.root), 0);
		(void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	}
	for (unsigned int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(sharers[i].thread, NULL), 0);
		assert_int_equal(sharers[i].wrong, 0);
		assert_int_equal(plugin->queue_destroy(sharers[i].rig.queue), 0);
	}
	assert_int_equal(temp_count(), 0);
	rig_close(&rig);
}

/* A process of its own: the C library's AIO does not survive a fork without exec. */
static pid_t child_start(const char *task, const struct mode *mode, const char *argument)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		(void)execl("/proc/self/exe", "test_posix_engines", task, mode->engine,
			    mode->direct ? "direct" : "buffered", location, argument, NULL);
		_exit(9);
	}
	return child;
}

/* R10 */
static void writers_of_one_name_do_not_mix(void **state)
{
	pid_t children[8];

	for (unsigned int i = 0; i < 8; i++) {
		char number[16];

		(void)snprintf(number, sizeof(number), "%u", i);
		children[i] = child_start("contend", *state, number);
	}
	for (unsigned int i = 0; i < 8; i++) {
		int status;

		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_int_equal(status, 0);
	}
	assert_int_equal(temp_count(), 0);
}

/* R40, R01: dead at each step; whole or absent, and reclaimed. */
static void a_killed_writer_leaves_no_short_object(void **state)
{
	static const char *const steps[] = { "publish.created", "publish.written", "publish.synced",
					     "publish.linked", "publish.renamed" };
	struct rig rig;

	for (size_t i = 0; i < 2 * sizeof(steps) / sizeof(steps[0]); i++) {
		bool replaces = i % 2 != 0;
		int64_t bytes;
		int status;
		pid_t child;

		if (!rig_open(&rig, *state))
			return;
		if (replaces)
			assert_int_equal(put(&rig, "n/0/killed", memory, 8192, 0), 8192);
		rig_close(&rig);
		child = child_start("die", *state, steps[i / 2]);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status) || (!replaces && i / 2 == 4));
		assert_true(rig_open(&rig, *state));
		bytes = stat_of(&rig, "n/0/killed");
		assert_true(bytes == 65536 || bytes == (replaces ? 8192 : -ENOENT));
		assert_int_equal(plugin->reclaim(rig.root), replaces && i / 2 == 3 ? 1 : 0);
		assert_int_equal(temp_count(), 0);
		rig_close(&rig);
		(void)nftw(location, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	}
}

/* ---------------------------------------------------------------- tests of the choice */

static void choice(const char *engines, bool demanded, bool direct, const char *setting,
		   const char *expected, const char *noted)
{
	struct rig rig = { .attributes = { .size = sizeof(rig.attributes) } };

	assert_int_equal(backend_open(engines, demanded, direct, setting, &rig.backend), 0);
	assert_int_equal(root_open(&rig), 0);
	assert_int_equal(plugin->root_query(rig.root, &rig.attributes), 0);
	/* Without direct I/O here the threads are chosen before anything is refused. */
	if ((rig.attributes.flags & KVC_ATTRIBUTE_DIRECT) != 0 || !direct) {
		assert_string_equal(rig.attributes.io_engine, expected);
		if (noted != NULL)
			assert_non_null(strstr(rig.attributes.note, noted));
	}
	assert_int_equal(plugin->root_close(rig.root), 0);
	assert_int_equal(plugin->backend_close(rig.backend), 0);
}

static bool engine_works(const char *name)
{
	struct kvc_plugin_backend *backend;

	if (backend_open(name, true, true, NULL, &backend) != 0)
		return false;
	assert_int_equal(plugin->backend_close(backend), 0);
	return true;
}

static void settings_choose_the_engine(void **state)
{
	struct kvc_plugin_backend *backend;

	(void)state;
	if (engine_works("io_uring"))
		choice("", false, true, NULL, "io_uring", NULL);
	choice("", false, false, NULL, "threads", NULL);
	choice("threads,io_uring", false, true, NULL, "threads", NULL);
	choice("", false, true, "use_aio", "linux_aio", NULL);
	if (engine_works("posix_aio")) {
		choice("posix_aio", true, true, NULL, "posix_aio", NULL);
		choice("", false, true, "use_posix_aio", "posix_aio", NULL);
	}
	choice("", false, false, "use_aio", "linux_aio", NULL);
	assert_int_equal(backend_open("warp", true, true, NULL, &backend), -EINVAL);
	assert_non_null(strstr(reason, "\"warp\""));
	assert_int_equal(backend_open("threads", true, true, "use_aio", &backend), -EINVAL);
	assert_non_null(strstr(reason, "use_aio"));
}

/* From here on io_uring_setup fails with the error in this process. */
static void uring_forbid(unsigned int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error & SECCOMP_RET_DATA)),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		_exit(77);
}

static void refused_uring_child(unsigned int error)
{
	struct kvc_plugin_backend *backend;

	uring_forbid(error);
	choice("", false, true, NULL, "linux_aio", "io_uring");
	choice("io_uring", false, true, NULL, "linux_aio", "io_uring");
	assert_int_equal(backend_open("", false, true, "use_uring", &backend), -ENODEV);
	assert_non_null(strstr(reason, "io_uring"));
	assert_non_null(strstr(reason, "demanded"));
	_exit(0);
}

/* R29 */
static void refused_uring_falls_back_or_fails(void **state)
{
	static const unsigned int errors[] = { EPERM, ENOSYS };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		int status;
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0)
			refused_uring_child(errors[i]);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
	}
}

/* R30 */
static void no_locked_memory_is_needed(void **state)
{
	static const rlim_t limits[] = { 0, 65536 };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		int status;
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0) {
			const struct mode mode = { "io_uring", true };
			const struct rlimit limit = { limits[i], limits[i] };
			struct rig rig;

			if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0)
				_exit(1);
			if (rig_open(&rig, &mode) &&
			    put(&rig, "n/0/locked", memory, 1 << 20, 0) != 1 << 20)
				_exit(2);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
}

/* From here on this process can make no thread, nor the kernel one for it. It keeps its files. */
static int threads_forbid(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0 } };
	const struct rlimit limit = { .rlim_cur = 1, .rlim_max = 1 };

	/* Nobody counts the processes of root. */
	if (getuid() == 0 && setresuid(65534, (uid_t)-1, (uid_t)-1) != 0)
		return -1;
	if (syscall(SYS_capset, &header, none) != 0)
		return -1;
	return setrlimit(RLIMIT_NPROC, &limit);
}

static void *no_thread(void *argument)
{
	return argument;
}

static void without_workers_child(const struct mode *mode)
{
	struct kvc_completion completion;
	pthread_t thread;
	struct rig rig;

	if (threads_forbid() != 0 || pthread_create(&thread, NULL, no_thread, NULL) != EAGAIN)
		_exit(2);
	if (!rig_open(&rig, mode))
		_exit(77);
	fill(memory, 65536, 5);
	/* The sync is work for a worker of io_uring. */
	if (put(&rig, "n/key", memory, 65536, KVC_DESCRIPTOR_DURABLE) != 65536)
		_exit(3);
	if (get(&rig, "n/key", memory + 65536, 65536, &completion) != 65536 ||
	    memcmp(memory, memory + 65536, 65536) != 0)
		_exit(4);
	rig_close(&rig);
	_exit(0);
}

static void without_workers_uring_moves_all_the_same(void **state)
{
	static const struct mode uring[] = { { "io_uring", false }, { "io_uring", true } };

	(void)state;
	for (size_t i = 0; i < sizeof(uring) / sizeof(uring[0]); i++) {
		pid_t child = fork();
		int status;

		assert_true(child >= 0);
		if (child == 0)
			without_workers_child(&uring[i]);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) == 77) {
			(void)snprintf(skipped, sizeof(skipped), "io_uring cannot be had here");
			continue;
		}
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

static int before_each(void **state)
{
	(void)state;
	(void)snprintf(location, sizeof(location), "test-posix-XXXXXX");
	if (mkdtemp(location) == NULL)
		return -1;
	return 0;
}

static int after_each(void **state)
{
	(void)state;
	(void)nftw(location, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return 0;
}

static int load(void **state)
{
	const char *folder = getenv("KVCELLAR_PLUGIN_DIR");
	const struct kvc_plugin *(*entry)(void) = NULL;
	char path[4096];
	void *handle;
	void *symbol;
	void *buffer = NULL;

	(void)state;
	(void)snprintf(path, sizeof(path), "%s/kvcellar-plugin-posix.so",
		       folder != NULL ? folder : ".");
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
	symbol = dlsym(handle, "kvc_plugin_entry");
	if (symbol == NULL || posix_memalign(&buffer, 4096, MEMORY_BYTES) != 0)
		return -1;
	memcpy(&entry, &symbol, sizeof(entry));
	plugin = entry();
	memory = buffer;
	memset(memory, 0, MEMORY_BYTES);
	return 0;
}

static int unload(void **state)
{
	(void)state;
	free(memory);
	return 0;
}

static const struct mode modes[] = {
	{ "io_uring", true }, { "io_uring", false }, { "linux_aio", true }, { "linux_aio", false },
	{ "threads", true },  { "threads", false },  { "posix_aio", true }, { "posix_aio", false },
};

#define MODES (sizeof(modes) / sizeof(modes[0]))
#define TEST(test)          \
	{                   \
#test, test \
	}
#define CHOICE(test) cmocka_unit_test_setup_teardown(test, before_each, after_each)

static const struct {
	const char *name;
	CMUnitTestFunction function;
} per_mode[] = {
	TEST(every_size_comes_back_exactly),
	TEST(odd_files_of_others_are_read_whole),
	TEST(short_objects_have_a_short_count),
	TEST(bad_memory_leaves_no_file),
	TEST(late_ranges_are_filled_and_written),
	TEST(signals_disturb_nothing),
	TEST(backpressure_is_eagain_and_ends),
	TEST(the_event_descriptor_tells_when_to_poll),
	TEST(cancelled_operations_end_once),
	TEST(containers_are_written_in_place),
	TEST(nothing_is_left_over),
	TEST(without_descriptors_the_file_stays),
	TEST(queues_share_a_root),
	TEST(writers_of_one_name_do_not_mix),
	TEST(a_killed_writer_leaves_no_short_object),
};

#define PER_MODE (sizeof(per_mode) / sizeof(per_mode[0]))

static int child_main(char **argv)
{
	const struct mode mode = { argv[2], strcmp(argv[3], "direct") == 0 };
	struct rig rig;
	int rc = 0;

	(void)snprintf(location, sizeof(location), "%s", argv[4]);
	if (load(NULL) != 0)
		return 8;
	if (strcmp(argv[1], "contend") == 0) {
		rc = contend(&mode, (unsigned int)strtoul(argv[5], NULL, 10));
	} else {
		kill_at = argv[5];
		if (rig_open(&rig, &mode)) {
			(void)put(&rig, "n/0/killed", memory, 65536, KVC_DESCRIPTOR_DURABLE);
			rig_close(&rig);
		}
	}
	free(memory);
	return rc;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest choices[] = {
		CHOICE(settings_choose_the_engine),
		CHOICE(refused_uring_falls_back_or_fails),
		CHOICE(no_locked_memory_is_needed),
		CHOICE(without_workers_uring_moves_all_the_same),
	};
	static char names[PER_MODE * MODES][128];
	static struct CMUnitTest tests[PER_MODE * MODES];
	int failed;

	if (argc == 6)
		return child_main(argv);
	for (size_t m = 0; m < MODES; m++) {
		for (size_t t = 0; t < PER_MODE; t++) {
			size_t i = m * PER_MODE + t;

			(void)snprintf(names[i], sizeof(names[i]), "%s.%s.%s", per_mode[t].name,
				       modes[m].engine, modes[m].direct ? "direct" : "buffered");
			tests[i] = (struct CMUnitTest){
				.name = names[i],
				.test_func = per_mode[t].function,
				.setup_func = before_each,
				.teardown_func = after_each,
				.initial_state = (void *)(uintptr_t)&modes[m],
			};
		}
	}
	failed = cmocka_run_group_tests(tests, load, unload);
	if (failed == 0)
		failed = cmocka_run_group_tests(choices, load, unload);
	if (failed == 0 && skipped[0] != '\0') {
		printf("SKIP: %s\n", skipped);
		return 77;
	}
	return failed;
}
