/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: each storage directory, and what the store makes of it. */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_SECONDS 5

/* What was seen of a directory; all roots together, for what lies between them. */
struct place {
	const char *path;
	dev_t device;
	bool answers;
	bool is_there;
};

struct places {
	struct place *list;
	size_t count;
};

/* ---------------------------------------------------------------- does it answer */

/* A mount whose server is gone keeps whoever looks at it, and cannot be interrupted: a child looks
 * first. False: it did not come back. */
static bool answers(const char *path)
{
	const struct timespec pause = { .tv_nsec = 10000000 };
	struct statvfs fs;
	struct stat st;
	const pid_t pid = fork();

	if (pid < 0)
		return true; /* it cannot be found out this way */
	if (pid == 0) {
		(void)stat(path, &st);
		(void)statvfs(path, &fs);
		_exit(0);
	}
	for (int i = 0; i < ANSWER_SECONDS * 100; i++) {
		if (waitpid(pid, NULL, WNOHANG) == pid)
			return true;
		(void)nanosleep(&pause, NULL);
	}
	(void)kill(pid, SIGKILL);
	return false;
}

static void check_neighbours(struct doctor *doctor, const struct places *places,
			     const struct place *place)
{
	for (const struct place *other = places->list; other < place; other++)
		if (other->is_there && other->device == place->device) {
			doctor_add(doctor, DOCTOR_WARNING, "device",
				   "name one of them only, or put each on a disk of its own",
				   "on the same file system as %s: no more space and no more speed "
				   "than one of them",
				   other->path);
			return;
		}
}

/* ---------------------------------------------------------------- what the store says */

static const char *fact_of(const json_t *facts, const char *name)
{
	const char *text = json_string_value(json_object_get(facts, name));

	return text ? text : "";
}

static void check_io(struct doctor *doctor, const json_t *facts)
{
	const json_t *engines = doctor_option(doctor, "io_engines");
	const char *first = json_string_value(json_array_get(engines, 0));
	const char *engine = fact_of(facts, "io_engine"), *note = fact_of(facts, "note");
	const char *direct = fact_of(facts, "direct_io");

	if (engine[0] && first && strcmp(engine, first) != 0)
		doctor_add(doctor, DOCTOR_WARNING, "io_engine",
			   "see the check of that engine, or name the one you want in io_engines",
			   "%s instead of %s%s%s", engine, first, note[0] ? ": " : "", note);
	else if (engine[0])
		doctor_add(doctor, DOCTOR_OK, "io_engine", NULL, "%s", engine);
	if (doctor_flag(doctor, "use_direct_io") && strncmp(direct, "yes", 3) != 0)
		doctor_add(
			doctor, DOCTOR_WARNING, "direct_io",
			"use a file system that has it (ext4, xfs), or set use_direct_io = false",
			"O_DIRECT does not work there: pages go through the page cache%s%s",
			note[0] ? ": " : "", note);
	else
		doctor_add(doctor, DOCTOR_OK, "direct_io", NULL, "%s, alignment %s", direct,
			   fact_of(facts, "alignment"));
}

static json_int_t figure_of(const json_t *facts, const char *name)
{
	return json_integer_value(json_object_get(json_object_get(facts, "index"), name));
}

static void check_index(struct doctor *doctor, const json_t *facts)
{
	const json_int_t quarantined = figure_of(facts, "quarantined");

	if (!json_object_get(facts, "index"))
		return;
	if (figure_of(facts, "broken"))
		doctor_add(doctor, DOCTOR_PROBLEM, "index",
			   "end all processes that use this root; the next one makes the index "
			   "again from the segments",
			   "damaged: a page of it was lost");
	else if (quarantined)
		doctor_add(doctor, DOCTOR_WARNING, "index",
			   "nothing: the next running process takes their slots back within a "
			   "minute",
			   "%lld dead process%s with slots in quarantine", (long long)quarantined,
			   quarantined == 1 ? "" : "es");
	else
		doctor_add(doctor, DOCTOR_OK, "index", NULL,
			   "%lld live, %lld free slots in %lld segments, %lld processes",
			   (long long)figure_of(facts, "live_slots"),
			   (long long)figure_of(facts, "free_slots"),
			   (long long)figure_of(facts, "segments"),
			   (long long)figure_of(facts, "processes"));
	doctor_check_segments(doctor, facts);
}

