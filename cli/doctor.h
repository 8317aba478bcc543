/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the checks of `kvcellar doctor` share. Each check stands by itself: what fails in one of
 * them keeps no other from being made, and every one says ok, or what is wrong and one remedy.
 * Readers: cli/doctor_*.c.
 */
#ifndef KVC_CLI_DOCTOR_H
#define KVC_CLI_DOCTOR_H

#include "cli.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

enum doctor_status {
	DOCTOR_OK,
	DOCTOR_WARNING,
	DOCTOR_PROBLEM,
};

/*
 * struct doctor
 * @checks       what was found: {"check", "root", "status", "text", "remedy"}
 * @counts       of them by enum doctor_status
 * @root         of the checks that follow; NULL: of none
 * @read_only    nothing is to be written, and what cannot be written is all right
 * @effective    the whole effective configuration; of -D alone when that is refused
 * @refused      the configuration is
 * @description  what the open store says of itself; NULL: it does not open
 */
struct doctor {
	struct kvc_cli *cli;
	json_t *checks;
	unsigned counts[3];
	const char *root;
	const char *told_root;
	bool told;
	bool read_only;
	bool refused;
	json_t *effective;
	json_t *description;
	bool uring_works;
};

/* Adds a check and, without --json, prints it. remedy: NULL for what is ok. */
void doctor_add(struct doctor *doctor, enum doctor_status status, const char *check,
		const char *remedy, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* A value of the effective configuration, by name; borrowed, NULL: there is none. */
const json_t *doctor_option(const struct doctor *doctor, const char *name);
const json_t *doctor_plugin_option(const struct doctor *doctor, const char *plugin,
				   const char *name);
bool doctor_flag(const struct doctor *doctor, const char *name);
const char *doctor_text(const struct doctor *doctor, const char *name); /* "" without one */

/* A share ("5%", or bytes) of that many bytes; 0: it is not set. */
uint64_t doctor_share(const json_t *value, uint64_t total_bytes);

/* Text of the library without an error told: NULL when there is none. */
char *doctor_library_text(cli_text_fn get, void *context);

/* The configuration as given, with other members on top (a JSON object, or NULL): 0 or a negative
 * errno, kvc_last_error() says why. */
int doctor_config(const struct doctor *doctor, const json_t *members, struct kvc_config **out);

/* Members with which a store writes nothing beside its roots: a new reference. */
json_t *doctor_quiet(void);

/* What the store of a configuration says of itself: a new reference, or NULL and in *cause (to be
 * freed) why it does not open. flags: enum kvc_open_flag. */
json_t *doctor_describe(const struct kvc_config *config, unsigned flags, char **cause);

/* The same of one that is open: a new reference, or NULL. */
json_t *doctor_description(struct kvc_store *store);

/* The facts of a root in a description, or NULL. */
const json_t *doctor_root_facts(const json_t *description, const char *root);

/* A line of a small file as /proc has them, without its newline. */
bool doctor_read_line(const char *path, char *buffer, size_t bytes);

/* The checks. */
void doctor_check_configuration(struct doctor *doctor);
void doctor_check_plugins(struct doctor *doctor);
void doctor_check_metrics(struct doctor *doctor);
void doctor_check_identity(struct doctor *doctor);
void doctor_check_system(struct doctor *doctor);
void doctor_check_segments(struct doctor *doctor, const json_t *facts);
void doctor_check_roots(struct doctor *doctor);
void doctor_check_missing(struct doctor *doctor, const char *path, int error);
void doctor_check_link(struct doctor *doctor, const char *path);
void doctor_check_folder(struct doctor *doctor, int fd, const struct stat *st,
			 const struct statvfs *fs);
void doctor_check_space(struct doctor *doctor, const struct statvfs *fs, const json_t *facts);
void doctor_check_housekeeping(struct doctor *doctor, int root_fd);
void doctor_check_objects(struct doctor *doctor, int root_fd, const json_t *facts);
void doctor_check_identity_file(struct doctor *doctor, int root_fd, bool *out_is_root);

#endif
