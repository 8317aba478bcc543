/* SPDX-License-Identifier: Apache-2.0 */
/* Texts made from the option tables and from a configuration. Internal to src/core/config*. */
#ifndef KVC_CORE_CONFIG_TEXT_H
#define KVC_CORE_CONFIG_TEXT_H

#include "core/config_internal.h"

void kvc_text_options(struct kvc_dump *text);
void kvc_text_options_json(struct kvc_dump *text);
void kvc_text_options_markdown(struct kvc_dump *text);
void kvc_text_sample(struct kvc_dump *text);

void kvc_text_effective(struct kvc_dump *text, const struct kvc_effective *effective);
void kvc_text_effective_json(struct kvc_dump *text, const struct kvc_effective *effective);

/* A checked value as TOML. */
void kvc_toml_value(struct kvc_dump *text, const json_t *value);

/* Indented JSON with a line end; sets `failed` for NULL. */
void kvc_dump_json(struct kvc_dump *text, const json_t *value);

#endif
