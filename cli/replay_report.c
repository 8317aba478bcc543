/* SPDX-License-Identifier: Apache-2.0 */
/* The page of `replay --report`: one file that needs nothing from elsewhere. */
#include "replay_output.h"
#include "replay_svg.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const char style[] =
	":root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5d6878;"
	"--rule:#e2e6ec;--get:#2f6fde;--set:#d9822b;--exists:#1f9d76;--remove:#b4476b;"
	"--tier:#8455c8;--good:#1a8a55;--bad:#c8323c}\n"
	"@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2028;--ink:#e4e9f0;"
	"--soft:#93a0b2;--rule:#2b333f;--get:#6ea2ff;--set:#f0a657;--exists:#4cc9a0;"
	"--remove:#e27d9f;--tier:#b18df0;--good:#4cc98a;--bad:#ff7a80}}\n"
	"*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);"
	"font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\n"
	"main{max-width:1080px;margin:0 auto;padding:32px 20px 48px}"
	"h1{font-size:24px;margin:0}h2{font-size:16px;margin:0 0 10px}"
	".sub{color:var(--soft);margin:2px 0 22px;overflow-wrap:anywhere}\n"
	".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;"
	"margin-bottom:16px}.card,section{background:var(--card);border:1px solid var(--rule);"
	"border-radius:10px}.card{padding:12px 16px}.card b{display:block;font-size:24px;"
	"font-weight:650;font-variant-numeric:tabular-nums}.card span{color:var(--soft);"
	"font-size:13px}.good b{color:var(--good)}.bad b{color:var(--bad)}\n"
	"section{padding:16px 18px;margin-bottom:16px}"
	".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:16px}"
	"@media(max-width:520px){.two{grid-template-columns:1fr}}.two section{margin:0}"
	".two{margin-bottom:16px}.three{display:grid;gap:16px;margin-bottom:16px;"
	"grid-template-columns:repeat(auto-fit,minmax(300px,1fr))}.three section{margin:0}\n"
	"svg{width:100%;height:auto;display:block}.grid{stroke:var(--rule)}"
	".axis{stroke:var(--soft)}.tick,.marktext{font-size:13px;fill:var(--soft)}"
	".marktext{fill:var(--ink);font-weight:600}.mark{stroke:var(--ink);stroke-dasharray:3 3;"
	"opacity:.7}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.area{opacity:.32}\n"
	".c-get{fill:var(--get)}.c-set{fill:var(--set)}.c-exists{fill:var(--exists)}"
	".c-remove{fill:var(--remove)}.c-tier{fill:var(--tier)}.s-get{stroke:var(--get)}"
	".s-set{stroke:var(--set)}.s-exists{stroke:var(--exists)}.s-tier{stroke:var(--tier)}\n"
	".legend b{color:var(--ink);font-weight:600}"
	".legend{display:flex;flex-wrap:wrap;gap:0 16px;"
	"color:var(--soft);font-size:13px;margin:-4px 0 8px}"
	".legend i{display:inline-block;width:10px;height:10px;border-radius:3px;"
	"margin-right:6px}.b-get{background:var(--get)}.b-set{background:var(--set)}"
	".b-exists{background:var(--exists)}.b-tier{background:var(--tier)}\n"
	"table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
	"th{color:var(--soft);font-weight:500;font-size:13px}"
	"th,td{text-align:right;padding:6px 8px;border-bottom:1px solid var(--rule)}"
	"th:first-child,td:first-child{text-align:left}tr:last-child td{border:0}"
	".scroll{overflow-x:auto}details summary{cursor:pointer;font-weight:600}"
	"pre{overflow-x:auto;font-size:12.5px;line-height:1.45}"
	"footer{color:var(--soft);font-size:13px}\n";

static void text(FILE *file, const char *value)
{
	svg_text(file, value);
}

static void card(FILE *file, const char *kind, const char *value, const char *label)
{
	fprintf(file, "<div class=\"card %s\"><b>", kind);
	text(file, value);
	fputs("</b><span>", file);
	text(file, label);
	fputs("</span></div>\n", file);
}

