/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcellar/memory.h - how a piece of memory is described, to the library and to plugins.
 *
 * Included by kvcellar.h (callers) and plugin.h (plugin writers), so that neither needs the other.
 */
#ifndef KVCELLAR_MEMORY_H
#define KVCELLAR_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVC_API __attribute__((visibility("default")))
#else
#define KVC_API
#endif

/* Where memory lives. Since 0.1. */
enum kvc_memory_kind {
	KVC_MEMORY_HOST = 0, /* addressable by the CPU */
	KVC_MEMORY_CUDA = 1, /* CUDA device memory: addr is a device pointer, device its ordinal */
	KVC_MEMORY_PLUGIN = 2, /* host memory that a plugin handed out (3FS iov, GUSLI, UCX) */
};

enum kvc_memory_flag {
	KVC_MEMORY_DISCARD = 1u << 0, /* its content may be lost when it is registered */
};

/*
 * struct kvc_memory - one contiguous region. Since 0.1.
 * @size       sizeof(struct kvc_memory); fields past it are taken as 0
 * @kind       enum kvc_memory_kind
 * @device     ordinal of the CUDA device; 0 for host memory
 * @addr       first byte; need not be aligned
 * @bytes      length, > 0
 * @fd         memfd or dma-buf that backs the region, or <= 0 when there is none
 * @fd_offset  where the region begins in fd
 * @flags      enum kvc_memory_flag
 * The region stays the caller's; it must stay mapped until it is deregistered.
 */
struct kvc_memory {
	size_t size;
	uint32_t kind;
	int32_t device;
	void *addr;
	uint64_t bytes;
	int32_t fd;
	uint32_t flags;
	uint64_t fd_offset;
};

#ifdef __cplusplus
}
#endif
#endif
