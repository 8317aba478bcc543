/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include "core/metrics.h"
#include "core/usage.h"
#include "core/workers.h"

#include <stdio.h>

struct kvc_plugin_root {
	struct fake *fake;
	char location[64];
	uint32_t queues;
};

struct flight {
	const struct kvc_descriptor *descriptor;
	struct kvc_descriptor copy; /* it must not change before its completion */
	struct kvc_completion completion;
	bool stalled;
};

struct kvc_plugin_queue {
	struct kvc_plugin_root *root;
	struct flight flights[KVC_QUEUE_SLOTS];
	uint32_t count;
	uint32_t depth;
	bool cancelled;
};

static struct fake *the_fake; /* one at a time */

#define BROKEN(fake, condition)                                                   \
	do {                                                                      \
		if (condition) {                                                  \
			print_error("contract: %s (%d)\n", #condition, __LINE__); \
			(fake)->broken++;                                         \
		}                                                                 \
	} while (0)

/* ---------------------------------------------------------------- objects */

struct fake_object *fake_find(struct fake *fake, const char *name)
{
	for (size_t i = 0; i < fake->object_count; i++)
		if (fake->objects[i].data && strcmp(fake->objects[i].name, name) == 0)
			return &fake->objects[i];
	return NULL;
}

void fake_put(struct fake *fake, const char *name, const void *data, uint64_t bytes)
{
	struct fake_object *object = fake_find(fake, name);

	if (!object) {
		assert_true(fake->object_count < FAKE_OBJECTS);
		object = &fake->objects[fake->object_count++];
	}
	free(object->data);
	(void)snprintf(object->name, sizeof(object->name), "%s", name);
	object->data = malloc(bytes + 1);
	assert_non_null(object->data);
	if (bytes)
		memcpy(object->data, data, bytes);
	object->bytes = bytes;
	object->version = ++fake->versions;
}

static void drop_object(struct fake_object *object)
{
	free(object->data);
	object->data = NULL;
}

/* ---------------------------------------------------------------- one descriptor */

static void do_read(struct fake *fake, const struct kvc_descriptor *d,
		    const struct fake_object *object, struct kvc_completion *c)
{
	uint64_t at = d->offset;

	(void)fake;
	c->object_bytes = object->bytes;
	c->version[0] = object->version;
	c->version[1] = 1;
	for (uint32_t r = 0; r < d->range_count && at < object->bytes; r++) {
		const uint64_t left = object->bytes - at;
		const uint64_t bytes = d->ranges[r].bytes < left ? d->ranges[r].bytes : left;

		memcpy(d->ranges[r].addr, object->data + at, bytes);
		at += bytes;
		c->result += (int64_t)bytes;
	}
}

static void do_write(struct fake *fake, const struct kvc_descriptor *d,
		     const struct fake_object *object, struct kvc_completion *c)
{
	uint64_t bytes = 0, at = 0;
	uint8_t *data;

	if (object && (d->flags & KVC_DESCRIPTOR_IF_ABSENT)) {
		c->result = -EEXIST;
		c->object_bytes = fake->unknown_sizes ? KVC_BYTES_UNKNOWN : object->bytes;
		return;
	}
	for (uint32_t r = 0; r < d->range_count; r++) {
		if ((d->ranges[r].flags & KVC_RANGE_LATE) && !fake->no_late_fill)
			BROKEN(fake, kvc_xfer_fill(NULL, d->cookie) != 0);
		bytes += d->ranges[r].bytes;
	}
	data = malloc(bytes + 1);
	assert_non_null(data);
	for (uint32_t r = 0; r < d->range_count; r++) {
		memcpy(data + at, d->ranges[r].addr, d->ranges[r].bytes);
		at += d->ranges[r].bytes;
	}
	fake_put(fake, d->name, data, bytes);
	free(data);
	c->result = (int64_t)bytes;
}

static void perform(struct fake *fake, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	struct fake_object *object = fake_find(fake, d->name);

	if (!object && d->op != KVC_OP_WRITE) {
		c->result = -ENOENT;
	} else if (d->op == KVC_OP_STAT) {
		c->object_bytes = fake->unknown_sizes ? KVC_BYTES_UNKNOWN : object->bytes;
		c->version[0] = object->version;
		c->version[1] = 1;
	} else if (d->op == KVC_OP_READ) {
		do_read(fake, d, object, c);
	} else if (d->op == KVC_OP_WRITE) {
		do_write(fake, d, object, c);
	} else if ((d->if_version[0] || d->if_version[1]) && d->if_version[0] != object->version) {
		c->result = -ESTALE;
	} else {
		fake->removes++;
		drop_object(object);
	}
}

/* ---------------------------------------------------------------- queues */

static void check_descriptor(struct fake *fake, const struct kvc_descriptor *d)
{
	const struct kvc_attributes *a = &fake->attributes;
	const uint64_t mask = a->alignment - 1;

	BROKEN(fake, strlen(d->name) != d->name_bytes);
	BROKEN(fake, d->name[0] == '/' || strncmp(d->name, "../", 3) == 0 ||
			     strstr(d->name, "/../") || strstr(d->name, "//"));
	BROKEN(fake, d->cookie == 0);
	BROKEN(fake, ((uintptr_t)d->scratch & 15) != 0);
	BROKEN(fake, d->range_count > a->max_ranges);
	BROKEN(fake, d->container != NULL);
	BROKEN(fake, d->op == KVC_OP_WRITE && d->offset != 0);
	if (d->range_count > fake->most_ranges)
		fake->most_ranges = d->range_count;
	memset(d->scratch, 0xee, a->scratch_bytes);
	for (uint32_t r = 0; r < d->range_count; r++) {
		const struct kvc_range *range = &d->ranges[r];
		const bool late = range->flags & KVC_RANGE_LATE;

		BROKEN(fake, ((uintptr_t)range->addr & mask) || (range->bytes & mask));
		BROKEN(fake, range->bytes == 0);
		BROKEN(fake, late && (!(a->flags & KVC_ATTRIBUTE_LATE) || r + 1 != d->range_count ||
				      d->op != KVC_OP_WRITE));
	}
}

static int fake_submit(struct kvc_plugin_queue *queue, const struct kvc_descriptor *const *d,
		       uint32_t count)
{
	struct fake *fake = queue->root->fake;
	uint32_t n = 0;
	int rc = 0;

	pthread_mutex_lock(&fake->lock);
	fake->submits++;
	if (fake->submit_errors) {
		fake->submit_errors--;
		rc = -EIO;
	} else if (fake->refuse) {
		fake->refuse--;
		rc = -EAGAIN;
	}
	for (;
	     !rc && n < count && queue->count < queue->depth && (!fake->accept || n < fake->accept);
	     n++) {
		struct flight *flight = &queue->flights[queue->count++];

		check_descriptor(fake, d[n]);
		*flight = (struct flight){ .descriptor = d[n], .copy = *d[n] };
		fake->accepted++;
	}
	BROKEN(fake, !rc && n < count && queue->count >= queue->depth);
	pthread_mutex_unlock(&fake->lock);
	return rc ? rc : (int)n;
}

/* Whether the flight may land now; its completion is filled then. */
static bool land(struct kvc_plugin_queue *queue, struct flight *flight)
{
	struct fake *fake = queue->root->fake;
	const struct kvc_descriptor *d = flight->descriptor;
	struct kvc_completion *c = &flight->completion;
	int64_t answer = FAKE_NORMAL;

	if (flight->stalled && !fake->released && !queue->cancelled)
		return false;
	*c = (struct kvc_completion){ .cookie = d->cookie };
	if (queue->cancelled) {
		c->result = -ECANCELED;
		return true;
	}
	if (fake->hook && !flight->stalled) {
		fake->hook_count++;
		answer = fake->hook(fake, d, c);
	}
	if (answer == FAKE_STALL && fake->released)
		answer = FAKE_NORMAL;
	if (answer == FAKE_STALL) {
		flight->stalled = true;
		return false;
	}
	BROKEN(fake, memcmp(d, &flight->copy, sizeof(*d)) != 0);
	if (answer == FAKE_NORMAL)
		perform(fake, d, c);
	else
		c->result = answer;
	return true;
}

static int collect(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max)
{
	struct fake *fake = queue->root->fake;
	uint32_t found = 0;

	if (fake->per_poll && max > fake->per_poll)
		max = fake->per_poll;
	for (uint32_t k = 0; k < queue->count && found < max;) {
		const uint32_t i = fake->reverse ? queue->count - 1 - k : k;

		if (!land(queue, &queue->flights[i])) {
			k++;
			continue;
		}
		out[found++] = queue->flights[i].completion;
		memmove(&queue->flights[i], &queue->flights[i + 1],
			(queue->count - i - 1) * sizeof(queue->flights[0]));
		queue->count--;
	}
	if (queue->count == 0)
		queue->cancelled = false;
	fake->completed += found;
	return (int)found;
}

static int fake_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		     uint64_t wait_ns)
{
	struct fake *fake = queue->root->fake;
	const struct timespec until = kvc_timespec(kvc_now_ns() + wait_ns);
	int count = 0, rc = 0;

	pthread_mutex_lock(&fake->lock);
	fake->polls++;
	if (fake->poll_errors) {
		fake->poll_errors--;
		count = -EIO;
	}
	while (count == 0 && (count = collect(queue, out, max)) == 0 && !rc)
		rc = pthread_cond_clockwait(&fake->wake, &fake->lock, CLOCK_MONOTONIC, &until);
	pthread_mutex_unlock(&fake->lock);
	return count;
}

