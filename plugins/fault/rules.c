/* SPDX-License-Identifier: Apache-2.0 */
/* The rules language: parsing, and the decision what happens to an operation. */
#include "fault.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_OPS                                                                                \
	((1u << FAULT_READ) | (1u << FAULT_WRITE) | (1u << FAULT_STAT) | (1u << FAULT_REMOVE) | \
	 (1u << FAULT_SYNC) | (1u << FAULT_ANY))
#define ALL_OPS ((1u << FAULT_OPS) - 1u)

static const char *const op_names[FAULT_OPS] = {
	[FAULT_READ] = "read",
	[FAULT_WRITE] = "write",
	[FAULT_STAT] = "stat",
	[FAULT_REMOVE] = "remove",
	[FAULT_SYNC] = "sync",
	[FAULT_ANY] = "any",
	[FAULT_SUBMIT] = "submit",
	[FAULT_FILL] = "fill",
	[FAULT_STEP] = "step",
	[FAULT_ALLOC] = "alloc",
	[FAULT_REGISTER] = "register",
	[FAULT_ROOT_OPEN] = "root_open",
	[FAULT_QUEUE_CREATE] = "queue_create",
	[FAULT_CONTAINER_OPEN] = "container_open",
	[FAULT_LIST] = "list",
	[FAULT_USAGE] = "usage",
};

struct parser {
	const char *text;
	const char *token; /* the one that is being read */
	size_t token_bytes;
	uint32_t rule_number;
	char *reason;
	size_t reason_bytes;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct parser *parser,
							const char *format, ...)
{
	char why[256];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	(void)snprintf(parser->reason, parser->reason_bytes,
		       "rules: rule %u, position %zu, \"%.*s\": %s", parser->rule_number,
		       (size_t)(parser->token - parser->text) + 1, (int)parser->token_bytes,
		       parser->token, why);
	return -EINVAL;
}

/* Parsers of one value; NULL = the field was given without one. */

static int parse_count(const struct parser *parser, const char *value, uint64_t *out)
{
	unsigned long long number;
	char *end;

	errno = 0;
	number = value ? strtoull(value, &end, 10) : 0;
	if (!value || value[0] < '0' || value[0] > '9' || errno != 0 || *end != '\0')
		return refuse(parser, "needs =<non-negative integer>");
	*out = number;
	return 0;
}

static int parse_ms(const struct parser *parser, const char *value, uint64_t *out)
{
	int rc = parse_count(parser, value, out);

	if (rc < 0)
		return rc;
	if (*out > 3600000)
		return refuse(parser, "is more than an hour");
	*out *= 1000000;
	return 0;
}

static int parse_positive(const struct parser *parser, const char *value, uint64_t *out)
{
	int rc = parse_count(parser, value, out);

	if (rc < 0)
		return rc;
	return *out != 0 ? 0 : refuse(parser, "counts from 1");
}

/* 0 to 1, as a fraction of 2^32. Not strtod: its decimal point depends on the locale. */
static int parse_chance(const struct parser *parser, const char *value, uint64_t *out)
{
	uint64_t whole = 0;
	uint64_t part = 0;
	uint64_t scale = 1;
	const char *at = value;

	for (; at && *at >= '0' && *at <= '9' && whole <= 1; at++)
		whole = whole * 10 + (uint64_t)(*at - '0');
	if (at && at != value && *at == '.')
		for (at++; *at >= '0' && *at <= '9' && scale < 1000000000; at++, scale *= 10)
			part = part * 10 + (uint64_t)(*at - '0');
	if (!at || at == value || *at != '\0' || whole > 1 || (whole == 1 && part != 0))
		return refuse(parser, "needs =<probability from 0 to 1>");
	*out = (whole << 32) + (part << 32) / scale;
	return 0;
}

static int parse_error(const struct parser *parser, const char *value, int *out)
{
	uint64_t number;

	if (!value)
		return refuse(parser, "needs =<errno name or number>");
	for (int i = 1; i < 4096; i++) {
		const char *name = strerrorname_np(i);

		if (name && strcmp(name, value) == 0) {
			*out = -i;
			return 0;
		}
	}
	if (value[0] < '0' || value[0] > '9')
		return refuse(parser, "is no errno name that this system knows");
	if (parse_count(parser, value, &number) < 0 || number == 0 || number > 4095)
		return refuse(parser, "is no errno number");
	*out = -(int)number;
	return 0;
}

static int parse_text(const struct parser *parser, const char *value, char **out)
{
	if (!value || value[0] == '\0')
		return refuse(parser, "needs =<pattern>");
	free(*out);
	*out = strdup(value);
	return *out ? 0 : -ENOMEM;
}

static int set_effect(const struct parser *parser, struct fault_rule *rule,
		      enum fault_effect effect, uint32_t ops)
{
	if (!(ops & (1u << rule->op)))
		return refuse(parser, "does not apply to %s", op_names[rule->op]);
	/* error= beside late says which error; the order of the two does not matter. */
	if (effect == FAULT_ERROR && rule->effect == FAULT_LATE)
		return 0;
	if (rule->effect != FAULT_NONE && !(effect == FAULT_LATE && rule->effect == FAULT_ERROR))
		return refuse(parser, "is the second effect of this rule");
	rule->effect = effect;
	return 0;
}

