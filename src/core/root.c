/* SPDX-License-Identifier: Apache-2.0 */
#include "core/root.h"

#include "core/cleaner.h"
#include "core/clock.h"
#include "core/format.h"
#include "core/ghost.h"
#include "core/order.h"
#include "core/packed.h"
#include "core/pin.h"
#include "core/queue.h"
#include "core/rootid.h"
#include "core/stage.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/tenant.h"
#include "core/usage.h"
#include "core/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define IDENTITY_NAME KVC_HOUSEKEEPING_FOLDER "/root.json"
#define CONTROL_NS    (5 * UINT64_C(1000000000)) /* for one housekeeping I/O */
#define QUIET_MS      UINT64_C(600000)		 /* without a stall, and a root is trusted again */
#define CANCEL_NS     (UINT64_C(1000000000))	 /* for it to end once it is cancelled */
#define TEXT_BYTES    KVC_ROOTID_BYTES_MAX
#define FILES_PART    16u /* of the capacity of a packed root, for single objects */

/* ---------------------------------------------------------------- one descriptor at a time */

static void pause_ns(uint64_t ns)
{
	const struct timespec pause = kvc_timespec(ns);

	(void)nanosleep(&pause, NULL);
}

/* Polls until the one descriptor is done. At the deadline it is cancelled; what still does not come
 * back is left alone with its queue (-EBUSY): its memory is not the caller's. */
static int wait_one(struct kvc_queue *queue, uint64_t deadline_ns, struct kvc_completion *out)
{
	const struct kvc_plugin *ops = &queue->root->backend->module->ops;
	bool cancelled = false;

	for (;;) {
		const int count = ops->poll(queue->handle, out, 1, 100 * UINT64_C(1000000));

		if (count > 0)
			return 0;
		if (count < 0) {
			queue->broken = true;
			pause_ns(1000000);
		}
		if (kvc_now_ns() < deadline_ns && (count == 0 || cancelled))
			continue;
		if (cancelled)
			return -EBUSY;
		cancelled = true;
		(void)ops->cancel(queue->handle, NULL, 0);
		deadline_ns = kvc_now_ns() + CANCEL_NS;
	}
}

