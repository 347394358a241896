/*
 * grouped.h: the products of a mixture of experts on the GPU, for both halves of the family. Plain
 * C. The formulas: cpu/products/grouped.c.
 *
 *     GROUPED_LINEAR    y  [M,N]     rows are divided among the experts     depth K
 *     GROUPED_DW        dw [E,N,K]   a matrix of each expert                depth: its rows
 *
 * Only the GPU knows how many rows an expert has. The grid is that of the worst case: a block finds
 * its expert from the offsets, and returns if there are fewer tiles. A result is summed over its
 * depth in ascending order, whatever the tile, so the bits of a row depend on no other row.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Rows and columns of a tile of results: without tensor cores; with them. */
enum { GROUPED_TILE = 64, GROUPED_COLUMNS = 128, GROUPED_ROWS = 128, GROUPED_FEW = 64 };

/* The forms of GROUPED_LINEAR with tensor cores: tiles of 128 rows, or of 64 where experts have
 * few; w is dense along K, or turned, along N. */
enum grouped_form { GROUPED_PLAIN, GROUPED_PLAIN_FEW, GROUPED_TURNED, GROUPED_TURNED_FEW };
static inline enum grouped_form grouped_form(int64_t rows, int64_t experts, bool turned)
{
    const bool few = rows < 2 * GROUPED_ROWS * experts;
    return turned ? few ? GROUPED_TURNED_FEW : GROUPED_TURNED : few ? GROUPED_PLAIN_FEW : GROUPED_PLAIN;
}

/* Returns the most tiles of `each` rows that `rows` rows of the experts can take: of every expert
 * that has any, the last one may have a single row. */
static inline int64_t grouped_tiles(int64_t rows, int64_t experts, int64_t each)
{
    const int64_t some = rows < experts ? rows : experts;
    return (rows + some * (each - 1)) / each;
}

/* Returns the blocks of a launch: of GROUPED_LINEAR; of GROUPED_DW, for tiles of [N,K]. */
static inline int64_t grouped_blocks(int64_t rows, int64_t experts, int64_t columns, int64_t down, int64_t across)
{
    return grouped_tiles(rows, experts, down) * ((columns + across - 1) / across);
}
static inline int64_t grouped_dw_blocks(int64_t experts, int64_t N, int64_t K, int64_t down, int64_t across)
{
    return experts * ((N + down - 1) / down) * ((K + across - 1) / across);
}