static int parse_condition(const struct parser *parser, struct fault_rule *rule, const char *field,
			   const char *value, bool *out_known)
{
	*out_known = true;
	if (strcmp(field, "nth") == 0)
		return parse_positive(parser, value, &rule->nth);
	if (strcmp(field, "every") == 0)
		return parse_positive(parser, value, &rule->every);
	if (strcmp(field, "after") == 0)
		return parse_count(parser, value, &rule->after);
	if (strcmp(field, "count") == 0)
		return parse_count(parser, value, &rule->count);
	if (strcmp(field, "p") == 0)
		return parse_chance(parser, value, &rule->chance);
	if (strcmp(field, "name") == 0)
		return parse_text(parser, value, &rule->name);
	*out_known = false;
	return 0;
}

/* What an effect takes after its name. */
enum takes {
	TAKES_NOTHING,
	TAKES_ERROR,
	TAKES_BYTES,
	TAKES_MS,
	TAKES_STEP,
};

static const struct {
	const char *field;
	enum fault_effect effect;
	enum takes takes;
	uint32_t ops;
} effects[] = {
	{ "error", FAULT_ERROR, TAKES_ERROR, ALL_OPS & ~(1u << FAULT_STEP) },
	{ "eagain", FAULT_ERROR, TAKES_NOTHING, 1u << FAULT_SUBMIT },
	{ "short", FAULT_SHORT, TAKES_BYTES,
	  (1u << FAULT_READ) | (1u << FAULT_WRITE) | (1u << FAULT_SUBMIT) },
	{ "corrupt", FAULT_CORRUPT, TAKES_NOTHING, (1u << FAULT_READ) | (1u << FAULT_WRITE) },
	{ "torn", FAULT_TORN, TAKES_NOTHING, 1u << FAULT_WRITE },
	{ "swap", FAULT_SWAP, TAKES_NOTHING, 1u << FAULT_READ },
	{ "stall", FAULT_STALL, TAKES_NOTHING, DATA_OPS },
	{ "stall_ms", FAULT_STALL, TAKES_MS, DATA_OPS },
	{ "late", FAULT_LATE, TAKES_NOTHING, 1u << FAULT_READ },
	{ "late_ms", FAULT_LATE, TAKES_MS, 1u << FAULT_READ },
	{ "kill", FAULT_KILL, TAKES_STEP, 1u << FAULT_STEP },
};

static int parse_effect(const struct parser *parser, struct fault_rule *rule, const char *field,
			const char *value)
{
	size_t i = 0;
	int rc;

	if (strcmp(field, "delay_ms") == 0) {
		if (rule->op == FAULT_SUBMIT || rule->op == FAULT_STEP)
			return refuse(parser, "does not apply to %s", op_names[rule->op]);
		return parse_ms(parser, value, &rule->delay_ns);
	}
	while (i < sizeof(effects) / sizeof(effects[0]) && strcmp(effects[i].field, field) != 0)
		i++;
	if (i == sizeof(effects) / sizeof(effects[0]))
		return refuse(parser, "is neither a condition nor an effect");
	rc = set_effect(parser, rule, effects[i].effect, effects[i].ops);
	if (rc < 0)
		return rc;
	if (effects[i].takes == TAKES_NOTHING && value)
		return refuse(parser, "takes no value");
	switch (effects[i].takes) {
	case TAKES_ERROR:
		return parse_error(parser, value, &rule->error);
	case TAKES_BYTES:
		return parse_count(parser, value, &rule->bytes);
	case TAKES_MS:
		return parse_ms(parser, value, &rule->hold_ns);
	case TAKES_STEP:
		return parse_text(parser, value, &rule->step);
	case TAKES_NOTHING:
		break;
	}
	if (effects[i].effect == FAULT_ERROR)
		rule->error = -EAGAIN;
	else if (effects[i].effect == FAULT_STALL)
		rule->hold_ns = FAULT_FOREVER;
	else if (effects[i].effect == FAULT_LATE)
		rule->hold_ns = 10000000;
	return 0;
}

static int parse_op(const struct parser *parser, struct fault_rule *rule, const char *token)
{
	for (int op = 0; op < FAULT_OPS; op++) {
		if (strcmp(op_names[op], token) == 0) {
			rule->op = (enum fault_op)op;
			return 0;
		}
	}
	return refuse(parser, "is no operation that rules can be about");
}

static int parse_token(const struct parser *parser, struct fault_rule *rule, bool first)
{
	char *token = strndup(parser->token, parser->token_bytes);
	bool known = false;
	char *value;
	int rc;

	if (!token)
		return -ENOMEM;
	if (first) {
		rc = parse_op(parser, rule, token);
		goto out;
	}
	value = strchr(token, '=');
	if (value)
		*value++ = '\0';
	rc = parse_condition(parser, rule, token, value, &known);
	if (rc == 0 && !known)
		rc = parse_effect(parser, rule, token, value);
out:
	free(token);
	return rc;
}

