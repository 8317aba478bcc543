/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar convert: both configurations, what is opened and looked at before the first object. */
#include "convert.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---------------------------------------------------------------- configurations */

/* Roots and naming that a configuration has. */
static int read_config(struct kvc_cli *cli, struct kvc_config *config, json_t **out_roots,
		       bool *out_nixl)
{
	int rc = 0;
	json_t *options = cli_config_options(cli, config, &rc);
	const char *naming = json_string_value(cli_config_value(options, "naming"));

	if (!options)
		return rc;
	*out_nixl = naming && strcmp(naming, "nixl") == 0;
	*out_roots = json_incref(cli_config_value(options, "storage_dirs"));
	json_decref(options);
	return json_is_array(*out_roots) && json_array_size(*out_roots) ?
		       0 :
		       cli_error(cli, CLI_CONFIG, "convert: the configuration names no roots");
}

static int set_option(struct kvc_config *config, const char *path, const char *value)
{
	return value ? kvc_config_set(config, path, value) : 0;
}

/* The source's with other directories, or one of its own. */
static int make_target_config(struct convert *convert)
{
	const struct convert_arguments *arguments = convert->arguments;
	struct kvc_cli *cli = convert->cli;
	int rc = 0;

	if (!arguments->has_config)
		rc = cli_config_build(cli, &convert->to_config);
	else if (kvc_config_new(&convert->to_config) < 0)
		rc = cli_fail_errno(cli, -ENOMEM, "convert");
	if (rc)
		return rc;
	rc = cli_overrides_apply(&arguments->to, 'c', convert->to_config);
	if (!rc && !arguments->has_config)
		rc = set_option(convert->to_config, "storage_layout", "auto");
	if (!rc)
		rc = set_option(convert->to_config, "storage_dirs", arguments->to_dirs);
	if (!rc)
		rc = set_option(convert->to_config, "storage_layout", arguments->layout);
	if (!rc)
		rc = set_option(convert->to_config, "naming", arguments->naming);
	/* What is removed from the source has to be on stable storage. */
	if (!rc && arguments->move)
		rc = set_option(convert->to_config, "durability", "fdatasync");
	if (!rc)
		rc = cli_overrides_apply(&arguments->to, 's', convert->to_config);
	/* A root that is not made yet has no layout. */
	if (!rc && arguments->dry_run)
		rc = set_option(convert->to_config, "storage_layout", "auto");
	return rc < 0 ? cli_fail_as(cli, CLI_CONFIG, rc, "the target's configuration") : 0;
}

/* ---------------------------------------------------------------- the target's index */

static int describe_store(void *context, char *buffer, size_t bytes)
{
	return kvc_store_describe(context, KVC_FORMAT_JSON, buffer, bytes);
}

/* Objects that this process evicted there; is_packed: whether any root is packed. */
static uint64_t evicted(struct convert *convert, bool *is_packed)
{
	json_t *document, *root;
	uint64_t count = 0;
	size_t i;
	int rc = 0;
	char *text = cli_text(convert->cli, "convert", describe_store, convert->to, &rc);

	*is_packed = false;
	document = text ? json_loads(text, 0, NULL) : NULL;
	free(text);
	json_array_foreach(json_object_get(document, "roots"), i, root)
	{
		json_t *index = json_object_get(root, "index");

		*is_packed |= index != NULL;
		count += (uint64_t)json_integer_value(json_object_get(index, "evicted"));
	}
	json_decref(document);
	return count;
}

/* A packed target that evicts loses what was moved into it; between namings a copy does not see to
 * that. */
static int check_move(struct convert *convert)
{
	bool is_packed;

	if (!convert->arguments->move || !convert->to)
		return 0;
	(void)evicted(convert, &is_packed);
	return is_packed ? cli_error(convert->cli, CLI_USAGE,
				     "convert: --move between namings needs a target of the files "
				     "layout: a packed one may evict what was moved") :
			   0;
}

int cli_convert_check_evicted(struct convert *convert)
{
	bool is_packed;
	uint64_t count;

	if (!convert->to || !convert->other_naming || convert->arguments->dry_run)
		return 0;
	count = evicted(convert, &is_packed);
	return count ? cli_error(convert->cli, CLI_NO_SPACE,
				 "convert: the target is full: it has evicted %" PRIu64 " object%s",
				 count, count == 1 ? "" : "s") :
		       0;
}

/* ---------------------------------------------------------------- opening */

