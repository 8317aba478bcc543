/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics_http.h"

#include "core/log.h"

#include <errno.h>

#ifndef KVC_HAVE_HTTP

int kvc_http_open(const char *listen, kvc_http_text_fn text, void *context, struct kvc_http **out)
{
	(void)text;
	(void)context;
	(void)out;
	return kvc_fail(-ENODEV,
			"metrics_listen = \"%s\": this library was built without libmicrohttpd; "
			"metrics_file needs none",
			listen);
}

int kvc_http_start(struct kvc_http *http)
{
	(void)http;
	return -ENODEV;
}

const char *kvc_http_address(const struct kvc_http *http)
{
	(void)http;
	return "";
}

int kvc_http_close(struct kvc_http *http, uint64_t deadline_ns)
{
	(void)http;
	(void)deadline_ns;
	return 0;
}

#else

#include "core/clock.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIBRARY		 "libmicrohttpd.so.12"
#define CONNECTION_BYTES 16384u		   /* of memory, for the request's head */
#define BACKLOG		 256		   /* connections that the kernel keeps */
#define BREATH_NS	 UINT64_C(1000000) /* between two turns: a flood takes little of the CPU */
#define TAKEN_AT_ONCE	 8u		   /* connections in one turn */
#define DEADLINE_NS	 (KVC_HTTP_DEADLINE_S * UINT64_C(1000000000))
#define GRACE_NS	 UINT64_C(20000000)  /* that a new one has, to say what it wants */
#define PAUSE_NS	 UINT64_C(100000000) /* when there is no descriptor for a new one */

/* One of the connections. The library owns and closes its descriptor, and says so before. */
struct place {
	int fd; /* -1: nobody has it */
	bool asked;
	bool ended; /* shut down; the library has not closed it yet */
	uint64_t since_ns;
};

struct kvc_http {
	struct MHD_Daemon *daemon;
	kvc_http_text_fn text;
	void *context;
	char address[64];
	pid_t pid; /* of the process that opened it */
	int listener;
	int events; /* descriptor that tells of work */
	int wake;   /* eventfd: the thread ends */

	/* Of the thread; and of kvc_http_close() after it. */
	struct place places[KVC_HTTP_CONNECTIONS];
	struct place *next;	/* of the connection that is being added */
	uint64_t not_before_ns; /* takes no connection until then */

	pthread_t thread;
	bool runs;
	bool ended;
	pthread_mutex_t lock;
	pthread_cond_t end;
};

/* ---------------------------------------------------------------- the library */

#define FUNCTIONS(x)                                                                \
	x(MHD_start_daemon) x(MHD_stop_daemon) x(MHD_run) x(MHD_get_daemon_info)    \
		x(MHD_get_timeout) x(MHD_add_connection) x(MHD_get_connection_info) \
			x(MHD_create_response_from_buffer) x(MHD_queue_response)    \
				x(MHD_add_response_header) x(MHD_destroy_response)

#define POINTER(name) __typeof__(&name) name;

static struct {
	FUNCTIONS(POINTER)
} mhd;

static pthread_once_t mhd_once = PTHREAD_ONCE_INIT;
static char mhd_error[256]; /* "": it is loaded */

static void load(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		const char *text = dlerror();

		(void)snprintf(mhd_error, sizeof(mhd_error), "%s", text ? text : LIBRARY);
		return;
	}
#define FIND(name)                                   \
	*(void **)&mhd.name = dlsym(library, #name); \
	if (!mhd.name)                               \
		(void)snprintf(mhd_error, sizeof(mhd_error), "%s has no %s", LIBRARY, #name);
	FUNCTIONS(FIND)
}

/* ---------------------------------------------------------------- answers */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, char *text,
			      size_t bytes, bool ours, const char *header, const char *value)
{
	struct MHD_Response *response = mhd.MHD_create_response_from_buffer(
		bytes, text, ours ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
	enum MHD_Result result;

	if (!response) {
		if (ours)
			free(text);
		return MHD_NO;
	}
	result = mhd.MHD_add_response_header(response, header, value);
	if (result == MHD_YES)
		result = mhd.MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
	if (result == MHD_YES)
		result = mhd.MHD_queue_response(connection, status, response);
	mhd.MHD_destroy_response(response);
	return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *text,
			      const char *header, const char *value)
{
	return answer(connection, status, (char *)(uintptr_t)text, strlen(text), false, header,
		      value);
}

static void mark_asked(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info =
		mhd.MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct place *place = info ? info->socket_context : NULL;

	if (place)
		place->asked = true;
}

/* A request is answered by its head: a body is not waited for. Its answer ends the connection. */
static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url,
			      const char *method, const char *version, const char *upload,
			      size_t *upload_bytes, void **state)
{
	static const char plain[] = "text/plain";
	struct kvc_http *http = context;
	size_t bytes = 0;
	char *text;

	(void)version;
	(void)upload;
	(void)upload_bytes;
	(void)state;
	mark_asked(connection);
	if (strcmp(url, "/metrics") != 0)
		return refuse(connection, MHD_HTTP_NOT_FOUND, "The counters are at /metrics.\n",
			      MHD_HTTP_HEADER_CONTENT_TYPE, plain);
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0)
		return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Only GET.\n",
			      MHD_HTTP_HEADER_ALLOW, MHD_HTTP_METHOD_GET);
	text = http->text(http->context, &bytes);
	if (!text)
		return refuse(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "No counters.\n",
			      MHD_HTTP_HEADER_CONTENT_TYPE, plain);
	return answer(connection, MHD_HTTP_OK, text, bytes, true, MHD_HTTP_HEADER_CONTENT_TYPE,
		      "text/plain; version=0.0.4; charset=utf-8");
}

