/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of registered buffers that a ring has. Any thread may change it while another one has
 * requests in the ring: a buffer that is taken out stays until the requests with it have ended.
 * Each call keeps the ring's lock in the kernel until it is done. 0 or a negative errno.
 */
#ifndef KVC_POSIX_TABLE_H
#define KVC_POSIX_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* POSIX_PIECES_MAX slots without buffers. */
int posix_table_make(int ring_fd);
void posix_table_end(int ring_fd);
/* Makes and pins the pages. */
int posix_table_pin(int ring_fd, uint32_t slot, void *addr, uint64_t bytes);
void posix_table_clear(int ring_fd, uint32_t slot, uint32_t count);
/* Pins the first and the last page for a moment. The ring has no table. */
int posix_table_try(int ring_fd, void *addr, uint64_t bytes);

/* The whole table, to a ring that has none; and one slot. The pages stay pinned once. */
int posix_table_copy(int from_fd, int to_fd);
int posix_table_copy_slot(int from_fd, int to_fd, uint32_t slot);
/* True: the kernel can do both. The table has no buffers yet. */
bool posix_table_copies(int ring_fd);

#endif
