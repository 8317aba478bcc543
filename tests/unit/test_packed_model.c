/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of docs/packed.md as a small machine: two slots, two tables, up to four actors, each
 * of whose steps is one access to shared memory. Every order of the steps is tried, with a death at
 * any of them. What must hold is looked at after each step and at each end.
 *
 * Each rule of the protocol is taken away once: the model has to find what goes wrong then, else it
 * would prove nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS	2u
#define ENTRIES 2u
#define ACTORS	4u
#define NOBODY	15u
#define NONE	255u

enum st {
	FREE,
	WRITING,
	LIVE,
	QUAR
};

/* Rules that are left out. */
enum mutation {
	WHOLE = 0,
	NO_SECOND_LOOK = 1 << 0,   /* GET 4 */
	NO_QUARANTINE = 1 << 1,	   /* what a dead owner was writing is free at once */
	NO_SECOND_SCAN = 1 << 2,   /* after a new table is in force */
	SETTLE_FIRST = 1 << 3,	   /* a maker's entry comes after its look for others */
	NO_GENERATION = 1 << 4,	   /* a slot that ends keeps its number */
	CLAIM_UNCHECKED = 1 << 5,  /* a bit is enough to own a slot */
	LIVE_TOO_EARLY = 1 << 6,   /* before the data is there */
	NO_RETIRED_CHECK = 1 << 7, /* after a claim */
	NO_SETTLE = 1 << 8,	   /* of two of a name */
	NO_FIELD_CHECK = 1 << 9,   /* GET 2: state after the fields */
	NO_INTENT = 1 << 10,
	NO_SWEEP = 1 << 11,
	NO_MAKER_SETTLE = 1 << 12, /* by whoever makes a table */
};

enum pc {
	DONE,
	WAIT, /* for a death, or the end of the quarantine */
	SET_FIND,
	SET_FIND_SLOT,
	SET_TAKE,
	SET_INTENT,
	SET_CLAIM,
	SET_RETIRED,
	SET_WRITE_0,
	SET_WRITE_1,
	SET_KEY,
	SET_LIVE,
	SET_SETTLED,
	PLACE_LOOK,
	PLACE_ENTRY,
	PLACE_EPOCH,
	SETTLE_ENTRY,
	SETTLE_SLOT,
	END_STATE,
	END_TABLE,
	END_ENTRY,
	END_BIT,
	ABANDON_STATE,
	ABANDON_BIT,
	GET_ENTRY,
	GET_STATE,
	GET_KEY,
	GET_AGAIN,
	GET_READ_0,
	GET_READ_1,
	GET_SAME,
	EVICT_STATE,
	EVICT_KEY,
	RECOVER_INTENT,
	RECOVER_STATE,
	RECOVER_QUAR,
	RECOVER_FREE,
	RECOVER_BIT,
	RECOVER_KEY,
	RECOVER_CLEAR,
	MAKE_STATE,
	MAKE_KEY,
	MAKE_PLACED,
	MAKE_SETTLED,
	MAKE_PUBLISH,
	RETIRE_MARK,
	RETIRE_STATE,
	RETIRE_KEY,
	RETIRE_LOOK,
	RETIRE_REMOVE,
	SWEEP_STATE,
	SWEEP_BIT,
};

enum kind {
	NOTHING,
	SET,
	GET,
	EXISTS,
	EVICT,
	RECOVER,
	MAKE,
	RETIRE,
	SWEEP
};

/* Bytes only, so that worlds can be compared as memory. */
struct word {
	uint8_t gen;
	uint8_t owner;
	uint8_t st;
};

struct actor {
	uint8_t kind;
	uint8_t key;
	uint8_t pc;
	uint8_t at;	 /* entry or slot of a loop */
	uint8_t slot;	 /* that it works on */
	struct word own; /* state that it gave it */
	struct word seen;
	uint8_t entry_slot; /* entry that was seen, and what it becomes */
	uint8_t entry_key;
	uint8_t table;
	uint8_t end_slot; /* being ended */
	struct word end_state;
	uint8_t end_key;
	uint8_t after_end; /* enum pc */
	uint8_t after_place;
	uint8_t after_settle;
	uint8_t second;	 /* scan of a maker; part of a retirement */
	uint8_t half[2]; /* read */
	uint8_t intent;	 /* slot + 1 */
	uint8_t owns;	 /* slot + 1 */
	uint8_t dead;
};