/* ---------------------------------------------------------------- connections */

/*
 * The library could listen itself, but at its limit of connections it stops to, and does not always
 * begin again; and it counts silence only, so that a byte now and then keeps a place for ever.
 */

/* By the library: when it has a connection, and before it closes the descriptor. */
static void notify(void *context, struct MHD_Connection *connection, void **socket_context,
		   enum MHD_ConnectionNotificationCode code)
{
	struct kvc_http *http = context;

	(void)connection;
	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		*socket_context = http->next;
		http->next = NULL;
	} else if (*socket_context) {
		((struct place *)*socket_context)->fd = -1;
	}
}

static struct place *free_place(struct kvc_http *http)
{
	for (size_t i = 0; i < KVC_HTTP_CONNECTIONS; i++)
		if (http->places[i].fd < 0)
			return &http->places[i];
	return NULL;
}

/* Who gives way when all places are taken: the oldest of those that have not asked; if there are
 * none, of those that are being answered. NULL: all are new. */
static struct place *oldest(struct kvc_http *http, uint64_t now_ns)
{
	struct place *found = NULL;

	for (size_t i = 0; i < KVC_HTTP_CONNECTIONS; i++) {
		struct place *place = &http->places[i];

		if (place->fd < 0 || place->ended || now_ns < place->since_ns + GRACE_NS)
			continue;
		if (!found || place->asked < found->asked ||
		    (place->asked == found->asked && place->since_ns < found->since_ns))
			found = place;
	}
	return found;
}

/* The library sees that it is closed, and lets go. */
static void end(struct place *place)
{
	(void)shutdown(place->fd, SHUT_RDWR);
	place->ended = true;
}

static void end_late(struct kvc_http *http, uint64_t now_ns)
{
	for (size_t i = 0; i < KVC_HTTP_CONNECTIONS; i++) {
		struct place *place = &http->places[i];

		if (place->fd >= 0 && !place->ended && now_ns >= place->since_ns + DEADLINE_NS)
			end(place);
	}
}

static bool can_take(struct kvc_http *http, uint64_t now_ns)
{
	return now_ns >= http->not_before_ns && (free_place(http) || oldest(http, now_ns));
}

/* 1: another may wait; 0: not now. */
static int take(struct kvc_http *http, struct place *place, uint64_t now_ns)
{
	struct sockaddr_storage from;
	socklen_t bytes = sizeof(from);
	const int fd = accept4(http->listener, (struct sockaddr *)&from, &bytes,
			       SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0) {
		if (errno == EINTR || errno == ECONNABORTED)
			return 1;
		if (errno != EAGAIN)
			http->not_before_ns = now_ns + PAUSE_NS;
		return 0;
	}
	*place = (struct place){ .fd = fd, .since_ns = now_ns };
	http->next = place;
	/* Some versions only note it, and begin in MHD_run(). When they cannot, the descriptor is
	 * closed, and need not be ours any more. */
	(void)mhd.MHD_add_connection(http->daemon, fd, (const struct sockaddr *)&from, bytes);
	(void)mhd.MHD_run(http->daemon);
	if (http->next)
		place->fd = -1;
	http->next = NULL;
	return 1;
}

