/* SPDX-License-Identifier: Apache-2.0 */
/* One value against one row of an option table: one rule for all formats and the environment. */
#include "core/config_value.h"
#include "core/config_parse.h"
#include "core/log.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int kvc_boolean_parse(const char *text, bool *out)
{
	static const char *const yes[] = { "true", "yes", "on", "1" };
	static const char *const no[] = { "false", "no", "off", "0" };

	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		if (strcasecmp(text, yes[i]) == 0) {
			*out = true;
			return 0;
		}
		if (strcasecmp(text, no[i]) == 0) {
			*out = false;
			return 0;
		}
	}
	return -EINVAL;
}

/* The number at the start of `text`; *end behind it. */
static int parse_number_prefix(const char *text, double *out, const char **end)
{
	const char *p = text + (*text == '-' || *text == '+');
	locale_t c_locale;
	char *stop;
	double number;

	if (!(*p >= '0' && *p <= '9') && !(*p == '.' && p[1] >= '0' && p[1] <= '9'))
		return -EINVAL; /* also "inf" and "nan" */
	if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X'))
		return -EINVAL;
	c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	if (!c_locale)
		return -ENOMEM;
	number = strtod_l(text, &stop, c_locale);
	freelocale(c_locale);
	if (!isfinite(number))
		return -EINVAL;
	*out = number;
	*end = stop;
	return 0;
}

int kvc_number_parse(const char *text, double *out)
{
	const char *end;
	double number;
	int rc = parse_number_prefix(text, &number, &end);

	if (rc < 0)
		return rc;
	if (*end)
		return -EINVAL;
	*out = number;
	return 0;
}

static int parse_integer(const char *text, int64_t *out)
{
	const char *digits = text + (*text == '-' || *text == '+');
	long long number;

	if (!*digits || strspn(digits, "0123456789") != strlen(digits))
		return -EINVAL;
	errno = 0;
	number = strtoll(text, NULL, 10);
	if (errno == ERANGE)
		return -ERANGE;
	*out = number;
	return 0;
}

static int unit_factor(const char *unit, int64_t *out)
{
	static const char letters[] = "KMGTP";
	const char *letter;
	int64_t base, factor = 1;

	if (!*unit || strcasecmp(unit, "B") == 0) {
		*out = 1;
		return 0;
	}
	letter = strchr(letters, *unit >= 'a' && *unit <= 'z' ? *unit - 'a' + 'A' : *unit);
	if (!letter)
		return -EINVAL;
	if (!unit[1] || strcasecmp(unit + 1, "iB") == 0)
		base = 1024;
	else if (strcasecmp(unit + 1, "B") == 0)
		base = 1000;
	else
		return -EINVAL;
	for (ptrdiff_t i = 0; i <= letter - letters; i++)
		factor *= base;
	*out = factor;
	return 0;
}

int kvc_size_parse(const char *text, int64_t *out)
{
	size_t digits = strspn(text, "0123456789");
	const char *unit = text + digits;
	int64_t factor, whole;
	double number;
	int rc;

	if (digits > 0 && *unit != '.' && *unit != 'e' && *unit != 'E') {
		errno = 0;
		whole = strtoll(text, NULL, 10);
		if (errno == ERANGE)
			return -ERANGE;
		rc = unit_factor(unit + strspn(unit, " "), &factor);
		if (rc < 0)
			return rc;
		if (__builtin_mul_overflow(whole, factor, &whole))
			return -ERANGE;
		*out = whole;
		return 0;
	}
	rc = parse_number_prefix(text, &number, &unit);
	if (rc < 0)
		return rc;
	rc = unit_factor(unit + strspn(unit, " "), &factor);
	if (rc < 0)
		return rc;
	number *= (double)factor;
	if (number < 0)
		return -EINVAL;
	if (number >= 9.2e18)
		return -ERANGE;
	*out = (int64_t)number;
	return 0;
}

/* Bytes of the UTF-8 sequence at text, or 0 when it is none. Overlong forms pass: nothing here
 * decodes them. */
