/* SPDX-License-Identifier: Apache-2.0 */
/* root.json of a root that anybody may have written to. */
#include "core/rootid.h"
#include "fuzz/fuzz.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void must(bool condition)
{
	if (!condition)
		abort();
}

/* What was accepted can be written and read again. */
static void check(const struct kvc_rootid *id)
{
	char text[KVC_ROOTID_BYTES_MAX];
	struct kvc_rootid again;
	uint8_t uuid[16];
	int bytes;

	must(memchr(id->uuid_text, '\0', sizeof(id->uuid_text)) != NULL);
	must(memchr(id->storage_layout, '\0', sizeof(id->storage_layout)) != NULL);
	must(memchr(id->naming, '\0', sizeof(id->naming)) != NULL);
	must(kvc_uuid_parse(id->uuid_text, uuid) == 0);
	must(memcmp(uuid, id->uuid, sizeof(uuid)) == 0);
	bytes = kvc_rootid_render(id, text, sizeof(text));
	must(bytes > 0 && (size_t)bytes < sizeof(text));
	must(kvc_rootid_parse(text, (size_t)bytes, "again", &again) == 0);
	must(memcmp(again.uuid, id->uuid, sizeof(uuid)) == 0);
	must(strcmp(again.naming, id->naming) == 0);
	must(strcmp(again.storage_layout, id->storage_layout) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct kvc_rootid id;
	int rc = kvc_rootid_parse((const char *)data, bytes, "fuzz", &id);

	must(rc == 0 || rc == -EUCLEAN || rc == -EPROTONOSUPPORT || rc == -ENOMEM);
	if (rc == 0)
		check(&id);
	return 0;
}