/* Somebody waits. Only the first may make room: that there are more is not known. */
static void take_some(struct kvc_http *http, uint64_t now_ns)
{
	struct place *place = free_place(http), *victim = place ? NULL : oldest(http, now_ns);

	if (victim) {
		end(victim);
		(void)mhd.MHD_run(http->daemon);
		place = free_place(http);
	}
	for (unsigned i = 0; place && i < TAKEN_AT_ONCE; i++) {
		if (take(http, place, now_ns) == 0)
			break;
		place = free_place(http);
	}
}

/* ---------------------------------------------------------------- the thread */

/* How long it may sleep, in ms: -1 without an end. */
static int pause_ms(struct kvc_http *http, bool takes, uint64_t now_ns)
{
	MHD_UNSIGNED_LONG_LONG ms;
	uint64_t until_ns = UINT64_MAX;

	if (mhd.MHD_get_timeout(http->daemon, &ms) == MHD_YES && ms < 60000)
		until_ns = now_ns + ms * UINT64_C(1000000);
	if (now_ns < http->not_before_ns && http->not_before_ns < until_ns)
		until_ns = http->not_before_ns;
	for (size_t i = 0; i < KVC_HTTP_CONNECTIONS; i++) {
		const struct place *place = &http->places[i];
		uint64_t next_ns = place->since_ns + (takes ? DEADLINE_NS : GRACE_NS);

		if (place->fd < 0)
			continue;
		if (place->ended || next_ns <= now_ns)
			next_ns = now_ns + PAUSE_NS;
		if (next_ns < until_ns)
			until_ns = next_ns;
	}
	return until_ns == UINT64_MAX ? -1 : (int)((until_ns - now_ns + 999999) / 1000000);
}

static void *serve(void *context)
{
	struct kvc_http *http = context;
	struct pollfd fds[] = {
		{ .fd = http->wake, .events = POLLIN },
		{ .fd = http->events, .events = POLLIN },
		{ .fd = -1, .events = POLLIN },
	};
	const struct timespec breath = kvc_timespec(BREATH_NS);
	uint64_t now_ns;
	bool takes;

	while (!(fds[0].revents & POLLIN)) {
		now_ns = kvc_now_ns();
		if (fds[2].revents)
			take_some(http, now_ns);
		end_late(http, now_ns);
		(void)mhd.MHD_run(http->daemon);
		(void)nanosleep(&breath, NULL);
		now_ns = kvc_now_ns();
		takes = can_take(http, now_ns);
		fds[2].fd = takes ? http->listener : -1;
		for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
			fds[i].revents = 0;
		(void)poll(fds, sizeof(fds) / sizeof(fds[0]), pause_ms(http, takes, now_ns));
	}
	pthread_mutex_lock(&http->lock);
	http->ended = true;
	pthread_cond_signal(&http->end);
	pthread_mutex_unlock(&http->lock);
	return NULL;
}

int kvc_http_start(struct kvc_http *http)
{
	sigset_t all, former;
	int rc;

	(void)sigfillset(&all);
	(void)sigdelset(&all, SIGBUS); /* counters lie in mapped files */
	(void)pthread_sigmask(SIG_SETMASK, &all, &former);
	rc = pthread_create(&http->thread, NULL, serve, http);
	(void)pthread_sigmask(SIG_SETMASK, &former, NULL);
	http->runs = rc == 0;
	if (http->runs)
		(void)pthread_setname_np(http->thread, "kvc-metrics");
	return -rc;
}

/* ---------------------------------------------------------------- open, close */

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* The form was checked with the configuration. */
static socklen_t parse(const char *listen, union address *out)
{
	const char *colon = strrchr(listen, ':');
	const uint16_t port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
	char host[64];

	memset(out, 0, sizeof(*out));
	(void)snprintf(host, sizeof(host), "%.*s", (int)(colon - listen), listen);
	if (host[0] == '[') {
		out->v6.sin6_family = AF_INET6;
		out->v6.sin6_port = port;
		out->v6.sin6_addr = in6addr_loopback;
		return sizeof(out->v6);
	}
	out->v4.sin_family = AF_INET;
	out->v4.sin_port = port;
	if (inet_pton(AF_INET, host, &out->v4.sin_addr) != 1)
		out->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return sizeof(out->v4);
}

static void print_address(struct kvc_http *http)
{
	union address address;
	socklen_t bytes = sizeof(address);
	char host[INET6_ADDRSTRLEN] = "";

	memset(&address, 0, sizeof(address));
	(void)getsockname(http->listener, &address.any, &bytes);
	if (address.any.sa_family == AF_INET6) {
		(void)inet_ntop(AF_INET6, &address.v6.sin6_addr, host, sizeof(host));
		(void)snprintf(http->address, sizeof(http->address), "[%s]:%u", host,
			       ntohs(address.v6.sin6_port));
	} else {
		(void)inet_ntop(AF_INET, &address.v4.sin_addr, host, sizeof(host));
		(void)snprintf(http->address, sizeof(http->address), "%s:%u", host,
			       ntohs(address.v4.sin_port));
	}
}

