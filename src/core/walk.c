/* SPDX-License-Identifier: Apache-2.0 */
#include "core/walk.h"

#include "core/checksum.h"
#include "core/cleaner.h"
#include "core/folder.h"
#include "core/format.h"
#include "core/image.h"
#include "core/packed_walk.h"
#include "core/sized.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/trailer.h"
#include "core/usage.h"
#include "core/xfer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERIFY_ATTEMPTS 5

/* ---------------------------------------------------------------- walking */

struct walk {
	struct kvc_root *root;
	bool nixl;
	bool files_only;
	kvc_walk_fn fn;
	void *context;
	bool stopped;	  /* by fn */
	int error;	  /* of the first folder that could not be read; the others are walked */
	char reason[512]; /* which, and why */
};

/* The parts of a path, by the naming; false: no object of ours. */
static bool take_apart(const struct walk *walk, struct kvc_walk_entry *to, const char *path)
{
	const bool hashed = walk->root->attributes.flags & KVC_ATTRIBUTE_FOLDERS;
	const char *at = path;

	to->folder[0] = '\0';
	if (!walk->nixl) {
		const char *slash = strchr(at, '/');
		const size_t length = slash ? (size_t)(slash - at) : 0;

		if (length == 0 || length >= sizeof(to->folder))
			return false;
		memcpy(to->folder, at, length);
		to->folder[length] = '\0';
		if (!kvc_folder_is_namespace(to->folder))
			return false;
		at = slash + 1;
	}
	if (hashed) {
		if (strlen(at) < 4 || at[2] != '/' || !kvc_folder_is_hash(at))
			return false;
		at += 3;
	}
	if (!*at || strchr(at, '/') || (!walk->nixl && strcmp(at, KVC_NAMESPACE_FILE) == 0))
		return false;
	to->name = at;
	return true;
}

static int walk_entry(void *context, const struct kvc_list_entry *entry)
{
	struct walk *walk = context;
	struct kvc_walk_entry to = { .root = walk->root, .entry = entry };
	int rc;

	if (strncmp(entry->name, KVC_HOUSEKEEPING_FOLDER "/",
		    strlen(KVC_HOUSEKEEPING_FOLDER) + 1) == 0 ||
	    !take_apart(walk, &to, entry->name))
		return 0;
	rc = walk->fn(walk->context, &to);
	walk->stopped = rc != 0;
	return rc;
}

static void keep_error(struct walk *walk, int rc)
{
	if (walk->error)
		return;
	walk->error = rc;
	(void)snprintf(walk->reason, sizeof(walk->reason), "%s", kvc_last_error());
}

/* What begins with the prefix. What could not be read is kept for the end of the walk. */
static int walk_prefix(struct walk *walk, const char *prefix)
{
	const struct kvc_root *root = walk->root;
	const struct kvc_plugin *ops = &root->backend->module->ops;
	const char *reason;
	int rc;

	(void)kvc_backend_reason();
	rc = ops->list(root->handle, prefix, walk_entry, walk);
	if (rc == 0 || walk->stopped)
		return rc;
	if (rc == -ENOTSUP)
		return kvc_fail(rc, "plugin %s cannot list what it stores", ops->name);
	reason = kvc_backend_reason();
	if (*reason)
		rc = kvc_fail(rc, "%s", reason);
	else
		rc = kvc_fail(rc, "%s/%s could not be listed: %s", root->location, prefix,
			      strerror(-rc));
	keep_error(walk, rc);
	return 0;
}

static int walk_folder(void *context, const char *name)
{
	char prefix[NAME_MAX + 2];

	(void)snprintf(prefix, sizeof(prefix), "%s/", name);
	return walk_prefix(context, prefix);
}

static bool is_hash_folder(const char *name)
{
	return kvc_folder_is_hash(name) && strlen(name) == 2;
}

/*
 * Walks what is ours and nothing else: in a root that is somebody's home, or "/", the other folders
 * may be large, of another kind, or closed to us.
 */
