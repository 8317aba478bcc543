/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_TESTS_SUPPORT_INTERNAL_H
#define KVC_TESTS_SUPPORT_INTERNAL_H

/* A helper that cannot do its work: ends the process with 99. */
__attribute__((noreturn, format(printf, 1, 2))) void support_die(const char *format, ...);
void folders_begin(void);
/* Ends all mounts that this process made; called before folders are removed. */
void mounts_end_all(void);

#endif
