/* SPDX-License-Identifier: Apache-2.0 */
/* What the curves of `kvcellar simulate` are drawn on. Places are units of a drawing of
 * SIM_CHART_WIDTH x SIM_CHART_HEIGHT, from the top left. */
#ifndef KVC_CLI_SIMULATE_CHART_H
#define KVC_CLI_SIMULATE_CHART_H

#include "simulate.h"

#define SIM_CHART_WIDTH	 760
#define SIM_CHART_HEIGHT 430

enum sim_color {
	SIM_PAPER = 0,
	SIM_INK = 1,
	SIM_GRID = 2,
	SIM_CURVE = 3, /* and so on, one for each policy */
	SIM_COLORS = SIM_CURVE + SIM_POLICIES_MAX,
};

extern const uint32_t sim_colors[SIM_COLORS]; /* 0xRRGGBB */

enum sim_anchor {
	SIM_LEFT = 0,
	SIM_MIDDLE = 1,
	SIM_RIGHT = 2,
};

struct sim_canvas {
	void (*line)(struct sim_canvas *canvas, enum sim_color color, double width, double x0,
		     double y0, double x1, double y1);
	/* A measured point; note is for those who look closer. */
	void (*point)(struct sim_canvas *canvas, enum sim_color color, double x, double y,
		      const char *note);
	/* y is the line that letters stand on. */
	void (*text)(struct sim_canvas *canvas, enum sim_anchor anchor, double x, double y,
		     const char *text);
};

void sim_chart_draw(struct sim_canvas *canvas, const struct sim_outcome *outcome);

#endif