struct world {
	struct word state[SLOTS];
	uint8_t key[SLOTS];
	uint8_t half[SLOTS][2]; /* data: 16 * (actor + 1) + key, 0 before */
	uint8_t bit[SLOTS];
	uint8_t entry_slot[2][ENTRIES]; /* slot + 1 */
	uint8_t entry_key[2][ENTRIES];
	uint8_t epoch;
	uint8_t retired; /* 1 marked, 2 removed */
	uint8_t late;	 /* slot + 1 that a dead one's write may still reach */
	uint8_t late_half;
	uint8_t late_value;
	uint8_t deaths;
	uint8_t over;	  /* the quarantine */
	uint8_t was_live; /* keys, a bit each */
	struct actor actor[ACTORS];
};

struct scenario {
	const char *name;
	unsigned slots;
	struct {
		enum kind kind;
		unsigned key; /* EVICT: slot */
		bool mortal;
	} actor[ACTORS];
	unsigned live;	  /* slots that hold an object of key 1, 2 at first */
	bool stale_entry; /* one of key 2 points to slot 0 */
	bool whole; /* nothing dies or is evicted: each live slot is found, and is there once */
};

static struct {
	const struct scenario *scenario;
	unsigned mutation;
	unsigned long long worlds;
	const char *violation;
} run;

static bool without(enum mutation mutation)
{
	return run.mutation & mutation;
}

static void violated(const char *what)
{
	if (!run.violation)
		run.violation = what;
}

/* ---------------------------------------------------------------- words */

static struct word word_of(uint8_t gen, unsigned owner, enum st st)
{
	return (struct word){ .gen = gen, .owner = (uint8_t)owner, .st = (uint8_t)st };
}

static bool same(struct word a, struct word b)
{
	return a.gen == b.gen && a.owner == b.owner && a.st == b.st;
}

static struct word freed(struct word word)
{
	return word_of((uint8_t)(word.gen + !without(NO_GENERATION)), NOBODY, FREE);
}

static bool swap(struct world *w, unsigned slot, struct word from, struct word to)
{
	if (!same(w->state[slot], from))
		return false;
	w->state[slot] = to;
	return true;
}

static bool is_content(uint8_t value, uint8_t key)
{
	return value != 0 && value % 16 == key;
}

/* ---------------------------------------------------------------- parts that several have */

static void end_begin(struct actor *a, unsigned slot, struct word state, uint8_t key, enum pc after)
{
	a->end_slot = (uint8_t)slot;
	a->end_state = state;
	a->end_key = key;
	a->after_end = (uint8_t)after;
	a->pc = END_STATE;
}

static void step_end(struct world *w, struct actor *a)
{
	switch (a->pc) {
	case END_STATE:
		a->pc = swap(w, a->end_slot, a->end_state, freed(a->end_state)) ? END_TABLE :
										  a->after_end;
		break;
	case END_TABLE:
		a->table = w->epoch;
		a->at = 0;
		a->pc = END_ENTRY;
		break;
	case END_ENTRY:
		if (w->entry_slot[a->table][a->at] == a->end_slot + 1 &&
		    w->entry_key[a->table][a->at] == a->end_key)
			w->entry_slot[a->table][a->at] = w->entry_key[a->table][a->at] = 0;
		if (++a->at == ENTRIES)
			a->pc = END_BIT;
		break;
	default:
		w->bit[a->end_slot] = 1;
		a->pc = a->after_end;
		break;
	}
}

static void place_begin(struct actor *a, unsigned slot, uint8_t key, uint8_t table, enum pc after)
{
	a->slot = (uint8_t)slot;
	a->end_key = key;
	a->table = table;
	a->at = 0;
	a->after_place = (uint8_t)after;
	a->pc = PLACE_LOOK;
}

static bool is_stale(const struct world *w, uint8_t slot, uint8_t key)
{
	return slot == 0 || w->state[slot - 1].st != LIVE || w->key[slot - 1] != key;
}

/* One entry after the other: ours is there, or it is free or stale and becomes ours. */
static void step_place(struct world *w, struct actor *a)
{
	uint8_t *slot = &w->entry_slot[a->table][a->at], *key = &w->entry_key[a->table][a->at];

	if (a->pc == PLACE_LOOK) {
		a->entry_slot = *slot;
		a->entry_key = *key;
		if (*slot == a->slot + 1 && *key == a->end_key)
			a->pc = a->after_place;
		else if (is_stale(w, *slot, *key))
			a->pc = PLACE_ENTRY;
		else
			a->at = (uint8_t)((a->at + 1) % ENTRIES);
		return;
	}
	a->pc = PLACE_LOOK;
	if (*slot != a->entry_slot || *key != a->entry_key)
		return;
	*slot = (uint8_t)(a->slot + 1);
	*key = a->end_key;
	a->pc = a->after_place;
}

