/* SPDX-License-Identifier: Apache-2.0 */
/* Batches, and what is demanded of every result. */
#include "support/support.h"
#include "support/support_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNSET 0xffff

struct kvc_transfer transfer_of(struct pages *pages, int op, const struct kvc_key *keys,
				size_t count, const int64_t *indices, struct kvc_result *results)
{
	for (size_t i = 0; i < count; i++)
		results[i] = (struct kvc_result){ .status = UNSET, .cause = UNSET, .error = -1 };
	return (struct kvc_transfer){
		.size = sizeof(struct kvc_transfer),
		.op = (uint32_t)op,
		.pool = pages->pool,
		.keys = keys,
		.key_count = count,
		.indices = indices,
		.results = results,
		.ok_count = UNSET,
		.prefix_count = UNSET,
	};
}

void transfer_check(const struct kvc_transfer *transfer)
{
	size_t ok = 0;
	size_t prefix = 0;

	for (size_t i = 0; i < transfer->key_count; i++) {
		const struct kvc_result *result = &transfer->results[i];

		if (result->status > KVC_SKIPPED || result->cause >= KVC_CAUSE_COUNT ||
		    result->error < 0)
			fail_msg("page %zu has no proper result: status %u, cause %u, error %d", i,
				 result->status, result->cause, result->error);
		if (result->status == KVC_ERROR && result->error == 0)
			fail_msg("page %zu: error without an errno", i);
		if (result->status == KVC_OK && prefix == i)
			prefix++;
		ok += result->status == KVC_OK;
	}
	assert_int_equal(transfer->ok_count, ok);
	assert_int_equal(transfer->prefix_count, prefix);
}

void batch_at(struct kvc_store *store, struct pages *pages, int op, const struct kvc_key *keys,
	      const int64_t *indices, size_t count, uint32_t flags, uint32_t timeout_ms,
	      struct kvc_result *results)
{
	bool moves = op == KVC_GET || op == KVC_SET;
	int64_t *numbers = NULL;
	struct kvc_transfer transfer;
	int rc;

	if (indices == NULL && moves) {
		numbers = malloc((count + 1) * sizeof(*numbers));
		if (numbers == NULL)
			support_die("no memory");
		for (size_t i = 0; i < count; i++)
			numbers[i] = (int64_t)i;
	}
	transfer = transfer_of(pages, op, keys, count, indices ? indices : numbers, results);
	transfer.flags = flags;
	transfer.timeout_ms = timeout_ms;
	rc = kvc_batch_run(store, &transfer, 1);
	free(numbers);
	if (rc != 0)
		fail_msg("batch: %s: %s", strerror(-rc), kvc_last_error());
	transfer_check(&transfer);
}

void batch(struct kvc_store *store, struct pages *pages, int op, const struct kvc_key *keys,
	   size_t count, uint32_t flags, struct kvc_result *results)
{
	batch_at(store, pages, op, keys, NULL, count, flags, 0, results);
}

void expect_result_at(struct kvc_result result, int status, int cause, const char *file, int line)
{
	if (result.status == status && (cause < 0 || result.cause == cause))
		return;
	print_error("result is %s/%s (errno %d), expected %s/%s\n", kvc_status_name(result.status),
		    kvc_cause_name(result.cause), result.error, kvc_status_name(status),
		    cause < 0 ? "any" : kvc_cause_name(cause));
	_fail(file, line);
}

void expect_all_at(const struct kvc_result *results, size_t count, int status, const char *file,
		   int line)
{
	for (size_t i = 0; i < count; i++) {
		if (results[i].status == status)
			continue;
		print_error("page %zu of %zu:\n", i, count);
		expect_result_at(results[i], status, -1, file, line);
	}
}

size_t count_status(const struct kvc_result *results, size_t count, int status)
{
	size_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += results[i].status == status;
	return sum;
}

struct kvc_result do_set(struct kvc_store *store, struct pages *pages, struct kvc_key key,
			 uint32_t flags)
{
	struct kvc_result result;

	pages_fill(pages, 0, key_content(key));
	batch(store, pages, KVC_SET, &key, 1, flags, &result);
	return result;
}

struct kvc_result do_get(struct kvc_store *store, struct pages *pages, struct kvc_key key)
{
	struct kvc_result result;

	pages_wipe(pages);
	batch(store, pages, KVC_GET, &key, 1, 0, &result);
	if (result.status == KVC_OK && !pages_match(pages, 0, key_content(key)))
		fail_msg("wrong bytes");
	pages_check_gaps(pages);
	return result;
}

struct kvc_result do_exists(struct kvc_store *store, struct pages *pages, struct kvc_key key)
{
	struct kvc_result result;

	batch(store, pages, KVC_EXISTS, &key, 1, 0, &result);
	return result;
}

struct kvc_result do_remove(struct kvc_store *store, struct pages *pages, struct kvc_key key)
{
	struct kvc_result result;

	batch(store, pages, KVC_REMOVE, &key, 1, 0, &result);
	return result;
}

struct path_wanted {
	size_t number;
	char *out;
	bool found;
};

static int path_take(void *context, const struct kvc_object_info *info)
{
	struct path_wanted *wanted = context;

	if (wanted->number-- != 0)
		return 0;
	(void)snprintf(wanted->out, PATH_BYTES, "%s/%s", info->root_path, info->path);
	wanted->found = true;
	return 1;
}

bool page_path(struct kvc_pool *pool, struct kvc_key key, size_t number, char out[PATH_BYTES])
{
	struct path_wanted wanted = { .number = number, .out = out };
	int rc = kvc_pool_where(pool, key, path_take, &wanted);

	if (rc < 0)
		fail_msg("where: %s: %s", strerror(-rc), kvc_last_error());
	return wanted.found;
}

void page_unlink(struct kvc_pool *pool, struct kvc_key key)
{
	char path[PATH_BYTES];

	for (size_t i = 0; page_path(pool, key, i, path); i++)
		if (unlink(path) != 0)
			fail_msg("unlink %s: %s", path, strerror(errno));
}
