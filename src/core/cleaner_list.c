/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may go. Nothing is kept in order: a hand goes over the hash folders, some objects for each
 * group that goes, and the first ones in the order of all that it saw are kept. Until it has seen
 * as many objects as there are it looks at more.
 */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/format.h"
#include "core/hash.h"
#include "core/pin.h"
#include "core/store.h"
#include "core/tenant.h"
#include "core/trailer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_AT	       2048u /* objects of a refill, at least, unless the root has fewer */
#define TAKE_PART      5u    /* of the groups that were looked at */
#define TAKE_MAX       4096u
#define KEPT_MAX       32768u
#define LOOKS	       6u			/* objects for each group that goes */
#define FIRST_LOOKS    32u			/* the same, until as many were seen as there are */
#define LOOK_NS	       (UINT64_C(50) * 1000000) /* of a refill that has found something */
#define MISCOUNT_SLACK 256u			/* objects */
#define INDEX_MANY     64u			/* namespaces; of fewer it is always new */
#define INDEX_NS       UINT64_C(1000000000)	/* what is known of the folders is that old */

/* An object that was seen. */
struct seen {
	uint64_t g;
	uint64_t stamp;
	uint64_t bytes;
	int64_t modified_ns;
	uint32_t name; /* in `names` */
	uint32_t folder;
	uint32_t hash;
	bool noted;
};

/* Of one look. */
struct look {
	struct kvc_files *files;
	const struct kvc_pool *pool; /* NULL: all namespaces, pinned ones too */
	const struct kvc_cleaner_names *rules;
	const struct kvc_index *index;
	struct seen *seen;
	size_t count;
	size_t room;
	char *names;
	size_t names_bytes;
	size_t names_room;
	int64_t now_ns;
	bool sizes;
	bool whole; /* all hash folders were looked at */
	bool fresh; /* of the folders that there are now */
};

static const char digits[] = "0123456789abcdef";

void kvc_cleaner_hash(uint32_t number, char out[3])
{
	out[0] = digits[number >> 4 & 15];
	out[1] = digits[number & 15];
	out[2] = '\0';
}

int kvc_cleaner_open_folder(const struct kvc_files *files, const char *folder, const char *hash)
{
	static const int flags = O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int at, fd = open(files->root->attributes.local_path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0 && *folder) {
		at = openat(fd, folder, O_PATH | flags);
		(void)close(fd);
		fd = at;
	}
	if (fd < 0)
		return -errno;
	at = openat(fd, hash, O_RDONLY | flags);
	if (at < 0)
		at = -errno;
	(void)close(fd);
	return at;
}

static int add_folder(void *context, const char *name)
{
	return strlen(name) < KVC_CLEANER_FOLDER ? kvc_names_add(context, name) : 0;
}

int kvc_cleaner_folders(const struct kvc_files *files, struct kvc_names *out)
{
	if (kvc_cleaner_is_nixl(files))
		return kvc_names_add(out, "");
	return kvc_folder_each(files->root, kvc_folder_is_namespace, add_folder, out);
}

/* ---------------------------------------------------------------- looking */

static int keep_name(struct look *look, const char *name, uint32_t *out)
{
	const size_t bytes = strlen(name) + 1;

	if (look->names_bytes + bytes > look->names_room) {
		const size_t room = 2 * look->names_room + 65536;
		char *more = realloc(look->names, room);

		if (!more)
			return -ENOMEM;
		look->names = more;
		look->names_room = room;
	}
	memcpy(look->names + look->names_bytes, name, bytes);
	*out = (uint32_t)look->names_bytes;
	look->names_bytes += bytes;
	return 0;
}

