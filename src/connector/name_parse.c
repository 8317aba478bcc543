/* SPDX-License-Identifier: Apache-2.0 */
/* Names taken apart: for listings, verification and the cleaner. Names may be anything here. */
#include "connector/name.h"

#include "connector/name_bytes.h"

#include <errno.h>
#include <string.h>

#define HASHED_NAME_BYTES 35u

/* -1 when c is no such digit. */
static int hex_digit(char c, char first_letter)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= first_letter && c < first_letter + 6)
		return c - first_letter + 10;
	return -1;
}

static int decode_key(const char *text, size_t bytes, uint8_t *out, size_t *out_bytes)
{
	size_t n = 0;

	*out_bytes = 0;
	if (bytes == 2 && memcmp(text, "%e", 2) == 0)
		return 0;
	for (size_t i = 0; i < bytes; i++) {
		uint8_t byte = (uint8_t)text[i];

		if (byte == '%') {
			int high = i + 2 < bytes ? hex_digit(text[i + 1], 'A') : -1;
			int low = i + 2 < bytes ? hex_digit(text[i + 2], 'A') : -1;

			if (high < 0 || low < 0)
				return -EINVAL;
			byte = (uint8_t)(high << 4 | low);
			if (kvc_name_byte_is_plain(byte))
				return -EINVAL;
			i += 2;
		} else if (!kvc_name_byte_is_plain(byte)) {
			return -EINVAL;
		}
		out[n++] = byte;
	}
	*out_bytes = n;
	return n ? 0 : -EINVAL;
}

/* A decimal without leading zeros at *at, before end. */
static bool read_number(const char *text, size_t end, size_t *at, uint32_t *out)
{
	size_t first = *at, i = first;
	uint64_t value = 0;

	for (; i < end && text[i] >= '0' && text[i] <= '9' && i - first < 10; i++)
		value = value * 10 + (uint64_t)(text[i] - '0');
	if (i == first || (text[first] == '0' && i - first > 1) || value > UINT32_MAX)
		return false;
	*at = i;
	*out = (uint32_t)value;
	return true;
}

/* "<tag><rank>_<size>" with size > 1 at *at. 1 read, 0 another tag, -EINVAL. */
static int read_rank(const char *text, size_t end, size_t *at, const char *tag, uint32_t *rank,
		     uint32_t *size)
{
	size_t tag_bytes = strlen(tag), i = *at + tag_bytes;

	if (end - *at <= tag_bytes || memcmp(text + *at, tag, tag_bytes) != 0 || text[i] < '0' ||
	    text[i] > '9')
		return 0;
	if (!read_number(text, end, &i, rank) || i >= end || text[i++] != '_' ||
	    !read_number(text, end, &i, size) || *size <= 1 || *rank >= *size)
		return -EINVAL;
	*at = i;
	return 1;
}

static int parse_ranks(const char *text, size_t end, size_t at, struct kvc_name_parts *out)
{
	int rc;

	out->pp_size = out->cp_size = out->dcp_size = 1;
	rc = read_rank(text, end, &at, "_", &out->vrank, &out->vrank_count);
	if (rc >= 0)
		rc = read_rank(text, end, &at, "_pp", &out->pp_rank, &out->pp_size);
	if (rc >= 0)
		rc = read_rank(text, end, &at, "_cp", &out->cp_rank, &out->cp_size);
	if (rc >= 0)
		rc = read_rank(text, end, &at, "_dcp", &out->dcp_rank, &out->dcp_size);
	return rc < 0 || at != end ? -EINVAL : 0;
}

static int parse_hashed(const char *name, struct kvc_name_parts *out)
{
	for (size_t i = 3; i < HASHED_NAME_BYTES; i++)
		if (hex_digit(name[i], 'a') < 0)
			return -EINVAL;
	memset(out, 0, sizeof(*out));
	out->hashed = true;
	return 0;
}