static size_t sequence_bytes(const char *text)
{
	unsigned char first = (unsigned char)text[0];
	size_t bytes = first >= 0xf0 && first < 0xf5 ? 4 :
		       first >= 0xe0		     ? 3 :
		       first >= 0xc2		     ? 2 :
						       1;

	if (first >= 0xf5 || (first >= 0x80 && bytes == 1))
		return 0;
	for (size_t i = 1; i < bytes; i++)
		if (((unsigned char)text[i] & 0xc0) != 0x80)
			return 0;
	return bytes;
}

const char *kvc_quote(char buffer[KVC_QUOTED_BYTES], const char *text)
{
	size_t used = 1, bytes;

	buffer[0] = '"';
	for (; *text; text += bytes) {
		unsigned char c = (unsigned char)*text;

		bytes = sequence_bytes(text);
		if (used + 10 >= KVC_QUOTED_BYTES) {
			used += (size_t)snprintf(buffer + used, KVC_QUOTED_BYTES - used, "...");
			break;
		}
		if (c < 0x20 || c == 0x7f || c == '"' || c == '\\' || bytes == 0) {
			bytes = 1;
			used += (size_t)snprintf(buffer + used, KVC_QUOTED_BYTES - used, "\\x%02x",
						 c);
		} else {
			memcpy(buffer + used, text, bytes);
			used += bytes;
		}
	}
	buffer[used++] = '"';
	buffer[used] = '\0';
	return buffer;
}

/* What was found, for an error text. A secret's value is not told. */
static const char *describe_found(char buffer[KVC_QUOTED_BYTES], const struct kvc_option *option,
				  const json_t *value)
{
	if (json_is_object(value))
		return "a table";
	if (json_is_array(value))
		return "a list";
	if (option->flags & KVC_OPTION_SECRET)
		return "another type (not shown: it is a secret)";
	if (json_is_string(value))
		return kvc_quote(buffer, json_string_value(value));
	if (json_is_integer(value))
		(void)snprintf(buffer, KVC_QUOTED_BYTES, "the number %" JSON_INTEGER_FORMAT,
			       json_integer_value(value));
	else if (json_is_real(value))
		(void)snprintf(buffer, KVC_QUOTED_BYTES, "the number %g", json_real_value(value));
	else
		(void)snprintf(buffer, KVC_QUOTED_BYTES, "%s",
			       json_is_true(value)  ? "true" :
			       json_is_false(value) ? "false" :
						      "null");
	return buffer;
}

static int fail_type(const struct kvc_option *option, const char *path, const json_t *value,
		     const char *expected)
{
	char buffer[KVC_QUOTED_BYTES];

	return kvc_fail(-EINVAL, "%s: expected %s, found %s", path, expected,
			describe_found(buffer, option, value));
}

/* The text of a string without NUL inside, else NULL. */
static const char *plain_text(const json_t *value)
{
	const char *text = json_string_value(value);

	return text && strlen(text) == json_string_length(value) ? text : NULL;
}

/* "[low, high]" or ">= low" against a number. */
static bool in_range(const char *range, double number)
{
	double low, high;
	const char *end;

	if (range[0] == '[') {
		if (parse_number_prefix(range + 1, &low, &end) < 0 || *end != ',' ||
		    parse_number_prefix(end + 1 + strspn(end + 1, " "), &high, &end) < 0)
			return false;
		return number >= low && number <= high;
	}
	if (strncmp(range, ">= ", 3) == 0)
		return parse_number_prefix(range + 3, &low, &end) == 0 && number >= low;
	return true;
}

/* Is `word` one of the words of "a | b | c"? An empty range allows all. */
static bool in_words(const char *range, const char *word, size_t bytes)
{
	const char *bar;
	size_t length;

	if (!*range)
		return true;
	for (;; range = bar + 3) {
		bar = strstr(range, " | ");
		length = bar ? (size_t)(bar - range) : strlen(range);
		if (length == bytes && memcmp(range, word, bytes) == 0)
			return true;
		if (!bar)
			return false;
	}
}

