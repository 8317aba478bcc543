/* SPDX-License-Identifier: Apache-2.0 */
/* Rules between options. */
#include "core/config_internal.h"
#include "core/format.h"
#include "core/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static const char *top_text(const struct kvc_effective *effective, const char *name)
{
	const char *text = json_string_value(json_object_get(effective->top, name));

	return text ? text : "";
}

static bool is_given(const struct kvc_effective *effective, const char *path)
{
	return json_object_get(effective->origins, path) != NULL;
}

/* ---------------------------------------------------------------- top level */

static int check_watermarks(struct kvc_effective *effective)
{
	static const char *const names[] = { "l3_cleaner_high_watermark",
					     "l3_cleaner_low_watermark" };
	double high = json_real_value(json_object_get(effective->top, names[0]));
	double low = json_real_value(json_object_get(effective->top, names[1]));
	bool small = false;
	double value;
	int rc = 0;

	for (size_t i = 0; i < 2 && rc == 0; i++) {
		value = i == 0 ? high : low;
		if (value > 1 || !is_given(effective, names[i]))
			continue;
		small = true;
		rc = kvc_warn(effective,
			      "%s: watermarks are percent; %g means %g percent of the file "
			      "system, write %g for that share of the whole",
			      names[i], value, value, 100 * value);
	}
	if (rc < 0)
		return rc;
	if (!(low < high))
		return kvc_fail(-EINVAL,
				"l3_cleaner_low_watermark (%g) must be lower than "
				"l3_cleaner_high_watermark (%g)%s",
				low, high, small ? "; both are percent, 0 to 100" : "");
	return 0;
}

static int check_layout(const struct kvc_effective *effective)
{
	if (strcmp(top_text(effective, "naming"), "nixl") == 0 &&
	    json_array_size(json_object_get(effective->top, "tenant_shares")) > 0)
		return kvc_fail(-EINVAL, "tenant_shares: naming = \"nixl\" does not tell tenants "
					 "apart");
	if (strcmp(top_text(effective, "storage_layout"), "packed") != 0)
		return 0;
	if (strcmp(top_text(effective, "naming"), "nixl") == 0)
		return kvc_fail(-EINVAL, "storage_layout: \"packed\" does not go with naming = "
					 "\"nixl\", which stores one file per object");
	if (json_is_false(json_object_get(effective->top, "l3_cleaner_enabled")) &&
	    json_is_null(json_object_get(effective->top, "capacity")))
		return kvc_fail(-EINVAL, "storage_layout: \"packed\" with l3_cleaner_enabled = "
					 "false needs capacity");
	return 0;
}

int kvc_tenant_share_parse(const char *text, char **out_tenant, json_t **out_share)
{
	static const struct kvc_option row = {
		.name = "share",
		.type = "size",
		.unit = "bytes or %",
		.range = ">= 1",
	};
	const char *equals = strrchr(text, '=');
	char quoted[KVC_QUOTED_BYTES], path[KVC_QUOTED_BYTES + 32];
	char *tenant;
	json_t *value;
	int rc;

	(void)snprintf(path, sizeof(path), "tenant_shares: %s", kvc_quote(quoted, text));
	if (!equals)
		return kvc_fail(-EINVAL, "%s is not tenant=share, as \"team=30%%\"", path);
	value = json_string(equals + 1);
	tenant = strndup(text, (size_t)(equals - text));
	rc = value && tenant ? kvc_value_check(&row, path, value, out_share) : -ENOMEM;
	json_decref(value);
	if (rc)
		free(tenant);
	else
		*out_tenant = tenant;
	return rc;
}

/* Of a share as kvc_tenant_share_parse() gives it: "30%", or a number of bytes. */
static double percent_of(const json_t *share)
{
	const char *text = json_string_value(share);
	char number[32];
	double percent = 0;

	if (!text || !*text || strlen(text) > sizeof(number))
		return 0;
	(void)snprintf(number, sizeof(number), "%.*s", (int)strlen(text) - 1, text);
	return kvc_number_parse(number, &percent) == 0 ? percent : 0;
}

/* Shares are most bytes: more than all of it in sum protects nobody from the others. */
static int check_sum(struct kvc_effective *effective, double percent)
{
	if (percent <= 100)
		return 0;
	return kvc_warn(effective,
			"tenant_shares: the percentages are %g in sum, more than 100: tenants that "
			"use all of their shares evict each other's pages",
			percent);
}

