/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charts as inline SVG. Colours are CSS classes of the page (c-<name>), so that light and dark are
 * the page's affair. x and y are given in the units of the axes.
 */
#ifndef KVC_CLI_REPLAY_SVG_H
#define KVC_CLI_REPLAY_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct svg_chart {
	FILE *file;
	const char *label; /* for readers that do not see it */
	double x_least;
	double x_most;
	double y_most; /* y begins at 0 */
	bool log_x;    /* x is nanoseconds on a logarithmic scale */
	const char *y_unit;
	double width; /* as it is shown, so that its texts have the size of the page's */
	double height;
};

/* Text of the page: &, <, >, quotes and control bytes made harmless. */
void svg_text(FILE *file, const char *text);

/* Opens the chart and draws its axes, their ticks and a grid. */
void svg_begin(const struct svg_chart *chart);
void svg_end(const struct svg_chart *chart);

/* A bar from (x0, 0) to (x1, y), with a tooltip. */
void svg_bar(const struct svg_chart *chart, const char *color, double x0, double x1, double y,
	     const char *tooltip);

/* A line through count points; an area between two lines of the same x. */
void svg_line(const struct svg_chart *chart, const char *color, const double *x, const double *y,
	      size_t count);
void svg_area(const struct svg_chart *chart, const char *color, const double *x,
	      const double *lower, const double *upper, size_t count);

/* A vertical mark at x with a short label above the plot, left or right of the line: so those of
 * two marks do not meet, however near they are. */
void svg_mark(const struct svg_chart *chart, double x, const char *text, bool left);

/* The largest of 1, 2, 5 x 10^n that is at least `value`, for the end of an axis. */
double svg_round_up(double value);

#endif
