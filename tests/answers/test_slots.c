/* SPDX-License-Identifier: Apache-2.0 */
/* What tools see and do in a packed root: list, stat, where, verify, usage, clear. */
#include "support/support.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES	   20u
#define PART_BYTES 8192u

/* A packed root with a page of one part for each key. */
struct bed {
	const char *root;
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result results[PAGES];
};

static struct kvc_store *open_store(const char *plugin, const char *root)
{
	const struct setup setup = { .plugin = plugin,
				     .roots = root,
				     .layout = "packed",
				     .buffered = strcmp(plugin, "posix") == 0,
				     .settings = { "capacity=32MiB" } };

	return setup_must_open(&setup);
}

static void bed_open_with(struct bed *bed, const char *plugin, const char *root)
{
	const struct kvc_namespace_params params = namespace_params("model");

	memset(bed, 0, sizeof(*bed));
	bed->root = root;
	bed->store = open_store(plugin, root);
	bed->ns = namespace_must_open(bed->store, &params);
	pages_open_simple(&bed->pages, bed->ns, PAGES, PART_BYTES);
	keys_make(&bed->keys, "slots", PAGES);
}

static void bed_open(struct bed *bed, const char *root)
{
	bed_open_with(bed, "posix", root);
}

static void bed_run(struct bed *bed, int op, int status)
{
	if (op == KVC_SET)
		pages_fill_keys(&bed->pages, bed->keys.keys, PAGES);
	else
		pages_wipe(&bed->pages);
	batch(bed->store, &bed->pages, op, bed->keys.keys, PAGES, 0, bed->results);
	expect_all(bed->results, PAGES, status);
	for (size_t i = 0; i < PAGES && op == KVC_GET && status == KVC_OK; i++)
		assert_true(pages_match(&bed->pages, i, key_content(bed->keys.keys[i])));
}

static void bed_close(struct bed *bed)
{
	pages_close(&bed->pages);
	keys_free(&bed->keys);
	assert_int_equal(kvc_namespace_close(bed->ns), 0);
	store_must_close(bed->store);
}

static void put_beside(struct bed *bed)
{
	unsigned char data[100];

	bytes_fill(data, sizeof(data), 1);
	assert_int_equal(kvc_object_put(bed->ns, "notes", key_of("note"), data, sizeof(data), 0, 0),
			 0);
}

/* ---------------------------------------------------------------- list, stat, where */

struct found {
	struct bed *bed;
	unsigned slots;
	unsigned files;
	unsigned named; /* with one of the bed's keys */
	char path[PATH_BYTES];
};

static bool is_of(const struct bed *bed, struct kvc_key key)
{
	for (size_t i = 0; i < PAGES; i++)
		if (key.bytes == bed->keys.keys[i].bytes &&
		    memcmp(key.data, bed->keys.keys[i].data, key.bytes) == 0)
			return true;
	return false;
}

static void check_detail(struct kvc_store *store, const struct kvc_object_info *info)
{
	struct kvc_object_detail detail = { .size = sizeof(detail) };

	assert_int_equal(kvc_object_stat(store, info->root_path, info->path, &detail), 0);
	assert_string_equal(detail.name, info->name);
	assert_int_equal(detail.stored_bytes, info->stored_bytes);
	assert_int_equal(detail.payload_bytes, PART_BYTES);
	assert_int_equal(detail.part_count, 1);
	assert_int_equal(detail.part_bytes[0], PART_BYTES);
	assert_string_equal(detail.checksum_kind, "full");
	assert_true(detail.created_ns > 0 && detail.depth < PAGES);
	assert_true(detail.checksum && detail.group_hash && detail.object_hash);
}

static int note_found(void *context, const struct kvc_object_info *info)
{
	struct found *found = context;

	if (!strstr(info->path, "/slots-8192/seg.1@")) {
		found->files++;
		return 0;
	}
	found->slots++;
	found->named += info->key.data && is_of(found->bed, info->key);
	assert_string_equal(info->ns_id, kvc_namespace_id(found->bed->ns));
	assert_int_equal(info->stored_bytes, PART_BYTES);
	assert_int_equal(info->allocated_bytes, PART_BYTES);
	text_make(found->path, sizeof(found->path), "%s", info->path);
	if (info->key.data)
		check_detail(found->bed->store, info);
	return 0;
}

static struct found list(struct bed *bed, const char *id)
{
	struct found found = { .bed = bed };

	assert_int_equal(kvc_object_list(bed->store, id, note_found, &found), 0);
	return found;
}

static int note_where(void *context, const struct kvc_object_info *info)
{
	text_make(context, PATH_BYTES, "%s", info->path);
	return 0;
}

