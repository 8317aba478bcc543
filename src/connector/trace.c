/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/trace.h"

#include "core/hash.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES	(512u << 10)
#define LINE_KEYS	256u
#define LINE_HEAD_BYTES 192u
/* "<16 hex>", and the head and tail of a line. */
#define LINE_BYTES(n)	(LINE_HEAD_BYTES + (n)*19u)
#define MIN_BYTES	(64u << 10)
#define FILES_MAX	64
#define FLUSH_EVERY_MS	250

struct kvc_trace {
	char *path;	/* as given, or with its number */
	char *old_path; /* path.1 */
	uint64_t file_bytes_max;
	int64_t start_ns;
	time_t start_time;

	pthread_mutex_t lock; /* of everything below */
	pthread_cond_t wake;
	pthread_t writer;
	char *filling;	/* what callers append to */
	char *draining; /* what the writer writes; its own while it does */
	size_t filled;
	uint64_t dropped;
	bool ending;
	bool failed;

	/* The writer's. */
	int fd;
	uint64_t file_bytes;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* A small number per recording thread, so that a replay keeps the order inside of each. */
static uint32_t thread_number(void)
{
	static _Atomic uint32_t last;
	static _Thread_local uint32_t mine;

	if (mine == 0)
		mine = atomic_fetch_add(&last, 1) + 1;
	return mine;
}

static int write_all(int fd, const char *data, size_t bytes)
{
	while (bytes > 0) {
		ssize_t done = write(fd, data, bytes);

		if (done < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		data += done;
		bytes -= (size_t)done;
	}
	return 0;
}

static int write_header(struct kvc_trace *trace)
{
	char line[160];
	char when[32];
	struct tm parts;
	int length, error;

	gmtime_r(&trace->start_time, &parts);
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &parts);
	length = snprintf(line, sizeof(line),
			  "{\"kvcellar_trace\":1,\"started\":\"%s\",\"key_hash\":\"blake2b-64\"}\n",
			  when);
	error = write_all(trace->fd, line, (size_t)length);
	if (error == 0)
		trace->file_bytes = (uint64_t)length;
	return error;
}

static int open_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
		      0600);
	struct stat found;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
		close(fd);
		return -EINVAL;
	}
	return fd;
}

/* Opens and locks `path` as an empty file; what was in it moves to `old_path`. -EBUSY: another
 * process has it. The lock goes with the inode, hence the second look at the name. */
static int claim_file(const char *path, const char *old_path)
{
	for (int attempt = 0; attempt < 16; attempt++) {
		struct stat mine, named;
		int error, fd = open_file(path);

		if (fd < 0)
			return fd;
		if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
			error = errno == EWOULDBLOCK ? -EBUSY : -errno;
			close(fd);
			return error;
		}
		if (fstat(fd, &mine) != 0 || stat(path, &named) != 0 ||
		    mine.st_ino != named.st_ino || mine.st_dev != named.st_dev) {
			close(fd);
			continue;
		}
		if (mine.st_size == 0)
			return fd;
		error = rename(path, old_path) == 0 ? 0 : -errno;
		close(fd);
		if (error != 0)
			return error;
	}
	return -EBUSY;
}

static int rotate(struct kvc_trace *trace)
{
	int fd;

	if (rename(trace->path, trace->old_path) != 0)
		return -errno;
	fd = claim_file(trace->path, trace->old_path);
	if (fd < 0)
		return fd;
	close(trace->fd);
	trace->fd = fd;
	return write_header(trace);
}

/* Writes whole lines, rotating between them. */
static int write_lines(struct kvc_trace *trace, const char *data, size_t bytes)
{
	while (bytes > 0) {
		uint64_t space = trace->file_bytes_max > trace->file_bytes ?
					 trace->file_bytes_max - trace->file_bytes :
					 0;
		size_t take = bytes;
		int error;

		if (take > space) {
			const char *end = space > 0 ? memrchr(data, '\n', (size_t)space) : NULL;

			take = end != NULL ? (size_t)(end - data) + 1 : 0;
		}
		if (take == 0) {
			error = rotate(trace);
			if (error != 0)
				return error;
			continue;
		}
		error = write_all(trace->fd, data, take);
		if (error != 0)
			return error;
		trace->file_bytes += take;
		data += take;
		bytes -= take;
	}
	return 0;
}

