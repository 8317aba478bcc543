/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a packed root after a reboot or damage. What the page cache had not written is lost,
 * in any order: only a slot whose header is whole is kept, and its data are looked at when they are
 * read first. Nobody else uses the root meanwhile.
 *
 * What was done before an end in the middle is done again by the next rebuild: the boot id, which
 * says that there is nothing to do, is stored last.
 */
#include "core/packed_internal.h"

#include "core/checksum.h"
#include "core/folder.h"
#include "core/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS_FOLDER   "slots-"
#define READ_AHEAD     8u		   /* segments */
#define GENERATION_MAX (UINT64_C(1) << 43) /* a larger one is damage */
#define TIME_MAX       (UINT64_C(1) << 56) /* of a stamp, likewise */

/* ---------------------------------------------------------------- names */

/* The number in "<prefix><number>", or 0: it is another name. */
static uint64_t number_in(const char *name, const char *prefix, uint64_t max)
{
	const size_t length = strlen(prefix);
	uint64_t number = 0;

	if (strncmp(name, prefix, length) != 0 || name[length] == '0')
		return 0;
	for (const char *c = name + length; *c; c++) {
		if (*c < '0' || *c > '9' || number > max)
			return 0;
		number = number * 10 + (uint64_t)(*c - '0');
	}
	return number <= max ? number : 0;
}

static uint32_t segment_in(const char *name, const char *prefix)
{
	return (uint32_t)number_in(name, prefix, KVC_PACKED_SEGMENTS_MAX - 1);
}

/* ---------------------------------------------------------------- headers of segments */

/* An arena as a header of a segment tells it. */
struct found {
	uint64_t ns_hash;
	uint32_t slots; /* 0: no whole header yet */
};

static bool is_slot_size(uint64_t bytes)
{
	return bytes != 0 && bytes % KVC_BLOCK_BYTES == 0 && bytes <= UINT32_MAX;
}

/* 0, -EBADMSG: it is no header of that segment of ours; -EPROTONOSUPPORT: another version's, which
 * was told of; or it cannot be told. */
static int read_hdr(struct kvc_packed *packed, const char *path, uint64_t slot_bytes,
		    uint32_t segment, struct found *out)
{
	struct kvc_packed_hdr hdr;
	struct kvc_packed_map map;
	int rc = kvc_packed_map_open(packed->dir, path, &kvc_packed_hdr_kind, (uint8_t *)&hdr,
				     KVC_PACKED_MAP_READ_ONLY, NULL, &map);

	if (rc == -EPROTONOSUPPORT)
		return kvc_packed_refuse_version(packed, path, &kvc_packed_hdr_kind, &hdr);
	if (rc == -ENOMSG || rc == -ENOENT || rc == -EINVAL)
		return -EBADMSG;
	if (rc)
		return rc;
	kvc_packed_map_close(&map);
	if (memcmp(hdr.uuid, packed->shm->uuid, sizeof(hdr.uuid)) != 0 || hdr.segment != segment ||
	    hdr.slot_bytes != slot_bytes || hdr.slots == 0 || hdr.slots > KVC_PACKED_SLOTS_MAX ||
	    hdr.header.file_bytes != kvc_packed_hdr_layout(hdr.slots).file_bytes)
		return -EBADMSG;
	*out = (struct found){ .ns_hash = hdr.ns_hash, .slots = hdr.slots };
	return 0;
}

/* ---------------------------------------------------------------- records */

/* A folder of slots below a namespace's. */
struct finder {
	struct kvc_packed *packed;
	const char *namespace;
	uint64_t slot_bytes;
	struct found found;
};

/* All are looked at: one of another version must not be taken for damage later. */
static int try_hdr(void *context, const char *name)
{
	struct finder *finder = context;
	const uint32_t segment = segment_in(name, "hdr.");
	struct found found;
	char path[256];
	int rc;

	if (segment == 0)
		return 0;
	(void)snprintf(path, sizeof(path), "%s/" SLOTS_FOLDER "%llu/hdr.%u", finder->namespace,
		       (unsigned long long)finder->slot_bytes, segment);
	rc = read_hdr(finder->packed, path, finder->slot_bytes, segment, &found);
	if (rc == -EBADMSG)
		return 0;
	if (rc && rc != -EPROTONOSUPPORT)
		return kvc_fail(rc, "%s/%s: %s", finder->packed->root->location, path,
				strerror(-rc));
	if (!rc && finder->found.slots == 0)
		finder->found = found;
	return rc;
}

