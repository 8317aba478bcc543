/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvcellar.h - an L3 KV-cache store for LLM inference. Readers: writers of serving engines.
 *
 * A serving engine hands over pages of KV cache by content key; they come back later, to this
 * process, a restarted one or another replica, with the same bytes or as a miss.
 *
 *   config > store > namespace > pool > transfers (batches of pages)
 *
 * Rules that hold for every function
 *  - 0 or positive is success, negative is an errno of the function's list; -EINVAL (an argument
 *    makes no sense) and -ENOMEM may come from any function that returns int.
 *    kvc_last_error() has the detail text of the calling thread's last failure.
 *  - Outputs are written only on success, but for *out_bytes of kvc_object_get() with -ENOBUFS and
 *    the report of kvc_namespace_clear() with -EIO.
 *  - Every struct but kvc_result, kvc_key, kvc_buffer and kvc_operation_stats, which never change,
 *    begins with `size` = sizeof(struct ...), set by the caller; a field that an older
 *    caller does not know is 0, and 0 means the default. Structs grow at the end only. In arrays
 *    of such structs element 0's size is the stride, and all must be equal. A size that is too
 *    small for version 0.1 is -EINVAL; bytes past what the library knows must be 0 (-E2BIG).
 *    Unknown flag bits and enum values are -EINVAL, and so are flags that an operation does not
 *    have.
 *    Structs that callbacks get have it set by the library.
 *  - Handles are opaque. Closing NULL does nothing. Children are closed before their parent.
 *    Closing a handle that another thread is using is the caller's error. After fork() the child
 *    uses no handle of its parent's; it may open its own, whatever other threads were doing.
 *  - Callbacks run in the calling thread; they may call the library, but not close what the call
 *    uses. *_COUNT values are those of the header: a newer library may return larger ones.
 *  - Store, namespace, pool and batch calls are thread-safe. A config belongs to one thread.
 *  - Text outputs work like snprintf: the length of the whole text without NUL comes back, what
 *    fits (always with NUL) is written; buffer may be NULL when bytes is 0.
 *  - No function throws, aborts, prints, or touches caller memory after it has returned, but for
 *    started batches.
 *  - Terms: docs/data-path.md. Every symbol is since 0.1 unless it says otherwise.
 */
#ifndef KVCELLAR_KVCELLAR_H
#define KVCELLAR_KVCELLAR_H

#include <kvcellar/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvc_config;
struct kvc_store;
struct kvc_namespace;
struct kvc_region;
struct kvc_pool;
struct kvc_batch;

/* ---------------------------------------------------------------- version, errors, log */

/* kvc_version - "major.minor.patch[-...]", static. */
KVC_API const char *kvc_version(void);

/* kvc_last_error - what went wrong in the last call of this thread that failed: names the thing
 * and the cause, never a secret. Valid until the thread's next call; "" when nothing failed. */
KVC_API const char *kvc_last_error(void);

enum kvc_log_level {
	KVC_LOG_ERROR = 0,
	KVC_LOG_WARNING = 1,
	KVC_LOG_INFO = 2,
	KVC_LOG_DEBUG = 3,
};

/* One line without newline. May be called from any thread, also while a call is in progress; must
 * not call the library. */
typedef void (*kvc_log_fn)(void *context, int level, const char *text);

/*
 * kvc_log_set - where log lines go, for the whole process.
 * @fn       NULL = nowhere (the default)
 * @level    lines above it are left out (enum kvc_log_level)
 * Returns only when no other thread is inside the former callback.
 */
KVC_API void kvc_log_set(kvc_log_fn fn, void *context, int level);

/* ---------------------------------------------------------------- configuration */

enum kvc_config_format {
	KVC_CONFIG_AUTO = 0, /* files: by extension, else by content; text "@path": a file */
	KVC_CONFIG_TOML = 1,
	KVC_CONFIG_JSON = 2,
	KVC_CONFIG_YAML = 3,
};

enum kvc_describe {
	KVC_DESCRIBE_EFFECTIVE = 0,	   /* each key, its value, where it came from; redacted */
	KVC_DESCRIBE_EFFECTIVE_JSON = 1,   /* the same for programs */
	KVC_DESCRIBE_OPTIONS = 2,	   /* the table of all options */
	KVC_DESCRIBE_OPTIONS_JSON = 3,	   /* the same for programs */
	KVC_DESCRIBE_OPTIONS_MARKDOWN = 4, /* the same for docs/config.md */
	KVC_DESCRIBE_SAMPLE = 5,	   /* kvcellar.toml.sample */
};

/* kvc_config_new - an empty configuration: all defaults and the environment. */
KVC_API int kvc_config_new(struct kvc_config **out);

/*
 * kvc_config_load_file - adds the keys of a TOML, JSON or YAML file; a key given again wins.
 * Errors: -ENOENT, -EACCES, -EISDIR (path); -EINVAL (syntax, with line; unknown key, with path
 * and the nearest key); -EFBIG (> 1 MiB). On error the configuration is unchanged.
 */
KVC_API int kvc_config_load_file(struct kvc_config *config, const char *path);

/*
 * kvc_config_load_text - the same from memory. Text that begins with '@' names a file
 * (KVC_CONFIG_AUTO only).
 * @bytes    length; the text needs no NUL
 * @origin   how errors call it, for example "--extra-config"; NULL = "inline"
 */
KVC_API int kvc_config_load_text(struct kvc_config *config, const char *text, size_t bytes,
				 int format, const char *origin);

