/* SPDX-License-Identifier: Apache-2.0 */
/* Every option. Names, types and defaults of the sections posix, gds, gds_mt, 3fs and obj, of
 * use_direct_io and of l3_cleaner_* are those of SGLang's "NIXL integration for HiCache". */
#include "core/config_tables.h"
#include "core/config_value.h"

#include <string.h>
#include <strings.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Rows: name, type, unit, default, range, help, flags. */
#define ROW(name_, type_, unit_, default_, range_, flags_, help_)                               \
	{                                                                                       \
		.name = (name_), .type = (type_), .unit = (unit_), .default_value = (default_), \
		.range = (range_), .help = (help_), .flags = (flags_)                           \
	}

#define BOOLEAN "true | false"
#define TIMEOUT "[1, 3600000]"
#define THREADS "[0, 1024]"

const struct kvc_option kvc_top_options[] = {
	ROW("use_direct_io", "boolean", "", "true", BOOLEAN, 0,
	    "Go around the page cache (O_DIRECT); where that does not work, buffered with a "
	    "warning."),
	ROW("l3_cleaner_enabled", "boolean", "", "true", BOOLEAN, 0,
	    "Remove what was used least when `capacity` or a file system fills up; false when "
	    "something else does it."),
	ROW("l3_cleaner_high_watermark", "float", "percent", "80.0", "[0, 100]", 0,
	    "Cleaning begins when the file system of a storage directory without `capacity` is "
	    "this full."),
	ROW("l3_cleaner_low_watermark", "float", "percent", "70.0", "[0, 100]", 0,
	    "Cleaning ends below this; must be lower than l3_cleaner_high_watermark."),
	ROW("storage_dirs", "list", "", KVC_DEFAULT_ROOT, "", 0,
	    "Folders that hold the cache, one root each; a list, or one text with commas."),
	ROW("naming", "string", "", "kvcellar", "kvcellar | nixl", 0,
	    "How objects are named; nixl shares a directory with HiCacheNixl."),
	ROW("storage_layout", "string", "", "auto", "auto | files | packed", 0,
	    "How objects lie in a new root, which keeps it; auto: packed where the file system "
	    "allows it and the cleaner is on, else files."),
	ROW("verify", "string", "", "require", "require | if-present | off", 0,
	    "Whether a read demands a valid trailer and checksum; if-present also accepts files "
	    "without one."),
	ROW("checksum", "string", "", "full", "full | sector | none", 0,
	    "Which checksum is stored with an object."),
	ROW("capacity", "size", "bytes or %", "", ">= 1", 0,
	    "Most that the cache may hold per root; unset: by free space and the high "
	    "watermark."),
	ROW("min_free", "size", "bytes or %", "0", "", 0,
	    "Space of each file system that is left free."),
	ROW("tenant_shares", "list", "", "", "", 0,
	    "Most of a root's capacity that a tenant may have: tenant=30% or tenant=100GiB; one "
	    "that is not listed has no limit."),
	ROW("eviction", "string", "", "lru", "lru | fifo | s3fifo", 0,
	    "Which entries go first: the least recently used, the oldest, or those never used "
	    "again."),
	ROW("identity", "string", "", "", "", KVC_OPTION_UNSET,
	    "Which weights the cache belongs to (a revision, a hash); unset and \"\" differ."),
	ROW("tenant", "string", "", "", "", KVC_OPTION_UNSET,
	    "Keeps the caches of tenants apart; unset and \"\" differ."),
	ROW("get_timeout_ms", "integer", "ms", "5000", TIMEOUT, 0, "Longest time of a get."),
	ROW("set_timeout_ms", "integer", "ms", "8000", TIMEOUT, 0, "Longest time of a set."),
	ROW("exists_timeout_ms", "integer", "ms", "2000", TIMEOUT, 0, "Longest time of an exists."),
	ROW("durability", "string", "", "none", "none | fdatasync", 0,
	    "What is on stable storage before an object becomes visible."),
	ROW("io_engines", "list", "", "io_uring,linux_aio,threads,posix_aio",
	    "io_uring | linux_aio | threads | posix_aio", 0,
	    "Order in which the POSIX plugin tries its I/O engines; not together with use_uring, "
	    "use_aio or use_posix_aio = true."),
	ROW("io_threads", "integer", "", "0", THREADS, 0,
	    "Threads that drive started batches; 0: one per root."),
	ROW("mode", "string", "octal", "0600", "", 0,
	    "Access mode of new files, in quotes; folders get the same with search permission."),
	ROW("metrics_file", "string", "", "", "", 0,
	    "File that is rewritten with the counters in Prometheus text form; {rank} in it "
	    "becomes the rank of the process; \"\": none."),
	ROW("metrics_listen", "string", "", "", "", 0,
	    "Loopback address and port at which the counters are served for Prometheus, as "
	    "127.0.0.1:9464; \"\": none."),
	ROW("trace_file", "string", "", "", "", 0,
	    "File to record requests to (hashed keys) for `kvcellar replay`, at most 64 MiB with "
	    "the former one; \"\": none."),
	ROW("strict", "boolean", "", "true", BOOLEAN, 0,
	    "An unknown key is an error; false: a warning."),
	ROW("plugin_dir", "string", "", "", "", 0,
	    "Folder with further plugins, kvcellar-plugin-<name>.so; \"\": only the library's "
	    "own."),
};
const size_t kvc_top_option_count = COUNT(kvc_top_options);

