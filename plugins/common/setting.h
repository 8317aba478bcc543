/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plugin does with the settings in its kvc_backend_params. Values were validated against the
 * option table before; a plugin still refuses what it cannot use, since tests and other hosts call
 * it without a table.
 */
#ifndef KVC_PLUGIN_COMMON_SETTING_H
#define KVC_PLUGIN_COMMON_SETTING_H

#include <kvcellar/plugin.h>

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Why the control call that is about to fail fails. Returns `error`. */
__attribute__((format(printf, 3, 4))) static inline int
kvc_host_refuse(const struct kvc_host *host, int error, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (host->reason)
		host->reason(host->context, 0, text);
	return error;
}

/* One line of debug text. */
__attribute__((format(printf, 2, 3))) static inline void kvc_host_debug(const struct kvc_host *host,
									const char *format, ...)
{
	char text[512];
	va_list args;

	if (!host->log_debug)
		return;
	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	host->log_debug(host->context, text);
}

/* The value of a setting, or `absent` when it is not there or empty. */
static inline const char *kvc_setting_text(const struct kvc_backend_params *params,
					   const char *name, const char *absent)
{
	for (size_t i = 0; i < params->setting_count; i++) {
		const struct kvc_setting *setting = &params->settings[i];

		if (strcmp(setting->name, name) == 0)
			return setting->value && setting->value[0] ? setting->value : absent;
	}
	return absent;
}

/* 0 and *out, or -EINVAL with a reason. */
static inline int kvc_setting_u64(const struct kvc_backend_params *params, const char *name,
				  uint64_t absent, uint64_t *out)
{
	const char *text = kvc_setting_text(params, name, NULL);
	unsigned long long value;
	char *end;

	if (!text) {
		*out = absent;
		return 0;
	}
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9')
		return kvc_host_refuse(params->host, -EINVAL,
				       "%s = \"%s\" is not a non-negative integer", name, text);
	*out = value;
	return 0;
}

/* 0 and *out (1 true, 0 false, -1 absent), or -EINVAL with a reason. */
static inline int kvc_setting_bool(const struct kvc_backend_params *params, const char *name,
				   int *out)
{
	const char *text = kvc_setting_text(params, name, NULL);

	if (!text)
		*out = -1;
	else if (strcmp(text, "true") == 0)
		*out = 1;
	else if (strcmp(text, "false") == 0)
		*out = 0;
	else
		return kvc_host_refuse(params->host, -EINVAL,
				       "%s = \"%s\" is neither true nor false", name, text);
	return 0;
}

#endif
