/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault stacks on any plugin and makes it fail by rule: errors, delays, short and torn transfers,
 * wrong bytes, stalls, and the end of the process at a step of a publish. Which operation is hit
 * depends only on the seed and the order of operations. Except where a rule says otherwise it keeps
 * the contract of plugin.h as well as the plugin below does.
 */
#include "fault.h"

#include "common/setting.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

int fault_control(struct kvc_plugin_backend *backend, enum fault_op op, const char *name)
{
	struct fault_plan plan;

	fault_rules_decide(&backend->rules, op, name, &plan);
	if (plan.delay_ns != 0) {
		struct timespec time = { .tv_sec = (time_t)(plan.delay_ns / 1000000000u),
					 .tv_nsec = (long)(plan.delay_ns % 1000000000u) };

		while (clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &time) == EINTR)
			;
	}
	if (plan.effect != FAULT_ERROR)
		return 0;
	return kvc_host_refuse(backend->host, plan.error, "a rule of the fault plugin: %s",
			       strerrordesc_np(-plan.error));
}

static void lower_log_debug(void *context, const char *text)
{
	const struct kvc_plugin_backend *backend = context;

	if (backend->host->log_debug)
		backend->host->log_debug(backend->host->context, text);
}

/* A cookie of the plugin below is the address of our slot. */
static void lower_reason(void *context, uint64_t cookie, const char *text)
{
	const struct kvc_plugin_backend *backend = context;
	const struct fault_slot *slot = (const struct fault_slot *)(uintptr_t)cookie;

	if (backend->host->reason)
		backend->host->reason(backend->host->context, slot ? slot->upper->cookie : 0, text);
}

int fault_fill(void *context, uint64_t cookie)
{
	struct kvc_plugin_backend *backend = context;
	struct fault_slot *slot = (struct fault_slot *)(uintptr_t)cookie;
	int rc = fault_control(backend, FAULT_FILL, slot->upper->name);

	slot->filled = true;
	if (rc < 0)
		return rc;
	return backend->host->fill(backend->host->context, slot->upper->cookie);
}

static void lower_step(void *context, const char *step)
{
	struct kvc_plugin_backend *backend = context;
	struct fault_plan plan;

	fault_rules_decide(&backend->rules, FAULT_STEP, step, &plan);
	if (plan.effect == FAULT_KILL)
		(void)raise(SIGKILL);
	if (backend->host->step)
		backend->host->step(backend->host->context, step);
}

/* A step of the library: the same rules as for those of the plugin below. */
static void fault_step(struct kvc_plugin_backend *backend, const char *step)
{
	if (fault_rules_have(&backend->rules, FAULT_STEP))
		lower_step(backend, step);
}

static void lower_host_init(struct kvc_plugin_backend *backend,
			    const struct kvc_backend_params *lower_params)
{
	const struct kvc_host *given = lower_params->host;
	bool steps = backend->host->step || fault_rules_have(&backend->rules, FAULT_STEP);

	backend->lower_host = (struct kvc_host){
		.abi = KVC_PLUGIN_ABI,
		.descriptor_bytes = sizeof(struct kvc_descriptor),
		.size = sizeof(struct kvc_host),
		.context = backend,
		.log_debug = lower_log_debug,
		.reason = lower_reason,
		.fill = fault_fill,
		.step = steps ? lower_step : NULL,
		.lower = given ? given->lower : NULL,
		.lower_params = given ? given->lower_params : NULL,
	};
}

/* true, false, or as the plugin below (-1). */
static int read_as_below(const struct kvc_backend_params *params, const char *name, int *out)
{
	*out = -1;
	if (strcmp(kvc_setting_text(params, name, "lower"), "lower") == 0)
		return 0;
	return kvc_setting_bool(params, name, out);
}

static int settings_read(const struct kvc_backend_params *params,
			 struct kvc_plugin_backend *backend)
{
	char reason[512];
	uint64_t seed = 0;
	int rc;