static void list_with(const char *plugin, const char *root)
{
	struct bed bed;
	struct found found;
	char path[PATH_BYTES], folder[PATH_BYTES];
	struct kvc_object_detail detail = { .size = sizeof(detail) };
	struct kvc_result result;

	bed_open_with(&bed, plugin, root);
	assert_int_equal(list(&bed, NULL).slots, 0);
	bed_run(&bed, KVC_SET, KVC_OK);
	put_beside(&bed);
	found = list(&bed, kvc_namespace_id(bed.ns));
	assert_int_equal(found.slots, PAGES);
	assert_int_equal(found.named, PAGES);
	assert_int_equal(found.files, 1);
	assert_int_equal(list(&bed, "other-0123456789abcdef").slots, 0);
	assert_int_equal(kvc_pool_where(bed.pages.pool, bed.keys.keys[3], note_where, path), 0);
	assert_int_equal(kvc_object_stat(bed.store, bed.root, path, &detail), 0);
	result = do_remove(bed.store, &bed.pages, bed.keys.keys[3]);
	expect_result(result, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(kvc_object_stat(bed.store, bed.root, path, &detail), -ENOENT);
	assert_int_equal(kvc_pool_where(bed.pages.pool, bed.keys.keys[3], note_where, path), 0);
	text_make(folder, sizeof(folder), "%s/slots-8192", kvc_namespace_id(bed.ns));
	assert_string_equal(path, folder);
	assert_int_equal(kvc_object_stat(bed.store, bed.root, path, &detail), -ENOENT);
	found = list(&bed, NULL);
	assert_int_equal(found.slots, PAGES - 1);
	bed_close(&bed);
}

static void test_list(void **state)
{
	(void)state;
	list_with("posix", folder_new("list"));
	list_with("mem", "slots-of-mem");
}

/* Flips a byte of a file below the root. */
static void flip(const struct bed *bed, const char *file, off_t at)
{
	char path[PATH_BYTES];

	text_make(path, sizeof(path), "%s/%s/slots-8192/%s", bed->root, kvc_namespace_id(bed->ns),
		  file);
	file_flip(path, at, 1);
}

static off_t slot_of(const char *path)
{
	return strtol(strchr(path, '@') + 1, NULL, 10);
}

/* An object whose name is lost is still an object, and right. */
static void test_lost_name(void **state)
{
	struct bed bed;
	struct found found;
	struct kvc_object_detail detail = { .size = sizeof(detail) };

	(void)state;
	bed_open(&bed, folder_new("name"));
	bed_run(&bed, KVC_SET, KVC_OK);
	found = list(&bed, NULL);
	flip(&bed, "names.1", 4096 + slot_of(found.path) * 256 + 100);
	found = list(&bed, NULL);
	assert_int_equal(found.slots, PAGES);
	assert_int_equal(found.named, PAGES - 1);
	assert_int_equal(kvc_object_stat(bed.store, bed.root, found.path, &detail), 0);
	assert_int_equal(strncmp(detail.name, "?g-", 3), 0);
	assert_int_equal(detail.part_count, 0);
	bed_run(&bed, KVC_GET, KVC_OK);
	bed_close(&bed);
}

/* ---------------------------------------------------------------- verify */

struct verified {
	unsigned ok;
	unsigned corrupt;
	uint64_t total;
};

static int note_verified(void *context, const struct kvc_object_info *info,
			 const struct kvc_result *result, uint64_t done, uint64_t total)
{
	struct verified *verified = context;

	(void)info;
	assert_true(done <= total);
	verified->total = total;
	verified->ok += result->status == KVC_OK;
	verified->corrupt += result->status == KVC_CORRUPT && result->cause == KVC_CAUSE_CHECKSUM;
	return 0;
}

static struct verified verify(struct bed *bed, int remove)
{
	struct verified verified = { .ok = 0 };

	assert_int_equal(kvc_store_verify(bed->store, NULL, remove, note_verified, &verified), 0);
	return verified;
}

static void test_verify(void **state)
{
	struct bed bed;
	struct found found;
	struct verified verified;

	(void)state;
	bed_open(&bed, folder_new("verify"));
	bed_run(&bed, KVC_SET, KVC_OK);
	put_beside(&bed);
	verified = verify(&bed, 0);
	assert_int_equal(verified.ok, PAGES + 1);
	assert_int_equal(verified.total, PAGES + 1);
	found = list(&bed, NULL);
	flip(&bed, "seg.1", slot_of(found.path) * PART_BYTES + 5);
	for (int remove = 0; remove < 2; remove++) {
		verified = verify(&bed, remove);
		assert_int_equal(verified.ok, PAGES);
		assert_int_equal(verified.corrupt, 1);
	}
	verified = verify(&bed, 0);
	assert_int_equal(verified.ok, PAGES);
	assert_int_equal(verified.corrupt, 0);
	assert_int_equal(list(&bed, NULL).slots, PAGES - 1);
	bed_close(&bed);
}

/* Slots are recycled while they are listed and verified: what is told is right all the same. */
struct watcher {
	struct bed *bed;
	atomic_bool stop;
	unsigned listed;
	unsigned verified;
};

static int watch_listed(void *context, const struct kvc_object_info *info)
{
	struct watcher *watcher = context;

	/* The names of this test's keys, or none. */
	if (info->stored_bytes != PART_BYTES ||
	    !(strstr(info->name, ".kv.") || strncmp(info->name, "?g-", 3) == 0))
		return -EIO;
	watcher->listed++;
	return 0;
}

static int watch_verified(void *context, const struct kvc_object_info *info,
			  const struct kvc_result *result, uint64_t done, uint64_t total)
{
	struct watcher *watcher = context;

	(void)info;
	(void)done;
	(void)total;
	watcher->verified++;
	return result->status == KVC_OK ? 0 : -EIO;
}

static void *watch(void *context)
{
	struct watcher *watcher = context;
	struct kvc_store *store = watcher->bed->store;

	while (!atomic_load(&watcher->stop))
		if (kvc_object_list(store, NULL, watch_listed, watcher) ||
		    kvc_store_verify(store, NULL, 0, watch_verified, watcher))
			return watcher;
	return NULL;
}

static void test_beside_eviction(void **state)
{
	struct watcher watcher = { .listed = 0 };
	struct bed bed;
	pthread_t thread;
	void *failed;

	(void)state;
	bed_open(&bed, folder_new("evict"));
	watcher.bed = &bed;
	assert_int_equal(pthread_create(&thread, NULL, watch, &watcher), 0);
	/* Twice the capacity. */
	for (unsigned round = 0; round < 400; round++) {
		char label[32];

		keys_free(&bed.keys);
		text_make(label, sizeof(label), "round %u", round);
		keys_make(&bed.keys, label, PAGES);
		bed_run(&bed, KVC_SET, KVC_OK);
	}
	atomic_store(&watcher.stop, true);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
	assert_true(watcher.listed > 0 && watcher.verified > 0);
	bed_close(&bed);
}

/* ---------------------------------------------------------------- usage, clear */

static void check_usage(struct bed *bed, int recount, uint64_t objects)
{
	struct kvc_root_usage usage = { .size = sizeof(usage) };
	uint64_t ns_bytes, ns_objects;

	assert_int_equal(kvc_store_usage(bed->store, recount, &usage, 1), 1);
	assert_int_equal(usage.own_objects, objects);
	assert_int_equal(usage.own_bytes, objects * PART_BYTES);
	assert_int_equal(kvc_namespace_usage(bed->ns, &ns_bytes, &ns_objects), 0);
	assert_int_equal(ns_objects, objects);
	assert_int_equal(ns_bytes, objects * PART_BYTES);
}

static void test_usage(void **state)
{
	struct bed bed;

	(void)state;
	bed_open(&bed, folder_new("usage"));
	check_usage(&bed, 0, 0);
	bed_run(&bed, KVC_SET, KVC_OK);
	check_usage(&bed, 0, PAGES);
	check_usage(&bed, 1, PAGES);
	bed_run(&bed, KVC_REMOVE, KVC_OK);
	check_usage(&bed, 1, 0);
	bed_close(&bed);
}

static struct kvc_clear_report clear(struct kvc_store *store, const char *id, int dry_run)
{
	struct kvc_clear_report report = { .size = sizeof(report) };

	assert_int_equal(kvc_namespace_clear(store, id, dry_run, &report), 0);
	return report;
}

/* Another store, with mappings of its own, clears; the first goes on: nothing is found, and what it
 * stores then is found by both. */
static void test_clear(void **state)
{
	struct bed bed, other;
	struct kvc_clear_report report;
	char folder[PATH_BYTES], id[128];

	(void)state;
	bed_open(&bed, folder_new("clear"));
	bed_run(&bed, KVC_SET, KVC_OK);
	put_beside(&bed);
	text_make(id, sizeof(id), "%s", kvc_namespace_id(bed.ns));
	text_make(folder, sizeof(folder), "%s/%s", bed.root, id);
	bed_open(&other, bed.root);
	for (int round = 0; round < 3; round++) {
		const unsigned count = PAGES + (round == 0);

		bed_run(&other, KVC_GET, KVC_OK);
		report = clear(other.store, id, 1);
		assert_int_equal(report.objects, count);
		bed_run(&bed, KVC_GET, KVC_OK);
		report = clear(other.store, id, 0);
		assert_int_equal(report.objects, count);
		assert_int_equal(report.failed, 0);
		assert_false(file_exists(folder));
		bed_run(&bed, KVC_GET, KVC_MISS);
		bed_run(&other, KVC_EXISTS, KVC_MISS);
		assert_int_equal(list(&bed, NULL).slots, 0);
		bed_run(&bed, KVC_SET, KVC_OK);
		assert_true(file_exists(folder));
		bed_run(&bed, KVC_GET, KVC_OK);
	}
	bed_run(&other, KVC_GET, KVC_OK);
	bed_close(&other);
	bed_run(&bed, KVC_GET, KVC_OK);
	bed_close(&bed);
}

/* Sets go on while another process clears again and again: whatever is found is right. */
static int clear_often(void *context)
{
	struct kvc_store *store = open_store("posix", context);
	const struct kvc_namespace_params params = namespace_params("model");
	struct kvc_namespace *ns = namespace_must_open(store, &params);
	struct kvc_clear_report report = { .size = sizeof(report) };
	int rc = 0;

	for (int i = 0; i < 40 && (rc == 0 || rc == -ENOENT); i++) {
		rc = kvc_namespace_clear(store, kvc_namespace_id(ns), 0, &report);
		sleep_ms(5);
	}
	(void)kvc_namespace_close(ns);
	store_must_close(store);
	return rc == 0 || rc == -ENOENT ? 0 : 1;
}

static void test_clear_beside_sets(void **state)
{
	const char *root = folder_new("beside");
	struct bed bed;
	uint64_t end;
	pid_t pid;

	(void)state;
	pid = child_start(clear_often, (void *)(uintptr_t)root);
	bed_open(&bed, root);
	for (end = now_ms() + 400; now_ms() < end;) {
		pages_fill_keys(&bed.pages, bed.keys.keys, PAGES);
		batch(bed.store, &bed.pages, KVC_SET, bed.keys.keys, PAGES, 0, bed.results);
		pages_wipe(&bed.pages);
		batch(bed.store, &bed.pages, KVC_GET, bed.keys.keys, PAGES, 0, bed.results);
		for (size_t i = 0; i < PAGES; i++)
			if (bed.results[i].status == KVC_OK)
				assert_true(
					pages_match(&bed.pages, i, key_content(bed.keys.keys[i])));
			else
				assert_int_equal(bed.results[i].status, KVC_MISS);
	}
	assert_int_equal(child_wait(pid), 0);
	bed_run(&bed, KVC_SET, KVC_OK);
	bed_run(&bed, KVC_GET, KVC_OK);
	assert_int_equal(verify(&bed, 0).ok, PAGES);
	check_usage(&bed, 1, PAGES);
	bed_close(&bed);
}

static void test_memory(void **state)
{
	struct bed bed;
	struct kvc_clear_report report;

	(void)state;
	bed_open_with(&bed, "mem", "cleared-in-mem");
	for (int round = 0; round < 2; round++) {
		bed_run(&bed, KVC_SET, KVC_OK);
		assert_int_equal(verify(&bed, 0).ok, PAGES);
		check_usage(&bed, 1, PAGES);
		report = clear(bed.store, kvc_namespace_id(bed.ns), 0);
		assert_int_equal(report.objects, PAGES);
		bed_run(&bed, KVC_GET, KVC_MISS);
	}
	bed_close(&bed);
}

/* ---------------------------------------------------------------- info, metrics */

static void test_told(void **state)
{
	static const char *const figures[] = { "kvcellar_packed_live_slots",
					       "kvcellar_packed_free_slots",
					       "kvcellar_packed_segment_bytes",
					       "kvcellar_packed_broken" };
	struct bed bed;
	char *text, *metrics;

	(void)state;
	bed_open(&bed, folder_new("told"));
	bed_run(&bed, KVC_SET, KVC_OK);
	text = store_text(bed.store, KVC_FORMAT_TEXT);
	assert_non_null(strstr(text, "storage_layout packed"));
	assert_non_null(strstr(text, "20 live"));
	free(text);
	text = store_text(bed.store, KVC_FORMAT_JSON);
	assert_non_null(strstr(text, "\"index\": {"));
	assert_non_null(strstr(text, "\"live_slots\": 20,"));
	free(text);
	metrics = malloc(1 << 20);
	assert_non_null(metrics);
	assert_true(kvc_metrics_text(bed.store, metrics, 1 << 20) > 0);
	for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
		assert_non_null(strstr(metrics, figures[i]));
	free(metrics);
	bed_close(&bed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_lost_name),
		cmocka_unit_test(test_verify),
		cmocka_unit_test(test_beside_eviction),
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_clear),
		cmocka_unit_test(test_clear_beside_sets),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_told),
	};

	support_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
