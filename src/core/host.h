/* SPDX-License-Identifier: Apache-2.0 */
/* Which host this is, and since when it runs: what lies in mapped files is worth no more than the
 * memory that it was in. */
#ifndef KVC_CORE_HOST_H
#define KVC_CORE_HOST_H

#include <stdint.h>

/* Boot id of the kernel. Errors: of /proc/sys/kernel/random/boot_id; the text names it. */
int kvc_host_boot_id(uint64_t out[2]);
/* Machine id of the host, zeros where there is none. */
void kvc_host_machine_id(uint8_t out[32]);

#endif
