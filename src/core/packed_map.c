/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mapped files, and the SIGBUS handler that keeps a process alive whose mapped file was cut or
 * cannot be read.
 *
 * The handler may run in any thread at any time, so it takes no lock: what is guarded stands in a
 * list of tables that grows at its end and never moves. A slot that changes while the handler reads
 * it is none that a thread may fault in, and is passed over.
 */
#include "core/packed_dir.h"

#include "core/log.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GUARDS		 64u /* of one table */
#define HEADER_BYTES_MAX 4096u

struct guard {
	_Atomic uint32_t changes; /* odd: it is being changed */
	_Atomic int protection;
	_Atomic uintptr_t begin; /* 0: not in use */
	_Atomic uintptr_t end;
	_Atomic(atomic_bool *) broken;	      /* or NULL */
	_Atomic(_Atomic uint64_t *) replaced; /* a bit per page */
	bool memory;			      /* of the one who has it */
};

struct guard_table {
	struct guard guards[GUARDS];
	_Atomic(struct guard_table *) next;
};

static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER; /* of those who change the tables */
static struct guard_table guards;
static bool handler_installed;
static uintptr_t page_bytes;
static struct sigaction previous;

void kvc_packed_map_fork_prepare(void)
{
	(void)pthread_mutex_lock(&guard_lock);
}

void kvc_packed_map_fork_done(void)
{
	(void)pthread_mutex_unlock(&guard_lock);
}

/* ---------------------------------------------------------------- the handler */

/* ThreadSanitizer replaces an atomic access to a mapped file by a function that holds a lock of its
 * own while the page fault happens: what it would put into the handler waits for that lock. */
#if defined(__clang__) && __has_attribute(disable_sanitizer_instrumentation)
#define IN_HANDLER __attribute__((disable_sanitizer_instrumentation))
#elif defined(__GNUC__)
#define IN_HANDLER __attribute__((no_sanitize_thread))
#else
#define IN_HANDLER
#endif

/* What the handler needs to know of a guard. */
struct guarded {
	uintptr_t begin;
	uintptr_t end;
	int protection;
	atomic_bool *broken;
	_Atomic uint64_t *replaced;
};

IN_HANDLER static bool read_guard(const struct guard *guard, uintptr_t address, struct guarded *out)
{
	const uint32_t before = atomic_load(&guard->changes);

	*out = (struct guarded){
		.begin = atomic_load(&guard->begin),
		.end = atomic_load(&guard->end),
		.protection = atomic_load(&guard->protection),
		.broken = atomic_load(&guard->broken),
		.replaced = atomic_load(&guard->replaced),
	};
	return (before & 1) == 0 && out->begin != 0 && address >= out->begin &&
	       address < out->end && atomic_load(&guard->changes) == before;
}

/* Zeros in the place of the file. The system call itself: nothing may stand before it that is not
 * made for signal handlers. */
IN_HANDLER static bool map_zeros(uintptr_t at, size_t bytes, int protection)
{
	return syscall(SYS_mmap, at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		       0) == (long)at;
}

IN_HANDLER static bool replace_page(const struct guarded *guarded, uintptr_t address, bool poisoned)
{
	const uintptr_t page = address & ~(page_bytes - 1);
	const size_t number = (page - guarded->begin) / page_bytes;
	const uint64_t bit = UINT64_C(1) << (number % 64);
	_Atomic uint64_t *const word = &guarded->replaced[number / 64];

	/* Two threads may fault at once. What the first one writes into the new page stays: the
	 * other one goes on, and faults again as long as the page is not there. */
	if ((atomic_fetch_or(word, bit) & bit) != 0 && !poisoned)
		return true;
	if (guarded->broken)
		atomic_store(guarded->broken, true);
	/* Too many mappings to split one more: then all of it at once, which joins them. */
	if (map_zeros(page, page_bytes, guarded->protection) ||
	    map_zeros(guarded->begin, guarded->end - guarded->begin, guarded->protection))
		return true;
	(void)atomic_fetch_and(word, ~bit);
	return false;
}

/* Whether the fault was in a guarded mapping, and its page is there now. */
IN_HANDLER static bool handle_fault(const siginfo_t *info)
{
	const uintptr_t address = (uintptr_t)info->si_addr;
	struct guarded guarded;

	/* Sent by a process, or an address that is not aligned: no page is missing. */
	if (info->si_code <= 0 || info->si_code == BUS_ADRALN)
		return false;
	for (const struct guard_table *table = &guards; table;
	     table = atomic_load_explicit(&table->next, memory_order_acquire))
		for (size_t i = 0; i < GUARDS; i++)
			if (read_guard(&table->guards[i], address, &guarded))
				return replace_page(&guarded, address, info->si_code != BUS_ADRERR);
	return false;
}