static int submit_one(struct kvc_queue *queue, uint64_t deadline_ns)
{
	const struct kvc_plugin *ops = &queue->root->backend->module->ops;
	const struct kvc_descriptor *descriptor = &queue->free->descriptor;
	int accepted;

	for (;;) {
		accepted = ops->submit(queue->handle, &descriptor, 1);
		if (accepted > 0)
			return 0;
		if (accepted < 0 && accepted != -EAGAIN) {
			queue->broken = true;
			return accepted;
		}
		if (kvc_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
		pause_ns(50000);
	}
}

/* One descriptor, in the calling thread. */
struct one {
	uint32_t op;
	uint32_t flags;
	const char *name;
	struct kvc_plugin_container *container; /* NULL: the object `name` */
	uint64_t offset;
	void *buffer;
	uint64_t bytes;
	const uint64_t *version;
	uint64_t deadline_ns; /* 0: what housekeeping has */
};

/* The slot's memory is used for the data, so that nothing of the caller's is ever left behind. */
static int64_t run_one(struct kvc_root *root, const struct one *one, struct kvc_completion *out)
{
	const uint64_t deadline_ns = one->deadline_ns ? one->deadline_ns :
							kvc_now_ns() + CONTROL_NS;
	struct kvc_completion done = { .result = 0 };
	struct kvc_queue *queue;
	struct kvc_slot *slot;
	struct kvc_descriptor *d;
	int rc = kvc_queue_lease(root, deadline_ns, &queue);

	if (rc)
		return rc;
	slot = queue->free;
	d = &slot->descriptor;
	rc = one->bytes ? kvc_slot_bounce(slot, one->bytes) : 0;
	if (!rc && strlen(one->name) >= sizeof(slot->path))
		rc = -ENAMETOOLONG;
	if (rc)
		goto give_back;
	if (one->op == KVC_OP_WRITE)
		memcpy(slot->bounce, one->buffer, one->bytes);
	d->op = one->op;
	d->flags = one->flags;
	d->container = one->container;
	d->offset = one->offset;
	d->name_bytes = (uint32_t)snprintf(slot->path, sizeof(slot->path), "%s", one->name);
	d->range_count = one->bytes ? 1 : 0;
	d->deadline_ns = deadline_ns;
	d->if_version[0] = one->version ? one->version[0] : 0;
	d->if_version[1] = one->version ? one->version[1] : 0;
	slot->ranges[0] = (struct kvc_range){ .addr = slot->bounce, .bytes = one->bytes };
	rc = submit_one(queue, deadline_ns);
	if (rc)
		goto give_back;
	rc = wait_one(queue, deadline_ns, &done);
	if (rc) {
		kvc_queue_park(queue);
		if (kvc_root_deadline_kind(root) != KVC_DEADLINE_HARD)
			(void)kvc_root_suspect(root);
		return -ETIMEDOUT;
	}
	if (done.result == -ECANCELED)
		done.result = queue->broken ? -EIO : -ETIMEDOUT;
	if (one->op == KVC_OP_READ && done.result > (int64_t)one->bytes)
		done.result = -EPROTO;
	if (one->op == KVC_OP_READ && done.result > 0)
		memcpy(one->buffer, slot->bounce, (size_t)done.result);
	if (out)
		*out = done;
give_back:
	kvc_queue_return(queue);
	return rc ? rc : done.result;
}

int64_t kvc_root_read_until(struct kvc_root *root, const char *name, uint64_t offset, void *buffer,
			    uint64_t bytes, uint64_t deadline_ns, struct kvc_completion *out)
{
	const struct one one = { .op = KVC_OP_READ,
				 .name = name,
				 .offset = offset,
				 .buffer = buffer,
				 .bytes = bytes,
				 .deadline_ns = deadline_ns };

	return run_one(root, &one, out);
}

int kvc_root_stat_until(struct kvc_root *root, const char *name, uint64_t deadline_ns,
			struct kvc_completion *out)
{
	const struct one one = { .op = KVC_OP_STAT, .name = name, .deadline_ns = deadline_ns };

	return (int)run_one(root, &one, out);
}

int64_t kvc_root_read(struct kvc_root *root, const char *name, uint64_t offset, void *buffer,
		      uint64_t bytes, struct kvc_completion *out)
{
	return kvc_root_read_until(root, name, offset, buffer, bytes, 0, out);
}

int kvc_root_stat(struct kvc_root *root, const char *name, struct kvc_completion *out)
{
	return kvc_root_stat_until(root, name, 0, out);
}

int kvc_root_remove(struct kvc_root *root, const char *name, const uint64_t version[2])
{
	const struct one one = { .op = KVC_OP_REMOVE, .name = name, .version = version };

	return (int)run_one(root, &one, NULL);
}

int64_t kvc_root_read_container(struct kvc_root *root, struct kvc_plugin_container *container,
				uint64_t offset, void *buffer, uint64_t bytes)
{
	const struct one one = { .op = KVC_OP_READ,
				 .name = "",
				 .container = container,
				 .offset = offset,
				 .buffer = buffer,
				 .bytes = bytes };

	return run_one(root, &one, NULL);
}

int64_t kvc_root_read_text(struct kvc_root *root, const char *name, char *buffer, size_t capacity)
{
	const uint64_t bytes = kvc_block_align(capacity);
	uint8_t *block = malloc(bytes);
	int64_t rc;

	if (!block)
		return -ENOMEM;
	rc = kvc_root_read(root, name, 0, block, bytes, NULL);
	if (rc > (int64_t)capacity)
		rc = -EFBIG;
	if (rc > 0)
		memcpy(buffer, block, (size_t)rc);
	free(block);
	return rc;
}

int kvc_root_write_text(struct kvc_root *root, const char *name, const char *text, bool if_absent)
{
	const size_t length = strlen(text);
	const uint64_t bytes = kvc_block_align(length + 1);
	char *block = malloc(bytes);
	/* An empty root.json after a power cut would make the whole root unreadable. */
	const bool stays = strcmp(name, IDENTITY_NAME) == 0;
	const struct one one = { .op = KVC_OP_WRITE,
				 .flags = (if_absent ? KVC_DESCRIPTOR_IF_ABSENT : 0) |
					  (stays ? KVC_DESCRIPTOR_DURABLE : 0),
				 .name = name,
				 .buffer = block,
				 .bytes = bytes };
	int64_t rc;

	if (!block)
		return -ENOMEM;
	memset(block, ' ', bytes);
	memcpy(block, text, length);
	block[bytes - 1] = '\n';
	rc = run_one(root, &one, NULL);
	free(block);
	if (rc < 0)
		return (int)rc;
	return rc == (int64_t)bytes ? 0 : -EIO;
}

/* ---------------------------------------------------------------- identity */

static const char *naming_word(const struct kvc_store *store)
{
	return store->settings->naming == KVC_NAMING_NIXL ? "nixl" : "kvcellar";
}

static int read_identity(struct kvc_root *root, struct kvc_rootid *out)
{
	char where[PATH_MAX], *text = malloc(TEXT_BYTES);
	int64_t bytes;
	int rc;

	if (!text)
		return -ENOMEM;
	(void)snprintf(where, sizeof(where), "%s/%s", root->location, IDENTITY_NAME);
	bytes = kvc_root_read_text(root, IDENTITY_NAME, text, TEXT_BYTES);
	rc = bytes < 0 ? (int)bytes : kvc_rootid_parse(text, (size_t)bytes, where, out);
	if (bytes < 0 && bytes != -ENOENT)
		rc = kvc_fail((int)bytes, "%s: %s", where, strerror((int)-bytes));
	free(text);
	return rc;
}

/* Why, as kvc_packed_possible() has just said. */
static int cannot_be_packed(int error)
{
	char why[512];

	(void)snprintf(why, sizeof(why), "%s", kvc_last_error());
	return kvc_fail(error, "storage layout \"packed\": %s", why);
}

int kvc_root_packed_reason(struct kvc_root *root, char *out, size_t bytes)
{
	const struct kvc_settings *settings = root->store->settings;
	bool too_full = false;
	int rc;

	out[0] = '\0';
	if (settings->naming == KVC_NAMING_NIXL || settings->storage_layout == KVC_STORAGE_FILES) {
		(void)snprintf(out, bytes, "%s says so",
			       settings->naming == KVC_NAMING_NIXL ? "naming = \"nixl\"" :
								     "storage_layout");
		return -ENOTSUP;
	}
	rc = kvc_packed_possible(root);
	if (rc == -EROFS && root->opened_read_only) /* who writes can */
		rc = 0;
	if (rc)
		(void)snprintf(out, bytes, "%s", kvc_last_error());
	if (rc || settings->storage_layout == KVC_STORAGE_PACKED)
		return rc;
	/* Who does without the cleaner has not agreed to eviction. */
	if (!settings->l3_cleaner_enabled)
		(void)snprintf(out, bytes, "l3_cleaner_enabled is false");
	else if (!root->attributes.local_path)
		(void)snprintf(out, bytes, "it is no folder");
	else if (kvc_packed_worthwhile(root, &too_full))
		return 0;
	else
		(void)snprintf(out, bytes, "%s",
			       too_full ? KVC_ROOT_TOO_FULL : "there is too little room for it");
	return too_full ? -ENOSPC : -ENOTSUP;
}

/* Layout of a new root: as told, else packed where that works and pays. */
static int choose_layout(struct kvc_root *root, const char **out)
{
	const struct kvc_settings *settings = root->store->settings;
	char why[512];
	int rc;

	*out = "files";
	if (root->read_only)
		return 0;
	rc = kvc_root_packed_reason(root, why, sizeof(why));
	if (rc == 0)
		*out = "packed";
	else if (settings->storage_layout == KVC_STORAGE_PACKED &&
		 settings->naming != KVC_NAMING_NIXL)
		return cannot_be_packed(rc);
	/* For good, and on a disk that may have room again tomorrow. */
	if (rc == -ENOSPC)
		kvc_log(KVC_LOG_WARNING, "%s: this new root gets the files layout: %s",
			root->location, why);
	return 0;
}

/* Makes root.json; when another process was first, its one counts. */
static int make_identity(struct kvc_root *root, struct kvc_rootid *out)
{
	const char *layout;
	char text[1024];
	int rc = choose_layout(root, &layout);

	if (!rc)
		rc = kvc_rootid_new(out, layout, naming_word(root->store));
	if (rc || root->read_only)
		return rc;
	(void)kvc_rootid_render(out, text, sizeof(text));
	rc = kvc_root_write_text(root, IDENTITY_NAME, text, true);
	if (rc == -EEXIST)
		return read_identity(root, out);
	if (rc && root->store->settings->naming == KVC_NAMING_NIXL) {
		/* There it is a convenience: routing goes by the order of the roots. */
		kvc_log(KVC_LOG_DEBUG, "%s/%s: %s", root->location, IDENTITY_NAME, strerror(-rc));
		return 0;
	}
	return rc ? kvc_fail(rc, "%s/%s: %s", root->location, IDENTITY_NAME, strerror(-rc)) : 0;
}

/* A root keeps the layout that it has. */
static int check_layout(struct kvc_root *root, const char *layout)
{
	static const char *const words[] = {
		[KVC_STORAGE_FILES] = "files", [KVC_STORAGE_PACKED] = "packed"
	};
	const enum kvc_storage_layout asked = root->store->settings->storage_layout;
	int rc;

	root->is_packed = strcmp(layout, "packed") == 0;
	if (!root->is_packed && strcmp(layout, "files") != 0)
		return kvc_fail(-EINVAL,
				"%s: its storage layout is \"%s\", which this library "
				"does not know",
				root->location, layout);
	if (asked != KVC_STORAGE_AUTO && strcmp(words[asked], layout) != 0)
		return kvc_fail(-EINVAL,
				"%s: its storage layout is \"%s\", the configuration asks for "
				"\"%s\"; `kvcellar convert` moves its objects to a root of another "
				"layout",
				root->location, layout, words[asked]);
	/* It may have been copied to a place where that layout does not work. */
	rc = root->is_packed ? kvc_packed_possible(root) : 0;
	return rc && rc != -EROFS ? cannot_be_packed(rc) : 0;
}

static int check_identity(struct kvc_root *root)
{
	const char *naming = naming_word(root->store);
	struct kvc_rootid id;
	int rc = read_identity(root, &id);

	if (rc == -ENOENT)
		rc = make_identity(root, &id);
	if (rc)
		return rc;
	rc = check_layout(root, id.storage_layout);
	if (rc)
		return rc;
	if (strcmp(id.naming, naming) != 0)
		return kvc_fail(-EINVAL,
				"%s: it was made with naming = \"%s\", the configuration asks for "
				"\"%s\"",
				root->location, id.naming, naming);
	memcpy(root->uuid, id.uuid, sizeof(root->uuid));
	memcpy(root->uuid_text, id.uuid_text, sizeof(root->uuid_text));
	root->writes_refused = id.writes_refused;
	root->told_read_only |= id.writes_refused;
	if (id.writes_refused)
		kvc_log(KVC_LOG_WARNING,
			"%s: root.json has a format word that this library does not know: reading "
			"only, nothing will be stored there",
			root->location);
	return 0;
}

/* ---------------------------------------------------------------- while it is open */

bool kvc_root_suspect(struct kvc_root *root)
{
	atomic_store_explicit(&root->suspect_ms, kvc_now_ms(), memory_order_relaxed);
	return !atomic_exchange_explicit(&root->suspect, true, memory_order_relaxed);
}

/* A process that was stopped, or a disk that had its bad minute, is not slow for ever. */
static void end_suspicion(struct kvc_root *root)
{
	const uint64_t since_ms =
		kvc_now_ms() - atomic_load_explicit(&root->suspect_ms, memory_order_relaxed);

	if (since_ms < QUIET_MS ||
	    !atomic_exchange_explicit(&root->suspect, false, memory_order_relaxed))
		return;
	kvc_log(KVC_LOG_INFO, "%s: nothing has stalled for %llu minutes: no longer suspect",
		root->location, (unsigned long long)(since_ms / 60000));
}

/* Without it the next process would give the root a new identity, and look elsewhere for what lies
 * in it. One that was made meanwhile stays: which of two is right cannot be told here. */
static void keep_identity(struct kvc_root *root)
{
	struct kvc_rootid id = { .writes_refused = false };
	struct kvc_completion found;
	char text[1024];

	if (root->read_only || root->writes_refused ||
	    kvc_root_stat(root, IDENTITY_NAME, &found) != -ENOENT)
		return;
	memcpy(id.uuid_text, root->uuid_text, sizeof(id.uuid_text));
	(void)snprintf(id.storage_layout, sizeof(id.storage_layout), "%s",
		       root->is_packed ? "packed" : "files");
	(void)snprintf(id.naming, sizeof(id.naming), "%s", naming_word(root->store));
	(void)kvc_rootid_render(&id, text, sizeof(text));
	if (kvc_root_write_text(root, IDENTITY_NAME, text, true) == 0)
		kvc_log(KVC_LOG_WARNING, "%s: its %s was removed and is written again",
			root->location, IDENTITY_NAME);
}

/* What does not work as it should, once, until there is something else to say. */
static void tell_note(struct kvc_root *root, const char *note)
{
	if (strcmp(note, root->told_note) == 0)
		return;
	(void)snprintf(root->told_note, sizeof(root->told_note), "%s", note);
	if (note[0])
		kvc_log(KVC_LOG_WARNING, "%s: %s", root->location, note);
}

/* Some things turn out later, as that memory cannot be pinned. */
static void look_at_note(struct kvc_root *root)
{
	const struct kvc_plugin *ops = &root->backend->module->ops;
	struct kvc_attributes now = { .size = sizeof(now) };

	if (ops->root_query(root->handle, &now) == 0)
		tell_note(root, now.note);
}

/* Space of the device, as the metrics have it until it is asked again. */
static int ask_usage(struct kvc_root *root, struct kvc_usage *out)
{
	const int rc = root->backend->module->ops.usage(root->handle, out);

	if (rc == 0) {
		atomic_store_explicit(&root->device_total_bytes, out->total_bytes,
				      memory_order_relaxed);
		atomic_store_explicit(&root->device_free_bytes, out->free_bytes,
				      memory_order_relaxed);
	}
	return rc;
}

void kvc_root_look_after(struct kvc_root *root)
{
	struct kvc_usage usage = { .size = sizeof(usage) };

	end_suspicion(root);
	if (kvc_root_deadline_kind(root) == KVC_DEADLINE_STAGED)
		return;
	look_at_note(root);
	keep_identity(root);
	kvc_ghost_check(root->ghosts);
	kvc_pin_look(root);
	kvc_tenant_look(root);
	(void)ask_usage(root, &usage);
}

/* ---------------------------------------------------------------- the packed index */

/* One more to be closed with the root. */
static int keep_former(struct kvc_root *root, struct kvc_packed *packed)
{
	struct kvc_packed **more =
		realloc(root->former_packed, (root->former_packed_count + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	root->former_packed = more;
	more[root->former_packed_count++] = packed;
	return 0;
}

/* The identity by its path: the plugin may still have the folder open that was there before. */
static int identity_by_path(struct kvc_root *root, struct kvc_rootid *out)
{
	char path[PATH_MAX], *text;
	ssize_t bytes;
	int fd, rc;

	if (!root->attributes.local_path)
		return read_identity(root, out);
	rc = snprintf(path, sizeof(path), "%s/" IDENTITY_NAME, root->attributes.local_path);
	if (rc < 0 || (size_t)rc >= sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	text = malloc(TEXT_BYTES);
	bytes = text ? read(fd, text, TEXT_BYTES) : -1;
	rc = bytes < 0 ? -EIO : kvc_rootid_parse(text, (size_t)bytes, path, out);
	free(text);
	(void)close(fd);
	return rc;
}

/* Whether another root has the place of this one by now: nothing of it is ours to touch. */
static bool is_taken(struct kvc_root *root)
{
	struct kvc_rootid id;
	const int rc = identity_by_path(root, &id);

	if (rc == -ENOENT)
		return false; /* it will be written again */
	if (rc == 0 && memcmp(id.uuid, root->uuid, sizeof(id.uuid)) == 0)
		return false;
	kvc_root_warn(root, KVC_WARN_IO, "another root is in its place: open the store again",
		      ESTALE);
	return true;
}

/* Its files were removed: sets begin anew. */
static struct kvc_packed *make_again(struct kvc_root *root, struct kvc_packed *gone)
{
	struct kvc_packed *packed;

	pthread_mutex_lock(&root->packed_lock);
	packed = atomic_load_explicit(&root->packed, memory_order_acquire);
	if (packed == gone && !is_taken(root) && keep_former(root, gone) == 0) {
		if (kvc_packed_open(root, &packed) == 0) {
			kvc_packed_retreat(gone);
			atomic_store_explicit(&root->packed, packed, memory_order_release);
		} else {
			root->former_packed_count--;
			kvc_root_warn(root, KVC_WARN_IO, kvc_last_error(), ENOENT);
		}
	}
	pthread_mutex_unlock(&root->packed_lock);
	return packed;
}

struct kvc_packed *kvc_root_packed(struct kvc_root *root, bool for_write)
{
	struct kvc_packed *packed = atomic_load_explicit(&root->packed, memory_order_acquire);

	if (packed && kvc_packed_is_gone(packed) && for_write && !root->read_only)
		return make_again(root, packed);
	return packed;
}

static int close_packed(struct kvc_root *root, uint64_t deadline_ns)
{
	int rc = kvc_packed_close(atomic_load(&root->packed), deadline_ns);

	if (rc)
		return rc;
	atomic_store(&root->packed, NULL);
	while (root->former_packed_count > 0) {
		rc = kvc_packed_close(root->former_packed[root->former_packed_count - 1],
				      deadline_ns);
		if (rc)
			return rc;
		root->former_packed_count--;
	}
	free(root->former_packed);
	root->former_packed = NULL;
	return 0;
}

/* ---------------------------------------------------------------- open, close */

enum kvc_deadline_kind kvc_root_deadline_kind(const struct kvc_root *root)
{
	if (root->attributes.flags & KVC_ATTRIBUTE_CANCELLABLE)
		return KVC_DEADLINE_HARD;
	if (!(root->attributes.flags & KVC_ATTRIBUTE_LOCAL) ||
	    atomic_load_explicit(&root->suspect, memory_order_relaxed))
		return KVC_DEADLINE_STAGED;
	return KVC_DEADLINE_SOFT;
}

/* What the arithmetic of ranges relies on. */
static int check_attributes(struct kvc_root *root)
{
	struct kvc_attributes *attributes = &root->attributes;

	if (attributes->alignment == 0)
		attributes->alignment = 1;
	if ((attributes->alignment & (attributes->alignment - 1)) ||
	    attributes->alignment > KVC_BLOCK_BYTES)
		return kvc_fail(-EPROTO,
				"%s: plugin %s asks for an alignment of %u: no power of two up to "
				"%u",
				root->location, root->backend->module->ops.name,
				attributes->alignment, KVC_BLOCK_BYTES);
	if (attributes->max_ranges < 4)
		return kvc_fail(-EPROTO, "%s: plugin %s takes %u ranges, at least 4 are needed",
				root->location, root->backend->module->ops.name,
				attributes->max_ranges);
	if (!(attributes->flags & KVC_ATTRIBUTE_WHOLE))
		return kvc_fail(-ENOTSUP, "%s: plugin %s has no whole objects", root->location,
				root->backend->module->ops.name);
	return 0;
}

/* Whether the folder could not be written to by anybody. */
static bool is_on_read_only_mount(const struct kvc_root *root)
{
	struct statvfs fs;

	return root->attributes.local_path && statvfs(root->attributes.local_path, &fs) == 0 &&
	       (fs.f_flag & ST_RDONLY);
}

/* It was opened to store in it: without a word a cache would stay cold for ever. */
static void tell_read_only(struct kvc_root *root)
{
	root->told_read_only = true;
	kvc_log(KVC_LOG_WARNING, "%s: read-only: %s: nothing will be stored there", root->location,
		is_on_read_only_mount(root) ? "its file system is mounted read-only" :
					      strerror(EROFS));
}

static int open_handle(struct kvc_root *root)
{
	const struct kvc_plugin *ops = &root->backend->module->ops;
	const struct kvc_settings *settings = root->store->settings;
	const struct kvc_root_params params = {
		.size = sizeof(params),
		.location = root->location,
		.flags = (root->read_only ? KVC_ROOT_READ_ONLY : KVC_ROOT_CREATE) |
			 (settings->storage_dirs_default ? KVC_ROOT_OWNED : 0),
	};
	const char *reason;
	int rc;

	(void)kvc_backend_reason();
	rc = ops->root_open(root->backend->handle, &params, &root->handle);
	if (rc < 0) {
		reason = kvc_backend_reason();
		return kvc_fail(rc, "%s", *reason ? reason : strerror(-rc));
	}
	root->attributes.size = sizeof(root->attributes);
	rc = ops->root_query(root->handle, &root->attributes);
	if (rc) {
		rc = kvc_fail(rc, "%s: its properties cannot be read: %s", root->location,
			      strerror(-rc));
	} else {
		rc = check_attributes(root);
	}
	if (rc) {
		(void)ops->root_close(root->handle);
		return rc;
	}
	root->opened_read_only = root->read_only && !is_on_read_only_mount(root);
	if ((root->attributes.flags & KVC_ATTRIBUTE_READ_ONLY) && !root->read_only) {
		root->read_only = true;
		tell_read_only(root);
	}
	tell_note(root, root->attributes.note);
	if (root->attributes.note[0])
		kvc_counters_add(root->store->counters, KVC_COUNTER_FALLBACKS, 1);
	return 0;
}

/* Of a file that processes of the host share; NULL: memory of this one, as on other file systems
 * than local ones. */
static const char *shared_path(const struct kvc_root *root, const char *name, char *out,
			       size_t bytes)
{
	int length;

	if (!root->attributes.local_path || root->read_only ||
	    !(root->attributes.flags & KVC_ATTRIBUTE_LOCAL))
		return NULL;
	length = snprintf(out, bytes, "%s/" KVC_HOUSEKEEPING_FOLDER "/%s",
			  root->attributes.local_path, name);
	return length < 0 || (size_t)length >= bytes ? NULL : out;
}

/* Who may not write still sees what those who may have counted. */
static int load_usage(struct kvc_root *root)
{
	char path[PATH_MAX];
	const int length = snprintf(path, sizeof(path), "%s/" KVC_HOUSEKEEPING_FOLDER "/usage",
				    root->attributes.local_path ? root->attributes.local_path : "");

	if (!root->attributes.local_path || !root->read_only || length < 0 ||
	    (size_t)length >= sizeof(path))
		return 0;
	return kvc_usage_load(root->usage, path);
}

/* What a root knows about its objects beside them: how many there are, and what was evicted. */
static int open_shared(struct kvc_root *root)
{
	const mode_t mode = root->store->settings->file_mode;
	char path[PATH_MAX];
	int rc = kvc_usage_open(shared_path(root, "usage", path, sizeof(path)), mode, &root->usage);

	if (rc == 0)
		rc = load_usage(root);
	if (rc == 0)
		rc = kvc_ghost_open(shared_path(root, "ghosts", path, sizeof(path)), mode,
				    kvc_root_held_bytes(root), &root->ghosts);
	return rc;
}

/* ---------------------------------------------------------------- limits */

uint64_t kvc_share_bytes(const struct kvc_share *share, uint64_t total_bytes)
{
	if (share->bytes)
		return share->bytes;
	return (uint64_t)((double)total_bytes * share->percent / 100.0);
}

uint64_t kvc_root_held_bytes(const struct kvc_root *root)
{
	const uint64_t capacity = root->capacity_bytes, device = root->device_bytes;

	return capacity && (!device || capacity < device) ? capacity : device;
}

/* Percentages become bytes of the root's device. */
static int set_limits(struct kvc_root *root)
{
	const struct kvc_settings *settings = root->store->settings;
	struct kvc_usage usage = { .size = sizeof(usage) };
	const bool percent = settings->capacity.percent > 0 || settings->min_free.percent > 0;
	int rc = ask_usage(root, &usage);

	if (rc < 0 && percent)
		return kvc_fail(rc,
				"%s: capacity or min_free in percent: the size of its device is "
				"not known: %s",
				root->location, strerror(-rc));
	root->device_bytes = rc < 0 ? 0 : usage.total_bytes;
	root->capacity_bytes = kvc_share_bytes(&settings->capacity, usage.total_bytes);
	root->min_free_bytes = kvc_share_bytes(&settings->min_free, usage.total_bytes);
	return 0;
}

/* Counting has to be right where it limits. Roots of files are counted beside their use. */
static int count_objects(struct kvc_root *root)
{
	return root->capacity_bytes && !root->files && kvc_usage_is_new(root->usage) ?
		       kvc_walk_recount(root) :
		       0;
}

uint64_t kvc_root_usage_key(const struct kvc_root *root, uint64_t ns_hash)
{
	return root->store->settings->naming == KVC_NAMING_NIXL ? 0 : ns_hash;
}

/* Of the capacity, what files may have: on a packed root what segments have not taken, and a small
 * part in any case. */
static uint64_t files_limit(struct kvc_root *root)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	struct kvc_packed_health health;
	uint64_t left;

	if (!packed)
		return root->capacity_bytes;
	kvc_packed_health(packed, &health);
	left = health.segment_bytes < root->capacity_bytes ?
		       root->capacity_bytes - health.segment_bytes :
		       0;
	return left > root->capacity_bytes / FILES_PART ? left : root->capacity_bytes / FILES_PART;
}

uint64_t kvc_root_room(struct kvc_root *root)
{
	uint64_t room = UINT64_MAX, own_bytes;

	if (root->capacity_bytes) {
		const uint64_t limit = files_limit(root);

		kvc_usage_total(root->usage, &own_bytes, NULL);
		room = own_bytes < limit ? limit - own_bytes : 0;
	}
	if (root->min_free_bytes) {
		struct kvc_usage usage = { .size = sizeof(usage) };
		uint64_t spare = UINT64_MAX;

		if (ask_usage(root, &usage) == 0)
			spare = usage.free_bytes > root->min_free_bytes ?
					usage.free_bytes - root->min_free_bytes :
					0;
		room = spare < room ? spare : room;
	}
	return room;
}

const char *kvc_root_limit_text(const struct kvc_root *root)
{
	if (root->tenants)
		return "over capacity, under min_free, or over the tenant's share";
	if (!root->capacity_bytes && !root->min_free_bytes)
		return "the file system is fuller than the watermarks leave to the cache";
	if (!root->min_free_bytes)
		return "over capacity";
	return root->capacity_bytes ? "over capacity, or under min_free" : "under min_free";
}

static int open_packed(struct kvc_root *root)
{
	struct kvc_packed *packed;
	int rc = kvc_packed_open(root, &packed);

	if (!rc)
		atomic_store_explicit(&root->packed, packed, memory_order_release);
	return rc;
}

static const struct kvc_order *order_of(const struct kvc_settings *settings)
{
	static const struct kvc_order *const orders[] = {
		[KVC_EVICTION_LRU] = &kvc_order_lru,
		[KVC_EVICTION_FIFO] = &kvc_order_fifo,
		[KVC_EVICTION_S3FIFO] = &kvc_order_s3fifo,
	};

	return orders[settings->eviction];
}

int kvc_root_open(struct kvc_store *store, struct kvc_backend *backend, const char *location,
		  bool read_only, struct kvc_root **out)
{
	struct kvc_root *root = calloc(1, sizeof(*root));
	int64_t reclaimed;
	int rc = -ENOMEM;

	if (!root)
		return rc;
	root->store = store;
	root->backend = backend;
	root->read_only = read_only;
	(void)pthread_mutex_init(&root->queue_lock, NULL);
	(void)pthread_cond_init(&root->queue_idle, NULL);
	(void)pthread_mutex_init(&root->packed_lock, NULL);
	(void)pthread_mutex_init(&root->pin_lock, NULL);
	root->order = order_of(store->settings);
	root->location = strdup(location);
	if (!root->location)
		goto free_root;
	rc = open_handle(root);
	if (rc)
		goto free_root;
	rc = check_identity(root);
	if (rc)
		goto close_root;
	rc = set_limits(root);
	if (rc)
		goto close_root;
	rc = open_shared(root);
	if (rc) {
		rc = kvc_fail(rc, "%s: usage counters: %s", location, strerror(-rc));
		goto close_root;
	}
	rc = kvc_files_open(root);
	if (!rc)
		rc = count_objects(root);
	if (!rc && root->is_packed)
		rc = open_packed(root);
	if (!rc)
		rc = kvc_tenant_open(root);
	if (rc)
		goto close_root;
	kvc_pin_look(root);
	reclaimed = root->read_only ? 0 : backend->module->ops.reclaim(root->handle);
	if (reclaimed > 0)
		kvc_counters_add(store->counters, KVC_COUNTER_RECLAIMED, reclaimed);
	*out = root;
	return 0;

close_root:
	(void)kvc_root_close(root, 0);
	return rc;
free_root:
	free(root->location);
	free(root);
	return rc;
}

int kvc_root_close(struct kvc_root *root, uint64_t deadline_ns)
{
	const struct kvc_plugin *ops;
	int rc;

	if (!root)
		return 0;
	ops = &root->backend->module->ops;
	rc = kvc_stage_close(root->stage, deadline_ns);
	if (rc)
		return rc;
	root->stage = NULL;
	while (root->idle) {
		struct kvc_queue *queue = root->idle;
		struct kvc_queue *next = queue->next;

		rc = kvc_queue_destroy(queue);
		if (rc)
			return rc;
		root->idle = next;
		root->queue_count--;
	}
	kvc_queue_reap(root);
	if (root->queue_count > 0)
		return -EBUSY;
	rc = close_packed(root, deadline_ns);
	if (rc)
		return rc;
	rc = ops->root_close(root->handle);
	if (rc)
		return rc;
	kvc_files_close(root);
	kvc_tenant_close(root);
	kvc_ghost_close(root->ghosts);
	kvc_usage_close(root->usage);
	(void)pthread_mutex_destroy(&root->pin_lock);
	(void)pthread_mutex_destroy(&root->packed_lock);
	(void)pthread_cond_destroy(&root->queue_idle);
	(void)pthread_mutex_destroy(&root->queue_lock);
	free(root->location);
	free(root);
	return 0;
}

void kvc_root_warn(struct kvc_root *root, enum kvc_root_warning kind, const char *what, int error)
{
	const char *cause;
	uint32_t dropped;

	if (!kvc_log_allowed(&root->warnings[kind], 1, &dropped))
		return;
	cause = error ? strerror(error) : kvc_root_limit_text(root);
	if (dropped)
		kvc_log(KVC_LOG_WARNING, "%s: %s: %s (and %u more like it)", root->location, what,
			cause, dropped);
	else
		kvc_log(KVC_LOG_WARNING, "%s: %s: %s", root->location, what, cause);
}