static struct kvc_packed_record *free_record(struct kvc_packed_shm *shm)
{
	for (uint32_t i = 0; i < KVC_PACKED_ARENAS; i++)
		if (atomic_load(&shm->arenas[i].state) == 0)
			return &shm->arenas[i];
	return NULL;
}

static int find_in_folder(struct finder *finder)
{
	struct kvc_packed *packed = finder->packed;
	struct kvc_packed_record *record;
	char folder[256];
	int rc;

	(void)snprintf(folder, sizeof(folder), "%s/" SLOTS_FOLDER "%llu", finder->namespace,
		       (unsigned long long)finder->slot_bytes);
	finder->found.slots = 0;
	rc = kvc_packed_dir_list(packed->dir, folder, try_hdr, finder);
	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (finder->found.slots == 0)
		return 0;
	record = free_record(packed->shm);
	if (!record) {
		kvc_log(KVC_LOG_WARNING, "%s/%s: more than %u sizes of slots: left alone",
			packed->root->location, folder, KVC_PACKED_ARENAS);
		return 0;
	}
	memset((void *)record, 0, sizeof(*record));
	record->ns_hash = finder->found.ns_hash;
	record->slot_bytes = finder->slot_bytes;
	record->segment_slots = finder->found.slots;
	(void)snprintf(record->folder, sizeof(record->folder), "%s", finder->namespace);
	kvc_packed_step(packed, "packed.rebuild.record");
	atomic_store(&record->state, 1);
	return 0;
}

static int find_in_namespace(void *context, const char *name)
{
	struct kvc_packed *packed = context;
	struct finder finder = { .packed = packed, .namespace = name };
	const struct dirent *entry;
	char path[PATH_MAX];
	DIR *dir;
	int fd, rc = 0;

	if (strlen(name) >= sizeof(packed->shm->arenas[0].folder))
		return 0;
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", packed->root->attributes.local_path,
			     name) >= sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	dir = fd >= 0 ? fdopendir(fd) : NULL;
	if (!dir) {
		rc = errno == ENOENT || errno == ENOTDIR || errno == ELOOP ?
			     0 :
			     kvc_fail(-errno, "%s: %s", path, strerror(errno));
		if (fd >= 0)
			(void)close(fd);
		return rc;
	}
	while (!rc && (entry = readdir(dir))) {
		finder.slot_bytes = number_in(entry->d_name, SLOTS_FOLDER, UINT32_MAX);
		if (is_slot_size(finder.slot_bytes))
			rc = find_in_folder(&finder);
	}
	(void)closedir(dir);
	return rc;
}

bool kvc_packed_record_is_sane(const struct kvc_packed_record *record)
{
	const char *end = memchr(record->folder, '\0', sizeof(record->folder));

	return atomic_load(&record->state) == 1 && is_slot_size(record->slot_bytes) &&
	       record->segment_slots != 0 && record->segment_slots <= KVC_PACKED_SLOTS_MAX && end &&
	       end != record->folder && record->folder[0] != '.' && !strchr(record->folder, '/') &&
	       atomic_load(&record->segments) < KVC_PACKED_SEGMENTS_MAX;
}

/* Records have no CRC, and may be older than the segments: where there are folders, these tell what
 * there is. */
static int find_records(struct kvc_packed *packed)
{
	const bool from_folders = packed->root->attributes.local_path != NULL;

	for (uint32_t i = 0; i < KVC_PACKED_ARENAS; i++) {
		struct kvc_packed_record *record = &packed->shm->arenas[i];

		if (from_folders || !kvc_packed_record_is_sane(record))
			memset((void *)record, 0, sizeof(*record));
	}
	return from_folders ? kvc_folder_each(packed->root, kvc_folder_is_namespace,
					      find_in_namespace, packed) :
			      0;
}

/* ---------------------------------------------------------------- the files of an arena */

/* Segments whose header file is there, in rising order. */
struct numbers {
	uint32_t *list;
	size_t count;
	size_t room;
};

