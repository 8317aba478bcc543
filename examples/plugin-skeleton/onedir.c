/* SPDX-License-Identifier: Apache-2.0 */
/*
 * onedir - a small, complete storage plugin to begin another one with: one folder, one file per
 * object, plain pread() and pwrite().
 *
 * An operation runs inside poll(), in the caller's thread. That is the simplest shape that keeps
 * the contract (submit() never waits, cancel() finds only what has not begun), but it moves one
 * object at a time. A faster plugin starts its I/O in submit() and collects it in poll().
 */
#include <kvcellar/plugin.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAX_DEPTH  256u
#define MAX_RANGES 1024u

/* Temporary files begin with a dot; names of objects never do, see name_encode(). */
#define TEMP_PREFIX ".temp-"

struct kvc_plugin_backend {
	const struct kvc_host *host;
	mode_t file_mode;
	mode_t folder_mode;
	bool sync;
	atomic_uint roots;
	atomic_uint temp_number;
};

struct kvc_plugin_root {
	struct kvc_plugin_backend *backend;
	int fd;
	bool read_only;
	char *location;
};

struct entry {
	const struct kvc_descriptor *descriptor;
	bool cancelled;
};

/* A ring of descriptors in the order of their acceptance. */
struct kvc_plugin_queue {
	struct kvc_plugin_root *root;
	uint32_t depth;
	uint32_t first;
	uint32_t count;
	struct entry ring[];
};

/* ---------------------------------------------------------------- options and reasons */

/* The library checks the settings against this table, and shows it in its help. */
static const struct kvc_option options[] = {
	{
		.name = "sync",
		.type = "boolean",
		.unit = "",
		.default_value = "false",
		.range = "true | false",
		.help = "Write each object to stable storage before it becomes visible.",
	},
};

/* Why the call that is about to fail fails. Shown by `kvcellar info` and in error texts. */
__attribute__((format(printf, 3, 4))) static int refuse(const struct kvc_plugin_backend *backend,
							int error, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	backend->host->reason(backend->host->context, 0, text);
	return error;
}

static const char *setting(const struct kvc_backend_params *params, const char *name)
{
	for (size_t i = 0; i < params->setting_count; i++)
		if (strcmp(params->settings[i].name, name) == 0)
			return params->settings[i].value;
	return "";
}

/* ---------------------------------------------------------------- backend and root */

static int onedir_backend_open(const struct kvc_backend_params *params,
			       struct kvc_plugin_backend **out)
{
	struct kvc_plugin_backend *backend = calloc(1, sizeof(*backend));

	if (!backend)
		return -ENOMEM;
	/* params and its texts are valid during this call only; the host until close. */
	backend->host = params->host;
	backend->file_mode = params->file_mode;
	backend->folder_mode = params->folder_mode;
	backend->sync = strcmp(setting(params, "sync"), "true") == 0;
	*out = backend;
	return 0;
}

static int onedir_backend_close(struct kvc_plugin_backend *backend)
{
	if (!backend)
		return 0;
	if (atomic_load(&backend->roots) != 0)
		return refuse(backend, -EBUSY, "a root is still open");
	free(backend);
	return 0;
}

static int root_folder(struct kvc_plugin_root *root, const struct kvc_root_params *params)
{
	const struct kvc_plugin_backend *backend = root->backend;
	int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	struct stat status;
	int rc;

	if ((params->flags & KVC_ROOT_CREATE) && !root->read_only &&
	    mkdir(params->location, backend->folder_mode) < 0 && errno != EEXIST) {
		rc = -errno;
		return refuse(backend, rc, "%s: %s", params->location, strerror(-rc));
	}
	if (params->flags & KVC_ROOT_OWNED)
		flags |= O_NOFOLLOW;
	root->fd = open(params->location, flags);
	if (root->fd < 0) {
		rc = errno == ELOOP ? -EPERM : -errno;
		return refuse(backend, rc, "%s: %s", params->location, strerror(-rc));
	}
	if (!(params->flags & KVC_ROOT_OWNED))
		return 0;
	if (fstat(root->fd, &status) == 0 && status.st_uid == geteuid())
		return 0;
	(void)close(root->fd);
	return refuse(backend, -EPERM, "%s belongs to another user", params->location);
}

