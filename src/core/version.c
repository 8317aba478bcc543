/* SPDX-License-Identifier: Apache-2.0 */
#include <kvcellar/kvcellar.h>

#include "kvc_version.h"

const char *kvc_version(void)
{
	return KVC_VERSION_STRING;
}