	rc = read_as_below(params, "cancellable", &backend->cancellable);
	if (rc < 0)
		return rc;
	rc = read_as_below(params, "local", &backend->local);
	if (rc < 0)
		return rc;
	rc = kvc_setting_u64(params, "seed", 0, &seed);
	if (rc < 0)
		return rc;
	if (seed == 0 && getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != sizeof(seed))
		seed = (uint64_t)time(NULL);
	reason[0] = '\0';
	rc = fault_rules_parse(&backend->rules, kvc_setting_text(params, "rules", ""), seed, reason,
			       sizeof(reason));
	if (rc < 0)
		return kvc_host_refuse(params->host, rc, "%s",
				       reason[0] ? reason : strerrordesc_np(-rc));
	kvc_host_debug(params->host, "fault: seed = %llu, %u rules, over %s",
		       (unsigned long long)seed, backend->rules.count, params->host->lower->name);
	return 0;
}

static int fault_backend_open(const struct kvc_backend_params *params,
			      struct kvc_plugin_backend **out)
{
	struct kvc_plugin_backend *backend;
	struct kvc_backend_params lower_params;
	int rc;

	if (!params->host->lower || !params->host->lower_params)
		return kvc_host_refuse(params->host, -EINVAL,
				       "lower: there is no plugin below to stack on");
	backend = calloc(1, sizeof(*backend));
	if (!backend)
		return -ENOMEM;
	backend->host = params->host;
	backend->lower = params->host->lower;
	rc = settings_read(params, backend);
	if (rc < 0)
		goto free_backend;
	lower_host_init(backend, params->host->lower_params);
	lower_params = *params->host->lower_params;
	lower_params.host = &backend->lower_host;
	rc = backend->lower->backend_open(&lower_params, &backend->lower_backend);
	if (rc < 0)
		goto free_rules;
	*out = backend;
	return 0;

free_rules:
	fault_rules_free(&backend->rules);
free_backend:
	free(backend);
	return rc;
}

static int fault_backend_close(struct kvc_plugin_backend *backend)
{
	int rc;

	if (!backend)
		return 0;
	rc = backend->lower->backend_close(backend->lower_backend);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < backend->rules.count; i++) {
		const struct fault_rule *rule = &backend->rules.rules[i];

		kvc_host_debug(backend->host, "fault: rule %u \"%s\": matched %llu, applied %llu",
			       i + 1, rule->text, (unsigned long long)rule->seen,
			       (unsigned long long)rule->applied);
	}
	fault_rules_free(&backend->rules);
	free(backend);
	return 0;
}

static int root_check(struct kvc_plugin_root *root)
{
	const struct kvc_plugin_backend *backend = root->backend;
	struct kvc_attributes attributes = { .size = sizeof(attributes) };
	int rc = root->lower->root_query(root->lower_root, &attributes);

	if (rc < 0)
		return rc;
	root->alignment = attributes.alignment ? attributes.alignment : 1;
	root->cancellable = (attributes.flags & KVC_ATTRIBUTE_CANCELLABLE) &&
			    backend->cancellable != 0;
	if (backend->cancellable == 1 && !root->cancellable)
		return kvc_host_refuse(backend->host, -ENOTSUP,
				       "cancellable = true, but %s cannot cancel",
				       backend->lower->name);
	return 0;
}

static int fault_root_open(struct kvc_plugin_backend *backend, const struct kvc_root_params *params,
			   struct kvc_plugin_root **out)
{
	struct kvc_plugin_root *root;
	int rc = fault_control(backend, FAULT_ROOT_OPEN, params->location);

	if (rc < 0)
		return rc;
	root = calloc(1, sizeof(*root));
	if (!root)
		return -ENOMEM;
	root->backend = backend;
	root->lower = backend->lower;
	rc = root->lower->root_open(backend->lower_backend, params, &root->lower_root);
	if (rc < 0)
		goto free_root;
	rc = root_check(root);
	if (rc < 0)
		goto close_lower;
	(void)pthread_mutex_init(&root->names_lock, NULL);
	*out = root;
	return 0;

close_lower:
	(void)root->lower->root_close(root->lower_root);
free_root:
	free(root);
	return rc;
}

