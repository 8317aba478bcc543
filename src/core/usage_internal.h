/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the counts: usage.c has the file and its slots, usage_scan.c counts beside others. */
#ifndef KVC_CORE_USAGE_INTERNAL_H
#define KVC_CORE_USAGE_INTERNAL_H

#include "core/sharedfile.h"
#include "core/usage.h"

#include <stdatomic.h>

enum kvc_counted {
	KVC_COUNTED_NOT, /* the counts began at 0, and no recount has ended since */
	KVC_COUNTED,
	KVC_COUNTED_DUE,  /* somebody died: they may be off */
	KVC_COUNTED_AGAIN /* the same, and a scan has begun since */
};

/* Key 0 marks a free slot; namespace hash 0 has this one. */
#define KVC_USAGE_KEY_OF_ZERO UINT64_MAX

struct kvc_usage_slot {
	_Atomic uint64_t key;
	_Atomic int64_t bytes;
	_Atomic int64_t objects;
	_Atomic uint64_t early; /* of what came and went before its folder was counted; packed() */
};

struct kvc_usage_file {
	uint8_t header[KVC_SHAREDFILE_HEADER];
	struct kvc_usage_slot others; /* key unused */
	_Atomic uint64_t recounted;   /* enum kvc_counted */
	_Atomic uint64_t scan;	      /* 0: none goes on */
	_Atomic uint64_t ended;	      /* recounts */
	_Atomic uint64_t hurried;     /* that of them is waited for */
	_Atomic uint64_t settled;     /* scans that are being settled, or were */
	_Atomic uint64_t boot_id[2];  /* of the kernel that counted last; 0, 0: not known */
	uint8_t spare[KVC_SHAREDFILE_HEADER - sizeof(struct kvc_usage_slot) - 7 * sizeof(uint64_t)];
	struct kvc_usage_slot slots[KVC_USAGE_SLOTS];
};

_Static_assert(sizeof(struct kvc_usage_slot) == 32, "slot");
_Static_assert(sizeof(struct kvc_usage_file) == 139264, "usage file");

struct kvc_usage_map {
	struct kvc_sharedfile *shared;
	struct kvc_usage_file *file;  /* what is mapped */
	char *loaded;		      /* where its counts were read; NULL: it counts itself */
	struct kvc_usage_base *bases; /* of a scan of this process, one per slot, then the others */
	uint64_t scan;		      /* the word of that scan, as this process left it */
};

/* The counts when a scan began. */
struct kvc_usage_base {
	uint64_t bytes; /* signed, added modulo 2^64: damaged counts may be anything */
	uint64_t objects;
};

/* The slot that counts a namespace. */
struct kvc_usage_slot *kvc_usage_slot_of(struct kvc_usage_file *file, uint64_t ns_hash);

/* In one order with the word of a scan, which is looked at next. */
void kvc_usage_add_to(struct kvc_usage_slot *slot, int64_t bytes, int64_t objects);

/* Of `recounted`, enum kvc_counted: from one to another, unless it is another by now. */
void kvc_usage_turn(struct kvc_usage_file *file, uint64_t was, uint64_t now);
void kvc_usage_mark_due(struct kvc_usage_file *file);

#endif
