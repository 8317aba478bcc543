/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_svg.h"

#include <math.h>

#define MARGIN_LEFT  46.0
#define MARGIN_RIGHT 30.0 /* a mark's text may stand there */
#define MARGIN_TOP   28.0
#define MARGIN_BELOW 28.0
#define LABEL_WIDTH  52.0 /* "100 ms" and the space around it */

void svg_text(FILE *file, const char *text)
{
	for (; *text != '\0'; text++) {
		switch (*text) {
		case '&':
			fputs("&amp;", file);
			break;
		case '<':
			fputs("&lt;", file);
			break;
		case '>':
			fputs("&gt;", file);
			break;
		case '"':
			fputs("&quot;", file);
			break;
		case '\'':
			fputs("&#39;", file);
			break;
		case '\n':
		case '\t':
			fputc(*text, file);
			break;
		default:
			fputc((unsigned char)*text < 32 || *text == 127 ? '?' : *text, file);
			break;
		}
	}
}

static double plot_bottom(const struct svg_chart *chart)
{
	return chart->height - MARGIN_BELOW;
}

static double place_x(const struct svg_chart *chart, double x)
{
	double share = chart->log_x ?
			       log(x / chart->x_least) / log(chart->x_most / chart->x_least) :
			       (x - chart->x_least) / (chart->x_most - chart->x_least);

	share = share < 0 ? 0 : share > 1 ? 1 : share;
	return MARGIN_LEFT + share * (chart->width - MARGIN_LEFT - MARGIN_RIGHT);
}

static double place_y(const struct svg_chart *chart, double y)
{
	double share = y / chart->y_most;

	share = share < 0 ? 0 : share > 1 ? 1 : share;
	return plot_bottom(chart) - share * (plot_bottom(chart) - MARGIN_TOP);
}

double svg_round_up(double value)
{
	double power, digit;

	if (value <= 0)
		return 1;
	power = pow(10, floor(log10(value)));
	digit = value / power;
	return (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10) * power;
}

static void tick_y(const struct svg_chart *chart, double y)
{
	fprintf(chart->file,
		"<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
		"<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%.3g%s</text>\n",
		MARGIN_LEFT, chart->width - MARGIN_RIGHT, place_y(chart, y), place_y(chart, y),
		MARGIN_LEFT - 7, place_y(chart, y) + 4, y, chart->y_unit);
}

/* Draws the line of a tick, and its text when the former text leaves room: *end is its place. */
static void tick_x(const struct svg_chart *chart, double x, double value, const char *unit,
		   double *end)
{
	double at = place_x(chart, x);

	fprintf(chart->file,
		"<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", at, at,
		MARGIN_TOP, plot_bottom(chart));
	if (at - *end < LABEL_WIDTH)
		return;
	*end = at;
	fprintf(chart->file,
		"<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%.4g%s</text>\n",
		at, plot_bottom(chart) + 18, value, unit);
}

/* 1, 10, 100 us, ...; also 2 and 5 of each when the range is short. */
static void ticks_log(const struct svg_chart *chart)
{
	static const double steps[] = { 1, 2, 5 };
	size_t used = chart->x_most / chart->x_least < 300 ? 3 : 1;
	double end = -LABEL_WIDTH;

	for (double power = 1; power <= chart->x_most; power *= 10) {
		for (size_t i = 0; i < used; i++) {
			double ns = power * steps[i];

			if (ns < chart->x_least || ns > chart->x_most)
				continue;
			if (ns < 1e3)
				tick_x(chart, ns, ns, " ns", &end);
			else if (ns < 1e6)
				tick_x(chart, ns, ns / 1e3, " us", &end);
			else if (ns < 1e9)
				tick_x(chart, ns, ns / 1e6, " ms", &end);
			else
				tick_x(chart, ns, ns / 1e9, " s", &end);
		}
	}
}

static void ticks_linear(const struct svg_chart *chart)
{
	double step = svg_round_up((chart->x_most - chart->x_least) / 6), end = -LABEL_WIDTH;

	for (unsigned i = 0; chart->x_least + i * step <= chart->x_most; i++)
		tick_x(chart, chart->x_least + i * step, chart->x_least + i * step, " s", &end);
}

void svg_begin(const struct svg_chart *chart)
{
	fprintf(chart->file, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"",
		chart->width, chart->height);
	svg_text(chart->file, chart->label);
	fputs("\">\n", chart->file);
	for (unsigned i = 0; i <= 4; i++)
		tick_y(chart, chart->y_most * i / 4);
	if (chart->log_x)
		ticks_log(chart);
	else
		ticks_linear(chart);
}

void svg_end(const struct svg_chart *chart)
{
	fprintf(chart->file,
		"<line class=\"axis\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/></svg>\n",
		MARGIN_LEFT, chart->width - MARGIN_RIGHT, plot_bottom(chart), plot_bottom(chart));
}

void svg_bar(const struct svg_chart *chart, const char *color, double x0, double x1, double y,
	     const char *tooltip)
{
	double left = place_x(chart, x0), right = place_x(chart, x1), top = place_y(chart, y);
	double width = right - left > 1.6 ? right - left - 0.8 : right - left;

	/* What happened once in a million calls is still to be seen. */
	if (y > 0 && plot_bottom(chart) - top < 1.5)
		top = plot_bottom(chart) - 1.5;
	fprintf(chart->file,
		"<rect class=\"c-%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">"
		"<title>",
		color, left, top, width, plot_bottom(chart) - top);
	svg_text(chart->file, tooltip);
	fputs("</title></rect>\n", chart->file);
}

void svg_line(const struct svg_chart *chart, const char *color, const double *x, const double *y,
	      size_t count)
{
	fprintf(chart->file, "<polyline class=\"line s-%s\" points=\"", color);
	for (size_t i = 0; i < count; i++)
		fprintf(chart->file, "%.1f,%.1f ", place_x(chart, x[i]), place_y(chart, y[i]));
	fputs("\"/>\n", chart->file);
}

void svg_area(const struct svg_chart *chart, const char *color, const double *x,
	      const double *lower, const double *upper, size_t count)
{
	fprintf(chart->file, "<polygon class=\"area c-%s\" points=\"", color);
	for (size_t i = 0; i < count; i++)
		fprintf(chart->file, "%.1f,%.1f ", place_x(chart, x[i]), place_y(chart, upper[i]));
	for (size_t i = count; i-- > 0;)
		fprintf(chart->file, "%.1f,%.1f ", place_x(chart, x[i]), place_y(chart, lower[i]));
	fputs("\"/>\n", chart->file);
}

void svg_mark(const struct svg_chart *chart, double x, const char *text, bool left)
{
	double at = place_x(chart, x);

	fprintf(chart->file,
		"<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
		"<text class=\"marktext\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">",
		at, at, MARGIN_TOP - 25, plot_bottom(chart), left ? "end" : "start",
		at + (left ? -4 : 4), MARGIN_TOP - 16);
	svg_text(chart->file, text);
	fputs("</text>\n", chart->file);
}
