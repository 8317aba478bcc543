/* SPDX-License-Identifier: Apache-2.0 */
/* What a replay found, and how it is shown: text, JSON, and a page with pictures. */
#ifndef KVC_CLI_REPLAY_OUTPUT_H
#define KVC_CLI_REPLAY_OUTPUT_H

#include "cli.h"
#include "replay_player.h"

#define OUTCOME_SETTINGS_MAX 24

struct outcome_setting {
	const char *name;
	char value[120];
};

struct replay_outcome {
	const char *trace; /* as typed */
	enum replay_form form;
	struct outcome_setting settings[OUTCOME_SETTINGS_MAX];
	size_t setting_count;

	struct stats_pass total;
	struct stats_pass *passes;
	size_t pass_count;
	struct stats_operation operations[KVC_OPERATION_COUNT];
	double busy_s[KVC_OPERATION_COUNT];
	struct stats_series series;

	double store_cpu_s; /* of the process without making and comparing pages */
	uint64_t objects;   /* moved by get and set */
	uint64_t checked_pages;
	uint64_t wrong_pages;
	uint64_t wrong_bytes;
	struct replay_wrong wrong;
	uint64_t bad_lines;
	uint64_t dropped;
	bool interrupted;

	const char *config_text; /* redacted; may be NULL */
	const char *store_text;	 /* may be NULL */
};

void outcome_setting_add(struct replay_outcome *outcome, const char *name, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

extern const char *const outcome_operation_names[KVC_OPERATION_COUNT];

/* 10^9 bytes per second while at least one call was running; 0 when there was none. */
double outcome_gb_per_s(const struct replay_outcome *outcome, unsigned op);
/* CPU of the store per object that get and set moved, in microseconds. */
double outcome_cpu_us(const struct replay_outcome *outcome);

void outcome_print(struct kvc_cli *cli, const struct replay_outcome *outcome);
json_t *outcome_json(const struct replay_outcome *outcome);

/* The whole page. 0 or a negative errno of the file. */
int outcome_report(FILE *file, const struct replay_outcome *outcome);

#endif
