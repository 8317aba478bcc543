/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One object from one store into another one of the same naming, whatever their storage layouts
 * are. Its bytes, parts and name stay; where it lies follows from the name, as for a set by a pool.
 *
 * Where one of the two is a slot, the other layout's hashes are made from the key in the name. They
 * have to come out as the object has them: so what a name leaves out (whether the page is the same
 * on all tp ranks) is found, and an object under a wrong name is not taken along.
 */
#include "connector/handle.h"

#include "core/checksum.h"
#include "core/clock.h"
#include "core/describe.h"
#include "core/folder.h"
#include "core/image.h"
#include "core/log.h"
#include "core/packed_walk.h"
#include "core/route.h"
#include "core/usage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS   5 /* while another writer replaces the object */
#define TEXT_BYTES (UINT64_C(1) << 20)

/* An object on its way. */
struct copy {
	struct kvc_store *to;
	struct kvc_root *source;
	const char *path;
	uint32_t timeout_ms;
	bool nixl;

	/* As it lies in the source. In a slot: item, between enter and leave of the index. */
	bool in_slot;
	struct kvc_packed_item item;
	struct kvc_completion found;
	uint8_t *block;
	uint8_t *image;

	/* What it is. g and v as files have them; with has_key, packed_* as slots have them. */
	char folder[96];
	char name[KVC_NAME_MAX + 1];
	const char *full_name;
	uint32_t full_name_bytes;
	uint8_t kind; /* enum kvc_object_kind */
	uint32_t depth;
	uint64_t parent_g;
	uint64_t g;
	uint64_t v;
	bool has_key;
	uint32_t lane;
	uint64_t packed_g;
	uint64_t packed_v;

	struct kvc_shape shape;
	void *bases[KVC_SHAPE_PARTS_MAX];
};

/* ---------------------------------------------------------------- reading */

/* Folder and name of a file's path. */
static int split_path(struct copy *copy)
{
	const char *name = strrchr(copy->path, '/');
	const char *slash = strchr(copy->path, '/');

	name = name ? name + 1 : copy->path;
	if (!copy->nixl) {
		const size_t bytes = slash ? (size_t)(slash - copy->path) : 0;

		if (bytes == 0 || bytes >= sizeof(copy->folder))
			return -ENOENT;
		memcpy(copy->folder, copy->path, bytes);
		if (!kvc_folder_is_namespace(copy->folder))
			return -ENOENT;
	}
	if (strlen(name) >= sizeof(copy->name))
		return -ENOENT;
	memcpy(copy->name, name, strlen(name) + 1);
	return 0;
}

static int read_file_once(struct copy *copy, struct kvc_trailer *trailer)
{
	int rc = kvc_root_stat(copy->source, copy->path, &copy->found);

	if (rc)
		return rc;
	rc = kvc_image_trailer(copy->source, copy->path, copy->found.object_bytes, copy->block,
			       trailer, &copy->found);
	if (rc)
		return rc;
	if (!kvc_image_is_at_home(copy->folder, copy->name, trailer, copy->found.object_bytes))
		return -EBADMSG;
	return kvc_image_payload(copy->source, copy->path, trailer, &copy->found, &copy->image);
}

static int read_file(struct copy *copy)
{
	struct kvc_trailer trailer;
	int rc = split_path(copy);

	if (rc)
		return rc;
	copy->block = malloc(KVC_TRAILER_BYTES);
	if (!copy->block)
		return -ENOMEM;
	rc = -ESTALE;
	for (int attempt = 0; rc == -ESTALE && attempt < ATTEMPTS; attempt++)
		rc = read_file_once(copy, &trailer);
	if (rc)
		return rc == -ENOMSG ? kvc_fail(-ENOTSUP, "it has no trailer") :
		       rc == -EPROTONOSUPPORT ?
				       kvc_fail(-ENOTSUP, "its format is of another version") :
				       rc;
	if (!trailer.name)
		return kvc_fail(-ENOTSUP, "its name of %u bytes is not stored with it",
				trailer.name_bytes);
	kvc_image_shape(&trailer, &copy->shape);
	copy->full_name = trailer.name;
	copy->full_name_bytes = trailer.name_bytes;
	copy->kind = trailer.object_kind;
	copy->depth = trailer.depth;
	copy->parent_g = trailer.parent_g;
	copy->g = trailer.g;
	copy->v = trailer.v;
	return 0;
}

