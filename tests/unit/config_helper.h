/* SPDX-License-Identifier: Apache-2.0 */
/* Short ways to make and ask configurations, for tests/unit/test_config*.c. */
#ifndef KVC_TESTS_CONFIG_HELPER_H
#define KVC_TESTS_CONFIG_HELPER_H

#include "core/config.h"
#include "core/config_internal.h"
#include "core/config_tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A test must not depend on the caller's environment. */
static inline void forget_environment(void)
{
	char name[512];
	const char *equals;
	char **entry = environ;

	while (*entry) {
		equals = strchr(*entry, '=');
		if (equals && (size_t)(equals - *entry) < sizeof(name) &&
		    (strncmp(*entry, "KVCELLAR_", 9) == 0 || strncmp(*entry, "SGLANG_", 7) == 0 ||
		     strncmp(*entry, "AWS_", 4) == 0)) {
			memcpy(name, *entry, (size_t)(equals - *entry));
			name[equals - *entry] = '\0';
			(void)unsetenv(name);
			entry = environ;
		} else {
			entry++;
		}
	}
}

static inline int no_environment(void **state)
{
	(void)state;
	forget_environment();
	return 0;
}

static inline struct kvc_config *new_config(void)
{
	struct kvc_config *config = NULL;

	assert_int_equal(kvc_config_new(&config), 0);
	return config;
}

static inline struct kvc_config *load(const char *text, int format)
{
	struct kvc_config *config = new_config();
	int rc = kvc_config_load_text(config, text, strlen(text), format, NULL);

	if (rc < 0)
		fail_msg("%s: %s", text, kvc_last_error());
	return config;
}

/* Loads and resolves a text that must be good. */
static inline struct kvc_settings *settings_of(const char *text)
{
	struct kvc_config *config = load(text, KVC_CONFIG_AUTO);
	struct kvc_settings *settings = NULL;

	if (kvc_config_resolve(config, &settings) < 0)
		fail_msg("%s: %s", text, kvc_last_error());
	kvc_config_free(config);
	return settings;
}

/* The error of a text that must be refused, at load or at resolve. */
static inline const char *error_of_format(const char *text, size_t bytes, int format)
{
	struct kvc_config *config = new_config();
	struct kvc_settings *settings = NULL;
	int rc = kvc_config_load_text(config, text, bytes, format, NULL);

	if (rc == 0)
		rc = kvc_config_resolve(config, &settings);
	if (rc == 0) {
		kvc_settings_free(settings);
		kvc_config_free(config);
		fail_msg("accepted: %.*s", (int)bytes, text);
	}
	assert_int_equal(rc, -EINVAL);
	kvc_config_free(config);
	return kvc_last_error();
}

static inline const char *error_of(const char *text)
{
	return error_of_format(text, strlen(text), KVC_CONFIG_AUTO);
}

static inline void assert_contains(const char *text, const char *piece)
{
	if (!strstr(text, piece))
		fail_msg("\"%s\" is not in: %s", piece, text);
}

static inline void assert_lacks(const char *text, const char *piece)
{
	if (strstr(text, piece))
		fail_msg("\"%s\" is in: %s", piece, text);
}

static inline const char *candidate_setting(const struct kvc_candidate *candidate, const char *name)
{
	for (size_t i = 0; i < candidate->setting_count; i++)
		if (strcmp(candidate->settings[i].name, name) == 0)
			return candidate->settings[i].value;
	return NULL;
}

static inline const struct kvc_candidate *candidate_of(const struct kvc_settings *settings,
						       const char *plugin)
{
	for (size_t i = 0; i < settings->candidate_count; i++)
		if (strcmp(settings->candidates[i].plugin, plugin) == 0)
			return &settings->candidates[i];
	return NULL;
}

/* "posix gds obj": the candidates in order. */
static inline void assert_candidates(const struct kvc_settings *settings, const char *expected)
{
	char names[256] = "";

	for (size_t i = 0; i < settings->candidate_count; i++) {
		size_t used = strlen(names);

		(void)snprintf(names + used, sizeof(names) - used, "%s%s", i ? " " : "",
			       settings->candidates[i].plugin);
	}
	assert_string_equal(names, expected);
}

/* The text of kvc_config_describe(), to be freed. */
static inline char *described(const struct kvc_config *config, int what)
{
	int bytes = kvc_config_describe(config, what, NULL, 0);
	char *text;

	if (bytes < 0)
		fail_msg("%s", kvc_last_error());
	text = malloc((size_t)bytes + 1);
	assert_non_null(text);
	assert_int_equal(kvc_config_describe(config, what, text, (size_t)bytes + 1), bytes);
	assert_int_equal(strlen(text), bytes);
	return text;
}

static inline char *read_whole(const char *path)
{
	FILE *file = fopen(path, "rb");
	char *text = calloc(1, 1 << 20);
	size_t bytes;

	if (!file)
		fail_msg("cannot open %s: %s", path, strerror(errno));
	assert_non_null(text);
	bytes = fread(text, 1, (1 << 20) - 1, file);
	text[bytes] = '\0';
	(void)fclose(file);
	return text;
}

/* A file in a fresh folder; the folder's name in `folder`. */
static inline void write_file(const char *path, const void *text, size_t bytes)
{
	FILE *file = fopen(path, "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
}

#endif
