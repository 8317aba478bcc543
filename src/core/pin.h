/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces that are never evicted: `<root>/.kvcellar/pins/<namespace id>`, an empty file each
 * (docs/on-disk-format.md). Roots without a local path have no cleaner and no pins. A pin that
 * another process sets is seen within seconds. Thread-safe.
 */
#ifndef KVC_CORE_PIN_H
#define KVC_CORE_PIN_H

#include "core/root.h"

/* Sets or removes the pin of a namespace. Errors: -EINVAL (not an id), -ENOTSUP (no local path, or
 * nixl naming, which has no namespaces of its own), -EROFS, -ENOSPC (no more than KVC_PINS_MAX), of
 * the file system; the text names the root. */
int kvc_pin_set(struct kvc_root *root, const char *id, bool on);

/* Whether nothing of it may be evicted. Without a lock or a system call. */
bool kvc_pin_has(const struct kvc_root *root, uint64_t ns_hash);

/* How many namespaces are pinned, and what they hold: in a packed root their segments and files. */
unsigned kvc_pin_count(const struct kvc_root *root);
uint64_t kvc_pin_bytes(struct kvc_root *root);

/* Looks what is pinned now. For the opening, and a housekeeping thread. */
void kvc_pin_look(struct kvc_root *root);

#endif
