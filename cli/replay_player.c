/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_player.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t replay_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

uint64_t replay_thread_cpu_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

int replay_client_begin(struct replay_client *client, struct replay_shared *shared,
			uint64_t first_slot, uint64_t slot_count)
{
	memset(client, 0, sizeof(*client));
	client->indices = calloc(shared->batch, sizeof(*client->indices));
	if (client->indices == NULL)
		return -ENOMEM;
	client->shared = shared;
	client->first_slot = first_slot;
	client->slot_count = slot_count;
	return 0;
}

void replay_client_end(struct replay_client *client)
{
	free(client->indices);
	free(client->results);
	free(client->key_text);
	free(client->keys);
	free(client->pages);
	memset(client, 0, sizeof(*client));
}

static void stop_all(struct replay_shared *shared, int error, const char *text)
{
	pthread_mutex_lock(&shared->lock);
	if (shared->error == 0) {
		shared->error = error;
		snprintf(shared->error_text, sizeof(shared->error_text), "%s", text);
	}
	pthread_mutex_unlock(&shared->lock);
	atomic_store(&shared->stop, true);
}

static bool grow(void *array_of_pointer, size_t count, size_t bytes)
{
	void **array = array_of_pointer;
	void *grown = reallocarray(*array, count, bytes);

	if (grown == NULL)
		return false;
	*array = grown;
	return true;
}

/* Room for `count` pages: 0 or -ENOMEM, with everything as large as before. */
static int reserve(struct replay_client *client, size_t count)
{
	if (count <= client->capacity)
		return 0;
	count += count / 4 + 64;
	if (!grow(&client->pages, count, sizeof(*client->pages)) ||
	    !grow(&client->keys, count, sizeof(*client->keys)) ||
	    !grow(&client->key_text, count, REPLAY_KEY_BYTES) ||
	    !grow(&client->results, count, sizeof(*client->results)))
		return -ENOMEM;
	client->capacity = count;
	return 0;
}

static void meter_begin(struct replay_meter *meter, uint64_t now_ns)
{
	if (meter->running++ == 0)
		meter->since_ns = now_ns;
}

static void meter_end(struct replay_meter *meter, uint64_t now_ns)
{
	if (--meter->running == 0)
		meter->busy_ns += now_ns - meter->since_ns;
}

/* What became busy since the last question, in seconds. */
static double meter_tell(struct replay_meter *meter, uint64_t now_ns)
{
	uint64_t busy_ns = meter->busy_ns;
	double told;

	if (meter->running > 0 && now_ns > meter->since_ns)
		busy_ns += now_ns - meter->since_ns;
	told = (double)(busy_ns - meter->told_ns) / 1e9;
	meter->told_ns = busy_ns;
	return told;
}

static void count_results(struct replay_client *client, const struct kvc_transfer *transfer,
			  uint64_t ns, uint64_t cpu_ns)
{
	const struct replay_geometry *geometry = &client->shared->geometry;
	struct stats_operation *operation = &client->operations[transfer->op];
	uint64_t moved = 0;

	for (size_t i = 0; i < transfer->key_count; i++) {
		const struct kvc_result *result = &transfer->results[i];

		operation->statuses[result->status & 7]++;
		if (result->cause < KVC_CAUSE_COUNT)
			operation->causes[result->cause]++;
		moved += result->status == KVC_OK && result->cause == KVC_CAUSE_NONE;
	}
	operation->calls++;
	operation->pages += transfer->key_count;
	operation->cpu_ns += cpu_ns;
	if (transfer->op == KVC_GET || transfer->op == KVC_SET)
		operation->bytes += moved * geometry->part_count * geometry->part_bytes;
	stats_latency_add(&operation->latency, ns);
}

/* One call of the store with pages [first, first + count) of the request. Takes part in all
 * measurements. 0, or the error of the call, with all clients stopped. */