static void check_state(struct doctor *doctor, const json_t *facts)
{
	const char *state = fact_of(facts, "state");

	if (strcmp(state, "suspect") == 0)
		doctor_add(doctor, DOCTOR_PROBLEM, "state", "look at the disk, and at the mount",
			   "suspect: its I/O stalled just now");
	else if (strcmp(state, "reads only") == 0)
		doctor_add(doctor, DOCTOR_PROBLEM, "state",
			   "use the version that wrote it, or a newer one",
			   "this version only reads what is stored there");
	else
		doctor_add(doctor, DOCTOR_OK, "opens", NULL, "layout %s, uuid %s",
			   fact_of(facts, "storage_layout"), fact_of(facts, "uuid"));
}

/* A layout is for good, and the reason may be gone tomorrow. */
static void check_layout(struct doctor *doctor, const json_t *facts, bool is_root)
{
	const char *reason = fact_of(facts, "layout_reason");

	if (reason[0] && is_root)
		doctor_add(doctor, DOCTOR_OK, "layout", NULL,
			   "files, as a new root here would get now, too: %s", reason);
	else if (reason[0])
		doctor_add(doctor, DOCTOR_WARNING, "layout",
			   "set `capacity' before the first process stores there, unless files are "
			   "what is wanted",
			   "a new root gets the files layout: %s", reason);
}

/* The facts of one root: from the whole store, or, when that does not open, by itself. A new
 * reference; NULL after it was told. */
static json_t *facts_of(struct doctor *doctor, const char *path)
{
	const json_t *facts = doctor_root_facts(doctor->description, path);
	json_t *members, *description = NULL, *own = NULL;
	struct kvc_config *config = NULL;
	char *cause = NULL;

	if (facts)
		return json_deep_copy(facts);
	if (doctor->refused)
		return NULL;
	members = doctor_quiet();
	if (members)
		(void)json_object_set_new(members, "storage_dirs", json_pack("[s]", path));
	if (members && doctor_config(doctor, members, &config) == 0)
		description =
			doctor_describe(config, KVC_OPEN_READ_ONLY | KVC_OPEN_NO_SELFTEST, &cause);
	else
		cause = strdup(kvc_last_error());
	facts = doctor_root_facts(description, path);
	own = facts ? json_deep_copy(facts) : NULL;
	if (!own)
		doctor_add(doctor, DOCTOR_PROBLEM, "opens", "mend what the cause names",
			   "does not open: %s", cause ? cause : "unknown");
	free(cause);
	json_decref(description);
	json_decref(members);
	kvc_config_free(config);
	return own;
}

/* ---------------------------------------------------------------- self-test */

/* Of this root alone, and so that nothing else happens to what is stored there. */
static json_t *selftest_members(const char *path)
{
	json_t *members = doctor_quiet();

	if (members)
		(void)json_object_update_new(members,
					     json_pack("{s:[s], s:i, s:b}", "storage_dirs", path,
						       "min_free", 0, "l3_cleaner_enabled", 0));
	return members;
}

/* What was found out by opening it for that goes to *out_facts: a new reference, or NULL. */
static int run_selftest(const struct doctor *doctor, const char *path, json_t **out_facts)
{
	const struct kvc_open_params params = { .size = sizeof(params),
						.flags = KVC_OPEN_NO_SELFTEST };
	json_t *members = selftest_members(path);
	struct kvc_config *config = NULL;
	struct kvc_store *store = NULL;
	json_t *description = NULL;
	int rc = members ? doctor_config(doctor, members, &config) : -ENOMEM;

	if (rc == 0)
		rc = kvc_store_open(config, &params, &store);
	if (rc == 0)
		description = doctor_description(store);
	*out_facts = json_deep_copy(doctor_root_facts(description, path));
	if (rc == 0)
		rc = kvc_store_selftest(store);
	json_decref(description);
	/* A close that succeeds does not change the text of what failed. */
	(void)kvc_store_close(store);
	kvc_config_free(config);
	json_decref(members);
	return rc;
}

