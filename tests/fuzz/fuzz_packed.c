/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a packed root on a disk that anybody may have written to: the golden root with some
 * bytes changed is opened and used. Whatever the index says, no wrong byte comes with OK, nothing
 * is read outside of what is mapped, and what was made again is right in itself.
 *
 * Input: a byte of enum how, then changes until its end: region, offset in it (2 bytes), number of
 * bytes, the bytes. A region of 128 + i is file i as a whole: it is cut (or made longer) to
 * 16 * offset bytes, 0 removes it.
 */
#include "core/crc.h"
#include "core/host.h"
#include "core/packed_walk.h"
#include "fuzz/fuzz.h"
#include "support/packed.h"
#include "support/support_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN	  KVC_TEST_SOURCE_DIR "/golden/v1/packed"
#define PACKED	  ".kvcellar/packed"
#define SLOTS_A	  "golden-model-03882065e9dd4394/slots-8192"
#define SLOTS_B	  "golden-model-4e90ab0c122c5c6d/slots-12288"
#define HEADER	  128u
#define SLOTS_AT  4096u
#define BYTES_MAX 32u
#define FILE_MAX  (UINT32_C(1) << 20)
#define PATIENCE  4096u /* segments that are looked for, one by one */

enum how {
	THIS_BOOT = 1u << 0, /* else the index is made again */
	HEADER_CRCS = 1u << 1,
	SLOT_CRCS = 1u << 2, /* and those of names records */
	READ_ONLY = 1u << 3,
	OVERWRITE = 1u << 4,
	CLEAR = 1u << 5,
};

static void must(bool condition)
{
	if (!condition)
		abort();
}

/* ---------------------------------------------------------------- the files */

struct file {
	const char *path;
	uint32_t slots; /* hdr, names */
	unsigned char *golden;
	size_t golden_bytes;
	unsigned char *data; /* with the changes of an input; FILE_MAX bytes of room */
	size_t bytes;
	bool removed;
};

enum {
	SHM,
	INTENTS,
	HDR_A,
	NAMES_A,
	TABLE_A,
	SEG_A,
	HDR_B,
	NAMES_B,
	TABLE_B,
	SEG_B,
	FILES
};

static struct file files[FILES] = {
	[SHM] = { .path = PACKED "/root.shm" },
	[INTENTS] = { .path = PACKED "/intents.3" },
	[HDR_A] = { .path = SLOTS_A "/hdr.1", .slots = 4 },
	[NAMES_A] = { .path = SLOTS_A "/names.1", .slots = 4 },
	[TABLE_A] = { .path = SLOTS_A "/table.5" },
	[SEG_A] = { .path = SLOTS_A "/seg.1" },
	[HDR_B] = { .path = SLOTS_B "/hdr.1", .slots = 2 },
	[NAMES_B] = { .path = SLOTS_B "/names.1", .slots = 2 },
	[TABLE_B] = { .path = SLOTS_B "/table.5" },
	[SEG_B] = { .path = SLOTS_B "/seg.1" },
};

/* Where something lies. */
static const struct {
	uint32_t file;
	uint32_t at;
	uint32_t bytes;
} regions[] = {
	{ SHM, 0, HEADER },	    { SHM, 144, 56 + 64 },	{ SHM, 4096, 240 * 32 },
	{ SHM, 12288, 3 * 256 },    { INTENTS, 0, HEADER },	{ INTENTS, HEADER, 1024 * 8 },
	{ HDR_A, 0, HEADER + 4 },   { HDR_A, 4096, 4 * 64 },	{ HDR_A, 8192, 4 * 8 },
	{ HDR_A, 12288, 8 },	    { NAMES_A, 0, HEADER },	{ NAMES_A, 4096, 4 * 256 },
	{ TABLE_A, 0, HEADER },	    { TABLE_A, 4096, 64 * 64 }, { HDR_B, 0, HEADER + 4 },
	{ HDR_B, 4096, 2 * 64 },    { HDR_B, 8192, 2 * 8 },	{ HDR_B, 12288, 8 },
	{ NAMES_B, 0, HEADER },	    { NAMES_B, 4096, 2 * 256 }, { TABLE_B, 0, HEADER },
	{ TABLE_B, 4096, 64 * 64 },
};
#define REGIONS (sizeof(regions) / sizeof(regions[0]))

