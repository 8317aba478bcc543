/* SPDX-License-Identifier: Apache-2.0 */
/* What goes from a packed root when it is full, and what stays. */
#include "packed_store.h"

#include "core/packed.h"
#include "core/pin.h"
#include "core/store.h"

#include <sys/stat.h>

#define WAIT_S 20
#define OTHERS ((size_t)12 << 20)

/* Pages [from, from + BATCH) of a chain, with the page before as their parent. */
static void chain(struct fix *fix, int op, const struct keys *keys, size_t from,
		  struct kvc_result *results)
{
	int64_t pages[BATCH] = { 0 };
	struct kvc_transfer transfer =
		transfer_of(&fix->pages, op, keys->keys + from, BATCH, pages, results);

	for (int64_t i = 0; i < (int64_t)BATCH; i++)
		pages[i] = i;

	if (from > 0)
		transfer.parent = keys->keys[from - 1];
	transfer.depth = (uint32_t)from;
	if (op == KVC_SET)
		pages_fill_keys(&fix->pages, keys->keys + from, BATCH);
	assert_int_equal(kvc_batch_run(fix->store, &transfer, 1), 0);
	transfer_check(&transfer);
}

static void set_chain(struct fix *fix, const struct keys *keys)
{
	struct kvc_result results[BATCH];

	for (size_t from = 0; from < keys->count; from += BATCH) {
		chain(fix, KVC_SET, keys, from, results);
		expect_all(results, BATCH, KVC_OK);
	}
}

/* How many of them are there; *out_prefix: without a gap from the first one on. */
static size_t count_keys(struct fix *fix, const struct keys *keys, size_t *out_prefix)
{
	struct kvc_result results[BATCH];
	size_t found = 0, prefix = 0;

	for (size_t from = 0; from < keys->count; from += BATCH) {
		batch(fix->store, &fix->pages, KVC_EXISTS, keys->keys + from, BATCH, 0, results);
		for (size_t i = 0; i < BATCH; i++) {
			if (results[i].status != KVC_OK)
				continue;
			prefix += prefix == from + i;
			found++;
		}
	}
	if (out_prefix)
		*out_prefix = prefix;
	return found;
}

/* A server has the first pages of a prefix in its own memory and reads only the last ones here. */
static size_t read_the_end_of_a_chain(const char *policy)
{
	const struct setting setting = { .more = policy };
	const char *root = folder_new("packed-order");
	struct kvc_result results[BATCH];
	struct keys keys;
	struct fix fix;
	size_t found;

	fix_open(&fix, root, &setting);
	keys_make(&keys, "chain", 4 * BATCH);
	set_chain(&fix, &keys);
	for (unsigned round = 0; round < 50; round++) {
		char label[32];

		text_make(label, sizeof(label), "others %u", round);
		assert_int_equal(set_many(&fix, label, 4 * BATCH), 4 * BATCH);
		chain(&fix, KVC_GET, &keys, 3 * BATCH, results);
	}
	found = count_keys(&fix, &keys, NULL);
	keys_free(&keys);
	(void)packed_check(fix.store);
	fix_close(&fix);
	return found;
}

static void the_beginning_of_a_chain_stays_with_its_end(void **state)
{
	(void)state;
	assert_int_equal(read_the_end_of_a_chain("eviction=lru"), 4 * BATCH);
}

static void fifo_knows_no_use(void **state)
{
	(void)state;
	assert_int_equal(read_the_end_of_a_chain("eviction=fifo"), 0);
}

static void s3fifo_keeps_what_was_used_again(void **state)
{
	(void)state;
	assert_int_equal(read_the_end_of_a_chain("eviction=s3fifo"), 4 * BATCH);
}

