/* SPDX-License-Identifier: Apache-2.0 */
/* Counters as text: for people, as JSON, as Prometheus text exposition 0.0.4. One table of fields
 * makes all three. */
#include "core/stats.h"

#include "core/log.h"
#include "core/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#define PREFIX "kvcellar_"

struct field {
	const char *name; /* JSON, text; with PREFIX (and "_total" for a counter) in Prometheus */
	const char *help;
	size_t offset;
	bool gauge;
};

#define OPERATION(member, help)                                                    \
	{                                                                          \
#member, help, offsetof(struct kvc_operation_stats, member), false \
	}
#define COUNTER(member, help)                                            \
	{                                                                \
#member, help, offsetof(struct kvc_stats, member), false \
	}
#define GAUGE(member, help)                                             \
	{                                                               \
#member, help, offsetof(struct kvc_stats, member), true \
	}

static const struct field operation_fields[] = {
	OPERATION(calls, "Batch calls."),
	OPERATION(pages, "Pages asked for, whatever became of them."),
	OPERATION(bytes, "Payload moved for pages that ended ok."),
};

static const struct field store_fields[] = {
	COUNTER(overruns, "Calls that came back after their deadline."),
	COUNTER(retries, "Descriptors submitted again because a queue was full."),
	COUNTER(bounced, "Ranges that went through aligned memory of the library."),
	COUNTER(fallbacks, "Engines or modes given up for the next best."),
	COUNTER(reclaimed, "Orphans of dead writers removed."),
	COUNTER(removed_corrupt, "Objects removed because they were proven wrong."),
	GAUGE(parked_queues, "Queues that hold stalled I/O now."),
	GAUGE(host_registrations, "Memory regions registered now."),
	GAUGE(storage_registrations, "Queues open now."),
	COUNTER(usage_drift, "Bytes of usage that recounts corrected."),
	COUNTER(evicted, "Objects that made room for others."),
	COUNTER(evicted_bytes, "Space of the objects that made room for others."),
	COUNTER(ghost_hits, "Objects asked for that had been evicted not long ago."),
	COUNTER(prefix_calls, "Lookups of a prefix: exists that stop at the first miss."),
	COUNTER(prefix_pages_asked, "Pages that lookups of a prefix asked for."),
	COUNTER(prefix_pages_found, "Pages that lookups found in front of the first miss."),
};

/* Counters by name: what became of pages, and why. */
struct breakdown {
	const char *name;  /* JSON, text */
	const char *label; /* Prometheus: PREFIX "pages_by_<label>_total" */
	const char *help;
	size_t offset;
	int count;
	const char *(*value_name)(int value);
};

static const struct breakdown breakdowns[] = {
	{ "statuses", "status", "Pages by how they ended.",
	  offsetof(struct kvc_operation_stats, statuses), KVC_SKIPPED + 1, kvc_status_name },
	{ "causes", "cause", "Pages by why they ended so.",
	  offsetof(struct kvc_operation_stats, causes), KVC_CAUSE_COUNT, kvc_cause_name },
};

static const char *const operation_names[KVC_OPERATION_COUNT] = {
	[KVC_EXISTS] = "exists",
	[KVC_GET] = "get",
	[KVC_SET] = "set",
	[KVC_REMOVE] = "remove",
};