static int read_slot(struct copy *copy, struct kvc_packed *packed)
{
	struct kvc_packed_item *item = &copy->item;
	const struct kvc_packed_place *place = &item->place;
	int rc = kvc_packed_look(packed, copy->path, item);

	if (rc)
		return rc;
	copy->in_slot = true;
	if (!item->is_named)
		return kvc_fail(-ENOTSUP,
				item->has_record ? "its name of %u bytes is not stored" :
						   "its name is not known",
				item->name_bytes);
	if (!kvc_packed_item_shape(item, &copy->shape))
		return kvc_fail(-ENOTSUP, "its parts are not known");
	(void)snprintf(copy->folder, sizeof(copy->folder), "%s", item->folder);
	(void)snprintf(copy->name, sizeof(copy->name), "%s", item->name);
	copy->full_name = copy->name;
	copy->full_name_bytes = item->name_bytes;
	copy->kind = KVC_OBJECT_PAGE;
	copy->depth = item->depth;
	copy->parent_g = item->parent_g;
	copy->image = malloc(item->slot_bytes);
	if (!copy->image)
		return -ENOMEM;
	rc = kvc_packed_item_read(item, copy->image);
	if (rc)
		return rc;
	if (place->checksum_kind == KVC_CHECKSUM_NONE)
		return kvc_packed_is_suspect(place) ? -EBADMSG : 0;
	if (place->checksum_kind >= KVC_CHECKSUM_CALLER)
		return kvc_fail(-ENOTSUP, "its format is of another version");
	if (kvc_checksum_image(place->checksum_kind, item->g ^ item->v, &copy->shape,
			       copy->image) == place->checksum)
		return 0;
	return kvc_packed_is_same(place) ? -EBADMSG : -ENOENT;
}

/* ---------------------------------------------------------------- its hashes */

/* The rule of the pool that stored it. */
static int make_rule(const struct copy *copy, const struct kvc_name_parts *parts, bool shared,
		     struct kvc_name_rule *out)
{
	struct kvc_namespace_identity identity = {
		.fields = { .pp_size = parts->pp_size,
			    .cp_size = parts->cp_size,
			    .dcp_size = parts->dcp_size,
			    .is_mla = shared },
		.place = { .pp_rank = parts->pp_rank,
			   .cp_rank = parts->cp_rank,
			   .dcp_rank = parts->dcp_rank },
	};
	const struct kvc_name_params params = {
		.ns = &identity,
		.pool_name = parts->pool_name,
		.pool_fingerprint = copy->shape.pool_fingerprint,
		.naming = KVC_NAMING_KVCELLAR,
		.vrank = parts->vrank,
		.vrank_count = parts->vrank_count ? parts->vrank_count : 1,
		.shared = shared,
	};

	if (strlen(copy->folder) >= sizeof(identity.id))
		return -ENOTSUP;
	memcpy(identity.id, copy->folder, strlen(copy->folder) + 1);
	return kvc_name_rule_init(out, &params);
}

/* Whether that rule makes the name and the hashes that the object has. */
static bool try_rule(struct copy *copy, const struct kvc_name_parts *parts, bool shared,
		     struct kvc_name_rule *rule)
{
	const struct kvc_key key = { parts->key, parts->key_bytes };
	char name[KVC_NAME_MAX + 1];
	uint64_t g, v, packed_g, packed_v;
	uint32_t bytes;

	if (make_rule(copy, parts, shared, rule) ||
	    kvc_name_build(rule, &key, name, &bytes, &g, &v) || strcmp(name, copy->name) != 0)
		return false;
	kvc_name_packed(rule, &key, &packed_g, &packed_v);
	if (copy->in_slot ? packed_g != copy->item.g || packed_v != copy->item.v :
			    g != copy->g || v != copy->v)
		return false;
	copy->g = g;
	copy->v = v;
	copy->packed_g = packed_g;
	copy->packed_v = packed_v;
	copy->lane = rule->packed_lane;
	return true;
}

