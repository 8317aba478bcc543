/* SPDX-License-Identifier: Apache-2.0 */
/* Which I/O engine a root gets. */
#include "posix.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Measured: io_uring is the fastest, Linux AIO blocks in io_submit where a file grows, POSIX AIO
 * never does more than one request per file at a time. */
static const struct posix_engine *const engines[POSIX_ENGINES] = {
	&posix_engine_uring,
	&posix_engine_linux_aio,
	&posix_engine_threads,
	&posix_engine_posix_aio,
};

void posix_reason(const struct kvc_host *host, const char *format, ...)
{
	char text[512];
	va_list args;

	if (host->reason == NULL)
		return;
	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	host->reason(host->context, 0, text);
}

static const char *setting_value(const struct kvc_backend_params *params, const char *name)
{
	for (size_t i = 0; i < params->setting_count; i++) {
		if (strcmp(params->settings[i].name, name) == 0)
			return params->settings[i].value;
	}
	return NULL;
}

static const struct posix_engine *engine_find(const char *name, size_t bytes)
{
	for (size_t i = 0; i < POSIX_ENGINES; i++) {
		if (strlen(engines[i]->name) == bytes &&
		    strncmp(engines[i]->name, name, bytes) == 0)
			return engines[i];
	}
	return NULL;
}

static int choice_add(struct kvc_plugin_backend *backend, const char *name, size_t bytes)
{
	const struct posix_engine *engine = engine_find(name, bytes);

	if (engine == NULL) {
		posix_reason(backend->host,
			     "there is no I/O engine \"%.*s\": io_uring, linux_aio, threads and "
			     "posix_aio are known",
			     (int)bytes, name);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < backend->choice_count; i++) {
		if (backend->choices[i].engine == engine)
			return 0;
	}
	backend->choices[backend->choice_count++].engine = engine;
	return 0;
}

/* io_engines: names with commas between. */
static int choices_parse(struct kvc_plugin_backend *backend, const char *list)
{
	int error = 0;

	while (error == 0 && *list != '\0') {
		size_t bytes;

		list += strspn(list, ", \t");
		bytes = strcspn(list, ", \t");
		if (bytes > 0)
			error = choice_add(backend, list, bytes);
		list += bytes;
	}
	return error;
}

/* use_uring, use_aio, use_posix_aio: at most one of them demands its engine. */
static int choices_demanded(struct kvc_plugin_backend *backend,
			    const struct kvc_backend_params *params)
{
	static const struct {
		const char *setting;
		const char *engine;
	} demands[] = {
		{ "use_uring", "io_uring" },
		{ "use_aio", "linux_aio" },
		{ "use_posix_aio", "posix_aio" },
	};
	int error = 0;

	for (size_t i = 0; error == 0 && i < sizeof(demands) / sizeof(demands[0]); i++) {
		const char *value = setting_value(params, demands[i].setting);

		if (value == NULL || strcasecmp(value, "true") != 0)
			continue;
		if (backend->choice_count > 0) {
			posix_reason(backend->host,
				     "%s is true, but another I/O engine is asked for as well: "
				     "leave one of use_uring, use_aio, use_posix_aio, io_engines",
				     demands[i].setting);
			return -EINVAL;
		}
		error = choice_add(backend, demands[i].engine, strlen(demands[i].engine));
		backend->demanded = true;
	}
	return error;
}

static void depth_limit(struct kvc_plugin_backend *backend, const struct kvc_backend_params *params,
			const char *name)
{
	const char *value = setting_value(params, name);
	char *end;
	unsigned long number;

	if (value == NULL || *value == '\0')
		return;
	errno = 0;
	number = strtoul(value, &end, 10);
	if (errno == 0 && *end == '\0' && number > 0 && number < backend->max_depth)
		backend->max_depth = (uint32_t)number;
}

/* 0 when at least one can be used. */
static int choices_probe(struct kvc_plugin_backend *backend)
{
	const struct posix_choice *first = &backend->choices[0];
	bool usable = false;

	for (uint32_t i = 0; i < backend->choice_count; i++) {
		struct posix_choice *choice = &backend->choices[i];

		choice->error = choice->engine->probe(choice->why, sizeof(choice->why));
		usable = usable || choice->error == 0;
	}
	if (usable)
		return 0;
	posix_reason(backend->host, "I/O engine %s is demanded and cannot be used: %s",
		     first->engine->name, first->why);
	return -ENODEV; /* whatever the probe said: docs/errors.md */
}

int posix_choices_make(struct kvc_plugin_backend *backend, const struct kvc_backend_params *params)
{
	const char *list = params->io_engines != NULL ? params->io_engines : "";
	int error;

	backend->max_depth = POSIX_DEPTH_DEFAULT;
	/* 0, the default of both, leaves it at the queue's depth. */
	depth_limit(backend, params, "ios_pool_size");
	depth_limit(backend, params, "kernel_queue_size");
	error = choices_parse(backend, list);
	if (error != 0)
		return error;
	backend->ordered = backend->choice_count > 0;
	backend->demanded = backend->ordered && params->io_engine_demanded != 0;
	error = choices_demanded(backend, params);
	if (error != 0)
		return error;
	/* What was not named comes after what was. */
	for (size_t i = 0; !backend->demanded && i < POSIX_ENGINES; i++)
		(void)choice_add(backend, engines[i]->name, strlen(engines[i]->name));
	return choices_probe(backend);
}

/* Where every I/O is a copy, more than one core should copy. */
static bool threads_preferred(const struct kvc_plugin_backend *backend,
			      const struct kvc_plugin_root *root)
{
	return !backend->ordered && !backend->demanded && !fsobj_root_info(root->files)->direct;
}

bool posix_uring_expected(const struct kvc_plugin_backend *backend)
{
	const struct posix_choice *choice = &backend->choices[0];

	while (choice->error != 0)
		choice++;
	return choice->engine == &posix_engine_uring && backend->files.direct_io;
}

void posix_engine_choose(const struct kvc_plugin_backend *backend, struct kvc_plugin_root *root)
{
	const struct posix_choice *choice = &backend->choices[0];

	root->note[0] = '\0';
	if (threads_preferred(backend, root)) {
		root->engine = &posix_engine_threads;
		return;
	}
	/* One of them passed its probe, or the backend would not be open. */
	while (choice->error != 0)
		choice++;
	root->engine = choice->engine;
	if (choice != &backend->choices[0])
		(void)snprintf(root->note, sizeof(root->note),
			       "I/O engine %s refused (%s): %s is used",
			       backend->choices[0].engine->name, backend->choices[0].why,
			       choice->engine->name);
}
