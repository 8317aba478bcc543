/* SPDX-License-Identifier: Apache-2.0 */
/* The connector's handles and what it keeps per store. Readers: the rest of the connector. */
#ifndef KVC_CONNECTOR_HANDLE_H
#define KVC_CONNECTOR_HANDLE_H

#include "connector/geometry.h"
#include "connector/name.h"
#include "connector/namespace.h"
#include "core/packed.h"
#include "core/sized.h"
#include "core/store.h"
#include "core/xfer.h"

#include <stdatomic.h>

struct kvc_arena;
struct kvc_trace;

struct kvc_namespace {
	struct kvc_store *store;
	struct kvc_namespace_identity identity;
	const char *folder; /* identity.id, or "" in nixl naming */
	atomic_uint pools;
};

struct kvc_pool {
	struct kvc_namespace *ns;
	struct kvc_geometry geometry;
	struct kvc_name_rule *rules; /* one per object of a page */
	uint64_t *mark_salts;	     /* likewise: tells objects of one group apart */
	uint8_t object_kind;	     /* enum kvc_object_kind */
	uint64_t object_bytes_max;
	/* Its pages fit into slots. arenas: [root][object], as found last; NULL: none yet. */
	bool is_packable;
	_Atomic(struct kvc_packed_arena *) *arenas;
	bool zero_copy;
	const char *copy_reason;
	atomic_uint batches; /* started ones that use it */
};

/* Per store: the recorder, and arenas that batches have used and will use again. */
struct kvc_connector {
	struct kvc_trace *trace;
	pthread_mutex_t lock;
	struct kvc_arena *arenas;
	uint32_t arena_count;
};

/* Whether a page of that shape can be in a slot: its size, and runs of parts, as the packed layout
 * can note them. */
bool kvc_shape_fits_slot(const struct kvc_shape *shape);

/* What finds an object of a page in the index. A packable pool's. */
static inline struct kvc_packed_key kvc_pool_packed_key(const struct kvc_pool *pool,
							uint32_t object, const struct kvc_key *key)
{
	const struct kvc_name_rule *rule = &pool->rules[object];
	struct kvc_packed_key out = {
		.lane = rule->packed_lane,
		.bytes = (uint32_t)pool->geometry.objects[object].shape->payload_bytes,
	};

	kvc_name_packed(rule, key, &out.g, &out.v);
	return out;
}

/* The arena of an object of the pool's pages on a packed root, whose index is `packed`; NULL: there
 * is none, or none can be made (create). */
struct kvc_packed_arena *kvc_pool_arena(struct kvc_pool *pool, struct kvc_packed *packed,
					size_t root, uint32_t object, bool create);

/* The same as far as this process has seen it, without a lock; false: not to be told so. */
bool kvc_pool_arena_seen(struct kvc_pool *pool, struct kvc_packed *packed, size_t root,
			 uint32_t object, struct kvc_packed_arena **out);

/* Made at the first namespace. NULL: no memory. */
struct kvc_connector *kvc_connector_of(struct kvc_store *store);
void kvc_arena_free(struct kvc_arena *arena);

#endif
