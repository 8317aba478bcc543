/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a packed root as a whole: opening, batches, the keeper, closing. */
#include "core/host.h"
#include "core/packed_internal.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/store.h"
#include "core/usage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MIB		  (UINT64_C(1) << 20)
#define SEGMENT_BYTES	  (256 * MIB)
#define SEGMENT_BYTES_MAX (4096 * MIB)
#define SEGMENT_TMPFS	  (64 * MIB) /* there allocating means writing zeros */
#define SEGMENTS_LEAST	  16u	     /* as many fit into the capacity */
#define SEGMENTS_MOST	  1024u	     /* descriptors that a process needs for a full root */
#define CAPACITY_UNKNOWN  (1024 * MIB)
#define AUTO_LEAST	  (64 * MIB) /* smaller: files make more of it */
#define ROOM_LEAST	  (MIB / 4)
#define USERS_WAIT_NS	  (UINT64_C(30) * 1000000000)
#define USERS_PAUSE_NS	  (UINT64_C(5) * 1000000)
#define QUARANTINE_NS	  (UINT64_C(60) * 1000000000)
#define TICK_NS		  (UINT64_C(1) * 1000000000)
#define BEAT_S		  10
#define SWEEP_PAUSE_MAX	  64u /* ticks */
#define FOREIGN_S	  60  /* without a heartbeat another host is taken for gone */
#define INDEX_WAIT_NS	  (UINT64_C(1) * 1000000000) /* while a writer makes a new root's */

static const struct kvc_mapfile_kind shm_kind = {
	.magic = { 'K', 'V', 'C', 'P', 'K', 'R', '\r', '\n' },
	.major = 1,
	.header_bytes = 128,
	.file_bytes = sizeof(struct kvc_packed_shm),
};

#define SHM_NAME  KVC_PACKED_FOLDER "/root.shm"
#define LOCK_NAME KVC_PACKED_FOLDER "/root.lock"

/* ---------------------------------------------------------------- whether */

static bool is_listed(const char *file_system)
{
	static const char *const listed[] = { "ext4", "xfs", "tmpfs", "memory" };

	for (size_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++)
		if (strcmp(listed[i], file_system) == 0)
			return true;
	return false;
}

int kvc_packed_possible(const struct kvc_root *root)
{
	const struct kvc_attributes *attributes = &root->attributes;

	if (!KVC_MAPFILE_POSSIBLE)
		return kvc_fail(-ENOTSUP, "%s: the packed layout needs a little-endian machine",
				root->location);
	if (!(attributes->flags & KVC_ATTRIBUTE_IN_PLACE))
		return kvc_fail(-ENOTSUP, "%s: plugin %s cannot write in place", root->location,
				root->backend->module->ops.name);
	if (attributes->local_path && !(attributes->flags & KVC_ATTRIBUTE_LOCAL))
		return kvc_fail(-ENOTSUP,
				"%s: not on a local file system (%s): its index is shared "
				"memory of one host",
				root->location, attributes->file_system);
	if (attributes->local_path && !is_listed(attributes->file_system))
		return kvc_fail(-ENOTSUP, "%s: file system %s is not one of ext4, xfs, tmpfs",
				root->location, attributes->file_system);
	if (attributes->flags & KVC_ATTRIBUTE_READ_ONLY)
		return kvc_fail(-EROFS, "%s: read-only", root->location);
	return 0;
}

/* ---------------------------------------------------------------- root.shm */

static int shm_create(struct kvc_packed *packed)
{
	uint8_t header[offsetof(struct kvc_packed_shm, boot_id)] = { 0 };
	int rc;

	memcpy(header + offsetof(struct kvc_packed_shm, uuid), packed->root->uuid,
	       sizeof(packed->root->uuid));
	rc = kvc_packed_map_create(packed->dir, SHM_NAME, &shm_kind, header);
	return rc == -EEXIST ? 0 : rc;
}

int kvc_packed_refuse_version(const struct kvc_packed *packed, const char *path,
			      const struct kvc_mapfile_kind *kind, const void *header)
{
	struct kvc_mapfile_header common;

	memcpy(&common, header, sizeof(common));
	return kvc_fail(-EPROTONOSUPPORT, "%s/%s: format version %u, this library reads version %u",
			packed->root->location, path, common.major, kind->major);
}

