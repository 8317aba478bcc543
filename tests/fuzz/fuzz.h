/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_TESTS_FUZZ_H
#define KVC_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* The one function of a target. Returns 0; a defect shows as a crash, an abort or a sanitizer's
 * report. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