static int find_key(struct copy *copy)
{
	struct kvc_name_rule *rule;
	struct kvc_name_parts *parts;
	int rc;

	if (copy->nixl || copy->kind != KVC_OBJECT_PAGE)
		return 0;
	rule = malloc(sizeof(*rule));
	parts = malloc(sizeof(*parts));
	rc = rule && parts ? 0 : -ENOMEM;
	if (!rc && kvc_name_parse(copy->name, strlen(copy->name), parts) == 0 && !parts->hashed)
		copy->has_key = try_rule(copy, parts, false, rule) ||
				(parts->vrank_count == 0 && try_rule(copy, parts, true, rule));
	free(parts);
	free(rule);
	if (!rc && copy->in_slot && !copy->has_key)
		rc = kvc_fail(-ENOTSUP, "its hashes are not those of its name");
	return rc;
}

/* ---------------------------------------------------------------- storing */

/* Pages that a pool keeps in slots, where it does. */
static bool goes_into_slot(const struct copy *copy, struct kvc_root *target)
{
	return copy->kind == KVC_OBJECT_PAGE && !copy->nixl && kvc_shape_fits_slot(&copy->shape) &&
	       kvc_root_packed(target, true);
}

static int errno_of(const struct kvc_request *request)
{
	const struct kvc_result *result = &request->result;
	const int error = result->error ? result->error : EIO;

	switch (result->status) {
	case KVC_OK:
		return 0;
	case KVC_MISS:
		return -ENOENT;
	case KVC_CORRUPT:
		return -EBADMSG;
	default:
		return kvc_fail(-error, "%s: %s: %s", request->root->location,
				kvc_cause_name(result->cause),
				result->cause == KVC_CAUSE_CAPACITY ?
					kvc_root_limit_text(request->root) :
					strerror(error));
	}
}

/* Sets or gets the object in the target. */
static int run(struct copy *copy, struct kvc_request *request, uint32_t op, uint32_t flags,
	       uint8_t *image)
{
	for (uint32_t p = 0; p < copy->shape.part_count; p++)
		copy->bases[p] = image + copy->shape.parts[p].stored_offset;
	request->op = op;
	request->flags = flags;
	request->bounced = request->has_room = request->replaces = false;
	request->previous_bytes = 0;
	request->deadline_ns = kvc_store_deadline_ns(copy->to, op, copy->timeout_ms, kvc_now_ns());
	kvc_xfer_run(copy->to, request, 1, NULL);
	return errno_of(request);
}

/* The slot's arena; room in it, since a copy evicts nothing. */
static int prepare_slot(struct copy *copy, struct kvc_request *request)
{
	struct kvc_packed *packed = kvc_root_packed(request->root, true);
	const struct kvc_packed_key key = { .g = copy->packed_g,
					    .v = copy->packed_v,
					    .lane = copy->lane,
					    .bytes = (uint32_t)copy->shape.payload_bytes };
	struct kvc_packed_place place;
	uint32_t turn;
	int rc = 0;

	request->packed = true;
	request->g = copy->packed_g;
	request->v = copy->packed_v;
	request->lane = copy->lane;
	request->parent_g = copy->in_slot ? copy->parent_g : 0;
	request->arena = kvc_packed_arena_get(packed, copy->shape.ns_hash, copy->folder,
					      kvc_shape_image_bytes(&copy->shape), true, &rc);
	if (!request->arena)
		return rc;
	turn = kvc_packed_enter(packed);
	if (kvc_packed_find(request->arena, &key, &place))
		rc = kvc_packed_spare(request->arena);
	kvc_packed_leave(packed, turn);
	return rc == -ENOSPC ?
		       kvc_fail(rc, "%s: full: another object would have to be evicted for it",
				request->root->location) :
		       rc;
}

