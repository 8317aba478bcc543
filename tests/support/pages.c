/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, and pools whose bytes follow from the key. */
#include "support/support.h"
#include "support/support_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIPED 0xAA
#define ALIGN 4096u

void keys_make(struct keys *keys, const char *label, size_t count)
{
	uint64_t base = key_content(key_of(label));

	keys->count = count;
	keys->keys = calloc(count + 1, sizeof(*keys->keys));
	keys->text = calloc(count + 1, sizeof(*keys->text));
	if (keys->keys == NULL || keys->text == NULL)
		support_die("no memory");
	for (size_t i = 0; i < count; i++) {
		for (unsigned part = 0; part < 4; part++)
			(void)snprintf(keys->text[i] + part * 16, 17, "%016llx",
				       (unsigned long long)mix(base + part, i));
		keys->keys[i] = (struct kvc_key){ .data = keys->text[i], .bytes = 64 };
	}
}

void keys_free(struct keys *keys)
{
	free(keys->keys);
	free(keys->text);
	*keys = (struct keys){ .count = 0 };
}

struct kvc_key key_of(const char *text)
{
	return (struct kvc_key){ .data = text, .bytes = strlen(text) };
}

uint64_t key_content(struct kvc_key key)
{
	const unsigned char *data = key.data;
	uint64_t content = key.bytes;

	for (size_t i = 0; i < key.bytes; i++)
		content = mix(content, data[i]);
	return content;
}

void bytes_fill(void *to, size_t bytes, uint64_t content)
{
	unsigned char *at = to;

	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = mix(content, i);
		size_t n = bytes - i < 8 ? bytes - i : 8;

		memcpy(at + i, &word, n);
	}
}

static void show_difference(const unsigned char *data, size_t bytes, uint64_t content, size_t at)
{
	size_t from = at & ~(size_t)15;

	(void)printf("%zu bytes differ from offset %zu on:\n", bytes, at);
	for (size_t row = from; row < from + 64 && row < bytes; row += 16) {
		(void)printf("%8zu ", row);
		for (size_t i = row; i < row + 16 && i < bytes; i++)
			(void)printf(" %02x", data[i]);
		(void)printf("  expected ");
		for (size_t i = row; i < row + 16 && i < bytes; i++) {
			uint64_t word = mix(content, i & ~(size_t)7);

			(void)printf(" %02x", (unsigned)(word >> (8 * (i & 7))) & 0xff);
		}
		(void)printf("\n");
	}
}

bool bytes_match(const void *data, size_t bytes, uint64_t content)
{
	const unsigned char *at = data;

	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = mix(content, i);
		size_t n = bytes - i < 8 ? bytes - i : 8;

		if (memcmp(at + i, &word, n) != 0) {
			show_difference(data, bytes, content, i);
			return false;
		}
	}
	return true;
}