static int fake_cancel(struct kvc_plugin_queue *queue, const struct kvc_descriptor *const *d,
		       uint32_t count)
{
	struct fake *fake = queue->root->fake;
	int rc = 0;

	(void)d, (void)count;
	pthread_mutex_lock(&fake->lock);
	fake->cancels++;
	if (!(fake->attributes.flags & KVC_ATTRIBUTE_CANCELLABLE))
		rc = -EBUSY;
	else
		queue->cancelled = queue->count > 0;
	pthread_mutex_unlock(&fake->lock);
	return rc;
}

static int fake_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
			     struct kvc_plugin_queue **out)
{
	struct kvc_plugin_queue *queue = calloc(1, sizeof(*queue));

	assert_non_null(queue);
	queue->root = root;
	queue->depth = params->depth;
	pthread_mutex_lock(&root->fake->lock);
	BROKEN(root->fake, params->depth == 0 || params->depth > KVC_QUEUE_SLOTS);
	root->queues++;
	root->fake->queues++;
	pthread_mutex_unlock(&root->fake->lock);
	*out = queue;
	return 0;
}

static int fake_queue_destroy(struct kvc_plugin_queue *queue)
{
	struct fake *fake = queue->root->fake;

	if (queue->count)
		return -EBUSY;
	if (fake->destroy_error)
		return fake->destroy_error;
	pthread_mutex_lock(&fake->lock);
	queue->root->queues--;
	fake->queues--;
	pthread_mutex_unlock(&fake->lock);
	free(queue);
	return 0;
}

