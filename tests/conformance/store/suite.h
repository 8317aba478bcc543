/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite of the store: the same tests over each plugin x I/O engine x direct or
 * buffered x {naming, packed}. main.c reads the parameters; each other file has the tests of one
 * subject.
 */
#ifndef KVC_TESTS_STORE_SUITE_H
#define KVC_TESTS_STORE_SUITE_H

#include "support/support.h"

struct suite {
	struct setup setup;
	bool nixl;   /* naming */
	bool packed; /* pages lie in slots */
	bool folder; /* the root is a folder with what is stored */
	bool files;  /* likewise, and objects are files there */
	bool mem;    /* the plugin itself, which can cancel */
	const char *root;
};
extern struct suite suite;

/* A store on a new, empty root; on the same root again. */
struct kvc_store *suite_open(void);
struct kvc_store *suite_reopen(void);

/* A store with one pool of `count` pages of two parts, and as many keys. */
struct fixture {
	struct kvc_store *store;
	struct kvc_namespace *ns;
	struct pages pages;
	struct keys keys;
	struct kvc_result *results;
	size_t count;
};
void fixture_open(struct fixture *fixture, size_t count, uint64_t part_bytes);
void fixture_open_on(struct fixture *fixture, struct kvc_store *store,
		     const struct pages_params *params);
void fixture_close(struct fixture *fixture);
/* Closes all but the store. */
void fixture_close_pool(struct fixture *fixture);
/* Stores all pages; each must end OK. */
void fixture_store(struct fixture *fixture);
/* Gets all pages and compares those that are OK. Returns how many are. */
size_t fixture_get(struct fixture *fixture);

/* On the first page. */
struct kvc_result fixture_set_first(struct fixture *fixture);
struct kvc_result fixture_get_first(struct fixture *fixture);
struct kvc_result fixture_exists_first(struct fixture *fixture);
/* A set stores the first page anew, and it is there from then on. */
void fixture_expect_good_again(struct fixture *fixture);

/* For kvc_store_verify(): counts the objects of each status in size_t[KVC_SKIPPED + 1]. */
int verify_count(void *context, const struct kvc_object_info *info, const struct kvc_result *result,
		 uint64_t done, uint64_t total);

struct tests {
	const struct CMUnitTest *tests;
	size_t count;
};
struct tests roundtrip_tests(void);
struct tests batch_tests(void);
struct tests geometry_tests(void);
struct tests layout_tests(void);
struct tests rank_tests(void);
struct tests name_tests(void);
struct tests object_tests(void);
struct tests lifetime_tests(void);
struct tests damage_tests(void);      /* files */
struct tests slot_damage_tests(void); /* packed, in a folder */
struct tests slot_tests(void);	      /* packed */
struct tests deadline_tests(void);    /* mem */

#define TESTS_OF(array) \
	((struct tests){ .tests = (array), .count = sizeof(array) / sizeof((array)[0]) })

#endif