/* kvc_config_set - one key by its path, "storage_dirs" or "plugin.posix.use_uring"; the value as
 * in the environment, by the type of the option. -EINVAL: no such key, or not its type. */
KVC_API int kvc_config_set(struct kvc_config *config, const char *path, const char *value);

/* kvc_config_check - everything that kvc_store_open() would refuse without touching storage.
 * -EINVAL with the key's path in kvc_last_error(). */
KVC_API int kvc_config_check(const struct kvc_config *config);

/* kvc_config_describe - text of kind `what` (enum kvc_describe). config may be NULL for the
 * options and the sample. Secrets are shown as "***". */
KVC_API int kvc_config_describe(const struct kvc_config *config, int what, char *buffer,
				size_t bytes);

KVC_API void kvc_config_free(struct kvc_config *config);

/* ---------------------------------------------------------------- store */

enum kvc_open_flag {
	KVC_OPEN_READ_ONLY = 1u << 0,	/* change nothing: set ends in DENIED */
	KVC_OPEN_NO_SELFTEST = 1u << 1, /* do not write and read a test object on each root */
};

/* struct kvc_open_params - @flags enum kvc_open_flag */
struct kvc_open_params {
	size_t size;
	uint32_t flags;
	uint32_t reserved;
};

/*
 * kvc_store_open - picks the first usable plugin of the configuration, opens its roots, checks
 * their identity and tests them.
 * @params   NULL = defaults
 * Errors: -EINVAL (configuration); -ENODEV (no usable plugin; the text says why of those that were
 * named, configured or got beyond loading; kvc_store_describe() and the debug log have all); -EPERM
 * (default folder is a symlink or another user's); -ENOENT, -EACCES, -ENOTDIR, -ENOSPC
 * (root); -EPROTONOSUPPORT (a root of another format version: both versions in the text, nothing
 * touched); -EUCLEAN (root.json is damaged).
 * A root on a read-only mount opens for reading; sets on it end in DENIED.
 * The configuration is copied and may be freed afterwards.
 */
KVC_API int kvc_store_open(const struct kvc_config *config, const struct kvc_open_params *params,
			   struct kvc_store **out);

/*
 * kvc_store_close - ends the store; waits at most 1 s for what is in flight.
 * Errors: -EBUSY: memory of the caller is still in flight, or children are open; the store stays
 * open and may be closed again later.
 */
KVC_API int kvc_store_close(struct kvc_store *store);

/* kvc_store_selftest - writes, finds, reads, compares and removes a test object on every root.
 * The error of the first root that fails, with its path in kvc_last_error(). */
KVC_API int kvc_store_selftest(struct kvc_store *store);

enum kvc_format {
	KVC_FORMAT_TEXT = 0,
	KVC_FORMAT_JSON = 1,
	KVC_FORMAT_PROMETHEUS = 2, /* kvc_stats_text() only */
};

/* kvc_store_describe - what `kvcellar info` shows: version, plugin and why others were not taken,
 * I/O engine, roots with uuid, file system, probes and state, identity. format: enum kvc_format. */
KVC_API int kvc_store_describe(struct kvc_store *store, int format, char *buffer, size_t bytes);

/*
 * kvc_metrics_text - counters, roots and indexes as Prometheus text exposition 0.0.4: what
 * metrics_file and metrics_listen give out. Labels: namespace and rank, when the store has one
 * namespace open; root.
 */
KVC_API int kvc_metrics_text(struct kvc_store *store, char *buffer, size_t bytes);

/* ---------------------------------------------------------------- results */

/* What happened to one page. */
enum kvc_status {
	KVC_OK = 0,
	KVC_MISS = 1,	 /* not there, or there but not usable: the page is to be computed */
	KVC_CORRUPT = 2, /* its bytes are not what was stored; removed. A miss for the caller */
	KVC_TIMEOUT = 3, /* not done by the deadline */
	KVC_FULL = 4,	 /* no space for it */
	KVC_DENIED = 5,	 /* no permission, or read-only */
	KVC_ERROR = 6,	 /* any other failure: `error` has the errno */
	KVC_SKIPPED = 7, /* not tried: after the first miss, or the batch was cancelled */
};

/* Why. Counted one by one (kvc_stats.causes). Append only. */
enum kvc_cause {
	KVC_CAUSE_NONE = 0,
	KVC_CAUSE_ABSENT = 1,	     /* MISS: no such object */
	KVC_CAUSE_SHORT = 2,	     /* MISS: fewer bytes stored than the page has */
	KVC_CAUSE_LONG = 3,	     /* MISS: more bytes stored */
	KVC_CAUSE_FOREIGN = 4,	     /* MISS: not an object of ours, or no trailer */
	KVC_CAUSE_OTHER_OBJECT = 5,  /* CORRUPT: the trailer names another object */
	KVC_CAUSE_CHECKSUM = 6,	     /* CORRUPT: the bytes do not match the checksum */
	KVC_CAUSE_TRAILER = 7,	     /* CORRUPT: the trailer's own checksum is wrong */
	KVC_CAUSE_VERSION = 8,	     /* MISS: a format version that this library cannot read */
	KVC_CAUSE_RECYCLED = 9,	     /* MISS: reused while it was read (packed) */
	KVC_CAUSE_MARKED = 10,	     /* MISS: failed twice just now; not tried for 5 s */
	KVC_CAUSE_EXISTED = 11,	     /* OK of a set: was there already */
	KVC_CAUSE_NOT_WRITER = 12,   /* OK of a set: another rank writes this page */
	KVC_CAUSE_DEADLINE = 13,     /* TIMEOUT */
	KVC_CAUSE_NO_SPACE = 14,     /* FULL: ENOSPC */
	KVC_CAUSE_QUOTA = 15,	     /* FULL: EDQUOT */
	KVC_CAUSE_CAPACITY = 16,     /* FULL: the configured capacity */
	KVC_CAUSE_PERMISSION = 17,   /* DENIED: EACCES, EPERM */
	KVC_CAUSE_READ_ONLY = 18,    /* DENIED: EROFS, or opened read-only */
	KVC_CAUSE_NAME = 19,	     /* ERROR: the key makes no valid name in this naming */
	KVC_CAUSE_INDEX = 20,	     /* ERROR: index of no page, or a buffer of another size */
	KVC_CAUSE_IO = 21,	     /* ERROR: EIO and others */
	KVC_CAUSE_DESCRIPTORS = 22,  /* ERROR: EMFILE, ENFILE */
	KVC_CAUSE_CANCELLED = 23,    /* SKIPPED */
	KVC_CAUSE_PREFIX_ENDED = 24, /* SKIPPED: after the first miss of an exists */
	KVC_CAUSE_SUSPECT_ROOT = 25, /* TIMEOUT: root is stalled, not asked */
	KVC_CAUSE_COUNT = 26,
};

