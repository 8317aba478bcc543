/* SPDX-License-Identifier: Apache-2.0 */
#include "buffers.h"

#include "posix.h"
#include "table.h"

#include <errno.h>
#include <liburing.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMBERS_SHARED 32u /* bits of posix_piece.held */
#define MEMBERS_OWN    2u  /* each costs the kernel about 5 MiB per GiB */
/* Pages are made in steps: a step keeps the memory map of the process locked. */
#define FAULT_BYTES    (UINT64_C(4) << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct posix_buffers {
	const struct kvc_host *host;
	pthread_mutex_t lock;
	pthread_cond_t work; /* there is something for the thread */
	pthread_cond_t done; /* the thread has ended a step */
	struct posix_region *first;
	struct posix_region **last;
	bool refused; /* it could not be started */
	bool stop;
	bool shared;		      /* the ring pins, and members get copies */
	struct posix_region *current; /* the thread is at this memory */
	_Atomic pid_t owner; /* of the thread, or 0: there is none. A forked child has none */
	pthread_t thread;
	struct io_uring ring;
	struct io_uring trial; /* pins a page of memory that is to be registered */
	uint32_t taken;	       /* bit m: there is a member m */
	uint32_t fresh;	       /* bit m: its ring is to get a table */
	uint32_t prepared;     /* bit m: it has one */
	uint32_t touched;      /* bit m: the thread is at its ring */
	_Atomic uint32_t vacancies;
	int member_fds[MEMBERS_SHARED];
	bool slots[POSIX_PIECES_MAX]; /* taken */
};

/* What the thread does next. */
enum job_kind {
	JOB_NONE,
	JOB_DROP,    /* region */
	JOB_PREPARE, /* member */
	JOB_PIN,     /* piece of region, in the backend's ring */
	JOB_GIVE,    /* piece of region, to member */
};

struct job {
	enum job_kind kind;
	struct posix_region *region;
	uint32_t piece;
	uint32_t member;
};

__attribute__((format(printf, 2, 3))) static void tell(const struct posix_buffers *buffers,
						       const char *format, ...)
{
	char text[256];
	va_list args;

	if (buffers->host->log_debug == NULL)
		return;
	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	buffers->host->log_debug(buffers->host->context, text);
}

/* ---------------------------------------------------------------- the thread */

/* False: the region is not wanted any more. What cannot be made is found by pinning. */
static bool pages_make(struct posix_buffers *buffers, const struct posix_region *region,
		       uintptr_t from, uintptr_t to)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	bool wanted = true;

	from -= from % page;
	while (wanted && from < to) {
		uintptr_t bytes = to - from < FAULT_BYTES ? to - from : FAULT_BYTES;

		bytes = (bytes + page - 1) / page * page;
		if (madvise((void *)from, bytes, MADV_POPULATE_WRITE) != 0)
			break;
		from += bytes;
		pthread_mutex_lock(&buffers->lock);
		wanted = !region->withdrawn && !buffers->stop;
		pthread_mutex_unlock(&buffers->lock);
	}
	return wanted;
}

/* Without the lock. */
static int piece_pin(struct posix_buffers *buffers, const struct posix_region *region,
		     uint32_t piece, int fd)
{
	unsigned char *addr = region->addr + piece * POSIX_PIECE_BYTES;
	uint64_t left = region->bytes - piece * POSIX_PIECE_BYTES;
	uint64_t bytes = left < POSIX_PIECE_BYTES ? left : POSIX_PIECE_BYTES;

	if (!pages_make(buffers, region, (uintptr_t)addr, (uintptr_t)addr + bytes))
		return -ECANCELED;
	return posix_table_pin(fd, region->slot + piece, addr, bytes);
}

/* Takes the region out of all tables. Without the lock for a while: nothing but this thread
 * changes tables, and members cannot leave meanwhile. */
static void region_clear(struct posix_buffers *buffers, struct posix_region *region)
{
	uint32_t members = buffers->prepared;

	for (uint32_t i = 0; i < region->piece_count; i++) {
		atomic_store(&region->pieces[i].held, 0);
		region->pieces[i].pinned = false;
	}
	buffers->touched = members;
	pthread_mutex_unlock(&buffers->lock);
	for (uint32_t m = 0; m < MEMBERS_SHARED; m++) {
		if ((members & (1u << m)) != 0)
			posix_table_clear(buffers->member_fds[m], region->slot,
					  region->piece_count);
	}
	if (buffers->shared)
		posix_table_clear(buffers->ring.ring_fd, region->slot, region->piece_count);
	pthread_mutex_lock(&buffers->lock);
	buffers->touched = 0;
}

