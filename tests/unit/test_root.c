/* SPDX-License-Identifier: Apache-2.0 */
/* core/root.c, core/selftest.c: identity of a root, its small objects, what a plugin may tell. */
#include "fake.h"

#include "core/rootid.h"
#include "core/selftest.h"

#include <stdio.h>

#define IDENTITY ".kvcellar/root.json"
#define MS	 UINT64_C(1000000)

static struct fake *fake;

static int setup(void **state)
{
	(void)state;
	fake = fake_new();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake_free(fake);
	return 0;
}

static int try_open(struct kvc_root **out)
{
	return kvc_root_open(&fake->store, &fake->backend, "fake0", fake->store.read_only, out);
}

static void put_text(const char *name, const char *text)
{
	fake_put(fake, name, text, strlen(text));
}

static void put_identity(const char *format, const char *layout, const char *naming)
{
	char text[512];

	(void)snprintf(text, sizeof(text),
		       "{\"format\": %s, \"uuid\": \"00112233-4455-6677-8899-aabbccddeeff\", "
		       "\"storage_layout\": \"%s\", \"naming\": \"%s\"}",
		       format, layout, naming);
	put_text(IDENTITY, text);
}

/* ---------------------------------------------------------------- identity */

static void identity_is_made_once_and_kept(void **state)
{
	char uuid[37];

	(void)state;
	fake_open(fake, 1);
	memcpy(uuid, fake_root(fake, 0)->uuid_text, sizeof(uuid));
	assert_int_equal(fake_find(fake, IDENTITY)->bytes % KVC_BLOCK_BYTES, 0);
	assert_int_equal(kvc_root_close(fake_root(fake, 0), 0), 0);
	fake->store.root_count = 0;
	fake_open(fake, 1);
	assert_string_equal(fake_root(fake, 0)->uuid_text, uuid);
}

static void a_read_only_root_gets_no_identity(void **state)
{
	(void)state;
	fake->store.read_only = true;
	fake_open(fake, 1);
	assert_null(fake_find(fake, IDENTITY));
	assert_int_equal(fake->object_count, 0);
}