/* struct kvc_result - @status enum kvc_status; @cause enum kvc_cause; @error positive errno or 0 */
struct kvc_result {
	uint16_t status;
	uint16_t cause;
	int32_t error;
};

/* Static names, "ok", "miss", ...; "absent", ...; "?" for a value that is none. */
KVC_API const char *kvc_status_name(int status);
KVC_API const char *kvc_cause_name(int cause);

/* ---------------------------------------------------------------- counters */

enum kvc_operation {
	KVC_EXISTS = 0,
	KVC_GET = 1,
	KVC_SET = 2,
	KVC_REMOVE = 3,
	KVC_OPERATION_COUNT = 4,
};

/* Counters of one operation; histogram bucket i counts batch calls of 2^(i-1) up to
 * less than 2^i microseconds, the last one also all above. */
#define KVC_HISTOGRAM_BUCKETS 32
struct kvc_operation_stats {
	uint64_t calls;
	uint64_t pages;
	uint64_t bytes;	       /* payload moved for pages that ended OK */
	uint64_t statuses[16]; /* by enum kvc_status */
	uint64_t causes[64];   /* by enum kvc_cause */
	uint64_t latency_us_sum;
	uint64_t latency_us[KVC_HISTOGRAM_BUCKETS];
};

/*
 * struct kvc_stats - since the store was opened, all roots together.
 * @overruns            calls that came back after their deadline (soft roots)
 * @retries             descriptors submitted again after -EAGAIN
 * @bounced             ranges that went through aligned memory of the library
 * @fallbacks           engines or modes given up for the next best
 * @reclaimed           orphans of dead writers removed
 * @removed_corrupt     objects removed because they were proven wrong
 * @parked_queues       queues that hold stalled I/O at this moment
 * @host_registrations  memory regions registered at this moment
 * @storage_registrations   queues open at this moment
 * @usage_drift         bytes that a recount corrected, absolute
 * @evicted             objects that made room for others
 * @evicted_bytes       the space that they had
 * @ghost_hits          objects that get or exists asked for when they had been evicted not long ago
 * @prefix_calls        exists that stop at the first miss (one for each transfer),
 * @prefix_pages_asked  the pages that they asked for,
 * @prefix_pages_found  and those of them in front of the first miss
 */
struct kvc_stats {
	size_t size;
	struct kvc_operation_stats operations[8]; /* by enum kvc_operation */
	uint64_t overruns;
	uint64_t retries;
	uint64_t bounced;
	uint64_t fallbacks;
	uint64_t reclaimed;
	uint64_t removed_corrupt;
	uint64_t parked_queues;
	uint64_t host_registrations;
	uint64_t storage_registrations;
	uint64_t usage_drift;
	uint64_t evicted;
	uint64_t evicted_bytes;
	uint64_t ghost_hits;
	uint64_t prefix_calls;
	uint64_t prefix_pages_asked;
	uint64_t prefix_pages_found;
};

KVC_API int kvc_store_stats(struct kvc_store *store, struct kvc_stats *out);

/*
 * kvc_stats_pages - the counters of running processes, from the stats pages that they map under a
 * local root. A store has one page, under the first of its local roots that it can write: its other
 * roots show none, and without such a root there is no page.
 * @path   the root's folder
 * @fn     gets each living process's page; non-zero stops and is returned
 * Errors: -ENOENT, -EACCES (path).
 */
typedef int (*kvc_stats_page_fn)(void *context, int pid, const struct kvc_stats *stats);
KVC_API int kvc_stats_pages(const char *path, kvc_stats_page_fn fn, void *context);

/* kvc_stats_text - one page of counters as text for people, JSON (enum kvc_format), or Prometheus
 * text (format 2). */
KVC_API int kvc_stats_text(const struct kvc_stats *stats, int format, char *buffer, size_t bytes);

/*
 * struct kvc_root_usage - space of one root.
 * @own_bytes, @own_objects   of this store's objects, all namespaces, as counted (all processes)
 * @total_bytes, @free_bytes  of its device; 0 when the plugin does not tell
 */
