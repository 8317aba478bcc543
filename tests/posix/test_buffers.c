/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory of the POSIX plugin, with the registering system call and the making of pages
 * in the hand of the test: held up, refused, or answered without being done.
 */
#include "posix/posix.h"

#include <errno.h>
#include <ftw.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <liburing.h>

#define KIB	     UINT64_C(1024)
#define MIB	     (UINT64_C(1) << 20)
#define GUARD_NS     UINT64_C(60000000000) /* a hang, not a limit on speed */
#define RANGES	     12u
#define MEMORY_BYTES (32 * MIB)
#define TABLES_CLONE 30u /* io_uring_register(2), Linux 6.12 */

/* ---------------------------------------------------------------- the system in our hand */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool closed;	  /* pages are neither made nor pinned */
	bool pages_pass;  /* but made all the same */
	bool no_sharing;  /* tables cannot be copied, as before Linux 6.12 */
	bool pretend;	  /* pinning and copying succeed and do nothing */
	int error;	  /* of pinning */
	const void *from; /* only memory from here on is refused, or all */
	int arrived;	  /* calls that came to the closed gate */
	int pinned;
	int copied;
} sys = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

int __real_posix_ring_register(int ring_fd, unsigned int what, void *argument, unsigned int count);
int __wrap_posix_ring_register(int ring_fd, unsigned int what, void *argument, unsigned int count);
int __real_madvise(void *addr, size_t bytes, int advice);
int __wrap_madvise(void *addr, size_t bytes, int advice);

static void gate_pass(bool pins)
{
	pthread_mutex_lock(&sys.lock);
	while (sys.closed && (pins || !sys.pages_pass)) {
		sys.arrived++;
		pthread_cond_broadcast(&sys.changed);
		pthread_cond_wait(&sys.changed, &sys.lock);
	}
	pthread_mutex_unlock(&sys.lock);
}

static void gate_set(bool closed)
{
	pthread_mutex_lock(&sys.lock);
	sys.closed = closed;
	pthread_cond_broadcast(&sys.changed);
	pthread_mutex_unlock(&sys.lock);
}

static void gate_wait(void)
{
	pthread_mutex_lock(&sys.lock);
	while (sys.arrived == 0)
		pthread_cond_wait(&sys.changed, &sys.lock);
	pthread_mutex_unlock(&sys.lock);
}

int __wrap_madvise(void *addr, size_t bytes, int advice)
{
	gate_pass(false);
	return __real_madvise(addr, bytes, advice);
}

static int pin(int ring_fd, unsigned int what, void *argument, unsigned int count)
{
	const struct io_uring_rsrc_update2 *update = argument;
	const struct iovec *iov = (const struct iovec *)(uintptr_t)update->data;
	bool pretend;
	int error;

	if (iov->iov_base == NULL)
		return __real_posix_ring_register(ring_fd, what, argument, count);
	gate_pass(true);
	pthread_mutex_lock(&sys.lock);
	error = (uintptr_t)iov->iov_base >= (uintptr_t)sys.from ? sys.error : 0;
	pretend = sys.pretend;
	sys.pinned += error == 0;
	pthread_mutex_unlock(&sys.lock);
	if (error != 0 || pretend)
		return error;
	return __real_posix_ring_register(ring_fd, what, argument, count);
}

int __wrap_posix_ring_register(int ring_fd, unsigned int what, void *argument, unsigned int count)
{
	bool refuse;

	if (what == IORING_REGISTER_BUFFERS_UPDATE)
		return pin(ring_fd, what, argument, count);
	if (what != TABLES_CLONE)
		return __real_posix_ring_register(ring_fd, what, argument, count);
	pthread_mutex_lock(&sys.lock);
	refuse = sys.no_sharing;
	sys.copied++;
	pthread_mutex_unlock(&sys.lock);
	return refuse ? -EINVAL : __real_posix_ring_register(ring_fd, what, argument, count);
}

static void pretend_set(bool pretend)
{
	pthread_mutex_lock(&sys.lock);
	sys.pretend = pretend;
	pthread_mutex_unlock(&sys.lock);
}

static int pinned_now(void)
{
	int pinned;

	pthread_mutex_lock(&sys.lock);
	pinned = sys.pinned;
	pthread_mutex_unlock(&sys.lock);
	return pinned;
}

/* ---------------------------------------------------------------- the host and the rig */

static const struct kvc_plugin *plugin;
static char location[64];
static char reason[512];
static unsigned char *memory; /* pages of its own */
static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static int told; /* lines about memory that cannot be pinned */

static void host_log_debug(void *context, const char *text)
{
	(void)context;
	pthread_mutex_lock(&told_lock);
	told += strstr(text, "cannot be pinned") != NULL;
	pthread_mutex_unlock(&told_lock);
}

