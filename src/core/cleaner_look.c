/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cleaner_look.h"

#include "core/clock.h"
#include "core/folder.h"
#include "core/format.h"
#include "core/hash.h"
#include "core/pin.h"
#include "core/route.h"
#include "core/tenant.h"
#include "core/trailer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int kvc_cleaner_open_space(const struct kvc_files *files, const char *folder)
{
	static const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
	const int fd = open(files->root->attributes.local_path, flags);
	int space;

	if (fd < 0)
		return -errno;
	if (!*folder)
		return fd;
	space = openat(fd, folder, flags | O_NOFOLLOW);
	if (space < 0)
		space = -errno;
	(void)close(fd);
	return space;
}

int kvc_cleaner_open_folder(const struct kvc_files *files, const char *folder, const char *hash)
{
	const int space = kvc_cleaner_open_space(files, folder);
	int fd;

	if (space < 0)
		return space;
	fd = openat(space, hash, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		fd = -errno;
	(void)close(space);
	return fd;
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

static int keep_name(struct kvc_look *look, const char *name, uint32_t *out)
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

static int keep_seen(struct kvc_look *look, const struct kvc_seen *seen)
{
	if (look->count == look->room) {
		const size_t room = 2 * look->room + 1024;
		struct kvc_seen *more = realloc(look->seen, room * sizeof(*more));

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
static bool is_ours(const struct kvc_look *look, int folder_fd, const char *folder, uint32_t hash,
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

uint64_t kvc_cleaner_stamp_of_time(int64_t modified_ns, int64_t now_ns)
{
	const int64_t ns = modified_ns > now_ns ? now_ns : modified_ns;

	return ns > 0 ? (uint64_t)ns & ~(uint64_t)KVC_STAMP_NOTES : 0;
}

/* Its stamp, by the table or by its times. False: it is no file, or went away. */
static bool fill_seen(const struct kvc_look *look, int folder_fd, const char *name,
		      struct kvc_seen *seen)
{
	struct kvc_stamps *stamps = look->files->stamps;
	struct stat st;

	seen->noted = kvc_files_stamp(look->files, seen->g, &seen->stamp);
	if (seen->noted && !look->sizes)
		return true;
	if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
		return false;
	seen->bytes = (uint64_t)st.st_size;
	seen->modified_ns = kvc_ns_of(&st.st_mtim);
	if (seen->noted)
		return true;
	if (stamps)
		seen->stamp = kvc_stamps_of_file(stamps, seen->g, kvc_ns_of(&st.st_mtim),
						 kvc_ns_of(&st.st_ctim), look->now_ns);
	else
		seen->stamp = kvc_cleaner_stamp_of_time(seen->modified_ns, look->now_ns);
	/* One from the future has an entry now. */
	if (stamps && seen->modified_ns > look->now_ns)
		seen->noted = kvc_files_stamp(look->files, seen->g, &seen->stamp);
	return true;
}

static int look_at(struct kvc_look *look, int folder_fd, uint32_t folder, uint32_t hash,
		   const char *name)
{
	struct kvc_seen seen = { .folder = folder, .hash = hash };
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
static bool may_go(const struct kvc_look *look, const char *folder)
{
	const struct kvc_root *root = look->files->root;
	const uint64_t ns_hash = kvc_folder_ns_hash(folder);

	if (!look->pool || !*folder)
		return true;
	return !kvc_pin_has(root, ns_hash) &&
	       (look->pool->ns_hash == 0 || look->pool->ns_hash == ns_hash ||
		kvc_tenant_is_same(root, look->pool->ns_hash, ns_hash));
}

static int look_into(struct kvc_look *look, uint32_t folder, uint32_t hash)
{
	const struct dirent *entry;
	char text[3];
	int fd, rc = 0;
	DIR *dir;

	kvc_route_folder(hash, text);
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

int kvc_look_at_hash(struct kvc_look *look, uint32_t hash)
{
	int rc = 0;

	for (uint32_t f = 0; f < look->index->names.count && !rc; f++)
		if (kvc_index_has(look->index, f, hash) &&
		    may_go(look, look->index->names.names[f]))
			rc = look_into(look, f, hash);
	return rc;
}

int kvc_look_begin(struct kvc_look *look, struct kvc_files *files, const struct kvc_pool *pool,
		   uint64_t age_ns)
{
	const uint64_t begun_ns = kvc_now_ns();
	int rc;

	*look = (struct kvc_look){
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

void kvc_look_end(struct kvc_look *look)
{
	free(look->seen);
	free(look->names);
}
