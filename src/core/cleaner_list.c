/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may go. Nothing is kept in order: a hand goes over the hash folders, some objects for each
 * group that goes, and of each folder the groups that are first in the order are known. Until it
 * has seen as many objects as there are it looks at more.
 */
#include "core/cleaner_look.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/pin.h"
#include "core/route.h"
#include "core/store.h"
#include "core/tenant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_AT	       2048u /* objects of a refill, at least, unless the root has fewer */
#define KEPT_EACH      2048u /* groups of a hash folder that are known, at most */
#define FIRST_LOOKS    32u   /* objects for each group that goes, until all were seen once */
#define LOOK_NS	       (UINT64_C(50) * 1000000) /* of a refill that has found something */
#define MISCOUNT_SLACK 16u			/* objects */
#define INDEX_MANY     64u			/* namespaces; of fewer it is always new */
#define INDEX_NS       UINT64_C(1000000000)	/* what is known of the folders is that old */

/* ---------------------------------------------------------------- groups */

static int by_group(const void *a, const void *b)
{
	const struct kvc_seen *x = a, *y = b;

	if (x->g != y->g)
		return x->g < y->g ? -1 : 1;
	return x->folder < y->folder ? -1 : x->folder > y->folder;
}

/* A group among what was seen, which is sorted. */
struct group {
	uint64_t rank;
	uint64_t stamp;
	uint32_t first;
	uint32_t count;
	uint32_t hash;
	bool over; /* its tenant has more than its share */
};

