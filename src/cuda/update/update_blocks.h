/*
 * update_blocks.h: the partial sums of the optimizer step: functions of the shape, for the
 * planning half and the launchers.
 */
#pragma once

#include <stdint.h>

/* The maximum number of blocks: eight of 256 threads for each SM of a large GPU. */
#define UPDATE_BLOCKS ((int64_t)1056)

/* Returns the number of blocks of 512 threads that sum the squares of n elements: 16384 elements
 * per block, and no more blocks than a large GPU has SMs; eight such tensors have UPDATE_BLOCKS
 * partial sums. */
static inline int64_t square_blocks(int64_t n)
{
    const int64_t blocks = (n + 16383) / 16384;
    return blocks < 1 ? 1 : blocks > UPDATE_BLOCKS / 8 ? UPDATE_BLOCKS / 8 : blocks;
}

/* Rows of a matrix per chunk whose squares are summed by column. */
#define FACTOR_ROWS ((int64_t)128)
static inline int64_t factor_chunks(int64_t R) { return (R + FACTOR_ROWS - 1) / FACTOR_ROWS; }

/* ADAFACTOR: not factored; factored, where a thread sums a column of up to FACTOR_DIRECT rows, or
 * chunks of rows are summed and then the chunks. */
enum { FACTOR_DIRECT = 64 };
enum factor_form { FACTOR_NONE, FACTOR_COLUMNS, FACTOR_CHUNKS };
static inline enum factor_form factor_form(int64_t R, int factored)
{
    return !factored ? FACTOR_NONE : R <= FACTOR_DIRECT ? FACTOR_COLUMNS : FACTOR_CHUNKS;
}

/* Returns the bytes of the workspace. f64: sums of u^2, the rate, and one element of padding to 16
 * bytes; then f32: column factors, row factors, column sums by chunk. */
static inline uint64_t factor_work(int64_t N, int64_t R, int64_t C, int factored)
{
    const int64_t floats = factored ? N * R + N * C + N * factor_chunks(R) * C : 0;
    return (uint64_t)(UPDATE_BLOCKS + 2) * sizeof(double) + (uint64_t)floats * sizeof(float);
}
