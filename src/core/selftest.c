/* SPDX-License-Identifier: Apache-2.0 */
#include "core/selftest.h"

#include "core/format.h"
#include "core/log.h"
#include "core/rootid.h"
#include "core/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_BYTES (2 * KVC_BLOCK_BYTES)

static int fail(const struct kvc_root *root, const char *what, int64_t rc)
{
	return kvc_fail(rc < 0 ? (int)rc : -EIO, "%s: self-test: %s: %s", root->location, what,
			rc < 0 ? strerror((int)-rc) : "other bytes or another size than stored");
}

/* A text, so that it takes the way of root.json: written if absent, read whole. */
static int test_root(struct kvc_root *root, const char *name, const char *text, char *back)
{
	struct kvc_completion found = { .object_bytes = 0 };
	int64_t rc;

	rc = kvc_root_write_text(root, name, text, true);
	/* What is stored can be read, and can make room. */
	if (rc == -ENOSPC || rc == -EDQUOT) {
		kvc_log(KVC_LOG_WARNING, "%s: the disk is full: opened without a self-test",
			root->location);
		return 0;
	}
	if (rc)
		return fail(root, "write", rc);
	rc = kvc_root_stat(root, name, &found);
	if (rc == 0 && found.object_bytes != TEST_BYTES)
		rc = 1;
	if (rc) {
		(void)kvc_root_remove(root, name, NULL);
		return fail(root, "find", rc);
	}
	memset(back, 0xaa, TEST_BYTES);
	rc = kvc_root_read_text(root, name, back, TEST_BYTES);
	if (rc == TEST_BYTES && memcmp(back, text, TEST_BYTES - 1) == 0)
		rc = 0;
	else if (rc >= 0)
		rc = 1;
	if (rc) {
		(void)kvc_root_remove(root, name, NULL);
		return fail(root, "read", rc);
	}
	rc = kvc_root_remove(root, name, NULL);
	return rc < 0 ? fail(root, "remove", rc) : 0;
}

int kvc_selftest_roots(struct kvc_store *store)
{
	char *text = malloc(TEST_BYTES), *back = malloc(TEST_BYTES);
	char name[128], uuid_text[37];
	uint8_t uuid[16];
	int rc = text && back ? kvc_uuid_random(uuid) : -ENOMEM;

	if (rc)
		goto out;
	kvc_uuid_format(uuid, uuid_text);
	(void)snprintf(name, sizeof(name), KVC_HOUSEKEEPING_FOLDER "/selftest-%s", uuid_text);
	/* Every byte differs from its neighbours and from the same place of another run. */
	for (size_t i = 0; i < TEST_BYTES - 1; i++)
		text[i] = (char)('!' + (i * 7 + uuid[i % 16]) % 90);
	text[TEST_BYTES - 1] = '\0';
	for (size_t r = 0; r < store->root_count && !rc; r++)
		if (!store->roots[r]->read_only && !store->roots[r]->writes_refused)
			rc = test_root(store->roots[r], name, text, back);
out:
	free(back);
	free(text);
	return rc;
}