static void host_reason(void *context, uint64_t cookie, const char *text)
{
	(void)context;
	(void)cookie;
	(void)snprintf(reason, sizeof(reason), "%s", text);
}

static int told_now(void)
{
	int n;

	pthread_mutex_lock(&told_lock);
	n = told;
	pthread_mutex_unlock(&told_lock);
	return n;
}

static const struct kvc_host host = {
	.abi = KVC_PLUGIN_ABI,
	.descriptor_bytes = sizeof(struct kvc_descriptor),
	.size = sizeof(host),
	.log_debug = host_log_debug,
	.reason = host_reason,
};

struct rig {
	struct kvc_plugin_backend *backend;
	struct kvc_plugin_root *root;
	struct kvc_plugin_queue *queue;
	struct kvc_plugin_container *container;
	uint32_t scratch_bytes;
};

struct op {
	struct kvc_descriptor descriptor;
	struct kvc_range ranges[RANGES];
	bool fixed;	   /* its last I/O went through registered buffers */
	bool unregistered; /* they were refused */
};

static void skip_all(const char *why)
{
	printf("SKIP: %s\n", why);
	fflush(stdout);
	if (location[0] != '\0')
		(void)rmdir(location);
	exit(77);
}

static struct kvc_plugin_queue *queue_new(const struct rig *rig)
{
	const struct kvc_queue_params params = { .size = sizeof(params), .depth = 16 };
	struct kvc_plugin_queue *queue = NULL;

	assert_int_equal(plugin->queue_create(rig->root, &params, &queue), 0);
	return queue;
}

static void rig_open_with(struct rig *rig, const char *engine, const struct kvc_setting *setting)
{
	const struct kvc_backend_params params = {
		.size = sizeof(params),
		.host = &host,
		.settings = setting,
		.setting_count = setting != NULL ? 1 : 0,
		.io_engines = engine,
		.io_engine_demanded = true,
		.direct_io = true,
		.file_mode = 0600,
		.folder_mode = 0700,
	};
	const struct kvc_root_params root = {
		.size = sizeof(root),
		.location = location,
		.flags = KVC_ROOT_CREATE,
	};
	struct kvc_attributes attributes = { .size = sizeof(attributes) };
	uint64_t bytes;

	memset(rig, 0, sizeof(*rig));
	if (plugin->backend_open(&params, &rig->backend) != 0)
		skip_all(reason);
	assert_int_equal(plugin->root_open(rig->backend, &root, &rig->root), 0);
	assert_int_equal(plugin->root_query(rig->root, &attributes), 0);
	if ((attributes.flags & KVC_ATTRIBUTE_DIRECT) == 0)
		skip_all("no direct I/O on this file system");
	rig->scratch_bytes = attributes.scratch_bytes;
	rig->queue = queue_new(rig);
	assert_int_equal(plugin->container_open(rig->root, "segment", MEMORY_BYTES, &rig->container,
						&bytes),
			 0);
}

static void rig_open(struct rig *rig)
{
	rig_open_with(rig, "io_uring", NULL);
}

static void rig_close(struct rig *rig)
{
	assert_int_equal(plugin->container_close(rig->container), 0);
	assert_int_equal(plugin->queue_destroy(rig->queue), 0);
	assert_int_equal(plugin->root_close(rig->root), 0);
	assert_int_equal(plugin->backend_close(rig->backend), 0);
}

static uint64_t region_new(const struct rig *rig, void *addr, uint64_t bytes)
{
	const struct kvc_memory region = {
		.size = sizeof(region), .kind = KVC_MEMORY_HOST, .addr = addr, .bytes = bytes
	};
	uint64_t registration = 0;

	assert_int_equal(plugin->memory_register(rig->backend, &region, &registration), 0);
	assert_int_not_equal(registration, 0);
	return registration;
}

static void region_end(const struct rig *rig, uint64_t registration)
{
	assert_int_equal(plugin->memory_deregister(rig->backend, registration), 0);
}

static void note_get(const struct rig *rig, char *out, size_t bytes)
{
	struct kvc_attributes attributes = { .size = sizeof(attributes) };

	assert_int_equal(plugin->root_query(rig->root, &attributes), 0);
	(void)snprintf(out, bytes, "%s", attributes.note);
}

static void op_range(struct op *op, void *addr, uint64_t bytes, uint64_t registration)
{
	assert_true(op->descriptor.range_count < RANGES);
	op->ranges[op->descriptor.range_count++] =
		(struct kvc_range){ .addr = addr, .bytes = bytes, .registration = registration };
}

