/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many processes on one packed root that is smaller than what they store, one after the other of
 * them killed: at a step of the protocol, or at any time. Whatever is read is one version of its
 * key, byte for byte; at the end no slot is lost.
 */
#include "packed.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#define PROCESSES     9u
#define KEYS	      600u /* of each pool; less than half of them have room */
#define BATCH	      12u
#define CAPACITY      "4MiB"
#define QUARANTINE_NS (UINT64_C(300) * 1000000)
#define KILLS	      150u
#define KILLS_SOAK    1200u

static const uint64_t part_bytes[] = { 8192, 20480 };
#define POOLS 2u

/* What the processes count, in memory of all of them. */
struct counts {
	atomic_ullong gets;
	atomic_ullong hits;
	atomic_ullong wrong;
	atomic_ullong sets;
	atomic_ullong stored;
	atomic_ullong refused;
	atomic_ullong errors;
	atomic_ullong corrupt;
	atomic_ullong removed;
	atomic_ullong retired;
};

enum role {
	WRITER,
	READER,
	CHURNER
};

struct work {
	const char *root;
	struct counts *counts;
	enum role role;
	uint64_t number; /* of this start */
	char rules[96];	 /* "": it is killed from outside */
};

struct fix {
	struct kvc_store *store;
	struct kvc_packed *packed;
	struct kvc_namespace *ns;
	struct pages pages[POOLS];
	struct keys keys;
	unsigned char *copy;
};

static const char *const pool_names[POOLS] = { "small", "large" };

static void fix_open(struct fix *fix, const struct work *work)
{
	struct kvc_namespace_params params = namespace_params("torture");
	struct setup setup = {
		.plugin = work->rules[0] ? "fault" : "posix",
		.lower = work->rules[0] ? "posix" : NULL,
		.rules = work->rules[0] ? work->rules : NULL,
		.engine = work->number % 2 ? "io_uring" : "threads",
		.roots = work->root,
		.buffered = true,
		.flags = KVC_OPEN_NO_SELFTEST,
		.settings = { "storage_layout=packed", "min_free=0", "capacity=" CAPACITY,
			      work->number % 3 ? "verify=require" : "verify=off" },
	};

	fix->store = setup_must_open(&setup);
	fix->packed = atomic_load(&fix->store->roots[0]->packed);
	assert_non_null(fix->packed);
	fix->packed->quarantine_ns = QUARANTINE_NS;
	fix->ns = namespace_must_open(fix->store, &params);
	for (unsigned p = 0; p < POOLS; p++) {
		const struct pages_params pages = {
			.name = pool_names[p],
			.count = BATCH,
			.part_bytes = { part_bytes[p] },
		};

		pages_open(&fix->pages[p], fix->ns, &pages);
	}
	keys_make(&fix->keys, "torture", KEYS);
	fix->copy = malloc(part_bytes[POOLS - 1]);
	assert_non_null(fix->copy);
}

static void fix_close(struct fix *fix)
{
	free(fix->copy);
	for (unsigned p = 0; p < POOLS; p++)
		pages_close(&fix->pages[p]);
	assert_int_equal(kvc_namespace_close(fix->ns), 0);
	store_must_close(fix->store);
	keys_free(&fix->keys);
}

/* ---------------------------------------------------------------- pages that tell what they are */

static unsigned char *page_of(struct fix *fix, unsigned pool, size_t index)
{
	return fix->pages[pool].part_base[0] + index * fix->pages[pool].part_stride[0];
}

static void page_make(void *page, unsigned pool, struct kvc_key key, uint64_t version)
{
	bytes_fill(page, part_bytes[pool], mix(key_content(key) + pool, version));
	memcpy(page, &version, sizeof(version));
}

/* Whether it is one version of that key, whole. */
static bool page_is_right(struct fix *fix, unsigned pool, size_t index, struct kvc_key key)
{
	uint64_t version;

	memcpy(&version, page_of(fix, pool, index), sizeof(version));
	page_make(fix->copy, pool, key, version);
	return memcmp(fix->copy, page_of(fix, pool, index), part_bytes[pool]) == 0;
}

