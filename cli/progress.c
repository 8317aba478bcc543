/* SPDX-License-Identifier: Apache-2.0 */
/* The progress bar: one line on a terminal's stderr, drawn at most ten times a second. */
#include "cli.h"

#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define FRAME_NS 100000000
#define BAR_MAX	 40

static int64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static unsigned terminal_columns(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		return size.ws_col;
	return 80;
}

static void format_amount(const struct cli_progress *progress, uint64_t amount,
			  char text[CLI_FORMAT_BYTES])
{
	if (progress->unit == CLI_UNIT_BYTES)
		(void)cli_format_size(text, amount);
	else
		(void)snprintf(text, CLI_FORMAT_BYTES, "%" PRIu64, amount);
}

/* "120/1000  52/s  eta 17 s", what follows the bar. */
static void format_tail(const struct cli_progress *progress, int64_t elapsed_ns, char *tail,
			size_t bytes)
{
	char done[CLI_FORMAT_BYTES], total[CLI_FORMAT_BYTES], rate[CLI_FORMAT_BYTES];
	char left[CLI_FORMAT_BYTES] = "";
	double seconds = (double)elapsed_ns / 1e9;
	double speed = seconds > 0 ? (double)progress->done / seconds : 0;
	const char *space = "", *slash = "";

	format_amount(progress, progress->done, done);
	format_amount(progress, (uint64_t)speed, rate);
	total[0] = '\0';
	if (progress->total) {
		slash = "/";
		format_amount(progress, progress->total, total);
		if (speed > 0 && progress->done < progress->total) {
			space = "  eta ";
			(void)cli_format_seconds(left, (double)(progress->total - progress->done) /
							       speed);
		}
	}
	(void)snprintf(tail, bytes, "%s%s%s  %s/s%s%s", done, slash, total, rate, space, left);
}

static void draw(struct cli_progress *progress, int64_t now)
{
	unsigned columns = terminal_columns();
	char tail[160], bar[BAR_MAX + 1], line[512];
	size_t used, width = 0, filled = 0;

	format_tail(progress, now - progress->begin_ns, tail, sizeof(tail));
	used = strlen(progress->label) + strlen(tail) + 6;
	if (progress->total && columns > used + 8) {
		width = columns - used < BAR_MAX ? columns - used : BAR_MAX;
		filled = (size_t)((double)width * (double)progress->done / (double)progress->total);
		filled = filled < width ? filled : width;
	}
	memset(bar, '#', filled);
	memset(bar + filled, '.', width - filled);
	bar[width] = '\0';
	if (width)
		(void)snprintf(line, sizeof(line), "%s [%s] %s", progress->label, bar, tail);
	else
		(void)snprintf(line, sizeof(line), "%s %s", progress->label, tail);
	if (columns < sizeof(line))
		line[columns > 1 ? columns - 1 : 1] = '\0'; /* a full line would wrap */
	(void)fprintf(stderr, "\r%s%s%s\033[K", progress->color ? "\033[36m" : "", line,
		      progress->color ? "\033[0m" : "");
	(void)fflush(stderr);
	progress->shown_ns = now;
}

void cli_progress_begin(struct kvc_cli *cli, struct cli_progress *progress, const char *label,
			uint64_t total, enum cli_unit unit)
{
	memset(progress, 0, sizeof(*progress));
	progress->label = label;
	progress->total = total;
	progress->unit = unit;
	progress->begin_ns = now_ns();
	progress->color = cli_color_wanted(STDERR_FILENO);
	progress->active = !cli->quiet && !cli->json && !cli->no_progress &&
			   cli_terminal_usable(STDERR_FILENO);
}

void cli_progress_update(struct cli_progress *progress, uint64_t done)
{
	int64_t now;

	progress->done = done;
	if (!progress->active)
		return;
	now = now_ns();
	if (now - progress->shown_ns >= FRAME_NS)
		draw(progress, now);
}

void cli_progress_clear(struct cli_progress *progress)
{
	if (!progress->active || !progress->shown_ns)
		return;
	(void)fputs("\r\033[K", stderr);
	(void)fflush(stderr);
	progress->shown_ns = 0;
}

void cli_progress_end(struct cli_progress *progress)
{
	cli_progress_clear(progress);
	progress->active = false;
}
