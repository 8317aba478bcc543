/* SPDX-License-Identifier: Apache-2.0 */
/* core/checksum.c against the one-shot XXH3 over bytes that were put together naively. */
#include "fake.h"

#include "core/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static const struct part_of shapes[][3] = {
	{ { 1, 0, 1, 0 }, { 511, 3, 2, 1 }, { 512, 0, 4, 0 } },
	{ { 4096, 0, 1, 0 }, { 5000, 24, 3, 16 }, { 1, 1, 700, 5 } },
	{ { 300000, 0, 1, 3 }, { 65, 7, 9, 2 }, { 0, 0, 1, 0 } },
	{ { 64, 448, 40, 0 }, { 63, 1, 33, 9 }, { 131072, 4096, 2, 0 } },
};

/* The first 64 bytes of every 512 bytes of each part, as one text. */
static uint8_t *sample_sectors(const struct kvc_shape *shape, const uint8_t *payload, size_t *out)
{
	uint8_t *sample = malloc(shape->payload_bytes + 1);
	size_t n = 0, from = 0;

	assert_non_null(sample);
	for (uint32_t p = 0; p < shape->part_count; p++) {
		for (uint64_t b = 0; b < shape->parts[p].bytes; b++)
			if (b % 512 < 64)
				sample[n++] = payload[from + b];
		from += shape->parts[p].bytes;
	}
	*out = n;
	return sample;
}

/* The image as the format has it. */
static uint8_t *image_of(const struct kvc_shape *shape, const uint8_t *payload)
{
	uint8_t *image = calloc(1, shape->stored_bytes);
	size_t from = 0;

	assert_non_null(image);
	for (uint32_t p = 0; p < shape->part_count; p++) {
		memcpy(image + shape->parts[p].stored_offset, payload + from,
		       shape->parts[p].bytes);
		from += shape->parts[p].bytes;
	}
	return image;
}

static void check_shape(const struct part_of *parts, uint32_t count, uint64_t seed)
{
	struct page page, other;
	uint8_t *payload, *sample, *image, *gathered;
	size_t sample_bytes, image_bytes;
	uint64_t want[3] = { 0 };

	page_make(&page, parts, count);
	page_make(&other, parts, count);
	page_fill(&page, (uint8_t)seed);
	payload = page_payload(&page);
	sample = sample_sectors(&page.shape, payload, &sample_bytes);
	image = image_of(&page.shape, payload);
	image_bytes = page.shape.stored_bytes - KVC_TRAILER_BYTES;
	gathered = malloc(image_bytes + 1);
	want[KVC_CHECKSUM_FULL] = XXH3_64bits_withSeed(payload, page.shape.payload_bytes, seed);
	want[KVC_CHECKSUM_SECTOR] = XXH3_64bits_withSeed(sample, sample_bytes, seed);
	for (int kind = 0; kind < 3; kind++) {
		memset(gathered, 0xee, image_bytes);
		memset(other.memory, 0xaa, other.memory_bytes);
		assert_int_equal(kvc_checksum_memory(kind, seed, &page.shape, page.bases),
				 want[kind]);
		assert_int_equal(kvc_checksum_image(kind, seed, &page.shape, image), want[kind]);
		assert_int_equal(kvc_checksum_gather(kind, seed, &page.shape, page.bases, gathered),
				 want[kind]);
		assert_memory_equal(gathered, image, image_bytes);
		assert_int_equal(kvc_checksum_scatter(kind, seed, &page.shape, other.bases, image),
				 want[kind]);
		assert_memory_equal(other.memory, page.memory, page.memory_bytes);
	}
	free(gathered);
	free(image);
	free(sample);
	free(payload);
	page_free(&other);
	page_free(&page);
}

static void checksums_are_those_of_the_joined_bytes(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (uint32_t count = 0; count <= 3; count++) {
			check_shape(shapes[i], count, 0);
			check_shape(shapes[i], count, UINT64_C(0x123456789abcdef0) + i);
		}
}

/* Frozen since xxHash 0.8.0. */
static void known_values_stay(void **state)
{
	static const struct part_of one[] = { { 9, 0, 1, 0 } };
	struct page page;

	(void)state;
	page_make(&page, one, 1);
	memcpy(page.bases[0], "123456789", 9);
	assert_int_equal(kvc_checksum_memory(KVC_CHECKSUM_FULL, 0, &page.shape, page.bases),
			 UINT64_C(0x72dcb18b67a17dff));
	page_free(&page);
}

static void seeds_and_order_of_parts_matter(void **state)
{
	static const struct part_of two[] = { { 100, 0, 1, 0 }, { 100, 0, 1, 0 } };
	struct page page;
	void *swapped[2];
	uint64_t sum;

	(void)state;
	page_make(&page, two, 2);
	page_fill(&page, 9);
	swapped[0] = page.bases[1];
	swapped[1] = page.bases[0];
	sum = kvc_checksum_memory(KVC_CHECKSUM_FULL, 1, &page.shape, page.bases);
	assert_int_not_equal(sum,
			     kvc_checksum_memory(KVC_CHECKSUM_FULL, 2, &page.shape, page.bases));
	assert_int_not_equal(sum, kvc_checksum_memory(KVC_CHECKSUM_FULL, 1, &page.shape, swapped));
	page_free(&page);
}

static void objects_without_bytes_need_no_memory(void **state)
{
	static const struct part_of none[] = { { 0, 0, 1, 0 } };
	struct kvc_shape shape;
	void *bases[1] = { NULL };

	(void)state;
	for (uint32_t count = 0; count < 2; count++) {
		shape_make(&shape, none, count);
		assert_int_equal(kvc_checksum_gather(KVC_CHECKSUM_FULL, 5, &shape, bases, NULL),
				 XXH3_64bits_withSeed("", 0, 5));
		assert_int_equal(kvc_checksum_scatter(KVC_CHECKSUM_FULL, 5, &shape, bases, NULL),
				 XXH3_64bits_withSeed("", 0, 5));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(checksums_are_those_of_the_joined_bytes),
		cmocka_unit_test(known_values_stay),
		cmocka_unit_test(seeds_and_order_of_parts_matter),
		cmocka_unit_test(objects_without_bytes_need_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