static int onedir_root_open(struct kvc_plugin_backend *backend,
			    const struct kvc_root_params *params, struct kvc_plugin_root **out)
{
	struct kvc_plugin_root *root = calloc(1, sizeof(*root));
	int rc = -ENOMEM;

	if (!root)
		return rc;
	root->backend = backend;
	root->read_only = params->flags & KVC_ROOT_READ_ONLY;
	root->location = strdup(params->location);
	if (!root->location)
		goto free_root;
	rc = root_folder(root, params);
	if (rc < 0)
		goto free_location;
	atomic_fetch_add(&backend->roots, 1);
	*out = root;
	return 0;

free_location:
	free(root->location);
free_root:
	free(root);
	return rc;
}

static int onedir_root_close(struct kvc_plugin_root *root)
{
	if (!root)
		return 0;
	(void)close(root->fd);
	atomic_fetch_sub(&root->backend->roots, 1);
	free(root->location);
	free(root);
	return 0;
}

static int onedir_root_query(struct kvc_plugin_root *root, struct kvc_attributes *out)
{
	struct kvc_attributes attributes = {
		/* An older library knows fewer fields. */
		.size = out->size < sizeof(attributes) ? out->size : sizeof(attributes),
		.max_object_bytes = UINT64_C(1) << 40,
		.max_ranges = MAX_RANGES,
		.max_depth = MAX_DEPTH,
		.alignment = 1,
		.memory_kinds = 1u << KVC_MEMORY_HOST,
		/* LOCAL: meant for local disks, where an I/O ends in bounded time. */
		.flags = KVC_ATTRIBUTE_WHOLE | KVC_ATTRIBUTE_LISTS | KVC_ATTRIBUTE_LOCAL |
			 KVC_ATTRIBUTE_IF_ABSENT | KVC_ATTRIBUTE_REMOVES | KVC_ATTRIBUTE_SIZES,
		.file_system = "folder",
		.local_path = root->location,
	};

	if (root->read_only)
		attributes.flags |= KVC_ATTRIBUTE_READ_ONLY;
	memcpy(out, &attributes, attributes.size);
	return 0;
}

/* ---------------------------------------------------------------- names */

/*
 * The folder is flat, so '/' has to be written in another way; '%' is what announces that. A
 * leading dot is for temporary files, and for what the library keeps under local_path.
 */
static int name_encode(const struct kvc_descriptor *descriptor, char out[NAME_MAX + 1])
{
	size_t used = 0;

	for (uint32_t i = 0; i < descriptor->name_bytes; i++) {
		char c = descriptor->name[i];
		bool plain = c != '/' && c != '%' && !(c == '.' && i == 0);

		if (used + (plain ? 1 : 3) > NAME_MAX)
			return -ENAMETOOLONG;
		if (plain)
			out[used++] = c;
		else
			used += (size_t)snprintf(out + used, 4, "%%%02X", (unsigned char)c);
	}
	out[used] = '\0';
	return used != 0 ? 0 : -EINVAL;
}

/* The other way; false for what is no object of ours. */
static bool name_decode(const char *name, char out[NAME_MAX + 1])
{
	size_t used = 0;

	if (name[0] == '.')
		return false;
	for (; *name != '\0'; name++) {
		if (*name != '%')
			out[used++] = *name;
		else if (strncmp(name, "%2F", 3) == 0)
			out[used++] = '/';
		else if (strncmp(name, "%25", 3) == 0)
			out[used++] = '%';
		else if (strncmp(name, "%2E", 3) == 0)
			out[used++] = '.';
		else
			return false;
		if (*name == '%')
			name += 2;
	}
	out[used] = '\0';
	return true;
}

static void temp_name(struct kvc_plugin_backend *backend, char out[NAME_MAX + 1])
{
	(void)snprintf(out, NAME_MAX + 1, TEMP_PREFIX "%ld-%u", (long)getpid(),
		       atomic_fetch_add(&backend->temp_number, 1));
}

/* What stays the same while a file is only renamed and linked: that is what remove() needs. */
static void version_of(const struct stat *status, uint64_t out[2])
{
	out[0] = (uint64_t)status->st_ino;
	out[1] = (uint64_t)status->st_mtim.tv_sec * 1000000000u + (uint64_t)status->st_mtim.tv_nsec;
}

