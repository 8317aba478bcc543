/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_CORE_CRC_H
#define KVC_CORE_CRC_H

#include <isa-l/crc.h>
#include <stddef.h>
#include <stdint.h>

/* CRC32C (Castagnoli) of at most INT_MAX bytes. ISA-L takes a pointer to non-const and leaves the
 * final inversion to the caller. */
static inline uint32_t kvc_crc32c(const void *data, size_t bytes)
{
	return ~crc32_iscsi((unsigned char *)(uintptr_t)data, (int)bytes, ~0u);
}

#endif
