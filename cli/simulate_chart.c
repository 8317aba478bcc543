/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_chart.h"

#include <inttypes.h>
#include <math.h>

#define LEFT   62.0
#define RIGHT  (SIM_CHART_WIDTH - 24.0)
#define TOP    58.0
#define BOTTOM (SIM_CHART_HEIGHT - 56.0)

const uint32_t sim_colors[SIM_COLORS] = {
	[SIM_PAPER] = 0xffffff,	    [SIM_INK] = 0x30343a,	[SIM_GRID] = 0xdcdfe4,
	[SIM_CURVE] = 0x1f6fb4,	    [SIM_CURVE + 1] = 0xd0741c, [SIM_CURVE + 2] = 0x3a9450,
	[SIM_CURVE + 3] = 0x8a4fa8,
};

struct chart {
	struct sim_canvas *canvas;
	const struct sim_outcome *outcome;
	double least; /* of x: percent of the distinct pages, logarithmic */
	double most;
	double top; /* of y: percent of the pages asked for */
};

static double share_of(const struct sim_outcome *outcome, size_t c)
{
	return 100.0 * outcome->capacities[c].pages / outcome->trace->distinct;
}

static double place_x(const struct chart *chart, double percent)
{
	return LEFT +
	       log(percent / chart->least) / log(chart->most / chart->least) * (RIGHT - LEFT);
}

static double place_y(const struct chart *chart, double percent)
{
	return BOTTOM - percent / chart->top * (BOTTOM - TOP);
}

static void find_range(struct chart *chart)
{
	const struct sim_outcome *outcome = chart->outcome;
	double highest = 0;

	chart->least = chart->most = share_of(outcome, 0);
	for (size_t c = 0; c < outcome->capacity_count; c++) {
		chart->least = fmin(chart->least, share_of(outcome, c));
		chart->most = fmax(chart->most, share_of(outcome, c));
		for (size_t p = 0; p < outcome->policy_count; p++)
			highest = fmax(highest,
				       100 * sim_hit_rate(outcome, sim_point(outcome, c, p)));
	}
	if (chart->most < chart->least * 1.5) {
		chart->least /= 2;
		chart->most *= 2;
	}
	/* A whole number of tens, with room above. */
	chart->top = fmin(100, ceil((highest + 0.5) / 10) * 10);
}

static void draw_y_axis(const struct chart *chart)
{
	const double step = chart->top <= 20 ? 5 : chart->top <= 50 ? 10 : 20;
	char text[16];

	for (double y = 0; y <= chart->top; y += step) {
		chart->canvas->line(chart->canvas, y > 0 ? SIM_GRID : SIM_INK, 1, LEFT,
				    place_y(chart, y), RIGHT, place_y(chart, y));
		(void)snprintf(text, sizeof(text), "%g%%", y);
		chart->canvas->text(chart->canvas, SIM_RIGHT, LEFT - 8, place_y(chart, y) + 5,
				    text);
	}
}

/* 1, 2 and 5 of each power of ten. */
static void draw_x_axis(const struct chart *chart)
{
	static const double digits[] = { 1, 2, 5 };
	double power = pow(10, floor(log10(chart->least)));
	char text[16];

	for (; power <= chart->most; power *= 10) {
		for (size_t i = 0; i < 3; i++) {
			const double x = digits[i] * power;

			if (x < chart->least * 0.999 || x > chart->most * 1.001)
				continue;
			chart->canvas->line(chart->canvas, SIM_GRID, 1, place_x(chart, x), TOP,
					    place_x(chart, x), BOTTOM);
			(void)snprintf(text, sizeof(text), "%.4g%%", x);
			chart->canvas->text(chart->canvas, SIM_MIDDLE, place_x(chart, x),
					    BOTTOM + 20, text);
		}
	}
	chart->canvas->text(chart->canvas, SIM_MIDDLE, (LEFT + RIGHT) / 2, BOTTOM + 44,
			    "capacity, percent of the distinct pages");
}

static void draw_curve(const struct chart *chart, size_t p)
{
	const struct sim_outcome *outcome = chart->outcome;
	const enum sim_color color = (enum sim_color)(SIM_CURVE + p);
	double last_x = 0, last_y = 0;
	char note[128], name[CLI_FORMAT_BYTES];

	for (size_t c = 0; c < outcome->capacity_count; c++) {
		const double rate = 100 * sim_hit_rate(outcome, sim_point(outcome, c, p));
		const double x = place_x(chart, share_of(outcome, c)), y = place_y(chart, rate);

		if (c > 0)
			chart->canvas->line(chart->canvas, color, 2, last_x, last_y, x, y);
		(void)snprintf(note, sizeof(note),
			       "%s at %s: %.2f%% hits, %" PRIu64 " pages recomputed",
			       outcome->policies[p].name,
			       sim_capacity_name(&outcome->capacities[c], name), rate,
			       sim_point(outcome, c, p)->recomputed);
		chart->canvas->point(chart->canvas, color, x, y, note);
		last_x = x;
		last_y = y;
	}
}

static void draw_legend(const struct chart *chart)
{
	for (size_t p = 0; p < chart->outcome->policy_count; p++) {
		const double x = LEFT + 130 * (double)p;

		chart->canvas->line(chart->canvas, (enum sim_color)(SIM_CURVE + p), 4, x, 41,
				    x + 22, 41);
		chart->canvas->text(chart->canvas, SIM_LEFT, x + 30, 46,
				    chart->outcome->policies[p].name);
	}
}

void sim_chart_draw(struct sim_canvas *canvas, const struct sim_outcome *outcome)
{
	struct chart chart = { .canvas = canvas, .outcome = outcome };
	char text[96];

	find_range(&chart);
	(void)snprintf(text, sizeof(text),
		       "hit rate of %" PRIu64 " requests, %" PRIu32 " distinct pages",
		       outcome->trace->asked, outcome->trace->distinct);
	canvas->text(canvas, SIM_LEFT, LEFT, 22, text);
	draw_y_axis(&chart);
	draw_x_axis(&chart);
	draw_legend(&chart);
	for (size_t p = outcome->policy_count; p-- > 0;)
		draw_curve(&chart, p);
}