const struct kvc_option kvc_active_option =
	ROW("active", "boolean", "", "", BOOLEAN, KVC_OPTION_UNSET,
	    "true: take this plugin, the first active one that is usable; false: never.");

#define SECRET KVC_OPTION_SECRET
#define FLAG   KVC_OPTION_BOOL_STRING

static const struct kvc_option posix_options[] = {
	ROW("use_uring", "string", "", "false", BOOLEAN, FLAG,
	    "Demand io_uring. At most one of use_uring, use_aio and use_posix_aio."),
	ROW("use_aio", "string", "", "false", BOOLEAN, FLAG, "Demand Linux AIO."),
	ROW("use_posix_aio", "string", "", "false", BOOLEAN, FLAG, "Demand POSIX AIO."),
	ROW("ios_pool_size", "integer", "", "0", "[0, 1048576]", 0,
	    "Requests kept ready by a queue; 0: by the queue's depth."),
	ROW("kernel_queue_size", "integer", "", "0", "[0, 65536]", 0,
	    "Most requests in the kernel's queue; 0: by the queue's depth."),
	ROW("register_memory", "boolean", "", "true", BOOLEAN, 0,
	    "Pin the memory that the engine registers (io_uring, direct I/O); counts against "
	    "RLIMIT_MEMLOCK. false for a process that forks after registering private memory: "
	    "fork() copies pinned pages at once."),
};

static const struct kvc_option gds_options[] = {
	ROW("batch_pool_size", "integer", "", "128", "[1, 1048576]", 0,
	    "I/O requests in the request pool."),
	ROW("batch_limit", "integer", "", "128", "[1, 1048576]", 0, "Most requests of one batch."),
	ROW("max_request_size", "integer", "bytes", "16777216", "[4096, 1073741824]", 0,
	    "Largest single I/O request."),
};

static const struct kvc_option gds_mt_options[] = {
	ROW("thread_count", "integer", "", "4", "[1, 1024]", 0,
	    "Worker threads that submit requests."),
};

static const struct kvc_option hf3fs_options[] = {
	ROW("mount_point", "string", "", "", "", 0,
	    "Where the 3FS file system is mounted; needed."),
	ROW("mem_config", "string", "", "dram", "dram | dram_zc | auto", 0,
	    "Memory for transfers: buffered, without a copy, or by what the platform can do."),
	ROW("iopool_size", "integer", "", "64", "[64, 1048576]", 0, "Size of the I/O pool."),
};