/* ---------------------------------------------------------------- operations */

/* Moves the whole range, or up to the end of the file. Returns the bytes. */
static int64_t range_move(int fd, const struct kvc_range *range, uint64_t offset, bool writes)
{
	uint64_t done = 0;

	while (done < range->bytes) {
		char *at = (char *)range->addr + done;
		size_t left = (size_t)(range->bytes - done);
		off_t where = (off_t)(offset + done);
		ssize_t moved = writes ? pwrite(fd, at, left, where) : pread(fd, at, left, where);

		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0)
			return -errno;
		if (moved == 0)
			break;
		done += (uint64_t)moved;
	}
	return (int64_t)done;
}

static int64_t ranges_move(int fd, const struct kvc_descriptor *descriptor, bool writes)
{
	uint64_t done = 0;

	for (uint32_t i = 0; i < descriptor->range_count; i++) {
		int64_t moved =
			range_move(fd, &descriptor->ranges[i], descriptor->offset + done, writes);

		if (moved < 0)
			return moved;
		done += (uint64_t)moved;
		if ((uint64_t)moved < descriptor->ranges[i].bytes)
			break;
	}
	return (int64_t)done;
}

/* One open file is one version of the object, whatever happens to its name meanwhile. */
static int64_t object_read(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
			   const char *name, struct kvc_completion *out)
{
	int fd = openat(root->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct stat status;
	int64_t result;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) < 0) {
		result = -errno;
		goto close;
	}
	out->object_bytes = (uint64_t)status.st_size;
	version_of(&status, out->version);
	result = ranges_move(fd, descriptor, false);
close:
	(void)close(fd);
	return result;
}

static int64_t object_stat(struct kvc_plugin_root *root, const char *name,
			   struct kvc_completion *out)
{
	struct stat status;

