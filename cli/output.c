/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, JSON, texts for people, and the log. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- exit codes */

int cli_exit_of_errno(int error)
{
	switch (-error) {
	case 0:
		return CLI_DONE;
	case ENOENT:
		return CLI_MISS;
	case EBADMSG:
	case EUCLEAN:
		return CLI_CORRUPT;
	case ENOSPC:
	case EDQUOT:
		return CLI_NO_SPACE;
	case EACCES:
	case EPERM:
	case EROFS:
		return CLI_DENIED;
	case ETIMEDOUT:
		return CLI_TIMEOUT;
	case ENODEV:
	case EPROTONOSUPPORT:
		return CLI_CONFIG;
	case EINTR:
	case ECANCELED:
		return cli_interrupted() ? CLI_INTERRUPTED : CLI_IO;
	default:
		return CLI_IO;
	}
}

int cli_exit_of_open(int error)
{
	switch (-error) {
	case EINVAL:
	case ENOENT: /* a missing folder is no miss */
	case ENOTDIR:
		return CLI_CONFIG;
	default:
		return cli_exit_of_errno(error);
	}
}

int cli_exit_of_result(const struct kvc_result *result)
{
	static const int codes[] = {
		[KVC_OK] = CLI_DONE,	     [KVC_MISS] = CLI_MISS,	[KVC_CORRUPT] = CLI_CORRUPT,
		[KVC_TIMEOUT] = CLI_TIMEOUT, [KVC_FULL] = CLI_NO_SPACE, [KVC_DENIED] = CLI_DENIED,
		[KVC_ERROR] = CLI_IO,	     [KVC_SKIPPED] = CLI_MISS,
	};

	return result->status < sizeof(codes) / sizeof(codes[0]) ? codes[result->status] : CLI_IO;
}

static const char *exit_name(int exit_code)
{
	static const char *const names[] = {
		[CLI_DONE] = "done",	   [CLI_WRONG] = "wrong",
		[CLI_USAGE] = "usage",	   [CLI_MISS] = "miss",
		[CLI_CORRUPT] = "corrupt", [CLI_NO_SPACE] = "no-space",
		[CLI_DENIED] = "denied",   [CLI_TIMEOUT] = "timeout",
		[CLI_IO] = "io",	   [CLI_CONFIG] = "configuration",
	};

	if (exit_code == CLI_INTERRUPTED)
		return "interrupted";
	return exit_code >= 0 && exit_code <= CLI_CONFIG ? names[exit_code] : "io";
}

/* ---------------------------------------------------------------- text of any bytes */

/* Length of the UTF-8 sequence at text, or 0. No surrogates, nothing overlong. */
static size_t utf8_bytes(const unsigned char *text)
{
	size_t bytes = text[0] < 0x80 ? 1 :
		       text[0] < 0xC2 ? 0 :
		       text[0] < 0xE0 ? 2 :
		       text[0] < 0xF0 ? 3 :
		       text[0] < 0xF5 ? 4 :
					0;

	for (size_t i = 1; i < bytes; i++)
		if ((text[i] & 0xC0) != 0x80)
			return 0;
	if ((text[0] == 0xE0 && text[1] < 0xA0) || (text[0] == 0xED && text[1] > 0x9F) ||
	    (text[0] == 0xF0 && text[1] < 0x90) || (text[0] == 0xF4 && text[1] > 0x8F))
		return 0;
	return bytes;
}

char *cli_printable(const char *text)
{
	const unsigned char *in = (const unsigned char *)text;
	char *out = malloc(4 * strlen(text) + 1);
	size_t used = 0;

	while (out && *in) {
		size_t bytes = utf8_bytes(in);
		bool control = *in < 0x20 || *in == 0x7F || (*in == 0xC2 && in[1] < 0xA0);

		if (bytes && !control) {
			memcpy(out + used, in, bytes);
			used += bytes;
			in += bytes;
			continue;
		}
		(void)snprintf(out + used, 5, "\\x%02X", *in++);
		used += 4;
	}
	if (out)
		out[used] = '\0';
	return out;
}

