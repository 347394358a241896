/*
 * update_blocks.h: partial sums of the update: a function of the shape alone, for the planning
 * half and the launchers.
 */
#ifndef UPDATE_BLOCKS_H
#define UPDATE_BLOCKS_H

#include <stdint.h>

/* At most so many blocks, eight of 256 threads for each of a large GPU's processors. */
#define UPDATE_BLOCKS ((int64_t)1056)

/* Blocks of 512 threads that add up the squares of n elements: 16384 to a block, and no more blocks
 * than a large GPU has processors; eight such tensors have UPDATE_BLOCKS partial sums. */
static inline int64_t square_blocks(int64_t n)
{
    const int64_t blocks = (n + 16383) / 16384;
    return blocks < 1 ? 1 : blocks > UPDATE_BLOCKS / 8 ? UPDATE_BLOCKS / 8 : blocks;
}

/* Rows of a matrix whose squares are added together, column by column. */
#define FACTOR_ROWS ((int64_t)128)
static inline int64_t factor_chunks(int64_t R) { return (R + FACTOR_ROWS - 1) / FACTOR_ROWS; }

/* Sums of u^2 and the rate, f64, and one to fill up 16 bytes; then f32: factors of columns, of rows, sums of columns by chunk. */
static inline uint64_t factor_work(int64_t N, int64_t R, int64_t C, int factored)
{
    const int64_t floats = factored ? N * R + N * C + N * factor_chunks(R) * C : 0;
    return (uint64_t)(UPDATE_BLOCKS + 2) * sizeof(double) + (uint64_t)floats * sizeof(float);
}

#endif
