/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar stat: what the trailers of a key's objects say, and the space of the roots. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_USAGE = 0x200,
	OPTION_RECOUNT,
};

struct stat_arguments {
	const char *what; /* a key, or a path: with a '/' at its begin, or a root's */
	bool usage;
	bool recount;
};

static error_t parse_stat(int key, char *argument, struct argp_state *state)
{
	struct stat_arguments *arguments = state->input;

	switch (key) {
	case OPTION_USAGE:
		arguments->usage = true;
		return 0;
	case OPTION_RECOUNT:
		arguments->usage = arguments->recount = true;
		return 0;
	case ARGP_KEY_ARG:
		if (state->arg_num > 0)
			return cli_argp_error("unexpected argument '%.200s'", argument);
		arguments->what = argument;
		return 0;
	case ARGP_KEY_END:
		if (arguments->usage == (arguments->what != NULL))
			return cli_argp_error(arguments->usage ? "--usage takes no key" :
								 "no key or path given");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option stat_options[] = {
	{ "usage", OPTION_USAGE, NULL, 0, "Space of each root instead of an object", 0 },
	{ "recount", OPTION_RECOUNT, NULL, 0,
	  "The same, after walking the roots and correcting the counters; says what was corrected",
	  0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp stat_argp = {
	.options = stat_options,
	.parser = parse_stat,
	.args_doc = "KEY|PATH",
	.doc = "Shows what an object's trailer says, or the index of a packed root. A name that "
	       "begins with a slash, or with a "
	       "root's folder as ls --long prints it, is the path of an object's file in one of "
	       "the roots; everything else is a key."
	       "\v"
	       "Examples:\n"
	       "  kvcellar stat greeting\n"
	       "  kvcellar stat --usage",
};

/* ---------------------------------------------------------------- one object */

struct place {
	char *root;
	char *path;
};

struct places {
	struct place *list;
	size_t count;
};

static void places_free(struct places *places)
{
	for (size_t i = 0; i < places->count; i++) {
		free(places->list[i].root);
		free(places->list[i].path);
	}
	free(places->list);
}

static int place_add(struct places *places, const char *root, size_t root_bytes, const char *path)
{
	struct place *grown = reallocarray(places->list, places->count + 1, sizeof(*grown));
	struct place *place;

	if (!grown)
		return -ENOMEM;
	places->list = grown;
	place = &grown[places->count++];
	place->root = strndup(root, root_bytes);
	place->path = strdup(path);
	return place->root && place->path ? 0 : -ENOMEM;
}

static int add_where(void *context, const struct kvc_object_info *info)
{
	return place_add(context, info->root_path, strlen(info->root_path), info->path);
}

static int places_of_key(struct kvc_cli *cli, const char *text, struct places *places)
{
	struct cli_key key = { .data = NULL };
	struct kvc_pool *pool = NULL;
	struct kvc_namespace *ns;
	int rc;

	rc = cli_namespace_open(cli, &ns);
	if (rc == 0)
		rc = cli_key_make(cli, text, &key);
	if (rc == 0 && cli->ns.part_bytes)
		rc = cli_pool_open(cli, ns, &pool, NULL, NULL);
	if (rc == 0) {
		rc = pool ? kvc_pool_where(pool, key.key, add_where, places) :
			    kvc_object_where(ns, cli_pool_name(cli), key.key, add_where, places);
		rc = rc < 0 ? cli_fail_key(cli, rc, "stat '%.80s'", text) : 0;
	}
	(void)kvc_pool_close(pool);
	cli_key_free(&key);
	return rc;
}

static struct kvc_root_usage *read_usage(struct kvc_cli *cli, bool recount, size_t *out_count)
{
	struct kvc_root_usage *usage = NULL;
	size_t capacity = 8;
	int rc;

	for (;;) {
		usage = calloc(capacity, sizeof(*usage));
		if (!usage)
			rc = -ENOMEM;
		for (size_t i = 0; usage && i < capacity; i++)
			usage[i].size = sizeof(*usage);
		if (usage)
			rc = kvc_store_usage(cli->store, recount, usage, capacity);
		if (rc >= 0 && (size_t)rc <= capacity) {
			*out_count = (size_t)rc;
			return usage;
		}
		free(usage);
		if (rc < 0)
			break;
		capacity = (size_t)rc;
		recount = false;
	}
	*out_count = 0;
	(void)cli_fail(cli, rc, "usage");
	return NULL;
}

/* The path behind the root's folder when it begins with that, as it is written; else NULL. */
static const char *behind_root(const char *path, const char *root)
{
	const size_t bytes = strlen(root);

	return bytes && strncmp(path, root, bytes) == 0 && path[bytes] == '/' ? path + bytes + 1 :
										NULL;
}

/* Without links in the folder; the last part may be no file, as that of a slot is not. */
static char *real_path_of(const char *path)
{
	const char *name = strrchr(path, '/');
	char *above = name ? strndup(path, (size_t)(name - path)) : NULL;
	char *folder = above ? realpath(*above ? above : "/", NULL) : NULL, *real = NULL;

	if (folder && asprintf(&real, "%s%s", strcmp(folder, "/") ? folder : "", name) < 0)
		real = NULL;
	free(folder);
	free(above);
	return real;
}

/* The same when both are written differently: one relative, or through a symlink. */
static int place_behind_links(struct places *places, const char *path, const char *root)
{
	char *real_path = real_path_of(path), *real_root = realpath(root, NULL);
	const char *rest = real_path && real_root ? behind_root(real_path, real_root) : NULL;
	int rc = rest ? place_add(places, root, strlen(root), rest) : -ENOENT;

	free(real_root);
	free(real_path);
	return rc;
}

static int places_of_path(struct kvc_cli *cli, const char *path, struct places *places)
{
	struct kvc_root_usage *usage;
	size_t count;
	int rc = -ENOENT;

	usage = read_usage(cli, false, &count);
	if (!usage)
		return CLI_IO;
	for (size_t i = 0; i < count && rc == -ENOENT; i++) {
		const char *root = usage[i].path, *rest = behind_root(path, root);

		rc = rest ? place_add(places, root, strlen(root), rest) :
			    place_behind_links(places, path, root);
	}
	free(usage);
	if (rc == -ENOENT)
		return cli_error(cli, CLI_USAGE, "stat '%.200s': in none of the roots", path);
	return rc < 0 ? cli_fail_errno(cli, rc, "stat") : 0;
}

/* "65536, 65536" */
static void print_parts(const struct kvc_object_detail *detail)
{
	printf("parts       %" PRIu32, detail->part_count);
	for (uint32_t i = 0; i < detail->part_count && i < CLI_PARTS_MAX; i++)
		printf("%s%" PRIu64, i ? ", " : ": ", detail->part_bytes[i]);
	(void)putchar('\n');
}

static void print_detail(const struct place *place, const struct kvc_object_detail *detail)
{
	char size[CLI_FORMAT_BYTES], when[CLI_FORMAT_BYTES];
	char *name = cli_printable(detail->name), *path = cli_printable(place->path);

	printf("name        %s\n", name ? name : "?");
	printf("place       %s/%s\n", place->root, path ? path : "?");
	printf("payload     %" PRIu64 " (%s)\n", detail->payload_bytes,
	       cli_format_size(size, detail->payload_bytes));
	printf("stored      %" PRIu64 " (%s)\n", detail->stored_bytes,
	       cli_format_size(size, detail->stored_bytes));
	print_parts(detail);
	printf("checksum    %s %016" PRIx64 "\n", detail->checksum_kind, detail->checksum);
	printf("group       %016" PRIx64 "\n", detail->group_hash);
	printf("object      %016" PRIx64 "\n", detail->object_hash);
	printf("parent      %016" PRIx64 ", depth %" PRIu32 "\n", detail->parent_hash,
	       detail->depth);
	printf("created     %s\n", cli_format_time(when, detail->created_ns));
	printf("format      %" PRIu32 ".%" PRIu32 "\n", detail->format_major, detail->format_minor);
	if (detail->writer[0])
		printf("writer      %s\n", detail->writer);
	free(name);
	free(path);
}

static json_t *hash_json(uint64_t hash)
{
	return json_sprintf("%016" PRIx64, hash);
}

static json_t *detail_json(const struct place *place, const struct kvc_object_detail *detail)
{
	json_t *parts = json_array();

	for (uint32_t i = 0; i < detail->part_count && i < CLI_PARTS_MAX; i++)
		(void)json_array_append_new(parts, json_integer((json_int_t)detail->part_bytes[i]));
	return json_pack(
		"{s:o, s:o, s:o, s:I, s:I, s:o, s:s, s:o, s:o, s:o, s:o, s:I, s:I, s:o, "
		"s:o}",
		"name", cli_json_text(detail->name), "root", cli_json_text(place->root), "path",
		cli_json_text(place->path), "payload_bytes", (json_int_t)detail->payload_bytes,
		"stored_bytes", (json_int_t)detail->stored_bytes, "part_bytes", parts,
		"checksum_kind", detail->checksum_kind, "checksum", hash_json(detail->checksum),
		"group", hash_json(detail->group_hash), "object", hash_json(detail->object_hash),
		"parent", hash_json(detail->parent_hash), "depth", (json_int_t)detail->depth,
		"created_ns", (json_int_t)detail->created_ns, "format",
		json_sprintf("%" PRIu32 ".%" PRIu32, detail->format_major, detail->format_minor),
		"writer", cli_json_text(detail->writer));
}

/* Is it a path? A relative one begins with a root as it is configured. */
static bool is_path(struct kvc_cli *cli, const char *what)
{
	struct kvc_root_usage *usage;
	bool found = what[0] == '/';
	size_t count;

	if (cli->ns.hex)
		return false;
	if (found || !strchr(what, '/'))
		return found;
	usage = read_usage(cli, false, &count);
	for (size_t i = 0; usage && i < count && !found; i++)
		found = behind_root(what, usage[i].path) != NULL;
	free(usage);
	return found;
}

/* Somebody may have meant a path. */
static const char *key_hint(const char *what, bool path)
{
	return path || !strchr(what, '/') ?
		       "" :
		       " (taken as a key: a path begins with / or as ls --long prints it)";
}

static int stat_object(struct kvc_cli *cli, const char *what)
{
	struct kvc_object_detail detail = { .size = sizeof(detail) };
	struct places places = { .count = 0 };
	const bool path = is_path(cli, what);
	json_t *list = json_array();
	int rc;

	rc = path ? places_of_path(cli, what, &places) : places_of_key(cli, what, &places);
	for (size_t i = 0; rc == 0 && i < places.count; i++) {
		const struct place *place = &places.list[i];

		detail.size = sizeof(detail);
		rc = kvc_object_stat(cli->store, place->root, place->path, &detail);
		if (rc < 0) {
			rc = cli_fail(cli, rc, "stat '%.80s'%s", what, key_hint(what, path));
		} else if (cli->json) {
			(void)json_array_append_new(list, detail_json(place, &detail));
		} else {
			printf(i ? "\n" : "");
			print_detail(place, &detail);
		}
	}
	if (rc == 0 && cli->json)
		rc = cli_json_print(cli, json_pack("{s:O}", "objects", list));
	json_decref(list);
	places_free(&places);
	return rc;
}

/* ---------------------------------------------------------------- usage */

static void print_usage(struct kvc_cli *cli, const struct kvc_root_usage *usage, size_t count)
{
	char own[CLI_FORMAT_BYTES], total[CLI_FORMAT_BYTES], left[CLI_FORMAT_BYTES];

	printf("%s%10s %10s %10s %10s  %-8s %s%s\n", cli_bold(cli), "objects", "own", "free",
	       "total", "state", "root", cli_plain(cli));
	for (size_t i = 0; i < count; i++)
		printf("%10" PRIu64 " %10s %10s %10s  %-8s %s\n", usage[i].own_objects,
		       cli_format_size(own, usage[i].own_bytes),
		       usage[i].total_bytes ? cli_format_size(left, usage[i].free_bytes) : "-",
		       usage[i].total_bytes ? cli_format_size(total, usage[i].total_bytes) : "-",
		       usage[i].state, usage[i].path);
}

static json_t *usage_json(const struct kvc_root_usage *usage, size_t count)
{
	json_t *list = json_array();

	for (size_t i = 0; i < count; i++)
		(void)json_array_append_new(
			list,
			json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:I}", "root",
				  cli_json_text(usage[i].path), "uuid", usage[i].uuid, "state",
				  usage[i].state, "own_objects", (json_int_t)usage[i].own_objects,
				  "own_bytes", (json_int_t)usage[i].own_bytes, "free_bytes",
				  (json_int_t)usage[i].free_bytes, "total_bytes",
				  (json_int_t)usage[i].total_bytes));
	return json_pack("{s:o}", "roots", list);
}

/* Where nothing can be written, the counts are this process's alone. */
static void tell_uncorrected(struct kvc_cli *cli)
{
	json_t *roots = cli_unwritable_roots(cli), *root;
	size_t i;

	json_array_foreach(roots, i, root)
	{
		cli_note(cli, "%s is read-only: it was counted, and nothing was corrected there",
			 json_string_value(root));
	}
	json_decref(roots);
}

void cli_print_corrected(const struct kvc_root_usage *before, const struct kvc_root_usage *now,
			 size_t count)
{
	char bytes[CLI_FORMAT_BYTES];

	for (size_t i = 0; i < count; i++)
		if (before[i].own_bytes == now[i].own_bytes &&
		    before[i].own_objects == now[i].own_objects)
			printf("%s: the counts were right\n", now[i].path);
		else
			printf("%s: corrected, %" PRIu64 " objects of %s were counted\n",
			       now[i].path, before[i].own_objects,
			       cli_format_size(bytes, before[i].own_bytes));
}

static void add_corrected(json_t *document, const struct kvc_root_usage *before,
			  const struct kvc_root_usage *now, size_t count)
{
	json_t *roots = json_object_get(document, "roots");

	for (size_t i = 0; i < count; i++)
		(void)json_object_update_new(
			json_array_get(roots, i),
			json_pack("{s:I, s:I, s:b}", "counted_objects",
				  (json_int_t)before[i].own_objects, "counted_bytes",
				  (json_int_t)before[i].own_bytes, "corrected",
				  before[i].own_bytes != now[i].own_bytes ||
					  before[i].own_objects != now[i].own_objects));
}

static int stat_usage(struct kvc_cli *cli, bool recount)
{
	struct kvc_root_usage *usage = NULL, *before = NULL;
	size_t count;
	json_t *document;
	int rc = CLI_IO;

	/* A root that was never counted is counted here already. */
	if (recount)
		before = read_usage(cli, false, &count);
	if (before || !recount)
		usage = read_usage(cli, recount, &count);
	if (!usage)
		goto out;
	if (recount)
		tell_uncorrected(cli);
	rc = CLI_DONE;
	if (cli->json) {
		document = usage_json(usage, count);
		if (recount)
			add_corrected(document, before, usage, count);
		rc = cli_json_print(cli, document);
	} else {
		print_usage(cli, usage, count);
		if (recount)
			cli_print_corrected(before, usage, count);
	}
out:
	free(before);
	free(usage);
	return rc;
}

int kvc_cmd_stat(struct kvc_cli *cli, int argc, char **argv)
{
	struct stat_arguments arguments = { .what = NULL };
	int rc;

	rc = cli_parse(cli, &stat_argp, CLI_WITH_NAMESPACE | CLI_WITH_KEYS | CLI_WITH_PAGES, argc,
		       argv, &arguments);
	if (rc)
		return rc;
	rc = arguments.recount ? cli_store_open_existing(cli) :
				 cli_store_open(cli, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST);
	if (rc)
		return rc;
	return arguments.usage ? stat_usage(cli, arguments.recount) :
				 stat_object(cli, arguments.what);
}
