/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: what the kernel and the limits of this process allow. */
#include "doctor.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CAPABILITY_IPC_LOCK 14
#define DESCRIPTORS_BESIDE  256u /* of an engine, beside those of segments */
#define MAPS_PER_SEGMENT    2u
#define MAPS_BESIDE	    8192u
#define AIO_PER_QUEUE	    1024u
#define MEMLOCK_SMALL	    (UINT64_C(1) << 30)
#define CAPACITY_UNKNOWN    (UINT64_C(1) << 60)

/* 0, or why no ring can be made. */
static int try_uring(void)
{
	struct io_uring_params params;
	long fd;

	memset(&params, 0, sizeof(params));
	fd = syscall(SYS_io_uring_setup, 4, &params);
	if (fd < 0)
		return -errno;
	(void)close((int)fd);
	return 0;
}

static bool is_wanted(const struct doctor *doctor, const char *engine)
{
	const json_t *engines = doctor_option(doctor, "io_engines"), *one;
	size_t i;

	json_array_foreach(engines, i, one)
	{
		if (strcmp(json_string_value(one), engine) == 0)
			return true;
	}
	return false;
}

static void check_uring(struct doctor *doctor)
{
	const bool alone = json_array_size(doctor_option(doctor, "io_engines")) == 1;
	const int rc = try_uring();
	char disabled[32] = "";

	doctor->uring_works = rc == 0;
	if (!is_wanted(doctor, "io_uring"))
		return;
	if (rc == 0) {
		doctor_add(doctor, DOCTOR_OK, "io_uring", NULL, "allowed");
		return;
	}
	(void)doctor_read_line("/proc/sys/kernel/io_uring_disabled", disabled, sizeof(disabled));
	doctor_add(doctor, alone ? DOCTOR_PROBLEM : DOCTOR_WARNING, "io_uring",
		   rc == -ENOSYS ?
			   "use a kernel from 5.10 on, or live with the next engine" :
		   strcmp(disabled, "2") == 0 ?
			   "sysctl kernel.io_uring_disabled=0" :
		   strcmp(disabled, "1") == 0 ?
			   "sysctl kernel.io_uring_disabled=0, or put the user into the group of "
			   "kernel.io_uring_group" :
		   rc == -ENOMEM ?
			   "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=)" :
			   "run the container with a seccomp profile that allows io_uring_setup, "
			   "io_uring_enter and io_uring_register",
		   "io_uring_setup: %s%s%s%s", strerror(-rc),
		   disabled[0] ? "; kernel.io_uring_disabled is " : "", disabled,
		   alone ? "; io_engines names no other" : "; the next of io_engines is taken");
}

static bool has_capability(unsigned number)
{
	char line[256];
	FILE *status = fopen("/proc/self/status", "re");
	uint64_t set = 0;

	while (status && fgets(line, sizeof(line), status))
		if (strncmp(line, "CapEff:", 7) == 0)
			set = strtoull(line + 7, NULL, 16);
	if (status)
		(void)fclose(status);
	return set >> number & 1;
}

static void check_memlock(struct doctor *doctor)
{
	const json_t *wanted = doctor_plugin_option(doctor, "posix", "register_memory");
	char size[CLI_FORMAT_BYTES];
	struct rlimit limit;

	if (!json_is_true(wanted) || getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
		return;
	if (limit.rlim_cur == RLIM_INFINITY || has_capability(CAPABILITY_IPC_LOCK))
		doctor_add(doctor, DOCTOR_OK, "memlock", NULL, "%s",
			   limit.rlim_cur == RLIM_INFINITY ? "RLIMIT_MEMLOCK is unlimited" :
							     "CAP_IPC_LOCK: no limit holds");
	else if (limit.rlim_cur >= MEMLOCK_SMALL)
		doctor_add(doctor, DOCTOR_OK, "memlock", NULL,
			   "RLIMIT_MEMLOCK is %s: host memory up to that is registered",
			   cli_format_size(size, limit.rlim_cur));
	else
		doctor_add(doctor, DOCTOR_WARNING, "memlock",
			   "raise it for the server: ulimit -l unlimited, LimitMEMLOCK=infinity, "
			   "--ulimit memlock=-1",
			   "RLIMIT_MEMLOCK is %s: host memory beyond that is not registered with "
			   "the kernel, and pinned anew for each transfer",
			   cli_format_size(size, limit.rlim_cur));
}

static void check_descriptors(struct doctor *doctor)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	if (limit.rlim_cur < 1024)
		doctor_add(doctor, DOCTOR_WARNING, "descriptors",
			   "ulimit -n 65536, LimitNOFILE=65536, --ulimit nofile=65536",
			   "RLIMIT_NOFILE is %" PRIu64 ": a server has sockets besides",
			   (uint64_t)limit.rlim_cur);
	else
		doctor_add(doctor, DOCTOR_OK, "descriptors", NULL, "RLIMIT_NOFILE is %" PRIu64,
			   (uint64_t)limit.rlim_cur);
}

