/* SPDX-License-Identifier: Apache-2.0 */
/* kvcellar simulate: what a capacity and a policy are worth for a request trace. */
#include "simulate.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_BATCH	   128u /* as SGLang asks for pages */
#define DEFAULT_SESSIONS   16u
#define DEFAULT_SEED	   1u
#define DEFAULT_POLICIES   "lru,fifo,s3fifo,reference"
#define DEFAULT_CAPACITIES "1%,2%,3%,5%,7%,10%,15%,20%,30%,50%,100%"

struct simulate {
	struct kvc_cli *cli;
	struct sim_outcome outcome;
	struct sim_trace trace;
	const char *policies;
	const char *capacities;
	const char *svg;
	const char *png;
	uint64_t limit;
	uint32_t sessions;
	bool sessions_given;
	bool skip_bad;
	FILE *svg_file;
	FILE *png_file;
	struct cli_progress progress;
	uint64_t played;
};

enum {
	OPTION_CAPACITY = 0x200,
	OPTION_POLICY,
	OPTION_SESSIONS,
	OPTION_EXACT,
	OPTION_BATCH,
	OPTION_SEED,
	OPTION_PAGE_BYTES,
	OPTION_LIMIT,
	OPTION_SVG,
	OPTION_PNG,
	OPTION_SKIP_BAD,
};

static const struct argp_option simulate_options[] = {
	{ "capacity", OPTION_CAPACITY, "LIST", 0,
	  "Capacities, as 5%,20000,64GiB: percent of the trace's distinct pages, pages, or bytes "
	  "(with --page-bytes); default: " DEFAULT_CAPACITIES,
	  0 },
	{ "policy", OPTION_POLICY, "LIST", 0,
	  "Policies: lru, fifo, s3fifo, and reference, which is HiCacheNixl's cleaner; "
	  "default: all",
	  0 },
	{ "sessions", OPTION_SESSIONS, "N", 0,
	  "Sessions of the compact form that run side by side; default: 16; 0: in the order of the "
	  "lines",
	  0 },
	{ "exact", OPTION_EXACT, NULL, 0,
	  "Strictly in the policy's order, to which the store only comes near", 0 },
	{ "batch", OPTION_BATCH, "N", 0, "Pages per get or set; default: 128; 0: of a request", 0 },
	{ "seed", OPTION_SEED, "N", 0, "Of where the search for what goes begins; default: 1", 0 },
	{ "page-bytes", OPTION_PAGE_BYTES, "SIZE", 0, "Bytes of a page: capacities in bytes, too",
	  0 },
	{ "limit", OPTION_LIMIT, "N", 0, "Only the first N requests", 0 },
	{ "svg", OPTION_SVG, "FILE", 0, "Also write the curves as SVG", 0 },
	{ "png", OPTION_PNG, "FILE", 0,
	  "Also write the curves as PNG, which a build without cairo has not", 0 },
	{ "skip-bad", OPTION_SKIP_BAD, NULL, 0, "Leave malformed lines out and count them", 0 },
	{ NULL, 0, NULL, 0, NULL, 0 },
};

