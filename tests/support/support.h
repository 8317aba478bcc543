/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the store share: folders, configurations, pools whose bytes follow from the
 * key, batches whose results are checked for form, log lines, processes and mounts.
 *
 * A helper that finds something wrong fails the running cmocka test; outside of one it ends the
 * program.
 */
#ifndef KVC_TESTS_SUPPORT_H
#define KVC_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvcellar/kvcellar.h>

#include <stdbool.h>
#include <sys/types.h>

/* ---------------------------------------------------------------- programs and chance */

/* First thing in main(): forgets kvcellar's environment but for the plugins' folder, makes folders
 * go away at the end, and prints the seed. */
void support_begin(void);

/* Prints "SKIP: reason" and ends with 77. */
__attribute__((noreturn, format(printf, 1, 2))) void support_skip(const char *format, ...);
/* Prints "skipped: reason" and ends the running test, which counts as skipped. */
__attribute__((format(printf, 1, 2))) void support_skip_test(const char *format, ...);

/* True in a soak run: take more time. */
bool support_soak(void);
/* True under a sanitizer, whose memory and speed are other. */
bool support_sanitized(void);
bool support_thread_sanitized(void);

/* The I/O engines of posix, and how many of them a test may use: ThreadSanitizer cannot follow the
 * threads of the last one, POSIX AIO, which the C library makes. */
extern const char *const engines[4];
size_t engines_count(void);

/* KVC_TEST_SEED, or one of the moment. */
uint64_t seed_get(void);
struct chance {
	uint64_t state;
};
uint64_t chance_next(struct chance *chance);
uint64_t chance_below(struct chance *chance, uint64_t limit);
/* A well mixed function of two numbers. */
uint64_t mix(uint64_t a, uint64_t b);

uint64_t now_ms(void);
void sleep_ms(unsigned milliseconds);

/* ---------------------------------------------------------------- folders and files */

/* A new empty folder under $TMPDIR, removed when the program ends. */
const char *folder_new(const char *label);
/* Removes the folder with all that is in it; what is absent is no error. */
void folder_remove(const char *path);
/* Files below path whose name begins with prefix ("" = all). */
size_t folder_count(const char *path, const char *prefix);
/* A number that changes with every name, size, mode, change time or content below path. */
uint64_t folder_digest(const char *path);
void folder_copy(const char *from, const char *to);
bool file_exists(const char *path);
void file_write(const char *path, const void *data, size_t bytes);
/* *out is for free(). */
size_t file_read(const char *path, unsigned char **out);
/* Turns some bits of one byte over. */
void file_flip(const char *path, off_t at, unsigned char bits);

/* ---------------------------------------------------------------- the store under test */

#define SETUP_SETTINGS 12

/* How a store is opened. NULL and 0 = the default. */
struct setup {
	const char *plugin;
	const char *lower;  /* fault: the plugin below */
	const char *engine; /* posix: the one I/O engine that is demanded */
	const char *naming;
	const char *rules;  /* fault */
	const char *roots;  /* comma list */
	const char *layout; /* NULL: files, "": what the library chooses */
	bool buffered;
	uint32_t flags;				  /* enum kvc_open_flag */
	const char *settings[SETUP_SETTINGS + 1]; /* "path=value" */
};

int setup_open(const struct setup *setup, struct kvc_store **out);
struct kvc_store *setup_must_open(const struct setup *setup);
void store_must_close(struct kvc_store *store);
/* The stats of a store. */
struct kvc_stats store_stats(struct kvc_store *store);
/* kvc_store_describe() as text, for free(). */
char *store_text(struct kvc_store *store, int format);

/* A model with 4 tokens a page, of one rank. */
struct kvc_namespace_params namespace_params(const char *model);
struct kvc_namespace *namespace_must_open(struct kvc_store *store,
					  const struct kvc_namespace_params *params);

/* ---------------------------------------------------------------- keys and pages */

struct keys {
	struct kvc_key *keys;
	char (*text)[65];
	size_t count;
};

/* count keys of 64 hex digits, made from the label. */
void keys_make(struct keys *keys, const char *label, size_t count);
void keys_free(struct keys *keys);
struct kvc_key key_of(const char *text);
/* Which bytes belong to a key. */
uint64_t key_content(struct kvc_key key);

#define PAGES_PARTS 8u

struct pages_params {
	const char *name; /* of the pool; NULL = kv */
	size_t count;
	uint32_t part_count; /* 0 = 1 */
	uint32_t flags;	     /* enum kvc_pool_flag */
	uint64_t part_bytes[PAGES_PARTS];
	uint64_t misalign; /* bytes past a 4096 boundary */
	bool packed;	   /* pages back to back, no gaps */
	uint32_t per_rank;
};