/* What keeps a file of the index from being used. */
static int tell_file(const struct kvc_packed *packed, const char *path, int error)
{
	const char *why = error == -EINVAL			? "it is no regular file" :
			  error == -ELOOP || error == -ENOTDIR	? "a symlink is in the way" :
			  error == -EBADMSG || error == -ENOMSG ? "it is damaged; who opens the "
								  "root to write makes it again" :
								  strerror(-error);

	return kvc_fail(error, "%s/%s: %s", packed->root->location, path, why);
}

static bool is_damage(int error)
{
	return error == -EBADMSG || error == -ENOMSG;
}

static int shm_map(struct kvc_packed *packed)
{
	const unsigned flags = packed->read_only ? KVC_PACKED_MAP_READ_ONLY : 0;
	uint8_t header[offsetof(struct kvc_packed_shm, boot_id)];
	int rc = kvc_packed_map_open(packed->dir, SHM_NAME, &shm_kind, header, flags,
				     &packed->broken, &packed->shm_map);

	if (rc == -EPROTONOSUPPORT)
		return kvc_packed_refuse_version(packed, SHM_NAME, &shm_kind, header);
	if (rc)
		return rc == -ENOENT || is_damage(rc) ? rc : tell_file(packed, SHM_NAME, rc);
	packed->shm = packed->shm_map.memory;
	if (memcmp(packed->shm->uuid, packed->root->uuid, sizeof(packed->shm->uuid)) == 0)
		return 0;
	kvc_packed_map_close(&packed->shm_map);
	packed->shm = NULL;
	return -EBADMSG;
}

/* With the users' lock exclusive. *out_damaged: it was made new beside segments of its past. */
static int shm_open_alone(struct kvc_packed *packed, bool *out_damaged)
{
	int rc = shm_map(packed);

	*out_damaged = is_damage(rc);
	if (*out_damaged)
		kvc_log(KVC_LOG_WARNING, "%s/" SHM_NAME ": damaged; the index is made again",
			packed->root->location);
	if (*out_damaged)
		(void)kvc_packed_dir_remove(packed->dir, SHM_NAME);
	if (!*out_damaged && rc != -ENOENT)
		return rc;
	/* Lost with the folder of housekeeping, perhaps: segments may be there. */
	*out_damaged = true;
	rc = shm_create(packed);
	return rc ? rc : shm_map(packed);
}

static bool is_this_boot(const struct kvc_packed *packed)
{
	return atomic_load(&packed->shm->boot_id[0]) == packed->boot_id[0] &&
	       atomic_load(&packed->shm->boot_id[1]) == packed->boot_id[1];
}

static uint64_t wall_s(void)
{
	return (uint64_t)kvc_wall_ns() / 1000000000u;
}

/* Another host that has the same disk writes to it as if it were alone. */
static int refuse_other_host(const struct kvc_packed *packed)
{
	const uint64_t beat = atomic_load(&packed->shm->heartbeat_s);
	const uint64_t now = wall_s();
	uint8_t machine[32];

	kvc_host_machine_id(machine);
	/* Its clock may be ahead of ours. */
	if (memcmp(machine, packed->shm->machine_id, sizeof(machine)) == 0 ||
	    (beat > now ? beat - now : now - beat) > FOREIGN_S)
		return 0;
	return kvc_fail(-EBUSY,
			"%s: a process of another host (machine id %.32s) used it %" PRIu64
			" s ago; a packed root belongs to one host",
			packed->root->location, (const char *)packed->shm->machine_id,
			now > beat ? now - beat : 0);
}

static void beat(struct kvc_packed *packed)
{
	const uint64_t now = wall_s();

	if (packed->read_only || now - atomic_load(&packed->shm->heartbeat_s) < BEAT_S)
		return;
	atomic_store(&packed->shm->heartbeat_s, now);
	kvc_packed_lock_touch(packed->lock);
}

/* After deaths since the last time, for all of them: a bit may have been taken, or a counter not
 * yet changed, by one whose intent does not tell. Again when others were at work, ever more
 * seldom. */
