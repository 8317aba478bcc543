/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar replay: plays a request trace against the configured store. */
#include "replay_clients.h"
#include "replay_output.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct replay_options {
	const char *trace;
	const char *report;
	const char *pool;
	uint64_t limit;
	uint64_t tier_pages;
	uint64_t pool_pages;
	uint64_t part_bytes;
	uint32_t parts;
	uint32_t batch;
	uint32_t clients;
	uint32_t passes;
	uint32_t layout;
	uint32_t layers;
	uint32_t heads;
	double speed;
	bool skip_bad;
};

enum {
	OPTION_CLIENTS = 0x200,
	OPTION_TIER_PAGES,
	OPTION_LIMIT,
	OPTION_SPEED,
	OPTION_PASSES,
	OPTION_BATCH,
	OPTION_POOL_PAGES,
	OPTION_POOL,
	OPTION_PART_BYTES,
	OPTION_PARTS,
	OPTION_LAYOUT,
	OPTION_LAYERS,
	OPTION_HEADS,
	OPTION_REPORT,
	OPTION_SKIP_BAD,
};

static const struct argp_option replay_options[] = {
	{ "clients", OPTION_CLIENTS, "N", 0, "Client threads that share the store; default: 1", 0 },
	{ "l2-pages", OPTION_TIER_PAGES, "N", 0,
	  "A tier of N pages in front of the store (least recently used leaves first); "
	  "default: none",
	  0 },
	{ "limit", OPTION_LIMIT, "N", 0, "Only the first N requests", 0 },
	{ "speed", OPTION_SPEED, "X", 0,
	  "X times as fast as recorded; default: 0, as fast as possible", 0 },
	{ "passes", OPTION_PASSES, "N", 0, "Play the trace N times; default: 1", 0 },
	{ "batch", OPTION_BATCH, "N", 0, "Pages per get or set; default: 128", 0 },
	{ "pool-pages", OPTION_POOL_PAGES, "N", 0,
	  "Pages of the host pool; default: clients x batch", 0 },
	{ "pool", OPTION_POOL, "NAME", 0, "Pool name; default: kv", 0 },
	{ "part-bytes", OPTION_PART_BYTES, "SIZE", 0, "Bytes of a part; default: 64K", 0 },
	{ "parts", OPTION_PARTS, "N", 0, "Parts of a page; default: 2", 0 },
	{ "layout", OPTION_LAYOUT, "NAME", 0,
	  "How the host pool lies in memory: page_first (default), page_first_direct, page_head, "
	  "layer_first, explicit",
	  0 },
	{ "layers", OPTION_LAYERS, "N", 0, "Layers of the layout; default: chosen", 0 },
	{ "heads", OPTION_HEADS, "N", 0, "Heads of the layout; default: chosen", 0 },
	{ "report", OPTION_REPORT, "FILE", 0, "Also write an HTML page with pictures", 0 },
	{ "skip-bad", OPTION_SKIP_BAD, NULL, 0, "Leave malformed lines out and count them", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static const char *const layout_names[] = {
	[KVC_LAYOUT_EXPLICIT] = "explicit",
	[KVC_LAYOUT_PAGE_FIRST] = "page_first",
	[KVC_LAYOUT_PAGE_FIRST_DIRECT] = "page_first_direct",
	[KVC_LAYOUT_PAGE_HEAD] = "page_head",
	[KVC_LAYOUT_LAYER_FIRST] = "layer_first",
};

static error_t parse_layout(const char *text, uint32_t *out)
{
	for (uint32_t i = 0; i < sizeof(layout_names) / sizeof(layout_names[0]); i++) {
		if (strcmp(text, layout_names[i]) == 0) {
			*out = i;
			return 0;
		}
	}
	return cli_argp_error("--layout: '%s' is none of page_first, page_first_direct, page_head, "
			      "layer_first, explicit",
			      text);
}

static error_t parse_speed(const char *text, double *out)
{
	char *end;
	double speed;

	errno = 0;
	speed = strtod(text, &end);
	if (errno != 0 || end == text || *end != '\0' || !isfinite(speed) || speed < 0)
		return cli_argp_error("--speed: '%s' is not a number >= 0", text);
	*out = speed;
	return 0;
}

static error_t parse_part_bytes(const char *text, uint64_t *out)
{
	uint64_t bytes;
	error_t error = cli_argp_size("--part-bytes", text, &bytes);

	if (error != 0)
		return error;
	if (bytes == 0 || bytes > 1ull << 40)
		return cli_argp_error("--part-bytes: '%s' is not between 1 byte and 1 TiB", text);
	*out = bytes;
	return 0;
}

/* The options about the pages; ARGP_ERR_UNKNOWN for others. */
static error_t parse_page_option(int key, char *text, struct replay_options *options)
{
	switch (key) {
	case OPTION_POOL_PAGES:
		return cli_argp_number("--pool-pages", text, 1, 1ull << 40, &options->pool_pages);
	case OPTION_POOL:
		options->pool = text;
		return 0;
	case OPTION_PART_BYTES:
		return parse_part_bytes(text, &options->part_bytes);
	case OPTION_PARTS:
		return cli_argp_u32("--parts", text, 1, 64, &options->parts);
	case OPTION_LAYOUT:
		return parse_layout(text, &options->layout);
	case OPTION_LAYERS:
		return cli_argp_u32("--layers", text, 1, 1u << 20, &options->layers);
	case OPTION_HEADS:
		return cli_argp_u32("--heads", text, 1, 1u << 20, &options->heads);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
	struct replay_options *options = state->input;

	switch (key) {
	case OPTION_CLIENTS:
		return cli_argp_u32("--clients", text, 1, 1024, &options->clients);
	case OPTION_TIER_PAGES:
		return cli_argp_number("--l2-pages", text, 0, 1ull << 30, &options->tier_pages);
	case OPTION_LIMIT:
		return cli_argp_number("--limit", text, 1, UINT64_MAX, &options->limit);
	case OPTION_SPEED:
		return parse_speed(text, &options->speed);
	case OPTION_PASSES:
		return cli_argp_u32("--passes", text, 1, 1000, &options->passes);
	case OPTION_BATCH:
		return cli_argp_u32("--batch", text, 1, 1u << 20, &options->batch);
	case OPTION_REPORT:
		options->report = text;
		return 0;
	case OPTION_SKIP_BAD:
		options->skip_bad = true;
		return 0;
	case ARGP_KEY_ARG:
		if (options->trace != NULL)
			return cli_argp_error("more than one TRACE: '%s'", text);
		if (strcmp(text, "-") == 0)
			return cli_argp_error("TRACE: '-': it is read from a file, not from "
					      "standard input");
		options->trace = text;
		return 0;
	case ARGP_KEY_END:
		return options->trace != NULL ? 0 : cli_argp_error("no TRACE given");
	default:
		return parse_page_option(key, text, options);
	}
}

static const struct argp replay_argp = {
	.options = replay_options,
	.parser = parse_option,
	.args_doc = "TRACE",
	.doc = "Plays a request trace as a serving engine would: for each request, which pages of "
	       "its prefix are stored, get of those, set of the rest. Page bytes are made from the "
	       "key and compared on every get. Exit code 1 when a byte was wrong.\v"
	       "TRACE is in the Mooncake form, the compact form, or a recording of trace_file "
	       "(docs/trace-format.md). Pages have 512 tokens in the Mooncake form and 64 in the "
	       "others, unless --page-tokens is given. The hit rate counts the leading pages of a "
	       "request that need not be computed; of a recording, the pages that get asked for. "
	       "GB/s is 10^9 bytes per second while at least one call was running.",
};

/* One replay from beginning to end. */
struct replay {
	struct kvc_cli *cli;
	struct replay_options options;
	struct replay_reader *reader;
	FILE *report;
	struct kvc_namespace *ns;
	struct kvc_region *region;
	struct replay_shared shared;
	struct replay_client *clients;
	uint32_t client_count; /* that have begun */
	struct replay_outcome outcome;
	struct cli_progress progress;
	uint64_t objects_per_page;
};

static int open_trace(struct replay *replay)
{
	struct kvc_cli *cli = replay->cli;
	const char *path = replay->options.trace;
	int error = replay_reader_open(path, replay->options.skip_bad, cli_interrupted,
				       &replay->reader);

	if (error != 0)
		return cli_fail_file(cli, error, path);
	error = replay_reader_detect(replay->reader);
	if (error == -EINVAL)
		return cli_error(cli, CLI_USAGE, "trace '%s': %s", path,
				 replay_reader_error(replay->reader));
	if (error == -EINTR)
		return CLI_INTERRUPTED;
	if (error < 0)
		return cli_fail_errno(cli, error, "trace '%s'", path);
	replay->outcome.form = replay_reader_form(replay->reader);
	if (error == 0)
		return cli_error(
			cli, CLI_USAGE, "trace '%s': it holds no requests%s", path,
			replay->outcome.form == REPLAY_FORM_RECORDING ?
				"; a recording has those for pages of pools, not those for "
				"single objects (put, get)" :
				"");
	if (replay->outcome.form == REPLAY_FORM_RECORDING && replay->options.tier_pages > 0)
		return cli_error(cli, CLI_USAGE,
				 "--l2-pages: a recording holds what came past that tier; "
				 "leave it out");
	if (replay->options.passes > 1 && replay_reader_total(replay->reader) == 0)
		return cli_error(cli, CLI_USAGE,
				 "--passes: trace '%s' is not a file that can be read again", path);
	return 0;
}

/* What of the rank goes into the bytes; see replay_bytes.h. */
static uint64_t rank_salt(const struct kvc_namespace_params *params)
{
	uint64_t tp_rank = params->is_mla != 0 || params->tp_lcm_size > 0 ? 0 : params->tp_rank;

	return tp_rank | (uint64_t)params->pp_rank << 16 | (uint64_t)params->cp_rank << 32 |
	       (uint64_t)params->dcp_rank << 48;
}

static int make_geometry(struct replay *replay)
{
	const struct replay_options *options = &replay->options;
	struct kvc_namespace_params *params = &replay->cli->ns.params;
	struct replay_geometry *geometry = &replay->shared.geometry;
	uint32_t tp_size = params->tp_size > 0 ? params->tp_size : 1;
	uint32_t groups = 1;
	const char *problem;

	if (params->page_tokens == 0)
		params->page_tokens = replay_form_page_tokens(replay->outcome.form);
	if (params->tp_lcm_size > 0 && params->is_mla == 0) {
		if (params->tp_lcm_size % tp_size != 0)
			return cli_error(replay->cli, CLI_USAGE,
					 "--tp-lcm-size is not a multiple of --tp-size");
		groups = params->tp_lcm_size / tp_size;
		geometry->by_head = true;
	}
	geometry->layout = options->layout;
	geometry->part_count = options->parts;
	geometry->part_bytes = options->part_bytes;
	geometry->page_count = options->pool_pages;
	geometry->page_tokens = params->page_tokens;
	geometry->layers = options->layers;
	geometry->heads = options->heads;
	geometry->rank_salt = rank_salt(params);
	if (options->pool_pages / options->clients < options->batch)
		return cli_error(replay->cli, CLI_USAGE,
				 "--pool-pages: %" PRIu64 " is less than clients x batch (%" PRIu64
				 ")",
				 options->pool_pages, (uint64_t)options->clients * options->batch);
	problem = replay_geometry_shape(geometry, groups);
	if (problem == NULL && geometry->by_head && geometry->layout == KVC_LAYOUT_EXPLICIT)
		problem = "--tp-lcm-size needs a layout with heads, not explicit";
	if (problem != NULL)
		return cli_error(replay->cli, CLI_USAGE, "%s", problem);
	geometry->first_head = params->tp_rank * geometry->heads;
	if (replay_geometry_map(geometry) != 0)
		return cli_fail_errno(replay->cli, -ENOMEM, "host pool of %" PRIu64 " pages",
				      options->pool_pages);
	return 0;
}

static int open_pool(struct replay *replay)
{
	struct kvc_cli *cli = replay->cli;
	const struct replay_geometry *geometry = &replay->shared.geometry;
	struct kvc_part parts[64];
	struct kvc_pool_params params = {
		.size = sizeof(params),
		.name = replay->options.pool,
		.parts = parts,
		.part_count = geometry->part_count,
		.host_layout = geometry->layout,
		.page_count = geometry->page_count,
	};
	struct kvc_memory memory = {
		.size = sizeof(memory),
		.kind = KVC_MEMORY_HOST,
		.addr = geometry->memory,
		.bytes = replay_geometry_bytes(geometry),
	};
	struct kvc_pool_info info = { .size = sizeof(info) };
	int error = kvc_memory_register(cli->store, &memory, &replay->region);

	if (error < 0)
		return cli_fail(cli, error, "memory of the host pool");
	replay_geometry_parts(geometry, parts);
	error = kvc_pool_open(replay->ns, &params, &replay->shared.pool);
	if (error == -EINVAL)
		return cli_error(cli, CLI_USAGE, "pool: %s", kvc_last_error());
	if (error < 0)
		return cli_fail(cli, error, "pool");
	error = kvc_pool_query(replay->shared.pool, &info);
	if (error < 0)
		return cli_fail(cli, error, "pool");
	replay->objects_per_page = info.objects_per_page;
	outcome_setting_add(&replay->outcome, "zero copy", "%s%s%s",
			    info.zero_copy != 0 ? "yes" : "no", info.reason[0] != '\0' ? ": " : "",
			    info.reason);
	return 0;
}

static int begin_clients(struct replay *replay)
{
	const struct replay_options *options = &replay->options;
	uint64_t slots = options->pool_pages / options->clients;

	replay->clients = calloc(options->clients, sizeof(*replay->clients));
	replay->outcome.passes = calloc(options->passes, sizeof(*replay->outcome.passes));
	if (replay->clients == NULL || replay->outcome.passes == NULL)
		return cli_fail_errno(replay->cli, -ENOMEM, "clients");
	if (options->tier_pages > 0) {
		replay->shared.tier = replay_lru_new(options->tier_pages);
		if (replay->shared.tier == NULL)
			return cli_fail_errno(replay->cli, -ENOMEM, "--l2-pages");
	}
	for (uint32_t i = 0; i < options->clients; i++) {
		if (replay_client_begin(&replay->clients[i], &replay->shared, i * slots, slots) !=
		    0)
			return cli_fail_errno(replay->cli, -ENOMEM, "clients");
		replay->client_count++;
	}
	return 0;
}

static void add_settings(struct replay *replay)
{
	const struct replay_options *options = &replay->options;
	const struct replay_geometry *geometry = &replay->shared.geometry;
	struct replay_outcome *outcome = &replay->outcome;
	char text[CLI_FORMAT_BYTES];

	outcome_setting_add(outcome, "parts", "%" PRIu32 " of %s", options->parts,
			    cli_format_size(text, options->part_bytes));
	outcome_setting_add(outcome, "page tokens", "%" PRIu32, geometry->page_tokens);
	outcome_setting_add(outcome, "layout", "%s", layout_names[options->layout]);
	outcome_setting_add(outcome, "batch", "%" PRIu32 " pages", options->batch);
	outcome_setting_add(outcome, "clients", "%" PRIu32, options->clients);
	outcome_setting_add(outcome, "host pool", "%" PRIu64 " pages, %s", options->pool_pages,
			    cli_format_size(text, replay_geometry_bytes(geometry)));
	if (options->tier_pages > 0)
		outcome_setting_add(outcome, "tier", "%" PRIu64 " pages", options->tier_pages);
	else
		outcome_setting_add(outcome, "tier", "none");
	if (options->speed > 0)
		outcome_setting_add(outcome, "speed", "%g x recorded", options->speed);
	else
		outcome_setting_add(outcome, "speed", "as fast as possible");
	outcome_setting_add(outcome, "passes", "%" PRIu32, options->passes);
	outcome_setting_add(outcome, "library", "kvcellar %s", kvc_version());
}

static int set_up(struct replay *replay)
{
	struct kvc_cli *cli = replay->cli;
	int rc = open_trace(replay);

	if (rc != 0)
		return rc;
	rc = make_geometry(replay);
	if (rc != 0)
		return rc;
	if (replay->options.report != NULL) {
		replay->report = fopen(replay->options.report, "we");
		if (replay->report == NULL)
			return cli_fail_file(cli, -errno, replay->options.report);
	}
	rc = cli_store_open(cli, 0);
	if (rc != 0)
		return rc;
	replay->shared.store = cli->store;
	rc = cli_namespace_open(cli, &replay->ns);
	if (rc != 0)
		return rc;
	add_settings(replay);
	rc = open_pool(replay);
	return rc != 0 ? rc : begin_clients(replay);
}

static void tick(void *context)
{
	struct replay *replay = context;

	if (cli_interrupted())
		atomic_store(&replay->shared.stop, true);
	cli_progress_update(&replay->progress, atomic_load(&replay->shared.played));
}

static uint64_t process_cpu_ns(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return ((uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec) * 1000000000u +
	       ((uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * 1000u;
}

static struct stats_pass sum_of_clients(const struct replay *replay)
{
	struct stats_pass sum = { 0 };

	for (uint32_t i = 0; i < replay->client_count; i++)
		stats_pass_add(&sum, &replay->clients[i].pass);
	return sum;
}

/* One pass; what it added to the clients' sums is its own. */
static int run_pass(struct replay *replay)
{
	const struct replay_plan plan = {
		.clients = replay->clients,
		.client_count = replay->client_count,
		.limit = replay->options.limit,
		.speed = replay->options.speed,
		.tick = tick,
		.context = replay,
	};
	struct replay_outcome *outcome = &replay->outcome;
	struct stats_pass *pass = &outcome->passes[outcome->pass_count++];
	uint64_t begin_ns = replay_now_ns();
	int error;

	for (uint32_t i = 0; i < replay->client_count; i++)
		memset(&replay->clients[i].pass, 0, sizeof(replay->clients[i].pass));
	error = replay_clients_run(&replay->shared, &plan, replay->reader);
	*pass = sum_of_clients(replay);
	pass->seconds = (double)(replay_now_ns() - begin_ns) / 1e9;
	stats_pass_add(&outcome->total, pass);
	return error;
}

/* How many requests there are for the progress bar; 0 = not known. */
static uint64_t expected_requests(const struct replay *replay)
{
	const struct kvc_cli *cli = replay->cli;
	const struct replay_options *options = &replay->options;
	uint64_t lines = 0;

	if (cli->json || cli->quiet || cli->no_progress || replay_reader_total(replay->reader) == 0)
		return 0;
	if (replay_lines(options->trace, &lines) != 0)
		return 0;
	if (options->limit > 0 && options->limit < lines)
		lines = options->limit;
	return lines * options->passes;
}

/* All passes. The exit code of what ended it early, or 0. */
static int run(struct replay *replay)
{
	struct kvc_cli *cli = replay->cli;
	struct replay_shared *shared = &replay->shared;
	int error = 0;

	cli_progress_begin(cli, &replay->progress, "replay", expected_requests(replay),
			   CLI_UNIT_COUNT);
	shared->start_ns = replay_now_ns();
	stats_series_begin(&shared->series);
	for (uint32_t pass = 0; pass < replay->options.passes; pass++) {
		if (pass > 0)
			error = replay_reader_rewind(replay->reader);
		if (error == 0)
			error = run_pass(replay);
		if (error != 0 || atomic_load(&shared->stop))
			break;
	}
	cli_progress_end(&replay->progress);
	replay->outcome.interrupted = cli_interrupted();
	if (shared->error < 0)
		return cli_error(cli, cli_exit_of_errno(shared->error), "replay: %s",
				 shared->error_text);
	if (error == -EINVAL)
		return cli_error(cli, CLI_USAGE, "trace '%s': %s", replay->options.trace,
				 replay_reader_error(replay->reader));
	if (error < 0 && error != -EINTR) /* which the outcome tells */
		return cli_fail_errno(cli, error, "trace '%s'", replay->options.trace);
	return 0;
}

static void add_operation(struct stats_operation *into, const struct stats_operation *from)
{
	into->calls += from->calls;
	into->pages += from->pages;
	into->bytes += from->bytes;
	into->cpu_ns += from->cpu_ns;
	for (size_t i = 0; i < 8; i++)
		into->statuses[i] += from->statuses[i];
	for (size_t i = 0; i < KVC_CAUSE_COUNT; i++)
		into->causes[i] += from->causes[i];
	stats_latency_merge(&into->latency, &from->latency);
}

/* Sums up the clients. @cpu_ns of the process, @main_cpu_ns of this thread, during the replay. */
static void sum_up(struct replay *replay, uint64_t cpu_ns, uint64_t main_cpu_ns)
{
	struct replay_outcome *outcome = &replay->outcome;
	uint64_t own_ns = main_cpu_ns, pages = 0;

	for (uint32_t i = 0; i < replay->client_count; i++) {
		const struct replay_client *client = &replay->clients[i];

		own_ns += client->thread_cpu_ns;
		for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++) {
			add_operation(&outcome->operations[op], &client->operations[op]);
			own_ns -= client->operations[op].cpu_ns;
		}
		outcome->checked_pages += client->checked_pages;
		outcome->wrong_pages += client->wrong_pages;
		outcome->wrong_bytes += client->wrong_bytes;
		if (client->wrong.seen && !outcome->wrong.seen)
			outcome->wrong = client->wrong;
	}
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++)
		outcome->busy_s[op] = (double)replay->shared.meters[op].busy_ns / 1e9;
	pages = outcome->operations[KVC_GET].bytes + outcome->operations[KVC_SET].bytes;
	pages /= replay->shared.geometry.part_bytes * replay->shared.geometry.part_count;
	outcome->objects = pages * replay->objects_per_page;
	outcome->store_cpu_s = cpu_ns > own_ns ? (double)(cpu_ns - own_ns) / 1e9 : 0;
	outcome->series = replay->shared.series;
	outcome->trace = replay->options.trace;
	outcome->bad_lines = replay_reader_bad_lines(replay->reader);
	outcome->dropped = replay_reader_dropped(replay->reader);
}

static int get_config_text(void *context, char *buffer, size_t bytes)
{
	return kvc_config_describe(context, KVC_DESCRIBE_EFFECTIVE, buffer, bytes);
}

static int get_store_text(void *context, char *buffer, size_t bytes)
{
	return kvc_store_describe(context, KVC_FORMAT_TEXT, buffer, bytes);
}

static int write_report(struct replay *replay)
{
	struct kvc_cli *cli = replay->cli;
	int rc = 0, error;
	char *config = cli_text(cli, "configuration", get_config_text, cli->config, &rc);
	char *store = cli_text(cli, "store", get_store_text, cli->store, &rc);

	if (config != NULL && store != NULL) {
		replay->outcome.config_text = config;
		replay->outcome.store_text = store;
		error = outcome_report(replay->report, &replay->outcome);
		if (fclose(replay->report) != 0 && error == 0)
			error = -errno;
		replay->report = NULL;
		if (error != 0)
			rc = cli_fail_errno(cli, error, "report '%s'", replay->options.report);
	}
	free(config);
	free(store);
	return rc;
}

static int show(struct replay *replay, int rc)
{
	struct kvc_cli *cli = replay->cli;

	if (replay->report != NULL) {
		int failed = write_report(replay);

		if (rc == 0)
			rc = failed;
	}
	if (cli->json) {
		int failed = cli_json_print(cli, outcome_json(&replay->outcome));

		if (rc == 0)
			rc = failed;
	} else {
		outcome_print(cli, &replay->outcome);
	}
	if (replay->options.report != NULL && rc == 0)
		cli_note(cli, "report: %s", replay->options.report);
	if (replay->outcome.wrong_bytes > 0)
		return CLI_WRONG;
	if (rc == 0 && replay->outcome.interrupted)
		return CLI_INTERRUPTED;
	return rc;
}

static void tear_down(struct replay *replay)
{
	for (uint32_t i = 0; i < replay->client_count; i++)
		replay_client_end(&replay->clients[i]);
	free(replay->clients);
	free(replay->outcome.passes);
	replay_lru_free(replay->shared.tier);
	(void)kvc_pool_close(replay->shared.pool);
	(void)kvc_memory_deregister(replay->region);
	replay_geometry_unmap(&replay->shared.geometry);
	if (replay->report != NULL) {
		fclose(replay->report);
		(void)unlink(replay->options.report);
	}
	replay_reader_close(replay->reader);
	pthread_mutex_destroy(&replay->shared.lock);
}

int kvc_cmd_replay(struct kvc_cli *cli, int argc, char **argv)
{
	struct replay *replay = calloc(1, sizeof(*replay));
	struct replay_options *options;
	uint64_t cpu_ns, main_cpu_ns;
	int rc;

	if (replay == NULL)
		return cli_fail_errno(cli, -ENOMEM, "replay");
	options = &replay->options;
	*options = (struct replay_options){
		.pool = "kv",
		.part_bytes = 64u << 10,
		.parts = 2,
		.batch = 128,
		.clients = 1,
		.passes = 1,
		.layout = KVC_LAYOUT_PAGE_FIRST,
	};
	replay->cli = cli;
	pthread_mutex_init(&replay->shared.lock, NULL);
	rc = cli_parse(cli, &replay_argp, CLI_WITH_NAMESPACE, argc, argv, options);
	if (rc != 0)
		goto out;
	if (options->pool_pages == 0)
		options->pool_pages = (uint64_t)options->clients * options->batch;
	replay->shared.batch = options->batch;
	rc = set_up(replay);
	if (rc != 0)
		goto out;
	cpu_ns = process_cpu_ns();
	main_cpu_ns = replay_thread_cpu_ns();
	rc = run(replay);
	sum_up(replay, process_cpu_ns() - cpu_ns, replay_thread_cpu_ns() - main_cpu_ns);
	rc = show(replay, rc);

out:
	tear_down(replay);
	free(replay);
	return rc;
}
