/*
 * act_sums.h: the split of ACT_BWD_SUM's rows into blocks (act_sums.cu), shared by the planning
 * half and the launcher; a function of the shape.
 *
 * A block covers ACT_ACROSS 16-byte packs of each of its rows. Its threads form ACT_LINES lines of
 * ACT_ACROSS threads, and a line takes every ACT_LINES-th row. The grid has tiles of columns,
 * innermost, then `blocks` of `each` rows; the sums of the blocks are in the workspace, [blocks,C].
 */
#ifndef ACT_SUMS_H
#define ACT_SUMS_H

#include <stdint.h>

enum { ACT_THREADS = 256, ACT_ACROSS = 32, ACT_LINES = ACT_THREADS / ACT_ACROSS, ACT_TURN = 4, ACT_GRID = 528 };

struct act_sums {
    int64_t rows, C, tiles, blocks, each;
};

static inline struct act_sums act_sums_of(int64_t rows, int64_t C, int size)
{
    const int64_t width = ACT_ACROSS * (16 / size), tiles = (C + width - 1) / width, turn = ACT_LINES * ACT_TURN;
    int64_t blocks = tiles < ACT_GRID ? ACT_GRID / tiles : 1;
    const int64_t each = ((rows + blocks - 1) / blocks + turn - 1) / turn * turn;
    blocks = each > 0 ? (rows + each - 1) / each : 1;
    return (struct act_sums){rows, C, tiles, blocks, each};
}

/* Whether rows are whole packs, and long enough that few threads of a tile are idle. */
static inline int act_sums_fit(int64_t C, int size) { return C * size % 16 == 0 && C * size >= 2 * 16 * ACT_ACROSS; }

#endif
