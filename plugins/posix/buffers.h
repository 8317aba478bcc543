/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: pinned once by the kernel, so that an io_uring request need not do it.
 *
 * A region is pinned in pieces by a thread of the backend; memory_register() only notes it down.
 * Where the kernel can share pinned pages between rings (6.13), a ring of the backend's own pins
 * them, and each queue's ring gets a copy of its table: no queue waits for the pinning, which
 * keeps a ring's lock as long as it takes, and one set of kernel structures (about 5 MiB per GiB)
 * serves all queues. Elsewhere the rings of the first two queues pin the memory themselves.
 * Until a ring has a piece, I/O with it goes unregistered.
 */
#ifndef KVC_POSIX_BUFFERS_H
#define KVC_POSIX_BUFFERS_H

#include <kvcellar/plugin.h>

#include <stdatomic.h>
#include <stdbool.h>

/* At most 1 GiB for the kernel; smaller, since deregistering waits for the one at work. */
#define POSIX_PIECE_BYTES (UINT64_C(256) << 20)
/* All regions together. */
#define POSIX_PIECES_MAX  4096u

struct posix_buffers;

struct posix_piece {
	_Atomic uint32_t held; /* bit m: the ring of member m has it */
	uint32_t tried;	       /* bit m: it was given, or could not be */
	bool pinned;	       /* by the ring of the backend */
};

/* A registration is the address of one. All but the pieces' held is used under the lock. */
struct posix_region {
	struct posix_region *next;
	unsigned char *addr;
	uint64_t bytes;
	uint32_t slot; /* of the first piece in the table of every ring */
	uint32_t piece_count;
	int error; /* it cannot be pinned: nothing of it is registered */
	bool withdrawn;
	struct posix_piece pieces[];
};

int posix_buffers_create(const struct kvc_host *host, struct posix_buffers **out);
/* No queue is open. Ends the thread and forgets all regions. */
void posix_buffers_destroy(struct posix_buffers *buffers);

/* Notes the region down. -ENOTSUP: this kernel cannot; -ENOMEM: more than may be locked, with the
 * reason. */
int posix_buffers_register(struct posix_buffers *buffers, const struct kvc_memory *memory,
			   uint64_t *out_registration);
/* No I/O uses the region any more. Waits for what is being pinned of it, a piece at most; the
 * pages are given back by the thread. */
int posix_buffers_deregister(struct posix_buffers *buffers, uint64_t registration);
/* What cannot be pinned and why, or "". */
void posix_buffers_note(struct posix_buffers *buffers, char *out, size_t bytes);

/* A ring that wants the buffers: its number, or -1 when no more rings may have them. */
int posix_buffers_join(struct posix_buffers *buffers, int ring_fd);
/* The ring has no request in flight, and is closed next. */
void posix_buffers_leave(struct posix_buffers *buffers, int member);

/* The index of the buffer of this member that has all these bytes, or -1. By any thread, as long
 * as the registration lives. */
static inline int posix_buffer_find(uint64_t registration, int member, const void *addr,
				    uint64_t bytes)
{
	struct posix_region *region = (struct posix_region *)(uintptr_t)registration;
	uint64_t at;
	uint64_t piece;
	uint32_t held;

	if (region == NULL || bytes == 0 || (uintptr_t)addr < (uintptr_t)region->addr)
		return -1;
	at = (uintptr_t)addr - (uintptr_t)region->addr;
	if (at >= region->bytes || bytes > region->bytes - at)
		return -1;
	piece = at / POSIX_PIECE_BYTES;
	if ((at + bytes - 1) / POSIX_PIECE_BYTES != piece)
		return -1;
	held = atomic_load_explicit(&region->pieces[piece].held, memory_order_acquire);
	return (held & (1u << member)) != 0 ? (int)(region->slot + piece) : -1;
}

/* ring_register.c: io_uring_register(2); what it returns, or a negative errno. */
int posix_ring_register(int ring_fd, unsigned int what, void *argument, unsigned int count);

#endif
