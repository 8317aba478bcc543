/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that lie in a root's folders, as the cleaner sees them: who has entered. */
#ifndef KVC_CORE_CLEANER_LOOK_H
#define KVC_CORE_CLEANER_LOOK_H

#include "core/cleaner_internal.h"

/* An object that was seen. */
struct kvc_seen {
	uint64_t g;
	uint64_t stamp;
	uint64_t bytes;
	int64_t modified_ns;
	uint32_t name; /* in `names` */
	uint32_t folder;
	uint32_t hash;
	bool noted;
};

/* Of one look. */
struct kvc_look {
	struct kvc_files *files;
	const struct kvc_pool *pool; /* NULL: all namespaces, pinned ones too */
	const struct kvc_cleaner_names *rules;
	const struct kvc_index *index;
	struct kvc_seen *seen;
	size_t count;
	size_t room;
	char *names;
	size_t names_bytes;
	size_t names_room;
	int64_t now_ns;
	bool sizes;
	bool whole; /* all hash folders were looked at */
	bool fresh; /* of the folders that there are now */
};

/*
 * kvc_look_begin
 * @pool     whose namespaces are looked at
 * @age_ns   so old may be what is known of the folders
 * To be ended even if it fails. Errors: -ENOENT (no namespace was opened yet), of the file system.
 */
int kvc_look_begin(struct kvc_look *look, struct kvc_files *files, const struct kvc_pool *pool,
		   uint64_t age_ns);
void kvc_look_end(struct kvc_look *look);

/* One hash folder of each namespace whose objects may go, behind what was seen before. */
int kvc_look_at_hash(struct kvc_look *look, uint32_t hash);

/* Where nothing is noted, the time itself orders as well. */
uint64_t kvc_cleaner_stamp_of_time(int64_t modified_ns, int64_t now_ns);

#endif