/* ---------------------------------------------------------------- control */

static int fake_root_open(struct kvc_plugin_backend *backend, const struct kvc_root_params *params,
			  struct kvc_plugin_root **out)
{
	struct kvc_plugin_root *root;

	(void)backend;
	if (the_fake->root_error)
		return the_fake->root_error;
	root = calloc(1, sizeof(*root));
	assert_non_null(root);
	root->fake = the_fake;
	(void)snprintf(root->location, sizeof(root->location), "%s", params->location);
	the_fake->roots++;
	*out = root;
	return 0;
}

static int fake_root_close(struct kvc_plugin_root *root)
{
	BROKEN(root->fake, root->queues != 0);
	root->fake->roots--;
	free(root);
	return 0;
}

static int fake_root_query(struct kvc_plugin_root *root, struct kvc_attributes *out)
{
	BROKEN(root->fake, out->size < sizeof(*out));
	*out = root->fake->attributes;
	return 0;
}

static int fake_memory_register(struct kvc_plugin_backend *backend, const struct kvc_memory *memory,
				uint64_t *out)
{
	(void)backend, (void)memory;
	if (the_fake->register_error)
		return the_fake->register_error;
	*out = ++the_fake->registered + 100;
	return 0;
}

static int fake_memory_deregister(struct kvc_plugin_backend *backend, uint64_t registration)
{
	(void)backend;
	BROKEN(the_fake, registration <= 100);
	the_fake->registered--;
	return 0;
}