json_t *cli_json_text(const char *text)
{
	char *printable = cli_printable(text);
	json_t *value = printable ? json_string(printable) : NULL;

	free(printable);
	return value;
}

/* The lines of a longer text as one, "a; b". NULL without memory. */
static char *join_lines(const char *text)
{
	char *joined = malloc(2 * strlen(text) + 1), *out = joined;

	while (joined && *text) {
		if (*text != '\n') {
			*out++ = *text++;
			continue;
		}
		text += strspn(text, "\n \t");
		if (*text) {
			*out++ = ';';
			*out++ = ' ';
		}
	}
	if (out)
		*out = '\0';
	return joined;
}

/* ---------------------------------------------------------------- errors */

const char *cli_errno_name(int error)
{
	const char *name = error ? strerrorname_np(error < 0 ? -error : error) : NULL;

	return name ? name : "";
}

static void print_error(struct kvc_cli *cli, int exit_code, int error, const char *text)
{
	char *line = NULL;
	json_t *root;

	if (!cli->json) {
		(void)fprintf(stderr, "kvcellar: %s\n", text);
		return;
	}
	root = json_pack("{s:{s:s, s:i, s:s, s:o}}", "error", "kind", exit_name(exit_code),
			 "exit_code", exit_code, "errno", cli_errno_name(error), "message",
			 cli_json_text(text));
	if (root)
		line = json_dumps(root, JSON_COMPACT);
	(void)fprintf(stderr, "%s\n", line ? line : "{\"error\":{\"message\":\"out of memory\"}}");
	free(line);
	json_decref(root);
}

static int report(struct kvc_cli *cli, int exit_code, int error, const char *cause,
		  const char *format, va_list args) __attribute__((format(printf, 5, 0)));

static int report(struct kvc_cli *cli, int exit_code, int error, const char *cause,
		  const char *format, va_list args)
{
	char *what = NULL, *text = NULL, *joined, *printable;

	if (vasprintf(&what, format, args) < 0)
		what = NULL;
	/* "namespace: tp_rank = 9 ..." says by itself what it is about. */
	if (what && cause && *what && strncmp(cause, what, strlen(what)) == 0 &&
	    strncmp(cause + strlen(what), ": ", 2) == 0)
		text = strdup(cause);
	else if (what && asprintf(&text, "%s%s%s", what, cause ? ": " : "", cause ? cause : "") < 0)
		text = NULL;
	joined = text ? join_lines(text) : NULL;
	printable = joined ? cli_printable(joined) : NULL;
	print_error(cli, exit_code, error, printable ? printable : "out of memory");
	free(what);
	free(text);
	free(joined);
	free(printable);
	return exit_code;
}

int cli_error(struct kvc_cli *cli, int exit_code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)report(cli, exit_code, 0, NULL, format, args);
	va_end(args);
	return exit_code;
}

int cli_usage(struct kvc_cli *cli, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)report(cli, CLI_USAGE, 0, NULL, format, args);
	va_end(args);
	if (!cli->json)
		(void)fprintf(stderr, "Try 'kvcellar %s%s--help'.\n",
			      cli->command ? cli->command : "", cli->command ? " " : "");
	return CLI_USAGE;
}

/* The library's words for its last failure, kept before another call changes them. */
static char *last_cause(int error)
{
	const char *text = kvc_last_error();

	return strdup(text[0] ? text : strerror(-error));
}

int cli_fail(struct kvc_cli *cli, int error, const char *format, ...)
{
	char *cause = last_cause(error);
	int exit_code = cli_exit_of_errno(error);
	va_list args;

	va_start(args, format);
	(void)report(cli, exit_code, error, cause, format, args);
	va_end(args);
	free(cause);
	return exit_code;
}

