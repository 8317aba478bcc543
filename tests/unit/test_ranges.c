/* SPDX-License-Identifier: Apache-2.0 */
/* core/ranges.c against a naive gather, for many shapes, alignments and limits. */
#include "fake.h"

#include "core/checksum.h"
#include "core/ranges.h"
#include "core/region.h"

#include <stdio.h>
#include <time.h>

static uint64_t chance;

static uint64_t next(uint64_t limit)
{
	chance ^= chance << 13;
	chance ^= chance >> 7;
	chance ^= chance << 17;
	return chance % limit;
}

/* A random shape: up to 4 parts of up to 3 series each, and memory for it. */
static void random_page(struct page *page, uint32_t alignment)
{
	const uint64_t unit = next(3) ? alignment : 1;
	struct kvc_shape *shape = &page->shape;
	uint64_t room = 8192;
	uint8_t *at;

	memset(page, 0, sizeof(*page));
	shape->part_count = (uint32_t)next(5);
	for (uint32_t p = 0; p < shape->part_count; p++) {
		struct kvc_shape_part *part = &shape->parts[p];

		part->first_series = shape->series_count;
		part->series_count = 1 + (uint32_t)next(3);
		part->stored_offset = shape->stored_bytes;
		for (uint32_t s = 0; s < part->series_count; s++) {
			struct kvc_series *series = &shape->series[shape->series_count++];

			series->piece_bytes = next(6) ? (1 + next(9000 / unit)) * unit : 0;
			series->piece_count = 1 + (uint32_t)next(next(4) ? 4 : 90);
			series->piece_stride_bytes =
				series->piece_bytes + (next(2) ? next(700 / unit + 1) * unit : 0);
			part->bytes += series->piece_bytes * series->piece_count;
			room += (series->piece_stride_bytes + 1) * series->piece_count + 8192;
		}
		shape->payload_bytes += part->bytes;
		shape->stored_bytes += kvc_block_align(part->bytes);
	}
	shape->stored_bytes += KVC_TRAILER_BYTES;
	page->memory_bytes = kvc_block_align(room);
	page->memory = aligned_alloc(KVC_BLOCK_BYTES, page->memory_bytes);
	assert_non_null(page->memory);
	memset(page->memory, 0xaa, page->memory_bytes);
	at = page->memory;
	for (uint32_t s = 0; s < shape->series_count; s++) {
		const struct kvc_series *series = &shape->series[s];

		at += next(4096 / unit) * unit;
		page->bases[s] = at;
		at += kvc_block_align(series->piece_stride_bytes * series->piece_count);
	}
}

/* The object as the format has it, without its trailer. */
static uint8_t *naive_image(const struct page *page)
{
	const struct kvc_shape *shape = &page->shape;
	uint8_t *payload = page_payload(page), *image = calloc(1, shape->stored_bytes);
	uint64_t from = 0;

	assert_non_null(image);
	for (uint32_t p = 0; p < shape->part_count; p++) {
		memcpy(image + shape->parts[p].stored_offset, payload + from,
		       shape->parts[p].bytes);
		from += shape->parts[p].bytes;
	}
	free(payload);
	return image;
}

static void check_ranges(const struct fake *fake, const struct kvc_slot *slot, bool late)
{
	const struct kvc_descriptor *d = &slot->descriptor;
	uint64_t bytes = 0;

	assert_true(d->range_count >= 1 && d->range_count <= fake->attributes.max_ranges);
	assert_true(d->range_count <= KVC_SLOT_RANGES);
	for (uint32_t r = 0; r < d->range_count; r++) {
		const bool last = r + 1 == d->range_count;

		assert_int_equal((uintptr_t)d->ranges[r].addr % fake->attributes.alignment, 0);
		assert_int_equal(d->ranges[r].bytes % fake->attributes.alignment, 0);
		assert_int_equal(d->ranges[r].flags, last && late ? KVC_RANGE_LATE : 0);
		bytes += d->ranges[r].bytes;
	}
	assert_int_equal(bytes, slot->request->shape->stored_bytes);
}