static void r41_other_versions_and_damage_are_refused(void **state)
{
	static const struct {
		const char *format;
		const char *layout;
		const char *naming;
		int rc;
		const char *text;
	} rows[] = {
		{ "{\"major\": 2, \"minor\": 3}", "files", "kvcellar", -EPROTONOSUPPORT, "2.3" },
		{ "{\"major\": 1, \"minor\": 0, \"incompat\": [\"shards\"]}", "files", "kvcellar",
		  -EPROTONOSUPPORT, "shards" },
		{ "{\"major\": 1, \"minor\": 0, \"incompat\": 4}", "files", "kvcellar",
		  -EPROTONOSUPPORT, "1.0" },
		{ "{\"major\": 1, \"minor\": 0}", "packed", "kvcellar", -ENOTSUP, "packed" },
		{ "{\"major\": 1, \"minor\": 0}", "shelves", "kvcellar", -EINVAL, "shelves" },
		{ "{\"major\": 1, \"minor\": 0}", "files", "nixl", -EINVAL, "nixl" },
		{ "7", "files", "kvcellar", -EUCLEAN, "format" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct kvc_root *root = NULL;
		uint64_t version;

		put_identity(rows[i].format, rows[i].layout, rows[i].naming);
		version = fake_find(fake, IDENTITY)->version;
		assert_int_equal(try_open(&root), rows[i].rc);
		assert_null(root);
		assert_non_null(strstr(kvc_last_error(), rows[i].text));
		assert_int_equal(fake_find(fake, IDENTITY)->version, version);
		assert_int_equal(fake->roots, 0);
	}
}

static void an_unknown_ro_compat_word_refuses_writes(void **state)
{
	(void)state;
	put_identity("{\"major\": 1, \"minor\": 9, \"ro_compat\": [\"x\"]}", "files", "kvcellar");
	fake_open(fake, 1);
	assert_true(fake_root(fake, 0)->writes_refused);
}

static int64_t denied(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_WRITE ? -EACCES : FAKE_NORMAL;
}

static void what_cannot_be_written_is_named(void **state)
{
	struct kvc_root *root = NULL;

	(void)state;
	fake->hook = denied;
	assert_int_equal(try_open(&root), -EACCES);
	assert_non_null(strstr(kvc_last_error(), "fake0/" IDENTITY));
	/* In nixl naming the identity is a convenience. */
	fake->settings.naming = KVC_NAMING_NIXL;
	assert_int_equal(try_open(&root), 0);
	assert_int_equal(kvc_root_close(root, 0), 0);
}

static int64_t lost_the_race(struct fake *f, const struct kvc_descriptor *d,
			     struct kvc_completion *c)
{
	(void)c;
	if (d->op != KVC_OP_WRITE)
		return FAKE_NORMAL;
	f->hook = NULL;
	put_identity("{\"major\": 1, \"minor\": 0}", "files", "kvcellar");
	return -EEXIST;
}

static void the_first_identity_counts(void **state)
{
	(void)state;
	fake->hook = lost_the_race;
	fake_open(fake, 1);
	assert_string_equal(fake_root(fake, 0)->uuid_text, "00112233-4455-6677-8899-aabbccddeeff");
}

/* ---------------------------------------------------------------- what the plugin tells */

static void attributes_that_make_no_sense_are_refused(void **state)
{
	const struct kvc_attributes good = fake->attributes;
	struct kvc_root *root;

	(void)state;
	fake->attributes.alignment = 3;
	assert_int_equal(try_open(&root), -EPROTO);
	fake->attributes.alignment = 8192;
	assert_int_equal(try_open(&root), -EPROTO);
	fake->attributes = good;
	fake->attributes.max_ranges = 0;
	assert_int_equal(try_open(&root), -EPROTO);
	assert_non_null(strstr(kvc_last_error(), "fake0"));
	fake->attributes = good;
	fake->attributes.flags &= ~(uint32_t)KVC_ATTRIBUTE_WHOLE;
	assert_int_equal(try_open(&root), -ENOTSUP);
	fake->attributes = good;
	fake->root_error = -EROFS;
	assert_int_equal(try_open(&root), -EROFS);
	fake->root_error = 0;
	fake->attributes.max_depth = 0; /* taken as 1 */
	fake->attributes.scratch_bytes = 0;
	fake_open(fake, 1);
}

/* The next process has to find the uuid by which objects were routed. */
static void a_removed_identity_is_written_again(void **state)
{
	struct fake_object *object;
	struct kvc_root *root;
	char text[4096];

	(void)state;
	fake_open(fake, 1);
	root = fake_root(fake, 0);
	kvc_root_look_after(root);
	assert_int_equal(kvc_root_remove(root, ".kvcellar/root.json", NULL), 0);
	assert_null(fake_find(fake, ".kvcellar/root.json"));
	kvc_root_look_after(root);
	object = fake_find(fake, ".kvcellar/root.json");
	assert_non_null(object);
	assert_true(object->bytes <= sizeof(text));
	memcpy(text, object->data, object->bytes);
	text[object->bytes - 1] = '\0';
	assert_non_null(strstr(text, root->uuid_text));
	assert_int_equal(kvc_root_remove(root, ".kvcellar/root.json", NULL), 0);
	root->read_only = true;
	kvc_root_look_after(root);
	assert_null(fake_find(fake, ".kvcellar/root.json"));
}

static void a_root_is_trusted_again_after_a_quiet_time(void **state)
{
	struct kvc_root *root;

	(void)state;
	fake_open(fake, 1);
	root = fake_root(fake, 0);
	assert_true(kvc_root_suspect(root));
	assert_false(kvc_root_suspect(root)); /* no news */
	kvc_root_look_after(root);
	assert_int_equal(kvc_root_deadline_kind(root), KVC_DEADLINE_STAGED);
	root->suspect_ms -= 600001;
	kvc_root_look_after(root);
	assert_int_equal(kvc_root_deadline_kind(root), KVC_DEADLINE_SOFT);
}

/* What was logged at level WARNING that has a text in it. */
struct said {
	const char *text;
	int times;
};

static void hear(void *context, int level, const char *line)
{
	struct said *said = context;

	said->times += level == KVC_LOG_WARNING && strstr(line, said->text) != NULL;
}

static void note(const char *text)
{
	(void)snprintf(fake->attributes.note, sizeof(fake->attributes.note), "%s", text);
}

/* Some things turn out when the root has long been open. */
static void a_new_note_is_told_once(void **state)
{
	struct said said = { .text = "fake0: " };
	struct kvc_root *root;

	(void)state;
	note("refused");
	kvc_log_set(hear, &said, KVC_LOG_WARNING);
	fake_open(fake, 1);
	assert_int_equal(said.times, 1);
	root = fake_root(fake, 0);
	kvc_root_look_after(root);
	assert_int_equal(said.times, 1);
	said.text = "fake0: cannot be pinned";
	said.times = 0;
	note("cannot be pinned");
	kvc_root_look_after(root);
	kvc_root_look_after(root);
	assert_int_equal(said.times, 1);
	note(""); /* good news is none */
	kvc_root_look_after(root);
	assert_int_equal(said.times, 1);
	/* One that may not answer is not asked. */
	note("cannot be pinned");
	root->suspect = true;
	root->suspect_ms = kvc_now_ms();
	kvc_root_look_after(root);
	assert_int_equal(said.times, 1);
	root->suspect = false;
	kvc_root_look_after(root);
	assert_int_equal(said.times, 2);
	kvc_log_set(NULL, NULL, KVC_LOG_WARNING);
}

static void deadline_kinds_follow_the_flags(void **state)
{
	struct kvc_root *root;

	(void)state;
	fake_open(fake, 1);
	root = fake_root(fake, 0);
	assert_int_equal(kvc_root_deadline_kind(root), KVC_DEADLINE_SOFT);
	root->suspect = true;
	assert_int_equal(kvc_root_deadline_kind(root), KVC_DEADLINE_STAGED);
	root->attributes.flags |= KVC_ATTRIBUTE_CANCELLABLE;
	assert_int_equal(kvc_root_deadline_kind(root), KVC_DEADLINE_HARD);
	root->attributes.flags &= ~(uint32_t)(KVC_ATTRIBUTE_CANCELLABLE | KVC_ATTRIBUTE_LOCAL);
	root->suspect = false;
	assert_int_equal(kvc_root_deadline_kind(root), KVC_DEADLINE_STAGED);
}

/* ---------------------------------------------------------------- small objects */

static void texts_of_every_length_round_trip(void **state)
{
	static const size_t lengths[] = { 0, 1, 4094, 4095, 4096, 4097, 8191, 8192 };
	char text[8193], back[12288];

	(void)state;
	fake_open(fake, 1);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct kvc_root *root = fake_root(fake, 0);
		int64_t bytes;

		memset(text, 'a' + (int)i, lengths[i]);
		text[lengths[i]] = '\0';
		assert_int_equal(kvc_root_write_text(root, "t", text, false), 0);
		bytes = kvc_root_read_text(root, "t", back, sizeof(back));
		assert_true(bytes > (int64_t)lengths[i] && bytes % KVC_BLOCK_BYTES == 0);
		assert_memory_equal(back, text, lengths[i]);
		for (int64_t b = (int64_t)lengths[i]; b < bytes - 1; b++)
			assert_int_equal(back[b], ' ');
		assert_int_equal(back[bytes - 1], '\n');
	}
	assert_int_equal(kvc_root_write_text(fake_root(fake, 0), "t", "x", true), -EEXIST);
	assert_int_equal(kvc_root_read_text(fake_root(fake, 0), "none", back, 10), -ENOENT);
	assert_int_equal(kvc_root_remove(fake_root(fake, 0), "t", NULL), 0);
	assert_int_equal(kvc_root_remove(fake_root(fake, 0), "t", NULL), -ENOENT);
}