/* Keys that lie side by side, as those of a prefix do. */
static const struct kvc_key *some_keys(struct fix *fix, struct chance *chance)
{
	return fix->keys.keys + chance_below(chance, KEYS - BATCH);
}

static void note(struct counts *counts, const struct kvc_result *results)
{
	for (size_t i = 0; i < BATCH; i++) {
		atomic_fetch_add(&counts->refused, results[i].status == KVC_FULL);
		atomic_fetch_add(&counts->corrupt, results[i].status == KVC_CORRUPT);
		if (results[i].status != KVC_ERROR && results[i].status != KVC_DENIED &&
		    results[i].status != KVC_TIMEOUT)
			continue;
		atomic_fetch_add(&counts->errors, 1);
		(void)printf("%s: %s, errno %d\n", kvc_status_name(results[i].status),
			     kvc_cause_name(results[i].cause), results[i].error);
	}
}

static void set_some(struct fix *fix, struct counts *counts, struct chance *chance)
{
	const unsigned pool = (unsigned)chance_below(chance, POOLS);
	const struct kvc_key *keys = some_keys(fix, chance);
	const uint32_t flags = chance_below(chance, 3) ? 0 : KVC_TRANSFER_OVERWRITE;
	struct kvc_result results[BATCH];

	for (size_t i = 0; i < BATCH; i++)
		page_make(page_of(fix, pool, i), pool, keys[i], chance_next(chance));
	batch(fix->store, &fix->pages[pool], KVC_SET, keys, BATCH, flags, results);
	note(counts, results);
	atomic_fetch_add(&counts->sets, BATCH);
	for (size_t i = 0; i < BATCH; i++)
		atomic_fetch_add(&counts->stored, results[i].status == KVC_OK &&
							  results[i].cause != KVC_CAUSE_EXISTED);
}

static void get_some(struct fix *fix, struct counts *counts, unsigned pool,
		     const struct kvc_key *keys)
{
	struct kvc_result results[BATCH];

	pages_wipe(&fix->pages[pool]);
	batch(fix->store, &fix->pages[pool], KVC_GET, keys, BATCH, 0, results);
	note(counts, results);
	atomic_fetch_add(&counts->gets, BATCH);
	for (size_t i = 0; i < BATCH; i++) {
		if (results[i].status != KVC_OK)
			continue;
		atomic_fetch_add(&counts->hits, 1);
		if (page_is_right(fix, pool, i, keys[i]))
			continue;
		atomic_fetch_add(&counts->wrong, 1);
		(void)printf("wrong bytes of key %.*s, pool %u\n", (int)keys[i].bytes,
			     (const char *)keys[i].data, pool);
	}
}

/* Removes, evicts, sends segments away, looks after the dead: all that nobody asked for. */
static void churn(struct fix *fix, struct counts *counts, struct chance *chance)
{
	const unsigned pool = (unsigned)chance_below(chance, POOLS);
	struct kvc_result results[BATCH];
	uint32_t turn;

	batch(fix->store, &fix->pages[pool], KVC_REMOVE, some_keys(fix, chance), BATCH, 0, results);
	note(counts, results);
	atomic_fetch_add(&counts->removed, count_status(results, BATCH, KVC_OK));
	turn = kvc_packed_enter(fix->packed);
	kvc_packed_refresh(fix->packed);
	for (struct kvc_packed_arena *arena = atomic_load(&fix->packed->arenas); arena;
	     arena = arena->next)
		(void)kvc_packed_evict(arena, 4);
	if (chance_below(chance, 40) == 0)
		atomic_fetch_add(&counts->retired, kvc_packed_retire_coldest(fix->packed) == 0);
	kvc_packed_leave(fix->packed, turn);
	(void)kvc_packed_recover_dead(fix->packed);
	sleep_ms((unsigned)chance_below(chance, 4));
}

static int live(void *context)
{
	const struct work *work = context;
	struct chance chance = { .state = seed_get() + work->number * UINT64_C(0x10001) };
	struct counts *counts = work->counts;
	struct fix fix;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	fix_open(&fix, work);
	while (atomic_load(&counts->wrong) == 0) {
		if (work->role == CHURNER)
			churn(&fix, counts, &chance);
		else if (work->role == READER && chance_below(&chance, 12))
			get_some(&fix, counts, (unsigned)chance_below(&chance, POOLS),
				 some_keys(&fix, &chance));
		else
			set_some(&fix, counts, &chance);
	}
	fix_close(&fix);
	return 0;
}

