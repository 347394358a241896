/*
 * norm_blocks.h: into how many partial sums a sum over rows is cut. A function of the shape
 * alone, which the planning half (workspaces), the launchers (grids) and so the order of
 * every sum follow.
 */
#ifndef NORM_BLOCKS_H
#define NORM_BLOCKS_H

#include <stdint.h>

/* Enough blocks of 512 threads for two on each of a large card's processors. */
enum { NORM_BLOCKS = 264 };

static inline int64_t norm_blocks(int64_t rows) { return rows < 1 ? 1 : rows < NORM_BLOCKS ? rows : (int64_t)NORM_BLOCKS; }
/* Floats of so many sums of C by block. */
static inline int64_t norm_partial(int64_t rows, int64_t C, int sums) { return norm_blocks(rows) * C * sums; }

/* Chunks of a group of n rows: at least 64 rows each, and few where channels or groups are many. */
static inline int64_t batch_chunks(int64_t G, int64_t n, int64_t C)
{
    int64_t most = 65536 / (C < 64 ? 64 : C) / G, chunks = (n + 63) / 64;
    if (most < 1) most = 1;
    return chunks < 1 ? 1 : chunks < most ? chunks : most;
}
static inline int64_t batch_each(int64_t G, int64_t n, int64_t C)
{
    const int64_t chunks = batch_chunks(G, n, C);
    return (n + chunks - 1) / chunks;
}
static inline int64_t batch_partial(int64_t G, int64_t n, int64_t C) { return G * batch_chunks(G, n, C) * 2 * C; }

#endif