/* Without assertions: other threads use it too. A whole object when container is NULL. */
static int64_t op_run(const struct rig *rig, struct kvc_plugin_queue *queue, struct op *op,
		      uint32_t what, struct kvc_plugin_container *container, uint64_t offset)
{
	const struct kvc_descriptor *one = &op->descriptor;
	struct kvc_completion completion = { .result = -ENOMEM };
	struct posix_op *inside;
	void *scratch = NULL;

	if (posix_memalign(&scratch, 16, rig->scratch_bytes) != 0)
		return -ENOMEM;
	op->descriptor.op = what;
	op->descriptor.name = "object";
	op->descriptor.name_bytes = 6;
	op->descriptor.ranges = op->ranges;
	op->descriptor.cookie = 1;
	op->descriptor.container = container;
	op->descriptor.offset = offset;
	op->descriptor.scratch = scratch;
	completion.result = plugin->submit(queue, &one, 1) == 1 ? 0 : -EAGAIN;
	while (completion.result == 0 && plugin->poll(queue, &completion, 1, GUARD_NS) == 0)
		;
	inside = scratch;
	op->fixed = inside->io.fixed;
	op->unregistered = inside->unregistered;
	free(scratch);
	return completion.result;
}

static int64_t move(const struct rig *rig, uint32_t what, void *addr, uint64_t bytes,
		    uint64_t registration, bool *fixed)
{
	struct op op = { .fixed = false };
	int64_t result;

	op_range(&op, addr, bytes, registration);
	result = op_run(rig, rig->queue, &op, what, rig->container, 0);
	if (fixed != NULL)
		*fixed = op.fixed;
	return result;
}

static void fill(unsigned char *to, uint64_t bytes, unsigned int seed)
{
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = (unsigned char)((i * 131 + (i >> 12) * 7 + seed) >> 2);
}

/* Until the thread has come round: the I/O itself is right all the while. */
static void until_fixed(const struct rig *rig, struct kvc_plugin_queue *queue, void *addr,
			uint64_t registration)
{
	for (bool fixed = false; !fixed;) {
		struct op op = { .fixed = false };

		op_range(&op, addr, 64 * KIB, registration);
		assert_int_equal(op_run(rig, queue, &op, KVC_OP_WRITE, rig->container, 0),
				 64 * KIB);
		fixed = op.fixed;
		(void)sched_yield();
	}
}

/* ---------------------------------------------------------------- tests, tables shared or not */

/* What went in by one way comes out by the other. */
static void bytes_are_the_same_both_ways(void **state)
{
	static const uint64_t sizes[] = { 4 * KIB, 64 * KIB, 256 * KIB, MIB, 3 * MIB + 4 * KIB };
	unsigned char *to = memory + MEMORY_BYTES / 2;
	uint64_t registration;
	struct rig rig;

	(void)state;
	rig_open(&rig);
	registration = region_new(&rig, memory, MEMORY_BYTES);
	until_fixed(&rig, rig.queue, memory, registration);
	for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
		const uint64_t bytes = sizes[i / 2];
		const uint64_t in = i % 2 ? registration : 0;
		bool fixed;

		fill(memory, bytes, (unsigned int)i);
		memset(to, 0xaa, bytes);
		assert_int_equal(move(&rig, KVC_OP_WRITE, memory, bytes, in, &fixed), bytes);
		assert_int_equal(fixed, in != 0);
		assert_int_equal(move(&rig, KVC_OP_READ, to, bytes, in ? 0 : registration, &fixed),
				 bytes);
		assert_int_equal(fixed, in == 0);
		assert_memory_equal(memory, to, bytes);
	}
	region_end(&rig, registration);
	rig_close(&rig);
}

