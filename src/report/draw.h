/*
 * draw.h: images for people: masks over images, sheets of small images with captions,
 * bars. Everything goes into RGB images in memory, which io/png.h writes.
 *
 * Drawing outside of an image is cut off, never an error.
 */
#ifndef DRAW_H
#define DRAW_H

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

/* Colour i of an endless list whose neighbours are easy to tell apart. */
struct colour draw_colour(uint32_t i);

void draw_rect(struct canvas *p, int x, int y, int w, int h, struct colour c);
/* An image at x, y; and one resized into the box w x h, its shape kept, in the middle: the
 * place that it took is given back, so that masks can be laid over it. */
void draw_image(struct canvas *p, int x, int y, const struct canvas *what);
struct draw_place {
    int x, y;
    uint32_t w, h;
};
struct draw_place draw_fit(struct canvas *p, int x, int y, uint32_t w, uint32_t h, const struct canvas *what);

/* Letters of 5x7 dots, each `scale` pixels, 6 dots apart. Bytes that are not printable ASCII show as a box. */
enum { DRAW_LETTER_W = 6, DRAW_LETTER_H = 9 };
void draw_text(struct canvas *p, int x, int y, int scale, struct colour c, const char *text);
int draw_text_width(int scale, const char *text);

/* A mask: one byte a pixel, or one bit, least significant first as data/grid.h has them. */
struct draw_mask {
    const uint8_t *at;
    size_t stride; /* bytes of a row */
    uint32_t w, h;
    bool bits;
};
/* Lays a mask over a place of the image, sampled to its size: coloured where it is set
 * (`strength` 0..1 of the colour) and with an outline `line` pixels wide, inside the mask. */
void draw_overlay(struct canvas *p, struct draw_place at, const struct draw_mask *m, struct colour c, double strength, int line);
/* A point prompt: a disc with a white rim. And a box. */
void draw_point(struct canvas *p, int x, int y, int radius, struct colour c);
void draw_box(struct canvas *p, int x, int y, int w, int h, int line, struct colour c);

/* One cell of a sheet; lines[] that are not NULL stand below the image. */
struct draw_cell {
    struct canvas image;
    const char *lines[3];
};
/* A grid of cells, `columns` wide, each image fitted into cell_w x cell_h. */
struct canvas draw_sheet(const char *title, const struct draw_cell *cells, uint32_t n, uint32_t columns, uint32_t cell_w, uint32_t cell_h);

/* Horizontal bars: label, bar, value as printed. Bars are relative to the largest value. */
struct draw_bar {
    const char *label, *shown;
    double value;
};
struct canvas draw_bars(const char *title, const struct draw_bar *bars, uint32_t n, uint32_t width);
/* Images one below the other, on white. */
struct canvas draw_stack(const struct canvas *parts, uint32_t n);

#endif