static int keep_seen(struct look *look, const struct seen *seen)
{
	if (look->count == look->room) {
		const size_t room = 2 * look->room + 1024;
		struct seen *more = realloc(look->seen, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		look->seen = more;
		look->room = room;
	}
	look->seen[look->count++] = *seen;
	return 0;
}

/* The group that the trailer of a file with a hash for a name tells. */
static int group_in_trailer(int folder_fd, const char *name, const char *folder, uint64_t *out)
{
	const int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct kvc_trailer trailer;
	uint8_t *block;
	struct stat st;
	int rc = -EINVAL;

	if (fd < 0)
		return -errno;
	block = malloc(KVC_TRAILER_BYTES);
	if (block && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    st.st_size >= (off_t)KVC_TRAILER_BYTES &&
	    pread(fd, block, KVC_TRAILER_BYTES, st.st_size - (off_t)KVC_TRAILER_BYTES) ==
		    (ssize_t)KVC_TRAILER_BYTES &&
	    kvc_trailer_decode(block, &trailer) == 0 &&
	    trailer.ns_hash == kvc_folder_ns_hash(folder)) {
		*out = trailer.g;
		rc = 0;
	}
	free(block);
	(void)close(fd);
	return rc;
}

/* Whether a file is an object of ours that lies where it belongs; its group. */
static bool is_ours(const struct look *look, int folder_fd, const char *folder, uint32_t hash,
		    const char *name, uint64_t *out_g)
{
	int rc;

	if (kvc_cleaner_is_nixl(look->files)) {
		*out_g = kvc_blake2b_64(name, strlen(name));
		return (*out_g & 0xff) == hash;
	}
	rc = look->rules->group(folder, name, strlen(name), out_g);
	if (rc == -ENODATA)
		rc = group_in_trailer(folder_fd, name, folder, out_g);
	return rc == 0 && (*out_g & 0xff) == hash;
}

static int64_t ns_of(const struct timespec *time)
{
	return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

/* Where nothing is noted, the time itself orders as well. */
static uint64_t stamp_of_time(int64_t modified_ns, int64_t now_ns)
{
	const int64_t ns = modified_ns > now_ns ? now_ns : modified_ns;

	return ns > 0 ? (uint64_t)ns & ~(uint64_t)KVC_STAMP_NOTES : 0;
}

/* Its stamp, by the table or by its times. False: it is no file, or went away. */
static bool fill_seen(const struct look *look, int folder_fd, const char *name, struct seen *seen)
{
	struct kvc_stamps *stamps = look->files->stamps;
	struct stat st;

	seen->noted = kvc_files_stamp(look->files, seen->g, &seen->stamp);
	if (seen->noted && !look->sizes)
		return true;
	if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
		return false;
	seen->bytes = (uint64_t)st.st_size;
	seen->modified_ns = ns_of(&st.st_mtim);
	if (seen->noted)
		return true;
	if (stamps)
		seen->stamp = kvc_stamps_of_file(stamps, seen->g, ns_of(&st.st_mtim),
						 ns_of(&st.st_ctim), look->now_ns);
	else
		seen->stamp = stamp_of_time(seen->modified_ns, look->now_ns);
	/* One from the future has an entry now. */
	if (stamps && seen->modified_ns > look->now_ns)
		seen->noted = kvc_files_stamp(look->files, seen->g, &seen->stamp);
	return true;
}

static int look_at(struct look *look, int folder_fd, uint32_t folder, uint32_t hash,
		   const char *name)
{
	struct seen seen = { .folder = folder, .hash = hash };
	int rc;

	if (!is_ours(look, folder_fd, look->index->names.names[folder], hash, name, &seen.g) ||
	    !fill_seen(look, folder_fd, name, &seen))
		return 0;
	if (kvc_cleaner_is_nixl(look->files))
		kvc_nixl_learn(kvc_cleaner_of(look->files),
			       name + look->rules->shared(name, strlen(name)));
	rc = keep_name(look, name, &seen.name);
	return rc ? rc : keep_seen(look, &seen);
}

/* Whether what lies in a namespace's folder may go. */
static bool may_go(const struct look *look, const char *folder)
{
	const struct kvc_root *root = look->files->root;
	const uint64_t ns_hash = kvc_folder_ns_hash(folder);

	if (!look->pool || !*folder)
		return true;
	return !kvc_pin_has(root, ns_hash) &&
	       (look->pool->ns_hash == 0 || look->pool->ns_hash == ns_hash ||
		kvc_tenant_is_same(root, look->pool->ns_hash, ns_hash));
}

static int look_into(struct look *look, uint32_t folder, uint32_t hash)
{
	const struct dirent *entry;
	char text[3];
	int fd, rc = 0;
	DIR *dir;

	kvc_cleaner_hash(hash, text);
	fd = kvc_cleaner_open_folder(look->files, look->index->names.names[folder], text);
	if (fd < 0)
		return kvc_cleaner_is_short(-fd) ? fd : 0;
	dir = fdopendir(fd);
	if (!dir) {
		(void)close(fd);
		return -ENOMEM;
	}
	while (!rc) {
		entry = readdir(dir);
		if (!entry)
			break;
		if (entry->d_name[0] != '.' &&
		    (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN))
			rc = look_at(look, fd, folder, hash, entry->d_name);
	}
	(void)closedir(dir);
	return rc;
}

static int look_at_hash(struct look *look, uint32_t hash)
{
	int rc = 0;

	for (uint32_t f = 0; f < look->index->names.count && !rc; f++)
		if (kvc_index_has(look->index, f, hash) &&
		    may_go(look, look->index->names.names[f]))
			rc = look_into(look, f, hash);
	return rc;
}

/* age_ns: so old may be what is known of the folders. */
static int look_begin(struct look *look, struct kvc_files *files, const struct kvc_pool *pool,
		      uint64_t age_ns)
{
	const uint64_t begun_ns = kvc_now_ns();
	int rc;

	*look = (struct look){
		.files = files,
		.pool = pool,
		.index = &files->index,
		.rules = atomic_load(&kvc_cleaner_of(files)->names),
		.now_ns = kvc_wall_ns(),
	};
	rc = look->rules ? kvc_index_refresh(files, age_ns) : -ENOENT;
	look->fresh = files->index.made_ns >= begun_ns;
	return rc;
}

static void look_end(struct look *look)
{
	free(look->seen);
	free(look->names);
}

/* ---------------------------------------------------------------- groups */

static int by_group(const void *a, const void *b)
{
	const struct seen *x = a, *y = b;

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
	bool over; /* its tenant has more than its share */
};

static int by_rank(const void *a, const void *b)
{
	const struct group *x = a, *y = b;

	if (x->over != y->over)
		return x->over ? -1 : 1;
	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* In nixl naming each object stands for its group, whose other objects lie elsewhere. */
static bool is_same_group(const struct look *look, const struct seen *a, const struct seen *b)
{
	return !kvc_cleaner_is_nixl(look->files) && a->g == b->g && a->folder == b->folder;
}

static size_t make_groups(struct look *look, struct group *groups)
{
	size_t count = 0;

	qsort(look->seen, look->count, sizeof(*look->seen), by_group);
	for (size_t i = 0; i < look->count; i++) {
		const struct seen *seen = &look->seen[i];
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
static struct kvc_group *make_victim(const struct look *look, const struct group *group)
{
	const struct seen *first = &look->seen[group->first];
	const bool nixl = kvc_cleaner_is_nixl(look->files);
	struct kvc_group *victim;
	size_t bytes = 0;
	char *to;

	for (uint32_t i = 0; i < group->count; i++)
		bytes += strlen(look->names + first[i].name) + 1;
	victim = malloc(sizeof(*victim) + bytes);
	if (!victim)
		return NULL;
	*victim = (struct kvc_group){ .rank = group->rank,
				      .stamp = group->stamp,
				      .g = first->g,
				      .noted = first->noted,
				      .over = group->over,
				      .count = group->count };
	kvc_cleaner_hash(first->hash, victim->hash);
	memcpy(victim->folder, look->index->names.names[first->folder],
	       strlen(look->index->names.names[first->folder]) + 1);
	to = victim->names;
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

void kvc_pool_drop(struct kvc_pool *pool)
{
	for (size_t i = 0; i < pool->count; i++)
		free(pool->victims[i]);
	free(pool->victims);
	pool->victims = NULL;
	pool->count = 0;
	pool->credit = 0;
	pool->looked = 0;
}

/* Who has more than its share is first; few have. */
static void mark_over(const struct look *look, struct group *groups, size_t count)
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
static void complete(const struct look *look, struct kvc_group *victim)
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
				stamp_of_time(modified_ns, look->now_ns);
	victim->stamp = stamp > victim->stamp ? stamp : victim->stamp;
}

static int later_first(const void *a, const void *b)
{
	const struct kvc_group *x = *(struct kvc_group *const *)a;
	const struct kvc_group *y = *(struct kvc_group *const *)b;

	if (x->over != y->over)
		return x->over ? 1 : -1;
	return x->rank > y->rank ? -1 : x->rank < y->rank;
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

/* What is known of a folder that is looked at again. */
static void drop_hash(struct kvc_pool *pool, const char *hash)
{
	size_t kept = 0;

	for (size_t i = 0; i < pool->count; i++) {
		if (memcmp(pool->victims[i]->hash, hash, 2) == 0)
			free(pool->victims[i]);
		else
			pool->victims[kept++] = pool->victims[i];
	}
	pool->count = kept;
}

/* Sorted ones among those of the pool; of too many the ones that would go last are dropped. */
static int merge(struct kvc_pool *pool, struct kvc_group **more, size_t count)
{
	const size_t all = pool->count + count;
	const size_t drop = all > KEPT_MAX ? all - KEPT_MAX : 0;
	struct kvc_group **merged = malloc((all + 1) * sizeof(struct kvc_group *));
	size_t a = 0, b = 0;

	if (!merged)
		return -ENOMEM;
	for (size_t i = 0; i < all; i++) {
		const bool first = b == count || (a < pool->count &&
						  later_first(&pool->victims[a], &more[b]) <= 0);
		struct kvc_group *victim = first ? pool->victims[a++] : more[b++];

		if (i < drop)
			free(victim);
		else
			merged[i - drop] = victim;
	}
	free(pool->victims);
	pool->victims = merged;
	pool->count = all - drop;
	return 0;
}

/* The first ones of the groups, as victims, sorted. */
static int make_victims(const struct look *look, const struct group *groups, size_t count,
			bool only_new, struct kvc_group **out)
{
	for (size_t i = 0; i < count; i++) {
		out[i] = make_victim(look, &groups[i]);
		if (!out[i]) {
			while (i-- > 0)
				free(out[i]);
			return -ENOMEM;
		}
		complete(look, out[i]);
		out[i]->rank = look->files->order->rank(out[i]->stamp, only_new);
	}
	qsort(out, count, sizeof(struct kvc_group *), later_first);
	return 0;
}

static int take_victims(struct look *look, struct kvc_pool *pool, struct group *groups,
			size_t count)
{
	struct kvc_files *files = look->files;
	const bool only_new = new_ones(files, groups, count);
	/* When it was everything, this is the order of everything. */
	size_t take = count / (look->whole ? 2 : TAKE_PART) + 1;
	struct kvc_group **victims;
	int rc;

	for (size_t i = 0; i < count; i++)
		groups[i].rank = files->order->rank(groups[i].stamp, only_new);
	mark_over(look, groups, count);
	qsort(groups, count, sizeof(*groups), by_rank);
	take = take > count ? count : take > TAKE_MAX ? TAKE_MAX : take;
	victims = malloc((take + 1) * sizeof(struct kvc_group *));
	if (!victims)
		return -ENOMEM;
	rc = make_victims(look, groups, take, only_new, victims);
	if (!rc) {
		rc = merge(pool, victims, take);
		for (size_t i = 0; rc && i < take; i++)
			free(victims[i]);
	}
	free(victims);
	return rc;
}

/*
 * There is much less than is counted: others removed it, or the counts are damaged. Who would go on
 * by such a count would keep the root empty.
 */
static void check_count(struct kvc_files *files, const struct look *look)
{
	uint64_t objects;

	if (look->pool->ns_hash || atomic_load(&files->root->pin_count) ||
	    kvc_usage_is_new(files->root->usage))
		return;
	kvc_usage_total(files->root->usage, NULL, &objects);
	if (look->count + MISCOUNT_SLACK >= objects / 2)
		return;
	/* Not before folders that came just now are looked into. */
	if (look->fresh)
		atomic_store(&files->miscounted, true);
	else
		files->index.made_ns = 0;
}

/* Objects that were looked at for each group that goes. Whole: all is known. */
static size_t looks_each(const struct kvc_files *files, const struct kvc_pool *pool, bool whole)
{
	if (whole)
		return 2;
	return pool->looked < atomic_load(&files->objects) ? FIRST_LOOKS : LOOKS;
}

/* From where it was last, until there are enough. */
static int look_around(struct look *look, struct kvc_pool *pool, uint64_t begun_ns,
		       uint64_t deadline_ns)
{
	uint32_t looked = 0;
	int rc = 0;

	while (looked < KVC_HASH_FOLDERS && look->count < LOOK_AT && !rc) {
		uint64_t now_ns;
		char hash[3];

		kvc_cleaner_hash(pool->next_hash, hash);
		drop_hash(pool, hash);
		rc = look_at_hash(look, pool->next_hash);
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
	struct look look;
	int rc = kvc_cleaner_is_nixl(files) ? kvc_nixl_learn_all(files) : 0;

	if (!rc)
		rc = look_begin(&look, files, pool,
				files->index.names.count > INDEX_MANY ? INDEX_NS : 0);
	if (rc)
		return rc;
	rc = look_around(&look, pool, begun_ns, deadline_ns);
	/* It is not all, but for what lies in folders that came just now. */
	if (!rc && look.whole && !look.fresh) {
		look_end(&look);
		rc = look_begin(&look, files, pool, 0);
		if (rc)
			return rc;
		rc = look_around(&look, pool, begun_ns, deadline_ns);
	}
	if (!rc && look.whole)
		check_count(files, &look);
	if (!rc && look.count == 0 && pool->count == 0)
		rc = -ENOENT;
	pool->credit = 1 + look.count / looks_each(files, pool, look.whole);
	pool->looked += look.count;
	if (!rc && look.count) {
		groups = malloc(look.count * sizeof(*groups));
		rc = groups ? take_victims(&look, pool, groups, make_groups(&look, groups)) :
			      -ENOMEM;
	}
	free(groups);
	look_end(&look);
	return rc;
}

int kvc_cleaner_each(struct kvc_files *files, uint32_t hash, bool sizes, kvc_cleaner_group_fn fn,
		     void *context)
{
	struct group *groups = NULL;
	struct look look;
	size_t count = 0;
	int rc = look_begin(&look, files, &files->pool, INDEX_NS);

	if (rc)
		return rc == -ENOENT ? 0 : rc;
	look.sizes = sizes;
	rc = look_at_hash(&look, hash);
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
	look_end(&look);
	return rc;
}