/* Where it goes; with dry_run nothing is made for it. */
static int prepare(struct copy *copy, bool dry_run, struct kvc_request *request)
{
	bool slot;

	*request = (struct kvc_request){
		.root = kvc_store_route(copy->to, copy->g),
		.folder = copy->folder,
		.name = copy->name,
		.name_bytes = (uint32_t)strlen(copy->name),
		.full_name = copy->full_name,
		.full_name_bytes = copy->full_name_bytes,
		.object_kind = copy->kind,
		.depth = copy->depth,
		.g = copy->g,
		.v = copy->v,
		.parent_g = copy->in_slot ? 0 : copy->parent_g,
		.shape = &copy->shape,
		.bases = copy->bases,
	};
	kvc_route_folder(copy->g, request->hash_folder);
	request->mark_id = copy->g ^ copy->v;
	slot = goes_into_slot(copy, request->root);
	if (slot && !copy->has_key)
		return kvc_fail(-ENOTSUP, "its name does not tell its key, which finds a slot");
	return slot && !dry_run ? prepare_slot(copy, request) : 0;
}

static bool same_bytes(const struct copy *copy, const uint8_t *other)
{
	for (uint32_t p = 0; p < copy->shape.part_count; p++) {
		const struct kvc_shape_part *part = &copy->shape.parts[p];

		if (memcmp(copy->image + part->stored_offset, other + part->stored_offset,
			   part->bytes) != 0)
			return false;
	}
	return true;
}

/* 0; 1: the same bytes were there already. */
static int store_and_compare(struct copy *copy, struct kvc_request *request, uint32_t flags)
{
	const uint64_t bytes = kvc_shape_image_bytes(&copy->shape);
	uint32_t set_flags = flags & KVC_COPY_OVERWRITE ? KVC_TRANSFER_OVERWRITE : 0;
	uint8_t *other = malloc(bytes ? bytes : 1);
	bool existed = false;
	int rc = other ? -EAGAIN : -ENOMEM;

	for (int attempt = 0; rc == -EAGAIN && attempt < 2; attempt++) {
		rc = run(copy, request, KVC_SET, set_flags, copy->image);
		if (rc)
			break;
		existed = request->result.cause == KVC_CAUSE_EXISTED;
		rc = run(copy, request, KVC_GET, 0, other);
		/* What was there is wrong: once more, over it. */
		if (existed && (rc == -ENOENT || rc == -EBADMSG)) {
			set_flags = KVC_TRANSFER_OVERWRITE;
			rc = -EAGAIN;
		}
	}
	if (rc == -ENOENT || rc == -EBADMSG || rc == -EAGAIN)
		rc = kvc_fail(-EIO, "%s: it cannot be read back: %s", request->root->location,
			      kvc_cause_name(request->result.cause));
	else if (!rc && !same_bytes(copy, other))
		rc = existed ? kvc_fail(-EEXIST, "%s: it is there already, with other bytes",
					request->root->location) :
			       kvc_fail(-EIO, "%s: what is read back differs",
					request->root->location);
	free(other);
	return rc ? rc : existed;
}

/* The namespace's description goes with its objects. That is for people: no reason to fail. */
static void copy_namespace_text(const struct copy *copy, struct kvc_root *target)
{
	char path[128], *text;
	struct kvc_completion found;
	int64_t bytes;

	(void)snprintf(path, sizeof(path), "%s/" KVC_NAMESPACE_FILE, copy->folder);
	if (copy->nixl || kvc_root_stat(target, path, &found) != -ENOENT)
		return;
	text = malloc(TEXT_BYTES + 1);
	bytes = text ? kvc_root_read_text(copy->source, path, text, TEXT_BYTES) : -ENOMEM;
	while (bytes > 0 && (text[bytes - 1] == ' ' || text[bytes - 1] == '\n'))
		bytes--;
	if (bytes > 0) {
		text[bytes] = '\0';
		(void)kvc_root_write_text(target, path, text, true);
	}
	free(text);
}

/* If it still is what was read. */
static int remove_source(const struct copy *copy)
{
	struct kvc_root *root = copy->source;
	const uint64_t *version = copy->found.version;
	const struct kvc_usage_before before = kvc_usage_before(root->usage);
	int rc;

	rc = kvc_root_check_writable(root);
	if (rc)
		return rc;
	if (copy->in_slot) {
		(void)kvc_packed_remove(copy->item.arena, &copy->item.place);
		return 0;
	}
	rc = kvc_root_remove(root, copy->path, version[0] || version[1] ? version : NULL);
	if (rc == 0)
		kvc_usage_removed(root->usage, &before,
				  kvc_root_usage_key(root, copy->shape.ns_hash),
				  kvc_folder_of_path(copy->path), copy->found.object_bytes);
	/* Replaced or removed meanwhile: that is somebody else's object. */
	return rc == -ENOENT || rc == -ESTALE ? 0 : rc;
}

