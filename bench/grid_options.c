/* SPDX-License-Identifier: Apache-2.0 */
#include "grid.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const grid_engine_names[] = { "io_uring", "linux_aio", "threads", "posix_aio", NULL };
const char *const grid_layout_names[] = { "files", "packed", NULL };
const char *const grid_checksum_names[] = { "full", "sector", "none", NULL };
const char *const grid_slot_names[] = { "recycled", "fresh", NULL };
const char *const grid_state_names[] = { "warm", "cold", NULL };
const char *const grid_op_names[] = { "set", "exists_hit", "exists_miss", "exists_stop",
				      "get", "mixed",	   NULL };
static const char *const direct_names[] = { "no", "yes", NULL };

enum option_kind {
	KIND_TEXT,
	KIND_FLAG,
	KIND_NUMBER,  /* uint32_t */
	KIND_SIZE,    /* uint64_t */
	KIND_NUMBERS, /* struct grid_list, as the next two */
	KIND_SIZES,
	KIND_NAMES,
	KIND_SETTING,
	KIND_HELP,
};

/* One row: how it is given, where it goes, what it is without being given. */
struct option_row {
	const char *name;
	enum option_kind kind;
	size_t offset;
	const char *const *names;
	const char *value;
	const char *help;
};

#define AT(field) offsetof(struct grid_options, field)

static const struct option_row rows[] = {
	{ "folder", KIND_TEXT, AT(folder), NULL, NULL, "where stores are made; needed" },
	{ "part-bytes", KIND_SIZES, AT(part_bytes), NULL, "64K,256K,1M",
	  "bytes of a page's K or V, multiples of 4K" },
	{ "batch", KIND_NUMBERS, AT(batches), NULL, "128", "pages per call" },
	{ "threads", KIND_NUMBERS, AT(threads), NULL, "1", "threads that call at the same time" },
	{ "layouts", KIND_NAMES, AT(layouts), grid_layout_names, "files,packed", NULL },
	{ "engines", KIND_NAMES, AT(engines), grid_engine_names, "io_uring", NULL },
	{ "direct", KIND_NAMES, AT(directs), direct_names, "yes", "O_DIRECT" },
	{ "checksums", KIND_NAMES, AT(checksums), grid_checksum_names, "full", NULL },
	{ "slots", KIND_NAMES, AT(slots), grid_slot_names, "recycled", "of the layout packed" },
	{ "states", KIND_NAMES, AT(states), grid_state_names, "warm",
	  "cold: the first call after the store was opened" },
	{ "ops", KIND_NAMES, AT(ops), grid_op_names,
	  "set,exists_hit,exists_miss,exists_stop,get,mixed", NULL },
	{ "reps", KIND_NUMBER, AT(reps), NULL, "9", "repetitions of each cell" },
	{ "mix", KIND_NUMBER, AT(mix), NULL, "70", "percent of gets among the calls of mixed" },
	{ "register", KIND_FLAG, AT(register_memory), NULL, NULL, "register the host pool" },
	{ "set", KIND_SETTING, 0, NULL, NULL, "KEY=VALUE, one more key of the configuration" },
	{ "fio", KIND_TEXT, AT(fio_script), NULL, NULL, "bench/fio.sh: measure fio as well" },
	{ "fio-depth", KIND_NUMBERS, AT(fio), NULL, "64", "I/Os that fio has in flight" },
	{ "capacity-batches", KIND_NUMBER, AT(capacity_batches), NULL, "6",
	  "what a recycled store holds, in calls of all threads" },
	{ "space", KIND_SIZE, AT(space_bytes), NULL, "4G",
	  "a store of fresh objects begins anew after so many bytes" },
	{ "memory", KIND_SIZE, AT(memory_bytes), NULL, "2G",
	  "stores whose host pool would be larger are left out" },
	{ "json", KIND_FLAG, AT(json), NULL, NULL, "one JSON object per line" },
	{ "keep", KIND_FLAG, AT(keep), NULL, NULL, "leave the folders there" },
	{ "help", KIND_HELP, 0, NULL, NULL, NULL },
};

#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))

static void print_help(void)
{
	printf("bench_grid: set, exists and get of kvcellar over a grid of configurations; lists "
	       "have commas.\n"
	       "Every byte that comes back is compared, outside of the measured time.\n");
	for (size_t i = 0; i < ROW_COUNT - 1; i++) {
		printf("  --%-17s", rows[i].name);
		for (uint32_t k = 0; rows[i].names != NULL && rows[i].names[k] != NULL; k++)
			printf("%s%s", k > 0 ? "|" : "", rows[i].names[k]);
		printf("%s%s", rows[i].names != NULL ? " " : "", rows[i].help ? rows[i].help : "");
		printf(rows[i].value != NULL ? " (%s)\n" : "\n", rows[i].value);
	}
}