/* ---------------------------------------------------------------- kills */

/* Each step with how often it comes by until it kills, at most. */
static const struct {
	const char *name;
	unsigned often;
	enum role role;
} steps[] = {
	{ "packed.set.intent", 200, WRITER },
	{ "packed.set.claimed", 200, WRITER },
	{ "packed.set.filled", 200, WRITER },
	{ "packed.set.live", 200, WRITER },
	{ "packed.set.inserted", 200, WRITER },
	{ "packed.set.settled", 200, WRITER },
	{ "packed.end.freed", 200, WRITER },
	{ "packed.end.removed", 200, CHURNER },
	{ "packed.end.freed", 200, CHURNER },
	{ "packed.retire.marked", 2, CHURNER },
	{ "packed.retire.emptied", 2, CHURNER },
	{ "packed.retire.removed", 2, CHURNER },
	{ "packed.segment.data", 1, WRITER },
	{ "packed.segment.made", 1, WRITER },
	{ "packed.table.*", 1, WRITER },
	{ "packed.recover.writing", 2, CHURNER },
	{ "packed.recover.quarantined", 2, CHURNER },
	{ "packed.recover.freed", 2, CHURNER },
	{ "packed.recover.cleared", 2, CHURNER },
	{ "packed.recover.released", 2, CHURNER },
	{ "packed.entry.taken", 1, CHURNER },
	{ "packed.*", 400, WRITER },
	{ "packed.*", 400, CHURNER },
	{ "packed.*", 4000, READER },
};
#define STEPS (sizeof(steps) / sizeof(steps[0]))

struct controller {
	struct work work[PROCESSES];
	pid_t pids[PROCESSES];
	unsigned at_step[STEPS]; /* kills */
	unsigned rule[PROCESSES];
	unsigned kills;
	struct chance chance;
};

static void start(struct controller *controller, unsigned i)
{
	static const enum role roles[PROCESSES] = { WRITER, WRITER, WRITER,  READER, READER,
						    READER, READER, CHURNER, CHURNER };
	struct work *work = &controller->work[i];
	struct chance *chance = &controller->chance;
	size_t step = chance_below(chance, STEPS);

	work->role = roles[i];
	work->number = chance_next(chance) >> 16;
	work->rules[0] = '\0';
	/* One of each kind is killed at steps alone. */
	if (i == 0 || i == 3 || i == 7 || chance_below(chance, 3) == 0) {
		while (steps[step].role != work->role)
			step = chance_below(chance, STEPS);
		controller->rule[i] = (unsigned)step;
		text_make(work->rules, sizeof(work->rules), "step kill=%s nth=%llu",
			  steps[step].name,
			  (unsigned long long)(1 + chance_below(chance, steps[step].often)));
	}
	controller->pids[i] = child_start(live, work);
}

/* Those that met their step are started again. */
static void look_after(struct controller *controller)
{
	for (unsigned i = 0; i < PROCESSES; i++) {
		int status;

		if (waitpid(controller->pids[i], &status, WNOHANG) != controller->pids[i])
			continue;
		if (atomic_load(&controller->work[i].counts->wrong) > 0)
			fail_msg("process %u has read wrong bytes, or saw that another did", i);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			fail_msg("process %u ended by itself: status %#x", i, (unsigned)status);
		controller->kills++;
		controller->at_step[controller->rule[i]]++;
		start(controller, i);
	}
}

static void kill_one(struct controller *controller, unsigned i)
{
	int code;

	assert_int_equal(kill(controller->pids[i], SIGKILL), 0);
	code = child_wait(controller->pids[i]);
	/* All end when one of them has read wrong bytes. */
	if (code != 256 + SIGKILL && atomic_load(&controller->work[i].counts->wrong) == 0)
		fail_msg("process %u ended by itself: %d", i, code);
	controller->kills++;
}

