/*
 * rows.h: packing: which samples share a row, which has room for some tokens, some images and some
 * frames of videos.
 *
 * Best fit decreasing: from the longest sample to the shortest, each goes into the row with the
 * least room for tokens that holds it, its images and frames included. It depends on the sizes
 * alone. Rows are numbered by their first sample, and the samples of a row keep their order, so
 * that rows of an unshuffled run follow the file.
 */
#ifndef ROWS_H
#define ROWS_H

#include "base/base.h"

/* Of a sample; of a row; of the room that is left in a row. */
struct row_size {
    uint32_t tokens, images, frames;
};

struct rows {
    uint32_t n;
    uint32_t *first;   /* [n + 1] into samples */
    uint32_t *samples; /* every sample once, row after row */
};

/* sizes[n], each of 1 to most.tokens tokens and at most most.images images and most.frames frames.
 * `pack` false: each sample has a row of its own. */
void rows_pack(struct rows *r, const struct row_size *sizes, uint32_t n, struct row_size most, bool pack);
void rows_free(struct rows *r);

#endif
