/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files of counters that processes map: what the stats page and the usage file share. Each
 * begins with a header that never changes once it is written; its last 4 bytes are the CRC32C of
 * those before. Blocks are allocated before the file is mapped, so that a full disk is an error
 * of a call and no SIGBUS; a file that is cut or cannot be read becomes zeros (core/guard.h).
 */
#ifndef KVC_CORE_MAPFILE_H
#define KVC_CORE_MAPFILE_H

#include "core/guard.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The first fields of every header; little-endian, as everything in these files. */
struct kvc_mapfile_header {
	uint8_t magic[8];
	uint16_t major;
	uint16_t minor;
	uint32_t header_bytes;
	uint64_t file_bytes;
};

/* Counters are added to in place, in the byte order of the machine: others than little-endian ones
 * keep them in memory. */
#define KVC_MAPFILE_POSSIBLE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

/* Fields of one kind of file, in the byte order of the machine. */
struct kvc_mapfile_kind {
	char magic[8];
	uint16_t major;
	uint16_t minor;
	uint32_t header_bytes;
	uint64_t file_bytes;
};

/*
 * kvc_mapfile_fill - makes an empty file whole: mode, blocks, header, zeros.
 * @header   header_bytes of it, with the fields after struct kvc_mapfile_header set; the common
 *           ones and the CRC are written into it
 * Errors: of fchmod, fallocate (-ENOSPC) and write.
 */
int kvc_mapfile_fill(int fd, mode_t mode, const struct kvc_mapfile_kind *kind, uint8_t *header);

/*
 * kvc_mapfile_check - reads the header and looks whether the file can be mapped.
 * @header   gets header_bytes
 * Errors: -ENOMSG (not such a file, or too short to tell), -EPROTONOSUPPORT (another major),
 * -EBADMSG (damaged, or too short), of fstat and read.
 */
int kvc_mapfile_check(int fd, const struct kvc_mapfile_kind *kind, uint8_t *header);

/* The bytes of a file of its kind. The struct can be moved, the memory stays where it is. */
struct kvc_mapfile_mapping {
	void *memory;		 /* NULL: none */
	struct kvc_guard *guard; /* NULL: no file was ever attached */
};

/* Zeroed memory of this process. -ENOMEM. */
int kvc_mapfile_map(const struct kvc_mapfile_kind *kind, struct kvc_mapfile_mapping *mapping);

/*
 * kvc_mapfile_attach - the file in the place of what is mapped, in one step while others use it; on
 * failure that stays. detach: zeroed memory of this process in its place again.
 * Errors: of mmap, -ENOMEM.
 */
int kvc_mapfile_attach(int fd, const struct kvc_mapfile_kind *kind,
		       struct kvc_mapfile_mapping *mapping);
int kvc_mapfile_detach(const struct kvc_mapfile_kind *kind, struct kvc_mapfile_mapping *mapping);

/* Zeros: does nothing. */
void kvc_mapfile_unmap(const struct kvc_mapfile_kind *kind, struct kvc_mapfile_mapping *mapping);

#endif
