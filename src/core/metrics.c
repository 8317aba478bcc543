/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics.h"

#include "core/clock.h"
#include "core/describe.h"
#include "core/log.h"
#include "core/metrics_http.h"
#include "core/packed.h"
#include "core/stats.h"
#include "core/store.h"
#include "core/text.h"
#include "core/walk.h"

#include <kvcellar/kvcellar.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES    64u				    /* of a constant label */
#define CONSTANT_BYTES (4u * VALUE_BYTES)		    /* both, escaped */
#define LABEL_BYTES    (3 * PATH_MAX + 16 + CONSTANT_BYTES) /* each byte of a path may need three */
#define RANK_IN_PATH   "{rank}"				    /* in metrics_file */
#define GROWTH_BYTES   4096u /* a text may be longer when it is made again */

struct kvc_metrics {
	pthread_mutex_t lock;		/* of what follows, up to http */
	char namespace_id[VALUE_BYTES]; /* of the first one; "": none was opened */
	char rank[VALUE_BYTES];
	bool several_namespaces;
	bool several_ranks;
	struct kvc_http *http;
	int file_error; /* of the last writing of metrics_file */
};

/* ---------------------------------------------------------------- labels */

void kvc_metrics_label(struct kvc_store *store, const char *namespace_id, const char *rank)
{
	struct kvc_metrics *metrics = store->metrics;

	pthread_mutex_lock(&metrics->lock);
	if (!metrics->namespace_id[0]) {
		(void)snprintf(metrics->namespace_id, VALUE_BYTES, "%s", namespace_id);
		(void)snprintf(metrics->rank, VALUE_BYTES, "%s", rank);
	}
	metrics->several_namespaces |= strcmp(metrics->namespace_id, namespace_id) != 0;
	metrics->several_ranks |= strcmp(metrics->rank, rank) != 0;
	pthread_mutex_unlock(&metrics->lock);
}

/* Those that all metrics have. */
static void constant_labels(struct kvc_metrics *metrics, char out[CONSTANT_BYTES])
{
	struct kvc_text text;

	kvc_text_init(&text, out, CONSTANT_BYTES);
	pthread_mutex_lock(&metrics->lock);
	if (metrics->namespace_id[0] && !metrics->several_namespaces) {
		kvc_text_add(&text, "namespace=");
		kvc_text_label(&text, metrics->namespace_id);
	}
	if (metrics->rank[0] && !metrics->several_ranks) {
		kvc_text_add(&text, "%srank=", text.length ? "," : "");
		kvc_text_label(&text, metrics->rank);
	}
	pthread_mutex_unlock(&metrics->lock);
}

static void root_labels(const struct kvc_root *root, const char *constant, char out[LABEL_BYTES])
{
	struct kvc_text label;

	kvc_text_init(&label, out, LABEL_BYTES);
	kvc_text_add(&label, "%s%sroot=", constant, *constant ? "," : "");
	kvc_text_label(&label, root->location);
}

/* ---------------------------------------------------------------- roots */

/* What is known of a root; false: it is not. */
static bool own_bytes(struct kvc_root *root, uint64_t *out)
{
	uint64_t objects;

	kvc_walk_usage(root, out, &objects);
	return true;
}

static bool own_objects(struct kvc_root *root, uint64_t *out)
{
	uint64_t bytes;

	kvc_walk_usage(root, &bytes, out);
	return true;
}

static bool capacity_bytes(struct kvc_root *root, uint64_t *out)
{
	struct kvc_packed *packed = kvc_root_packed(root, false);
	struct kvc_packed_health health;

	*out = root->capacity_bytes;
	if (packed) {
		kvc_packed_health(packed, &health);
		*out = health.capacity_bytes;
	}
	return *out > 0;
}

static bool total_bytes(struct kvc_root *root, uint64_t *out)
{
	*out = atomic_load_explicit(&root->device_total_bytes, memory_order_relaxed);
	return *out > 0;
}

static bool free_bytes(struct kvc_root *root, uint64_t *out)
{
	uint64_t total;

	*out = atomic_load_explicit(&root->device_free_bytes, memory_order_relaxed);
	return total_bytes(root, &total);
}

static bool oldest_live(struct kvc_root *root, uint64_t *out)
{
	*out = atomic_load_explicit(&root->oldest_live_s, memory_order_relaxed);
	return *out > 0;
}

static bool suspect(struct kvc_root *root, uint64_t *out)
{
	*out = atomic_load_explicit(&root->suspect, memory_order_relaxed);
	return true;
}

static bool writable(struct kvc_root *root, uint64_t *out)
{
	*out = !root->read_only && !root->writes_refused;
	return true;
}