static const struct kvc_option obj_options[] = {
	ROW("num_threads", "integer", "", "4", "[1, 1024]", 0, "Client worker threads."),
	ROW("endpoint_override", "string", "", "", "", KVC_OPTION_URL,
	    "Address of the service; \"\": AWS, by the region."),
	ROW("scheme", "string", "", "http", "http | https", 0, "Protocol of the connection."),
	ROW("region", "string", "", "", "", 0, "Region of the bucket."),
	ROW("req_checksum", "string", "", "required", "required | supported", 0,
	    "Send a checksum always, or only where the service takes one."),
	ROW("ca_bundle", "string", "", "", "", 0, "File with further CA certificates."),
	ROW("access_key", "string", "", "", "", SECRET, "Access key."),
	ROW("secrete_key", "string", "", "", "", SECRET,
	    "Secret key; secret_key is accepted as well."),
	ROW("session_token", "string", "", "", "", SECRET, "Session token of the keys."),
	ROW("use_virtual_addressing", "string", "", "auto", "auto | true | false", FLAG,
	    "Bucket in the host name; auto: true, unless the endpoint is an IP address or names "
	    "a port."),
	ROW("bucket", "string", "", "", "", 0, "The bucket; needed, or AWS_DEFAULT_BUCKET."),
	ROW("prefix", "string", "", "", "", 0, "What every object key begins with."),
	ROW("crtMinLimit", "integer", "bytes", "0", ">= 0", 0,
	    "Accepted for NIXL's sake and without effect: there is one HTTP client for all "
	    "sizes."),
	ROW("throughput_target_gbps", "float", "", "0", ">= 0", 0,
	    "Accepted for NIXL's sake and without effect: num_threads sets the parallelism."),
};

static const struct kvc_option azure_options[] = {
	ROW("account_url", "string", "", "", "", KVC_OPTION_URL,
	    "https://<account>.blob.core.windows.net, or that of an emulator."),
	ROW("container_name", "string", "", "", "", 0, "The container."),
	ROW("account_key", "string", "", "", "", SECRET, "Shared key of the account."),
	ROW("sas_token", "string", "", "", "", SECRET, "Shared access signature."),
	ROW("connection_string", "string", "", "", "", SECRET,
	    "Account address and key in one text."),
	ROW("ca_bundle", "string", "", "", "", 0, "File with further CA certificates."),
	ROW("num_threads", "integer", "", "4", "[1, 1024]", 0, "Client worker threads."),
};

static const struct kvc_option gusli_options[] = {
	ROW("client_name", "string", "", "kvcellar", "", 0, "How the server sees this client."),
	ROW("max_num_simultaneous_requests", "integer", "", "256", "[1, 1048576]", 0,
	    "Most requests in flight."),
	ROW("config_file", "string", "", "", "", 0,
	    "Path of the client's configuration, or its text when it begins with #."),
	ROW("index_dir", "string", "", "", "", 0,
	    "Folder for the index of the block devices' content."),
};

static const struct kvc_option ucx_options[] = {
	ROW("address", "string", "", "", "", 0, "host:port of the peer."),
	ROW("device_list", "string", "", "", "", 0, "Network devices, with commas; \"\": all."),
	ROW("num_threads", "integer", "", "0", THREADS, 0,
	    "Progress threads; 0: the caller drives."),
};

static const struct kvc_option nixl_options[] = {
	ROW("address", "string", "", "", "", 0, "host:port of the peer agent."),
	ROW("device_list", "string", "", "", "", 0, "Network devices, with commas; \"\": all."),
	ROW("num_threads", "integer", "", "0", THREADS, 0,
	    "Progress threads; 0: the caller drives."),
	ROW("library", "string", "", "", "", 0, "Path of libnixl.so; \"\": the loader's search."),
	ROW("backend", "string", "", "", "", 0, "The NIXL backend to load."),
};

static const struct kvc_option mem_options[] = {
	ROW("latency_us", "integer", "us", "0", "[0, 60000000]", 0,
	    "Time that each request takes."),
	ROW("max_bytes", "size", "bytes", "0", "", 0, "Most bytes it holds; 0: no limit."),
};

static const struct kvc_option fault_options[] = {
	ROW("lower", "string", "", "mem", "", 0, "The plugin below, which moves the bytes."),
	ROW("seed", "integer", "", "0", ">= 0", 0,
	    "Start of the random sequence; 0 = another one each time, told in the debug log."),
	ROW("rules", "string", "", "", "", 0,
	    "Which faults happen when; the language is in docs/fault-plugin.md."),
	ROW("cancellable", "string", "", "lower", "lower | true | false", FLAG,
	    "Whether roots end everything at once when asked to; lower = as the plugin below."),
	ROW("local", "string", "", "lower", "lower | true | false", FLAG,
	    "Whether roots look like local devices; lower = as the plugin below."),
};

#define SECTION(name_, alias_, title_, table_, free_table_, help_)                              \
	{                                                                                       \
		.name = (name_), .alias = (alias_), .title = (title_), .help = (help_),         \
		.options = (table_), .option_count = COUNT(table_), .free_table = (free_table_) \
	}