struct kvc_root_usage {
	size_t size;
	const char *path; /* valid while the store is open */
	char uuid[37];
	char state[27]; /* "ok", "ok (opened read-only)", "read-only", "reads only", "suspect" */
	uint64_t own_bytes;
	uint64_t own_objects;
	uint64_t total_bytes;
	uint64_t free_bytes;
};

/*
 * kvc_store_usage - usage per root.
 * @out, @count   array; each out[i].size is set by the caller
 * @recount       non-zero: walk the roots and correct the counters first; errors as
 *                kvc_object_list(), the counters then stay as they were
 * Returns the number of roots, which may be more than count.
 */
KVC_API int kvc_store_usage(struct kvc_store *store, int recount, struct kvc_root_usage *out,
			    size_t count);

/*
 * struct kvc_namespace_usage - what one root holds of a namespace. Texts are valid during the call.
 * @id               namespace; "" in nixl naming, for all objects of the root
 * @model, @tenant   as its namespace.json has them; NULL: it has none, or there is no such file
 * @live_bytes, @objects   of its objects, as counted
 * @allocated_bytes  that they take: with packed slots those of its segment files
 * @pinned           1: nothing of it is evicted
 * @share_bytes      what all namespaces of its tenant may have of the root; 0: no limit
 */
struct kvc_namespace_usage {
	size_t size;
	const char *root_path;
	const char *id;
	const char *model;
	const char *tenant;
	uint64_t live_bytes;
	uint64_t allocated_bytes;
	uint64_t objects;
	uint64_t share_bytes;
	uint32_t pinned;
	uint32_t reserved;
};
typedef int (*kvc_namespace_usage_fn)(void *context, const struct kvc_namespace_usage *usage);

/*
 * kvc_store_usage_namespaces - usage per root and namespace, as counted by all processes; a root
 * whose objects nobody has counted yet, or that has no folders, is walked. kvc_store_usage() with
 * `recount` corrects the counters.
 * Non-zero from fn stops and is returned. Errors: as kvc_object_list().
 */
KVC_API int kvc_store_usage_namespaces(struct kvc_store *store, kvc_namespace_usage_fn fn,
				       void *context);

/*
 * kvc_store_pin - nothing of a namespace is evicted, in any process, from now on (within seconds);
 * on 0: like others again. Pins lie in the roots and stay. What is asked to be removed goes all the
 * same. There need not be such a namespace yet.
 * Errors: -EINVAL (not a namespace's id); -ENOTSUP (naming = "nixl", which has no namespaces of its
 * own; a root without folders, where nothing is evicted); -EROFS; -ENOSPC (too many pins); -EACCES,
 * ... The roots before the one that is named are changed then.
 */
KVC_API int kvc_store_pin(struct kvc_store *store, const char *id, int on);

enum kvc_clean_flag {
	KVC_CLEAN_DRY_RUN = 1u << 0,  /* only tells what would go */
	KVC_CLEAN_TO_BYTES = 1u << 1, /* by to_bytes instead of to_percent */
};

/*
 * struct kvc_clean_params - how much may stay, of each root.
 * @to_percent   0 to 100: own bytes in percent of `capacity` where the root has one, else how full
 *               its file system may be
 * @to_bytes     own bytes
 */
struct kvc_clean_params {
	size_t size;
	uint32_t flags;
	uint32_t reserved;
	double to_percent;
	uint64_t to_bytes;
};

/*
 * struct kvc_clean_report - of all roots together.
 * @groups      what belongs together: all objects of one key and model
 * @failed      objects that could not be removed
 * @left_bytes  own bytes that are left
 * @missing_bytes  that would have to go besides for what was asked for, and cannot: pinned, in use,
 *              or others'; 0: it was reached
 * @pinned_bytes   of what is left: of pinned namespaces
 */
struct kvc_clean_report {
	size_t size;
	uint64_t groups;
	uint64_t objects;
	uint64_t bytes;
	uint64_t failed;
	uint64_t left_bytes;
	uint64_t missing_bytes;
	uint64_t pinned_bytes;
};

/*
 * kvc_store_clean - removes what is used least, by the order of `eviction`, until not more than
 * that is left or nothing more can go; also with l3_cleaner_enabled = false. Files of others stay;
 * where a file system would be fuller than to_percent by these alone, nothing goes.
 * A packed root gives back whole segments, the coldest first, until those that are left have no
 * more than that; their objects count as a group each.
 * Errors: -EROFS; -ENOTSUP (a root without folders); those of kvc_object_list().
 */
KVC_API int kvc_store_clean(struct kvc_store *store, const struct kvc_clean_params *params,
			    struct kvc_clean_report *out);

/* ---------------------------------------------------------------- namespaces */

enum kvc_tristate {
	KVC_AUTO = 0,
	KVC_NO = 1,
	KVC_YES = 2,
};

/*
 * struct kvc_namespace_params - which pages may stand for one another, and which rank this is.
 * The fields up to logical_page_tokens make the namespace's identity; ranks do not.
 * @model_id     served model name; may contain '/'. NULL = none
 * @identity     which weights (revision, hashes); NULL = unset: the configuration's, else one
 *               warning. NULL and "" differ
 * @tenant       NULL = the configuration's; NULL and "" differ
 * @dtype        logical dtype of the cache, "bfloat16", "fp8_e4m3", ...; NULL = none
 * @page_tokens  tokens per page, >= 1
 * @is_mla       1: KV is the same on every tp rank and stored once
 * @tp_lcm_size  > 0: pages are split into this many head groups, so that other tp sizes find them;
 *               a multiple of tp_size
 * @tp_rank ...  this process's place; a size of 0 is taken as 1
 * @is_writer    whether this rank stores replicated (MLA) pages; KVC_AUTO: tp_rank == dcp_rank
 */
