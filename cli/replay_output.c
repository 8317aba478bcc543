/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_output.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

const char *const outcome_operation_names[KVC_OPERATION_COUNT] = {
	[KVC_EXISTS] = "exists",
	[KVC_GET] = "get",
	[KVC_SET] = "set",
	[KVC_REMOVE] = "remove",
};

void outcome_setting_add(struct replay_outcome *outcome, const char *name, const char *format, ...)
{
	struct outcome_setting *setting;
	va_list arguments;

	if (outcome->setting_count == OUTCOME_SETTINGS_MAX)
		return;
	setting = &outcome->settings[outcome->setting_count++];
	setting->name = name;
	va_start(arguments, format);
	vsnprintf(setting->value, sizeof(setting->value), format, arguments);
	va_end(arguments);
}

double outcome_gb_per_s(const struct replay_outcome *outcome, unsigned op)
{
	if (outcome->busy_s[op] <= 0)
		return 0;
	return (double)outcome->operations[op].bytes / outcome->busy_s[op] / 1e9;
}

double outcome_cpu_us(const struct replay_outcome *outcome)
{
	if (outcome->objects == 0)
		return 0;
	return outcome->store_cpu_s * 1e6 / (double)outcome->objects;
}

static double cpu_us_per_page(const struct stats_operation *operation)
{
	if (operation->pages == 0)
		return 0;
	return (double)operation->cpu_ns / 1e3 / (double)operation->pages;
}

/* ---------------------------------------------------------------- text */

static void print_operation(const struct replay_outcome *outcome, unsigned op)
{
	const struct stats_operation *operation = &outcome->operations[op];
	char p50[CLI_FORMAT_BYTES], p99[CLI_FORMAT_BYTES], most[CLI_FORMAT_BYTES];
	char rate[32] = "-";

	if (operation->calls == 0)
		return;
	if (op == KVC_GET || op == KVC_SET)
		snprintf(rate, sizeof(rate), "%.2f", outcome_gb_per_s(outcome, op));
	printf("%-9s %8" PRIu64 " %9" PRIu64 " %8s %10s %10s %10s %12.1f\n",
	       outcome_operation_names[op], operation->calls, operation->pages, rate,
	       cli_format_seconds(p50, stats_latency_quantile(&operation->latency, 0.50) / 1e9),
	       cli_format_seconds(p99, stats_latency_quantile(&operation->latency, 0.99) / 1e9),
	       cli_format_seconds(most, (double)operation->latency.max_ns / 1e9),
	       cpu_us_per_page(operation));
}

/* "set: ok 4, full 2 (existed 1, no-space 2)" */
static void print_statuses(const struct replay_outcome *outcome, unsigned op)
{
	const struct stats_operation *operation = &outcome->operations[op];
	const char *before = "";

	if (operation->pages == 0)
		return;
	printf("  %-7s ", outcome_operation_names[op]);
	for (int status = 0; status < 8; status++) {
		if (operation->statuses[status] == 0)
			continue;
		printf("%s%s %" PRIu64, before, kvc_status_name(status),
		       operation->statuses[status]);
		before = ", ";
	}
	before = " (";
	for (int cause = 1; cause < KVC_CAUSE_COUNT; cause++) {
		if (operation->causes[cause] == 0)
			continue;
		printf("%s%s %" PRIu64, before, kvc_cause_name(cause), operation->causes[cause]);
		before = ", ";
	}
	printf("%s\n", before[0] == ',' ? ")" : "");
}

static void print_pass(const char *name, const struct stats_pass *pass)
{
	char time[CLI_FORMAT_BYTES];

	printf("%s%.1f%% of %" PRIu64 " pages (tier %" PRIu64 ", store %" PRIu64 "), %" PRIu64
	       " requests in %s\n",
	       name, 100 * stats_hit_rate(pass), pass->pages, pass->tier_hits, pass->store_hits,
	       pass->requests, cli_format_seconds(time, pass->seconds));
}

static void print_wrong(struct kvc_cli *cli, const struct replay_outcome *outcome)
{
	const char *color = outcome->wrong_bytes > 0 ? cli_red(cli) : cli_green(cli);

	printf("wrong bytes  %s%" PRIu64 "%s in %" PRIu64 " of %" PRIu64 " compared pages\n", color,
	       outcome->wrong_bytes, cli_plain(cli), outcome->wrong_pages, outcome->checked_pages);
	if (outcome->wrong.seen)
		printf("  first      %" PRIu64 " bytes of page %s (line %" PRIu64 ")\n",
		       outcome->wrong.bytes, outcome->wrong.key, outcome->wrong.line);
}

