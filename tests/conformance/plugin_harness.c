/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance/plugin_harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char base_folder[128];
static unsigned int location_count;

void harness_skip(const char *format, ...)
{
	va_list args;

	printf("SKIP: ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	harness_remove_locations();
	exit(77);
}

void harness_location(char *out, size_t bytes)
{
	if (base_folder[0] == '\0') {
		(void)snprintf(base_folder, sizeof(base_folder), "conformance-XXXXXX");
		assert_non_null(mkdtemp(base_folder));
	}
	(void)snprintf(out, bytes, "%s/root%u", base_folder, location_count++);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
	(void)status;
	(void)type;
	(void)walk;
	(void)remove(path);
	return 0;
}

void harness_remove_locations(void)
{
	if (base_folder[0] != '\0')
		(void)nftw(base_folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	base_folder[0] = '\0';
}

const struct kvc_plugin *harness_load(const char *name)
{
	const struct kvc_plugin *(*entry)(void) = NULL;
	const char *folder = getenv("KVCELLAR_PLUGIN_DIR");
	const struct kvc_plugin *plugin;
	char path[512];
	void *handle;
	void *symbol;

	if (!folder)
		fail_msg("KVCELLAR_PLUGIN_DIR is not set");
	(void)snprintf(path, sizeof(path), "%s/kvcellar-plugin-%s.so", folder, name);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		fail_msg("%s", dlerror());
	symbol = dlsym(handle, "kvc_plugin_entry");
	assert_non_null(symbol);
	memcpy(&entry, &symbol, sizeof(entry));
	plugin = entry();
	assert_non_null(plugin);
	assert_int_equal(plugin->abi, KVC_PLUGIN_ABI);
	assert_int_equal(plugin->size, sizeof(struct kvc_plugin));
	assert_string_equal(plugin->name, name);
	return plugin;
}

static void host_log_debug(void *context, const char *text)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct harness *harness = context;
	size_t used;

	pthread_mutex_lock(&lock);
	used = strlen(harness->debug);
	(void)snprintf(harness->debug + used, sizeof(harness->debug) - used, "%s\n", text);
	pthread_mutex_unlock(&lock);
}

static void host_reason(void *context, uint64_t cookie, const char *text)
{
	struct harness *harness = context;

	if (cookie == 0)
		(void)snprintf(harness->reason, sizeof(harness->reason), "%s", text);
}

/* The LATE range is the last one: its pattern is that of the whole object, which is made here. */
static int host_fill(void *context, uint64_t cookie)
{
	struct op *op = (struct op *)(uintptr_t)cookie;
	const struct kvc_range *last = &op->ranges[op->descriptor.range_count - 1];

	(void)context;
	atomic_fetch_add(&op->fills, 1);
	assert_true(last->flags & KVC_RANGE_LATE);
	buffer_fill(last->addr, last->bytes, 0x1a7e);
	return op->fill_result;
}

/* The defaults of a plugin that brings its own option table. */
static size_t own_defaults(const struct kvc_plugin *plugin, struct kvc_setting *out, size_t max)
{
	const char *row = (const char *)plugin->options;
	size_t count = 0;

	for (; row && count < plugin->option_count; count++, row += plugin->option_bytes) {
		const struct kvc_option *option = (const struct kvc_option *)(const void *)row;

		assert_true(count < max);
		out[count].name = option->name;
		out[count].value = option->default_value;
	}
	return count;
}

int harness_backend_open(struct harness *harness, const struct harness_parameters *parameters)
{
	struct kvc_setting own[64];
	const struct kvc_setting mem[] = {
		{ "latency_us", parameters->latency_us ? parameters->latency_us : "0" },
		{ "max_bytes", parameters->max_bytes ? parameters->max_bytes : "0" },
	};
	const struct kvc_setting posix[] = {
		{ "use_uring", "false" },     { "use_aio", "false" },
		{ "use_posix_aio", "false" }, { "ios_pool_size", "0" },
		{ "kernel_queue_size", "0" }, { "register_memory", "true" },
	};
	const struct kvc_setting fault[] = {
		{ "lower", parameters->lower ? parameters->lower : "mem" },
		{ "seed", parameters->seed ? parameters->seed : "1" },
		{ "rules", parameters->rules ? parameters->rules : "" },
		{ "cancellable", parameters->cancellable ? parameters->cancellable : "lower" },
		{ "local", parameters->local ? parameters->local : "lower" },
	};
	struct kvc_backend_params params = {
		.size = sizeof(params),
		.host = &harness->host,
		.io_engines = parameters->io_engines ? parameters->io_engines : "",
		.io_engine_demanded = parameters->io_engines && parameters->io_engines[0],
		.direct_io = parameters->direct,
		.file_mode = 0600,
		.folder_mode = 0700,
	};
	const char *bottom = parameters->lower ? parameters->lower : parameters->plugin;

	memset(harness, 0, sizeof(*harness));
	harness->plugin = harness_load(parameters->plugin);
	harness->host = (struct kvc_host){
		.abi = KVC_PLUGIN_ABI,
		.descriptor_bytes = sizeof(struct kvc_descriptor),
		.size = sizeof(struct kvc_host),
		.context = harness,
		.log_debug = host_log_debug,
		.reason = host_reason,
		.fill = host_fill,
	};
	if (strcmp(bottom, "mem") == 0) {
		params.settings = mem;
		params.setting_count = sizeof(mem) / sizeof(mem[0]);
	} else if (strcmp(bottom, "posix") == 0) {
		params.settings = posix;
		params.setting_count = sizeof(posix) / sizeof(posix[0]);
	} else {
		params.settings = own;
		params.setting_count = own_defaults(harness_load(bottom), own, 64);
	}
	if (parameters->lower) {
		harness->lower_host = harness->host;
		harness->lower_params = params;
		harness->lower_params.host = &harness->lower_host;
		harness->host.lower = harness_load(parameters->lower);
		harness->host.lower_params = &harness->lower_params;
		params.settings = fault;
		params.setting_count = sizeof(fault) / sizeof(fault[0]);
	}
	return harness->plugin->backend_open(&params, &harness->backend);
}

int harness_root_open(struct harness *harness, const char *location, uint32_t flags,
		      struct kvc_plugin_root **out)
{
	struct kvc_root_params params = { .size = sizeof(params),
					  .location = location,
					  .flags = flags };

	return harness->plugin->root_open(harness->backend, &params, out);
}

/* ---------------------------------------------------------------- memory */

#define ARENA_BYTES (UINT64_C(64) << 20)
#define ARENA_PAGES (ARENA_BYTES / 4096)

/* Registered as a whole: one region for all buffers, as a host pool is one for all pages. */
static struct {
	pthread_mutex_t lock;
	unsigned char *memory; /* NULL: buffers come from the heap */
	bool taken[ARENA_PAGES];
	uint32_t pages[ARENA_PAGES]; /* of the buffer that begins here */
} arena = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void arena_register(struct harness *harness)
{
	const struct kvc_memory region = { .size = sizeof(region),
					   .kind = KVC_MEMORY_HOST,
					   .addr = arena.memory,
					   .bytes = ARENA_BYTES };
	int rc;

	assert_non_null(harness->plugin->memory_register);
	rc = harness->plugin->memory_register(harness->backend, &region, &harness->registration);
	if (rc == -ENOMEM)
		harness_skip("locked memory is limited: %s", harness->reason);
	assert_int_equal(rc, 0);
}

/* NULL: there is no room. */
static unsigned char *arena_take(uint64_t bytes)
{
	uint32_t pages = (uint32_t)((bytes + 4095) / 4096);
	unsigned char *found = NULL;
	uint32_t run = 0;

	pthread_mutex_lock(&arena.lock);
	for (uint32_t i = 0; arena.memory && !found && i < ARENA_PAGES; i++) {
		run = arena.taken[i] ? 0 : run + 1;
		if (run < pages)
			continue;
		arena.pages[i + 1 - pages] = pages;
		for (uint32_t j = i + 1 - pages; j <= i; j++)
			arena.taken[j] = true;
		found = arena.memory + (uint64_t)(i + 1 - pages) * 4096;
	}
	pthread_mutex_unlock(&arena.lock);
	return found;
}

static bool arena_has(const void *buffer)
{
	uintptr_t from = (uintptr_t)arena.memory;

	return arena.memory && (uintptr_t)buffer >= from && (uintptr_t)buffer < from + ARENA_BYTES;
}

unsigned char *buffer_new(uint64_t bytes)
{
	void *buffer = arena_take(bytes + 4096);

	if (!buffer)
		assert_int_equal(posix_memalign(&buffer, 4096, bytes + 4096), 0);
	memset(buffer, 0xaa, bytes + 4096);
	return buffer;
}

void buffer_free(unsigned char *buffer)
{
	uint64_t page;

	if (!arena_has(buffer)) {
		free(buffer);
		return;
	}
	page = (uint64_t)(buffer - arena.memory) / 4096;
	pthread_mutex_lock(&arena.lock);
	for (uint32_t i = 0; i < arena.pages[page]; i++)
		arena.taken[page + i] = false;
	pthread_mutex_unlock(&arena.lock);
}

void harness_open(struct harness *harness, const struct harness_parameters *parameters,
		  const char *location)
{
	int rc = harness_backend_open(harness, parameters);

	if (rc < 0 && parameters->io_engines)
		harness_skip("%s with %s: %s", parameters->plugin, parameters->io_engines,
			     harness->reason);
	if (rc < 0)
		fail_msg("backend_open: %d, %s", rc, harness->reason);
	if (location)
		(void)snprintf(harness->location, sizeof(harness->location), "%s", location);
	else
		harness_location(harness->location, sizeof(harness->location));
	rc = harness_root_open(harness, harness->location, KVC_ROOT_CREATE, &harness->root);
	if (rc < 0)
		fail_msg("root_open %s: %d, %s", harness->location, rc, harness->reason);
	harness->attributes.size = sizeof(harness->attributes);
	assert_int_equal(harness->plugin->root_query(harness->root, &harness->attributes), 0);
	if (parameters->direct && !harness_has(harness, KVC_ATTRIBUTE_DIRECT))
		harness_skip("no direct I/O on %s: %s", harness->attributes.file_system,
			     harness->attributes.note);
	if (parameters->registered && !arena.memory) {
		void *memory = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		assert_ptr_not_equal(memory, MAP_FAILED);
		arena.memory = memory;
	}
	if (parameters->registered)
		arena_register(harness);
}

void harness_close(struct harness *harness)
{
	int rc = harness->root ? harness->plugin->root_close(harness->root) : 0;

	if (rc < 0)
		fail_msg("root_close: %d, %s", rc, harness->reason);
	if (harness->registration)
		assert_int_equal(harness->plugin->memory_deregister(harness->backend,
								    harness->registration),
				 0);
	rc = harness->plugin->backend_close(harness->backend);
	if (rc < 0)
		fail_msg("backend_close: %d, %s", rc, harness->reason);
	harness->root = NULL;
	harness->backend = NULL;
}

uint64_t harness_round(const struct harness *harness, uint64_t bytes)
{
	uint64_t alignment = harness->attributes.alignment;

	return (bytes + alignment - 1) / alignment * alignment;
}

bool harness_has(const struct harness *harness, uint32_t flag)
{
	return harness->attributes.flags & flag;
}

static unsigned char pattern_byte(uint64_t at, uint64_t pattern)
{
	return (unsigned char)((at * 31 + (at >> 9) + pattern * 151) >> 1);
}

void buffer_fill(unsigned char *buffer, uint64_t bytes, uint64_t pattern)
{
	for (uint64_t i = 0; i < bytes; i++)
		buffer[i] = pattern_byte(i, pattern);
}

uint64_t buffer_check(const unsigned char *buffer, uint64_t bytes, uint64_t pattern)
{
	uint64_t i = 0;

	while (i < bytes && buffer[i] == pattern_byte(i, pattern))
		i++;
	return i;
}

void op_init(struct op *op, const struct harness *harness, enum kvc_op what, const char *name)
{
	uint32_t scratch_bytes = harness->attributes.scratch_bytes;

	memset(op, 0, sizeof(*op));
	(void)snprintf(op->name, sizeof(op->name), "%s", name);
	op->descriptor.op = what;
	op->descriptor.name = op->name;
	op->descriptor.name_bytes = (uint32_t)strlen(op->name);
	op->descriptor.cookie = (uint64_t)(uintptr_t)op;
	op->descriptor.ranges = op->ranges;
	if (scratch_bytes != 0) {
		assert_int_equal(posix_memalign(&op->descriptor.scratch, 16, scratch_bytes), 0);
		memset(op->descriptor.scratch, 0x5c, scratch_bytes);
	}
}

void op_ranges(struct op *op, const struct harness *harness, unsigned char *buffer, uint64_t bytes,
	       uint32_t parts)
{
	uint64_t each = harness_round(harness, (bytes + parts - 1) / parts);
	uint32_t count = 0;

	while (bytes != 0) {
		uint64_t now = bytes < each ? bytes : each;

		assert_true(count < MAX_PARTS);
		op->ranges[count++] = (struct kvc_range){
			.addr = buffer,
			.bytes = now,
			.registration = arena_has(buffer) ? harness->registration : 0,
		};
		buffer += now;
		bytes -= now;
	}
	op->descriptor.range_count = count;
}

void op_free(struct op *op)
{
	free(op->descriptor.scratch);
	op->descriptor.scratch = NULL;
}

uint32_t ops_submit(const struct harness *harness, struct kvc_plugin_queue *queue, struct op *ops,
		    uint32_t count)
{
	const struct kvc_descriptor *descriptors[64];
	int rc;

	if (count > 64)
		count = 64;
	for (uint32_t i = 0; i < count; i++)
		descriptors[i] = &ops[i].descriptor;
	rc = harness->plugin->submit(queue, descriptors, count);
	if (rc == -EAGAIN)
		return 0;
	assert_true(rc >= 0);
	assert_true((uint32_t)rc <= count);
	return (uint32_t)rc;
}

uint32_t ops_poll(const struct harness *harness, struct kvc_plugin_queue *queue, uint64_t wait_ns)
{
	struct kvc_completion completions[5]; /* few, so that max is exercised */
	int count = harness->plugin->poll(queue, completions, 5, wait_ns);

	assert_true(count >= 0);
	assert_true(count <= 5);
	for (int i = 0; i < count; i++) {
		struct op *op = (struct op *)(uintptr_t)completions[i].cookie;

		assert_int_equal(op->completions, 0);
		op->completions++;
		op->completion = completions[i];
	}
	return (uint32_t)count;
}

void ops_run(const struct harness *harness, struct kvc_plugin_queue *queue, struct op *ops,
	     uint32_t count)
{
	uint32_t submitted = 0;
	uint32_t done = 0;
	uint32_t refused = 0;

	while (done < count) {
		uint32_t now;

		if (submitted < count)
			submitted += ops_submit(harness, queue, ops + submitted, count - submitted);
		if (submitted == done) {
			struct timespec pause = { .tv_nsec = 1000000 };

			if (++refused == 60000)
				fail_msg("an idle queue takes nothing");
			(void)nanosleep(&pause, NULL);
			continue;
		}
		now = ops_poll(harness, queue, GUARD_NS);
		if (now == 0)
			fail_msg("%u of %u operations never ended", count - done, count);
		done += now;
	}
	assert_int_equal(ops_poll(harness, queue, 0), 0);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(ops[i].completions, 1);
}

int64_t do_write(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		 uint64_t bytes, uint64_t pattern, uint32_t flags)
{
	unsigned char *buffer = buffer_new(bytes);
	struct op op;

	buffer_fill(buffer, bytes, pattern);
	op_init(&op, harness, KVC_OP_WRITE, name);
	op.descriptor.flags = flags;
	op_ranges(&op, harness, buffer, bytes, 3);
	ops_run(harness, queue, &op, 1);
	op_free(&op);
	buffer_free(buffer);
	return op.completion.result;
}

int64_t do_read(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		uint64_t bytes, uint64_t pattern)
{
	unsigned char *buffer = buffer_new(bytes);
	uint64_t same;
	struct op op;

	op_init(&op, harness, KVC_OP_READ, name);
	op_ranges(&op, harness, buffer, bytes, 2);
	ops_run(harness, queue, &op, 1);
	same = buffer_check(buffer, bytes, pattern);
	if (op.completion.result == (int64_t)bytes && same != bytes)
		fail_msg("%s: byte %llu of %llu is wrong", name, (unsigned long long)same,
			 (unsigned long long)bytes);
	op_free(&op);
	buffer_free(buffer);
	return op.completion.result;
}

int64_t do_stat(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		struct kvc_completion *out)
{
	struct op op;

	op_init(&op, harness, KVC_OP_STAT, name);
	ops_run(harness, queue, &op, 1);
	op_free(&op);
	if (out)
		*out = op.completion;
	return op.completion.result;
}

int64_t do_remove(const struct harness *harness, struct kvc_plugin_queue *queue, const char *name,
		  const uint64_t *if_version)
{
	struct op op;

	op_init(&op, harness, KVC_OP_REMOVE, name);
	if (if_version)
		memcpy(op.descriptor.if_version, if_version, sizeof(op.descriptor.if_version));
	ops_run(harness, queue, &op, 1);
	op_free(&op);
	return op.completion.result;
}