struct kvc_namespace_params {
	size_t size;
	const char *model_id;
	const char *identity;
	const char *tenant;
	const char *dtype;
	uint32_t page_tokens;
	uint32_t is_mla;
	uint32_t tp_size;
	uint32_t tp_lcm_size;
	uint32_t pp_size;
	uint32_t cp_size;
	uint32_t dcp_size;
	uint32_t logical_page_tokens; /* under dcp; 0 = none */
	uint32_t tp_rank;
	uint32_t pp_rank;
	uint32_t cp_rank;
	uint32_t dcp_rank;
	uint32_t is_writer; /* enum kvc_tristate */
	uint32_t reserved;
};

/*
 * kvc_namespace_open - Errors: -EINVAL (a rank outside of its size, tp_lcm_size no multiple,
 * page_tokens 0); -ENAMETOOLONG, -EINVAL (naming = "nixl": the model id cannot be a file name).
 */
KVC_API int kvc_namespace_open(struct kvc_store *store, const struct kvc_namespace_params *params,
			       struct kvc_namespace **out);

/* kvc_namespace_close - -EBUSY while a pool is open. */
KVC_API int kvc_namespace_close(struct kvc_namespace *ns);

/* kvc_namespace_id - its folder name, "<slug>-<16 hex>"; valid while ns is open. */
KVC_API const char *kvc_namespace_id(const struct kvc_namespace *ns);

/* kvc_namespace_usage - bytes and objects of the namespace on all roots, as counted by every
 * process of this host (network roots: by this process); in nixl naming of all namespaces. Either
 * output may be NULL. */
KVC_API int kvc_namespace_usage(struct kvc_namespace *ns, uint64_t *out_bytes,
				uint64_t *out_objects);

/*
 * kvc_namespace_clear - removes the objects of one namespace, of all ranks and pools, and nothing
 * else. naming = "nixl": those whose name belongs to the model. Files without an object's name
 * stay; without any, the namespace's description and empty folders go as well.
 * @id        kvc_namespace_id(), or the model's file name part in nixl naming
 * @dry_run   non-zero: only counts
 * Errors: -ENOENT (no root has such a namespace); -EROFS; -EIO (some could not be removed); those
 * of kvc_object_list().
 */
struct kvc_clear_report {
	size_t size;
	uint64_t objects;
	uint64_t bytes;
	uint64_t failed;
};
KVC_API int kvc_namespace_clear(struct kvc_store *store, const char *id, int dry_run,
				struct kvc_clear_report *out);

/* ---------------------------------------------------------------- memory and pools */

/*
 * kvc_memory_register - memory that transfers will use: plugins pin or register it once, for all
 * pools in it. Transfers from memory that was never registered work too.
 * Addresses that were never registered are taken as host memory.
 * Errors: -EINVAL; -EEXIST (overlaps another region; the same one again is counted); -ENOTSUP (no
 * root can move this kind of memory); -EPERM (the plugin would lose its content and
 * KVC_MEMORY_DISCARD is not given).
 */
KVC_API int kvc_memory_register(struct kvc_store *store, const struct kvc_memory *memory,
				struct kvc_region **out);

/* kvc_memory_deregister - -EBUSY while a transfer of the store that began before the first call is
 * at work; to be called again then. Open pools in it may go on, without the registration. */
KVC_API int kvc_memory_deregister(struct kvc_region *region);

/* How the pages of a pool lie in memory (docs/data-path.md has the shapes). */
enum kvc_host_layout {
	KVC_LAYOUT_EXPLICIT = 0,	  /* parts say it themselves */
	KVC_LAYOUT_PAGE_FIRST = 1,	  /* [token][layer][head][dim] per part */
	KVC_LAYOUT_PAGE_FIRST_DIRECT = 2, /* [page][layer][token][head][dim] */
	KVC_LAYOUT_PAGE_HEAD = 3,	  /* [page][head][token][layer][dim] */
	KVC_LAYOUT_LAYER_FIRST = 4,	  /* [layer][token][head][dim] */
};

/* In which order the stored bytes of a page run; pools of one order share objects. */
enum kvc_byte_order {
	KVC_ORDER_AUTO = 0, /* from the layout; explicit: token_major */
	KVC_ORDER_TOKEN_MAJOR = 1,
	KVC_ORDER_LAYER_MAJOR = 2,
	KVC_ORDER_HEAD_MAJOR = 3,
};

/*
 * struct kvc_part - one part (K, V, scale, ...) of every page of a pool.
 * @name    "k", "v", "temporal", "conv_0", ...: [a-z0-9_]{1,16}; the suffix in nixl naming.
 *          NULL: k, v for two parts, the number otherwise
 * @base    address of page 0 of this part; NULL: transfers bring kvc_transfer.buffers, or move
 *          nothing (exists, remove, where)
 * With KVC_LAYOUT_EXPLICIT the page with index p is piece_count pieces of piece_bytes each, at
 * base + p * page_stride_bytes + j * piece_stride_bytes, j = 0 .. piece_count-1.
 * @piece_bases  where pieces have no constant stride (a tensor per layer): piece_count addresses of
 *          page 0, instead of base and piece_stride_bytes; copied by kvc_pool_open()
 * @group_stride_bytes   with tp_lcm_size: piece_bytes is one head group's, and group i lies i times
 *          this much further
 * With the other layouts these come from the tensor's shape:
 * @token_count     tokens that the tensor holds, a multiple of page_tokens
 * @layer_count, @head_count, @head_bytes    head_bytes: one head of one token in one layer
 */
