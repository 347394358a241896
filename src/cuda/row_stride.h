/*
 * row_stride.h: dimensions that are walked as one, for the planning and the running half alike.
 */
#ifndef ROW_STRIDE_H
#define ROW_STRIDE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether all dimensions but the last are rows at equal distances, which goes to *row. A single
 * row's distance is the length of it. */
static inline bool rows_have_one_stride(int rank, const int64_t *dim, const int64_t *stride, int64_t *row)
{
    int64_t next = 0; /* 0: no dimension of more than one element yet */
    *row = rank ? dim[rank - 1] : 1;
    for (int i = rank - 2; i >= 0; i--) {
        if (dim[i] == 1) continue;
        if (next && stride[i] != next) return false;
        if (!next) *row = stride[i];
        next = stride[i] * dim[i];
    }
    return true;
}

#endif