static const char *root;
static unsigned char *root_json;
static size_t root_json_bytes;

static void files_load(void)
{
	char path[PATH_BYTES];

	for (size_t i = 0; i < FILES; i++) {
		text_make(path, sizeof(path), GOLDEN "/%s", files[i].path);
		files[i].golden_bytes = file_read(path, &files[i].golden);
		files[i].data = malloc(FILE_MAX);
		must(files[i].data && files[i].golden_bytes <= FILE_MAX);
	}
	root_json_bytes = file_read(GOLDEN "/.kvcellar/root.json", &root_json);
}

static void files_reset(void)
{
	for (size_t i = 0; i < FILES; i++) {
		memcpy(files[i].data, files[i].golden, files[i].golden_bytes);
		memset(files[i].data + files[i].golden_bytes, 0, FILE_MAX - files[i].golden_bytes);
		files[i].bytes = files[i].golden_bytes;
		files[i].removed = false;
	}
}

static void folders_make(const char *path)
{
	char full[PATH_BYTES];
	char *at;

	text_make(full, sizeof(full), "%s/%s", root, path);
	for (at = full + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
		*at = '\0';
		(void)mkdir(full, 0777);
		*at = '/';
	}
}

static void files_write(void)
{
	char path[PATH_BYTES];

	folder_remove(root);
	must(mkdir(root, 0777) == 0);
	for (size_t i = 0; i < FILES; i++) {
		folders_make(files[i].path);
		text_make(path, sizeof(path), "%s/%s", root, files[i].path);
		if (!files[i].removed)
			file_write(path, files[i].data, files[i].bytes);
	}
	text_make(path, sizeof(path), "%s/.kvcellar/root.json", root);
	file_write(path, root_json, root_json_bytes);
	text_make(path, sizeof(path), "%s/" PACKED "/root.lock", root);
	file_write(path, "", 0);
}

/* ---------------------------------------------------------------- changes */

static void change(const uint8_t **data, size_t *left)
{
	const uint32_t region = (*data)[0], offset = (*data)[1] | (uint32_t)(*data)[2] << 8;
	size_t bytes = (*data)[3] % (BYTES_MAX + 1);

	*data += 4;
	*left -= 4;
	if (region >= 128) {
		struct file *file = &files[(region - 128) % FILES];

		file->bytes = (size_t)offset * 16 < FILE_MAX ? (size_t)offset * 16 : FILE_MAX;
		file->removed = offset == 0;
		return;
	}
	bytes = bytes < *left ? bytes : *left;
	for (size_t i = 0; i < bytes; i++)
		files[regions[region % REGIONS].file]
			.data[regions[region % REGIONS].at +
			      (offset + i) % regions[region % REGIONS].bytes] = (*data)[i];
	*data += bytes;
	*left -= bytes;
}

