/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over files, so that a corpus is a regression test with any compiler.
 * usage: fuzz_<target> FILE-OR-FOLDER... */
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_BYTES ((size_t)16 << 20)

static int run_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *whole, *exact;
	size_t bytes;

	if (!file) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return -1;
	}
	whole = malloc(MAX_BYTES);
	bytes = whole ? fread(whole, 1, MAX_BYTES, file) : 0;
	(void)fclose(file);
	/* in a block of its own size, so that a sanitizer sees a read past the end */
	exact = malloc(bytes ? bytes : 1);
	if (!whole || !exact) {
		fprintf(stderr, "%s: out of memory\n", path);
		free(whole);
		free(exact);
		return -1;
	}
	memcpy(exact, whole, bytes);
	(void)LLVMFuzzerTestOneInput(exact, bytes);
	free(whole);
	free(exact);
	return 1;
}

static int run_path(const char *path)
{
	struct dirent *entry;
	struct stat status;
	char inner[4096];
	int files = 0, rc = 0;
	DIR *dir;

	if (stat(path, &status) == 0 && !S_ISDIR(status.st_mode))
		return run_file(path);
	dir = opendir(path);
	if (!dir) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return -1;
	}
	while (rc >= 0 && (entry = readdir(dir)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		if (snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name) >=
		    (int)sizeof(inner))
			rc = -1;
		else
			rc = run_path(inner);
		files += rc > 0 ? rc : 0;
	}
	(void)closedir(dir);
	return rc < 0 ? rc : files;
}

int main(int argc, char **argv)
{
	int files = 0, rc;

	for (int i = 1; i < argc; i++) {
		rc = run_path(argv[i]);
		if (rc < 0)
			return 1;
		files += rc;
	}
	printf("%d inputs\n", files);
	return files > 0 ? 0 : 1;
}
