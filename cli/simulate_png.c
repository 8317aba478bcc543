/* SPDX-License-Identifier: Apache-2.0 */
/* A PNG (W3C Recommendation, third edition) of few colours, with letters of its own: no library is
 * needed for a chart. The data are deflate (RFC 1951) of runs with fixed codes. */
#include "simulate_chart.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCALE	2
#define WIDTH	(SIM_CHART_WIDTH * SCALE)
#define HEIGHT	(SIM_CHART_HEIGHT * SCALE)
#define ROW	(WIDTH + 1) /* a filter byte first */
#define DOT	3	    /* of a letter, in pixels */
#define ADVANCE (6 * DOT)   /* from letter to letter */

/* Rows from the top; the highest of five bits is on the left. */
static const struct glyph {
	char letter;
	uint8_t rows[7];
} glyphs[] = {
	{ 'a', { 0x00, 0x00, 0x0e, 0x01, 0x0f, 0x11, 0x0f } },
	{ 'b', { 0x10, 0x10, 0x1e, 0x11, 0x11, 0x11, 0x1e } },
	{ 'c', { 0x00, 0x00, 0x0f, 0x10, 0x10, 0x10, 0x0f } },
	{ 'd', { 0x01, 0x01, 0x0f, 0x11, 0x11, 0x11, 0x0f } },
	{ 'e', { 0x00, 0x00, 0x0e, 0x11, 0x1f, 0x10, 0x0f } },
	{ 'f', { 0x06, 0x08, 0x1e, 0x08, 0x08, 0x08, 0x08 } },
	{ 'g', { 0x00, 0x0f, 0x11, 0x11, 0x0f, 0x01, 0x0e } },
	{ 'h', { 0x10, 0x10, 0x1e, 0x11, 0x11, 0x11, 0x11 } },
	{ 'i', { 0x04, 0x00, 0x0c, 0x04, 0x04, 0x04, 0x0e } },
	{ 'j', { 0x02, 0x00, 0x06, 0x02, 0x02, 0x12, 0x0c } },
	{ 'k', { 0x10, 0x10, 0x12, 0x14, 0x18, 0x14, 0x12 } },
	{ 'l', { 0x0c, 0x04, 0x04, 0x04, 0x04, 0x04, 0x06 } },
	{ 'm', { 0x00, 0x00, 0x1a, 0x15, 0x15, 0x15, 0x15 } },
	{ 'n', { 0x00, 0x00, 0x1e, 0x11, 0x11, 0x11, 0x11 } },
	{ 'o', { 0x00, 0x00, 0x0e, 0x11, 0x11, 0x11, 0x0e } },
	{ 'p', { 0x00, 0x1e, 0x11, 0x11, 0x1e, 0x10, 0x10 } },
	{ 'q', { 0x00, 0x0f, 0x11, 0x11, 0x0f, 0x01, 0x01 } },
	{ 'r', { 0x00, 0x00, 0x16, 0x18, 0x10, 0x10, 0x10 } },
	{ 's', { 0x00, 0x00, 0x0f, 0x10, 0x0e, 0x01, 0x1e } },
	{ 't', { 0x08, 0x08, 0x1e, 0x08, 0x08, 0x08, 0x06 } },
	{ 'u', { 0x00, 0x00, 0x11, 0x11, 0x11, 0x11, 0x0f } },
	{ 'v', { 0x00, 0x00, 0x11, 0x11, 0x11, 0x0a, 0x04 } },
	{ 'w', { 0x00, 0x00, 0x11, 0x15, 0x15, 0x15, 0x0a } },
	{ 'x', { 0x00, 0x00, 0x11, 0x0a, 0x04, 0x0a, 0x11 } },
	{ 'y', { 0x00, 0x11, 0x11, 0x11, 0x0f, 0x01, 0x0e } },
	{ 'z', { 0x00, 0x00, 0x1f, 0x02, 0x04, 0x08, 0x1f } },
	{ '0', { 0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e } },
	{ '1', { 0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e } },
	{ '2', { 0x0e, 0x11, 0x01, 0x06, 0x08, 0x10, 0x1f } },
	{ '3', { 0x1e, 0x01, 0x01, 0x0e, 0x01, 0x01, 0x1e } },
	{ '4', { 0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02 } },
	{ '5', { 0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e } },
	{ '6', { 0x0e, 0x10, 0x10, 0x1e, 0x11, 0x11, 0x0e } },
	{ '7', { 0x1f, 0x01, 0x02, 0x02, 0x04, 0x04, 0x04 } },
	{ '8', { 0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e } },
	{ '9', { 0x0e, 0x11, 0x11, 0x0f, 0x01, 0x01, 0x0e } },
	{ '%', { 0x19, 0x19, 0x02, 0x04, 0x08, 0x13, 0x13 } },
	{ '.', { 0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x0c } },
	{ ',', { 0x00, 0x00, 0x00, 0x00, 0x0c, 0x04, 0x08 } },
	{ '-', { 0x00, 0x00, 0x00, 0x0e, 0x00, 0x00, 0x00 } },
	{ '(', { 0x02, 0x04, 0x08, 0x08, 0x08, 0x04, 0x02 } },
	{ ')', { 0x08, 0x04, 0x02, 0x02, 0x02, 0x04, 0x08 } },
};

