/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the cleaner. core/cleaner.c has the thread and who is the cleaner, cleaner_files.c what a
 * root has, cleaner_index.c which folders; cleaner_look.c looks into them, cleaner_list.c finds
 * what may go, cleaner_pool.c knows what is next, cleaner_evict.c takes it away, cleaner_nixl.c
 * knows groups that lie in several folders; cleaner_room.c has the limits, cleaner_work.c keeps
 * below them, cleaner_scan.c counts, cleaner_clean.c is kvc_store_clean().
 */
#ifndef KVC_CORE_CLEANER_INTERNAL_H
#define KVC_CORE_CLEANER_INTERNAL_H

#include "core/cleaner.h"
#include "core/names.h"
#include "core/order.h"
#include "core/packed_file.h"
#include "core/stamps.h"
#include "core/store.h"
#include "core/usage.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#define KVC_HASH_FOLDERS     256u
#define KVC_CLEANER_FOLDER   80u /* bytes of a namespace's folder name */
#define KVC_CLEANER_SUFFIXES 512u

/* A group that may go. names: those of its objects in this root, one NUL after each; in nixl naming
 * what all of them begin with. */
struct kvc_group {
	uint64_t rank;
	uint64_t stamp;
	uint64_t g;
	int64_t modified_ns; /* of one without an entry */
	const char *names;
	uint32_t count;
	bool noted; /* it has an entry */
	bool over;  /* its tenant has more than its share */
	char hash[3];
	char folder[]; /* "" in nixl naming; the names come behind it */
};

/* Groups that are next, of all or of one tenant. */
struct kvc_pool {
	struct kvc_found {
		struct kvc_group **groups; /* the first to go is the last */
		uint32_t count;
	} found[KVC_HASH_FOLDERS];
	uint64_t next[KVC_HASH_FOLDERS]; /* where the first to go of each stands in the order */
	size_t count;			 /* of all */
	uint64_t looked;		 /* objects, so far */
	uint64_t credit;		 /* groups that may go before more is looked at */
	uint32_t next_hash;
	bool only_new;		 /* as the order had it at the last look */
	uint64_t ns_hash;	 /* of a namespace of the tenant; 0: of all */
	uint64_t barren_ns;	 /* nothing could go when it was looked at; 0: it could */
	uint64_t barren_changes; /* `changes` then */
};

/* The namespaces of a root ("" in nixl naming), in order, and which hash folders they have. */
struct kvc_index {
	struct kvc_names names;
	struct kvc_index_folder {
		int64_t modified_ns; /* of its folder; 0: to be read again */
		uint64_t bits[KVC_HASH_FOLDERS / 64];
	} * folders;	  /* one per name */
	uint64_t made_ns; /* 0: never */
};

/* A count of what a root holds that goes on: of each hash folder all namespaces. */
struct kvc_scan {
	atomic_bool active;
	bool has_lock;
	int root_fd;
	int64_t listed_ns; /* the root's time when the namespaces were listed; 0: list them again */
	uint32_t hash;
	unsigned tries;			/* of this hash folder */
	struct kvc_names folders;	/* the namespaces */
	struct kvc_usage_count *part;	/* what they have in it */
	size_t folder;			/* the next of them */
	struct kvc_usage_count *counts; /* those before, by their namespace hash */
	size_t count;
	size_t room;
	_Atomic uint64_t due_ns; /* when one that was due began; 0: never */
	_Atomic uint32_t done;
	_Atomic uint32_t total; /* 0: none goes on */
};

/* Why nothing goes although it should. */
enum kvc_cleaner_told {
	KVC_TOLD_NOTHING,
	KVC_TOLD_OTHERS,   /* others have the space */
	KVC_TOLD_MIN_FREE, /* the same, of min_free */
};

/* The folders that something went from last: descriptors or -1. */
struct kvc_open_folders {
	int space; /* of a namespace, and its name */
	int hash;  /* in it, and its name */
	char space_name[KVC_CLEANER_FOLDER];
	char hash_name[3];
};

struct kvc_files {
	struct kvc_root *root;
	const struct kvc_order *order;
	struct kvc_stamps *stamps; /* NULL: nothing is noted */
	struct kvc_packed_dir *dir;
	struct kvc_packed_lock *lock; /* NULL: there are none, each process is the cleaner */
	_Atomic int slot;	      /* of kvc_stamps_pending_add(), or -1 */
	atomic_bool is_cleaner;
	bool seen_free;			  /* its lock was free at the last look */
	_Atomic int64_t pending;	  /* bytes that this process has begun to write */
	_Atomic uint64_t changes;	  /* what could go may be other than it was */
	_Atomic uint64_t objects;	  /* about so many */
	_Atomic uint64_t batch_bytes;	  /* of a call, at most, lately */
	atomic_bool miscounted;		  /* the counts are to be made again */
	_Atomic int64_t went_modified_ns; /* when what went last was written; 0: nothing went */
	_Atomic uint64_t no_help_ns;	  /* until then nothing goes for a device that is full */