/* Takes what is filled and writes it with the lock released. */
static void drain(struct kvc_trace *trace)
{
	char *data = trace->filling;
	size_t bytes = trace->filled;
	uint64_t dropped = trace->dropped;
	int error;

	trace->filling = trace->draining;
	trace->draining = data;
	trace->filled = 0;
	trace->dropped = 0;
	pthread_mutex_unlock(&trace->lock);

	error = write_lines(trace, data, bytes);
	if (error == 0 && dropped > 0) {
		char line[64];
		int length = snprintf(line, sizeof(line), "{\"dropped\":%" PRIu64 "}\n", dropped);

		error = write_lines(trace, line, (size_t)length);
	}
	if (error != 0)
		kvc_log(KVC_LOG_ERROR, "trace_file '%s': %s; recording ends", trace->path,
			strerrordesc_np(-error));

	pthread_mutex_lock(&trace->lock);
	if (error != 0)
		trace->failed = true;
}

static void *writer_main(void *argument)
{
	struct kvc_trace *trace = argument;

	pthread_mutex_lock(&trace->lock);
	while (!trace->failed && (!trace->ending || trace->filled > 0 || trace->dropped > 0)) {
		if (trace->filled == 0 && trace->dropped == 0) {
			pthread_cond_wait(&trace->wake, &trace->lock);
			continue;
		}
		if (!trace->ending && trace->filled < BUFFER_BYTES / 2) {
			struct timespec until;

			clock_gettime(CLOCK_MONOTONIC, &until);
			until.tv_nsec += FLUSH_EVERY_MS * 1000000l;
			until.tv_sec += until.tv_nsec / 1000000000;
			until.tv_nsec %= 1000000000;
			pthread_cond_timedwait(&trace->wake, &trace->lock, &until);
		}
		drain(trace);
	}
	pthread_mutex_unlock(&trace->lock);
	return NULL;
}

/* `path` itself, or the first of `path`-2 .. `path`-64 that no process records to. */
static int claim_path(struct kvc_trace *trace, const char *path)
{
	for (int number = 1; number <= FILES_MAX; number++) {
		char *name = NULL, *old = NULL;
		int fd;

		if ((number == 1 ? asprintf(&name, "%s", path) :
				   asprintf(&name, "%s-%d", path, number)) < 0)
			return kvc_fail(-ENOMEM, "trace_file: out of memory");
		if (asprintf(&old, "%s.1", name) < 0) {
			free(name);
			return kvc_fail(-ENOMEM, "trace_file: out of memory");
		}
		fd = claim_file(name, old);
		if (fd >= 0) {
			trace->path = name;
			trace->old_path = old;
			trace->fd = fd;
			return 0;
		}
		free(old);
		free(name);
		if (fd != -EBUSY)
			return kvc_fail(fd, "trace_file '%s': %s", path,
					fd == -EINVAL ? "not a regular file" :
							strerrordesc_np(-fd));
	}
	return kvc_fail(-EBUSY, "trace_file '%s': %d processes record there already", path,
			FILES_MAX);
}

