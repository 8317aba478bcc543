/* SPDX-License-Identifier: Apache-2.0 */
/* core/region.c, core/sized.c: registered memory, and who may let it go when. */
#include "fake.h"

#include "core/region.h"
#include "core/sized.h"

static struct fake *fake;
static uint8_t memory[65536];

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	fake_open(fake, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	assert_int_equal(fake_counter(fake, KVC_COUNTER_HOST_REGISTRATIONS), 0);
	assert_int_equal(atomic_load(&fake->store.children), 0);
	fake_free(fake);
	return 0;
}

static struct kvc_memory at(size_t from, size_t bytes)
{
	return (struct kvc_memory){ .size = sizeof(struct kvc_memory),
				    .addr = memory + from,
				    .bytes = bytes };
}

static int add(size_t from, size_t bytes, struct kvc_region **out)
{
	const struct kvc_memory m = at(from, bytes);

	return kvc_memory_register(&fake->store, &m, out);
}

static void what_makes_no_sense_is_refused(void **state)
{
	struct {
		struct kvc_memory memory;
		uint64_t more;
	} larger = { .memory = at(0, 10) };
	struct kvc_memory m = at(0, 10);
	struct kvc_region *region = NULL;

	(void)state;
	assert_int_equal(kvc_memory_register(NULL, &m, &region), -EINVAL);
	assert_int_equal(kvc_memory_register(&fake->store, NULL, &region), -EINVAL);
	assert_int_equal(kvc_memory_register(&fake->store, &m, NULL), -EINVAL);
	m.size = sizeof(m) - 1;
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), -EINVAL);
	m = at(0, 0);
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), -EINVAL);
	m = at(0, SIZE_MAX);
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), -EINVAL);
	m = at(0, 10);
	m.addr = NULL;
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), -EINVAL);
	m = at(0, 10);
	m.kind = KVC_MEMORY_CUDA;
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), -ENOTSUP);
	m.kind = 77;
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), -ENOTSUP);
	larger.memory.size = sizeof(larger);
	larger.more = 1;
	assert_int_equal(kvc_memory_register(&fake->store, &larger.memory, &region), -E2BIG);
	assert_null(region);
	larger.more = 0;
	assert_int_equal(kvc_memory_register(&fake->store, &larger.memory, &region), 0);
	assert_int_equal(kvc_memory_deregister(region), 0);
	assert_int_equal(kvc_memory_deregister(NULL), 0);
}

static void content_is_not_lost_unasked(void **state)
{
	struct kvc_memory m = at(0, 10);
	struct kvc_region *region;

	(void)state;
	fake_root(fake, 0)->attributes.flags |= KVC_ATTRIBUTE_REGISTER_DESTROYS;
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), -EPERM);
	m.flags = KVC_MEMORY_DISCARD;
	assert_int_equal(kvc_memory_register(&fake->store, &m, &region), 0);
	assert_int_equal(kvc_memory_deregister(region), 0);
}

static void overlaps_are_refused_the_same_again_is_counted(void **state)
{
	struct kvc_region *first, *again, *next, *none = NULL;

	(void)state;
	assert_int_equal(add(1000, 1000, &first), 0);
	assert_int_equal(add(1000, 1000, &again), 0);
	assert_ptr_equal(first, again);
	assert_int_equal(fake->registered, 1);
	assert_int_equal(add(1999, 10, &none), -EEXIST);
	assert_int_equal(add(0, 1001, &none), -EEXIST);
	assert_int_equal(add(1100, 10, &none), -EEXIST);
	assert_int_equal(add(0, 5000, &none), -EEXIST);
	assert_int_equal(add(1000, 999, &none), -EEXIST);
	assert_null(none);
	assert_int_equal(add(2000, 1000, &next), 0);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_HOST_REGISTRATIONS), 2);
	assert_int_equal(kvc_memory_deregister(first), 0);
	assert_int_equal(fake->registered, 2);
	assert_int_equal(kvc_memory_deregister(again), 0);
	assert_int_equal(fake->registered, 1);
	assert_int_equal(kvc_memory_deregister(next), 0);
	assert_int_equal(fake->registered, 0);
}

static void a_plugin_that_refuses_is_no_failure(void **state)
{
	struct kvc_region *region;

	(void)state;
	fake->register_error = -ENOMEM;
	assert_int_equal(add(0, 10, &region), 0);
	assert_int_equal(region->registration, 0);
	fake->register_error = 0;
	assert_int_equal(kvc_memory_deregister(region), 0);
}

static void only_what_lies_in_it_whole_is_found(void **state)
{
	struct kvc_regions *regions;
	struct kvc_region *region;

	(void)state;
	assert_null(kvc_regions_acquire(&fake->store));
	assert_null(kvc_regions_find(NULL, memory, 1));
	kvc_regions_release(NULL);
	assert_int_equal(add(100, 50, &region), 0);
	regions = kvc_regions_acquire(&fake->store);
	assert_ptr_equal(kvc_regions_find(regions, memory + 100, 50), region);
	assert_ptr_equal(kvc_regions_find(regions, memory + 149, 1), region);
	assert_ptr_equal(kvc_regions_find(regions, memory + 150, 0), region);
	assert_null(kvc_regions_find(regions, memory + 99, 1));
	assert_null(kvc_regions_find(regions, memory + 100, 51));
	assert_null(kvc_regions_find(regions, memory + 149, UINT64_MAX));
	assert_null(kvc_regions_find(regions, memory + 150, 1));
	kvc_regions_release(regions);
	assert_int_equal(kvc_memory_deregister(region), 0);
}

