/*
 * draw.h: draws masks over images, sheets of small images with captions, and bar charts, into RGB
 * images in memory, which io/png.h writes.
 *
 * Drawing outside of an image is clipped, never an error.
 */
#pragma once

#include "base/base.h"

struct colour {
    uint8_t r, g, b;
};
#define DRAW_WHITE ((struct colour){255, 255, 255})
#define DRAW_BLACK ((struct colour){20, 20, 24})
#define DRAW_GREY ((struct colour){120, 124, 132})

struct canvas {
    uint32_t w, h;
    uint8_t *rgb; /* [h][w][3] */
};
struct canvas canvas_new(uint32_t w, uint32_t h, struct colour c);
void canvas_free(struct canvas *p);

/* Returns colour i of an endless list whose neighbours differ clearly. */
struct colour draw_colour(uint32_t i);

void draw_rect(struct canvas *p, int x, int y, int w, int h, struct colour c);
struct draw_area {
    int x, y;
    uint32_t w, h;
};
/* Draws an image into the box w x h, resized, centred and with its aspect ratio. Returns the area
 * that it covers, for masks to be drawn over it. */
struct draw_area draw_fit(struct canvas *p, int x, int y, uint32_t w, uint32_t h, const struct canvas *what);

/* Letters of 5x7 dots, each dot `scale` pixels, 6 dots apart. Bytes that are not printable ASCII
 * appear as a box. */
enum { DRAW_LETTER_W = 6, DRAW_LETTER_H = 9 };
void draw_text(struct canvas *p, int x, int y, int scale, struct colour c, const char *text);

/* A mask: one byte per pixel, or one bit, least significant first as in data/masks/grid.h. */
struct draw_mask {
    const uint8_t *at;
    size_t stride; /* bytes of a row */
    uint32_t w, h;
    bool bits;
};
/* Draws a mask over an area of the image, resampled to the area's size: blends the colour with
 * opacity `strength` (0..1) and draws an outline `line` pixels wide, inside the mask. */
void draw_overlay(struct canvas *p, struct draw_area at, const struct draw_mask *m, struct colour c, double strength,
                  int line);
/* Prompts: a point is a disc with a white rim; a box is a frame. */
void draw_point(struct canvas *p, int x, int y, int radius, struct colour c);
void draw_box(struct canvas *p, int x, int y, int w, int h, int line, struct colour c);

/* One cell of a sheet; the lines[] that are not NULL are drawn below the image. */
struct draw_cell {
    struct canvas image;
    const char *lines[3];
};
/* Draws a grid of cells, `columns` wide, each image fitted into cell_w x cell_h. */
struct canvas draw_sheet(const char *title, const struct draw_cell *cells, uint32_t n, uint32_t columns,
                         uint32_t cell_w, uint32_t cell_h);

/* A chart of horizontal bars: label, bar, value as text. Lengths are relative to the largest
 * value. */
struct draw_bar {
    const char *label, *shown;
    double value;
};
struct canvas draw_bars(const char *title, const struct draw_bar *bars, uint32_t n, uint32_t width);
/* Stacks images vertically on white. */
struct canvas draw_stack(const struct canvas *parts, uint32_t n);
