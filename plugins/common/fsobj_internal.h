/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_FSOBJ_INTERNAL_H
#define KVC_FSOBJ_INTERNAL_H

#include "common/fsobj.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define FSOBJ_FOLDER_PATH_BYTES 160u
#define FSOBJ_FOLDERS_MAX	1024u
#define FSOBJ_FOLDERS_MIN	16u
#define FSOBJ_UUID_CHARS	32u
#define FSOBJ_TEMP_PREFIX	".kvctmp."
/* prefix, uuid, '.', 64-bit number, NUL */
#define FSOBJ_TEMP_BYTES	(8u + FSOBJ_UUID_CHARS + 1u + 20u + 1u)
#define FSOBJ_HOUSEKEEPING	".kvcellar"
#define FSOBJ_LEASES		".kvcellar/leases"
#define FSOBJ_DEPTH_MAX		32u

struct fsobj_slot {
	int fd; /* -1: free */
	uint32_t refs;
	uint32_t next; /* in its chain; FSOBJ_NO_SLOT ends it */
	uint64_t hash;
	uint32_t path_bytes;
	bool recent; /* used since the hand of the clock came by */
	bool dead;   /* no longer found; closed with its last reference */
	char path[FSOBJ_FOLDER_PATH_BYTES];
};
#define FSOBJ_NO_SLOT UINT32_MAX

struct fsobj_folders {
	pthread_mutex_t lock;
	struct fsobj_slot *slots;
	uint32_t *chains; /* power of two */
	uint32_t slot_count;
	uint32_t chain_mask;
	uint32_t hand;
	bool top_known; /* the root's folder was opened: as this one */
	dev_t top_device;
	ino_t top_inode;
	/* Goes up when the location is found to name another folder. What was looked up before is
	 * not to be used for anything that begins later. */
	atomic_uint generation;
};

struct fsobj_lease {
	pthread_mutex_t lock;
	int fd;
	char uuid[FSOBJ_UUID_CHARS + 1];
	int64_t touched_s;
	unsigned int generation; /* of the folders, when it was made */
	pid_t owner;		 /* a forked child leaves the lease alone */
	atomic_uint_fast64_t temp_count;
};

struct fsobj_root {
	const struct kvc_host *host;
	struct fsobj_info info;
	uint32_t flags; /* enum kvc_root_flag */
	bool direct_io;
	mode_t file_mode;
	mode_t folder_mode;
	bool chmod_files;	  /* the umask takes something from file_mode */
	atomic_bool link_by_proc; /* AT_EMPTY_PATH needs a capability that we lack */
	atomic_bool no_noreplace; /* RENAME_NOREPLACE is not known there */
	struct fsobj_folders folders;
	struct fsobj_lease lease;
	char location[PATH_MAX];
};

void fsobj_reason(const struct kvc_host *host, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* fsobj_folder.c */
int fsobj_folders_init(struct fsobj_folders *folders);
void fsobj_folders_fini(struct fsobj_folders *folders);
/* The folder at path[0..bytes) below the root ("" = the root itself). */
int fsobj_folder_get(struct fsobj_root *root, const char *path, size_t bytes, bool create,
		     struct fsobj_folder *out);
void fsobj_folder_put(struct fsobj_root *root, struct fsobj_folder *folder);
/* Does the location still name the folder that is open? Else all folders are forgotten, and opened
 * by path again when they are needed. */
void fsobj_folders_renew(struct fsobj_root *root);
/* After an error from a call on the folder: does it come from the folder itself being gone? It then
 * is forgotten, and the next get looks it up (or makes it) again. */
/* Gives a folder that was just made its mode, which the umask may have cut; set-group-id stays. */
int fsobj_folder_mode(int parent_fd, const char *name, mode_t mode);

bool fsobj_folder_gone(struct fsobj_root *root, const struct fsobj_folder *folder, int error);
/* Splits name: *folder_bytes of path, then the leaf. -EINVAL for names that are none. */
int fsobj_name_split(const char *name, uint32_t name_bytes, uint32_t *folder_bytes);
int fsobj_root_folder_open(struct fsobj_root *root, bool create, bool explain, int *out);

/* fsobj_publish.c */
/* Gives the file without a name that is open at fd its name. */
int fsobj_link(struct fsobj_root *root, int fd, int folder_fd, const char *leaf);

/* fsobj_probe.c */
/* What the probe calls; tests put their own there. */
struct fsobj_probe_calls {
	int (*openat)(int folder_fd, const char *name, int flags, ...);
	ssize_t (*pwrite)(int fd, const void *buf, size_t bytes, off_t offset);
	ssize_t (*pread)(int fd, void *buf, size_t bytes, off_t offset);
};
void fsobj_probe_file_system(int fd, struct fsobj_info *info);
/* Finds out direct, alignment, tmpfile, note. A negative errno when nothing can be written. */
int fsobj_probe_io(struct fsobj_root *root, int folder_fd, const struct fsobj_probe_calls *calls);

/* fsobj_lease.c */
int fsobj_lease_init(struct fsobj_lease *lease);
void fsobj_lease_fini(struct fsobj_root *root);
/* Our lease file exists and is locked; to be called before a temporary name is made. */
int fsobj_lease_hold(struct fsobj_root *root);
uint64_t fsobj_temp_next(struct fsobj_root *root, char name[FSOBJ_TEMP_BYTES]);
void fsobj_temp_name(const struct fsobj_root *root, uint64_t number, char name[FSOBJ_TEMP_BYTES]);

/* fsobj_walk.c */
struct fsobj_walk {
	/* For each entry that is no folder; path is relative to the root. */
	int (*entry)(struct fsobj_walk *walk, int folder_fd, const char *leaf, const char *path,
		     size_t path_bytes);
	/* For each folder; false = do not go there. */
	bool (*enter)(struct fsobj_walk *walk, const char *path, size_t path_bytes);
	/* What could not be looked at, with a negative errno; -EXDEV: another file system, which is
	 * not walked into. The walk goes on. NULL: it is passed over, but for a lack of descriptors
	 * or memory, which ends the walk. */
	void (*unread)(struct fsobj_walk *walk, const char *path, int error);
	void *context;
};
/* Walks from the folder at folder[0..folder_bytes) below the root ("" = the root itself). A folder
 * that is not there has no entries. */
int fsobj_walk_run(struct fsobj_root *root, struct fsobj_walk *walk, const char *folder,
		   size_t folder_bytes);

#endif