static int check_boolean(const struct kvc_option *option, const char *path, const json_t *value,
			 json_t **out)
{
	const char *text = plain_text(value);
	bool flag = false;
	int rc = -EINVAL;

	if (json_is_boolean(value)) {
		flag = json_is_true(value);
		rc = 0;
	} else if (json_is_integer(value)) {
		flag = json_integer_value(value) == 1;
		rc = flag || json_integer_value(value) == 0 ? 0 : -EINVAL;
	} else if (text) {
		rc = kvc_boolean_parse(text, &flag);
		/* "auto" of an option whose default is neither */
		if (rc < 0 && strcasecmp(text, option->default_value) == 0) {
			*out = json_string(option->default_value);
			return *out ? 0 : -ENOMEM;
		}
	}
	if (rc < 0)
		return fail_type(option, path, value,
				 "a boolean (true or false; also yes/no, on/off, 1/0)");
	*out = json_boolean(flag);
	return 0;
}

static int fail_range(const struct kvc_option *option, const char *path, const json_t *value)
{
	char buffer[KVC_QUOTED_BYTES];
	bool words = strstr(option->range, " | ") != NULL;

	return kvc_fail(-EINVAL, "%s: %s is %s %s", path, describe_found(buffer, option, value),
			words ? "not one of" : "outside", option->range);
}

static int check_integer(const struct kvc_option *option, const char *path, const json_t *value,
			 json_t **out)
{
	const char *text = plain_text(value);
	int64_t number = 0;

	if (json_is_integer(value))
		number = json_integer_value(value);
	else if (!text || parse_integer(text, &number) < 0)
		return fail_type(option, path, value, "an integer");
	if (!in_range(option->range, (double)number))
		return fail_range(option, path, value);
	*out = json_integer(number);
	return *out ? 0 : -ENOMEM;
}

static int check_float(const struct kvc_option *option, const char *path, const json_t *value,
		       json_t **out)
{
	const char *text = plain_text(value);
	double number = 0;

	if (json_is_number(value))
		number = json_number_value(value);
	else if (!text || kvc_number_parse(text, &number) < 0)
		return fail_type(option, path, value, "a number");
	if (!in_range(option->range, number))
		return fail_range(option, path, value);
	*out = json_real(number);
	return *out ? 0 : -ENOMEM;
}

static int check_percent(const struct kvc_option *option, const char *path, const json_t *value,
			 json_t **out)
{
	char number_text[32];
	const char *text = json_string_value(value);
	size_t bytes = strlen(text) - 1;
	double number;
	char *normal;

	while (bytes > 0 && text[bytes - 1] == ' ')
		bytes--;
	if (bytes >= sizeof(number_text))
		return fail_type(option, path, value, "a size or a percentage");
	memcpy(number_text, text, bytes);
	number_text[bytes] = '\0';
	if (kvc_number_parse(number_text, &number) < 0)
		return fail_type(option, path, value, "a size or a percentage");
	if (number < 0 || number > 100 || (*option->range && !(number > 0)))
		return kvc_fail(-EINVAL, "%s: %s", path,
				*option->range ? "a percentage lies above 0 and up to 100" :
						 "a percentage lies between 0 and 100");
	*out = json_real(number);
	normal = kvc_value_text(*out);
	json_decref(*out);
	*out = normal ? json_sprintf("%s%%", normal) : NULL;
	free(normal);
	return *out ? 0 : -ENOMEM;
}

static int check_size(const struct kvc_option *option, const char *path, const json_t *value,
		      json_t **out)
{
	const char *text = plain_text(value);
	int64_t bytes = 0;
	int rc = 0;

	if (json_is_integer(value)) {
		bytes = json_integer_value(value);
	} else if (json_is_real(value)) {
		if (json_real_value(value) != floor(json_real_value(value)) ||
		    json_real_value(value) >= 9.2e18 || json_real_value(value) < 0)
			return fail_type(option, path, value, "a whole number of bytes");
		bytes = (int64_t)json_real_value(value);
	} else if (text && *text && text[strlen(text) - 1] == '%' && strchr(option->unit, '%')) {
		return check_percent(option, path, value, out);
	} else {
		rc = text ? kvc_size_parse(text, &bytes) : -EINVAL;
	}
	if (rc == -ERANGE)
		return kvc_fail(-EINVAL, "%s: the size does not fit in 63 bits", path);
	if (rc < 0)
		return fail_type(option, path, value,
				 strchr(option->unit, '%') ?
					 "a size (bytes, \"500GiB\") or a percentage (\"80%\")" :
					 "a size (bytes, \"500GiB\")");
	if (bytes < 0)
		return kvc_fail(-EINVAL, "%s: a size cannot be negative", path);
	if (!in_range(option->range, (double)bytes))
		return fail_range(option, path, value);
	*out = json_integer(bytes);
	return *out ? 0 : -ENOMEM;
}

