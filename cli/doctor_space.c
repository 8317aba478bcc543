/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar doctor: the space of a root, and what may become of it. */
#include "doctor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INODES_LEAST_PART 100u
#define AHEAD_PART	  32u /* of a capacity, that the cleaner keeps free */

struct space {
	uint64_t total;
	uint64_t free; /* to be had by this user */
	uint64_t used;
	uint64_t own;
	uint64_t capacity;
	uint64_t min_free;
	uint64_t pinned;
	uint64_t pins;
	bool own_known;
	bool is_packed;
};

static double percent(uint64_t part, uint64_t total)
{
	return total ? 100.0 * (double)part / (double)total : 0;
}

/* Cleaning takes away what is ours; what others store stays. With `capacity` they do not count. */
static void check_watermarks(struct doctor *doctor, const struct space *space)
{
	const double high = json_number_value(doctor_option(doctor, "l3_cleaner_high_watermark"));
	const double low = json_number_value(doctor_option(doctor, "l3_cleaner_low_watermark"));
	const double used = percent(space->used, space->total);
	const uint64_t others = space->used > space->own ? space->used - space->own : 0;

	if (space->capacity || high <= 0 || used < high)
		return;
	if (space->is_packed)
		doctor_add(doctor, DOCTOR_WARNING, "watermark",
			   "give the root a `capacity', or free the disk of others' files",
			   "%.1f%% of the disk are used, above the high mark of %.1f%%: a packed "
			   "root without `capacity' does not grow any more",
			   used, high);
	else if (!doctor_flag(doctor, "l3_cleaner_enabled"))
		return;
	else if (space->own_known && percent(others, space->total) >= low)
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

/* Whether processes give back what is too much. */
static bool returns(const struct doctor *doctor, const struct space *space)
{
	return space->is_packed || doctor_flag(doctor, "l3_cleaner_enabled");
}

static void check_capacity(struct doctor *doctor, const struct space *space)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES];

	if (space->capacity > space->total)
		doctor_add(doctor, DOCTOR_PROBLEM, "capacity",
			   "set it below the size of the disk, or in percent of it",
			   "%s is more than the disk has: %s", cli_format_size(a, space->capacity),
			   cli_format_size(b, space->total));
	else if (space->capacity && space->own_known && space->own > space->capacity)
		doctor_add(
			doctor, DOCTOR_WARNING, "capacity",
			returns(doctor, space) ?
				"nothing, when a process of the store runs; else `kvcellar clean "
				"--to 100%'" :
				"`kvcellar clean --to 100%'",
			"over capacity: %s of %s used; %s", cli_format_size(a, space->own),
			cli_format_size(b, space->capacity),
			returns(doctor, space) ?
				"what is too much is given back by a running process" :
				"the cleaner is off, and nothing is given back");
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

/* Where nothing goes by itself: until somebody makes room. */
static void check_full(struct doctor *doctor, const struct space *space)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES];

	if (returns(doctor, space) || !space->capacity || !space->own_known ||
	    space->own < space->capacity - space->capacity / AHEAD_PART)
		return;
	doctor_add(doctor, DOCTOR_WARNING, "full",
		   "set l3_cleaner_enabled = true; or let a cleaner of your own remove files, and "
		   "then run `kvcellar stat --recount', since what it removes is not counted",
		   "%s of %s are used and the cleaner is off: sets end FULL",
		   cli_format_size(a, space->own), cli_format_size(b, space->capacity));
}

static void check_pins(struct doctor *doctor, const struct space *space)
{
	const uint64_t most = space->capacity - space->capacity / AHEAD_PART;
	const bool whole = space->own_known && space->pinned >= space->own;
	char a[CLI_FORMAT_BYTES];

	if (space->pins == 0)
		return;
	if (space->pinned && (whole || (space->capacity && space->pinned > most)))
		doctor_add(
			doctor, DOCTOR_WARNING, "pins",
			"`kvcellar unpin' what need not stay, or raise `capacity'",
			"%s of %" PRIu64 " namespace%s are pinned, %s: where room is short, sets "
			"end FULL",
			cli_format_size(a, space->pinned), space->pins, space->pins == 1 ? "" : "s",
			whole ? "everything that is stored" : "all that `capacity' has room for");
	else
		doctor_add(doctor, DOCTOR_OK, "pins", NULL, "%" PRIu64 " namespace%s of %s",
			   space->pins, space->pins == 1 ? "" : "s",
			   cli_format_size(a, space->pinned));
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

static uint64_t figure_of(const json_t *facts, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(facts, name));
}

void doctor_check_space(struct doctor *doctor, const struct statvfs *fs, const json_t *facts)
{
	const json_t *index = json_object_get(facts, "index");
	const char *own = json_string_value(json_object_get(facts, "own"));
	struct space space = {
		.total = (uint64_t)fs->f_blocks * fs->f_frsize,
		.free = (uint64_t)fs->f_bavail * fs->f_frsize,
		/* As the cleaner has it: what is reserved for root counts as used. */
		.used = (uint64_t)(fs->f_blocks - fs->f_bavail) * fs->f_frsize,
		.own = own ? strtoull(own, NULL, 10) : 0,
		.pins = figure_of(facts, "pins"),
		.pinned = figure_of(facts, "pinned_bytes"),
		.own_known = own && own[0] >= '0' && own[0] <= '9',
		.is_packed = index != NULL,
	};

	if (index)
		space.own += figure_of(index, "segment_bytes") - figure_of(index, "live_bytes");
	space.capacity = doctor_share(doctor_option(doctor, "capacity"), space.total);
	space.min_free = doctor_share(doctor_option(doctor, "min_free"), space.total);
	check_free(doctor, &space);
	check_capacity(doctor, &space);
	check_full(doctor, &space);
	check_pins(doctor, &space);
	check_watermarks(doctor, &space);
	if (fs->f_files && fs->f_favail < fs->f_files / INODES_LEAST_PART)
		doctor_add(doctor, fs->f_favail ? DOCTOR_WARNING : DOCTOR_PROBLEM, "inodes",
			   "use the packed layout, or a file system made with more inodes",
			   "%" PRIu64 " of %" PRIu64 " left", (uint64_t)fs->f_favail,
			   (uint64_t)fs->f_files);
}
