/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which root and hash folder an object belongs to. Pure functions of the stored format.
 *
 * naming = "kvcellar": rendezvous by group hash g. The score of a root is BLAKE2b-64 of its uuid
 * (16 bytes) and g (u64 little-endian); the highest score wins, among equals the larger uuid. The
 * order of the directories is of no account, and adding the nth moves 1/n of the groups, all of
 * them to it.
 * naming = "nixl": h = BLAKE2b-64 of the object's name; root (h >> 16) mod n of the configured
 * order.
 * Both: the hash folder is the low byte of g or h as two lower-case hex digits.
 */
#ifndef KVC_CORE_ROUTE_H
#define KVC_CORE_ROUTE_H

#include <stddef.h>
#include <stdint.h>

/* Index of the root, n >= 1. */
size_t kvc_route_rendezvous(const uint8_t (*uuids)[16], size_t n, uint64_t g);
size_t kvc_route_nixl(size_t n, uint64_t h);

void kvc_route_folder(uint64_t hash, char out[3]);

#endif
