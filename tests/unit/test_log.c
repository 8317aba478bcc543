/* SPDX-License-Identifier: Apache-2.0 */
/* core/log.c, core/clock.h, core/version.c: error texts, log lines, times. */
#include "core/log.h"

#include "core/clock.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---------------------------------------------------------------- errors and log lines */

static void *other_thread(void *context)
{
	*(int *)context = kvc_fail(-EIO, "other");
	return NULL;
}

static void the_last_error_is_the_threads_own(void **state)
{
	char longer[3000];
	pthread_t thread;
	int rc = 0;

	(void)state;
	assert_int_equal(kvc_fail(-EINVAL, "%s: %d", "mine", 7), -EINVAL);
	assert_int_equal(pthread_create(&thread, NULL, other_thread, &rc), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(rc, -EIO);
	assert_string_equal(kvc_last_error(), "mine: 7");
	/* An argument may be the former text. */
	(void)kvc_fail(-EINVAL, "again: %s", kvc_last_error());
	assert_string_equal(kvc_last_error(), "again: mine: 7");
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	(void)kvc_fail(-EINVAL, "%s", longer);
	assert_true(strlen(kvc_last_error()) > 500 && strlen(kvc_last_error()) < sizeof(longer));
}

static char lines[10][64];
static int line_levels[10];
static int line_count;

static void keep(void *context, int level, const char *text)
{
	assert_ptr_equal(context, lines);
	if (line_count == 10)
		return;
	(void)snprintf(lines[line_count], sizeof(lines[0]), "%.63s", text);
	line_levels[line_count++] = level;
}

static void lines_up_to_the_level_reach_the_callback(void **state)
{
	(void)state;
	kvc_log(KVC_LOG_ERROR, "nobody listens");
	kvc_log_set(keep, lines, KVC_LOG_WARNING);
	kvc_log(KVC_LOG_DEBUG, "debug");
	kvc_log(KVC_LOG_INFO, "info");
	kvc_log(KVC_LOG_WARNING, "warning %d", 1);
	kvc_log(KVC_LOG_ERROR, "error %d", 2);
	kvc_log_set(NULL, NULL, KVC_LOG_DEBUG);
	kvc_log(KVC_LOG_ERROR, "nobody listens");
	assert_int_equal(line_count, 2);
	assert_string_equal(lines[0], "warning 1");
	assert_string_equal(lines[1], "error 2");
	assert_int_equal(line_levels[1], KVC_LOG_ERROR);
}

static void a_place_that_logs_often_is_limited(void **state)
{
	struct kvc_log_limit limit = { 0 };
	uint32_t dropped = 9;
	int allowed = 0;

	(void)state;
	for (int i = 0; i < 100; i++)
		allowed += kvc_log_allowed(&limit, 3, &dropped);
	assert_int_equal(allowed, 3);
	assert_int_equal(dropped, 0);
	/* 10 s later: the next line tells how many there were. */
	limit.window_start_ns -= INT64_C(10000000000);
	assert_true(kvc_log_allowed(&limit, 3, &dropped));
	assert_int_equal(dropped, 97);
	assert_true(kvc_log_allowed(&limit, 3, &dropped));
	assert_int_equal(dropped, 0);
}

/* ---------------------------------------------------------------- fork */

struct waiting {
	int entered[2]; /* pipes: a byte when the callback runs, and one when it may end */
	int released[2];
	pid_t waiter; /* who waits in the callback: not the child */
	unsigned lines;
};

static void wait_in_callback(void *context, int level, const char *text)
{
	struct waiting *waiting = context;
	char byte = 0;

	(void)level, (void)text;
	waiting->lines++;
	if (getpid() != waiting->waiter)
		return;
	assert_int_equal(write(waiting->entered[1], &byte, 1), 1);
	assert_int_equal(read(waiting->released[0], &byte, 1), 1);
}

static void *log_one_line(void *context)
{
	kvc_log(KVC_LOG_ERROR, "a line");
	return context;
}

/* The child's end; what hangs is ended by the alarm that it began with. */
static void expect_exit(pid_t child, int code)
{
	int status;

	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), code);
}