static int fake_list(struct kvc_plugin_root *root, const char *prefix, kvc_list_fn fn,
		     void *context)
{
	struct fake *fake = root->fake;
	int rc = 0;

	fake->lists++;
	for (size_t i = 0; i < fake->object_count && !rc; i++) {
		const struct fake_object *object = &fake->objects[i];
		struct kvc_list_entry entry = {
			.size = sizeof(entry),
			.name = object->name,
			.name_bytes = (uint32_t)strlen(object->name),
			.object_bytes = object->bytes,
			.allocated_bytes = object->bytes,
			.version = { object->version, 1 },
		};

		if (object->data && strncmp(object->name, prefix, strlen(prefix)) == 0)
			rc = fn(context, &entry);
	}
	return rc;
}

static int fake_usage(struct kvc_plugin_root *root, struct kvc_usage *out)
{
	if (root->fake->usage_error)
		return root->fake->usage_error;
	out->total_bytes = root->fake->total_bytes;
	out->free_bytes = root->fake->free_bytes;
	return 0;
}

static int64_t fake_reclaim(struct kvc_plugin_root *root)
{
	(void)root;
	return 0;
}

static int fake_event_fd(struct kvc_plugin_queue *queue)
{
	(void)queue;
	return -ENOTSUP;
}

/* ---------------------------------------------------------------- the store around it */

static void init_settings(struct kvc_settings *settings)
{
	static char empty[] = "";

	settings->naming = KVC_NAMING_KVCELLAR;
	settings->verify = KVC_VERIFY_REQUIRE;
	settings->checksum = KVC_CHECKSUM_MODE_FULL;
	settings->get_timeout_ms = 5000;
	settings->set_timeout_ms = 8000;
	settings->exists_timeout_ms = 2000;
	settings->metrics_file = empty;
	settings->metrics_listen = empty;
	settings->trace_file = empty;
	settings->plugin_dir = empty;
}

struct fake *fake_new(void)
{
	struct fake *fake = calloc(1, sizeof(*fake));
	struct kvc_store *store;

	assert_non_null(fake);
	the_fake = fake;
	(void)pthread_mutex_init(&fake->lock, NULL);
	(void)pthread_cond_init(&fake->wake, NULL);
	fake->attributes = (struct kvc_attributes){
		.size = sizeof(fake->attributes),
		.max_ranges = 64,
		.max_depth = 32,
		.alignment = 512,
		.scratch_bytes = 40,
		.flags = KVC_ATTRIBUTE_WHOLE | KVC_ATTRIBUTE_LOCAL | KVC_ATTRIBUTE_IF_ABSENT |
			 KVC_ATTRIBUTE_LISTS | KVC_ATTRIBUTE_REMOVES | KVC_ATTRIBUTE_SIZES,
		.file_system = "fake",
	};
	fake->module.ops = (struct kvc_plugin){
		.abi = KVC_PLUGIN_ABI,
		.size = sizeof(fake->module.ops),
		.name = "fake",
		.version = "1",
		.summary = "",
		.root_open = fake_root_open,
		.root_close = fake_root_close,
		.root_query = fake_root_query,
		.memory_register = fake_memory_register,
		.memory_deregister = fake_memory_deregister,
		.list = fake_list,
		.usage = fake_usage,
		.reclaim = fake_reclaim,
		.queue_create = fake_queue_create,
		.queue_destroy = fake_queue_destroy,
		.submit = fake_submit,
		.poll = fake_poll,
		.event_fd = fake_event_fd,
		.cancel = fake_cancel,
	};
	fake->backend.module = &fake->module;
	init_settings(&fake->settings);
	store = &fake->store;
	store->settings = &fake->settings;
	store->backend = &fake->backend;
	store->checksum_kind = KVC_CHECKSUM_FULL;
	(void)pthread_mutex_init(&store->register_lock, NULL);
	(void)pthread_mutex_init(&store->region_lock, NULL);
	(void)pthread_mutex_init(&store->worker_lock, NULL);
	assert_int_equal(kvc_counters_open(NULL, 0, &store->counters), 0);
	assert_int_equal(kvc_metrics_open(store), 0);
	return fake;
}

