/* SPDX-License-Identifier: Apache-2.0 */
#include "core/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int kvc_names_add(struct kvc_names *names, const char *name)
{
	if (names->count == names->room) {
		const size_t room = names->room ? 2 * names->room : 64;
		char **more = realloc(names->names, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		names->names = more;
		names->room = room;
	}
	names->names[names->count] = strdup(name);
	return names->names[names->count] ? (names->count++, 0) : -ENOMEM;
}

void kvc_names_free(struct kvc_names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->names[i]);
	free(names->names);
	*names = (struct kvc_names){ 0 };
}
