/* SPDX-License-Identifier: Apache-2.0 */
/* core/metrics_http.h: one text over HTTP, whoever comes and whatever they say. */
#include "core/metrics_http.h"

#include "core/clock.h"
#include "core/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_BYTES 65536
#define TEXT_BYTES   40000 /* of a large text */
#define WAIT_MS	     30000
#define SOON	     (kvc_now_ns() + UINT64_C(5000000000))

/* ---------------------------------------------------------------- the server */

static char *large_text(void *context, size_t *out_bytes)
{
	char *text = malloc(TEXT_BYTES + 1);

	(void)context;
	assert_non_null(text);
	memset(text, 'x', TEXT_BYTES);
	text[TEXT_BYTES - 1] = '\n';
	text[TEXT_BYTES] = '\0';
	*out_bytes = TEXT_BYTES;
	return text;
}

static char *no_text(void *context, size_t *out_bytes)
{
	(void)context;
	(void)out_bytes;
	return NULL;
}

static struct kvc_http *open_server(const char *listen, kvc_http_text_fn text)
{
	struct kvc_http *http = NULL;

	assert_int_equal(kvc_http_open(listen, text, NULL, &http), 0);
	assert_int_equal(kvc_http_start(http), 0);
	return http;
}

/* ---------------------------------------------------------------- a client */

static int connect_to(const struct kvc_http *http)
{
	const char *colon = strrchr(kvc_http_address(http), ':');
	struct sockaddr_in address = { .sin_family = AF_INET };
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_non_null(colon);
	address.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* The server may have closed already. */
static void say(int fd, const void *data, size_t bytes)
{
	(void)send(fd, data, bytes, MSG_NOSIGNAL);
}

/* All that comes until the server closes; the whole test fails when it does not in good time. */
static size_t hear(int fd, char answer[ANSWER_BYTES])
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	size_t got = 0;

	for (;;) {
		ssize_t n;

		assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
		n = recv(fd, answer + got, ANSWER_BYTES - 1 - got, 0);
		if (n <= 0)
			break;
		got += (size_t)n;
		assert_true(got < ANSWER_BYTES - 1);
	}
	answer[got] = '\0';
	return got;
}

static void ask(const struct kvc_http *http, const char *request, char answer[ANSWER_BYTES])
{
	const int fd = connect_to(http);

	say(fd, request, strlen(request));
	(void)hear(fd, answer);
	close(fd);
}

/* Says something and leaves. What is no whole request keeps its place for a while. */
static void poke(const struct kvc_http *http, const void *data, size_t bytes)
{
	const int fd = connect_to(http);

	say(fd, data, bytes);
	close(fd);
}

static unsigned status_of(const char *answer)
{
	unsigned status = 0;

	if (sscanf(answer, "HTTP/1.%*1[01] %3u", &status) != 1)
		return 0;
	return status;
}

#define GET "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"

static void expect_text(const struct kvc_http *http)
{
	static _Thread_local char answer[ANSWER_BYTES];
	const char *body;

	ask(http, GET, answer);
	assert_int_equal(status_of(answer), 200);
	body = strstr(answer, "\r\n\r\n");
	assert_non_null(body);
	assert_int_equal(strlen(body + 4), TEXT_BYTES);
	assert_int_equal(body[4], 'x');
}

/* ---------------------------------------------------------------- tests */

static char answer[ANSWER_BYTES];