static void run(struct controller *controller, struct counts *counts, unsigned kills)
{
	for (unsigned i = 0; i < PROCESSES; i++)
		start(controller, i);
	while (controller->kills < kills && atomic_load(&counts->wrong) == 0) {
		const unsigned i = (unsigned)chance_below(&controller->chance, PROCESSES);

		sleep_ms(10 + (unsigned)chance_below(&controller->chance, 50));
		look_after(controller);
		if (controller->work[i].rules[0])
			continue;
		kill_one(controller, i);
		start(controller, i);
	}
	for (unsigned i = 0; i < PROCESSES; i++)
		kill_one(controller, i);
}

/* ---------------------------------------------------------------- afterwards */

static bool is_retiring(struct kvc_packed *packed)
{
	for (struct kvc_packed_arena *a = atomic_load(&packed->arenas); a; a = a->next) {
		const uint32_t segments = atomic_load(&a->record->segments);

		for (uint32_t n = 1; n <= segments; n++) {
			struct kvc_packed_segment *segment = kvc_packed_segment(a, n);

			if (segment && atomic_load(&segment->hdr->retired) != 0)
				return true;
		}
	}
	return false;
}

/* The keeper puts bits and counters right, and ends segments that were to go. */
static void recover_all(struct fix *fix)
{
	const uint64_t end = now_ms() + 20000;
	uint32_t left;

	do {
		sleep_ms(50);
		(void)kvc_packed_recover_dead(fix->packed);
		left = 0;
		for (uint32_t i = 0; i < KVC_PACKED_PROCESSES; i++)
			left += i != fix->packed->entry &&
				atomic_load(&fix->packed->shm->processes[i].pid) != 0;
		left += is_retiring(fix->packed) || atomic_load(&fix->packed->shm->swept) !=
							    atomic_load(&fix->packed->shm->deaths);
	} while (left > 0 && now_ms() < end);
	assert_int_equal(left, 0);
}

/* All slots of the root: live or free, as bits and counters say. */
static uint64_t check_slots(struct fix *fix, uint64_t *out_live)
{
	uint64_t slots = 0;

	*out_live = 0;
	for (struct kvc_packed_arena *arena = atomic_load(&fix->packed->arenas); arena;
	     arena = arena->next) {
		const struct slot_counts counts = slots_count(arena);

		(void)printf("slots of %llu: %llu live, %llu free, bits %llu, %llu wrong; "
			     "counters %lld %lld\n",
			     (unsigned long long)arena->slot_bytes,
			     (unsigned long long)counts.count[KVC_PACKED_LIVE],
			     (unsigned long long)counts.count[KVC_PACKED_FREE],
			     (unsigned long long)counts.bits, (unsigned long long)counts.wrong_bits,
			     (long long)atomic_load(&arena->record->live_slots),
			     (long long)atomic_load(&arena->record->free_slots));
		assert_int_equal(counts.other, 0);
		assert_int_equal(counts.count[KVC_PACKED_WRITING], 0);
		assert_int_equal(counts.count[KVC_PACKED_QUAR], 0);
		assert_int_equal(counts.wrong_bits, 0);
		assert_int_equal(atomic_load(&arena->record->live_slots),
				 counts.count[KVC_PACKED_LIVE]);
		assert_int_equal(atomic_load(&arena->record->free_slots),
				 counts.count[KVC_PACKED_FREE]);
		slots += counts.slots;
		*out_live += counts.count[KVC_PACKED_LIVE];
	}
	return slots;
}

static void read_all(struct fix *fix, struct counts *counts)
{
	for (unsigned p = 0; p < POOLS; p++)
		for (size_t i = 0; i + BATCH <= KEYS; i += BATCH)
			get_some(fix, counts, p, fix->keys.keys + i);
}

static struct slot_counts set_fill(struct fix *fix, struct counts *counts, unsigned pool,
				   const struct kvc_key *keys, uint64_t version,
				   struct kvc_packed_arena *arena)
{
	struct kvc_result results[BATCH];

	for (size_t k = 0; k < BATCH; k++)
		page_make(page_of(fix, pool, k), pool, keys[k], version);
	batch(fix->store, &fix->pages[pool], KVC_SET, keys, BATCH, 0, results);
	expect_all(results, BATCH, KVC_OK);
	get_some(fix, counts, pool, keys);
	return slots_count(arena);
}