static const struct root_gauge {
	const char *name;
	const char *help;
	bool (*value)(struct kvc_root *root, uint64_t *out);
} root_gauge_list[] = {
	{ "root_own_bytes", "Bytes of this store's objects on the root.", own_bytes },
	{ "root_own_objects", "Objects of this store on the root.", own_objects },
	{ "root_capacity_bytes", "Bytes that objects may take on the root.", capacity_bytes },
	{ "root_total_bytes", "Size of the root's device.", total_bytes },
	{ "root_free_bytes", "Free bytes of the root's device, as last asked.", free_bytes },
	{ "root_oldest_live_age_seconds", "Time since the oldest object was stored.", oldest_live },
	{ "root_suspect", "1 when I/O of the root was found stalling.", suspect },
	{ "root_writable", "0 when nothing can be stored on the root.", writable },
};

/* A metric of which no root knows a value is left out. */
static void root_gauges(struct kvc_text *text, struct kvc_store *store, const char *constant)
{
	char labels[LABEL_BYTES];

	for (size_t g = 0; g < sizeof(root_gauge_list) / sizeof(root_gauge_list[0]); g++) {
		const struct root_gauge *gauge = &root_gauge_list[g];
		const char *help = gauge->help;

		for (size_t r = 0; r < store->root_count; r++) {
			uint64_t value;

			if (!gauge->value(store->roots[r], &value))
				continue;
			root_labels(store->roots[r], constant, labels);
			kvc_metrics_gauge(text, gauge->name, help, labels, value);
			help = NULL;
		}
	}
}

static void index_gauges(struct kvc_text *text, struct kvc_store *store, const char *constant)
{
	struct kvc_index_figure figures[KVC_INDEX_FIGURES];
	char labels[LABEL_BYTES], name[64];

	for (size_t i = 0; i < KVC_INDEX_FIGURES; i++) {
		bool told = false;

		for (size_t r = 0; r < store->root_count; r++) {
			struct kvc_packed *packed = kvc_root_packed(store->roots[r], false);

			if (!packed)
				continue;
			kvc_index_figures(packed, figures);
			(void)snprintf(name, sizeof(name), "packed_%s", figures[i].name);
			root_labels(store->roots[r], constant, labels);
			kvc_metrics_gauge(text, name, told ? NULL : figures[i].help, labels,
					  figures[i].value);
			told = true;
		}
	}
}

/* ---------------------------------------------------------------- the text */

static void build_info(struct kvc_text *text, const char *constant)
{
	char labels[CONSTANT_BYTES + VALUE_BYTES];

	(void)snprintf(labels, sizeof(labels), "%s%sversion=\"%s\"", constant, *constant ? "," : "",
		       kvc_version());
	kvc_metrics_gauge(text, "build_info", "The version of the library.", labels, 1);
}

int kvc_metrics_text(struct kvc_store *store, char *buffer, size_t bytes)
{
	struct kvc_stats stats = { .size = sizeof(stats) };
	char constant[CONSTANT_BYTES];
	struct kvc_text text;
	int rc;

	if (!store || (!buffer && bytes > 0))
		return kvc_fail(-EINVAL, "kvc_metrics_text: store or buffer is NULL");
	kvc_store_enter(store);
	kvc_text_init(&text, buffer, bytes);
	constant_labels(store->metrics, constant);
	rc = kvc_counters_read(store->counters, &stats);
	if (!rc)
		rc = kvc_stats_add_text(&stats, KVC_FORMAT_PROMETHEUS, constant, &text);
	if (!rc) {
		build_info(&text, constant);
		root_gauges(&text, store, constant);
		index_gauges(&text, store, constant);
	}
	kvc_store_leave(store);
	return rc ? rc : kvc_text_finish(&text);
}

/* Allocated. It may grow while it is made: it is measured first, with some room. */
static char *make_text(void *context, size_t *out_bytes)
{
	struct kvc_store *store = context;
	int length = kvc_metrics_text(store, NULL, 0), room;
	char *text = NULL;

	do {
		char *more;

		if (length < 0)
			break;
		room = length + (int)GROWTH_BYTES;
		more = realloc(text, (size_t)room);
		if (!more)
			break;
		text = more;
		length = kvc_metrics_text(store, text, (size_t)room);
		if (length >= 0 && length < room) {
			*out_bytes = (size_t)length;
			return text;
		}
	} while (true);
	free(text);
	return NULL;
}

/* ---------------------------------------------------------------- metrics_file */

/* The path of this process: ranks that share a configuration must not share a file. Allocated;
 * NULL: it is not known yet which rank this is, or there is no memory. */
