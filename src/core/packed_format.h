/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stored form of the packed layout (docs/on-disk-format.md, 8): what lies in the mapped files.
 * Little-endian; other machines do not use this layout. Readers: core/packed*.c.
 *
 *   <root>/.kvcellar/packed/root.lock      OFD locks, no content
 *   <root>/.kvcellar/packed/root.shm       struct kvc_packed_shm
 *   <root>/.kvcellar/packed/intents.<i>    struct kvc_packed_intents, of process entry i
 *   <root>/<namespace>/slots-<bytes>/      an arena: the slots of one size of a namespace
 *       seg.<n>     data: slot s begins at s * slot bytes
 *       hdr.<n>     header, slot headers, stamps, bitmap: the truth about seg.<n>
 *       names.<n>   what tools need to know, KVC_PACKED_NAME_RECORD bytes a slot
 *       table.<e>   hash table: a hint, made again from the headers at any time
 */
#ifndef KVC_CORE_PACKED_FORMAT_H
#define KVC_CORE_PACKED_FORMAT_H

#include "core/format.h"
#include "core/mapfile.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define KVC_PACKED_FOLDER	KVC_HOUSEKEEPING_FOLDER "/packed"
#define KVC_PACKED_PROCESSES	240u
#define KVC_PACKED_INTENTS	1024u /* a process's sets in flight, per root */
#define KVC_PACKED_ARENAS	256u
#define KVC_PACKED_SLOTS_MAX	65536u	   /* of a segment */
#define KVC_PACKED_SEGMENTS_MAX (1u << 20) /* numbers that an arena may use up */
#define KVC_PACKED_BUCKET	8u	   /* entries */
#define KVC_PACKED_NAME_BYTES	176u
#define KVC_PACKED_NO_TABLE	(1u << 31) /* of an epoch: its table was removed */
#define KVC_PACKED_RUNS		6u

/* Bytes of root.lock. */
#define KVC_PACKED_LOCK_USERS	0u  /* shared by users, exclusive for a rebuild */
#define KVC_PACKED_LOCK_CHANGES 1u  /* arenas, segments and tables come and go under it */
#define KVC_PACKED_LOCK_PROCESS 16u /* + i: process entry i is alive */

/* Boot id and heartbeat tell whose index it is. */
struct kvc_packed_entry {
	_Atomic uint64_t pid;	      /* 0: free */
	_Atomic uint64_t quarantined; /* CLOCK_BOOTTIME ns when its slots went to QUAR, 0: none */
	_Atomic uint64_t started;     /* wall clock, s */
	uint64_t reserved;
};

/* One arena. Made under LOCK_CHANGES; state is stored last. */
struct kvc_packed_record {
	_Atomic uint64_t state; /* 0 free, 1 in use */
	uint64_t ns_hash;
	uint64_t slot_bytes;
	uint32_t segment_slots;
	uint32_t reserved;
	char folder[96];	     /* namespace id */
	_Atomic uint32_t segments;   /* numbers given out: 1 .. segments, some of them retired */
	_Atomic uint32_t epoch;	     /* of the current table; 0: none yet */
	_Atomic uint32_t lanes;	     /* bits of the lanes in use */
	_Atomic uint32_t present;    /* segments that are there; a hint */
	_Atomic uint64_t cursor;     /* where the search for a free slot goes on */
	_Atomic uint64_t free_slots; /* hints; a sweep corrects them */
	_Atomic uint64_t live_slots;
	uint64_t spare[11];
};
_Static_assert(sizeof(struct kvc_packed_record) == 256, "stored form");

struct kvc_packed_shm {
	struct kvc_mapfile_header header;
	uint8_t uuid[16]; /* of root.json */
	uint8_t reserved[84];
	uint32_t header_crc; /* the header ends here: 128 bytes, written once */

	/* Written under LOCK_USERS exclusive, or by the keeper that beats. */
	_Atomic uint64_t boot_id[2];
	uint8_t machine_id[32]; /* text */
	_Atomic uint64_t heartbeat_s;
	_Atomic uint64_t generation;	/* changes when segments or arenas go */
	_Atomic uint64_t segment_bytes; /* of all files of all segments */
	_Atomic uint64_t deaths;	/* of owners, as far as they were looked after */
	_Atomic uint64_t swept;		/* deaths after which bits and counters were put right */
	uint64_t spare1[5];
	_Alignas(128) _Atomic uint64_t clock; /* logical, for stamps */
	uint64_t spare2[15];
	_Alignas(4096) struct kvc_packed_entry processes[KVC_PACKED_PROCESSES];
	_Alignas(4096) struct kvc_packed_record arenas[KVC_PACKED_ARENAS];
};

_Static_assert(offsetof(struct kvc_packed_shm, clock) == 256, "stored form");
_Static_assert(offsetof(struct kvc_packed_shm, processes) == 4096, "stored form");
_Static_assert(offsetof(struct kvc_packed_shm, arenas) == 12288, "stored form");

/* 0: none; else arena (16) | reference (40), + 1 so that it is never 0 (see
 * kvc_packed_intent()). */
struct kvc_packed_intents {
	struct kvc_mapfile_header header;
	uint8_t uuid[16];
	uint32_t entry;
	uint8_t reserved[80];
	uint32_t header_crc; /* 128 bytes */
	_Atomic uint64_t intents[KVC_PACKED_INTENTS];
};