static int fault_root_close(struct kvc_plugin_root *root)
{
	int rc;

	if (!root)
		return 0;
	rc = root->lower->root_close(root->lower_root);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < FAULT_KNOWN_NAMES; i++)
		free(root->names[i]);
	(void)pthread_mutex_destroy(&root->names_lock);
	free(root);
	return 0;
}

static int fault_root_query(struct kvc_plugin_root *root, struct kvc_attributes *out)
{
	int rc = root->lower->root_query(root->lower_root, out);

	if (rc < 0)
		return rc;
	if (!root->cancellable)
		out->flags &= ~(uint32_t)KVC_ATTRIBUTE_CANCELLABLE;
	if (root->backend->local == 0)
		out->flags &= ~(uint32_t)KVC_ATTRIBUTE_LOCAL;
	else if (root->backend->local == 1)
		out->flags |= KVC_ATTRIBUTE_LOCAL;
	return 0;
}

void fault_names_add(struct kvc_plugin_root *root, const char *name)
{
	bool known = false;

	pthread_mutex_lock(&root->names_lock);
	for (uint32_t i = 0; i < FAULT_KNOWN_NAMES && !known; i++)
		known = root->names[i] && strcmp(root->names[i], name) == 0;
	if (!known) {
		uint32_t at = root->next_name++ % FAULT_KNOWN_NAMES;

		free(root->names[at]);
		root->names[at] = strdup(name); /* NULL: just not known */
	}
	pthread_mutex_unlock(&root->names_lock);
}

void fault_names_remove(struct kvc_plugin_root *root, const char *name)
{
	pthread_mutex_lock(&root->names_lock);
	for (uint32_t i = 0; i < FAULT_KNOWN_NAMES; i++) {
		if (root->names[i] && strcmp(root->names[i], name) == 0) {
			free(root->names[i]);
			root->names[i] = NULL;
		}
	}
	pthread_mutex_unlock(&root->names_lock);
}

char *fault_names_other(struct kvc_plugin_root *root, const char *name, uint64_t random)
{
	char *other = NULL;

	pthread_mutex_lock(&root->names_lock);
	for (uint32_t i = 0; i < FAULT_KNOWN_NAMES && !other; i++) {
		const char *known = root->names[(random + i) % FAULT_KNOWN_NAMES];

		if (known && strcmp(known, name) != 0)
			other = strdup(known);
	}
	pthread_mutex_unlock(&root->names_lock);
	return other;
}

static int fault_memory_register(struct kvc_plugin_backend *backend,
				 const struct kvc_memory *memory, uint64_t *out_registration)
{
	int rc = fault_control(backend, FAULT_REGISTER, NULL);

	if (rc < 0)
		return rc;
	if (!backend->lower->memory_register)
		return -ENOTSUP;
	return backend->lower->memory_register(backend->lower_backend, memory, out_registration);
}

static int fault_memory_deregister(struct kvc_plugin_backend *backend, uint64_t registration)
{
	if (!backend->lower->memory_deregister)
		return -ENOTSUP;
	return backend->lower->memory_deregister(backend->lower_backend, registration);
}

static int fault_memory_alloc(struct kvc_plugin_backend *backend, uint64_t bytes,
			      struct kvc_memory *out, uint64_t *out_registration)
{
	int rc = fault_control(backend, FAULT_ALLOC, NULL);

	if (rc < 0)
		return rc;
	if (!backend->lower->memory_alloc)
		return -ENOTSUP;
	return backend->lower->memory_alloc(backend->lower_backend, bytes, out, out_registration);
}

static int fault_memory_free(struct kvc_plugin_backend *backend, uint64_t registration)
{
	if (!backend->lower->memory_free)
		return -ENOTSUP;
	return backend->lower->memory_free(backend->lower_backend, registration);
}

static int fault_memory_copy(struct kvc_plugin_backend *backend, void *to,
			     const struct kvc_memory *to_memory, const void *from,
			     const struct kvc_memory *from_memory, uint64_t bytes)
{
	if (!backend->lower->memory_copy)
		return -ENOTSUP;
	return backend->lower->memory_copy(backend->lower_backend, to, to_memory, from, from_memory,
					   bytes);
}