static int check_tenant_shares(struct kvc_effective *effective)
{
	const json_t *list = json_object_get(effective->top, "tenant_shares");
	char **tenants = calloc(json_array_size(list) + 1, sizeof(*tenants));
	int rc = tenants ? 0 : -ENOMEM;
	double percent = 0;

	for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
		const char *text = json_string_value(json_array_get(list, i));
		char quoted[KVC_QUOTED_BYTES];
		json_t *share = NULL;

		rc = kvc_tenant_share_parse(text, &tenants[i], &share);
		percent += rc == 0 ? percent_of(share) : 0;
		json_decref(share);
		for (size_t j = 0; j < i && rc == 0; j++)
			if (strcmp(tenants[i], tenants[j]) == 0)
				rc = kvc_fail(-EINVAL, "tenant_shares: %s has two shares",
					      kvc_quote(quoted, tenants[i]));
	}
	for (size_t i = 0; tenants && i < json_array_size(list); i++)
		free(tenants[i]);
	free(tenants);
	return rc ? rc : check_sum(effective, percent);
}

/* A name or a number of this machine's loopback, and a port. */
static int check_listen(const struct kvc_effective *effective)
{
	const char *text = top_text(effective, "metrics_listen");
	const char *colon = strrchr(text, ':');
	char quoted[KVC_QUOTED_BYTES], host[64] = "";
	struct in_addr address;
	char *end = NULL;
	long port;

	if (!*text)
		return 0;
	if (colon && (size_t)(colon - text) < sizeof(host))
		memcpy(host, text, (size_t)(colon - text));
	port = colon ? strtol(colon + 1, &end, 10) : -1;
	if (!colon || colon[1] < '0' || colon[1] > '9' || *end || port > 65535)
		return kvc_fail(-EINVAL,
				"metrics_listen: %s is no address and port, as "
				"\"127.0.0.1:9464\"",
				kvc_quote(quoted, text));
	if (strcmp(host, "[::1]") == 0 || strcmp(host, "localhost") == 0 ||
	    (inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127))
		return 0;
	return kvc_fail(-EINVAL,
			"metrics_listen: %s is not on the loopback (127.0.0.1, [::1], "
			"localhost): what it serves is not protected",
			kvc_quote(quoted, text));
}

static int check_mode(const struct kvc_effective *effective)
{
	const char *mode = top_text(effective, "mode");
	size_t digits = strspn(mode, "01234567");
	char quoted[KVC_QUOTED_BYTES];
	unsigned long bits;

	if (mode[digits] || digits < 3 || digits > 4)
		return kvc_fail(-EINVAL, "mode: %s is not an octal access mode such as \"0600\"",
				kvc_quote(quoted, mode));
	bits = strtoul(mode, NULL, 8);
	if (bits & ~0664ul || (bits & 0600) != 0600)
		return kvc_fail(-EINVAL,
				"mode: %s; the owner must be able to read and write, others "
				"not to write, and nobody to execute (0600, 0640, 0660, 0664 ...)",
				mode);
	return 0;
}

/* ---------------------------------------------------------------- storage_dirs */

/* The folder without symlinks; what does not exist yet is appended as it stands. */
static char *canonical_folder(const char *path)
{
	char *copy = strdup(path), *slash, *real = NULL, *joined = NULL;
	char *rest;

	if (!copy)
		return NULL;
	for (slash = copy + strlen(copy); slash > copy + 1 && slash[-1] == '/'; slash--)
		slash[-1] = '\0';
	real = realpath(copy, NULL);
	if (real || strcmp(copy, "/") == 0 || strcmp(copy, ".") == 0) {
		free(copy);
		return real ? real : strdup(path);
	}
	slash = strrchr(copy, '/');
	rest = slash ? slash + 1 : copy;
	if (slash)
		*slash = '\0';
	real = canonical_folder(!slash ? "." : slash == copy ? "/" : copy);
	if (real && strcmp(rest, ".") == 0) {
		free(copy);
		return real;
	}
	if (real && strcmp(rest, "..") == 0) {
		slash = strrchr(real, '/');
		if (slash)
			slash[slash == real] = '\0';
		free(copy);
		return real;
	}
	if (real && asprintf(&joined, "%s/%s", strcmp(real, "/") == 0 ? "" : real, rest) < 0)
		joined = NULL;
	free(real);
	free(copy);
	return joined;
}

