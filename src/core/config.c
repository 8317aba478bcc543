/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration object: loads, sets and merges. Later calls win, key by key. */
#include "core/config_internal.h"
#include "core/config_parse.h"
#include "core/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

int kvc_config_new(struct kvc_config **out)
{
	struct kvc_config *config;

	if (!out)
		return kvc_fail(-EINVAL, "kvc_config_new: out is NULL");
	config = calloc(1, sizeof(*config));
	if (!config)
		return kvc_fail(-ENOMEM, "no memory for a configuration");
	config->tree = json_object();
	config->origins = json_object();
	if (!config->tree || !config->origins) {
		kvc_config_free(config);
		return kvc_fail(-ENOMEM, "no memory for a configuration");
	}
	*out = config;
	return 0;
}

void kvc_config_free(struct kvc_config *config)
{
	if (!config)
		return;
	json_decref(config->tree);
	json_decref(config->origins);
	free(config);
}

/* ---------------------------------------------------------------- canonical form */

static int fail_both(const char *where, const char *a, const char *b)
{
	return kvc_fail(-EINVAL, "%s: %s and %s are two names of one thing; keep one of them",
			where, a, b);
}

/* Copies a table, each key under its canonical name. Both names of one key with different values
 * contradict each other. */
static int canonical_keys(const json_t *from, json_t *to, const char *where)
{
	const char *key, *name;
	json_t *value, *there;

	json_object_foreach((json_t *)(uintptr_t)from, key, value)
	{
		name = kvc_option_canonical(key);
		there = json_object_get(to, name);
		if (there && !json_equal(there, value))
			return fail_both(where, "secret_key", "secrete_key");
		if (json_object_set(to, name, value) < 0)
			return -ENOMEM;
	}
	return 0;
}

static void canonical_section_name(char buffer[KVC_PATH_BYTES], const char *name)
{
	const struct kvc_section *section = kvc_section_find(name);

	(void)snprintf(buffer, KVC_PATH_BYTES, "%s", section ? section->name : name);
	for (char *p = buffer; *p; p++)
		*p = (char)tolower((unsigned char)*p);
}