static int open_target(struct convert *convert)
{
	const bool dry_run = convert->arguments->dry_run;
	struct kvc_open_params params = {
		.size = sizeof(params),
		.flags = dry_run ? KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST : 0,
	};
	int rc = kvc_store_open(convert->to_config, &params, &convert->to);

	if (rc == -ENOENT && dry_run) {
		cli_note(convert->cli, "The target is not there yet: objects are only counted.");
		return 0;
	}
	return rc < 0 ? cli_fail_as(convert->cli, cli_exit_of_open(rc), rc,
				    "cannot open the target") :
			0;
}

/* What tells one conversion from another. */
static char *identity_text(const struct convert *convert)
{
	const struct cli_namespace_options *ns = &convert->cli->ns;
	json_t *document = json_pack("{s:O, s:O, s:b, s:s*, s:s*, s:s*, s:i}", "from",
				     convert->from_roots, "to", convert->to_roots, "other_naming",
				     convert->other_naming, "pool", ns->pool, "parts",
				     ns->part_bytes, "model", ns->params.model_id, "rank",
				     (int)ns->params.tp_rank);
	char *text = document ? json_dumps(document, JSON_COMPACT | JSON_SORT_KEYS) : NULL;

	json_decref(document);
	return text;
}

static int open_cursor(struct convert *convert)
{
	char *identity;
	int rc;

	if (!convert->arguments->cursor || convert->arguments->dry_run)
		return 0;
	identity = identity_text(convert);
	rc = identity ? cli_cursor_open(convert->cli, convert->arguments->cursor, identity,
					&convert->cursor) :
			cli_fail_errno(convert->cli, -ENOMEM, "convert");
	free(identity);
	return rc;
}

/* One may be written in two ways. */
static bool is_same_folder(const char *one, const char *other)
{
	struct stat a, b;

	return strcmp(one, other) == 0 || (stat(one, &a) == 0 && stat(other, &b) == 0 &&
					   a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}

static int check_folders(struct convert *convert)
{
	json_t *from, *to;
	size_t f, t;

	json_array_foreach(convert->from_roots, f, from)
	{
		json_array_foreach(convert->to_roots, t, to)
		{
			const char *one = json_string_value(from), *other = json_string_value(to);

			if (one && other && is_same_folder(one, other))
				return cli_error(
					convert->cli, CLI_USAGE,
					"convert: source and target are one folder: %.200s", other);
		}
	}
	return 0;
}

/* Before anything is copied: what cannot be removed would be there twice. */
static int check_removable(struct convert *convert)
{
	json_t *roots;
	int rc = 0;

	if (!convert->arguments->move || convert->arguments->dry_run)
		return 0;
	roots = cli_unwritable_roots(convert->cli);
	if (json_array_size(roots))
		rc = cli_error(
			convert->cli, CLI_DENIED,
			"convert: --move cannot remove anything from %.200s: it is read-only",
			json_string_value(json_array_get(roots, 0)));
	json_decref(roots);
	return rc;
}

int cli_convert_open(struct convert *convert)
{
	struct kvc_cli *cli = convert->cli;
	bool to_nixl = false;
	int rc;

	rc = read_config(cli, cli->config, &convert->from_roots, &convert->from_nixl);
	if (rc == 0)
		rc = make_target_config(convert);
	if (rc == 0)
		rc = read_config(cli, convert->to_config, &convert->to_roots, &to_nixl);
	convert->other_naming = convert->from_nixl != to_nixl;
	if (rc == 0)
		rc = check_folders(convert);
	if (rc == 0)
		rc = convert->arguments->move && !convert->arguments->dry_run ?
			     cli_store_open_existing(cli) :
			     cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc == 0 && convert->arguments->id)
		rc = cli_namespace_check(cli, convert->arguments->id);
	if (rc == 0)
		rc = check_removable(convert);
	/* A cursor of something else is told before the target is made. */
	if (rc == 0)
		rc = open_cursor(convert);
	if (rc == 0)
		rc = open_target(convert);
	if (rc == 0 && convert->other_naming)
		rc = check_move(convert);
	if (rc == 0 && convert->other_naming && convert->to)
		rc = cli_naming_begin(convert);
	return rc;
}

void cli_convert_close(struct convert *convert)
{
	cli_cursor_close(convert->cursor, false);
	cli_naming_end(convert);
	(void)kvc_store_close(convert->to);
	kvc_config_free(convert->to_config);
	json_decref(convert->from_roots);
	json_decref(convert->to_roots);
	json_decref(convert->problems);
}