int kvc_name_parse(const char *name, size_t bytes, struct kvc_name_parts *out)
{
	struct kvc_name_parts parts = { 0 };
	const char *dot, *second;
	size_t pool_bytes, at;
	int rc;

	if (bytes == 0 || bytes > KVC_NAME_MAX)
		return -EINVAL;
	if (bytes == HASHED_NAME_BYTES && memcmp(name, "%h-", 3) == 0)
		return parse_hashed(name, out);
	dot = memchr(name, '.', bytes);
	if (!dot)
		return -EINVAL;
	at = (size_t)(dot - name) + 1;
	second = memchr(name + at, '.', bytes - at);
	if (!second)
		return -EINVAL;
	pool_bytes = (size_t)(second - dot) - 1;
	if (pool_bytes == 0 || pool_bytes > KVC_POOL_NAME_MAX)
		return -EINVAL;
	memcpy(parts.pool_name, dot + 1, pool_bytes);
	if (strspn(parts.pool_name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != pool_bytes)
		return -EINVAL;
	at += pool_bytes + 1;
	if (bytes - at < 8)
		return -EINVAL;
	for (size_t end = at + 8; at < end; at++) {
		int digit = hex_digit(name[at], 'a');

		if (digit < 0)
			return -EINVAL;
		parts.pool_fingerprint = parts.pool_fingerprint << 4 | (uint32_t)digit;
	}
	rc = decode_key(name, (size_t)(dot - name), parts.key, &parts.key_bytes);
	if (!rc)
		rc = parse_ranks(name, bytes, at, &parts);
	if (!rc)
		*out = parts;
	return rc;
}

/* ---------------------------------------------------------------- nixl naming */

/* The pools that sglang names, as far as their files have no number pair that tells more. */
static const char *const known_pools[] = {
	"mamba",
	"swa",
	"indexer",
	"deepseek_v4_c4",
	"deepseek_v4_c4_indexer",
	"deepseek_v4_c128",
	"deepseek_v4_c4_state",
	"deepseek_v4_c4_indexer_state",
	"deepseek_v4_c128_state",
	"draft",
	"draft_indexer",
	"draft_swa",
};

/* The end of text[0..end) without `tail`, or end. */
static size_t strip_text(const char *text, size_t end, const char *tail)
{
	size_t n = strlen(tail);

	return n <= end && memcmp(text + end - n, tail, n) == 0 ? end - n : end;
}

/* Without "<tag><number>", or end. */
static size_t strip_number(const char *text, size_t end, const char *tag)
{
	size_t i = end, without;

	while (i > 0 && text[i - 1] >= '0' && text[i - 1] <= '9')
		i--;
	without = i < end ? strip_text(text, i, tag) : i;
	return i < end && without < i ? without : end;
}

/* Without "<tag><number>_<number>", or end. */
static size_t strip_pair(const char *text, size_t end, const char *tag)
{
	size_t middle = strip_number(text, end, "_");
	size_t start = middle < end ? strip_number(text, middle, tag) : middle;

	return middle < end && start < middle ? start : end;
}

static size_t strip_pool(const char *text, size_t end)
{
	size_t best = end;

	for (size_t i = 0; i < sizeof(known_pools) / sizeof(known_pools[0]); i++) {
		size_t start = strip_text(text, end, known_pools[i]);

		if (start < end && start > 0 && text[start - 1] == '_' && start - 1 < best)
			best = start - 1;
	}
	return best;
}

/* Without "_<pool>", "_<pool>_<part>", "_k" or "_v"; of several readings the shortest rest. */
static size_t strip_part(const char *text, size_t end)
{
	const size_t ends[] = {
		end,
		strip_text(text, end, "_k"),
		strip_text(text, end, "_v"),
		strip_text(text, end, "_temporal"),
		strip_number(text, end, "_conv_"),
		strip_number(text, end, "_"),
	};
	size_t best = end;

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		size_t start = strip_pool(text, ends[i]);

		if (start < ends[i] && start < best)
			best = start;
	}
	if (best == end)
		best = ends[1] < end ? ends[1] : ends[2];
	return best;
}

static size_t strip_dcp(const char *text, size_t end)
{
	size_t page = strip_number(text, end, "_page");
	size_t dcp = page < end ? strip_pair(text, page, "_dcp") : page;
	size_t tp = dcp < page ? strip_number(text, dcp, "_tp") : dcp;

	return page < end && dcp < page && tp < dcp ? tp : end;
}

static size_t strip_suffixes(const char *text, size_t end)
{
	end = strip_part(text, end);
	end = strip_dcp(text, end);
	end = strip_pair(text, end, "_cp");
	end = strip_pair(text, end, "_");
	return strip_pair(text, end, "_");
}

size_t kvc_name_nixl_group(const char *name, size_t bytes)
{
	size_t end = strip_suffixes(name, bytes);

	return end ? end : bytes;
}

bool kvc_name_nixl_belongs(const char *name, size_t bytes, const char *model)
{
	const char *bar = memchr(name, '_', bytes);
	size_t model_bytes = strlen(model), at;

	if (!bar)
		return false;
	at = (size_t)(bar - name) + 1;
	if (bytes - at < model_bytes || memcmp(name + at, model, model_bytes) != 0)
		return false;
	at += model_bytes;
	return strip_suffixes(name + at, bytes - at) == 0;
}
