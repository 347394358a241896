/*
 * draw.h: pictures for people: masks over images, sheets of small pictures with captions,
 * bars. Everything goes into RGB pictures in memory, which io/png.h writes.
 *
 * Drawing outside of a picture is cut off, never an error.
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

struct picture {
    uint32_t w, h;
    uint8_t *rgb; /* [h][w][3] */
};
struct picture picture_new(uint32_t w, uint32_t h, struct colour c);
void picture_free(struct picture *p);

/* Colour i of an endless list whose neighbours are easy to tell apart. */
struct colour draw_colour(uint32_t i);

void draw_rect(struct picture *p, int x, int y, int w, int h, struct colour c);
/* A picture at x, y; and one resized into the box w x h, its shape kept, in the middle: the
 * place that it took is given back, so that masks can be laid over it. */
void draw_picture(struct picture *p, int x, int y, const struct picture *what);
struct draw_place {
    int x, y;
    uint32_t w, h;
};
struct draw_place draw_fit(struct picture *p, int x, int y, uint32_t w, uint32_t h, const struct picture *what);

/* Letters of 5x7 dots, each `scale` pixels, 6 dots apart. Bytes that are not printable ASCII show as a box. */
enum { DRAW_LETTER_W = 6, DRAW_LETTER_H = 9 };
void draw_text(struct picture *p, int x, int y, int scale, struct colour c, const char *text);
int draw_text_width(int scale, const char *text);

/* A mask: one byte a pixel, or one bit, least significant first as data/grid.h has them. */
struct draw_mask {
    const uint8_t *at;
    size_t stride; /* bytes of a row */
    uint32_t w, h;
    bool bits;
};
/* Lays a mask over a place of the picture, sampled to its size: coloured where it is set
 * (`strength` 0..1 of the colour) and with an outline `line` pixels wide, inside the mask. */
void draw_overlay(struct picture *p, struct draw_place at, const struct draw_mask *m, struct colour c, double strength, int line);
/* A point prompt: a disc with a white rim. And a box. */
void draw_point(struct picture *p, int x, int y, int radius, struct colour c);
void draw_box(struct picture *p, int x, int y, int w, int h, int line, struct colour c);

/* One cell of a sheet; lines[] that are not NULL stand below the picture. */
struct draw_cell {
    struct picture picture;
    const char *lines[3];
};
/* A grid of cells, `columns` wide, each picture fitted into cell_w x cell_h. */
struct picture draw_sheet(const char *title, const struct draw_cell *cells, uint32_t n, uint32_t columns, uint32_t cell_w, uint32_t cell_h);

/* Horizontal bars: label, bar, value as printed. Bars are relative to the largest value. */
struct draw_bar {
    const char *label, *shown;
    double value;
};
struct picture draw_bars(const char *title, const struct draw_bar *bars, uint32_t n, uint32_t width);
/* Pictures one below the other, on white. */
struct picture draw_stack(const struct picture *parts, uint32_t n);

#endif
