/* SPDX-License-Identifier: Apache-2.0 */
/* Space by namespace, and pins: what an operator asks and says about namespaces that nobody has
 * open. */
#include "core/folder.h"
#include "core/format.h"
#include "core/names.h"
#include "core/packed.h"
#include "core/pin.h"
#include "core/store.h"
#include "core/tenant.h"
#include "core/usage.h"
#include "core/walk.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES 131072u /* of a namespace.json at most */

struct look {
	struct kvc_root *root;
	kvc_namespace_usage_fn fn;
	void *context;
	char *text;
	struct kvc_names names; /* of a root without folders */
	struct kvc_usage_count *counts;
	size_t count;
};

/* namespace.json, or NULL: it is not there, or none. */
static json_t *description_of(struct look *look, const char *id)
{
	char name[PATH_MAX];
	int64_t bytes;

	if (!*id)
		return NULL;
	(void)snprintf(name, sizeof(name), "%s/" KVC_NAMESPACE_FILE, id);
	bytes = kvc_root_read_text(look->root, name, look->text, TEXT_BYTES);
	return bytes > 0 ? json_loadb(look->text, (size_t)bytes, JSON_REJECT_DUPLICATES, NULL) :
			   NULL;
}

/* What is counted of it: files, and slots. */
static void fill_counts(struct kvc_root *root, uint64_t ns_hash, struct kvc_namespace_usage *out)
{
	const uint64_t key = kvc_root_usage_key(root, ns_hash);
	struct kvc_packed *packed = kvc_root_packed(root, false);
	uint64_t bytes = 0, objects = 0;

	(void)kvc_usage_namespace(root->usage, key, &out->live_bytes, &out->objects);
	out->allocated_bytes = out->live_bytes;
	if (!packed)
		return;
	kvc_packed_usage(packed, ns_hash, false, &bytes, &objects);
	out->live_bytes += bytes;
	out->objects += objects;
	out->allocated_bytes += kvc_packed_allocated(packed, ns_hash);
}

static int tell(struct look *look, const char *id, struct kvc_namespace_usage *usage)
{
	const uint64_t ns_hash = kvc_folder_ns_hash(id);
	json_t *json = description_of(look, id);
	const char *tenant = json_string_value(json_object_get(json, "tenant"));
	uint64_t share;
	int rc;

	kvc_tenant_note(look->root, ns_hash, tenant);
	share = kvc_tenant_share(look->root, ns_hash);
	usage->size = sizeof(*usage);
	usage->root_path = look->root->location;
	usage->id = id;
	usage->model = json_string_value(json_object_get(json, "model_id"));
	usage->tenant = tenant;
	usage->pinned = kvc_pin_has(look->root, ns_hash);
	usage->share_bytes = share == UINT64_MAX ? 0 : share;
	rc = look->fn(look->context, usage);
	json_decref(json);
	return rc;
}

static int tell_folder(void *context, const char *id)
{
	struct kvc_namespace_usage usage = { .size = sizeof(usage) };
	struct look *look = context;

	fill_counts(look->root, kvc_folder_ns_hash(id), &usage);
	return tell(look, id, &usage);
}

/* ---------------------------------------------------------------- roots without folders */

static int count_entry(void *context, const struct kvc_walk_entry *entry)
{
	struct look *look = context;
	size_t i = look->count;

	/* Objects of a namespace come together: the last one is looked at first. */
	while (i > 0 && strcmp(look->names.names[i - 1], entry->folder) != 0)
		i--;
	if (i == 0) {
		struct kvc_usage_count *more =
			reallocarray(look->counts, look->count + 1, sizeof(*more));

		if (!more || kvc_names_add(&look->names, entry->folder) != 0) {
			look->counts = more ? more : look->counts;
			return -ENOMEM;
		}
		look->counts = more;
		more[look->count] = (struct kvc_usage_count){ .bytes = 0 };
		i = ++look->count;
	}
	look->counts[i - 1].bytes += entry->entry->object_bytes;
	look->counts[i - 1].objects++;
	return 0;
}

/* What is listed there is all that tells which namespaces there are. */
static int tell_listed(struct look *look)
{
	int rc = kvc_walk_root(look->root, NULL, count_entry, look);

	for (size_t i = 0; i < look->count && !rc; i++) {
		struct kvc_namespace_usage usage = {
			.live_bytes = look->counts[i].bytes,
			.allocated_bytes = look->counts[i].bytes,
			.objects = look->counts[i].objects,
		};

		rc = tell(look, look->names.names[i], &usage);
	}
	free(look->counts);
	kvc_names_free(&look->names);
	look->counts = NULL;
	look->count = 0;
	return rc;
}

/* ---------------------------------------------------------------- public */

static int tell_root(struct look *look)
{
	struct kvc_root *root = look->root;
	int rc = 0;

	kvc_usage_reload(root->usage);
	if (kvc_usage_is_new(root->usage) && root->attributes.local_path)
		rc = kvc_walk_recount(root);
	if (rc)
		return rc;
	if (root->store->settings->naming == KVC_NAMING_NIXL)
		return tell_folder(look, "");
	if (!root->attributes.local_path || !(root->attributes.flags & KVC_ATTRIBUTE_FOLDERS))
		return tell_listed(look);
	return kvc_folder_each(root, kvc_folder_is_namespace, tell_folder, look);
}

int kvc_store_usage_namespaces(struct kvc_store *store, kvc_namespace_usage_fn fn, void *context)
{
	struct look look = { .fn = fn, .context = context };
	const unsigned mark = kvc_fail_mark();
	int rc = 0;

	if (!store || !fn)
		return kvc_fail(-EINVAL, "kvc_store_usage_namespaces: store or fn is NULL");
	look.text = malloc(TEXT_BYTES);
	if (!look.text)
		return kvc_fail(-ENOMEM, "no memory for a namespace.json");
	kvc_store_enter(store);
	for (size_t r = 0; r < store->root_count && !rc; r++) {
		look.root = store->roots[r];
		rc = tell_root(&look);
	}
	kvc_store_leave(store);
	free(look.text);
	return rc < 0 ? kvc_fail_since(mark, rc, "counting what namespaces hold") : rc;
}

int kvc_store_pin(struct kvc_store *store, const char *id, int on)
{
	int rc = 0;

	if (!store || !id)
		return kvc_fail(-EINVAL, "kvc_store_pin: store or id is NULL");
	kvc_store_enter(store);
	for (size_t r = 0; r < store->root_count && !rc; r++)
		rc = kvc_pin_set(store->roots[r], id, on != 0);
	kvc_store_leave(store);
	return rc;
}