static void check_file_size(struct doctor *doctor)
{
	char size[CLI_FORMAT_BYTES];
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return;
	doctor_add(doctor, DOCTOR_WARNING, "file-size", "ulimit -f unlimited, LimitFSIZE=infinity",
		   "RLIMIT_FSIZE is %s: no longer file can be written",
		   cli_format_size(size, limit.rlim_cur));
}

static uint64_t number_of(const char *path)
{
	char line[64];

	return doctor_read_line(path, line, sizeof(line)) ? strtoull(line, NULL, 10) : 0;
}

/* Linux AIO is asked for only where io_uring is not to be had. */
static void check_aio(struct doctor *doctor)
{
	const uint64_t most = number_of("/proc/sys/fs/aio-max-nr");
	const uint64_t used = number_of("/proc/sys/fs/aio-nr");

	if (most == 0 || !is_wanted(doctor, "linux_aio") ||
	    (doctor->uring_works && is_wanted(doctor, "io_uring")))
		return;
	if (most < used + AIO_PER_QUEUE)
		doctor_add(doctor, DOCTOR_WARNING, "linux_aio", "sysctl fs.aio-max-nr=1048576",
			   "fs.aio-nr is %" PRIu64 " of fs.aio-max-nr = %" PRIu64
			   ": no room for a queue of %u requests",
			   used, most, AIO_PER_QUEUE);
	else
		doctor_add(doctor, DOCTOR_OK, "linux_aio", NULL,
			   "fs.aio-nr is %" PRIu64 " of fs.aio-max-nr = %" PRIu64, used, most);
}

void doctor_check_system(struct doctor *doctor)
{
	check_uring(doctor);
	check_aio(doctor);
	check_memlock(doctor);
	check_descriptors(doctor);
	check_file_size(doctor);
}

static uint64_t figure_of(const json_t *index, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(index, name));
}

void doctor_check_segments(struct doctor *doctor, const json_t *facts)
{
	const json_t *index = json_object_get(facts, "index");
	const uint64_t present = figure_of(index, "segments");
	const uint64_t bytes = figure_of(index, "segment_bytes");
	const uint64_t capacity = figure_of(index, "capacity_bytes");
	const uint64_t maps = number_of("/proc/sys/vm/max_map_count");
	uint64_t segments = present;
	struct rlimit limit;

	if (!index || present == 0 || bytes == 0)
		return;
	/* As many as there will be once the capacity is used. */
	if (capacity > bytes && capacity < CAPACITY_UNKNOWN)
		segments = capacity / (bytes / present);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
	    limit.rlim_cur < segments + DESCRIPTORS_BESIDE)
		doctor_add(doctor,
			   limit.rlim_cur < present + DESCRIPTORS_BESIDE ? DOCTOR_PROBLEM :
									   DOCTOR_WARNING,
			   "descriptors", "raise it: ulimit -n 65536, LimitNOFILE=65536",
			   "RLIMIT_NOFILE is %" PRIu64 ", the capacity is %" PRIu64
			   " segment files (%" PRIu64 " are there), one descriptor each",
			   (uint64_t)limit.rlim_cur, segments, present);
	else if (maps && maps < segments * MAPS_PER_SEGMENT + MAPS_BESIDE)
		doctor_add(doctor, DOCTOR_WARNING, "mappings", "sysctl vm.max_map_count=262144",
			   "vm.max_map_count is %" PRIu64 ", the capacity is %" PRIu64
			   " segments with %u mappings each",
			   maps, segments, MAPS_PER_SEGMENT);
	else
		doctor_add(doctor, DOCTOR_OK, "segments", NULL,
			   "%" PRIu64 " now, about %" PRIu64 " when full", present, segments);
}