	/* In the hands of whoever has kvc_cleaner_enter()ed. */
	struct kvc_open_folders open;
	struct kvc_index index;
	struct kvc_pool pool;
	struct kvc_pool tenant_pool;
	struct kvc_scan scan;
	int64_t dead_pending[KVC_STAMPS_SLOTS]; /* as of the last tick */

	/* Of the thread. */
	bool hot;	       /* cleaning until below the low mark */
	uint64_t hot_used;     /* bytes in use on the device when the last round began */
	uint64_t hot_removed;  /* in it */
	uint64_t hot_until_ns; /* the device may take until then to show it */
	enum kvc_cleaner_told told;
	uint64_t corrected_ns; /* when counts that could not be were made anew; 0: never */
};

struct kvc_cleaner {
	struct kvc_store *store;
	_Atomic(const struct kvc_cleaner_names *) names; /* NULL: no namespace was opened yet */
	pthread_mutex_t lock;
	pthread_cond_t idle; /* nobody has entered */
	pthread_cond_t wake; /* for the thread */
	bool busy;
	bool kicked;
	atomic_bool stop;
	bool runs;
	bool ended;
	_Atomic uint32_t scan_waiters;
	pthread_t thread;
	uint64_t looked_ns; /* when files were looked for that were removed */
	int64_t wall_ns;    /* at the last tick */
	uint64_t mono_ns;
	/* nixl naming: what names end with, and whether all folders were looked at for them. */
	struct kvc_names suffixes;
	bool suffixes_whole;
};

/* What went. */
struct kvc_evicted {
	uint64_t groups;
	uint64_t objects;
	uint64_t bytes;
	uint64_t failed;
};

static inline struct kvc_cleaner *kvc_cleaner_of(const struct kvc_files *files)
{
	return files->root->store->cleaner;
}

static inline bool kvc_cleaner_is_nixl(const struct kvc_files *files)
{
	return files->root->store->settings->naming == KVC_NAMING_NIXL;
}

/* What cannot be opened for this is there all the same, and can be opened later. */
static inline bool kvc_cleaner_is_short(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM;
}

/* One at a time looks for what may go or takes it away. -ETIMEDOUT; -ECANCELED: the store is being
 * closed. */
int kvc_cleaner_enter(struct kvc_cleaner *cleaner, uint64_t deadline_ns);
void kvc_cleaner_leave(struct kvc_cleaner *cleaner);
static inline bool kvc_cleaner_is_stopped(const struct kvc_cleaner *cleaner)
{
	return atomic_load(&cleaner->stop);
}

/* ---------------------------------------------------------------- cleaner_files.c */

/* For the thread, entered: goes over to files that were made again, and the lock beside them. */
void kvc_files_renew(struct kvc_files *files);
/* Whether this process is the cleaner. is_behind: another one is that of a root before this one. */
bool kvc_files_elect(struct kvc_files *files, bool is_behind);
void kvc_files_bury(struct kvc_files *files);

/* Whether what is in the root may be taken away by itself. */
bool kvc_files_may_evict(const struct kvc_files *files);
/* Stamp of a group as of now; false: it has no entry. */
bool kvc_files_stamp(const struct kvc_files *files, uint64_t g, uint64_t *out);

/* ---------------------------------------------------------------- cleaner_list.c; entered */

/* The folder of a namespace ("" in nixl naming: of all), O_PATH; one hash folder of it, to read:
 * a descriptor or -errno. */
int kvc_cleaner_open_space(const struct kvc_files *files, const char *folder);
int kvc_cleaner_open_folder(const struct kvc_files *files, const char *folder, const char *hash);

/* The namespaces of a root, or the one that has no name. */
int kvc_cleaner_folders(const struct kvc_files *files, struct kvc_names *out);

/* Looks at more folders until there are victims. 0, or -ENOENT: nothing can go; -ETIMEDOUT. */
int kvc_cleaner_refill(struct kvc_files *files, struct kvc_pool *pool, uint64_t deadline_ns);

/* Of roots on one device the one whose next group was used least lately; NULL: nothing can go. */
struct kvc_files *kvc_cleaner_coldest(struct kvc_files *const *all, size_t count,
				      uint64_t deadline_ns);

/* Each group of one hash folder: fn gets what would be a victim, with its rank not set, and the
 * bytes of its objects when sizes is told. */
typedef void (*kvc_cleaner_group_fn)(void *context, const struct kvc_group *victim, uint64_t bytes);
int kvc_cleaner_each(struct kvc_files *files, uint32_t hash, bool sizes, kvc_cleaner_group_fn fn,
		     void *context);

