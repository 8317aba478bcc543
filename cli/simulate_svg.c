/* SPDX-License-Identifier: Apache-2.0 */
#include "replay_svg.h"
#include "simulate_chart.h"

#include <errno.h>

struct svg {
	struct sim_canvas canvas;
	FILE *file;
};

static FILE *file_of(struct sim_canvas *canvas)
{
	return ((struct svg *)canvas)->file;
}

static void draw_line(struct sim_canvas *canvas, enum sim_color color, double width, double x0,
		      double y0, double x1, double y1)
{
	fprintf(file_of(canvas),
		"<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#%06x\" "
		"stroke-width=\"%g\"/>\n",
		x0, y0, x1, y1, sim_colors[color], width);
}

static void draw_point(struct sim_canvas *canvas, enum sim_color color, double x, double y,
		       const char *note)
{
	fprintf(file_of(canvas), "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.2\" fill=\"#%06x\"><title>",
		x, y, sim_colors[color]);
	svg_text(file_of(canvas), note);
	fputs("</title></circle>\n", file_of(canvas));
}

static void draw_text(struct sim_canvas *canvas, enum sim_anchor anchor, double x, double y,
		      const char *text)
{
	static const char *const anchors[] = { "start", "middle", "end" };

	fprintf(file_of(canvas), "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y,
		anchors[anchor]);
	svg_text(file_of(canvas), text);
	fputs("</text>\n", file_of(canvas));
}

int sim_write_svg(FILE *file, const struct sim_outcome *outcome)
{
	struct svg svg = { { draw_line, draw_point, draw_text }, file };

	fprintf(file,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
		"height=\"%d\" font-family=\"sans-serif\" font-size=\"14\" fill=\"#%06x\" "
		"role=\"img\" aria-label=\"hit rate against capacity\">\n"
		"<rect width=\"%d\" height=\"%d\" fill=\"#%06x\"/>\n",
		SIM_CHART_WIDTH, SIM_CHART_HEIGHT, SIM_CHART_WIDTH, SIM_CHART_HEIGHT,
		sim_colors[SIM_INK], SIM_CHART_WIDTH, SIM_CHART_HEIGHT, sim_colors[SIM_PAPER]);
	sim_chart_draw(&svg.canvas, outcome);
	fputs("</svg>\n", file);
	return ferror(file) ? -EIO : 0;
}