static void sweep_after_deaths(struct kvc_packed *packed)
{
	const uint64_t deaths = atomic_load(&packed->shm->deaths);
	uint64_t swept = atomic_load(&packed->shm->swept);
	bool all_counted = true;

	if (swept == deaths || packed->ticks < packed->sweep_at)
		return;
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		all_counted &= kvc_packed_arena_recount(a);
	if (all_counted)
		(void)atomic_compare_exchange_strong(&packed->shm->swept, &swept, deaths);
	packed->sweep_pause = all_counted ? 0 : 1 + 2 * packed->sweep_pause % SWEEP_PAUSE_MAX;
	packed->sweep_at = packed->ticks + packed->sweep_pause;
}

/* Segments and bytes as they are: counters may be off by what a process did not live to count. */
static void recount_files(struct kvc_packed *packed)
{
	uint64_t bytes = 0;

	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const uint32_t segments = atomic_load(&a->record->segments);
		uint32_t present = 0;

		for (uint32_t n = 1; n <= segments; n++)
			present += kvc_packed_segment(a, n) != NULL;
		/* What went with a file was counted with those that stay. */
		if (atomic_exchange(&a->record->present, present) != present)
			(void)kvc_packed_arena_recount(a);
		bytes += present * kvc_packed_segment_file_bytes(a);
	}
	atomic_store(&packed->shm->segment_bytes, bytes);
	sweep_after_deaths(packed);
}

/* Whether a table or a segment is there and is not what it should be. What another version made is
 * left alone. */
static int look_for_damage(struct kvc_packed *packed, bool *out)
{
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const int rc = kvc_packed_table_check(a);

		/* Descriptors and memory may be there for the next one. */
		if (rc == -ENOENT || rc == -EBADMSG || rc == -ENOMSG || rc == -EPROTONOSUPPORT)
			atomic_store(&packed->damaged, true);
		else if (rc)
			return kvc_fail(rc, "%s: a table of its index cannot be mapped: %s",
					packed->root->location, strerror(-rc));
	}
	*out = atomic_load(&packed->damaged);
	return 0;
}

/* As a rebuild wants it: without handles. */
static void forget_arenas(struct kvc_packed *packed)
{
	kvc_packed_arenas_free(packed);
	atomic_store(&packed->generation, UINT64_MAX);
	atomic_store(&packed->damaged, false);
}

/* Nobody else has it open. */
static int begin_alone(struct kvc_packed *packed)
{
	bool damaged = false;
	int rc = shm_open_alone(packed, &damaged);

	if (rc)
		return rc;
	if (!damaged && is_this_boot(packed)) {
		recount_files(packed);
		rc = look_for_damage(packed, &damaged);
		if (rc || !damaged)
			return rc;
		forget_arenas(packed);
	}
	rc = damaged ? 0 : refuse_other_host(packed);
	if (!rc)
		rc = kvc_packed_rebuild(packed);
	if (rc)
		return rc;
	packed->rebuilt = true;
	kvc_host_machine_id(packed->shm->machine_id);
	atomic_store(&packed->shm->heartbeat_s, wall_s());
	return 0;
}

/* As one of the users. -EAGAIN: what they have has to be made again by somebody who is alone:
 * they are readers, or one who was alone did not come to an end with it. */
static int begin_shared(struct kvc_packed *packed, uint64_t deadline_ns)
{
	int rc = kvc_packed_lock_wait(packed->lock, KVC_PACKED_LOCK_USERS, false, deadline_ns);

	if (rc == -ETIMEDOUT)
		return kvc_fail(-EBUSY, "%s: its index is being made again by another process",
				packed->root->location);
	if (rc)
		return rc;
	rc = shm_map(packed);
	if (rc == 0 && is_this_boot(packed))
		return 0;
	if (rc && rc != -ENOENT && !is_damage(rc))
		return rc;
	if (rc == 0)
		kvc_packed_map_close(&packed->shm_map);
	packed->shm = NULL;
	kvc_packed_lock_release(packed->lock, KVC_PACKED_LOCK_USERS);
	return -EAGAIN;
}

