/* SPDX-License-Identifier: Apache-2.0 */
/* connector/batch.c: pages to objects and back to results. */
#include "fake.h"

#include "connector/batch.h"
#include "core/trailer.h"

#include <stdio.h>

#define PAGES	   1500u
#define PART_BYTES 600u
#define STRIDE	   1024u

static struct fake *fake;
static struct kvc_namespace *ns;
static struct kvc_pool *pool;
static uint8_t *memory;
static struct kvc_key keys[PAGES];
static char texts[PAGES][32];
static int64_t indices[PAGES];
static struct kvc_result results[PAGES];
static struct kvc_transfer transfer;

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	fake->attributes.alignment = 1;
	fake_open(fake, 3);
	memory = calloc(PAGES * 2, STRIDE);
	assert_non_null(memory);
	ns = fake_namespace(fake, "model");
	pool = fake_pool(ns, memory, PAGES, 2, PART_BYTES, STRIDE);
	for (uint32_t i = 0; i < PAGES; i++) {
		(void)snprintf(texts[i], sizeof(texts[i]), "key%05u", i);
		keys[i] = (struct kvc_key){ .data = texts[i], .bytes = strlen(texts[i]) };
		indices[i] = i;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_close(ns, pool);
	fake_free(fake);
	free(memory);
	return 0;
}

static void prepare(uint32_t op, size_t count)
{
	memset(results, 0xff, sizeof(results));
	transfer = (struct kvc_transfer){ .size = sizeof(transfer),
					  .op = op,
					  .pool = pool,
					  .keys = keys,
					  .key_count = count,
					  .indices = indices,
					  .results = results,
					  .ok_count = 99,
					  .prefix_count = 99 };
}

static void run(void)
{
	assert_int_equal(kvc_batch_run(&fake->store, &transfer, 1), 0);
}

static void expect(size_t i, int status, int cause)
{
	if (results[i].status != status || results[i].cause != cause)
		fail_msg("page %zu: %s/%s, expected %s/%s", i, kvc_status_name(results[i].status),
			 kvc_cause_name(results[i].cause), kvc_status_name(status),
			 kvc_cause_name(cause));
}

static void set(size_t count)
{
	prepare(KVC_SET, count);
	run();
	assert_int_equal(transfer.ok_count, count);
}

/* The trailer of the object of a key. */
static struct kvc_trailer trailer_of(const char *key)
{
	struct kvc_trailer trailer = { .major = 0 };

	for (size_t i = 0; i < fake->object_count; i++) {
		const struct fake_object *object = &fake->objects[i];
		const char *name = strrchr(object->name, '/');

		if (!object->data || !name || strncmp(name + 1, key, strlen(key)) != 0)
			continue;
		assert_int_equal(
			kvc_trailer_decode(object->data + object->bytes - KVC_TRAILER_BYTES,
					   &trailer),
			0);
		return trailer;
	}
	fail_msg("no object of %s", key);
	return trailer;
}

/* ---------------------------------------------------------------- what is refused */

static int refused(const char *text)
{
	const int rc = kvc_batch_run(&fake->store, &transfer, 1);

	if (rc && !strstr(kvc_last_error(), text))
		fail_msg("\"%s\" does not name \"%s\"", kvc_last_error(), text);
	return rc;
}