static void what_a_run_holds_stays(void **state)
{
	struct kvc_region *first, *second;
	struct kvc_regions *held;

	(void)state;
	assert_int_equal(add(0, 100, &first), 0);
	held = kvc_regions_acquire(&fake->store);
	/* Registering goes on meanwhile; what came later is not the run's. */
	assert_int_equal(add(200, 100, &second), 0);
	assert_int_equal(kvc_memory_deregister(first), -EBUSY);
	assert_int_equal(kvc_memory_deregister(second), 0);
	assert_ptr_equal(kvc_regions_find(held, memory, 100), first);
	assert_null(kvc_regions_find(held, memory + 200, 1));
	kvc_regions_release(held);
	assert_int_equal(kvc_memory_deregister(first), 0);
}

/* Runs that follow one another without a gap do not hold up the one who wants its memory back. */
static void a_region_that_leaves_is_not_used_anew(void **state)
{
	struct kvc_region *region, *again, *other = NULL;
	struct kvc_regions *before, *after;

	(void)state;
	assert_int_equal(add(0, 100, &region), 0);
	before = kvc_regions_acquire(&fake->store);
	assert_int_equal(kvc_memory_deregister(region), -EBUSY);
	after = kvc_regions_acquire(&fake->store);
	assert_null(kvc_regions_find(after, memory, 100));
	assert_int_equal(kvc_memory_deregister(region), -EBUSY);
	assert_int_equal(add(50, 100, &other), -EEXIST);
	assert_null(other);
	kvc_regions_release(before);
	assert_int_equal(kvc_memory_deregister(region), 0);
	kvc_regions_release(after);

	/* Registered again meanwhile, it is there for both. */
	assert_int_equal(add(0, 100, &region), 0);
	before = kvc_regions_acquire(&fake->store);
	assert_int_equal(kvc_memory_deregister(region), -EBUSY);
	assert_int_equal(add(0, 100, &again), 0);
	assert_ptr_equal(again, region);
	after = kvc_regions_acquire(&fake->store);
	assert_ptr_equal(kvc_regions_find(after, memory, 100), region);
	kvc_regions_release(after);
	kvc_regions_release(before);
	assert_int_equal(kvc_memory_deregister(region), 0);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_HOST_REGISTRATIONS), 1);
	assert_int_equal(kvc_memory_deregister(again), 0);
}

static atomic_bool ends;

static void *runs(void *context)
{
	(void)context;
	while (!atomic_load(&ends)) {
		struct kvc_regions *held = kvc_regions_acquire(&fake->store);
		const struct kvc_region *region = kvc_regions_find(held, memory, 10);

		/* Reading it is what a run does: it must not be freed under it. */
		if (region && region->memory.addr != memory)
			abort();
		kvc_regions_release(held);
	}
	return NULL;
}

static void deregistering_races_with_runs(void **state)
{
	pthread_t threads[3];
	unsigned done = 0;

	(void)state;
	atomic_store(&ends, false);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, runs, NULL), 0);
	for (int i = 0; i < 2000; i++) {
		struct kvc_region *region, *beside;

		assert_int_equal(add(0, 100, &region), 0);
		assert_int_equal(add(4096, 100, &beside), 0);
		while (kvc_memory_deregister(region))
			done++;
		while (kvc_memory_deregister(beside))
			done++;
	}
	atomic_store(&ends, true);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	(void)done;
}

static void sized_structs_have_one_rule(void **state)
{
	uint8_t data[16] = { 0 };

	(void)state;
	assert_int_equal(kvc_struct_check(data, 8, 8, "x"), 0);
	assert_int_equal(kvc_struct_check(data, 7, 8, "struct x"), -EINVAL);
	assert_non_null(strstr(kvc_last_error(), "struct x"));
	assert_int_equal(kvc_struct_check(data, 0, 8, "x"), -EINVAL);
	assert_int_equal(kvc_struct_check(data, 16, 8, "x"), 0);
	data[15] = 1;
	assert_int_equal(kvc_struct_check(data, 16, 8, "x"), -E2BIG);
	assert_int_equal(kvc_struct_check(data, 15, 8, "x"), 0);
	assert_int_equal(kvc_struct_output(data, 7, 8, "x"), -EINVAL);
	data[7] = 1;
	assert_int_equal(kvc_struct_output(data, 16, 8, "x"), 0);
	assert_int_equal(data[7], 1);
	assert_int_equal(data[15], 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(what_makes_no_sense_is_refused),
		TEST(content_is_not_lost_unasked),
		TEST(overlaps_are_refused_the_same_again_is_counted),
		TEST(a_plugin_that_refuses_is_no_failure),
		TEST(only_what_lies_in_it_whole_is_found),
		TEST(what_a_run_holds_stays),
		TEST(a_region_that_leaves_is_not_used_anew),
		TEST(deregistering_races_with_runs),
		cmocka_unit_test(sized_structs_have_one_rule),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