void outcome_print(struct kvc_cli *cli, const struct replay_outcome *outcome)
{
	char *trace;

	if (cli->quiet) {
		if (outcome->wrong_bytes > 0)
			print_wrong(cli, outcome);
		return;
	}
	trace = cli_printable(outcome->trace);
	printf("%strace%s        %s (%s)%s\n", cli_bold(cli), cli_plain(cli),
	       trace != NULL ? trace : "?", replay_form_name(outcome->form),
	       outcome->interrupted ? ", interrupted: what follows is the part so far" : "");
	free(trace);
	print_pass("hit rate     ", &outcome->total);
	for (size_t i = 0; outcome->pass_count > 1 && i < outcome->pass_count; i++) {
		char name[32];

		snprintf(name, sizeof(name), "  pass %-6zu ", i + 1);
		print_pass(name, &outcome->passes[i]);
	}
	if (outcome->bad_lines > 0)
		printf("bad lines    %" PRIu64 " left out\n", outcome->bad_lines);
	if (outcome->dropped > 0)
		printf("not recorded %" PRIu64 " calls\n", outcome->dropped);
	printf("\n%s%-9s %8s %9s %8s %10s %10s %10s %12s%s\n", cli_bold(cli), "", "calls", "pages",
	       "GB/s", "p50", "p99", "max", "CPU us/page", cli_plain(cli));
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++)
		print_operation(outcome, op);
	printf("\nresults\n");
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++)
		print_statuses(outcome, op);
	printf("CPU          %.1f us per object (%" PRIu64 " objects moved)\n",
	       outcome_cpu_us(outcome), outcome->objects);
	print_wrong(cli, outcome);
}

/* ---------------------------------------------------------------- JSON */

static json_t *pass_json(const struct stats_pass *pass)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:f,s:I,s:I,s:f}", "requests",
			 (json_int_t)pass->requests, "pages", (json_int_t)pass->pages, "tier_hits",
			 (json_int_t)pass->tier_hits, "store_hits", (json_int_t)pass->store_hits,
			 "hit_rate", stats_hit_rate(pass), "get_bytes", (json_int_t)pass->get_bytes,
			 "set_bytes", (json_int_t)pass->set_bytes, "seconds", pass->seconds);
}

static json_t *operation_json(const struct replay_outcome *outcome, unsigned op)
{
	const struct stats_operation *operation = &outcome->operations[op];
	const struct stats_latency *latency = &operation->latency;
	json_t *statuses = json_object(), *causes = json_object();

	for (int status = 0; status < 8; status++)
		if (operation->statuses[status] > 0)
			json_object_set_new(statuses, kvc_status_name(status),
					    json_integer((json_int_t)operation->statuses[status]));
	for (int cause = 1; cause < KVC_CAUSE_COUNT; cause++)
		if (operation->causes[cause] > 0)
			json_object_set_new(causes, kvc_cause_name(cause),
					    json_integer((json_int_t)operation->causes[cause]));
	return json_pack("{s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:o,s:o}", "calls",
			 (json_int_t)operation->calls, "pages", (json_int_t)operation->pages,
			 "bytes", (json_int_t)operation->bytes, "gb_per_s",
			 outcome_gb_per_s(outcome, op), "p50_us",
			 stats_latency_quantile(latency, 0.50) / 1e3, "p99_us",
			 stats_latency_quantile(latency, 0.99) / 1e3, "max_us",
			 (double)latency->max_ns / 1e3, "cpu_us_per_page",
			 cpu_us_per_page(operation), "statuses", statuses, "causes", causes);
}

json_t *outcome_json(const struct replay_outcome *outcome)
{
	json_t *operations = json_object(), *passes = json_array(), *settings = json_object();
	json_t *first = json_null();

	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++)
		json_object_set_new(operations, outcome_operation_names[op],
				    operation_json(outcome, op));
	for (size_t i = 0; i < outcome->pass_count; i++)
		json_array_append_new(passes, pass_json(&outcome->passes[i]));
	for (size_t i = 0; i < outcome->setting_count; i++)
		json_object_set_new(settings, outcome->settings[i].name,
				    cli_json_text(outcome->settings[i].value));
	if (outcome->wrong.seen)
		first = json_pack("{s:s,s:I,s:I}", "key", outcome->wrong.key, "line",
				  (json_int_t)outcome->wrong.line, "bytes",
				  (json_int_t)outcome->wrong.bytes);
	return json_pack("{s:o,s:s,s:o,s:b,s:o,s:o,s:o,s:f,s:I,s:I,s:I,s:I,s:o,s:I,s:I}", "trace",
			 cli_json_text(outcome->trace), "form", replay_form_name(outcome->form),
			 "settings", settings, "interrupted", outcome->interrupted, "total",
			 pass_json(&outcome->total), "passes", passes, "operations", operations,
			 "cpu_us_per_object", outcome_cpu_us(outcome), "objects",
			 (json_int_t)outcome->objects, "checked_pages",
			 (json_int_t)outcome->checked_pages, "wrong_pages",
			 (json_int_t)outcome->wrong_pages, "wrong_bytes",
			 (json_int_t)outcome->wrong_bytes, "first_wrong", first, "bad_lines",
			 (json_int_t)outcome->bad_lines, "dropped", (json_int_t)outcome->dropped);
}
