/* SPDX-License-Identifier: Apache-2.0 */
/* core/metrics.h: labels, the state of roots, the file and the port of a store. */
#include "fake.h"

#include "counter_helper.h"

#include "core/metrics.h"
#include "core/usage.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static struct fake *fake;
static char path[512], address[64];

static int setup(void **state)
{
	fake = fake_new();
	fake->total_bytes = 1 << 20;
	fake->free_bytes = 1 << 18;
	return make_folder(state);
}

static int teardown(void **state)
{
	fake_free(fake);
	return remove_folder(state);
}

/* What kvc_metrics_text() says; for free(). */
static char *metrics(void)
{
	const int length = kvc_metrics_text(&fake->store, NULL, 0);
	char *text = malloc((size_t)length + 4096);

	assert_true(length > 0);
	assert_non_null(text);
	assert_true(kvc_metrics_text(&fake->store, text, (size_t)length + 4096) > 0);
	return text;
}

/* Whether it has that line, but for its end. */
static bool has(const char *line)
{
	char *text = metrics(), *at = strstr(text, line);
	const bool found = at && (at == text || at[-1] == '\n');

	free(text);
	return found;
}

/* ---------------------------------------------------------------- labels */

static void labels_are_those_of_the_namespace(void **state)
{
	(void)state;
	fake_open(fake, 1);
	assert_true(has("kvcellar_retries_total 0\n"));
	assert_true(has("kvcellar_root_suspect{root=\"fake0\"} 0\n"));
	kvc_metrics_label(&fake->store, "model-0123456789abcdef", "tp3_pp1");
	kvc_metrics_label(&fake->store, "model-0123456789abcdef", "tp3_pp1");
	assert_true(has("kvcellar_retries_total{namespace=\"model-0123456789abcdef\","
			"rank=\"tp3_pp1\"} 0\n"));
	assert_true(has("kvcellar_calls_total{namespace=\"model-0123456789abcdef\","
			"rank=\"tp3_pp1\",operation=\"get\"} 0\n"));
	assert_true(has("kvcellar_root_suspect{namespace=\"model-0123456789abcdef\","
			"rank=\"tp3_pp1\",root=\"fake0\"} 0\n"));
	assert_true(has("kvcellar_build_info{namespace=\"model-0123456789abcdef\","
			"rank=\"tp3_pp1\",version=\""));
	/* Counters are of the whole store: what is not one for all is no label. */
	kvc_metrics_label(&fake->store, "draft-0123456789abcdef", "tp3_pp1");
	assert_true(has("kvcellar_retries_total{rank=\"tp3_pp1\"} 0\n"));
	kvc_metrics_label(&fake->store, "model-0123456789abcdef", "tp0");
	assert_true(has("kvcellar_retries_total 0\n"));
	assert_true(has("kvcellar_root_suspect{root=\"fake0\"} 0\n"));
}

/* ---------------------------------------------------------------- roots */

static void roots_say_what_is_known_of_them(void **state)
{
	(void)state;
	fake->settings.capacity.percent = 50;
	fake_open(fake, 2);
	fake_root(fake, 1)->read_only = true;
	assert_true(has("kvcellar_root_own_bytes{root=\"fake0\"} 0\n"));
	assert_true(has("kvcellar_root_own_objects{root=\"fake1\"} 0\n"));
	assert_true(has("kvcellar_root_capacity_bytes{root=\"fake0\"} 524288\n"));
	assert_true(has("kvcellar_root_total_bytes{root=\"fake0\"} 1048576\n"));
	assert_true(has("kvcellar_root_free_bytes{root=\"fake1\"} 262144\n"));
	assert_true(has("kvcellar_root_writable{root=\"fake0\"} 1\n"));
	assert_true(has("kvcellar_root_writable{root=\"fake1\"} 0\n"));
	assert_false(has("# HELP kvcellar_root_oldest_live_age_seconds"));

	(void)kvc_root_suspect(fake_root(fake, 1));
	atomic_store(&fake_root(fake, 1)->oldest_live_s, 77);
	fake->free_bytes = 1000;
	assert_true(has("kvcellar_root_free_bytes{root=\"fake0\"} 262144\n"));
	kvc_root_look_after(fake_root(fake, 0));
	kvc_root_look_after(fake_root(fake, 1)); /* one that stalls is not asked */
	assert_true(has("kvcellar_root_free_bytes{root=\"fake0\"} 1000\n"));
	assert_true(has("kvcellar_root_free_bytes{root=\"fake1\"} 262144\n"));
	assert_true(has("kvcellar_root_suspect{root=\"fake0\"} 0\n"));
	assert_true(has("kvcellar_root_suspect{root=\"fake1\"} 1\n"));
	/* Its head is there, with the first root that knows a value. */
	assert_true(has("# TYPE kvcellar_root_oldest_live_age_seconds gauge\n"
			"kvcellar_root_oldest_live_age_seconds{root=\"fake1\"} 77\n"));
}