/* Registered and other ranges, large and small, in one operation; also past the end. */
static void ranges_of_all_kinds_mix(void **state)
{
	static const struct {
		uint32_t count;
		bool fixed;
		struct {
			uint64_t bytes;
			bool registered;
		} ranges[RANGES];
	} mixes[] = {
		{ 2, true, { { 512 * KIB, true }, { 4 * KIB, false } } },
		{ 2, false, { { 128 * KIB, true }, { 4 * KIB, false } } },
		{ 2, true, { { 128 * KIB, true }, { 128 * KIB, true } } },
		{ 3, true, { { 4 * KIB, false }, { MIB, true }, { 4 * KIB, true } } },
		{ 4,
		  true,
		  { { MIB, true }, { 4 * KIB, false }, { 8 * KIB, true }, { 512 * KIB, true } } },
		{ 3, false, { { 4 * KIB, true }, { 8 * KIB, true }, { 64 * KIB, true } } },
		{ 12,
		  true,
		  { { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 4 * KIB, false },
		    { 256 * KIB, true },
		    { 256 * KIB, true },
		    { 256 * KIB, true } } },
	};
	struct rig rig;
	uint64_t registration;

	(void)state;
	rig_open(&rig);
	registration = region_new(&rig, memory, MEMORY_BYTES);
	until_fixed(&rig, rig.queue, memory, registration);
	for (size_t m = 0; m < 2 * sizeof(mixes) / sizeof(mixes[0]); m++) {
		struct kvc_plugin_container *container = m % 2 ? rig.container : NULL;
		struct op put = { .fixed = false };
		struct op get = { .fixed = false };
		uint64_t bytes = 0;

		fill(memory, MEMORY_BYTES, (unsigned int)m);
		for (uint32_t r = 0; r < mixes[m / 2].count; r++) {
			const uint64_t n = mixes[m / 2].ranges[r].bytes;

			op_range(&put, memory + bytes + r * 4 * KIB, n,
				 mixes[m / 2].ranges[r].registered ? registration : 0);
			op_range(&get, memory + MEMORY_BYTES / 2 + bytes + r * 8 * KIB, n,
				 mixes[m / 2].ranges[r].registered ? registration : 0);
			bytes += n;
		}
		memset(memory + MEMORY_BYTES / 2, 0xaa, MEMORY_BYTES / 2);
		assert_int_equal(op_run(&rig, rig.queue, &put, KVC_OP_WRITE, container, 0), bytes);
		assert_int_equal(put.fixed, mixes[m / 2].fixed);
		assert_int_equal(op_run(&rig, rig.queue, &get, KVC_OP_READ, container, 0), bytes);
		assert_int_equal(get.fixed, mixes[m / 2].fixed);
		for (uint32_t r = 0; r < get.descriptor.range_count; r++)
			assert_memory_equal(put.ranges[r].addr, get.ranges[r].addr,
					    put.ranges[r].bytes);
		/* The last range ends behind the container. */
		if (container != NULL)
			assert_int_equal(op_run(&rig, rig.queue, &get, KVC_OP_READ, container,
						MEMORY_BYTES - bytes + 4 * KIB),
					 bytes - 4 * KIB);
	}
	region_end(&rig, registration);
	rig_close(&rig);
}