static int call(struct replay_client *client, uint32_t op, size_t first, size_t count)
{
	struct replay_shared *shared = client->shared;
	bool moves = op == KVC_GET || op == KVC_SET;
	struct kvc_transfer transfer = {
		.size = sizeof(transfer),
		.op = op,
		.flags = op == KVC_EXISTS ? KVC_TRANSFER_STOP_AT_MISS : 0,
		.pool = shared->pool,
		.keys = client->keys + first,
		.key_count = count,
		.indices = moves ? client->indices : NULL,
		.results = client->results + first,
		.depth = first <= UINT32_MAX ? (uint32_t)first : 0,
	};
	uint64_t begin_ns, end_ns, cpu_begin_ns, cpu_end_ns;
	int error;

	if (first > 0)
		transfer.parent = client->keys[first - 1];
	cpu_begin_ns = replay_thread_cpu_ns();
	pthread_mutex_lock(&shared->lock);
	begin_ns = replay_now_ns();
	meter_begin(&shared->meters[op], begin_ns);
	pthread_mutex_unlock(&shared->lock);

	error = kvc_batch_run(shared->store, &transfer, 1);

	end_ns = replay_now_ns();
	cpu_end_ns = replay_thread_cpu_ns();
	pthread_mutex_lock(&shared->lock);
	meter_end(&shared->meters[op], end_ns);
	pthread_mutex_unlock(&shared->lock);
	if (error < 0) {
		stop_all(shared, error, kvc_last_error());
		return error;
	}
	count_results(client, &transfer, end_ns - begin_ns, cpu_end_ns - cpu_begin_ns);
	return 0;
}

/* Slots for the next `count` pages: the client's, in turn. */
static void take_slots(struct replay_client *client, size_t count)
{
	if (client->next_slot + count > client->slot_count)
		client->next_slot = 0;
	for (size_t i = 0; i < count; i++)
		client->indices[i] =
			(int64_t)(client->first_slot + client->next_slot + (uint64_t)i);
	client->next_slot += count;
}

static void compare(struct replay_client *client, const struct replay_request *request,
		    size_t first, size_t count)
{
	const struct replay_geometry *geometry = &client->shared->geometry;

	for (size_t i = 0; i < count; i++) {
		uint64_t wrong;

		if (client->results[first + i].status != KVC_OK)
			continue;
		wrong = replay_page_compare(geometry, (uint64_t)client->indices[i],
					    client->pages[first + i]);
		client->checked_pages++;
		if (wrong == 0)
			continue;
		client->wrong_pages++;
		client->wrong_bytes += wrong;
		if (client->wrong.seen)
			continue;
		client->wrong.seen = true;
		client->wrong.line = request->line;
		client->wrong.bytes = wrong;
		memcpy(client->wrong.key, client->key_text + (first + i) * REPLAY_KEY_BYTES,
		       REPLAY_KEY_BYTES);
		client->wrong.key[REPLAY_KEY_BYTES] = '\0';
	}
}

static bool stopped(const struct replay_client *client)
{
	return atomic_load(&client->shared->stop);
}

static size_t chunk_of(const struct replay_client *client, size_t first, size_t end)
{
	return end - first < client->shared->batch ? end - first : client->shared->batch;
}

/* Gets and compares pages [first, end). Returns where the usable prefix ends: a page that does not
 * come is computed, and so is everything after it. With `all`, every page is tried. */
static size_t get_pages(struct replay_client *client, const struct replay_request *request,
			size_t first, size_t end, bool all)
{
	size_t usable = first;

	while (first < end && !stopped(client)) {
		size_t count = chunk_of(client, first, end);

		take_slots(client, count);
		if (call(client, KVC_GET, first, count) != 0)
			break;
		compare(client, request, first, count);
		while (usable < first + count && client->results[usable].status == KVC_OK)
			usable++;
		first += count;
		if (usable < first && !all)
			break;
	}
	return usable;
}

static void set_pages(struct replay_client *client, size_t first, size_t end)
{
	while (first < end && !stopped(client)) {
		size_t count = chunk_of(client, first, end);

		take_slots(client, count);
		for (size_t i = 0; i < count; i++)
			replay_page_fill(&client->shared->geometry, (uint64_t)client->indices[i],
					 client->pages[first + i]);
		if (call(client, KVC_SET, first, count) != 0)
			break;
		first += count;
	}
}

