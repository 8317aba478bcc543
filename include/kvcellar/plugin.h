/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcellar/plugin.h - what a storage plugin is. For plugin writers; guide: docs/plugin-guide.md.
 *
 * A plugin is a shared object `kvcellar-plugin-<name>.so` that exports one symbol,
 * kvc_plugin_entry(). It moves bytes between memory ranges and named objects (or ranges of a
 * container) and knows nothing of keys, pages, checksums or configuration files. It may include
 * this header, memory.h and plugins/common, nothing else of kvcellar.
 *
 * Objects       backend (a configured plugin) > root (a directory, bucket + prefix, device)
 *               > queue (one thread at a time, one root: a stalled root blocks no other)
 * Control calls may block and must be thread-safe. Data calls are made by one thread per queue.
 * Return values are 0 or positive on success, a negative errno otherwise. "One thread at a time"
 * means that a queue may move between threads from call to call, in order; nothing may depend on
 * which thread it was.
 *
 * The contract, which the conformance suite checks:
 *  1. An object becomes visible whole or not at all. Splitting to device limits happens inside.
 *  2. A descriptor, its ranges, its name and its scratch belong to the queue from acceptance until
 *     its one completion has been returned by poll(); they stay valid and unchanged that long.
 *  3. submit() returns how many it accepted, from the front (may be fewer than offered), or a
 *     negative errno with none accepted. -EAGAIN is the only backpressure; every other errno means
 *     that the queue can take nothing any more. It never waits for a completion. What is wrong with
 *     one descriptor comes with its completion. Completions come in any order.
 *  4. A miss is -ENOENT; IF_ABSENT that loses is -EEXIST; a short transfer completes with its byte
 *     count; a READ past the end completes with 0 and object_bytes. The bytes of one READ are of
 *     one version of the object, else -ESTALE. Only the library decides that data is corrupt, and
 *     only it removes.
 *  5. Plugins never read the environment, never write to a stream and never log above debug. Why
 *     something was refused goes to host->reason().
 *  6. After cancel() each outstanding descriptor still gets its one completion, -ECANCELED or its
 *     result; -EBUSY from cancel() says that some of them still own memory for an unknown time.
 *  7. Threads end at backend_close(), or it returns -EBUSY and the plugin stays loaded.
 *  8. A failed descriptor never harms another one, nor the next one on its queue.
 *  9. A negative errno from poll() means that the queue is broken; outstanding descriptors then
 *     still own their memory, and cancel() settles them.
 *
 * Compatibility: KVC_PLUGIN_ABI changes only when an existing slot or field changes its meaning.
 * Structs and the vtable grow at the end; `size` tells how much the other side knows. Rows of an
 * option table and descriptors have none: plugin->option_bytes and host->descriptor_bytes are
 * theirs. kvc_range, kvc_setting and kvc_completion come in arrays and are fixed.
 * New operations and descriptor or range flags are each announced by an attribute flag, and the
 * library uses none without it. An operation that a plugin does not know completes with -ENOTSUP:
 * -EINVAL speaks of memory and offsets, and the library tries once more with memory of its own.
 */
#ifndef KVCELLAR_PLUGIN_H
#define KVCELLAR_PLUGIN_H

#include <kvcellar/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_PLUGIN_ABI 1u

/* Defined by each plugin for itself; the library only passes the pointers on. */
struct kvc_plugin_backend;
struct kvc_plugin_root;
struct kvc_plugin_queue;
struct kvc_plugin_container;

/* ---------------------------------------------------------------- options and settings */

enum kvc_option_flag {
	KVC_OPTION_SECRET = 1u << 0,	  /* the value never reaches an output */
	KVC_OPTION_BOOL_STRING = 1u << 1, /* a boolean that is by custom written as a string */
};

/* One row of an option table: validates the setting, and makes help, sample and docs. */
struct kvc_option {
	const char *name;
	const char *type;	   /* boolean integer float string list size table */
	const char *unit;	   /* "ms", "bytes", ... or "" */
	const char *default_value; /* as text, or "" */
	const char *range;	   /* "[64, 1048576]", "dram | dram_zc | auto", or "" */
	const char *help;	   /* one sentence */
	const char *aliases;	   /* other names, comma separated, or NULL */
	const char *env;	   /* environment variables, comma separated, or NULL */
	uint32_t flags;		   /* enum kvc_option_flag */
	uint32_t reserved;
};