struct kvc_part {
	size_t size;
	const char *name;
	void *base;
	void *const *piece_bases;
	uint64_t piece_bytes;
	uint64_t piece_stride_bytes;
	uint64_t page_stride_bytes;
	uint32_t piece_count;
	uint32_t layer_count;
	uint64_t token_count;
	uint32_t head_count;
	uint32_t head_bytes;
	uint64_t group_stride_bytes;
};

enum kvc_pool_flag {
	KVC_POOL_TOKEN_INDICES = 1u << 0, /* indices count tokens: the first token of the page */
	KVC_POOL_COPY_MODE = 1u << 1,	  /* nixl naming: one object per page, bare name */
	KVC_POOL_MARKER = 1u << 2,	  /* no bytes: its keys are stored as empty objects */
};

/*
 * struct kvc_pool_params
 * @name        kv, mamba, swa, indexer, ...: [a-z0-9_-]{1,32}
 * @dtype       of the stored bytes; NULL = the namespace's
 * @parts       1 to 64, or none with KVC_POOL_MARKER
 * @page_count  pages that the memory holds; 0 = from token_count. Indices are checked against it
 * @page_tokens of this pool; 0 = the namespace's
 * @per_rank    pages differ between tp ranks even when the namespace is MLA. KVC_AUTO: only for
 *              pools named mamba
 */
struct kvc_pool_params {
	size_t size;
	const char *name;
	const char *dtype;
	const struct kvc_part *parts;
	uint32_t part_count;
	uint32_t host_layout; /* enum kvc_host_layout */
	uint32_t byte_order;  /* enum kvc_byte_order */
	uint32_t flags;	      /* enum kvc_pool_flag */
	uint64_t page_count;
	uint32_t page_tokens;
	uint32_t per_rank; /* enum kvc_tristate */
};

/*
 * kvc_pool_open - any alignment works; zero copy needs what the roots need (info: alignment).
 * Errors: -EINVAL (with the field); -ENOTSUP (memory kind); -E2BIG (page larger than the plugin's
 * largest object).
 */
KVC_API int kvc_pool_open(struct kvc_namespace *ns, const struct kvc_pool_params *params,
			  struct kvc_pool **out);

/* kvc_pool_close - -EBUSY while a started batch uses it. */
KVC_API int kvc_pool_close(struct kvc_pool *pool);

/* struct kvc_pool_info - @page_bytes payload of one page on this rank; @objects_per_page;
 * @object_bytes stored size of the first object; @zero_copy 1 when no byte is copied */
struct kvc_pool_info {
	size_t size;
	uint64_t page_bytes;
	uint64_t object_bytes;
	uint32_t objects_per_page;
	uint32_t zero_copy;
	char fingerprint[9];
	char reason[119]; /* why not zero copy, or "" */
};
KVC_API int kvc_pool_query(const struct kvc_pool *pool, struct kvc_pool_info *out);

/* ---------------------------------------------------------------- transfers */

/* struct kvc_key - the engine's content hash of a page: any bytes, not a C string. */
struct kvc_key {
	const void *data;
	size_t bytes;
};

/* struct kvc_buffer - caller memory of one part of one page. */
struct kvc_buffer {
	void *addr;
	uint64_t bytes;
};

enum kvc_transfer_flag {
	KVC_TRANSFER_STOP_AT_MISS = 1u << 0, /* exists: pages after the first miss are SKIPPED */
	KVC_TRANSFER_OVERWRITE = 1u << 1,    /* set: write also what is there already */
};

/*
 * struct kvc_transfer - one operation on pages of one pool.
 * @op            enum kvc_operation
 * @keys          key_count keys in prefix order
 * @parent        key of the page before keys[0]; {NULL, 0} when keys[0] is the first, or not known
 * @depth         number of pages before keys[0] in its prefix; page i is stored with depth + i
 * @indices       page i lies at indices[i * index_stride]: its number in the pool, or its first
 *                token with KVC_POOL_TOKEN_INDICES. Unused by exists and remove, which take NULL
 * @index_stride  0 = 1
 * @buffers       instead of indices: part j of page i is buffers[i * part_count + j], exactly the
 *                part's size and in one piece; for pools whose parts have no base
 * @timeout_ms    0 = the configuration's for this operation
 * @results       key_count results, written by the call
 * Written by the call too:
 * @ok_count      pages that ended OK
 * @prefix_count  leading pages that ended OK
 */
struct kvc_transfer {
	size_t size;
	uint32_t op;
	uint32_t flags; /* enum kvc_transfer_flag */
	struct kvc_pool *pool;
	const struct kvc_key *keys;
	size_t key_count;
	struct kvc_key parent;
	uint32_t depth;
	uint32_t timeout_ms;
	const int64_t *indices;
	size_t index_stride;
	const struct kvc_buffer *buffers;
	struct kvc_result *results;
	size_t ok_count;
	size_t prefix_count;
};

/*
 * kvc_batch_run - runs transfers in the calling thread; pools may differ, the store may not.
 * get and set of one page in one call are not ordered.
 * Returns 0 when every page has its result, whatever it is; an error only when nothing was tried
 * (-EINVAL: which transfer and field in kvc_last_error()).
 * After a get, pages without KVC_OK have undefined bytes.
 */
KVC_API int kvc_batch_run(struct kvc_store *store, struct kvc_transfer *transfers, size_t count);