/* A writer's opening: alone first, if that can be had; then as one of the users. */
static int begin_writing(struct kvc_packed *packed)
{
	const uint64_t deadline_ns = kvc_now_ns() + USERS_WAIT_NS;
	const struct timespec pause = kvc_timespec(USERS_PAUSE_NS);
	int rc;

	for (;;) {
		rc = kvc_packed_lock_try(packed->lock, KVC_PACKED_LOCK_USERS, true);
		if (rc == 0) {
			rc = begin_alone(packed);
			if (rc)
				return rc;
			return kvc_packed_lock_try(packed->lock, KVC_PACKED_LOCK_USERS, false);
		}
		if (rc == -EAGAIN)
			rc = begin_shared(packed, deadline_ns);
		if (rc != -EAGAIN)
			return rc;
		if (kvc_now_ns() >= deadline_ns)
			return kvc_fail(
				-EBUSY,
				"%s: its index is of an earlier boot, or lost, and can only "
				"be made again when the processes that read from it have "
				"ended",
				packed->root->location);
		(void)nanosleep(&pause, NULL);
	}
}

static int open_lock(struct kvc_packed *packed)
{
	const int rc =
		kvc_packed_lock_open(packed->dir, LOCK_NAME, packed->read_only, &packed->lock);

	return rc && rc != -ENOENT ? tell_file(packed, LOCK_NAME, rc) : rc;
}

/* As one of the users. -ENOENT: root.lock or root.shm is not there. */
static int join_reading(struct kvc_packed *packed)
{
	int rc = packed->lock ? 0 : open_lock(packed);

	if (!rc)
		rc = kvc_packed_lock_wait(packed->lock, KVC_PACKED_LOCK_USERS, false,
					  kvc_now_ns() + USERS_WAIT_NS);
	return rc ? rc : shm_map(packed);
}

/* A new root is there before its index is: who makes it just now gets the time for that. */
static int wait_for_index(struct kvc_packed *packed)
{
	const uint64_t deadline_ns = kvc_now_ns() + INDEX_WAIT_NS;
	const struct timespec pause = kvc_timespec(USERS_PAUSE_NS);

	for (;;) {
		const int rc = join_reading(packed);

		if (rc != -ENOENT || kvc_now_ns() >= deadline_ns)
			return rc;
		if (packed->lock)
			kvc_packed_lock_release(packed->lock, KVC_PACKED_LOCK_USERS);
		(void)nanosleep(&pause, NULL);
	}
}

/* In the place of root.shm: its maker died before it came to that, or others removed it. */
static int shm_of_our_own(struct kvc_packed *packed)
{
	const int rc = kvc_packed_map_zeros(sizeof(*packed->shm), &packed->shm_map);

	if (rc)
		return rc;
	packed->shm = packed->shm_map.memory;
	memcpy(packed->shm->uuid, packed->root->uuid, sizeof(packed->shm->uuid));
	kvc_log(KVC_LOG_WARNING,
		"%s: its index is not there: what lies in its folders is read, and nothing that "
		"is stored from now on; who opens the root to write makes it again",
		packed->root->location);
	return 0;
}

/* A reader changes nothing. After a reboot, or without an index, it keeps what is whole for
 * itself. */
static int begin_reading(struct kvc_packed *packed)
{
	int rc = wait_for_index(packed);

	if (is_damage(rc))
		return tell_file(packed, SHM_NAME, rc);
	if (rc && rc != -ENOENT)
		return rc;
	if (rc == 0 && is_this_boot(packed))
		return 0;
	packed->private_index = true;
	if (rc == 0) {
		kvc_packed_map_close(&packed->shm_map);
		rc = kvc_packed_map_open(packed->dir, SHM_NAME, &shm_kind, NULL,
					 KVC_PACKED_MAP_PRIVATE, &packed->broken, &packed->shm_map);
		packed->shm = rc ? NULL : packed->shm_map.memory;
	} else {
		rc = shm_of_our_own(packed);
	}
	if (!rc)
		rc = kvc_packed_rebuild(packed);
	packed->rebuilt = !rc;
	return rc;
}

/* ---------------------------------------------------------------- capacity */

/* Of one segment: large enough that a full root needs few descriptors, small enough that several
 * arenas find room in the capacity. */
static uint64_t segment_target(const struct kvc_packed *packed)
{
	const uint64_t capacity = packed->capacity_bytes;
	const bool tmpfs = strcmp(packed->root->attributes.file_system, "tmpfs") == 0;
	const uint64_t usual = tmpfs ? SEGMENT_TMPFS : SEGMENT_BYTES;
	uint64_t bytes = capacity / SEGMENTS_MOST > usual ? capacity / SEGMENTS_MOST : usual;

	bytes = bytes < SEGMENT_BYTES_MAX ? bytes : SEGMENT_BYTES_MAX;
	return bytes < capacity / SEGMENTS_LEAST ? bytes : capacity / SEGMENTS_LEAST;
}