static int check_string(const struct kvc_option *option, const char *path, const json_t *value,
			json_t **out)
{
	const char *text = plain_text(value);

	if (json_is_string(value) && !text)
		return kvc_fail(-EINVAL, "%s: a NUL byte inside the text", path);
	if (json_is_number(value) && !*option->range)
		return fail_type(option, path, value, "a text (put it in quotes)");
	if (!text)
		return fail_type(option, path, value, *option->range ? option->range : "a text");
	if (!in_words(option->range, text, strlen(text)))
		return fail_range(option, path, value);
	*out = json_string(text);
	return *out ? 0 : -ENOMEM;
}

/* Appends one entry of a list, trimmed when it comes from a comma list. */
static int append_entry(const struct kvc_option *option, const char *path, const char *text,
			size_t bytes, json_t *list)
{
	char buffer[KVC_QUOTED_BYTES];
	json_t *entry;

	if (bytes == 0)
		return kvc_fail(-EINVAL, "%s: an empty entry in the list", path);
	entry = json_stringn(text, bytes);
	if (!entry)
		return -ENOMEM;
	if (!in_words(option->range, text, bytes)) {
		(void)kvc_fail(-EINVAL, "%s: %s is not one of %s", path,
			       kvc_quote(buffer, json_string_value(entry)), option->range);
		json_decref(entry);
		return -EINVAL;
	}
	for (size_t i = 0; i < json_array_size(list); i++) {
		if (!json_equal(json_array_get(list, i), entry))
			continue;
		(void)kvc_fail(-EINVAL, "%s: %s is listed twice", path,
			       kvc_quote(buffer, json_string_value(entry)));
		json_decref(entry);
		return -EINVAL;
	}
	return json_array_append_new(list, entry) < 0 ? -ENOMEM : 0;
}

static int split_commas(const struct kvc_option *option, const char *path, const char *text,
			json_t *list)
{
	const char *comma, *start, *end;
	int rc;

	for (;; text = comma + 1) {
		comma = strchr(text, ',');
		start = text + strspn(text, " \t");
		end = comma ? comma : text + strlen(text);
		while (end > start && (end[-1] == ' ' || end[-1] == '\t'))
			end--;
		rc = append_entry(option, path, start, (size_t)(end - start), list);
		if (rc < 0 || !comma)
			return rc;
	}
}

static int copy_elements(const struct kvc_option *option, const char *path, const json_t *value,
			 json_t *list)
{
	const char *text;
	json_t *element;
	size_t i;
	int rc = 0;

	json_array_foreach(value, i, element)
	{
		text = plain_text(element);
		rc = text ? append_entry(option, path, text, strlen(text), list) :
			    fail_type(option, path, element, "a list of texts");
		if (rc < 0)
			return rc;
	}
	return json_array_size(list) == 0 ? kvc_fail(-EINVAL, "%s: the list is empty", path) : 0;
}

/* ["a", "b"] where only texts can be given: a variable of the environment, kvc_config_set(). */
static int read_brackets(const struct kvc_option *option, const char *path, const char *text,
			 json_t *list)
{
	struct kvc_syntax_error error = { 0 };
	char buffer[KVC_QUOTED_BYTES];
	json_t *value = NULL;
	int rc;

	rc = kvc_json_parse(text, strlen(text), &value, &error);
	if (rc == -EINVAL)
		return kvc_fail(-EINVAL,
				"%s: %s begins as a list in brackets does and is none: %s; without "
				"brackets it is entries with commas between, and \"./[a\" is the "
				"folder \"[a\"",
				path, kvc_quote(buffer, text), error.text);
	if (rc == 0)
		rc = copy_elements(option, path, value, list);
	json_decref(value);
	return rc;
}