/*
 * kvc_batch_try - the same where nothing can block: no I/O, no lock and no line in the log, so that
 * a caller may keep a lock of its own meanwhile. That is exists on a packed root whose index this
 * process has mapped, and a set whose pages another rank writes.
 * Errors: as kvc_batch_run(); -EAGAIN: not so for one of the transfers; nothing was done or
 * counted, and results are undefined: kvc_batch_run() does it.
 */
KVC_API int kvc_batch_try(struct kvc_store *store, struct kvc_transfer *transfers, size_t count);

/*
 * kvc_batch_start - the same by the store's I/O threads. Transfers, keys and their data,
 * parents, indices, buffers, results and the pools' memory stay valid until kvc_batch_wait() or
 * kvc_batch_poll() has returned 1.
 * Errors: as kvc_batch_run(); -EAGAIN: too many batches are waiting.
 */
KVC_API int kvc_batch_start(struct kvc_store *store, struct kvc_transfer *transfers, size_t count,
			    struct kvc_batch **out);

/* kvc_batch_wait - 1 when it is done, 0 when timeout_ms went by (UINT32_MAX = no limit).
 * kvc_batch_poll - without waiting. */
KVC_API int kvc_batch_wait(struct kvc_batch *batch, uint32_t timeout_ms);
KVC_API int kvc_batch_poll(struct kvc_batch *batch);

/* kvc_batch_cancel - what has not been started ends SKIPPED; it is done when wait says so. */
KVC_API int kvc_batch_cancel(struct kvc_batch *batch);

/* kvc_batch_event_fd - readable once the batch is done; the batch's own. */
KVC_API int kvc_batch_event_fd(struct kvc_batch *batch);

/* kvc_batch_free - -EBUSY while it runs. */
KVC_API int kvc_batch_free(struct kvc_batch *batch);

/* ---------------------------------------------------------------- hit policies */

enum kvc_policy {
	KVC_POLICY_ALL_PAGES = 0,      /* each page of the prefix is needed */
	KVC_POLICY_TRAILING_PAGES = 1, /* only the last `pages` pages of the prefix */
	KVC_POLICY_BLOCK_GROUPS = 2,   /* whole groups of `pages` pages only */
};

/* struct kvc_policy_pool - @present  1 per page that the pool has; page_count of them */
struct kvc_policy_pool {
	size_t size;
	const uint8_t *present;
	uint32_t policy; /* enum kvc_policy */
	uint32_t pages;	 /* of the policy; 0 = 1 */
};

/*
 * kvc_policy_prefix - the longest prefix that every pool can restore, in pages.
 * kvc_policy_restorable - sets out[n] = 1 for each n in 0..page_count whose prefix of n pages can
 * be restored (out has page_count + 1 entries); returns how many.
 */
KVC_API size_t kvc_policy_prefix(const struct kvc_policy_pool *pools, size_t pool_count,
				 size_t page_count);
KVC_API size_t kvc_policy_restorable(const struct kvc_policy_pool *pools, size_t pool_count,
				     size_t page_count, uint8_t *out);

/* ---------------------------------------------------------------- single objects */

/*
 * Objects of any size by key, outside of registered pools: for tools, tests, sidecar data. They
 * share the namespace and its routing, and have a name of their own beside a pool's.
 * pool_name: [a-z0-9_-]{1,32}. timeout_ms 0 = the configuration's.
 */

enum kvc_object_flag {
	KVC_OBJECT_OVERWRITE = 1u << 0, /* put: write also what is there already */
};

/* kvc_object_put - stores bytes [0, bytes) as a whole. flags: enum kvc_object_flag. Returns 0; 1
 * when an object of the same payload size was there already and was kept (one of another size is
 * replaced). Errors: -ENOSPC, -EDQUOT, -EACCES, -EROFS, -ETIMEDOUT, -EFBIG, -EIO, ... */
KVC_API int kvc_object_put(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
			   const void *data, size_t bytes, uint32_t flags, uint32_t timeout_ms);

/* kvc_object_get - its size comes back in *out_bytes. flags: 0. Errors: -ENOENT; -ENOBUFS (larger
 * than capacity; *out_bytes is set all the same); -EBADMSG (corrupt, removed); -ETIMEDOUT; ... */
KVC_API int kvc_object_get(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
			   void *buffer, size_t capacity, size_t *out_bytes, uint32_t flags,
			   uint32_t timeout_ms);

/* kvc_object_exists - 1 and its payload size, or 0. -EBADMSG: its trailer is damaged, so that no
 * size can be told. */
KVC_API int kvc_object_exists(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
			      size_t *out_bytes, uint32_t timeout_ms);

/* kvc_object_remove - 1 when it was there, else 0. */
KVC_API int kvc_object_remove(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
			      uint32_t timeout_ms);

/*
 * struct kvc_object_info - one stored object. Texts are valid during the call.
 * @ns_id          namespace; "" in nixl naming
 * @name           object name; "?g-..." for one in a slot whose name is not known
 * @root_path      root; @path  where it lies in it: of a file, or in a packed root
 *                 "<namespace>/slots-<bytes>/seg.<n>@<slot>"; kvc_pool_where() has only
 *                 "<namespace>/slots-<bytes>" there as long as no slot has it
 * @stored_bytes   of a file, or of the slot
 * @key            the page's key as far as the name tells it, else {NULL, 0}
 * @pool_name      likewise, else NULL
 */
