/* SPDX-License-Identifier: Apache-2.0 */
#include "core/verify.h"

#include "core/format.h"
#include "core/ranges.h"
#include "core/store.h"
#include "core/trailer.h"

#include <errno.h>

/* A file as a writer without trailers leaves it: the payload and nothing else. */
static bool is_bare(const struct kvc_request *request, uint64_t object_bytes)
{
	const struct kvc_shape *shape = request->shape;

	return request->root->store->settings->verify == KVC_VERIFY_IF_PRESENT &&
	       shape->part_count == 1 && object_bytes == shape->payload_bytes;
}

bool kvc_verify_size(const struct kvc_request *request, uint64_t object_bytes)
{
	return object_bytes == request->shape->stored_bytes || is_bare(request, object_bytes);
}

/* The trailer must be that of the very object that was asked for. */
static bool is_ours(const struct kvc_request *request, const struct kvc_trailer *trailer)
{
	const struct kvc_shape *shape = request->shape;

	if (trailer->g != request->g || trailer->v != request->v ||
	    trailer->ns_hash != shape->ns_hash ||
	    trailer->pool_fingerprint != shape->pool_fingerprint ||
	    trailer->part_count != shape->part_count ||
	    trailer->stored_bytes != shape->stored_bytes)
		return false;
	for (uint32_t p = 0; p < shape->part_count; p++)
		if (trailer->part_bytes[p] != shape->parts[p].bytes)
			return false;
	return true;
}

/* In nixl naming g and v are those of the name alone: a good object of another weight set or pool
 * that has the same name. */
static bool is_namesake(const struct kvc_request *request, const struct kvc_trailer *trailer)
{
	return request->root->store->settings->naming == KVC_NAMING_NIXL &&
	       request->object_kind != KVC_OBJECT_SINGLE && trailer->g == request->g &&
	       trailer->v == request->v;
}

static struct kvc_result of_trailer(int rc)
{
	switch (rc) {
	case -ENOMSG:
		return kvc_result_make(KVC_MISS, KVC_CAUSE_FOREIGN, 0);
	case -EPROTONOSUPPORT:
		return kvc_result_make(KVC_MISS, KVC_CAUSE_VERSION, 0);
	default:
		return kvc_result_make(KVC_CORRUPT, KVC_CAUSE_TRAILER, 0);
	}
}

struct kvc_result kvc_verify_read(struct kvc_slot *slot, const struct kvc_completion *completion)
{
	const struct kvc_result ok = kvc_result_make(KVC_OK, KVC_CAUSE_NONE, 0);
	const struct kvc_request *request = slot->request;
	const struct kvc_shape *shape = request->shape;
	const uint64_t object_bytes = completion->object_bytes;
	const uint64_t want = shape->stored_bytes - (slot->has_trailer ? 0 : KVC_TRAILER_BYTES);
	struct kvc_trailer trailer;
	uint64_t checksum;
	int rc;

	if (object_bytes != KVC_BYTES_UNKNOWN && !kvc_verify_size(request, object_bytes))
		return kvc_result_make(
			KVC_MISS,
			object_bytes < shape->stored_bytes ? KVC_CAUSE_SHORT : KVC_CAUSE_LONG, 0);
	if (is_bare(request, object_bytes) &&
	    (uint64_t)completion->result >= shape->payload_bytes) {
		(void)kvc_ranges_finish_read(slot, KVC_CHECKSUM_NONE);
		return ok;
	}
	if ((uint64_t)completion->result < want)
		return kvc_result_make(KVC_MISS, KVC_CAUSE_SHORT, 0);
	if (!slot->has_trailer) {
		(void)kvc_ranges_finish_read(slot, KVC_CHECKSUM_NONE);
		return ok;
	}
	rc = kvc_trailer_decode(slot->trailer, &trailer);
	if (rc)
		return of_trailer(rc);
	if (!is_ours(request, &trailer))
		return is_namesake(request, &trailer) ?
			       kvc_result_make(KVC_MISS, KVC_CAUSE_FOREIGN, 0) :
			       kvc_result_make(KVC_CORRUPT, KVC_CAUSE_OTHER_OBJECT, 0);
	/* Nothing is OK that cannot be checked here. */
	if (trailer.checksum_kind >= KVC_CHECKSUM_CALLER)
		return kvc_result_make(KVC_MISS, KVC_CAUSE_VERSION, 0);
	checksum = kvc_ranges_finish_read(slot, trailer.checksum_kind);
	if (trailer.checksum != checksum)
		return kvc_result_make(KVC_CORRUPT, KVC_CAUSE_CHECKSUM, 0);
	return ok;
}

bool kvc_verify_is_guess(const struct kvc_request *request, struct kvc_result result)
{
	return request->object_kind == KVC_OBJECT_SINGLE &&
	       (result.cause == KVC_CAUSE_SHORT || result.cause == KVC_CAUSE_LONG ||
		result.cause == KVC_CAUSE_OTHER_OBJECT || result.cause == KVC_CAUSE_RECYCLED);
}

bool kvc_verify_removable(const struct kvc_request *request, struct kvc_result result)
{
	const struct kvc_root *root = request->root;
	const bool nixl = root->store->settings->naming == KVC_NAMING_NIXL;

	if (root->read_only || root->writes_refused)
		return false;
	switch (result.cause) {
	case KVC_CAUSE_OTHER_OBJECT:
	case KVC_CAUSE_CHECKSUM:
	case KVC_CAUSE_TRAILER:
		return true;
	case KVC_CAUSE_SHORT:
	case KVC_CAUSE_LONG:
	case KVC_CAUSE_FOREIGN:
		/* Whatever lies in our namespaces is ours; in nixl naming it may be the peer's, or
		 * another weight set's of the same name. */
		return !nixl;
	default:
		return false;
	}
}
