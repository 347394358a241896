/*
 * window.cuh: the window of a block, and the addresses of its tokens.
 */
#ifndef ATTENTION_WINDOW_CUH
#define ATTENTION_WINDOW_CUH

#include "cuda/attention/mma.cuh"

/* A window of a sample and a head: its first position, and how many of its rows and columns are on
 * the grid. Those positions, row by row, are its queries. */
struct window_block {
    int b, h, index;
    int y, x, rows, columns;
};

__device__ inline window_block window_block_of(const attention &a, int index)
{
    const int place = index / a.H, in = place % (a.across * a.down);
    window_block s;
    s.index = index, s.h = index % a.H, s.b = place / (a.across * a.down);
    s.y = in / a.across * a.window, s.x = in % a.across * a.window;
    s.rows = min(a.window, a.height - s.y), s.columns = min(a.window, a.width - s.x);
    return s;
}

__device__ inline int token_at(const attention &a, const window_block &s, int y, int x)
{
    return (s.y + y) * a.width + s.x + x;
}
/* The token of query r. */
__device__ inline int query_at(const attention &a, const window_block &s, int r)
{
    return token_at(a, s, r / s.columns, r % s.columns);
}

/* Blocks of a kernel with one window of a head each. */
static inline int64_t windows_of(const attention *a) { return (int64_t)a->B * a->across * a->down * a->H; }

#endif
