/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: what is wrong here, and what to do about it. */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	OPTION_READ_ONLY = 0x200,
};

struct doctor_arguments {
	bool read_only;
};

static error_t parse_doctor(int key, char *argument, struct argp_state *state)
{
	struct doctor_arguments *arguments = state->input;

	switch (key) {
	case OPTION_READ_ONLY:
		arguments->read_only = true;
		return 0;
	case ARGP_KEY_ARG:
		return cli_argp_error("unexpected argument '%.200s'; -D names a directory",
				      argument);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option doctor_options[] = {
	{ "read-only", OPTION_READ_ONLY, NULL, 0,
	  "No self-test; what can only be read is all right", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const struct argp doctor_argp = {
	.options = doctor_options,
	.parser = parse_doctor,
	.doc = "Checks configuration, directories, permissions, limits of the system, space and "
	       "the state of each root, and says what is wrong and what to do. Each check stands "
	       "by itself: it is also for a store that does not open. Changes nothing but for the "
	       "self-test, which writes, reads and removes a test object on each root."
	       "\v"
	       "Exit codes: 0 all right, also with warnings; 1 there is a problem.\n\n"
	       "Examples:\n"
	       "  kvcellar -c kvcellar.toml doctor\n"
	       "  kvcellar -D /mnt/a,/mnt/b doctor --read-only --json",
};

/* ---------------------------------------------------------------- telling */

static const char *const status_words[] = { "ok", "warning", "problem" };

static void print_text(const char *before, const char *text, const char *after)
{
	char *printable = cli_printable(text);

	printf("%s%s%s", before, printable ? printable : "out of memory", after);
	free(printable);
}

static void print_check(struct doctor *doctor, enum doctor_status status, const char *check,
			const char *remedy, const char *text)
{
	const struct kvc_cli *cli = doctor->cli;
	const char *color = status == DOCTOR_PROBLEM ? cli_red(cli) :
			    status == DOCTOR_OK	     ? cli_green(cli) :
						       cli_bold(cli);

	if (cli->quiet && status == DOCTOR_OK)
		return;
	if (!doctor->told || doctor->told_root != doctor->root)
		print_text(cli_bold(cli), doctor->root ? doctor->root : "this system",
			   cli->color ? "\033[0m\n" : "\n");
	doctor->told = true;
	doctor->told_root = doctor->root;
	printf("  %s%-8s%s %-14s ", color, status_words[status], cli_plain(cli), check);
	print_text("", text, "\n");
	if (remedy)
		print_text("                          -> ", remedy, "\n");
	(void)fflush(stdout);
}

void doctor_add(struct doctor *doctor, enum doctor_status status, const char *check,
		const char *remedy, const char *format, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	doctor->counts[status]++;
	if (doctor->cli->json)
		(void)json_array_append_new(
			doctor->checks,
			json_pack("{s:s, s:o, s:s, s:o, s:o}", "check", check, "root",
				  doctor->root ? cli_json_text(doctor->root) : json_null(),
				  "status", status_words[status], "text",
				  cli_json_text(text ? text : "out of memory"), "remedy",
				  remedy ? cli_json_text(remedy) : json_null()));
	else
		print_check(doctor, status, check, remedy, text ? text : "out of memory");
	free(text);
}

/* ---------------------------------------------------------------- what checks ask */

const json_t *doctor_option(const struct doctor *doctor, const char *name)
{
	return cli_config_value(json_object_get(doctor->effective, "options"), name);
}

const json_t *doctor_plugin_option(const struct doctor *doctor, const char *plugin,
				   const char *name)
{
	const json_t *plugins = json_object_get(doctor->effective, "plugins");

	return cli_config_value(json_object_get(plugins, plugin), name);
}

bool doctor_flag(const struct doctor *doctor, const char *name)
{
	return json_is_true(doctor_option(doctor, name));
}

const char *doctor_text(const struct doctor *doctor, const char *name)
{
	const char *text = json_string_value(doctor_option(doctor, name));

	return text ? text : "";
}

uint64_t doctor_share(const json_t *value, uint64_t total_bytes)
{
	const char *text = json_string_value(value);

	if (text)
		return (uint64_t)(strtod(text, NULL) / 100 * (double)total_bytes);
	return json_is_integer(value) ? (uint64_t)json_integer_value(value) : 0;
}

char *doctor_library_text(cli_text_fn get, void *context)
{
	int bytes = get(context, NULL, 0);
	char *text;

	if (bytes < 0)
		return NULL;
	bytes += 4096; /* counters grow between two calls */
	text = malloc((size_t)bytes);
	if (text && get(context, text, (size_t)bytes) >= bytes) {
		free(text);
		text = NULL;
	}
	return text;
}

static int add_members(struct kvc_config *config, const json_t *members)
{
	char *text = members ? json_dumps(members, JSON_COMPACT) : NULL;
	int rc;

	if (!members)
		return 0;
	if (!text)
		return -ENOMEM;
	rc = kvc_config_load_text(config, text, strlen(text), KVC_CONFIG_JSON, "doctor");
	free(text);
	return rc;
}

int doctor_config(const struct doctor *doctor, const json_t *members, struct kvc_config **out)
{
	static const char kinds[] = "cDs";
	struct kvc_config *config = NULL;
	int rc = kvc_config_new(&config);

	for (const char *kind = kinds; *kind && rc == 0; kind++)
		rc = cli_overrides_apply(&doctor->cli->overrides, *kind, config);
	if (rc == 0)
		rc = add_members(config, members);
	if (rc < 0) {
		kvc_config_free(config);
		return rc;
	}
	*out = config;
	return 0;
}

json_t *doctor_quiet(void)
{
	return json_pack("{s:s, s:s, s:s}", "metrics_file", "", "metrics_listen", "", "trace_file",
			 "");
}

static int store_json(void *context, char *buffer, size_t bytes)
{
	return kvc_store_describe(context, KVC_FORMAT_JSON, buffer, bytes);
}

json_t *doctor_description(struct kvc_store *store)
{
	char *text = doctor_library_text(store_json, store);
	json_t *description = text ? json_loads(text, 0, NULL) : NULL;

	free(text);
	return description;
}

json_t *doctor_describe(const struct kvc_config *config, unsigned flags, char **cause)
{
	const struct kvc_open_params params = { .size = sizeof(params), .flags = flags };
	struct kvc_store *store = NULL;
	const int rc = kvc_store_open(config, &params, &store);
	json_t *description = rc == 0 ? doctor_description(store) : NULL;

	if (!description)
		*cause = strdup(kvc_last_error()[0] ? kvc_last_error() : "out of memory");
	(void)kvc_store_close(store);
	return description;
}

const json_t *doctor_root_facts(const json_t *description, const char *root)
{
	const json_t *roots = json_object_get(description, "roots"), *one;
	size_t i;

	json_array_foreach(roots, i, one)
	{
		const char *path = json_string_value(json_object_get(one, "path"));

		if (path && strcmp(path, root) == 0)
			return one;
	}
	return NULL;
}

bool doctor_read_line(const char *path, char *buffer, size_t bytes)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, buffer, bytes - 1);
	(void)close(fd);
	if (n <= 0)
		return false;
	buffer[n] = '\0';
	buffer[strcspn(buffer, "\n")] = '\0';
	return true;
}

/* ---------------------------------------------------------------- the command */

static int print_document(struct doctor *doctor)
{
	json_t *checks = doctor->checks;

	doctor->checks = NULL;
	return cli_json_print(
		doctor->cli,
		json_pack("{s:b, s:I, s:I, s:o}", "ok", doctor->counts[DOCTOR_PROBLEM] == 0,
			  "problems", (json_int_t)doctor->counts[DOCTOR_PROBLEM], "warnings",
			  (json_int_t)doctor->counts[DOCTOR_WARNING], "checks", checks));
}

static int conclude(struct doctor *doctor)
{
	const unsigned problems = doctor->counts[DOCTOR_PROBLEM];
	const unsigned warnings = doctor->counts[DOCTOR_WARNING];
	int rc = 0;

	if (doctor->cli->json)
		rc = print_document(doctor);
	else
		cli_note(doctor->cli, "%u problem%s, %u warning%s, %u ok", problems,
			 problems == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s",
			 doctor->counts[DOCTOR_OK]);
	return rc ? rc : problems ? CLI_WRONG : CLI_DONE;
}

int kvc_cmd_doctor(struct kvc_cli *cli, int argc, char **argv)
{
	struct doctor_arguments arguments = { .read_only = false };
	struct doctor doctor = { .cli = cli };
	int rc;

	rc = cli_parse(cli, &doctor_argp, CLI_WITHOUT_CONFIG, argc, argv, &arguments);
	if (rc)
		return rc;
	doctor.read_only = arguments.read_only;
	doctor.checks = json_array();
	if (!doctor.checks)
		return cli_fail_errno(cli, -ENOMEM, "doctor");
	doctor_check_configuration(&doctor);
	doctor_check_identity(&doctor);
	doctor_check_plugins(&doctor);
	doctor_check_metrics(&doctor);
	doctor_check_system(&doctor);
	doctor_check_roots(&doctor);
	rc = cli_interrupted() ? CLI_INTERRUPTED : conclude(&doctor);
	json_decref(doctor.checks);
	json_decref(doctor.effective);
	json_decref(doctor.description);
	return rc;
}