static int walk_files(struct walk *walk, const char *id)
{
	const bool by_folder = walk->root->attributes.local_path &&
			       (walk->root->attributes.flags & KVC_ATTRIBUTE_FOLDERS);
	int rc;

	/* What is no id is no namespace: nothing of it is there. */
	if (id && !walk->nixl)
		return kvc_folder_is_namespace(id) && strlen(id) <= NAME_MAX ?
			       walk_folder(walk, id) :
			       0;
	if (!by_folder)
		return walk_prefix(walk, "");
	rc = kvc_folder_each(walk->root, walk->nixl ? is_hash_folder : kvc_folder_is_namespace,
			     walk_folder, walk);
	if (rc < 0 && !walk->stopped && rc != -ENOTSUP) {
		keep_error(walk, rc);
		rc = 0;
	}
	return rc;
}

static int walk_slot(void *context, const struct kvc_packed_item *item)
{
	struct walk *walk = context;
	const struct kvc_list_entry list = {
		.size = sizeof(list),
		.name = item->path,
		.object_bytes = item->slot_bytes,
		.allocated_bytes = item->slot_bytes,
		.modified_ns = item->created_ns,
	};
	struct kvc_walk_entry to = {
		.root = walk->root, .slot = item, .entry = &list, .name = item->name
	};
	int rc;

	(void)snprintf(to.folder, sizeof(to.folder), "%s", item->folder);
	rc = walk->fn(walk->context, &to);
	walk->stopped = rc != 0;
	return rc;
}

/* Files first, also of a packed root: what does not go into slots lies beside them. */
static int walk_root(struct walk *walk, const char *id)
{
	struct kvc_packed *packed = walk->files_only ? NULL : kvc_root_packed(walk->root, false);
	int rc = walk_files(walk, id);

	if (rc == 0 && !walk->stopped && packed)
		rc = kvc_packed_walk(packed, id, walk_slot, walk);
	return rc;
}

static struct walk walk_of(struct kvc_root *root, kvc_walk_fn fn, void *context)
{
	return (struct walk){
		.root = root,
		.nixl = root->store->settings->naming == KVC_NAMING_NIXL,
		.fn = fn,
		.context = context,
	};
}

static int end_walk(const struct walk *walk, int rc)
{
	return rc || !walk->error ? rc : kvc_fail(walk->error, "%s", walk->reason);
}

int kvc_walk_root(struct kvc_root *root, const char *id, kvc_walk_fn fn, void *context)
{
	struct walk walk = walk_of(root, fn, context);

	return end_walk(&walk, walk_root(&walk, id));
}

/* ---------------------------------------------------------------- recount */

struct recount {
	struct kvc_usage_count *counts;
	size_t count;
	size_t room;
};

static int recount_entry(void *context, const struct kvc_walk_entry *entry)
{
	struct recount *recount = context;
	const uint64_t hash = kvc_folder_ns_hash(entry->folder);
	size_t i = recount->count;

	/* Objects of a namespace come together: the last one is looked at first. */
	while (i > 0 && recount->counts[i - 1].ns_hash != hash)
		i--;
	if (i == 0) {
		if (recount->count == recount->room) {
			const size_t room = recount->room ? 2 * recount->room : 16;
			struct kvc_usage_count *more =
				realloc(recount->counts, room * sizeof(*more));

			if (!more)
				return -ENOMEM;
			recount->counts = more;
			recount->room = room;
		}
		recount->counts[recount->count] = (struct kvc_usage_count){ .ns_hash = hash };
		i = ++recount->count;
	}
	recount->counts[i - 1].bytes += entry->entry->object_bytes;
	recount->counts[i - 1].objects++;
	return 0;
}