static void a_removal_of_another_version_removes_nothing(void **state)
{
	struct kvc_completion found;
	uint64_t version[2] = { 999, 1 };

	(void)state;
	fake_open(fake, 1);
	put_text("t", "x");
	assert_int_equal(kvc_root_remove(fake_root(fake, 0), "t", version), -ESTALE);
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), "t", &found), 0);
	assert_int_equal(found.object_bytes, 1);
	assert_int_equal(kvc_root_remove(fake_root(fake, 0), "t", found.version), 0);
}

static void names_that_are_too_long_are_refused(void **state)
{
	char name[KVC_PATH_BYTES + 1];

	(void)state;
	fake_open(fake, 1);
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), name, NULL), -ENAMETOOLONG);
	name[KVC_PATH_BYTES - 1] = '\0';
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), name, NULL), -ENOENT);
}

static int64_t too_much(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return d->op == KVC_OP_READ ? 1 << 20 : FAKE_NORMAL;
}

static int64_t stall(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)d, (void)c;
	return FAKE_STALL;
}

static void a_plugin_that_tells_too_many_bytes_overruns_nothing(void **state)
{
	uint8_t block[4096];

	(void)state;
	fake_open(fake, 1);
	put_text("t", "x");
	fake->hook = too_much;
	assert_int_equal(kvc_root_read(fake_root(fake, 0), "t", 0, block, sizeof(block), NULL),
			 -EPROTO);
}

