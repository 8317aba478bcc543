/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder behind `trace_file`: which pages were asked for, when, and how many were OK, as JSON
 * lines that `kvcellar replay` plays (docs/trace-format.md). Keys are written hashed.
 *
 * A call hashes and formats its keys into memory; one thread of the trace writes them out. When it
 * cannot keep up, calls are left out of the recording and counted there, and nobody waits. A file
 * that cannot be written is given up with one warning.
 */
#ifndef KVC_CONNECTOR_TRACE_H
#define KVC_CONNECTOR_TRACE_H

#include <kvcellar/kvcellar.h>

#include <stddef.h>
#include <stdint.h>

struct kvc_trace;

#define KVC_TRACE_MAX_BYTES_DEFAULT (64ull << 20)

/*
 * kvc_trace_open - starts a recording. What `path` held before becomes `path`.1.
 * @path       when another process records there: `path`-2, `path`-3, ...
 * @max_bytes  of `path` and `path`.1 together, at least 64 KiB; 0 = 64 MiB
 * Errors: -EINVAL (max_bytes); -ENOENT, -EACCES, -EROFS, ... (path); -EBUSY (64 processes record
 * there); -ELOOP (path is a symlink); -EAGAIN (no thread).
 */
int kvc_trace_open(const char *path, uint64_t max_bytes, struct kvc_trace **out);

/*
 * kvc_trace_record - one transfer. Thread-safe; does nothing when trace is NULL.
 * @op        enum kvc_operation
 * @ok_count  pages that ended OK
 */
void kvc_trace_record(struct kvc_trace *trace, uint32_t op, const char *pool_name,
		      const struct kvc_key *keys, size_t n, size_t ok_count);

/* kvc_trace_close - writes what is recorded and ends. NULL: nothing. */
void kvc_trace_close(struct kvc_trace *trace);

#endif
