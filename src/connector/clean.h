/* SPDX-License-Identifier: Apache-2.0 */
/* What the cleaner has to know of names. Reader: connector/handle.c. */
#ifndef KVC_CONNECTOR_CLEAN_H
#define KVC_CONNECTOR_CLEAN_H

#include "core/cleaner.h"

extern const struct kvc_cleaner_names kvc_clean_names;

#endif