/* ---------------------------------------------------------------- public */

/* packed: the source's index, or NULL. */
static int copy_object(struct copy *copy, struct kvc_packed *packed, uint32_t flags)
{
	const bool slot = kvc_packed_is_path(copy->path);
	struct kvc_request request;
	int rc, existed = 0;

	rc = slot ? packed ? read_slot(copy, packed) : -ENOENT : read_file(copy);
	if (!rc)
		rc = find_key(copy);
	if (rc == -EBADMSG)
		return kvc_fail(rc, "corrupt");
	if (!rc)
		rc = prepare(copy, flags & KVC_COPY_DRY_RUN, &request);
	if (rc || (flags & KVC_COPY_DRY_RUN))
		return rc;
	existed = store_and_compare(copy, &request, flags);
	if (existed < 0)
		return existed;
	copy_namespace_text(copy, request.root);
	rc = flags & KVC_COPY_REMOVE ? remove_source(copy) : 0;
	return rc ? rc : existed;
}

static struct kvc_root *find_root(const struct kvc_store *store, const char *location)
{
	for (size_t r = 0; r < store->root_count; r++)
		if (strcmp(store->roots[r]->location, location) == 0)
			return store->roots[r];
	return NULL;
}

static int check_stores(const struct kvc_store *from, const struct kvc_store *to)
{
	if (from->settings->naming != to->settings->naming)
		return kvc_fail(-EINVAL, "the stores have different namings");
	for (size_t f = 0; f < from->root_count; f++)
		for (size_t t = 0; t < to->root_count; t++)
			if (memcmp(from->roots[f]->uuid, to->roots[t]->uuid, 16) == 0)
				return kvc_fail(-EINVAL, "%s and %s are one root",
						from->roots[f]->location, to->roots[t]->location);
	return 0;
}

/* Which object, and why. */
static int fail_at(const char *root_path, const char *path, unsigned mark, int error)
{
	char why[600];

	(void)snprintf(why, sizeof(why), "%s",
		       kvc_fail_mark() != mark ? kvc_last_error() : strerror(-error));
	return kvc_fail(error, "%.300s/%.300s: %s", root_path, path, why);
}

int kvc_object_copy(struct kvc_store *from, const char *root_path, const char *path,
		    struct kvc_store *to, uint32_t flags, uint32_t timeout_ms)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_packed *packed;
	struct copy *copy;
	uint32_t turn = 0;
	int rc;

	if (!from || !to || !root_path || !path)
		return kvc_fail(-EINVAL, "kvc_object_copy: an argument is NULL");
	if (flags & ~(uint32_t)(KVC_COPY_REMOVE | KVC_COPY_OVERWRITE | KVC_COPY_DRY_RUN))
		return kvc_fail(-EINVAL, "kvc_object_copy: flags has an unknown bit");
	rc = check_stores(from, to);
	if (rc)
		return rc;
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return kvc_fail(-ENOMEM, "no memory for a copy");
	copy->to = to;
	copy->source = find_root(from, root_path);
	copy->path = path;
	copy->timeout_ms = timeout_ms;
	copy->nixl = from->settings->naming == KVC_NAMING_NIXL;
	kvc_store_enter(from);
	kvc_store_enter(to);
	packed = copy->source ? kvc_root_packed(copy->source, false) : NULL;
	if (packed)
		turn = kvc_packed_enter(packed);
	rc = !copy->source ? kvc_fail(-ENOENT, "%s is no root of this store", root_path) :
	     !kvc_folder_is_inside(path) ? kvc_fail(-EINVAL, "it is no path of an object") :
					   copy_object(copy, packed, flags);
	if (packed)
		kvc_packed_leave(packed, turn);
	kvc_store_leave(to);
	kvc_store_leave(from);
	if (rc < 0)
		rc = fail_at(root_path, path, mark, rc);
	free(copy->image);
	free(copy->block);
	free(copy);
	return rc;
}
