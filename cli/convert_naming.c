/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcellar convert between namings. File names of the nixl naming tell neither namespace nor parts:
 * the options give both, and the pages of that one pool (or single objects) go through a pool of
 * each store, as an engine would read and write them.
 */
#include "convert.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- opening */

/* How names of the first object of a page end: what a key of one byte leaves. */
static int note_suffix(void *context, const struct kvc_object_info *info)
{
	struct convert *convert = context;

	if (convert->suffix[0] == '\0')
		(void)snprintf(convert->suffix, sizeof(convert->suffix), "%s", info->name + 1);
	return 0;
}

static int make_buffers(struct convert *convert, struct kvc_buffer *buffers, const uint64_t *sizes)
{
	for (uint32_t p = 0; p < convert->part_count; p++) {
		buffers[p].bytes = sizes[p];
		if (posix_memalign(&buffers[p].addr, 4096, sizes[p]))
			return cli_fail_errno(convert->cli, -ENOMEM, "convert");
	}
	return 0;
}

/* A rank with several head groups has as many of each part. */
static void add_groups(const struct kvc_pool *pool, uint64_t *sizes, uint32_t count)
{
	struct kvc_pool_info info = { .size = sizeof(info) };
	uint64_t bytes = 0;

	for (uint32_t p = 0; p < count; p++)
		bytes += sizes[p];
	if (kvc_pool_query(pool, &info) < 0 || bytes == 0)
		return;
	for (uint32_t p = 0; p < count; p++)
		sizes[p] *= info.page_bytes / bytes;
}

static int open_pools(struct convert *convert)
{
	struct kvc_cli *cli = convert->cli;
	uint64_t sizes[CLI_PARTS_MAX];
	int rc;

	rc = cli_pool_open(cli, convert->from_ns, &convert->from_pool, sizes, &convert->part_count);
	if (rc == 0)
		rc = cli_pool_open(cli, convert->to_ns, &convert->to_pool, NULL, NULL);
	if (rc)
		return rc;
	add_groups(convert->from_pool, sizes, convert->part_count);
	rc = make_buffers(convert, convert->buffers, sizes);
	return rc ? rc : make_buffers(convert, convert->others, sizes);
}

int cli_naming_begin(struct convert *convert)
{
	static const struct kvc_key probe = { "p", 1 };
	struct kvc_cli *cli = convert->cli;
	int rc;

	cli->ns.params.is_writer = KVC_YES; /* what only one rank stores is stored here, too */
	rc = cli_namespace_open(cli, &convert->from_ns);
	if (rc == 0)
		rc = cli_namespace_open_in(cli, convert->to, &convert->to_ns);
	if (rc == 0 && cli->ns.part_bytes)
		rc = open_pools(convert);
	if (rc)
		return rc;
	rc = convert->from_pool ? kvc_pool_where(convert->from_pool, probe, note_suffix, convert) :
				  kvc_object_where(convert->from_ns, cli_pool_name(cli), probe,
						   note_suffix, convert);
	return rc < 0 ? cli_fail(cli, rc, "convert") : 0;
}

void cli_naming_end(struct convert *convert)
{
	(void)kvc_pool_close(convert->from_pool);
	(void)kvc_pool_close(convert->to_pool);
	(void)kvc_namespace_close(convert->to_ns);
	for (uint32_t p = 0; p < convert->part_count; p++) {
		free(convert->buffers[p].addr);
		free(convert->others[p].addr);
	}
}

/* ---------------------------------------------------------------- pages */

static int errno_of(const struct kvc_result *result)
{
	switch (result->status) {
	case KVC_OK:
		return 0;
	case KVC_MISS:
		return result->cause == KVC_CAUSE_ABSENT ? -ENOENT : -ENOTSUP;
	case KVC_CORRUPT:
		return -EBADMSG;
	default:
		return result->error ? -result->error : -EIO;
	}
}

static int transfer(struct convert *convert, struct kvc_store *store, struct kvc_pool *pool, int op,
		    struct kvc_key key, struct kvc_buffer *buffers, struct kvc_result *result)
{
	struct kvc_transfer one = {
		.size = sizeof(one),
		.op = (uint32_t)op,
		.flags = op == KVC_SET && convert->arguments->overwrite ? KVC_TRANSFER_OVERWRITE :
									  0,
		.pool = pool,
		.keys = &key,
		.key_count = 1,
		.timeout_ms = (uint32_t)convert->arguments->timeout_seconds * 1000,
		.buffers = buffers,
		.results = result,
	};
	const int rc = kvc_batch_run(store, &one, 1);

	return rc < 0 ? rc : errno_of(result);
}

static bool same_page(const struct convert *convert)
{
	for (uint32_t p = 0; p < convert->part_count; p++)
		if (memcmp(convert->buffers[p].addr, convert->others[p].addr,
			   convert->buffers[p].bytes) != 0)
			return false;
	return true;
}