/* ---------------------------------------------------------------- SET */

static void settle_begin(struct actor *a, enum pc after)
{
	a->at = 0;
	a->after_settle = (uint8_t)after;
	a->pc = SETTLE_ENTRY;
}

static void settle_next(struct actor *a)
{
	a->at++;
	a->pc = a->at == ENTRIES ? a->after_settle : SETTLE_ENTRY;
}

/* Of two live objects of a key that in the lower slot stays. */
static void step_settle(struct world *w, struct actor *a)
{
	const uint8_t slot = w->entry_slot[a->table][a->at];
	unsigned other;

	if (a->pc == SETTLE_ENTRY) {
		a->entry_slot = slot;
		if (slot == 0 || slot == a->slot + 1 ||
		    w->entry_key[a->table][a->at] != a->end_key || without(NO_SETTLE))
			settle_next(a);
		else
			a->pc = SETTLE_SLOT;
		return;
	}
	/* The look at a slot is a state that did not change around its fields: one step. */
	other = a->entry_slot - 1u;
	if (w->state[other].st != LIVE || w->key[other] != a->end_key)
		settle_next(a);
	else if (other < a->slot)
		end_begin(a, a->slot, a->own, a->end_key, (enum pc)a->after_settle);
	else
		end_begin(a, other, w->state[other], a->end_key, (enum pc)a->after_settle);
}

static void step_find(struct world *w, struct actor *a)
{
	if (a->pc == SET_FIND) {
		a->entry_slot = w->entry_slot[w->epoch][a->at];
		if (a->entry_slot && w->entry_key[w->epoch][a->at] == a->key)
			a->pc = SET_FIND_SLOT;
		else if (++a->at == ENTRIES)
			a->pc = SET_TAKE;
		return;
	}
	if (!is_stale(w, a->entry_slot, a->key))
		a->pc = DONE;
	else
		a->pc = ++a->at == ENTRIES ? SET_TAKE : SET_FIND;
}

static void take_bit(struct world *w, struct actor *a)
{
	for (unsigned s = 0; s < run.scenario->slots; s++) {
		if (!w->bit[s])
			continue;
		w->bit[s] = 0;
		a->slot = (uint8_t)s;
		a->seen = w->state[s];
		a->pc = a->seen.st == FREE || without(CLAIM_UNCHECKED) ? SET_INTENT : SET_TAKE;
		return;
	}
	a->pc = DONE;
}

static void claim(struct world *w, struct actor *a, unsigned self)
{
	a->own = word_of((uint8_t)(a->seen.gen + !without(NO_GENERATION)), self, WRITING);
	if (without(CLAIM_UNCHECKED)) {
		w->state[a->slot] = a->own;
	} else if (!swap(w, a->slot, a->seen, a->own)) {
		a->intent = 0;
		a->pc = DONE;
		return;
	}
	for (unsigned i = 0; i < ACTORS; i++)
		if (w->actor[i].owns == a->slot + 1 && !w->actor[i].dead)
			violated("a slot has two owners");
	a->owns = (uint8_t)(a->slot + 1);
	a->pc = SET_RETIRED;
}

static void step_set(struct world *w, struct actor *a, unsigned self)
{
	const uint8_t value = (uint8_t)(16 * (self + 1) + a->key);

	if (a->pc >= SET_WRITE_0 && a->pc <= SET_LIVE && w->retired == 2)
		violated("a slot of a segment that is gone is written");
	switch (a->pc) {
	case SET_TAKE:
		take_bit(w, a);
		break;
	case SET_INTENT:
		a->intent = without(NO_INTENT) ? 0 : (uint8_t)(a->slot + 1);
		a->pc = SET_CLAIM;
		break;
	case SET_CLAIM:
		claim(w, a, self);
		break;
	case SET_RETIRED:
		a->pc = w->retired && !without(NO_RETIRED_CHECK) ? ABANDON_STATE :
			without(LIVE_TOO_EARLY)			 ? SET_KEY :
								   SET_WRITE_0;
		break;
	case ABANDON_STATE:
		(void)swap(w, a->slot, a->own, freed(a->own));
		a->owns = 0;
		a->pc = ABANDON_BIT;
		break;
	case ABANDON_BIT:
		w->bit[a->slot] = 1;
		a->pc = SET_SETTLED;
		break;
	case SET_WRITE_0:
		w->half[a->slot][0] = value;
		a->pc = SET_WRITE_1;
		break;
	case SET_WRITE_1:
		w->half[a->slot][1] = value;
		a->pc = without(LIVE_TOO_EARLY) ? SET_SETTLED : SET_KEY;
		break;
	case SET_KEY:
		w->key[a->slot] = a->key;
		a->pc = SET_LIVE;
		break;
	case SET_LIVE:
		if (!swap(w, a->slot, a->own, word_of(a->own.gen, NOBODY, LIVE)))
			violated("a slot changed under its owner");
		a->own = w->state[a->slot];
		a->owns = 0;
		w->was_live |= (uint8_t)(1u << a->key);
		place_begin(a, a->slot, a->key, w->epoch, PLACE_EPOCH);
		break;
	case PLACE_EPOCH:
		if (w->epoch != a->table) {
			place_begin(a, a->slot, a->key, w->epoch, PLACE_EPOCH);
			break;
		}
		settle_begin(a, SET_SETTLED);
		if (without(LIVE_TOO_EARLY))
			a->pc = SET_WRITE_0;
		break;
	default: /* SET_SETTLED */
		a->intent = 0;
		a->pc = DONE;
		break;
	}
}

