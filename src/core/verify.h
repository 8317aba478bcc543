/* SPDX-License-Identifier: Apache-2.0 */
/* From a completed read to a page's result: nothing is OK here that is not proven. */
#ifndef KVC_CORE_VERIFY_H
#define KVC_CORE_VERIFY_H

#include "core/queue.h"
#include "core/xfer.h"

/* Whether an object of this size stands for the request's: one size; two with "if-present". */
bool kvc_verify_size(const struct kvc_request *request, uint64_t object_bytes);

/* The result of a READ that moved bytes. Copies to the caller what came by other memory. */
struct kvc_result kvc_verify_read(struct kvc_slot *slot, const struct kvc_completion *completion);

/* Whether a single object was replaced between the look for its size and its read: another size
 * than a moment ago is a newer object, not a wrong one. Ask again. */
bool kvc_verify_is_guess(const struct kvc_request *request, struct kvc_result result);

/* Whether the object that was read is proven wrong and may be removed (docs/errors.md). */
bool kvc_verify_removable(const struct kvc_request *request, struct kvc_result result);

#endif