static int canonical_sections(const json_t *from, json_t *to, const char *origin)
{
	char name[KVC_PATH_BYTES], path[KVC_PATH_BYTES + 16], quoted[KVC_QUOTED_BYTES];
	const char *key;
	json_t *value, *copy;
	int rc;

	json_object_foreach((json_t *)(uintptr_t)from, key, value)
	{
		canonical_section_name(name, key);
		if (json_object_get(to, name))
			return kvc_fail(-EINVAL, "%s: the section plugin.%s is given twice (%s)",
					origin, name, kvc_quote(quoted, key));
		if (!json_is_object(value)) {
			if (json_object_set(to, name, value) < 0)
				return -ENOMEM;
			continue;
		}
		copy = json_object();
		if (!copy || json_object_set_new(to, name, copy) < 0)
			return -ENOMEM;
		(void)snprintf(path, sizeof(path), "plugin.%s", name);
		rc = canonical_keys(value, copy, path);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* *out: the document with canonical names. */
static int canonical_document(const json_t *document, const char *origin, json_t **out)
{
	const json_t *sections = json_object_get(document, "plugin");
	json_t *copy = json_object();
	json_t *plugin;
	int rc;

	if (!copy)
		return -ENOMEM;
	rc = canonical_keys(document, copy, "top level");
	if (rc == 0 && json_is_object(sections)) {
		plugin = json_object();
		if (!plugin || json_object_set_new(copy, "plugin", plugin) < 0)
			rc = -ENOMEM;
		else
			rc = canonical_sections(sections, plugin, origin);
	}
	if (rc < 0) {
		json_decref(copy);
		return rc;
	}
	*out = copy;
	return 0;
}

/* ---------------------------------------------------------------- merging */

/* Adds `from` to `to`, table by table, and notes where each value came from. */
static int merge(json_t *to, const json_t *from, json_t *origins, const char *prefix,
		 json_t *origin)
{
	char path[KVC_PATH_BYTES];
	json_t *value, *there;
	const char *key;
	int rc, length;

	json_object_foreach((json_t *)(uintptr_t)from, key, value)
	{
		length = snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix ? "." : "", key);
		there = json_object_get(to, key);
		if (json_is_object(value)) {
			if (!json_is_object(there)) {
				there = json_object();
				if (!there || json_object_set_new(to, key, there) < 0)
					return -ENOMEM;
			}
			rc = merge(there, value, origins, path, origin);
			if (rc < 0)
				return rc;
		} else if (json_object_set(to, key, value) < 0) {
			return -ENOMEM;
		}
		if (length < (int)sizeof(path) && json_object_set(origins, path, origin) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Merges into copies, so that a failure changes nothing. */
static int add_document(struct kvc_config *config, const json_t *document, const char *origin)
{
	json_t *canonical = NULL, *tree = NULL, *origins = NULL, *from;
	int rc;

	rc = canonical_document(document, origin, &canonical);
	if (rc < 0)
		return rc;
	from = json_string(origin);
	if (!from) /* a file name need not be UTF-8 */
		from = json_string("a file");
	tree = json_deep_copy(config->tree);
	origins = json_deep_copy(config->origins);
	rc = tree && origins && from ? merge(tree, canonical, origins, "", from) : -ENOMEM;
	json_decref(canonical);
	json_decref(from);
	if (rc < 0) {
		json_decref(tree);
		json_decref(origins);
		return rc;
	}
	json_decref(config->tree);
	json_decref(config->origins);
	config->tree = tree;
	config->origins = origins;
	return 0;
}

/* ---------------------------------------------------------------- texts */

/* A key with a NUL inside, or too long for a path, would be cut by what reads it later. */
static bool has_bad_key(const json_t *node)
{
	json_t *value;
	size_t i, bytes;
	void *iter;

	if (json_is_array(node)) {
		json_array_foreach(node, i, value) if (has_bad_key(value)) return true;
		return false;
	}
	if (!json_is_object(node))
		return false;
	for (iter = json_object_iter((json_t *)(uintptr_t)node); iter;
	     iter = json_object_iter_next((json_t *)(uintptr_t)node, iter)) {
		bytes = json_object_iter_key_len(iter);
		if (strlen(json_object_iter_key(iter)) != bytes || bytes > KVC_KEY_BYTES ||
		    has_bad_key(json_object_iter_value(iter)))
			return true;
	}
	return false;
}

/* TOML or YAML? The first line that says something decides: '[' or '=' before any ':' is TOML. */
static int guess_table_format(const char *text, size_t bytes)
{
	bool at_start = true;
	char quote = '\0';

	for (size_t i = 0; i < bytes; i++) {
		char c = text[i];

		if (quote) {
			quote = c == quote || c == '\n' ? '\0' : quote;
			continue;
		}
		if (at_start && c == '[')
			return KVC_CONFIG_TOML;
		if (at_start && (c == '-' || c == '%'))
			return KVC_CONFIG_YAML;
		if (c == '=')
			return KVC_CONFIG_TOML;
		if (c == ':')
			return KVC_CONFIG_YAML;
		if (c == '"' || c == '\'')
			quote = c;
		while (c == '#' && i + 1 < bytes && text[i + 1] != '\n')
			i++;
		at_start = c == '\n' ||
			   (at_start && (c == ' ' || c == '\t' || c == '\r' || c == '#'));
	}
	return KVC_CONFIG_TOML;
}

static int guess_format(const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (!isspace((unsigned char)text[i]))
			return text[i] == '{' ? KVC_CONFIG_JSON :
						guess_table_format(text + i, bytes - i);
	return KVC_CONFIG_JSON;
}

static int parse(const char *text, size_t bytes, int format, json_t **out,
		 struct kvc_syntax_error *error)
{
	switch (format) {
	case KVC_CONFIG_JSON:
		return kvc_json_parse(text, bytes, out, error);
	case KVC_CONFIG_YAML:
		return kvc_yaml_parse(text, bytes, out, error);
	default:
#ifdef KVC_HAVE_TOML
		return kvc_toml_parse(text, bytes, out, error);
#else
		return kvc_syntax_fail(error, 0, 0,
				       "this build cannot read TOML; use JSON or YAML");
#endif
	}
}

static int fail_syntax(const char *origin, int format, const struct kvc_syntax_error *error)
{
	static const char *const names[] = { "?", "TOML", "JSON", "YAML" };

	if (!error->line)
		return kvc_fail(-EINVAL, "%s: not valid %s: %s", origin, names[format],
				error->text);
	return kvc_fail(-EINVAL, "%s: line %u, column %u: not valid %s: %s", origin, error->line,
			error->column, names[format], error->text);
}

static int load_bytes(struct kvc_config *config, const char *text, size_t bytes, int format,
		      const char *origin)
{
	struct kvc_syntax_error error = { 0 };
	json_t *document = NULL;
	int rc;

	if (bytes > KVC_CONFIG_MAX_BYTES)
		return kvc_fail(-EFBIG, "%s: larger than 1 MiB", origin);
	if (bytes >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0))
		return kvc_fail(-EINVAL, "%s: this is UTF-16; save it as UTF-8", origin);
	if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
		text += 3;
		bytes -= 3;
	}
	if (format == KVC_CONFIG_AUTO)
		format = guess_format(text, bytes);
	rc = parse(text, bytes, format, &document, &error);
	if (rc == -EINVAL)
		return fail_syntax(origin, format, &error);
	if (rc < 0)
		return rc;
	if (!json_is_object(document))
		rc = kvc_fail(-EINVAL, "%s: the outermost value must be a table", origin);
	else if (has_bad_key(document))
		rc = kvc_fail(-EINVAL, "%s: a key with a NUL byte, or one longer than 96 bytes",
			      origin);
	else
		rc = add_document(config, document, origin);
	json_decref(document);
	return rc;
}

int kvc_config_load_text(struct kvc_config *config, const char *text, size_t bytes, int format,
			 const char *origin)
{
	const unsigned mark = kvc_fail_mark();
	char *path;
	int rc;

	if (!config || (!text && bytes) || format < KVC_CONFIG_AUTO || format > KVC_CONFIG_YAML)
		return kvc_fail(-EINVAL, "kvc_config_load_text: invalid argument");
	if (!text)
		text = "";
	origin = origin ? origin : "inline";
	if (format != KVC_CONFIG_AUTO || bytes == 0 || text[0] != '@')
		return kvc_fail_since(mark, load_bytes(config, text, bytes, format, origin), "%s",
				      origin);
	while (bytes > 1 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
		bytes--;
	path = strndup(text + 1, bytes - 1);
	if (!path)
		return kvc_fail(-ENOMEM, "%s: no memory", origin);
	rc = kvc_config_load_file(config, path);
	free(path);
	return rc;
}

/* ---------------------------------------------------------------- files */

static int format_of_path(const char *path)
{
	static const struct {
		const char *ending;
		int format;
	} endings[] = { { ".toml", KVC_CONFIG_TOML },
			{ ".json", KVC_CONFIG_JSON },
			{ ".yaml", KVC_CONFIG_YAML },
			{ ".yml", KVC_CONFIG_YAML } };
	size_t bytes = strlen(path), ending;

	for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
		ending = strlen(endings[i].ending);
		if (bytes > ending && strcasecmp(path + bytes - ending, endings[i].ending) == 0)
			return endings[i].format;
	}
	return KVC_CONFIG_AUTO;
}

static int fail_file(int error, const char *path)
{
	return kvc_fail(error, "configuration file %s: %s", *path ? path : "\"\"",
			strerror(-error));
}

/* Reads up to one byte more than is allowed. */
static int read_all(int fd, char *buffer, size_t *bytes)
{
	size_t used = 0;
	ssize_t got;

	do {
		got = read(fd, buffer + used, KVC_CONFIG_MAX_BYTES + 1 - used);
		if (got < 0 && errno != EINTR)
			return -errno;
		if (got > 0)
			used += (size_t)got;
	} while (got != 0 && used <= KVC_CONFIG_MAX_BYTES);
	*bytes = used;
	return 0;
}

int kvc_config_load_file(struct kvc_config *config, const char *path)
{
	const unsigned mark = kvc_fail_mark();
	char *buffer = NULL;
	struct stat status;
	size_t bytes = 0;
	int fd, rc;

	if (!config || !path)
		return kvc_fail(-EINVAL, "kvc_config_load_file: invalid argument");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fail_file(-errno, path);
	rc = fstat(fd, &status) < 0 ? -errno : S_ISDIR(status.st_mode) ? -EISDIR : 0;
	if (rc == 0) {
		buffer = malloc(KVC_CONFIG_MAX_BYTES + 1);
		rc = buffer ? read_all(fd, buffer, &bytes) : -ENOMEM;
	}
	if (rc < 0)
		(void)fail_file(rc, path);
	else
		rc = load_bytes(config, buffer, bytes, format_of_path(path), path);
	if (buffer)
		explicit_bzero(buffer, bytes); /* credentials may have been in it */
	free(buffer);
	(void)close(fd);
	return kvc_fail_since(mark, rc, "configuration file %s", path);
}

/* ---------------------------------------------------------------- single keys */

/* Does any section have this option? Then it may stand at the top level as well. */
static const struct kvc_option *flat_option(const char *name)
{
	const struct kvc_option *option = NULL;

	for (size_t i = 0; i < kvc_section_count && !option; i++)
		option = kvc_section_option_find(&kvc_sections[i], kvc_option_canonical(name));
	return option;
}

/* The row that a path names. *out stays NULL where only the plugin itself, or SGLang, knows the
 * key. */
static int option_of_path(const char *path, const struct kvc_option **out)
{
	const struct kvc_section *section;
	char name[KVC_PATH_BYTES];
	const char *dot, *key;

	if (strcmp(path, "plugin") == 0)
		return kvc_fail(-EINVAL, "plugin: this is the table of sections; set "
					 "plugin.<name>.active instead");
	if (strncmp(path, "plugin.", 7) != 0) {
		*out = kvc_top_option_find(path);
		if (*out || flat_option(path) || kvc_key_is_tolerated(path))
			return 0;
		return kvc_option_unknown(kvc_top_options, kvc_top_option_count, "top level", path);
	}
	dot = strchr(path + 7, '.');
	if (!dot)
		return kvc_fail(-EINVAL, "%s: this is a section; set one of its keys", path);
	key = dot + 1;
	(void)snprintf(name, sizeof(name), "%.*s", (int)(dot - path - 7), path + 7);
	section = kvc_section_find(name);
	if (!section)
		return 0;
	if (section->free_table &&
	    strncmp(key, section->free_table, strlen(section->free_table)) == 0)
		return 0;
	*out = kvc_section_option_find(section, kvc_option_canonical(key));
	(void)snprintf(name, sizeof(name), "plugin.%s", section->name);
	return *out ? 0 : kvc_option_unknown(section->options, section->option_count, name, key);
}

/* {"plugin": {"posix": {"use_uring": value}}} from "plugin.posix.use_uring"; takes the value. */
static json_t *document_of_path(const char *path, json_t *value)
{
	const char *dot = strchr(path, '.');
	size_t bytes = dot ? (size_t)(dot - path) : strlen(path);
	json_t *inner = dot ? document_of_path(dot + 1, value) : value;
	json_t *outer = json_object();

	if (!inner || !outer)
		json_decref(inner);
	else if (json_object_setn_new(outer, path, bytes, inner) == 0)
		return outer;
	json_decref(outer);
	return NULL;
}

static bool is_path(const char *path)
{
	unsigned dots = 0;

	if (strlen(path) >= KVC_PATH_BYTES || !*path || path[0] == '.')
		return false;
	for (const char *p = path; *p; p++) {
		if (*p == '.' && (p[1] == '.' || !p[1] || ++dots > 3))
			return false;
	}
	return true;
}

int kvc_config_set(struct kvc_config *config, const char *path, const char *value)
{
	const struct kvc_option *option = NULL;
	char quoted[KVC_QUOTED_BYTES];
	json_t *text, *checked, *document;
	unsigned mark;
	int rc;

	if (!config || !path)
		return kvc_fail(-EINVAL, "kvc_config_set: invalid argument");
	if (!is_path(path))
		return kvc_fail(-EINVAL, "%s is not the path of a key", kvc_quote(quoted, path));
	rc = kvc_json_text("path", path, &text);
	if (rc < 0)
		return rc;
	json_decref(text);
	rc = option_of_path(path, &option);
	if (rc < 0)
		return rc;
	text = json_null();
	rc = value ? kvc_json_text(path, value, &text) : 0;
	if (rc < 0)
		return rc;
	if (option && value) {
		rc = kvc_value_check(option, path, text, &checked);
		if (rc < 0) {
			json_decref(text);
			return rc;
		}
		json_decref(checked);
	}
	document = document_of_path(path, text);
	mark = kvc_fail_mark();
	rc = document ? add_document(config, document, "kvc_config_set") : -ENOMEM;
	json_decref(document);
	return kvc_fail_since(mark, rc, "setting %s", kvc_quote(quoted, path));
}

int kvc_config_check(const struct kvc_config *config)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_effective effective;
	int rc = kvc_effective_build(config, &effective);

	if (rc == 0)
		kvc_effective_release(&effective);
	return kvc_fail_since(mark, rc, "checking the configuration");
}
