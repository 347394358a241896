/*
 * collective.h: how a tensor is cut for a collective on GPUs, for both halves of its kernel.
 *
 *     x     | part of rank 0 | part of rank 1 | part of rank 2 |
 *           | piece |        | piece |        | piece |            a round moves a piece of each
 */
#pragma once

#include "base/base.h"

/* Bytes of the pieces of a round, at most; a part begins at a multiple of PART_ELEMENTS. */
enum { ROUND_BYTES = 64 << 20, PART_ELEMENTS = 64 };

/* Returns the elements of a part of ALL_REDUCE of n elements: the last ones may be shorter or
 * empty. */
static inline int64_t part_elements(int64_t n, int ranks)
{
    return ceil_div(ceil_div(n, ranks), PART_ELEMENTS) * PART_ELEMENTS;
}
/* Returns the elements of a piece: a part, or some of it. */
static inline int64_t piece_elements(int64_t part, int ranks, int64_t size)
{
    const int64_t most = ROUND_BYTES / ranks / size / PART_ELEMENTS * PART_ELEMENTS;
    return min_i64(part, max_i64(most, PART_ELEMENTS));
}
