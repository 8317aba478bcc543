/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handler may run in any thread at any time, so it takes no lock: what is guarded stands in a
 * list of tables that grows at its end and never moves. A slot that changes while the handler reads
 * it is none that a thread may fault in, and is passed over.
 */
#include "core/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GUARDS 64u /* of one table */

struct kvc_guard {
	_Atomic uint32_t changes; /* odd: it is being changed */
	_Atomic int protection;
	_Atomic uintptr_t begin; /* 0: not in use */
	_Atomic uintptr_t end;
	_Atomic(atomic_bool *) broken;	      /* or NULL */
	_Atomic(_Atomic uint64_t *) replaced; /* a bit per page */
};

struct guard_table {
	struct kvc_guard guards[GUARDS];
	_Atomic(struct guard_table *) next;
};

static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER; /* of those who change the tables */
static struct guard_table guards;
static bool handler_installed;
static uintptr_t page_bytes;
static struct sigaction previous;

void kvc_guard_fork_prepare(void)
{
	(void)pthread_mutex_lock(&guard_lock);
}

void kvc_guard_fork_done(void)
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

IN_HANDLER static bool read_guard(const struct kvc_guard *guard, uintptr_t address,
				  struct guarded *out)
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
static struct kvc_guard *free_guard(void)
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

static size_t words_of(size_t mapped)
{
	return mapped / page_bytes / 64 + 1;
}

int kvc_guard_add(void *memory, uint64_t bytes, int protection, atomic_bool *broken,
		  struct kvc_guard **out)
{
	_Atomic uint64_t *replaced;
	struct kvc_guard *guard;
	size_t mapped;
	int rc;

	(void)pthread_mutex_lock(&guard_lock);
	rc = install_handler();
	(void)pthread_mutex_unlock(&guard_lock);
	if (rc < 0)
		return rc;
	mapped = whole_pages(bytes);
	replaced = calloc(words_of(mapped), sizeof(*replaced));
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

void kvc_guard_renew(struct kvc_guard *guard)
{
	const size_t mapped = atomic_load(&guard->end) - atomic_load(&guard->begin);
	_Atomic uint64_t *const replaced = atomic_load(&guard->replaced);

	for (size_t i = 0; i < words_of(mapped); i++)
		atomic_store(&replaced[i], 0);
}

/* Nothing of it is in use, so no handler that is running has found it. */
void kvc_guard_remove(struct kvc_guard *guard)
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
