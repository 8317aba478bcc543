/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: space, and what lies in a root (docs/on-disk-format.md has the forms). */
#include "doctor.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROOT_JSON	  ".kvcellar/root.json"
#define ROOT_JSON_MAX	  65536u
#define CLEANER_LOCK	  ".kvcellar/cleaner.lock"
#define SHM		  ".kvcellar/packed/root.shm"
#define SHM_MACHINE	  144 /* offset of the machine id, 32 bytes; the heartbeat follows */
#define OTHER_HOST_S	  60
#define TEMPORARY_PREFIX  ".kvctmp."
#define LOOKED_AT_MAX	  100000u
#define LOOK_S		  3
#define FUTURE_S	  120
#define INODES_LEAST_PART 100u

/* ---------------------------------------------------------------- root.json */

static char *read_file(int root_fd, const char *name, int *error)
{
	const int fd = openat(root_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *text = fd < 0 ? NULL : calloc(1, ROOT_JSON_MAX + 1);
	ssize_t n = text ? pread(fd, text, ROOT_JSON_MAX, 0) : -1;

	*error = n < 0 ? errno : 0;
	if (fd >= 0)
		(void)close(fd);
	if (n >= 0)
		return text;
	free(text);
	return NULL;
}

static bool holds_objects(int root_fd)
{
	const int fd = openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	bool found = false;

	while (entries && !found && (entry = readdir(entries)))
		found = entry->d_name[0] != '.' && strcmp(entry->d_name, "lost+found") != 0;
	if (entries)
		(void)closedir(entries);
	return found;
}

static void check_no_identity(struct doctor *doctor, int root_fd)
{
	if (strcmp(doctor_text(doctor, "naming"), "nixl") == 0)
		doctor_add(doctor, DOCTOR_OK, "root.json", NULL,
			   "none, which naming = \"nixl\" can do without");
	else if (holds_objects(root_fd))
		doctor_add(
			doctor, DOCTOR_WARNING, "root.json",
			"nothing, when the folder is to be a new root; else correct storage_dirs",
			"none, and the folder is not empty: it is no root yet");
	else
		doctor_add(doctor, DOCTOR_OK, "root.json", NULL,
			   "none: a new root, made by the first process that stores");
}

static void check_created(struct doctor *doctor, const json_t *identity)
{
	const char *created = json_string_value(json_object_get(identity, "created"));
	struct tm parts = { .tm_isdst = 0 };

	if (!created || !strptime(created, "%Y-%m-%dT%H:%M:%SZ", &parts))
		return;
	if (timegm(&parts) > time(NULL) + FUTURE_S)
		doctor_add(doctor, DOCTOR_PROBLEM, "clock", "set the clock (timedatectl, chrony)",
			   "the root was made at %s, which is in the future", created);
}

void doctor_check_identity_file(struct doctor *doctor, int root_fd, bool *out_is_root)
{
	int error = 0, major = 0, minor = 0;
	char *text = read_file(root_fd, ROOT_JSON, &error);
	json_t *identity = text ? json_loads(text, 0, NULL) : NULL;
	const char *layout = "", *naming = "";

	*out_is_root = identity != NULL;
	if (!text && error == ENOENT)
		check_no_identity(doctor, root_fd);
	else if (!text)
		doctor_add(doctor, DOCTOR_PROBLEM, "root.json",
			   "give the user of the server permission to read it",
			   "cannot be read: %s", strerror(error));
	else if (json_unpack(identity, "{s:{s:i, s:i}, s:s, s:s}", "format", "major", &major,
			     "minor", &minor, "storage_layout", &layout, "naming", &naming) != 0)
		doctor_add(
			doctor, DOCTOR_PROBLEM, "root.json",
			"restore it from a copy; or move the folder away: its pages are computed "
			"again",
			"damaged");
	else
		doctor_add(doctor, DOCTOR_OK, "root.json", NULL,
			   "format %d.%d, layout %s, naming %s", major, minor, layout, naming);
	check_created(doctor, identity);
	json_decref(identity);
	free(text);
}

/* ---------------------------------------------------------------- space */

struct space {
	uint64_t total;
	uint64_t free; /* to be had by this user */
	uint64_t used;
	uint64_t own;
	uint64_t capacity;
	uint64_t min_free;
	bool own_known;
};

static double percent(uint64_t part, uint64_t total)
{
	return total ? 100.0 * (double)part / (double)total : 0;
}

/* Cleaning takes away what is ours; what others store stays. */
static void check_watermarks(struct doctor *doctor, const struct space *space)
{
	const double high = json_number_value(doctor_option(doctor, "l3_cleaner_high_watermark"));
	const double low = json_number_value(doctor_option(doctor, "l3_cleaner_low_watermark"));
	const double used = percent(space->used, space->total);
	const uint64_t others = space->used > space->own ? space->used - space->own : 0;

	if (!doctor_flag(doctor, "l3_cleaner_enabled") || high <= 0 || used < high)
		return;
	if (space->own_known && percent(others, space->total) >= low)
		doctor_add(
			doctor, DOCTOR_PROBLEM, "watermark",
			"free the disk of others' files, set higher watermarks, or use a disk of "
			"its own with `capacity'",
			"%.1f%% of the disk are used, above the high mark of %.1f%%, and %.1f%% "
			"are others': cleaning cannot mend that",
			used, high, percent(others, space->total));
	else
		doctor_add(doctor, DOCTOR_WARNING, "watermark",
			   "nothing, when a process with the cleaner runs; else `kvcellar clean'",
			   "%.1f%% of the disk are used, above the high mark of %.1f%%", used,
			   high);
}

static void check_capacity(struct doctor *doctor, const struct space *space)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES];

	if (space->capacity > space->total)
		doctor_add(doctor, DOCTOR_PROBLEM, "capacity",
			   "set it below the size of the disk, or in percent of it",
			   "%s is more than the disk has: %s", cli_format_size(a, space->capacity),
			   cli_format_size(b, space->total));
	else if (space->own_known && space->capacity > space->own + space->free)
		doctor_add(doctor, DOCTOR_WARNING, "capacity",
			   "lower it, or free the disk of others' files",
			   "%s cannot be reached: others leave %s",
			   cli_format_size(a, space->capacity),
			   cli_format_size(b, space->own + space->free));
	else if (space->capacity)
		doctor_add(doctor, DOCTOR_OK, "capacity", NULL, "%s of %s used",
			   cli_format_size(a, space->own), cli_format_size(b, space->capacity));
}