	if (fstatat(root->fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	out->object_bytes = (uint64_t)status.st_size;
	version_of(&status, out->version);
	return 0;
}

/* Gives the finished file its name in one step. The temporary name is gone afterwards. */
static int publish(struct kvc_plugin_root *root, const char *temp, const char *name, bool if_absent)
{
	int rc = 0;

	if (!if_absent)
		return renameat(root->fd, temp, root->fd, name) < 0 ? -errno : 0;
	if (linkat(root->fd, temp, root->fd, name, 0) < 0)
		rc = -errno;
	if (rc == 0)
		(void)unlinkat(root->fd, temp, 0);
	return rc;
}

static int64_t object_write(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
			    const char *name, struct kvc_completion *out)
{
	bool durable = root->backend->sync || (descriptor->flags & KVC_DESCRIPTOR_DURABLE);
	char temp[NAME_MAX + 1];
	struct stat status;
	int64_t result;
	int rc = 0;
	int fd;

	temp_name(root->backend, temp);
	fd = openat(root->fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    root->backend->file_mode);
	if (fd < 0)
		return -errno;
	result = ranges_move(fd, descriptor, true);
	if (result >= 0 && ((durable && fsync(fd) < 0) || fstat(fd, &status) < 0))
		rc = -errno;
	/* Some file systems tell only here that the space was not there. */
	if (close(fd) < 0 && rc == 0 && result >= 0)
		rc = -errno;
	if (result >= 0 && rc == 0)
		rc = publish(root, temp, name, descriptor->flags & KVC_DESCRIPTOR_IF_ABSENT);
	if (result >= 0 && rc == 0 && durable && fsync(root->fd) < 0)
		return -errno;
	if (result < 0 || rc < 0)
		(void)unlinkat(root->fd, temp, 0);
	if (rc == -EEXIST)
		(void)object_stat(root, name, out);
	if (result < 0 || rc < 0)
		return result < 0 ? result : rc;
	version_of(&status, out->version);
	return result;
}

/*
 * Only that version: the file is taken out of the way first, and looked at where nobody else can
 * replace it. The wrong one goes back, unless a newer one has come meanwhile.
 */
static int64_t object_remove(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
			     const char *name)
{
	const uint64_t *wanted = descriptor->if_version;
	char temp[NAME_MAX + 1];
	uint64_t version[2];
	struct stat status;
	int64_t result = 0;

	if (wanted[0] == 0 && wanted[1] == 0)
		return unlinkat(root->fd, name, 0) < 0 ? -errno : 0;
	temp_name(root->backend, temp);
	if (renameat(root->fd, name, root->fd, temp) < 0)
		return -errno;
	if (fstatat(root->fd, temp, &status, AT_SYMLINK_NOFOLLOW) < 0)
		result = -errno;
	else
		version_of(&status, version);
	if (result == 0 && memcmp(version, wanted, sizeof(version)) != 0)
		result = -ESTALE;
	if (result < 0 && linkat(root->fd, temp, root->fd, name, 0) < 0 && errno != EEXIST)
		return -errno; /* it stays under its temporary name rather than being lost */
	(void)unlinkat(root->fd, temp, 0);
	return result;
}

static int64_t execute(struct kvc_plugin_root *root, const struct kvc_descriptor *descriptor,
		       struct kvc_completion *out)
{
	bool changes = descriptor->op == KVC_OP_WRITE || descriptor->op == KVC_OP_REMOVE;
	char name[NAME_MAX + 1];
	int rc;

	if (descriptor->container || descriptor->range_count > MAX_RANGES)
		return -EINVAL;
	if (changes && root->read_only)
		return -EROFS;
	rc = name_encode(descriptor, name);
	if (rc < 0)
		return rc;
	switch (descriptor->op) {
	case KVC_OP_READ:
		return object_read(root, descriptor, name, out);
	case KVC_OP_WRITE:
		return object_write(root, descriptor, name, out);
	case KVC_OP_STAT:
		return object_stat(root, name, out);
	case KVC_OP_REMOVE:
		return object_remove(root, descriptor, name);
	default:
		return -EINVAL;
	}
}

/* ---------------------------------------------------------------- queue */

static int onedir_queue_create(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
			       struct kvc_plugin_queue **out)
{
	uint32_t depth = params->depth < MAX_DEPTH ? params->depth : MAX_DEPTH;
	struct kvc_plugin_queue *queue;

	if (depth == 0)
		depth = 1;
	queue = calloc(1, sizeof(*queue) + depth * sizeof(queue->ring[0]));
	if (!queue)
		return -ENOMEM;
	queue->root = root;
	queue->depth = depth;
	*out = queue;
	return 0;
}

static int onedir_queue_destroy(struct kvc_plugin_queue *queue)
{
	if (!queue)
		return 0;
	if (queue->count != 0)
		return -EBUSY;
	free(queue);
	return 0;
}

static struct entry *entry_at(struct kvc_plugin_queue *queue, uint32_t n)
{
	return &queue->ring[(queue->first + n) % queue->depth];
}

static int onedir_submit(struct kvc_plugin_queue *queue,
			 const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	uint32_t room = queue->depth - queue->count;

	if (count == 0)
		return 0;
	if (room == 0)
		return -EAGAIN;
	if (count > room)
		count = room;
	for (uint32_t i = 0; i < count; i++)
		*entry_at(queue, queue->count + i) = (struct entry){ .descriptor = descriptors[i] };
	queue->count += count;
	return (int)count;
}

/* One operation each time, so that a caller who has a deadline can look at the clock. */
static int onedir_poll(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		       uint64_t wait_ns)
{
	struct entry entry;

	(void)wait_ns; /* there is never anything to wait for */
	if (queue->count == 0 || max == 0)
		return 0;
	entry = *entry_at(queue, 0);
	queue->first = (queue->first + 1) % queue->depth;
	queue->count--;
	*out = (struct kvc_completion){ .cookie = entry.descriptor->cookie };
	out->result = entry.cancelled ? -ECANCELED : execute(queue->root, entry.descriptor, out);
	return 1;
}

/* Between two calls nothing is under way, so all that is named ends without having moved a byte. */
static int onedir_cancel(struct kvc_plugin_queue *queue,
			 const struct kvc_descriptor *const *descriptors, uint32_t count)
{
	for (uint32_t n = 0; n < queue->count; n++) {
		struct entry *entry = entry_at(queue, n);

		for (uint32_t i = 0; i < count; i++)
			if (descriptors[i] == entry->descriptor)
				entry->cancelled = true;
		if (!descriptors)
			entry->cancelled = true;
	}
	return 0;
}

/* ---------------------------------------------------------------- listing */

static int list_one(struct kvc_plugin_root *root, const char *file, const char *prefix,
		    kvc_list_fn fn, void *context)
{
	char name[NAME_MAX + 1];
	struct kvc_list_entry entry = { .size = sizeof(entry), .name = name };
	struct stat status;

	if (!name_decode(file, name) || strncmp(name, prefix, strlen(prefix)) != 0)
		return 0;
	/* It may have been removed since the folder was read. */
	if (fstatat(root->fd, file, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(status.st_mode))
		return 0;
	entry.name_bytes = (uint32_t)strlen(name);
	entry.object_bytes = (uint64_t)status.st_size;
	entry.allocated_bytes = (uint64_t)status.st_blocks * 512;
	entry.modified_ns =
		(int64_t)status.st_mtim.tv_sec * 1000000000 + (int64_t)status.st_mtim.tv_nsec;
	entry.accessed_ns =
		(int64_t)status.st_atim.tv_sec * 1000000000 + (int64_t)status.st_atim.tv_nsec;
	version_of(&status, entry.version);
	return fn(context, &entry);
}

/* A stream of its own: the position of root->fd is shared by all threads. */
static DIR *folder_open(const struct kvc_plugin_root *root)
{
	int fd = openat(root->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (!stream && fd >= 0)
		(void)close(fd);
	return stream;
}

static int onedir_list(struct kvc_plugin_root *root, const char *prefix, kvc_list_fn fn,
		       void *context)
{
	DIR *stream = folder_open(root);
	const struct dirent *file;
	int rc = 0;

	if (!stream)
		return -errno;
	while (rc == 0 && (file = readdir(stream)) != NULL)
		rc = list_one(root, file->d_name, prefix, fn, context);
	(void)closedir(stream);
	return rc;
}

static int onedir_usage(struct kvc_plugin_root *root, struct kvc_usage *out)
{
	struct kvc_usage usage = { .size = out->size < sizeof(usage) ? out->size : sizeof(usage) };
	struct statvfs space;
	struct stat status;

	if (fstatvfs(root->fd, &space) < 0 || fstat(root->fd, &status) < 0)
		return -errno;
	usage.total_bytes = (uint64_t)space.f_blocks * space.f_frsize;
	usage.free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
	usage.device = (uint64_t)status.st_dev;
	memcpy(out, &usage, usage.size);
	return 0;
}

/* The process that made a temporary file stands in its name; a dead one left it behind. Good enough
 * where one host uses the folder; several hosts need a lock that ends with its holder. */
static bool is_orphan(const char *file)
{
	char *end;
	long pid;

	if (strncmp(file, TEMP_PREFIX, strlen(TEMP_PREFIX)) != 0)
		return false;
	pid = strtol(file + strlen(TEMP_PREFIX), &end, 10);
	return *end == '-' && pid > 0 && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

static int64_t onedir_reclaim(struct kvc_plugin_root *root)
{
	DIR *stream = folder_open(root);
	const struct dirent *file;
	int64_t count = 0;

	if (!stream)
		return -errno;
	while (!root->read_only && (file = readdir(stream)) != NULL)
		if (is_orphan(file->d_name) && unlinkat(root->fd, file->d_name, 0) == 0)
			count++;
	(void)closedir(stream);
	return count;
}

/* ---------------------------------------------------------------- the one symbol */

/* Slots that are left out (memory, containers, event_fd) are optional. */
static const struct kvc_plugin onedir = {
	.abi = KVC_PLUGIN_ABI,
	.size = sizeof(struct kvc_plugin),
	.name = "onedir",
	.version = "1.0",
	.summary = "one file per object in one folder",
	.options = options,
	.option_count = sizeof(options) / sizeof(options[0]),
	.option_bytes = sizeof(struct kvc_option),
	.backend_open = onedir_backend_open,
	.backend_close = onedir_backend_close,
	.root_open = onedir_root_open,
	.root_close = onedir_root_close,
	.root_query = onedir_root_query,
	.list = onedir_list,
	.usage = onedir_usage,
	.reclaim = onedir_reclaim,
	.queue_create = onedir_queue_create,
	.queue_destroy = onedir_queue_destroy,
	.submit = onedir_submit,
	.poll = onedir_poll,
	.cancel = onedir_cancel,
};

const struct kvc_plugin *kvc_plugin_entry(void)
{
	return &onedir;
}
