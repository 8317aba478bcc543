/* SPDX-License-Identifier: Apache-2.0 */
#include "core/pin.h"

#include "core/folder.h"
#include "core/format.h"
#include "core/log.h"
#include "core/packed.h"
#include "core/store.h"
#include "core/usage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER KVC_HOUSEKEEPING_FOLDER "/pins"

/* ---------------------------------------------------------------- what is known */

bool kvc_pin_has(const struct kvc_root *root, uint64_t ns_hash)
{
	for (unsigned i = 0; i < atomic_load_explicit(&root->pin_count, memory_order_acquire); i++)
		if (atomic_load_explicit(&root->pins[i], memory_order_relaxed) == ns_hash)
			return ns_hash != 0;
	return false;
}

unsigned kvc_pin_count(const struct kvc_root *root)
{
	unsigned count = 0;

	for (unsigned i = 0; i < atomic_load_explicit(&root->pin_count, memory_order_acquire); i++)
		count += atomic_load_explicit(&root->pins[i], memory_order_relaxed) != 0;
	return count;
}

uint64_t kvc_pin_bytes(struct kvc_root *root)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	uint64_t sum = 0;

	for (unsigned i = 0; i < atomic_load_explicit(&root->pin_count, memory_order_acquire);
	     i++) {
		const uint64_t pin = atomic_load_explicit(&root->pins[i], memory_order_relaxed);
		uint64_t bytes = 0;

		if (pin == 0)
			continue;
		if (kvc_usage_namespace(root->usage, pin, &bytes, NULL) == 0)
			sum += bytes;
		if (packed)
			sum += kvc_packed_allocated(packed, pin);
	}
	return sum;
}

/* Each keeps its place: who looks meanwhile misses none that stays. */
static bool note(struct kvc_root *root, uint64_t ns_hash)
{
	const unsigned count = atomic_load(&root->pin_count);
	unsigned at = count;

	for (unsigned i = count; i-- > 0;) {
		if (atomic_load(&root->pins[i]) == ns_hash)
			return true;
		if (atomic_load(&root->pins[i]) == 0)
			at = i;
	}
	if (at == KVC_PINS_MAX)
		return false;
	atomic_store(&root->pins[at], ns_hash);
	if (at == count)
		atomic_store_explicit(&root->pin_count, count + 1, memory_order_release);
	return true;
}

static void forget(struct kvc_root *root, uint64_t ns_hash)
{
	for (unsigned i = 0; i < atomic_load(&root->pin_count); i++)
		if (atomic_load(&root->pins[i]) == ns_hash)
			atomic_store(&root->pins[i], 0);
}

/* ---------------------------------------------------------------- the folder */

static int path_of(const struct kvc_root *root, const char *id, char *out, size_t bytes)
{
	const int length = snprintf(out, bytes, "%s/" FOLDER "%s%s", root->attributes.local_path,
				    *id ? "/" : "", id);

	return length > 0 && (size_t)length < bytes ? 0 : -ENAMETOOLONG;
}

/* The hashes that are pinned: their number, or a negative errno. */
static int read_folder(const struct kvc_root *root, uint64_t found[KVC_PINS_MAX])
{
	char path[PATH_MAX];
	struct dirent *entry;
	int count = 0;
	DIR *folder;

	if (path_of(root, "", path, sizeof(path)) < 0)
		return -ENAMETOOLONG;
	folder = opendir(path);
	if (!folder)
		return errno == ENOENT ? 0 : -errno;
	while ((entry = readdir(folder)) != NULL && count < (int)KVC_PINS_MAX)
		if (kvc_folder_is_namespace(entry->d_name))
			found[count++] = kvc_folder_ns_hash(entry->d_name);
	(void)closedir(folder);
	return count;
}

void kvc_pin_look(struct kvc_root *root)
{
	uint64_t found[KVC_PINS_MAX];
	int count;

	if (!root->attributes.local_path)
		return;
	pthread_mutex_lock(&root->pin_lock);
	count = read_folder(root, found);
	/* What cannot be read just now may still be pinned. */
	for (unsigned i = 0; count >= 0 && i < atomic_load(&root->pin_count); i++) {
		const uint64_t pin = atomic_load(&root->pins[i]);
		bool stays = false;

		for (int n = 0; n < count; n++)
			stays |= found[n] == pin;
		if (!stays)
			atomic_store(&root->pins[i], 0);
	}
	for (int n = 0; n < count; n++)
		(void)note(root, found[n]);
	pthread_mutex_unlock(&root->pin_lock);
}

static int add_file(const struct kvc_root *root, const char *path)
{
	const mode_t mode = root->store->settings->file_mode;
	char folder[PATH_MAX];
	int fd;

	if (path_of(root, "", folder, sizeof(folder)) < 0)
		return -ENAMETOOLONG;
	if (mkdir(folder, root->store->settings->folder_mode) != 0 && errno != EEXIST)
		return -errno;
	fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	(void)fchmod(fd, mode);
	close(fd);
	return 0;
}

int kvc_pin_set(struct kvc_root *root, const char *id, bool on)
{
	char path[PATH_MAX];
	int rc;

	if (root->store->settings->naming == KVC_NAMING_NIXL)
		return kvc_fail(-ENOTSUP,
				"%s: nothing can be pinned in naming = \"nixl\", which "
				"has no namespaces of its own",
				root->location);
	if (!kvc_folder_is_namespace(id) || strlen(id) > NAME_MAX)
		return kvc_fail(-EINVAL, "%.80s is no namespace id", id);
	if (!root->attributes.local_path)
		return kvc_fail(-ENOTSUP, "%s: nothing is evicted there, and nothing can be pinned",
				root->location);
	if (root->read_only)
		return kvc_fail(-EROFS, "%s: read-only", root->location);
	if (path_of(root, id, path, sizeof(path)) < 0)
		return kvc_fail(-ENAMETOOLONG, "%s: its path is too long", root->location);
	pthread_mutex_lock(&root->pin_lock);
	if (on && !note(root, kvc_folder_ns_hash(id))) {
		rc = -ENOSPC;
	} else if (on) {
		rc = add_file(root, path);
		if (rc)
			forget(root, kvc_folder_ns_hash(id));
	} else {
		rc = unlink(path) == 0 || errno == ENOENT ? 0 : -errno;
		if (!rc)
			forget(root, kvc_folder_ns_hash(id));
	}
	pthread_mutex_unlock(&root->pin_lock);
	if (rc == -ENOSPC && on)
		return kvc_fail(rc, "%s: %u namespaces are pinned there, or its disk is full",
				root->location, KVC_PINS_MAX);
	return rc ? kvc_fail(rc, "%s: %s", path, strerror(-rc)) : 0;
}
