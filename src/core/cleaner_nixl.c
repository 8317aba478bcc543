/* SPDX-License-Identifier: Apache-2.0 */
/*
 * naming = "nixl": the objects of one key and model lie in folders, and roots, by the hash of each
 * name. Their names begin alike, and there are few things that they end with (rank, pool, part): of
 * a group whose beginning is known, all names that there may be are made. What names end with is
 * learned from all folders once, and from each that is looked at later.
 */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/format.h"
#include "core/hash.h"
#include "core/route.h"
#include "core/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void kvc_nixl_learn(struct kvc_cleaner *cleaner, const char *suffix)
{
	for (size_t i = cleaner->suffixes.count; i-- > 0;)
		if (strcmp(cleaner->suffixes.names[i], suffix) == 0)
			return;
	if (cleaner->suffixes.count < KVC_CLEANER_SUFFIXES)
		(void)kvc_names_add(&cleaner->suffixes, suffix);
}

static void learn_folder(struct kvc_files *files, const struct kvc_cleaner_names *rules,
			 const char *hash)
{
	const int fd = kvc_cleaner_open_folder(files, "", hash);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!dir) {
		if (fd >= 0)
			(void)close(fd);
		return;
	}
	while ((entry = readdir(dir)) != NULL) {
		const size_t bytes = strlen(entry->d_name);

		if (entry->d_name[0] == '.')
			continue;
		kvc_nixl_learn(kvc_cleaner_of(files),
			       entry->d_name + rules->shared(entry->d_name, bytes));
	}
	(void)closedir(dir);
}

int kvc_nixl_learn_all(struct kvc_files *files)
{
	struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	const struct kvc_cleaner_names *rules = atomic_load(&cleaner->names);
	const struct kvc_store *store = cleaner->store;
	char hash[3];

	if (cleaner->suffixes_whole || !rules)
		return rules ? 0 : -ENOENT;
	for (size_t r = 0; r < store->root_count; r++) {
		for (uint32_t h = 0; h < KVC_HASH_FOLDERS && store->roots[r]->files; h++) {
			kvc_route_folder(h, hash);
			learn_folder(store->roots[r]->files, rules, hash);
			if (kvc_cleaner_is_stopped(cleaner))
				return -ECANCELED;
		}
	}
	cleaner->suffixes_whole = true;
	return 0;
}

/* The name with the suffix number i: its hash, and the root that it belongs to. False: there can be
 * none. */
static bool make_name(const struct kvc_files *files, const char *shared, size_t i,
		      char name[KVC_NAME_BYTES_MAX + 1], uint64_t *g, struct kvc_files **home)
{
	const struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	const int bytes =
		snprintf(name, KVC_NAME_BYTES_MAX + 1, "%s%s", shared, cleaner->suffixes.names[i]);

	if (bytes <= 0 || bytes > (int)KVC_NAME_BYTES_MAX)
		return false;
	*g = kvc_blake2b_64(name, (size_t)bytes);
	*home = kvc_store_route(cleaner->store, *g)->files;
	return *home != NULL;
}

bool kvc_nixl_stamp(const struct kvc_files *files, const char *shared, uint64_t *out)
{
	const struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	char name[KVC_NAME_BYTES_MAX + 1];
	bool found = false;

	*out = 0;
	for (size_t i = 0; i < cleaner->suffixes.count; i++) {
		struct kvc_files *home;
		uint64_t g, stamp;

		if (!make_name(files, shared, i, name, &g, &home) ||
		    !kvc_files_stamp(home, g, &stamp))
			continue;
		found = true;
		*out = stamp > *out ? stamp : *out;
	}
	return found;
}

static int64_t modified_at(const struct kvc_files *files, const char *name, uint64_t g)
{
	struct stat st;
	char hash[3];
	int fd, rc;

	kvc_route_folder(g, hash);
	fd = kvc_cleaner_open_folder(files, "", hash);
	if (fd < 0)
		return 0;
	rc = fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW);
	(void)close(fd);
	return rc ? 0 : kvc_ns_of(&st.st_mtim);
}

int64_t kvc_nixl_modified_ns(const struct kvc_files *files, const char *shared)
{
	const struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	char name[KVC_NAME_BYTES_MAX + 1];
	int64_t latest = 0;

	for (size_t i = 0; i < cleaner->suffixes.count; i++) {
		struct kvc_files *home;
		int64_t modified;
		uint64_t g;

		if (!make_name(files, shared, i, name, &g, &home))
			continue;
		modified = modified_at(home, name, g);
		latest = modified > latest ? modified : latest;
	}
	return latest;
}

static void remove_at(struct kvc_files *files, const char *name, uint64_t g,
		      struct kvc_evicted *out)
{
	const uint64_t before = out->objects;
	char hash[3];
	int fd;

	kvc_route_folder(g, hash);
	fd = kvc_cleaner_open_folder(files, "", hash);
	if (fd < 0)
		return;
	kvc_cleaner_remove(files, fd, "", hash, name, out);
	(void)close(fd);
	if (out->objects > before)
		kvc_cleaner_forget(files, g);
}

void kvc_nixl_remove(struct kvc_files *files, const struct kvc_group *victim,
		     struct kvc_evicted *out)
{
	const struct kvc_cleaner *cleaner = kvc_cleaner_of(files);
	char name[KVC_NAME_BYTES_MAX + 1];

	for (size_t i = 0; i < cleaner->suffixes.count; i++) {
		struct kvc_files *home;
		uint64_t g;

		if (!make_name(files, victim->names, i, name, &g, &home))
			continue;
		/* Roots in another order than now: it lies where it was seen. */
		if (home != files)
			remove_at(files, name, g, out);
		remove_at(home, name, g, out);
	}
}
