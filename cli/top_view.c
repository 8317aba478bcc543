/* SPDX-License-Identifier: Apache-2.0 */
#include "top.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const operation_names[] = { "exists", "get", "set", "remove" };

/* What is shown beside the operations. */
static const struct {
	const char *name;
	size_t offset;
	bool always; /* also when it is 0 */
} events[] = {
	{ "evicted", offsetof(struct kvc_stats, evicted), true },
	{ "ghost_hits", offsetof(struct kvc_stats, ghost_hits), true },
	{ "overruns", offsetof(struct kvc_stats, overruns), true },
	{ "retries", offsetof(struct kvc_stats, retries), true },
	{ "bounced", offsetof(struct kvc_stats, bounced), false },
	{ "fallbacks", offsetof(struct kvc_stats, fallbacks), false },
	{ "reclaimed", offsetof(struct kvc_stats, reclaimed), false },
	{ "removed_corrupt", offsetof(struct kvc_stats, removed_corrupt), false },
};
#define EVENT_COUNT (sizeof(events) / sizeof(events[0]))

static uint64_t event_of(const struct kvc_stats *stats, size_t event)
{
	return *(const uint64_t *)(const void *)((const char *)stats + events[event].offset);
}

/* ---------------------------------------------------------------- for people */

static const char *rate(char buffer[CLI_FORMAT_BYTES], uint64_t count, double seconds)
{
	const double value = (double)count / seconds;

	(void)snprintf(buffer, CLI_FORMAT_BYTES, value < 9.95 && value > 0 ? "%.1f" : "%.0f",
		       value);
	return buffer;
}

static const char *share(char buffer[CLI_FORMAT_BYTES], double value)
{
	if (value < 0)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "-");
	else
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%.1f%%", 100 * value);
	return buffer;
}

static const char *span(char buffer[CLI_FORMAT_BYTES], double us)
{
	if (us <= 0)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "-");
	else
		(void)cli_format_seconds(buffer, us / 1e6);
	return buffer;
}

static const char *speed(char buffer[CLI_FORMAT_BYTES], uint64_t bytes, double seconds)
{
	(void)snprintf(buffer, CLI_FORMAT_BYTES, bytes ? "%.1f" : "-",
		       (double)bytes / seconds / 1e6);
	return buffer;
}

static void write_operations(FILE *out, const struct top_sample *sample)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES], c[CLI_FORMAT_BYTES], d[CLI_FORMAT_BYTES],
		e[CLI_FORMAT_BYTES], f[CLI_FORMAT_BYTES];

	(void)fprintf(out, "#%-10s %10s %10s %10s %8s %10s %10s\n", "OPERATION", "CALLS/S",
		      "PAGES/S", "MB/S", "OK", "MEAN", "P99");
	for (int op = 0; op < KVC_OPERATION_COUNT; op++) {
		const struct kvc_operation_stats *o = &sample->rows->total.operations[op];

		(void)fprintf(out, "%-10s %10s %10s %10s %8s %10s %10s\n", operation_names[op],
			      rate(a, o->calls, sample->seconds),
			      rate(b, o->pages, sample->seconds),
			      speed(c, o->bytes, sample->seconds), share(d, top_share_ok(o)),
			      span(e, top_mean_us(o)), span(f, top_quantile(o, 0.99)));
	}
}

/* What the engine asks first: how much of a prefix is there. */
static void write_prefixes(FILE *out, const struct top_sample *sample)
{
	const struct kvc_stats *total = &sample->rows->total;
	char asked[CLI_FORMAT_BYTES], found[CLI_FORMAT_BYTES];

	(void)fprintf(out,
		      "prefixes   %s pages asked for a second, %s found before the first miss\n",
		      rate(asked, total->prefix_pages_asked, sample->seconds),
		      share(found, top_prefix_share(total)));
}

static void write_failures(FILE *out, const struct top_sample *sample)
{
	char text[CLI_FORMAT_BYTES];
	bool any = false;

	(void)fprintf(out, "not ok/s  ");
	for (int op = 0; op < KVC_OPERATION_COUNT; op++)
		for (int cause = 0; cause < KVC_CAUSE_COUNT; cause++) {
			const uint64_t n = sample->rows->total.operations[op].causes[cause];

			if (n == 0 || !top_is_failure(cause))
				continue;
			(void)fprintf(out, "%s%s %s %s", any ? ", " : " ", operation_names[op],
				      kvc_cause_name(cause), rate(text, n, sample->seconds));
			any = true;
		}
	(void)fprintf(out, "%s\n", any ? "" : " none");
}