/* HiCacheNixl's cleaner leaves 602 of 752 pages of a chain, and not one that can be used. */
static void a_chain_goes_from_its_end(void **state)
{
	const char *root = folder_new("packed-order");
	size_t found, prefix;
	struct keys keys;
	struct fix fix;

	(void)state;
	fix_open(&fix, root, NULL);
	keys_make(&keys, "chain", 40 * BATCH);
	set_chain(&fix, &keys);
	assert_int_equal(set_many(&fix, "others", 55 * BATCH), 55 * BATCH);
	found = count_keys(&fix, &keys, &prefix);
	assert_true(found < 39 * BATCH);
	assert_true(found > 10 * BATCH);
	assert_true(prefix > found - found / 10);
	keys_free(&keys);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- pins, shares */

static void fix_beside(const struct fix *fix, const char *model, const char *tenant,
		       struct fix *out)
{
	struct kvc_namespace_params params = namespace_params(model);

	params.tenant = tenant;
	out->store = fix->store;
	out->ns = namespace_must_open(fix->store, &params);
	pages_open_simple(&out->pages, out->ns, BATCH, PAGE);
}

static void fix_end(struct fix *fix)
{
	pages_close(&fix->pages);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
}

static void what_is_pinned_stays(void **state)
{
	const char *root = folder_new("packed-order");
	struct fix fix, pinned;

	(void)state;
	fix_open(&fix, root, NULL);
	fix_beside(&fix, "pinned", NULL, &pinned);
	assert_int_equal(set_many(&pinned, "keys", 500), 500);
	assert_int_equal(kvc_pin_set(fix.store->roots[0], kvc_namespace_id(pinned.ns), true), 0);
	assert_int_equal(set_many(&fix, "others", 6000), 6000);
	assert_int_equal(get_many(&pinned, "keys", 500), 500);
	assert_int_equal(kvc_pin_set(fix.store->roots[0], kvc_namespace_id(pinned.ns), false), 0);
	assert_int_equal(set_many(&fix, "more", 12000), 12000);
	assert_true(get_many(&pinned, "keys", 500) < 400);
	(void)packed_check(fix.store);
	fix_end(&pinned);
	fix_close(&fix);
}

/* What was pinned in a former life is pinned again; when all is, a set finds no room. */
static void only_pinned_things(void **state)
{
	const char *root = root_with("packed-order", "keys", 500);
	struct fix fix, other;
	size_t ok, full;

	(void)state;
	fix_open(&fix, root, NULL);
	assert_int_equal(kvc_pin_set(fix.store->roots[0], kvc_namespace_id(fix.ns), true), 0);
	set_counted(&fix, "more", 6000, &ok, &full);
	assert_true(full > 1000);
	assert_int_equal(ok + full, 6000);
	fix_close(&fix);

	fix_open(&fix, root, NULL);
	fix_beside(&fix, "other", NULL, &other);
	set_counted(&other, "keys", 500, &ok, &full);
	assert_true(full > 0);
	assert_int_equal(get_many(&fix, "keys", 500), 500);
	fix_end(&other);
	fix_close(&fix);
}

/* What pins others made by hand: as many as are kept stay, and a warning tells of the rest. */
static void more_pins_than_are_kept(void **state)
{
	const char *root = root_with("packed-order", "keys", 50);
	char path[PATH_BYTES];
	struct fix fix;

	(void)state;
	text_make(path, sizeof(path), "%s/.kvcellar/pins", root);
	assert_int_equal(mkdir(path, 0700), 0);
	for (unsigned i = 0; i < KVC_PINS_MAX + 1; i++) {
		text_make(path, sizeof(path), "%s/.kvcellar/pins/model-%016x", root, i + 1);
		file_write(path, "", 0);
	}
	log_capture();
	fix_open(&fix, root, NULL);
	kvc_pin_look(fix.store->roots[0]);
	assert_int_equal(log_count(KVC_LOG_WARNING, "/.kvcellar/pins", "more than 64"), 1);
	assert_int_equal(kvc_pin_count(fix.store->roots[0]), KVC_PINS_MAX);
	kvc_log_set(NULL, NULL, 0);
	fix_close(&fix);
}

static void a_tenant_keeps_to_its_share(void **state)
{
	const struct setting setting = { .more = "tenant_shares=large=25%" };
	const char *root = folder_new("packed-order");
	struct fix fix, large, second;
	size_t found;

	(void)state;
	fix_open(&fix, root, &setting);
	fix_beside(&fix, "one", "large", &large);
	fix_beside(&fix, "two", "large", &second);
	assert_int_equal(set_many(&fix, "others", 1000), 1000);
	assert_int_equal(set_many(&second, "keys", 500), 500);
	assert_int_equal(set_many(&large, "keys", 5000), 5000);
	/* 4 MiB, and what was in flight; the other namespace of the tenant was older. */
	found = get_many(&large, "keys", 5000);
	assert_true(found > 800);
	assert_true(found + get_many(&second, "keys", 500) <= 1024 + BATCH);
	assert_int_equal(get_many(&fix, "others", 1000), 1000);
	fix_end(&second);
	fix_end(&large);
	fix_close(&fix);
}

/* What a thread stores; several at once, each with a namespace of its own. */
struct storing {
	struct fix fix;
	size_t stored;
	pthread_t thread;
};

static void *store_many(void *argument)
{
	struct storing *storing = argument;

	storing->stored = set_many(&storing->fix, "more", 2000);
	return NULL;
}

/* A tenant with many namespaces, each of which takes segments, takes none of another's share: one
 * after the other, and all at once. 2400 pages leave more than a keeper's reserve in the segments
 * that they need. */
static void a_tenant_takes_no_segments_of_others(void **state)
{
	const struct setting setting = { .more = "tenant_shares=red=25%,blue=75%" };
	const char *root = folder_new("packed-order");
	struct storing red[4];
	struct fix fix, blue;
	char model[8];
	size_t found;

	(void)state;
	fix_open(&fix, root, &setting);
	fix_beside(&fix, "blue", "blue", &blue);
	assert_int_equal(set_many(&blue, "keys", 2400), 2400);
	for (int i = 0; i < 4; i++) {
		text_make(model, sizeof(model), "red%d", i);
		fix_beside(&fix, model, "red", &red[i].fix);
		assert_int_equal(set_many(&red[i].fix, "keys", 2000), 2000);
		found = get_many(&red[i].fix, "keys", 2000);
		(void)printf("%s: %zu\n", model, found);
		assert_true(found > 200 && found <= 1024 + BATCH);
	}
	assert_int_equal(get_many(&blue, "keys", 2400), 2400);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&red[i].thread, NULL, store_many, &red[i]), 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(red[i].thread, NULL), 0);
		assert_int_equal(red[i].stored, 2000);
		fix_end(&red[i].fix);
	}
	assert_int_equal(get_many(&blue, "keys", 2400), 2400);
	fix_end(&blue);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- whole groups */

