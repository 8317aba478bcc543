/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store tells a monitoring system: counters and the state of its roots as Prometheus text,
 * through kvc_metrics_text(), metrics_file and metrics_listen. Making the text asks no device: one
 * that hangs does not keep anybody from seeing that it does.
 *
 * Readers: core/store.c, core/describe.c; the connector says which rank the process is.
 */
#ifndef KVC_CORE_METRICS_H
#define KVC_CORE_METRICS_H

#include <stddef.h>
#include <stdint.h>

struct kvc_metrics; /* of one store */
struct kvc_store;
struct kvc_text;

/*
 * kvc_metrics_open - takes the port of metrics_listen, if there is one and the store is not
 * read-only. A port that is in use is no error but a warning: ranks share a configuration.
 * Errors: -ENOMEM; those of kvc_http_open().
 */
int kvc_metrics_open(struct kvc_store *store);

/* Serves from now on: the roots are there. */
void kvc_metrics_start(struct kvc_store *store);

/* For the housekeeping thread, at each turn: writes metrics_file; tries again for a port that was
 * in use. */
void kvc_metrics_look_after(struct kvc_store *store);

/* Writes metrics_file for the last time, and ends serving. -EBUSY as kvc_http_close(). */
int kvc_metrics_stop(struct kvc_store *store, uint64_t deadline_ns);

/* NULL does nothing; it serves no more. */
void kvc_metrics_free(struct kvc_metrics *metrics);

/*
 * kvc_metrics_label - a namespace was opened: its id and the place of this process in it are labels
 * of all metrics. With several namespaces, or places, none of them is.
 */
void kvc_metrics_label(struct kvc_store *store, const char *namespace_id, const char *rank);

/* "http://127.0.0.1:9464/metrics", or why nothing is served there; "" without metrics_listen. */
void kvc_metrics_where(struct kvc_store *store, char *out, size_t bytes);

#endif