int kvc_walk_recount(struct kvc_root *root)
{
	struct recount recount = { .counts = NULL };
	struct walk walk = walk_of(root, recount_entry, &recount);
	struct kvc_packed *packed = kvc_root_packed(root, false);
	uint64_t drift;
	int rc;

	if (root->files)
		return kvc_files_recount(root);
	walk.files_only = true; /* the index counts its slots itself */
	if (packed)
		kvc_packed_recount(packed);
	rc = end_walk(&walk, walk_root(&walk, NULL));
	if (rc == 0) {
		drift = kvc_usage_recount(root->usage, recount.counts, recount.count);
		kvc_counters_add(root->store->counters, KVC_COUNTER_USAGE_DRIFT, (int64_t)drift);
	}
	free(recount.counts);
	return rc == -ENOTSUP ? 0 : rc;
}

void kvc_walk_usage(struct kvc_root *root, uint64_t *out_bytes, uint64_t *out_objects)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	uint64_t bytes = 0, objects = 0;

	kvc_usage_total(root->usage, out_bytes, out_objects);
	if (packed)
		kvc_packed_usage(packed, 0, true, &bytes, &objects);
	*out_bytes += bytes;
	*out_objects += objects;
}

/* ---------------------------------------------------------------- one object, whatever it is */

/* One look at an object of that size. MISS/recycled: it was replaced meanwhile. */
static struct kvc_result verify_once(const struct kvc_walk_entry *entry, uint64_t object_bytes,
				     uint8_t *block, uint64_t version[2])
{
	const struct kvc_settings *settings = entry->root->store->settings;
	const bool nixl = settings->naming == KVC_NAMING_NIXL;
	const char *path = entry->entry->name;
	struct kvc_completion completion = { .object_bytes = object_bytes };
	struct kvc_trailer trailer;
	int rc = kvc_image_trailer(entry->root, path, object_bytes, block, &trailer, &completion);

	version[0] = completion.version[0];
	version[1] = completion.version[1];
	if (completion.object_bytes != object_bytes && completion.object_bytes != KVC_BYTES_UNKNOWN)
		return kvc_result_of_errno(ESTALE);
	if (rc == -ENOMSG)
		return settings->verify == KVC_VERIFY_IF_PRESENT && nixl ?
			       kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0) :
			       kvc_result_make(KVC_MISS, KVC_CAUSE_FOREIGN, 0);
	if (rc == -EPROTONOSUPPORT)
		return kvc_result_make(KVC_MISS, KVC_CAUSE_VERSION, 0);
	if (rc == -EBADMSG)
		return kvc_result_make(KVC_CORRUPT, KVC_CAUSE_TRAILER, 0);
	if (rc)
		return kvc_result_of_errno(-rc);
	if (!kvc_image_is_at_home(entry->folder, entry->name, &trailer, object_bytes))
		return kvc_result_make(KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT, 0);
	rc = kvc_image_payload(entry->root, path, &trailer, &completion, NULL);
	if (rc == -EPROTONOSUPPORT)
		return kvc_result_make(KVC_MISS, KVC_CAUSE_VERSION, 0);
	return rc == 0	      ? kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0) :
	       rc == -EBADMSG ? kvc_result_make(KVC_CORRUPT, KVC_CAUSE_CHECKSUM, 0) :
				kvc_result_of_errno(-rc);
}

/* Until it is not replaced while it is looked at. */
static struct kvc_result verify_entry(const struct kvc_walk_entry *entry, uint64_t version[2])
{
	struct kvc_completion found = { .object_bytes = entry->entry->object_bytes };
	struct kvc_result result = kvc_result_of_errno(ENOMEM);
	uint8_t *block = malloc(KVC_TRAILER_BYTES);

	for (int attempt = 0; block && attempt < VERIFY_ATTEMPTS; attempt++) {
		int rc;

		result = verify_once(entry, found.object_bytes, block, version);
		if (result.cause != KVC_CAUSE_RECYCLED)
			break;
		rc = kvc_root_stat(entry->root, entry->entry->name, &found);
		if (rc) {
			result = kvc_result_of_errno(-rc);
			break;
		}
	}
	free(block);
	return result;
}

/* ---------------------------------------------------------------- in a slot */

