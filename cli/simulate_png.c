/* SPDX-License-Identifier: Apache-2.0 */
/* The chart as PNG, drawn by cairo as the SVG is by a browser. */
#include "simulate_chart.h"

#include <errno.h>

#ifndef KVC_HAVE_CAIRO

bool sim_has_png(void)
{
	return false;
}

int sim_write_png(FILE *file, const struct sim_outcome *outcome)
{
	(void)file;
	(void)outcome;
	return -ENOSYS;
}

#else

#include <cairo.h>
#include <math.h>

#ifndef CAIRO_HAS_PNG_FUNCTIONS
#error "this cairo was built without PNG: configure with -DKVC_CAIRO=OFF"
#endif

#define SCALE	  2 /* pixels for a unit of the drawing */
#define FONT_SIZE 14.0
#define RADIUS	  3.2

struct png {
	struct sim_canvas canvas;
	cairo_t *cairo;
	FILE *file;
	int error; /* of writing to the file */
};

/* ---------------------------------------------------------------- drawing */

static cairo_t *begin(struct sim_canvas *canvas, enum sim_color color)
{
	cairo_t *cairo = ((struct png *)canvas)->cairo;
	const uint32_t rgb = sim_colors[color];

	cairo_set_source_rgb(cairo, (rgb >> 16) / 255.0, (rgb >> 8 & 255) / 255.0,
			     (rgb & 255) / 255.0);
	return cairo;
}

static void draw_line(struct sim_canvas *canvas, enum sim_color color, double width, double x0,
		      double y0, double x1, double y1)
{
	cairo_t *cairo = begin(canvas, color);

	cairo_set_line_width(cairo, width);
	cairo_move_to(cairo, x0, y0);
	cairo_line_to(cairo, x1, y1);
	cairo_stroke(cairo);
}

static void draw_point(struct sim_canvas *canvas, enum sim_color color, double x, double y,
		       const char *note)
{
	cairo_t *cairo = begin(canvas, color);

	(void)note;
	cairo_arc(cairo, x, y, RADIUS, 0, 2 * M_PI);
	cairo_fill(cairo);
}

static void draw_text(struct sim_canvas *canvas, enum sim_anchor anchor, double x, double y,
		      const char *text)
{
	cairo_t *cairo = begin(canvas, SIM_INK);
	cairo_text_extents_t extents;

	cairo_text_extents(cairo, text, &extents);
	cairo_move_to(cairo, x - extents.x_advance * (int)anchor / 2, y);
	cairo_show_text(cairo, text);
}

static void draw_chart(struct png *png, const struct sim_outcome *outcome)
{
	cairo_scale(png->cairo, SCALE, SCALE);
	(void)begin(&png->canvas, SIM_PAPER);
	cairo_paint(png->cairo);
	cairo_select_font_face(png->cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
			       CAIRO_FONT_WEIGHT_NORMAL);
	cairo_set_font_size(png->cairo, FONT_SIZE);
	sim_chart_draw(&png->canvas, outcome);
}

/* ---------------------------------------------------------------- the file */

static cairo_status_t write_bytes(void *closure, const unsigned char *data, unsigned length)
{
	struct png *png = closure;

	if (length == 0 || fwrite(data, length, 1, png->file) == 1)
		return CAIRO_STATUS_SUCCESS;
	png->error = -errno;
	return CAIRO_STATUS_WRITE_ERROR;
}

static int error_of(const struct png *png, cairo_status_t status)
{
	if (png->error)
		return png->error;
	if (status == CAIRO_STATUS_SUCCESS)
		return 0;
	return status == CAIRO_STATUS_NO_MEMORY ? -ENOMEM : -EIO;
}

bool sim_has_png(void)
{
	return true;
}

int sim_write_png(FILE *file, const struct sim_outcome *outcome)
{
	struct png png = { .canvas = { draw_line, draw_point, draw_text }, .file = file };
	cairo_surface_t *surface = cairo_image_surface_create(
		CAIRO_FORMAT_RGB24, SIM_CHART_WIDTH * SCALE, SIM_CHART_HEIGHT * SCALE);
	cairo_status_t status;

	/* What fails makes the rest do nothing, and is kept as the status. */
	png.cairo = cairo_create(surface);
	draw_chart(&png, outcome);
	status = cairo_status(png.cairo);
	if (status == CAIRO_STATUS_SUCCESS)
		status = cairo_surface_write_to_png_stream(surface, write_bytes, &png);
	cairo_destroy(png.cairo);
	cairo_surface_destroy(surface);
	return error_of(&png, status);
}

#endif
