/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a key that stand for themselves in a name: [A-Za-z0-9_@=+-]. */
#ifndef KVC_CONNECTOR_NAME_BYTES_H
#define KVC_CONNECTOR_NAME_BYTES_H

#include <stdbool.h>
#include <stdint.h>

static inline bool kvc_name_byte_is_plain(uint8_t byte)
{
	/* Bit b of word b / 32; bytes 0x80 and above have none. */
	static const uint32_t plain[8] = { 0, 0x23ff2800, 0x87ffffff, 0x07fffffe, 0, 0, 0, 0 };

	return plain[byte / 32] >> byte % 32 & 1;
}

#endif