static void slots_set(struct posix_buffers *buffers, uint32_t slot, uint32_t count, bool taken)
{
	for (uint32_t i = 0; i < count; i++)
		buffers->slots[slot + i] = taken;
}

static void region_free(struct posix_buffers *buffers, struct posix_region **link)
{
	struct posix_region *region = *link;

	*link = region->next;
	if (buffers->last == &region->next)
		buffers->last = link;
	slots_set(buffers, region->slot, region->piece_count, false);
	free(region);
}

static void job_drop(struct posix_buffers *buffers, struct posix_region *region)
{
	struct posix_region **link = &buffers->first;

	region_clear(buffers, region);
	while (*link != region)
		link = &(*link)->next;
	region_free(buffers, link);
}

/* The region goes unregistered as a whole, so that one sentence describes it. */
static void region_fail(struct posix_buffers *buffers, struct posix_region *region, int error)
{
	region->error = error;
	tell(buffers, "%llu bytes of memory cannot be pinned (%s): their I/O goes unregistered",
	     (unsigned long long)region->bytes, strerror(-error));
	region_clear(buffers, region);
}

static void job_pin(struct posix_buffers *buffers, const struct job *job)
{
	struct posix_region *region = job->region;
	int error;

	buffers->current = region;
	pthread_mutex_unlock(&buffers->lock);
	error = piece_pin(buffers, region, job->piece, buffers->ring.ring_fd);
	pthread_mutex_lock(&buffers->lock);
	buffers->current = NULL;
	if (error == 0)
		region->pieces[job->piece].pinned = true;
	else if (error != -ECANCELED)
		region_fail(buffers, region, error);
}

static void job_give(struct posix_buffers *buffers, const struct job *job)
{
	struct posix_region *region = job->region;
	struct posix_piece *piece = &region->pieces[job->piece];
	const uint32_t slot = region->slot + job->piece;
	const uint32_t bit = 1u << job->member;
	int fd = buffers->member_fds[job->member];
	int error;

	buffers->current = region;
	buffers->touched = bit;
	pthread_mutex_unlock(&buffers->lock);
	error = buffers->shared ? posix_table_copy_slot(buffers->ring.ring_fd, fd, slot) :
				  piece_pin(buffers, region, job->piece, fd);
	pthread_mutex_lock(&buffers->lock);
	buffers->current = NULL;
	buffers->touched = 0;
	piece->tried |= bit;
	if (error == 0)
		atomic_fetch_or_explicit(&piece->held, bit, memory_order_release);
	else if (!buffers->shared && error != -ECANCELED)
		region_fail(buffers, region, error);
}

/* What a new table has, or why it has nothing. */
static void member_mark(struct posix_buffers *buffers, uint32_t bit, int error)
{
	for (struct posix_region *region = buffers->first; region; region = region->next) {
		for (uint32_t i = 0; i < region->piece_count; i++) {
			struct posix_piece *piece = &region->pieces[i];

			if (error == 0 && !piece->pinned)
				continue;
			piece->tried |= bit;
			if (error == 0)
				atomic_fetch_or_explicit(&piece->held, bit, memory_order_release);
		}
	}
}

/* A new member gets a table, and in it all that is pinned. */
static void job_prepare(struct posix_buffers *buffers, uint32_t member)
{
	const uint32_t bit = 1u << member;
	int fd = buffers->member_fds[member];
	int error;

	buffers->touched = bit;
	pthread_mutex_unlock(&buffers->lock);
	error = buffers->shared ? posix_table_copy(buffers->ring.ring_fd, fd) :
				  posix_table_make(fd);
	pthread_mutex_lock(&buffers->lock);
	buffers->touched = 0;
	if (error != 0)
		tell(buffers, "a queue cannot have registered buffers: %s", strerror(-error));
	/* Or it is about to leave. */
	if ((buffers->fresh & bit) == 0)
		return;
	buffers->fresh &= ~bit;
	if (error == 0)
		buffers->prepared |= bit;
	member_mark(buffers, bit, error);
}