/* One folder under two names, also by a second mount of it. */
static bool is_same_folder(const char *a, const char *b)
{
	struct stat first, second;

	if (strcmp(a, b) == 0)
		return true;
	return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
	       first.st_ino == second.st_ino;
}

static int compare_folders(const json_t *folders, char **canonical, size_t count)
{
	char a[KVC_QUOTED_BYTES], b[KVC_QUOTED_BYTES];

	for (size_t i = 1; i < count; i++) {
		for (size_t j = 0; j < i; j++) {
			if (!is_same_folder(canonical[i], canonical[j]))
				continue;
			kvc_quote(a, json_string_value(json_array_get(folders, j)));
			kvc_quote(b, json_string_value(json_array_get(folders, i)));
			return kvc_fail(-EINVAL, "storage_dirs: %s and %s are the same folder", a,
					b);
		}
	}
	return 0;
}

static int check_folders(const struct kvc_effective *effective)
{
	const json_t *folders = json_object_get(effective->top, "storage_dirs");
	size_t count = json_array_size(folders);
	char **canonical;
	int rc;

	if (count > KVC_ROOTS_MAX)
		return kvc_fail(-EINVAL, "storage_dirs: %zu directories, at most %u are possible",
				count, KVC_ROOTS_MAX);
	canonical = calloc(count ? count : 1, sizeof(*canonical));
	rc = canonical ? 0 : -ENOMEM;
	for (size_t i = 0; i < count && rc == 0; i++) {
		canonical[i] = canonical_folder(json_string_value(json_array_get(folders, i)));
		if (!canonical[i])
			rc = -ENOMEM;
	}
	if (rc == 0)
		rc = compare_folders(folders, canonical, count);
	for (size_t i = 0; canonical && i < count; i++)
		free(canonical[i]);
	free(canonical);
	return rc;
}

/* ---------------------------------------------------------------- own files */

static bool has_component(const char *path, const char *name)
{
	size_t bytes = strlen(name);

	for (const char *at = path; (at = strstr(at, name)) != NULL; at += bytes)
		if ((at == path || at[-1] == '/') && (at[bytes] == '\0' || at[bytes] == '/'))
			return true;
	return false;
}

/* Is the path, as it stands or behind its symlinks, in a root's own folder? */
static int is_in_own_folder(const char *path, bool *out)
{
	char *real = canonical_folder(path);
	char *copy = strdup(path);
	char *folder = NULL;
	char *slash;
	int rc = -ENOMEM;

	if (!real || !copy)
		goto free_all;
	slash = strrchr(copy, '/');
	if (slash)
		slash[slash == copy] = '\0';
	folder = canonical_folder(slash ? copy : ".");
	if (!folder)
		goto free_all;
	*out = has_component(real, KVC_HOUSEKEEPING_FOLDER) ||
	       has_component(folder, KVC_HOUSEKEEPING_FOLDER);
	rc = 0;
free_all:
	free(folder);
	free(copy);
	free(real);
	return rc;
}

/* Both files replace what is there, which may be the identity of a root. */
static int check_own_files(const struct kvc_effective *effective)
{
	static const char *const keys[] = { "metrics_file", "trace_file" };
	char quoted[KVC_QUOTED_BYTES];

	for (size_t i = 0; i < 2; i++) {
		const char *path = top_text(effective, keys[i]);
		bool own = false;
		int rc = *path ? is_in_own_folder(path, &own) : 0;

		if (rc < 0)
			return rc;
		if (own)
			return kvc_fail(
				-EINVAL,
				"%s: %s lies in a folder " KVC_HOUSEKEEPING_FOLDER
				", where a root keeps its own files, which it would replace",
				keys[i], kvc_quote(quoted, path));
	}
	return 0;
}

/* ---------------------------------------------------------------- sections */

static const char *const engine_keys[] = { "use_uring", "use_aio", "use_posix_aio" };

static int check_posix(const json_t *values)
{
	const char *first = NULL;

	for (size_t i = 0; i < 3; i++) {
		if (!json_is_true(json_object_get(values, engine_keys[i])))
			continue;
		if (first)
			return kvc_fail(-EINVAL,
					"plugin.posix: %s and %s are both true; at most one of "
					"use_uring, use_aio and use_posix_aio may be",
					first, engine_keys[i]);
		first = engine_keys[i];
	}
	return 0;
}

