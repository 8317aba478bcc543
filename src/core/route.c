/* SPDX-License-Identifier: Apache-2.0 */
#include "core/route.h"

#include "core/hash.h"

#include <string.h>

static uint64_t score(const uint8_t uuid[16], uint64_t g)
{
	uint8_t input[24];

	memcpy(input, uuid, 16);
	for (size_t i = 0; i < 8; i++)
		input[16 + i] = (uint8_t)(g >> (8 * i));
	return kvc_blake2b_64(input, sizeof(input));
}

size_t kvc_route_rendezvous(const uint8_t (*uuids)[16], size_t n, uint64_t g)
{
	uint64_t best_score;
	size_t best = 0;

	if (n <= 1)
		return 0;
	best_score = score(uuids[0], g);
	for (size_t i = 1; i < n; i++) {
		uint64_t s = score(uuids[i], g);

		if (s > best_score || (s == best_score && memcmp(uuids[i], uuids[best], 16) > 0)) {
			best_score = s;
			best = i;
		}
	}
	return best;
}

size_t kvc_route_nixl(size_t n, uint64_t h)
{
	return n ? (size_t)((h >> 16) % n) : 0;
}

void kvc_route_folder(uint64_t hash, char out[3])
{
	static const char digits[] = "0123456789abcdef";

	out[0] = digits[hash >> 4 & 15];
	out[1] = digits[hash & 15];
	out[2] = '\0';
}
