/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: the configuration, plugins, and where metrics go. */
#include "doctor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int effective_json(void *context, char *buffer, size_t bytes)
{
	return kvc_config_describe(context, KVC_DESCRIBE_EFFECTIVE_JSON, buffer, bytes);
}

static json_t *effective_of(struct kvc_config *config)
{
	char *text = doctor_library_text(effective_json, config);
	json_t *document = text ? json_loads(text, 0, NULL) : NULL;

	free(text);
	return document;
}

/* With what is refused left out, the directories of -D can still be looked at. */
static void take_directories(struct doctor *doctor)
{
	struct kvc_config *config = NULL;

	if (kvc_config_new(&config) == 0 &&
	    cli_overrides_apply(&doctor->cli->overrides, 'D', config) == 0)
		doctor->effective = effective_of(config);
	kvc_config_free(config);
}

static void check_warnings(struct doctor *doctor)
{
	const json_t *warnings = json_object_get(doctor->effective, "warnings"), *warning;
	size_t i;

	json_array_foreach(warnings, i, warning)
		doctor_add(doctor, DOCTOR_WARNING, "configuration",
			   "correct it where `kvcellar config show' says that it comes from", "%s",
			   json_string_value(warning));
}

void doctor_check_configuration(struct doctor *doctor)
{
	struct kvc_config *config = NULL;
	int rc = doctor_config(doctor, NULL, &config);

	if (rc == 0)
		rc = kvc_config_check(config);
	if (rc == 0)
		doctor->effective = effective_of(config);
	doctor->refused = !doctor->effective;
	if (doctor->refused) {
		doctor_add(doctor, DOCTOR_PROBLEM, "configuration",
			   "correct it; `kvcellar config options' has all keys and their values",
			   "%s", kvc_last_error());
		take_directories(doctor);
	} else {
		doctor_add(doctor, DOCTOR_OK, "configuration", NULL, "valid");
	}
	check_warnings(doctor);
	kvc_config_free(config);
}

void doctor_check_identity(struct doctor *doctor)
{
	const char *identity = json_string_value(doctor_option(doctor, "identity"));

	if (!doctor->effective)
		return;
	if (identity)
		doctor_add(doctor, DOCTOR_OK, "identity", NULL, "\"%s\"", identity);
	else
		doctor_add(
			doctor, DOCTOR_WARNING, "identity",
			"set `identity' to what changes with the weights (a revision, a hash), "
			"unless the engine gives its own, as the adapter for SGLang does",
			"unset: pages of other weights of the same model name count as the same");
}

/* ---------------------------------------------------------------- plugins */

static int add_plugin(void *context, const struct kvc_plugin_info *info)
{
	json_t *plugin = json_pack("{s:o, s:b, s:o}", "name",
				   cli_json_text(info->name ? info->name : ""), "loads",
				   info->status == 0, "reason",
				   cli_json_text(info->reason ? info->reason : ""));

	return json_array_append_new(context, plugin) < 0 ? -ENOMEM : 0;
}

static const json_t *find_plugin(const json_t *plugins, const char *name)
{
	const json_t *plugin;
	size_t i;

	json_array_foreach(plugins, i, plugin)
	{
		if (strcmp(json_string_value(json_object_get(plugin, "name")), name) == 0)
			return plugin;
	}
	return NULL;
}

/* Why a candidate is no choice; NULL: it is one. */
static const char *refusal_of(const json_t *candidate, const json_t *plugins)
{
	const char *name = json_string_value(json_object_get(candidate, "plugin"));
	const char *reason = json_string_value(json_object_get(candidate, "reason"));
	const json_t *plugin = find_plugin(plugins, name ? name : "");

	if (!json_is_true(json_object_get(candidate, "valid")))
		return reason ? reason : "its configuration is not valid";
	if (!plugin || json_is_true(json_object_get(plugin, "loads")))
		return NULL;
	return json_string_value(json_object_get(plugin, "reason"));
}

