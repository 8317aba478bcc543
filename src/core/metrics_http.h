/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small HTTP server on the loopback, for one text: GET /metrics. One thread of its own serves it,
 * by libmicrohttpd, which is loaded at run time by the first that opens one: who serves nothing
 * does not carry it and what it depends on. The thread accepts the connections itself and gives
 * each one request, a deadline, and no right to keep others out.
 *
 * Reader: core/metrics.c.
 */
#ifndef KVC_CORE_METRICS_HTTP_H
#define KVC_CORE_METRICS_HTTP_H

#include <stddef.h>
#include <stdint.h>

#define KVC_HTTP_CONNECTIONS 16u /* at a time; for one more the oldest is shut down */
#define KVC_HTTP_DEADLINE_S  5u	 /* of a connection, until it has its answer as a whole */

struct kvc_http;

/* The text as it is now, in memory from malloc(); NULL: there is none. Called by the thread. */
typedef char *(*kvc_http_text_fn)(void *context, size_t *out_bytes);

/*
 * kvc_http_open - takes the port; nothing is served yet.
 * @listen   "127.0.0.1:9464", "[::1]:9464", "localhost:9464" (IPv4); port 0: one that is free
 * Errors: -EADDRINUSE; -ENODEV (built without libmicrohttpd, or it is not installed); of socket()
 * and bind(); -ENOMEM. The text of each names metrics_listen.
 */
int kvc_http_open(const char *listen, kvc_http_text_fn text, void *context, struct kvc_http **out);

/* Begins to serve. Errors: of pthread_create(). */
int kvc_http_start(struct kvc_http *http);

/* "127.0.0.1:9464", with the port that was taken. */
const char *kvc_http_address(const struct kvc_http *http);

/* Ends it, with all connections. -EBUSY: its thread did not end until deadline_ns, and everything
 * stays as it is. NULL does nothing. A child after fork only closes its descriptors. */
int kvc_http_close(struct kvc_http *http, uint64_t deadline_ns);

#endif
