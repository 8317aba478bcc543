/* SPDX-License-Identifier: Apache-2.0 */
#include "connector/clean.h"

#include "connector/handle.h"
#include "core/log.h"

#include <errno.h>

static int group_of(const char *folder, const char *name, size_t bytes, uint64_t *out_g)
{
	struct kvc_name_parts parts;

	if (kvc_name_parse(name, bytes, &parts))
		return -EINVAL;
	if (parts.hashed)
		return -ENODATA;
	*out_g = kvc_name_group_hash(folder, parts.key, parts.key_bytes);
	return 0;
}

const struct kvc_cleaner_names kvc_clean_names = {
	.group = group_of,
	.shared = kvc_name_nixl_group,
};

int kvc_store_clean(struct kvc_store *store, const struct kvc_clean_params *params,
		    struct kvc_clean_report *out)
{
	const unsigned mark = kvc_fail_mark();
	int rc;

	if (!store || !params || !out)
		return kvc_fail(-EINVAL, "kvc_store_clean: an argument is NULL");
	kvc_cleaner_set_names(store, &kvc_clean_names);
	kvc_store_enter(store);
	rc = kvc_cleaner_clean(store, params, out);
	kvc_store_leave(store);
	return kvc_fail_since(mark, rc, "cleaning");
}
