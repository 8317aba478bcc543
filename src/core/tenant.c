/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tenant.h"

#include "core/folder.h"
#include "core/format.h"
#include "core/packed.h"
#include "core/store.h"
#include "core/usage.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES 131072u
#define NO_SHARE   UINT32_MAX

/* Never taken away: a namespace stays its tenant's. */
struct owner {
	uint64_t ns_hash;
	uint32_t share; /* of the settings, or NO_SHARE */
};

struct kvc_tenants {
	pthread_mutex_t lock; /* of adding */
	atomic_uint count;    /* of owners, each whole before it counts */
	struct owner owners[KVC_USAGE_SLOTS];
};

int kvc_tenant_open(struct kvc_root *root)
{
	if (root->store->settings->tenant_share_count == 0)
		return 0;
	root->tenants = calloc(1, sizeof(*root->tenants));
	if (!root->tenants)
		return -ENOMEM;
	(void)pthread_mutex_init(&root->tenants->lock, NULL);
	kvc_tenant_look(root);
	return 0;
}

void kvc_tenant_close(struct kvc_root *root)
{
	if (!root->tenants)
		return;
	(void)pthread_mutex_destroy(&root->tenants->lock);
	free(root->tenants);
	root->tenants = NULL;
}

static const struct owner *find(const struct kvc_tenants *tenants, uint64_t ns_hash)
{
	const unsigned count = atomic_load_explicit(&tenants->count, memory_order_acquire);

	for (unsigned i = 0; i < count; i++)
		if (tenants->owners[i].ns_hash == ns_hash)
			return &tenants->owners[i];
	return NULL;
}

static uint32_t share_of(const struct kvc_settings *settings, const char *tenant)
{
	for (size_t i = 0; tenant && i < settings->tenant_share_count; i++)
		if (strcmp(settings->tenant_shares[i].tenant, tenant) == 0)
			return (uint32_t)i;
	return NO_SHARE;
}

void kvc_tenant_note(struct kvc_root *root, uint64_t ns_hash, const char *tenant)
{
	struct kvc_tenants *tenants = root->tenants;
	unsigned count;

	if (!tenants || find(tenants, ns_hash))
		return;
	pthread_mutex_lock(&tenants->lock);
	count = atomic_load(&tenants->count);
	if (!find(tenants, ns_hash) && count < KVC_USAGE_SLOTS) {
		tenants->owners[count] = (struct owner){
			.ns_hash = ns_hash,
			.share = share_of(root->store->settings, tenant),
		};
		atomic_store_explicit(&tenants->count, count + 1, memory_order_release);
	}
	pthread_mutex_unlock(&tenants->lock);
}

/* ---------------------------------------------------------------- namespaces of others */

struct look {
	struct kvc_root *root;
	char *text;
};

static int look_at(void *context, const char *id)
{
	struct look *look = context;
	const uint64_t ns_hash = kvc_folder_ns_hash(id);
	char name[PATH_MAX];
	json_t *json;
	int64_t bytes;

	if (find(look->root->tenants, ns_hash))
		return 0;
	(void)snprintf(name, sizeof(name), "%s/" KVC_NAMESPACE_FILE, id);
	bytes = kvc_root_read_text(look->root, name, look->text, TEXT_BYTES);
	if (bytes <= 0)
		return 0; /* not yet, or never: another time */
	json = json_loadb(look->text, (size_t)bytes, JSON_REJECT_DUPLICATES, NULL);
	if (json)
		kvc_tenant_note(look->root, ns_hash,
				json_string_value(json_object_get(json, "tenant")));
	json_decref(json);
	return 0;
}

void kvc_tenant_look(struct kvc_root *root)
{
	struct look look = { .root = root };

	if (!root->tenants || !root->attributes.local_path)
		return;
	look.text = malloc(TEXT_BYTES);
	if (look.text)
		(void)kvc_folder_each(root, kvc_folder_is_namespace, look_at, &look);
	free(look.text);
}

/* ---------------------------------------------------------------- shares */

/* What percentages are of. */
static uint64_t whole_of(const struct kvc_root *root)
{
	const struct kvc_packed *packed = atomic_load_explicit(&root->packed, memory_order_acquire);

	if (packed)
		return kvc_packed_capacity(packed);
	return root->capacity_bytes ? root->capacity_bytes : root->device_bytes;
}

static uint64_t bytes_of(const struct kvc_root *root, uint32_t share)
{
	if (share == NO_SHARE)
		return UINT64_MAX;
	return kvc_share_bytes(&root->store->settings->tenant_shares[share].share, whole_of(root));
}

uint64_t kvc_tenant_share(const struct kvc_root *root, uint64_t ns_hash)
{
	const struct owner *owner = root->tenants ? find(root->tenants, ns_hash) : NULL;

	return owner ? bytes_of(root, owner->share) : UINT64_MAX;
}

bool kvc_tenant_is_same(const struct kvc_root *root, uint64_t ns_hash, uint64_t other)
{
	const struct owner *one = root->tenants ? find(root->tenants, ns_hash) : NULL;
	const struct owner *two = one ? find(root->tenants, other) : NULL;

	return two && one->share == two->share && one->share != NO_SHARE;
}

/* Of all namespaces of the tenant: files and slots. */
static uint64_t used_by(struct kvc_root *root, uint32_t share)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	const unsigned count = atomic_load_explicit(&root->tenants->count, memory_order_acquire);
	uint64_t sum = 0;

	for (unsigned i = 0; i < count; i++) {
		const struct owner *owner = &root->tenants->owners[i];
		uint64_t bytes = 0, slot_bytes = 0, objects;

		if (owner->share != share)
			continue;
		(void)kvc_usage_namespace(root->usage, owner->ns_hash, &bytes, NULL);
		if (packed)
			kvc_packed_usage(packed, owner->ns_hash, false, &slot_bytes, &objects);
		sum += bytes + slot_bytes;
	}
	return sum;
}

uint64_t kvc_tenant_room(struct kvc_root *root, uint64_t ns_hash)
{
	const struct owner *owner = root->tenants ? find(root->tenants, ns_hash) : NULL;
	uint64_t share, used;

	if (!owner || owner->share == NO_SHARE)
		return UINT64_MAX;
	share = bytes_of(root, owner->share);
	used = used_by(root, owner->share);
	return used < share ? share - used : 0;
}

uint64_t kvc_tenant_excess(struct kvc_root *root, uint64_t ns_hash)
{
	const struct owner *owner = root->tenants ? find(root->tenants, ns_hash) : NULL;
	uint64_t share, used;

	if (!owner || owner->share == NO_SHARE)
		return 0;
	share = bytes_of(root, owner->share);
	used = used_by(root, owner->share);
	return used > share ? used - share : 0;
}
