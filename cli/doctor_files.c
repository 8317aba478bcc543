/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: what lies in a root (docs/on-disk-format.md has the forms). */
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

#define ROOT_JSON	 ".kvcellar/root.json"
#define ROOT_JSON_MAX	 65536u
#define CLEANER_LOCK	 ".kvcellar/cleaner.lock"
#define SHM		 ".kvcellar/packed/root.shm"
#define SHM_MACHINE	 144 /* offset of the machine id, 32 bytes; the heartbeat follows */
#define OTHER_HOST_S	 60
#define TEMPORARY_PREFIX ".kvctmp."
#define LOOKED_AT_MAX	 100000u
#define LOOK_S		 3
#define FUTURE_S	 120
#define DEPTH		 3 /* of folders in a root */
#define COUNTS_OFF_PART	 8u
#define COUNTS_OFF_LEAST (UINT64_C(1) << 20)

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
	uint64_t objects_bytes;
	uint64_t future;
	char example[256]; /* of those from the future */
	time_t now;
	time_t end;
	bool in_namespace;
	bool cut;
};

/* "model-0123456789abcdef" */
static bool is_namespace(const char *name)
{
	const size_t bytes = strlen(name);

	return bytes > 17 && name[bytes - 17] == '-' &&
	       strspn(name + bytes - 16, "0123456789abcdef") == 16;
}

static bool is_hash_folder(const char *name)
{
	return strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2;
}

static void look_at(struct look *look, const char *folder, const char *name, const struct stat *st)
{
	look->seen++;
	if (strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0 &&
	    st->st_mtime < look->now - 60) {
		look->temporary++;
		look->temporary_bytes += (uint64_t)st->st_blocks * 512;
	}
	if (look->in_namespace && is_hash_folder(folder) && name[0] != '.')
		look->objects_bytes += (uint64_t)st->st_size;
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

	if (depth == DEPTH - 1)
		look->in_namespace = is_namespace(name);
	while (entries && (entry = readdir(entries))) {
		if (look->seen >= LOOKED_AT_MAX || time(NULL) > look->end || cli_interrupted()) {
			look->cut = true;
			break;
		}
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
		    fstatat(dirfd(entries), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			continue;
		if (S_ISREG(st.st_mode))
			look_at(look, name, entry->d_name, &st);
		else if (S_ISDIR(st.st_mode) && depth > 0)
			look_into(look, dirfd(entries), entry->d_name, depth - 1);
	}
	if (entries)
		(void)closedir(entries);
}

/* The counts of files against what was found. A part of the files can only be too much. */
static void check_counts(struct doctor *doctor, const json_t *facts, const struct look *look)
{
	const char *own = json_string_value(json_object_get(facts, "own"));
	const uint64_t slots = (uint64_t)json_integer_value(
		json_object_get(json_object_get(facts, "index"), "live_bytes"));
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES];
	uint64_t counted, larger, smaller;

	/* One that says how it was counted is not complete yet. */
	if (!own || own[0] < '0' || own[0] > '9' || strstr(own, "counted") ||
	    strcmp(doctor_text(doctor, "naming"), "nixl") == 0)
		return;
	counted = strtoull(own, NULL, 10);
	counted = counted > slots ? counted - slots : 0;
	if (look->cut && look->objects_bytes <= counted)
		return;
	larger = counted > look->objects_bytes ? counted : look->objects_bytes;
	smaller = counted > look->objects_bytes ? look->objects_bytes : counted;
	if (larger - smaller > COUNTS_OFF_LEAST && larger - smaller > larger / COUNTS_OFF_PART)
		doctor_add(doctor, DOCTOR_WARNING, "counts", "run `kvcellar stat --recount'",
			   "%s are counted in files, %s%s were found: others removed or brought "
			   "some",
			   cli_format_size(a, counted), cli_format_size(b, look->objects_bytes),
			   look->cut ? " and more" : "");
}

void doctor_check_objects(struct doctor *doctor, int root_fd, const json_t *facts)
{
	struct look look = { .now = time(NULL) };
	const char *of = "";
	char size[CLI_FORMAT_BYTES];

	look.end = look.now + LOOK_S;
	look_into(&look, root_fd, ".", DEPTH);
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
	check_counts(doctor, facts, &look);
}