/* ---------------------------------------------------------------- GET, EXISTS */

static void get_found(const struct world *w, struct actor *a)
{
	a->pc = DONE;
	if (!without(NO_SECOND_LOOK) && !same(w->state[a->slot], a->seen))
		return; /* recycled */
	if (a->half[0] != a->half[1] || !is_content(a->half[0], a->key))
		violated("a get returned wrong bytes");
}

static void get_next(struct actor *a)
{
	a->pc = ++a->at == ENTRIES ? DONE : GET_ENTRY;
}

static void step_get(const struct world *w, struct actor *a)
{
	switch (a->pc) {
	case GET_ENTRY:
		a->slot = (uint8_t)(w->entry_slot[w->epoch][a->at] - 1u);
		if (w->entry_slot[w->epoch][a->at] && w->entry_key[w->epoch][a->at] == a->key)
			a->pc = GET_STATE;
		else
			get_next(a);
		break;
	case GET_STATE:
		a->seen = w->state[a->slot];
		a->pc = GET_KEY;
		if (a->seen.st != LIVE)
			get_next(a);
		break;
	case GET_KEY:
		a->entry_key = w->key[a->slot];
		a->pc = GET_AGAIN;
		break;
	case GET_AGAIN:
		if ((!same(w->state[a->slot], a->seen) && !without(NO_FIELD_CHECK)) ||
		    a->entry_key != a->key) {
			get_next(a);
			break;
		}
		if (!(w->was_live & 1u << a->key))
			violated("an object is there that nobody has stored");
		a->pc = a->kind == EXISTS ? DONE : GET_READ_0;
		break;
	case GET_READ_0:
		a->half[0] = w->half[a->slot][0];
		a->pc = GET_READ_1;
		break;
	case GET_READ_1:
		a->half[1] = w->half[a->slot][1];
		a->pc = GET_SAME;
		break;
	default:
		get_found(w, a);
		break;
	}
}

/* ---------------------------------------------------------------- the others */

static void step_evict(const struct world *w, struct actor *a)
{
	if (a->pc == EVICT_STATE) {
		a->seen = w->state[a->key];
		a->pc = a->seen.st == LIVE ? EVICT_KEY : DONE;
		return;
	}
	end_begin(a, a->key, a->seen, w->key[a->key], DONE);
}

static struct actor *dead_one(struct world *w)
{
	for (unsigned i = 0; i < ACTORS; i++)
		if (w->actor[i].dead)
			return &w->actor[i];
	return NULL;
}

static void recover_state(struct world *w, struct actor *a, unsigned dead)
{
	const struct word state = w->state[a->slot];

	a->seen = state;
	if (state.st == FREE)
		a->pc = RECOVER_BIT;
	else if (state.st == LIVE)
		a->pc = RECOVER_KEY;
	else if (state.owner != dead)
		a->pc = RECOVER_CLEAR;
	else if (state.st == WRITING)
		a->pc = without(NO_QUARANTINE) ? RECOVER_FREE : RECOVER_QUAR;
	else
		a->pc = w->over ? RECOVER_FREE : WAIT;
}