static int start_writer(struct kvc_trace *trace)
{
	pthread_condattr_t attributes;
	int error;

	pthread_mutex_init(&trace->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&trace->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	error = pthread_create(&trace->writer, NULL, writer_main, trace);
	if (error == 0)
		return 0;
	pthread_cond_destroy(&trace->wake);
	pthread_mutex_destroy(&trace->lock);
	return kvc_fail(-EAGAIN, "trace_file '%s': no thread for it: %s", trace->path,
			strerrordesc_np(error));
}

int kvc_trace_open(const char *path, uint64_t max_bytes, struct kvc_trace **out)
{
	struct kvc_trace *trace;
	int error;

	if (path == NULL || path[0] == '\0')
		return kvc_fail(-EINVAL, "trace_file: the path is empty");
	if (max_bytes == 0)
		max_bytes = KVC_TRACE_MAX_BYTES_DEFAULT;
	if (max_bytes < MIN_BYTES)
		return kvc_fail(-EINVAL, "trace_file: at most %" PRIu64 " bytes is too little (%u)",
				max_bytes, MIN_BYTES);
	trace = calloc(1, sizeof(*trace));
	if (trace == NULL)
		return kvc_fail(-ENOMEM, "trace_file: out of memory");
	trace->file_bytes_max = max_bytes / 2;
	trace->start_ns = now_ns();
	trace->start_time = time(NULL);
	trace->filling = malloc(BUFFER_BYTES);
	trace->draining = malloc(BUFFER_BYTES);
	if (trace->filling == NULL || trace->draining == NULL) {
		error = kvc_fail(-ENOMEM, "trace_file: out of memory");
		goto free_trace;
	}
	error = claim_path(trace, path);
	if (error != 0)
		goto free_trace;
	error = write_header(trace);
	if (error != 0) {
		kvc_fail(error, "trace_file '%s': %s", trace->path, strerrordesc_np(-error));
		goto close_file;
	}
	error = start_writer(trace);
	if (error != 0)
		goto close_file;
	*out = trace;
	return 0;

close_file:
	close(trace->fd);
	free(trace->old_path);
	free(trace->path);
free_trace:
	free(trace->draining);
	free(trace->filling);
	free(trace);
	return error;
}

static const char *operation_name(uint32_t op)
{
	static const char *const names[KVC_OPERATION_COUNT] = {
		[KVC_EXISTS] = "exists",
		[KVC_GET] = "get",
		[KVC_SET] = "set",
		[KVC_REMOVE] = "remove",
	};

	return op < KVC_OPERATION_COUNT ? names[op] : "?";
}

/* The line of n hashed keys at `line`, which has LINE_BYTES(n); its length. Pool names need no
 * quoting: [a-z0-9_-]. */
static size_t format_line(char *line, double t_ms, uint32_t op, const char *pool_name,
			  const uint64_t *hashes, size_t n, size_t ok_count)
{
	static const char digits[] = "0123456789abcdef";
	int head = snprintf(line, LINE_HEAD_BYTES,
			    "{\"t_ms\":%.3f,\"op\":\"%s\",\"pool\":\"%.32s\",\"thread\":%" PRIu32
			    ",\"n\":%zu,\"ok\":%zu,\"keys\":[",
			    t_ms, operation_name(op), pool_name, thread_number(), n, ok_count);
	char *next = line + head;

	for (size_t i = 0; i < n; i++) {
		*next++ = '"';
		for (int shift = 60; shift >= 0; shift -= 4)
			*next++ = digits[(hashes[i] >> shift) & 15];
		*next++ = '"';
		if (i + 1 < n)
			*next++ = ',';
	}
	memcpy(next, "]}\n", 3);
	return (size_t)(next + 3 - line);
}

static void record_line(struct kvc_trace *trace, double t_ms, uint32_t op, const char *pool_name,
			const struct kvc_key *keys, size_t n, size_t ok_count)
{
	uint64_t hashes[LINE_KEYS];
	bool wake = false;

	for (size_t i = 0; i < n; i++)
		hashes[i] = kvc_blake2b_64(keys[i].data, keys[i].bytes);

	pthread_mutex_lock(&trace->lock);
	if (trace->failed) {
		/* Said once, by the writer. */
	} else if (BUFFER_BYTES - trace->filled < LINE_BYTES(n)) {
		trace->dropped++;
		wake = true;
	} else {
		wake = trace->filled == 0 || trace->filled >= BUFFER_BYTES / 2;
		trace->filled += format_line(trace->filling + trace->filled, t_ms, op, pool_name,
					     hashes, n, ok_count);
	}
	if (wake)
		pthread_cond_signal(&trace->wake);
	pthread_mutex_unlock(&trace->lock);
}

void kvc_trace_record(struct kvc_trace *trace, uint32_t op, const char *pool_name,
		      const struct kvc_key *keys, size_t n, size_t ok_count)
{
	double t_ms;

	if (trace == NULL)
		return;
	t_ms = (double)(now_ns() - trace->start_ns) / 1e6;
	for (size_t done = 0; done < n; done += LINE_KEYS) {
		size_t take = n - done < LINE_KEYS ? n - done : LINE_KEYS;
		size_t ok = ok_count > done ? ok_count - done : 0;

		record_line(trace, t_ms, op, pool_name, keys + done, take, ok < take ? ok : take);
	}
}

void kvc_trace_close(struct kvc_trace *trace)
{
	if (trace == NULL)
		return;
	pthread_mutex_lock(&trace->lock);
	trace->ending = true;
	pthread_cond_signal(&trace->wake);
	pthread_mutex_unlock(&trace->lock);
	pthread_join(trace->writer, NULL);
	pthread_cond_destroy(&trace->wake);
	pthread_mutex_destroy(&trace->lock);
	close(trace->fd);
	free(trace->old_path);
	free(trace->path);
	free(trace->draining);
	free(trace->filling);
	free(trace);
}