static void pages_place(struct pages *pages, const struct pages_params *params)
{
	size_t offsets[PAGES_PARTS];
	size_t offset = 0;

	for (uint32_t j = 0; j < pages->part_count; j++) {
		uint64_t bytes = pages->part_bytes[j];

		pages->part_stride[j] = bytes;
		if (!params->packed)
			pages->part_stride[j] = (bytes + 2 * ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
		offsets[j] = offset;
		offset += pages->part_stride[j] * pages->count + ALIGN;
		offset = (offset + ALIGN - 1) & ~(size_t)(ALIGN - 1);
	}
	pages->memory_bytes = offset + 2 * ALIGN;
	if (posix_memalign((void **)&pages->memory, ALIGN, pages->memory_bytes) != 0)
		support_die("no memory");
	for (uint32_t j = 0; j < pages->part_count; j++)
		pages->part_base[j] = pages->memory + params->misalign + offsets[j];
}

void pages_open(struct pages *pages, struct kvc_namespace *ns, const struct pages_params *params)
{
	struct kvc_part parts[PAGES_PARTS];
	struct kvc_pool_params pool = {
		.size = sizeof(pool),
		.name = params->name ? params->name : "kv",
		.parts = parts,
		.host_layout = KVC_LAYOUT_EXPLICIT,
		.flags = params->flags,
		.page_count = params->count,
		.per_rank = params->per_rank,
	};
	int rc;

	*pages = (struct pages){ .count = params->count };
	pages->part_count = params->part_count ? params->part_count : 1;
	if (params->flags & KVC_POOL_MARKER)
		pages->part_count = 0;
	memcpy(pages->part_bytes, params->part_bytes, sizeof(pages->part_bytes));
	pages_place(pages, params);
	for (uint32_t j = 0; j < pages->part_count; j++)
		parts[j] = (struct kvc_part){
			.size = sizeof(parts[j]),
			.base = pages->part_base[j],
			.piece_bytes = pages->part_bytes[j],
			.piece_count = 1,
			.piece_stride_bytes = pages->part_bytes[j],
			.page_stride_bytes = pages->part_stride[j],
		};
	pool.part_count = pages->part_count;
	if (pages->part_count == 0)
		pool.parts = NULL;
	pages_wipe(pages);
	rc = kvc_pool_open(ns, &pool, &pages->pool);
	if (rc != 0)
		fail_msg("pool: %s: %s", strerror(-rc), kvc_last_error());
}

void pages_open_simple(struct pages *pages, struct kvc_namespace *ns, size_t count, uint64_t bytes)
{
	struct pages_params params = { .count = count, .part_bytes = { bytes } };

	pages_open(pages, ns, &params);
}

void pages_close(struct pages *pages)
{
	int rc = kvc_pool_close(pages->pool);

	if (rc != 0)
		fail_msg("pool close: %s: %s", strerror(-rc), kvc_last_error());
	free(pages->memory);
	*pages = (struct pages){ .count = 0 };
}

static unsigned char *part_at(const struct pages *pages, size_t index, uint32_t part)
{
	return pages->part_base[part] + pages->part_stride[part] * index;
}

void pages_fill(struct pages *pages, size_t index, uint64_t content)
{
	for (uint32_t j = 0; j < pages->part_count; j++)
		bytes_fill(part_at(pages, index, j), pages->part_bytes[j], mix(content, j));
}

void pages_fill_keys(struct pages *pages, const struct kvc_key *keys, size_t count)
{
	for (size_t i = 0; i < count; i++)
		pages_fill(pages, i, key_content(keys[i]));
}

void pages_wipe(struct pages *pages)
{
	memset(pages->memory, WIPED, pages->memory_bytes);
}

bool pages_match(const struct pages *pages, size_t index, uint64_t content)
{
	for (uint32_t j = 0; j < pages->part_count; j++)
		if (!bytes_match(part_at(pages, index, j), pages->part_bytes[j], mix(content, j))) {
			(void)printf("that was part %u of page %zu\n", j, index);
			return false;
		}
	return true;
}

static bool wiped(const unsigned char *from, const unsigned char *to)
{
	for (; from < to; from++)
		if (*from != WIPED)
			return false;
	return true;
}

bool pages_untouched(const struct pages *pages, size_t index)
{
	for (uint32_t j = 0; j < pages->part_count; j++)
		if (!wiped(part_at(pages, index, j),
			   part_at(pages, index, j) + pages->part_bytes[j]))
			return false;
	return true;
}

void pages_check_gaps(const struct pages *pages)
{
	const unsigned char *from = pages->memory;

	for (uint32_t j = 0; j < pages->part_count; j++) {
		for (size_t i = 0; i < pages->count; i++) {
			const unsigned char *page = part_at(pages, i, j);

			if (!wiped(from, page))
				fail_msg("memory before page %zu of part %u was written", i, j);
			from = page + pages->part_bytes[j];
		}
	}
	if (!wiped(from, pages->memory + pages->memory_bytes))
		fail_msg("memory behind the last page was written");
}

uint64_t pages_page_bytes(const struct pages *pages)
{
	uint64_t sum = 0;

	for (uint32_t j = 0; j < pages->part_count; j++)
		sum += pages->part_bytes[j];
	return sum;
}