static void test_what_is_served(void **state)
{
	static const struct {
		const char *request;
		unsigned status;
	} cases[] = {
		{ GET, 200 },
		{ "GET /metrics HTTP/1.0\r\n\r\n", 200 },
		{ "GET /metrics?a=b HTTP/1.1\r\nHost: a\r\n\r\n", 200 },
		{ "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 404 },
		{ "GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", 404 },
		{ "GET /../metrics HTTP/1.1\r\nHost: a\r\n\r\n", 404 },
		{ "GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", 404 },
		{ "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405 },
		{ "PUT /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
		  "3\r\nabc\r\n0\r\n\r\n",
		  405 },
		{ "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405 },
		{ "DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405 },
		{ "OPTIONS /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405 },
		{ "FROB /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405 },
		{ "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 404 },
	};
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);

	(void)state;
	assert_memory_equal(kvc_http_address(http), "127.0.0.1:", 10);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		ask(http, cases[i].request, answer);
		if (status_of(answer) != cases[i].status)
			fail_msg("%s: %.60s", cases[i].request, answer);
	}
	ask(http, GET, answer);
	assert_non_null(strstr(answer, "\r\nContent-Type: text/plain; version=0.0.4"));
	ask(http, cases[7].request, answer);
	assert_non_null(strstr(answer, "\r\nAllow: GET\r\n"));
	assert_int_equal(kvc_http_close(http, SOON), 0);
	assert_int_equal(kvc_http_close(NULL, 0), 0);

	http = open_server("localhost:0", no_text);
	ask(http, GET, answer);
	assert_int_equal(status_of(answer), 500);
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

/* Whatever is said, the next is served. */
static void test_malformed_requests(void **state)
{
	static const char *const requests[] = {
		"",
		"\r\n",
		"\r\n\r\n\r\n\r\n",
		"GET",
		"GET \r\n\r\n",
		"GET /metrics\r\n\r\n",
		"GET /metrics HTTP/9.9\r\n\r\n",
		"GET /metrics FTP/1.1\r\n\r\n",
		"get /metrics http/1.1\r\n\r\n",
		"GET  /metrics  HTTP/1.1\r\n\r\n",
		"GET /metrics HTTP/1.1\r\n: no name\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
		("GET /metrics HTTP/1.1\r\nHost: a\r\n"
		 "Content-Length: 99999999999999999999999\r\n\r\n"),
		"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc",
		"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"GET /metrics HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
		"GET /%00%ff%%zz HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: a\r\n continued\r\n\r\n",
		"\x16\x03\x01\x02",
	};
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);

	(void)state;
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		poke(http, requests[i], strlen(requests[i]));
		expect_text(http);
	}
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

#define LONG_BYTES (1u << 20)

static void test_long_requests(void **state)
{
	static const char head[] = "GET /metrics HTTP/1.1\r\nHost: a\r\nX: ";
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);
	char *request = malloc(LONG_BYTES);
	unsigned seed = 1;

	(void)state;
	assert_non_null(request);
	/* A head without an end. */
	memset(request, 'a', LONG_BYTES);
	memcpy(request, head, sizeof(head) - 1);
	poke(http, request, LONG_BYTES);
	expect_text(http);
	memset(request, 'a', LONG_BYTES);
	poke(http, request, LONG_BYTES);
	expect_text(http);
	memset(request, '\0', LONG_BYTES);
	poke(http, request, LONG_BYTES);
	for (int round = 0; round < 10; round++) {
		for (size_t i = 0; i < LONG_BYTES; i++)
			request[i] = (char)(seed = seed * 1103515245 + 12345);
		poke(http, request, LONG_BYTES);
	}
	expect_text(http);
	assert_int_equal(kvc_http_close(http, SOON), 0);
	free(request);
}

/* Each byte of a sound request missing, or damaged. */
static void test_damaged_requests(void **state)
{
	static const char sound[] = GET;
	char request[sizeof(sound)];

	(void)state;
	for (size_t i = 0; i < sizeof(sound) - 1; i++) {
		struct kvc_http *http = open_server("127.0.0.1:0", large_text);

		memcpy(request, sound, sizeof(sound));
		poke(http, request, i);
		request[i] = (char)(request[i] ^ 0x80);
		poke(http, request, sizeof(sound) - 1);
		request[i] = '\0';
		poke(http, request, sizeof(sound) - 1);
		expect_text(http);
		assert_int_equal(kvc_http_close(http, SOON), 0);
	}
}

/* Clients that go away in the middle of an answer. */
static void test_clients_that_leave(void **state)
{
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);
	const struct linger at_once = { .l_onoff = 1 };

	(void)state;
	for (int i = 0; i < 100; i++) {
		const int fd = connect_to(http);

		say(fd, GET, sizeof(GET) - 1);
		if (i % 2)
			(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
		close(fd);
	}
	expect_text(http);
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

#define FLOOD 200

/* Many that connect, say nothing and leave; and ending waits for nobody. */
static void test_a_flood_of_connections(void **state)
{
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);
	static int fds[FLOOD];
	int waiting;

	(void)state;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < (int)KVC_HTTP_CONNECTIONS + 8; i++)
			fds[i] = connect_to(http);
		waiting = connect_to(http);
		say(waiting, GET, sizeof(GET) - 1);
		for (int i = 0; i < (int)KVC_HTTP_CONNECTIONS + 8; i++)
			close(fds[i]);
		(void)hear(waiting, answer);
		assert_int_equal(status_of(answer), 200);
		close(waiting);
	}
	for (int i = 0; i < FLOOD; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		struct sockaddr_in address = { .sin_family = AF_INET };

		assert_true(fds[i] >= 0);
		address.sin_port = htons(
			(uint16_t)strtoul(strrchr(kvc_http_address(http), ':') + 1, NULL, 10));
		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		(void)connect(fds[i], (const struct sockaddr *)&address, sizeof(address));
	}
	assert_int_equal(kvc_http_close(http, SOON), 0);
	for (int i = 0; i < FLOOD; i++)
		close(fds[i]);
}

static const char half[] = "GET /metr";

/* Who says half a request and waits keeps nobody out: neither while they are there, nor after. */
static void test_silent_clients(void **state)
{
	static const int counts[] = { (int)KVC_HTTP_CONNECTIONS, (int)KVC_HTTP_CONNECTIONS + 1, 100,
				      (int)KVC_HTTP_CONNECTIONS + 1 };
	static int fds[100];
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);

	(void)state;
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		for (int k = 0; k < counts[i]; k++) {
			fds[k] = connect_to(http);
			say(fds[k], half, sizeof(half) - 1);
		}
		for (int k = 0; k < 5; k++)
			expect_text(http);
		/* One place is the last scrape's, or was. */
		for (int k = 0; k < counts[i] - (int)KVC_HTTP_CONNECTIONS + 1; k++)
			assert_int_equal(hear(fds[k], answer), 0);
		for (int k = 0; k < counts[i]; k++)
			close(fds[k]);
		for (int k = 0; k < 5; k++)
			expect_text(http);
	}
	/* All of them are still there when it ends. */
	for (int k = 0; k < 100; k++) {
		fds[k] = connect_to(http);
		say(fds[k], half, sizeof(half) - 1);
	}
	assert_int_equal(kvc_http_close(http, SOON), 0);
	for (int k = 0; k < 100; k++)
		close(fds[k]);
}

