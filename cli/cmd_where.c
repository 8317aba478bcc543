/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcellar where: name and place of a key's objects, in both namings, whether they exist or not.
 *
 * The naming that the roots have is asked of the store itself, opened read-only. A root has one
 * naming, so the other one is asked of a stand-in: a store of the same number of empty folders,
 * made for the moment, whose places are told as those of the roots in the same position.
 */
#include "cli.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct where_arguments {
	const char *key;
};

static error_t parse_where(int key, char *argument, struct argp_state *state)
{
	struct where_arguments *arguments = state->input;

	switch (key) {
	case ARGP_KEY_ARG:
		if (state->arg_num > 0)
			return cli_argp_error("unexpected argument '%.200s'", argument);
		arguments->key = argument;
		return 0;
	case ARGP_KEY_NO_ARGS:
		return cli_argp_error("no key given");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp where_argp = {
	.parser = parse_where,
	.args_doc = "KEY",
	.doc = "Shows the names of a key's objects and where they lie, or would lie, in both "
	       "namings. Changes nothing; the storage directories need not exist."
	       "\v"
	       "Examples:\n"
	       "  kvcellar where greeting\n"
	       "  kvcellar where 6f1e... --model llama --part-bytes 64K,64K --tp-size 2",
};

/* ---------------------------------------------------------------- what is configured */

struct wanted {
	json_t *options; /* the effective configuration */
	const char *naming;
	json_t *roots; /* borrowed: array of texts */
};

static int read_wanted(struct kvc_cli *cli, struct wanted *wanted)
{
	int rc = 0;

	wanted->options = cli_config_options(cli, cli->config, &rc);
	if (!wanted->options)
		return rc;
	wanted->naming = json_string_value(cli_config_value(wanted->options, "naming"));
	wanted->roots = cli_config_value(wanted->options, "storage_dirs");
	if (!wanted->naming || !json_is_array(wanted->roots) || !json_array_size(wanted->roots))
		return cli_error(cli, CLI_CONFIG, "where: the configuration names no roots");
	return 0;
}

/* ---------------------------------------------------------------- stand-in folders */

struct stand_in {
	char folder[sizeof("/tmp/kvcellar-where-XXXXXX")];
	bool made;
	struct kvc_store *store;
	json_t *roots; /* its own folders, in the order of the configured ones */
};

static json_t *stand_in_roots(const char *folder, size_t count)
{
	json_t *roots = json_array();

	for (size_t i = 0; roots && i < count; i++) {
		json_t *path = json_sprintf("%s/%zu", folder, i);

		if (json_array_append_new(roots, path) < 0 ||
		    mkdir(json_string_value(path), 0700) < 0) {
			json_decref(roots);
			return NULL;
		}
	}
	return roots;
}

static int stand_in_config(const struct wanted *wanted, const struct stand_in *stand_in,
			   const char *naming, struct kvc_config *config)
{
	json_t *document = json_pack("{s:O, s:s, s:s, s:b, s:b, s:{s:{s:b}}}", "storage_dirs",
				     stand_in->roots, "naming", naming, "storage_layout", "files",
				     "use_direct_io", 0, "l3_cleaner_enabled", 0, "plugin", "posix",
				     "active", 1);
	static const char *const kept[] = { "identity", "tenant" };
	char *text = NULL;
	int rc = -ENOMEM;

	for (size_t i = 0; document && i < 2; i++) {
		json_t *value = cli_config_value(wanted->options, kept[i]);

		if (json_is_string(value))
			(void)json_object_set(document, kept[i], value);
	}
	if (document)
		text = json_dumps(document, JSON_COMPACT);
	if (text)
		rc = kvc_config_load_text(config, text, strlen(text), KVC_CONFIG_JSON,
					  "the stand-in");
	free(text);
	json_decref(document);
	return rc;
}

static int stand_in_open(struct kvc_cli *cli, const struct wanted *wanted, const char *naming,
			 struct stand_in *stand_in)
{
	struct kvc_open_params params = { .size = sizeof(params), .flags = KVC_OPEN_NO_SELFTEST };
	struct kvc_config *config;
	int rc;

	(void)snprintf(stand_in->folder, sizeof(stand_in->folder), "/tmp/kvcellar-where-XXXXXX");
	if (!mkdtemp(stand_in->folder))
		return cli_fail_errno(cli, -errno, "cannot make a folder in /tmp");
	stand_in->made = true;
	stand_in->roots = stand_in_roots(stand_in->folder, json_array_size(wanted->roots));
	if (!stand_in->roots)
		return cli_fail_errno(cli, -errno, "cannot make a folder in '%s'",
				      stand_in->folder);
	rc = kvc_config_new(&config);
	if (rc < 0)
		return cli_fail(cli, rc, "where");
	rc = stand_in_config(wanted, stand_in, naming, config);
	if (rc == 0)
		rc = kvc_store_open(config, &params, &stand_in->store);
	kvc_config_free(config);
	return rc < 0 ? cli_fail_as(cli, cli_exit_of_open(rc), rc, "where (naming %s)", naming) : 0;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
	(void)status;
	(void)kind;
	(void)walk;
	(void)remove(path);
	return 0;
}

static void remove_tree(const char *folder)
{
	(void)nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void stand_in_close(struct stand_in *stand_in)
{
	(void)kvc_store_close(stand_in->store);
	json_decref(stand_in->roots);
	if (stand_in->made)
		remove_tree(stand_in->folder);
}

/* ---------------------------------------------------------------- asking */

struct answer {
	json_t *objects;
	const struct stand_in *stand_in; /* NULL: the store itself */
	const json_t *roots;		 /* of the configuration */
	bool root_known;
};

/* The root that stands where the stand-in's folder does. */
static json_t *real_root(const struct answer *answer, const char *root)
{
	json_t *one;
	size_t i;

	if (!answer->stand_in)
		return cli_json_text(root);
	if (!answer->root_known)
		return json_null();
	json_array_foreach(answer->stand_in->roots, i,
			   one) if (strcmp(json_string_value(one), root) ==
				    0) return json_incref(json_array_get(answer->roots, i));
	return json_null();
}

/* What is not stored yet has no slot, only the folder of its slots. */
static bool has_no_slot(const char *path)
{
	const char *name = strrchr(path, '/');

	return name && strncmp(name, "/slots-", 7) == 0 && name[7] &&
	       name[7 + strspn(name + 7, "0123456789")] == '\0';
}

static int add_place(void *context, const struct kvc_object_info *info)
{
	struct answer *answer = context;
	json_t *object = json_pack("{s:o, s:o, s:o}", "name", cli_json_text(info->name), "root",
				   real_root(answer, info->root_path), "path",
				   cli_json_text(info->path));

	if (has_no_slot(info->path))
		(void)json_object_set_new(object, "stored", json_false());

	return json_array_append_new(answer->objects, object) < 0 ? -ENOMEM : 0;
}

/* 0, an exit code, or with out_error the cause why the key has no name in this naming. */
static int ask_store(struct kvc_cli *cli, struct kvc_store *store, struct kvc_key key,
		     struct answer *answer, char **out_error)
{
	struct kvc_namespace *ns = NULL;
	struct kvc_pool *pool = NULL;
	int rc;

	rc = cli_namespace_open_in(cli, store, &ns);
	if (rc == 0 && cli->ns.part_bytes)
		rc = cli_pool_open(cli, ns, &pool, NULL, NULL);
	if (rc == 0) {
		rc = pool ? kvc_pool_where(pool, key, add_place, answer) :
			    kvc_object_where(ns, cli_pool_name(cli), key, add_place, answer);
		if (rc == -EINVAL || rc == -ENAMETOOLONG) {
			*out_error = strdup(kvc_last_error());
			rc = 0;
		} else if (rc < 0) {
			rc = cli_fail(cli, rc, "where");
		}
	}
	(void)kvc_pool_close(pool);
	(void)kvc_namespace_close(ns);
	return rc;
}

/* The store itself, when this is its naming and its roots are there. */
static int open_real(struct kvc_cli *cli, const struct wanted *wanted, const char *naming,
		     bool *out_open)
{
	struct kvc_open_params params = { .size = sizeof(params),
					  .flags = KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST };
	int rc;

	*out_open = false;
	if (strcmp(naming, wanted->naming) != 0)
		return 0;
	rc = kvc_store_open(cli->config, &params, &cli->store);
	*out_open = rc == 0;
	if (rc == 0 || rc == -ENOENT)
		return 0;
	return cli_fail_as(cli, cli_exit_of_open(rc), rc, "cannot open the store");
}

static json_t *answer_json(const char *naming, const struct wanted *wanted, json_t *objects,
			   const char *error)
{
	return json_pack("{s:s, s:b, s:o, s:o}", "naming", naming, "configured",
			 strcmp(naming, wanted->naming) == 0, "objects", objects, "error",
			 error ? cli_json_text(error) : json_null());
}

static int ask_naming(struct kvc_cli *cli, const struct wanted *wanted, const char *naming,
		      struct kvc_key key, json_t *list)
{
	struct stand_in stand_in = { .made = false };
	struct answer answer = { .objects = json_array(), .roots = wanted->roots };
	char *error = NULL;
	bool real;
	int rc;

	rc = open_real(cli, wanted, naming, &real);
	if (rc == 0 && !real) {
		answer.stand_in = &stand_in;
		/* Our naming routes by the uuid of each root; with one root there is no choice. */
		answer.root_known = strcmp(naming, "nixl") == 0 ||
				    json_array_size(wanted->roots) == 1;
		rc = stand_in_open(cli, wanted, naming, &stand_in);
	}
	if (rc == 0)
		rc = ask_store(cli, real ? cli->store : stand_in.store, key, &answer, &error);
	if (rc == 0)
		(void)json_array_append_new(list, answer_json(naming, wanted,
							      json_incref(answer.objects), error));
	json_decref(answer.objects);
	free(error);
	stand_in_close(&stand_in);
	return rc;
}

/* ---------------------------------------------------------------- telling */

static void print_answer(struct kvc_cli *cli, const json_t *answer)
{
	const char *error = json_string_value(json_object_get(answer, "error"));
	json_t *object;
	size_t i;

	printf("%snaming %s%s%s\n", cli_bold(cli),
	       json_string_value(json_object_get(answer, "naming")), cli_plain(cli),
	       json_is_true(json_object_get(answer, "configured")) ? " (configured)" : "");
	if (error)
		printf("  no name: %s\n", error);
	json_array_foreach(json_object_get(answer, "objects"), i, object)
	{
		const char *root = json_string_value(json_object_get(object, "root"));

		printf("  name %s\n  path %s/%s%s\n",
		       json_string_value(json_object_get(object, "name")),
		       root ? root : "(by the uuid of the roots)",
		       json_string_value(json_object_get(object, "path")),
		       json_object_get(object, "stored") ? "  (not stored)" : "");
	}
}

static int tell(struct kvc_cli *cli, const char *key, json_t *list)
{
	json_t *answer;
	size_t i;

	if (cli->json)
		return cli_json_print(cli, json_pack("{s:o, s:O}", "key", cli_json_text(key),
						     "namings", list));
	json_array_foreach(list, i, answer) print_answer(cli, answer);
	return CLI_DONE;
}

int kvc_cmd_where(struct kvc_cli *cli, int argc, char **argv)
{
	struct where_arguments arguments = { .key = NULL };
	struct wanted wanted = { .options = NULL };
	struct cli_key key = { .data = NULL };
	json_t *list = NULL;
	const char *other;
	int rc;

	rc = cli_parse(cli, &where_argp, CLI_WITH_NAMESPACE | CLI_WITH_KEYS | CLI_WITH_PAGES, argc,
		       argv, &arguments);
	if (rc == 0)
		rc = cli_key_make(cli, arguments.key, &key);
	if (rc == 0)
		rc = read_wanted(cli, &wanted);
	if (rc == 0) {
		list = json_array();
		other = strcmp(wanted.naming, "nixl") == 0 ? "kvcellar" : "nixl";
		rc = ask_naming(cli, &wanted, wanted.naming, key.key, list);
		if (rc == 0)
			rc = ask_naming(cli, &wanted, other, key.key, list);
	}
	if (rc == 0)
		rc = tell(cli, arguments.key, list);
	json_decref(list);
	json_decref(wanted.options);
	cli_key_free(&key);
	return rc;
}