static uint64_t get_u64(const unsigned char *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static void put_u32(unsigned char *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static void make_slot_crcs(const struct file *file)
{
	for (uint32_t s = 0; s < file->slots; s++) {
		struct kvc_packed_slot slot;

		memcpy(&slot, file->data + SLOTS_AT + s * sizeof(slot), sizeof(slot));
		put_u32(file->data + SLOTS_AT + s * sizeof(slot) + 44,
			kvc_packed_slot_crc(&slot, atomic_load(&slot.state)));
	}
}

static void make_name_crcs(const struct file *file)
{
	for (uint32_t s = 0; s < file->slots; s++) {
		unsigned char *record = file->data + SLOTS_AT + s * sizeof(struct kvc_packed_name);

		put_u32(record + 16, 0);
		put_u32(record + 16, kvc_crc32c(record, sizeof(struct kvc_packed_name)));
	}
}

/* Each number that was given out is looked for, which takes its time: not a million of them. What
 * is more than there can be stays. */
static void limit_segments(void)
{
	for (uint32_t i = 0; i < 3; i++) {
		struct kvc_packed_record *record =
			(struct kvc_packed_record *)(files[SHM].data + 12288) + i;
		const uint32_t segments = atomic_load(&record->segments);

		if (segments < KVC_PACKED_SEGMENTS_MAX)
			atomic_store(&record->segments, segments % PATIENCE);
	}
}

static void files_finish(uint8_t how)
{
	uint64_t boot_id[2];

	must(kvc_host_boot_id(boot_id) == 0);
	if (how & THIS_BOOT)
		memcpy(files[SHM].data + HEADER, boot_id, sizeof(boot_id));
	limit_segments();
	for (size_t i = 0; i < FILES && (how & HEADER_CRCS); i++)
		if (i != SEG_A && i != SEG_B)
			put_u32(files[i].data + HEADER - 4, kvc_crc32c(files[i].data, HEADER - 4));
	if (how & SLOT_CRCS) {
		make_slot_crcs(&files[HDR_A]);
		make_slot_crcs(&files[HDR_B]);
		make_name_crcs(&files[NAMES_A]);
		make_name_crcs(&files[NAMES_B]);
	}
}

/* ---------------------------------------------------------------- objects */

static const struct object {
	const char *key;
	struct pages_params pool;
	uint32_t tp_size;
	uint32_t tp_rank;
	uint32_t hdr;
	uint32_t slot; /* OWN: not in the golden root */
} objects[] = {
#define OWN UINT32_MAX
#define KV                                                                              \
	{                                                                               \
		.name = "kv", .count = 1, .part_count = 2, .part_bytes = { 4096, 4096 } \
	}
#define ODD                                                                           \
	{                                                                             \
		.name = "odd", .count = 1, .part_count = 2, .part_bytes = { 1, 4097 } \
	}
	{ "full", KV, 1, 0, HDR_A, 0 },	    { "none", KV, 1, 0, HDR_A, 2 },
	{ "ranked", ODD, 8, 5, HDR_B, 0 },  { "ranked", ODD, 8, 2, HDR_B, 1 },
	{ "new", KV, 1, 0, HDR_A, OWN },    { "newer", KV, 1, 0, HDR_A, OWN },
	{ "newest", KV, 1, 0, HDR_A, OWN }, { "other", ODD, 8, 2, HDR_B, OWN },
};
#define OBJECTS (sizeof(objects) / sizeof(objects[0]))

static unsigned char byte_of(const struct object *object, uint32_t part, size_t i)
{
	return (unsigned char)((unsigned char)object->key[0] + 7 * part + i * 31);
}

/* Another slot says that it has this object, and no checksum to tell. */
static bool is_forged(const struct object *object)
{
	const struct file *hdr = &files[object->hdr];
	const unsigned char *own;

	if (object->slot == OWN)
		return false;
	own = hdr->golden + SLOTS_AT + (size_t)object->slot * sizeof(struct kvc_packed_slot);
	for (uint32_t s = 0; s < hdr->slots; s++) {
		const unsigned char *at = hdr->data + SLOTS_AT + s * sizeof(struct kvc_packed_slot);

		if (s != object->slot && get_u64(at + 8) == get_u64(own + 8) &&
		    get_u64(at + 16) == get_u64(own + 16) &&
		    (kvc_packed_flags(get_u64(at + 48)) & KVC_PACKED_CHECKSUM) == 0)
			return true;
	}
	return false;
}

static void object_fill(const struct object *object, struct pages *pages)
{
	for (uint32_t p = 0; p < pages->part_count; p++)
		for (size_t i = 0; i < pages->part_bytes[p]; i++)
			pages->part_base[p][i] = byte_of(object, p, i);
}

static void object_check(const struct object *object, const struct pages *pages)
{
	for (uint32_t p = 0; p < pages->part_count; p++)
		for (size_t i = 0; i < pages->part_bytes[p]; i++)
			must(pages->part_base[p][i] == byte_of(object, p, i));
}

static struct kvc_result run(struct kvc_store *store, struct pages *pages, int op,
			     const struct object *object, uint32_t flags)
{
	struct kvc_key key = key_of(object->key);
	struct kvc_result result;
	int64_t index = 0;
	struct kvc_transfer transfer = transfer_of(pages, op, &key, 1, &index, &result);

	transfer.flags = flags;
	must(kvc_batch_run(store, &transfer, 1) == 0);
	transfer_check(&transfer);
	return result;
}

static bool get_object(struct kvc_store *store, struct pages *pages, const struct object *object)
{
	bool ok;

	(void)run(store, pages, KVC_EXISTS, object, 0);
	pages_wipe(pages);
	ok = run(store, pages, KVC_GET, object, 0).status == KVC_OK;
	if (ok && !is_forged(object))
		object_check(object, pages);
	pages_check_gaps(pages);
	return ok;
}

/* Returns whether it was there. */
static bool use_object(struct kvc_store *store, const struct object *object, uint8_t how)
{
	struct kvc_namespace_params params = namespace_params("golden/model");
	struct kvc_namespace *ns;
	struct pages pages;
	uint64_t bytes, count;
	bool found;

	params.tp_size = object->tp_size;
	params.tp_rank = object->tp_rank;
	ns = namespace_must_open(store, &params);
	pages_open(&pages, ns, &object->pool);
	found = get_object(store, &pages, object);
	if (object->slot == OWN || (how & OVERWRITE)) {
		object_fill(object, &pages);
		(void)run(store, &pages, KVC_SET, object,
			  how & OVERWRITE ? KVC_TRANSFER_OVERWRITE : 0);
		(void)get_object(store, &pages, object);
	}
	if (object->slot % 2 == 0)
		(void)run(store, &pages, KVC_REMOVE, object, 0);
	must(kvc_namespace_usage(ns, &bytes, &count) == 0);
	pages_close(&pages);
	must(kvc_namespace_close(ns) == 0);
	return found;
}

/* ---------------------------------------------------------------- tools */

static int stat_take(void *context, const struct kvc_object_info *info)
{
	struct kvc_object_detail detail = { .size = sizeof(detail) };

	must(info->name && info->path && strlen(info->name) > 0);
	(void)kvc_object_stat(context, info->root_path, info->path, &detail);
	return 0;
}

static int verify_take(void *context, const struct kvc_object_info *info,
		       const struct kvc_result *result, uint64_t done, uint64_t total)
{
	(void)context;
	(void)info;
	must(result->status <= KVC_SKIPPED && done <= total);
	return 0;
}

static void use_tools(struct kvc_store *store, uint8_t how)
{
	struct kvc_clear_report report = { .size = sizeof(report) };
	struct kvc_packed *packed = packed_of(store, 0);

	(void)kvc_object_list(store, NULL, stat_take, store);
	(void)kvc_store_verify(store, NULL, 1, verify_take, NULL);
	free(store_text(store, KVC_FORMAT_JSON));
	(void)packed_health(store);
	(void)kvc_packed_recover_dead(packed);
	kvc_packed_recount(packed);
	if (how & CLEAR)
		(void)kvc_namespace_clear(store, "golden-model-03882065e9dd4394", 0, &report);
}

/* ---------------------------------------------------------------- */

/* unchanged: it is the golden root. */
static void use_root(uint8_t how, bool unchanged)
{
	const struct setup setup = {
		.plugin = "posix",
		.engine = "threads",
		.layout = "packed",
		.roots = root,
		.buffered = true,
		.flags = KVC_OPEN_NO_SELFTEST | (how & READ_ONLY ? KVC_OPEN_READ_ONLY : 0u),
	};
	struct kvc_store *store;
	int rc = setup_open(&setup, &store);

	if (rc != 0) {
		must(rc < 0 && *kvc_last_error());
		if (unchanged)
			support_die("the golden root: %s", kvc_last_error());
		return;
	}
	if (packed_health(store).rebuilt)
		(void)packed_check(store);
	for (size_t i = 0; i < OBJECTS; i++) {
		const bool found = use_object(store, &objects[i], how);

		if (unchanged && (how & THIS_BOOT))
			must(found == (objects[i].slot != OWN));
	}
	use_tools(store, how);
	for (size_t i = 0; i < OBJECTS; i++)
		(void)use_object(store, &objects[i], how);
	store_must_close(store);
}

static void begin(void)
{
	support_begin();
	root = folder_new("fuzz-packed");
	files_load();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	const uint8_t how = bytes ? data[0] : 0;
	size_t left = bytes ? bytes - 1 : 0;
	const bool unchanged = left < 4;

	if (root == NULL)
		begin();
	if (bytes)
		data++;
	files_reset();
	while (left >= 4)
		change(&data, &left);
	files_finish(how);
	files_write();
	use_root(how, unchanged);
	return 0;
}