static int convert_page(struct convert *convert, struct kvc_key key)
{
	const struct convert_arguments *arguments = convert->arguments;
	struct kvc_store *from = convert->cli->store;
	struct kvc_result result, read_back;
	int rc;

	rc = transfer(convert, from, convert->from_pool, KVC_GET, key, convert->buffers, &result);
	/* The first object is there: another one of the page is not. */
	if (rc == -ENOENT)
		rc = -ENOTSUP;
	if (rc || arguments->dry_run)
		return rc;
	rc = transfer(convert, convert->to, convert->to_pool, KVC_SET, key, convert->buffers,
		      &result);
	if (rc)
		return rc == -ENOENT ? -EIO : rc;
	rc = transfer(convert, convert->to, convert->to_pool, KVC_GET, key, convert->others,
		      &read_back);
	if (rc)
		return rc == -ENOENT || rc == -EBADMSG || rc == -ENOTSUP ? -EIO : rc;
	if (!same_page(convert))
		return result.cause == KVC_CAUSE_EXISTED ? -EEXIST : -EIO;
	if (arguments->move)
		rc = transfer(convert, from, convert->from_pool, KVC_REMOVE, key, NULL, &read_back);
	if (rc && rc != -ENOENT)
		return rc;
	return result.cause == KVC_CAUSE_EXISTED ? CONVERT_EXISTED : CONVERT_COPIED;
}

/* ---------------------------------------------------------------- single objects */

/* Reads it whole; -ENOENT, -EBADMSG, ... *out is for free(). */
static int read_object(struct kvc_namespace *ns, const char *pool, struct kvc_key key,
		       uint32_t timeout_ms, char **out, size_t *out_bytes)
{
	size_t bytes = 0;
	const int rc = kvc_object_exists(ns, pool, key, &bytes, timeout_ms);

	if (rc <= 0)
		return rc == 0 ? -ENOTSUP : rc;
	return cli_object_read(ns, pool, key, timeout_ms, bytes, out, out_bytes);
}

static int store_object(struct convert *convert, const char *pool, struct kvc_key key,
			const char *data, size_t bytes, uint32_t timeout_ms)
{
	char *other = NULL;
	size_t other_bytes = 0;
	int existed = 0, rc;

	/* One of another size would be replaced. */
	rc = kvc_object_exists(convert->to_ns, pool, key, &other_bytes, timeout_ms);
	if (rc == 1 && other_bytes != bytes && !convert->arguments->overwrite)
		return -EEXIST;
	existed = kvc_object_put(convert->to_ns, pool, key, data, bytes,
				 convert->arguments->overwrite ? KVC_OBJECT_OVERWRITE : 0,
				 timeout_ms);
	if (existed < 0)
		return existed;
	rc = read_object(convert->to_ns, pool, key, timeout_ms, &other, &other_bytes);
	if (rc)
		return -EIO;
	if (other_bytes != bytes || memcmp(other, data, bytes) != 0)
		rc = existed ? -EEXIST : -EIO;
	free(other);
	return rc ? rc : existed;
}

static int convert_object(struct convert *convert, struct kvc_key key)
{
	const uint32_t timeout_ms = (uint32_t)convert->arguments->timeout_seconds * 1000;
	const char *pool = cli_pool_name(convert->cli);
	char *data = NULL;
	size_t bytes = 0;
	int rc, removed;

	rc = read_object(convert->from_ns, pool, key, timeout_ms, &data, &bytes);
	if (rc || convert->arguments->dry_run) {
		free(data);
		return rc;
	}
	rc = store_object(convert, pool, key, data, bytes, timeout_ms);
	free(data);
	if (rc < 0 || !convert->arguments->move)
		return rc;
	removed = kvc_object_remove(convert->from_ns, pool, key, timeout_ms);
	return removed < 0 ? removed : rc;
}

/* ---------------------------------------------------------------- one of the list */

int cli_naming_one(struct convert *convert, const struct kvc_object_info *info)
{
	const size_t bytes = strlen(info->name), suffix = strlen(convert->suffix);
	struct kvc_key key = info->key;

	if (!convert->from_nixl && strcmp(info->ns_id, kvc_namespace_id(convert->from_ns)) != 0)
		return CONVERT_NOT_ASKED;
	/* A name that is only a hash may be of any pool. */
	if (!convert->from_nixl && !info->pool_name)
		return -ENOTSUP;
	if (bytes < suffix || strcmp(info->name + bytes - suffix, convert->suffix) != 0)
		return CONVERT_NOT_ASKED;
	if (convert->from_nixl)
		key = (struct kvc_key){ info->name, bytes - suffix };
	return convert->from_pool ? convert_page(convert, key) : convert_object(convert, key);
}