/* From the configuration, else what the high watermark leaves beside the bytes of others. That is a
 * limit of growth: what is there already stays, whatever the disk looks like to the next one who
 * opens the root. */
static void set_capacity(struct kvc_packed *packed)
{
	const struct kvc_root *root = packed->root;
	const struct kvc_settings *settings = root->store->settings;
	const uint64_t own = packed->shm ? kvc_packed_hint(&packed->shm->segment_bytes) : 0;
	struct kvc_usage usage = { .size = sizeof(usage) };
	uint64_t others, allowed;

	packed->floor_bytes = root->min_free_bytes;
	if (root->capacity_bytes) {
		packed->capacity_bytes = root->capacity_bytes;
	} else if (root->backend->module->ops.usage(root->handle, &usage) < 0 ||
		   usage.total_bytes == 0) {
		packed->capacity_bytes = CAPACITY_UNKNOWN;
	} else {
		allowed = (uint64_t)((double)usage.total_bytes *
				     settings->l3_cleaner_high_watermark / 100.0);
		others = usage.total_bytes - usage.free_bytes;
		others = others > own ? others - own : 0;
		packed->capacity_bytes = allowed > others ? allowed - others : 0;
		if (packed->capacity_bytes < own)
			packed->capacity_bytes = own;
		if (packed->floor_bytes < usage.total_bytes - allowed)
			packed->floor_bytes = usage.total_bytes - allowed;
	}
	packed->segment_target_bytes = segment_target(packed);
}

bool kvc_packed_worthwhile(struct kvc_root *root, bool *out_too_full)
{
	const struct kvc_settings *settings = root->store->settings;
	struct kvc_usage usage = { .size = sizeof(usage) };
	struct kvc_packed packed = { .root = root };

	*out_too_full = false;
	(void)root->backend->module->ops.usage(root->handle, &usage);
	if (settings->capacity.bytes || settings->capacity.percent > 0)
		return kvc_share_bytes(&settings->capacity, usage.total_bytes) >= AUTO_LEAST;
	set_capacity(&packed);
	if (packed.capacity_bytes >= AUTO_LEAST)
		return true;
	*out_too_full = (double)usage.total_bytes * settings->l3_cleaner_high_watermark / 100.0 >=
			(double)AUTO_LEAST;
	return false;
}

static void tell_no_room(const struct kvc_packed *packed)
{
	if (packed->read_only || packed->capacity_bytes >= ROOM_LEAST)
		return;
	kvc_log(KVC_LOG_WARNING,
		"%s: %s leaves %" PRIu64 " bytes for it: nothing will be stored there",
		packed->root->location,
		packed->root->capacity_bytes ? "`capacity`" : "l3_cleaner_high_watermark",
		packed->capacity_bytes);
}

/* ---------------------------------------------------------------- the keeper */

void kvc_packed_kick(struct kvc_packed *packed)
{
	if (atomic_load_explicit(&packed->kicked, memory_order_relaxed) ||
	    atomic_exchange(&packed->kicked, true))
		return;
	pthread_mutex_lock(&packed->keeper_lock);
	pthread_cond_signal(&packed->keeper_wake);
	pthread_mutex_unlock(&packed->keeper_lock);
}

/* What the segments have too many, by `capacity` where somebody gave it, and by `min_free` where
 * that can be met at all: what others fill is no reason to give up everything. */
static uint64_t excess(struct kvc_packed *packed)
{
	struct kvc_root *root = packed->root;
	const uint64_t own = kvc_packed_hint(&packed->shm->segment_bytes);
	struct kvc_usage usage = { .size = sizeof(usage) };
	uint64_t files_bytes = 0, bytes = 0, missing;

	kvc_usage_total(root->usage, &files_bytes, NULL);
	if (root->capacity_bytes && own + files_bytes > packed->capacity_bytes)
		bytes = own + files_bytes - packed->capacity_bytes;
	if (root->min_free_bytes == 0 ||
	    root->backend->module->ops.usage(root->handle, &usage) < 0 || usage.total_bytes == 0 ||
	    usage.free_bytes >= root->min_free_bytes)
		return bytes;
	missing = root->min_free_bytes - usage.free_bytes;
	if (missing > own) {
		kvc_root_warn(root, KVC_WARN_FULL,
			      "others fill the disk: min_free cannot be met by evicting", ENOSPC);
		return bytes;
	}
	return missing > bytes ? missing : bytes;
}