static void write_cards(FILE *file, const struct replay_outcome *outcome)
{
	char value[64], label[96];

	fputs("<div class=\"cards\">\n", file);
	snprintf(value, sizeof(value), "%.1f%%", 100 * stats_hit_rate(&outcome->total));
	snprintf(label, sizeof(label), "hit rate of %" PRIu64 " pages", outcome->total.pages);
	card(file, "", value, label);
	snprintf(value, sizeof(value), "%.2f GB/s", outcome_gb_per_s(outcome, KVC_GET));
	card(file, "", value, "get, while calls run");
	snprintf(value, sizeof(value), "%.2f GB/s", outcome_gb_per_s(outcome, KVC_SET));
	card(file, "", value, "set, while calls run");
	snprintf(value, sizeof(value), "%.1f us", outcome_cpu_us(outcome));
	card(file, "", value, "CPU per object");
	snprintf(value, sizeof(value), "%" PRIu64, outcome->wrong_bytes);
	snprintf(label, sizeof(label), "wrong bytes in %" PRIu64 " compared pages",
		 outcome->checked_pages);
	card(file, outcome->wrong_bytes > 0 ? "bad" : "good", value, label);
	cli_format_seconds(value, outcome->total.seconds);
	snprintf(label, sizeof(label), "%" PRIu64 " requests", outcome->total.requests);
	card(file, "", value, label);
	fputs("</div>\n", file);
}

static void write_operations(FILE *file, const struct replay_outcome *outcome)
{
	fputs("<section><h2>Operations</h2><div class=\"scroll\"><table><tr><th>operation</th>"
	      "<th>calls</th><th>pages</th><th>bytes</th><th>GB/s</th><th>p50</th><th>p99</th>"
	      "<th>max</th></tr>\n",
	      file);
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++) {
		const struct stats_operation *operation = &outcome->operations[op];
		char size[CLI_FORMAT_BYTES], p50[CLI_FORMAT_BYTES], p99[CLI_FORMAT_BYTES];
		char most[CLI_FORMAT_BYTES], rate[32] = "";

		if (operation->calls == 0)
			continue;
		if (operation->bytes > 0)
			snprintf(rate, sizeof(rate), "%.2f", outcome_gb_per_s(outcome, op));
		fprintf(file,
			"<tr><td>%s</td><td>%" PRIu64 "</td><td>%" PRIu64
			"</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n",
			outcome_operation_names[op], operation->calls, operation->pages,
			operation->bytes > 0 ? cli_format_size(size, operation->bytes) : "", rate,
			cli_format_seconds(p50,
					   stats_latency_quantile(&operation->latency, 0.50) / 1e9),
			cli_format_seconds(p99,
					   stats_latency_quantile(&operation->latency, 0.99) / 1e9),
			cli_format_seconds(most, (double)operation->latency.max_ns / 1e9));
	}
	fputs("</table></div></section>\n", file);
}

/* ---------------------------------------------------------------- latency */

#define BARS	     (STATS_LATENCY_BUCKETS / 4) /* eight per power of two */
#define BAR_FIRST(i) ((size_t)(i)*4)

static uint64_t bar_count(const struct stats_latency *latency, size_t bar)
{
	uint64_t sum = 0;

	for (size_t i = BAR_FIRST(bar); i < BAR_FIRST(bar + 1); i++)
		sum += latency->counts[i];
	return sum;
}

/* The bars that any operation needs, so that the charts share one axis. */
static void find_range(const struct replay_outcome *outcome, size_t *least, size_t *most)
{
	*least = BARS;
	*most = 0;
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++) {
		for (size_t bar = 0; bar < BARS; bar++) {
			if (bar_count(&outcome->operations[op].latency, bar) == 0)
				continue;
			*least = bar < *least ? bar : *least;
			*most = bar > *most ? bar : *most;
		}
	}
}

