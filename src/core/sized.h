/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of the public headers that begin with their size: may grow at the end. */
#ifndef KVC_CORE_SIZED_H
#define KVC_CORE_SIZED_H

#include <stddef.h>

/* Whether a struct of the caller's is one that this library can read: -EINVAL (too small), -E2BIG
 * (a field that is not known here is set). */
int kvc_struct_check(const void *data, size_t size, size_t known, const char *what);

/* The same for one that the library fills: what it does not know becomes 0. -EINVAL. */
int kvc_struct_output(void *data, size_t size, size_t known, const char *what);

#endif
