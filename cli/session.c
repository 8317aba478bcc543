/* SPDX-License-Identifier: Apache-2.0 */
/* The store, namespace, pool and keys of a command. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OBJECT_BLOCK 4096u
#define READ_RETRIES 8 /* of an object that grows */

/* With the configuration of a server, a command that looks at what the server does takes neither
 * the place of its metrics nor that of its recording. */
static int leave_files_of_others(struct kvc_cli *cli)
{
	static const char *const files[] = { "metrics_file", "metrics_listen", "trace_file" };
	int rc = 0;

	if (strcmp(cli->command, "replay") == 0 || strcmp(cli->command, "bench") == 0)
		return 0;
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && rc == 0; i++)
		if (!cli_overrides_has(&cli->overrides, files[i]))
			rc = kvc_config_set(cli->config, files[i], "");
	return rc;
}

int cli_store_open(struct kvc_cli *cli, unsigned flags)
{
	struct kvc_open_params params = { .size = sizeof(params), .flags = flags };
	int rc = leave_files_of_others(cli);

	if (rc < 0)
		return cli_fail(cli, rc, "configuration");
	rc = kvc_store_open(cli->config, &params, &cli->store);
	if (rc < 0)
		return cli_fail_as(cli, cli_exit_of_open(rc), rc, "cannot open the store");
	return 0;
}

int cli_store_reopen(struct kvc_cli *cli)
{
	int rc = kvc_store_close(cli->store);

	cli->store = NULL;
	if (rc < 0)
		return cli_fail(cli, rc, "cannot close the store");
	return cli_store_open(cli, KVC_OPEN_NO_SELFTEST);
}

int cli_store_open_existing(struct kvc_cli *cli)
{
	int rc;

	rc = cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	return rc ? rc : cli_store_reopen(cli);
}

json_t *cli_unwritable_roots(struct kvc_cli *cli)
{
	struct kvc_root_usage usage[64];
	json_t *list = json_array();
	int count;

	memset(usage, 0, sizeof(usage));
	for (size_t i = 0; i < sizeof(usage) / sizeof(usage[0]); i++)
		usage[i].size = sizeof(usage[i]);
	count = kvc_store_usage(cli->store, 0, usage, sizeof(usage) / sizeof(usage[0]));
	for (int i = 0; i < count; i++)
		if (strcmp(usage[i].state, "read-only") == 0 ||
		    strcmp(usage[i].state, "reads only") == 0)
			(void)json_array_append_new(list, cli_json_text(usage[i].path));
	return list;
}

int cli_namespace_check(struct kvc_cli *cli, const char *id)
{
	struct kvc_clear_report report = { .size = sizeof(report) };
	int rc = kvc_namespace_clear(cli->store, id, 1, &report);

	if (rc == -EINVAL)
		return cli_fail_as(cli, CLI_USAGE, rc, "%s", cli->command);
	return rc < 0 ? cli_fail(cli, rc, "%s", cli->command) : 0;
}

int cli_namespace_open_in(struct kvc_cli *cli, struct kvc_store *store, struct kvc_namespace **out)
{
	struct kvc_namespace_params params = cli->ns.params;
	int rc;

	params.size = sizeof(params);
	if (!params.page_tokens)
		params.page_tokens = CLI_PAGE_TOKENS;
	rc = kvc_namespace_open(store, &params, out);
	if (rc == -EINVAL || rc == -ENAMETOOLONG)
		return cli_fail_as(cli, CLI_USAGE, rc, "namespace");
	return rc < 0 ? cli_fail(cli, rc, "namespace") : 0;
}

int cli_namespace_open(struct kvc_cli *cli, struct kvc_namespace **out)
{
	int rc = cli_namespace_open_in(cli, cli->store, &cli->namespace_open);

	if (rc == 0)
		*out = cli->namespace_open;
	return rc;
}

const char *cli_pool_name(const struct kvc_cli *cli)
{
	if (cli->ns.pool)
		return cli->ns.pool;
	return cli->ns.part_bytes ? "kv" : CLI_OBJECT_POOL;
}