/* The first that can be taken. One that somebody chose and that cannot is worth a word. */
static void check_candidates(struct doctor *doctor, const json_t *plugins)
{
	const json_t *candidates = json_object_get(doctor->effective, "candidates"), *candidate;
	const char *selection = json_string_value(json_object_get(doctor->effective, "selection"));
	const bool chosen = selection && strcmp(selection, "auto") != 0;
	size_t i;

	json_array_foreach(candidates, i, candidate)
	{
		const char *name = json_string_value(json_object_get(candidate, "plugin"));
		const char *reason = refusal_of(candidate, plugins);

		if (!reason) {
			doctor_add(doctor, DOCTOR_OK, "plugin", NULL, "%s loads", name);
			return;
		}
		if (chosen)
			doctor_add(doctor, DOCTOR_WARNING, "plugin",
				   "mend that, or take its section out of the configuration",
				   "%s was chosen and cannot be taken: %s", name, reason);
	}
	doctor_add(doctor, DOCTOR_PROBLEM, "plugin",
		   "install the plugins beside the library, or name their folder in plugin_dir; "
		   "`kvcellar info' has the reason of each",
		   "none of the configuration can be taken");
}

void doctor_check_plugins(struct doctor *doctor)
{
	json_t *plugins = json_array();
	struct kvc_config *config = NULL;
	int rc = doctor_config(doctor, NULL, &config);

	if (!plugins || !doctor->effective)
		goto out;
	/* What is wrong with the configuration was told. */
	rc = kvc_plugin_list(rc == 0 && !doctor->refused ? config : NULL, add_plugin, plugins);
	if (rc < 0 && doctor->refused)
		goto out;
	if (rc < 0)
		doctor_add(doctor, DOCTOR_PROBLEM, "plugin", "name another folder in plugin_dir",
			   "%s", kvc_last_error());
	else
		check_candidates(doctor, plugins);
out:
	kvc_config_free(config);
	json_decref(plugins);
}

/* ---------------------------------------------------------------- metrics */

static void check_metrics_file(struct doctor *doctor, const char *path)
{
	const char *slash = strrchr(path, '/');
	char *folder = slash ? strndup(path, slash > path ? (size_t)(slash - path) : 1) :
			       strdup(".");

	if (!folder)
		return;
	/* It is written beside and renamed: the folder has to be writable, not the file. */
	if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0)
		doctor_add(doctor, DOCTOR_OK, "metrics_file", NULL, "%s can be written", path);
	else
		doctor_add(doctor, DOCTOR_PROBLEM, "metrics_file",
			   errno == ENOENT ? "make the folder, or name another file" :
					     "give the user of the server write permission to the "
					     "folder, or name another file",
			   "%s cannot be written: %s: %s", path, folder, strerror(errno));
	free(folder);
}

/* Whether somebody could listen there now: "127.0.0.1:9464", "[::1]:9464". */
static int try_listen(const char *listen_at)
{
	const char *colon = strrchr(listen_at, ':');
	const int port = colon ? (int)strtol(colon + 1, NULL, 10) : 0;
	const bool six = listen_at[0] == '[';
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6,
				    .sin6_port = htons((uint16_t)port),
				    .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	const int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const int one = 1;
	int rc;

	if (fd < 0)
		return -errno;
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	rc = six ? bind(fd, (struct sockaddr *)&in6, sizeof(in6)) :
		   bind(fd, (struct sockaddr *)&in, sizeof(in));
	rc = rc < 0 ? -errno : 0;
	(void)close(fd);
	return rc;
}

static void check_metrics_listen(struct doctor *doctor, const char *listen_at)
{
	const int rc = try_listen(listen_at);

	if (rc == 0)
		doctor_add(doctor, DOCTOR_OK, "metrics_listen", NULL, "%s is free", listen_at);
	else if (rc == -EADDRINUSE)
		doctor_add(
			doctor, DOCTOR_WARNING, "metrics_listen",
			"nothing, when that is the only process of this store; give each rank an "
			"address of its own (KVCELLAR_METRICS_LISTEN=127.0.0.2:9464, ...), or use "
			"metrics_file with {rank} in its path; else name another port",
			"%s is in use: a further process, as the next rank, gives no metrics there",
			listen_at);
	else
		doctor_add(doctor, DOCTOR_PROBLEM, "metrics_listen", "name another port", "%s: %s",
			   listen_at, strerror(-rc));
}

void doctor_check_metrics(struct doctor *doctor)
{
	const char *file = doctor_text(doctor, "metrics_file");
	const char *listen_at = doctor_text(doctor, "metrics_listen");

	if (file[0])
		check_metrics_file(doctor, file);
	if (listen_at[0])
		check_metrics_listen(doctor, listen_at);
}