static void write_latency(FILE *file, const struct replay_outcome *outcome, unsigned op,
			  size_t least, size_t most)
{
	const struct stats_latency *latency = &outcome->operations[op].latency;
	double total = (double)latency->total, highest = 0;
	char label[96], p50[CLI_FORMAT_BYTES], p99[CLI_FORMAT_BYTES];
	struct svg_chart chart = {
		.file = file,
		.label = label,
		.x_least = stats_latency_lower(BAR_FIRST(least)),
		.x_most = stats_latency_upper(BAR_FIRST(most + 1) - 1),
		.log_x = true,
		.y_unit = "%",
		.width = 310,
		.height = 210,
	};

	snprintf(label, sizeof(label), "Latency of %s calls", outcome_operation_names[op]);
	cli_format_seconds(p50, stats_latency_quantile(latency, 0.50) / 1e9);
	cli_format_seconds(p99, stats_latency_quantile(latency, 0.99) / 1e9);
	fprintf(file,
		"<section><h2>Latency of %s</h2><div class=\"legend\"><span>p50 <b>%s</b></span>"
		"<span>p99 <b>%s</b></span><span>of %" PRIu64 " calls</span></div>\n",
		outcome_operation_names[op], p50, p99, latency->total);
	if (chart.x_least < 1)
		chart.x_least = 1;
	for (size_t bar = least; bar <= most; bar++) {
		double share = 100 * (double)bar_count(latency, bar) / total;

		highest = share > highest ? share : highest;
	}
	chart.y_most = svg_round_up(highest);
	svg_begin(&chart);
	for (size_t bar = least; bar <= most; bar++) {
		double lower = stats_latency_lower(BAR_FIRST(bar));
		double upper = stats_latency_upper(BAR_FIRST(bar + 1) - 1);
		uint64_t count = bar_count(latency, bar);
		char from[CLI_FORMAT_BYTES], to[CLI_FORMAT_BYTES], tooltip[128];

		if (count == 0)
			continue;
		snprintf(tooltip, sizeof(tooltip), "%s to %s: %" PRIu64 " calls",
			 cli_format_seconds(from, lower / 1e9), cli_format_seconds(to, upper / 1e9),
			 count);
		svg_bar(&chart, outcome_operation_names[op], lower, upper,
			100 * (double)count / total, tooltip);
	}
	svg_mark(&chart, stats_latency_quantile(latency, 0.50), "p50", true);
	svg_mark(&chart, stats_latency_quantile(latency, 0.99), "p99", false);
	svg_end(&chart);
	fputs("</section>\n", file);
}

static void write_latencies(FILE *file, const struct replay_outcome *outcome)
{
	size_t least, most;

	find_range(outcome, &least, &most);
	if (least > most)
		return;
	fputs("<div class=\"three\">\n", file);
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++)
		if (outcome->operations[op].latency.total > 0)
			write_latency(file, outcome, op, least, most);
	fputs("</div>\n", file);
}

/* ---------------------------------------------------------------- over time */

struct timeline {
	size_t count;
	double at[STATS_SERIES_LENGTH];
	double zero[STATS_SERIES_LENGTH];
	double tier[STATS_SERIES_LENGTH]; /* percent */
	double hits[STATS_SERIES_LENGTH]; /* percent, tier included */
	double get[STATS_SERIES_LENGTH];  /* GB/s */
	double set[STATS_SERIES_LENGTH];
};

/* GB/s by the same measure as the sums: while at least one call was running. */
static double rate_of(uint64_t bytes, double busy_s)
{
	return busy_s > 0 ? (double)bytes / busy_s / 1e9 : 0;
}