static void write_events(FILE *out, const struct top_sample *sample)
{
	char text[CLI_FORMAT_BYTES];

	(void)fprintf(out, "events/s  ");
	for (size_t i = 0; i < EVENT_COUNT; i++) {
		const uint64_t n = event_of(&sample->rows->total, i);

		if (n || events[i].always)
			(void)fprintf(out, "%s%s %s", i ? ", " : " ", events[i].name,
				      rate(text, n, sample->seconds));
	}
	if (sample->rows->total.parked_queues)
		(void)fprintf(out, "; %" PRIu64 " queues parked",
			      sample->rows->total.parked_queues);
	(void)fputc('\n', out);
}

static const char *bytes_or_dash(char buffer[CLI_FORMAT_BYTES], const json_t *root,
				 const char *name)
{
	const json_t *value = json_object_get(root, name);

	if (!json_is_integer(value))
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "-");
	else
		(void)cli_format_size(buffer, (uint64_t)json_integer_value(value));
	return buffer;
}

static void write_roots(FILE *out, const struct top_sample *sample)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES], c[CLI_FORMAT_BYTES], d[CLI_FORMAT_BYTES];
	const json_t *root;
	size_t i;

	(void)fprintf(out, "#%-10s %10s %10s %10s %s\n", "STORED", "CAPACITY", "FREE", "DISK",
		      "ROOT");
	json_array_foreach(sample->roots, i, root)
	{
		const char *state = json_string_value(json_object_get(root, "state"));
		char *path = cli_printable(json_string_value(json_object_get(root, "path")));

		(void)fprintf(out, "%-10s %10s %10s %10s %s%s%s\n",
			      bytes_or_dash(a, root, "stored_bytes"),
			      bytes_or_dash(b, root, "capacity_bytes"),
			      bytes_or_dash(c, root, "free_bytes"),
			      bytes_or_dash(d, root, "total_bytes"), path ? path : "?",
			      state && strcmp(state, "ok") != 0 ? "  " : "",
			      state && strcmp(state, "ok") != 0 ? state : "");
		free(path);
	}
}

static void write_processes(FILE *out, const struct top_sample *sample)
{
	char a[CLI_FORMAT_BYTES], b[CLI_FORMAT_BYTES], c[CLI_FORMAT_BYTES], d[CLI_FORMAT_BYTES],
		e[CLI_FORMAT_BYTES], f[CLI_FORMAT_BYTES], g[CLI_FORMAT_BYTES], h[CLI_FORMAT_BYTES];

	(void)fprintf(out, "#%-10s %10s %10s %10s %10s %8s %10s %8s %10s\n", "PROCESS", "EXISTS/S",
		      "FOUND", "GET/S", "MB/S", "HIT", "P99", "SET/S", "MB/S");
	for (size_t i = 0; i < sample->rows->count; i++) {
		const struct top_row *row = &sample->rows->list[i];
		const struct kvc_operation_stats *o = row->delta.operations;

		(void)fprintf(out, "%-10d %10s %10s %10s %10s %8s %10s %8s %10s%s\n", row->pid,
			      rate(a, o[KVC_EXISTS].pages, sample->seconds),
			      share(b, top_share_ok(&o[KVC_EXISTS])),
			      rate(c, o[KVC_GET].pages, sample->seconds),
			      speed(d, o[KVC_GET].bytes, sample->seconds),
			      share(e, top_share_ok(&o[KVC_GET])),
			      span(f, top_quantile(&o[KVC_GET], 0.99)),
			      rate(g, o[KVC_SET].pages, sample->seconds),
			      speed(h, o[KVC_SET].bytes, sample->seconds),
			      row->is_new    ? "  new" :
			      row->restarted ? "  counts anew" :
					       "");
	}
	if (sample->rows->count == 0)
		(void)fprintf(out, "none\n");
}

/* What goes onto a line of that many columns; multi-byte characters count as one. */
static size_t cut(const char *line, size_t bytes, unsigned columns)
{
	unsigned used = 0;

	for (size_t i = 0; columns && i < bytes; i++)
		if (((unsigned char)line[i] & 0xC0) != 0x80 && used++ == columns)
			return i;
	return bytes;
}

