/*
 * rows.h: packing: which samples share a row of T tokens.
 *
 * Best fit decreasing: from the longest sample to the shortest, each goes into the row with the least
 * room that holds it. It depends on the lengths alone. Rows are numbered by their first sample, and the
 * samples of a row keep their order, so that rows of an unshuffled run follow the file.
 */
#ifndef ROWS_H
#define ROWS_H

#include "base/base.h"

struct rows {
    uint32_t n;
    uint32_t *first;   /* [n + 1] into samples */
    uint32_t *samples; /* every sample once, row after row */
};

/* lengths[n], each from 1 to T. `pack` false: each sample has a row of its own. */
void rows_pack(struct rows *r, const uint32_t *lengths, uint32_t n, uint32_t T, bool pack);
void rows_free(struct rows *r);

#endif