static double timeline_begin(const struct replay_outcome *outcome, struct timeline *timeline)
{
	const struct stats_series *series = &outcome->series;
	double end = series->interval_s * (double)series->count;

	memset(timeline, 0, sizeof(*timeline));
	for (size_t i = 0; i < series->count; i++) {
		const struct stats_pass *pass = &series->intervals[i];
		double seconds = series->interval_s;
		size_t at = timeline->count;

		if (i + 1 == series->count && outcome->total.seconds < end &&
		    outcome->total.seconds > end - seconds)
			seconds -= end - outcome->total.seconds;
		if (pass->requests == 0 && i + 1 == series->count)
			continue;
		timeline->at[at] = series->interval_s * (double)i + seconds / 2;
		timeline->get[at] = rate_of(pass->get_bytes, pass->get_busy_s);
		timeline->set[at] = rate_of(pass->set_bytes, pass->set_busy_s);
		if (pass->pages > 0) {
			timeline->tier[at] = 100 * (double)pass->tier_hits / (double)pass->pages;
			timeline->hits[at] = 100 * stats_hit_rate(pass);
		} else if (at > 0) {
			timeline->tier[at] = timeline->tier[at - 1];
			timeline->hits[at] = timeline->hits[at - 1];
		}
		timeline->count++;
	}
	return end;
}

static void write_hit_rate(FILE *file, const struct timeline *timeline, double end, bool tier)
{
	struct svg_chart chart = {
		.file = file,
		.label = "Hit rate over time",
		.x_most = end,
		.y_most = 100,
		.y_unit = "%",
		.width = 480,
		.height = 230,
	};

	fputs("<section><h2>Hit rate over time</h2><div class=\"legend\">", file);
	if (tier)
		fputs("<span><i class=\"b-tier\"></i>tier</span>", file);
	fputs("<span><i class=\"b-get\"></i>store</span></div>\n", file);
	svg_begin(&chart);
	if (tier) {
		svg_area(&chart, "tier", timeline->at, timeline->zero, timeline->tier,
			 timeline->count);
		svg_line(&chart, "tier", timeline->at, timeline->tier, timeline->count);
	}
	svg_area(&chart, "get", timeline->at, tier ? timeline->tier : timeline->zero,
		 timeline->hits, timeline->count);
	svg_line(&chart, "get", timeline->at, timeline->hits, timeline->count);
	svg_end(&chart);
	fputs("</section>\n", file);
}

static void write_throughput(FILE *file, const struct timeline *timeline, double end)
{
	double highest = 0;
	struct svg_chart chart = {
		.file = file,
		.label = "Throughput over time",
		.x_most = end,
		.y_unit = "",
		.width = 480,
		.height = 230,
	};

	for (size_t i = 0; i < timeline->count; i++) {
		highest = timeline->get[i] > highest ? timeline->get[i] : highest;
		highest = timeline->set[i] > highest ? timeline->set[i] : highest;
	}
	chart.y_most = svg_round_up(highest);
	fputs("<section><h2>Throughput over time</h2><div class=\"legend\"><span><i "
	      "class=\"b-get\"></i>get</span><span><i class=\"b-set\"></i>set</span>"
	      "<span>GB/s while calls run</span></div>\n",
	      file);
	svg_begin(&chart);
	svg_area(&chart, "set", timeline->at, timeline->zero, timeline->set, timeline->count);
	svg_area(&chart, "get", timeline->at, timeline->zero, timeline->get, timeline->count);
	svg_line(&chart, "set", timeline->at, timeline->set, timeline->count);
	svg_line(&chart, "get", timeline->at, timeline->get, timeline->count);
	svg_end(&chart);
	fputs("</section>\n", file);
}

static void write_timelines(FILE *file, const struct replay_outcome *outcome)
{
	struct timeline timeline;
	double end = timeline_begin(outcome, &timeline);

	if (timeline.count == 0)
		return;
	fputs("<div class=\"two\">\n", file);
	write_hit_rate(file, &timeline, end, outcome->total.tier_hits > 0);
	write_throughput(file, &timeline, end);
	fputs("</div>\n", file);
}

/* ---------------------------------------------------------------- tables */

static void result_row(FILE *file, const struct replay_outcome *outcome, const char *name,
		       bool is_cause, int number)
{
	uint64_t counts[KVC_OPERATION_COUNT], sum = 0;

	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++) {
		const struct stats_operation *operation = &outcome->operations[op];

		counts[op] = is_cause ? operation->causes[number] : operation->statuses[number];
		sum += counts[op];
	}
	if (sum == 0)
		return;
	fprintf(file, "<tr><td>%s%s%s</td>", is_cause ? "<span style=\"color:var(--soft)\">" : "",
		name, is_cause ? "</span>" : "");
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++)
		if (outcome->operations[op].calls > 0)
			fprintf(file, "<td>%" PRIu64 "</td>", counts[op]);
	fputs("</tr>\n", file);
}