struct png {
	struct sim_canvas canvas;
	uint8_t *pixels; /* ROW bytes each */
};

/* ---------------------------------------------------------------- drawing */

static void set_pixel(struct png *png, int x, int y, enum sim_color color)
{
	if (x >= 0 && x < WIDTH && y >= 0 && y < HEIGHT)
		png->pixels[(size_t)y * ROW + 1 + (size_t)x] = (uint8_t)color;
}

static void fill_disc(struct png *png, enum sim_color color, double x, double y, double radius)
{
	const int reach = (int)ceil(radius);

	for (int dy = -reach; dy <= reach; dy++)
		for (int dx = -reach; dx <= reach; dx++)
			if (dx * dx + dy * dy <= radius * radius)
				set_pixel(png, (int)lround(x) + dx, (int)lround(y) + dy, color);
}

static void draw_line(struct sim_canvas *canvas, enum sim_color color, double width, double x0,
		      double y0, double x1, double y1)
{
	struct png *png = (struct png *)canvas;
	const double dx = (x1 - x0) * SCALE, dy = (y1 - y0) * SCALE;
	const int steps = (int)ceil(fmax(fabs(dx), fabs(dy)));

	for (int i = 0; i <= steps; i++) {
		const double part = steps ? (double)i / steps : 0;
		const double x = x0 * SCALE + dx * part, y = y0 * SCALE + dy * part;

		if (width > 1)
			fill_disc(png, color, x, y, width * SCALE / 2.6);
		else
			set_pixel(png, (int)lround(x), (int)lround(y), color);
	}
}

static void draw_point(struct sim_canvas *canvas, enum sim_color color, double x, double y,
		       const char *note)
{
	(void)note;
	fill_disc((struct png *)canvas, color, x * SCALE, y * SCALE, 3.2 * SCALE);
}

static void draw_letter(struct png *png, char letter, int left, int top)
{
	for (size_t g = 0; g < sizeof(glyphs) / sizeof(glyphs[0]); g++) {
		if (glyphs[g].letter != letter)
			continue;
		/* These go below the line. */
		top += strchr("gpqy,", letter) ? 2 * DOT : 0;
		for (int y = 0; y < 7 * DOT; y++)
			for (int x = 0; x < 5 * DOT; x++)
				if (glyphs[g].rows[y / DOT] & 16u >> x / DOT)
					set_pixel(png, left + x, top + y, SIM_INK);
	}
}

static void draw_text(struct sim_canvas *canvas, enum sim_anchor anchor, double x, double y,
		      const char *text)
{
	const int width = (int)strlen(text) * ADVANCE - DOT;
	int left = (int)lround(x * SCALE) - width * (int)anchor / 2;
	const int top = (int)lround(y * SCALE) - 7 * DOT;

	for (; *text; text++, left += ADVANCE)
		draw_letter((struct png *)canvas, *text, left, top);
}

/* ---------------------------------------------------------------- deflate */

struct bits {
	uint8_t *bytes;
	size_t count;
	uint32_t held;
	unsigned held_count;
};

static void put_bits(struct bits *bits, uint32_t value, unsigned count)
{
	bits->held |= value << bits->held_count;
	for (bits->held_count += count; bits->held_count >= 8; bits->held_count -= 8) {
		bits->bytes[bits->count++] = (uint8_t)bits->held;
		bits->held >>= 8;
	}
}

/* A Huffman code comes with its highest bit first. */
static void put_code(struct bits *bits, uint32_t code, unsigned count)
{
	uint32_t turned = 0;

	for (unsigned i = 0; i < count; i++)
		turned |= (code >> i & 1) << (count - 1 - i);
	put_bits(bits, turned, count);
}

/* Literals and lengths by the fixed codes of RFC 1951, 3.2.6. */
static void put_symbol(struct bits *bits, unsigned symbol)
{
	if (symbol < 144)
		put_code(bits, 0x30 + symbol, 8);
	else if (symbol < 256)
		put_code(bits, 0x190 + symbol - 144, 9);
	else if (symbol < 280)
		put_code(bits, symbol - 256, 7);
	else
		put_code(bits, 0xc0 + symbol - 280, 8);
}