static void check_free(struct doctor *doctor, const struct space *space)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES];

	if (space->free == 0)
		doctor_add(doctor, DOCTOR_PROBLEM, "space", "free space on the disk",
			   "the file system is full");
	else if (space->min_free > space->total)
		doctor_add(doctor, DOCTOR_PROBLEM, "space", "lower min_free",
			   "min_free is %s, the disk has %s: nothing is stored",
			   cli_format_size(a, space->min_free), cli_format_size(b, space->total));
	else if (space->free <= space->min_free)
		doctor_add(doctor, DOCTOR_PROBLEM, "space",
			   "free the disk of others' files, or lower min_free",
			   "%s free, min_free is %s: nothing more is stored",
			   cli_format_size(a, space->free), cli_format_size(b, space->min_free));
	else
		doctor_add(doctor, DOCTOR_OK, "space", NULL, "%s of %s free",
			   cli_format_size(a, space->free), cli_format_size(b, space->total));
}

void doctor_check_space(struct doctor *doctor, const struct statvfs *fs, const json_t *facts)
{
	const json_t *index = json_object_get(facts, "index");
	const char *own = json_string_value(json_object_get(facts, "own"));
	struct space space = {
		.total = (uint64_t)fs->f_blocks * fs->f_frsize,
		.free = (uint64_t)fs->f_bavail * fs->f_frsize,
		.used = (uint64_t)(fs->f_blocks - fs->f_bfree) * fs->f_frsize,
		.own = own ? strtoull(own, NULL, 10) : 0,
		.own_known = own && own[0] >= '0' && own[0] <= '9',
	};

	if (index)
		space.own += (uint64_t)json_integer_value(json_object_get(index, "segment_bytes")) -
			     (uint64_t)json_integer_value(json_object_get(index, "live_bytes"));
	space.capacity = doctor_share(doctor_option(doctor, "capacity"), space.total);
	space.min_free = doctor_share(doctor_option(doctor, "min_free"), space.total);
	check_free(doctor, &space);
	check_capacity(doctor, &space);
	check_watermarks(doctor, &space);
	if (fs->f_files && fs->f_favail < fs->f_files / INODES_LEAST_PART)
		doctor_add(doctor, fs->f_favail ? DOCTOR_WARNING : DOCTOR_PROBLEM, "inodes",
			   "use the packed layout, or a file system made with more inodes",
			   "%" PRIu64 " of %" PRIu64 " left", (uint64_t)fs->f_favail,
			   (uint64_t)fs->f_files);
}