/* Reference of a slot: segment (24) | slot (16). 0 is none, since segments count from 1. */
#define KVC_PACKED_REF_BITS 40u

static inline uint64_t kvc_packed_ref(uint32_t segment, uint32_t slot)
{
	return (uint64_t)segment << 16 | slot;
}

static inline uint32_t kvc_packed_ref_segment(uint64_t ref)
{
	return (uint32_t)(ref >> 16) & 0xffffffu;
}

static inline uint32_t kvc_packed_ref_slot(uint64_t ref)
{
	return (uint32_t)ref & 0xffffu;
}

static inline uint64_t kvc_packed_intent(uint32_t arena, uint64_t ref)
{
	return (uint64_t)arena << KVC_PACKED_REF_BITS | ref; /* ref is not 0 */
}

/* state of a slot: generation (44) | owner (16) | st (4). */
enum kvc_packed_st {
	KVC_PACKED_FREE = 0,
	KVC_PACKED_WRITING = 1, /* by process entry `owner` */
	KVC_PACKED_LIVE = 2,
	KVC_PACKED_QUAR = 3, /* its writer died; I/O may still be under way */
};

static inline uint64_t kvc_packed_state(uint64_t gen, uint32_t owner, enum kvc_packed_st st)
{
	return gen << 20 | (uint64_t)(owner & 0xffffu) << 4 | st;
}

static inline uint64_t kvc_packed_gen(uint64_t state)
{
	return state >> 20;
}

static inline uint32_t kvc_packed_owner(uint64_t state)
{
	return (uint32_t)(state >> 4) & 0xffffu;
}

static inline enum kvc_packed_st kvc_packed_st(uint64_t state)
{
	return (enum kvc_packed_st)(state & 15u);
}

/* FREE of the next generation: what every slot that ends becomes. */
static inline uint64_t kvc_packed_freed(uint64_t state)
{
	return kvc_packed_state(kvc_packed_gen(state) + 1, 0, KVC_PACKED_FREE);
}

enum kvc_packed_flag {
	KVC_PACKED_CHECKSUM = 3u, /* mask: enum kvc_checksum_kind */
	KVC_PACKED_LANE_SHIFT = 2,
};

/* Objects of a group have their buckets by lane, which pool and ranks decide: so many of one key
 * find room side by side, and all are found again for its eviction. */
#define KVC_PACKED_LANES 32u

/*
 * A slot's header: 64 bytes, one cache line. Fields but state are written while the slot is WRITING
 * and are relaxed atomics, since a reader may copy them while they change; it looks at state before
 * and after. crc: CRC32C of the generation (8 bytes) and of the fields from g to flags, crc left
 * out; it is looked at after a reboot only.
 */
struct kvc_packed_slot {
	_Atomic uint64_t state;
	_Atomic uint64_t g;
	_Atomic uint64_t v;
	_Atomic uint64_t checksum;
	_Atomic uint64_t parent_g;
	_Atomic uint64_t len_crc;	/* payload bytes (32) | crc (32) */
	_Atomic uint64_t created_depth; /* created, s since 1970 (32) | depth (16) | flags (16) */
	uint64_t reserved;
};
_Static_assert(sizeof(struct kvc_packed_slot) == 64, "stored form");

/* stamp: logical time of last use (63) | suspect (1): came through a reboot, not verified yet. */
#define KVC_PACKED_SUSPECT UINT64_C(1)

/* hdr.<n>: header, then at the offsets of kvc_packed_hdr_layout(): slots, stamps, bitmap. */
struct kvc_packed_hdr {
	struct kvc_mapfile_header header;
	uint8_t uuid[16];
	uint64_t ns_hash;
	uint64_t slot_bytes;
	uint32_t slots;
	uint32_t segment;
	uint8_t reserved[60];
	uint32_t header_crc;	  /* 128 bytes */
	_Atomic uint32_t retired; /* allocators pass it over; its slots are being evicted */
	_Atomic uint32_t spare32;
	uint64_t spare[495];
};
_Static_assert(sizeof(struct kvc_packed_hdr) == 4096, "stored form");

/* table.<e>: header, then bucket_count x KVC_PACKED_BUCKET entries: tag (24) | reference (40). */
struct kvc_packed_table_header {
	struct kvc_mapfile_header header;
	uint8_t uuid[16];
	uint64_t ns_hash;
	uint64_t slot_bytes;
	uint64_t bucket_count;
	uint32_t epoch;
	uint8_t reserved[56];
	uint32_t header_crc; /* 128 bytes */
	uint64_t spare[496];
};
_Static_assert(sizeof(struct kvc_packed_table_header) == 4096, "stored form");

/* count parts of the same size, one after the other. */
struct kvc_packed_run {
	uint32_t count;
	uint32_t bytes;
};

/* What only tools need; right when gen is that of the slot's state and the CRC holds. */
struct kvc_packed_name {
	uint64_t gen;
	uint64_t pool_fingerprint;
	uint32_t crc;	     /* CRC32C of everything else */
	uint16_t name_bytes; /* > KVC_PACKED_NAME_BYTES: only its beginning is here */
	uint16_t run_count;
	uint64_t reserved;
	struct kvc_packed_run runs[KVC_PACKED_RUNS];
	char name[KVC_PACKED_NAME_BYTES];
};
_Static_assert(sizeof(struct kvc_packed_name) == 256, "stored form");

#endif