/* One rule, from `at` to `end`. A rule without a token is none. */
static int parse_rule(struct parser *parser, struct fault_rules *rules, const char *at,
		      const char *end)
{
	struct fault_rule *rule = &rules->rules[rules->count];
	bool first = true;
	int rc = 0;

	at += strspn(at, " \t\r\n");
	if (at >= end)
		return 0;
	parser->token = at;
	parser->token_bytes = (size_t)(end - at);
	parser->rule_number = rules->count + 1;
	if (rules->count == FAULT_MAX_RULES)
		return refuse(parser, "there are more than %u rules", FAULT_MAX_RULES);
	rules->count++; /* so that it is freed */
	*rule = (struct fault_rule){ .count = UINT64_MAX, .chance = UINT64_MAX };
	rule->text = strndup(at, (size_t)(end - at));
	if (!rule->text)
		return -ENOMEM;
	for (; at < end && rc == 0; at += strspn(at, " \t\r\n")) {
		parser->token = at;
		parser->token_bytes = strcspn(at, " \t\r\n;");
		at += parser->token_bytes;
		rc = parse_token(parser, rule, first);
		first = false;
	}
	if (rc == 0 && rule->effect == FAULT_NONE && rule->delay_ns == 0)
		rc = refuse(parser, "the rule ends without an effect");
	if (rc == 0 && rule->effect == FAULT_LATE && rule->error == 0)
		rule->error = -EIO;
	return rc;
}

int fault_rules_parse(struct fault_rules *rules, const char *text, uint64_t seed, char *reason,
		      size_t reason_bytes)
{
	struct parser parser = { .text = text, .reason = reason, .reason_bytes = reason_bytes };
	const char *at = text;
	int rc = 0;

	rules->seed = seed;
	rules->count = 0;
	(void)pthread_mutex_init(&rules->lock, NULL);
	for (;;) {
		const char *end = at + strcspn(at, ";");

		rc = parse_rule(&parser, rules, at, end);
		if (rc < 0 || *end == '\0')
			break;
		at = end + 1;
	}
	if (rc < 0)
		fault_rules_free(rules);
	return rc;
}

void fault_rules_free(struct fault_rules *rules)
{
	for (uint32_t i = 0; i < rules->count; i++) {
		free(rules->rules[i].text);
		free(rules->rules[i].step);
		free(rules->rules[i].name);
	}
	rules->count = 0;
	(void)pthread_mutex_destroy(&rules->lock);
}

bool fault_rules_have(const struct fault_rules *rules, enum fault_op op)
{
	for (uint32_t i = 0; i < rules->count; i++)
		if (rules->rules[i].op == op)
			return true;
	return false;
}

/* One well mixed number per (seed, rule, occurrence): rules do not disturb one another. */
static uint64_t random_of(uint64_t seed, uint32_t rule, uint64_t seen)
{
	uint64_t x = seed + UINT64_C(0x9e3779b97f4a7c15) * (seen + 1) + ((uint64_t)rule << 56);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static bool rule_matches(const struct fault_rule *rule, enum fault_op op, const char *name)
{
	if (rule->op != op && !(rule->op == FAULT_ANY && op < FAULT_ANY))
		return false;
	if (rule->step && (!name || fnmatch(rule->step, name, 0) != 0))
		return false;
	return !rule->name || (name && fnmatch(rule->name, name, 0) == 0);
}

static bool rule_fires(const struct fault_rule *rule, uint64_t random)
{
	uint64_t n = rule->seen - rule->after;

	if (rule->seen <= rule->after || rule->applied >= rule->count)
		return false;
	if ((rule->nth != 0 && n != rule->nth) || (rule->every != 0 && n % rule->every != 0))
		return false;
	return (random >> 32) < rule->chance;
}

void fault_rules_decide(struct fault_rules *rules, enum fault_op op, const char *name,
			struct fault_plan *out)
{
	*out = (struct fault_plan){ .effect = FAULT_NONE };
	if (rules->count == 0)
		return;
	pthread_mutex_lock(&rules->lock);
	for (uint32_t i = 0; i < rules->count; i++) {
		struct fault_rule *rule = &rules->rules[i];
		uint64_t random;

		if (!rule_matches(rule, op, name))
			continue;
		random = random_of(rules->seed, i, ++rule->seen);
		if ((rule->effect != FAULT_NONE && out->effect != FAULT_NONE) ||
		    !rule_fires(rule, random))
			continue;
		rule->applied++;
		out->delay_ns += rule->delay_ns;
		if (rule->effect == FAULT_NONE)
			continue;
		out->effect = rule->effect;
		out->error = rule->error;
		out->bytes = rule->bytes;
		out->hold_ns = rule->hold_ns;
		out->random = random_of(~rules->seed, i, rule->seen);
	}
	pthread_mutex_unlock(&rules->lock);
}