/* One effective option: its default when the user gave none. Booleans are "true" or "false";
 * entry k of a table option comes as "option.k". */
struct kvc_setting {
	const char *name;
	const char *value;
};

/* ---------------------------------------------------------------- data path */

enum kvc_op {
	KVC_OP_READ = 1,   /* object or container -> ranges */
	KVC_OP_WRITE = 2,  /* ranges -> object or container */
	KVC_OP_STAT = 3,   /* size and version of an object */
	KVC_OP_REMOVE = 4, /* an object; with if_version only that version of it */
	KVC_OP_SYNC = 5,   /* what was written to a container reaches stable storage */
};

enum kvc_range_flag {
	/* Only on the last range of a whole-object WRITE: its bytes become valid when
	 * host->fill(cookie) returns 0. The plugin calls fill at most once, from any thread, when
	 * other I/O of its own is under way (of this object or of others), and writes this range
	 * before it publishes. A plugin without KVC_ATTRIBUTE_LATE never sees the flag: the library
	 * fills first. */
	KVC_RANGE_LATE = 1u << 0,
};

/* struct kvc_range - a piece of memory that takes part in a transfer.
 * addr and bytes are multiples of attributes.alignment. Kinds may differ within a descriptor: a
 * payload in device memory, its trailer in host memory. */
struct kvc_range {
	void *addr;
	uint64_t bytes;
	uint64_t registration; /* from memory_register, or 0; never 0 with NEEDS_REGISTERED */
	uint32_t flags;	       /* enum kvc_range_flag */
	uint16_t kind;	       /* enum kvc_memory_kind */
	uint16_t device;
};

enum kvc_descriptor_flag {
	KVC_DESCRIPTOR_IF_ABSENT = 1u << 0, /* WRITE: -EEXIST when the name exists */
	KVC_DESCRIPTOR_DURABLE = 1u << 1,   /* WRITE: on stable storage before it is published */
};

/*
 * struct kvc_descriptor - one operation.
 * @container    NULL: the whole object `name`; else bytes [offset, ...) of the container, in place
 * @name         path relative to the root, '/' between folders, no leading '/', no "." or ".."
 *               component, no NUL; name_bytes long, and terminated by NUL besides
 * @offset       READ: where to start in the object; WRITE of a whole object: 0
 * @ranges       READ: filled in order; WRITE: the object's content in order. At most
 *               attributes.max_ranges
 * @if_version   REMOVE: remove only when the object still is this version (from a completion);
 *               {0, 0} = in any case. A mismatch completes with -ESTALE and removes nothing
 * @cookie       the library's, not 0; comes back in the completion
 * @deadline_ns  CLOCK_MONOTONIC time after which the result is of no use (retries inside the
 *               plugin end there), or 0. The library cancels by itself
 * @scratch      attributes.scratch_bytes of the plugin's own use, 16-byte aligned, not cleared
 */
struct kvc_descriptor {
	uint32_t op;	/* enum kvc_op */
	uint32_t flags; /* enum kvc_descriptor_flag */
	struct kvc_plugin_container *container;
	const char *name;
	uint32_t name_bytes;
	uint32_t range_count;
	uint64_t offset;
	const struct kvc_range *ranges;
	uint64_t if_version[2];
	uint64_t cookie;
	void *scratch;
	uint64_t deadline_ns;
};

/* object_bytes of a plugin that knows that an object exists but not its size. */
#define KVC_BYTES_UNKNOWN UINT64_MAX

/*
 * struct kvc_completion - how a descriptor ended.
 * @result        READ, WRITE: bytes moved; STAT, REMOVE, SYNC: 0; else a negative errno
 * @object_bytes  size of the object as seen (READ, STAT, and WRITE that ended in -EEXIST), else 0
 * @version       what to give to REMOVE (fsobj: inode and ctime; S3: ETag hash); {0, 0}: unknown
 */
