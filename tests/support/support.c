/* SPDX-License-Identifier: Apache-2.0 */
/* Programs, chance, time and log lines. */
#include "support/support.h"
#include "support/support_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static uint64_t the_seed;

void support_die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)fprintf(stderr, "test helper: ");
	(void)vfprintf(stderr, format, args);
	(void)fprintf(stderr, "\n");
	va_end(args);
	_exit(99);
}

void text_make(char *out, size_t bytes, const char *format, ...)
{
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(out, bytes, format, args);
	va_end(args);
	if (length < 0 || (size_t)length >= bytes)
		support_die("a text is too long: %s", format);
}

static void environment_clear(void)
{
	char name[128];
	bool again = true;

	while (again) {
		again = false;
		for (char **entry = environ; entry != NULL && *entry != NULL && !again; entry++) {
			size_t bytes = strcspn(*entry, "=");

			if (bytes >= sizeof(name) || (strncmp(*entry, "KVCELLAR_", 9) != 0 &&
						      strncmp(*entry, "SGLANG_HICACHE_", 15) != 0))
				continue;
			(void)snprintf(name, sizeof(name), "%.*s", (int)bytes, *entry);
			if (strcmp(name, "KVCELLAR_PLUGIN_DIR") == 0)
				continue;
			(void)unsetenv(name);
			again = true;
		}
	}
}

void support_begin(void)
{
	const char *given = getenv("KVC_TEST_SEED");
	struct timespec now;

	environment_clear();
	folders_begin();
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	(void)clock_gettime(CLOCK_REALTIME, &now);
	the_seed = (uint64_t)now.tv_nsec ^ ((uint64_t)getpid() << 32);
	if (given != NULL && given[0] != '\0')
		the_seed = strtoull(given, NULL, 10);
	(void)printf("seed: KVC_TEST_SEED=%llu\n", (unsigned long long)the_seed);
}

void support_skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)printf("SKIP: ");
	(void)vprintf(format, args);
	(void)printf("\n");
	va_end(args);
	exit(77);
}

void support_skip_test(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)printf("skipped: ");
	(void)vprintf(format, args);
	(void)printf("\n");
	va_end(args);
	skip();
}

bool support_soak(void)
{
	const char *soak = getenv("KVC_SOAK");

	return soak != NULL && soak[0] != '\0';
}

bool support_sanitized(void)
{
	const char *sanitize = getenv("KVC_SANITIZE");

	return sanitize != NULL && sanitize[0] != '\0';
}

const char *const engines[4] = { "io_uring", "linux_aio", "threads", "posix_aio" };

bool support_thread_sanitized(void)
{
	const char *sanitize = getenv("KVC_SANITIZE");

	return sanitize != NULL && strstr(sanitize, "thread") != NULL;
}

size_t engines_count(void)
{
	return support_thread_sanitized() ? 3 : 4;
}

uint64_t seed_get(void)
{
	return the_seed;
}

uint64_t chance_next(struct chance *chance)
{
	return mix(chance->state++, the_seed);
}

uint64_t chance_below(struct chance *chance, uint64_t limit)
{
	return chance_next(chance) % limit;
}

uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = a + UINT64_C(0x9e3779b97f4a7c15) * (b + 1);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

uint64_t now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

void sleep_ms(unsigned milliseconds)
{
	struct timespec time = { .tv_sec = milliseconds / 1000,
				 .tv_nsec = (long)(milliseconds % 1000) * 1000000 };

	while (nanosleep(&time, &time) != 0 && errno == EINTR)
		;
}

/* ---------------------------------------------------------------- log lines */

#define LINES_MAX 4096u

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char *text;
	int level;
} lines[LINES_MAX];
static size_t line_count;

static void line_keep(void *context, int level, const char *text)
{
	(void)context;
	pthread_mutex_lock(&lines_lock);
	if (line_count < LINES_MAX) {
		lines[line_count].text = strdup(text);
		lines[line_count].level = level;
		line_count += lines[line_count].text != NULL;
	}
	pthread_mutex_unlock(&lines_lock);
}

void log_forget(void)
{
	pthread_mutex_lock(&lines_lock);
	for (size_t i = 0; i < line_count; i++)
		free(lines[i].text);
	line_count = 0;
	pthread_mutex_unlock(&lines_lock);
}

void log_capture(void)
{
	static bool registered;

	log_forget();
	if (!registered)
		(void)atexit(log_forget);
	registered = true;
	kvc_log_set(line_keep, NULL, KVC_LOG_INFO);
}

size_t log_count(int level, const char *a, const char *b)
{
	size_t count = 0;

	pthread_mutex_lock(&lines_lock);
	for (size_t i = 0; i < line_count; i++)
		count += lines[i].level <= level && (a == NULL || strstr(lines[i].text, a)) &&
			 (b == NULL || strstr(lines[i].text, b));
	pthread_mutex_unlock(&lines_lock);
	return count;
}

void log_show(void)
{
	pthread_mutex_lock(&lines_lock);
	for (size_t i = 0; i < line_count; i++)
		(void)printf("log %d: %s\n", lines[i].level, lines[i].text);
	pthread_mutex_unlock(&lines_lock);
}