static struct kvc_result corrupt(int cause)
{
	return kvc_result_make(KVC_CORRUPT, cause, 0);
}

/* Reads the slot and takes its checksum. MISS/foreign: which parts it has is not known, so that it
 * cannot be told whether its bytes are right. MISS/recycled: it ended meanwhile. */
static struct kvc_result check_slot(const struct kvc_packed_item *item, struct kvc_shape *shape,
				    void *image)
{
	const struct kvc_packed_place *place = &item->place;
	int rc;

	if (place->checksum_kind >= KVC_CHECKSUM_CALLER)
		return kvc_result_make(KVC_MISS, KVC_CAUSE_VERSION, 0);
	if (place->checksum_kind == KVC_CHECKSUM_NONE)
		return kvc_packed_is_suspect(place) ? corrupt(KVC_CAUSE_TRAILER) :
						      kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0);
	if (!kvc_packed_item_shape(item, shape))
		return kvc_result_make(KVC_MISS, KVC_CAUSE_FOREIGN, 0);
	rc = kvc_packed_item_read(item, image);
	if (rc)
		return kvc_result_of_errno(rc == -ENOENT ? ESTALE : -rc);
	if (kvc_checksum_image(place->checksum_kind, item->g ^ item->v, shape, image) ==
	    place->checksum)
		return kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0);
	return kvc_packed_is_same(place) ? corrupt(KVC_CAUSE_CHECKSUM) :
					   kvc_result_of_errno(ESTALE);
}

static struct kvc_result verify_slot(const struct kvc_packed_item *item)
{
	struct kvc_result result = kvc_result_of_errno(ENOMEM);
	struct kvc_shape *shape = malloc(sizeof(*shape));
	uint8_t *image = malloc(item->slot_bytes);

	if (shape && image)
		result = check_slot(item, shape, image);
	free(image);
	free(shape);
	return result;
}

/* ---------------------------------------------------------------- public */

struct info_walk {
	struct kvc_store *store;
	const char *id;
	kvc_walk_belongs_fn belongs;
	kvc_object_fn list_fn;
	kvc_verify_fn verify_fn;
	void *context;
	struct kvc_clear_report *clear;
	bool dry_run;
	bool remove;
	uint64_t done;
	uint64_t total;
};

static void info_of(const struct kvc_walk_entry *entry, struct kvc_object_info *out)
{
	*out = (struct kvc_object_info){
		.size = sizeof(*out),
		.ns_id = entry->folder,
		.name = entry->name,
		.root_path = entry->root->location,
		.path = entry->entry->name,
		.stored_bytes = entry->entry->object_bytes,
		.allocated_bytes = entry->entry->allocated_bytes,
		.modified_ns = entry->entry->modified_ns,
	};
}

/* Every root, also behind one that could not be read in full. */
static int walk_all(struct kvc_store *store, const char *id, kvc_walk_fn fn, void *context)
{
	struct walk first = { .error = 0 };
	int rc = 0;

	kvc_store_enter(store);
	for (size_t r = 0; r < store->root_count && !rc; r++) {
		struct walk walk = walk_of(store->roots[r], fn, context);

		rc = walk_root(&walk, id);
		if (walk.error && !first.error)
			first = walk;
	}
	kvc_store_leave(store);
	return rc || !first.error ? rc : kvc_fail(first.error, "%s", first.reason);
}

/* In nixl naming all models share the folders. */
static bool is_asked_for(const struct info_walk *walk, const struct kvc_walk_entry *entry)
{
	return !walk->id || !walk->belongs ||
	       walk->belongs(entry->name, strlen(entry->name), walk->id);
}

static int list_entry(void *context, const struct kvc_walk_entry *entry)
{
	const struct info_walk *walk = context;
	struct kvc_object_info info;

	if (!is_asked_for(walk, entry))
		return 0;
	info_of(entry, &info);
	return walk->list_fn(walk->context, &info);
}