static void what_no_root_knows_is_left_out(void **state)
{
	(void)state;
	fake->usage_error = -ENOTSUP;
	fake_open(fake, 1);
	assert_false(has("# HELP kvcellar_root_total_bytes"));
	assert_false(has("# HELP kvcellar_root_free_bytes"));
	assert_false(has("# HELP kvcellar_root_capacity_bytes"));
	assert_true(has("kvcellar_root_own_bytes{root=\"fake0\"} 0\n"));
}

/* ---------------------------------------------------------------- metrics_file */

static bool is_file(const char *name)
{
	return access(in_folder(name), F_OK) == 0;
}

static void a_file_for_each_rank(void **state)
{
	(void)state;
	fake_open(fake, 1);
	(void)snprintf(path, sizeof(path), "%s", in_folder("kv-{rank}.prom"));
	fake->settings.metrics_file = path;
	kvc_metrics_look_after(&fake->store);
	assert_int_equal(count_entries(folder), 0); /* whose would it be? */
	kvc_metrics_label(&fake->store, "model-0123456789abcdef", "tp1");
	kvc_metrics_look_after(&fake->store);
	assert_true(is_file("kv-tp1.prom"));
	assert_int_equal(unlink(in_folder("kv-tp1.prom")), 0);
	kvc_metrics_label(&fake->store, "model-0123456789abcdef", "tp2");
	assert_int_equal(kvc_metrics_stop(&fake->store, kvc_now_ns()), 0);
	assert_true(is_file("kv-tp1.prom"));
	assert_int_equal(count_entries(folder), 1);
	(void)snprintf(path, sizeof(path), "%s", in_folder("kv.prom"));
	kvc_metrics_look_after(&fake->store);
	assert_true(is_file("kv.prom"));
}

/* ---------------------------------------------------------------- metrics_listen */

/* The store's metrics once more, with a port. */
static int reopen(void)
{
	kvc_metrics_free(fake->store.metrics);
	return kvc_metrics_open(&fake->store);
}

static void where(char out[160])
{
	kvc_metrics_where(&fake->store, out, 160);
}

/* A socket that has a port of 127.0.0.1. */
static int take_port(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t bytes = sizeof(at);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
	(void)snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(at.sin_port));
	fake->settings.metrics_listen = address;
	return fd;
}

static char warned[512];

static void keep_warning(void *context, int level, const char *text)
{
	(void)context;
	if (level == KVC_LOG_WARNING)
		(void)snprintf(warned, sizeof(warned), "%s", text);
}

static void skip_unless_built_in(void)
{
	char any[] = "127.0.0.1:0";
	int rc;

	fake->settings.metrics_listen = any;
	rc = reopen();
	if (rc == 0)
		rc = kvc_metrics_stop(&fake->store, kvc_now_ns());
	fake->settings.metrics_listen = fake->settings.trace_file; /* "" */
	if (rc != -ENODEV)
		return;
	assert_non_null(strstr(kvc_last_error(), "metrics_listen = \"127.0.0.1:0\""));
	printf("skipped: %s\n", kvc_last_error());
	skip();
}