static void step_recover(struct world *w, struct actor *a)
{
	struct actor *dead = dead_one(w);

	switch (a->pc) {
	case RECOVER_INTENT:
		a->slot = (uint8_t)(dead->intent - 1u);
		a->pc = dead->intent ? RECOVER_STATE : DONE;
		break;
	case RECOVER_STATE:
		recover_state(w, a, (unsigned)(dead - w->actor));
		break;
	case RECOVER_QUAR:
		(void)swap(w, a->slot, a->seen, word_of(a->seen.gen, a->seen.owner, QUAR));
		a->pc = RECOVER_STATE;
		break;
	case RECOVER_FREE:
		a->pc = swap(w, a->slot, a->seen, freed(a->seen)) ? RECOVER_BIT : RECOVER_STATE;
		break;
	case RECOVER_BIT:
		w->bit[a->slot] = 1;
		a->pc = RECOVER_CLEAR;
		break;
	case RECOVER_KEY:
		place_begin(a, a->slot, w->key[a->slot], w->epoch, RECOVER_CLEAR);
		break;
	default: /* RECOVER_CLEAR */
		dead->intent = 0;
		a->pc = DONE;
		break;
	}
}

/* Table 1 from the slots, in force, and the slots once more. */
static void make_next(struct actor *a)
{
	if (++a->key < run.scenario->slots)
		a->pc = MAKE_STATE;
	else
		a->pc = a->second ? DONE : MAKE_PUBLISH;
}

static void step_make(struct world *w, struct actor *a)
{
	switch (a->pc) {
	case MAKE_STATE:
		a->own = w->state[a->key];
		a->pc = MAKE_KEY;
		if (a->own.st != LIVE)
			make_next(a);
		break;
	case MAKE_KEY:
		place_begin(a, a->key, w->key[a->key], 1, MAKE_PLACED);
		if (without(SETTLE_FIRST))
			settle_begin(a, MAKE_PLACED);
		break;
	case MAKE_PLACED:
		if (without(SETTLE_FIRST))
			place_begin(a, a->key, w->key[a->key], 1, MAKE_SETTLED);
		else if (without(NO_MAKER_SETTLE))
			make_next(a);
		else
			settle_begin(a, MAKE_SETTLED);
		break;
	case MAKE_SETTLED:
		make_next(a);
		break;
	default:
		w->epoch = 1;
		a->second = 1;
		a->key = 0;
		a->pc = without(NO_SECOND_SCAN) ? DONE : MAKE_STATE;
		break;
	}
}

/* key: the slot that is looked at. */
static void step_retire(struct world *w, struct actor *a)
{
	const bool last = a->key + 1u == run.scenario->slots;

	switch (a->pc) {
	case RETIRE_MARK:
		w->retired = 1;
		a->pc = RETIRE_STATE;
		break;
	case RETIRE_STATE:
		a->seen = w->state[a->key];
		a->pc = RETIRE_KEY;
		break;
	case RETIRE_KEY:
		a->pc = last ? RETIRE_LOOK : RETIRE_STATE;
		if (a->seen.st == LIVE)
			end_begin(a, a->key, a->seen, w->key[a->key], (enum pc)a->pc);
		a->key = last ? 0 : (uint8_t)(a->key + 1);
		break;
	case RETIRE_LOOK:
		if (w->state[a->key].st != FREE)
			a->pc = DONE; /* busy: again later */
		else if (last)
			a->pc = RETIRE_REMOVE;
		else
			a->key++;
		break;
	default:
		w->retired = 2;
		a->pc = DONE;
		break;
	}
}

static void step_sweep(struct world *w, struct actor *a)
{
	const bool last = a->key + 1u == run.scenario->slots;

	if (a->pc == SWEEP_STATE && w->state[a->key].st == FREE && !w->bit[a->key]) {
		a->pc = SWEEP_BIT;
		return;
	}
	if (a->pc == SWEEP_BIT)
		w->bit[a->key] = 1;
	a->key++;
	a->pc = last ? DONE : SWEEP_STATE;
}

/* ---------------------------------------------------------------- the world */

static bool can_step(const struct world *w, const struct actor *a)
{
	if (a->dead || a->pc == DONE)
		return false;
	if (a->pc == WAIT)
		return a->seen.st == QUAR ? w->over : w->deaths;
	return true;
}

