/* SPDX-License-Identifier: Apache-2.0 */
/* core/queue.c: leased, given back, reused, bounded. */
#include "fake.h"

#define MS     UINT64_C(1000000)
#define QUEUES 16

static struct fake *fake;

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_free(fake);
	return 0;
}

static struct kvc_queue *lease(void)
{
	struct kvc_queue *queue = NULL;

	assert_int_equal(kvc_queue_lease(fake_root(fake, 0), kvc_now_ns() + 2000 * MS, &queue), 0);
	return queue;
}

static uint32_t count_free(const struct kvc_queue *queue)
{
	uint32_t count = 0;

	for (const struct kvc_slot *slot = queue->free; slot; slot = slot->next)
		count++;
	return count;
}

static void slots_are_laid_out_for_their_plugin(void **state)
{
	struct kvc_queue *queue;

	(void)state;
	fake->attributes.max_depth = 5;
	fake->attributes.scratch_bytes = 17;
	fake_open(fake, 1);
	queue = lease();
	assert_int_equal(queue->depth, 5);
	assert_int_equal(count_free(queue), 5);
	for (struct kvc_slot *slot = queue->free; slot; slot = slot->next) {
		assert_int_equal((uintptr_t)slot->trailer % KVC_BLOCK_BYTES, 0);
		assert_int_equal((uintptr_t)slot->descriptor.scratch % 16, 0);
		assert_int_equal(slot->descriptor.cookie, (uintptr_t)slot);
		assert_ptr_equal(slot->queue, queue);
		memset(slot->descriptor.scratch, 0xee, 17);
		memset(slot->trailer, 0xee, KVC_TRAILER_BYTES);
		if (slot->next)
			assert_true((uint8_t *)slot->next->descriptor.scratch -
					    (uint8_t *)slot->descriptor.scratch >=
				    17);
	}
	kvc_queue_return(queue);
}

static void depth_has_bounds(void **state)
{
	struct kvc_queue *queue;

	(void)state;
	fake->attributes.max_depth = 100000;
	fake_open(fake, 1);
	queue = lease();
	assert_int_equal(queue->depth, KVC_QUEUE_SLOTS);
	kvc_queue_return(queue);
}

static void the_last_one_given_back_is_taken_first(void **state)
{
	struct kvc_queue *a, *b;

	(void)state;
	fake_open(fake, 1);
	a = lease();
	b = lease();
	assert_ptr_not_equal(a, b);
	kvc_queue_return(a);
	kvc_queue_return(b);
	assert_ptr_equal(lease(), b);
	assert_ptr_equal(lease(), a);
	kvc_queue_return(a);
	kvc_queue_return(b);
	assert_int_equal(fake->queues, 2); /* nothing is made anew */
	assert_int_equal(fake_counter(fake, KVC_COUNTER_STORAGE_REGISTRATIONS), 2);
}

static void memory_of_a_slot_grows_and_is_kept(void **state)
{
	struct kvc_queue *queue;
	struct kvc_slot *slot;
	uint8_t *bounce;

	(void)state;
	fake_open(fake, 1);
	queue = lease();
	slot = queue->free;
	assert_int_equal(kvc_slot_bounce(slot, 0), 0);
	assert_int_equal(kvc_slot_bounce(slot, 5000), 0);
	bounce = slot->bounce;
	assert_int_equal((uintptr_t)bounce % KVC_BLOCK_BYTES, 0);
	assert_int_equal(kvc_slot_bounce(slot, 100), 0);
	assert_ptr_equal(slot->bounce, bounce);
	assert_int_equal(kvc_slot_bounce(slot, 1 << 20), 0);
	assert_true(slot->bounce_bytes >= 1 << 20);
	memset(slot->bounce, 1, 1 << 20);
	assert_int_equal(kvc_slot_tails(slot, 0), 0);
	assert_int_equal(kvc_slot_tails(slot, 3), 0);
	memset(slot->tails, 1, 3 * KVC_BLOCK_BYTES);
	assert_int_equal(kvc_slot_tails(slot, 2), 0);
	assert_int_equal(slot->tail_blocks, 3);
	kvc_queue_return(queue);
}

static void *give_back(void *context)
{
	const struct timespec pause = kvc_timespec(50 * MS);

	(void)nanosleep(&pause, NULL);
	kvc_queue_return(context);
	return NULL;
}

static void there_are_only_so_many(void **state)
{
	struct kvc_queue *queues[QUEUES], *more = NULL;
	pthread_t thread;

	(void)state;
	fake_open(fake, 1);
	for (int i = 0; i < QUEUES; i++)
		queues[i] = lease();
	assert_int_equal(kvc_queue_lease(fake_root(fake, 0), 0, &more), -ETIMEDOUT);
	assert_int_equal(kvc_queue_lease(fake_root(fake, 0), kvc_now_ns() + 10 * MS, &more),
			 -ETIMEDOUT);
	assert_int_equal(pthread_create(&thread, NULL, give_back, queues[3]), 0);
	more = lease();
	assert_ptr_equal(more, queues[3]);
	assert_int_equal(pthread_join(thread, NULL), 0);
	/* A broken one makes room for a new one. */
	more->broken = true;
	kvc_queue_return(more);
	assert_int_equal(fake->queues, QUEUES - 1);
	queues[3] = lease();
	for (int i = 0; i < QUEUES; i++)
		kvc_queue_return(queues[i]);
}

static void parked_ones_are_destroyed_once_they_can_be(void **state)
{
	struct kvc_queue *queue;

	(void)state;
	fake_open(fake, 1);
	queue = lease();
	fake->destroy_error = -EBUSY;
	kvc_queue_park(queue);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 1);
	kvc_queue_reap(fake_root(fake, 0));
	assert_int_equal(fake->queues, 1);
	fake->destroy_error = 0;
	kvc_queue_reap(fake_root(fake, 0));
	assert_int_equal(fake->queues, 0);
	assert_int_equal(fake_root(fake, 0)->queue_count, 0);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 0);
}

static int no_queue(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
		    struct kvc_plugin_queue **out)
{
	(void)root, (void)params, (void)out;
	return -EMFILE;
}

static void r09_no_descriptors_for_a_queue(void **state)
{
	int (*make)(struct kvc_plugin_root *, const struct kvc_queue_params *,
		    struct kvc_plugin_queue **) = fake->module.ops.queue_create;
	struct kvc_queue *first, *queue = NULL;

	(void)state;
	fake_open(fake, 1);
	first = lease();
	fake->module.ops.queue_create = no_queue;
	for (int i = 0; i < 2 * QUEUES; i++)
		assert_int_equal(kvc_queue_lease(fake_root(fake, 0), 0, &queue), -EMFILE);
	assert_null(queue);
	assert_int_equal(fake_root(fake, 0)->queue_count, 1);
	fake->module.ops.queue_create = make;
	queue = lease();
	kvc_queue_return(queue);
	kvc_queue_return(first);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(slots_are_laid_out_for_their_plugin),
		TEST(depth_has_bounds),
		TEST(the_last_one_given_back_is_taken_first),
		TEST(memory_of_a_slot_grows_and_is_kept),
		TEST(there_are_only_so_many),
		TEST(parked_ones_are_destroyed_once_they_can_be),
		TEST(r09_no_descriptors_for_a_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