static void count_line(void *context, int level, const char *text)
{
	(void)level, (void)text;
	++*(unsigned *)context;
}

/* The callback is kept, may be replaced, and may be taken away. Returns how many lines came. */
static unsigned use_the_log(unsigned *kept)
{
	const unsigned before = *kept;
	unsigned own = 0;

	kvc_log(KVC_LOG_ERROR, "to the parent's callback");
	kvc_log_set(count_line, &own, KVC_LOG_ERROR);
	kvc_log(KVC_LOG_ERROR, "to the child's own");
	kvc_log_set(NULL, NULL, KVC_LOG_ERROR);
	kvc_log(KVC_LOG_ERROR, "to nobody");
	return *kept - before + own;
}

static void a_child_sets_the_callback_while_its_parents_runs(void **state)
{
	struct waiting waiting = { .waiter = getpid() };
	pthread_t thread;
	char byte = 0;
	pid_t child;

	(void)state;
	assert_int_equal(pipe(waiting.entered), 0);
	assert_int_equal(pipe(waiting.released), 0);
	kvc_log_set(wait_in_callback, &waiting, KVC_LOG_ERROR);
	assert_int_equal(pthread_create(&thread, NULL, log_one_line, NULL), 0);
	assert_int_equal(read(waiting.entered[0], &byte, 1), 1);
	child = fork();
	if (child == 0) {
		(void)alarm(20);
		_exit((int)use_the_log(&waiting.lines));
	}
	assert_int_equal(write(waiting.released[1], &byte, 1), 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	kvc_log_set(NULL, NULL, KVC_LOG_ERROR);
	expect_exit(child, 2);
	for (unsigned i = 0; i < 2; i++) {
		(void)close(waiting.entered[i]);
		(void)close(waiting.released[i]);
	}
}

struct forking {
	pid_t child;
	unsigned lines;
};

static void fork_in_callback(void *context, int level, const char *text)
{
	struct forking *forking = context;

	(void)level, (void)text;
	if (forking->lines++ == 0)
		forking->child = fork();
	if (forking->child == 0)
		(void)alarm(20);
}

static void a_child_that_began_in_the_callback_returns_from_it(void **state)
{
	struct forking forking = { 0 };

	(void)state;
	kvc_log_set(fork_in_callback, &forking, KVC_LOG_ERROR);
	kvc_log(KVC_LOG_ERROR, "a line");
	if (forking.child == 0)
		_exit((int)use_the_log(&forking.lines));
	kvc_log_set(NULL, NULL, KVC_LOG_ERROR);
	expect_exit(forking.child, 2);
}

/* ---------------------------------------------------------------- time and version */

static void times_are_what_their_names_say(void **state)
{
	const struct timespec t = kvc_timespec(UINT64_C(12345678901234567));
	const uint64_t first = kvc_now_ns();

	(void)state;
	assert_int_equal(t.tv_sec, 12345678);
	assert_int_equal(t.tv_nsec, 901234567);
	assert_true(kvc_now_ns() >= first);
	assert_true(kvc_now_ms() >= first / 1000000);
	assert_true(kvc_wall_ns() / 1000000000 - (int64_t)time(NULL) <= 1);
}

static void the_version_has_three_numbers(void **state)
{
	unsigned major, minor, patch;

	(void)state;
	assert_int_equal(sscanf(kvc_version(), "%u.%u.%u", &major, &minor, &patch), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_error_is_the_threads_own),
		cmocka_unit_test(lines_up_to_the_level_reach_the_callback),
		cmocka_unit_test(a_place_that_logs_often_is_limited),
		cmocka_unit_test(a_child_sets_the_callback_while_its_parents_runs),
		cmocka_unit_test(a_child_that_began_in_the_callback_returns_from_it),
		cmocka_unit_test(times_are_what_their_names_say),
		cmocka_unit_test(the_version_has_three_numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