int kvc_walk_list(struct kvc_store *store, const char *id, kvc_walk_belongs_fn belongs,
		  kvc_object_fn fn, void *context)
{
	struct info_walk walk = {
		.store = store, .id = id, .belongs = belongs, .list_fn = fn, .context = context
	};

	return walk_all(store, id, list_entry, &walk);
}

static int count_entry(void *context, const struct kvc_walk_entry *entry)
{
	struct info_walk *walk = context;

	walk->total += is_asked_for(walk, entry);
	return 0;
}

/* What was proven wrong, if it still is what was looked at. */
static void remove_wrong(const struct kvc_walk_entry *entry, const uint64_t version[2])
{
	struct kvc_root *root = entry->root;
	const struct kvc_usage_before before = kvc_usage_before(root->usage);

	if (root->read_only || root->writes_refused)
		return;
	if (entry->slot) {
		if (!kvc_packed_remove(entry->slot->arena, &entry->slot->place))
			return;
	} else {
		if (!(version[0] || version[1]) ||
		    kvc_root_remove(root, entry->entry->name, version))
			return;
		kvc_usage_removed(root->usage, &before, kvc_folder_ns_hash(entry->folder),
				  kvc_folder_of_path(entry->entry->name),
				  entry->entry->object_bytes);
	}
	kvc_counters_add(root->store->counters, KVC_COUNTER_REMOVED_CORRUPT, 1);
}

static int verify_one(void *context, const struct kvc_walk_entry *entry)
{
	struct info_walk *walk = context;
	struct kvc_object_info info;
	struct kvc_result result;
	uint64_t version[2] = { 0, 0 };

	if (!is_asked_for(walk, entry))
		return 0;
	result = entry->slot ? verify_slot(entry->slot) : verify_entry(entry, version);
	/* A slot that ended is no object any more. */
	if (entry->slot && result.cause == KVC_CAUSE_RECYCLED)
		return 0;
	if (walk->remove && result.status == KVC_CORRUPT)
		remove_wrong(entry, version);
	info_of(entry, &info);
	walk->done++;
	return walk->verify_fn(walk->context, &info, &result, walk->done,
			       walk->total > walk->done ? walk->total : walk->done);
}

int kvc_walk_verify(struct kvc_store *store, const char *id, kvc_walk_belongs_fn belongs,
		    bool remove, kvc_verify_fn fn, void *context)
{
	struct info_walk walk = { .store = store,
				  .id = id,
				  .belongs = belongs,
				  .verify_fn = fn,
				  .context = context,
				  .remove = remove };
	/* What the count could not read, the second walk tells. */
	(void)walk_all(store, id, count_entry, &walk);
	return walk_all(store, id, verify_one, &walk);
}

static const char *checksum_kind_name(uint8_t kind)
{
	static const char *const kinds[] = { "none", "full", "sector", "caller" };

	return kind < 4 ? kinds[kind] : "?";
}

static void fill_detail(const struct kvc_trailer *trailer, uint64_t stored_bytes,
			struct kvc_object_detail *out)
{
	memset((char *)out + sizeof(out->size), 0, sizeof(*out) - sizeof(out->size));
	out->stored_bytes = stored_bytes;
	out->payload_bytes = trailer->payload_bytes;
	out->group_hash = trailer->g;
	out->object_hash = trailer->v;
	out->parent_hash = trailer->parent_g;
	out->checksum = trailer->checksum;
	out->created_ns = trailer->created_ns;
	out->part_count = trailer->part_count;
	out->depth = trailer->depth;
	out->format_major = trailer->major;
	out->format_minor = trailer->minor;
	memcpy(out->part_bytes, trailer->part_bytes, sizeof(out->part_bytes));
	(void)snprintf(out->checksum_kind, sizeof(out->checksum_kind), "%s",
		       checksum_kind_name(trailer->checksum_kind));
	out->namespace_hash = trailer->ns_hash;
	out->pool_fingerprint = trailer->pool_fingerprint;
	out->object_kind = trailer->object_kind;
	out->compat = trailer->compat;
	out->ro_compat = trailer->ro_compat;
	out->incompat = trailer->incompat;
	out->name_bytes = trailer->name_bytes;
	(void)snprintf(out->writer, sizeof(out->writer), "%.*s", (int)sizeof(out->writer) - 1,
		       trailer->writer);
	if (trailer->name)
		(void)snprintf(out->name, sizeof(out->name), "%.*s", (int)trailer->name_bytes,
			       trailer->name);
}