static void write_results(FILE *file, const struct replay_outcome *outcome)
{
	fputs("<section><h2>Results per page</h2><div class=\"scroll\"><table><tr><th>status or "
	      "cause</th>",
	      file);
	for (unsigned op = 0; op < KVC_OPERATION_COUNT; op++)
		if (outcome->operations[op].calls > 0)
			fprintf(file, "<th>%s</th>", outcome_operation_names[op]);
	fputs("</tr>\n", file);
	for (int status = 0; status < 8; status++)
		result_row(file, outcome, kvc_status_name(status), false, status);
	for (int cause = 1; cause < KVC_CAUSE_COUNT; cause++)
		result_row(file, outcome, kvc_cause_name(cause), true, cause);
	fputs("</table></div></section>\n", file);
}

static void write_passes(FILE *file, const struct replay_outcome *outcome)
{
	if (outcome->pass_count < 2)
		return;
	fputs("<section><h2>Passes</h2><div class=\"scroll\"><table><tr><th>pass</th>"
	      "<th>requests</th><th>pages</th><th>tier hits</th><th>store hits</th>"
	      "<th>hit rate</th><th>time</th></tr>\n",
	      file);
	for (size_t i = 0; i < outcome->pass_count; i++) {
		const struct stats_pass *pass = &outcome->passes[i];
		char time[CLI_FORMAT_BYTES];

		fprintf(file,
			"<tr><td>%zu</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td><td>%" PRIu64
			"</td><td>%" PRIu64 "</td><td>%.1f%%</td><td>%s</td></tr>\n",
			i + 1, pass->requests, pass->pages, pass->tier_hits, pass->store_hits,
			100 * stats_hit_rate(pass), cli_format_seconds(time, pass->seconds));
	}
	fputs("</table></div></section>\n", file);
}

static void write_details(FILE *file, const char *title, const char *content)
{
	if (content == NULL)
		return;
	fputs("<section><details><summary>", file);
	text(file, title);
	fputs("</summary><pre>", file);
	text(file, content);
	fputs("</pre></details></section>\n", file);
}

static void write_settings(FILE *file, const struct replay_outcome *outcome)
{
	fputs("<section><h2>Settings</h2><div class=\"scroll\"><table>\n", file);
	for (size_t i = 0; i < outcome->setting_count; i++) {
		fputs("<tr><td>", file);
		text(file, outcome->settings[i].name);
		fputs("</td><td>", file);
		text(file, outcome->settings[i].value);
		fputs("</td></tr>\n", file);
	}
	fputs("</table></div></section>\n", file);
}

int outcome_report(FILE *file, const struct replay_outcome *outcome)
{
	const char *name = strrchr(outcome->trace, '/');

	fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
	      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>"
	      "<title>kvcellar replay</title><style>\n",
	      file);
	fputs(style, file);
	fputs("</style></head><body><main>\n<h1>kvcellar replay</h1><p class=\"sub\">", file);
	text(file, name != NULL ? name + 1 : outcome->trace);
	fprintf(file, " (%s form)%s</p>\n", replay_form_name(outcome->form),
		outcome->interrupted ? ", interrupted: the part so far" : "");
	write_cards(file, outcome);
	write_timelines(file, outcome);
	write_latencies(file, outcome);
	write_operations(file, outcome);
	write_results(file, outcome);
	write_passes(file, outcome);
	write_settings(file, outcome);
	write_details(file, "Store", outcome->store_text);
	write_details(file, "Configuration (secrets are not shown)", outcome->config_text);
	fprintf(file,
		"<footer>kvcellar %s. GB/s: 10^9 bytes per second while at least one call was "
		"running.</footer>\n</main></body></html>\n",
		kvc_version());
	if (fflush(file) != 0 || ferror(file))
		return errno != 0 ? -errno : -EIO;
	return 0;
}