static void queues_that_fail_are_not_used_again(void **state)
{
	struct kvc_completion found;

	(void)state;
	fake->attributes.flags |= KVC_ATTRIBUTE_CANCELLABLE;
	fake_open(fake, 1);
	put_text("t", "x");
	fake->submit_errors = 1;
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), "t", &found), -EIO);
	assert_int_equal(fake->queues, 0);
	fake->poll_errors = 2;
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), "t", &found), -EIO);
	assert_int_equal(fake->queues, 0);
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), "t", &found), 0);
	fake->refuse = 20;
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), "t", &found), 0);
	fake->refuse = UINT32_MAX;
	assert_int_equal(kvc_root_stat_until(fake_root(fake, 0), "t", kvc_now_ns() + 20 * MS,
					     &found),
			 -ETIMEDOUT);
	fake->refuse = 0;
}

/* R33: a local disk that stalls. The call returns, the root is left alone from then on. */
static void r33_what_never_comes_back_is_parked(void **state)
{
	struct kvc_completion found = { .object_bytes = 77 };

	(void)state;
	fake_open(fake, 1);
	put_text("t", "x");
	fake->hook = stall;
	assert_int_equal(kvc_root_stat_until(fake_root(fake, 0), "t", kvc_now_ns() + 20 * MS,
					     &found),
			 -ETIMEDOUT);
	assert_int_equal(found.object_bytes, 77);
	assert_true(fake_root(fake, 0)->suspect);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 1);
	assert_int_equal(kvc_root_close(fake_root(fake, 0), 0), -EBUSY);
	fake->hook = NULL;
	/* Other queues of the root go on. Once it is back, the root can be closed: teardown. */
	assert_int_equal(kvc_root_stat(fake_root(fake, 0), "t", &found), 0);
}

static void r33_a_hard_root_cancels(void **state)
{
	struct kvc_completion found;

	(void)state;
	fake->attributes.flags |= KVC_ATTRIBUTE_CANCELLABLE;
	fake_open(fake, 1);
	fake->hook = stall;
	assert_int_equal(kvc_root_stat_until(fake_root(fake, 0), "t", kvc_now_ns() + 20 * MS,
					     &found),
			 -ETIMEDOUT);
	assert_int_equal(fake_counter(fake, KVC_COUNTER_PARKED_QUEUES), 0);
	assert_int_equal(fake->cancels, 1);
	fake->hook = NULL;
}

/* ---------------------------------------------------------------- limits */