static void what_makes_no_sense_is_refused_whole(void **state)
{
	const struct kvc_buffer buffers[4] = { { memory, PART_BYTES } };
	struct kvc_key none = { .data = NULL, .bytes = 3 };

	(void)state;
	prepare(KVC_GET, 2);
	assert_int_equal(kvc_batch_run(NULL, &transfer, 1), -EINVAL);
	assert_int_equal(kvc_batch_run(&fake->store, NULL, 1), -EINVAL);
	assert_int_equal(kvc_batch_run(&fake->store, NULL, 0), 0);
	transfer.op = KVC_OPERATION_COUNT;
	assert_int_equal(refused("op"), -EINVAL);
	prepare(KVC_GET, 2);
	transfer.flags = 8;
	assert_int_equal(refused("flags"), -EINVAL);
	prepare(KVC_GET, 2);
	transfer.pool = NULL;
	assert_int_equal(refused("pool"), -EINVAL);
	prepare(KVC_GET, 2);
	transfer.keys = NULL;
	assert_int_equal(refused("keys"), -EINVAL);
	prepare(KVC_GET, 2);
	transfer.results = NULL;
	assert_int_equal(refused("results"), -EINVAL);
	prepare(KVC_GET, 2);
	transfer.indices = NULL;
	assert_int_equal(refused("indices"), -EINVAL);
	transfer.buffers = buffers;
	assert_int_equal(refused("buffers"), -EINVAL);
	prepare(KVC_GET, 1);
	transfer.keys = &none;
	assert_int_equal(refused("key"), -EINVAL);
	prepare(KVC_GET, 1);
	none.data = "x";
	none.bytes = SIZE_MAX;
	transfer.keys = &none;
	assert_int_equal(refused("key"), -EINVAL);
	prepare(KVC_GET, 2);
	transfer.size = 8;
	assert_int_equal(refused("kvc_transfer"), -EINVAL);
	assert_int_equal(results[0].status, 0xffff);
	assert_int_equal(fake->accepted, fake->completed);
}

static void sizes_grow_at_the_end_only(void **state)
{
	struct {
		struct kvc_transfer transfer;
		uint64_t more;
	} grown[2];

	(void)state;
	set(2);
	prepare(KVC_GET, 1);
	grown[0].transfer = grown[1].transfer = transfer;
	grown[0].transfer.size = grown[1].transfer.size = sizeof(grown[0]);
	grown[1].transfer.keys = &keys[1];
	grown[1].transfer.results = &results[1];
	grown[0].more = 0;
	grown[1].more = 7;
	assert_int_equal(kvc_batch_run(&fake->store, &grown[0].transfer, 2), -E2BIG);
	grown[1].more = 0;
	assert_int_equal(kvc_batch_run(&fake->store, &grown[0].transfer, 2), 0);
	expect(0, KVC_OK, KVC_CAUSE_NONE);
	expect(1, KVC_OK, KVC_CAUSE_NONE);
	grown[1].transfer.size = sizeof(struct kvc_transfer);
	assert_int_equal(kvc_batch_run(&fake->store, &grown[0].transfer, 2), -EINVAL);
}

/* ---------------------------------------------------------------- pages */

static void r19_any_number_of_pages(void **state)
{
	static const size_t counts[] = { 0, 1, 127, 128, 129, 220 };

	(void)state;
	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		for (size_t i = 0; i < counts[c] * 2 * STRIDE; i++)
			memory[i] = (uint8_t)(i * 7 + c);
		prepare(KVC_SET, counts[c]);
		transfer.flags = KVC_TRANSFER_OVERWRITE;
		run();
		assert_int_equal(transfer.ok_count, counts[c]);
		assert_int_equal(transfer.prefix_count, counts[c]);
		memset(memory, 0xaa, counts[c] * 2 * STRIDE);
		prepare(KVC_GET, counts[c]);
		run();
		assert_int_equal(transfer.ok_count, counts[c]);
		for (size_t i = 0; i < counts[c] * 2 * STRIDE; i++)
			assert_int_equal(memory[i],
					 i % STRIDE < PART_BYTES ? (uint8_t)(i * 7 + c) : 0xaa);
	}
}

static void more_pages_than_a_chunk_holds(void **state)
{
	(void)state;
	prepare(KVC_EXISTS, PAGES);
	transfer.indices = NULL;
	run();
	for (size_t i = 0; i < PAGES; i++)
		expect(i, KVC_MISS, KVC_CAUSE_ABSENT);
	assert_int_equal(transfer.ok_count, 0);
}