static int fault_container_open(struct kvc_plugin_root *root, const char *name, uint64_t bytes,
				struct kvc_plugin_container **out, uint64_t *out_bytes)
{
	struct kvc_plugin_container *container;
	int rc = fault_control(root->backend, FAULT_CONTAINER_OPEN, name);

	if (rc < 0)
		return rc;
	if (!root->lower->container_open)
		return -ENOTSUP;
	container = malloc(sizeof(*container) + strlen(name) + 1);
	if (!container)
		return -ENOMEM;
	memcpy(container->name, name, strlen(name) + 1);
	container->root = root;
	atomic_init(&container->outstanding, 0);
	rc = root->lower->container_open(root->lower_root, name, bytes, &container->lower,
					 out_bytes);
	if (rc < 0) {
		free(container);
		return rc;
	}
	*out = container;
	return 0;
}

static int fault_container_resize(struct kvc_plugin_container *container, uint64_t bytes)
{
	if (!container->root->lower->container_resize)
		return -ENOTSUP;
	return container->root->lower->container_resize(container->lower, bytes);
}

static int fault_container_close(struct kvc_plugin_container *container)
{
	int rc;

	if (!container)
		return 0;
	if (atomic_load(&container->outstanding) != 0)
		return -EBUSY;
	rc = container->root->lower->container_close(container->lower);
	if (rc < 0)
		return rc;
	free(container);
	return 0;
}

static int fault_container_remove(struct kvc_plugin_root *root, const char *name)
{
	if (!root->lower->container_remove)
		return -ENOTSUP;
	return root->lower->container_remove(root->lower_root, name);
}

static int fault_list(struct kvc_plugin_root *root, const char *prefix, kvc_list_fn fn,
		      void *context)
{
	int rc = fault_control(root->backend, FAULT_LIST, prefix);

	if (rc < 0)
		return rc;
	return root->lower->list ? root->lower->list(root->lower_root, prefix, fn, context) :
				   -ENOTSUP;
}

static int fault_usage(struct kvc_plugin_root *root, struct kvc_usage *out)
{
	int rc = fault_control(root->backend, FAULT_USAGE, NULL);

	if (rc < 0)
		return rc;
	return root->lower->usage ? root->lower->usage(root->lower_root, out) : -ENOTSUP;
}

static int64_t fault_reclaim(struct kvc_plugin_root *root)
{
	return root->lower->reclaim ? root->lower->reclaim(root->lower_root) : -ENOTSUP;
}

static const struct kvc_plugin fault_plugin = {
	.abi = KVC_PLUGIN_ABI,
	.size = sizeof(struct kvc_plugin),
	.name = "fault",
	.version = KVC_FAULT_VERSION,
	.summary = "makes the plugin below fail by rule, for tests",
	.flags = KVC_PLUGIN_STACKS,
	.backend_open = fault_backend_open,
	.backend_close = fault_backend_close,
	.root_open = fault_root_open,
	.root_close = fault_root_close,
	.root_query = fault_root_query,
	.memory_register = fault_memory_register,
	.memory_deregister = fault_memory_deregister,
	.memory_alloc = fault_memory_alloc,
	.memory_free = fault_memory_free,
	.memory_copy = fault_memory_copy,
	.container_open = fault_container_open,
	.container_resize = fault_container_resize,
	.container_close = fault_container_close,
	.container_remove = fault_container_remove,
	.list = fault_list,
	.usage = fault_usage,
	.reclaim = fault_reclaim,
	.queue_create = fault_queue_create,
	.queue_destroy = fault_queue_destroy,
	.submit = fault_queue_submit,
	.poll = fault_queue_poll,
	.event_fd = fault_queue_event_fd,
	.cancel = fault_queue_cancel,
	.step = fault_step,
};

const struct kvc_plugin *kvc_plugin_entry(void)
{
	return &fault_plugin;
}
