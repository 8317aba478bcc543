/* SPDX-License-Identifier: Apache-2.0 */
/* One configuration of bench_grid: its folder, its handles, and its filling. */
#include "grid.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_TOKENS	64u
#define OBJECT_BLOCK	4096u
#define FILL_PAGES	128u
#define CONFIG_VALUE	64u
#define DESCRIBE_BYTES	(64u << 10)
#define FULL_BY_PERCENT 130u

uint64_t grid_store_object_bytes(const struct grid_store *store)
{
	return GRID_PARTS * store->part_bytes + (store->layout == GRID_FILES ? OBJECT_BLOCK : 0);
}

/* What the configuration gets as capacity of a packed store. */
uint64_t grid_store_capacity(const struct grid_store *store)
{
	uint64_t object = grid_store_object_bytes(store);
	uint64_t pages = (uint64_t)store->options->capacity_batches * store->pages_max;

	if (store->slots == GRID_RECYCLED)
		return object * (pages > FILL_PAGES ? pages : FILL_PAGES);
	/* Twice what is written before it begins anew: nothing is evicted. */
	return 2 * store->options->space_bytes + 8 * object * store->pages_max;
}

static void shuffle(int64_t *places, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		places[i] = i;
	for (uint32_t i = count; i-- > 1;) {
		uint32_t other = (uint32_t)(bench_mix(i) % (i + 1));
		int64_t kept = places[i];

		places[i] = places[other];
		places[other] = kept;
	}
}

void grid_store_plan(struct grid_store *store, uint32_t number)
{
	uint64_t pool_bytes;

	for (uint32_t i = 0; i < store->shape_count; i++) {
		uint32_t pages = store->shapes[i].batch * store->shapes[i].threads;

		store->pages_max = pages > store->pages_max ? pages : store->pages_max;
	}
	if (snprintf(store->folder, sizeof(store->folder), "%s/store-%u", store->options->folder,
		     number) >= (int)sizeof(store->folder))
		grid_die("--folder: too long");
	pool_bytes = 2 * store->pages_max * GRID_PARTS * store->part_bytes;
	if (pool_bytes > store->options->memory_bytes)
		(void)snprintf(store->left_out, sizeof(store->left_out),
			       "its host pool takes %llu MiB (--memory)",
			       (unsigned long long)(pool_bytes >> 20));
	store->places = grid_alloc(2 * (size_t)store->pages_max, sizeof(*store->places));
	shuffle(store->places, 2 * store->pages_max);
}

static void config_set(struct kvc_config *config, const char *path, const char *value)
{
	if (kvc_config_set(config, path, value) < 0)
		grid_die("%s = %s: %s", path, value, kvc_last_error());
}

static void config_further(struct kvc_config *config, const struct grid_options *options)
{
	for (uint32_t i = 0; i < options->setting_count; i++) {
		char *path = strdup(options->settings[i]);
		char *value = path != NULL ? strchr(path, '=') : NULL;

		if (value == NULL)
			grid_die("no memory");
		*value++ = '\0';
		config_set(config, path, value);
		free(path);
	}
}

static struct kvc_config *config_of(const struct grid_store *store)
{
	struct kvc_config *config = NULL;
	char capacity[CONFIG_VALUE];

	if (kvc_config_new(&config) < 0)
		grid_die("%s", kvc_last_error());
	config_set(config, "storage_dirs", store->folder);
	config_set(config, "plugin.posix.active", "true");
	config_set(config, "storage_layout", grid_layout_names[store->layout]);
	config_set(config, "io_engines", grid_engine_names[store->engine]);
	config_set(config, "use_direct_io", store->direct ? "true" : "false");
	config_set(config, "checksum", grid_checksum_names[store->checksum]);
	config_set(config, "verify", "require");
	config_set(config, "durability", "none");
	config_set(config, "identity", "bench");
	config_set(config, "l3_cleaner_enabled", "false");
	if (store->layout == GRID_PACKED) {
		(void)snprintf(capacity, sizeof(capacity), "%llu",
			       (unsigned long long)grid_store_capacity(store));
		config_set(config, "capacity", capacity);
	}
	config_further(config, store->options);
	return config;
}