int cli_fail_key(struct kvc_cli *cli, int error, const char *format, ...)
{
	char *cause = last_cause(error);
	int exit_code = cli_exit_of_errno(error);
	va_list args;

	if (error == -EINVAL || error == -ENAMETOOLONG)
		exit_code = CLI_USAGE;
	va_start(args, format);
	(void)report(cli, exit_code, error, cause, format, args);
	va_end(args);
	free(cause);
	return exit_code;
}

int cli_fail_as(struct kvc_cli *cli, int exit_code, int error, const char *format, ...)
{
	char *cause = last_cause(error);
	va_list args;

	va_start(args, format);
	(void)report(cli, exit_code, error, cause, format, args);
	va_end(args);
	free(cause);
	return exit_code;
}

int cli_fail_errno(struct kvc_cli *cli, int error, const char *format, ...)
{
	int exit_code = cli_exit_of_errno(error);
	va_list args;

	va_start(args, format);
	(void)report(cli, exit_code, error, strerror(-error), format, args);
	va_end(args);
	return exit_code;
}

static int report_file(struct kvc_cli *cli, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static int report_file(struct kvc_cli *cli, int error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)report(cli, CLI_USAGE, error, strerror(-error), format, args);
	va_end(args);
	return CLI_USAGE;
}

int cli_fail_file(struct kvc_cli *cli, int error, const char *path)
{
	return report_file(cli, error, "cannot open '%s'", path);
}

void cli_note(struct kvc_cli *cli, const char *format, ...)
{
	va_list args;

	if (cli->quiet || cli->json)
		return;
	va_start(args, format);
	(void)vfprintf(stderr, format, args);
	va_end(args);
	(void)fputc('\n', stderr);
}

/* ---------------------------------------------------------------- JSON and texts */

int cli_json_print(struct kvc_cli *cli, json_t *root)
{
	int rc;

	if (!root)
		return cli_fail_errno(cli, -ENOMEM, "output");
	rc = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
	json_decref(root);
	if (rc == 0)
		(void)putchar('\n');
	return 0; /* a write error is told by cli_output_end() */
}

char *cli_text(struct kvc_cli *cli, const char *what, cli_text_fn get, void *context,
	       int *exit_code)
{
	char *buffer = NULL, *grown;
	size_t bytes = 0;
	int rc;

	for (;;) {
		rc = get(context, buffer, bytes);
		if (rc < 0) {
			*exit_code = cli_fail(cli, rc, "%s", what);
			break;
		}
		if (bytes > (size_t)rc)
			return buffer;
		bytes = (size_t)rc + 256; /* counters grow between two calls */
		grown = realloc(buffer, bytes);
		if (!grown) {
			*exit_code = cli_fail_errno(cli, -ENOMEM, "%s", what);
			break;
		}
		buffer = grown;
	}
	free(buffer);
	return NULL;
}

const char *cli_format_size(char buffer[CLI_FORMAT_BYTES], uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1023.95 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1024;
		unit++;
	}
	(void)snprintf(buffer, CLI_FORMAT_BYTES, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return buffer;
}

const char *cli_format_seconds(char buffer[CLI_FORMAT_BYTES], double seconds)
{
	if (seconds < 1e-3)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%.0f us", seconds * 1e6);
	else if (seconds < 1)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%.1f ms", seconds * 1e3);
	else if (seconds < 60)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%.1f s", seconds);
	else if (seconds < 3600)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%.0f min %02.0f s",
			       (double)(int64_t)(seconds / 60), (double)((int64_t)seconds % 60));
	else if (seconds < 1e12)
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%" PRId64 " h %02d min",
			       (int64_t)seconds / 3600, (int)((int64_t)seconds % 3600 / 60));
	else
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "for ever");
	return buffer;
}

const char *cli_format_time(char buffer[CLI_FORMAT_BYTES], int64_t ns_since_1970)
{
	int64_t whole = ns_since_1970 / 1000000000 - (ns_since_1970 % 1000000000 < 0);
	time_t seconds = (time_t)whole;
	struct tm parts;

	if (!gmtime_r(&seconds, &parts) ||
	    !strftime(buffer, CLI_FORMAT_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts))
		(void)snprintf(buffer, CLI_FORMAT_BYTES, "%" PRId64, whole);
	return buffer;
}

