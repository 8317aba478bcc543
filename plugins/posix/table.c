/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "buffers.h"

#include <liburing.h>
#include <string.h>

#define CLEAR_SLOTS 64u

/* linux/io_uring.h of 6.13. */
#define RING_CLONE_BUFFERS 30u
#define RING_CLONE_REPLACE (1u << 1)
struct ring_clone {
	uint32_t source_fd;
	uint32_t flags;
	uint32_t source_slot;
	uint32_t slot;
	uint32_t count; /* 0 = all */
	uint32_t reserved[3];
};

int posix_table_make(int ring_fd)
{
	struct io_uring_rsrc_register table = { .nr = POSIX_PIECES_MAX,
						.flags = IORING_RSRC_REGISTER_SPARSE };

	return posix_ring_register(ring_fd, IORING_REGISTER_BUFFERS2, &table, sizeof(table));
}

void posix_table_end(int ring_fd)
{
	(void)posix_ring_register(ring_fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
}

static int slots_update(int ring_fd, uint32_t slot, const struct iovec *iov, uint32_t count)
{
	struct io_uring_rsrc_update2 update = { .offset = slot,
						.data = (uintptr_t)iov,
						.nr = count };
	int result = posix_ring_register(ring_fd, IORING_REGISTER_BUFFERS_UPDATE, &update,
					 sizeof(update));

	return result < 0 ? result : 0;
}

int posix_table_pin(int ring_fd, uint32_t slot, void *addr, uint64_t bytes)
{
	const struct iovec iov = { .iov_base = addr, .iov_len = bytes };

	return slots_update(ring_fd, slot, &iov, 1);
}

void posix_table_clear(int ring_fd, uint32_t slot, uint32_t count)
{
	static const struct iovec none[CLEAR_SLOTS];

	while (count > 0) {
		uint32_t n = count < CLEAR_SLOTS ? count : CLEAR_SLOTS;

		(void)slots_update(ring_fd, slot, none, n);
		slot += n;
		count -= n;
	}
}

int posix_table_try(int ring_fd, void *addr, uint64_t bytes)
{
	struct iovec ends[2] = {
		{ .iov_base = addr, .iov_len = 1 },
		{ .iov_base = (char *)addr + bytes - 1, .iov_len = 1 },
	};
	int result = posix_ring_register(ring_fd, IORING_REGISTER_BUFFERS, ends, 2);

	if (result < 0)
		return result;
	posix_table_end(ring_fd);
	return 0;
}

static int tables_clone(int from_fd, int to_fd, struct ring_clone clone)
{
	int result;

	clone.source_fd = (uint32_t)from_fd;
	result = posix_ring_register(to_fd, RING_CLONE_BUFFERS, &clone, 1);
	return result < 0 ? result : 0;
}

int posix_table_copy(int from_fd, int to_fd)
{
	const struct ring_clone all = { .count = 0 };

	return tables_clone(from_fd, to_fd, all);
}

int posix_table_copy_slot(int from_fd, int to_fd, uint32_t slot)
{
	const struct ring_clone one = {
		.flags = RING_CLONE_REPLACE, .source_slot = slot, .slot = slot, .count = 1
	};

	return tables_clone(from_fd, to_fd, one);
}

bool posix_table_copies(int ring_fd)
{
	struct io_uring other;
	bool can;

	if (io_uring_queue_init(1, &other, 0) != 0)
		return false;
	can = posix_table_copy(ring_fd, other.ring_fd) == 0 &&
	      posix_table_copy_slot(ring_fd, other.ring_fd, 0) == 0;
	io_uring_queue_exit(&other);
	return can;
}