/* SO_REUSEADDR takes a port whose former connections are not forgotten yet, but none on which
 * somebody listens. */
static int open_listener(const char *listen_at)
{
	union address address;
	const socklen_t bytes = parse(listen_at, &address);
	const int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
		  yes = 1;
	int rc = 0;

	if (fd < 0)
		return -errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(fd, &address.any, bytes) != 0 || listen(fd, BACKLOG) != 0)
		rc = -errno;
	if (rc < 0)
		(void)close(fd);
	return rc < 0 ? rc : fd;
}

static int start_daemon(struct kvc_http *http)
{
	const union MHD_DaemonInfo *info;

	http->daemon = mhd.MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL,
					    handle, http, MHD_OPTION_CONNECTION_LIMIT,
					    KVC_HTTP_CONNECTIONS, MHD_OPTION_NOTIFY_CONNECTION,
					    notify, http, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
					    (size_t)CONNECTION_BYTES, MHD_OPTION_END);
	if (!http->daemon)
		return -ENOMEM;
	info = mhd.MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	if (!info) {
		mhd.MHD_stop_daemon(http->daemon);
		return -ENODEV;
	}
	http->events = info->epoll_fd;
	return 0;
}

int kvc_http_open(const char *listen, kvc_http_text_fn text, void *context, struct kvc_http **out)
{
	struct kvc_http *http;
	int rc;

	(void)pthread_once(&mhd_once, load);
	if (mhd_error[0])
		return kvc_fail(-ENODEV,
				"metrics_listen = \"%s\": needs libmicrohttpd: %s; metrics_file "
				"needs none",
				listen, mhd_error);
	http = calloc(1, sizeof(*http));
	if (!http)
		return kvc_fail(-ENOMEM, "metrics_listen: no memory");
	http->text = text;
	http->context = context;
	http->pid = getpid();
	for (size_t i = 0; i < KVC_HTTP_CONNECTIONS; i++)
		http->places[i].fd = -1;
	http->listener = open_listener(listen);
	if (http->listener < 0) {
		rc = http->listener;
		goto free_http;
	}
	print_address(http);
	http->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (http->wake < 0) {
		rc = -errno;
		goto close_listener;
	}
	rc = start_daemon(http);
	if (rc)
		goto close_wake;
	(void)pthread_mutex_init(&http->lock, NULL);
	(void)pthread_cond_init(&http->end, NULL);
	*out = http;
	return 0;

close_wake:
	(void)close(http->wake);
close_listener:
	(void)close(http->listener);
free_http:
	free(http);
	return kvc_fail(rc, "metrics_listen = \"%s\": %s", listen, strerror(-rc));
}

const char *kvc_http_address(const struct kvc_http *http)
{
	return http->address;
}

static int stop_thread(struct kvc_http *http, uint64_t deadline_ns)
{
	const struct timespec until = kvc_timespec(deadline_ns);
	const uint64_t one = 1;
	int rc = 0;

	(void)write(http->wake, &one, sizeof(one));
	pthread_mutex_lock(&http->lock);
	while (!http->ended && !rc)
		rc = pthread_cond_clockwait(&http->end, &http->lock, CLOCK_MONOTONIC, &until);
	rc = http->ended ? 0 : -EBUSY;
	pthread_mutex_unlock(&http->lock);
	if (rc == 0)
		(void)pthread_join(http->thread, NULL);
	return rc;
}

int kvc_http_close(struct kvc_http *http, uint64_t deadline_ns)
{
	int rc;

	if (!http)
		return 0;
	if (http->pid != getpid()) {
		/* Its thread, its connections and its queue of events are the parent's. */
		(void)close(http->listener);
		(void)close(http->wake);
		free(http);
		return 0;
	}
	rc = http->runs ? stop_thread(http, deadline_ns) : 0;
	if (rc)
		return rc;
	/* Also for a child that has the descriptor: the port is free. */
	(void)shutdown(http->listener, SHUT_RDWR);
	(void)close(http->listener);
	mhd.MHD_stop_daemon(http->daemon);
	(void)close(http->wake);
	(void)pthread_cond_destroy(&http->end);
	(void)pthread_mutex_destroy(&http->lock);
	free(http);
	return 0;
}

#endif
