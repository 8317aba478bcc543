/* SPDX-License-Identifier: Apache-2.0 */
/* kvc_store_clean() of a packed root. */
#include "core/packed.h"

#include "core/log.h"
#include "core/root.h"

#include <errno.h>

int kvc_packed_clean(struct kvc_root *root, const struct kvc_clean_params *params,
		     struct kvc_clean_report *report)
{
	(void)params;
	(void)report;
	return kvc_fail(-ENOTSUP, "%s: a packed root keeps itself below its capacity",
			root->location);
}