/* The coldest segments of all go. */
static void shrink(struct kvc_packed *packed)
{
	uint64_t left = excess(packed);

	while (left > 0) {
		const uint64_t before = kvc_packed_hint(&packed->shm->segment_bytes);
		uint64_t now;

		if (kvc_packed_retire_coldest(packed))
			break;
		now = kvc_packed_hint(&packed->shm->segment_bytes);
		left = before - now < left && now < before ? left - (before - now) : 0;
	}
}

/* The folder was moved away, and another may have its place: who opens the root now finds that. */
static void check_place(struct kvc_packed *packed)
{
	const char *folder = packed->root->attributes.local_path;
	struct stat ours, there;
	char path[PATH_MAX];
	int length;

	if (!folder || fstat(packed->shm_map.fd, &ours) != 0)
		return;
	length = snprintf(path, sizeof(path), "%s/" SHM_NAME, folder);
	if (length < 0 || (size_t)length >= sizeof(path))
		return;
	if (stat(path, &there) == 0 ? ours.st_ino != there.st_ino || ours.st_dev != there.st_dev :
				      errno == ENOENT)
		atomic_store(&packed->gone, true);
}

/* Every few seconds. */
static void check_files(struct kvc_packed *packed)
{
	if (packed->ticks++ % BEAT_S)
		return;
	check_place(packed);
	atomic_store_explicit(&packed->root->oldest_live_s, kvc_packed_oldest_s(packed),
			      memory_order_relaxed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		kvc_packed_arena_check(a);
		kvc_packed_table_finish(a);
	}
}

static void keep(struct kvc_packed *packed, bool tick)
{
	const uint32_t turn = kvc_packed_enter(packed);

	kvc_packed_refresh(packed);
	if (!packed->read_only && !atomic_load(&packed->gone)) {
		for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
			kvc_packed_arena_keep(a);
		if (tick) {
			beat(packed);
			(void)kvc_packed_recover_dead(packed);
			sweep_after_deaths(packed);
			(void)kvc_packed_finish_retiring(packed);
			shrink(packed);
			check_files(packed);
		}
	}
	kvc_packed_leave(packed, turn);
	kvc_packed_reap(packed, false);
}

static void *keeper(void *context)
{
	struct kvc_packed *packed = context;
	uint64_t next_ns = kvc_now_ns() + TICK_NS;

	pthread_mutex_lock(&packed->keeper_lock);
	while (!packed->stop) {
		const struct timespec until = kvc_timespec(next_ns);
		bool tick;

		if (!atomic_load(&packed->kicked))
			(void)pthread_cond_clockwait(&packed->keeper_wake, &packed->keeper_lock,
						     CLOCK_MONOTONIC, &until);
		if (packed->stop)
			break;
		atomic_store(&packed->kicked, false);
		tick = kvc_now_ns() >= next_ns;
		if (tick)
			next_ns = kvc_now_ns() + TICK_NS;
		pthread_mutex_unlock(&packed->keeper_lock);
		keep(packed, tick);
		pthread_mutex_lock(&packed->keeper_lock);
	}
	packed->keeper_ended = true;
	pthread_cond_broadcast(&packed->keeper_wake);
	pthread_mutex_unlock(&packed->keeper_lock);
	return NULL;
}

static void start_keeper(struct kvc_packed *packed)
{
	sigset_t all, former;
	int rc;

	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS); /* pages of the index that are lost */
	(void)pthread_sigmask(SIG_SETMASK, &all, &former);
	rc = pthread_create(&packed->keeper, NULL, keeper, packed);
	(void)pthread_sigmask(SIG_SETMASK, &former, NULL);
	packed->keeper_runs = rc == 0;
	if (rc)
		kvc_log(KVC_LOG_WARNING, "%s: no keeper thread: %s; sets make room by themselves",
			packed->root->location, strerror(rc));
}