static int check_list(const struct kvc_option *option, const char *path, const json_t *value,
		      json_t **out)
{
	const char *text = plain_text(value);
	json_t *list = json_array();
	int rc;

	if (!list)
		return -ENOMEM;
	if (text && text[strspn(text, " \t")] == '[')
		rc = read_brackets(option, path, text, list);
	else if (text)
		rc = split_commas(option, path, text, list);
	else if (json_is_array(value))
		rc = copy_elements(option, path, value, list);
	else
		rc = fail_type(option, path, value, "a list of texts, or one text with commas");
	if (rc < 0) {
		json_decref(list);
		return rc;
	}
	*out = list;
	return 0;
}

int kvc_value_check(const struct kvc_option *option, const char *path, const json_t *value,
		    json_t **out)
{
	static const struct {
		const char *type;
		int (*check)(const struct kvc_option *option, const char *path, const json_t *value,
			     json_t **out);
	} checks[] = {
		{ "boolean", check_boolean }, { "integer", check_integer },
		{ "float", check_float },     { "size", check_size },
		{ "list", check_list },	      { "string", check_string },
	};

	if (option->flags & KVC_OPTION_BOOL_STRING)
		return check_boolean(option, path, value, out);
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		if (strcmp(option->type, checks[i].type) == 0)
			return checks[i].check(option, path, value, out);
	return kvc_fail(-EINVAL, "%s: the option table has the unknown type \"%s\"", path,
			option->type);
}

int kvc_value_default(const struct kvc_option *option, json_t **out)
{
	bool is_text = strcmp(option->type, "string") == 0;
	json_t *text;
	int rc;

	if (!*option->default_value && (!is_text || option->flags & KVC_OPTION_UNSET)) {
		*out = json_null();
		return 0;
	}
	text = json_string(option->default_value);
	if (!text)
		return -ENOMEM;
	if (is_text && !(option->flags & KVC_OPTION_BOOL_STRING)) {
		*out = text;
		return 0;
	}
	rc = kvc_value_check(option, option->name, text, out);
	json_decref(text);
	return rc;
}

/* The shortest decimal form that reads back as the same number; '.' in every locale. */
static void print_number(char *buffer, size_t bytes, double number)
{
	double back = 0;

	for (int digits = 15; digits <= 17; digits++) {
		(void)snprintf(buffer, bytes, "%.*g", digits, number);
		for (char *p = buffer; *p; p++)
			if (!strchr("0123456789+-e", *p))
				*p = '.';
		if (kvc_number_parse(buffer, &back) == 0 && !(back < number) && !(back > number))
			return;
	}
}

static char *join_texts(const json_t *list)
{
	struct kvc_dump text = { 0 };
	json_t *element;
	size_t i;

	json_array_foreach(list, i, element)
		kvc_dump_add(&text, "%s%s", i ? "," : "", json_string_value(element));
	if (!text.data)
		kvc_dump_add(&text, "%s", "");
	if (text.failed) {
		free(text.data);
		return NULL;
	}
	return text.data;
}

char *kvc_value_text(const json_t *value)
{
	char buffer[40];

	if (!value)
		return NULL;
	switch (json_typeof(value)) {
	case JSON_STRING:
		return strdup(json_string_value(value));
	case JSON_ARRAY:
		return join_texts(value);
	case JSON_INTEGER:
		(void)snprintf(buffer, sizeof(buffer), "%" JSON_INTEGER_FORMAT,
			       json_integer_value(value));
		return strdup(buffer);
	case JSON_REAL:
		print_number(buffer, sizeof(buffer), json_real_value(value));
		return strdup(buffer);
	case JSON_TRUE:
		return strdup("true");
	case JSON_FALSE:
		return strdup("false");
	default:
		return strdup("");
	}
}
