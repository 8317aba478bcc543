/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sized.h"

#include "core/log.h"

#include <errno.h>
#include <string.h>

static int check_size(size_t size, size_t known, const char *what)
{
	if (size < known)
		return kvc_fail(-EINVAL, "%s: size is %zu, at least %zu is expected", what, size,
				known);
	return 0;
}

int kvc_struct_check(const void *data, size_t size, size_t known, const char *what)
{
	const uint8_t *bytes = data;
	const int rc = check_size(size, known, what);

	if (rc)
		return rc;
	for (size_t i = known; i < size; i++)
		if (bytes[i])
			return kvc_fail(
				-E2BIG,
				"%s: it has fields that this version of the library does not "
				"know",
				what);
	return 0;
}

int kvc_struct_output(void *data, size_t size, size_t known, const char *what)
{
	const int rc = check_size(size, known, what);

	if (rc == 0)
		memset((uint8_t *)data + known, 0, size - known);
	return rc;
}
