/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options, and what is said about arguments that cannot be taken. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The text of the first refusal; the rest of that parse adds nothing. */
static char refusal[512];

error_t cli_argp_error(const char *format, ...)
{
	va_list args;

	if (refusal[0])
		return EINVAL;
	va_start(args, format);
	(void)vsnprintf(refusal, sizeof(refusal), format, args);
	va_end(args);
	return EINVAL;
}

error_t cli_argp_namespace(int key, char *argument, const struct argp_state *state,
			   const char **out_id)
{
	switch (key) {
	case ARGP_KEY_ARG:
		if (state->arg_num > 0)
			return cli_argp_error("unexpected argument '%.200s'", argument);
		*out_id = argument;
		return 0;
	case ARGP_KEY_END:
		if (!*out_id || !(*out_id)[0])
			return cli_argp_error("no namespace given");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

const char *cli_argp_text(void)
{
	return refusal[0] ? refusal : "the arguments make no sense";
}

/* ---------------------------------------------------------------- nearest word */

#define WORD_MAX 48

static size_t edit_distance(const char *a, const char *b)
{
	size_t row[WORD_MAX + 1];
	size_t a_bytes = strlen(a), b_bytes = strlen(b);

	if (a_bytes > WORD_MAX || b_bytes > WORD_MAX)
		return SIZE_MAX;
	for (size_t j = 0; j <= b_bytes; j++)
		row[j] = j;
	for (size_t i = 1; i <= a_bytes; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= b_bytes; j++) {
			size_t best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			best = row[j] + 1 < best ? row[j] + 1 : best;
			best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
			row[j] = best;
		}
	}
	return row[b_bytes];
}

const char *cli_nearest(const char *word, const char *const *words, size_t count)
{
	size_t limit = strlen(word) / 3 + 1, least = SIZE_MAX;
	const char *nearest = NULL;

	for (size_t i = 0; i < count; i++) {
		size_t distance = edit_distance(word, words[i]);

		if (distance <= limit && distance < least) {
			least = distance;
			nearest = words[i];
		}
	}
	return nearest;
}

/* ---------------------------------------------------------------- what getopt refused */

#define OPTIONS_MAX 64

struct option_search {
	const struct argp_option *found[OPTIONS_MAX];
	size_t count;
};

/* All options of a tree; headings and the end rows have neither name nor key. */
static void collect_options(const struct argp *argp, struct option_search *all)
{
	const struct argp_option *option = argp->options;

	for (; option && (option->name || option->key || option->doc); option++)
		if ((option->name || option->key) && all->count < OPTIONS_MAX)
			all->found[all->count++] = option;
	for (const struct argp_child *child = argp->children; child && child->argp; child++)
		collect_options(child->argp, all);
}

static void explain_unknown(const struct option_search *all, const char *name, size_t bytes)
{
	const char *words[OPTIONS_MAX];
	char wanted[WORD_MAX + 1];
	const char *nearest = NULL;
	size_t count = 0;

	for (size_t i = 0; i < all->count; i++)
		if (all->found[i]->name)
			words[count++] = all->found[i]->name;
	if (bytes < sizeof(wanted)) {
		memcpy(wanted, name, bytes);
		wanted[bytes] = '\0';
		nearest = cli_nearest(wanted, words, count);
	}
	if (nearest)
		(void)cli_argp_error("unknown option '--%.*s'; did you mean '--%s'?", (int)bytes,
				     name, nearest);
	else
		(void)cli_argp_error("unknown option '--%.*s'", bytes < 80 ? (int)bytes : 80, name);
}

static bool explain_long(const struct option_search *all, const char *name)
{
	size_t bytes = strcspn(name, "=");
	const struct argp_option *match = NULL;
	unsigned matches = 0;

	for (size_t i = 0; i < all->count; i++) {
		const char *known = all->found[i]->name;

		if (!known || strncmp(known, name, bytes) != 0)
			continue;
		match = all->found[i];
		matches++;
		if (known[bytes] == '\0') {
			matches = 1;
			break;
		}
	}
	if (matches == 0)
		explain_unknown(all, name, bytes);
	else if (matches > 1)
		(void)cli_argp_error("option '--%.*s' is ambiguous", (int)bytes, name);
	else if (name[bytes] && !match->arg)
		(void)cli_argp_error("option '--%s' takes no value", match->name);
	else if (!name[bytes] && match->arg)
		(void)cli_argp_error("option '--%s' needs a value: %s", match->name, match->arg);
	else
		return false;
	return true;
}

static const struct argp_option *find_short(const struct option_search *all, int letter)
{
	for (size_t i = 0; i < all->count; i++)
		if (all->found[i]->key == letter)
			return all->found[i];
	return NULL;
}

static bool explain_short(const struct option_search *all, const char *letters)
{
	for (; *letters; letters++) {
		const struct argp_option *option = find_short(all, (unsigned char)*letters);

		if (!option) {
			if (isprint((unsigned char)*letters))
				(void)cli_argp_error("unknown option '-%c'", *letters);
			else
				(void)cli_argp_error("unknown option '-\\x%02X'",
						     (unsigned char)*letters);
			return true;
		}
		if (!option->arg)
			continue;
		if (letters[1])
			return false;
		(void)cli_argp_error("option '-%c' needs a value: %s", *letters, option->arg);
		return true;
	}
	return false;
}

/* "-models-x-<16 hex>", as a namespace may be called that another tool made. */
static bool is_like_namespace(const char *text)
{
	const size_t bytes = strlen(text);

	return bytes >= 18 && text[bytes - 17] == '-' &&
	       strspn(text + bytes - 16, "0123456789abcdef") == 16;
}

static void add_hint(const char *argument)
{
	const size_t used = strlen(refusal);

	if (is_like_namespace(argument))
		(void)snprintf(refusal + used, sizeof(refusal) - used,
			       "; to name something that begins with '-' put -- before it");
}

void cli_argp_explain(const struct argp *argp, int argc, char **argv, int next)
{
	struct option_search all = { .count = 0 };

	if (refusal[0])
		return;
	collect_options(argp, &all);
	/* getopt has gone past the argument that it refused, or stands on it inside of "-abc". */
	for (int i = next - 1; i <= next; i++) {
		const char *argument = i > 0 && i < argc ? argv[i] : NULL;

		if (!argument || argument[0] != '-' || !argument[1])
			continue;
		if (argument[1] == '-' ? explain_long(&all, argument + 2) :
					 explain_short(&all, argument + 1)) {
			add_hint(argument);
			return;
		}
	}
	if (next < argc)
		(void)cli_argp_error("unexpected argument '%.200s'", argv[next]);
}

/* ---------------------------------------------------------------- values */

static const char *cut(const char *text, char buffer[48])
{
	(void)snprintf(buffer, 48, "%.40s%s", text, strlen(text) > 40 ? "..." : "");
	return buffer;
}

error_t cli_argp_number(const char *name, const char *text, uint64_t least, uint64_t most,
			uint64_t *out)
{
	unsigned long long value;
	char shown[48];
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (!isdigit((unsigned char)text[0]) || *end)
		return cli_argp_error("%s: '%s' is not a number", name, cut(text, shown));
	if (errno == ERANGE || value < least || value > most)
		return cli_argp_error("%s: %s is not in [%" PRIu64 ", %" PRIu64 "]", name,
				      cut(text, shown), least, most);
	*out = value;
	return 0;
}

error_t cli_argp_u32(const char *name, const char *text, uint32_t least, uint32_t most,
		     uint32_t *out)
{
	uint64_t value = 0;
	error_t error = cli_argp_number(name, text, least, most, &value);

	if (!error)
		*out = (uint32_t)value;
	return error;
}

/* Factor of a unit: K, M, G, T, P and KiB ... are powers of 1024, kB, MB ... of 1000; 0 = none. */
static double unit_factor(const char *unit)
{
	static const char letters[] = "KMGTP";
	const char *letter;
	double base = 1024;

	if (!unit[0] || strcmp(unit, "B") == 0)
		return 1;
	letter = strchr(letters, toupper((unsigned char)unit[0]));
	if (!letter)
		return 0;
	if (strcmp(unit + 1, "B") == 0)
		base = 1000;
	else if (unit[1] && strcmp(unit + 1, "iB") != 0)
		return 0;
	return pow(base, (double)(letter - letters + 1));
}

error_t cli_argp_size(const char *name, const char *text, uint64_t *out)
{
	double value, factor;
	char shown[48];
	char *end;

	value = strtod(text, &end);
	factor = unit_factor(end + strspn(end, " "));
	if (!isdigit((unsigned char)text[0]) || strchr(text, 'x') || factor == 0)
		return cli_argp_error("%s: '%s' is not a size, as 4096, 64K or 1.5GiB", name,
				      cut(text, shown));
	value *= factor;
	if (!(value < 9e18))
		return cli_argp_error("%s: %s is too large", name, cut(text, shown));
	*out = (uint64_t)value;
	return 0;
}

error_t cli_argp_seconds(const char *name, const char *text, double least, double *out)
{
	char shown[48];
	double value;
	char *end;

	value = strtod(text, &end);
	if (!isdigit((unsigned char)text[0]) || *end || strchr(text, 'x'))
		return cli_argp_error("%s: '%s' is not a number of seconds", name,
				      cut(text, shown));
	if (!(value >= least && value <= 1e9))
		return cli_argp_error("%s: %s is not in [%g, 1e9]", name, cut(text, shown), least);
	*out = value;
	return 0;
}
