/*
 * resize.h: resizes an image, row by row (RGB).
 *
 * The filter is the antialiased triangle of Pillow's BILINEAR: horizontally first, rounded to
 * bytes, then vertically. Results differ from Pillow's by at most 1. Nothing is allocated: the
 * caller provides resize_scratch bytes of scratch.
 *
 *     struct resize r;
 *     resize_begin(&r, &view, scratch, room);
 *     while (resize_wants(&r)) { read a row; resize_row(&r, row); }
 */
#ifndef RESIZE_H
#define RESIZE_H

#include "base/base.h"

/* The source window and the result. */
struct resize_view {
    uint32_t width, height;   /* of the source */
    double x, y, w, h;        /* the window of the source; w or h 0: all of it */
    uint32_t to_width, to_height;
    bool flip;                /* mirror horizontally */
    uint8_t *to;              /* row 0 of the result */
    size_t stride;            /* bytes per row of the result */
};

struct resize {
    struct resize_view v;
    struct resize_axis {
        uint32_t taps;        /* weights per output position, the maximum */
        uint32_t *first;      /* [n] the first source position */
        int16_t *weight;      /* [n][taps] in 1/16384, each row sums to 16384 */
    } across, down;
    uint8_t *ring;            /* [down.taps][ring_stride] rows already resized horizontally */
    size_t ring_stride;
    uint8_t *tail;            /* a copy of the source row with padding after its end */
    uint32_t at, next;        /* next source row, next output row */
    bool copy;                /* the horizontal resize is the identity */
};

/* Bytes of scratch for this view, independent of `to` and `flip`. */
size_t resize_scratch(const struct resize_view *v);
/* Enough scratch for every image with sides of at most `longest`, and every window of one, resized
 * by resize_longest to `side`: the loader's buffer. */
size_t resize_scratch_most(uint32_t longest, uint32_t side);
void resize_begin(struct resize *r, const struct resize_view *v, void *scratch, size_t room);
/* Whether more rows are needed: false when the window is complete. */
bool resize_wants(const struct resize *r);
/* Adds the next source row from the top, [width][3] bytes. */
void resize_row(struct resize *r, const uint8_t *rgb);

/* SAM's size: the longer side becomes `side`, the other int(x * scale + 0.5), at least 1. */
void resize_longest(uint32_t width, uint32_t height, uint32_t side, uint32_t *to_width, uint32_t *to_height);
/* Fills the rest of a square of `side` at `to` outside of the image of w x h with one colour. SAM
 * pads with 0 after normalising, so code that normalises must zero this area by w and h; a colour
 * near the mean only serves display. */
void resize_pad(uint8_t *to, uint32_t side, uint32_t w, uint32_t h, const uint8_t colour[3]);

#endif