/* The word after a name in what kvc_store_describe() tells; "" without it. */
static void described(struct kvc_store *store, const char *name, char *out, size_t bytes)
{
	char *text = grid_alloc(1, DESCRIBE_BYTES);
	const char *at;

	(void)kvc_store_describe(store, KVC_FORMAT_TEXT, text, DESCRIBE_BYTES);
	at = strstr(text, name);
	out[0] = '\0';
	if (at != NULL) {
		at += strlen(name);
		at += strspn(at, " ");
		(void)snprintf(out, bytes, "%.*s", (int)strcspn(at, " ,\n"), at);
	}
	free(text);
}

/* A store may fall back to what the machine has: such a cell would not be what it says. */
static void check_granted(struct grid_store *store)
{
	const char *engine = grid_engine_names[store->engine];
	char found[CONFIG_VALUE];

	described(store->store, "\n  io_engine ", found, sizeof(found));
	if (strcmp(found, engine) != 0) {
		(void)snprintf(store->left_out, sizeof(store->left_out),
			       "the I/O engine is %s, not %s", found, engine);
		return;
	}
	described(store->store, "\n  direct_io ", found, sizeof(found));
	if (strcmp(found, store->direct ? "yes" : "no") != 0)
		(void)snprintf(store->left_out, sizeof(store->left_out), "direct I/O: %s", found);
}

static void open_pool(struct grid_store *store)
{
	uint32_t pages = 2 * store->pages_max;
	struct kvc_namespace_params ns = {
		.size = sizeof(ns),
		.model_id = "bench/grid",
		.dtype = "bfloat16",
		.page_tokens = PAGE_TOKENS,
	};
	struct kvc_part parts[GRID_PARTS];
	struct kvc_pool_params pool = {
		.size = sizeof(pool),
		.name = "kv",
		.parts = parts,
		.part_count = GRID_PARTS,
		.host_layout = KVC_LAYOUT_PAGE_FIRST,
		.page_count = pages,
	};

	for (uint32_t i = 0; i < GRID_PARTS; i++)
		parts[i] = (struct kvc_part){
			.size = sizeof(parts[i]),
			.base = store->memory->tensors[i],
			.token_count = (uint64_t)pages * PAGE_TOKENS,
			.layer_count = (uint32_t)(store->part_bytes / GRID_LAYER_BYTES),
			.head_count = 1,
			.head_bytes = GRID_LAYER_BYTES / PAGE_TOKENS,
		};
	if (kvc_namespace_open(store->store, &ns, &store->ns) < 0 ||
	    kvc_pool_open(store->ns, &pool, &store->pool) < 0)
		grid_die("%s: %s", store->folder, kvc_last_error());
}

static void register_tensors(struct grid_store *store)
{
	for (uint32_t i = 0; i < GRID_PARTS; i++) {
		struct kvc_memory memory = {
			.size = sizeof(memory),
			.kind = KVC_MEMORY_HOST,
			.addr = store->memory->tensors[i],
			.bytes = 2 * store->pages_max * store->part_bytes,
		};

		if (kvc_memory_register(store->store, &memory, &store->regions[i]) < 0)
			grid_die("%s: %s", store->folder, kvc_last_error());
	}
}

static void open_store(struct grid_store *store)
{
	struct kvc_config *config = config_of(store);
	int rc = kvc_store_open(config, NULL, &store->store);

	kvc_config_free(config);
	if (rc < 0) {
		(void)snprintf(store->left_out, sizeof(store->left_out), "%s", kvc_last_error());
		return;
	}
	check_granted(store);
	if (store->left_out[0] != '\0')
		return;
	if (store->options->register_memory)
		register_tensors(store);
	open_pool(store);
}