struct kvc_object_info {
	size_t size;
	const char *ns_id;
	const char *name;
	const char *root_path;
	const char *path;
	uint64_t stored_bytes;
	uint64_t allocated_bytes;
	int64_t modified_ns;
	struct kvc_key key;
	const char *pool_name;
};
typedef int (*kvc_object_fn)(void *context, const struct kvc_object_info *info);

/*
 * kvc_object_list - every object of a namespace, or of all (id NULL), from every root.
 * Non-zero from fn stops and is returned. Errors: -ENOTSUP (the plugin cannot list); -EACCES, -EIO,
 * ... (a folder of a namespace that could not be read, named in kvc_last_error(), after everything
 * else was listed; -EXDEV: it is another file system).
 */
KVC_API int kvc_object_list(struct kvc_store *store, const char *id, kvc_object_fn fn,
			    void *context);

/*
 * kvc_store_verify - reads every object of a namespace (id NULL: all) and checks trailer, name and
 * checksum. fn gets each object with its result (KVC_OK, CORRUPT, MISS with its cause, ERROR).
 * @remove   non-zero: proven-corrupt objects are removed, as a get would
 * Errors: as kvc_object_list().
 */
typedef int (*kvc_verify_fn)(void *context, const struct kvc_object_info *info,
			     const struct kvc_result *result, uint64_t done, uint64_t total);
KVC_API int kvc_store_verify(struct kvc_store *store, const char *id, int remove, kvc_verify_fn fn,
			     void *context);

/*
 * kvc_pool_where - name and place of the objects of one page, whether they exist or not.
 * kvc_object_where - the same for a single object. fn as in kvc_object_list(); sizes are what a
 * stored object has or would have, 0 when unknown.
 */
KVC_API int kvc_pool_where(struct kvc_pool *pool, struct kvc_key key, kvc_object_fn fn,
			   void *context);
KVC_API int kvc_object_where(struct kvc_namespace *ns, const char *pool_name, struct kvc_key key,
			     kvc_object_fn fn, void *context);

/*
 * struct kvc_object_detail - what the trailer says. Texts end with NUL, cut when too long.
 */
struct kvc_object_detail {
	size_t size;
	uint64_t stored_bytes;
	uint64_t payload_bytes;
	uint64_t group_hash;
	uint64_t object_hash;
	uint64_t parent_hash;
	uint64_t checksum;
	int64_t created_ns;
	uint32_t part_count;
	uint32_t depth;
	uint32_t format_major;
	uint32_t format_minor;
	uint64_t part_bytes[64];
	uint64_t namespace_hash;
	uint64_t pool_fingerprint;
	uint32_t object_kind; /* 0 page, 1 marker, 2 single object */
	uint32_t compat;
	uint32_t ro_compat;
	uint32_t incompat;
	uint32_t name_bytes; /* of the whole name */
	uint32_t reserved;
	char checksum_kind[16];
	char writer[40];
	char name[2056];
};

/* kvc_object_stat - reads the trailer of the object at `path` (as kvc_object_info has it) in the
 * root at root_path. Errors: -ENOENT; -EBADMSG (no valid trailer); -EPROTONOSUPPORT (of a format
 * that this library cannot read). */
KVC_API int kvc_object_stat(struct kvc_store *store, const char *root_path, const char *path,
			    struct kvc_object_detail *out);

enum kvc_copy_flag {
	KVC_COPY_REMOVE = 1u << 0,    /* once it is stored, it is removed where it was */
	KVC_COPY_OVERWRITE = 1u << 1, /* write it also when it is there already */
	KVC_COPY_DRY_RUN = 1u << 2,   /* only read it and check it */
};

/*
 * kvc_object_copy - stores an object of one store in another one of the same naming: between
 * storage layouts, directories, plugins. It keeps name, parts and bytes, and pools find it there.
 * It is checked when it is read, and read back and compared once it is stored; nothing is evicted
 * for it. The page before it is not known any more after a change of the layout.
 * @root_path, @path   in `from`, as kvc_object_info has them
 * @flags   enum kvc_copy_flag. @timeout_ms of each transfer; 0 = the configuration's
 * Returns 0; 1 when the same bytes were there already. On an error the object in `from` stays as it
 * is. Errors: -ENOENT (it is not there any more); -EBADMSG (it is corrupt); -ENOTSUP (its name is
 * not known, or is a hash, which the packed layout cannot do with; it has no trailer, or one of
 * another version); -EEXIST (it is there already, with other bytes); -EINVAL (namings differ; both
 * stores have one root); -ENOSPC, -EDQUOT, -EACCES, -EROFS, -ETIMEDOUT, -EIO, ...
 */
KVC_API int kvc_object_copy(struct kvc_store *from, const char *root_path, const char *path,
			    struct kvc_store *to, uint32_t flags, uint32_t timeout_ms);

/* ---------------------------------------------------------------- plugins */

/* struct kvc_plugin_info - @status 0 = loads; else negative errno, and why in reason */
struct kvc_plugin_info {
	size_t size;
	const char *name;
	const char *version;
	const char *summary;
	const char *path;
	const char *reason;
	int32_t status;
	uint32_t reserved;
};
typedef int (*kvc_plugin_fn)(void *context, const struct kvc_plugin_info *info);

/* kvc_plugin_list - the plugins that the library knows or finds: beside the library, then in
 * plugin_dir of the configuration (NULL = none). */
KVC_API int kvc_plugin_list(const struct kvc_config *config, kvc_plugin_fn fn, void *context);

#ifdef __cplusplus
}
#endif
#endif