/* What is no root yet is to stay so: one file without a name, which is gone when it is closed. */
static int try_file(int root_fd)
{
	static const char text[] = "kvcellar doctor";
	char back[sizeof(text)];
	const int fd = openat(root_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	int rc = 0;

	if (fd < 0)
		return -errno;
	if (pwrite(fd, text, sizeof(text), 0) != (ssize_t)sizeof(text) || fdatasync(fd) != 0)
		rc = errno ? -errno : -ENOSPC;
	else if (pread(fd, back, sizeof(back), 0) != (ssize_t)sizeof(back) ||
		 memcmp(back, text, sizeof(text)) != 0)
		rc = -EIO;
	(void)close(fd);
	return rc;
}

static void check_selftest(struct doctor *doctor, const char *path, int root_fd, bool is_root,
			   json_t **out_facts)
{
	struct timespec begin, end;
	char text[CLI_FORMAT_BYTES];
	int rc;

	(void)clock_gettime(CLOCK_MONOTONIC, &begin);
	errno = 0;
	rc = is_root ? run_selftest(doctor, path, out_facts) : try_file(root_fd);
	(void)clock_gettime(CLOCK_MONOTONIC, &end);
	if (rc == 0)
		doctor_add(doctor, DOCTOR_OK, "self-test", NULL, "written, read and removed in %s",
			   cli_format_seconds(text,
					      (double)(end.tv_sec - begin.tv_sec) +
						      (double)(end.tv_nsec - begin.tv_nsec) / 1e9));
	else if (!is_root && rc == -EOPNOTSUPP)
		doctor_add(doctor, DOCTOR_OK, "self-test", NULL,
			   "not made: it is no root yet, and its file system has no O_TMPFILE");
	else
		doctor_add(doctor, DOCTOR_PROBLEM, "self-test",
			   "mend what the cause names; the log of the kernel tells of a bad disk",
			   "%s", is_root ? kvc_last_error() : strerror(-rc));
}

/* ---------------------------------------------------------------- one root */

static void check_contents(struct doctor *doctor, const char *path, int fd,
			   const struct statvfs *fs, bool writable)
{
	json_t *facts, *tried = NULL;
	bool is_root = false;

	doctor_check_identity_file(doctor, fd, &is_root);
	facts = facts_of(doctor, path);
	if (facts) {
		check_state(doctor, facts);
		check_layout(doctor, facts, is_root);
		check_index(doctor, facts);
	}
	doctor_check_space(doctor, fs, facts);
	doctor_check_housekeeping(doctor, fd);
	doctor_check_objects(doctor, fd, facts);
	if (facts && writable && !doctor->read_only)
		check_selftest(doctor, path, fd, is_root, &tried);
	/* Who opens it for writing tries what works; who reads only cannot. */
	if (facts)
		check_io(doctor, tried ? tried : facts);
	json_decref(tried);
	json_decref(facts);
}

static bool is_writable(int fd, const struct statvfs *fs)
{
	char self[32];

	(void)snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	return !(fs->f_flag & ST_RDONLY) && faccessat(AT_FDCWD, self, W_OK | X_OK, AT_EACCESS) == 0;
}

static void check_root(struct doctor *doctor, const struct places *places, struct place *place)
{
	const int fd = open(place->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const int error = errno;
	struct statvfs fs;
	struct stat st;

	doctor->root = place->path;
	if (fd < 0 && error == EACCES && access(place->path, F_OK) == 0)
		doctor_add(doctor, DOCTOR_PROBLEM, "access",
			   "give user or group of the server all permissions to it",
			   "cannot be read: %s", strerror(error));
	else if (fd < 0)
		doctor_check_missing(doctor, place->path, error);
	if (fd < 0)
		return;
	doctor_check_link(doctor, place->path);
	if (fstat(fd, &st) == 0 && fstatvfs(fd, &fs) == 0) {
		place->is_there = true;
		place->device = st.st_dev;
		doctor_check_folder(doctor, fd, &st, &fs);
		check_neighbours(doctor, places, place);
		check_contents(doctor, place->path, fd, &fs, is_writable(fd, &fs));
	} else {
		doctor_add(doctor, DOCTOR_PROBLEM, "folder",
			   "look at the disk, and at the log of the kernel", "%s", strerror(errno));
	}
	(void)close(fd);
}

/* ---------------------------------------------------------------- all of them */

static const char *plugin_of(const struct doctor *doctor)
{
	const json_t *candidates = json_object_get(doctor->effective, "candidates"), *candidate;
	size_t i;

	json_array_foreach(candidates, i, candidate)
	{
		if (json_is_true(json_object_get(candidate, "valid")))
			return json_string_value(json_object_get(candidate, "plugin"));
	}
	return "";
}

static bool has_folders(const struct doctor *doctor)
{
	static const char *const without[] = { "mem", "obj", "azure_blob", "gusli", "ucx" };
	const char *plugin = json_string_value(
		json_object_get(json_object_get(doctor->description, "store"), "plugin"));

	plugin = plugin ? plugin : plugin_of(doctor);
	for (size_t i = 0; i < sizeof(without) / sizeof(without[0]); i++)
		if (strcmp(plugin, without[i]) == 0)
			return false;
	return true;
}

/* What is in memory is made by opening it. */
static unsigned open_flags(const struct doctor *doctor)
{
	return KVC_OPEN_NO_SELFTEST |
	       (strcmp(plugin_of(doctor), "mem") == 0 ? 0 : KVC_OPEN_READ_ONLY);
}

/* Of the whole configuration. With directories that do not answer it is not tried. */
static void check_store(struct doctor *doctor, const struct places *places)
{
	struct kvc_config *config = NULL;
	json_t *members = doctor_quiet();
	char *cause = NULL;
	bool missing = false;

	for (size_t i = 0; i < places->count; i++) {
		if (!places->list[i].answers)
			goto out;
		missing = missing || access(places->list[i].path, F_OK) != 0;
	}
	if (!doctor->refused && doctor_config(doctor, members, &config) == 0)
		doctor->description = doctor_describe(config, open_flags(doctor), &cause);
	kvc_config_free(config);
	if (doctor->description)
		doctor_add(doctor, DOCTOR_OK, "store", NULL, "opens");
	else if (cause && missing) /* said of the directory; a new store has none yet */
		doctor_add(doctor, DOCTOR_WARNING, "store", "see the directory that does not exist",
			   "does not open to be read: %s", cause);
	else if (cause)
		doctor_add(doctor, DOCTOR_PROBLEM, "store",
			   "mend what the cause names; the checks of the directories tell more",
			   "does not open: %s", cause);
	free(cause);
out:
	json_decref(members);
}

static void check_cleaner(struct doctor *doctor)
{
	const char *cleaner = json_string_value(
		json_object_get(json_object_get(doctor->description, "store"), "cleaner"));
	const bool limited = !json_is_null(doctor_option(doctor, "capacity")) ||
			     doctor_share(doctor_option(doctor, "min_free"), 100) > 0;

	if (!doctor->effective)
		return;
	if (!doctor_flag(doctor, "l3_cleaner_enabled") && !limited)
		doctor_add(
			doctor, DOCTOR_WARNING, "cleaner",
			"set l3_cleaner_enabled = true, or capacity or min_free, unless a cleaner "
			"of your own looks after the disk",
			"off, and neither capacity nor min_free is set: files fill the disk");
	else
		doctor_add(doctor, DOCTOR_OK, "cleaner", NULL, "%s",
			   cleaner				     ? cleaner :
			   doctor_flag(doctor, "l3_cleaner_enabled") ? "enabled" :
								       "off");
}

void doctor_check_roots(struct doctor *doctor)
{
	const json_t *dirs = doctor_option(doctor, "storage_dirs"), *dir;
	struct places places = { .count = 0 };
	size_t i;

	places.list = calloc(json_array_size(dirs) + 1, sizeof(*places.list));
	if (!places.list)
		return;
	json_array_foreach(dirs, i, dir)
	{
		struct place *place = &places.list[places.count++];

		place->path = json_string_value(dir);
		place->answers = answers(place->path);
	}
	check_store(doctor, &places);
	check_cleaner(doctor);
	for (i = 0; i < places.count && has_folders(doctor) && !cli_interrupted(); i++) {
		if (places.list[i].answers) {
			check_root(doctor, &places, &places.list[i]);
			continue;
		}
		doctor->root = places.list[i].path;
		doctor_add(doctor, DOCTOR_PROBLEM, "folder",
			   "bring its server back, or take the mount away (umount -l)",
			   "does not answer within %d s", ANSWER_SECONDS);
	}
	doctor->root = NULL;
	free(places.list);
}
