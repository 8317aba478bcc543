/* SPDX-License-Identifier: Apache-2.0 */
/* kvc_store_clean() of a packed root. */
#include "core/packed.h"

#include "core/bytes.h"
#include "core/log.h"
#include "core/pin.h"
#include "core/root.h"
#include "core/usage.h"

#include <errno.h>
#include <string.h>

static uint64_t allocated(struct kvc_packed *packed)
{
	struct kvc_packed_health health;

	kvc_packed_health(packed, &health);
	return health.segment_bytes;
}

int kvc_packed_held(struct kvc_root *root, uint64_t *out)
{
	struct kvc_packed *packed = kvc_root_packed(root, true);
	uint64_t files_bytes;

	if (!packed)
		return kvc_fail(-EIO, "%s: its index cannot be had", root->location);
	kvc_usage_total(root->usage, &files_bytes, NULL);
	*out = allocated(packed) + files_bytes;
	return 0;
}

int kvc_packed_clean(struct kvc_root *root, uint64_t excess, bool dry,
		     struct kvc_clean_report *report)
{
	struct kvc_packed *packed = kvc_root_packed(root, true);
	uint64_t files_bytes, own, objects = 0, bytes = 0;
	int rc = 0;

	if (!packed)
		return kvc_fail(-EIO, "%s: its index cannot be had", root->location);
	kvc_usage_total(root->usage, &files_bytes, NULL);
	own = allocated(packed);
	/* Files beside the segments stay. */
	if (excess && own)
		rc = kvc_packed_give_back(packed, kvc_bytes_less(own, excess), dry, &objects,
					  &bytes);
	report->groups += objects;
	report->objects += objects;
	report->bytes += bytes;
	/* A process that works may have taken a new segment meanwhile. */
	report->left_bytes += files_bytes + (dry ? kvc_bytes_less(own, bytes) : allocated(packed));
	report->missing_bytes += kvc_bytes_less(excess, bytes);
	report->pinned_bytes += kvc_pin_bytes(root);
	/* What is being written goes another time. */
	return rc == 0 || rc == -EBUSY ? 0 :
					 kvc_fail(rc, "%s: segments could not be given back: %s",
						  root->location, strerror(-rc));
}
