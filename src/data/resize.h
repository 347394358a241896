/*
 * resize.h: RGB rows in, a resized image out, as the rows come.
 *
 * The filter is the antialiased triangle of Pillow's BILINEAR: across first, rounded to
 * bytes, then down. Results differ from Pillow's by at most 1. Nothing is allocated: the
 * caller gives scratch of resize_scratch bytes.
 *
 *     struct resize r;
 *     resize_begin(&r, &view, scratch, room);
 *     while (resize_wants(&r)) { read a row; resize_row(&r, row); }
 */
#ifndef RESIZE_H
#define RESIZE_H

#include "base/base.h"

/* What to take and where it goes. */
struct resize_view {
    uint32_t width, height;   /* of the source */
    double x, y, w, h;        /* the window of the source to show; w or h 0: all of it */
    uint32_t to_width, to_height;
    bool flip;                /* left and right exchanged */
    uint8_t *to;              /* row 0 of the result */
    size_t stride;            /* bytes from one row of the result to the next */
};

struct resize {
    struct resize_view v;
    struct resize_axis {
        uint32_t taps;        /* weights of one output place, the widest of all */
        uint32_t *first;      /* [n] the first source place */
        int16_t *weight;      /* [n][taps] in 1/16384, each row sums to 16384 */
    } across, down;
    uint8_t *ring;            /* [down.taps][ring_stride] rows already resized across */
    size_t ring_stride;
    uint8_t *tail;            /* a copy of the source row with room behind its end */
    uint32_t at, next;        /* source row expected, output row to be written */
    bool copy;                /* across is the identity */
};

/* Bytes of scratch that this view needs; `to` and `flip` do not matter. */
size_t resize_scratch(const struct resize_view *v);
/* Enough for every image whose sides are at most `longest`, and every window of one, that
 * goes to the size resize_longest gives for `side`: what a loader sets aside. */
size_t resize_scratch_most(uint32_t longest, uint32_t side);
void resize_begin(struct resize *r, const struct resize_view *v, void *scratch, size_t room);
/* Whether a row is still of use: false when the window is complete. */
bool resize_wants(const struct resize *r);
/* The next source row from the top, [width][3] bytes. */
void resize_row(struct resize *r, const uint8_t *rgb);

/* SAM's size: the longer side becomes `side`, the other int(x * scale + 0.5), at least 1. */
void resize_longest(uint32_t width, uint32_t height, uint32_t side, uint32_t *to_width, uint32_t *to_height);
/* Fills what the image of w x h leaves of a square of `side` at `to` with one colour. SAM
 * pads with 0 after normalising: who normalises must zero there by w and h; a colour near
 * the mean is for eyes. */
void resize_pad(uint8_t *to, uint32_t side, uint32_t w, uint32_t h, const uint8_t colour[3]);

#endif