/* ---------------------------------------------------------------- terminal */

bool cli_terminal_usable(int fd)
{
	const char *term = getenv("TERM");

	return isatty(fd) && term && strcmp(term, "dumb") != 0;
}

bool cli_color_wanted(int fd)
{
	const char *no_color = getenv("NO_COLOR");

	return !(no_color && no_color[0]) && cli_terminal_usable(fd);
}

const char *cli_bold(const struct kvc_cli *cli)
{
	return cli->color ? "\033[1m" : "";
}

const char *cli_red(const struct kvc_cli *cli)
{
	return cli->color ? "\033[31m" : "";
}

const char *cli_green(const struct kvc_cli *cli)
{
	return cli->color ? "\033[32m" : "";
}

const char *cli_plain(const struct kvc_cli *cli)
{
	return cli->color ? "\033[0m" : "";
}

/* A stream forgets the errno of a failed write that was not its last: it is kept here. */
static int output_error;

static ssize_t write_output(void *cookie, const char *data, size_t bytes)
{
	size_t done = 0;

	(void)cookie;
	while (done < bytes && !output_error) {
		ssize_t put = write(STDOUT_FILENO, data + done, bytes - done);

		if (put > 0)
			done += (size_t)put;
		else if (put == 0 || errno != EINTR)
			output_error = put < 0 ? errno : EIO;
	}
	return output_error ? 0 : (ssize_t)bytes; /* 0 is the error of a cookie's write */
}

static int close_output(void *cookie)
{
	(void)cookie;
	return close(STDOUT_FILENO);
}

void cli_output_begin(void)
{
	static const cookie_io_functions_t functions = { .write = write_output,
							 .close = close_output };
	FILE *output = fopencookie(NULL, "w", functions);

	if (!output)
		return; /* then its errors have no cause */
	stdout = output;
	(void)setvbuf(stdout, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
}

int cli_output_end(struct kvc_cli *cli, int exit_code)
{
	bool failed = ferror(stdout) != 0;
	int error;

	errno = 0;
	failed = fclose(stdout) != 0 || failed;
	error = output_error ? output_error : !failed ? 0 : errno ? errno : EIO;
	if (!error)
		return exit_code;
	if (error == EPIPE) /* the reader has seen enough, as in `kvcellar ls | head` */
		return exit_code ? exit_code : CLI_IO;
	return cli_fail_errno(cli, -error, "standard output");
}

/* ---------------------------------------------------------------- log */

static void log_line(void *context, int level, const char *text)
{
	static const char *const names[] = { "error", "warning", "info", "debug" };
	const struct kvc_cli *cli = context;
	const char *name = level >= 0 && level < 4 ? names[level] : "log";
	char *printable = cli_printable(text), *line = NULL;
	json_t *root;

	if (!printable)
		return;
	if (!cli->json) {
		(void)fprintf(stderr, "%skvcellar: %s: %s\n",
			      cli_terminal_usable(STDERR_FILENO) ? "\r\033[K" : "", name,
			      printable);
	} else {
		root = json_pack("{s:{s:s, s:s}}", "log", "level", name, "message", printable);
		line = root ? json_dumps(root, JSON_COMPACT) : NULL;
		if (line)
			(void)fprintf(stderr, "%s\n", line);
		free(line);
		json_decref(root);
	}
	free(printable);
}

void cli_log_begin(struct kvc_cli *cli)
{
	static const int levels[] = { KVC_LOG_ERROR, KVC_LOG_INFO, KVC_LOG_DEBUG };

	/* What fails is told by the command itself. What remains is an output beside it that was
	 * asked for and does not come: metrics_file, trace_file. */
	kvc_log_set(log_line, cli, levels[cli->verbose < 2 ? cli->verbose : 2]);
}