/* Does the endpoint name an IP address or a port, with which a bucket cannot be in the host? */
static bool endpoint_is_plain(const char *endpoint)
{
	const char *host = strstr(endpoint, "://");
	unsigned char address[sizeof(struct in6_addr)];
	char name[256];
	const char *at;
	size_t bytes;

	host = host ? host + 3 : endpoint;
	bytes = strcspn(host, "/?#");
	at = memchr(host, '@', bytes);
	if (at) {
		bytes -= (size_t)(at + 1 - host);
		host = at + 1;
	}
	if (bytes == 0 || bytes >= sizeof(name))
		return false;
	memcpy(name, host, bytes);
	name[bytes] = '\0';
	return strchr(name, ':') || inet_pton(AF_INET, name, address) == 1;
}

static int check_obj(const json_t *values)
{
	const char *endpoint = json_string_value(json_object_get(values, "endpoint_override"));

	if (!json_is_true(json_object_get(values, "use_virtual_addressing")) || !endpoint ||
	    !endpoint_is_plain(endpoint))
		return 0;
	return kvc_fail(-EINVAL,
			"plugin.obj.use_virtual_addressing: true cannot work with an "
			"endpoint_override that is an IP address or names a port, as the "
			"bucket would be part of the host name; leave it out or set false");
}

static int check_fault(const json_t *values)
{
	const char *lower = json_string_value(json_object_get(values, "lower"));

	if (!lower || strcasecmp(lower, "fault") != 0)
		return 0;
	return kvc_fail(-EINVAL, "plugin.fault.lower: \"fault\" is a stacked plugin itself; name "
				 "one that moves bytes, as \"posix\" or \"mem\"");
}

int kvc_section_check(const char *section, const json_t *values)
{
	if (strcmp(section, "fault") == 0)
		return check_fault(values);
	if (strcmp(section, "posix") == 0)
		return check_posix(values);
	if (strcmp(section, "obj") == 0)
		return check_obj(values);
	return 0;
}

static bool has_text(const json_t *values, const char *name)
{
	return json_string_length(json_object_get(values, name)) > 0;
}

const char *kvc_section_missing(const char *section, const json_t *values)
{
	if (strcmp(section, "3fs") == 0 && !has_text(values, "mount_point"))
		return "mount_point is not set";
	if (strcmp(section, "obj") == 0 && !has_text(values, "bucket"))
		return "bucket is not set, and neither is AWS_DEFAULT_BUCKET";
	if (strcmp(section, "azure_blob") == 0 &&
	    (!has_text(values, "container_name") ||
	     (!has_text(values, "account_url") && !has_text(values, "connection_string"))))
		return "container_name and one of account_url and connection_string are needed";
	return NULL;
}

/* Is the key true, in its section or at the top level, where values are as they were read? */
static bool is_demanded(const struct kvc_effective *effective, const char *key)
{
	const json_t *given = json_object_get(json_object_get(effective->sections, "posix"), key);
	const json_t *flat = json_object_get(effective->flat, key);
	bool flag = false;

	if (json_is_true(given) || json_is_true(flat) || json_integer_value(flat) == 1)
		return true;
	return json_is_string(flat) && kvc_boolean_parse(json_string_value(flat), &flag) == 0 &&
	       flag;
}

static int check_io_engines(const struct kvc_effective *effective)
{
	if (!is_given(effective, "io_engines"))
		return 0;
	for (size_t i = 0; i < 3; i++)
		if (is_demanded(effective, engine_keys[i]))
			return kvc_fail(-EINVAL,
					"io_engines: not together with %s = true; io_engines alone "
					"sets the order, %s alone demands one engine",
					engine_keys[i], engine_keys[i]);
	return 0;
}

int kvc_effective_check(struct kvc_effective *effective)
{
	const char *name;
	json_t *values;
	int rc;

	rc = check_watermarks(effective);
	if (rc == 0)
		rc = check_layout(effective);
	if (rc == 0)
		rc = check_tenant_shares(effective);
	if (rc == 0)
		rc = check_listen(effective);
	if (rc == 0)
		rc = check_mode(effective);
	if (rc == 0)
		rc = check_io_engines(effective);
	if (rc == 0)
		rc = check_folders(effective);
	if (rc == 0)
		rc = check_own_files(effective);
	if (rc < 0)
		return rc;
	json_object_foreach(effective->sections, name, values)
	{
		rc = kvc_section_check(name, values);
		if (rc < 0)
			break;
	}
	return rc;
}