static uint64_t parse_number(const char *option, const char *text, bool units)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);
	unsigned shift = 0;

	if (units && *end != '\0' && end[1] == '\0') {
		shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
		end += shift != 0;
	}
	if (*text < '0' || *text > '9' || *end != '\0' || value == 0 || value > UINT32_MAX)
		grid_die("--%s: '%s' is not a number above 0%s", option, text,
			 units ? " with K, M or G" : "");
	return value << shift;
}

static uint64_t parse_name(const struct option_row *row, const char *text)
{
	for (uint64_t i = 0; row->names[i] != NULL; i++)
		if (strcmp(row->names[i], text) == 0)
			return i;
	grid_die("--%s: '%s' is unknown (--help)", row->name, text);
}

static void parse_list(const struct option_row *row, const char *text, struct grid_list *list)
{
	char *copy = strdup(text), *rest = copy, *one;

	list->count = 0;
	while (copy != NULL && (one = strsep(&rest, ",")) != NULL) {
		if (list->count == GRID_LIST_MAX)
			grid_die("--%s: more than %u values", row->name, GRID_LIST_MAX);
		list->values[list->count++] =
			row->kind == KIND_NAMES ?
				parse_name(row, one) :
				parse_number(row->name, one, row->kind == KIND_SIZES);
	}
	free(copy);
}

static void parse_row(struct grid_options *options, const struct option_row *row, const char *text)
{
	void *field = (char *)options + row->offset;
	uint32_t number;
	uint64_t size;
	bool yes = true;

	switch (row->kind) {
	case KIND_TEXT:
		memcpy(field, &text, sizeof(text));
		break;
	case KIND_FLAG:
		memcpy(field, &yes, sizeof(yes));
		break;
	case KIND_NUMBER:
		number = (uint32_t)parse_number(row->name, text, false);
		memcpy(field, &number, sizeof(number));
		break;
	case KIND_SIZE:
		size = parse_number(row->name, text, true);
		memcpy(field, &size, sizeof(size));
		break;
	case KIND_NUMBERS:
	case KIND_SIZES:
	case KIND_NAMES:
		parse_list(row, text, field);
		break;
	case KIND_SETTING:
		if (options->setting_count == GRID_LIST_MAX || strchr(text, '=') == NULL)
			grid_die("--set: '%s' is not KEY=VALUE, or one too many", text);
		options->settings[options->setting_count++] = text;
		break;
	case KIND_HELP:
		print_help();
		exit(0);
	}
}

static void check_values(const struct grid_options *options)
{
	if (options->folder == NULL)
		grid_die("--folder is needed (--help)");
	if (options->mix > 100)
		grid_die("--mix: %u is more than 100 percent", options->mix);
	if (options->capacity_batches < 4)
		grid_die("--capacity-batches: at least 4, or objects go before they are read");
	for (uint32_t i = 0; i < options->part_bytes.count; i++)
		if (options->part_bytes.values[i] % GRID_LAYER_BYTES != 0)
			grid_die("--part-bytes: %llu is no multiple of %u",
				 (unsigned long long)options->part_bytes.values[i],
				 GRID_LAYER_BYTES);
	for (uint32_t i = 0; i < options->batches.count; i++)
		if (options->batches.values[i] > 4096)
			grid_die("--batch: more than 4096 pages");
	for (uint32_t i = 0; i < options->threads.count; i++)
		if (options->threads.values[i] > 64)
			grid_die("--threads: more than 64");
}

void grid_options_parse(struct grid_options *options, int argc, char **argv)
{
	struct option table[ROW_COUNT + 1] = { 0 };
	int at;

	*options = (struct grid_options){ 0 };
	for (size_t i = 0; i < ROW_COUNT; i++) {
		bool bare = rows[i].kind == KIND_FLAG || rows[i].kind == KIND_HELP;

		table[i] = (struct option){ rows[i].name, bare ? no_argument : required_argument,
					    NULL, (int)i };
		if (rows[i].value != NULL)
			parse_row(options, &rows[i], rows[i].value);
	}
	while ((at = getopt_long(argc, argv, "", table, NULL)) != -1) {
		if (at < 0 || (size_t)at >= ROW_COUNT)
			exit(2);
		parse_row(options, &rows[at], optarg);
	}
	if (optind < argc)
		grid_die("unexpected argument '%s'", argv[optind]);
	check_values(options);
}