static char *file_path(struct kvc_store *store)
{
	const char *path = store->settings->metrics_file;
	const char *at = strstr(path, RANK_IN_PATH);
	char rank[VALUE_BYTES], *out = NULL;

	if (!at)
		return strdup(path);
	pthread_mutex_lock(&store->metrics->lock);
	memcpy(rank, store->metrics->rank, sizeof(rank));
	pthread_mutex_unlock(&store->metrics->lock);
	if (!rank[0] ||
	    asprintf(&out, "%.*s%s%s", (int)(at - path), path, rank, at + strlen(RANK_IN_PATH)) < 0)
		return NULL;
	return out;
}

static void write_file(struct kvc_store *store)
{
	struct kvc_metrics *metrics = store->metrics;
	char *path = *store->settings->metrics_file ? file_path(store) : NULL, *text;
	size_t bytes;
	int rc;

	text = path ? make_text(store, &bytes) : NULL;
	if (text) {
		rc = kvc_metrics_write(path, text, bytes);
		/* Once for each cause, not at every turn. */
		if (rc < 0 && rc != metrics->file_error)
			kvc_log(KVC_LOG_ERROR, "%s", kvc_last_error());
		metrics->file_error = rc;
	}
	free(text);
	free(path);
}

/* ---------------------------------------------------------------- metrics_listen */

static bool wants_listener(const struct kvc_store *store)
{
	return *store->settings->metrics_listen && !store->read_only;
}

static struct kvc_http *listener(struct kvc_metrics *metrics)
{
	struct kvc_http *http;

	pthread_mutex_lock(&metrics->lock);
	http = metrics->http;
	pthread_mutex_unlock(&metrics->lock);
	return http;
}

static int listen_at(struct kvc_store *store)
{
	struct kvc_metrics *metrics = store->metrics;
	struct kvc_http *http;
	const int rc = kvc_http_open(store->settings->metrics_listen, make_text, store, &http);

	if (rc)
		return rc;
	pthread_mutex_lock(&metrics->lock);
	metrics->http = http;
	pthread_mutex_unlock(&metrics->lock);
	return 0;
}

int kvc_metrics_open(struct kvc_store *store)
{
	struct kvc_metrics *metrics = calloc(1, sizeof(*metrics));
	int rc;

	if (!metrics)
		return kvc_fail(-ENOMEM, "no memory for metrics");
	(void)pthread_mutex_init(&metrics->lock, NULL);
	store->metrics = metrics;
	rc = wants_listener(store) ? listen_at(store) : 0;
	if (rc != -EADDRINUSE)
		return rc;
	kvc_log(KVC_LOG_WARNING,
		"metrics_listen: %s is in use, as by another rank with the same configuration: "
		"this process serves no metrics until it is free",
		store->settings->metrics_listen);
	return 0;
}

void kvc_metrics_start(struct kvc_store *store)
{
	struct kvc_http *http = listener(store->metrics);
	const int rc = http ? kvc_http_start(http) : 0;

	if (rc)
		kvc_log(KVC_LOG_WARNING, "metrics_listen: no thread: %s", strerror(-rc));
	else if (http)
		kvc_log(KVC_LOG_INFO, "metrics are served at http://%s/metrics",
			kvc_http_address(http));
}

void kvc_metrics_look_after(struct kvc_store *store)
{
	write_file(store);
	if (wants_listener(store) && !listener(store->metrics) && listen_at(store) == 0)
		kvc_metrics_start(store);
}

int kvc_metrics_stop(struct kvc_store *store, uint64_t deadline_ns)
{
	struct kvc_metrics *metrics = store->metrics;
	const int rc = kvc_http_close(metrics->http, deadline_ns);

	if (rc)
		return rc;
	metrics->http = NULL;
	write_file(store);
	return 0;
}

void kvc_metrics_free(struct kvc_metrics *metrics)
{
	if (!metrics)
		return;
	(void)kvc_http_close(metrics->http, kvc_now_ns());
	(void)pthread_mutex_destroy(&metrics->lock);
	free(metrics);
}

void kvc_metrics_where(struct kvc_store *store, char *out, size_t bytes)
{
	const char *wanted = store->settings->metrics_listen;
	struct kvc_http *http = listener(store->metrics);

	if (http)
		(void)snprintf(out, bytes, "http://%s/metrics", kvc_http_address(http));
	else if (!*wanted)
		(void)snprintf(out, bytes, "%s", "");
	else
		(void)snprintf(out, bytes, "none: %s %s", wanted,
			       store->read_only ? "is not served by a read-only open" :
						  "is in use by another process");
}