/* The others go on, and one of them serves as soon as the port is free. */
static void a_port_in_use_is_a_warning_and_tried_again(void **state)
{
	char line[160], want[160];
	int fd;

	(void)state;
	skip_unless_built_in();
	where(line);
	assert_string_equal(line, "");
	fake_open(fake, 1);
	fd = take_port();
	warned[0] = '\0';
	kvc_log_set(keep_warning, NULL, KVC_LOG_WARNING);
	assert_int_equal(reopen(), 0);
	assert_non_null(strstr(warned, address));
	kvc_metrics_start(&fake->store);
	where(line);
	assert_memory_equal(line, "none: ", 6);
	assert_non_null(strstr(line, address));
	warned[0] = '\0';
	kvc_metrics_look_after(&fake->store);
	assert_string_equal(warned, ""); /* once is enough */
	close(fd);
	kvc_metrics_look_after(&fake->store);
	where(line);
	(void)snprintf(want, sizeof(want), "http://%s/metrics", address);
	assert_string_equal(line, want);
	kvc_metrics_look_after(&fake->store);
	kvc_log_set(NULL, NULL, KVC_LOG_WARNING);
	assert_int_equal(kvc_metrics_stop(&fake->store, kvc_now_ns() + UINT64_C(5000000000)), 0);
}

static void a_read_only_store_serves_nothing(void **state)
{
	char any[] = "127.0.0.1:0", line[160];

	(void)state;
	fake->settings.metrics_listen = any;
	fake->store.read_only = true;
	assert_int_equal(reopen(), 0);
	kvc_metrics_start(&fake->store);
	kvc_metrics_look_after(&fake->store);
	where(line);
	assert_string_equal(line, "none: 127.0.0.1:0 is not served by a read-only open");
}

#define SCRAPES 30

static void *scrape(void *context)
{
	const struct sockaddr_in *at = context;
	static _Thread_local char answer[65536];

	for (int i = 0; i < SCRAPES; i++) {
		static const char request[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
		const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		size_t got = 0;
		ssize_t n;

		assert_int_equal(connect(fd, (const struct sockaddr *)at, sizeof(*at)), 0);
		assert_int_equal(send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL),
				 sizeof(request) - 1);
		while ((n = recv(fd, answer + got, sizeof(answer) - 1 - got, 0)) > 0)
			got += (size_t)n;
		answer[got] = '\0';
		close(fd);
		assert_memory_equal(answer, "HTTP/1.1 200 ", 13);
		assert_non_null(strstr(answer, "kvcellar_root_own_bytes"));
	}
	return NULL;
}

/* Scraped while everything that the text is made of changes. */
static void scrapes_beside_work(void **state)
{
	char any[] = "127.0.0.1:0", line[160];
	struct sockaddr_in at = { .sin_family = AF_INET };
	pthread_t threads[3];

	(void)state;
	skip_unless_built_in();
	fake->settings.metrics_listen = any;
	(void)snprintf(path, sizeof(path), "%s", in_folder("kv.prom"));
	fake->settings.metrics_file = path;
	fake_open(fake, 2);
	assert_int_equal(reopen(), 0);
	kvc_metrics_start(&fake->store);
	where(line);
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	at.sin_port = htons((uint16_t)strtoul(strrchr(line, ':') + 1, NULL, 10));
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, scrape, &at), 0);
	for (int i = 0; i < 300; i++) {
		struct kvc_root *root = fake_root(fake, (size_t)i % 2);

		kvc_counters_pages(fake->store.counters, KVC_GET, KVC_OK, KVC_CAUSE_NONE, 5, 100);
		kvc_counters_call(fake->store.counters, KVC_GET, (uint64_t)i);
		kvc_counters_prefix(fake->store.counters, 7, 3);
		kvc_usage_add(root->usage, 1, 4096, 1);
		(void)kvc_root_suspect(root);
		if (i == 100)
			kvc_metrics_label(&fake->store, "model-0123456789abcdef", "tp0");
		if (i % 50 == 0) {
			kvc_metrics_look_after(&fake->store);
			kvc_root_look_after(root);
		}
	}
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(kvc_metrics_stop(&fake->store, kvc_now_ns() + UINT64_C(5000000000)), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(labels_are_those_of_the_namespace),
		TEST(roots_say_what_is_known_of_them),
		TEST(what_no_root_knows_is_left_out),
		TEST(a_file_for_each_rank),
		TEST(a_port_in_use_is_a_warning_and_tried_again),
		TEST(a_read_only_store_serves_nothing),
		TEST(scrapes_beside_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