/* What the index says of an object in a slot. */
static int slot_detail(struct kvc_packed *packed, const char *path, struct kvc_shape *shape,
		       struct kvc_object_detail *out)
{
	const uint32_t turn = kvc_packed_enter(packed);
	struct kvc_packed_item item;
	const int rc = kvc_packed_look(packed, path, &item);

	kvc_packed_leave(packed, turn);
	if (rc)
		return rc;
	memset((char *)out + sizeof(out->size), 0, sizeof(*out) - sizeof(out->size));
	out->stored_bytes = item.slot_bytes;
	out->payload_bytes = item.payload_bytes;
	out->group_hash = item.g;
	out->object_hash = item.v;
	out->parent_hash = item.parent_g;
	out->checksum = item.place.checksum;
	out->created_ns = item.created_ns;
	out->depth = item.depth;
	out->format_major = KVC_FORMAT_MAJOR;
	out->format_minor = KVC_FORMAT_MINOR;
	out->namespace_hash = item.ns_hash;
	out->pool_fingerprint = item.pool_fingerprint;
	out->object_kind = KVC_OBJECT_PAGE;
	out->name_bytes = item.name_bytes;
	(void)snprintf(out->checksum_kind, sizeof(out->checksum_kind), "%s",
		       checksum_kind_name(item.place.checksum_kind));
	(void)snprintf(out->name, sizeof(out->name), "%s", item.name);
	if (item.has_record && kvc_packed_item_shape(&item, shape))
		out->part_count = shape->part_count;
	for (uint32_t p = 0; p < out->part_count; p++)
		out->part_bytes[p] = shape->parts[p].bytes;
	return 0;
}

static int stat_slot(struct kvc_root *root, const char *path, struct kvc_object_detail *out)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	struct kvc_shape *shape = malloc(sizeof(*shape));
	int rc = shape ? -ENOENT : -ENOMEM;

	if (packed && shape)
		rc = slot_detail(packed, path, shape, out);
	free(shape);
	return rc ? kvc_fail(rc, "%s/%s: %s", root->location, path, strerror(-rc)) : 0;
}

int kvc_object_stat(struct kvc_store *store, const char *root_path, const char *path,
		    struct kvc_object_detail *out)
{
	struct kvc_completion found;
	struct kvc_trailer trailer;
	struct kvc_root *root = NULL;
	uint8_t *block;
	int rc;

	if (!store || !root_path || !path || !out)
		return kvc_fail(-EINVAL, "kvc_object_stat: an argument is NULL");
	rc = kvc_struct_output(out, out->size, sizeof(*out), "struct kvc_object_detail");
	if (rc)
		return rc;
	if (!kvc_folder_is_inside(path))
		return kvc_fail(-EINVAL, "\"%s\" is no path of an object", path);
	for (size_t r = 0; r < store->root_count; r++)
		if (strcmp(store->roots[r]->location, root_path) == 0)
			root = store->roots[r];
	if (!root)
		return kvc_fail(-ENOENT, "%s is no root of this store", root_path);
	if (kvc_packed_is_path(path)) {
		kvc_store_enter(store);
		rc = stat_slot(root, path, out);
		kvc_store_leave(store);
		return rc;
	}
	block = malloc(KVC_TRAILER_BYTES);
	if (!block)
		return kvc_fail(-ENOMEM, "no memory for a trailer");
	kvc_store_enter(store);
	rc = kvc_root_stat(root, path, &found);
	if (rc == 0)
		rc = kvc_image_trailer(root, path, found.object_bytes, block, &trailer, NULL);
	kvc_store_leave(store);
	if (rc == -ENOMSG || rc == -EBADMSG)
		rc = kvc_fail(-EBADMSG, "%s/%s: %s", root_path, path,
			      rc == -ENOMSG ? "no trailer" : "its trailer is damaged");
	else if (rc < 0)
		rc = kvc_fail(rc, "%s/%s: %s", root_path, path, strerror(-rc));
	else
		fill_detail(&trailer, found.object_bytes, out);
	free(block);
	return rc;
}