/* ---------------------------------------------------------------- housekeeping */

/* Whether some process holds the lock of a file. */
static bool is_locked(int folder_fd, const char *name)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	const int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	bool locked;

	if (fd < 0)
		return true;
	locked = fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
	(void)close(fd);
	return locked;
}

struct holders {
	unsigned living;
	unsigned dead;
};

static struct holders count_holders(int root_fd, const char *folder)
{
	const int fd = openat(root_fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);
	struct holders holders = { 0, 0 };
	const struct dirent *entry;

	while (entries && (entry = readdir(entries))) {
		if (entry->d_name[0] == '.')
			continue;
		if (is_locked(dirfd(entries), entry->d_name))
			holders.living++;
		else
			holders.dead++;
	}
	if (entries)
		(void)closedir(entries);
	return holders;
}

/* The index of a packed root belongs to one host at a time. */
static void check_other_host(struct doctor *doctor, int root_fd)
{
	const int fd = openat(root_fd, SHM, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	char own[64] = "", theirs[33] = "";
	uint64_t beat = 0;
	int64_t age;

	if (fd < 0)
		return;
	if (pread(fd, theirs, 32, SHM_MACHINE) != 32 ||
	    pread(fd, &beat, sizeof(beat), SHM_MACHINE + 32) != (ssize_t)sizeof(beat))
		theirs[0] = '\0';
	(void)close(fd);
	(void)doctor_read_line("/etc/machine-id", own, sizeof(own));
	if (!theirs[0] || strncmp(own, theirs, 32) == 0)
		return;
	age = (int64_t)time(NULL) - (int64_t)le64toh(beat);
	if (age < OTHER_HOST_S)
		doctor_add(doctor, DOCTOR_PROBLEM, "host",
			   "end the processes there, or give each host a root of its own",
			   "another host (machine id %s) used the index %" PRId64 " s ago", theirs,
			   age);
	else
		doctor_add(
			doctor, DOCTOR_WARNING, "host",
			"nothing, when the disk was moved: the next process makes the index again",
			"another host (machine id %s) had it last", theirs);
}

/* The cleaner of a root of files has the first byte of this file locked. */
static void check_elected(struct doctor *doctor, int root_fd, const struct holders *pages)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	const int fd =
		openat(root_fd, CLEANER_LOCK, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	bool known, elected;

	if (fd < 0)
		return;
	known = fcntl(fd, F_OFD_GETLK, &lock) == 0;
	elected = lock.l_type != F_UNLCK;
	(void)close(fd);
	if (!known || !doctor_flag(doctor, "l3_cleaner_enabled"))
		return;
	if (elected)
		doctor_add(doctor, DOCTOR_OK, "cleaner", NULL, "a process is the cleaner");
	else if (pages->living)
		doctor_add(doctor, DOCTOR_WARNING, "cleaner",
			   "set l3_cleaner_enabled = true for the servers, too",
			   "%u process%s here, and none is the cleaner", pages->living,
			   pages->living == 1 ? "" : "es");
	else
		doctor_add(doctor, DOCTOR_OK, "cleaner", NULL,
			   "no process with counters here, and so no cleaner");
}

void doctor_check_housekeeping(struct doctor *doctor, int root_fd)
{
	const struct holders pages = count_holders(root_fd, ".kvcellar/stats");
	const struct holders leases = count_holders(root_fd, ".kvcellar/leases");

	if (pages.dead)
		doctor_add(doctor, DOCTOR_WARNING, "processes",
			   "find out why they died; the next process that opens the root for "
			   "writing removes the pages",
			   "%u running; %u page%s of counters of processes that died without "
			   "closing",
			   pages.living, pages.dead, pages.dead == 1 ? "" : "s");
	else
		doctor_add(doctor, DOCTOR_OK, "processes", NULL,
			   "%u with counters here, %u writer%s with a lease", pages.living,
			   leases.living, leases.living == 1 ? "" : "s");
	if (leases.living > pages.living)
		doctor_add(doctor, DOCTOR_WARNING, "leases",
			   "nothing, when this root is shared by network, or is not the first of "
			   "its store",
			   "%u writers hold a lease and have no counters here: those of other "
			   "hosts, or of stores whose first root is another",
			   leases.living - pages.living);
	check_elected(doctor, root_fd, &pages);
	check_other_host(doctor, root_fd);
}

/* ---------------------------------------------------------------- objects */

struct look {
	uint64_t seen;
	uint64_t temporary;
	uint64_t temporary_bytes;
	uint64_t future;
	char example[256]; /* of those from the future */
	time_t now;
	time_t end;
	bool cut;
};

static void look_at(struct look *look, int folder_fd, const char *name, const struct stat *st)
{
	(void)folder_fd;
	look->seen++;
	if (strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0 &&
	    st->st_mtime < look->now - 60) {
		look->temporary++;
		look->temporary_bytes += (uint64_t)st->st_blocks * 512;
	}
	if (st->st_mtime <= look->now + FUTURE_S)
		return;
	if (look->future++ == 0)
		(void)snprintf(look->example, sizeof(look->example), "%s", name);
}

/* A part of what is there: enough to see what is wrong, and never for long. */
static void look_into(struct look *look, int parent_fd, const char *name, unsigned depth)
{
	const int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	struct stat st;

	while (entries && (entry = readdir(entries))) {
		if (look->seen >= LOOKED_AT_MAX || time(NULL) > look->end || cli_interrupted()) {
			look->cut = true;
			break;
		}
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
		    fstatat(dirfd(entries), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			continue;
		if (S_ISREG(st.st_mode))
			look_at(look, dirfd(entries), entry->d_name, &st);
		else if (S_ISDIR(st.st_mode) && depth > 0)
			look_into(look, dirfd(entries), entry->d_name, depth - 1);
	}
	if (entries)
		(void)closedir(entries);
}

void doctor_check_objects(struct doctor *doctor, int root_fd)
{
	struct look look = { .now = time(NULL) };
	const char *of = "";
	char size[CLI_FORMAT_BYTES];

	look.end = look.now + LOOK_S;
	look_into(&look, root_fd, ".", 3);
	of = look.cut ? " of those looked at" : "";
	if (look.temporary)
		doctor_add(doctor, DOCTOR_WARNING, "orphans",
			   "nothing: the next process that opens the root for writing removes them",
			   "%" PRIu64 " unfinished file%s of %s%s, older than a minute",
			   look.temporary, look.temporary == 1 ? "" : "s",
			   cli_format_size(size, look.temporary_bytes), of);
	if (look.future)
		doctor_add(doctor, DOCTOR_WARNING, "clock",
			   "set the clock of this host, or of the one that wrote them",
			   "%" PRIu64 " file%s%s with a time in the future, as %s", look.future,
			   look.future == 1 ? "" : "s", of, look.example);
	if (!look.temporary && !look.future)
		doctor_add(doctor, DOCTOR_OK, "files", NULL,
			   "%" PRIu64 " looked at%s: no orphans, no time in the future", look.seen,
			   look.cut ? ", not all" : "");
}