/* 64 mappings of 1 GiB of one memory file: noted down, while nothing at all can be pinned. */
static void registering_waits_for_nothing(void **state)
{
	const uint64_t bytes = UINT64_C(1) << 30;
	uint64_t registrations[64];
	void *maps[64];
	struct rig rig;
	int fd = memfd_create("pool", MFD_CLOEXEC);
	char note[KVC_ATTRIBUTE_TEXT_BYTES];

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	rig_open(&rig);
	gate_set(true);
	for (unsigned int i = 0; i < 64; i++) {
		maps[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_ptr_not_equal(maps[i], MAP_FAILED);
		registrations[i] = region_new(&rig, maps[i], bytes);
	}
	/* I/O and questions go on. */
	for (unsigned int i = 0; i < 64; i++) {
		bool fixed;

		assert_int_equal(move(&rig, KVC_OP_WRITE, maps[i], 64 * KIB, registrations[i],
				      &fixed),
				 64 * KIB);
		assert_false(fixed);
	}
	note_get(&rig, note, sizeof(note));
	assert_string_equal(note, "");
	/* All but the one that the thread is at are cancelled at once. */
	gate_wait();
	assert_int_equal(pinned_now(), 0);
	for (unsigned int i = 1; i < 64; i++)
		region_end(&rig, registrations[i]);
	assert_int_equal(pinned_now(), 0);
	gate_set(false);
	until_fixed(&rig, rig.queue, maps[0], registrations[0]);
	region_end(&rig, registrations[0]);
	for (unsigned int i = 0; i < 64; i++)
		munmap(maps[i], bytes);
	assert_in_range(pinned_now(), 1, 4);
	close(fd);
	rig_close(&rig);
}

struct ending {
	const struct rig *rig;
	uint64_t registration;
	int pinned_then;
};

static void *end_region(void *argument)
{
	struct ending *ending = argument;

	(void)plugin->memory_deregister(ending->rig->backend, ending->registration);
	ending->pinned_then = pinned_now();
	return NULL;
}

/* Memory that is being pinned is not given back under the kernel's hands. */
static void deregistering_waits_for_the_piece_at_work(void **state)
{
	struct ending ending = { .pinned_then = -1 };
	pthread_t thread;
	struct rig rig;

	(void)state;
	rig_open(&rig);
	ending.rig = &rig;
	pthread_mutex_lock(&sys.lock);
	sys.closed = true;
	sys.pages_pass = true;
	pthread_mutex_unlock(&sys.lock);
	ending.registration = region_new(&rig, memory, 8 * MIB);
	assert_int_equal(move(&rig, KVC_OP_WRITE, memory, 64 * KIB, ending.registration, NULL),
			 64 * KIB);
	gate_wait();
	assert_int_equal(pthread_create(&thread, NULL, end_region, &ending), 0);
	/* Time for a call that would not wait. */
	for (int i = 0; i < 1000; i++)
		(void)sched_yield();
	gate_set(false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(ending.pinned_then, 1);
	rig_close(&rig);
	assert_int_equal(pinned_now(), 1);
}

/* One that cannot be pinned does not touch the others, and one sentence tells of it. */
static void refused_memory_goes_unregistered(void **state)
{
	static const int errors[] = { ENOMEM, EFAULT, EOPNOTSUPP };

	(void)state;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		char note[KVC_ATTRIBUTE_TEXT_BYTES];
		uint64_t good, bad;
		struct rig rig;
		bool fixed;

		rig_open(&rig);
		pthread_mutex_lock(&sys.lock);
		sys.error = -errors[i];
		sys.from = memory + MEMORY_BYTES / 2;
		pthread_mutex_unlock(&sys.lock);
		told = 0;
		bad = region_new(&rig, memory + MEMORY_BYTES / 2, MEMORY_BYTES / 2);
		good = region_new(&rig, memory, MEMORY_BYTES / 2);
		assert_int_equal(move(&rig, KVC_OP_WRITE, memory, MIB, bad, NULL), MIB);
		until_fixed(&rig, rig.queue, memory, good);
		assert_int_equal(
			move(&rig, KVC_OP_WRITE, memory + MEMORY_BYTES / 2, MIB, bad, &fixed), MIB);
		assert_false(fixed);
		note_get(&rig, note, sizeof(note));
		assert_non_null(strstr(note, "1 of 2 memory regions"));
		assert_non_null(strstr(note, strerror(errors[i])));
		assert_int_equal(told_now(), 1);
		region_end(&rig, bad);
		note_get(&rig, note, sizeof(note));
		assert_string_equal(note, "");
		region_end(&rig, good);
		rig_close(&rig);
		assert_int_equal(told_now(), 1);
		sys.error = 0;
		sys.from = NULL;
	}
}

/* The kernel's own refusal: a page in the middle that may not be touched. */
static void memory_with_a_hole_goes_unregistered(void **state)
{
	unsigned char *map =
		mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char note[KVC_ATTRIBUTE_TEXT_BYTES] = "";
	uint64_t registration;
	struct rig rig;
	bool fixed;

	(void)state;
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(mprotect(map + 8 * MIB, 4 * KIB, PROT_NONE), 0);
	rig_open(&rig);
	told = 0;
	registration = region_new(&rig, map, 16 * MIB);
	while (note[0] == '\0') {
		assert_int_equal(move(&rig, KVC_OP_WRITE, map, MIB, registration, &fixed), MIB);
		assert_false(fixed);
		note_get(&rig, note, sizeof(note));
	}
	assert_non_null(strstr(note, "1 of 1 memory regions"));
	assert_int_equal(told_now(), 1);
	assert_int_equal(move(&rig, KVC_OP_WRITE, map + 8 * MIB, 64 * KIB, registration, NULL),
			 -EFAULT);
	assert_int_equal(move(&rig, KVC_OP_WRITE, map, MIB, registration, NULL), MIB);
	region_end(&rig, registration);
	rig_close(&rig);
	munmap(map, 16 * MIB);
}

/* What cannot be pinned at all is refused while the caller listens. */
static void memory_that_is_not_there_is_a_clear_refusal(void **state)
{
	void *map = mmap(NULL, 64 * KIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const struct kvc_memory region = {
		.size = sizeof(region), .kind = KVC_MEMORY_HOST, .addr = map, .bytes = 64 * KIB
	};
	uint64_t registration = 0;
	struct rig rig;

	(void)state;
	assert_ptr_not_equal(map, MAP_FAILED);
	rig_open(&rig);
	reason[0] = '\0';
	assert_int_equal(plugin->memory_register(rig.backend, &region, &registration), -EFAULT);
	assert_int_equal(registration, 0);
	assert_non_null(strstr(reason, "cannot pin"));
	registration = region_new(&rig, memory, MIB);
	until_fixed(&rig, rig.queue, memory, registration);
	region_end(&rig, registration);
	rig_close(&rig);
	munmap(map, 64 * KIB);
}

/* A buffer that the ring does not have after all: the operation is done without, and the next one
 * is not harmed. */
static void refused_requests_are_repeated_without(void **state)
{
	static const uint64_t sizes[] = { 64 * KIB, MIB };
	unsigned char *to = memory + MEMORY_BYTES / 2;
	uint64_t registration;
	struct rig rig;
	bool refused = false;

	(void)state;
	rig_open(&rig);
	pretend_set(true);
	registration = region_new(&rig, memory, MEMORY_BYTES);
	for (unsigned int i = 0; i < 20 || !refused; i++) {
		const uint64_t bytes = sizes[i % 2];
		struct op put = { .fixed = false };
		struct op get = { .fixed = false };

		fill(memory, 2 * bytes, i);
		memset(to, 0xaa, 2 * bytes);
		op_range(&put, memory, bytes, registration);
		op_range(&get, to, bytes, registration);
		if (i % 3 == 0) {
			op_range(&put, memory + bytes, bytes, 0);
			op_range(&get, to + bytes, bytes, 0);
		}
		assert_int_equal(op_run(&rig, rig.queue, &put, KVC_OP_WRITE, NULL, 0),
				 i % 3 ? bytes : 2 * bytes);
		assert_int_equal(op_run(&rig, rig.queue, &get, KVC_OP_READ, NULL, 0),
				 i % 3 ? bytes : 2 * bytes);
		assert_memory_equal(memory, to, i % 3 ? bytes : 2 * bytes);
		assert_false(put.fixed);
		refused = refused || put.unregistered;
		(void)sched_yield();
	}
	pretend_set(false);
	region_end(&rig, registration);
	registration = region_new(&rig, memory, MEMORY_BYTES);
	until_fixed(&rig, rig.queue, memory, registration);
	region_end(&rig, registration);
	rig_close(&rig);
}

/* A queue that goes makes room for another one, which gets all that is registered. */
static void queues_come_and_go(void **state)
{
	struct kvc_plugin_queue *queues[40];
	uint64_t registration;
	struct rig rig;
	struct op op;

	(void)state;
	rig_open(&rig);
	registration = region_new(&rig, memory, MEMORY_BYTES);
	until_fixed(&rig, rig.queue, memory, registration);
	for (int round = 0; round < 2; round++) {
		int fixed = 0;

		for (int i = 0; i < 40; i++)
			queues[i] = queue_new(&rig);
		until_fixed(&rig, queues[0], memory, registration);
		for (int i = 0; i < 40; i++) {
			op = (struct op){ .fixed = false };
			op_range(&op, memory, MIB, registration);
			assert_int_equal(
				op_run(&rig, queues[i], &op, KVC_OP_WRITE, rig.container, 0), MIB);
			fixed += op.fixed;
		}
		assert_true(fixed >= 1 && fixed <= (sys.no_sharing ? 1 : 31));
		for (int i = 0; i < 40; i++)
			assert_int_equal(plugin->queue_destroy(queues[i]), 0);
	}
	region_end(&rig, registration);
	rig_close(&rig);
}

struct worker {
	const struct rig *rig;
	pthread_t thread;
	unsigned int number;
	int wrong;
};

/* I/O with a region of its own that comes and goes, as do its queues. */
static void *work(void *argument)
{
	struct worker *worker = argument;
	unsigned char *area = memory + worker->number * (MEMORY_BYTES / 4);
	const struct kvc_queue_params params = { .size = sizeof(params), .depth = 8 };
	const struct kvc_memory region = { .size = sizeof(region),
					   .kind = KVC_MEMORY_HOST,
					   .addr = area,
					   .bytes = MEMORY_BYTES / 4 };
	const uint64_t at = worker->number * (MEMORY_BYTES / 4);

	for (unsigned int round = 0; round < 8; round++) {
		struct kvc_plugin_queue *queue = NULL;

		worker->wrong += plugin->queue_create(worker->rig->root, &params, &queue) != 0;
		for (unsigned int i = 0; i < 12; i++) {
			struct op put = { .fixed = false };
			struct op get = { .fixed = false };
			uint64_t registration = 0;

			worker->wrong += plugin->memory_register(worker->rig->backend, &region,
								 &registration) != 0;
			memset(area, (int)(round * 12 + i), 2 * MIB);
			memset(area + 4 * MIB, 0xaa, 2 * MIB);
			op_range(&put, area, MIB, registration);
			op_range(&put, area + MIB, MIB, registration);
			op_range(&get, area + 4 * MIB, 2 * MIB, registration);
			worker->wrong += op_run(worker->rig, queue, &put, KVC_OP_WRITE,
						worker->rig->container, at) != 2 * MIB;
			worker->wrong += op_run(worker->rig, queue, &get, KVC_OP_READ,
						worker->rig->container, at) != 2 * MIB;
			worker->wrong += memcmp(area, area + 4 * MIB, 2 * MIB) != 0;
			worker->wrong +=
				plugin->memory_deregister(worker->rig->backend, registration) != 0;
		}
		worker->wrong += plugin->queue_destroy(queue) != 0;
	}
	return NULL;
}

static void regions_come_and_go_during_io(void **state)
{
	struct worker workers[3] = { { .wrong = 0 } };
	unsigned char *area = memory + 3 * (MEMORY_BYTES / 4);
	uint64_t registrations[8];
	struct rig rig;

	(void)state;
	rig_open(&rig);
	for (unsigned int i = 0; i < 3; i++) {
		workers[i].rig = &rig;
		workers[i].number = i;
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned int round = 0; round < 50; round++) {
		for (unsigned int i = 0; i < 8; i++)
			registrations[i] = region_new(&rig, area + i * 512 * KIB, 512 * KIB);
		for (unsigned int i = 0; i < 8; i++)
			region_end(&rig, registrations[(i * 3 + round) % 8]);
		(void)sched_yield();
	}
	for (unsigned int i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
		assert_int_equal(workers[i].wrong, 0);
	}
	rig_close(&rig);
}

/* What is still registered, or on its way, when the backend is closed. */
static void closing_ends_it_all(void **state)
{
	struct rig rig;

	(void)state;
	for (int i = 0; i < 20; i++) {
		rig_open(&rig);
		(void)region_new(&rig, memory, MEMORY_BYTES / 2);
		(void)region_new(&rig, memory + MEMORY_BYTES / 2, MEMORY_BYTES / 2);
		if (i % 2)
			assert_int_equal(move(&rig, KVC_OP_WRITE, memory, MIB, 0, NULL), MIB);
		rig_close(&rig);
	}
}

/* ---------------------------------------------------------------- tests, once */

static void bad_calls_are_refused(void **state)
{
	struct kvc_memory region = { .size = sizeof(region), .addr = memory, .bytes = MIB };
	uint64_t registration = 0;
	struct rig rig;

	(void)state;
	rig_open(&rig);
	region.kind = KVC_MEMORY_CUDA;
	assert_int_equal(plugin->memory_register(rig.backend, &region, &registration), -ENOTSUP);
	region.kind = KVC_MEMORY_HOST;
	region.bytes = 0;
	assert_int_equal(plugin->memory_register(rig.backend, &region, &registration), -EINVAL);
	region.bytes = (POSIX_PIECES_MAX + 1) * POSIX_PIECE_BYTES;
	assert_int_equal(plugin->memory_register(rig.backend, &region, &registration), -ENOSPC);
	assert_int_equal(registration, 0);
	assert_int_equal(plugin->memory_deregister(rig.backend, 1), -EINVAL);
	registration = region_new(&rig, memory, MIB);
	region_end(&rig, registration);
	assert_int_equal(plugin->memory_deregister(rig.backend, registration), -EINVAL);
	rig_close(&rig);
	rig_open_with(&rig, "threads", NULL);
	region.bytes = MIB;
	assert_int_equal(plugin->memory_register(rig.backend, &region, &registration), -ENOTSUP);
	rig_close(&rig);
}

/* Refused without a word: nothing is wrong, and nothing is pinned. */
static void memory_is_not_registered_when_told(void **state)
{
	static const struct kvc_setting no = { "register_memory", "false" };
	static const struct kvc_setting yes = { "register_memory", "true" };
	static const struct kvc_setting perhaps = { "register_memory", "perhaps" };
	struct kvc_memory region = { .size = sizeof(region), .addr = memory, .bytes = MIB };
	struct kvc_backend_params params = { .size = sizeof(params),
					     .host = &host,
					     .settings = &perhaps,
					     .setting_count = 1,
					     .direct_io = true };
	struct kvc_plugin_backend *backend = NULL;
	uint64_t registration = 0;
	struct rig rig;
	char note[256];

	(void)state;
	reason[0] = '\0';
	rig_open_with(&rig, "io_uring", &no);
	assert_int_equal(plugin->memory_register(rig.backend, &region, &registration), -ENOTSUP);
	assert_int_equal(registration, 0);
	assert_string_equal(reason, "");
	assert_int_equal(move(&rig, KVC_OP_WRITE, memory, MIB, 0, NULL), MIB);
	assert_int_equal(pinned_now(), 0);
	note_get(&rig, note, sizeof(note));
	assert_string_equal(note, "");
	rig_close(&rig);
	rig_open_with(&rig, "io_uring", &yes);
	registration = region_new(&rig, memory, MEMORY_BYTES);
	until_fixed(&rig, rig.queue, memory, registration);
	region_end(&rig, registration);
	rig_close(&rig);
	assert_int_equal(plugin->backend_open(&params, &backend), -EINVAL);
	assert_null(backend);
	assert_non_null(strstr(reason, "register_memory"));
}

/* 0, or 77 when the limit cannot be had. */
static int little_locked_memory_child(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];
	struct kvc_memory region = { .size = sizeof(region), .addr = memory, .bytes = MIB };
	/* Enough for the rings. */
	const struct rlimit little = { 512 * KIB, 512 * KIB };
	uint64_t registration = 0;
	struct rig rig;

	if (syscall(SYS_capget, &header, caps) != 0)
		return 77;
	caps[0].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	caps[0].permitted &= ~CAP_TO_MASK(CAP_IPC_LOCK);
	if (syscall(SYS_capset, &header, caps) != 0 || setrlimit(RLIMIT_MEMLOCK, &little) != 0)
		return 77;
	rig_open(&rig);
	reason[0] = '\0';
	if (plugin->memory_register(rig.backend, &region, &registration) != -ENOMEM ||
	    registration != 0 || strstr(reason, "RLIMIT_MEMLOCK") == NULL)
		return 2;
	if (move(&rig, KVC_OP_WRITE, memory, MIB, 0, NULL) != (int64_t)MIB)
		return 3;
	if (pinned_now() != 0)
		return 4;
	/* What still fits is taken. */
	region.bytes = 64 * KIB;
	if (plugin->memory_register(rig.backend, &region, &registration) != 0 ||
	    plugin->memory_deregister(rig.backend, registration) != 0)
		return 5;
	rig_close(&rig);
	return 0;
}

static int forked_child(const struct rig *rig)
{
	struct kvc_memory region = { .size = sizeof(region), .addr = memory, .bytes = MIB };
	uint64_t registration = 0;

	if (plugin->memory_register(rig->backend, &region, &registration) != -ENOTSUP)
		return 2;
	return 0;
}

static void child_wait(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) != 77)
		assert_int_equal(WEXITSTATUS(status), 0);
}

