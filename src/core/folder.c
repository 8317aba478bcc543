/* SPDX-License-Identifier: Apache-2.0 */
#include "core/folder.h"

#include "core/log.h"
#include "core/names.h"
#include "core/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_lower_hex(const char *text, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
			return false;
	return true;
}

bool kvc_folder_is_namespace(const char *name)
{
	const size_t length = strlen(name);

	return length >= 18 && name[0] != '.' && !strchr(name, '/') && name[length - 17] == '-' &&
	       is_lower_hex(name + length - 16, 16);
}

uint64_t kvc_folder_ns_hash(const char *name)
{
	return kvc_folder_is_namespace(name) ? strtoull(name + strlen(name) - 16, NULL, 16) : 0;
}

bool kvc_folder_is_hash(const char *name)
{
	return is_lower_hex(name, 2);
}

static unsigned digit(char hex)
{
	return hex <= '9' ? (unsigned)(hex - '0') : (unsigned)(hex - 'a' + 10);
}

unsigned kvc_folder_number(const char *name)
{
	return kvc_folder_is_hash(name) ? digit(name[0]) * 16 + digit(name[1]) : 0;
}

unsigned kvc_folder_of_path(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash && slash - path >= 2 ? kvc_folder_number(slash - 2) : 0;
}

bool kvc_folder_is_inside(const char *path)
{
	for (const char *at = path;; at++) {
		const size_t length = strcspn(at, "/");

		if (length == 0 || (length == 1 && at[0] == '.') ||
		    (length == 2 && at[0] == '.' && at[1] == '.'))
			return false;
		at += length;
		if (!*at)
			return true;
	}
}

/* ---------------------------------------------------------------- each */

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All at once: fn may take long, and may remove some of them. */
static int read_names(const char *path, bool (*is_ours)(const char *name), struct kvc_names *out)
{
	const struct dirent *entry;
	DIR *dir = opendir(path);
	int rc = 0;

	/* A root that was taken away has no folders. */
	if (!dir)
		return errno == ENOENT ? 0 : kvc_fail(-errno, "%s: %s", path, strerror(errno));
	while (!rc) {
		errno = 0;
		entry = readdir(dir);
		if (!entry) {
			rc = errno ? kvc_fail(-errno, "%s: %s", path, strerror(errno)) : 0;
			break;
		}
		if ((entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN) &&
		    is_ours(entry->d_name))
			rc = kvc_names_add(out, entry->d_name);
	}
	(void)closedir(dir);
	return rc;
}

int kvc_folder_each(const struct kvc_root *root, bool (*is_ours)(const char *name),
		    int (*fn)(void *context, const char *name), void *context)
{
	struct kvc_names names = { .count = 0 };
	int rc = read_names(root->attributes.local_path, is_ours, &names);

	if (!rc && names.count > 1)
		qsort(names.names, names.count, sizeof(*names.names), compare);
	for (size_t i = 0; i < names.count && !rc; i++)
		rc = fn(context, names.names[i]);
	kvc_names_free(&names);
	return rc;
}

/* ---------------------------------------------------------------- prune */

static int open_folder(int parent_fd, const char *name)
{
	return openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void kvc_folder_prune(const struct kvc_root *root, const char *id)
{
	static const char digits[] = "0123456789abcdef";
	int root_fd, fd;

	if (!root->attributes.local_path || !kvc_folder_is_namespace(id))
		return;
	root_fd = open(root->attributes.local_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root_fd < 0)
		return;
	fd = open_folder(root_fd, id);
	if (fd < 0)
		goto close_root;
	/* What is not empty stays: that is what rmdir is for. Writers make the folder again. */
	for (unsigned h = 0; h < 256; h++) {
		const char name[3] = { digits[h >> 4], digits[h & 15], '\0' };

		(void)unlinkat(fd, name, AT_REMOVEDIR);
	}
	(void)close(fd);
	(void)unlinkat(root_fd, id, AT_REMOVEDIR);
close_root:
	(void)close(root_fd);
}
