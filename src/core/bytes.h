/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_CORE_BYTES_H
#define KVC_CORE_BYTES_H

#include <stdint.h>

/* What is left of some, 0 at least. */
static inline uint64_t kvc_bytes_less(uint64_t bytes, uint64_t what)
{
	return bytes > what ? bytes - what : 0;
}

#endif