static void too_little_locked_memory_is_a_clear_refusal(void **state)
{
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (child == 0)
		_exit(little_locked_memory_child());
	child_wait(child);
}

/* A child has the memory, but neither the thread nor the rings. */
static void a_forked_child_registers_nothing(void **state)
{
	uint64_t registration;
	struct rig rig;
	pid_t child;

	(void)state;
	rig_open(&rig);
	registration = region_new(&rig, memory, MEMORY_BYTES);
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(forked_child(&rig));
	child_wait(child);
	until_fixed(&rig, rig.queue, memory, registration);
	region_end(&rig, registration);
	rig_close(&rig);
}

/* ---------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	(void)st;
	(void)type;
	(void)walk;
	(void)remove(path);
	return 0;
}

static int before_each(void **state)
{
	(void)state;
	sys.closed = false;
	sys.pages_pass = false;
	sys.pretend = false;
	sys.error = 0;
	sys.from = NULL;
	sys.arrived = 0;
	sys.pinned = 0;
	sys.copied = 0;
	sys.no_sharing = false;
	(void)snprintf(location, sizeof(location), "test-buffers-XXXXXX");
	return mkdtemp(location) != NULL ? 0 : -1;
}

static int before_each_own(void **state)
{
	int rc = before_each(state);

	sys.no_sharing = true;
	return rc;
}

static int after_each(void **state)
{
	(void)state;
	gate_set(false);
	(void)nftw(location, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return 0;
}

#define ONCE(test) cmocka_unit_test_setup_teardown(test, before_each, after_each)
#define OWN(test)                                                     \
	{                                                             \
#test "_own", test, before_each_own, after_each, NULL \
	}
#define BOTH(test) ONCE(test), OWN(test)

static bool may_lock_any(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];
	struct rlimit limit;

	return (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) ||
	       (syscall(SYS_capget, &header, caps) == 0 &&
		(caps[0].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(bytes_are_the_same_both_ways),
		BOTH(ranges_of_all_kinds_mix),
		BOTH(registering_waits_for_nothing),
		BOTH(deregistering_waits_for_the_piece_at_work),
		BOTH(refused_memory_goes_unregistered),
		BOTH(memory_with_a_hole_goes_unregistered),
		BOTH(refused_requests_are_repeated_without),
		BOTH(queues_come_and_go),
		BOTH(regions_come_and_go_during_io),
		BOTH(closing_ends_it_all),
		ONCE(memory_that_is_not_there_is_a_clear_refusal),
		ONCE(bad_calls_are_refused),
		ONCE(memory_is_not_registered_when_told),
		ONCE(too_little_locked_memory_is_a_clear_refusal),
		ONCE(a_forked_child_registers_nothing),
	};
	int failed;

	if (!may_lock_any())
		skip_all("locked memory is limited");
	plugin = kvc_plugin_entry();
	memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (memory == MAP_FAILED)
		return 2;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	munmap(memory, MEMORY_BYTES);
	return failed;
}