struct kvc_completion {
	uint64_t cookie;
	int64_t result;
	uint64_t object_bytes;
	uint64_t version[2];
	uint32_t flags; /* 0 */
	uint32_t reserved;
};

/* ---------------------------------------------------------------- what a root can do */

enum kvc_attribute_flag {
	KVC_ATTRIBUTE_WHOLE = 1u << 0,		   /* whole objects by name */
	KVC_ATTRIBUTE_IN_PLACE = 1u << 1,	   /* containers */
	KVC_ATTRIBUTE_CANCELLABLE = 1u << 2,	   /* cancel() ends everything at once */
	KVC_ATTRIBUTE_NEEDS_REGISTERED = 1u << 3,  /* ranges must lie in registered memory */
	KVC_ATTRIBUTE_REGISTER_DESTROYS = 1u << 4, /* registering loses the content of the memory */
	KVC_ATTRIBUTE_LISTS = 1u << 5,		   /* list() works */
	KVC_ATTRIBUTE_LOCAL = 1u << 6,		   /* local device: I/O ends in bounded time */
	KVC_ATTRIBUTE_IF_ABSENT = 1u << 7,	   /* WRITE honours IF_ABSENT */
	KVC_ATTRIBUTE_LATE = 1u << 8,		   /* WRITE honours KVC_RANGE_LATE */
	KVC_ATTRIBUTE_FOLDERS = 1u << 9,	   /* folders cost: names get a hash folder */
	KVC_ATTRIBUTE_READ_ONLY = 1u << 10,	   /* writes would end in -EROFS */
	KVC_ATTRIBUTE_DIRECT = 1u << 11,	   /* I/O goes around the page cache */
	KVC_ATTRIBUTE_DEVICE = 1u << 12,	   /* one container of fixed size, named "" */
	KVC_ATTRIBUTE_REMOVES = 1u << 13,	   /* REMOVE works */
	KVC_ATTRIBUTE_SIZES = 1u << 14,		   /* object_bytes is known, also to STAT */
};

#define KVC_ATTRIBUTE_TEXT_BYTES 256

/* struct kvc_attributes - filled by root_query(), which may be called at any time: note is what
 * holds now. Pointers stay valid while the root is open. size is set by the caller. */
struct kvc_attributes {
	size_t size;
	uint64_t max_object_bytes;
	uint32_t max_ranges;   /* per descriptor, >= 4 */
	uint32_t max_depth;    /* largest useful queue depth */
	uint32_t alignment;    /* of range addresses, lengths and offsets; power of two, <= 4096 */
	uint32_t memory_kinds; /* bit (1 << enum kvc_memory_kind) of each kind; 0 = host only */
	uint32_t scratch_bytes;
	uint32_t flags;			     /* enum kvc_attribute_flag */
	char io_engine[32];		     /* "io_uring", "threads", ..., or "" */
	char file_system[32];		     /* "ext4", "s3", "memory", ... */
	char note[KVC_ATTRIBUTE_TEXT_BYTES]; /* a fallback that was taken, and why; or "" */
	const char *local_path; /* folder on this host for housekeeping (the root), or NULL */
};

/* struct kvc_usage - space of the device behind a root. Absent figures are 0. */
struct kvc_usage {
	size_t size;
	uint64_t total_bytes;
	uint64_t free_bytes; /* free to this user */
	uint64_t device;     /* equal for roots that share a device */
};

struct kvc_list_entry {
	size_t size;
	const char *name; /* relative to the root; valid during the call */
	uint32_t name_bytes;
	uint32_t reserved;
	uint64_t object_bytes;
	uint64_t allocated_bytes;
	int64_t modified_ns; /* since the epoch, or 0 */
	int64_t accessed_ns;
	uint64_t version[2];
};

/* Return 0 to go on, any other value to stop: list() returns it. It may do I/O on the same root,
 * removing the entry included. */
typedef int (*kvc_list_fn)(void *context, const struct kvc_list_entry *entry);

/* ---------------------------------------------------------------- opening */

struct kvc_plugin;
struct kvc_backend_params;