void fake_open(struct fake *fake, size_t roots)
{
	struct kvc_store *store = &fake->store;

	for (size_t i = 0; i < roots; i++) {
		char location[32];

		/* Objects are one heap for all roots: each gets an identity of its own. */
		if (i > 0)
			drop_object(fake_find(fake, KVC_HOUSEKEEPING_FOLDER "/root.json"));
		(void)snprintf(location, sizeof(location), "fake%zu", i);
		assert_int_equal(kvc_root_open(store, &fake->backend, location, store->read_only,
					       &store->roots[i]),
				 0);
		memcpy(store->uuids[i], store->roots[i]->uuid, 16);
		store->root_count++;
	}
}

void fake_free(struct fake *fake)
{
	struct kvc_store *store = &fake->store;

	fake_release(fake);
	kvc_workers_free(store->workers);
	if (store->connector_close)
		store->connector_close(store->connector);
	assert_int_equal(atomic_load(&store->children), 0);
	assert_int_equal(atomic_load(&store->active), 0);
	while (store->root_count > 0) {
		assert_int_equal(kvc_root_close(store->roots[store->root_count - 1],
						kvc_now_ns() + UINT64_C(2000000000)),
				 0);
		store->root_count--;
	}
	assert_int_equal(fake_counter(fake, KVC_COUNTER_STORAGE_REGISTRATIONS), 0);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 0);
	assert_int_equal(fake->queues, 0);
	assert_int_equal(fake->roots, 0);
	assert_int_equal(fake->broken, 0);
	assert_int_equal(fake->accepted, fake->completed);
	free(store->regions);
	kvc_metrics_free(store->metrics);
	kvc_counters_close(store->counters);
	for (size_t i = 0; i < fake->object_count; i++)
		free(fake->objects[i].data);
	(void)pthread_mutex_destroy(&store->worker_lock);
	(void)pthread_mutex_destroy(&store->region_lock);
	(void)pthread_mutex_destroy(&store->register_lock);
	(void)pthread_cond_destroy(&fake->wake);
	(void)pthread_mutex_destroy(&fake->lock);
	free(fake);
	the_fake = NULL;
}

struct kvc_root *fake_root(struct fake *fake, size_t number)
{
	return fake->store.roots[number];
}

uint64_t fake_counter(struct fake *fake, enum kvc_counter counter)
{
	struct kvc_stats stats = { .size = sizeof(stats) };

	assert_int_equal(kvc_counters_read(fake->store.counters, &stats), 0);
	return (&stats.overruns)[counter];
}

void fake_release(struct fake *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->released = true;
	pthread_cond_broadcast(&fake->wake);
	pthread_mutex_unlock(&fake->lock);
}

/* ---------------------------------------------------------------- the connector on it */

struct kvc_namespace *fake_namespace(struct fake *fake, const char *model)
{
	const struct kvc_namespace_params params = {
		.size = sizeof(params), .model_id = model, .dtype = "bfloat16", .page_tokens = 4
	};
	struct kvc_namespace *ns;

	assert_int_equal(kvc_namespace_open(&fake->store, &params, &ns), 0);
	return ns;
}

struct kvc_pool *fake_pool(struct kvc_namespace *ns, uint8_t *memory, uint64_t page_count,
			   uint32_t part_count, uint64_t part_bytes, uint64_t stride)
{
	struct kvc_part parts[8];
	struct kvc_pool_params params = {
		.size = sizeof(params),
		.name = "kv",
		.parts = parts,
		.part_count = part_count,
		.host_layout = KVC_LAYOUT_EXPLICIT,
		.page_count = page_count,
	};
	struct kvc_pool *pool;

	assert_true(part_count <= 8);
	for (uint32_t p = 0; p < part_count; p++)
		parts[p] = (struct kvc_part){ .size = sizeof(parts[0]),
					      .base = memory ? memory + p * stride : NULL,
					      .piece_bytes = part_bytes,
					      .piece_count = 1,
					      .page_stride_bytes = part_count * stride };
	assert_int_equal(kvc_pool_open(ns, &params, &pool), 0);
	return pool;
}

void fake_close(struct kvc_namespace *ns, struct kvc_pool *pool)
{
	assert_int_equal(kvc_pool_close(pool), 0);
	assert_int_equal(kvc_namespace_close(ns), 0);
}

/* ---------------------------------------------------------------- shapes and requests */

