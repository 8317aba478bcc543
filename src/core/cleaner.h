/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in roots of files: limits, admission, and what goes when they are reached; how it decides
 * is in docs/operations.md. Of each root one process is the cleaner at a time, by a lock in its
 * folder; whoever finds no room for a set makes some itself. What goes are whole groups, all
 * objects of one key and model, in the order of core/order.h.
 *
 * Core knows no keys: the connector hands down what tells the group of a stored name.
 */
#ifndef KVC_CORE_CLEANER_H
#define KVC_CORE_CLEANER_H

#include "core/root.h"

struct kvc_cleaner;
struct kvc_request;

/*
 * struct kvc_cleaner_names - pure and thread-safe.
 * @group    naming "kvcellar": the group of a name in a namespace's folder. 0; -ENODATA: the name
 *           is a hash, its trailer knows; -EINVAL: no name of ours
 * @shared   naming "nixl": length of what all names of the group begin with; what follows it is
 *           the same for all groups
 */
struct kvc_cleaner_names {
	int (*group)(const char *folder, const char *name, size_t bytes, uint64_t *out_g);
	size_t (*shared)(const char *name, size_t bytes);
};

/* ---------------------------------------------------------------- roots */

/* Sets root->files where there may be a cleaner: a folder of files that may be written to. */
int kvc_files_open(struct kvc_root *root);
void kvc_files_close(struct kvc_root *root);

/* Takes `bytes` of a namespace from what `capacity` and its tenant's share leave, making room if
 * need be. False: there is none. What was taken is given back by kvc_files_settle() once it is
 * counted, or was not written. */
bool kvc_files_admit(struct kvc_root *root, uint64_t ns_hash, uint64_t bytes, uint64_t deadline_ns);
void kvc_files_settle(struct kvc_root *root, uint64_t bytes);

/* Whether `min_free` has room for what was taken; makes room if need be, also for the watermarks,
 * which are a limit only where others alone are above them. *out_room: so many bytes more need not
 * be asked for. */
bool kvc_files_admit_device(struct kvc_root *root, uint64_t bytes, uint64_t deadline_ns,
			    uint64_t *out_room);

/* There is none as others have the device: nothing that ends or goes makes any. */
bool kvc_files_is_left_to_others(const struct kvc_root *root, uint64_t bytes);

/* The device had no room for `bytes`. True: something went for it. again: that did not help. */
bool kvc_files_no_space(struct kvc_root *root, uint64_t bytes, bool again, uint64_t deadline_ns);

/* Somebody writes just now what can be taken away in a moment. */
bool kvc_files_is_pending(const struct kvc_root *root);

/* Counts what the root holds, now, beside all who use it. */
int kvc_files_recount(struct kvc_root *root);

/* How far the count of its objects is that goes on: folders. False: none does. */
bool kvc_files_progress(const struct kvc_root *root, uint32_t *out_done, uint32_t *out_total);
bool kvc_files_is_cleaner(const struct kvc_root *root);

/* ---------------------------------------------------------------- uses: core/xfer_stamps.c */

/* The gets and sets of a call get their logical times, the first of a prefix the latest; what they
 * hang on becomes at least as young. */
void kvc_stamp_requests(struct kvc_store *store, struct kvc_request *requests, size_t count);
/* A get or set ended OK. */
void kvc_stamp_used(const struct kvc_request *request, bool is_new);

/* ---------------------------------------------------------------- the store's cleaner */

int kvc_cleaner_new(struct kvc_store *store);
void kvc_cleaner_free(struct kvc_store *store);
/* Its thread, if a root needs one. */
void kvc_cleaner_start(struct kvc_store *store);
/* -EBUSY: it is stuck in a root that does not answer. */
int kvc_cleaner_stop(struct kvc_store *store, uint64_t deadline_ns);
void kvc_cleaner_kick(struct kvc_store *store);
void kvc_cleaner_set_names(struct kvc_store *store, const struct kvc_cleaner_names *names);

/* kvc_store_clean() without the connector's part. */
int kvc_cleaner_clean(struct kvc_store *store, const struct kvc_clean_params *params,
		      struct kvc_clean_report *out);

#endif