static void step(struct world *w, unsigned self)
{
	struct actor *a = &w->actor[self];

	if (a->pc == WAIT)
		a->pc = a->seen.st == QUAR ? RECOVER_STATE : RECOVER_INTENT;
	else if (a->pc >= END_STATE && a->pc <= END_BIT)
		step_end(w, a);
	else if (a->pc == PLACE_LOOK || a->pc == PLACE_ENTRY)
		step_place(w, a);
	else if (a->pc == SETTLE_ENTRY || a->pc == SETTLE_SLOT)
		step_settle(w, a);
	else if (a->pc == SET_FIND || a->pc == SET_FIND_SLOT)
		step_find(w, a);
	else if (a->kind == SET)
		step_set(w, a, self);
	else if (a->kind == GET || a->kind == EXISTS)
		step_get(w, a);
	else if (a->kind == EVICT)
		step_evict(w, a);
	else if (a->kind == RECOVER)
		step_recover(w, a);
	else if (a->kind == MAKE)
		step_make(w, a);
	else if (a->kind == RETIRE)
		step_retire(w, a);
	else
		step_sweep(w, a);
}

/* Its write may have been under way: the halves that are not there yet come later, or never. */
static void die(struct world *w, unsigned self)
{
	struct actor *a = &w->actor[self];

	if (a->kind == SET && (a->pc == SET_WRITE_0 || a->pc == SET_WRITE_1)) {
		w->late = (uint8_t)(a->slot + 1);
		w->late_half = a->pc == SET_WRITE_1;
		w->late_value = (uint8_t)(16 * (self + 1) + a->key);
	}
	a->dead = 1;
	w->deaths++;
}

static void write_late(struct world *w)
{
	const unsigned slot = w->late - 1u;

	if (w->state[slot].st != WRITING && w->state[slot].st != QUAR)
		violated("a late write reached a slot that is in use, or free");
	w->half[slot][w->late_half] = w->late_value;
	if (++w->late_half == 2)
		w->late = 0;
}

static bool is_waiting(const struct world *w)
{
	for (unsigned i = 0; i < ACTORS; i++)
		if (w->actor[i].pc == WAIT && w->actor[i].seen.st == QUAR)
			return true;
	return false;
}

static bool is_found(const struct world *w, unsigned slot)
{
	for (unsigned e = 0; e < ENTRIES; e++)
		if (w->entry_slot[w->epoch][e] == slot + 1 &&
		    w->entry_key[w->epoch][e] == w->key[slot])
			return true;
	return false;
}

/* Nothing can happen any more, but for a sweep. */
static void check_end(const struct world *w)
{
	const unsigned slots = w->retired == 2 ? 0 : run.scenario->slots;

	for (unsigned s = 0; s < slots; s++) {
		const enum st st = (enum st)w->state[s].st;

		if (st == WRITING || st == QUAR)
			violated("a slot belongs to nobody and stays so");
		if (st == FREE && !w->bit[s] && (w->deaths == 0 || without(NO_SWEEP)))
			violated("a free slot is known to nobody");
		if (st != LIVE)
			continue;
		if (w->half[s][0] != w->half[s][1] || !is_content(w->half[s][0], w->key[s]))
			violated("a live slot has the bytes of another object");
		if (run.scenario->whole && !is_found(w, s))
			violated("a live object is not found");
		for (unsigned o = 0; run.scenario->whole && o < s; o++)
			if (w->state[o].st == LIVE && w->key[o] == w->key[s])
				violated("an object is there twice");
	}
}

/* ---------------------------------------------------------------- every order */

/* Worlds that were seen, by two hashes, and those to go on from. */
static struct {
	uint64_t (*seen)[2];
	size_t seen_room, seen_count;
	struct world *stack;
	size_t depth, room;
} search;

static uint64_t hash(const struct world *w, uint64_t seed)
{
	const uint8_t *bytes = (const uint8_t *)w;

	for (size_t i = 0; i < sizeof(*w); i++)
		seed = (seed ^ bytes[i]) * UINT64_C(0x100000001b3);
	seed ^= seed >> 32;
	seed *= UINT64_C(0xd6e8feb86659fd93);
	return seed ^ seed >> 32;
}

static bool note_seen(uint64_t a, uint64_t b)
{
	size_t at = a & (search.seen_room - 1);

	while (search.seen[at][0] || search.seen[at][1]) {
		if (search.seen[at][0] == a && search.seen[at][1] == b)
			return false;
		at = (at + 1) & (search.seen_room - 1);
	}
	search.seen[at][0] = a;
	search.seen[at][1] = b;
	search.seen_count++;
	return true;
}

static void grow_seen(void)
{
	uint64_t(*old)[2] = search.seen;
	const size_t room = search.seen_room;

	search.seen_room = room ? 2 * room : 1 << 16;
	search.seen = calloc(search.seen_room, sizeof(*search.seen));
	assert_non_null(search.seen);
	search.seen_count = 0;
	for (size_t i = 0; i < room; i++)
		if (old[i][0] || old[i][1])
			(void)note_seen(old[i][0], old[i][1]);
	free(old);
}