static int stop_keeper(struct kvc_packed *packed, uint64_t deadline_ns)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	int rc = 0;

	if (!packed->keeper_runs)
		return 0;
	pthread_mutex_lock(&packed->keeper_lock);
	packed->stop = true;
	pthread_cond_broadcast(&packed->keeper_wake);
	while (!packed->keeper_ended && !rc)
		rc = pthread_cond_clockwait(&packed->keeper_wake, &packed->keeper_lock,
					    CLOCK_MONOTONIC, &until);
	rc = packed->keeper_ended ? 0 : -EBUSY;
	pthread_mutex_unlock(&packed->keeper_lock);
	if (rc)
		return rc;
	(void)pthread_join(packed->keeper, NULL);
	packed->keeper_runs = false;
	return 0;
}

/* ---------------------------------------------------------------- batches */

uint32_t kvc_packed_enter(struct kvc_packed *packed)
{
	for (;;) {
		const unsigned turn = atomic_load(&packed->turn);

		atomic_fetch_add(&packed->active[turn & 1], 1);
		if (atomic_load(&packed->turn) == turn)
			return turn;
		atomic_fetch_sub(&packed->active[turn & 1], 1);
	}
}

void kvc_packed_leave(struct kvc_packed *packed, uint32_t turn)
{
	atomic_fetch_sub(&packed->active[turn & 1], 1);
}

bool kvc_packed_is_gone(struct kvc_packed *packed)
{
	if (!atomic_load_explicit(&packed->gone, memory_order_relaxed) &&
	    kvc_packed_map_removed(&packed->shm_map)) {
		atomic_store(&packed->gone, true);
		kvc_log(KVC_LOG_WARNING, "%s: its index was removed by others",
			packed->root->location);
	}
	return atomic_load_explicit(&packed->gone, memory_order_relaxed);
}

bool kvc_packed_is_there(const struct kvc_packed *packed)
{
	return !atomic_load_explicit(&packed->gone, memory_order_relaxed) &&
	       !kvc_packed_map_removed(&packed->shm_map);
}

/* ---------------------------------------------------------------- open, close */

static int open_files(struct kvc_packed *packed)
{
	const struct kvc_root *root = packed->root;
	const struct kvc_settings *settings = root->store->settings;
	struct kvc_packed_dir_params params = {
		.local_path = root->attributes.local_path,
		.file_mode = (mode_t)settings->file_mode,
		.folder_mode = (mode_t)settings->folder_mode,
		.read_only = packed->read_only,
	};
	int rc;

	memcpy(params.uuid, root->uuid, sizeof(params.uuid));
	rc = kvc_packed_dir_open(&params, &packed->dir);
	/* A reader opens it when it is there. */
	return rc || packed->read_only ? rc : open_lock(packed);
}

static void plugin_step(void *context, const char *step)
{
	const struct kvc_backend *backend = context;

	backend->module->ops.step(backend->handle, step);
}

static struct kvc_packed *packed_new(struct kvc_root *root)
{
	struct kvc_packed *packed = calloc(1, sizeof(*packed));

	if (!packed)
		return NULL;
	packed->root = root;
	packed->read_only = root->read_only || root->writes_refused;
	packed->quarantine_ns = QUARANTINE_NS;
	packed->shm_map.fd = packed->intents_map.fd = -1;
	atomic_store(&packed->random, kvc_now_ns());
	atomic_store(&packed->generation, UINT64_MAX);
	(void)pthread_mutex_init(&packed->take_lock, NULL);
	(void)pthread_mutex_init(&packed->arena_lock, NULL);
	(void)pthread_mutex_init(&packed->changes_lock, NULL);
	(void)pthread_cond_init(&packed->changes_ended, NULL);
	(void)pthread_mutex_init(&packed->dropped_lock, NULL);
	(void)pthread_mutex_init(&packed->keeper_lock, NULL);
	(void)pthread_cond_init(&packed->keeper_wake, NULL);
	packed->step = root->backend->module->ops.step ? plugin_step : NULL;
	packed->step_context = root->backend;
	return packed;
}