static void room_follows_capacity_and_free_space(void **state)
{
	(void)state;
	fake->total_bytes = 1000000;
	fake->free_bytes = 500000;
	fake->settings.capacity.percent = 10;
	fake->settings.min_free.bytes = 450000;
	fake_open(fake, 1);
	assert_int_equal(fake_root(fake, 0)->capacity_bytes, 100000);
	assert_int_equal(kvc_root_room(fake_root(fake, 0)), 50000);
	fake->free_bytes = 400000;
	assert_int_equal(kvc_root_room(fake_root(fake, 0)), 0);
}

static void a_percentage_of_what_is_not_known_is_refused(void **state)
{
	struct kvc_root *root;

	(void)state;
	fake->usage_error = -ENOTSUP;
	fake->settings.capacity.percent = 10;
	assert_int_equal(try_open(&root), -ENOTSUP);
	assert_non_null(strstr(kvc_last_error(), "capacity"));
	fake->settings.capacity.percent = 0;
	fake_open(fake, 1);
	assert_true(kvc_root_room(fake_root(fake, 0)) == UINT64_MAX);
}

/* ---------------------------------------------------------------- self-test */

static int64_t wrong_bytes(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)c;
	if (d->op == KVC_OP_READ && fake_find(f, d->name))
		fake_find(f, d->name)->data[100] ^= 1;
	return FAKE_NORMAL;
}

static int64_t fails_at[5];

static int64_t by_op(struct fake *f, const struct kvc_descriptor *d, struct kvc_completion *c)
{
	(void)f, (void)c;
	return fails_at[d->op] ? fails_at[d->op] : FAKE_NORMAL;
}

static void the_selftest_finds_each_failure_and_leaves_nothing(void **state)
{
	static const struct {
		uint32_t op;
		const char *what;
	} rows[] = { { KVC_OP_WRITE, "write" },
		     { KVC_OP_STAT, "find" },
		     { KVC_OP_READ, "read" },
		     { KVC_OP_REMOVE, "remove" } };

	(void)state;
	fake_open(fake, 2);
	assert_int_equal(kvc_selftest_roots(&fake->store), 0);
	fake->hook = wrong_bytes;
	assert_int_equal(kvc_selftest_roots(&fake->store), -EIO);
	assert_non_null(strstr(kvc_last_error(), "fake0: self-test: read"));
	fake->hook = by_op;
	for (size_t i = 0; i < 4; i++) {
		memset(fails_at, 0, sizeof(fails_at));
		fails_at[rows[i].op] = -EACCES;
		assert_int_equal(kvc_selftest_roots(&fake->store), -EACCES);
		assert_non_null(strstr(kvc_last_error(), rows[i].what));
	}
	memset(fails_at, 0, sizeof(fails_at));
	for (size_t i = 0; i < fake->object_count; i++)
		if (fake->objects[i].data && strstr(fake->objects[i].name, "selftest"))
			assert_int_equal(fake->objects[i].version, fake->versions);
	fake->hook = NULL;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(identity_is_made_once_and_kept),
		TEST(a_read_only_root_gets_no_identity),
		TEST(r41_other_versions_and_damage_are_refused),
		TEST(an_unknown_ro_compat_word_refuses_writes),
		TEST(what_cannot_be_written_is_named),
		TEST(the_first_identity_counts),
		TEST(attributes_that_make_no_sense_are_refused),
		TEST(a_removed_identity_is_written_again),
		TEST(a_root_is_trusted_again_after_a_quiet_time),
		TEST(a_new_note_is_told_once),
		TEST(deadline_kinds_follow_the_flags),
		TEST(texts_of_every_length_round_trip),
		TEST(a_removal_of_another_version_removes_nothing),
		TEST(names_that_are_too_long_are_refused),
		TEST(a_plugin_that_tells_too_many_bytes_overruns_nothing),
		TEST(queues_that_fail_are_not_used_again),
		TEST(r33_what_never_comes_back_is_parked),
		TEST(r33_a_hard_root_cancels),
		TEST(room_follows_capacity_and_free_space),
		TEST(a_percentage_of_what_is_not_known_is_refused),
		TEST(the_selftest_finds_each_failure_and_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