static const unsigned int percents[] = { 50, 99 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t value_at(const void *base, size_t offset)
{
	uint64_t value;

	memcpy(&value, (const char *)base + offset, sizeof(value));
	return value;
}

/* ---------------------------------------------------------------- quantiles */

uint64_t kvc_stats_quantile_us(const struct kvc_operation_stats *operation, unsigned int percent)
{
	double total = 0, before = 0, rank;
	uint64_t lower = 0;

	for (int i = 0; i < KVC_HISTOGRAM_BUCKETS; i++)
		total += (double)operation->latency_us[i];
	if (total <= 0)
		return 0;
	rank = total * (percent < 100 ? percent : 100) / 100;
	for (int i = 0; i < KVC_HISTOGRAM_BUCKETS; i++) {
		const double here = (double)operation->latency_us[i];
		const uint64_t upper = UINT64_C(1) << i;

		lower = i == 0 ? 0 : upper / 2;
		/* The last bucket has no upper bound: its lower one is all that is known. */
		if (here > 0 && (before + here >= rank || i == KVC_HISTOGRAM_BUCKETS - 1)) {
			const double share = rank > before ? (rank - before) / here : 0;

			if (i == KVC_HISTOGRAM_BUCKETS - 1)
				return lower;
			return lower + (uint64_t)((double)(upper - lower) * share);
		}
		before += here;
	}
	return lower;
}

/* ---------------------------------------------------------------- for people */

static void text_breakdown(const struct kvc_operation_stats *operation,
			   const struct breakdown *breakdown, struct kvc_text *text)
{
	const char *separator = "";

	kvc_text_add(text, "  %-9s", breakdown->name);
	for (int i = 0; i < breakdown->count; i++) {
		const uint64_t value =
			value_at(operation, breakdown->offset + (size_t)i * sizeof(uint64_t));

		if (value == 0)
			continue;
		kvc_text_add(text, "%s %s %" PRIu64, separator, breakdown->value_name(i), value);
		separator = ",";
	}
	kvc_text_add(text, "%s\n", *separator == '\0' ? " -" : "");
}

static void text_people(const struct kvc_stats *stats, struct kvc_text *text)
{
	for (size_t op = 0; op < KVC_OPERATION_COUNT; op++) {
		const struct kvc_operation_stats *const operation = &stats->operations[op];

		kvc_text_add(text, "%s\n ", operation_names[op]);
		for (size_t i = 0; i < COUNT(operation_fields); i++)
			kvc_text_add(text, " %s %" PRIu64, operation_fields[i].name,
				     value_at(operation, operation_fields[i].offset));
		for (size_t i = 0; i < COUNT(percents); i++)
			kvc_text_add(text, " p%u_us %" PRIu64, percents[i],
				     kvc_stats_quantile_us(operation, percents[i]));
		kvc_text_add(text, "\n");
		for (size_t i = 0; i < COUNT(breakdowns); i++)
			text_breakdown(operation, &breakdowns[i], text);
	}
	for (size_t i = 0; i < COUNT(store_fields); i++)
		kvc_text_add(text, "%-21s %" PRIu64 "\n", store_fields[i].name,
			     value_at(stats, store_fields[i].offset));
}

/* ---------------------------------------------------------------- JSON */

static void json_operation(const struct kvc_operation_stats *operation, struct kvc_text *text)
{
	for (size_t i = 0; i < COUNT(operation_fields); i++)
		kvc_text_add(text, "\"%s\": %" PRIu64 ", ", operation_fields[i].name,
			     value_at(operation, operation_fields[i].offset));
	for (size_t i = 0; i < COUNT(breakdowns); i++) {
		const struct breakdown *const breakdown = &breakdowns[i];

		kvc_text_add(text, "\"%s\": {", breakdown->name);
		for (int j = 0; j < breakdown->count; j++)
			kvc_text_add(text, "%s\"%s\": %" PRIu64, j == 0 ? "" : ", ",
				     breakdown->value_name(j),
				     value_at(operation,
					      breakdown->offset + (size_t)j * sizeof(uint64_t)));
		kvc_text_add(text, "}, ");
	}
	kvc_text_add(text, "\"latency_us\": {\"sum\": %" PRIu64, operation->latency_us_sum);
	for (size_t i = 0; i < COUNT(percents); i++)
		kvc_text_add(text, ", \"p%u\": %" PRIu64, percents[i],
			     kvc_stats_quantile_us(operation, percents[i]));
	kvc_text_add(text, ", \"buckets\": [");
	for (int i = 0; i < KVC_HISTOGRAM_BUCKETS; i++)
		kvc_text_add(text, "%s%" PRIu64, i == 0 ? "" : ", ", operation->latency_us[i]);
	kvc_text_add(text, "]}");
}

static void text_json(const struct kvc_stats *stats, struct kvc_text *text)
{
	kvc_text_add(text, "{\"operations\": {");
	for (size_t op = 0; op < KVC_OPERATION_COUNT; op++) {
		kvc_text_add(text, "%s\"%s\": {", op == 0 ? "" : ",\n ", operation_names[op]);
		json_operation(&stats->operations[op], text);
		kvc_text_add(text, "}");
	}
	kvc_text_add(text, "}");
	for (size_t i = 0; i < COUNT(store_fields); i++)
		kvc_text_add(text, ",\n\"%s\": %" PRIu64, store_fields[i].name,
			     value_at(stats, store_fields[i].offset));
	kvc_text_add(text, "}\n");
}

/* ---------------------------------------------------------------- Prometheus */

static void head(struct kvc_text *text, const char *name, const char *suffix, const char *type,
		 const char *help)
{
	kvc_text_add(text, "# HELP " PREFIX "%s%s %s\n# TYPE " PREFIX "%s%s %s\n", name, suffix,
		     help, name, suffix, type);
}

/* A sample up to its value: name, then labels in braces when there are any. */
static void sample(struct kvc_text *text, const char *name, const char *suffix, const char *labels,
		   const char *own_labels)
{
	const bool some = labels && *labels != '\0', more = own_labels && *own_labels != '\0';

	kvc_text_add(text, PREFIX "%s%s", name, suffix);
	if (some || more)
		kvc_text_add(text, "{%s%s%s}", some ? labels : "", some && more ? "," : "",
			     more ? own_labels : "");
	kvc_text_bytes(text, " ", 1);
}

void kvc_metrics_gauge(struct kvc_text *text, const char *name, const char *help,
		       const char *labels, uint64_t value)
{
	if (help)
		head(text, name, "", "gauge", help);
	sample(text, name, "", labels, NULL);
	kvc_text_add(text, "%" PRIu64 "\n", value);
}

/* Values of our own that need no escaping. */
#define LABEL_BYTES 96

static void own_labels(char label[LABEL_BYTES], size_t op, const char *name, const char *value)
{
	struct kvc_text text;

	kvc_text_init(&text, label, LABEL_BYTES);
	kvc_text_add(&text, "operation=\"%s\"", operation_names[op]);
	if (name)
		kvc_text_add(&text, ",%s=\"%s\"", name, value);
}

static void prometheus_operations(const struct kvc_stats *stats, const char *labels,
				  struct kvc_text *text)
{
	char own[LABEL_BYTES];

	for (size_t i = 0; i < COUNT(operation_fields); i++) {
		const struct field *const field = &operation_fields[i];

		head(text, field->name, "_total", "counter", field->help);
		for (size_t op = 0; op < KVC_OPERATION_COUNT; op++) {
			own_labels(own, op, NULL, NULL);
			sample(text, field->name, "_total", labels, own);
			kvc_text_add(text, "%" PRIu64 "\n",
				     value_at(&stats->operations[op], field->offset));
		}
	}
}

static void prometheus_breakdown(const struct kvc_stats *stats, const struct breakdown *breakdown,
				 const char *labels, struct kvc_text *text)
{
	char name[32], own[LABEL_BYTES];
	struct kvc_text name_text;

	kvc_text_init(&name_text, name, sizeof(name));
	kvc_text_add(&name_text, "pages_by_%s", breakdown->label);
	head(text, name, "_total", "counter", breakdown->help);
	for (size_t op = 0; op < KVC_OPERATION_COUNT; op++) {
		for (int i = 0; i < breakdown->count; i++) {
			own_labels(own, op, breakdown->label, breakdown->value_name(i));
			sample(text, name, "_total", labels, own);
			kvc_text_add(text, "%" PRIu64 "\n",
				     value_at(&stats->operations[op],
					      breakdown->offset + (size_t)i * sizeof(uint64_t)));
		}
	}
}

/* _count is the sum of the buckets, so that both agree whatever is counted meanwhile. */
static void prometheus_latency(const struct kvc_stats *stats, const char *labels,
			       struct kvc_text *text)
{
	static const char name[] = "call_duration_seconds";
	char own[LABEL_BYTES], bound[24];
	struct kvc_text bound_text;

	head(text, name, "", "histogram", "Duration of batch calls.");
	for (size_t op = 0; op < KVC_OPERATION_COUNT; op++) {
		const struct kvc_operation_stats *const operation = &stats->operations[op];
		uint64_t below = 0;

		for (int i = 0; i < KVC_HISTOGRAM_BUCKETS; i++) {
			const uint64_t us = UINT64_C(1) << i;

			below += operation->latency_us[i];
			kvc_text_init(&bound_text, bound, sizeof(bound));
			if (i < KVC_HISTOGRAM_BUCKETS - 1)
				kvc_text_add(&bound_text, "%" PRIu64 ".%06" PRIu64, us / 1000000,
					     us % 1000000);
			else
				kvc_text_add(&bound_text, "+Inf");
			own_labels(own, op, "le", bound);
			sample(text, name, "_bucket", labels, own);
			kvc_text_add(text, "%" PRIu64 "\n", below);
		}
		own_labels(own, op, NULL, NULL);
		sample(text, name, "_sum", labels, own);
		kvc_text_add(text, "%" PRIu64 ".%06" PRIu64 "\n",
			     operation->latency_us_sum / 1000000,
			     operation->latency_us_sum % 1000000);
		sample(text, name, "_count", labels, own);
		kvc_text_add(text, "%" PRIu64 "\n", below);
	}
}

static void text_prometheus(const struct kvc_stats *stats, const char *labels,
			    struct kvc_text *text)
{
	prometheus_operations(stats, labels, text);
	for (size_t i = 0; i < COUNT(breakdowns); i++)
		prometheus_breakdown(stats, &breakdowns[i], labels, text);
	prometheus_latency(stats, labels, text);
	for (size_t i = 0; i < COUNT(store_fields); i++) {
		const struct field *const field = &store_fields[i];
		const char *const suffix = field->gauge ? "" : "_total";

		head(text, field->name, suffix, field->gauge ? "gauge" : "counter", field->help);
		sample(text, field->name, suffix, labels, NULL);
		kvc_text_add(text, "%" PRIu64 "\n", value_at(stats, field->offset));
	}
}

/* ---------------------------------------------------------------- entry */

int kvc_stats_add_text(const struct kvc_stats *stats, int format, const char *labels,
		       struct kvc_text *text)
{
	switch (format) {
	case KVC_FORMAT_TEXT:
		text_people(stats, text);
		return 0;
	case KVC_FORMAT_JSON:
		text_json(stats, text);
		return 0;
	case KVC_FORMAT_PROMETHEUS:
		text_prometheus(stats, labels, text);
		return 0;
	default:
		return kvc_fail(-EINVAL, "format %d is none of 0 (text), 1 (JSON), 2 (Prometheus)",
				format);
	}
}

int kvc_stats_text(const struct kvc_stats *stats, int format, char *buffer, size_t bytes)
{
	struct kvc_stats ours = { 0 };
	struct kvc_text text;
	int rc;

	if (!stats || (!buffer && bytes > 0))
		return kvc_fail(-EINVAL, "kvc_stats_text: stats and buffer must be given");
	if (stats->size < KVC_STATS_BYTES_0_1)
		return kvc_fail(-EINVAL, "kvc_stats.size is %zu, version 0.1 has %zu", stats->size,
				(size_t)KVC_STATS_BYTES_0_1);
	for (size_t i = sizeof(ours); i < stats->size; i++)
		if (((const char *)stats)[i] != 0)
			return kvc_fail(-E2BIG, "kvc_stats has counters that this library does not "
						"know");
	memcpy(&ours, stats, stats->size < sizeof(ours) ? stats->size : sizeof(ours));
	kvc_text_init(&text, buffer, bytes);
	rc = kvc_stats_add_text(&ours, format, NULL, &text);
	return rc < 0 ? rc : kvc_text_finish(&text);
}