static void go_on_from(const struct world *w)
{
	if (2 * search.seen_count >= search.seen_room)
		grow_seen();
	if (!note_seen(hash(w, UINT64_C(0xcbf29ce484222325)), hash(w, 7)))
		return;
	if (search.depth == search.room) {
		search.room = search.room ? 2 * search.room : 1024;
		search.stack = realloc(search.stack, search.room * sizeof(*w));
		assert_non_null(search.stack);
	}
	search.stack[search.depth++] = *w;
}

static void expand(const struct world *w)
{
	bool moved = false;

	for (unsigned i = 0; i < ACTORS; i++) {
		struct world next = *w;

		if (!can_step(w, &w->actor[i]))
			continue;
		moved = true;
		step(&next, i);
		go_on_from(&next);
		next = *w;
		if (run.scenario->actor[i].mortal && w->deaths == 0) {
			die(&next, i);
			go_on_from(&next);
		}
	}
	if (w->late) {
		struct world next = *w;

		write_late(&next);
		go_on_from(&next);
	}
	/* No write takes as long as a quarantine. */
	if (!w->over && is_waiting(w)) {
		struct world next = *w;

		next.over = 1;
		next.late = 0;
		moved = true;
		go_on_from(&next);
	}
	if (!moved)
		check_end(w);
}

static enum pc first_step(enum kind kind)
{
	static const uint8_t steps[] = {
		[NOTHING] = DONE,     [SET] = SET_FIND,	      [GET] = GET_ENTRY,
		[EXISTS] = GET_ENTRY, [EVICT] = EVICT_STATE,  [RECOVER] = WAIT,
		[MAKE] = MAKE_STATE,  [RETIRE] = RETIRE_MARK, [SWEEP] = SWEEP_STATE,
	};

	return (enum pc)steps[kind];
}

static struct world begin(const struct scenario *scenario)
{
	struct world w;

	memset(&w, 0, sizeof(w));
	for (unsigned s = 0; s < SLOTS; s++) {
		w.state[s] = word_of(1, NOBODY, s < scenario->live ? LIVE : FREE);
		w.bit[s] = s >= scenario->live && s < scenario->slots;
		if (s >= scenario->live)
			continue;
		w.key[s] = (uint8_t)(s + 1);
		w.half[s][0] = w.half[s][1] = (uint8_t)(s + 1 + 16 * 9);
		w.entry_slot[0][s] = w.entry_key[0][s] = (uint8_t)(s + 1);
		w.was_live |= (uint8_t)(1u << w.key[s]);
	}
	if (scenario->stale_entry) {
		w.entry_slot[0][1] = 1;
		w.entry_key[0][1] = 2;
	}
	for (unsigned i = 0; i < ACTORS; i++) {
		w.actor[i].kind = (uint8_t)scenario->actor[i].kind;
		w.actor[i].key = (uint8_t)scenario->actor[i].key;
		w.actor[i].pc = (uint8_t)first_step(scenario->actor[i].kind);
	}
	return w;
}

/* NULL, or what is wrong in some order of the steps. */
static const char *explore(const struct scenario *scenario, unsigned mutation)
{
	const struct world first = begin(scenario);

	run.scenario = scenario;
	run.mutation = mutation;
	run.violation = NULL;
	run.worlds = 0;
	memset(&search, 0, sizeof(search));
	go_on_from(&first);
	while (search.depth > 0 && !run.violation) {
		const struct world w = search.stack[--search.depth];

		run.worlds++;
		expand(&w);
	}
	free(search.stack);
	free(search.seen);
	return run.violation;
}

/* ---------------------------------------------------------------- scenarios */