static int numbers_add(struct numbers *numbers, uint32_t number)
{
	if (numbers->count == numbers->room) {
		const size_t room = numbers->room ? 2 * numbers->room : 64;
		uint32_t *more = realloc(numbers->list, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		numbers->list = more;
		numbers->room = room;
	}
	numbers->list[numbers->count++] = number;
	return 0;
}

static int compare(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static bool numbers_have(const struct numbers *numbers, uint32_t number)
{
	return numbers->count &&
	       bsearch(&number, numbers->list, numbers->count, sizeof(*numbers->list), compare);
}

/* An arena that is being made whole. */
struct job {
	struct kvc_packed_arena *arena;
	struct numbers numbers;
	uint64_t slots;
	uint64_t live;
	uint64_t latest; /* use */
	uint32_t lanes;
};

static int note_hdr(void *context, const char *name)
{
	struct job *job = context;
	const uint32_t number = segment_in(name, "hdr.");

	return number ? numbers_add(&job->numbers, number) : 0;
}

static bool may_remove(const struct kvc_packed *packed)
{
	return !packed->read_only && !packed->private_index;
}

static void remove_segment(struct kvc_packed_arena *arena, uint32_t number)
{
	if (may_remove(arena->packed))
		kvc_packed_segment_remove(arena, number);
}

/* What belongs to no segment: the rest of one, tables, which are made anew. */
static int remove_stray(void *context, const char *name)
{
	struct job *job = context;
	const uint32_t seg = segment_in(name, "seg."), names = segment_in(name, "names.");
	const uint32_t table = (uint32_t)number_in(name, "table.", UINT32_MAX);

	if (seg && !numbers_have(&job->numbers, seg))
		remove_segment(job->arena, seg);
	if (names && !numbers_have(&job->numbers, names))
		kvc_packed_arena_remove(job->arena, "names", names);
	if (table)
		kvc_packed_arena_remove(job->arena, "table", table);
	return 0;
}

/* ---------------------------------------------------------------- slots */

static bool is_whole(const struct kvc_packed_segment *segment, const struct kvc_packed_slot *slot,
		     uint64_t state)
{
	const uint64_t len_crc = atomic_load_explicit(&slot->len_crc, memory_order_relaxed);
	const uint64_t more = atomic_load_explicit(&slot->created_depth, memory_order_relaxed);

	return kvc_packed_st(state) == KVC_PACKED_LIVE && kvc_packed_gen(state) < GENERATION_MAX &&
	       kvc_packed_len(len_crc) != 0 &&
	       kvc_packed_len(len_crc) <= segment->arena->slot_bytes &&
	       (kvc_packed_flags(more) & KVC_PACKED_CHECKSUM) < KVC_CHECKSUM_CALLER &&
	       kvc_packed_lane(more) < KVC_PACKED_LANES &&
	       kvc_packed_slot_crc(slot, state) == (uint32_t)(len_crc >> 32);
}

static void keep_slot(struct job *job, struct kvc_packed_segment *segment, uint32_t number)
{
	const uint64_t more =
		atomic_load_explicit(&segment->headers[number].created_depth, memory_order_relaxed);
	uint64_t stamp = atomic_load_explicit(&segment->stamps[number], memory_order_relaxed);

	if (stamp >> 1 >= TIME_MAX)
		stamp = 0;
	if (stamp >> 1 > job->latest)
		job->latest = stamp >> 1;
	job->lanes |= 1u << kvc_packed_lane(more);
	atomic_store_explicit(&segment->stamps[number], stamp | KVC_PACKED_SUSPECT,
			      memory_order_relaxed);
	job->live++;
}

/* The slots that are whole stay, with no bit; each bit that is then set is one to be freed, with a
 * generation that no slot of the segment had. */
static void scan_segment(struct job *job, struct kvc_packed_segment *segment, bool keep)
{
	uint64_t newest = 0;

	for (uint32_t at = 0; at < segment->slots; at += 64) {
		uint64_t bits = 0;

		for (uint32_t s = at; s < at + 64 && s < segment->slots; s++) {
			const uint64_t state = atomic_load_explicit(&segment->headers[s].state,
								    memory_order_relaxed);
			const uint64_t gen = kvc_packed_gen(state);

			if (gen > newest && gen < GENERATION_MAX)
				newest = gen;
			if (keep && is_whole(segment, &segment->headers[s], state))
				keep_slot(job, segment, s);
			else
				bits |= UINT64_C(1) << s % 64;
		}
		atomic_store_explicit(&segment->bitmap[at / 64], bits, memory_order_relaxed);
	}
	for (uint32_t at = 0; at < segment->slots; at += 64) {
		uint64_t bits =
			atomic_load_explicit(&segment->bitmap[at / 64], memory_order_relaxed);

		for (; bits; bits &= bits - 1) {
			const uint32_t s = at + (uint32_t)__builtin_ctzll(bits);

			atomic_store_explicit(&segment->headers[s].state,
					      kvc_packed_state(newest + 1, 0, KVC_PACKED_FREE),
					      memory_order_relaxed);
		}
	}
}

/* ---------------------------------------------------------------- segments */

/* The mapped segment; NULL: it was damaged, or half removed, and its files are gone. */
static int obtain_segment(struct job *job, uint32_t number, struct kvc_packed_segment **out)
{
	struct kvc_packed_arena *arena = job->arena;
	struct kvc_packed_segment *segment = kvc_packed_segment(arena, number);

	if (!segment && !kvc_packed_segment_is_gone(arena, number)) {
		char path[256];

		kvc_packed_arena_path(arena, "hdr", number, path);
		return kvc_fail(-EIO, "%s/%s cannot be mapped", arena->packed->root->location,
				path);
	}
	if (!segment)
		remove_segment(arena, number);
	*out = segment;
	return 0;
}

/* After a reboot nothing of them is in memory. */
static void read_ahead(struct job *job, size_t at)
{
	struct kvc_packed_segment *segment;

	if (at >= job->numbers.count)
		return;
	segment = kvc_packed_segment(job->arena, job->numbers.list[at]);
	if (segment)
		(void)madvise(segment->map.memory, segment->map.bytes, MADV_WILLNEED);
}

static int scan_segments(struct job *job)
{
	struct numbers *numbers = &job->numbers;
	size_t kept = 0;
	int rc = 0;

	for (size_t i = 0; i < READ_AHEAD; i++)
		read_ahead(job, i);
	for (size_t i = 0; i < numbers->count && !rc; i++) {
		struct kvc_packed_segment *segment = NULL;
		bool retired;

		read_ahead(job, i + READ_AHEAD);
		rc = obtain_segment(job, numbers->list[i], &segment);
		if (rc || !segment)
			continue;
		retired = atomic_load(&segment->hdr->retired) != 0;
		scan_segment(job, segment, !retired);
		/* What is to go is gone now that it is empty. */
		if (retired || atomic_load(&segment->broken)) {
			kvc_packed_segment_drop(segment);
			remove_segment(job->arena, numbers->list[i]);
			continue;
		}
		job->slots += segment->slots;
		numbers->list[kept++] = numbers->list[i];
		kvc_packed_step(job->arena->packed, "packed.rebuild.segment");
	}
	if (!rc)
		numbers->count = kept;
	return rc;
}

/* ---------------------------------------------------------------- arenas */

static int list_files(struct job *job, int (*fn)(void *context, const char *name))
{
	char path[256], *slash;
	int rc;

	kvc_packed_arena_path(job->arena, "hdr", 1, path);
	slash = strrchr(path, '/');
	*slash = '\0';
	rc = kvc_packed_dir_list(job->arena->packed->dir, path, fn, job);
	return rc == -ENOENT ? 0 : rc;
}

static void store_counts(const struct job *job)
{
	struct kvc_packed_record *record = job->arena->record;

	atomic_store(&record->present, (uint32_t)job->numbers.count);
	atomic_store(&record->lanes, job->lanes);
	atomic_store(&record->live_slots, job->live);
	atomic_store(&record->free_slots, job->slots - job->live);
}

/* No room for a table: a segment makes some, or a full disk would keep all of them from being
 * used. */
static void give_up_segment(struct job *job)
{
	const uint32_t number = job->numbers.list[--job->numbers.count];
	struct kvc_packed_segment *segment = kvc_packed_segment(job->arena, number);

	for (uint32_t s = 0; s < segment->slots; s++)
		job->live -= kvc_packed_st(atomic_load(&segment->headers[s].state)) ==
			     KVC_PACKED_LIVE;
	job->slots -= segment->slots;
	kvc_log(KVC_LOG_WARNING,
		"%s: the disk is full: a segment of %llu bytes is given up for the index",
		job->arena->packed->root->location,
		(unsigned long long)(segment->slots * job->arena->slot_bytes));
	kvc_packed_segment_drop(segment);
	remove_segment(job->arena, number);
	kvc_packed_reap(job->arena->packed, true);
	store_counts(job);
}

static int make_table(struct job *job)
{
	int rc;

	for (;;) {
		rc = job->slots ? kvc_packed_table_make(job->arena, job->slots) : 0;
		if (rc != -ENOSPC && rc != -EDQUOT)
			return rc;
		give_up_segment(job);
	}
}

static int rebuild_arena(struct kvc_packed_arena *arena, uint64_t *latest, uint64_t *bytes)
{
	struct kvc_packed_record *record = arena->record;
	struct job job = { .arena = arena };
	struct numbers *numbers = &job.numbers;
	int rc = list_files(&job, note_hdr);

	if (rc)
		goto free;
	if (numbers->count > 1)
		qsort(numbers->list, numbers->count, sizeof(*numbers->list), compare);
	if (numbers->count && numbers->list[numbers->count - 1] > atomic_load(&record->segments))
		atomic_store(&record->segments, numbers->list[numbers->count - 1]);
	atomic_store(&record->cursor, 0);
	atomic_store(&record->epoch, 0);
	rc = scan_segments(&job);
	if (!rc && may_remove(arena->packed))
		rc = list_files(&job, remove_stray);
	if (rc)
		goto free;
	store_counts(&job);
	kvc_packed_step(arena->packed, "packed.rebuild.scanned");
	rc = make_table(&job);
	*latest = job.latest > *latest ? job.latest : *latest;
	*bytes += job.numbers.count * kvc_packed_segment_file_bytes(arena);
free:
	free(numbers->list);
	return rc;
}

/* ---------------------------------------------------------------- all of it */

/* What is whole stays: on a full disk there is no room for another one. */
static int clear_intents(void *context, const char *name)
{
	struct kvc_packed *packed = context;
	const bool is_first = strcmp(name, "intents.0") == 0;
	const uint32_t entry = (uint32_t)number_in(name, "intents.", KVC_PACKED_PROCESSES - 1);
	char path[64];

	if ((entry == 0 && !is_first) || kvc_packed_intents_clear(packed, entry) == 0)
		return 0;
	(void)snprintf(path, sizeof(path), KVC_PACKED_FOLDER "/intents.%u", entry);
	(void)kvc_packed_dir_remove(packed->dir, path);
	return 0;
}

static void forget_processes(struct kvc_packed *packed)
{
	if (may_remove(packed))
		(void)kvc_packed_dir_list(packed->dir, KVC_PACKED_FOLDER, clear_intents, packed);
	for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++) {
		struct kvc_packed_entry *entry = &packed->shm->processes[i];

		atomic_store(&entry->pid, 0);
		atomic_store(&entry->quarantined, 0);
		atomic_store(&entry->started, 0);
	}
}

int kvc_packed_rebuild(struct kvc_packed *packed)
{
	const unsigned mark = kvc_fail_mark();
	struct kvc_packed_shm *shm = packed->shm;
	uint64_t latest = 0, bytes = 0;
	int rc;

	if (atomic_load(&packed->arenas))
		return kvc_fail(-EBUSY, "%s: its index is in use", packed->root->location);
	/* Who does not come to the end of it leaves it to the next one. */
	atomic_store(&shm->boot_id[0], 0);
	atomic_store(&shm->boot_id[1], 0);
	rc = find_records(packed);
	if (rc)
		return rc;
	packed->rebuilding = true;
	forget_processes(packed);
	kvc_packed_step(packed, "packed.rebuild.records");
	atomic_fetch_add(&shm->generation, 1);
	kvc_packed_refresh(packed);
	for (struct kvc_packed_arena *arena = atomic_load(&packed->arenas); arena && !rc;
	     arena = arena->next)
		rc = rebuild_arena(arena, &latest, &bytes);
	packed->rebuilding = false;
	if (rc)
		return kvc_fail_since(mark, rc, "%s: its index cannot be made again",
				      packed->root->location);
	atomic_store(&shm->segment_bytes, bytes);
	if (atomic_load(&shm->clock) <= latest || atomic_load(&shm->clock) >= TIME_MAX)
		atomic_store(&shm->clock, latest + 1);
	kvc_packed_step(packed, "packed.rebuild.counted");
	packed->rebuilt = true;
	atomic_store(&shm->boot_id[0], packed->boot_id[0]);
	atomic_store(&shm->boot_id[1], packed->boot_id[1]);
	return 0;
}