static error_t parse_page_bytes(const char *text, uint64_t *out)
{
	uint64_t bytes;
	const error_t error = cli_argp_size("--page-bytes", text, &bytes);

	if (error != 0)
		return error;
	if (bytes == 0 || bytes > UINT64_C(1) << 40)
		return cli_argp_error("--page-bytes: '%s' is not between 1 byte and 1 TiB", text);
	*out = bytes;
	return 0;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
	struct simulate *simulate = state->input;
	struct sim_outcome *outcome = &simulate->outcome;

	switch (key) {
	case OPTION_CAPACITY:
		simulate->capacities = text;
		return 0;
	case OPTION_POLICY:
		simulate->policies = text;
		return 0;
	case OPTION_SESSIONS:
		simulate->sessions_given = true;
		return cli_argp_u32("--sessions", text, 0, 1u << 20, &simulate->sessions);
	case OPTION_EXACT:
		outcome->exact = true;
		return 0;
	case OPTION_BATCH:
		return cli_argp_u32("--batch", text, 0, 1u << 20, &outcome->batch);
	case OPTION_SEED:
		return cli_argp_number("--seed", text, 0, UINT64_MAX, &outcome->seed);
	case OPTION_PAGE_BYTES:
		return parse_page_bytes(text, &outcome->page_bytes);
	case OPTION_LIMIT:
		return cli_argp_number("--limit", text, 1, UINT64_MAX, &simulate->limit);
	case OPTION_SVG:
		simulate->svg = text;
		return 0;
	case OPTION_PNG:
		if (!sim_has_png())
			return cli_argp_error("--png: this build has no PNG (it was made without "
					      "cairo); --svg writes the same curves");
		simulate->png = text;
		return 0;
	case OPTION_SKIP_BAD:
		simulate->skip_bad = true;
		return 0;
	case ARGP_KEY_ARG:
		if (outcome->path)
			return cli_argp_error("more than one TRACE: '%s'", text);
		if (strcmp(text, "-") == 0)
			return cli_argp_error("TRACE: '-': it is read from a file, not from "
					      "standard input");
		outcome->path = text;
		return 0;
	case ARGP_KEY_END:
		return outcome->path ? 0 : cli_argp_error("no TRACE given");
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp simulate_argp = {
	.options = simulate_options,
	.parser = parse_option,
	.args_doc = "TRACE",
	.doc = "Plays a request trace against a store without bytes: which share of the pages that "
	       "requests ask for is found, and how many pages have to be computed again, for each "
	       "policy at each capacity. Each request asks for its pages, uses the leading ones "
	       "that are there, and stores the rest.\v"
	       "TRACE is as for replay. What goes is chosen as in the packed layout: by the same "
	       "functions, with a few pages kept free. docs/eviction.md tells more, and how to "
	       "find the capacity that one's own requests need.",
};

/* ---------------------------------------------------------------- lists */

/* The next word of a list: its length; *list goes behind it. -1: there is none. */
static int next_word(const char **list, char word[64])
{
	const size_t bytes = strcspn(*list, ",");
	const size_t copied = bytes < 63 ? bytes : 63;

	if (!**list)
		return -1;
	memcpy(word, *list, copied);
	word[copied] = '\0';
	*list += bytes + ((*list)[bytes] == ',');
	return (int)copied;
}

static int add_policies(struct simulate *simulate)
{
	struct sim_outcome *outcome = &simulate->outcome;
	const char *list = simulate->policies;
	char word[64];

	while (next_word(&list, word) >= 0) {
		struct sim_policy policy;

		if (!sim_policy_of(word, outcome->exact, &policy))
			return cli_error(simulate->cli, CLI_USAGE,
					 "--policy: '%s' is none of lru, fifo, s3fifo, reference",
					 word);
		for (size_t i = 0; i < outcome->policy_count; i++)
			if (outcome->policies[i].name == policy.name)
				return cli_error(simulate->cli, CLI_USAGE, "--policy: %s twice",
						 word);
		outcome->policies[outcome->policy_count++] = policy;
	}
	if (outcome->policy_count == 0)
		return cli_error(simulate->cli, CLI_USAGE, "--policy: an empty list");
	return 0;
}

/* "5%": percent; "2000": pages; "64GiB": bytes. */
static int add_capacity(struct simulate *simulate, const char *word)
{
	struct sim_outcome *outcome = &simulate->outcome;
	struct sim_capacity *capacity;
	uint64_t number;
	char *end;

	if (outcome->capacity_count == SIM_CAPACITIES_MAX)
		return cli_error(simulate->cli, CLI_USAGE, "--capacity: more than %u of them",
				 SIM_CAPACITIES_MAX);
	capacity = &outcome->capacities[outcome->capacity_count++];
	*capacity = (struct sim_capacity){ .percent = 0 };
	capacity->percent = strtod(word, &end);
	if (strcmp(end, "%") == 0 && isdigit((unsigned char)word[0]) && !strchr(word, 'x')) {
		if (capacity->percent > 0 && capacity->percent <= 100)
			return 0;
		return cli_error(simulate->cli, CLI_USAGE,
				 "--capacity: %s is not above 0%% and at most 100%%", word);
	}
	capacity->percent = 0;
	if (word[strspn(word, "0123456789")] == '\0') {
		if (cli_argp_number("--capacity", word, 1, UINT32_MAX / 2, &number))
			return cli_error(simulate->cli, CLI_USAGE, "%s", cli_argp_text());
		capacity->pages = (uint32_t)number;
		return 0;
	}
	if (cli_argp_size("--capacity", word, &capacity->bytes))
		return cli_error(simulate->cli, CLI_USAGE, "%s", cli_argp_text());
	if (outcome->page_bytes == 0)
		return cli_error(simulate->cli, CLI_USAGE,
				 "--capacity: '%s' are bytes; --page-bytes has to say how many of "
				 "them a page has",
				 word);
	number = capacity->bytes / outcome->page_bytes;
	if (number < 1 || number > UINT32_MAX / 2)
		return cli_error(simulate->cli, CLI_USAGE,
				 "--capacity: '%s' are %" PRIu64 " pages, not in [1, %" PRIu32 "]",
				 word, number, UINT32_MAX / 2);
	capacity->pages = (uint32_t)number;
	return 0;
}

static int add_capacities(struct simulate *simulate)
{
	const char *list = simulate->capacities;
	char word[64];

	while (next_word(&list, word) >= 0) {
		const int rc = add_capacity(simulate, word);

		if (rc)
			return rc;
	}
	if (simulate->outcome.capacity_count == 0)
		return cli_error(simulate->cli, CLI_USAGE, "--capacity: an empty list");
	return 0;
}

/* ---------------------------------------------------------------- trace */

static int interleave(struct simulate *simulate)
{
	struct kvc_cli *cli = simulate->cli;
	int rc;

	if (simulate->trace.form != REPLAY_FORM_COMPACT) {
		if (simulate->sessions_given)
			return cli_error(cli, CLI_USAGE,
					 "--sessions: trace '%s' is in the %s form, whose requests "
					 "have an order already",
					 simulate->outcome.path,
					 replay_form_name(simulate->trace.form));
		return 0;
	}
	if (simulate->sessions == 0)
		return 0;
	simulate->outcome.side_by_side = simulate->sessions;
	rc = sim_trace_interleave(&simulate->trace, simulate->outcome.side_by_side);
	return rc ? cli_fail_errno(cli, rc, "trace '%s'", simulate->outcome.path) : 0;
}

static int read_trace(struct simulate *simulate, struct replay_reader *reader)
{
	struct kvc_cli *cli = simulate->cli;
	const char *path = simulate->outcome.path;
	int rc = replay_reader_detect(reader);

	if (rc >= 0)
		rc = sim_trace_read(reader, simulate->limit, &simulate->trace);
	if (rc == -EINVAL)
		return cli_error(cli, CLI_USAGE, "trace '%s': %s", path,
				 replay_reader_error(reader));
	if (rc == -EINTR)
		return CLI_INTERRUPTED;
	if (rc < 0)
		return cli_fail_errno(cli, rc, "trace '%s'", path);
	if (simulate->trace.asked == 0 || simulate->trace.distinct == 0)
		return cli_error(cli, CLI_USAGE, "trace '%s': no request asks for a page", path);
	simulate->outcome.bad_lines = replay_reader_bad_lines(reader);
	simulate->outcome.dropped = replay_reader_dropped(reader);
	return interleave(simulate);
}

static int open_trace(struct simulate *simulate)
{
	struct replay_reader *reader;
	int rc = replay_reader_open(simulate->outcome.path, simulate->skip_bad, cli_interrupted,
				    &reader);

	if (rc)
		return cli_fail_file(simulate->cli, rc, simulate->outcome.path);
	rc = read_trace(simulate, reader);
	replay_reader_close(reader);
	return rc;
}

/* ---------------------------------------------------------------- playing */

static uint32_t pages_of(const struct simulate *simulate, const struct sim_capacity *capacity)
{
	const double pages = capacity->percent * simulate->trace.distinct / 100;

	if (capacity->percent <= 0)
		return capacity->pages;
	return pages < 1 ? 1 : (uint32_t)pages;
}

static int play_all(struct simulate *simulate, struct sim_cache *cache)
{
	const struct sim_trace *trace = &simulate->trace;

	for (size_t i = 0; i < trace->request_count; i++) {
		const struct sim_request *request = &trace->requests[i];
		const int rc = sim_cache_play(cache, request, trace->runs + request->first_run);

		if (rc)
			return rc;
		if (cli_interrupted())
			return -EINTR;
		cli_progress_update(&simulate->progress, ++simulate->played);
	}
	return 0;
}

static int play_point(struct simulate *simulate, size_t c, size_t p)
{
	struct sim_outcome *outcome = &simulate->outcome;
	struct sim_cache *cache = sim_cache_new(&outcome->policies[p], outcome->capacities[c].pages,
						simulate->trace.span, outcome->batch,
						outcome->seed);
	int rc = cache ? play_all(simulate, cache) : -ENOMEM;

	if (rc == 0)
		outcome->points[c * outcome->policy_count + p] = *sim_cache_counts(cache);
	sim_cache_free(cache);
	return rc;
}

static int by_pages(const void *a, const void *b)
{
	const struct sim_capacity *x = a, *y = b;

	return x->pages < y->pages ? -1 : x->pages > y->pages;
}

static int play(struct simulate *simulate)
{
	struct sim_outcome *outcome = &simulate->outcome;
	const uint64_t points = outcome->policy_count * outcome->capacity_count;
	int rc = 0;

	cli_progress_begin(simulate->cli, &simulate->progress, "simulate",
			   points * simulate->trace.request_count, CLI_UNIT_COUNT);
	for (size_t c = 0; c < outcome->capacity_count; c++)
		outcome->capacities[c].pages = pages_of(simulate, &outcome->capacities[c]);
	qsort(outcome->capacities, outcome->capacity_count, sizeof(outcome->capacities[0]),
	      by_pages);
	for (size_t c = 0; c < outcome->capacity_count && rc == 0; c++) {
		for (size_t p = 0; p < outcome->policy_count && rc == 0; p++)
			rc = play_point(simulate, c, p);
	}
	cli_progress_end(&simulate->progress);
	if (rc == -EINTR)
		return CLI_INTERRUPTED;
	return rc ? cli_fail_errno(simulate->cli, rc, "simulate") : 0;
}

/* ---------------------------------------------------------------- charts */

static int open_chart(struct simulate *simulate, const char *path, FILE **out)
{
	struct stat trace, chart;

	if (!path)
		return 0;
	if (stat(simulate->outcome.path, &trace) == 0 && stat(path, &chart) == 0 &&
	    S_ISREG(chart.st_mode) && trace.st_dev == chart.st_dev && trace.st_ino == chart.st_ino)
		return cli_error(simulate->cli, CLI_USAGE, "chart '%s' is the trace itself", path);
	*out = fopen(path, "we");
	return *out ? 0 : cli_fail_file(simulate->cli, -errno, path);
}

/* Nothing stays of a chart that is not whole; a device or a link is not ours to remove. */
static void remove_chart(const char *path)
{
	struct stat status;

	if (lstat(path, &status) == 0 && S_ISREG(status.st_mode))
		(void)unlink(path);
}

static int write_chart(struct simulate *simulate, const char *path, FILE **file,
		       int (*write)(FILE *file, const struct sim_outcome *outcome))
{
	int rc;

	if (!path)
		return 0;
	rc = write(*file, &simulate->outcome);
	if (fclose(*file) != 0 && rc == 0)
		rc = -errno;
	*file = NULL;
	if (rc) {
		remove_chart(path);
		return cli_fail_errno(simulate->cli, rc, "chart '%s'", path);
	}
	cli_note(simulate->cli, "chart: %s", path);
	return 0;
}

/* A file that nothing was written to. */
static void drop_chart(const char *path, FILE *file)
{
	if (!file)
		return;
	(void)fclose(file);
	remove_chart(path);
}

static int simulate_all(struct simulate *simulate)
{
	struct sim_outcome *outcome = &simulate->outcome;
	int rc = add_policies(simulate);

	if (rc == 0)
		rc = add_capacities(simulate);
	if (rc == 0)
		rc = open_trace(simulate);
	if (rc == 0)
		rc = open_chart(simulate, simulate->svg, &simulate->svg_file);
	if (rc == 0)
		rc = open_chart(simulate, simulate->png, &simulate->png_file);
	if (rc == 0)
		rc = play(simulate);
	if (rc)
		return rc;
	if (simulate->cli->json)
		rc = cli_json_print(simulate->cli, sim_json(outcome));
	else
		sim_print(simulate->cli, outcome);
	if (rc == 0)
		rc = write_chart(simulate, simulate->svg, &simulate->svg_file, sim_write_svg);
	if (rc == 0)
		rc = write_chart(simulate, simulate->png, &simulate->png_file, sim_write_png);
	return rc;
}

int kvc_cmd_simulate(struct kvc_cli *cli, int argc, char **argv)
{
	struct simulate *simulate = calloc(1, sizeof(*simulate));
	int rc;

	if (!simulate)
		return cli_fail_errno(cli, -ENOMEM, "simulate");
	simulate->cli = cli;
	simulate->policies = DEFAULT_POLICIES;
	simulate->capacities = DEFAULT_CAPACITIES;
	simulate->outcome.batch = DEFAULT_BATCH;
	simulate->outcome.seed = DEFAULT_SEED;
	simulate->sessions = DEFAULT_SESSIONS;
	simulate->outcome.trace = &simulate->trace;
	rc = cli_parse(cli, &simulate_argp, CLI_WITHOUT_CONFIG, argc, argv, simulate);
	if (rc == 0)
		rc = simulate_all(simulate);
	drop_chart(simulate->svg, simulate->svg_file);
	drop_chart(simulate->png, simulate->png_file);
	sim_trace_free(&simulate->trace);
	free(simulate);
	return rc;
}