/* The first thing to do for a region that is wanted. */
static bool region_job(const struct posix_buffers *buffers, struct posix_region *region,
		       struct job *job)
{
	for (uint32_t i = 0; i < region->piece_count; i++) {
		const struct posix_piece *piece = &region->pieces[i];
		uint32_t missing = buffers->prepared & ~piece->tried;

		job->region = region;
		job->piece = i;
		job->kind = JOB_PIN;
		if (buffers->shared && !piece->pinned)
			return true;
		job->kind = JOB_GIVE;
		job->member = missing != 0 ? (uint32_t)__builtin_ctz(missing) : 0;
		if (missing != 0)
			return true;
	}
	return false;
}

static struct job job_find(const struct posix_buffers *buffers)
{
	struct job job = { .kind = JOB_NONE };

	for (struct posix_region *region = buffers->first; region; region = region->next) {
		if (region->withdrawn)
			return (struct job){ .kind = JOB_DROP, .region = region };
	}
	if (buffers->fresh != 0)
		return (struct job){ .kind = JOB_PREPARE,
				     .member = (uint32_t)__builtin_ctz(buffers->fresh) };
	for (struct posix_region *region = buffers->first; region; region = region->next) {
		if (region->error == 0 && region_job(buffers, region, &job))
			return job;
	}
	return (struct job){ .kind = JOB_NONE };
}

static void *buffers_main(void *argument)
{
	struct posix_buffers *buffers = argument;

	pthread_mutex_lock(&buffers->lock);
	while (!buffers->stop) {
		struct job job = job_find(buffers);

		switch (job.kind) {
		case JOB_NONE:
			pthread_cond_wait(&buffers->work, &buffers->lock);
			continue;
		case JOB_DROP:
			job_drop(buffers, job.region);
			break;
		case JOB_PREPARE:
			job_prepare(buffers, job.member);
			break;
		case JOB_PIN:
			job_pin(buffers, &job);
			break;
		case JOB_GIVE:
			job_give(buffers, &job);
			break;
		}
		pthread_cond_broadcast(&buffers->done);
	}
	pthread_mutex_unlock(&buffers->lock);
	return NULL;
}

/* ---------------------------------------------------------------- life */

int posix_buffers_create(const struct kvc_host *host, struct posix_buffers **out)
{
	struct posix_buffers *buffers = calloc(1, sizeof(*buffers));

	if (buffers == NULL)
		return -ENOMEM;
	buffers->host = host;
	buffers->last = &buffers->first;
	pthread_mutex_init(&buffers->lock, NULL);
	pthread_cond_init(&buffers->work, NULL);
	pthread_cond_init(&buffers->done, NULL);
	*out = buffers;
	return 0;
}

/* A forked child has no thread, nor can it know in which state it got the lock. */
static bool is_foreign(const struct posix_buffers *buffers)
{
	pid_t owner = atomic_load(&buffers->owner);

	return owner != 0 && owner != getpid();
}

void posix_buffers_destroy(struct posix_buffers *buffers)
{
	if (buffers == NULL || is_foreign(buffers))
		return;
	if (atomic_load(&buffers->owner) != 0) {
		pthread_mutex_lock(&buffers->lock);
		buffers->stop = true;
		pthread_cond_signal(&buffers->work);
		pthread_mutex_unlock(&buffers->lock);
		pthread_join(buffers->thread, NULL);
		/* At once: closing the ring would do it at some time later. */
		posix_table_end(buffers->ring.ring_fd);
		io_uring_queue_exit(&buffers->ring);
		io_uring_queue_exit(&buffers->trial);
	}
	while (buffers->first != NULL)
		region_free(buffers, &buffers->first);
	pthread_cond_destroy(&buffers->done);
	pthread_cond_destroy(&buffers->work);
	pthread_mutex_destroy(&buffers->lock);
	free(buffers);
}