/* The stored prefix of pages [first, end), by one exists. */
static size_t find_prefix(struct replay_client *client, size_t first, size_t end)
{
	if (first == end || call(client, KVC_EXISTS, first, end - first) != 0)
		return first;
	while (first < end && client->results[first].status == KVC_OK)
		first++;
	return first;
}

static size_t tier_prefix(struct replay_client *client, size_t count)
{
	struct replay_shared *shared = client->shared;
	size_t hits = 0;

	if (shared->tier == NULL)
		return 0;
	pthread_mutex_lock(&shared->lock);
	hits = replay_lru_prefix(shared->tier, client->pages, count);
	pthread_mutex_unlock(&shared->lock);
	return hits;
}

static void play_request(struct replay_client *client, const struct replay_request *request,
			 struct stats_pass *pass)
{
	struct replay_shared *shared = client->shared;
	size_t count = request->page_count;
	size_t tier_end = tier_prefix(client, count);
	size_t stored_end = find_prefix(client, tier_end, count);
	size_t hit_end = get_pages(client, request, tier_end, stored_end, false);

	pass->pages = count;
	pass->tier_hits = tier_end;
	pass->store_hits = hit_end - tier_end;
	if (stopped(client))
		return;
	set_pages(client, hit_end, count);
	if (shared->tier != NULL) {
		pthread_mutex_lock(&shared->lock);
		replay_lru_touch(shared->tier, client->pages, count);
		pthread_mutex_unlock(&shared->lock);
	}
}

/* One operation of a recording. */
static void play_operation(struct replay_client *client, const struct replay_request *request,
			   struct stats_pass *pass)
{
	size_t count = request->page_count;
	uint64_t ok = client->operations[KVC_GET].statuses[KVC_OK];

	switch (request->op) {
	case KVC_GET:
		get_pages(client, request, 0, count, true);
		pass->pages = count;
		pass->store_hits = client->operations[KVC_GET].statuses[KVC_OK] - ok;
		break;
	case KVC_SET:
		set_pages(client, 0, count);
		break;
	default:
		if (count > 0)
			(void)call(client, request->op, 0, count); /* it stops all by itself */
		break;
	}
}

void replay_client_play(struct replay_client *client, const struct replay_request *request)
{
	struct replay_shared *shared = client->shared;
	struct stats_pass pass = { .requests = 1 };
	uint64_t got = client->operations[KVC_GET].bytes;
	uint64_t stored = client->operations[KVC_SET].bytes;
	uint64_t now_ns;

	if (reserve(client, request->page_count) != 0) {
		stop_all(shared, -ENOMEM, "out of memory");
		return;
	}
	replay_request_pages(request, client->pages);
	for (size_t i = 0; i < request->page_count; i++) {
		char *text = client->key_text + i * REPLAY_KEY_BYTES;

		replay_page_key(client->pages[i], text);
		client->keys[i] = (struct kvc_key){ .data = text, .bytes = REPLAY_KEY_BYTES };
	}
	if (request->op == REPLAY_OP_REQUEST)
		play_request(client, request, &pass);
	else
		play_operation(client, request, &pass);

	pass.get_bytes = client->operations[KVC_GET].bytes - got;
	pass.set_bytes = client->operations[KVC_SET].bytes - stored;
	stats_pass_add(&client->pass, &pass);
	atomic_fetch_add(&shared->played, 1);
	pthread_mutex_lock(&shared->lock);
	now_ns = replay_now_ns();
	pass.get_busy_s = meter_tell(&shared->meters[KVC_GET], now_ns);
	pass.set_busy_s = meter_tell(&shared->meters[KVC_SET], now_ns);
	stats_series_add(&shared->series, (double)(now_ns - shared->start_ns) / 1e9, &pass);
	pthread_mutex_unlock(&shared->lock);
}