static void packed_free(struct kvc_packed *packed)
{
	kvc_packed_arenas_free(packed);
	if (packed->shm)
		kvc_packed_map_close(&packed->shm_map);
	kvc_packed_lock_close(packed->lock);
	kvc_packed_dir_close(packed->dir);
	(void)pthread_cond_destroy(&packed->keeper_wake);
	(void)pthread_mutex_destroy(&packed->keeper_lock);
	(void)pthread_mutex_destroy(&packed->dropped_lock);
	(void)pthread_cond_destroy(&packed->changes_ended);
	(void)pthread_mutex_destroy(&packed->changes_lock);
	(void)pthread_mutex_destroy(&packed->take_lock);
	(void)pthread_mutex_destroy(&packed->arena_lock);
	free(packed);
}

int kvc_packed_open(struct kvc_root *root, struct kvc_packed **out)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_packed *packed = packed_new(root);
	int rc;

	if (!packed)
		return kvc_fail(-ENOMEM, "%s: no memory for its index", root->location);
	rc = kvc_host_boot_id(packed->boot_id);
	if (!rc)
		rc = open_files(packed);
	if (!rc)
		rc = packed->read_only ? begin_reading(packed) : begin_writing(packed);
	if (!rc && !packed->read_only)
		rc = kvc_packed_entry_take(packed);
	if (rc) {
		packed_free(packed);
		return kvc_fail_since(mark, rc, "%s: the index of its packed layout",
				      root->location);
	}
	set_capacity(packed);
	tell_no_room(packed);
	kvc_packed_refresh(packed);
	start_keeper(packed);
	*out = packed;
	return 0;
}

void kvc_packed_retreat(struct kvc_packed *packed)
{
	(void)stop_keeper(packed, kvc_now_ns() + TICK_NS);
}

int kvc_packed_close(struct kvc_packed *packed, uint64_t deadline_ns)
{
	int rc;

	if (!packed)
		return 0;
	rc = stop_keeper(packed, deadline_ns);
	if (rc)
		return rc;
	if (!packed->read_only)
		kvc_packed_entry_give(packed);
	packed_free(packed);
	return 0;
}

/* ---------------------------------------------------------------- figures */

void kvc_packed_health(struct kvc_packed *packed, struct kvc_packed_health *out)
{
	struct kvc_packed_health health = {
		.capacity_bytes = packed->capacity_bytes,
		.segment_bytes = kvc_packed_hint(&packed->shm->segment_bytes),
		.evicted = atomic_load(&packed->evicted),
		.recovered = atomic_load(&packed->recovered),
		.broken = atomic_load(&packed->broken),
		.rebuilt = packed->rebuilt,
	};
	const uint32_t turn = kvc_packed_enter(packed);

	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const struct kvc_packed_table *table = kvc_packed_table_get(a);

		health.arenas++;
		health.segments += atomic_load(&a->record->present);
		health.live_slots += kvc_packed_hint(&a->record->live_slots);
		health.live_bytes += kvc_packed_hint(&a->record->live_slots) * a->slot_bytes;
		health.free_slots += kvc_packed_hint(&a->record->free_slots);
		health.table_entries += table ? table->bucket_count * KVC_PACKED_BUCKET : 0;
		health.broken |= kvc_packed_arena_broken(a);
	}
	kvc_packed_leave(packed, turn);
	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++) {
		health.processes += atomic_load(&packed->shm->processes[i].pid) != 0;
		health.quarantined += atomic_load(&packed->shm->processes[i].quarantined) != 0;
	}
	*out = health;
}

uint64_t kvc_packed_capacity(const struct kvc_packed *packed)
{
	return packed->capacity_bytes;
}

uint64_t kvc_packed_allocated(struct kvc_packed *packed, uint64_t ns_hash)
{
	uint64_t bytes = 0;

	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next)
		if (a->ns_hash == ns_hash)
			bytes +=
				atomic_load(&a->record->present) * kvc_packed_segment_file_bytes(a);
	return bytes;
}

void kvc_packed_usage(struct kvc_packed *packed, uint64_t ns_hash, bool all, uint64_t *out_bytes,
		      uint64_t *out_objects)
{
	uint64_t bytes = 0, objects = 0;

	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const uint64_t live = kvc_packed_hint(&a->record->live_slots);

		if (!all && a->ns_hash != ns_hash)
			continue;
		objects += live;
		bytes += live * a->slot_bytes;
	}
	*out_bytes = bytes;
	*out_objects = objects;
}
