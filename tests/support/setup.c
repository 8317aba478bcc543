/* SPDX-License-Identifier: Apache-2.0 */
/* The store under test and its namespaces. */
#include "support/support.h"
#include "support/support_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set(struct kvc_config *config, const char *path, const char *value)
{
	if (value != NULL && kvc_config_set(config, path, value) != 0)
		fail_msg("config %s = %s: %s", path, value, kvc_last_error());
}

/* Without the cleaner, a packed root wants to be told its size. */
static void set_layout(struct kvc_config *config, const char *layout)
{
	if (layout != NULL && layout[0] == '\0')
		return;
	set(config, "storage_layout", layout ? layout : "files");
	if (layout != NULL && strcmp(layout, "packed") == 0)
		set(config, "capacity", "256MiB");
}

static void set_text(struct kvc_config *config, const char *setting)
{
	const char *equals = strchr(setting, '=');
	char path[128];

	if (equals == NULL)
		support_die("setting '%s' has no '='", setting);
	(void)snprintf(path, sizeof(path), "%.*s", (int)(equals - setting), setting);
	set(config, path, equals + 1);
}

int setup_open(const struct setup *setup, struct kvc_store **out)
{
	struct kvc_open_params params = { .size = sizeof(params), .flags = setup->flags };
	const char *plugin = setup->plugin ? setup->plugin : "mem";
	struct kvc_config *config;
	char path[128];
	int rc;

	if (kvc_config_new(&config) != 0)
		fail_msg("config: %s", kvc_last_error());
	(void)snprintf(path, sizeof(path), "plugin.%s.active", plugin);
	set(config, path, "true");
	set(config, "l3_cleaner_enabled", "false");
	/* A busy machine is no defect. Tests of deadlines give their own. */
	set(config, "get_timeout_ms", "120000");
	set(config, "set_timeout_ms", "120000");
	set(config, "exists_timeout_ms", "120000");
	set_layout(config, setup->layout);
	set(config, "storage_dirs", setup->roots);
	set(config, "naming", setup->naming);
	set(config, "io_engines", setup->engine);
	set(config, "use_direct_io", setup->buffered ? "false" : "true");
	set(config, "plugin.fault.lower", setup->lower);
	set(config, "plugin.fault.rules", setup->rules);
	for (size_t i = 0; i < SETUP_SETTINGS && setup->settings[i] != NULL; i++)
		set_text(config, setup->settings[i]);
	rc = kvc_store_open(config, &params, out);
	kvc_config_free(config);
	return rc;
}

struct kvc_store *setup_must_open(const struct setup *setup)
{
	struct kvc_store *store = NULL;
	int rc = setup_open(setup, &store);

	if (rc != 0)
		fail_msg("open: %s: %s", strerror(-rc), kvc_last_error());
	return store;
}

void store_must_close(struct kvc_store *store)
{
	int rc = kvc_store_close(store);

	if (rc != 0)
		fail_msg("close: %s: %s", strerror(-rc), kvc_last_error());
}

struct kvc_stats store_stats(struct kvc_store *store)
{
	struct kvc_stats stats = { .size = sizeof(stats) };

	if (kvc_store_stats(store, &stats) != 0)
		fail_msg("stats: %s", kvc_last_error());
	return stats;
}

char *store_text(struct kvc_store *store, int format)
{
	/* Other threads may change what it says between two calls. */
	const size_t room = 4096;
	int bytes = kvc_store_describe(store, format, NULL, 0);
	char *text;

	if (bytes < 0)
		fail_msg("describe: %s", kvc_last_error());
	text = malloc((size_t)bytes + room);
	if (text == NULL)
		support_die("no memory");
	bytes = kvc_store_describe(store, format, text, (size_t)bytes + room);
	assert_int_equal(strlen(text), bytes);
	return text;
}

struct kvc_namespace_params namespace_params(const char *model)
{
	return (struct kvc_namespace_params){
		.size = sizeof(struct kvc_namespace_params),
		.model_id = model,
		.identity = "rev-1",
		.dtype = "bfloat16",
		.page_tokens = 4,
	};
}

struct kvc_namespace *namespace_must_open(struct kvc_store *store,
					  const struct kvc_namespace_params *params)
{
	struct kvc_namespace *ns = NULL;
	int rc = kvc_namespace_open(store, params, &ns);

	if (rc != 0)
		fail_msg("namespace: %s: %s", strerror(-rc), kvc_last_error());
	return ns;
}