/* As many objects as there are slots: a set makes room when the last one is taken, as no keeper
 * runs, and what it made is used up before there is more. */
static void fill_up(struct fix *fix, struct counts *counts, unsigned pool)
{
	struct kvc_packed_arena *arena = atomic_load(&fix->packed->arenas);
	uint64_t least = UINT64_MAX, free_slots = 0;
	struct slot_counts slots = { .slots = 0 };
	struct keys keys;

	while (arena->slot_bytes != part_bytes[pool])
		arena = arena->next;
	keys_make(&keys, "fill", 2 * KEYS);
	for (size_t i = 0; i + BATCH <= 2 * KEYS; i += BATCH) {
		slots = set_fill(fix, counts, pool, keys.keys + i, i, arena);
		free_slots = slots.count[KVC_PACKED_FREE];
		least = free_slots < least ? free_slots : least;
	}
	(void)printf("filled up: %llu of %llu slots, room %llu, at least %llu free after a set\n",
		     (unsigned long long)slots.count[KVC_PACKED_LIVE],
		     (unsigned long long)slots.slots, (unsigned long long)kvc_packed_room(arena),
		     (unsigned long long)least);
	assert_int_equal(slots.count[KVC_PACKED_LIVE] + free_slots, slots.slots);
	assert_int_equal(slots.wrong_bits, 0);
	assert_true(least <= kvc_packed_reserve(arena));
	/* Each page of the call may have ended one more, for its place in the table. */
	assert_true(free_slots < kvc_packed_room(arena) + BATCH);
	keys_free(&keys);
}

static void check_end(const char *root, struct counts *counts)
{
	const struct work work = { .root = root, .counts = counts };
	uint64_t slots, live;
	struct fix fix;

	fix_open(&fix, &work);
	recover_all(&fix);
	end_keeper(fix.packed);
	slots = check_slots(&fix, &live);
	assert_true(slots > 0);
	read_all(&fix, counts);
	fill_up(&fix, counts, 0);
	fill_up(&fix, counts, 1);
	(void)check_slots(&fix, &live);
	assert_true(atomic_load(&fix.packed->shm->segment_bytes) <= fix.packed->capacity_bytes);
	fix_close(&fix);
}

static void test_killed_all_the_time(void **state)
{
	const unsigned kills = support_soak() ? KILLS_SOAK : KILLS;
	struct controller controller = { .chance = { .state = seed_get() } };
	const char *root = folder_new("torture");
	struct counts *counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned at_steps = 0;

	(void)state;
	assert_true(counts != MAP_FAILED);
	for (unsigned i = 0; i < PROCESSES; i++)
		controller.work[i] = (struct work){ .root = root, .counts = counts };
	run(&controller, counts, kills);
	for (size_t s = 0; s < STEPS; s++)
		at_steps += controller.at_step[s];
	for (size_t s = 0; s < STEPS; s++)
		(void)printf("%s%s: %u", s ? ", " : "killed at ", steps[s].name,
			     controller.at_step[s]);
	(void)printf("\n%u kills, %u of them at a step; %llu gets, %llu hits, %llu sets, %llu "
		     "stored, %llu removed, %llu full, %llu corrupt, %llu segments retired, %llu "
		     "errors, %llu wrong\n",
		     controller.kills, at_steps, atomic_load(&counts->gets),
		     atomic_load(&counts->hits), atomic_load(&counts->sets),
		     atomic_load(&counts->stored), atomic_load(&counts->removed),
		     atomic_load(&counts->refused), atomic_load(&counts->corrupt),
		     atomic_load(&counts->retired), atomic_load(&counts->errors),
		     atomic_load(&counts->wrong));
	assert_int_equal(atomic_load(&counts->wrong), 0);
	assert_int_equal(atomic_load(&counts->corrupt), 0);
	assert_int_equal(atomic_load(&counts->errors), 0);
	assert_true(at_steps > 0 && atomic_load(&counts->hits) > 0);
	check_end(root, counts);
	assert_int_equal(atomic_load(&counts->wrong), 0);
	assert_int_equal(munmap(counts, sizeof(*counts)), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed_all_the_time),
	};

	support_begin();
	return cmocka_run_group_tests_name("packed_torture", tests, NULL, NULL);
}
