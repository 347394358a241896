/*
 * resize.h: resizes an image, row by row (RGB).
 *
 * The filters are Pillow's, antialiased: one axis, rounded to bytes, then the other. BICUBIC and
 * LANCZOS give the bytes of Pillow 13, which begins with the height where it shrinks by much more
 * pixels than the width; earlier versions always begin with the width, and their bytes differ by 1
 * here and there. TORCH_BICUBIC gives the bytes of PyTorch (torchvision), on a CPU, for images of
 * bytes: the same filter with weights of fewer bits, which begins with the width. BILINEAR, which
 * is made for speed, begins with the width and differs by at most 1. Nothing is allocated: the
 * caller provides resize_scratch bytes of scratch.
 *
 *     struct resize r;
 *     resize_begin(&r, &view, scratch, room);
 *     while (resize_wants(&r)) { read a row; resize_row(&r, row); }
 */
#pragma once

#include "base/base.h"

enum resize_filter { RESIZE_BILINEAR, RESIZE_BICUBIC, RESIZE_LANCZOS, RESIZE_TORCH_BICUBIC };

/* The source window and the result. */
struct resize_view {
    enum resize_filter filter;
    uint32_t width, height;   /* of the source */
    double x, y, w, h;        /* the window of the source; w or h 0: all of it */
    uint32_t to_width, to_height;
    uint32_t out_x, out_y, out_w, out_h; /* the part of the result that is computed; out_w, out_h 0: all of it */
    bool flip;                /* mirror horizontally */
    uint8_t *to;              /* row 0 of what is computed */
    size_t stride;            /* bytes per row of the result */
};

struct resize {
    struct resize_view v;
    struct resize_axis {
        uint32_t taps;        /* weights per output position, the maximum */
        uint32_t *first;      /* [n] the first source position */
        int16_t *weight;      /* [n][taps] in 1/16384, each row sums to 16384; bilinear */
        int32_t *fine;        /* [n][taps] in 1/2^bits; the other filters */
        int bits;
    } across, down;
    bool down_first;          /* the height is resized before the width */
    uint8_t *ring;            /* [down.taps][ring_stride] rows before they are resized vertically */
    size_t ring_stride;
    uint8_t *tail;            /* a copy of the source row with padding after its end; down_first: a row before it is
                                 resized horizontally */
    uint32_t out_w, out_h;    /* of what is computed */
    uint32_t at, next;        /* next source row, next output row */
    bool copy;                /* the horizontal resize is the identity */
};

/* Returns the bytes of scratch for this view, independent of `to` and `flip`. */
size_t resize_scratch(const struct resize_view *v);
/* Returns enough scratch for every image, bilinear, with sides of at most `longest`, and every
 * window of one, resized by resize_longest to `side`: the loader's buffer. */
size_t resize_scratch_most(uint32_t longest, uint32_t side);
void resize_begin(struct resize *r, const struct resize_view *v, void *scratch, size_t room);
/* Reports whether more rows are needed: false when the window is complete. */
bool resize_wants(const struct resize *r);
/* Adds the next source row from the top, [width][3] bytes. */
void resize_row(struct resize *r, const uint8_t *rgb);

/* Resizes a whole image, [height][width][3], bilinear. The caller frees the result. */
uint8_t *resize_image(const uint8_t *rgb, uint32_t width, uint32_t height, uint32_t to_width, uint32_t to_height);

/* Computes SAM's size: the longer side becomes `side`, the other int(x * scale + 0.5), at least
 * 1. */
void resize_longest(uint32_t width, uint32_t height, uint32_t side, uint32_t *to_width, uint32_t *to_height);
/* Computes the size of an image in a square canvas of `side`: SAM's, or if it is stretched all of
 * the square. */
void resize_canvas(uint32_t width, uint32_t height, uint32_t side, bool stretched, uint32_t *to_width,
                   uint32_t *to_height);

/* ---- Tables of an axis ----
 *
 * the weights of one axis of a resize, for resize.c.
 *
 * For every output position: the first source position under the filter, and a weight for each
 * position from there on.
 */

enum { RESIZE_BITS = 14, RESIZE_FINE_BITS = 22 };

struct resize_window {
    enum resize_filter filter;
    uint32_t source, to;   /* sizes: of the source and of the whole result */
    double from, length;   /* the window of the source */
    uint32_t out, n;       /* the output positions of the table */
    bool mirror;           /* position i of the result is position to - 1 - i */
};

/* Returns an upper bound of the weights per position. */
uint32_t resize_table_taps(const struct resize_window *w);
size_t resize_table_bytes(const struct resize_window *w);
/* Fills a table at *at, which advances by at most resize_table_bytes. No position reads outside of
 * the source, and all have the same number of weights. */
void resize_table_fill(struct resize_axis *x, const struct resize_window *w, uint8_t **at);

/* Takes `bytes` from *at, which stays aligned to 64. */
void *resize_carve(uint8_t **at, size_t bytes);