/* Of each hash folder the first ones in the order. */
static int by_rank(const void *a, const void *b)
{
	const struct group *x = a, *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	if (x->over != y->over)
		return x->over ? -1 : 1;
	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* In nixl naming each object stands for its group, whose other objects lie elsewhere. */
static bool is_same_group(const struct kvc_look *look, const struct kvc_seen *a,
			  const struct kvc_seen *b)
{
	return !kvc_cleaner_is_nixl(look->files) && a->g == b->g && a->folder == b->folder;
}

static size_t make_groups(struct kvc_look *look, struct group *groups)
{
	size_t count = 0;

	qsort(look->seen, look->count, sizeof(*look->seen), by_group);
	for (size_t i = 0; i < look->count; i++) {
		const struct kvc_seen *seen = &look->seen[i];
		struct group *group = count ? &groups[count - 1] : NULL;

		if (!group || !is_same_group(look, &look->seen[group->first], seen)) {
			groups[count++] = (struct group){ .stamp = seen->stamp,
							  .first = (uint32_t)i,
							  .count = 1 };
			continue;
		}
		group->count++;
		group->stamp = seen->stamp > group->stamp ? seen->stamp : group->stamp;
	}
	return count;
}

/* NULL: no memory. */
static struct kvc_group *make_victim(const struct kvc_look *look, const struct group *group)
{
	const struct kvc_seen *first = &look->seen[group->first];
	const bool nixl = kvc_cleaner_is_nixl(look->files);
	const char *folder = look->index->names.names[first->folder];
	const size_t folder_bytes = strlen(folder) + 1;
	size_t bytes = folder_bytes;
	struct kvc_group *victim;
	char *to;

	for (uint32_t i = 0; i < group->count; i++)
		bytes += strlen(look->names + first[i].name) + 1;
	victim = malloc(sizeof(*victim) + bytes);
	if (!victim)
		return NULL;
	*victim = (struct kvc_group){ .rank = group->rank,
				      .stamp = group->stamp,
				      .g = first->g,
				      .names = victim->folder + folder_bytes,
				      .noted = first->noted,
				      .over = group->over,
				      .count = group->count };
	kvc_route_folder(first->hash, victim->hash);
	memcpy(victim->folder, folder, folder_bytes);
	to = victim->folder + folder_bytes;
	for (uint32_t i = 0; i < group->count; i++) {
		const char *name = look->names + first[i].name;
		const size_t length = nixl ? look->rules->shared(name, strlen(name)) : strlen(name);

		memcpy(to, name, length);
		to[length] = '\0';
		to += length + 1;
		if (first[i].modified_ns > victim->modified_ns)
			victim->modified_ns = first[i].modified_ns;
	}
	return victim;
}

/* ---------------------------------------------------------------- victims */

/* Who has more than its share is first; few have. */
static void mark_over(const struct kvc_look *look, struct group *groups, size_t count)
{
	struct kvc_root *root = look->files->root;

	for (uint32_t f = 0; root->tenants && f < look->index->names.count; f++) {
		if (kvc_tenant_excess(root, kvc_folder_ns_hash(look->index->names.names[f])) == 0)
			continue;
		for (size_t i = 0; i < count; i++)
			groups[i].over |= look->seen[groups[i].first].folder == f;
	}
}

/* Of a group in several folders the object that was used last counts. */
static void complete(const struct kvc_look *look, struct kvc_group *victim)
{
	struct kvc_files *files = look->files;
	uint64_t stamp;
	int64_t modified_ns;

	if (!kvc_cleaner_is_nixl(files))
		return;
	if (kvc_nixl_stamp(files, victim->names, &stamp)) {
		victim->noted = true;
		victim->stamp = stamp > victim->stamp ? stamp : victim->stamp;
		return;
	}
	modified_ns = kvc_nixl_modified_ns(files, victim->names);
	if (modified_ns <= victim->modified_ns)
		return;
	victim->modified_ns = modified_ns;
	stamp = files->stamps ? kvc_stamps_of_file(files->stamps, victim->g, modified_ns,
						   modified_ns, look->now_ns) :
				kvc_cleaner_stamp_of_time(modified_ns, look->now_ns);
	victim->stamp = stamp > victim->stamp ? stamp : victim->stamp;
}

/* Whether, of what was seen, those go that have not been used again. */
static bool new_ones(const struct kvc_files *files, const struct group *groups, size_t count)
{
	uint64_t *stamps = malloc((count ? count : 1) * sizeof(*stamps));
	bool result = false;

	if (!stamps)
		return false;
	for (size_t i = 0; i < count; i++)
		stamps[i] = groups[i].stamp;
	result = kvc_order_new_ones(files->order, stamps, (unsigned)count);
	free(stamps);
	return result;
}

/* The first ones of the groups of one hash folder, which are sorted. */
static int take_hash(const struct kvc_look *look, struct kvc_pool *pool, const struct group *groups,
		     size_t count, bool only_new)
{
	const size_t wanted = look->whole ? count : (count + 1) / 2;
	const size_t take = wanted < KEPT_EACH ? wanted : KEPT_EACH;
	struct kvc_group **taken = malloc(take * sizeof(struct kvc_group *));

	for (size_t i = 0; i < take && taken; i++) {
		taken[i] = make_victim(look, &groups[i]);
		if (!taken[i]) {
			while (i-- > 0)
				free(taken[i]);
			free(taken);
			taken = NULL;
			break;
		}
		complete(look, taken[i]);
		taken[i]->rank = look->files->order->rank(taken[i]->stamp, only_new);
	}
	if (!taken)
		return -ENOMEM;
	kvc_pool_put(pool, look->seen[groups[0].first].hash, taken, (uint32_t)take);
	return 0;
}

static int take_victims(struct kvc_look *look, struct kvc_pool *pool, struct group *groups,
			size_t count)
{
	const bool only_new = new_ones(look->files, groups, count);
	int rc = 0;

	pool->only_new = only_new;
	for (size_t i = 0; i < count; i++) {
		groups[i].rank = look->files->order->rank(groups[i].stamp, only_new);
		groups[i].hash = look->seen[groups[i].first].hash;
	}
	mark_over(look, groups, count);
	qsort(groups, count, sizeof(*groups), by_rank);
	for (size_t first = 0, end; first < count && !rc; first = end) {
		end = first + 1;
		while (end < count && groups[end].hash == groups[first].hash)
			end++;
		rc = take_hash(look, pool, groups + first, end - first, only_new);
	}
	return rc;
}

/* Objects that are counted, but for those of pinned namespaces, which are not looked at. */
static uint64_t count_of(const struct kvc_files *files, const struct kvc_look *look)
{
	const struct kvc_root *root = files->root;
	const struct kvc_names *names = &look->index->names;
	uint64_t objects, pinned;

	kvc_usage_total(root->usage, NULL, &objects);
	for (size_t i = 0; atomic_load(&root->pin_count) && i < names->count; i++) {
		const uint64_t ns_hash = kvc_folder_ns_hash(names->names[i]);

		if (kvc_pin_has(root, ns_hash) &&
		    kvc_usage_namespace(root->usage, ns_hash, NULL, &pinned) == 0)
			objects -= pinned < objects ? pinned : objects;
	}
	return objects;
}

/*
 * There is much less than is counted: others removed it, or the counts are damaged. Who would go on
 * by such a count would keep the root empty. What is less by an eighth is counted again beside all.
 */
static void check_count(struct kvc_files *files, const struct kvc_look *look)
{
	uint64_t objects;

	if (look->pool->ns_hash || kvc_usage_is_new(files->root->usage))
		return;
	objects = count_of(files, look);
	if (look->count + MISCOUNT_SLACK >= objects - objects / 8)
		return;
	/* Not before folders that came just now are looked into. */
	if (!look->fresh)
		files->index.made_ns = 0;
	else if (look->count + MISCOUNT_SLACK < objects / 2)
		atomic_store(&files->miscounted, true);
	else
		kvc_usage_set_due(files->root->usage, true);
}

/*
 * How many may go before more is looked at: of what was taken some always stay, so that each goes
 * when its turn has come among all. Neighbours were often stored together: until as much was seen
 * as there is, the first one of a few may be one of the last.
 */
static uint64_t credit_for(const struct kvc_files *files, const struct kvc_pool *pool,
			   const struct kvc_look *look, size_t taken)
{
	if (look->whole)
		return 1 + taken / 2;
	return 1 + (pool->looked < atomic_load(&files->objects) ? look->count / FIRST_LOOKS :
								  taken * 2 / 3);
}

/* From where it was last, until there are enough. */
static int look_around(struct kvc_look *look, struct kvc_pool *pool, uint64_t begun_ns,
		       uint64_t deadline_ns)
{
	uint32_t looked = 0;
	int rc = 0;

	while (looked < KVC_HASH_FOLDERS && look->count < LOOK_AT && !rc) {
		uint64_t now_ns;

		kvc_pool_drop_hash(pool, pool->next_hash);
		rc = kvc_look_at_hash(look, pool->next_hash);
		pool->next_hash = (pool->next_hash + 1) % KVC_HASH_FOLDERS;
		looked++;
		now_ns = kvc_now_ns();
		if (kvc_cleaner_is_stopped(kvc_cleaner_of(look->files)))
			rc = -ECANCELED;
		/* With thousands of namespaces each folder takes long. */
		else if (look->count > 0 && now_ns - begun_ns >= LOOK_NS)
			break;
		else if (now_ns >= deadline_ns)
			rc = rc ? rc : -ETIMEDOUT;
	}
	look->whole = looked == KVC_HASH_FOLDERS;
	return rc;
}

int kvc_cleaner_refill(struct kvc_files *files, struct kvc_pool *pool, uint64_t deadline_ns)
{
	const uint64_t begun_ns = kvc_now_ns();
	struct group *groups = NULL;
	struct kvc_look look;
	size_t known;
	int rc = kvc_cleaner_is_nixl(files) ? kvc_nixl_learn_all(files) : 0;

	if (!rc)
		rc = kvc_look_begin(&look, files, pool,
				    files->index.names.count > INDEX_MANY ? INDEX_NS : 0);
	if (rc)
		return rc;
	rc = look_around(&look, pool, begun_ns, deadline_ns);
	/* It is not all, but for what lies in folders that came just now. */
	if (!rc && look.whole && !look.fresh) {
		kvc_look_end(&look);
		rc = kvc_look_begin(&look, files, pool, 0);
		if (rc)
			return rc;
		rc = look_around(&look, pool, begun_ns, deadline_ns);
	}
	if (!rc && look.whole)
		check_count(files, &look);
	if (!rc && look.count == 0 && pool->count == 0)
		rc = -ENOENT;
	known = pool->count;
	if (!rc && look.count) {
		groups = malloc(look.count * sizeof(*groups));
		rc = groups ? take_victims(&look, pool, groups, make_groups(&look, groups)) :
			      -ENOMEM;
	}
	pool->credit = credit_for(files, pool, &look, pool->count - known);
	pool->looked += look.count;
	free(groups);
	kvc_look_end(&look);
	return rc;
}

struct kvc_files *kvc_cleaner_coldest(struct kvc_files *const *all, size_t count,
				      uint64_t deadline_ns)
{
	const int64_t now_ns = kvc_wall_ns();
	struct kvc_files *found = NULL;
	int64_t earliest = INT64_MAX;

	for (size_t i = 0; i < count; i++) {
		struct kvc_pool *pool = &all[i]->pool;
		const struct kvc_group *group = kvc_pool_first(pool);
		int64_t time;

		if (!group && kvc_cleaner_refill(all[i], pool, deadline_ns) == 0)
			group = kvc_pool_first(pool);
		if (!group)
			continue;
		time = kvc_stamps_time(all[i]->stamps, group->stamp, now_ns);
		if (!found || time < earliest) {
			found = all[i];
			earliest = time;
		}
	}
	return found;
}

int kvc_cleaner_each(struct kvc_files *files, uint32_t hash, bool sizes, kvc_cleaner_group_fn fn,
		     void *context)
{
	struct group *groups = NULL;
	struct kvc_look look;
	size_t count = 0;
	int rc = kvc_look_begin(&look, files, &files->pool, INDEX_NS);

	if (rc)
		return rc == -ENOENT ? 0 : rc;
	look.sizes = sizes;
	rc = kvc_look_at_hash(&look, hash);
	if (!rc && look.count) {
		groups = malloc(look.count * sizeof(*groups));
		rc = groups ? 0 : -ENOMEM;
	}
	if (!rc && groups)
		count = make_groups(&look, groups);
	for (size_t i = 0; i < count && !rc; i++) {
		struct kvc_group *victim = make_victim(&look, &groups[i]);
		uint64_t bytes = 0;

		for (uint32_t o = 0; o < groups[i].count; o++)
			bytes += look.seen[groups[i].first + o].bytes;
		if (victim)
			fn(context, victim, bytes);
		rc = victim ? 0 : -ENOMEM;
		free(victim);
	}
	free(groups);
	kvc_look_end(&look);
	return rc;
}
