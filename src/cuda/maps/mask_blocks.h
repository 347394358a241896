/*
 * mask_blocks.h: the partial sums of mask losses, and the shape of BMM_ACT, for the planning half
 * and the kernels.
 */
#pragma once

#include <stdbool.h>

#include "base/mask_terms.h"

/* Rows of a mask per partial sum of MASK_LOSS; rows and columns of one of STRUCTURE_LOSS. */
enum { MASK_ROWS = 16, STRUCTURE_ROWS = 32, STRUCTURE_COLUMNS = 256 };
SHARED int64_t mask_blocks(int64_t h) { return (h + MASK_ROWS - 1) / MASK_ROWS; }
SHARED int64_t structure_blocks(int64_t h, int64_t w)
{
    return (h + STRUCTURE_ROWS - 1) / STRUCTURE_ROWS * ((w + STRUCTURE_COLUMNS - 1) / STRUCTURE_COLUMNS);
}

/* Pixels that SCORE_LOSS counts of each candidate: of the target, above 0, and both. */
enum { SCORE_COUNTS = 3 };

/* --- BMM_ACT ---------------------------------------------------------------------------------- */

struct filters {
    int64_t batches, M, N, K; /* a [M,K], z [N,K], y [M,N] */
    int kind;                 /* enum act_kind */
};

static inline struct filters filters_of(int rank, const int64_t *a, const int64_t *z)
{
    struct filters x = {1, a[rank - 2], z[rank - 2], a[rank - 1], 0};
    for (int i = 0; i + 2 < rank; i++) x.batches *= a[i];
    return x;
}

/* Reports whether the elements of a fit a grid: their gradient uses one block for each. */
static inline bool filters_countable(struct filters x)
{
    return x.batches * x.M * x.K < INT32_MAX && x.batches * x.M * x.N < (int64_t)INT32_MAX * 64 &&
           x.batches * x.N * x.K < (int64_t)INT32_MAX * 64;
}
