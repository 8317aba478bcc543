/* SPDX-License-Identifier: Apache-2.0 */
/* The cursor of kvcellar convert: which objects are done. */
#include "convert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES    64u
#define HEAD_TEXT     "kvcellar convert 1 "
#define FLUSH_RECORDS 1024u
#define FLUSH_S	      1

__extension__ typedef unsigned __int128 cursor_hash;

struct cursor {
	int fd;
	char *path;
	cursor_hash *table; /* open addressing; 0: empty */
	size_t room;	    /* a power of two */
	size_t count;
	cursor_hash pending[FLUSH_RECORDS];
	size_t pending_count;
	time_t flushed_s;
	off_t end; /* of the whole records */
};

/* FNV-1a of 128 bits: two objects of a store with one value do not happen. */
static cursor_hash add_bytes(cursor_hash hash, const void *data, size_t bytes)
{
	const cursor_hash prime = (cursor_hash)1 << 88 | 0x13b;
	const unsigned char *at = data;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ at[i]) * prime;
	return hash;
}

static cursor_hash add_text(cursor_hash hash, const char *text)
{
	return add_bytes(hash, text, strlen(text) + 1);
}

static const cursor_hash hash_start = (cursor_hash)0x6c62272e07bb0142 << 64 | 0x62b821756295c58d;

static cursor_hash hash_of(const struct kvc_object_info *info)
{
	cursor_hash hash = add_text(hash_start, info->root_path);

	hash = add_text(hash, info->path);
	hash = add_text(hash, info->name);
	hash = add_bytes(hash, &info->stored_bytes, sizeof(info->stored_bytes));
	hash = add_bytes(hash, &info->modified_ns, sizeof(info->modified_ns));
	return hash ? hash : 1;
}

