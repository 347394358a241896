/*
 * row_stride.h: whether leading dimensions can be merged into rows of one stride; for both halves.
 */
#ifndef ROW_STRIDE_H
#define ROW_STRIDE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether all dimensions but the last form rows with one stride, which is stored in *row. With a
 * single row the stride is the row's length. */
static inline bool rows_have_one_stride(int rank, const int64_t *dim, const int64_t *stride, int64_t *row)
{
    int64_t next = 0; /* 0: only dimensions of one element so far */
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
