/* SPDX-License-Identifier: Apache-2.0 */
/* The names of statuses and causes, as docs/errors.md and the counters have them. */
#include <kvcellar/kvcellar.h>

static const char *const status_names[] = {
	[KVC_OK] = "ok",	   [KVC_MISS] = "miss",	      [KVC_CORRUPT] = "corrupt",
	[KVC_TIMEOUT] = "timeout", [KVC_FULL] = "full",	      [KVC_DENIED] = "denied",
	[KVC_ERROR] = "error",	   [KVC_SKIPPED] = "skipped",
};

static const char *const cause_names[KVC_CAUSE_COUNT] = {
	[KVC_CAUSE_NONE] = "none",
	[KVC_CAUSE_ABSENT] = "absent",
	[KVC_CAUSE_SHORT] = "short",
	[KVC_CAUSE_LONG] = "long",
	[KVC_CAUSE_FOREIGN] = "foreign",
	[KVC_CAUSE_OTHER_OBJECT] = "other-object",
	[KVC_CAUSE_CHECKSUM] = "checksum",
	[KVC_CAUSE_TRAILER] = "trailer",
	[KVC_CAUSE_VERSION] = "version",
	[KVC_CAUSE_RECYCLED] = "recycled",
	[KVC_CAUSE_MARKED] = "marked",
	[KVC_CAUSE_EXISTED] = "existed",
	[KVC_CAUSE_NOT_WRITER] = "not-writer",
	[KVC_CAUSE_DEADLINE] = "deadline",
	[KVC_CAUSE_NO_SPACE] = "no-space",
	[KVC_CAUSE_QUOTA] = "quota",
	[KVC_CAUSE_CAPACITY] = "capacity",
	[KVC_CAUSE_PERMISSION] = "permission",
	[KVC_CAUSE_READ_ONLY] = "read-only",
	[KVC_CAUSE_NAME] = "name",
	[KVC_CAUSE_INDEX] = "index",
	[KVC_CAUSE_IO] = "io",
	[KVC_CAUSE_DESCRIPTORS] = "descriptors",
	[KVC_CAUSE_CANCELLED] = "cancelled",
	[KVC_CAUSE_PREFIX_ENDED] = "prefix-ended",
	[KVC_CAUSE_SUSPECT_ROOT] = "suspect-root",
};

const char *kvc_status_name(int status)
{
	const int count = (int)(sizeof(status_names) / sizeof(status_names[0]));

	return status >= 0 && status < count ? status_names[status] : "?";
}

const char *kvc_cause_name(int cause)
{
	return cause >= 0 && cause < KVC_CAUSE_COUNT ? cause_names[cause] : "?";
}