const struct kvc_section kvc_sections[] = {
	SECTION("posix", NULL, "POSIX", posix_options, NULL,
		"Files, by io_uring, Linux AIO, threads or POSIX AIO."),
	SECTION("3fs", "hf3fs", "3FS", hf3fs_options, NULL,
		"DeepSeek's 3FS through its client library."),
	SECTION("gds_mt", NULL, "GDS_MT", gds_mt_options, NULL,
		"GPUDirect Storage, one request per thread."),
	SECTION("gds", NULL, "GDS", gds_options, NULL, "GPUDirect Storage, batched."),
	SECTION("obj", NULL, "OBJ", obj_options, NULL, "S3 and services that speak it."),
	SECTION("azure_blob", NULL, "AZURE_BLOB", azure_options, NULL, "Azure Blob Storage."),
	SECTION("gusli", NULL, "GUSLI", gusli_options, NULL, "Block devices through GUSLI."),
	SECTION("ucx", NULL, "UCX", ucx_options, NULL, "The memory of another host through UCX."),
	SECTION("nixl", NULL, "NIXL", nixl_options, "params",
		"A NIXL backend, loaded from libnixl. The table params goes to it as it is."),
	SECTION("mem", NULL, "MEM", mem_options, NULL,
		"The process's memory: for tests, gone at its end."),
	SECTION("fault", NULL, "FAULT", fault_options, NULL,
		"Another plugin with faults put in: for tests."),
};
const size_t kvc_section_count = COUNT(kvc_sections);

const char *const kvc_auto_order[] = { "3fs", "posix", "gds_mt", "gds", "obj", NULL };

const struct kvc_seed_variable kvc_seed_variables[] = {
	{ "SGLANG_HICACHE_NIXL_BACKEND_PLUGIN", "plugin" },
	{ "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR", "storage_dirs" },
	{ "SGLANG_HICACHE_NIXL_USE_DIRECT_IO", "use_direct_io" },
	{ "AWS_DEFAULT_BUCKET", "plugin.obj.bucket" },
};
const size_t kvc_seed_variable_count = COUNT(kvc_seed_variables);

const struct kvc_section *kvc_section_find(const char *name)
{
	for (size_t i = 0; i < kvc_section_count; i++)
		if (strcasecmp(kvc_sections[i].name, name) == 0 ||
		    (kvc_sections[i].alias && strcasecmp(kvc_sections[i].alias, name) == 0))
			return &kvc_sections[i];
	return NULL;
}

const struct kvc_option *kvc_top_option_find(const char *name)
{
	return kvc_option_find(kvc_top_options, kvc_top_option_count, name);
}

const struct kvc_option *kvc_section_option_find(const struct kvc_section *section,
						 const char *name)
{
	if (strcmp(name, kvc_active_option.name) == 0)
		return &kvc_active_option;
	return kvc_option_find(section->options, section->option_count, name);
}

const char *kvc_option_canonical(const char *name)
{
	return strcmp(name, "secret_key") == 0 ? "secrete_key" : name;
}

/* What SGLang's parse_storage_backend_extra_config(), its controller and its factory take; the last
 * one is read by kvcellar/sglang in Python. */
const struct kvc_option kvc_engine_options[] = {
	ROW("prefetch_threshold", "integer", "", "", "", 0, ""),
	ROW("prefetch_timeout_base", "float", "", "", "", 0, ""),
	ROW("prefetch_timeout_per_ki_token", "float", "", "", "", 0, ""),
	ROW("hicache_storage_pass_prefix_keys", "boolean", "", "", BOOLEAN, 0, ""),
	ROW("tp_lcm_size", "integer", "", "", "[1, 2147483647]", 0, ""),
	ROW("interface_v1", "boolean", "", "", BOOLEAN, 0, ""),
	ROW("backend_name", "string", "", "", "", 0, ""),
	ROW("module_path", "string", "", "", "", 0, ""),
	ROW("class_name", "string", "", "", "", 0, ""),
	ROW("switch_interval_us", "float", "us", "", "[1, 1000000]", 0, ""),
};
const size_t kvc_engine_option_count = COUNT(kvc_engine_options);

bool kvc_key_is_tolerated(const char *name)
{
	return kvc_option_find(kvc_engine_options, kvc_engine_option_count, name) ||
	       strcmp(name, "allocator") == 0 || strncmp(name, "prefetch_", 9) == 0 ||
	       strncmp(name, "hicache_", 8) == 0;
}