static void r20_each_page_has_its_own_result(void **state)
{
	(void)state;
	set(20);
	indices[3] = PAGES;
	indices[5] = -1;
	keys[7] = (struct kvc_key){ .data = "absent", .bytes = 6 };
	prepare(KVC_GET, 20);
	run();
	for (size_t i = 0; i < 20; i++) {
		if (i == 3 || i == 5)
			expect(i, KVC_ERROR, KVC_CAUSE_INDEX);
		else if (i == 7)
			expect(i, KVC_MISS, KVC_CAUSE_ABSENT);
		else
			expect(i, KVC_OK, KVC_CAUSE_NONE);
	}
	assert_int_equal(results[3].error, ERANGE);
	assert_int_equal(transfer.ok_count, 17);
	assert_int_equal(transfer.prefix_count, 3);
	prepare(KVC_SET, 20);
	run();
	expect(0, KVC_OK, KVC_CAUSE_EXISTED);
	expect(7, KVC_OK, KVC_CAUSE_NONE);
	expect(3, KVC_ERROR, KVC_CAUSE_INDEX);
}

static void strides_of_indices(void **state)
{
	int64_t spread[8] = { 5, -1, 6, -1, 7 };

	(void)state;
	prepare(KVC_SET, 3);
	transfer.indices = spread;
	transfer.index_stride = 2;
	run();
	assert_int_equal(transfer.ok_count, 3);
	prepare(KVC_SET, 1);
	transfer.indices = spread;
	transfer.index_stride = SIZE_MAX; /* one page: it is never used */
	run();
	assert_int_equal(transfer.ok_count, 1);
}