static void check_write(struct fake *fake, struct kvc_slot *slot, const struct page *page,
			const uint8_t *image)
{
	const struct kvc_descriptor *d = &slot->descriptor;
	struct kvc_trailer trailer;
	uint64_t at = 0;
	bool late;

	assert_int_equal(kvc_ranges_build(slot, NULL, true, true), 0);
	late = (fake->attributes.flags & KVC_ATTRIBUTE_LATE) && !slot->uses_bounce;
	check_ranges(fake, slot, late);
	if (late)
		assert_int_equal(kvc_xfer_fill(NULL, d->cookie), 0);
	for (uint32_t r = 0; r + 1 < d->range_count; r++) {
		assert_memory_equal(d->ranges[r].addr, image + at, d->ranges[r].bytes);
		at += d->ranges[r].bytes;
	}
	assert_int_equal(kvc_trailer_decode(d->ranges[d->range_count - 1].addr, &trailer), 0);
	assert_int_equal(trailer.checksum,
			 kvc_checksum_image(KVC_CHECKSUM_FULL, slot->request->g ^ slot->request->v,
					    &page->shape, image));
	assert_int_equal(trailer.stored_bytes, page->shape.stored_bytes);
	assert_int_equal(trailer.g, slot->request->g);
	assert_int_equal(trailer.v, slot->request->v);
	assert_int_equal(trailer.parent_g, 55);
	assert_int_equal(trailer.depth, 66);
}

static void check_read(struct fake *fake, struct kvc_slot *slot, struct page *page,
		       const uint8_t *image, const uint8_t *memory)
{
	const struct kvc_descriptor *d = &slot->descriptor;
	const uint64_t seed = slot->request->g ^ slot->request->v;
	uint64_t at = 0;

	memset(page->memory, 0xaa, page->memory_bytes);
	assert_int_equal(kvc_ranges_build(slot, NULL, false, true), 0);
	check_ranges(fake, slot, false);
	for (uint32_t r = 0; r + 1 < d->range_count; r++) {
		memcpy(d->ranges[r].addr, image + at, d->ranges[r].bytes);
		at += d->ranges[r].bytes;
	}
	assert_int_equal(kvc_ranges_finish_read(slot, KVC_CHECKSUM_FULL),
			 kvc_checksum_image(KVC_CHECKSUM_FULL, seed, &page->shape, image));
	/* The pieces have their bytes, nothing between them was touched. */
	assert_memory_equal(page->memory, memory, page->memory_bytes);
}

static void one_case(struct fake *fake, struct kvc_slot *slot, uint32_t number)
{
	struct page page;
	uint8_t *image, *memory;
	const char *reason;
	bool zero_copy;

	random_page(&page, fake->attributes.alignment);
	page_fill(&page, (uint8_t)number);
	image = naive_image(&page);
	memory = malloc(page.memory_bytes);
	assert_non_null(memory);
	memcpy(memory, page.memory, page.memory_bytes);
	slot->request = page_request(&page, fake_root(fake, 0), KVC_SET, number);
	slot->request->parent_g = 55;
	slot->request->depth = 66;
	check_write(fake, slot, &page, image);
	zero_copy = kvc_ranges_zero_copy(&page.shape, page.bases, fake->attributes.alignment,
					 fake->attributes.max_ranges, &reason);
	if (zero_copy)
		assert_false(slot->uses_bounce);
	assert_int_equal(zero_copy, *reason == '\0');
	check_read(fake, slot, &page, image, memory);
	/* And the same once more through the library's memory. */
	memcpy(page.memory, memory, page.memory_bytes);
	slot->request->bounced = true;
	check_write(fake, slot, &page, image);
	assert_true(slot->uses_bounce);
	check_read(fake, slot, &page, image, memory);
	free(memory);
	free(image);
	page_free(&page);
}