/* The default ends the process: by the fault itself, which happens again, or by the signal. */
IN_HANDLER static void default_action(const siginfo_t *info)
{
	struct sigaction action = { .sa_handler = SIG_DFL };

	(void)sigemptyset(&action.sa_mask);
	(void)sigaction(SIGBUS, &action, NULL);
	if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO)
		(void)raise(SIGBUS);
}

IN_HANDLER static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
	const int error = errno;

	if (handle_fault(info)) {
		errno = error;
		return;
	}
	errno = error;
	if (previous.sa_flags & SA_SIGINFO)
		previous.sa_sigaction(signal_number, info, context);
	else if (previous.sa_handler == SIG_IGN && info->si_code <= 0)
		return; /* a fault cannot be ignored */
	else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN)
		default_action(info);
	else
		previous.sa_handler(signal_number);
}

/* The lock is held. Once: a handler that was put in front of this one later, and that calls it,
 * must not become the one that this one calls. */
static int install_handler(void)
{
	struct sigaction action = { .sa_sigaction = on_sigbus };

	if (handler_installed)
		return 0;
	page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	if (sigaction(SIGBUS, NULL, &previous) != 0)
		return -errno;
	action.sa_mask = previous.sa_mask;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK | (previous.sa_flags & (SA_NODEFER | SA_RESTART));
	if (sigaction(SIGBUS, &action, NULL) != 0)
		return -errno;
	handler_installed = true;
	return 0;
}

/* ---------------------------------------------------------------- guards */

/* The lock is held. */
static struct guard *free_guard(void)
{
	struct guard_table *table = &guards;

	for (;;) {
		struct guard_table *next;

		for (size_t i = 0; i < GUARDS; i++)
			if (atomic_load(&table->guards[i].begin) == 0)
				return &table->guards[i];
		next = atomic_load(&table->next);
		if (!next) {
			next = calloc(1, sizeof(*next));
			if (!next)
				return NULL;
			atomic_store_explicit(&table->next, next, memory_order_release);
		}
		table = next;
	}
}

static size_t whole_pages(uint64_t bytes)
{
	return (bytes + page_bytes - 1) & ~(page_bytes - 1);
}

static int guard_add(void *memory, uint64_t bytes, int protection, atomic_bool *broken,
		     struct guard **out)
{
	const size_t mapped = whole_pages(bytes), words = mapped / page_bytes / 64 + 1;
	_Atomic uint64_t *replaced = calloc(words, sizeof(*replaced));
	struct guard *guard;

	if (!replaced)
		return -ENOMEM;
	(void)pthread_mutex_lock(&guard_lock);
	guard = free_guard();
	if (guard) {
		(void)atomic_fetch_add(&guard->changes, 1);
		atomic_store(&guard->end, (uintptr_t)memory + mapped);
		atomic_store(&guard->protection, protection);
		atomic_store(&guard->broken, broken);
		atomic_store(&guard->replaced, replaced);
		atomic_store(&guard->begin, (uintptr_t)memory);
		(void)atomic_fetch_add(&guard->changes, 1);
	}
	(void)pthread_mutex_unlock(&guard_lock);
	if (!guard) {
		free(replaced);
		return -ENOMEM;
	}
	*out = guard;
	return 0;
}

/* Nothing of it is in use, so no handler that is running has found it. */
static void guard_remove(struct guard *guard)
{
	_Atomic uint64_t *replaced;

	(void)pthread_mutex_lock(&guard_lock);
	(void)atomic_fetch_add(&guard->changes, 1);
	replaced = atomic_exchange(&guard->replaced, NULL);
	atomic_store(&guard->broken, NULL);
	atomic_store(&guard->begin, 0);
	(void)atomic_fetch_add(&guard->changes, 1);
	(void)pthread_mutex_unlock(&guard_lock);
	free(replaced);
}

/* ---------------------------------------------------------------- create */

static int create(struct kvc_packed_dir *dir, const char *name, bool named,
		  const struct kvc_mapfile_kind *kind, uint8_t *header)
{
	struct kvc_packed_draft draft;
	int rc = kvc_packed_dir_draft(dir, name, named, &draft);

	if (rc < 0)
		return rc;
	rc = kvc_mapfile_fill(draft.fd, kvc_packed_dir_file_mode(dir), kind, header);
	if (rc == 0)
		rc = kvc_packed_dir_publish(dir, name, &draft);
	kvc_packed_dir_drop(&draft);
	return rc;
}