/* Line by line: '#' makes a heading. */
static void show(struct kvc_cli *cli, const char *text, bool redraw, unsigned rows,
		 unsigned columns)
{
	unsigned shown = 0;

	if (redraw)
		printf("\033[H");
	while (*text && (!rows || shown++ < rows)) {
		const char *end = strchrnul(text, '\n');
		const bool heading = *text == '#';

		text += heading;
		printf("%s%.*s%s%s\n", heading ? cli_bold(cli) : "",
		       (int)cut(text, (size_t)(end - text), columns), text,
		       heading ? cli_plain(cli) : "", redraw ? "\033[K" : "");
		text = *end ? end + 1 : end;
	}
	if (redraw)
		printf("\033[J");
}

int top_print(struct kvc_cli *cli, const struct top_sample *sample, bool redraw, unsigned rows,
	      unsigned columns)
{
	char when[CLI_FORMAT_BYTES], every[CLI_FORMAT_BYTES];
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	if (!out)
		return -ENOMEM;
	(void)fprintf(out, "kvcellar top  %s  %zu process%s  %s\n\n",
		      cli_format_time(when, sample->time_ns), sample->rows->count,
		      sample->rows->count == 1 ? "" : "es",
		      cli_format_seconds(every, sample->seconds));
	write_operations(out, sample);
	write_prefixes(out, sample);
	write_failures(out, sample);
	write_events(out, sample);
	(void)fputc('\n', out);
	write_roots(out, sample);
	(void)fputc('\n', out);
	write_processes(out, sample);
	if (fclose(out) != 0) {
		free(text);
		return -ENOMEM;
	}
	show(cli, text, redraw, rows, columns);
	free(text);
	return 0;
}

/* ---------------------------------------------------------------- for programs */

static json_t *failures_json(const struct kvc_operation_stats *operation, double seconds)
{
	json_t *failures = json_object();

	for (int cause = 0; failures && cause < KVC_CAUSE_COUNT; cause++)
		if (operation->causes[cause] && top_is_failure(cause))
			(void)json_object_set_new(
				failures, kvc_cause_name(cause),
				json_real((double)operation->causes[cause] / seconds));
	return failures;
}

static json_t *operation_json(const struct kvc_operation_stats *operation, double seconds)
{
	const double ok = top_share_ok(operation);

	return json_pack("{s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "calls_per_second",
			 (double)operation->calls / seconds, "pages_per_second",
			 (double)operation->pages / seconds, "bytes_per_second",
			 (double)operation->bytes / seconds, "ok_share",
			 ok < 0 ? json_null() : json_real(ok), "mean_us",
			 operation->calls ? json_real(top_mean_us(operation)) : json_null(),
			 "p99_us",
			 operation->calls ? json_real(top_quantile(operation, 0.99)) : json_null(),
			 "not_ok_per_second", failures_json(operation, seconds));
}

static json_t *rates_json(const struct kvc_stats *delta, double seconds)
{
	json_t *rates = json_object(), *operations = json_object(), *list = json_object();
	const double found = top_prefix_share(delta);

	for (int op = 0; op < KVC_OPERATION_COUNT; op++)
		(void)json_object_set_new(operations, operation_names[op],
					  operation_json(&delta->operations[op], seconds));
	for (size_t i = 0; i < EVENT_COUNT; i++)
		(void)json_object_set_new(list, events[i].name,
					  json_real((double)event_of(delta, i) / seconds));
	(void)json_object_set_new(rates, "operations", operations);
	(void)json_object_set_new(rates, "events_per_second", list);
	(void)json_object_set_new(rates, "prefix_pages_asked_per_second",
				  json_real((double)delta->prefix_pages_asked / seconds));
	(void)json_object_set_new(rates, "prefix_found_share",
				  found < 0 ? json_null() : json_real(found));
	(void)json_object_set_new(rates, "parked_queues",
				  json_integer((json_int_t)delta->parked_queues));
	return rates;
}

json_t *top_json(const struct top_sample *sample)
{
	json_t *processes = json_array();
	char when[CLI_FORMAT_BYTES];

	for (size_t i = 0; i < sample->rows->count; i++) {
		const struct top_row *row = &sample->rows->list[i];
		json_t *one = json_pack("{s:i, s:i, s:b, s:b}", "pid", row->pid, "store",
					(int)row->number, "new", (int)row->is_new, "restarted",
					(int)row->restarted);

		(void)json_object_update_new(one, rates_json(&row->delta, sample->seconds));
		(void)json_array_append_new(processes, one);
	}
	return json_pack("{s:s, s:f, s:o, s:o, s:O}", "time",
			 cli_format_time(when, sample->time_ns), "seconds", sample->seconds,
			 "total", rates_json(&sample->rows->total, sample->seconds), "processes",
			 processes, "roots", sample->roots);
}
