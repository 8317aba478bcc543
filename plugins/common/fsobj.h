/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsobj - objects as files below one folder: names, folders, atomic publishing, leases, listing and
 * the O_DIRECT probe. Serves every plugin whose roots are folders; moving the bytes is theirs.
 *
 * Everything below the root is reached by openat-style calls on folder descriptors, one component
 * at a time and never through a symlink. Descriptors of folders are kept in a bounded table.
 * All functions are thread-safe; one struct fsobj_file belongs to one thread at a time.
 */
#ifndef KVC_FSOBJ_H
#define KVC_FSOBJ_H

#include <kvcellar/plugin.h>

#include <stdbool.h>
#include <sys/types.h>

struct fsobj_root;

struct fsobj_params {
	const struct kvc_host *host;
	bool direct_io;
	mode_t file_mode;
	mode_t folder_mode;
};

/* What was found out about a root at open. */
struct fsobj_info {
	bool direct;	   /* O_DIRECT passed its probe */
	bool read_only;	   /* by wish, or the mount is */
	bool local;	   /* a local file system: locks are shared by all its users */
	bool tmpfile;	   /* O_TMPFILE and linkat work */
	bool preallocates; /* blocks are reserved before a new object is written */
	bool presizes;	   /* and its size is set with them */
	uint32_t alignment;
	char file_system[32];
	char note[KVC_ATTRIBUTE_TEXT_BYTES];
};

/* A descriptor of a folder: in the table (slot >= 0) or private to its holder. */
struct fsobj_folder {
	int fd;
	int slot;
};

/* One object being read or written. fd is -1 when nothing is open. */
struct fsobj_file {
	int fd;
	bool direct;
	struct fsobj_folder folder;
	const char *name; /* the caller's, must stay */
	uint32_t name_bytes;
	uint64_t temp; /* number of its temporary name, 0 = it has none */
};

/* What is known of an object. */
struct fsobj_seen {
	uint64_t bytes;
	uint64_t version[2];
	uint64_t written_ns; /* when its bytes were last changed */
};

/* @out is written on success only; why it failed goes to host->reason(). */
int fsobj_root_open(const struct fsobj_params *params, const struct kvc_root_params *root_params,
		    struct fsobj_root **out);
void fsobj_root_close(struct fsobj_root *root);
const struct fsobj_info *fsobj_root_info(const struct fsobj_root *root);
/* Fills all that does not depend on how bytes are moved. */
void fsobj_root_query(const struct fsobj_root *root, struct kvc_attributes *out);

/* Opens an object for reading. -ENOENT, -EISDIR, -ELOOP (a symlink), -ENXIO (no regular file). */
int fsobj_open(struct fsobj_root *root, const char *name, uint32_t name_bytes,
	       struct fsobj_file *file, struct fsobj_seen *seen);
/* Begins a new object of `bytes` that nobody can see yet; makes its folders. */
int fsobj_create(struct fsobj_root *root, const char *name, uint32_t name_bytes, uint64_t bytes,
		 struct fsobj_file *file);
/* Makes what fsobj_create() began visible, replacing what was there. if_absent: -EEXIST when the
 * name exists, with what is there in *seen. */
int fsobj_publish(struct fsobj_root *root, struct fsobj_file *file, bool if_absent,
		  struct fsobj_seen *seen);
/* Opens the folder of a published file so that it can be synced; the caller closes it. */
int fsobj_folder_open(struct fsobj_root *root, const struct fsobj_file *file);
/* Closes; what was not published leaves nothing behind. */
void fsobj_close(struct fsobj_root *root, struct fsobj_file *file);
/* Is it still the bytes that fsobj_open() saw? Others may write a file of that name in place. */
bool fsobj_unchanged(const struct fsobj_file *file, const struct fsobj_seen *seen);
/* The rest of this file goes through the page cache. */
int fsobj_make_buffered(struct fsobj_file *file);

int fsobj_stat(struct fsobj_root *root, const char *name, uint32_t name_bytes,
	       struct fsobj_seen *seen);
/* if_version {0, 0}: in any case. -ESTALE: another version, still there. */
int fsobj_remove(struct fsobj_root *root, const char *name, uint32_t name_bytes,
		 const uint64_t if_version[2]);

/* A fully allocated file that is written in place. bytes = 0: it has to exist. */
int fsobj_container_open(struct fsobj_root *root, const char *name, uint64_t bytes, int *out_fd,
			 uint64_t *out_bytes);
int fsobj_container_remove(struct fsobj_root *root, const char *name);
int fsobj_container_resize(struct fsobj_root *root, int fd, uint64_t bytes);

int fsobj_list(struct fsobj_root *root, const char *prefix, kvc_list_fn fn, void *context);
int fsobj_usage(struct fsobj_root *root, struct kvc_usage *out);
/* Also looks whether the location still names the folder that is open. */
int64_t fsobj_reclaim(struct fsobj_root *root);

/* host->step(), when there is one. */
void fsobj_step(const struct fsobj_root *root, const char *step);

#endif
