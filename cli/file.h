/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files in and out of memory, for put and get. */
#ifndef KVC_CLI_FILE_H
#define KVC_CLI_FILE_H

#include "cli.h"

/* Reads all of a file, or of standard input for "-". out_data is the caller's to free. */
int cli_file_read(struct kvc_cli *cli, const char *path, char **out_data, size_t *out_bytes);

/* Writes a file whole or not at all, or standard output for "-". Devices and pipes are written in
 * place. */
int cli_file_write(struct kvc_cli *cli, const char *path, const char *data, size_t bytes);

#endif