static void buffers_instead_of_memory(void **state)
{
	struct kvc_pool *loose = NULL;
	uint8_t bytes[4][PART_BYTES];
	struct kvc_buffer buffers[4];

	(void)state;
	loose = fake_pool(ns, NULL, 0, 2, PART_BYTES, STRIDE);
	for (int i = 0; i < 4; i++) {
		buffers[i] = (struct kvc_buffer){ bytes[i], PART_BYTES };
		memset(bytes[i], i + 1, PART_BYTES);
	}
	prepare(KVC_SET, 2);
	transfer.pool = loose;
	assert_int_equal(refused("buffers"), -EINVAL);
	transfer.buffers = buffers;
	run();
	assert_int_equal(transfer.ok_count, 2);
	memset(bytes, 0, sizeof(bytes));
	prepare(KVC_GET, 2);
	transfer.pool = loose;
	transfer.buffers = buffers;
	run();
	assert_int_equal(transfer.ok_count, 2);
	for (int i = 0; i < 4; i++)
		assert_int_equal(bytes[i][PART_BYTES - 1], i + 1);
	buffers[2].bytes--;
	prepare(KVC_GET, 2);
	transfer.pool = loose;
	transfer.buffers = buffers;
	run();
	expect(0, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(results[1].status, KVC_ERROR);
	/* The same objects as those of pages in memory. */
	prepare(KVC_EXISTS, 2);
	run();
	assert_int_equal(transfer.ok_count, 2);
	assert_int_equal(kvc_pool_close(loose), 0);
}

/* ---------------------------------------------------------------- prefixes */

static void exists_may_stop_at_the_first_miss(void **state)
{
	uint32_t accepted;

	(void)state;
	set(10);
	keys[4] = (struct kvc_key){ .data = "absent", .bytes = 6 };
	prepare(KVC_EXISTS, PAGES);
	transfer.flags = KVC_TRANSFER_STOP_AT_MISS;
	accepted = fake->accepted;
	run();
	for (size_t i = 0; i < 4; i++)
		expect(i, KVC_OK, KVC_CAUSE_NONE);
	expect(4, KVC_MISS, KVC_CAUSE_ABSENT);
	for (size_t i = 5; i < PAGES; i++)
		expect(i, KVC_SKIPPED, KVC_CAUSE_PREFIX_ENDED);
	assert_int_equal(transfer.ok_count, 4);
	assert_int_equal(transfer.prefix_count, 4);
	assert_true(fake->accepted - accepted < PAGES); /* it did not ask for all */
	/* A flag that the operation does not have is refused: it may mean something once. */
	prepare(KVC_GET, 10);
	transfer.flags = KVC_TRANSFER_STOP_AT_MISS;
	assert_int_equal(kvc_batch_run(&fake->store, &transfer, 1), -EINVAL);
	transfer.flags = KVC_TRANSFER_OVERWRITE;
	assert_int_equal(kvc_batch_run(&fake->store, &transfer, 1), -EINVAL);
}

/* Two prefixes in one call, over several roots: each ends at its own first miss, and little of what
 * comes after it is asked for. */
static void each_prefix_ends_by_itself(void **state)
{
	struct kvc_transfer both[2];
	uint32_t accepted;

	(void)state;
	set(200);
	for (size_t miss = 0; miss < 100; miss += miss < 20 ? 1 : 20) {
		const struct kvc_key kept[2] = { keys[miss], keys[199 - miss / 2] };

		keys[miss] = (struct kvc_key){ .data = "absent", .bytes = 6 };
		keys[199 - miss / 2] = keys[miss];
		prepare(KVC_EXISTS, 100);
		transfer.flags = KVC_TRANSFER_STOP_AT_MISS;
		both[0] = both[1] = transfer;
		both[1].keys = keys + 100;
		both[1].results = results + 100;
		accepted = fake->accepted;
		assert_int_equal(kvc_batch_run(&fake->store, both, 2), 0);
		assert_int_equal(both[0].prefix_count, miss);
		assert_int_equal(both[1].prefix_count, 99 - miss / 2);
		expect(miss, KVC_MISS, KVC_CAUSE_ABSENT);
		expect(199 - miss / 2, KVC_MISS, KVC_CAUSE_ABSENT);
		for (size_t i = miss + 1; i < 100; i++)
			expect(i, KVC_SKIPPED, KVC_CAUSE_PREFIX_ENDED);
		if (miss == 0)
			assert_true(fake->accepted - accepted < 180);
		keys[miss] = kept[0];
		keys[199 - miss / 2] = kept[1];
	}
}

static void the_page_before_is_noted(void **state)
{
	struct kvc_trailer first, second, third;

	(void)state;
	prepare(KVC_SET, 3);
	transfer.depth = 40;
	run();
	first = trailer_of("key00000");
	second = trailer_of("key00001");
	third = trailer_of("key00002");
	assert_int_equal(first.parent_g, 0);
	assert_int_equal(first.depth, 40);
	assert_int_equal(second.parent_g, first.g);
	assert_int_equal(second.depth, 41);
	assert_int_equal(third.parent_g, second.g);
	prepare(KVC_SET, 1);
	transfer.keys = &keys[3];
	transfer.parent = keys[2];
	transfer.depth = 43;
	run();
	assert_int_equal(trailer_of("key00003").parent_g, third.g);
}

/* ---------------------------------------------------------------- several transfers, objects */

static void transfers_of_several_pools_in_one_call(void **state)
{
	struct kvc_pool *other = fake_pool(ns, memory + PAGES * STRIDE, PAGES / 2, 1, 100, 128);
	struct kvc_result more[5];
	struct kvc_transfer both[2];

	(void)state;
	prepare(KVC_SET, 5);
	both[0] = both[1] = transfer;
	both[1].pool = other; /* another fingerprint: other objects */
	both[1].results = more;
	assert_int_equal(kvc_batch_run(&fake->store, both, 2), 0);
	assert_int_equal(both[0].ok_count, 5);
	assert_int_equal(both[1].ok_count, 5);
	assert_int_equal(more[4].cause, KVC_CAUSE_NONE);
	assert_int_equal(kvc_pool_close(other), 0);
}

static int64_t no_space_for_one(struct fake *f, const struct kvc_descriptor *d,
				struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_WRITE && strstr(d->name, "key00002") && strstr(d->name, "_v") ?
		       -ENOSPC :
		       FAKE_NORMAL;
}

/* In nixl naming each part is an object: a page is as good as the worst of them. */
static void a_page_of_several_objects_is_whole_or_not(void **state)
{
	(void)state;
	fake_close(ns, pool);
	fake_free(fake);
	fake = fake_new();
	fake->attributes.alignment = 1;
	fake->settings.naming = KVC_NAMING_NIXL;
	fake_open(fake, 1);
	ns = fake_namespace(fake, "model");
	pool = fake_pool(ns, memory, PAGES, 2, PART_BYTES, STRIDE);
	fake->hook = no_space_for_one;
	prepare(KVC_SET, 4);
	run();
	expect(1, KVC_OK, KVC_CAUSE_NONE);
	expect(2, KVC_FULL, KVC_CAUSE_NO_SPACE);
	expect(3, KVC_OK, KVC_CAUSE_NONE);
	assert_int_equal(transfer.prefix_count, 2);
	prepare(KVC_EXISTS, 4);
	run();
	expect(2, KVC_MISS, KVC_CAUSE_ABSENT);
	assert_int_equal(transfer.ok_count, 3);
	fake->hook = NULL;
	prepare(KVC_SET, 4);
	run();
	expect(1, KVC_OK, KVC_CAUSE_EXISTED);
	expect(2, KVC_OK, KVC_CAUSE_NONE); /* one of its objects was written */
	/* R17: what is no file name is refused, one by one. */
	keys[1] = (struct kvc_key){ .data = "a/b", .bytes = 3 };
	prepare(KVC_SET, 4);
	run();
	expect(0, KVC_OK, KVC_CAUSE_EXISTED);
	expect(1, KVC_ERROR, KVC_CAUSE_NAME);
	expect(2, KVC_OK, KVC_CAUSE_EXISTED);
}

static void r13_only_the_writer_stores_replicated_pages(void **state)
{
	struct kvc_namespace_params params = { .size = sizeof(params),
					       .model_id = "mla",
					       .page_tokens = 4,
					       .is_mla = 1,
					       .tp_size = 2,
					       .tp_rank = 1 };
	struct kvc_namespace *other, *writer;
	struct kvc_pool *rank1, *rank0;
	uint32_t accepted;

	(void)state;
	assert_int_equal(kvc_namespace_open(&fake->store, &params, &other), 0);
	params.tp_rank = 0;
	assert_int_equal(kvc_namespace_open(&fake->store, &params, &writer), 0);
	rank1 = fake_pool(other, memory, PAGES, 1, PART_BYTES, STRIDE);
	rank0 = fake_pool(writer, memory, PAGES, 1, PART_BYTES, STRIDE);
	accepted = fake->accepted;
	prepare(KVC_SET, 3);
	transfer.pool = rank1;
	run();
	expect(2, KVC_OK, KVC_CAUSE_NOT_WRITER);
	assert_int_equal(transfer.ok_count, 3);
	assert_int_equal(fake->accepted, accepted);
	prepare(KVC_GET, 3);
	transfer.pool = rank1;
	run();
	expect(0, KVC_MISS, KVC_CAUSE_ABSENT);
	prepare(KVC_SET, 3);
	transfer.pool = rank0;
	run();
	prepare(KVC_GET, 3);
	transfer.pool = rank1;
	run();
	assert_int_equal(transfer.ok_count, 3);
	fake_close(other, rank1);
	fake_close(writer, rank0);
}

static int64_t reads_of_rank_0_fail(struct fake *f, const struct kvc_descriptor *d,
				    struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_READ && strstr(d->name, "_0_2") ? -EIO : FAKE_NORMAL;
}

/* R23, R12: a mark is of one rank's object. */
static void a_mark_of_one_rank_is_not_anothers(void **state)
{
	struct kvc_namespace_params params = {
		.size = sizeof(params), .model_id = "tp", .page_tokens = 4, .tp_size = 2
	};
	struct kvc_namespace *spaces[2];
	struct kvc_pool *ranks[2];

	(void)state;
	for (uint32_t r = 0; r < 2; r++) {
		params.tp_rank = r;
		assert_int_equal(kvc_namespace_open(&fake->store, &params, &spaces[r]), 0);
		ranks[r] = fake_pool(spaces[r], memory, PAGES, 1, PART_BYTES, STRIDE);
		prepare(KVC_SET, 1);
		transfer.pool = ranks[r];
		run();
		expect(0, KVC_OK, KVC_CAUSE_NONE);
	}
	fake->hook = reads_of_rank_0_fail;
	for (int i = 0; i < 3; i++) {
		prepare(KVC_GET, 1);
		transfer.pool = ranks[0];
		run();
	}
	expect(0, KVC_MISS, KVC_CAUSE_MARKED);
	prepare(KVC_GET, 1);
	transfer.pool = ranks[1];
	run();
	expect(0, KVC_OK, KVC_CAUSE_NONE);
	for (uint32_t r = 0; r < 2; r++)
		fake_close(spaces[r], ranks[r]);
}

static void counters_follow_the_results(void **state)
{
	struct kvc_stats stats = { .size = sizeof(stats) };

	(void)state;
	set(4);
	prepare(KVC_GET, 5);
	run();
	assert_int_equal(kvc_counters_read(fake->store.counters, &stats), 0);
	assert_int_equal(stats.operations[KVC_SET].pages, 4);
	assert_int_equal(stats.operations[KVC_SET].calls, 1);
	assert_int_equal(stats.operations[KVC_SET].bytes, 4 * 2 * PART_BYTES);
	assert_int_equal(stats.operations[KVC_GET].statuses[KVC_OK], 4);
	assert_int_equal(stats.operations[KVC_GET].causes[KVC_CAUSE_ABSENT], 1);
}

/* R16, R17: keys longer than a file name, and of any bytes. */
static void keys_of_any_bytes_and_length(void **state)
{
	static char longer[3000];
	struct kvc_key odd[] = { { "", 0 },	   { "../../etc/x", 11 }, { "a/b", 3 },
				 { "a%2Fb", 5 },   { "\0", 1 },		  { "\xff\n", 2 },
				 { longer, 3000 }, { longer, 2999 } };

	(void)state;
	memset(longer, 'k', sizeof(longer));
	prepare(KVC_SET, 8);
	transfer.keys = odd;
	run();
	assert_int_equal(transfer.ok_count, 8);
	for (size_t i = 0; i < 8; i++)
		expect(i, KVC_OK, KVC_CAUSE_NONE); /* none is another's */
	prepare(KVC_GET, 8);
	transfer.keys = odd;
	run();
	assert_int_equal(transfer.ok_count, 8);
	/* The trailer has the whole name, or its length and hash. */
	assert_true(trailer_of("%h-").name_bytes >= 2999);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_makes_no_sense_is_refused_whole),
		TEST(sizes_grow_at_the_end_only),
		TEST(r19_any_number_of_pages),
		TEST(more_pages_than_a_chunk_holds),
		TEST(r20_each_page_has_its_own_result),
		TEST(strides_of_indices),
		TEST(buffers_instead_of_memory),
		TEST(exists_may_stop_at_the_first_miss),
		TEST(each_prefix_ends_by_itself),
		TEST(the_page_before_is_noted),
		TEST(transfers_of_several_pools_in_one_call),
		TEST(a_page_of_several_objects_is_whole_or_not),
		TEST(r13_only_the_writer_stores_replicated_pages),
		TEST(a_mark_of_one_rank_is_not_anothers),
		TEST(counters_follow_the_results),
		TEST(keys_of_any_bytes_and_length),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
