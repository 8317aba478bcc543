/* SPDX-License-Identifier: Apache-2.0 */
/* A list of names that grows: what a folder has, before anything in it is changed. */
#ifndef KVC_CORE_NAMES_H
#define KVC_CORE_NAMES_H

#include <stddef.h>

struct kvc_names {
	char **names; /* of the list */
	size_t count;
	size_t room;
};

/* A copy of the name at the end. -ENOMEM: the list is as it was. */
int kvc_names_add(struct kvc_names *names, const char *name);
void kvc_names_free(struct kvc_names *names);

#endif