static void r21_any_shape_is_gathered_and_scattered(void **state)
{
	static const uint32_t alignments[] = { 1, 4, 512, 4096 };
	static const uint32_t limits[] = { 4, 5, 64, 1024 };
	const char *text = getenv("KVC_TEST_SEED");
	const uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);

	(void)state;
	print_message("KVC_TEST_SEED=%llu\n", (unsigned long long)seed);
	chance = seed * 2 + 1;
	for (uint32_t i = 0; i < 32; i++) {
		struct fake *fake = fake_new();
		struct kvc_queue *queue;

		fake->attributes.alignment = alignments[i % 4];
		fake->attributes.max_ranges = limits[i / 4 % 4];
		if (i / 16)
			fake->attributes.flags |= KVC_ATTRIBUTE_LATE;
		fake_open(fake, 1);
		assert_int_equal(kvc_queue_lease(fake_root(fake, 0), UINT64_MAX / 2, &queue), 0);
		for (uint32_t n = 0; n < 25; n++)
			one_case(fake, queue->free, n);
		kvc_queue_return(queue);
		fake_free(fake);
	}
}

static void without_a_trailer_only_the_payload_is_read(void **state)
{
	static const struct part_of one[] = { { 5000, 0, 1, 0 } };
	struct fake *fake = fake_new();
	struct kvc_queue *queue;
	struct page page;

	(void)state;
	fake_open(fake, 1);
	page_make(&page, one, 1);
	assert_int_equal(kvc_queue_lease(fake_root(fake, 0), UINT64_MAX / 2, &queue), 0);
	queue->free->request = page_request(&page, fake_root(fake, 0), KVC_GET, 1);
	assert_int_equal(kvc_ranges_build(queue->free, NULL, false, false), 0);
	assert_false(queue->free->has_trailer);
	assert_int_equal(queue->free->descriptor.range_count, 2);
	kvc_queue_return(queue);
	page_free(&page);
	fake_free(fake);
}

static void ranges_name_the_registration_they_lie_in(void **state)
{
	static const struct part_of one[] = { { 8192, 0, 2, 0 } };
	struct fake *fake = fake_new();
	struct kvc_region *first, *second;
	struct kvc_regions *regions;
	struct kvc_queue *queue;
	struct kvc_slot *slot;
	struct page page;
	struct kvc_memory memory = { .size = sizeof(memory), .bytes = 4096 };

	(void)state;
	fake_open(fake, 1);
	page_make(&page, one, 1);
	memory.addr = page.memory;
	memory.bytes = 8192;
	assert_int_equal(kvc_memory_register(&fake->store, &memory, &first), 0);
	memory.addr = page.memory + 8192;
	assert_int_equal(kvc_memory_register(&fake->store, &memory, &second), 0);
	assert_int_equal(kvc_queue_lease(fake_root(fake, 0), UINT64_MAX / 2, &queue), 0);
	slot = queue->free;
	slot->request = page_request(&page, fake_root(fake, 0), KVC_GET, 1);
	regions = kvc_regions_acquire(&fake->store);
	assert_int_equal(kvc_ranges_build(slot, regions, false, true), 0);
	/* Side by side, but of two registrations: two ranges. */
	assert_int_equal(slot->descriptor.range_count, 3);
	assert_int_equal(slot->ranges[0].registration, first->registration);
	assert_int_equal(slot->ranges[1].registration, second->registration);
	assert_int_equal(slot->ranges[2].registration, 0);
	assert_int_equal(kvc_ranges_build(slot, NULL, false, true), 0);
	assert_int_equal(slot->descriptor.range_count, 2);
	kvc_regions_release(regions);
	kvc_queue_return(queue);
	assert_int_equal(kvc_memory_deregister(first), 0);
	assert_int_equal(kvc_memory_deregister(second), 0);
	page_free(&page);
	fake_free(fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(r21_any_shape_is_gathered_and_scattered),
		cmocka_unit_test(without_a_trailer_only_the_payload_is_read),
		cmocka_unit_test(ranges_name_the_registration_they_lie_in),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
