/*
 * resize_table.h: the weights of one axis of a resize, for resize.c.
 *
 * For every output position: the first source position under the filter, and a weight for each
 * position from there on.
 */
#ifndef RESIZE_TABLE_H
#define RESIZE_TABLE_H

#include "data/images/resize.h"

enum { RESIZE_BITS = 14, RESIZE_FINE_BITS = 22 };

struct resize_window {
    enum resize_filter filter;
    uint32_t source, to;   /* sizes: of the source and of the whole result */
    double from, length;   /* the window of the source */
    uint32_t out, n;       /* the output positions of the table */
    bool mirror;           /* position i of the result is position to - 1 - i */
};

/* An upper bound of the weights per position. */
uint32_t resize_table_taps(const struct resize_window *w);
size_t resize_table_bytes(const struct resize_window *w);
/* Fills a table at *at, which advances by at most resize_table_bytes. No position reads outside of
 * the source, and all have the same number of weights. */
void resize_table_fill(struct resize_axis *x, const struct resize_window *w, uint8_t **at);

/* Takes `bytes` from *at, which stays aligned to 64. */
void *resize_carve(uint8_t **at, size_t bytes);

#endif
