/*
 * sizes.h: sizes that the shape rules of ops and their kernels share.
 */
#pragma once

#include <stdint.h>

/* Returns the elements of a cell of a weight of n elements: the unit of the norm over ranks. It is
 * a whole number of blocks of 8-bit state. */
static inline int64_t weight_cell(int64_t n) { return n < 1 << 20 ? 256 : 16384; }
/* Returns how many partial sums FOLD keeps: 1 for 2 shares, 2 for 3 and 4, 3 for 5 to 8. */
static inline int fold_levels(int shares)
{
    int levels = 0;
    while (1 << levels < shares) levels++;
    return levels;
}
enum { MASK_STATS = 4 }; /* statistics per mask that MASK_LOSS keeps for the backward */
enum { STATE_BLOCK = 256 }; /* elements of 8-bit optimizer state that share one absmax */
static inline int64_t state_blocks(int64_t elements) { return (elements + STATE_BLOCK - 1) / STATE_BLOCK; }
/* Returns the bytes of a row of w bits, rounded up to 8 bytes. */
static inline int64_t mask_row_bytes(int64_t w) { return (w + 63) / 64 * 8; }