static time_t now_s(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

/* ---------------------------------------------------------------- the set */

static size_t place_of(const struct cursor *cursor, cursor_hash hash)
{
	size_t at = (size_t)hash & (cursor->room - 1);

	while (cursor->table[at] && cursor->table[at] != hash)
		at = (at + 1) & (cursor->room - 1);
	return at;
}

static int set_grow(struct cursor *cursor)
{
	const size_t room = cursor->room;
	cursor_hash *table = cursor->table;

	cursor->room = room ? 2 * room : 4096;
	cursor->table = calloc(cursor->room, sizeof(*table));
	if (!cursor->table) {
		cursor->table = table;
		cursor->room = room;
		return -ENOMEM;
	}
	for (size_t i = 0; i < room; i++)
		if (table[i])
			cursor->table[place_of(cursor, table[i])] = table[i];
	free(table);
	return 0;
}

static int set_add(struct cursor *cursor, cursor_hash hash)
{
	int rc = cursor->count >= cursor->room / 2 ? set_grow(cursor) : 0;
	size_t at;

	if (rc)
		return rc;
	at = place_of(cursor, hash);
	cursor->count += cursor->table[at] == 0;
	cursor->table[at] = hash;
	return 0;
}

bool cli_cursor_has(const struct cursor *cursor, const struct kvc_object_info *info)
{
	return cursor && cursor->table[place_of(cursor, hash_of(info))] != 0;
}

/* ---------------------------------------------------------------- the file */

/* "kvcellar convert 1 <32 hex>\n", filled up with spaces. */
static void make_head(const char *identity, char out[HEAD_BYTES + 1])
{
	const cursor_hash hash = add_text(hash_start, identity);

	(void)snprintf(out, HEAD_BYTES + 1, HEAD_TEXT "%016llx%016llx%*s\n",
		       (unsigned long long)(hash >> 64), (unsigned long long)hash,
		       (int)(HEAD_BYTES - sizeof(HEAD_TEXT) - 32), "");
}

static int write_all(int fd, const void *data, size_t bytes, off_t at)
{
	const char *from = data;

	while (bytes > 0) {
		const ssize_t n = pwrite(fd, from, bytes, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		from += n;
		at += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int read_records(struct cursor *cursor, off_t bytes)
{
	int rc = 0;

	for (cursor->end = HEAD_BYTES; !rc;) {
		cursor_hash records[256];
		const ssize_t n = pread(cursor->fd, records, sizeof(records), cursor->end);

		if (n < 0)
			return -errno;
		for (size_t i = 0; i < (size_t)n / sizeof(records[0]) && !rc; i++)
			rc = set_add(cursor, records[i]);
		cursor->end += n / (ssize_t)sizeof(records[0]) * (ssize_t)sizeof(records[0]);
		if ((size_t)n < sizeof(records))
			break;
	}
	return rc == 0 && cursor->end < bytes && ftruncate(cursor->fd, cursor->end) ? -errno : rc;
}

static int load(struct kvc_cli *cli, struct cursor *cursor, const char *identity)
{
	char want[HEAD_BYTES + 1], have[HEAD_BYTES + 1] = "";
	struct stat status;
	int rc = 0;

	make_head(identity, want);
	if (fstat(cursor->fd, &status) < 0)
		return cli_fail_errno(cli, -errno, "cursor '%.200s'", cursor->path);
	if (!S_ISREG(status.st_mode))
		return cli_error(cli, CLI_USAGE, "cursor '%.200s' is no file", cursor->path);
	if (flock(cursor->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return cli_error(cli, CLI_USAGE, "cursor '%.200s' is in use", cursor->path);
	if (pread(cursor->fd, have, HEAD_BYTES, 0) < 0)
		return cli_fail_errno(cli, -errno, "cursor '%.200s'", cursor->path);
	if (status.st_size > 0 && strncmp(have, HEAD_TEXT, strlen(HEAD_TEXT)) != 0)
		return cli_error(cli, CLI_USAGE, "'%.200s' is no cursor of kvcellar convert",
				 cursor->path);
	if (status.st_size > 0 && strcmp(have, want) != 0)
		return cli_error(cli, CLI_USAGE,
				 "cursor '%.200s' is of a conversion between other directories, or "
				 "of another pool: name another file, or delete it if that one is "
				 "not to go on",
				 cursor->path);
	if (status.st_size == 0)
		rc = write_all(cursor->fd, want, HEAD_BYTES, 0);
	if (!rc)
		rc = read_records(cursor, status.st_size);
	return rc ? cli_fail_errno(cli, rc, "cursor '%.200s'", cursor->path) : 0;
}

int cli_cursor_open(struct kvc_cli *cli, const char *path, const char *identity,
		    struct cursor **out)
{
	struct cursor *cursor = calloc(1, sizeof(*cursor));
	int rc;

	if (!cursor)
		return cli_fail_errno(cli, -ENOMEM, "cursor");
	cursor->flushed_s = now_s();
	cursor->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
	if (cursor->fd < 0) {
		rc = cli_fail_file(cli, -errno, path);
		free(cursor);
		return rc;
	}
	cursor->path = strdup(path);
	rc = cursor->path && set_grow(cursor) == 0 ? load(cli, cursor, identity) :
						     cli_fail_errno(cli, -ENOMEM, "cursor");
	if (rc)
		cli_cursor_close(cursor, false);
	else
		*out = cursor;
	return rc;
}

int cli_cursor_add(struct cursor *cursor, const struct kvc_object_info *info)
{
	const cursor_hash hash = hash_of(info);

	if (cursor->pending_count == FLUSH_RECORDS)
		return -EAGAIN;
	cursor->pending[cursor->pending_count++] = hash;
	return set_add(cursor, hash);
}

bool cli_cursor_is_due(const struct cursor *cursor)
{
	return cursor->pending_count == FLUSH_RECORDS ||
	       (cursor->pending_count > 0 && now_s() - cursor->flushed_s >= FLUSH_S);
}

void cli_sync_roots(const json_t *roots)
{
	const json_t *one;
	size_t i;

	json_array_foreach(roots, i, one)
	{
		const char *path = json_string_value(one);
		const int fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

		if (fd < 0)
			continue; /* a bucket, a device */
		(void)syncfs(fd);
		(void)close(fd);
	}
}

int cli_cursor_flush(struct cursor *cursor, const json_t *to_roots)
{
	const size_t bytes = cursor->pending_count * sizeof(cursor->pending[0]);
	int rc;

	cursor->flushed_s = now_s();
	if (bytes == 0)
		return 0;
	cli_sync_roots(to_roots);
	rc = write_all(cursor->fd, cursor->pending, bytes, cursor->end);
	if (!rc && fdatasync(cursor->fd) < 0)
		rc = -errno;
	if (rc)
		return rc;
	cursor->end += (off_t)bytes;
	cursor->pending_count = 0;
	return 0;
}

void cli_cursor_close(struct cursor *cursor, bool done)
{
	if (!cursor)
		return;
	/* One that notes nothing is of no use. */
	if (done || cursor->end == HEAD_BYTES)
		(void)unlink(cursor->path);
	(void)close(cursor->fd);
	free(cursor->table);
	free(cursor->path);
	free(cursor);
}