/*
 * struct kvc_host - the library's services, valid until backend_close() has returned 0.
 * @log_debug   one line of debug text; from any thread
 * @reason      cookie 0: why the control call that is about to fail on this thread fails; else why
 *              the descriptor with this cookie fails. The last one counts
 * @fill        makes the LATE range of the descriptor with this cookie valid; 0 or negative errno,
 *              which then is the descriptor's result. From any thread, once per descriptor
 * @step        NULL, or called between the steps of a publish with the step's name. For tests
 *              that end the process there
 * @lower, @lower_params   stacked plugins only: the plugin below and how to open it
 */
struct kvc_host {
	uint32_t abi;
	uint32_t descriptor_bytes; /* sizeof(struct kvc_descriptor) of the library */
	size_t size;
	void *context;
	void (*log_debug)(void *context, const char *text);
	void (*reason)(void *context, uint64_t cookie, const char *text);
	int (*fill)(void *context, uint64_t cookie);
	void (*step)(void *context, const char *step);
	const struct kvc_plugin *lower;
	const struct kvc_backend_params *lower_params;
};

/*
 * struct kvc_backend_params - valid during backend_open() only; copy what must stay.
 * @settings    every option of the plugin's table; find one by name
 * @io_engines  the order to try, comma separated, or "" for the plugin's own; io_engine_demanded:
 *              nothing else will do, fail with a reason when none of them passes its probe
 */
struct kvc_backend_params {
	size_t size;
	const struct kvc_host *host;
	const struct kvc_setting *settings;
	size_t setting_count;
	const char *io_engines;
	uint32_t io_engine_demanded;
	uint32_t direct_io;   /* 1: go around the page cache where that works */
	uint32_t file_mode;   /* of new files, 0600 */
	uint32_t folder_mode; /* of new folders, 0700 */
};

enum kvc_root_flag {
	KVC_ROOT_CREATE = 1u << 0,    /* make the folder (not a bucket) when it is absent */
	KVC_ROOT_READ_ONLY = 1u << 1, /* nothing may be changed, no temporary file made */
	KVC_ROOT_OWNED = 1u << 2,     /* refuse a symlink and another user's folder (-EPERM) */
};

struct kvc_root_params {
	size_t size;
	const char *location; /* folder, "bucket/prefix", device, ... */
	uint32_t flags;	      /* enum kvc_root_flag */
	uint32_t reserved;
};

struct kvc_queue_params {
	size_t size;
	uint32_t depth; /* descriptors that may be outstanding, <= attributes.max_depth */
	uint32_t flags; /* 0 */
};

enum kvc_plugin_flag {
	KVC_PLUGIN_STACKS = 1u << 0, /* needs host->lower; its option "lower" names that plugin */
	KVC_PLUGIN_LOCATES =
		1u << 1, /* has one root, known from its own settings: location is "" */
};

/*
 * struct kvc_plugin - the vtable. Slots marked optional may be NULL: the library then puts a
 * function there that returns -ENOTSUP.
 */
struct kvc_plugin {
	uint32_t abi;  /* KVC_PLUGIN_ABI */
	uint32_t size; /* sizeof(struct kvc_plugin) */
	const char *name;
	const char *version;
	const char *summary;
	const struct kvc_option *options; /* NULL when the library's own table has the section */
	uint32_t option_count;
	uint32_t option_bytes; /* sizeof(struct kvc_option) of the plugin */
	uint32_t flags;	       /* enum kvc_plugin_flag */
	uint32_t reserved;

	/* control: may block, thread-safe */

	int (*backend_open)(const struct kvc_backend_params *params,
			    struct kvc_plugin_backend **out);
	/* 0, or -EBUSY while a queue still has descriptors: the backend then stays as it is. */
	int (*backend_close)(struct kvc_plugin_backend *backend);
	int (*root_open)(struct kvc_plugin_backend *backend, const struct kvc_root_params *params,
			 struct kvc_plugin_root **out);
	/* Every queue on the root has been destroyed before. */
	int (*root_close)(struct kvc_plugin_root *root);
	int (*root_query)(struct kvc_plugin_root *root, struct kvc_attributes *out);