/* `length` times the byte before: lengths that have no extra bits, at distance 1. */
static size_t put_run(struct bits *bits, size_t length)
{
	const size_t taken = length >= 258 ? 258 : length > 10 ? 10 : length;

	put_symbol(bits, taken == 258 ? 285 : 254 + (unsigned)taken);
	put_code(bits, 0, 5);
	return taken;
}

static void put_deflated(struct bits *bits, const uint8_t *data, size_t bytes)
{
	put_bits(bits, 1 | 1 << 1, 3); /* the last block, with fixed codes */
	for (size_t i = 0; i < bytes;) {
		size_t run = 0;

		while (i > 0 && i + run < bytes && data[i + run] == data[i - 1])
			run++;
		if (run >= 3)
			i += put_run(bits, run);
		else
			put_symbol(bits, data[i++]);
	}
	put_symbol(bits, 256);
	put_bits(bits, 0, 7); /* to a whole byte */
}

static uint32_t adler32(const uint8_t *data, size_t bytes)
{
	uint32_t a = 1, b = 0;

	for (size_t i = 0; i < bytes; i++) {
		a = (a + data[i]) % 65521;
		b = (b + a) % 65521;
	}
	return b << 16 | a;
}

/* ---------------------------------------------------------------- the file */

static uint32_t crc32(uint32_t crc, const uint8_t *data, size_t bytes)
{
	crc = ~crc;
	for (size_t i = 0; i < bytes; i++) {
		crc ^= data[i];
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xedb88320) : 0);
	}
	return ~crc;
}

static void put_be32(uint8_t *out, uint32_t value)
{
	for (unsigned i = 0; i < 4; i++)
		out[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* false: it cannot be written */
static bool write_chunk(FILE *file, const char *type, const uint8_t *data, size_t bytes)
{
	uint8_t head[8], tail[4];

	put_be32(head, (uint32_t)bytes);
	memcpy(head + 4, type, 4);
	put_be32(tail, crc32(crc32(0, head + 4, 4), data, bytes));
	return fwrite(head, 8, 1, file) == 1 && (bytes == 0 || fwrite(data, bytes, 1, file) == 1) &&
	       fwrite(tail, 4, 1, file) == 1;
}

/* A row as what it differs by from the one above: runs of zeros. */
static void filter_up(uint8_t *pixels)
{
	for (size_t y = HEIGHT; y-- > 0;) {
		uint8_t *row = pixels + y * ROW;

		row[0] = 2;
		for (size_t x = 1; y > 0 && x < ROW; x++)
			row[x] = (uint8_t)(row[x] - row[x - ROW]);
	}
}

static bool write_data(FILE *file, const uint8_t *pixels, uint8_t *buffer)
{
	const size_t bytes = (size_t)ROW * HEIGHT;
	struct bits bits = { .bytes = buffer, .count = 2 };

	buffer[0] = 0x78; /* zlib, RFC 1950 */
	buffer[1] = 0x01;
	put_deflated(&bits, pixels, bytes);
	put_be32(buffer + bits.count, adler32(pixels, bytes));
	return write_chunk(file, "IDAT", buffer, bits.count + 4);
}

static bool write_file(FILE *file, uint8_t *pixels, uint8_t *buffer)
{
	static const uint8_t signature[] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
	uint8_t head[13] = { [8] = 8, [9] = 3 }; /* 8 bits, of a palette */
	uint8_t palette[3 * SIM_COLORS];

	put_be32(head, WIDTH);
	put_be32(head + 4, HEIGHT);
	for (unsigned i = 0; i < sizeof(palette); i++)
		palette[i] = (uint8_t)(sim_colors[i / 3] >> (16 - 8 * (i % 3)));
	filter_up(pixels);
	return fwrite(signature, sizeof(signature), 1, file) == 1 &&
	       write_chunk(file, "IHDR", head, sizeof(head)) &&
	       write_chunk(file, "PLTE", palette, sizeof(palette)) &&
	       write_data(file, pixels, buffer) && write_chunk(file, "IEND", NULL, 0);
}

int sim_write_png(FILE *file, const struct sim_outcome *outcome)
{
	const size_t bytes = (size_t)ROW * HEIGHT;
	struct png png = { { draw_line, draw_point, draw_text }, calloc(bytes, 1) };
	uint8_t *buffer = malloc(2 * bytes + 64); /* a byte takes at most 9 bits */
	int rc = -ENOMEM;

	if (png.pixels && buffer) {
		sim_chart_draw(&png.canvas, outcome);
		rc = write_file(file, png.pixels, buffer) ? 0 : -EIO;
	}
	free(buffer);
	free(png.pixels);
	return rc;
}