/* "64K,64K" to sizes; 0 or CLI_USAGE. */
static int parse_part_bytes(struct kvc_cli *cli, uint64_t sizes[CLI_PARTS_MAX], uint32_t *count)
{
	char *copy = strdup(cli->ns.part_bytes), *rest = copy, *one;
	uint32_t used = 0;
	int rc = 0;

	if (!copy)
		return cli_fail_errno(cli, -ENOMEM, "--part-bytes");
	while (rc == 0 && (one = strsep(&rest, ",")) != NULL) {
		if (used == CLI_PARTS_MAX)
			rc = cli_usage(cli, "--part-bytes: more than %d parts", CLI_PARTS_MAX);
		else if (cli_argp_size("--part-bytes", one, &sizes[used]))
			rc = cli_usage(cli, "%s", cli_argp_text());
		else if (sizes[used++] == 0)
			rc = cli_usage(cli, "--part-bytes: a part has at least one byte");
	}
	free(copy);
	*count = used;
	return rc;
}

int cli_pool_open(struct kvc_cli *cli, struct kvc_namespace *ns, struct kvc_pool **out,
		  uint64_t out_sizes[CLI_PARTS_MAX], uint32_t *out_count)
{
	struct kvc_part parts[CLI_PARTS_MAX];
	uint64_t sizes[CLI_PARTS_MAX];
	struct kvc_pool_params params = { .size = sizeof(params) };
	uint32_t count = 0;
	int rc;

	rc = parse_part_bytes(cli, sizes, &count);
	if (rc)
		return rc;
	memset(parts, 0, sizeof(parts));
	for (uint32_t i = 0; i < count; i++) {
		parts[i].size = sizeof(parts[i]);
		parts[i].piece_bytes = sizes[i];
		parts[i].piece_stride_bytes = sizes[i];
		parts[i].page_stride_bytes = sizes[i];
		parts[i].piece_count = 1;
	}
	params.name = cli_pool_name(cli);
	params.parts = parts;
	params.part_count = count;
	params.host_layout = KVC_LAYOUT_EXPLICIT;
	params.byte_order = cli->ns.byte_order;
	params.flags = cli->ns.copy_mode ? KVC_POOL_COPY_MODE : 0;
	params.page_count = 1;
	rc = kvc_pool_open(ns, &params, out);
	if (rc == -EINVAL)
		return cli_fail_as(cli, CLI_USAGE, rc, "pool");
	if (rc < 0)
		return cli_fail(cli, rc, "pool");
	if (out_sizes) {
		memcpy(out_sizes, sizes, sizeof(sizes));
		*out_count = count;
	}
	return 0;
}

static int hex_value(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	digit = (char)tolower((unsigned char)digit);
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

int cli_key_make(struct kvc_cli *cli, const char *text, struct cli_key *out)
{
	size_t bytes = strlen(text);
	char *data = strdup(text);

	if (!data)
		return cli_fail_errno(cli, -ENOMEM, "key");
	if (cli->ns.hex) {
		bool good = bytes % 2 == 0;

		bytes /= 2;
		for (size_t i = 0; good && i < bytes; i++) {
			int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);

			good = high >= 0 && low >= 0;
			data[i] = (char)(unsigned char)(high * 16 + low);
		}
		if (!good) {
			free(data);
			return cli_usage(cli, "key '%.80s' is not hexadecimal (--hex)", text);
		}
	}
	out->data = data;
	out->key = (struct kvc_key){ .data = data, .bytes = bytes };
	return 0;
}

void cli_key_free(struct cli_key *key)
{
	free(key->data);
	key->data = NULL;
}

int cli_object_read(struct kvc_namespace *ns, const char *pool, struct kvc_key key,
		    uint32_t timeout_ms, size_t capacity, char **out, size_t *out_bytes)
{
	size_t bytes = 0;
	char *data;
	int rc;

	for (int attempt = 0;; attempt++) {
		capacity = (capacity + OBJECT_BLOCK - 1) / OBJECT_BLOCK * OBJECT_BLOCK;
		data = aligned_alloc(OBJECT_BLOCK, capacity ? capacity : OBJECT_BLOCK);
		if (!data)
			return -ENOMEM;
		rc = kvc_object_get(ns, pool, key, data, capacity, &bytes, 0, timeout_ms);
		if (rc != -ENOBUFS || attempt == READ_RETRIES)
			break;
		free(data);
		capacity = bytes;
	}
	if (rc < 0) {
		free(data);
		return rc;
	}
	*out = data;
	*out_bytes = bytes;
	return 0;
}

int cli_session_end(struct kvc_cli *cli, int exit_code)
{
	int rc;

	rc = kvc_namespace_close(cli->namespace_open);
	cli->namespace_open = NULL;
	if (rc == 0)
		rc = kvc_store_close(cli->store);
	cli->store = NULL;
	if (rc < 0 && exit_code == CLI_DONE)
		exit_code = cli_fail(cli, rc, "cannot close the store");
	return exit_code;
}
