/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rootid.h"

#include "core/format.h"
#include "core/log.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

int kvc_uuid_random(uint8_t out[16])
{
	if (getrandom(out, 16, 0) != 16)
		return kvc_fail(-EIO, "no random bytes: %s", strerror(errno));
	out[6] = (uint8_t)((out[6] & 0x0f) | 0x40);
	out[8] = (uint8_t)((out[8] & 0x3f) | 0x80);
	return 0;
}

void kvc_uuid_format(const uint8_t uuid[16], char out[37])
{
	static const char digits[] = "0123456789abcdef";
	char *at = out;

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		*at++ = digits[uuid[i] >> 4];
		*at++ = digits[uuid[i] & 15];
	}
	*at = '\0';
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int kvc_uuid_parse(const char *text, uint8_t out[16])
{
	uint8_t uuid[16];
	const char *at = text;

	for (int i = 0; i < 16; i++) {
		int high, low;

		if (i == 4 || i == 6 || i == 8 || i == 10)
			if (*at++ != '-')
				return -EINVAL;
		high = hex_digit(at[0]);
		low = high < 0 ? -1 : hex_digit(at[1]);
		if (low < 0)
			return -EINVAL;
		uuid[i] = (uint8_t)(high << 4 | low);
		at += 2;
	}
	if (*at)
		return -EINVAL;
	memcpy(out, uuid, sizeof(uuid));
	return 0;
}

int kvc_rootid_new(struct kvc_rootid *out, const char *storage_layout, const char *naming)
{
	struct kvc_rootid id = { .writes_refused = false };
	const int rc = kvc_uuid_random(id.uuid);

	if (rc)
		return rc;
	kvc_uuid_format(id.uuid, id.uuid_text);
	(void)snprintf(id.storage_layout, sizeof(id.storage_layout), "%s", storage_layout);
	(void)snprintf(id.naming, sizeof(id.naming), "%s", naming);
	*out = id;
	return 0;
}

int kvc_rootid_render(const struct kvc_rootid *id, char *buffer, size_t bytes)
{
	const time_t now = time(NULL);
	struct tm utc;
	char created[32];

	(void)gmtime_r(&now, &utc);
	(void)strftime(created, sizeof(created), "%Y-%m-%dT%H:%M:%SZ", &utc);
	return snprintf(buffer, bytes,
			"{\n"
			"  \"format\": {\"major\": %u, \"minor\": %u, \"compat\": [], "
			"\"ro_compat\": [], \"incompat\": []},\n"
			"  \"uuid\": \"%s\",\n"
			"  \"storage_layout\": \"%s\",\n"
			"  \"naming\": \"%s\",\n"
			"  \"created_by\": \"kvcellar %s\",\n"
			"  \"created\": \"%s\"\n"
			"}\n",
			KVC_FORMAT_MAJOR, KVC_FORMAT_MINOR, id->uuid_text, id->storage_layout,
			id->naming, kvc_version(), created);
}

/* Words or bits that somebody has set: [] and 0 are none, whatever else is there is some. */
static bool has_words(const json_t *json)
{
	if (json_is_array(json))
		return json_array_size(json) > 0;
	return json && !(json_is_integer(json) && json_integer_value(json) == 0);
}

static int check_version(const json_t *format, const char *where, struct kvc_rootid *out)
{
	const json_t *major = json_object_get(format, "major");
	const json_t *minor = json_object_get(format, "minor");
	const json_t *incompat = json_object_get(format, "incompat");

	if (!json_is_integer(major) || !json_is_integer(minor))
		return kvc_fail(-EUCLEAN, "%s: no format version in it", where);
	if (json_integer_value(major) != KVC_FORMAT_MAJOR)
		return kvc_fail(
			-EPROTONOSUPPORT,
			"%s: format version %lld.%lld, this library reads %u.x: nothing was "
			"touched",
			where, (long long)json_integer_value(major),
			(long long)json_integer_value(minor), KVC_FORMAT_MAJOR);
	if (has_words(incompat))
		return kvc_fail(-EPROTONOSUPPORT,
				"%s: format version %lld.%lld needs \"%s\", which this library "
				"(format %u.%u) does not know: nothing was touched",
				where, (long long)json_integer_value(major),
				(long long)json_integer_value(minor),
				json_is_string(json_array_get(incompat, 0)) ?
					json_string_value(json_array_get(incompat, 0)) :
					"?",
				KVC_FORMAT_MAJOR, KVC_FORMAT_MINOR);
	out->writes_refused = has_words(json_object_get(format, "ro_compat"));
	return 0;
}

static int copy_word(const json_t *json, const char *key, const char *where, char *out,
		     size_t bytes)
{
	const char *text = json_string_value(json_object_get(json, key));

	if (!text || !*text || strlen(text) >= bytes ||
	    text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-")])
		return kvc_fail(-EUCLEAN, "%s: \"%s\" is missing or no word", where, key);
	(void)snprintf(out, bytes, "%s", text);
	return 0;
}

int kvc_rootid_parse(const char *text, size_t bytes, const char *where, struct kvc_rootid *out)
{
	struct kvc_rootid id = { .writes_refused = false };
	const char *uuid;
	json_error_t error;
	json_t *json;
	int rc;

	/* A block-padded text ends in spaces, which JSON allows. */
	json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(json)) {
		rc = kvc_fail(-EUCLEAN, "%s: line %d: %s", where, json ? 1 : error.line,
			      json ? "no JSON object" : error.text);
		goto out;
	}
	rc = check_version(json_object_get(json, "format"), where, &id);
	if (rc)
		goto out;
	uuid = json_string_value(json_object_get(json, "uuid"));
	if (!uuid || kvc_uuid_parse(uuid, id.uuid)) {
		rc = kvc_fail(-EUCLEAN, "%s: \"uuid\" is missing or no UUID", where);
		goto out;
	}
	kvc_uuid_format(id.uuid, id.uuid_text);
	rc = copy_word(json, "storage_layout", where, id.storage_layout, sizeof(id.storage_layout));
	if (!rc)
		rc = copy_word(json, "naming", where, id.naming, sizeof(id.naming));
	if (!rc)
		*out = id;
out:
	json_decref(json);
	return rc;
}