/* True: the server closed it. */
static bool drop_byte(int fd, int wait_ms)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	char byte = 'a';

	say(fd, &byte, 1);
	return poll(&ready, 1, wait_ms) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

#define DROPPERS 24

/* A byte now and then keeps a place from nobody, and not for ever. */
static void test_clients_that_drop_bytes(void **state)
{
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);
	const uint64_t until_ns = kvc_now_ns() + WAIT_MS * UINT64_C(1000000);
	int fds[DROPPERS], one;
	bool closed = false;

	(void)state;
	for (int i = 0; i < DROPPERS; i++) {
		fds[i] = connect_to(http);
		say(fds[i], half, sizeof(half) - 1);
	}
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < DROPPERS; i++)
			(void)drop_byte(fds[i], 0);
		expect_text(http);
	}
	for (int i = 0; i < DROPPERS; i++)
		close(fds[i]);
	expect_text(http);

	one = connect_to(http);
	say(one, half, sizeof(half) - 1);
	while (!closed && kvc_now_ns() < until_ns)
		closed = drop_byte(one, 100);
	assert_true(closed);
	close(one);
	expect_text(http);
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

#define HUGE_BYTES (16u << 20) /* more than the kernel keeps for a connection */

static char *huge_text(void *context, size_t *out_bytes)
{
	(void)context;
	*out_bytes = HUGE_BYTES;
	return calloc(1, HUGE_BYTES);
}

