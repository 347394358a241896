/*
 * filters.h: the shape of BMM_ACT, for both halves of the family. Plain C.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

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
