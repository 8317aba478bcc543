/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of the stored form; docs/on-disk-format.md is the text they follow. */
#ifndef KVC_CORE_FORMAT_H
#define KVC_CORE_FORMAT_H

#include <stdint.h>

#define KVC_FORMAT_MAJOR 1u
#define KVC_FORMAT_MINOR 0u

/* Of the definition of the namespace hash, its first field. */
#define KVC_IDENTITY_VERSION 1u

/* How objects are named and routed (option "naming", kept in root.json). */
enum kvc_naming {
	KVC_NAMING_KVCELLAR = 0,
	KVC_NAMING_NIXL = 1,
};

#define KVC_BLOCK_BYTES	   4096u /* parts begin on multiples of it */
#define KVC_TRAILER_BYTES  4096u /* the last block of an object */
#define KVC_NAME_BYTES_MAX 255u	 /* of one component of a path */

#define KVC_HOUSEKEEPING_FOLDER ".kvcellar"
#define KVC_NAMESPACE_FILE	"namespace.json" /* in the folder of a namespace */

static inline uint64_t kvc_block_align(uint64_t bytes)
{
	return (bytes + KVC_BLOCK_BYTES - 1) & ~(uint64_t)(KVC_BLOCK_BYTES - 1);
}

#endif