static const struct scenario scenarios[] = {
	{ .name = "a get, an eviction, a set of another key in the slot",
	  .slots = 1,
	  .live = 1,
	  .actor = { { GET, 1, false }, { EVICT, 0, false }, { SET, 2, false } } },
	{ .name = "the same, and the first key again",
	  .slots = 1,
	  .live = 1,
	  .actor = { { GET, 1, false },
		     { EVICT, 0, false },
		     { SET, 1, false },
		     { SET, 2, false } } },
	{ .name = "two sets of a key and a get",
	  .slots = 2,
	  .whole = true,
	  .actor = { { SET, 1, false }, { SET, 1, false }, { GET, 1, false } } },
	{ .name = "sets of two keys",
	  .slots = 2,
	  .whole = true,
	  .actor = { { SET, 1, false }, { SET, 2, false }, { GET, 2, false } } },
	{ .name = "exists beside a set in a slot that has an old entry of its key",
	  .slots = 1,
	  .live = 1,
	  .stale_entry = true,
	  .actor = { { EXISTS, 2, false }, { EVICT, 0, false }, { SET, 2, false } } },
	{ .name = "a set that dies, recovery, another set and a get of it",
	  .slots = 1,
	  .actor = { { SET, 1, true },
		     { RECOVER, 0, false },
		     { SET, 2, false },
		     { GET, 2, false } } },
	{ .name = "a set that dies, recovery, a set of the same key and a sweep",
	  .slots = 2,
	  .actor = { { SET, 1, true },
		     { RECOVER, 0, false },
		     { SET, 1, false },
		     { SWEEP, 0, false } } },
	{ .name = "an eviction that dies, a sweep and a set",
	  .slots = 1,
	  .live = 1,
	  .actor = { { EVICT, 0, true },
		     { SWEEP, 0, false },
		     { SET, 2, false },
		     { GET, 2, false } } },
	{ .name = "a set and a new table",
	  .slots = 2,
	  .live = 1,
	  .whole = true,
	  .actor = { { SET, 2, false }, { MAKE, 0, false }, { GET, 2, false } } },
	{ .name = "two sets of a key and a new table",
	  .slots = 2,
	  .whole = true,
	  .actor = { { SET, 1, false }, { SET, 1, false }, { MAKE, 0, false } } },
	{ .name = "a set, an eviction and a new table",
	  .slots = 2,
	  .live = 1,
	  .actor = { { SET, 2, false },
		     { EVICT, 0, false },
		     { MAKE, 0, false },
		     { GET, 1, false } } },
	{ .name = "sets and a sweep",
	  .slots = 1,
	  .actor = { { SET, 1, false },
		     { SET, 2, false },
		     { SWEEP, 0, false },
		     { GET, 1, false } } },
	{ .name = "sets and a segment that goes",
	  .slots = 2,
	  .live = 1,
	  .actor = { { SET, 2, false }, { SET, 1, false }, { RETIRE, 0, false } } },
	{ .name = "a get and a segment that goes",
	  .slots = 1,
	  .live = 1,
	  .actor = { { GET, 1, false }, { SET, 2, false }, { RETIRE, 0, false } } },
};
#define SCENARIOS (sizeof(scenarios) / sizeof(scenarios[0]))

static void test_no_order_does_harm(void **state)
{
	unsigned long long worlds = 0;

	(void)state;
	for (size_t i = 0; i < SCENARIOS; i++) {
		const char *violation = explore(&scenarios[i], WHOLE);

		(void)printf("%s: %llu states\n", scenarios[i].name, run.worlds);
		if (violation)
			fail_msg("%s: %s", scenarios[i].name, violation);
		worlds += run.worlds;
	}
	(void)printf("%llu states in all\n", worlds);
}

static void test_each_rule_is_needed(void **state)
{
	static const struct {
		enum mutation mutation;
		const char *name;
	} rules[] = {
		{ NO_SECOND_LOOK, "the state after the read" },
		{ NO_QUARANTINE, "the quarantine" },
		{ NO_SECOND_SCAN, "the second scan for a table" },
		{ SETTLE_FIRST, "the entry in a new table before the look for others" },
		{ NO_GENERATION, "generations" },
		{ CLAIM_UNCHECKED, "the claim by the state" },
		{ LIVE_TOO_EARLY, "data before the header" },
		{ NO_RETIRED_CHECK, "the segment after the claim" },
		{ NO_SETTLE, "one object of a name" },
		{ NO_FIELD_CHECK, "the state after the fields" },
		{ NO_INTENT, "the intent before the claim" },
		{ NO_SWEEP, "the sweep" },
		{ NO_MAKER_SETTLE, "one object of a name in a new table" },
	};

	(void)state;
	for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++) {
		const char *violation = NULL;

		for (size_t i = 0; i < SCENARIOS && !violation; i++) {
			violation = explore(&scenarios[i], rules[r].mutation);
			if (violation)
				(void)printf("without %s: %s (%s)\n", rules[r].name, violation,
					     scenarios[i].name);
		}
		if (!violation)
			fail_msg("without %s nothing goes wrong in the model", rules[r].name);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_order_does_harm),
		cmocka_unit_test(test_each_rule_is_needed),
	};

	return cmocka_run_group_tests_name("packed_model", tests, NULL, NULL);
}
