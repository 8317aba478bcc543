/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration texts: the first byte picks the format, the rest is the text. Whatever loads and
 * resolves must describe itself; whatever does not must say why. */
#include "core/config.h"
#include "fuzz/fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void must(int condition)
{
	if (!condition)
		abort();
}

static void describe(const struct kvc_config *config, int what)
{
	int bytes = kvc_config_describe(config, what, NULL, 0);
	char *text;

	must(bytes > 0);
	text = malloc((size_t)bytes + 1);
	if (!text)
		return;
	must(kvc_config_describe(config, what, text, (size_t)bytes + 1) == bytes);
	must(strlen(text) == (size_t)bytes);
	free(text);
}

static void resolve(const struct kvc_config *config)
{
	struct kvc_settings *settings = NULL;
	int rc = kvc_config_resolve(config, &settings);

	must(rc == kvc_config_check(config));
	if (rc < 0) {
		must(rc == -EINVAL);
		must(!settings && *kvc_last_error());
		return;
	}
	must(settings->l3_cleaner_low_watermark < settings->l3_cleaner_high_watermark);
	must(settings->storage_dir_count > 0 && settings->candidate_count > 0);
	for (size_t i = 0; i < settings->candidate_count; i++)
		must(settings->candidates[i].valid == !settings->candidates[i].reason);
	describe(config, KVC_DESCRIBE_EFFECTIVE);
	describe(config, KVC_DESCRIBE_EFFECTIVE_JSON);
	kvc_settings_free(settings);
}

/* The text is loaded twice, so that merging with itself is seen too. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct kvc_config *config = NULL;
	int format, rc;

	if (bytes == 0 || kvc_config_new(&config) < 0)
		return 0;
	format = data[0] % 4;
	/* '@' would open files by name */
	if (format != KVC_CONFIG_AUTO || bytes < 2 || data[1] != '@') {
		rc = kvc_config_load_text(config, (const char *)data + 1, bytes - 1, format, "f");
		if (rc == 0) {
			rc = kvc_config_load_text(config, (const char *)data + 1, bytes - 1, format,
						  "g");
			must(rc == 0);
			resolve(config);
			(void)kvc_config_set(config, "strict", "false");
			resolve(config);
		}
	}
	kvc_config_free(config);
	return 0;
}