/* A pool of explicit pages in memory of its own. The gaps between pages show stray writes. */
struct pages {
	struct kvc_pool *pool;
	unsigned char *memory;
	size_t memory_bytes;
	size_t count;
	uint32_t part_count;
	uint64_t part_bytes[PAGES_PARTS];
	uint64_t part_stride[PAGES_PARTS];
	unsigned char *part_base[PAGES_PARTS];
};

void pages_open(struct pages *pages, struct kvc_namespace *ns, const struct pages_params *params);
void pages_close(struct pages *pages);
/* One part of that many bytes a page, pool kv. */
void pages_open_simple(struct pages *pages, struct kvc_namespace *ns, size_t count, uint64_t bytes);
void pages_fill(struct pages *pages, size_t index, uint64_t content);
/* Fills page i for key i. */
void pages_fill_keys(struct pages *pages, const struct kvc_key *keys, size_t count);
/* All bytes to 0xAA. */
void pages_wipe(struct pages *pages);
bool pages_match(const struct pages *pages, size_t index, uint64_t content);
/* Whether a page is all 0xAA. */
bool pages_untouched(const struct pages *pages, size_t index);
/* Fails the test when anything between pages is not 0xAA any more. */
void pages_check_gaps(const struct pages *pages);
uint64_t pages_page_bytes(const struct pages *pages);

void bytes_fill(void *to, size_t bytes, uint64_t content);
/* Prints where it differs first. */
bool bytes_match(const void *data, size_t bytes, uint64_t content);

/* ---------------------------------------------------------------- batches */

/* Runs one transfer on pages 0..count-1; indices NULL = page i for key i. Fails the test unless
 * each page has a result and the counts of the transfer agree with them. */
void batch(struct kvc_store *store, struct pages *pages, int op, const struct kvc_key *keys,
	   size_t count, uint32_t flags, struct kvc_result *results);
void batch_at(struct kvc_store *store, struct pages *pages, int op, const struct kvc_key *keys,
	      const int64_t *indices, size_t count, uint32_t flags, uint32_t timeout_ms,
	      struct kvc_result *results);
/* The transfer that batch_at() runs, for callers that run several at once. */
struct kvc_transfer transfer_of(struct pages *pages, int op, const struct kvc_key *keys,
				size_t count, const int64_t *indices, struct kvc_result *results);
void transfer_check(const struct kvc_transfer *transfer);

#define expect_result(result, status, cause) \
	expect_result_at((result), (status), (cause), __FILE__, __LINE__)
#define expect_all(results, count, status) \
	expect_all_at((results), (count), (status), __FILE__, __LINE__)
/* cause < 0: any */
void expect_result_at(struct kvc_result result, int status, int cause, const char *file, int line);
void expect_all_at(const struct kvc_result *results, size_t count, int status, const char *file,
		   int line);
size_t count_status(const struct kvc_result *results, size_t count, int status);

/* One key: the result. The page used is number 0. */
struct kvc_result do_set(struct kvc_store *store, struct pages *pages, struct kvc_key key,
			 uint32_t flags);
/* The page is wiped before; when it is OK, its bytes must be the key's. */
struct kvc_result do_get(struct kvc_store *store, struct pages *pages, struct kvc_key key);
struct kvc_result do_exists(struct kvc_store *store, struct pages *pages, struct kvc_key key);
struct kvc_result do_remove(struct kvc_store *store, struct pages *pages, struct kvc_key key);

/* snprintf() that fails the test when the text does not fit. */
__attribute__((format(printf, 3, 4))) void text_make(char *out, size_t bytes, const char *format,
						     ...);

/* Path of object number `number` of a page, in *out; false when there are fewer. */
#define PATH_BYTES 4200
bool page_path(struct kvc_pool *pool, struct kvc_key key, size_t number, char out[PATH_BYTES]);
/* Removes all objects of a page behind the store's back. */
void page_unlink(struct kvc_pool *pool, struct kvc_key key);

/* ---------------------------------------------------------------- log lines */

/* From now on lines are kept. */
void log_capture(void);
/* How many lines of that level or graver have both texts in them; NULL = any. */
size_t log_count(int level, const char *a, const char *b);
void log_forget(void);
/* Prints what was kept. */
void log_show(void);

/* ---------------------------------------------------------------- processes and mounts */

size_t descriptor_count(void);
size_t thread_count(void);

/* Runs fn(context) in a child process, which ends with what it returns. Fork before opening a
 * store. */
pid_t child_start(int (*fn)(void *context), void *context);
/* Exit code, or 256 + signal. Fails the test when it takes more than two minutes. */
int child_wait(pid_t pid);
/* Exit code of a program; its output goes to ours. */
int run_program(const char *const *arguments);
bool have_program(const char *name);

/* A mount namespace of our own; ends the program with a skip where that is not allowed. */
void mounts_enter(void);
void mount_tmpfs(const char *path, const char *options);
/* Mounts what is there once more, read-only. */
void mount_read_only(const char *path);
void mount_bind(const char *from, const char *to);
void mount_end(const char *path);

#endif