/* ---------------------------------------------------------------- cleaner_index.c; entered */

/* Looks which folders there are, unless that was done not longer ago than so. -errno: they cannot
 * be looked at just now, and what is known of them stays. */
int kvc_index_refresh(struct kvc_files *files, uint64_t age_ns);
void kvc_index_drop(struct kvc_index *index);
static inline bool kvc_index_has(const struct kvc_index *index, size_t folder, uint32_t hash)
{
	return index->folders[folder].bits[hash / 64] >> hash % 64 & 1;
}

/* ---------------------------------------------------------------- cleaner_pool.c; entered */

void kvc_pool_drop(struct kvc_pool *pool);
void kvc_pool_drop_hash(struct kvc_pool *pool, uint32_t hash);
/* In the place of what is known of a folder; the groups, in any order, and the list that malloc()
 * made are the pool's. */
void kvc_pool_put(struct kvc_pool *pool, uint32_t hash, struct kvc_group **groups, uint32_t count);
/* The one that goes first, NULL: none is known; and for the caller to free. */
const struct kvc_group *kvc_pool_first(const struct kvc_pool *pool);
struct kvc_group *kvc_pool_take(struct kvc_pool *pool);
/* One that was taken and does not go now, with its new place in the order. */
void kvc_pool_put_back(struct kvc_pool *pool, struct kvc_group *group);

/* ---------------------------------------------------------------- cleaner_nixl.c; entered */

/* What a name ends with is one more. */
void kvc_nixl_learn(struct kvc_cleaner *cleaner, const char *suffix);
/* Until all that there are are known. -ECANCELED. */
int kvc_nixl_learn_all(struct kvc_files *files);
/* The latest stamp of the group's objects that have an entry. */
bool kvc_nixl_stamp(const struct kvc_files *files, const char *shared, uint64_t *out);
/* When one of its objects was written last, by their files. */
int64_t kvc_nixl_modified_ns(const struct kvc_files *files, const char *shared);
/* All of its objects, wherever they lie. */
void kvc_nixl_remove(struct kvc_files *files, const struct kvc_group *victim,
		     struct kvc_evicted *out);

/* ---------------------------------------------------------------- cleaner_evict.c; entered */

/* The next group goes; ns_hash: of the tenant of that namespace, 0: of all. 0; -ENOENT: nothing
 * can; -ETIMEDOUT. */
int kvc_cleaner_evict(struct kvc_files *files, uint64_t ns_hash, uint64_t deadline_ns,
		      struct kvc_evicted *out);
/* The folder that is open for them is closed. */
void kvc_cleaner_close_folder(struct kvc_files *files);
/* A group went. */
void kvc_cleaner_forget(struct kvc_files *files, uint64_t g);
/* One object, in a folder that is open. */
void kvc_cleaner_remove(struct kvc_files *files, int folder_fd, const char *folder,
			const char *hash, const char *name, struct kvc_evicted *out);

/* ---------------------------------------------------------------- cleaner_room.c */

/* What the device of a root has; false: it does not say. */
bool kvc_files_device(const struct kvc_files *files, struct kvc_usage *out);
/* What the cleaner keeps free below the capacity. */
uint64_t kvc_files_ahead(const struct kvc_files *files);
/* Bytes that are to go so that this is so; 0: none. */
uint64_t kvc_files_excess(struct kvc_files *files);

/* Roots without a capacity go by the watermarks of the file system. */
bool kvc_files_has_watermarks(const struct kvc_files *files);
uint64_t kvc_files_watermark(double percent, const struct kvc_usage *usage);
/* A group is about to go; it is counted, or stays. Who dies in between is missed. */
void kvc_files_begin_removal(struct kvc_files *files);
void kvc_files_end_removal(struct kvc_files *files);
/* Bytes of the store's roots on the device that go by its watermarks. */
uint64_t kvc_files_own_on(const struct kvc_store *store, uint64_t device);

/* ---------------------------------------------------------------- cleaner_work.c */

/* One turn at the limits of all roots that this process is the cleaner of. True: something went. */
bool kvc_cleaner_work(struct kvc_cleaner *cleaner, struct kvc_files **all, size_t count);

/* ---------------------------------------------------------------- cleaner_scan.c */

/* Whether the counts of a root are to be made, or made again. */
bool kvc_scan_is_wanted(const struct kvc_files *files);
/* Counts some folders more; entered. 1: there is more to count; 0: it is done, or somebody else
 * counts. strict: a folder that cannot be read is an error, which ends it. */
int kvc_scan_step(struct kvc_files *files, bool strict);
void kvc_scan_end(struct kvc_files *files);

#endif
