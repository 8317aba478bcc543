/* SPDX-License-Identifier: Apache-2.0 */
/* root.json: the identity of a root as text (docs/on-disk-format.md, 1). Pure functions. */
#ifndef KVC_CORE_ROOTID_H
#define KVC_CORE_ROOTID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVC_ROOTID_BYTES_MAX 65536u

struct kvc_rootid {
	uint8_t uuid[16];
	char uuid_text[37];
	char storage_layout[16];
	char naming[16];
	bool writes_refused; /* an ro_compat word that this library does not know */
};

/* A random version 4 UUID. */
int kvc_rootid_new(struct kvc_rootid *out, const char *storage_layout, const char *naming);

/* root.json for it, as snprintf. */
int kvc_rootid_render(const struct kvc_rootid *id, char *buffer, size_t bytes);

/*
 * -EUCLEAN: not such a text; -EPROTONOSUPPORT: another format version. `where` names the file in
 * kvc_last_error().
 */
int kvc_rootid_parse(const char *text, size_t bytes, const char *where, struct kvc_rootid *out);

/* "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" to and from 16 bytes; parse: -EINVAL. */
void kvc_uuid_format(const uint8_t uuid[16], char out[37]);
int kvc_uuid_parse(const char *text, uint8_t out[16]);
int kvc_uuid_random(uint8_t out[16]);

#endif