/* Nor do those who ask and do not read the answer. */
static void test_clients_that_do_not_read(void **state)
{
	struct kvc_http *http = open_server("127.0.0.1:0", huge_text);
	static int fds[KVC_HTTP_CONNECTIONS + 1];
	const size_t count = sizeof(fds) / sizeof(fds[0]);
	int fd;

	(void)state;
	for (size_t i = 0; i < count; i++) {
		fds[i] = connect_to(http);
		say(fds[i], GET, sizeof(GET) - 1);
	}
	for (int round = 0; round < 3; round++) {
		struct pollfd ready = { .events = POLLIN };
		ssize_t n;

		ready.fd = fd = connect_to(http);
		say(fd, GET, sizeof(GET) - 1);
		assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
		n = recv(fd, answer, ANSWER_BYTES - 1, 0);
		assert_true(n > 0);
		answer[n] = '\0';
		assert_int_equal(status_of(answer), 200);
		close(fd);
	}
	for (size_t i = 0; i < count; i++)
		close(fds[i]);
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

#define SCRAPERS 4
#define SCRAPES	 25

static void *scrape(void *http)
{
	for (int i = 0; i < SCRAPES; i++)
		expect_text(http);
	return NULL;
}

static void test_scrapes_at_the_same_time(void **state)
{
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);
	pthread_t threads[SCRAPERS];

	(void)state;
	for (size_t i = 0; i < SCRAPERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, scrape, http), 0);
	for (size_t i = 0; i < SCRAPERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

static void test_a_port_that_is_in_use(void **state)
{
	struct kvc_http *first = open_server("127.0.0.1:0", large_text), *second = NULL;
	char address[64];

	(void)state;
	(void)snprintf(address, sizeof(address), "%s", kvc_http_address(first));
	assert_int_equal(kvc_http_open(address, large_text, NULL, &second), -EADDRINUSE);
	assert_non_null(strstr(kvc_last_error(), "metrics_listen"));
	assert_non_null(strstr(kvc_last_error(), address));
	assert_null(second);
	expect_text(first); /* so that there is a connection to forget */
	assert_int_equal(kvc_http_close(first, SOON), 0);
	second = open_server(address, large_text);
	assert_string_equal(kvc_http_address(second), address);
	expect_text(second);
	assert_int_equal(kvc_http_close(second, SOON), 0);
}

/* A child has the descriptors, and holds up nobody: neither while the parent serves nor when the
 * port is wanted again. What it closes is not the parent's. */
static void test_a_child_after_fork(void **state)
{
	struct kvc_http *http = open_server("127.0.0.1:0", large_text);
	int to_child[2], from_child[2], status;
	char address[64], byte = 'x';
	pid_t child;

	(void)state;
	(void)snprintf(address, sizeof(address), "%s", kvc_http_address(http));
	assert_int_equal(pipe(to_child), 0);
	assert_int_equal(pipe(from_child), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		const bool waited = read(to_child[0], &byte, 1) == 1;
		const int rc = kvc_http_close(http, 0);

		(void)!write(from_child[1], &byte, 1);
		_exit(waited && read(to_child[0], &byte, 1) == 1 ? rc : 1);
	}
	expect_text(http);
	assert_int_equal(write(to_child[1], &byte, 1), 1);
	assert_int_equal(read(from_child[0], &byte, 1), 1);
	expect_text(http);
	assert_int_equal(kvc_http_close(http, SOON), 0);
	http = open_server(address, large_text);
	expect_text(http);
	assert_int_equal(write(to_child[1], &byte, 1), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);

	/* One that closes nothing and lives on. */
	child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(read(to_child[0], &byte, 1) == 1 ? 0 : 1);
	assert_int_equal(kvc_http_close(http, SOON), 0);
	http = open_server(address, large_text);
	expect_text(http);
	assert_int_equal(write(to_child[1], &byte, 1), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(kvc_http_close(http, SOON), 0);
	for (int i = 0; i < 2; i++) {
		close(to_child[i]);
		close(from_child[i]);
	}
}

/* Opened and not started, as when the store cannot be opened; and again and again. */
static void test_opening_and_closing(void **state)
{
	struct kvc_http *http = NULL;
	const int before = dup(0);
	int after;

	(void)state;
	close(before);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(kvc_http_open("127.0.0.1:0", large_text, NULL, &http), 0);
		if (i % 2)
			assert_int_equal(kvc_http_start(http), 0);
		assert_int_equal(kvc_http_close(http, SOON), 0);
	}
	after = dup(0);
	close(after);
	assert_int_equal(after, before); /* no descriptor is left */
	http = NULL;
	assert_int_equal(kvc_http_open("127.255.255.254:0", large_text, NULL, &http), 0);
	assert_memory_equal(kvc_http_address(http), "127.255.255.254:", 16);
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

static void test_ipv6(void **state)
{
	struct kvc_http *http = NULL;
	const int rc = kvc_http_open("[::1]:0", large_text, NULL, &http);

	(void)state;
	if (rc == -EADDRNOTAVAIL || rc == -EAFNOSUPPORT) {
		assert_non_null(strstr(kvc_last_error(), "metrics_listen = \"[::1]:0\""));
		return;
	}
	assert_int_equal(rc, 0);
	assert_memory_equal(kvc_http_address(http), "[::1]:", 6);
	assert_int_equal(kvc_http_start(http), 0);
	assert_int_equal(kvc_http_close(http, SOON), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_served),
		cmocka_unit_test(test_malformed_requests),
		cmocka_unit_test(test_long_requests),
		cmocka_unit_test(test_damaged_requests),
		cmocka_unit_test(test_clients_that_leave),
		cmocka_unit_test(test_a_flood_of_connections),
		cmocka_unit_test(test_silent_clients),
		cmocka_unit_test(test_clients_that_drop_bytes),
		cmocka_unit_test(test_clients_that_do_not_read),
		cmocka_unit_test(test_scrapes_at_the_same_time),
		cmocka_unit_test(test_a_port_that_is_in_use),
		cmocka_unit_test(test_a_child_after_fork),
		cmocka_unit_test(test_opening_and_closing),
		cmocka_unit_test(test_ipv6),
	};
	struct kvc_http *http = NULL;
	const int rc = kvc_http_open("127.0.0.1:0", large_text, NULL, &http);

	if (rc == -ENODEV) {
		printf("SKIP: %s\n", kvc_last_error());
		return 77;
	}
	(void)kvc_http_close(http, SOON);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