/* Pages of another size of the same keys; that of another namespace needs their segments. */
static void a_page_goes_with_all_its_parts(void **state)
{
	const char *root = folder_new("packed-order");
	const struct pages_params params = { .name = "mamba",
					     .count = BATCH,
					     .part_bytes = { 3 * PAGE } };
	struct fix fix, mamba, other;
	struct kvc_result one[BATCH], two[BATCH];
	size_t whole = 0;
	struct keys keys;

	(void)state;
	fix_open(&fix, root, NULL);
	mamba = fix;
	pages_open(&mamba.pages, fix.ns, &params);
	fix_beside(&fix, "other", NULL, &other);
	keys_make(&keys, "keys", 16 * BATCH);
	assert_int_equal(set_many(&fix, "keys", keys.count), keys.count);
	assert_int_equal(set_many(&mamba, "keys", keys.count), keys.count);
	assert_int_equal(set_many(&other, "others", 40 * BATCH), 40 * BATCH);
	for (size_t from = 0; from < keys.count; from += BATCH) {
		batch(fix.store, &fix.pages, KVC_EXISTS, keys.keys + from, BATCH, 0, one);
		batch(fix.store, &mamba.pages, KVC_EXISTS, keys.keys + from, BATCH, 0, two);
		for (size_t i = 0; i < BATCH; i++) {
			assert_int_equal(one[i].status, two[i].status);
			whole += one[i].status == KVC_OK;
		}
	}
	assert_true(whole < keys.count);
	keys_free(&keys);
	fix_end(&other);
	pages_close(&mamba.pages);
	fix_close(&fix);
}

/* Whether others hold something colder is looked for seldom; here whenever there is need. */
static void look_again(struct kvc_packed *packed)
{
	for (struct kvc_packed_arena *arena = atomic_load(&packed->arenas); arena;
	     arena = arena->next)
		atomic_store(&arena->colder_after_ns, 0);
}