int kvc_packed_map_create(struct kvc_packed_dir *dir, const char *name,
			  const struct kvc_mapfile_kind *kind, uint8_t *header)
{
	int rc;

	if (kind->header_bytes > HEADER_BYTES_MAX || kind->file_bytes < kind->header_bytes)
		return -EINVAL;
	rc = create(dir, name, false, kind, header);
	return rc == -ENOENT ? create(dir, name, true, kind, header) : rc;
}

/* ---------------------------------------------------------------- open */

/* The kind with the size that the header tells; whether that is right, the check says. */
static int kind_of_file(int fd, struct kvc_mapfile_kind *kind)
{
	struct kvc_mapfile_header common;
	ssize_t n;

	if (kind->file_bytes != 0)
		return 0;
	do {
		n = pread(fd, &common, sizeof(common), 0);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	if ((size_t)n < sizeof(common))
		return -ENOMSG;
	kind->file_bytes = le64toh(common.file_bytes);
	return 0;
}

static int map_file(int fd, uint64_t bytes, unsigned flags, bool memory_file, atomic_bool *broken,
		    struct kvc_packed_map *out)
{
	const int protection = flags & KVC_PACKED_MAP_READ_ONLY ? PROT_READ :
								  PROT_READ | PROT_WRITE;
	const int kind = flags & KVC_PACKED_MAP_PRIVATE ? MAP_PRIVATE : MAP_SHARED;
	struct guard *guard;
	void *memory;
	int rc;

	(void)pthread_mutex_lock(&guard_lock);
	rc = install_handler();
	(void)pthread_mutex_unlock(&guard_lock);
	if (rc < 0)
		return rc;
	memory = mmap(NULL, bytes, protection, kind, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	rc = guard_add(memory, bytes, protection, broken, &guard);
	if (rc < 0) {
		(void)munmap(memory, bytes);
		return rc;
	}
	guard->memory = memory_file;
	out->memory = memory;
	out->bytes = bytes;
	out->fd = fd;
	out->guard = guard;
	return 0;
}

int kvc_packed_map_open(struct kvc_packed_dir *dir, const char *name,
			const struct kvc_mapfile_kind *kind, uint8_t *header, unsigned flags,
			atomic_bool *broken, struct kvc_packed_map *out)
{
	const bool shared_writes = !(flags & (KVC_PACKED_MAP_READ_ONLY | KVC_PACKED_MAP_PRIVATE));
	struct kvc_mapfile_kind actual = *kind;
	uint8_t checked[HEADER_BYTES_MAX];
	int fd, rc;

	if (kind->header_bytes > sizeof(checked))
		return -EINVAL;
	rc = kvc_packed_dir_file(dir, name, shared_writes ? O_RDWR : O_RDONLY, &fd);
	if (rc < 0)
		return rc;
	rc = kind_of_file(fd, &actual);
	if (rc == 0)
		rc = kvc_mapfile_check(fd, &actual, checked);
	if (rc == 0 && actual.file_bytes < actual.header_bytes)
		rc = -EBADMSG;
	if (rc == 0)
		rc = map_file(fd, actual.file_bytes, flags, kvc_packed_dir_is_memory(dir), broken,
			      out);
	if (rc < 0) {
		(void)close(fd);
		return rc;
	}
	if (header)
		memcpy(header, checked, kind->header_bytes);
	return 0;
}

void kvc_packed_map_close_fd(struct kvc_packed_map *map)
{
	if (!map->memory || map->fd < 0)
		return;
	(void)close(map->fd);
	map->fd = -1;
}

void kvc_packed_map_close(struct kvc_packed_map *map)
{
	if (!map->memory)
		return;
	guard_remove(map->guard);
	(void)munmap(map->memory, map->bytes);
	kvc_packed_map_close_fd(map);
	*map = (struct kvc_packed_map){ .fd = -1 };
}

bool kvc_packed_map_removed(const struct kvc_packed_map *map)
{
	const struct guard *const guard = map->guard;
	atomic_bool *const broken = atomic_load(&guard->broken);
	struct stat st;

	if (fstat(map->fd, &st) != 0)
		return false;
	if (broken && (uint64_t)st.st_size < map->bytes)
		atomic_store(broken, true);
	return guard->memory ? kvc_packed_memory_removed(st.st_mode) : st.st_nlink == 0;
}