void shape_make(struct kvc_shape *shape, const struct part_of *parts, uint32_t count)
{
	memset(shape, 0, sizeof(*shape));
	shape->part_count = shape->series_count = count;
	shape->ns_hash = 0x1111;
	shape->pool_fingerprint = 0x2222;
	for (uint32_t p = 0; p < count; p++) {
		shape->series[p] = (struct kvc_series){
			.piece_bytes = parts[p].piece_bytes,
			.piece_stride_bytes = parts[p].piece_bytes + parts[p].gap_bytes,
			.piece_count = parts[p].pieces,
		};
		shape->parts[p] = (struct kvc_shape_part){
			.bytes = parts[p].piece_bytes * parts[p].pieces,
			.stored_offset = shape->stored_bytes,
			.first_series = p,
			.series_count = 1,
		};
		shape->payload_bytes += shape->parts[p].bytes;
		shape->stored_bytes += kvc_block_align(shape->parts[p].bytes);
	}
	shape->stored_bytes += KVC_TRAILER_BYTES;
}

void page_make(struct page *page, const struct part_of *parts, uint32_t count)
{
	uint64_t bytes = 0;
	uint8_t *at;

	memset(page, 0, sizeof(*page));
	shape_make(&page->shape, parts, count);
	for (uint32_t p = 0; p < count; p++)
		bytes += kvc_block_align(parts[p].offset +
					 (parts[p].piece_bytes + parts[p].gap_bytes) *
						 parts[p].pieces) +
			 KVC_BLOCK_BYTES;
	page->memory_bytes = bytes + KVC_BLOCK_BYTES;
	page->memory = aligned_alloc(KVC_BLOCK_BYTES, page->memory_bytes);
	assert_non_null(page->memory);
	memset(page->memory, 0xaa, page->memory_bytes);
	at = page->memory;
	for (uint32_t p = 0; p < count; p++) {
		page->bases[p] = at + parts[p].offset;
		at += kvc_block_align(parts[p].offset +
				      (parts[p].piece_bytes + parts[p].gap_bytes) *
					      parts[p].pieces) +
		      KVC_BLOCK_BYTES;
	}
}

void page_free(struct page *page)
{
	free(page->memory);
	page->memory = NULL;
}

static void each_byte(const struct page *page, uint8_t seed, uint8_t *out)
{
	const struct kvc_shape *shape = &page->shape;
	uint64_t n = 0;

	for (uint32_t p = 0; p < shape->part_count; p++) {
		const struct kvc_shape_part *part = &shape->parts[p];

		for (uint32_t s = 0; s < part->series_count; s++) {
			const struct kvc_series *series = &shape->series[part->first_series + s];
			uint8_t *base = page->bases[part->first_series + s];

			for (uint32_t i = 0; i < series->piece_count; i++)
				for (uint64_t b = 0; b < series->piece_bytes; b++, n++) {
					uint8_t *byte = base + i * series->piece_stride_bytes + b;

					if (out)
						out[n] = *byte;
					else
						*byte = (uint8_t)(seed + n * 131 + (n >> 8) * 7);
				}
		}
	}
}

void page_fill(struct page *page, uint8_t seed)
{
	each_byte(page, seed, NULL);
}

uint8_t *page_payload(const struct page *page)
{
	uint8_t *payload = malloc(page->shape.payload_bytes + 1);

	assert_non_null(payload);
	each_byte(page, 0, payload);
	return payload;
}

struct kvc_request *page_request(struct page *page, struct kvc_root *root, int op, uint32_t number)
{
	const int length = snprintf(page->name, sizeof(page->name), "object-%u", number);

	page->request = (struct kvc_request){
		.root = root,
		.op = (uint32_t)op,
		.folder = "model-0123456789abcdef",
		.name = page->name,
		.full_name = page->name,
		.name_bytes = (uint32_t)length,
		.full_name_bytes = (uint32_t)length,
		.hash_folder = "ab",
		.g = 1000 + number,
		.v = UINT64_C(0x9e3779b97f4a7c15) * (number + 1),
		.mark_id = 77 + number,
		.shape = &page->shape,
		.bases = page->bases,
		.deadline_ns = kvc_now_ns() + 5 * UINT64_C(1000000000),
		.result = { 99, 99, 99 },
	};
	return &page->request;
}
