/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which hash folders the namespaces of a root have: of ten thousand namespaces, many of which are
 * small, only folders that are there are looked into. A folder's own time tells whether one came
 * or went in it, so that it is not read again while nothing did.
 */
#include "core/cleaner_internal.h"

#include "core/clock.h"
#include "core/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What changes a folder right after it was read may leave its time as it was. */
#define SETTLED_NS INT64_C(2000000000)

void kvc_index_drop(struct kvc_index *index)
{
	kvc_names_free(&index->names);
	free(index->folders);
	*index = (struct kvc_index){ .made_ns = 0 };
}

static int read_bits(int root_fd, const char *name, struct kvc_index_folder *out)
{
	const int fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	const int rc = fd < 0 ? -errno : 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	memset(out->bits, 0, sizeof(out->bits));
	if (!dir) {
		if (fd >= 0)
			(void)close(fd);
		out->modified_ns = 0;
		return rc == 0 ? -ENOMEM : kvc_cleaner_is_short(-rc) ? rc : 0;
	}
	while ((entry = readdir(dir)) != NULL) {
		const unsigned number = kvc_folder_number(entry->d_name);

		if (kvc_folder_is_hash(entry->d_name) && entry->d_name[2] == '\0')
			out->bits[number / 64] |= UINT64_C(1) << number % 64;
	}
	(void)closedir(dir);
	return 0;
}

/* was: what was known of it, or NULL. */
static int fill(int root_fd, const char *name, const struct kvc_index_folder *was,
		struct kvc_index_folder *out)
{
	const int64_t now_ns = kvc_wall_ns();
	struct stat st;
	int64_t modified_ns = 0;

	if (fstatat(root_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		modified_ns = kvc_ns_of(&st.st_mtim);
	if (was && modified_ns && was->modified_ns == modified_ns) {
		*out = *was;
		return 0;
	}
	out->modified_ns = modified_ns < now_ns - SETTLED_NS ? modified_ns : 0;
	return read_bits(root_fd, name, out);
}

/* Both lists are in order. */
static int fill_all(const struct kvc_files *files, const struct kvc_index *former,
		    struct kvc_index *index)
{
	const int root_fd =
		open(files->root->attributes.local_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	size_t at = 0;
	int rc = root_fd < 0 && kvc_cleaner_is_short(errno) ? -errno : 0;

	for (size_t i = 0; i < index->names.count && root_fd >= 0 && !rc; i++) {
		const char *name = index->names.names[i];
		int order = -1;

		while (at < former->names.count &&
		       (order = strcmp(former->names.names[at], name)) < 0)
			at++;
		rc = fill(root_fd, name,
			  at < former->names.count && order == 0 ? &former->folders[at] : NULL,
			  &index->folders[i]);
	}
	if (root_fd >= 0)
		(void)close(root_fd);
	return rc;
}

int kvc_index_refresh(struct kvc_files *files, uint64_t age_ns)
{
	const uint64_t now_ns = kvc_now_ns();
	struct kvc_index *index = &files->index, fresh = { .made_ns = now_ns };
	int rc;

	if (index->made_ns && now_ns - index->made_ns < age_ns)
		return 0;
	rc = kvc_cleaner_folders(files, &fresh.names);
	if (!rc) {
		fresh.folders = calloc(fresh.names.count + 1, sizeof(*fresh.folders));
		rc = fresh.folders ? 0 : -ENOMEM;
	}
	if (!rc && kvc_cleaner_is_nixl(files))
		memset(fresh.folders[0].bits, 0xff, sizeof(fresh.folders[0].bits));
	else if (!rc)
		rc = fill_all(files, index, &fresh);
	if (rc) {
		kvc_index_drop(&fresh);
		return rc;
	}
	kvc_index_drop(index);
	*index = fresh;
	return 0;
}