/* ---------------------------------------------------------------- clear */

static int clear_entry(void *context, const struct kvc_walk_entry *entry)
{
	struct info_walk *walk = context;
	struct kvc_root *root = entry->root;
	const struct kvc_usage_before before = kvc_usage_before(root->usage);
	int rc;

	/* A foreign file stays. */
	if (!entry->slot && !is_asked_for(walk, entry))
		return 0;
	if (walk->dry_run)
		rc = 0;
	else if (entry->slot)
		rc = kvc_packed_remove(entry->slot->arena, &entry->slot->place) ? 0 : -ENOENT;
	else
		rc = kvc_root_remove(root, entry->entry->name, NULL);
	if (rc == -ENOENT)
		return 0;
	if (rc) {
		walk->clear->failed++;
		(void)kvc_fail(rc, "%s/%s: %s", root->location, entry->entry->name, strerror(-rc));
		return 0;
	}
	if (!walk->dry_run && !entry->slot)
		kvc_usage_removed(root->usage, &before, kvc_folder_ns_hash(entry->folder),
				  kvc_folder_of_path(entry->entry->name),
				  entry->entry->object_bytes);
	walk->clear->objects++;
	walk->clear->bytes += entry->entry->object_bytes;
	return 0;
}

static int found_one(void *context, const struct kvc_walk_entry *entry)
{
	(void)context;
	(void)entry;
	return 1;
}

/* A namespace's description goes with its last object, and then its folders where there are some.
 * True when there was a description. */
static bool clear_rest(struct kvc_root *root, const char *id, bool dry_run)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	char path[NAME_MAX + sizeof("/" KVC_NAMESPACE_FILE)];
	struct kvc_completion found;
	bool described;

	if (!kvc_folder_is_namespace(id) || strlen(id) > NAME_MAX)
		return false;
	(void)snprintf(path, sizeof(path), "%s/" KVC_NAMESPACE_FILE, id);
	described = kvc_root_stat(root, path, &found) == 0;
	if (!dry_run && packed)
		(void)kvc_packed_release(packed, id);
	/* Objects that came meanwhile, or files of others, keep it. */
	if (!dry_run && kvc_walk_root(root, id, found_one, NULL) == 0) {
		if (described)
			(void)kvc_root_remove(root, path, NULL);
		kvc_folder_prune(root, id);
	}
	return described;
}

int kvc_walk_clear(struct kvc_store *store, const char *id, bool dry_run,
		   kvc_walk_belongs_fn belongs, struct kvc_clear_report *out)
{
	struct kvc_clear_report report = { .size = sizeof(report) };
	struct info_walk walk = {
		.store = store, .id = id, .belongs = belongs, .clear = &report, .dry_run = dry_run
	};
	const bool nixl = store->settings->naming == KVC_NAMING_NIXL;
	bool described = false;
	int rc = walk_all(store, id, clear_entry, &walk);

	if (rc)
		return rc;
	if (report.failed)
		(void)kvc_fail(-EIO, "%llu of %llu objects could not be removed; the last: %s",
			       (unsigned long long)report.failed,
			       (unsigned long long)(report.failed + report.objects),
			       kvc_last_error());
	for (size_t r = 0; r < store->root_count && !nixl && !report.failed; r++)
		described |= clear_rest(store->roots[r], id, dry_run);
	if (!described && report.objects == 0 && report.failed == 0)
		return kvc_fail(-ENOENT, "no root has a namespace \"%s\"", id);
	*out = report;
	return 0;
}