static void close_store(struct grid_store *store)
{
	int rc = kvc_pool_close(store->pool);

	if (rc == 0)
		rc = kvc_namespace_close(store->ns);
	for (uint32_t i = 0; i < GRID_PARTS && rc == 0; i++) {
		if (store->regions[i] != NULL)
			rc = kvc_memory_deregister(store->regions[i]);
		store->regions[i] = NULL;
	}
	if (rc == 0)
		rc = kvc_store_close(store->store);
	if (rc < 0)
		grid_die("%s: closing: %s", store->folder, kvc_last_error());
	store->pool = NULL;
	store->ns = NULL;
	store->store = NULL;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	(void)status;
	(void)kind;
	(void)at;
	return remove(path);
}

static void remove_folder(const struct grid_store *store)
{
	if (nftw(store->folder, remove_entry, 64, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
		grid_die("%s: %s", store->folder, strerror(errno));
}

void grid_store_sync(const struct grid_store *store)
{
	int fd = open(store->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || syncfs(fd) != 0)
		grid_die("%s: %s", store->folder, strerror(errno));
	close(fd);
}

static void make_folder(struct grid_store *store)
{
	remove_folder(store);
	if (mkdir(store->folder, 0700) != 0)
		grid_die("%s: %s", store->folder, strerror(errno));
	store->written_bytes = 0;
	open_store(store);
}

static void set_pages(struct grid_store *store, uint32_t count)
{
	char(*names)[BENCH_KEY_BYTES] = grid_alloc(count, sizeof(*names));
	struct kvc_key *keys = grid_alloc(count, sizeof(*keys));
	struct kvc_result *results = grid_alloc(count, sizeof(*results));
	struct kvc_transfer set = {
		.size = sizeof(set),
		.op = KVC_SET,
		.pool = store->pool,
		.keys = keys,
		.key_count = count,
		.indices = store->places,
		.results = results,
	};

	for (uint32_t i = 0; i < count; i++) {
		bench_key(store->next_page++, names[i]);
		keys[i] = (struct kvc_key){ names[i], BENCH_KEY_BYTES };
	}
	if (kvc_batch_run(store->store, &set, 1) < 0)
		grid_die("%s: filling: %s", store->folder, kvc_last_error());
	if (set.ok_count != count)
		grid_die("%s: filling: %zu of %u pages: %s, %s", store->folder, set.ok_count, count,
			 kvc_status_name(results[set.prefix_count].status),
			 kvc_cause_name(results[set.prefix_count].cause));
	free(results);
	free(keys);
	free(names);
}

/* Writes more than a recycled store can hold, so that from now on each set reuses a slot. */
static void fill_store(struct grid_store *store)
{
	uint32_t pages = 2 * store->pages_max < FILL_PAGES ? 2 * store->pages_max : FILL_PAGES;
	uint64_t bytes = grid_store_capacity(store) * FULL_BY_PERCENT / 100;

	for (uint64_t done = 0; done < bytes; done += pages * grid_store_object_bytes(store))
		set_pages(store, pages);
	grid_store_sync(store);
}

void grid_store_begin(struct grid_store *store)
{
	make_folder(store);
	if (store->left_out[0] != '\0') {
		(void)kvc_store_close(store->store);
		store->store = NULL;
		remove_folder(store);
	} else if (store->layout == GRID_PACKED && store->slots == GRID_RECYCLED) {
		fill_store(store);
	}
}

void grid_store_reopen(struct grid_store *store)
{
	close_store(store);
	open_store(store);
	if (store->left_out[0] != '\0')
		grid_die("%s: opening again: %s", store->folder, store->left_out);
}

void grid_store_make_room(struct grid_store *store)
{
	if ((store->layout == GRID_PACKED && store->slots == GRID_RECYCLED) ||
	    store->written_bytes < store->options->space_bytes)
		return;
	close_store(store);
	make_folder(store);
	if (store->left_out[0] != '\0')
		grid_die("%s: opening again: %s", store->folder, store->left_out);
}

void grid_store_end(struct grid_store *store)
{
	if (store->store != NULL) {
		close_store(store);
		if (!store->options->keep)
			remove_folder(store);
	}
	free(store->places);
	store->places = NULL;
}