/* The thread takes no signals: those are for the program's own. */
static int thread_start(struct posix_buffers *buffers)
{
	sigset_t all;
	sigset_t before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = -pthread_create(&buffers->thread, NULL, buffers_main, buffers);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

static int buffers_start(struct posix_buffers *buffers)
{
	int error = buffers->refused ? -ENOTSUP : 0;

	if (error != 0 || atomic_load(&buffers->owner) != 0)
		return error;
	error = io_uring_queue_init(1, &buffers->ring, 0);
	if (error != 0)
		goto refuse;
	error = io_uring_queue_init(1, &buffers->trial, 0);
	if (error != 0)
		goto close_ring;
	error = posix_table_make(buffers->ring.ring_fd);
	if (error != 0)
		goto close_trial;
	buffers->shared = posix_table_copies(buffers->ring.ring_fd);
	atomic_store(&buffers->vacancies, buffers->shared ? MEMBERS_SHARED : MEMBERS_OWN);
	error = thread_start(buffers);
	if (error != 0)
		goto close_trial;
	atomic_store(&buffers->owner, getpid());
	return 0;

close_trial:
	io_uring_queue_exit(&buffers->trial);
close_ring:
	io_uring_queue_exit(&buffers->ring);
refuse:
	/* What may be otherwise the next time is the caller's to know. */
	if (error != -EINVAL && error != -ENOSYS)
		return error;
	buffers->refused = true;
	tell(buffers, "memory is not registered: this kernel has no tables of buffers (5.19 has)");
	return -ENOTSUP;
}

/* ---------------------------------------------------------------- regions */

static bool may_lock_any(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	return syscall(SYS_capget, &header, data) == 0 &&
	       (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

static uint64_t bytes_pinned(const struct posix_buffers *buffers)
{
	uint64_t bytes = 0;

	for (const struct posix_region *region = buffers->first; region; region = region->next)
		bytes += region->withdrawn || region->error != 0 ? 0 : region->bytes;
	return bytes;
}

/* Asked before, since the kernel makes all pages before it looks at the limit. */
static int limit_check(const struct posix_buffers *buffers, uint64_t bytes)
{
	const uint64_t others = bytes_pinned(buffers);
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
	    (bytes <= limit.rlim_cur && others <= limit.rlim_cur - bytes) || may_lock_any())
		return 0;
	posix_reason(buffers->host,
		     "%llu bytes cannot be pinned beside %llu others: the limit of locked memory "
		     "(RLIMIT_MEMLOCK, ulimit -l) is %llu bytes",
		     (unsigned long long)bytes, (unsigned long long)others,
		     (unsigned long long)limit.rlim_cur);
	return -ENOMEM;
}

/* Both ends: memory that cannot be pinned at all is refused while somebody listens. */
static int ends_check(const struct posix_buffers *buffers, const struct kvc_memory *memory)
{
	int error = posix_table_try(buffers->trial.ring_fd, memory->addr, memory->bytes);

	if (error != 0)
		posix_reason(buffers->host, "the kernel cannot pin this memory: %s",
			     strerror(-error));
	return error;
}

static int slots_take(struct posix_buffers *buffers, uint32_t count, uint32_t *out)
{
	uint32_t run = 0;

	for (uint32_t i = 0; i < POSIX_PIECES_MAX; i++) {
		run = buffers->slots[i] ? 0 : run + 1;
		if (run < count)
			continue;
		*out = i + 1 - count;
		slots_set(buffers, *out, count, true);
		return 0;
	}
	posix_reason(buffers->host, "more than %u pieces of %llu MiB are registered",
		     POSIX_PIECES_MAX, (unsigned long long)(POSIX_PIECE_BYTES >> 20));
	return -ENOSPC;
}

static int region_add(struct posix_buffers *buffers, const struct kvc_memory *memory,
		      struct posix_region **out)
{
	uint64_t pieces = (memory->bytes - 1) / POSIX_PIECE_BYTES + 1;
	uint32_t count = pieces <= POSIX_PIECES_MAX ? (uint32_t)pieces : POSIX_PIECES_MAX + 1;
	struct posix_region *region;
	int error = limit_check(buffers, memory->bytes);

	if (error != 0)
		return error;
	region = calloc(1, sizeof(*region) + count * sizeof(region->pieces[0]));
	if (region == NULL)
		return -ENOMEM;
	error = slots_take(buffers, count, &region->slot);
	if (error != 0)
		goto free_region;
	error = ends_check(buffers, memory);
	if (error != 0)
		goto free_slots;
	region->addr = memory->addr;
	region->bytes = memory->bytes;
	region->piece_count = count;
	*buffers->last = region;
	buffers->last = &region->next;
	*out = region;
	return 0;

free_slots:
	slots_set(buffers, region->slot, count, false);
free_region:
	free(region);
	return error;
}

int posix_buffers_register(struct posix_buffers *buffers, const struct kvc_memory *memory,
			   uint64_t *out_registration)
{
	struct posix_region *region;
	int error;

	if (memory->addr == NULL || memory->bytes == 0)
		return -EINVAL;
	if (memory->kind != KVC_MEMORY_HOST || is_foreign(buffers))
		return -ENOTSUP;
	pthread_mutex_lock(&buffers->lock);
	error = buffers_start(buffers);
	if (error == 0)
		error = region_add(buffers, memory, &region);
	if (error == 0) {
		*out_registration = (uintptr_t)region;
		pthread_cond_signal(&buffers->work);
	}
	pthread_mutex_unlock(&buffers->lock);
	return error;
}

int posix_buffers_deregister(struct posix_buffers *buffers, uint64_t registration)
{
	struct posix_region *region = (struct posix_region *)(uintptr_t)registration;
	struct posix_region *known;

	if (is_foreign(buffers))
		return 0;
	pthread_mutex_lock(&buffers->lock);
	known = buffers->first;
	while (known != NULL && (known != region || known->withdrawn))
		known = known->next;
	if (known != NULL) {
		region->withdrawn = true;
		pthread_cond_signal(&buffers->work);
		/* Its memory may be given back when this returns. */
		while (buffers->current == region)
			pthread_cond_wait(&buffers->done, &buffers->lock);
	}
	pthread_mutex_unlock(&buffers->lock);
	return known != NULL ? 0 : -EINVAL;
}

void posix_buffers_note(struct posix_buffers *buffers, char *out, size_t bytes)
{
	uint32_t failed = 0;
	uint32_t all = 0;
	int error = 0;

	out[0] = '\0';
	if (is_foreign(buffers))
		return;
	pthread_mutex_lock(&buffers->lock);
	for (struct posix_region *region = buffers->first; region; region = region->next) {
		if (region->withdrawn)
			continue;
		all++;
		failed += region->error != 0;
		error = region->error != 0 ? region->error : error;
	}
	pthread_mutex_unlock(&buffers->lock);
	if (failed > 0)
		(void)snprintf(out, bytes,
			       "%u of %u memory regions cannot be pinned (%s): their I/O goes "
			       "unregistered",
			       failed, all, strerror(-error));
}

/* ---------------------------------------------------------------- members */

int posix_buffers_join(struct posix_buffers *buffers, int ring_fd)
{
	const uint32_t count = buffers->shared ? MEMBERS_SHARED : MEMBERS_OWN;
	int member = -1;

	if (atomic_load_explicit(&buffers->vacancies, memory_order_relaxed) == 0 ||
	    is_foreign(buffers))
		return -1;
	pthread_mutex_lock(&buffers->lock);
	for (uint32_t m = 0; m < count && member < 0; m++) {
		if ((buffers->taken & (1u << m)) == 0)
			member = (int)m;
	}
	if (member >= 0) {
		buffers->taken |= 1u << member;
		buffers->fresh |= 1u << member;
		buffers->member_fds[member] = ring_fd;
		atomic_fetch_sub(&buffers->vacancies, 1);
		pthread_cond_signal(&buffers->work);
	}
	pthread_mutex_unlock(&buffers->lock);
	return member;
}

void posix_buffers_leave(struct posix_buffers *buffers, int member)
{
	const uint32_t bit = 1u << member;

	if (is_foreign(buffers))
		return;
	pthread_mutex_lock(&buffers->lock);
	/* From here on the thread begins nothing at this ring. */
	buffers->fresh &= ~bit;
	buffers->prepared &= ~bit;
	while ((buffers->touched & bit) != 0)
		pthread_cond_wait(&buffers->done, &buffers->lock);
	for (struct posix_region *region = buffers->first; region; region = region->next) {
		for (uint32_t i = 0; i < region->piece_count; i++) {
			region->pieces[i].tried &= ~bit;
			atomic_fetch_and(&region->pieces[i].held, ~bit);
		}
	}
	posix_table_end(buffers->member_fds[member]);
	buffers->taken &= ~bit;
	atomic_fetch_add(&buffers->vacancies, 1);
	pthread_mutex_unlock(&buffers->lock);
}