/* A segment of another size is not cold when pages of its keys were stored here since. */
static void what_was_just_stored_keeps_its_other_parts(void **state)
{
	const char *root = folder_new("packed-order");
	const struct pages_params params = { .name = "mamba",
					     .count = BATCH,
					     .part_bytes = { 3 * PAGE } };
	/* The first segment makes room for the first of them; these lie in the next one. */
	const size_t first = 6 * BATCH, last = 14 * BATCH, in_second = 10 * BATCH;
	struct kvc_result results[BATCH];
	struct fix fix, mamba;
	struct keys keys;

	(void)state;
	fix_open(&fix, root, NULL);
	end_keeper(packed_of(fix.store, 0));
	mamba = fix;
	pages_open(&mamba.pages, fix.ns, &params);
	assert_int_equal(set_many(&fix, "keys", 70 * BATCH), 70 * BATCH);
	keys_make(&keys, "keys", 70 * BATCH);
	for (size_t from = first; from < last; from += BATCH) {
		pages_fill_keys(&mamba.pages, keys.keys + from, BATCH);
		look_again(packed_of(fix.store, 0));
		batch(fix.store, &mamba.pages, KVC_SET, keys.keys + from, BATCH, 0, results);
		expect_all(results, BATCH, KVC_OK);
	}
	for (size_t from = first; from < last; from += BATCH) {
		batch(fix.store, &mamba.pages, KVC_EXISTS, keys.keys + from, BATCH, 0, results);
		expect_all(results, BATCH, KVC_OK);
		batch(fix.store, &fix.pages, KVC_EXISTS, keys.keys + from, BATCH, 0, results);
		if (from < in_second)
			expect_all(results, BATCH, KVC_OK);
	}
	(void)packed_check(fix.store);
	keys_free(&keys);
	pages_close(&mamba.pages);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- space of others */

static uint64_t segment_bytes(const struct fix *fix)
{
	struct kvc_packed_health health;

	kvc_packed_health(kvc_root_packed(fix->store->roots[0], false), &health);
	return health.segment_bytes;
}

static void wait_for_less(const struct fix *fix, uint64_t bytes)
{
	for (unsigned i = 0; i < WAIT_S * 100 && segment_bytes(fix) > bytes; i++)
		assert_int_equal(usleep(10000), 0);
	assert_true(segment_bytes(fix) <= bytes);
}

/* min_free is kept by giving segments back, when it can be. */
static void others_fill_the_disk(void **state)
{
	const struct setting free_8 = { .more = "min_free=8MiB" };
	const struct setting free_all = { .more = "min_free=100%" };
	const char *root = folder_new("packed-order");
	char path[PATH_BYTES], *others;
	uint64_t bytes;
	struct fix fix;

	(void)state;
	mount_tmpfs(root, "size=32m");
	fix_open(&fix, root, &free_8);
	assert_int_equal(set_many(&fix, "keys", 4000), 4000);
	bytes = segment_bytes(&fix);
	assert_true(bytes > 14u << 20);
	text_make(path, sizeof(path), "%s/others", root);
	others = calloc(1, OTHERS);
	assert_non_null(others);
	file_write(path, others, OTHERS);
	free(others);
	/* The others have 12 MiB, 8 stay free: 12 are ours, less what housekeeping takes. */
	wait_for_less(&fix, 12u << 20);
	assert_true(segment_bytes(&fix) > 9u << 20);
	assert_true(get_many(&fix, "keys", 4000) > 1000);
	fix_close(&fix);

	fix_open(&fix, root, &free_all);
	bytes = segment_bytes(&fix);
	assert_int_equal(usleep(2500000), 0);
	assert_int_equal(segment_bytes(&fix), bytes);
	fix_close(&fix);
	mount_end(root);
}

static void the_disk_gets_segments_back(void **state)
{
	const char *root = folder_new("packed-order");
	uint64_t objects = 77, would_objects = 77, bytes = 77, would_bytes = 77, before;
	struct kvc_packed *packed;
	struct fix fix;

	(void)state;
	fix_open(&fix, root, NULL);
	packed = kvc_root_packed(fix.store->roots[0], false);
	assert_int_equal(set_many(&fix, "keys", 3000), 3000);
	before = segment_bytes(&fix);
	assert_int_equal(kvc_packed_give_back(packed, before, false, &objects, &bytes), 0);
	assert_int_equal(objects, 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(
		kvc_packed_give_back(packed, before / 2, true, &would_objects, &would_bytes), 0);
	assert_true(would_bytes >= before / 2);
	assert_int_equal(segment_bytes(&fix), before);
	assert_int_equal(get_many(&fix, "keys", 3000), 3000);
	assert_int_equal(kvc_packed_give_back(packed, before / 2, false, &objects, &bytes), 0);
	assert_int_equal(bytes, would_bytes);
	assert_int_equal(segment_bytes(&fix), before - bytes);
	assert_int_equal(get_many(&fix, "keys", 3000), 3000 - objects);
	assert_true(objects > 1000);
	(void)packed_check(fix.store);
	assert_int_equal(kvc_packed_give_back(packed, 0, false, &objects, &bytes), 0);
	assert_int_equal(segment_bytes(&fix), 0);
	assert_int_equal(set_many(&fix, "again", 500), 500);
	fix_close(&fix);
}

/* ---------------------------------------------------------------- opening, and two roots */

/* What is stored on a full disk can be read by the next process, and makes room for more. */
static void a_full_disk_is_opened(void **state)
{
	static const char *const layouts[] = { "packed", "files" };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		const char *root = folder_new("packed-order");
		const struct setup setup = { .plugin = "posix",
					     .engine = "threads",
					     .roots = root,
					     .buffered = true,
					     .layout = layouts[i],
					     .settings = { "capacity=4MiB",
							   "l3_cleaner_enabled=true" } };
		struct kvc_namespace_params params = namespace_params("full");
		char path[PATH_BYTES], block[PAGE] = "others";
		struct fix fix;
		int fd;

		mount_tmpfs(root, "size=8m");
		for (unsigned opening = 0; opening < 2; opening++) {
			assert_int_equal(setup_open(&setup, &fix.store), 0);
			fix.ns = namespace_must_open(fix.store, &params);
			pages_open_simple(&fix.pages, fix.ns, BATCH, PAGE);
			if (opening == 0)
				assert_int_equal(set_many(&fix, "keys", BATCH), BATCH);
			assert_int_equal(get_many(&fix, "keys", BATCH), BATCH);
			if (opening == 1)
				assert_true(set_many(&fix, "more", 4 * BATCH) > 0);
			fix_close(&fix);
			text_make(path, sizeof(path), "%s/others", root);
			fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
			assert_true(fd >= 0);
			while (write(fd, block, sizeof(block)) == (ssize_t)sizeof(block))
				;
			assert_int_equal(errno, ENOSPC);
			assert_int_equal(close(fd), 0);
		}
		mount_end(root);
	}
}

/* A call that the indexes of several roots answer waits for nothing: 3000 of them would take five
 * minutes if each waited for the usual time. */
static void several_roots_answer_at_once(void **state)
{
	char roots[2 * PATH_BYTES];
	struct kvc_result results[BATCH];
	struct keys keys;
	struct fix fix;

	(void)state;
	text_make(roots, sizeof(roots), "%s,%s", folder_new("packed-order"),
		  folder_new("packed-order"));
	fix_open(&fix, roots, NULL);
	keys_make(&keys, "keys", BATCH);
	assert_int_equal(set_many(&fix, "keys", BATCH), BATCH);
	for (unsigned i = 0; i < 3000; i++) {
		batch(fix.store, &fix.pages, KVC_EXISTS, keys.keys, BATCH, 0, results);
		expect_all(results, BATCH, KVC_OK);
	}
	keys_free(&keys);
	fix_close(&fix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_beginning_of_a_chain_stays_with_its_end),
		cmocka_unit_test(fifo_knows_no_use),
		cmocka_unit_test(s3fifo_keeps_what_was_used_again),
		cmocka_unit_test(a_chain_goes_from_its_end),
		cmocka_unit_test(what_is_pinned_stays),
		cmocka_unit_test(only_pinned_things),
		cmocka_unit_test(more_pins_than_are_kept),
		cmocka_unit_test(a_tenant_keeps_to_its_share),
		cmocka_unit_test(a_tenant_takes_no_segments_of_others),
		cmocka_unit_test(a_page_goes_with_all_its_parts),
		cmocka_unit_test(what_was_just_stored_keeps_its_other_parts),
		cmocka_unit_test(others_fill_the_disk),
		cmocka_unit_test(the_disk_gets_segments_back),
		cmocka_unit_test(a_full_disk_is_opened),
		cmocka_unit_test(several_roots_answer_at_once),
	};

	support_begin();
	mounts_enter();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