	/* optional: memory that transfers will use often. Failure is no error: ranges then come
	 * with registration 0, or, with NEEDS_REGISTERED, through memory_alloc()ed memory. A plugin
	 * may do it later, in a thread of its own. deregister: no transfer uses it any more, and
	 * the memory may go when it returns. */
	int (*memory_register)(struct kvc_plugin_backend *backend, const struct kvc_memory *memory,
			       uint64_t *out_registration);
	int (*memory_deregister)(struct kvc_plugin_backend *backend, uint64_t registration);
	/* optional: memory of the plugin's own (KVC_MEMORY_PLUGIN), registered; out->size is set by
	 * the caller. */
	int (*memory_alloc)(struct kvc_plugin_backend *backend, uint64_t bytes,
			    struct kvc_memory *out, uint64_t *out_registration);
	int (*memory_free)(struct kvc_plugin_backend *backend, uint64_t registration);
	/* needed when memory_kinds has more than host memory: copies between any two kinds that it
	 * names; from any thread; returns when it is done. */
	int (*memory_copy)(struct kvc_plugin_backend *backend, void *to,
			   const struct kvc_memory *to_memory, const void *from,
			   const struct kvc_memory *from_memory, uint64_t bytes);

	/* optional, with KVC_ATTRIBUTE_IN_PLACE: fully allocated files or device areas.
	 * bytes = 0 opens an existing one; else it is created (by one of the processes that try),
	 * or found with exactly that size (-EEXIST otherwise). close: -EBUSY while I/O is
	 * outstanding. remove: its space is free when it returns, as far as that can be, also where
	 * other processes have it open; what they read from it then may be anything. */
	int (*container_open)(struct kvc_plugin_root *root, const char *name, uint64_t bytes,
			      struct kvc_plugin_container **out, uint64_t *out_bytes);
	int (*container_resize)(struct kvc_plugin_container *container, uint64_t bytes);
	int (*container_close)(struct kvc_plugin_container *container);
	int (*container_remove)(struct kvc_plugin_root *root, const char *name);

	/* optional, with KVC_ATTRIBUTE_LISTS: every published object whose name begins with
	 * prefix, in any order; temporary files and housekeeping of the plugin are left out. What
	 * could not be looked at is passed over; its errno comes at the end, with a reason. */
	int (*list)(struct kvc_plugin_root *root, const char *prefix, kvc_list_fn fn,
		    void *context);
	int (*usage)(struct kvc_plugin_root *root, struct kvc_usage *out);

	/* optional: reclaim what dead writers left behind; returns the count, >= 0. */
	int64_t (*reclaim)(struct kvc_plugin_root *root);

	/* data: one thread at a time per queue */

	int (*queue_create)(struct kvc_plugin_root *root, const struct kvc_queue_params *params,
			    struct kvc_plugin_queue **out);
	/* 0, or -EBUSY while descriptors are outstanding: the queue then stays as it is. */
	int (*queue_destroy)(struct kvc_plugin_queue *queue);
	int (*submit)(struct kvc_plugin_queue *queue,
		      const struct kvc_descriptor *const *descriptors, uint32_t count);
	/* Up to max completions. Waits until there is one, or for wait_ns (0 = does not wait).
	 * Returns the count, 0 when the time is over. */
	int (*poll)(struct kvc_plugin_queue *queue, struct kvc_completion *out, uint32_t max,
		    uint64_t wait_ns);
	/* optional: a descriptor that poll(2) finds readable when poll() would return something,
	 * provided that poll() has returned 0 before; it stays the queue's. */
	int (*event_fd)(struct kvc_plugin_queue *queue);
	/* Ends these descriptors early, or all outstanding ones (descriptors NULL, count 0). */
	int (*cancel)(struct kvc_plugin_queue *queue,
		      const struct kvc_descriptor *const *descriptors, uint32_t count);

	/* optional, may stay NULL: hears of the steps that the library itself makes between the
	 * plugin's operations (packed layout: "packed.set.live", ...), from any thread, on the data
	 * path. For plugins that test what happens when a process ends there. Since 0.1. */
	void (*step)(struct kvc_plugin_backend *backend, const char *step);
};

/* The one symbol of a plugin. The vtable is const and lives as long as the plugin is loaded. */
KVC_API const struct kvc_plugin *kvc_plugin_entry(void);

#ifdef __cplusplus
}
#endif
#endif
